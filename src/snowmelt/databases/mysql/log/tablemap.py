"""TABLE_MAP: the shape of a table's row images, as the log has it.

Types and their metadata are always there. Signs, charsets, names, labels and the key depend on `binlog_row_metadata`: MySQL 8
sends signs and charsets by default, FULL adds the rest; MariaDB sends nothing by default; MySQL 5.6 and 5.7 never do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from snowmelt.databases.mysql.log.events import Reader
from snowmelt.databases.mysql.types.charsets import charset_of_collation, is_utf8, transcode
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt
from snowmelt.model.table import TableId

COLUMNS_MAX = 4096


class Wire(IntEnum):
    """Type codes of columns in the log and in result sets."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_ONE_BYTE = frozenset(
    {
        Wire.FLOAT, Wire.DOUBLE, Wire.TIMESTAMP2, Wire.DATETIME2, Wire.TIME2, Wire.JSON, Wire.TINY_BLOB, Wire.MEDIUM_BLOB,
        Wire.LONG_BLOB, Wire.BLOB, Wire.GEOMETRY, Wire.BLOB_COMPRESSED, Wire.VECTOR,
    }
)  # fmt: skip
_TWO_BYTES = frozenset(
    {Wire.VARCHAR, Wire.BIT, Wire.NEWDECIMAL, Wire.ENUM, Wire.SET, Wire.VAR_STRING, Wire.STRING, Wire.VARCHAR_COMPRESSED}
)
_NUMERIC = frozenset(
    {Wire.TINY, Wire.SHORT, Wire.INT24, Wire.LONG, Wire.LONGLONG, Wire.FLOAT, Wire.DOUBLE, Wire.NEWDECIMAL, Wire.DECIMAL, Wire.YEAR}
)
_CHARACTER = frozenset(
    {
        Wire.VARCHAR, Wire.VAR_STRING, Wire.STRING, Wire.BLOB, Wire.TINY_BLOB, Wire.MEDIUM_BLOB, Wire.LONG_BLOB,
        Wire.BLOB_COMPRESSED, Wire.VARCHAR_COMPRESSED, Wire.VECTOR,
    }
)  # fmt: skip
"""Types that have a charset in the log. MySQL gives one to VECTOR too: binary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireColumn:
    """One column of a row image. `meta` holds the two metadata bytes as one little-endian number."""

    type: Wire
    meta: int
    nullable: bool
    unsigned: bool | None = None
    """None where the log doesn't say."""
    charset: str | None = None
    name: str | None = None
    labels: tuple[str, ...] | None = None
    collation_id: int | None = None


@dataclass(frozen=True, slots=True)
class TableMap:
    table: TableId
    columns: tuple[WireColumn, ...]
    key: tuple[int, ...] | None = None
    """Ordinals of the primary key, where the log has them."""

    @property
    def named(self) -> bool:
        return all(column.name is not None for column in self.columns)

    @property
    def hashes(self) -> int:
        """How many columns at the end are hashes that MariaDB keeps for unique indexes on TEXT and BLOB, where the log names them."""
        found = 0
        while found < len(self.columns) and _HASH.match(self.columns[-1 - found].name or ""):
            found += 1
        return found

    @property
    def maybe_sequence(self) -> bool:
        """Whether it has the columns of a MariaDB sequence, whose steps are logged as rows."""
        names = tuple(column.name for column in self.columns)
        same = tuple(column.type for column in self.columns) == _SEQUENCE_TYPES and not any(column.nullable for column in self.columns)
        return same and (not self.named or names == _SEQUENCE_NAMES)


_HASH = re.compile(r"DB_ROW_HASH_\d+$")
_SEQUENCE_TYPES = (*([Wire.LONGLONG] * 6), Wire.TINY, Wire.LONGLONG)
_SEQUENCE_NAMES = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment", "cache_size", "cycle_option", "cycle_count",
)  # fmt: skip


def read_table_map(body: bytes, flavour: Flavour) -> TableMap:
    """A TABLE_MAP event's body, the six bytes of table id and two of flags included."""
    reader = Reader(body, "TABLE_MAP")
    table = _mapped(reader)
    count = reader.packed()
    if not 0 < count <= COLUMNS_MAX:
        raise Corrupt("TABLE_MAP holds an impossible number of columns", detail=str(count))
    codes = reader.take(count)
    metas = Reader(reader.take(reader.packed()), "TABLE_MAP")
    nulls = reader.take((count + 7) // 8)
    types: list[Wire] = []
    meta: list[int] = []
    for code in codes:
        try:
            wire = Wire(code)
        except ValueError:
            raise Corrupt("TABLE_MAP holds an unknown column type", detail=str(code)) from None
        value = metas.number(2) if wire in _TWO_BYTES else metas.number(1) if wire in _ONE_BYTE else 0
        if wire is Wire.STRING and value & 0xFF in (Wire.ENUM, Wire.SET):
            # ENUM and SET have the type STRING; their real type is in the first byte of the metadata.
            wire = Wire(value & 0xFF)
        types.append(wire)
        meta.append(value)
    if metas.left:
        raise Corrupt("TABLE_MAP holds more metadata than its columns have")
    optional = _read_optional(reader, types, flavour)
    columns = tuple(
        WireColumn(
            type=types[i],
            meta=meta[i],
            nullable=bool(nulls[i >> 3] >> (i & 7) & 1),
            unsigned=optional.unsigned.get(i),
            charset=charset_of_collation(optional.collation[i]) if i in optional.collation else None,
            name=optional.names[i] if optional.names else None,
            labels=optional.labels.get(i),
            collation_id=optional.collation.get(i),
        )
        for i in range(count)
    )
    return TableMap(table, columns, optional.key)


def mapped_table(body: bytes) -> TableId:
    """The table of a TABLE_MAP event, and nothing more of it."""
    return _mapped(Reader(body, "TABLE_MAP"))


def _mapped(reader: Reader) -> TableId:
    reader.take(8)
    database = reader.text(reader.number(1))
    reader.take(1)
    name = reader.text(reader.number(1))
    reader.take(1)
    return TableId(database, name)


@dataclass(slots=True)
class _Optional:
    unsigned: dict[int, bool]
    collation: dict[int, int]
    names: list[str]
    labels: dict[int, tuple[str, ...]]
    key: tuple[int, ...] | None = None


def _read_optional(reader: Reader, types: list[Wire], flavour: Flavour) -> _Optional:
    found = _Optional({}, {}, [], {})
    raw_labels: dict[int, list[bytes]] = {}
    # To MariaDB a geometry is a blob, with the binary charset.
    character = [i for i, wire in enumerate(types) if wire in _CHARACTER or (wire is Wire.GEOMETRY and flavour == "mariadb")]
    choices = [i for i, wire in enumerate(types) if wire in (Wire.ENUM, Wire.SET)]
    while reader.left:
        field = reader.number(1)
        value = Reader(reader.take(reader.packed()), "TABLE_MAP's optional metadata")
        match field:
            case 1:
                numeric = [i for i, wire in enumerate(types) if wire in _NUMERIC]
                bits = value.take((len(numeric) + 7) // 8)
                found.unsigned.update({column: bool(bits[n >> 3] & 0x80 >> (n & 7)) for n, column in enumerate(numeric)})
            case 2 | 10:
                columns = character if field == 2 else choices
                default = value.packed()
                found.collation.update(dict.fromkeys(columns, default))
                while value.left:
                    index = value.packed()
                    if index >= len(columns):
                        raise Corrupt("TABLE_MAP gives a charset to a column that it has not")
                    found.collation[columns[index]] = value.packed()
            case 3 | 11:
                for column in character if field == 3 else choices:
                    found.collation[column] = value.packed()
            case 4:
                found.names = [value.text(value.packed()) for _ in types]
            case 5 | 6:
                wire = Wire.SET if field == 5 else Wire.ENUM
                for column in (i for i in choices if types[i] is wire):
                    raw_labels[column] = [value.take(value.packed()) for _ in range(value.packed())]
            case 8:
                keys: list[int] = []
                while value.left:
                    keys.append(value.packed())
                found.key = tuple(keys)
            case 9:
                pairs: list[int] = []
                while value.left:
                    pairs.append(value.packed())
                    value.packed()
                found.key = tuple(pairs)
            case _:
                # Geometry types, visibility, vector dimensions and what later servers add don't change how rows are read.
                value.rest()
        if value.left:
            raise Corrupt("TABLE_MAP's optional metadata is longer than its columns need", detail=f"field {field}")
    if found.key and max(found.key) >= len(types):
        raise Corrupt("TABLE_MAP's key names a column that it has not")
    for column, labels in raw_labels.items():
        found.labels[column] = tuple(_label(raw, found.collation.get(column), flavour) for raw in labels)
    return found


def _label(raw: bytes, collation: int | None, flavour: Flavour) -> str:
    # Labels are in the column's charset, as its values would be.
    charset = charset_of_collation(collation) if collation is not None else "utf8mb4"
    if not is_utf8(charset) and charset != "binary":
        _, text = transcode(charset, np.array([0, len(raw)], np.int32), np.frombuffer(raw, np.uint8), 1, flavour=flavour)
        raw = text.tobytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Corrupt("TABLE_MAP holds a label that is not text") from None
