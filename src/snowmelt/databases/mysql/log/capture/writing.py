"""The thread that makes buffers and segments durable."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from snowmelt.databases.mysql.log.framing import Bytes
from snowmelt.errors import InvariantBroken
from snowmelt.segments import PAGE, Segment, SegmentWriter


@dataclass(frozen=True, slots=True)
class Write:
    """Append the first `count` bytes of a buffer to the data of segment `number`."""

    number: int
    buffer: Bytes
    count: int


@dataclass(frozen=True, slots=True)
class Shorten:
    """Cut the data of the open segment to `size` bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class SealSegment:
    """Make the open segment durable under its index."""

    segment: Segment


class DurableWriter(threading.Thread):
    """Makes full buffers durable, in order, and returns them to the pool.

    The pool bounds the queue: each entry holds a buffer or follows one that did. After an error the pool gives None and nothing more is
    written.
    """

    def __init__(self, folder: Path, buffers: int, buffer_bytes: int, sealed: Callable[[Segment], None]) -> None:
        super().__init__(name="snowmelt-capture-writer")
        self.folder = folder
        self._segments = SegmentWriter(folder)
        self._sealed = sealed
        self._work: queue.SimpleQueue[Write | Shorten | SealSegment | None] = queue.SimpleQueue()
        self._pool: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        for _ in range(buffers):
            self._pool.put(_page_aligned(buffer_bytes))

    def buffer(self) -> Bytes:
        """A free buffer; waits for one. Raises the writer's error once it has one."""
        buffer = self._pool.get()
        if buffer is None:
            self._pool.put(None)
            raise self.error or InvariantBroken("the writer of segments ended")
        return buffer

    def put(self, work: Write | Shorten | SealSegment) -> None:
        self._work.put(work)

    def run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                match work:
                    case Write(number, buffer, count):
                        self._segments.write(number, buffer.data[:count])
                        self._pool.put(buffer)
                    case Shorten(size):
                        self._segments.truncate(size)
                    case SealSegment(segment):
                        self._segments.seal(segment)
                        self._sealed(segment)
        except BaseException as error:
            self.error = error
        finally:
            with contextlib.suppress(OSError):
                self._segments.abandon()
            self._pool.put(None)

    def finish(self) -> None:
        """Write all that was put, delete the segment that was not sealed, and end. Raises the thread's error."""
        self._work.put(None)
        self.join()
        if self.error is not None:
            raise self.error


def _page_aligned(count: int) -> Bytes:
    memory = np.zeros(count + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + count]
