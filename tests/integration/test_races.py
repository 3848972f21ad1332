"""Races that were seen on real servers, Spark and lakes, each by an interleaving that is made by hand; in the end the lake is the source.

`docs/protocol_map.md` has the list of them, with what guards each.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from snowmelt.commit.records import Entry, Intent
from snowmelt.databases.mysql import database
from snowmelt.databases.mysql.read import shown
from snowmelt.databases.mysql.read.bounds import Chunk
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import sweep
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.tasks.chunk import ChunkAnswer
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Lane
from snowmelt.errors import Fenced
from snowmelt.planning.facts import OUTSIDE, Adopted
from tests.integration.dump import Dump, await_that
from tests.integration.killed import Process, executors_of, fill, finish_and_compare, under_load
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server, log_end, start_mariadb

ROWS = 1_000
WAIT_S_MAX = 240

Database = Callable[[Server], str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that can be made to wait for a replica after it has logged a transaction and before it shows it."""
    started = start_mariadb(
        tmp_path_factory.mktemp("races"), rpl_semi_sync_master_wait_point="AFTER_SYNC", rpl_semi_sync_master_timeout=600_000
    )
    yield started
    started.discard()


class Shop:
    """Two tables of one content: the lake has the rows of one and the changes of the other."""

    def __init__(self, server: Server, name: str, folder: Path) -> None:
        self.server = server
        self.name = name
        self.folder = folder
        for table in ("orders", "events"):
            self.execute(f"CREATE TABLE {name}.{table} (id INT NOT NULL PRIMARY KEY, v VARCHAR(40), k INT)")
            self.many(f"INSERT INTO {name}.{table} VALUES (%s, %s, %s)", [(10 * i, f"row {i}", i) for i in range(1, ROWS + 1)])

    def settings(self, **more: Any) -> Settings:
        routes = [Route(f"{self.name}.events", "ods.events", Mode.CHANGELOG), Route(f"{self.name}.orders", "ods.orders")]
        return settings(self.server, self.folder, routes=routes, tables=[f"{self.name}.*"], **{"rows_per_chunk": 250} | more)

    def execute(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def many(self, statement: str, rows: list[tuple[object, ...]]) -> None:
        with self.server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.executemany(statement, rows)
            connection.commit()

    def change(self, what: str) -> None:
        """One transaction that touches every chunk of both tables, and what lies outside of them."""
        with self.server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            for table in ("orders", "events"):
                cursor.execute(f"UPDATE {self.name}.{table} SET v = %s WHERE MOD(id, 70) = 0", (what,))
                cursor.execute(f"DELETE FROM {self.name}.{table} ORDER BY RAND(1) LIMIT 9")
                cursor.execute(f"UPDATE IGNORE {self.name}.{table} SET id = id + 1 WHERE MOD(id, 10) = 0 ORDER BY RAND(2) LIMIT 9")
                for id_ in ("MIN(id) - 7", "MAX(id) + 7"):
                    cursor.execute(f"INSERT INTO {self.name}.{table} SELECT {id_}, %s, 0 FROM {self.name}.{table}", (what,))
            connection.commit()

    def compare(self) -> None:
        assert lake_rows(self.folder, "ods.orders") == source_rows(self.server, f"{self.name}.orders")
        assert folded(self.folder, "ods.events") == source_rows(self.server, f"{self.name}.events")


@pytest.fixture
def shop(server: Server, database: Database, tmp_path: Path) -> Shop:
    return Shop(server, database(server), tmp_path)


@contextmanager
def nothing_becomes_visible(server: Server) -> Iterator[None]:
    """The server logs transactions and shows them when this is over: it waits for a replica that does not answer."""
    with server.connect() as admin, admin.cursor() as cursor:

        def replicas() -> int:
            cursor.execute("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")
            return int(cursor.fetchone()[1])

        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        # The server finds out that one is gone when it has something to send.
        before = replicas()
        replica = Dump(server, semi_sync=True)
        try:
            await_that(lambda: replicas() > before)
            yield
        finally:
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            replica.close()


@contextmanager
def logged_and_not_visible(shop: Shop) -> Iterator[None]:
    """A change of every chunk is in the log, and no SELECT shows it."""
    with Log(shop.server) as log:
        writer = threading.Thread(target=shop.change, args=("late",))
        with nothing_becomes_visible(shop.server):
            before = log.end()
            writer.start()
            await_that(lambda: log.end() > before)
            assert not [row for row in source_rows(shop.server, f"{shop.name}.orders") if row["v"] == "late"]
            yield
        writer.join()


class Log:
    def __init__(self, server: Server) -> None:
        self._connection = server.connect()

    def end(self) -> tuple[str, int]:
        with self._connection.cursor() as cursor:
            return log_end(cursor)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


class Late:
    """Answers of reads that `holds` chooses are on their way until `arrive`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holds: Callable[[ChunkAnswer], bool]) -> None:
        self.held: list[ChunkAnswer] = []
        self._arrived = False
        hear = Chunks.hear

        def hear_what_arrived(chunks: Chunks) -> None:
            answers = [*self.held, *chunks._waiting]
            self.held = [] if self._arrived else [answer for answer in answers if holds(answer)]
            chunks._waiting[:] = [answer for answer in answers if answer not in self.held]
            hear(chunks)

        monkeypatch.setattr(Chunks, "hear", hear_what_arrived)

    def arrive(self) -> None:
        self._arrived = True


def pass_epochs(running: Running, count: int, change: Callable[[str], None]) -> None:
    """So many epochs become done, each with a change."""
    for number in range(count):
        epoch = running.pipeline.progress.epoch
        change(f"epoch {number}")
        running.wait_for(lambda epoch=epoch: running.pipeline.progress.epoch > epoch)


# ---- where snapshot and log meet


@pytest.mark.timeout(300)
def test_a_transaction_that_is_logged_and_not_visible_while_chunks_are_read_is_not_lost(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1, A3: reads that were launched before it begin when it is logged, and epochs that have dropped it are done."""
    running = Running(spark, shop.settings())
    submit, starting = running.pipeline.resources.jobs.submit, []

    def start_late(lane: Lane, place: TaskContext, tasks: list[Any], *more: Any) -> None:
        if lane is Lane.CHUNKS and tasks[0].launch.ordinal > OUTSIDE:
            starting.append((place, tasks, *more))
        else:
            submit(lane, place, tasks, *more)

    monkeypatch.setattr(running.pipeline.resources.jobs, "submit", start_late)
    with running:
        running.wait_for(lambda: len(starting) == 2)
        with logged_and_not_visible(shop):
            captured = running.pipeline.progress.captured
            running.wait_for(lambda: running.pipeline.progress.captured > captured)
            running.wait_for(lambda: running.pipeline.progress.done_upto == running.pipeline.progress.captured)
            epoch = running.pipeline.progress.epoch
            monkeypatch.setattr(running.pipeline.resources.jobs, "submit", submit)
            for job in starting:
                submit(Lane.CHUNKS, *job)
            # They are adopted before the first SELECT shows what the log has.
            running.wait_for(lambda: running.pipeline.progress.epoch > epoch)
            assert not [row for row in source_rows(shop.server, f"{shop.name}.orders") if row["v"] == "late"]
        running.settled()
    assert [row for row in source_rows(shop.server, f"{shop.name}.orders") if row["v"] == "late"]
    shop.compare()


@pytest.mark.timeout(300)
def test_no_chunk_is_read_while_what_lies_before_the_captured_log_is_not_visible(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: the log is captured from behind such a transaction on, so that no epoch will ever bring it."""
    asked: list[object] = []
    ask = shown.newest_visible

    def count(*arguments: Any, **more: Any) -> object:
        asked.append(ask(*arguments, **more))
        return asked[-1]

    monkeypatch.setattr(shown, "newest_visible", count)
    late = ExitStack()
    late.enter_context(logged_and_not_visible(shop))
    with late, Running(spark, shop.settings()) as running:
        running.wait_for(lambda: len(asked) >= 5)
        launched = list(running.pipeline.ledger.tables.readings())
        late.close()
        running.settled()
    shop.compare()
    assert not launched


def test_a_row_whose_change_is_logged_and_not_visible_is_locked_until_it_is(shop: Shop) -> None:
    """So changes of one key become visible in the order of the log, whatever the order of others is."""
    with logged_and_not_visible(shop), shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
            cursor.execute(f"DELETE FROM {shop.name}.orders WHERE id = 70")


@pytest.mark.timeout(300)
def test_a_read_whose_answer_comes_while_log_tasks_run_is_adopted_by_a_later_epoch(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A1: the tasks of that epoch have dropped its changes already."""
    running = Running(spark, shop.settings())
    came: dict[str, int] = {}
    hear = Chunks.hear

    def hear_while_tasks_run(chunks: Chunks) -> None:
        job = running.driver.lane.running
        if job is not None:
            hear(chunks)
            for reading in running.pipeline.ledger.tables.readings():
                if reading.report is not None:
                    came.setdefault(reading.report.nonce, job.plan.epoch)

    monkeypatch.setattr(Chunks, "hear", hear_while_tasks_run)
    adopted: dict[str, int] = {}
    put = running.pipeline.resources.state.put_intent

    def put_and_note(intent: Intent) -> bool:
        adopted.update({fact.nonce: intent.epoch for fact in intent.facts if isinstance(fact, Adopted)})
        return put(intent)

    monkeypatch.setattr(running.pipeline.resources.state, "put_intent", put_and_note)
    with running:
        while set(running.pipeline.progress.phases.values()) != {"released"}:
            pass_epochs(running, 1, shop.change)
        monkeypatch.setattr(Chunks, "hear", hear)
        running.settled()
    # Both tables' outsides and four chunks each.
    assert len(adopted) >= 10
    assert all(came[nonce] < epoch for nonce, epoch in adopted.items())
    shop.compare()


@pytest.mark.timeout(300)
def test_a_read_that_waits_for_many_epochs_finds_its_log_and_its_files(shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A3, A4: all that these epochs need no more is let go of and cleaned meanwhile."""
    late = Late(monkeypatch, lambda answer: answer.launch.ordinal > OUTSIDE)
    with Running(spark, shop.settings(summary_every=1)) as running:
        running.wait_for(lambda: len(late.held) == 2)
        pass_epochs(running, 5, shop.change)
        late.arrive()
        running.settled()
    shop.compare()


@pytest.mark.timeout(300)
def test_rows_beyond_the_ends_that_come_before_the_table_is_split_are_not_lost(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, A13: they lie in no chunk, and epochs pass while the ends are read and while the rest is split."""
    late = Late(monkeypatch, lambda answer: answer.launch.ordinal == OUTSIDE)
    running = Running(spark, shop.settings())
    look = database.plan_chunks

    def look_late(*arguments: Any, **more: Any) -> Iterator[Chunk]:
        pass_epochs(running, 2, shop.change)
        return look(*arguments, **more)

    monkeypatch.setattr(database, "plan_chunks", look_late)
    with running:
        running.wait_for(lambda: len(late.held) == 2)
        pass_epochs(running, 3, shop.change)
        late.arrive()
        running.settled()
    shop.compare()


@pytest.mark.timeout(300)
def test_a_table_that_is_copied_again_keeps_no_row_that_is_gone_meanwhile(shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """L13: neither one that goes before it is read again nor one that goes afterwards."""
    with Running(spark, shop.settings()) as running:
        running.settled()
        late = Late(monkeypatch, lambda answer: answer.launch.ordinal > OUTSIDE)
        shop.execute(f"ALTER TABLE {shop.name}.orders MODIFY k VARCHAR(20) NULL", f"DELETE FROM {shop.name}.orders WHERE id % 30 = 0")
        running.wait_for(lambda: late.held)
        shop.execute(f"DELETE FROM {shop.name}.orders WHERE id % 40 = 0")
        pass_epochs(running, 2, shop.change)
        late.arrive()
        running.settled()
    shop.compare()


# ---- drivers


class Died(BaseException):
    """What a driver dies of here."""


def adopts_rows(intent: Intent) -> bool:
    return any(isinstance(fact, Adopted) and fact.ordinal > OUTSIDE for fact in intent.facts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("committed", [0, 1])
def test_chunks_of_a_driver_that_died_behind_its_intent_are_not_read_again(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    """L9: a row that is deleted in between would stay for ever, and in a change table all of them would be there twice."""
    older = Running(spark, shop.settings())
    lake = older.pipeline.resources.lake
    commit, tables = lake.commit, []

    def die(intent: Intent, entry: Entry, watermark_ms: int | None) -> int | None:
        if adopts_rows(intent):
            if len(tables) == committed:
                raise Died
            tables.append(entry.target)
        return commit(intent, entry, watermark_ms)

    monkeypatch.setattr(lake, "commit", die)
    with older:
        assert isinstance(older.stopped_by(), Died)
    shop.execute(*(f"DELETE FROM {shop.name}.{table} WHERE id % 30 = 0" for table in ("orders", "events")))
    with Running(spark, shop.settings()) as newer:
        newer.settled()
    shop.compare()
    reads = [row["id"] for row in history(shop.folder, "ods.events") if row["_op"] == "read"]
    assert len(reads) == len(set(reads))


@pytest.mark.timeout(300)
def test_the_files_of_a_slow_driver_are_there_when_it_wins_the_epoch_after_all(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3, A9: a newer driver has cleaned by then, and what it staged on another epoch than this is dropped."""
    older, newer = Running(spark, shop.settings()), Running(spark, shop.settings())
    sleeps, wakes = threading.Event(), threading.Event()
    put_older, put_newer = older.pipeline.resources.state.put_intent, newer.pipeline.resources.state.put_intent
    won: list[bool] = []

    def put_late(intent: Intent) -> bool:
        if adopts_rows(intent) and not sleeps.is_set():
            # Whoever is newer waits until nobody captures here.
            older.driver.recorder.stop()
            sleeps.set()
            assert wakes.wait(WAIT_S_MAX)
            won.append(put_older(intent))
            return won[-1]
        return put_older(intent)

    def put_behind_it(intent: Intent) -> bool:
        if not wakes.is_set():
            for target in sorted({table.target for table in newer.pipeline.ledger.tables}):
                sweep(newer.pipeline.resources.lake, target, newer.driver.letting_go.standing())
            wakes.set()
            assert isinstance(older.stopped_by(), Fenced)
            assert not put_newer(intent)
            return False
        return put_newer(intent)

    monkeypatch.setattr(older.pipeline.resources.state, "put_intent", put_late)
    monkeypatch.setattr(newer.pipeline.resources.state, "put_intent", put_behind_it)
    with older:
        older.wait_for(sleeps.is_set)
        shop.change("while it sleeps")
        with newer:
            newer.settled()
    assert won == [True]
    shop.compare()


# ---- Spark


@pytest.mark.timeout(600)
def test_executors_that_are_lost_while_tasks_run_lose_nothing(
    fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7, L8: what they read and wrote is no part of any epoch; the tasks that run instead have other names."""
    monkeypatch.setattr("tests.integration.killed.ROWS", 6_000)
    server = fresh_mariadb()
    fill(server)

    def reads_that_wait() -> int:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT 1 FROM `shop`.`orders`%'")
            return int(cursor.fetchone()[0])

    process = Process(server, tmp_path, master="local-cluster[2,1,1024]")

    try:
        with under_load(server):
            with server.connect() as locker, locker.cursor() as cursor:
                cursor.execute("LOCK TABLES shop.orders WRITE")
                await_that(lambda: reads_that_wait() > 0, seconds=WAIT_S_MAX)
                lost = executors_of(process._process.pid)
                assert lost
                for executor in lost:
                    os.kill(executor, signal.SIGKILL)
                cursor.execute("UNLOCK TABLES")
            process.wait_for(tmp_path / "released")
            # Tasks of the log run all the time now.
            os.kill(executors_of(process._process.pid)[0], signal.SIGKILL)
        finish_and_compare(server, tmp_path, process)
    finally:
        process.kill()
