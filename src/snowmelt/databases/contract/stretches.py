"""The bytes of a stretch of the log, wherever they are: in memory, in a file, or in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.memory import kernel_view


class LogBytes(Protocol):
    """The bytes of a range of the log. Used by one thread."""

    @property
    def size(self) -> int: ...

    @property
    def window_bytes(self) -> int:
        """What a piece holds at most."""
        ...

    def piece(self, at: int) -> Bytes:
        """What lies from `at` on, as much as a piece holds. Give it back before you ask for the next one."""
        ...

    def give_back(self) -> None:
        """The piece is no longer used. Harmless if none is out."""
        ...

    def whole(self, at: int, size: int) -> Bytes:
        """A stretch of any size, put together outside of a piece. It lives as long as something refers to it."""
        ...


class InMemory:
    """A range that lies in one array, or is mapped: nothing is copied."""

    def __init__(self, data: Bytes, *, window_bytes: int) -> None:
        self._data = kernel_view(data)
        self.size = int(data.shape[0])
        self.window_bytes = window_bytes

    def piece(self, at: int) -> Bytes:
        return self._data[at : at + self.window_bytes]

    def give_back(self) -> None:
        pass

    def whole(self, at: int, size: int) -> Bytes:
        return self._data[at : at + size]


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """A stretch of a segment: from byte `first` to `last` of its data, which is from `start` to `end` in the log."""

    first: int
    start: int
    last: int | None
    end: int


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEvents:
    """The events of a prepared transaction, as they were captured. Without bytes: what a COMMIT ends that ends nothing."""

    log: LogBytes
    own: str
    """`Segment.own` of the segment that they were captured in."""
    begins: int
    """Where they begin in their file of the log."""
    shares_segment: bool = False
    """Whether their pieces lie in the same memory as those of the stretch: give the stretch's piece back before you ask for one."""
    close: Callable[[], None] = _nothing
    """Call it when their rows are read, or given up."""
