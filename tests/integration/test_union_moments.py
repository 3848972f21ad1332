"""Union reads of a table that is written to without pause, at any moment of its tiering: each is the Fluss table at the offsets where the
read stopped, and these lie between the ends of its logs before and behind the read.

What the table was at an offset is folded from the log as pyfluss reads it, and from nothing of ours.
"""

from __future__ import annotations

import itertools
import json
import pickle
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import snowmelt
from snowmelt.engine.union.plan import UnionTask
from snowmelt.fluss.server import FlussServer
from snowmelt.model.table import TableId
from snowmelt.sinks.paimon.tiering import OFFSETS, PaimonTieringSink
from snowmelt.tiering.fence import Base
from tests.integration.fluss_reading import Reading
from tests.integration.tiering import LAKE, RunningTiering, in_order, settings
from tests.integration.unions import options, planned, read
from tests.kit.fluss_servers import Tables

KEYS, BUCKETS = 3000, 2
"""So many that of what a round or a read covers most is not changed again, and each change counts."""
Ends = dict[int, int]


class Writer:
    """Keys are set, replaced and deleted; some deletes are of keys that are not there, and take an offset all the same."""

    def __init__(self, server: FlussServer, path: TableId) -> None:
        self._server = server
        self._path = path
        self._rng = random.Random(11)
        self._turns = itertools.count()

    @contextmanager
    def without_pause(self) -> Iterator[None]:
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(self._write, stop)
            try:
                yield
            finally:
                stop.set()
            writing.result()

    def _write(self, stop: threading.Event) -> None:
        tables = Tables(self._server)
        try:
            while not stop.is_set():
                turn = next(self._turns)
                some = self._rng.sample(range(KEYS), 20)
                tables.upsert(self._path, [{"id": id, "name": self._rng.choice([None, "", f"turn {turn}"]), "n": turn} for id in some])
                tables.delete(self._path, [{"id": id} for id in self._rng.sample(range(KEYS), 8)])
        finally:
            tables.close()


@dataclass(frozen=True)
class Seen:
    """A union read: the ends of the logs when it was asked for, where it stopped, their ends when it was over, and what it showed."""

    before: Ends
    stops: Ends
    after: Ends
    rows: list[dict[str, Any]]
    tasks: Sequence[UnionTask]

    @property
    def kind(self) -> str:
        """Where the rows came from."""
        if any(task.files for task in self.tasks):
            return "KV snapshots"
        return "lake and log" if any(task.bucket for task in self.tasks) else "lake"


@pytest.fixture
def tiered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Ends]:
    """Where lake snapshots have the table, by the names of the server's files that say it. Each is read before its snapshot is there: the
    server deletes it with the next snapshot, which may come before a read of this one is over."""
    ends: dict[str, Ends] = {}
    commit = PaimonTieringSink.commit

    def committed(lake: PaimonTieringSink, target: str, base: Base, path: str, messages: Sequence[bytes]) -> int:
        ends[path] = {bucket.bucket: end for bucket, end in lake.offsets(path).ends.items()}
        return commit(lake, target, base, path, messages)

    monkeypatch.setattr(PaimonTieringSink, "commit", committed)
    return ends


class Reader:
    def __init__(self, server: FlussServer, path: TableId, spark: Any, tiered: Mapping[str, Ends]) -> None:
        self._server = server
        self._path = path
        self._spark = spark
        self._tiered = tiered
        self._reading = Reading(server, path)
        self.seen: list[Seen] = []

    def ends(self) -> Ends:
        return {bucket.bucket: end for bucket, end in self._reading.ends().items()}

    def read(self, times: int, *, by_spark: int = 0) -> None:
        """So many, one behind the other; of these the last ones as a user does it, and the others by plan and tasks."""
        for number in range(times):
            before = self.ends()
            rows, tasks = self._by_spark() if number >= times - by_spark else self._by_plan()
            self.seen.append(Seen(before, self._stops(tasks), self.ends(), in_order(rows), tasks))

    def _by_plan(self) -> tuple[list[dict[str, Any]], list[UnionTask]]:
        parsed, tasks = planned(self._server, self._path)
        return read(parsed, tasks).to_pylist(), tasks

    def _by_spark(self) -> tuple[list[dict[str, Any]], list[UnionTask]]:
        told = options(self._server, self._path)
        frame = snowmelt.union_read(self._spark, told.pop("table"), **told)
        rows = [row.asDict() for row in frame.collect()]
        # The plan that was carried out: the partitions of its scan, as Spark hands them to tasks.
        partitions = frame._jdf.queryExecution().executedPlan().collectLeaves().head().inputPartitions()
        tasks = [pickle.loads(partitions.apply(number).pickedPartition()).value for number in range(partitions.size())]
        return rows, tasks

    def _stops(self, tasks: Sequence[UnionTask]) -> Ends:
        """A bucket without changes behind the lake has no task for them; it is read up to where the lake has it."""
        snapshot = tasks[0].lake_snapshot
        stops: Ends = {}
        if snapshot:
            folder = self._server.warehouse / f"{self._path.database}.db" / self._path.name / "snapshot"
            stops = self._tiered[json.loads((folder / f"snapshot-{snapshot}").read_text())["properties"][OFFSETS]]
        return stops | {task.bucket.bucket: task.stop for task in tasks if task.bucket is not None}


class History:
    """Everything that was ever done to a table, as pyfluss reads its log."""

    def __init__(self, tables: Tables, path: TableId, ends: Ends) -> None:
        self._changes: dict[int, list[tuple[int, str, dict[str, Any]]]] = {bucket: [] for bucket in ends}
        for bucket, record in tables.log(path, ends):
            self._changes[bucket].append((record.offset, record.change_type.short_string(), dict(record.row)))

    def at(self, stops: Ends) -> list[dict[str, Any]]:
        held: dict[int, dict[str, Any]] = {}
        for bucket, changes in self._changes.items():
            for offset, kind, row in changes:
                if offset >= stops[bucket]:
                    break
                if kind in ("+I", "+U"):
                    held[row["id"]] = row
                elif kind == "-D":
                    del held[row["id"]]
        return in_order(held.values())


@pytest.mark.timeout(240)
def test_a_union_read_at_any_moment_is_the_table_at_the_offsets_where_it_stopped(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, tiered: dict[str, Ends]
) -> None:
    path = fluss_tables.make(buckets=BUCKETS, **LAKE)
    fluss_tables.upsert(path, [{"id": id, "name": "first", "n": -1} for id in range(0, KEYS, 2)])
    reader, writer = Reader(fluss, path, spark, tiered), Writer(fluss, path)
    reader.read(2, by_spark=1)
    with writer.without_pause():
        # Never tiered.
        reader.read(4, by_spark=1)
        with RunningTiering(spark, settings(fluss)) as running:
            for rounds in range(1, 5):
                reader.read(4, by_spark=1)
                running.wait_for(lambda rounds=rounds: running.finished(path) >= rounds)  # type: ignore[misc]
        # Nobody tiers, and the log grows.
        reader.read(1, by_spark=1)
    with RunningTiering(spark, settings(fluss)) as running:
        running.wait_for(lambda: not [task for task in planned(fluss, path)[1] if task.bucket])
    reader.read(2, by_spark=1)
    # New keys alone: the first offset behind the lake counts, and the last one of each bucket has a record.
    fluss_tables.upsert(path, [{"id": id, "name": "last", "n": -1} for id in range(KEYS, KEYS + 100)])
    reader.read(1)

    history = History(fluss_tables, path, reader.ends())
    for seen in reader.seen:
        for bucket in range(BUCKETS):
            assert seen.before[bucket] <= seen.stops[bucket] <= seen.after[bucket], seen
        assert seen.rows == history.at(seen.stops), (seen.kind, seen.stops)
    assert {seen.kind for seen in reader.seen} == {"KV snapshots", "lake and log", "lake"}
    assert len({seen.tasks[0].lake_snapshot for seen in reader.seen}) > 3
    assert len({tuple(seen.stops.items()) for seen in reader.seen}) > 15, "the table stood still"
