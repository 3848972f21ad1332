"""The last change of each key in a range of a bucket's log, laid over the rows that the range begins with.

Laws:
- Of several changes of a key the one with the greatest offset counts: a deleted key is in neither side's rows, any other is in ours.
- The old half of an update adds nothing to its new half, and is skipped. So a range that begins or ends between
  the two is still right.
- Keys are compared by the bytes under which Fluss stores them, whatever their types.

Memory: the changes of the range, their keys as bytes, and 24 to 40 bytes per change for the lookup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, load64
from snowmelt.errors import check
from snowmelt.fluss.formats.batches import DELETE, KIND, UPDATE_BEFORE
from snowmelt.fluss.formats.buckets import compacted_keys
from snowmelt.fluss.formats.types import Column

_ROWS_AT_ONCE: Final = 32_768
"""Batches of the log may have few rows; encoding their keys costs more with more batches."""
_EMPTY: Final = -1


@njit(**JIT)
def _hash(data, start, end):  # type: ignore[no-untyped-def]
    hashed = np.uint64(0x9E3779B97F4A7C15)
    at = start
    while end - at >= 8:
        hashed = (hashed ^ load64(data, at)) * np.uint64(0xFF51AFD7ED558CCD)
        hashed ^= hashed >> np.uint64(32)
        at += 8
    while at < end:
        hashed = (hashed ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        at += 1
    hashed = (hashed ^ hashed >> np.uint64(29)) * np.uint64(0xC4CEB9FE1A85EC53)
    return hashed ^ hashed >> np.uint64(32)


@njit(**JIT)
def _same(data, start, end, other, other_start, other_end):  # type: ignore[no-untyped-def]
    if end - start != other_end - other_start:
        return False
    while start < end and data[start] == other[other_start]:
        start += 1
        other_start += 1
    return start == end


@njit(**JIT)
def _slot(slots, data, ends, other, start, end):  # type: ignore[no-untyped-def]
    """The slot of a key in the table, or its free slot. There is always room."""
    mask = np.uint64(slots.shape[0] - 1)
    at = _hash(other, start, end) & mask
    while slots[at] >= 0:
        row = slots[at]
        row_start = ends[row - 1] if row > 0 else np.int64(0)
        if _same(data, row_start, ends[row], other, start, end):
            break
        at = (at + np.uint64(1)) & mask
    return at


@njit(**JIT)
def _fill(slots, data, ends):  # type: ignore[no-untyped-def]
    """The last row of each key."""
    start = np.int64(0)
    for row in range(ends.shape[0]):
        slots[_slot(slots, data, ends, data, start, ends[row])] = row
        start = ends[row]


@njit(**JIT)
def _absent(slots, data, ends, other, other_ends, absent):  # type: ignore[no-untyped-def]
    start = np.int64(0)
    for row in range(other_ends.shape[0]):
        absent[row] = slots[_slot(slots, data, ends, other, start, other_ends[row])] < 0
        start = other_ends[row]


class Tail:
    """The changes of one bucket. `add` them in order, then `lay` them over the rows below, then take the `rows`. One thread uses it."""

    def __init__(self, key: Sequence[Column]) -> None:
        check(bool(key), "changes are merged without a key")
        self._key = tuple(key)
        self._small: list[pa.RecordBatch] = []
        self._small_rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[tuple[Bytes, Longs]] = []
        self._data: Bytes = np.empty(0, np.uint8)
        self._ends: Longs = np.empty(0, np.int64)
        self._slots: npt.NDArray[np.int64] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of a reader of the log."""
        check(self._slots is None, "changes come after their end")
        batch = batch.filter(pc.not_equal(batch.column(KIND), pa.scalar(UPDATE_BEFORE, pa.int8())))
        if batch.num_rows:
            self._small.append(batch)
            self._small_rows += batch.num_rows
        if self._small_rows >= _ROWS_AT_ONCE:
            self._encode()

    def lay(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose keys no change has touched."""
        slots = self._table()
        if not self._batches or not batch.num_rows:
            return batch
        data, ends = self._encoded(batch)
        absent: npt.NDArray[np.bool_] = np.empty(batch.num_rows, np.bool_)
        _absent(slots, self._data, self._ends, data, ends, absent)
        return batch if absent.all() else batch.filter(pa.array(absent))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows that changes have left."""
        slots = self._table()
        last: npt.NDArray[np.bool_] = np.zeros(self._ends.shape[0], np.bool_)
        last[slots[slots >= 0]] = True
        at = 0
        for batch in self._batches:
            stays = pc.not_equal(batch.column(KIND), pa.scalar(DELETE, pa.int8()))
            found = batch.filter(pc.and_(pa.array(last[at : at + batch.num_rows]), stays))
            at += batch.num_rows
            if found.num_rows:
                yield found

    def _table(self) -> npt.NDArray[np.int64]:
        if self._slots is None:
            self._encode()
            before = np.cumsum([0, *(data.shape[0] for data, _ in self._keys)])
            if self._keys:
                self._data = np.concatenate([data for data, _ in self._keys])
                self._ends = np.concatenate([ends + start for (_, ends), start in zip(self._keys, before, strict=False)])
            self._keys.clear()
            rows = self._ends.shape[0]
            self._slots = np.full(1 << max(4, (2 * rows - 1).bit_length()), _EMPTY, np.int64)
            _fill(self._slots, self._data, self._ends)
        return self._slots

    def _encode(self) -> None:
        if not self._small:
            return
        for batch in pa.Table.from_batches(self._small).combine_chunks().to_batches():
            self._batches.append(batch)
            self._keys.append(self._encoded(batch))
        self._small.clear()
        self._small_rows = 0

    def _encoded(self, batch: pa.RecordBatch) -> tuple[Bytes, Longs]:
        return compacted_keys(self._key, [batch.column(column.name) for column in self._key], batch.num_rows)
