"""Whether a Paimon table is one that a pipeline can bring rows into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from snowmelt.errors import RECOPY, InvalidConfig, SourceDrift
from snowmelt.model.partition import Unit
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.table import bucket_count
from snowmelt.sinks.partitions import PartitionBy

_SWITCHES: Final = ("deletion-vectors.enabled", "ignore-delete")
"""Options of a table with a key that hide rows from readers, or keep deletes from them."""
_PARTITION: Final = "snowmelt.partition-by"
"""The option of a table of ours that says how it is divided."""
_TIMES: Final = {Unit.DAY: "$_day", Unit.MONTH: "$_month-01"}
"""How Paimon's own tools find the time of a partition."""


def partition_options(partition: PartitionBy | None) -> Mapping[str, str]:
    """The options of a table that is divided so."""
    if partition is None:
        return {}
    time = _TIMES.get(partition.unit) if partition.unit else None
    times = {"partition.timestamp-pattern": time, "partition.timestamp-formatter": "yyyy-MM-dd"} if time else {}
    return {_PARTITION: str(partition), **times}


def partition_of(table: Any) -> PartitionBy | None:
    """How a table of ours is divided."""
    text = table.options.options.to_map().get(_PARTITION)
    return None if text is None else PartitionBy.read(text)


def fitting(table: Any) -> Any:
    """A table of ours, if rows can be brought into it still. `SourceDrift`: another program has changed it."""
    if wrong := _misfit(table):
        hint = f"undo that, or {RECOPY}"
        raise SourceDrift("another program made a lake table one of another kind", detail=f"{table.identifier}: {wrong}", hint=hint)
    return table


def fitting_found(table: Any) -> Any:
    """The same of a table that may be there already: ours are made so, others may be of any kind. `InvalidConfig`: it is another."""
    if wrong := _misfit(table):
        hint = "name another lake table, or drop this one and let it be made anew"
        raise InvalidConfig("a lake table is of another kind than ours", detail=f"{table.identifier}: {wrong}", hint=hint)
    return table


def _misfit(table: Any) -> str:
    from pypaimon.table.file_store_table import FileStoreTable

    wrong = ""
    if not isinstance(table, FileStoreTable):
        wrong = "it has no snapshots"
    elif list(table.partition_keys) != _partition_keys(table):
        wrong = "it is partitioned in another way"
    elif not any(field.name == SEQUENCE and str(field.type) == "BIGINT NOT NULL" for field in table.fields):
        wrong = f"it has no column {SEQUENCE} BIGINT NOT NULL"
    elif table.primary_keys:
        options = table.options.options.to_map()
        if options.get("sequence.field") != SEQUENCE:
            wrong = f"its sequence.field is not {SEQUENCE}"
        elif bucket_count(table) < 1:
            wrong = "its number of buckets is not fixed"
        elif options.get("merge-engine", "deduplicate") != "deduplicate":
            wrong = "its merge-engine is not deduplicate"
        else:
            switches = [name for name in _SWITCHES if options.get(name, "false").lower() not in ("false", "off", "no", "0")]
            wrong = f"it has {switches[0]}" if switches else ""
    return wrong


def _partition_keys(table: Any) -> list[str] | None:
    """Those that the table was made with; None: its option says nothing that we know."""
    try:
        partition = partition_of(table)
    except InvalidConfig:
        return None
    return [partition.field] if partition else []
