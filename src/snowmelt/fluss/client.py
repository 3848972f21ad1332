"""The calls of Fluss that we use, typed.

What a client can be asked depends on the server it speaks to: leases, heartbeats and lake snapshots are the coordinator's business, offsets
and the log a tablet server's that leads the bucket; tables, metadata and KV snapshots may be asked of either. An answer about
several buckets or tables carries an error for each of them; none is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from snowmelt.errors import Corrupt, OutcomeUnknown, SnowmeltError, Unavailable, present
from snowmelt.fluss.answers import (
    Claim,
    Cluster,
    FetchedBucket,
    FetchFrom,
    HandedOut,
    HeartbeatAnswer,
    LakeSnapshot,
    LatestSnapshots,
    Node,
    OffsetKind,
    Partition,
    RemoteLog,
    RemoteSegment,
    TableInfo,
)
from snowmelt.fluss.messages import message
from snowmelt.fluss.rpc import NO_LAKE_SNAPSHOT, TIMEOUT_S, Call, FlussConnection, GoneFromFluss, error_of
from snowmelt.fluss.target import Login, parse_bootstrap
from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFile, SnapshotFiles
from snowmelt.model.table import TableId

if TYPE_CHECKING:
    # Arrow comes with it, and a holder of leases, a process of its own for each union read, needs none.
    from snowmelt.fluss.formats.types import Column

_CLIENT: Final = -1
"""Instead of a server's id: the asker is no follower."""
_ALL_REPLICAS: Final = -1
_LAST: Final = 0
"""Where a new column stands."""


class FlussClient:
    """Calls over one connection. Its errors, its time-outs, and its one thread are those of `rpc`."""

    def __init__(self, connection: FlussConnection) -> None:
        self.connection = connection

    # ---- either server

    def table_info(self, path: TableId) -> TableInfo:
        answer = self.connection.call(Call.GET_TABLE_INFO, table_path=_path(path))
        try:
            said = json.loads(answer.table_json)
            return TableInfo(
                table=answer.table_id,
                schema=answer.schema_id,
                schema_json=json.dumps(said["schema"]),
                primary_key=tuple(said["schema"].get("primary_key", ())),
                partition_keys=tuple(said.get("partition_key", ())),
                bucket_keys=tuple(said.get("bucket_key", ())),
                buckets=int(said["bucket_count"]),
                properties=dict(said.get("properties", {})),
                custom_properties=dict(said.get("custom_properties", {})),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise Corrupt("a Fluss table's description can't be read", detail=str(path)) from error

    def schema_json(self, path: TableId, schema: int) -> str:
        """A schema of the table, also one that was replaced since."""
        answer = self.connection.call(Call.GET_TABLE_SCHEMA, table_path=_path(path), schema_id=schema)
        try:
            return json.dumps(json.loads(answer.schema_json))
        except (ValueError, RecursionError) as error:
            raise Corrupt("a Fluss table's schema can't be read", detail=f"{path}, {schema}") from error

    def cluster(self, path: TableId | None = None, partitions: Iterable[int] = ()) -> Cluster:
        """Which servers there are and, of a table, or of these partitions of it, who leads each bucket."""
        paths = [] if path is None else [_path(path)]
        answer = self.connection.call(Call.METADATA, table_path=paths, partitions_id=list(partitions))
        leaders: dict[Bucket, int] = {}
        for one in answer.table_metadata:
            leaders |= _leaders(one.table_id, None, one.bucket_metadata)
        for one in answer.partition_metadata:
            leaders |= _leaders(one.table_id, one.partition_id, one.bucket_metadata)
        return Cluster(
            _node(answer.coordinator_server) if answer.HasField("coordinator_server") else None,
            {one.node_id: _node(one) for one in answer.tablet_servers},
            leaders,
            self.connection.login,
        )

    def settings(self) -> dict[str, str]:
        """How the cluster was set up, as far as it says; a server that does not know the question says nothing."""
        if not self.connection.knows(Call.DESCRIBE_CLUSTER_CONFIGS):
            return {}
        return {one.config_key: one.config_value for one in self.connection.call(Call.DESCRIBE_CLUSTER_CONFIGS).configs}

    def partitions(self, path: TableId) -> tuple[Partition, ...]:
        answer = self.connection.call(Call.LIST_PARTITION_INFOS, table_path=_path(path))
        return tuple(
            Partition(one.partition_id, tuple((pair.key, pair.value) for pair in one.partition_spec.partition_key_values))
            for one in answer.partitions_info
        )

    def latest_snapshots(self, path: TableId, partition_name: str | None = None) -> LatestSnapshots:
        answer = self.connection.call(Call.GET_LATEST_KV_SNAPSHOTS, table_path=_path(path), partition_name=partition_name)
        partition = answer.partition_id if answer.HasField("partition_id") else None
        found = {}
        for one in answer.latest_snapshots:
            if one.HasField("snapshot_id") and one.HasField("log_offset"):
                bucket = Bucket(answer.table_id, one.bucket_id, partition)
                found[bucket] = KvSnapshot(bucket, one.snapshot_id, one.log_offset)
        return LatestSnapshots(answer.table_id, partition, found)

    def snapshot_files(self, bucket: Bucket, snapshot: int) -> SnapshotFiles:
        """`GoneFromFluss` if the snapshot is not there any more."""
        answer = self.connection.call(
            Call.GET_KV_SNAPSHOT_METADATA,
            table_id=bucket.table,
            partition_id=bucket.partition,
            bucket_id=bucket.bucket,
            snapshot_id=snapshot,
        )
        return SnapshotFiles(answer.log_offset, tuple(SnapshotFile(one.remote_path, one.local_file_name) for one in answer.snapshot_files))

    # ---- the tablet server that leads

    def offsets(self, table: int, partition: int | None, buckets: Iterable[int], kind: OffsetKind) -> dict[Bucket, int]:
        """Where the log of each bucket begins, or where the next record would stand."""
        answer = self.connection.call(
            Call.LIST_OFFSETS,
            follower_server_id=_CLIENT,
            offset_type=kind,
            table_id=table,
            partition_id=partition,
            bucket_id=list(buckets),
        )
        found = {}
        for one in answer.buckets_resp:
            bucket = Bucket(table, one.bucket_id, partition)
            if (error := self._error_in(one, Call.LIST_OFFSETS, bucket, changes=False)) is not None:
                raise error
            found[bucket] = one.offset
        return found

    def fetch_log(
        self,
        wanted: Iterable[FetchFrom],
        *,
        bytes_max: int,
        wait_ms: int = 0,
    ) -> list[FetchedBucket]:
        """What follows the offsets, up to the high watermark. The server waits up to `wait_ms` for the first of it. A first batch comes
        whole even if it is larger than what was asked for."""
        tables: dict[int, list[Any]] = {}
        for one in wanted:
            request = message("PbFetchLogReqForBucket")(
                partition_id=one.bucket.partition, bucket_id=one.bucket.bucket, fetch_offset=one.offset, max_fetch_bytes=one.bytes_max
            )
            tables.setdefault(one.bucket.table, []).append(request)
        answer = self.connection.call(
            Call.FETCH_LOG,
            wait_s=wait_ms / 1000,
            follower_server_id=_CLIENT,
            max_bytes=bytes_max,
            max_wait_ms=wait_ms,
            min_bytes=1,
            tables_req=[
                {
                    "table_id": table,
                    "projection_pushdown_enabled": False,
                    "buckets_req": requests,
                }
                for table, requests in tables.items()
            ],
        )
        return [self._fetched(of_table.table_id, one) for of_table in answer.tables_resp for one in of_table.buckets_resp]

    def _fetched(self, table: int, one: Any) -> FetchedBucket:
        bucket = Bucket(table, one.bucket_id, one.partition_id if one.HasField("partition_id") else None)
        remote = None
        if one.HasField("remote_log_fetch_info"):
            told = one.remote_log_fetch_info
            remote = RemoteLog(
                told.remote_log_tablet_dir,
                told.partition_name if told.HasField("partition_name") else None,
                told.first_start_pos,
                tuple(
                    RemoteSegment(
                        segment.remote_log_segment_id,
                        segment.remote_log_start_offset,
                        segment.remote_log_end_offset,
                        segment.segment_size_in_bytes,
                    )
                    for segment in told.remote_log_segments
                ),
            )
        return FetchedBucket(
            bucket,
            one.high_watermark if one.HasField("high_watermark") else None,
            one.records,
            remote,
            self._error_in(one, Call.FETCH_LOG, bucket, changes=False),
        )

    def init_writer(self, path: TableId) -> int:
        """An id that no other writer has: batches of one writer are counted for each bucket, and taken in their order, each once."""
        return int(self.connection.call(Call.INIT_WRITER, table_path=[_path(path)]).writer_id)

    def put_kv(self, table: int, batches: Mapping[int, bytes], *, wait_ms: int) -> dict[int, SnowmeltError | None]:
        """Batches of upserts and deletes into buckets, in step with all replicas. What became of each: an error, or none. Those of a writer
        that counts its batches may be sent again: one that is there changes nothing."""
        answer = self.connection.call(
            Call.PUT_KV,
            changes=True,
            wait_s=wait_ms / 1000,
            acks=_ALL_REPLICAS,
            table_id=table,
            timeout_ms=wait_ms,
            buckets_req=[{"bucket_id": bucket, "records": batch} for bucket, batch in batches.items()],
        )
        said = {one.bucket_id: self._error_in(one, Call.PUT_KV, Bucket(table, one.bucket_id), changes=True) for one in answer.buckets_resp}
        if said.keys() != batches.keys():
            raise Corrupt("Fluss answers of other buckets than it was asked about", detail=f"{Call.PUT_KV.name}, table {table}")
        return said

    # ---- the coordinator

    def create_database(self, name: str) -> None:
        """One that is there is fine."""
        self.connection.call(Call.CREATE_DATABASE, changes=True, database_name=name, ignore_if_exists=True)

    def create_table(
        self, path: TableId, columns: Iterable[Column], key: Iterable[str], *, buckets: int, properties: Mapping[str, str]
    ) -> None:
        """One of this name that is there is left as it is. Its buckets are by its key."""
        columns, key = list(columns), list(key)
        described = {
            "version": 1,
            "schema": {
                "version": 1,
                "columns": [{"name": column.name, "data_type": column.type.json, "id": column.id} for column in columns],
                "primary_key": key,
                "highest_field_id": max(column.id for column in columns),
            },
            "partition_key": [],
            "bucket_key": key,
            "bucket_count": buckets,
            "properties": dict(properties),
            "custom_properties": {},
        }
        self.connection.call(
            Call.CREATE_TABLE, changes=True, table_path=_path(path), table_json=json.dumps(described).encode(), ignore_if_exists=True
        )

    def drop_table(self, path: TableId) -> None:
        """One that is gone already is fine."""
        self.connection.call(Call.DROP_TABLE, changes=True, table_path=_path(path), ignore_if_not_exists=True)

    def add_columns(self, path: TableId, columns: Mapping[str, Mapping[str, Any]]) -> None:
        """After all others. Types as `FlussType.json` has them."""
        added = [
            {"column_name": name, "data_type_json": json.dumps(kind).encode(), "column_position_type": _LAST}
            for name, kind in columns.items()
        ]
        self.connection.call(Call.ALTER_TABLE, changes=True, table_path=_path(path), ignore_if_not_exists=False, add_columns=added)

    def acquire(self, lease: str, duration_ms: int, snapshots: Mapping[Bucket, int]) -> frozenset[Bucket]:
        """Lease these snapshots, and renew whatever the lease has. Gives those that the server says it does not have, which it need not
        say: it takes a snapshot that is gone for one that is there. Repeating it is harmless."""
        tables: dict[int, list[dict[str, Any]]] = {}
        for bucket, snapshot in snapshots.items():
            leased = {"partition_id": bucket.partition, "bucket_id": bucket.bucket, "snapshot_id": snapshot}
            tables.setdefault(bucket.table, []).append(leased)
        answer = self.connection.call(
            Call.ACQUIRE_KV_SNAPSHOT_LEASE,
            lease_id=lease,
            lease_duration_ms=duration_ms,
            snapshots_to_lease=[{"table_id": table, "bucket_snapshots": leased} for table, leased in tables.items()],
        )
        return frozenset(
            Bucket(of_table.table_id, one.bucket_id, one.partition_id if one.HasField("partition_id") else None)
            for of_table in answer.unavailable_snapshots
            for one in of_table.bucket_snapshots
        )

    def release(self, lease: str, buckets: Iterable[Bucket]) -> None:
        """Release what a lease has of these buckets. A lease that has nothing left is gone, and releasing from it is fine, so repeating
        it is harmless. 0.9 fails (`OutcomeUnknown`) where the lease has nothing of the table."""
        self.connection.call(
            Call.RELEASE_KV_SNAPSHOT_LEASE,
            lease_id=lease,
            buckets_to_release=[{"table_id": one.table, "partition_id": one.partition, "bucket_id": one.bucket} for one in buckets],
        )

    def drop(self, lease: str) -> None:
        """A lease that is not there is fine."""
        self.connection.call(Call.DROP_KV_SNAPSHOT_LEASE, lease_id=lease)

    def heartbeat(
        self,
        *,
        tiering: Iterable[Claim] = (),
        finished: Iterable[Claim] = (),
        failed: Iterable[Claim] = (),
        force_finished: Iterable[int] = (),
        request_table: bool = False,
    ) -> HeartbeatAnswer:
        """Without anything it only tells the coordinator's epoch. A report of a table that the coordinator refuses is in the answer."""
        answer = self.connection.call(
            Call.LAKE_TIERING_HEARTBEAT,
            changes=True,
            tiering_tables=[_reported(one) for one in tiering],
            finished_tables=[_reported(one) for one in finished],
            failed_tables=[_reported(one) for one in failed],
            force_finished_tables=list(force_finished),
            request_table=request_table,
        )
        handed = None
        if answer.HasField("tiering_table"):
            told = answer.tiering_table
            path = TableId(told.table_path.database_name, told.table_path.table_name)
            handed = HandedOut(told.table_id, path, told.tiering_epoch)
        return HeartbeatAnswer(
            answer.coordinator_epoch,
            handed,
            self._reports(answer.tiering_table_resp),
            self._reports(answer.finished_table_resp),
            self._reports(answer.failed_table_resp),
        )

    def _reports(self, reports: Any) -> dict[int, SnowmeltError | None]:
        where = f"{Call.LAKE_TIERING_HEARTBEAT.name} at {self.connection.where}, table"
        return {
            one.table_id: error_of(one.error.error_code, one.error.error_message, f"{where} {one.table_id}", changes=False)
            if one.HasField("error") and one.error.error_code
            else None
            for one in reports
        }

    def prepare_lake_snapshot(self, table: int, path: TableId, offsets: Mapping[Bucket, int]) -> str:
        """Let Fluss write down the offsets of a lake snapshot to come, those that it knew of other buckets included. Gives their file."""
        answer = self.connection.call(
            Call.PREPARE_LAKE_TABLE_SNAPSHOT,
            changes=True,
            bucket_offsets=[
                {
                    "table_id": table,
                    "table_path": _path(path),
                    "bucket_offsets": [
                        {"partition_id": bucket.partition, "bucket_id": bucket.bucket, "log_end_offset": offset}
                        for bucket, offset in offsets.items()
                    ],
                }
            ],
        )
        for one in answer.prepare_lake_table_resp:
            if (error := self._error_in(one, Call.PREPARE_LAKE_TABLE_SNAPSHOT, path, changes=True)) is not None:
                raise error
            return str(one.lake_table_offsets_path)
        raise Corrupt("Fluss says nothing of the table that it was asked about", detail=f"{Call.PREPARE_LAKE_TABLE_SNAPSHOT.name}, {path}")

    def commit_lake_snapshot(
        self,
        table: int,
        path: TableId,
        snapshot: int,
        offsets_file: str,
        offsets: Mapping[Bucket, int],
        *,
        max_timestamps_ms: Mapping[Bucket, int] | None = None,
        keep_from: int | None = None,
    ) -> None:
        """Tell Fluss of a lake snapshot, unless it knows it already: told twice it would delete the offsets' file as that of the snapshot
        before. So repeating this is harmless. Offsets are given too, because tablet servers cut their remote logs by them. `keep_from`
        is the oldest lake snapshot whose offsets Fluss is to keep: none is this one alone, -1 all."""
        try:
            known = self.lake_snapshot(path)
        except OutcomeUnknown:
            # It does not find the file of what it knew, so it can't be told that twice either.
            known = None
        if known is not None and (known.table, known.snapshot) == (table, snapshot):
            return
        times = max_timestamps_ms or {}
        answer = self.connection.call(
            Call.COMMIT_LAKE_TABLE_SNAPSHOT,
            changes=True,
            tables_req=[
                {
                    "table_id": table,
                    "table_path": _path(path),
                    "snapshot_id": snapshot,
                    "buckets_req": [
                        {
                            "partition_id": bucket.partition,
                            "bucket_id": bucket.bucket,
                            "log_end_offset": offset,
                            "max_timestamp": times.get(bucket),
                        }
                        for bucket, offset in offsets.items()
                    ],
                }
            ],
            lake_table_snapshot_metadata=[
                {
                    "table_id": table,
                    "snapshot_id": snapshot,
                    "tiered_bucket_offsets_file_path": offsets_file,
                    # Other readers of Fluss see a lake snapshot by this alone. It is the same where no compaction hides a row.
                    "readable_bucket_offsets_file_path": offsets_file,
                    "earliest_snapshot_id_to_keep": keep_from,
                }
            ],
        )
        for one in answer.table_resp:
            if (error := self._error_in(one, Call.COMMIT_LAKE_TABLE_SNAPSHOT, path, changes=True)) is not None:
                raise error

    def lake_snapshot(self, path: TableId, *, readable: bool = False) -> LakeSnapshot | None:
        """The newest that Fluss was told of, or that readers are to take. None: it was told of none."""
        try:
            answer = self.connection.call(Call.GET_LAKE_SNAPSHOT, table_path=_path(path), readable=readable)
        except GoneFromFluss as gone:
            if gone.code == NO_LAKE_SNAPSHOT:
                return None
            raise
        offsets = {
            Bucket(answer.table_id, one.bucket_id, one.partition_id if one.HasField("partition_id") else None): one.log_offset
            for one in answer.bucket_snapshots
            if one.HasField("log_offset")
        }
        return LakeSnapshot(answer.table_id, answer.snapshotId, offsets)

    def _error_in(self, one: Any, call: Call, what: object, *, changes: bool) -> SnowmeltError | None:
        if one.HasField("error_code") and one.error_code:
            return error_of(one.error_code, one.error_message, f"{call.name} at {self.connection.where}, {what}", changes=changes)
        return None


def _path(path: TableId) -> dict[str, str]:
    return {"database_name": path.database, "table_name": path.name}


def _node(node: Any) -> Node:
    # A server of 0.9 tells all of its addresses in one text, and leaves the other two fields to older clients.
    return Node(node.node_id, node.host, node.port)


def _leaders(table: int, partition: int | None, buckets: Any) -> dict[Bucket, int]:
    return {Bucket(table, one.bucket_id, partition): one.leader_id for one in buckets if one.HasField("leader_id")}


def _reported(one: Claim) -> dict[str, int]:
    return {"table_id": one.table, "coordinator_epoch": one.coordinator_epoch, "tiering_epoch": one.tiering_epoch}


def connect_coordinator(bootstrap: str, login: Login | None = None, *, timeout_s: float = TIMEOUT_S) -> FlussClient:
    """A connection to the coordinator of the day, found by whichever of the servers answers. `Unavailable` if none does, `InvalidConfig`
    if one refuses the login."""
    refused: Unavailable | None = None
    for host, port in parse_bootstrap(bootstrap):
        try:
            with FlussConnection(host, port, login=login, timeout_s=timeout_s) as connection:
                found = FlussClient(connection).cluster().coordinator
            if found is None:
                raise Unavailable("Fluss has no coordinator at the moment", detail=f"{host}:{port}")
            return FlussClient(FlussConnection(found.host, found.port, login=login, timeout_s=timeout_s))
        except (Unavailable, OutcomeUnknown) as error:
            # Nothing but questions were asked; a server that is starting may have no better answer yet.
            refused = Unavailable(error.fact, detail=error.detail, hint=error.hint)
    raise present(refused, "a list of servers names none")
