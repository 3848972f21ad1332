"""Drivers that commit, one after the other and at the same time, over a store that loses requests and replies.

Each is a coordinator over a ledger. The model is what lies in the store, and per lake table a list of the epochs that it has.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import Phase as HypothesisPhase
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from snowmelt.commit.cleaning import CleaningView, Leftovers, RewritesUnderWay, deletable
from snowmelt.commit.coordinator import (
    STAGES,
    CommitTables,
    Coordinator,
    DonePut,
    GenerationRead,
    IntentPut,
    IntentRead,
    ListenersRan,
    Outcome,
    PutDone,
    PutIntent,
    ReadGeneration,
    ReadIntent,
    RunListeners,
    Stage,
    StageTrigger,
    Step,
    TableCommitted,
)
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.publish import EpochInLake, Files, LastCommit, PublishEpoch, View, judge, judge_schema
from snowmelt.commit.records import Done, Entry, Intent, Staged, StagedFor, StagedName
from snowmelt.commit.summary import Summary, restore, summarise
from snowmelt.commit.watermarks import advance, lowest
from snowmelt.errors import Corrupt, Fenced, InvariantBroken, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.planning.facts import OUTSIDE, Adopted, Durable, Found, Gone, Incarnation, Launched, Reborn, Recopied, Truncated
from snowmelt.planning.tables import ChunkState, TablePhase, Tables
from snowmelt.store.codec import decode, encode

SHARDS = {TableId("shop", "orders_1"): "ods.orders", TableId("shop", "orders_2"): "ods.orders", TableId("shop", "items"): "ods.items"}
TARGETS = sorted(set(SHARDS.values()))
FATES = ["well", "well", "request lost", "reply lost", "late"]
"""Of a request. A late one arrives when its sender has given it up."""


def state_of(ledger: Ledger, *, passing: bool = True) -> dict[str, Any]:
    """All of it, field by field; without the reads of its driver if asked so."""
    tables = vars(ledger.tables)
    return {**vars(ledger), "tables": tables if passing else {**tables, "_readings": {}, "_failures": {}}}


def state_of_driver(machine: Coordinator) -> dict[str, Any]:
    return copy.deepcopy({**vars(machine), "ledger": state_of(machine.ledger)})


@dataclass
class Driver:
    machine: Coordinator
    first_epoch: int
    """What it knew already when it began."""


class CommitMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.intents: dict[int, Intent] = {}
        self.dones: dict[int, Done] = {}
        self.watermarks: dict[int, dict[str, int]] = {}
        self.summaries: list[Summary] = []
        self.generation = 0
        self.drivers: list[Driver] = []
        self.lake: dict[str, list[LastCommit]] = {target: [] for target in TARGETS}
        self.clock = 0
        self.nonces = 0
        self.late: list[Intent] = []
        """Puts whose sender has given up, and that are still under way."""

    # ---- drivers

    def load(self, number: int) -> Ledger:
        """The fold of a summary and of the records behind it, or of all records."""
        ledger = restore(decode(Summary, encode(self.summaries[number]))) if 0 <= number < len(self.summaries) else Ledger()
        while (intent := self.intents.get(ledger.epoch + 1)) is not None:
            ledger.apply_intent(decode(Intent, encode(intent)))
            done = self.dones.get(ledger.epoch)
            if done is None:
                break
            ledger.apply_done(decode(Done, encode(done)))
        return ledger

    @rule(number=st.integers(0, 9), rarely=st.integers(0, 2))
    def a_driver_starts(self, number: int, rarely: int) -> None:
        if rarely and self.drivers:
            return
        self.generation += 1
        ledger = self.load(number)
        assert state_of(ledger) == state_of(self.load(-1)), "a summary says something else than the records"
        self.drivers.append(Driver(Coordinator(self.generation, ledger), ledger.epoch))

    def pick(self, data: st.DataObject) -> Driver:
        """Mostly the newest; an older one now and then, which does not know that it is over."""
        return data.draw(st.sampled_from([self.drivers[-1], self.drivers[-1], *self.drivers[-3:]]))

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), overtaken=st.sampled_from([False, False, False, True]))
    def offers(self, data: st.DataObject, overtaken: bool) -> None:
        machine = self.pick(data).machine
        ledger = machine.ledger
        if machine.stage is not Stage.FREE:
            before = state_of_driver(machine)
            try:
                machine.offer(self.intent(machine, data), ledger.identity)
            except InvariantBroken:
                assert state_of_driver(machine) == before
                return
            raise AssertionError("two intents are under way in one driver")
        intent = self.intent(machine, data)
        if overtaken:
            before = state_of_driver(machine)
            assert not machine.offer(intent, "planned from another one")
            assert state_of_driver(machine) == before
            return
        self.offers_of(machine, data)

    def offers_of(self, machine: Coordinator, data: st.DataObject) -> None:
        intent = self.intent(machine, data)
        assert machine.offer(intent, machine.ledger.identity)
        assert machine.next_step() == PutIntent(intent) == machine.next_step()
        assert not machine.may_plan, "the next epoch would be planned from one that nobody has won"

    def intent(self, machine: Coordinator, data: st.DataObject) -> Intent:
        """Some tables go on in it, as their facts allow."""
        ledger, facts, emptied = machine.ledger, [], set()
        upto = ledger.upto + data.draw(st.integers(0, 3))
        for name, target in SHARDS.items():
            if not data.draw(st.booleans()):
                continue
            fact = self.turn(ledger.tables, name, target, ledger.epoch + 1, upto)
            facts.append(fact)
            if isinstance(fact, Reborn | Truncated):
                emptied.add((target, str(name)))
        entries = []
        for target in data.draw(st.lists(st.sampled_from(TARGETS), unique=True)):
            empties = tuple(sorted(name for of, name in emptied if of == target))
            entries.append(
                Entry(
                    target=target,
                    uuid="u",
                    buckets=1,
                    schema=1,
                    new_schema=None,
                    base=len(self.lake[target]),
                    empties=empties,
                    files=(f"file-{self.nonces}",),
                )
            )
        self.nonces += 1
        self.clock += 10
        return Intent(
            epoch=ledger.epoch + 1,
            generation=machine.generation,
            nonce=f"n{self.nonces}",
            after=ledger.upto,
            upto=upto,
            time_ms=self.clock,
            facts=tuple(facts),
            entries=tuple(entries),
            sequence_max=2 * upto + 1,
            segment=1,
        )

    @staticmethod
    def turn(tables: Tables, name: TableId, target: str, epoch: int, upto: int) -> Durable:
        table = tables.get(name)
        if table is None:
            return Found(Incarnation(name, epoch), target, True, 1)
        match table.phase:
            case TablePhase.DISCOVERED:
                return Adopted(incarnation=table.incarnation, ordinal=OUTSIDE, nonce="n", visible=upto, high=upto)
            case TablePhase.RELEASED if upto % 3 == 0:
                return Recopied(table.incarnation, upto)
            case TablePhase.RELEASED if upto % 3 == 1:
                return Truncated(table.incarnation, upto)
            case TablePhase.RELEASED:
                return Gone(table.incarnation, upto)
            case _:
                return Reborn(Incarnation(name, epoch), upto, 1)

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def reads_something(self, data: st.DataObject) -> None:
        """Passing facts, which no record holds."""
        tables = self.pick(data).machine.ledger.tables
        for table in tables:
            if tables.chunk_state(table.incarnation, OUTSIDE) is ChunkState.PLANNED:
                tables.apply(Launched(table.incarnation, OUTSIDE, 1, 0, 0))

    # ---- steps

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), count=st.integers(1, 9), fate=st.sampled_from(FATES))
    def steps(self, data: st.DataObject, count: int, fate: str) -> None:
        """Some steps go well, and the last one as it is fated."""
        driver = self.pick(data)
        for step in range(count):
            if not self.step(driver, fate if step + 1 == count else "well"):
                return

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), count=st.integers(1, 4), fate=st.sampled_from(FATES), when=st.integers(0, 5), upto=st.integers(0, 12))
    def epochs_go_on(self, data: st.DataObject, count: int, fate: str, when: int, upto: int) -> None:
        """Some epochs, one after the other, each with one step that goes as it is fated; the last no further than to some step."""
        driver = self.pick(data)
        for epoch in range(count):
            while self.step(driver, "well"):
                pass
            if driver.machine.stage is not Stage.FREE:
                return
            self.offers_of(driver.machine, data)
            for step in range(upto if epoch + 1 == count else 99):
                if not self.step(driver, fate if step == when else "well"):
                    break

    def step(self, driver: Driver, fate: str) -> bool:
        machine = driver.machine
        if machine.stage is Stage.FENCED:
            try:
                machine.next_step()
            except Fenced:
                return False
            raise AssertionError("a fenced driver goes on")
        step = machine.next_step()
        if step is None:
            assert machine.stage is Stage.FREE
            return False
        assert machine.next_step() == step, "asking changes something"
        outcomes = self.perform(driver, step, fate)
        for outcome in outcomes:
            if isinstance(step, CommitTables):
                assert machine.stage is Stage.COMMITTING
            machine.apply(outcome)
        # What went well and brought nothing is a commit that a newer driver overtook: it would bring nothing for ever.
        return bool(outcomes) or fate != "well"

    def perform(self, driver: Driver, step: Step, fate: str) -> list[Outcome]:
        machine = driver.machine
        match step:
            case PutIntent(intent):
                assert intent.epoch == 1 or intent.epoch - 1 in self.dones, "an intent before the epoch before it is done"
                if fate == "request lost":
                    return [IntentPut(None)]
                if fate == "late":
                    self.late.append(intent)
                    return [IntentPut(None)]
                won = self.put(intent)
                return [IntentPut(None if fate == "reply lost" else won)]
            case ReadIntent(epoch):
                return [IntentRead(self.intents.get(epoch))] if fate == "well" else []
            case ReadGeneration():
                return [GenerationRead(self.generation)] if fate == "well" else []
            case CommitTables(intent, entries):
                assert machine.ledger.open == intent == self.intents[intent.epoch]
                return [outcome for entry in entries for outcome in self.publish(intent, entry, fate)]
            case RunListeners(intent, before):
                assert all(self.has(entry.target, intent) for entry in intent.entries), "listeners ran before the lake has it"
                assert before == machine.ledger.listeners
                return [ListenersRan(f"heard {intent.epoch}")] if fate != "reply lost" else []
            case PutDone(done):
                assert all(self.has(entry.target, self.intents[done.epoch]) for entry in self.intents[done.epoch].entries)
                if fate == "request lost":
                    return []
                found = self.dones.setdefault(done.epoch, done)
                assert (found.identity, found.listeners) == (done.identity, done.listeners)
                marks = machine.ledger.decide_watermarks()
                assert self.watermarks.setdefault(done.epoch, marks) == marks, "two drivers see other watermarks"
                return [DonePut(found)] if fate != "reply lost" else []

    def put(self, intent: Intent) -> bool:
        if intent.epoch in self.intents:
            return False
        self.intents[intent.epoch] = intent
        return True

    @precondition(lambda self: self.late)
    @rule()
    def a_put_comes_late(self) -> None:
        self.put(self.late.pop())

    def has(self, target: str, intent: Intent) -> bool:
        return any((marker.epoch, marker.identity) == (intent.epoch, intent.identity) for marker in self.lake[target])

    def publish(self, intent: Intent, entry: Entry, fate: str) -> list[Outcome]:
        markers = self.lake[entry.target]
        behind = next((marker for marker in reversed(markers) if marker.snapshot > entry.base), None)
        files = Files.REFERENCED if self.has(entry.target, intent) else Files.STAGED
        try:
            verdict = judge(
                intent,
                entry,
                View(uuid="u", buckets=1, schema=1, sequence_field=True, snapshot=len(markers), marker=behind, whole=True, files=files),
            )
        except Fenced:
            assert markers[-1].epoch > intent.epoch
            return []
        if isinstance(verdict, PublishEpoch):
            if fate == "request lost":
                return []
            assert verdict.on == len(markers)
            markers.append(LastCommit(intent.epoch, intent.identity, len(markers) + 1))
            return [TableCommitted(intent.epoch, entry.target, len(markers))] if fate != "reply lost" else []
        assert isinstance(verdict, EpochInLake)
        return [TableCommitted(intent.epoch, entry.target, verdict.snapshot)]

    # ---- what must be refused

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), what=st.sampled_from(["won", "lost", "absent", "older", "newer", "verified", "fenced", "heard"]))
    def an_outcome_of_another_stage_is_refused(self, data: st.DataObject, what: str) -> None:
        machine = self.pick(data).machine
        another = Intent(
            epoch=machine.ledger.epoch + 1,
            generation=0,
            nonce="x",
            after=machine.ledger.upto,
            upto=machine.ledger.upto,
            time_ms=None,
            facts=(),
            entries=(),
            sequence_max=0,
            segment=0,
        )
        turn, outcome = {
            "won": (StageTrigger.WON, IntentPut(True)),
            "lost": (StageTrigger.UNSURE, IntentPut(False)),
            "absent": (StageTrigger.ABSENT, IntentRead(None)),
            "older": (StageTrigger.OLDER, IntentRead(another)),
            "newer": (StageTrigger.NEWER, IntentRead(replace(another, generation=machine.generation + 1))),
            "verified": (StageTrigger.STILL_OURS, GenerationRead(machine.generation)),
            "fenced": (StageTrigger.NEWER, GenerationRead(machine.generation + 1)),
            "heard": (StageTrigger.HEARD, ListenersRan("x")),
        }[what]
        if (machine.stage, turn) in STAGES:
            return
        before = state_of_driver(machine)
        try:
            machine.apply(outcome)
        except InvariantBroken:
            assert state_of_driver(machine) == before, f"{outcome} was refused, and yet something changed"
            return
        raise AssertionError(f"{outcome} was taken while {machine.stage}")

    @precondition(lambda self: self.drivers)
    @rule(data=st.data())
    def a_generation_that_vanished_is_refused(self, data: st.DataObject) -> None:
        machine = self.pick(data).machine
        before = state_of_driver(machine)
        try:
            machine.apply(GenerationRead(machine.generation - 1))
        except Corrupt:
            assert state_of_driver(machine) == before
            return
        raise AssertionError("a driver whose own record is gone goes on")

    @precondition(lambda self: self.drivers)
    @rule(data=st.data(), what=st.sampled_from(["again", "number", "gap", "done again", "done of another"]))
    def a_record_that_does_not_follow_is_refused(self, data: st.DataObject, what: str) -> None:
        ledger = self.pick(data).machine.ledger
        following = Intent(
            epoch=ledger.epoch + 1,
            generation=9,
            nonce="x",
            after=ledger.upto,
            upto=ledger.upto + 1,
            time_ms=None,
            facts=(),
            entries=(),
            sequence_max=0,
            segment=0,
        )
        before = copy.deepcopy(state_of(ledger))
        try:
            match what:
                case "again":
                    ledger.apply_intent(replace(following, epoch=ledger.epoch))
                case "number":
                    ledger.apply_intent(replace(following, epoch=ledger.epoch + 2))
                case "gap":
                    ledger.apply_intent(replace(following, after=ledger.upto + 1))
                case "done again":
                    ledger.apply_done(Done(ledger.epoch - 1, ledger.identity, (), ""))
                case "done of another":
                    ledger.apply_done(Done(ledger.epoch, "another", (), ""))
        except InvariantBroken:
            assert state_of(ledger) == before
            return
        raise AssertionError("taken")

    @precondition(lambda self: self.drivers and self.drivers[-1].machine.ledger.open is None)
    @rule()
    def is_summed_up(self) -> None:
        ledger = self.drivers[-1].machine.ledger
        if ledger.epoch in self.dones or not ledger.epoch:
            summary = summarise(ledger)
            self.summaries.append(summary)
            assert summarise(restore(summary)) == summary

    # ---- what always holds

    @invariant()
    def every_driver_is_a_fold_of_the_records(self) -> None:
        for driver in self.drivers[-3:]:
            ledger, again = driver.machine.ledger, Ledger()
            for epoch in range(1, ledger.epoch + 1):
                again.apply_intent(self.intents[epoch])
                if epoch < ledger.epoch or ledger.open is None:
                    again.apply_done(self.dones[epoch])
            assert state_of(ledger, passing=False) == state_of(again)

    @invariant()
    def an_epoch_is_in_a_lake_table_once_in_order_and_as_its_intent_says(self) -> None:
        for target, markers in self.lake.items():
            assert [marker.epoch for marker in markers] == sorted({marker.epoch for marker in markers})
            for marker in markers:
                intent = self.intents[marker.epoch]
                assert marker.identity == intent.identity
                assert target in [entry.target for entry in intent.entries]
        for epoch in self.dones:
            assert all(self.has(entry.target, self.intents[epoch]) for entry in self.intents[epoch].entries)

    @invariant()
    def done_follows_its_intent_and_watermarks_never_go_back(self) -> None:
        assert sorted(self.intents) == list(range(1, len(self.intents) + 1))
        assert sorted(self.dones) == list(range(1, len(self.dones) + 1))
        assert len(self.intents) - len(self.dones) in (0, 1)
        newest: dict[str, int] = {}
        for _, done in sorted(self.dones.items()):
            marks = self.watermarks[done.epoch]
            assert all(time_ms >= newest.get(target, 0) for target, time_ms in marks.items())
            newest |= marks
            assert done.listeners == f"heard {done.epoch}"

    @invariant()
    def a_plan_is_made_from_a_won_intent_alone(self) -> None:
        for driver in self.drivers[-3:]:
            machine = driver.machine
            if machine.may_plan:
                assert machine.ledger.epoch == 0 or self.intents[machine.ledger.epoch].identity == machine.ledger.identity
                assert machine.ledger.open is None or machine.ledger.open.overlaps

    def teardown(self) -> None:
        """Whatever happened, one more driver brings it to an end."""
        self.a_driver_starts(len(self.summaries) - 1, 0)
        driver = self.drivers[-1]
        while self.step(driver, "well"):
            pass
        assert driver.machine.stage is Stage.FREE
        assert len(self.dones) == len(self.intents)


def test_drivers_commit_every_epoch_once_whatever_is_lost() -> None:
    # To shrink what fails may take longer than a test may; add its phase and a longer timeout for it.
    phases = (HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate)
    run_state_machine_as_test(CommitMachine, settings=settings(max_examples=120, stateful_step_count=40, deadline=None, phases=phases))


# ---- cleaning

names = st.builds(StagedName, st.integers(1, 4), st.sampled_from(StagedFor), st.integers(1, 6), st.sampled_from(["a", "b"]), st.just("f"))
standings = st.builds(
    lambda generation, epoch, before, named, jobs, under_way, table: CleaningView(
        generation=generation,
        epoch=epoch,
        intent_generation=min(before, generation),
        jobs=jobs,
        under_way={job for job in under_way if job <= jobs},
        named={str(name) for name in named},
        rewrites=RewritesUnderWay(jobs, {job for job in under_way if job <= jobs}),
        table_generation=min(table, generation),
    ),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, 4),
    st.sets(names, max_size=4),
    st.integers(0, 6),
    st.sets(st.integers(1, 6)),
    st.integers(0, 4),
)


@given(names, standings)
def test_a_file_goes_only_when_no_later_intent_can_name_it(name: StagedName, standing: CleaningView) -> None:
    """Who may still write an intent: this driver, and older ones as long as the newest intent is not of a newer driver than they are.
    What may it name: files of its own next epoch, and of reads that are under way. A rewrite is published by this driver while it is under
    way, and by an older one as long as none that is newer than that has committed to the table."""
    assert StagedName.parse(str(name)) == name
    writers = {g for g in range(standing.intent_generation, standing.generation + 1) if g} | {standing.generation}
    mine = name.generation == standing.generation
    if name.waits_for is StagedFor.EPOCH:
        can_be_named = name.number > standing.epoch
    elif name.waits_for is StagedFor.REWRITE and not mine:
        can_be_named = name.generation >= standing.table_generation
    elif mine:
        can_be_named = name.number in standing.under_way or name.number > standing.jobs
    else:
        can_be_named = name.generation in writers or name.generation > standing.generation
    assert deletable(name, standing) == (not can_be_named and str(name) not in standing.named)


@given(names, standings, names)
def test_what_may_go_may_go_for_ever(name: StagedName, standing: CleaningView, other: StagedName) -> None:
    """A later instant knows more intents and more jobs, and what it names anew was not deletable before."""
    if not deletable(name, standing) or str(name) == str(other):
        return
    later = replace(
        standing,
        epoch=standing.epoch + 1,
        intent_generation=standing.generation,
        jobs=standing.jobs + 1,
        named={*standing.named, str(other)},
        under_way={*standing.under_way, standing.jobs + 1},
        rewrites=RewritesUnderWay(standing.rewrites.newest + 1, {*standing.rewrites.jobs, standing.rewrites.newest + 1}),
        table_generation=standing.generation,
    )
    assert deletable(name, later)


@given(st.lists(names, unique=True, max_size=12), st.lists(st.tuples(st.integers(1, 6), st.sets(names)), max_size=4), standings)
def test_no_file_that_a_won_intent_names_is_ever_given_out(
    reported: list[StagedName], won: list[tuple[int, set[StagedName]]], standing: CleaningView
) -> None:
    leftovers = Leftovers()
    for name in reported:
        leftovers.reported("ods.t", Staged((str(name),), (), 1))
    kept = set(standing.named)
    for epoch, files in won:
        entry = Entry(
            target="ods.t",
            uuid="u",
            buckets=2,
            schema=1,
            new_schema=None,
            base=0,
            empties=(),
            files=tuple(sorted(str(name) for name in files)),
        )
        leftovers.won(
            Intent(
                epoch=epoch, generation=1, nonce="n", after=0, upto=1, time_ms=None, facts=(), entries=(entry,), sequence_max=3, segment=1
            )
        )
        kept.update(entry.files)
    gone = {name for _, staged in leftovers.take(standing) for name in staged.files}
    assert gone == {str(name) for name in reported if deletable(name, standing) and str(name) not in kept}


# ---- publishing

epochs = st.integers(1, 5)
views = st.builds(
    View,
    uuid=st.sampled_from(["u", "u", "u", "v"]),
    buckets=st.sampled_from([2, 2, 2, 3]),
    schema=st.sampled_from([1, 1, 2]),
    sequence_field=st.sampled_from([True, True, True, False]),
    snapshot=st.just(9),
    marker=st.one_of(st.none(), epochs.map(lambda n: LastCommit(n, f"1-n{n}", n))),
    whole=st.booleans(),
    files=st.sampled_from(Files),
)


@given(epochs, st.sampled_from(["n1", "n2", "n3", "n4", "n5"]), st.booleans(), st.booleans(), views)
def test_an_entry_is_published_only_on_a_table_that_surely_lacks_it(
    epoch: int, nonce: str, empties: bool, brings_files: bool, view: View
) -> None:
    entry = Entry(
        target="ods.t",
        uuid="u",
        buckets=2,
        schema=1,
        new_schema=None,
        base=0,
        empties=("shop.t",) if empties else (),
        files=("f",) if brings_files else (),
    )
    intent = Intent(
        epoch=epoch, generation=1, nonce=nonce, after=0, upto=1, time_ms=None, facts=(), entries=(entry,), sequence_max=3, segment=1
    )
    marker = view.marker
    ours = marker is not None and (marker.epoch, marker.identity) == (intent.epoch, intent.identity)
    try:
        verdict = judge(intent, entry, view)
    except Fenced:
        assert not ours
        assert marker is not None
        assert marker.epoch >= epoch
    except SourceDrift:
        same_table = (view.uuid, view.buckets, view.sequence_field) == ("u", 2, True)
        assert not (same_table and ours)
    else:
        assert (view.uuid, view.buckets, view.sequence_field) == ("u", 2, True)
        if isinstance(verdict, EpochInLake):
            assert ours or (not view.whole and view.files is Files.REFERENCED)
        else:
            assert verdict.on == view.snapshot
            assert marker is None or marker.epoch < epoch
            assert view.files is not Files.MISSING
            assert view.schema == entry.schema
            assert view.whole or (view.files is Files.STAGED and (brings_files or not empties))


shapes = st.sampled_from([b"ours", b"theirs"])


@given(st.integers(1, 4), st.one_of(st.none(), st.integers(1, 4)), st.integers(1, 4), shapes)
def test_a_schema_is_changed_once_and_only_from_what_was_expected(before: int, new: int | None, now: int, shape: bytes) -> None:
    entry = Entry(target="ods.t", uuid="u", buckets=1, schema=before, new_schema=new, base=0, empties=(), files=(), shape=b"ours")
    try:
        changes = judge_schema(entry, now, shape)
    except SourceDrift:
        assert new is not None
        assert now not in (before, new) or (now == new and shape != b"ours")
        return
    assert changes == (new is not None and now == before != new)
    if changes:
        assert new is not None
        assert not judge_schema(entry, new, b"ours")


# ---- watermarks

times = st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=4)


@given(st.one_of(st.none(), st.integers(0, 9)), times, times)
def test_a_watermark_is_the_slowest_sources_and_never_goes_back(
    before: int | None, first: list[int | None], second: list[int | None]
) -> None:
    known = [time for time in first if time is not None]
    assert lowest(first) == (min(known) if known and len(known) == len(first) else None)
    now = advance(before, first)
    assert (now is None) == (lowest(first) is None), "there is none while a source has none"
    assert now is None or before is None or now >= before
    if before is None:
        assert now == lowest(first)
    assert advance(now, first) == now, "the same epoch twice moved it"
    assert advance(now, [*first, None]) is None, "a source is not complete"
    after = advance(now, second)
    if now is not None and after is not None:
        assert after == max(now, lowest(second) or 0)
