"""The order of the commit's effects: from a staged job to a done epoch, and what follows from it.

`commit.coordinator` says which effect is next. This module says what goes with each of them.

Laws:
- A job becomes an intent only if all its answers are there and what it adopts is still wanted.
- The files of an intent stop being leftovers as soon as it is won, whichever driver wrote it: before anything is deleted.
- Watermarks are decided for the open epoch before any table is committed.
- Nothing is released before the done record exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from snowmelt.commit.checks import refusal
from snowmelt.commit.cleaning import Leftovers
from snowmelt.commit.coordinator import (
    CommitTables,
    DonePut,
    GenerationRead,
    IntentPut,
    IntentRead,
    ListenersRan,
    PutDone,
    PutIntent,
    ReadGeneration,
    ReadIntent,
    RunListeners,
    TableCommitted,
)
from snowmelt.commit.records import Committed, Entry, Intent, Staged, intent_of
from snowmelt.driving.entries import LogReport, Rescaled, build
from snowmelt.driving.letting_go import let_go
from snowmelt.driving.steps import DONES, INTENTS, Get, Machines, NewestGeneration, Put, Request, Steps
from snowmelt.planning.epochs import EpochPlan


@dataclass(frozen=True, slots=True)
class WinIntent(Request[bool | None]):
    """Put an intent if its number is free. None: the outcome is unknown."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class Learn(Request[None]):
    """The open intent is known. `ours`: this driver has just put it."""

    intent: Intent
    ours: bool


@dataclass(frozen=True, slots=True)
class EntryWork:
    """An entry that is to be committed, and the watermark that its table has with it."""

    entry: Entry
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class CommitEntries(Request[Sequence[Committed]]):
    """Commit each entry to its table, once, several at a time and in any order. The answer: those that are committed by now; none is fine.

    The others are asked for again, and one that is under way is not begun twice. If one fails, those that are under way come to their end
    first. Then the gravest error is raised.
    """

    intent: Intent
    works: tuple[EntryWork, ...]


@dataclass(frozen=True, slots=True)
class TellListeners(Request[str]):
    """Run the listeners, which may have run for this epoch before. The answer is their new state."""

    step: RunListeners


@dataclass(frozen=True, slots=True)
class StagedJob:
    """A log job whose tasks have answered."""

    plan: EpochPlan
    writers: int
    reports: Sequence[LogReport]
    rescaled: Rescaled | None = None


def offer(machines: Machines, job: StagedJob, staged: Callable[[str], Staged], *, nonce: str, now_ms: int) -> Steps[str]:
    """Make an intent of a job. The answer says why the job is dropped and planned again; it is empty if it is not. `staged` as in
    `entries.build`; `now_ms` is the time by the source's clock."""
    plan, ledger, relay = job.plan, machines.ledger, machines.relay
    refused = refusal(plan, [report.message for report in job.reports], writers=job.writers, tables=ledger.tables)
    if refused is not None:
        return refused
    entries = yield from build(plan, ledger, staged, job.reports, job.rescaled)
    if job.rescaled is not None and not _still(job.rescaled, entries):
        return "a lake table changed while its number of buckets was"
    time_ms, segment = relay.committed_by(plan.upto, now_ms), relay.number_at(plan.upto)
    intent = intent_of(plan, nonce=nonce, time_ms=time_ms, entries=entries, segment=segment)
    return "" if machines.commit.offer(intent, plan.follows) else "another intent was won meanwhile"


def _still(rescaled: Rescaled, entries: Sequence[Entry]) -> bool:
    """Whether the entries take out of a table the very rows that were staged anew."""
    return any(entry.target == rescaled.target and entry.base == rescaled.snapshot and entry.new_schema is not None for entry in entries)


def step(machines: Machines, leftovers: Leftovers) -> Steps[bool]:
    """Perform the next step of the commit's machine. False: there is none."""
    machine, ledger = machines.commit, machines.ledger
    match machine.next_step():
        case None:
            return False
        case PutIntent(intent):
            machine.apply(IntentPut((yield from WinIntent(intent))))
            yield from _learn(machines, leftovers, ours=True)
        case ReadIntent(epoch):
            machine.apply(IntentRead((yield from Get(INTENTS, epoch))))
            yield from _learn(machines, leftovers, ours=False)
        case ReadGeneration():
            machine.apply(GenerationRead((yield from NewestGeneration())))
        case CommitTables(intent, entries):
            watermarks = ledger.decide_watermarks()
            works = tuple(EntryWork(entry, watermarks.get(entry.target)) for entry in entries)
            for committed in (yield from CommitEntries(intent, works)):
                machine.apply(TableCommitted(intent.epoch, committed.target, committed.snapshot))
        case RunListeners() as listeners:
            machine.apply(ListenersRan((yield from TellListeners(listeners))))
        case PutDone(done):
            machine.apply(DonePut((yield from Put(DONES, done.epoch, done))))
            yield from let_go(machines, leftovers)
        case _ as never:
            assert_never(never)
    return True


def _learn(machines: Machines, leftovers: Leftovers, *, ours: bool) -> Steps[None]:
    intent = machines.ledger.open
    if intent is not None:
        leftovers.won(intent)
        yield from Learn(intent, ours)
