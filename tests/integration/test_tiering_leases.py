"""Leases of a tiering service that lives: what a round that finished, failed, was fenced or lost leaves on the real server.

Leases last ten minutes here unless a test needs the loss of one, so that nothing goes away by itself. Rounds run on Spark where a job is to
be cancelled or heard of, and else in this process.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.signs import DriverActivity
from snowmelt.engine.tiering import round as round_module
from snowmelt.engine.tiering import split_job
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.round import RunningRound
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.status import ShownLease, read_statuses
from snowmelt.engine.tiering.tasks import SplitAnswer, SplitTask, _LogRows, run_split
from snowmelt.errors import InvariantBroken, SnowmeltError, Unavailable
from snowmelt.fluss.answers import Claim, HandedOut, HeartbeatAnswer
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.server import ServerProcess
from snowmelt.fluss.tables import describe_table
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.tiering.leases import LeaseBook
from snowmelt.tiering.rounds import RoundState
from snowmelt.tiering.splits import LogSplit, SnapshotSplit
from tests.integration.tiering import LAKE, RunningTiering, in_order, lake_rows, settings
from tests.kit.fluss_servers import Tables
from tests.kit.waiting import until

MINUTES_MS = 600_000
LEASED_S_MAX = 30.0
"""How long the lease of a round that is over may stay, while the server can be reached. Far less than a lease, which would hide it."""


class Shop:
    """Tables on the shared server that have rows, and a KV snapshot of each bucket."""

    def __init__(self, tables: Tables) -> None:
        self.server = tables.server
        self.tables = tables
        self.client = FlussClient(self.server.connect())
        self.made: list[TableId] = []

    def make(self, *, buckets: int = 2) -> TableId:
        path = self.tables.make(buckets=buckets, **LAKE)
        self.made.append(path)
        self.tables.upsert(path, ROWS)
        until(lambda: len(self.client.latest_snapshots(path).snapshots) == buckets)
        return path

    def number(self, path: TableId) -> int:
        return self.client.table_info(path).table

    def leased(self, path: TableId) -> list[list[int]]:
        """What the server has written down of leases on a table: a snapshot for each bucket, or -1."""
        found = []
        for file in (self.server.remote / "lease").glob(f"**/{self.number(path)}/*.metadata"):
            try:
                found.append(json.loads(file.read_text())["bucket_snapshots"])
            except (FileNotFoundError, ValueError):
                # Replaced, or being written.
                continue
        return found

    def wait_until_nothing_is_leased(self, path: TableId) -> None:
        until(lambda: not self.leased(path), seconds_max=LEASED_S_MAX)

    def files(self, end: RoundEnd) -> list[Path]:
        """What is in the lake of a round, by its nonce."""
        return list(self.server.warehouse.glob(f"**/*{end.lease.rpartition('-')[2]}*"))


ROWS = [{"id": number, "name": "x", "n": number} for number in range(40)]


@pytest.fixture
def shop(fluss_tables: Tables) -> Iterator[Shop]:
    made = Shop(fluss_tables)
    yield made
    for path in made.made:
        fluss_tables.drop(path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits are read in the round's own thread: no Spark tells of them, and none is waited for."""

    def run_here(_: Any, tasks: Sequence[Any], run: Callable[[Any], Any]) -> list[Any]:
        return [_answer(run, task) for task in tasks]

    monkeypatch.setattr(split_job, "run_on_spark", run_here)


def _answer(run: Callable[[Any], Any], task: Any) -> Any:
    try:
        return run(task)
    except SnowmeltError as error:
        return error


class Gate:
    """What reads of KV snapshots wait for, in whatever process they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *buckets: int) -> Callable[[TieringSettings, SplitTask], SplitAnswer]:
        """A `run_split` that waits before it reads a KV snapshot of these buckets."""
        folder = self._folder

        def wait(wanted: TieringSettings, task: SplitTask) -> SplitAnswer:
            if isinstance(task.split, SnapshotSplit) and task.split.bucket.bucket in buckets:
                (folder / f"waits-{time.monotonic_ns()}").touch()
                until((folder / "open").exists, seconds_max=200)
            return run_split(wanted, task)

        return wait

    @property
    def waiting(self) -> int:
        return len(list(self._folder.glob("waits-*")))

    def open(self) -> None:
        (self._folder / "open").touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def ends_of(running: RunningTiering, path: TableId, *states: RoundState) -> list[RoundEnd]:
    return [end for end in running.ends if end.path == path and end.state in states]


# ---- finish, fail, fence, while the service lives


def test_a_round_has_released_its_buckets_before_its_report_is_answered(here: None, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop.make()
    seen: list[bool] = []

    def say(running: RunningRound, report: Any) -> None:
        shop.wait_until_nothing_is_leased(path)
        seen.append(True)
        told(running, report)

    told = RunningRound._say
    monkeypatch.setattr(RunningRound, "_say", say)
    with RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
        assert seen
    first = ends_of(running, path, RoundState.FINISHED)[0]
    assert first.leased == 2
    assert lake_rows(shop.server.warehouse, path) == in_order(ROWS)


def test_a_round_that_fails_leaves_no_lease_while_the_service_lives_and_the_next_has_another_id(
    here: None, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop.make()
    prepare, leases = FlussClient.prepare_lake_snapshot, []

    def fails_once(self: FlussClient, *arguments: Any) -> Any:
        leases.append(shop.leased(path))
        if len(leases) == 1:
            raise Unavailable("as planned")
        return prepare(self, *arguments)

    def say(running: RunningRound, report: Any) -> None:
        # Not only when it is over: it is let go of before anybody is told.
        shop.wait_until_nothing_is_leased(path)
        told(running, report)

    told = RunningRound._say
    monkeypatch.setattr(FlussClient, "prepare_lake_snapshot", fails_once)
    monkeypatch.setattr(RunningRound, "_say", say)
    with RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
    failed, finished = ends_of(running, path, RoundState.FAILED)[0], ends_of(running, path, RoundState.FINISHED)[0]
    assert all(leases[:2]), "it was leased when it was read"
    assert failed.lease != finished.lease, "an id was used twice"


def test_a_round_that_ends_by_a_bug_leaves_no_lease_while_the_service_lives(
    here: None, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop.make()

    def bug(*_: Any) -> Any:
        assert shop.leased(path)
        raise ValueError("a bug")

    monkeypatch.setattr(FlussClient, "prepare_lake_snapshot", bug)
    with RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: ends_of(running, path, RoundState.FAILED))
        shop.wait_until_nothing_is_leased(path)
        assert running._thread.is_alive()
    assert "ValueError" in str(running.ends[0].error)


@pytest.mark.timeout(240)
def test_a_table_that_the_coordinator_takes_away_cancels_its_job_drops_its_lease_and_deletes_what_was_staged(
    shop: Shop, spark: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate stays shut: nothing but a cancelled job ends the round."""
    path, other = shop.make(), shop.make()
    handed: list[tuple[HandedOut, int]] = []
    begin = RunningTiering.service_class._begin

    def noted(self: Any, pool: Any, host: Any, table: HandedOut, epoch: int) -> None:
        if table.path == path:
            handed.append((table, epoch))
        begin(self, pool, host, table, epoch)

    monkeypatch.setattr(RunningTiering.service_class, "_begin", noted)
    monkeypatch.setattr(round_module, "run_split", _only(path, gate.run(1)))
    # One round at a time: the table is not handed out again in the same answer, and its error alone tells.
    with RunningTiering(spark, settings(shop.server, lease_ms=MINUTES_MS, rounds_at_once=1)) as running:
        running.wait_for(lambda: gate.waiting)
        running.wait_for(lambda: any(one[0] < 0 <= one[1] for one in shop.leased(path)))
        first, epoch = handed[0]
        monkeypatch.setattr(round_module, "run_split", run_split)
        # As a service would that takes itself for its owner; the coordinator then hands the table out again.
        connect_coordinator(shop.server.bootstrap).heartbeat(failed=[Claim(first.table, epoch, first.tiering_epoch)])
        running.wait_for(lambda: ends_of(running, path, RoundState.FENCED))
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
        running.wait_for(lambda: ends_of(running, other, RoundState.FINISHED))
        for one in (path, other):
            shop.wait_until_nothing_is_leased(one)
    fenced = ends_of(running, path, RoundState.FENCED)[0]
    assert "not ours any more" in str(fenced.error)
    assert shop.files(fenced) == []
    assert lake_rows(shop.server.warehouse, path) == in_order(ROWS)


def _only(path: TableId, run: Callable[[TieringSettings, SplitTask], SplitAnswer]) -> Callable[[TieringSettings, SplitTask], SplitAnswer]:
    def some(wanted: TieringSettings, task: SplitTask) -> SplitAnswer:
        return run(wanted, task) if task.table.path == path else run_split(wanted, task)

    return some


@pytest.mark.parametrize("how", ["another coordinator", "handed out again"])
def test_a_round_is_fenced_by_another_coordinator_and_by_a_second_hand_out(
    here: None, shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its lease goes at once, though it still reads; it commits nothing; and another table goes on meanwhile."""
    path = shop.make(buckets=1)
    beat = FlussClient.heartbeat
    doctored: list[RunningRound] = []

    def heartbeat(self: FlussClient, **said: Any) -> HeartbeatAnswer:
        answer = beat(self, **said)
        if not gate.waiting or doctored or not said.get("tiering"):
            return answer
        running = next(one for one in service.service._running.values() if one.handed.path == path)
        doctored.append(running)
        if how == "another coordinator":
            return replace(answer, coordinator_epoch=answer.coordinator_epoch + 1)
        return replace(answer, table=running.handed)

    monkeypatch.setattr(round_module, "run_split", _only(path, gate.run(0)))
    # One for the fenced round, one for the next of its table, which waits too, and others for tables that go on.
    service = RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS, rounds_at_once=4))
    monkeypatch.setattr(FlussClient, "heartbeat", heartbeat)
    commits: list[str] = []
    commit = RunningRound._outcome

    def outcome(self: RunningRound, step: Any) -> Any:
        if type(step).__name__ == "Commit":
            commits.append(self._lease)
        return commit(self, step)

    monkeypatch.setattr(RunningRound, "_outcome", outcome)
    with service as running:
        running.wait_for(lambda: doctored)
        # The second round of a table waits at the gate with a lease of its own.
        until(lambda: not any(doctored[0]._lease in str(file) for file in _lease_files(shop)), seconds_max=LEASED_S_MAX)
        other = shop.make(buckets=1)
        running.wait_for(lambda: ends_of(running, other, RoundState.FINISHED))
        assert lake_rows(shop.server.warehouse, path) == []
        gate.open()
        running.wait_for(lambda: ends_of(running, path, RoundState.FENCED))
    assert doctored[0]._lease not in commits


def _lease_files(shop: Shop) -> list[Path]:
    return list((shop.server.remote / "lease").glob("**/*.metadata"))


def test_a_round_whose_coordinator_is_silent_for_too_long_is_lost_while_it_reads(
    here: None, shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop.make(buckets=1)
    monkeypatch.setattr("snowmelt.tiering.rounds.SILENCE_MS_MAX", 500)
    beat = FlussClient.heartbeat

    def heartbeat(self: FlussClient, **said: Any) -> HeartbeatAnswer:
        # The lease thread asks for the epoch with an empty one, and is answered.
        if gate.waiting and said:
            raise Unavailable("no answer")
        return beat(self, **said)

    monkeypatch.setattr(round_module, "run_split", gate.run(0))
    monkeypatch.setattr(FlussClient, "heartbeat", heartbeat)
    with RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: gate.waiting)
        shop.wait_until_nothing_is_leased(path)
        gate.open()
        running.wait_for(lambda: ends_of(running, path, RoundState.FENCED))
    assert lake_rows(shop.server.warehouse, path) == []


# ---- single buckets


def test_a_bucket_is_released_when_its_task_has_ended_while_others_are_read(
    shop: Shop, spark: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop.make()
    monkeypatch.setattr(round_module, "run_split", gate.run(1))
    with RunningTiering(spark, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: any(one[0] < 0 <= one[1] for one in shop.leased(path)))
        assert not running.ends
        running.wait_for(lambda: [(one.table, one.phase, one.buckets) for one in shown(running)] == [(str(path), "held", 1)])
        lease = shown(running)[0]
        assert lease.held_ms is not None
        assert lease.covered_ms is not None
        assert lease.held_ms <= time.time() * 1000 < lease.covered_ms <= lease.held_ms + 2 * MINUTES_MS
        gate.open()
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
        assert lease.lease == running.ends[-1].lease
        shop.wait_until_nothing_is_leased(path)
        running.wait_for(lambda: not shown(running))
    assert lake_rows(shop.server.warehouse, path) == in_order(ROWS)
    [last] = read_statuses(running.settings.name, shop.server.bootstrap)
    assert (last.life, last.ended["finished"] > 0, last.error) == (DriverActivity.ENDED, True, "")


def shown(running: RunningTiering) -> Sequence[ShownLease]:
    """The leases that `tier status` shows."""
    return [lease for one in read_statuses(running.settings.name, running.settings.bootstrap) for lease in one.leases]


def test_a_split_that_fails_ends_the_others_and_their_lease(shop: Shop, spark: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop.make()
    shut = gate.run(1)

    def one_fails(wanted: TieringSettings, task: SplitTask) -> SplitAnswer:
        if task.split.bucket.bucket == 0:
            raise Unavailable("as planned")
        return shut(wanted, task)

    monkeypatch.setattr(round_module, "run_split", one_fails)
    with RunningTiering(spark, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: ends_of(running, path, RoundState.FAILED))
        monkeypatch.setattr(round_module, "run_split", run_split)
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
        shop.wait_until_nothing_is_leased(path)
    assert "as planned" in str(ends_of(running, path, RoundState.FAILED)[0].error)


# ---- the lease is lost


def test_what_was_read_under_a_lease_that_was_lost_is_not_committed_though_its_news_comes_late(
    here: None, shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round hears of a loss when it can; what it read is asked for before it commits."""
    path = shop.make(buckets=1)
    acquire, calls = FlussClient.acquire, 0

    def once(self: FlussClient, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Unavailable("no answer")
        return acquire(self, *arguments)

    lost = threading.Event()
    monkeypatch.setattr(FlussClient, "acquire", once)
    monkeypatch.setattr(RunningRound, "_lease_lost", lambda *_: lost.set())
    monkeypatch.setattr(round_module, "run_split", gate.run(0))
    with RunningTiering(None, settings(shop.server, lease_ms=3_000)) as running:
        running.wait_for(lost.is_set)
        gate.open()
        running.wait_for(lambda: running.ends)
        assert running.ends[0].state is RoundState.FAILED
        assert "lease was lost" in str(running.ends[0].error)
        assert lake_rows(shop.server.warehouse, path) == []


@pytest.mark.timeout(240)
def test_a_coordinator_that_stands_still_for_twice_a_lease_costs_the_round_and_nothing_else(
    shop: Shop, spark: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate stays shut: the loss cancels the job."""
    lease_ms = 2_000
    path, other = shop.make(), shop.make()
    monkeypatch.setattr(round_module, "run_split", _only(path, gate.run(0, 1)))
    coordinator = shop.server.pid(ServerProcess.COORDINATOR)
    assert coordinator is not None
    with RunningTiering(spark, settings(shop.server, lease_ms=lease_ms)) as running:
        running.wait_for(lambda: gate.waiting)
        running.wait_for(lambda: ends_of(running, other, RoundState.FINISHED))
        os.kill(coordinator, signal.SIGSTOP)
        try:
            # Not a wait for something: this is how long it stands still.
            threading.Event().wait(2 * lease_ms / 1000)
        finally:
            os.kill(coordinator, signal.SIGCONT)
        running.wait_for(lambda: ends_of(running, path, RoundState.FAILED, RoundState.FENCED))
        assert lake_rows(shop.server.warehouse, path) == []
        monkeypatch.setattr(round_module, "run_split", run_split)
        running.wait_for(lambda: ends_of(running, path, RoundState.FINISHED))
        before = len(ends_of(running, other, RoundState.FINISHED))
        running.wait_for(lambda: len(ends_of(running, other, RoundState.FINISHED)) > before)
        shop.wait_until_nothing_is_leased(path)
    assert "lease was lost" in str(ends_of(running, path, RoundState.FAILED, RoundState.FENCED)[0].error)
    assert lake_rows(shop.server.warehouse, path) == in_order(ROWS)


def test_a_lease_thread_that_dies_ends_the_service_with_an_error_and_leaves_no_lease(
    here: None, shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = shop.make(buckets=1), shop.make(buckets=1)
    monkeypatch.setattr(round_module, "run_split", _only(path, gate.run(0)))
    due_ms = LeaseBook.due_ms

    def dies(self: LeaseBook) -> int | None:
        if gate.waiting:
            gate.open()
            raise ValueError("a bug")
        return due_ms(self)

    monkeypatch.setattr(LeaseBook, "due_ms", dies)
    with (
        pytest.raises(InvariantBroken, match=r"the lease thread ended by a bug.*ValueError.*start the service again"),
        RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running,
    ):
        running.wait_for(lambda: not running._thread.is_alive())
    assert shop.leased(path) == shop.leased(other) == []
    assert not ends_of(running, path, RoundState.FINISHED)
    assert lake_rows(shop.server.warehouse, path) == []
    # The next service has the tables at once: they were handed back, and nobody waits until the coordinator misses the first one.
    monkeypatch.setattr(LeaseBook, "due_ms", due_ms)
    monkeypatch.setattr(round_module, "run_split", run_split)
    with RunningTiering(None, settings(shop.server, lease_ms=MINUTES_MS)) as running:
        running.wait_for(lambda: all(ends_of(running, one, RoundState.FINISHED) for one in (path, other)))
    for one in (path, other):
        assert lake_rows(shop.server.warehouse, one) == in_order(ROWS)
        assert shop.leased(one) == []


# ---- the log


def test_a_range_of_the_log_never_ends_between_the_halves_of_an_update(shop: Shop) -> None:
    """Neither where its plan ends there nor where its bytes are used up."""
    path = shop.make(buckets=1)
    shop.tables.upsert(path, [{"id": 0, "name": "y", "n": 0}])
    table = describe_table(shop.client, path)
    bucket, halves = Bucket(table.table, 0), len(ROWS)
    for bytes_max in (1 << 30, 0):
        for stop, reached in ((halves + 1, halves), (halves + 2, halves + 2)):
            # The rows end at `halves`; there is the old half, and then the new one.
            split = LogSplit(bucket, halves if bytes_max == 0 else 0, stop)
            task = SplitTask(split=split, table=table, target="", prefix="")
            rows = _LogRows(settings(shop.server, bytes_max=bytes_max), task, split, RemoteFiles({}))
            found = sum(batch.num_rows for batch in rows.read())
            assert (rows.reached, found) == (reached, reached - split.start)
