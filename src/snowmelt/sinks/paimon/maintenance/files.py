"""The data files that a snapshot of a table has, and which tables are maintained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from snowmelt.errors import InvalidConfig
from snowmelt.maintenance.files import BucketFiles, DataFile, TableFiles
from snowmelt.model.moment import TimeMs
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.table import bucket_count, identity_of

_SWITCHES: Final = ("deletion-vectors.enabled", "ignore-delete", "row-tracking.enabled", "data-evolution.enabled")
_EXPECTED: Final = (
    ("merge-engine", ("deduplicate",)),
    ("sequence.field.sort-order", ("ascending",)),
    ("changelog-producer", ("none", "input")),
    ("file.format", ("parquet",)),
)
_UNKNOWN: Final = ("data-file.external-paths", "file.format.per.level")
_SEQUENCES: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIMESTAMP")
"""Types that a sequence may have, by their first word."""


def maintainable(table: Any) -> Any:
    """The table itself, if we know how to bring its files together. `InvalidConfig`: others must do it."""
    if wrong := _wrong(table):
        hint = "set maintenance: {enabled: no} in its route, and compact it by a job of Paimon's"
        raise InvalidConfig("a lake table is of a kind that is not maintained", detail=f"{table.identifier}: {wrong}", hint=hint)
    return table


def _wrong(table: Any) -> str:
    from pypaimon.table.file_store_table import FileStoreTable

    if not isinstance(table, FileStoreTable):
        return "it has no snapshots"
    options = table.options.options.to_map()
    for name in _SWITCHES:
        if options.get(name, "false").lower() not in ("false", "off", "no", "0"):
            return f"it has {name}"
    for name, expected in _EXPECTED:
        if options.get(name, expected[0]) not in expected:
            return f"its {name} is {options[name]}"
    for name in _UNKNOWN:
        if options.get(name):
            return f"it has {name}"
    if table.primary_keys and bucket_count(table) < 1:
        return "its number of buckets is not fixed"
    sequence = sequence_field(table)
    kinds = {field.name: str(field.type).split("(")[0].split(" ")[0].removesuffix("_LTZ") for field in table.fields}
    if sequence is not None and kinds.get(sequence) not in _SEQUENCES:
        return f"its sequence.field is {sequence}"
    return ""


def sequence_field(table: Any) -> str | None:
    """The column that orders the rows of a key, if the table has one."""
    name: str | None = table.options.options.to_map().get("sequence.field") if table.primary_keys else None
    return name or None


def table_files(table: Any, snapshot: Any) -> TableFiles:
    buckets: dict[tuple[tuple[Any, ...], int], list[DataFile]] = {}
    for entry in live_entries(table, snapshot):
        buckets.setdefault((tuple(entry.partition.values), entry.bucket), []).append(_data_file(entry.file))
    return TableFiles(
        snapshot=snapshot.id if snapshot is not None else 0,
        identity=identity_of(table),
        schema=int(table.table_schema.id),
        keyed=bool(table.primary_keys),
        buckets=tuple(BucketFiles(partition=place[0], bucket=place[1], files=tuple(files)) for place, files in buckets.items()),
    )


def inputs_of(entries: Sequence[Any], partition: tuple[Any, ...], bucket: int, names: Sequence[str]) -> list[Any] | None:
    """The entries of these files of a bucket, in this order. None: one is not there."""
    there = {entry.file.file_name: entry for entry in entries if entry.bucket == bucket and tuple(entry.partition.values) == partition}
    found = [there.get(name) for name in names]
    return None if None in found else found


def _data_file(file: Any) -> DataFile:
    created = file.creation_time
    return DataFile(
        name=file.file_name,
        level=file.level,
        size_bytes=file.file_size,
        rows=file.row_count,
        deletes=file.delete_row_count if file.delete_row_count is not None else -1,
        # As the Rust writer and ours have it, in UTC. Java's has its machine's zone in it.
        created_ms=TimeMs(created.get_millisecond() if created is not None else 0),
    )
