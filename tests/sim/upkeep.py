"""A driver's maintenance in the simulated world. It moves the lane, the plans and the judgements that ship, and does what they ask for, by
requests that are lost or come late, and by tasks that may be slow and may outlive the driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from snowmelt.commit.cleaning import CleaningView, may_be_named
from snowmelt.commit.publish import LastCommit
from snowmelt.commit.records import Intent, Staged, StagedFor, StagedName
from snowmelt.driving import letting_go
from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.maintenance import expiry, publishing
from snowmelt.maintenance.compaction import name_place
from snowmelt.maintenance.files import Rewrite
from snowmelt.maintenance.lane import MaintenanceLane, disturbed_by, touched_by
from snowmelt.maintenance.lane_steps import (
    DeleteOrphans,
    DiscardFiles,
    ExpireSnapshots,
    FilesDiscarded,
    FilesRewritten,
    LaneOutcome,
    LaneStepFailed,
    LookAtFiles,
    OrphansDeleted,
    PublishRewrites,
    RewriteFiles,
    RewritesGivenUp,
    RewritesPublished,
    SnapshotsExpired,
    see_files,
)
from snowmelt.maintenance.publishing import RewritePast
from snowmelt.planning.tables import TablePhase
from tests.sim.lake import LakeTable, Part, Row, Snapshot
from tests.sim.store import Steps, move

if TYPE_CHECKING:
    from tests.sim.care import Care
    from tests.sim.driver import Driver

ThreadStep = LookAtFiles | PublishRewrites | DiscardFiles | ExpireSnapshots


class Upkeep:
    def __init__(self, driver: Driver, care: Care) -> None:
        self.driver = driver
        self.care = care
        self.world = driver.world
        self.lane = MaintenanceLane(slots=care.slots)
        self.ended: list[LaneOutcome] = []
        self.busy = False
        self.wanted: set[str] = set()
        self.intent: Intent | None = None

    # ---- epochs

    def begin(self) -> None:
        self.take_tables()
        if self.driver.ledger.open is not None:
            self.opened(self.driver.ledger.open)

    def opened(self, intent: Intent) -> None:
        self.intent = intent
        self.lane.opened(disturbed_by(intent))

    def done(self) -> None:
        intent, self.intent = self.intent, None
        if intent is None:
            return
        touched = touched_by(intent, self.spread(intent) if intent.generation == self.driver.generation else None)
        self.lane.done(touched, now_ms=self.world.time_ms)
        self.take_tables()
        self.add(touched)

    def spread(self, intent: Intent) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for entry in intent.entries:
            lake = self.world.lakes[entry.target]
            places = (name_place((), lake.bucket_of(lake.storage.get(name, ()))) for name in entry.files)
            found[entry.target] = Counter(places)
        return found

    def take_tables(self) -> None:
        resting = (TablePhase.SET_ASIDE, TablePhase.GONE)
        ledger = self.driver.ledger
        self.wanted = {table.target for table in ledger.tables if table.phase not in resting}
        self.lane.keep(self.wanted)
        self.add(sorted(target for target in self.wanted if target in ledger.last_commits))

    def add(self, targets: Iterable[str]) -> None:
        for target in targets:
            if target in self.wanted and target not in self.lane:
                self.lane.add(target, self.care.rules, now_ms=self.world.time_ms)

    # ---- turns

    def run(self) -> Steps[None]:
        """Beside the driver's loop."""
        world = self.world
        while True:
            yield
            for outcome in self.ended:
                self.lane.apply(outcome, now_ms=world.time_ms)
            self.ended.clear()
            self.lane.pause(self.care.pauses())
            for step in self.lane.next_steps(world.time_ms, threads=0 if self.busy else 1):
                match step:
                    case RewriteFiles():
                        world.spawn(None, self.rewrite(step), "rewrite")
                    case DeleteOrphans(target):
                        assert self.driver.machines is not None
                        standing = yield from move(letting_go.stand(self.driver.machines), self.driver.act)
                        view = letting_go.of_table(standing, self.driver.ledger, target)
                        world.spawn(None, self.search(target, view, world.time_ms - self.care.rules.orphan_age_ms), "search")
                    case _:
                        self.busy = True
                        world.spawn(self.driver, self.act(step), "maintenance")

    def act(self, step: ThreadStep) -> Steps[None]:
        """What a thread of the driver does, one step after the other."""
        outcome: LaneOutcome
        try:
            self.care.may_fail()
            match step:
                case LookAtFiles(target):
                    files = yield from self.world.faulty.read(self.world.lakes[target].files)
                    outcome = see_files(target, files, self.care.rules.compaction)
                case PublishRewrites():
                    outcome = yield from self.publish(step)
                case DiscardFiles(target, staged):
                    for one in staged:
                        yield from self.driver.discard(target, one.files)
                    outcome = FilesDiscarded(target)
                case ExpireSnapshots(target):
                    outcome = yield from self.expire(target)
        except InvariantBroken:
            raise
        except SnowmeltError:
            outcome = LaneStepFailed(step.target)
        self.busy = False
        self.ended.append(outcome)

    # ---- rewrites

    def rewrite(self, step: RewriteFiles) -> Steps[None]:
        """A job. It knows nothing of its driver but where to report to."""
        lake, staged = self.world.lakes[step.target], []
        for work in [work.rewrite for work in step.works]:
            while True:
                yield from self.care.takes_time()
                parts = inputs_of(lake, work)
                if parts is None:
                    self.ended.append(LaneStepFailed(step.target))
                    return
                files, rows = [], self.merge(work, parts, lake)
                prefix = StagedName(self.driver.generation, StagedFor.REWRITE, step.job, self.world.nonce(), step.target)
                for start in range(0, len(rows), work.file_bytes):
                    lake.write(f"{prefix}.{start}", rows[start : start + work.file_bytes])
                    files.append(f"{prefix}.{start}")
                    yield
                if not self.care.runs_again():
                    break
            if self.care.task_fails():
                self.ended.append(LaneStepFailed(step.target))
                return
            staged.append(Staged(tuple(files), (), len(rows)))
        yield from self.care.takes_time()
        self.ended.append(FilesRewritten(step.target, tuple(staged)))

    def merge(self, work: Rewrite, parts: Sequence[Part], lake: LakeTable) -> tuple[Row, ...]:
        if not lake.keyed:
            return tuple(row for part in parts for row in part.rows)
        best: dict[tuple[str, int], Row] = {}
        for row in (row for part in parts for row in part.rows):
            if row.key not in best or wins(row, best[row.key]):
                best[row.key] = row
        return tuple(row for _, row in sorted(best.items()) if row.value is not None or not work.drops_deletes)

    def publish(self, step: PublishRewrites) -> Steps[RewritesPublished | RewritesGivenUp | LaneStepFailed]:
        world, lake = self.world, self.world.lakes[step.target]
        works = [work.rewrite for work in step.works]
        identity = " ".join(name for work, one in zip(works, step.staged, strict=True) for name in (*work.inputs, "into", *one.files))
        since = min(work.snapshot for work in works)
        outputs = {name for one in step.staged for name in one.files}
        yield from self.care.at_publish(self.driver, lake)
        while True:
            uuid, on, parts, past = yield from world.faulty.read(
                lambda: (
                    lake.uuid,
                    lake.newest,
                    lake.snapshots[lake.newest].parts,
                    publishing.look_back(lake.notes(), since=since, rewrite=identity),
                )
            )
            if uuid != works[0].identity or not on:
                return RewritesGivenUp(step.target)
            if past.done is not None:
                return RewritesPublished(step.target)
            if not past.whole and not (yield from world.faulty.read(lake.referenced)).isdisjoint(outputs):
                return RewritesPublished(step.target)
            there = (yield from world.faulty.read(lambda: outputs <= lake.storage.keys())) and self.may_publish(step, parts, past)
            if not there:
                return RewritesGivenUp(step.target)
            if past.hidden:
                return LaneStepFailed(step.target)
            marker = carried(past.marker)
            if (yield from world.faulty.call(lambda: self.care.publish(self.driver.generation, step, on, marker, identity))):  # noqa: B023
                return RewritesPublished(step.target)

    def may_publish(self, step: PublishRewrites, parts: Sequence[Part], past: RewritePast) -> bool:
        lake = self.world.lakes[step.target]
        buckets = {work.rewrite.bucket for work in step.works}
        for work, one in zip(step.works, step.staged, strict=True):
            there = [lake.placed(part) for part in parts if lake.bucket_of(part.rows) == work.rewrite.bucket]
            made = [lake.placed(Part(name, lake.storage.get(name, ()), work.rewrite.level)) for name in one.files]
            if publishing.misplaced(work.rewrite, made, there):
                return False
        names = [part.name for part in parts if lake.bucket_of(part.rows) in buckets]
        return not publishing.fenced(past, names, self.driver.generation)

    # ---- expiry

    def expire(self, target: str) -> Steps[SnapshotsExpired]:
        lake, rules = self.world.lakes[target], self.care.rules.expiry
        history = yield from self.world.faulty.read(lake.history)
        numbers = expiry.plan_expiry(history, rules, now_ms=self.world.time_ms)
        removed = 0
        if numbers:
            removed = yield from self.remove(lake, numbers, history.identity)
        left = len(history.snapshots) - removed
        return SnapshotsExpired(target=target, removed=removed, left=left, limited=removed == rules.at_once_max)

    def remove(self, lake: LakeTable, numbers: Sequence[int], identity: str) -> Steps[int]:
        """The snapshots go first, then what only they named. The driver may end between any two."""
        read = self.world.faulty.read
        history = yield from read(lake.history)
        if history.identity != identity:
            return 0
        there = [facts.number for facts in history.snapshots]
        count = expiry.count_removable(history, numbers)
        found: list[Snapshot] = yield from read(lambda: [one for at in there[: count + 1] if (one := lake.snapshots.get(at))])
        if not count or len(found) <= count:
            # Another program expires them.
            return 0
        going = expiry.GoingFiles()
        for snapshot in found[1:]:
            going.commit(snapshot.number, brought=snapshot.brought, removed=dict.fromkeys(snapshot.removed, 1))
        for number in there[:count]:
            yield from read(lambda number=number: self.care.expire(lake, number))  # type: ignore[misc]
        tags = yield from read(lambda: {tag.number: tag for tag in lake.tags.values()})
        for number in going.tags_to_ask([tag for tag in tags if tag < there[count]]):
            going.keep([part.name for part in tags[number].parts])
        for name in list(going):
            yield from read(lambda name=name: lake.delete([name]))  # type: ignore[misc]
        return count

    # ---- orphans

    def search(self, target: str, view: CleaningView, before_ms: int) -> Steps[None]:
        """A task."""
        lake = self.world.lakes[target]
        yield from self.care.takes_time()
        old = [name for name in lake.storage if lake.written[name] < before_ms and not may_be_named(name, view)]
        yield
        known = lake.referenced()
        yield from self.care.takes_time()
        self.world.counts["orphan"] += len(doomed := [name for name in old if name not in known])
        lake.delete(doomed)
        self.ended.append(LaneStepFailed(target) if self.care.task_fails() else OrphansDeleted(target))


def inputs_of(lake: LakeTable, work: Rewrite) -> list[Part] | None:
    """Where they were seen, or else where they are now. None: one is gone."""
    seen = lake.snapshots.get(work.snapshot) or lake.snapshots[lake.newest]
    there = {part.name: part for part in seen.parts}
    found = [there[name] for name in work.inputs if name in there and name in lake.storage]
    return found if len(found) == len(work.inputs) and lake.uuid == work.identity else None


def wins(row: Row, other: Row) -> bool:
    """Of two rows of a key, the second of which is in an older file."""
    return row.sequence >= other.sequence


def carried(marker: LastCommit | None) -> tuple[int, str] | None:
    return None if marker is None else (marker.epoch, marker.identity)
