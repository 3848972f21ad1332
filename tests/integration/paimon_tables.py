"""Two Paimon tables, one with a key and one without; what others do to them; and committers as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from snowmelt.commit.records import Entry, Intent, Reshape, Staged, StagedFor, StagedName
from snowmelt.errors import Fenced
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.kit.forked import forkserver

KEYED, PLAIN = "shop.orders", "shop.events"
BUCKETS = 2
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
NATIVE = {"read.native.enabled": "true"}
READERS: Sequence[Mapping[str, str]] = ({}, NATIVE)

Row = tuple[int, str | None, int]
"""Key, value and `_seq`; without a value it is a delete."""


def open_sink(warehouse: Path | str, user: str = "snowmelt") -> PaimonSink:
    return PaimonSink(str(warehouse), user=user)


def make_tables(warehouse: Path | str, **options: str) -> PaimonSink:
    lake = open_sink(warehouse)
    lake.create(KEYED, SCHEMA, ["id"], buckets=BUCKETS, options=options)
    lake.create(PLAIN, SCHEMA, [], buckets=BUCKETS, options=options)
    return lake


def folder(lake: PaimonSink, target: str) -> Path:
    return Path(str(lake.table(target).table_path).removeprefix("file://"))


# ---- writing


def batch(rows: Sequence[Row], *, keyed: bool) -> pa.RecordBatch:
    kinds = [INSERT if value is not None else DELETE for _, value, _ in rows]
    columns = [
        pa.array([key for key, _, _ in rows], pa.int64()),
        pa.array([value for _, value, _ in rows], pa.string()),
        pa.array([sequence for _, _, sequence in rows], pa.int64()),
        pa.array(kinds, pa.int8()),
    ]
    fields = [*SCHEMA, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8(), nullable=False)]
    count = 4 if keyed else 3
    return pa.record_batch(columns[:count], schema=pa.schema(fields[:count]))


def stage(lake: PaimonSink, target: str, *writes: Sequence[Row], number: int = 1, chunk: bool = False, generation: int = 1) -> Staged:
    """What one task leaves, that wrote these batches one after the other."""
    writer = lake.writer(target, str(StagedName(generation, StagedFor.CHUNK if chunk else StagedFor.EPOCH, number, "a1", "")))
    keyed = bool(lake.table(target).primary_keys)
    for rows in writes:
        writer.write(batch(rows, keyed=keyed))
    return writer.finish()


def stage_columns(lake: PaimonSink, target: str, columns: Mapping[str, Sequence[Any]], *, number: int) -> Staged:
    """Rows of whatever columns the table has now, as one task leaves them; what is not named is NULL."""
    from pypaimon.schema.data_types import PyarrowFieldParser

    table = lake.table(target)
    rows = len(next(iter(columns.values())))
    schema = PyarrowFieldParser.from_paimon_schema(table.fields)
    given: dict[str, Sequence[Any]] = {**columns, SEQUENCE: [2 * number] * rows}
    if table.primary_keys:
        schema = schema.append(pa.field(KIND, pa.int8(), nullable=False))
        given[KIND] = [INSERT] * rows
    arrays = [pa.array(given.get(field.name, [None] * rows), field.type) for field in schema]
    writer = lake.writer(target, str(StagedName(1, StagedFor.EPOCH, number, "a1", "")))
    writer.write(pa.record_batch(arrays, schema=schema))
    return writer.finish()


def entry_of(lake: PaimonSink, target: str, *staged: Staged, empties: Sequence[str] = (), reshape: Reshape | None = None) -> Entry:
    state = lake.describe(target)
    files = tuple(name for part in staged for name in part.files)
    messages = tuple(message for part in staged for message in part.messages)
    marker, _ = lake.newest_commit(target)
    previous = marker.identity if marker is not None else ""
    entry = Entry(
        target=target,
        uuid=state.identity,
        buckets=state.buckets,
        schema=state.schema,
        new_schema=None,
        base=state.progress,
        empties=tuple(empties),
        files=files,
        messages=messages,
        previous=previous,
    )
    if reshape is not None:
        assert reshape.expected == state.schema
        entry = replace(entry, new_schema=reshape.schema, shape=reshape.content)
    return entry


def intent_of(epoch: int, *entries: Entry, generation: int = 1, nonce: str = "a1") -> Intent:
    return Intent(
        epoch=epoch,
        generation=generation,
        nonce=nonce,
        after=epoch - 1,
        upto=epoch,
        time_ms=None,
        facts=(),
        entries=entries,
        sequence_max=2 * epoch,
        segment=0,
    )


def bring(lake: PaimonSink, epoch: int, target: str, *rows: Row, empties: Sequence[str] = ()) -> int:
    """An epoch of these rows, staged and committed."""
    staged = [stage(lake, target, rows, number=epoch)] if rows else []
    entry = entry_of(lake, target, *staged, empties=empties)
    return lake.commit(intent_of(epoch, entry), entry)


def prepare(lake: PaimonSink, epochs: Iterable[int]) -> list[Intent]:
    """Intents that were all written before the first was committed, so that their bases are as far behind as can be: each epoch
    writes its number into keys 0, 1 and its own, deletes the epoch before's own key, and adds a row to the table without a key."""
    intents = []
    for epoch in epochs:
        rows: list[Row] = [(0, str(epoch), 2 * epoch), (1, str(epoch), 2 * epoch), (epoch + 10, str(epoch), 2 * epoch)]
        if epoch > 1:
            rows.append((epoch + 9, None, 2 * epoch))
        keyed = entry_of(lake, KEYED, stage(lake, KEYED, rows, number=epoch))
        plain = entry_of(lake, PLAIN, stage(lake, PLAIN, [(epoch, str(epoch), 2 * epoch)], number=epoch))
        intent = intent_of(epoch, keyed, plain)
        if intents:
            # The epoch before is in both tables by the time that this one comes.
            entries = tuple(replace(entry, previous=intents[-1].identity) for entry in intent.entries)
            intent = replace(intent, entries=entries)
        intents.append(intent)
    return intents


def check_prepared(lake: PaimonSink, epochs: int) -> None:
    """All of `prepare`'s epochs are there, each once."""
    last = str(epochs)
    assert read(lake, KEYED) == [(0, last, 2 * epochs), (1, last, 2 * epochs), (epochs + 10, last, 2 * epochs)]
    assert read(lake, PLAIN) == [(epoch, str(epoch), 2 * epoch) for epoch in range(1, epochs + 1)]
    for target in (KEYED, PLAIN):
        assert epochs_of(lake, target) == list(range(1, epochs + 1))


# ---- reading


def read_with(lake: PaimonSink, target: str, options: Mapping[str, str]) -> list[Row]:
    """In the order in which the reader gives them."""
    builder = lake.table(target).copy(dict(options)).new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    if found is None:
        return []
    return list(zip(*(found.column(name).to_pylist() for name in ("id", "v", SEQUENCE)), strict=True))


def read_columns(
    lake: PaimonSink, target: str, filtered: Callable[[Any], Any] | None = None, *, readers: Sequence[Mapping[str, str]] = READERS
) -> list[dict[str, Any]]:
    """All columns but `_seq`, sorted by the first; these of pypaimon's readers agree on it. `filtered` makes a predicate."""
    found = []
    for options in readers:
        builder = lake.table(target).copy(dict(options)).new_read_builder()
        if filtered is not None:
            builder = builder.with_filter(filtered(builder.new_predicate_builder()))
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        found.append(
            sorted(rows.drop_columns([SEQUENCE]).to_pylist(), key=lambda row: (next(iter(row.values())), str(row)))
            if rows is not None
            else []
        )
    assert found[0] == found[-1]
    return found[0]


def read(lake: PaimonSink, target: str) -> list[Row]:
    """Sorted; both of pypaimon's readers agree on it."""
    ours, native = (sorted(read_with(lake, target, options)) for options in READERS)
    assert ours == native
    return ours


def snapshots(lake: PaimonSink, target: str) -> list[Any]:
    found: list[Any] = lake.table(target).snapshot_manager().list_snapshots()
    return found


def epochs_of(lake: PaimonSink, target: str) -> list[int]:
    """The epochs that the snapshots tell of, in their order. One that is there twice is listed twice."""
    return [int(snapshot.properties["snowmelt.epoch"]) for snapshot in snapshots(lake, target) if snapshot.properties]


def watch_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is synced and linked from now on, in order, by path."""
    taken: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        taken.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watched_link(source: str, target: str, **options: Any) -> None:
        taken.append(f"link {target}")
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    return taken


# ---- what others do


def foreign_commit(lake: PaimonSink, target: str, *rows: Row) -> None:
    """By pypaimon alone, as another user."""
    builder = lake.table(target).new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    data = batch(rows, keyed=False)
    write.write_arrow(pa.Table.from_batches([data]))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def own_commit(lake: PaimonSink, entry: Entry, epoch: int, user: str = "snowmelt") -> None:
    """By pypaimon's own committer, as somebody would who trusts in user and identifier."""
    from pypaimon.write.commit_message_serializer import deserialize_commit_message

    table = lake.table(entry.target)
    builder = table.new_stream_write_builder()
    builder.commit_user = user
    messages = [deserialize_commit_message(m, table.partition_keys_fields, table.trimmed_primary_keys_fields) for m in entry.messages]
    builder.new_commit().commit(messages, epoch)


def expire(lake: PaimonSink, target: str, *numbers: int) -> None:
    """Snapshots go, as expiry lets them go; files stay."""
    for number in numbers:
        (folder(lake, target) / "snapshot" / f"snapshot-{number}").unlink()


def alter(lake: PaimonSink, target: str, *changes: Any) -> None:
    lake._catalog.alter_table(target, list(changes), False)


def compact(lake: PaimonSink, target: str, *, copies_marker: bool = False) -> None:
    """All files become one, as another user's COMPACT snapshot; the old ones stay in storage until expiry. Deletes are forgotten."""
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager
    from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
    from pypaimon.write.commit_message_serializer import deserialize_commit_message
    from pypaimon.write.file_store_commit import FileStoreCommit

    table = lake.table(target)
    latest = table.snapshot_manager().get_latest_snapshot()
    old = ManifestFileManager(table).read_entries_parallel(ManifestListManager(table).read_all(latest))
    rows = read(lake, target)
    writer = lake.writer(target, "compacted-")
    writer.write(batch(rows, keyed=bool(table.primary_keys)))
    part = writer.finish()
    commit = FileStoreCommit(RenamingSnapshotCommit(table.snapshot_manager()), table, "compactor")
    messages = [deserialize_commit_message(m, table.partition_keys_fields, table.trimmed_primary_keys_fields) for m in part.messages]
    entries = [replace(entry, kind=1) for entry in old] + commit._collect_manifest_entries(messages)
    properties = latest.properties if copies_marker else None
    done = commit._try_commit_once(None, "COMPACT", entries, [], 1, latest, snapshot_properties=properties)
    assert done.is_success()


# ---- committers as processes


class Process:
    """A process that does one thing and tells of it. Ended with the block, by its id.

    What it does says "ready", waits for the word to go, and tells over the pipe what comes of it.
    """

    def __init__(self, task: Callable[[Connection], None]) -> None:
        self._pipe, other = forkserver.Pipe()
        self.process: ForkServerProcess = forkserver.Process(target=task, args=(other,))
        self.process.start()
        other.close()
        assert self._pipe.recv() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._pipe.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def go(self) -> None:
        self._pipe.send("go")

    def hear(self) -> Any:
        """The next thing it tells, or None if it is gone."""
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def hear_all(self) -> list[Any]:
        told = []
        while (said := self.hear()) is not None:
            told.append(said)
        return told

    def await_stop(self) -> None:
        """Until it has stopped itself. It is no child of ours, so its state is read."""
        while _state(self.pid) != "T":
            assert self.process.is_alive(), "it has ended instead"
            time.sleep(0.001)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Committer(Process):
    """Commits intents in order and tells of each epoch that it has committed, and "end".

    An error is told and ends it; one that is `stubborn` goes on with the next epoch when it is fenced, which no driver would do.
    """

    def __init__(
        self, warehouse: Path, intents: Sequence[Intent], prelude: Callable[[], None] | None = None, *, stubborn: bool = False
    ) -> None:
        super().__init__(partial(_commit_all, str(warehouse), list(intents), prelude, stubborn))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _commit_all(warehouse: str, intents: list[Intent], prelude: Callable[[], None] | None, stubborn: bool, pipe: Connection) -> None:
    lake = open_sink(warehouse)
    pipe.send("ready")
    pipe.recv()
    if prelude is not None:
        prelude()
    for intent in intents:
        try:
            for entry in intent.entries:
                with suppress(*((Fenced,) if stubborn else ())):
                    lake.commit(intent, entry)
        except Exception as error:
            pipe.send(error)
            return
        pipe.send(intent.epoch)
    pipe.send("end")


def stop_before_publish() -> None:
    """In a committer: it stops itself once, with everything ready but the snapshot's file."""
    _stop_before("snapshot/")


def stop_before_schema() -> None:
    """In a committer: it stops itself once, with everything done but the change of the schema."""
    _stop_before("schema/")


def _stop_before(prefix: str) -> None:
    from snowmelt.store.local import LocalStore

    real = LocalStore.put_if_absent

    def stopping(self: LocalStore, key: str, value: bytes) -> bool:
        if key.startswith(prefix):
            LocalStore.put_if_absent = real  # type: ignore[method-assign]
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(self, key, value)

    LocalStore.put_if_absent = stopping  # type: ignore[method-assign]


class DieAtStep:
    """In a committer: it is killed right before its n-th step that leaves something behind: a file opened to write, a sync, a link,
    a removal."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self) -> None:
        left = [self.step]

        def count() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if written or event in ("os.link", "os.rename", "os.remove", "os.mkdir"):
                count()

        real = os.fsync

        def fsync(descriptor: int) -> None:
            count()
            real(descriptor)

        os.fsync = fsync
        sys.addaudithook(heard)
