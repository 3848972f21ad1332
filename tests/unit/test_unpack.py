"""Compressed and fragmented events made by hand: they become the plain ones, or are refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.log.decode import LogReader, LogServer
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.log.unpack import inflate, unpack
from snowmelt.errors import Corrupt, SourceDrift
from tests.integration.logs import changes, handmade_schemas, table_map_body, write_rows_body
from tests.kit import streams
from tests.kit.packed_events import compressed_rows, deflated, fragments, payload, plain_event

ROWS = write_rows_body(9, range(200))


def group(log: streams.Log, *rows: tuple[int, bytes], told: bool = True) -> None:
    """A transaction of MariaDB with these events behind its map. `told` says whether those inside tell their places."""
    log.add(Event.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0) + bytes(6))
    log.add(Event.TABLE_MAP, table_map_body(9), told=told)
    for kind, body in rows:
        log.add(kind, body, told=told)
    log.add(Event.XID, bytes(8))


def values(log: streams.Log, flavour: str = "mariadb") -> list[int]:
    reader = LogReader(server=LogServer(flavour, (12, 3, 1)), schemas=handmade_schemas())  # type: ignore[arg-type]
    data = np.frombuffer(b"".join(log.stored), np.uint8)
    found = changes(reader.read(data, file=1, start=4, checksum_bytes=4 * log.checksummed))
    assert {change.position for change in found} <= {log.offset}
    return [change.values["id"] for change in found]


def unpacked(*events: bytes) -> bytes:
    return unpack(np.frombuffer(b"".join(events), np.uint8), checksum_bytes=0, where="1:4").tobytes()


class TestCompressed:
    @settings(deadline=None)
    @given(st.binary(max_size=300), st.booleans())
    def test_data_come_out_as_they_went_in(self, plain: bytes, raw: bool) -> None:
        assert inflate(deflated(plain, raw=raw)) == plain

    @pytest.mark.parametrize("checksummed", [True, False])
    def test_rows(self, checksummed: bool) -> None:
        log = streams.Log(checksummed=checksummed)
        group(log, (Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS)))
        assert values(log) == list(range(200))

    def test_rows_of_version_two_and_updates(self) -> None:
        head = (9).to_bytes(6, "little") + b"\1\0"
        rows = b"\0" + struct.pack("<i", 1) + b"\0" + struct.pack("<i", 2)
        log = streams.Log()
        group(log, (Event.UPDATE_ROWS_COMPRESSED, head + b"\2\0\1\xff\xff" + deflated(rows)))
        assert values(log) == [1, 2]
        log = streams.Log()
        group(log, (Event.DELETE_ROWS_COMPRESSED, head + b"\5\0abc\1\xff" + deflated(rows)))
        assert values(log) == [1, 2]

    def test_rows_of_very_many_columns_keep_their_bitmaps(self) -> None:
        head = (9).to_bytes(6, "little") + b"\1\0\xfc\x2c\x01" + b"\xff" * 38
        made = unpacked(plain_event(Event.WRITE_ROWS_COMPRESSED_V1, head + deflated(b"rows")))
        assert made == plain_event(Event.WRITE_ROWS_V1, head + b"rows")

    def test_statements(self) -> None:
        body = streams.query_body(b"", status=b"\1" + bytes(8), database=b"shop")
        made = unpacked(plain_event(Event.QUERY_COMPRESSED, body + deflated(b"DROP TABLE x")))
        assert made == plain_event(Event.QUERY, streams.query_body(b"DROP TABLE x", status=b"\1" + bytes(8), database=b"shop"))

    @pytest.mark.parametrize(
        ("packed", "why"),
        [
            (b"", "cut short"),
            (b"\x00abc", "header that we don't know"),
            (b"\x91\x05", "header that we don't know"),
            (b"\x80", "header that we don't know"),
            (b"\x85\0\0\0\0\1", "header that we don't know"),
            (b"\x84\0\0", "cut short"),
            (b"\x81\x05garbage", "can't be inflated"),
            (deflated(b"plain", length=6), "don't have the length"),
            (deflated(b"plain", length=4), "don't have the length"),
            (deflated(b"plain")[:-3], "don't have the length"),
            (deflated(b"x", length=2**32 - 1), "don't have the length"),
        ],
    )
    def test_what_is_not_what_it_says_is_refused(self, packed: bytes, why: str) -> None:
        with pytest.raises(Corrupt, match=why):
            inflate(packed)

    def test_a_claim_beyond_the_limit_is_refused_before_anything_is_made(self) -> None:
        with pytest.raises(SourceDrift, match=r"2000 of 1000 bytes \(hint: exclude the table"):
            inflate(deflated(bytes(2000)), bytes_max=1000)

    def test_a_range_is_bounded_as_a_whole(self) -> None:
        event = plain_event(Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS))
        data = np.frombuffer(event * 10, np.uint8)
        with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max"):
            unpack(data, checksum_bytes=0, where="1:4", bytes_max=5000)


class TestPayload:
    EVENTS = b"".join(
        [
            plain_event(Event.QUERY, streams.query_body(b"BEGIN")),
            plain_event(Event.TABLE_MAP, table_map_body(9)),
            plain_event(Event.WRITE_ROWS_V1, ROWS),
            plain_event(Event.XID, bytes(8)),
        ]
    )

    @pytest.mark.parametrize("compression", [0, 255])
    def test_a_transaction_in_one_event(self, compression: int) -> None:
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.TRANSACTION_PAYLOAD, payload(self.EVENTS, compression=compression))
        assert values(log, "mysql") == list(range(200))

    def test_a_stream_of_several_frames(self) -> None:
        half = len(self.EVENTS) // 2
        compressor = zstandard.ZstdCompressor(write_content_size=False)
        frames = compressor.compress(self.EVENTS[:half]) + compressor.compress(self.EVENTS[half:])
        made = b"\2\1\0" + b"\3\x09\xfe" + len(self.EVENTS).to_bytes(8, "little") + b"\1\x09\xfe" + len(frames).to_bytes(8, "little")
        assert len(unpacked(plain_event(Event.TRANSACTION_PAYLOAD, made + b"\0" + frames))) == len(self.EVENTS)

    def test_inner_events_have_the_end_of_the_outer_one(self) -> None:
        outer = streams.event(Event.TRANSACTION_PAYLOAD, payload(self.EVENTS), next_position=12345, checksummed=False)
        made, at = unpacked(outer), 0
        while at < len(made):
            assert int.from_bytes(made[at + 13 : at + 17], "little") == 12345
            at += int.from_bytes(made[at + 9 : at + 13], "little")

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (payload(EVENTS)[:-1], "not as long as it says"),
            (payload(EVENTS) + b"x", "not as long as it says"),
            (payload(EVENTS, claimed=len(EVENTS) - 1), "doesn't have the length"),
            (payload(EVENTS, claimed=len(EVENTS) + 1), "doesn't have the length"),
            (payload(EVENTS, claimed=2**63), "impossible size"),
            (payload(EVENTS, compression=3), "compression is unknown"),
            (payload(EVENTS[:-1]), "an event that can't be"),
            (payload(b"short"), "an event that can't be"),
            (payload(plain_event(Event.TRANSACTION_PAYLOAD, payload(EVENTS))), "an event that can't be"),
            (b"\2\1\0\3\1\5\1\1\7\0garbage", "can't be decompressed"),
            (b"\2\1", "cut short"),
        ],
    )
    def test_what_is_not_what_it_says_is_refused(self, body: bytes, why: str) -> None:
        with pytest.raises(Corrupt, match=why):
            unpacked(plain_event(Event.TRANSACTION_PAYLOAD, body))

    def test_a_bomb_is_refused_when_it_grows_beyond_the_limit(self) -> None:
        bomb = payload(bytes(50 << 20))
        assert len(bomb) < 10_000
        with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max"):
            unpack(np.frombuffer(plain_event(Event.TRANSACTION_PAYLOAD, bomb), np.uint8), checksum_bytes=0, where="1:4", bytes_max=1 << 20)


class TestFragments:
    """MariaDB splits huge row events. Which of the two numbers is the fragment's own differs between its documents and its code."""

    @pytest.mark.parametrize("number_first", [True, False])
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    @pytest.mark.parametrize("inner_checksum", [True, False])
    def test_fragments_make_their_event(self, number_first: bool, count: int, inner_checksum: bool) -> None:
        # The inner event's header may count a checksum that was left out.
        whole = plain_event(Event.WRITE_ROWS_V1, ROWS)
        if inner_checksum:
            whole = whole[:9] + (len(whole) + 4).to_bytes(4, "little") + whole[13:]
        log = streams.Log()
        group(log, *((Event.PARTIAL_ROW_DATA, body) for body in fragments(whole, count, number_first=number_first)))
        assert values(log) == list(range(200))

    def test_fragments_of_a_compressed_event(self) -> None:
        whole = plain_event(Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS))
        log = streams.Log()
        group(log, *((Event.PARTIAL_ROW_DATA, body) for body in fragments(whole, 3, number_first=True)))
        assert values(log) == list(range(200))

    def test_two_events_in_fragments_one_behind_the_other(self) -> None:
        log = streams.Log()
        one = plain_event(Event.WRITE_ROWS_V1, write_rows_body(9, [1, 2, 3], last=False))
        two = plain_event(Event.WRITE_ROWS_V1, write_rows_body(9, [4, 5, 6]))
        bodies = fragments(one, 2, number_first=True) + fragments(two, 3, number_first=True)
        group(log, *((Event.PARTIAL_ROW_DATA, body) for body in bodies))
        assert values(log) == [1, 2, 3, 4, 5, 6]

    WHOLE = plain_event(Event.WRITE_ROWS_V1, ROWS)
    THREE = fragments(WHOLE, 3, number_first=True)

    @pytest.mark.parametrize(
        ("bodies", "why"),
        [
            (THREE[:2], "not whole"),
            (THREE[1:], "doesn't begin with its first"),
            ([THREE[0], THREE[2]], "out of order"),
            ([THREE[0], THREE[1], THREE[1]], "out of order"),
            ([THREE[0], THREE[0]], "out of order"),
            ([THREE[0], THREE[1] + b"x", THREE[2]], "longer than their event"),
            ([THREE[0], THREE[1][:-1], THREE[2]], "don't make the event's size"),
            ([THREE[0], THREE[1], struct.pack("<II", 3, 4) + THREE[2][8:]], "out of order"),
            ([THREE[0][:8]], "cut short"),
            ([struct.pack("<II", 1, 2) + b"\1" + (2**40).to_bytes(8, "little")], "limit"),
            (fragments(plain_event(Event.XID, bytes(8)), 2, number_first=True), "don't make a row event"),
            (fragments(b"tiny", 1, number_first=True), "don't make a row event"),
            (fragments(WHOLE + b"behind", 2, number_first=True), "don't make a row event"),
        ],
    )
    def test_what_is_not_whole_is_refused(self, bodies: list[bytes], why: str) -> None:
        with pytest.raises(Corrupt, match=why):
            unpacked(*(plain_event(Event.PARTIAL_ROW_DATA, body) for body in bodies))

    def test_another_event_between_fragments_is_refused(self) -> None:
        with pytest.raises(Corrupt, match="not whole"):
            unpacked(plain_event(Event.PARTIAL_ROW_DATA, self.THREE[0]), plain_event(Event.XID, bytes(8)))


class TestPlaces:
    def test_a_wrong_checksum_is_seen(self) -> None:
        log = streams.Log()
        group(log, (Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS)))
        data = np.frombuffer(b"".join(log.stored), np.uint8).copy()
        data[-1] ^= 1
        with pytest.raises(Corrupt, match="checksum is wrong"):
            unpack(data, checksum_bytes=4, where="1:4")

    def test_an_event_that_is_cut_short_is_refused(self) -> None:
        whole = plain_event(Event.XID, bytes(8))
        for length in range(1, len(whole)):
            with pytest.raises(Corrupt):
                unpacked(whole[:length])

    def test_positions_go_on_beyond_4_gib(self) -> None:
        start = 2**32 - 150
        log = streams.Log(offset=start)
        group(log, (Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS)))
        assert log.offset > 2**32
        reader = LogReader(server=LogServer("mariadb", (10, 11, 1)), schemas=handmade_schemas())
        data = np.frombuffer(b"".join(log.stored), np.uint8)
        found = changes(reader.read(data, file=1, start=start, checksum_bytes=4))
        assert {change.position for change in found} == {log.offset}
        assert len(found) == 200

    @pytest.mark.parametrize("start", [4, 2**32 - 150, 2**32 - 2500])
    @pytest.mark.parametrize(
        "events",
        [
            [(Event.WRITE_ROWS_V1, ROWS)],
            [(Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS))],
            [(Event.ANNOTATE, b"x" * 700), (Event.WRITE_ROWS_V1, ROWS)],
            [(Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(ROWS)), (Event.TABLE_MAP, table_map_body(9)), (Event.WRITE_ROWS_V1, ROWS)],
        ],
    )
    def test_places_inside_a_transaction_are_counted_where_they_are_not_told(self, start: int, events: list[tuple[int, bytes]]) -> None:
        """What ANNOTATE holds is not stored, so the bytes at hand are fewer than the log's."""
        log = streams.Log(offset=start)
        ends = []
        for _ in range(3):
            group(log, *events, told=False)
            ends.append(log.offset)
        reader = LogReader(server=LogServer("mariadb", (11, 8, 6)), schemas=handmade_schemas())
        data = np.frombuffer(b"".join(log.stored), np.uint8)
        found = changes(reader.read(data, file=1, start=start, checksum_bytes=4, end=log.offset))
        assert sorted({change.position for change in found}) == ends

    def test_a_commit_that_ends_at_4_gib_exactly_tells_so(self) -> None:
        measure = streams.Log(offset=0)
        events = [(Event.ANNOTATE, b"x" * 700), (Event.WRITE_ROWS_V1, ROWS)]
        group(measure, *events, told=False)
        start = 2**32 - measure.offset
        log = streams.Log(offset=start)
        group(log, *events, told=False)
        reader = LogReader(server=LogServer("mariadb", (11, 8, 6)), schemas=handmade_schemas())
        found = changes(reader.read(np.frombuffer(b"".join(log.stored), np.uint8), file=1, start=start, checksum_bytes=4, end=2**32))
        assert {change.position for change in found} == {2**32}

    def test_a_commit_before_what_sizes_say_is_refused(self) -> None:
        log = streams.Log()
        group(log, (Event.WRITE_ROWS_V1, ROWS), told=False)
        log.stored[-1] = streams.event(Event.XID, bytes(8), next_position=log.offset - 1)
        reader = LogReader(server=LogServer("mariadb", (11, 8, 6)), schemas=handmade_schemas())
        with pytest.raises(Corrupt):
            list(reader.read(np.frombuffer(b"".join(log.stored), np.uint8), file=1, start=4, checksum_bytes=4))
