"""Whole rounds of tiering on Spark for `bench tiering`: from Fluss into a Paimon table of two buckets, committed and told to Fluss."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.service import Tiering
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.tables import describe_table
from snowmelt.fluss.types import Schema
from snowmelt.model.table import TableId
from snowmelt.supervise import TIERING_DAEMON, spark_session
from snowmelt.tiering.rounds import State
from tests.fluss_raw import create_table, kv_batch, put
from tests.integration.test_fluss_reading import Reading
from tests.integration.tiering import LAKE, lake_table

BUCKETS = 2
AT_ONCE = 10_000
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
        assert all(end.state is State.FINISHED for end in ends)
        return sum(end.seconds for end in ends)

    def __enter__(self) -> Rounds:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()
        self._thread.join()


def measure(server: FlussServer, database: str, schema: Schema, row: Callable[[int, int], bytes], rows: int) -> dict[str, int]:
    """Rows a second of a round by KV snapshots, and of one by the log, in which every row was changed: its old half and its new one count.
    `row`: of an id, at a turn."""
    path, warming = TableId(database, "lake_orders"), TableId(database, "warming")
    with spark_session("bench", master="local[2]", ui=False, debug=False, daemon=TIERING_DAEMON) as spark:

        def bring(table: TableId, turn: int, count: int, expected: int) -> float:
            # No service runs meanwhile: it would bring the first rows before the last are there.
            load(server, table, count, partial(row, turn=turn))
            if turn == 0:
                Reading(server, table).snapshots()
            with Rounds(spark, server) as rounds:
                return rounds.next(expected)

        for table in (warming, path):
            create_table(server, table, schema, buckets=BUCKETS, **LAKE)
        # What is compiled is compiled then, and Spark has its workers.
        bring(warming, 0, 1_000, 1_000)
        bring(warming, 1, 1_000, 2_000)
        seconds = {"snapshot": bring(path, 0, rows, rows), "log": bring(path, 1, rows, 2 * rows)}
        assert lake_table(server.warehouse, path).num_rows == rows
    return {"snapshot_rows_per_s": round(rows / seconds["snapshot"]), "log_rows_per_s": round(2 * rows / seconds["log"])}
