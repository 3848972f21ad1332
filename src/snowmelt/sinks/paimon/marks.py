"""Marks of partitions that are done, as Paimon's own action `success-file` writes them: a file in the partition's folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from snowmelt.errors import InvalidConfig
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit, end_of
from snowmelt.sinks.paimon.fitting import partition_of
from snowmelt.sinks.paimon.table import names_in, store_of

SUCCESS: Final = "_SUCCESS"


def mark_done(table: Any, unit: Unit, *, after_ms: TimeMs | None, upto_ms: TimeMs, now_ms: TimeMs) -> int:
    """Mark the partitions that exist and whose periods ended in (after, upto]. Durable on return. Returns how many were not marked yet."""
    partition = partition_of(table)
    if partition is None or partition.unit is not unit:
        detail = f"{table.identifier}: by {partition or 'nothing'}"
        raise InvalidConfig(f"a lake table is not partitioned by {unit}", detail=detail, hint="keep its partition_by")
    store = store_of(table)
    # As Paimon prints it.
    content = f'{{\n  "creationTime" : {now_ms},\n  "modificationTime" : {now_ms}\n}}'.encode()
    found = (name for name, end in _periods(table, partition.field, unit) if end <= upto_ms and (after_ms is None or end > after_ms))
    return sum(store.put_if_absent(f"{name}/{SUCCESS}", content) for name in sorted(found))


def _periods(table: Any, field: str, unit: Unit) -> Iterator[tuple[str, TimeMs]]:
    """The folders of partitions that are periods, with their ends."""
    for name in names_in(table, str(table.table_path)):
        key, _, value = name.partition("=")
        end = end_of(unit, value) if key == field else None
        if end is not None:
            yield name, end
