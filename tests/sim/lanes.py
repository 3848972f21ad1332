"""The lanes of a driver in the simulated world: what it plans, which chunks it has read, and what it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snowmelt.commit.coordinator import Coordinator
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Staged
from snowmelt.driving.entries import emptied_by
from snowmelt.driving.steps import Machines
from snowmelt.errors import Fenced, SourceDrift
from snowmelt.planning import epochs as planning
from snowmelt.planning.asides import Requests, forget, reborn
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Durable, Found, Incarnation, Launched, Reported, SetAside, Split
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Relay
from tests.sim.store import Steps
from tests.sim.tasks import Job, Tasks, packed

if TYPE_CHECKING:
    from tests.sim.world import World


class Lanes(Tasks):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.machines: Machines | None = None
        """None until it is the newest, and has looked whether it still is."""
        self.jobs = 0
        self.staged: Job | None = None
        self.busy = False
        """A log job is under way."""
        self.requests = Requests()

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
            if self.busy or self.staged is not None or not self.coordinator.may_plan:
                continue
            if not proposals or rng.random() < 0.5:
                proposals = list(self.propose())
            upto = planning.choose_end(self.ledger.tables, self.relay, self.ledger.upto, world.profile.epoch_bytes)
            if rng.random() < 0.3:
                upto = world.earlier_cut(self.relay, self.ledger.upto, upto)
            plan = self.plan_epoch(upto, proposals)
            if plan.after == plan.upto and not plan.facts and rng.random() < 0.95:
                continue
            proposals = []
            for fact in plan.given_back:
                self.ledger.tables.apply(fact)
            job = Job(plan, rng.randint(1, 3))
            self.run(job)
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
        ledger = self.ledger
        return planning.plan_epoch(
            ledger.tables,
            self.relay,
            epoch=ledger.epoch + 1,
            generation=self.generation,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )

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
                fact = Reported(launch.incarnation, launch.ordinal, launch.job, nonce, offset, exact, read.schema, files, extent)
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
            copy = self.ledger.tables.copy_of(fact.incarnation)
            world.spawn(None, self.read_chunk(fact, planning.span_of(copy, fact.ordinal), copy.extent), "chunk")

    def propose(self) -> Iterator[Durable]:
        world, rng, tables = self.world, self.world.rng, self.ledger.tables
        yield from self.troubles.propose(self.ledger.upto, world.clock)
        for asked in self.requests.open(tables):
            yield reborn(asked, epoch=self.ledger.epoch + 1, at=self.ledger.upto)
        if rng.random() < world.profile.exclude:
            yield from forget(tables, world.db.tables, self.ledger.upto)
        for name in world.db.tables:
            table = tables.get(name)
            if table is None or table.phase is TablePhase.GONE:
                there, schema = world.as_of(name, self.ledger.upto)
                if there and rng.random() < 0.7:
                    target = world.target_of(name)
                    incarnation = Incarnation(name, self.ledger.epoch + 1)
                    yield Found(incarnation, target, world.lakes[target].keyed, schema, self.ledger.upto)
                    if rng.random() < world.profile.stuck:
                        yield SetAside(incarnation, self.ledger.upto, world.clock, "the lake can't take it")
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

    def run(self, job: Job) -> None:
        self.busy, self.job = True, job
        plan = job.plan
        segments = self.relay.covering(plan.low, plan.upto) if plan.low < plan.upto else []
        edges = sorted({plan.low, plan.upto, *(self.world.earlier_cut(self.relay, plan.low, plan.upto) for _ in range(job.writers - 1))})
        while len(edges) <= job.writers:
            edges.append(plan.upto)
        rules = {table.incarnation.table: plan.rule(table) for table in self.ledger.tables}
        rules.update(plan.rules)
        emptied = emptied_by(plan, self.ledger, self.relay)
        for writer in range(job.writers):
            names = [segment.name for segment in segments]
            low, high = edges[writer], edges[writer + 1]
            committed = {one.offset: one for one in self.relay.committed(low, high)}
            self.world.spawn(None, self.log_task(job, writer, low, high, names, rules, committed, emptied if writer == 0 else ()), "log")
