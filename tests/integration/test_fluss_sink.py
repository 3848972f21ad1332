"""Epochs reach Fluss once: rows by key, repeated commits, drivers that die or sleep in the middle; then a database, Fluss and the lake."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt import budgets
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import StagedFor, StagedName
from snowmelt.errors import Fenced, InvalidConfig, SourceDrift
from snowmelt.fluss.answers import Cluster
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.tables import NoLeader
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.table import INSERT, KIND, TableId
from snowmelt.sinks.fluss import sink, writer
from snowmelt.sinks.fluss.sink import FlussSink
from tests.integration.fluss_sink_table import COLUMNS, Row, Sink, _numbers
from tests.integration.running import Running, settings, source_rows
from tests.integration.tiering import RunningTiering, in_order, lake_rows
from tests.integration.tiering import settings as tiering_settings
from tests.kit.fluss_servers import Tables
from tests.kit.servers import Fresh
from tests.kit.waiting import until


@pytest.fixture
def table(fluss: FlussServer, fluss_tables: Tables, tmp_path: Path) -> Sink:
    return Sink(fluss, fluss_tables, tmp_path / "state")


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a few rows are many batches."""
    monkeypatch.setattr(writer, "RUN_BYTES_MAX", 60)


class Died(BaseException):
    """What a driver dies of."""


@pytest.fixture
def at_put(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Callable[[], None]], None]]:
    """Has something happen right before the n-th put from now on."""
    plain = FlussClient.put_kv
    waiting: list[tuple[int, Callable[[], None]]] = []
    puts = 0

    def put(self: FlussClient, *args: Any, **given: Any) -> Any:
        nonlocal puts
        puts += 1
        for one in [one for one in waiting if one[0] == puts]:
            waiting.remove(one)
            one[1]()
        return plain(self, *args, **given)

    monkeypatch.setattr(FlussClient, "put_kv", put)
    yield lambda number, act: waiting.append((puts + number, act))
    assert not waiting, "it was never put so often"


def test_rows_and_deletes_arrive_by_key_in_their_order(table: Sink) -> None:
    lake = table.made()
    table.bring(lake, 1, (1, "a"), (2, "b"), (3, "c"), (1, "d"))
    table.bring(lake, 2, (2, None), (4, "e"), (4, None), (3, "f"))
    assert table.names(1, 2, 3, 4) == ["d", None, "f", None]


def test_a_writer_that_stages_at_once_holds_nothing_and_keeps_the_order(table: Sink) -> None:
    lake = table.made()
    writer = lake.writer(table.target, str(StagedName(1, StagedFor.EPOCH, 1, "a1", "")), at_once=True)
    for number, rows in enumerate([[(1, "a"), (2, "b")], [(1, None), (2, "c")], [(1, "d")]], 1):
        writer.write(table.batch([*rows]))
        assert len(lake.staged(table.target)) == number
    lake.commit(*table.intent(lake, 1, writer.finish()))
    assert table.names(1, 2) == ["d", "c"]


def test_every_type_that_a_source_has_comes_back_as_it_was(table: Sink) -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            ("tiny", pa.int8()), ("small", pa.int16()), ("whole", pa.int32()), ("big", pa.int64()), ("huge", pa.decimal128(20, 0)),
            ("price", pa.decimal128(10, 2)), ("single", pa.float32()), ("double", pa.float64()), ("flag", pa.bool_()), ("day", pa.date32()),
            ("clock", pa.timestamp("us")), ("instant", pa.timestamp("us", "UTC")), ("text", pa.string()), ("raw", pa.binary()),
        ]
    )  # fmt: skip
    lake = table.made(columns)
    row = {
        "id": "längerer Schlüssel", "tiny": -128, "small": 300, "whole": -5, "big": 2**63 - 1, "huge": Decimal(2**64 - 1),
        "price": Decimal("-12345678.90"), "single": 1.5, "double": -2.25e300, "flag": True, "day": date(1969, 7, 20),
        "clock": datetime(1066, 10, 14, 9, 0, 0, 123456),
        "instant": datetime(2024, 2, 29, 1, 2, 3, 999999, UTC), "text": "äöü€", "raw": b"\0\xff",
    }  # fmt: skip
    empty = dict.fromkeys(row) | {"id": ""}
    rows = pa.RecordBatch.from_pylist([row, empty], schema=columns)
    writer = lake.writer(table.target, "sm-1-e1-a1-")
    writer.write(rows.append_column(KIND, pa.array([INSERT, INSERT], pa.int8())))
    lake.commit(*table.intent(lake, 1, writer.finish()))
    found, nothing = table.tables.lookup(table.path, [{"id": row["id"]}, {"id": ""}])
    assert nothing == empty
    assert found == row


def test_a_commit_that_is_repeated_changes_nothing(table: Sink, small_batches: None) -> None:
    lake = table.made()
    first = table.intent(lake, 1, table.staged(lake, 1, [(key, "a") for key in range(40)]))
    held = lake.commit(*first)
    assert lake.commit(*first) == held == 40
    assert table.driver().commit(*first) == held
    assert table.changes(held) == [(key, "+I") for key in range(40)]


def test_a_driver_that_dies_between_two_batches_is_gone_on_from_there(table: Sink, small_batches: None, at_put: Any) -> None:
    lake = table.made()
    rows: list[Row] = [(key, "a") for key in range(60)] + [(key, None) for key in range(0, 60, 3)]
    work = table.intent(lake, 1, table.staged(lake, 1, rows))

    def die() -> None:
        raise Died

    at_put(4, die)
    with pytest.raises(Died):
        lake.commit(*work)
    at_put(2, die)
    with pytest.raises(Died):
        table.driver().commit(*work)
    held = table.driver().commit(*work)
    assert held == 80
    assert table.changes(held) == sorted([(key, "+I") for key in range(60)] + [(key, "-D") for key in range(0, 60, 3)])


def test_a_reply_that_is_lost_does_not_bring_rows_twice(table: Sink, small_batches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = table.made(buckets=1)
    plain = FlussClient.put_kv
    lost = iter([False, True, False, True])

    def put(self: FlussClient, *args: Any, **given: Any) -> Any:
        answer = plain(self, *args, **given)
        if next(lost, False):
            self.connection.close()
            raise sink.OutcomeUnknown("the reply is lost")
        return answer

    monkeypatch.setattr(FlussClient, "put_kv", put)
    held = table.bring(lake, 1, *[(key, "a") for key in range(30)])
    assert table.changes(held) == [(key, "+I") for key in range(30)]


@pytest.mark.parametrize(("rows", "asleep_before"), [(30, 1), (30, 3), (1, 1)])
def test_a_driver_that_slept_while_another_went_on_changes_nothing(
    table: Sink, small_batches: None, at_put: Any, rows: int, asleep_before: int
) -> None:
    old = table.made(buckets=1)
    work = table.intent(old, 1, table.staged(old, 1, [(key, "old") for key in range(rows)]))
    held: list[int] = []

    def another_goes_on() -> None:
        new = table.driver()
        new.commit(*work)
        for epoch in range(2, 12):
            held.append(table.bring(new, epoch, *[(key, f"{epoch}") for key in range(rows)]))

    at_put(asleep_before, another_goes_on)
    # Where the server still has the batch before its eyes it says yes to it once more, and it is the store that fences.
    learns = pytest.raises(Fenced, match="another program has written") if rows > 1 else contextlib.nullcontext()
    with learns:
        old.commit(*work)
    assert table.names(*range(rows)) == ["11"] * rows
    assert table.driver().describe(table.target).progress == held[-1]


def test_what_somebody_else_wrote_stops_it(table: Sink) -> None:
    lake = table.made()
    ledger = Ledger()
    ledger.snapshots[table.target] = table.bring(lake, 1, (1, "a"))
    table.driver().check_start(table.target, ledger)
    work = table.intent(lake, 2, table.staged(lake, 2, [(1, "b")]))
    table.tables.upsert(table.path, [{"id": 1, "name": "mine"}])
    with pytest.raises(SourceDrift, match="does not hold what the store says"):
        table.driver().check_start(table.target, ledger)
    with pytest.raises(Fenced, match="another program has written"):
        lake.commit(*work)
    assert table.names(1) == ["mine"]


CHECKPOINTS = "log.replica.high-watermark.checkpoint-interval"


def test_the_server_remembers_a_writer_over_a_restart(tmp_path: Path, small_batches: None, at_put: Any, fresh_fluss: Any) -> None:
    server = fresh_fluss(more=((CHECKPOINTS, "50ms"),))
    table = Sink(server, Tables(server), tmp_path / "state")
    lake = table.made(buckets=1)
    work = table.intent(lake, 1, table.staged(lake, 1, [(key, "a") for key in range(30)]))
    id = lake.describe(table.target).identity
    checkpoint = server.folder / "data" / ServerProcess.TABLET.value / "high-watermark-checkpoint"

    def restart() -> None:
        # What a server that is killed has not written there it takes out of its log when it starts again.
        until(lambda: f"{id} 0 6" in checkpoint.read_text().splitlines())
        server.kill()
        server.start()

    at_put(4, restart)
    held = lake.commit(*work)
    assert held == 30
    assert lake.commit(*work) == held
    assert table.changes(held) == [(key, "+I") for key in range(30)]
    table.tables.close()


def test_rows_that_fluss_took_and_lost_are_missed(tmp_path: Path, small_batches: None, at_put: Any, fresh_fluss: Any) -> None:
    """A server that is killed takes out of its log what came after the last checkpoint of the high watermark, though it has answered it.
    What it looks keys up in may keep it."""
    server = fresh_fluss(more=((CHECKPOINTS, "1h"),))
    tables = Tables(server)
    hurried, patient = (Sink(server, tables, tmp_path / "state") for _ in range(2))
    now = 0.0
    lake = FlussSink(FlussTarget(server.bootstrap), str(tmp_path / "state"), clock=lambda: now, sleep=lambda seconds: time.sleep(0.2))
    for table in (hurried, patient):
        lake.create(table.target, COLUMNS, ["id"], buckets=1)
    ledger = Ledger()
    ledger.snapshots[patient.target] = patient.bring(lake, 1, *[(key, "a") for key in range(10)])
    rows: list[Row] = [(key, "a") for key in range(30)]
    work = hurried.intent(lake, 1, hurried.staged(lake, 1, rows))

    def restart() -> None:
        with server.connect() as connection:
            client = FlussClient(connection)
            until(lambda: [one.offset for one in client.latest_snapshots(hurried.path).snapshots.values()] == [6])
            server.kill(ServerProcess.TABLET)
            until(lambda: not client.cluster().tablets)
            server.start()
            for table in (hurried, patient):
                until(lambda path=table.path: set(client.cluster(path).leaders.values()) == {0})

    at_put(4, restart)
    with pytest.raises(SourceDrift, match=r"lost rows.*has 0 batches, and Fluss had taken 3"):
        lake.commit(*work)

    # Of an epoch that was over, too. A new writer is told nothing of it by the server.
    now += 2 * sink._WRITER_S_MAX
    with pytest.raises(SourceDrift, match=r"lost rows.*has 0 changes, and Fluss had taken 10"):
        lake.preface(patient.target)
    with pytest.raises(SourceDrift, match="does not hold what the store says"):
        lake.check_start(patient.target, ledger)

    # A new driver goes on from where the log ends. Rows come out right; rows that the server still finds by key are updates in the log.
    held = hurried.driver().commit(*work)
    assert held == 36
    assert hurried.driver().commit(*work) == held
    assert hurried.names(*range(30)) == ["a"] * 30
    twice = [(key, kind) for key in range(6) for kind in ("+U", "-U")]
    assert hurried.changes(held) == twice + [(key, "+I") for key in range(6, 30)]
    tables.close()


def test_a_column_is_added_behind_the_epoch_that_brings_it(table: Sink) -> None:
    lake = table.made()
    wider = pa.schema([COLUMNS.field(0), ("price", pa.decimal128(8, 2)), COLUMNS.field(1), ("note", pa.string())])
    reshape = lake.reshape(table.target, wider, ["id"])
    assert reshape is not None
    work = table.intent(lake, 1, table.staged(lake, 1, [(1, "a")]), reshape=reshape)
    lake.commit(*work)
    assert table.driver().commit(*work) == lake.commit(*work) == 1
    assert lake.columns(table.target).names == ["id", "name", "price", "note"]
    assert lake.reshape(table.target, wider, ["id"]) is None
    writer = lake.writer(table.target, "sm-1-e2-a1-")
    row = {"id": 2, "price": Decimal("1.50"), "name": "b", "note": None}
    rows = pa.RecordBatch.from_pylist([row], schema=wider)
    writer.write(rows.append_column(KIND, pa.array([INSERT], pa.int8())))
    lake.commit(*table.intent(lake, 2, writer.finish()))
    assert table.tables.lookup(table.path, [{"id": 2}]) == [row]


@pytest.mark.parametrize(
    ("schema", "renamed", "told"),
    [
        (COLUMNS.remove(1), {}, "can't be dropped or renamed: .*name"),
        (pa.schema([COLUMNS.field(0), ("title", pa.string())]), {"name": "title"}, "can't be dropped or renamed: .*name"),
        (pa.schema([COLUMNS.field(0), ("name", pa.int64())]), {}, "can't be changed: .*name"),
    ],
)
def test_what_fluss_can_not_do_to_columns_is_refused(table: Sink, schema: pa.Schema, renamed: dict[str, str], told: str) -> None:
    lake = table.made()
    with pytest.raises(SourceDrift, match=told):
        lake.reshape(table.target, schema, ["id"], renamed)


def test_a_new_table_that_the_coordinator_forgot_is_made_again_and_an_old_one_is_not(table: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: set[int] = set()
    real = FlussClient.cluster

    def cluster(self: FlussClient, path: TableId | None = None, *partitions: Any) -> Cluster:
        found = real(self, path, *partitions)
        if path != table.path:
            return found
        forgotten.update([] if forgotten else {bucket.table for bucket in found.leaders})
        return replace(found, leaders={bucket: node for bucket, node in found.leaders.items() if bucket.table not in forgotten})

    monkeypatch.setattr(FlussClient, "cluster", cluster)
    lake = FlussSink(FlussTarget(table.server.bootstrap), str(table.state), sleep=lambda seconds: time.sleep(min(seconds, 0.1)))
    lake.create(table.target, COLUMNS, ["id"], buckets=2)
    id = int(lake.describe(table.target).identity)
    assert len(forgotten) == 1
    assert id not in forgotten

    lake.close()
    forgotten.add(id)
    with pytest.raises(NoLeader, match="no leader"):
        lake.create(table.target, COLUMNS, ["id"], buckets=2)
    forgotten.remove(id)
    assert int(lake.describe(table.target).identity) == id


def test_a_table_of_another_kind_is_refused(table: Sink) -> None:
    table.path = table.tables.make(buckets=1, table__merge_engine="first_row")
    table.target = str(table.path)
    with pytest.raises(InvalidConfig, match="merge engine"):
        table.driver().create(table.target, COLUMNS, ["id"], buckets=1)
    # Of one that was ours it is one table's trouble.
    with pytest.raises(SourceDrift, match="merge engine"):
        table.driver().describe(table.target)
    with pytest.raises(InvalidConfig, match=r"no form in Fluss: .*tags"):
        table.driver().create("sinks.lists", COLUMNS.append(pa.field("tags", pa.list_(pa.string()))), ["id"], buckets=1)


def test_staged_objects_go_when_the_next_epoch_comes(table: Sink) -> None:
    lake = table.made()
    for epoch in (1, 2, 3):
        table.bring(lake, epoch, (1, "a"))
        (name,) = lake.staged(table.target)
        assert name.startswith(f"sm-1-e{epoch}-a1-")


# ---- a database into Fluss, and on to the lake


def held_by_fluss(fluss: FlussServer, tables: Tables, target: str, key: tuple[str, ...]) -> list[dict[str, Any]]:
    """What a table's log adds up to. Each change must fit what was there before it."""
    database, _, name = target.partition(".")
    path = TableId(database, name)
    lake = FlussSink(FlussTarget(fluss.bootstrap), "/nowhere")
    ends = lake._repeated(lambda links: lake._ends(links, target, lake._described(target)))
    lake.close()
    held: dict[Any, Any] = {}
    for bucket, record in tables.log(path, ends) if sum(ends.values()) else ():
        at = (bucket, *(record.row[name] for name in key))
        match record.change_type.short_string():
            case "+I":
                assert at not in held, "a row came twice"
                held[at] = record.row
            case "+U":
                assert at not in held, "a row came without the one before it being taken away"
                held[at] = record.row
            case _:
                assert held.pop(at) == record.row, "another row was taken away than was there"
    return in_order(held.values())


@pytest.mark.timeout(300)
def test_a_database_reaches_the_lake_by_way_of_fluss_whoever_dies(
    fluss: FlussServer, fluss_tables: Tables, fresh_mariadb: Fresh, spark: Any, tmp_path: Path, at_put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        cursor.execute(
            "CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, amount DECIMAL(12,2), note VARCHAR(200), paid BOOLEAN, total DOUBLE,"
            " big BIGINT UNSIGNED, at DATETIME(6), day DATE, raw VARBINARY(20))"
        )
        cursor.execute("CREATE TABLE shop.pairs (a VARCHAR(40) NOT NULL, b BIGINT NOT NULL, v INT, PRIMARY KEY (a, b))")
        cursor.execute("CREATE TABLE shop.nothing (id BIGINT NOT NULL PRIMARY KEY, v TEXT)")
        rows = [
            (i, i / 100 if i % 5 else None, f"nöte {i}" * (i % 9), i % 2, i / 3, 2**64 - i, f"1999-12-31 23:59:{i % 60}.{i}", None, b"\0")
            for i in range(1, 3001)
        ]  # fmt: skip
        cursor.executemany("INSERT INTO shop.orders VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)", rows)
        cursor.executemany("INSERT INTO shop.pairs VALUES (%s, %s, %s)", [(f"schlüssel {i % 70}", -i, i) for i in range(1000)])
        connection.commit()
    database = f"shop_{next(_numbers)}"
    target = FlussTarget(fluss.bootstrap, freshness_s=1)
    wanted = settings(server, tmp_path, target=f"{database}.{{table}}", fluss=target, buckets=3)
    keys: dict[str, tuple[str, ...]] = {"orders": ("id",), "pairs": ("a", "b"), "nothing": ("id",)}

    def die() -> None:
        raise Died

    def compared() -> None:
        for name, key in keys.items():
            assert held_by_fluss(fluss, fluss_tables, f"{database}.{name}", key) == source_rows(server, f"shop.{name}"), name

    at_put(2, die)
    with Running(spark, wanted) as running:
        assert isinstance(running.stopped_by(), Died)
    with Running(spark, wanted) as running:
        running.settled()
        compared()
        at_put(1, die)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE shop.orders SET note = 'changed', day = '2024-02-29' WHERE id % 3 = 0")
            cursor.execute("DELETE FROM shop.orders WHERE id % 7 = 0")
            cursor.execute("UPDATE shop.orders SET id = id + 100000 WHERE id % 11 = 0")
            cursor.execute("UPDATE shop.pairs SET a = UPPER(a), v = v + 1 WHERE b % 2 = 0")
            cursor.execute("INSERT INTO shop.nothing VALUES (1, 'something'), (2, NULL)")
            cursor.execute("DELETE FROM shop.nothing WHERE id = 1")
            connection.commit()
        assert isinstance(running.stopped_by(), Died)
    with Running(spark, wanted) as running, RunningTiering(spark, tiering_settings(fluss)) as tiering:
        running.settled()
        compared()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("ALTER TABLE shop.orders ADD COLUMN channel VARCHAR(20) DEFAULT 'web'")
            cursor.execute("UPDATE shop.orders SET channel = 'shop' WHERE id % 2 = 0")
            connection.commit()
        running.settled()
        for name in keys:
            tiering.wait_for(lambda name=name: lake_rows(fluss.warehouse, TableId(database, name)) == source_rows(server, f"shop.{name}"))

    # Fluss seems to have lost rows of one table: that one is set aside, and the others go on.
    monkeypatch.setattr(budgets, "FLUSS_CALL", replace(budgets.FLUSS_CALL, longest_s=0.05))
    with Running(spark, wanted) as running:
        running.settled()
        lost = int(FlussSink(target, "/nowhere").describe(f"{database}.pairs").identity)
        plain = FlussClient.offsets

        def offsets(self: FlussClient, table: int, *args: Any) -> Any:
            return {bucket: end - (table == lost) for bucket, end in plain(self, table, *args).items()}

        monkeypatch.setattr(FlussClient, "offsets", offsets)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE shop.pairs SET v = 0")
            cursor.execute("UPDATE shop.orders SET note = 'again'")
            connection.commit()
        running.settled()
        aside = running.pipeline.progress.aside
        assert list(aside) == ["shop.pairs"]
        assert "a Fluss table lost rows" in aside["shop.pairs"]
    (pair,) = fluss_tables.lookup(TableId(database, "pairs"), [{"a": "schlüssel 1", "b": -1}])
    (order,) = fluss_tables.lookup(TableId(database, "orders"), [{"id": 1}])
    assert pair["v"] == 1
    assert order["note"] == "again"
