"""Which requests of operators are open, and which are deleted."""

from __future__ import annotations

from snowmelt.commit.requests import KEPT, below_which_to_trim, is_missed, open_requests


def test_a_request_is_open_until_it_has_an_answer_and_the_oldest_goes_first() -> None:
    assert open_requests([3, 1, 2], [2]) == [1, 3]
    assert open_requests([], [1]) == []


def test_the_newest_answered_stay_and_all_from_the_oldest_open_one_on() -> None:
    assert below_which_to_trim([], []) == 0
    every = range(1, KEPT + 5)
    assert below_which_to_trim(every, every) == 5
    assert below_which_to_trim(every, [number for number in every if number != 3]) == 3
    assert below_which_to_trim(range(1, KEPT), range(1, KEPT)) == 0


def test_a_request_that_was_put_below_the_kept_ones_is_missed() -> None:
    every = range(1, KEPT + 5)
    least = below_which_to_trim(every, every)
    assert not is_missed(least, every[-1])
    assert is_missed(least - 1, every[-1])
