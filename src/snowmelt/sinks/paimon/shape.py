"""The columns of a Paimon table: what they may be called, and what may become of them.

Laws:
- A column is its field id. A name may change and the id stays; an id is never given twice, so that a column that was dropped and
  comes back shows nothing of what it was.
- Old files are read as they are. So a type changes only to one in which both of pypaimon's readers show every old value
  unchanged, filtered or not: `docs/decisions/0009`. Any other change needs an empty table, and gives the column a new id.
- Columns of the key change their names alone. A row's bucket is a hash of the key's bytes, which are others in another type.
- The order is part of the shape: the native writer takes columns by place, and wants all of them.
- Our own columns stand after those of the source, and stay.
- The column that partitions are of stays as it is, also where the table has a column of ours for them: rows that are there keep the
  partition that they have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from snowmelt.errors import RECOPY, InvalidConfig, SourceDrift, check
from snowmelt.model.table import SYSTEM_COLUMNS
from snowmelt.sinks.partitions import PartitionBy

_PAIMON: Final = frozenset({"_sequence_number", "_value_kind", "_level", "_row_id", "rowkind"})
BUCKET: Final = "bucket"
"""The option that has the number of buckets."""
_PAIMON_KEY: Final = "_key_"
_DIGITS: Final = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
_EXACT: Final = frozenset(
    {("TINYINT", "FLOAT"), ("SMALLINT", "FLOAT"), ("TINYINT", "DOUBLE"), ("SMALLINT", "DOUBLE"), ("INT", "DOUBLE"), ("FLOAT", "DOUBLE")}
)
"""Numbers that a binary fraction holds exactly."""
_DECIMAL: Final = re.compile(r"DECIMAL\(([0-9]+), *([0-9]+)\)")


def wrong_name(names: Iterable[str]) -> str:
    """What is wrong with the names of a source's columns; empty: nothing. Many readers of a lake ignore case, so we do."""
    seen: dict[str, str] = {}
    for name in names:
        folded = name.lower()
        if folded in SYSTEM_COLUMNS or folded in _PAIMON or folded.startswith(_PAIMON_KEY):
            return f"column {name} has a name that we or Paimon need"
        if folded in seen:
            return f"columns {seen[folded]} and {name} differ in case alone"
        seen[folded] = name
    return ""


def columns(target: str, schema: pa.Schema) -> list[Any]:
    """Arrow's columns as fields of Paimon, of ids that mean nothing yet."""
    from pypaimon.schema.data_types import DataField, PyarrowFieldParser

    fields = []
    for column in schema:
        try:
            kind = PyarrowFieldParser.to_paimon_type(column.type, column.nullable)
        except ValueError as error:
            raise InvalidConfig(
                "a column's type has no form in Paimon",
                detail=f"{target}.{column.name}: {column.type}",
                hint="have it read as another type, or exclude it",
            ) from error
        fields.append(DataField(-1, column.name, kind))
    return fields


def difference(fields: Sequence[Any], wanted: Sequence[Any]) -> str:
    """How a table's columns differ from those wanted, by the first of them; empty: not at all.

    One that may be NULL where it need not be is no difference; one that can't be where it must is.
    """
    for place, (field, want) in enumerate(zip(fields, wanted, strict=False), 1):
        if (field.name, _text(field.type)) != (want.name, _text(want.type)) or (want.type.nullable and not field.type.nullable):
            return f"column {place} is {field.name} {field.type}, not {want.name} {want.type}"
    if len(fields) != len(wanted):
        return f"it has {len(fields)} columns, not {len(wanted)}"
    return ""


def reshaped(
    target: str,
    old: Any,
    wanted: Sequence[Any],
    key: Sequence[str],
    renamed: Mapping[str, str],
    *,
    emptied: bool,
    partition: PartitionBy | None = None,
) -> Any:
    """The schema after `old` in which the source's columns are those `wanted`; None: it is as it has to be."""
    from pypaimon.schema.data_types import AtomicInteger, DataField, DataTypeParser, reassign_field_id
    from pypaimon.schema.schema_manager import SchemaManager
    from pypaimon.schema.table_schema import TableSchema

    names = [field.name for field in wanted]
    ours = SYSTEM_COLUMNS.union(partition.own.names if partition else ())
    if partition is not None:
        _check_partition(target, partition, old.fields, wanted, renamed, emptied=emptied)
    check(set(key) <= ours.union(names), "a key has columns that are not there", target)
    if [renamed.get(name, name) for name in old.primary_keys] != list(key):
        raise _drift("the key of a table was changed", f"{target}: from {_listed(old.primary_keys)} to {_listed(key)}")
    if wrong := wrong_name(names):
        raise SourceDrift(
            "a column can't be brought to the lake", detail=f"{target}: {wrong}", hint=f"rename it in the source; then {RECOPY}"
        )

    source = [field for field in old.fields if field.name not in ours]
    before = {field.name: field for field in source if field.name not in renamed}
    # After the others: a column may get the name of one that was dropped.
    before |= {renamed[field.name]: field for field in source if field.name in renamed}
    highest = AtomicInteger(max([old.highest_field_id, *(field.id for field in old.fields)]))
    fields = []
    for want in wanted:
        was = before.get(want.name)
        if was is not None and _text(was.type) == _text(want.type):
            kind = DataTypeParser.parse_data_type(was.type.to_dict())
            kind.nullable = want.type.nullable
            fields.append(DataField(was.id, want.name, kind, was.description, was.default_value))
        elif was is not None and want.name not in key and widens(was.type, want.type):
            fields.append(DataField(was.id, want.name, want.type, was.description, was.default_value))
        elif was is None or (emptied and want.name not in key):
            number = highest.increment_and_get()
            fields.append(DataField(number, want.name, reassign_field_id(want.type, highest)))
        else:
            fact = (
                "the type of a key's column was changed"
                if want.name in key
                else "a column's type was changed to one that old files can't be read in"
            )
            raise _drift(fact, f"{target}.{want.name}: from {_text(was.type)} to {_text(want.type)}")
    fields += [field for field in old.fields if field.name in ours]
    if fields == old.fields:
        return None
    return TableSchema(
        version=old.version,
        id=old.id + 1,
        fields=fields,
        highest_field_id=highest.get(),
        partition_keys=old.partition_keys,
        primary_keys=list(key),
        options=SchemaManager._apply_rename_columns_to_options(dict(old.options), dict(renamed)),
        comment=old.comment,
    )


def rescaled(old: Any, buckets: int) -> Any:
    """The schema after `old` with another number of buckets; None: it has that number."""
    from pypaimon.schema.table_schema import TableSchema

    if int(old.options[BUCKET]) == buckets:
        return None
    return TableSchema(
        version=old.version,
        id=old.id + 1,
        fields=old.fields,
        highest_field_id=old.highest_field_id,
        partition_keys=old.partition_keys,
        primary_keys=old.primary_keys,
        options={**old.options, BUCKET: str(buckets)},
        comment=old.comment,
    )


def _check_partition(
    target: str, partition: PartitionBy, old: Sequence[Any], wanted: Sequence[Any], renamed: Mapping[str, str], *, emptied: bool
) -> None:
    """The column that tells the partition must stay what it was. Only one whose partitions are in a column of ours may be another column of
    that name, or have another type, and only in a table that is empty by then."""
    anew = emptied and partition.unit is not None
    name = partition.column
    was, now = (next((field for field in fields if field.name == name), None) for fields in (old, wanted))
    if was is None or now is None or (name in renamed and not anew):
        raise _drift("the column that a lake table is partitioned by was dropped or renamed", f"{target}.{name}")
    if _text(was.type) != _text(now.type) and not anew:
        fact = "the type of the column that a lake table is partitioned by was changed"
        raise _drift(fact, f"{target}.{name}: from {_text(was.type)} to {_text(now.type)}")


def widens(was: Any, wanted: Any) -> bool:
    """Whether files of one type are read in another by every reader, each value unchanged."""
    old, new = _text(was), _text(wanted)
    if old in _DIGITS and new in _DIGITS:
        return _DIGITS[old] < _DIGITS[new]
    if (wider := _DECIMAL.fullmatch(new)) is not None:
        scale = int(wider[2])
        integers = int(wider[1]) - scale
        if old in _DIGITS:
            return integers >= _DIGITS[old]
        narrower = _DECIMAL.fullmatch(old)
        return narrower is not None and scale >= int(narrower[2]) and integers >= int(narrower[1]) - int(narrower[2])
    return (old, new) in _EXACT


def _text(kind: Any) -> str:
    """A type without whether it may be NULL."""
    return str(kind).removesuffix(" NOT NULL")


def _listed(names: Sequence[str]) -> str:
    return f"({', '.join(names)})" if names else "none"


def _drift(fact: str, detail: str) -> SourceDrift:
    return SourceDrift(fact, detail=detail, hint=RECOPY)
