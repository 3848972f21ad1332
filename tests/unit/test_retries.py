"""A table whose reads fail waits, and is given up only when it never comes right."""

from __future__ import annotations

import pytest

from snowmelt.engine.retries import FAILED_MAX, Retries
from snowmelt.errors import Corrupt, SourceDrift, Unavailable
from snowmelt.model.table import TableId

ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")


def test_a_table_that_failed_waits_and_no_other_does() -> None:
    retries = Retries()
    retries.failed(ORDERS, SourceDrift("its schema changed"))
    assert not retries.may(ORDERS)
    assert retries.may(ITEMS)
    retries.succeeded(ORDERS)
    assert retries.may(ORDERS)


def test_failing_for_ever_stops_with_the_error_whatever_else_succeeds() -> None:
    retries = Retries()
    for _ in range(FAILED_MAX - 1):
        retries.failed(ORDERS, SourceDrift("its schema changed", hint="look"))
        retries.succeeded(ITEMS)
    with pytest.raises(SourceDrift, match=rf"its schema changed: {FAILED_MAX} times in a row, shop.orders \(hint: look\)"):
        retries.failed(ORDERS, SourceDrift("its schema changed", hint="look"))


@pytest.mark.parametrize("error", [Corrupt("broken"), KeyError("a bug")])
def test_what_does_not_pass_stops_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        Retries().failed(ORDERS, error)


def test_a_success_begins_the_count_anew() -> None:
    retries = Retries()
    for _ in range(3 * FAILED_MAX):
        retries.failed(ORDERS, Unavailable("away"))
        retries.succeeded(ORDERS)
