"""The tiering service: asks for due tables, runs rounds of several at once, and sends the heartbeats.

Laws:
- One thread tells the coordinator which tables are ours: a heartbeat names all of them. If the answer has an error for a
  table, or another epoch of the coordinator, the table is no longer ours. This does not protect the lake: see `tiering.fence`.
- If a table is handed out while a round of it is still ours, it was taken from us. The older round learns that first.
- A failed table is handed out again at once. How long it waits here doubles with each failure. It takes no slot meanwhile.
- A table that can't be tiered here is reported once and left to other services (`refusals`).
- An error in a round ends that round and never the service. Only without Spark, or without the thread that renews leases, no round is
  possible: then the service ends with an error.
- Nothing is kept: a new service, here or elsewhere, finds everything in Fluss and in the lake.
- When asked to end, it asks for no more tables, ends the rounds under way, and drops its leases. Rounds that wait for a silent server are
  left to the next service that gets their tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from snowmelt import budgets
from snowmelt.engine.tasks.jobs import is_gone
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.engine.tiering.reading import SplitNews
from snowmelt.engine.tiering.refusals import Refusals, check_cluster
from snowmelt.engine.tiering.round import RoundHost, RunningRound
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.status import StatusFile
from snowmelt.errors import InvalidConfig, InvariantBroken, SnowmeltError, Unavailable
from snowmelt.fluss.answers import Claim, HandedOut, HeartbeatAnswer
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.rpc import Call
from snowmelt.sinks.registry import open_tiering
from snowmelt.tiering.rounds import RoundState

log = logging.getLogger(__name__)

PAUSING_MAX: Final = 64
"""Failed tables that wait."""
_NEEDED: Final = (Call.LAKE_TIERING_HEARTBEAT, Call.PREPARE_LAKE_TABLE_SNAPSHOT, Call.ACQUIRE_KV_SNAPSHOT_LEASE)
AWAY_S_MAX: Final = 15.0
"""Greatest pause between tries to reach a coordinator that is away."""


class Tiering:
    """Tiers one cluster into one warehouse. `run` once."""

    def __init__(self, spark: Any, settings: TieringSettings, tell: Callable[[RoundEnd], None] = lambda _: None) -> None:
        self._spark = spark
        self._settings = settings
        self._tell = tell
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._news = SplitNews(spark)
        self._running: dict[Future[RoundEnd], RunningRound] = {}
        self._failures: dict[int, int] = {}
        self._refusals = Refusals()
        self._status = StatusFile(settings.name, settings.bootstrap, beats_s=settings.poll_s)
        self._coordinator: FlussClient | None = None
        self._away = False
        """The coordinator did not answer the last heartbeat."""
        self._spark_gone = False

    def stop(self) -> None:
        """End after the rounds under way. From any thread, or a signal's handler."""
        self._stop.set()
        self._wake.set()

    def run(self) -> None:
        """Until `stop`. `Unavailable`: Spark is gone, and a new service with a new Spark must continue. `InvariantBroken`: the lease thread
        died by a bug of ours; no round can be protected any more."""
        check_ends(self._settings)
        self._status.begin()
        try:
            self._run()
        except BaseException as error:
            self._status.end(error)
            raise
        self._status.end(None)

    def _run(self) -> None:
        leasing = Leasing(self._settings.bootstrap, self._settings.login, duration_ms=self._settings.lease_ms, died=self.stop)
        host = RoundHost(
            spark=self._spark,
            settings=self._settings,
            leasing=leasing,
            abandon=threading.Event(),
            wake=self._wake,
            slots=threading.Semaphore(self._settings.rounds_at_once),
            news=self._news,
        )
        threads = self._settings.rounds_at_once + PAUSING_MAX
        with leasing, ThreadPoolExecutor(threads, thread_name_prefix="snowmelt-round") as pool:
            try:
                while not self._stop.is_set():
                    self._beat(pool, host, more=True)
                host.abandon.set()
                while self._running:
                    self._beat(pool, host, more=False)
            finally:
                # The next service with the table finds what rounds still wait for.
                host.abandon.set()
                for running in self._running.values():
                    # Only after an error is one still under way. No thread would notice that its table is no longer ours.
                    running.lost("the service ends")
                if self._coordinator is not None:
                    self._coordinator.connection.close()
        if leasing.error is not None:
            raise leasing.error
        if self._spark_gone:
            raise Unavailable("Spark has ended, and no table can be tiered without it", hint="start the service again")

    def _beat(self, pool: ThreadPoolExecutor, host: RoundHost, *, more: bool) -> None:
        now_ms, leases = host.leasing.statuses()
        self._status.beat((str(running.handed.path) for running in self._running.values()), leases, now_ms)
        pausing = sum(running.pausing for running in self._running.values())
        free = pausing < PAUSING_MAX and len(self._running) - pausing < self._settings.rounds_at_once
        sent_ms = time.monotonic_ns() // 1_000_000
        owned = [running for running in self._running.values() if running.owned and not running.reported.is_set()]
        reports = {running: running.report for running in owned if running.report is not None}
        failed = [_named(running) for running, report in reports.items() if not report.finished]
        try:
            answer = self._client().heartbeat(
                tiering=[_named(running) for running in owned if running not in reports],
                finished=[_named(running) for running, report in reports.items() if report.finished],
                failed=[*failed, *self._refusals.take_back()],
                force_finished=[running.handed.table for running, report in reports.items() if report.more],
                request_table=more and free and not self._refusals.resting,
            )
        except SnowmeltError as error:
            # Any error: the service was connected before, and a password may be changed at this moment.
            log.warning("no heartbeat: %s", error)
            self._away = True
            for running in owned:
                running.look_for_silence()
            self._collect(AWAY_S_MAX if self._coordinator is None else self._settings.poll_s)
            return
        if self._away:
            self._away = False
            log.warning("the Fluss coordinator answers again")
        self._hear(answer, owned, sent_ms)
        if answer.table is not None:
            self._begin(pool, host, answer.table, answer.coordinator_epoch)
        self._collect(0.0 if answer.table is not None else self._refusals.pause_s(self._settings.poll_s))

    def _client(self) -> FlussClient:
        if self._coordinator is None or not self._coordinator.connection.open:
            self._coordinator = None
            self._coordinator = connect_coordinator(self._settings.bootstrap, self._settings.login)
        return self._coordinator

    def _hear(self, answer: HeartbeatAnswer, owned: list[RunningRound], sent_ms: int) -> None:
        for running in owned:
            table = running.handed.table
            told = {**answer.tiering, **answer.finished, **answer.failed}
            if answer.coordinator_epoch != running.coordinator_epoch:
                running.lost("another coordinator answers")
            elif (error := told.get(table)) is not None:
                running.lost(str(error))
            elif table in answer.finished or table in answer.failed:
                # Counted before the same answer may hand the table out again.
                self._count(running, failed=table in answer.failed)
                running.reported.set()
            elif table in answer.tiering:
                running.heard(sent_ms)

    def _begin(self, pool: ThreadPoolExecutor, host: RoundHost, handed: HandedOut, epoch: int) -> None:
        for running in self._running.values():
            if running.handed.table == handed.table and running.owned and not running.reported.is_set():
                running.lost("it was handed out again")
        if self._refusals.holds(handed.table):
            self._refusals.hand_back(Claim(handed.table, epoch, handed.tiering_epoch))
            return
        self._refusals.began()
        failures = self._failures.get(handed.table, 0)
        running = RunningRound(host, handed, epoch)
        future = pool.submit(running.run, budgets.ROUND.pause_s(failures))
        future.add_done_callback(lambda _: self._wake.set())
        self._running[future] = running

    def _collect(self, wait_s: float) -> None:
        """Wait until the next heartbeat is due or a round has ended, and report the rounds that ended."""
        self._wake.wait(wait_s)
        self._wake.clear()
        for future in [future for future in self._running if future.done()]:
            running = self._running.pop(future)
            end = _end_of(future, running)
            self._status.count(end)
            failed = end.state is RoundState.FAILED
            if not running.counted:
                self._count(running, failed=failed)
            if not running.refused or end.error is None or self._refusals.is_news(running.handed.table, end.error):
                self._tell(end)
            if failed and is_gone(self._spark):
                self._spark_gone = True
                self.stop()

    def _count(self, running: RunningRound, *, failed: bool) -> None:
        table = running.handed.table
        if failed and running.refused:
            self._refusals.refuse(table)
        elif failed:
            self._failures[table] = self._failures.get(table, 0) + 1
        elif running.owned:
            self._failures.pop(table, None)
        running.counted = True


def _end_of(future: Future[RoundEnd], running: RunningRound) -> RoundEnd:
    """The result of a round. A round that raised an unknown error has failed."""
    try:
        return future.result()
    except Exception as error:
        log.exception("a round of %s failed by a bug", running.handed.path)
        known = error if isinstance(error, SnowmeltError) else InvariantBroken("a round failed by a bug", detail=type(error).__name__)
        return RoundEnd(path=running.handed.path, state=RoundState.FAILED, rows=0, seconds=0.0, snapshot=0, error=known)


def check_ends(settings: TieringSettings) -> None:
    """Check that the cluster is reachable, new enough and can be tiered from, and that the warehouse can be written. Errors have a hint."""
    coordinator = connect_coordinator(settings.bootstrap, settings.login)
    connection = coordinator.connection
    try:
        missing = [call.name for call in _NEEDED if not connection.knows(call)]
        if missing:
            raise InvalidConfig(
                "the Fluss server is too old to be tiered from",
                detail=f"{connection.where} does not know {', '.join(missing)}",
                hint="Fluss 0.9 or newer is needed",
            )
        told = coordinator.settings()
    finally:
        connection.close()
    check_cluster(told)
    warehouse = open_tiering(settings.warehouse)
    warehouse.check_writable()
    theirs = told.get("datalake.paimon.warehouse")
    if theirs and not settings.same_place and not warehouse.is_at(theirs):
        raise InvalidConfig(
            "Fluss has its lake tables in another warehouse",
            detail=f"{theirs}, not {settings.warehouse}",
            hint="name that one; or if both are the same place, say so: lake: {same_place: yes}",
        )


def _named(running: RunningRound) -> Claim:
    return Claim(running.handed.table, running.coordinator_epoch, running.handed.tiering_epoch)
