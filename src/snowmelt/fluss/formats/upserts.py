"""Rows of Arrow into what Fluss puts into a primary-key table: records of keys and compacted rows, by bucket.

A record is its length (int32, little-endian), the length of the key in groups of seven bits, the key, and the row; a delete has no row. A
batch is a header and records of one bucket; its header has the writer and the number of that writer's batches before.

Laws:
- Records of a bucket keep the order of their rows: of one key the last wins.
- A run is never longer than asked for, except if it is one record.

Memory: the input once more, as records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, copy, store32
from snowmelt.errors import check
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.fluss.formats.packing import Mask, Piece, Varints, compacted, measure, put
from snowmelt.fluss.formats.types import Schema

_HEAD: Final = struct.Struct("<iBI")
"""Length of what follows it, version, checksum of everything after it."""
_COVERED: Final = struct.Struct("<hBqii")
"""Schema, attributes, writer, sequence, records."""
_VERSION: Final = 0
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class UpsertRun:
    """Consecutive records of one bucket."""

    bucket: int
    records: memoryview
    count: int


def joined(runs: Iterable[UpsertRun], *, bytes_max: int) -> Iterator[UpsertRun]:
    """Short runs of a bucket as fewer longer ones: each becomes a batch."""
    group: list[UpsertRun] = []
    size = 0
    for run in runs:
        if group and size + len(run.records) > bytes_max:
            yield _one(group)
            group, size = [], 0
        group.append(run)
        size += len(run.records)
    yield _one(group)


def _one(runs: list[UpsertRun]) -> UpsertRun:
    if len(runs) == 1:
        return runs[0]
    return UpsertRun(runs[0].bucket, memoryview(b"".join(run.records for run in runs)), sum(run.count for run in runs))


def kv_batch(records: bytes | memoryview, count: int, *, schema: int, writer: int, sequence: int) -> bytes:
    covered = b"".join((_COVERED.pack(schema, 0, writer, sequence, count), records))
    return _HEAD.pack(len(covered) + _HEAD.size - _LENGTH_BYTES, _VERSION, google_crc32c.value(covered)) + covered


@njit(**JIT)
def _put_lengths(starts, sizes, data):  # type: ignore[no-untyped-def]
    for row in range(starts.shape[0]):
        store32(data, starts[row], np.uint64(sizes[row]))


@njit(**JIT)
def _put_keys(keys, ends, at, data):  # type: ignore[no-untyped-def]
    start = np.int64(0)
    for row in range(ends.shape[0]):
        copy(data, at[row], keys, start, ends[row] - start)
        at[row] += ends[row] - start
        start = ends[row]


@njit(**JIT)
def _put_nulls(valid, kept, place, at, data):  # type: ignore[no-untyped-def]
    for row in range(at.shape[0]):
        if kept[row] and not valid[row]:
            data[at[row] + (place >> 3)] |= np.uint8(1 << (place & 7))


class UpsertEncoder:
    """Rows of one table, of one of its schemas. The keys are those from which the table's buckets follow."""

    def __init__(self, schema: Schema, bucketing: Bucketing, *, run_bytes_max: int) -> None:
        self._schema = schema
        self._bucketing = bucketing
        self._run_bytes_max = run_bytes_max

    def encode(self, batch: pa.RecordBatch, deleted: Mask) -> Iterator[UpsertRun]:
        """Runs of all rows. The batch has all columns of the schema by name. Of `deleted` rows only the key counts."""
        rows = batch.num_rows
        check(deleted.shape[0] == rows, "rows are as many as what they do")
        if not rows:
            return
        keys, key_ends = self._bucketing.keys(batch)
        key_sizes = np.diff(key_ends, prepend=0)
        buckets = self._bucketing.of_keys(keys, key_ends)
        everyone: Mask = np.full(rows, True)
        kept = ~deleted
        nulls = (len(self._schema.columns) + 7) // 8

        sizes: Longs = key_sizes + np.where(kept, nulls, 0)
        key_lengths = Varints(key_sizes)
        measure(key_lengths, everyone, sizes)
        columns: list[tuple[Mask, list[Piece]]] = []
        for column in self._schema.columns:
            array = batch.column(column.name)
            valid: Mask = array.is_valid().to_numpy(zero_copy_only=False)
            check(column.type.nullable or bool((valid | deleted).all()), "a column that can't be NULL is", column.name)
            pieces = compacted(column.type, array)
            for piece in pieces:
                measure(piece, valid & kept, sizes)
            columns.append((valid, pieces))

        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(sizes[order] + _LENGTH_BYTES)
        starts: Longs = np.empty(rows, np.int64)
        starts[order] = ends - sizes[order] - _LENGTH_BYTES
        data: Bytes = np.zeros(int(ends[-1]), np.uint8)
        _put_lengths(starts, sizes, data)
        at = starts + _LENGTH_BYTES
        put(key_lengths, everyone, at, data)
        _put_keys(keys, key_ends, at, data)
        for place, (valid, _) in enumerate(columns):
            _put_nulls(valid, kept, place, at, data)
        at += nulls
        for valid, pieces in columns:
            for piece in pieces:
                put(piece, valid & kept, at, data)
        yield from self._runs(data, ends, buckets[order].astype(np.int64))

    def _runs(self, data: Bytes, ends: Longs, buckets: Longs) -> Iterator[UpsertRun]:
        view = data.data
        first, begin = 0, 0
        while first < len(ends):
            last = int(np.searchsorted(buckets, buckets[first], side="right"))
            fits = int(np.searchsorted(ends, begin + self._run_bytes_max, side="right"))
            last = min(last, max(fits, first + 1))
            end = int(ends[last - 1])
            yield UpsertRun(int(buckets[first]), view[begin:end], last - first)
            first, begin = last, end
