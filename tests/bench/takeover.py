"""Takeover: what our tiering service and Fluss' own leave in the lake is read by both sides, and each goes on where the other stopped.

    python -m tests.bench.takeover [--rows 2000]

On a real Fluss server there are a table with a key, a partitioned one and a log table, which pyfluss writes, and two tables of nested
types, with a key and without, which Flink SQL makes and writes. Our service tiers them, then Fluss' own service on Flink, then ours again.
After each, and again after further changes that no service has brought, Flink's union read (SQL in batch mode) and ours are compared value
by value with what was written. While there are no such changes Flink reads the lake alone, with Paimon's own Java. It is no measurement of
speed. The last line is JSON; a difference ends the run with an error.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from snowmelt.fluss.answers import OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.tables import describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.supervise.session import TIERING_DAEMON, spark_session
from tests.bench._flink import FlinkJvm
from tests.bench._peer_tiering import FlinkTiering, fetch
from tests.bench._processes import Meter
from tests.integration.tiering import LAKE, RunningTiering, settings
from tests.integration.unions import planned, read
from tests.kit.fluss_raw import make_led
from tests.kit.fluss_servers import Tables, start_fluss

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


def shown(kind: pa.DataType, value: Any) -> str | None:
    """As Java writes it."""
    return value if value is None or isinstance(value, str) else _inner(kind, value)


def _inner(kind: pa.DataType, value: Any) -> str:
    """A value inside of another: no two that differ look alike."""
    if value is None:
        return "null"
    if pa.types.is_list(kind):
        return f"[{', '.join(_inner(kind.value_type, one) for one in value)}]"
    if pa.types.is_map(kind):
        return f"{{{', '.join(sorted(f'{_inner(kind.key_type, key)}: {_inner(kind.item_type, one)}' for key, one in value))}}}"
    if pa.types.is_struct(kind):
        return f"({', '.join(_inner(field.type, value[field.name]) for field in kind)})"
    if pa.types.is_boolean(kind):
        return _TEXT[value]
    if pa.types.is_decimal(kind):
        return f"{value:.{kind.scale}f}"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return value.isoformat() if isinstance(value, date) else str(value)


@dataclass(slots=True)
class Written:
    """A table, and what it holds."""

    kind: str
    path: TableId
    schema: pa.Schema
    rows: list[Row] | dict[tuple[Any, ...], Row] = field(default_factory=dict)

    @property
    def expected(self) -> list[tuple[str | None, ...]]:
        return self.shown(self.rows.values() if isinstance(self.rows, dict) else self.rows)

    def shown(self, rows: Iterable[Row]) -> list[tuple[str | None, ...]]:
        return in_order(tuple(shown(field.type, row[field.name]) for field in self.schema) for row in rows)


def in_order(rows: Any) -> list[tuple[str | None, ...]]:
    return sorted(rows, key=repr)


class Shop:
    def __init__(self, server: FlussServer, rows: int, flink: FlinkSql) -> None:
        self.server = server
        self.tables = Tables(server)
        self._rows = rows
        self._rng = random.Random(3)
        self._turn = 0
        keyed = pa.schema([("id", pa.int32()), *VALUES])
        parted = pa.schema([("part", pa.string()), ("id", pa.int32()), *VALUES])
        self.keyed = Written("key", self.tables.make(columns=keyed, buckets=BUCKETS, **LAKE), keyed)
        path = self.tables.make(columns=parted, key=("part", "id"), buckets=BUCKETS, partitioned_by=("part",), **LAKE)
        self.parted = Written("partitions", path, parted)
        self.log = Written("log", self.tables.make(columns=keyed, key=(), buckets=BUCKETS, **LAKE), keyed, [])
        self._schema = keyed
        for day in DAYS:
            self.tables.add_partition(path, part=day)
        self.nested = NestedTables(server, flink, path.database, rows // 4)

    @property
    def all(self) -> tuple[Written, ...]:
        return self.keyed, self.parted, self.log, self.nested.keyed, self.nested.log

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
        self.nested.change(self._turn)

    def ends(self, path: TableId) -> dict[Bucket, int]:
        with self.server.connect() as connection, self.server.connect(ServerProcess.TABLET) as led:
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


class FlinkSql:
    """Flink SQL on Fluss' catalog, between `running`'s beginning and end."""

    def __init__(self, server: FlussServer, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._server = server
        self._jvm = FlinkJvm("Flink SQL", folder, fetch(), "SqlPeer")
        self._process: subprocess.Popen[str] | None = None
        self._statements = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._jvm.running({"table.display.max-column-width": "100"}, self._server.bootstrap) as self._process:
            yield

    def execute(self, statement: str) -> list[str]:
        """Waits until it is done. The lines of its result."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._statements += 1
        file = self.folder / f"done-{self._statements}"
        self._process.stdin.write(f"{file} {b64encode(statement.encode()).decode()}\n")
        self._jvm.wait_for(self._process, file.exists)
        return file.read_text().splitlines()

    def read(self, path: TableId) -> list[tuple[str | None, ...]]:
        """A union read."""
        lines = self.execute(f"SELECT * FROM fluss.{path.database}.{path.name}")
        return in_order(tuple(None if text == "-" else b64decode(text[1:]).decode() for text in line.split(" ")) for line in lines)


# ---- tables of nested types, made and written by Flink

_POINT = pa.struct([("x", pa.int32()), ("label", pa.string()), ("raw", pa.binary())])
NESTED = pa.schema(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("place", _POINT),
        ("lists", pa.map_(pa.int32(), pa.list_(pa.string()))),
        ("rows_of", pa.struct([("points", pa.list_(_POINT)), ("at", pa.timestamp("us")), ("inner_row", pa.struct([("p", _POINT)]))])),
        ("deep", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.list_(pa.float64())))), ("yes", pa.bool_())]))),
        ("money", pa.list_(pa.decimal128(20, 3))),
        ("days", pa.list_(pa.date32())),
    ]
)
_SQL = {
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BYTES",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP(6)",
    pa.decimal128(20, 3): "DECIMAL(20, 3)",
}
_SOME: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.int32(): lambda rng: rng.randint(-(2**31), 2**31 - 1),
    pa.int64(): lambda rng: rng.randint(-(2**63), 2**63 - 1),
    # Java and Python write these alike.
    pa.float64(): lambda rng: rng.randint(-1000, 1000) / 8,
    pa.bool_(): lambda rng: rng.random() < 0.5,
    pa.string(): lambda rng: (
        rng.choice(("", "null", 'a "quoted" \\ one', "exactly8", "ä longer one, which fits no slot\n")) * rng.randint(1, 2)
    ),
    pa.binary(): lambda rng: rng.randbytes(rng.choice((0, 1, 7, 8, 40))),
    pa.date32(): lambda rng: date(1, 1, 1) + timedelta(days=rng.randint(0, 3_652_058)),
    # Fluss' own client can't read those before 1970 out of a log, if they have a part of a millisecond.
    pa.timestamp("us"): lambda rng: datetime(1970, 1, 1) + timedelta(days=rng.randint(0, 100_000), microseconds=rng.randint(1, 999)),
    pa.decimal128(20, 3): lambda rng: Decimal(rng.randint(1 - 10**20, 10**20 - 1)).scaleb(-3, Context(prec=30)),
}


def some_value(rng: random.Random, kind: pa.DataType) -> Any:
    """One of its values, as Arrow shows them; NULL and empty ones come often."""
    if rng.random() < 0.2:
        return None
    length = rng.choice((0, 1, 2, 35))
    if pa.types.is_list(kind):
        return [some_value(rng, kind.value_type) for _ in range(length)]
    if pa.types.is_map(kind):
        keys = {_SOME[kind.key_type](rng) for _ in range(length)}
        return [(key, some_value(rng, kind.item_type)) for key in sorted(keys)]
    if pa.types.is_struct(kind):
        return {field.name: some_value(rng, field.type) for field in kind}
    return _SOME[kind](rng)


def sql_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"ROW<{', '.join(f'`{field.name}` {sql_type(field.type)}' for field in kind)}>"
    return _SQL[kind]


def json_value(kind: pa.DataType, value: Any) -> Any:
    """As Flink reads it out of JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if pa.types.is_list(kind):
        return [json_value(kind.value_type, one) for one in value]
    if pa.types.is_map(kind):
        return {key: json_value(kind.item_type, one) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: json_value(field.type, value[field.name]) for field in kind}
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)


class NestedTables:
    """A table with a key and one without. Rows reach Flink in a file of JSON. Its maps have texts as keys; others come as two arrays."""

    def __init__(self, server: FlussServer, flink: FlinkSql, database: str, rows: int) -> None:
        self._flink = flink
        self._rows = rows
        self._rng = random.Random(5)
        self.keyed = Written("nested key", self._make(server, TableId(database, "nested_key"), BUCKETS, key=True), NESTED)
        # Flink's read of an empty bucket does not end, and its writer may leave one empty.
        self.log = Written("nested log", self._make(server, TableId(database, "nested_log"), 1, key=False), NESTED, [])

    def _make(self, server: FlussServer, path: TableId, buckets: int, *, key: bool) -> TableId:
        columns = [f"`{field.name}` {sql_type(field.type)}" for field in NESTED]
        if key:
            columns.append("PRIMARY KEY (id) NOT ENFORCED")
        properties = {name.replace("__", "."): value for name, value in LAKE.items()} | {"bucket.num": str(buckets)}
        told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        statement = f"CREATE TABLE fluss.{path.database}.{path.name} ({', '.join(columns)}) WITH ({told})"
        make_led(server, path, buckets, lambda: self._flink.execute(statement))
        return path

    def change(self, turn: int) -> None:
        assert isinstance(self.keyed.rows, dict)
        assert isinstance(self.log.rows, list)
        some = self._rng.sample(range(2 * self._rows), self._rows)
        brought = {(id,): self._row(id) for id in some}
        self._insert(self.keyed.path, brought.values(), f"key-{turn}")
        self.keyed.rows |= brought
        for (id,) in self._rng.sample(sorted(self.keyed.rows), 2):
            self._flink.execute(f"DELETE FROM fluss.{self.keyed.path.database}.{self.keyed.path.name} WHERE id = {id}")
            del self.keyed.rows[id,]
        lines = [self._row(len(self.log.rows) + number) for number in range(self._rows)]
        self._insert(self.log.path, lines, f"log-{turn}")
        self.log.rows += lines

    def _row(self, id: int) -> Row:
        return {field.name: id if field.name == "id" else some_value(self._rng, field.type) for field in NESTED}

    def _insert(self, path: TableId, rows: Iterable[Row], name: str) -> None:
        columns: list[str] = []
        wanted: list[str] = []
        split: list[pa.Field] = []
        for column in NESTED:
            if pa.types.is_map(column.type) and column.type.key_type != pa.string():
                split.append(column)
                wanted.append(f"MAP_FROM_ARRAYS({column.name}_keys, {column.name}_values)")
                columns += [f"{column.name}_keys ARRAY<{sql_type(column.type.key_type)}>"]
                columns += [f"{column.name}_values ARRAY<{sql_type(column.type.item_type)}>"]
            else:
                wanted.append(f"`{column.name}`")
                columns.append(f"`{column.name}` {sql_type(column.type)}")
        file = self._flink.folder / f"{name}.json"
        with open(file, "w") as lines:
            for row in rows:
                given = {column.name: json_value(column.type, row[column.name]) for column in NESTED if column not in split}
                for column in split:
                    pairs = row[column.name]
                    given[f"{column.name}_keys"] = None if pairs is None else [key for key, _ in pairs]
                    given[f"{column.name}_values"] = None if pairs is None else [json_value(column.type.item_type, one) for _, one in pairs]
                lines.write(json.dumps(given) + "\n")
        source = f"`{name}`"
        self._flink.execute(
            f"CREATE TEMPORARY TABLE {source} ({', '.join(columns)}) WITH ('connector' = 'filesystem', 'path' = 'file://{file}', "
            "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601')"
        )
        self._flink.execute(f"INSERT INTO fluss.{path.database}.{path.name} SELECT {', '.join(wanted)} FROM {source}")


def union(server: FlussServer, table: Written) -> list[tuple[str | None, ...]]:
    return table.shown(read(*planned(server, table.path)).to_pylist())


class Takeover:
    def __init__(self, shop: Shop, flink: FlinkSql) -> None:
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
            flink = FlinkSql(server, folder / "sql")
            service = FlinkTiering(server, Meter(), folder / "service")
            with (
                flink.running(),
                spark_session("bench", master="local[2]", ui=False, debug=False, daemon=TIERING_DAEMON) as spark,
            ):
                shop = Shop(server, options.rows, flink)
                takeover = Takeover(shop, flink)
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
