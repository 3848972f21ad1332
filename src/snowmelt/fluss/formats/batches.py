"""Fluss' log record batches into Arrow.

A batch is a header, a vector of change kinds unless all its rows were appended, and the body: one Arrow message without its schema, its
buffers plain or packed (LZ4 frames, Zstandard), or compacted rows. All numbers are little-endian. Its offsets are `base` to `last`; the
first `rows` of them have rows. A batch without rows still takes its offsets.

Laws:
- Only a whole batch with a right checksum is taken, and only by the schema that its header names. If the bytes end inside a batch, the
  answer was cut at its limit: the whole batches count.
- Base offsets have no gap inside one answer. The log has none, so a gap is a sign of lost bytes.
- A body is validated in full before it is handed out: the sender wrote the offsets of its values, and a checksum does not prove them.

Memory: a batch at a time, copied once, its buffers unpacked. A batch costs about 0.3 ms whatever its size, mostly for Zstandard, the
default for logs; so a log of batches of a few rows is slow to read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.memory import JIT, kernel_view, load32
from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.forms import without_nulls
from snowmelt.fluss.formats.types import FlussType, Root, Versions

OFFSET: Final = "__offset"
TIMESTAMP: Final = "__timestamp"
KIND: Final = "_kind"
SYSTEM_FIELDS: Final = (
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, pa.timestamp("ms", "UTC"), nullable=False),
    pa.field(KIND, pa.int8(), nullable=False),
)
"""These columns follow a table's own ones in every batch that is read: the row's offset in the log of its bucket, the time of its commit,
and its kind of change in Paimon's numbers. Rows of a KV snapshot have -1, -1 ms and an insert, as Fluss' own service writes them."""

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3

_KINDS: Final = np.array([INSERT, INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE], np.int8)
"""Fluss counts: append, insert, update before, update after, delete."""

_PREFIX: Final = struct.Struct("<qibq")
"""Base offset, length of what follows it, version, time of the commit."""
_LENGTH_END: Final = 12
_REST: Final = struct.Struct("<IhBiqii")
"""Checksum of everything after it, schema, attributes, last offset less the first, writer and its sequence, rows."""
_REST_AT: Final = {0: _PREFIX.size, 1: _PREFIX.size + 4}
"""From version 1 on the leader's epoch is between the two."""
_CHECKSUM_BYTES: Final = 4
_APPEND_ONLY: Final = 1
_ALONE: Final = pa.ipc.IpcReadOptions(use_threads=False)

_RECORD_BYTES: Final = 5
"""Before a compacted row: the length of what follows, including the next byte, and that byte, its kind of change."""


@njit(**JIT)
def _records(data, starts, ends, kinds):  # type: ignore[no-untyped-def]
    """Where the rows and their kinds are in a body of compacted rows; False if they don't fill it exactly."""
    at = np.int64(0)
    for row in range(starts.shape[0]):
        if data.shape[0] - at < _RECORD_BYTES:
            return False
        length = np.int64(np.int32(load32(data, at)))
        if length < 1 or length > data.shape[0] - at - 4:
            return False
        kinds[row] = data[at + 4]
        starts[row] = at + _RECORD_BYTES
        at += 4 + length
        ends[row] = at
    return at == data.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """A batch whose checksum is right. `data` is the part after the header."""

    base: int
    last: int
    schema_id: int
    time_ms: int
    rows: int
    append_only: bool
    data: memoryview
    writer: int
    """The writer, and the number of batches that it had written to the bucket before; both -1 for a writer without numbers."""
    sequence: int

    @property
    def next(self) -> int:
        return self.last + 1


def log_batches(data: bytes | memoryview, *, from_offset: int) -> Iterator[LogBatch]:
    """The batches of one answer with offsets from `from_offset` on. A batch that is cut off at the end is left out."""
    view = memoryview(data).cast("B").toreadonly()
    at = 0
    expected: int | None = None
    while len(view) - at >= _PREFIX.size:
        base, length, version, time_ms = _PREFIX.unpack_from(view, at)
        rest_at = _REST_AT.get(version)
        if rest_at is None:
            raise Corrupt("a batch of Fluss' log has a version that is not known", detail=f"version {version}", position=f"byte {at}")
        end = at + _LENGTH_END + length
        if length < rest_at + _REST.size - _LENGTH_END or base < 0:
            raise Corrupt("the header of a batch of Fluss' log can't be right", position=f"byte {at}")
        if end > len(view):
            return
        checksum, schema_id, attributes, delta, writer, sequence, rows = _REST.unpack_from(view, at + rest_at)
        if google_crc32c.value(view[at + rest_at + _CHECKSUM_BYTES : end].tobytes()) != checksum:
            raise Corrupt("a batch of Fluss' log has a wrong checksum", detail=f"offset {base}", position=f"byte {at}")
        # A batch without rows takes one offset.
        if delta < 0 or rows < 0 or rows > delta + 1 or schema_id < 0:
            raise Corrupt("the header of a batch of Fluss' log can't be right", detail=f"offset {base}", position=f"byte {at}")
        if expected is not None and base != expected:
            raise Corrupt("offsets of Fluss' log are missing", detail=f"{expected} expected, {base} found", position=f"byte {at}")
        expected = base + delta + 1
        if expected > from_offset:
            body = view[at + rest_at + _REST.size : end]
            yield LogBatch(
                base=base,
                last=base + delta,
                schema_id=schema_id,
                time_ms=time_ms,
                rows=rows,
                append_only=bool(attributes & _APPEND_ONLY),
                data=body,
                writer=writer,
                sequence=sequence,
            )
        at = end


class _WireForm:
    """How batches of one schema are read as the plan's schema."""

    def __init__(self, versions: Versions, schema_id: int) -> None:
        schema = pa.schema([pa.field(column.name, column.type.wire) for column in versions.by_id[schema_id].columns])
        self.head = schema.serialize().to_pybytes()
        places = versions.places(schema_id) or ()
        from_place = {place: column for column, place in enumerate(places)}
        self.columns = [(from_place.get(place), column.type) for place, column in enumerate(versions.target.columns)]
        """For each column of the plan: its place in the batch, if any, and its type."""


class BatchDecoder:
    """Rows of one table's log in the plan's schema, followed by the system's columns. One thread uses it."""

    def __init__(self, versions: Versions, log_format: str) -> None:
        if log_format not in ("ARROW", "COMPACTED"):
            raise InvalidConfig(
                "a Fluss table keeps its log in a format that is not supported",
                detail=f"table.log.format {log_format[:40]}",
                hint="ARROW and COMPACTED are",
            )
        self.schema = pa.schema([*versions.target.arrow, *SYSTEM_FIELDS])
        self._forms = {schema_id: _WireForm(versions, schema_id) for schema_id in versions.by_id}
        self._rows = RowDecoder(versions) if log_format == "COMPACTED" else None

    def decode(self, batch: LogBatch) -> Iterator[pa.RecordBatch]:
        """Its rows. The caller has checked that the plan knows its schema."""
        if batch.rows == 0:
            return
        if self._rows is None:
            kinds, body = self._kinds(batch)
            yield self._with_system(batch, 0, self._arrow(batch, body), kinds)
            return
        yield from self._compacted(self._rows, batch)

    def _kinds(self, batch: LogBatch) -> tuple[Bytes | None, memoryview]:
        if batch.append_only:
            return None, batch.data
        if len(batch.data) < batch.rows:
            raise _wrong(batch)
        return _checked_kinds(np.frombuffer(batch.data[: batch.rows], np.uint8), batch), batch.data[batch.rows :]

    def _arrow(self, batch: LogBatch, body: memoryview) -> list[pa.Array]:
        form = self._forms[batch.schema_id]
        # As a stream of one batch: Arrow can read a batch alone only with its threads, and they cost more than they bring. In a buffer of
        # its own: the buffers are aligned to eight bytes from its beginning, and readers rely on that.
        stream = pa.py_buffer(b"".join((form.head, body)))
        try:
            found = pa.ipc.open_stream(stream, options=_ALONE).read_next_batch()
            found.validate(full=True)
        except (pa.ArrowException, EOFError, OSError, MemoryError, ValueError, StopIteration) as error:
            raise _wrong(batch, type(error).__name__) from None
        if found.num_rows != batch.rows:
            raise _wrong(batch)
        arrays = []
        for place, kind in form.columns:
            if place is None and kind.nullable:
                arrays.append(pa.nulls(batch.rows, kind.arrow))
                continue
            array = None if place is None else _fitted(found.column(place), kind)
            if array is None:
                raise _wrong(batch, "a NULL where none may be")
            arrays.append(array)
        return arrays

    def _compacted(self, rows: RowDecoder, batch: LogBatch) -> Iterator[pa.RecordBatch]:
        if batch.rows * _RECORD_BYTES > len(batch.data):
            raise _wrong(batch)
        data = kernel_view(np.frombuffer(batch.data, np.uint8))
        starts, ends = np.empty(batch.rows, np.int64), np.empty(batch.rows, np.int64)
        kinds = np.empty(batch.rows, np.uint8)
        if not _records(data, starts, ends, kinds):
            raise _wrong(batch)
        kinds = _checked_kinds(kinds, batch)
        first = 0
        for found in rows.decode(data, starts, ends, schema_id=batch.schema_id):
            yield self._with_system(batch, first, found.columns, kinds)
            first += found.num_rows

    def _with_system(self, batch: LogBatch, first: int, columns: list[pa.Array], kinds: Bytes | None) -> pa.RecordBatch:
        rows = len(columns[0])
        start = batch.base + first
        kind = np.zeros(rows, np.int8) if kinds is None else _KINDS[kinds[first : first + rows]]
        system = system_columns(np.arange(start, start + rows, dtype=np.int64), np.full(rows, batch.time_ms, np.int64), kind)
        return pa.RecordBatch.from_arrays([*columns, *system], schema=self.schema)


def _fitted(array: pa.Array, kind: FlussType, around: pa.Array | None = None) -> pa.Array | None:
    """An array of the log in the form that our readers return; None: it has a NULL where none is allowed.

    `around`: whether each row that contains this field is there. The content of a row that is NULL means nothing.
    """
    if not len(array):
        # Writers leave out the offsets of what is empty, and Arrow ends the process when it counts the bytes of such an array.
        return pa.array([], kind.arrow)
    if not kind.nullable and array.null_count:
        nulls = array.is_null() if around is None else pc.and_(array.is_null(), around)
        if pc.any(nulls).as_py():
            return None
    if not kind.nested:
        # Fluss keeps milliseconds of a day; a finer unit is zero beyond them.
        found = array if array.type == kind.arrow else array.cast(kind.arrow, safe=kind.root is not Root.TIME)
        return found if array.null_count else without_nulls(found)
    children: list[pa.Array | None]
    match kind.root:
        case Root.ARRAY:
            children = [_fitted(array.values, kind.children[0])]
        case Root.MAP:
            entries = array.values
            parts = [_fitted(entries.field(place), child) for place, child in enumerate(kind.children)]
            # Entries are never NULL, so their type must not allow it.
            whole = not entries.null_count and all(part is not None for part in parts)
            fields = [kind.arrow.key_field, kind.arrow.item_field]
            children = [pa.StructArray.from_arrays(parts, fields=fields) if whole else None]
        case _:
            there = array.is_valid() if around is None else pc.and_(array.is_valid(), around)
            children = [_fitted(array.field(place), child, there) for place, child in enumerate(kind.children)]
    if any(child is None for child in children):
        return None
    buffers = array.buffers()[: 1 if kind.root is Root.ROW else 2]
    return pa.Array.from_buffers(kind.arrow, len(array), buffers, array.null_count, array.offset, children)


def system_columns(offsets: object, times_ms: object, kinds: object) -> list[pa.Array]:
    return [pa.array(values).view(field.type) for values, field in zip((offsets, times_ms, kinds), SYSTEM_FIELDS, strict=True)]


def _checked_kinds(kinds: Bytes, batch: LogBatch) -> Bytes:
    if kinds.max() >= _KINDS.shape[0]:
        raise _wrong(batch, "a kind of change that is not known")
    return kinds


def _wrong(batch: LogBatch, detail: str = "") -> Corrupt:
    where = f"offset {batch.base}, schema {batch.schema_id}"
    return Corrupt("a batch of Fluss' log can't be read", detail=f"{where}, {detail}" if detail else where)
