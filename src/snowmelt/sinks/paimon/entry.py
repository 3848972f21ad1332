"""What an entry of an intent asks of its table: the files that it brings, the schema that it changes, the number of buckets.

An entry that changes the number of buckets brings all the table's rows anew, as an overwrite, and then changes the schema. Between the
two the snapshot has files of the new number under a schema of the old one. Readers go by the files, and other programs that write go by
both and refuse. No driver plans for the table before the entry is whole.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from snowmelt import budgets
from snowmelt.commit.publish import Files, judge_schema
from snowmelt.commit.records import Entry
from snowmelt.errors import OutcomeUnknown, SourceDrift, check
from snowmelt.sinks.paimon import shape as paimon_shape
from snowmelt.sinks.paimon.references import referenced_files
from snowmelt.sinks.paimon.table import bucket_count, crowded, file_path, messages_of, numbers_in, store_of

_SCHEMA: Final = re.compile(r"schema-([0-9]+)")
_FILES_MAX: Final = 2**20
"""More than an entry brings."""
_SAME_ROWS: Final = ("COMPACT", "ANALYZE")
"""Kinds of snapshots that have the rows of the one before."""


def check_shape(entry: Entry) -> None:
    """An intent that changes a schema says to what: a driver that rolls it forward knows nothing else."""
    check((entry.new_schema is None) == (not entry.shape), "an intent changes a schema and does not say to what", entry.target)
    if entry.new_schema is not None:
        check(json.loads(entry.shape)["id"] == entry.new_schema, "an intent changes a schema to another than it says", entry.target)


def change_schema(table: Any, entry: Entry) -> None:
    """The last act of an entry, once, also if other drivers do the same. Durable on return."""
    if entry.new_schema is None:
        return
    store = store_of(table)
    for _ in budgets.PAIMON_COMMIT.tries():
        newest = max(numbers_in(table, f"{table.table_path}/schema", _SCHEMA))
        if not judge_schema(entry, newest, store.read(f"schema/schema-{newest}")):
            return
        # Whatever becomes of it, the next look tells: of a lost reply too, and of a number that another writer took first.
        with contextlib.suppress(OutcomeUnknown):
            store.put_if_absent(f"schema/schema-{entry.new_schema}", entry.shape)
    raise crowded(entry.target)


def messages_in(table: Any, entry: Entry) -> list[Any]:
    """An entry's messages, read. They are what is published, its files are what is asked about: both must be the same."""
    messages = messages_of(table, entry.messages)
    told = [file.file_name for message in messages for file in message.new_files]
    check(tuple(told) == entry.files, "an intent's messages name other files than the intent", entry.target)
    return messages


def number_files(messages: Iterable[Any], snapshot: int) -> None:
    """Rows without a key are in the order of their files' sequence numbers, wherever a compaction puts the files."""
    for place, file in enumerate(file for message in messages for file in message.new_files):
        file.min_sequence_number = file.max_sequence_number = snapshot * _FILES_MAX + place


def where(table: Any, entry: Entry, messages: Iterable[Any], *, whole: bool) -> Files:
    """Where an entry's files are. Manifests are read only where snapshots do not tell; then a reference to one proves it."""
    if not entry.files:
        return Files.STAGED
    if not whole and not referenced_files(table).isdisjoint(entry.files):
        return Files.REFERENCED
    paths = (file_path(table, message.partition, message.bucket, file.file_name) for message in messages for file in message.new_files)
    return Files.STAGED if all(table.file_io.exists(path) for path in paths) else Files.MISSING


# ---- the number of buckets


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
        if snapshot is None or snapshot.commit_kind not in _SAME_ROWS:
            raise SourceDrift(
                "another program wrote into a lake table while its number of buckets was changed",
                detail=f"{entry.target}, snapshot {number}",
                hint="roll the table back to the snapshot before it",
            )
