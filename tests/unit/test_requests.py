"""Which requests of operators are open, and which are deleted."""

from __future__ import annotations

from snowmelt.commit.requests import KEPT, below_which_to_trim, is_missed, open_requests


def test_a_request_is_open_until_it_has_an_answer_and_the_oldest_goes_first() -> None:
    assert open_requests([3, 1, 2], [2]) == [1, 3]
    assert open_requests([], [1]) == []


def test_a_request_that_was_missed_is_never_taken_up_and_goes() -> None:
    answered = range(5, KEPT + 5)
    assert open_requests([1, *answered, KEPT + 5], answered) == [KEPT + 5]
    assert below_which_to_trim(answered) == 5


def test_the_newest_answered_stay_and_no_open_one_goes() -> None:
    assert below_which_to_trim([]) == 0
    assert below_which_to_trim(range(1, KEPT)) == 0
    every = range(1, KEPT + 5)
    assert below_which_to_trim(every) == 5
    for late in every:
        answers = [number for number in every if number != late]
        assert all(number >= below_which_to_trim(answers) for number in open_requests(every, answers))


def test_a_request_that_was_put_below_the_kept_ones_is_missed() -> None:
    every = range(1, KEPT + 5)
    least = below_which_to_trim(every)
    assert not is_missed(least, every[-1])
    assert is_missed(least - 1, every[-1])
