"""Which mutants the simulated world must find, too: those of what it moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.mutants import Mutant

SEEDS: Final = 10_000
MOVED: Final = ("commit/", "driving/", "maintenance/", "model/sequence.py", "planning/", "relay/retention.py", "relay/takeover.py")
"""What of the source the simulated world moves, below `src/snowmelt`."""

NOT_SEEN: Final[dict[str, str]] = {
    "M83": "a second guard: `Relay.raise_floor` forgets the cuts below the floor, and `visible_cut` takes one of those that are held",
    "H11": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "H12": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "H13": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "M142": "newer runs are rewritten later, which costs reads, of which the world has no count",
    "M143": "a second guard: `publishing.misplaced` gives such a rewrite up",
    "M144": "what begins too early is given up at its publish; that it was in vain costs time, of which the world has none",
    "M145": "a second guard: `publishing.misplaced` gives a rewrite up whose inputs an epoch has emptied",
    "M151": "a second guard: a publish gives up where an output is gone, and too little comes between that look and the create",
    "M148": "the next look comes later; that the bucket has more runs until then costs reads, of which the world has no count",
    "M149": "more tasks run at once, which costs slots, of which the world has no count",
    "M150": "the pipeline catches up more slowly, which costs time, of which the world has none",
    "U7": "a second guard: `compaction.plan_merge` gives the output a level that no other run has",
    "U9": "a second guard: `expiry.plan_expiry` chooses no snapshot that is our newest",
    "U10": "nobody reads what a consumer holds; drivers find what they ask for in our newest snapshot, which stays",
    "U26": "drivers of the simulated world rescale no table",
    "U31": "drivers of the simulated world are asked for nothing",
    "U50": "it takes a create that lands when its table was forgotten and swept already, which is too rare in the simulated world",
    "U33": "drivers of the simulated world are asked for nothing",
    **dict.fromkeys(("D6", "D7", "D8", "D9"), "tables of the simulated world have no partitions, so none is ever owed a mark"),
}
"""Mutants of it that change nothing in the simulated world, by their ids, and why not. Their own tests hold them."""


def simulated(mutants: Iterable[Mutant]) -> list[Mutant]:
    return [mutant for mutant in mutants if mutant.file.startswith(MOVED) and mutant.id not in NOT_SEEN]
