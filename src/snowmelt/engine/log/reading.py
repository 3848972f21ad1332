"""Reading the log again with a filter, in bounded memory: a thread reads, decodes and filters, its caller consumes.

Laws:
- Before the filter, bytes lie in one dedicated memory segment (`relay.prefilter`), or in an assembly if an event is larger. A prepared
  transaction is read through the segment, too; the window around its COMMIT is given back first. After the filter, batches count against
  the pool (`relay.pool`). The filter's thread waits for room in the pool, and holds the segment meanwhile. The consumer waits for nothing
  that the filter holds. So there is no deadlock.
- Batches come out in the order in which they were made.
- An error of either side ends both. The filter's error is raised to the consumer after the batches before it. A consumer that stops wakes
  the filter, which gives everything back. Leaving the block waits for the thread to end.

Memory: the segment, assemblies (`relay.limits`), the pool, and one batch in the making; whatever the size of a transaction or of the log.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.assembly import Assembly
from snowmelt.columnar.crc32 import crc32
from snowmelt.databases.contract.stretches import InMemory, LogBytes, SegmentSlice
from snowmelt.errors import Corrupt
from snowmelt.relay.limits import Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from snowmelt.segments import Segment

Batch = TypeVar("Batch")

ReadInto = Callable[[int, Bytes], None]
"""Fill a buffer with a segment's data, from an offset on. Too little data is `Corrupt`."""


def read_file(path: Path, at: int, into: Bytes) -> None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        raise Corrupt("the data of a segment is missing", detail=str(path)) from None
    try:
        left = into.data
        while left:
            count = os.preadv(file, [left], at)
            if count <= 0:
                raise Corrupt("a segment is shorter than its index says", detail=str(path))
            left, at = left[count:], at + count
        # Capture writes past the system's cache. So the next bytes are fetched while these are decoded.
        os.posix_fadvise(file, at, len(into), os.POSIX_FADV_WILLNEED)
    finally:
        os.close(file)


class Stretch:
    """Bytes that are read piece by piece, as `stretches.LogBytes`, through the task's one pre-filter segment."""

    def __init__(self, read: ReadInto, first: int, size: int, prefilter: PreFilter, limits: Limits) -> None:
        self._read = read
        self._first = first
        self.size = size
        self._prefilter = prefilter
        self._limits = limits
        self._lent = False

    @property
    def window_bytes(self) -> int:
        return self._prefilter.size

    def _lend(self, at: int, count: int) -> Bytes:
        piece = self._prefilter.lend()[:count]
        self._lent = True
        self._read(at, piece)
        return piece

    def piece(self, at: int) -> Bytes:
        return self._lend(self._first + at, min(self.window_bytes, self.size - at))

    def give_back(self) -> None:
        if self._lent:
            self._lent = False
            self._prefilter.give_back()

    def whole(self, at: int, size: int) -> Bytes:
        with Assembly(memory_bytes=self._limits.assembly_bytes, bytes_max=self._limits.spill_bytes_max) as assembly:
            for done in range(0, size, self.window_bytes):
                piece = self._lend(self._first + at + done, min(self.window_bytes, size - done))
                assembly.write(piece.data)
                self.give_back()
            return assembly.finish()


class StoredLog(Stretch):
    """A part of a segment."""

    def __init__(self, segment: Segment, part: SegmentSlice, prefilter: PreFilter, limits: Limits, read: ReadInto) -> None:
        size = (segment.data_bytes if part.last is None else part.last) - part.first
        super().__init__(read, part.first, size, prefilter, limits)
        if segment.data_crc32 is not None:
            self._check(segment, segment.data_crc32)

    def _check(self, segment: Segment, expected: int) -> None:
        """Check the data's checksum. It has one if its events have none."""
        found = np.uint32(0)
        for at in range(0, segment.data_bytes, self.window_bytes):
            piece = self._lend(at, min(self.window_bytes, segment.data_bytes - at))
            found = crc32(piece, 0, len(piece), found)
            self.give_back()
        if int(found) != expected:
            raise Corrupt("a segment's checksum is wrong", detail=f"{segment.log}:{segment.start.offset}")


def read_group(read: ReadInto, at: int, size: int, prefilter: PreFilter, limits: Limits) -> tuple[LogBytes, bool]:
    """A prepared transaction of a segment, and whether it is read through the pre-filter segment. One that an assembly can hold is read at
    once. Otherwise the window around the COMMIT would be read again for each of many small ones."""
    if size > limits.assembly_bytes:
        return Stretch(read, at, size, prefilter, limits), True
    data = np.empty(size, np.uint8)
    read(at, data)
    return InMemory(data, window_bytes=prefilter.size), False


class Filtered(Generic[Batch]):
    """The batches that `make` yields, made in a thread of its own. They wait in a pool.

        with Filtered(make, size_of, Pool(limits.pool_bytes)) as batches:
            for batch in batches: ...

    `make` gets nothing and is run in that thread alone; so is the closing of what it returns. A batch is given back to the pool when the
    next one is asked for.
    """

    def __init__(self, make: Callable[[], Iterator[Batch]], size_of: Callable[[Batch], int], pool: Pool) -> None:
        self._make = make
        self._size_of = size_of
        self._pool = pool
        self._changed = threading.Condition()
        self._ready: deque[tuple[Batch, int]] = deque()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="snowmelt-filter", daemon=True)

    # ---- the thread that filters

    def _run(self) -> None:
        try:
            made = self._make()
            try:
                for batch in made:
                    if not self._offer(batch, self._size_of(batch)):
                        break
            finally:
                close = getattr(made, "close", None)
                if close is not None:
                    close()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _offer(self, batch: Batch, size: int) -> bool:
        """Wait for room; whether the consumer still wants the batch."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._pool.has_room(size))
            if self._stopped:
                return False
            self._pool.take(size)
            self._ready.append((batch, size))
            self._changed.notify_all()
            return True

    # ---- the consumer

    def __enter__(self) -> Iterator[Batch]:
        self._thread.start()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._ended)
                if not self._ready:
                    break
                batch, size = self._ready.popleft()
            try:
                yield batch
            finally:
                del batch
                with self._changed:
                    self._pool.give_back(size)
                    self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._ready.clear()
