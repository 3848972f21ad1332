"""Which staged files may be deleted.

A failed job does not undo its files: a slow driver may still win an intent that names them. So a file is deleted only when its
number proves that this can't happen any more:

- a file of an epoch: the intent of *its* epoch exists and does not name it;
- a file of a chunk, of this driver: the read was given back, or the chunk was adopted from another read;
- a file of an older driver: an intent of a newer driver exists, so the older one can't win an intent.

No intent names the file of a rewrite (`maintenance`). It is published by the driver that launched the rewrite, and it may be deleted when
that can't happen any more:

- of this driver: the rewrite is over, so it was published or given up for good. Until the answer to a publish is known, it is not over;
- of an older driver: a newer one has committed to the table, on which the older one's publish gives up.

Whether it was published is asked of the lake last, as for all staged files: what a snapshot refers to stays.

Once deletable, always deletable. So a thread or a task may delete the file at any later time.

Files are found in two ways. The driver keeps those that tasks reported to it (`Leftovers`): that needs no listing of the lake, and costs
only the deletes. A sweep finds files that no report names (of tasks that failed or ran twice, of drivers that died). It lists the table's
folders and everything that the table's snapshots refer to. That cost grows with all that the table ever had, so a sweep is rare
(`sweep_due`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from snowmelt.commit.records import Intent, Staged, StagedFor, StagedName
from snowmelt.errors import Corrupt
from snowmelt.model.numbers import NO_GENERATION, EpochNumber, GenerationNumber


@dataclass(frozen=True, slots=True)
class RewritesUnderWay:
    """Of one driver."""

    newest: int = 0
    """The number of the newest that it has launched."""
    jobs: AbstractSet[int] = frozenset()
    """Those that are not over."""


NO_REWRITES: Final = RewritesUnderWay()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningView:
    """What a driver knows. A sweep reads in this order: the driver's own state at one instant, then what the lake refers to. Later
    events make none of the answers wrong: a file that is committed between the two is in `named` and not yet of a past epoch."""

    generation: GenerationNumber
    """This driver's generation."""
    epoch: EpochNumber
    """The newest intent's number."""
    intent_generation: int
    """The generation that wrote the newest intent."""
    jobs: int
    """The newest chunk job that this driver has launched."""
    under_way: AbstractSet[int]
    """Chunk jobs of this driver that are running or wait for adoption."""
    named: AbstractSet[str]
    """Files that an offered or open intent names (`Coordinator.named`, with the driver's own state). A sweep adds the files that a
    snapshot, tag or branch of the lake refers to, which it reads last."""
    rewrites: RewritesUnderWay = NO_REWRITES
    table_generation: GenerationNumber = NO_GENERATION
    """The driver that wrote the intent of our newest commit that the table is known to have; 0: not known."""


def deletable(name: StagedName, standing: CleaningView) -> bool:
    """Whether no later intent can name this staged file, and no rewrite can publish it."""
    if str(name) in standing.named:
        return False
    mine = name.generation == standing.generation
    if name.waits_for is StagedFor.REWRITE:
        over = name.number <= standing.rewrites.newest and name.number not in standing.rewrites.jobs
        return over if mine else name.generation < standing.table_generation
    if name.waits_for is StagedFor.EPOCH:
        return name.number <= standing.epoch
    if mine:
        return name.number <= standing.jobs and name.number not in standing.under_way
    return name.generation < standing.intent_generation


def may_be_named(name: str, view: CleaningView) -> bool:
    """Whether any file of a table is a staged one of ours that an intent or a rewrite may still bring."""
    try:
        return not deletable(StagedName.parse(name), view)
    except Corrupt:
        return False


class Leftovers:
    """Files that tasks reported to this driver, until an intent names them or no intent can.

    Must never happen. Files are reported that a won intent already names: a won intent must remove its files from here. So each task
    reports once, and before its files are offered.

    Memory. Files that are staged and not yet decided.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Staged]] = {}

    def reported(self, target: str, staged: Staged) -> None:
        """A task has staged files."""
        if staged.files:
            self._held[staged.files[0]] = (target, staged)

    def won(self, intent: Intent) -> None:
        """The files that an intent names belong to the lake from now on."""
        for entry in intent.entries:
            for name in entry.files:
                self._held.pop(name, None)

    def take(self, standing: CleaningView) -> list[tuple[str, Staged]]:
        """The files to delete now, by lake table. They are returned once; a sweep finds those whose deletion failed."""
        held = self._held.items()
        over = [first for first, (_, staged) in held if all(deletable(StagedName.parse(name), standing) for name in staged.files)]
        return [self._held.pop(first) for first in over]


def sweep_due(epoch: EpochNumber, *, last: int | None, every: int, failed: bool) -> bool:
    """Whether to search for files that no report names.

    `last`: the epoch of this driver's last sweep. The first is due as soon as this driver has an intent: before that, files of older
    drivers must stay. A later one is due after `every` epochs if a job failed meanwhile. Otherwise sweeps get rarer: the cost of a sweep
    grows with the number of epochs, so its cost per epoch stays constant.
    """
    if last is None:
        return True
    return epoch - last >= (every if failed else max(every, last // 2))
