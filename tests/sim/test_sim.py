"""The machines in a hostile world. A failing seed is a whole bug report: `./run sim --seeds 1 --from SEED`."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from snowmelt.commit.publish import Files, View, judge
from snowmelt.commit.records import Entry, Intent
from snowmelt.errors import SourceDrift
from tests.sim.bugs import BUGS
from tests.sim.lake import Violation
from tests.sim.world import Actor, World, live

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
    facts = ("Adopted", "Reborn", "Truncated", "Recopied", "Reshaped", "Gone", "SetAside")
    for what in (*facts, "back", "fenced", "publish", "put aside", "tables at once", "notice again", "attempts", "foreign deeds"):
        assert happened[what] >= 5, (what, happened)


def test_a_pipeline_that_stops_because_others_expired_what_it_holds_is_no_violation() -> None:
    world = World(0)
    next(iter(world.lakes.values())).rude_expiry = True
    entry = Entry(target="a", uuid="u", buckets=1, schema=0, new_schema=None, base=0, empties=(), files=("f",))
    intent = Intent(epoch=1, generation=1, nonce="n", after=0, upto=1, time_ms=None, facts=(), entries=(entry,), sequence_max=1, segment=1)
    view = View(uuid="u", buckets=1, schema=0, sequence_field=True, snapshot=3, marker=None, whole=False, files=Files.MISSING)
    with pytest.raises(SourceDrift) as stopped:
        judge(intent, entry, view)
    world.on_stop(Actor(None, "commit", iter(())), stopped.value)  # type: ignore[arg-type]
    assert world.stopped == str(stopped.value)
