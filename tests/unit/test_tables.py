"""The life of a table's metadata: it is let go of when no plan can ask for it again, and not before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from snowmelt.errors import InvariantBroken
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import unread
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Covered,
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
from snowmelt.planning.tables import CHUNK_LIFE, TABLE_LIFE, ChunkState, ChunkTrigger, Copy, Table, TablePhase, Tables, TableTrigger, covers

ORDERS = Incarnation(TableId("shop", "orders"), 1)
ITEMS = Incarnation(TableId("shop", "items"), 1)
EXTENT = KeyEnds(b"\x01", b"\x09")


def book(*facts: Fact, epoch: int = 1) -> Tables:
    tables = Tables()
    for fact in facts:
        tables.apply(fact, epoch)
    return tables


def found(incarnation: Incarnation = ORDERS, *, keyed: bool = True) -> Found:
    return Found(incarnation, f"ods.{incarnation.table.name}", keyed, 1)


def outside(incarnation: Incarnation = ORDERS, *, high: int = 10, extent: KeyEnds | None = EXTENT) -> Adopted:
    return Adopted(incarnation=incarnation, ordinal=OUTSIDE, nonce="n0", visible=10, high=high, extent=extent)


def adopted(ordinal: int, incarnation: Incarnation = ORDERS, *, high: int = 10) -> Adopted:
    return Adopted(incarnation=incarnation, ordinal=ordinal, nonce=f"n{ordinal}", visible=10, high=high)


def split(*uppers: bytes, first: int = 1, complete: bool = True, incarnation: Incarnation = ORDERS) -> Split:
    return Split(incarnation, first, uppers, complete)


def launched(ordinal: int, job: int, *, visible: int = 10, incarnation: Incarnation = ORDERS) -> Launched:
    return Launched(incarnation, ordinal, job, visible, 0)


def reported(ordinal: int, job: int, *, nonce: str = "n", high: int = 12, incarnation: Incarnation = ORDERS) -> Reported:
    return Reported(incarnation=incarnation, ordinal=ordinal, job=job, nonce=nonce, high=high, exact=True, schema=1, files=("f",))


TO_CATCHING_UP = (found(), outside(), split(b"\x04", b"\x09"), adopted(1), adopted(2, high=30))


def phase(tables: Tables, incarnation: Incarnation = ORDERS) -> TablePhase:
    return tables.known(incarnation).phase


@contextmanager
def refused(tables: Tables, text: str | None = None) -> Iterator[None]:
    """It is refused, and nothing has changed."""
    before = copy.deepcopy(vars(tables))
    with pytest.raises(InvariantBroken, match=text):
        yield
    assert vars(tables) == before


class TestRelease:
    """Seeds 000 and 001."""

    def test_metadata_is_let_go_of_when_every_chunk_is_adopted_and_an_epoch_is_done_that_covers_them(self) -> None:
        tables = book(*TO_CATCHING_UP)
        tables.apply(Covered(1, 30))
        assert phase(tables) is TablePhase.STREAMING
        assert tables.releasable() == [Released(ORDERS)]
        tables.apply(Released(ORDERS))
        assert phase(tables) is TablePhase.RELEASED
        assert tables.known(ORDERS).copy is None
        assert tables.known(ORDERS).live

    def test_before_an_epoch_is_done_nothing_is_let_go_of(self) -> None:
        tables = book(*TO_CATCHING_UP)
        assert phase(tables) is TablePhase.CATCHING_UP
        assert tables.releasable() == []
        tables.apply(Released(ORDERS))
        assert tables.copy_of(ORDERS).finished

    @pytest.mark.parametrize(("done", "upto"), [(0, 30), (1, 29), (0, 0)])
    def test_a_done_epoch_that_does_not_cover_every_read_lets_go_of_nothing(self, done: int, upto: int) -> None:
        """It ends before the greatest `h`, or is older than the one that adopted the last chunk."""
        tables = book(*TO_CATCHING_UP)
        tables.apply(Covered(done, upto))
        assert phase(tables) is TablePhase.CATCHING_UP
        assert tables.releasable() == []
        tables.apply(Covered(1, 30))
        assert phase(tables) is TablePhase.STREAMING

    def test_the_greatest_high_end_counts_and_not_that_of_the_last_chunk(self) -> None:
        copied = book(found(), outside(high=50), split(b"\x09"), adopted(1, high=20)).copy_of(ORDERS)
        assert (copied.high, covers(copied, 1, 49), covers(copied, 1, 50)) == (50, False, True)

    def test_while_a_chunk_is_missing_nothing_is_let_go_of(self) -> None:
        tables = book(found(), outside(), split(b"\x04", b"\x09"), adopted(1))
        tables.apply(Covered(9, 999))
        assert phase(tables) is TablePhase.SNAPSHOTTING
        assert tables.releasable() == []

    def test_how_far_a_copy_is_has_an_end_once_all_bounds_are_found(self) -> None:
        beginning = (found(), outside())
        assert book(*beginning, split(b"\x04", complete=False), adopted(1)).copy_of(ORDERS).progress == (2, None)
        assert book(*beginning, split(b"\x04", b"\x09"), adopted(2)).copy_of(ORDERS).progress == (2, 3)

    def test_while_bounds_are_still_being_found_nothing_is_let_go_of(self) -> None:
        """Everything that has a bound is adopted, and yet it is not the whole table."""
        tables = book(found(), outside(), split(b"\x04", complete=False), adopted(1))
        tables.apply(Covered(9, 999))
        assert phase(tables) is TablePhase.SPLITTING
        assert not tables.copy_of(ORDERS).finished

    def test_to_ask_for_what_was_let_go_of_is_an_error_and_never_an_empty_answer(self) -> None:
        tables = book(*TO_CATCHING_UP, Covered(1, 30), Released(ORDERS))
        with refused(tables, "metadata is asked for after its release"):
            tables.copy_of(ORDERS)
        with refused(tables, "metadata is asked for after its release"):
            tables.apply(adopted(1))
        with refused(tables, "metadata is asked for after its release"):
            tables.apply(split(b"\x0a", first=3))
        with refused(tables, "not there"):
            tables.apply(launched(1, 1))

    def test_to_let_go_twice_is_harmless_also_of_what_has_moved_on(self) -> None:
        tables = book(*TO_CATCHING_UP, Covered(1, 30), Released(ORDERS))
        before = copy.deepcopy(vars(tables))
        tables.apply(Released(ORDERS))
        tables.apply(Released(Incarnation(ORDERS.table, 7)))
        tables.apply(Released(ITEMS))
        tables.apply(Covered(2, 99))
        assert vars(tables) == before

    def test_a_table_is_let_go_of_while_others_are_being_added(self) -> None:
        tables = book(*TO_CATCHING_UP, found(ITEMS), outside(ITEMS))
        tables.apply(Covered(1, 30))
        assert tables.releasable() == [Released(ORDERS)]
        tables.apply(Released(ORDERS))
        assert phase(tables, ITEMS) is TablePhase.SPLITTING
        tables.apply(split(b"\x09", incarnation=ITEMS), 2)
        assert tables.copy_of(ITEMS).bounds.last == 1

    def test_a_released_table_is_neither_found_again_nor_read_again(self) -> None:
        tables = Tables()
        tables.restore(Table(incarnation=ORDERS, target="ods.orders", keyed=True, schema=1, phase=TablePhase.RELEASED, copy=None))
        assert tables.known(ORDERS).live
        assert tables.releasable() == []
        assert tables.chunk_state(ORDERS, OUTSIDE) is None
        with refused(tables, "a table is found twice"):
            tables.apply(found())

    def test_a_table_without_rows_needs_no_bounds(self) -> None:
        tables = book(found(), outside(extent=None))
        assert phase(tables) is TablePhase.CATCHING_UP
        tables.apply(Covered(1, 10))
        assert phase(tables) is TablePhase.STREAMING

    def test_a_restored_table_that_catches_up_is_still_covered_by_a_done_epoch(self) -> None:
        before = book(*TO_CATCHING_UP).known(ORDERS)
        tables = Tables()
        tables.restore(before)
        tables.apply(Covered(1, 30))
        assert phase(tables) is TablePhase.STREAMING
        with refused(tables, "a table is restored twice"):
            tables.restore(before)


class TestReads:
    def test_a_give_back_makes_the_chunk_as_if_it_had_never_been_launched(self) -> None:
        tables = book(found(), outside(), split(b"\x09"))
        before = copy.deepcopy(vars(tables))
        tables.apply(launched(1, 1))
        tables.apply(reported(1, 1))
        assert tables.chunk_state(ORDERS, 1) is ChunkState.READ
        for fact in tables.decide_give_back(ORDERS, 1, 1, "slow"):
            tables.apply(fact)
        assert tables.failures(ORDERS.table) == 1, "which is all that is remembered"
        assert vars(tables) == {**before, "_failures": {ORDERS.table: 1}}
        assert unread(tables, tables.known(ORDERS), tables.copy_of(ORDERS), 9) == [1]

    def test_a_stale_report_after_a_give_back_and_a_relaunch_is_ignored(self) -> None:
        """The seed's interleaving: the dead reader's message arrives when the new one has begun."""
        tables = book(found(), outside(), split(b"\x09"), launched(1, 1), GivenBack(ORDERS, 1, 1, "slow"), launched(1, 2))
        assert tables.decide_report(reported(1, 1)) == []
        assert tables.decide_give_back(ORDERS, 1, 1, "slow") == []
        assert tables.chunk_state(ORDERS, 1) is ChunkState.RUNNING
        assert tables.decide_report(reported(1, 2)) == [reported(1, 2)]

    def test_a_report_between_a_give_back_and_the_relaunch_is_ignored(self) -> None:
        tables = book(found(), outside(), split(b"\x09"), launched(1, 1), GivenBack(ORDERS, 1, 1, "slow"))
        assert tables.decide_report(reported(1, 1)) == []

    def test_the_second_of_two_reports_of_a_job_is_ignored(self) -> None:
        """A task ran twice. Whose files are adopted must not change any more."""
        tables = book(found(), outside(), split(b"\x09"), launched(1, 1), reported(1, 1, nonce="first"))
        assert tables.decide_report(reported(1, 1, nonce="second")) == []
        reading = tables.reading(ORDERS, 1)
        assert reading is not None
        assert reading.report == reported(1, 1, nonce="first")

    def test_a_report_for_an_incarnation_that_is_over_is_ignored(self) -> None:
        again = Incarnation(ORDERS.table, 2)
        tables = book(found(), launched(OUTSIDE, 1), Reborn(again, 20, 2), Launched(again, OUTSIDE, 2, 20, 0))
        assert tables.decide_report(reported(OUTSIDE, 1)) == []
        assert tables.decide_report(reported(OUTSIDE, 2)) == []
        assert tables.decide_give_back(ORDERS, OUTSIDE, 2, "slow") == []
        assert tables.decide_report(reported(OUTSIDE, 2, incarnation=again)) != []

    def test_a_fact_of_another_job_than_the_one_under_way_changes_nothing(self) -> None:
        """`apply` is the last guard: whoever holds on to a decision for too long must not void, or answer for, a younger read."""
        tables = book(found(), outside(), split(b"\x09"), launched(1, 1), GivenBack(ORDERS, 1, 1, "slow"), launched(1, 2))
        with refused(tables):
            tables.apply(GivenBack(ORDERS, 1, 1, "slow"))
        with refused(tables):
            tables.apply(reported(1, 1))

    def test_reads_that_fail_are_counted_until_one_is_adopted(self) -> None:
        tables = book(found(), outside(), split(b"\x09"))
        for job in (1, 2):
            tables.apply(launched(1, job))
            tables.apply(GivenBack(ORDERS, 1, job, "slow"))
        assert (tables.failures(ORDERS.table), tables.failures(ITEMS.table)) == (2, 0)
        tables.apply(adopted(1), 2)
        assert tables.failures(ORDERS.table) == 0

    def test_the_relay_keeps_the_log_for_the_oldest_read_under_way(self) -> None:
        tables = book(found(), found(ITEMS))
        assert tables.lowest_visible() is None
        tables.apply(launched(OUTSIDE, 1, visible=30))
        tables.apply(launched(OUTSIDE, 2, visible=20, incarnation=ITEMS))
        assert tables.lowest_visible() == 20
        tables.apply(GivenBack(ITEMS, OUTSIDE, 2, "slow"))
        assert tables.lowest_visible() == 30

    def test_an_intent_of_another_driver_adopts_what_this_one_is_reading(self) -> None:
        """L9: what an intent holds is true whoever wrote it, and this driver's own read is void then."""
        for under_way in ([], [launched(1, 1)], [launched(1, 1), reported(1, 1, nonce="mine")]):
            tables = book(found(), outside(), split(b"\x09"), *under_way)
            tables.apply(Adopted(incarnation=ORDERS, ordinal=1, nonce="theirs", visible=5, high=11), 2)
            assert tables.chunk_state(ORDERS, 1) is ChunkState.ADOPTED
            assert list(tables.readings()) == []
            assert tables.decide_report(reported(1, 1, nonce="mine")) == []
            assert phase(tables) is TablePhase.CATCHING_UP

    def test_a_chunk_is_adopted_once(self) -> None:
        tables = book(found(), outside(), split(b"\x04", b"\x09"), adopted(1))
        with refused(tables, "is adopted: adopted"):
            tables.apply(adopted(1), 2)

    @pytest.mark.parametrize("ordinal", [-1, 2])
    def test_a_chunk_that_no_won_intent_has_a_bound_for_is_neither_launched_nor_adopted(self, ordinal: int) -> None:
        tables = book(found(), outside(), split(b"\x04", complete=False))
        assert tables.chunk_state(ORDERS, ordinal) is None
        with refused(tables, "not there"):
            tables.apply(launched(ordinal, 1))
        with refused(tables, "not there"):
            tables.apply(adopted(ordinal))


class TestBounds:
    def test_what_lies_outside_is_adopted_before_splitting_begins(self) -> None:
        """A13, L5: while a table is split for minutes its tail must not wait, for its log is let go of meanwhile."""
        tables = book(found())
        with refused(tables, "a table is split that is not being split"):
            tables.apply(split(b"\x09"))
        tables.apply(outside())
        assert tables.copy_of(ORDERS).extent == EXTENT
        tables.apply(split(b"\x09"))

    @pytest.mark.parametrize("first", [1, 3])
    def test_bounds_that_come_twice_or_leave_a_gap_are_refused(self, first: int) -> None:
        tables = book(found(), outside(), split(b"\x04", complete=False))
        with refused(tables, "bounds leave a gap"):
            tables.apply(split(b"\x09", first=first))

    @pytest.mark.parametrize("uppers", [(b"\x04",), (), (b"\x0a",)])
    def test_bounds_that_do_not_end_at_the_greatest_key_are_not_complete(self, uppers: tuple[bytes, ...]) -> None:
        """Keys behind the last chunk would be neither in one nor outside of all: their changes would be dropped for ever."""
        tables = book(found(), outside(), split(b"\x03", complete=False))
        with refused(tables, "bounds do not end at the greatest key"):
            tables.apply(split(*uppers, first=2))
        tables.apply(split(*uppers, first=2, complete=False))

    def test_bounds_behind_the_last_are_refused(self) -> None:
        tables = book(found(), outside(), split(b"\x09"))
        with refused(tables, "a table is split that is not being split"):
            tables.apply(split(b"\x0a", first=2))

    def test_chunks_may_be_adopted_while_others_are_still_being_found(self) -> None:
        tables = book(found(), outside(), split(b"\x04", complete=False), adopted(1), split(b"\x09", first=2))
        assert phase(tables) is TablePhase.SNAPSHOTTING
        tables.apply(adopted(2))
        assert phase(tables) is TablePhase.CATCHING_UP

    def test_the_last_bounds_finish_a_table_whose_chunks_are_all_adopted(self) -> None:
        tables = book(found(), outside(), split(b"\x09", complete=False), adopted(1), split(first=2))
        assert phase(tables) is TablePhase.CATCHING_UP

    def test_a_copy_is_as_large_as_what_is_unfinished(self) -> None:
        count = 1000
        uppers = [n.to_bytes(8, "big") for n in range(count)]
        tables = book(found(), outside(extent=KeyEnds(uppers[0], uppers[-1])), split(*uppers))
        for ordinal in range(1, count):
            tables.apply(adopted(ordinal))
        copied = tables.copy_of(ORDERS)
        assert len(list(copied.adopted)) == 1
        assert len(copied.bounds.data) <= 4 * 8
        assert copied.bounds.upper(count - 1) == (count - 2).to_bytes(8, "big"), "the lower edge of the missing chunk"


class TestStatements:
    def test_a_table_emptied_while_it_is_copied_begins_anew_and_keeps_nothing_that_was_read(self) -> None:
        """L6: a chunk that was read behind the TRUNCATE would be emptied with the rest and yet count as there."""
        again = Incarnation(ORDERS.table, 2)
        tables = book(
            found(), outside(), split(b"\x04", b"\x09"), adopted(1), launched(2, 1), found(ITEMS), launched(OUTSIDE, 2, incarnation=ITEMS)
        )
        tables.apply(Reborn(again, 40, 3), 2)
        table = tables.known(again)
        assert (table.phase, table.since, table.schema, table.copy) == (TablePhase.DISCOVERED, 40, 3, Copy())
        assert [reading.launch.incarnation for reading in tables.readings()] == [ITEMS]
        for late in (adopted(2), outside(), split(b"\x04")):
            with refused(tables, "a fact is of an incarnation that is over"):
                tables.apply(late)
        with refused(tables, "2 of shop.orders#1 is not there"):
            tables.apply(launched(2, 3))

    @pytest.mark.parametrize("number", [0, 1])
    def test_an_incarnation_that_does_not_follow_is_refused(self, number: int) -> None:
        tables = book(*TO_CATCHING_UP)
        with refused(tables, "an incarnation does not follow the last one"):
            tables.apply(Reborn(Incarnation(ORDERS.table, number), 40, 1))
        tables.apply(Reborn(Incarnation(ORDERS.table, 7), 40, 1))

    def test_a_table_that_nobody_found_is_not_reborn(self) -> None:
        tables = Tables()
        with refused(tables, "an incarnation does not follow the last one"):
            tables.apply(Reborn(ORDERS, 40, 1))

    def test_a_live_table_that_is_truncated_goes_on(self) -> None:
        """A12."""
        tables = book(*TO_CATCHING_UP, Covered(1, 30), Released(ORDERS))
        before = copy.deepcopy(vars(tables))
        tables.apply(Truncated(ORDERS, 40), 2)
        assert vars(tables) == before

    @pytest.mark.parametrize("facts", [TO_CATCHING_UP[:1], TO_CATCHING_UP[:2], TO_CATCHING_UP[:3], TO_CATCHING_UP])
    def test_a_table_that_is_not_live_is_never_just_truncated(self, facts: tuple[Fact, ...]) -> None:
        tables = book(*facts)
        with refused(tables, "invalid transition of a table"):
            tables.apply(Truncated(ORDERS, 40), 2)

    def test_a_dropped_table_has_nothing_under_way_and_comes_back_as_another(self) -> None:
        tables = book(found(), launched(OUTSIDE, 1), Gone(ORDERS, 40))
        assert (phase(tables), tables.known(ORDERS).copy, list(tables.readings())) == (TablePhase.GONE, None, [])
        assert not tables.known(ORDERS).live
        with refused(tables, "invalid transition of a table"):
            tables.apply(Gone(ORDERS, 41))
        again = Incarnation(ORDERS.table, 2)
        tables.apply(Reborn(again, 42, 5))
        assert tables.known(again).schema == 5

    def test_of_a_dropped_table_nothing_is_left_once_that_is_done(self) -> None:
        """And whoever makes it again makes another: it is found as if it had never been."""
        tables = book(*TO_CATCHING_UP, found(ITEMS), Gone(ORDERS, 40))
        assert tables.releasable() == [Released(ORDERS)]
        tables.apply(Released(ORDERS))
        assert [table.incarnation for table in tables] == [ITEMS]
        assert vars(tables) == vars(book(found(ITEMS)))
        tables.apply(found(Incarnation(ORDERS.table, 9)), 9)

    def test_a_dropped_table_that_was_catching_up_is_not_covered_any_more(self) -> None:
        tables = book(*TO_CATCHING_UP, Gone(ORDERS, 40))
        tables.apply(Covered(1, 99))
        assert phase(tables) is TablePhase.GONE

    def test_a_change_of_schema_voids_no_read_by_itself(self) -> None:
        tables = book(found(), launched(OUTSIDE, 1), Reshaped(ORDERS, 40, 2))
        assert tables.known(ORDERS).schema == 2
        assert tables.reading(ORDERS, OUTSIDE) is not None

    def test_a_live_table_that_is_read_again_stays_live(self) -> None:
        """A7, L13: the log lane goes on, or a give-back would freeze the range."""
        tables = book(*TO_CATCHING_UP, Covered(1, 30), Released(ORDERS), Recopied(ORDERS, 35))
        assert phase(tables) is TablePhase.DISCOVERED
        assert tables.known(ORDERS).live
        assert tables.copy_of(ORDERS) == Copy(replaces=True)
        assert tables.known(ORDERS).since == 35, "a read must show what it is for"

    def test_an_append_only_table_is_never_read_again_in_place(self) -> None:
        """A7: what was read the first time would be there twice."""
        tables = book(found(keyed=False), outside(extent=None), Covered(1, 30), Released(ORDERS))
        with refused(tables, "an append-only table is read again in place"):
            tables.apply(Recopied(ORDERS, 35))

    def test_a_table_that_is_not_released_is_not_read_again(self) -> None:
        tables = book(*TO_CATCHING_UP)
        with refused(tables, "invalid transition of a table: shop.orders#1 is catching up: copied again"):
            tables.apply(Recopied(ORDERS, 35))


class TestLives:
    LIVES: ClassVar[dict[TablePhase, tuple[Fact, ...]]] = {
        TablePhase.DISCOVERED: (found(),),
        TablePhase.SPLITTING: TO_CATCHING_UP[:2],
        TablePhase.SNAPSHOTTING: TO_CATCHING_UP[:3],
        TablePhase.CATCHING_UP: TO_CATCHING_UP,
        TablePhase.STREAMING: (*TO_CATCHING_UP, Covered(1, 30)),
        TablePhase.RELEASED: (*TO_CATCHING_UP, Covered(1, 30), Released(ORDERS)),
        TablePhase.SET_ASIDE: (found(), SetAside(ORDERS, 40, 4, "a column is named _op")),
        TablePhase.GONE: (found(), Gone(ORDERS, 40)),
    }
    TURNS: ClassVar[dict[TableTrigger, Fact]] = {
        TableTrigger.OUTSIDE_ADOPTED: outside(),
        TableTrigger.SPLIT_COMPLETE: split(first=99),
        TableTrigger.ALL_ADOPTED: adopted(99),
        TableTrigger.TRUNCATED: Truncated(ORDERS, 50),
        TableTrigger.REBORN: Reborn(Incarnation(ORDERS.table, 2), 50, 1),
        TableTrigger.RECOPIED: Recopied(ORDERS, 35),
        TableTrigger.SET_ASIDE: SetAside(ORDERS, 50, 5, "its key has another type"),
        TableTrigger.DROPPED: Gone(ORDERS, 50),
    }

    @pytest.mark.parametrize("at", TablePhase)
    @pytest.mark.parametrize("turn", TURNS)
    def test_a_turn_that_the_table_does_not_hold_is_refused(self, at: TablePhase, turn: TableTrigger) -> None:
        tables = book(*self.LIVES[at])
        assert phase(tables) is at
        if (at, turn) not in TABLE_LIFE:
            with refused(tables):
                tables.apply(self.TURNS[turn], 2)

    @pytest.mark.parametrize("at", [phase for phase in TablePhase if phase not in (TablePhase.SET_ASIDE, TablePhase.GONE)])
    def test_a_table_that_is_set_aside_keeps_its_name_its_shape_and_the_reason_and_nothing_else(self, at: TablePhase) -> None:
        """B2: what one table can't do must not be what all of them can't do, and what it had read is nobody's to adopt."""
        aside = SetAside(ORDERS, 50, 5, "its key has another type")
        tables = book(*self.LIVES[at])
        if tables.chunk_state(ORDERS, 2) is ChunkState.PLANNED:
            tables.apply(launched(2, 7))
        tables.apply(aside, 2)
        table = tables.known(ORDERS)
        assert (table.phase, table.aside, table.copy, table.live) == (TablePhase.SET_ASIDE, aside, None, False)
        assert (table.target, table.schema) == ("ods.orders", 1)
        assert list(tables.readings()) == []
        assert tables.lowest_visible() is None
        assert tables.releasable() == []
        tables.apply(Reshaped(ORDERS, 60, 9))
        assert tables.known(ORDERS).schema == 9, "its shape is followed, so that it can be copied again"

    def test_a_table_that_was_set_aside_comes_back_with_a_new_copy_or_is_dropped(self) -> None:
        aside = self.LIVES[TablePhase.SET_ASIDE]
        again = Incarnation(ORDERS.table, 5)
        tables = book(*aside, Reborn(again, 70, 3, asked=True))
        table = tables.known(again)
        assert (table.phase, table.aside, table.copy, table.since) == (TablePhase.DISCOVERED, None, Copy(), 70)
        tables = book(*aside, Gone(ORDERS, 70))
        assert (phase(tables), tables.known(ORDERS).aside) == (TablePhase.GONE, None)

    def test_every_phase_but_the_first_is_reached_and_every_one_can_be_left(self) -> None:
        assert set(TABLE_LIFE.values()) == set(TablePhase)
        assert {before for before, _ in TABLE_LIFE} == set(TablePhase)
        assert {turn for _, turn in TABLE_LIFE} == set(TableTrigger)

    @pytest.mark.parametrize("turn", ChunkTrigger)
    @pytest.mark.parametrize("state", ChunkState)
    def test_a_chunk_goes_on_as_its_life_says_or_not_at_all(self, state: ChunkState, turn: ChunkTrigger) -> None:
        way = {ChunkState.PLANNED: 0, ChunkState.RUNNING: 1, ChunkState.READ: 2, ChunkState.ADOPTED: 3}[state]
        tables = book(found(), outside(), split(b"\x04", b"\x09"), *(launched(1, 1), reported(1, 1), adopted(1))[:way])
        assert tables.chunk_state(ORDERS, 1) is state
        fact: Fact = {
            ChunkTrigger.LAUNCHED: launched(1, 1),
            ChunkTrigger.REPORTED: reported(1, 1),
            ChunkTrigger.GIVEN_BACK: GivenBack(ORDERS, 1, 1, "slow"),
            ChunkTrigger.ADOPTED: adopted(1),
        }[turn]
        if (state, turn) in CHUNK_LIFE:
            tables.apply(fact, 2)
            assert tables.chunk_state(ORDERS, 1) is CHUNK_LIFE[state, turn]
        else:
            with refused(tables, "invalid transition of a chunk"):
                tables.apply(fact, 2)

    def test_what_is_not_known_has_no_answer(self) -> None:
        tables = book(found())
        assert len(tables) == 1
        assert tables.get(ITEMS.table) is None
        assert tables.current(Incarnation(ORDERS.table, 2)) is None
        assert tables.chunk_state(ITEMS, OUTSIDE) is None
        assert tables.chunk_state(ORDERS, OUTSIDE) is ChunkState.PLANNED
        assert tables.reading(ORDERS, OUTSIDE) is None
        with pytest.raises(InvariantBroken, match=r"a fact is of an incarnation that is over: shop\.items#1"):
            tables.known(ITEMS)
