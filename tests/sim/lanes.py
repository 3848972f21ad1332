"""The lanes of a driver in the simulated world: what it plans, which chunks it has read, and what it starts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING
from unittest import mock

from snowmelt.commit.coordinator import Coordinator, PutIntent, Stage
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Staged
from snowmelt.driving.sharing import divide
from snowmelt.driving.steps import Machines
from snowmelt.errors import Fenced, SourceDrift
from snowmelt.planning import epochs as planning
from snowmelt.planning.asides import Requests, Troubles, forget, reborn
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted, Durable, Found, GivenBack, Incarnation, Launched, Reborn, Reported, SetAside, Split
from snowmelt.planning.tables import Reading, TablePhase, Tables
from snowmelt.relay.retention import Relay
from tests.sim.lake import Violation
from tests.sim.metadata import check_plans
from tests.sim.store import Steps
from tests.sim.tasks import Job, Tasks, packed

if TYPE_CHECKING:
    from tests.sim.world import World


def judge_early(tables: Tables, relay: Relay, reading: Reading, report: Reported, *, after: int, upto: int) -> bool | GivenBack:
    """As if the epoch ended where the read does. What the log has until then comes with later epochs, and loses or wins as it should."""
    high = max(upto, report.high)
    return not relay.statements(upto, high, report.incarnation.table) and JUDGES(tables, relay, reading, report, after=after, upto=high)


JUDGES = planning.judge_reading


class Lanes(Tasks):
    troubles: Troubles
    """Set by the driver, once it has a ledger."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.machines: Machines | None = None
        """None until it is the newest, and has looked whether it still is."""
        self.jobs = 0
        self.staged: Job | None = None
        self.busy = False
        """A log job is under way."""
        self.loaded_as = 0
        """The newest generation when all records had been loaded."""
        self.requests = Requests()
        self.hoped: Ledger | None = None
        """In eager worlds: what is true if the offered intent wins."""

    @property
    def coordinator(self) -> Coordinator:
        assert self.machines is not None
        return self.machines.commit

    @property
    def ledger(self) -> Ledger:
        return self.coordinator.ledger

    @property
    def relay(self) -> Relay:
        assert self.machines is not None
        return self.machines.relay

    @property
    def basis(self) -> Ledger:
        """What the next epoch is planned from."""
        asked = self.coordinator.stage in (Stage.ASKING, Stage.READING_BACK)
        return self.hoped if asked and self.hoped is not None else self.ledger

    def hope(self) -> None:
        """After an offer."""
        self.hoped, offered = None, self.coordinator.next_step()
        if not self.world.eager or not isinstance(offered, PutIntent) or not offered.intent.overlaps:
            return
        if not any(isinstance(fact, Found | Reborn | SetAside) for fact in offered.intent.facts):
            self.hoped = copy.deepcopy(self.ledger)
            self.hoped.apply_intent(offered.intent)

    # ---- planning

    def plan(self) -> Steps[None]:
        world, rng = self.world, self.world.rng
        proposals: list[Durable] = []
        while True:
            yield
            self.hear()
            self.give_back_some()
            if rng.random() < 0.5:
                yield from self.launch()
            basis = self.basis
            if self.busy or self.staged is not None or (basis is self.ledger and not self.coordinator.may_plan):
                continue
            if basis is self.ledger:
                check_plans(self.coordinator)
            if not proposals or rng.random() < 0.5:
                proposals = list(self.propose())
            upto = planning.choose_end(basis.tables, self.relay, basis.upto, world.profile.epoch_bytes)
            if rng.random() < 0.3:
                upto = world.earlier_cut(self.relay, basis.upto, upto)
            plan = self.plan_epoch(upto, proposals)
            if plan.after == plan.upto and not plan.facts and rng.random() < 0.95:
                continue
            proposals = []
            for fact in plan.given_back:
                for decided in self.ledger.tables.decide_give_back(fact.incarnation, fact.ordinal, fact.job, fact.why):
                    self.ledger.tables.apply(decided)
            job = Job(plan)
            self.run(job, tasks=rng.randint(1, 3))
            while len(job.messages) < job.writers and not job.failed:
                yield
                self.hear()
            self.busy = False
            if not job.failed:
                for message in job.messages:
                    for file in message.files:
                        self.leftovers.reported(file.target, Staged((file.name,), (), 0))
                self.staged = job
            elif job.stuck is not None:
                self.troubles.add(job.stuck, "a task can't write it")
            elif (yield from world.store.newest("generation")) > self.generation:
                # What it reads may be gone because somebody newer let go of it.
                raise Fenced("a newer driver runs this pipeline")

    def plan_epoch(self, upto: int, proposals: list[Durable]) -> EpochPlan:
        if not self.world.early:
            return self.plan_from(self.basis, upto, proposals)
        with mock.patch.object(planning, "judge_reading", judge_early):
            return self.plan_from(self.basis, upto, proposals)

    def plan_from(self, ledger: Ledger, upto: int, proposals: list[Durable]) -> EpochPlan:
        plan = planning.plan_epoch(
            ledger.tables,
            self.relay,
            epoch=ledger.epoch + 1,
            generation=self.generation,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )
        for fact in plan.facts:
            if isinstance(fact, Adopted) and self.world.reads[fact.nonce].high.era != self.relay.era:
                raise Violation(f"a read of {fact.incarnation} is adopted, of another server than the one that is captured")
        return plan

    def hear(self) -> None:
        """Reports of chunk tasks count once the relay has come to where they end."""
        waiting = []
        for report in self.inbox:
            launch, nonce, high, read, extent, files = report
            try:
                offset = self.relay.offset_of(high)
            except SourceDrift:
                self.give_back(launch, "another server")
                continue
            if read is None:
                self.give_back(launch, "it failed")
                if self.world.rng.random() < self.world.profile.stuck:
                    self.troubles.add(launch.incarnation.table, "it can't be read")
            elif offset is None:
                waiting.append(report)
            else:
                exact = self.world.profile.marks != "gtids"
                exact = exact or all(number in read.covered for number in self.world.numbers_upto(read.high_number))
                fact = Reported(
                    incarnation=launch.incarnation,
                    ordinal=launch.ordinal,
                    job=launch.job,
                    nonce=nonce,
                    high=offset,
                    exact=exact,
                    schema=read.schema,
                    files=files,
                    extent=extent,
                )
                for decided in self.ledger.tables.decide_report(fact):
                    self.ledger.tables.apply(decided)
        self.inbox = waiting

    def give_back(self, launch: Launched, why: str) -> None:
        for fact in self.ledger.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, why):
            self.ledger.tables.apply(fact)

    def give_back_some(self) -> None:
        if self.world.rng.random() < self.world.profile.give_back:
            for reading in list(self.ledger.tables.readings())[:1]:
                self.give_back(reading.launch, "it took too long")

    def launch(self) -> Steps[None]:
        world = self.world
        era, shown = yield from world.faulty.read(lambda: (world.db.era, world.db.shown()))
        if self.relay.newest is None or era != self.relay.era:
            return
        try:
            visible = planning.visible_cut(self.relay, shown)
        except SourceDrift:
            return
        if visible is None:
            return
        launches = planning.decide_launches(
            self.ledger.tables, self.relay, visible=visible, job=self.jobs + 1, running_max=world.profile.running_max
        )
        for fact in launches:
            self.jobs = fact.job
            self.ledger.tables.apply(fact)
            copied = self.ledger.tables.copy_of(fact.incarnation)
            world.spawn(None, self.read_chunk(fact, planning.span_of(copied, fact.ordinal), copied.extent), "chunk")
            self.check_launch(fact)

    def check_launch(self, fact: Launched) -> None:
        """No more reads than there may be, and none of what was before its table."""
        world, truth = self.world, self.world.truths[fact.incarnation.table]
        if sum(1 for _ in self.ledger.tables.readings()) > world.profile.running_max:
            raise Violation(f"more than {world.profile.running_max} reads are under way")
        if truth.incarnation == fact.incarnation.number and not truth.gone and fact.visible < truth.begun:
            raise Violation(f"{fact.incarnation} is read at {fact.visible} and began at {truth.begun}")

    def propose(self) -> Iterator[Durable]:
        world, rng, basis = self.world, self.world.rng, self.basis
        tables = basis.tables
        for aside in self.troubles.propose(basis.upto, world.time_ms):
            if self.ledger.tables.current(aside.incarnation) is None:
                raise Violation(f"{aside.incarnation} can't go on, and is over")
            yield aside
        for asked in self.requests.open(tables):
            yield reborn(asked, epoch=basis.epoch + 1, at=basis.upto)
        if rng.random() < world.profile.exclude:
            yield from forget(tables, world.db.tables, basis.upto)
        for name in world.db.tables:
            table = tables.get(name)
            if table is None or table.phase is TablePhase.GONE or (table.phase is TablePhase.RELEASED and rng.random() < 0.02):
                # A search may be late, and tell of a table that was found meanwhile.
                there, schema = world.as_of(name, basis.upto)
                if there and (world.shared is not None or rng.random() < 0.7):
                    target = world.target_of(name)
                    incarnation = Incarnation(name, basis.epoch + 1)
                    yield Found(incarnation, target, world.lakes[target].keyed, schema, basis.upto)
                    if rng.random() < world.profile.stuck:
                        yield SetAside(incarnation, basis.upto, world.time_ms, "the lake can't take it")
            elif table.phase is TablePhase.SPLITTING and table.copy is not None and table.copy.extent is not None:
                first = table.copy.bounds.last + 1
                at = int.from_bytes(table.copy.extent.least, "big") - 1
                if first > 1:
                    at = int.from_bytes(table.copy.bounds.upper(first - 1), "big")
                greatest = int.from_bytes(table.copy.extent.greatest, "big")
                uppers = []
                for _ in range(rng.randint(1, 3)):
                    if at < greatest:
                        at = min(greatest, at + rng.randint(1, 3))
                        uppers.append(packed(at))
                yield Split(table.incarnation, first, tuple(uppers), at >= greatest)

    def run(self, job: Job, *, tasks: int) -> None:
        self.busy, self.job = True, job
        plan, share_bytes_min = job.plan, self.world.share_bytes_min
        works = divide(plan, self.basis, self.relay, tasks=tasks, share_bytes_min=share_bytes_min)
        several = min(tasks, (plan.upto - plan.after) // share_bytes_min) > 1 and len(self.relay.cuts_between(plan.after, plan.upto)) > 1
        if several and sum(work.share.upto > plan.after for work in works) < 2:
            raise Violation(f"({plan.after}, {plan.upto}] is one task's, of {tasks}")
        job.writers = len(works)
        for writer, work in enumerate(works):
            low, high = work.share.after, work.share.upto
            names = [segment.name for segment in self.relay.covering(low, high)] if low < high else []
            committed = {one.offset: one for one in self.relay.committed(low, high)}
            self.world.counts["shared by parts"] += work.share.parts > 1
            self.world.spawn(None, self.log_task(job, writer, work, names, committed), "log")
