"""The relay beside a list of segments and a floor, with every answer looked up the slow way."""

from __future__ import annotations

import copy
from dataclasses import replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from snowmelt.errors import Corrupt, InvariantBroken, SnowmeltError, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import choose_end, visible_cut
from snowmelt.planning.tables import Tables
from snowmelt.relay.restored import needs_before, take_over
from snowmelt.relay.retention import Cut, Decided, Effect, Ending, Prepared, Relay, SegmentRecord, TableStatement
from snowmelt.store.codec import decode, encode

XIDS = ["a", "b", "c"]
TABLES = [TableId("shop", "orders"), TableId("shop", "items")]
PHASES = st.lists(st.tuples(st.sampled_from(XIDS), st.sampled_from([None, None, True, False])), max_size=4)
HEAD = 4
"""Where the first event of a log file begins."""


def refuses(relay: Relay, act: object, kind: type[SnowmeltError] = InvariantBroken) -> None:
    before = copy.deepcopy(vars(relay))
    try:
        act()  # type: ignore[operator]
    except kind:
        assert vars(relay) == before, "refused, and yet something changed"
        return
    raise AssertionError("not refused")


class RelayMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.relay = Relay()
        self.chain: list[SegmentRecord] = []
        """Every record that was ever put."""
        self.gone: set[int] = set()
        """Numbers of those that were deleted from the store."""
        self.floor = 0
        self.done = 0
        self.intent = 0
        """Where the newest intent ends, and so what a take-over may ask for."""
        self.readings: list[int] = []
        """The `V` of chunks under way."""
        self.at = Position(1, HEAD)
        self.generation = 1
        self.time_ms = 0
        self.prepared: dict[str, Prepared] = {}
        """What waits for its second phase."""
        self.second: list[tuple[int, Prepared, bool]] = []
        """Every second phase: where, of what, and whether it was a COMMIT."""
        self.aside: set[int] = set()
        """What lies aside in the store."""

    # ---- capturing

    @property
    def end(self) -> int:
        return self.chain[-1].last if self.chain else 0

    @rule(
        sizes=st.lists(st.integers(1, 4), max_size=4),
        tail=st.sampled_from([0, 0, 2]),
        statements=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(TABLES), st.sampled_from(Effect)), max_size=2),
        phases=PHASES,
    )
    def seals(
        self, sizes: list[int], tail: int, statements: list[tuple[int, TableId, Effect]], phases: list[tuple[str, bool | None]] = ()
    ) -> None:
        """Some transactions, perhaps none; perhaps the beginning of one that has no end yet."""
        begins, offset, cuts = self.at, self.end, []
        for size in sizes:
            offset += size
            self.time_ms += size
            cuts.append(Cut(offset, self.time_ms))
        if not sizes and not tail:
            cuts.append(Cut(offset, self.time_ms))
        ends = replace(begins, offset=begins.offset + sum(sizes) + tail)
        of = {cuts[index].offset: (table, effect) for index, table, effect in statements if index < len(sizes)}
        told = tuple(TableStatement(offset, table, effect, 7) for offset, (table, effect) in sorted(of.items()))
        acts = self.act([cut.offset for cut in cuts[: len(sizes)]], phases)
        sealed = self.relay.decide_record(self.generation, f"s{len(self.chain)}", begins, ends, tuple(cuts), told, acts)
        assert {group.xid: group for group in sealed.prepared} == self.prepared
        assert {group for group in self.prepared.values() if group.offset > sealed.first} == set(sealed.put_aside)
        self.aside |= {group.number for group in sealed.put_aside}
        assert (sealed.number, sealed.first, sealed.last) == (len(self.chain) + 1, self.end, offset + tail)
        assert decode(SegmentRecord, encode(sealed)) == sealed
        self.relay.apply(sealed)
        self.chain.append(sealed)
        self.at = ends

    def act(self, offsets: list[int], phases: list[tuple[str, bool | None]]) -> list[Prepared | Ending]:
        """Transactions of a segment that are of two phases: some of those that end at these places."""
        acts: list[Prepared | Ending] = []
        for offset, (xid, committed) in zip(offsets, phases, strict=False):
            if committed is None:
                if (lost := self.prepared.pop(xid, None)) is not None:
                    self.second.append((offset, lost, False))
                acts.append(Prepared(xid=xid, era=self.at.era, begins=offset - 1, offset=offset, at=offset - self.end - 1, bytes=1))
                self.prepared[xid] = acts[-1]
            elif not committed or xid in self.prepared:
                acts.append(Ending(xid, offset, committed))
                if (group := self.prepared.pop(xid, None)) is not None:
                    self.second.append((offset, group, committed))
        return acts

    @precondition(lambda self: len(self.prepared) < len(XIDS))
    @rule()
    def a_commit_of_what_was_never_prepared_is_refused(self) -> None:
        xid = next(xid for xid in XIDS if xid not in self.prepared)
        ends = replace(self.at, offset=self.at.offset + 1)
        ending = Ending(xid, self.end + 1, True)
        refuses(self.relay, lambda: self.relay.decide_record(1, "x", self.at, ends, (), (), [ending]), SourceDrift)

    @precondition(lambda self: self.prepared)
    @rule(data=st.data())
    def a_record_that_forgets_what_is_prepared_is_refused(self, data: st.DataObject) -> None:
        ends = replace(self.at, offset=self.at.offset + 1)
        right = self.relay.decide_record(1, "x", self.at, ends, (Cut(self.end + 1, 1),))
        group = data.draw(st.sampled_from(right.prepared))
        less = tuple(one for one in right.prepared if one != group)
        strange = replace(group, xid="from nowhere")
        for wrong in (
            replace(right, prepared=less),
            replace(right, prepared=(*right.prepared, strange)),
            replace(right, decided=(Decided(strange, self.end + 1, True, True),)),
        ):
            refuses(self.relay, lambda wrong=wrong: self.relay.apply(wrong), Corrupt)

    @rule(data=st.data(), count=st.integers(1, 4))
    def goes_on(self, data: st.DataObject, count: int) -> None:
        """What a relay sees when nothing disturbs it: transactions, epochs that are done, and a chunk now and then."""
        for _ in range(count):
            self.seals(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), 0, [], data.draw(PHASES))
            if data.draw(st.booleans()):
                self.a_chunk_is_launched(data)
            self.an_epoch_has_its_intent(data.draw(st.integers(0, 20)), True)
            self.the_floor_rises()
            self.what_nobody_can_ask_for_is_deleted()

    @rule(era=st.sampled_from([False, False, True]), skipped=st.integers(0, 3))
    def the_log_goes_on_in_another_file(self, era: bool, skipped: int) -> None:
        """Also on another server, whose files are numbered anew. Bytes of the old file that carry no event are never captured."""
        self.at = Position(1, HEAD, self.at.era + 1) if era else Position(self.at.file + 1 + skipped, HEAD, self.at.era)

    @precondition(lambda self: self.chain)
    @rule(off=st.sampled_from([(-1, 0), (0, 0), (2, 0), (1, -1), (1, 1)]))
    def a_record_that_does_not_follow_is_refused(self, off: tuple[int, int]) -> None:
        """The same record again, an older one, one that leaves a gap."""
        newest = self.chain[-1]
        moved = newest.last + off[1] - newest.first
        cuts = tuple(replace(cut, offset=cut.offset + moved) for cut in newest.cuts)
        wrong = replace(newest, number=newest.number + off[0], first=newest.first + moved, cuts=cuts, statements=(), decided=())
        refuses(self.relay, lambda: self.relay.apply(wrong), Corrupt)

    # ---- letting go

    @precondition(lambda self: self.relay.next_cut(self.intent) is not None)
    @rule(limit=st.integers(0, 20), done=st.booleans())
    def an_epoch_has_its_intent(self, limit: int, done: bool) -> None:
        self.done = self.intent
        self.intent = choose_end(Tables(), self.relay, self.intent, limit)
        if done:
            self.done = self.intent

    @precondition(lambda self: self.relay.cut_at_or_below(self.end) is not None)
    @rule(data=st.data())
    def a_chunk_is_launched(self, data: st.DataObject) -> None:
        cuts = [offset for offset in self.relay.cuts_between(-1, self.end) if offset >= self.floor]
        if cuts:
            # Often the oldest: it is the one that holds the floor down.
            self.readings.append(data.draw(st.one_of(st.just(cuts[0]), st.sampled_from(cuts))))

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def a_chunk_is_over(self, data: st.DataObject) -> None:
        self.readings.remove(data.draw(st.sampled_from(self.readings)))

    @rule()
    def the_floor_rises(self) -> None:
        lowest = min(self.readings, default=None)
        floor = self.relay.decide_floor(self.done, lowest)
        assert floor == max(self.floor, min([self.done, *self.readings]))
        self.relay.raise_floor(floor)
        once = copy.deepcopy(vars(self.relay))
        self.relay.raise_floor(floor)
        self.relay.raise_floor(0)
        assert vars(self.relay) == once, "the same floor again, or a lower one, changed something"
        self.floor = floor

    @rule()
    def what_nobody_can_ask_for_is_deleted(self) -> None:
        named = self.relay.number_at(self.intent)
        deletable = self.relay.deletable(named)
        for sealed in deletable:
            assert sealed.last <= min([self.done, *self.readings]), "something needs it"
            assert sealed.number <= named, "a take-over would begin behind it"
            assert sealed is not self.chain[-1], "nobody would know where capture goes on"
            assert sealed.number < max((one.number for one in self.chain if one.first < one.last), default=0), "nor who was captured"
        for group in self.relay.over:
            assert any(one == group and offset <= min([self.done, *self.readings]) for offset, one, _ in self.second), "something needs it"
            self.aside.discard(group.number)
        self.relay.forget(deletable)
        assert self.relay.over == []
        self.gone |= {sealed.number for sealed in deletable}
        assert self.relay.deletable(named) == []

    # ---- another driver

    @rule()
    def is_taken_over(self) -> None:
        """As a driver finds it: from the record behind the one that the newest intent names, number by number."""
        named = next((sealed.number for sealed in self.chain if sealed.first < self.intent <= sealed.last), 0)
        kept = {sealed.number: sealed for sealed in self.chain if sealed.number not in self.gone}
        found, number = [], named
        while (sealed := kept.get(number + 1)) is not None:
            found.append(sealed)
            number += 1
        if needs_before(found, self.intent) and named:
            found.insert(0, kept[named])
        before = self.relay
        self.relay = take_over(found, intent_upto=self.intent)
        self.aside -= set(self.relay.needless(sorted(self.aside)))
        assert (self.relay.end, self.relay.era, self.relay.newest) == (before.end, before.era, before.newest)
        for offset in range(self.intent, self.end + 2):
            assert self.relay.next_cut(offset) == before.next_cut(offset)
            assert self.relay.statements(self.intent, offset) == before.statements(self.intent, offset)
        # What the dead driver was reading is over, and what it deletes late can't be asked for.
        self.readings = []
        # An epoch whose intent is won needs its log no more, done or not.
        self.floor = self.done = self.intent
        self.gone |= {sealed.number for sealed in self.chain if not found or sealed.number < found[0].number}
        self.generation += 1

    @precondition(lambda self: len(self.chain) - len(self.gone) > 2)
    @rule(data=st.data())
    def a_chain_with_a_hole_is_not_taken_over(self, data: st.DataObject) -> None:
        kept = [sealed for sealed in self.chain if sealed.number not in self.gone]
        hole = data.draw(st.integers(1, len(kept) - 2))
        del kept[hole]
        try:
            take_over(kept, intent_upto=kept[0].first)
        except Corrupt:
            return
        raise AssertionError("a hole was not seen")

    @rule(beyond=st.integers(1, 3))
    def less_than_what_was_read_is_not_taken_over(self, beyond: int) -> None:
        kept = [sealed for sealed in self.chain if sealed.number not in self.gone]
        try:
            take_over(kept, intent_upto=self.end + beyond)
        except Corrupt:
            return
        raise AssertionError("the relay lacks log, and nobody said so")

    # ---- what always holds

    @property
    def held(self) -> list[SegmentRecord]:
        return [sealed for sealed in self.chain if sealed.number not in self.gone]

    @invariant()
    def every_answer_is_the_slow_one(self) -> None:
        relay, held = self.relay, self.held
        assert relay.segments == held
        assert (relay.end, relay.floor) == (self.end, self.floor)
        assert relay.newest == (self.chain[-1] if self.chain else None)
        assert relay.era == (self.chain[-1].ends.era if self.chain else 0)
        cuts = [cut for sealed in self.chain for cut in sealed.cuts if cut.offset > self.floor]
        told = [statement for sealed in self.chain for statement in sealed.statements if statement.offset > self.floor]
        for low in range(self.floor, self.end + 2):
            assert relay.next_cut(low) == next((cut.offset for cut in cuts if cut.offset > low), None)
            below = [cut for cut in cuts if cut.offset <= low]
            if below:
                assert relay.cut_at_or_below(low) == below[-1].offset
                assert relay.time_at(low) == below[-1].time_ms
            number = next((sealed.number for sealed in self.chain if sealed.first < low <= sealed.last), None)
            if number is not None and number not in self.gone:
                assert relay.number_at(low) == number
            for high in (low, low + 3, self.end):
                assert relay.cuts_between(low, high) == [cut.offset for cut in cuts if low < cut.offset <= high]
                for table in (None, *TABLES):
                    expected = [one for one in told if low < one.offset <= high and table in (None, one.table)]
                    assert relay.statements(low, high, table) == expected
                if low <= high <= self.end:
                    wanted = [one for one in held if one.last > low and one.first < high and one.first < one.last]
                    assert relay.covering(low, high) == wanted
                    bytes_held = sum(min(high, sealed.last) - max(low, sealed.first) for sealed in wanted)
                    assert bytes_held == high - low, "log is missing that may be asked for"

    @invariant()
    def what_is_prepared_is_there_until_a_done_epoch_has_its_commit(self) -> None:
        assert {group.xid: group for group in self.relay.prepared} == self.prepared
        committed = [(offset, group) for offset, group, committed in self.second if committed and offset > self.floor]
        for low in range(self.floor, self.end + 1):
            for high in (low + 2, self.end):
                wanted = [(offset, group) for offset, group in committed if low < offset <= high]
                assert [(one.offset, one.group) for one in self.relay.committed(low, high)] == wanted
        for one in self.relay.committed(self.floor, self.end):
            segment = next(sealed for sealed in self.held if sealed.first < one.offset <= sealed.last)
            if one.aside:
                assert one.group.number in self.aside, "its events are gone"
            else:
                assert segment.first < one.group.offset, "its events are in another segment"
        for group in self.prepared.values():
            assert group.number in self.aside, "it is forgotten with its segment"
        assert set(self.relay.needless(self.aside)) <= {group.number for _, group, _ in self.second}

    @invariant()
    def what_is_not_there_is_an_error(self) -> None:
        refuses(self.relay, lambda: self.relay.covering(self.floor - 1, self.end))
        refuses(self.relay, lambda: self.relay.committed(self.floor - 1, self.end))
        refuses(self.relay, lambda: self.relay.covering(self.floor, self.end + 1))

    @invariant()
    def a_chunk_under_way_finds_all_that_it_needs(self) -> None:
        for visible in self.readings:
            assert visible >= self.relay.floor
            self.relay.covering(visible, self.end)

    @invariant()
    def every_place_of_a_held_segment_is_found(self) -> None:
        era = self.relay.era
        for sealed in self.held:
            for more in range(sealed.last - sealed.first + 1):
                place = replace(sealed.begins, offset=sealed.begins.offset + more)
                if sealed.begins.era != era:
                    refuses(self.relay, lambda place=place: self.relay.offset_of(place), SourceDrift)
                    continue
                assert self.relay.offset_of(place) == sealed.first + more
                cut = visible_cut(self.relay, place)
                assert cut is None or cut <= sealed.first + more, "a cut is called visible that nobody has proven so"

    @invariant()
    def data_of_a_record_is_never_a_leftover(self) -> None:
        done = next((sealed.number for sealed in self.chain if sealed.first < self.done <= sealed.last), 0)
        for sealed in self.held:
            assert not self.relay.leftover(sealed.number, sealed.name, done)
            assert self.relay.leftover(sealed.number, "of another driver", done)
        assert not self.relay.leftover(len(self.chain) + 1, "not sealed yet", done)

    @invariant()
    def the_fold_of_its_records_is_the_state(self) -> None:
        again = Relay()
        for sealed in self.chain:
            again.apply(sealed)
        again.raise_floor(self.floor)
        again.forget([sealed for sealed in self.chain if sealed.number in self.gone])
        mine, folded = vars(self.relay), vars(again)
        # The one cut at or below the floor is kept from whatever was known then.
        # What is over is told until it was deleted.
        # A driver does not know what those before it saw committed and have let go of.
        apart = ("_offsets", "_times", "_over", "_committed")
        assert self.relay._committed.items() <= again._committed.items()
        assert {name: value for name, value in mine.items() if name not in apart} == {
            name: value for name, value in folded.items() if name not in apart
        }
        assert again.cuts_between(self.floor, self.end) == self.relay.cuts_between(self.floor, self.end)


def test_the_relay_is_a_list_of_segments_and_a_floor() -> None:
    # To shrink what fails may take longer than a test may; add its phase and a longer timeout for it.
    phases = (Phase.explicit, Phase.reuse, Phase.generate)
    run_state_machine_as_test(RelayMachine, settings=settings(max_examples=80, stateful_step_count=30, deadline=None, phases=phases))
