"""A pipeline that runs in a thread of the test's process, on a Spark session that tests share."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.preflight import Cascades
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.routes import Route
from snowmelt.engine.driver.settings import LogSettings, PaceSettings, Settings, SinkSettings
from snowmelt.engine.loop.driver import DriverLoop
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.errors import SnowmeltError, present
from snowmelt.model.table import TableId
from snowmelt.planning.asides import Requests
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.kit.servers import Server

WAIT_S_MAX = 240
SYSTEM = ("_seq", "_op", "_position", "_ts", "_ordinal", "_day", "_month", "_partition")


def settings(server: Server, folder: Path, *, routes: Sequence[Route] = (), refuse_cascades: bool = True, **more: Any) -> Settings:
    """Of a pipeline of all tables of the database shop, with small chunks and short epochs."""
    # In a file, because Spark's workers were started before this server was.
    secret = folder / "password"
    secret.write_text(server.password)
    source = MySqlOptions(
        host=server.host, port=server.port, password=Secret(f"file:{secret}"), tls=Tls.DISABLED, allow_password_to_unverified_server=True
    )
    cascades = Cascades.REFUSE if refuse_cascades else Cascades.IGNORE
    given = {"tables": ["shop.*"], "interval_s": 0.2, "rows_per_chunk": 500, "summary_every": 4, **more}
    wanted = Settings(
        name="test",
        state=folder / "state",
        sink=SinkSettings(warehouse=str(folder / "lake")),
        source=MySql(options=source, cascades=cascades),
        tables=(),
        routes=routes,
    )
    return changed(wanted, **given)


def changed(wanted: Settings, **more: Any) -> Settings:
    """The same but for some fields, also of its groups."""
    for group, kind in (("sink", SinkSettings), ("pace", PaceSettings), ("log", LogSettings)):
        names = more.keys() & {one.name for one in fields(kind)}
        if names:
            part = replace(getattr(wanted, group), **{name: more.pop(name) for name in names})
            wanted = replace(wanted, **{group: part})
    return replace(wanted, **more)


class Running:
    """`settled` waits until the lake has all that the database has; leaving the block ends the driver as Ctrl-C does."""

    def __init__(self, spark: Any, wanted: Settings, *, recopy: Iterable[str] = ()) -> None:
        self.pipeline = PipelineDriver(spark, wanted, Requests(TableId(*name.split(".")) for name in recopy))
        self._asked = threading.Event()
        self._current = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline")

    def _run(self) -> None:
        try:
            self.pipeline.run(self._until)
        except BaseException as error:
            self._error = error

    def _until(self, pipeline: PipelineDriver) -> bool:
        if self._asked.is_set() and pipeline.current():
            self._asked.clear()
            self._current.set()
        return False

    @property
    def driver(self) -> DriverLoop:
        """The driver, once it is complete."""
        self.wait_for(lambda: self.pipeline.driver is not None)
        return present(self.pipeline.driver, "a driver that is complete")

    def settled(self) -> None:
        self._current.clear()
        self._asked.set()
        self.wait_for(self._current.is_set)

    def wait_for(self, condition: Any) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition():
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                pytest.fail(f"nothing happened; the pipeline is at {self.pipeline.progress}")
            time.sleep(0.02)

    def stopped_by(self) -> BaseException:
        """The error that ends it."""
        self._thread.join(WAIT_S_MAX)
        assert self._error is not None, "it did not end"
        return self._error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.pipeline.stop()
        self._thread.join(WAIT_S_MAX)


def run_tasks_here(monkeypatch: pytest.MonkeyPatch, run: Callable[[Any, Any, Callable[[Any, Any], Any]], Any] | None = None) -> None:
    """Tasks run in the test's process instead of in Spark's workers; a pipeline is then opened with None for Spark. `run` is called with a
    task's place, the task and its function, and answers for it; nothing it answers (None) is no answer."""

    def collect(jobs: Jobs, lane: Lane, place: Any, tasks: list[Any], function: Callable[[Any, Any], Any]) -> list[Any]:
        answers: list[Any] = []
        for task in tasks:
            try:
                answers.append(function(place, task) if run is None else run(place, task, function))
            except SnowmeltError as error:
                # As behind pickling: frames hold writers, which no other thread may drop.
                answers.append(error.with_traceback(None))
        return [answer for answer in answers if answer is not None]

    monkeypatch.setattr(Jobs, "_collect", collect)


@contextmanager
def repeated(act: Callable[[int], None], *, pause_s: float) -> Iterator[None]:
    """While the block runs, in a thread: `act` with 0, 1, 2 and so on. What it raises is raised behind the block."""
    over = threading.Event()

    def work() -> None:
        for number in itertools.count():
            act(number)
            if over.wait(pause_s):
                return

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            yield
        finally:
            over.set()
        working.result()


@contextmanager
def held_reads(table: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Reads of a table take until the event is set, which happens behind the block at the latest."""
    hear, released = Chunks.hear, threading.Event()

    def heard(chunks: Chunks) -> None:
        held = [] if released.is_set() else [one for one in chunks._waiting if one.launch.incarnation.table.name == table]
        chunks._waiting[:] = [one for one in chunks._waiting if one not in held]
        hear(chunks)
        chunks._waiting.extend(held)

    with monkeypatch.context() as patch:
        patch.setattr(Chunks, "hear", heard)
        try:
            yield released
        finally:
            released.set()


Row = dict[str, object]


def lake_rows(folder: Path, target: str, *, system: bool = False) -> list[Row]:
    lake = PaimonSink(str(folder / "lake"), user="reader").table(target).copy({"read.native.enabled": "true"})
    builder = lake.new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
    kept = rows if system else [{name: value for name, value in row.items() if name not in SYSTEM} for row in rows]
    return sorted(kept, key=lambda row: repr(sorted(row.items())))


def source_rows(server: Server, table: str) -> list[Row]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return sorted(rows, key=lambda row: repr(sorted(row.items())))


def history(folder: Path, target: str) -> list[Row]:
    """The rows of a change table in the order of the changes."""
    rows = lake_rows(folder, target, system=True)
    return sorted(rows, key=lambda row: (row["_seq"], row["_ordinal"]))  # type: ignore[return-value, type-var, arg-type]


def folded(folder: Path, target: str, key: str = "id") -> list[Row]:
    """What a change table says that its source holds. Each change must fit what was there before it."""
    held: dict[object, Row] = {}
    for row in history(folder, target):
        content = {name: value for name, value in row.items() if name not in SYSTEM}
        match row["_op"]:
            case "truncate":
                held.clear()
            case "delete" | "update_before":
                before = held.pop(content[key])
                assert all(content[name] == value for name, value in before.items() if value is not None), (
                    "a change is missing, or came twice"
                )
            case _:
                assert content[key] not in held, "a row came twice"
                held[content[key]] = content
    return sorted(held.values(), key=lambda row: repr(sorted(row.items())))
