"""How the rows of a target are divided into partitions, as a route says it: `partition_by`.

    column          the column itself, an integer or a text that can't be NULL
    column:day      its day, as `_day` (2026-11-19); of a date, a datetime, or a timestamp, whose day is that of UTC
    column:month    its month, as `_month` (2026-11)
    column:value    its text, as `_partition`; it may be NULL

Laws:
- A row lies in one partition. Its identity is the source's key alone. The target's key has the partition's column too, because a lake
  merges rows within a partition only. So a change that moves a row deletes it where it was, at the same `_seq`
  (`engine.tasks.rows.change_rows`).
- The partition follows from the row alone, so that the before-image in the log tells where the row was.
- A column of ours is never NULL and never blank: such rows have the value `__DEFAULT_PARTITION__`, Paimon's name for their folder.
- A partition is a folder. So a value whose name is longer than file systems take stops its table alone, and so does one of white space that
  Python takes for blank and Java and Rust do not: they would look for its rows in different folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.errors import InvalidConfig, check
from snowmelt.model.partition import TIMED, Unit

DEFAULT: Final = "__DEFAULT_PARTITION__"
FOLDER_BYTES_MAX: Final = 255
_ESCAPED: Final = r'["#%\'*/:=?\\{}\[\]^\x00-\x1f\x7f]'
"""Characters that take three bytes in a folder's name."""
_ODD_SPACE: Final = "[\\x{85}\\x{a0}\\x{2007}\\x{202f}]"
"""White space for Python, and none for Java and Rust."""
_DAY_US: Final = 86_400_000_000
_FIELDS: Final = {Unit.DAY: "_day", Unit.MONTH: "_month", Unit.VALUE: "_partition"}


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """The partitions of one target."""

    column: str
    """Of the source."""
    unit: Unit | None = None
    """None: the column itself."""

    @classmethod
    def read(cls, text: str) -> Self:
        """What a route says. `InvalidConfig`."""
        column, colon, unit = text.rpartition(":")
        if not colon:
            column, unit = text, ""
        if not column or (colon and unit not in list(Unit)):
            hint = "a column, or its day, month or value: for example region, created_at:day, created_at:month or region:value"
            raise InvalidConfig("partition_by can't be read", detail=repr(text), hint=hint)
        return cls(column, Unit(unit) if unit else None)

    def __str__(self) -> str:
        return self.column if self.unit is None else f"{self.column}:{self.unit}"

    @property
    def field(self) -> str:
        """The target's column that its partitions are of."""
        return self.column if self.unit is None else _FIELDS[self.unit]

    @property
    def own(self) -> pa.Schema:
        """The column that the target has for it besides the source's, if any."""
        return pa.schema([] if self.unit is None else [pa.field(self.field, pa.string(), nullable=False)])

    def key(self, key: Sequence[str]) -> list[str]:
        """The target's key. One without a key stays without."""
        return [self.field, *key] if key and self.field not in key else list(key)

    def why_not(self, schema: pa.Schema, key: Sequence[str]) -> str:
        """Why a source with these columns can't be divided so; empty: it can. `key`: empty for a change table."""
        if self.column not in schema.names:
            return f"partition_by names the column {self.column}, which it does not have"
        if self.unit is not None and any(name.lower() == self.field for name in schema.names):
            return f"it has a column {self.field}, which is the name of the column for partition_by: {self}"
        field = schema.field(self.column)
        if self.unit in TIMED:
            return "" if _is_dated(field.type) else f"partition_by: {self} needs a date, a datetime or a timestamp, not {field.type}"
        if not (pa.types.is_signed_integer(field.type) or pa.types.is_string(field.type)):
            return f"partition_by: {self} needs a column of integers or of text, not {field.type}; of dates take :day or :month"
        if self.unit is Unit.VALUE:
            return ""
        if not key:
            return f"in mode changelog rows may lack their values: partition_by needs {self.column}:value"
        if field.nullable:
            return f"partition_by: {self} needs a column that can't be NULL; declare it NOT NULL, or take {self.column}:value"
        return "its whole key would be the partition" if list(key) == [self.column] else ""

    def values(self, rows: pa.RecordBatch) -> pa.Array:
        """The partition of each row."""
        column = rows.column(self.column)
        match self.unit:
            case Unit.DAY | Unit.MONTH:
                return _texts_of(_days(column), column, "M" if self.unit is Unit.MONTH else "D")
            case Unit.VALUE:
                text = pc.cast(column, pa.string())
                blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True)
                return pc.if_else(blank, DEFAULT, text)
            case None:
                return column

    def too_long(self, values: pa.Array) -> bool:
        """Whether a value has no folder."""
        if self.unit in TIMED or not pa.types.is_string(values.type) or not len(values):
            return False
        one = pc.unique(values)
        sizes = pc.add(pc.binary_length(one), pc.multiply(pc.count_substring_regex(one, _ESCAPED), 2))
        return bool((pc.max(sizes).as_py() or 0) + 3 * len(self.field.encode()) + 1 > FOLDER_BYTES_MAX)

    def is_unclear(self, values: pa.Array) -> bool:
        """Whether readers look for a value in different folders."""
        if self.unit is not None or not pa.types.is_string(values.type) or not len(values):
            return False
        one = pc.unique(values)
        return bool(pc.any(pc.and_(pc.utf8_is_space(one), pc.match_substring_regex(one, _ODD_SPACE))).as_py())


def key_in(partition: PartitionBy | None, key: Sequence[str]) -> list[str]:
    """The key of a target, with the column of its partitions."""
    return list(key) if partition is None else partition.key(key)


def _is_dated(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _days(column: pa.Array) -> Any:
    """Days since 1970-01-01, of UTC; 0 for NULL."""
    if pa.types.is_date32(column.type):
        return pc.fill_null(pc.cast(column, pa.int32()), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    check(pa.types.is_timestamp(column.type), "a day is asked of a column that has none", str(column.type))
    moments = pc.cast(pc.cast(column, pa.timestamp("us", column.type.tz)), pa.int64())
    return pc.fill_null(moments, 0).to_numpy(zero_copy_only=False) // _DAY_US


def _texts_of(days: Any, column: pa.Array, unit: str) -> pa.Array:
    """Days as texts. There are few different ones, and only those are written."""
    found, places = np.unique(days, return_inverse=True)
    texts = np.datetime_as_string(found.astype("M8[D]").astype(f"M8[{unit}]"))
    known = pa.array([*texts.tolist(), DEFAULT], pa.string())
    chosen = np.where(np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_), places, len(found))
    return known.take(pa.array(chosen, pa.int64()))
