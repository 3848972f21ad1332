"""Whether thousands of epochs leave the loop as fast as it was: share of cleaning, processor of an epoch, memory, along the way.

    python -m tests.bench.endurance [--epochs 2000] [--tables 5] [--rows 1000] [--interval 0.2] [--window 100]

A MariaDB of its own and one connection that changes a row of each table over and over; keyed Paimon tables on the local disk,
Spark as `snowmelt run` starts it, the driver in this process. Every epoch has rows of every table, so that each table gets as
many snapshots as there are epochs. Nothing compacts them. Figures are of windows of epochs: `cleaning` is the share of the loop's
time that it spent in deciding about files and records to delete; the work itself is a thread's or a task's, and is in the
processor seconds of the driver or the workers. Memory is what is resident at the end of a window, shared pages divided among
those that share them. In the end the lake is compared with the database. The last line is JSON: `cpu_ratio` is the last window's
processor of an epoch over that of the window that begins at epoch 100.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import PaceSettings, Settings, SinkSettings
from snowmelt.engine.log.recorder import LogRecorder
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.supervise.session import spark_session
from tests.bench._processes import Cpu, Memory, Meter
from tests.bench.pipeline import work_folder
from tests.kit.servers import Server, start_mariadb

PAUSE_S = 0.05
KINDS = ("driver", "jvm", "workers")
FIRST = 100
"""The epoch from which on windows are compared: before, workers start and tables are copied."""


@dataclass(frozen=True, slots=True)
class Window:
    """Epochs up to and with `last`."""

    last: int
    epochs: int
    wall_s: float
    cleaning_s: float
    cpu: Cpu
    memory: Memory

    @property
    def cleaning(self) -> float:
        return self.cleaning_s / self.wall_s

    @property
    def cpu_s(self) -> float:
        """Of an epoch."""
        return self.cpu.engine / self.epochs

    def cells(self) -> list[str]:
        cpu = [f"{1000 * getattr(self.cpu, kind) / self.epochs:.0f}" for kind in KINDS]
        memory = [f"{getattr(self.memory, kind):.0f}" for kind in KINDS]
        return [f"{self.last}", f"{self.wall_s / self.epochs:.2f}", f"{100 * self.cleaning:.2f}", *cpu, f"{1000 * self.cpu_s:.0f}", *memory]


class Timed:
    """How long the loop's thread is in what it does to clean."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(*given, **more)
            finally:
                self.seconds += time.perf_counter() - began

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        with (
            mock.patch.object(Cleaner, "sweep_if_due", self.around(Cleaner.sweep_if_due)),
            mock.patch.object(Cleaner, "discard", self.around(Cleaner.discard)),
            mock.patch.object(LogRecorder, "sweep", self.around(LogRecorder.sweep)),
        ):
            yield


def change(server: Server, tables: int, rows: int, over: threading.Event) -> None:
    """A row of each table in each transaction, until it is over."""
    number = 0
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        while not over.wait(PAUSE_S):
            number += 1
            cursor.execute("BEGIN")
            for table in range(tables):
                cursor.execute(f"UPDATE bench.t{table} SET v = %s WHERE id = %s", (number, number % rows))
            cursor.execute("COMMIT")


def measure(server: Server, spark: object, settings: Settings, given: argparse.Namespace) -> list[Window]:
    meter, timed, over = Meter(server.pid), Timed(), threading.Event()
    windows: list[Window] = []
    begun = [(0, time.perf_counter(), 0.0, meter.now())]
    writing = threading.Thread(target=change, args=(server, given.tables, given.rows, over), name="writer")

    def until(pipeline: PipelineDriver) -> bool:
        epoch = pipeline.ledger.done_epoch
        first, at, cleaned, cpu = begun[-1]
        if epoch >= first + given.window:
            now = (epoch, time.perf_counter(), timed.seconds, meter.now())
            windows.append(Window(epoch, epoch - first, now[1] - at, now[2] - cleaned, now[3] - cpu, meter.memory()))
            begun.append(now)
            print(*windows[-1].cells(), file=sys.stderr, flush=True)
        if epoch >= given.epochs:
            over.set()
        return over.is_set() and pipeline.current()

    with timed.watching():
        pipeline = PipelineDriver(spark, settings)
        writing.start()
        try:
            pipeline.run(until)
        finally:
            over.set()
            writing.join()
    return windows


def check(server: Server, warehouse: str, tables: int) -> None:
    lake = PaimonSink(warehouse, user="bench")
    for number in range(tables):
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, v FROM bench.t{number}")
            wanted = sorted((int(key), int(value)) for key, value in cursor.fetchall())
        builder = lake.table(f"ods.t{number}").copy({"read.native.enabled": "true"}).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        if sorted(zip(rows.column("id").to_pylist(), rows.column("v").to_pylist(), strict=True)) != wanted:
            raise RuntimeError(f"the lake differs from the source: t{number}")


def make(server: Server, tables: int, rows: int) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        for number in range(tables):
            cursor.execute(f"CREATE TABLE bench.t{number} (id INT NOT NULL PRIMARY KEY, v INT NOT NULL)")
            cursor.executemany(f"INSERT INTO bench.t{number} VALUES (%s, 0)", [(key,) for key in range(rows)])
        connection.commit()


def report(windows: list[Window], given: argparse.Namespace) -> dict[str, object]:
    compared = next((one for one in windows if one.last - one.epochs >= FIRST - given.window // 2), windows[-1])
    last = windows[-1]
    return {
        "bench": "endurance",
        "epochs": last.last,
        "tables": given.tables,
        "interval_s": given.interval,
        "cores": os.cpu_count(),
        "cleaning_max": round(max(one.cleaning for one in windows), 4),
        "cpu_s_early": round(compared.cpu_s, 3),
        "cpu_s_late": round(last.cpu_s, 3),
        "cpu_ratio": round(last.cpu_s / compared.cpu_s, 2),
        "wall_s_early": round(compared.wall_s / compared.epochs, 3),
        "wall_s_late": round(last.wall_s / last.epochs, 3),
        **{f"{kind}_mb_early": round(getattr(compared.memory, kind)) for kind in KINDS},
        **{f"{kind}_mb_late": round(getattr(last.memory, kind)) for kind in KINDS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2_000)
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000, help="of each table, which are copied first")
    parser.add_argument("--interval", type=float, default=0.2, help="the pipeline's, in seconds")
    parser.add_argument("--window", type=int, default=100, help="how many epochs a row of the table is of")
    given = parser.parse_args()
    console = Console(width=120) if not sys.stdout.isatty() else Console()
    with work_folder(keep=False) as folder:
        server = start_mariadb(folder / "server", innodb_flush_log_at_trx_commit=2, sync_binlog=0, server_id=1)
        try:
            make(server, given.tables, given.rows)
            password = folder / "password"
            password.write_text(server.password)
            settings = Settings(
                name="bench",
                state=folder / "state",
                sink=SinkSettings(warehouse=str(folder / "lake")),
                source=MySql(
                    options=MySqlOptions(
                        host=server.host,
                        port=server.port,
                        username=server.user,
                        password=Secret(f"file:{password}"),
                        tls=Tls.DISABLED,
                        allow_password_to_unverified_server=True,
                    )
                ),
                tables=["bench.*"],
                target="ods.{table}",
                pace=PaceSettings(interval_s=given.interval),
            )
            with spark_session("bench", master="local[2]", ui=False, debug=False) as spark:
                windows = measure(server, spark, settings, given)
            check(server, settings.sink.warehouse, given.tables)
        finally:
            server.stop()
    table = Table("epochs", "wall s", "cleaning %", "driver ms", "JVM ms", "workers ms", "CPU ms", "driver MB", "JVM MB", "workers MB")
    for one in windows:
        table.add_row(*one.cells())
    console.print(table)
    print(json.dumps(report(windows, given)))


if __name__ == "__main__":
    main()
