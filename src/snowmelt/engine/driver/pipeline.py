"""The epoch loop.

One thread owns the machines. Around it: the capture's thread, and threads that wait for Spark's answers. In each turn it takes up
what came in, does the commit's next step, plans the next epoch if it may, and launches chunks. Nothing counts before an intent is won, so
whatever fails before is dropped and planned again. What fails because of one table sets that table aside (`judging`), and the rest is
planned again without it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from snowmelt.commit.checks import refusal
from snowmelt.commit.cleaning import Standing
from snowmelt.commit.coordinator import (
    CommitTables,
    Coordinator,
    DonePut,
    GenerationRead,
    IntentPut,
    IntentRead,
    ListenersRan,
    PutDone,
    PutIntent,
    ReadGeneration,
    ReadIntent,
    RunListeners,
    TableCommitted,
)
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent, Staged, intent_of
from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.failover import gtids_at
from snowmelt.databases.mysql.preflight import Cascades, PreflightOptions, unfit_tables, why_foreign
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.discovery import Catalogue, Discovery, clock_ahead_ms, patterns, read_catalogue
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.driver.judging import Verdict, judge
from snowmelt.engine.driver.retries import Retries
from snowmelt.engine.driver.routes import Mode, Router, Target, assign_targets, check_goes_on
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.driver.signs import EVERY_S, EVERY_S_IN_BUCKETS, Signs
from snowmelt.engine.driver.splitting import Splitter
from snowmelt.engine.driver.state import Owner, Shape, State
from snowmelt.engine.failpoints import BEFORE_DONE, BETWEEN_TABLES, INTENT_WRITTEN, reach
from snowmelt.engine.log.handover import own_log, place_on_another, with_nothing_prepared
from snowmelt.engine.log.recorder import Keeper
from snowmelt.engine.log.storage import Keeping
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane, has_executors, is_gone, raise_gone, slots_of
from snowmelt.engine.tasks.log import LogAnswer, LogTask, run_log
from snowmelt.engine.tasks.rows import CHANGE_FIELDS, Sourced, lake_schema
from snowmelt.engine.tasks.workers import Expected, Packages, look_around, owner_digest, packages, tasks_to_ask
from snowmelt.errors import (
    BEGIN_ANEW,
    RECOPY,
    Corrupt,
    Fenced,
    InvalidConfig,
    InvariantBroken,
    SnowmeltError,
    SourceDrift,
    TableStuck,
    Unavailable,
    check,
)
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.asides import Requests, Troubles, forget, reborn
from snowmelt.planning.epochs import EpochPlan, choose_end, plan_epoch, statements_wait
from snowmelt.planning.facts import Adopted, Durable, Found, Gone, Incarnation, SetAside
from snowmelt.planning.tables import Phase, Table
from snowmelt.relay.retention import Cut, Relay
from snowmelt.sinks.registry import open_sink
from snowmelt.sinks.warehouse import mark
from snowmelt.store.generations import check_exclusive, newest_generation
from snowmelt.store.objects import open_store

log = logging.getLogger(__name__)

_TURN_S: Final = 0.05
"""How long nothing may come in before it is looked what time calls for."""
_SHARE_BYTES_MIN: Final = 4 << 20
"""Less than this of the log is not worth a task of its own."""
_CHUNKS_AT_ONCE_MAX: Final = 8
_SILENCE_S: Final = 20.0
"""How long workers may be silent when a driver starts before a user is told."""


@dataclass(frozen=True, slots=True)
class _Share:
    """What one task of a log job has: (after, upto], or of that the keys of one part."""

    after: int
    upto: int
    part: int = 0
    parts: int = 1


@dataclass(slots=True)
class _LogJob:
    plan: EpochPlan
    tasks: int
    answers: list[LogAnswer] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a watcher may want to know."""

    epoch: int = 0
    """The last that is done."""
    upto: int = 0
    done_upto: int = 0
    captured: int = 0
    held_bytes: int = 0
    """Of the log, on disk."""
    paused: bool = False
    """Whether capture waits for the lake, because as much is held as may be."""
    time_ms: int | None = None
    """When the last transaction that the lake has was committed in the database."""
    rows: int = 0
    """Brought into the lake by this driver."""
    phases: dict[str, str] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Of tables that are being copied: how many the lake has, and of how many, once that is known."""
    aside: dict[str, str] = field(default_factory=dict)
    """Why tables are set aside."""


class Pipeline:
    """One driver. `run` returns when `until` says so, and raises what stops it."""

    def __init__(self, spark: Any, settings: Settings, requests: Requests | None = None) -> None:
        """`requests`: tables to be copied anew. The drivers of one process share it, so that what one began no other begins again."""
        self._settings = settings
        self._requests = Requests() if requests is None else requests
        self._state = State(open_store(settings.state))
        self._user = f"snowmelt-{settings.name}"
        self._lake = open_sink(settings.warehouse, settings.fluss, user=self._user, state=settings.state)
        self._awake = threading.Event()
        self._spark = spark
        if is_gone(spark):
            raise_gone()
        at_once = max(2, slots_of(spark) - 1)
        self._log_tasks = settings.log_tasks or at_once
        self._chunks_at_once = settings.chunks_at_once or min(_CHUNKS_AT_ONCE_MAX, at_once)
        self._jobs = Jobs(spark, at_once=self._chunks_at_once + 2, wake=self._awake.set)
        self._signs = Signs(self._state.store, settings.name, every_s=EVERY_S if settings.log_folder else EVERY_S_IN_BUCKETS)
        self._retries = Retries(self._stuck)
        self._splitter = Splitter(settings.source, self._retries, rows_per_chunk=settings.rows_per_chunk)
        self._log_job: _LogJob | None = None
        self._staged: _LogJob | None = None
        self._planned_at = self._fence_due = 0.0
        self._booted = self._stopping = False
        self._failed = False
        """Whether the last log job has."""
        self._rows = self._rows_offered = 0
        self._found_shapes: dict[TableId, int] = {}
        """Numbers of shapes that a `Found` was proposed with and that the ledger does not have yet."""
        self._ahead_ms = 0
        """How far the server's clock is ahead of ours, as it was last compared."""
        self.ledger = Ledger()
        self._troubles = Troubles(self.ledger.tables)

    # ---- beginning

    def _boot(self, ending: contextlib.ExitStack, until: Callable[[Pipeline], bool]) -> None:
        settings = self._settings
        wanted = patterns(settings.tables, settings.exclude)
        catalogue = read_catalogue(settings.source, wanted, era=0)
        captured = wanted(catalogue.ignores_case)
        self._router = Router(settings.routes, default=settings.target, ignore_case=catalogue.ignores_case)
        before = self._state.load()
        begun = before.epoch > 0
        if not catalogue.tables and not begun:
            raise InvalidConfig("no table matches", detail=", ".join(settings.tables))
        for route in self._router.idle(catalogue.tables):
            log.warning("a route matches no table", extra={"source": route.source, "target": route.target})
        _, refused = assign_targets(catalogue.tables, settings.routes, default=settings.target, ignore_case=catalogue.ignores_case)
        if refused and not begun:
            raise next(iter(refused.values()))
        if settings.log_folder is None:
            check_exclusive(self._state.store, uuid.uuid4().hex)
        owner = Owner(settings.name, catalogue.server.identity, settings.place)
        began = self._state.bind(owner, moves=settings.failover, adopt=settings.adopt_state).server
        # Before anybody is fenced: a mistake in the file must not end the driver that is at work.
        self._check_described(before, catalogue, captured)
        self._check_requests(before, catalogue)
        marked = "" if settings.fluss is not None else mark(settings.warehouse)
        installed = packages()
        if not self._ask_workers(installed, marked, until):
            return
        folder = ending.enter_context(contextlib.ExitStack())
        owned = own_log(settings, self._state, folder, lambda: until(self) or self._stopping)
        if owned is None:
            return
        self._generation, keeping = owned
        self._signs.begin(self._generation)
        self.ledger = self._state.load()
        self._troubles = Troubles(self.ledger.tables)
        self._captured = captured
        relay = self._state.take_over_relay(self.ledger)
        moved = place_on_another(settings, relay, keeping.last(relay), catalogue.server, began)
        self._era = relay.era if moved is None else moved.era

        def read() -> Catalogue:
            found = read_catalogue(settings.source, wanted, era=self._era)
            self._ahead_ms = found.ahead_ms
            return found

        # What the last driver recorded meanwhile may not be in what was read before.
        seen = catalogue.server.identity
        # Captured is from a place that lies before the catalogue is read: else a statement between the two would be told by neither.
        first = None if relay.newest is not None else with_nothing_prepared(settings.source, read)
        catalogue = read()
        if catalogue.server.identity != seen:
            raise Unavailable("another server answers than a moment ago", detail=f"{catalogue.server.identity}, not {seen}")
        self._began = catalogue.ended
        self._coordinator = Coordinator(self._generation.number, self.ledger)
        self._step()
        # Says so if that step found a newer driver.
        self._coordinator.next_step()
        start = self._begin_chain(relay, keeping, first or catalogue) if moved is None else moved
        self._check_described(self.ledger, catalogue, captured)
        self._check_lake(catalogue)
        self._place = TaskContext(
            generation=self._generation.number,
            nonce=self._generation.nonce,
            state=settings.state,
            warehouse=settings.warehouse,
            user=self._user,
            source=settings.source,
            server=catalogue.server,
            log=catalogue.log,
            options=settings.types,
            limits=settings.limits,
            fluss=settings.fluss,
            packages=installed,
            mark="" if "://" in str(settings.warehouse) else marked,
        )
        self._shapes = Shapes(
            self._state,
            self._generation.number,
            catalogue.server,
            captured=captured,
            keyed=self._router.keyed,
            lower_case_names=catalogue.lower_case_names,
            refuse_cascades=settings.refuse_cascades,
        )
        schemas = {table.incarnation.table: table.schema for table in self.ledger.tables if table.phase is not Phase.GONE}
        aside = [table.incarnation.table for table in self.ledger.tables if table.phase is Phase.SET_ASIDE]
        self._shapes.begin(schemas, aside, relay.statements(self.ledger.upto, relay.end))
        self._discovery = Discovery(catalogue, self.ledger, relay, self._shapes, read, self._unfit)
        self._keeper = Keeper(
            self._state,
            relay,
            self._shapes,
            keeping,
            settings.source,
            generation=self._generation.number,
            start=start,
            server_id=settings.capture_id(),
            prepared_bytes_max=settings.prepared_bytes_max,
            limits=settings.capture,
            identity=catalogue.server.identity,
            failover=settings.failover,
            wake=self._awake.set,
            release=folder.close,
        )
        ending.callback(self._keeper.stop)
        self._cleaner = Cleaner(self._jobs, self._place, every=settings.sweep_every)
        ending.callback(self._cleaner.close)
        self._chunks = Chunks(
            self.ledger,
            self._keeper,
            self._jobs,
            self._place,
            self._retries,
            at_once=self._chunks_at_once,
            began=self._began,
            sourced=self._sourced,
            cleaner=self._cleaner,
        )
        ending.callback(self._chunks.close)
        self._entries = Entries(self._lake, self.ledger, self._shapes, self._chunks, settings.types)
        self._keeper.start(self.ledger.done_segment)
        self._booted = True

    def _ask_workers(self, installed: Packages, marked: str, until: Callable[[Pipeline], bool]) -> bool:
        """Whether Spark's workers can do what tasks need (`engine.tasks.workers`). False: the run is to end before they answered."""
        if self._spark is None:
            return True
        settings, answers, began, due = self._settings, list[list[str]](), time.monotonic(), _SILENCE_S
        expected = Expected(
            packages=installed, state=settings.state, owner=owner_digest(settings.state), warehouse=settings.warehouse, mark=marked
        )

        def failed(error: SnowmeltError) -> None:
            raise error

        self._jobs.submit(Lane.LOG, expected, tasks_to_ask(self._spark, slots_of(self._spark)), look_around, answers.append, failed)
        while not answers:
            if until(self) or self._stopping:
                return False
            if is_gone(self._spark):
                raise_gone()
            if time.monotonic() - began >= due:
                due *= 2
                why = "new installations compile first" if has_executors(self._spark) else "does the cluster have free cores and memory?"
                log.warning("no Spark worker has answered yet; %s", why, extra={"seconds": round(time.monotonic() - began)})
            self._awake.wait(_TURN_S)
            self._awake.clear()
            self._jobs.take()
        return True

    def _check_described(self, ledger: Ledger, catalogue: Catalogue, captured: TablePredicate) -> None:
        """At the first start a user is there to decide about tables without a key; one that is made later must not stop all others."""
        for table in () if ledger.epoch else catalogue.tables.values():
            if why := self._why_not(table):
                raise InvalidConfig("a table can't be brought to the lake", detail=f"{table.id}: {why}", hint="or exclude it")
        check_goes_on(ledger.tables, captured, self._router)

    def _check_requests(self, ledger: Ledger, catalogue: Catalogue) -> None:
        for name in self._requests:
            if name not in catalogue.tables and ledger.tables.get(name) is None:
                raise InvalidConfig(
                    "a table to be copied anew is not one of this pipeline's", detail=str(name), hint="name it as the source does"
                )

    def _check_lake(self, catalogue: Catalogue) -> None:
        """Each lake table has what the store says. One that is gone is its source table's trouble, unless all are, or the open epoch
        has promised something to it."""
        ledger = self.ledger
        needed = {known.target: known for known in ledger.tables if known.phase not in (Phase.SET_ASIDE, Phase.GONE)}
        resting = {known.target for known in ledger.tables if known.phase is Phase.SET_ASIDE}
        found = {self._router.of(name).name for name, table in catalogue.tables.items() if not self._why_not(table)}
        promised = {entry.target for entry in ledger.open.entries} if ledger.open is not None else set()
        missing: dict[str, SnowmeltError] = {}
        for target in sorted(({known.target for known in ledger.tables} | found) - resting):
            try:
                if self._lake.exists(target):
                    self._lake.check_start(target, ledger)
                    self._tell_of_buckets(target, needed)
                elif target in needed:
                    where = self._settings.fluss.bootstrap if self._settings.fluss else self._settings.warehouse
                    hint = f"is that the right place? if the table was dropped, {BEGIN_ANEW}"
                    missing[target] = SourceDrift("a lake table is not there", detail=f"{target} in {where}", hint=hint)
            except Corrupt as error:
                if target not in needed:
                    raise
                missing[target] = error
        for target, broken in missing.items():
            if target in promised or len(missing) == len(needed):
                raise broken
            name = needed[target].incarnation.table
            self._set_aside(name, name.stuck(broken.fact, detail=broken.detail, hint=RECOPY))

    def _tell_of_buckets(self, target: str, needed: Mapping[str, Table]) -> None:
        """How many buckets a table has is settled when it is made."""
        if target in needed and needed[target].keyed and self._settings.fluss is None:
            has = self._lake.describe(target).buckets
            if has != self._settings.buckets:
                extra = {"target": target, "has": has, "buckets": self._settings.buckets}
                log.warning("a lake table keeps the number of buckets that it was made with", extra=extra)

    def _begin_chain(self, relay: Relay, keeping: Keeping, catalogue: Catalogue) -> Position:
        """From where the log is captured, durable before anything relies on it: an empty record at the head of the chain. Without one
        a database that nobody writes to would never be copied, because no cut would ever be proven visible."""
        if relay.newest is None:
            name, start = keeping.nothing(relay, catalogue.ended.era), self._with_gtids(catalogue)
            head = relay.decide_seal(self._generation.number, name, start, start, (Cut(relay.end, catalogue.time_ms),))
            relay.apply(self._state.seal(head))
        newest = relay.newest
        if newest is None:
            raise InvariantBroken("a chain that was begun is empty")
        return newest.ends

    def _with_gtids(self, catalogue: Catalogue) -> Position:
        """Where the log begins that is captured, with the transactions before it, as far as they are told: should the server purge its log
        before anything was captured, they prove that nothing is lost."""
        file = replace(catalogue.log, number=catalogue.ended.file)
        with Session(self._settings.source) as session:
            return replace(catalogue.ended, gtids=gtids_at(session, file, catalogue.ended.offset))

    # ---- the loop

    def run(self, until: Callable[[Pipeline], bool] = lambda _: False) -> None:
        try:
            with contextlib.ExitStack() as ending:
                ending.callback(self._splitter.close)
                ending.callback(self._jobs.close)
                self._boot(ending, until)
                while self._booted and not until(self) and not (self._stopping and self._at_rest()):
                    self._turn()
        except BaseException as error:
            self._signs.end(error)
            raise
        self._signs.end()

    def stop(self) -> None:
        """Finish the epoch under way and begin no other; `run` then returns. Chunks that are being read are read again next time."""
        self._stopping = True

    def _at_rest(self) -> bool:
        return self._log_job is None and self._staged is None and self._coordinator.next_step() is None

    def _turn(self) -> None:
        self._awake.clear()
        self._look_for_a_newer_driver()
        self._signs.beat(self._discovery.left_out)
        busy = self._keeper.take()
        busy |= self._jobs.take()
        self._chunks.hear()
        self._tell_capture()
        if self._coordinator.next_step() is not None:
            self._step()
            busy = True
        elif self._staged is not None:
            self._offer(self._staged)
            busy = True
        if not self._stopping:
            self._discovery.look()
            self._plan_if_due()
            # A read that begins before the lake has the columns that it is to bring would find no place for them. One that begins while
            # capture stands still would end far behind it, and hold back all of the log in between.
            if self._coordinator.may_plan and not self._keeper.gauge.paused:
                self._chunks.launch()
        if not busy:
            self._awake.wait(_TURN_S)

    def _tell_capture(self) -> None:
        """What has to be captured before anything can be let go of (`relay.flow`)."""
        gauge, ledger = self._keeper.gauge, self.ledger
        if gauge.overfull:
            self._chunks.give_back_waiting()
        drained = ledger.done_upto >= self._keeper.relay.end and self._at_rest() and next(iter(ledger.tables.readings()), None) is None
        if drained or gauge.paused:
            # What a chunk held that was given back goes without another epoch.
            self._let_go_of_log()
        self._keeper.needs(drained=drained, upto=self._chunks.waits_for)

    def _look_for_a_newer_driver(self) -> None:
        """Every step that counts looks for itself; this is for a driver that has nothing to do."""
        if time.monotonic() < self._fence_due:
            return
        if is_gone(self._spark):
            raise_gone()
        with contextlib.suppress(Unavailable):
            newest = newest_generation(self._state.store, self._generation.number)
            if newest > self._generation.number:
                raise Fenced("a newer driver runs this pipeline", detail=f"it is generation {newest}, this is {self._generation.number}")
        self._fence_due = time.monotonic() + min(5.0, max(1.0, self._settings.interval_s))

    def current(self) -> bool:
        """Whether every table is live and the lake has what the database had when this was asked."""
        if not self.caught_up():
            return False
        # Of a database that is away capture knows best whether that is worth an end.
        with contextlib.suppress(Unavailable), Session(self._settings.source) as session:
            return self._has(log_end(session, era=self._era))
        return False

    def caught_up(self) -> bool:
        """Whether every table is live, or set aside, and the lake has what the database had when this driver started."""
        live = self._booted and all(table.phase in (Phase.RELEASED, Phase.SET_ASIDE) for table in self.ledger.tables)
        settled = live and not self._troubles.open and not self._requests.open(self.ledger.tables) and not any(self._forgotten())
        return settled and self._discovery.complete and self.ledger.open is None and self._has(self._began)

    def _has(self, position: Position) -> bool:
        """Whether the lake has the log up to a position."""
        offset = self._keeper.relay.offset_of(position)
        return offset is not None and self.ledger.done_upto >= offset

    @property
    def progress(self) -> Progress:
        """As of now; cheap enough to be asked for a few times a second."""
        ledger = self.ledger
        if not self._booted:
            return Progress()
        relay = self._keeper.relay
        return Progress(
            epoch=ledger.done_epoch,
            upto=ledger.upto,
            done_upto=ledger.done_upto,
            captured=relay.end,
            held_bytes=self._keeper.gauge.held_bytes,
            paused=self._keeper.gauge.paused,
            time_ms=relay.time_at(ledger.done_upto),
            rows=self._rows,
            phases={str(table.incarnation.table): table.phase.value for table in ledger.tables},
            targets={str(table.incarnation.table): table.target for table in ledger.tables},
            chunks={str(table.incarnation.table): table.copy.progress for table in ledger.tables if table.copy is not None},
            aside={str(table.incarnation.table): table.aside.why for table in ledger.tables if table.aside is not None},
        )

    # ---- tables

    def _set_aside(self, name: TableId, error: SnowmeltError) -> None:
        """One table can't go on. The next epoch says so."""
        if self._troubles.add(name, str(error)):
            log.warning("a table is set aside", extra={"table": str(name), "why": str(error)})
            self._planned_at = 0.0

    def _stuck(self, error: TableStuck) -> bool:
        """A task or a lake table says so; whether that one is set aside. A lake that has none of our tables is not there at all, and no
        reason to set one aside."""
        if not any(self._lake.exists(table.target) for table in self.ledger.tables):
            raise error
        self._set_aside(TableId(*error.table), error)
        return TableId(*error.table) in self._troubles.open

    def _sourced(self, name: TableId) -> Sourced:
        """A table of the ledger as tasks see it."""
        table = self.ledger.tables.get(name)
        if table is None:
            raise InvariantBroken("a table is asked for that the ledger lacks", detail=str(name))
        return Sourced(self._shapes.of(table.schema).table, table.target, table.keyed)

    def _why_not(self, shape: MySqlTable) -> str:
        """Why a table can't be brought to any target; empty where it can."""
        try:
            target = self._router.of(shape.id)
        except InvalidConfig as error:
            return str(error)
        if why := why_foreign(shape):
            return why
        remedy = "give it one" if self._settings.fluss else f"give it one, or a route with mode: {Mode.CHANGELOG} and start again"
        return "" if shape.key or not target.keyed else f"it has no key by which its rows could be told apart; {remedy}"

    def _unfit(self, shapes: Sequence[MySqlTable]) -> dict[TableId, str]:
        """Of some tables those that can't be captured, or brought to any target, and why."""
        found = {shape.id: why for shape in shapes if (why := self._why_not(shape))}
        cascades = Cascades.REFUSE if self._settings.refuse_cascades else Cascades.IGNORE
        with Session(self._settings.source) as session:
            more = unfit_tables(session, shapes, PreflightOptions(types=self._settings.types, cascades=cascades))
        return more | found

    # ---- planning

    def _plan_if_due(self) -> None:
        if self._log_job is not None or self._staged is not None or not self._coordinator.may_plan:
            return
        ledger, relay = self.ledger, self._keeper.relay
        upto = choose_end(ledger.tables, relay, ledger.upto, self._settings.epoch_bytes)
        # Statements may need an epoch each, and everything behind them waits. What has failed just now is not hurried.
        hurried = not self._failed and statements_wait(ledger.tables, relay, ledger.upto)
        due = hurried or time.monotonic() - self._planned_at >= self._settings.interval_s
        full = upto - ledger.upto >= self._settings.epoch_bytes // 2
        proposals = list(self._propose())
        # While chunks are being read those that are read can wait for the next epoch; the last of them has nothing to wait for.
        ready = self._chunks.ready and (due or not self._chunks.reading)
        if not (proposals or ready or full or (due and upto > ledger.upto)):
            return
        plan = self._plan(upto, proposals)
        # Whether the lake can take what the plan does to its tables is settled before any task starts.
        while stuck := self._entries.unfit(plan):
            for error in stuck:
                name, time_ms = TableId(*error.table), relay.time_at(ledger.upto) or 0
                log.warning("a table is set aside", extra={"table": str(name), "why": str(error)})
                proposals.append(SetAside(Incarnation(name, plan.epoch), ledger.upto, time_ms, str(error)))
            plan = self._plan(upto, proposals)
            rest = plan.untouched(ledger.tables)
            check(all(TableId(*error.table) in rest for error in stuck), "a table that can't go on is not set aside")
        for fact in plan.given_back:
            ledger.tables.apply(fact)
        if plan.upto == plan.after and not plan.facts:
            return
        self._planned_at = time.monotonic()
        self._start_log_job(plan)

    def _plan(self, upto: int, proposals: Iterable[Durable]) -> EpochPlan:
        ledger = self.ledger
        return plan_epoch(
            ledger.tables,
            self._keeper.relay,
            epoch=ledger.epoch + 1,
            generation=self._generation.number,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )

    def _propose(self) -> Iterable[Durable]:
        """Tables that can't go on, that were asked for, or that are new, and the next bounds of those that are being split."""
        ledger = self.ledger
        yield from self._troubles.propose(ledger.upto, self._keeper.relay.time_at(ledger.upto) or 0)
        yield from self._forgotten()
        for table in self._requests.open(ledger.tables):
            if self._can_begin_anew(table):
                yield reborn(table, epoch=ledger.epoch + 1, at=ledger.upto)
        taken = {known.target: known.incarnation.table for known in self.ledger.tables}
        gone = {known.target for known in self.ledger.tables if known.phase is Phase.GONE}
        for shape, why in self._discovery.found():
            try:
                target = self._router.of(shape.id)
                # One that is gone makes room when its epoch is done.
                if target.name in gone:
                    continue
                if why and target.name not in ledger.marks:
                    self._discovery.leave_out(shape.id, why)
                    continue
                found = self._find(shape, target, taken)
                yield found
                if why:
                    # The lake has rows of a table that had its name, and is left with them.
                    log.warning("a table is set aside", extra={"table": str(shape.id), "why": why})
                    yield SetAside(found.incarnation, found.at, self._keeper.relay.time_at(found.at) or 0, f"{why}; then {RECOPY}")
            except InvalidConfig as error:
                # One that somebody made later must not stop all others.
                if not self.ledger.epoch:
                    raise
                self._discovery.leave_out(shape.id, str(error))
        for table in self.ledger.tables:
            if table.phase is Phase.SPLITTING:
                yield from self._splitter.next(table, self._shapes.of(table.schema).table)

    def _forgotten(self) -> Iterator[Gone]:
        """Tables that were set aside and are excluded by now."""
        tables = self.ledger.tables
        excluded = [table.incarnation.table for table in tables if not self._captured(table.incarnation.table)]
        return forget(tables, excluded, self.ledger.upto)

    def _find(self, shape: MySqlTable, target: Target, taken: dict[str, TableId]) -> Found:
        """`taken`: who goes to which target; this one too, from now on."""
        name = shape.id
        if target.name in taken:
            raise InvalidConfig(
                f"two tables would go to {target.name}", detail=f"{taken[target.name]} and {name}", hint="give each a route of its own"
            )
        schema = lake_schema(shape, self._settings.types, keyed=target.keyed)
        if not self._lake.exists(target.name):
            key, system = (shape.key, None) if target.keyed else ((), CHANGE_FIELDS)
            self._lake.create(target.name, schema, key, buckets=self._settings.buckets, system=system)
        elif target.name not in self.ledger.marks and self._lake.describe(target.name).progress:
            raise InvalidConfig(
                "a lake table holds rows that this pipeline did not bring",
                detail=target.name,
                hint="give the table another target, or drop it",
            )
        if name not in self._found_shapes or self._shapes.of(self._found_shapes[name]).table != shape:
            self._found_shapes[name] = self._shapes.number(Shape(shape))
        taken[target.name] = name
        return Found(Incarnation(name, self.ledger.epoch + 1), target.name, target.keyed, self._found_shapes[name], self.ledger.upto)

    def _can_begin_anew(self, table: Table) -> bool:
        """Whether a table that was asked for can be copied with the next epoch. Its lake table is one then that takes its rows: emptied by
        that epoch's intent; or made anew before it, which nobody relies on while the table is set aside."""
        name, target = table.incarnation.table, table.target
        shape = self._shapes.of(table.schema).table
        if not self._has(self._began) or self._keeper.relay.statements(self.ledger.upto, self._keeper.relay.end, name):
            # Its shape is not yet what the source has, whose trouble may be over.
            return False
        try:
            why = self._unfit([shape]).get(name, "")
        except Unavailable:
            return False
        schema = lake_schema(shape, self._settings.types, keyed=table.keyed)
        key, system = (shape.key, None) if table.keyed else ((), CHANGE_FIELDS)
        try:
            if why or not self._lake.empties:
                raise InvalidConfig("it can't be captured" if why else "its target can't be emptied", detail=why)
            if self._lake.exists(target):
                with contextlib.suppress(SourceDrift):
                    self._lake.reshape(target, schema, key, emptied=table.keyed)
                    return True
            if table.phase is not Phase.SET_ASIDE:
                self._set_aside(name, name.stuck("its lake table is made anew, as it was asked for"))
                return False
            if self.ledger.open is not None:
                return False
            if newest_generation(self._state.store, self._generation.number) > self._generation.number:
                raise Fenced("a newer driver runs this pipeline", detail=f"this is generation {self._generation.number}")
            self._lake.remake(target, schema, key, buckets=self._settings.buckets, system=system)
        except (InvalidConfig, Corrupt) as error:
            log.warning("a table that was asked for can't be copied anew", extra={"table": str(name), "why": str(error)})
            self._requests.drop(name)
            return False
        return True

    def _start_log_job(self, plan: EpochPlan) -> None:
        rules = {table.incarnation.table: plan.rule(table) for table in self.ledger.tables if table.phase is not Phase.GONE} | plan.rules
        # What lies at or below `after` is read again for chunks that are adopted, and for nothing else.
        again = {name: rule for name, rule in rules.items() if rule.adopting}
        emitting = {name: rule for name, rule in rules.items() if rule.live or rule.outside or rule.adopted or rule.adopting}
        emptied = self._entries.emptied(plan, self._keeper.relay)
        shares = [(share, again) for share in self._shares(plan.low, plan.after)]
        shares += [(share, emitting) for share in self._shares(plan.after, plan.upto)]
        if emptied and not shares:
            shares.append((_Share(plan.after, plan.after), {}))
        marks = self._chunks.marks(plan.rules.values())
        sourced = {name: self._sourced(name) for name in emitting}
        tasks = [
            LogTask(
                epoch=plan.epoch,
                writer=writer,
                after=share.after,
                upto=share.upto,
                segments=tuple(self._keeper.relay.covering(share.after, share.upto)) if share.after < share.upto else (),
                rules=chosen,
                marks=marks,
                tables={name: sourced[name] for name in chosen},
                committed=tuple(self._keeper.relay.committed(share.after, share.upto)),
                emptied=emptied if writer == 0 else (),
                part=share.part,
                parts=share.parts,
            )
            for writer, (share, chosen) in enumerate(shares)
        ]
        job = _LogJob(plan, len(tasks))
        if not tasks:
            # Nothing of the log is in it: an epoch of facts and chunks needs no tasks.
            self._staged = job
            return
        self._log_job = job

        def done(answers: list[LogAnswer]) -> None:
            for answer in answers:
                for target, messages in answer.messages.items():
                    files = tuple(file.name for file in answer.message.files if file.target == target)
                    self._cleaner.reported(target, Staged(files, messages, 0))
            job.answers, self._log_job, self._staged, self._failed = answers, None, job, False

        def failed(error: SnowmeltError) -> None:
            self._log_job = None
            self._cleaner.job_failed()
            self._failed = True
            self._planned_at = time.monotonic()
            if isinstance(error, TableStuck) and self._stuck(error):
                return
            if judge(error) is not Verdict.PASSES:
                raise error
            self._jobs.count_failure(error)
            log.warning("a log job failed and is planned again", extra={"epoch": plan.epoch})

        self._jobs.submit(Lane.LOG, self._place, tasks, run_log, done, failed)

    def _shares(self, after: int, upto: int) -> list[_Share]:
        """A range of the log in shares of about equal bytes; a transaction that is larger than a share is several tasks'."""
        relay = self._keeper.relay
        fair = max(_SHARE_BYTES_MIN, (upto - after) // self._log_tasks)
        shares = []
        for low, high in relay.shares(after, upto, max(1, (upto - after) // fair)):
            parts = min(self._log_tasks, max(1, (high - low) // fair)) if relay.next_cut(low) == high else 1
            shares += [_Share(low, high, part, parts) for part in range(parts)]
        return shares

    # ---- commit

    def _offer(self, job: _LogJob) -> None:
        self._staged = None
        plan, answers = job.plan, job.answers
        refused = refusal(plan, [answer.message for answer in answers], writers=job.tasks, sources=None, tables=self.ledger.tables)
        if refused is not None:
            log.warning("what a log job brought is dropped and planned again", extra={"epoch": plan.epoch, "why": refused})
            return
        try:
            intent = self._intent(plan, answers)
        except TableStuck as error:
            if not self._stuck(error):
                raise
            return
        if self._coordinator.offer(intent, plan.follows):
            adopted = (self._chunks.staged(fact.nonce).rows for fact in plan.facts if isinstance(fact, Adopted))
            self._rows_offered = sum(answer.rows for answer in answers) + sum(adopted)

    def _intent(self, plan: EpochPlan, answers: list[LogAnswer]) -> Intent:
        relay, entries = self._keeper.relay, self._entries.of(plan, answers)
        time_ms = relay.committed_by(plan.upto, int(time.time() * 1000) + self._ahead_ms)
        segment = relay.number_at(plan.upto)
        return intent_of(plan, nonce=uuid.uuid4().hex, time_ms=time_ms, entries=entries, segment=segment)

    def _step(self) -> None:
        machine = self._coordinator
        match machine.next_step():
            case PutIntent(intent):
                machine.apply(IntentPut(self._state.put_intent(intent)))
                self._learn()
                if intent.entries:
                    reach(INTENT_WRITTEN)
            case ReadIntent(epoch):
                machine.apply(IntentRead(self._state.intent(epoch)))
                self._learn()
            case ReadGeneration():
                machine.apply(GenerationRead(newest_generation(self._state.store, self._generation.number)))
            case CommitTables(intent, entries):
                watermarks = self.ledger.decide_watermarks()
                for entry in entries:
                    snapshot = self._lake.commit(intent, entry, watermarks.get(entry.target))
                    machine.apply(TableCommitted(intent.epoch, entry.target, snapshot))
                    if entry is not entries[-1]:
                        reach(BETWEEN_TABLES)
            case RunListeners(intent, state):
                machine.apply(ListenersRan(state))
                if intent.entries:
                    reach(BEFORE_DONE)
            case PutDone(done):
                machine.apply(DonePut(self._state.put_done(done)))
                self._rows, self._rows_offered = self._rows + self._rows_offered, 0
                self._let_go()
            case None:
                pass

    def _learn(self) -> None:
        """What the newest intent names is not left over; tables that it found are known where capture is."""
        intent = self.ledger.open
        if intent is None:
            return
        self._cleaner.won(intent)
        for fact in intent.facts:
            if isinstance(fact, Found):
                self._shapes.found(fact.incarnation.table, fact.schema, self.ledger.upto)

    def _let_go(self) -> None:
        """What the done epoch covers is asked for by nobody any more."""
        ledger = self.ledger
        self._let_go_of_log()
        self._chunks.let_go()
        self._splitter.let_go(ledger.tables)
        self._retries.let_go(ledger.tables.get)
        self._discovery.let_go()
        targets = {table.target for table in ledger.tables}
        self._lake.let_go(targets)
        self._cleaner.clean(self._standing(), sorted(targets))
        if ledger.epoch % self._settings.summary_every == 0:
            self._forget()
            # Not here: a database that does not answer must not hold up what is captured already.
            threading.Thread(target=self._compare_clocks, name="snowmelt-clocks", daemon=True).start()
            self._state.sum_up(ledger)

    def _let_go_of_log(self) -> None:
        ledger, relay = self.ledger, self._keeper.relay
        needed = [job.plan.low for job in (self._log_job, self._staged) if job is not None]
        if (visible := ledger.tables.lowest_visible()) is not None:
            needed.append(visible)
        relay.raise_floor(relay.decide_floor(ledger.done_upto, min(needed, default=None)))
        self._keeper.let_go(relay.deletable(ledger.segment))

    def _standing(self) -> Standing:
        """What decides about staged files, as of now."""
        ledger, chunks = self.ledger, self._chunks
        mine = (self._generation.number, ledger.epoch, ledger.generation, chunks.newest_job, chunks.under_way)
        return Standing(*mine, self._coordinator.named)

    def _compare_clocks(self) -> None:
        # A database that is away is asked next time; two clocks don't part that fast.
        with contextlib.suppress(SnowmeltError), Session(self._settings.source) as session:
            self._ahead_ms = clock_ahead_ms(session)

    def _forget(self) -> None:
        """Records and shapes that nothing needs any more."""
        ledger = self.ledger
        self._keeper.sweep(ledger.done_segment)
        self._found_shapes = {name: number for name, number in self._found_shapes.items() if ledger.tables.get(name) is None}
        statements = self._keeper.relay.statements(ledger.upto, self._keeper.relay.end)
        needed = {table.schema for table in ledger.tables} | {statement.schema for statement in statements}
        self._shapes.forget(needed | set(self._found_shapes.values()), ledger.generation)
