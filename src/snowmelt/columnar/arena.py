"""Arenas: memory that compiled code fills and Arrow arrays then look at without a copy.

An arena holds one batch of rows: for every column a validity bitmap, a region of fixed width and, for values of variable
length, a heap that 32-bit offsets point into. Its size is fixed when it is made, so a kernel that fills it is bounded by it: a row
that no longer fits ends the batch, and one that doesn't fit an empty arena names the heap that must grow.

An arena is lent to the arrays made from it and comes back by itself when the last of them is gone; fresh memory costs
page faults, which were a third of decoding. No array exists whose memory is used again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snowmelt.errors import check

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_ALIGNMENT = 64
_TAIL = 64
"""Kernels may store a whole word at the end of a heap."""
KEEP_BYTES: Final = 64 << 20


def _aligned(size: int) -> int:
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


@dataclass(frozen=True, slots=True)
class Storage:
    """How a column lies in the arena: `width` bytes a row, or a heap that 32-bit offsets point into."""

    width: int
    heap: bool = False


HEAP = Storage(4, heap=True)


class Layout:
    """Where everything lies in an arena for these columns, this many rows and these heaps."""

    def __init__(self, columns: Sequence[Storage], *, rows_max: int, heap_bytes: Sequence[int]) -> None:
        check(len(columns) == len(heap_bytes), "every column has a heap size, zero for fixed ones")
        self.columns = tuple(columns)
        self.rows_max = rows_max
        count = len(columns)
        self.valid_at: Longs = np.zeros(count, np.int64)
        self.fixed_at: Longs = np.zeros(count, np.int64)
        self.heap_at: Longs = np.zeros(count, np.int64)
        self.heap_room: Longs = np.asarray(heap_bytes, np.int64)
        at = 0
        for index in range(count):
            self.valid_at[index] = at
            at += _aligned((rows_max + 7) // 8)
        self.valid_bytes = at
        for index, storage in enumerate(columns):
            self.fixed_at[index] = at
            at += _aligned((rows_max + 1) * storage.width)
            if storage.heap:
                self.heap_at[index] = at
                at += _aligned(int(heap_bytes[index]) + _TAIL)
        self.size = at + _TAIL


class _Loan:
    """Held by every buffer of a batch; when the last one goes, the arena returns to its pool."""

    __slots__ = ("_memory", "_pool")

    def __init__(self, pool: ArenaPool, memory: Bytes) -> None:
        self._pool = pool
        self._memory = memory

    def __del__(self) -> None:
        self._pool.give_back(self._memory)


class ArenaPool:
    """Memory of returned arenas, at most `keep` pieces and `keep_bytes`, so that one large value does not stay for the rest of a task.
    Safe to return to from any thread."""

    def __init__(self, *, keep: int = 4, keep_bytes: int = KEEP_BYTES) -> None:
        self._free: deque[Bytes] = deque(maxlen=keep)
        self._keep_bytes = keep_bytes

    @property
    def kept_bytes(self) -> int:
        # A copy, as another thread may return a piece meanwhile.
        return sum(piece.shape[0] for piece in tuple(self._free))

    def take(self, size: int) -> Bytes:
        """Memory of at least `size` bytes, with undefined content."""
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:
                break
            # A piece that is far too big would pin memory for a small batch.
            if size <= memory.shape[0] <= 4 * size + (1 << 20):
                return memory
            self._free.append(memory)
        return np.empty(size, np.uint8)

    def give_back(self, memory: Bytes) -> None:
        if memory.shape[0] > self._keep_bytes:
            return
        self._free.append(memory)
        # The oldest go first. Another thread may do the same.
        while self.kept_bytes > self._keep_bytes:
            with contextlib.suppress(IndexError):
                self._free.popleft()


class Arena:
    """One batch in the making. `heap_used` is advanced by the kernel that fills it.

    `valid` says what values are until the kernel says otherwise: a kernel for data with few NULLs clears bits, which is less
    work than to set them.
    """

    def __init__(self, pool: ArenaPool, layout: Layout, *, valid: bool = False) -> None:
        self.layout = layout
        self.memory = pool.take(layout.size)
        self.heap_used: Longs = np.zeros(len(layout.columns), np.int64)
        self.memory[: layout.valid_bytes] = 255 if valid else 0
        for index, storage in enumerate(layout.columns):
            if storage.heap:
                at = int(layout.fixed_at[index])
                self.memory[at : at + 4] = 0
        self._lease = _Loan(pool, self.memory)

    def _buffer(self, at: int, size: int) -> pa.Buffer:
        return pa.foreign_buffer(self.memory.ctypes.data + at, size, self._lease)

    def array(self, index: int, kind: pa.DataType, rows: int, *, nulls: int = -1) -> pa.Array:
        """Column `index` as an Arrow array of `rows` rows that looks into the arena."""
        layout, storage = self.layout, self.layout.columns[index]
        valid = None if nulls == 0 else self._buffer(int(layout.valid_at[index]), (rows + 7) // 8)
        fixed_at = int(layout.fixed_at[index])
        buffers: list[Any]
        if storage.heap:
            heap = self._buffer(int(layout.heap_at[index]), int(self.heap_used[index]))
            buffers = [valid, self._buffer(fixed_at, 4 * (rows + 1)), heap]
        else:
            buffers = [valid, self._buffer(fixed_at, storage.width * rows)]
        return pa.Array.from_buffers(kind, rows, buffers, nulls)

    def heap(self, index: int, rows: int) -> tuple[npt.NDArray[np.int32], Bytes]:
        """Offsets and bytes of a heap column, for code that converts them."""
        at = int(self.layout.fixed_at[index])
        offsets = self.memory[at : at + 4 * (rows + 1)].view(np.int32)
        start = int(self.layout.heap_at[index])
        return offsets, self.memory[start : start + int(self.heap_used[index])]

    def validity(self, index: int, rows: int) -> pa.Buffer:
        return self._buffer(int(self.layout.valid_at[index]), (rows + 7) // 8)
