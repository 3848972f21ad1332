"""The walk through one range of the log, window by window.

A group that ends in its window is decoded there. One that does not is begun again in a window of its own. If that does not hold it either,
a walk ahead first finds how it ends and what it undid (`long_groups`). Its rows then come out window by window.

Statements of a group count once, however often the group is walked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from snowmelt.databases.mysql.log.decode.batches import BatchMaker
from snowmelt.databases.mysql.log.decode.following import SchemaFollower
from snowmelt.databases.mysql.log.decode.items import NO_ENDS, NO_GTID, LogItem, Transactions
from snowmelt.databases.mysql.log.decode.long_groups import GroupFate, LongGroup, look_ahead
from snowmelt.databases.mysql.log.decode.prepared import PreparedGroups
from snowmelt.databases.mysql.log.decode.refusals import refusal, refused
from snowmelt.databases.mysql.log.decode.rollbacks import Rollbacks, rollback_of
from snowmelt.databases.mysql.log.decode.tables import LogTables
from snowmelt.databases.mysql.log.events import read_query, read_xa_end
from snowmelt.databases.mysql.log.scan import S, Stop, Walk
from snowmelt.databases.mysql.log.windows import Windows
from snowmelt.errors import Corrupt
from snowmelt.model.position import Position


class RangeWalk:
    """A walk, its windows, and what is known of the open group. Used once, by `items`."""

    def __init__(
        self,
        walk: Walk,
        windows: Windows,
        file: int,
        *,
        tables: LogTables,
        batches: BatchMaker,
        prepared: PreparedGroups,
        follower: SchemaFollower | None,
        names: bool,
    ) -> None:
        """Without `follower` statements are skipped. `names`: whether transactions get their GTIDs."""
        self._walk = walk
        self._windows = windows
        self._file = file
        self._tables = tables
        self._batches = batches
        self._prepared = prepared
        self._follower = follower
        self._names = names
        self._rollbacks = Rollbacks(walk, tables)
        self._long: LongGroup | None = None
        """The open group, if no window holds it."""
        self._group = -1
        """The group whose statements are counted."""
        self._seen = 0
        """How many of them this walk through it has met."""
        self._acted = 0
        """How many of them took effect, perhaps in an earlier walk through it."""
        self._there = False
        """Whether there is a window."""

    def items(self) -> Iterator[LogItem]:
        walk = self._walk
        self._there = self._windows.next()
        while self._there:
            stop = walk.advance()
            position = Position(self._file, int(walk.state[S.STOP_POSITION]))
            if stop is Stop.MAPS_FULL:
                walk.grow_maps()
                continue
            if refused(stop):
                raise refusal(walk, stop, position)
            yield from self._rows(stop, position)
            match stop:
                case Stop.END:
                    self._next_window()
                case Stop.PACKED:
                    self._unpack()
                case Stop.SAVEPOINT:
                    if self._rollbacks.following:
                        self._rollbacks.set(position)
                    else:
                        walk.state[S.FOLLOWS] = 0
                case Stop.STATEMENT if walk.in_group and (name := rollback_of(walk, self._tables.flavour)) is not None:
                    # What a long group undoes was found ahead.
                    if self._long is None:
                        self._roll_back(name, position)
                case Stop.STATEMENT | Stop.LOGGED_AS_STATEMENT:
                    if self._counts():
                        yield from self._statement(stop, position)
                case Stop.XA_PREPARE:
                    self._prepare(position)
                case _:
                    raise AssertionError(stop)

    # ---- rows

    def _rows(self, stop: Stop, position: Position) -> Iterator[LogItem]:
        """The rows of groups that have ended, and those of a long group so far where its window ends."""
        walk = self._walk
        ended = self._ended()
        self._batches.counters.transactions += len(ended)
        if self._long is not None:
            self._long = self._follow_long(self._long, ended, position)
        yield from self._batches.make(walk, self._file, ended)
        long = self._long
        if stop in (Stop.END, Stop.PACKED) and long is not None:
            if long.fate is GroupFate.COMMITTED:
                walk.commit_open(long.position, long.time_s)
                yield from self._batches.make(walk, self._file, long.transactions())
            else:
                walk.forget_open()

    def _ended(self) -> Transactions:
        """The transactions that have ended since rows were handed out."""
        walk = self._walk
        count = int(walk.state[S.TRANSACTIONS])
        names = walk.gtids() if self._names else (NO_ENDS, NO_GTID)
        return Transactions(walk.txn_commit[:count].copy(), walk.txn_time[:count].copy(), *names)

    def _follow_long(self, long: LongGroup, ended: Transactions, position: Position) -> LongGroup | None:
        """Forget what the long group undid of the rows at hand. None if it is over."""
        walk, state = self._walk, self._walk.state
        over = not (walk.in_group and int(state[S.GROUP_NUMBER]) == long.group)
        if over:
            long.check(ended, position)
        if long.undone:
            first, last = (0, int(state[S.FLUSHED])) if over else (int(state[S.GROUP_ROW]), int(state[S.ROWS]))
            rows = slice(first, last)
            gone = long.undone.holds(walk.row_ordinal[rows]) & self._rollbacks.undoes(rows, position)
            if over:
                # Rows of other groups may follow.
                gone &= walk.row_commit[rows] == long.position
            walk.remove(first, gone)
        return None if over else long

    # ---- windows

    def _next_window(self) -> None:
        if self._walk.in_group and self._long is None:
            # The group is begun again, in a window that begins with it. Nothing of it was handed out.
            self._walk_again()
            at, alone = self._windows.back_to_group()
            if alone:
                self._long = look_ahead(self._walk, self._windows, at, self._file, self._tables)
        self._there = self._windows.next(wanted=None if self._long is None else self._long.wanted(self._tables))

    def _unpack(self) -> None:
        if self._walk.in_group and self._long is None:
            # The group is walked again, unpacked.
            self._walk_again()
            self._walk.back()
        # Other groups may follow. Where they end is not known yet, so all captured tables are wanted.
        self._windows.unpack(partial(self._tables.wants, None))

    def _walk_again(self) -> None:
        """The open group is walked from its beginning once more."""
        self._seen = 0
        self._rollbacks.forget()

    # ---- statements

    def _roll_back(self, name: str, position: Position) -> None:
        """The open group rolled back to a savepoint: forget its rows that this undid."""
        walk, rollbacks = self._walk, self._rollbacks
        if not rollbacks.following:
            # Its savepoints were not followed so far: walk it once more from its beginning.
            group, self._seen = int(walk.state[S.GROUP_NUMBER]), 0
            walk.back()
            rollbacks.follow(group)
            return
        row = int(walk.state[S.GROUP_ROW])
        rows = slice(row, int(walk.state[S.ROWS]))
        first = rollbacks.roll_back(name, rollbacks.spans(rows, position), position, touched=rollbacks.touched(rows))
        if first is not None:
            walk.remove(row, (walk.row_ordinal[rows] >= first) & rollbacks.undoes(rows, position))

    def _counts(self) -> bool:
        """Whether the statement at hand is met for the first time. One outside of a group always is."""
        walk = self._walk
        if not walk.in_group:
            return True
        if int(walk.state[S.GROUP_NUMBER]) != self._group:
            self._group, self._seen, self._acted = int(walk.state[S.GROUP_NUMBER]), 0, 0
        self._seen += 1
        if self._seen <= self._acted:
            return False
        self._acted = self._seen
        return True

    def _statement(self, stop: Stop, position: Position) -> Iterator[LogItem]:
        walk = self._walk
        body = walk.body()
        if stop is Stop.LOGGED_AS_STATEMENT:
            # Like the body of a QUERY, with 13 more bytes that say which file was loaded.
            body = body[:13] + body[26:]
        query, time_s = read_query(body, self._tables.flavour), walk.event_time_s()
        if xa := read_xa_end(query.sql):
            if walk.in_group:
                raise Corrupt("an XA transaction is decided inside of another", position=str(position))
            # A statement that stands alone has its group's name.
            ended = Transactions.one(position.offset, time_s, walk.group_gtid())
            yield from self._prepared.end(self._windows, *xa, position, ended)
        elif self._follower is not None and walk.takes_effect():
            changed = self._follower.follow(query, position, time_s, temporary=walk.used_temporary())
            if changed is not None:
                yield changed

    def _prepare(self, position: Position) -> None:
        """The open group ends with XA PREPARE."""
        walk, windows, long = self._walk, self._windows, self._long
        if long is None:
            size = int(walk.state[S.AT] - walk.state[S.GROUP_AT])
            self._prepared.prepare(walk, position, size, walk.group_data, walk.checksum_bytes)
            return
        at = windows.at
        self._prepared.prepare(walk, position, at - long.at, partial(windows.whole, long.at, at), windows.checksum_bytes)
        self._long = None
        windows.go_to(at)
        self._there = windows.next()
