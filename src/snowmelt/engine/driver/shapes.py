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

from collections.abc import Iterable, Mapping
from typing import Final

from snowmelt.databases.contract.log import KnownTables, TableEffect
from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.databases.contract.tables import TableShape
from snowmelt.engine.driver.state import Shape, State
from snowmelt.errors import check
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect, TableStatement

_COUNT_BITS: Final = 20


class Shapes:
    """The numbers, and the shapes where capture is. Used by the thread that owns the machines."""

    def __init__(
        self,
        state: State,
        generation: int,
        *,
        captured: TablePredicate,
        keyed: TablePredicate,
        lower_case_names: bool,
    ) -> None:
        self._state = state
        self._generation = generation
        self._captured = captured
        self._keyed = keyed
        self._count = 0
        self._known: dict[int, Shape] = {}
        self._now: dict[TableId, TableShape] = {}
        self._broken: set[TableId] = set()
        """Tables of which the log lacks changes, or did when this driver started."""
        self._lower_case = lower_case_names
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
        self._now = {table: self.of(number).table for table, number in schemas.items()}
        self._broken = set(aside)
        self.follow(statements)

    def found(self, name: TableId, number: int, upto: int) -> None:
        """A table is in the ledger, which is at `upto`, with this shape. If a statement lies ahead, that one was read without it and says
        so already."""
        if self.touched.get(name, upto) <= upto:
            self._now[name] = self.of(number).table

    def follow(self, statements: Iterable[TableStatement]) -> None:
        """Take up statements as they were recorded, by whomever."""
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
        """What statements are read against where capture is."""
        return KnownTables(
            shapes=dict(self._now),
            broken=frozenset(self._broken),
            listed=self.listed,
            captured=self._captured,
            keyed=self._keyed,
            lower_case_names=self._lower_case,
        )

    def take(self, effects: Iterable[TableEffect]) -> tuple[TableStatement, ...]:
        """What the statements of a segment do to tables, to be recorded. Their shapes are durable on return."""
        made = tuple(self._statement(effect) for effect in effects)
        self.follow(made)
        return made

    def _statement(self, effect: TableEffect) -> TableStatement:
        number = 0 if effect.shape is None else self.number(Shape(effect.shape, effect.renamed, effect.statement))
        return TableStatement(effect.offset, effect.table, effect.effect, number, why=effect.why)
