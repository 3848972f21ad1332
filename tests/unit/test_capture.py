"""Capture of streams made by hand: offsets beyond 4 GiB and files that a dead server left unfinished."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.gtid import MySqlGtidSet, of_words, words_of
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.capture.starting import StreamStart
from snowmelt.databases.mysql.log.capture.streaming import LogStream
from snowmelt.databases.mysql.log.capture.writing import DurableWriter
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.log.statements import read_flagged_groups
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.segments import Segment, list_segments
from tests.kit.streams import Log, event, packets, query_body

SERVER = Server("mysql", (8, 0, 33), "11111111-2222-3333-4444-555555555555")
SOURCE = "00010203-0405-0607-0809-0a0b0c0d0e0f"
WRAP = 1 << 32
BUFFER_BYTES = framing.RECEIVE_BYTES_MIN


@contextmanager
def captured(
    folder: Path,
    start: int,
    *,
    segment_bytes: int = 1 << 30,
    after: Segment | None = None,
    size: int = -1,
    scan: bool = False,
    located: Callable[[Position], None] | None = None,
) -> Iterator[LogStream]:
    """What `Capture.run` has between two connections; sealed and durable when the block ends.

    `size` is what the server says of its file when the stream leaves it, by itself where it ends.
    """
    folder.mkdir(exist_ok=True)
    writer = DurableWriter(folder, 3, BUFFER_BYTES, queue.SimpleQueue[Segment]().put)
    writer.start()
    try:
        log = LogStream(
            writer,
            StreamStart(SERVER, LogFile("binlog", 1), after.end if after else Position(1, start), scan, after),
            CaptureLimits(segment_bytes=segment_bytes, seal_ms=3_600_000),
            located=located,
            file_bytes=lambda _: size if size >= 0 else log.progress[1],
        )
        yield log
        log.leave()
    finally:
        writer.finish()


def send(log: LogStream, wire: bytes) -> None:
    """What a connection does with the bytes of a server."""
    source = np.zeros(BUFFER_BYTES, np.uint8)
    held = 0
    for at in range(0, len(wire), 50_000):
        piece = wire[at : at + 50_000]
        source[held : held + len(piece)] = np.frombuffer(piece, np.uint8)
        held += len(piece)
        done = log.take(source, held)
        source[: held - done] = source[done:held].copy()
        held -= done


def stored(folder: Path) -> bytes:
    return b"".join(segment.bytes().tobytes() for segment in list_segments(folder))


def stream_from(log: Log, offset: int, start: int) -> list[bytes]:
    """What the server sends when it is asked for the log from `offset` on."""
    again = Log()
    again.rotate_to("binlog.000001", offset)
    again.describe_again()
    at, rest = start, []
    for raw in log.stored:
        if at >= offset:
            rest.append(raw)
        at += len(raw)
    return again.sent + rest


def beyond(rows: int) -> Log:
    """A transaction that crosses 4 GiB, with others before and behind it."""
    log = Log(offset=WRAP - 3_000)
    log.transaction([b"before"], gtid=1)
    log.transaction([b"x" * 1_000] * rows, gtid=2)
    log.transaction([b"behind"], gtid=3)
    log.transaction([b"last"], gtid=4)
    return log


def test_a_first_connection_that_is_to_begin_beyond_4_gib_begins_with_the_file(tmp_path: Path) -> None:
    for start, begins in ((WRAP - 1, WRAP - 1), (WRAP, 4), (WRAP + 1_000, 4)):
        with captured(tmp_path, start) as capture:
            assert capture.connect() == begins
            assert capture.connect() == begins


def test_a_connection_is_located_once_and_where_it_goes_on(tmp_path: Path) -> None:
    log = Log()
    log.describe()
    log.add(framing.PREVIOUS_GTIDS, bytes(8), cut=True)
    for number in range(5):
        log.transaction([b"x" * 100], gtid=number + 1)
    # Behind the transaction that ends there, before those that come in the same packets; by reading the file up to there.
    start = log.cuts[3]
    found: list[Position] = []
    with captured(tmp_path / "scanned", start, scan=True, located=found.append) as capture:
        assert capture.connect() == 4
        wire = packets(stream_from(log, 4, 4))
        send(capture, wire[:400])
        assert found == []
        assert capture.connect() == 4
        send(capture, wire)
    assert found == [Position(1, start, transactions=words_of(MySqlGtidSet.parse(f"{SOURCE}:1-2")))]
    # The next connection goes on inside a transaction, and is located behind it.
    found.clear()
    with captured(tmp_path / "broken", 4, located=found.append) as capture:
        assert capture.connect() == 4
        send(capture, packets(stream_from(log, 4, 4))[: log.cuts[4]])
        assert found == [Position(1, log.cuts[1], transactions=words_of(MySqlGtidSet()))]
        begin = capture.connect()
        assert log.cuts[3] < begin < log.cuts[4]
        send(capture, packets(stream_from(log, begin, 4)))
        assert found[1:] == [Position(1, log.offset, transactions=words_of(MySqlGtidSet.parse(f"{SOURCE}:1-5")))]


def test_a_log_without_lists_of_transactions_is_located_by_its_heartbeat(tmp_path: Path) -> None:
    log = Log()
    log.rotate_to("binlog.000001")
    log.describe()
    described = len(log.sent)
    log.heartbeat()
    found: list[Position] = []
    with captured(tmp_path, 4, located=found.append) as capture:
        capture.connect()
        send(capture, packets(log.sent[:described]))
        assert found == []
        send(capture, packets(log.sent[described:], described + 1))
    assert found == [Position(1, log.offset)]


def test_statements_keep_their_cuts_when_a_segment_has_no_room_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "STATEMENTS_MAX", 3)
    log = Log()
    log.describe()
    begins = []
    for number in range(20):
        log.transaction([b"x"], gtid=number + 1)
        begins.append(log.offset)
        log.statement(b"TRUNCATE t")
    with captured(tmp_path, 4, segment_bytes=1 << 19) as capture:
        capture.connect()
        send(capture, packets(stream_from(log, 4, 4)))
    assert stored(tmp_path) == b"".join(log.stored)
    segments = list_segments(tmp_path)
    assert len(segments) == 5
    found = [statement for segment in segments for statement in read_flagged_groups(segment)[0]]
    assert [statement.begins for statement in found] == begins
    for segment in segments:
        cuts = {cut.offset for cut in segment.cuts}
        assert {statement.offset for statement in read_flagged_groups(segment)[0]} < cuts
        assert {statement.begins for statement in read_flagged_groups(segment)[0]} < cuts


def test_a_connection_that_breaks_beyond_4_gib_goes_on_from_the_last_place_that_can_be_named(tmp_path: Path) -> None:
    log = beyond(10)
    start = WRAP - 3_000
    with captured(tmp_path, start) as capture:
        assert capture.connect() == start
        wire = packets(stream_from(log, start, start))
        send(capture, wire[:9_000])
        assert capture.progress[1] > WRAP
        for cut in (4_000, 7_000, 9_000, None):
            begin = capture.connect()
            assert begin == log.cuts[0] < WRAP
            send(capture, packets(stream_from(log, begin, start))[:cut])
    assert stored(tmp_path) == b"".join(log.stored)
    (segment,) = list_segments(tmp_path)
    assert segment.end == Position(1, log.offset, transactions=words_of(MySqlGtidSet.parse(f"{SOURCE}:1-4")))
    assert details_of(segment).restart == log.cuts[0]


def test_a_restart_beyond_4_gib_goes_on_from_the_last_segment(tmp_path: Path) -> None:
    log = beyond(10)
    start = WRAP - 3_000
    with captured(tmp_path, start, segment_bytes=1) as capture:
        capture.connect()
        # The third transaction, which lies beyond, is the last that is whole.
        until = log.cuts[2] - start + sum(len(raw) + 5 for raw in stream_from(log, WRAP * 9, start))
        send(capture, packets(stream_from(log, start, start))[: until + 200])
    last = list_segments(tmp_path)[-1]
    assert last.end.offset == log.cuts[2] > WRAP
    assert details_of(last).restart == log.cuts[0]
    with captured(tmp_path, 0, segment_bytes=1, after=last) as capture:
        begin = capture.connect()
        assert begin == log.cuts[0]
        send(capture, packets(stream_from(log, begin, start)))
    assert stored(tmp_path) == b"".join(log.stored)
    assert of_words(list_segments(tmp_path)[-1].end.transactions) == MySqlGtidSet.parse(f"{SOURCE}:1-4")


def begun() -> Log:
    log = Log()
    log.rotate_to("binlog.000001")
    log.describe()
    return log


def next_file() -> Log:
    log = Log()
    log.rotate_to("binlog.000002")
    log.describe()
    log.transaction([b"new"], gtid=9)
    return log


@pytest.mark.parametrize("whole", [0, 3])
@pytest.mark.parametrize("wide", [100, 300_000])
@pytest.mark.parametrize("checksummed", [True, False])
def test_a_transaction_that_a_dead_server_left_unfinished_is_left_out(tmp_path: Path, whole: int, wide: int, checksummed: bool) -> None:
    log = Log(checksummed=checksummed)
    log.rotate_to("binlog.000001")
    log.describe()
    for number in range(whole):
        log.transaction([b"x" * 100], gtid=number + 1)
    kept = b"".join(log.stored)
    log.add(framing.GTID, bytes([0, *range(16)]) + (77).to_bytes(8, "little") + bytes(17))
    log.add(framing.QUERY, query_body(b"BEGIN"))
    log.add(framing.WRITE_ROWS, bytes(wide))
    new = Log(checksummed=checksummed, sent=[b""])
    new.rotate_to("binlog.000002")
    new.describe()
    new.transaction([b"new"], gtid=9)
    with captured(tmp_path, 4) as capture:
        capture.connect()
        send(capture, packets(log.sent + new.sent[1:]))
    assert stored(tmp_path) == kept + b"".join(new.stored)
    first, second = list_segments(tmp_path)
    assert (first.end.file, first.end.offset) == (1, 4 + len(kept))
    assert (second.start.file, second.start.offset) == (2, 4)
    numbers = [*range(1, whole + 1), 9]
    assert of_words(second.end.transactions) == MySqlGtidSet({SOURCE: tuple((n, n) for n in numbers)}).union(MySqlGtidSet())


def test_a_next_file_that_follows_another_than_was_captured_is_refused(tmp_path: Path) -> None:
    log = begun()
    log.transaction([b"x"], gtid=1)
    with captured(tmp_path, 4, size=77) as capture:
        capture.connect()
        with pytest.raises(SourceDrift, match="not the file that was captured"):
            send(capture, packets(log.sent + next_file().sent))
    (segment,) = list_segments(tmp_path)
    assert segment.end.offset == log.offset


def test_a_file_of_the_same_name_that_was_born_at_another_time_is_refused(tmp_path: Path) -> None:
    log = begun()
    log.transaction([b"x"], gtid=1)
    with captured(tmp_path, 4) as capture:
        capture.connect()
        send(capture, packets(log.sent))
        offset = capture.connect()
        other = Log(offset=offset)
        other.rotate_to("binlog.000001", offset)
        description = event(framing.FORMAT_DESCRIPTION, log.description(), next_position=0, flags=0x20, time=2000)
        with pytest.raises(SourceDrift, match="started anew"):
            send(capture, packets([*other.sent, description]))


def test_a_stream_that_begins_elsewhere_is_refused(tmp_path: Path) -> None:
    with captured(tmp_path, 4) as capture:
        capture.connect()
        log = Log()
        log.rotate_to("binlog.000001", 500)
        with pytest.raises(Corrupt, match="elsewhere"):
            send(capture, packets(log.sent))
    assert list_segments(tmp_path) == []


def test_a_file_that_ends_before_what_was_captured_is_refused(tmp_path: Path) -> None:
    log = beyond(3)
    start = WRAP - 3_000
    with captured(tmp_path, start) as capture:
        capture.connect()
        send(capture, packets(stream_from(log, start, start)))
        begin = capture.connect()
        shorter = stream_from(log, begin, start)[:4] + next_file().sent
        with pytest.raises(SourceDrift, match="ends before what was captured"):
            send(capture, packets(shorter))


def test_another_base_name_is_refused(tmp_path: Path) -> None:
    log = begun()
    log.rotate_to("other.000002")
    with captured(tmp_path, 4) as capture:
        capture.connect()
        with pytest.raises(SourceDrift, match="another name"):
            send(capture, packets(log.sent))
