"""Lake tables that are divided into partitions, of a real database: a row that moves leaves nothing where it was, whatever happens."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from snowmelt.commit.listener_state import read_marked
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.failpoints import CHUNK_READ, FILES_STAGED, IN_TASKS, NAMES
from snowmelt.errors import InvalidConfig
from snowmelt.model.partition import Unit
from snowmelt.planning.facts import OUTSIDE
from snowmelt.sinks.partitions import DEFAULT, PartitionBy
from snowmelt.verify.compare import TableOutcome, verify
from tests.integration import pipeline_process
from tests.integration.killed import PipelineProcess
from tests.integration.running import Running, folded, history, lake_rows, run_tasks_here, settings, source_rows
from tests.integration.server_log import execute
from tests.kit.servers import Fresh, Server

ROUTES = [
    Route("shop.orders", "ods.orders", partition=PartitionBy.read("created:day")),
    Route("shop.places", "ods.places", partition=PartitionBy.read("region")),
    Route("shop.notes", "ods.notes", partition=PartitionBy.read("written:month")),
    Route("shop.kinds", "ods.kinds", partition=PartitionBy.read("kind:value")),
    Route("shop.journal", "ods.journal", Mode.CHANGELOG, partition=PartitionBy.read("d:day")),
]
KEYED = ("orders", "places", "notes", "kinds")
ROWS = 3_000
DAYS = ("2026-11-01 10:00:00", "2026-11-02 23:59:59.999999", "1969-12-31 23:59:59", "2026-10-31 00:00:00", None)
REGIONS = ("EU", "eu", "", "a/b", "a=b", "ü")


def fill(server: Server) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, created DATETIME(6), v INT)")
        cursor.execute("CREATE TABLE shop.places (id INT NOT NULL PRIMARY KEY, region VARCHAR(20) NOT NULL, v INT)")
        cursor.execute("CREATE TABLE shop.notes (a INT NOT NULL, b VARCHAR(9) NOT NULL, written DATE, v INT, PRIMARY KEY (a, b))")
        cursor.execute("CREATE TABLE shop.kinds (id INT NOT NULL PRIMARY KEY, kind VARCHAR(20), v INT)")
        cursor.execute("CREATE TABLE shop.journal (id INT NOT NULL PRIMARY KEY, d DATE, change_number BIGINT NOT NULL)")
        for table, values in (
            ("orders", [(i, DAYS[i % 5], i) for i in range(ROWS)]),
            ("places", [(i, REGIONS[i % 6], i) for i in range(ROWS)]),
            ("kinds", [(i, [*REGIONS, None][i % 7], i) for i in range(ROWS)]),
            ("journal", [(i, (DAYS[i % 5] or "")[:10] or None, -i) for i in range(1, ROWS)]),
        ):
            cursor.executemany(f"INSERT INTO shop.{table} VALUES (%s, %s, %s)", values)
        values = [(i % 7, f"b{i}", (DAYS[i % 5] or "")[:10] or None, i) for i in range(ROWS)]
        cursor.executemany("INSERT INTO shop.notes VALUES (%s, %s, %s, %s)", values)
        connection.commit()


@contextmanager
def under_load(server: Server) -> Iterator[None]:
    """Rows move from partition to partition and back, also within a transaction, and with other keys."""
    stop, changes = threading.Event(), itertools.count(1)

    def change(cursor: Any, rng: random.Random, number: int) -> None:
        day, chance = rng.choice(DAYS), rng.random()
        date = day[:10] if day else None
        if chance < 0.3:
            cursor.execute("UPDATE shop.orders SET created = %s, v = v + 1 WHERE id = %s", (day, number))
        elif chance < 0.35:
            cursor.execute("UPDATE IGNORE shop.orders SET id = id + 10000, created = %s WHERE id = %s", (day, number))
        elif chance < 0.4:
            cursor.execute("DELETE FROM shop.orders WHERE id = %s", (number,))
        elif chance < 0.5:
            cursor.execute("REPLACE INTO shop.orders (id, created, v) VALUES (%s, %s, 0)", (number, day))
        elif chance < 0.6:
            cursor.execute("REPLACE INTO shop.places VALUES (%s, %s, 1)", (number, rng.choice(REGIONS)))
        elif chance < 0.7:
            cursor.execute("UPDATE shop.places SET region = %s WHERE id BETWEEN %s AND %s", (rng.choice(REGIONS), number, number + 9))
        elif chance < 0.8:
            cursor.execute("UPDATE shop.notes SET written = %s WHERE a = %s AND b = %s", (date, number % 7, f"b{number}"))
        elif chance < 0.9:
            cursor.execute("REPLACE INTO shop.kinds VALUES (%s, %s, 2)", (number, rng.choice([*REGIONS, None])))
        else:
            cursor.execute("UPDATE shop.journal SET d = %s, change_number = %s WHERE id = %s", (date, next(changes), number))

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                try:
                    number = rng.randrange(ROWS)
                    for _ in range(rng.choice((1, 2, 5))):
                        change(cursor, rng, number)
                    (connection.commit if rng.random() < 0.9 else connection.rollback)()
                except pymysql.err.OperationalError as error:
                    if error.args[0] != ER.LOCK_DEADLOCK:
                        raise
                stop.wait(0.02)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, seed) for seed in (1, 2)]
        try:
            yield
        finally:
            stop.set()
        for writer in writers:
            writer.result()


def compare(server: Server, folder: Path) -> None:
    """Each row is in the lake once, and in the partition that its values say."""
    for name in KEYED:
        assert lake_rows(folder, f"ods.{name}") == source_rows(server, f"shop.{name}"), name
    assert folded(folder, "ods.journal") == source_rows(server, "shop.journal")
    made = [row["change_number"] for row in history(folder, "ods.journal") if row["_op"] in ("insert", "update_after")]
    assert len(made) == len(set(made)), "a change came twice"
    for row in lake_rows(folder, "ods.orders", system=True):
        assert row["_day"] == (str(row["created"])[:10] if row["created"] else DEFAULT)
    for row in lake_rows(folder, "ods.notes", system=True):
        assert row["_month"] == (str(row["written"])[:7] if row["written"] else DEFAULT)
    for row in lake_rows(folder, "ods.kinds", system=True):
        assert row["_partition"] == (row["kind"] or DEFAULT)


def wanted(server: Server, folder: Path, **more: Any) -> Settings:
    return settings(server, folder, routes=ROUTES, **more)


@pytest.mark.timeout(600)
def test_rows_that_move_while_they_are_copied_and_after_are_where_they_belong(fresh_mariadb: Fresh, spark: Any, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    with under_load(server), Running(spark, wanted(server, tmp_path)) as running:
        running.wait_for(running.pipeline.caught_up)
        epoch = running.pipeline.progress.epoch
        running.wait_for(lambda: running.pipeline.progress.epoch > epoch + 6)
        execute(server, "TRUNCATE shop.places", "INSERT INTO shop.places VALUES (1, 'EU', 1), (2, 'a/b', 2)")
        # A copy in place: the values of the new column are not in the log.
        execute(server, "ALTER TABLE shop.orders ADD COLUMN w DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP")
        running.wait_for(running.pipeline.caught_up)
        epoch = running.pipeline.progress.epoch
        running.wait_for(lambda: running.pipeline.progress.epoch > epoch + 3)
    with Running(spark, wanted(server, tmp_path), recopy=["shop.kinds"]) as running:
        running.settled()
        assert set(running.pipeline.progress.phases.values()) == {"released"}
        verdicts = verify(wanted(server, tmp_path), spark, None, patience_s=120.0)
        assert {verdict.table.name: verdict.outcome for verdict in verdicts} == dict.fromkeys([*KEYED, "journal"], TableOutcome.VERIFIED)
    compare(server, tmp_path)


@contextmanager
def held_chunks(table: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Any], threading.Event]]:
    """Chunks of a table that were read are not heard of until the event is set; they are in the list."""
    hear, held, released = Chunks.hear, [], threading.Event()

    def heard(chunks: Chunks) -> None:
        mine = [one for one in chunks._waiting if one.launch.incarnation.table.name == table and one.launch.ordinal != OUTSIDE]
        held[:] = [] if released.is_set() else mine
        chunks._waiting[:] = [one for one in chunks._waiting if one not in held]
        hear(chunks)
        chunks._waiting.extend(held)

    with monkeypatch.context() as patch:
        patch.setattr(Chunks, "hear", heard)
        yield held, released
        released.set()


@pytest.mark.timeout(600)
def test_a_row_that_moves_between_the_read_and_its_adoption_is_in_one_partition(
    fresh_mariadb: Fresh, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    fill(server)
    first, second = DAYS[:2]
    with held_chunks("orders", monkeypatch) as (held, released), Running(spark, wanted(server, tmp_path)) as running:
        running.wait_for(lambda: len(held) > 1)
        execute(
            server,
            f"UPDATE shop.orders SET created = '{first}'",
            f"UPDATE shop.orders SET created = '{second}' WHERE id % 2 = 0",
            f"UPDATE shop.orders SET created = '{first}' WHERE id % 4 = 0",
            "UPDATE shop.orders SET created = NULL WHERE id % 8 = 0",
            "DELETE FROM shop.orders WHERE id % 16 = 0",
            f"INSERT INTO shop.orders VALUES (16, '{second}', 1)",
        )
        released.set()
        running.settled()
        # In one transaction away and back, and away.
        with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            for day in (second, first, None, second, first):
                cursor.execute("UPDATE shop.orders SET created = %s WHERE id < 1000", (day,))
            cursor.execute("UPDATE shop.orders SET created = %s WHERE id < 500", (second,))
            connection.commit()
        running.settled()
    compare(server, tmp_path)


TROUBLE = {
    "orders": ("ALTER TABLE shop.orders DROP COLUMN created", "which it does not have"),
    "places": ("ALTER TABLE shop.places MODIFY region VARCHAR(20) NULL", "can't be NULL"),
    # Stored values change, so it is emptied and copied again, and its partitions are made of the new ones.
    "notes": ("ALTER TABLE shop.notes MODIFY written DATETIME", ""),
    "journal": ("ALTER TABLE shop.journal CHANGE d day DATE", "which it does not have"),
    "kinds": ("ALTER TABLE shop.kinds MODIFY kind VARCHAR(300)", ""),
    "swapped": ("ALTER TABLE shop.swapped CHANGE kind old VARCHAR(9), CHANGE other kind VARCHAR(9)", "was dropped or renamed"),
}
PUT_RIGHT = (
    "ALTER TABLE shop.orders ADD COLUMN created DATETIME(6)",
    "UPDATE shop.orders SET created = '2026-11-05' WHERE id % 2",
    "ALTER TABLE shop.places MODIFY region VARCHAR(20) NOT NULL",
    "ALTER TABLE shop.journal CHANGE day d DATE",
    "UPDATE shop.kinds SET kind = 'short' WHERE id = 7",
)


@pytest.mark.timeout(600)
def test_what_changes_the_column_of_the_partitions_sets_its_table_aside_and_a_new_copy_brings_it_back(
    fresh_mariadb: Fresh, spark: Any, tmp_path: Path
) -> None:
    server = fresh_mariadb()
    fill(server)
    execute(
        server,
        "CREATE TABLE shop.swapped (id INT NOT NULL PRIMARY KEY, kind VARCHAR(9), other VARCHAR(9), v INT)",
        "INSERT INTO shop.swapped VALUES (1, 'a', 'b', 1)",
    )
    routes = [*ROUTES, Route("shop.swapped", "ods.swapped", partition=PartitionBy.read("kind:value"))]
    settled = wanted(server, tmp_path)
    settled = replace(settled, routes=routes)

    def asides(running: Running) -> dict[str, str]:
        return {table.incarnation.table.name: table.aside.why for table in running.driver.known.ledger.tables if table.aside is not None}

    with Running(spark, settled) as running:
        running.settled()
        execute(server, *(statement for statement, _ in TROUBLE.values()))
        running.settled()
        found = asides(running)
        assert set(found) == set(TROUBLE) - {"kinds", "notes"}
        for name, (_, why) in TROUBLE.items():
            assert why in found.get(name, "")
        execute(server, "UPDATE shop.kinds SET kind = REPEAT('x', 300) WHERE id = 7")
        running.wait_for(lambda: "kinds" in asides(running))
        assert "would be longer than a folder's" in asides(running)["kinds"]
    execute(server, *PUT_RIGHT)
    with Running(spark, settled, recopy=[f"shop.{name}" for name in TROUBLE]) as running:
        running.settled()
        assert not asides(running)
        execute(server, "UPDATE shop.orders SET created = '2026-11-06' WHERE id % 3 = 0")
        running.settled()
    compare(server, tmp_path)
    assert lake_rows(tmp_path, "ods.swapped") == source_rows(server, "shop.swapped")


@pytest.mark.timeout(300)
def test_other_partitions_than_before_stop_a_start(fresh_mariadb: Fresh, spark: Any, tmp_path: Path) -> None:
    server = fresh_mariadb()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, created DATETIME, v INT)")
    with Running(spark, settings(server, tmp_path, routes=ROUTES[:1])) as running:
        running.settled()
    for partition in (None, PartitionBy.read("created:month"), PartitionBy.read("v:value")):
        changed = [replace(ROUTES[0], partition=partition)]
        with (
            pytest.raises(InvalidConfig, match="partitioned in another way than before"),
            Running(spark, settings(server, tmp_path, routes=changed)) as running,
        ):
            raise running.stopped_by()


@pytest.mark.timeout(1500)
def test_drivers_and_workers_that_die_leave_no_row_in_two_partitions(fresh_mariadb: Fresh, spark: Any, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    described = replace(pipeline_process.settings(server.host, server.port, tmp_path), routes=ROUTES)
    described = replace(described, pace=replace(described.pace, rows_per_chunk=200))
    environment = {"PIPELINE_PASSWORD": server.password}

    def process(*failpoints: str) -> PipelineProcess:
        return PipelineProcess(described, tmp_path, *failpoints, environment=environment)

    drivers = [name for name in NAMES if name not in IN_TASKS]
    with under_load(server):
        dying = process(CHUNK_READ, FILES_STAGED, drivers[0])
        dying.die_at(CHUNK_READ, FILES_STAGED)
        dying.die_at(drivers[0])
        dying.kill()
        for failpoint in drivers[1:]:
            dying = process(failpoint)
            dying.die_at(failpoint)
            dying.kill()
        last = process()
        last.wait_for(tmp_path / "released")
    (tmp_path / "stop").touch()
    last.wait_for(tmp_path / "current")
    last.kill()
    compare(server, tmp_path)
    assert not {verdict.outcome for verdict in verify(wanted(server, tmp_path), spark, None, patience_s=120.0)} - {TableOutcome.VERIFIED}


@pytest.mark.timeout(300)
def test_days_that_are_over_are_marked_in_the_lake_and_those_to_come_are_not(
    fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    execute(
        server,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, created DATETIME)",
        "INSERT INTO shop.orders VALUES (1, '2020-02-29 23:00:00'), (2, '2999-01-01'), (3, NULL)",
    )
    run_tasks_here(monkeypatch)
    described = settings(server, tmp_path, routes=ROUTES[:1], done_delay_ms=0)
    root = tmp_path / "lake" / "ods.db" / "orders"

    def marked() -> list[str]:
        return sorted(path.parent.name for path in root.glob("*/_SUCCESS"))

    with Running(None, described) as running:
        running.settled()
        execute(server, "INSERT INTO shop.orders VALUES (4, '2021-01-01')")
        running.wait_for(lambda: "_day=2020-02-29" in marked())
        running.settled()
    # What was not marked before it ended, and what the next driver is owed, follows from the state alone.
    with Running(None, described) as running:
        execute(server, "INSERT INTO shop.orders VALUES (5, '2022-01-01')")
        running.settled()
        assert read_marked(running.driver.known.ledger.listeners).ends.keys() == {Unit.DAY}
    assert set(marked()) <= {"_day=2020-02-29", "_day=2021-01-01"}
    assert lake_rows(tmp_path, "ods.orders") == source_rows(server, "shop.orders")
