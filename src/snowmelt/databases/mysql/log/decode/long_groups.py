"""Groups that no window holds. A walk ahead finds how such a group ends, and what it undid, before any of its rows is handed out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.log.decode.items import Transactions
from snowmelt.databases.mysql.log.decode.refusals import refusal, refused
from snowmelt.databases.mysql.log.decode.rollbacks import Rollbacks, Spans, rollback_of
from snowmelt.databases.mysql.log.decode.tables import LogTables
from snowmelt.databases.mysql.log.savepoints import NOTHING, Undone
from snowmelt.databases.mysql.log.scan import S, Stop, Walk
from snowmelt.databases.mysql.log.windows import Wanted, Windows
from snowmelt.errors import Corrupt
from snowmelt.model.position import Position


class GroupFate(Enum):
    COMMITTED = "committed"
    """Also a statement that stands alone."""
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongGroup:
    """A group that no window holds: how it ends, where, when and under which name."""

    fate: GroupFate
    position: int
    time_s: int
    gtid: Bytes
    group: int
    """Its number in the walk."""
    at: int
    """Where it begins in the range."""
    undone: Undone = NOTHING

    def transactions(self) -> Transactions:
        return Transactions.one(self.position, self.time_s, self.gtid)

    def check(self, ended: Transactions, position: Position) -> None:
        """It must end as the walk ahead found: its rows were handed out already."""
        first = int(ended.position[0]) if ended else -1
        committed = self.fate is GroupFate.COMMITTED
        as_found = first == self.position if committed else self.fate is GroupFate.ROLLED_BACK and first != self.position
        if not as_found:
            raise Corrupt("a transaction ends otherwise than it was found to", detail=self.fate.value, position=str(position))

    def wanted(self, tables: LogTables) -> Wanted:
        """The tables whose rows are needed from it."""
        return partial(tables.wants, self.position) if self.fate is GroupFate.COMMITTED else no_rows


def no_rows(_: bytes) -> bool:
    """No table's rows are needed."""
    return False


def look_ahead(walk: Walk, windows: Windows, at: int, file: int, tables: LogTables) -> LongGroup:
    """How the group ends that begins at `at`. The walk is before it, and is there again on return."""
    walk.state[S.FOLLOWS] = 0
    state = walk.state.copy()
    stop, rolls_back = _walk_to_end(walk, windows, file, tables)
    if stop is Stop.XA_PREPARE:
        fate = GroupFate.PREPARED
    else:
        fate = GroupFate.ROLLED_BACK if stop is Stop.GROUP_ENDED and walk.state[S.ROLLED_BACK] else GroupFate.COMMITTED
    found = LongGroup(
        fate=fate,
        position=int(walk.state[S.STOP_POSITION]),
        time_s=walk.event_time_s(),
        gtid=walk.group_gtid(),
        group=int(state[S.GROUP_NUMBER]) + 1,
        at=at,
    )
    windows.go_to(at)
    walk.state[:] = state
    if rolls_back and fate is not GroupFate.ROLLED_BACK:
        found = replace(found, undone=_find_undone(walk, windows, file, tables))
        windows.go_to(at)
        walk.restore(state)
    return found


def _walk_to_end(walk: Walk, windows: Windows, file: int, tables: LogTables) -> tuple[Stop, bool]:
    """The stop at which the group ends, and whether it rolls back to a savepoint before."""
    there = windows.next()
    rolls_back = False
    while True:
        stop = walk.advance(look=True)
        if not there or refused(stop):
            position = Position(file, int(walk.state[S.STOP_POSITION]))
            raise refusal(walk, stop if there else Stop.OPEN_GROUP, position)
        if stop is Stop.END:
            there = windows.next(look=True)
        elif stop is Stop.PACKED:
            windows.unpack_alone(no_rows)
        elif stop is Stop.STATEMENT and walk.in_group:
            rolls_back |= rollback_of(walk, tables.flavour) is not None
        elif stop is not Stop.LOGGED_AS_STATEMENT:
            return stop, rolls_back


def _find_undone(walk: Walk, windows: Windows, file: int, tables: LogTables) -> Undone:
    """The row events that the next group undoes, by a walk to its end. Nothing is handed out."""
    rollbacks, group, touched = Rollbacks(walk, tables), int(walk.state[S.GROUP_NUMBER]) + 1, False
    spans: Spans = {}
    rollbacks.follow(group)
    there = windows.next()
    while there:
        stop = walk.advance()
        position = Position(file, int(walk.state[S.STOP_POSITION]))
        if stop is Stop.MAPS_FULL:
            walk.grow_maps()
            continue
        if not walk.in_group or int(walk.state[S.GROUP_NUMBER]) != group or stop is Stop.XA_PREPARE:
            break
        if refused(stop):
            raise refusal(walk, stop, position)
        rows = slice(int(walk.state[S.GROUP_ROW]), int(walk.state[S.ROWS]))
        touched = touched or rollbacks.touched(rows)
        for table, (first, last) in rollbacks.spans(rows, position).items():
            spans[table] = (spans.get(table, (first, last))[0], last)
        walk.forget_open()
        if stop is Stop.END:
            there = windows.next(wanted=no_rows)
        elif stop is Stop.PACKED:
            windows.unpack(no_rows)
        elif stop is Stop.SAVEPOINT:
            rollbacks.set(position)
        elif stop is Stop.STATEMENT and (name := rollback_of(walk, tables.flavour)) is not None:
            rollbacks.roll_back(name, spans, position, touched=touched)
    return rollbacks.undone()
