"""What must hold of a job's answers before they can become an intent. If it does not, the job's result is dropped and planned again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted
from snowmelt.planning.tables import Tables


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of the log lane: for which lake table, and where its rows begin."""

    target: str
    name: str
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a writer of an epoch's job answers."""

    generation: int
    epoch: int
    writer: int
    nonce: str
    seen: tuple[tuple[int, str], ...]
    """Of each source task that sends to it, the nonce of the run that it heard to its end; also of one that had no rows for it."""
    files: tuple[StagedFile, ...]


def refusal(plan: EpochPlan, messages: Sequence[Message], *, writers: int, sources: int | None, tables: Tables) -> str | None:
    """Why a job's answers can't be committed; None if they can.

    `sources` is the number of source tasks that each writer hears; None where each writer is its own only source.
    """
    if any((message.generation, message.epoch) != (plan.generation, plan.epoch) for message in messages):
        return "an answer is of another job"
    if sorted(message.writer for message in messages) != list(range(writers)):
        return "answers are missing or come twice"
    runs: dict[int, str] = {}
    for message in messages:
        if [source for source, _ in message.seen] != ([message.writer] if sources is None else list(range(sources))):
            return "rows of a task are missing"
        for source, nonce in message.seen:
            if runs.setdefault(source, nonce) != nonce:
                # Spark repeated a task for some of the writers only; the two runs need not have seen the same.
                return "writers saw two runs of one task"
    names = [file.name for message in messages for file in message.files]
    if len(set(names)) != len(names):
        return "a file is named twice"
    for fact in plan.facts:
        if isinstance(fact, Adopted):
            reading = tables.reading(fact.incarnation, fact.ordinal)
            if reading is None or reading.report is None or reading.report.nonce != fact.nonce:
                return "a chunk was given back meanwhile"
    return None
