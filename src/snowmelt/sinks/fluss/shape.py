"""The columns of a source's table as Fluss has them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from snowmelt.errors import InvalidConfig
from snowmelt.fluss.answers import TableInfo
from snowmelt.fluss.formats.types import Column, type_of

SYSTEM_NAMES: Final = frozenset({"__offset", "__timestamp", "__bucket"})


def columns_of(target: str, schema: pa.Schema) -> list[Column]:
    columns = []
    for place, one in enumerate(schema):
        kind = type_of(one)
        if kind is None or one.name.lower() in SYSTEM_NAMES:
            what = "has a type that has no form in Fluss" if kind is None else "has a name that Fluss needs"
            raise InvalidConfig(
                f"a column {what}",
                detail=f"{target}.{one.name}: {one.type}",
                hint="have it read as another type, rename it, or exclude the table",
            )
        columns.append(Column(place, one.name, kind))
    return columns


def bare_type(column: Column) -> tuple[object, ...]:
    """A column's type without whether it may be NULL."""
    kind = column.type
    return kind.root, kind.length, kind.precision, kind.scale, kind.children, kind.names


def misfit(info: TableInfo) -> str:
    """Why no rows can be brought into a table; empty where they can."""
    if not info.primary_key:
        return "it has no primary key"
    if info.partition_keys:
        return "it is partitioned"
    if info.bucket_keys != info.primary_key:
        return "its bucket key is not its primary key"
    if info.properties.get("table.kv.format", "COMPACTED").upper() != "COMPACTED":
        return "its table.kv.format is not COMPACTED"
    if "table.merge-engine" in info.properties:
        return "it has a merge engine"
    if info.properties.get("table.delete.behavior", "ALLOW").upper() != "ALLOW":
        return "it does not allow deletes"
    return ""
