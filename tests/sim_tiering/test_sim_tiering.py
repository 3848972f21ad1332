"""Rounds in a hostile world. A failing seed is a whole bug report: `tests.sim_tiering.world.live(SEED)`."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.sim.lake import Violation
from tests.sim_tiering.bugs import BUGS
from tests.sim_tiering.world import live

SEEDS = 2000
SEEDS_MAX = 10_000


@cache
def what_happens(seed: int) -> Counter[str]:
    return live(seed).counts


@pytest.mark.parametrize("first", range(0, SEEDS, 200))
def test_the_lake_is_the_fluss_table_whatever_happens(first: int) -> None:
    for seed in range(first, first + 200):
        try:
            what_happens(seed)
        except Violation as violation:
            pytest.fail(f"{violation}\nseed {seed}")


def test_the_same_seed_gives_the_same_trace() -> None:
    traces = set()
    for seed in range(20):
        first, second = live(seed), live(seed)
        assert (first.trace, first.counts, first.now_ms) == (second.trace, second.counts, second.now_ms)
        traces.add(first.trace)
    assert len(traces) > 15


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    with BUGS[name].planted() as service:
        for seed in range(SEEDS_MAX):
            try:
                live((seed + BUGS[name].hint) % SEEDS_MAX, service)
            except Violation:
                return
    pytest.fail(f"no oracle says anything in {SEEDS_MAX} seeds")


def test_every_danger_comes_up() -> None:
    """A world in which nothing happens proves nothing."""
    happened = sum((what_happens(seed) for seed in range(400)), start=Counter())
    dangers = ("fenced", "failed", "finished", "Repair", "LookBack", "empty commits", "restarts", "crashes", "made anew", "refused")
    for what in (*dangers, "LeaseSnapshots", "partition dropped"):
        assert happened[what] >= 5, (what, happened)
    for what in ("stopped by foreign expiry", "Left untold"):
        assert happened[what] >= 1, (what, happened)
