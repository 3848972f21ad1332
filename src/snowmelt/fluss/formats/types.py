"""The schemas of a Fluss table as its server describes them, and what their columns are in Arrow and in Paimon.

A column has three forms. `wire` is its form in Arrow batches of Fluss' log. `arrow` is the form that our readers return, the
same for a row of a KV snapshot and of the log; Paimon's writer takes it. `paimon` is the type that Fluss' own coordinator gives it in
the lake.

Laws:
- A column is identified by its id, as in the lake: a row of an older schema is read by ids, and columns that it lacks are NULL.
- Times of day are milliseconds, whatever their precision: Fluss stores no more.
- A type that can't be read is refused as soon as a schema is read; such a table is not read in part.
- Arrays, maps and rows nest as deep as `_DEPTH_MAX`, and are never part of a key. Keys of maps are never NULL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, check

COMPACT_DECIMAL_DIGITS: Final = 18
COMPACT_TIMESTAMP_DIGITS: Final = 3
"""Decimals and timestamps up to these precisions are stored as one number."""

_COLUMNS_MAX: Final = 10_000
_DEPTH_MAX: Final = 32
"""For types in types. Arrow's readers have a limit of 64, and a map takes two levels of it."""


class Root(StrEnum):
    """Fluss' names of its types."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DECIMAL = "DECIMAL"
    CHAR = "CHAR"
    STRING = "STRING"
    BINARY = "BINARY"
    BYTES = "BYTES"
    DATE = "DATE"
    TIME = "TIME_WITHOUT_TIME_ZONE"
    TIMESTAMP = "TIMESTAMP_WITHOUT_TIME_ZONE"
    TIMESTAMP_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"


NESTED: Final = frozenset({Root.ARRAY, Root.MAP, Root.ROW})
_ROOTS: Final = frozenset(root.value for root in Root)

_SAME: Final[Mapping[Root, tuple[pa.DataType, str]]] = {
    Root.BOOLEAN: (pa.bool_(), "BOOLEAN"),
    Root.TINYINT: (pa.int8(), "TINYINT"),
    Root.SMALLINT: (pa.int16(), "SMALLINT"),
    Root.INTEGER: (pa.int32(), "INT"),
    Root.BIGINT: (pa.int64(), "BIGINT"),
    Root.FLOAT: (pa.float32(), "FLOAT"),
    Root.DOUBLE: (pa.float64(), "DOUBLE"),
    Root.STRING: (pa.string(), "STRING"),
    Root.BYTES: (pa.binary(), "BYTES"),
    Root.DATE: (pa.date32(), "DATE"),
}
"""Types without parameters: one form in Arrow, and a name in Paimon."""


@dataclass(frozen=True, slots=True)
class FlussType:
    """`length` is of CHAR and BINARY, `precision` of decimals, times and timestamps, `scale` of decimals.

    `children` are an array's element, a map's key and value, or a row's fields, which have `names`.
    """

    root: Root
    nullable: bool = True
    length: int = 0
    precision: int = 0
    scale: int = 0
    children: tuple[FlussType, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = {Root.ARRAY: 1, Root.MAP: 2, Root.ROW: len(self.names)}.get(self.root, 0)
        check(len(self.children) == count, "a type does not have the types that it is made of", self.root)
        check(self.root is not Root.MAP or not self.children[0].nullable, "a map has keys that may be NULL")

    @staticmethod
    def array(element: FlussType, nullable: bool = True) -> FlussType:
        return FlussType(root=Root.ARRAY, nullable=nullable, children=(element,))

    @staticmethod
    def map(key: FlussType, value: FlussType, nullable: bool = True) -> FlussType:
        """Its keys are not NULL, whatever `key` says, as in Fluss."""
        return FlussType(root=Root.MAP, nullable=nullable, children=(replace(key, nullable=False), value))

    @staticmethod
    def row(fields: Mapping[str, FlussType], nullable: bool = True) -> FlussType:
        return FlussType(root=Root.ROW, nullable=nullable, children=tuple(fields.values()), names=tuple(fields))

    @property
    def nested(self) -> bool:
        return self.root in NESTED

    @property
    def unit(self) -> str:
        """Arrow's unit for the precision of a time or timestamp."""
        return "s" if self.precision == 0 else "ms" if self.precision <= 3 else "us" if self.precision <= 6 else "ns"

    @property
    def wire(self) -> pa.DataType:
        match self.root:
            case Root.MAP:
                # The same buffers. Arrow's library crashes on a map with a NULL key, so it must not see one unchecked.
                key, value = (child.wire for child in self.children)
                return pa.list_(pa.struct({"key": key, "value": value}))
            case Root.ARRAY | Root.ROW:
                return self._nested_arrow([child.wire for child in self.children])
            case Root.BINARY:
                return pa.binary(self.length)
            case Root.TIME:
                return pa.time32(self.unit) if self.precision <= 3 else pa.time64(self.unit)
            case _:
                return self.arrow

    @property
    def arrow(self) -> pa.DataType:
        match self.root:
            case Root.CHAR:
                return pa.string()
            case Root.BINARY:
                return pa.binary()
            case Root.DECIMAL:
                return pa.decimal128(self.precision, self.scale)
            case Root.TIME:
                return pa.time32("ms")
            case Root.TIMESTAMP:
                return pa.timestamp(self.unit)
            case Root.TIMESTAMP_LTZ:
                # The log leaves the zone out; the bytes are the same.
                return pa.timestamp(self.unit, "UTC")
            case Root.ARRAY | Root.MAP | Root.ROW:
                return self._nested_arrow([child.arrow for child in self.children])
            case _:
                return _SAME[self.root][0]

    def _nested_arrow(self, types: Sequence[pa.DataType]) -> pa.DataType:
        names = {Root.ARRAY: ("item",), Root.MAP: ("key", "value")}.get(self.root, self.names)
        fields = [pa.field(name, kind, child.nullable) for name, kind, child in zip(names, types, self.children, strict=True)]
        match self.root:
            case Root.ARRAY:
                return pa.list_(fields[0])
            case Root.MAP:
                return pa.map_(*fields)
            case _:
                return pa.struct(fields)

    @property
    def paimon(self) -> str | dict[str, Any]:
        """As in Paimon's schema files, without the ids of a row's fields, which the table gives."""
        match self.root:
            case Root.ARRAY | Root.MAP | Root.ROW:
                return self._nested_paimon()
            case Root.CHAR | Root.BINARY:
                text = f"{self.root}({self.length})"
            case Root.DECIMAL:
                text = f"DECIMAL({self.precision}, {self.scale})"
            case Root.TIME:
                text = "TIME(0)"
            case Root.TIMESTAMP:
                text = f"TIMESTAMP({self.precision})"
            case Root.TIMESTAMP_LTZ:
                text = f"TIMESTAMP({self.precision}) WITH LOCAL TIME ZONE"
            case _:
                text = _SAME[self.root][1]
        return text if self.nullable else f"{text} NOT NULL"

    def _nested_paimon(self) -> dict[str, Any]:
        described: dict[str, Any] = {"type": self.root.value if self.nullable else f"{self.root} NOT NULL"}
        types = [child.paimon for child in self.children]
        match self.root:
            case Root.ARRAY:
                described["element"] = types[0]
            case Root.MAP:
                described["key"], described["value"] = types
            case _:
                described["fields"] = [{"name": name, "type": kind} for name, kind in zip(self.names, types, strict=True)]
        return described

    @property
    def json(self) -> dict[str, Any]:
        """As Fluss writes a type, without the ids of a row's fields, which the table gives."""
        described: dict[str, Any] = {"type": self.root.value}
        if not self.nullable:
            described["nullable"] = False
        if self.root in (Root.CHAR, Root.BINARY):
            described["length"] = self.length
        if self.root in (Root.DECIMAL, Root.TIME, Root.TIMESTAMP, Root.TIMESTAMP_LTZ):
            described["precision"] = self.precision
        if self.root is Root.DECIMAL:
            described["scale"] = self.scale
        types = [child.json for child in self.children]
        match self.root:
            case Root.ARRAY:
                described["element_type"] = types[0]
            case Root.MAP:
                described["key_type"], described["value_type"] = types
            case Root.ROW:
                described["fields"] = [{"name": name, "field_type": kind} for name, kind in zip(self.names, types, strict=True)]
            case _:
                pass  # the others have no types inside
        return described


@dataclass(frozen=True, slots=True)
class Column:
    id: int
    name: str
    type: FlussType

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type.arrow, self.type.nullable)


@dataclass(frozen=True, slots=True)
class Schema:
    """One of a table's schemas; `id` counts them from 1."""

    id: int
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise Corrupt("a table's key names a column that it has not", detail=name)


@dataclass(frozen=True, slots=True)
class Versions:
    """The schema that a plan reads with, and all older ones, with which rows may have been written."""

    target: Schema
    by_id: Mapping[int, Schema]

    def __post_init__(self) -> None:
        check(self.by_id.get(self.target.id) == self.target, "the schema of a plan is none of its versions")

    @staticmethod
    def one(schema: Schema) -> Versions:
        return Versions(schema, {schema.id: schema})

    def places(self, schema_id: int) -> tuple[int, ...] | None:
        """For each column of that schema its place in the target; None: the schema is unknown.

        Fluss only adds columns. If a column was dropped or retyped, nothing is guessed.
        """
        schema = self.by_id.get(schema_id)
        if schema is None:
            return None
        at = {column.id: place for place, column in enumerate(self.target.columns)}
        places = []
        for column in schema.columns:
            place = at.get(column.id)
            if place is None or self.target.columns[place].type.arrow != column.type.arrow:
                raise SourceDrift(
                    "a column of an older schema is gone, or of another type",
                    detail=f"{column.name} of schema {schema_id}, not in schema {self.target.id}",
                    hint="tier the table anew",
                )
            places.append(place)
        return tuple(places)


_PRECISIONS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_ROOT_OF: Final = {arrow: root for root, (arrow, _) in _SAME.items()}


def type_of(field: pa.Field) -> FlussType | None:
    """The Fluss type for a column of Arrow, such that our readers return the same again; None: there is none."""
    if (root := _ROOT_OF.get(field.type)) is not None:
        return FlussType(root=root, nullable=field.nullable)
    if pa.types.is_decimal128(field.type):
        return FlussType(root=Root.DECIMAL, nullable=field.nullable, precision=field.type.precision, scale=field.type.scale)
    if pa.types.is_timestamp(field.type) and field.type.tz in (None, "UTC"):
        root = Root.TIMESTAMP if field.type.tz is None else Root.TIMESTAMP_LTZ
        return FlussType(root=root, nullable=field.nullable, precision=_PRECISIONS[field.type.unit])
    return None


def read_schema(schema_id: int, schema_json: str | bytes) -> Schema:
    """A schema from the server's description."""
    try:
        return _schema(schema_id, json.loads(schema_json))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Corrupt("the schema of a Fluss table can't be read", detail=f"schema {schema_id}, {type(error).__name__}") from None


def _schema(schema_id: int, document: Any) -> Schema:
    columns = tuple(
        # Tables of the first versions have no ids. They were never changed, so places serve as ids.
        Column(int(column.get("id", place)), str(column["name"]), _type(str(column["name"]), column["data_type"], 1))
        for place, column in enumerate(document["columns"][: _COLUMNS_MAX + 1])
    )
    key = tuple(str(name) for name in document.get("primary_key", ()))
    names = {column.name for column in columns}
    if not 0 < len(columns) <= _COLUMNS_MAX or len(names) != len(columns) or len({column.id for column in columns}) != len(columns):
        raise ValueError
    if not names.issuperset(key):
        raise ValueError
    if nested := [column for column in columns if column.name in key and column.type.nested]:
        raise _unsupported(nested[0].name, nested[0].type.root, "a key of arrays, maps or rows can't be compared; leave the table out")
    return Schema(schema_id, columns, key)


def _type(column: str, document: Any, depth: int) -> FlussType:
    """`depth`: the number of types around it, including itself."""
    name = str(document["type"])
    nullable = document.get("nullable", True)
    if name not in _ROOTS:
        raise _unsupported(column, name, "leave the table out")
    if not isinstance(nullable, bool):
        raise TypeError
    root = Root(name)
    if root in NESTED:
        if depth > _DEPTH_MAX:
            raise _unsupported(column, name, f"types nest up to {_DEPTH_MAX} deep; leave the table out")
        return _nested(column, root, nullable, document, depth + 1)
    length = precision = scale = 0
    if root in (Root.CHAR, Root.BINARY):
        length = int(document["length"])
        if not 0 < length < 1 << 31:
            raise ValueError
    elif root is Root.DECIMAL:
        precision, scale = int(document["precision"]), int(document["scale"])
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise ValueError
    elif root in (Root.TIME, Root.TIMESTAMP, Root.TIMESTAMP_LTZ):
        precision = int(document["precision"])
        if not 0 <= precision <= 9:
            raise ValueError
    return FlussType(root=root, nullable=nullable, length=length, precision=precision, scale=scale)


def _nested(column: str, root: Root, nullable: bool, document: Any, depth: int) -> FlussType:
    if root is Root.ARRAY:
        return FlussType.array(_type(f"{column}.element", document["element_type"], depth), nullable)
    if root is Root.MAP:
        key, value = (_type(f"{column}.{part}", document[f"{part}_type"], depth) for part in ("key", "value"))
        return FlussType.map(key, value, nullable)
    listed = document["fields"]
    if not listed:
        # No file format of the lake holds it.
        raise _unsupported(column, root, "a row without fields has no form in the lake; leave the table out")
    fields = {str(field["name"]): _type(f"{column}.{field['name']}", field["field_type"], depth) for field in listed[: _COLUMNS_MAX + 1]}
    if len(fields) != len(listed) or len(fields) > _COLUMNS_MAX:
        raise ValueError
    return FlussType.row(fields, nullable)


def _unsupported(column: str, name: str, hint: str) -> InvalidConfig:
    return InvalidConfig("a column of a Fluss table has a type that is not supported", detail=f"{column[:200]}: {name[:40]}", hint=hint)
