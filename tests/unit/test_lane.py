"""What maintenance does next, to which table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.commit.cleaning import RewritesUnderWay
from snowmelt.commit.records import Entry, Intent, Staged
from snowmelt.errors import InvariantBroken
from snowmelt.maintenance.compaction import SHARE_BYTES, CompactionRules, PlannedRewrite
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.files import BucketFiles, DataFile, Rewrite, TableFiles
from snowmelt.maintenance.lane import EXPIRE_EVERY, LANE, URGENT, LaneState, LaneTrigger, MaintenanceLane, disturbed_by, touched_by
from snowmelt.maintenance.lane_steps import (
    DeleteOrphans,
    DiscardFiles,
    ExpireSnapshots,
    FilesDiscarded,
    FilesRewritten,
    FilesSeen,
    LaneStep,
    LaneStepFailed,
    LookAtFiles,
    OrphansDeleted,
    PublishRewrites,
    RewriteFiles,
    RewritesGivenUp,
    RewritesPublished,
    SnapshotsExpired,
    see_files,
)
from snowmelt.maintenance.rules import MaintenanceRules

RULES = MaintenanceRules(
    compaction=CompactionRules(runs_max=4), expiry=ExpiryRules(count_min=2, age_ms=20_000, at_once_max=3), orphan_age_ms=100_000
)
A, B = "ods.a", "ods.b"
REWRITE = Rewrite(
    target=A,
    identity="u",
    schema=0,
    snapshot=1,
    partition=(),
    bucket=0,
    inputs=("x", "y"),
    level=5,
    drops_deletes=True,
    file_bytes=9,
)
NEVER = SnapshotsExpired(target=A, removed=0, left=1, limited=False)


def works(*places: str, fewer: int = 3, size_bytes: int = SHARE_BYTES) -> tuple[PlannedRewrite, ...]:
    return tuple(PlannedRewrite(replace(REWRITE, bucket=int(place)), place, fewer, size_bytes) for place in places)


def seen(runs: dict[str, int], *chosen: PlannedRewrite, target: str = A) -> FilesSeen:
    return FilesSeen(target=target, runs=runs, works=chosen, files=sum(runs.values()), size_bytes=7)


def staged(count: int) -> tuple[Staged, ...]:
    return tuple(Staged((f"f{at}",), (), 1) for at in range(count))


class Driver:
    """Moves a lane by hand."""

    def __init__(self, *targets: str, slots: int = 2) -> None:
        self.lane = MaintenanceLane(slots=slots)
        self.now_ms = 0
        for target in targets:
            self.lane.add(target, RULES, now_ms=0)

    def steps(self, *, at: int | None = None, threads: int = 1) -> list[LaneStep]:
        self.now_ms = self.now_ms if at is None else at
        return self.lane.next_steps(self.now_ms, threads=threads)

    def apply(self, outcome: object) -> None:
        self.lane.apply(outcome, now_ms=self.now_ms)  # type: ignore[arg-type]

    def known(self, runs: dict[str, int] | None = None) -> None:
        """Table A was looked at and its snapshots are few."""
        assert self.steps() == [ExpireSnapshots(A)]
        self.apply(NEVER)
        assert self.steps() == [LookAtFiles(A)]
        self.apply(seen(runs or {"0": 1}))
        assert self.steps() == []

    def gets(self, files: int, place: str = "0") -> None:
        self.lane.done({A: {place: files}}, now_ms=self.now_ms)


def test_a_table_is_looked_at_once_and_then_rests() -> None:
    driver = Driver(A)
    driver.known()
    assert driver.lane[A].figures.files == 1
    assert driver.steps() == []


def test_commits_tell_when_a_look_is_worth_it() -> None:
    driver = Driver(A)
    driver.known({"0": 1, "1": 2})
    driver.gets(1, "1")
    assert driver.steps() == []
    driver.gets(1, "1")
    assert driver.steps() == [LookAtFiles(A)]


def test_an_epoch_that_another_driver_planned_asks_for_a_look() -> None:
    driver = Driver(A)
    driver.known()
    driver.lane.done({A: None, "ods.unknown": None}, now_ms=0)
    assert driver.steps() == [LookAtFiles(A)]


def test_commits_that_a_look_may_not_have_seen_are_counted() -> None:
    driver = Driver(A)
    driver.steps()
    driver.apply(NEVER)
    driver.steps()
    driver.gets(2)
    driver.apply(seen({"0": 2}))
    assert driver.steps() == [LookAtFiles(A)]
    driver.lane.done({A: None}, now_ms=0)
    driver.apply(seen({"0": 2}))
    assert driver.steps() == [LookAtFiles(A)]


def test_a_round_goes_from_a_look_to_a_commit() -> None:
    driver = Driver(A)
    driver.known()
    driver.gets(4)
    assert driver.steps() == [LookAtFiles(A)]
    driver.apply(seen({"0": 5, "1": 1}, *works("0")))
    assert driver.steps() == [RewriteFiles(A, 1, works("0"))]
    assert (driver.lane.under_way.newest, driver.lane.under_way.jobs) == (1, {1})
    driver.gets(1)
    driver.apply(FilesRewritten(A, staged(1)))
    assert driver.steps() == [PublishRewrites(A, works("0"), staged(1))]
    driver.apply(RewritesPublished(A))
    assert driver.lane.under_way.jobs == set()
    assert driver.steps() == []
    assert driver.lane[A].runs == {"0": 3}, "five, and one that came meanwhile, less three"
    assert driver.lane[A].figures.compacted_ms == 0


def test_a_table_has_as_many_rewrites_at_once_as_there_are_slots() -> None:
    driver = Driver(A, B)
    assert driver.steps() == [ExpireSnapshots(A)]
    driver.apply(NEVER)
    assert driver.steps() == [ExpireSnapshots(B)]
    driver.apply(replace(NEVER, target=B))
    assert driver.steps(threads=2) == [LookAtFiles(A), LookAtFiles(B)]
    driver.apply(seen({"0": 9, "1": 8, "2": 7}, *works("0", "1", "2")))
    assert driver.steps() == [RewriteFiles(A, 1, works("0"))], "the other slot is kept for what the look at B brings"
    driver.apply(seen({"0": 1}, target=B))
    driver.lane.done({B: {"0": 9}}, now_ms=0)
    assert driver.steps(threads=0) == []
    assert driver.steps() == [LookAtFiles(B)]
    driver.apply(seen({"0": 9}, *works("0"), target=B))
    assert driver.steps() == [RewriteFiles(B, 2, works("0"))]
    assert driver.lane.slots_in_use == 2
    driver.apply(FilesRewritten(A, staged(1)))
    driver.steps()
    driver.apply(RewritesPublished(A))
    assert driver.steps() == [LookAtFiles(A)], "two of its buckets are still too full"


def test_no_look_begins_without_a_slot_for_what_it_brings() -> None:
    driver = Driver(A, B, slots=1)
    for step in driver.steps(threads=2):
        driver.apply(replace(NEVER, target=step.target))
    assert driver.lane.slots_in_use == 0
    assert driver.steps(threads=2) == [LookAtFiles(A)]
    assert driver.steps(threads=2) == []


def rewriting() -> Driver:
    driver = Driver(A)
    driver.known()
    driver.gets(4)
    driver.steps()
    driver.apply(seen({"0": 5}, *works("0")))
    return driver


def test_a_rewrite_that_was_given_up_is_deleted_and_the_table_waits() -> None:
    driver = rewriting()
    driver.steps()
    driver.apply(FilesRewritten(A, staged(1)))
    driver.steps()
    driver.apply(RewritesGivenUp(A))
    assert driver.steps() == []
    assert driver.lane.under_way.jobs == {1}
    assert driver.steps(at=5000) == [DiscardFiles(A, staged(1))]
    driver.apply(FilesDiscarded(A))
    assert driver.lane.under_way.jobs == set()
    assert driver.steps() == [LookAtFiles(A)]


def test_small_rewrites_of_a_table_share_a_slot() -> None:
    driver = Driver(A)
    driver.steps()
    driver.apply(NEVER)
    driver.steps()
    small = works("0", "1", size_bytes=SHARE_BYTES // 2)
    driver.apply(seen({"0": 9, "1": 8, "2": 7, "3": 6}, *small, *works("2"), *works("3", size_bytes=1)))
    assert driver.steps() == [RewriteFiles(A, 1, (*small, *works("2")))], "there are two slots"
    assert driver.lane.slots_in_use == 2


def test_a_publish_without_an_answer_is_asked_for_again_and_nothing_is_deleted() -> None:
    driver = rewriting()
    driver.steps()
    driver.apply(FilesRewritten(A, staged(1)))
    driver.steps()
    driver.apply(LaneStepFailed(A))
    assert driver.steps() == []
    assert driver.lane.under_way.jobs == {1}
    assert driver.steps(at=5000) == [PublishRewrites(A, works("0"), staged(1))]
    driver.apply(LaneStepFailed(A))
    assert driver.steps(at=14_999) == []
    assert driver.steps(at=15_000) == [PublishRewrites(A, works("0"), staged(1))]
    driver.apply(RewritesPublished(A))
    assert driver.lane[A].failures == 0


def test_what_fails_waits_longer_each_time_and_others_go_on() -> None:
    driver = rewriting()
    driver.lane.add(B, RULES, now_ms=0)
    assert driver.steps() == [RewriteFiles(A, 1, works("0")), ExpireSnapshots(B)]
    driver.apply(LaneStepFailed(A))
    driver.apply(replace(NEVER, target=B))
    assert driver.steps() == [LookAtFiles(B)]
    driver.apply(LaneStepFailed(B))
    assert driver.steps() == []
    assert driver.steps(at=4999) == []
    assert driver.steps(at=5000, threads=2) == [LookAtFiles(A), LookAtFiles(B)]
    driver.apply(LaneStepFailed(A))
    driver.apply(LaneStepFailed(B))
    assert driver.steps(at=14_999, threads=2) == []
    assert len(driver.steps(at=15_000, threads=2)) == 2


def test_files_that_could_not_be_deleted_are_left_to_a_sweep() -> None:
    driver = rewriting()
    driver.steps()
    driver.lane.opened([A])
    driver.apply(FilesRewritten(A, staged(1)))
    driver.gets(1)
    assert driver.steps() == [DiscardFiles(A, staged(1))]
    driver.apply(LaneStepFailed(A))
    assert (driver.lane[A].state, driver.lane[A].failures) == (LaneState.IDLE, 0)
    assert driver.lane.under_way.jobs == set()


class TestEpochsThatEmptyOrReshape:
    def test_nothing_begins_until_they_are_done(self) -> None:
        driver = Driver(A)
        driver.lane.opened([A, "ods.unknown"])
        assert driver.steps() == []
        assert driver.steps(at=10**9) == []
        driver.lane.done({A: None}, now_ms=10**9)
        assert driver.steps() == [ExpireSnapshots(A)]

    def test_what_was_being_rewritten_is_dropped(self) -> None:
        driver = rewriting()
        driver.steps()
        driver.lane.opened([A])
        driver.apply(FilesRewritten(A, staged(1)))
        assert driver.steps() == []
        driver.lane.done({A: None}, now_ms=0)
        assert driver.steps() == [DiscardFiles(A, staged(1))]

    def test_what_was_about_to_be_rewritten_is_not(self) -> None:
        driver = rewriting()
        driver.lane.opened([A])
        driver.lane.done({A: None}, now_ms=0)
        assert driver.steps() == [DiscardFiles(A, ())]

    def test_a_look_is_done_again(self) -> None:
        driver = Driver(A)
        driver.known()
        driver.gets(4)
        driver.steps()
        driver.lane.opened([A])
        driver.apply(seen({"0": 5}, *works("0")))
        assert driver.steps() == []
        driver.lane.done({A: {"0": 1}}, now_ms=0)
        assert driver.steps() == [LookAtFiles(A)]

    def test_a_publish_without_an_answer_waits(self) -> None:
        driver = rewriting()
        driver.steps()
        driver.apply(FilesRewritten(A, staged(1)))
        driver.lane.opened([A])
        assert driver.steps() == []
        driver.lane.done({A: None}, now_ms=0)
        assert driver.steps() == [PublishRewrites(A, works("0"), staged(1))]


class TestWhileThePipelineCatchesUp:
    def test_only_urgent_tables_are_rewritten(self) -> None:
        driver = Driver(A)
        driver.known()
        driver.lane.pause(True)
        driver.gets(4 * URGENT - 2)
        assert driver.steps() == []
        driver.gets(1)
        assert driver.steps() == [LookAtFiles(A)]
        driver.apply(seen({"0": 4 * URGENT}, *works("0")))
        assert driver.steps() == [RewriteFiles(A, 1, works("0"))]

    def test_a_table_of_which_nothing_is_known_is_looked_at(self) -> None:
        """A driver that lags because of its many files would never catch up."""
        driver = Driver(A)
        driver.lane.pause(True)
        driver.steps()
        driver.apply(NEVER)
        assert driver.steps() == [LookAtFiles(A)]
        driver.apply(seen({"0": 5}, *works("0")))
        assert driver.steps() == []

    def test_its_end_wakes_what_waits(self) -> None:
        driver = Driver(A)
        driver.known()
        driver.lane.pause(True)
        driver.gets(4)
        assert driver.steps() == []
        driver.lane.pause(False)
        assert driver.steps() == [LookAtFiles(A)]

    def test_snapshots_expire_and_orphans_wait(self) -> None:
        driver = Driver(A)
        driver.known()
        driver.lane.pause(True)
        driver.gets(1)
        assert driver.steps(at=10**6) == [ExpireSnapshots(A)]
        driver.apply(NEVER)
        assert driver.steps() == []
        driver.lane.pause(False)
        assert driver.steps() == [DeleteOrphans(A)]


class TestExpiry:
    def test_it_is_due_after_some_commits(self) -> None:
        driver = Driver(A)
        driver.known()
        for _ in range(EXPIRE_EVERY - 1):
            driver.gets(0)
        assert driver.steps() == []
        driver.gets(0)
        assert driver.steps() == [ExpireSnapshots(A)]
        driver.apply(NEVER)
        driver.gets(0)
        assert driver.steps() == []

    def test_it_is_due_when_the_snapshots_of_a_table_that_rests_are_old(self) -> None:
        driver = Driver(A)
        driver.known()
        driver.gets(0)
        assert driver.steps(at=19_999) == []
        assert driver.steps(at=20_000) == [ExpireSnapshots(A)]
        driver.apply(SnapshotsExpired(target=A, removed=3, left=7, limited=True))
        assert driver.lane[A].figures.expired_ms == 20_000
        assert driver.steps() == [ExpireSnapshots(A)]
        driver.apply(SnapshotsExpired(target=A, removed=2, left=5, limited=False))
        assert driver.steps() == []
        assert driver.steps(at=40_000) == [ExpireSnapshots(A)]
        driver.apply(SnapshotsExpired(target=A, removed=2, left=2, limited=False))
        assert driver.steps(at=50_000) == []


def test_orphans_are_searched_for_now_and_then() -> None:
    driver = Driver(A)
    driver.known()
    assert driver.steps(at=99_999) == []
    assert driver.steps(at=100_000) == [DeleteOrphans(A)]
    assert driver.lane.slots_in_use == 1
    driver.apply(OrphansDeleted(A))
    assert driver.steps(at=199_999) == []
    assert driver.steps(at=200_000) == [DeleteOrphans(A)]
    driver.apply(LaneStepFailed(A))
    assert driver.steps() == []


class TestTablesThatGo:
    def test_an_idle_one_is_forgotten_at_once(self) -> None:
        driver = Driver(A, B)
        driver.lane.keep({B})
        assert [table.target for table in driver.lane] == [B]
        assert driver.steps() == [ExpireSnapshots(B)]

    def test_a_round_under_way_ends_first(self) -> None:
        driver = rewriting()
        driver.steps()
        driver.lane.keep(())
        assert A in driver.lane
        driver.apply(FilesRewritten(A, staged(1)))
        driver.steps()
        driver.apply(RewritesPublished(A))
        assert A not in driver.lane

    def test_a_publish_of_one_that_is_dropped_is_not_repeated_for_ever_and_its_files_stay(self) -> None:
        driver = rewriting()
        driver.steps()
        driver.apply(FilesRewritten(A, staged(1)))
        driver.steps()
        driver.lane.keep(())
        driver.apply(LaneStepFailed(A))
        assert A not in driver.lane
        assert driver.steps() == []
        assert driver.lane.under_way.jobs == {1}, "the request may be late"

    @pytest.mark.parametrize("answer", [None, LaneStepFailed(A)])
    def test_what_a_publish_without_an_answer_may_have_brought_is_no_leftover(self, answer: LaneStepFailed | None) -> None:
        """A table may only rest, while it gets another number of buckets. Sweeps look at it, and at one that comes back."""
        driver = rewriting()
        driver.steps()
        driver.apply(FilesRewritten(A, staged(1)))
        driver.steps()
        driver.apply(LaneStepFailed(A))
        if answer is not None:
            assert driver.steps(at=5000) == [PublishRewrites(A, works("0"), staged(1))]
        driver.lane.keep(())
        if answer is not None:
            driver.apply(answer)
        assert A not in driver.lane
        driver.lane.add(A, RULES, now_ms=driver.now_ms)
        assert driver.lane.under_way == RewritesUnderWay(1, {1})


def test_an_outcome_without_a_step_is_a_bug() -> None:
    driver = Driver(A)
    with pytest.raises(InvariantBroken, match="has no step"):
        driver.apply(RewritesPublished(A))
    with pytest.raises(InvariantBroken, match="has no step"):
        driver.apply(RewritesPublished("ods.unknown"))
    driver.steps()
    with pytest.raises(InvariantBroken, match="invalid transition of maintenance"):
        driver.apply(RewritesPublished(A))


def test_each_work_has_an_answer() -> None:
    driver = rewriting()
    driver.steps()
    with pytest.raises(InvariantBroken, match="another number of answers"):
        driver.apply(FilesRewritten(A, ()))


def test_a_lane_needs_a_slot_and_rules_a_safety_age() -> None:
    with pytest.raises(InvariantBroken, match="no slot"):
        MaintenanceLane(slots=0)
    with pytest.raises(InvariantBroken, match="just written"):
        MaintenanceRules(orphan_age_ms=0)


def test_every_round_can_end() -> None:
    """From each state a way leads to IDLE."""
    reach = {LaneState.IDLE}
    for _ in LaneState:
        reach |= {state for (state, _), to in LANE.items() if to in reach}
    assert reach == set(LaneState)
    assert {trigger for _, trigger in LANE} == set(LaneTrigger)


ENTRY = Entry(target=A, uuid="u", buckets=1, schema=0, new_schema=None, base=0, empties=(), files=("f",))


def intent(*entries: Entry) -> Intent:
    return Intent(epoch=1, generation=1, nonce="n", after=0, upto=1, time_ms=None, facts=(), entries=entries, sequence_max=1, segment=1)


def test_an_epoch_that_empties_or_reshapes_a_table_disturbs_it() -> None:
    empties = replace(ENTRY, target="empties", empties=("db.t",))
    reshapes = replace(ENTRY, target="reshapes", new_schema=1)
    assert disturbed_by(intent(ENTRY, empties, reshapes)) == ["empties", "reshapes"]


def test_what_an_epoch_brings_to_a_bucket_is_known_of_our_own_alone() -> None:
    empties = replace(ENTRY, target="empties", empties=("db.t",))
    assert touched_by(intent(ENTRY, empties), {A: {"0": 2}, "empties": {"0": 1}}) == {A: {"0": 2}, "empties": None}
    assert touched_by(intent(ENTRY), {}) == {A: {}}
    assert touched_by(intent(ENTRY), None) == {A: None}


def test_a_look_counts_runs_and_plans() -> None:
    files = tuple(DataFile(name=f"f{at}", level=0, size_bytes=5, rows=1, deletes=0, created_ms=0) for at in range(3))
    table = TableFiles(snapshot=4, identity="u", schema=0, keyed=True, buckets=(BucketFiles(partition=(), bucket=0, files=files),))
    found = see_files(A, table, CompactionRules(runs_max=3))
    assert (found.runs, found.files, found.size_bytes, len(found.works)) == ({"0": 3}, 3, 15, 1)
    assert see_files(A, table, CompactionRules(runs_max=4)).works == ()
    assert len(see_files(A, table, CompactionRules(runs_max=4), full=True).works) == 1
