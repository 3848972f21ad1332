"""Rows of the binary protocol into an arena, by one compiled kernel for all tables.

Columns are described by numbers: a line of the plan says what to do with a column's values, with which parameters, and where
in the arena they go. The kernel checks every length against its packet before it loads, and stops with a reason where one
does not fit; a row that has no room in the arena is taken back as if it had never begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from snowmelt.columnar.memory import JIT, copy, load16, load32, load64, store8, store16, store32, store64
from snowmelt.databases.mysql.types.dates import days_of, month_days, put_clock, put_date

SLACK = 64
"""Bytes after the received ones. The kernel may load them and never uses them."""

# What the kernel does with a column. The numbers are written out because compiled code is cached by them.
COPY1, COPY2, COPY4, COPY8 = 0, 1, 2, 3
WIDEN1, WIDEN2, WIDEN4, WIDEN8 = 4, 5, 6, 7
DECIMAL, BYTES, BOOL = 8, 9, 10
DATE, DATETIME, TIME = 11, 12, 13
DATE_TEXT, DATETIME_TEXT, TIME_TEXT = 14, 15, 16

# A column's line in the kernel's plan.
KIND, PARAMETER, PRECISION, VALID_AT, FIXED_AT, HEAP_AT, HEAP_ROOM, PLAN_WIDTH = range(8)

# How the kernel came back.
MORE, ROWS_FULL, HEAP_FULL, END, LONG, BROKEN = range(6)

# What it leaves in `state`: where it stands, rows in the arena, the column it stopped at, bytes that one needs, dates
# that became NULL, and the packet number it expects.
AT, ROW, COLUMN, NEED, DATES, NUMBER, STATE_WIDTH = range(7)

BROKEN_BECAUSE = (
    "a packet is out of order",
    "a row is neither a row nor the end of rows",
    "a value reaches beyond its row",
    "a row has bytes after its last value",
    "a length is none",
    "a decimal is none",
    "a date or time is none",
    "a bit field has another length",
)
OUT_OF_ORDER, NO_ROW, BEYOND, BEHIND, NO_LENGTH, NO_DECIMAL, NO_TIME, NO_BITS = range(8)


@njit(**JIT)
def split_sets(offsets: Any, heap: Any) -> Any:
    rows = offsets.shape[0] - 1
    count = 0
    for at in range(heap.shape[0]):
        count += heap[at] == 44
    lists = np.zeros(rows + 1, np.int32)
    ends = np.zeros(count + rows + 1, np.int32)
    labels = np.empty(heap.shape[0], np.uint8)
    label, size = 0, 0
    for row in range(rows):
        start, stop = offsets[row], offsets[row + 1]
        if stop > start:
            for at in range(start, stop):
                if heap[at] == 44:
                    label += 1
                    ends[label] = size
                else:
                    labels[size] = heap[at]
                    size += 1
            label += 1
            ends[label] = size
        lists[row + 1] = label
    return lists, ends[: label + 1], labels[:size]


@njit(inline="always")
def _multiply(a: Any, b: Any) -> Any:
    """The 128 bits of a product, as high and low word."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    first = a0 * b0
    middle = a1 * b0 + (first >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half), (other << half) | (first & low)


@njit(**JIT)
def _store_decimal(buffer: Any, at: Any, size: Any, scale: Any, precision: Any, memory: Any, target: Any) -> Any:
    """Store the number that a text tells as a 128-bit integer; False if it is none or has other digits than its column."""
    stop = at + size
    negative = at < stop and buffer[at] == 45
    if negative:
        at += 1
    ten = np.uint64(10)
    high, low, power = np.uint64(0), np.uint64(0), np.uint64(1)
    upper = np.uint64(0)
    digits, fraction, pointed, begun = 0, 0, False, False
    while at < stop:
        byte = buffer[at]
        at += 1
        if byte == 46:
            if pointed:
                return False
            pointed = True
            continue
        if byte < 48 or byte > 57:
            return False
        fraction += pointed
        begun = begun or byte != 48
        if begun:
            if digits == 19:
                # The first nineteen digits fill a word; the others are counted in a second one.
                upper, low = low, np.uint64(0)
            digits += 1
            low = low * ten + np.uint64(byte - 48)
            if digits > 19:
                power = power * ten
    if fraction != scale or digits > precision or size - negative - pointed < 1:
        return False
    if digits > 19:
        high, product = _multiply(upper, power)
        low += product
        high += np.uint64(low < product)
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(low == 0)
    store64(memory, target, low)
    store64(memory, target + 8, high)
    return True


@njit(**JIT)
def decode(buffer: Any, end: Any, whole: Any, plan: Any, used: Any, nulls: Any, memory: Any, rows_max: Any, state: Any) -> Any:
    """Decode rows out of buffer[state[AT] : end] into an arena until something is in the way, and say what.

    `whole` is 0 where packets with headers follow, and else the length of the one row's payload that does. A row that
    doesn't fit is taken back. The arena's bits say "present" at first.
    """
    count = plan.shape[0]
    bitmap = (count + 9) >> 3
    at = state[AT]
    row = state[ROW]
    number = state[NUMBER]
    status = MORE
    reason = 0
    column = -1
    need = 4
    while True:
        if whole:
            if at >= end:
                break
            here, stop = at, at + whole
        else:
            if end - at < 4:
                need = 4
                break
            header = load32(buffer, at)
            length: Any = np.int64(header & np.uint32(0xFFFFFF))
            if length == 0xFFFFFF:
                status = LONG
                break
            if end - at < 4 + length:
                need = 4 + length
                break
            if np.int64(header >> np.uint32(24)) != number:
                status, reason = BROKEN, OUT_OF_ORDER
                break
            here, stop = at + 4, at + 4 + length
        if here == stop:
            status, reason = BROKEN, NO_ROW
            break
        if buffer[here] != 0:
            if not whole and (buffer[here] == 0xFF or (buffer[here] == 0xFE and stop - here < 9)):
                status = END
            else:
                status, reason = BROKEN, NO_ROW
            break
        if row == rows_max:
            status = ROWS_FULL
            break
        bits_at = here + 1
        here = bits_at + bitmap
        if here > stop:
            status, reason = BROKEN, BEYOND
            break
        dates = 0
        for column in range(count):
            kind = plan[column, KIND]
            fixed = plan[column, FIXED_AT]
            missing = False
            if (buffer[bits_at + ((column + 2) >> 3)] >> ((column + 2) & 7)) & 1:
                missing = True
            elif kind <= WIDEN8:
                width = 1 << (kind & 3)
                if stop - here < width:
                    status, reason = BROKEN, BEYOND
                    break
                if kind == COPY4:
                    store32(memory, fixed + 4 * row, np.uint64(load32(buffer, here)))
                elif kind == COPY8:
                    store64(memory, fixed + 8 * row, load64(buffer, here))
                elif kind == COPY1:
                    memory[fixed + row] = buffer[here]
                elif kind == COPY2:
                    store16(memory, fixed + 2 * row, np.uint64(load16(buffer, here)))
                elif kind == WIDEN1:
                    store16(memory, fixed + 2 * row, np.uint64(buffer[here]))
                elif kind == WIDEN2:
                    store32(memory, fixed + 4 * row, np.uint64(load16(buffer, here)))
                elif kind == WIDEN4:
                    store64(memory, fixed + 8 * row, np.uint64(load32(buffer, here)))
                else:
                    store64(memory, fixed + 16 * row, load64(buffer, here))
                    store64(memory, fixed + 16 * row + 8, np.uint64(0))
                here += width
            else:
                if here == stop:
                    status, reason = BROKEN, BEYOND
                    break
                size: Any = np.int64(buffer[here])
                here += 1
                if kind <= BOOL:
                    if size >= 251:
                        extra = 2 if size == 252 else (3 if size == 253 else 8)
                        if size == 251 or size == 255:
                            status, reason = BROKEN, NO_LENGTH
                            break
                        if stop - here < extra:
                            status, reason = BROKEN, BEYOND
                            break
                        if extra == 2:
                            size = np.int64(load16(buffer, here))
                        elif extra == 3:
                            size = np.int64(load16(buffer, here)) | np.int64(buffer[here + 2]) << 16
                        else:
                            size = np.int64(load64(buffer, here))
                        here += extra
                    if size < 0 or size > stop - here:
                        status, reason = BROKEN, BEYOND
                        break
                    if kind == BYTES:
                        exact = plan[column, PARAMETER]
                        if exact and size != exact:
                            status, reason = BROKEN, NO_BITS
                            break
                        start = used[column]
                        if size > plan[column, HEAP_ROOM] - start:
                            status, need = HEAP_FULL, size
                            break
                        target = plan[column, HEAP_AT] + start
                        if size <= 32:
                            # Whole words, with slack after both sides: a call of memcpy costs more.
                            store64(memory, target, load64(buffer, here))
                            store64(memory, target + 8, load64(buffer, here + 8))
                            if size > 16:
                                store64(memory, target + 16, load64(buffer, here + 16))
                                store64(memory, target + 24, load64(buffer, here + 24))
                        else:
                            copy(memory, target, buffer, here, size)
                        used[column] = start + size
                        store32(memory, fixed + 4 * (row + 1), np.uint64(start + size))
                    elif kind == DECIMAL:
                        scale, precision = plan[column, PARAMETER], plan[column, PRECISION]
                        if not _store_decimal(buffer, here, size, scale, precision, memory, fixed + 16 * row):
                            status, reason = BROKEN, NO_DECIMAL
                            break
                    else:
                        if size != 1:
                            status, reason = BROKEN, NO_BITS
                            break
                        bit = np.uint8(1 << (row & 7))
                        if buffer[here]:
                            memory[fixed + (row >> 3)] |= bit
                        else:
                            memory[fixed + (row >> 3)] &= ~bit
                    here += size
                else:
                    if size > stop - here:
                        status, reason = BROKEN, BEYOND
                        break
                    target = np.int64(0)
                    if kind >= DATE_TEXT:
                        if plan[column, HEAP_ROOM] - used[column] < 32:
                            status, need = HEAP_FULL, 32
                            break
                        target = plan[column, HEAP_AT] + used[column]
                    if kind == TIME or kind == TIME_TEXT:
                        if size != 0 and size != 8 and size != 12:
                            status, reason = BROKEN, NO_TIME
                            break
                        hours, minutes, seconds, micros = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
                        negative = False
                        if size:
                            negative = buffer[here] != 0
                            hours = np.int64(load32(buffer, here + 1)) * 24 + np.int64(buffer[here + 5])
                            minutes, seconds = np.int64(buffer[here + 6]), np.int64(buffer[here + 7])
                            if size == 12:
                                micros = np.int64(load32(buffer, here + 8))
                        if hours > 838 or minutes > 59 or seconds > 59 or micros > 999999:
                            status, reason = BROKEN, NO_TIME
                            break
                        if kind == TIME:
                            total = ((hours * 60 + minutes) * 60 + seconds) * 1000000 + micros
                            store64(memory, fixed + 8 * row, np.uint64(-total if negative else total))
                        else:
                            if negative:
                                memory[target] = 45
                                target += 1
                            target = put_clock(memory, target, hours, minutes, seconds, micros, plan[column, PARAMETER])
                    else:
                        if size != 0 and size != 4 and size != 7 and size != 11:
                            status, reason = BROKEN, NO_TIME
                            break
                        year, month, day = np.int64(0), np.int64(0), np.int64(0)
                        hours, minutes, seconds, micros = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
                        if size >= 4:
                            year = np.int64(load16(buffer, here))
                            month, day = np.int64(buffer[here + 2]), np.int64(buffer[here + 3])
                        if size >= 7:
                            hours, minutes = np.int64(buffer[here + 4]), np.int64(buffer[here + 5])
                            seconds = np.int64(buffer[here + 6])
                        if size == 11:
                            micros = np.int64(load32(buffer, here + 7))
                        if year > 9999 or month > 12 or day > 31 or hours > 23 or minutes > 59 or seconds > 59 or micros > 999999:
                            status, reason = BROKEN, NO_TIME
                            break
                        if kind >= DATE_TEXT:
                            target = put_date(memory, target, year, month, day)
                            if kind == DATETIME_TEXT:
                                memory[target] = 32
                                target = put_clock(memory, target + 1, hours, minutes, seconds, micros, plan[column, PARAMETER])
                        elif day < 1 or day > month_days(year, month):
                            missing = True
                            dates += 1
                        elif kind == DATE:
                            store32(memory, fixed + 4 * row, np.uint64(days_of(year, month, day)))
                        else:
                            total = days_of(year, month, day) * 86400 + hours * 3600 + minutes * 60 + seconds
                            store64(memory, fixed + 8 * row, np.uint64(total * 1000000 + micros))
                    if kind >= DATE_TEXT:
                        start = target - plan[column, HEAP_AT]
                        used[column] = start
                        store32(memory, fixed + 4 * (row + 1), np.uint64(start))
                    here += size
            if missing:
                nulls[column] += 1
                memory[plan[column, VALID_AT] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                # What lies under a NULL is zero, so that old bytes of an arena are never handed on.
                if kind == BYTES or kind >= DATE_TEXT:
                    store32(memory, fixed + 4 * (row + 1), np.uint64(used[column]))
                elif kind == WIDEN8 or kind == DECIMAL:
                    store64(memory, fixed + 16 * row, np.uint64(0))
                    store64(memory, fixed + 16 * row + 8, np.uint64(0))
                elif kind == COPY8 or kind == WIDEN4 or kind == DATETIME or kind == TIME:
                    store64(memory, fixed + 8 * row, np.uint64(0))
                elif kind == COPY4 or kind == WIDEN2 or kind == DATE:
                    store32(memory, fixed + 4 * row, np.uint64(0))
                elif kind == COPY2 or kind == WIDEN1:
                    store16(memory, fixed + 2 * row, np.uint64(0))
                elif kind == COPY1:
                    store8(memory, fixed + row, np.uint64(0))
                else:
                    memory[fixed + (row >> 3)] &= ~np.uint8(1 << (row & 7))
        if status == HEAP_FULL:
            # Take the row back, up to the column that had no room.
            bit = np.uint8(1 << (row & 7))
            for other in range(column):
                valid = plan[other, VALID_AT] + (row >> 3)
                if not memory[valid] & bit:
                    nulls[other] -= 1
                    memory[valid] |= bit
                if plan[other, HEAP_ROOM]:
                    used[other] = np.int64(load32(memory, plan[other, FIXED_AT] + 4 * row))
            break
        if status != MORE:
            break
        if here != stop:
            status, reason, column = BROKEN, BEHIND, -1
            break
        at = stop
        row += 1
        number = (number + 1) & 255
        state[DATES] += dates
    state[AT] = at
    state[ROW] = row
    state[NUMBER] = number
    state[COLUMN] = column
    state[NEED] = reason if status == BROKEN else need
    return status
