"""A pipeline that is killed again and again under load, and what must hold in the end."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.failpoints import FILES_STAGED, IN_TASKS, NAMES
from tests.integration.pipeline_process import settings
from tests.integration.running import folded, history, lake_rows, source_rows
from tests.kit.forked import Forked
from tests.kit.processes import children_of
from tests.kit.servers import Server

ROWS = 30_000
START_S_MAX = 240


def fill(server: Server) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, k INT, c VARCHAR(120), amount DECIMAL(12,2))")
        cursor.execute("CREATE TABLE shop.names (name VARCHAR(50) NOT NULL PRIMARY KEY, v INT)")
        cursor.execute("CREATE TABLE shop.pairs (a INT NOT NULL, b VARCHAR(20) NOT NULL, v BIGINT, PRIMARY KEY (a, b))")
        cursor.execute("CREATE TABLE shop.nothing (id BIGINT NOT NULL PRIMARY KEY, v TEXT)")
        cursor.execute("CREATE TABLE shop.journal (id INT NOT NULL PRIMARY KEY, change_number BIGINT NOT NULL)")
        cursor.executemany(
            "INSERT INTO shop.orders VALUES (%s, %s, %s, %s)", [(i, i % 1000, f"order {i}", i / 100) for i in range(1, ROWS + 1)]
        )
        cursor.executemany("INSERT INTO shop.names VALUES (%s, %s)", [(f"Näme {i}", i) for i in range(1000)])
        cursor.executemany("INSERT INTO shop.pairs VALUES (%s, %s, %s)", [(i % 7, f"b{i}", i) for i in range(2000)])
        cursor.executemany("INSERT INTO shop.journal VALUES (%s, %s)", [(i, -i) for i in range(1, 5001)])
        connection.commit()


@contextmanager
def under_load(server: Server) -> Iterator[None]:
    stop, changes = threading.Event(), itertools.count(1)

    def change(cursor: Any, rng: random.Random) -> None:
        number, chance = rng.randrange(1, 2 * ROWS), rng.random()
        if chance < 0.4:
            cursor.execute("REPLACE INTO shop.orders VALUES (%s, %s, 'new', 1.5)", (number, rng.randrange(100)))
        elif chance < 0.55:
            cursor.execute("DELETE FROM shop.orders WHERE id = %s", (number,))
        elif chance < 0.7:
            cursor.execute("UPDATE IGNORE shop.orders SET id = id + 1000000 WHERE id = %s", (number,))
        elif chance < 0.8:
            cursor.execute("UPDATE shop.names SET v = v + 1 WHERE name = %s", (f"Näme {number % 1000}",))
        elif chance < 0.9:
            cursor.execute("REPLACE INTO shop.pairs VALUES (%s, %s, %s)", (number % 9, f"b{number % 3000}", number))
        else:
            cursor.execute("REPLACE INTO shop.nothing VALUES (%s, 'something')", (number - ROWS,))
        # Each change of the journal has a number that no other has.
        number, chance = rng.randrange(1, 10_000), rng.random()
        if chance < 0.5:
            cursor.execute("UPDATE shop.journal SET change_number = %s WHERE id = %s", (next(changes), number))
        elif chance < 0.7:
            cursor.execute("UPDATE IGNORE shop.journal SET id = id + 20000, change_number = %s WHERE id = %s", (next(changes), number))
        elif chance < 0.85:
            cursor.execute("DELETE FROM shop.journal WHERE id = %s", (number,))
        else:
            cursor.execute("INSERT IGNORE INTO shop.journal VALUES (%s, %s)", (number, next(changes)))

    def write(seed: int) -> None:
        rng = random.Random(seed)
        with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                try:
                    for _ in range(rng.choice((1, 1, 5))):
                        change(cursor, rng)
                    (connection.commit if rng.random() < 0.9 else connection.rollback)()
                except pymysql.err.OperationalError as error:
                    # The two of them met in each other's way; the server has rolled one back.
                    if error.args[0] != ER.LOCK_DEADLOCK:
                        raise
                # Some changes in every epoch: more of them would only take the machine from what is tested.
                stop.wait(0.02)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, seed) for seed in (1, 2)]
        try:
            yield
        finally:
            stop.set()
        for writer in writers:
            writer.result()


class PipelineProcess:
    """A driver with its workers, in a group of their own. Of its failpoints each is passed until it is armed."""

    def __init__(
        self, wanted: Settings, folder: Path, *failpoints: str, master: str = "local[3]", environment: Mapping[str, str] | None = None
    ) -> None:
        described = folder / "settings.pickle"
        described.write_bytes(pickle.dumps(wanted))
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **(environment or {})}
        self._died = {failpoint: folder / f"armed-{failpoint}-{time.monotonic_ns()}" / "died" for failpoint in failpoints}
        environment["SNOWMELT_FAILPOINT"] = ",".join(f"{name}:{path}" for name, path in self._died.items())
        self.log = folder / "log.txt"
        arguments = [str(described), str(folder), master]
        self._process = Forked("tests.integration.pipeline_process", arguments, environment=environment, log=self.log)

    def arm(self, failpoint: str) -> None:
        """The next process that reaches it dies. Twice is fine."""
        self._died[failpoint].parent.mkdir(exist_ok=True)

    def die_at(self, *failpoints: str) -> None:
        """Returns when somebody has died at each of them."""
        for failpoint in failpoints:
            self.arm(failpoint)
        for failpoint in failpoints:
            self.wait_for(self._died[failpoint])

    def wait_for(self, *paths: Path) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not any(path.exists() for path in paths):
            if self._process.poll() is not None and not any(path.exists() for path in paths):
                pytest.fail(f"the driver ended by itself:\n{self.log.read_text(errors='replace')[-6000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"nothing happened:\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.05)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"nothing happened:\n{self.log.read_text(errors='replace')[-6000:]}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, once the driver has ended."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()


class Process(PipelineProcess):
    """Of a server's database shop."""

    def __init__(self, server: Server, folder: Path, *failpoints: str, master: str = "local[3]") -> None:
        wanted, environment = settings(server.host, server.port, folder), {"PIPELINE_PASSWORD": server.password}
        super().__init__(wanted, folder, *failpoints, master=master, environment=environment)


def executors_of(pid: int) -> list[int]:
    """JVMs that are executors and nothing else, of a process that this test has started."""
    found, parents = [], [pid]
    while parents:
        for child in children_of(parents.pop()):
            parents.append(child)
            with suppress(FileNotFoundError, ProcessLookupError):
                if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(child)
    return found


def finish_and_compare(server: Server, folder: Path, process: Process) -> None:
    (folder / "stop").touch()
    process.wait_for(folder / "current")
    process.kill()
    for table in ("orders", "names", "pairs", "nothing"):
        assert lake_rows(folder, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table
    # Every change once: each fits what was there before it, and what comes of them all is the source.
    assert folded(folder, "ods.journal") == source_rows(server, "shop.journal")
    made = [row["change_number"] for row in history(folder, "ods.journal") if row["_op"] in ("insert", "update_after")]
    assert len(made) == len(set(made)), "a change came twice"


def die_at_every_failpoint(server: Server, tmp_path: Path, master: str) -> None:
    """Kill driver or worker at each of them, while tables are copied and when they are live; then the lake is the source."""
    fill(server)
    live, drivers = tmp_path / "released", [name for name in NAMES if name not in IN_TASKS]
    with under_load(server):
        for copying in (True, False):
            workers = IN_TASKS if copying else (FILES_STAGED,)
            for failpoint in drivers:
                process = Process(server, tmp_path, *workers, failpoint, master=master)
                if not copying:
                    process.wait_for(live)
                # Workers die, and their driver lives on until it is its turn.
                process.die_at(*workers)
                workers = ()
                process.die_at(failpoint)
                process.kill()
                assert live.exists() != copying, f"no table was being copied any more at {failpoint}"
        process = Process(server, tmp_path, master=master)
    finish_and_compare(server, tmp_path, process)
