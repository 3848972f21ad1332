"""Which mutants the simulated world must find, too: those of what it moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.mutants import Mutant

SEEDS: Final = 10_000
MOVED: Final = ("commit/", "driving/", "model/sequence.py", "planning/", "relay/retention.py", "relay/takeover.py")
"""What of the source the simulated world moves, below `src/snowmelt`."""

NOT_SEEN: Final[dict[str, str]] = {
    "M83": "a second guard: `Relay.raise_floor` forgets the cuts below the floor, and `visible_cut` takes one of those that are held",
    "H11": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "H12": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "H13": "the epochs are shorter, and each is right; that there are more of them costs time, of which the world has none",
    "M151": "drivers of the simulated world rewrite no files, so no staged file waits for a rewrite",
    "M152": "drivers of the simulated world rewrite no files, so no staged file waits for a rewrite",
    **dict.fromkeys(("D6", "D7", "D8", "D9"), "tables of the simulated world have no partitions, so none is ever owed a mark"),
}
"""Mutants of it that change nothing in the simulated world, by their ids, and why not. Their own tests hold them."""


def simulated(mutants: Iterable[Mutant]) -> list[Mutant]:
    return [mutant for mutant in mutants if mutant.file.startswith(MOVED) and mutant.id not in NOT_SEEN]
