"""The machines in a hostile world. A failing seed is a whole bug report: `./run sim --seeds 1 --from SEED`."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.sim.bugs import BUGS
from tests.sim.lake import Violation
from tests.sim.world import World, live

SEEDS = 1000
SEEDS_MAX = 10_000


@cache
def what_happens(seed: int) -> Counter[str]:
    return live(seed).counts


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_the_lake_is_the_source_whatever_happens(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            what_happens(seed)
        except Violation as violation:
            pytest.fail(f"{violation}\nagain: ./run sim --seeds 1 --from {seed}")


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = set()
    for seed in range(20):
        first, second = World(seed), World(seed)
        first.told, second.told = [], []
        first.run()
        second.run()
        assert first.told == second.told
        assert first.told
        traces.add(first.trace)
    assert len(traces) == 20


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with BUGS[name].planted() as driver:
        for seed in range(SEEDS_MAX):
            try:
                live((seed + BUGS[name].hint) % SEEDS_MAX, driver)
            except Violation:
                return
    pytest.fail(f"no oracle says anything in {SEEDS_MAX} seeds")


def test_every_danger_comes_up() -> None:
    """A world in which nothing happens proves nothing."""
    happened = sum((what_happens(seed) for seed in range(200)), start=Counter())
    for what in ("Adopted", "Reborn", "Truncated", "Recopied", "Reshaped", "Gone", "SetAside", "back", "fenced", "publish", "put aside"):
        assert happened[what] >= 5, (what, happened)
