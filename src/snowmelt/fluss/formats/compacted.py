"""Rows as Fluss' key-value store keeps them, into Arrow: one compiled function for all tables, driven by arrays of kinds.

A row is a bitmap of NULLs, then its values, without padding. Numbers of 32 and 64 bits, days, times and
lengths are groups of seven bits, lowest first, negative ones at full length; the rest is little-endian. The id of the schema that a row was
written with comes first. Rows of several schemas are mixed, and columns that a schema lacks are NULL.

A nested value is stored like bytes: its length, then an array or map (`arrays`), or a row. The kernel of a row only says where it is;
its content is decoded afterwards, for all rows of a batch at once.

Laws:
- Every read is checked against the end of its row, every write against the room of its heap, and a row ends exactly where its last
  value does. Wrong bytes are `Corrupt`; no value is guessed, and no error quotes one.
- A row that doesn't fit ends its batch: all of it is undone, and it begins the next batch.

Memory: a batch's arena (`columnar.arena`), bounded by `rows_max` and by the bytes of the rows that were handed in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from snowmelt.columnar.arena import Arena, ArenaPool, Bytes, Layout, Longs
from snowmelt.columnar.memory import JIT, copy, kernel_view, load16, load32, load64, store8, store16, store32, store64
from snowmelt.errors import Corrupt, InvariantBroken, Unavailable, check, present
from snowmelt.fluss.formats.arrays import ArrayDecoder, MapDecoder
from snowmelt.fluss.formats.forms import (
    ABSENT,
    BATCH_FULL,
    BIGINT,
    BOOL,
    BYTE,
    CORRUPT,
    DECIMAL,
    DECIMAL_BYTES,
    DONE,
    HEAP_TOO_SMALL,
    INT,
    LONG,
    MICROS,
    NANOS,
    NESTED,
    OUT_OF_RANGE,
    SECONDS,
    SHORT,
    TEXT,
    TIME,
    TIME_SECONDS,
    UNKNOWN_SCHEMA,
    WORD,
    Nested,
    beyond,
    form_of,
    growth_of,
    plain_array,
    ranges,
    validity,
    whole_seconds,
)
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema, Versions

SCHEMA_IN_ROW: Final = -1
"""For a kernel that takes the schema's id from the row itself."""

# Slots of the kernel's state.
INDEX, ROWS, COLUMN, NEED, SCHEMA = 0, 1, 2, 3, 4
STATE_SLOTS = 5
"""INDEX is the next row of the input; COLUMN and NEED name the heap that ended a batch, SCHEMA the unknown id."""

_HEAP_BYTES_FIRST: Final = 1 << 16
_OFFSETS_MAX: Final = (1 << 31) - 1
_NESTED_BYTES_MAX: Final = 1 << 28
"""For rows with nested values in one batch, by their greatest size in memory. A batch of one row may exceed it."""


@njit(**JIT)
def fill(  # type: ignore[no-untyped-def]
    buffer, starts, ends, schema_id, program_of, first, kind, target, limit_high, limit_low, nullable, absent_first, absent,
    valid_at, fixed_at, heap_at, heap_room, heap_used, memory, rows_max, state,
):  # fmt: skip
    """Decode rows from the place in `state` until the input or the room ends.

    It calls nothing that takes an array: each such call counts references, which halves its speed.
    """
    row = state[ROWS]
    index = state[INDEX]
    while index < starts.shape[0]:
        state[INDEX] = index
        state[ROWS] = row
        if row >= rows_max:
            return BATCH_FULL
        q = starts[index]
        end = ends[index]
        if q == ABSENT and schema_id >= 0:
            for c in range(valid_at.shape[0]):
                memory[valid_at[c] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                if heap_room[c] > 0:
                    store32(memory, fixed_at[c] + 4 * (row + 1), np.uint64(heap_used[c]))
            row += 1
            index += 1
            continue
        if q < 0 or q > end or end > buffer.shape[0]:
            return CORRUPT
        schema = np.int64(schema_id)
        if schema < 0:
            if end - q < 2:
                return CORRUPT
            schema = np.int64(load16(buffer, q))
            q += 2
        if schema >= program_of.shape[0] or program_of[schema] < 0:
            state[SCHEMA] = schema
            return UNKNOWN_SCHEMA
        program = program_of[schema]
        columns = first[program + 1] - first[program]
        nulls = q
        q += (columns + 7) >> 3
        if q > end:
            return CORRUPT
        full = False
        for column in range(columns):
            at = first[program] + column
            k = kind[at]
            c = target[at]
            f = fixed_at[c]
            if buffer[nulls + (column >> 3)] >> (column & 7) & 1:
                if nullable[at] == 0:
                    return CORRUPT
                memory[valid_at[c] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                if heap_room[c] > 0:
                    store32(memory, f + 4 * (row + 1), np.uint64(heap_used[c]))
                continue
            v = np.int64(0)
            if k >= INT:
                number = np.uint64(0)
                shift = np.uint64(0)
                last = np.uint64(63) if k >= BIGINT else np.uint64(28)
                while True:
                    if q >= end or shift > last:
                        return CORRUPT
                    byte = np.uint64(buffer[q])
                    q += 1
                    if shift == last and byte >= np.uint64(2 if k >= BIGINT else 16):
                        return CORRUPT
                    number |= (byte & np.uint64(0x7F)) << shift
                    if byte < np.uint64(0x80):
                        break
                    shift += np.uint64(7)
                v = np.int64(number)
                if k < BIGINT:
                    v = np.int64(np.int32(np.uint32(number)))
            if k == TEXT:
                if v < 0 or v > end - q:
                    return CORRUPT
                used = heap_used[c]
                if used + v > heap_room[c]:
                    state[COLUMN] = c
                    state[NEED] = v
                    full = True
                    break
                # Short values, which most are, are copied as whole words: heaps have room for the surplus after their end.
                if v <= 256 and q + v + 16 <= buffer.shape[0]:
                    done = 0
                    while done < v:
                        store64(memory, heap_at[c] + used + done, load64(buffer, q + done))
                        store64(memory, heap_at[c] + used + done + 8, load64(buffer, q + done + 8))
                        done += 16
                else:
                    copy(memory, heap_at[c] + used, buffer, q, v)
                heap_used[c] = used + v
                store32(memory, f + 4 * (row + 1), np.uint64(used + v))
                q += v
            elif k == INT:
                store32(memory, f + 4 * row, np.uint64(v))
            elif k == BIGINT:
                store64(memory, f + 8 * row, np.uint64(v))
            elif k == LONG:
                if end - q < 8:
                    return CORRUPT
                store64(memory, f + 8 * row, load64(buffer, q))
                q += 8
            elif k == WORD:
                if end - q < 4:
                    return CORRUPT
                store32(memory, f + 4 * row, np.uint64(load32(buffer, q)))
                q += 4
            elif k == SHORT:
                if end - q < 2:
                    return CORRUPT
                store16(memory, f + 2 * row, np.uint64(load16(buffer, q)))
                q += 2
            elif k == BYTE or k == BOOL:
                if end - q < 1:
                    return CORRUPT
                byte = np.uint64(buffer[q])
                if k == BOOL and byte > np.uint64(1):
                    return CORRUPT
                store8(memory, f + row, byte)
                q += 1
            elif k == MICROS or k == NANOS:
                # The nanoseconds of the millisecond follow.
                number = np.uint64(0)
                shift = np.uint64(0)
                while True:
                    if q >= end or shift > np.uint64(14):
                        return CORRUPT
                    byte = np.uint64(buffer[q])
                    q += 1
                    number |= (byte & np.uint64(0x7F)) << shift
                    if byte < np.uint64(0x80):
                        break
                    shift += np.uint64(7)
                nanos = np.int64(number)
                if nanos > 999999:
                    return CORRUPT
                if k == MICROS:
                    if v > 9223372036854774 or v < -9223372036854775:
                        return OUT_OF_RANGE
                    store64(memory, f + 8 * row, np.uint64(v * 1000 + nanos // 1000))
                else:
                    if v > 9223372036854 or (v == 9223372036854 and nanos > 775807):
                        return OUT_OF_RANGE
                    if v < -9223372036855 or (v == -9223372036855 and nanos < 224192):
                        return OUT_OF_RANGE
                    store64(memory, f + 8 * row, np.uint64(v * 1000000 + nanos))
            elif k == SECONDS:
                store64(memory, f + 8 * row, np.uint64(whole_seconds(v)))
            elif k == TIME or k == TIME_SECONDS:
                # A day has no other milliseconds. Whole seconds are handed out as milliseconds.
                if v < 0 or v >= 86400000:
                    return CORRUPT
                store32(memory, f + 4 * row, np.uint64(v // 1000 * 1000 if k == TIME_SECONDS else v))
            elif k == DECIMAL:
                limit = np.int64(limit_low[at])
                if v >= limit or v <= -limit:
                    return CORRUPT
                store64(memory, f + 16 * row, np.uint64(v))
                store64(memory, f + 16 * row + 8, np.uint64(v >> 63))
            elif k == DECIMAL_BYTES:
                if v < 1 or v > 16 or v > end - q:
                    return CORRUPT
                negative = buffer[q] & 0x80 != 0
                high = np.uint64(0xFFFFFFFFFFFFFFFF) if negative else np.uint64(0)
                low = high
                for i in range(v):
                    high = high << np.uint64(8) | low >> np.uint64(56)
                    low = low << np.uint64(8) | np.uint64(buffer[q + i])
                q += v
                size_high = high
                size_low = low
                if negative:
                    size_low = ~low + np.uint64(1)
                    size_high = ~high
                    if size_low == np.uint64(0):
                        size_high += np.uint64(1)
                if size_high > limit_high[at] or (size_high == limit_high[at] and size_low >= limit_low[at]):
                    return CORRUPT
                store64(memory, f + 16 * row, low)
                store64(memory, f + 16 * row + 8, high)
            elif k == NESTED:
                if v < 0 or v > end - q:
                    return CORRUPT
                store64(memory, f + 16 * row, np.uint64(q))
                store64(memory, f + 16 * row + 8, np.uint64(q + v))
                q += v
            else:
                return CORRUPT
        if full:
            # Undo the row: its heaps end where it began, and its values count as valid until a NULL is found.
            for c in range(valid_at.shape[0]):
                if heap_room[c] > 0:
                    heap_used[c] = np.int64(load32(memory, fixed_at[c] + 4 * row))
                memory[valid_at[c] + (row >> 3)] |= np.uint8(1 << (row & 7))
            return BATCH_FULL if row > 0 else HEAP_TOO_SMALL
        if q != end:
            return CORRUPT
        for i in range(absent_first[program], absent_first[program + 1]):
            c = absent[i]
            memory[valid_at[c] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
            if heap_room[c] > 0:
                store32(memory, fixed_at[c] + 4 * (row + 1), np.uint64(heap_used[c]))
        row += 1
        index += 1
    state[INDEX] = index
    state[ROWS] = row
    return DONE


class _Programs:
    """The tables that drive the kernel: a program per schema, its columns in the order of its rows."""

    def __init__(self, versions: Versions) -> None:
        self.program_of: Longs = np.full(max(versions.by_id) + 1, -1, np.int64)
        first, absent_first = [0], [0]
        kind: list[int] = []
        target: list[int] = []
        limit: list[int] = []
        nullable: list[bool] = []
        absent: list[int] = []
        for program, schema in enumerate(versions.by_id.values()):
            places = present(versions.places(schema.id), "a schema of a plan has no place in it")
            check(schema.id >= 0, "a schema of a plan has no place in it")
            self.program_of[schema.id] = program
            for column, place in zip(schema.columns, places, strict=True):
                form = form_of(column.type)
                kind.append(form.kind)
                target.append(place)
                limit.append(form.limit)
                nullable.append(column.type.nullable)
            absent += sorted(set(range(len(versions.target.columns))) - set(places))
            first.append(len(kind))
            absent_first.append(len(absent))
        self.first: Longs = np.array(first, np.int64)
        self.kind: Longs = np.array(kind, np.int64)
        self.target: Longs = np.array(target, np.int64)
        self.limit_high: npt.NDArray[np.uint64] = np.array([value >> 64 for value in limit], np.uint64)
        self.limit_low: npt.NDArray[np.uint64] = np.array([value & (1 << 64) - 1 for value in limit], np.uint64)
        self.nullable: Longs = np.array(nullable, np.int64)
        self.absent_first: Longs = np.array(absent_first, np.int64)
        self.absent: Longs = np.array(absent, np.int64)


class RowDecoder:
    """Rows of one table into batches of the plan's schema. One thread uses it; batches may outlive it.

    A row of a schema that the plan does not know is `Unavailable`: the table was changed since, and a new plan reads it.
    """

    def __init__(self, versions: Versions, *, rows_max: int = 16_384) -> None:
        self.schema = versions.target.arrow
        self._programs = _Programs(versions)
        self._types = [column.type for column in versions.target.columns]
        self._nested = [_nested(column.type, column.name) if column.type.nested else None for column in versions.target.columns]
        self._nested_bytes_max = _NESTED_BYTES_MAX // max(map(growth_of, self._types), default=1)
        self._storage = [form_of(column).storage for column in self._types]
        self._newest = max(versions.by_id)
        self._rows_max = rows_max
        self._room = [_HEAP_BYTES_FIRST if storage.heap else 0 for storage in self._storage]
        self._pool = ArenaPool()

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs, *, schema_id: int = SCHEMA_IN_ROW) -> Iterator[pa.RecordBatch]:
        """Rows of `buffer`, each from its start to its end. With `schema_id` rows have no id in front of them."""
        check(starts.shape == ends.shape, "rows have as many ends as starts")
        state: Longs = np.zeros(STATE_SLOTS, np.int64)
        buffer = kernel_view(buffer)
        count = starts.shape[0]
        while state[INDEX] < count:
            state[ROWS] = 0
            # A batch of few rows gets a small arena.
            rows_max = min(self._rows_max, count - int(state[INDEX]))
            if any(self._nested):
                rows_max = _rows_within(starts, ends, int(state[INDEX]), rows_max, self._nested_bytes_max)
            layout = Layout(self._storage, rows_max=rows_max, heap_bytes=self._room)
            arena = Arena(self._pool, layout, valid=True)
            status = self._fill(buffer, starts, ends, schema_id, arena, state)
            if status == HEAP_TOO_SMALL:
                self._grow(int(state[COLUMN]), int(state[NEED]))
                continue
            if status == BATCH_FULL and int(state[ROWS]) < rows_max:
                self._grow(int(state[COLUMN]), 2 * self._room[int(state[COLUMN])])
            elif status not in (DONE, BATCH_FULL):
                raise self._refusal(status, state)
            yield self._batch(arena, int(state[ROWS]), buffer)

    def _fill(self, buffer: Bytes, starts: Longs, ends: Longs, schema_id: int, arena: Arena, state: Longs) -> int:
        programs, layout = self._programs, arena.layout
        status = fill(
            buffer, starts, ends, schema_id, programs.program_of, programs.first, programs.kind, programs.target, programs.limit_high,
            programs.limit_low, programs.nullable, programs.absent_first, programs.absent, layout.valid_at, layout.fixed_at,
            layout.heap_at, layout.heap_room, arena.heap_used, arena.memory, layout.rows_max, state,
        )  # fmt: skip
        return int(status)

    def _grow(self, column: int, size: int) -> None:
        if self._room[column] >= _OFFSETS_MAX:
            raise InvariantBroken("a batch ended for want of room that it had")
        self._room[column] = min(max(size, _HEAP_BYTES_FIRST), _OFFSETS_MAX)

    def _batch(self, arena: Arena, rows: int, buffer: Bytes) -> pa.RecordBatch:
        arrays = []
        for place, kind in enumerate(self._types):
            nested = self._nested[place]
            if nested is None:
                arrays.append(plain_array(arena, place, kind, rows, self.schema.field(place).name))
            else:
                arrays.append(nested.decode(buffer, *ranges(arena, place, rows)))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _refusal(self, status: int, state: Longs) -> Exception:
        if status == UNKNOWN_SCHEMA:
            if int(state[SCHEMA]) > self._newest:
                return Unavailable(
                    "a row was written with a newer schema than the plan's",
                    detail=f"schema {state[SCHEMA]}, the plan has {self._newest}",
                    hint="plan again",
                )
            return Corrupt("a row has a schema that its table has not", detail=f"schema {state[SCHEMA]}")
        if status == OUT_OF_RANGE:
            return beyond()
        return Corrupt("a row of Fluss can't be read", detail=f"row {state[INDEX]} of its batch")


def _rows_within(starts: Longs, ends: Longs, first: int, rows_max: int, bytes_max: int) -> int:
    """How many rows' nested values fit into one batch, at least one: Arrow counts their content with 31 bits."""
    sizes = np.cumsum((ends - starts)[first : first + rows_max])
    return max(1, int(np.searchsorted(sizes, bytes_max, side="right")))


def _nested(kind: FlussType, name: str) -> Nested:
    match kind.root:
        case Root.ARRAY:
            return ArrayDecoder(kind, _nested, name)
        case Root.MAP:
            return MapDecoder(kind, _nested, name)
        case _:
            return _RowsInRows(kind, name)


class _RowsInRows(Nested):
    """Rows inside rows, arrays and maps: like those of a table, without the schema's id."""

    def __init__(self, kind: FlussType, name: str) -> None:
        columns = (
            Column(place, f"{name}.{field}", child) for place, (field, child) in enumerate(zip(kind.names, kind.children, strict=True))
        )
        self._arrow = kind.arrow
        self._rows = RowDecoder(Versions.one(Schema(0, tuple(columns))), rows_max=_OFFSETS_MAX)

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs) -> pa.Array:
        batches = list(self._rows.decode(buffer, starts, ends, schema_id=0))
        if not batches:
            return pa.nulls(0, self._arrow)
        columns = batches[0].columns if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0].columns
        return pa.Array.from_buffers(self._arrow, starts.shape[0], [validity(starts)], children=columns)


def warm() -> None:
    """Compile the kernels, or load them from the cache on disk, before the first rows wait for them."""
    words = FlussType.map(FlussType(root=Root.INTEGER), FlussType(root=Root.INTEGER))
    schema = Schema(1, (Column(0, "id", FlussType(root=Root.INTEGER, nullable=False)), Column(1, "words", words)), ("id",))
    row = np.frombuffer(b"\x01\x00\x00\x07\x0c" + struct.pack("<iii", 4, 0, 0), np.uint8)
    (batch,) = RowDecoder(Versions.one(schema)).decode(row, np.zeros(1, np.int64), np.array([row.shape[0]], np.int64))
    check(batch.to_pydict() == {"id": [7], "words": [[]]}, "a row reads otherwise than it was written")
