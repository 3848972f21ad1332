"""What a reader must know of a Fluss table: the planner asks for it once and hands it to tasks.

A plan keeps its schema: rows of older schemas are read into it, and rows of newer ones wait for the next plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.errors import SnowmeltError, SourceDrift, Unavailable
from snowmelt.fluss.answers import Cluster, FetchedBucket, FetchFrom, Node, OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.fluss.formats.types import Versions, read_schema
from snowmelt.fluss.rpc import NO_TABLE, NO_TABLE_OR_BUCKET, FlussConnection, GoneFromFluss
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId

_FIRST_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableTable:
    """A table as of its description. `bucket_key` is empty where rows are spread without one."""

    path: TableId
    table: int
    versions: Versions
    partition_key: tuple[str, ...]
    bucket_key: tuple[str, ...]
    buckets: int
    lake_format: str | None
    """The table's own, which decides how keys are hashed, whatever format the cluster tiers to."""
    log_format: str
    kv_format: str
    properties: Mapping[str, str]
    """Fluss' own and the user's."""

    def bucketing(self) -> Bucketing | None:
        """The function from keys to buckets; None: rows may be in any bucket."""
        if not self.bucket_key:
            return None
        return Bucketing([self.versions.target.column(name) for name in self.bucket_key], self.buckets, self.lake_format)


def describe_table(client: FlussClient, path: TableId) -> ReadableTable:
    """Asks for the table and for each of its schemas."""
    info = client.table_info(path)
    target = read_schema(info.schema, info.schema_json)
    older = {id: read_schema(id, client.schema_json(path, id)) for id in range(_FIRST_SCHEMA, info.schema)}
    return ReadableTable(
        path=path,
        table=info.table,
        versions=Versions(target, older | {info.schema: target}),
        partition_key=info.partition_keys,
        bucket_key=info.bucket_keys,
        buckets=info.buckets,
        lake_format=info.properties.get("table.datalake.format"),
        log_format=info.properties.get("table.log.format", "ARROW").upper(),
        kv_format=info.properties.get("table.kv.format", "COMPACTED").upper(),
        properties={**info.properties, **info.custom_properties},
    )


class NoLeader(Unavailable):
    """No server leads the bucket: its leader is away, or the table is so young that none was chosen yet."""


def leader_of(cluster: Cluster, bucket: Bucket) -> Node:
    """The server of a bucket's log. Leaders move, so a server may lead no longer when it is asked."""
    node = cluster.tablets.get(cluster.leaders.get(bucket, -1))
    if node is None:
        hint = "if it stays so, restart the coordinator: Fluss 0.9 may forget to look after a new table"
        raise NoLeader("a Fluss bucket has no leader at the moment", detail=str(bucket), hint=hint)
    return node


class BucketLeader:
    """A bucket's log at its leader (`log.LogSource`). The leader is found when it is asked, and again after it could not be reached. One
    thread uses it; `close` it."""

    def __init__(self, path: TableId, bucket: Bucket, connect: Callable[[], FlussClient]) -> None:
        """`connect` returns a client of any server of the cluster."""
        self._path = path
        self._bucket = bucket
        self._connect = connect
        self._client: FlussClient | None = None

    def fetch_log(self, wanted: Iterable[FetchFrom], *, bytes_max: int, wait_ms: int = 0) -> list[FetchedBucket]:
        if self._client is None:
            self._client = self._find()
        wanted = list(wanted)
        try:
            fetched = self._client.fetch_log(wanted, bytes_max=bytes_max, wait_ms=wait_ms)
            refused = any(one.error is not None for one in fetched)
            fetched = [replace(one, error=self._judged(self._client, asked, one)) for asked, one in zip(wanted, fetched, strict=False)]
        except Unavailable:
            self.close()
            raise
        if refused:
            # It may no longer lead the bucket.
            self.close()
        return fetched

    def _judged(self, client: FlussClient, asked: FetchFrom, one: FetchedBucket) -> SnowmeltError | None:
        """A server that does not know yet what it has gives the same errors as one that will never have it. This tells them apart."""
        error = one.error
        if isinstance(error, GoneFromFluss) and error.code == NO_TABLE_OR_BUCKET:
            # The cluster, which is asked next, knows whether the bucket exists.
            return Unavailable("a Fluss server does not know a bucket at the moment", detail=error.detail)
        if type(error) is SourceDrift:
            bucket = asked.bucket
            earliest = client.offsets(bucket.table, bucket.partition, [bucket.bucket], OffsetKind.EARLIEST)[bucket]
            if earliest <= asked.offset:
                return Unavailable("a Fluss server does not have an offset yet that it had", detail=error.detail)
        return error

    def _find(self) -> FlussClient:
        anyone = self._connect()
        try:
            # When asked for the leaders of a dropped table, 0.9 fails with an error that says nothing.
            if anyone.table_info(self._path).table != self._bucket.table:
                raise GoneFromFluss("the Fluss table was dropped and made anew", detail=str(self._path), code=NO_TABLE)
            partitions = [] if self._bucket.partition is None else [self._bucket.partition]
            node = leader_of(anyone.cluster(self._path, partitions), self._bucket)
        finally:
            anyone.connection.close()
        return FlussClient(FlussConnection(node.host, node.port, login=anyone.connection.login))

    def close(self) -> None:
        """Twice is fine."""
        if self._client is not None:
            self._client.connection.close()
            self._client = None
