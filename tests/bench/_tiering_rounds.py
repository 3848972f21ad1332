"""Whole rounds of tiering on Spark for `bench tiering`: from Fluss into a Paimon table of two buckets, committed and told to Fluss."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.service import Tiering
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.types import Schema
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.tables import describe_table
from snowmelt.model.table import TableId
from snowmelt.supervise.session import TIERING_DAEMON, spark_session
from snowmelt.tiering.rounds import RoundState
from tests.bench._processes import Meter, Stage
from tests.integration.fluss_reading import Reading
from tests.integration.tiering import LAKE, lake_table
from tests.kit.fluss_raw import create_table, kv_batch, put

BUCKETS = 2
AT_ONCE = 10_000
WARMING_ROWS = 1_000
WAIT_S_MAX = 600


def load(server: FlussServer, path: TableId, rows: int, row: Callable[[int], bytes]) -> None:
    """Each row where its key belongs."""
    table = describe_table(FlussClient(server.connect()), path)
    bucketing = table.bucketing()
    assert bucketing is not None
    for start in range(0, rows, AT_ONCE):
        ids = range(start, min(start + AT_ONCE, rows))
        placed = bucketing.buckets(pa.record_batch({"id": pa.array(ids, pa.int64())}))
        for bucket in range(BUCKETS):
            mine = [id for id, home in zip(ids, placed, strict=True) if home == bucket]
            # Keys as Paimon's binary rows.
            put(server, table.table, bucket, kv_batch((bytes(8) + struct.pack("<q", id), row(id)) for id in mine))


class Rounds:
    """A service, and what its rounds brought."""

    def __init__(self, spark: Any, server: FlussServer) -> None:
        self._ends: list[RoundEnd] = []
        self._ended = threading.Condition()
        settings = TieringSettings(name="bench", bootstrap=server.bootstrap, warehouse=str(server.warehouse), poll_s=0.05)
        self._service = Tiering(spark, settings, self._take)
        self._thread = threading.Thread(target=self._service.run)

    def _take(self, end: RoundEnd) -> None:
        assert end.error is None, end.error
        with self._ended:
            if end.rows:
                self._ends.append(end)
                self._ended.notify_all()

    def next(self, rows: int) -> float:
        """Seconds of the rounds that bring these rows."""
        with self._ended:
            assert self._ended.wait_for(lambda: sum(end.rows for end in self._ends) >= rows, WAIT_S_MAX), "no round came"
            ends, self._ends = self._ends, []
        assert sum(end.rows for end in ends) == rows
        assert all(end.state is RoundState.FINISHED for end in ends)
        return sum(end.seconds for end in ends)

    def __enter__(self) -> Rounds:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Round:
    """What brought a table on: a round, or several where one did not bring all."""

    rows: int
    seconds: float
    stage: Stage

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_s_per_m_rows(self) -> float:
        """Without the server's."""
        return self.stage.cpu.engine / self.rows * 1e6


@dataclass(frozen=True, slots=True)
class Orders:
    """What tables are made of."""

    server: FlussServer
    database: str
    schema: Schema
    row: Callable[..., bytes]
    """Of an id, at a turn."""

    def play(self, name: str, rows: int, bring: Callable[[TableId, int], Round]) -> tuple[Round, Round]:
        """A new table by its KV snapshots, and then by the log, in which every row was changed: its old half and its new one count. In the
        end it is in the lake alone. No service may run but in `bring`: it would bring the first rows before the last are there."""
        path = TableId(self.database, name)
        create_table(self.server, path, self.schema, buckets=BUCKETS, **LAKE)
        load(self.server, path, rows, partial(self.row, turn=0))
        Reading(self.server, path).snapshots()
        by_snapshot = bring(path, rows)
        load(self.server, path, rows, partial(self.row, turn=1))
        by_log = bring(path, 2 * rows)
        with self.server.connect() as connection:
            FlussClient(connection).drop_table(path)
        assert self.lake(name).num_rows == rows
        return by_snapshot, by_log

    def lake(self, name: str) -> pa.Table:
        return lake_table(self.server.warehouse, TableId(self.database, name))


def measure(orders: Orders, meter: Meter, name: str, rows: int) -> tuple[Round, Round]:
    """A round by KV snapshots, and one by the log. Processor time counts from the service's start on, a moment before the hand-out."""
    with spark_session("bench", master="local[2]", ui=False, debug=False, daemon=TIERING_DAEMON) as spark:

        def bring(_: TableId, expected: int) -> Round:
            with meter.stage() as stage, Rounds(spark, orders.server) as rounds:
                seconds = rounds.next(expected)
                meter.end()
            return Round(expected, seconds, stage)

        # What is compiled is compiled then, and Spark has its workers.
        orders.play(f"{name}_warming", WARMING_ROWS, bring)
        return orders.play(name, rows, bring)
