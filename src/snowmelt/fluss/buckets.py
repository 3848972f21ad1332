"""In which bucket Fluss puts a row, for many rows at once.

A row's bucket key is encoded to bytes and hashed. Tables without a lake, or with Lance, encode it as compacted values one behind the other;
tables whose own `table.datalake.format` is Paimon encode it as Paimon's binary row, so that a row has the same bucket in both. What
decides is the table's property alone, whatever the cluster tiers to.

The encoding goes column by column: each writes its part of every row at that row's place, so no row becomes a Python object.

Memory: the encoded keys of the rows that were handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, copy, kernel_view, load32, store32, store64
from snowmelt.errors import InvalidConfig, check
from snowmelt.fluss.types import COMPACT_DECIMAL_DIGITS, COMPACT_TIMESTAMP_DIGITS, Column, FlussType, Root

_SEED: Final = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_INLINE_BYTES: Final = 7
"""Paimon keeps values up to this length in the fixed part of a row."""
_UNITS_MS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
"""How often a unit holds a millisecond, or a millisecond holds the unit."""


@njit(**JIT)
def _rotated(value, count):  # type: ignore[no-untyped-def]
    return np.uint32(value << np.uint32(count) | value >> np.uint32(32 - count))


@njit(**JIT)
def _mixed(hashed, word):  # type: ignore[no-untyped-def]
    """One word into a Murmur3 hash."""
    word = _rotated(np.uint32(word * np.uint32(_C1)), 15)
    hashed = _rotated(np.uint32(hashed ^ np.uint32(word * np.uint32(_C2))), 13)
    return np.uint32(hashed * np.uint32(5) + np.uint32(0xE6546B64))


@njit(**JIT)
def _finished(hashed):  # type: ignore[no-untyped-def]
    hashed = np.uint32((hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B))
    hashed = np.uint32((hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35))
    return np.uint32(hashed ^ hashed >> np.uint32(16))


@njit(**JIT)
def _hashes(data, ends, hashes):  # type: ignore[no-untyped-def]
    """Murmur3 of each row's bytes, by words; bytes that are no whole word go one by one, each as a signed number."""
    start = np.int64(0)
    for row in range(ends.shape[0]):
        end = ends[row]
        hashed = np.uint32(_SEED)
        at = start
        while end - at >= 4:
            hashed = _mixed(hashed, load32(data, at))
            at += 4
        while at < end:
            hashed = _mixed(hashed, np.uint32(np.int32(np.int8(data[at]))))
            at += 1
        hashes[row] = np.int32(_finished(np.uint32(hashed ^ np.uint32(end - start))))
        start = end


@njit(**JIT)
def _fluss_buckets(hashes, count, buckets):  # type: ignore[no-untyped-def]
    """Fluss hashes the hash once more, and takes what is not negative."""
    for row in range(hashes.shape[0]):
        hashed = _finished(np.uint32(_mixed(np.uint32(0), np.uint32(hashes[row])) ^ np.uint32(4)))
        value = np.int64(np.int32(hashed))
        if value == -2147483648:
            value = np.int64(0)
        buckets[row] = np.int32(abs(value) % count)


@njit(**JIT)
def _varint_sizes(values, sizes):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        left = np.uint64(values[row]) >> np.uint64(7)
        size = 1
        while left:
            left >>= np.uint64(7)
            size += 1
        sizes[row] += size


@njit(**JIT)
def _put_varints(values, at, data):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        left = np.uint64(values[row])
        target = at[row]
        while left > np.uint64(0x7F):
            data[target] = np.uint8(left & np.uint64(0x7F) | np.uint64(0x80))
            left >>= np.uint64(7)
            target += 1
        data[target] = np.uint8(left)
        at[row] = target + 1


@njit(**JIT)
def _put_fixed(values, size, at, data):  # type: ignore[no-untyped-def]
    """The low bytes of numbers."""
    for row in range(values.shape[0]):
        left = np.uint64(values[row])
        for i in range(size):
            data[at[row] + i] = np.uint8(left & np.uint64(0xFF))
            left >>= np.uint64(8)
        at[row] += size


@njit(**JIT)
def _put_bytes(offsets, heap, at, data):  # type: ignore[no-untyped-def]
    for row in range(at.shape[0]):
        size = offsets[row + 1] - offsets[row]
        copy(data, at[row], heap, offsets[row], size)
        at[row] += size


@njit(**JIT)
def _put_words(values, valid, place, nulls, starts, data):  # type: ignore[no-untyped-def]
    """Numbers in the fixed part of Paimon's row, eight bytes each; NULL has its bit, behind the byte of the row's kind."""
    for row in range(values.shape[0]):
        if valid[row]:
            store64(data, starts[row] + nulls + 8 * place, np.uint64(values[row]))
        else:
            data[starts[row] + ((place + 8) >> 3)] |= np.uint8(1 << (place & 7))


@njit(**JIT)
def _put_texts(offsets, heap, valid, place, nulls, starts, cursors, data, padded):  # type: ignore[no-untyped-def]
    """Short values in the fixed part, their length in its last byte; others behind it, padded to words, or to `padded` bytes."""
    for row in range(starts.shape[0]):
        field = starts[row] + nulls + 8 * place
        size = np.int64(offsets[row + 1] - offsets[row])
        if not valid[row]:
            data[starts[row] + ((place + 8) >> 3)] |= np.uint8(1 << (place & 7))
            continue
        if size <= _INLINE_BYTES and padded == 0:
            copy(data, field, heap, offsets[row], size)
            data[field + 7] = np.uint8(size | 0x80)
            continue
        copy(data, cursors[row], heap, offsets[row], size)
        store32(data, field, np.uint64(size))
        store32(data, field + 4, np.uint64(cursors[row] - starts[row]))
        cursors[row] += padded if padded else (size + 7) // 8 * 8


@njit(**JIT)
def _put_instants(millis, nanos, valid, place, nulls, starts, cursors, data):  # type: ignore[no-untyped-def]
    """Milliseconds behind the fixed part, nanoseconds in it."""
    for row in range(starts.shape[0]):
        if valid[row]:
            store64(data, cursors[row], np.uint64(millis[row]))
            store32(data, starts[row] + nulls + 8 * place, np.uint64(nanos[row]))
            store32(data, starts[row] + nulls + 8 * place + 4, np.uint64(cursors[row] - starts[row]))
            cursors[row] += 8
        else:
            data[starts[row] + ((place + 8) >> 3)] |= np.uint8(1 << (place & 7))


class Bucketing:
    """The bucket of rows by the columns of the bucket key, in the key's order."""

    def __init__(self, key: Sequence[Column], buckets: int, lake_format: str | None) -> None:
        check(bool(key) and buckets > 0, "a bucket is computed without a key or without buckets")
        lake = None if lake_format is None else lake_format.lower()
        if lake not in (None, "paimon", "lance"):
            raise InvalidConfig(
                "buckets of a Fluss table follow a lake that is not supported", detail=f"{lake_format!s:.40}", hint="Paimon is"
            )
        self._key = tuple(key)
        self._buckets = buckets
        self._paimon = lake == "paimon"

    def buckets(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """The bucket of each row, int32. Columns are those that readers hand out."""
        columns = [batch.column(column.name) for column in self._key]
        data, ends = self._paimon_keys(columns, batch.num_rows) if self._paimon else compacted_keys(self._key, columns, batch.num_rows)
        hashes: npt.NDArray[np.int32] = np.empty(batch.num_rows, np.int32)
        _hashes(data, ends, hashes)
        if self._paimon:
            # Java's remainder has the sign of the hash, and the sign is dropped.
            return np.abs(np.fmod(hashes.astype(np.int64), self._buckets)).astype(np.int32)
        found: npt.NDArray[np.int32] = np.empty(batch.num_rows, np.int32)
        _fluss_buckets(hashes, self._buckets, found)
        return found

    def _paimon_keys(self, columns: list[pa.Array], rows: int) -> tuple[Bytes, Longs]:
        nulls = (len(columns) + 8 + 63) // 64 * 8
        fixed = nulls + 8 * len(columns)
        sizes: Longs = np.full(rows, fixed, np.int64)
        texts: dict[int, tuple[Longs, Bytes]] = {}
        for place, (column, array) in enumerate(zip(self._key, columns, strict=True)):
            if column.type.root is Root.DECIMAL and column.type.precision > COMPACT_DECIMAL_DIGITS:
                texts[place] = _decimal_bytes(array)
                sizes += 16 * array.is_valid().to_numpy(zero_copy_only=False)
            elif column.type.root in (Root.CHAR, Root.STRING, Root.BINARY, Root.BYTES):
                texts[place] = _heap(array)
                lengths = np.diff(texts[place][0])
                sizes += np.where(lengths > _INLINE_BYTES, (lengths + 7) // 8 * 8, 0)
            elif _is_instant(column.type):
                sizes += 8 * array.is_valid().to_numpy(zero_copy_only=False)
        ends = np.cumsum(sizes)
        starts = ends - sizes
        cursors = starts + fixed
        data: Bytes = np.zeros(int(ends[-1]) if rows else 0, np.uint8)
        for place, (column, array) in enumerate(zip(self._key, columns, strict=True)):
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            if place in texts:
                offsets, heap = texts[place]
                padded = 16 if column.type.root is Root.DECIMAL else 0
                _put_texts(offsets, heap, valid, place, nulls, starts, cursors, data, padded)
            elif _is_instant(column.type):
                millis, nanos = _instants(column.type, array)
                _put_instants(millis, nanos, valid, place, nulls, starts, cursors, data)
            else:
                values, size = _number(column.type, array)
                # What is stored is as wide as its type; the rest of the eight bytes stays zero.
                _put_words(values & ((1 << 8 * size) - 1) if size < 8 else values, valid, place, nulls, starts, data)
        return data, ends


def compacted_keys(key: Sequence[Column], columns: Sequence[pa.Array], rows: int) -> tuple[Bytes, Longs]:
    """Keys as Fluss' own store has them, one behind the other, and where each ends. Two keys are the same if their bytes are."""
    parts: list[tuple[str, Any]] = []
    sizes: Longs = np.zeros(rows, np.int64)
    for column, array in zip(key, columns, strict=True):
        check(not array.null_count, "a key of Fluss has a NULL", column.name)
        for form, values in _compacted_parts(column.type, array):
            parts.append((form, values))
            if form == "varint":
                _varint_sizes(values, sizes)
            elif form == "bytes":
                sizes += np.diff(values[0])
            else:
                sizes += int(form)
    ends = np.cumsum(sizes)
    at = ends - sizes
    data: Bytes = np.zeros(int(ends[-1]) if rows else 0, np.uint8)
    for form, values in parts:
        if form == "varint":
            _put_varints(values, at, data)
        elif form == "bytes":
            _put_bytes(values[0], values[1], at, data)
        else:
            _put_fixed(values, int(form), at, data)
    return data, ends


def _compacted_parts(kind: FlussType, array: pa.Array) -> list[tuple[str, Any]]:
    """A column's values as pieces: numbers in groups of seven bits, numbers of so many bytes, or bytes."""
    match kind.root:
        case Root.CHAR | Root.STRING | Root.BINARY | Root.BYTES:
            heap = _heap(array)
            return [("varint", np.diff(heap[0])), ("bytes", heap)]
        case Root.DECIMAL if kind.precision > COMPACT_DECIMAL_DIGITS:
            heap = _decimal_bytes(array)
            return [("varint", np.diff(heap[0])), ("bytes", heap)]
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ if kind.precision > COMPACT_TIMESTAMP_DIGITS:
            millis, nanos = _instants(kind, array)
            return [("varint", millis), ("varint", nanos)]
        case Root.BOOLEAN | Root.TINYINT | Root.SMALLINT | Root.FLOAT | Root.DOUBLE:
            values, size = _number(kind, array)
            return [(str(size), values)]
        case Root.INTEGER | Root.DATE | Root.TIME:
            return [("varint", _number(kind, array)[0] & 0xFFFFFFFF)]
        case _:
            return [("varint", _number(kind, array)[0])]


def _number(kind: FlussType, array: pa.Array) -> tuple[Longs, int]:
    """Values as numbers, and in how many bytes Fluss stores them where it stores them plainly. NULL is any number."""
    if kind.root is Root.DECIMAL:
        words = np.frombuffer(_fixed_buffer(array), np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        return np.ascontiguousarray(words[::2]), 8
    if kind.root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ):
        return _instants(kind, array)[0], 8
    if kind.root is Root.BOOLEAN:
        return pc.fill_null(array, False).cast(pa.uint8()).to_numpy().astype(np.int64), 1
    width = array.type.bit_width // 8
    view = np.frombuffer(_fixed_buffer(array), np.dtype(f"<i{width}"))[array.offset : array.offset + len(array)]
    return view.astype(np.int64), width


def _is_instant(kind: FlussType) -> bool:
    return kind.root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ) and kind.precision > COMPACT_TIMESTAMP_DIGITS


def _instants(kind: FlussType, array: pa.Array) -> tuple[Longs, Longs]:
    values = np.frombuffer(_fixed_buffer(array), np.int64)[array.offset : array.offset + len(array)]
    times, per = _UNITS_MS[kind.unit]
    millis = values * times if per == 1 else values // per
    return millis, (values - millis * per) * (1_000_000 // per) if per > 1 else np.zeros_like(millis)


def _fixed_buffer(array: pa.Array) -> pa.Buffer:
    return array.buffers()[1]


def _heap(array: pa.Array) -> tuple[Longs, Bytes]:
    """Offsets and bytes. NULLs have no length here, whatever lies under them."""
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
            # A byte goes if the next one has the same sign.
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


def _decimal_bytes(array: pa.Array) -> tuple[Longs, Bytes]:
    words = np.frombuffer(_fixed_buffer(array), np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
    offsets: Longs = np.zeros(len(array) + 1, np.int64)
    heap: Bytes = np.empty(16 * len(array), np.uint8)
    _big_endian(words, offsets, heap)
    return offsets, heap
