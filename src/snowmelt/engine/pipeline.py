"""The epoch loop.

One thread owns the machines. Around it: the capture's thread, and threads that wait for Spark's answers. In each turn it takes up
what came in, does the commit's next step, plans the next epoch if it may, and launches chunks. Nothing counts before an intent is won, so
whatever fails before is dropped and planned again.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import queue
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snowmelt import errors
from snowmelt.commit.checks import refusal
from snowmelt.commit.cleaning import Standing, deletable
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
from snowmelt.commit.publish import check_start
from snowmelt.commit.records import Entry, Intent, StagedName, intent_of
from snowmelt.databases.mysql.bounds import Bound, Extent, plan_chunks
from snowmelt.databases.mysql.capture import owned
from snowmelt.databases.mysql.catalog import ignores_case, match_tables, read_tables
from snowmelt.databases.mysql.columns import MySqlTable, TypeOptions
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.marks import exact
from snowmelt.databases.mysql.reads import log_end, newest_visible
from snowmelt.engine.failpoints import BEFORE_DONE, BETWEEN_TABLES, INTENT_WRITTEN, reach
from snowmelt.engine.keys import chunked, pack_bound, unpack_bound
from snowmelt.engine.relay import Keeper
from snowmelt.engine.routes import Route, assign_targets, check_unchanged
from snowmelt.engine.state import State
from snowmelt.engine.tasks import ChunkAnswer, ChunkTask, LogAnswer, LogTask, Place, each, lake_schema, run_chunk, run_log
from snowmelt.errors import Fenced, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable
from snowmelt.lakes.paimon import PaimonLake, Staged
from snowmelt.model.gtid import GtidSet, MySqlGtidSet, gtid_within
from snowmelt.model.position import Position
from snowmelt.relay.retention import Cut, Relay
from snowmelt.source.facts import OUTSIDE, Adopted, Durable, Found, Incarnation, Launched, Reported, Split
from snowmelt.source.planning import EpochPlan, choose_end, decide_launches, lower, plan_epoch, visible_cut
from snowmelt.source.tables import Phase
from snowmelt.store.generations import newest_generation, take_generation
from snowmelt.store.objects import open_store

log = logging.getLogger(__name__)

_TURN_S = 0.02
_HANDOVER_S_MAX = 60.0
_JOBS_FAILED_MAX = 10
_TASK_ERROR = re.compile(r"snowmelt\.errors\.(\w+): (.*)")
_ERA = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline is to do."""

    name: str
    state: Path
    warehouse: str
    source: MySqlOptions
    tables: Sequence[str]
    exclude: Sequence[str] = ()
    routes: Sequence[Route] = ()
    target: str = "ods.{database}_{table}"
    """Of tables that no route matches."""
    interval_s: float = 5.0
    epoch_bytes: int = 256 << 20
    rows_per_chunk: int = 100_000
    chunks_at_once: int = 2
    buckets: int = 2
    summary_every: int = 20
    server_id: int | None = None
    """What the capture calls itself; one that follows from the name, unless it is given."""
    types: TypeOptions = field(default_factory=TypeOptions)


@dataclass(slots=True)
class _LogJob:
    plan: EpochPlan
    tasks: int
    answers: list[LogAnswer] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a watcher may want to know."""

    epoch: int = 0
    """The last that is done."""
    upto: int = 0
    done_upto: int = 0
    captured: int = 0
    time_ms: int | None = None
    """When the last transaction that the lake has was committed in the database."""
    rows: int = 0
    """Brought into the lake by this driver."""
    phases: dict[str, str] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    chunks: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    """Of tables that are being copied: how many the lake has, and of how many, once that is known."""


class Pipeline:
    """One driver. `run` returns when `until` says so, and raises what stops it."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._state = State(open_store(str(settings.state)))
        self._lake = PaimonLake(settings.warehouse, user=f"snowmelt-{settings.name}")
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(settings.chunks_at_once + 1, thread_name_prefix="snowmelt-job")
        self._reports: dict[str, ChunkAnswer] = {}
        self._waiting: list[ChunkAnswer] = []
        self._jobs = 0
        self._log_job: _LogJob | None = None
        self._staged: _LogJob | None = None
        self._planned_at = 0.0
        self._booted = self._stopping = False
        self._fence_due = 0.0
        self._jobs_failed = 0
        self._rows = self._rows_offered = 0
        self.ledger = Ledger()

    # ---- beginning

    def _boot(self) -> None:
        settings = self._settings
        with Session(settings.source) as session:
            self._server = session.server
            self._lower_case = ignores_case(session)
            # The end of the log first: a statement behind it is met in the log, one before it is in what the catalogue says.
            self._began = start = log_end(session, era=_ERA)
            self._tables = read_tables(session, match_tables(list(settings.tables), list(settings.exclude), ignore_case=self._lower_case))
        if not self._tables:
            raise InvalidConfig("no table matches", detail=", ".join(settings.tables))
        for table in self._tables.values():
            if not table.key:
                raise InvalidConfig("a table has no key", detail=str(table.id), hint="exclude it: append targets come later")
        targets = assign_targets(self._tables, settings.routes, default=settings.target, ignore_case=self._lower_case)
        self._generation = take_generation(self._state.store, uuid.uuid4().hex)
        _wait_for_the_last_driver(settings.state / "log")
        self.ledger = self._state.load()
        relay = self._state.take_over_relay(self.ledger)
        self._coordinator = Coordinator(self._generation.number, self.ledger)
        self._step()
        # Says so if that step found a newer driver.
        self._coordinator.next_step()
        start = self._begin_chain(relay, start)
        self._check_tables()
        check_unchanged({table.incarnation.table: table.target for table in self.ledger.tables}, targets)
        self._targets = targets
        for name, table in self._tables.items():
            self._lake.create(self._targets[name], lake_schema(table, settings.types), table.key, buckets=settings.buckets)
            marker, _ = self._lake.newest_marker(self._targets[name])
            check_start(self._targets[name], marker, epoch=self.ledger.epoch, identity=self.ledger.identity)
        self._place = Place(
            generation=self._generation.number,
            nonce=self._generation.nonce,
            state=str(settings.state),
            warehouse=settings.warehouse,
            user=f"snowmelt-{settings.name}",
            source=settings.source,
            server=self._server,
            options=settings.types,
        )
        self._keeper = Keeper(
            self._state,
            relay,
            settings.state / "log",
            settings.source,
            generation=self._generation.number,
            start=start,
            server_id=settings.server_id or _server_id(settings.name),
        )
        self._keeper.start()
        self._booted = True

    def _check_tables(self) -> None:
        """Every table that the ledger has is decoded in every epoch, with the shape that its rows have; else its changes would be lost
        or read wrongly, without a word."""
        for known in self.ledger.tables:
            name = known.incarnation.table
            if known.phase is Phase.GONE:
                continue
            if name not in self._tables:
                raise InvalidConfig(
                    "a table of this pipeline is not captured any more",
                    detail=str(name),
                    hint="if it was excluded by mistake, include it again; to leave it out, or if it was dropped, begin with a new state",
                )
            if known.schema != _schema_number(self._tables[name]):
                raise SourceDrift(
                    "a table was altered since its copy began",
                    detail=str(name),
                    hint="schema changes are not carried into the lake yet; begin with a new state and another lake table",
                )

    def _begin_chain(self, relay: Relay, start: Position) -> Position:
        """From where the log is captured, durable before anything relies on it: an empty record at the head of the chain. Without one
        a database that nobody writes to would never be copied, because no cut would ever be proven visible."""
        if relay.newest is None:
            name = str(self._settings.state / "log" / f"{0:020d}.json")
            relay.apply(self._state.seal(relay.decide_seal(self._generation.number, name, start, start, (Cut(relay.end, 0),))))
        newest = relay.newest
        if newest is None:
            raise InvariantBroken("a chain that was begun is empty")
        return newest.ends

    # ---- the loop

    def run(self, until: Callable[[Pipeline], bool] = lambda _: False) -> None:
        self._boot()
        try:
            while not until(self) and not (self._stopping and self._at_rest()):
                self._turn()
        finally:
            self._keeper.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Finish the epoch under way and begin no other; `run` then returns. Chunks that are being read are read again next time."""
        self._stopping = True

    def _at_rest(self) -> bool:
        return self._log_job is None and self._staged is None and self._coordinator.next_step() is None

    def _turn(self) -> None:
        self._look_for_a_newer_driver()
        busy = self._keeper.take()
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()()
                busy = True
        self._hear()
        if self._coordinator.next_step() is not None:
            self._step()
            busy = True
        elif self._staged is not None:
            self._offer(self._staged)
            busy = True
        if not self._stopping:
            self._plan_if_due()
            self._launch()
        if not busy:
            time.sleep(_TURN_S)

    def _look_for_a_newer_driver(self) -> None:
        """Every step that counts looks for itself; this is for a driver that has nothing to do."""
        if time.monotonic() < self._fence_due:
            return
        with contextlib.suppress(Unavailable):
            newest = newest_generation(self._state.store, self._generation.number)
            if newest > self._generation.number:
                raise Fenced("a newer driver runs this pipeline", detail=f"it is generation {newest}, this is {self._generation.number}")
        self._fence_due = time.monotonic() + min(5.0, max(1.0, self._settings.interval_s))

    def current(self) -> bool:
        """Whether every table is live and the lake has what the database had when this was asked."""
        if not self.caught_up():
            return False
        with Session(self._settings.source) as session:
            return self._has(log_end(session, era=_ERA))

    def caught_up(self) -> bool:
        """Whether every table is live and the lake has what the database had when this driver started."""
        tables = list(self.ledger.tables)
        live = len(tables) >= len(self._tables) and all(table.phase is Phase.RELEASED for table in tables)
        return live and self.ledger.open is None and self._has(self._began)

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
        relay, copies = self._keeper.relay, {str(table.incarnation.table): table.copy for table in ledger.tables}
        return Progress(
            epoch=ledger.epoch - (ledger.open is not None),
            upto=ledger.upto,
            done_upto=ledger.done_upto,
            captured=relay.end,
            time_ms=relay.time_at(ledger.done_upto),
            rows=self._rows,
            phases={str(table.incarnation.table): table.phase.value for table in ledger.tables},
            targets={str(table.incarnation.table): table.target for table in ledger.tables},
            chunks={
                name: (sum(last - first + 1 for first, last in copy.adopted), copy.bounds.last + 1 if copy.complete else None)
                for name, copy in copies.items()
                if copy is not None
            },
        )

    # ---- planning

    def _plan_if_due(self) -> None:
        if self._log_job is not None or self._staged is not None or not self._coordinator.may_plan:
            return
        ledger, relay = self.ledger, self._keeper.relay
        upto = choose_end(relay, ledger.upto, self._settings.epoch_bytes)
        proposals = list(self._propose())
        due = time.monotonic() - self._planned_at >= self._settings.interval_s
        full = upto - ledger.upto >= self._settings.epoch_bytes // 2
        ready = any(reading.report is not None for reading in ledger.tables.readings())
        if not (proposals or ready or full or (due and upto > ledger.upto)):
            return
        plan = plan_epoch(
            ledger.tables,
            relay,
            epoch=ledger.epoch + 1,
            generation=self._generation.number,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )
        for fact in plan.given_back:
            ledger.tables.apply(fact)
        if plan.upto == plan.after and not plan.facts:
            return
        self._planned_at = time.monotonic()
        self._start_log_job(plan)

    def _propose(self) -> list[Durable]:
        """New tables, and the next bounds of those that are being split."""
        proposals: list[Durable] = []
        for name, table in self._tables.items():
            known = self.ledger.tables.get(name)
            if known is None or known.phase is Phase.GONE:
                if self._passed_the_start():
                    found = Incarnation(name, self.ledger.epoch + 1)
                    proposals.append(Found(found, self._targets[name], True, _schema_number(table)))
            elif known.phase is Phase.SPLITTING and known.copy is not None and known.copy.extent is not None:
                extent = Extent(unpack_bound(known.copy.extent.least), unpack_bound(known.copy.extent.greatest))
                last = known.copy.bounds.last
                proposals.append(Split(known.incarnation, last + 1, self._bounds(table, extent)[last:], complete=True))
        return proposals

    def _passed_the_start(self) -> bool:
        """Whether the log lane is past where this driver began. Statements before are of tables as they were then; a table that is
        found now must not meet the one that made it."""
        offset = self._keeper.relay.offset_of(self._began)
        return offset is not None and self.ledger.upto >= offset

    def _bounds(self, table: MySqlTable, extent: Extent) -> tuple[bytes, ...]:
        """All bounds at once: this form's tables are small enough for it, and a crash only costs the look-ups again."""
        with Session(self._settings.source) as session:
            chunks = list(plan_chunks(session, table, extent, rows_per_chunk=self._settings.rows_per_chunk))
        return tuple(pack_bound(chunk.high) for chunk in chunks if chunk.high is not None)

    def _start_log_job(self, plan: EpochPlan) -> None:
        rules = {table.incarnation.table: plan.rule(table) for table in self.ledger.tables if table.phase is not Phase.GONE} | plan.rules
        segments = tuple(self._keeper.relay.covering(plan.low, plan.upto)) if plan.low < plan.upto else ()
        marks = {one.reading.nonce: self._reports[one.reading.nonce].mark for rule in plan.rules.values() for one in rule.adopting}
        task = LogTask(
            epoch=plan.epoch,
            writer=0,
            after=plan.low,
            upto=plan.upto,
            segments=segments,
            rules=rules,
            marks=marks,
            tables={name: self._tables[name] for name in rules},
            targets=self._targets,
            lower_case_names=self._lower_case,
        )
        job = _LogJob(plan, 1)
        self._log_job = job
        if not segments:
            # Nothing of the log is in it: an epoch of facts and chunks needs no tasks.
            job.tasks, job.answers = 0, []
            self._log_job, self._staged = None, job
            return

        def done(answers: list[Any]) -> None:
            self._jobs_failed = 0
            job.answers, self._log_job, self._staged = answers, None, job

        def failed(error: Exception) -> None:
            self._log_job = None
            self._planned_at = time.monotonic()
            self._raise_unless_temporary(error)
            log.warning("a log job failed and is planned again", extra={"epoch": plan.epoch})

        self._submit([task], run_log, done, failed)

    # ---- chunks

    def _launch(self) -> None:
        free = self._settings.chunks_at_once - sum(1 for reading in self.ledger.tables.readings() if reading.report is None)
        if free <= 0 or self._keeper.relay.newest is None:
            return
        running = sum(1 for _ in self.ledger.tables.readings())
        # Whether anything could be launched if all that is captured were visible, before the server is asked what is.
        wanted = decide_launches(self.ledger.tables, self._keeper.relay, visible=self._keeper.relay.end, job=0, running_max=running + 1)
        if not wanted:
            return
        source = self._tables[wanted[0].incarnation.table]
        with Session(self._settings.source) as session:
            shown = newest_visible(session, source, era=_ERA)
        visible = self._visible(shown)
        if visible is None:
            return
        for launch in decide_launches(
            self.ledger.tables, self._keeper.relay, visible=visible, job=self._jobs + 1, running_max=running + free
        ):
            self._jobs = launch.job
            self.ledger.tables.apply(launch)
            self._start_chunk(launch, shown if isinstance(shown, Position) else None)

    def _visible(self, shown: Position | MySqlGtidSet) -> int | None:
        relay = self._keeper.relay
        if isinstance(shown, Position):
            return visible_cut(relay, shown)
        for sealed in reversed(relay.segments):
            gtids: GtidSet | None = sealed.ends.gtids
            # A server that keeps no GTIDs gives an empty set, which proves nothing.
            if gtids is not None and str(gtids) and gtid_within(gtids, shown):
                return sealed.last
        return None

    def _start_chunk(self, launch: Launched, shown: Position | None) -> None:
        table = self._tables[launch.incarnation.table]
        copy = self.ledger.tables.copy_of(launch.incarnation)
        low: Bound | None = None
        high: Bound | None = None
        if launch.ordinal != OUTSIDE and copy.extent is not None:
            above = lower(copy, launch.ordinal)
            low = unpack_bound(above if above is not None else copy.extent.least)
            high = unpack_bound(copy.bounds.upper(launch.ordinal))
        task = ChunkTask(
            launch=launch,
            table=table,
            target=self._targets[table.id],
            low=low,
            high=high,
            whole=not chunked(table),
            visible=shown,
        )

        def done(answers: list[Any]) -> None:
            self._jobs_failed = 0
            self._waiting.extend(answers)

        def failed(error: Exception) -> None:
            for fact in self.ledger.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, str(error)):
                self.ledger.tables.apply(fact)
            self._raise_unless_temporary(error)

        self._submit([task], run_chunk, done, failed)

    def _hear(self) -> None:
        """Reports count once the relay has come to where their reads end."""
        relay, waiting = self._keeper.relay, []
        for answer in self._waiting:
            offset = relay.offset_of(answer.mark.high)
            if offset is None:
                waiting.append(answer)
                continue
            launch = answer.launch
            report = Reported(
                launch.incarnation,
                launch.ordinal,
                launch.job,
                answer.nonce,
                offset,
                exact(answer.mark, None),
                _schema_number(self._tables[launch.incarnation.table]),
                answer.staged.files,
                answer.extent,
            )
            for fact in self.ledger.tables.decide_report(report):
                self.ledger.tables.apply(fact)
                self._reports[answer.nonce] = answer
        self._waiting = waiting

    # ---- commit

    def _offer(self, job: _LogJob) -> None:
        self._staged = None
        answers = job.answers or []
        refused = refusal(job.plan, [answer.message for answer in answers], writers=job.tasks, sources=None, tables=self.ledger.tables)
        if refused is None and self._coordinator.offer(self._build(job.plan, answers), job.plan.follows):
            adopted = (self._reports[fact.nonce].staged.rows for fact in job.plan.facts if isinstance(fact, Adopted))
            self._rows_offered = sum(answer.rows for answer in answers) + sum(adopted)

    def _build(self, plan: EpochPlan, answers: list[LogAnswer]) -> Intent:
        chunks: dict[str, list[Staged]] = {}
        for fact in plan.facts:
            if isinstance(fact, Adopted):
                chunks.setdefault(self._targets[fact.incarnation.table], []).append(self._reports[fact.nonce].staged)
        names: dict[str, list[str]] = {target: [name for one in staged for name in one.files] for target, staged in chunks.items()}
        messages: dict[str, list[bytes]] = {target: [raw for one in staged for raw in one.messages] for target, staged in chunks.items()}
        for answer in answers:
            for file in answer.message.files:
                names.setdefault(file.target, []).append(file.name)
            for target, raw in answer.messages.items():
                messages.setdefault(target, []).extend(raw)
        entries = []
        for target in sorted(name for name, files in names.items() if files):
            uuid_of, buckets, schema, base = self._lake.standing(target)
            files, raw_messages, previous = tuple(names[target]), tuple(messages[target]), self.ledger.marks.get(target, "")
            entries.append(Entry(target, uuid_of, buckets, schema, None, base, (), files, raw_messages, previous))
        relay, nonce = self._keeper.relay, uuid.uuid4().hex
        time_ms, segment = relay.time_at(plan.upto), relay.number_at(plan.upto)
        return intent_of(plan, nonce=nonce, time_ms=time_ms, entries=tuple(entries), segment=segment)

    def _step(self) -> None:
        machine = self._coordinator
        match machine.next_step():
            case PutIntent(intent):
                machine.apply(IntentPut(self._state.put_intent(intent)))
                if intent.entries:
                    reach(INTENT_WRITTEN)
            case ReadIntent(epoch):
                machine.apply(IntentRead(self._state.intent(epoch)))
            case ReadGeneration():
                machine.apply(GenerationRead(newest_generation(self._state.store, self._generation.number)))
            case CommitTables(intent, entries):
                for entry in entries:
                    machine.apply(TableCommitted(intent.epoch, entry.target, self._lake.commit(intent, entry)))
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

    def _let_go(self) -> None:
        """What the done epoch covers is asked for by nobody any more."""
        ledger, relay = self.ledger, self._keeper.relay
        needed = [job.plan.low for job in (self._log_job, self._staged) if job is not None]
        if (visible := ledger.tables.lowest_visible()) is not None:
            needed.append(visible)
        relay.raise_floor(relay.decide_floor(ledger.done_upto, min(needed, default=None)))
        self._keeper.let_go(relay.deletable(ledger.segment))
        under_way = {reading.report.nonce for reading in ledger.tables.readings() if reading.report is not None}
        self._reports = {nonce: answer for nonce, answer in self._reports.items() if nonce in under_way}
        if ledger.epoch % self._settings.summary_every == 0:
            self._clean()
            self._state.sum_up(ledger)

    def _clean(self) -> None:
        ledger = self.ledger
        for target in sorted(set(self._targets.values())):
            staged = self._lake.staged(target)
            under_way = {reading.launch.job for reading in ledger.tables.readings()}
            state = (self._generation.number, ledger.epoch, ledger.generation, self._jobs, under_way)
            standing = Standing(*state, self._coordinator.named | self._lake.referenced(target))
            self._lake.delete(target, [name for name in staged if deletable(StagedName.parse(name), standing)])

    # ---- Spark

    def _submit(
        self, tasks: list[Any], run: Callable[[Place, Any], Any], done: Callable[[list[Any]], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run tasks as one Spark job; its end is handled by the thread that owns the machines."""

        def work() -> None:
            try:
                frame = self._spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(each(self._place, tasks, run), "answer binary")
                answers = [pickle.loads(bytes(row.answer)) for row in frame.collect()]
            except Exception as error:
                self._events.put(lambda error=error: failed(error))  # type: ignore[misc]
            else:
                self._events.put(lambda: done(answers))

        self._pool.submit(work)

    def _raise_unless_temporary(self, error: Exception) -> None:
        """A task's own error comes as text in Spark's. What no repetition changes stops the pipeline, and so does failing for ever."""
        self._jobs_failed += 1
        found = _TASK_ERROR.search(str(error))
        kind = getattr(errors, found[1], None) if found else None
        if found and isinstance(kind, type) and issubclass(kind, SnowmeltError) and not issubclass(kind, Unavailable | OutcomeUnknown):
            raise kind(found[2])
        if isinstance(error, SnowmeltError) and not isinstance(error, Unavailable | OutcomeUnknown):
            raise error
        if self._jobs_failed >= _JOBS_FAILED_MAX:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            told = found[2] if found else f"{type(error).__name__}: {lines[0] if lines else ''}"
            raise Unavailable("Spark jobs fail again and again", detail=f"{self._jobs_failed} in a row, the last: {told[:500]}")


def _wait_for_the_last_driver(folder: Path) -> None:
    """Whoever is fenced by now ends by itself; until then its capture holds the folder, and it may add a record to the chain."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _HANDOVER_S_MAX
    while True:
        with contextlib.suppress(Fenced), owned(folder):
            return
        if time.monotonic() > deadline:
            raise Fenced(
                "another driver of this pipeline does not end",
                detail=f"its capture holds {folder} since {_HANDOVER_S_MAX:.0f} s",
                hint="end that process",
            )
        time.sleep(_TURN_S)


def _schema_number(table: MySqlTable) -> int:
    """A number that tells the shapes of a table apart."""
    return int(table.fingerprint()[:15], 16)


def _server_id(name: str) -> int:
    """Stable for a pipeline, so that whoever takes over ends the connection of whoever was there."""
    return (int.from_bytes(uuid.uuid5(uuid.NAMESPACE_URL, f"snowmelt:{name}").bytes[:4], "big") >> 1) | 1
