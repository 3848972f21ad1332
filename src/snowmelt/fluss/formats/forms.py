"""The form of values of Fluss' types in an arena, and how compiled code decodes them, in rows (`compacted`) and `arrays` alike.

Values equal those of Fluss' log for the same row: milliseconds are cut to seconds towards zero, as the server cuts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numba import njit

from snowmelt.columnar.arena import HEAP, Arena, Bytes, Longs, Storage
from snowmelt.columnar.memory import JIT, copy, load64, store32, store64, valid_utf8
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.fluss.formats.types import COMPACT_DECIMAL_DIGITS, COMPACT_TIMESTAMP_DIGITS, FlussType, Root

# Kinds of values for kernels. In a row those from INT on begin with a number in groups of seven bits; from BIGINT on it has up to 64 bits.
BOOL, BYTE, SHORT, WORD, LONG = 0, 1, 2, 3, 4
INT, TIME, TIME_SECONDS, TEXT, DECIMAL_BYTES, NESTED = 5, 6, 7, 8, 9, 10
BIGINT, SECONDS, MICROS, NANOS, DECIMAL = 11, 12, 13, 14, 15

# How a call of a kernel ended.
DONE, BATCH_FULL, HEAP_TOO_SMALL, CORRUPT, UNKNOWN_SCHEMA, OUT_OF_RANGE = 0, 1, 2, 3, 4, 5

SLOT_BYTES = 8
"""The slot of a nested element in an array."""

ABSENT = -1
"""The start of a nested value that is NULL, or is in something that is."""


@dataclass(frozen=True, slots=True)
class Form:
    kind: int
    storage: Storage
    """Of NESTED: start and end of the value in the input."""
    limit: int = 0


def form_of(kind: FlussType) -> Form:
    match kind.root:
        case Root.BOOLEAN:
            return Form(BOOL, Storage(1))
        case Root.TINYINT:
            return Form(BYTE, Storage(1))
        case Root.SMALLINT:
            return Form(SHORT, Storage(2))
        case Root.INTEGER | Root.DATE:
            return Form(INT, Storage(4))
        case Root.BIGINT:
            return Form(BIGINT, Storage(8))
        case Root.FLOAT:
            return Form(WORD, Storage(4))
        case Root.DOUBLE:
            return Form(LONG, Storage(8))
        case Root.CHAR | Root.STRING | Root.BINARY | Root.BYTES:
            return Form(TEXT, HEAP)
        case Root.TIME:
            return Form(TIME_SECONDS if kind.precision == 0 else TIME, Storage(4))
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            if kind.precision <= COMPACT_TIMESTAMP_DIGITS:
                return Form(SECONDS if kind.precision == 0 else BIGINT, Storage(8))
            return Form(MICROS if kind.unit == "us" else NANOS, Storage(8))
        case Root.DECIMAL:
            narrow = kind.precision <= COMPACT_DECIMAL_DIGITS
            return Form(DECIMAL if narrow else DECIMAL_BYTES, Storage(16), 10**kind.precision)
        case Root.ARRAY | Root.MAP | Root.ROW:
            return Form(NESTED, Storage(16))


@njit(**JIT)
def whole_seconds(millis):  # type: ignore[no-untyped-def]
    seconds = millis // 1000
    if millis < 0 and seconds * 1000 != millis:
        seconds += 1
    return seconds


@njit(**JIT)
def store_time(memory, at, kind, millis):  # type: ignore[no-untyped-def]
    """Milliseconds of a day, or its whole seconds as milliseconds; False: a day has fewer."""
    if millis < 0 or millis >= 86400000:
        return False
    store32(memory, at, np.uint64(millis // 1000 * 1000 if kind == TIME_SECONDS else millis))
    return True


@njit(**JIT)
def store_instant(memory, at, kind, millis, nanos):  # type: ignore[no-untyped-def]
    """Micro- or nanoseconds, by the kind, from milliseconds and the nanoseconds beyond them. The answer is how it ended."""
    if nanos < 0 or nanos > 999999:
        return CORRUPT
    if kind == MICROS:
        if millis > 9223372036854774 or millis < -9223372036854775:
            return OUT_OF_RANGE
        store64(memory, at, np.uint64(millis * 1000 + nanos // 1000))
        return DONE
    if millis > 9223372036854 or (millis == 9223372036854 and nanos > 775807):
        return OUT_OF_RANGE
    if millis < -9223372036855 or (millis == -9223372036855 and nanos < 224192):
        return OUT_OF_RANGE
    store64(memory, at, np.uint64(millis * 1000000 + nanos))
    return DONE


@njit(**JIT)
def store_decimal(memory, at, value, limit_low):  # type: ignore[no-untyped-def]
    """A number of 64 bits; False: it has too many digits."""
    limit = np.int64(limit_low)
    if value >= limit or value <= -limit:
        return False
    store64(memory, at, np.uint64(value))
    store64(memory, at + 8, np.uint64(value >> 63))
    return True


@njit(**JIT)
def store_wide_decimal(memory, at, buffer, q, size, limit_high, limit_low):  # type: ignore[no-untyped-def]
    """1 to 16 bytes, the highest first, checked by the caller; False: it has too many digits."""
    negative = buffer[q] & 0x80 != 0
    high = np.uint64(0xFFFFFFFFFFFFFFFF) if negative else np.uint64(0)
    low = high
    for i in range(size):
        high = high << np.uint64(8) | low >> np.uint64(56)
        low = low << np.uint64(8) | np.uint64(buffer[q + i])
    size_high = high
    size_low = low
    if negative:
        size_low = ~low + np.uint64(1)
        size_high = ~high
        if size_low == np.uint64(0):
            size_high += np.uint64(1)
    if size_high > limit_high or (size_high == limit_high and size_low >= limit_low):
        return False
    store64(memory, at, low)
    store64(memory, at + 8, high)
    return True


@njit(**JIT)
def store_text(memory, at, buffer, q, size):  # type: ignore[no-untyped-def]
    """Short values, which most are, are copied as whole words: heaps have room for the surplus after their end."""
    if size <= 256 and q + size + 16 <= buffer.shape[0]:
        done = 0
        while done < size:
            store64(memory, at + done, load64(buffer, q + done))
            store64(memory, at + done + 8, load64(buffer, q + done + 8))
            done += 16
    else:
        copy(memory, at, buffer, q, size)


def plain_array(arena: Arena, place: int, kind: FlussType, rows: int, name: str, *, nulls: int = -1) -> pa.Array:
    """A column of an arena that a kernel has filled, if it is not nested. `name`: for an error; `nulls`: their number, if known."""
    if kind.root is Root.BOOLEAN:
        found = arena.array(place, pa.uint8(), rows, nulls=nulls).cast(pa.bool_())
        return found if nulls else without_nulls(found)
    if kind.root in (Root.STRING, Root.CHAR) and not valid_utf8(*arena.heap(place, rows), rows):
        raise Corrupt("a text of a Fluss row is no UTF-8", detail=name)
    return arena.array(place, kind.arrow, rows, nulls=nulls)


def without_nulls(array: pa.Array) -> pa.Array:
    """An array without NULLs that says so. After a cast Arrow counts them again, and a map with such keys would crash."""
    return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]], 0, array.offset)


def ranges(arena: Arena, place: int, rows: int) -> tuple[Longs, Longs]:
    """Starts and ends of a NESTED column, those of NULLs ABSENT."""
    at, valid_at = int(arena.layout.fixed_at[place]), int(arena.layout.valid_at[place])
    found = arena.memory[at : at + 16 * rows].view(np.int64).reshape(rows, 2)
    valid = np.unpackbits(arena.memory[valid_at : valid_at + (rows + 7) // 8], count=rows, bitorder="little")
    return np.where(valid == 1, found[:, 0], ABSENT), np.where(valid == 1, found[:, 1], ABSENT)


def validity(starts: Longs) -> pa.Buffer | None:
    """A validity bitmap; None: none is NULL."""
    there = starts >= 0
    return None if bool(there.all()) else pa.py_buffer(np.packbits(there, bitorder="little"))


def beyond() -> SourceDrift:
    return SourceDrift(
        "a timestamp is beyond what the lake's type holds",
        detail="milliseconds that don't fit 64 bits in the column's unit",
        hint="correct the row, or give the column a smaller precision",
    )


def width_of(kind: FlussType) -> int:
    """The memory of a value that is NULL and has no bytes in the input; for a row, the sum of all its fields."""
    if kind.root is Root.ROW:
        return sum(map(width_of, kind.children))
    # A decoded array or map has offsets, besides its place in the input.
    return form_of(kind).storage.width + (16 if kind.nested else 1)


def growth_of(kind: FlussType) -> int:
    """How much larger than its input a decoded value can get, at most: an element that is NULL is only a slot."""
    growth = max(map(growth_of, kind.children), default=1)
    return max(growth, *(-(-width_of(child) // SLOT_BYTES) for child in kind.children)) if kind.root in (Root.ARRAY, Root.MAP) else growth


class Nested(Protocol):
    """A nested type's values into Arrow. One thread uses it."""

    def decode(self, buffer: Bytes, starts: Longs, ends: Longs) -> pa.Array:
        """Values of `buffer`, each from its start to its end; those whose start is ABSENT are NULL."""
