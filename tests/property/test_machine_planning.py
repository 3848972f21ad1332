"""Planning over tables and relay, beside a database of a few keys and a lake of a few rows.

After every epoch a range of keys is absent from the lake or exactly what the source had at its end, and an append-only table has no
change twice: whatever was logged, shown, read, given back, forgotten by a restart or changed by a statement in between.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import Phase as HypothesisPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from snowmelt.commit.checks import Message, refusal
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Adopting, EpochPlan, Rule, Span, choose_end, decide_launches, plan_epoch, span_of, visible_cut
from snowmelt.planning.facts import (
    OUTSIDE,
    Covered,
    Durable,
    Found,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Reported,
    Split,
    Truncated,
)
from snowmelt.planning.tables import Table, TablePhase, Tables
from snowmelt.relay.restored import take_over
from snowmelt.relay.retention import Cut, Effect, Relay, SegmentRecord, TableStatement
from tests.kit.emitting import emits

KEYED = TableId("shop", "orders")
APPENDED = TableId("shop", "events")
KEYS = range(8)
RUNNING_MAX = 3
LOGGED = [Effect.EMPTIES, Effect.DROPS, Effect.MAKES, Effect.RESHAPES, Effect.REWRITES]
"""Statements behind which the log still tells everything. One that rewrites leaves these rows as they are, and has them read again."""

tables_of_the_source = st.sampled_from([KEYED, KEYED, APPENDED])


def packed(key: int) -> bytes:
    return bytes([key])


def within(key: int, span: Span | None, extent: KeyEnds | None) -> bool:
    """Whether a key lies in a chunk; a chunk without a span is all that lies outside of the extent."""
    outside = extent is None or not extent.least <= packed(key) <= extent.greatest
    if span is None or outside:
        return outside and span is None
    return (span.above is None or packed(key) > span.above) and packed(key) <= span.upto


@dataclass
class Transaction:
    number: int
    offset: int
    """Where it ends on the number line."""
    table: TableId
    key: int = -1
    value: int | None = None
    effect: Effect | None = None
    schema: int = 0


@dataclass
class Read:
    rows: dict[int, tuple[int, int]]
    """By key the value, and the number of the transaction that wrote it."""
    covered: int
    """Its mark: it surely contains transactions up to this number."""


@dataclass
class Lake:
    """Of a key the greatest `_seq` wins; an append-only table keeps everything that was ever written, by its origin."""

    rows: dict[tuple[TableId, int], tuple[int, int | None]] = field(default_factory=dict)
    origins: Counter[tuple[TableId, int, int]] = field(default_factory=Counter)

    def write(self, table: TableId, key: int, seq: int, value: int | None, origin: int) -> None:
        self.origins[table, key, origin] += 1
        if seq >= self.rows.get((table, key), (-1, None))[0]:
            self.rows[table, key] = (seq, value)

    def empty(self, table: TableId) -> None:
        self.rows = {key: row for key, row in self.rows.items() if key[0] != table}
        self.origins = Counter({key: count for key, count in self.origins.items() if key[0] != table})


class PlanningMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Transaction] = []
        self.shown = 0
        """How many transactions a SELECT sees."""
        self.captured = 0
        self.schemas = {KEYED: 1, APPENDED: 1}
        self.there = {KEYED, APPENDED}
        self.relay = Relay()
        self.chain: list[SegmentRecord] = []
        self.tables = Tables()
        self.durable: list[tuple[Durable | Covered, int]] = []
        self.lake = Lake()
        self.epoch = 0
        self.upto = 0
        self.generation = 1
        self.jobs = 0
        self.reads: dict[str, Read] = {}
        self.waiting: list[tuple[Launched, str, int, bool, int, KeyEnds | None]] = []
        self.plan: EpochPlan | None = None
        self.rules_of_the_plan: dict[TableId, Rule] = {}

    @initialize(rows=st.lists(st.tuples(st.sampled_from([KEYED, APPENDED]), st.sampled_from(KEYS)), min_size=3, max_size=10))
    def has_some_rows(self, rows: list[tuple[TableId, int]]) -> None:
        for table, key in rows:
            self.append(table, 1, key=key, value=key)

    @rule(data=st.data(), rounds=st.integers(0, 7), steps=st.integers(2, 7), exact=st.booleans())
    def moves_on(self, data: st.DataObject, rounds: int, steps: int, exact: bool) -> None:
        """What a pipeline does when nobody disturbs it, and in the last round no further than to some step of it."""
        for _ in range(rounds):
            self.round(data, 7, data.draw(st.integers(0, 2)), data.draw(st.sampled_from([3, 99])), exact)
        self.round(data, steps, data.draw(st.integers(0, 2)), 99, exact)

    def round(self, data: st.DataObject, steps: int, changes: int, limit: int, exact: bool) -> None:
        self.some_changes(data, changes)
        self.captures_all()
        if steps > 2:
            self.shows(data.draw(st.sampled_from([1, 99, 99])))
            self.launches()
        if steps > 3:
            self.some_changes(data, 1)
            if data.draw(st.integers(0, 9)) == 0:
                self.states(data.draw(tables_of_the_source), data.draw(st.sampled_from(LOGGED)), 1)
            self.captures_all()
            if data.draw(st.integers(0, 2)) == 0:
                # An epoch comes between the launch of a read and its end: its tasks drop the changes of what is being read.
                self.an_epoch(limit)
            self.shows(data.draw(st.sampled_from([0, 1, 99])))
            for _ in range(RUNNING_MAX):
                if any(reading.report is None for reading in self.tables.readings()):
                    self.a_task_reads(data, exact, 1)
            self.captures_all()
        if steps > 4:
            self.reports_are_heard()
        if steps > 5 and self.plan is None:
            self.plans(limit)
        if steps > 6 and self.plan is not None:
            self.the_epoch_is_committed()

    def some_changes(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            key, value = data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from([None, 7, 8]))
            self.writes(data.draw(tables_of_the_source), key, value, 1)

    def captures_all(self) -> None:
        while self.captured < len(self.log):
            self.captures(5)

    def an_epoch(self, limit: int) -> None:
        if self.plan is None:
            self.plans(limit)
        self.the_epoch_is_committed()

    # ---- the source

    def append(self, table: TableId, size: int, **what: object) -> None:
        offset = (self.log[-1].offset if self.log else 0) + size
        self.log.append(Transaction(len(self.log) + 1, offset, table, **what))  # type: ignore[arg-type]

    @rule(table=tables_of_the_source, key=st.sampled_from(KEYS), value=st.one_of(st.none(), st.integers(0, 99)), size=st.integers(1, 3))
    def writes(self, table: TableId, key: int, value: int | None, size: int) -> None:
        if table in self.there:
            self.append(table, size, key=key, value=value)

    @rule(count=st.integers(1, 4))
    def shows(self, count: int) -> None:
        """A server logs a transaction before it shows it to a SELECT."""
        self.shown = min(len(self.log), self.shown + count)

    @rule(table=tables_of_the_source, effect=st.sampled_from(LOGGED), size=st.integers(1, 3))
    def states(self, table: TableId, effect: Effect, size: int) -> None:
        if (effect is Effect.MAKES) == (table in self.there):
            return
        self.there ^= {table} if effect in (Effect.MAKES, Effect.DROPS) else set()
        self.schemas[table] += effect is not Effect.EMPTIES
        self.append(table, size, effect=effect, schema=self.schemas[table])
        self.shown = len(self.log)

    def rows(self, table: TableId, upto: int) -> dict[int, tuple[int, int]]:
        rows: dict[int, tuple[int, int]] = {}
        for transaction in self.log[:upto]:
            if transaction.table != table:
                continue
            if transaction.effect is not None:
                if transaction.effect.table_wide and transaction.effect is not Effect.REWRITES:
                    rows = {}
            elif transaction.value is None:
                rows.pop(transaction.key, None)
            else:
                rows[transaction.key] = (transaction.value, transaction.number)
        return rows

    def number_of(self, offset: int) -> int:
        return sum(1 for transaction in self.log if transaction.offset <= offset)

    def place(self, number: int) -> Position:
        return Position(1, 4 + (self.log[number - 1].offset if number else 0))

    # ---- the relay

    @precondition(lambda self: self.captured < len(self.log))
    @rule(count=st.integers(1, 5))
    def captures(self, count: int) -> None:
        taken = self.log[self.captured : self.captured + count]
        begins = self.place(self.captured)
        self.captured += len(taken)
        told = tuple(TableStatement(one.offset, one.table, one.effect, one.schema) for one in taken if one.effect is not None)
        cuts = tuple(Cut(one.offset, one.number) for one in taken)
        sealed = self.relay.decide_record(self.generation, f"s{self.captured}", begins, self.place(self.captured), cuts, told)
        self.relay.apply(sealed)
        self.chain.append(sealed)

    # ---- chunks

    @precondition(lambda self: self.chain)
    @rule()
    def launches(self) -> None:
        visible = visible_cut(self.relay, self.place(self.shown))
        if visible is None:
            return
        assert self.number_of(visible) <= self.shown, "a cut was called visible that no SELECT shows"
        under_way = sum(1 for _ in self.tables.readings())
        for fact in decide_launches(self.tables, self.relay, visible=visible, job=self.jobs + 1, running_max=RUNNING_MAX):
            self.jobs += 1
            under_way += 1
            assert fact.job == self.jobs
            self.tables.apply(fact)
        assert under_way <= RUNNING_MAX

    @precondition(lambda self: any(reading.report is None for reading in self.tables.readings()))
    @rule(data=st.data(), exact=st.booleans(), behind=st.integers(0, 2))
    def a_task_reads(self, data: st.DataObject, exact: bool, behind: int) -> None:
        """A mark is exact, or says of some transactions that are in the read that it does not know."""
        launch = data.draw(st.sampled_from([one.launch for one in self.tables.readings() if one.report is None]))
        table = launch.incarnation.table
        # A SELECT goes by the newest shape, whatever its snapshot is; one that a statement overtook has failed.
        if table not in self.there or any(one.table == table and one.effect is not None for one in self.log[self.shown :]):
            return
        proven = self.number_of(launch.visible)
        covered = self.shown if exact else max(proven, self.shown - behind)
        high = self.shown if exact else len(self.log)
        rows = self.rows(table, self.shown)
        extent = KeyEnds(packed(min(rows)), packed(max(rows))) if rows else None
        current = self.tables.current(launch.incarnation)
        assert current is not None
        assert current.copy is not None
        if launch.ordinal != OUTSIDE:
            span, extent = span_of(current.copy, launch.ordinal), current.copy.extent
            rows = {key: row for key, row in rows.items() if within(key, span, extent)}
        nonce = f"n{len(self.reads)}"
        self.reads[nonce] = Read({} if launch.ordinal == OUTSIDE else rows, covered)
        exactly = covered == high
        self.waiting.append((launch, nonce, high, exactly, self.schemas[table], extent if launch.ordinal == OUTSIDE else None))

    @precondition(lambda self: self.waiting)
    @rule()
    def reports_are_heard(self) -> None:
        """Once the relay has come to where the read ends."""
        still = []
        for waiting in self.waiting:
            launch, nonce, high, exact, schema, extent = waiting
            offset = self.relay.offset_of(self.place(high))
            if offset is None:
                still.append(waiting)
                continue
            report = Reported(
                incarnation=launch.incarnation,
                ordinal=launch.ordinal,
                job=launch.job,
                nonce=nonce,
                high=offset,
                exact=exact,
                schema=schema,
                files=(nonce,),
                extent=extent,
            )
            for fact in self.tables.decide_report(report):
                self.tables.apply(fact)
        self.waiting = still

    @precondition(lambda self: any(True for _ in self.tables.readings()))
    @rule(data=st.data(), rarely=st.integers(0, 2))
    def a_read_is_given_back(self, data: st.DataObject, rarely: int) -> None:
        if rarely:
            return
        launch = data.draw(st.sampled_from([one.launch for one in self.tables.readings()]))
        for fact in self.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, "slow"):
            self.tables.apply(fact)

    # ---- epochs

    def proposals(self) -> list[Durable]:
        found: list[Durable] = []
        for name in (KEYED, APPENDED):
            table = self.tables.get(name)
            if table is None:
                statements = [one for one in self.log[: self.number_of(self.upto)] if one.table == name and one.effect is not None]
                if not statements or statements[-1].effect is not Effect.DROPS:
                    found.append(
                        Found(Incarnation(name, self.epoch + 1), str(name), name == KEYED, statements[-1].schema if statements else 1)
                    )
            elif table.phase is TablePhase.SPLITTING and table.copy is not None and table.copy.extent is not None:
                bounds = table.copy.bounds
                at = bounds.upper(bounds.last)[0] if bounds.last else table.copy.extent.least[0] - 1
                upper = min(at + 2, table.copy.extent.greatest[0])
                found.append(Split(table.incarnation, bounds.last + 1, (packed(upper),), upper == table.copy.extent.greatest[0]))
        return found

    @precondition(lambda self: self.plan is None and self.chain)
    @rule(limit=st.integers(0, 12))
    def plans(self, limit: int) -> None:
        upto = choose_end(self.tables, self.relay, self.upto, limit)
        stated = {statement.offset for statement in self.relay.statements(self.upto, upto)}
        known = [one for one in self.relay.statements(self.upto, upto) if self.tables.get(one.table) is not None]
        assert len({one.table for one in known}) == len(known), "a table has two statements in an epoch"
        for statement in known:
            beyond = (self.upto, statement.offset) if statement.effect.table_wide else (statement.offset, upto)
            assert stated.issuperset(self.relay.cuts_between(*beyond)), "a statement is neither first nor last where it must be"
        assert upto > self.upto or self.relay.next_cut(self.upto) is None, "a cut is there, and the epoch does not move"
        before = copy.deepcopy(vars(self.tables))
        plan = plan_epoch(
            self.tables,
            self.relay,
            epoch=self.epoch + 1,
            generation=self.generation,
            follows="",
            after=self.upto,
            upto=upto,
            proposals=self.proposals(),
        )
        assert vars(self.tables) == before, "planning changed something"
        for fact in plan.given_back:
            self.tables.apply(fact)
        if plan.low < plan.upto:
            self.relay.covering(plan.low, plan.upto)
        self.plan = plan
        self.rules_of_the_plan = {**{table.incarnation.table: plan.rule(table) for table in self.tables}, **plan.rules}

    @precondition(lambda self: self.plan is not None)
    @rule()
    def the_job_fails(self) -> None:
        self.plan = None

    @precondition(lambda self: self.plan is not None)
    @rule()
    def the_epoch_is_committed(self) -> None:
        """Its tasks decode what its plan says; its intent adopts what its plan names, or is not written."""
        plan, self.plan = self.plan, None
        assert plan is not None
        answers = [Message(generation=self.generation, epoch=plan.epoch, writer=0, files=())]
        if refusal(plan, answers, writers=1, tables=self.tables) is not None:
            return
        for fact in plan.facts:
            if isinstance(fact, Found | Reborn | Truncated):
                self.lake.empty(fact.incarnation.table)
        for rule_ in self.rules_of_the_plan.values():
            for adopting in rule_.adopting:
                self.add_chunk(rule_.incarnation.table, adopting)
        for transaction in self.log[self.number_of(plan.low) : self.number_of(plan.upto)]:
            self.emit(transaction)
        for fact in plan.facts:
            self.tables.apply(fact, plan.epoch)
            self.durable.append((fact, plan.epoch))
        self.epoch, self.upto = plan.epoch, plan.upto
        self.tables.apply(covered := Covered(self.epoch, self.upto))
        self.durable.append((covered, self.epoch))
        for released in self.tables.releasable():
            self.tables.apply(released)
        self.relay.raise_floor(self.relay.decide_floor(self.upto, self.tables.lowest_visible()))
        self.relay.forget(self.relay.deletable(self.relay.number_at(self.upto)))

    def add_chunk(self, table: TableId, adopting: Adopting) -> None:
        seq, read = sequence.of_chunk(adopting.visible), self.reads[adopting.reading.nonce]
        for key, (value, number) in read.rows.items():
            self.lake.write(table, key, seq, value, number)

    def emit(self, transaction: Transaction) -> None:
        rule_ = self.rules_of_the_plan.get(transaction.table)
        if rule_ is None or transaction.effect is not None:
            return
        inside = [one for one in rule_.adopting if within(transaction.key, one.span, rule_.extent or one.reading.extent)]
        assert len(inside) <= 1, "a key lies in two chunks"
        adopted = any(within(transaction.key, span, rule_.extent) for span in rule_.adopted)
        adopted = adopted or (rule_.outside and within(transaction.key, None, rule_.extent))
        seen = {one: transaction.number <= self.reads[one.reading.nonce].covered for one in inside}
        goes = emits(
            rule_,
            offset=transaction.offset,
            adopted=adopted,
            adopting=inside[0] if inside else None,
            keyed=transaction.table == KEYED,
            covered=lambda one: seen[one],
        )
        if goes:
            seq = sequence.of_change(transaction.offset)
            self.lake.write(transaction.table, transaction.key, seq, transaction.value, transaction.number)

    @rule(rarely=st.integers(0, 2))
    def is_restarted(self, rarely: int) -> None:
        """A new driver folds what is durable, and reads again whatever was being read."""
        if rarely:
            return
        before, self.tables = self.tables, Tables()
        for fact, epoch in self.durable:
            self.tables.apply(fact, epoch)
            if isinstance(fact, Covered):
                for released in self.tables.releasable():
                    self.tables.apply(released)
        assert vars(self.tables) == {**vars(before), "_readings": {}, "_failures": {}}
        self.relay = take_over([one for one in self.chain if one.last >= self.upto], intent_upto=self.upto)
        self.plan, self.waiting = None, []
        self.generation += 1

    # ---- what always holds

    def adopted(self, table: Table, key: int) -> bool:
        if table.live:
            return True
        if table.copy is None or OUTSIDE not in table.copy.adopted:
            return False
        spans = [(n, span_of(table.copy, n)) for n in range(OUTSIDE, table.copy.bounds.last + 1) if n not in table.copy.adopted]
        inside = not within(key, None, table.copy.extent)
        beyond = table.copy.bounds.last == 0 or packed(key) > table.copy.bounds.upper(table.copy.bounds.last)
        return not (inside and (beyond or any(within(key, span, table.copy.extent) for _, span in spans)))

    @invariant()
    def a_range_is_absent_or_exactly_the_source(self) -> None:
        for table in self.tables:
            name = table.incarnation.table
            if table.phase is TablePhase.GONE:
                continue
            source = self.rows(name, self.number_of(self.upto))
            for key in KEYS:
                in_lake = self.lake.rows.get((name, key), (0, None))[1]
                if not self.adopted(table, key):
                    assert in_lake is None, f"a row of a chunk that was not adopted: {table} {key}"
                else:
                    assert in_lake == (source[key][0] if key in source else None), f"{table} {key}"

    @invariant()
    def no_change_comes_twice_to_an_append_only_table(self) -> None:
        for (name, key, number), count in self.lake.origins.items():
            assert name == KEYED or count == 1, f"{name} has change {number} of {key} {count} times"

    @invariant()
    def what_is_being_read_can_be_joined_with_the_log(self) -> None:
        for reading in self.tables.readings():
            assert reading.launch.visible >= self.relay.floor
            current = self.tables.current(reading.launch.incarnation)
            assert current is not None
            assert reading.launch.visible >= current.since


def test_after_every_epoch_the_lake_has_the_source_or_nothing() -> None:
    # To shrink what fails may take longer than a test may; add its phase and a longer timeout for it.
    phases = (HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate)
    run_state_machine_as_test(PlanningMachine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None, phases=phases))
