"""What must hold of a job's answers before they can become an intent. If it does not, the job's result is dropped and planned again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snowmelt.source.facts import Adopted
from snowmelt.source.planning import EpochPlan
from snowmelt.source.tables import Tables


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of the log lane: for which lake table, and where its rows begin."""

    target: str
    name: str
    first: int


@dataclass(frozen=True, slots=True)
class Message:
    """What a writer of an epoch's job answers."""

    generation: int
    epoch: int
    writer: int
    nonce: str
    seen: tuple[tuple[int, str], ...]
    """Of each source task whose rows it got, the nonce of the run that they came from."""
    files: tuple[StagedFile, ...]


def refusal(plan: EpochPlan, messages: Sequence[Message], *, writers: int, sources: int, tables: Tables) -> str | None:
    """Why a job's answers can't be committed; None if they can."""
    if any((message.generation, message.epoch) != (plan.generation, plan.epoch) for message in messages):
        return "an answer is of another job"
    if sorted(message.writer for message in messages) != list(range(writers)):
        return "answers are missing or come twice"
    runs: dict[int, str] = {}
    for message in messages:
        for source, nonce in message.seen:
            if runs.setdefault(source, nonce) != nonce:
                # Spark repeated a task for some of the writers only; the two runs need not have seen the same.
                return "writers saw two runs of one task"
    if len(runs) != sources:
        return "rows of a task are missing"
    for fact in plan.facts:
        if isinstance(fact, Adopted):
            reading = tables.reading(fact.incarnation, fact.ordinal)
            if reading is None or reading.report is None or reading.report.nonce != fact.nonce:
                return "a chunk was given back meanwhile"
    return None
