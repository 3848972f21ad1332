"""Tables are found whenever they come, and what became of them meanwhile stops nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine import discovery, retries
from snowmelt.engine.pipeline import Pipeline
from snowmelt.model.table import TableId
from tests.integration.running import Running, lake_rows, repeated, settings, source_rows
from tests.integration.test_capture import execute
from tests.servers import Fresh, Server


def fill(server: Server) -> None:
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.a (id INT NOT NULL PRIMARY KEY, x INT)", "INSERT INTO shop.a VALUES (1, 1)")


def compare(server: Server, folder: Path, *tables: str) -> None:
    for table in tables:
        assert lake_rows(folder, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table


@contextmanager
def behind_each_read_of_the_catalogue(act: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real, count = discovery.read_tables, iter(range(1000))

    def reading(*arguments: Any) -> Any:
        found = real(*arguments)
        act(next(count))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(discovery, "read_tables", reading)
        yield


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
            running.wait_for(lambda: found in running.pipeline._discovery._catalogue.tables)
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
            execute(server, "CREATE TABLE shop.good (id INT PRIMARY KEY)", "INSERT INTO shop.good VALUES (1)")
            running.settled()
        for number in (2, 3):
            with Running(spark, wanted) as running:
                execute(server, f"INSERT INTO shop.a VALUES ({number}, 1)")
                running.settled()
    compare(server, tmp_path, "a", "good")
    left_out = {record.__dict__["table"] for record in caplog.records if record.message == "a table is left out"}
    assert left_out == {"shop.bad", "shop.a b"}


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
    monkeypatch.setattr(retries, "FAILED_MAX", 2)
    server = fresh_mariadb()
    fill(server)
    execute(server, "CREATE TABLE shop.big (id INT NOT NULL PRIMARY KEY, x INT)")
    execute(server, "INSERT INTO shop.big SELECT seq, seq FROM shop.seq_1_to_3000")
    wanted = settings(server, tmp_path, rows_per_chunk=100, chunks_at_once=1, interval_s=0.05)

    def is_copying(pipeline: Pipeline) -> bool:
        return pipeline.progress.chunks.get("shop.big", (0, None))[0] > 2

    Pipeline(spark, wanted).run(is_copying)
    for number in range(12):
        execute(server, f"ALTER TABLE shop.a ADD COLUMN c{number} INT NULL", f"UPDATE shop.a SET x = {number}")
        execute(server, "ALTER TABLE shop.big ADD COLUMN y INT NULL", "UPDATE shop.big SET x = x + 1, y = 1 WHERE id % 7 = 0")
        execute(server, "ALTER TABLE shop.big DROP COLUMN y")
    execute(server, "ALTER TABLE shop.big ADD COLUMN z INT NULL")
    with Running(spark, wanted) as running:
        running.settled()
    compare(server, tmp_path, "a", "big")
