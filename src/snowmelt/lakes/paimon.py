"""Paimon tables.

Laws:
- A snapshot is published by an exclusive create of its file, behind the fsync of all that it names: pypaimon's own way is a look
  and a rename, which overwrites. So of two that build on one snapshot one wins, and whatever is published is durable.
- Whether an epoch is there is asked of the very snapshot that a try builds on (`commit.publish.judge`). The answer is in each
  snapshot's properties: epoch, identity of the intent, greatest `_seq`.
- The table is loaded anew for each commit: a table object of yesterday would write its schema back.
- Rows are merged by `_seq`, the table's `sequence.field`; a table that lost it is refused.
- Files are written by the Rust writer, under names that tell whose they are (`commit.records.StagedName`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from snowmelt.commit.publish import Files, Marker, There, View, judge
from snowmelt.commit.records import Entry, Intent
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable, check
from snowmelt.store.contract import Store
from snowmelt.store.objects import open_store

SEQUENCE: Final = "_seq"
KIND: Final = "_VALUE_KIND"
"""The writer's own column: what a row does."""
INSERT, DELETE = 0, 3
_EPOCH, _IDENTITY, _SEQUENCE_MAX = "snowmelt.epoch", "snowmelt.identity", "snowmelt.sequence-max"
_TRIES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Staged:
    """What a writer left behind, for the intent."""

    files: tuple[str, ...]
    messages: tuple[bytes, ...]
    rows: int


class PaimonLake:
    """The tables of one warehouse, as one pipeline sees them. To be opened in the process that uses it."""

    def __init__(self, warehouse: str, *, user: str, options: Mapping[str, str] | None = None) -> None:
        from pypaimon import CatalogFactory

        self._catalog: Any = CatalogFactory.create({**(options or {}), "warehouse": warehouse})
        self._user = user

    # ---- tables

    def exists(self, target: str) -> bool:
        from pypaimon.catalog.catalog_exception import DatabaseNotExistException, TableNotExistException

        try:
            self._catalog.get_table(target)
        except (TableNotExistException, DatabaseNotExistException):
            return False
        return True

    def create(
        self, target: str, schema: pa.Schema, keys: Sequence[str], *, buckets: int, options: Mapping[str, str] | None = None
    ) -> None:
        """Create a table, with `_seq` as its last column. One that is there is left as it is."""
        from pypaimon import Schema

        if SEQUENCE in schema.names:
            raise InvalidConfig(f"a column is named {SEQUENCE}", detail=target, hint="rename it in the source or exclude it")
        wanted = {"bucket": str(buckets), **(options or {})}
        if keys:
            wanted["sequence.field"] = SEQUENCE
        else:
            wanted["bucket"] = "-1"
        fields = schema.append(pa.field(SEQUENCE, pa.int64(), nullable=False))
        self._catalog.create_database(target.partition(".")[0], True)
        self._catalog.create_table(target, Schema.from_pyarrow_schema(fields, primary_keys=list(keys), options=wanted), True)

    def table(self, target: str) -> Any:
        return self._catalog.get_table(target)

    def standing(self, target: str) -> tuple[str, int, int, int]:
        """What an intent holds of a table: its identity, number of buckets, schema and newest snapshot."""
        table = self.table(target)
        latest = table.snapshot_manager().get_latest_snapshot()
        return _identity(table), _buckets(table), int(table.table_schema.id), latest.id if latest is not None else 0

    def newest_marker(self, target: str) -> tuple[Marker | None, int]:
        """Our newest commit that the table tells of, and the greatest `_seq` it says; for the check at the start."""
        manager = self.table(target).snapshot_manager()
        snapshot = manager.get_latest_snapshot()
        while snapshot is not None:
            marker = _marker(snapshot)
            if marker is not None:
                return marker, int(snapshot.properties.get(_SEQUENCE_MAX, "0"))
            snapshot = manager.get_snapshot_by_id(snapshot.id - 1) if snapshot.id > 1 else None
        return None, 0

    # ---- writing, in a task

    def writer(self, target: str, prefix: str) -> Writer:
        """A writer whose files are named `prefix` and something."""
        return Writer(self.table(target).copy({"data-file.prefix": prefix}), self._user)

    # ---- committing

    def view(self, entry: Entry) -> View:
        """The table at its newest snapshot, as `judge` wants to see it."""
        table = self.table(entry.target)
        return self._view(table, table.snapshot_manager().get_latest_snapshot(), entry)

    def _view(self, table: Any, latest: Any, entry: Entry) -> View:
        manager = table.snapshot_manager()
        newest = latest.id if latest is not None else 0
        check(newest >= entry.base, "a lake table lost snapshots", f"{entry.target} is at {newest}, the intent saw {entry.base}")
        markers: list[Marker] = []
        whole = True
        for number in range(newest, entry.base, -1):
            snapshot = latest if number == newest else manager.get_snapshot_by_id(number)
            if snapshot is None:
                whole = False
                continue
            marker = _marker(snapshot)
            if marker is not None and (not markers or (markers[-1].epoch, markers[-1].identity) != (marker.epoch, marker.identity)):
                markers.append(marker)
        files = _where(table, latest, entry, whole=whole)
        sequence_field = not table.primary_keys or table.options.options.to_map().get("sequence.field") == SEQUENCE
        return View(_identity(table), _buckets(table), int(table.table_schema.id), sequence_field, newest, tuple(markers), whole, files)

    def commit(self, intent: Intent, entry: Entry) -> int:
        """Bring an entry into its table, once, whoever else tries the same. Returns the snapshot that has it."""
        for _ in range(_TRIES_MAX):
            table = self.table(entry.target)
            latest = table.snapshot_manager().get_latest_snapshot()
            verdict = judge(intent, entry, self._view(table, latest, entry))
            if isinstance(verdict, There):
                return verdict.snapshot
            if self._publish(table, latest, intent, entry):
                return verdict.on + 1
        raise Unavailable("a lake table can't be committed to", detail=f"{entry.target}: {_TRIES_MAX} tries met others' commits")

    def _publish(self, table: Any, latest: Any, intent: Intent, entry: Entry) -> bool:
        """One try. False: somebody else was first, or the outcome is unknown; the next look tells."""
        from pypaimon.write.commit_message_serializer import deserialize_commit_message
        from pypaimon.write.file_store_commit import FileStoreCommit

        partition, key = table.partition_keys_fields, table.trimmed_primary_keys_fields
        messages = [deserialize_commit_message(message, partition, key) for message in entry.messages]
        commit = FileStoreCommit(_exclusive(table), table, self._user)
        if entry.empties:
            kind, entries = "OVERWRITE", commit._overwrite_changes_provider(None, messages).provide(latest)
        else:
            kind, entries = "APPEND", commit._collect_manifest_entries(messages)
        done = commit._try_commit_once(
            retry_result=None,
            commit_kind=kind,
            commit_entries=entries,
            changelog_entries=commit._collect_changelog_entries(messages),
            commit_identifier=intent.epoch,
            latest_snapshot=latest,
            snapshot_properties={
                _EPOCH: str(intent.epoch),
                _IDENTITY: intent.identity,
                _SEQUENCE_MAX: str(intent.sequence_max),
            },
        )
        return bool(done.is_success())

    # ---- cleaning

    def staged(self, target: str) -> list[str]:
        """Every file of ours that exists in a table's folders, by name; which of them a snapshot needs is `referenced`'s to say."""
        table = self.table(target)
        found: list[str] = []
        for folder in _folders(table):
            found.extend(name for name in _names(table, folder) if name.startswith("sm-"))
        return found

    def referenced(self, target: str) -> set[str]:
        """The files that some snapshot of a table refers to."""
        table = self.table(target)
        manager = table.snapshot_manager()
        names: set[str] = set()
        for snapshot in manager.list_snapshots():
            names |= _files(table, snapshot)
        return names

    def delete(self, target: str, names: Iterable[str]) -> None:
        """Delete staged files. Absent ones are fine."""
        table = self.table(target)
        wanted = set(names)
        for folder in _folders(table):
            for name in wanted.intersection(_names(table, folder)):
                table.file_io.delete_quietly(f"{folder}/{name}")


class Writer:
    """Writes rows of one table, in a task. Not shared; `finish` or `abandon` once."""

    def __init__(self, table: Any, user: str) -> None:
        from pypaimon.write.native_commit import create_native_write_table

        native = create_native_write_table(table)
        if native is None:
            raise InvalidConfig("this kind of Paimon table has no native writer", detail=str(table.identifier))
        self._write: Any = native.new_stream_write_builder().with_commit_user(user).new_write()
        self._rows = 0
        self._partition = table.partition_keys_fields
        self._key = table.trimmed_primary_keys_fields

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, `_seq` and the kind included."""
        self._write.write_arrow(batch)
        self._rows += batch.num_rows

    def finish(self, identifier: int) -> Staged:
        from pypaimon.write.commit_message_serializer import deserialize_commit_message

        messages = tuple(bytes(message.serialize()) for message in self._write.prepare_commit(True, identifier))
        self._write.close()
        read = (deserialize_commit_message(message, self._partition, self._key) for message in messages)
        return Staged(tuple(file.file_name for message in read for file in message.new_files), messages, self._rows)

    def abandon(self) -> None:
        self._write.close()


def _exclusive(table: Any) -> Any:
    """pypaimon's snapshot commit, with a create that fails when the number is taken and all that the snapshot names made durable."""
    from pypaimon.common.json_util import JSON
    from pypaimon.snapshot.snapshot_commit import SnapshotCommit

    path = str(table.table_path)
    store: Store = open_store(path)

    class Exclusive(SnapshotCommit):  # type: ignore[misc]
        def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: list[Any]) -> bool:
            _sync(table, snapshot)
            won = store.put_if_absent(f"snapshot/snapshot-{snapshot.id}", JSON.to_json(snapshot, indent=2).encode())
            if won:
                _hint(table, snapshot.id)
            return won

        def close(self) -> None:
            pass

    return Exclusive()


def _hint(table: Any, number: int) -> None:
    """Where readers look first. It is no more than a hint, so that a failure is nobody's."""
    manager = table.snapshot_manager()
    try:
        table.file_io.overwrite_file_utf8(manager.latest_file, str(number))
    except OSError:
        return


def _sync(table: Any, snapshot: Any) -> None:
    """On a local path: what a snapshot names is durable before it exists."""
    path = str(table.table_path).removeprefix("file://")
    if "://" in path:
        return
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    folder = f"{path}/manifest"
    lists = [snapshot.base_manifest_list, snapshot.delta_manifest_list]
    if snapshot.changelog_manifest_list:
        lists.append(snapshot.changelog_manifest_list)
    manifests = [meta.file_name for meta in ManifestListManager(table).read_delta(snapshot)]
    for name in [*lists, *manifests]:
        _fsync(f"{folder}/{name}")
    _fsync(folder)
    for bucket in _folders(table):
        _fsync(bucket.removeprefix("file://"))


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _marker(snapshot: Any) -> Marker | None:
    properties = snapshot.properties or {}
    if _EPOCH not in properties:
        return None
    try:
        return Marker(int(properties[_EPOCH]), properties[_IDENTITY], snapshot.id)
    except (KeyError, ValueError) as error:
        raise Corrupt("a snapshot's properties can't be read", detail=f"snapshot {snapshot.id}") from error


def _identity(table: Any) -> str:
    """Tells a table from one of the same name that was made later: its first schema has the time of its making."""
    first = f"{table.table_path}/schema/schema-0"
    try:
        return hashlib.sha256(table.file_io.read_file_utf8(first).encode()).hexdigest()[:32]
    except OSError as error:
        raise SourceDrift("a lake table's first schema is gone", detail=str(table.identifier)) from error


def _buckets(table: Any) -> int:
    return int(table.total_buckets)


def _where(table: Any, latest: Any, entry: Entry, *, whole: bool) -> Files:
    """Where an entry's files are. Manifests are read only where snapshots do not tell."""
    if not entry.files:
        return Files.STAGED
    if not whole and latest is not None and not _files(table, latest).isdisjoint(entry.files):
        return Files.REFERENCED
    there: set[str] = set()
    for folder in _folders(table):
        there.update(_names(table, folder))
    return Files.STAGED if there.issuperset(entry.files) else Files.MISSING


def _files(table: Any, snapshot: Any) -> set[str]:
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    entries = ManifestFileManager(table).read_entries_parallel(ManifestListManager(table).read_all(snapshot))
    return {entry.file.file_name for entry in entries}


def _folders(table: Any) -> list[str]:
    """The folders of a table that hold data files: its buckets."""
    path = str(table.table_path)
    names = [status.path.rstrip("/").rpartition("/")[2] for status in table.file_io.list_status(path)]
    return [f"{path}/{name}" for name in names if name.startswith("bucket-")]


def _names(table: Any, folder: str) -> list[str]:
    return [status.path.rpartition("/")[2] for status in table.file_io.list_status(folder)]
