"""What a segment's statements and XA transactions do to tables. It is read when the segment gets its record.

Law: a statement is read against the shapes right before it: the known shapes, as changed by the statements before it. If a statement's
effect does not follow from these, its table is dropped (`Effect.DROPS`). Discovery then finds it in the catalogue, and it is copied.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from snowmelt.databases.contract.log import KnownTables, SegmentMeaning, TableEffect
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.ddl import (
    AlterColumns,
    CreateTable,
    DatabaseDefaults,
    DropDatabase,
    DropTable,
    Ignored,
    Merged,
    NotUnderstood,
    RenameTable,
    Rewrites,
    RowsAsText,
    SchemaChange,
    Truncate,
)
from snowmelt.databases.mysql.ddl.changes import MERGED, SEPARATE
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.statements import LoggedStatement, LoggedXa, changes_of, read_flagged_groups
from snowmelt.databases.mysql.preflight import why_foreign
from snowmelt.databases.mysql.types.columns import MySqlTable, own
from snowmelt.errors import RECOPY
from snowmelt.model.numbers import LogOffset
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Cut, Effect, Ending, Prepared
from snowmelt.segments import Segment

log = logging.getLogger(__name__)

_TEXT_MAX: Final = 300
_SECRETS: Final = re.compile(r"password|identified|connection|secret", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a statement does to one table. `why`: why it breaks the table, if it does."""

    table: TableId
    effect: Effect
    shape: MySqlTable | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    why: str = ""


def read_meaning(segment: Segment, first: int, known: KnownTables, *, refuse_cascades: bool) -> SegmentMeaning:
    """See `contract.log.SourceLog.read_meaning`."""
    shift = first - segment.start.offset
    cuts = tuple(Cut(LogOffset(cut.offset + shift), cut.time_s * 1000) for cut in segment.cuts)
    statements, of_xa = read_flagged_groups(segment)
    effects = _Statements(segment, known, refuse_cascades=refuse_cascades).effects(statements, shift) if statements else ()
    return SegmentMeaning(cuts, tuple(effects), tuple(_phase(one, segment.start.era, shift) for one in of_xa))


def _phase(logged: LoggedXa, era: int, shift: int) -> Prepared | Ending:
    """An XA transaction's step in the log, on the number line."""
    xid, offset = str(logged.xid), LogOffset(logged.offset + shift)
    if logged.committed is None:
        return Prepared(
            xid=xid, era=era, begins=logged.begins + shift, offset=offset, at=logged.at, bytes=logged.bytes, tables=logged.tables
        )
    return Ending(xid, offset, logged.committed)


class _Statements:
    """The statements of one segment, one after the other."""

    def __init__(self, segment: Segment, known: KnownTables, *, refuse_cascades: bool) -> None:
        details = details_of(segment)
        self._segment = segment
        self._server = Server(details.flavour, details.version, segment.identity)
        self._known = known
        self._now = {name: own(shape) for name, shape in known.shapes.items()}
        self._broken = set(known.broken)
        self._refuse_cascades = refuse_cascades

    def effects(self, statements: Iterable[LoggedStatement], shift: int) -> Iterator[TableEffect]:
        for logged in statements:
            changes = changes_of(
                logged,
                schemas=self._now.get,
                captured=self._known.captured,
                defaults={},
                server=self._server,
                lower_case_names=self._known.lower_case_names,
            )
            where = f"{self._segment.log}:{logged.offset}"
            outcomes = [outcome for change in changes for outcome in self._outcomes(change, logged, where)]
            for outcome in outcomes:
                self._follow(outcome)
                yield TableEffect(
                    offset=LogOffset(logged.offset + shift),
                    table=outcome.table,
                    effect=outcome.effect,
                    shape=outcome.shape,
                    renamed=outcome.renamed,
                    statement=_told(logged.sql) if outcome.shape is not None else "",
                    why=outcome.why,
                )

    def _follow(self, outcome: _Outcome) -> None:
        """Make a statement's outcome the known shape for the statements after it."""
        match outcome.effect:
            case Effect.DROPS:
                self._now.pop(outcome.table, None)
                self._broken.discard(outcome.table)
            case Effect.BREAKS:
                self._broken.add(outcome.table)
            case Effect.MAKES | Effect.RESHAPES | Effect.REWRITES | Effect.EMPTIES:
                if outcome.shape is not None:
                    self._now[outcome.table] = outcome.shape

    def _outcomes(self, change: SchemaChange, logged: LoggedStatement, where: str) -> Iterator[_Outcome]:
        text = _told(logged.sql)
        match change:
            case AlterColumns(table=name, after=MySqlTable() as after) | Rewrites(table=name, after=MySqlTable() as after) if (
                why := why_foreign(after)
            ):
                # A table that is not known yet is checked before it is copied.
                if name in self._now:
                    yield _breaks(name, why, f"at {where}: {text}", f"give it another engine; then {RECOPY}")
                else:
                    yield _Outcome(name, Effect.DROPS)
            case CreateTable(table):
                # Discovery leaves out a table that a foreign key changes without row events.
                yield _Outcome(table.id, Effect.DROPS)
            case AlterColumns(table=name, before=before, after=after, renamed=renamed, filled=filled, cascades=cascades):
                # A column that one statement drops and adds is another column of the same name.
                dropped = {column.name: "" for column in before.columns if column.name in filled and column.name not in renamed}
                columns = tuple(sorted({**dropped, **renamed}.items()))
                yield _Outcome(name, Effect.RESHAPES, after, columns)
                # Stored rows have a value in the new column, and the log has no event for it.
                if self._known.keyed(name) and any(value is not None for value in filled.values()):
                    log.warning(
                        "stored rows got a value in a new column, and the table is read again", extra={"table": str(name), "at": where}
                    )
                    yield _Outcome(name, Effect.REWRITES, after, columns)
                if cascades and self._refuse_cascades:
                    hint = f"make the key RESTRICT; then {RECOPY}; or set cascades: ignore, and its rows will differ"
                    yield _breaks(name, "a foreign key was added whose changes are not in the log", f"at {where}: {text}", hint)
            case DropTable(name):
                yield _Outcome(name, Effect.DROPS)
            case RenameTable(old, new, after):
                # The old name is dropped even if it is not captured: a prepared transaction may have changes of it.
                yield _Outcome(old, Effect.DROPS)
                if old in self._broken:
                    # The reason that keeps its changes out of the log, such as a foreign key, moves with the table.
                    self._broken.add(new)
                # Only the catalogue shows whether a MERGE table uses the new name, and whether the table is still broken.
                if after is None or after.engine.lower() == "myisam" or old in self._broken or not self._known.captured(new):
                    yield _Outcome(new, Effect.DROPS)
                else:
                    yield _Outcome(new, Effect.MAKES, after)
            case Truncate(name):
                now = self._now.get(name)
                yield _Outcome(name, Effect.DROPS) if now is None else _Outcome(name, Effect.EMPTIES, now)
            case Rewrites(name, after, reason):
                # A table that is not known yet is copied for the first time.
                if name in self._now:
                    log.warning("a statement changed stored rows, and its table is copied again", extra={"table": str(name), "why": reason})
                yield _Outcome(name, Effect.DROPS) if after is None else _Outcome(name, Effect.MAKES, after)
            case Merged(name):
                # A table that is not known yet is checked before it is copied.
                known = name in self._now
                yield _breaks(name, MERGED, f"at {where}: {text}", f"{SEPARATE}; then {RECOPY}") if known else _Outcome(name, Effect.DROPS)
            case DropDatabase(database):
                for name in sorted(self._known.listed.union(self._now)):
                    if name.database == database:
                        yield _Outcome(name, Effect.DROPS)
            case NotUnderstood(tables, _, reason):
                for name in tables:
                    log.warning("a statement can't be understood, and its table is copied again", extra={"table": str(name), "why": reason})
                    yield _Outcome(name, Effect.DROPS)
            case RowsAsText(verb, named):
                # A view, trigger or function may change any table. Only the catalogue of that moment had it.
                for name in sorted(self._known.listed.union(self._now)):
                    if change.may_change(name):
                        how = "names it" if name in named else "may reach it by a view, trigger or function"
                        yield self._as_text(name, f"{verb} that {how}, at {where}")
            case DatabaseDefaults() | Ignored():
                pass

    def _as_text(self, name: TableId, what: str) -> _Outcome:
        """A statement that is logged as text changed rows of the table. A table that is not known yet is copied after it."""
        hint = f"set binlog_format to ROW for every session; then {RECOPY}"
        if name not in self._now:
            return _Outcome(name, Effect.DROPS)
        return _breaks(name, "rows were changed by a statement that the log holds as text", what, hint)


def _told(sql: str) -> str:
    """A statement's text as an error may repeat it."""
    if _SECRETS.search(sql):
        return f"{sql.split(maxsplit=1)[0][:20]} … (its text may hold a secret)"
    return sql if len(sql) <= _TEXT_MAX else sql[:_TEXT_MAX] + "…"


def _breaks(name: TableId, fact: str, detail: str, hint: str) -> _Outcome:
    return _Outcome(name, Effect.BREAKS, why=str(name.stuck(fact, detail=detail, hint=hint)))
