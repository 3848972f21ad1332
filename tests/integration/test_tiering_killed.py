"""A tiering service that is killed at each step of a round, again and again: the lake is the Fluss table, and each row came once.

`python -m tests.integration.test_tiering_killed 100` does as many kills without Spark; the tests do one of each on Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.engine.failpoints import OF_TIERING, SPLIT_READ
from snowmelt.fluss.client import Tiered, connect_coordinator
from snowmelt.fluss.server import FlussServer
from snowmelt.lakes.paimon_tiering import BUCKET, OFFSET
from tests import jvm
from tests.fluss_servers import FreshFluss, Tables, start_fluss
from tests.integration.tiering import LAKE, in_order, lake_rows, lake_table
from tests.waiting import until

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 120.0


class Shop:
    """A table with a key and a log table, and what they hold."""

    def __init__(self, server: FlussServer) -> None:
        self.server = server
        self.tables = Tables(server)
        self.keyed = self.tables.make(**LAKE)
        self.log = self.tables.make(columns=pa.schema([("n", pa.int64())]), key=(), **LAKE)
        self.held: dict[int, dict[str, Any]] = {}
        self._rng = random.Random(7)
        self._turns = itertools.count(1)
        self._appended = 0

    def change(self) -> None:
        turn = next(self._turns)
        rows = [{"id": self._rng.randrange(500), "name": f"turn {turn}", "n": turn} for _ in range(60)]
        self.tables.upsert(self.keyed, rows)
        self.held.update({row["id"]: row for row in rows})
        gone = {self._rng.choice(list(self.held)) for _ in range(10)}
        self.tables.delete(self.keyed, [{"id": number} for number in gone])
        for number in gone:
            del self.held[number]
        self.tables.append(self.log, pa.record_batch({"n": pa.array(range(self._appended, self._appended + 50), pa.int64())}))
        self._appended += 50

    def is_in_the_lake(self) -> bool:
        return lake_rows(self.server.warehouse, self.keyed) == in_order(self.held.values()) and self._log_rows() >= self._appended

    def _log_rows(self) -> int:
        return int(lake_table(self.server.warehouse, self.log).num_rows)

    def check(self) -> None:
        assert lake_rows(self.server.warehouse, self.keyed) == in_order(self.held.values())
        rows = lake_table(self.server.warehouse, self.log)
        assert sorted(rows["n"].to_pylist()) == list(range(self._appended)), "a row is lost, or came twice"
        places = rows.select([BUCKET, OFFSET]).to_pylist()
        assert len({tuple(place.values()) for place in places}) == len(places)


class Service:
    def __init__(self, server: FlussServer, folder: Path, failpoint: str = "", *, master: str) -> None:
        self._died = folder / f"armed-{failpoint}-{time.monotonic_ns()}" / "died"
        self._died.parent.mkdir()
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        environment["SNOWMELT_FAILPOINT"] = f"{failpoint}:{self._died}" if failpoint else ""
        self._bootstrap = server.bootstrap
        self.log = folder / f"{self._died.parent.name}.txt"
        command = [sys.executable, "-m", "tests.integration.tiering_process", server.bootstrap, str(server.warehouse), master]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=ROOT)

    def somebody_died(self) -> bool:
        assert self.process.poll() in (None, -signal.SIGKILL), self.log.read_text(errors="replace")[-4000:]
        return self._died.exists()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._hand_back()

    def _hand_back(self) -> None:
        """What the coordinator would do by itself two minutes after the last heartbeat, which can't be set."""
        said = [line.split() for line in self.log.read_text(errors="replace").splitlines() if line.startswith("handed ")]
        newest = {int(table): Tiered(int(table), int(epoch), int(tiering)) for _, table, epoch, tiering in said}
        connect_coordinator(self._bootstrap).heartbeat(failed=newest.values())


def kill_at(shop: Shop, folder: Path, failpoint: str, *, master: str) -> None:
    service = Service(shop.server, folder, failpoint, master=master)
    try:
        shop.change()
        until(service.somebody_died, seconds_max=WAIT_S_MAX)
        if failpoint == SPLIT_READ and master != "none":
            # A worker died; its service goes on.
            until(shop.is_in_the_lake, seconds_max=WAIT_S_MAX)
    finally:
        service.kill()


def finish(shop: Shop, folder: Path, *, master: str) -> None:
    service = Service(shop.server, folder, master=master)
    try:
        until(shop.is_in_the_lake, seconds_max=2 * WAIT_S_MAX)
    finally:
        service.kill()
    shop.check()


@pytest.mark.timeout(600)
def test_a_service_or_worker_that_dies_at_each_step_of_a_round_loses_and_doubles_nothing(fresh_fluss: FreshFluss, tmp_path: Path) -> None:
    shop = Shop(fresh_fluss())
    for failpoint in OF_TIERING:
        kill_at(shop, tmp_path, failpoint, master="local[2]")
    finish(shop, tmp_path, master="local[2]")
    shop.tables.close()


def main() -> None:
    kills = int(sys.argv[1])
    jvm.set_options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start_fluss(folder / "fluss")
        shop = Shop(server)
        try:
            for number, failpoint in zip(range(kills), itertools.cycle(OF_TIERING), strict=False):
                kill_at(shop, folder, failpoint, master="none")
                print(f"{number + 1} of {kills}: killed at {failpoint}", flush=True)
            finish(shop, folder, master="none")
            print(f"killed {kills} times; the lake has {len(shop.held)} rows by key and each appended row once")
        finally:
            shop.tables.close()
            server.stop()


if __name__ == "__main__":
    main()
