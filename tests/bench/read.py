"""Reading a table into Arrow: snowmelt beside connectorx and PyMySQL, on MariaDB over TCP.

    python -m tests.bench.read [--rows 1000000] [--repeats 3]

Every contender runs in a process of its own, by turns with the others, and measures its own wall and processor time (user and
system) around the read, after a small read that loads and compiles whatever it needs. connectorx is given its binary
protocol, one connection as the others, and the better of its two ways to hand out Arrow; snowmelt is measured as it is
used, batch by batch, and once more with all batches kept, as connectorx keeps them. One connection is bound by the server's
one thread behind it, so that snowmelt and PyMySQL are also given one connection per core in one process, each reading its key
range, as a chunk task does; the ratio to PyMySQL compares the better way of each. The last line is JSON: medians, and ratios
of rates, of the table where they are worse and of each.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from tests.kit.servers import Server, start_mariadb

PYMYSQL_ROWS = 100_000
CONNECTIONS = os.cpu_count() or 1
CONTENDERS = ("snowmelt", "snowmelt_kept", "snowmelt_chunks", "connectorx", "connectorx_stream", "pymysql", "pymysql_chunks")

TABLES = {
    "sbtest": (
        "id INT NOT NULL PRIMARY KEY, k INT UNSIGNED NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL",
        "seq, CRC32(seq), CONCAT_WS('-', SHA1(seq), SHA1(seq + 1), LEFT(SHA1(seq + 2), 38)), CONCAT(SHA1(-seq), LEFT(SHA1(seq), 20))",
    ),
    "orders": (
        "id BIGINT NOT NULL PRIMARY KEY, customer INT UNSIGNED NOT NULL, amount DECIMAL(12,2) NOT NULL, tax DECIMAL(20,6), "
        "created DATETIME(6) NOT NULL, changed TIMESTAMP(3) NULL, name VARCHAR(100), state TINYINT NOT NULL, kind SMALLINT, "
        "items MEDIUMINT, weight DOUBLE, score FLOAT, due DATE, detail JSON, note TEXT",
        "seq, seq * 7 % 100000, seq % 1000000 / 100, IF(seq % 10, seq / 7, NULL), "
        "'2024-01-01' + INTERVAL seq * 1234567 MICROSECOND, FROM_UNIXTIME(1700000000 + seq / 1000), CONCAT('Käufer ', seq), "
        "seq % 7, "
        "IF(seq % 9, seq % 3000, NULL), seq % 100000, seq / 3, seq / 11, '2024-01-01' + INTERVAL seq % 1000 DAY, "
        "CONCAT('{\"a\": ', seq, ', \"b\": [1, 2, 3]}'), IF(seq % 5, CONCAT('note on order ', SHA1(seq)), NULL)",
    ),
}


def load(server: Server, rows: int) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        for name, (definition, values) in TABLES.items():
            cursor.execute(f"CREATE TABLE bench.{name} ({definition}) ENGINE=InnoDB")
            cursor.execute(f"INSERT INTO bench.{name} SELECT {values} FROM bench.seq_1_to_{rows}")
            cursor.execute(f"ANALYZE TABLE bench.{name}")


def measured(readers: list[Callable[[str], int]], table: str, first: int, last: int) -> dict[str, float]:
    """One reader reads it all; several read a range of keys each, at once."""
    for read in readers:
        read(f"SELECT * FROM bench.{table} LIMIT 1000")
    edges = [first + (last - first + 1) * index // len(readers) for index in range(len(readers) + 1)]
    ranges = [f"SELECT * FROM bench.{table} WHERE id >= {low} AND id < {high}" for low, high in pairwise(edges)]
    with ThreadPoolExecutor(len(readers)) as pool:
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        others = [pool.submit(read, sql) for read, sql in zip(readers[1:], ranges[1:], strict=True)]
        rows = readers[0](ranges[0]) + sum(other.result() for other in others)
        wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rows": rows, "wall": wall, "cpu": cpu}


def contender(name: str, table: str) -> dict[str, float]:
    host, port, password = os.environ["BENCH_HOST"], int(os.environ["BENCH_PORT"]), os.environ["BENCH_PASSWORD"]
    rows, connections = int(os.environ["BENCH_ROWS"]), CONNECTIONS if name.endswith("_chunks") else 1
    if name.startswith("snowmelt"):
        return measured([_snowmelt(host, port, table, keep=name == "snowmelt_kept") for _ in range(connections)], table, 1, rows)
    if name.startswith("connectorx"):
        url = f"mysql://root:{password}@{host}:{port}/bench"
        return measured([_connectorx(url, "arrow_stream" if name == "connectorx_stream" else "arrow")], table, 1, rows)
    return measured([_pymysql(host, port, password) for _ in range(connections)], table, 1, min(rows, PYMYSQL_ROWS))


def _snowmelt(host: str, port: int, table: str, *, keep: bool) -> Callable[[str], int]:
    from snowmelt.columnar.arena import ArenaPool
    from snowmelt.credentials import Secret
    from snowmelt.databases.mysql.catalog import read_tables
    from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
    from snowmelt.databases.mysql.read.resultset import ReadCounters, select
    from snowmelt.databases.mysql.types.columns import TypeOptions
    from snowmelt.model.table import TableId

    session = Session(
        MySqlOptions(host=host, port=port, password=Secret("${BENCH_PASSWORD}"), tls=Tls.DISABLED, allow_password_to_unverified_server=True)
    )
    name = TableId("bench", table)
    columns = read_tables(session, [name])[name].columns
    pool = ArenaPool()

    def read(sql: str) -> int:
        counters = ReadCounters()
        kept = []
        for batch in select(session, sql, columns, TypeOptions(), counters=counters, pool=pool):
            if keep:
                kept.append(batch)
        return counters.rows

    return read


def _connectorx(url: str, kind: str) -> Callable[[str], int]:
    import connectorx

    def read(sql: str) -> int:
        result: Any = connectorx.read_sql(url, sql, return_type=kind, protocol="binary")
        return sum(batch.num_rows for batch in result) if kind == "arrow_stream" else result.num_rows

    return read


def _pymysql(host: str, port: int, password: str) -> Callable[[str], int]:
    import pyarrow as pa
    import pymysql

    connection = pymysql.connect(host=host, port=port, user="root", password=password, charset="utf8mb4")

    def batches(sql: str) -> Iterator[pa.RecordBatch]:
        with connection.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(sql)
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany(10_000):
                yield pa.RecordBatch.from_arrays([pa.array(values) for values in zip(*rows, strict=True)], names=names)

    return lambda sql: sum(batch.num_rows for batch in batches(sql))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contender", nargs=2, metavar=("NAME", "TABLE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps(contender(*arguments.contender)))
        return
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        server = start_mariadb(Path(folder) / "server", innodb_buffer_pool_size="1G", skip_log_bin=True)
        try:
            load(server, arguments.rows)
            run(server, arguments.rows, arguments.repeats)
        finally:
            server.stop()


def run(server: Server, rows: int, repeats: int) -> None:
    environment = os.environ | {
        "BENCH_HOST": server.host,
        "BENCH_PORT": str(server.port),
        "BENCH_PASSWORD": server.password,
        "BENCH_ROWS": str(rows),
    }
    taken: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _, table, name in product(range(repeats), TABLES, CONTENDERS):
        command = [sys.executable, "-m", "tests.bench.read", "--contender", name, table]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            # connectorx hands out streams in some versions only.
            if name == "connectorx_stream":
                continue
            raise RuntimeError(f"{name} failed:\n{done.stderr[-4000:]}")
        one = json.loads(done.stdout.splitlines()[-1])
        taken.setdefault((table, name), []).append(one)
        rates = f"{one['rows'] / one['wall']:>12,.0f} rows/s wall {one['rows'] / one['cpu']:>12,.0f} rows/s cpu"
        print(f"{table:8} {name:18} {rates}", flush=True)

    def rate(table: str, name: str, clock: str) -> float:
        return statistics.median(one["rows"] / one[clock] for one in taken[table, name]) if (table, name) in taken else 0.0

    def report(table: str) -> dict[str, float]:
        other_cpu = max(rate(table, "connectorx", "cpu"), rate(table, "connectorx_stream", "cpu"))
        other_wall = max(rate(table, "connectorx", "wall"), rate(table, "connectorx_stream", "wall"))
        chunks, pymysql = (max(rate(table, name, "wall"), rate(table, f"{name}_chunks", "wall")) for name in ("snowmelt", "pymysql"))
        return {
            "rows_per_s_wall": round(rate(table, "snowmelt", "wall")),
            "rows_per_s_wall_chunks": round(chunks),
            "rows_per_s_cpu": round(rate(table, "snowmelt", "cpu")),
            "ratio_vs_connectorx_cpu": round(rate(table, "snowmelt", "cpu") / other_cpu, 2),
            "ratio_kept_vs_connectorx_cpu": round(rate(table, "snowmelt_kept", "cpu") / other_cpu, 2),
            "ratio_vs_connectorx_wall": round(rate(table, "snowmelt", "wall") / other_wall, 2),
            "ratio_vs_pymysql": round(chunks / pymysql, 1),
            "ratio_vs_pymysql_one_connection": round(rate(table, "snowmelt", "wall") / rate(table, "pymysql", "wall"), 1),
            "ratio_vs_pymysql_cpu": round(rate(table, "snowmelt", "cpu") / rate(table, "pymysql", "cpu"), 1),
        }

    tables = {table: report(table) for table in TABLES}
    # The worse of the two tables speaks for both.
    overall = {key: min(one[key] for one in tables.values()) for key in ("ratio_vs_connectorx_cpu", "ratio_vs_pymysql")}
    print(json.dumps({"bench": "read", **overall, "connections": CONNECTIONS, "tables": tables}))


if __name__ == "__main__":
    main()
