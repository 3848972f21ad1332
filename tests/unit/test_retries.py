"""A table whose reads fail waits, and is given up only when it never comes right."""

from __future__ import annotations

import pytest

from snowmelt import budgets
from snowmelt.engine.driver.retries import Retries
from snowmelt.errors import Corrupt, InvalidConfig, Occupied, SourceDrift, TableStuck, Unavailable
from snowmelt.model.table import TableId

TRIES = budgets.READS.tries_max or 0
ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")


@pytest.fixture
def given_up() -> list[TableStuck]:
    return []


@pytest.fixture
def retries(given_up: list[TableStuck]) -> Retries:
    return Retries(given_up.append)


def test_a_table_that_failed_waits_and_no_other_does(retries: Retries) -> None:
    retries.failed(ORDERS, SourceDrift("its schema changed"))
    assert not retries.may(ORDERS)
    assert retries.may(ITEMS)
    retries.succeeded(ORDERS)
    assert retries.may(ORDERS)


@pytest.mark.parametrize("kind", [SourceDrift, Corrupt])
def test_a_table_that_fails_for_ever_is_given_up_whatever_else_succeeds(
    retries: Retries, given_up: list[TableStuck], kind: type[SourceDrift | Corrupt]
) -> None:
    for _ in range(TRIES):
        assert given_up == []
        retries.failed(ORDERS, kind("its schema changed", hint="look"))
        retries.succeeded(ITEMS)
    (stuck,) = given_up
    assert stuck.table == ("shop", "orders")
    assert str(stuck) == f"its schema changed: {TRIES} times in a row, shop.orders (hint: look)"
    assert retries.may(ORDERS)


def test_what_no_repetition_heals_is_given_up_at_once(retries: Retries, given_up: list[TableStuck]) -> None:
    retries.failed(ORDERS, ORDERS.stuck("a key holds a zero date", detail="d"))
    assert [str(stuck) for stuck in given_up] == ["a key holds a zero date: d"]


def test_a_database_that_is_away_for_too_long_ends_the_driver_and_sets_nothing_aside(retries: Retries, given_up: list[TableStuck]) -> None:
    for _ in range(TRIES - 1):
        retries.failed(ORDERS, Unavailable("away"))
    with pytest.raises(Unavailable, match=rf"away: {TRIES} times in a row, shop.orders"):
        retries.failed(ORDERS, Unavailable("away"))
    assert given_up == []


def test_a_table_that_another_session_has_locked_is_waited_for_as_long_as_it_takes(retries: Retries, given_up: list[TableStuck]) -> None:
    for _ in range(3 * TRIES):
        retries.failed(ORDERS, Occupied("locked"))
        assert not retries.may(ORDERS)
        assert retries.may(ITEMS)
    assert given_up == []


@pytest.mark.parametrize("error", [InvalidConfig("no access"), KeyError("a bug")])
def test_what_is_not_of_one_table_stops_at_once(retries: Retries, error: Exception) -> None:
    with pytest.raises(type(error)):
        retries.failed(ORDERS, error)


def test_a_success_begins_the_count_anew(retries: Retries) -> None:
    for _ in range(3 * TRIES):
        retries.failed(ORDERS, Unavailable("away"))
        retries.succeeded(ORDERS)
