"""What has to be known of a Fluss table to read it: asked for once by whoever plans, and handed to tasks.

A plan's schema stays the plan's: rows of older schemas are read into it, and those of newer ones wait for the next plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snowmelt.errors import Unavailable
from snowmelt.fluss.buckets import Bucketing
from snowmelt.fluss.client import Cluster, FlussClient, Node
from snowmelt.fluss.types import Versions, read_schema
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId

_FIRST_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class ReadableTable:
    """A table as it was when it was asked for. `bucket_key` is empty where rows are spread without one."""

    path: TableId
    table: int
    versions: Versions
    partition_key: tuple[str, ...]
    bucket_key: tuple[str, ...]
    buckets: int
    lake_format: str | None
    """The table's own, which decides how keys are hashed, whatever the cluster tiers to."""
    log_format: str
    kv_format: str

    def bucketing(self) -> Bucketing | None:
        """Where rows have to be; None: anywhere."""
        if not self.bucket_key:
            return None
        return Bucketing([self.versions.target.column(name) for name in self.bucket_key], self.buckets, self.lake_format)


def describe_table(client: FlussClient, path: TableId) -> ReadableTable:
    """Asks for the table and for each of its schemas."""
    info = client.table_info(path)
    target = read_schema(info.schema, info.schema_json)
    older = {id: read_schema(id, client.schema_json(path, id)) for id in range(_FIRST_SCHEMA, info.schema)}
    return ReadableTable(
        path,
        info.table,
        Versions(target, older | {info.schema: target}),
        info.partition_keys,
        info.bucket_keys,
        info.buckets,
        info.properties.get("table.datalake.format"),
        info.properties.get("table.log.format", "ARROW").upper(),
        info.properties.get("table.kv.format", "COMPACTED").upper(),
    )


def leader_of(cluster: Cluster, bucket: Bucket) -> Node:
    """Whom to ask for a bucket's log. Leaders move; one that was found may lead no longer when it is asked."""
    node = cluster.tablets.get(cluster.leaders.get(bucket, -1))
    if node is None:
        raise Unavailable("a Fluss bucket has no leader at the moment", detail=str(bucket))
    return node
