"""A union read is the Fluss table at that moment: the real server, tiering rounds in between, real Paimon tables, Spark's own processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import snowmelt
from snowmelt.engine.tiering.listing import Buckets, lake_shape, list_buckets
from snowmelt.engine.union import plan
from snowmelt.engine.union.holder import Hold, hold
from snowmelt.engine.union.options import parse_options
from snowmelt.engine.union.protection import LeasedRead, protected
from snowmelt.errors import InvalidConfig, SourceDrift, Unavailable
from snowmelt.fluss.answers import OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.types import Root
from snowmelt.fluss.rpc import NO_TABLE_OR_BUCKET, Call, FlussConnection, GoneFromFluss
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.tables import ReadableTable, describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import PaimonTieringSink
from tests.integration.fluss_reading import Reading, all_types
from tests.integration.tiering import LAKE, RunningTiering, in_order, settings
from tests.integration.unions import options, planned, read, union
from tests.kit.fluss_bytes import seen, shown
from tests.kit.fluss_raw import create_table, put_rows
from tests.kit.fluss_servers import Tables
from tests.kit.waiting import until

Rows = list[dict[str, Any]]
INSTANTS = (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)


def values(id: int, text: str) -> dict[str, Any]:
    return {"id": id, "name": text, "n": None if id % 7 == 0 else -id}


LOG = pa.schema([("n", pa.int64()), ("text", pa.string())])
PARTED = pa.schema([("day", pa.string()), ("id", pa.int32()), ("v", pa.string())])


class Changing:
    """A table with a key, one with partitions and a log table; what they hold, and what a union read shows of them."""

    def __init__(self, server: FlussServer, tables: Tables) -> None:
        self.server = server
        self.tables = tables
        self.keyed = tables.make(**LAKE)
        self.parted = tables.make(columns=PARTED, key=("day", "id"), partitioned_by=("day",), **LAKE)
        self.log = tables.make(columns=LOG, key=(), **LAKE)
        self.held: dict[int, dict[str, Any]] = {}
        self.days: dict[tuple[str, int], dict[str, Any]] = {}
        self.appended: Rows = []

    @property
    def expected(self) -> dict[TableId, Rows]:
        return {
            self.keyed: in_order(self.held.values()),
            self.parted: in_order(self.days.values()),
            self.log: in_order(self.appended),
        }

    def change(self, round: int) -> None:
        """Sets, replaces and deletes some keys; a new day, and rows of the first one; more rows."""
        some = [values(id, f"{round}") for id in range(round * 50, 1000, 1 + round)]
        self.tables.upsert(self.keyed, some)
        self.held.update({row["id"]: row for row in some})
        gone = [id for id in self.held if id % 11 == round]
        self.tables.delete(self.keyed, [{"id": id} for id in gone])
        for id in gone:
            del self.held[id]
        day = f"2026-01-0{1 + round}"
        self.tables.add_partition(self.parted, day=day)
        brought = [{"day": one, "id": id, "v": f"{round}"} for one in sorted({day, "2026-01-01"}) for id in range(round, 40)]
        self.tables.upsert(self.parted, brought)
        self.days.update({(row["day"], row["id"]): row for row in brought})
        rows = [{"n": len(self.appended) + number, "text": f"{round}"} for number in range(300)]
        self.tables.append(self.log, pa.RecordBatch.from_pylist(rows, LOG))
        self.appended.extend(rows)

    def check(self) -> None:
        for path, rows in self.expected.items():
            assert union(self.server, path) == rows, path
        # What the server itself shows.
        assert in_order(self.tables.scan(self.keyed)) == self.expected[self.keyed]


@pytest.fixture(scope="module")
def tiered(fluss: FlussServer, fluss_tables: Tables, spark: Any) -> Changing:
    """Tables that were read at every moment of their tiering; what the lake does not have is in their logs."""
    world = Changing(fluss, fluss_tables)
    world.change(0)
    # Never tiered: KV snapshots and logs alone.
    world.check()
    with RunningTiering(spark, settings(fluss)) as running:
        for round in range(1, 5):
            world.change(round)
            world.check()
        running.wait_for(lambda: all(running.finished(path) for path in world.expected))
        world.change(5)
        world.check()
        # The lake alone.
        running.wait_for(lambda: all(not [task for task in planned(fluss, path)[1] if task.bucket] for path in world.expected))
        world.check()
    world.change(6)
    return world


@pytest.mark.timeout(240)
def test_a_union_read_at_any_moment_is_the_table(tiered: Changing) -> None:
    """While rounds go on, that is the fixture's; here all have a lake and a tail."""
    for path in tiered.expected:
        _, tasks = planned(tiered.server, path)
        assert any(task.shares for task in tasks)
        assert any(task.start < task.stop for task in tasks)
        assert not any(task.files for task in tasks if task.bucket and task.bucket.partition is None)
    tiered.check()


@pytest.mark.timeout(240)
def test_spark_shows_the_same_by_function_and_by_format(tiered: Changing, spark: Any) -> None:
    for path, rows in tiered.expected.items():
        told = options(tiered.server, path)
        frame = snowmelt.union_read(spark, told.pop("table"), **told)
        assert in_order(row.asDict() for row in frame.collect()) == rows
    # A DataFrame is planned when it is first used, and once: `frame` is the last of these, of the log table.
    unused = snowmelt.union_read(spark, f"{path.database}.{path.name}", **told)
    later = {"n": -1, "text": "later"}
    tiered.tables.append(tiered.log, pa.RecordBatch.from_pylist([later], LOG))
    tiered.appended.append(later)
    assert (len(frame.collect()), frame.count(), unused.count()) == (len(rows), len(rows), len(rows) + 1)
    spark.dataSource.register(snowmelt.FlussSource)
    source = spark.read.format("snowmelt.fluss").options(**options(tiered.server, tiered.keyed, columns="n"))
    assert source.load().schema.simpleString() == "struct<n:bigint>"
    expected = [(row["n"],) for row in tiered.held.values() if row["n"] is not None and row["n"] < -900]
    assert sorted(tuple(row) for row in source.load().where("n < -900").collect()) == sorted(expected)


def test_a_plan_stays_what_it_was_and_a_tail_of_deletes_alone_takes_rows_away(tiered: Changing) -> None:
    # Not the tables of others: the fixture's are as they were when all is done.
    before = tiered.expected[tiered.keyed]
    parsed, tasks = planned(tiered.server, tiered.keyed)
    gone = sorted(tiered.held)[::2]
    tiered.tables.delete(tiered.keyed, [{"id": id} for id in gone])
    removed = {id: tiered.held.pop(id) for id in gone}
    assert in_order(read(parsed, tasks).to_pylist()) == before
    tiered.check()
    tiered.tables.upsert(tiered.keyed, removed.values())
    tiered.held.update(removed)
    assert union(tiered.server, tiered.keyed) == before


def test_a_partition_that_fluss_has_dropped_is_read_from_the_lake_and_a_new_one_of_its_name_is_not(tiered: Changing) -> None:
    day = "2026-01-02"
    kept = [row for row in tiered.days.values() if row["day"] == day]
    tiered.tables.drop_partition(tiered.parted, day=day)
    assert [row for row in union(tiered.server, tiered.parted) if row["day"] == day] == in_order(kept)
    # pyfluss would write to the old one for ever.
    client = Tables(tiered.server)
    client.add_partition(tiered.parted, day=day)
    anew = [{"day": day, "id": 7, "v": "anew"}]
    client.upsert(tiered.parted, anew)
    client.close()
    assert [row for row in union(tiered.server, tiered.parted) if row["day"] == day] == anew


def test_partitions_of_lake_and_fluss_are_the_same_whatever_they_are_named_by(fluss: FlussServer, fluss_tables: Tables, spark: Any) -> None:
    named: dict[pa.DataType, tuple[str, Any]] = {
        pa.int64(): ("-5", -5),
        pa.date32(): ("2026-01-02", date(2026, 1, 2)),
        pa.bool_(): ("true", True),
    }
    tables: dict[TableId, Any] = {}
    for kind, (name, value) in named.items():
        columns = pa.schema([("part", kind), ("id", pa.int32()), ("v", pa.string())])
        path = fluss_tables.make(columns=columns, key=("part", "id"), partitioned_by=("part",), **LAKE)
        fluss_tables.add_partition(path, part=name)
        fluss_tables.upsert(path, [{"part": value, "id": id, "v": "lake"} for id in range(10)])
        tables[path] = value
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: all(running.finished(path) for path in tables))
    for path, value in tables.items():
        fluss_tables.upsert(path, [{"part": value, "id": id, "v": "log"} for id in range(5)])
        _, tasks = planned(fluss, path)
        assert any(task.shares and task.start < task.stop for task in tasks), path
        assert union(fluss, path) == in_order({"part": value, "id": id, "v": "log" if id < 5 else "lake"} for id in range(10))


def test_a_log_that_was_cut_behind_another_round_is_planned_anew_and_one_that_lost_rows_is_told(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fluss_tables.make(**LAKE)
    rows = [values(id, "x") for id in range(20)]
    fluss_tables.upsert(path, rows)
    asked: list[Any] = []

    def lost(*given: Any) -> Any:
        asked.append(given)
        if len(asked) == 1:
            with RunningTiering(spark, settings(fluss)) as running:
                running.wait_for(lambda: running.finished(path))
        raise SourceDrift("a Fluss table has lost rows that the lake needs")

    with monkeypatch.context() as patched:
        patched.setattr(plan, "list_buckets", lambda *given: list_buckets(*given) if len(asked) else lost(*given))
        assert union(fluss, path) == in_order(rows)
        patched.setattr(plan, "list_buckets", lost)
        with pytest.raises(SourceDrift, match="lost rows"):
            planned(fluss, path)
    assert len(asked) == 2


def test_a_log_whose_first_round_cut_it_while_it_was_looked_at_is_read_from_the_lake(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fluss_tables.make(columns=LOG, key=(), buckets=1, **LAKE)
    fluss_tables.append(path, pa.record_batch({"n": pa.array(range(100), pa.int64()), "text": ["x"] * 100}))
    looks = 0

    def cut(client: FlussClient, table: ReadableTable) -> Buckets:
        nonlocal looks
        looks += 1
        if looks == 1:
            with RunningTiering(spark, settings(fluss)) as running:
                running.wait_for(lambda: running.finished(path))
        found = list_buckets(client, table)
        # As the server does it once the lake has these rows, and they are older than the table wants to keep them.
        return replace(found, logs=tuple(replace(log, earliest=90) for log in found.logs))

    monkeypatch.setattr(plan, "list_buckets", cut)
    assert [row["n"] for row in sorted(read(*planned(fluss, path)).to_pylist(), key=lambda row: row["n"])] == list(range(100))
    assert looks == 2


def test_a_server_that_does_not_know_its_buckets_yet_is_not_taken_for_partitions_that_were_dropped(
    fluss: FlussServer, fluss_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tablet server that comes back before it was missed says of all its buckets that they do not exist."""
    path = fluss_tables.make(columns=PARTED, key=("day", "id"), partitioned_by=("day",), buckets=1)
    for day in ("a", "b"):
        fluss_tables.add_partition(path, day=day)
    client = FlussClient(fluss.connect())
    table = describe_table(client, path)
    found = until(lambda: listed if len(listed := client.partitions(path)) == 2 else None)

    def there() -> bool:
        try:
            return len(list_buckets(client, table).partitions) == 2
        except (Unavailable, GoneFromFluss):
            return False

    until(there)
    real, dropped = FlussClient.offsets, found[0].partition

    def offsets(self: FlussClient, table: int, partition: int | None, buckets: Iterable[int], kind: OffsetKind) -> dict[Bucket, int]:
        if partition == dropped:
            raise GoneFromFluss("there is no such bucket", code=NO_TABLE_OR_BUCKET)
        return real(self, table, partition, buckets, kind)

    monkeypatch.setattr(FlussClient, "offsets", offsets)
    with pytest.raises(Unavailable, match="does not know a bucket at the moment"):
        list_buckets(client, table)
    asked = iter([found, found[1:]])
    monkeypatch.setattr(FlussClient, "partitions", lambda self, path: next(asked))
    assert list(list_buckets(client, table).partitions) == [found[1].partition]


def test_a_kv_snapshot_is_read_under_its_lease_though_newer_ones_came(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=1)
    client = FlussClient(fluss.connect())
    first = [values(id, "first") for id in range(100)]
    fluss_tables.upsert(path, first)

    def newest() -> int:
        return max((one.snapshot for one in client.latest_snapshots(path).snapshots.values()), default=-1)

    until(lambda: newest() >= 0)
    parsed, tasks = planned(fluss, path)
    brief, soon_over = planned(fluss, path, lease="0.2")
    assert all(task.files for task in tasks)
    for round in range(3):
        before = newest()
        fluss_tables.upsert(path, [values(id, f"{round}") for id in range(100)])
        until(lambda before=before: newest() > before)  # type: ignore[misc]
    assert in_order(read(parsed, tasks).to_pylist()) == in_order(first)
    # Whatever is still there: nobody keeps it any more.
    with pytest.raises(Unavailable, match=r"is not leased any more, and Fluss has a newer one.*make the DataFrame anew"):
        read(brief, soon_over)


def test_a_server_without_leases_and_any_failure_to_lease_end_the_plan(
    fluss: FlussServer, fluss_tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fluss_tables.make()
    fluss_tables.upsert(path, [values(id, "x") for id in range(20)])
    until(lambda: len(FlussClient(fluss.connect()).latest_snapshots(path).snapshots) == 2)
    knows = FlussConnection.knows
    monkeypatch.setattr(FlussConnection, "knows", lambda self, call: call is not Call.ACQUIRE_KV_SNAPSHOT_LEASE and knows(self, call))
    with pytest.raises(InvalidConfig, match=r"has no leases of KV snapshots.*ACQUIRE_KV_SNAPSHOT_LEASE.*Fluss 0\.9"):
        planned(fluss, path)
    monkeypatch.undo()
    wanted: dict[Bucket, str | None] = {Bucket(1 << 40, 0): None}
    with pytest.raises(Unavailable, match="could not be leased"):
        hold(Hold(bootstrap=fluss.bootstrap, lease="x", path=path, table=1 << 40, wanted=wanted, duration_ms=60_000, owner=os.getpid()))


def leases_of(server: FlussServer, table: int) -> set[Path]:
    """What the server keeps of leases of a table."""
    return set((server.remote / "lease").glob(f"**/{table}/*.metadata"))


def test_the_lease_of_a_read_ends_with_its_query_and_a_later_use_of_the_dataframe_leases_anew_or_is_told(
    fluss: FlussServer, fluss_tables: Tables, spark: Any
) -> None:
    """The lease is of an hour, and Spark lives on."""
    path = fluss_tables.make()
    rows = [values(id, "first") for id in range(50)]
    fluss_tables.upsert(path, rows)
    client = FlussClient(fluss.connect())
    until(lambda: len(client.latest_snapshots(path).snapshots) == 2)
    table = client.table_info(path).table
    told = options(fluss, path)
    frame = snowmelt.union_read(spark, told.pop("table"), **told)
    # Of one query, that reads it twice.
    assert frame.union(frame).count() == 100
    assert leases_of(fluss, table)
    until(lambda: not leases_of(fluss, table), seconds_max=20)
    assert in_order(row.asDict() for row in frame.collect()) == in_order(rows)
    assert not leases_of(fluss, table)
    before = {bucket: one.snapshot for bucket, one in client.latest_snapshots(path).snapshots.items()}
    fluss_tables.upsert(path, [values(id, "second") for id in range(50)])

    def newer() -> bool:
        now = client.latest_snapshots(path).snapshots
        return now.keys() == before.keys() and all(one.snapshot > before[bucket] for bucket, one in now.items())

    until(newer)
    with pytest.raises(Exception, match=r"is not leased any more, and Fluss has a newer one.*make the DataFrame anew"):
        frame.collect()
    until(lambda: not leases_of(fluss, table))


def test_a_query_that_has_enough_lets_go_of_its_lease_and_a_holder_that_dies_is_noticed(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=1)
    fluss_tables.upsert(path, [values(id, "x") for id in range(20)])
    client = FlussClient(fluss.connect())
    until(lambda: client.latest_snapshots(path).snapshots)
    table, parsed = client.table_info(path).table, parse_options(options(fluss, path))
    bucket = Bucket(table, 0)
    asked = Hold(
        bootstrap=fluss.bootstrap,
        lease="union-partly",
        path=path,
        table=table,
        wanted={bucket: None},
        duration_ms=600_000,
        owner=os.getpid(),
        partly_read_s=0.1,
    )
    held = hold(asked)
    leased = LeasedRead(held.snapshots[bucket].snapshot, None, held.address)
    with protected(parsed, leased) as protection:
        protection.check()
        assert leases_of(fluss, table)
    until(lambda: not leases_of(fluss, table), seconds_max=30)
    # A task that finds no holder.
    with protected(parsed, leased) as protection:
        assert leases_of(fluss, table)
        protection.check()
        protection.finish()
    assert not leases_of(fluss, table)
    held = hold(replace(asked, lease="union-dies"))
    with protected(parsed, LeasedRead(held.snapshots[bucket].snapshot, None, held.address)) as protection:
        held.drop()
        with pytest.raises(Unavailable, match="was over before it was read to its end"):
            until(protection.check)
        with pytest.raises(Unavailable, match="was over before it was read to its end"):
            protection.finish()


def test_the_lease_of_a_read_is_renewed_and_goes_with_its_owner(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=1)
    fluss_tables.upsert(path, [values(id, "x") for id in range(20)])
    client = FlussClient(fluss.connect())
    until(lambda: client.latest_snapshots(path).snapshots)
    table = client.table_info(path).table

    def files() -> set[Path]:
        return leases_of(fluss, table)

    with subprocess.Popen(["sleep", "600"]) as owner:
        try:
            wanted: dict[Bucket, str | None] = {Bucket(table, 0): None}
            asked = Hold(
                bootstrap=fluss.bootstrap,
                lease="union-test",
                path=path,
                table=table,
                wanted=wanted,
                duration_ms=600_000,
                owner=owner.pid,
                step_ms=30_000,
            )
            assert hold(asked).snapshots.keys() == wanted.keys()
            first = files()
            assert first
            # A renewal writes it anew.
            until(lambda: files() and not files() & first)
        finally:
            owner.kill()
    until(lambda: not files(), seconds_max=30)
    # A read that could not be planned after all does not wait for its owner's end.
    held = hold(replace(asked, lease="union-test-again", owner=os.getpid()))
    assert files()
    held.drop()
    until(lambda: not files(), seconds_max=30)


def test_every_type_is_the_same_from_lake_kv_snapshot_and_log(fluss: FlussServer, fluss_tables: Tables, spark: Any) -> None:
    schema, rows = all_types()
    path = TableId(fluss_tables.make().database, "all_types_union")
    create_table(fluss, path, schema, **LAKE)
    reading = Reading(fluss, path)

    def check() -> None:
        found = read(*planned(fluss, path)).sort_by("id")
        for place, column in enumerate(schema.columns):
            assert seen(found.column(place).combine_chunks()) == [shown(column.type, row[place]) for row in rows], column

    put_rows(fluss, reading.table.table, schema, rows)
    check()
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: running.finished(path))
    check()
    # Half of them again, so that they come from the log.
    put_rows(fluss, reading.table.table, schema, rows[::2])
    _, tasks = planned(fluss, path)
    assert [bool(task.shares) and task.start < task.stop for task in tasks] == [True]
    check()
    fits = [column for column in schema.columns if column.type.precision < 7 or column.type.root not in INSTANTS]
    told = options(fluss, path)
    shown_by_spark = snowmelt.union_read(spark, told.pop("table"), **told, columns=[column.name for column in fits]).toArrow().sort_by("id")
    expected = read(*planned(fluss, path)).sort_by("id")
    for column in fits:
        found = shown_by_spark.column(column.name)
        assert found.equals(expected.column(column.name).cast(found.type)), column
    told = options(fluss, path)
    finer = next(column.name for column in schema.columns if column not in fits)
    with pytest.raises(Exception, match="does not fit into Spark's type"):
        snowmelt.union_read(spark, told.pop("table"), **told, columns=[finer]).collect()


def test_what_is_wrong_is_told_before_anything_is_read(tiered: Changing, spark: Any, tmp_path: Path) -> None:
    server, path = tiered.server, tiered.keyed
    told = options(server, path)
    name = told.pop("table")
    with pytest.raises(Unavailable, match="can't be reached"):
        snowmelt.union_read(spark, name, bootstrap="127.0.0.1:1", warehouse=told["warehouse"])
    with pytest.raises(GoneFromFluss, match="does not exist"):
        snowmelt.union_read(spark, f"{path.database}.nowhere", **told)
    with pytest.raises(InvalidConfig, match="no such column: colour"):
        snowmelt.union_read(spark, name, **told, columns=["colour"])
    with pytest.raises(InvalidConfig, match=r"its lake table is not there.*is the warehouse the right one"):
        planned(server, path, warehouse=str(tmp_path))
    # A lake table of that name that belongs to another table.
    fitting = PaimonTieringSink(str(tmp_path))
    client = FlussClient(server.connect())
    fitting.ensure(name, lake_shape(describe_table(client, path)))
    with pytest.raises(SourceDrift, match="does not have what Fluss says it has"):
        planned(server, path, warehouse=str(tmp_path))
    # Spark's account of it has ours in it.
    with pytest.raises(Exception, match="does not have what Fluss says it has"):
        snowmelt.union_read(spark, name, **{**told, "warehouse": str(tmp_path)}).collect()
    with pytest.raises(Exception, match="does not have a column as it is to be read"):
        spark.read.format("snowmelt.fluss").schema("id string").options(**options(server, path)).load().collect()
