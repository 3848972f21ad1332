from __future__ import annotations

import pytest

from snowmelt.commit.watermarks import advance, lowest


@pytest.mark.parametrize(
    ("times_ms", "expected"), [([], None), ([5], 5), ([7, 5, 9], 5), ([None], None), ([5, None], None), ([None, 5], None), ([0, 3], 0)]
)
def test_of_several_sources_the_slowest_decides_and_one_without_a_time_holds_all_back(
    times_ms: list[int | None], expected: int | None
) -> None:
    """M2: the greatest, or the least of those that have one, closes a partition that somebody still writes to."""
    assert lowest(times_ms) == expected


@pytest.mark.parametrize(
    ("before", "times_ms", "after"),
    [(None, [], None), (None, [4], 4), (3, [4], 4), (5, [4], 5), (5, [4, None], None), (5, [], None), (5, [9, 8], 8), (0, [None], None)],
)
def test_a_watermark_never_goes_back_but_to_none(before: int | None, times_ms: list[int | None], after: int | None) -> None:
    assert advance(before, times_ms) == after
