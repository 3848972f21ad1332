"""What the tasks of a union read will read, asked of Fluss and of the lake once.

Laws:
- Fluss is asked what it knows before the lake is read, and the lake before the ends of the logs. In another order, changes by
  others in between would look like a loss.
- A log that does not reach back to the lake's offset is a stop, unless the lake has changed meanwhile: then all is planned again.
- The table is described once more after the ends of its logs, so that no row below them has a schema that the plan does not know.
- A KV snapshot is given to a task only under a verified lease, and with the address of the lease's holder: the planning process
  ends before the tasks begin.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from snowmelt.engine.tiering.leasing import lease_id, require_leases
from snowmelt.engine.tiering.listing import Buckets, lake_known, lake_shape, list_buckets
from snowmelt.engine.union.holder import HeldSnapshots, Hold, hold
from snowmelt.engine.union.options import UnionOptions
from snowmelt.engine.union.protection import READER, LeasedRead
from snowmelt.errors import InvalidConfig, SourceDrift, Unavailable
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.formats.types import Root, Schema
from snowmelt.fluss.tables import ReadableTable, describe_table
from snowmelt.model.fluss import Bucket, SnapshotFile
from snowmelt.sinks.contract import ReadShare
from snowmelt.sinks.registry import open_reader, open_tiering
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.union import BucketPart, LakeOffsets, decide_pair, plan_union, with_snapshot

TRIES_MAX: Final = 5
_NAMED: Final = frozenset({Root.STRING, Root.CHAR, Root.TINYINT, Root.SMALLINT, Root.INTEGER, Root.BIGINT, Root.BOOLEAN, Root.DATE})
"""Types of partition columns whose values have the same text in Fluss and in the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionTask:
    """Rows of the lake, of a KV snapshot, or of neither; then the changes of the log in [start, stop), which replace them by key."""

    table: ReadableTable
    lake_snapshot: int = 0
    shares: tuple[ReadShare, ...] = ()
    bucket: Bucket | None = None
    """None: there is no log to read."""
    start: int = 0
    stop: int = 0
    files: tuple[SnapshotFile, ...] = ()
    """Of the KV snapshot."""
    leased: LeasedRead | None = None
    """None: it reads no KV snapshot."""


def read_schema_of(options: UnionOptions) -> Schema:
    """The table's current schema. Errors say which option is wrong."""
    client = connect_coordinator(options.bootstrap, options.login)
    try:
        return describe_table(client, options.table).versions.target
    finally:
        client.connection.close()


def plan_tasks(options: UnionOptions, owner: int) -> list[UnionTask]:
    """`owner`: the process whose end ends the read and its lease."""
    client = connect_coordinator(options.bootstrap, options.login)
    try:
        return _Planning(options, client, owner).tasks()
    finally:
        client.connection.close()


class _Planning:
    def __init__(self, options: UnionOptions, client: FlussClient, owner: int) -> None:
        self._options = options
        self._client = client
        self._owner = owner
        self._table = describe_table(client, options.table)
        self._keyed = bool(self._table.versions.target.primary_key)
        self._lake = open_tiering(options.warehouse, remote=options.remote)

    def tasks(self) -> list[UnionTask]:
        for _ in range(TRIES_MAX - 1):
            pair: LakeOffsets | None = None
            try:
                pair = self._look()
                return self._tasks(pair)
            except SourceDrift:
                if pair is not None and self._look() == pair:
                    raise
        return self._tasks(self._look())

    def _look(self) -> LakeOffsets:
        """The lake's newest tiered snapshot and its offsets."""
        known = lake_known(self._client, self._options.table)
        if not self._lake.fits(self._options.target, lake_shape(self._table)):
            if known is not None:
                raise InvalidConfig(
                    "a Fluss table was tiered, and its lake table is not there",
                    detail=f"{self._options.target} in {self._options.warehouse}",
                    hint="is the warehouse the right one?",
                )
            return LakeOffsets(0, Offsets(self._table.table, {}))
        view = self._lake.view(self._options.target)
        offsets = self._lake.offsets(view.newest.path) if view.newest is not None else None
        return decide_pair(self._table.table, view, offsets, known)

    def _tasks(self, pair: LakeOffsets) -> list[UnionTask]:
        shares = open_reader(self._options.warehouse, user=READER).shares(self._options.target, pair.snapshot) if pair.snapshot else []
        buckets = list_buckets(self._client, self._table)
        # A log that does not begin with its first row may continue in a lake that was empty when we read it. Tables with a key have KV
        # snapshots for that.
        cut = not self._keyed and any(log.earliest and log.bucket not in pair.offsets.ends for log in buckets.logs)
        if cut and self._look() != pair:
            raise SourceDrift("a Fluss table was tiered while it was looked at", detail=str(self._options.table))
        reads = plan_union(keyed=self._keyed, starts=pair.offsets.ends, logs=buckets.logs)
        with contextlib.ExitStack() as undo:
            held = self._lease(buckets, reads, undo)
            tasks = self._planned(pair, shares, buckets, reads, held)
            undo.pop_all()
        return tasks

    def _planned(
        self,
        pair: LakeOffsets,
        shares: Sequence[ReadShare],
        buckets: Buckets,
        reads: Sequence[BucketPart],
        held: HeldSnapshots | None,
    ) -> list[UnionTask]:
        table = describe_table(self._client, self._options.table)
        if table.table != self._table.table:
            raise Unavailable("a Fluss table was dropped and made anew while it was looked at", detail=str(self._options.table))
        ends = {read.bucket: read.stop for read in reads}
        # There may be newer KV snapshots by now than in the plan.
        snapshots = {} if held is None else held.snapshots
        leased = {bucket: with_snapshot(one.snapshot, ends[bucket]) for bucket, one in snapshots.items()}
        reads = tuple(leased.get(read.bucket, read) for read in reads)
        alone, beside = self._divided(shares, buckets, reads)
        tasks = [UnionTask(table=table, lake_snapshot=pair.snapshot, shares=(share,)) for share in alone]
        for read in reads:
            if read.snapshot is None and read.start == read.stop:
                continue
            tasks.append(
                UnionTask(
                    table=table,
                    lake_snapshot=pair.snapshot,
                    shares=tuple(beside.get(read.bucket, ())),
                    bucket=read.bucket,
                    start=read.start,
                    stop=read.stop,
                    files=snapshots[read.bucket].files.files if read.snapshot is not None else (),
                    leased=None
                    if held is None or read.snapshot is None
                    else LeasedRead(read.snapshot, buckets.partition_name(read.bucket), held.address),
                )
            )
        return tasks

    def _lease(self, buckets: Buckets, reads: Sequence[BucketPart], undo: contextlib.ExitStack) -> HeldSnapshots | None:
        """None: there is nothing to lease. `undo`: drops what is leased."""
        wanted = {read.bucket: buckets.partition_name(read.bucket) for read in reads if read.snapshot is not None}
        if not wanted:
            return None
        require_leases(self._client)
        lease = lease_id(READER, self._table.table, uuid.uuid4().hex)
        held = hold(
            Hold(
                bootstrap=self._options.bootstrap,
                login=self._options.login,
                lease=lease,
                path=self._options.table,
                table=self._table.table,
                wanted=wanted,
                duration_ms=self._options.lease_ms,
                owner=self._owner,
            )
        )
        undo.callback(held.drop)
        if held.snapshots.keys() != wanted.keys():
            raise Unavailable("a Fluss bucket has no KV snapshot any more", detail=f"{self._options.table}, lease {lease}")
        return held

    # ---- which rows of the lake go with which bucket

    def _divided(
        self, shares: Sequence[ReadShare], buckets: Buckets, reads: Iterable[BucketPart]
    ) -> tuple[list[ReadShare], dict[Bucket, list[ReadShare]]]:
        """Shares that no change of the log touches (all of log tables; of others the buckets at their end and the partitions that
        Fluss has dropped), and shares by the bucket whose changes touch them."""
        if not self._keyed:
            return list(shares), {}
        alone: list[ReadShare] = []
        beside: dict[Bucket, list[ReadShare]] = {}
        partitions = self._partitions(buckets)
        moved = {read.bucket: read.start < read.stop for read in reads if read.lake}
        for share in shares:
            name = tuple(_text(value) for value in share.partition)
            if name not in partitions:
                alone.append(share)
                continue
            bucket = Bucket(self._table.table, share.bucket, partitions[name])
            if bucket in moved:
                (beside.setdefault(bucket, []) if moved[bucket] else alone).append(share)
            # Any other partition was dropped and created again: the lake's rows are of the old one.
        return alone, beside

    def _partitions(self, buckets: Buckets) -> dict[tuple[str, ...], int | None]:
        """Fluss' partitions, by the values of their columns."""
        if not self._table.partition_key:
            return {(): None}
        for name in self._table.partition_key:
            kind = self._table.versions.target.column(name).type.root
            if kind not in _NAMED:
                raise InvalidConfig(
                    "a Fluss table is partitioned by a column whose values the lake writes in another way",
                    detail=f"{self._options.table}: {name} {kind}",
                    hint="columns of text, whole numbers, dates and BOOLEAN can be read together with the lake",
                )
        named = {number: dict(one.values) for number, one in buckets.partitions.items()}
        return {tuple(values[name] for name in self._table.partition_key): number for number, values in named.items()}


def _text(value: Any) -> str:
    """A value of a partition column in Fluss' spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def narrowed(schema: Schema, columns: Sequence[str]) -> Schema:
    """Only these columns, in their order; all if none are given."""
    if not columns:
        return schema
    known = {column.name: column for column in schema.columns}
    if missing := [name for name in columns if name not in known]:
        raise InvalidConfig("a Fluss table has no such column", detail=missing[0], hint=f"it has {', '.join(known)}"[:300])
    if len(set(columns)) != len(columns):
        raise InvalidConfig("a column is to be read twice", detail=", ".join(columns)[:300])
    return replace(schema, columns=tuple(known[name] for name in columns), primary_key=())
