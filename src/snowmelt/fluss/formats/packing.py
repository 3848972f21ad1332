"""Columns of Arrow into Fluss' compacted bytes, for many rows at once.

A value is one or two pieces: numbers in groups of seven bits, numbers of a fixed number of bytes, or bytes. Each piece of a column is
measured for all rows, then written at every row's place; so no row becomes a Python object. Keys and whole rows consist of such pieces.

Laws:
- A row that is not `filled` for a piece has no bytes of it: a NULL, or a row that is left out. The content under a NULL is never read.
- The caller has reserved what `measure` says; nothing here checks for an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, copy, kernel_view
from snowmelt.fluss.formats.types import COMPACT_DECIMAL_DIGITS, COMPACT_TIMESTAMP_DIGITS, FlussType, Root

Mask = npt.NDArray[np.bool_]

_UNITS_MS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""How often a unit holds a millisecond, or a millisecond holds the unit."""


@dataclass(frozen=True, slots=True)
class Varints:
    values: Longs


@dataclass(frozen=True, slots=True)
class PlainNumbers:
    """Numbers of `width` bytes, little-endian."""

    values: Longs
    width: int


@dataclass(frozen=True, slots=True)
class Heap:
    offsets: Longs
    heap: Bytes


Piece = Varints | PlainNumbers | Heap


@njit(**JIT)
def _varint_sizes(values, filled, sizes):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        if filled[row]:
            left = np.uint64(values[row]) >> np.uint64(7)
            size = 1
            while left:
                left >>= np.uint64(7)
                size += 1
            sizes[row] += size


@njit(**JIT)
def _put_varints(values, filled, at, data):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        if filled[row]:
            left = np.uint64(values[row])
            target = at[row]
            while left > np.uint64(0x7F):
                data[target] = np.uint8(left & np.uint64(0x7F) | np.uint64(0x80))
                left >>= np.uint64(7)
                target += 1
            data[target] = np.uint8(left)
            at[row] = target + 1


@njit(**JIT)
def _put_plain(values, size, filled, at, data):  # type: ignore[no-untyped-def]
    """The low bytes of numbers."""
    for row in range(values.shape[0]):
        if filled[row]:
            left = np.uint64(values[row])
            for i in range(size):
                data[at[row] + i] = np.uint8(left & np.uint64(0xFF))
                left >>= np.uint64(8)
            at[row] += size


@njit(**JIT)
def _put_heap(offsets, heap, filled, at, data):  # type: ignore[no-untyped-def]
    for row in range(at.shape[0]):
        if filled[row]:
            size = offsets[row + 1] - offsets[row]
            copy(data, at[row], heap, offsets[row], size)
            at[row] += size


def measure(piece: Piece, filled: Mask, sizes: Longs) -> None:
    """Add to `sizes` the bytes that a piece needs in each row."""
    match piece:
        case Varints(values):
            _varint_sizes(values, filled, sizes)
        case PlainNumbers(_, width):
            sizes += width * filled
        case Heap(offsets, _):
            sizes += np.where(filled, np.diff(offsets), 0)


def put(piece: Piece, filled: Mask, at: Longs, data: Bytes) -> None:
    """Write a piece of each row at its place, and move the place to its end."""
    match piece:
        case Varints(values):
            _put_varints(values, filled, at, data)
        case PlainNumbers(values, width):
            _put_plain(values, width, filled, at, data)
        case Heap(offsets, heap):
            _put_heap(offsets, heap, filled, at, data)


def compacted(kind: FlussType, array: pa.Array) -> list[Piece]:
    """A column's values as Fluss compacts them."""
    match kind.root:
        case Root.CHAR | Root.STRING | Root.BINARY | Root.BYTES:
            heap = Heap(*heap_of(array))
            return [Varints(np.diff(heap.offsets)), heap]
        case Root.DECIMAL if kind.precision > COMPACT_DECIMAL_DIGITS:
            heap = Heap(*decimal_bytes(array))
            return [Varints(np.diff(heap.offsets)), heap]
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ if kind.precision > COMPACT_TIMESTAMP_DIGITS:
            millis, nanos = instants(kind, array)
            return [Varints(millis), Varints(nanos)]
        case Root.BOOLEAN | Root.TINYINT | Root.SMALLINT | Root.FLOAT | Root.DOUBLE:
            return [PlainNumbers(*number_of(kind, array))]
        case Root.INTEGER | Root.DATE | Root.TIME:
            return [Varints(number_of(kind, array)[0] & 0xFFFFFFFF)]
        case _:
            return [Varints(number_of(kind, array)[0])]


def number_of(kind: FlussType, array: pa.Array) -> tuple[Longs, int]:
    """Values as numbers, and the number of bytes in which Fluss stores plain ones. NULL is any number."""
    if kind.root is Root.DECIMAL:
        words = np.frombuffer(_fixed_buffer(array), np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        return np.ascontiguousarray(words[::2]), 8
    if kind.root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ):
        return instants(kind, array)[0], 8
    if kind.root is Root.BOOLEAN:
        return pc.fill_null(array, False).cast(pa.uint8()).to_numpy().astype(np.int64), 1
    width = array.type.bit_width // 8
    view = np.frombuffer(_fixed_buffer(array), np.dtype(f"<i{width}"))[array.offset : array.offset + len(array)]
    return view.astype(np.int64), width


def is_instant(kind: FlussType) -> bool:
    return kind.root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ) and kind.precision > COMPACT_TIMESTAMP_DIGITS


def instants(kind: FlussType, array: pa.Array) -> tuple[Longs, Longs]:
    values = np.frombuffer(_fixed_buffer(array), np.int64)[array.offset : array.offset + len(array)]
    times, per = _UNITS_MS[kind.unit]
    millis = values * times if per == 1 else values // per
    return millis, (values - millis * per) * (1_000_000 // per) if per > 1 else np.zeros_like(millis)


def _fixed_buffer(array: pa.Array) -> pa.Buffer:
    return array.buffers()[1]


def heap_of(array: pa.Array) -> tuple[Longs, Bytes]:
    """Offsets and bytes. NULLs have no length here, whatever content is under them."""
    if array.null_count:
        array = pc.fill_null(array, b"" if pa.types.is_binary(array.type) else "")
    _, offsets, heap = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return bounds, kernel_view(np.frombuffer(heap, np.uint8)) if heap is not None else np.empty(0, np.uint8)


@njit(**JIT)
def _big_endian(words, offsets, heap):  # type: ignore[no-untyped-def]
    """Each 128-bit number as the fewest big-endian bytes that hold it and its sign."""
    used = np.int64(0)
    for row in range(offsets.shape[0] - 1):
        low = words[2 * row]
        high = words[2 * row + 1]
        sign = np.int64(high) >> 63
        size = 16
        while size > 1:
            # A byte is dropped if the next one has the same sign.
            bits = np.uint64(8 * (size - 1))
            top = np.int64(high >> (bits - np.uint64(64)) if size > 8 else low >> bits) & 0xFF
            below = np.uint64(8 * (size - 2))
            following = np.int64(high >> (below - np.uint64(64)) if size > 9 else low >> below) & 0xFF
            if top != (sign & 0xFF) or (following ^ top) & 0x80:
                break
            size -= 1
        for i in range(size):
            bits = np.uint64(8 * (size - 1 - i))
            heap[used] = np.uint8((high >> (bits - np.uint64(64)) if size - 1 - i >= 8 else low >> bits) & np.uint64(0xFF))
            used += 1
        offsets[row + 1] = used


def decimal_bytes(array: pa.Array) -> tuple[Longs, Bytes]:
    words = np.frombuffer(_fixed_buffer(array), np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
    offsets: Longs = np.zeros(len(array) + 1, np.int64)
    heap: Bytes = np.empty(16 * len(array), np.uint8)
    _big_endian(words, offsets, heap)
    return offsets, heap
