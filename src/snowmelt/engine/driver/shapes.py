"""Shapes of tables: which one is in force where, and how the log's statements change them.

Laws:
- A schema number of the machines stands for one shape, recorded before anything names the number. Numbers are a driver's own
  (its generation is in them), so none is ever given to another shape, and a forgotten one never comes back.
- Statements are read once, when their segment gets its record, against the shapes at the end of the captured log. The record has the
  outcome. Later readers of the log use its numbers, and never read the statements again.
- A statement is applied only to shapes that follow from the log: those of the ledger's tables, as changed by later statements. The
  catalogue's shape is of another moment, and may have the statement already. The text of CREATE TABLE lacks what the table inherits. So a
  table that is created, or whose shape is not known, is dropped here; discovery finds it in the catalogue, and it is copied.
- A statement after which the log lacks changes of a table (rows as text, a foreign key that cascades, a MERGE table that names it) breaks
  that table, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from snowmelt.databases.contract.log import KnownTables, TableEffect
from snowmelt.databases.contract.tables import SourceTables, TableShape
from snowmelt.engine.driver.state import Shape, State
from snowmelt.errors import check
from snowmelt.model.numbers import GenerationNumber, LogOffset
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect, TableStatement

_COUNT_BITS: Final = 20


class Shapes:
    """The numbers of shapes, and the shapes at the end of the captured log. Used by the thread that owns the machines."""

    def __init__(
        self,
        state: State,
        source: SourceTables,
        generation: GenerationNumber,
        *,
        captured: TablePredicate,
        keyed: TablePredicate,
        lower_case_names: bool,
    ) -> None:
        self._state = state
        self._source = source
        self._generation = generation
        self._captured = captured
        self._keyed = keyed
        self._count = 0
        self._known: dict[int, Shape] = {}
        self._now: dict[TableId, TableShape] = {}
        self._broken: set[TableId] = set()
        """Tables whose changes are not all in the log, or were not when this driver started."""
        self._lower_case = lower_case_names
        self.listed: frozenset[TableId] = frozenset()
        """Tables that the catalogue had when it was read last. The ledger may be about to find one of them."""
        self.touched: dict[TableId, int] = {}
        """The offset of the last recorded statement about each table, until `forget_touched`."""

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
        """The shape of a number. A missing record is an error of the pipeline."""
        if number not in self._known:
            self._known[number] = self._state.shape(number, self._source)
        return self._known[number]

    def forget(self, needed: set[int], intent_generation: int) -> None:
        """Delete numbers that nothing refers to: this driver's, and those of older drivers that can't win an intent any more."""
        numbers = [number for number in self._state.shapes() if number not in needed]
        gone = [n for n in numbers if n >> _COUNT_BITS == self._generation or n >> _COUNT_BITS < min(intent_generation, self._generation)]
        self._state.trim_shapes(gone)
        for number in gone:
            self._known.pop(number, None)

    def forget_touched(self, upto: LogOffset) -> None:
        """Drop the places of statements up to `upto`: the catalogue and the ledger are both past them."""
        self.touched = {name: offset for name, offset in self.touched.items() if offset > upto}

    # ---- at the end of the captured log

    def begin(self, schemas: Mapping[TableId, int], aside: Iterable[TableId], statements: Iterable[TableStatement]) -> None:
        """Begin with the ledger's tables and their numbers, the tables that are set aside, and the statements of the chain after the
        ledger."""
        self._now = {table: self.of(number).table for table, number in schemas.items()}
        self._broken = set(aside)
        self.follow(statements)

    def found(self, name: TableId, number: int, upto: LogOffset) -> None:
        """The ledger, which is at `upto`, has a new table with this shape. A recorded statement ahead was read without this shape, and its
        outcome stays."""
        if self.touched.get(name, upto) <= upto:
            self._now[name] = self.of(number).table

    def follow(self, statements: Iterable[TableStatement]) -> None:
        """Take up recorded statements, of this driver or of another."""
        for statement in statements:
            self.touched[statement.table] = statement.offset
            match statement.effect:
                case Effect.DROPS:
                    self._now.pop(statement.table, None)
                    self._broken.discard(statement.table)
                case Effect.MAKES | Effect.RESHAPES | Effect.REWRITES:
                    self._now[statement.table] = self.of(statement.schema).table
                case Effect.BREAKS:
                    self._broken.add(statement.table)
                case Effect.EMPTIES:
                    pass

    def known(self) -> KnownTables:
        """What the next segment's statements are read against."""
        return KnownTables(
            shapes=dict(self._now),
            broken=frozenset(self._broken),
            listed=self.listed,
            captured=self._captured,
            keyed=self._keyed,
            lower_case_names=self._lower_case,
        )

    def take(self, effects: Iterable[TableEffect]) -> tuple[TableStatement, ...]:
        """Take up a segment's effects, as statements for its record. Their shapes are durable on return."""
        made = tuple(self._statement(effect) for effect in effects)
        self.follow(made)
        return made

    def _statement(self, effect: TableEffect) -> TableStatement:
        number = 0 if effect.shape is None else self.number(Shape(effect.shape, effect.renamed, effect.statement))
        return TableStatement(effect.offset, effect.table, effect.effect, number, why=effect.why)
