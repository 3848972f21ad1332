"""Answers of a job become an intent only if they are all there and of this job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snowmelt.commit.checks import Message, StagedFile, refusal
from snowmelt.commit.records import Entry, intent_of
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import OUTSIDE, Adopted, Found, GivenBack, Incarnation, Launched, Reborn, Reported
from snowmelt.planning.tables import Tables

ORDERS = Incarnation(TableId("shop", "orders"), 1)
ADOPTED = Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="read", visible=10, high=20)


def planned(*facts: Adopted) -> EpochPlan:
    return EpochPlan(epoch=7, generation=3, follows="3-n6", after=10, upto=30, facts=facts, rules={}, given_back=())


def answer(writer: int, *, generation: int = 3, epoch: int = 7) -> Message:
    return Message(generation=generation, epoch=epoch, writer=writer, files=(StagedFile("ods.orders", f"f{writer}", 10),))


def judged(plan: EpochPlan, *messages: Message, tables: Tables | None = None) -> str | None:
    return refusal(plan, messages, writers=2, tables=tables or Tables())


def reading(nonce: str = "read") -> Tables:
    tables = Tables()
    for fact in (
        Found(ORDERS, "ods.orders", True, 1),
        Launched(ORDERS, OUTSIDE, 1, 10, 0),
        Reported(incarnation=ORDERS, ordinal=OUTSIDE, job=1, nonce=nonce, high=20, exact=True, schema=1, files=()),
    ):
        tables.apply(fact)
    return tables


def test_whole_answers_are_taken_in_any_order() -> None:
    assert judged(planned(), answer(0), answer(1)) is None
    assert judged(planned(), answer(1), answer(0)) is None


def test_an_epoch_without_tasks_needs_no_answers() -> None:
    assert refusal(planned(), [], writers=0, tables=Tables()) is None


@pytest.mark.parametrize("stale", [answer(1, generation=2), answer(1, generation=4), answer(1, epoch=6), answer(1, epoch=8)])
def test_an_answer_of_another_driver_or_epoch_is_refused(stale: Message) -> None:
    assert judged(planned(), answer(0), stale) == "an answer is of another job"


@pytest.mark.parametrize("writers", [(0,), (0, 0), (0, 1, 1), (0, 2), ()])
def test_answers_that_are_missing_or_come_twice_are_refused(writers: tuple[int, ...]) -> None:
    """A failed job's files are in no intent: a part of its answers is none."""
    assert judged(planned(), *(answer(writer) for writer in writers)) == "answers are missing or come twice"


class TestChunks:
    MESSAGES = (answer(0), answer(1))

    def test_what_the_plan_adopts_is_still_as_it_was_read(self) -> None:
        assert judged(planned(ADOPTED), *self.MESSAGES, tables=reading()) is None

    def test_a_chunk_that_was_given_back_meanwhile_stops_its_epoch(self) -> None:
        """The intent adopts exactly what its plan names, or is not written."""
        tables = reading()
        tables.apply(GivenBack(ORDERS, OUTSIDE, 1, "slow"))
        assert judged(planned(ADOPTED), *self.MESSAGES, tables=tables) == "a chunk was given back meanwhile"
        tables.apply(Launched(ORDERS, OUTSIDE, 2, 10, 0))
        assert judged(planned(ADOPTED), *self.MESSAGES, tables=tables) == "a chunk was given back meanwhile"

    def test_another_read_of_the_chunk_is_not_the_one_that_was_planned(self) -> None:
        assert judged(planned(ADOPTED), *self.MESSAGES, tables=reading("another")) == "a chunk was given back meanwhile"

    def test_a_chunk_of_an_incarnation_that_is_over_stops_its_epoch(self) -> None:
        tables = reading()
        tables.apply(Reborn(Incarnation(ORDERS.table, 2), 25, 1))
        assert judged(planned(ADOPTED), *self.MESSAGES, tables=tables) == "a chunk was given back meanwhile"

    def test_other_facts_of_a_plan_need_no_read(self) -> None:
        found = replace(planned(), facts=(Found(ORDERS, "ods.orders", True, 1),))
        assert judged(found, *self.MESSAGES) is None


def test_a_file_that_two_writers_name_is_refused() -> None:
    other = replace(answer(1), files=answer(0).files)
    assert judged(planned(), answer(0), other) == "a file is named twice"


def test_an_intent_says_what_its_plan_says() -> None:
    entry = Entry(target="ods.orders", uuid="u", buckets=2, schema=0, new_schema=None, base=4, empties=(), files=("f",))
    intent = intent_of(planned(ADOPTED), nonce="n7", time_ms=5, entries=(entry,), segment=9)
    assert (intent.epoch, intent.generation, intent.after, intent.upto, intent.facts) == (7, 3, 10, 30, (ADOPTED,))
    assert (intent.identity, intent.time_ms, intent.entries, intent.segment, intent.sequence_max) == ("3-n7", 5, (entry,), 9, 61)
