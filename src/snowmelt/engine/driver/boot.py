"""How a driver begins: `boot` returns one that is complete.

The order is what makes a take-over right. A mistake in the file is found before any other driver is fenced. The generation is taken before
the state is loaded, and read again after it: what was loaded then is what a driver that was the newest has. Only after that anything has
an effect: the head of the chain, and whatever the driver does at work.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.commit.coordinator import Coordinator, GenerationRead
from snowmelt.commit.ledger import Ledger
from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.databases.contract.tables import Catalogue
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.failover import with_transactions
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
from snowmelt.engine.log.recorder import LogRecorder
from snowmelt.engine.log.storage import LogStorage
from snowmelt.engine.loop.committing import Committing
from snowmelt.engine.loop.driver import DriverLoop
from snowmelt.engine.loop.fitness import Asides, Fitness
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.letting_go import Holders, LettingGo
from snowmelt.engine.loop.log_lane import LogLane
from snowmelt.engine.loop.planner import Planner
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.engine.loop.resources import TURN_S, Resources
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Lane, has_executors, is_gone, raise_gone, slots_of
from snowmelt.engine.tasks.workers import Expected, Packages, look_around, owner_digest, packages, tasks_to_ask
from snowmelt.errors import BEGIN_ANEW, RECOPY, Corrupt, InvalidConfig, InvariantBroken, SnowmeltError, SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.relay.retention import Cut, Relay
from snowmelt.sinks.warehouse import mark
from snowmelt.store.generations import Generation, check_exclusive, newest_generation

log = logging.getLogger(__name__)

_SILENCE_S: Final = 20.0
"""How long workers may be silent when a driver starts before a user is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """What is there before the driver takes the pipeline over."""

    catalogue: Catalogue
    captured: TablePredicate
    fitness: Fitness
    began: str
    """The identity of the server that the pipeline was begun with."""
    marked: str
    installed: Packages


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What the driver has once it is the newest, and has looked whether it still is."""

    generation: Generation
    keeping: LogStorage
    machine: Coordinator
    relay: Relay
    catalogue: Catalogue
    """Read after the state: what the last driver recorded meanwhile may not be in what was read before."""
    read: Callable[[], Catalogue]
    start: Position
    era: int

    @property
    def ledger(self) -> Ledger:
        return self.machine.ledger


def boot(resources: Resources, ending: contextlib.ExitStack, ended: Callable[[], bool]) -> DriverLoop | None:
    """A driver at work. None: the run `ended` before that. `ending` closes what was opened."""
    found = _look(resources)
    if not _ask_workers(resources, found, ended):
        return None
    folder = ending.enter_context(contextlib.ExitStack())
    owned = own_log(resources.settings, resources.state, folder, ended)
    if owned is None:
        return None
    resources.signs.begin(owned[0])
    taken = _take_over(resources, found, *owned)
    asides = Asides(taken.ledger, resources.lake)
    check_described(taken.ledger, found.catalogue, found.captured, found.fitness)
    check_lake(resources, taken.ledger, taken.catalogue, found.fitness, asides)
    return _assemble(resources, ending, folder, found, taken, asides)


def _look(resources: Resources) -> _Before:
    """Read the catalogue and the state, and find what is wrong with the file or with who runs it."""
    settings, state = resources.settings, resources.state
    wanted = patterns(settings.tables, settings.exclude, settings.source.system_databases)
    catalogue = settings.source.read_catalogue(wanted, era=0)
    captured = wanted(catalogue.ignores_case)
    fitness = Fitness(settings, Router(settings.routes, default=settings.target, ignore_case=catalogue.ignores_case))
    before = state.load()
    begun = before.epoch > 0
    if not catalogue.tables and not begun:
        raise InvalidConfig("no table matches", detail=", ".join(settings.tables))
    for route in fitness.router.idle(catalogue.tables):
        log.warning("a route matches no table", extra={"source": route.source, "target": route.target})
    _, refused = assign_targets(catalogue.tables, settings.routes, default=settings.target, ignore_case=catalogue.ignores_case)
    if refused and not begun:
        raise next(iter(refused.values()))
    if settings.log_folder is None:
        check_exclusive(state.store, uuid.uuid4().hex)
    owner = Owner(settings.name, catalogue.server.identity, settings.place)
    began = state.bind(owner, moves=settings.failover, adopt=settings.adopt_state).server
    # Before any driver is fenced: a mistake in the file must not end the one that is at work.
    check_described(before, catalogue, captured, fitness)
    _check_requests(resources, before, catalogue)
    marked = "" if settings.fluss is not None else mark(settings.warehouse)
    return _Before(catalogue=catalogue, captured=captured, fitness=fitness, began=began, marked=marked, installed=packages())


def _ask_workers(resources: Resources, found: _Before, ended: Callable[[], bool]) -> bool:
    """Whether Spark's workers can do what tasks need (`engine.tasks.workers`). False: the run is to end before they answered."""
    spark, jobs = resources.spark, resources.jobs
    if spark is None:
        return True
    state, warehouse = resources.settings.state, resources.settings.warehouse
    answers, began, due = list[list[str]](), time.monotonic(), _SILENCE_S
    expected = Expected(packages=found.installed, state=state, owner=owner_digest(state), warehouse=warehouse, mark=found.marked)

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


def _take_over(resources: Resources, found: _Before, generation: Generation, keeping: LogStorage) -> _Taken:
    """Load the state as its newest driver, and see that this driver still is the newest."""
    settings, state = resources.settings, resources.state
    ledger = state.load()
    relay = state.take_over_relay(ledger)
    seen = found.catalogue.server
    moved = place_on_another(settings, relay, keeping.last(relay), seen, found.began)
    era = relay.era if moved is None else moved.era

    wanted = patterns(settings.tables, settings.exclude, settings.source.system_databases)

    def read() -> Catalogue:
        described = settings.source.read_catalogue(wanted, era=era)
        resources.clock.ahead_ms = described.ahead_ms
        return described

    # Captured is from a place that lies before the catalogue is read: else a statement between the two would be told by neither.
    first = None if relay.newest is not None else with_nothing_prepared(settings.source.options, read)
    catalogue = read()
    if catalogue.server.identity != seen.identity:
        raise Unavailable("another server answers than a moment ago", detail=f"{catalogue.server.identity}, not {seen.identity}")
    machine = Coordinator(generation.number, ledger)
    machine.apply(GenerationRead(newest_generation(state.store, generation.number)))
    # Says so if that found a newer driver.
    machine.next_step()
    start = _begin_chain(resources, generation, relay, keeping, first or catalogue) if moved is None else moved
    return _Taken(
        generation=generation, keeping=keeping, machine=machine, relay=relay, catalogue=catalogue, read=read, start=start, era=era
    )


def _begin_chain(resources: Resources, generation: Generation, relay: Relay, keeping: LogStorage, catalogue: Catalogue) -> Position:
    """From where the log is captured, durable before anything relies on it: an empty record at the head of the chain. Without one
    a database that receives no writes would never be copied, because no cut would ever be proven visible."""
    if relay.newest is None:
        name, start = keeping.nothing(relay, catalogue.ended.era), _with_gtids(resources, catalogue)
        head = relay.decide_seal(generation.number, name, start, start, (Cut(relay.end, catalogue.time_ms),))
        relay.apply(resources.state.seal(head))
    newest = relay.newest
    if newest is None:
        raise InvariantBroken("a chain that was begun is empty")
    return newest.ends


def _with_gtids(resources: Resources, catalogue: Catalogue) -> Position:
    """Where the log begins that is captured, with the transactions before it, as far as they are told: should the server purge its log
    before anything was captured, they prove that nothing is lost."""
    file = replace(catalogue.log, number=catalogue.ended.file)
    with Session(resources.settings.source.options) as session:
        return with_transactions(session, file, catalogue.ended)


# ---- checks


def check_described(ledger: Ledger, catalogue: Catalogue, captured: TablePredicate, fitness: Fitness) -> None:
    """At the first start a user is there to decide about tables without a key; one that is made later must not stop all others."""
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
    """Each lake table has what the store says. One that is gone is its source table's trouble, unless all are, or the open epoch
    has promised something to it."""
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
                _tell_of_buckets(resources, target, needed)
            elif target in needed:
                where = settings.fluss.bootstrap if settings.fluss else settings.warehouse
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
        asides.add(name, name.stuck(broken.fact, detail=broken.detail, hint=RECOPY))


def _tell_of_buckets(resources: Resources, target: str, needed: Mapping[str, Table]) -> None:
    """How many buckets a table has is settled when it is made."""
    settings = resources.settings
    if target in needed and needed[target].keyed and settings.fluss is None:
        has = resources.lake.describe(target).buckets
        if has != settings.buckets:
            extra = {"target": target, "has": has, "buckets": settings.buckets}
            log.warning("a lake table keeps the number of buckets that it was made with", extra=extra)


# ---- putting it together


def _assemble(
    resources: Resources, ending: contextlib.ExitStack, folder: contextlib.ExitStack, found: _Before, taken: _Taken, asides: Asides
) -> DriverLoop:
    """All that a driver has at work. Capture starts here."""
    place = _place(resources, found, taken)
    shapes = _shapes(resources, found, taken)
    known = Knowledge(taken.generation.number, taken.ledger, taken.relay, shapes, taken.catalogue.ended)
    keeper = _keeper(resources, known, taken, folder)
    ending.callback(keeper.stop)
    cleaner = Cleaner(resources.jobs, place, every=resources.settings.sweep_every)
    ending.callback(cleaner.close)
    retries = Retries(asides.stuck)
    splitter = Splitter(resources.settings.source, retries, rows_per_chunk=resources.settings.rows_per_chunk)
    ending.callback(splitter.close)
    chunks = Chunks(
        known.ledger,
        keeper,
        resources.jobs,
        place,
        retries,
        at_once=resources.chunks_at_once,
        began=known.began,
        sourced=known.sourced,
        cleaner=cleaner,
    )
    ending.callback(chunks.close)
    discovery = Discovery(taken.catalogue, known.ledger, known.relay, shapes, taken.read, found.fitness.unfit)
    proposals = Proposals(resources, known, found.fitness, asides, discovery, splitter, found.captured)
    entries = Entries(resources.lake, known.ledger, shapes, chunks, resources.settings.source)
    lane = LogLane(known, resources.jobs, place, entries, chunks, cleaner, asides, tasks=resources.log_tasks)
    holders = Holders(splitter=splitter, retries=retries, discovery=discovery, proposals=proposals)
    letting_go = LettingGo(resources, known, taken.machine, keeper, chunks, lane, cleaner, holders)
    driver = DriverLoop(
        resources=resources,
        known=known,
        machine=taken.machine,
        keeper=keeper,
        discovery=discovery,
        proposals=proposals,
        chunks=chunks,
        lane=lane,
        planner=Planner(resources.settings, known, taken.machine, proposals, chunks, entries, lane),
        committing=Committing(resources, known, taken.machine, entries, chunks, cleaner, asides, letting_go),
        letting_go=letting_go,
        era=taken.era,
    )
    keeper.start(known.ledger.done_segment)
    return driver


def _place(resources: Resources, found: _Before, taken: _Taken) -> TaskContext:
    settings = resources.settings
    return TaskContext(
        generation=taken.generation.number,
        nonce=taken.generation.nonce,
        state=settings.state,
        warehouse=settings.warehouse,
        user=resources.user,
        source=settings.source,
        server=taken.catalogue.server,
        log=taken.catalogue.log,
        limits=settings.limits,
        fluss=settings.fluss,
        packages=found.installed,
        mark="" if "://" in str(settings.warehouse) else found.marked,
    )


def _shapes(resources: Resources, found: _Before, taken: _Taken) -> Shapes:
    ledger = taken.ledger
    shapes = Shapes(
        resources.state,
        taken.generation.number,
        captured=found.captured,
        keyed=found.fitness.router.keyed,
        lower_case_names=taken.catalogue.lower_case_names,
    )
    schemas = {table.incarnation.table: table.schema for table in ledger.tables if table.phase is not TablePhase.GONE}
    aside = [table.incarnation.table for table in ledger.tables if table.phase is TablePhase.SET_ASIDE]
    shapes.begin(schemas, aside, taken.relay.statements(ledger.upto, taken.relay.end))
    return shapes


def _keeper(resources: Resources, known: Knowledge, taken: _Taken, folder: contextlib.ExitStack) -> LogRecorder:
    settings = resources.settings
    return LogRecorder(
        resources.state,
        known.relay,
        known.shapes,
        taken.keeping,
        settings.source,
        generation=known.generation,
        start=taken.start,
        server_id=settings.capture_id(),
        prepared_bytes_max=settings.prepared_bytes_max,
        limits=settings.capture,
        identity=taken.catalogue.server.identity,
        failover=settings.failover,
        wake=resources.awake.set,
        release=folder.close,
    )
