"""Merging keeps the list of manifests short and costs each commit about the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.sinks.paimon.manifests import is_wasteful, run_to_merge

COMMITS = 2_000


def test_small_manifests_are_merged_once_there_are_sixteen_of_them() -> None:
    assert run_to_merge([]) is None
    assert run_to_merge([2] * 15) is None
    assert run_to_merge([2] * 16) == 0
    assert run_to_merge([300, 40, *[2] * 16]) == 2, "a larger one before them is left alone"


def test_merged_ones_are_merged_again_with_what_is_newer() -> None:
    assert run_to_merge([300, *[32] * 16, 2, 2]) == 1
    assert run_to_merge([300, *[32] * 15, *[2] * 15]) is None


def test_what_a_compaction_brought_among_small_ones_does_not_keep_them_from_a_merge() -> None:
    assert run_to_merge([300, 40, *[2] * 8, 20, *[2] * 7]) is None
    assert run_to_merge([300, 40, *[2] * 8, 20, *[2] * 8]) == 2
    assert run_to_merge([300, 40, *[2] * 8, 240, *[2] * 8]) == 1, "what comes of it is large, and nothing small stays before that"


def test_large_ones_are_never_merged_again() -> None:
    assert run_to_merge([256] * 1_000) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(1, 15), st.integers(1, 15))
def test_the_list_stays_short_and_a_commit_rewrites_no_more_than_a_bound(entries: int, few: int, every: int) -> None:
    """Most commits bring few entries, some more."""
    sizes: list[int] = []
    rewritten = 0
    for commit in range(COMMITS):
        first = run_to_merge(sizes)
        if first is not None:
            together = sum(sizes[first:])
            assert together <= 256 * 16 + 16 * 16
            rewritten += together
            sizes[first:] = [together]
        sizes.append(few if commit % every else entries)
    total = sum(sizes)
    assert rewritten <= 2.5 * total, "an entry is merged twice at most, and a little"
    large = sum(size >= 256 for size in sizes)
    assert len(sizes) - large <= 2 * 16 * (large + 1 if entries >= 256 else 1), "a large commit keeps small ones apart"


def test_all_are_written_anew_once_as_much_was_removed_as_is_left() -> None:
    assert not is_wasteful(300, 255)
    assert is_wasteful(300, 256)
    assert not is_wasteful(10_000, 4_999)
    assert is_wasteful(10_000, 5_000)
