"""Fluss tables reach the lake by rounds on Spark: the real server, real leases, real Paimon tables."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import Schema as PaimonSchema

import snowmelt
from snowmelt import budgets
from snowmelt.engine.tiering import round as round_module
from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.engine.tiering.refusals import check_table
from snowmelt.engine.tiering.round import RunningRound
from snowmelt.engine.tiering.service import Tiering, check_ends
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.tasks import SplitAnswer, SplitTask, run_split
from snowmelt.errors import InvalidConfig, SnowmeltError, Unavailable
from snowmelt.fluss.answers import Claim
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.formats.types import Root
from snowmelt.fluss.rpc import Call, FlussConnection, GoneFromFluss
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.tables import ReadableTable, describe_table
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import OFFSET, PaimonTieringSink
from snowmelt.tiering.lease_steps import LeasedSnapshot
from snowmelt.tiering.rounds import RoundState
from snowmelt.tiering.splits import SnapshotSplit
from tests.integration.fluss_reading import Reading, all_types
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.tiering import LAKE, RunningTiering, assert_others_read_it, in_order, lake_rows, lake_table, settings
from tests.integration.unions import options, planned, union
from tests.kit.fluss_bytes import seen, shown
from tests.kit.fluss_nested import COLUMNS, LEAVES, ROWS, for_client
from tests.kit.fluss_raw import create_table, put_rows
from tests.kit.fluss_servers import FreshFluss, Tables
from tests.kit.waiting import until


@pytest.mark.timeout(240)
def test_tables_of_every_kind_reach_the_lake_and_follow(fluss: FlussServer, fluss_tables: Tables, spark: Any) -> None:
    keyed = fluss_tables.make(**LAKE)
    log = fluss_tables.make(columns=pa.schema([("n", pa.int64()), ("text", pa.string())]), key=(), **LAKE)
    columns = pa.schema([("day", pa.string()), ("id", pa.int32()), ("v", pa.string())])
    parted = fluss_tables.make(columns=columns, key=("day", "id"), partitioned_by=("day",), **LAKE)
    held = {number: {"id": number, "name": f"name {number}", "n": None if number % 7 == 0 else -number} for number in range(2000)}
    days = [{"day": day, "id": number, "v": f"{day} {number}"} for day in ("2026-01-01", "2026-01-02") for number in range(50)]
    for day in ("2026-01-01", "2026-01-02"):
        fluss_tables.add_partition(parted, day=day)
    fluss_tables.upsert(keyed, held.values())
    fluss_tables.upsert(parted, days)
    appended = [pa.record_batch({"n": pa.array(range(500), pa.int64()), "text": [f"t{number}" for number in range(500)]})]
    fluss_tables.append(log, *appended)
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, keyed)) == len(held))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, parted)) == len(days))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, log)) == 500)
        # What changes comes by the log.
        changed = [{"id": number, "name": "changed", "n": number} for number in range(0, 2000, 3)]
        held.update({row["id"]: row for row in changed})
        fluss_tables.upsert(keyed, changed)
        gone = range(1, 2000, 10)
        fluss_tables.delete(keyed, [{"id": number} for number in gone])
        for number in gone:
            del held[number]
        fluss_tables.append(log, *appended)
        running.wait_for(lambda: lake_rows(fluss.warehouse, keyed) == in_order(held.values()))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, log)) == 1000)
    assert lake_rows(fluss.warehouse, parted) == in_order(days)
    offsets = lake_table(fluss.warehouse, log).select(["__bucket", OFFSET]).to_pylist()
    assert len({tuple(row.values()) for row in offsets}) == len(offsets) == 1000, "a row came twice"
    assert not [end for end in running.ends if end.error is not None]
    with connect_coordinator(fluss.bootstrap).connection as connection:
        for path in (keyed, parted, log):
            assert_others_read_it(FlussClient(connection), path)
    for path in (keyed, parted, log):
        rows = snowmelt.read(spark, str(path), warehouse=str(fluss.warehouse)).drop("__bucket", "__offset", "__timestamp").collect()
        assert in_order(row.asDict() for row in rows) == lake_rows(fluss.warehouse, path)


INSTANTS = (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as talks:
        yield talks


def test_every_type_is_in_the_lake_as_it_was_written(fluss: FlussServer, fluss_tables: Tables, spark: Any, java: JavaPaimon) -> None:
    schema, rows = all_types()
    path = TableId(fluss_tables.make().database, "lake_types")
    create_table(fluss, path, schema, **LAKE)
    reading = Reading(fluss, path)
    half = len(rows) // 2
    put_rows(fluss, reading.table.table, schema, rows[:half])
    reading.snapshots()
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, path)) == half)
        # The first half came by a KV snapshot, the other comes by the log.
        put_rows(fluss, reading.table.table, schema, rows[half:])
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, path)) == len(rows))
    lake = lake_table(fluss.warehouse, path).sort_by("id")
    for place, column in enumerate(schema.columns):
        assert seen(lake.column(place).combine_chunks()) == [shown(column.type, row[place]) for row in rows], column
    # Timestamps finer than microseconds lie in the files in a form that Paimon's Java does not take.
    java_reads = [place for place, column in enumerate(schema.columns) if column.type.root not in INSTANTS or column.type.precision <= 6]
    names = [schema.columns[place].name for place in java_reads]
    by_java = sorted(java.read(fluss.warehouse, f"{path.database}.{path.name}", names), key=lambda row: row[0])
    for at, place in enumerate(java_reads):
        kind = schema.columns[place].type
        assert [shown(kind, row[at]) for row in by_java] == [shown(kind, row[place]) for row in rows], kind
    # Spark has no nanoseconds, and else everything.
    by_spark = snowmelt.read(spark, str(path), warehouse=str(fluss.warehouse)).toArrow().sort_by("id")
    assert by_spark.num_rows == len(rows)
    for place, column in enumerate(schema.columns):
        # Times of day are numbers there.
        if column.type.nested and column.type != LEAVES:
            assert seen(by_spark.column(place).combine_chunks()) == [shown(column.type, row[place]) for row in rows], column


def test_nested_values_that_pyfluss_wrote_are_the_same_for_every_reader_of_the_lake_and_in_union_reads(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, java: JavaPaimon
) -> None:
    keyed = fluss_tables.make(columns=COLUMNS, buckets=1, **LAKE)
    log = fluss_tables.make(columns=COLUMNS, key=(), buckets=1, **LAKE)
    more = [row | {"id": 10 + row["id"]} for row in ROWS]
    with connect_coordinator(fluss.bootstrap).connection as connection:
        types = [column.type for column in describe_table(FlussClient(connection), log).versions.target.columns]

    def write(rows: list[dict[str, Any]]) -> None:
        fluss_tables.upsert(keyed, map(for_client, rows))
        fluss_tables.append(log, pa.RecordBatch.from_pylist(rows, COLUMNS))

    def check_lake(path: TableId, rows: list[dict[str, Any]]) -> None:
        by_spark = snowmelt.read(spark, str(path), warehouse=str(fluss.warehouse)).select(COLUMNS.names).toArrow()
        by_java = sorted(java.read(fluss.warehouse, f"{path.database}.{path.name}", COLUMNS.names), key=lambda row: row[0])
        for place, field in enumerate(COLUMNS):
            expected = seen(pa.array([row[field.name] for row in rows], field.type))
            assert seen(by_spark.sort_by("id").column(place).combine_chunks()) == expected, field
            assert [shown(types[place], row[place]) for row in by_java] == expected, field

    write(ROWS)
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: all(lake_rows(fluss.warehouse, path) == in_order(ROWS) for path in (keyed, log)))
        # By the log in any case.
        write(more)
        running.wait_for(lambda: all(lake_rows(fluss.warehouse, path) == in_order([*ROWS, *more]) for path in (keyed, log)))
    for path in (keyed, log):
        assert not [task for task in planned(fluss, path)[1] if task.bucket], "the log has something that the lake has not"
        check_lake(path, [*ROWS, *more])
        assert union(fluss, path) == in_order([*ROWS, *more])
    untiered = [row | {"id": 20 + row["id"]} for row in ROWS]
    write(untiered)
    expected = in_order([*ROWS, *more, *untiered])
    for path in (keyed, log):
        assert union(fluss, path) == expected
        told = options(fluss, path)
        assert in_order(snowmelt.union_read(spark, told.pop("table"), **told).toArrow().cast(COLUMNS).to_pylist()) == expected


def test_what_a_service_left_untold_is_told_as_readable_by_the_next(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fluss_tables.make(**LAKE)
    fluss_tables.upsert(path, [{"id": number, "name": "x", "n": number} for number in range(10)])

    commit = FlussClient.commit_lake_snapshot

    def unheard(client: FlussClient, table: int, of: TableId, *rest: Any, **named: Any) -> None:
        # Other tests' tables are told of: their rounds would hold the service's places, and this one's would never begin.
        if of == path:
            raise Unavailable("as planned")
        commit(client, table, of, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(FlussClient, "commit_lake_snapshot", unheard)
        with RunningTiering(spark, settings(fluss)) as running:
            running.wait_for(lambda: len(lake_rows(fluss.warehouse, path)) == 10)
            held = [one for one in running.service._running.values() if one.handed.path == path]
    committed = PaimonTieringSink(str(fluss.warehouse)).view(f"{path.database}.{path.name}").newest
    assert committed is not None
    with connect_coordinator(fluss.bootstrap).connection as connection:
        client = FlussClient(connection)
        assert client.lake_snapshot(path) is None
        # What the coordinator does by itself after two minutes of silence.
        client.heartbeat(failed=[Claim(one.handed.table, one.coordinator_epoch, one.handed.tiering_epoch) for one in held])
        with RunningTiering(spark, settings(fluss)) as running:
            running.wait_for(lambda: client.lake_snapshot(path) is not None)
            readable = client.lake_snapshot(path, readable=True)
    assert readable is not None
    assert readable.snapshot >= committed.snapshot
    assert sum(readable.offsets.values()) == 10


def test_a_round_that_fluss_does_not_let_tell_gives_its_slot_to_other_tables_and_a_later_round_tells(
    fresh_fluss: FreshFluss, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_fluss()
    tables = Tables(server)
    untold, other = (tables.make(**LAKE) for _ in range(2))
    tables.upsert(untold, [{"id": 1, "name": "x", "n": 1}])
    commit = FlussClient.commit_lake_snapshot

    def unheard(client: FlussClient, table: int, of: TableId, *rest: Any, **named: Any) -> None:
        if of == untold:
            raise Unavailable("as planned")
        commit(client, table, of, *rest, **named)

    monkeypatch.setattr(budgets, "TIERING_TELL", budgets.RetryBudget(tries_max=3))
    with (
        RunningTiering(spark, settings(server, rounds_at_once=1)) as running,
        connect_coordinator(server.bootstrap).connection as connection,
    ):
        client = FlussClient(connection)
        with monkeypatch.context() as patch:
            patch.setattr(FlussClient, "commit_lake_snapshot", unheard)
            running.wait_for(lambda: lake_rows(server.warehouse, untold))
            tables.upsert(other, [{"id": 2, "name": "y", "n": 2}])
            running.wait_for(lambda: client.lake_snapshot(other))
            running.wait_for(lambda: any(end.path == untold for end in running.ends))
        ended = next(end for end in running.ends if end.path == untold)
        assert (ended.state, ended.rows, str(ended.error)) == (RoundState.FAILED, 1, "as planned")
        running.wait_for(lambda: client.lake_snapshot(untold))
        running.wait_for(lambda: running.finished(untold))
    # Once in each round, and once in the round that told Fluss at last, if it had failed to at first.
    told = [record for record in caplog.records if "could not be told" in record.message]
    failed = sum(end.path == untold and end.state is RoundState.FAILED for end in running.ends)
    assert failed <= len(told) <= failed + 1
    assert lake_rows(server.warehouse, untold) == [{"id": 1, "name": "x", "n": 1}]
    tables.close()


class Writing:
    """Rows of a table are written over and over."""

    def __init__(self, tables: Tables, path: TableId) -> None:
        self._tables = tables
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.held: dict[int, dict[str, Any]] = {}

    def _write(self) -> None:
        for turn in itertools.count():
            if self._stop.is_set():
                return
            rows = [{"id": number, "name": f"turn {turn}", "n": turn} for number in range(turn % 3, 200, 3)]
            self._tables.upsert(self._path, rows)
            self.held.update({row["id"]: row for row in rows})

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


SNAPSHOTS_PASSED = 10


def newest_snapshots(client: FlussClient, path: TableId, wanted: set[Bucket]) -> dict[Bucket, KvSnapshot]:
    """The newest snapshot of each wanted bucket, or nothing where the server lacks one.

    Fluss 0.9.1 names no snapshot of a bucket while it deletes the one that it takes for the newest.
    """
    found = client.latest_snapshots(path).snapshots
    return {bucket: found[bucket] for bucket in wanted} if wanted <= found.keys() else {}


def slowly(bootstrap: str) -> Callable[[TieringSettings, SplitTask], SplitAnswer]:
    """A read of a KV snapshot that begins when many more were made than the server keeps."""

    def run(wanted: TieringSettings, task: SplitTask) -> SplitAnswer:
        if isinstance(task.split, SnapshotSplit):
            bucket, snapshot = task.split.bucket, task.split.snapshot.snapshot
            client = connect_coordinator(bootstrap)
            path, enough = task.table.path, snapshot + SNAPSHOTS_PASSED
            until(lambda: any(found.snapshot >= enough for found in newest_snapshots(client, path, {bucket}).values()))
        return run_split(wanted, task)

    return run


def unleased(self: Leasing, lease: str, path: TableId, table: int, wanted: Any, lost: Any) -> dict[Bucket, LeasedSnapshot]:
    client = connect_coordinator(self._calls._bootstrap)
    found = until(lambda: newest_snapshots(client, path, set(wanted)))
    return {bucket: LeasedSnapshot(found[bucket], client.snapshot_files(bucket, found[bucket].snapshot)) for bucket in wanted}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("leases", [True, False])
def test_a_slow_read_of_a_snapshot_completes_under_its_lease_and_fails_without(
    fresh_fluss: FreshFluss, spark: Any, monkeypatch: pytest.MonkeyPatch, leases: bool
) -> None:
    """The server keeps one snapshot and makes another twice a second; ten are made before the first is read."""
    server = fresh_fluss(kv_snapshot_interval_s=0.5)
    tables = Tables(server)
    path = tables.make(**LAKE)
    monkeypatch.setattr(round_module, "run_split", slowly(server.bootstrap))
    if not leases:
        monkeypatch.setattr(Leasing, "acquire", unleased)
        monkeypatch.setattr(Leasing, "check", lambda *_: None)
    client = connect_coordinator(server.bootstrap)
    with Writing(tables, path) as writing:
        until(lambda: len(client.latest_snapshots(path).snapshots) == 2)
        with RunningTiering(spark, settings(server, lease_ms=3_000)) as running:
            running.wait_for(lambda: running.ends)
            first = running.ends[0]
            if leases:
                writing.__exit__()
                running.wait_for(lambda: lake_rows(server.warehouse, path) == in_order(writing.held.values()))
    if leases:
        assert first.error is None
    else:
        assert isinstance(first.error, Unavailable | GoneFromFluss), first
        assert first.state is RoundState.FAILED
    assert not list((server.remote / "lease").rglob("*.metadata")), "a lease is left"
    tables.close()


@pytest.mark.timeout(240)
def test_the_command_tells_of_its_rounds_and_ends_soon_when_it_is_asked_to(
    fluss: FlussServer, fluss_tables: Tables, tmp_path: Path
) -> None:
    path = fluss_tables.make(**LAKE)
    fluss_tables.upsert(path, [{"id": number, "name": "x", "n": number} for number in range(10)])
    described = {"fluss": {"bootstrap": fluss.bootstrap}, "lake": {"type": "paimon", "warehouse": str(fluss.warehouse)}}
    described["tiering"] = {"name": "test", "poll": "1m"}
    (tmp_path / "tiering.yaml").write_text(json.dumps(described))
    command = [sys.executable, "-m", "snowmelt", "tier", str(tmp_path / "tiering.yaml"), "--json", "--master", "local[1]"]

    def status() -> tuple[int, str]:
        asked = [sys.executable, "-m", "snowmelt", "tier", "status", str(tmp_path / "tiering.yaml"), "--json"]
        answer = subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60)
        return answer.returncode, json.loads(answer.stdout)["services"][0]["life"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            told = [json.loads(line) for line in iter_until(process.stdout, f'"{path}", "state": "finished", "rows": 10')]
            assert status() == (0, "runs")
            # The next heartbeat is a minute away.
            process.send_signal(signal.SIGINT)
            told += [json.loads(line) for line in process.stdout]
            assert process.wait(40) == 0
        finally:
            process.kill()
    assert [told[0]["text"], told[-1]["event"]] == ["starting Spark", "done"]
    assert len(lake_rows(fluss.warehouse, path)) == 10
    assert status() == (0, "ended")


def iter_until(lines: Iterable[str], words: str) -> Iterator[str]:
    for line in lines:
        yield line
        if words in line:
            return
    pytest.fail(f"it ended without having said {words}")


# ---- what goes wrong


def test_no_server_and_a_wrong_address_are_told(spark: Any) -> None:
    wanted = TieringSettings(name="test", bootstrap="127.0.0.1:1", warehouse="/nowhere")
    with pytest.raises(Unavailable, match=r"can't be reached: 127\.0\.0\.1:1"):
        Tiering(spark, wanted).run()


def test_a_server_that_is_too_old_is_told(fluss: FlussServer, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for lacking in (Call.PREPARE_LAKE_TABLE_SNAPSHOT, Call.ACQUIRE_KV_SNAPSHOT_LEASE):
        monkeypatch.setattr(FlussConnection, "knows", lambda self, call, lacking=lacking: call is not lacking)
        with pytest.raises(InvalidConfig, match=rf"too old to be tiered from.*{lacking.name}.*Fluss 0\.9"):
            Tiering(spark, settings(fluss)).run()


def test_a_warehouse_that_can_not_be_written_or_is_not_that_of_fluss_is_told(fluss: FlussServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, told in ((tmp_path / "file" / "lake", "not a folder"), (Path("/proc/lake"), "lake")):
        with pytest.raises((InvalidConfig, Unavailable), match=told):
            check_ends(settings(fluss, warehouse=str(wrong)))
    check_ends(settings(fluss))
    assert not list(fluss.warehouse.glob(".snowmelt-*"))
    other = str(tmp_path / "other")
    with pytest.raises(InvalidConfig, match=f"in another warehouse: {fluss.warehouse}, not {other}.*same_place"):
        check_ends(settings(fluss, warehouse=other))
    check_ends(settings(fluss, warehouse=other, same_place=True))


@pytest.mark.timeout(240)
def test_a_table_that_can_not_be_tiered_is_told_once_and_left_to_other_services(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted = fluss_tables.make(**LAKE, table__datalake__auto_compaction="true")
    expired = fluss_tables.make(**LAKE, table__datalake__auto_expire_snapshot="true")
    vectors = fluss_tables.make(**LAKE, paimon__deletion_vectors__enabled="true")
    refused = [compacted, expired, vectors]
    for path in refused:
        fluss_tables.upsert(path, [{"id": 1, "name": "one", "n": 1}])
    looked: list[TableId] = []

    def look(table: ReadableTable) -> None:
        looked.append(table.path)
        check_table(table)

    monkeypatch.setattr(round_module, "check_table", look)
    handed: set[TableId] = set()
    with connect_coordinator(fluss.bootstrap).connection as connection, RunningTiering(spark, settings(fluss)) as running:
        other = FlussClient(connection)

        def others_have_them() -> bool:
            """Another service asks, too; it gives back what it gets."""
            answer = other.heartbeat(request_table=True)
            if answer.table is not None:
                if answer.table.path in refused and answer.table.tiering_epoch > 5:
                    handed.add(answer.table.path)
                other.heartbeat(failed=[Claim(answer.table.table, answer.coordinator_epoch, answer.table.tiering_epoch)])
            return handed == set(refused)

        running.wait_for(lambda: {end.path for end in running.ends} >= set(refused))
        running.wait_for(others_have_them)
        # A table that can be tiered does not wait behind those that can't.
        right = fluss_tables.make(**LAKE)
        fluss_tables.upsert(right, [{"id": 1, "name": "one", "n": 1}])
        running.wait_for(lambda: lake_rows(fluss.warehouse, right) == [{"id": 1, "name": "one", "n": 1}])
    told = {path: [str(end.error) for end in running.ends if end.path == path] for path in refused}
    assert [len(lines) for lines in told.values()] == [1, 1, 1]
    assert "table.datalake.auto-compaction is on" in told[compacted][0]
    assert "table.datalake.auto-expire-snapshot is on" in told[expired][0]
    assert "deletion-vectors.enabled is on" in told[vectors][0]
    assert [looked.count(path) for path in refused] == [1, 1, 1]
    for path in refused:
        assert lake_rows(fluss.warehouse, path) == []


def test_a_cluster_with_a_catalog_of_its_own_is_refused_by_name(fresh_fluss: FreshFluss) -> None:
    # A server that is told its lake's format opens the catalog, so it is told none.
    server = fresh_fluss(lake=False, more=(("datalake.paimon.metastore", "hive"),))
    with pytest.raises(InvalidConfig, match=r"catalog that is not supported: datalake\.paimon\.metastore is hive"):
        check_ends(settings(server))
    assert not server.warehouse.exists()


@pytest.mark.timeout(240)
def test_tables_that_fail_wait_before_each_round_are_not_at_work_all_at_once_and_begin_nothing_when_the_service_ends(
    fresh_fluss: FreshFluss, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_fluss()
    tables = Tables(server)
    paths = [tables.make(buckets=1, **LAKE) for _ in range(4)]
    began: list[tuple[TableId, float]] = []
    at_work: list[TableId] = []
    most = 0

    def fail(self: RunningRound) -> None:
        nonlocal most
        began.append((self.handed.path, time.monotonic()))
        at_work.append(self.handed.path)
        # Until they all would be there, if they could.
        threading.Event().wait(0.3)
        most = max(most, len(at_work))
        at_work.remove(self.handed.path)
        raise Unavailable("as planned")

    monkeypatch.setattr(RunningRound, "_begin", fail)
    with RunningTiering(spark, settings(server, rounds_at_once=1)) as running:
        running.wait_for(lambda: all(sum(path == one for one, _ in began) >= 4 for path in paths))
        running.service.stop()
        # Of those at work; the others wait for seconds.
        before = len(began)
    assert len(began) <= before + 1
    assert most == 1
    for path in paths:
        times = [moment for one, moment in began if one == path]
        assert all(later - earlier >= budgets.ROUND.first_s for earlier, later in itertools.pairwise(times))
    tables.close()


@pytest.mark.timeout(240)
def test_a_lake_table_of_another_shape_a_dropped_table_and_a_killed_tablet_server_stop_nobody(fresh_fluss: FreshFluss, spark: Any) -> None:
    """And no lease is left."""
    # A tablet server that is killed comes back with what it has written down of its log.
    server = fresh_fluss(session_timeout_s=5.0, more=(("log.replica.high-watermark.checkpoint-interval", "100ms"),))
    tables = Tables(server)
    wrong, gone, right = (tables.make(**LAKE) for _ in range(3))
    catalog = PaimonTieringSink(str(server.warehouse))._catalog
    catalog.drop_table(f"{wrong.database}.{wrong.name}", False)
    other = pa.schema([("id", pa.string()), ("n", pa.int64())])
    catalog.create_table(f"{wrong.database}.{wrong.name}", PaimonSchema.from_pyarrow_schema(other), False)
    rows = {number: {"id": number, "name": "first", "n": number} for number in range(100)}
    for path in (wrong, gone, right):
        tables.upsert(path, rows.values())
    with RunningTiering(spark, settings(server, rounds_at_once=3)) as running:
        running.wait_for(lambda: any(end.path == wrong and end.error is not None for end in running.ends))
        failed = next(end.error for end in running.ends if end.path == wrong)
        assert isinstance(failed, InvalidConfig)
        assert "a lake table is not as its Fluss table needs it" in str(failed)
        running.wait_for(lambda: lake_rows(server.warehouse, right) == in_order(rows.values()))
        tables.drop(gone)
        server.kill(ServerProcess.TABLET)
        server.start()
        rows |= {number: {"id": number, "name": "second", "n": number} for number in range(50, 150)}
        reading = Reading(server, right)
        until(lambda: _leads(reading))
        # The client of before waits for the server of before.
        again = Tables(server)
        again.upsert(right, rows.values())
        running.wait_for(lambda: lake_rows(server.warehouse, right) == in_order(rows.values()))
    assert not list((server.remote / "lease").rglob("*.metadata")), "a lease is left"
    again.close()
    tables.close()


@pytest.mark.timeout(240)
def test_a_service_that_is_to_end_does_not_wait_for_a_coordinator_that_is_away(fresh_fluss: FreshFluss, spark: Any) -> None:
    server = fresh_fluss()
    tables = Tables(server)
    path = tables.make(**LAKE)
    tables.upsert(path, [{"id": 1, "name": "one", "n": 1}])
    held = threading.Event()

    def reported_late(running: RunningRound, report: Any) -> None:
        # Its round is over but for the word to the coordinator.
        server.kill(ServerProcess.COORDINATOR)
        held.set()
        say(running, report)

    say = RunningRound._say
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningRound, "_say", reported_late)
        with RunningTiering(spark, settings(server)) as running:
            running.wait_for(held.is_set)
        assert not running._thread.is_alive()
    assert lake_rows(server.warehouse, path) == [{"id": 1, "name": "one", "n": 1}]


def _leads(reading: Reading) -> bool:
    """Whether the tablet server that came back leads its buckets again."""
    try:
        return bool(reading.ends())
    except SnowmeltError:
        return False
