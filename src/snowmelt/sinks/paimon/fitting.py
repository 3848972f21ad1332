"""Whether a Paimon table is one that a pipeline can bring rows into."""

from __future__ import annotations

from typing import Any, Final

from snowmelt.errors import RECOPY, InvalidConfig, SourceDrift
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.table import bucket_count

_SWITCHES: Final = ("deletion-vectors.enabled", "ignore-delete")
"""Options of a table with a key that hide rows from readers, or keep deletes from them."""


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
    elif table.partition_keys:
        wrong = "it is partitioned"
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
