"""The server's character sets, and UTF-8 out of each exactly as the server itself makes it.

The log holds a string in its column's charset, a SELECT on a utf8mb4 connection gives it converted; both must be the same
bytes. Codecs of libraries differ from the server's tables in places, so ours were read out of a server
(`scripts/make_charsets.py`). They hold for MySQL 5.6 and 8.0 and for MariaDB 10.11, which differ in what is ill-formed and
in nothing else. The laws of a conversion:

- A character for which the charset's table has no Unicode becomes one `?`.
- A byte that begins no character becomes `?`, and reading continues at the next byte. MySQL takes some pairs for a character
  (big5, euckr, gb2312, gbk) that are none to MariaDB, hence two tables of these; no INSERT lets such pairs in.
- A character that the string's end cuts off: MySQL drops it, MariaDB takes its first byte for one that begins no character.
- utf32 above U+10FFFF: MariaDB takes the number for ill-formed; MySQL encodes it in four bytes up to U+1FFFFF, and gives one
  `?` above.
- utf8mb3 with an encoded surrogate, which MySQL before 8.0 and MariaDB let in: a character to both, but three ill-formed bytes
  to MySQL 8.0. A flavour says no version, so for MySQL, and there alone, the bytes of a string raise `Corrupt`.
- The result is the server's, so it is not UTF-8 where the server's isn't: a lone surrogate of ucs2 or utf32 comes out as
  three bytes. utf8mb4 and binary are never converted. The code that makes strings of it validates, whichever way the bytes came.
- ascii of MySQL 5.6 and MariaDB has bytes above 0x7F, and SELECT gives `?` for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from snowmelt.columnar.memory import JIT, big32, kernel_view, load64, store8, store32, store64
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt, SourceDrift, check

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int32]
Entries = NDArray[np.uint32]

_DATA = Path(__file__).with_name("charset_tables.npz")
_ALIASES = {"utf8": "utf8mb3"}
_UNCHANGED = frozenset({"utf8mb4", "binary"})
_OFFSET_MAX = 2**31 - 1

# Marks in the tables: no character is here, or one of at least that number of bytes is. In the file they stand from MARKS on, where
# surrogates would; everything else there is a code point.
ILL_FORMED, TWO_BYTES, THREE_BYTES, FOUR_BYTES = range(4)
MARKS = 0xD800

# gb18030 numbers its four-byte codes in a row; from here on they are U+10000 and up.
GB18030_HIGH = 189_000

_ONE, _MANY, _UCS2, _UTF16, _UTF16LE, _UTF32, _UTF8MB3 = range(7)
_ALGORITHMS = {"ucs2": _UCS2, "utf16": _UTF16, "utf16le": _UTF16LE, "utf32": _UTF32, "utf8mb3": _UTF8MB3}
_WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one charset is read. An entry of a table is a character's UTF-8, first byte lowest, its length on top; or a mark."""

    kind: int
    plain: bool
    """Bytes below 0x80 stand for themselves, wherever a character begins."""
    tables: tuple[Entries, Entries, Entries, Entries]
    """By the first byte, by the first two, by the second and third, and by the number of a gb18030 code of four."""


_EMPTY = np.zeros(1, np.uint32)


def charset_of_collation(collation_id: int) -> str:
    """The charset of a collation, by the number that the log's table maps give."""
    try:
        return _collations()[collation_id]
    except KeyError:
        raise SourceDrift(
            "the server has a collation that is not known here",
            detail=f"id {collation_id}",
            hint="change the column's collation, exclude its table, or use a release of snowmelt that knows this server",
        ) from None


def canonical_charset(name: str) -> str:
    """The one name that this module uses for a charset, whatever the server's version calls it."""
    lowered = name.lower()
    charset = _ALIASES.get(lowered, lowered)
    if charset not in charsets():
        raise SourceDrift(
            "the server has a charset that is not known here",
            detail=repr(name),
            hint="change the column's charset, exclude its table, or use a release of snowmelt that knows this server",
        )
    return charset


def is_utf8(charset: str) -> bool:
    """Whether strings of this charset are UTF-8 as they stand. Those of ascii and utf8mb3 that aren't valid want `transcode`."""
    return canonical_charset(charset) in ("utf8mb4", "utf8mb3", "ascii")


@cache
def charsets() -> frozenset[str]:
    """Every charset, by its canonical name."""
    with np.load(_DATA) as tables:
        return frozenset(str(name) for name in tables["charsets"])


def transcode(charset: str, offsets: Offsets, data: Bytes, count: int, *, flavour: Flavour) -> tuple[Offsets, Bytes]:
    """`count` strings in Arrow's layout, in UTF-8. The result may share memory with the arguments."""
    name = canonical_charset(charset)
    check(0 <= count < offsets.size, "strings have one offset more than their count", f"{count} and {offsets.size}")
    data = kernel_view(data)
    if not offsets.flags.writeable:
        offsets = offsets.copy()
    check(bool(_ordered(offsets, count, data.size)), "offsets of strings rise and stay inside their bytes")
    first, last = int(offsets[0]), int(offsets[count])
    used, starts = data[first:last], offsets[: count + 1] - np.int32(first) if first else offsets[: count + 1]
    if name in _UNCHANGED:
        return starts, used
    plan = _plan(name, flavour)
    size = used.size
    if plan.plain:
        high = int(_count_high(used))
        if high == 0:
            return starts, used
        # Whatever is not plain ASCII has a high byte and is at most three bytes long in UTF-8, or four out of four.
        bound = size + 2 * high
    else:
        bound = (3 * size + 1) // 2 if name in _WIDE else 3 * size
    # Stores write whole words, hence the room at the end.
    out = np.empty(bound + 8, np.uint8)
    out_offsets = np.empty(count + 1, np.int64)
    stuck = _transcode(plan.kind, plan.plain, flavour == "mysql", starts, used, count, plan.tables, out_offsets, out)
    if stuck >= 0:
        raise Corrupt(
            "a utf8mb3 string holds half of a surrogate pair",
            detail=f"string {stuck} of a batch of {count}",
            hint="versions of MySQL read it differently; update the row to text that is well-formed",
        )
    total = int(out_offsets[count])
    check(total <= _OFFSET_MAX, "a batch of strings is longer than Arrow's offsets reach", f"{total} bytes")
    return out_offsets.astype(np.int32), out[:total]


@cache
def _collations() -> dict[int, str]:
    with np.load(_DATA) as tables:
        names = [str(name) for name in tables["charsets"]]
        numbers, indices = tables["collations"].tolist(), tables["collation_charsets"].tolist()
    return {number: names[index] for number, index in zip(numbers, indices, strict=True)}


@cache
def _plan(charset: str, flavour: Flavour) -> _Plan:
    if charset in _ALGORITHMS:
        return _Plan(_ALGORITHMS[charset], charset not in _WIDE, (_EMPTY, _EMPTY, _EMPTY, _EMPTY))
    with np.load(_DATA) as tables:
        one = tables[f"{charset}.one"]
        own = f"{charset}.two.{flavour}"
        names = (own if own in tables else f"{charset}.two", f"{charset}.three", f"{charset}.four")
        two, three, four = (_entries(tables[name]) if name in tables else _EMPTY for name in names)
    plain = bool((one[:128] == np.arange(128)).all())
    return _Plan(_ONE if two is _EMPTY else _MANY, plain, (_entries(one), two, three, four))


def _entries(codes: NDArray[np.uint16]) -> Entries:
    """Code points and marks as entries of a plan."""
    code = codes.astype(np.uint32)
    last, middle = 0x80 | (code & 0x3F), 0x80 | (code >> 6 & 0x3F)
    of_two = 2 << 24 | last << 8 | 0xC0 | code >> 6
    of_three = 3 << 24 | last << 16 | middle << 8 | 0xE0 | code >> 12
    kinds = [code < 0x80, code < 0x800, (code >= MARKS) & (code <= MARKS + FOUR_BYTES)]
    return np.select(kinds, [1 << 24 | code, of_two, code - MARKS], of_three).astype(np.uint32)


@njit(**JIT)
def _ordered(offsets, count, size):  # type: ignore[no-untyped-def]
    before = np.int64(0)
    for row in range(count + 1):
        if offsets[row] < before:
            return False
        before = np.int64(offsets[row])
    return before <= size


@njit(**JIT)
def _count_high(data):  # type: ignore[no-untyped-def]
    high = np.int64(0)
    for i in range(data.size):
        high += data[i] >> 7
    return high


@njit(**JIT)
def _transcode(kind, plain, drops_rest, offsets, data, count, tables, out_offsets, out):  # type: ignore[no-untyped-def]
    """The first string that has no certain conversion, or -1 when all are done."""
    one, two, three, four = tables
    at = np.int64(0)
    out_offsets[0] = 0
    for row in range(count):
        i, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if kind == _ONE:
            at = _one_byte(data, i, end, plain, one, out, at)
        elif kind == _MANY:
            at = _many_bytes(data, i, end, drops_rest, one, two, three, four, out, at)
        elif kind == _UTF8MB3:
            at = _utf8mb3(data, i, end, drops_rest, out, at)
            if at < 0:
                return row
        elif kind == _UTF32:
            at = _utf32(data, i, end, drops_rest, out, at)
        else:
            at = _utf16(data, i, end, drops_rest, kind, out, at)
        out_offsets[row + 1] = at
    return np.int64(-1)


@njit(**JIT)
def _one_byte(data, i, end, plain, one, out, at):  # type: ignore[no-untyped-def]
    while i < end:
        if plain:
            while i + 8 <= end:
                word = load64(data, i)
                if word & np.uint64(0x8080808080808080):
                    break
                store64(out, at, word)
                i += 8
                at += 8
        for _ in range(min(8, end - i)):
            entry = one[data[i]]
            store32(out, at, entry)
            at += np.int64(entry >> 24)
            i += 1
    return at


@njit(**JIT)
def _many_bytes(data, i, end, drops_rest, one, two, three, four, out, at):  # type: ignore[no-untyped-def]
    while i < end:
        head = np.int64(data[i])
        if head < 0x80:
            while i + 8 <= end:
                word = load64(data, i)
                if word & np.uint64(0x8080808080808080):
                    break
                store64(out, at, word)
                i += 8
                at += 8
            while i < end and data[i] < 0x80:
                store8(out, at, data[i])
                i += 1
                at += 1
            continue
        length, entry = np.int64(1), one[head]
        if entry == TWO_BYTES:
            length = np.int64(2)
            if i + 2 <= end:
                entry = two[head << 8 | np.int64(data[i + 1])]
                if entry == THREE_BYTES:
                    length = np.int64(3)
                    if i + 3 <= end:
                        entry = three[np.int64(data[i + 1]) << 8 | np.int64(data[i + 2])]
                elif entry == FOUR_BYTES:
                    length = np.int64(4)
                    if i + 4 <= end:
                        code = _gb18030(data, i, four)
                        if code >= 0x10000:
                            at = _put(out, at, code)
                            i += 4
                            continue
                        entry = np.uint32(ILL_FORMED) if code < 0 else four[code]
            if i + length > end and drops_rest:
                break
        if i + length > end or entry == ILL_FORMED:
            store8(out, at, 0x3F)
            at += 1
            i += 1
        else:
            store32(out, at, entry)
            at += np.int64(entry >> 24)
            i += length
    return at


@njit(**JIT)
def _put(out, at, code):  # type: ignore[no-untyped-def]
    """Store a code point below 0x200000 and give the place after it."""
    if code < 0x80:
        store8(out, at, code)
        return at + 1
    if code < 0x800:
        store8(out, at, 0xC0 | code >> 6)
        store8(out, at + 1, 0x80 | (code & 0x3F))
        return at + 2
    if code < 0x10000:
        store32(out, at, 0x8080E0 | code >> 12 | (code >> 6 & 0x3F) << 8 | (code & 0x3F) << 16)
        return at + 3
    store32(out, at, 0x808080F0 | code >> 18 | (code >> 12 & 0x3F) << 8 | (code >> 6 & 0x3F) << 16 | (code & 0x3F) << 24)
    return at + 4


@njit(**JIT)
def _gb18030(data, i, four):  # type: ignore[no-untyped-def]
    """A four-byte code whose first two bytes are right: its place in the table, or its code point from U+10000 on, or -1."""
    a, b = np.int64(data[i]) - 0x81, np.int64(data[i + 1]) - 0x30
    c, d = np.int64(data[i + 2]) - 0x81, np.int64(data[i + 3]) - 0x30
    if c < 0 or c >= 126 or d < 0 or d >= 10:
        return np.int64(-1)
    number = ((a * 10 + b) * 126 + c) * 10 + d
    if number >= GB18030_HIGH and number < GB18030_HIGH + 0x100000:
        return number - GB18030_HIGH + 0x10000
    # The table's last entry stands for the holes after it.
    return min(number, np.int64(four.size - 1))


@njit(**JIT)
def _utf8mb3(data, i, end, drops_rest, out, at):  # type: ignore[no-untyped-def]
    """The place after the string, or -1 for a surrogate of MySQL, which is the flavour that drops a cut-off rest."""
    while i < end:
        head = np.int64(data[i])
        length = np.int64(1)
        if head >= 0xC2:
            length = np.int64(2 if head < 0xE0 else 3 if head < 0xF0 else 1)
        if i + length > end and drops_rest:
            break
        good = np.bool_(head < 0x80)
        if length > 1 and i + length <= end:
            second = np.int64(data[i + 1])
            good = second & 0xC0 == 0x80
            if length == 3:
                good = good & (data[i + 2] & 0xC0 == 0x80) & ((head > 0xE0) | (second >= 0xA0))
                if good and drops_rest and head == 0xED and second >= 0xA0:
                    return np.int64(-1)
        if good:
            for k in range(length):
                out[at + k] = data[i + k]
            at += length
            i += length
        else:
            store8(out, at, 0x3F)
            at += 1
            i += 1
    return at


@njit(**JIT)
def _utf16(data, i, end, drops_rest, kind, out, at):  # type: ignore[no-untyped-def]
    high, low = (1, 0) if kind == _UTF16LE else (0, 1)
    while i < end:
        code, length = np.int64(-1), np.int64(2)
        if i + 2 <= end:
            code = np.int64(data[i + high]) << 8 | np.int64(data[i + low])
            if kind != _UCS2 and code & 0xF800 == 0xD800:
                surrogate, code = code, np.int64(-1)
                if surrogate < 0xDC00:
                    length = np.int64(4)
                    if i + 4 <= end:
                        pair = np.int64(data[i + 2 + high]) << 8 | np.int64(data[i + 2 + low])
                        if pair & 0xFC00 == 0xDC00:
                            code = 0x10000 + ((surrogate & 0x3FF) << 10 | pair & 0x3FF)
        if i + length > end and drops_rest:
            break
        if code < 0:
            code, length = np.int64(0x3F), np.int64(1)
        at = _put(out, at, code)
        i += length
    return at


@njit(**JIT)
def _utf32(data, i, end, drops_rest, out, at):  # type: ignore[no-untyped-def]
    while i < end:
        code, length = np.int64(0x3F), np.int64(1)
        if i + 4 <= end:
            number = np.int64(big32(data, i))
            # MySQL, the flavour that drops a cut-off rest, has read four bytes whatever they say.
            if number <= 0x10FFFF or drops_rest:
                code, length = number if number < 0x200000 else np.int64(0x3F), np.int64(4)
        elif drops_rest:
            break
        at = _put(out, at, code)
        i += length
    return at
