"""One policy for what is tried again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from snowmelt import budgets
from snowmelt.budgets import RetryBudget

NAMED = {name: value for name, value in vars(budgets).items() if isinstance(value, RetryBudget)}


def test_the_wait_doubles_up_to_its_limit() -> None:
    budget = RetryBudget(first_s=0.5, longest_s=3.0)
    assert [budget.pause_s(failures) for failures in range(6)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]


def test_years_of_failures_do_not_overflow() -> None:
    assert RetryBudget(first_s=0.1, longest_s=5.0).pause_s(10**9) == 5.0


def test_a_budget_is_spent_by_as_many_failures_as_it_has_tries() -> None:
    budget = RetryBudget(tries_max=3)
    assert [budget.is_spent(failures) for failures in range(5)] == [False, False, False, True, True]
    assert list(budget.tries()) == [0, 1, 2]
    assert budget.retries_max == 2


def test_a_budget_without_a_limit_is_never_spent() -> None:
    budget = RetryBudget(first_s=1.0, longest_s=1.0)
    assert not budget.is_spent(10**9)
    assert list(itertools.islice(budget.tries(), 3)) == [0, 1, 2]
    assert budget.retries_max is None


@pytest.mark.parametrize("name", NAMED)
def test_a_named_budget_can_be_used(name: str) -> None:
    budget = NAMED[name]
    assert budget.tries_max is None or budget.tries_max >= 2
    assert budget.first_s <= budget.longest_s
    assert budget.tries_max is not None or budget.first_s > 0, "tried for ever without a wait"


def test_each_budget_is_some_steps() -> None:
    """One that no step takes says what is not so."""
    source = Path(budgets.__file__).parent
    texts = "\n".join(path.read_text() for path in source.rglob("*.py"))
    assert [name for name in NAMED if f"budgets.{name}" not in texts] == []
