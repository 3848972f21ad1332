"""The columns of a result: the binary protocol's types for them, and the numbers by which the kernel knows them."""

from __future__ import annotations

import struct

from snowmelt.columnar.arena import HEAP, Storage
from snowmelt.databases.mysql.read import binaryrows as kernel
from snowmelt.databases.mysql.types.columns import (
    BINARY_TYPES,
    DECIMAL_DIGITS_MAX,
    GEOMETRY_TYPES,
    INTEGER_BITS,
    TEXT_TYPES,
    MySqlColumn,
    TimeAs,
    TypeOptions,
    ZeroDates,
)
from snowmelt.errors import Corrupt, SourceDrift

_UNSIGNED_FLAG = 32
_BINARY_CHARSET = 63


def length_at(payload: bytes, at: int) -> tuple[int, int]:
    """A length-encoded number and where it ends."""
    first = payload[at] if at < len(payload) else 251
    width = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if first in (251, 255) or at + 1 + width > len(payload):
        raise Corrupt(kernel.BROKEN_BECAUSE[kernel.NO_LENGTH])
    return (int.from_bytes(payload[at + 1 : at + 1 + width], "little") if width else first), at + 1 + width


WIRE_TYPES: dict[str, frozenset[int]] = {
    "tinyint": frozenset({1}),
    "smallint": frozenset({2}),
    "int": frozenset({3}),
    "float": frozenset({4}),
    "double": frozenset({5}),
    "timestamp": frozenset({7}),
    "bigint": frozenset({8}),
    "mediumint": frozenset({9}),
    "date": frozenset({10, 14}),
    "time": frozenset({11}),
    "datetime": frozenset({12}),
    "year": frozenset({13}),
    "bit": frozenset({16}),
    "vector": frozenset({242, 252, 253}),
    "decimal": frozenset({0, 246}),
    # MariaDB's JSON is a LONGTEXT.
    "json": frozenset({245, 252}),
}
_STRING_WIRE_TYPES = frozenset({15, 249, 250, 251, 252, 253, 254})


def check_column(payload: bytes, column: MySqlColumn) -> None:
    at = 0
    for _ in range(6):
        size, at = length_at(payload, at)
        at += size
    fixed, at = length_at(payload, at)
    if fixed < 12 or at + 12 > len(payload):
        raise Corrupt("the description of a column can't be read")
    charset, _, wire_type, flags = struct.unpack_from("<HIBH", payload, at)
    if column.base in GEOMETRY_TYPES:
        expected = frozenset({255})
    else:
        expected = WIRE_TYPES.get(column.base, _STRING_WIRE_TYPES)
    same = wire_type in expected
    if column.base in INTEGER_BITS:
        same = same and bool(flags & _UNSIGNED_FLAG) == column.unsigned
    if column.base in TEXT_TYPES or column.base in BINARY_TYPES:
        same = same and (charset == _BINARY_CHARSET) == (column.base in BINARY_TYPES)
    if not same:
        raise SourceDrift(
            "a column of the result has another type",
            detail=f"{column.name}: wire type {wire_type} where {column.base} is expected",
        )


_INTEGER_KINDS = {
    ("tinyint", False): (kernel.COPY1, 1),
    ("tinyint", True): (kernel.WIDEN1, 2),
    ("smallint", False): (kernel.COPY2, 2),
    ("smallint", True): (kernel.WIDEN2, 4),
    ("mediumint", False): (kernel.COPY4, 4),
    ("mediumint", True): (kernel.COPY4, 4),
    ("int", False): (kernel.COPY4, 4),
    ("int", True): (kernel.WIDEN4, 8),
    ("bigint", False): (kernel.COPY8, 8),
    ("bigint", True): (kernel.WIDEN8, 16),
}


def kernel_kind(column: MySqlColumn, options: TypeOptions) -> tuple[int, Storage, int, int]:
    """What the kernel does, where it puts it, and the parameters of that."""
    base = column.base
    dated = options.zero_dates is ZeroDates.NULL
    match base:
        case "float":
            return kernel.COPY4, Storage(4), 0, 0
        case "double":
            return kernel.COPY8, Storage(8), 0, 0
        case "year":
            return kernel.WIDEN2, Storage(4), 0, 0
        case "decimal" if (column.precision or 10) <= DECIMAL_DIGITS_MAX:
            return kernel.DECIMAL, Storage(16), column.scale or 0, column.precision or 10
        case "date":
            return (kernel.DATE, Storage(4), 0, 0) if dated else (kernel.DATE_TEXT, HEAP, 0, 0)
        case "datetime" | "timestamp":
            return (kernel.DATETIME, Storage(8), 0, 0) if dated else (kernel.DATETIME_TEXT, HEAP, column.fsp, 0)
        case "time":
            return (kernel.TIME_TEXT, HEAP, column.fsp, 0) if options.time_as is TimeAs.STRING else (kernel.TIME, Storage(8), 0, 0)
        case "bit" if (column.length or 1) == 1:
            return kernel.BOOL, Storage(1), 0, 0
        case "bit":
            return kernel.BYTES, HEAP, ((column.length or 1) + 7) // 8, 0
        case _ if base in INTEGER_BITS:
            kind, width = _INTEGER_KINDS[base, column.unsigned]
            return kind, Storage(width), 0, 0
        case _:
            return kernel.BYTES, HEAP, 0, 0
