"""What runs in Spark's Python workers: one split of a Fluss bucket, from Fluss into staged files.

Laws:
- A task knows only its split, and asks no other process for permission. Its files count only if a commit names them.
- A range of the log may end early, when its time is over or a newer schema begins, but never between the halves of an update. A KV
  snapshot is read completely, or not at all.
- Rows pass from the reader to the writer batch by batch: no row passes the JVM, and memory is that of a batch and of the writer.
- A partition that was dropped meanwhile is an answer, not an error.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.engine.failpoints import SPLIT_READ, reach
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.fluss.client import connect_coordinator
from snowmelt.fluss.formats.batches import KIND, OFFSET, TIMESTAMP, UPDATE_BEFORE
from snowmelt.fluss.log import BucketReader, LogAccess
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import BucketLeader, ReadableTable
from snowmelt.model.fluss import SnapshotFile
from snowmelt.sinks.registry import open_tiering
from snowmelt.tiering.round_steps import BucketRead
from snowmelt.tiering.splits import LogSplit, SnapshotSplit, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    split: Split
    table: ReadableTable
    target: str
    prefix: str
    """Of the names of the round's files."""
    files: tuple[SnapshotFile, ...] = ()
    """Of the leased KV snapshot."""


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    read: BucketRead
    rows: int


def run_split(settings: TieringSettings, task: SplitTask) -> SplitAnswer:
    """Read a split and stage it."""
    bucket, remote = task.split.bucket, RemoteFiles(settings.remote)
    lake = open_tiering(settings.warehouse)
    writer = lake.writer(task.target, bucket.bucket, f"{task.prefix}-{uuid.uuid4().hex}")
    rows: _LogRows | _SnapshotRows
    if isinstance(task.split, LogSplit):
        rows = _LogRows(settings, task, task.split, remote)
    else:
        rows = _SnapshotRows(task, task.split, remote)
    newest_ms = -1
    try:
        for batch in rows.read():
            writer.write(batch)
            newest_ms = max(newest_ms, _newest_ms(batch))
            reach(SPLIT_READ)
        messages = writer.finish()
    except GoneFromFluss:
        writer.abandon()
        return SplitAnswer(BucketRead(bucket, None, ()), 0)
    except BaseException:
        writer.abandon()
        raise
    return SplitAnswer(BucketRead(bucket, rows.reached, messages, newest_ms), writer.rows)


class _SnapshotRows:
    def __init__(self, task: SplitTask, split: SnapshotSplit, remote: RemoteFiles) -> None:
        self._task = task
        self._remote = remote
        self.reached = split.snapshot.offset

    def read(self) -> Iterator[pa.RecordBatch]:
        table = self._task.table
        return SnapshotReader(table.versions, self._remote, kv_format=table.kv_format).read(self._task.files)


class _LogRows:
    """The rows of a range, up to where it may end. `reached` is that offset."""

    def __init__(self, settings: TieringSettings, task: SplitTask, split: LogSplit, remote: RemoteFiles) -> None:
        self._settings = settings
        self._task = task
        self._split = split
        self._remote = remote
        self.reached = split.start

    def read(self) -> Iterator[pa.RecordBatch]:
        deadline, read_bytes = time.monotonic() + self._settings.round_s_max, 0
        table, bucket = self._task.table, self._split.bucket
        with closing(
            BucketLeader(table.path, bucket, lambda: connect_coordinator(self._settings.bootstrap, self._settings.login))
        ) as leader:
            reader = BucketReader(
                bucket,
                self._split.start,
                self._split.stop,
                access=LogAccess(source=leader, remote=self._remote),
                versions=table.versions,
                log_format=table.log_format,
            )
            held: pa.RecordBatch | None = None
            for batch in reader.read():
                if held is not None:
                    yield held
                # The old half of an update waits for the new one: a range may end after this batch.
                whole = batch.num_rows - int(_ends_in_the_middle(batch))
                held = batch.slice(whole) if whole < batch.num_rows else None
                if whole:
                    yield batch.slice(0, whole)
                    self.reached = int(batch.column(OFFSET)[whole - 1].as_py()) + 1
                read_bytes += batch.nbytes
                if held is None and (time.monotonic() > deadline or read_bytes > self._settings.bytes_max):
                    return
            # After the last row there may be batches without rows.
            if held is None:
                self.reached = reader.offset


def _ends_in_the_middle(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows > 0 and batch.column(KIND)[-1].as_py() == UPDATE_BEFORE)


def _newest_ms(batch: pa.RecordBatch) -> int:
    newest = pc.max(batch.column(TIMESTAMP)).cast(pa.int64()).as_py()
    return -1 if newest is None else int(newest)
