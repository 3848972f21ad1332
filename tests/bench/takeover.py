"""Takeover: what our tiering service and Fluss' own leave in the lake is read by both sides, and each goes on where the other stopped.

    python -m tests.bench.takeover [--rows 2000]

On a real Fluss server there are a table with a key, a partitioned one and a log table. Our service tiers them, then Fluss' own service on
Flink, then ours again. After each, and again after further changes that no service has brought, Flink's union read (SQL in batch mode)
and ours are compared value by value with what was written. It is no measurement of speed. The last line is JSON; a difference ends the
run with an error.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from snowmelt.fluss.client import FlussClient, OffsetKind
from snowmelt.fluss.server import FlussServer, Part
from snowmelt.fluss.tables import describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.supervise import TIERING_DAEMON, spark_session
from tests.bench._flink import FlinkJvm
from tests.bench._peer_tiering import FlinkTiering, fetch
from tests.bench._processes import Meter
from tests.fluss_servers import Tables, start_fluss
from tests.integration.tiering import LAKE, RunningTiering, settings
from tests.integration.unions import planned, read

Row = dict[str, Any]
BUCKETS = 2
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
VALUES = [
    ("name", pa.string()),
    ("n", pa.int64()),
    ("money", pa.decimal128(12, 2)),
    ("day", pa.date32()),
    ("at", pa.timestamp("us")),
    ("yes", pa.bool_()),
]
_TEXT = {True: "true", False: "false"}


def values(id: int, turn: int) -> Row:
    if id % 11 == 0:
        return dict.fromkeys(name for name, _ in VALUES)
    # Java and Python write a time alike if its last three digits of microseconds are not all 0.
    micros = id * 7919 % 999 * 1000 + 1 + id % 998
    return {
        "name": f"Käufer {id}\n, turn {turn}",
        "n": -id * 1_000_003 * (turn + 1),
        "money": Decimal(id * 100 + turn) / 100 + Decimal("0.01"),
        "day": date(2026, 1, 1) + timedelta(days=id % 900 + turn),
        "at": datetime(2026, 1, 1, 12, 30, 15) + timedelta(days=id % 400, microseconds=micros),
        "yes": id % 2 == 0,
    }


def shown(value: Any) -> str | None:
    """As Java writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return _TEXT[value]
    if isinstance(value, Decimal):
        return f"{value:.2f}"
    return value.isoformat() if isinstance(value, date) else str(value)


@dataclass(slots=True)
class Written:
    """A table, and what it holds."""

    kind: str
    path: TableId
    names: list[str]
    rows: list[Row] | dict[tuple[Any, ...], Row] = field(default_factory=dict)

    @property
    def expected(self) -> list[tuple[str | None, ...]]:
        rows = self.rows.values() if isinstance(self.rows, dict) else self.rows
        return in_order(tuple(shown(row[name]) for name in self.names) for row in rows)


def in_order(rows: Any) -> list[tuple[str | None, ...]]:
    return sorted(rows, key=repr)


class Shop:
    def __init__(self, server: FlussServer, rows: int) -> None:
        self.server = server
        self.tables = Tables(server)
        self._rows = rows
        self._rng = random.Random(3)
        self._turn = 0
        keyed = pa.schema([("id", pa.int32()), *VALUES])
        parted = pa.schema([("part", pa.string()), ("id", pa.int32()), *VALUES])
        self.keyed = Written("key", self.tables.make(columns=keyed, buckets=BUCKETS, **LAKE), keyed.names)
        path = self.tables.make(columns=parted, key=("part", "id"), buckets=BUCKETS, partitioned_by=("part",), **LAKE)
        self.parted = Written("partitions", path, parted.names)
        self.log = Written("log", self.tables.make(columns=keyed, key=(), buckets=BUCKETS, **LAKE), keyed.names, [])
        self._schema = keyed
        for day in DAYS:
            self.tables.add_partition(path, part=day)

    @property
    def all(self) -> tuple[Written, ...]:
        return self.keyed, self.parted, self.log

    def change(self) -> None:
        """Upserts, deletes and appends; every bucket of the log table has some, since Flink's read of an empty one does not end."""
        self._turn += 1
        some = sorted(self._rng.sample(range(2 * self._rows), self._rows))
        assert isinstance(self.keyed.rows, dict)
        assert isinstance(self.parted.rows, dict)
        assert isinstance(self.log.rows, list)
        brought = {(id,): {"id": id} | values(id, self._turn) for id in some}
        self.tables.upsert(self.keyed.path, brought.values())
        self.keyed.rows |= brought
        brought = {(day, id): {"part": day, "id": id} | values(id, self._turn) for id in some[::3] for day in DAYS}
        self.tables.upsert(self.parted.path, brought.values())
        self.parted.rows |= brought
        for table, names in ((self.keyed, ("id",)), (self.parted, ("part", "id"))):
            assert isinstance(table.rows, dict)
            gone = [table.rows.pop(key) for key in self._rng.sample(sorted(table.rows), self._rows // 10)]
            self.tables.delete(table.path, [{name: row[name] for name in names} for row in gone])
        before, start = self.ends(self.log.path), len(self.log.rows)
        while len(self.log.rows) < start + self._rows or any(end == before[bucket] for bucket, end in self.ends(self.log.path).items()):
            lines = [{"id": id} | values(id, self._turn) for id in range(len(self.log.rows), len(self.log.rows) + 100)]
            self.tables.append(self.log.path, pa.RecordBatch.from_pylist(lines, self._schema))
            self.log.rows += lines

    def ends(self, path: TableId) -> dict[Bucket, int]:
        with self.server.connect() as connection, self.server.connect(Part.TABLET) as led:
            client, tablet = FlussClient(connection), FlussClient(led)
            table = describe_table(client, path)
            partitions = [one.partition for one in client.partitions(path)] if table.partition_key else [None]
            found: dict[Bucket, int] = {}
            for partition in partitions:
                found |= tablet.offsets(table.table, partition, range(table.buckets), OffsetKind.LATEST)
        return found

    def is_told(self) -> bool:
        """Whether Fluss knows of lake snapshots with all that was written."""
        with self.server.connect() as connection:
            client = FlussClient(connection)
            for table in self.all:
                known = client.lake_snapshot(table.path, readable=True)
                if known is None or any(known.offsets.get(bucket, 0) != end for bucket, end in self.ends(table.path).items()):
                    return False
        return True


class FlinkReading:
    """Flink's union read, between `running`'s beginning and end."""

    def __init__(self, server: FlussServer, folder: Path) -> None:
        folder.mkdir()
        self._server = server
        self._folder = folder
        self._jvm = FlinkJvm("Fluss' union read", folder, fetch(), "UnionReadPeer")
        self._process: subprocess.Popen[str] | None = None
        self._reads = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._jvm.running({"table.display.max-column-width": "100"}, self._server.bootstrap) as self._process:
            yield

    def read(self, path: TableId) -> list[tuple[str | None, ...]]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._reads += 1
        file = self._folder / f"rows-{self._reads}"
        self._process.stdin.write(f"{path.database}.{path.name} {file}\n")
        self._jvm.wait_for(self._process, file.exists)
        lines = file.read_text().splitlines()
        return in_order(tuple(None if text == "-" else b64decode(text[1:]).decode() for text in line.split(" ")) for line in lines)


def union(server: FlussServer, table: Written) -> list[tuple[str | None, ...]]:
    found = read(*planned(server, table.path)).select(table.names).to_pylist()
    return in_order(tuple(shown(row[name]) for name in table.names) for row in found)


class Takeover:
    def __init__(self, shop: Shop, flink: FlinkReading) -> None:
        self._shop = shop
        self._flink = flink
        self.compared = 0
        self.rows = 0
        print(f"{'tiered by':>12} {'untiered changes':>18} {'table':>12} {'rows':>8} {'Flink s':>8} {'ours s':>8}  equal")

    def compare(self, by: str, untiered: str) -> None:
        for table in self._shop.all:
            expected, seconds = table.expected, []
            for name in ("Flink", "snowmelt"):
                began = time.perf_counter()
                found = self._flink.read(table.path) if name == "Flink" else union(self._shop.server, table)
                seconds.append(time.perf_counter() - began)
                if found != expected:
                    missing, more = set(expected) - set(found), set(found) - set(expected)
                    raise SystemExit(
                        f"{name} reads another {table.path} than was written, tiered by {by}: {len(found)} rows of {len(expected)}, "
                        f"{len(missing)} are missing as {sorted(missing, key=repr)[:1]}, "
                        f"{len(more)} are too many as {sorted(more, key=repr)[:1]}"
                    )
                self.compared += 1
            self.rows += len(expected)
            print(f"{by:>12} {untiered:>18} {table.kind:>12} {len(expected):>8,} {seconds[0]:>8.1f} {seconds[1]:>8.1f}  yes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    options = parser.parse_args()
    fetch()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        folder = Path(name)
        server = start_fluss(folder / "fluss")
        try:
            shop = Shop(server, options.rows)
            reading = FlinkReading(server, folder / "reading")
            service = FlinkTiering(server, Meter(), folder / "service")
            with (
                reading.running(),
                spark_session("bench", master="local[2]", ui=False, debug=False, daemon=TIERING_DAEMON) as spark,
            ):
                takeover = Takeover(shop, reading)
                shop.change()
                for by in ("snowmelt", "Fluss' own", "snowmelt"):
                    if by == "snowmelt":
                        with RunningTiering(spark, settings(server)) as running:
                            running.wait_for(shop.is_told)
                    else:
                        with service.running():
                            service.bring_all(shop.is_told)
                    takeover.compare(by, "none")
                    shop.change()
                    takeover.compare(by, "some")
        finally:
            server.kill()
    print(json.dumps({"rows": takeover.rows, "reads_compared": takeover.compared, "equal": True}))


if __name__ == "__main__":
    main()
