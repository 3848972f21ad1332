"""What the chunk path's writer costs the processor, beside Parquet alone, and beside Paimon's own writer.

The rows of a table of eight columns come in the order of their key, in batches as a chunk read gives them. Parquet alone is one call of
pyarrow with all of them, compressed as Paimon's files are. The lake's writers put them into buckets, tell the statistics, and make the
files durable.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snowmelt.model.table import INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE, SinkWriter
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.writer import PaimonWriter

ROWS = 1_000_000
BATCH_ROWS = 65_536
BUCKETS = 4
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("amount", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("mail", pa.string()),
        pa.field("state", pa.string()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us")),
    ]
)


def measure_chunks(repeat: int) -> dict[str, float]:
    """Medians of CPU seconds, and their ratios to Parquet alone. The ways take turns, so that a busy machine is busy for all of them."""
    rows = _rows(ROWS)
    batches = [rows.slice(start, BATCH_ROWS) for start in range(0, ROWS, BATCH_ROWS)]
    plain = pa.Table.from_batches([rows]).drop_columns([KIND])
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        lake = PaimonSink(f"{name}/lake", user="snowmelt-bench")
        lake.create("ods.shop_orders", COLUMNS, ["id"], buckets=BUCKETS)
        table = lake.table("ods.shop_orders")
        ways: dict[str, Callable[[], None]] = {
            "parquet": lambda: pq.write_table(plain, Path(name) / "plain.parquet", compression="zstd"),
            "chunk_path": lambda: _write(lake.writer("ods.shop_orders", "sm-1-c1-a1-"), batches),
            "paimons_writer": lambda: _write(PaimonWriter(table, "snowmelt-bench", sequenced=True), batches),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        # The first time is not measured: kernels are loaded, and the native half is.
        for number in range(repeat + 1):
            for way, act in ways.items():
                start = time.process_time()
                act()
                if number:
                    taken[way].append(time.process_time() - start)
    found = {way: statistics.median(seconds) for way, seconds in taken.items()}
    figures = {f"{way}_cpu_s": round(seconds, 3) for way, seconds in found.items()}
    figures["cpu_ratio_vs_parquet_sorted"] = round(found["chunk_path"] / found["parquet"], 2)
    figures["paimons_writer_cpu_ratio_vs_parquet_sorted"] = round(found["paimons_writer"] / found["parquet"], 2)
    return figures


def _write(writer: SinkWriter, batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        writer.write(batch)
    assert writer.finish().rows == ROWS


def _rows(count: int) -> pa.RecordBatch:
    chance = np.random.default_rng(1)

    def numbers(below: int) -> pa.Array:
        return pa.array(chance.integers(0, below, count))

    arrays = [
        pa.array(np.arange(count, dtype=np.int64) * 3),
        numbers(count // 10),
        numbers(1_000).cast(pa.int32()),
        pc.binary_join_element_wise("name", pc.cast(numbers(50_000), pa.string()), " "),
        pc.binary_join_element_wise(pc.cast(numbers(10**9), pa.string()), "example.com", "@"),
        pa.array(["new", "open", "paid and sent to the customer", "returned"]).take(numbers(4)),
        numbers(10**6).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pc.add(numbers(10**12), 1_700_000_000_000_000).cast(pa.timestamp("us")),
        pa.array(np.full(count, 12_345, np.int64)),
        pa.array(np.full(count, INSERT, np.int8)),
    ]
    fields = [*COLUMNS, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
