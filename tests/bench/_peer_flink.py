"""Flink CDC as a peer of `bench pipeline`: the same server and table into a Paimon table of as many buckets, in one local JVM.

It is set up as one would who knows it: as many subtasks as cores, a checkpoint each 10 s, and a poll interval of 5 ms instead of 500,
for which it would else wait at every chunk. The clock starts when the server sends it the first rows of a chunk, or starts to send
it the log, and ends with the Paimon commit that has the last row; so its start-up is in no rate. But its JVM is a new one in each step and
compiles while it works, some five to eight seconds of processor: with few rows that is most of what one sees. Its sink
compacts while it writes, which snowmelt's does not. Between the two steps it is killed and started again from its newest checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

from tests.bench._flink import PARALLELISM, FlinkEnded, FlinkJvm, fetch_jars
from tests.bench._processes import Meter, Stage
from tests.kit.servers import Server

CONNECTORS = (
    "org.apache.flink:flink-sql-connector-mysql-cdc:3.5.0",
    "com.mysql:mysql-connector-j:8.0.33",
    "org.apache.paimon:paimon-flink-1.20:1.3.1",
    "org.apache.flink:flink-shaded-hadoop-2-uber:2.8.3-10.0",
)
FOLDER = "flink-1.20.5-cdc-3.5.0-paimon-1.3.1"
CHECKPOINT_S = 10
POLL_MS = 5
FIRST_ROWS = 5000
"""So many that they are no answers to questions, and less than a chunk has."""

_SNAPSHOT = re.compile(r"snapshot-(\d+)")
_COMMITTED_FIRST = "intentionally thrown after committing the restored checkpoints"


class _CommittedFirst(RuntimeError):
    """It was killed between a checkpoint and the commit of it, has made up for that, and wants to be started again."""


@cache
def fetch() -> Path:
    """The folder of all jars, fetched once."""
    return fetch_jars(FOLDER, CONNECTORS)


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
        self._jvm = FlinkJvm("Flink CDC", folder, fetch(), "FlinkPeer")

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

    def _running(self, checkpoint: Path | None = None) -> AbstractContextManager[subprocess.Popen[str]]:
        settings = {
            "execution.checkpointing.interval": f"{CHECKPOINT_S} s",
            "execution.checkpointing.dir": f"file://{self._folder}/checkpoints",
            "execution.checkpointing.num-retained": "3",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        }
        if checkpoint is not None:
            settings["execution.state-recovery.path"] = f"file://{checkpoint}"
        return self._jvm.running(settings, str(self._statements))

    def _await(self, process: subprocess.Popen[str], so: Callable[[], bool]) -> None:
        try:
            self._jvm.wait_for(process, so)
        except FlinkEnded as ended:
            if _COMMITTED_FIRST in str(ended):
                raise _CommittedFirst from ended
            raise

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
