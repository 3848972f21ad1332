"""Whether lake tables and the pipeline stay healthy over thousands of epochs, with maintenance on and a reader at work all the while.

    python -m tests.bench.soak [--epochs 5000] [--tables 10] [--rows 40000] [--interval 0.3] [--keep-for 30] [--picture docs/soak.svg]

A MariaDB of its own, a program that changes all tables in each transaction (updates, deletes, inserts, key changes), and one that reads
whole lake tables at their newest snapshots and looks for what no commit has made (`_soak_load`). Keyed Paimon tables on the local disk,
Spark as `snowmelt run` starts it, the driver in this process. An epoch comes much sooner than with the default interval, so snapshots are
kept for a shorter time, too: `--keep-for`. All other rules of maintenance are the defaults.

Every `--every` epochs there is a sample: the epoch's wall time and processor; a commit's wall time, from the intent that was won to the
record that all tables have it, and the processor time of the threads that commit; reads; files, manifests and snapshots; bytes; memory
of driver, JVM and workers, shared pages divided among those that share them. In the end the lake is compared with the database, and each
table is written once into a fresh lake. `--picture` writes the curves as SVG. `bytes_ratio`: all files of the lake, old snapshots
included, by those of the fresh lake; `live_bytes_ratio`: those that the newest snapshots name. The last line is JSON; medians of 100
epochs at the end by medians of those around epoch 100, and slopes over the last 80 % of the epochs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.driving.committing import WinIntent
from snowmelt.driving.letting_go import Forget
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import MaintenanceSettings, PaceSettings, Settings, SinkSettings
from snowmelt.engine.loop.committing import Committing
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.table import KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.supervise.session import spark_session
from tests.bench._curves import Panel, draw
from tests.bench._processes import Meter
from tests.bench._soak_load import DATABASE, fill, read_table
from tests.bench.pipeline import work_folder
from tests.integration.maintained import compact_all
from tests.integration.paimon_tables import entry_of, intent_of
from tests.kit.servers import Server, start_mariadb

FIRST = 100
"""The epoch from which on figures are compared: before, workers start and tables are copied."""
AROUND = 50
NEWEST = GenerationNumber(10**6)
"""Above that of any driver of the run, which has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Of the epochs since the one before, or of the moment."""

    epoch: int
    epoch_s: float
    epoch_cpu_s: float
    commit_s: float
    commit_cpu_s: float
    read_s: float
    """Of all tables, one after the other."""
    read_cpu_s: float
    files: int
    """Of the fullest bucket."""
    runs: int
    manifests: int
    """Of the table that has the most; lists of manifests are not counted."""
    snapshots: int
    live_mb: float
    lake_mb: float
    driver_mb: float
    jvm_mb: float
    workers_mb: float


class Commits:
    """How long each epoch's commit took."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []
        self._began = self._cpu = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        act, commit = Committing.act, PaimonSink.commit

        def timed(committing: Committing, request: Any) -> Any:
            answer = act(committing, request)
            if isinstance(request, WinIntent):
                self._began, self._cpu = time.perf_counter(), 0.0
            elif isinstance(request, Forget):
                self.wall_s.append(time.perf_counter() - self._began)
                self.cpu_s.append(self._cpu)
            return answer

        def counted(*given: Any, **more: Any) -> Any:
            before = time.thread_time()
            try:
                return commit(*given, **more)
            finally:
                self._cpu += time.thread_time() - before

        with mock.patch.object(Committing, "act", timed), mock.patch.object(PaimonSink, "commit", counted):
            yield


class Reads:
    """What the reader tells."""

    def __init__(self, path: Path) -> None:
        self._lines = path.open()
        self.count = 0
        self.wrong: list[str] = []
        self.newest: list[dict[str, Any]] = []

    def take(self) -> tuple[float, float]:
        """Wall and processor seconds of a read of a table since the last look: medians."""
        found = [json.loads(line) for line in self._lines if line.endswith("\n")]
        self.count += len(found)
        self.wrong += [f"t{one['table']}: {one['wrong']}" for one in found if one["wrong"]]
        self.newest = found or self.newest
        return tuple(statistics.median(one[kind] for one in self.newest) if self.newest else 0.0 for kind in ("wall_s", "cpu_s"))  # type: ignore[return-value]


class Sampler:
    def __init__(self, given: argparse.Namespace, lake: Path, meter: Meter, commits: Commits, reads: Reads) -> None:
        self._given = given
        self._lake = lake
        self._meter = meter
        self.commits = commits
        self._reads = reads
        self._care: PaimonMaintenance | None = None
        self._at, self._cpu, self._epoch = time.perf_counter(), meter.now(), 0
        self.samples: list[Sample] = []

    def look(self, epoch: int) -> None:
        if epoch < self._epoch + self._given.every:
            return
        at, cpu, epochs = time.perf_counter(), self._meter.now(), epoch - self._epoch
        newest = slice(-min(epochs, len(self.commits.wall_s)) or None, None)
        wall_s, cpu_s = self._reads.take()
        memory = self._meter.memory()
        self._care = self._care or PaimonMaintenance(str(self._lake))
        self.samples.append(
            Sample(
                epoch=epoch,
                epoch_s=(at - self._at) / epochs,
                epoch_cpu_s=(cpu - self._cpu).engine / epochs,
                commit_s=statistics.median(self.commits.wall_s[newest]),
                commit_cpu_s=statistics.median(self.commits.cpu_s[newest]),
                read_s=wall_s * self._given.tables,
                read_cpu_s=cpu_s * self._given.tables,
                **shape_of(self._care, self._lake, self._given.tables),
                driver_mb=memory.driver,
                jvm_mb=memory.jvm,
                workers_mb=memory.workers,
            )
        )
        self._at, self._cpu, self._epoch = time.perf_counter(), self._meter.now(), epoch
        print(" ".join(cells(self.samples[-1])), file=sys.stderr, flush=True)


def shape_of(care: PaimonMaintenance, lake: Path, tables: int) -> dict[str, Any]:
    """Of the tables as they lie on disk."""
    files = runs = manifests = snapshots = live = 0
    for number in range(tables):
        buckets = care.files(f"ods.t{number}").buckets
        files = max(files, *(len(bucket.files) for bucket in buckets))
        levels = [[file.level for file in bucket.files] for bucket in buckets]
        runs = max(runs, *(each.count(0) + len({*each} - {0}) for each in levels))
        live += sum(file.size_bytes for bucket in buckets for file in bucket.files)
        folder = lake / "ods.db" / f"t{number}"
        snapshots = max(snapshots, sum(name.startswith("snapshot-") for name in os.listdir(folder / "snapshot")))
        names = os.listdir(folder / "manifest")
        manifests = max(manifests, sum(name.startswith("manifest-") and "list" not in name for name in names))
    return {
        "files": files,
        "runs": runs,
        "manifests": manifests,
        "snapshots": snapshots,
        "live_mb": live / 1e6,
        "lake_mb": bytes_of(lake) / 1e6,
    }


def bytes_of(folder: Path) -> int:
    found = 0
    for entry in os.scandir(folder):
        # What is being deleted meanwhile is gone.
        try:
            found += bytes_of(Path(entry.path)) if entry.is_dir() else entry.stat().st_size
        except FileNotFoundError:
            continue
    return found


# ---- the run


@contextmanager
def beside(*words: str, output: Path) -> Iterator[int]:
    """A program beside the pipeline, by its process' number, until the block ends."""
    with output.open("w") as said:
        command = [sys.executable, "-m", "tests.bench._soak_load", *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said)
        try:
            yield process.pid
        finally:
            process.communicate()
    if process.returncode:
        raise RuntimeError(f"the {words[0]} failed")


def soak(server: Server, password: Path, spark: object, wanted: Settings, given: argparse.Namespace, folder: Path) -> tuple[Sampler, Reads]:
    commits, lake = Commits(), folder / "lake"
    shape = str(given.tables), str(given.rows)
    write = "writer", server.host, str(server.port), server.user, str(password), *shape, str(given.pause)
    read = "reader", str(lake), *shape, str(given.read_pause)
    with commits.watching():
        pipeline = PipelineDriver(spark, wanted)
        # The reader can't begin before all tables are there.
        pipeline.run(lambda running: running.caught_up() and len(running.progress.phases) == given.tables)
        first = pipeline.ledger.done_epoch
        output = folder / "reads"
        with beside(*read, output=output) as reader, beside(*write, output=folder / "writes") as writer:
            reads = Reads(output)
            sampler = Sampler(given, lake, Meter(server.pid, reader, writer), commits, reads)
            commits.wall_s.clear()
            commits.cpu_s.clear()

            def over(running: PipelineDriver) -> bool:
                epoch = running.ledger.done_epoch - first
                sampler.look(epoch)
                return epoch >= given.epochs or bool(given.minutes and time.monotonic() > given.until)

            pipeline = PipelineDriver(spark, wanted)
            pipeline.run(over)
        reads.take()
        PipelineDriver(spark, wanted).run(lambda running: running.current())
    return sampler, reads


def compare(server: Server, lake: PaimonSink, tables: int) -> None:
    for number in range(tables):
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, v, note FROM {DATABASE}.t{number} ORDER BY id")
            rows = cursor.fetchall()
        found = read_table(lake, f"ods.t{number}").sort_by("id")
        if [tuple(row[name] for name in ("id", "v", "note")) for row in found.to_pylist()] != list(rows):
            raise RuntimeError(f"the lake differs from the source: t{number}")


def copy_once(lake: PaimonSink, fresh: PaimonSink, tables: int, buckets: int) -> None:
    """Each table as one commit writes it."""
    for number in range(tables):
        target = f"ods.t{number}"
        rows = read_table(lake, target)
        columns = pa.schema([field for field in rows.schema if not field.name.startswith("_")])
        fresh.create(target, columns, ["id"], buckets=buckets)
        writer = fresh.writer(target, "sm-1-e1-a1-")
        told = {**{name: rows.column(name) for name in columns.names}, SEQUENCE: pa.array(np.full(rows.num_rows, 3))}
        kinds = pa.array(np.zeros(rows.num_rows, np.int8))
        for batch in pa.table({**told, KIND: kinds}).combine_chunks().to_batches(max_chunksize=100_000):
            writer.write(batch)
        entry = entry_of(fresh, target, writer.finish())
        fresh.commit(intent_of(1, entry), entry)


def read_seconds(lake: PaimonSink, tables: int) -> tuple[float, float]:
    """Wall and processor of a read of all tables."""
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(tables):
        read_table(lake, f"ods.t{number}")
    return time.perf_counter() - wall, time.process_time() - cpu


def read_beside(lake: PaimonSink, fresh: PaimonSink, tables: int) -> dict[str, float]:
    """By turns, medians."""
    found = [(*read_seconds(lake, tables), *read_seconds(fresh, tables)) for _ in range(7)]
    names = ("wall", "cpu", "fresh_wall", "fresh_cpu")
    return {name: statistics.median(one[place] for one in found[1:]) for place, name in enumerate(names)}


def compact_fully(lake: Path, tables: int) -> None:
    """As `snowmelt maintain --full` does."""
    care = PaimonMaintenance(str(lake))
    for number in range(tables):
        done, _ = compact_all(care, f"ods.t{number}", generation=NEWEST)
        if not isinstance(done, int):
            raise RuntimeError(f"t{number} can't be compacted: {done.why}")


# ---- what is told


def slope(samples: list[Sample], kind: str) -> float:
    """Megabytes per 1,000 epochs."""
    kept = samples[len(samples) // 5 :]
    if len(kept) < 2:
        return 0.0
    return float(np.polyfit([one.epoch for one in kept], [getattr(one, kind) for one in kept], 1)[0]) * 1000


def report(sampler: Sampler, reads: Reads, fresh_mb: float, seconds: dict[str, float], given: argparse.Namespace) -> Any:
    samples = sampler.samples
    last = samples[-1]

    def ratio(values: list[float]) -> float:
        early = values[FIRST - AROUND : FIRST + AROUND] or values
        return round(statistics.median(values[-2 * AROUND :]) / statistics.median(early), 2)

    return {
        "bench": "soak",
        "epochs": last.epoch,
        "tables": given.tables,
        "rows": given.rows,
        "interval_s": given.interval,
        "keep_for_s": given.keep_for,
        "cores": os.cpu_count(),
        "commit_ratio": ratio(sampler.commits.wall_s),
        "commit_cpu_ratio": ratio(sampler.commits.cpu_s),
        "bytes_ratio": round(last.lake_mb / fresh_mb, 2),
        "bytes_ratio_max": round(max(one.lake_mb for one in samples[1:] or samples) / fresh_mb, 2),
        "live_bytes_ratio": round(last.live_mb / fresh_mb, 2),
        "read_ratio": round(seconds["wall"] / seconds["fresh_wall"], 2),
        "read_cpu_ratio": round(seconds["cpu"] / seconds["fresh_cpu"], 2),
        "read_cpu_ratio_after_full": round(seconds["merged_cpu"] / seconds["merged_fresh_cpu"], 2),
        **{f"{kind}_per_1000_epochs": round(slope(samples, kind), 1) for kind in ("driver_mb", "jvm_mb", "workers_mb")},
        "files_max": max(one.files for one in samples),
        "manifests_max": max(one.manifests for one in samples),
        "snapshots_max": max(one.snapshots for one in samples),
        "reads": reads.count,
        "wrong_reads": len(reads.wrong),
    }


def picture(samples: list[Sample], fresh_mb: float, seconds: dict[str, float]) -> str:
    def curves(**names: str) -> dict[str, list[float]]:
        return {title.replace("_", " "): [getattr(one, name) for one in samples] for title, name in names.items()}

    panels = [
        Panel("an epoch's commit, seconds", curves(wall="commit_s", processor="commit_cpu_s")),
        Panel("an epoch's processor, seconds", curves(driver_JVM_workers="epoch_cpu_s")),
        Panel(
            "a read of all tables by a process beside the pipeline, seconds of processor",
            curves(processor="read_cpu_s"),
            {"a fresh copy, by a process that is alone": seconds["fresh_cpu"]},
        ),
        Panel(
            "megabytes",
            curves(newest_snapshots="live_mb", all_files="lake_mb"),
            {"a fresh copy": fresh_mb, "twice that": 2 * fresh_mb},
        ),
        Panel("at most", curves(files_of_a_bucket="files", runs_of_a_bucket="runs")),
        Panel("of a table, at most", curves(snapshots="snapshots", manifests="manifests")),
        Panel("memory, megabytes", curves(driver="driver_mb", JVM="jvm_mb", workers="workers_mb")),
    ]
    return draw(f"{samples[-1].epoch} epochs of ./run bench soak", "epochs", [one.epoch for one in samples], panels)


def cells(sample: Sample) -> list[str]:
    values = (getattr(sample, field.name) for field in fields(sample))
    return [str(value) if isinstance(value, int) else f"{value:.3f}" if value < 10 else f"{value:.0f}" for value in values]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=0, help="end after this time, however few epochs there were")
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rows", type=int, default=40_000, help="of each table")
    parser.add_argument("--interval", type=float, default=0.3, help="the pipeline's, in seconds")
    parser.add_argument("--pause", type=float, default=0.1, help="of the writer, after each transaction")
    parser.add_argument("--read-pause", type=float, default=0.2, help="of the reader, after each table")
    parser.add_argument("--keep-for", type=float, default=30, help="how long a snapshot is kept, in seconds")
    parser.add_argument("--every", type=int, default=100, help="epochs between two samples")
    parser.add_argument("--picture", type=Path, help="write the curves to this file")
    given = parser.parse_args()
    given.until = time.monotonic() + 60 * given.minutes
    return given


def settings_of(server: Server, password: Path, folder: Path, given: argparse.Namespace) -> Settings:
    options = MySqlOptions(
        host=server.host,
        port=server.port,
        username=server.user,
        password=Secret(f"file:{password}"),
        tls=Tls.DISABLED,
        allow_password_to_unverified_server=True,
    )
    expiry = ExpiryRules(age_ms=round(given.keep_for * 1000))
    return Settings(
        name="bench",
        state=folder / "state",
        sink=SinkSettings(warehouse=str(folder / "lake")),
        source=MySql(options=options),
        tables=[f"{DATABASE}.*"],
        target="ods.{table}",
        pace=PaceSettings(interval_s=given.interval),
        maintenance=MaintenanceSettings(rules=MaintenanceRules(expiry=expiry)),
    )


def main() -> None:
    given = parsed()
    # What maintenance warns about.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    # Of each race between an epoch and a compaction, which the next try settles.
    logging.getLogger("pypaimon").setLevel(logging.ERROR)
    console = Console(width=180) if not sys.stdout.isatty() else Console()
    with work_folder(keep=False) as folder:
        server = start_mariadb(folder / "server", innodb_flush_log_at_trx_commit=2, sync_binlog=0, server_id=1)
        try:
            fill(server, given.tables, given.rows)
            password = folder / "password"
            password.write_text(server.password)
            wanted = settings_of(server, password, folder, given)
            with spark_session("bench", master="local[*]", ui=False, debug=False) as spark:
                sampler, reads = soak(server, password, spark, wanted, given, folder)
            lake, fresh = PaimonSink(str(folder / "lake"), user="bench"), PaimonSink(str(folder / "fresh"), user="bench")
            compare(server, lake, given.tables)
        finally:
            server.stop()
        copy_once(lake, fresh, given.tables, wanted.sink.buckets)
        fresh_mb = bytes_of(folder / "fresh") / 1e6
        seconds = read_beside(lake, fresh, given.tables)
        compact_fully(folder / "lake", given.tables)
        seconds |= {f"merged_{name}": value for name, value in read_beside(lake, fresh, given.tables).items()}
    table = Table(*(field.name.replace("_", " ") for field in fields(Sample)))
    for sample in sampler.samples:
        table.add_row(*cells(sample))
    console.print(table)
    for told in reads.wrong[:20]:
        console.print(told)
    if given.picture:
        given.picture.write_text(picture(sampler.samples, fresh_mb, seconds))
    print(json.dumps(report(sampler, reads, fresh_mb, seconds, given)))
    if reads.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
