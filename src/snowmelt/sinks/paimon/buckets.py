"""Entries that change a table's number of buckets. One brings all the table's rows anew, as an overwrite, and then changes the schema.

Between the two the snapshot has files of the new number under a schema of the old one. Readers go by the files, and other programs that
write go by both and refuse. No driver plans for the table before the entry is whole.
"""

from __future__ import annotations

import json
from typing import Any

from snowmelt.commit.records import Entry
from snowmelt.errors import SourceDrift
from snowmelt.sinks.paimon import shape as paimon_shape
from snowmelt.sinks.paimon.table import bucket_count


def rescaled_to(entry: Entry) -> int | None:
    """The number of buckets that an entry gives its table; None: it leaves it."""
    if entry.new_schema is None:
        return None
    wanted = int(json.loads(entry.shape)["options"].get(paimon_shape.BUCKET, entry.buckets))
    return None if wanted == entry.buckets else wanted


def buckets_before(table: Any, entry: Entry) -> int:
    """The table's number of buckets without this entry, which changes it last."""
    found = bucket_count(table)
    changed = int(table.table_schema.id) == entry.new_schema and found == rescaled_to(entry)
    return entry.buckets if changed else found


def check_alone(table: Any, latest: Any, entry: Entry) -> None:
    """An entry that rescales its table brings the rows of its base. What others have committed since, it would take out."""
    if rescaled_to(entry) is None or latest is None:
        return
    for number in range(entry.base + 1, latest.id + 1):
        snapshot = table.snapshot_manager().get_snapshot_by_id(number)
        if snapshot is None or snapshot.commit_kind != "COMPACT":
            raise SourceDrift(
                "another program wrote into a lake table while its number of buckets was changed",
                detail=f"{entry.target}, snapshot {number}",
                hint="roll the table back to the snapshot before it",
            )
