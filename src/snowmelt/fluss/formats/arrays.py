"""Arrays and maps inside Fluss' rows, into Arrow: level by level, one call of a compiled function for all values of a level.

An array is its number of elements, a bitmap of NULLs in words of 32 bits, and a slot of fixed width for each element. Slots of texts, wide
decimals, fine timestamps and nested values say where in the array the value lies, and how long it is; texts of up to seven bytes are in
the slot itself, and its last byte says so. Values are padded to eight bytes. A map is the length of its array of keys, that array, and one
of values. All numbers are little-endian and of full width, whatever the row around them has.

Laws:
- Every read is checked against the end of its array. Wrong bytes are `Corrupt`; no value is guessed, and no error quotes one.
- Values are in the order of their elements and do not share bytes, as Fluss writes them. So the size of the input bounds what is decoded,
  however deep arrays nest.
- A NULL row in an array is a slot in the input, and a value of each field in memory. So all rows of a level may use `ROWS_BYTES_MAX`.

Memory: an arena for each level, bounded by the bytes of the arrays that are handed in, and for rows by `ROWS_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from snowmelt.columnar.arena import Arena, ArenaPool, Bytes, Layout, Longs
from snowmelt.columnar.memory import JIT, load16, load32, load64, store8, store16, store32, store64
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.fluss.formats.forms import (
    BIGINT,
    BOOL,
    BYTE,
    CORRUPT,
    DECIMAL,
    DECIMAL_BYTES,
    DONE,
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
    WORD,
    Nested,
    beyond,
    form_of,
    plain_array,
    ranges,
    store_decimal,
    store_instant,
    store_text,
    store_time,
    store_wide_decimal,
    validity,
    whole_seconds,
    width_of,
)
from snowmelt.fluss.formats.types import FlussType, Root

_ELEMENTS_MAX = (1 << 31) - 1
ROWS_BYTES_MAX = 1 << 30
"""For the rows in all arrays of a batch, without texts and arrays in them."""
_PADDING_MAX = 15
"""A wide decimal of one byte uses sixteen."""


@njit(**JIT)
def count_elements(buffer, starts, ends, width, offsets):  # type: ignore[no-untyped-def]
    """Where the elements of each array begin among all elements; False: an array is shorter than its slots."""
    total = np.int64(0)
    for index in range(starts.shape[0]):
        start = starts[index]
        if start >= 0:
            end = ends[index]
            if end > buffer.shape[0] or end - start < 4:
                return False
            count = np.int64(np.int32(load32(buffer, start)))
            if count < 0 or 4 + ((count + 31) >> 5) * 4 + count * width > end - start:
                return False
            total += count
            if total > _ELEMENTS_MAX:
                return False
        offsets[index + 1] = total
    return True


@njit(**JIT)
def fill_elements(  # type: ignore[no-untyped-def]
    buffer, starts, ends, offsets, kind, width, limit_high, limit_low, nullable, valid_at, fixed_at, heap_at, heap_used, memory,
):  # fmt: skip
    """Decode the elements of arrays that `count_elements` has checked. There is room for all of them."""
    used = np.int64(0)
    for index in range(starts.shape[0]):
        start = starts[index]
        if start < 0:
            continue
        end = ends[index]
        count = offsets[index + 1] - offsets[index]
        nulls = start + 4
        slots = nulls + ((count + 31) >> 5) * 4
        # The least place of the next value that is not in its slot.
        free = slots + count * width
        for element in range(count):
            row = offsets[index] + element
            at = slots + element * width
            if buffer[nulls + (element >> 3)] >> (element & 7) & 1:
                if nullable == 0:
                    return CORRUPT
                memory[valid_at + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                if kind == TEXT:
                    store32(memory, fixed_at + 4 * (row + 1), np.uint64(used))
                continue
            if kind == INT or kind == WORD:
                store32(memory, fixed_at + 4 * row, np.uint64(load32(buffer, at)))
            elif kind == BIGINT or kind == LONG:
                store64(memory, fixed_at + 8 * row, load64(buffer, at))
            elif kind == SHORT:
                store16(memory, fixed_at + 2 * row, np.uint64(load16(buffer, at)))
            elif kind == BYTE or kind == BOOL:
                byte = np.uint64(buffer[at])
                if kind == BOOL and byte > np.uint64(1):
                    return CORRUPT
                store8(memory, fixed_at + row, byte)
            elif kind == SECONDS:
                store64(memory, fixed_at + 8 * row, np.uint64(whole_seconds(np.int64(load64(buffer, at)))))
            elif kind == TIME or kind == TIME_SECONDS:
                if not store_time(memory, fixed_at + 4 * row, kind, np.int64(np.int32(load32(buffer, at)))):
                    return CORRUPT
            elif kind == DECIMAL:
                if not store_decimal(memory, fixed_at + 16 * row, np.int64(load64(buffer, at)), limit_low):
                    return CORRUPT
            else:
                slot = load64(buffer, at)
                place = np.int64(0)
                size = np.int64(0)
                if slot >> np.uint64(63):
                    size = np.int64(slot >> np.uint64(56)) & 0x7F
                    if kind != TEXT or size > 7:
                        return CORRUPT
                    place = at
                else:
                    place = start + np.int64(slot >> np.uint64(32))
                    size = np.int64(8) if kind == MICROS or kind == NANOS else np.int64(np.int32(np.uint32(slot)))
                    if place < free or size < 0 or size > end - place:
                        return CORRUPT
                    free = place + size
                if kind == TEXT:
                    store_text(memory, heap_at + used, buffer, place, size)
                    used += size
                    store32(memory, fixed_at + 4 * (row + 1), np.uint64(used))
                elif kind == NESTED:
                    store64(memory, fixed_at + 16 * row, np.uint64(place))
                    store64(memory, fixed_at + 16 * row + 8, np.uint64(place + size))
                elif kind == DECIMAL_BYTES:
                    if size < 1 or size > 16:
                        return CORRUPT
                    if not store_wide_decimal(memory, fixed_at + 16 * row, buffer, place, size, limit_high, limit_low):
                        return CORRUPT
                else:
                    nanos = np.int64(np.int32(np.uint32(slot)))
                    status = store_instant(memory, fixed_at + 8 * row, kind, np.int64(load64(buffer, place)), nanos)
                    if status != DONE:
                        return status
        if end - free > _PADDING_MAX:
            return CORRUPT
    heap_used[0] = used
    return DONE


@njit(**JIT)
def split_maps(buffer, starts, ends, key_ends):  # type: ignore[no-untyped-def]
    """Where the keys of each map end; False: they don't fit into it."""
    for index in range(starts.shape[0]):
        start = starts[index]
        if start < 0:
            continue
        end = ends[index]
        if end > buffer.shape[0] or end - start < 4:
            return False
        size = np.int64(np.int32(load32(buffer, start)))
        if size < 0 or size > end - start - 4:
            return False
        key_ends[index] = start + 4 + size
    return True


class _Elements:
    """The elements of arrays of one type."""

    def __init__(self, kind: FlussType, inner: Callable[[FlussType, str], Nested], name: str) -> None:
        self._type = kind
        self._name = name
        self._form = form_of(kind)
        # In a slot decimals are numbers of 64 bits or places, and so is all that has no width.
        self._width = self._form.storage.width if self._form.kind in (BOOL, BYTE, SHORT, WORD, INT, TIME, TIME_SECONDS) else 8
        self._inner = inner(kind, name) if kind.nested else None
        self._rows_max = ROWS_BYTES_MAX // max(1, width_of(kind)) if kind.root is Root.ROW else _ELEMENTS_MAX
        self._pool = ArenaPool()

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs) -> tuple[npt.NDArray[np.int32], pa.Array]:
        """Offsets and elements, as Arrow's lists have them."""
        offsets: Longs = np.zeros(starts.shape[0] + 1, np.int64)
        if not count_elements(buffer, starts, ends, self._width, offsets):
            raise self._corrupt()
        count = int(offsets[-1])
        if count > self._rows_max:
            raise SourceDrift(
                "an array of a Fluss row has too many rows in it",
                detail=f"{self._name}: {count:,}, at most {self._rows_max:,} of its fields are read at once",
                hint="divide the row into several",
            )
        form, heap = self._form, 0
        if form.storage.heap:
            heap = int((ends - starts)[starts >= 0].sum())
        layout = Layout([form.storage], rows_max=count, heap_bytes=[heap])
        arena = Arena(self._pool, layout, valid=True)
        status = fill_elements(
            buffer, starts, ends, offsets, form.kind, self._width, np.uint64(form.limit >> 64), np.uint64(form.limit & (1 << 64) - 1),
            int(self._type.nullable), layout.valid_at[0], layout.fixed_at[0], layout.heap_at[0], arena.heap_used, arena.memory,
        )  # fmt: skip
        if status == OUT_OF_RANGE:
            raise beyond()
        if status != DONE:
            raise self._corrupt()
        if self._inner is None:
            elements = plain_array(arena, 0, self._type, count, self._name, nulls=-1 if self._type.nullable else 0)
        else:
            elements = self._inner.decode(buffer, *ranges(arena, 0, count))
        return offsets.astype(np.int32), elements

    def _corrupt(self) -> Corrupt:
        return Corrupt("an array of a Fluss row can't be read", detail=self._name)


class ArrayDecoder(Nested):
    def __init__(self, kind: FlussType, inner: Callable[[FlussType, str], Nested], name: str) -> None:
        """`inner` gives the decoder of a nested element; `name` is for errors."""
        self._arrow = kind.arrow
        self._elements = _Elements(kind.children[0], inner, f"{name}.element")

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs) -> pa.Array:
        offsets, elements = self._elements.decode(buffer, starts, ends)
        return pa.Array.from_buffers(self._arrow, starts.shape[0], [validity(starts), pa.py_buffer(offsets)], children=[elements])


class MapDecoder(Nested):
    def __init__(self, kind: FlussType, inner: Callable[[FlussType, str], Nested], name: str) -> None:
        self._arrow = kind.arrow
        self._name = name
        self._keys, self._values = (
            _Elements(child, inner, f"{name}.{part}") for child, part in zip(kind.children, ("key", "value"), strict=True)
        )

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs) -> pa.Array:
        key_ends: Longs = np.zeros(starts.shape[0], np.int64)
        if not split_maps(buffer, starts, ends, key_ends):
            raise self._corrupt()
        there = starts >= 0
        offsets, keys = self._keys.decode(buffer, np.where(there, starts + 4, starts), key_ends)
        value_offsets, values = self._values.decode(buffer, np.where(there, key_ends, starts), ends)
        if not np.array_equal(offsets, value_offsets):
            raise self._corrupt()
        fields = [self._arrow.key_field, self._arrow.item_field]
        entries = pa.StructArray.from_arrays([keys, values], fields=fields)
        return pa.Array.from_buffers(self._arrow, starts.shape[0], [validity(starts), pa.py_buffer(offsets)], children=[entries])

    def _corrupt(self) -> Corrupt:
        return Corrupt("a map of a Fluss row can't be read", detail=self._name)
