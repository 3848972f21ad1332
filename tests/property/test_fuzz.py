"""Bad bytes give an equal result or an error of ours: no crash, no hang, no memory beyond the limit, no other value.

The fuzzer is `tests/fuzz/decoder.py`; what it found is kept here as small cases of its own.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

from snowmelt.databases.mysql.log.decode import LogItem, LogReader, LogServer
from snowmelt.databases.mysql.log.events import Event, read_gtid
from snowmelt.databases.mysql.log.scan import Places, Stop, Walk
from snowmelt.databases.mysql.log.unpack import unpack
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory
from snowmelt.relay.limits import Limits
from snowmelt.segments import Segment
from tests.fuzz import decoder, mutate
from tests.fuzz.corpus import Piece, load_pieces, spans
from tests.kit.streams import event, query_body

PIECES = {piece.name: piece for piece in load_pieces()}


@pytest.mark.timeout(1200)
def test_mutated_segments_give_their_own_result_or_are_refused(tmp_path: Path) -> None:
    report = decoder.run(seed=20261115, count=20_000, save=tmp_path)
    assert not report.failures
    assert report.segments == 20_000
    # A fuzzer whose bytes are all refused at the door proves little.
    for reached in ("raw: equal", "repaired: read", "rows: read", "json: read", "result rows: read", "stream: read", "unpack: read"):
        assert report.counts[reached] > 20, reached


@pytest.mark.timeout(600)
def test_a_crash_a_hang_and_too_much_memory_do_not_escape_the_fuzzer() -> None:
    report = decoder.run(seed=1, count=60, plants={2: "error", 11: "memory", 20: "hang", 31: "crash"})
    assert [(failure["case"], failure["what"].split(":")[0]) for failure in report.failures if failure["case"] in (2, 11, 20, 31)] == [
        (2, "KeyError"),
        (11, "MemoryError"),
        (20, "took too long"),
        (31, "died of SIGSEGV"),
    ]
    assert report.segments == 60


def test_a_decoder_that_checks_no_checksums_does_not_escape_the_fuzzer() -> None:
    runner = decoder.Runner()
    wrong = 0
    for number in range(0, 600, 2):
        case = decoder.segment_case(1, number)
        mended = bytearray(case.data)
        for at, end in spans(case.data):
            mended[end - 4 : end] = struct.pack("<I", zlib.crc32(mended[at : end - 4]))
        try:
            with decoder.watched_arenas():
                runner.run(decoder.Case(case.target, case.name, bytes(mended), case.extra))
        except decoder.Broken:
            wrong += 1
    assert wrong > 5


def read(piece: Piece, data: bytes, *, end: int | None = None, limits: Limits | None = None) -> list[LogItem]:
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    for table in piece.tables:
        schemas.put(table.id, Position(0, 0), table)
    reader = LogReader(server=LogServer(piece.flavour, piece.version), schemas=schemas, limits=limits or Limits())
    array = np.frombuffer(bytearray(data), np.uint8)
    return list(reader.read(array, file=1, start=piece.start, end=end, checksum_bytes=piece.checksum_bytes))


def walk_over(data: bytes) -> Walk:
    return Walk.over(np.frombuffer(bytearray(data), np.uint8), position=4, checksum_bytes=0, places=Places.UNPACKED)


def parts(piece: Piece) -> list[bytes]:
    return [piece.data[a:b] for a, b in piece.events]


ORDERED = sorted(name for name, piece in PIECES.items() if piece.checksum_bytes)


@pytest.mark.parametrize("name", ORDERED)
def test_an_event_that_comes_twice_is_refused(name: str) -> None:
    piece = PIECES[name]
    for index in range(len(piece.events)):
        events = parts(piece)
        events.insert(index, events[index])
        with pytest.raises((Corrupt, SourceDrift)):
            read(piece, b"".join(events), end=piece.end)


@pytest.mark.parametrize("name", ORDERED)
def test_events_that_changed_places_are_refused(name: str) -> None:
    piece = PIECES[name]
    for index in range(len(piece.events) - 1):
        events = parts(piece)
        events[index], events[index + 1] = events[index + 1], events[index]
        with pytest.raises((Corrupt, SourceDrift)):
            read(piece, b"".join(events), end=piece.end)


@pytest.mark.parametrize("name", [name for name in ORDERED if name.startswith("mysql")])
def test_a_missing_event_of_mysql_is_refused(name: str) -> None:
    piece = PIECES[name]
    for index in range(len(piece.events)):
        events = parts(piece)
        del events[index]
        with pytest.raises((Corrupt, SourceDrift)):
            read(piece, b"".join(events), end=piece.end)


@pytest.mark.parametrize("name", ORDERED)
def test_a_range_that_ends_too_early_is_refused(name: str) -> None:
    piece = PIECES[name]
    for at, _ in piece.events:
        with pytest.raises(Corrupt):
            read(piece, piece.data[:at], end=piece.end)


def test_a_missing_transaction_of_mariadb_is_told_by_the_segments_length(tmp_path: Path) -> None:
    # MariaDB's server leaves events out, so positions alone can't tell.
    piece = PIECES["mariadb_types"]
    events = parts(piece)
    starts = [index for index, each in enumerate(events) if each[4] == Event.GTID_MARIADB]
    shorter = b"".join(events[: starts[1]] + events[starts[2] :])
    assert len(read(piece, shorter, end=piece.end)) == 1
    segment = Segment(
        folder=tmp_path,
        number=1,
        database="mysql",
        identity="x",
        log="binlog.000001",
        start=Position(1, piece.start),
        end=Position(1, piece.end),
        follows=None,
        file_begins=4,
        data_bytes=len(piece.data),
        data_crc32=None,
        first_time_s=1,
        last_time_s=1,
        cuts=(),
        own="",
    )
    segment.data_path.write_bytes(shorter)
    with pytest.raises(Corrupt, match="length"):
        segment.bytes()


def test_the_mark_of_a_file_in_use_is_no_way_around_the_checksum() -> None:
    piece = PIECES["mysql56_small"]
    assert piece.data[4] == Event.FORMAT_DESCRIPTION
    assert piece.data[17] & 1
    assert read(piece, piece.data)
    for at in range(len(piece.data)):
        # Any event, made to look as if it were such a file's first.
        disguised = bytearray(piece.data)
        disguised[at] ^= 0x10
        for start, end in piece.events:
            if start <= at < end and start:
                disguised[start + 4] = Event.FORMAT_DESCRIPTION
                disguised[start + 17] |= 1
        with pytest.raises(Corrupt):
            read(piece, bytes(disguised))


def test_row_events_shorter_than_any_real_one_have_room_in_the_walk() -> None:
    # Without checksums a row event that only has a table and flags is 27 bytes; thousands of them once overran an array.
    table = struct.pack("<Q", 7)
    shape = table + b"\x01d\x00\x01t\x00\x01\x03\x00\x00"
    events = [event(2, query_body(b"BEGIN"), next_position=0, checksummed=False), event(19, shape, next_position=0, checksummed=False)]
    events += [event(30, table, next_position=0, checksummed=False)] * 20_000
    events += [event(16, bytes(8), next_position=0, checksummed=False)]
    walk = walk_over(b"".join(events))
    assert walk.advance() is Stop.END
    assert len(walk.row_at) >= 20_000


def test_rows_of_a_group_that_is_a_single_statement_never_get_its_end() -> None:
    # They once came out with whatever lay in memory as their position.
    gtid = bytes(25) + b"\x00" * 17
    table = struct.pack("<Q", 7)
    events = [
        event(33, gtid, next_position=0, checksummed=False),
        event(19, table + b"\x01d\x00\x01t\x00\x01\x03\x00\x00", next_position=0, checksummed=False),
        event(30, table + b"\x02\x00\x01\xff\x00\x01\x00\x00\x00", next_position=0, checksummed=False),
        event(2, query_body(b"DROP TABLE x"), next_position=0, checksummed=False),
    ]
    walk = walk_over(b"".join(events))
    assert walk.advance() is Stop.NO_GROUP


def test_xa_prepare_without_a_group_is_refused() -> None:
    # It once held back, and gave out again, the transactions before it.
    body = struct.pack("<BiII", 0, 1, 1, 1) + b"ab"
    walk = walk_over(event(38, body, next_position=0, checksummed=False))
    assert walk.advance() is Stop.NO_GROUP


@pytest.mark.parametrize("name", ["XA COMMIT X'abc',X'',1", "XA COMMIT X'ab',X'',1" + "0" * 5000, "XA COMMIT ", "XA ROLLBACK X'"])
def test_a_name_of_an_xa_transaction_that_is_none_is_corrupt(name: str) -> None:
    piece = PIECES["mysql8_xa"]
    rng = random.Random(1)
    framed = mutate.frame(rng, [event(2, query_body(name.encode()), next_position=0, checksummed=False)], piece)
    with pytest.raises(Corrupt):
        read(piece, framed)


def test_a_tagged_gtid_with_numbers_that_are_no_bytes_is_corrupt() -> None:
    body = b"\x02\x02\x02" + b"\x00\x00" + b"\x02" + b"\xfd\xff" * 16 + b"\x04\x02\x06\x00"
    with pytest.raises(Corrupt):
        read_gtid(Event.GTID_TAGGED, 1, body)


@pytest.mark.parametrize("claim", [1 << 31, (1 << 32) - 1, 1 << 40, (1 << 64) - 1])
def test_a_payload_that_claims_a_monstrous_size_costs_nothing(claim: int) -> None:
    piece = PIECES["mysql8_payload"]
    body = mutate.payload(b"", claim=claim, frame_bytes=zstandard.compress(b"x" * 100))
    raw = event(Event.TRANSACTION_PAYLOAD, body, next_position=0)
    with pytest.raises(Corrupt):
        unpack(np.frombuffer(bytearray(raw), np.uint8), checksum_bytes=piece.checksum_bytes, where="1", bytes_max=1 << 20)


def test_a_range_that_unpacks_to_more_than_the_limit_is_refused_before_it_has_grown() -> None:
    piece = PIECES["mysql8_payload"]
    with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max"):
        read(piece, piece.data, limits=Limits(unpacked_bytes_max=100))
    assert read(piece, piece.data, limits=Limits(unpacked_bytes_max=100_000))


def test_what_was_fragmented_or_compressed_is_not_hidden_in_a_payload() -> None:
    inner = event(Event.PARTIAL_ROW_DATA, struct.pack("<IIBQ", 1, 2, 1, 50) + bytes(20), next_position=0, checksummed=False)
    raw = event(Event.TRANSACTION_PAYLOAD, mutate.payload(inner), next_position=0)
    with pytest.raises(Corrupt):
        unpack(np.frombuffer(bytearray(raw), np.uint8), checksum_bytes=4, where="1")


def test_a_statement_before_compressed_rows_of_its_group_is_acted_on_once() -> None:
    # The group is walked again in its plain form; CREATE TABLE .. SELECT writes its statement plain and its rows compressed.
    piece = PIECES["mariadb_made_by_query"]
    events = [piece.data[a : b - 4] for a, b in piece.events]
    for index, each in enumerate(events):
        if each[4] == Event.WRITE_ROWS_V1:
            head = 19 + 8 + 1 + 1
            packed = mutate.pack(each[head:])
            events[index] = each[:4] + bytes([Event.WRITE_ROWS_COMPRESSED_V1]) + each[5:head] + packed
    rng = random.Random(3)
    expected, got = read(piece, piece.data), read(piece, mutate.frame(rng, events, piece))
    assert [type(item) for item in got] == [type(item) for item in expected]
