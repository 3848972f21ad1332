"""What one driver has to say of tables as wholes, until an intent says it: which can't go on, and which an operator asked for.

States. A trouble belongs to the incarnation that a table had when it was found; a request to the one that it had when it was first
proposed. Both are over once the table has another, or is gone.

Forbidden orders. A trouble of one incarnation sets another aside. A request is taken up twice: the driver that follows in the same
process asks for nothing that an intent holds already.

Memory. A few words per table in trouble.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from snowmelt.model.table import TableId
from snowmelt.planning.facts import Gone, Incarnation, Reborn, SetAside
from snowmelt.planning.tables import Table, TablePhase, Tables


class Troubles:
    """Tables that can't go on. One driver's."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._why: dict[TableId, tuple[Incarnation, str]] = {}

    def add(self, name: TableId, why: str) -> bool:
        """Whether the table is there to be set aside, and this is the first that is heard of it."""
        table = self._tables.get(name)
        if table is None or table.phase in (TablePhase.SET_ASIDE, TablePhase.GONE) or name in self.open:
            return False
        self._why[name] = (table.incarnation, why)
        return True

    @property
    def open(self) -> set[TableId]:
        """Those of which no intent says it yet."""
        tables = ((name, self._tables.current(incarnation)) for name, (incarnation, _) in self._why.items())
        return {name for name, table in tables if table is not None and table.phase not in (TablePhase.SET_ASIDE, TablePhase.GONE)}

    def propose(self, at: int, time_ms: int) -> Iterator[SetAside]:
        """Proposals for the epoch that begins at `at`."""
        current = self.open
        self._why = {name: found for name, found in self._why.items() if name in current}
        for incarnation, why in self._why.values():
            yield SetAside(incarnation, at, time_ms, why)


class Requests:
    """Tables that an operator asked to be copied anew. Of one process: its drivers share it."""

    def __init__(self, names: Iterable[TableId] = ()) -> None:
        self._first: dict[TableId, int | None] = dict.fromkeys(names)

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._first)

    def open(self, tables: Tables) -> list[Table]:
        """Those that no intent has taken up."""
        found: list[Table] = []
        for name, first in list(self._first.items()):
            table = tables.get(name)
            if table is None or table.phase is TablePhase.GONE or first not in (None, table.incarnation.number):
                # One that the ledger lacks is copied anyway when it is found.
                del self._first[name]
                continue
            self._first[name] = table.incarnation.number
            found.append(table)
        return found

    def drop(self, name: TableId) -> None:
        """It can't be had."""
        self._first.pop(name, None)


def reborn(table: Table, *, epoch: int, at: int) -> Reborn:
    """The proposal that an asked-for table is copied anew by the epoch that begins at `at`."""
    return Reborn(Incarnation(table.incarnation.table, epoch), at, table.schema, asked=True)


def forget(tables: Tables, excluded: Iterable[TableId], at: int) -> Iterator[Gone]:
    """Tables that are set aside and excluded by now are forgotten: what the log says of their shape is not followed any more."""
    for name in excluded:
        table = tables.get(name)
        if table is not None and table.phase is TablePhase.SET_ASIDE:
            yield Gone(table.incarnation, at)
