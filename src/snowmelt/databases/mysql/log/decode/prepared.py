"""XA groups that are prepared in one place of the log and committed in a later one.

Laws:
- Rows of a prepared group come out at its COMMIT, with the position, the time and the name of the COMMIT: no read contains prepared rows.
- The group's positions and statements were checked when it was prepared. At the COMMIT only its rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.contract.stretches import InMemory
from snowmelt.databases.mysql.log.decode.batches import BatchMaker
from snowmelt.databases.mysql.log.decode.items import ChangeBatch, HeldGroup, Transactions
from snowmelt.databases.mysql.log.decode.long_groups import look_ahead
from snowmelt.databases.mysql.log.decode.rollbacks import Rollbacks
from snowmelt.databases.mysql.log.decode.tables import LogTables
from snowmelt.databases.mysql.log.events import Xid, read_xa_prepare, whole_xid, xa_began
from snowmelt.databases.mysql.log.scan import Places, S, Stop, Walk
from snowmelt.databases.mysql.log.unpack import Unpacker
from snowmelt.databases.mysql.log.windows import Windows
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.relay.limits import Limits
from snowmelt.relay.names import branch_of, ended_by


class PreparedGroups:
    """Prepared groups by their names: held here, or by the caller (`find`)."""

    def __init__(self, tables: LogTables, batches: BatchMaker, limits: Limits) -> None:
        self._tables = tables
        self._batches = batches
        self._limits = limits
        self.find: Callable[[Xid, Position], HeldGroup | None] | None = None
        self.held: dict[str, HeldGroup] = {}

    def prepare(self, walk: Walk, position: Position, size: int, events: Callable[[], Bytes], checksum_bytes: int) -> None:
        """Hold aside the group that ends where the walk stopped."""
        if self.find is not None:
            walk.drop_group()
            return
        # Before the events are put together: that may use the walk's segment again.
        _, prepared = read_xa_prepare(walk.body())
        held = size + sum(entry.log.size for entry in self.held.values())
        if held > self._limits.held_bytes_max:
            raise SourceDrift("prepared XA transactions are larger than the limit", detail=f"{held} bytes at {position}")
        group = events()
        xid = whole_xid(prepared, xa_began(group, self._tables.flavour, checksum_bytes=checksum_bytes, where=str(position)))
        log = InMemory(group, window_bytes=self._limits.prefilter_bytes)
        self.held[str(xid)] = HeldGroup(log, checksum_bytes, int(walk.state[S.GROUP_POSITION]))
        walk.drop_group()

    def end(self, windows: Windows, committed: bool, xid: Xid, position: Position, ended: Transactions) -> Iterator[ChangeBatch]:
        """The rows of a group that is committed here, or nothing of one that is rolled back."""
        if self.find is None:
            ended_one = ended_by(str(xid), self.held)
            held = None if ended_one is None else self.held.pop(ended_one)
        else:
            held = self.find(xid, position) if committed else None
        if not committed or (self.find is None and held is None and branch_of(str(xid)) in map(branch_of, self.held)):
            return
        if held is None:
            raise SourceDrift(
                "an XA transaction was committed whose rows were not captured",
                detail=f"{xid} at {position}",
                hint="it was prepared before what was read here began; begin with a new state",
            )
        if not held.log.size:
            return
        if held.shares_segment:
            windows.leave()
        try:
            yield from self._rows(held, position, ended)
        finally:
            held.close()

    def _rows(self, held: HeldGroup, position: Position, ended: Transactions) -> Iterator[ChangeBatch]:
        walk = Walk(window_bytes=held.log.window_bytes, position=held.position)
        unpacker = Unpacker(gaps=True, limits=self._limits)
        windows = Windows(held.log, walk, unpacker, checksum_bytes=held.checksum_bytes, places=Places.UNPACKED, where=str(position))
        try:
            yield from self._walked(walk, windows, position, ended)
        finally:
            windows.close()

    def _walked(self, walk: Walk, windows: Windows, position: Position, ended: Transactions) -> Iterator[ChangeBatch]:
        found = look_ahead(walk, windows, 0, position.file, self._tables)
        rollbacks = Rollbacks(walk, self._tables)
        wanted = partial(self._tables.wants, position.offset)
        there = windows.next(wanted=wanted)
        while there:
            stop = walk.advance(commit_as=position.offset)
            if found.undone and stop in (Stop.END, Stop.PACKED):
                first = 0 if not walk.in_group else int(walk.state[S.GROUP_ROW])
                rows = slice(first, int(walk.state[S.ROWS]))
                walk.remove(first, found.undone.holds(walk.row_ordinal[rows]) & rollbacks.undoes(rows, position))
            match stop:
                case Stop.STATEMENT | Stop.LOGGED_AS_STATEMENT:
                    continue
                case Stop.MAPS_FULL:
                    walk.grow_maps()
                    continue
                case Stop.END | Stop.PACKED:
                    if walk.in_group:
                        walk.commit_open(position.offset, int(ended.time_s[0]))
                    walk.row_time[: int(walk.state[S.FLUSHED])] = ended.time_s[0]
                    yield from self._batches.make(walk, position.file, ended)
                    if stop is Stop.PACKED:
                        windows.unpack(wanted)
                    else:
                        there = windows.next(wanted=wanted)
                case _:
                    raise Corrupt("a held XA group reads otherwise than when it was prepared", detail=stop.name, position=str(position))
        if walk.in_group:
            raise Corrupt("a held XA group has no end", position=str(position))
