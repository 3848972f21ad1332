"""The Fluss server in a folder, and our calls to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from snowmelt.errors import Fenced, InvalidConfig, SourceDrift, Unavailable
from snowmelt.fluss.answers import Claim, FetchFrom, HandedOut, OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.rpc import NO_KV_SNAPSHOT, NO_TABLE, NO_TABLE_OR_BUCKET, Call, FlussConnection, GoneFromFluss
from snowmelt.fluss.server import HOST, FlussServer, ServerProcess
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from tests.kit.fluss_servers import Tables
from tests.kit.waiting import until


@pytest.fixture
def coordinator(fluss: FlussServer) -> FlussClient:
    return FlussClient(fluss.connect())


@pytest.fixture
def tablet(fluss: FlussServer) -> FlussClient:
    return FlussClient(fluss.connect(ServerProcess.TABLET))


def rows(count: int) -> list[dict[str, object]]:
    return [{"id": number, "name": f"n{number}", "n": number} for number in range(count)]


def test_a_table_its_servers_and_its_leaders_are_found(coordinator: FlussClient, tablet: FlussClient, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=3)
    for client in (coordinator, tablet):
        info = client.table_info(path)
        assert (info.buckets, info.primary_key, info.bucket_keys, info.partition_keys) == (3, ("id",), ("id",), ())
        assert info.properties["table.datalake.format"] == "paimon"
        assert [column["name"] for column in json.loads(info.schema_json)["columns"]] == ["id", "name", "n"]
        assert json.loads(client.schema_json(path, info.schema)) == json.loads(info.schema_json)
        cluster = until(lambda client=client: found if len((found := client.cluster(path)).leaders) == 3 else None)
        assert cluster.coordinator is not None
        assert (cluster.coordinator.host, cluster.coordinator.port) == (HOST, fluss_tables.server.port(ServerProcess.COORDINATOR))
        assert [node.port for node in cluster.tablets.values()] == [fluss_tables.server.port(ServerProcess.TABLET)]
        assert set(cluster.leaders) == {Bucket(info.table, bucket) for bucket in range(3)}
        assert set(cluster.leaders.values()) == set(cluster.tablets)


def test_the_log_is_fetched_from_an_offset_on_and_an_offset_that_is_not_there_is_told(tablet: FlussClient, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=2)
    fluss_tables.upsert(path, rows(100))
    table = tablet.table_info(path).table
    ends = tablet.offsets(table, None, (0, 1), OffsetKind.LATEST)
    assert set(tablet.offsets(table, None, (0, 1), OffsetKind.EARLIEST).values()) == {0}
    assert sum(ends.values()) == 100
    wanted = [FetchFrom(Bucket(table, 0), 0, 1 << 20), FetchFrom(Bucket(table, 1), 1000, 1 << 20)]
    fetched = {one.bucket: one for one in tablet.fetch_log(wanted, bytes_max=1 << 20)}
    assert fetched[Bucket(table, 0)].high_watermark == ends[Bucket(table, 0)]
    assert fetched[Bucket(table, 0)].records
    assert fetched[Bucket(table, 0)].error is None
    assert isinstance(fetched[Bucket(table, 1)].error, SourceDrift)


def test_partitions_have_names_by_which_their_snapshots_are_found(coordinator: FlussClient, fluss_tables: Tables) -> None:
    path = fluss_tables.make(key=("id", "name"), partitioned_by=("name",), buckets=1, table__auto_partition__enabled="false")
    for name in ("a", "b"):
        fluss_tables.add_partition(path, name=name)
    partitions = {one.name: one.partition for one in coordinator.partitions(path)}
    assert set(partitions) == {"a", "b"}
    fluss_tables.upsert(path, [{"id": 1, "name": "a", "n": 1}])
    found = until(lambda: coordinator.latest_snapshots(path, "a").snapshots)
    assert [bucket.partition for bucket in found] == [partitions["a"]]
    cluster = until(lambda: found if len((found := coordinator.cluster(path, partitions.values())).leaders) == 2 else None)
    assert {bucket.partition for bucket in cluster.leaders} == set(partitions.values())


def test_what_is_not_there_is_gone_with_the_code_that_says_what(coordinator: FlussClient, fluss_tables: Tables) -> None:
    path = fluss_tables.make()
    table = coordinator.table_info(path).table
    with pytest.raises(GoneFromFluss) as no_table:
        coordinator.table_info(TableId(path.database, "nothing"))
    with pytest.raises(GoneFromFluss) as no_snapshot:
        coordinator.snapshot_files(Bucket(table, 0), 999)
    with pytest.raises(GoneFromFluss) as no_id:
        coordinator.acquire("nobody", 1000, {Bucket(10**9, 0): 0})
    assert [caught.value.code for caught in (no_table, no_snapshot, no_id)] == [NO_TABLE, NO_KV_SNAPSHOT, NO_TABLE_OR_BUCKET]
    assert coordinator.lake_snapshot(path) is None


def test_the_calls_of_a_tiering_round_are_answered_and_a_wrong_epoch_is_fenced(coordinator: FlussClient, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=2, table__datalake__enabled="true", table__datalake__freshness="1s")
    fluss_tables.upsert(path, rows(10))

    def ours_is_due() -> HandedOut | None:
        # Others' tables of this server may be due, too.
        found = coordinator.heartbeat(request_table=True).table
        return found if found is not None and found.path == path else None

    handed = until(ours_is_due)
    assert handed is not None
    ours = Claim(handed.table, coordinator.heartbeat().coordinator_epoch, handed.tiering_epoch)
    assert coordinator.heartbeat(tiering=[ours]).tiering == {handed.table: None}
    wrong = Claim(handed.table, ours.coordinator_epoch, ours.tiering_epoch + 7)
    assert isinstance(coordinator.heartbeat(tiering=[wrong]).tiering[handed.table], Fenced)
    offsets = {Bucket(handed.table, 0): 6, Bucket(handed.table, 1): 4}
    file = coordinator.prepare_lake_snapshot(handed.table, path, offsets)
    assert json.loads(Path(file).read_text())["bucket_offsets"] == [6, 4]
    for _ in range(2):
        coordinator.commit_lake_snapshot(handed.table, path, 1, file, offsets)
    known = coordinator.lake_snapshot(path)
    assert known is not None
    assert (known.snapshot, dict(known.offsets)) == (1, offsets)
    assert coordinator.heartbeat(finished=[ours]).finished == {handed.table: None}


def test_the_coordinator_makes_a_paimon_table_with_fluss_bucketing_and_its_three_columns(fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=2, table__datalake__enabled="true", table__datalake__freshness="1h")
    made = json.loads((fluss_tables.server.warehouse / f"{path.database}.db" / path.name / "schema" / "schema-0").read_text())
    assert {field["name"]: field["type"] for field in made["fields"][-3:]} == {
        "__bucket": "INT",
        "__offset": "BIGINT",
        "__timestamp": "TIMESTAMP(3) WITH LOCAL TIME ZONE",
    }
    assert (made["primaryKeys"], made["options"]["bucket"], made["options"]["bucket-key"]) == (["id"], "2", "id")
    assert made["options"]["changelog-producer"] == "input"


def test_a_call_that_the_server_lacks_is_refused_before_it_is_sent_and_never_waited_for(fluss: FlussServer) -> None:
    with fluss.connect(ServerProcess.TABLET) as connection:
        assert not connection.knows(Call.ACQUIRE_KV_SNAPSHOT_LEASE)
        with pytest.raises(InvalidConfig, match="does not know the call"):
            FlussClient(connection).acquire("nobody", 1000, {})
        assert connection.open


def test_nobody_at_the_address_is_unavailable(fluss: FlussServer) -> None:
    with pytest.raises(Unavailable, match="can't be reached"):
        FlussConnection(HOST, 1, timeout_s=2)
    with pytest.raises(Unavailable, match="did not answer"):
        # ZooKeeper hangs up on what it does not understand.
        FlussConnection(HOST, fluss.port(ServerProcess.ZOOKEEPER), timeout_s=2)


def test_up_twice_status_and_down_by_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "my fluss"

    def snowmelt(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "snowmelt", "fluss", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    assert "there is no Fluss server in the folder" in snowmelt("status", str(folder)).stderr
    try:
        up = snowmelt("up", str(folder), "--snapshot-interval", "5", "--json")
        assert up.returncode == 0, up.stderr
        told = json.loads(up.stdout)
        again = json.loads(snowmelt("up", str(folder), "--json").stdout)
        assert again == told
        with FlussServer.open(folder).connect() as connection:
            assert FlussClient(connection).cluster().coordinator is not None
        assert json.loads(snowmelt("status", str(folder), "--json").stdout) == told
    finally:
        if folder.exists():
            FlussServer.open(folder).kill(ServerProcess.TABLET)
            snowmelt("down", str(folder))
    gone = snowmelt("status", str(folder))
    assert gone.returncode == 1
    assert gone.stdout.count("does not run") == 3


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(InvalidConfig, match="not empty"):
        FlussServer.make(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["precious"]
