"""How the row kernel reads each column of a table's images, and how the arena's content becomes Arrow arrays.

The log has a column's stored form (`WireColumn`), the schema in force has its meaning (`MySqlColumn`). Where the two don't fit,
the schema is not the one that these rows were written with. That is an error: a value is never guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import pyarrow as pa

from snowmelt.columnar.arena import HEAP, Longs, Storage
from snowmelt.databases.mysql.log.images import decimal_layout
from snowmelt.databases.mysql.log.tablemap import TableMap, Wire, WireColumn
from snowmelt.databases.mysql.types import kinds
from snowmelt.databases.mysql.types.charsets import canonical_charset, is_utf8
from snowmelt.databases.mysql.types.columns import (
    BINARY_TYPES,
    GEOMETRY_TYPES,
    INTEGER_BITS,
    TEXT_TYPES,
    MySqlColumn,
    MySqlTable,
    TypeOptions,
    lake_nullable,
)
from snowmelt.errors import BEGIN_ANEW, Corrupt, SourceDrift, present


class Finish(IntEnum):
    """What is left to do once the arena is filled."""

    NOTHING = 0
    LABEL = 1
    LABELS = 2
    BOOL = 3
    TRANSCODE = 4
    INFLATE = 5
    UTF8 = 6
    JSON = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedColumn:
    name: str
    kind: int
    """One of `kinds`, which says what `a` and `b` are."""
    a: int = 0
    b: int = 0
    storage: Storage
    arrow: pa.DataType
    finish: Finish = Finish.NOTHING
    charset: str = ""
    labels: tuple[str, ...] = ()
    nullable: bool = True


class RowPlan:
    """A table's columns as arrays for the kernel. After the table's columns hidden ones may follow, which no SELECT shows."""

    def __init__(self, table: MySqlTable, columns: Sequence[PlannedColumn]) -> None:
        self.table = table
        self.columns = tuple(columns)
        self.kind: Longs = np.array([column.kind for column in columns], np.int64)
        self.a: Longs = np.array([column.a for column in columns], np.int64)
        self.b: Longs = np.array([column.b for column in columns], np.int64)

    def with_raw_json(self) -> RowPlan:
        """The same, for events that hold differences of JSON documents."""
        columns = [
            replace(column, kind=kinds.JSON_RAW, finish=Finish.JSON) if column.kind == kinds.JSON else column for column in self.columns
        ]
        return RowPlan(self.table, columns)


def plan_rows(shape: TableMap, schema: MySqlTable | None, options: TypeOptions) -> RowPlan:
    """How to read rows of `shape`. Without a schema the log itself must name the columns."""
    if schema is None:
        if not shape.named:
            raise SourceDrift(
                f"no schema of {shape.table} is known and the log doesn't name its columns",
                hint=f"set binlog_row_metadata = FULL and {BEGIN_ANEW}",
            )
        schema = table_of_map(shape)
    surplus = len(shape.columns) - len(schema.columns)
    if surplus not in (0, shape.hashes):
        unnamed = surplus > 0 and all(wire.type is Wire.LONGLONG and wire.name is None for wire in shape.columns[-surplus:])
        hint = "; if the table has a unique index on TEXT or BLOB, set binlog_row_metadata = FULL on MariaDB" if unnamed else ""
        raise _drift(shape, f"the log has {len(shape.columns)} columns, the schema {len(schema.columns)}", hint)
    planned = [
        replace(_plan_column(shape, wire, column, options), nullable=lake_nullable(column, options))
        for wire, column in zip(shape.columns, schema.columns, strict=False)
    ]
    # The hashes are skipped: no SELECT shows them.
    planned += [
        PlannedColumn(name=str(wire.name), kind=kinds.INT64, storage=Storage(8), arrow=pa.int64()) for wire in shape.columns[len(planned) :]
    ]
    return RowPlan(schema, _numbered(planned))


def _numbered(columns: list[PlannedColumn]) -> list[PlannedColumn]:
    """JSON columns get their ordinal among themselves: partial updates name them by it."""
    ordinals = itertools.count()
    return [replace(column, b=next(ordinals)) if column.kind == kinds.JSON else column for column in columns]


def _drift(shape: TableMap, detail: str, hint: str = "") -> SourceDrift:
    return SourceDrift(
        f"rows of {shape.table} in the log don't fit its recorded schema",
        detail=detail,
        hint=f"a schema change was missed; {BEGIN_ANEW}{hint}",
    )


def _same_labels(logged: tuple[str, ...], recorded: tuple[str, ...]) -> bool:
    """Whether labels agree. Catalogues print a question mark for what is beyond the basic plane; the log has it right."""
    return len(logged) == len(recorded) and all(
        len(ours) == len(theirs) and all(a == b or (b == "?" and ord(a) > 0xFFFF) for a, b in zip(ours, theirs, strict=True))
        for ours, theirs in zip(logged, recorded, strict=True)
    )


_SIGNED = {Wire.TINY: kinds.INT8, Wire.SHORT: kinds.INT16, Wire.INT24: kinds.INT24, Wire.LONG: kinds.INT32, Wire.LONGLONG: kinds.INT64}
_UNSIGNED = {
    Wire.TINY: kinds.UINT8, Wire.SHORT: kinds.UINT16, Wire.INT24: kinds.UINT24, Wire.LONG: kinds.UINT32, Wire.LONGLONG: kinds.UINT64,
}  # fmt: skip
_INTEGER_WIDTH = {
    kinds.INT8: 1, kinds.UINT8: 2, kinds.INT16: 2, kinds.UINT16: 4, kinds.INT24: 4, kinds.UINT24: 4,
    kinds.INT32: 4, kinds.UINT32: 8, kinds.INT64: 8, kinds.UINT64: 16,
}  # fmt: skip
_TEMPORAL = {
    Wire.DATE: (kinds.DATE, 4),
    Wire.NEWDATE: (kinds.DATE, 4),
    Wire.DATETIME2: (kinds.DATETIME, 8),
    Wire.TIMESTAMP2: (kinds.TIMESTAMP, 8),
    Wire.TIME2: (kinds.TIME, 8),
    Wire.DATETIME: (kinds.OLD_DATETIME, 8),
    Wire.TIMESTAMP: (kinds.OLD_TIMESTAMP, 8),
    Wire.TIME: (kinds.OLD_TIME, 8),
}
_TEMPORAL_BASE = {
    Wire.DATE: "date", Wire.NEWDATE: "date", Wire.DATETIME2: "datetime", Wire.DATETIME: "datetime", Wire.TIMESTAMP2: "timestamp",
    Wire.TIMESTAMP: "timestamp", Wire.TIME2: "time", Wire.TIME: "time",
}  # fmt: skip
_INTEGER_BASE = {Wire.TINY: "tinyint", Wire.SHORT: "smallint", Wire.INT24: "mediumint", Wire.LONG: "int", Wire.LONGLONG: "bigint"}
_FIXED_TEXT = {"uuid": (kinds.UUID, 16), "inet6": (kinds.INET6, 16), "inet4": (kinds.INET4, 4)}


def _plan_column(shape: TableMap, wire: WireColumn, column: MySqlColumn, options: TypeOptions) -> PlannedColumn:
    where = f"column {column.name} is {wire.type.name} in the log and {column.base} in the schema"
    if wire.name is not None and wire.name != column.name:
        raise _drift(shape, f"the log names a column {wire.name!r} where the schema has {column.name!r}")
    if wire.unsigned is not None and column.base in INTEGER_BITS and wire.unsigned != column.unsigned:
        raise _drift(shape, f"column {column.name} differs in its sign")
    if wire.labels is not None and column.base in ("enum", "set"):
        if not _same_labels(wire.labels, column.labels):
            raise _drift(shape, f"column {column.name} differs in its labels")
        column = replace(column, labels=wire.labels)
    elif column.base in ("enum", "set") and any("?" in label for label in column.labels):
        raise SourceDrift(
            f"labels of {shape.table} can't be told",
            detail=f"column {column.name} has a question mark, which catalogues print for characters such as emoji too",
            hint="set binlog_row_metadata = FULL, or give the labels other characters",
        )
    arrow = column.arrow(options)

    def planned(kind: int, a: int, b: int, storage: Storage, finish: Finish = Finish.NOTHING) -> PlannedColumn:
        return PlannedColumn(name=column.name, kind=kind, a=a, b=b, storage=storage, arrow=arrow, finish=finish, labels=column.labels)

    match wire.type:
        case Wire.TINY | Wire.SHORT | Wire.INT24 | Wire.LONG | Wire.LONGLONG if column.base == _INTEGER_BASE[wire.type]:
            kind = (_UNSIGNED if column.unsigned else _SIGNED)[wire.type]
            return planned(kind, 0, 0, Storage(_INTEGER_WIDTH[kind]))
        case Wire.FLOAT if column.base == "float":
            return planned(kinds.FLOAT, 0, 0, Storage(4))
        case Wire.DOUBLE if column.base == "double":
            return planned(kinds.DOUBLE, 0, 0, Storage(8))
        case Wire.YEAR if column.base == "year":
            return planned(kinds.YEAR, 0, 0, Storage(4))
        case Wire.NEWDECIMAL if column.base == "decimal":
            precision, scale = wire.meta & 0xFF, wire.meta >> 8
            if (precision, scale) != (column.precision or 10, column.scale or 0):
                raise _drift(shape, f"column {column.name} has other digits in the log than in the schema")
            if not 0 < precision <= 65 or scale > min(precision, 38):
                raise Corrupt("TABLE_MAP holds impossible decimal digits", detail=f"{precision}, {scale}")
            text = pa.types.is_string(arrow)
            kind = kinds.DECIMAL_TEXT if text else kinds.DECIMAL
            return planned(kind, decimal_layout(precision, scale), 0, HEAP if text else Storage(16))
        case _ if wire.type in _TEMPORAL and _TEMPORAL_BASE[wire.type] == column.base:
            return _plan_temporal(shape, wire, column, arrow)
        case Wire.ENUM if column.base == "enum":
            size = wire.meta >> 8
            if size not in (1, 2):
                raise Corrupt("TABLE_MAP holds an impossible ENUM", detail=str(size))
            return planned(kinds.ENUM, size, len(column.labels), Storage(4), Finish.LABEL)
        case Wire.SET if column.base == "set":
            size = wire.meta >> 8
            if size not in (1, 2, 3, 4, 8):
                raise Corrupt("TABLE_MAP holds an impossible SET", detail=str(size))
            return planned(kinds.SET, size, len(column.labels), Storage(8), Finish.LABELS)
        case Wire.BIT if column.base == "bit":
            bits = (wire.meta >> 8) * 8 + (wire.meta & 0xFF)
            if not 0 < bits <= 64:
                raise Corrupt("TABLE_MAP holds an impossible BIT", detail=str(bits))
            if bits != (column.length or 1):
                raise _drift(shape, where)
            if bits == 1:
                return planned(kinds.BOOL, 1, 0, Storage(1), Finish.BOOL)
            return planned(kinds.BITS, (bits + 7) // 8, bits, HEAP)
        case Wire.JSON if column.base == "json":
            return planned(kinds.JSON, _length_bytes(wire), 0, HEAP, Finish.UTF8)
        case Wire.GEOMETRY if column.base in GEOMETRY_TYPES:
            return planned(kinds.BLOB, _length_bytes(wire), 0, HEAP)
        case Wire.VECTOR if column.base == "vector":
            return planned(kinds.BLOB, _length_bytes(wire), 0, HEAP)
        case Wire.STRING if column.base in _FIXED_TEXT:
            kind, size = _FIXED_TEXT[column.base]
            return planned(kind, size, _string_length_bytes(wire), HEAP)
        case Wire.STRING if column.base == "binary":
            size = column.length if column.length is not None else 1
            return planned(kinds.PADDED, size, _string_length_bytes(wire), HEAP)
        case Wire.STRING | Wire.VARCHAR | Wire.VAR_STRING | Wire.VARCHAR_COMPRESSED if column.base in (
            "char", "varchar", "varbinary", "binary", "vector",
        ):  # fmt: skip
            # MariaDB's VECTOR is a VARBINARY in the log.
            long = wire.meta > 255 if wire.type is not Wire.STRING else _string_length_bytes(wire) == 2
            return _plan_text(wire, column, arrow, kinds.LONG_BYTES if long else kinds.SHORT_BYTES, 0)
        case Wire.BLOB | Wire.TINY_BLOB | Wire.MEDIUM_BLOB | Wire.LONG_BLOB | Wire.BLOB_COMPRESSED if (
            column.base in TEXT_TYPES or column.base in BINARY_TYPES or column.base in ("json", *GEOMETRY_TYPES)
        ):
            return _plan_text(wire, column, arrow, kinds.BLOB, _length_bytes(wire))
        case _:
            raise _drift(shape, where)


def _plan_temporal(shape: TableMap, wire: WireColumn, column: MySqlColumn, arrow: pa.DataType) -> PlannedColumn:
    fsp = wire.meta if wire.type in (Wire.DATETIME2, Wire.TIMESTAMP2, Wire.TIME2) else 0
    if fsp > 6:
        raise Corrupt("TABLE_MAP holds an impossible number of fractional digits", detail=str(fsp))
    if column.base != "date" and fsp != column.fsp:
        raise _drift(shape, f"column {column.name} has {fsp} fractional digits in the log and {column.fsp} in the schema")
    kind, width = _TEMPORAL[wire.type]
    if pa.types.is_string(arrow):
        return PlannedColumn(name=column.name, kind=kinds.AS_TEXT[kind], a=fsp, storage=HEAP, arrow=arrow)
    return PlannedColumn(name=column.name, kind=kind, a=fsp, storage=Storage(width), arrow=arrow)


def _plan_text(wire: WireColumn, column: MySqlColumn, arrow: pa.DataType, kind: int, a: int) -> PlannedColumn:
    compressed = wire.type in (Wire.VARCHAR_COMPRESSED, Wire.BLOB_COMPRESSED)
    charset = "" if pa.types.is_binary(arrow) else canonical_charset(wire.charset or column.charset or "utf8mb4")
    if compressed:
        finish = Finish.INFLATE
    elif pa.types.is_binary(arrow):
        finish = Finish.NOTHING
    elif is_utf8(charset) or column.base == "json":
        finish = Finish.UTF8
    else:
        finish = Finish.TRANSCODE
    return PlannedColumn(name=column.name, kind=kind, a=a, storage=HEAP, arrow=arrow, finish=finish, charset=charset)


def _length_bytes(wire: WireColumn) -> int:
    if not 1 <= wire.meta <= 4:
        raise Corrupt("TABLE_MAP holds an impossible BLOB", detail=str(wire.meta))
    return wire.meta


def _string_length_bytes(wire: WireColumn) -> int:
    # Lengths over 255 borrow two bits of the type's byte.
    first, second = wire.meta & 0xFF, wire.meta >> 8
    length = second | ((first & 0x30) ^ 0x30) << 4
    return 2 if length > 255 else 1


_BLOB_BASE = {1: "tinyblob", 2: "blob", 3: "mediumblob", 4: "longblob"}
_TEXT_BASE = {1: "tinytext", 2: "text", 3: "mediumtext", 4: "longtext"}


def table_of_map(shape: TableMap) -> MySqlTable:
    """A schema made of the log's own metadata (binlog_row_metadata = FULL)."""
    columns = tuple(_column_of_wire(wire) for wire in shape.columns[: len(shape.columns) - shape.hashes])
    key = tuple(columns[index].name for index in shape.key or ())
    return MySqlTable(id=shape.table, columns=columns, key=key)


def _column_of_wire(wire: WireColumn) -> MySqlColumn:
    name = present(wire.name, "a table map has all metadata but a column's name")
    column = MySqlColumn(name=name, base="", nullable=wire.nullable, charset=wire.charset)
    binary = wire.charset == "binary"
    match wire.type:
        case Wire.TINY | Wire.SHORT | Wire.INT24 | Wire.LONG | Wire.LONGLONG:
            return replace(column, base=_INTEGER_BASE[wire.type], unsigned=bool(wire.unsigned))
        case Wire.FLOAT | Wire.DOUBLE | Wire.YEAR:
            return replace(column, base=wire.type.name.lower())
        case Wire.NEWDECIMAL:
            return replace(column, base="decimal", precision=wire.meta & 0xFF, scale=wire.meta >> 8, unsigned=bool(wire.unsigned))
        case _ if wire.type in _TEMPORAL_BASE:
            fsp = wire.meta if wire.type in (Wire.DATETIME2, Wire.TIMESTAMP2, Wire.TIME2) else 0
            return replace(column, base=_TEMPORAL_BASE[wire.type], fsp=fsp)
        case Wire.ENUM | Wire.SET:
            return replace(column, base=wire.type.name.lower(), labels=wire.labels or ())
        case Wire.BIT:
            return replace(column, base="bit", length=(wire.meta >> 8) * 8 + (wire.meta & 0xFF))
        case Wire.JSON | Wire.GEOMETRY | Wire.VECTOR:
            return replace(column, base=wire.type.name.lower())
        case Wire.STRING:
            first, second = wire.meta & 0xFF, wire.meta >> 8
            length = second | ((first & 0x30) ^ 0x30) << 4
            return replace(column, base="binary" if binary else "char", length=length)
        case Wire.VARCHAR | Wire.VAR_STRING | Wire.VARCHAR_COMPRESSED:
            return replace(column, base="varbinary" if binary else "varchar", length=wire.meta)
        case Wire.BLOB | Wire.BLOB_COMPRESSED | Wire.TINY_BLOB | Wire.MEDIUM_BLOB | Wire.LONG_BLOB:
            return replace(column, base=(_BLOB_BASE if binary else _TEXT_BASE)[_length_bytes(wire)])
        case _:
            raise Corrupt("TABLE_MAP holds a column type that rows never have", detail=wire.type.name)
