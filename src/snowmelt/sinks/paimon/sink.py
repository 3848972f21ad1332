"""Paimon tables of a pipeline.

Laws:
- A snapshot is published by an exclusive create (`table`).
- Whether an epoch is there is asked of the very snapshot that a try builds on (`commit.publish.judge`). The answer is in each
  snapshot's properties: epoch, identity of the intent, greatest `_seq`.
- The table is loaded anew for each commit: a table object of yesterday would write its schema back.
- Rows are merged by `_seq`, the table's `sequence.field`; a table that lost it is refused. A table without a key holds what it is
  brought, each row once, and has no deletes.
- A change of schema is the last act of its entry, after the snapshot: an exclusive create of exactly the bytes that the intent
  has. Where its number is taken, the bytes tell by whom. An entry that changes the schema alone has a snapshot too, without files:
  the table's own metadata has every epoch that touched it.
- Before an entry is published a Paimon consumer of ours names the snapshot after its base, so that a program that expires snapshots leaves
  alone those that tell whether the entry is there, and the files that it brought.
- Files are written by the Rust writer, under names that tell whose they are (`commit.records.StagedName`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from snowmelt import budgets
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.publish import EpochInLake, LastCommit, View, check_start, judge
from snowmelt.commit.records import Entry, Intent, Reshape, Staged
from snowmelt.errors import BEGIN_ANEW, InvalidConfig, SourceDrift, check
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit
from snowmelt.model.table import SYSTEM_COLUMNS
from snowmelt.sinks.contract import SEQUENCE, Columns, Partition, ReadShare, TargetState, target_columns
from snowmelt.sinks.paimon import shape as paimon_shape
from snowmelt.sinks.paimon.dropping import drop_this
from snowmelt.sinks.paimon.entry import buckets_before, change_schema, check_alone, check_shape, messages_in, number_files, where
from snowmelt.sinks.paimon.fitting import fitting, fitting_found, partition_of, partition_options
from snowmelt.sinks.paimon.folders import TableFolder
from snowmelt.sinks.paimon.markers import marker_of, newest_marked, properties_of, sequence_max_of
from snowmelt.sinks.paimon.marks import mark_done
from snowmelt.sinks.paimon.references import referenced_files
from snowmelt.sinks.paimon.runs import RunWriter, fits
from snowmelt.sinks.paimon.table import (
    bucket_count,
    crowded,
    file_path,
    hold_snapshots,
    identity_of,
    latest_snapshot,
    messages_of,
    names_in,
    open_catalog,
    our_errors,
    publish,
    snapshot_numbers,
    store_of,
    sync_folders,
    sync_table,
    tag_snapshot,
    tagged_snapshot,
)
from snowmelt.sinks.paimon.writer import PaimonWriter
from snowmelt.sinks.partitions import key_in
from snowmelt.sinks.warehouse import Warehouse

_BUFFER: Final = "write.parquet-buffer-size"
"""How much the native writer holds of a bucket. When a batch brings it there, all that it holds goes into a file."""
_OPTIONS: Final = MappingProxyType({_BUFFER: "64mb"})
"""Of new tables: `docs/decisions/0009`."""
_HOLD_EVERY: Final = 10
"""How many snapshots a table gets before those that others may not expire are named anew."""


class PaimonSink:
    """The tables of one warehouse, as one pipeline sees them. To be opened in the process that uses it."""

    empties: Final = True
    tags: Final = True
    partitions: Final = True
    at_once: Final = 32
    """On a disk, syncs of many tables share one write of the file system's journal; in a bucket, requests of many tables are on their way
    together. More threads than this wait for one another's turn in the interpreter."""

    def __init__(self, warehouse: str | Warehouse, *, user: str) -> None:
        self._catalog: Any = open_catalog(warehouse)
        self._user = user
        self._held: dict[str, tuple[str, int]] = {}
        """By table, its identity and from which snapshot on its snapshots are held, by this process."""
        self._folders: dict[str, tuple[str, TableFolder]] = {}
        """By table, its identity and what is known of its folder."""

    # ---- tables

    def exists(self, target: str) -> bool:
        from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

        with our_errors(target):
            try:
                self._catalog.get_table(target)
            except (TableNotExistException, DatabaseNotExistException):
                return False
        return True

    def create(
        self,
        target: str,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        buckets: int,
        options: Mapping[str, str] | None = None,
        system: Columns = None,
        partition: Partition = None,
    ) -> None:
        """Create a table of a source's columns, of `system` columns of ours, and `_seq` as the last. Durable on return.

        One that is there is left as it is, if it has these columns and this key. Rows for it have all columns in this order, as the
        native writer wants them; so more columns than these, or others, are refused.
        """
        from pypaimon import Schema

        ours = pa.schema([*(system or ()), pa.field(SEQUENCE, pa.int64(), nullable=False)])
        check(SYSTEM_COLUMNS.issuperset(ours.names), "a system column has a name that is not ours", target)
        keys = key_in(partition, keys)
        if wrong := paimon_shape.wrong_name(schema.names):
            raise InvalidConfig("a column can't be brought to the lake", detail=f"{target}: {wrong}", hint="rename it or exclude it")
        fields = pa.schema([*target_columns(schema, keys), *(partition.own if partition else ()), *ours])
        columns = paimon_shape.columns(target, fields)
        wanted = {**_OPTIONS, "bucket": str(buckets), **partition_options(partition), **(options or {})}
        divided = [partition.field] if partition else []
        if keys:
            wanted["sequence.field"] = SEQUENCE
        else:
            wanted["bucket"] = "-1"
        with our_errors(target):
            self._catalog.create_database(target.partition(".")[0], True)
            made = Schema.from_pyarrow_schema(fields, partition_keys=divided, primary_keys=list(keys), options=wanted)
            self._catalog.create_table(target, made, True)
            table = fitting_found(self.table(target))
            sync_table(table)
        if (has := partition_of(table)) != partition:
            raise _other("other partitions", f"{target}: {has or 'none'}, not {partition or 'none'}")
        if list(table.primary_keys) != list(keys):
            raise _other("another key", f"{target}: {table.primary_keys}, not {list(keys)}")
        if difference := paimon_shape.difference(table.fields, columns):
            raise _other("other columns", f"{target}: {difference}")

    def identity(self, target: str) -> str:
        """That of a table of any kind, empty if there is none. `InvalidConfig`: the table is damaged."""
        if not self.exists(target):
            return ""
        table = self.table(target)
        with our_errors(target):
            try:
                return identity_of(table)
            except SourceDrift as error:
                raise InvalidConfig(error.fact, detail=target, hint="drop the lake table") from error

    def remake(
        self,
        target: str,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        buckets: int,
        identity: str,
        system: Columns = None,
        partition: Partition = None,
    ) -> None:
        """Drop a table of this pipeline and create it as told, with another identity. Not atomic: who asks for it holds on to that until
        the new one is there. `InvalidConfig`: it can't be created so, or holds what this pipeline did not bring; nothing was touched.
        `SourceDrift`: the table is not the one with this identity, and was not touched."""
        if wrong := paimon_shape.wrong_name(schema.names):
            raise InvalidConfig("a column can't be brought to the lake", detail=f"{target}: {wrong}", hint="rename it in the source")
        paimon_shape.columns(target, schema)
        if self.exists(target):
            if self.newest(target) and self.newest_commit(target)[0] is None:
                hint = "drop it, or give its source another target"
                raise InvalidConfig("a lake table holds rows that this pipeline did not bring", detail=target, hint=hint)
            table = self.table(target)
            with our_errors(target):
                drop_this(table, identity)
        self.create(target, schema, keys, buckets=buckets, system=system, partition=partition)

    def table(self, target: str) -> Any:
        with our_errors(target):
            return self._catalog.get_table(target)

    def columns(self, target: str) -> pa.Schema:
        """All columns that a table has now, `_seq` and other system columns included, as its writers want them."""
        from pypaimon.schema.data_types import PyarrowFieldParser

        table = self.table(target)
        with our_errors(target):
            schema: pa.Schema = PyarrowFieldParser.from_paimon_schema(table.fields)
            return schema

    def altered(self, target: str) -> bool:
        return int(self.table(target).table_schema.id) > 0

    def shares(self, target: str, snapshot: int) -> list[ReadShare]:
        """What there is to read of a snapshot, for tasks to `read`. All files that it names are in the list, so it need not last itself.

        `SourceDrift`: it is gone since the caller saw it.
        """
        from pypaimon.read.split_serializer import serialize_split_v1

        table = self.table(target)
        with our_errors(target):
            if table.snapshot_manager().get_snapshot_by_id(snapshot) is None:
                raise SourceDrift("a lake snapshot is gone", detail=f"{target}: {snapshot}", hint="are snapshots kept for long enough?")
            splits = _reading(table, target, snapshot, None).new_scan().plan().splits()
            return [ReadShare(tuple(split.partition.values), int(split.bucket), serialize_split_v1(split)) for split in splits]

    def read(self, target: str, snapshot: int, names: Sequence[str], shares: Iterable[ReadShare]) -> Iterator[pa.RecordBatch]:
        """The rows of some shares, with these columns. `Unavailable`: a file is gone."""
        from pypaimon.read.split_serializer import deserialize_split_v1

        table = self.table(target)
        with our_errors(target):
            partition, key = table.partition_keys_fields, table.trimmed_primary_keys_fields
            splits = [deserialize_split_v1(share.split, partition, key) for share in shares]
            yield from _reading(table, target, snapshot, names).new_read().to_arrow_batch_reader(splits)

    def describe(self, target: str) -> TargetState:
        table = fitting(self.table(target))
        with our_errors(target):
            newest = max(snapshot_numbers(table), default=0)
            return TargetState(identity_of(table), bucket_count(table), int(table.table_schema.id), newest, partition_of(table))

    def newest(self, target: str) -> int:
        """Its newest snapshot, 0 if it has none; of a table of any kind."""
        table = self.table(target)
        with our_errors(target):
            return max(snapshot_numbers(table), default=0)

    def reshape(
        self,
        target: str,
        schema: pa.Schema,
        key: Sequence[str],
        renamed: Mapping[str, str] = MappingProxyType({}),
        *,
        emptied: bool = False,
    ) -> Reshape | None:
        """What has to change so that a table has a source's columns, in this order, beside our own; None: nothing. Touches nothing.

        `renamed`: old names to new ones. An old name to "" is a column that was dropped, though another of its name may be there.
        `emptied`: the entry empties the table and brings no rows of its old columns, so that nothing is left to be read in another
        type. `SourceDrift`: files that are there could not be read any more.
        """
        table = fitting(self.table(target))
        with our_errors(target):
            from pypaimon.common.json_util import JSON

            partition = partition_of(table)
            key = key_in(partition, key)
            try:
                wanted = paimon_shape.columns(target, target_columns(schema, key))
            except InvalidConfig as error:
                raise SourceDrift(error.fact, detail=error.detail, hint=error.hint) from error
            old = table.schema_manager.latest()
            new = paimon_shape.reshaped(target, old, wanted, key, renamed, emptied=emptied, partition=partition)
            if new is None:
                return None
            return Reshape(int(old.id), int(new.id), JSON.to_json(new, indent=2).encode())

    def rescale(self, target: str, buckets: int) -> Reshape | None:
        """What has to change so that a table has this number of buckets; None: nothing. Touches nothing. The entry that does it empties
        the table and brings all its rows as files of this number of buckets."""
        table = fitting(self.table(target))
        with our_errors(target):
            from pypaimon.common.json_util import JSON

            if not table.primary_keys:
                raise InvalidConfig("a table without a key has no buckets", detail=target)
            old = table.schema_manager.latest()
            new = paimon_shape.rescaled(old, buckets)
            return None if new is None else Reshape(int(old.id), int(new.id), JSON.to_json(new, indent=2).encode())

    def newest_commit(self, target: str) -> tuple[LastCommit | None, int]:
        """Our newest commit that the table has, and the greatest `_seq` it says; for the check at the start."""
        table = self.table(target)
        with our_errors(target):
            newest = newest_marked(table)
            return (marker_of(newest), sequence_max_of(newest)) if newest is not None else (None, 0)

    def check_start(self, target: str, ledger: Ledger) -> None:
        """Before a driver's first step: the table must not know more than the store."""
        marker, _ = self.newest_commit(target)
        check_start(target, marker, epoch=ledger.epoch, identity=ledger.identity)

    def preface(self, target: str) -> tuple[bytes, ...]:
        """What an entry's messages begin with, besides those of its writers: nothing."""
        return ()

    # ---- writing, in a task

    def writer(self, target: str, prefix: str, *, at_once: bool = False) -> PaimonWriter | RunWriter:
        """A writer whose files are named `prefix` and something. `at_once`: it holds no rows."""
        table = fitting(self.table(target))
        options = {"data-file.prefix": prefix, **({_BUFFER: "1b"} if at_once else {})}
        with our_errors(target):
            if not at_once and fits(table):
                return RunWriter(table, prefix)
            return PaimonWriter(table.copy(options), self._user, sequenced=True)

    # ---- committing

    def view(self, entry: Entry) -> View:
        """The table at its newest snapshot, as `judge` wants to see it."""
        table = self.table(entry.target)
        with our_errors(entry.target):
            return self._view(table, latest_snapshot(table), entry, messages_in(table, entry))

    def _view(self, table: Any, latest: Any, entry: Entry, messages: Sequence[Any]) -> View:
        manager = table.snapshot_manager()
        newest = latest.id if latest is not None else 0
        identity = identity_of(table)
        if identity == entry.uuid and newest < entry.base:
            raise SourceDrift(
                "a lake table lost snapshots",
                detail=f"{entry.target} is at {newest}, the intent saw {entry.base}",
                hint=f"was it rolled back? {BEGIN_ANEW}",
            )
        marker: LastCommit | None = None
        whole = True
        for number in range(newest, 0, -1):
            snapshot = latest if number == newest else manager.get_snapshot_by_id(number)
            if snapshot is None and number <= entry.base:
                break
            whole = whole and snapshot is not None
            marker = marker_of(snapshot) if snapshot is not None else None
            if marker is not None:
                break
        files = where(table, entry, messages, whole=whole)
        sequence_field = not table.primary_keys or table.options.options.to_map().get("sequence.field") == SEQUENCE
        return View(
            uuid=identity,
            buckets=buckets_before(table, entry),
            schema=int(table.table_schema.id),
            sequence_field=sequence_field,
            snapshot=newest,
            marker=marker,
            whole=whole,
            files=files,
        )

    def commit(self, intent: Intent, entry: Entry, watermark_ms: int | None = None) -> int:
        """Bring an entry into its table, once, also if other drivers try the same. Returns the snapshot that has it, durable. The snapshot
        gets the watermark, or none: compactions by others carry it on."""
        check_shape(entry)
        for _ in budgets.PAIMON_COMMIT.tries():
            table = self.table(entry.target)
            with our_errors(entry.target):
                latest, messages = latest_snapshot(table), messages_in(table, entry)
                verdict = judge(intent, entry, self._view(table, latest, entry, messages))
                if isinstance(verdict, EpochInLake):
                    # Who published it may have died before it came to this. A change of schema may stand in a table without any.
                    sync_folders(table, ["snapshot"] if verdict.snapshot else [])
                    change_schema(table, entry)
                    return verdict.snapshot
                check_alone(table, latest, entry)
                self._hold(table, entry)
                if not table.primary_keys:
                    number_files(messages, verdict.on + 1)
                if publish(
                    table,
                    latest,
                    messages,
                    user=self._user,
                    identifier=intent.epoch,
                    properties=properties_of(intent),
                    kind="OVERWRITE" if entry.empties else "APPEND",
                    watermark_ms=watermark_ms,
                    folder=self._folder(table, entry),
                ):
                    change_schema(table, entry)
                    return verdict.on + 1
        raise crowded(entry.target)

    def _folder(self, table: Any, entry: Entry) -> TableFolder:
        """Of the table with this identity: an entry is published to no other."""
        known, folder = self._folders.get(entry.target, ("", None))
        if folder is None or known != entry.uuid:
            folder = TableFolder(store_of(table), entry.uuid)
            self._folders[entry.target] = entry.uuid, folder
        return folder

    def _hold(self, table: Any, entry: Entry) -> None:
        """Keep expiry by others from all snapshots after the entry's base, and a few before it: it is not worth a write each time."""
        (known, held), wanted = self._held.get(entry.target, ("", 0)), entry.base + 1
        if known != entry.uuid or not held <= wanted < held + _HOLD_EVERY:
            hold_snapshots(table, self._user, wanted)
            self._held[entry.target] = entry.uuid, wanted

    def tag(self, target: str, name: str, snapshot: int, identity: str) -> int:
        """Give a snapshot of ours a name. Until it has one our consumer holds it (`_hold`). Returns the snapshot that has the name."""
        table = self.table(target)
        with our_errors(target):
            known = tagged_snapshot(table, name)
            if known is not None:
                return known
            found = table.snapshot_manager().get_snapshot_by_id(snapshot)
            marker = None if found is None else marker_of(found)
            if marker is None or marker.identity != identity:
                # Another table of this name has other snapshots under these numbers.
                detail = f"{target}: snapshot {snapshot} of {identity}"
                raise SourceDrift(
                    "a lake snapshot that was to be tagged is gone", detail=detail, hint="are snapshots kept for long enough?"
                )
            return tag_snapshot(table, name, found)

    def mark_done(self, target: str, unit: Unit, *, after_ms: TimeMs | None, upto_ms: TimeMs, now_ms: TimeMs) -> int:
        table = self.table(target)
        with our_errors(target):
            return mark_done(table, unit, after_ms=after_ms, upto_ms=upto_ms, now_ms=now_ms)

    def let_go(self, kept: Container[str]) -> None:
        """Drop what this process holds in memory of tables that are not in `kept`."""
        for known in (self._held, self._folders):
            for target in [target for target in list(known) if target not in kept]:
                known.pop(target, None)

    # ---- cleaning

    def staged(self, target: str) -> list[str]:
        """Every file of ours that exists in a table's folders, by name; which of them a snapshot needs is `referenced`'s to say."""
        table = self.table(target)
        found: list[str] = []
        with our_errors(target):
            for folder in _folders(table):
                found.extend(name for name in names_in(table, folder) if name.startswith("sm-"))
        return found

    def referenced(self, target: str) -> set[str]:
        """The files that some snapshot, tag or branch of a table refers to."""
        table = self.table(target)
        with our_errors(target):
            return referenced_files(table)

    def delete(self, target: str, names: Iterable[str]) -> None:
        """Delete staged files. Absent ones are fine; one that can't be deleted is an error, and others may be gone."""
        table = self.table(target)
        wanted = set(names)
        with our_errors(target):
            for folder in _folders(table):
                for name in wanted.intersection(names_in(table, folder)):
                    with contextlib.suppress(FileNotFoundError):
                        table.file_io.delete(f"{folder}/{name}")

    def discard(self, target: str, staged: Staged) -> None:
        """Delete what a writer has left: where it lies is in its messages. Absent files are fine."""
        table = self.table(target)
        with our_errors(target):
            for message in messages_of(table, staged.messages):
                for file in message.new_files:
                    with contextlib.suppress(FileNotFoundError):
                        table.file_io.delete(file_path(table, message.partition, message.bucket, file.file_name))


def _reading(table: Any, target: str, snapshot: int, names: Sequence[str] | None) -> Any:
    """pypaimon's builder of readers of one snapshot."""
    table = table.copy_without_time_travel({"scan.snapshot-id": str(snapshot), "read.native.enabled": "true"})
    held = [field.name for field in table.fields]
    missing = [name for name in names or () if name not in held]
    if missing:
        raise SourceDrift("a lake table lacks columns of its source", detail=f"{target}: {', '.join(missing)}")
    return table.new_read_builder().with_projection(list(names or held))


def _other(what: str, detail: str) -> InvalidConfig:
    return InvalidConfig(f"a lake table has {what}", detail=detail, hint="name another lake table, or drop this one")


def _folders(table: Any) -> Iterator[str]:
    """The folders of a table that hold data files: its buckets, each in its partition's folder if there are partitions."""
    above = [str(table.table_path)]
    if table.partition_keys:
        above = [f"{folder}/{name}" for folder in above for name in names_in(table, folder) if "=" in name]
    for folder in above:
        yield from (f"{folder}/{name}" for name in names_in(table, folder) if name.startswith("bucket-"))
