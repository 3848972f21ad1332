"""What one driver says of whole tables is said until an intent says it, and never of another table of that name."""

from __future__ import annotations

from snowmelt.model.table import TableId
from snowmelt.planning.asides import Requests, Troubles, forget, reborn
from snowmelt.planning.facts import OUTSIDE, Adopted, Covered, Fact, Found, Gone, Incarnation, Reborn, Released, SetAside
from snowmelt.planning.tables import Tables

ORDERS = Incarnation(TableId("shop", "orders"), 1)
AGAIN = Incarnation(ORDERS.table, 5)
FOUND = Found(ORDERS, "ods.orders", True, 3)
LIVE = (FOUND, Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n0", visible=0, high=0, extent=None), Covered(1, 0), Released(ORDERS))
ASIDE = SetAside(ORDERS, 20, 7, "its key has another type")


def book(*facts: Fact) -> Tables:
    tables = Tables()
    for fact in facts:
        tables.apply(fact, 1)
    return tables


class TestTroubles:
    def test_a_trouble_is_proposed_until_an_intent_has_it(self) -> None:
        tables = book(*LIVE)
        troubles = Troubles(tables)
        assert troubles.add(ORDERS.table, ASIDE.why)
        assert list(troubles.propose(20, 7)) == list(troubles.propose(20, 7)) == [ASIDE]
        assert troubles.open == {ORDERS.table}
        tables.apply(ASIDE, 2)
        assert troubles.open == set()
        assert list(troubles.propose(30, 8)) == []

    def test_the_first_reason_counts(self) -> None:
        troubles = Troubles(book(*LIVE))
        assert troubles.add(ORDERS.table, ASIDE.why)
        assert not troubles.add(ORDERS.table, "and it is large")
        assert [fact.why for fact in troubles.propose(20, 7)] == [ASIDE.why]

    def test_a_table_that_was_made_anew_meanwhile_has_none_of_it(self) -> None:
        tables = book(*LIVE)
        troubles = Troubles(tables)
        troubles.add(ORDERS.table, ASIDE.why)
        tables.apply(Reborn(AGAIN, 30, 4))
        assert list(troubles.propose(30, 7)) == []
        assert troubles.add(ORDERS.table, "this one neither")
        assert [fact.incarnation for fact in troubles.propose(30, 7)] == [AGAIN]

    def test_what_is_not_there_or_is_set_aside_already_has_no_trouble(self) -> None:
        for known in ((), (*LIVE, ASIDE), (*LIVE, Gone(ORDERS, 20))):
            troubles = Troubles(book(*known))
            assert not troubles.add(ORDERS.table, ASIDE.why)
            assert list(troubles.propose(20, 7)) == []


class TestRequests:
    def test_a_table_is_asked_for_until_an_intent_has_it_and_by_no_later_driver(self) -> None:
        tables = book(*LIVE, ASIDE)
        requests = Requests([ORDERS.table])
        assert list(requests) == [ORDERS.table]
        for _ in range(2):
            (table,) = requests.open(tables)
            again = reborn(table, epoch=5, at=40)
            assert again == Reborn(AGAIN, 40, 3, asked=True)
        tables.apply(again, 5)
        assert requests.open(tables) == []
        assert list(requests) == []

    def test_one_that_the_ledger_lacks_is_copied_anyway(self) -> None:
        for known in ((), (*LIVE, Gone(ORDERS, 20))):
            assert Requests([ORDERS.table]).open(book(*known)) == []

    def test_one_that_cant_be_had_is_dropped_once(self) -> None:
        requests = Requests([ORDERS.table])
        requests.drop(ORDERS.table)
        requests.drop(ORDERS.table)
        assert requests.open(book(*LIVE)) == []


def test_what_is_excluded_is_forgotten_if_it_is_set_aside_and_only_then() -> None:
    excluded = [ORDERS.table, TableId("shop", "unknown")]
    assert list(forget(book(*LIVE, ASIDE), excluded, 40)) == [Gone(ORDERS, 40)]
    assert list(forget(book(*LIVE), excluded, 40)) == []
