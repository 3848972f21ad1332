"""A relay at its cap, a lake that follows and chunks that hold back the log: whatever happens, none of them waits for ever.

A world as small as can be that has all that S2 and S3 are about: transactions of any size, of which some are larger than the cap; chunks
that hold the log above where they were launched and need it up to where their read ended, which may be far behind what is captured;
and a capture that hears of it all late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.model.position import Position
from snowmelt.relay.flow import Backlog, Flow, Need, decide_flow

SOFT, HARD = 100, 400
STEPS_MAX = 2_000


class Stuck(Exception):
    """Nobody can do anything."""


class Full(Exception):
    """A transaction is too large."""


@dataclass
class World:
    """Offsets stand for bytes. `transactions` are what the server has; each ends a segment."""

    transactions: list[int]
    chunks: list[int]
    """At which steps one is launched."""
    stale: list[bool]
    """At which steps capture hears of the need."""
    plant: str = ""
    captured: int = 0
    read: int = 0
    """Of the transaction under way."""
    done: int = 0
    newest: int = 0
    """Where the last segment begins, which is always kept."""
    gone: int = 0
    reads: list[tuple[int, int | None]] = field(default_factory=list)
    """Where a chunk was launched, and where its read ended."""
    need: Need = field(default_factory=Need)
    sizes: list[int] = field(default_factory=list)

    @property
    def server_end(self) -> int:
        return self.captured + sum(self.transactions)

    def step(self, number: int) -> None:
        moved = self._capture()
        moved |= self._lake()
        moved |= self._chunk(number)
        if self.stale[number % len(self.stale)] or not moved:
            before, self.need = self.need, self._need()
            moved |= before != self.need
        if not moved:
            raise Stuck(self)

    def _flow(self) -> Flow:
        held = Backlog(self.captured - self.gone + self.read, self.captured, Position(0, self.captured))
        return decide_flow(held, self.need, soft=SOFT, hard=HARD)

    def _capture(self) -> bool:
        self.paused = False
        if not self.transactions:
            return False
        flow = self._flow()
        self.paused = flow is not Flow.ON
        if flow is Flow.FULL:
            raise Full
        if self.paused:
            return False
        self.read += min(10, self.transactions[0] - self.read)
        if self.read == self.transactions[0]:
            self.newest = self.captured
            self.captured += self.transactions.pop(0)
            self.read = 0
        self.sizes.append(self.captured - self.gone + self.read)
        return True

    def _lake(self) -> bool:
        moved = self.done < self.captured
        self.done = self.captured
        return self._let_go() or moved

    def _let_go(self) -> bool:
        before = self.gone
        self.gone = max(before, min([self.done, self.newest, *(visible for visible, _ in self.reads)]))
        return self.gone > before

    def _chunk(self, number: int) -> bool:
        if self.paused and self.captured - self.gone + self.read >= HARD:
            waiting = [one for one in self.reads if one[1] is not None and one[1] > self.captured]
            if waiting and self.plant != "kept at the hard cap":
                self.reads = [one for one in self.reads if one not in waiting]
                return True
        for at, (visible, high) in enumerate(self.reads):
            if high is None:
                self.reads[at] = visible, self.server_end
                return True
            if high <= self.done:
                del self.reads[at]
                return True
        if self.chunks and self.chunks[0] <= number and not self.paused:
            self.chunks.pop(0)
            self.reads.append((self.done, None))
            return True
        return False

    def _need(self) -> Need:
        waiting = [high for _, high in self.reads if high is not None and high > self.captured]
        if self.plant == "cap without exceptions":
            return Need()
        drained = self.done >= self.captured and not self.reads
        if self.plant != "told before it is let go of":
            self._let_go()
        upto = Position(0, max(waiting)) if waiting and self.plant != "chunks are forgotten" else None
        return Need(self.captured if drained else None, upto)

    def live(self) -> None:
        number = 0
        while self.transactions or self.reads or self.done < self.captured:
            self.step(number)
            number += 1
            assert number < STEPS_MAX


worlds = st.builds(
    World,
    st.lists(st.integers(1, HARD // 2 - 10), max_size=30),
    st.lists(st.integers(0, 60), max_size=6).map(sorted),
    st.lists(st.booleans(), min_size=1, max_size=7),
)


@settings(max_examples=300, deadline=None)
@given(worlds)
def test_whatever_is_held_nobody_waits_for_ever(world: World) -> None:
    world.live()
    assert max(world.sizes, default=0) < HARD + 10, "more is held than the hard cap allows"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, SOFT), max_size=60), st.lists(st.booleans(), min_size=1, max_size=7))
def test_without_large_transactions_and_chunks_the_cap_holds(transactions: list[int], stale: list[bool]) -> None:
    world = World(transactions, [], stale)
    world.live()
    assert max(world.sizes, default=0) < 2 * SOFT + 10


@pytest.mark.parametrize(
    ("plant", "world"),
    [
        ("cap without exceptions", World([SOFT + 50], [], [True])),
        ("told before it is let go of", World([90, 90, 90, 90, 150], [0], [True])),
        ("chunks are forgotten", World([60, 60, 60, 60], [1], [True])),
        ("kept at the hard cap", World([90] * 12, [1], [True])),
    ],
)
def test_a_planted_bug_is_caught(plant: str, world: World) -> None:
    world.plant = plant
    with pytest.raises(Full if plant == "told before it is let go of" else Stuck):
        world.live()


def test_a_transaction_beyond_the_hard_cap_is_an_error_and_no_silence() -> None:
    with pytest.raises(Full):
        World([50, HARD], [], [True]).live()
