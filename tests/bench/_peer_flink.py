"""Flink CDC as a peer of `bench pipeline`: the same server and table into a Paimon table of as many buckets, in one local JVM.

It is set up as one would who knows it: as many subtasks as cores, a checkpoint each 10 s, and a poll interval of 5 ms instead of 500,
for which it would else wait at every chunk. The clock starts when the server sends it the first rows of a chunk, or starts to send
it the log, and ends with the Paimon commit that has the last row; so its start-up is in no rate. But its JVM is a new one in each step and
compiles while it works, some five to eight seconds of processor: with few rows that is most of what one sees. Its sink
compacts while it writes, which snowmelt's does not. Between the two steps it is killed and started again from its newest checkpoint.

Flink comes from PyPI, where it is packed whole, connectors come from Maven Central; all versions are pinned. They are kept in the cache,
where they appear at once and whole.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.bench._processes import Meter, Stage
from tests.servers import Server

FLINK = "apache-flink-libraries==1.20.5"
CONNECTORS = (
    "org.apache.flink:flink-sql-connector-mysql-cdc:3.5.0",
    "com.mysql:mysql-connector-j:8.0.33",
    "org.apache.paimon:paimon-flink-1.20:1.3.1",
    "org.apache.flink:flink-shaded-hadoop-2-uber:2.8.3-10.0",
)
FOLDER = "flink-1.20.5-cdc-3.5.0-paimon-1.3.1"
PARALLELISM = 2
CHECKPOINT_S = 10
POLL_MS = 5
HEAP = "3g"
FIRST_ROWS = 5000
"""So many that they are no answers to questions, and less than a chunk has."""
LOOK_S = 0.05
STEP_S_MAX = 3600.0

_OPENED = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent", "util.concurrent.atomic")
_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_COMMITTED_FIRST = "intentionally thrown after committing the restored checkpoints"


class _CommittedFirst(RuntimeError):
    """It was killed between a checkpoint and the commit of it, has made up for that, and wants to be started again."""


@cache
def fetch() -> Path:
    """The folder of all jars, fetched once."""
    peers = Path(os.environ.get("SNOWMELT_CACHE") or Path.home() / ".cache" / "snowmelt") / "peers"
    target = peers / FOLDER
    peers.mkdir(parents=True, exist_ok=True)
    with open(peers / "flink.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            for program in ("mvn", "javac"):
                if shutil.which(program) is None:
                    raise RuntimeError(f"the peer needs {program} (on Debian: apt-get install maven default-jdk-headless)")
            print(f"fetching Flink CDC into {target} (once)", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix=".flink-", dir=peers) as name:
                _fetch_into(Path(name), Path(name) / "jars")
                (Path(name) / "jars").rename(target)
    return target


def _fetch_into(work: Path, jars: Path) -> None:
    jars.mkdir()
    venv.create(work / "venv", with_pip=True)
    pip = [str(work / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _do([*pip, "--no-cache-dir", "--target", str(work / "flink"), FLINK], work)
    for jar in (work / "flink" / "pyflink" / "lib").glob("*.jar"):
        jar.rename(jars / jar.name)
    maven = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", f"-Dmaven.repo.local={work / 'repository'}", "dependency:copy"]
    for artifact in CONNECTORS:
        _do([*maven, f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"], work)


def _do(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{(done.stdout + done.stderr)[-4000:]}")


class FlinkCdc:
    """`snapshot`, then `catch_up`, once each."""

    def __init__(self, server: Server, meter: Meter, folder: Path, *, database: str, table: str, buckets: int) -> None:
        self._server = server
        self._meter = meter
        self._folder = folder
        self.warehouse = folder / "lake"
        self.target = f"default.{table}"
        self._snapshots = self.warehouse / "default.db" / table / "snapshot"
        folder.mkdir()
        source = {
            "connector": "mysql-cdc",
            "hostname": server.host,
            "port": str(server.port),
            "username": server.user,
            "password": server.password,
            "database-name": database,
            "table-name": table,
            "server-id": f"5500-{5500 + PARALLELISM}",
            "server-time-zone": "UTC",
            "debezium.poll.interval.ms": str(POLL_MS),
        }
        columns = "(id BIGINT, k INT, c STRING, pad STRING, PRIMARY KEY (id) NOT ENFORCED)"
        options = ", ".join(f"'{name}' = '{value}'" for name, value in source.items())
        statements = (
            f"CREATE TABLE source {columns} WITH ({options})",
            f"CREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = 'file://{self.warehouse}')",
            f"CREATE TABLE IF NOT EXISTS lake.`default`.{table} {columns} WITH ('bucket' = '{buckets}')",
            f"INSERT INTO lake.`default`.{table} SELECT * FROM source",
        )
        self._statements = folder / "statements.sql"
        self._statements.touch(mode=0o600)
        self._statements.write_text(";\n".join(statements))
        _do(["javac", "-cp", f"{fetch()}/*", "-d", str(folder), str(Path(__file__).with_name("java") / "FlinkPeer.java")], folder)

    def snapshot(self, rows: int) -> tuple[Stage, float]:
        """Also seconds from the start of its process to the first rows."""
        sent, dumps, started = self._rows_sent(), self._dumps(), time.perf_counter()
        with self._running() as process:
            with self._meter.stage(alone=process.pid) as stage:
                self._await(process, lambda: self._rows_sent() > sent + FIRST_ROWS)
                self._meter.begin()
                self._await(process, lambda: self._committed(0) >= rows)
                self._meter.end()
            # It reads the log from the checkpoint after its last chunk on; only one that is later yet spares its next start the way there.
            self._await(process, lambda: bool(self._dumps() - dumps))
            reached = self._checkpoint()[0]
            self._await(process, lambda: self._checkpoint()[0] >= reached + 2)
        return stage, stage.began - started

    def catch_up(self, changes: int) -> Stage:
        try:
            return self._catch_up(changes)
        except _CommittedFirst:
            return self._catch_up(changes)

    def _catch_up(self, changes: int) -> Stage:
        dumps, before = self._dumps(), max(self._numbers())
        with self._running(self._checkpoint()[1]) as process, self._meter.stage(alone=process.pid) as stage:
            self._await(process, lambda: bool(self._dumps() - dumps))
            self._meter.begin()
            self._await(process, lambda: self._committed(before) >= changes)
            self._meter.end()
        return stage

    # ---- its process

    @contextmanager
    def _running(self, checkpoint: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        settings = {
            "execution.target": "local",
            "parallelism.default": str(PARALLELISM),
            "execution.checkpointing.interval": f"{CHECKPOINT_S} s",
            "execution.checkpointing.dir": f"file://{self._folder}/checkpoints",
            "execution.checkpointing.num-retained": "3",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            # A failure is to be seen and not to be healed.
            "restart-strategy.type": "none",
            **{f"{part}.bind-{'address' if part == 'rest' else 'host'}": "127.0.0.1" for part in ("rest", "jobmanager", "taskmanager")},
            "rest.address": "127.0.0.1",
            "jobmanager.rpc.address": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
        }
        if checkpoint is not None:
            settings["execution.state-recovery.path"] = f"file://{checkpoint}"
        file = self._folder / "settings.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
        java = ["java", f"-Xmx{HEAP}", *opened, "-cp", f"{fetch()}/*{os.pathsep}{self._folder}", "FlinkPeer"]
        with open(self._folder / "log", "ab") as log:
            process = subprocess.Popen(
                [*java, str(file), str(self._statements)], cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _await(self, process: subprocess.Popen[bytes], so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STEP_S_MAX
        while not so():
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                what = f"ended with {process.returncode}" if ended else f"is not done after {STEP_S_MAX:.0f} s"
                told = (self._folder / "log").read_text(errors="replace")[-4000:]
                raise (_CommittedFirst if _COMMITTED_FIRST in told else RuntimeError)(f"Flink CDC {what}:\n{told}")
            time.sleep(LOOK_S)

    # ---- how far it is

    def _rows_sent(self) -> int:
        return int(self._ask("SHOW GLOBAL STATUS LIKE 'Rows_sent'")[0][1])

    def _dumps(self) -> set[int]:
        """Who is sent the log. A connection that is gone stays in this list until the server has something to send."""
        return {int(row[0]) for row in self._ask("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")}

    def _ask(self, question: str) -> list[tuple[Any, ...]]:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(question)
            return list(cursor.fetchall())

    def _numbers(self) -> list[int]:
        if not self._snapshots.is_dir():
            return []
        return sorted(int(found[1]) for name in os.listdir(self._snapshots) if (found := _SNAPSHOT.fullmatch(name)))

    def _committed(self, after: int) -> int:
        """Rows that were committed by snapshots behind `after`, without what compaction wrote again. Each key is written once in a step."""
        rows = 0
        for number in self._numbers():
            if number > after:
                snapshot = json.loads((self._snapshots / f"snapshot-{number}").read_text())
                rows += int(snapshot["deltaRecordCount"]) if snapshot["commitKind"] == "APPEND" else 0
        return rows

    def _checkpoint(self) -> tuple[int, Path | None]:
        """The newest one that is complete."""
        found = [(int(path.parent.name[4:]), path.parent) for path in (self._folder / "checkpoints").glob("*/chk-*/_metadata")]
        return max(found, default=(0, None))
