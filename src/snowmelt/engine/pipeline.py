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
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    Stage,
)
from snowmelt.commit.publish import check_start
from snowmelt.commit.records import Committed, Entry, Intent, StagedName
from snowmelt.databases.mysql.bounds import Bound, Extent, plan_chunks
from snowmelt.databases.mysql.catalog import ignores_case, match_tables, read_tables
from snowmelt.databases.mysql.columns import MySqlTable, TypeOptions
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.marks import exact
from snowmelt.databases.mysql.reads import log_end, newest_visible
from snowmelt.engine.keys import chunked, pack_bound, unpack_bound
from snowmelt.engine.relay import Keeper
from snowmelt.engine.state import State
from snowmelt.engine.tasks import ChunkAnswer, ChunkTask, LogAnswer, LogTask, Place, each, lake_schema, run_chunk, run_log
from snowmelt.errors import InvalidConfig, SnowmeltError, SourceDrift, Unavailable
from snowmelt.lakes.paimon import PaimonLake, Staged
from snowmelt.model import sequence
from snowmelt.model.gtid import GtidSet, MySqlGtidSet, gtid_within
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.source.facts import OUTSIDE, Adopted, Durable, Found, Incarnation, Launched, Reported, Split
from snowmelt.source.planning import EpochPlan, choose_end, decide_launches, lower, plan_epoch, visible_cut
from snowmelt.source.tables import Phase
from snowmelt.store.generations import newest_generation, take_generation
from snowmelt.store.objects import open_store

log = logging.getLogger(__name__)

_TURN_S = 0.02
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
    target_database: str = "ods"
    interval_s: float = 5.0
    epoch_bytes: int = 256 << 20
    rows_per_chunk: int = 100_000
    chunks_at_once: int = 2
    buckets: int = 2
    summary_every: int = 20
    types: TypeOptions = field(default_factory=TypeOptions)


@dataclass(slots=True)
class _LogJob:
    plan: EpochPlan
    tasks: int
    answers: list[LogAnswer] | None = None


@dataclass(slots=True)
class Progress:
    """What a watcher may want to know."""

    epoch: int = 0
    upto: int = 0
    captured: int = 0
    phases: dict[str, str] = field(default_factory=dict)
    rows: int = 0


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
        self._splits: dict[TableId, Any] = {}
        self._jobs = 0
        self._log_job: _LogJob | None = None
        self._staged: _LogJob | None = None
        self._planned_at = 0.0
        self.progress = Progress()

    # ---- beginning

    def _boot(self) -> None:
        settings = self._settings
        with Session(settings.source) as session:
            self._server = session.server
            self._lower_case = ignores_case(session)
            self._tables = read_tables(session, match_tables(list(settings.tables), list(settings.exclude), ignore_case=self._lower_case))
            start = log_end(session, era=_ERA)
        if not self._tables:
            raise InvalidConfig("no table matches", detail=", ".join(settings.tables))
        for table in self._tables.values():
            if not table.key:
                raise InvalidConfig("a table has no key", detail=str(table.id), hint="exclude it: append targets come later")
        self._generation = take_generation(self._state.store, uuid.uuid4().hex)
        self.ledger = self._state.load()
        relay = self._state.take_over_relay(self.ledger)
        self._coordinator = Coordinator(self._generation.number, self.ledger)
        self._step()
        self._step_if(Stage.FENCED)
        self._targets = {name: f"{settings.target_database}.{name.database}_{name.name}" for name in self._tables}
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
            server_id=_server_id(settings.name),
        )
        self._keeper.start()

    # ---- the loop

    def run(self, until: Callable[[Pipeline], bool] = lambda _: False) -> None:
        self._boot()
        try:
            while not until(self):
                self._turn()
        finally:
            self._keeper.stop()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _turn(self) -> None:
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
        self._plan_if_due()
        self._launch()
        self._show()
        if not busy:
            time.sleep(_TURN_S)

    def current(self) -> bool:
        """Whether every table is live and the lake has what the database had when this was asked."""
        tables = list(self.ledger.tables)
        if len(tables) < len(self._tables) or any(table.phase is not Phase.RELEASED for table in tables):
            return False
        with Session(self._settings.source) as session:
            end = log_end(session, era=_ERA)
        offset = self._keeper.relay.offset_of(end)
        return offset is not None and self.ledger.done_upto >= offset and self.ledger.open is None

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
            if known is None:
                proposals.append(Found(Incarnation(name, 1), self._targets[name], True, 0))
            elif known.phase is Phase.SPLITTING and known.copy is not None and known.copy.extent is not None:
                extent = Extent(unpack_bound(known.copy.extent.least), unpack_bound(known.copy.extent.greatest))
                uppers, complete = self._next_bounds(table, extent, known.copy.bounds.last)
                proposals.append(Split(known.incarnation, known.copy.bounds.last + 1, uppers, complete))
        return proposals

    def _next_bounds(self, table: MySqlTable, extent: Extent, last: int) -> tuple[tuple[bytes, ...], bool]:
        """All bounds at once: this form's tables are small enough for it, and a crash only costs the look-ups again."""
        with Session(self._settings.source) as session:
            chunks = list(plan_chunks(session, table, extent, rows_per_chunk=self._settings.rows_per_chunk))
        uppers = tuple(pack_bound(chunk.high) for chunk in chunks if chunk.high is not None)
        return uppers[last:], True

    def _start_log_job(self, plan: EpochPlan) -> None:
        rules = {table.incarnation.table: plan.rule(table) for table in self.ledger.tables}
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
            tables=self._tables,
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
            job.answers, self._log_job, self._staged = answers, None, job

        def failed(error: Exception) -> None:
            self._log_job = None
            self._planned_at = time.monotonic()
            self._raise_unless_temporary(error)
            log.warning("a log job failed and is planned again", extra={"epoch": plan.epoch})

        self._submit([task], run_log, done, failed)

    # ---- chunks

    def _launch(self) -> None:
        if not any(table.copy is not None for table in self.ledger.tables):
            return
        free = self._settings.chunks_at_once - sum(1 for reading in self.ledger.tables.readings() if reading.report is None)
        if free <= 0 or self._keeper.relay.newest is None:
            return
        wanted = next((table for table in self.ledger.tables if table.copy is not None), None)
        if wanted is None:
            return
        source = self._tables[wanted.incarnation.table]
        with Session(self._settings.source) as session:
            shown = newest_visible(session, source, era=_ERA)
        visible = self._visible(shown)
        if visible is None:
            return
        running = sum(1 for _ in self.ledger.tables.readings())
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
                0,
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
        refused = refusal(job.plan, [answer.message for answer in answers], writers=job.tasks, sources=job.tasks, tables=self.ledger.tables)
        if refused is None:
            self._coordinator.offer(self._build(job.plan, answers), job.plan.follows)

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
            entries.append(Entry(target, uuid_of, buckets, schema, None, base, (), tuple(names[target]), tuple(messages[target])))
        relay = self._keeper.relay
        return Intent(
            plan.epoch,
            self._generation.number,
            uuid.uuid4().hex,
            plan.after,
            plan.upto,
            relay.time_at(plan.upto),
            plan.facts,
            tuple(entries),
            sequence.of_chunk(plan.upto),
            relay.number_at(plan.upto),
        )

    def _step(self) -> None:
        machine = self._coordinator
        match machine.next_step():
            case PutIntent(intent):
                machine.apply(IntentPut(self._state.put_intent(intent)))
            case ReadIntent(epoch):
                machine.apply(IntentRead(self._state.intent(epoch)))
            case ReadGeneration():
                machine.apply(GenerationRead(newest_generation(self._state.store, self._generation.number)))
            case CommitTables(intent, entries):
                for entry in entries:
                    machine.apply(Committed(entry.target, self._lake.commit(intent, entry)))
            case RunListeners(_, state):
                machine.apply(ListenersRan(state))
            case PutDone(done):
                machine.apply(DonePut(self._state.put_done(done)))
                self._let_go()
            case None:
                pass

    def _step_if(self, stage: Stage) -> None:
        if self._coordinator.stage is stage:
            self._coordinator.next_step()

    def _let_go(self) -> None:
        """What the done epoch covers is asked for by nobody any more."""
        ledger, relay = self.ledger, self._keeper.relay
        relay.raise_floor(relay.decide_floor(ledger.done_upto, ledger.tables.lowest_visible()))
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
            standing = Standing(
                self._generation.number,
                ledger.epoch,
                ledger.generation,
                self._lake.referenced(target),
                self._jobs,
                {reading.launch.job for reading in ledger.tables.readings()},
            )
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

    @staticmethod
    def _raise_unless_temporary(error: Exception) -> None:
        """A task's own error comes wrapped in Spark's; what an operator must decide on stops the pipeline."""
        text = str(error)
        for kind in (SourceDrift, InvalidConfig):
            if f"{kind.__module__}.{kind.__name__}" in text:
                raise kind("a task can't go on", detail=text.strip().splitlines()[-1][:500])
        if isinstance(error, SnowmeltError) and not isinstance(error, Unavailable):
            raise error

    def _show(self) -> None:
        progress = self.progress
        progress.epoch, progress.upto, progress.captured = self.ledger.epoch, self.ledger.upto, self._keeper.relay.end
        progress.phases = {str(table.incarnation.table): table.phase.value for table in self.ledger.tables}


def _server_id(name: str) -> int:
    """Stable for a pipeline, so that whoever takes over ends the connection of whoever was there."""
    return (int.from_bytes(uuid.uuid5(uuid.NAMESPACE_URL, f"snowmelt:{name}").bytes[:4], "big") >> 1) | 1
