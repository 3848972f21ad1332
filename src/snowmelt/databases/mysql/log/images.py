"""The row kernel: row images of any table into an arena. One compiled function serves all tables.

Each read is checked against the end of its event, each write against the room of its heap, and a row image must end exactly
where its event's data do. A row that doesn't fit ends the batch: it is taken back whole, together with its other half if it is
an update, and begins the next one.

The kernel is long because it is one function: an array that is passed to another compiled function costs reference counting, and
splitting it by kinds made it two and a half times slower (measured). So it reads as a list of cases, each by its name in `kinds`.

Kinds of row changes are Paimon's: 0 insert, 1 update before, 2 update after, 3 delete.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from snowmelt.columnar.memory import JIT, big16, big32, copy, load16, load32, load64, store16, store32, store64
from snowmelt.databases.mysql.log.scan import held_columns
from snowmelt.databases.mysql.types import kinds
from snowmelt.databases.mysql.types.binary_json import json_text
from snowmelt.databases.mysql.types.dates import days_of, month_days, put_clock, put_date, put_digits

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3

# How a call of the kernel ended.
DONE, BATCH_FULL, HEAP_TOO_SMALL, CORRUPT = 0, 1, 2, 3
"""HEAP_TOO_SMALL: a single row doesn't fit an empty arena; the state says which column needs how much."""

# Slots of the kernel's state.
EVENT, AT, ROWS, COLUMN, NEED, NULLED_DATES = 0, 1, 2, 3, 4, 5
"""AT is the offset inside the event, 0 at its beginning. NULLED_DATES counts dates that no calendar has."""
STATE_SLOTS = 6

SYSTEM_COLUMNS = 4

TEXT_ROOM = 80
"""No temporal, decimal or network value is longer as text."""

_POW10 = np.array([10**i for i in range(19)], np.int64)
_DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@njit(**JIT)
def _fraction(buffer, at, fsp):  # type: ignore[no-untyped-def]
    """Microseconds of the (fsp + 1) / 2 bytes that follow a temporal value."""
    if fsp == 0:
        return np.int64(0)
    if fsp <= 2:
        return np.int64(buffer[at]) * 10000
    if fsp <= 4:
        return np.int64(big16(buffer, at)) * 100
    return np.int64(buffer[at]) << 16 | np.int64(big16(buffer, at + 1))


@njit(**JIT)
def _times_plus(high, low, factor, addend):  # type: ignore[no-untyped-def]
    """(high:low) * factor + addend in 128 bits; factor < 2^30."""
    bits = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a = (low & bits) * factor + addend
    b = (low >> half) * factor + (a >> half)
    return high * factor + (b >> half), (b << half) | (a & bits)


def decimal_layout(precision: int, scale: int) -> int:
    """How a decimal is stored, in one number: bytes in all, digits of the first group, groups of nine before and after the point,
    digits of the last group; a byte each."""
    whole = precision - scale
    size = _DIGIT_BYTES[whole % 9] + whole // 9 * 4 + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]
    return int(size) | whole % 9 << 8 | whole // 9 << 16 | scale // 9 << 24 | scale % 9 << 32


@njit(**JIT)
def _decimal_group(buffer, at, size, negative, first):  # type: ignore[no-untyped-def]
    """One group of digits, or a value that is too large for them if the bytes are wrong."""
    if size == 4:
        value = np.uint64(big32(buffer, at))
    elif size == 1:
        value = np.uint64(buffer[at])
    elif size == 2:
        value = np.uint64(big16(buffer, at))
    else:
        value = np.uint64(buffer[at]) << np.uint64(16) | np.uint64(big16(buffer, at + 1))
    bits = np.uint64(8 * size)
    if first:
        # The highest bit of all is the sign, turned over so that bytes compare as numbers do.
        value ^= np.uint64(0x80) << (bits - np.uint64(8))
    if negative:
        value ^= (np.uint64(1) << bits) - np.uint64(1)
    return value


@njit(**JIT)
def put_decimal128(buffer, at, layout, memory, target):  # type: ignore[no-untyped-def]
    """A stored decimal as 16 little-endian bytes of its unscaled value; False if the bytes are no decimal."""
    negative = buffer[at] & 0x80 == 0
    head = layout >> 8 & 0xFF
    whole = layout >> 16 & 0xFF
    fraction = layout >> 24 & 0xFF
    tail = layout >> 32
    high = np.uint64(0)
    low = np.uint64(0)
    first = True
    if head:
        size = _DIGIT_BYTES[head]
        low = _decimal_group(buffer, at, size, negative, True)
        if low >= np.uint64(_POW10[head]):
            return False
        first = False
        at += size
    billion = np.uint64(1000000000)
    # Up to a group and a half of nine digits stay in 64 bits.
    narrow = head + 9 * (whole + fraction) + tail <= 18
    for _ in range(whole + fraction):
        value = _decimal_group(buffer, at, 4, negative, first)
        first = False
        at += 4
        if value >= billion:
            return False
        if narrow:
            low = low * billion + value
        else:
            high, low = _times_plus(high, low, billion, value)
    if tail:
        power = np.uint64(_POW10[tail])
        value = _decimal_group(buffer, at, _DIGIT_BYTES[tail], negative, first)
        if value >= power:
            return False
        if narrow:
            low = low * power + value
        else:
            high, low = _times_plus(high, low, power, value)
    if negative:
        low = ~low + np.uint64(1)
        high = ~high
        if low == np.uint64(0):
            high += np.uint64(1)
    store64(memory, target, low)
    store64(memory, target + 8, high)
    return True


@njit(**JIT)
def put_decimal_text(buffer, at, layout, memory, target):  # type: ignore[no-untyped-def]
    """A stored decimal as the server prints it; returns the end of the text, or -1 if the bytes are no decimal."""
    negative = buffer[at] & 0x80 == 0
    head = layout >> 8 & 0xFF
    whole = layout >> 16 & 0xFF
    fraction = layout >> 24 & 0xFF
    tail = layout >> 32
    if negative:
        memory[target] = 45
        target += 1
    first = True
    written = False
    for group in range(whole + fraction + 2):
        digits = head if group == 0 else 9 if group <= whole + fraction else tail
        if group == whole + 1:
            if not written:
                memory[target] = 48
                target += 1
            if fraction or tail:
                memory[target] = 46
                target += 1
            written = True
        if digits == 0:
            continue
        size = _DIGIT_BYTES[digits]
        value = np.int64(_decimal_group(buffer, at, size, negative, first))
        first = False
        at += size
        if value >= _POW10[digits]:
            return np.int64(-1)
        if written:
            target = put_digits(memory, target, value, digits)
        elif value > 0:
            used = 1
            while used < digits and value >= _POW10[used]:
                used += 1
            target = put_digits(memory, target, value, used)
            written = True
    return target


@njit(**JIT)
def put_uuid(stored, memory, target):  # type: ignore[no-untyped-def]
    """The text of a UUID. MariaDB keeps the parts of versions 1 to 5 last to first, so that an index follows their time."""
    swapped = stored[6] & 0x80 != 0 and 0 < stored[8] < 0x60
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            memory[target] = 45
            target += 1
        source = i
        if swapped:
            if i < 4:
                source = 12 + i
            elif i < 6:
                source = 6 + i
            elif i < 8:
                source = 2 + i
            elif i < 10:
                source = i - 2
            else:
                source = i - 10
        byte = stored[source]
        memory[target] = _HEX[byte >> 4]
        memory[target + 1] = _HEX[byte & 15]
        target += 2
    return target


@njit(**JIT)
def put_inet4(stored, start, memory, target):  # type: ignore[no-untyped-def]
    for i in range(4):
        if i:
            memory[target] = 46
            target += 1
        value = np.int64(stored[start + i])
        target = put_digits(memory, target, value, 3 if value > 99 else 2 if value > 9 else 1)
    return target


@njit(**JIT)
def put_inet6(stored, memory, target):  # type: ignore[no-untyped-def]
    """The text of an IPv6 address: the longest run of zero words is shortened, mapped IPv4 addresses are dotted."""
    best = -1
    best_words = 0
    run = -1
    for word in range(9):
        zero = word < 8 and stored[2 * word] == 0 and stored[2 * word + 1] == 0
        if zero and run < 0:
            run = word
        if not zero and run >= 0:
            if word - run > best_words:
                best = run
                best_words = word - run
            run = -1
    dotted = best == 0 and (best_words == 6 or (best_words == 5 and stored[10] == 255 and stored[11] == 255))
    word = 0
    while word < 8:
        if word == best:
            memory[target] = 58
            memory[target + 1] = 58
            target += 2
            word += best_words
            continue
        if dotted and word == 6:
            return put_inet4(stored, 12, memory, target)
        value = np.int64(stored[2 * word]) << 8 | np.int64(stored[2 * word + 1])
        digits = 4 if value > 0xFFF else 3 if value > 0xFF else 2 if value > 0xF else 1
        for i in range(digits):
            memory[target + i] = _HEX[value >> (4 * (digits - 1 - i)) & 15]
        target += digits
        word += 1
        if word < 8 and word != best:
            memory[target] = 58
            target += 1
    return target


@njit(**JIT)
def copy_bytes(memory, target, buffer, source, count):  # type: ignore[no-untyped-def]
    """Copy to a heap. Short values, which most are, go as whole words: heaps have room after their end for the surplus."""
    if count <= 256 and source + count + 16 <= buffer.shape[0]:
        at = 0
        while at < count:
            store64(memory, target + at, load64(buffer, source + at))
            store64(memory, target + at + 8, load64(buffer, source + at + 8))
            at += 16
    else:
        copy(memory, target, buffer, source, count)


@njit(**JIT)
def length_of(buffer, at, size):  # type: ignore[no-untyped-def]
    """A length of one to four bytes, little-endian."""
    if at + 4 <= buffer.shape[0]:
        return np.int64(load32(buffer, at)) & ((np.int64(1) << (8 * size)) - 1)
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buffer[at + i]) << (8 * i)
    return value


@njit(**JIT)
def fill(  # type: ignore[no-untyped-def]
    buffer, event_at, event_end, event_type, event_commit, event_ordinal, event_time, chosen,
    kind, a, b, valid_at, fixed_at, heap_at, heap_room, heap_used, memory, rows_max, absent_bytes, json_columns, state,
):  # fmt: skip
    """Decode the chosen row events, all of one table, from where state says. Returns why it stopped."""
    columns = kind.shape[0]
    bitmap = (columns + 7) >> 3
    row = state[ROWS]
    scratch = np.empty(16, np.uint8)
    # Dates come in runs: the last month's first day and length are kept.
    known = np.int64(-1)
    known_days = np.int64(0)
    known_length = np.int64(0)
    change_at = fixed_at[columns]
    position_at = fixed_at[columns + 1]
    ordinal_at = fixed_at[columns + 2]
    time_at = fixed_at[columns + 3]
    index = state[EVENT]
    resume = state[AT]
    while index < chosen.shape[0]:
        event = chosen[index]
        at = event_at[event]
        end = event_end[event]
        code = event_type[event]
        commit = np.uint64(event_commit[event])
        ordinal = np.uint64(event_ordinal[event])
        time = np.uint64(event_time[event] * 1000000)
        state[EVENT] = index
        # Header of the event's data: extra data, number of columns, one or two bitmaps of the columns that images hold.
        q = at + 27
        if code >= 30:
            if end - q < 2:
                return CORRUPT
            extra = np.int64(load16(buffer, q))
            if extra < 2 or extra > end - q:
                return CORRUPT
            q += extra
        if end - q < 1:
            return CORRUPT
        count = np.int64(buffer[q])
        q += 1
        if count == 252:
            if end - q < 2:
                return CORRUPT
            count = np.int64(load16(buffer, q))
            q += 2
        elif count > 252:
            return CORRUPT
        if count != columns:
            return CORRUPT
        update = code == 24 or code == 31 or code == 39
        delete = code == 25 or code == 32
        present_before = q
        q += bitmap
        present_after = q
        if update:
            q += bitmap
        if q > end:
            return CORRUPT
        held_before = held_columns(buffer, present_before, columns)
        held_after = held_columns(buffer, present_after, columns) if update else 0
        if resume:
            q = at + resume
            resume = 0
        while q < end:
            unit_at = q
            unit_row = row
            full = 0
            if row + 2 > rows_max:
                state[AT] = unit_at - at
                state[ROWS] = row
                return BATCH_FULL
            for half in range(2 if update else 1):
                present = present_after if half else present_before
                held = held_after if half else held_before
                partial_at = np.int64(-1)
                if half and code == 39:
                    # Value options, then which JSON columns of the table hold differences.
                    if q >= end:
                        return CORRUPT
                    options = buffer[q]
                    q += 1
                    if options > 1:
                        return CORRUPT
                    if options == 1:
                        partial_at = q
                        q += (json_columns + 7) >> 3
                nulls = q
                q += (held + 7) >> 3
                if q > end:
                    return CORRUPT
                whole = held == columns
                # Nearly always one word holds all bits, and it stays in a register.
                narrow = whole and columns <= 64 and nulls + 8 <= buffer.shape[0]
                null_bits = load64(buffer, nulls) if narrow else np.uint64(0)
                bit = 0
                for c in range(columns):
                    k = kind[c]
                    f = fixed_at[c]
                    if narrow:
                        missing = null_bits & np.uint64(1) != np.uint64(0)
                        null_bits >>= np.uint64(1)
                    elif whole:
                        missing = buffer[nulls + (c >> 3)] >> (c & 7) & 1 != 0
                    elif buffer[present + (c >> 3)] >> (c & 7) & 1 == 0:
                        missing = True
                    else:
                        missing = buffer[nulls + (bit >> 3)] >> (bit & 7) & 1 != 0
                        bit += 1
                    if missing:
                        # NULL, or not in this image; the bitmap of absent columns tells the two apart.
                        memory[valid_at[c] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                        if heap_room[c] > 0:
                            store32(memory, f + 4 * (row + 1), np.uint64(heap_used[c]))
                        elif k == kinds.ENUM:
                            store32(memory, f + 4 * row, np.uint64(0))
                        elif k == kinds.SET:
                            store64(memory, f + 8 * row, np.uint64(0))
                        elif k == kinds.BOOL:
                            memory[f + row] = 0
                        continue
                    valid = True
                    if k == kinds.INT64 or k == kinds.DOUBLE:
                        if end - q < 8:
                            return CORRUPT
                        store64(memory, f + 8 * row, load64(buffer, q))
                        q += 8
                    elif k == kinds.INT32 or k == kinds.FLOAT:
                        if end - q < 4:
                            return CORRUPT
                        store32(memory, f + 4 * row, np.uint64(load32(buffer, q)))
                        q += 4
                    elif kinds.SHORT_BYTES <= k <= kinds.BLOB:
                        if k == kinds.SHORT_BYTES:
                            if end - q < 1:
                                return CORRUPT
                            n = np.int64(buffer[q])
                            q += 1
                        elif k == kinds.LONG_BYTES:
                            if end - q < 2:
                                return CORRUPT
                            n = np.int64(load16(buffer, q))
                            q += 2
                        else:
                            size = a[c]
                            if end - q < size:
                                return CORRUPT
                            n = length_of(buffer, q, size)
                            q += size
                        if n > end - q:
                            return CORRUPT
                        used = heap_used[c]
                        if used + n > heap_room[c]:
                            full = 1
                            state[COLUMN] = c
                            state[NEED] = n
                            break
                        copy_bytes(memory, heap_at[c] + used, buffer, q, n)
                        used += n
                        heap_used[c] = used
                        store32(memory, f + 4 * (row + 1), np.uint64(used))
                        q += n
                    elif k == kinds.INT8:
                        if end - q < 1:
                            return CORRUPT
                        memory[f + row] = buffer[q]
                        q += 1
                    elif k == kinds.UINT8:
                        if end - q < 1:
                            return CORRUPT
                        store16(memory, f + 2 * row, np.uint64(buffer[q]))
                        q += 1
                    elif k == kinds.INT16:
                        if end - q < 2:
                            return CORRUPT
                        store16(memory, f + 2 * row, np.uint64(load16(buffer, q)))
                        q += 2
                    elif k == kinds.UINT16:
                        if end - q < 2:
                            return CORRUPT
                        store32(memory, f + 4 * row, np.uint64(load16(buffer, q)))
                        q += 2
                    elif k == kinds.INT24 or k == kinds.UINT24:
                        if end - q < 3:
                            return CORRUPT
                        v = np.int64(load16(buffer, q)) | np.int64(buffer[q + 2]) << 16
                        if k == kinds.INT24 and v & 0x800000:
                            v -= 0x1000000
                        store32(memory, f + 4 * row, np.uint64(v))
                        q += 3
                    elif k == kinds.UINT32:
                        if end - q < 4:
                            return CORRUPT
                        store64(memory, f + 8 * row, np.uint64(load32(buffer, q)))
                        q += 4
                    elif k == kinds.UINT64:
                        if end - q < 8:
                            return CORRUPT
                        store64(memory, f + 16 * row, load64(buffer, q))
                        store64(memory, f + 16 * row + 8, np.uint64(0))
                        q += 8
                    elif k == kinds.DECIMAL:
                        n = a[c] & 0xFF
                        if end - q < n:
                            return CORRUPT
                        if not put_decimal128(buffer, q, a[c], memory, f + 16 * row):
                            return CORRUPT
                        q += n
                    elif k == kinds.DATE or k == kinds.DATE_TEXT:
                        if end - q < 3:
                            return CORRUPT
                        v = np.int64(load16(buffer, q)) | np.int64(buffer[q + 2]) << 16
                        q += 3
                        year = v >> 9
                        month = v >> 5 & 15
                        day = v & 31
                        if year > 9999 or month > 12:
                            return CORRUPT
                        if k == kinds.DATE_TEXT:
                            used = heap_used[c]
                            if used + TEXT_ROOM > heap_room[c]:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = TEXT_ROOM
                                break
                            used = put_date(memory, heap_at[c] + used, year, month, day) - heap_at[c]
                            heap_used[c] = used
                            store32(memory, f + 4 * (row + 1), np.uint64(used))
                        else:
                            months = year * 13 + month
                            if months != known:
                                known = months
                                known_days = days_of(year, month, 0)
                                known_length = month_days(year, month)
                            if 1 <= day <= known_length:
                                store32(memory, f + 4 * row, np.uint64(known_days + day))
                            else:
                                valid = False
                                state[NULLED_DATES] += 1
                    elif k == kinds.DATETIME or k == kinds.DATETIME_TEXT or k == kinds.OLD_DATETIME or k == kinds.OLD_DATETIME_TEXT:
                        fsp = a[c]
                        micros = np.int64(0)
                        if k == kinds.OLD_DATETIME or k == kinds.OLD_DATETIME_TEXT:
                            if end - q < 8:
                                return CORRUPT
                            v = np.int64(load64(buffer, q))
                            q += 8
                            if v < 0:
                                return CORRUPT
                            day_part = v // 1000000
                            clock = v - day_part * 1000000
                            year = day_part // 10000
                            month = day_part // 100 % 100
                            day = day_part % 100
                            hour = clock // 10000
                            minute = clock // 100 % 100
                            second = clock % 100
                        else:
                            n = 5 + ((fsp + 1) >> 1)
                            if end - q < n:
                                return CORRUPT
                            v = (np.int64(buffer[q]) << 32 | np.int64(big32(buffer, q + 1))) - 0x8000000000
                            if v < 0:
                                return CORRUPT
                            micros = _fraction(buffer, q + 5, fsp)
                            q += n
                            months = v >> 22
                            year = months // 13
                            month = months % 13
                            day = v >> 17 & 31
                            hour = v >> 12 & 31
                            minute = v >> 6 & 63
                            second = v & 63
                        if year > 9999 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59 or micros > 999999:
                            return CORRUPT
                        if k == kinds.DATETIME_TEXT or k == kinds.OLD_DATETIME_TEXT:
                            used = heap_used[c]
                            if used + TEXT_ROOM > heap_room[c]:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = TEXT_ROOM
                                break
                            target = put_date(memory, heap_at[c] + used, year, month, day)
                            memory[target] = 32
                            used = put_clock(memory, target + 1, hour, minute, second, micros, fsp) - heap_at[c]
                            heap_used[c] = used
                            store32(memory, f + 4 * (row + 1), np.uint64(used))
                        else:
                            months = year * 13 + month
                            if months != known:
                                known = months
                                known_days = days_of(year, month, 0)
                                known_length = month_days(year, month)
                            if 1 <= day <= known_length:
                                seconds = (known_days + day) * 86400 + hour * 3600 + minute * 60 + second
                                store64(memory, f + 8 * row, np.uint64(seconds * 1000000 + micros))
                            else:
                                valid = False
                                state[NULLED_DATES] += 1
                    elif k == kinds.TIMESTAMP or k == kinds.TIMESTAMP_TEXT or k == kinds.OLD_TIMESTAMP or k == kinds.OLD_TIMESTAMP_TEXT:
                        fsp = a[c]
                        n = 4 + ((fsp + 1) >> 1)
                        if end - q < n:
                            return CORRUPT
                        if k == kinds.OLD_TIMESTAMP or k == kinds.OLD_TIMESTAMP_TEXT:
                            v = np.int64(load32(buffer, q))
                        else:
                            v = np.int64(big32(buffer, q))
                        micros = _fraction(buffer, q + 4, fsp)
                        q += n
                        if micros > 999999:
                            return CORRUPT
                        if k == kinds.TIMESTAMP_TEXT or k == kinds.OLD_TIMESTAMP_TEXT:
                            used = heap_used[c]
                            if used + TEXT_ROOM > heap_room[c]:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = TEXT_ROOM
                                break
                            target = heap_at[c] + used
                            clock = np.int64(0)
                            if v == 0 and micros == 0:
                                target = put_date(memory, target, 0, 0, 0)
                            else:
                                days = v // 86400
                                clock = v - days * 86400
                                # Days to a civil date, by eras of 400 years that begin on the first of March.
                                shifted = days + 719468
                                era = shifted // 146097
                                day_of_era = shifted - era * 146097
                                year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
                                day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
                                shifted_month = (5 * day_of_year + 2) // 153
                                day = day_of_year - (153 * shifted_month + 2) // 5 + 1
                                month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
                                year = year_of_era + era * 400 + (1 if month <= 2 else 0)
                                target = put_date(memory, target, year, month, day)
                            memory[target] = 32
                            used = put_clock(memory, target + 1, clock // 3600, clock // 60 % 60, clock % 60, micros, fsp) - heap_at[c]
                            heap_used[c] = used
                            store32(memory, f + 4 * (row + 1), np.uint64(used))
                        elif v == 0 and micros == 0:
                            valid = False
                            state[NULLED_DATES] += 1
                        else:
                            store64(memory, f + 8 * row, np.uint64(v * 1000000 + micros))
                    elif k == kinds.TIME or k == kinds.TIME_TEXT or k == kinds.OLD_TIME or k == kinds.OLD_TIME_TEXT:
                        fsp = a[c]
                        n = 3 + ((fsp + 1) >> 1)
                        if end - q < n:
                            return CORRUPT
                        if k == kinds.OLD_TIME or k == kinds.OLD_TIME_TEXT:
                            v = np.int64(load16(buffer, q)) | np.int64(buffer[q + 2]) << 16
                            if v & 0x800000:
                                v -= 0x1000000
                            negative = bool(v < 0)
                            v = abs(v)
                            hour = v // 10000
                            minute = v // 100 % 100
                            second = v % 100
                            micros = np.int64(0)
                        else:
                            if fsp > 4:
                                v = (np.int64(big32(buffer, q)) << 16 | np.int64(big16(buffer, q + 4))) - 0x800000000000
                            else:
                                v = (np.int64(buffer[q]) << 16 | np.int64(big16(buffer, q + 1))) - 0x800000
                                if fsp == 0:
                                    v <<= 24
                                elif fsp <= 2:
                                    v = v << 8 | np.int64(buffer[q + 3])
                                    sign = -1 if v < 0 else 1
                                    v = abs(v)
                                    v = sign * ((v >> 8 << 24) + (v & 0xFF) * 10000)
                                else:
                                    v = v << 16 | np.int64(big16(buffer, q + 3))
                                    sign = -1 if v < 0 else 1
                                    v = abs(v)
                                    v = sign * ((v >> 16 << 24) + (v & 0xFFFF) * 100)
                            negative = bool(v < 0)
                            v = abs(v)
                            hour = v >> 36 & 1023
                            minute = v >> 30 & 63
                            second = v >> 24 & 63
                            micros = v & 0xFFFFFF
                        q += n
                        if hour > 838 or minute > 59 or second > 59 or micros > 999999:
                            return CORRUPT
                        if k == kinds.TIME_TEXT or k == kinds.OLD_TIME_TEXT:
                            used = heap_used[c]
                            if used + TEXT_ROOM > heap_room[c]:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = TEXT_ROOM
                                break
                            target = heap_at[c] + used
                            if negative:
                                memory[target] = 45
                                target += 1
                            used = put_clock(memory, target, hour, minute, second, micros, fsp) - heap_at[c]
                            heap_used[c] = used
                            store32(memory, f + 4 * (row + 1), np.uint64(used))
                        else:
                            v = (hour * 3600 + minute * 60 + second) * 1000000 + micros
                            store64(memory, f + 8 * row, np.uint64(-v if negative else v))
                    elif k == kinds.YEAR:
                        if end - q < 1:
                            return CORRUPT
                        v = np.int64(buffer[q])
                        store32(memory, f + 4 * row, np.uint64(v + 1900 if v else 0))
                        q += 1
                    elif k == kinds.ENUM:
                        size = a[c]
                        if end - q < size:
                            return CORRUPT
                        v = np.int64(buffer[q]) if size == 1 else np.int64(load16(buffer, q))
                        if v > b[c]:
                            return CORRUPT
                        store32(memory, f + 4 * row, np.uint64(v))
                        q += size
                    elif k == kinds.SET:
                        size = a[c]
                        if end - q < size:
                            return CORRUPT
                        mask = np.uint64(0)
                        for i in range(size):
                            mask |= np.uint64(buffer[q + i]) << np.uint64(8 * i)
                        if b[c] < 64 and mask >> np.uint64(b[c]):
                            return CORRUPT
                        store64(memory, f + 8 * row, mask)
                        q += size
                    elif k == kinds.BOOL:
                        if end - q < 1 or buffer[q] > 1:
                            return CORRUPT
                        memory[f + row] = buffer[q]
                        q += 1
                    elif k == kinds.BITS:
                        n = a[c]
                        if end - q < n:
                            return CORRUPT
                        if b[c] & 7 and buffer[q] >> (b[c] & 7):
                            return CORRUPT
                        used = heap_used[c]
                        if used + n > heap_room[c]:
                            full = 1
                            state[COLUMN] = c
                            state[NEED] = n
                            break
                        copy_bytes(memory, heap_at[c] + used, buffer, q, n)
                        used += n
                        heap_used[c] = used
                        store32(memory, f + 4 * (row + 1), np.uint64(used))
                        q += n
                    elif k == kinds.PADDED or (kinds.UUID <= k <= kinds.INET4):
                        size = b[c]
                        if end - q < size:
                            return CORRUPT
                        n = np.int64(buffer[q]) if size == 1 else np.int64(load16(buffer, q))
                        q += size
                        if n > end - q or n > a[c]:
                            return CORRUPT
                        used = heap_used[c]
                        room = a[c] if k == kinds.PADDED else np.int64(TEXT_ROOM)
                        if used + room > heap_room[c]:
                            full = 1
                            state[COLUMN] = c
                            state[NEED] = room
                            break
                        if k == kinds.PADDED:
                            copy(memory, heap_at[c] + used, buffer, q, n)
                            for i in range(n, a[c]):
                                memory[heap_at[c] + used + i] = 0
                            used += a[c]
                        else:
                            for i in range(16):
                                scratch[i] = buffer[q + i] if i < n else 0
                            if k == kinds.UUID:
                                used = put_uuid(scratch, memory, heap_at[c] + used) - heap_at[c]
                            elif k == kinds.INET6:
                                used = put_inet6(scratch, memory, heap_at[c] + used) - heap_at[c]
                            else:
                                used = put_inet4(scratch, 0, memory, heap_at[c] + used) - heap_at[c]
                        heap_used[c] = used
                        store32(memory, f + 4 * (row + 1), np.uint64(used))
                        q += n
                    elif k == kinds.DECIMAL_TEXT:
                        n = a[c] & 0xFF
                        if end - q < n:
                            return CORRUPT
                        used = heap_used[c]
                        if used + TEXT_ROOM > heap_room[c]:
                            full = 1
                            state[COLUMN] = c
                            state[NEED] = TEXT_ROOM
                            break
                        target = put_decimal_text(buffer, q, a[c], memory, heap_at[c] + used)
                        if target < 0:
                            return CORRUPT
                        used = target - heap_at[c]
                        heap_used[c] = used
                        store32(memory, f + 4 * (row + 1), np.uint64(used))
                        q += n
                    elif k == kinds.JSON or k == kinds.JSON_RAW:
                        size = a[c]
                        if end - q < size:
                            return CORRUPT
                        n = np.int64(0)
                        for i in range(size):
                            n |= np.int64(buffer[q + i]) << (8 * i)
                        q += size
                        if n > end - q:
                            return CORRUPT
                        used = heap_used[c]
                        differences = partial_at >= 0 and buffer[partial_at + (b[c] >> 3)] >> (b[c] & 7) & 1 == 1
                        if k == kinds.JSON_RAW:
                            if used + n + 1 > heap_room[c]:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = n + 1
                                break
                            memory[heap_at[c] + used] = 1 if differences else 0
                            copy(memory, heap_at[c] + used + 1, buffer, q, n)
                            used += n + 1
                        else:
                            if differences:
                                return CORRUPT
                            written = json_text(buffer, q, n, memory, heap_at[c] + used, heap_room[c] - used)
                            if written == -2:
                                full = 1
                                state[COLUMN] = c
                                state[NEED] = max(2 * (heap_room[c] - used), 4 * n + TEXT_ROOM)
                                break
                            if written < 0:
                                return CORRUPT
                            used += written
                        heap_used[c] = used
                        store32(memory, f + 4 * (row + 1), np.uint64(used))
                        q += n
                    else:
                        return CORRUPT
                    if not valid:
                        memory[valid_at[c] + (row >> 3)] &= ~np.uint8(1 << (row & 7))
                if full:
                    break
                if not whole and absent_bytes == 0:
                    return CORRUPT
                change = DELETE if delete else ((UPDATE_AFTER if half else UPDATE_BEFORE) if update else INSERT)
                memory[change_at + row] = change
                store64(memory, position_at + 8 * row, commit)
                store32(memory, ordinal_at + 4 * row, ordinal)
                store64(memory, time_at + 8 * row, time)
                for i in range(absent_bytes):
                    spare = 0xFF if (i + 1) * 8 <= columns else (1 << (columns & 7)) - 1
                    memory[fixed_at[columns + SYSTEM_COLUMNS] + absent_bytes * row + i] = ~buffer[present + i] & spare
                row += 1
            if full:
                # Take the unit back whole: heaps end where its first row began, its values are valid again until found NULL.
                for c in range(columns):
                    if heap_room[c] > 0:
                        heap_used[c] = np.int64(load32(memory, fixed_at[c] + 4 * unit_row))
                    for i in range(unit_row, unit_row + 2):
                        memory[valid_at[c] + (i >> 3)] |= np.uint8(1 << (i & 7))
                state[AT] = unit_at - at
                state[ROWS] = unit_row
                return BATCH_FULL if unit_row > 0 else HEAP_TOO_SMALL
            if q == unit_at:
                # Images without a byte: nothing is held of any column.
                return CORRUPT
        if q != end:
            return CORRUPT
        index += 1
    state[EVENT] = index
    state[AT] = 0
    state[ROWS] = row
    return DONE
