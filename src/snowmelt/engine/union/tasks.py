"""What runs in Spark's Python workers: the rows of one share of a union read.

Laws:
- A task reads everything in its plan, or fails: a log that ends early, a missing file, a lease that ends before its
  KV snapshot was read to the end. Nothing is read from another place instead.
- A table with a key: first the changes, then the rows below them, batch by batch, without those that changes touched; then the rows
  that changes have left. A log table: the rows of the lake, or those of the log, as they are.

Memory: the changes of one bucket (`merge`) and a batch of the rows below them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from snowmelt.engine.union.merge import Tail
from snowmelt.engine.union.options import UnionOptions
from snowmelt.engine.union.plan import UnionTask
from snowmelt.engine.union.protection import READER, Protection, protected
from snowmelt.errors import InvariantBroken, Unavailable
from snowmelt.fluss.client import connect_coordinator
from snowmelt.fluss.formats.batches import KIND
from snowmelt.fluss.formats.types import Column
from snowmelt.fluss.log import BucketReader, LogAccess
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import BucketLeader
from snowmelt.model.fluss import Bucket
from snowmelt.sinks.registry import open_reader


def run_task(options: UnionOptions, task: UnionTask, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows with these columns, in Fluss' types. Batches are not empty."""
    return (batch for batch in _SplitReading(options, task, names).rows() if batch.num_rows)


class _SplitReading:
    def __init__(self, options: UnionOptions, task: UnionTask, names: Sequence[str]) -> None:
        self._options = options
        self._task = task
        self._names = list(names)
        target = task.table.versions.target
        # All rows of a bucket have the same partition.
        self._key: tuple[Column, ...] = tuple(target.column(name) for name in target.primary_key if name not in task.table.partition_key)
        self._needed = [*names, *(column.name for column in self._key if column.name not in names)]
        self._schema = pa.schema([target.column(name).field for name in self._needed])
        self._remote = RemoteFiles(options.remote)
        self._protection: Protection | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        if self._task.leased is None:
            yield from self._rows()
            return
        # From the start: a task that reads a log first is a reader too.
        with protected(self._options, self._task.leased) as self._protection:
            yield from self._rows()

    def _rows(self) -> Iterator[pa.RecordBatch]:
        bucket = self._task.bucket
        if bucket is None or not self._key:
            yield from (batch.select(self._names) for batch in self._below())
            if bucket is not None:
                yield from (batch.select(self._names) for batch in self._log(bucket))
            return
        tail = Tail(self._key)
        for batch in self._log(bucket):
            tail.add(batch.select([*self._needed, KIND]))
        for batch in self._below():
            yield tail.lay(batch).select(self._names)
        yield from (batch.select(self._names) for batch in tail.rows())

    def _below(self) -> Iterator[pa.RecordBatch]:
        """The rows below the changes."""
        if self._task.files:
            yield from self._kv_snapshot()
        elif self._task.shares:
            lake = open_reader(self._options.warehouse, user=READER)
            for batch in lake.read(self._options.target, self._task.lake_snapshot, self._needed, self._task.shares):
                arrays = [batch.column(field.name).cast(field.type) for field in self._schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _kv_snapshot(self) -> Iterator[pa.RecordBatch]:
        table, protection = self._task.table, self._protection
        if protection is None:
            raise InvariantBroken("a KV snapshot is read that nothing protects")
        for batch in SnapshotReader(table.versions, self._remote, kv_format=table.kv_format).read(self._task.files):
            protection.check()
            yield batch.select(self._needed)
        protection.finish()

    def _log(self, bucket: Bucket) -> Iterator[pa.RecordBatch]:
        table = self._task.table
        leader = BucketLeader(self._options.table, bucket, lambda: connect_coordinator(self._options.bootstrap, self._options.login))
        try:
            reader = BucketReader(
                bucket,
                self._task.start,
                self._task.stop,
                access=LogAccess(source=leader, remote=self._remote),
                versions=table.versions,
                log_format=table.log_format,
            )
            yield from reader.read()
            if reader.offset != self._task.stop:
                raise Unavailable(
                    "a Fluss table got a newer schema than a read was planned with",
                    detail=f"{self._options.table}, bucket {bucket}: schema {reader.newer_schema} at {reader.offset}",
                    hint="read again",
                )
        finally:
            leader.close()
