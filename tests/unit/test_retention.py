"""What the relay lets go of can't be asked for by anybody, and whoever takes it over believes no less than what is durable."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from snowmelt.databases.mysql.gtid import MariaDbGtidSet, words_of
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay import retention
from snowmelt.relay.restored import needs_before, take_over
from snowmelt.relay.retention import Cut, Decided, Effect, Ending, Prepared, Relay, SegmentRecord, TableStatement

ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "items")


def segment(
    number: int, *, size: int = 10, file: int = 1, era: int = 0, name: str = "", statements: tuple[TableStatement, ...] = ()
) -> SegmentRecord:
    """Segments of ten bytes, each with a cut in its middle and one at its end."""
    first = 10 * (number - 1)
    cuts = (Cut(first + 5, first + 5), Cut(first + 10, first + 10))
    return SegmentRecord(
        number=number,
        generation=1,
        name=name or f"s{number}",
        begins=Position(file, 4 + first, era),
        ends=Position(file, 4 + first + size, era),
        first=first,
        cuts=cuts,
        statements=statements,
    )


def group(offset: int, xid: str = "x", *, size: int = 2, era: int = 0) -> Prepared:
    return Prepared(xid=xid, era=era, begins=offset - size, offset=offset, at=offset - size, bytes=size)


def relay_of(*segments: SegmentRecord) -> Relay:
    relay = Relay()
    for sealed in segments:
        relay.apply(sealed)
    return relay


def of(count: int) -> Relay:
    return relay_of(*(segment(number) for number in range(1, count + 1)))


@contextmanager
def refused(relay: Relay, text: str) -> Iterator[None]:
    before = copy.deepcopy(vars(relay))
    with pytest.raises((InvariantBroken, Corrupt), match=text):
        yield
    assert vars(relay) == before


class TestChain:
    def test_an_empty_relay_has_nothing(self) -> None:
        relay = Relay()
        assert (relay.end, relay.newest, relay.era, relay.segments) == (0, None, 0, [])
        assert (relay.next_cut(0), relay.cut_at_or_below(99), relay.time_at(99), relay.number_at(0)) == (None, None, None, 0)
        assert relay.offset_of(Position(1, 4)) is None
        assert not relay.leftover(1, "s", 9)

    def test_a_range_is_shared_at_cuts_without_gap_or_overlap(self) -> None:
        relay = of(6)
        assert relay.shares(0, 60, 1) == [(0, 60)]
        assert relay.shares(0, 60, 2) == [(0, 30), (30, 60)]
        assert relay.shares(5, 60, 3) == [(5, 20), (20, 40), (40, 60)]
        assert relay.shares(10, 20, 9) == [(10, 15), (15, 20)]
        assert relay.shares(10, 15, 4) == [(10, 15)]
        assert relay.shares(60, 60, 3) == []

    def test_a_transaction_that_is_larger_than_a_share_is_one(self) -> None:
        relay = relay_of(replace(segment(1, size=100), cuts=(Cut(90, 90), Cut(95, 95), Cut(100, 100))))
        assert relay.shares(0, 100, 3) == [(0, 90), (90, 95), (95, 100)]

    def test_a_new_store_begins_its_line_where_it_is_told_to(self) -> None:
        """A6: above the greatest sequence that the lake has seen, or every new row would lose in silence."""
        relay = Relay(floor=500)
        sealed = relay.decide_record(1, "s", Position(1, 4), Position(1, 14), (Cut(510, 1),))
        assert (relay.end, sealed.number, sealed.first, sealed.last) == (500, 1, 500, 510)

    @pytest.mark.parametrize(
        ("wrong", "text"),
        [
            (segment(2), "the relay's chain is broken"),
            (segment(4), "the relay's chain is broken"),
            (replace(segment(3), first=21, cuts=()), "the relay's chain is broken: record 3 at 21, 0/1:24, after 2 to 20, 0/1:24"),
            (replace(segment(3), first=19, cuts=()), "the relay's chain is broken"),
            (
                replace(segment(3), begins=Position(1, 25), ends=Position(1, 34), cuts=()),
                "leaves out some of the log, or has some of it again",
            ),
            (
                replace(segment(3), begins=Position(1, 23), ends=Position(1, 34), cuts=()),
                "leaves out some of the log, or has some of it again",
            ),
            (replace(segment(3), begins=Position(0, 24), ends=Position(0, 34)), "leaves out some of the log, or has some of it again"),
            (replace(segment(3), ends=Position(2, 34)), "a segment is not of one log file"),
            (replace(segment(3), ends=Position(1, 34, era=1)), "a segment is not of one log file"),
            (replace(segment(3), ends=Position(1, 23)), "a segment is not of one log file"),
            (replace(segment(3), cuts=(Cut(19, 1),)), "the cuts of a segment are out of place"),
            (replace(segment(3), cuts=(Cut(31, 1),)), "the cuts of a segment are out of place"),
            (replace(segment(3), cuts=(Cut(25, 1), Cut(25, 2))), "the cuts of a segment are out of place"),
            (replace(segment(3), cuts=(Cut(26, 1), Cut(25, 2))), "the cuts of a segment are out of place"),
            (replace(segment(3), statements=(TableStatement(26, ORDERS, Effect.DROPS, 1),)), "a statement of a segment is no cut"),
            (replace(segment(3), decided=(Decided(group(22), 26, True, False),)), "a second phase in a segment is out of place"),
            (replace(segment(3), decided=(Decided(group(25), 25, True, False),)), "a second phase in a segment is out of place"),
            (replace(segment(3), prepared=(group(31),)), "a transaction is prepared after its segment"),
            (replace(segment(3), prepared=(group(15),)), "a prepared transaction was forgotten, or came from nowhere"),
        ],
    )
    def test_a_record_that_does_not_follow_is_refused(self, wrong: SegmentRecord, text: str) -> None:
        relay = of(2)
        with refused(relay, text):
            relay.apply(wrong)

    def test_the_line_grows_over_files_eras_and_servers(self) -> None:
        """A6, L12: `_seq` of what comes later is greater, also where the server's own numbers begin anew."""
        relay = of(2)
        other = relay.decide_record(2, "x", Position(1, 4, era=1), Position(1, 9, era=1), (Cut(25, 9),))
        relay.apply(other)
        assert (other.number, other.first, relay.end, relay.era) == (3, 20, 25, 1)
        assert sequence.of_change(relay.end) > sequence.of_change(20)

    @pytest.mark.parametrize(("era", "gtids"), [(0, "0-1-9"), (2, "0-1-9")])
    def test_another_server_must_go_on_where_the_last_one_ended(self, era: int, gtids: str) -> None:
        """L12: by GTIDs, for its files and offsets mean nothing here. An era that is over does not come back."""
        relay = relay_of(segment(1, era=1))
        begins = Position(1, 14, era, words_of(MariaDbGtidSet.parse(gtids))) if era else Position(1, 14, era)
        before = copy.deepcopy(vars(relay))
        with pytest.raises(SourceDrift, match="another server does not continue where the last one ended"):
            relay.apply(relay.decide_record(1, "x", begins, begins, ()))
        assert vars(relay) == before

    def test_who_seals_second_gets_the_same_number_and_loses_the_put(self) -> None:
        """L11: a zombie's capture and a new one."""
        mine, theirs = of(2), of(2)
        one = mine.decide_record(1, "mine", Position(1, 24), Position(1, 30), ())
        other = theirs.decide_record(2, "theirs", Position(1, 24), Position(1, 34), ())
        assert one.number == other.number
        mine.apply(other)
        assert mine.leftover(one.number, one.name, 0)
        assert not mine.leftover(other.number, other.name, 0)


class TestTwoPhases:
    """L3: the place of a change is that of its COMMIT, and what is prepared is held aside until then."""

    def seal(self, relay: Relay, *phases: Prepared | Ending, statements: tuple[TableStatement, ...] = (), **more: int) -> SegmentRecord:
        """Ten more bytes with a cut at each."""
        first = relay.end
        cuts = tuple(Cut(first + step, first + step) for step in range(1, 11))
        sealed = relay.decide_record(1, f"s{first}", Position(1, 4 + first), Position(1, 14 + first), cuts, statements, phases, **more)
        relay.apply(sealed)
        return sealed

    def test_both_phases_in_one_segment_put_nothing_aside(self) -> None:
        relay = Relay()
        sealed = self.seal(relay, group(3), Ending("x", 7, True))
        assert (sealed.prepared, sealed.put_aside) == ((), ())
        assert relay.committed(0, 10) == [Decided(group(3), 7, True, False)]
        assert (relay.committed(0, 6), relay.committed(7, 10)) == ([], [])
        relay.raise_floor(10)
        assert relay.over == []

    def test_what_is_prepared_outlives_its_segment_and_its_record(self) -> None:
        relay = Relay()
        assert self.seal(relay, group(3)).put_aside == (group(3),)
        for _ in range(3):
            assert self.seal(relay).put_aside == ()
        relay.raise_floor(40)
        relay.forget(relay.deletable(4))
        again = take_over(relay.segments, intent_upto=40)
        assert (again.prepared, again.over, again.needless([3, 41])) == ((group(3),), [], [])
        self.seal(again, Ending("x", 45, True))
        assert again.committed(40, 50) == [Decided(group(3), 45, True, True)]
        assert (again.prepared, again.needless([3])) == ((), [])

    def test_it_is_let_go_of_when_an_epoch_that_has_its_commit_is_done(self) -> None:
        relay = Relay()
        self.seal(relay, group(3), group(6, "y"))
        self.seal(relay, Ending("x", 12, True), Ending("y", 18, False))
        relay.raise_floor(11)
        assert relay.over == []
        relay.raise_floor(12)
        assert relay.over == [group(3)]
        relay.raise_floor(20)
        assert relay.over == [group(3), group(6, "y")]
        assert relay.needless([3, 6]) == [3, 6]
        relay.forget([])
        assert relay.over == []

    def test_a_rollback_gives_nothing_and_of_what_nobody_prepared_neither(self) -> None:
        relay = Relay()
        self.seal(relay, group(3), Ending("x", 5, False), Ending("z", 6, False))
        assert (relay.committed(0, 10), relay.prepared) == ([], ())

    def test_tables_of_what_is_prepared_that_statements_move_are_gone_with_its_commit(self) -> None:
        """Also those that have their names by then; not those that others concern, and not if it is rolled back."""
        relay, other = Relay(), TableId("shop", "other")
        named = replace(group(3), tables=(ORDERS,))
        before = TableStatement(2, ORDERS, Effect.EMPTIES, 1)
        swap = (TableStatement(6, ORDERS, Effect.DROPS, 0), TableStatement(6, ITEMS, Effect.MAKES, 2))
        self.seal(relay, named, statements=(before, *swap, TableStatement(8, other, Effect.EMPTIES, 3)))
        assert relay.prepared == (replace(named, moved=(ITEMS, ORDERS)),)
        breaks, late = TableStatement(12, other, Effect.BREAKS, 0), TableStatement(18, other, Effect.DROPS, 0)
        again = take_over(relay.segments, intent_upto=10)
        sealed = self.seal(again, Ending("x", 15, True), statements=(breaks, late))
        assert again.committed(10, 20) == [Decided(replace(named, moved=(ITEMS, ORDERS)), 15, True, True)]
        gone = [TableStatement(15, table, Effect.DROPS, 0) for table in (ITEMS, ORDERS)]
        assert sealed.statements == (breaks, *gone, late)
        self.seal(relay, Ending("x", 15, False), statements=(breaks,))
        assert relay.statements(10, 20) == [breaks]

    def test_what_a_server_lost_may_be_prepared_again(self) -> None:
        """A server that died between its log and its engine knows nothing of what it has logged as prepared."""
        relay = Relay()
        self.seal(relay, group(3))
        self.seal(relay, group(14))
        assert relay.prepared == (group(14),)
        self.seal(relay, Ending("x", 25, True))
        assert relay.committed(0, 30) == [Decided(group(14), 25, True, True)]
        relay.raise_floor(30)
        assert relay.over == [group(3), group(14)]

    def test_a_commit_that_the_server_still_lists_as_prepared_is_not_shown(self) -> None:
        """L1: it is in the log and in no read; the cut is one below it."""
        relay = Relay()
        self.seal(relay, group(3), group(4, "y"), Ending("x", 7, True), Ending("y", 9, True))
        assert relay.shown(10, []) == relay.shown(10, ["z"]) == 10
        assert (relay.shown(10, ["x"]), relay.shown(10, ["y"]), relay.shown(10, ["y", "x"])) == (6, 8, 6)
        assert (relay.shown(7, ["x"]), relay.shown(6, ["x"]), relay.shown(8, ["y"])) == (6, 6, 8), (
            "what lies behind a cut is not asked of it"
        )

    def test_a_commit_that_is_not_shown_is_remembered_when_its_log_is_let_go_of(self) -> None:
        """An engine may be stalled for longer than an epoch takes."""
        relay = Relay()
        self.seal(relay, group(3))
        self.seal(relay, Ending("x", 15, True))
        self.seal(relay)
        relay.raise_floor(20)
        relay.forget(relay.deletable(2))
        assert (relay.shown(30, ["x"]), relay.shown(30, [])) == (None, 30)
        relay = Relay()
        self.seal(relay, group(3))
        self.seal(relay, Ending("x", 15, True))
        relay.raise_floor(12)
        assert relay.shown(20, ["x"]) == 14, "above the floor there is a cut below it"

    def test_a_name_that_is_prepared_again_was_shown_before(self) -> None:
        relay = Relay()
        self.seal(relay, group(3), Ending("x", 5, True), group(7))
        assert relay.shown(10, ["x"]) == 10
        self.seal(relay, Ending("x", 12, False))
        assert relay.shown(20, ["x"]) == 20
        self.seal(relay, group(23), Ending("x", 28, True))
        assert (relay.shown(27, ["x"]), relay.shown(30, ["x"])) == (27, 27)

    def test_what_the_log_says_of_a_name_is_known_until_it_is_rolled_back(self) -> None:
        relay = Relay()
        assert not relay.knows("x")
        self.seal(relay, group(3), group(4, "y"))
        assert relay.knows("x")
        self.seal(relay, Ending("x", 15, True), Ending("y", 16, False))
        assert (relay.knows("x"), relay.knows("y")) == (True, False)

    def test_the_names_that_are_remembered_are_bounded_and_the_oldest_goes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retention, "COMMITTED_MAX", 2)
        relay = Relay()
        self.seal(relay, *(phase for at, xid in ((2, "x"), (4, "y"), (6, "z")) for phase in (group(at, xid), Ending(xid, at + 1, True))))
        assert [relay.knows(xid) for xid in "xyz"] == [False, True, True]

    def test_a_commit_of_what_was_not_captured_is_an_error_that_names_it(self) -> None:
        relay = of(1)
        with pytest.raises(SourceDrift, match="an XA transaction was committed whose rows were not captured: z, at offset 12"):
            relay.decide_record(1, "s", Position(1, 14), Position(1, 24), (), (), [Ending("z", 12, True)])

    def test_an_end_under_another_format_id_leaves_what_is_prepared_as_it_is(self) -> None:
        """MySQL 5.7 logs it and does nothing."""
        relay, one, two = Relay(), "X'67',X'62',1", "X'67',X'62',2"
        self.seal(relay, group(3, one), Ending(two, 7, True), Ending(two, 9, False))
        assert (relay.prepared, relay.committed(0, 10)) == ((group(3, one),), [])
        self.seal(relay, Ending(two, 12, True), Ending(one, 15, True))
        assert (relay.prepared, relay.committed(0, 20)) == ((), [Decided(group(3, one), 15, True, True)])
        with pytest.raises(SourceDrift, match="were not captured"):
            self.seal(relay, Ending(two, 25, True))

    def test_an_end_under_a_format_id_that_is_equal_in_its_lower_half_ends_nothing(self) -> None:
        """MySQL 5.7 logs it and does nothing, but its XA_PREPARE has the lower half alone."""
        relay, one, other = Relay(), "X'67',X'62',1", f"X'67',X'62',{2**32 + 1}"
        self.seal(relay, group(3, one), Ending(other, 7, True), Ending(other, 9, False))
        assert (relay.prepared, relay.committed(0, 10)) == ((group(3, one),), [])
        self.seal(relay, Ending(one, 15, True))
        assert relay.committed(0, 20) == [Decided(group(3, one), 15, True, True)]

    @pytest.mark.parametrize("name", [f"X'67',X'62',{2**32 + 1}", "X'67',X'62',1"])
    def test_one_whose_format_id_is_cut_when_its_server_starts_again_ends_by_either_name(self, name: str) -> None:
        relay, one = Relay(), f"X'67',X'62',{2**32 + 1}"
        self.seal(relay, group(3, one), Ending("X'67',X'62',2", 7, True))
        self.seal(relay, Ending(name, 15, True))
        assert (relay.prepared, relay.committed(0, 20)) == ((), [Decided(group(3, one), 15, True, True)])

    def test_their_sum_is_bounded_and_the_largest_is_named(self) -> None:
        relay = Relay()
        self.seal(relay, group(3), group(9, "y", size=5), prepared_bytes_max=7)
        with pytest.raises(SourceDrift, match="larger than the limit: 9 bytes of 8; the largest, y, has 5"):
            self.seal(relay, group(15, "z"), prepared_bytes_max=8)

    def test_another_server_may_have_another_at_the_same_place(self) -> None:
        """What was put aside and never got its record may be followed by another server's log."""
        assert group(3).number != group(3, era=1).number
        relay = Relay()
        self.seal(relay, group(3, era=1))
        assert relay.needless([group(3).number, group(3, era=1).number]) == [group(3).number]
        with pytest.raises(InvariantBroken, match="a prepared transaction has no name"):
            _ = group(3, era=10**4).number


class TestAnswers:
    def test_cuts_and_their_times(self) -> None:
        relay = of(3)
        assert relay.cuts_between(5, 20) == [10, 15, 20]
        assert (relay.next_cut(10), relay.next_cut(30), relay.cut_at_or_below(14), relay.cut_at_or_below(4)) == (15, None, 10, None)
        assert (relay.time_at(17), relay.time_at(4)) == (15, None)

    def test_the_moment_of_a_cut_is_the_last_time_that_the_log_gives_and_that_is_not_still_to_come(self) -> None:
        relay = of(3)
        assert [relay.committed_by(17, now_ms) for now_ms in (99, 15, 14, 5, 4)] == [15, 15, 10, 5, None]
        assert relay.committed_by(4, 99) is None

    def test_a_heartbeat_moves_time_and_not_the_line(self) -> None:
        relay = of(1)
        relay.apply(relay.decide_record(1, "h", Position(2, 4), Position(2, 4), (Cut(10, 99),)))
        assert (relay.end, relay.time_at(10), relay.number_at(10)) == (10, 99, 1)
        assert relay.next_cut(5) == 10

    def test_statements_of_one_table_or_of_all(self) -> None:
        first, second = TableStatement(5, ORDERS, Effect.EMPTIES, 1), TableStatement(10, ITEMS, Effect.DROPS, 1)
        relay = relay_of(segment(1, statements=(first, second)))
        assert relay.statements(0, 10) == [first, second]
        assert relay.statements(5, 10) == [second]
        assert relay.statements(0, 9, ITEMS) == []
        assert relay.statements(0, 10, ORDERS) == [first]

    def test_a_statement_that_reshapes_is_not_table_wide(self) -> None:
        assert [effect for effect in Effect if effect.table_wide] == [one for one in Effect if one is not Effect.RESHAPES]

    def test_the_number_of_the_record_that_holds_an_offset(self) -> None:
        relay = of(3)
        assert [relay.number_at(offset) for offset in (0, 1, 10, 11, 30)] == [0, 1, 1, 2, 3]
        with refused(relay, "a place is asked for that is not captured: 31, end 30"):
            relay.number_at(31)
        relay.raise_floor(15)
        relay.forget(relay.deletable(3))
        assert [relay.number_at(offset) for offset in (10, 11, 20, 21)] == [1, 2, 2, 3], "also of one that was let go of"

    def test_a_place_that_capture_has_not_reached_has_no_offset_yet(self) -> None:
        relay = of(2)
        assert relay.offset_of(Position(1, 4 + 20)) == 20
        assert relay.offset_of(Position(1, 4 + 21)) is None
        assert relay.offset_of(Position(2, 4)) is None

    def test_the_unused_end_of_a_file_is_where_the_next_one_begins(self) -> None:
        relay = of(1)
        relay.apply(relay.decide_record(1, "next", Position(2, 4), Position(2, 14), (Cut(20, 20),)))
        assert relay.offset_of(Position(1, 999)) == 10
        assert relay.offset_of(Position(2, 4)) == 10
        assert relay.offset_of(Position(2, 9)) == 15

    def test_a_place_below_all_that_is_held_is_below_everything(self) -> None:
        relay = take_over([segment(3)], intent_upto=20)
        assert relay.offset_of(Position(1, 7)) == 0

    def test_a_place_of_another_server_is_never_looked_up_by_its_numbers(self) -> None:
        """L12: file 3 of the new server lies before file 120 of the old one, and is later."""
        relay = of(1)
        with pytest.raises(SourceDrift, match="a position is of another server than the log"):
            relay.offset_of(Position(1, 5, era=1))
        relay.apply(relay.decide_record(1, "new", Position(1, 4, era=1), Position(1, 14, era=1), ()))
        assert relay.offset_of(Position(1, 9, era=1)) == 15
        with pytest.raises(SourceDrift):
            relay.offset_of(Position(1, 9))
        assert relay.offset_of(Position(1, 2, era=1)) == 0, "before the first of its era, and not in the era before"


class TestLettingGo:
    def test_the_log_of_a_chunk_under_way_is_kept_although_its_epochs_are_done(self) -> None:
        relay = of(4)
        assert relay.decide_floor(30, None) == 30
        assert relay.decide_floor(30, 15) == 15
        assert relay.decide_floor(10, 25) == 10, "not above what is done"

    def test_the_floor_never_falls(self) -> None:
        relay = of(4)
        relay.raise_floor(30)
        assert relay.decide_floor(10, 5) == 30
        relay.raise_floor(10)
        assert relay.floor == 30

    def test_a_segment_goes_only_when_all_of_it_lies_below_the_floor(self) -> None:
        relay = of(4)
        relay.raise_floor(19)
        assert [sealed.number for sealed in relay.deletable(4)] == [1]
        relay.raise_floor(20)
        assert [sealed.number for sealed in relay.deletable(4)] == [1, 2]

    def test_the_record_behind_the_one_that_the_newest_intent_names_stays(self) -> None:
        """A take-over finds the chain from there on, number by number."""
        relay = of(4)
        relay.raise_floor(40)
        assert [sealed.number for sealed in relay.deletable(2)] == [1, 2]

    def test_the_newest_segment_stays_for_that_is_where_capture_goes_on(self) -> None:
        relay = of(2)
        relay.raise_floor(20)
        assert [sealed.number for sealed in relay.deletable(9)] == [1]
        assert Relay().deletable(9) == []

    def test_where_another_server_goes_on_holds_nothing_and_lets_nobody_forget_where_the_last_one_ended(self) -> None:
        relay = of(3)
        begins = Position(9, 400, 1)
        relay.apply(SegmentRecord(number=4, generation=1, name="era", begins=begins, ends=begins, first=30, cuts=(Cut(30, 30),)))
        relay.raise_floor(20)
        assert [sealed.number for sealed in relay.covering(20, 30)] == [3]
        relay.raise_floor(30)
        assert [sealed.number for sealed in relay.deletable(9)] == [1, 2]
        relay.apply(
            SegmentRecord(number=5, generation=1, name="s5", begins=begins, ends=Position(9, 410, 1), first=30, cuts=(Cut(40, 40),))
        )
        assert [sealed.number for sealed in relay.covering(30, 40)] == [5]
        assert [sealed.number for sealed in relay.deletable(9)] == [1, 2, 3, 4]
        assert (relay.offset_of(begins), relay.number_at(30)) == (30, 3)

    def test_to_let_go_twice_is_harmless(self) -> None:
        relay = of(3)
        relay.raise_floor(20)
        gone = relay.deletable(3)
        relay.forget(gone)
        before = copy.deepcopy(vars(relay))
        relay.forget(gone)
        relay.raise_floor(20)
        assert vars(relay) == before
        assert relay.deletable(3) == []

    def test_cuts_and_statements_below_the_floor_are_forgotten_but_for_the_one_that_an_epoch_may_begin_at(self) -> None:
        relay = relay_of(
            segment(1, statements=(TableStatement(5, ORDERS, Effect.DROPS, 1), TableStatement(10, ORDERS, Effect.MAKES, 1))), segment(2)
        )
        relay.raise_floor(7)
        assert (relay.cut_at_or_below(7), relay.next_cut(0)) == (5, 5)
        assert [statement.offset for statement in relay.statements(0, 99)] == [10]
        relay.raise_floor(10)
        assert (relay.next_cut(0), relay.time_at(10)) == (10, 10)
        assert relay.statements(0, 99) == []

    def test_to_ask_for_what_was_let_go_of_is_an_error_and_never_an_empty_answer(self) -> None:
        relay = of(3)
        relay.raise_floor(10)
        with refused(relay, "a range of the log is asked for after its release"):
            relay.covering(9, 30)
        with refused(relay, "a range of the log is asked for that is not captured"):
            relay.covering(10, 31)
        assert [sealed.number for sealed in relay.covering(10, 25)] == [2, 3]
        assert [sealed.number for sealed in relay.covering(10, 20)] == [2]

    def test_data_of_a_lost_put_goes_when_its_number_can_have_no_other(self) -> None:
        relay = take_over([segment(3), segment(4)], intent_upto=20)
        assert relay.leftover(4, "lost", 9)
        assert not relay.leftover(4, "s4", 9)
        assert not relay.leftover(5, "under way", 9), "it may be the next"
        assert relay.leftover(1, "old", 2)
        assert not relay.leftover(1, "old", 1), "a done epoch may reach beyond it, but not below what it names"


class TestTakeOver:
    def test_what_the_newest_intent_has_not_read_is_found_as_it_was(self) -> None:
        before = of(4)
        relay = take_over([segment(3), segment(4)], intent_upto=25)
        assert (relay.floor, relay.end, relay.newest) == (25, 40, segment(4))
        assert relay.cuts_between(25, 40) == before.cuts_between(25, 40)
        with refused(relay, "a range of the log is asked for after its release"):
            relay.covering(20, 40)

    def test_the_floor_begins_at_the_newest_intent_and_not_at_what_is_still_there(self) -> None:
        """An older driver that is still alive may delete what its last done epoch covers, at any later moment."""
        relay = take_over([segment(1), segment(2), segment(3)], intent_upto=25)
        assert relay.floor == 25
        assert [sealed.number for sealed in relay.deletable(3)] == [1, 2]

    def test_a_first_start_finds_nothing_and_lacks_nothing(self) -> None:
        relay = take_over([], intent_upto=0)
        assert (relay.end, relay.floor) == (0, 0)

    @pytest.mark.parametrize(
        "chain",
        [
            [segment(1), segment(3)],
            [segment(2), segment(1)],
            [segment(1), replace(segment(2), first=11, cuts=())],
            [segment(1), segment(1)],
        ],
    )
    def test_a_broken_chain_is_not_taken_over(self, chain: list[SegmentRecord]) -> None:
        with pytest.raises(Corrupt, match="the relay's chain is broken"):
            take_over(chain, intent_upto=0)

    def test_a_chain_that_begins_behind_the_newest_intent_lacks_log_that_was_never_read(self) -> None:
        with pytest.raises(Corrupt, match="the relay lacks log that was never read: it begins at 20, the lake is at 15"):
            take_over([segment(3)], intent_upto=15)
        assert take_over([segment(3)], intent_upto=20).floor == 20

    @pytest.mark.parametrize("chain", [[], [segment(1)]])
    def test_a_chain_that_ends_before_the_newest_intent_is_not_taken_over(self, chain: list[SegmentRecord]) -> None:
        with pytest.raises(Corrupt, match="the relay ends before what was already read"):
            take_over(chain, intent_upto=11)

    def test_the_record_that_the_intent_names_is_needed_only_where_it_holds_what_is_not_read(self) -> None:
        """If it is not needed it may be gone, or have been put again by a capture that does not know that it is over."""
        assert needs_before([], 10)
        assert needs_before([segment(3)], 15)
        assert not needs_before([segment(3)], 20)
