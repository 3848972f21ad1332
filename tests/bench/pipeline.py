"""A table into the lake: the whole pipeline, snapshot and catch-up, beside Flink CDC if asked for.

    python -m tests.bench.pipeline [--rows 5000000] [--changes 3000000] [--repeat 3] [--buckets 2] [--peer flink-cdc] [--keep]

A MariaDB of its own, sysbench's table, a keyed Paimon table on the local disk, Spark in this process as `snowmelt run` starts it,
with its defaults but for an interval of 1 s, on two cores that the database shares. Per round:

- snapshot: from when the pipeline knows the table, before its chunks are found and read, until it is live;
- catch-up: changes are made while no pipeline runs, in transactions of 2000 rows, each row once; then a new driver is timed from
  the start of its capture until the lake has all. The clock ends with the epoch that is done, not with the rows' last write;
- small epochs: ten rows a transaction and an epoch, from plan to done.

Spark is warm: a small table has gone the same way before each step. Start-up is told apart. Memory is the sum over the JVM and all
Python processes, each without what it shares; the database is in neither. Seconds of processor are the engine's, the database's
apart. After the catch-up count, sum of keys and sum of checksums of all rows are compared with the database's, which computes
its own. Figures of a machine on which others used more than a twentieth of the processors are marked busy. The last line is JSON: medians.

`--peer flink-cdc` lets Flink CDC do the same beside it, on the same server, rows and changes; see `_peer_flink`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from tests.bench._peer_flink import FlinkCdc, fetch
from tests.bench._processes import Meter, Stage
from tests.kit.servers import Server, start_mariadb

DATABASE, TARGET = "bench", "ods.sbtest1"
TRANSACTION_ROWS = 2000
EPOCHS, EPOCH_ROWS, EPOCHS_DROPPED = 25, 10, 3
INTERVAL_S = 1.0
WARM_ROWS = 50_000

_TABLE = "(id BIGINT NOT NULL PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL) ENGINE=InnoDB"
_C = "CONCAT(MD5({0}), '-', MD5({0} + 1), '-', MD5({0} + 2), '-', LEFT(MD5({0} + 3), 20))"
_PAD = "CONCAT(MD5(-{0}), '-', LEFT(SHA1({0}), 26))"
_ROWS = f"{_C}, {_PAD}".format("seq")


# ---- the source


def load(server: Server, table: str, rows: int) -> None:
    """A table of `rows` rows whose making is not in the log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(f"CREATE OR REPLACE TABLE {table} {_TABLE}")
        cursor.execute(f"INSERT INTO {table} SELECT seq, seq * 2654435761 % {rows}, {_ROWS} FROM seq_1_to_{rows}")
        cursor.execute(f"ANALYZE TABLE {table}")


def change(server: Server, table: str, rows: int, changes: int) -> int:
    """Of 30 transactions 18 update, 7 insert and 5 delete; no row is changed twice. How many changes it were."""
    made = 0
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        for number in range(changes // TRANSACTION_ROWS):
            first = rows // 5 + number * TRANSACTION_ROWS
            where = f"WHERE id BETWEEN {first} AND {first + TRANSACTION_ROWS - 1}"
            if number % 30 < 18:
                made += cursor.execute(f"UPDATE {table} SET k = k + 1, c = {_C.format(f'(id + {number})')} {where}")
            elif number % 30 < 25:
                new = f"seq_{2 * rows + first}_to_{2 * rows + first + TRANSACTION_ROWS - 1}"
                made += cursor.execute(f"INSERT INTO {table} SELECT seq, {number}, {_ROWS} FROM {new}")
            else:
                made += cursor.execute(f"DELETE FROM {table} {where}")
    return made


def sums_of_source(server: Server) -> list[int]:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), SUM(id), SUM(CRC32(CONCAT_WS('|', id, k, c, pad))) FROM sbtest1")
        return [int(value) for value in cursor.fetchone()]


def sums_of_lake(warehouse: str, target: str) -> list[int]:
    """The same, of what a reader of the lake table sees."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pypaimon import CatalogFactory

    table = CatalogFactory.create({"warehouse": warehouse}).get_table(target).copy({"read.native.enabled": "true"})
    builder = table.new_read_builder().with_projection(["id", "k", "c", "pad"])
    count = keys = checksums = 0
    for batch in builder.new_read().to_arrow_batch_reader(builder.new_scan().plan().splits()):
        texts = [pc.cast(batch.column(name), pa.large_string()) for name in ("id", "k", "c", "pad")]
        joined = pc.binary_join_element_wise(*texts, pa.scalar("|", pa.large_string())).to_pylist()
        count += batch.num_rows
        keys += pc.sum(batch.column("id")).as_py() or 0
        checksums += sum(zlib.crc32(text.encode()) for text in joined)
    return [count, keys, checksums]


def check(server: Server, warehouse: Path, target: str, who: str) -> None:
    """In a process of its own: this one's memory is measured."""
    command = [sys.executable, "-m", "tests.bench.pipeline", "--sums", str(warehouse), target]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{who}'s table can't be read:\n{done.stderr[-4000:]}")
    found, wanted = json.loads(done.stdout.splitlines()[-1]), sums_of_source(server)
    if found != wanted:
        raise RuntimeError(f"{who}'s table differs from the source: count, keys, checksums are {found} and not {wanted}")


# ---- snowmelt


@dataclass(frozen=True, slots=True)
class Round:
    """What one round measured of one contender."""

    snapshot: Stage
    catchup: Stage
    snapshot_rows: int
    changes: int
    start_s: float
    """From the driver's beginning to that of the snapshot; of the peer from its process's."""
    capture_wall_s: float = 0.0
    capture_cpu_s: float = 0.0
    capture_bytes: int = 0
    epochs_s: tuple[float, ...] = ()
    latencies_s: tuple[float, ...] = ()
    epoch_cpu_s: float = 0.0

    @property
    def snapshot_rate(self) -> float:
        return self.snapshot_rows / self.snapshot.wall_s

    @property
    def catchup_rate(self) -> float:
        return self.changes / self.catchup.wall_s

    @property
    def peak_mb(self) -> float:
        return max(self.snapshot.peak_mb, self.catchup.peak_mb)


class Snowmelt:
    """The pipeline, step by step, in one Spark session."""

    def __init__(self, spark: Any, server: Server, meter: Meter, folder: Path, given: argparse.Namespace) -> None:
        self._spark = spark
        self._server = server
        self._meter = meter
        password = folder / "password"
        password.write_text(server.password)
        source = MySqlOptions(
            host=server.host,
            port=server.port,
            username=server.user,
            password=Secret(f"file:{password}"),
            tls=Tls.DISABLED,
            allow_password_to_unverified_server=True,
        )
        self.settings = Settings(
            name="bench",
            state=folder / "state",
            sink=SinkSettings(warehouse=str(folder / "lake"), buckets=given.buckets),
            source=MySql(options=source),
            tables=[f"{DATABASE}.sbtest1"],
            target="ods.{table}",
            pace=PaceSettings(interval_s=INTERVAL_S),
        )
        if given.rows_per_chunk:
            self.settings = replace(self.settings, pace=PaceSettings(interval_s=INTERVAL_S, rows_per_chunk=given.rows_per_chunk))
        self._warm = replace(
            self.settings, name="warm", state=folder / "warm", tables=[f"{DATABASE}.warm"], pace=PaceSettings(interval_s=0.05)
        )
        self._warmed = 0

    def warm(self) -> None:
        """The same way for a small table, copied once and changed each time, so that code is loaded and compiled in all processes."""
        if not self._warmed:
            load(self._server, "warm", WARM_ROWS)
            PipelineDriver(self._spark, replace(self._warm, pace=replace(self._warm.pace, rows_per_chunk=WARM_ROWS // 20))).run(
                PipelineDriver.caught_up
            )
        self._warmed += 1
        with self._server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE warm SET k = k + 1 WHERE id <= {WARM_ROWS // 2}")
        PipelineDriver(self._spark, self._warm).run(PipelineDriver.current)

    def snapshot(self) -> tuple[Stage, float]:
        asked, seen = time.perf_counter(), 0.0
        with self._meter.stage() as stage:

            def until(pipeline: PipelineDriver) -> bool:
                nonlocal seen
                if not seen and pipeline.progress.phases:
                    seen = time.perf_counter()
                    self._meter.begin()
                if not pipeline.caught_up():
                    return False
                self._meter.end()
                return True

            PipelineDriver(self._spark, self.settings).run(until)
        return stage, seen - asked

    def catch_up(self) -> tuple[Stage, float, float, int]:
        """Also seconds, seconds of processor and bytes of the capture alone."""
        first = captured = -1
        captured_at = cpu_s = 0.0
        with self._meter.stage() as stage:

            def until(pipeline: PipelineDriver) -> bool:
                nonlocal first, captured, captured_at, cpu_s
                now = pipeline.progress.captured
                if first < 0:
                    self._meter.begin()
                    first = pipeline.progress.done_upto
                if now > captured:
                    captured, captured_at = now, time.perf_counter() - stage.began
                    cpu_s = _thread_cpu_s("snowmelt-capture")
                if not pipeline.caught_up():
                    return False
                self._meter.end()
                return True

            PipelineDriver(self._spark, self.settings).run(until)
        return stage, captured_at, cpu_s, captured - first

    def small_epochs(self, first_id: int) -> tuple[tuple[float, ...], tuple[float, ...], float]:
        """Of each epoch seconds from plan to done and from the database's commit to done; seconds of processor of one."""
        took: list[float] = []
        late: list[float] = []
        turn = committed = planned = 0.0
        before = 0

        def until(pipeline: PipelineDriver) -> bool:
            nonlocal turn, committed, planned, before
            now, progress = time.perf_counter(), pipeline.progress
            if planned and progress.done_upto >= progress.captured:
                took.append(now - planned)
                late.append(now - committed)
                committed = planned = 0.0
                if len(took) == EPOCHS_DROPPED:
                    self._meter.begin()
            if len(took) == EPOCHS_DROPPED + EPOCHS:
                self._meter.end()
                return True
            if not committed and progress.done_upto >= progress.captured:
                before, low = progress.captured, first_id + len(took) * EPOCH_ROWS
                cursor.execute(f"INSERT INTO sbtest1 SELECT seq, 1, 'c', 'pad' FROM seq_{low}_to_{low + EPOCH_ROWS - 1}")
                committed = time.perf_counter()
            elif not planned and progress.captured > before:
                # The turn that took it up has planned with it, so it began no sooner than that turn.
                planned = turn
            turn = time.perf_counter()
            return False

        with self._meter.stage() as stage, self._server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            PipelineDriver(self._spark, replace(self.settings, pace=replace(self.settings.pace, interval_s=0.01))).run(until)
        return tuple(took[EPOCHS_DROPPED:]), tuple(late[EPOCHS_DROPPED:]), stage.cpu.engine / EPOCHS


def _thread_cpu_s(name: str) -> float:
    for thread in threading.enumerate():
        if thread.name == name:
            values = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


# ---- rounds


def play(server: Server, spark: Any, folder: Path, given: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Round]:
    """One round of each contender on the same rows and changes."""
    meter = Meter(server.pid)
    ours = Snowmelt(spark, server, meter, folder, given)
    peer = FlinkCdc(server, meter, folder / "peer", database=DATABASE, table="sbtest1", buckets=given.buckets) if given.peer else None
    say("loading")
    load(server, "sbtest1", given.rows)
    say("snowmelt: snapshot")
    ours.warm()
    snapshot, start_s = ours.snapshot()
    if peer is not None:
        say("flink-cdc: snapshot")
        peer_snapshot, peer_start_s = peer.snapshot(given.rows)
    say("making changes")
    changes = change(server, "sbtest1", given.rows, given.changes)
    say("snowmelt: catch-up")
    ours.warm()
    catchup, capture_wall_s, capture_cpu_s, capture_bytes = ours.catch_up()
    rounds: dict[str, Round] = {}
    if peer is not None:
        say("flink-cdc: catch-up")
        rounds["flink-cdc"] = Round(peer_snapshot, peer.catch_up(changes), given.rows, changes, peer_start_s)
    say("comparing with the source")
    check(server, folder / "lake", TARGET, "snowmelt")
    if peer is not None:
        check(server, peer.warehouse, peer.target, "flink-cdc")
    say("snowmelt: small epochs")
    ours.warm()
    epochs_s, latencies_s, epoch_cpu_s = ours.small_epochs(10 * given.rows)
    rounds["snowmelt"] = Round(
        snapshot, catchup, given.rows, changes, start_s, capture_wall_s, capture_cpu_s, capture_bytes, epochs_s, latencies_s, epoch_cpu_s
    )
    return rounds


def figures(rounds: list[Round]) -> dict[str, Any]:
    """Medians over the rounds."""

    def median(of: Callable[[Round], float], digits: int = 2) -> float:
        value = statistics.median(of(one) for one in rounds)
        return round(value, digits) if digits else round(value)

    def cpu(kind: str) -> dict[str, float]:
        suffix = "cpu_s_per_m_rows" if kind == "engine" else f"{kind}_cpu_s_per_m_rows"
        return {
            f"snapshot_{suffix}": median(lambda one: getattr(one.snapshot.cpu, kind) / one.snapshot_rows * 1e6),
            f"catchup_{suffix}": median(lambda one: getattr(one.catchup.cpu, kind) / one.changes * 1e6),
        }

    result: dict[str, Any] = {
        "snapshot_rows_per_s": median(lambda one: one.snapshot_rate, 0),
        "catchup_rows_per_s": median(lambda one: one.catchup_rate, 0),
        **cpu("engine"),
        **cpu("database"),
        "peak_rss_mb": median(lambda one: one.peak_mb, 0),
        "start_s": median(lambda one: one.start_s),
        "busy": any(one.snapshot.busy or one.catchup.busy for one in rounds),
    }
    if all(one.epochs_s for one in rounds):
        # A peer is one process, and does no small epochs.
        result |= {
            **cpu("driver"),
            **cpu("jvm"),
            **cpu("workers"),
            "batch_overhead_s": median(lambda one: statistics.median(one.epochs_s), 3),
            "batch_latency_s": median(lambda one: statistics.median(one.latencies_s), 3),
            "batch_cpu_s": median(lambda one: one.epoch_cpu_s, 3),
            "capture_s": median(lambda one: one.capture_wall_s),
            "capture_cpu_s": median(lambda one: one.capture_cpu_s),
            "capture_mb": median(lambda one: one.capture_bytes / 1e6, 0),
        }
    return result


def show(console: Console, taken: dict[str, list[Round]]) -> None:
    table = Table(
        "contender", "step", "rows/s", "wall s", "driver", "JVM", "workers", "engine s/M rows", "database", "others", "peak MB", ""
    )
    for column in table.columns[2:-1]:
        column.justify = "right"
    for who, rounds in taken.items():
        for one in rounds:
            for step, stage, rows in (("snapshot", one.snapshot, one.snapshot_rows), ("catch-up", one.catchup, one.changes)):
                cpu = stage.cpu
                seconds = [f"{value:.1f}" for value in (cpu.driver, cpu.jvm, cpu.workers)]
                per_million = f"{cpu.engine / rows * 1e6:.2f}"
                rate = f"{rows / stage.wall_s:,.0f}"
                others = [f"{cpu.database:.1f}", f"{cpu.others:.1f}", f"{stage.peak_mb:,.0f}", "busy" if stage.busy else ""]
                table.add_row(who, step, rate, f"{stage.wall_s:.2f}", *seconds, per_million, *others)
    console.print("seconds of processor by process; others: what had nothing to do with the bench")
    console.print(table)


# ---- the command


@contextmanager
def work_folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snowmelt-bench-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=3_000_000, help="at most four fifths of the rows")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--rows-per-chunk", type=int, help="instead of the pipeline's own default")
    parser.add_argument("--peer", choices=["flink-cdc"])
    parser.add_argument("--keep", action="store_true", help="leave the folder with state, lake and logs")
    parser.add_argument("--sums", nargs=2, metavar=("WAREHOUSE", "TARGET"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.changes > given.rows * 4 // 5 or given.changes < 30 * TRANSACTION_ROWS:
        parser.error(f"--changes must be from {30 * TRANSACTION_ROWS} to four fifths of --rows")
    return given


def main() -> None:
    given = parsed()
    if given.sums:
        print(json.dumps(sums_of_lake(*given.sums)))
        return
    console = Console(width=160) if not sys.stdout.isatty() else Console()
    if given.peer:
        fetch()
    taken: dict[str, list[Round]] = {}
    began = time.perf_counter()

    def say(number: int, text: str) -> None:
        console.print(f"[dim]{time.perf_counter() - began:6.0f} s  round {number + 1}: {text}", highlight=False)

    with work_folder(given.keep) as folder, ExitStack() as stack:
        server = start_mariadb(
            folder / "server",
            binlog_checksum="CRC32",
            default_time_zone="+00:00",
            innodb_buffer_pool_size="1G",
            innodb_log_file_size="1G",
            max_binlog_size="1G",
            server_id=1,
        )
        stack.callback(server.stop)
        spark = stack.enter_context(spark_session("bench", master="local[2]", ui=False, debug=False))
        for number in range(given.repeat):
            (folder / str(number)).mkdir()
            for who, one in play(server, spark, folder / str(number), given, partial(say, number)).items():
                taken.setdefault(who, []).append(one)
        if given.keep:
            console.print(f"kept: {folder}")
    taken = dict(sorted(taken.items(), reverse=True))
    show(console, taken)
    ours = figures(taken["snowmelt"])
    console.print(
        f"small epochs: {ours['batch_overhead_s'] * 1000:.0f} ms from plan to done, {ours['batch_latency_s'] * 1000:.0f} ms from the "
        f"database's commit to done, {ours['batch_cpu_s'] * 1000:.0f} ms of processor\n"
        f"capture within the catch-up: {ours['capture_mb']:,} MB in {ours['capture_s']:.2f} s, {ours['capture_cpu_s']:.2f} s of processor",
        highlight=False,
    )
    result = {"bench": "pipeline", "rows": given.rows, "changes": given.changes, "repeat": given.repeat, "cores": os.cpu_count(), **ours}
    for who, rounds in taken.items():
        if who != "snowmelt":
            theirs = figures(rounds)
            result |= {
                f"{step}_ratio": round(ours[f"{step}_rows_per_s"] / theirs[f"{step}_rows_per_s"], 2) for step in ("snapshot", "catchup")
            }
            cpu = {step: theirs[f"{step}_cpu_s_per_m_rows"] / ours[f"{step}_cpu_s_per_m_rows"] for step in ("snapshot", "catchup")}
            result |= {f"{step}_cpu_ratio": round(ratio, 2) for step, ratio in cpu.items()}
            result[who.replace("-", "_")] = theirs
    print(json.dumps(result))


if __name__ == "__main__":
    main()
