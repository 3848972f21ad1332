"""A tiering service that is killed at each step of a round, again and again, or its workers and executors under it: the lake is the Fluss
table value for value, each row came once, and a union read shows the table whatever was left half done.

`python -m tests.integration.test_tiering_killed 100 --master 'local-cluster[2,1,1024]'` does as many kills on Spark with executors of
their own, `--master none` without Spark; the test does one of each.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.engine.failpoints import LAKE_COMMITTED, OF_TIERING, SPLIT_READ, SPLITS_STAGED, of_executor
from snowmelt.engine.tiering.listing import lake_known
from snowmelt.fluss.answers import Claim, OffsetKind
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.tables import describe_table
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import BUCKET, OFFSET
from tests.integration.fluss_reading import EDGES, PYFLUSS, all_types, written
from tests.integration.killed import executors_of
from tests.integration.tiering import LAKE, assert_others_read_it, lake_rows, lake_table
from tests.integration.unions import planned, read
from tests.kit import jvm
from tests.kit.fluss_bytes import seen, shown
from tests.kit.fluss_raw import create_table, put_rows
from tests.kit.fluss_servers import FreshFluss, Tables, start_fluss
from tests.kit.forked import Forked
from tests.kit.processes import children_of
from tests.kit.waiting import until

ROOT = Path(__file__).parents[2]
WAIT_S_MAX = 240.0
KEYS = 300
EXECUTORS = 2
CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"

Row = tuple[Any, ...]


def rows_of(found: pa.Table, names: Iterable[str]) -> list[Row]:
    """Values as `shown` shows them, in an order that does not depend on where rows lie."""
    return sorted(zip(*(seen(found.column(name).combine_chunks()) for name in names), strict=True), key=repr)


class Typed:
    """A table with every type there is, its extremes and NULL; what it holds by key, as it was written."""

    def __init__(self, tables: Tables, database: str, number: int) -> None:
        self._server = tables.server
        self._schema, _ = all_types()
        self.path = TableId(database, f"typed_{number}")
        create_table(self._server, self.path, self._schema, buckets=2, **LAKE)
        self._held: dict[int, list[Any]] = {}
        with self._server.connect() as connection:
            table = describe_table(FlussClient(connection), self.path)
        self._table, bucketing = table.table, table.bucketing()
        assert bucketing is not None
        self._buckets = bucketing.buckets(pa.record_batch({"id": pa.array(range(KEYS), pa.int32())})).tolist()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self._schema.columns]

    def change(self, rng: random.Random) -> None:
        brought = {id: [id, *(rng.choice([None, *values]) for values in EDGES.values())] for id in rng.sample(range(KEYS), 60)}
        self._held.update(brought)
        gone = rng.sample(sorted(self._held), 15)
        for bucket in (0, 1):
            rows = [row for id, row in brought.items() if self._buckets[id] == bucket]
            put_rows(self._server, self._table, self._schema, rows, bucket=bucket, gone=[id for id in gone if self._buckets[id] == bucket])
        for id in gone:
            del self._held[id]

    @property
    def expected(self) -> list[Row]:
        kinds = [column.type for column in self._schema.columns]
        rows = [tuple(shown(kind, value) for kind, value in zip(kinds, row, strict=True)) for row in self._held.values()]
        return sorted(rows, key=repr)


class Keyed:
    """A table whose key has columns of every type that pyfluss can write; what it holds by key."""

    columns = pa.schema([*PYFLUSS, ("text", pa.string()), ("n", pa.int64())])
    names = columns.names

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.path = tables.make(columns=self.columns, key=PYFLUSS.names, **LAKE)
        self._held: dict[int, dict[str, Any]] = {}
        self._turns = itertools.count(1)

    def change(self, rng: random.Random) -> None:
        turn = next(self._turns)
        some = rng.sample(range(KEYS), 60)
        brought = {id: written(id, f"key {id}") | {"text": rng.choice([None, "", f"turn {turn}"]), "n": turn} for id in some}
        self._tables.upsert(self.path, brought.values())
        self._held.update(brought)
        gone = [self._held.pop(id) for id in rng.sample(sorted(self._held), 15)]
        self._tables.delete(self.path, [{name: row[name] for name in PYFLUSS.names} for row in gone])

    @property
    def expected(self) -> list[Row]:
        return rows_of(pa.Table.from_pylist(list(self._held.values()), self.columns), self.names)


class Shop:
    """Tables with keys and a log table, and what they hold. Each new pair of tables is one that no round has seen yet."""

    def __init__(self, server: FlussServer) -> None:
        self.server = server
        self.tables = Tables(server)
        self.log = self.tables.make(columns=PYFLUSS, key=(), **LAKE)
        self.keyed: list[Typed | Keyed] = []
        self._settled: set[TableId] = set()
        """Those that nobody changes any more, and that the lake has."""
        self._dropped: set[TableId] = set()
        self._rng = random.Random(7)
        self._appended = 0
        self.renew()

    def renew(self) -> None:
        """From now on others are changed. What the lake has of those before stays what it is, and Fluss is rid of them."""
        for table in self.keyed:
            if table.path in self._settled - self._dropped:
                self._check_server(table)
                self.tables.drop(table.path)
                self._dropped.add(table.path)
        self.keyed += [Typed(self.tables, self.log.database, len(self.keyed)), Keyed(self.tables)]

    def change(self) -> None:
        for table in self.keyed[-2:]:
            table.change(self._rng)
        rows = [self._line(number) for number in range(self._appended, self._appended + 50)]
        self.tables.append(self.log, pa.RecordBatch.from_pylist(rows, PYFLUSS))
        self._appended += 50

    def _line(self, number: int) -> dict[str, Any]:
        return written(number, f"line {number}") | ({"name": None, "money": None} if number % 7 == 0 else {})

    @property
    def _lines(self) -> list[Row]:
        rows = [self._line(number) for number in range(self._appended)]
        return rows_of(pa.Table.from_pylist(rows, PYFLUSS), PYFLUSS.names)

    @property
    def rows(self) -> int:
        return sum(len(table.expected) for table in self.keyed)

    def is_in_the_lake(self) -> bool:
        for table in self.keyed:
            if table.path not in self._settled:
                if rows_of(lake_table(self.server.warehouse, table.path), table.names) != table.expected:
                    return False
                if table not in self.keyed[-2:]:
                    self._settled.add(table.path)
        return lake_table(self.server.warehouse, self.log).num_rows >= self._appended

    def check(self) -> None:
        """The lake is what was written."""
        for table in self.keyed:
            assert rows_of(lake_table(self.server.warehouse, table.path), table.names) == table.expected, table.path
        lines = lake_table(self.server.warehouse, self.log)
        assert rows_of(lines, PYFLUSS.names) == self._lines, "a row is lost, or came twice"
        places = lines.select([BUCKET, OFFSET]).to_pylist()
        assert len({tuple(place.values()) for place in places}) == len(places)

    def check_union(self) -> int:
        """A union read is what was written. Of how many tables does the lake have more than Fluss was told?"""
        untold = 0
        with connect_coordinator(self.server.bootstrap).connection as connection:
            # Also those that nobody changes any more: on a busy machine one of their rounds may be the one that was cut short.
            keyed = [one for one in self.keyed if one.path not in self._dropped]
            for path, names, expected in [(one.path, one.names, one.expected) for one in keyed] + [(self.log, PYFLUSS.names, self._lines)]:
                parsed, tasks = planned(self.server, path)
                assert rows_of(read(parsed, tasks), names) == expected, path
                known = lake_known(FlussClient(connection), path)
                untold += max(task.lake_snapshot for task in tasks) > (known.snapshot if known is not None else 0)
        return untold

    def check_server(self) -> None:
        """What the server itself shows is what was written."""
        with connect_coordinator(self.server.bootstrap).connection as connection:
            for table in self.keyed:
                if table.path not in self._dropped:
                    self._check_server(table)
                    assert_others_read_it(FlussClient(connection), table.path)
        with self.server.connect(ServerProcess.TABLET) as connection:
            client = FlussClient(connection)
            id = next(iter(client.cluster(self.log).leaders)).table
            ends = client.offsets(id, None, range(2), OffsetKind.LATEST)
        lines = [dict(record.row) for _, record in self.tables.log(self.log, {bucket.bucket: end for bucket, end in ends.items()})]
        assert rows_of(pa.Table.from_pylist(lines, PYFLUSS), PYFLUSS.names) == self._lines

    def _check_server(self, table: Typed | Keyed) -> None:
        assert rows_of(self.tables.scan_table(table.path), table.names) == table.expected, table.path


class Service:
    """A tiering service with its workers, in a group of their own. Of its failpoints each is passed until it is armed."""

    def __init__(self, server: FlussServer, folder: Path, *failpoints: str, master: str) -> None:
        name = f"service-{time.monotonic_ns()}"
        self._died = [(failpoint, folder / f"{name}-{number}" / "died") for number, failpoint in enumerate(failpoints)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        environment["SNOWMELT_FAILPOINT"] = ",".join(f"{failpoint}:{path}" for failpoint, path in self._died)
        self._bootstrap = server.bootstrap
        self._log = folder / f"{name}.txt"
        self._log.touch()
        arguments = [server.bootstrap, str(server.warehouse), master]
        self.process = Forked("tests.integration.tiering_process", arguments, environment=environment, log=self._log)

    def arm(self, number: int) -> Path:
        """What is there when somebody has died."""
        _, died = self._died[number]
        died.parent.mkdir()
        return died

    def wait_for(self, condition: Any) -> None:
        def holds() -> bool:
            # Asked in this order: what it does last comes before its end.
            ended = self.process.poll() is not None
            found = bool(condition())
            assert found or not ended, "the service ended by itself"
            return found

        try:
            until(holds, seconds_max=WAIT_S_MAX)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()[-6000:]}") from None

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self._hand_back()

    def _hand_back(self) -> None:
        """What the coordinator would do by itself two minutes after the last heartbeat, which can't be set."""
        said = [line.split() for line in self.said().splitlines() if line.startswith("handed ")]
        newest = {int(table): Claim(int(table), int(epoch), int(tiering)) for _, table, epoch, tiering in said}
        connect_coordinator(self._bootstrap).heartbeat(failed=newest.values())


def live(shop: Shop, folder: Path, *failpoints: str, master: str) -> Iterator[str]:
    """One service and its deaths, as they come: those of workers and executors, which it outlives, and its own, the last."""
    service = Service(shop.server, folder, *failpoints, master=master)
    try:
        for number, failpoint in enumerate(failpoints):
            of_task = failpoint in (SPLIT_READ, of_executor(SPLIT_READ)) and master != "none"
            if failpoint == of_executor(SPLIT_READ):
                # All of them: one that comes later may be the one that dies.
                service.wait_for(lambda: len(executors_of(service.process.pid)) == EXECUTORS)
            executors = executors_of(service.process.pid)
            died = service.arm(number)
            shop.change()
            service.wait_for(died.exists)
            if not of_task:
                break
            # The service goes on by itself.
            service.wait_for(shop.is_in_the_lake)
            shop.check()
            if failpoint != SPLIT_READ:
                lost = set(executors) - set(executors_of(service.process.pid))
                assert lost, "no executor died"
            yield failpoint
    finally:
        service.kill()
    if not of_task:
        untold = shop.check_union()
        assert untold or failpoint != LAKE_COMMITTED
        yield f"{failpoint} (of {untold} tables the lake had more than Fluss knew)" if untold else failpoint


def finish(shop: Shop, folder: Path, *, master: str) -> None:
    service = Service(shop.server, folder, master=master)
    try:
        service.wait_for(shop.is_in_the_lake)
    finally:
        service.kill()
    shop.check()
    shop.check_union()
    shop.check_server()


@pytest.mark.timeout(600)
def test_a_service_worker_or_executor_that_dies_at_each_step_of_a_round_loses_and_doubles_nothing(
    fresh_fluss: FreshFluss, tmp_path: Path
) -> None:
    shop = Shop(fresh_fluss())
    deaths = [*live(shop, tmp_path, SPLIT_READ, of_executor(SPLIT_READ), SPLITS_STAGED, master=CLUSTER)]
    for failpoint in OF_TIERING[2:]:
        deaths += live(shop, tmp_path, failpoint, master="local[2]")
    finish(shop, tmp_path, master="none")
    assert {death.split("@")[0].split()[0] for death in deaths} == set(OF_TIERING)
    shop.tables.close()


@pytest.mark.timeout(240)
def test_a_service_whose_spark_was_killed_ends_and_says_why(fluss: FlussServer, fluss_tables: Tables, tmp_path: Path) -> None:
    """Whoever keeps it running starts it again; one that went on would take tables and fail them for ever."""
    path = fluss_tables.make(**LAKE)
    rows = [{"id": id, "name": "x", "n": id} for id in range(10)]
    fluss_tables.upsert(path, rows[:5])
    service = Service(fluss, tmp_path, master="local[2]")
    try:
        service.wait_for(lambda: len(lake_rows(fluss.warehouse, path)) == 5)
        (spark,) = children_of(service.process.pid)
        os.kill(spark, signal.SIGKILL)
        fluss_tables.upsert(path, rows[5:])
        assert service.process.wait(WAIT_S_MAX) == 1
        assert "Unavailable: Spark has ended" in service.said()
    finally:
        service.kill()


def lives(master: str) -> Iterator[tuple[str, ...]]:
    """For ever, of each service where what is under it is to die, and then itself."""
    under = (SPLIT_READ, of_executor(SPLIT_READ)) if master.startswith("local-cluster") else (SPLIT_READ,)
    for failpoint in itertools.cycle(OF_TIERING if master == "none" else OF_TIERING[1:]):
        yield (failpoint,) if master == "none" else (*under, failpoint)
        # Of a service that has just started once a worker and once an executor.
        under = under[::-1]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kills", type=int)
    arguments.add_argument("--master", default="none", help=f"Spark's: {CLUSTER}, or local[2]; none: without Spark")
    asked = arguments.parse_args()
    jvm.set_options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start_fluss(folder / "fluss")
        shop = Shop(server)
        deaths: list[str] = []
        try:
            for number, failpoints in enumerate(lives(asked.master), 1):
                for death in live(shop, folder, *failpoints[: asked.kills - len(deaths)], master=asked.master):
                    deaths.append(death)
                    print(f"{len(deaths)} of {asked.kills}: died at {death}", flush=True)
                if len(deaths) == asked.kills:
                    break
                # So often that a table's first round meets each failpoint in its turn.
                if number % 3 == 0:
                    shop.renew()
            finish(shop, folder, master=asked.master)
            print(f"{asked.kills} deaths in {number} services: {dict(Counter(death.split()[0] for death in deaths))}")
            print(f"lake, union reads and server have the {shop.rows} rows of {len(shop.keyed)} tables by key, and each line once")
        finally:
            shop.tables.close()
            server.stop()


if __name__ == "__main__":
    main()
