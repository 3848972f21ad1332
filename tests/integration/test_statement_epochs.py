"""Statements share epochs where they can, and the log behind them does not wait for one interval after the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done
from snowmelt.engine.loop.log_lane import LogLane
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Incarnation
from tests.integration.running import Running, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

INTERVAL_S = 4.0
SCRATCH = 15


def say(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


class Planned:
    """When each epoch was planned, and how long after the one before was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited_s: list[float] = []
        start, apply, done = LogLane.start, Ledger.apply_done, [time.monotonic()]

        def started(lane: LogLane, plan: EpochPlan) -> None:
            self.waited_s.append(time.monotonic() - done[0])
            start(lane, plan)

        def over(ledger: Ledger, record: Done) -> list[Incarnation]:
            done[0] = time.monotonic()
            return apply(ledger, record)

        monkeypatch.setattr(LogLane, "start", started)
        monkeypatch.setattr(Ledger, "apply_done", over)


@pytest.mark.timeout(400)
def test_statements_share_epochs_and_wait_for_no_interval(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    say(server, "CREATE DATABASE shop", *(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v INT)" for name in ("orders", "items")))
    say(server, "INSERT INTO shop.orders VALUES (1, 1)", "INSERT INTO shop.items VALUES (1, 1)")
    planned = Planned(monkeypatch)
    with Running(spark, settings(server, tmp_path, interval_s=INTERVAL_S)) as running:
        running.settled()
        planned.waited_s.clear()
        for number in range(SCRATCH):
            say(server, f"CREATE TABLE shop.tmp{number} (id INT PRIMARY KEY)", f"DROP TABLE shop.tmp{number}")
        say(server, "INSERT INTO shop.orders VALUES (2, 2)")
        running.settled()
        assert len(planned.waited_s) <= 4, "scratch tables that nobody found cost no epochs of their own"
        planned.waited_s.clear()
        for number in range(3, 6):
            say(server, "TRUNCATE TABLE shop.orders", f"INSERT INTO shop.orders VALUES ({number}, {number})")
            say(
                server,
                f"ALTER TABLE shop.items ADD COLUMN c{number} INT",
                f"INSERT INTO shop.items VALUES ({number}, 1{', 1' * (number - 2)})",
            )
        running.settled()
        # What comes in the last epoch, behind all statements, is as any other change.
        assert planned.waited_s[:-1], "they need epochs of their own"
        assert max(planned.waited_s[1:-1], default=0.0) < INTERVAL_S / 2
    for name in ("orders", "items"):
        assert lake_rows(tmp_path, f"ods.shop_{name}") == source_rows(server, f"shop.{name}")
