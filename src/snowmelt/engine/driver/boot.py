"""How a driver begins: `boot` returns one that is complete.

`driving.boot` has the order of the steps, which makes a takeover right. This module does each step, and puts the driver's parts together.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from snowmelt.commit.ledger import Ledger
from snowmelt.databases.contract.tables import Catalogue
from snowmelt.driving import boot as driving
from snowmelt.driving.boot import CheckTargets, FindStart, Inspect, MakeHead, TakeGeneration
from snowmelt.driving.steps import Machines, NewestGeneration, Request, perform
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.discovery import Discovery, patterns
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.driver.retries import Retries
from snowmelt.engine.driver.routes import Router, assign_targets, check_goes_on
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.driver.splitting import Splitter
from snowmelt.engine.driver.state import Owner
from snowmelt.engine.log.handover import own_log, place_on_another, with_nothing_prepared
from snowmelt.engine.log.recorder import CaptureStart, LogRecorder
from snowmelt.engine.log.storage import LogStorage
from snowmelt.engine.loop.committing import Committing
from snowmelt.engine.loop.driver import DriverLoop
from snowmelt.engine.loop.fitness import Asides, Fitness
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.letting_go import Holders, LettingGo
from snowmelt.engine.loop.log_lane import LogLane
from snowmelt.engine.loop.planner import Planner
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.engine.loop.requests import Inbox
from snowmelt.engine.loop.resources import TURN_S, Resources
from snowmelt.engine.maintenance.rescales import Rescales
from snowmelt.engine.maintenance.upkeep import Upkeep
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Lane, has_executors, is_gone, raise_gone, slots_of
from snowmelt.engine.tasks.workers import Expected, Packages, look_around, owner_digest, packages, tasks_to_ask
from snowmelt.errors import BEGIN_ANEW, RECOPY, Corrupt, InvalidConfig, SnowmeltError, SourceDrift, TableStuck, Unavailable, present
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.relay.retention import Cut, Relay, SegmentRecord
from snowmelt.sinks.warehouse import mark
from snowmelt.store.generations import Generation, check_exclusive, newest_generation

log = logging.getLogger(__name__)

_SILENCE_S: Final = 20.0
"""How long workers may be silent at a start before the user is warned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What is known before the driver takes the pipeline over."""

    catalogue: Catalogue
    captured: TablePredicate
    fitness: Fitness
    installed: Packages
    server: str = ""
    """The identity of the server that the pipeline was begun with."""
    marked: str = ""
    """The mark in the warehouse, by which tasks recognise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """Where capture continues, and which tables there are. The server is read after the state: it must have everything that the last driver
    recorded."""

    catalogue: Catalogue
    read: Callable[[], Catalogue]
    first: Catalogue
    """For a new chain: the catalogue as it was read before, at a moment without prepared transactions. Capture begins at its end."""
    moved: Position | None
    """Where another server's log continues."""


class _Shell:
    """Does what the steps of `driving.boot` ask for, and holds the results."""

    def __init__(self, resources: Resources, ending: contextlib.ExitStack, ended: Callable[[], bool]) -> None:
        settings = resources.settings
        self.resources = resources
        self.folder = ending.enter_context(contextlib.ExitStack())
        """Of the log; open until capture has ended."""
        self._ended = ended
        self._wanted = patterns(settings.tables, settings.exclude, settings.source.system_databases)
        catalogue = settings.source.read_catalogue(self._wanted, era=0)
        router = Router(settings.routes, default=settings.target, ignore_case=catalogue.ignores_case)
        self.before = _Before(
            catalogue=catalogue,
            captured=self._wanted(catalogue.ignores_case),
            fitness=Fitness(settings, router),
            installed=packages(),
        )
        self._owned: tuple[Generation, LogStorage] | None = None
        self._begun: _Begun | None = None
        self._asides: Asides | None = None

    @property
    def owned(self) -> tuple[Generation, LogStorage]:
        return present(self._owned, "a driver begins without a generation")

    @property
    def source(self) -> _Begun:
        return present(self._begun, "a driver begins without a source")

    @property
    def asides(self) -> Asides:
        return present(self._asides, "a driver begins before its targets were checked")

    def act(self, request: Request[Any]) -> Any:
        match request:
            case Inspect(ledger):
                self.before = _inspect(self.resources, self.before, ledger)
                return _ask_workers(self.resources, self.before, self._ended)
            case TakeGeneration():
                return self._take()
            case FindStart(relay):
                self._begun = self._find(relay)
            case NewestGeneration():
                return newest_generation(self.resources.state.store, self.owned[0].number)
            case MakeHead(relay):
                return self._head(relay)
            case CheckTargets(ledger):
                check_described(ledger, self.source.catalogue, self.before.captured, self.before.fitness)
                self._asides = Asides(ledger, self.resources.lake)
                check_lake(self.resources, ledger, self.source.catalogue, self.before.fitness, self._asides)
            case _:
                return self.resources.state.act(request)
        return None

    def _take(self) -> GenerationNumber | None:
        self._owned = own_log(self.resources.settings, self.resources.state, self.folder, self._ended)
        if self._owned is None:
            return None
        self.resources.signs.begin(self._owned[0])
        return self._owned[0].number

    def _find(self, relay: Relay) -> _Begun:
        settings, seen, storage = self.resources.settings, self.before.catalogue.identity, self.owned[1]
        moved = place_on_another(settings, relay, storage.last(relay), seen, self.before.server)
        era = relay.era if moved is None else moved.era

        def read() -> Catalogue:
            described = settings.source.read_catalogue(self._wanted, era=era)
            self.resources.clock.ahead_ms = described.ahead_ms
            return described

        # Capture begins at a place before the catalogue is read. Otherwise a statement between the two would be in neither.
        first = None if relay.newest is not None else with_nothing_prepared(settings.source, read)
        catalogue = read()
        if catalogue.identity != seen:
            raise Unavailable("another server answers than a moment ago", detail=f"{catalogue.identity}, not {seen}")
        return _Begun(catalogue=catalogue, read=read, first=first or catalogue, moved=moved)

    def _head(self, relay: Relay) -> SegmentRecord | None:
        """The first record of a new chain, without data; None: the chain has records. Without it a database that receives no writes would
        never be copied, because no cut would ever be proven visible."""
        if relay.newest is not None or self.source.moved is not None:
            return None
        (generation, storage), first = self.owned, self.source.first
        name, start = storage.nothing(relay, first.ended.era), self.resources.settings.source.with_transactions(first.ended, first.log)
        return relay.decide_record(generation.number, name, start, start, (Cut(relay.end, first.time_ms),))


def boot(resources: Resources, ending: contextlib.ExitStack, ended: Callable[[], bool]) -> DriverLoop | None:
    """A running driver. None: the run `ended` before. `ending` closes what was opened."""
    shell = _Shell(resources, ending, ended)
    machines = perform(driving.boot(), shell.act)
    return None if machines is None else _assemble(shell, ending, machines)


def _inspect(resources: Resources, before: _Before, ledger: Ledger) -> _Before:
    """Find mistakes in the settings, and a state that is another pipeline's. No generation is taken yet, so a mistake does not end the
    driver that runs."""
    settings, state, catalogue = resources.settings, resources.state, before.catalogue
    begun = ledger.epoch > 0
    if not catalogue.tables and not begun:
        raise InvalidConfig("no table matches", detail=", ".join(settings.tables))
    for route in before.fitness.router.idle(catalogue.tables):
        log.warning("a route matches no table", extra={"source": route.source, "target": route.target})
    _, refused = assign_targets(catalogue.tables, settings.routes, default=settings.target, ignore_case=catalogue.ignores_case)
    if refused and not begun:
        raise next(iter(refused.values()))
    if settings.log_folder is None:
        check_exclusive(state.store, uuid.uuid4().hex)
    owner = Owner(settings.name, catalogue.identity, settings.place)
    server = state.bind(owner, moves=settings.log.failover, adopt=settings.adopt_state).server
    check_described(ledger, catalogue, before.captured, before.fitness)
    _check_requests(resources, ledger, catalogue)
    return replace(before, server=server, marked="" if settings.sink.fluss is not None else mark(settings.sink.warehouse))


def _ask_workers(resources: Resources, before: _Before, ended: Callable[[], bool]) -> bool:
    """Whether Spark's workers can do what tasks need (`engine.tasks.workers`). False: the run is to end before they answered."""
    spark, jobs = resources.spark, resources.jobs
    if spark is None:
        return True
    state, warehouse = resources.settings.state, resources.settings.sink.warehouse
    answers, began, due = list[list[str]](), time.monotonic(), _SILENCE_S
    expected = Expected(packages=before.installed, state=state, owner=owner_digest(state), warehouse=warehouse, mark=before.marked)

    def failed(error: SnowmeltError) -> None:
        raise error

    jobs.submit(Lane.LOG, expected, tasks_to_ask(spark, slots_of(spark)), look_around, answers.append, failed)
    while not answers:
        if ended():
            return False
        if is_gone(spark):
            raise_gone()
        if time.monotonic() - began >= due:
            due *= 2
            why = "new installations compile first" if has_executors(spark) else "does the cluster have free cores and memory?"
            log.warning("no Spark worker has answered yet; %s", why, extra={"seconds": round(time.monotonic() - began)})
        resources.awake.wait(TURN_S)
        resources.awake.clear()
        jobs.take()
    return True


# ---- checks


def check_described(ledger: Ledger, catalogue: Catalogue, captured: TablePredicate, fitness: Fitness) -> None:
    """At the first start a table that can't be brought to the lake is an error: a user is there to decide. Later it must not stop the
    others."""
    for table in () if ledger.epoch else catalogue.tables.values():
        if why := fitness.why_not(table):
            raise InvalidConfig("a table can't be brought to the lake", detail=f"{table.id}: {why}", hint="or exclude it")
    check_goes_on(ledger.tables, captured, fitness.router)


def _check_requests(resources: Resources, ledger: Ledger, catalogue: Catalogue) -> None:
    for name in resources.requests:
        if name not in catalogue.tables and ledger.tables.get(name) is None:
            raise InvalidConfig(
                "a table to be copied anew is not one of this pipeline's", detail=str(name), hint="name it as the source does"
            )


def check_lake(resources: Resources, ledger: Ledger, catalogue: Catalogue, fitness: Fitness, asides: Asides) -> None:
    """Check that each lake table has what the records say. If one is missing, its source table is set aside. It is an error of the pipeline
    if all are missing, or if the open epoch has files for it."""
    lake, settings = resources.lake, resources.settings
    needed = {known.target: known for known in ledger.tables if known.phase not in (TablePhase.SET_ASIDE, TablePhase.GONE)}
    resting = {known.target for known in ledger.tables if known.phase is TablePhase.SET_ASIDE}
    found = {fitness.router.of(name).name for name, table in catalogue.tables.items() if not fitness.why_not(table)}
    promised = {entry.target for entry in ledger.open.entries} if ledger.open is not None else set()
    missing: dict[str, SnowmeltError] = {}
    for target in sorted(({known.target for known in ledger.tables} | found) - resting):
        try:
            if lake.exists(target):
                lake.check_start(target, ledger)
                _check_made(resources, target, needed, fitness.router)
            elif target in needed:
                where = settings.sink.fluss.bootstrap if settings.sink.fluss else settings.sink.warehouse
                hint = f"is that the right place? if the table was dropped, {BEGIN_ANEW}"
                missing[target] = SourceDrift("a lake table is not there", detail=f"{target} in {where}", hint=hint)
        except (Corrupt, TableStuck) as error:
            if target not in needed:
                raise
            missing[target] = error
    # One that is there and can be read is not missing: if another program changed it, it can be copied again, also if it is the only one.
    gone = [target for target, error in missing.items() if not isinstance(error, TableStuck)]
    for target, broken in missing.items():
        if target in promised or (target in gone and len(gone) == len(needed)):
            raise broken
        name = needed[target].incarnation.table
        asides.add(name, name.stuck(broken.fact, detail=broken.detail, hint=RECOPY))


def _check_made(resources: Resources, target: str, needed: Mapping[str, Table], router: Router) -> None:
    """Compare a table with the settings. Partitions are fixed when it is made: others are an error, as tasks write rows as the settings
    say. Another number of buckets is a warning: `snowmelt rescale` alone changes it."""
    settings = resources.settings
    if target not in needed or settings.sink.fluss is not None:
        return
    name = needed[target].incarnation.table
    try:
        state = resources.lake.describe(target)
    except SourceDrift as error:
        raise name.stuck(error.fact, detail=error.detail, hint=error.hint) from error
    if state.partition != (partition := router.partition(name)):
        raise InvalidConfig(
            f"{name} is partitioned in another way than before",
            detail=f"{target}: by {state.partition or 'nothing'} so far, {partition or 'nothing'} now",
            hint="keep its partition_by, or begin anew with another state",
        )
    if needed[target].keyed and state.buckets != settings.sink.buckets:
        extra = {"target": target, "has": state.buckets, "buckets": settings.sink.buckets}
        log.warning("a lake table keeps its number of buckets until `snowmelt rescale` changes it", extra=extra)


# ---- putting it together


def _assemble(shell: _Shell, ending: contextlib.ExitStack, machines: Machines) -> DriverLoop:
    """Put the parts of a driver together. Capture starts here."""
    resources, before, source, asides = shell.resources, shell.before, shell.source, shell.asides
    place = _place(shell)
    router = before.fitness.router
    known = Knowledge(
        generation=machines.generation,
        ledger=machines.ledger,
        relay=machines.relay,
        shapes=_shapes(shell, machines),
        began=source.catalogue.ended,
        partition=router.partition,
    )
    recorder = _recorder(shell, known)
    ending.callback(recorder.stop)
    cleaner = Cleaner(resources.jobs, place, every=resources.settings.pace.sweep_every)
    ending.callback(cleaner.close)
    retries = Retries(asides.stuck)
    splitter = Splitter(resources.settings.source, retries, rows_per_chunk=resources.settings.pace.rows_per_chunk)
    ending.callback(splitter.close)
    chunks = Chunks(
        known.ledger,
        recorder,
        resources.jobs,
        place,
        retries,
        at_once=resources.chunks_at_once,
        began=known.began,
        sourced=known.sourced,
        cleaner=cleaner,
    )
    ending.callback(chunks.close)
    discovery = Discovery(source.catalogue, known.ledger, known.relay, known.shapes, source.read, before.fitness.unfit)
    proposals = Proposals(resources, known, before.fitness, asides, discovery, splitter, before.captured)
    entries = Entries(resources.lake, known.ledger, known.shapes, resources.settings.source, resources.threads, router.partition)
    lane = LogLane(known, resources.jobs, place, chunks, cleaner, asides, tasks=resources.log_tasks)
    upkeep = _upkeep(shell, known, cleaner, place)
    ending.callback(upkeep.close)
    holders = Holders(splitter=splitter, retries=retries, discovery=discovery, proposals=proposals, upkeep=upkeep)
    letting_go = LettingGo(resources, known, machines, recorder, chunks, lane, cleaner, holders)
    planner = Planner(resources.settings, known, machines.commit, proposals, chunks, entries, lane)
    driver = DriverLoop(
        resources=resources,
        known=known,
        machines=machines,
        recorder=recorder,
        discovery=discovery,
        proposals=proposals,
        chunks=chunks,
        lane=lane,
        planner=planner,
        committing=Committing(resources, known, machines, entries, chunks, cleaner, asides, letting_go),
        letting_go=letting_go,
        rescales=_rescales(resources, known, planner, upkeep, cleaner, place),
        era=machines.relay.era if source.moved is None else source.moved.era,
    )
    resources.listening.remind(known.ledger)
    recorder.start(known.ledger.done_segment)
    return driver


def _upkeep(shell: _Shell, known: Knowledge, cleaner: Cleaner, place: TaskContext) -> Upkeep:
    resources, router = shell.resources, shell.before.fitness.router

    def rules(table: TableId) -> MaintenanceRules | None:
        found = router.maintenance(table) or resources.settings.maintenance.rules
        return found if found.enabled and resources.settings.sink.fluss is None else None

    return Upkeep(known.ledger, resources.jobs, place, cleaner, rules, slots=resources.maintenance_slots, wake=resources.awake.set)


def _rescales(resources: Resources, known: Knowledge, planner: Planner, upkeep: Upkeep, cleaner: Cleaner, place: TaskContext) -> Rescales:
    inbox = Inbox(resources.state.store, known.generation)
    return Rescales(resources, known.ledger, place, inbox, planner, upkeep, cleaner)


def _place(shell: _Shell) -> TaskContext:
    settings, generation, catalogue = shell.resources.settings, shell.owned[0], shell.source.catalogue
    return TaskContext(
        generation=generation.number,
        nonce=generation.nonce,
        state=settings.state,
        warehouse=settings.sink.warehouse,
        user=shell.resources.user,
        source=settings.source,
        identity=catalogue.identity,
        log=catalogue.log,
        limits=settings.log.limits,
        fluss=settings.sink.fluss,
        packages=shell.before.installed,
        mark="" if "://" in str(settings.sink.warehouse) else shell.before.marked,
    )


def _shapes(shell: _Shell, machines: Machines) -> Shapes:
    ledger, relay, catalogue = machines.ledger, machines.relay, shell.source.catalogue
    shapes = Shapes(
        shell.resources.state,
        shell.resources.settings.source,
        machines.generation,
        captured=shell.before.captured,
        keyed=shell.before.fitness.router.keyed,
        lower_case_names=catalogue.lower_case_names,
    )
    schemas = {table.incarnation.table: table.schema for table in ledger.tables if table.phase is not TablePhase.GONE}
    aside = [table.incarnation.table for table in ledger.tables if table.phase is TablePhase.SET_ASIDE]
    shapes.begin(schemas, aside, relay.statements(ledger.upto, relay.end))
    return shapes


def _recorder(shell: _Shell, known: Knowledge) -> LogRecorder:
    settings, newest = shell.resources.settings, known.relay.newest
    start = shell.source.moved or present(newest, "a chain that was begun is empty").ends
    return LogRecorder(
        shell.resources.state,
        known.relay,
        known.shapes,
        shell.owned[1],
        settings,
        CaptureStart(generation=known.generation, identity=shell.source.catalogue.identity, position=start),
        wake=shell.resources.awake.set,
        release=shell.folder.close,
    )
