"""Checks of a job's answers before they become an intent. If one fails, the job's result is dropped and planned again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snowmelt.model.numbers import EpochNumber, GenerationNumber
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted
from snowmelt.planning.tables import Tables


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of the log lane: its lake table, and where its rows begin."""

    target: str
    name: str
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The answer of one task of an epoch's job. A task reads its part of the log and writes it, so no row passes between tasks."""

    generation: GenerationNumber
    epoch: EpochNumber
    writer: int
    files: tuple[StagedFile, ...]


def refusal(plan: EpochPlan, messages: Sequence[Message], *, writers: int, tables: Tables) -> str | None:
    """Why a job's answers can't be committed; None if they can. A task that ran twice has one answer, from one of its runs."""
    if any((message.generation, message.epoch) != (plan.generation, plan.epoch) for message in messages):
        return "an answer is of another job"
    if sorted(message.writer for message in messages) != list(range(writers)):
        return "answers are missing or come twice"
    names = [file.name for message in messages for file in message.files]
    if len(set(names)) != len(names):
        return "a file is named twice"
    for fact in plan.facts:
        if isinstance(fact, Adopted):
            reading = tables.reading(fact.incarnation, fact.ordinal)
            if reading is None or reading.report is None or reading.report.nonce != fact.nonce:
                return "a chunk was given back meanwhile"
    return None
