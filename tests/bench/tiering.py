"""Tiering: Fluss tables of a real server into Paimon on Spark, by KV snapshots and by the log; and the reading of a bucket alone.

    python -m tests.bench.tiering [--rows 500000] [--repeats 3]

One bucket is read in one process, as a task reads it, after a read that compiles whatever it needs. Each read counts rows and gives
them away; wall and processor time (user and system, of the reading process alone) are measured around it. The server stands still
during a snapshot's read, and sends during a log's. Then the table is tiered, a tenth of its rows is changed again, and a union read's
task reads it: the lake with that tail over it, against the KV snapshot, which is what reading such a table costs without a lake. Then
whole rounds, from the hand-out of a table of two buckets until Fluss was told, on two cores that the server shares. The last line is
JSON: medians of the reads, and of the rounds what one of each gave.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from snowmelt.engine.union.options import parse_options
from snowmelt.engine.union.plan import plan_tasks
from snowmelt.engine.union.tasks import run_task
from snowmelt.fluss.client import FlussClient, OffsetKind
from snowmelt.fluss.log import LogReader
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.rpc import Gone
from snowmelt.fluss.server import FlussServer, Part
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import BucketLeader, describe_table
from snowmelt.fluss.types import Column, FlussType, Root, Schema
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.supervise import spark_session
from tests.bench._tiering_rounds import measure as measure_rounds
from tests.fluss_bytes import compacted_row
from tests.fluss_raw import create_table, kv_batch, put
from tests.fluss_servers import Tables, start_fluss
from tests.integration.tiering import LAKE, RunningTiering, settings
from tests.waiting import until

AT_ONCE = 10_000
ORDERS = Schema(
    1,
    tuple(
        Column(place, name, kind)
        for place, (name, kind) in enumerate(
            {
                "id": FlussType(Root.BIGINT, nullable=False),
                "customer": FlussType(Root.INTEGER),
                "amount": FlussType(Root.DECIMAL, precision=12, scale=2),
                "tax": FlussType(Root.DECIMAL, precision=20, scale=6),
                "created": FlussType(Root.TIMESTAMP, precision=6),
                "changed": FlussType(Root.TIMESTAMP_LTZ, precision=3),
                "name": FlussType(Root.STRING),
                "state": FlussType(Root.TINYINT),
                "weight": FlussType(Root.DOUBLE),
                "due": FlussType(Root.DATE),
                "note": FlussType(Root.STRING),
            }.items()
        )
    ),
    ("id",),
)


def order(id: int, turn: int = 0) -> bytes:
    millis = 1_700_000_000_000 + id
    values = [
        id, id * 7 % 100_000, id % 1_000_000, id * 142_857 if id % 10 else None, (millis, id % 1000 * 1000), (millis, 0), f"Käufer {id}",
        (id + turn) % 7, id / 3, 19_000 + id % 1000, f"note on order {id:040d}" if id % 5 else None,
    ]  # fmt: skip
    return compacted_row(ORDERS, values)


def load(server: FlussServer, table: int, rows: int) -> None:
    for start in range(0, rows, AT_ONCE):
        ids = range(start, min(start + AT_ONCE, rows))
        # Keys as Paimon's binary rows, which tables of a server with that lake have.
        put(server, table, 0, kv_batch((bytes(8) + struct.pack("<q", id), order(id)) for id in ids))


def timed(read: Callable[[], Iterator[pa.RecordBatch]], rows: int, repeats: int) -> dict[str, float]:
    """Rows a second of wall and of processor time."""
    walls, cpus = [], []
    for repeat in range(repeats + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        found = sum(batch.num_rows for batch in read())
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert found == rows, f"{found} rows of {rows}"
        if repeat:
            walls.append(rows / wall)
            cpus.append(rows / cpu)
    return {"rows_per_s": round(statistics.median(walls)), "rows_per_cpu_s": round(statistics.median(cpus))}


def there(tablet: FlussClient, bucket: Bucket) -> bool:
    try:
        return bool(tablet.offsets(bucket.table, None, [0], OffsetKind.LATEST))
    except Gone:
        return False


def tier(server: FlussServer, path: TableId) -> None:
    with spark_session("bench", master="local[2]", ui=False, debug=False) as spark, RunningTiering(spark, settings(server)) as running:
        running.wait_for(lambda: running.finished(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        server = start_fluss(Path(folder) / "fluss")
        try:
            tables = Tables(server)
            path = TableId(tables.make().database, "orders")
            create_table(server, path, ORDERS, **LAKE)
            anyone, tablet = FlussClient(server.connect()), FlussClient(server.connect(Part.TABLET))
            table = describe_table(anyone, path)
            bucket = Bucket(table.table, 0)
            until(lambda: there(tablet, bucket))
            load(server, table.table, options.rows)

            def snapshot() -> int | None:
                found = anyone.latest_snapshots(path).snapshots.get(bucket)
                return found.snapshot if found is not None and found.offset == options.rows else None

            files = anyone.snapshot_files(bucket, until(snapshot)).files
            snapshots = SnapshotReader(table.versions, RemoteFiles(), kv_format=table.kv_format)

            def log() -> Iterator[pa.RecordBatch]:
                leader = BucketLeader(path, bucket, lambda: FlussClient(server.connect()))
                yield from LogReader(bucket, 0, options.rows, source=leader, versions=table.versions, remote=RemoteFiles()).read()
                leader.close()

            result: dict[str, float] = {"rows": options.rows}

            def measure(name: str, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
                for unit, value in timed(read, options.rows, options.repeats).items():
                    result[f"read_{name}_{unit}"] = round(value)
                    print(f"{'read ' + name:>20} {unit:>16} {value:>12,.0f}")

            measure("snapshot", lambda: snapshots.read(files))
            measure("log", log)
            tier(server, path)
            load(server, table.table, options.rows // 10)
            told = {"table": f"{path.database}.{path.name}", "bootstrap": server.bootstrap, "warehouse": str(server.warehouse)}
            parsed = parse_options(told)
            (task,) = plan_tasks(parsed)
            assert task.shares
            assert task.stop - task.start == 2 * (options.rows // 10)
            measure("union", lambda: run_task(parsed, task, ORDERS.arrow.names))
            # Of processor time, which does not depend on what else the machine does.
            result["union_to_snapshot"] = round(result["read_union_rows_per_cpu_s"] / result["read_snapshot_rows_per_cpu_s"], 2)
            for name, value in measure_rounds(server, path.database, ORDERS, order, options.rows).items():
                result[name] = value
                print(f"{'round by ' + name.partition('_')[0]:>20} {'rows_per_s':>16} {value:>12,.0f}")
        finally:
            server.kill()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
