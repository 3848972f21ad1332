"""What a driver holds and what it guards, on a real server and a real lake. Tasks run in the test's process, without Spark."""

from __future__ import annotations

import gc
import os
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.listener_state import write_state
from snowmelt.commit.listeners import Period
from snowmelt.commit.records import Intent, StagedName
from snowmelt.databases.mysql.read.watched import Watch
from snowmelt.driving import boot
from snowmelt.driving.steps import DONES, Put
from snowmelt.engine.driver import cleaning
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import BEFORE_DONE
from snowmelt.engine.tasks import chunk, log
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.log import LogTask
from snowmelt.errors import Fenced, InvalidConfig, Unavailable
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.status import read_status
from snowmelt.store.generations import take_generation
from snowmelt.store.objects import open_store
from tests.integration.driver_process import DriverProcess
from tests.integration.paimon_tables import alter
from tests.integration.running import Running, changed, held_reads, lake_rows, run_tasks_here, settings, source_rows
from tests.kit.servers import Server

TABLES = int(os.environ.get("SNOWMELT_DROPPED_TABLES", "20"))
"""How many tables are made, copied and dropped. The suite takes a few; `SNOWMELT_DROPPED_TABLES=1000` takes many."""
AT_ONCE = 20

Database = Callable[[Server], str]


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks_here(monkeypatch)


def execute(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def held_by(root: object) -> Iterator[tuple[object, str]]:
    """Every object that `root` holds, with the way to it. Code, classes and modules are not searched: they are not the driver's."""
    seen = {id(root)}
    waiting: deque[tuple[object, str]] = deque([(root, type(root).__name__)])
    while waiting:
        one, way = waiting.popleft()
        yield one, way
        if isinstance(one, types.FunctionType):
            held: list[Any] = [one.__closure__, one.__defaults__, one.__kwdefaults__]
        elif isinstance(one, type | types.ModuleType | types.CodeType | types.FrameType | types.TracebackType):
            continue
        elif isinstance(one, dict):
            # The collector does not tell of keys that are texts.
            held = [*list(one.keys()), *list(one.values())]
        else:
            held = gc.get_referents(one)
        for found in held:
            if id(found) not in seen and not (isinstance(found, dict) and "__builtins__" in found):
                seen.add(id(found))
                waiting.append((found, f"{way}.{type(found).__name__}"))


def names_held(root: object, part: str) -> list[str]:
    """Where texts with `part` in them are held."""
    texts = ((one, way) for one, way in held_by(root) if isinstance(one, str | bytes))
    return [f"{way}: {one!r}"[-300:] for one, way in texts if part in (one if isinstance(one, str) else one.decode(errors="replace"))]


@pytest.mark.timeout(300 + 2 * TABLES)
def test_nothing_is_kept_of_tables_that_were_made_copied_and_dropped(mariadb: Server, database: Database, tmp_path: Path) -> None:
    shop = database(mariadb)
    execute(mariadb, f"CREATE TABLE {shop}.stays (id INT PRIMARY KEY, v INT)")
    with Running(None, settings(mariadb, tmp_path, tables=[f"{shop}.*"], rows_per_chunk=2)) as running:
        running.settled()
        for first in range(0, TABLES, AT_ONCE):
            names = [f"{shop}.leaves_{number}" for number in range(first, min(first + AT_ONCE, TABLES))]
            for name in names:
                execute(mariadb, f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2), (3, 3)")
            running.settled()
            assert len(running.pipeline.progress.phases) == 1 + len(names)
            for name in names:
                execute(mariadb, f"DROP TABLE {name}")
            running.settled()
        # The log's last segments, and shapes, go with later epochs.
        for number in range(10):
            execute(mariadb, f"REPLACE INTO {shop}.stays VALUES (1, {number})")
            running.settled()
        ledger = running.pipeline.ledger
        assert list(ledger.snapshots) == list(ledger.watermarks) == [f"ods.{shop}_stays"]
        marks, ledger.last_commits = ledger.last_commits, {}
        assert len(marks) == 1 + TABLES, "the lake keeps their rows, and a table of such a name goes on behind its mark"
        try:
            assert names_held(running.pipeline, "leaves_") == []
        finally:
            ledger.last_commits = marks
    assert lake_rows(tmp_path, f"ods.{shop}_stays") == source_rows(mariadb, f"{shop}.stays")


class Shop:
    """A table with a few rows, and a pipeline of its database."""

    def __init__(self, server: Server, name: str, folder: Path) -> None:
        self.server = server
        self.name = name
        self.folder = folder
        self.target = f"ods.{name}_orders"
        execute(server, f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)")
        self.change(1, 2, 3)

    @cached_property
    def wanted(self) -> Settings:
        """Made once: that writes the password's file, which a running driver reads."""
        return settings(self.server, self.folder, tables=[f"{self.name}.*"])

    def change(self, *keys: int) -> None:
        execute(self.server, *(f"REPLACE INTO {self.name}.orders VALUES ({key}, {key})" for key in keys))

    def compare(self) -> None:
        assert lake_rows(self.folder, self.target) == source_rows(self.server, f"{self.name}.orders")


@pytest.fixture
def shop(mariadb: Server, database: Database, tmp_path: Path) -> Shop:
    return Shop(mariadb, database(mariadb), tmp_path)


@pytest.mark.timeout(300)
def test_a_driver_keeps_its_promises_from_its_first_epoch_over_a_restart(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """One story, because each start costs seconds: what is refused, what is kept, what is trimmed, what is promised."""
    lost: list[int] = []
    stale: list[str] = []

    def spoil(place: Any, task: Any, run: Callable[[Any, Any], Any]) -> Any:
        """The answer of one log task does not arrive, though its job ends well. Later one arrives that is of another epoch."""
        answer = run(place, task)
        if not isinstance(task, LogTask) or not answer.rows:
            return answer
        if not lost:
            lost.append(task.epoch)
            return None
        if not stale and task.epoch > lost[0] + 5:
            stale.extend(file.name for file in answer.message.files)
            return replace(answer, message=replace(answer.message, epoch=task.epoch - 1))
        return answer

    run_tasks_here(monkeypatch, spoil)
    # This process's clock is an hour behind the server's.
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    with Running(None, shop.wanted) as running:
        running.settled()
        for key in range(10, 30):
            shop.change(key)
            running.settled()
        assert lost
        assert stale
        shop.compare()
        # The driver knows these files by name and needs no sweep for them.
        lake = PaimonSink(shop.wanted.sink.warehouse, user="reader")
        running.wait_for(lambda: not set(stale).intersection(lake.staged(shop.target)))
        pipeline, store = running.pipeline, State(open_store(shop.folder / "state")).store
        assert pipeline.ledger.epoch > 20
        # Three summaries are kept, each of four epochs, and what lies behind the oldest of them.
        assert len(store.numbers("intent")) < 20 <= pipeline.ledger.epoch
        assert len(store.numbers("done")) < 20
        assert 1 <= len(store.numbers("summary")) <= 3
    promised_ms = watermark(shop)
    assert abs(promised_ms - real() * 1000) < 60_000, "by the server's clock"
    assert lake_watermark(shop) == promised_ms

    # The last driver has left a tag owed. The next one makes it.
    leave_a_tag_owed(shop)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with Running(None, changed(shop.wanted, tags=Period.DAY)) as running:
        shop.change(40, 41)
        running.settled()
        assert running.pipeline.ledger.listeners == ""
        assert len(lake_tags(shop)) == 1
        assert promised_ms <= watermark(shop) <= real() * 1000
        # A table that is emptied and made anew is copied again: until it is there nothing is promised.
        with held_reads("orders", monkeypatch) as released:
            execute(shop.server, f"RENAME TABLE {shop.name}.orders TO {shop.name}.away, {shop.name}.away TO {shop.name}.orders")
            running.wait_for(lambda: "discovered" in running.pipeline.progress.phases.values())
            running.wait_for(lambda: running.pipeline.ledger.open is None)
            assert running.pipeline.ledger.watermarks == {}
            assert lake_watermark(shop) is None
            released.set()
            running.settled()
        shop.change(50)
        running.settled()
        assert lake_watermark(shop) == watermark(shop) >= promised_ms
    shop.compare()
    assert {StagedName.parse(name).number for name in lake.staged(shop.target)}
    assert set(lake.staged(shop.target)) == lake.referenced(shop.target), "what the lost answer's job had staged is gone"


def watermark(shop: Shop) -> int:
    (table,) = read_status(shop.wanted).tables
    assert table.committed_ms is not None
    return table.committed_ms


def lake_watermark(shop: Shop) -> int | None:
    """As readers of Paimon see it."""
    table = PaimonSink(shop.wanted.sink.warehouse, user="reader").table(shop.target)
    found: int | None = table.snapshot_manager().get_latest_snapshot().watermark
    return found


def leave_a_tag_owed(shop: Shop) -> None:
    """As a driver does whose lake took no tags: an epoch is done, and its listeners' state says so."""
    state = State(open_store(shop.folder / "state"))
    ledger = state.load()
    empty = Intent(
        epoch=ledger.epoch + 1,
        generation=ledger.generation,
        nonce="owes",
        after=ledger.upto,
        upto=ledger.upto,
        time_ms=None,
        facts=(),
        entries=(),
        sequence_max=0,
        segment=ledger.segment,
    )
    assert state.put_intent(empty)
    ledger.apply_intent(empty)
    done = ledger.decide_done((), write_state({shop.target: 0}))
    state.act(Put(DONES, done.epoch, done))


def lake_tags(shop: Shop) -> dict[str, Any]:
    manager = PaimonSink(shop.wanted.sink.warehouse, user="reader").table(shop.target).tag_manager()
    return {name: manager.get(name) for name in manager.list_tags()}


@pytest.mark.timeout(300)
def test_a_tag_that_a_killed_driver_has_made_is_the_only_one_behind_its_roll_forward(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(None, shop.wanted) as running:
        running.settled()
    leave_a_tag_owed(shop)
    wanted = changed(shop.wanted, tags=Period.DAY)

    def refuse(*_: Any) -> int:
        raise Unavailable("the lake takes no tags")

    with monkeypatch.context() as patch:
        patch.setattr(PaimonSink, "tag", refuse)
        with Running(None, wanted) as running:
            shop.change(49)
            running.settled()
            assert running.pipeline.ledger.listeners == write_state({shop.target: 0}), "it is owed still"
    caplog.clear()
    shop.change(50, 51)
    killed = DriverProcess(wanted, shop.folder, BEFORE_DONE, interval_s=wanted.pace.interval_s)
    killed.wait_for_death()
    opened = State(open_store(shop.folder / "state")).load().open
    assert opened is not None
    ((name, made),) = lake_tags(shop).items()
    assert name == (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d")
    with Running(None, wanted) as running:
        running.wait_for(lambda: running.pipeline.ledger.done_epoch >= opened.epoch)
        shop.change(52)
        running.settled()
        assert running.pipeline.ledger.listeners == ""
        assert running.pipeline.ledger.snapshots[shop.target] > made.id
    assert lake_tags(shop) == {name: made}
    assert not [record for record in caplog.records if "tag" in record.getMessage()], "it was made once more, or could not be"
    # What readers find by its name is the table as it was with that epoch.
    lake = PaimonSink(wanted.sink.warehouse, user="reader")
    found = lake.read(shop.target, made.id, ["id"], lake.shares(shop.target, made.id))
    assert {key for batch in found for key in batch.column(0).to_pylist()} >= {1, 2, 3, 50}


@pytest.mark.timeout(300)
def test_a_read_that_is_answered_when_its_table_is_another_is_not_heard(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_reads("orders", monkeypatch) as released, Running(None, shop.wanted) as running:
        chunks = running.pipeline
        running.wait_for(lambda: chunks.driver is not None and chunks.driver.chunks._waiting)
        execute(shop.server, f"DROP TABLE {shop.name}.orders", f"CREATE TABLE {shop.name}.orders (id INT PRIMARY KEY, v INT)")
        shop.change(7)
        running.wait_for(lambda: any(table.incarnation.number > 1 for table in running.pipeline.ledger.tables))
        released.set()
        running.settled()
    shop.compare()


@pytest.mark.timeout(300)
def test_a_table_that_is_altered_while_it_is_read_is_read_again_after_that(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    end, rows = Watch._end, chunk.chunk_rows
    begun, ended = threading.Event(), threading.Event()

    def tell(watch: Watch, *rest: Any) -> None:
        end(watch, *rest)
        ended.set()

    def slow(*rest: Any, **more: Any) -> Any:
        if not begun.is_set():
            begun.set()
            ended.wait(120)
        return rows(*rest, **more)

    monkeypatch.setattr(Watch, "_end", tell)
    monkeypatch.setattr(chunk, "chunk_rows", slow)
    with Running(None, shop.wanted) as running:
        running.wait_for(begun.is_set)
        # Both wait until the read gives way, and fail if it does not.
        execute(
            shop.server,
            "SET SESSION lock_wait_timeout = 60",
            f"ALTER TABLE {shop.name}.orders ADD COLUMN w INT",
            f"INSERT INTO {shop.name}.orders VALUES (9, 9, 9)",
        )
        assert ended.wait(60)
        running.settled()
        assert running.pipeline.progress.aside == {}
    shop.compare()


@pytest.mark.timeout(300)
def test_a_driver_that_finds_a_newer_one_when_it_starts_does_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = boot.load, list[int]()

    def overtaken() -> Any:
        """After its own generation the driver loads the state, and a newer one comes."""
        loaded.append(1)
        if len(loaded) == 2:
            take_generation(open_store(shop.wanted.state), "newer")
        return (yield from load())

    monkeypatch.setattr(boot, "load", overtaken)
    pipeline = PipelineDriver(None, shop.wanted)
    with pytest.raises(Fenced):
        pipeline.run()
    assert len(loaded) == 2
    assert pipeline.driver is None, "it stopped before anything began"


def test_every_task_looks_for_the_drivers_store_before_it_does_anything(tmp_path: Path) -> None:
    driver = take_generation(open_store(str(tmp_path / "state")), "nonce")
    nothing: Any = None
    place = TaskContext(
        generation=driver.number,
        nonce=driver.nonce,
        state=tmp_path / "elsewhere",
        warehouse="",
        user="",
        source=nothing,
        identity=nothing,
        log=nothing,
    )
    for run in (chunk.run_chunk, log.run_log, cleaning.run_sweep):
        with pytest.raises(InvalidConfig, match="not shared"):
            run(place, nothing)


@pytest.mark.parametrize("running_on", [True, False], ids=["while it runs", "between two runs"])
def test_a_lake_table_that_another_program_makes_one_of_another_kind_is_set_aside_and_the_others_continue(
    mariadb: Server, database: Database, tmp_path: Path, running_on: bool
) -> None:
    name = database(mariadb)
    for table in ("spoiled", "healthy"):
        execute(mariadb, f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name}.{table} VALUES (1, 1)")
    wanted = settings(mariadb, tmp_path, tables=[f"{name}.*"])
    lake = PaimonSink(str(tmp_path / "lake"), user="other")

    def spoil() -> None:
        from pypaimon.schema.schema_change import SchemaChange

        alter(lake, f"ods.{name}_spoiled", SchemaChange.set_option("ignore-delete", "true"))
        for table in ("spoiled", "healthy"):
            execute(mariadb, f"INSERT INTO {name}.{table} VALUES (2, 2)")

    with Running(None, wanted) as running:
        running.settled()
        if running_on:
            spoil()
            running.settled()
    if not running_on:
        spoil()
    with Running(None, wanted) as running:
        running.settled()
        assert list(running.pipeline.progress.aside) == [f"{name}.spoiled"]
        assert "it has ignore-delete" in running.pipeline.progress.aside[f"{name}.spoiled"]
        assert lake_rows(tmp_path, f"ods.{name}_healthy") == source_rows(mariadb, f"{name}.healthy")
    with Running(None, wanted, recopy=[f"{name}.spoiled"]) as running:
        running.settled()
        assert running.pipeline.progress.aside == {}
    assert lake_rows(tmp_path, f"ods.{name}_spoiled") == source_rows(mariadb, f"{name}.spoiled")
