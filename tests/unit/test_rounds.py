"""One round of a table, step by step, and everything that ends it early."""

from __future__ import annotations

import pytest

from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import Base, KnownToFluss, LakeView, Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.round_steps import (
    Absent,
    BucketRead,
    CheckTable,
    Clean,
    Cleaned,
    Commit,
    CommitPrepared,
    Confirm,
    Failed,
    LakeCommitted,
    LeaseSnapshots,
    ListBuckets,
    LogsListed,
    Look,
    LookBack,
    Looked,
    NewestConfirmed,
    Outcome,
    Overtaken,
    Prepare,
    ReadSplits,
    Report,
    RoundReported,
    SnapshotsLeased,
    SplitsRead,
    Step,
    TableSeen,
    Tell,
    Told,
    Unclear,
)
from snowmelt.tiering.rounds import ENDS, KEEP_ALL, ROUND, SILENCE_MS_MAX, Round, RoundState, RoundTrigger
from snowmelt.tiering.splits import BucketLog, Budget, LogSplit, SnapshotSplit

TABLE, SCHEMA = 5, 2
A, B = Bucket(TABLE, 0), Bucket(TABLE, 1)
BASE = Base("u", 0, 3)
NEWEST = Tiered(3, "p3")
BEFORE = Offsets(TABLE, {A: 10})
LAKE = LakeView(identity="u", schema=0, latest=3, whole_from=1, tiered=(NEWEST,), rows=True)
SEEN = Looked(LAKE, BEFORE, KnownToFluss(3, BEFORE.ends))
COPY = KvSnapshot(B, 7, 40)
LISTED = LogsListed([BucketLog(A, 0, 20), BucketLog(B, 0, 60, COPY)])
LEASED = SnapshotsLeased({B: COPY})
READ = SplitsRead([BucketRead(A, 20, (b"a",), 99), BucketRead(B, 40, (b"b",))])
AFTER = Offsets(TABLE, {A: 20, B: 40})
SAME = TableSeen(TABLE, SCHEMA)
PREPARED = CommitPrepared("p4", AFTER)
OURS = Tiered(4, "p4")


def fresh(*outcomes: Outcome, keyed: bool = True) -> Round:
    """A round that has come so far."""
    found = Round(TABLE, SCHEMA, keyed=keyed, budget=Budget(100, 1000, 1), handed_out_ms=0)
    for outcome in outcomes:
        found.next_step(0)
        found.take(outcome)
    return found


STAGED = (SEEN, LISTED, LEASED, READ)
COMMITTED = (*STAGED, SAME, PREPARED, LakeCommitted(4))


def test_a_round_goes_from_hand_out_to_finish() -> None:
    round_ = fresh()
    dialogue: list[tuple[Step, Outcome]] = [
        (Look(), SEEN),
        (ListBuckets(), LISTED),
        (LeaseSnapshots({B: COPY}), LEASED),
        (ReadSplits((SnapshotSplit(COPY), LogSplit(A, 10, 20))), READ),
        (CheckTable(), SAME),
        (Prepare(AFTER), PREPARED),
        (Commit(BASE, "p4", (b"a", b"b")), LakeCommitted(4)),
        (Confirm(), NewestConfirmed(OURS)),
        (Tell(OURS, AFTER.ends, keep_from=3), Told(True)),
        (Report(finished=True, more=True), RoundReported()),
    ]
    for step, outcome in dialogue:
        in_the_lake = isinstance(step, Confirm | Tell | Report)
        assert round_.committed == (AFTER.ends if in_the_lake else {})
        assert round_.next_step(0) == step
        round_.take(outcome)
    assert (round_.state, round_.committed, round_.timestamps_ms) == (RoundState.FINISHED, AFTER.ends, {A: 99, B: -1})
    with pytest.raises(InvariantBroken, match="continues after its end"):
        round_.next_step(0)


def test_a_round_without_kv_snapshots_needs_no_lease() -> None:
    assert fresh(SEEN, LogsListed([BucketLog(A, 0, 20)])).next_step(0) == ReadSplits((LogSplit(A, 10, 20),))


def test_a_round_with_nothing_to_read_is_finished_and_not_due_at_once() -> None:
    for round_ in (
        fresh(SEEN, LogsListed([BucketLog(A, 0, 10)])),
        fresh(SEEN, LogsListed([BucketLog(A, 0, 20)]), SplitsRead([BucketRead(A, 10, ())])),
        fresh(SEEN, LogsListed([BucketLog(A, 0, 20)]), SplitsRead([BucketRead(A, None, ())])),
    ):
        assert round_.next_step(0) == Report(finished=True, more=False)


def test_buckets_that_moved_without_rows_are_committed() -> None:
    round_ = fresh(SEEN, LogsListed([BucketLog(A, 0, 20)]), SplitsRead([BucketRead(A, 20, ())]), SAME)
    assert round_.next_step(0) == Prepare(Offsets(TABLE, {A: 20}))
    round_.take(CommitPrepared("p4", Offsets(TABLE, {A: 20})))
    assert round_.next_step(0) == Commit(BASE, "p4", ())


def test_fluss_is_told_of_what_it_missed_before_anything_is_planned() -> None:
    missed = Looked(LAKE, BEFORE, None)
    for told in (True, False):
        round_ = fresh(missed)
        assert round_.next_step(0) == Tell(NEWEST, {}, keep_from=KEEP_ALL)
        round_.take(Told(told))
        assert round_.next_step(0) == Look()


def test_a_newer_kv_snapshot_that_was_leased_instead_is_read() -> None:
    newer = KvSnapshot(B, 9, 55)
    round_ = fresh(SEEN, LISTED, SnapshotsLeased({B: newer}))
    assert round_.next_step(0) == ReadSplits((SnapshotSplit(newer), LogSplit(A, 10, 20)))
    for wrong in (SnapshotsLeased({}), SnapshotsLeased({B: KvSnapshot(B, 6, 39)})):
        with pytest.raises(InvariantBroken):
            fresh(SEEN, LISTED, wrong)


def test_every_bucket_is_prepared_also_those_that_did_not_move() -> None:
    """Fluss merges over what it knows, which may be older than the lake by then."""
    seen = Looked(LAKE, Offsets(TABLE, {A: 10, B: 60}), KnownToFluss(3, {}))
    round_ = fresh(seen, LogsListed([BucketLog(A, 0, 20), BucketLog(B, 0, 60)]), SplitsRead([BucketRead(A, 20, ())]), SAME)
    assert round_.next_step(0) == Prepare(Offsets(TABLE, {A: 20, B: 60}))


def test_offsets_that_fluss_wrote_differently_are_not_committed() -> None:
    round_ = fresh(*STAGED, SAME)
    with pytest.raises(Corrupt, match="wrote other offsets"):
        round_.take(CommitPrepared("p4", BEFORE))
    round_.take(Failed())
    assert round_.next_step(0) == Clean((b"a", b"b"))
    with pytest.raises(InvariantBroken, match="no name"):
        fresh(*STAGED, SAME, CommitPrepared("", AFTER))


@pytest.mark.parametrize(
    "reads",
    [
        [BucketRead(A, 20, ())],
        [BucketRead(A, 20, ()), BucketRead(A, 20, ())],
        [BucketRead(A, 20, ()), BucketRead(Bucket(TABLE, 9), 1, ())],
        [BucketRead(A, 21, ()), BucketRead(B, 40, ())],
        [BucketRead(A, 9, ()), BucketRead(B, 40, ())],
        [BucketRead(A, 20, ()), BucketRead(B, 39, ())],
        [BucketRead(A, None, (b"a",)), BucketRead(B, 40, ())],
        [BucketRead(A, 10, (b"a",)), BucketRead(B, 40, ())],
    ],
)
def test_reads_that_are_not_the_plans_are_refused(reads: list[BucketRead]) -> None:
    with pytest.raises(InvariantBroken):
        fresh(SEEN, LISTED, LEASED, SplitsRead(reads))


@pytest.mark.parametrize("seen", [TableSeen(TABLE, 3), TableSeen(6, SCHEMA), TableSeen(None, 0)])
def test_a_table_that_is_another_by_the_time_of_the_commit_ends_the_round(seen: TableSeen) -> None:
    round_ = fresh(*STAGED, seen)
    assert round_.next_step(0) == Clean((b"a", b"b"))
    round_.take(Cleaned())
    assert round_.next_step(0) == Report(finished=False, more=False)
    round_.take(RoundReported())
    assert round_.state is RoundState.FAILED


class TestDoubt:
    def test_rows_that_are_lost_stop_the_table(self) -> None:
        round_ = fresh(SEEN, LogsListed([BucketLog(A, 11, 20)]))
        assert round_.next_step(0) == Confirm()
        with pytest.raises(SourceDrift, match="lost rows"):
            round_.take(NewestConfirmed(NEWEST))
        round_.take(Failed())
        assert round_.state is RoundState.VOID

    def test_a_log_that_was_cut_behind_another_round_only_ends_ours(self) -> None:
        round_ = fresh(SEEN, LogsListed([BucketLog(A, 11, 20)]), NewestConfirmed(Tiered(4, "theirs")))
        assert round_.next_step(0) == Clean(())

    def test_nothing_follows_from_a_doubt_of_a_round_that_was_lost(self) -> None:
        round_ = fresh(SEEN, LogsListed([BucketLog(A, 11, 20)]))
        round_.lost()
        round_.take(NewestConfirmed(NEWEST))
        assert round_.state is RoundState.VOID


class TestCommit:
    def test_a_lost_answer_is_looked_for(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED, Unclear())
        assert round_.next_step(0) == LookBack(BASE, "p4")
        round_.take(LakeCommitted(4))
        assert round_.next_step(0) == Confirm()

    def test_what_is_not_there_is_tried_again(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED, Unclear(), Absent())
        assert round_.next_step(0) == Commit(BASE, "p4", (b"a", b"b"))
        # Asked again it does not begin twice.
        assert round_.next_step(0) == LookBack(BASE, "p4")

    def test_files_whose_commit_may_land_late_stay(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED, Unclear(), Absent())
        round_.take(Failed())
        assert round_.next_step(0) == Clean(())

    def test_another_round_that_came_first_ends_ours_and_its_files(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED, Overtaken())
        assert round_.next_step(0) == Clean((b"a", b"b"))
        round_.take(Cleaned())
        round_.take(RoundReported())
        assert round_.state is RoundState.FAILED

    def test_fluss_is_not_told_of_what_is_no_longer_the_newest(self) -> None:
        round_ = fresh(*COMMITTED, NewestConfirmed(Tiered(5, "p5")))
        assert round_.next_step(0) == Report(finished=True, more=True)

    def test_a_word_to_fluss_that_was_lost_is_repeated_if_it_is_still_the_newest(self) -> None:
        round_ = fresh(*COMMITTED, NewestConfirmed(OURS), Told(False))
        assert round_.next_step(0) == Confirm()

    def test_a_round_that_can_not_tell_fluss_gives_its_table_back_and_deletes_nothing(self) -> None:
        round_ = fresh(*COMMITTED, NewestConfirmed(OURS), Failed())
        assert round_.next_step(0) == Report(finished=False, more=False)
        round_.take(RoundReported())
        assert (round_.state, round_.committed) == (RoundState.FAILED, {})
        repair = fresh(Looked(LAKE, BEFORE, None), Failed())
        assert repair.next_step(0) == Clean(())

    def test_of_a_table_that_was_never_tiered_nothing_is_there_to_be_let_go_of(self) -> None:
        first = Looked(LakeView(identity="u", schema=0, latest=0, whole_from=1, tiered=(), rows=False), None, None)
        round_ = fresh(first, LogsListed([BucketLog(A, 0, 20)]), SplitsRead([BucketRead(A, 20, ())]), SAME)
        round_.take(CommitPrepared("p1", Offsets(TABLE, {A: 20})))
        round_.next_step(0)
        round_.take(LakeCommitted(1))
        round_.take(NewestConfirmed(Tiered(1, "p1")))
        assert round_.next_step(0) == Tell(Tiered(1, "p1"), {A: 20}, keep_from=KEEP_ALL)


class TestSilence:
    def test_no_commit_begins_after_too_long_a_silence(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED)
        round_.heard(1_000)
        round_.heard(500)
        assert round_.next_step(1_000 + SILENCE_MS_MAX + 1) == Clean((b"a", b"b"))
        round_.take(Cleaned())
        # Whoever has the table now would be taken for the one that failed.
        assert round_.state is RoundState.FENCED

    def test_up_to_then_it_does(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED)
        assert isinstance(round_.next_step(SILENCE_MS_MAX), Commit)

    def test_what_the_lake_may_have_is_brought_to_its_end_whatever_the_coordinator_says(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED)
        round_.next_step(0)
        round_.lost()
        assert isinstance(round_.next_step(10 * SILENCE_MS_MAX), LookBack)
        round_.take(LakeCommitted(4))
        assert isinstance(round_.next_step(10 * SILENCE_MS_MAX), Confirm)
        round_.take(NewestConfirmed(OURS))
        assert isinstance(round_.next_step(10 * SILENCE_MS_MAX), Tell)
        round_.take(Told(True))
        # It is not ours to report.
        assert round_.state is RoundState.FENCED

    def test_what_the_lake_does_not_have_is_given_up_when_the_table_was_lost_meanwhile(self) -> None:
        round_ = fresh(*STAGED, SAME, PREPARED, Unclear())
        round_.lost()
        round_.take(Absent())
        assert round_.next_step(0) == Clean(())

    def test_files_of_a_job_that_was_under_way_are_cleaned(self) -> None:
        for outcome in (READ, Failed((b"a", b"b"))):
            round_ = fresh(SEEN, LISTED, LEASED)
            round_.lost()
            round_.take(outcome)
            assert round_.next_step(0) == Clean((b"a", b"b"))

    @pytest.mark.parametrize("number", range(len(STAGED) + 2))
    def test_the_outcome_of_a_step_that_was_under_way_changes_nothing(self, number: int) -> None:
        outcomes = (*STAGED, SAME, PREPARED)
        round_ = fresh(*outcomes[:number])
        round_.lost()
        round_.take(outcomes[number])
        assert round_.state is RoundState.VOID

    def test_a_repair_under_way_does_no_harm(self) -> None:
        round_ = fresh(Looked(LAKE, BEFORE, None))
        round_.lost()
        round_.take(Told(True))
        assert round_.state is RoundState.VOID

    def test_a_report_under_way_is_the_last_of_a_round_that_was_lost(self) -> None:
        for round_ in (fresh(SEEN, LogsListed([BucketLog(A, 0, 10)])), fresh(Failed(), Cleaned())):
            round_.next_step(0)
            round_.lost()
            round_.take(RoundReported())
            round_.lost()
            assert round_.state is RoundState.FENCED


def test_an_outcome_of_another_step_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="of another step"):
        fresh().take(LISTED)
    with pytest.raises(InvariantBroken, match="invalid transition of a round"):
        fresh().take(Cleaned())


def test_a_step_asked_for_before_its_need_is_a_bug() -> None:
    round_ = fresh()
    round_.state = RoundState.SEEN
    with pytest.raises(InvariantBroken, match="lacks what an earlier step brings"):
        round_.take(LISTED)


def test_every_state_but_the_ends_has_a_way_on_and_the_ends_have_none() -> None:
    assert {state for state, _ in ROUND} == set(RoundState) - set(ENDS)
    assert {turn for _, turn in ROUND} == set(RoundTrigger)
