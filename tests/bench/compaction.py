"""Full compaction of a table with a key: our rewrite beside Java Paimon's, processor time for the same files and the same result.

    python -m tests.bench.compaction [--rows 1000000] [--epochs 10] [--changed 50000] [--buckets 4] [--repeats 3]

The table has 8 columns (two BIGINT, INT, three STRING, DECIMAL, TIMESTAMP) and `--rows` rows, then as many epochs as told, each of which
updates `--changed` rows at random, one in ten of them a delete. Each contender is one process that has compacted a small table and a large
one before. In each repeat it compacts a copy of its own, bucket by bucket in one thread, from reading the manifests to the snapshot. Java's
processor time has that of its collector and compiler in it. Both results are read and must be equal. `compaction_ratio_vs_java` is Java's
time by ours. `read_ratio_after_compaction` is the time of a full read by pypaimon's native reader before it, by that after. The last line
is JSON: medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.maintained import compact_all, open_care
from tests.integration.paimon_tables import NATIVE, entry_of, intent_of, open_sink

TARGET = "shop.orders"
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("state", pa.int32()),
        pa.field("name", pa.string()),
        pa.field("city", pa.string()),
        pa.field("note", pa.string()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("created", pa.timestamp("us")),
    ]
)
_CITIES = [f"city {number}" for number in range(1000)]
_TICKS_S = os.sysconf("SC_CLK_TCK")


def rows_of(ids: np.ndarray[Any, np.dtype[np.int64]], epoch: int, deletes: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.RecordBatch:
    chance = np.random.default_rng(epoch)
    count = len(ids)
    numbers = chance.integers(0, 10**9, count)
    texts = pa.array(numbers).cast(pa.string())
    fields = [*COLUMNS, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8(), nullable=False)]
    columns = [
        pa.array(ids),
        pa.array(numbers % 100_000),
        pa.array((numbers % 7).astype(np.int32)),
        pc.binary_join_element_wise("customer", texts, " "),
        pa.DictionaryArray.from_arrays(pa.array((numbers % 1000).astype(np.int32)), _CITIES).cast(pa.string()),
        pc.binary_join_element_wise(texts, texts, "note on an order", "-"),
        pa.array(numbers).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.array(numbers * 1_000_000).cast(pa.timestamp("us")),
        pa.array(np.full(count, 2 * epoch)),
        pa.array(np.where(deletes, DELETE, INSERT).astype(np.int8)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def make(lake: PaimonSink, arguments: argparse.Namespace, rows: int, changed: int) -> None:
    lake.create(TARGET, COLUMNS, ["id"], buckets=arguments.buckets)
    chance = np.random.default_rng(7)
    for epoch in range(1, arguments.epochs + 2):
        ids = chance.permutation(rows) if epoch == 1 else chance.choice(rows + rows // 20, changed, replace=False)
        deletes = np.zeros(len(ids), bool) if epoch == 1 else chance.random(len(ids)) < 0.1
        writer = lake.writer(TARGET, f"sm-1-e{epoch}-a1-")
        for start in range(0, len(ids), 100_000):
            writer.write(rows_of(ids[start : start + 100_000], epoch * 1000 + start, deletes[start : start + 100_000]))
        entry = entry_of(lake, TARGET, writer.finish())
        lake.commit(intent_of(epoch, entry), entry)


def cpu_of(pid: int) -> float:
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / _TICKS_S


def measured(pid: int, work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    cpu, wall = cpu_of(pid), time.perf_counter()
    work()
    return cpu_of(pid) - cpu, time.perf_counter() - wall


def read_all(lake: PaimonSink) -> pa.Table:
    builder = lake.table(TARGET).copy(NATIVE).new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def compact_ours(warehouse: Path) -> None:
    done, _ = compact_all(open_care(warehouse), TARGET)
    assert isinstance(done, int)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--changed", type=int, default=50_000)
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    pa.set_cpu_count(1)
    seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "java": [], "read_before": [], "read_after": []}
    with tempfile.TemporaryDirectory() as folder, java_paimon(Path(folder) / "spilled") as java:
        root = Path(folder)
        make(open_sink(root / "small"), arguments, 20_000, 2_000)
        make(open_sink(root / "large"), arguments, arguments.rows, arguments.changed)
        pid = int(java._jvm.java.lang.ProcessHandle.current().pid())
        for number in range(arguments.repeats + 2):
            one_round(root, java, pid, seconds, source="small" if not number else "large", counts=number > 1)
    print_result(seconds)


def one_round(root: Path, java: JavaPaimon, pid: int, seconds: dict[str, list[tuple[float, float]]], *, source: str, counts: bool) -> None:
    """A copy for each, and what they make of it."""
    for name in ("ours", "java"):
        shutil.rmtree(root / name, ignore_errors=True)
        shutil.copytree(root / source, root / name)
    ours, theirs = open_sink(root / "ours"), open_sink(root / "java")
    found = {
        "read_before": measured(os.getpid(), lambda: read_all(ours)),
        "ours": measured(os.getpid(), lambda: compact_ours(root / "ours")),
        "java": measured(pid, lambda: java.compact_and_expire(root / "java", TARGET, retained=1000)),
        "read_after": measured(os.getpid(), lambda: read_all(ours)),
    }
    assert read_all(ours).sort_by("id").equals(read_all(theirs).sort_by("id")), "the results differ"
    if counts:
        for name, told in found.items():
            seconds[name].append(told)


def print_result(seconds: dict[str, list[tuple[float, float]]]) -> None:
    table = Table("what", "CPU s", "wall s")
    cpu = {}
    for name, told in seconds.items():
        cpu[name] = statistics.median(one for one, _ in told)
        table.add_row(name, f"{cpu[name]:.2f}", f"{statistics.median(wall for _, wall in told):.2f}")
    Console().print(table)
    print(
        json.dumps(
            {
                "compaction_cpu_s": round(cpu["ours"], 2),
                "compaction_java_cpu_s": round(cpu["java"], 2),
                "compaction_ratio_vs_java": round(cpu["java"] / cpu["ours"], 2),
                "read_ratio_after_compaction": round(cpu["read_before"] / cpu["read_after"], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
