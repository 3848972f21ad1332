"""One epoch from its offer to done, told as dialogues: what the coordinator asks for, and what came of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

import pytest

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
    TableCommitted,
)
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listeners import Reached
from snowmelt.commit.records import Committed, Done, Entry, Intent
from snowmelt.errors import Corrupt, Fenced, InvariantBroken
from snowmelt.model.table import TableId
from snowmelt.planning.facts import OUTSIDE, Adopted, Found, Incarnation
from snowmelt.planning.tables import ChunkState, TablePhase

ORDERS = Incarnation(TableId("shop", "orders"), 1)
FOUND = Found(ORDERS, "ods.orders", True, 1)


def entry(target: str = "ods.orders", *, empties: tuple[str, ...] = (), new_schema: int | None = None) -> Entry:
    return Entry(target=target, uuid="u", buckets=1, schema=1, new_schema=new_schema, base=0, empties=empties, files=("f",))


def intent(epoch: int = 1, *, generation: int = 3, nonce: str = "n", entries: tuple[Entry, ...] = (entry(),)) -> Intent:
    facts = (FOUND,) if epoch == 1 else ()
    return Intent(
        epoch=epoch,
        generation=generation,
        nonce=f"{nonce}{epoch}",
        after=10 * (epoch - 1),
        upto=10 * epoch,
        time_ms=epoch,
        facts=facts,
        entries=entries,
        sequence_max=0,
        segment=epoch,
    )


MINE = intent()
OLDER = intent(generation=2, nonce="older")
NEWER = intent(generation=4, nonce="newer")


def started(ledger: Ledger | None = None, *outcomes: Outcome, generation: int = 3) -> Coordinator:
    machine = Coordinator(generation, ledger or Ledger())
    machine.apply(GenerationRead(generation))
    for outcome in outcomes:
        machine.apply(outcome)
    return machine


def offered(*outcomes: Outcome, offer: Intent = MINE) -> Coordinator:
    machine = started()
    assert machine.offer(offer, "")
    for outcome in outcomes:
        machine.apply(outcome)
    return machine


def state(machine: Coordinator) -> dict[str, object]:
    return copy.deepcopy({**vars(machine), "ledger": {**vars(machine.ledger), "tables": vars(machine.ledger.tables)}})


@contextmanager
def refused(machine: Coordinator, kind: type[Exception] = InvariantBroken, text: str | None = None) -> Iterator[None]:
    before = state(machine)
    with pytest.raises(kind, match=text):
        yield
    assert state(machine) == before


TO_COMMITTING = (IntentPut(True), GenerationRead(3))
TO_LISTENING = (*TO_COMMITTING, TableCommitted(1, "ods.orders", 5))
TO_CLOSING = (*TO_LISTENING, ListenersRan("heard 1"))
DONE = Done(1, "3-n1", (Committed("ods.orders", 5),), "heard 1")


class TestOneEpoch:
    def test_from_the_offer_to_done(self) -> None:
        machine = started()
        assert machine.next_step() is None
        assert machine.offer(MINE, "")
        for step, outcome in (
            (PutIntent(MINE), IntentPut(True)),
            (ReadGeneration(), GenerationRead(3)),
            (CommitTables(MINE, MINE.entries), TableCommitted(1, "ods.orders", 5)),
            (RunListeners(MINE, "", {"ods.orders": Reached(5, "3-n1", None, None)}), ListenersRan("heard 1")),
            (PutDone(DONE), DonePut(DONE)),
        ):
            assert machine.next_step() == step
            assert machine.next_step() == step, "to ask changes nothing"
            machine.apply(outcome)
        assert machine.next_step() is None
        assert (machine.stage, machine.ledger.epoch, machine.ledger.open) == (Stage.FREE, 1, None)
        assert machine.ledger.listeners == "heard 1"
        assert machine.ledger.snapshots == {"ods.orders": 5}

    def test_tables_are_committed_in_any_order_and_only_what_is_missing_is_asked_for_again(self) -> None:
        """A crash of one table's commit, or one that is slow, repeats no other."""
        both = intent(entries=(entry("ods.a"), entry("ods.b")))
        machine = offered(*TO_COMMITTING, offer=both)
        machine.apply(TableCommitted(1, "ods.b", 7))
        assert machine.next_step() == CommitTables(both, (both.entries[0],))
        assert machine.stage is Stage.COMMITTING
        machine.apply(TableCommitted(1, "ods.a", 2))
        machine.apply(ListenersRan(""))
        step = machine.next_step()
        assert isinstance(step, PutDone)
        assert step.done.snapshots == (Committed("ods.a", 2), Committed("ods.b", 7))

    def test_an_epoch_without_files_is_done_without_the_lake(self) -> None:
        empty = intent(entries=())
        machine = offered(*TO_COMMITTING, offer=empty)
        assert machine.next_step() == RunListeners(empty, "", {})

    def test_listeners_are_told_with_the_state_that_they_left(self) -> None:
        """M3: and are told again after a failure, for done waits for them."""
        machine = offered(*TO_CLOSING, DonePut(DONE))
        assert machine.offer(intent(2), "3-n1")
        for outcome in (IntentPut(True), GenerationRead(3), TableCommitted(2, "ods.orders", 6)):
            machine.apply(outcome)
        assert (
            machine.next_step() == RunListeners(intent(2), "heard 1", {"ods.orders": Reached(6, "3-n2", None, None)}) == machine.next_step()
        )
        assert machine.ledger.open is not None

    def test_what_an_epoch_lets_go_of_goes_when_it_is_done_and_not_before(self) -> None:
        whole = replace(MINE, facts=(FOUND, Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="n", visible=1, high=1, extent=None)))
        machine = offered(*TO_CLOSING, offer=whole)
        assert machine.ledger.tables.known(ORDERS).phase is TablePhase.CATCHING_UP
        machine.apply(DonePut(machine.ledger.decide_done((Committed("ods.orders", 5),), "heard 1")))
        assert machine.ledger.tables.known(ORDERS).phase is TablePhase.RELEASED

    def test_whoever_wrote_done_first_is_believed(self) -> None:
        """Two drivers roll one intent forward; the later one finds the record of the first."""
        machine = offered(*TO_CLOSING)
        theirs = replace(DONE, snapshots=(Committed("ods.orders", 4),), listeners="heard 1 by another")
        machine.apply(DonePut(theirs))
        assert (machine.ledger.snapshots, machine.ledger.listeners) == ({"ods.orders": 4}, "heard 1 by another")


class TestLostReplies:
    def test_a_put_that_won_although_its_reply_was_lost_is_ours(self) -> None:
        machine = offered(IntentPut(None))
        assert machine.next_step() == ReadIntent(1)
        machine.apply(IntentRead(MINE))
        assert machine.stage is Stage.VERIFYING
        assert machine.ledger.open == MINE

    def test_a_put_that_never_arrived_is_put_again_and_is_the_same(self) -> None:
        """The first one may still come: whichever arrives, it is one intent."""
        machine = offered(IntentPut(None), IntentRead(None))
        assert machine.next_step() == PutIntent(MINE)
        machine.apply(IntentPut(False))
        machine.apply(IntentRead(MINE))
        assert machine.ledger.identity == MINE.identity

    def test_a_lost_reply_of_a_commit_asks_for_the_table_again(self) -> None:
        """`publish.judge` tells whether it happened."""
        machine = offered(*TO_COMMITTING)
        assert machine.next_step() == CommitTables(MINE, MINE.entries) == machine.next_step()

    def test_a_lost_reply_of_done_puts_the_same_record_again(self) -> None:
        machine = offered(*TO_CLOSING)
        assert machine.next_step() == PutDone(DONE) == machine.next_step()


class TestOthers:
    def test_losing_to_an_older_driver_rolls_its_intent_forward_and_drops_ours(self) -> None:
        """L9: what it says is the epoch. Ours was planned from another state, and so was all that was staged on it."""
        older = replace(OLDER, facts=(FOUND, Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="theirs", visible=1, high=1, extent=None)))
        machine = offered(IntentPut(False), IntentRead(older))
        assert machine.ledger.open == older
        assert machine.ledger.tables.chunk_state(ORDERS, OUTSIDE) is ChunkState.ADOPTED
        machine.apply(GenerationRead(3))
        assert machine.next_step() == CommitTables(older, older.entries)
        for outcome in (TableCommitted(1, "ods.orders", 5), ListenersRan("")):
            machine.apply(outcome)
        machine.apply(DonePut(replace(DONE, identity=older.identity)))
        assert not machine.offer(intent(2), MINE.identity), "planned from the intent that lost"
        assert machine.stage is Stage.FREE
        assert machine.offer(intent(2), older.identity)

    def test_losing_to_a_newer_driver_is_the_end(self) -> None:
        machine = offered(IntentPut(False), IntentRead(NEWER))
        assert machine.stage is Stage.FENCED
        assert machine.ledger.epoch == 0, "nothing of it is ours"
        with pytest.raises(Fenced, match="a newer driver runs this pipeline: this is generation 3"):
            machine.next_step()

    def test_an_intent_of_our_own_generation_that_is_not_ours_is_the_end(self) -> None:
        """Somebody else believes to be this driver."""
        machine = offered(IntentPut(False), IntentRead(replace(MINE, nonce="another")))
        assert machine.stage is Stage.FENCED

    def test_a_won_intent_has_no_effect_when_a_newer_driver_has_begun_meanwhile(self) -> None:
        """H2: the number was free because it had been trimmed, or the newer one owns it now."""
        machine = offered(IntentPut(True))
        assert machine.next_step() == ReadGeneration(), "before any lake effect"
        machine.apply(GenerationRead(4))
        with pytest.raises(Fenced):
            machine.next_step()

    def test_after_the_end_nothing_is_taken(self) -> None:
        machine = offered(IntentPut(True), GenerationRead(4))
        for outcome in (IntentPut(True), IntentRead(None), GenerationRead(3), GenerationRead(4), ListenersRan(""), DonePut(DONE)):
            with refused(machine):
                machine.apply(outcome)
        with refused(machine):
            machine.offer(MINE, "")

    def test_a_record_of_our_generation_that_is_gone_stops_us(self) -> None:
        """The store was lost or restored under us."""
        for machine in (Coordinator(3, Ledger()), offered(IntentPut(True))):
            with refused(machine, Corrupt, "the record of this driver's generation is gone: 3, the newest is 2"):
                machine.apply(GenerationRead(2))


class TestStarting:
    def test_nothing_happens_before_the_generation_was_read_again(self) -> None:
        """A driver that was slow to start would let go of what a newer one relies on."""
        machine = Coordinator(3, Ledger())
        assert machine.next_step() == ReadGeneration()
        assert not machine.may_plan
        with refused(machine, InvariantBroken, "an intent is offered while another is under way"):
            machine.offer(MINE, "")
        machine.apply(GenerationRead(4))
        with pytest.raises(Fenced):
            machine.next_step()

    def test_an_intent_found_open_is_committed_first(self) -> None:
        """Whoever wrote it. Its tables may have it already; each of them is asked."""
        ledger = Ledger()
        ledger.apply_intent(OLDER)
        machine = started(ledger)
        assert machine.stage is Stage.COMMITTING
        assert machine.next_step() == CommitTables(OLDER, OLDER.entries)
        for outcome in (TableCommitted(1, "ods.orders", 5), ListenersRan("heard")):
            machine.apply(outcome)
        assert machine.next_step() == PutDone(Done(1, OLDER.identity, (Committed("ods.orders", 5),), "heard"))

    def test_an_open_intent_without_files_goes_straight_to_the_listeners(self) -> None:
        ledger = Ledger()
        ledger.apply_intent(replace(OLDER, entries=()))
        assert started(ledger).stage is Stage.LISTENING

    def test_a_newer_driver_that_began_while_the_records_were_loaded_keeps_us_from_the_open_intent(self) -> None:
        ledger = Ledger()
        ledger.apply_intent(OLDER)
        machine = Coordinator(3, ledger)
        machine.apply(GenerationRead(4))
        assert machine.stage is Stage.FENCED

    def test_recovery_twice_in_a_row_comes_to_the_same_end(self) -> None:
        """Seed 004: a restart hits the recovery of the restart before it."""
        ledgers = []
        for crashes in (0, 1, 2):
            ledger = Ledger()
            ledger.apply_intent(OLDER)
            for generation in range(3, 3 + crashes):
                started(copy.deepcopy(ledger), TableCommitted(1, "ods.orders", 5), generation=generation)
            machine = started(ledger, TableCommitted(1, "ods.orders", 5), ListenersRan("heard"), generation=3 + crashes)
            step = machine.next_step()
            assert isinstance(step, PutDone)
            machine.apply(DonePut(step.done))
            ledgers.append({**vars(ledger), "tables": vars(ledger.tables)})
        assert ledgers[0] == ledgers[1] == ledgers[2]
        assert ledgers[0]["snapshots"] == {"ods.orders": 5}, "it was closed without a commit"


class TestPlanning:
    """A9: the next epoch is planned from a won intent, and staged beside its commit where that does no harm."""

    def test_nothing_is_planned_from_an_intent_that_nobody_has_won(self) -> None:
        for machine in (offered(), offered(IntentPut(None)), offered(IntentPut(False)), offered(IntentPut(True))):
            assert not machine.may_plan

    def test_the_next_epoch_may_be_staged_while_a_plain_one_is_committed(self) -> None:
        for outcomes in (TO_COMMITTING, TO_LISTENING, TO_CLOSING, (*TO_CLOSING, DonePut(DONE))):
            assert offered(*outcomes).may_plan

    @pytest.mark.parametrize("change", [entry(empties=("shop.orders",)), entry(new_schema=2)])
    def test_behind_an_emptying_or_a_change_of_schema_the_next_epoch_waits(self, change: Entry) -> None:
        offer = intent(entries=(change,))
        for outcomes in (TO_COMMITTING, TO_LISTENING, TO_CLOSING):
            assert not offered(*outcomes, offer=offer).may_plan
        assert offered(*TO_CLOSING, DonePut(DONE), offer=offer).may_plan

    def test_the_next_intent_waits_for_done(self) -> None:
        for outcomes in (TO_COMMITTING, TO_LISTENING, TO_CLOSING):
            machine = offered(*outcomes)
            with refused(machine, InvariantBroken, "an intent is offered while another is under way"):
                machine.offer(intent(2), "3-n1")

    def test_an_intent_of_another_driver_is_not_ours_to_offer(self) -> None:
        machine = started()
        with refused(machine, InvariantBroken, "an intent of another generation is offered"):
            machine.offer(OLDER, "")

    def test_what_was_planned_from_another_intent_is_dropped(self) -> None:
        machine = started()
        before = state(machine)
        assert not machine.offer(MINE, "2-lost")
        assert state(machine) == before

    def test_an_intent_that_does_not_follow_is_never_put(self) -> None:
        """Once it is in the store nobody can fold the records any more."""
        machine = offered(*TO_CLOSING, DonePut(DONE))
        for wrong in (intent(3), replace(intent(2), after=11)):
            with refused(machine):
                machine.offer(wrong, "3-n1")


class TestRepeatedAndStale:
    STAGED: ClassVar[dict[Stage, Coordinator]] = {
        Stage.STARTING: Coordinator(3, Ledger()),
        Stage.FREE: started(),
        Stage.ASKING: offered(),
        Stage.READING_BACK: offered(IntentPut(None)),
        Stage.VERIFYING: offered(IntentPut(True)),
        Stage.COMMITTING: offered(*TO_COMMITTING),
        Stage.LISTENING: offered(*TO_LISTENING),
        Stage.CLOSING: offered(*TO_CLOSING),
        Stage.FENCED: offered(IntentPut(True), GenerationRead(4)),
    }
    OUTCOMES: ClassVar[dict[StageTrigger, Outcome]] = {
        StageTrigger.WON: IntentPut(True),
        StageTrigger.UNSURE: IntentPut(None),
        StageTrigger.ABSENT: IntentRead(None),
        StageTrigger.OURS: IntentRead(MINE),
        StageTrigger.OLDER: IntentRead(OLDER),
        StageTrigger.NEWER: GenerationRead(4),
        StageTrigger.STILL_OURS: GenerationRead(3),
        StageTrigger.HEARD: ListenersRan("x"),
        StageTrigger.CLOSED: DonePut(DONE),
    }

    @pytest.mark.parametrize("turn", OUTCOMES)
    @pytest.mark.parametrize("stage", Stage)
    def test_an_outcome_that_no_step_of_this_stage_has_is_refused(self, stage: Stage, turn: StageTrigger) -> None:
        machine = copy.deepcopy(self.STAGED[stage])
        assert machine.stage is stage
        if (stage, turn) in STAGES or (stage, turn) == (Stage.READING_BACK, StageTrigger.NEWER):
            return
        with refused(machine):
            machine.apply(self.OUTCOMES[turn])

    @pytest.mark.parametrize("stage", [stage for stage in Stage if stage is not Stage.COMMITTING])
    def test_a_commit_that_is_told_late_is_not_taken_for_one_of_the_next_epoch(self, stage: Stage) -> None:
        """Its table would be skipped there: a loss. The same reply twice is enough, or that of a try that was given up."""
        machine = copy.deepcopy(self.STAGED[stage])
        before = state(machine)
        with suppress(InvariantBroken):
            machine.apply(TableCommitted(1, "ods.orders", 5))
        assert state(machine) == before

    def test_a_late_commit_does_not_keep_the_next_epoch_from_a_table(self) -> None:
        """The same, told to its end."""
        machine = offered(*TO_CLOSING, DonePut(DONE))
        with suppress(InvariantBroken):
            machine.apply(TableCommitted(1, "ods.orders", 5))
        following = intent(2)
        assert machine.offer(following, "3-n1")
        for outcome in (IntentPut(True), GenerationRead(3)):
            machine.apply(outcome)
        machine.apply(TableCommitted(1, "ods.orders", 5))
        assert machine.next_step() == CommitTables(following, following.entries), "nor when it comes later still"

    def test_a_commit_of_a_table_that_the_epoch_does_not_touch_is_not_in_its_cut(self) -> None:
        both = intent(entries=(entry("ods.a"), entry("ods.b")))
        machine = offered(*TO_COMMITTING, offer=both)
        before = state(machine)
        with suppress(InvariantBroken):
            machine.apply(TableCommitted(1, "ods.c", 1))
        assert state(machine) == before

    @pytest.mark.parametrize("wrong", [replace(DONE, epoch=2), replace(DONE, identity="2-x")])
    def test_done_of_another_intent_closes_nothing(self, wrong: Done) -> None:
        machine = offered(*TO_CLOSING)
        with refused(machine):
            machine.apply(DonePut(wrong))

    def test_an_intent_of_another_epoch_that_is_read_back_changes_nothing(self) -> None:
        machine = offered(IntentPut(None))
        with refused(machine):
            machine.apply(IntentRead(replace(OLDER, epoch=2)))


def test_every_stage_is_reached_and_all_but_the_end_can_be_left() -> None:
    assert set(STAGES.values()) | {Stage.STARTING} == set(Stage)
    assert {before for before, _ in STAGES} | {Stage.FENCED} == set(Stage)
    assert {turn for _, turn in STAGES} == set(StageTrigger)


def test_files_of_an_intent_that_may_be_won_are_named() -> None:
    """A slow put may still win: what it names is not to be cleaned before its outcome is known, nor before it is done."""
    assert started().named == set()
    machine = offered()
    assert machine.named == {"f"}
    machine.apply(IntentPut(True))
    assert machine.named == {"f"}
