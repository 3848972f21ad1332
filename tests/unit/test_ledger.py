"""What an intent holds is true whoever wrote it, and nothing else is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Committed, Done, Entry, Intent, StagedFor, StagedName
from snowmelt.errors import Corrupt, InvariantBroken
from snowmelt.model.table import TableId
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
    Reported,
    SetAside,
    Split,
)
from snowmelt.planning.tables import ChunkState, TablePhase

ORDERS = Incarnation(TableId("shop", "orders"), 1)
SHARD = Incarnation(TableId("shop", "orders_2"), 1)
ITEMS = Incarnation(TableId("shop", "items"), 1)
EXTENT = KeyEnds(b"\x01", b"\x09")


def found(incarnation: Incarnation = ORDERS, target: str = "ods.orders") -> Found:
    return Found(incarnation, target, True, 1)


def adopted(ordinal: int, incarnation: Incarnation = ORDERS, *, high: int = 0, extent: KeyEnds | None = None) -> Adopted:
    return Adopted(incarnation=incarnation, ordinal=ordinal, nonce=f"n{ordinal}", visible=0, high=high, extent=extent)


def intent(ledger: Ledger, *facts: Durable, upto: int | None = None, generation: int = 1, time_ms: int | None = None) -> Intent:
    """The one that follows."""
    end = ledger.upto + 10 if upto is None else upto
    return Intent(
        epoch=ledger.epoch + 1,
        generation=generation,
        nonce=f"n{ledger.epoch + 1}",
        after=ledger.upto,
        upto=end,
        time_ms=time_ms,
        facts=facts,
        entries=(),
        sequence_max=2 * end + 1,
        segment=ledger.epoch + 1,
    )


def win(ledger: Ledger, *facts: Durable, upto: int | None = None, generation: int = 1, time_ms: int | None = None) -> Intent:
    won = intent(ledger, *facts, upto=upto, generation=generation, time_ms=time_ms)
    ledger.apply_intent(won)
    return won


def close(ledger: Ledger, *snapshots: Committed, listeners: str = "") -> list[Incarnation]:
    return ledger.apply_done(ledger.decide_done(snapshots, listeners))


def state(ledger: Ledger) -> dict[str, object]:
    return copy.deepcopy({**vars(ledger), "tables": vars(ledger.tables)})


@contextmanager
def refused(ledger: Ledger, text: str | None = None) -> Iterator[None]:
    before = state(ledger)
    with pytest.raises(InvariantBroken, match=text):
        yield
    assert state(ledger) == before


class TestIntents:
    def test_an_intent_makes_its_facts_true_and_moves_the_log(self) -> None:
        ledger = Ledger()
        won = win(ledger, found(), upto=70)
        assert (ledger.epoch, ledger.upto, ledger.done_upto, ledger.open) == (1, 70, 0, won)
        assert (ledger.identity, ledger.generation, ledger.sequence_max, ledger.segment, ledger.done_segment) == ("1-n1", 1, 141, 1, 0)
        assert ledger.tables.known(ORDERS).target == "ods.orders"

    def test_an_intent_that_does_not_follow_is_refused(self) -> None:
        ledger = Ledger()
        win(ledger, found())
        following = intent(ledger)
        with refused(ledger, "an intent follows one that is not done: 2"):
            ledger.apply_intent(following)
        close(ledger)
        for wrong, text in (
            (replace(following, epoch=1), "an intent does not follow by its number: 1 after 1"),
            (replace(following, epoch=3), "an intent does not follow by its number: 3 after 1"),
            (replace(following, upto=9), "an intent goes back in the log: 2"),
            (replace(following, after=9), "an intent leaves a gap in the log: 2 begins at 9, not 10"),
            (replace(following, after=11), "an intent leaves a gap in the log: 2 begins at 11, not 10"),
        ):
            with refused(ledger, text):
                ledger.apply_intent(wrong)

    def test_an_intent_whose_facts_can_not_be_true_is_no_epoch(self) -> None:
        """It stops the driver; the ledger of a driver that stopped is asked for nothing."""
        ledger = Ledger()
        with pytest.raises(InvariantBroken, match="a fact is of an incarnation that is over"):
            ledger.apply_intent(intent(ledger, Found(ITEMS, "ods.items", True, 1), adopted(1)))
        assert (ledger.epoch, ledger.upto, ledger.open) == (0, 0, None)

    def test_the_newest_sequence_never_falls(self) -> None:
        """No row of this or an earlier epoch is above it."""
        ledger = Ledger()
        win(ledger, upto=100)
        close(ledger)
        ledger.apply_intent(replace(intent(ledger), sequence_max=7))
        assert ledger.sequence_max == 201

    def test_chunks_in_an_intent_of_an_older_driver_are_adopted_by_whoever_rolls_it_forward(self) -> None:
        """L9: read again, a key that was deleted in between would be a ghost for ever."""
        first = Ledger()
        win(first, found(), generation=4)
        close(first)
        won = intent(first, adopted(OUTSIDE), generation=4)
        second = copy.deepcopy(first)
        second.apply_intent(won)
        assert second.tables.chunk_state(ORDERS, OUTSIDE) is ChunkState.ADOPTED
        assert close(second) == [ORDERS], "and its done epoch lets go of them"

    def test_a_read_that_no_intent_holds_is_unknown_to_the_next_driver(self) -> None:
        """A failed job's chunk, and a report that came too late: the chunk is read again."""
        mine, theirs = Ledger(), Ledger()
        for ledger in (mine, theirs):
            win(ledger, found())
            close(ledger)
        mine.tables.apply(Launched(ORDERS, OUTSIDE, 1, 5, 0))
        mine.tables.apply(Reported(incarnation=ORDERS, ordinal=OUTSIDE, job=1, nonce="n", high=6, exact=True, schema=1, files=("f",)))
        assert theirs.tables.chunk_state(ORDERS, OUTSIDE) is ChunkState.PLANNED
        assert (
            theirs.tables.decide_report(
                Reported(incarnation=ORDERS, ordinal=OUTSIDE, job=1, nonce="n", high=6, exact=True, schema=1, files=("f",))
            )
            == []
        )

    def test_an_epoch_that_empties_or_reshapes_is_not_overlapped(self) -> None:
        """A9: the next one would read the lake before it, or stage in the old shape."""
        plain = Entry(target="ods.orders", uuid="u", buckets=1, schema=1, new_schema=None, base=0, empties=(), files=("f",))
        base = intent(Ledger())
        assert base.overlaps
        assert replace(base, entries=(plain,)).overlaps
        assert not replace(base, entries=(plain, replace(plain, empties=("shop.orders",)))).overlaps
        assert not replace(base, entries=(replace(plain, new_schema=2),)).overlaps

    def test_two_intents_of_one_number_are_told_apart(self) -> None:
        """L10: by who wrote them, and by which try it was."""
        base = intent(Ledger())
        assert len({base.identity, replace(base, generation=2).identity, replace(base, nonce="x").identity}) == 3


class TestDone:
    def test_nothing_is_let_go_of_before_done(self) -> None:
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE, high=5))
        assert ledger.tables.known(ORDERS).phase is TablePhase.CATCHING_UP
        assert (ledger.done_epoch, ledger.done_upto, ledger.done_segment) == (0, 0, 0)
        assert ledger.tables.copy_of(ORDERS).high == 5
        assert close(ledger) == [ORDERS]
        assert ledger.tables.known(ORDERS).phase is TablePhase.RELEASED
        assert (ledger.done_epoch, ledger.done_upto, ledger.done_segment) == (1, 10, 1)

    def test_nothing_is_let_go_of_by_an_epoch_that_leaves_a_chunk_to_read(self) -> None:
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE, extent=EXTENT))
        assert close(ledger) == []
        win(ledger, Split(ORDERS, 1, (b"\x04", b"\x09"), True))
        assert close(ledger) == []
        win(ledger, adopted(1))
        assert close(ledger) == []
        win(ledger, adopted(2))
        assert close(ledger) == [ORDERS]
        win(ledger)
        assert close(ledger) == [], "it is said once"

    def test_an_epoch_that_ends_before_a_reads_high_end_does_not_cover_it(self) -> None:
        """What is not let go of then is so by a later one."""
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE, high=15), upto=10)
        assert close(ledger) == []
        assert ledger.tables.copy_of(ORDERS).high == 15
        win(ledger, upto=15)
        assert close(ledger) == [ORDERS]

    def test_a_table_is_let_go_of_while_others_are_added(self) -> None:
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE), found(ITEMS, "ods.items"))
        assert close(ledger) == [ORDERS]
        assert ledger.tables.known(ITEMS).phase is TablePhase.DISCOVERED

    def test_a_record_of_another_epoch_or_intent_closes_nothing(self) -> None:
        ledger = Ledger()
        with refused(ledger, "no epoch is open"):
            ledger.decide_done((), "")
        win(ledger, found())
        done = ledger.decide_done((), "")
        for wrong, text in (
            (replace(done, epoch=2), "another epoch is done than the open one: 2, not 1"),
            (replace(done, identity="2-x"), "another intent is done than the one that was won: 2-x, not 1-n1"),
        ):
            with refused(ledger, text):
                ledger.apply_done(wrong)
        ledger.apply_done(done)
        with refused(ledger, "an epoch is done that is not open"):
            ledger.apply_done(done)

    def test_the_state_of_listeners_and_the_cut_over_tables_survive(self) -> None:
        """Seed 004: the listeners' state belongs to who commits."""
        ledger = Ledger()
        win(ledger, found())
        close(ledger, Committed("ods.orders", 5), Committed("ods.items", 3), listeners="heard 1")
        win(ledger)
        close(ledger, Committed("ods.orders", 6), listeners="heard 2")
        assert ledger.listeners == "heard 2"
        assert ledger.snapshots == {"ods.orders": 6, "ods.items": 3}


class TestWatermarks:
    def mark(self, ledger: Ledger, time_ms: int | None, *facts: Durable) -> dict[str, int]:
        win(ledger, *facts, time_ms=time_ms)
        close(ledger)
        return dict(ledger.watermarks)

    def test_a_table_has_none_before_the_lake_has_all_of_it(self) -> None:
        ledger = Ledger()
        assert self.mark(ledger, 10, found()) == {}
        assert self.mark(ledger, 20, adopted(OUTSIDE, extent=EXTENT)) == {}
        assert self.mark(ledger, 30, Split(ORDERS, 1, (b"\x09",), True)) == {}
        assert self.mark(ledger, 40, adopted(1)) == {"ods.orders": 40}

    def test_a_quiet_table_moves_with_the_log(self) -> None:
        """A17, M2: without a snapshot of its own."""
        ledger = Ledger()
        self.mark(ledger, 10, found(), adopted(OUTSIDE))
        assert self.mark(ledger, 50) == {"ods.orders": 50}

    def test_of_several_sources_the_slowest_counts(self) -> None:
        """M2, seed 004: the greatest would close a partition that a slower one still writes to."""
        ledger = Ledger()
        assert self.mark(ledger, 10, found(), adopted(OUTSIDE), found(SHARD)) == {}
        assert self.mark(ledger, 20) == {}
        assert self.mark(ledger, 30, adopted(OUTSIDE, SHARD)) == {"ods.orders": 30}

    def test_it_never_goes_back(self) -> None:
        """A clock may."""
        ledger = Ledger()
        self.mark(ledger, 30, found(), adopted(OUTSIDE))
        assert self.mark(ledger, 20) == {"ods.orders": 30}
        assert self.mark(ledger, None) == {"ods.orders": 30}

    def test_there_is_none_while_a_source_is_copied_for_the_first_time_or_again(self) -> None:
        """The lake lacks rows then that were committed long before."""
        ledger = Ledger()
        self.mark(ledger, 30, found(), adopted(OUTSIDE))
        assert self.mark(ledger, 40, found(SHARD)) == {}
        assert self.mark(ledger, 50, adopted(OUTSIDE, SHARD)) == {"ods.orders": 50}
        anew = Incarnation(ORDERS.table, 4)
        assert self.mark(ledger, 60, Reborn(anew, 1, 1)) == {}
        assert self.mark(ledger, 70, adopted(OUTSIDE, anew)) == {"ods.orders": 70}
        assert self.mark(ledger, 80, Recopied(anew, 5)) == {}
        assert self.mark(ledger, 90, adopted(OUTSIDE, anew)) == {"ods.orders": 90}

    def test_a_source_that_is_set_aside_keeps_it_where_it_is(self) -> None:
        """The least of the two counts, and not the greatest."""
        ledger = Ledger()
        self.mark(ledger, 10, found(), adopted(OUTSIDE), found(SHARD), adopted(OUTSIDE, SHARD))
        self.mark(ledger, 20)
        assert self.mark(ledger, 30, SetAside(SHARD, 5, 20, "why")) == {"ods.orders": 20}
        assert self.mark(ledger, 40) == {"ods.orders": 20}

    def test_a_dropped_source_holds_nobody_back(self) -> None:
        ledger = Ledger()
        self.mark(ledger, 10, found(), adopted(OUTSIDE), found(SHARD))
        assert self.mark(ledger, 20, Gone(SHARD, 5)) == {"ods.orders": 20}

    def test_of_a_lake_table_whose_sources_are_all_gone_only_the_mark_stays(self) -> None:
        """The lake keeps its rows, and a table that is made again under that name commits behind that mark."""
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE), found(ITEMS, "ods.items"), adopted(OUTSIDE, ITEMS), time_ms=10)
        close(ledger, Committed("ods.orders", 5), Committed("ods.items", 3))
        win(ledger, Gone(ORDERS, 5), time_ms=20)
        close(ledger)
        assert (ledger.snapshots, ledger.watermarks) == ({"ods.items": 3}, {"ods.items": 20})
        assert set(ledger.last_commits) == {"ods.orders", "ods.items"}

    def test_before_the_first_transaction_there_is_none(self) -> None:
        assert self.mark(Ledger(), None, found(), adopted(OUTSIDE)) == {}

    def test_it_follows_from_the_epoch_and_no_record_names_it(self) -> None:
        """What an epoch writes does not grow with the tables that nothing happened to."""
        ledger = Ledger()
        win(ledger, found(), adopted(OUTSIDE), time_ms=10)
        assert ledger.decide_done((), "") == Done(1, "1-n1", (), "")
        assert ledger.decide_watermarks() == {"ods.orders": 10}
        assert ledger.watermarks == {}


class TestStagedNames:
    @pytest.mark.parametrize(
        "name",
        [
            StagedName(3, StagedFor.EPOCH, 7, "ab12", "ods.orders-0.parquet"),
            StagedName(12, StagedFor.CHUNK, 4, "n", "x"),
            StagedName(2, StagedFor.REWRITE, 1, "n", "x"),
        ],
    )
    def test_a_name_tells_whose_it_is(self, name: StagedName) -> None:
        assert StagedName.parse(str(name)) == name

    @pytest.mark.parametrize(
        "name", ["", "part-0.parquet", "sm-1-x7-n-f", "sm-1-e7--f", "sm-1-e7-n-", "sm-1-e7-N-f", "xsm-1-e7-n-f", "sm-1-e7-n-f\n"]
    )
    def test_a_name_that_is_not_ours_is_never_taken_for_one(self, name: str) -> None:
        with pytest.raises(Corrupt, match="not the name of a staged file"):
            StagedName.parse(name)
