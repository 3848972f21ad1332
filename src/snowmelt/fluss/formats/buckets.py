"""The buckets of rows by Fluss' rules, for many rows at once.

A row's bucket key is encoded to bytes and hashed. Tables without a lake, or with Lance, encode it as compacted values in a row.
Tables whose own `table.datalake.format` is Paimon encode it as Paimon's binary row, so that a row has the same bucket in both. Only
the table's property decides, whatever the cluster tiers to.

The encoding works column by column (`packing`), so no row becomes a Python object.

Memory: the encoded keys of the rows that were handed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, copy, load32, store32, store64
from snowmelt.errors import InvalidConfig, check
from snowmelt.fluss.formats.packing import Mask, Piece, compacted, decimal_bytes, heap_of, instants, is_instant, measure, number_of, put
from snowmelt.fluss.formats.types import COMPACT_DECIMAL_DIGITS, Column, Root

_SEED: Final = 42
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_INLINE_BYTES: Final = 7
"""Paimon keeps values up to this length in the fixed part of a row."""


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
    """Murmur3 of each row's bytes, by words; the rest bytes one by one, each as a signed number."""
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
    """Fluss hashes the hash once more, and takes the absolute value."""
    for row in range(hashes.shape[0]):
        hashed = _finished(np.uint32(_mixed(np.uint32(0), np.uint32(hashes[row])) ^ np.uint32(4)))
        value = np.int64(np.int32(hashed))
        if value == -2147483648:
            value = np.int64(0)
        buckets[row] = np.int32(abs(value) % count)


@njit(**JIT)
def _put_words(values, valid, place, nulls, starts, data):  # type: ignore[no-untyped-def]
    """Numbers in the fixed part of Paimon's row, eight bytes each. The bits of NULLs follow the byte of the row's kind."""
    for row in range(values.shape[0]):
        if valid[row]:
            store64(data, starts[row] + nulls + 8 * place, np.uint64(values[row]))
        else:
            data[starts[row] + ((place + 8) >> 3)] |= np.uint8(1 << (place & 7))


@njit(**JIT)
def _put_texts(offsets, heap, valid, place, nulls, starts, cursors, data, padded):  # type: ignore[no-untyped-def]
    """Short values in the fixed part, their length in its last byte; others after it, padded to words, or to `padded` bytes."""
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
    """Milliseconds after the fixed part, nanoseconds in it."""
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
        """The bucket of each row, int32. The columns are as our readers return them."""
        return self.of_keys(*self.keys(batch))

    def keys(self, batch: pa.RecordBatch) -> tuple[Bytes, Longs]:
        """The hashed key of each row: all bytes, and where each key ends. Where the bucket key is the primary key, rows are stored
        under these bytes."""
        columns = [batch.column(column.name) for column in self._key]
        return self._paimon_keys(columns, batch.num_rows) if self._paimon else compacted_keys(self._key, columns, batch.num_rows)

    def of_keys(self, data: Bytes, ends: Longs) -> npt.NDArray[np.int32]:
        hashes: npt.NDArray[np.int32] = np.empty(ends.shape[0], np.int32)
        _hashes(data, ends, hashes)
        if self._paimon:
            # Java's remainder has the sign of the hash, and the sign is dropped.
            return np.abs(np.fmod(hashes.astype(np.int64), self._buckets)).astype(np.int32)
        found: npt.NDArray[np.int32] = np.empty(ends.shape[0], np.int32)
        _fluss_buckets(hashes, self._buckets, found)
        return found

    def _paimon_keys(self, columns: list[pa.Array], rows: int) -> tuple[Bytes, Longs]:
        nulls = (len(columns) + 8 + 63) // 64 * 8
        fixed = nulls + 8 * len(columns)
        sizes: Longs = np.full(rows, fixed, np.int64)
        texts: dict[int, tuple[Longs, Bytes]] = {}
        for place, (column, array) in enumerate(zip(self._key, columns, strict=True)):
            if column.type.root is Root.DECIMAL and column.type.precision > COMPACT_DECIMAL_DIGITS:
                texts[place] = decimal_bytes(array)
                sizes += 16 * array.is_valid().to_numpy(zero_copy_only=False)
            elif column.type.root in (Root.CHAR, Root.STRING, Root.BINARY, Root.BYTES):
                texts[place] = heap_of(array)
                lengths = np.diff(texts[place][0])
                sizes += np.where(lengths > _INLINE_BYTES, (lengths + 7) // 8 * 8, 0)
            elif is_instant(column.type):
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
            elif is_instant(column.type):
                millis, nanos = instants(column.type, array)
                _put_instants(millis, nanos, valid, place, nulls, starts, cursors, data)
            else:
                values, size = number_of(column.type, array)
                # What is stored is as wide as its type; the rest of the eight bytes stays zero.
                _put_words(values & ((1 << 8 * size) - 1) if size < 8 else values, valid, place, nulls, starts, data)
        return data, ends


def compacted_keys(key: Sequence[Column], columns: Sequence[pa.Array], rows: int) -> tuple[Bytes, Longs]:
    """Keys as Fluss' own store has them: all bytes, and where each key ends. Two keys are the same if their bytes are."""
    pieces: list[Piece] = []
    for column, array in zip(key, columns, strict=True):
        check(not array.null_count, "a key of Fluss has a NULL", column.name)
        pieces += compacted(column.type, array)
    filled: Mask = np.full(rows, True)
    sizes: Longs = np.zeros(rows, np.int64)
    for piece in pieces:
        measure(piece, filled, sizes)
    ends = np.cumsum(sizes)
    at = ends - sizes
    data: Bytes = np.zeros(int(ends[-1]) if rows else 0, np.uint8)
    for piece in pieces:
        put(piece, filled, at, data)
    return data, ends
