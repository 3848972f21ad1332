"""Which staged files may be deleted.

A failed job is no rollback: its files may still be named by an intent that a slow driver wins. So a file goes only when its
number says that this can't happen any more:

- an epoch's, when the intent of *its* epoch exists and does not name it;
- a chunk's, of this driver, when the read was given back or the chunk was adopted from another read;
- of an older driver, when an intent of a newer one exists: from then on the older can win none.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from snowmelt.commit.records import StagedName


@dataclass(frozen=True, slots=True)
class Standing:
    """What a driver knows. It is taken in this order: its own state at one instant, then what the lake refers to. What happens later
    makes none of the answers wrong; a file that was committed between the two is in `named` and not yet of a past epoch."""

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
    """Files that an intent which is asked for or not done names (`Coordinator.named`, with the driver's own state), and those that a
    snapshot, tag or branch of the lake refers to, which are read last."""


def deletable(name: StagedName, standing: Standing) -> bool:
    """Whether a staged file can be named by no later intent."""
    if str(name) in standing.named:
        return False
    if not name.chunk:
        return name.number <= standing.epoch
    if name.generation == standing.generation:
        return name.number <= standing.jobs and name.number not in standing.under_way
    return name.generation < standing.intent_generation
