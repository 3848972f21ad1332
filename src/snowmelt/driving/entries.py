"""What an epoch does to each lake table: the entries of its intent.

Laws:
- A keyed table is emptied where its source was: emptied, made anew, or found again under a name for which the lake has rows.
- A change table is never emptied: the log lane writes a row that says so (`Emptied`).
- A change of columns comes after everything else of its epoch. Whether the lake can hold it is checked before any task starts.
- A lake table whose source is set aside does not change.
- Files of chunks come first, then those of the log by range: a streaming reader of the lake sees them in this order.
- An entry that gives a table another number of buckets takes out all its files and brings the same rows anew, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from snowmelt.commit.checks import Message
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Reshape, Staged
from snowmelt.driving.steps import Request, Steps
from snowmelt.errors import SourceDrift, check
from snowmelt.model.numbers import LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted, Found, Reborn, Reshaped, Truncated
from snowmelt.relay.retention import Relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled:
    """All rows of a lake table, staged by another number of buckets (`maintenance.rescale`)."""

    table: TableId
    target: str
    buckets: int
    snapshot: int
    """The table's newest one, whose rows they are; 0: it has none."""
    staged: tuple[Staged, ...]


@dataclass(slots=True, kw_only=True)
class TargetWork:
    """What an epoch does to one lake table."""

    table: TableId
    keyed: bool = True
    empties: tuple[str, ...] = ()
    schema: int | None = None
    """The number of its source's shape from now on."""
    anew: bool = False
    """This epoch removes all rows that the lake has, so old files need not be read with the new columns."""
    buckets: int | None = None
    """The number of buckets from now on; None: as before."""
    files: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogReport:
    """The answer of one task of the log lane."""

    message: Message
    messages: Mapping[str, tuple[bytes, ...]]
    """What the lake's commit needs to know of the files, by lake table."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """An order to a change table: write that its source was emptied at an offset."""

    table: TableId
    target: str
    at: LogOffset
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNow:
    """What an intent holds of a target (`Entry`)."""

    uuid: str
    buckets: int
    schema: int
    base: int
    preface: tuple[bytes, ...]
    """The beginning of an entry's messages."""
    change: Reshape | None
    """The change that gives the target its new columns."""


@dataclass(frozen=True, slots=True)
class Describe(Request[Mapping[str, TargetNow]]):
    """The current state of each of these targets, and what the work changes in it. `TableStuck`: of one it is unknown, or impossible."""

    works: Mapping[str, TargetWork]


def build(
    plan: EpochPlan,
    ledger: Ledger,
    staged: Callable[[str], Staged],
    reports: Iterable[LogReport],
    rescaled: Rescaled | None = None,
) -> Steps[tuple[Entry, ...]]:
    """The entries of a plan. `staged`: the files of the read with a nonce. `reports`: of its log job, in any order. `rescaled`: what it
    does besides, to a table that it brings nothing else."""
    work = targets_of(plan, ledger)
    for fact in plan.facts:
        if isinstance(fact, Adopted):
            one, rows = _of(work, ledger, fact.incarnation.table), staged(fact.nonce)
            one.files += rows.files
            one.messages += rows.messages
    sources = {table.target: table.incarnation.table for table in ledger.tables} | {target: one.table for target, one in work.items()}
    for report in sorted(reports, key=lambda report: report.message.writer):
        for file in report.message.files:
            work.setdefault(file.target, TargetWork(table=sources[file.target])).files.append(file.name)
        for target, messages in report.messages.items():
            work.setdefault(target, TargetWork(table=sources[target])).messages += messages
    if rescaled is not None:
        check(rescaled.target not in work, "an epoch rescales a table and changes it besides", rescaled.target)
        work[rescaled.target] = _rescale(rescaled)
    now = (yield from Describe(work)) if work else {}
    entries = (_entry(ledger, target, work[target], now[target]) for target in sorted(work))
    return tuple(entry for entry in entries if entry.files or entry.empties or entry.new_schema is not None)


def targets_of(plan: EpochPlan, ledger: Ledger) -> dict[str, TargetWork]:
    """What the plan's facts alone do to lake tables."""
    work: dict[str, TargetWork] = {}
    untouched = plan.untouched(ledger.tables)
    for fact in plan.facts:
        if fact.incarnation.table in untouched:
            continue
        match fact:
            case Found(incarnation, target, keyed, schema):
                one = work.setdefault(target, TargetWork(table=incarnation.table, keyed=keyed))
                _begin_anew(one, incarnation.table, schema, holds=target in ledger.last_commits)
            case Reborn(incarnation, _, schema):
                _begin_anew(_of(work, ledger, incarnation.table), incarnation.table, schema, holds=True)
            case Truncated(incarnation):
                one = _of(work, ledger, incarnation.table)
                one.empties = (str(incarnation.table),) if one.keyed else ()
            case Reshaped(incarnation, _, schema):
                _of(work, ledger, incarnation.table).schema = schema
            case _:
                pass
    return work


def emptied_by(plan: EpochPlan, ledger: Ledger, relay: Relay) -> tuple[Emptied, ...]:
    """The change tables that must write that their sources were emptied, where and when."""
    found: list[Emptied] = []
    untouched = plan.untouched(ledger.tables)
    for fact in plan.facts:
        if fact.incarnation.table in untouched:
            continue
        match fact:
            case Found(incarnation, target, False, _, at) if target in ledger.last_commits:
                found.append(Emptied(incarnation.table, target, at, relay.time_at(at) or 0))
            case Reborn(incarnation, at) | Truncated(incarnation, at):
                table = ledger.tables.get(incarnation.table)
                if table is not None and not table.keyed:
                    found.append(Emptied(incarnation.table, table.target, at, relay.time_at(at) or 0))
            case _:
                pass
    return tuple(found)


def _of(work: dict[str, TargetWork], ledger: Ledger, name: TableId) -> TargetWork:
    table = ledger.tables.get(name)
    if table is None:
        raise SourceDrift("a table that is not known changes", detail=str(name))
    return work.setdefault(table.target, TargetWork(table=name, keyed=table.keyed))


def _rescale(rescaled: Rescaled) -> TargetWork:
    return TargetWork(
        table=rescaled.table,
        empties=(str(rescaled.table),) if rescaled.snapshot else (),
        buckets=rescaled.buckets,
        files=[name for one in rescaled.staged for name in one.files],
        messages=[message for one in rescaled.staged for message in one.messages],
    )


def _begin_anew(one: TargetWork, name: TableId, schema: int, *, holds: bool) -> None:
    one.schema, one.anew = schema, one.keyed
    if one.keyed and holds:
        one.empties = (str(name),)


def _entry(ledger: Ledger, target: str, one: TargetWork, now: TargetNow) -> Entry:
    return Entry(
        target=target,
        uuid=now.uuid,
        buckets=now.buckets,
        schema=now.schema,
        new_schema=None if now.change is None else now.change.schema,
        base=now.base,
        empties=one.empties,
        files=tuple(one.files),
        messages=(*now.preface, *one.messages),
        previous=ledger.last_commits.get(target, ""),
        shape=b"" if now.change is None else now.change.content,
    )
