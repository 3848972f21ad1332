"""Which files of a bucket are merged next."""

from __future__ import annotations

import pytest

from snowmelt.errors import InvariantBroken
from snowmelt.maintenance.compaction import (
    LEVEL_MAX,
    SHARE_BYTES,
    CompactionRules,
    Merge,
    PlannedRewrite,
    count_runs,
    name_place,
    place_of,
    plan_merge,
    plan_rewrites,
    shares_of,
)
from snowmelt.maintenance.files import BucketFiles, DataFile, TableFiles

RULES = CompactionRules(runs_max=4, size_amplification_percent=50, size_ratio_percent=0, file_bytes=1000)


def file(name: str, size: int, *, level: int = 0, deletes: int = 0, rows: int | None = None) -> DataFile:
    return DataFile(name=name, level=level, size_bytes=size, rows=size if rows is None else rows, deletes=deletes, created_ms=0)


def bucket(*files: DataFile, number: int = 0) -> BucketFiles:
    return BucketFiles(partition=(), bucket=number, files=files)


def fresh(*sizes: int) -> tuple[DataFile, ...]:
    """Files of level 0, the oldest first: a, b, c, …"""
    return tuple(file("abcdefghij"[at], size) for at, size in enumerate(sizes))


def merged(*files: DataFile, rules: CompactionRules = RULES, full: bool = False) -> Merge | None:
    return plan_merge(bucket(*files), rules, keyed=True, full=full)


def joined(*files: DataFile, full: bool = False) -> str:
    """The files that are merged, of a table without a key."""
    merge = plan_merge(bucket(*files), RULES, keyed=False, full=full)
    assert merge is None or (merge.level, merge.drops_deletes) == (0, False)
    return "" if merge is None else "".join(merge.inputs)


class TestWithAKey:
    def test_few_runs_are_left_alone(self) -> None:
        assert merged() is None
        assert merged(*fresh(1, 1, 1)) is None
        # Files of one level are one run.
        assert merged(file("x", 9, level=5), file("y", 9, level=5), *fresh(1, 1)) is None

    def test_runs_of_one_size_become_one_that_has_no_deletes(self) -> None:
        assert merged(*fresh(9, 9, 9, 9)) == Merge(("a", "b", "c", "d"), 4, LEVEL_MAX, True)

    def test_a_large_oldest_run_stays_and_so_do_deletes(self) -> None:
        old = file("old", 1000, level=5)
        assert merged(old, *fresh(9, 9, 9)) == Merge(("a", "b", "c"), 3, 4, False)

    def test_half_of_the_runs_that_start_a_merge_are_left(self) -> None:
        """However the sizes are: three runs become one, and one is left."""
        old, middle = file("old", 10_000, level=5), file("middle", 1000, level=4)
        assert merged(old, middle, *fresh(100, 10)) == Merge(("middle", "a", "b"), 3, 4, False)

    def test_a_run_goes_with_those_that_are_as_large_together(self) -> None:
        old, middle = file("old", 100_000, level=5), file("middle", 27, level=3)
        assert merged(old, middle, *fresh(9, 9, 9)) == Merge(("middle", "a", "b", "c"), 4, 4, False)
        four, five = file("four", 5000, level=4), fresh(9, 9, 9, 9, 9)
        wide = CompactionRules(runs_max=8, size_amplification_percent=50, size_ratio_percent=0)
        assert merged(old, four, file("m", 46, level=3), *five, rules=wide) == Merge(("a", "b", "c", "d", "e"), 5, 2, False)
        assert merged(old, four, file("m", 45, level=3), *five, rules=wide) == Merge(("m", "a", "b", "c", "d", "e"), 6, 3, False)
        wider = CompactionRules(runs_max=8, size_amplification_percent=50, size_ratio_percent=10)
        assert merged(old, four, file("m", 49, level=3), *five, rules=wider) == Merge(("m", "a", "b", "c", "d", "e"), 6, 3, False)

    def test_newer_runs_that_are_too_large_beside_the_oldest_take_it_with_them(self) -> None:
        assert merged(file("old", 54, level=5), *fresh(9, 9, 9)) == Merge(("a", "b", "c"), 3, 4, False)
        assert merged(file("old", 53, level=5), *fresh(9, 9, 9)) == Merge(("old", "a", "b", "c"), 4, 5, True)

    def test_deletes_of_many_rows_take_the_oldest_run_with_them(self) -> None:
        """Their files are small, and what they delete is not."""
        old = file("old", 1000, level=5, rows=100)
        few, many = (tuple(file(name, 1, deletes=count) for name in "abc") for count in (16, 17))
        assert merged(old, *few) == Merge(("a", "b", "c"), 3, 4, False)
        assert merged(old, *many) == Merge(("old", "a", "b", "c"), 4, 5, True)

    def test_a_table_that_does_not_say_how_many_deletes_it_has_goes_by_size(self) -> None:
        old = file("old", 1000, level=5, rows=1)
        assert merged(old, *(file(name, 1, deletes=-1) for name in "abc")) == Merge(("a", "b", "c"), 3, 4, False)

    def test_the_output_is_above_level_0_and_below_what_is_left(self) -> None:
        """Another program's compaction left runs at levels 1 and 2; below 1 there is no room for an output."""
        old, one = file("old", 10_000, level=2), file("one", 1000, level=1)
        wide = CompactionRules(runs_max=6, size_amplification_percent=50, size_ratio_percent=0, file_bytes=1000)
        assert merged(old, one, *fresh(9, 9, 9, 9), rules=wide) == Merge(("one", "a", "b", "c", "d"), 5, 1, False)
        assert merged(file("old", 10_000, level=1), *fresh(9, 9, 9)) == Merge(("old", "a", "b", "c"), 4, LEVEL_MAX, True)

    def test_a_file_of_level_0_is_never_left_below_the_output(self) -> None:
        assert merged(file("old", 1000), *fresh(9, 9, 9)) == Merge(("old", "a", "b", "c"), 4, LEVEL_MAX, True)

    def test_levels_above_ours_are_kept(self) -> None:
        assert merged(file("old", 10, level=7), *fresh(9, 9, 9)) == Merge(("old", "a", "b", "c"), 4, 7, True)

    def test_a_full_merge_leaves_one_run_without_deletes(self) -> None:
        old = file("old", 10_000, level=5)
        assert merged(old, file("new", 1), full=True) == Merge(("old", "new"), 2, 5, True)
        assert merged(file("only", 1), full=True) == Merge(("only",), 1, 5, True)
        assert merged(file("old", 10, level=5, deletes=1), full=True) == Merge(("old",), 1, 5, True)
        assert merged(old, full=True) is None
        assert merged(full=True) is None


class TestWithoutAKey:
    def test_few_small_files_are_left_alone(self) -> None:
        assert joined(*fresh(9, 9, 9)) == ""

    def test_small_neighbours_are_joined_in_their_order(self) -> None:
        assert joined(*fresh(9, 9, 9, 9)) == "abcd"

    def test_what_was_joined_before_is_rewritten_only_with_as_much_again(self) -> None:
        assert joined(*fresh(100, 9, 9, 9)) == "bcd"
        assert joined(*fresh(27, 9, 9, 9)) == "abcd"

    def test_nothing_is_joined_across_a_large_file(self) -> None:
        assert joined(*fresh(9, 9, 500, 9, 9)) == ""
        assert joined(*fresh(9, 9, 9, 9, 500, 9, 9)) == "abcd"
        assert joined(*fresh(9, 9, 500, 9, 9, 9, 9)) == "defg"

    def test_all_small_neighbours_are_joined_on_request(self) -> None:
        assert joined(*fresh(100, 9), full=True) == "ab"
        assert joined(*fresh(9, 9, 500, 9), full=True) == "ab"
        assert joined(*fresh(9, 500, 9), full=True) == ""


def test_runs_are_counted_as_they_start_a_merge() -> None:
    assert count_runs(bucket(file("x", 9, level=5), file("y", 9, level=5), *fresh(1, 1)), RULES, keyed=True) == 3
    assert count_runs(bucket(*fresh(9, 9, 500, 9)), RULES, keyed=False) == 1


def test_a_table_has_a_rewrite_for_each_bucket_that_needs_one_the_fullest_first() -> None:
    files = TableFiles(
        snapshot=7,
        identity="u",
        schema=3,
        keyed=True,
        buckets=(bucket(*fresh(9, 9, 9, 9)), bucket(*fresh(9), number=1), bucket(*fresh(9, 9, 9, 9, 9), number=2)),
    )
    first, second = plan_rewrites("ods.t", files, RULES)
    assert (first.place, first.fewer, second.place, second.fewer) == ("2", 4, "0", 3)
    rewrite = second.rewrite
    assert (rewrite.target, rewrite.identity, rewrite.schema, rewrite.snapshot, rewrite.bucket) == ("ods.t", "u", 3, 7, 0)
    assert (rewrite.inputs, rewrite.level, rewrite.drops_deletes, rewrite.file_bytes) == (("a", "b", "c", "d"), 5, True, 1000)
    assert [one.rewrite.bucket for one in plan_rewrites("ods.t", files, RULES, full=True)] == [2, 0, 1]


def test_buckets_of_two_partitions_have_different_names() -> None:
    assert place_of(bucket(number=4)) == "4"
    assert name_place(("a", 1), 4) != name_place(("a", "1"), 4)


@pytest.mark.parametrize("wrong", [{"runs_max": 1}, {"size_amplification_percent": 0}, {"size_ratio_percent": -1}, {"file_bytes": 0}])
def test_rules_that_can_not_hold_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvariantBroken, match="rules of compaction"):
        CompactionRules(**wrong)


def test_small_rewrites_are_one_tasks_and_a_large_one_has_its_own() -> None:
    files = TableFiles(snapshot=3, identity="u", schema=0, keyed=True, buckets=(bucket(*fresh(9, 8)),))
    ((rewrite, size),) = ((one.rewrite, one.size_bytes) for one in plan_rewrites("ods.t", files, RULES, full=True))
    assert size == 17

    def sizes(*given: int) -> list[list[int]]:
        works = [PlannedRewrite(rewrite, "0", 7, size) for size in given]
        return [[work.size_bytes for work in share] for share in shares_of(works)]

    half, whole = SHARE_BYTES // 2, SHARE_BYTES
    assert sizes() == []
    assert sizes(half, half, 1) == [[half, half], [1]]
    assert sizes(9 * whole, 1, 2 * whole, 1, 2) == [[9 * whole], [1], [2 * whole], [1, 2]]
