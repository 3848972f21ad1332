"""How old the lake is: from the database's commit until a reader of the lake can have it, at 1, 1,000 and 20,000 changes a second.

    python -m tests.bench.freshness [--seconds 20] [--interval 0.5]

A MariaDB of its own and one connection that writes at a steady rate, in transactions of 1, 10 and 100 new rows; a keyed Paimon table on
the local disk, Spark in this process as `snowmelt run` starts it. A transaction is committed when the server says so to the one
that asked for it, and can be read from when a snapshot that has it was published. Rows are only added, by one connection, so that the
number of rows that a snapshot says it holds tells which transactions it has. Before each rate the lake has all that was written.
The first 2 s of each are not counted. What comes of all is compared with the database: number and sum of keys. The last line is
JSON; p50_s and p99_s are those at 1,000 a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import PaceSettings, Settings, SinkSettings
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.supervise.session import spark_session
from tests.bench._processes import Meter, Stage
from tests.bench.pipeline import work_folder
from tests.kit.servers import Server, start_mariadb

RATES = {1: 1, 1_000: 10, 20_000: 100}
"""Changes a second, and how many of them a transaction has."""
SKIPPED_S = 2.0
TARGET = "ods.ticks"


@dataclass(frozen=True, slots=True)
class Committed:
    at_s: float
    rows: int
    """In the table, this transaction's included."""


@dataclass(frozen=True, slots=True)
class Measured:
    rate: int
    reached: float
    """Changes a second that were really written."""
    ages_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    stage: Stage

    def quantile(self, share: float) -> float:
        return round(float(np.quantile(self.ages_s, share)), 3)


class Writer:
    """Adds rows at a steady rate; where the server is slower than that, as fast as it can."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.rows = 0

    def write(self, rate: int, seconds: float) -> list[Committed]:
        made: list[Committed] = []
        size = RATES[rate]
        with self._server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            began = time.time()
            while (now := time.time()) < began + seconds:
                due = began + len(made) * size / rate
                if due > now:
                    time.sleep(due - now)
                values = ", ".join(f"({self.rows + number}, {rate}, 'tick')" for number in range(1, size + 1))
                cursor.execute(f"INSERT INTO bench.ticks VALUES {values}")
                self.rows += size
                made.append(Committed(time.time(), self.rows))
        return made


def published(warehouse: Path) -> list[Committed]:
    """Of each snapshot when it came to be and how many rows it holds. A file's ctime is that of its last name, which makes it public."""
    [folder] = warehouse.glob("*/*/snapshot")
    found = [
        Committed(file.stat().st_ctime_ns / 1e9, int(json.loads(file.read_bytes())["totalRecordCount"]))
        for file in folder.glob("snapshot-*")
    ]
    return sorted(found, key=lambda one: one.at_s)


def ages(made: list[Committed], snapshots: list[Committed], *, since_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = np.maximum.accumulate([one.rows for one in snapshots])
    at = np.array([one.at_s for one in snapshots])
    counted = [one for one in made if one.at_s >= since_s]
    first = np.searchsorted(rows, [one.rows for one in counted])
    return np.asarray(at[first] - np.array([one.at_s for one in counted]))


def measure(server: Server, spark: object, settings: Settings, seconds: float) -> list[Measured]:
    """One driver for all rates: another thread writes, waits until the lake has it all, and goes on with the next."""
    writer, meter = Writer(server), Meter(server.pid)
    asked, current, over = threading.Event(), threading.Event(), threading.Event()
    taken: list[tuple[int, list[Committed], Stage]] = []
    failed: list[BaseException] = []

    def settled() -> None:
        current.clear()
        asked.set()
        current.wait()

    def play() -> None:
        try:
            writer.write(1_000, 3.0)
            settled()
            for rate in RATES:
                with meter.stage() as stage:
                    made = writer.write(rate, seconds + SKIPPED_S)
                    meter.end()
                settled()
                taken.append((rate, made, stage))
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    def until(pipeline: PipelineDriver) -> bool:
        if asked.is_set() and pipeline.current():
            asked.clear()
            current.set()
        return over.is_set()

    player = threading.Thread(target=play, name="writer")
    player.start()
    try:
        PipelineDriver(spark, settings).run(until)
    finally:
        current.set()
        player.join()
    if failed:
        raise failed[0]
    snapshots = published(Path(settings.sink.warehouse))
    return [
        Measured(
            rate,
            len(made) * RATES[rate] / (made[-1].at_s - made[0].at_s + RATES[rate] / rate),
            ages(made, snapshots, since_s=made[0].at_s + SKIPPED_S),
            stage,
        )
        for rate, made, stage in taken
    ]


def check(server: Server, warehouse: str) -> None:
    import pyarrow.compute as pc

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(id) FROM bench.ticks")
        wanted = tuple(int(value) for value in cursor.fetchone())
    builder = PaimonSink(warehouse, user="bench").table(TARGET).copy({"read.native.enabled": "true"}).new_read_builder()
    ids = builder.new_read().to_arrow(builder.new_scan().plan().splits()).column("id")
    found = (len(ids), pc.sum(ids).as_py())
    if found != wanted:
        raise RuntimeError(f"the lake differs from the source: count and sum of keys are {found} and not {wanted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate")
    parser.add_argument("--interval", type=float, default=0.5, help="the pipeline's, in seconds")
    given = parser.parse_args()
    console = Console(width=120) if not sys.stdout.isatty() else Console()
    with work_folder(keep=False) as folder:
        server = start_mariadb(folder / "server", innodb_flush_log_at_trx_commit=2, sync_binlog=0, server_id=1)
        try:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE bench")
                cursor.execute("CREATE TABLE bench.ticks (id BIGINT NOT NULL PRIMARY KEY, rate INT NOT NULL, c VARCHAR(60) NOT NULL)")
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
                tables=["bench.ticks"],
                target="ods.{table}",
                pace=PaceSettings(interval_s=given.interval),
            )
            with spark_session("bench", master="local[2]", ui=False, debug=False) as spark:
                measured = measure(server, spark, settings, given.seconds)
            check(server, settings.sink.warehouse)
        finally:
            server.stop()
    table = Table("changes/s asked for", "written", "p50 s", "p99 s", "worst s", "processor s/s", "")
    result: dict[str, object] = {"bench": "freshness", "interval_s": given.interval, "seconds": given.seconds, "cores": os.cpu_count()}
    for one in measured:
        cpu = one.stage.cpu.engine / one.stage.wall_s
        table.add_row(
            f"{one.rate:,}",
            f"{one.reached:,.0f}",
            *(f"{one.quantile(share):.2f}" for share in (0.5, 0.99, 1.0)),
            f"{cpu:.2f}",
            "busy" if one.stage.busy else "",
        )
        result |= {f"p50_s_at_{one.rate}": one.quantile(0.5), f"p99_s_at_{one.rate}": one.quantile(0.99)}
        result |= {f"rate_at_{one.rate}": round(one.reached), f"cpu_at_{one.rate}": round(cpu, 2)}
    console.print(table)
    middle = next(one for one in measured if one.rate == 1_000)
    print(json.dumps(result | {"p50_s": middle.quantile(0.5), "p99_s": middle.quantile(0.99), "busy": any(m.stage.busy for m in measured)}))


if __name__ == "__main__":
    main()
