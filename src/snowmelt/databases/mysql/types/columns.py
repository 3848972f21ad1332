"""Columns and tables of MySQL and MariaDB, and the one Arrow type that chunk reads and the log give for each.

A value read by a chunk and the same value decoded from the log are equal Arrow values of the type below: that is the
canonical form of a value, keys included. Spark has no unsigned integers, so they widen:

    TINYINT..BIGINT            int8 .. int64           UNSIGNED: int16, int32, int32, int64, decimal128(20, 0)
    FLOAT, DOUBLE              float32, float64        bit for bit
    DECIMAL(p, s)              decimal128(p, s)        p > 38: string, as the server prints it
    DATE, DATETIME, TIMESTAMP  date32, timestamp[us], timestamp[us, UTC]
                               a zero or impossible date is NULL and counted, or all are strings (`zero_dates`)
    TIME                       int64 microseconds, or duration[us], or string (`time_as`)
    YEAR                       int32
    CHAR .. LONGTEXT, ENUM     string (UTF-8)
    SET                        list<string>
    BINARY .. LONGBLOB         binary                  BINARY(n) padded with zero bytes to n
    BIT(1), BIT(n)             bool, binary            big-endian, (n + 7) / 8 bytes
    JSON                       string                  the text that SELECT gives
    GEOMETRY                   binary                  4 bytes of SRID (little-endian), then WKB
    UUID, INET4, INET6         string                  MariaDB; the text that SELECT gives
    VECTOR                     binary                  little-endian float32s
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Literal

import pyarrow as pa

from snowmelt.errors import InvalidConfig, InvariantBroken, instance
from snowmelt.model.table import TableId
from snowmelt.store.codec import decode, encode

Flavour = Literal["mysql", "mariadb"]
"""Which of the two servers: they share a protocol and differ in what they write with it."""

DECIMAL_DIGITS_MAX = 38
"""What decimal128, Spark and the lakes hold."""


class ZeroDates(StrEnum):
    """What becomes of 0000-00-00 and of dates that no calendar has."""

    NULL = "null"
    STRING = "string"


class TimeAs(StrEnum):
    """What TIME, which spans ±838:59:59, becomes."""

    MICROS = "micros"
    INTERVAL = "interval"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """A user's choices where a type has no single natural form."""

    zero_dates: ZeroDates = ZeroDates.NULL
    time_as: TimeAs = TimeAs.MICROS


INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
TEXT_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BINARY_TYPES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRY_TYPES = frozenset(
    {
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlColumn:
    """A column as the server's catalogue or a DDL statement describes it."""

    name: str
    base: str
    """The type's plain name in lower case, as `information_schema.columns.data_type` says: int, varchar, enum, json, …"""
    unsigned: bool = False
    length: int | None = None
    """Characters of char and varchar, bytes of binary and varbinary, bits of bit."""
    precision: int | None = None
    scale: int | None = None
    fsp: int = 0
    """Fractional digits of a second."""
    charset: str | None = None
    collation: str | None = None
    labels: tuple[str, ...] = ()
    """Of enum and set."""
    nullable: bool = True
    generated: Literal["virtual", "stored"] | None = None
    invisible: bool = False
    auto_increment: bool = False
    default: str | None = None
    """As the catalogue prints it; None where there is none or where it is NULL."""
    comment: str = ""

    def arrow(self, options: TypeOptions) -> pa.DataType:
        """The canonical type of this column's values."""
        return arrow_type(self, options)


IMPLICIT_PERIOD = tuple(
    MySqlColumn(name=name, base="timestamp", fsp=6, nullable=False, generated="stored", invisible=True) for name in ("row_start", "row_end")
)
"""What MariaDB appends to a system-versioned table that declares no period: in the log's rows, hidden by the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlTable:
    """A table's shape at one position of the log."""

    kind: ClassVar[str] = "mysql"

    id: TableId
    columns: tuple[MySqlColumn, ...]
    """In the order of the log's row images, invisible and generated ones included."""
    key: tuple[str, ...] = ()
    """The primary key, else the first unique key whose columns are all NOT NULL; empty where there is neither."""
    key_is_primary: bool = True
    engine: str = "InnoDB"
    charset: str | None = None
    """The default for columns that DDL adds."""
    collation: str | None = None
    comment: str = ""

    def record(self) -> bytes:
        return encode(self)

    @staticmethod
    def of_record(raw: bytes) -> MySqlTable:
        return decode(MySqlTable, raw)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> MySqlColumn:
        # The server's spelling first: servers fold case otherwise than Python does, and `ss` and `ß` may be two columns.
        for column in self.columns:
            if column.name == name:
                return column
        for column in self.columns:
            if column.name.lower() == name.lower():
                return column
        raise InvariantBroken(f"{self.id} has no column {name!r}")

    def fingerprint(self) -> str:
        """Equal for two shapes by which rows are read in the same way: comments, defaults and AUTO_INCREMENT don't count."""
        shape = [
            (
                c.name,
                c.base,
                c.unsigned,
                c.length,
                c.precision,
                c.scale,
                c.fsp,
                c.charset,
                c.collation,
                c.labels,
                c.nullable,
                c.generated,
            )
            for c in self.columns
        ]
        return hashlib.sha256(repr((str(self.id), shape, self.key)).encode()).hexdigest()[:32]

    def arrow_schema(self, options: TypeOptions) -> pa.Schema:
        """The columns' canonical types. A temporal column is nullable whatever the source says: zero dates become NULL."""
        return pa.schema([pa.field(c.name, c.arrow(options), nullable=lake_nullable(c, options)) for c in self.columns])


def own(table: object) -> MySqlTable:
    """A shape as MySQL's own type. The engine knows it only by the contract."""
    return instance(table, MySqlTable, "a table of another database")


def lake_nullable(column: MySqlColumn, options: TypeOptions) -> bool:
    """Whether NULL can come out of this column."""
    dated = column.base in ("date", "datetime", "timestamp") and options.zero_dates is ZeroDates.NULL
    return column.nullable or dated


def arrow_type(column: MySqlColumn, options: TypeOptions) -> pa.DataType:
    """The table in this module's opening words, as code."""
    base = column.base
    match base:
        case "tinyint":
            return pa.int16() if column.unsigned else pa.int8()
        case "smallint":
            return pa.int32() if column.unsigned else pa.int16()
        case "mediumint" | "year":
            return pa.int32()
        case "int":
            return pa.int64() if column.unsigned else pa.int32()
        case "bigint":
            return pa.decimal128(20, 0) if column.unsigned else pa.int64()
        case "float":
            return pa.float32()
        case "double":
            return pa.float64()
        case "decimal":
            precision = column.precision or 10
            return pa.decimal128(precision, column.scale or 0) if precision <= DECIMAL_DIGITS_MAX else pa.string()
        case "date" if options.zero_dates is ZeroDates.NULL:
            return pa.date32()
        case "datetime" if options.zero_dates is ZeroDates.NULL:
            return pa.timestamp("us")
        case "timestamp" if options.zero_dates is ZeroDates.NULL:
            return pa.timestamp("us", "UTC")
        case "date" | "datetime" | "timestamp":
            return pa.string()
        case "time":
            return {TimeAs.MICROS: pa.int64(), TimeAs.INTERVAL: pa.duration("us"), TimeAs.STRING: pa.string()}[options.time_as]
        case "bit":
            return pa.bool_() if (column.length or 1) == 1 else pa.binary()
        case "set":
            return pa.list_(pa.string())
        case "enum" | "json" | "uuid" | "inet4" | "inet6":
            return pa.string()
        case "vector":
            return pa.binary()
        case _ if base in TEXT_TYPES:
            return pa.string()
        case _ if base in BINARY_TYPES or base in GEOMETRY_TYPES:
            return pa.binary()
        case _:
            raise InvalidConfig(f"columns of type {base} are not supported", detail=column.name, hint="exclude the table")
