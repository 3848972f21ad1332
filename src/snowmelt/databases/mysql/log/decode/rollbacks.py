"""What a transaction undid by ROLLBACK TO: its savepoints, and its row events between them (`savepoints`).

A ROLLBACK TO is rare, and most transactions with savepoints have none. So savepoints are followed only after one was met: the walk goes
back to the beginning of its group and follows it from there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from snowmelt.databases.mysql.log.decode.refusals import no_savepoint
from snowmelt.databases.mysql.log.decode.tables import LogTables
from snowmelt.databases.mysql.log.events import read_query
from snowmelt.databases.mysql.log.savepoints import WITHOUT_TRANSACTIONS, Savepoints, Undone, Written, rolled_back_to, savepoint_set
from snowmelt.databases.mysql.log.scan import S, Walk
from snowmelt.databases.mysql.log.tablemap import mapped_table, read_table_map
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import BEGIN_ANEW, RECOPY, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import TableId

Spans = dict[TableId, tuple[int, int]]
"""The first and the last row event of each table."""


def rollback_of(walk: Walk, flavour: Flavour) -> str | None:
    """The savepoint that the statement rolls back to at which the walk stopped; None if it does not."""
    return rolled_back_to(read_query(walk.body(), flavour).sql)


class Rollbacks:
    """The savepoints of the group that a walk is in. Follows one group after the other."""

    def __init__(self, walk: Walk, tables: LogTables) -> None:
        self._walk = walk
        self._tables = tables
        self._savepoints = Savepoints()
        self._group = -1

    @property
    def following(self) -> bool:
        """Whether the open group is followed."""
        return int(self._walk.state[S.GROUP_NUMBER]) == self._group

    def follow(self, group: int) -> None:
        """Follow this group, from its beginning on: the walk stops at its savepoints."""
        self._group, self._savepoints = group, Savepoints()
        self._walk.state[S.FOLLOWS] = 1

    def forget(self) -> None:
        """The open group is walked again from its beginning."""
        self._group = -1

    def set(self, position: Position) -> None:
        """A savepoint was set: the walk stopped at it."""
        walk = self._walk
        self._statement_ended()
        self._savepoints.set(self._name(), walk.group_events, str(position), _written(walk, S.LAST_HASH, S.LAST_LACKS))
        walk.state[S.NEXT_HASH] = 0

    def roll_back(self, name: str, spans: Spans, position: Position, *, touched: bool) -> int | None:
        """The group rolled back to a savepoint: the row event from which on all were undone. An unknown savepoint is None, or `SourceDrift`
        if rows of a captured table were `touched`. `spans` are those of the rows so far."""
        self._check_told(name, spans, position)
        first = self._savepoints.roll_back(name, self._walk.group_events, str(position))
        if first is None and touched:
            raise no_savepoint(name, position)
        return first

    def undone(self) -> Undone:
        """All that the followed group undid so far."""
        return self._savepoints.undone()

    def _statement_ended(self) -> None:
        self._savepoints.statement_ended(_written(self._walk, S.NEXT_HASH, S.NEXT_LACKS))

    def _check_told(self, name: str, spans: Mapping[TableId, tuple[int, int]], position: Position) -> None:
        """The log must show what the ROLLBACK TO undid of captured tables, whose row events are the `spans`."""
        self._statement_ended()
        doubtful = self._savepoints.hidden(name, str(position), inside=int(self._walk.state[S.ROWED]) > 0)
        if doubtful is None:
            return
        tables = self._tables
        for table, (first, last) in sorted(spans.items()):
            if first < doubtful[1] and last >= doubtful[0] and tables.captured(table) and position.offset > tables.low(table):
                raise table.stuck(
                    "what a ROLLBACK TO undid can't be told: a function or trigger has set a savepoint of the same name",
                    detail=f"{name} at {position}",
                    hint=f"give savepoints in functions and triggers names of their own; then {RECOPY}",
                )

    def _name(self) -> str:
        sql = read_query(self._walk.body(), self._tables.flavour).sql
        name = savepoint_set(sql)
        if name is None:
            raise SourceDrift("a statement can't be understood", detail=sql[:500], hint=BEGIN_ANEW)
        return name

    # ---- row events of the walk

    def spans(self, rows: slice, position: Position) -> Spans:
        """The first and the last of these row events of each table with transactions."""
        walk = self._walk
        undone = self.undoes(rows, position)
        maps, ordinals = walk.row_map[rows][undone], walk.row_ordinal[rows][undone]
        found: Spans = {}
        for index in np.unique(maps).tolist():
            of_map = ordinals[maps == index]
            table, first, last = mapped_table(walk.map_body(index)), int(of_map[0]), int(of_map[-1])
            before = found.get(table, (first, last))
            found[table] = (min(before[0], first), max(before[1], last))
        return found

    def undoes(self, rows: slice, position: Position) -> npt.NDArray[np.bool_]:
        """Which of these row events a ROLLBACK TO undoes: all but those of tables without transactions."""
        walk, tables = self._walk, self._tables
        stays = [
            index
            for index in np.unique(walk.row_map[rows]).tolist()
            if (schema := tables.schemas.find(read_table_map(walk.map_body(index), tables.flavour).table, position)) is not None
            and schema.engine.lower() in WITHOUT_TRANSACTIONS
        ]
        return np.isin(walk.row_map[rows], stays, invert=True)

    def touched(self, rows: slice) -> bool:
        """Whether any of these row events is of a captured table."""
        walk = self._walk
        found = (read_table_map(walk.map_body(index), self._tables.flavour).table for index in np.unique(walk.row_map[rows]).tolist())
        return any(self._tables.captured(table) for table in found)


def _written(walk: Walk, tables: S, lacks: S) -> Written | None:
    return Written(int(walk.state[tables]), bool(walk.state[lacks])) if walk.state[tables] else None
