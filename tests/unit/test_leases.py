"""The lease book, call by call: what is due, what is believed, and what is let go of."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from snowmelt.errors import InvariantBroken, Unavailable
from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFiles
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import (
    Acquire,
    Acquired,
    Answer,
    Confirmed,
    Drop,
    Endpoint,
    FilesRead,
    Listed,
    ListSnapshots,
    NoAnswer,
    ReadFiles,
    Refused,
    Release,
    Step,
)
from snowmelt.tiering.leases import LeaseBook, LeasePhase, LeaseStatus

PATH = TableId("shop", "orders")
A, B, C = (Bucket(7, number) for number in range(3))
DURATION_MS = 1200
HERE = Endpoint(1, 0)


def at(bucket: Bucket, snapshot: int) -> KvSnapshot:
    return KvSnapshot(bucket, snapshot, snapshot * 10)


def listed(snapshots: Mapping[Bucket, int], *, place: Endpoint = HERE, table: int = 7) -> Listed:
    return Listed(place, table, {bucket: at(bucket, snapshot) for bucket, snapshot in snapshots.items()})


class Desk:
    """A book, its clock, and a lease `r1` on the buckets A and B."""

    def __init__(self, **limits: int) -> None:
        self.book = LeaseBook(duration_ms=DURATION_MS, **limits)
        self.now_ms = 0
        self.book.open("r1", PATH, 7, {A: None, B: None})

    def step(self) -> Step | None:
        return self.book.step(self.now_ms)

    def answer(self, answer: Answer, *, takes_ms: int = 0, lease: str = "r1") -> None:
        """To whatever is due."""
        step, sent_ms = self.step(), self.now_ms
        assert step is not None
        assert step.lease == lease
        self.now_ms += takes_ms
        self.book.answer(step, answer, sent_ms, self.now_ms)

    def hold(self, snapshots: Mapping[Bucket, int] | None = None) -> None:
        chosen = snapshots or {A: 3, B: 5}
        for answer in (listed(chosen), Acquired(1), listed(chosen), *(FilesRead(SnapshotFiles(0, ())) for _ in chosen)):
            self.answer(answer)
        assert self.ready

    @property
    def ready(self) -> bool:
        return self.book.standing("r1", self.now_ms).ready

    @property
    def failure(self) -> str:
        return self.book.standing("r1", self.now_ms).failure


@pytest.fixture
def desk() -> Desk:
    return Desk()


class TestAcquiring:
    def test_a_list_an_acquire_another_list_and_the_files_come_before_anything_is_read(self, desk: Desk) -> None:
        assert desk.step() == ListSnapshots("r1", PATH, (None,))
        desk.book.answer(ListSnapshots("r1", PATH, (None,)), listed({A: 3, B: 5, C: 9}), 0, 0)
        assert desk.step() == Acquire("r1", DURATION_MS, {A: 3, B: 5})
        desk.book.answer(Acquire("r1", DURATION_MS, {A: 3, B: 5}), Acquired(1), 0, 0)
        desk.answer(listed({A: 3, B: 5}))
        for bucket, snapshot in ((A, 3), (B, 5)):
            assert not desk.ready
            step = desk.step()
            assert step == ReadFiles("r1", at(bucket, snapshot))
            desk.book.answer(step, FilesRead(SnapshotFiles(snapshot * 10, ())), 0, 0)
        standing = desk.book.standing("r1", 0)
        assert standing.ready
        assert {bucket: one.files.offset for bucket, one in standing.snapshots.items()} == {A: 30, B: 50}

    def test_a_snapshot_that_is_not_the_newest_any_more_is_replaced_and_listed_again(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(Acquired(1))
        desk.answer(listed({A: 3, B: 6}))
        step = desk.step()
        assert step == Acquire("r1", DURATION_MS, {A: 3, B: 6}), "what is verified stays, and all is renewed"
        desk.book.answer(step, Acquired(1), 0, 0)
        desk.answer(listed({A: 4, B: 6}))
        assert isinstance(desk.step(), ReadFiles), "A is under a lease since it was the newest, and need not be so now"

    def test_a_bucket_that_gets_its_first_snapshot_meanwhile_is_leased_too(self, desk: Desk) -> None:
        desk.answer(listed({A: 3}))
        desk.answer(Acquired(1))
        desk.answer(listed({A: 3, B: 0}))
        assert desk.step() == Acquire("r1", DURATION_MS, {A: 3, B: 0})

    def test_a_list_of_another_connection_or_epoch_proves_nothing(self, desk: Desk) -> None:
        for elsewhere in (Endpoint(2, 0), Endpoint(1, 1)):
            desk.answer(listed({A: 3, B: 5}))
            desk.answer(Acquired(1))
            desk.answer(listed({A: 3, B: 5}, place=elsewhere))
            assert isinstance(desk.step(), ListSnapshots)
            desk.book.answer(ListSnapshots("r1", PATH, (None,)), listed({A: 3, B: 5}), 0, 0)
            desk.answer(Acquired(2))

    def test_an_acquire_over_another_connection_than_the_list_begins_anew(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(Acquired(2))
        # The next list verifies nothing: it is the first one of another try.
        desk.answer(listed({A: 3, B: 5}))
        assert desk.step() == Acquire("r1", DURATION_MS, {A: 3, B: 5})

    def test_what_the_server_says_it_does_not_have_is_chosen_anew(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        for number in (3, 4):
            desk.answer(Acquired(1, frozenset({A})))
            # Also where it still lists what it does not have.
            desk.answer(listed({A: number, B: 5}))
        assert desk.step() == Acquire("r1", DURATION_MS, {A: 4, B: 5})

    def test_snapshots_that_come_faster_than_they_are_leased_fail_the_round(self) -> None:
        desk = Desk(tries_max=3)
        desk.answer(listed({A: 3, B: 5}))
        for number in range(3):
            assert not desk.failure
            desk.answer(Acquired(1))
            desk.answer(listed({A: 4 + number, B: 5}))
        assert "3 times in a row" in desk.failure
        assert desk.step() == Drop("r1")

    def test_a_bucket_whose_snapshots_vanish_fails_the_round(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(Acquired(1))
        desk.answer(listed({A: 3}))
        assert "no snapshot any more" in desk.failure

    def test_buckets_without_snapshots_need_no_lease(self, desk: Desk) -> None:
        desk.answer(listed({}))
        assert desk.ready
        assert desk.book.standing("r1", 0).snapshots == {}
        assert desk.book.due_ms() is None
        desk.book.end("r1")
        assert desk.book.empty, "the server was told nothing, and needs to be told nothing"

    def test_a_table_that_was_made_anew_fails_the_round(self, desk: Desk) -> None:
        desk.answer(listed({A: 3}, table=8))
        assert "made anew" in desk.failure

    @pytest.mark.parametrize("how_far", range(5))
    @pytest.mark.parametrize("failure", [NoAnswer("no answer"), Refused("no such table")])
    def test_whatever_goes_wrong_before_it_is_held_fails_the_round(self, desk: Desk, how_far: int, failure: Answer) -> None:
        chosen = {A: 3, B: 5}
        well: list[Answer] = [listed(chosen), Acquired(1), listed(chosen), FilesRead(SnapshotFiles(0, ()))]
        for answer in well[:how_far]:
            desk.answer(answer)
        desk.answer(failure)
        assert desk.failure in ("no answer", "no such table")
        desk.book.end("r1")
        if how_far == 0:
            assert desk.book.empty
        else:
            desk.now_ms += 100
            desk.answer(Confirmed())
            assert desk.book.empty

    def test_partitions_are_asked_for_by_name_each_once(self) -> None:
        book = LeaseBook(duration_ms=DURATION_MS)
        book.open("r1", PATH, 7, {Bucket(7, 0, 1): "eu", Bucket(7, 1, 1): "eu", Bucket(7, 0, 2): "us"})
        assert book.step(0) == ListSnapshots("r1", PATH, ("eu", "us"))


class TestRenewing:
    def test_every_bucket_still_held_is_sent_again_after_a_third(self, desk: Desk) -> None:
        desk.hold()
        assert desk.book.due_ms() == DURATION_MS // 3
        assert desk.step() is None
        desk.now_ms = DURATION_MS // 3
        assert desk.step() == Acquire("r1", DURATION_MS, {A: 3, B: 5})

    def test_a_lease_lasts_from_when_its_renewal_was_sent(self, desk: Desk) -> None:
        desk.hold()
        desk.now_ms = 400
        desk.answer(Acquired(1), takes_ms=100)
        desk.now_ms = 400 + DURATION_MS
        assert desk.ready
        desk.now_ms += 1
        assert "not renewed in time" in desk.failure

    def test_a_renewal_that_comes_back_too_late_is_none_although_the_server_says_yes(self, desk: Desk) -> None:
        desk.hold()
        desk.now_ms = 400
        desk.answer(Acquired(1), takes_ms=DURATION_MS)
        assert "not renewed in time" in desk.failure
        assert desk.step() == Drop("r1"), "for it may well be there"

    def test_a_renewal_without_an_answer_is_sent_again_and_again_with_longer_pauses(self, desk: Desk) -> None:
        desk.hold()
        tried = []
        while not desk.failure:
            due_ms = desk.book.due_ms()
            assert due_ms is not None
            desk.now_ms = due_ms
            if not desk.failure:
                desk.answer(NoAnswer("no answer"))
                tried.append(due_ms)
        assert len(tried) >= 10
        pauses = [later - sooner for sooner, later in pairwise(tried)]
        assert pauses == sorted(pauses)
        assert pauses[0] < DURATION_MS // 100 + 5
        assert pauses[-1] == DURATION_MS // 15

    def test_one_that_works_again_begins_with_short_pauses(self, desk: Desk) -> None:
        desk.hold()
        desk.now_ms = 400
        for _ in range(5):
            desk.answer(NoAnswer("no answer"))
            desk.now_ms = desk.book.due_ms() or 0
        desk.answer(Acquired(1))
        desk.now_ms = desk.book.due_ms() or 0
        desk.answer(NoAnswer("no answer"))
        assert desk.book.due_ms() == desk.now_ms + DURATION_MS // 120

    @pytest.mark.parametrize("answer", [Refused("no such table"), Acquired(1, frozenset({B}))])
    def test_a_renewal_that_is_refused_is_a_loss(self, desk: Desk, answer: Answer) -> None:
        desk.hold()
        desk.now_ms = 400
        desk.answer(answer)
        assert desk.failure

    def test_that_the_server_lacks_what_was_released_already_is_no_loss(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({B}), desk.now_ms)
        desk.answer(Confirmed())
        desk.now_ms = 400
        desk.answer(Acquired(1, frozenset({B})))
        assert desk.ready

    def test_a_renewal_comes_before_a_release_and_does_not_name_what_is_released(self, desk: Desk) -> None:
        desk.hold()
        desk.now_ms = 400
        desk.book.release("r1", frozenset({A}), desk.now_ms)
        assert desk.step() == Acquire("r1", DURATION_MS, {B: 5})

    def test_it_is_renewed_while_files_are_looked_up(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(Acquired(1))
        desk.answer(listed({A: 3, B: 5}))
        desk.now_ms = 400
        assert isinstance(desk.step(), Acquire)


class TestLettingGo:
    def test_a_release_is_kept_until_the_server_confirms_it(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A}), desk.now_ms)
        desk.answer(NoAnswer("no answer"))
        assert desk.step() is None
        desk.now_ms = desk.book.due_ms() or 0
        assert desk.step() == Release("r1", frozenset({A}))
        desk.book.answer(Release("r1", frozenset({A})), Confirmed(), desk.now_ms, desk.now_ms)
        assert desk.step() is None
        assert desk.book.standing("r1", desk.now_ms).snapshots.keys() == {B}

    def test_a_release_is_forgotten_when_the_lease_has_expired_by_itself(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A, B}), desk.now_ms)
        desk.answer(NoAnswer("no answer"))
        desk.now_ms = DURATION_MS + 1
        assert desk.step() is None
        assert not desk.failure, "nothing was read any more"
        desk.book.end("r1")
        assert desk.step() is None
        assert desk.book.empty

    def test_a_release_that_is_refused_drops_the_lease_when_nothing_is_read_under_it_any_more(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A}), desk.now_ms)
        desk.answer(Refused("a null pointer"))
        desk.now_ms += 100
        assert desk.step() is None
        assert desk.ready, "B is still read"
        desk.book.release("r1", frozenset({B}), desk.now_ms)
        assert desk.step() == Drop("r1")

    def test_it_drops_the_lease_at_once_if_nothing_is_read(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A, B}), desk.now_ms)
        desk.answer(Refused("no such table"))
        assert desk.step() == Drop("r1")

    def test_releasing_twice_or_what_is_not_held_is_nothing(self, desk: Desk) -> None:
        desk.book.release("r1", frozenset({A}), desk.now_ms)
        desk.hold()
        for buckets in (frozenset({A}), frozenset({A}), frozenset({C})):
            desk.book.release("r1", buckets, desk.now_ms)
        assert desk.step() == Release("r1", frozenset({A}))
        desk.book.release("r2", frozenset({A}), desk.now_ms)

    def test_a_drop_is_repeated_until_it_is_confirmed_and_nothing_is_sent_behind_it(self, desk: Desk) -> None:
        desk.hold()
        desk.book.end("r1")
        for answer in (NoAnswer("no answer"), Refused("not allowed"), NoAnswer("no answer")):
            assert not desk.book.empty
            desk.answer(answer)
            desk.now_ms = desk.book.due_ms() or 0
        desk.answer(Confirmed())
        assert desk.book.empty
        desk.now_ms += 10 * DURATION_MS
        assert desk.step() is None

    def test_a_drop_that_can_not_be_said_is_forgotten_when_the_lease_has_expired(self, desk: Desk) -> None:
        desk.hold()
        desk.book.end("r1")
        step = desk.step()
        assert step == Drop("r1")
        desk.now_ms = 2 * DURATION_MS
        desk.book.standing("r1", desk.now_ms)
        assert not desk.book.empty, "while it is said it is not forgotten"
        desk.book.answer(step, NoAnswer("no answer"), 0, desk.now_ms)
        assert desk.book.empty

    def test_a_round_that_ends_while_a_call_is_under_way_is_dropped_behind_it(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        step = desk.step()
        assert isinstance(step, Acquire)
        desk.book.end("r1")
        assert not desk.book.empty, "the lease may be made any moment"
        desk.book.answer(step, Acquired(1), 0, 0)
        assert desk.step() == Drop("r1")

    @pytest.mark.parametrize("answer", [listed({A: 3}), NoAnswer("no answer")])
    def test_one_that_ends_while_it_is_only_listed_needs_no_drop(self, desk: Desk, answer: Answer) -> None:
        step = desk.step()
        assert isinstance(step, ListSnapshots)
        desk.book.end("r1")
        desk.book.answer(step, answer, 0, 0)
        assert desk.book.empty

    def test_a_lease_that_failed_is_told_of_until_its_round_has_ended(self, desk: Desk) -> None:
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(Refused("not allowed"))
        desk.now_ms = 100
        desk.answer(Confirmed())
        assert desk.failure == "not allowed"
        for _ in range(2):
            desk.book.end("r1")
        assert desk.book.empty
        assert desk.failure == "the lease is over"

    def test_closing_drops_everything_and_opens_nothing_more(self, desk: Desk) -> None:
        desk.hold()
        desk.book.open("r2", PATH, 7, {A: None})
        desk.book.close()
        desk.answer(Confirmed())
        assert desk.book.empty
        with pytest.raises(InvariantBroken, match="closed"):
            desk.book.open("r3", PATH, 7, {A: None})


class TestWhatIsReleasedBeforeTheCommit:
    def test_a_release_that_comes_when_the_lease_was_over_is_a_loss(self, desk: Desk) -> None:
        """A process that stood still for longer than the lease hears of its tasks before it looks at the clock."""
        desk.hold()
        desk.now_ms = DURATION_MS + 1
        desk.book.release("r1", frozenset({A, B}), desk.now_ms)
        assert "not renewed in time" in desk.failure

    def test_once_everything_was_released_in_time_nothing_can_be_lost_any_more(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A, B}), desk.now_ms)
        desk.answer(Confirmed())
        desk.now_ms = 10 * DURATION_MS
        assert desk.ready

    def test_nor_if_the_server_refuses_the_release_and_the_lease_is_dropped(self, desk: Desk) -> None:
        desk.hold()
        desk.book.release("r1", frozenset({A, B}), desk.now_ms)
        desk.answer(Refused("a null pointer"))
        assert desk.step() == Drop("r1")
        assert desk.ready
        desk.book.answer(Drop("r1"), Confirmed(), desk.now_ms, desk.now_ms)
        assert desk.ready
        desk.book.end("r1")
        assert desk.failure == "the lease is over"


class TestTelling:
    def test_a_loss_is_told_once_and_an_end_is_none(self, desk: Desk) -> None:
        desk.hold()
        desk.now_ms = DURATION_MS + 1
        assert desk.failure
        assert desk.book.take_lost() == [("r1", desk.failure)]
        assert desk.book.take_lost() == []
        desk.book.open("r2", PATH, 7, {A: None})
        desk.book.end("r2")
        assert desk.book.take_lost() == []

    def test_a_lease_tells_its_snapshots_since_when_and_how_long_they_are_safe(self, desk: Desk) -> None:
        assert [(one.phase, one.buckets, one.held_ms, one.covered_ms) for one in desk.book.statuses()] == [
            (LeasePhase.LISTING, 0, None, None)
        ]
        desk.now_ms = 50
        desk.hold()
        assert desk.book.statuses() == [
            LeaseStatus(lease="r1", path=PATH, phase=LeasePhase.HELD, buckets=2, held_ms=50, covered_ms=50 + DURATION_MS)
        ]
        desk.now_ms = 450
        desk.answer(Acquired(1))
        desk.book.release("r1", frozenset({A}), desk.now_ms)
        assert desk.book.statuses() == [
            LeaseStatus(lease="r1", path=PATH, phase=LeasePhase.HELD, buckets=1, held_ms=50, covered_ms=450 + DURATION_MS)
        ]
        desk.book.end("r1")
        desk.answer(Confirmed())
        assert desk.book.statuses() == []

    def test_what_the_server_may_have_is_known_until_it_has_confirmed_its_end(self, desk: Desk) -> None:
        assert desk.book.untold == ()
        desk.answer(listed({A: 3, B: 5}))
        desk.answer(NoAnswer("no answer"))
        assert desk.book.untold == ("r1",), "it may have been acquired"
        desk.now_ms = desk.book.due_ms() or 0
        desk.answer(Confirmed())
        assert desk.book.untold == ()


class TestLimits:
    def test_ids_that_a_path_could_not_hold_are_refused(self, desk: Desk) -> None:
        for lease in ("", "a/b", "a b", "x" * 201):
            with pytest.raises(InvariantBroken, match="id has other signs"):
                desk.book.open(lease, PATH, 7, {A: None})

    def test_an_id_is_given_once_for_one_table_and_for_something(self, desk: Desk) -> None:
        with pytest.raises(InvariantBroken, match="given already"):
            desk.book.open("r1", PATH, 7, {A: None})
        with pytest.raises(InvariantBroken, match="of one table"):
            desk.book.open("r2", PATH, 8, {A: None})
        with pytest.raises(InvariantBroken, match="of nothing"):
            desk.book.open("r2", PATH, 8, {})

    def test_there_are_only_so_many(self) -> None:
        desk = Desk(leases_max=2)
        desk.book.open("r2", PATH, 7, {A: None})
        with pytest.raises(Unavailable, match="too many leases"):
            desk.book.open("r3", PATH, 7, {A: None})

    def test_a_duration_must_leave_time_for_renewals(self) -> None:
        with pytest.raises(InvariantBroken, match="long enough"):
            LeaseBook(duration_ms=100)

    def test_calls_and_answers_alternate_and_fit(self, desk: Desk) -> None:
        step = desk.step()
        assert step is not None
        with pytest.raises(InvariantBroken, match="two calls"):
            desk.step()
        with pytest.raises(InvariantBroken, match="not asked"):
            desk.book.answer(Drop("r1"), Confirmed(), 0, 0)
        with pytest.raises(InvariantBroken, match="does not fit"):
            desk.book.answer(step, Confirmed(), 0, 0)
