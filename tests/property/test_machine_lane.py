"""The lane of maintenance beside a pipeline: tables get files, are emptied and go, and every step has any outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from snowmelt.commit.records import Staged
from snowmelt.maintenance.compaction import SHARE_BYTES, CompactionRules, PlannedRewrite, shares_of
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.files import Rewrite
from snowmelt.maintenance.lane import URGENT, LaneState, MaintenanceLane
from snowmelt.maintenance.lane_steps import (
    DeleteOrphans,
    DiscardFiles,
    ExpireSnapshots,
    FilesDiscarded,
    FilesRewritten,
    FilesSeen,
    LaneOutcome,
    LaneStep,
    LaneStepFailed,
    LookAtFiles,
    OrphansDeleted,
    PublishRewrites,
    RewriteFiles,
    RewritesGivenUp,
    RewritesPublished,
    SnapshotsExpired,
)
from snowmelt.maintenance.rules import MaintenanceRules

RUNS_MAX, SLOTS = 3, 2
RULES = MaintenanceRules(
    compaction=CompactionRules(runs_max=RUNS_MAX), expiry=ExpiryRules(count_min=2, age_ms=5_000, at_once_max=3), orphan_age_ms=50_000
)
TABLES = ("ods.a", "ods.b", "ods.c")
tables = st.sampled_from(TABLES)
chances = st.sampled_from([True, True, True, False])


@dataclass
class Lake:
    """One table as it is."""

    emptied: int = 0
    """How often."""
    runs: dict[str, int] = field(default_factory=lambda: {"0": 1, "1": 1})
    snapshots: int = 1


@dataclass
class Asked:
    """A step that the shell does, and what the table was when it began."""

    step: LaneStep
    emptied: int
    runs: dict[str, int]


def work(target: str, place: str, fewer: int) -> PlannedRewrite:
    rewrite = Rewrite(
        target=target,
        identity="u",
        schema=0,
        snapshot=1,
        partition=(),
        bucket=int(place),
        inputs=(),
        level=5,
        drops_deletes=False,
        file_bytes=1,
    )
    return PlannedRewrite(rewrite, place, fewer, SHARE_BYTES // (1 + int(place) % 3))


class Lanes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.lane = MaintenanceLane(slots=SLOTS)
        self.lakes: dict[str, Lake] = {}
        self.asked: dict[str, Asked] = {}
        self.seen_at: dict[str, int] = {}
        """How often a table had been emptied when its round's files were looked at."""
        self.open: dict[str, bool] = {}
        """The open epoch: its tables, and whether it empties each."""
        self.staged: dict[str, set[str]] = {}
        """Files of rewrites that are not over, by table."""
        self.unclear: set[str] = set()
        self.doubted: set[str] = set()
        """Tables with a publish that has no answer yet."""
        self.paused = False
        self.files = 0

    # ---- the pipeline

    @precondition(lambda self: not self.open)
    @rule(name=tables)
    def begins_with_a_table(self, name: str) -> None:
        if name not in self.lane:
            self.lakes[name] = Lake()
            self.lane.add(name, RULES, now_ms=self.now_ms)

    @precondition(lambda self: not self.open)
    @rule(entries=st.dictionaries(tables, st.booleans()))
    def an_epoch_is_decided(self, entries: dict[str, bool]) -> None:
        self.open = entries
        self.lane.opened([target for target, empties in entries.items() if empties])

    @precondition(lambda self: self.open)
    @rule(added=st.dictionaries(st.sampled_from(["0", "1"]), st.integers(1, 3)), known=st.booleans())
    def the_epoch_is_done(self, added: dict[str, int], known: bool) -> None:
        for target, empties in self.open.items():
            if target not in self.lakes:
                continue
            lake = self.lakes[target]
            lake.snapshots += 1
            if empties:
                lake.emptied, lake.runs = lake.emptied + 1, {"0": 0, "1": 0}
            for place, files in added.items():
                lake.runs[place] += files
        self.lane.done({target: added if known and not empties else None for target, empties in self.open.items()}, now_ms=self.now_ms)
        self.open = {}

    @precondition(lambda self: not self.open)
    @rule(kept=st.sets(tables))
    def tables_go(self, kept: set[str]) -> None:
        self.lane.keep(kept)
        for target in [target for target in self.lakes if target not in self.lane]:
            del self.lakes[target]
            self._forget(target)

    def _forget(self, target: str) -> None:
        """The lane forgot a table. What it had staged goes, but for files whose publish has no answer: a late request may bring them."""
        staged = self.staged.pop(target, set())
        if target in self.unclear:
            self.doubted |= staged
        self.unclear.discard(target)

    @rule(paused=st.booleans())
    def catches_up_or_not(self, paused: bool) -> None:
        self.paused = paused
        self.lane.pause(paused)

    # ---- the shell

    @rule(slept_ms=st.sampled_from([0, 10, 1_000, 60_000]), threads=st.integers(0, 2))
    def takes_steps(self, slept_ms: int, threads: int) -> None:
        self.now_ms += slept_ms
        steps = self.lane.next_steps(self.now_ms, threads=threads)
        assert sum(not isinstance(step, RewriteFiles | DeleteOrphans) for step in steps) <= threads
        for step in steps:
            target = step.target
            assert target not in self.asked, "two steps of one table at once"
            assert not self.open.get(target) or isinstance(step, DiscardFiles), "an open epoch empties the table"
            self.asked[target] = Asked(step, self.lakes[target].emptied, dict(self.lakes[target].runs))
            if isinstance(step, DiscardFiles):
                assert target not in self.unclear, "a publish without an answer, and its files are deleted"
            if isinstance(step, DeleteOrphans):
                assert not self.paused
        assert self.lane.next_steps(self.now_ms, threads=0) == [] or threads == 0

    @precondition(lambda self: self.asked)
    @rule(choice=st.randoms(use_true_random=False), works=chances)
    def a_step_ends(self, choice: object, works: bool) -> None:
        target = choice.choice(sorted(self.asked))  # type: ignore[attr-defined]
        asked = self.asked.pop(target)
        outcome = self.outcome(asked) if works else self.failure(asked.step)
        self.lane.apply(outcome, now_ms=self.now_ms)
        if isinstance(outcome, FilesSeen) and self.paused and max(outcome.runs.values()) < RUNS_MAX * URGENT:
            assert target not in self.lane or self.lane[target].state is LaneState.IDLE, "the stream goes first"
        if target not in self.lane:
            del self.lakes[target]
            self._forget(target)

    def failure(self, step: LaneStep) -> LaneOutcome:
        if isinstance(step, PublishRewrites):
            self.unclear.add(step.target)
        if isinstance(step, DiscardFiles):
            self.staged.pop(step.target)
        return LaneStepFailed(step.target)

    def outcome(self, asked: Asked) -> LaneOutcome:
        lake, target = self.lakes[asked.step.target], asked.step.target
        match asked.step:
            case LookAtFiles():
                self.seen_at[target] = asked.emptied
                full = [(place, runs) for place, runs in asked.runs.items() if runs >= RUNS_MAX]
                works = tuple(work(target, place, runs - 1) for place, runs in full)
                return FilesSeen(target=target, runs=asked.runs, works=works, files=sum(asked.runs.values()), size_bytes=9)
            case RewriteFiles(_, job, works):
                self.files += 1
                staged = tuple(Staged((f"{job}-{self.files}-{at}",), (), 1) for at in range(len(works)))
                self.staged[target] = {name for one in staged for name in one.files}
                return FilesRewritten(target, staged)
            case PublishRewrites(_, works, staged):
                self.unclear.discard(target)
                assert {name for one in staged for name in one.files} == self.staged[target]
                if self.seen_at[target] != lake.emptied:
                    return RewritesGivenUp(target)
                for one in works:
                    lake.runs[one.place] -= one.fewer
                lake.snapshots += 1
                self.staged.pop(target)
                return RewritesPublished(target)
            case DiscardFiles(_, staged):
                assert {name for one in staged for name in one.files} == self.staged.pop(target, set())
                return FilesDiscarded(target)
            case ExpireSnapshots():
                removed = min(3, max(0, lake.snapshots - 2))
                lake.snapshots -= removed
                return SnapshotsExpired(target=target, removed=removed, left=lake.snapshots, limited=removed == 3)
            case DeleteOrphans():
                return OrphansDeleted(target)

    # ---- what holds

    @invariant()
    def the_budget_is_kept(self) -> None:
        assert self.lane.slots_in_use <= SLOTS
        rewriting = [asked.step for asked in self.asked.values() if isinstance(asked.step, RewriteFiles)]
        searching = sum(isinstance(asked.step, DeleteOrphans) for asked in self.asked.values())
        assert sum(len(shares_of(step.works)) for step in rewriting) + searching <= SLOTS

    @invariant()
    def files_that_may_still_be_published_are_of_a_rewrite_under_way(self) -> None:
        """So no sweep deletes them (`commit.cleaning`)."""
        under_way = self.lane.under_way
        for names in (*self.staged.values(), self.doubted):
            for name in names:
                job = int(name.partition("-")[0])
                assert job in under_way.jobs
                assert job <= under_way.newest

    @invariant()
    def memory_is_bounded(self) -> None:
        for table in self.lane:
            assert len(table.runs or ()) <= 2
            assert table.state is not LaneState.IDLE or not (table.works or table.staged)

    def teardown(self) -> None:
        """Once all is quiet, each bucket is within its bound, and nothing that was staged is left."""
        self.catches_up_or_not(False)
        self.lane.done(dict.fromkeys(TABLES), now_ms=self.now_ms)
        self.open = {}
        for _ in range(200):
            for target in list(self.asked):
                self.lane.apply(self.outcome(self.asked.pop(target)), now_ms=self.now_ms)
            self.takes_steps(10_000, 1)
        assert all(runs < RUNS_MAX for target, lake in self.lakes.items() if target in self.lane for runs in lake.runs.values())
        assert all(lake.snapshots <= 3 for target, lake in self.lakes.items() if target in self.lane)


Lanes.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLanes = Lanes.TestCase
