"""A table whose snapshots come, are read and go, by any rules: what is asked of expiry holds after each step."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from snowmelt.maintenance.expiry import ExpiryRules, plan_expiry
from snowmelt.maintenance.files import SnapshotFacts, TableHistory
from snowmelt.model.numbers import EpochNumber

RULES = st.builds(
    lambda least, more, age_ms, at_once_max: ExpiryRules(count_min=least, count_max=least + more, age_ms=age_ms, at_once_max=at_once_max),
    st.integers(1, 5),
    st.integers(0, 10),
    st.integers(0, 300),
    st.integers(1, 20),
)


class Expiries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000
        self.snapshots: list[SnapshotFacts] = []
        self.published = 0
        self.readers: list[int] = []

    @rule(ours=st.booleans(), waits_ms=st.integers(0, 200), late_ms=st.integers(0, 50))
    def publish(self, ours: bool, waits_ms: int, late_ms: int) -> None:
        """By a clock of its own, which may be late."""
        self.now_ms += waits_ms
        self.published += 1
        epoch = EpochNumber(self.published) if ours else None
        self.snapshots.append(SnapshotFacts(number=self.published, time_ms=self.now_ms - late_ms, epoch=epoch))

    @rule(choice=st.randoms(use_true_random=False))
    def begin_to_read(self, choice: object) -> None:
        if self.snapshots:
            self.readers.append(choice.choice(self.snapshots).number)  # type: ignore[attr-defined]

    @rule()
    def end_a_read(self) -> None:
        if self.readers:
            self.readers.pop(0)

    @rule(rules=RULES, waits_ms=st.integers(0, 500))
    def expire(self, rules: ExpiryRules, waits_ms: int) -> None:
        self.now_ms += waits_ms
        before, held_from = self.snapshots, min(self.readers, default=None)
        gone = plan_expiry(TableHistory(identity="", snapshots=tuple(before), held_from=held_from), rules, now_ms=self.now_ms)
        self.snapshots = before[len(gone) :]
        assert gone == tuple(snapshot.number for snapshot in before[: len(gone)]), "from the oldest on, without a gap"
        assert len(gone) <= rules.at_once_max
        assert not gone or len(self.snapshots) >= rules.count_min
        for snapshot, following in pairwise(before[: len(gone) + 1]):
            old = following.time_ms < self.now_ms - rules.age_ms
            assert old or snapshot.number <= before[-1].number - rules.count_max, "it is old, or there are too many"
        marked = [snapshot.number for snapshot in before if snapshot.epoch is not None]
        if marked:
            assert marked[-1] in [snapshot.number for snapshot in self.snapshots], "a driver would not find its newest commit"
        again = plan_expiry(TableHistory(identity="", snapshots=tuple(self.snapshots), held_from=held_from), rules, now_ms=self.now_ms)
        assert len(gone) == rules.at_once_max or again == (), "what is left is left again"

    @invariant()
    def what_is_read_is_there(self) -> None:
        assert set(self.readers) <= {snapshot.number for snapshot in self.snapshots}

    @invariant()
    def the_newest_is_there(self) -> None:
        assert not self.published or self.snapshots[-1].number == self.published


Expiries.TestCase.settings = settings(max_examples=200, deadline=None)
TestExpiries = Expiries.TestCase
