"""What one driver knows of whole tables before an intent says it: which can't continue, and which an operator asked to copy again.

States. A trouble belongs to the incarnation in which it was found; a request to the incarnation in which it was first proposed. Both end
when the table has another incarnation, or is gone.

Must never happen. A trouble of one incarnation sets another aside. A request is taken up twice, because the next driver in the same
process asks again for what an intent already holds.

Memory. A few words per table in trouble.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from snowmelt.model.numbers import EpochNumber, LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Gone, Incarnation, Reborn, SetAside
from snowmelt.planning.tables import Table, TablePhase, Tables


class Troubles:
    """Tables that can't continue. One driver's."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._why: dict[TableId, tuple[Incarnation, str]] = {}

    def add(self, name: TableId, why: str) -> bool:
        """Remember why a table can't continue. Returns whether it exists, can be set aside, and had no open trouble before."""
        table = self._tables.get(name)
        if table is None or table.phase in (TablePhase.SET_ASIDE, TablePhase.GONE) or name in self.open:
            return False
        self._why[name] = (table.incarnation, why)
        return True

    @property
    def open(self) -> set[TableId]:
        """Tables in trouble that no intent has set aside yet."""
        tables = ((name, self._tables.current(incarnation)) for name, (incarnation, _) in self._why.items())
        return {name for name, table in tables if table is not None and table.phase not in (TablePhase.SET_ASIDE, TablePhase.GONE)}

    def propose(self, at: LogOffset, time_ms: int) -> Iterator[SetAside]:
        """Proposals for the epoch that begins at `at`."""
        current = self.open
        self._why = {name: found for name, found in self._why.items() if name in current}
        for incarnation, why in self._why.values():
            yield SetAside(incarnation, at, time_ms, why)


class Requests:
    """Tables that an operator asked to copy again. One per process: its drivers share it."""

    def __init__(self, names: Iterable[TableId] = ()) -> None:
        self._first: dict[TableId, int | None] = dict.fromkeys(names)

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._first)

    def open(self, tables: Tables) -> list[Table]:
        """The tables whose request no intent has taken up. Forgets requests that are fulfilled, and those for tables that are gone."""
        found: list[Table] = []
        for name, first in list(self._first.items()):
            table = tables.get(name)
            if table is None or table.phase is TablePhase.GONE or first not in (None, table.incarnation.number):
                # A table that the ledger lacks is copied anyway when it is found.
                del self._first[name]
                continue
            self._first[name] = table.incarnation.number
            found.append(table)
        return found

    def drop(self, name: TableId) -> None:
        """The table does not exist, or can't be copied."""
        self._first.pop(name, None)


def reborn(table: Table, *, epoch: EpochNumber, at: LogOffset) -> Reborn:
    """The proposal to copy an asked-for table again, by the epoch that begins at `at`."""
    return Reborn(Incarnation(table.incarnation.table, epoch), at, table.schema, asked=True)


def forget(tables: Tables, excluded: Iterable[TableId], at: LogOffset) -> Iterator[Gone]:
    """Forget tables that are set aside and are excluded now: the log's changes of their shape are not followed any more."""
    for name in excluded:
        table = tables.get(name)
        if table is not None and table.phase is TablePhase.SET_ASIDE:
            yield Gone(table.incarnation, at)
