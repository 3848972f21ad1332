"""A driver in the simulated world: the moving part. It moves the steps that ship (`snowmelt.driving`), and does what they ask for.

Each of its actors is a generator, one step between two yields; it may be paused, or end, between any two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.commit import publish
from snowmelt.commit.cleaning import NO_REWRITES
from snowmelt.commit.listeners import Period
from snowmelt.commit.publish import LastCommit
from snowmelt.commit.records import Reshape, Staged
from snowmelt.driving import boot, committing, letting_go, listening
from snowmelt.driving.boot import CheckTargets, FindStart, Inspect, MakeHead, TakeGeneration
from snowmelt.driving.committing import CommitEntries, Learn, StagedJob, TellListeners, WinIntent
from snowmelt.driving.entries import Describe, LogReport, TargetNow, TargetWork
from snowmelt.driving.letting_go import (
    AskUnderWay,
    DeleteFiles,
    Discard,
    DropAside,
    DropRecords,
    DropSegments,
    Forget,
    IsTimeToSumUp,
    ListReferenced,
    ListStaged,
    SweepFiles,
    SweepSegments,
)
from snowmelt.driving.listening import MakeTags, Notify
from snowmelt.driving.steps import DONES, Get, Newest, NewestGeneration, Put, Request, Trim, UnderWay
from snowmelt.errors import Fenced, InvariantBroken
from snowmelt.planning.asides import Requests, Troubles
from snowmelt.planning.tables import TablePhase
from snowmelt.relay import takeover
from snowmelt.relay.takeover import Waiting
from tests.sim.commits import Commits
from tests.sim.lake import LakeTable, Violation
from tests.sim.metadata import Metadata
from tests.sim.noticing import HOOK, Caller
from tests.sim.store import Steps, move
from tests.sim.tasks import Job, aside
from tests.sim.upkeep import Upkeep

if TYPE_CHECKING:
    from tests.sim.world import World


class Driver(Commits):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.dead = False
        self.paused_until = 0
        self.metadata = Metadata(world)
        self.caller = Caller(self)
        self.upkeep = None if world.care is None else Upkeep(self, world.care)

    # ---- what steps ask for

    def act(self, request: Request[Any]) -> Steps[Any]:
        world, store = self.world, self.world.store
        match request:
            case Newest(kind):
                return (yield from store.newest(kind.name))
            case Get(kind, number):
                return (yield from store.get(kind.name, number))
            case Put(kind, number, value):
                if kind is DONES:
                    world.claim_watermarks(number, self.ledger.decide_watermarks())
                return (yield from store.settle(kind.name, number, value))
            case Trim(kind, below):
                listed = yield from world.faulty.read(lambda: sorted(n for name, n in store.records if name == kind.name))
                yield from store.delete([(kind.name, number) for number in listed if number < below])
            case NewestGeneration():
                return (yield from store.newest("generation"))
            case Inspect():
                return True
            case TakeGeneration():
                yield from self.take_generation()
                if world.in_folder:
                    yield from self.take_folder()
                return self.generation
            case FindStart(relay):
                self.loaded_as = world.generation
                if relay.newest is not None:
                    self.captured, _ = yield from self.read_data(relay.newest.name)
            case CheckTargets(ledger):
                for target, lake in world.lakes.items():
                    marker = yield from world.faulty.read(lake.newest_commit)
                    found = None if marker is None else LastCommit(*marker, 0)
                    publish.check_start(target, found, epoch=ledger.epoch, identity=ledger.identity)
            case Describe(works):
                found = {}
                for target in world.rng.sample(sorted(works), len(works)):
                    found[target] = yield from self.describe(target, works[target])
                return found
            case WinIntent(intent):
                return (yield from store.put_if_absent("intent", intent.epoch, intent))
            case CommitEntries(intent, works):
                return (yield from self.commit_entries(intent, [work.entry for work in works]))
            case TellListeners(step):
                return (yield from move(listening.hear(Period.HOUR, (HOOK,), step), self.act))
            case Notify(notice):
                return self.caller.give(notice)
            case MakeTags(owed):
                return (yield from world.tags.make(owed, self.ledger.epoch))
            case AskUnderWay():
                jobs = [self.job if self.busy else None, self.staged]
                rewrites = NO_REWRITES if self.upkeep is None else self.upkeep.lane.under_way
                return UnderWay([job.plan.low for job in jobs if job is not None], self.jobs, rewrites)
            case DropAside(numbers):
                for number in numbers:
                    yield from store.delete_data(aside(number))
            case DropRecords(numbers):
                yield from store.delete([("relay", number) for number in numbers])
            case DropSegments(segments):
                for sealed in segments:
                    yield from store.delete_data(sealed.name)
            case Discard(over):
                for target, staged in over:
                    # By a thread, which may be late and may outlive the driver.
                    world.spawn(None, self.discard(target, staged.files), "discard")
            case SweepFiles(standing):
                world.sweep(self, standing)
            case IsTimeToSumUp():
                self.metadata.time_to_sum_up |= (due := world.rng.random() < world.profile.trim)
                return due
            case SweepSegments(relay, done):
                for name, number in list(world.segment_numbers.items()):
                    if name in store.data and relay.leftover(number, name, done):
                        yield from store.delete_data(name)
            case Learn(intent):
                self.metadata.check_learnt(self.ledger, intent, self.generation)
                if self.upkeep is not None:
                    self.upkeep.opened(intent)
            case Forget():
                self.metadata.check_done(self.ledger)
                if self.upkeep is not None:
                    self.upkeep.done()
            case MakeHead():
                return None
            case _:
                raise AssertionError(f"nothing is known of {request}")
        return None

    def act_in_lake(self, request: Request[Any]) -> Steps[Any]:
        """For sweeps."""
        yield
        match request:
            case ListStaged(target):
                return [name for name in self.world.lakes[target].storage if name.startswith("sm-")]
            case ListReferenced(target):
                return self.world.lakes[target].referenced()
            case DeleteFiles(target, names):
                yield from self.discard(target, names)
        return None

    def describe(self, target: str, work: TargetWork) -> Steps[TargetNow]:
        lake: LakeTable = self.world.lakes[target]
        yield
        shape = f"shape {work.schema}".encode()
        change = None if work.schema is None or lake.shape == shape else Reshape(lake.schema, lake.schema + 1, shape)
        return TargetNow(uuid=lake.uuid, buckets=lake.buckets, schema=lake.schema, base=lake.newest, preface=(), change=change)

    def discard(self, target: str, names: Any) -> Steps[None]:
        yield
        self.world.lakes[target].delete(names)

    # ---- beginning

    def boot(self) -> Steps[None]:
        world = self.world
        self.machines = yield from move(boot.boot(), self.act)
        assert self.machines is not None
        if self.loaded_as > self.generation:
            raise Violation(f"driver {self.generation} begins, and {self.loaded_as} had begun before its records were loaded")
        self.troubles = Troubles(self.ledger.tables)
        if world.rng.random() < world.profile.ask:
            self.requests = Requests(table.incarnation.table for table in self.ledger.tables if table.phase is TablePhase.SET_ASIDE)
        yield from self.tidy()
        yield from move(listening.remind(self.ledger, (HOOK,)), self.act)
        world.spawn(self, self.capture(), "capture")
        world.spawn(self, self.plan(), "plan")
        world.spawn(self, self.commit(), "commit")
        if self.upkeep is not None:
            self.upkeep.begin()
            world.spawn(self, self.upkeep.run(), "upkeep")

    def tidy(self) -> Steps[None]:
        """What capture does before it starts."""
        listed = [int(name.removeprefix("held-")) for name in list(self.world.store.data) if name.startswith("held-")]
        yield from self.act(DropAside(self.relay.needless(listed)))
        yield from move(letting_go.sweep_log(self.relay, self.ledger.done_segment), self.act)

    def take_generation(self) -> Steps[None]:
        world, store = self.world, self.world.store
        nonce = world.nonce()
        while True:
            newest = yield from store.newest("generation")
            if (yield from store.settle("generation", newest + 1, nonce)) == nonce:
                break
        self.generation = newest + 1
        world.say(f"generation {self.generation}")

    def take_folder(self) -> Steps[None]:
        """The lock of the log's folder: a process has it until it ends, however long it is paused."""
        world, store = self.world, self.world.store
        began, told_ms, took_another = world.clock, 0, False
        while world.folder_owner is not None and not world.folder_owner.dead:
            newest = (yield from store.newest("generation")) == self.generation
            waited_ms = (world.clock - began) * 1000
            match self.decide_wait(waited_ms=waited_ms, told_ms=told_ms, newest=newest, took_another=took_another):
                case Waiting.LOOK:
                    yield
                case Waiting.ANOTHER:
                    yield from self.take_generation()
                    took_another = True
                case Waiting.TELL:
                    told_ms = waited_ms
                    world.counts["waited for a paused driver"] += 1
                case Waiting.FENCED:
                    raise Fenced("a newer driver runs this pipeline")
        world.folder_owner = self

    def decide_wait(self, **waiting: Any) -> Waiting:
        """For whoever plants a bug here."""
        return takeover.decide_wait(**waiting)

    # ---- commit

    def commit(self) -> Steps[None]:
        assert self.machines is not None
        while True:
            yield
            yield from self.make_room()
            if (yield from move(committing.step(self.machines, self.leftovers), self.act)):
                continue
            if self.staged is not None and self.relay.newest is not None:
                yield from self.offer(self.staged)
                self.staged = None

    def make_room(self) -> Steps[None]:
        """The log's disk is full: a read is given back that too much of it is held for, at any moment, and nothing waits for an epoch."""
        full = self.world.full
        if full is not None and full.random() < 0.2:
            assert self.machines is not None
            for reading in list(self.ledger.tables.readings())[:1]:
                self.give_back(reading.launch, "the relay is full")
            yield from move(letting_go.let_go_of_log(self.machines), self.act)
            yield from self.act(SweepFiles((yield from move(letting_go.stand(self.machines), self.act))))

    def offer(self, job: Job) -> Steps[bool]:
        assert self.machines is not None
        reports = [LogReport(message, {}) for message in job.messages]
        staged = StagedJob(job.plan, job.writers, reports)
        offering = committing.offer(self.machines, staged, self.files_of, nonce=self.world.nonce(), now_ms=self.world.time_ms)
        refused = yield from move(offering, self.act)
        self.hope()
        return not refused

    def files_of(self, nonce: str) -> Staged:
        """What the read of a nonce left behind."""
        reports = (reading.report for reading in self.ledger.tables.readings() if reading.report is not None)
        for report in reports:
            if report.nonce == nonce:
                return Staged(report.files, (), 0)
        raise InvariantBroken("a read is adopted that nobody reported")
