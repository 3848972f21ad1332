"""A transaction that is larger than a task's share of the log is read by several, each of which writes its own keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.loop import log_lane
from snowmelt.engine.tasks.jobs import Jobs
from snowmelt.engine.tasks.log import LogTask
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

ROWS = 3_000
JOURNAL = Route("shop.journal", "ods.journal", Mode.CHANGELOG)


def change_much_at_once(server: Server) -> None:
    """Every row more than once, in one transaction of a few MB: what came last must win, whoever writes it."""
    with server.connect(database="shop") as connection, connection.cursor() as cursor:
        connection.begin()
        for table in ("orders", "journal"):
            cursor.execute(f"INSERT INTO shop.{table} SELECT seq, 'new', REPEAT('x', 500) FROM seq_{ROWS + 1}_to_{2 * ROWS}")
            cursor.execute(f"UPDATE shop.{table} SET v = 'first', pad = REPEAT('y', 500)")
            cursor.execute(f"UPDATE shop.{table} SET id = id + 100000 WHERE id % 3 = 0")
            cursor.execute(f"DELETE FROM shop.{table} WHERE id % 5 = 0")
            cursor.execute(f"UPDATE shop.{table} SET v = CONCAT('last ', id) WHERE id % 2 = 0")
        cursor.execute("UPDATE shop.names SET v = v + 1")
        cursor.execute("UPDATE shop.names SET v = v * 10")
        connection.commit()


@pytest.mark.timeout(600)
def test_a_large_transaction_is_written_by_several_tasks_and_its_last_change_of_a_key_wins(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        # Sequences are tables of the database that is in use.
        cursor.execute("USE shop")
        for table in ("orders", "journal"):
            cursor.execute(f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v VARCHAR(30), pad VARCHAR(500))")
            cursor.execute(f"INSERT INTO shop.{table} SELECT seq, 'old', '' FROM seq_1_to_{ROWS}")
        cursor.execute("CREATE TABLE shop.names (name VARCHAR(20) NOT NULL PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO shop.names SELECT CONCAT('Name ', seq), seq FROM seq_1_to_500")
        connection.commit()
    monkeypatch.setattr(log_lane, "_SHARE_BYTES_MIN", 1 << 18)
    given: list[LogTask] = []
    submit = Jobs.submit

    def spy(self: Any, lane: Any, place: Any, work: Any, *more: Any) -> None:
        given.extend(one for one in work if isinstance(one, LogTask))
        submit(self, lane, place, work, *more)

    monkeypatch.setattr(Jobs, "submit", spy)
    with Running(spark, settings(server, tmp_path, routes=[JOURNAL], log_tasks=3)) as running:
        running.settled()
        change_much_at_once(server)
        running.settled()
    shared = [task for task in given if task.parts > 1]
    assert {task.part for task in shared} == {0, 1, 2}, "nothing was shared, so nothing is proven"
    for table in ("orders", "names"):
        assert lake_rows(tmp_path, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table
    assert folded(tmp_path, "ods.journal") == source_rows(server, "shop.journal")
    numbers = [(row["_seq"], row["_ordinal"]) for row in history(tmp_path, "ods.journal") if row["_op"] != "read"]
    assert len(numbers) == len(set(numbers)) > 4 * ROWS, "a change came twice, or is missing"
