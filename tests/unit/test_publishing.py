"""A rewrite takes the place of its inputs once, where all of them still are, and by no driver that a newer one has passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.commit.publish import LastCommit
from snowmelt.errors import Corrupt
from snowmelt.maintenance.files import Rewrite
from snowmelt.maintenance.publishing import PlacedFile, RewritePast, SnapshotNote, fenced, look_back, misplaced

OURS = LastCommit(7, "5-n", 3)
WORK = Rewrite(
    target="ods.t",
    identity="u",
    schema=0,
    snapshot=2,
    partition=(),
    bucket=0,
    inputs=("x", "y"),
    level=5,
    drops_deletes=True,
    file_bytes=9,
)


def notes(*found: tuple[int, SnapshotNote | None]) -> RewritePast:
    return look_back(found, since=2, rewrite="r")


def note(rewrite: str = "", marker: LastCommit | None = None) -> SnapshotNote:
    return SnapshotNote(rewrite, marker)


class TestLookingBack:
    def test_a_snapshot_tells_that_it_happened(self) -> None:
        assert notes((5, note()), (4, note("r", OURS)), (3, note(marker=OURS))).done == 4

    def test_another_rewrite_is_not_ours(self) -> None:
        past = notes((4, note("s")), (3, note(marker=OURS)), (2, note()))
        assert past == RewritePast(whole=True, marker=OURS, hidden=False)

    def test_our_newest_commit_is_the_first_that_is_met(self) -> None:
        older = LastCommit(6, "4-n", 3)
        assert notes((4, note(marker=OURS)), (3, note(marker=older))).marker == OURS

    def test_it_is_looked_for_below_the_inputs_too(self) -> None:
        assert notes((3, note()), (2, note()), (1, note(marker=OURS))).marker == OURS

    def test_a_snapshot_that_is_missing_above_the_inputs_may_have_had_it(self) -> None:
        past = notes((4, note(marker=OURS)), (3, None), (2, note()))
        assert (past.whole, past.hidden) == (False, False)

    def test_one_that_is_missing_below_them_did_not_but_may_have_had_our_newest_commit(self) -> None:
        past = notes((3, note()), (2, None), (1, note(marker=OURS)))
        assert past == RewritePast(whole=True, marker=None, hidden=True)


class TestDrivers:
    def test_the_newest_that_has_committed_and_newer_ones_may_publish(self) -> None:
        past = RewritePast(whole=True, marker=OURS, hidden=False)
        assert fenced(past, ["sm-5-e7-n-f", "compact-1"], 5) == ""
        assert fenced(past, [], 6) == ""
        assert fenced(replace(past, marker=None), [], 1) == ""

    def test_a_zombie_may_not(self) -> None:
        assert "a newer driver has committed" in fenced(RewritePast(whole=True, marker=OURS, hidden=False), [], 4)

    def test_files_of_a_newer_driver_tell_it_too(self) -> None:
        past = RewritePast(whole=True, marker=None, hidden=False)
        assert "a newer driver's files" in fenced(past, ["compact-1", "sm-5-e7-n-f"], 4)

    def test_a_marker_that_can_not_be_read_is_none(self) -> None:
        with pytest.raises(Corrupt, match="properties"):
            fenced(RewritePast(whole=True, marker=LastCommit(7, "theirs", 3), hidden=False), [], 5)


def placed(name: str, level: int = 0, least: int = 1, greatest: int = 9) -> PlacedFile:
    return PlacedFile(name, level, (least,), (greatest,))


class TestPlaces:
    def test_the_outputs_take_the_place_of_their_inputs(self) -> None:
        there = [placed("x"), placed("y", 5), placed("later"), placed("lower", 4)]
        assert misplaced(WORK, [placed("out", 5)], there) == ""

    def test_an_input_that_is_gone_was_truncated_or_compacted(self) -> None:
        assert "an input is not" in misplaced(WORK, [placed("out", 5)], [placed("x")])

    def test_files_of_one_level_do_not_overlap(self) -> None:
        there = [placed("x"), placed("y"), placed("z", 5, 5, 7)]
        assert "the same keys" in misplaced(WORK, [placed("out", 5, 7, 9)], there)
        assert misplaced(WORK, [placed("out", 5, 8, 9), placed("low", 5, 1, 4)], there) == ""

    def test_files_of_level_0_may(self) -> None:
        there = [placed("x"), placed("y"), placed("z")]
        assert misplaced(replace(WORK, level=0), [placed("out")], there) == ""
