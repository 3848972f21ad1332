"""Memory that ends where it ends: behind it lies a page that nobody may touch, so that one byte too far is a crash and not luck.

What a kernel writes inside its arena but outside its column shows in the padding between columns, which is checked afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from snowmelt.columnar.arena import Arena, ArenaPool, Bytes, Layout, Storage

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_PATTERN = 0xA5
_libc = ctypes.CDLL(None, use_errno=True)


class Guarded:
    """Room for up to `size` bytes that is used again and again."""

    def __init__(self, size: int) -> None:
        pages = -(-size // _PAGE)
        self._memory = mmap.mmap(-1, (pages + 1) * _PAGE)
        self._bytes: Bytes = np.frombuffer(self._memory, np.uint8, pages * _PAGE)
        address = self._bytes.ctypes.data + pages * _PAGE
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")

    def __len__(self) -> int:
        return int(self._bytes.shape[0])

    def last(self, size: int) -> Bytes:
        """The last `size` bytes before the forbidden page."""
        return self._bytes[len(self) - size :]

    def hold(self, data: bytes | bytearray) -> Bytes:
        place = self.last(len(data))
        place[:] = np.frombuffer(data, np.uint8)
        return place


class GuardedPool(ArenaPool):
    """Arenas at the edge of a forbidden page. An arena is used again as soon as the next one is taken: one case, one user."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._room = Guarded(size)

    def take(self, size: int) -> Bytes:
        if size > len(self._room):
            return np.empty(size, np.uint8)
        memory = self._room.last(size)
        memory[:] = _PATTERN
        return memory

    def give_back(self, memory: Bytes) -> None:
        pass


class Spill(Exception):
    """A kernel wrote where no column lies."""


class WatchedLayout(Layout):
    """A layout that knows where nothing may be written."""

    def __init__(self, columns: Sequence[Storage], *, rows_max: int, heap_bytes: Sequence[int]) -> None:
        super().__init__(columns, rows_max=rows_max, heap_bytes=heap_bytes)
        edges = sorted([*self.fixed_at.tolist(), *(int(at) for at in self.heap_at if at), self.size])
        self.padding: list[tuple[int, int]] = []
        for index, storage in enumerate(self.columns):
            used = [int(self.fixed_at[index]) + (rows_max + 1) * storage.width]
            if storage.heap:
                used.append(int(self.heap_at[index]) + int(heap_bytes[index]))
            for end in used:
                self.padding.append((end, edges[bisect_left(edges, end)]))


class WatchedArena(Arena):
    """An arena that is looked at when its case is over."""

    made: list[WatchedArena] = []  # noqa: RUF012

    def __init__(self, pool: ArenaPool, layout: Layout, *, valid: bool = False) -> None:
        super().__init__(pool, layout, valid=valid)
        if isinstance(pool, GuardedPool):
            WatchedArena.made.append(self)

    def look(self, slop: int) -> None:
        layout: Any = self.layout
        for start, end in layout.padding:
            if end - start > slop and not (self.memory[start + slop : end] == _PATTERN).all():
                raise Spill("a kernel wrote behind the end of a column")
