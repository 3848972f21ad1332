"""Which staged files may be deleted.

A failed job is no rollback: its files may still be named by an intent that a slow driver wins. So a file goes only when its
number says that this can't happen any more:

- an epoch's, when the intent of *its* epoch exists and does not name it;
- a chunk's, of this driver, when the read was given back or the chunk was adopted from another read;
- of an older driver, when an intent of a newer one exists: from then on the older can win none.

What may go may go for ever, so that it can be deleted at any later time, by a thread or a task.

Files are found in two ways. What tasks reported to this driver it follows by itself (`Leftovers`): no look into the lake is needed,
and the cost is that of what is deleted. What no report names (of tasks that failed or ran twice, of drivers that died) is found by a
sweep: a listing of the table's folders, and of all that its snapshots refer to. That costs what the table has ever had, so it comes
rarely (`sweep_due`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from snowmelt.commit.records import Intent, Staged, StagedName


@dataclass(frozen=True, slots=True)
class CleaningView:
    """What a driver knows. A sweep takes it in this order: the driver's own state at one instant, then what the lake refers to. What
    happens later makes none of the answers wrong; a file that was committed between the two is in `named` and not yet of a past epoch."""

    generation: int
    """The driver's own."""
    epoch: int
    """The newest intent's number."""
    intent_generation: int
    """Who wrote it."""
    jobs: int
    """The newest chunk job that this driver has launched."""
    under_way: AbstractSet[int]
    """Of those jobs the ones that are running or wait for adoption."""
    named: AbstractSet[str]
    """Files that an intent which is asked for or not done names (`Coordinator.named`, with the driver's own state). A sweep adds those
    that a snapshot, tag or branch of the lake refers to, which are read last."""


def deletable(name: StagedName, standing: CleaningView) -> bool:
    """Whether a staged file can be named by no later intent."""
    if str(name) in standing.named:
        return False
    if not name.chunk:
        return name.number <= standing.epoch
    if name.generation == standing.generation:
        return name.number <= standing.jobs and name.number not in standing.under_way
    return name.generation < standing.intent_generation


class Leftovers:
    """Files that tasks reported to this driver, until an intent names them or none can any more.

    Forbidden orders. Files are reported that a won intent names: whatever it names must have left here by it, so that each task is
    heard once, and before its files are offered.

    Memory. What is staged and not yet decided about.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Staged]] = {}

    def reported(self, target: str, staged: Staged) -> None:
        """A task has left files behind."""
        if staged.files:
            self._held[staged.files[0]] = (target, staged)

    def won(self, intent: Intent) -> None:
        """What an intent names is the lake's, from now on and for ever."""
        for entry in intent.entries:
            for name in entry.files:
                self._held.pop(name, None)

    def take(self, standing: CleaningView) -> list[tuple[str, Staged]]:
        """What is to be deleted now, by lake table. It is not given out twice: what is not deleted after all a sweep finds."""
        held = self._held.items()
        over = [first for first, (_, staged) in held if all(deletable(StagedName.parse(name), standing) for name in staged.files)]
        return [self._held.pop(first) for first in over]


def sweep_due(epoch: int, *, last: int | None, every: int, failed: bool) -> bool:
    """Whether files are to be looked for that no report names.

    `last`: the epoch of this driver's last sweep. The first comes as soon as this driver has an intent: before, what older ones left
    may not go. Later ones come after `every` epochs if a job has failed meanwhile, and otherwise more and more rarely: what a sweep
    costs grows with the epochs there were, and so its share of an epoch does not.
    """
    if last is None:
        return True
    return epoch - last >= (every if failed else max(every, last // 2))
