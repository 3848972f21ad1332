"""MySQL's binary JSON, as the log and the storage engine hold it, to the text that SELECT gives.

Laws:

- The text is the server's, byte for byte (8.0.33): `", "` and `": "` between, members in the order stored, a double in its
  shortest form that reads back as the same bits, DECIMAL with all its digits, DATE, TIME and DATETIME in quotes, anything else
  opaque as `"base64:type<code>:<base64>"`, with the two characters `\\n` after each 76 characters of base64.
- An empty value is the text `null`: the server writes no bytes for the default of a NOT NULL column.
- Bytes are not trusted. No read leaves the document, no write leaves the room, text is checked to be UTF-8. A container lies
  inside its parent and after the parent's header, and all parts together are no longer than the document, so the work is linear
  whatever the offsets say.

Layout of a document: one byte of type, then the value. Numbers are little-endian.

    0 1     small, large object    count, size, count x (key offset, key length: 2), count x (type: 1, offset or value), keys,
                                   values
    2 3     small, large array     count, size, count x (type: 1, offset or value), values
            counts, sizes and offsets have 2 bytes in a small and 4 in a large container; offsets count from `count`.
            Literals and 16-bit integers, in large containers also 32-bit integers, stand in the place of their offset.
    4       literal                1 byte: 0 null, 1 true, 2 false
    5 .. 10 int16, uint16, int32, uint32, int64, uint64
    11      double                 8 bytes
    12      string                 length, in 7-bit groups, low first, the high bit says that more follow; UTF-8
    15      opaque                 1 byte: a column type's code; length as above; bytes

An in-place update of the server leaves holes in a document, so its parts need not touch and need not stand in order.

Partial updates (`binlog_row_value_options=PARTIAL_JSON`) come as PARTIAL_UPDATE_ROWS_EVENT, type 39. It is an UPDATE_ROWS_EVENT
of version 2 (type 31) in all but one thing: header, extra data, number of columns, two bitmaps of columns, and in each row the
before image are the same; the after image has a prologue.

    value options     length-encoded integer: 1 if any value of this row is partial; 0 if none is, and then no bitmap follows
    partial values    one bit for each column of type 245 of the *table*, in the table's order, whether the image has the column
                      or not; low bit first, (such columns + 7) / 8 bytes
    NULL bitmap       of the columns in the image, as in type 31
    values            as in type 31, but a column whose partial bit is set has, after its length of 4 bytes, differences for
                      `apply_diffs` in the place of the document

Rows of one event choose one by one. A value is written in full where that is shorter, where it is NULL before or after, or where
the statement assigns anything else than JSON_SET, JSON_REPLACE or JSON_REMOVE of the same column. With binlog_row_image=FULL an
unchanged column is partial with length 0: no differences. They apply to the column's value in the before image; FULL has it
there, MINIMAL does not, and then the value can't be had from the event alone.

A difference is one byte of operation (0 replace, 1 insert, 2 remove), the path as text with a length-encoded length and, but for
remove, a document with a length-encoded length.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from snowmelt.columnar.memory import JIT, load16, load32, load64, store64
from snowmelt.errors import Corrupt

CORRUPT = -1
"""What the kernel returns for bytes that are no document."""
ROOM_TOO_SMALL = -2
"""What the kernel returns for text that does not fit."""

DEPTH_MAX = 100
"""Containers in containers; the server refuses more."""

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY, LITERAL = 0, 1, 2, 3, 4
INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING, OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15
TIMESTAMP, DATE, TIME, DATETIME, DECIMAL = 7, 10, 11, 12, 246

DECIMAL_DIGITS_MAX = 81
"""A DECIMAL has 65 digits at most, but JSON counts those of whole groups of nine, and the server has nine groups."""
DECIMAL_SCALE_MAX = 30
NUMBER_ROOM = DECIMAL_DIGITS_MAX + 3
"""No number is longer: the digits, a sign, a point and perhaps a zero before it."""


def _words(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8).copy()


_NULL, _TRUE, _FALSE = _words(b"null"), _words(b"true"), _words(b"false")
_BASE64_PREFIX = _words(b'"base64:type')
_BASE64 = _words(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_BASE64_LINE = 76
_PAIRS = _words(b"".join(b"%02d" % number for number in range(100)))
_ZEROS = ((8, 100_000_000), (4, 10_000), (2, 100), (1, 10))
_HEX = _words(b"0123456789abcdef")
_SHORT_ESCAPES = np.zeros(32, np.uint8)
for _code, _letter in ((8, b"b"), (9, b"t"), (10, b"n"), (12, b"f"), (13, b"r")):
    _SHORT_ESCAPES[_code] = _letter[0]

_POWER_MIN, _POWER_MAX = -292, 324


def _powers_of_ten() -> npt.NDArray[np.uint64]:
    """10**k for each k that a double needs: its first 128 bits, rounded up, as two words, high first."""
    powers = np.empty((_POWER_MAX - _POWER_MIN + 1, 2), np.uint64)
    for k in range(_POWER_MIN, _POWER_MAX + 1):
        above, below = (10**k, 1) if k >= 0 else (1, 10**-k)
        shift = 127 - (above.bit_length() - 1 if k >= 0 else -below.bit_length())
        scaled = -((-above << shift) // below) if shift >= 0 else -(-above // (below << -shift))
        powers[k - _POWER_MIN] = scaled >> 64, scaled & (2**64 - 1)
    return powers


_POWERS = _powers_of_ten()


@njit(**JIT)
def _times_high(a: Any, b: Any) -> Any:
    """The high word of a product of two uint64."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half)


@njit(**JIT)
def _scaled_to_odd(row: Any, factor: Any) -> Any:
    """factor * power / 2**128 in whole numbers, whose last bit is set if anything was cut off."""
    high, low = _POWERS[row, 0], _POWERS[row, 1]
    carry = _times_high(low, factor)
    under = high * factor + carry
    over = _times_high(high, factor) + np.uint64(under < carry)
    return over | np.uint64(under > np.uint64(1))


@njit(**JIT)
def shortest_decimal(bits: Any) -> Any:
    """(digits, exponent) of a positive finite double: the shortest digits * 10**exponent that reads back as these bits, and of
    those the nearest to them. This is Raffaello Giulietti's method: one scaling of the number and of both ends of its interval.
    Zeros at the end of the digits are left to the caller.
    """
    fraction = bits & np.uint64((1 << 52) - 1)
    biased = np.int64(bits >> np.uint64(52))
    c = fraction | np.uint64(1 << 52) if biased else fraction
    q = biased - 1075 if biased else np.int64(-1074)
    if -52 <= q <= 0 and c & np.uint64((np.int64(1) << -q) - 1) == 0:
        return c >> np.uint64(-q), np.int64(0)
    uneven = c & np.uint64(1)
    nearer_below = np.int64(fraction == 0 and biased > 1)
    k = (q * 1262611 - nearer_below * 524031) >> 22
    shift = np.uint64(q + ((-k * 1741647) >> 19) + 1)
    row = -k - _POWER_MIN
    four = np.uint64(4)
    middle = _scaled_to_odd(row, (c * four) << shift)
    lower = _scaled_to_odd(row, (c * four - np.uint64(2 - nearer_below)) << shift) + uneven
    upper = _scaled_to_odd(row, (c * four + np.uint64(2)) << shift) - uneven
    digits = middle // four
    if digits >= 10:
        tens = digits // np.uint64(10)
        below, above = lower <= tens * np.uint64(40), tens * np.uint64(40) + np.uint64(40) <= upper
        if below != above:
            return tens + np.uint64(above), k + 1
    below, above = lower <= digits * four, digits * four + four <= upper
    if below != above:
        return digits + np.uint64(above), k
    half = digits * four + np.uint64(2)
    return digits + np.uint64(middle > half or (middle == half and digits & np.uint64(1) == 1)), k


@njit(**JIT, forceinline=True)
def _put_digits(target: Any, at: Any, value: Any, width: Any) -> Any:
    """`value` in `width` decimal digits."""
    hundred = np.uint64(100)
    place = at + width
    while place - at >= 2:
        rest = value // hundred
        pair = np.int64(value - rest * hundred) * 2
        place -= 2
        target[place], target[place + 1] = _PAIRS[pair], _PAIRS[pair + 1]
        value = rest
    if place > at:
        target[at] = np.uint8(48) + np.uint8(value)
    return at + width


@njit(**JIT, forceinline=True)
def _digits_of(value: Any) -> Any:
    count = 1
    limit = np.uint64(10)
    # A uint64 has 20 digits at most, and 10**20 is none.
    while value >= limit and count < 20:
        limit *= np.uint64(10)
        count += 1
    return count


@njit(**JIT)
def _put_double(target: Any, at: Any, bits: Any) -> Any:
    """The server's form of a finite double, into NUMBER_ROOM. A number whose point stands within 15 places of where its digits
    start is written without an exponent; so is one with 16 places before the point and one after it, which is shorter so.
    """
    if bits >> np.uint64(63):
        target[at] = 45
        at += 1
        bits &= np.uint64((1 << 63) - 1)
    if bits == 0:
        target[at], target[at + 1], target[at + 2] = 48, 46, 48
        return at + 3
    digits, exponent = shortest_decimal(bits)
    for zeros, power in _ZEROS:
        while digits % np.uint64(power) == 0:
            digits //= np.uint64(power)
            exponent += zeros
    count = _digits_of(digits)
    point = count + exponent
    if -15 < point <= 0:
        target[at], target[at + 1] = 48, 46
        for place in range(at + 2, at + 2 - point):
            target[place] = 48
        return _put_digits(target, at + 2 - point, digits, count)
    if point > 0 and count > point:
        _put_digits(target, at + 1, digits, count)
        for place in range(at, at + point):
            target[place] = target[place + 1]
        target[at + point] = 46
        return at + count + 1
    if 0 < point <= 15:
        at = _put_digits(target, at, digits, count)
        for _ in range(point - count):
            target[at] = 48
            at += 1
        target[at], target[at + 1] = 46, 48
        return at + 2
    _put_digits(target, at + 1, digits, count)
    target[at] = target[at + 1]
    if count == 1:
        at += 1
    else:
        target[at + 1] = 46
        at += count + 1
    target[at] = 101
    at += 1
    power = point - 1
    if power < 0:
        target[at] = 45
        at += 1
        power = -power
    return _put_digits(target, at, np.uint64(power), _digits_of(np.uint64(power)))


@njit(**JIT, forceinline=True)
def _put_integer(target: Any, at: Any, value: Any, negative: Any) -> Any:
    """A uint64; of a negative number its two's complement."""
    if negative:
        target[at] = 45
        at += 1
        value = ~value + np.uint64(1)
    return _put_digits(target, at, value, _digits_of(value))


@njit(**JIT, forceinline=True)
def _put_word(word: Any, target: Any, at: Any, end: Any) -> Any:
    if end - at < len(word):
        return ROOM_TOO_SMALL
    for byte in word:
        target[at] = byte
        at += 1
    return at


@njit(**JIT)
def _sequence_length(source: Any, at: Any, end: Any) -> Any:
    """Bytes of the UTF-8 sequence that starts with a byte over 127; 0 if there is none."""
    first = source[at]
    if 0xC2 <= first <= 0xDF:
        length = 2
    elif 0xE0 <= first <= 0xEF:
        length = 3
    elif 0xF0 <= first <= 0xF4:
        length = 4
    else:
        return 0
    if end - at < length:
        return 0
    for place in range(at + 1, at + length):
        if source[place] & 0xC0 != 0x80:
            return 0
    second = source[at + 1]
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    return length


@njit(**JIT)
def _put_string(source: Any, at: Any, length: Any, target: Any, to: Any, end: Any) -> Any:
    """A string in quotes, escaped; eight plain ASCII characters at a time where they come so."""
    ones, tops = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    stop = at + length
    if end - to < length + 2:
        return ROOM_TOO_SMALL
    target[to] = 34
    to += 1
    while at < stop:
        if stop - at >= 8 and end - to >= 8:
            eight = load64(source, at)
            quotes, slashes = eight ^ (ones * np.uint64(34)), eight ^ (ones * np.uint64(92))
            # Where no byte has its top bit set, a borrow marks a control character, a quote or a backslash.
            special = eight | (eight - ones * np.uint64(32)) | (quotes - ones) | (slashes - ones)
            if special & tops == 0:
                store64(target, to, eight)
                at += 8
                to += 8
                continue
        byte = source[at]
        if byte > 127:
            count = _sequence_length(source, at, stop)
            if count == 0:
                return CORRUPT
            if end - to < count:
                return ROOM_TOO_SMALL
            for place in range(count):
                target[to + place] = source[at + place]
            at += count
            to += count
            continue
        at += 1
        if byte >= 32 and byte != 34 and byte != 92:
            if to >= end:
                return ROOM_TOO_SMALL
            target[to] = byte
            to += 1
            continue
        short = byte if byte >= 32 else _SHORT_ESCAPES[byte]
        if end - to < (2 if short else 6):
            return ROOM_TOO_SMALL
        target[to] = 92
        if short:
            target[to + 1] = short
            to += 2
        else:
            target[to + 1], target[to + 2], target[to + 3] = 117, 48, 48
            target[to + 4], target[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            to += 6
    if to >= end:
        return ROOM_TOO_SMALL
    target[to] = 34
    return to + 1


@njit(**JIT)
def _variable_length(source: Any, at: Any, end: Any) -> Any:
    """(length, where it ends) of a length in 7-bit groups; the length is negative where there is none."""
    length = np.int64(0)
    for group in range(5):
        if at >= end:
            break
        byte = np.int64(source[at])
        at += 1
        length |= (byte & 127) << (7 * group)
        if byte < 128:
            return length, at
    return np.int64(-1), at


@njit(**JIT)
def _put_base64(kind: Any, source: Any, at: Any, length: Any, target: Any, to: Any, end: Any) -> Any:
    """`"base64:type<kind>:` and the bytes; a line break, which JSON writes as two characters, stands between lines of base64."""
    characters = (length + 2) // 3 * 4
    breaks = (characters - 1) // _BASE64_LINE if characters else 0
    width = _digits_of(np.uint64(kind))
    if end - to < len(_BASE64_PREFIX) + width + 2 + characters + 2 * breaks:
        return ROOM_TOO_SMALL
    to = _put_digits(target, _put_word(_BASE64_PREFIX, target, to, end), np.uint64(kind), width)
    target[to] = 58
    to += 1
    for group in range(characters // 4):
        if group and group % (_BASE64_LINE // 4) == 0:
            target[to], target[to + 1] = 92, 110
            to += 2
        left = length - 3 * group
        place = at + 3 * group
        bits = np.int64(source[place]) << 16
        if left > 1:
            bits |= np.int64(source[place + 1]) << 8
        if left > 2:
            bits |= np.int64(source[place + 2])
        target[to], target[to + 1] = _BASE64[bits >> 18], _BASE64[bits >> 12 & 63]
        target[to + 2] = _BASE64[bits >> 6 & 63] if left > 1 else 61
        target[to + 3] = _BASE64[bits & 63] if left > 2 else 61
        to += 4
    target[to] = 34
    return to + 1


@njit(**JIT)
def _put_decimal(source: Any, at: Any, length: Any, target: Any, to: Any) -> Any:
    """A DECIMAL, into NUMBER_ROOM: precision, scale, then groups of nine digits in four big-endian bytes, shorter at both ends.
    The first bit is set for numbers from 0 up; below 0 all bits are inverted.
    """
    if length < 3:
        return CORRUPT
    precision, scale = np.int64(source[at]), np.int64(source[at + 1])
    if precision < 1 or precision > DECIMAL_DIGITS_MAX or scale > DECIMAL_SCALE_MAX or scale > precision:
        return CORRUPT
    whole = precision - scale
    at += 2
    stop = at + length - 2
    negative = source[at] < 128
    flip = np.uint8(255) if negative else np.uint8(0)
    if negative:
        target[to] = 45
        to += 1
    first = True
    started = False
    for part in range(2):
        left = whole if part == 0 else scale
        if part == 1:
            if not started:
                target[to] = 48
                to += 1
            if scale:
                target[to] = 46
                to += 1
        while left > 0:
            count = np.int64(9)
            if part == 0 and left % 9:
                count = left % 9
            elif left < 9:
                count = left
            wide = (count + 1) // 2 if count < 7 else 4
            if stop - at < wide:
                return CORRUPT
            group = np.uint64(0)
            limit = np.uint64(1)
            for place in range(wide):
                byte = source[at + place] ^ flip
                if first:
                    byte ^= np.uint8(128)
                    first = False
                group = group << np.uint64(8) | np.uint64(byte)
            for _ in range(count):
                limit *= np.uint64(10)
            if group >= limit:
                return CORRUPT
            at += wide
            left -= count
            if part == 0 and not started:
                if group:
                    to = _put_digits(target, to, group, _digits_of(group))
                    started = True
            else:
                to = _put_digits(target, to, group, count)
    return to if at == stop else CORRUPT


@njit(**JIT)
def _put_temporal(kind: Any, source: Any, at: Any, length: Any, target: Any, to: Any, end: Any) -> Any:
    """A DATE, TIME, DATETIME or TIMESTAMP of 8 bytes: from the low end 24 bits of microseconds, 6 of seconds, 6 of minutes, 5 of
    hours, 5 of the day, then year * 13 + month. A TIME has 10 bits of hours and no date, and is negated as a whole below 0.
    """
    if length != 8:
        return CORRUPT
    packed = np.int64(load64(source, at))
    negative = packed < 0
    if negative:
        packed = -packed
    micros, second, minute = np.uint64(packed & 0xFFFFFF), np.uint64(packed >> 24 & 63), np.uint64(packed >> 30 & 63)
    hour = np.uint64(packed >> 36 & (1023 if kind == TIME else 31))
    day, month, year = np.uint64(packed >> 41 & 31), np.uint64((packed >> 46) % 13), np.uint64((packed >> 46) // 13)
    if micros > 999999 or second > 59 or minute > 59 or packed < 0:
        return CORRUPT
    if packed >> 46 != 0 if kind == TIME else year > 9999 or hour > 23 or negative:
        return CORRUPT
    hour_width = 3 if hour > 99 else 2
    if end - to < (12 if kind == DATE else 15 + hour_width + negative if kind == TIME else 28):
        return ROOM_TOO_SMALL
    target[to] = 34
    to += 1
    if negative:
        target[to] = 45
        to += 1
    if kind != TIME:
        to = _put_digits(target, to, year, 4)
        target[to] = 45
        to = _put_digits(target, to + 1, month, 2)
        target[to] = 45
        to = _put_digits(target, to + 1, day, 2)
    if kind != DATE:
        if kind != TIME:
            target[to] = 32
            to += 1
        to = _put_digits(target, to, hour, hour_width)
        target[to] = 58
        to = _put_digits(target, to + 1, minute, 2)
        target[to] = 58
        to = _put_digits(target, to + 1, second, 2)
        target[to] = 46
        to = _put_digits(target, to + 1, micros, 6)
    target[to] = 34
    return to + 1


@njit(**JIT, forceinline=True)
def _put_number(kind: Any, source: Any, at: Any, end: Any, target: Any, to: Any) -> Any:
    """An integer, a double or an opaque DECIMAL, into NUMBER_ROOM; (where its text ends, its bytes)."""
    if kind == OPAQUE:
        length, data = _variable_length(source, at + 1, end)
        if length < 0 or length > end - data:
            return np.int64(CORRUPT), np.int64(1)
        return np.int64(_put_decimal(source, data, length, target, to)), data + length - at
    wide = np.int64(8 if kind >= INT64 else 4 if kind >= INT32 else 2)
    if end - at < wide:
        return np.int64(CORRUPT), wide
    if kind == DOUBLE:
        bits = load64(source, at)
        if bits >> np.uint64(52) & np.uint64(0x7FF) == 0x7FF:
            return np.int64(CORRUPT), wide
        return _put_double(target, to, bits), wide
    value = np.uint64(0)
    for place in range(at + wide - 1, at - 1, -1):
        value = value << np.uint64(8) | np.uint64(source[place])
    negative = False
    # The codes of the signed types are odd.
    if kind & 1:
        negative = source[at + wide - 1] >= 128
        if negative and wide < 8:
            value |= ~np.uint64(0) << np.uint64(8 * wide)
    return _put_integer(target, to, value, negative), wide


@njit(**JIT, forceinline=True)
def _put_scalar(kind: Any, source: Any, at: Any, end: Any, target: Any, to: Any, room_end: Any) -> Any:
    """Any value that is no container; (where its text ends or a negative code, its bytes)."""
    if kind == LITERAL:
        if at >= end or source[at] > 2:
            return np.int64(CORRUPT), 1
        word = _NULL if source[at] == 0 else _TRUE if source[at] == 1 else _FALSE
        return np.int64(_put_word(word, target, to, room_end)), 1
    if INT16 <= kind <= DOUBLE or (kind == OPAQUE and at < end and source[at] == DECIMAL):
        if room_end - to >= NUMBER_ROOM:
            return _put_number(kind, source, at, end, target, to)
        # A tight room may still do; that shows once the number is written.
        own = np.empty(NUMBER_ROOM, np.uint8)
        used, wide = _put_number(kind, source, at, end, own, np.int64(0))
        if used < 0:
            return used, wide
        return np.int64(_put_word(own[:used], target, to, room_end)), wide
    if kind == STRING:
        length, text = _variable_length(source, at, end)
        if length < 0 or length > end - text:
            return np.int64(CORRUPT), 1
        return np.int64(_put_string(source, text, length, target, to, room_end)), text + length - at
    if kind == OPAQUE and at < end:
        type_code = source[at]
        length, data = _variable_length(source, at + 1, end)
        if length < 0 or length > end - data:
            return np.int64(CORRUPT), 1
        if type_code in (DATE, TIME, DATETIME, TIMESTAMP):
            to = _put_temporal(type_code, source, data, length, target, to, room_end)
        else:
            to = _put_base64(type_code, source, data, length, target, to, room_end)
        return np.int64(to), data + length - at
    return np.int64(CORRUPT), 1


@njit(**JIT)
def json_text(source: Any, start: Any, length: Any, target: Any, at: Any, room: Any) -> Any:
    """Write the text of the document source[start : start + length] to target[at : at + room].

    Returns the bytes written, or CORRUPT, or ROOM_TOO_SMALL. `text_room` says what always suffices.
    """
    document_end, room_end = np.int64(start) + length, np.int64(at) + room
    to = np.int64(at)
    if length == 0:
        to = _put_word(_NULL, target, to, room_end)
        return to if to < 0 else to - at
    kind = np.int64(source[start])
    position, limit = np.int64(start) + 1, document_end
    if kind > LARGE_ARRAY:
        to, _ = _put_scalar(kind, source, position, limit, target, to, room_end)
        return to if to < 0 else to - at
    # What parts of the document have not yet been accounted for. Parts don't overlap, so it never falls below 0.
    budget = np.int64(length) - 1
    # Of each open container: where it starts, its header's length, its size, its members, the next of them, its type.
    frames = np.empty((DEPTH_MAX, 6), np.int64)
    depth = 0
    while True:
        if kind <= LARGE_ARRAY:
            wide = 4 if kind & 1 else 2
            if depth == DEPTH_MAX or limit - position < 2 * wide:
                return CORRUPT
            count = np.int64(load32(source, position)) if wide == 4 else np.int64(load16(source, position))
            size = np.int64(load32(source, position + 4)) if wide == 4 else np.int64(load16(source, position + 2))
            header = 2 * wide + count * (wide + 1 + (wide + 2 if kind <= LARGE_OBJECT else 0))
            budget -= header
            if size > limit - position or header > size or budget < 0:
                return CORRUPT
            if to >= room_end:
                return ROOM_TOO_SMALL
            target[to] = 123 if kind <= LARGE_OBJECT else 91
            to += 1
            frames[depth, 0], frames[depth, 1], frames[depth, 2] = position, header, size
            frames[depth, 3], frames[depth, 4], frames[depth, 5] = count, 0, kind
            depth += 1
        top = depth - 1
        base, header, size = frames[top, 0], frames[top, 1], frames[top, 2]
        count, index, outer = frames[top, 3], frames[top, 4], frames[top, 5]
        if index == count:
            if to >= room_end:
                return ROOM_TOO_SMALL
            target[to] = 125 if outer <= LARGE_OBJECT else 93
            to += 1
            depth = top
            if depth == 0:
                return to - at
            kind = np.int64(LITERAL)
            continue
        frames[top, 4] = index + 1
        wide = 4 if outer & 1 else 2
        if index:
            if room_end - to < 2:
                return ROOM_TOO_SMALL
            target[to], target[to + 1] = 44, 32
            to += 2
        entry = base + 2 * wide
        if outer <= LARGE_OBJECT:
            key = entry + index * (wide + 2)
            offset = np.int64(load32(source, key)) if wide == 4 else np.int64(load16(source, key))
            key_length = np.int64(load16(source, key + wide))
            budget -= key_length
            if offset < header or key_length > size - offset or budget < 0:
                return CORRUPT
            to = np.int64(_put_string(source, base + offset, key_length, target, to, room_end))
            if to < 0:
                return to
            if room_end - to < 2:
                return ROOM_TOO_SMALL
            target[to], target[to + 1] = 58, 32
            to += 2
            entry += count * (wide + 2)
        entry += index * (wide + 1)
        kind = np.int64(source[entry])
        inlined = LITERAL <= kind <= (UINT32 if wide == 4 else UINT16)
        if inlined:
            position, limit = entry + 1, entry + 1 + wide
        else:
            offset = np.int64(load32(source, entry + 1)) if wide == 4 else np.int64(load16(source, entry + 1))
            if offset < header or offset >= size:
                return CORRUPT
            position, limit = base + offset, base + size
        if kind > LARGE_ARRAY:
            to, used = _put_scalar(kind, source, position, limit, target, to, room_end)
            if to < 0:
                return to
            budget -= 0 if inlined else used
            if budget < 0:
                return CORRUPT


def text_room(length: int) -> int:
    """Bytes that the text of any document of `length` bytes fits in: a control character makes six of one, nothing makes more."""
    return 6 * length + 16


REPLACE, INSERT, REMOVE = 0, 1, 2
_MEMBER = rb'\.(?P<quoted>"(?:[^"\\]|\\.)*")|\.(?P<name>[^."\[]+)'
_CELL = rb"\[(?:(?P<cell>\d{1,10})|(?P<last>last)(?:-(?P<back>\d{1,10}))?)\]"
_LEG = re.compile(_MEMBER + b"|" + _CELL, re.DOTALL)

Node: TypeAlias = "bytes | list[Node] | dict[bytes, Node]"
"""A value of a document that differences apply to; a scalar is its text."""


def text_of(document: bytes) -> bytes:
    """The text of one document, as UTF-8. For rare paths; rows go through the kernel."""
    room = text_room(len(document))
    target = np.empty(room, np.uint8)
    # A copy that may be written to has the type that the row decoder compiles the kernel for.
    source = np.frombuffer(bytearray(document), np.uint8)
    written = json_text(source, 0, len(document), target, 0, room)
    if written < 0:
        raise Corrupt("a JSON value is not a document", detail=f"{len(document)} bytes")
    return target[:written].tobytes()


def apply_diffs(document: bytes, diffs: bytes) -> bytes:
    """The text, as UTF-8, that SELECT gives after the differences have been applied to a document.

    Differences apply in order, each to the result of those before it. One that finds no place is corruption: the server would not
    have written it.
    """
    if not diffs:
        return text_of(document)
    # The kernel's checks come first, so that the tree can be built without any.
    text_of(document)
    root: list[Node] = [_tree(document)]
    at = 0
    while at < len(diffs):
        operation = diffs[at]
        path, at = _counted(diffs, at + 1)
        if operation > REMOVE:
            raise _misfit("unknown operation")
        legs = _legs(path)
        if operation == REMOVE:
            _remove(root, legs)
            continue
        value, at = _counted(diffs, at)
        text_of(value)
        if operation == REPLACE:
            holder, key = _place(root, legs)
            holder[key] = _tree(value)  # type: ignore[index]
        else:
            _insert(root, legs, _tree(value))
    parts: list[bytes] = []
    _print(root[0], parts, 0)
    return b"".join(parts)


def _misfit(detail: str) -> Corrupt:
    return Corrupt("the difference of a partial JSON update does not fit its document", detail=detail)


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes after their length-encoded length, and where they end."""
    first = data[at] if at < len(data) else 255
    wide = {252: 2, 253: 3, 254: 8}.get(first, 0)
    start = at + 1 + wide
    length = int.from_bytes(data[at + 1 : start], "little") if wide else first
    if first in (251, 255) or start + length > len(data):
        raise _misfit("cut short")
    return data[start : start + length], start + length


def _legs(path: bytes) -> list[bytes | int]:
    """A path's members, as names, and array cells, as numbers; negative ones count from the end, -1 is the last. The server
    writes the path that the statement had, without blanks; it makes no difference of a wildcard or a range.
    """
    if path[:1] != b"$":
        raise _misfit("not a path")
    legs: list[bytes | int] = []
    at = 1
    while at < len(path):
        leg = _LEG.match(path, at)
        if leg is None:
            raise _misfit("not a path")
        at = leg.end()
        if leg["last"] is not None:
            legs.append(-1 - int(leg["back"] or 0))
        elif leg["cell"] is not None:
            legs.append(int(leg["cell"]))
        elif leg["name"] is not None:
            legs.append(leg["name"])
        else:
            try:
                legs.append(json.loads(leg["quoted"], strict=False).encode())
            except ValueError:
                raise _misfit("not a path") from None
    return legs


def _place(root: list[Node], legs: list[bytes | int]) -> tuple[list[Node] | dict[bytes, Node], bytes | int]:
    """The container and the key in it that a path leads to. The server writes no cell of what is no array."""
    holder: list[Node] | dict[bytes, Node] = root
    key: bytes | int = 0
    for leg in legs:
        node: Node = holder[key]  # type: ignore[index]
        match leg, node:
            case bytes(), dict() if leg in node:
                holder, key = node, leg
            case int(), list() if -len(node) <= leg < len(node):
                holder, key = node, leg
            case _:
                raise _misfit("no such place")
    return holder, key


def _insert(root: list[Node], legs: list[bytes | int], value: Node) -> None:
    """A new member, or a new cell before the one at its place; past an array's end or start it becomes the last or first."""
    holder, key = _place(root, legs[:-1])
    node: Node = holder[key]  # type: ignore[index]
    match node, legs[-1:]:
        case dict(), [bytes() as name] if name not in node:
            node[name] = value
        case list(), [int() as cell]:
            node.insert(cell if cell >= 0 else max(0, len(node) + cell), value)
        case _:
            raise _misfit("no place to insert at")


def _remove(root: list[Node], legs: list[bytes | int]) -> None:
    holder, key = _place(root, legs)
    if holder is root:
        raise _misfit("nothing to remove")
    del holder[key]  # type: ignore[arg-type]


def _tree(document: bytes) -> Node:
    """A checked document as nodes."""
    return _node(document[0], document, 1) if document else b"null"


def _node(kind: int, data: bytes, base: int) -> Node:
    if kind > LARGE_ARRAY:
        return text_of(bytes([kind]) + data[base : _scalar_end(kind, data, base)])
    wide = 4 if kind & 1 else 2
    count = int.from_bytes(data[base : base + wide], "little")
    keys = base + 2 * wide
    entries = keys + (count * (wide + 2) if kind <= LARGE_OBJECT else 0)
    inlined = (LITERAL, INT16, UINT16, INT32, UINT32) if wide == 4 else (LITERAL, INT16, UINT16)
    nodes: list[Node] = []
    for entry in range(entries, entries + count * (wide + 1), wide + 1):
        if data[entry] in inlined:
            nodes.append(_node(data[entry], data, entry + 1))
        else:
            nodes.append(_node(data[entry], data, base + int.from_bytes(data[entry + 1 : entry + 1 + wide], "little")))
    if kind > LARGE_OBJECT:
        return nodes
    members: dict[bytes, Node] = {}
    for key, node in zip(range(keys, entries, wide + 2), nodes, strict=True):
        start = base + int.from_bytes(data[key : key + wide], "little")
        members[data[start : start + int.from_bytes(data[key + wide : key + wide + 2], "little")]] = node
    if len(members) != count:
        raise Corrupt("a JSON object has a key twice")
    return members


def _scalar_end(kind: int, data: bytes, base: int) -> int:
    if kind not in (STRING, OPAQUE):
        return base + (1 if kind == LITERAL else 8 if kind >= INT64 else 4 if kind >= INT32 else 2)
    at = base + (kind == OPAQUE)
    length = shift = 0
    while data[at] > 127:
        length |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return at + 1 + (length | data[at] << shift)


def _print(node: Node, parts: list[bytes], depth: int) -> None:
    if isinstance(node, bytes):
        parts.append(node)
        return
    if depth == DEPTH_MAX:
        raise _misfit(f"deeper than {DEPTH_MAX}")
    if isinstance(node, list):
        parts.append(b"[")
        for index, item in enumerate(node):
            parts.append(b", " if index else b"")
            _print(item, parts, depth + 1)
        parts.append(b"]")
        return
    parts.append(b"{")
    # The server's order of members: short keys first, keys of one length by their bytes.
    for index, key in enumerate(sorted(node, key=lambda key: (len(key), key))):
        parts.append(b", " if index else b"")
        parts.append(_quoted(key))
        parts.append(b": ")
        _print(node[key], parts, depth + 1)
    parts.append(b"}")


def _quoted(text: bytes) -> bytes:
    length = len(text)
    groups = bytearray()
    while length > 127:
        groups.append(length & 127 | 128)
        length >>= 7
    return text_of(bytes([STRING]) + bytes(groups) + bytes([length]) + text)
