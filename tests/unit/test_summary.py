"""A restart from a summary is a restart from the records behind it, whatever state the tables were in."""

from __future__ import annotations

import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Committed, Done, Intent
from snowmelt.commit.summary import Summary, restore, summarise
from snowmelt.errors import InvariantBroken
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import decide_launches, plan_epoch
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Durable,
    Found,
    Gone,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Recopied,
    SetAside,
    Split,
)
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Cut, Relay
from snowmelt.store.codec import decode, encode

ORDERS = Incarnation(TableId("shop", "orders"), 1)
ITEMS = Incarnation(TableId("shop", "items"), 1)
EXTENT = KeyEnds(b"\x01", b"\x09")
BIG = Split(ORDERS, 1, tuple(bytes([n]) for n in (1, 2, 3, 4, 5, 6, 7, 9)), True)

STORY: list[tuple[Durable, ...]] = [
    (Found(ORDERS, "ods.orders", True, 1),),
    (Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n", visible=3, high=4, extent=EXTENT), Found(ITEMS, "ods.items", False, 2)),
    (BIG,),
    tuple(Adopted(incarnation=ORDERS, ordinal=ordinal, nonce="n", visible=9, high=11) for ordinal in (1, 2, 3, 4, 6)),
    (
        Adopted(incarnation=ORDERS, ordinal=5, nonce="n", visible=9, high=38),
        Adopted(incarnation=ITEMS, ordinal=OUTSIDE, nonce="n", visible=9, high=99, extent=None),
    ),
    tuple(Adopted(incarnation=ORDERS, ordinal=ordinal, nonce="n", visible=9, high=11) for ordinal in (8, 7)),
    (Recopied(ORDERS, 60),),
    (Gone(ITEMS, 70),),
    (SetAside(ORDERS, 80, 800, "its key has another type"),),
    (Reborn(Incarnation(ORDERS.table, 10), 90, 4, asked=True),),
]
"""Epochs of two tables: split, adopted with gaps, caught up, let go of, read again, dropped, set aside, asked for again."""


def told(length: int) -> tuple[Ledger, list[tuple[Intent, Done]]]:
    ledger, records = Ledger(), []
    for number, facts in enumerate(STORY[:length], start=1):
        end = ledger.upto + 10
        intent = Intent(
            epoch=number,
            generation=1 + number // 4,
            nonce=f"n{number}",
            after=ledger.upto,
            upto=end,
            time_ms=100 * number,
            facts=facts,
            entries=(),
            sequence_max=2 * end + 1,
            segment=number,
        )
        ledger.apply_intent(intent)
        done = ledger.decide_done((Committed("ods.orders", number), Committed("ods.items", 1)), f"heard {number}")
        ledger.apply_done(done)
        records.append((intent, done))
    return ledger, records


def state(ledger: Ledger) -> dict[str, object]:
    return {**vars(ledger), "tables": {**vars(ledger.tables), "_readings": {}, "_failures": {}}}


def stored(ledger: Ledger) -> Ledger:
    """Through the store and back."""
    summary = summarise(ledger)
    assert decode(Summary, encode(summary)) == summary
    return restore(decode(Summary, encode(summary)))


@pytest.mark.parametrize("length", range(len(STORY) + 1))
def test_a_summary_at_any_epoch_holds_all_that_the_records_said(length: int) -> None:
    ledger, _ = told(length)
    assert state(stored(ledger)) == state(ledger)
    assert [table.incarnation for table in stored(ledger).tables] == [table.incarnation for table in ledger.tables]


@pytest.mark.parametrize("length", range(len(STORY) + 1))
def test_the_records_behind_a_summary_lead_to_where_all_records_lead(length: int) -> None:
    whole, records = told(len(STORY))
    again = stored(told(length)[0])
    for intent, done in records[length:]:
        again.apply_intent(decode(Intent, encode(intent)))
        again.apply_done(decode(Done, encode(done)))
    assert state(again) == state(whole)


def test_reads_under_way_are_in_no_summary() -> None:
    """They are the driver's own, and die with it."""
    ledger, _ = told(3)
    before = summarise(ledger)
    ledger.tables.apply(Launched(ORDERS, 1, 1, 20, 0))
    assert summarise(ledger) == before
    assert list(stored(ledger).tables.readings()) == []


def test_an_open_epoch_is_not_summed_up() -> None:
    ledger, _ = told(2)
    ledger.apply_intent(
        Intent(epoch=3, generation=1, nonce="n3", after=20, upto=30, time_ms=None, facts=(BIG,), entries=(), sequence_max=61, segment=3)
    )
    with pytest.raises(InvariantBroken, match="an open epoch is summed up"):
        summarise(ledger)


class TestReleased:
    """Seeds 000 and 001: the light state."""

    def released(self) -> Ledger:
        ledger, _ = told(6)
        assert [table.phase for table in ledger.tables] == [TablePhase.RELEASED, TablePhase.CATCHING_UP]
        return ledger

    def test_what_is_let_go_of_is_not_in_the_summary(self) -> None:
        orders, items = summarise(self.released()).tables
        assert orders.copy is None
        assert items.copy is not None
        assert len(encode(summarise(self.released()))) < len(encode(summarise(told(3)[0])))

    def test_a_restart_neither_finds_nor_reads_a_released_table_again(self) -> None:
        ledger, relay = stored(self.released()), Relay()
        relay.apply(relay.decide_record(1, "s", Position(1, 4), Position(1, 104), (Cut(100, 1),)))
        assert decide_launches(ledger.tables, relay, visible=100, job=1, running_max=9) == []
        plan = plan_epoch(
            ledger.tables,
            relay,
            epoch=7,
            generation=2,
            follows=ledger.identity,
            after=60,
            upto=100,
            proposals=[Found(ORDERS, "ods.orders", True, 1), BIG],
        )
        assert plan.facts == ()
        assert plan.rules == {}
        assert plan.rule(ledger.tables.known(ORDERS)).emits_all

    def test_to_ask_for_what_was_let_go_of_is_an_error_after_a_restart_too(self) -> None:
        ledger = stored(self.released())
        with pytest.raises(InvariantBroken, match="metadata is asked for after its release"):
            ledger.tables.copy_of(ORDERS)

    def test_a_table_that_was_catching_up_is_let_go_of_after_a_restart(self) -> None:
        ledger = stored(self.released())
        ledger.apply_intent(
            Intent(epoch=7, generation=2, nonce="n7", after=60, upto=100, time_ms=None, facts=(), entries=(), sequence_max=201, segment=7)
        )
        assert ledger.apply_done(ledger.decide_done((), "")) == [ITEMS]

    def test_listeners_snapshots_and_watermarks_survive(self) -> None:
        ledger = stored(self.released())
        assert ledger.listeners == "heard 6"
        assert ledger.snapshots == {"ods.items": 1, "ods.orders": 6}
        assert ledger.watermarks == {"ods.items": 600, "ods.orders": 600}
