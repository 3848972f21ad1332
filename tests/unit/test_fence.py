"""Where a round begins, and whether it may still be published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.errors import Fenced, SourceDrift
from snowmelt.model.fluss import Bucket
from snowmelt.tiering.fence import Base, KnownToFluss, LakeView, PublishRound, RoundInLake, Start, Tiered, Untold, decide_start, judge
from snowmelt.tiering.offsets import Offsets

TABLE = 5
ENDS = {Bucket(TABLE, 0): 40}
OFFSETS = Offsets(TABLE, ENDS)
NEWEST = Tiered(8, "p8")
LAKE = LakeView(identity="u", schema=1, latest=9, whole_from=3, tiered=(NEWEST,), rows=True)
EMPTY = LakeView(identity="u", schema=0, latest=0, whole_from=1, tiered=(), rows=False)
BASE = Base("u", 1, 9)


class TestBeginning:
    def test_it_begins_where_the_lakes_newest_tiered_snapshot_ends(self) -> None:
        assert decide_start(TABLE, LAKE, OFFSETS, KnownToFluss(8, {Bucket(TABLE, 0): 1})) == Start(BASE, OFFSETS)

    @pytest.mark.parametrize("known", [None, KnownToFluss(7, ENDS)])
    def test_fluss_is_told_first_of_what_it_never_learned_of(self, known: KnownToFluss | None) -> None:
        """T3: whoever tiered it died between the lake's commit and Fluss'."""
        assert decide_start(TABLE, LAKE, OFFSETS, known) == Untold(NEWEST)

    def test_a_table_that_was_never_tiered_begins_with_nothing(self) -> None:
        assert decide_start(TABLE, EMPTY, None, None) == Start(Base("u", 0, 0), Offsets(TABLE, {}))

    def test_rows_of_which_nobody_knows_how_far_they_go_are_never_taken_for_none(self) -> None:
        with pytest.raises(SourceDrift, match="no record of how far"):
            decide_start(TABLE, replace(LAKE, tiered=()), None, None)

    @pytest.mark.parametrize("offsets", [None, Offsets(4, {})])
    def test_a_lake_table_of_another_fluss_table_stops(self, offsets: Offsets | None) -> None:
        with pytest.raises(SourceDrift, match="of another Fluss table"):
            decide_start(TABLE, LAKE, offsets, None)

    def test_a_lake_that_went_back_stops(self) -> None:
        with pytest.raises(SourceDrift, match="does not have what Fluss says"):
            decide_start(TABLE, LAKE, OFFSETS, KnownToFluss(9, ENDS))

    def test_a_snapshot_that_is_missing_behind_the_newest_tiered_one_may_have_been_a_round(self) -> None:
        with pytest.raises(SourceDrift, match="lacks snapshots after its newest tiered one"):
            decide_start(TABLE, replace(LAKE, whole_from=9), OFFSETS, KnownToFluss(8, ENDS))

    def test_where_it_is_expired_fluss_is_believed_if_nothing_can_be_hidden(self) -> None:
        expired = replace(LAKE, tiered=())
        for snapshot in (2, 8, 9):
            assert decide_start(TABLE, expired, None, KnownToFluss(snapshot, ENDS)) == Start(BASE, OFFSETS)
        for snapshot in (1, 10):
            with pytest.raises(SourceDrift, match="does not have what Fluss says"):
                decide_start(TABLE, expired, None, KnownToFluss(snapshot, ENDS))


class TestFence:
    def test_a_round_is_published_on_what_it_was_judged_by(self) -> None:
        assert judge(BASE, "mine", LAKE) == PublishRound(9)

    def test_a_compaction_in_between_is_no_hindrance(self) -> None:
        assert judge(BASE, "mine", replace(LAKE, latest=12, tiered=())) == PublishRound(12)

    def test_a_round_that_came_first_fences(self) -> None:
        """T1: the table was handed out again while we slept."""
        with pytest.raises(Fenced, match="another round of this table came first"):
            judge(BASE, "mine", replace(LAKE, latest=10, tiered=(Tiered(10, "theirs"), NEWEST)))

    def test_a_lost_answer_is_not_a_lost_request(self) -> None:
        there = replace(LAKE, latest=12, tiered=(Tiered(12, "theirs"), Tiered(10, "mine"), NEWEST))
        assert judge(BASE, "mine", there) == RoundInLake(10)

    def test_what_somebody_removed_may_have_been_a_round(self) -> None:
        with pytest.raises(Fenced, match="snapshots were removed"):
            judge(BASE, "mine", replace(LAKE, latest=14, whole_from=11, tiered=()))
        assert judge(BASE, "mine", replace(LAKE, latest=14, whole_from=10, tiered=())) == PublishRound(14)

    @pytest.mark.parametrize(
        ("change", "said"), [({"identity": "v"}, "made anew"), ({"latest": 8}, "lost snapshots"), ({"schema": 2}, "schema was changed")]
    )
    def test_a_table_that_is_another_now_fences(self, change: dict[str, object], said: str) -> None:
        with pytest.raises(Fenced, match=said):
            judge(BASE, "mine", replace(LAKE, **change))  # type: ignore[arg-type]
