"""Which snapshots of a table go, and which stay whatever the rules say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from snowmelt.errors import InvariantBroken
from snowmelt.maintenance.expiry import ExpiryRules, GoingFiles, count_removable, plan_expiry
from snowmelt.maintenance.files import SnapshotFacts, TableHistory
from snowmelt.model.numbers import EpochNumber

NOW = 1_000_000
RULES = ExpiryRules(count_min=2, count_max=5, age_ms=100)


def history(ages: Sequence[int], *, first: int = 1, held_from: int | None = None, marked: int | None = None) -> TableHistory:
    """Snapshots that are so many milliseconds old, the oldest first. All of the first `marked` name an epoch of ours."""
    marked = len(ages) if marked is None else marked
    return TableHistory(
        identity="",
        snapshots=tuple(
            SnapshotFacts(number=first + at, time_ms=NOW - age, epoch=EpochNumber(at + 1) if at < marked else None)
            for at, age in enumerate(ages)
        ),
        held_from=held_from,
    )


def expired(held: TableHistory, rules: ExpiryRules = RULES) -> tuple[int, ...]:
    return plan_expiry(held, rules, now_ms=NOW)


def test_old_ones_go_and_a_few_stay_however_old_they_are() -> None:
    assert expired(history([900, 800, 700, 600])) == (1, 2)
    assert expired(history([900, 800])) == ()
    assert expired(history([900])) == ()
    assert expired(history([])) == ()


def test_a_snapshot_is_as_old_as_the_one_that_replaced_it() -> None:
    """Readers had it as the newest until then."""
    assert expired(history([900, 100, 50, 40])) == ()
    assert expired(history([900, 101, 50, 40])) == (1,)


def test_too_many_go_however_new_they_are() -> None:
    assert expired(history([70, 60, 50, 40, 30, 20, 10])) == (1, 2)
    assert expired(history([60, 50, 40, 30, 20])) == ()


def test_numbers_are_those_of_the_snapshots_that_exist() -> None:
    assert expired(history([900, 800, 700, 600], first=41)) == (41, 42)


def test_the_first_that_stays_keeps_all_that_are_newer() -> None:
    """Clocks of two writers differ: the third is older than the second says."""
    assert expired(history([900, 800, 50, 700, 600, 500])) == (1,)


@pytest.mark.parametrize(("held_from", "gone"), [(1, ()), (2, (1,)), (3, (1, 2)), (9, (1, 2))])
def test_what_a_reader_needs_stays_and_all_that_is_newer(held_from: int, gone: tuple[int, ...]) -> None:
    assert expired(history([900, 800, 700, 600], held_from=held_from)) == gone


def test_the_newest_that_names_an_epoch_stays() -> None:
    assert expired(history([900, 800, 700, 600, 500, 400], marked=2)) == (1,)
    assert expired(history([900, 800, 700, 600, 500, 400], marked=1)) == ()
    assert expired(history([900, 800, 700, 600, 500, 400], marked=0)) == (1, 2, 3, 4)


def test_one_expiry_has_a_limit() -> None:
    assert expired(history([900] * 10), ExpiryRules(count_min=1, age_ms=0, at_once_max=3)) == (1, 2, 3)


@pytest.mark.parametrize("wrong", [{"count_min": 0}, {"count_min": 3, "count_max": 2}, {"age_ms": -1}, {"at_once_max": 0}])
def test_rules_that_contradict_themselves_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvariantBroken, match="rules of expiry"):
        ExpiryRules(**wrong)


class TestRightBefore:
    """What the plan said is judged again, with the history as it is now."""

    def test_the_oldest_that_were_asked_for_go(self) -> None:
        assert count_removable(history([9, 8, 7, 6]), (1, 2)) == 2
        assert count_removable(history([9, 8, 7, 6]), (2,)) == 0
        assert count_removable(history([9, 8, 7, 6]), (1, 3)) == 1

    def test_the_newest_stays_and_so_does_the_newest_that_names_an_epoch(self) -> None:
        assert count_removable(history([9, 8, 7], marked=0), (1, 2, 3)) == 2
        assert count_removable(history([9, 8, 7, 6], marked=2), (1, 2, 3)) == 1
        assert count_removable(history([]), ()) == 0

    def test_what_has_got_a_holder_meanwhile_stays(self) -> None:
        assert count_removable(history([9, 8, 7, 6], held_from=2), (1, 2, 3)) == 1


class TestFilesThatGo:
    def test_what_the_removed_snapshots_alone_had_is_what_was_removed_in_them_or_in_the_first_that_stays(self) -> None:
        going = GoingFiles()
        going.commit(2, brought={"c"}, removed={"a": 5})
        going.commit(3, brought=set(), removed={"b": 7})
        assert list(going) == ["a", "b"]
        assert (len(going), going.size_bytes) == (2, 12)

    def test_a_file_that_is_lifted_to_another_level_stays(self) -> None:
        going = GoingFiles()
        going.commit(2, brought={"a"}, removed={"a": 5, "b": 1})
        assert list(going) == ["b"]

    def test_a_file_that_comes_back_stays(self) -> None:
        going = GoingFiles()
        going.commit(2, brought=set(), removed={"a": 5})
        going.commit(3, brought={"a"}, removed={})
        assert list(going) == []

    def test_what_no_later_snapshot_has_goes_and_what_is_kept_does_not(self) -> None:
        going = GoingFiles()
        going.drop(2, {"log-a": 3, "log-b": 4})
        going.keep(["log-a", "unknown"])
        assert (list(going), going.size_bytes) == (["log-b"], 4)

    def test_of_the_tags_the_nearest_before_a_removal_is_asked(self) -> None:
        going = GoingFiles()
        going.commit(5, brought=set(), removed={"a": 1})
        going.commit(9, brought=set(), removed={"b": 1})
        assert going.tags_to_ask([2, 4, 5, 7, 9, 12]) == {4, 7}
        assert going.tags_to_ask([9]) == set()
        assert GoingFiles().tags_to_ask([1]) == set()
