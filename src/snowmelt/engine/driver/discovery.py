"""Tables that the ledger lacks, as the server's catalogue describes them.

Three kinds of tables are found here: those that exist when a driver starts, those that a statement makes later, and those whose shape does
not follow from a statement's text. The catalogue is read at some moment between two places of the log. What it has of a table counts once
the ledger is past both places, and only if no statement touched the table after the first one. So no statement is applied to a shape that
already has it. If a statement touched the table, the catalogue is read again.

A table that can't be brought to the lake is left out, with a warning, until a statement changes that. If the lake has rows of it already,
the pipeline sets it aside instead.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from snowmelt import budgets
from snowmelt.commit.ledger import Ledger
from snowmelt.databases.contract.tables import Catalogue, TableShape, Wanted
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.errors import Unavailable
from snowmelt.model.numbers import LogOffset
from snowmelt.model.patterns import match_tables
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Relay

log = logging.getLogger(__name__)


class Discovery:
    """Finds the tables that the ledger lacks. Used by the thread that owns the machines."""

    def __init__(
        self,
        catalogue: Catalogue,
        ledger: Ledger,
        relay: Relay,
        shapes: Shapes,
        read: Callable[[], Catalogue],
        why_not: Callable[[Sequence[TableShape]], Mapping[TableId, str]],
    ) -> None:
        """`why_not`: the tables, among some, that can't be brought to the lake, and why."""
        self._ledger = ledger
        self._relay = relay
        self._shapes = shapes
        self._read = read
        self._why_not = why_not
        self._left_out: set[TableId] = set()
        self._unfit: dict[TableId, str] = {}
        self._looked: set[TableId] = set()
        self._told: dict[TableId, str] = {}
        self._due = 0.0
        self._take(catalogue)

    def _take(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._since: LogOffset | None = None
        self._upto: LogOffset | None = None
        self._left_out.clear()
        self._unfit.clear()
        self._looked.clear()
        self._told = {name: why for name, why in self._told.items() if name in catalogue.tables}
        self._shapes.listed = frozenset(catalogue.tables)

    def let_go(self) -> None:
        """Drop the places of statements that both the ledger and the catalogue are past."""
        self._locate()
        if self._since is not None:
            self._shapes.forget_touched(min(self._since, self._ledger.upto))

    def leave_out(self, name: TableId, why: str) -> None:
        """Do not find the table again until a statement changes it."""
        self._left_out.add(name)
        if self._told.get(name) != why:
            log.warning("a table is left out", extra={"table": str(name), "why": why})
        self._told[name] = why

    @property
    def left_out(self) -> dict[str, str]:
        """Tables that are not brought to the lake, and why."""
        return {str(name): why for name, why in self._told.items() if name in self._catalogue.tables and self._lacks(name)}

    def look(self) -> None:
        """Read the catalogue again if a statement touched a table that the ledger lacks."""
        if self._is_old() and time.monotonic() >= self._due:
            # If the database is away, or does not show yet what it has logged, the next look asks again.
            with contextlib.suppress(Unavailable):
                self._take(self._read())
            self._due = time.monotonic() + budgets.CATALOGUE.pause_s(1)

    @property
    def complete(self) -> bool:
        """Whether the ledger has every table."""
        return not self._is_old() and not any(self._lacks(name) for name in self._catalogue.tables if name not in self._left_out)

    def found(self) -> Iterator[tuple[TableShape, str]]:
        """Tables that the ledger lacks, with their shapes at its place. The text says why one can't be brought to the lake, if so."""
        self._locate()
        if self._since is None or self._upto is None or self._ledger.upto < self._upto:
            return
        since, tables = self._since, self._catalogue.tables
        lacking = [name for name in tables if self._lacks(name) and name not in self._left_out and not self._touched(name, since)]
        # They are checked only now: when the catalogue was read, the ledger may have had another table of that name.
        if new := [tables[name] for name in lacking if name not in self._looked]:
            try:
                self._unfit.update(self._why_not(new))
            except Unavailable:
                # The database is away; the next look asks again.
                return
            self._looked.update(table.id for table in new)
        for name in lacking:
            yield tables[name], self._unfit.get(name, "")

    def _lacks(self, name: TableId) -> bool:
        return self._ledger.tables.get(name) is None

    def _is_old(self) -> bool:
        """Whether the catalogue perhaps lacks a statement that the ledger is past."""
        self._locate()
        since = self._since
        return since is not None and any(self._lacks(name) and self._touched(name, since) for name in self._shapes.touched)

    def _touched(self, name: TableId, since: int) -> bool:
        return since < self._shapes.touched.get(name, since) <= self._ledger.upto

    def _locate(self) -> None:
        """Find the offsets of the two places as soon as the relay has them, and keep them."""
        if self._since is None:
            self._since = self._relay.offset_of(self._catalogue.began)
        if self._upto is None:
            self._upto = self._relay.offset_of(self._catalogue.ended)


def patterns(tables: Iterable[str], exclude: Iterable[str], never: Container[str]) -> Wanted:
    return lambda ignore_case: match_tables(list(tables), list(exclude), ignore_case=ignore_case, never=never)
