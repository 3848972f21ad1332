"""The two sides of a recovery: a thread that filters, and whoever consumes. And what is read piece by piece."""

from __future__ import annotations

import gc
import os
import resource
import signal
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from snowmelt.columnar.assembly import Assembly
from snowmelt.databases.contract.stretches import LogBytes, SegmentSlice
from snowmelt.databases.mysql.log.decode import LogReader, LogServer
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Event
from snowmelt.engine.log.reading import Filtered, StoredLog, read_file, read_group
from snowmelt.errors import Corrupt, SnowmeltError, SourceDrift, Unavailable
from snowmelt.relay.limits import Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from tests.integration.logs import handmade_schemas, table_map_body, write_rows_body
from tests.kit import streams
from tests.kit.made_segments import segment, write
from tests.kit.packed_events import fragments, payload, plain_event


def filtered(make: Iterator[int], pool: Pool | None = None) -> Filtered[int]:
    """Batches that are their own size."""
    return Filtered(lambda: make, lambda batch: batch, pool or Pool(4096))


def test_batches_come_in_their_order_and_the_pool_is_empty_behind_them() -> None:
    pool = Pool(4096)
    sizes = [1000, 5000, 1, 0, 4096, 4097, 3] * 20
    with filtered(iter(sizes), pool) as batches:
        assert list(batches) == sizes
    assert pool.taken == 0


def test_nothing_of_the_pool_is_taken_before_anything_has_passed_the_filter() -> None:
    """What is read before the filter lies elsewhere."""
    pool = Pool(1 << 20)
    taken: list[int] = []

    def make() -> Iterator[int]:
        taken.append(pool.taken)
        yield 1

    with filtered(make(), pool) as batches:
        assert list(batches) == [1]
    assert taken == [0]


def test_the_filter_waits_for_room_and_not_for_more() -> None:
    pool = Pool(4096)
    made: list[int] = []
    third = threading.Event()

    def make() -> Iterator[int]:
        for number in range(6):
            made.append(number)
            if number == 2:
                third.set()
            yield 2000

    with filtered(make(), pool) as batches:
        assert third.wait(60)
        # Two fit; the third is made and waits.
        assert (made, pool.taken) == ([0, 1, 2], 4000)
        assert list(batches) == [2000] * 6


def test_a_batch_counts_until_it_is_written() -> None:
    pool = Pool(4096)
    with filtered(iter([3000, 2000, 1500]), pool) as batches:
        assert next(batches) == 3000
        # It is being written. The next has no room beside it, and waits.
        assert pool.taken == 3000
        assert next(batches) == 2000
        assert pool.taken in (2000, 3500)
        assert list(batches) == [1500]
    assert pool.taken == 0


def test_an_error_of_the_filter_comes_behind_what_it_made_before() -> None:
    def make() -> Iterator[int]:
        yield 1
        yield 2
        raise Corrupt("bad bytes")

    with filtered(make()) as batches:
        assert [next(batches), next(batches)] == [1, 2]
        with pytest.raises(Corrupt, match="bad bytes"):
            next(batches)


def test_an_error_of_the_consumer_ends_a_filter_that_waits() -> None:
    closed = threading.Event()

    def make() -> Iterator[int]:
        try:
            while True:
                yield 4096
        finally:
            closed.set()

    def consume() -> None:
        with filtered(make()) as batches:
            next(batches)
            raise Unavailable("the lake is gone")

    with pytest.raises(Unavailable):
        consume()
    assert closed.is_set(), "what the filter holds was not given back"
    assert not [thread for thread in threading.enumerate() if thread.name == "snowmelt-filter"]


def test_a_consumer_that_never_begins_does_not_leave_the_filter_behind() -> None:
    with filtered(iter([4096] * 10)):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "snowmelt-filter"]


class TestStoredLog:
    def stored(self, folder: Path, data: bytes, part: SegmentSlice | None = None, *, crc_length: int = 4, **limits: int) -> StoredLog:
        made = write(folder, data, segment(folder, 1, 4, data, crc_length=crc_length))
        bounds = Limits(**{"prefilter_bytes": 4096} | limits)
        return StoredLog(
            made, part or SegmentSlice(0, 4, None, made.end.offset), PreFilter(4096), bounds, partial(read_file, made.data_path)
        )

    def test_pieces_are_what_the_file_holds(self, tmp_path: Path) -> None:
        data = os.urandom(10_000)
        log = self.stored(tmp_path, data, SegmentSlice(100, 104, 9000, 9004))
        assert log.size == 8900
        for at in (0, 4096, 8000, 8899):
            assert log.piece(at).tobytes() == data[100 + at : min(100 + at + 4096, 9000)]
            log.give_back()
            log.give_back()

    @pytest.mark.parametrize("memory", [100, 5000, 1 << 20])
    def test_what_no_piece_holds_is_put_together_outside(self, tmp_path: Path, memory: int) -> None:
        data = os.urandom(50_000)
        log = self.stored(tmp_path, data, assembly_bytes=memory)
        assert log.whole(7, 40_000).tobytes() == data[7:40_007]

    def test_a_prepared_transaction_is_read_through_the_one_segment_or_into_an_assembly(self, tmp_path: Path) -> None:
        data = os.urandom(50_000)
        made = write(tmp_path, data, segment(tmp_path, 1, 4, data))
        for memory in (39_999, 40_000):
            prefilter = PreFilter(4096)
            limits = Limits(prefilter_bytes=4096, assembly_bytes=memory)
            log, shares_segment = read_group(partial(read_file, made.data_path), 7, 40_000, prefilter, limits)
            assert (shares_segment, log.size, log.window_bytes) == (memory < 40_000, 40_000, 4096)
            assert log.piece(30).tobytes() == data[37 : 37 + 4096]
            assert prefilter.lent == prefilter.allocated == shares_segment
            log.give_back()
            assert log.whole(0, 40_000).tobytes() == data[7:40_007]

    def test_what_is_larger_than_the_spill_limit_stops(self, tmp_path: Path) -> None:
        log = self.stored(tmp_path, bytes(50_000), assembly_bytes=100, spill_bytes_max=30_000)
        with pytest.raises(SourceDrift, match="larger"):
            log.whole(0, 40_000)

    def test_data_without_checksums_of_their_own_are_checked_as_a_whole(self, tmp_path: Path) -> None:
        data = os.urandom(10_000)
        log = self.stored(tmp_path, data, crc_length=0)
        log.piece(0)
        log.give_back()
        made = segment(tmp_path, 1, 4, data, crc_length=0)
        with pytest.raises(Corrupt, match="checksum"):
            StoredLog(
                replace(made, data_crc32=1), SegmentSlice(0, 4, 10, 14), PreFilter(4096), Limits(), partial(read_file, made.data_path)
            )

    def test_missing_data_is_never_empty_data(self, tmp_path: Path) -> None:
        log = self.stored(tmp_path, bytes(9000))
        (tmp_path / "000000000001.log").write_bytes(bytes(5000))
        with pytest.raises(Corrupt, match="shorter"):
            log.piece(4096)
        log.give_back()
        (tmp_path / "000000000001.log").unlink()
        with pytest.raises(Corrupt, match="missing"):
            log.piece(0)


def test_an_assembly_may_be_written_to_wherever_it_lies() -> None:
    for memory in (10, 1 << 20):
        assembly = Assembly(memory_bytes=memory, bytes_max=1 << 20)
        for piece in (b"abc", b"", b"d" * 1000):
            assembly.write(piece)
        assert assembly.spilled == (memory == 10)
        made = assembly.finish()
        made[0] = ord("x")
        assert made.tobytes() == b"xbc" + b"d" * 1000
    assert Assembly(memory_bytes=10, bytes_max=10).finish().shape == (0,)


def test_a_disk_that_is_full_is_an_error_and_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = Assembly(memory_bytes=1, bytes_max=1 << 20)
    assembly.write(b"ab")

    def full(_: object) -> int:
        raise OSError(28, "full")

    monkeypatch.setattr(assembly._file, "write", full, raising=False)
    with pytest.raises(Unavailable, match="spill file"):
        assembly.write(np.zeros(10, np.uint8).data)


@pytest.fixture
def spilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many spill files are open: they have no names, and lie in a folder that nothing else uses. The garbage collector rests."""
    folder = tmp_path / "spill"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def count() -> int:
        found = 0
        for file in Path("/proc/self/fd").iterdir():
            try:
                found += os.readlink(file).startswith(str(folder))
            except FileNotFoundError:
                continue
        return found

    gc.collect()
    gc.disable()
    try:
        yield count
    finally:
        gc.enable()


class TestSpillFiles:
    """An error closes them at once, although the error's traceback is kept."""

    LIMITS = Limits(prefilter_bytes=4096, assembly_bytes=100)

    def read(self, folder: Path, log: streams.Log, limits: Limits = LIMITS) -> SnowmeltError:
        """The error that a log is refused with, and all that it holds."""
        data = b"".join(log.stored)
        made = write(folder, data, segment(folder, 1, 4, data))
        part = SegmentSlice(0, 4, None, made.end.offset)
        stored = StoredLog(made, part, PreFilter(4096), limits, partial(read_file, made.data_path))
        return self.refused(stored, details_of(made).crc_length, limits)

    @staticmethod
    def refused(log: LogBytes, checksum_bytes: int, limits: Limits) -> SnowmeltError:
        reader = LogReader(server=LogServer("mariadb", (12, 3, 1)), schemas=handmade_schemas(), limits=limits)
        with pytest.raises(SnowmeltError) as caught:
            list(reader.read_log(log, file=1, start=4, checksum_bytes=checksum_bytes))
        return caught.value

    @staticmethod
    def log(*events: tuple[int, bytes]) -> streams.Log:
        log = streams.Log()
        log.add(Event.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0) + bytes(6))
        for kind, body in events:
            log.add(kind, body)
        log.add(Event.XID, bytes(8))
        return log

    MAP = (Event.TABLE_MAP, table_map_body(9))
    ROWS = write_rows_body(9, range(10_000))

    def test_a_file_lives_as_long_as_what_looks_into_it(self, spilled: Callable[[], int]) -> None:
        with Assembly(memory_bytes=10, bytes_max=1000) as assembly:
            assembly.write(b"x" * 100)
            assert spilled() == 1
            made = assembly.finish()
        assert (spilled(), made.tobytes()) == (1, b"x" * 100)
        del made
        assert spilled() == 0

    def test_an_event_beyond_the_limit(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        error = self.read(tmp_path, self.log(self.MAP, (Event.WRITE_ROWS_V1, self.ROWS)), replace(self.LIMITS, spill_bytes_max=20_000))
        assert "raise relay: spill_bytes_max" in str(error)
        assert spilled() == 0

    def test_what_grows_beyond_the_limit(self, spilled: Callable[[], int]) -> None:
        assembly = Assembly(memory_bytes=10, bytes_max=1000)
        assembly.write(b"x" * 100)
        with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max") as caught:
            assembly.write(bytes(901))
        assert (spilled(), caught.value.detail) == (0, "more than 1000 bytes")

    def test_a_disk_that_takes_no_more(self, spilled: Callable[[], int]) -> None:
        assembly = Assembly(memory_bytes=10, bytes_max=1 << 20)
        assembly.write(b"x" * 100)
        before, heard = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(Unavailable, match="TMPDIR") as caught:
                assembly.write(bytes(100_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, heard)
        assert (spilled(), caught.value.fact) == (0, "a spill file can't be written")

    def test_log_that_is_gone_while_an_event_is_put_together(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        data = bytes(50_000)
        made = write(tmp_path, data, segment(tmp_path, 1, 4, data))
        log = StoredLog(made, SegmentSlice(0, 4, None, made.end.offset), PreFilter(4096), self.LIMITS, partial(read_file, made.data_path))
        made.data_path.write_bytes(bytes(30_000))
        with pytest.raises(Corrupt, match="shorter") as caught:
            log.whole(0, 50_000)
        assert (spilled(), caught.value.fact) == (0, "a segment is shorter than its index says")

    def test_an_event_whose_rows_can_not_be_read(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        error = self.read(tmp_path, self.log(self.MAP, (Event.WRITE_ROWS_V1, self.ROWS[:-1])))
        assert "can't be read" in str(error)
        assert spilled() == 0

    def test_a_transaction_that_can_not_be_unpacked(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        packed = bytearray(payload(os.urandom(50_000)))
        error = self.read(tmp_path, self.log((Event.TRANSACTION_PAYLOAD, bytes(packed))))
        assert "TRANSACTION_PAYLOAD" in str(error)
        assert spilled() == 0

    def test_fragments_of_which_some_are_missing(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        some = fragments(plain_event(Event.WRITE_ROWS_V1, self.ROWS), 40, number_first=True)[:-1]
        error = self.read(tmp_path, self.log(self.MAP, *((Event.PARTIAL_ROW_DATA, body) for body in some)))
        assert "not whole" in str(error)
        assert spilled() == 0

    def test_a_reader_that_is_given_up(self, tmp_path: Path, spilled: Callable[[], int]) -> None:
        data = b"".join(self.log(self.MAP, (Event.WRITE_ROWS_V1, self.ROWS)).stored)
        made = write(tmp_path, data, segment(tmp_path, 1, 4, data))
        prefilter, part = PreFilter(4096), SegmentSlice(0, 4, None, made.end.offset)
        log = StoredLog(made, part, prefilter, self.LIMITS, partial(read_file, made.data_path))
        limits = replace(self.LIMITS, rows_per_batch=10)
        items = LogReader(server=LogServer("mariadb", (12, 3, 1)), schemas=handmade_schemas(), limits=limits).read_stored(made, part, log)
        next(items)
        assert spilled() == 1
        items.close()
        assert (spilled(), prefilter.lent) == (0, False)
