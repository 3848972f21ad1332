"""Statements of the log reach the lake in order, at their place; what the lake can't hold sets its table aside with its words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.routes import Mode, Route
from tests.integration.running import Running, folded, held_reads, history, lake_rows, repeated, settings, source_rows
from tests.integration.server_log import execute
from tests.kit.servers import Fresh, Server

ROWS = 2_000
CHANGED = ("shop.events", "ods.events_log")
LOGGED = Route("shop.events", "ods.events_log", Mode.CHANGELOG)


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> Server:
    fresh: Fresh = request.getfixturevalue(f"fresh_{request.param}")
    return fresh(gtid_mode="ON", enforce_gtid_consistency="ON") if request.param == "mysql8" else fresh()


def fill(server: Server) -> None:
    execute(
        server, "CREATE DATABASE shop CHARACTER SET utf8mb4", "CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, k INT, c VARCHAR(60))"
    )
    execute(server, "CREATE TABLE shop.events (id INT NOT NULL PRIMARY KEY, what VARCHAR(40))")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO shop.orders VALUES (%s, %s, %s)", [(i, i % 10, f"order {i}") for i in range(ROWS)])
        cursor.executemany("INSERT INTO shop.events VALUES (%s, %s)", [(i, f"event {i}") for i in range(ROWS)])
        connection.commit()


def some_changes(server: Server, seed: int) -> None:
    rng = random.Random(seed)
    with server.connect() as connection, connection.cursor() as cursor:
        for table, column in (("orders", "k"), ("events", "what")):
            for _ in range(20):
                number = rng.randrange(2 * ROWS)
                match rng.randrange(4):
                    case 0:
                        cursor.execute(f"DELETE FROM shop.{table} WHERE id = %s", (number,))
                    case 1:
                        cursor.execute(f"UPDATE shop.{table} SET {column} = %s WHERE id = %s", (rng.randrange(99), number))
                    case 2:
                        cursor.execute(f"UPDATE IGNORE shop.{table} SET id = id + 100000 WHERE id = %s", (number,))
                    case _:
                        cursor.execute(f"REPLACE INTO shop.{table} (id, {column}) VALUES (%s, %s)", (number, rng.randrange(99)))
        connection.commit()


STATEMENTS = (
    "ALTER TABLE shop.orders ADD COLUMN note VARCHAR(20) NULL",
    "ALTER TABLE shop.orders ADD COLUMN size INT NOT NULL DEFAULT 7 AFTER id",
    "ALTER TABLE shop.orders MODIFY size BIGINT NOT NULL DEFAULT 7",
    "ALTER TABLE shop.orders DROP COLUMN c",
    "ALTER TABLE shop.orders CHANGE note remark VARCHAR(40) NULL",
    "ALTER TABLE shop.orders ADD COLUMN c INT NULL",
    "TRUNCATE TABLE shop.orders",
    "ALTER TABLE shop.events ADD COLUMN size INT NOT NULL DEFAULT 3",
    "TRUNCATE TABLE shop.events",
    "CREATE TABLE shop.late (id INT NOT NULL PRIMARY KEY, v INT)",
    "INSERT INTO shop.late VALUES (1, 1), (2, 2)",
    "RENAME TABLE shop.late TO shop.later",
    "CREATE TABLE shop.twin LIKE shop.orders",
    "INSERT INTO shop.twin (id, size) VALUES (1, 1), (2, 2)",
    "RENAME TABLE shop.orders TO shop.parked, shop.twin TO shop.orders",
    "DROP TABLE shop.parked",
)


def compare(server: Server, folder: Path) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES IN shop")
        tables = [name for (name,) in cursor.fetchall()]
    for table in tables:
        if table != "events":
            assert lake_rows(folder, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table
    assert folded(folder, CHANGED[1]) == source_rows(server, CHANGED[0])


@pytest.mark.timeout(600)
def test_every_statement_reaches_the_lake_in_its_place(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    wanted = settings(server, tmp_path, routes=[LOGGED])
    with Running(spark, wanted) as running:
        running.settled()
        for number, statement in enumerate(STATEMENTS):
            some_changes(server, 2 * number)
            execute(server, statement)
            some_changes(server, 2 * number + 1)
            if number % 3 == 2:
                running.settled()
                compare(server, tmp_path)
        running.settled()
        compare(server, tmp_path)
    # All of it once more, by one that starts when the statements lie behind.
    some_changes(server, 1_000)
    execute(server, "ALTER TABLE shop.orders ADD COLUMN last INT NULL", "TRUNCATE TABLE shop.events")
    some_changes(server, 1_001)
    with Running(spark, wanted) as running:
        running.settled()
    compare(server, tmp_path)


@pytest.mark.timeout(600)
def test_statements_while_tables_are_copied_lose_nothing(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    with Running(spark, settings(server, tmp_path, routes=[LOGGED], rows_per_chunk=100, chunks_at_once=1)) as running:
        for number, statement in enumerate(STATEMENTS):
            some_changes(server, number)
            epoch = running.pipeline.progress.epoch
            running.wait_for(lambda before=epoch: running.pipeline.progress.epoch > before)
            execute(server, statement)
        some_changes(server, 99)
        running.settled()
    compare(server, tmp_path)


@pytest.mark.timeout(300)
def test_a_statement_that_rewrites_stored_rows_copies_the_table_again(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    with Running(spark, settings(server, tmp_path)) as running:
        running.settled()
        execute(server, "ALTER TABLE shop.orders MODIFY k VARCHAR(20) NULL", "INSERT INTO shop.orders VALUES (-1, 'x', 'y')")
        running.settled()
    assert lake_rows(tmp_path, "ods.shop_orders") == source_rows(server, "shop.orders")


@pytest.mark.timeout(300)
def test_what_the_lake_can_not_hold_sets_its_table_aside_with_the_statement(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    with Running(spark, settings(server, tmp_path)) as running:
        running.settled()
        execute(server, "ALTER TABLE shop.orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)", "INSERT INTO shop.events VALUES (-1, 'x')")
        running.settled()
        (why,) = running.pipeline.progress.aside.values()
    assert "ods.shop_orders" in why
    assert "DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)" in why
    assert "--recopy" in why
    assert lake_rows(tmp_path, "ods.shop_events") == source_rows(server, "shop.events")


@pytest.mark.timeout(300)
def test_a_change_table_tells_each_change_with_its_kind_and_place(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    with Running(spark, settings(server, tmp_path, routes=[LOGGED])) as running:
        running.settled()
        execute(
            server,
            "INSERT INTO shop.events VALUES (-1, 'a'), (-2, 'b')",
            "UPDATE shop.events SET what = 'c' WHERE id = -1",
            "UPDATE shop.events SET id = -3 WHERE id = -2",
            "DELETE FROM shop.events WHERE id = -1",
            "TRUNCATE TABLE shop.events",
            "INSERT INTO shop.events VALUES (1, 'z')",
        )
        running.settled()
    told = [(row["_op"], row["id"], row["what"]) for row in history(tmp_path, CHANGED[1])]
    assert sorted(told[:ROWS], key=repr) == sorted((("read", i, f"event {i}") for i in range(ROWS)), key=repr)
    assert told[ROWS:] == [
        ("insert", -1, "a"),
        ("insert", -2, "b"),
        ("update_before", -1, "a"),
        ("update_after", -1, "c"),
        ("update_before", -2, "b"),
        ("update_after", -3, "b"),
        ("delete", -1, "c"),
        ("truncate", None, None),
        ("insert", 1, "z"),
    ]
    changes = history(tmp_path, CHANGED[1])[ROWS:]
    places = [row["_position"] for row in changes if row["_op"] != "truncate"]
    assert all(isinstance(place, str) and ":" in place for place in places)
    assert all(row["_ts"] is not None for row in changes)
    assert len({(row["_seq"], row["_ordinal"]) for row in changes}) == len(changes)


@pytest.mark.timeout(300)
def test_tables_without_transactions_are_copied_while_they_are_written_to_and_may_change_their_engine(
    server: Server, tmp_path: Path, spark: Any
) -> None:
    fill(server)
    execute(server, "ALTER TABLE shop.orders ENGINE = MyISAM", "ALTER TABLE shop.events ENGINE = MyISAM")
    with Running(spark, settings(server, tmp_path, routes=[LOGGED])) as running:
        with repeated(lambda seed: some_changes(server, seed), pause_s=0.05):
            running.wait_for(lambda: [*running.pipeline.progress.phases.values()] == ["released"] * 2)
            # The first is copied again, by another kind of read.
            execute(server, "ALTER TABLE shop.orders ENGINE = InnoDB", "ALTER TABLE shop.orders ADD COLUMN size INT NOT NULL DEFAULT 7")
            execute(
                server, "CREATE TABLE shop.late (id INT NOT NULL PRIMARY KEY, v INT) ENGINE = MyISAM", "INSERT INTO shop.late VALUES (1, 1)"
            )
            running.wait_for(lambda: running.pipeline.progress.phases.get("shop.late") == "released")
        running.settled()
    compare(server, tmp_path)


@pytest.mark.timeout(300)
def test_statements_that_look_as_if_they_changed_nothing_are_followed(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    execute(server, "CREATE TABLE shop.twice (id INT NOT NULL PRIMARY KEY, x INT)", "INSERT INTO shop.twice VALUES (1, 1), (2, 1), (50, 3)")
    execute(server, "CREATE TABLE shop.parts LIKE shop.twice", "INSERT INTO shop.parts SELECT * FROM shop.twice")
    execute(
        server,
        "CREATE TABLE shop.computed (id INT NOT NULL PRIMARY KEY,"
        " b VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, g INT AS (b = 'X') VIRTUAL)",
        "INSERT INTO shop.computed (id, b) VALUES (1, 'x'), (2, 'X')",
        "CREATE TABLE shop.computed_too (id INT NOT NULL PRIMARY KEY, d DATETIME, g VARCHAR(40) AS (CONCAT(d)) STORED)",
        "INSERT INTO shop.computed_too (id, d) VALUES (1, '2024-01-02 03:04:05')",
        "CREATE TABLE shop.rounded (id INT NOT NULL PRIMARY KEY, f DOUBLE)",
        "INSERT INTO shop.rounded VALUES (1, 1.26)",
        "CREATE TABLE shop.from_nothing (id INT NOT NULL PRIMARY KEY, a INT, g INT AS (a + 1) VIRTUAL)",
        "INSERT INTO shop.from_nothing (id, a) VALUES (1, 1)",
    )
    with Running(spark, settings(server, tmp_path, routes=[LOGGED])) as running:
        running.settled()
        execute(server, "ALTER TABLE shop.orders DROP COLUMN c, ADD COLUMN c VARCHAR(60)", "INSERT INTO shop.orders VALUES (-1, 0, 'new')")
        # Columns that a statement does not name are computed anew, and numbers are rounded.
        execute(
            server,
            "ALTER TABLE shop.computed MODIFY b VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "ALTER TABLE shop.computed_too MODIFY d DATETIME(3)",
            "ALTER TABLE shop.rounded MODIFY f DOUBLE(10, 1), ALGORITHM = COPY",
        )
        if server.kind == "mariadb":
            execute(server, "ALTER TABLE shop.from_nothing DROP COLUMN a, ADD COLUMN a INT")
            # Rows that do not fit are gone, and no event says so.
            execute(server, "ALTER IGNORE TABLE shop.twice ADD UNIQUE (x)")
            execute(server, "ALTER IGNORE TABLE shop.parts PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))")
        else:
            execute(
                server,
                "SET SESSION default_collation_for_utf8mb4 = utf8mb4_general_ci",
                "ALTER TABLE shop.twice ADD COLUMN s VARCHAR(10) CHARACTER SET utf8mb4",
            )
            execute(server, "ALTER TABLE shop.twice ADD COLUMN copied_again INT NOT NULL DEFAULT 9")
        running.settled()
        execute(server, "ALTER TABLE shop.orders DROP COLUMN k, ADD COLUMN k INT NOT NULL DEFAULT 0 AFTER id")
        running.settled()
    compare(server, tmp_path)


@pytest.mark.timeout(300)
def test_rows_below_what_is_wanted_of_a_table_are_not_read_with_its_new_shape(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read of another table has the log read from far back when both are adopted by one epoch."""
    server = fresh_mariadb()
    fill(server)
    with (
        held_reads("long", monkeypatch) as released,
        Running(spark, settings(server, tmp_path, routes=[LOGGED], interval_s=1.0)) as running,
    ):
        running.settled()
        execute(server, "CREATE TABLE shop.long (id INT NOT NULL PRIMARY KEY)", "INSERT INTO shop.long VALUES (1)")
        readings = running.pipeline.ledger.tables.readings
        running.wait_for(lambda: any(one.launch.incarnation.table.name == "long" for one in readings()))
        captured = running.pipeline.progress.captured
        execute(server, "INSERT INTO shop.orders VALUES (-1, 0, 'before')")
        running.wait_for(lambda: running.pipeline.ledger.upto > captured)
        execute(server, "ALTER TABLE shop.orders ADD COLUMN n INT NOT NULL DEFAULT 5")
        running.wait_for(lambda: any(one.launch.incarnation.table.name == "orders" and one.report is not None for one in readings()))
        released.set()
        running.settled()
    compare(server, tmp_path)
