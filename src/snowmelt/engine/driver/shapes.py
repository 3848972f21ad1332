"""Shapes of tables: which is in force where, and what the log's statements make of them.

Laws:
- A schema number of the machines stands for one shape, recorded before anything names the number. Numbers are a driver's own
  (its generation is in them), so none is ever given to another shape, and one that was let go of never comes back.
- Statements are read once, when their segment gets its record, against the shapes where capture is; the record holds the outcome.
  Whoever reads the log later reads it with these numbers, and never the statements again.
- What a statement does is told only from shapes that the log itself gives: those of the ledger's tables and what later statements made
  of them. A catalogue's shape is of another moment, and a statement applied to it might be in it already; a new table's text leaves out
  what it inherits. So a table whose shape is not known, or that is created, is sent to the catalogue: it is gone here, found there, and
  copied.
- A statement after which the log lacks changes of a table (rows as text, a foreign key that cascades, a MERGE table that names it) breaks
  that table, and no other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from snowmelt.databases.contract.patterns import TablePredicate
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
from snowmelt.databases.mysql.log.statements import LoggedStatement, changes_of
from snowmelt.databases.mysql.preflight import why_foreign
from snowmelt.databases.mysql.types.columns import MySqlTable, own
from snowmelt.engine.driver.state import Shape, State
from snowmelt.errors import RECOPY, check
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect, TableStatement
from snowmelt.segments import Segment

log = logging.getLogger(__name__)

_COUNT_BITS: Final = 20
_TEXT_MAX: Final = 300
_SECRETS: Final = re.compile(r"password|identified|connection|secret", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a statement does to one table. `why`: of one that it breaks."""

    table: TableId
    effect: Effect
    shape: Shape | None = None
    why: str = ""


class Shapes:
    """The numbers, and the shapes where capture is. Used by the thread that owns the machines."""

    def __init__(
        self,
        state: State,
        generation: int,
        server: Server,
        *,
        captured: TablePredicate,
        keyed: TablePredicate,
        lower_case_names: bool,
        refuse_cascades: bool,
    ) -> None:
        self._state = state
        self._generation = generation
        self._server = server
        self._captured = captured
        self._keyed = keyed
        self._count = 0
        self._known: dict[int, Shape] = {}
        self._now: dict[TableId, MySqlTable] = {}
        self._broken: set[TableId] = set()
        """Tables of which the log lacks changes, or did when this driver started."""
        self._lower_case = lower_case_names
        self._refuse_cascades = refuse_cascades
        self.listed: frozenset[TableId] = frozenset()
        """Tables that the catalogue had when it was read last. The ledger may be about to find one of them."""
        self.touched: dict[TableId, int] = {}
        """Where the last statement that concerned a table lies, of those that are held or that this driver recorded."""

    # ---- numbers

    def number(self, shape: Shape) -> int:
        """A number for a shape; durable on return."""
        self._count += 1
        check(self._count < 1 << _COUNT_BITS, "a driver numbers more shapes than it can")
        number = self._generation << _COUNT_BITS | self._count
        self._state.put_shape(number, shape)
        self._known[number] = shape
        return number

    def of(self, number: int) -> Shape:
        """The shape of a number. One that is missing stops the pipeline."""
        if number not in self._known:
            self._known[number] = self._state.shape(number)
        return self._known[number]

    def forget(self, needed: set[int], intent_generation: int) -> None:
        """Let go of numbers that nothing refers to: those of this driver, and of older ones once none of these can win an intent."""
        numbers = [number for number in self._state.shapes() if number not in needed]
        gone = [n for n in numbers if n >> _COUNT_BITS == self._generation or n >> _COUNT_BITS < min(intent_generation, self._generation)]
        self._state.trim_shapes(gone)
        for number in gone:
            self._known.pop(number, None)

    def forget_touched(self, upto: int) -> None:
        """Drop the places of statements up to `upto`: the catalogue and the ledger are both past them."""
        self.touched = {name: offset for name, offset in self.touched.items() if offset > upto}

    # ---- where capture is

    def begin(self, schemas: Mapping[TableId, int], aside: Iterable[TableId], statements: Iterable[TableStatement]) -> None:
        """The tables of the ledger with their numbers, those that are set aside, and what the chain says behind it."""
        self._now = {table: own(self.of(number).table) for table, number in schemas.items()}
        self._broken = set(aside)
        self.follow(statements)

    def found(self, name: TableId, number: int, upto: int) -> None:
        """A table is in the ledger, which is at `upto`, with this shape. If a statement lies ahead, that one was read without it and says
        so already."""
        if self.touched.get(name, upto) <= upto:
            self._now[name] = own(self.of(number).table)

    def follow(self, statements: Iterable[TableStatement]) -> None:
        """Take up statements as they were recorded, by whomever."""
        for statement in statements:
            self.touched[statement.table] = statement.offset
            match statement.effect:
                case Effect.DROPS:
                    self._now.pop(statement.table, None)
                    self._broken.discard(statement.table)
                case Effect.MAKES | Effect.RESHAPES | Effect.REWRITES:
                    self._now[statement.table] = own(self.of(statement.schema).table)
                case Effect.BREAKS:
                    self._broken.add(statement.table)
                case Effect.EMPTIES:
                    pass

    def read(self, segment: Segment, statements: Iterable[LoggedStatement], first: int) -> tuple[TableStatement, ...]:
        """What the statements of a segment do to tables; their shapes are recorded. `first` is where it begins on the number line."""
        found: list[TableStatement] = []
        for logged in statements:
            offset = first + logged.offset - segment.start.offset
            changes = changes_of(
                logged,
                schemas=self._now.get,
                captured=self._captured,
                defaults={},
                server=self._server,
                lower_case_names=self._lower_case,
            )
            where = f"{segment.log}:{logged.offset}"
            made = [self._statement(offset, outcome) for change in changes for outcome in self._outcomes(change, logged, where)]
            self.follow(made)
            found += made
        return tuple(found)

    def _statement(self, offset: int, outcome: _Outcome) -> TableStatement:
        number = 0 if outcome.shape is None else self.number(outcome.shape)
        return TableStatement(offset, outcome.table, outcome.effect, number, why=outcome.why)

    def _outcomes(self, change: SchemaChange, logged: LoggedStatement, where: str) -> Iterator[_Outcome]:
        text = _told(logged.sql)
        match change:
            case AlterColumns(name, after=MySqlTable() as after) | Rewrites(name, after=MySqlTable() as after) if why := why_foreign(after):
                # One that nobody has yet is looked at before it is copied.
                if name in self._now:
                    yield _breaks(name, why, f"at {where}: {text}", f"give it another engine; then {RECOPY}")
                else:
                    yield _Outcome(name, Effect.DROPS)
            case CreateTable(table):
                # One that a foreign key changes without a word in the log is left out when it is found.
                yield _Outcome(table.id, Effect.DROPS)
            case AlterColumns(name, before, after, renamed, filled, cascades):
                # One that is dropped and added by one statement is another column of the same name.
                dropped = {column.name: "" for column in before.columns if column.name in filled and column.name not in renamed}
                shape = Shape(after, tuple(sorted({**dropped, **renamed}.items())), text)
                yield _Outcome(name, Effect.RESHAPES, shape)
                # Rows that are stored have a value in the new column, and no event says so.
                if self._keyed(name) and any(value is not None for value in filled.values()):
                    log.warning(
                        "stored rows got a value in a new column, and the table is read again", extra={"table": str(name), "at": where}
                    )
                    yield _Outcome(name, Effect.REWRITES, shape)
                if cascades and self._refuse_cascades:
                    hint = f"make the key RESTRICT; then {RECOPY}; or set cascades: ignore, and its rows will differ"
                    yield _breaks(name, "a foreign key was added whose changes are not in the log", f"at {where}: {text}", hint)
            case DropTable(name):
                yield _Outcome(name, Effect.DROPS)
            case RenameTable(old, new, after):
                # One that is not captured is named too: what is prepared may have changes of it.
                yield _Outcome(old, Effect.DROPS)
                if old in self._broken:
                    # Whatever keeps changes out of the log, a foreign key for one, goes with the table.
                    self._broken.add(new)
                # Whether a MERGE table names it by its new name, or what broke it is over, only the catalogue tells.
                if after is None or after.engine.lower() == "myisam" or old in self._broken or not self._captured(new):
                    yield _Outcome(new, Effect.DROPS)
                else:
                    yield _Outcome(new, Effect.MAKES, Shape(after, statement=text))
            case Truncate(name):
                now = self._now.get(name)
                yield _Outcome(name, Effect.DROPS) if now is None else _Outcome(name, Effect.EMPTIES, Shape(now, statement=text))
            case Rewrites(name, after, reason):
                # One that nobody has yet is copied for the first time.
                if name in self._now:
                    log.warning("a statement changed stored rows, and its table is copied again", extra={"table": str(name), "why": reason})
                yield _Outcome(name, Effect.DROPS) if after is None else _Outcome(name, Effect.MAKES, Shape(after, statement=text))
            case Merged(name):
                # One that nobody has yet is looked at before it is copied.
                known = name in self._now
                yield _breaks(name, MERGED, f"at {where}: {text}", f"{SEPARATE}; then {RECOPY}") if known else _Outcome(name, Effect.DROPS)
            case DropDatabase(database):
                for name in sorted(self.listed.union(self._now)):
                    if name.database == database:
                        yield _Outcome(name, Effect.DROPS)
            case NotUnderstood(tables, _, reason):
                for name in tables:
                    log.warning("a statement can't be understood, and its table is copied again", extra={"table": str(name), "why": reason})
                    yield _Outcome(name, Effect.DROPS)
            case RowsAsText(verb, named):
                # A view, trigger or function may lead to any table, and only the catalogue of that moment knew which.
                for name in sorted(self.listed.union(self._now)):
                    if change.may_change(name):
                        how = "names it" if name in named else "may reach it by a view, trigger or function"
                        yield self._as_text(name, f"{verb} that {how}, at {where}")
            case DatabaseDefaults() | Ignored():
                pass

    def _as_text(self, name: TableId, what: str) -> _Outcome:
        """One that nobody has yet is copied behind the statement."""
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
