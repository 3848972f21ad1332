"""What an epoch emits and adopts is fixed in its plan. Each test tells of a row that was lost, doubled or stale without its rule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest

from snowmelt.errors import SourceDrift
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import (
    Adopting,
    EpochPlan,
    Rule,
    Span,
    choose_end,
    decide_launches,
    plan_epoch,
    span_of,
    statements_wait,
    turn_of,
    visible_cut,
)
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Covered,
    Durable,
    Fact,
    Found,
    GivenBack,
    Gone,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Recopied,
    Released,
    Reported,
    Reshaped,
    SetAside,
    Split,
    Truncated,
)
from snowmelt.planning.tables import TablePhase, Tables
from snowmelt.relay.retention import Cut, Decided, Effect, Prepared, Relay, TableStatement
from tests.kit.emitting import emits

ORDERS = Incarnation(TableId("shop", "orders"), 1)
ITEMS = Incarnation(TableId("shop", "items"), 1)
AGAIN = Incarnation(ORDERS.table, 2)
EXTENT = KeyEnds(b"\x01", b"\x09")

FOUND = Found(ORDERS, "ods.orders", True, 1)
OUTER = Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n0", visible=0, high=0, extent=EXTENT)
BOUNDS = Split(ORDERS, 1, (b"\x03", b"\x06", b"\x09"), True)
COPYING = (FOUND, OUTER, BOUNDS)
LIVE = (FOUND, Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n0", visible=0, high=0, extent=None), Covered(1, 0), Released(ORDERS))


appends = partial(emits, keyed=False)
"""For a table whose changes are rows of their own."""


def book(*facts: Fact) -> Tables:
    tables = Tables()
    for fact in facts:
        tables.apply(fact, 1)
    return tables


def captured(*statements: TableStatement, end: int = 100, era: int = 0) -> Relay:
    """A log with a transaction every ten bytes."""
    relay = Relay()
    cuts = tuple(Cut(offset, offset) for offset in range(10, end + 1, 10))
    relay.apply(relay.decide_record(1, "s", Position(1, 4, era), Position(1, 4 + end, era), cuts, statements))
    return relay


def plan(tables: Tables, relay: Relay, after: int, upto: int, *proposals: Durable) -> EpochPlan:
    return plan_epoch(tables, relay, epoch=2, generation=1, follows="1-n", after=after, upto=upto, proposals=proposals)


def launched(ordinal: int, job: int, visible: int, *, incarnation: Incarnation = ORDERS, era: int = 0) -> Launched:
    return Launched(incarnation, ordinal, job, visible, era)


def reported(
    ordinal: int,
    job: int,
    high: int,
    *,
    exact: bool = True,
    schema: int = 1,
    incarnation: Incarnation = ORDERS,
    extent: KeyEnds | None = None,
) -> Reported:
    return Reported(
        incarnation=incarnation,
        ordinal=ordinal,
        job=job,
        nonce=f"n{job}",
        high=high,
        exact=exact,
        schema=schema,
        files=(f"f{job}",),
        extent=extent,
    )


def adoptions(found: EpochPlan) -> list[int]:
    return [fact.ordinal for fact in found.facts if isinstance(fact, Adopted)]


def upto(mark: int, offset: int) -> Callable[[Adopting], bool]:
    """A read's mark that is a place in the log."""
    return lambda adopting: offset <= mark


class TestAdoption:
    def test_a_report_that_comes_after_the_plan_waits_for_a_later_one(self) -> None:
        """A1: the log tasks of this epoch have dropped the chunk's changes; adopted now, they would be lost."""
        tables, relay = book(*COPYING, launched(1, 1, 20), launched(2, 2, 20), reported(1, 1, 30)), captured()
        first = plan(tables, relay, 20, 60)
        tables.apply(reported(2, 2, 30))
        assert adoptions(first) == [1]
        for fact in first.facts:
            tables.apply(fact, 2)
        second = plan(tables, relay, 60, 90)
        assert adoptions(second) == [2]
        assert second.low == 20, "the changes that the first epoch dropped are read again"

    def test_a_chunk_is_adopted_by_the_first_epoch_that_ends_at_or_behind_its_high_end(self) -> None:
        tables, relay = book(*COPYING, launched(1, 1, 20), reported(1, 1, 50)), captured()
        assert adoptions(plan(tables, relay, 20, 40)) == []
        assert plan(tables, relay, 20, 40).given_back == ()
        assert adoptions(plan(tables, relay, 20, 50)) == [1]

    def test_the_adopting_epoch_emits_from_the_visible_cut_on_what_the_read_lacks(self) -> None:
        """A3: what an earlier epoch dropped, and what was logged at the launch but not shown yet."""
        tables, relay = book(*COPYING, launched(1, 1, 20), reported(1, 1, 50)), captured()
        found = plan(tables, relay, 40, 60)
        rule = found.rules[ORDERS.table]
        (adopting,) = rule.adopting
        assert (adopting.visible, adopting.span, adopting.replaces) == (20, Span(None, b"\x03"), False)
        assert (found.low, rule.low, rule.after) == (20, 20, 40)

        def goes(offset: int, mark: int, *, keyed: bool = False) -> bool:
            return emits(rule, offset=offset, adopted=False, adopting=adopting, keyed=keyed, covered=upto(mark, offset))

        assert [offset for offset in range(10, 70, 10) if goes(offset, 30)] == [40, 50, 60], "also 40, which the epoch before dropped"
        assert [offset for offset in range(10, 70, 10) if goes(offset, 0)] == [30, 40, 50, 60], "a mark that knows nothing"
        again = [offset for offset in range(10, 70, 10) if goes(offset, 60, keyed=True)]
        assert again == [30, 40, 50, 60], "where rows have keys no mark is asked"

    def test_changes_of_a_chunk_are_dropped_before_it_is_adopted_and_go_on_afterwards(self) -> None:
        tables, relay = (
            book(
                *COPYING,
                Adopted(incarnation=ORDERS, ordinal=1, nonce="n", visible=10, high=20),
                Adopted(incarnation=ORDERS, ordinal=3, nonce="n", visible=10, high=20),
            ),
            captured(),
        )
        rule = plan(tables, relay, 40, 60).rules[ORDERS.table]
        assert (rule.emits_all, rule.outside, rule.extent) == (False, True, EXTENT)
        assert rule.adopted == (Span(None, b"\x03"), Span(b"\x06", b"\x09"))
        assert rule.low == 40
        assert appends(rule, offset=50, adopted=True, adopting=None, covered=upto(0, 50))
        assert not appends(rule, offset=50, adopted=False, adopting=None, covered=upto(0, 50))
        assert not appends(rule, offset=40, adopted=True, adopting=None, covered=upto(0, 40)), "the epoch before emitted it"

    def test_what_lies_outside_has_its_log_from_its_own_visible_cut_on(self) -> None:
        """L5, A13: a row inserted beyond the greatest key between the read of the ends and its adoption."""
        tables = book(FOUND, launched(OUTSIDE, 1, 20), reported(OUTSIDE, 1, 30, extent=EXTENT))
        found = plan(tables, captured(), 50, 70)
        (adopting,) = found.rules[ORDERS.table].adopting
        assert adopting.span is None
        assert found.low == 20
        assert found.facts == (Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n1", visible=20, high=30, extent=EXTENT),)
        assert appends(found.rules[ORDERS.table], offset=40, adopted=False, adopting=adopting, covered=upto(30, 40))

    def test_an_empty_table_is_all_outside(self) -> None:
        tables = book(FOUND, Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n", visible=10, high=10, extent=None))
        rule = plan(tables, captured(), 10, 20).rule(tables.known(ORDERS))
        assert rule == Rule(incarnation=ORDERS, after=10, emits_all=True)
        replacing = book(*LIVE, Recopied(ORDERS, 5))
        assert plan(replacing, captured(), 10, 20).rules == {}, "nothing is held back of a table that the lake has"

    def test_a_chunk_row_loses_against_every_change_behind_the_visible_cut_and_wins_over_all_before_it(self) -> None:
        """A3, A8: and never has the sequence of a change, for a tie is decided differently by every reader."""
        assert sequence.of_change(20) < sequence.of_chunk(20) < sequence.of_change(21)
        assert sequence.of_change(20) != sequence.of_change(21)

    def test_an_append_only_table_takes_exact_reads_only(self) -> None:
        """A10: a key that was inserted between the two ends of a mark would be there as read and as inserted."""
        appended = (Found(ORDERS, "ods.orders", False, 1), launched(OUTSIDE, 1, 20))
        unsure = plan(book(*appended, reported(OUTSIDE, 1, 30, exact=False)), captured(), 20, 60)
        assert unsure.given_back == (GivenBack(ORDERS, OUTSIDE, 1, "an append-only table needs an exact read"),)
        assert adoptions(unsure) == []
        assert adoptions(plan(book(*appended, reported(OUTSIDE, 1, 30)), captured(), 20, 60)) == [OUTSIDE]
        keyed = book(FOUND, launched(OUTSIDE, 1, 20), reported(OUTSIDE, 1, 30, exact=False))
        assert adoptions(plan(keyed, captured(), 20, 60)) == [OUTSIDE]

    def test_a_read_that_shows_less_than_was_proven_is_given_back(self) -> None:
        """L1: it was answered by another server, which lags. Changes between the two would be neither in the read nor emitted."""
        tables = book(*COPYING, launched(1, 1, 40), reported(1, 1, 30))
        assert plan(tables, captured(), 20, 60).given_back == (GivenBack(ORDERS, 1, 1, "the read shows less than was proven visible"),)

    def test_a_read_of_a_server_that_is_not_the_logs_is_given_back(self) -> None:
        """A14, L12: places of two servers can't be compared, and a restarted one may number anew."""
        tables = book(*COPYING, launched(1, 1, 20, era=1), reported(1, 1, 30))
        assert plan(tables, captured(era=2), 20, 60).given_back == (GivenBack(ORDERS, 1, 1, "the server changed while it was read"),)

    def test_a_live_table_without_a_statement_is_in_no_plan(self) -> None:
        """A15: a plan is as large as what is unfinished."""
        tables = book(*LIVE, Found(ITEMS, "ods.items", True, 1))
        found = plan(tables, captured(), 20, 60)
        assert list(found.rules) == [ITEMS.table]
        assert found.rule(tables.known(ORDERS)) == Rule(incarnation=ORDERS, after=20, emits_all=True)

    def test_a_read_reaches_back_for_its_own_table_alone(self) -> None:
        """A15."""
        other = (
            Found(ITEMS, "ods.items", True, 1),
            Adopted(incarnation=ITEMS, ordinal=OUTSIDE, nonce="n", visible=0, high=0, extent=EXTENT),
        )
        tables = book(*COPYING, *other, launched(2, 1, 20), reported(2, 1, 30))
        found = plan(tables, captured(), 50, 70)
        assert (found.low, found.rules[ORDERS.table].low, found.rules[ITEMS.table].low) == (20, 20, 50)

    def test_a_table_that_the_lake_has_nothing_of_emits_nothing(self) -> None:
        """Found a while ago and not read yet, found by this very epoch, or dropped."""
        for tables, proposals in ((book(FOUND), ()), (Tables(), (FOUND,))):
            found = plan(tables, captured(), 20, 60, *proposals)
            assert found.rules == {ORDERS.table: Rule(incarnation=ORDERS, after=20, emits_all=False)}
            assert not appends(found.rules[ORDERS.table], offset=50, adopted=False, adopting=None, covered=upto(0, 50))
        gone = book(*LIVE, Gone(ORDERS, 20))
        found = plan(gone, captured(), 20, 60)
        assert found.rules == {}
        assert not found.rule(gone.known(ORDERS)).emits_all

    def test_planning_changes_nothing_and_says_the_same_again(self) -> None:
        tables, relay = book(*COPYING, launched(1, 1, 20), reported(1, 1, 30)), captured()
        before = copy.deepcopy((vars(tables), vars(relay)))
        assert plan(tables, relay, 20, 60) == plan(tables, relay, 20, 60)
        assert (vars(tables), vars(relay)) == before


class TestReadingAgain:
    """A7, L13."""

    TABLES = (
        *LIVE,
        Recopied(ORDERS, 5),
        Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n", visible=10, high=10, extent=EXTENT),
        Split(ORDERS, 1, (b"\x09",), True),
    )

    def test_the_log_lane_goes_on_while_a_range_is_read_again(self) -> None:
        tables = book(*self.TABLES, launched(1, 1, 20))
        found = plan(tables, captured(), 40, 60)
        rule = found.rule(tables.known(ORDERS))
        assert appends(rule, offset=50, adopted=False, adopting=None, covered=upto(0, 50))

    def test_the_adopting_epoch_emits_again_from_the_visible_cut_on_whatever_the_mark_says(self) -> None:
        tables = book(*self.TABLES, launched(1, 1, 20), reported(1, 1, 30))
        rule = plan(tables, captured(), 40, 60).rules[ORDERS.table]
        (adopting,) = rule.adopting
        assert adopting.replaces
        told = [
            offset
            for offset in range(10, 70, 10)
            if appends(rule, offset=offset, adopted=True, adopting=adopting, covered=upto(99, offset))
        ]
        assert told == [30, 40, 50, 60]

    def test_a_read_that_is_newer_than_the_epochs_beginning_holds_nothing_back(self) -> None:
        """The lake has the range: what lies between the epoch's beginning and the visible cut is this epoch's to emit."""
        tables = book(*self.TABLES, launched(1, 1, 50), reported(1, 1, 50))
        rule = plan(tables, captured(), 20, 60).rules[ORDERS.table]
        (adopting,) = rule.adopting
        told = [
            offset
            for offset in range(10, 70, 10)
            if appends(rule, offset=offset, adopted=True, adopting=adopting, covered=upto(99, offset))
        ]
        assert told == [30, 40, 50, 60]


class TestStatements:
    EMPTIES = TableStatement(30, ORDERS.table, Effect.EMPTIES, 1)
    RESHAPES = TableStatement(30, ORDERS.table, Effect.RESHAPES, 2)

    def test_a_statement_behind_the_visible_cut_gives_the_chunk_back(self) -> None:
        """L6, L14, A12: it may have been read before the statement, behind it, or in another shape."""
        for statement in (self.EMPTIES, self.RESHAPES):
            tables = book(*COPYING, launched(1, 1, 20), reported(1, 1, 25))
            found = plan(tables, captured(statement), 20, 30)
            assert found.given_back == (GivenBack(ORDERS, 1, 1, "the table was changed by a statement while it was read"),)
            assert adoptions(found) == []

    def test_a_statement_of_another_table_gives_nothing_back(self) -> None:
        tables = book(*COPYING, launched(1, 1, 20), reported(1, 1, 25))
        found = plan(tables, captured(TableStatement(30, ITEMS.table, Effect.EMPTIES, 1)), 20, 60)
        assert adoptions(found) == [1]
        assert found.facts == (Adopted(incarnation=ORDERS, ordinal=1, nonce="n1", visible=20, high=25),)

    def test_a_read_of_behind_a_change_of_schema_waits_until_the_log_has_passed_it(self) -> None:
        """L14: adopted before, its rows would have a shape that the lake has not."""
        tables, relay = book(*COPYING, launched(1, 1, 40), reported(1, 1, 50, schema=2)), captured(self.RESHAPES)
        for after, end in ((10, 20), (20, 30)):
            found = plan(tables, relay, after, end)
            assert (adoptions(found), found.given_back) == ([], ())
        assert found.facts == (Reshaped(ORDERS, 30, 2),)
        tables.apply(found.facts[0], 2)
        assert adoptions(plan(tables, relay, 30, 60)) == [1]

    def test_a_read_in_another_shape_than_the_tables_is_given_back(self) -> None:
        """L14: DDL after the snapshot was opened; the log has not come to it when the chunk reports."""
        tables = book(*COPYING, launched(1, 1, 20), reported(1, 1, 25, schema=2))
        found = plan(tables, captured(), 20, 60)
        assert found.given_back == (GivenBack(ORDERS, 1, 1, "the table had another schema when it was read"),)

    def test_a_table_emptied_while_it_is_copied_is_copied_anew_and_emits_nothing(self) -> None:
        """L6."""
        tables = book(*COPYING, Adopted(incarnation=ORDERS, ordinal=1, nonce="n", visible=10, high=20))
        found = plan(tables, captured(self.EMPTIES), 20, 60)
        assert found.facts == (Reborn(AGAIN, 30, 1),)
        assert found.rules[ORDERS.table] == Rule(incarnation=AGAIN, after=30, emits_all=False)

    def test_a_live_table_that_is_truncated_emits_only_what_follows(self) -> None:
        """A12: rows ordered before it are dropped, and its commit is one overwrite with the rest."""
        tables = book(*LIVE)
        found = plan(tables, captured(self.EMPTIES), 20, 60)
        assert found.facts == (Truncated(ORDERS, 30),)
        rule = found.rules[ORDERS.table]
        assert rule == Rule(incarnation=ORDERS, after=30, emits_all=True)
        assert [offset for offset in (20, 30, 40) if appends(rule, offset=offset, adopted=False, adopting=None, covered=upto(0, 0))] == [40]

    @pytest.mark.parametrize(
        ("facts", "effect", "turn"),
        [
            (COPYING, Effect.EMPTIES, Reborn(AGAIN, 30, 7)),
            (COPYING, Effect.DROPS, Gone(ORDERS, 30)),
            (COPYING, Effect.MAKES, Reborn(AGAIN, 30, 7)),
            (COPYING, Effect.RESHAPES, Reshaped(ORDERS, 30, 7)),
            (LIVE, Effect.EMPTIES, Truncated(ORDERS, 30)),
            (LIVE[:3], Effect.EMPTIES, Reborn(AGAIN, 30, 7)),
            (LIVE[:2], Effect.EMPTIES, Reborn(AGAIN, 30, 7)),
            (LIVE, Effect.DROPS, Gone(ORDERS, 30)),
            (LIVE, Effect.MAKES, Reborn(AGAIN, 30, 7)),
            (LIVE, Effect.RESHAPES, Reshaped(ORDERS, 30, 7)),
            (LIVE, Effect.REWRITES, Recopied(ORDERS, 30)),
            (LIVE[:3], Effect.REWRITES, Reborn(AGAIN, 30, 7)),
            (COPYING, Effect.REWRITES, Reborn(AGAIN, 30, 7)),
            ((Found(ORDERS, "ods.orders", False, 1), *LIVE[1:]), Effect.REWRITES, Reborn(AGAIN, 30, 7)),
            ((FOUND, Gone(ORDERS, 5)), Effect.MAKES, Reborn(AGAIN, 30, 7)),
            ((FOUND, Gone(ORDERS, 5)), Effect.DROPS, None),
            ((FOUND, Gone(ORDERS, 5)), Effect.RESHAPES, None),
        ],
    )
    def test_what_a_statement_makes_of_a_table(self, facts: tuple[Fact, ...], effect: Effect, turn: Durable | None) -> None:
        tables = book(*facts)
        table = tables.known(ORDERS)
        fact = turn_of(ORDERS, table.phase, TableStatement(30, ORDERS.table, effect, 7), 2, keyed=table.keyed)
        assert fact == turn
        if fact is not None:
            tables.apply(fact, 2)

    def test_statements_of_one_transaction_turn_a_table_one_after_the_other(self) -> None:
        """DROP and CREATE, or two renames, in one place of the log."""
        tables = book(*LIVE)
        statements = [
            TableStatement(30, ORDERS.table, effect, schema)
            for effect, schema in ((Effect.DROPS, 1), (Effect.MAKES, 5), (Effect.RESHAPES, 6))
        ]
        found = plan(tables, captured(*statements), 20, 30)
        assert found.facts == (Gone(ORDERS, 30), Reborn(AGAIN, 30, 5), Reshaped(AGAIN, 30, 6))
        assert found.rules == {ORDERS.table: Rule(incarnation=AGAIN, after=30, emits_all=False)}
        for fact in found.facts:
            tables.apply(fact, 2)

    def test_the_second_of_two_drops_in_one_transaction_is_nothing(self) -> None:
        drops = TableStatement(30, ORDERS.table, Effect.DROPS, 1)
        assert plan(book(*LIVE), captured(drops, drops), 20, 30).facts == (Gone(ORDERS, 30),)

    def test_a_table_that_is_gone_is_found_anew_and_not_by_a_statement(self) -> None:
        """It is forgotten when the epoch that dropped it is done, which is before the intent of this one."""
        tables = book(FOUND, Gone(ORDERS, 5))
        again = Found(AGAIN, "ods.orders", True, 7)
        assert plan(tables, captured(TableStatement(30, ORDERS.table, Effect.MAKES, 7)), 20, 60).facts == ()
        assert plan(tables, captured(), 60, 70, again).facts == (again,)

    def test_a_second_drop_of_a_table_does_not_bring_it_back(self) -> None:
        """DROP TABLE IF EXISTS is logged whether there is one or not. Nothing of this name can be read."""
        tables = book(FOUND, Gone(ORDERS, 5))
        found = plan(tables, captured(TableStatement(30, ORDERS.table, Effect.DROPS, 1)), 20, 60)
        assert not any(isinstance(fact, Reborn) for fact in found.facts)

    def test_a_statement_of_a_table_that_is_not_captured_changes_nothing(self) -> None:
        assert plan(Tables(), captured(self.EMPTIES), 20, 60).facts == ()


class TestProposals:
    def test_what_is_not_true_any_more_is_not_said(self) -> None:
        """A proposal was made from what was true a while ago."""
        tables = book(*COPYING[:2])
        bounds = Split(ORDERS, 1, (b"\x09",), True)
        items = Found(ITEMS, "ods.items", True, 1)
        stale = (FOUND, Split(ORDERS, 2, (b"\x09",), True), Split(AGAIN, 1, (b"\x09",), True), Recopied(ORDERS, 5), Gone(ORDERS, 20))
        assert plan(tables, captured(), 10, 20, items, bounds, *stale).facts == (items, bounds)

    def test_bounds_wait_when_a_statement_of_the_epoch_changes_their_table(self) -> None:
        tables = book(*COPYING[:2])
        found = plan(tables, captured(TestStatements.EMPTIES), 20, 60, Split(ORDERS, 1, (b"\x09",), True))
        assert found.facts == (Reborn(AGAIN, 30, 1),)


class TestSetAside:
    """One table's trouble is one table's trouble: B2 to B6."""

    WHY = SetAside(ORDERS, 20, 20, "its key has another type")
    BREAKS = TableStatement(30, ORDERS.table, Effect.BREAKS, 0, why="rows were changed as text")
    AT_REST = (*LIVE, SetAside(ORDERS, 20, 20, "its key has another type"))

    def test_an_epoch_that_sets_a_table_aside_emits_nothing_of_it_and_everything_of_the_others(self) -> None:
        tables = book(
            *LIVE,
            Found(ITEMS, "ods.items", True, 1),
            Adopted(incarnation=ITEMS, ordinal=OUTSIDE, nonce="n0", visible=0, high=0, extent=None),
        )
        found = plan(tables, captured(), 20, 60, self.WHY)
        assert found.facts == (self.WHY,)
        assert found.rules == {ORDERS.table: Rule(incarnation=ORDERS, after=20, emits_all=False)}
        assert found.rule(tables.known(ITEMS)).emits_all

    def test_a_table_that_is_set_aside_emits_nothing_and_is_not_read(self) -> None:
        tables = book(*self.AT_REST)
        rule = plan(tables, captured(), 20, 60).rules[ORDERS.table]
        assert rule == Rule(incarnation=ORDERS, after=20, emits_all=False)
        assert not emits(rule, offset=40, adopted=False, adopting=None, keyed=True, covered=lambda _: False)
        assert decide_launches(tables, captured(), visible=50, job=1, running_max=9) == []

    def test_what_was_read_of_it_is_not_adopted_and_bounds_are_forgotten(self) -> None:
        tables = book(*COPYING, launched(1, 1, 10), reported(1, 1, 20))
        assert plan(tables, captured(), 20, 60, self.WHY).facts == (self.WHY,)
        tables = book(*COPYING[:2])
        assert plan(tables, captured(), 20, 60, BOUNDS, self.WHY).facts == (self.WHY,)

    def test_a_statement_after_which_the_log_lacks_changes_sets_its_table_aside(self) -> None:
        tables = book(*LIVE)
        found = plan(tables, captured(self.BREAKS), 20, 60)
        aside = SetAside(ORDERS, 30, 30, "rows were changed as text")
        assert found.facts == (aside,)
        assert not found.rules[ORDERS.table].emits_all
        assert plan(tables, captured(self.BREAKS), 20, 60, self.WHY).facts == (aside,), "once is enough"
        assert choose_end(tables, captured(self.BREAKS), 0, 999) == 20, "the lake has all before it"

    def test_a_shape_that_the_lake_cant_take_is_known_all_the_same(self) -> None:
        """What is copied when the table is asked for is the table as it is then."""
        found = plan(book(*LIVE), captured(TableStatement(30, ORDERS.table, Effect.RESHAPES, 7)), 20, 30, self.WHY)
        assert found.facts == (Reshaped(ORDERS, 30, 7), self.WHY)
        assert not found.rules[ORDERS.table].emits_all

    def test_a_table_that_is_swapped_for_one_the_lake_cant_take_is_set_aside_as_what_it_is_now(self) -> None:
        swap = (TableStatement(30, ORDERS.table, Effect.DROPS, 0), TableStatement(30, ORDERS.table, Effect.MAKES, 7))
        found = plan(book(*LIVE), captured(*swap), 20, 60, self.WHY)
        assert found.facts == (Gone(ORDERS, 30), Reborn(AGAIN, 30, 7), SetAside(AGAIN, 20, 20, self.WHY.why))

    def test_a_table_that_is_found_and_cant_go_on_is_known_as_set_aside(self) -> None:
        """DROP and CREATE with another key: the lake has rows of the old one, which are left as they are."""
        found = plan(Tables(), captured(), 20, 60, FOUND, self.WHY)
        assert found.facts == (FOUND, self.WHY)

    @pytest.mark.parametrize("known", [(), AT_REST, (*LIVE, Gone(ORDERS, 20))])
    def test_a_table_that_is_not_there_or_is_set_aside_already_is_not_set_aside(self, known: tuple[Fact, ...]) -> None:
        assert plan(book(*known), captured(), 20, 60, self.WHY).facts == ()

    def test_one_that_is_dropped_by_the_epoch_needs_it_no_more(self) -> None:
        found = plan(book(*LIVE), captured(TableStatement(30, ORDERS.table, Effect.DROPS, 0)), 20, 60, self.WHY)
        assert found.facts == (Gone(ORDERS, 30),)

    @pytest.mark.parametrize(
        ("effect", "fact"),
        [
            (Effect.RESHAPES, Reshaped(ORDERS, 30, 7)),
            (Effect.MAKES, Reshaped(ORDERS, 30, 7)),
            (Effect.DROPS, Gone(ORDERS, 30)),
            (Effect.EMPTIES, None),
            (Effect.REWRITES, None),
            (Effect.BREAKS, None),
        ],
    )
    def test_no_statement_but_a_drop_moves_a_table_that_is_set_aside(self, effect: Effect, fact: Fact | None) -> None:
        found = plan(book(*self.AT_REST), captured(TableStatement(30, ORDERS.table, effect, 7)), 20, 60)
        assert found.facts == (() if fact is None else (fact,))
        assert not found.rules[ORDERS.table].emits_all

    @pytest.mark.parametrize("known", [AT_REST, LIVE, COPYING])
    def test_an_operator_who_asks_for_a_table_gets_it_copied_anew(self, known: tuple[Fact, ...]) -> None:
        again = Reborn(AGAIN, 20, 1, asked=True)
        tables = book(*known)
        if known is COPYING:
            tables.apply(launched(1, 1, 10))
            tables.apply(reported(1, 1, 20))
        found = plan(tables, captured(), 20, 60, again)
        assert found.facts == (again,)
        assert found.rules[ORDERS.table] == Rule(incarnation=AGAIN, after=20, emits_all=False)

    def test_asking_for_a_table_that_is_gone_or_was_asked_for_already_changes_nothing(self) -> None:
        again = Reborn(AGAIN, 20, 1, asked=True)
        for known in ((), (*LIVE, Gone(ORDERS, 20)), (*LIVE, again)):
            assert plan(book(*known), captured(), 20, 60, again).facts == ()
        waits = plan(book(*self.AT_REST), captured(TableStatement(30, ORDERS.table, Effect.RESHAPES, 7)), 20, 60, again)
        assert waits.facts == (Reshaped(ORDERS, 30, 7),), "its shape changes in this epoch, so it is copied from the next on"

    def test_who_asks_for_a_table_that_is_excluded_is_not_heard(self) -> None:
        again, gone = Reborn(AGAIN, 20, 1, asked=True), Gone(ORDERS, 20)
        for proposals in ((again, gone), (gone, again)):
            assert plan(book(*self.AT_REST), captured(), 20, 60, *proposals).facts == (gone,)

    def test_what_stopped_a_table_is_no_reason_to_set_it_aside_when_it_is_copied_anew(self) -> None:
        again = Reborn(AGAIN, 20, 1, asked=True)
        assert plan(book(*LIVE), captured(), 20, 60, self.WHY, again).facts == (again,)
        still = SetAside(AGAIN, 20, 20, "its key has another type")
        assert plan(book(*LIVE), captured(), 20, 60, still, again).facts == (again, still), "the lake can't take the new one either"

    def test_a_table_that_is_set_aside_and_excluded_is_forgotten_and_no_other_is(self) -> None:
        gone = Gone(ORDERS, 20)
        assert plan(book(*self.AT_REST), captured(), 20, 60, gone).facts == (gone,)
        assert plan(book(*LIVE), captured(), 20, 60, gone).facts == ()

    def test_trouble_of_one_table_is_told_beside_what_the_epoch_makes_of_another(self) -> None:
        items = Found(ITEMS, "ods.items", True, 1)
        assert plan(book(*LIVE), captured(), 20, 60, items, self.WHY).facts == (items, self.WHY)

    def test_the_lake_table_of_one_that_is_set_aside_or_dropped_is_left_as_it_is(self) -> None:
        """Also where the same epoch changes its shape: a lake that can't take the shape is not asked to."""
        reshapes = captured(TableStatement(30, ORDERS.table, Effect.RESHAPES, 7))
        live, at_rest = book(*LIVE), book(*self.AT_REST)
        assert plan(live, reshapes, 20, 30).untouched(live) == set()
        assert plan(live, reshapes, 20, 30, self.WHY).untouched(live) == {ORDERS.table}
        assert plan(at_rest, reshapes, 20, 30).untouched(at_rest) == {ORDERS.table}
        assert plan(at_rest, captured(), 20, 60, Gone(ORDERS, 20)).untouched(at_rest) == {ORDERS.table}
        assert plan(at_rest, captured(), 20, 60, Reborn(AGAIN, 20, 1, asked=True)).untouched(at_rest) == set()

    @pytest.mark.parametrize("fact", [Truncated(ORDERS, 20), Reshaped(ORDERS, 20, 7), OUTER])
    def test_what_only_the_log_or_a_read_can_say_is_not_taken_from_a_proposal(self, fact: Durable) -> None:
        assert plan(book(*LIVE), captured(), 20, 60, fact).facts == ()


class TestLaunching:
    def test_the_end_of_the_log_is_not_taken_as_visible(self) -> None:
        """L1: a server sends a transaction before its engine shows it to a SELECT."""
        relay = captured()
        assert visible_cut(relay, Position(1, 4 + 60)) == 60
        assert visible_cut(relay, Position(1, 4 + 69)) == 60
        assert visible_cut(relay, Position(1, 4)) is None
        assert visible_cut(relay, Position(1, 4 + 500)) == 100, "capture has not come there yet: all that it has is visible"
        with pytest.raises(SourceDrift):
            visible_cut(relay, Position(1, 64, era=1))

    def test_nothing_is_launched_at_a_cut_that_the_relay_may_have_let_go_of(self) -> None:
        """A3: a transaction that is still invisible was dropped by an earlier epoch, and its log is gone."""
        tables, relay = book(*COPYING), captured()
        relay.raise_floor(50)
        assert decide_launches(tables, relay, visible=40, job=1, running_max=9) == []
        assert [fact.ordinal for fact in decide_launches(tables, relay, visible=50, job=1, running_max=9)] == [1, 2, 3]

    def test_nothing_is_launched_at_a_cut_before_the_tables_incarnation(self) -> None:
        """A12: it would get the TRUNCATE again in the log that it is joined with."""
        tables = book(FOUND, Reborn(AGAIN, 60, 1), Found(ITEMS, "ods.items", True, 1))
        assert decide_launches(tables, captured(), visible=50, job=1, running_max=9) == [launched(OUTSIDE, 1, 50, incarnation=ITEMS)]
        assert decide_launches(tables, captured(), visible=60, job=1, running_max=9)[0] == launched(OUTSIDE, 1, 60, incarnation=AGAIN)

    def test_nothing_is_launched_at_a_cut_before_the_place_where_a_table_was_found(self) -> None:
        """A change table that is found again says there that it was emptied; what is read lies behind that."""
        tables = book(Found(ORDERS, "ods.orders", False, 1, 60))
        assert decide_launches(tables, captured(), visible=50, job=1, running_max=9) == []
        assert decide_launches(tables, captured(), visible=60, job=1, running_max=9) == [launched(OUTSIDE, 1, 60)]

    def test_a_table_that_waits_keeps_no_other_waiting(self) -> None:
        tables = book(FOUND, Found(ITEMS, "ods.items", True, 1))
        waiting = {ORDERS.table}
        launches = decide_launches(tables, captured(), visible=50, job=1, running_max=9, waiting=waiting)
        assert launches == [launched(OUTSIDE, 1, 50, incarnation=ITEMS)]

    def test_a_limit_on_reads_holds_over_all_tables(self) -> None:
        tables = book(*COPYING, Found(ITEMS, "ods.items", True, 1), launched(2, 1, 20))
        first = decide_launches(tables, captured(), visible=50, job=2, running_max=3)
        assert [(fact.incarnation, fact.ordinal, fact.job) for fact in first] == [(ORDERS, 1, 2), (ORDERS, 3, 3)]
        for fact in first:
            tables.apply(fact)
        assert decide_launches(tables, captured(), visible=50, job=4, running_max=3) == []
        assert decide_launches(tables, captured(), visible=50, job=4, running_max=0) == []
        assert [fact.incarnation for fact in decide_launches(tables, captured(), visible=50, job=4, running_max=9)] == [ITEMS]

    def test_a_table_whose_reads_fail_again_and_again_keeps_no_other_waiting(self) -> None:
        tables = book(FOUND, Found(ITEMS, "ods.items", True, 1), launched(OUTSIDE, 1, 20), GivenBack(ORDERS, OUTSIDE, 1, "slow"))
        (fact,) = decide_launches(tables, captured(), visible=50, job=2, running_max=1)
        assert fact.incarnation == ITEMS

    def test_a_released_table_is_not_read(self) -> None:
        assert decide_launches(book(*LIVE), captured(), visible=50, job=1, running_max=9) == []

    def test_every_chunk_knows_its_range_also_behind_a_beginning_that_was_let_go_of(self) -> None:
        tables = book(*COPYING)
        spans = [span_of(tables.copy_of(ORDERS), ordinal) for ordinal in (1, 2, 3)]
        assert spans == [Span(None, b"\x03"), Span(b"\x03", b"\x06"), Span(b"\x06", b"\x09")]
        for ordinal in (1, 2):
            tables.apply(Adopted(incarnation=ORDERS, ordinal=ordinal, nonce="n", visible=10, high=20), 1)
            held = tables.copy_of(ORDERS)
            assert span_of(held, 3) == Span(b"\x06", b"\x09")
            assert span_of(held, OUTSIDE) is None
            rule = plan(tables, captured(), 20, 60).rules[ORDERS.table]
            assert rule.adopted == (Span(None, held.bounds.upper(ordinal)),)


BOTH = book(
    *LIVE,
    Found(ITEMS, "ods.items", True, 1),
    Adopted(incarnation=ITEMS, ordinal=OUTSIDE, nonce="n1", visible=0, high=0, extent=None),
    Covered(1, 0),
    Released(ITEMS),
)


class TestEnds:
    def test_an_epoch_ends_at_the_last_cut_within_its_limit(self) -> None:
        relay = captured()
        assert choose_end(BOTH, relay, 20, 35) == 50
        assert choose_end(BOTH, relay, 20, 999) == 100

    def test_an_epoch_has_one_cut_whatever_its_limit(self) -> None:
        """S3: a transaction that is larger than the limit would stop everything for ever."""
        assert choose_end(BOTH, captured(), 20, 3) == 30
        assert choose_end(BOTH, captured(), 0, 0) == 10

    def test_without_a_cut_an_epoch_does_not_move(self) -> None:
        assert choose_end(BOTH, captured(), 100, 50) == 100
        assert choose_end(BOTH, Relay(), 0, 50) == 0

    def test_a_table_wide_statement_begins_an_epoch(self) -> None:
        relay = captured(TableStatement(50, ORDERS.table, Effect.EMPTIES, 1))
        assert choose_end(BOTH, relay, 20, 999) == 40
        assert choose_end(BOTH, relay, 40, 999) == 100

    def test_a_change_of_schema_ends_an_epoch(self) -> None:
        relay = captured(TableStatement(50, ORDERS.table, Effect.RESHAPES, 2))
        assert choose_end(BOTH, relay, 20, 999) == 50
        assert choose_end(BOTH, relay, 50, 999) == 100
        assert choose_end(BOTH, relay, 40, 0) == 50

    def test_a_statement_waits_for_the_rows_of_a_commit_whose_other_table_was_replaced_before_it(self) -> None:
        """A prepared transaction's COMMIT at 30 is a statement about the one table, and has rows of the other, which is emptied at 40."""
        group = Prepared(xid="x", era=0, begins=15, offset=20, at=0, bytes=5, tables=(ORDERS.table, ITEMS.table))
        replaced, emptied = TableStatement(30, ITEMS.table, Effect.DROPS, 1), TableStatement(40, ORDERS.table, Effect.EMPTIES, 1)
        assert choose_end(BOTH, captured(replaced, emptied), 20, 999) == 100, "statements alone share an epoch with what follows"
        relay = captured(replaced, emptied)
        relay._decided.append(Decided(group, 30, committed=True, aside=True))
        assert choose_end(BOTH, relay, 20, 999) == 30
        assert choose_end(BOTH, relay, 30, 999) == 100

    @pytest.mark.parametrize("effect", [Effect.EMPTIES, Effect.DROPS, Effect.MAKES, Effect.REWRITES, Effect.BREAKS])
    def test_a_table_wide_statement_behind_rows_waits_for_the_next_epoch(self, effect: Effect) -> None:
        relay = captured(TableStatement(30, ORDERS.table, Effect.EMPTIES, 1), TableStatement(60, ITEMS.table, effect, 2))
        assert choose_end(BOTH, relay, 20, 999) == 50
        relay = captured(TableStatement(30, ORDERS.table, Effect.RESHAPES, 1), TableStatement(60, ITEMS.table, effect, 2))
        assert choose_end(BOTH, relay, 20, 999) == 30

    def test_an_epoch_that_empties_one_table_may_end_with_another_that_changes_its_schema(self) -> None:
        relay = captured(TableStatement(30, ORDERS.table, Effect.EMPTIES, 1), TableStatement(60, ITEMS.table, Effect.RESHAPES, 2))
        assert choose_end(BOTH, relay, 20, 999) == 60
        relay = captured(TableStatement(30, ORDERS.table, Effect.EMPTIES, 1), TableStatement(60, ORDERS.table, Effect.RESHAPES, 2))
        assert choose_end(BOTH, relay, 20, 999) == 50, "a table has statements of one transaction"

    @pytest.mark.parametrize("second", [Effect.EMPTIES, Effect.DROPS])
    def test_table_wide_statements_that_follow_each_other_begin_one_epoch_together(self, second: Effect) -> None:
        relay = captured(TableStatement(30, ORDERS.table, Effect.EMPTIES, 1), TableStatement(40, ITEMS.table, second, 2))
        assert choose_end(BOTH, relay, 20, 999) == 100
        facts = plan(BOTH, relay, 20, 100).facts
        assert facts == (Truncated(ORDERS, 30), Truncated(ITEMS, 40) if second is Effect.EMPTIES else Gone(ITEMS, 40))
        again = captured(TableStatement(30, ORDERS.table, Effect.EMPTIES, 1), TableStatement(40, ORDERS.table, second, 2))
        assert choose_end(BOTH, again, 20, 999) == 30, "a table has statements of one transaction"

    def test_changes_of_schema_that_follow_each_other_end_one_epoch_together(self) -> None:
        two = (TableStatement(50, ORDERS.table, Effect.RESHAPES, 2), TableStatement(60, ITEMS.table, Effect.RESHAPES, 3))
        assert choose_end(BOTH, captured(*two), 20, 999) == 60
        assert choose_end(BOTH, captured(*two), 20, 30) == 50, "within its limit"
        assert choose_end(BOTH, captured(*two, TableStatement(70, ORDERS.table, Effect.RESHAPES, 4)), 20, 999) == 60
        assert choose_end(BOTH, captured(*two, TableStatement(70, ORDERS.table, Effect.EMPTIES, 4)), 20, 999) == 60

    def test_statements_about_tables_that_nobody_knows_end_nothing(self) -> None:
        """A scratch table that was made and dropped before it was found."""
        made = [
            TableStatement(10 * number, TableId("shop", f"tmp{number // 2}"), Effect.MAKES if number % 2 else Effect.DROPS, 1)
            for number in range(3, 9)
        ]
        assert choose_end(BOTH, captured(*made), 20, 999) == 100
        assert not statements_wait(BOTH, captured(*made), 20)
        # They may lie before a table-wide one, and behind a change of schema: they have no rows of others.
        wide = TableStatement(90, ORDERS.table, Effect.EMPTIES, 1)
        assert choose_end(BOTH, captured(*made, wide), 20, 999) == 100
        last = TableStatement(30, ORDERS.table, Effect.RESHAPES, 2)
        assert choose_end(BOTH, captured(last, *made[1:]), 20, 999) == 80
        gone = book(*LIVE, Gone(ORDERS, 20))
        assert choose_end(gone, captured(wide), 20, 999) == 100, "it is found anew"

    def test_a_transaction_that_empties_one_table_and_reshapes_another_is_an_epoch_of_its_own(self) -> None:
        relay = captured(TableStatement(50, ORDERS.table, Effect.EMPTIES, 1), TableStatement(50, ITEMS.table, Effect.RESHAPES, 2))
        assert choose_end(BOTH, relay, 20, 999) == 40
        assert choose_end(BOTH, relay, 40, 999) == 50

    def test_statements_that_end_epochs_are_told_of_while_they_lie_ahead(self) -> None:
        relay = captured(TableStatement(50, ORDERS.table, Effect.RESHAPES, 2))
        assert statements_wait(BOTH, relay, 20)
        assert not statements_wait(BOTH, relay, 50)

    @pytest.mark.parametrize("after", [20, 40])
    def test_one_statement_that_changes_two_tables_as_a_whole_stops_nobody(self, after: int) -> None:
        """DROP TABLE a, b and RENAME TABLE a TO b are one transaction, and change two tables at one place."""
        relay = captured(TableStatement(50, ORDERS.table, Effect.DROPS, 1), TableStatement(50, ITEMS.table, Effect.MAKES, 2))
        end = choose_end(BOTH, relay, after, 999)
        assert end == (40 if after == 20 else 100)
        tables = book(*LIVE, Found(ITEMS, "ods.items", True, 1))
        facts = plan(tables, relay, 40, 100).facts
        assert facts == (Gone(ORDERS, 50), Reborn(Incarnation(ITEMS.table, 2), 50, 2))


def test_a_snapshot_and_its_log_meet_without_a_gap() -> None:
    """A whole life: read, adopted, caught up, let go of, and the relay behind it."""
    tables, relay = Tables(), captured()
    for fact in plan(tables, relay, 0, 10, FOUND).facts:
        tables.apply(fact, 1)
    (launch,) = decide_launches(tables, relay, visible=20, job=1, running_max=9)
    tables.apply(launch)
    assert relay.decide_floor(10, tables.lowest_visible()) == 10
    tables.apply(reported(OUTSIDE, 1, 40, extent=EXTENT))
    assert relay.decide_floor(30, tables.lowest_visible()) == 20, "the log above V is kept until it is adopted"
    for fact in plan(tables, relay, 30, 40).facts:
        tables.apply(fact, 2)
    tables.apply(BOUNDS, 3)
    for job, launch in enumerate(decide_launches(tables, relay, visible=50, job=2, running_max=9), start=2):
        tables.apply(launch)
        tables.apply(reported(launch.ordinal, job, 60))
    found = plan(tables, relay, 40, 60)
    assert adoptions(found) == [1, 2, 3]
    for fact in found.facts:
        tables.apply(fact, 4)
    assert tables.known(ORDERS).phase is TablePhase.CATCHING_UP
    tables.apply(Covered(4, 60))
    assert relay.decide_floor(60, tables.lowest_visible()) == 60
    assert plan(tables, relay, 60, 100).rules == {}
