"""The lease book in a hostile world. A failing seed is a whole bug report: `LeaseWorld(seed)` with `told = []` tells the story again."""

from __future__ import annotations

import pytest

from tests.sim.lake import Violation
from tests.sim.lease_bugs import LEASE_BUGS
from tests.sim.leasing import DURATION_MS, LeaseWorld, live

SEEDS = 2000
SEEDS_MAX = 2000


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
def test_no_snapshot_is_read_without_a_lease_and_no_lease_is_kept(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            live(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")


def test_the_same_seed_gives_the_same_trace() -> None:
    assert [live(seed).trace for seed in range(10)] == [live(seed).trace for seed in range(10)]
    assert len({live(seed).trace for seed in range(10)}) == 10


def test_every_danger_comes_up() -> None:
    """A world in which nothing happens proves nothing."""
    happened = sum((live(seed).counts for seed in range(200)), start=LeaseWorld(0).counts)
    dangers = (
        "committed", "Release", "Refused", "NoAnswer", "outage", "restart", "dropped", "stalled", "crashed", "late", "held and lost",
    )  # fmt: skip
    for what in dangers:
        assert happened[what] >= 5, (what, happened)


@pytest.mark.parametrize("name", LEASE_BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in range(SEEDS_MAX):
        try:
            live(seed, lambda: LEASE_BUGS[name](duration_ms=DURATION_MS))
        except Violation:
            return
    pytest.fail(f"no oracle says anything in {SEEDS_MAX} seeds")
