"""What Fluss has of a table, bucket by bucket, as plans need it; what it knows of the lake table, and the shape of that table."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.fluss.answers import Node, OffsetKind, Partition
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.tables import ReadableTable
from snowmelt.fluss.tablets import Tablets
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.sinks.tiering import LakeColumn, LakeShape
from snowmelt.tiering.fence import KnownToFluss
from snowmelt.tiering.splits import BucketLog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Buckets:
    logs: tuple[BucketLog, ...]
    partitions: Mapping[int, Partition]

    def partition_name(self, bucket: Bucket) -> str | None:
        return self.partitions[bucket.partition].name if bucket.partition is not None else None


def list_buckets(client: FlussClient, table: ReadableTable) -> Buckets:
    """Every bucket. One of a partition that is dropped meanwhile is left out. `client` is at the coordinator."""
    found = client.partitions(table.path) if table.partition_key else ()
    partitions = {one.partition: one for one in found}
    logs: list[BucketLog] = []
    with closing(Tablets(client.cluster(table.path, partitions))) as opened:
        for partition in found if table.partition_key else (None,):
            try:
                logs += _list_partition(client, opened, table, partition)
            except GoneFromFluss as gone:
                if partition is None:
                    raise
                # A tablet server that has just started gives the same error for all its buckets as for dropped ones.
                if partition in client.partitions(table.path):
                    raise Unavailable("a Fluss server does not know a bucket at the moment", detail=gone.detail) from gone
                del partitions[partition.partition]
    return Buckets(tuple(logs), partitions)


def _list_partition(client: FlussClient, opened: Tablets, table: ReadableTable, partition: Partition | None) -> list[BucketLog]:
    number = partition.partition if partition is not None else None
    keyed = bool(table.versions.target.primary_key)
    snapshots = client.latest_snapshots(table.path, partition.name if partition is not None else None).snapshots if keyed else {}
    buckets = [Bucket(table.table, at, number) for at in range(table.buckets)]
    by_leader: dict[Node, list[int]] = {}
    for bucket in buckets:
        by_leader.setdefault(opened.leader(bucket), []).append(bucket.bucket)
    earliest: dict[Bucket, int] = {}
    latest: dict[Bucket, int] = {}
    for node, numbers in by_leader.items():
        # The end first: if log is cut meanwhile, the beginning shows it.
        latest |= opened.client(node).offsets(table.table, number, numbers, OffsetKind.LATEST)
        earliest |= opened.client(node).offsets(table.table, number, numbers, OffsetKind.EARLIEST)
    return [BucketLog(bucket, earliest[bucket], latest[bucket], snapshots.get(bucket)) for bucket in buckets]


def lake_known(client: FlussClient, path: TableId) -> KnownToFluss | None:
    """What Fluss says about the lake."""
    try:
        known = client.lake_snapshot(path)
    except OutcomeUnknown as error:
        # It lacks its own file of offsets. The lake's word counts, and a round tells Fluss again.
        log.warning("Fluss can't say what it knows of %s in the lake: %s", path, error)
        return None
    return None if known is None else KnownToFluss(known.snapshot, known.offsets)


def lake_shape(table: ReadableTable) -> LakeShape:
    target = table.versions.target
    columns = tuple(LakeColumn(column.name, column.type.paimon) for column in target.columns)
    return LakeShape(
        columns=columns,
        key=target.primary_key,
        partition_key=table.partition_key,
        bucket_key=table.bucket_key,
        buckets=table.buckets,
        properties=table.properties,
    )
