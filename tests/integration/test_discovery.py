"""Tables are found whenever they come, and what became of them meanwhile stops nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt import budgets
from snowmelt.databases.mysql import placed
from snowmelt.engine.driver import discovery
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.model.table import TableId
from tests.integration.dump import logged_and_not_shown
from tests.integration.running import Running, folded, held_reads, lake_rows, repeated, settings, source_rows
from tests.integration.server_log import execute
from tests.kit.servers import Fresh, Server


def fill(server: Server) -> None:
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.a (id INT NOT NULL PRIMARY KEY, x INT)", "INSERT INTO shop.a VALUES (1, 1)")


def compare(server: Server, folder: Path, *tables: str) -> None:
    for table in tables:
        assert lake_rows(folder, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table


@contextmanager
def behind_each_read_of_the_catalogue(act: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real, count = placed.read_tables, iter(range(1000))

    def reading(*arguments: Any) -> Any:
        found = real(*arguments)
        act(next(count))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(placed, "read_tables", reading)
        yield


@contextmanager
def unread_catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Statements that call for it wait until the block is over."""
    with monkeypatch.context() as patch:
        patch.setattr(discovery.Discovery, "look", lambda _: None)
        yield


def counted(monkeypatch: pytest.MonkeyPatch, where: type, method: str) -> list[int]:
    """Grows with each call."""
    real, calls = getattr(where, method), list[int]()

    def call(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(where, method, call)
    return calls


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_what_happens_while_a_first_start_reads_the_catalogue_is_not_missed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = request.getfixturevalue(f"fresh_{kind}")()
    fill(server)
    execute(server, "CREATE TABLE shop.gone (id INT NOT NULL PRIMARY KEY)")
    made: list[str] = []

    def act(number: int) -> None:
        if number > 3:
            return
        made.append(f"late{number}")
        execute(
            server,
            f"CREATE TABLE shop.late{number} (id INT NOT NULL PRIMARY KEY)",
            f"INSERT INTO shop.late{number} VALUES (1), (2)",
            f"ALTER TABLE shop.a ADD COLUMN c{number} INT NULL",
            "DROP TABLE IF EXISTS shop.gone",
        )

    with behind_each_read_of_the_catalogue(act, monkeypatch), Running(spark, settings(server, tmp_path)) as running:
        running.settled()
        execute(server, "INSERT INTO shop.a (id, x) VALUES (2, 2)", *(f"INSERT INTO shop.{name} VALUES (3)" for name in made))
        running.settled()
    assert len(made) >= 3
    compare(server, tmp_path, "a", *made)


@pytest.mark.timeout(300)
def test_a_table_that_mysql_has_logged_and_does_not_show_yet_is_found(fresh_mysql8: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mysql8()
    fill(server)
    with Running(spark, settings(server, tmp_path)) as running:
        running.settled()
        # A statement is in the log, and sent, a second before the engine has it.
        execute(server, "SET GLOBAL binlog_group_commit_sync_delay = 1000000")
        execute(server, "CREATE TABLE shop.late (id INT NOT NULL PRIMARY KEY)")
        execute(server, "SET GLOBAL binlog_group_commit_sync_delay = 0", "INSERT INTO shop.late VALUES (1), (2)")
        running.settled()
    compare(server, tmp_path, "a", "late")


@pytest.mark.timeout(300)
def test_a_database_that_is_dropped_before_its_table_is_found_stops_nobody(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    fill(server)
    found, wanted = TableId("brief", "x"), settings(server, tmp_path, tables=["shop.*", "brief.*"], interval_s=3.0)

    def write(number: int) -> None:
        execute(server, f"INSERT INTO shop.a VALUES ({1000 + number}, 1)")

    with Running(spark, wanted) as running:
        running.settled()
        # So that the ledger is not at the log's end when the catalogue is read, and the table is not found yet when it is gone.
        with repeated(write, pause_s=0.02):
            execute(server, "CREATE DATABASE brief", "CREATE TABLE brief.x (id INT NOT NULL PRIMARY KEY)", "INSERT INTO brief.x VALUES (1)")
            running.wait_for(lambda: found in running.driver.discovery._catalogue.tables)
            execute(server, "DROP DATABASE brief")
        running.settled()
    compare(server, tmp_path, "a")


@pytest.mark.timeout(300)
def test_a_table_that_the_lake_can_not_have_and_that_was_made_later_stops_nobody(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_mariadb()
    fill(server)
    wanted = settings(server, tmp_path)
    with caplog.at_level(logging.WARNING):
        with Running(spark, wanted) as running:
            running.settled()
            execute(server, "CREATE TABLE shop.bad (id INT PRIMARY KEY, _seq INT)", "CREATE TABLE shop.`a b` (id INT PRIMARY KEY)")
            execute(
                server,
                "CREATE TABLE shop.child (id INT PRIMARY KEY) ENGINE = MyISAM",
                "CREATE TABLE shop.merged (id INT PRIMARY KEY) ENGINE = MRG_MyISAM UNION = (shop.child)",
            )
            execute(server, "CREATE TABLE shop.good (id INT PRIMARY KEY)", "INSERT INTO shop.good VALUES (1)")
            running.settled()
            execute(server, "CREATE TABLE shop.moved (id INT PRIMARY KEY)", "INSERT INTO shop.moved VALUES (1)")
            running.settled()
            execute(server, "RENAME TABLE shop.moved TO shop.`m b`", "ALTER TABLE shop.`m b` ADD COLUMN y INT NOT NULL DEFAULT 5")
            running.settled()
        for number in (2, 3):
            with Running(spark, wanted) as running:
                execute(server, f"INSERT INTO shop.a VALUES ({number}, 1)")
                running.settled()
    compare(server, tmp_path, "a", "good")
    left_out = {record.__dict__["table"] for record in caplog.records if record.message == "a table is left out"}
    assert left_out == {"shop.bad", "shop.a b", "shop.m b", "shop.merged", "shop.child"}


@pytest.mark.timeout(300)
def test_of_tables_that_come_together_and_go_to_one_target_the_first_gets_it_until_it_is_gone(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    fill(server)
    with Running(spark, settings(server, tmp_path, routes=[Route("shop.z*", "ods.one")])) as running:
        running.settled()
        with unread_catalogue(monkeypatch):
            execute(server, "CREATE TABLE shop.z1 (id INT NOT NULL PRIMARY KEY)", "INSERT INTO shop.z1 VALUES (1), (2)")
            execute(server, "CREATE TABLE shop.z2 (id INT NOT NULL PRIMARY KEY, q INT)", "INSERT INTO shop.z2 VALUES (1, 1), (3, 3)")
            running.wait_for(lambda: TableId("shop", "z2") in running.driver.known.shapes.touched)
        running.settled()
        execute(server, "DELETE FROM shop.z2 WHERE id = 1", "INSERT INTO shop.z1 VALUES (4)")
        running.settled()
        assert lake_rows(tmp_path, "ods.one") == source_rows(server, "shop.z1")
        execute(server, "DROP TABLE shop.z1")
        running.settled()
        execute(server, "INSERT INTO shop.z2 VALUES (5, 5)")
        running.settled()
        assert lake_rows(tmp_path, "ods.one") == source_rows(server, "shop.z2")


@pytest.mark.timeout(300)
def test_a_change_table_that_is_found_again_has_no_row_before_it_was_emptied(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for a replica, and so shows less than the lake has; a long read of another table keeps the log from there on."""
    server = fresh_mariadb(rpl_semi_sync_master_wait_point="AFTER_SYNC", rpl_semi_sync_master_timeout=600_000)
    fill(server)
    execute(server, "CREATE TABLE shop.ev (id INT NOT NULL PRIMARY KEY)", "INSERT INTO shop.ev VALUES (1), (2)")
    wanted = settings(server, tmp_path, routes=[Route("shop.ev", "ods.ev", Mode.CHANGELOG)])
    with held_reads("big", monkeypatch) as released, Running(spark, wanted) as running:
        pipeline = running.pipeline
        running.settled()
        execute(server, "CREATE TABLE shop.big (id INT NOT NULL PRIMARY KEY)", "INSERT INTO shop.big VALUES (1)")
        running.wait_for(lambda: list(pipeline.ledger.tables.readings()))
        with ExitStack() as stack:
            with unread_catalogue(monkeypatch):
                execute(server, "DROP TABLE shop.ev", "CREATE TABLE shop.ev (id INT NOT NULL PRIMARY KEY)")
                execute(server, "INSERT INTO shop.ev VALUES (7), (8)")
                place = stack.enter_context(logged_and_not_shown(server, "INSERT INTO shop.a VALUES (2, 2)"))
                relay = pipeline.driver.known.relay
                running.wait_for(lambda: (offset := relay.offset_of(place)) is not None and pipeline.ledger.upto >= offset)
            assert source_rows(server, "shop.a") == [{"id": 1, "x": 1}]
            running.wait_for(lambda: pipeline.ledger.tables.get(TableId("shop", "ev")))
            # What the server shows is asked for as often as it takes; that no read comes of it can't be waited for, but a few answers can.
            asked = counted(monkeypatch, Chunks, "_visible")
            running.wait_for(lambda: len(asked) > 5 or pipeline.progress.phases["shop.ev"] == "released")
        released.set()
        running.settled()
    assert folded(tmp_path, "ods.ev") == source_rows(server, "shop.ev")


@pytest.mark.timeout(300)
def test_a_table_that_was_made_anew_without_a_key_while_nobody_ran_is_left_out(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    fill(server)
    execute(server, "CREATE TABLE shop.b (id INT NOT NULL PRIMARY KEY)")
    wanted = settings(server, tmp_path)
    with Running(spark, wanted) as running:
        running.settled()
    execute(
        server, "DROP TABLE shop.b", "CREATE TABLE shop.b (id INT)", "INSERT INTO shop.b VALUES (1)", "INSERT INTO shop.a VALUES (2, 2)"
    )
    with Running(spark, wanted) as running:
        running.settled()
        compare(server, tmp_path, "a")
        execute(server, "ALTER TABLE shop.b ADD PRIMARY KEY (id)", "INSERT INTO shop.b VALUES (2)")
        running.settled()
    compare(server, tmp_path, "a", "b")


@pytest.mark.timeout(300)
def test_a_pipeline_whose_only_table_is_away_starts_and_finds_it_when_it_is_back(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    fill(server)
    wanted = settings(server, tmp_path, tables=["shop.a"])
    with Running(spark, wanted) as running:
        running.settled()
    execute(server, "RENAME TABLE shop.a TO shop.away")
    with Running(spark, wanted) as running:
        running.settled()
        execute(server, "RENAME TABLE shop.away TO shop.a", "INSERT INTO shop.a VALUES (2, 2)")
        running.settled()
    compare(server, tmp_path, "a")


@pytest.mark.timeout(300)
def test_a_table_that_was_altered_while_nobody_ran_is_read_when_the_log_is_behind_that(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads of today's shape before would fail, or would not fit the lake, as often as there are epochs in between."""
    monkeypatch.setattr(budgets, "READS", replace(budgets.READS, tries_max=2))
    server = fresh_mariadb()
    fill(server)
    execute(server, "CREATE TABLE shop.big (id INT NOT NULL PRIMARY KEY, x INT)")
    execute(server, "INSERT INTO shop.big SELECT seq, seq FROM shop.seq_1_to_3000")
    wanted = settings(server, tmp_path, rows_per_chunk=100, chunks_at_once=1, interval_s=0.05)

    def is_copying(pipeline: PipelineDriver) -> bool:
        return pipeline.progress.chunks.get("shop.big", (0, None))[0] > 2

    PipelineDriver(spark, wanted).run(is_copying)
    for number in range(12):
        execute(server, f"ALTER TABLE shop.a ADD COLUMN c{number} INT NULL", f"UPDATE shop.a SET x = {number}")
        execute(server, "ALTER TABLE shop.big ADD COLUMN y INT NULL", "UPDATE shop.big SET x = x + 1, y = 1 WHERE id % 7 = 0")
        execute(server, "ALTER TABLE shop.big DROP COLUMN y")
    execute(server, "ALTER TABLE shop.big ADD COLUMN z INT NULL")
    with Running(spark, wanted) as running:
        running.settled()
    compare(server, tmp_path, "a", "big")
