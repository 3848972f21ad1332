"""Whether an epoch is in a lake table is asked of the very snapshot that the next one is built on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.commit.publish import EpochInLake, Files, LastCommit, PublishEpoch, View, check_start, judge, judge_schema
from snowmelt.commit.records import Entry, Intent
from snowmelt.errors import BEGIN_ANEW, Fenced, SourceDrift

ENTRY = Entry(target="ods.orders", uuid="u", buckets=4, schema=1, new_schema=None, base=10, empties=(), files=("f1", "f2"))
INTENT = Intent(epoch=9, generation=3, nonce="n", after=0, upto=1, time_ms=None, facts=(), entries=(ENTRY,), sequence_max=3, segment=1)
OURS = LastCommit(9, "3-n", 11)
VIEW = View(uuid="u", buckets=4, schema=1, sequence_field=True, snapshot=12, marker=None, whole=True, files=Files.STAGED)


def marked(marker: LastCommit) -> View:
    return replace(VIEW, marker=marker)


class TestOnce:
    def test_an_epoch_that_is_not_there_is_published_on_the_snapshot_that_was_asked(self) -> None:
        assert judge(INTENT, ENTRY, VIEW) == PublishEpoch(12)
        assert judge(INTENT, replace(ENTRY, previous="3-m"), marked(LastCommit(8, "3-m", 11))) == PublishEpoch(12)

    def test_a_table_whose_last_commit_of_ours_is_not_the_stores_stops(self) -> None:
        """A store that was lost or restored, a table that was rolled back, a commit that somebody's overwrote."""
        for previous, marker in (("", LastCommit(8, "3-m", 10)), ("3-m", LastCommit(7, "3-k", 9)), ("3-m", LastCommit(8, "9-x", 11))):
            with pytest.raises(SourceDrift, match="does not have what the store says"):
                judge(INTENT, replace(ENTRY, previous=previous), marked(marker))

    def test_files_that_are_in_the_table_without_our_marker_stop(self) -> None:
        with pytest.raises(SourceDrift, match="no commit of ours says so"):
            judge(INTENT, ENTRY, replace(VIEW, files=Files.REFERENCED))

    def test_a_schema_change_alone_that_was_made_is_there(self) -> None:
        entry = replace(ENTRY, files=(), new_schema=2)
        assert judge(INTENT, entry, replace(VIEW, schema=2, whole=False)) == EpochInLake(12)
        assert judge(INTENT, entry, VIEW) == PublishEpoch(12)

    def test_a_lost_reply_is_not_a_lost_request(self) -> None:
        """Seed 004: the same question after an unknown outcome finds our own marker."""
        assert judge(INTENT, ENTRY, marked(OURS)) == EpochInLake(11)
        assert judge(INTENT, ENTRY, replace(marked(OURS), files=Files.REFERENCED)) == EpochInLake(11)

    def test_a_slow_driver_does_not_commit_again_what_a_newer_one_did(self) -> None:
        """L15, C4: it found that 9 was absent, paused, and 9 and 10 were committed. It asks again on the snapshot of its next try."""
        assert judge(INTENT, ENTRY, VIEW) == PublishEpoch(12)
        assert judge(INTENT, ENTRY, replace(marked(replace(OURS, snapshot=12)), snapshot=12)) == EpochInLake(12)
        with pytest.raises(Fenced, match="the lake is ahead"):
            judge(INTENT, ENTRY, replace(marked(LastCommit(10, "4-x", 13)), snapshot=13))

    def test_others_may_commit_in_between(self) -> None:
        assert judge(INTENT, ENTRY, replace(VIEW, snapshot=99)) == PublishEpoch(99)
        assert judge(INTENT, ENTRY, replace(marked(OURS), snapshot=99)) == EpochInLake(11)

    def test_another_intent_of_this_number_is_never_taken_for_ours(self) -> None:
        """L10: the numbers began anew; skipped as there already, every epoch would be lost."""
        with pytest.raises(Fenced, match=r"another epoch of this number is in the lake: ods\.orders: epoch 9"):
            judge(INTENT, ENTRY, marked(LastCommit(9, "1-old", 11)))

    def test_a_lake_that_is_ahead_is_not_written_to(self) -> None:
        """L10, L15: the store is older than the lake, or this driver is."""
        with pytest.raises(Fenced, match=r"the lake is ahead: ods\.orders has epoch 12, not 9"):
            judge(INTENT, ENTRY, marked(LastCommit(12, "4-x", 12)))


class TestRemovedSnapshots:
    """H1: our commit expired, and somebody else's snapshot is on top."""

    GONE = replace(VIEW, whole=False)

    def test_files_in_the_manifests_tell_that_it_happened(self) -> None:
        assert judge(INTENT, ENTRY, replace(self.GONE, files=Files.REFERENCED)) == EpochInLake(12)

    def test_files_that_are_staged_and_nowhere_else_tell_that_it_did_not(self) -> None:
        assert judge(INTENT, ENTRY, self.GONE) == PublishEpoch(12)

    def test_files_that_are_gone_tell_nothing(self) -> None:
        """A16: an orphan cleaner leaves the same picture as a compaction behind our commit."""
        for view in (replace(self.GONE, files=Files.MISSING), replace(VIEW, files=Files.MISSING)):
            with pytest.raises(SourceDrift, match=r"it is not known whether an epoch is in the lake: .*staged files are gone"):
                judge(INTENT, ENTRY, view)

    def test_an_emptying_leaves_nothing_that_could_tell(self) -> None:
        emptying = replace(ENTRY, files=(), empties=("shop.orders",))
        with pytest.raises(SourceDrift, match="snapshots were removed, and an emptying leaves no files"):
            judge(INTENT, emptying, self.GONE)
        assert judge(INTENT, emptying, VIEW) == PublishEpoch(12)
        assert judge(INTENT, replace(ENTRY, empties=("shop.orders",)), self.GONE) == PublishEpoch(12)

    def test_a_marker_that_is_still_there_needs_no_files(self) -> None:
        assert judge(INTENT, ENTRY, replace(self.GONE, marker=OURS, files=Files.MISSING)) == EpochInLake(11)


class TestTheTableItself:
    @pytest.mark.parametrize(
        ("changed", "lost"),
        [
            ({"uuid": "v"}, "its identity"),
            ({"buckets": 8}, "its number of buckets"),
            ({"sequence_field": False}, "its sequence field"),
        ],
    )
    @pytest.mark.parametrize("marker", [None, OURS])
    def test_a_table_that_is_not_the_one_we_staged_for_is_not_written_to(
        self, changed: dict[str, object], lost: str, marker: LastCommit | None
    ) -> None:
        """H4, A17: made anew, with other buckets, or without the order that decides which row wins."""
        with pytest.raises(SourceDrift, match=rf"a lake table lost {lost}: ods\.orders: .*{BEGIN_ANEW}"):
            judge(INTENT, ENTRY, replace(VIEW, marker=marker, **changed))  # type: ignore[arg-type]

    def test_another_schema_than_the_one_we_staged_with_stops_us(self) -> None:
        """H3."""
        with pytest.raises(SourceDrift, match=r"another program changed the schema of a lake table: ods\.orders has 2, expected 1"):
            judge(INTENT, ENTRY, replace(VIEW, schema=2))

    def test_our_own_change_of_schema_does_not_hide_that_the_epoch_is_there(self) -> None:
        """A crash between the schema and done."""
        reshaping = replace(ENTRY, new_schema=2)
        assert judge(INTENT, reshaping, replace(marked(OURS), schema=2)) == EpochInLake(11)


class TestSchema:
    """H3: a change is made from what was expected, once, and by a zombie never."""

    RESHAPING = replace(ENTRY, new_schema=2, shape=b"new")

    def test_it_is_made_once(self) -> None:
        assert judge_schema(self.RESHAPING, 1, b"old")
        assert not judge_schema(self.RESHAPING, 2, b"new")

    def test_another_change_of_this_number_is_never_taken_for_ours(self) -> None:
        """Somebody altered the table first: the number is taken, and rows of ours would not fit."""
        with pytest.raises(SourceDrift, match=r"another program changed the schema of a lake table: ods\.orders has another 2 than ours"):
            judge_schema(self.RESHAPING, 2, b"theirs")

    def test_most_epochs_change_none(self) -> None:
        assert not judge_schema(ENTRY, 1, b"old")
        assert not judge_schema(ENTRY, 7, b"other")

    def test_from_any_other_it_is_not_made(self) -> None:
        with pytest.raises(SourceDrift, match=r"another program changed the schema of a lake table: ods\.orders has 3, expected 1"):
            judge_schema(self.RESHAPING, 3, b"new")


class TestStart:
    """L10: a store that was lost or restored, and a lake that knows more."""

    @pytest.mark.parametrize("marker", [None, LastCommit(8, "3-m", 11), LastCommit(9, "3-n", 11), LastCommit(8, "another", 11)])
    def test_a_lake_that_knows_no_more_than_the_store_is_right(self, marker: LastCommit | None) -> None:
        check_start("ods.orders", marker, epoch=9, identity="3-n")

    @pytest.mark.parametrize("marker", [LastCommit(10, "3-n", 11), LastCommit(9, "1-old", 11), LastCommit(1, "1-x", 1)])
    def test_a_lake_that_is_ahead_of_the_store_stops_us(self, marker: LastCommit) -> None:
        epoch = 0 if marker.epoch == 1 else 9
        with pytest.raises(SourceDrift, match=f"the lake is ahead of the store: .* has epoch {marker.epoch}, the store ends with {epoch}"):
            check_start("ods.orders", marker, epoch=epoch, identity="3-n" if epoch else "")
