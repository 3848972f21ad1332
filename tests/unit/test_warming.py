"""What a worker's daemon compiles before the first rewrite, so that no rewrite waits for a compiler."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.engine.tasks.warming import warm
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.sinks.paimon.maintenance.keys import encode, last_of_each, rises
from snowmelt.sinks.paimon.maintenance.merging import Order, merged
from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER
from snowmelt.sinks.paimon.maintenance.warming import ENTRIES
from snowmelt.sinks.paimon.runs import _hashed_column

COLUMNS = {
    "tiny": pa.array([1, 2, 3], pa.int8()),
    "whole": pa.array([1, 2, 3], pa.int64()),
    "text": pa.array(["a", "b", "c"]),
    "bytes": pa.array([b"a", b"b", b"c"]),
    "short": pa.array([Decimal("1.00"), Decimal("2.00"), Decimal("3.00")], pa.decimal128(12, 2)),
    "long": pa.array([Decimal("1.00"), Decimal("2.00"), Decimal("3.00")], pa.decimal128(30, 2)),
    "double": pa.array([0.5, 1.5, 2.5]),
    "single": pa.array([0.5, 1.5, 2.5], pa.float32()),
    "day": pa.array([date(2026, 1, day) for day in (1, 2, 3)]),
    "moment": pa.array([datetime(2026, 1, day) for day in (1, 2, 3)], pa.timestamp("us")),
}
KEYS = (*((name,) for name in COLUMNS), ("text", "bytes"), ("whole", "text", "long"), ("whole", "day"))


def merge_all() -> None:
    """Tables of each kind of key, as they come from memory and from files."""
    rows = pa.table({**COLUMNS, NUMBER: pa.array([1, 2, 3], pa.int64()), KIND: pa.array([0, 0, 3], pa.int8())})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    stored = pq.read_table(pa.BufferReader(sink.getvalue()))
    for keys in KEYS:
        for sequence in (None, "whole"):
            runs = [lambda: [rows.slice(0, 2)], lambda: [stored.slice(0, 1), stored.slice(1, 2)], lambda: [rows.slice(2, 1)]]
            assert sum(part.num_rows for part in merged(runs, Order(keys, sequence, "test"))) == 3


def write_all() -> None:
    """Chunks with each kind of key, in their order and out of it."""
    rows = pa.table(COLUMNS).to_batches()[0]
    for keys in KEYS:
        encoded = encode([rows.column(name) for name in keys])
        assert rises(encoded, None)
        assert len(last_of_each(encoded, np.arange(3))) == 3
        columns = [column for column in (_hashed_column(place, rows.schema.field(name)) for place, name in enumerate(keys)) if column]
        Bucketing(columns, 3, "paimon").buckets(rows.select([column.name for column in columns]))


def show_compiled() -> None:
    """In a process of its own: no other test has compiled anything there. A kernel that comes out of the cache has the kernels that it
    calls in it, so only those are asked that others call."""
    warm()
    before = {kernel: len(kernel.signatures) for kernel in ENTRIES}
    assert all(before.values())
    merge_all()
    write_all()
    print(*[kernel.py_func.__name__ for kernel, count in before.items() if len(kernel.signatures) > count], "end")


def test_a_rewrite_or_a_chunk_in_a_warm_worker_compiles_nothing() -> None:
    script = "from tests.unit.test_warming import show_compiled; show_compiled()"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["end"]
