"""The life of tables and chunks beside a model that keeps it as plain sets and lists, and under every fact that can be thought of."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import Phase as HypothesisPhase
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.summary import Summary, restore, summarise
from snowmelt.errors import InvariantBroken
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import span_of, unread
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
from snowmelt.planning.ordinals import Bounds, RangeSet
from snowmelt.planning.tables import CHUNK_LIFE, TABLE_LIFE, ChunkState, ChunkTrigger, TablePhase, Tables, TableTrigger
from snowmelt.store.codec import decode, encode

EXTENT = KeyEnds(b"\x01", b"\xff")
NAMES = [TableId("shop", "orders"), TableId("shop", "items")]

names = st.sampled_from([NAMES[0], *NAMES])
late = st.sampled_from([0, 0, 0, 0, -1, 1])
"""How far a number in a fact or request is from the current one: mostly right, now and then older or newer."""


class TestOrdinals:
    @given(st.lists(st.integers(0, 25), max_size=60))
    def test_it_is_a_set_in_as_few_ranges_as_it_has_gaps(self, added: list[int]) -> None:
        ordinals, model = RangeSet(), set[int]()
        for ordinal in added:
            ordinals.add(ordinal)
            model.add(ordinal)
            assert {n for first, last in ordinals for n in range(first, last + 1)} == model
            assert len(list(ordinals)) == sum(1 for n in model if n - 1 not in model)
        for n in range(27):
            assert (n in ordinals) == (n in model)
            assert ordinals.first_missing(n) == next(m for m in range(n, 60) if m not in model)

    @given(st.sets(st.integers(0, 15)), st.randoms(use_true_random=False))
    def test_the_order_of_adding_leaves_no_trace_and_adding_again_changes_nothing(self, members: set[int], random: Any) -> None:
        forwards, shuffled = RangeSet(), RangeSet()
        for n in sorted(members):
            forwards.add(n)
        anyhow = sorted(members)
        random.shuffle(anyhow)
        for n in [*anyhow, *anyhow]:
            shuffled.add(n)
        assert forwards == shuffled


class TestBounds:
    @given(st.lists(st.one_of(st.lists(st.binary(max_size=3), max_size=4), st.integers(0, 20)), max_size=20))
    def test_it_is_a_list_that_forgets_its_beginning(self, acts: list[list[bytes] | int]) -> None:
        bounds, model = Bounds(), [b""]
        for act in acts:
            if isinstance(act, list):
                bounds.extend(tuple(act))
                model.extend(act)
            else:
                first, held = bounds.first, len(bounds.ends)
                bounds.forget(act)
                assert first <= bounds.first <= max(first, act), "no more is forgotten than what was allowed"
                assert len(bounds.ends) == held or len(bounds.ends) <= held / 2, "what is forgotten is worth a copy"
                if act >= len(model):
                    assert not bounds.data, "all was allowed to go"
            assert bounds.last == len(model) - 1
            assert [bounds.upper(n) for n in range(bounds.first, bounds.last + 1)] == model[bounds.first :]
            assert len(bounds.data) == sum(map(len, model[bounds.first :])), "nothing is kept of what was forgotten"
            for beyond in (bounds.first - 1, bounds.last + 1):
                try:
                    bounds.upper(beyond)
                except InvariantBroken:
                    continue
                raise AssertionError("a bound that is not held was answered")


@dataclass
class Model:
    """A table as one would write it down on paper."""

    number: int
    keyed: bool
    schema: int
    phase: TablePhase = TablePhase.DISCOVERED
    copying: bool = True
    replaces: bool = False
    uppers: list[bytes] = field(default_factory=list)
    complete: bool = False
    adopted: set[int] = field(default_factory=set)
    adopted_in: int = 0
    high: int = 0
    since: int = 0
    failures: int = 0
    running: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Chunks under way: their job, and whether it reported."""

    def chunk(self, ordinal: int) -> ChunkState | None:
        if not self.copying or not 0 <= ordinal <= len(self.uppers):
            return None
        if ordinal in self.running:
            return ChunkState.READ if self.running[ordinal][1] else ChunkState.RUNNING
        return ChunkState.ADOPTED if ordinal in self.adopted else ChunkState.PLANNED

    def may(self, turn: TableTrigger) -> bool:
        return (self.phase, turn) in TABLE_LIFE

    def copy_anew(self, replaces: bool) -> None:
        self.phase, self.copying, self.replaces = TablePhase.DISCOVERED, True, replaces
        self.uppers, self.complete, self.adopted, self.adopted_in, self.high = [], False, set(), 0, 0

    def finish(self) -> None:
        if self.complete and self.adopted == set(range(len(self.uppers) + 1)):
            self.phase = TablePhase.CATCHING_UP


class TablesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables()
        self.models: dict[TableId, Model] = {}
        self.facts: list[tuple[Fact, int]] = []
        self.resumed = Tables()
        """Folds only what is durable, and goes through a summary now and then."""
        self.epoch = 1
        self.jobs = 0
        self.log = 10

    # ---- what is done with every fact

    def put(self, fact: Fact, allowed: bool) -> bool:
        before = copy.deepcopy(vars(self.tables))
        try:
            self.tables.apply(fact, self.epoch)
        except InvariantBroken:
            assert not allowed, f"refused: {fact}"
            assert vars(self.tables) == before, f"refused, and yet something changed: {fact}"
            return False
        assert allowed, f"not refused: {fact}"
        self.facts.append((fact, self.epoch))
        if not isinstance(fact, Launched | Reported | GivenBack):
            self.resumed.apply(fact, self.epoch)
        return True

    def incarnation(self, name: TableId, off: int = 0) -> Incarnation:
        model = self.models.get(name)
        return Incarnation(name, (model.number if model else 1) + off)

    def here(self, name: TableId, off: int) -> Model | None:
        """The model that a fact is about, if its incarnation is the current one."""
        return self.models.get(name) if off == 0 else None

    # ---- durable facts

    @rule(name=names, keyed=st.sampled_from([True, True, False]))
    def find(self, name: TableId, keyed: bool) -> None:
        if self.put(Found(Incarnation(name, self.epoch), "ods.t", keyed, 1), name not in self.models):
            self.models[name] = Model(self.epoch, keyed, 1)

    @rule(name=names, off=late, schema=st.integers(1, 3))
    def is_reborn(self, name: TableId, off: int, schema: int) -> None:
        self.log += 1
        model = self.models.get(name) if off >= 0 else None
        if self.put(Reborn(self.incarnation(name, off + 1), self.log, schema), model is not None):
            assert model is not None
            model.copy_anew(replaces=False)
            model.number, model.schema, model.since, model.running = model.number + off + 1, schema, self.log, {}
            model.failures = 0

    @rule(name=names, off=late)
    def is_dropped(self, name: TableId, off: int) -> None:
        model = self.here(name, off)
        if self.put(Gone(self.incarnation(name, off), self.log), model is not None and model.may(TableTrigger.DROPPED)):
            assert model is not None
            model.phase, model.copying, model.running, model.failures = TablePhase.GONE, False, {}, 0

    @rule(name=names, off=late)
    def is_set_aside(self, name: TableId, off: int) -> None:
        model = self.here(name, off)
        aside = SetAside(self.incarnation(name, off), self.log, self.log, "it can't go on")
        if self.put(aside, model is not None and model.may(TableTrigger.SET_ASIDE)):
            assert model is not None
            model.phase, model.copying, model.running, model.failures = TablePhase.SET_ASIDE, False, {}, 0

    @rule(name=names, off=late)
    def is_truncated(self, name: TableId, off: int) -> None:
        model = self.here(name, off)
        self.put(Truncated(self.incarnation(name, off), self.log), model is not None and model.may(TableTrigger.TRUNCATED))

    @rule(name=names, off=late, schema=st.integers(1, 3))
    def is_reshaped(self, name: TableId, off: int, schema: int) -> None:
        model = self.here(name, off)
        if self.put(Reshaped(self.incarnation(name, off), self.log, schema), model is not None):
            assert model is not None
            model.schema = schema

    @rule(name=names, off=late)
    def is_read_again(self, name: TableId, off: int) -> None:
        model = self.here(name, off)
        if self.put(
            Recopied(self.incarnation(name, off), self.log), model is not None and model.keyed and model.may(TableTrigger.RECOPIED)
        ):
            assert model is not None
            model.copy_anew(replaces=True)
            model.since = self.log

    @rule(name=names, off=late, gap=late, count=st.integers(0, 4), complete=st.booleans(), reaches=st.booleans())
    def is_split(self, name: TableId, off: int, gap: int, count: int, complete: bool, reaches: bool) -> None:
        """To the greatest key, or, wrongly, not so far and yet complete."""
        model = self.here(name, off)
        known = len(self.models[name].uppers) if name in self.models else 0
        uppers = tuple(bytes([known + n + 2]) for n in range(count))
        if complete and uppers and reaches:
            uppers = (*uppers[:-1], EXTENT.greatest)
        last = uppers[-1] if uppers else self.models[name].uppers[-1] if known else None
        allowed = model is not None and model.phase is TablePhase.SPLITTING and gap == 0 and last is not None
        allowed = allowed and (not complete or last == EXTENT.greatest)
        if self.put(Split(self.incarnation(name, off), known + 1 + gap, uppers, complete), allowed):
            assert model is not None
            model.uppers.extend(uppers)
            if complete:
                model.complete, model.phase = True, TablePhase.SNAPSHOTTING
                model.finish()

    def adopt(self, name: TableId, off: int, ordinal: int, high: int, extent: KeyEnds | None) -> None:
        model = self.here(name, off)
        state = model.chunk(ordinal) if model else None
        fact = Adopted(incarnation=self.incarnation(name, off), ordinal=ordinal, nonce="n", visible=high - 1, high=high, extent=extent)
        if self.put(fact, state is not None and (state, ChunkTrigger.ADOPTED) in CHUNK_LIFE):
            assert model is not None
            model.running.pop(ordinal, None)
            model.failures = 0
            model.adopted.add(ordinal)
            model.adopted_in, model.high = self.epoch, max(model.high, high)
            if ordinal == OUTSIDE:
                model.phase = TablePhase.SPLITTING
                if extent is None:
                    model.complete, model.phase = True, TablePhase.SNAPSHOTTING
            if model.phase is TablePhase.SNAPSHOTTING:
                model.finish()

    @rule(name=names, off=late, ordinal=st.integers(0, 9), ahead=st.integers(-3, 3), empty=st.sampled_from([False, False, True]))
    def is_adopted(self, name: TableId, off: int, ordinal: int, ahead: int, empty: bool) -> None:
        self.adopt(name, off, ordinal, self.log + ahead, None if empty or ordinal else EXTENT)

    @rule(name=names, data=st.data(), count=st.integers(3, 20))
    def lives_on(self, name: TableId, data: st.DataObject, count: int) -> None:
        """An undisturbed life, so that its end is seen as well, with some reads on the way."""
        for _ in range(count):
            model = self.models.get(name)
            planned = [n for n in range(len(model.uppers) + 1) if model.chunk(n) is ChunkState.PLANNED] if model else []
            running = list(model.running) if model else []
            what = data.draw(st.sampled_from(["step", "launch", "end"]))
            if what == "launch" and planned:
                self.is_launched(name, 0, data.draw(st.sampled_from(planned)))
            elif what == "end" and running:
                ordinal, older = data.draw(st.sampled_from(running)), data.draw(late)
                if data.draw(st.booleans()):
                    self.reports(name, 0, ordinal, older)
                else:
                    self.gives_back(name, 0, ordinal, older)
            else:
                self.goes_on(name, data)

    def goes_on(self, name: TableId, data: st.DataObject) -> None:
        model = self.models.get(name)
        if model is None:
            return self.find(name, True)
        match model.phase:
            case TablePhase.DISCOVERED:
                return self.adopt(name, 0, OUTSIDE, self.log, EXTENT)
            case TablePhase.SPLITTING:
                return self.is_split(name, 0, 0, data.draw(st.integers(1, 6)), data.draw(st.booleans()), True)
            case TablePhase.SNAPSHOTTING:
                missing = sorted(set(range(len(model.uppers) + 1)) - model.adopted)
                return self.adopt(name, 0, data.draw(st.sampled_from(missing)), self.log, None)
            case TablePhase.CATCHING_UP:
                return self.is_covered(data.draw(st.sampled_from([0, 0, 3])), data.draw(st.sampled_from([5, 5, -9])))
            case TablePhase.STREAMING:
                return self.is_let_go_of(name, 0)
            case TablePhase.RELEASED:
                return self.is_read_again(name, 0)
            case TablePhase.GONE:
                return self.is_let_go_of(name, 0)

    # ---- what a driver does

    @rule(name=names, off=late, ordinal=st.integers(0, 9))
    def is_launched(self, name: TableId, off: int, ordinal: int) -> None:
        self.jobs += 1
        model = self.here(name, off)
        allowed = model is not None and model.chunk(ordinal) is ChunkState.PLANNED
        if self.put(Launched(self.incarnation(name, off), ordinal, self.jobs, self.log, 0), allowed):
            assert model is not None
            model.running[ordinal] = (self.jobs, False)

    @rule(name=names, off=late, ordinal=st.integers(0, 9), older=late)
    def reports(self, name: TableId, off: int, ordinal: int, older: int) -> None:
        model = self.here(name, off)
        job, reported = (model.running.get(ordinal) if model else None) or (self.jobs, True)
        report = Reported(
            incarnation=self.incarnation(name, off),
            ordinal=ordinal,
            job=job + older,
            nonce="n",
            high=self.log,
            exact=True,
            schema=1,
            files=(),
        )
        decided = self.tables.decide_report(report)
        assert decided == ([report] if not reported and older == 0 else [])
        for fact in decided:
            assert self.put(fact, True)
            assert model is not None
            model.running[ordinal] = (job, True)
            assert self.tables.decide_report(report) == [], "the same report counted twice"

    @rule(name=names, off=late, ordinal=st.integers(0, 9), older=late)
    def gives_back(self, name: TableId, off: int, ordinal: int, older: int) -> None:
        model = self.here(name, off)
        running = model.running.get(ordinal) if model else None
        incarnation, job = self.incarnation(name, off), (running[0] if running else self.jobs) + older
        decided = self.tables.decide_give_back(incarnation, ordinal, job, "slow")
        assert decided == ([GivenBack(incarnation, ordinal, job, "slow")] if running and older == 0 else [])
        for fact in decided:
            assert self.put(fact, True)
            assert model is not None
            del model.running[ordinal]
            model.failures += 1
            assert self.tables.decide_give_back(incarnation, ordinal, job, "slow") == [], "the same read was given back twice"

    @precondition(lambda self: any(model.running for model in self.models.values()))
    @rule(name=names, turn=st.sampled_from(["report", "give back"]))
    def a_read_ends(self, name: TableId, turn: str) -> None:
        model = self.models.get(name)
        for ordinal in list(model.running)[:1] if model else ():
            if turn == "report":
                self.reports(name, 0, ordinal, 0)
            else:
                self.gives_back(name, 0, ordinal, 0)

    # ---- epochs

    @rule(ago=st.integers(0, 3), ahead=st.integers(-3, 5))
    def is_covered(self, ago: int, ahead: int) -> None:
        done, upto = self.epoch - ago, self.log + ahead
        self.put(Covered(done, upto), True)
        for model in self.models.values():
            if model.phase is TablePhase.CATCHING_UP and done >= model.adopted_in and upto >= model.high:
                model.phase = TablePhase.STREAMING
        self.epoch += 1

    @rule(name=names, off=late)
    def is_let_go_of(self, name: TableId, off: int) -> None:
        self.put(Released(self.incarnation(name, off)), True)
        model = self.here(name, off)
        if model is not None and model.phase is TablePhase.STREAMING:
            model.phase, model.copying = TablePhase.RELEASED, False
        elif model is not None and model.phase is TablePhase.GONE:
            del self.models[name]

    @rule()
    def the_log_grows(self) -> None:
        self.log += 7

    # ---- restarts

    @rule()
    def starts_from_a_summary(self) -> None:
        ledger = Ledger()
        ledger.tables = self.resumed
        self.resumed = restore(decode(Summary, encode(summarise(ledger)))).tables

    @rule()
    def is_restarted(self) -> None:
        """The driver is gone, with the reads that it had under way."""
        self.facts = [(fact, epoch) for fact, epoch in self.facts if not isinstance(fact, Launched | Reported | GivenBack)]
        self.tables = copy.deepcopy(self.resumed)
        for model in self.models.values():
            model.running, model.failures = {}, 0

    # ---- what always holds

    @invariant()
    def it_is_what_the_model_is(self) -> None:
        assert [table.incarnation.table for table in self.tables] == list(self.models)
        assert len(self.tables) == len(self.models)
        for name, model in self.models.items():
            table = self.tables.get(name)
            assert table is not None
            assert (table.incarnation.number, table.keyed, table.schema) == (model.number, model.keyed, model.schema)
            assert (table.phase, table.since) == (model.phase, model.since)
            for ordinal in range(12):
                assert self.tables.chunk_state(table.incarnation, ordinal) is model.chunk(ordinal)
            if model.phase is not TablePhase.CATCHING_UP:
                live = model.phase in (TablePhase.STREAMING, TablePhase.RELEASED) or (model.copying and model.replaces)
                assert table.live is live
            if table.copy is None:
                assert not model.copying
                try:
                    self.tables.copy_of(table.incarnation)
                except InvariantBroken:
                    continue
                raise AssertionError("metadata that was let go of was answered")
            assert table.copy == self.tables.copy_of(table.incarnation)
            assert (table.copy.complete, table.copy.high, table.copy.adopted_in) == (model.complete, model.high, model.adopted_in)
            unfinished = [n for n in range(len(model.uppers) + 1) if n not in model.adopted]
            assert unread(self.tables, table, table.copy, 99) == [n for n in unfinished if n not in model.running]
            for ordinal in unfinished:
                span = span_of(table.copy, ordinal)
                assert (span is None) == (ordinal == OUTSIDE)
                if span is not None:
                    assert span.upto == model.uppers[ordinal - 1]
                    assert span.above == (model.uppers[ordinal - 2] if ordinal > 1 else None)

    @invariant()
    def reads_under_way_are_the_models(self) -> None:
        found = {(r.launch.incarnation.table, r.launch.ordinal): (r.launch.job, r.report is not None) for r in self.tables.readings()}
        assert found == {(name, ordinal): run for name, model in self.models.items() for ordinal, run in model.running.items()}
        for reading in self.tables.readings():
            assert self.tables.current(reading.launch.incarnation) is not None, "a read outlived its incarnation"
        visible = [reading.launch.visible for reading in self.tables.readings()]
        assert self.tables.lowest_visible() == min(visible, default=None)

    @invariant()
    def the_fold_of_its_facts_is_the_state(self) -> None:
        again = Tables()
        for fact, epoch in self.facts:
            again.apply(fact, epoch)
        assert vars(again) == vars(self.tables)
        assert [table.incarnation for table in again] == [table.incarnation for table in self.tables]

    @invariant()
    def the_fold_of_durable_facts_is_the_state_without_reads(self) -> None:
        assert vars(self.resumed) == {**vars(self.tables), "_readings": {}, "_failures": {}}

    @invariant()
    def only_what_streams_or_is_gone_is_let_go_of(self) -> None:
        over = (TablePhase.STREAMING, TablePhase.GONE)
        assert self.tables.releasable() == [Released(self.incarnation(name)) for name, model in self.models.items() if model.phase in over]

    @invariant()
    def reads_that_failed_are_counted_until_one_is_adopted(self) -> None:
        assert {name: self.tables.failures(name) for name in self.models} == {name: model.failures for name, model in self.models.items()}


def test_tables_and_chunks_live_as_the_model_does() -> None:
    # To shrink what fails may take longer than a test may; add its phase and a longer timeout for it.
    phases = (HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate)
    run_state_machine_as_test(TablesMachine, settings=settings(max_examples=150, stateful_step_count=30, deadline=None, phases=phases))
