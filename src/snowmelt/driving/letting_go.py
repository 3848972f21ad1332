"""What is released, when, and in which order.

Laws:
- Log is deleted when done epochs are past it, no job reads it and no read of a chunk needs it. Its records are deleted before its data: a
  record without data would stop a driver that starts.
- A prepared transaction's events are deleted once an epoch with its second phase is done.
- A staged file is deleted when no intent can name it any more (`commit.cleaning`). The lake's references are read after the driver's own
  state was taken, so a file that is committed between the two is in one of them.
- Records are deleted below the oldest summary that is kept, and only once a newer summary exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.commit.cleaning import CleaningView, Leftovers, deletable
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Staged, StagedName, generation_of
from snowmelt.commit.summary import summarise
from snowmelt.driving.steps import DONES, INTENTS, LOG, SUMMARIES, Get, Machines, Newest, Put, Request, Steps, Trim, UnderWay
from snowmelt.relay.retention import Relay, SegmentRecord

SUMMARIES_KEPT: Final = 3


@dataclass(frozen=True, slots=True)
class AskUnderWay(Request[UnderWay]):
    """Jobs and reads of this driver that are not over."""


@dataclass(frozen=True, slots=True)
class DropAside(Request[None]):
    """Delete the events of prepared transactions."""

    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class DropRecords(Request[None]):
    """Delete records of the captured log."""

    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class DropSegments(Request[None]):
    """Delete the data of segments. Their records are gone."""

    segments: Sequence[SegmentRecord]


@dataclass(frozen=True, slots=True)
class Forget(Request[None]):
    """Drop what this process holds in memory of done epochs."""


@dataclass(frozen=True, slots=True)
class Discard(Request[None]):
    """Delete staged files, now or later, by lake table."""

    over: Sequence[tuple[str, Staged]]


@dataclass(frozen=True, slots=True)
class SweepFiles(Request[None]):
    """Search for files that no report names, if a search is due (`sweep`), in each table as `of_table` shows it."""

    standing: CleaningView


@dataclass(frozen=True, slots=True)
class IsTimeToSumUp(Request[bool]):
    """Whether to write a summary and trim records after this epoch."""


@dataclass(frozen=True, slots=True)
class SweepSegments(Request[None]):
    """Delete data of segments that no record can name any more (`Relay.leftover`)."""

    relay: Relay
    done: int
    """The record that the last done epoch names."""


@dataclass(frozen=True, slots=True)
class ListStaged(Request[list[str]]):
    """Every staged file that exists for a target."""

    target: str


@dataclass(frozen=True, slots=True)
class ListReferenced(Request[set[str]]):
    """The files that the target's snapshots refer to."""

    target: str


@dataclass(frozen=True, slots=True)
class DeleteFiles(Request[None]):
    target: str
    names: Sequence[str]


def let_go(machines: Machines, leftovers: Leftovers) -> Steps[None]:
    """Release, after an epoch is done, what no reader can ask for any more."""
    yield from let_go_of_log(machines)
    yield from Forget()
    standing = yield from stand(machines)
    over = leftovers.take(standing)
    if over:
        yield from Discard(over)
    yield from SweepFiles(standing)
    if (yield from IsTimeToSumUp()):
        yield from sweep_log(machines.relay, machines.ledger.done_segment)
        yield from sum_up(machines.ledger)


def let_go_of_log(machines: Machines) -> Steps[None]:
    ledger, relay = machines.ledger, machines.relay
    needed = [*(yield from AskUnderWay()).reads_from]
    if (visible := ledger.tables.lowest_visible()) is not None:
        needed.append(visible)
    relay.raise_floor(relay.decide_floor(ledger.done_upto, min(needed, default=None)))
    # Not what an open intent names: a newer driver may have looked for intents before that one was won, and continue from the one before.
    yield from drop(relay, ledger.done_segment)


def drop(relay: Relay, segment: int) -> Steps[None]:
    """Delete what is below the relay's floor. `segment`: the record that the intent of the last done epoch names."""
    gone, over = relay.deletable(segment), relay.over
    relay.forget(gone)
    if over:
        yield from DropAside([group.number for group in over])
    if gone:
        yield from DropRecords([record.number for record in gone])
        yield from DropSegments(gone)


def stand(machines: Machines) -> Steps[CleaningView]:
    """What decides about staged files, as of now."""
    ledger = machines.ledger
    asked = yield from AskUnderWay()
    under_way = {reading.launch.job for reading in ledger.tables.readings()}
    return CleaningView(
        generation=machines.generation,
        epoch=ledger.epoch,
        intent_generation=ledger.generation,
        jobs=asked.newest_job,
        under_way=under_way,
        named=machines.commit.named,
        rewrites=asked.rewrites,
    )


def of_table(standing: CleaningView, ledger: Ledger, target: str) -> CleaningView:
    """The same for one table, whose last done commit may be of a newer driver than those that rewrote its files."""
    return replace(standing, table_generation=generation_of(ledger.last_commits.get(target, "")))


def sweep(target: str, standing: CleaningView) -> Steps[int]:
    """Delete the staged files of a target that nothing needs, and count them. It may run late, also after its driver ended."""
    listed = yield from ListStaged(target)
    staged = [name for name in listed if deletable(StagedName.parse(name), standing)]
    if not staged:
        return 0
    standing = replace(standing, named=standing.named | (yield from ListReferenced(target)))
    doomed = [name for name in staged if deletable(StagedName.parse(name), standing)]
    yield from DeleteFiles(target, doomed)
    return len(doomed)


def sweep_log(relay: Relay, done: int) -> Steps[None]:
    """Remove records that a dead driver did not remove, and data that no record can name any more. `done` is the record that the
    last done epoch names."""
    held = relay.segments
    yield from Trim(LOG, min(held[0].number, done) if held else 0)
    yield from SweepSegments(relay, done)


def sum_up(ledger: Ledger) -> Steps[None]:
    """Write a summary of what is done, then trim everything below the oldest summary that is kept."""
    number = yield from Newest(SUMMARIES)
    last = (yield from Get(SUMMARIES, number)) if number else None
    if last is not None and last.epoch >= ledger.epoch:
        return
    summary = summarise(ledger)
    if (yield from Put(SUMMARIES, number + 1, summary)) != summary:
        return
    oldest = number + 2 - SUMMARIES_KEPT
    kept = (yield from Get(SUMMARIES, oldest)) if oldest > 0 else None
    if kept is None:
        return
    yield from Trim(INTENTS, kept.epoch)
    yield from Trim(DONES, kept.epoch)
    yield from Trim(SUMMARIES, oldest)
