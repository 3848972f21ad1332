"""The ledger as one record, so that a restart folds a few intents and not the whole history. It adds nothing to the intents."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Committed, Watermark
from snowmelt.errors import check
from snowmelt.model.numbers import EpochNumber, GenerationNumber, LogOffset, SequenceNumber
from snowmelt.planning.facts import Incarnation, KeyEnds, SetAside
from snowmelt.planning.ordinals import Bounds, RangeSet
from snowmelt.planning.tables import Copy, Table, TablePhase


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    replaces: bool
    extent: KeyEnds | None
    complete: bool
    first: int
    """The ordinal of the first of `uppers`."""
    uppers: tuple[bytes, ...]
    adopted: tuple[tuple[int, int], ...]
    adopted_in: EpochNumber
    high: LogOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    incarnation: Incarnation
    target: str
    keyed: bool
    schema: int
    phase: TablePhase
    since: int
    copy: CopyState | None
    aside: SetAside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The state after epoch `epoch` was done."""

    epoch: EpochNumber
    identity: str
    generation: GenerationNumber
    upto: LogOffset
    sequence_max: SequenceNumber
    segment: int
    listeners: str
    tables: tuple[TableState, ...]
    snapshots: tuple[Committed, ...]
    last_commits: tuple[tuple[str, str], ...]
    watermarks: tuple[Watermark, ...]


def summarise(ledger: Ledger) -> Summary:
    check(ledger.open is None, "an open epoch is summed up", f"{ledger.epoch}")
    return Summary(
        epoch=ledger.epoch,
        identity=ledger.identity,
        generation=ledger.generation,
        upto=ledger.upto,
        sequence_max=ledger.sequence_max,
        segment=ledger.segment,
        listeners=ledger.listeners,
        tables=tuple(_table_state(table) for table in ledger.tables),
        snapshots=tuple(Committed(*pair) for pair in sorted(ledger.snapshots.items())),
        last_commits=tuple(sorted(ledger.last_commits.items())),
        watermarks=tuple(Watermark(*pair) for pair in sorted(ledger.watermarks.items())),
    )


def restore(summary: Summary) -> Ledger:
    ledger = Ledger()
    ledger.epoch, ledger.identity, ledger.generation = summary.epoch, summary.identity, summary.generation
    ledger.upto = ledger.done_upto = summary.upto
    ledger.segment = ledger.done_segment = summary.segment
    ledger.sequence_max, ledger.listeners = summary.sequence_max, summary.listeners
    ledger.snapshots = {committed.target: committed.snapshot for committed in summary.snapshots}
    ledger.last_commits = dict(summary.last_commits)
    ledger.watermarks = {watermark.target: watermark.time_ms for watermark in summary.watermarks}
    for state in summary.tables:
        ledger.tables.restore(_table(state))
    return ledger


def _table_state(table: Table) -> TableState:
    copy = None if table.copy is None else _copy_state(table.copy)
    return TableState(
        incarnation=table.incarnation,
        target=table.target,
        keyed=table.keyed,
        schema=table.schema,
        phase=table.phase,
        since=table.since,
        copy=copy,
        aside=table.aside,
    )


def _copy_state(copy: Copy) -> CopyState:
    bounds = copy.bounds
    uppers = tuple(bounds.upper(ordinal) for ordinal in range(bounds.first, bounds.last + 1))
    return CopyState(
        replaces=copy.replaces,
        extent=copy.extent,
        complete=copy.complete,
        first=bounds.first,
        uppers=uppers,
        adopted=tuple(copy.adopted),
        adopted_in=copy.adopted_in,
        high=copy.high,
    )


def _table(state: TableState) -> Table:
    copy = None if state.copy is None else _copy(state.copy)
    return Table(
        incarnation=state.incarnation,
        target=state.target,
        keyed=state.keyed,
        schema=state.schema,
        phase=state.phase,
        copy=copy,
        since=state.since,
        aside=state.aside,
    )


def _copy(state: CopyState) -> Copy:
    bounds = Bounds(first=state.first)
    bounds.extend(state.uppers)
    adopted = RangeSet([first for first, _ in state.adopted], [last for _, last in state.adopted])
    return Copy(
        replaces=state.replaces,
        bounds=bounds,
        extent=state.extent,
        complete=state.complete,
        adopted=adopted,
        adopted_in=state.adopted_in,
        high=state.high,
    )
