"""Tiering: Fluss tables of a real server into Paimon on Spark, by KV snapshots and by the log; and the reading of a bucket alone.

    python -m tests.bench.tiering [--rows 500000] [--repeats 3] [--peer fluss-flink]

One bucket is read in one process, as a task reads it, after a read that compiles whatever it needs. Each read counts rows and gives
them away; wall and processor time (user and system, of the reading process alone) are measured around it. The server stands still
during a snapshot's read, and sends during a log's. Then the table is tiered, a tenth of its rows is changed again, and a union read's
task reads it: the lake with that tail over it, against the KV snapshot, which is what reading such a table costs without a lake. Then
whole rounds, from the hand-out of a table of two buckets until Fluss was told, on two cores that the server shares. `--peer fluss-flink`
lets Fluss' own service on Flink do such rounds afterwards, on the same server; see `_peer_tiering`. The last line is JSON: medians of the
reads, and of the rounds what one of each gave; processor time is that of the services, without the server's.
"""

from __future__ import annotations

import argparse
import json
import os
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
from snowmelt.fluss.answers import OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema
from snowmelt.fluss.log import BucketReader, LogAccess
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import BucketLeader, describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import OFFSET, TIMESTAMP
from snowmelt.supervise.session import spark_session
from tests.bench._peer_tiering import WARMING_ROWS, FlinkTiering, fetch
from tests.bench._processes import Meter
from tests.bench._tiering_rounds import Orders, Round, measure
from tests.integration.tiering import LAKE, RunningTiering, settings
from tests.kit.fluss_bytes import compacted_row
from tests.kit.fluss_raw import create_table, kv_batch, put
from tests.kit.fluss_servers import Tables, start_fluss
from tests.kit.waiting import until

AT_ONCE = 10_000
WAYS = ("snapshot", "log")
ORDERS = Schema(
    1,
    tuple(
        Column(place, name, kind)
        for place, (name, kind) in enumerate(
            {
                "id": FlussType(root=Root.BIGINT, nullable=False),
                "customer": FlussType(root=Root.INTEGER),
                "amount": FlussType(root=Root.DECIMAL, precision=12, scale=2),
                "tax": FlussType(root=Root.DECIMAL, precision=20, scale=6),
                "created": FlussType(root=Root.TIMESTAMP, precision=6),
                "changed": FlussType(root=Root.TIMESTAMP_LTZ, precision=3),
                "name": FlussType(root=Root.STRING),
                "state": FlussType(root=Root.TINYINT),
                "weight": FlussType(root=Root.DOUBLE),
                "due": FlussType(root=Root.DATE),
                "note": FlussType(root=Root.STRING),
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
    except GoneFromFluss:
        return False


def tier(server: FlussServer, path: TableId) -> None:
    with spark_session("bench", master="local[2]", ui=False, debug=False) as spark, RunningTiering(spark, settings(server)) as running:
        running.wait_for(lambda: running.finished(path))


def measure_rounds(orders: Orders, rows: int, peer_folder: Path | None) -> dict[str, float]:
    """Of ours, and of the peer's if it has a folder, one after the other."""
    meter = Meter(*(pid for part in ServerProcess if (pid := orders.server.pid(part)) is not None))
    result: dict[str, float] = {"busy": False}

    def tell(who: str, way: str, unit: str, value: float, digits: int = 0) -> None:
        result[f"{who}{way}_{unit}"] = round(value, digits) if digits else round(value)
        print(f"{who.replace('_', ' ') + 'round by ' + way:>22} {unit:>20} {value:>12,.{digits}f}")

    def take(who: str, rounds: tuple[Round, Round]) -> None:
        for way, one in zip(WAYS, rounds, strict=True):
            tell(who, way, "rows_per_s", one.rate)
            tell(who, way, "cpu_s_per_m_rows", one.cpu_s_per_m_rows, 2)
            if one.stage.busy:
                result["busy"] = True
                print(f"others took {one.stage.cpu.others:.1f} s of processor meanwhile")

    take("", measure(orders, meter, "lake_orders", rows))
    if peer_folder is not None:
        peer = FlinkTiering(orders.server, meter, peer_folder)
        with peer.running():
            orders.play("peer_warming", WARMING_ROWS, peer.bring)
            take("peer_", orders.play("peer_orders", rows, peer.bring))
        ours, theirs = (orders.lake(name).drop_columns([OFFSET, TIMESTAMP]).sort_by("id") for name in ("lake_orders", "peer_orders"))
        assert ours.equals(theirs), "the peer's lake has other rows"
        for way in WAYS:
            tell("", way, "ratio_vs_flink", result[f"{way}_rows_per_s"] / result[f"peer_{way}_rows_per_s"], 1)
            tell("", way, "cpu_ratio_vs_flink", result[f"peer_{way}_cpu_s_per_m_rows"] / result[f"{way}_cpu_s_per_m_rows"], 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", choices=["fluss-flink"])
    options = parser.parse_args()
    if options.peer:
        fetch()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        server = start_fluss(Path(folder) / "fluss")
        try:
            tables = Tables(server)
            path = TableId(tables.make().database, "orders")
            create_table(server, path, ORDERS, **LAKE)
            anyone, tablet = FlussClient(server.connect()), FlussClient(server.connect(ServerProcess.TABLET))
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
                access = LogAccess(source=leader, remote=RemoteFiles())
                yield from BucketReader(bucket, 0, options.rows, access=access, versions=table.versions).read()
                leader.close()

            result: dict[str, float] = {"rows": options.rows}

            def measure(name: str, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
                for unit, value in timed(read, options.rows, options.repeats).items():
                    result[f"read_{name}_{unit}"] = round(value)
                    print(f"{'read ' + name:>22} {unit:>20} {value:>12,.0f}")

            measure("snapshot", lambda: snapshots.read(files))
            measure("log", log)
            tier(server, path)
            load(server, table.table, options.rows // 10)
            told = {"table": f"{path.database}.{path.name}", "bootstrap": server.bootstrap, "warehouse": str(server.warehouse)}
            parsed = parse_options(told)
            (task,) = plan_tasks(parsed, os.getpid())
            assert task.shares
            assert task.stop - task.start == 2 * (options.rows // 10)
            measure("union", lambda: run_task(parsed, task, ORDERS.arrow.names))
            # Of processor time, which does not depend on what else the machine does.
            result["union_to_snapshot"] = round(result["read_union_rows_per_cpu_s"] / result["read_snapshot_rows_per_cpu_s"], 2)
            # It is due all the time, and has rows that nobody has tiered.
            anyone.drop_table(path)
            result |= measure_rounds(
                Orders(server, path.database, ORDERS, order), options.rows, Path(folder) / "peer" if options.peer else None
            )
        finally:
            server.kill()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
