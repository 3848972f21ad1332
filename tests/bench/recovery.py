"""In-flight log recovered with a filter, by 1, 2 and 4 tasks: seconds, processor and memory.

    python -m tests.bench.recovery [--mib 1024] [--filtered 0.9] [--tasks 1 2 4] [--repeat 3]

A log of transactions of 150 rows (an integer key, an integer, two texts, 190 bytes), in segments on the local disk as capture leaves
them: checksummed events of 8 KiB, in the system's cache. So much of it is covered, by its table's rule; the rest is decoded, filtered and
taken from the pool by a consumer that counts rows and adds up keys, which must come out right. Tasks are processes forked from one that is
warm, as Spark's workers are, each with the limits of a pipeline; what a lake's writer does is in none of the figures.

Memory is the sum over the tasks of the most that each had, shared pages counted for each. Then the same without a filter, by one task;
without a filter and into a Paimon table of two buckets, which is what a task of a catch-up does, so that the difference is the writer's;
and with all of the log as one transaction. The last line is JSON; of `--repeat` rounds the medians.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.log.decode import warm
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.engine.log.reading import Filtered
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.log import LogTask, kept_bytes, kept_rows
from snowmelt.engine.tasks.rows import Sourced
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Rule
from snowmelt.planning.facts import Incarnation
from snowmelt.relay.pool import Pool
from snowmelt.relay.retention import Relay
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.logs import table_map_body
from tests.kit.inflight import LogFolder
from tests.kit.streams import event, gtid_body, query_body

SEGMENT_BYTES = 64 << 20
EVENT_ROWS, EVENTS = 38, 4
TABLE = TableId("bench", "sbtest")
SHAPE = MySqlTable(
    id=TABLE,
    columns=(
        MySqlColumn(name="id", base="int", nullable=False),
        MySqlColumn(name="k", base="int", nullable=False),
        MySqlColumn(name="c", base="varchar", charset="utf8mb4", nullable=False),
        MySqlColumn(name="pad", base="varchar", charset="utf8mb4", nullable=False),
    ),
    key=("id",),
)
_TEXTS = b"".join(bytes([size]) + (b"0123456789-abcdef" * 8)[:size] for size in (120, 60))
_ROW = np.frombuffer(b"\0" + bytes(8) + _TEXTS, np.uint8)
_SERVER = Server("mysql", (8, 0, 33), "bench")


@dataclass(frozen=True)
class InFlight:
    relay: Relay
    ends: list[int]
    """Where each transaction ends, as the relay counts."""
    place: TaskContext

    def task(self, after: int, upto: int, covered: int) -> LogTask:
        return LogTask(
            epoch=1,
            writer=0,
            after=after,
            upto=upto,
            segments=tuple(self.relay.covering(after, upto)),
            rules={TABLE: Rule(incarnation=Incarnation(TABLE, 1), after=covered, emits_all=True)},
            marks={},
            tables={TABLE: Sourced(SHAPE, "ods.sbtest", keyed=True)},
        )


def _transaction(number: int, offset: int, events: int = EVENTS) -> tuple[bytes, int]:
    """A transaction of the log that begins at an offset, and where it ends."""
    out = []
    first = number * EVENT_ROWS * EVENTS

    def add(kind: int, body: bytes) -> None:
        nonlocal offset
        offset += 19 + len(body) + 4
        out.append(event(kind, body, next_position=offset))

    add(33, gtid_body(number + 1))
    add(2, query_body(b"BEGIN"))
    add(19, table_map_body(9, TABLE.name, database=TABLE.database, types=b"\x03\x03\x0f\x0f", meta=struct.pack("<HH", 200, 200)))
    for index in range(events):
        rows = np.tile(_ROW, (EVENT_ROWS, 1))
        ids = np.arange(first + index * EVENT_ROWS, first + (index + 1) * EVENT_ROWS, dtype="<i4")
        rows[:, 1:5] = ids.view(np.uint8).reshape(-1, 4)
        add(30, struct.pack("<IHHH", 9, 0, int(index == events - 1), 2) + b"\x04\xff" + rows.tobytes())
    add(16, bytes(8))
    return b"".join(out), offset


def make(folder: Path, size: int, *, events: int = EVENTS) -> InFlight:
    """So much log, in transactions of so many row events."""
    log = LogFolder(folder, _SERVER)
    offset, number, total = 4, 0, 0
    ends: list[int] = []
    while total < size:
        start, data = offset, bytearray()
        cuts: list[tuple[int, int]] = []
        while len(data) < min(SEGMENT_BYTES, size - total):
            raw, offset = _transaction(number, offset, events)
            data += raw
            number += 1
            ends.append(offset - 4)
            if not cuts or len(data) - cuts[-1][0] >= 1 << 20:
                cuts.append((len(data), offset))
        if cuts[-1][0] < len(data):
            cuts.append((len(data), offset))
        log.add(data, start, cuts)
        total += len(data)
    return InFlight(log.relay, ends, log.place)


@dataclass(frozen=True)
class Cost:
    rows: int
    keys: int
    cpu_s: float
    peak_mb: float


def recover(place: TaskContext, task: LogTask, lake: Path | None = None) -> Cost:
    """One task; into a lake, if one is given."""
    rows = keys = 0
    before = time.process_time()
    writer = PaimonSink(str(lake), user="bench").writer("ods.sbtest", f"sm-{time.monotonic_ns()}-") if lake is not None else None
    with Filtered(lambda: kept_rows(place, task), kept_bytes, Pool(place.limits.pool_bytes)) as kept:
        for _, batch in kept:
            rows += batch.num_rows
            keys += int(batch.column("id").to_numpy().astype(np.int64).sum())
            if writer is not None:
                writer.write(batch)
    if writer is not None:
        writer.finish()
    return Cost(rows, keys, time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure(held: InFlight, count: int, covered: int, lake: Path | None = None) -> tuple[float, list[Cost]]:
    """Seconds, and what each of so many tasks took."""
    tasks = [held.task(after, upto, covered) for after, upto in held.relay.shares(0, held.relay.end, count)]
    context = multiprocessing.get_context("fork")
    ready, go = context.Barrier(len(tasks) + 1), context.Queue()

    def work(task: LogTask) -> None:
        ready.wait()
        go.put(recover(held.place, task, lake))

    processes = [context.Process(target=work, args=(task,)) for task in tasks]
    for process in processes:
        process.start()
    ready.wait()
    began = time.monotonic()
    costs = [go.get() for _ in processes]
    seconds = time.monotonic() - began
    for process in processes:
        process.join()
    return seconds, costs


def main() -> None:
    arguments = argparse.ArgumentParser(description="recovery of in-flight log")
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--filtered", type=float, default=0.9)
    arguments.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4])
    arguments.add_argument("--repeat", type=int, default=3)
    given = arguments.parse_args()
    console = Console()
    table = Table("filtered", "tasks", "seconds", "CPU s", "MiB/s", "rows kept", "peak MB")
    result: dict[str, Any] = {"mib": given.mib, "filtered": given.filtered}
    warm()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        with console.status(f"writing {given.mib} MiB of log"):
            held = make(Path(folder), given.mib << 20)
        # The kernels that `warm` does not reach, before anything is timed.
        recover(held.place, held.task(0, held.relay.shares(0, held.relay.end, 100)[0][1], 0))
        peak = 0.0
        for filtered in (given.filtered, 0.0):
            covered = held.relay.cut_at_or_below(int(held.relay.end * filtered)) or 0
            first = sum(end <= covered for end in held.ends) * EVENT_ROWS * EVENTS
            last = len(held.ends) * EVENT_ROWS * EVENTS
            for count in given.tasks if filtered else given.tasks[:1]:
                rounds = [measure(held, count, covered) for _ in range(given.repeat)]
                for _, costs in rounds:
                    assert sum(cost.rows for cost in costs) == last - first, "rows are missing, or came twice"
                    assert sum(cost.keys for cost in costs) == (first + last - 1) * (last - first) // 2, (
                        "other rows than those behind the cut"
                    )
                seconds = statistics.median(seconds for seconds, _ in rounds)
                cpu = statistics.median(sum(cost.cpu_s for cost in costs) for _, costs in rounds)
                most = max(sum(cost.peak_mb for cost in costs) for _, costs in rounds)
                peak = max(peak, most)
                name = f"{count}" if filtered else "unfiltered"
                result |= {f"seconds_{name}": round(seconds, 3), f"cpu_s_{name}": round(cpu, 3), f"peak_rss_mb_{name}": round(most)}
                table.add_row(
                    f"{filtered:.0%}",
                    str(count),
                    f"{seconds:.2f}",
                    f"{cpu:.2f}",
                    f"{given.mib / seconds:,.0f}",
                    f"{last - first:,}",
                    f"{most:,.0f}",
                )
        result["peak_rss_mb"] = round(peak)
        lake = Path(folder) / "lake"
        source = pa.schema([("id", pa.int32()), ("k", pa.int32()), ("c", pa.string()), ("pad", pa.string())])
        PaimonSink(str(lake), user="bench").create("ods.sbtest", source, ["id"], buckets=2)
        seconds, costs = measure(held, 1, 0, lake)
        without = result["cpu_s_unfiltered"]
        result |= {
            "task_cpu_s_per_m_rows": round(1e6 * costs[0].cpu_s / costs[0].rows, 3),
            "decode_cpu_s_per_m_rows": round(1e6 * without / costs[0].rows, 3),
            "writer_share": round(1 - without / costs[0].cpu_s, 3),
        }
        table.add_row(
            "0%, into Paimon",
            "1",
            f"{seconds:.2f}",
            f"{costs[0].cpu_s:.2f}",
            f"{given.mib / seconds:,.0f}",
            f"{costs[0].rows:,}",
            f"{costs[0].peak_mb:,.0f}",
        )
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        with console.status(f"writing {given.mib} MiB of log, one transaction"):
            held = make(Path(folder), 1, events=(given.mib << 20) // 7400)
        rounds = [measure(held, 1, 0) for _ in range(given.repeat)]
        seconds = statistics.median(seconds for seconds, _ in rounds)
        cpu, most = (statistics.median(getattr(costs[0], name) for _, costs in rounds) for name in ("cpu_s", "peak_mb"))
        result |= {"seconds_one_transaction": round(seconds, 3), "peak_rss_mb_one_transaction": round(most)}
        table.add_row(
            "one transaction",
            "1",
            f"{seconds:.2f}",
            f"{cpu:.2f}",
            f"{given.mib / seconds:,.0f}",
            f"{rounds[0][1][0].rows:,}",
            f"{most:,.0f}",
        )
    console.print(table)
    if os.getloadavg()[0] > 2 * max(given.tasks):
        console.print("the machine was busy with other things")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
