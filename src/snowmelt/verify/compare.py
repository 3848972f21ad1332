"""A pipeline's tables compared, one verdict for each.

Order: the sums of all tables are read from the database first, then the lake has to come once to where the last of these reads ended,
then all lake tables are summed. What is equal is verified. Where sums differ the rows of just these classes go through the rounds of
`rounds`, a few tables at a time because a round mostly waits.

A table is *verified* at a place of the log, it *differs*, or it is *not verified* for a reason that is told: it is still being
copied, it is gone, the lake lags and does not move, the table was altered meanwhile. What can't be compared is never called equal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from snowmelt.databases.comparing.classes import Classes, Parting, Sums
from snowmelt.databases.comparing.digests import Hashes
from snowmelt.databases.comparing.rows import Detail, RowHashes, SourceRows
from snowmelt.databases.contract.comparing import ComparedTable
from snowmelt.databases.contract.tables import ReadMark, TableShape
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.errors import InvalidConfig, InvariantBroken, SnowmeltError, SourceDrift, Unavailable
from snowmelt.model.patterns import match_tables
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.store.objects import open_store
from snowmelt.verify.lake import LakeLook, LakeTable, row_name
from snowmelt.verify.rounds import DifferenceKind, LakeRows, WrongRows, find_wrong
from snowmelt.verify.standing import LakePosition, Standings

NAMED_MAX = 20
"""How many wrong rows of a table are named; all are counted."""
ROWS_AT_ONCE = 4_000_000
"""Rows whose hashes are held at once, on either side, of one table."""
TABLES_AT_ONCE = 4
_PATIENCE_S = 60.0
_TRIES_MAX = 5
_Read = TypeVar("_Read")


class TableOutcome(StrEnum):
    VERIFIED = "verified"
    DIFFERS = "differs"
    NOT_VERIFIED = "not verified"


@dataclass(frozen=True, slots=True)
class Difference:
    """One wrong row."""

    key: tuple[tuple[str, str], ...]
    """Names and texts of the key's columns; of a row without a key, or that was gone before it could be named, a name that follows from
    its content."""
    kind: DifferenceKind
    columns: tuple[str, ...] = ()
    """Which columns differ; empty where the row is on one side only, or changed again before it could be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    table: TableId
    target: str
    outcome: TableOutcome
    rows: int = 0
    """Of the source, when its sums were read."""
    ranges: int = 0
    """Classes that were compared."""
    position: str = ""
    """Where in the source's log the lake was when it was last looked at."""
    differing: int = 0
    differences: tuple[Difference, ...] = ()
    """The first of them."""
    reason: str = ""
    """Why it, or the rest of it, is not verified."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done, for progress lines."""

    table: TableId | None
    what: str
    done: int = 0
    of: int = 0


Watch = Callable[[Step], None]


def verify(
    settings: Settings,
    spark: Any,
    tables: Sequence[str] | None = None,
    watch: Watch = lambda _: None,
    *,
    patience_s: float | None = None,
) -> list[TableVerdict]:
    """Compare tables of a pipeline with the lake. `tables` are names or patterns; all of them, if it is None.

    `patience_s`: how long the lake may stand still before it counts as lagging.
    """
    patience_s = max(_PATIENCE_S, 3 * settings.pace.interval_s) if patience_s is None else patience_s
    return _Comparison(settings, spark, Standings(open_state(settings), patience_s=patience_s), watch).run(tables)


def open_state(settings: Settings) -> State:
    """The pipeline's records; a pipeline that never ran has none."""
    if settings.sink.fluss is not None:
        hint = "the table in the lake that Fluss is tiered to may be compared by a query of yours"
        raise InvalidConfig("only a lake can be verified, and this pipeline's sink is Fluss", hint=hint)
    state = State(open_store(settings.state))
    if not state.begun:
        raise InvalidConfig("the pipeline has no state yet", detail=str(settings.state), hint="`snowmelt run` makes it")
    return state


@dataclass(slots=True, kw_only=True)
class _TablePair:
    """A table on both sides, as it was when the comparison began."""

    known: Table
    shape: TableShape
    source: ComparedTable
    parting: Parting
    theirs: Sums
    marks: list[ReadMark]


class _Comparison:
    def __init__(self, settings: Settings, spark: Any, standings: Standings, watch: Watch) -> None:
        self.settings = settings
        self.spark = spark
        self.standings = standings
        self.watch = watch

    def run(self, wanted: Sequence[str] | None) -> list[TableVerdict]:
        standing = self.standings.look()
        self.era = standing.place.era if standing.place is not None else 0
        self.comparing = self.settings.source.compare(era=self.era)
        ignore_case = self.comparing.ignores_case
        chosen = _choose(standing, wanted, ignore_case=ignore_case)
        shapes = self.comparing.read_tables([known.incarnation.table for known in chosen])
        captured = match_tables(
            self.settings.tables, self.settings.exclude, ignore_case=ignore_case, never=self.settings.source.system_databases
        )
        there = self.comparing.read_tables(captured) if wanted is None else {}
        missing = [table for table in there if standing.ledger.tables.get(table) is None]
        verdicts: dict[TableId, TableVerdict] = {}
        pairs: list[_TablePair] = []
        for known in chosen:
            table = known.incarnation.table
            with _told(verdicts, known):
                refusal = _refusal(known, shapes.get(table))
                if refusal:
                    verdicts[table] = _not_verified(known, refusal)
                else:
                    pairs.append(self._open(known, shapes[table]))
        pairs, unequal = self._compare_sums(pairs, verdicts)
        with ThreadPoolExecutor(TABLES_AT_ONCE, thread_name_prefix="snowmelt-verify") as pool:
            for pair, verdict in zip(pairs, pool.map(self._compare_rows, pairs, unequal), strict=True):
                verdicts[pair.shape.id] = verdict
        told = [verdicts[known.incarnation.table] for known in chosen]
        absent = "the pipeline does not have it yet"
        return told + [TableVerdict(table=table, target="", outcome=TableOutcome.NOT_VERIFIED, reason=absent) for table in missing]

    def _open(self, known: Table, shape: TableShape) -> _TablePair:
        """Read the sums of a table from the database."""
        table = shape.id
        source = self.comparing.table(shape, keyed=known.keyed)
        self.watch(Step(table, "reading the database"))
        parting = source.part()
        sums, marks = source.sums(parting, lambda done, of: self.watch(Step(table, "reading the database", done, of)))
        return _TablePair(known=known, shape=shape, source=source, parting=parting, theirs=sums, marks=marks)

    def _compare_sums(self, pairs: list[_TablePair], verdicts: dict[TableId, TableVerdict]) -> tuple[list[_TablePair], list[Classes]]:
        """Verdicts of tables whose sums are equal; the others, and which of their classes are not."""
        if not pairs:
            return [], []
        self.watch(Step(None, "waiting for the lake"))
        try:
            standing = self.standings.wait(max(mark.high for pair in pairs for mark in pair.marks))
        except Unavailable as behind:
            verdicts.update({pair.shape.id: _not_verified(pair.known, str(behind)) for pair in pairs})
            return [], []
        rest, unequal = [], []
        for index, pair in enumerate(pairs):
            with _told(verdicts, pair.known):
                self.watch(Step(pair.shape.id, "reading the lake", index, len(pairs)))
                ours, at = self.read_lake(pair, standing, LakeTable.sums)
                classes = pair.theirs.unequal(ours)
                if len(classes):
                    rest.append(pair)
                    unequal.append(classes)
                else:
                    verdicts[pair.shape.id] = _verified(pair, at.place)
        return rest, unequal

    def read_lake(self, pair: _TablePair, standing: LakePosition, read: Callable[[LakeTable], _Read]) -> tuple[_Read, LakePosition]:
        """Read the lake's table at a standing. If its snapshot is expired before that is done, the next one's is read."""
        for _ in range(_TRIES_MAX):
            try:
                return read(self._lake(pair, standing)), standing
            except Unavailable:
                before, standing = standing, self.standings.look()
                if standing.snapshot(pair.known.target) == before.snapshot(pair.known.target):
                    raise
        raise Unavailable("a lake table's snapshots are expired before they can be read", detail=pair.known.target)

    def _lake(self, pair: _TablePair, standing: LakePosition) -> LakeTable:
        """The lake's table, if it is still the one that the comparison began with."""
        table = pair.shape.id
        now = standing.ledger.tables.get(table)
        if now is None or now.incarnation != pair.known.incarnation or not _is_copied(now) or now.schema != pair.known.schema:
            raise SourceDrift("the table was emptied, altered or copied again meanwhile", detail=str(table), hint="verify it again")
        look = LakeLook(
            warehouse=self.settings.sink.warehouse,
            target=pair.known.target,
            snapshot=standing.snapshot(pair.known.target),
            forms=pair.source.forms,
            parting=pair.parting,
            keyed=pair.known.keyed,
        )
        return LakeTable(self.spark, look)

    def _compare_rows(self, pair: _TablePair, unequal: Classes) -> TableVerdict:
        wrong: list[WrongRows] = []
        reason = ""
        groups = list(_groups(unequal, pair.theirs))
        for index, classes in enumerate(groups):
            self.watch(Step(pair.shape.id, "comparing rows", index, len(groups)))
            try:
                wrong.append(find_wrong(_TableWorld(self, pair), classes, keyed=pair.known.keyed))
            except InvariantBroken:
                raise
            except SnowmeltError as error:
                # What was found before stays found.
                reason = str(error)
                break
        differing, unsettled = sum(len(one.keys) for one in wrong), sum(one.unsettled for one in wrong)
        reason = reason or (f"{unsettled} rows change too often to be compared" if unsettled else "")
        if not differing:
            return _not_verified(pair.known, reason) if reason else _verified(pair, wrong[-1].place)
        verdict = replace(_verified(pair, wrong[-1].place), outcome=TableOutcome.DIFFERS, differing=differing, reason=reason)
        return replace(verdict, differences=self._name(pair, wrong))

    def _name(self, pair: _TablePair, wrong: list[WrongRows]) -> tuple[Difference, ...]:
        """The first wrong rows by their keys and columns. They may have changed again since; then their columns are not told."""
        kinds = [(int(key), kind) for one in wrong for key, kind in zip(one.keys.tolist(), one.kinds, strict=True)][:NAMED_MAX]
        named = np.array([key for key, _ in kinds], np.uint64)
        theirs: dict[int, Detail] = {}
        ours: dict[int, Detail] = {}
        # That rows are wrong does not depend on whether they can still be named.
        with contextlib.suppress(SourceDrift, Unavailable):
            theirs, mark = pair.source.details(named)
            ours, _ = self.read_lake(pair, self.standings.wait(mark.high), lambda table: table.details(named))
        expected = _rows_by_key([one.expected for one in wrong])
        found = _rows_by_key([one.found for one in wrong])
        differences = []
        for key, kind in kinds:
            their, our = theirs.get(key), ours.get(key)
            columns: tuple[str, ...] = ()
            if their and our and (their.row, our.row) == (expected.get(key), found.get(key)):
                both = zip(pair.source.forms.names, their.columns, our.columns, strict=True)
                columns = tuple(name for name, one, other in both if one != other)
            differences.append(Difference(_key_of(pair, key, their or our), kind, columns))
        return tuple(differences)


class _TableWorld:
    """`rounds.World` of a real table."""

    def __init__(self, comparison: _Comparison, pair: _TablePair) -> None:
        self._comparison = comparison
        self._pair = pair

    def source(self, classes: Classes) -> SourceRows:
        return self._pair.source.rows(self._pair.parting, classes)

    def lake(self, classes: Classes, after: Position) -> LakeRows:
        standing = self._comparison.standings.wait(after)
        rows, at = self._comparison.read_lake(self._pair, standing, lambda table: table.rows(classes))
        return LakeRows(rows, at.place)

    def changes(self, after: Position, upto: Position) -> RowHashes:
        return self._pair.source.changes(after, upto)

    def classes(self, keys: Hashes, among: Classes) -> Classes:
        return self._pair.parting.of_keys(keys, among)


@contextlib.contextmanager
def _told(verdicts: dict[TableId, TableVerdict], known: Table) -> Iterator[None]:
    """What keeps a table from being compared is its verdict, and the others continue; a bug of ours is not."""
    try:
        yield
    except InvariantBroken:
        raise
    except SnowmeltError as error:
        verdicts[known.incarnation.table] = _not_verified(known, str(error))


def _choose(standing: LakePosition, wanted: Sequence[str] | None, *, ignore_case: bool) -> list[Table]:
    known = sorted(standing.ledger.tables, key=lambda table: table.incarnation.table)
    if not known:
        raise InvalidConfig("the pipeline has no tables yet", hint="`snowmelt run` finds them")
    if wanted is None:
        return [table for table in known if table.phase is not TablePhase.GONE]
    for pattern in wanted:
        matches = match_tables([pattern], ignore_case=ignore_case)
        if not any(matches(table.incarnation.table) for table in known):
            raise InvalidConfig(f"the pipeline has no table {pattern}", hint="database.table, with * and ?")
    matches = match_tables(wanted, ignore_case=ignore_case)
    return [table for table in known if matches(table.incarnation.table)]


def _is_copied(known: Table) -> bool:
    return known.phase in (TablePhase.STREAMING, TablePhase.RELEASED) and known.copy is None


def _refusal(known: Table, shape: TableShape | None) -> str:
    if known.phase is TablePhase.GONE or shape is None:
        return "the table is gone from the database"
    if known.aside is not None:
        return f"the table is set aside: {known.aside.why}"
    if not _is_copied(known):
        return f"the table is still being copied ({known.phase.value.replace('_', ' ')})"
    return ""


def _verified(pair: _TablePair, place: Position | None) -> TableVerdict:
    return TableVerdict(
        table=pair.shape.id,
        target=pair.known.target,
        outcome=TableOutcome.VERIFIED,
        rows=int(pair.theirs.counts.sum()),
        ranges=pair.parting.count,
        position=str(place) if place is not None else "",
    )


def _not_verified(known: Table, reason: str) -> TableVerdict:
    return TableVerdict(table=known.incarnation.table, target=known.target, outcome=TableOutcome.NOT_VERIFIED, reason=reason)


def _groups(classes: Classes, sums: Sums) -> Iterator[Classes]:
    """Classes whose rows fit into memory together."""
    group: list[int] = []
    rows = 0
    for one in classes.tolist():
        group.append(one)
        rows += int(sums.counts[one])
        if rows >= ROWS_AT_ONCE:
            yield np.array(group, np.int64)
            group, rows = [], 0
    if group:
        yield np.array(group, np.int64)


def _rows_by_key(parts: list[RowHashes]) -> dict[int, int]:
    rows = RowHashes.joined(parts)
    return dict(zip(rows.keys.tolist(), rows.rows.tolist(), strict=True))


def _key_of(pair: _TablePair, key: int, detail: Detail | None) -> tuple[tuple[str, str], ...]:
    if detail is None or not pair.source.forms.named_by:
        return (("row", row_name(key)),)
    return tuple(zip(pair.source.forms.named_by, detail.key, strict=True))
