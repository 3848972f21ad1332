"""Bugs that were thought of, planted in the machines or in a service, to see that an oracle catches each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from snowmelt.model.fluss import Bucket
from snowmelt.tiering import fence, round_steps, rounds
from snowmelt.tiering.fence import Base, KnownToFluss, LakeView, PublishRound, RoundInLake, Start, Tiered, Untold
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.round_steps import BucketRead, CommitPrepared, Failed, Look, Looked, Outcome, Step, Told
from snowmelt.tiering.rounds import Round, RoundState, RoundTrigger
from tests.sim.store import Steps
from tests.sim_tiering.service import Running, Service

JUDGES, STARTS, STAGES, TAKES = fence.judge, fence.decide_start, Round._stage, Round.take


def without_base(base: Base, path: str, lake: LakeView) -> PublishRound | RoundInLake:
    """Only its own snapshot is looked for; others of the tiering user are taken for nobody's business."""
    ours = [tiered for tiered in lake.tiered if tiered.path == path]
    return RoundInLake(ours[0].snapshot) if ours else PublishRound(lake.latest)


def without_a_look_back(base: Base, path: str, lake: LakeView) -> PublishRound | RoundInLake:
    """A lost answer is taken for a lost request."""
    ours = tuple(tiered for tiered in lake.tiered if tiered.path != path)
    return JUDGES(base, path, replace(lake, tiered=ours))


def without_missing_snapshots(base: Base, path: str, lake: LakeView) -> PublishRound | RoundInLake:
    """What is not to be found is taken for not there."""
    return JUDGES(base, path, replace(lake, whole_from=1))


def without_identity(base: Base, path: str, lake: LakeView) -> PublishRound | RoundInLake:
    same = replace(lake, identity=base.identity, latest=max(lake.latest, base.snapshot), tiered=lake.tiered, schema=base.schema)
    verdict = JUDGES(base, path, same)
    return PublishRound(lake.latest) if isinstance(verdict, PublishRound) else verdict


def from_fluss(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> Start | Untold:
    return Start(Base(lake.identity, lake.schema, lake.latest), Offsets(table_id, known.ends if known is not None else {}))


def from_the_beginning(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> Start | Untold:
    """A lake table without a tiered snapshot is taken for one that was never tiered."""
    return STARTS(table_id, replace(lake, rows=False), offsets, known if lake.newest is not None else None)


def moved_alone(machine: Round) -> Offsets:
    return Offsets(machine.table_id, machine._ends)


def believes(machine: Round, outcome: Outcome) -> None:
    """What Fluss wrote is not read back."""
    if isinstance(outcome, CommitPrepared) and machine.state is RoundState.CHECKED:
        machine._path = outcome.path
        machine._move(RoundTrigger.PREPARED)
    else:
        TAKES(machine, outcome)


def rows_alone(machine: Round, reads: Sequence[BucketRead]) -> None:
    """Buckets that moved without rows are forgotten."""
    starts: Mapping[Bucket, int] = machine._start.offsets.ends if machine._start is not None else {}
    STAGES(machine, [read if read.messages else replace(read, reached=starts.get(read.bucket)) for read in reads])


class FailsLate(Service):
    """Who does not hear that its report was taken says that it failed."""

    def go(self, running: Running) -> Steps[None]:
        yield from super().go(running)
        if running.round.state is RoundState.FINISHED:
            yield from self.report(running, False, False)


class LooksAtTheLakeFirst(Service):
    def perform(self, running: Running, step: Step) -> Steps[Outcome]:
        if not isinstance(step, Look):
            return (yield from super().perform(running, step))
        world = self.world
        lake = yield from world.faulty.read(lambda: world.lake(running.table).view())
        offsets = None if lake.newest is None else world.offsets(running.table, lake.newest)
        known = yield from world.faulty.read(lambda: self.known(running.round.table_id))
        return Looked(lake, offsets, known)


class JudgesOnce(Service):
    """Whether it may be published is asked before the first try, and not again."""

    def judge(self, step: Any, running: Running) -> PublishRound | RoundInLake:
        lake = self.world.lake(running.table)
        if running.owner in self.world.judged:
            return without_base(step.base, step.path, lake.view())
        self.world.judged.add(running.owner)
        return super().judge(step, running)


class KeepsNothing(Service):
    """Fluss is not told what to keep."""

    def tell(self, running: Running, tiered: Tiered, keep_from: int | None) -> Steps[Told | Failed]:
        return (yield from super().tell(running, tiered, None))


class LeavesFiles(Service):
    def perform(self, running: Running, step: Step) -> Steps[Outcome]:
        if isinstance(step, round_steps.Clean):
            yield
            return round_steps.Cleaned()
        return (yield from super().perform(running, step))


def forgets_it_was_unclear(machine: Round, outcome: Outcome) -> None:
    TAKES(machine, outcome)
    machine._unclear = False


@dataclass(frozen=True)
class Bug:
    service: type[Service] = Service
    patches: tuple[tuple[Any, str, Any], ...] = field(default=())
    hint: int = 0
    """A seed near which it was seen: the search begins there."""

    @contextmanager
    def planted(self) -> Iterator[type[Service]]:
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield self.service


BUGS = {
    "no base check": Bug(patches=((fence, "judge", without_base),)),
    "base checked before instead of inside each try": Bug(JudgesOnce),
    "start offsets taken from Fluss": Bug(patches=((rounds, "decide_start", from_fluss),)),
    "no tiered snapshot taken for never tiered": Bug(patches=((rounds, "decide_start", from_the_beginning),)),
    "missing snapshots taken for others'": Bug(patches=((fence, "judge", without_missing_snapshots),), hint=1972),
    "lake table not known again": Bug(patches=((fence, "judge", without_identity),)),
    "lost reply of a lake commit taken for a lost request": Bug(patches=((fence, "judge", without_a_look_back),)),
    "PREPARE of the buckets that moved alone": Bug(patches=((Round, "_offsets", moved_alone), (Round, "take", believes)), hint=8031),
    "buckets that moved without rows forgotten": Bug(patches=((Round, "_stage", rows_alone),)),
    "failed report after a finished one": Bug(FailsLate),
    "lake looked at before Fluss": Bug(LooksAtTheLakeFirst),
    "files deleted whose commit may land late": Bug(patches=((Round, "take", forgets_it_was_unclear),)),
    "files of a round that came to nothing left": Bug(LeavesFiles),
    "Fluss not told which offsets to keep": Bug(KeepsNothing),
}
