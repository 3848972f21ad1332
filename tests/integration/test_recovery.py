"""Recovery of in-flight log, and of what a recovery committed, by other numbers of tasks: the three phases of FLINK-39519's own test.

The segments are the smallest that hold a record's eighth, the pool is at its minimum, and records fill the log faster than epochs
cover it, so that each commit leaves log in flight.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.loop import log_lane
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.engine.tasks.log import LogTask
from snowmelt.relay.limits import POOL_BYTES_MIN, Limits
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

SEGMENT_BYTES = 8192
RECORD_BYTES = 8 * SEGMENT_BYTES
LOGGED = Route("shop.events", "ods.events_log", Mode.CHANGELOG)


def load(server: Server, chance: random.Random, *, first: int, records: int, large: bool) -> int:
    """Transactions of one to forty records, or only of a few, some rolled back; how many changes of shop.events they made.

    A large one fills an epoch, which is one range of several tasks. Small ones without their texts have several cuts in an epoch, which is
    several ranges: a cut comes after a MiB that is stored, and texts are not stored.
    """
    events = 0
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_annotate_row_events = %s", (large,))
        number = first
        while number < first + records:
            made = 0
            connection.begin()
            for _ in range(chance.choice([1, 3, 40 if large else 5])):
                table = chance.choice(["orders", "events"])
                cursor.execute(f"INSERT INTO shop.{table} VALUES (%s, %s)", (number, chance.randbytes(RECORD_BYTES)))
                made += table == "events"
                number += 1
            if chance.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                events += made
    return events


def test_what_a_recovery_committed_is_recovered_by_other_numbers_of_tasks(
    spark: Any, fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(39519)
    monkeypatch.setattr(log_lane, "_SHARE_BYTES_MIN", 1 << 16)
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for table in ("orders", "events"):
            cursor.execute(f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v LONGBLOB)")
    limits = Limits(prefilter_bytes=SEGMENT_BYTES, pool_bytes=POOL_BYTES_MIN, assembly_bytes=RECORD_BYTES // 2)
    submit = Jobs.submit
    ran: list[list[LogTask]] = []
    """The tasks of each log job of a phase, which have all answered."""

    def noted(jobs: Jobs, lane: Lane, place: Any, tasks: Any, run: Any, done: Any, failed: Any) -> None:
        def told(answers: list[Any]) -> None:
            # A driver that starts asks its workers in this lane, too.
            if lane is Lane.LOG and all(isinstance(task, LogTask) for task in tasks):
                assert len(answers) == len(tasks)
                ran.append(list(tasks))
            done(answers)

        submit(jobs, lane, place, tasks, run, told, failed)

    monkeypatch.setattr(Jobs, "submit", noted)

    def check_tasks(number: int) -> tuple[int, int]:
        """The tasks of a log job share its log without gap or overlap, over as many tasks as the phase was told to have. The most ranges
        of a job, and the most tasks of a range."""
        asked = wanted[number].pace.log_tasks
        assert asked is not None
        assert ran
        ranges = [sorted({(task.after, task.upto) for task in tasks}) for tasks in ran]
        for tasks, shares in zip(ran, ranges, strict=True):
            assert all(before[1] == after[0] for before, after in pairwise(shares)), "a gap or an overlap"
            for share in shares:
                parts = [(task.part, task.parts) for task in tasks if (task.after, task.upto) == share]
                assert sorted(parts) == [(part, len(parts)) for part in range(len(parts))]
        # A transaction that is larger than a share is one range of several tasks, so there may be more tasks than asked for.
        assert max(map(len, ran)) >= asked if asked > 1 else {len(tasks) for tasks in ran} == {1}, (asked, ranges)
        most = max(map(len, ranges)), max(task.parts for tasks in ran for task in tasks)
        ran.clear()
        return most

    wanted = [
        settings(server, tmp_path, routes=[LOGGED], epoch_bytes=6 << 20, log_tasks=count, limits=limits)
        for count in chance.sample(range(1, 5), 4)
    ]
    with Running(spark, wanted[0]) as running:
        running.settled()
    ran.clear()
    changes = load(server, chance, first=0, records=900, large=False)

    def run_until(number: int, commits: int) -> tuple[int, int]:
        """A phase: commits while log is in flight, before and after."""
        with Running(spark, wanted[number]) as running:
            running.wait_for(lambda: running.pipeline.progress.captured)
            before = running.pipeline.progress.epoch
            running.wait_for(lambda: running.pipeline.progress.epoch >= before + commits)
        left = running.pipeline.progress
        assert left.captured > left.done_upto, "no log was in flight"
        return check_tasks(number)

    assert run_until(1, commits=1) == (1, 1)
    ranges, _ = run_until(2, commits=1)
    assert ranges == wanted[2].pace.log_tasks == 4, "no epoch was divided into a range for each task"
    changes += load(server, chance, first=10_000, records=150, large=True)
    with Running(spark, wanted[3]) as running:
        running.wait_for(lambda: running.pipeline.progress.captured)
        before = running.pipeline.progress.epoch
        running.settled()
        assert running.pipeline.progress.epoch >= before + 5
    _, parts = check_tasks(3)
    assert parts > 1, "no range was one of several tasks"
    assert lake_rows(tmp_path, "ods.shop_orders") == source_rows(server, "shop.orders")
    assert folded(tmp_path, "ods.events_log") == source_rows(server, "shop.events")
    assert len(history(tmp_path, "ods.events_log")) == changes
