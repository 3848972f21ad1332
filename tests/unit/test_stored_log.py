"""The two sides of a recovery: a thread that filters, and whoever consumes. And what is read piece by piece."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from snowmelt.columnar.assembly import Assembly
from snowmelt.databases.mysql.decode import Part
from snowmelt.engine.stored_log import Filtered, StoredLog, read_file, read_stretch
from snowmelt.errors import Corrupt, SourceDrift, Unavailable
from snowmelt.relay.limits import Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from tests.unit.test_segments import segment, write


def filtered(make: Iterator[int], pool: Pool | None = None) -> Filtered[int]:
    """Batches that are their own size."""
    return Filtered(lambda: make, lambda batch: batch, pool or Pool(4096))


def test_batches_come_in_their_order_and_the_pool_is_empty_behind_them() -> None:
    pool = Pool(4096)
    sizes = [1000, 5000, 1, 0, 4096, 4097, 3] * 20
    with filtered(iter(sizes), pool) as batches:
        assert list(batches) == sizes
    assert pool.taken == 0


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
    def stored(self, folder: Path, data: bytes, part: Part | None = None, *, crc_length: int = 4, **limits: int) -> StoredLog:
        made = write(folder, data, segment(folder, 1, 4, data, crc_length=crc_length))
        bounds = Limits(**{"prefilter_bytes": 4096} | limits)
        return StoredLog(made, part or Part(0, 4, None, made.end.offset), PreFilter(4096), bounds, partial(read_file, made.data_path))

    def test_pieces_are_what_the_file_holds(self, tmp_path: Path) -> None:
        data = os.urandom(10_000)
        log = self.stored(tmp_path, data, Part(100, 104, 9000, 9004))
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

    def test_a_stretch_is_put_together_whatever_the_window(self, tmp_path: Path) -> None:
        data = os.urandom(50_000)
        made = write(tmp_path, data, segment(tmp_path, 1, 4, data))
        for memory in (100, 1 << 20):
            limits = Limits(prefilter_bytes=4096, assembly_bytes=memory)
            assert read_stretch(partial(read_file, made.data_path), 7, 40_000, limits).tobytes() == data[7:40_007]

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
            StoredLog(replace(made, data_crc32=1), Part(0, 4, 10, 14), PreFilter(4096), Limits(), partial(read_file, made.data_path))

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
