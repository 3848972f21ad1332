"""Fluss tables reach the lake by rounds on Spark: the real server, real leases, real Paimon tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from snowmelt.fluss.server import FlussServer
from snowmelt.lakes.paimon_tiering import OFFSET
from tests.fluss_servers import Tables
from tests.integration.tiering import LAKE, RunningTiering, in_order, lake_rows, lake_table, settings


@pytest.mark.timeout(240)
def test_tables_of_every_kind_reach_the_lake_and_follow(fluss: FlussServer, fluss_tables: Tables, spark: Any) -> None:
    keyed = fluss_tables.make(**LAKE)
    log = fluss_tables.make(columns=pa.schema([("n", pa.int64()), ("text", pa.string())]), key=(), **LAKE)
    columns = pa.schema([("day", pa.string()), ("id", pa.int32()), ("v", pa.string())])
    parted = fluss_tables.make(columns=columns, key=("day", "id"), partitioned_by=("day",), **LAKE)
    held = {number: {"id": number, "name": f"name {number}", "n": None if number % 7 == 0 else -number} for number in range(2000)}
    days = [{"day": day, "id": number, "v": f"{day} {number}"} for day in ("2026-01-01", "2026-01-02") for number in range(50)]
    for day in ("2026-01-01", "2026-01-02"):
        fluss_tables.add_partition(parted, day=day)
    fluss_tables.upsert(keyed, held.values())
    fluss_tables.upsert(parted, days)
    appended = [pa.record_batch({"n": pa.array(range(500), pa.int64()), "text": [f"t{number}" for number in range(500)]})]
    fluss_tables.append(log, *appended)
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, keyed)) == len(held))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, parted)) == len(days))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, log)) == 500)
        # What changes comes by the log.
        changed = [{"id": number, "name": "changed", "n": number} for number in range(0, 2000, 3)]
        held.update({row["id"]: row for row in changed})
        fluss_tables.upsert(keyed, changed)
        gone = range(1, 2000, 10)
        fluss_tables.delete(keyed, [{"id": number} for number in gone])
        for number in gone:
            del held[number]
        fluss_tables.append(log, *appended)
        running.wait_for(lambda: lake_rows(fluss.warehouse, keyed) == in_order(held.values()))
        running.wait_for(lambda: len(lake_rows(fluss.warehouse, log)) == 1000)
    assert lake_rows(fluss.warehouse, parted) == in_order(days)
    offsets = lake_table(fluss.warehouse, log).select(["__bucket", OFFSET]).to_pylist()
    assert len({tuple(row.values()) for row in offsets}) == len(offsets) == 1000, "a row came twice"
    assert not [end for end in running.ends if end.error is not None]
