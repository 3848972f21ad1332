"""What does not fit: a huge transaction, one over fifty tables, long rows, a million small transactions, a compressed log; time, memory,
and verified.

    python -m tests.bench.large [--gib 4.5] [--row-mb 64] [--transactions 1000000] [--fifty-gib 1.5]
                                [--only huge,fifty,rows,small,compressed]

A MariaDB of its own; its changes are made while no pipeline runs. Then one catches up, on Spark in this process as `snowmelt run`
starts it, and `snowmelt verify`'s own comparison says whether the lake is the source. Memory is the sum over the JVM and all Python
processes, each without what it shares, sampled twice a second; the database is in neither. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import PaceSettings, Settings, SinkSettings
from snowmelt.supervise.session import spark_session
from snowmelt.verify import TableOutcome, verify
from tests.bench._processes import Meter, Stage
from tests.bench.pipeline import work_folder
from tests.kit.servers import Server, start_mariadb

ROW_BYTES = 1000
ROWS_LONG = 4
FIFTY, TURNS = 50, 10
COMPRESSED_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    what: str
    table: str
    """The columns of its tables."""
    make: Callable[[Any, argparse.Namespace], None]
    count: int = 1

    @property
    def tables(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}_{number}" for number in range(self.count)]


def huge(cursor: Any, given: argparse.Namespace) -> None:
    rows = int(given.gib * (1 << 30)) // ROW_BYTES
    cursor.execute("BEGIN")
    cursor.execute(f"INSERT INTO huge SELECT seq, REPEAT(MD5(seq), 30) FROM seq_1_to_{rows}")
    # The last change of a row must win, however far behind the first it lies.
    cursor.execute(f"UPDATE huge SET c = 'changed' WHERE id % {max(1, rows // 1000)} = 0")
    cursor.execute("COMMIT")


def fifty(cursor: Any, given: argparse.Namespace) -> None:
    rows = int(given.fifty_gib * (1 << 30)) // ROW_BYTES // FIFTY // TURNS
    cursor.execute("BEGIN")
    # In turns, so that all of them are being written at once.
    for turn in range(TURNS):
        for number in range(FIFTY):
            some = f"seq_{turn * rows + 1}_to_{(turn + 1) * rows}"
            cursor.execute(f"INSERT INTO fifty_{number} SELECT seq, REPEAT(MD5(seq), 30) FROM {some}")
    for number in range(FIFTY):
        cursor.execute(f"UPDATE fifty_{number} SET c = 'changed' WHERE id % 100 = 0")
    cursor.execute("COMMIT")


def rows(cursor: Any, given: argparse.Namespace) -> None:
    for number in range(ROWS_LONG):
        cursor.execute(f"INSERT INTO `rows` VALUES ({number}, REPEAT(CHAR(65 + {number}), {given.row_mb} << 20))")
    cursor.execute("UPDATE `rows` SET b = CONCAT(b, 'x') WHERE id = 1")


def small(cursor: Any, given: argparse.Namespace) -> None:
    cursor.execute("CREATE PROCEDURE tick(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO INSERT INTO small VALUES (i, i); "
                   "SET i = i + 1; END WHILE; END")  # fmt: skip
    cursor.execute(f"CALL tick({given.transactions})")


def compressed(cursor: Any, given: argparse.Namespace) -> None:
    cursor.execute("SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10")
    cursor.execute("FLUSH BINARY LOGS")
    for first in range(0, COMPRESSED_ROWS, 100_000):
        cursor.execute(f"INSERT INTO compressed SELECT seq, REPEAT(MD5(seq), 4) FROM seq_{first + 1}_to_{first + 100_000}")
    cursor.execute("UPDATE compressed SET c = 'changed' WHERE id % 3 = 0")
    cursor.execute("SET GLOBAL log_bin_compress = OFF")


CASES = [
    Case("huge", "one transaction", "id BIGINT NOT NULL PRIMARY KEY, c VARCHAR(1000)", huge),
    Case("fifty", "one transaction, fifty tables", "id BIGINT NOT NULL PRIMARY KEY, c VARCHAR(1000)", fifty, FIFTY),
    Case("rows", "long rows", "id INT NOT NULL PRIMARY KEY, b LONGBLOB", rows),
    Case("small", "transactions of one row", "id INT NOT NULL PRIMARY KEY, v INT", small),
    Case("compressed", "a compressed log", "id BIGINT NOT NULL PRIMARY KEY, c VARCHAR(1000)", compressed),
]


@dataclass(frozen=True, slots=True)
class Caught:
    case: Case
    stage: Stage
    log_bytes: int
    rows: int


def play(case: Case, server: Server, spark: Any, settings: Settings, given: argparse.Namespace, say: Callable[[str], None]) -> Caught:
    with server.connect(database="bench", read_timeout=None) as connection, connection.cursor() as cursor:
        for table in case.tables:
            cursor.execute(f"CREATE TABLE `{table}` ({case.table})")
        say("empty tables go live")
        PipelineDriver(spark, settings).run(PipelineDriver.current)
        say("making changes")
        case.make(cursor, given)
    say("catching up")
    meter = Meter(server.pid)
    first: int | None = None
    last = 0
    with meter.stage() as stage:

        def until(pipeline: PipelineDriver) -> bool:
            nonlocal first, last
            first = pipeline.progress.done_upto if first is None else first
            last = pipeline.progress.captured
            return pipeline.caught_up()

        PipelineDriver(spark, settings).run(until)
        meter.end()
    say("verifying")
    verdicts = verify(settings, spark)
    wrong = [verdict for verdict in verdicts if verdict.outcome is not TableOutcome.VERIFIED]
    if wrong or len(verdicts) != case.count:
        raise RuntimeError(f"{case.name}: the lake is not the source: {wrong or verdicts}")
    return Caught(case, stage, last - (first or 0), sum(verdict.rows for verdict in verdicts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.5, help="of the huge transaction")
    parser.add_argument("--fifty-gib", type=float, default=1.5, help="of the transaction over fifty tables")
    parser.add_argument("--row-mb", type=int, default=64)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(case.name for case in CASES))
    given = parser.parse_args()
    console = Console(width=120) if not sys.stdout.isatty() else Console()
    began = time.perf_counter()
    caught: list[Caught] = []
    with work_folder(keep=False) as folder:
        server = start_mariadb(
            folder / "server",
            innodb_flush_log_at_trx_commit=0,
            sync_binlog=0,
            innodb_buffer_pool_size="512M",
            max_allowed_packet="1G",
            server_id=1,
        )
        try:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("CREATE DATABASE bench")
            password = folder / "password"
            password.write_text(server.password)
            settings = Settings(
                name="bench",
                state=folder,
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
                tables=[],
                target="ods.{table}",
                pace=PaceSettings(interval_s=0.5),
            )
            with spark_session("bench", master="local[2]", ui=False, debug=False) as spark:
                for case in [one for one in CASES if one.name in given.only.split(",")]:
                    mine = replace(
                        settings,
                        name=case.name,
                        state=Path(folder / f"state-{case.name}"),
                        tables=[f"bench.{table}" for table in case.tables],
                    )

                    def say(text: str, name: str = case.name) -> None:
                        console.print(f"[dim]{time.perf_counter() - began:6.0f} s  {name}: {text}", highlight=False)

                    caught.append(play(case, server, spark, mine, given, say))
        finally:
            server.stop()
    table = Table("case", "log MB", "rows", "wall s", "engine CPU s", "peak MB", "verified", "")
    result: dict[str, object] = {"bench": "large", "cores": os.cpu_count(), "gib": given.gib, "row_mb": given.row_mb}
    for one in caught:
        stage, name = one.stage, one.case.name
        table.add_row(
            f"{name}: {one.case.what}",
            f"{one.log_bytes / 1e6:,.0f}",
            f"{one.rows:,}",
            f"{stage.wall_s:.1f}",
            f"{stage.cpu.engine:.1f}",
            f"{stage.peak_mb:,.0f}",
            "yes",
            "busy" if stage.busy else "",
        )
        result |= {
            f"{name}_s": round(stage.wall_s, 1),
            f"{name}_peak_rss_mb": round(stage.peak_mb),
            f"{name}_log_mb": one.log_bytes // 10**6,
        }
    console.print(table)
    print(json.dumps(result | {"peak_rss_mb": max((round(one.stage.peak_mb) for one in caught), default=0)}))


if __name__ == "__main__":
    main()
