"""A tiering service that runs in a thread of the test's process, and what its lake holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.service import Tiering
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.server import FlussServer
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import BUCKET, OFFSET, TIMESTAMP, PaimonTieringSink
from snowmelt.tiering.rounds import RoundState

WAIT_S_MAX = 120
LAKE = {"table__datalake__enabled": "true", "table__datalake__freshness": "1s"}
"""Properties of a table that is tiered as soon as it can be."""


def settings(server: FlussServer, **more: Any) -> TieringSettings:
    given: dict[str, Any] = {"name": "test", "warehouse": str(server.warehouse), "poll_s": 0.1, "lease_ms": 10_000, **more}
    return TieringSettings(bootstrap=server.bootstrap, **given)


class RunningTiering:
    service_class = Tiering

    def __init__(self, spark: Any, wanted: TieringSettings) -> None:
        self.ends: list[RoundEnd] = []
        self.settings = wanted
        self.service = self.service_class(spark, wanted, self.ends.append)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tiering")

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as error:
            self._error = error

    def wait_for(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not condition():
            if self._error is not None:
                raise self._error
            if time.monotonic() > deadline:
                failed = [end for end in self.ends if end.error is not None]
                pytest.fail(f"nothing happened; rounds: {self.ends[-5:]}; failed: {failed[-5:]}")
            time.sleep(0.05)

    def finished(self, path: TableId) -> int:
        return sum(end.path == path and end.state is RoundState.FINISHED for end in self.ends)

    def __enter__(self) -> RunningTiering:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.service.stop()
        self._thread.join(WAIT_S_MAX)
        if self._error is not None and error is None:
            raise self._error


def assert_others_read_it(client: FlussClient, path: TableId) -> None:
    """Readers of Fluss' own take a lake snapshot that the server calls readable, and no other."""
    known = client.lake_snapshot(path)
    assert known is not None
    assert client.lake_snapshot(path, readable=True) == known


def lake_table(warehouse: Path | str, path: TableId) -> pa.Table:
    """All rows of a lake table, system columns included; empty where nothing was committed yet."""
    # Read by the native reader: pypaimon's other one makes Python's datetimes of timestamps, which know no nanoseconds.
    table = PaimonTieringSink(str(warehouse))._table(f"{path.database}.{path.name}").copy({"read.native.enabled": "true"})
    builder = table.new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def lake_rows(warehouse: Path | str, path: TableId) -> list[dict[str, Any]]:
    """The table's own columns, in an order that does not depend on where rows lie."""
    rows = lake_table(warehouse, path).drop_columns([BUCKET, OFFSET, TIMESTAMP]).to_pylist()
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))
