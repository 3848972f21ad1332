"""What a round reads of each bucket: from where the lake is, as far as the log goes, and never around a hole."""

from __future__ import annotations

import pytest

from snowmelt.errors import InvariantBroken, SourceDrift
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.splits import BucketLog, Budget, LogSplit, SnapshotSplit, SplitPlan, plan_splits

ONE, TWO, THREE = (Bucket(7, number) for number in range(3))
PART = Bucket(7, 0, 11)
WIDE = Budget(rows_max=1000, bytes_max=1 << 20, row_bytes=10)


def plan(*logs: BucketLog, starts: dict[Bucket, int] | None = None, keyed: bool = True, budget: Budget = WIDE) -> SplitPlan:
    return plan_splits(keyed=keyed, starts=starts or {}, logs=logs, budget=budget)


def test_a_bucket_that_was_never_brought_begins_with_its_kv_snapshot_and_its_log_waits() -> None:
    copy = KvSnapshot(ONE, 4, 30)
    assert plan(BucketLog(ONE, 0, 50, copy)) == SplitPlan((SnapshotSplit(copy),), more=True)
    assert plan(BucketLog(ONE, 30, 30, copy)) == SplitPlan((SnapshotSplit(copy),), more=False)
    # It was made after the end of the log was asked for.
    assert plan(BucketLog(ONE, 0, 20, copy)) == SplitPlan((SnapshotSplit(copy),), more=False)


def test_without_a_kv_snapshot_it_begins_with_the_log() -> None:
    assert plan(BucketLog(ONE, 0, 50)) == SplitPlan((LogSplit(ONE, 0, 50),), more=False)
    assert plan(BucketLog(ONE, 0, 0)) == SplitPlan((), more=False)


def test_behind_what_the_lake_has_only_the_log_is_read() -> None:
    copy = KvSnapshot(ONE, 4, 30)
    assert plan(BucketLog(ONE, 10, 50, copy), starts={ONE: 20}) == SplitPlan((LogSplit(ONE, 20, 50),), more=False)
    assert plan(BucketLog(ONE, 10, 20, copy), starts={ONE: 20}) == SplitPlan((), more=False)


def test_a_log_that_does_not_reach_back_to_the_lake_stops_loudly() -> None:
    for keyed in (True, False):
        with pytest.raises(SourceDrift, match="lost rows that the lake needs"):
            plan(BucketLog(ONE, 21, 50, KvSnapshot(ONE, 4, 30)), starts={ONE: 20}, keyed=keyed)


def test_a_key_that_may_be_in_what_is_missing_stops_loudly() -> None:
    """No KV snapshot, or one behind which the log is cut."""
    with pytest.raises(SourceDrift, match="lost rows"):
        plan(BucketLog(ONE, 1, 50))
    with pytest.raises(SourceDrift, match="its newest KV snapshot ends with 30"):
        plan(BucketLog(ONE, 31, 50, KvSnapshot(ONE, 4, 30)))


def test_a_log_table_that_was_never_brought_begins_with_what_is_left_of_it() -> None:
    assert plan(BucketLog(ONE, 5, 9), keyed=False) == SplitPlan((LogSplit(ONE, 5, 9),), more=False)
    assert plan(BucketLog(ONE, 9, 9), keyed=False) == SplitPlan((), more=False)


def test_a_lake_that_is_ahead_of_the_log_stops_loudly() -> None:
    with pytest.raises(SourceDrift, match="the lake is ahead"):
        plan(BucketLog(ONE, 0, 9), starts={ONE: 10})


def test_a_partition_that_was_dropped_is_none_of_the_plan() -> None:
    assert plan(BucketLog(ONE, 0, 9), starts={ONE: 5, PART: 3}) == SplitPlan((LogSplit(ONE, 5, 9),), more=False)


def test_a_bucket_is_listed_once() -> None:
    with pytest.raises(InvariantBroken, match="listed twice"):
        plan(BucketLog(ONE, 0, 9), BucketLog(ONE, 0, 9))


def test_a_round_is_cut_at_its_budget_and_short_buckets_leave_room_to_long_ones() -> None:
    budget = Budget(rows_max=100, bytes_max=300, row_bytes=10)
    logs = (BucketLog(ONE, 0, 1000), BucketLog(TWO, 0, 4), BucketLog(THREE, 0, 1000))
    expected = (LogSplit(ONE, 0, 13), LogSplit(TWO, 0, 4), LogSplit(THREE, 0, 13))
    assert plan(*logs, budget=budget) == SplitPlan(expected, more=True)
    assert plan(BucketLog(TWO, 0, 4), budget=budget) == SplitPlan((LogSplit(TWO, 0, 4),), more=False)


def test_every_bucket_gets_the_rows_of_an_update_at_least_and_a_kv_snapshot_is_never_cut() -> None:
    budget = Budget(rows_max=2, bytes_max=1 << 20, row_bytes=1)
    copy = KvSnapshot(THREE, 1, 500)
    found = plan(BucketLog(ONE, 0, 10), BucketLog(TWO, 0, 10), BucketLog(THREE, 0, 500, copy), budget=budget)
    assert found == SplitPlan((SnapshotSplit(copy), LogSplit(ONE, 0, 2), LogSplit(TWO, 0, 2)), more=True)


@pytest.mark.parametrize("budget", [(1, 100, 1), (100, 10, 10), (100, 100, 0)])
def test_a_budget_that_brings_nothing_on_is_refused(budget: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantBroken):
        Budget(*budget)
