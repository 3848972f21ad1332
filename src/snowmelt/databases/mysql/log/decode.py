"""The log as Arrow: a range of raw events in, batches of changes per table and schema changes out, in the order of the log.

The range is read in windows (`windows`). A transaction that ends in its window is decoded there; one that does not is begun again
in a window of its own; and if that does not hold it either, its end is looked for first, and what it undid if it undid anything, and then
its rows come out window by window.

Laws:
- Rows come out only once their transaction has ended, and each carries the end of its commit as `_position`. A group that was
  rolled back gives nothing; an XA group that was prepared is held aside until its COMMIT, whose position it then gets.
- What a transaction undid by ROLLBACK TO never comes, but for rows of tables without transactions: these stay (`savepoints`).
- Rows before a schema change are read with the schema before it, rows behind with the one behind.
- Batches of one table come in the order of the log; rows inside too. Batches of different tables may overtake each other
  between two schema changes.
- A change that the log holds as a statement, not as rows, stops: nothing of a captured table is passed over.
- A range counts once it was read to its end. An error takes back all that was handed out of it: events that are out of place may
  show only at the next one. Missing events show by their places, on MariaDB only by the range's length: its server leaves events out.

Memory: a window, an entry per row event of it, and one arena per batch, which is used again when the batch is gone. Nothing grows with the
range or with a transaction (`relay.limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snowmelt.columnar import kernels
from snowmelt.columnar.arena import Arena, ArenaPool, Bytes, Layout, Longs, Storage
from snowmelt.columnar.memory import valid_utf8
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
    Rules,
    SchemaChange,
    Truncate,
    read_statement,
)
from snowmelt.databases.mysql.ddl.changes import MERGED, SEPARATE
from snowmelt.databases.mysql.log import images as kernel
from snowmelt.databases.mysql.log import scan
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Gtid, Xid, read_gtid, read_incident, read_query, read_xa_end, read_xa_prepare
from snowmelt.databases.mysql.log.rowplan import Finish, PlannedColumn, RowPlan, plan_rows
from snowmelt.databases.mysql.log.savepoints import (
    NOTHING,
    WITHOUT_TRANSACTIONS,
    Savepoints,
    Undone,
    Written,
    rolled_back_to,
    savepoint_set,
)
from snowmelt.databases.mysql.log.scan import Places, S, Stop, Walk, whole_events
from snowmelt.databases.mysql.log.tablemap import TableMap, mapped_table, read_table_map
from snowmelt.databases.mysql.log.unpack import Unpacker, inflate
from snowmelt.databases.mysql.log.windows import InMemory, LogBytes, Wanted, Windows
from snowmelt.databases.mysql.types import kinds
from snowmelt.databases.mysql.types.binary_json import apply_diffs, text_of
from snowmelt.databases.mysql.types.charsets import transcode
from snowmelt.databases.mysql.types.columns import Flavour, MySqlTable, TypeOptions
from snowmelt.databases.mysql.types.sets import set_lists
from snowmelt.errors import BEGIN_ANEW, RECOPY, Corrupt, SourceDrift, check, clear_frames
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.limits import Limits
from snowmelt.segments import Segment

SYSTEM_FIELDS = (
    pa.field("_op", pa.int8(), nullable=False),
    pa.field("_position", pa.int64(), nullable=False),
    pa.field("_event", pa.int32(), nullable=False),
    pa.field("_ts", pa.timestamp("us", "UTC"), nullable=False),
)
"""Kind of change as Paimon counts them, end of the commit, ordinal of the row event in its transaction, time of the commit."""

ABSENT = "_absent"
"""A bitmap of the columns that an image lacks, low bit first; only in batches that hold partial images. Absent is not NULL."""

_SYSTEM_STORAGE = (Storage(1), Storage(8), Storage(4), Storage(8))


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions that ended in a stretch of the log, in its order."""

    position: Longs
    time_s: Longs
    _gtid_ends: Longs
    _gtids: Bytes
    """Their GTID events, one behind the other."""

    @staticmethod
    def one(position: int, time_s: int, gtid: Bytes) -> Transactions:
        return Transactions(np.array([position]), np.array([time_s]), np.array([gtid.shape[0]]), gtid)

    def __len__(self) -> int:
        return int(self.position.shape[0])

    def gtid_event(self, index: int) -> Bytes:
        check(self._gtid_ends.shape == self.position.shape, "a transaction's name is asked for that was not read")
        return self._gtids[int(self._gtid_ends[index - 1]) if index else 0 : int(self._gtid_ends[index])]

    def gtid(self, index: int) -> Gtid | None:
        """The name of a transaction; None where the server gives none."""
        event = self.gtid_event(index).tobytes()
        return read_gtid(event[4], int.from_bytes(event[5:9], "little"), event[19:]) if event else None


_NO_GTID: Bytes = np.empty(0, np.uint8)
_NO_ENDS: Longs = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """A stretch of a segment: from byte `first` to `last` of its data, which is from `start` to `end` in the log."""

    first: int
    start: int
    last: int | None
    end: int


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one table, in order. `rows` has the table's columns and the system fields behind them."""

    table: MySqlTable
    rows: pa.RecordBatch
    transactions: Transactions


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """A statement that changed tables, at the end of its event."""

    position: Position
    time_s: int
    statement: str
    changes: tuple[SchemaChange, ...]


LogItem = ChangeBatch | SchemaChanged


@dataclass(frozen=True, slots=True)
class PreparedEvents:
    """A prepared XA group: its events as they are in the log, or plain."""

    log: LogBytes
    checksum_bytes: int
    position: int
    """Where it begins in the log."""
    shares_segment: bool = False
    """Whether its pieces lie in the segment that windows lie in: the window is given back before any is asked for."""
    close: Callable[[], None] = lambda: None
    """Called when its rows are read, or given up."""


NOTHING_HELD = PreparedEvents(InMemory(np.empty(0, np.uint8), window_bytes=1), checksum_bytes=0, position=0)
"""What a COMMIT ends that ends nothing."""


class _Fate(Enum):
    COMMITTED = "committed"
    """Also a statement that stands alone."""
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"


@dataclass(frozen=True, slots=True)
class _Long:
    """A group that no window holds: how it ends, where, when and under which name."""

    fate: _Fate
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
        """It must end as it was found to: its rows are handed out already."""
        first = int(ended.position[0]) if ended else -1
        as_found = first == self.position if self.fate is _Fate.COMMITTED else self.fate is _Fate.ROLLED_BACK and first != self.position
        if not as_found:
            raise Corrupt("a transaction ends otherwise than it was found to", detail=self.fate.value, position=str(position))


@dataclass(slots=True)
class Counters:
    """What went through, for whoever watches."""

    changes: int = 0
    nulled_dates: int = 0
    """Dates that no calendar has and that became NULL."""
    transactions: int = 0
    unpacked_bytes: int = 0


class LogReader:
    """Reads ranges of one server's log, one after the other. Keeps prepared XA groups and plans between them.

    `schemas` is read and added to: a statement's effect is recorded before the rows behind it are read. `collations` are the
    databases' defaults, which tables that the log creates inherit. `step_over_statements` is for whoever has read them already
    (`statements`) and gives the schema that each table has in the whole range. Without `names` no transaction tells its GTID, which costs
    a seventh of all where transactions are of one row.

    Two may be set before a range is read. `low`: rows that were committed at or before that offset are passed over, and are not decoded.
    `prepared`, by whoever keeps prepared XA groups himself: it is asked for one at its COMMIT, and none is held here.
    """

    def __init__(
        self,
        *,
        flavour: Flavour,
        version: tuple[int, int, int],
        schemas: SchemaHistory[MySqlTable],
        collations: Mapping[str, str] | None = None,
        lower_case_names: bool = False,
        step_over_statements: bool = False,
        names: bool = True,
        captured: Callable[[TableId], bool] = lambda _: True,
        options: TypeOptions = TypeOptions(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        era: int = 0,
    ) -> None:
        self._flavour: Flavour = flavour
        self._version = version
        self._lower_case_names = lower_case_names
        self._step_over = step_over_statements
        self._names = names
        self._collations = dict(collations or {})
        self._schemas = schemas
        self._captured = captured
        self._options = options
        self._limits = limits
        self._era = era
        self._pool = ArenaPool()
        self._heaps: dict[TableId, dict[str, int]] = {}
        self._plans: dict[tuple[bytes, MySqlTable | None], RowPlan] = {}
        self.prepared: Callable[[Xid, Position], PreparedEvents | None] | None = None
        self.held: dict[Xid, PreparedEvents] = {}
        self.low: Callable[[TableId], int] = lambda _: 0
        self.counters = Counters()

    def read_segment(self, segment: Segment) -> Iterator[LogItem]:
        """Decode a segment that capture stored."""
        return self.read_part(segment, SegmentSlice(0, segment.start.offset, None, segment.end.offset))

    def read_part(self, segment: Segment, part: SegmentSlice) -> Iterator[LogItem]:
        """Decode what lies between two cuts of a segment."""
        data = segment.bytes()[part.first : part.last]
        return self.read_stored(segment, part, InMemory(data, window_bytes=self._limits.prefilter_bytes))

    def read_stored(self, segment: Segment, part: SegmentSlice, log: LogBytes) -> Generator[LogItem, None, None]:
        """The same, of bytes that are fetched piece by piece. They are given back at the end, or when the iterator is closed."""
        return self.read_log(log, file=segment.start.file, start=part.start, end=part.end, checksum_bytes=details_of(segment).crc_length)

    def read(self, data: Bytes, *, file: int, start: int, checksum_bytes: int, end: int | None = None) -> Iterator[LogItem]:
        """Decode whole transactions: `data` are the events of log file `file` from offset `start` on, up to `end` if that is known."""
        log = InMemory(data, window_bytes=self._limits.prefilter_bytes)
        return self.read_log(log, file=file, start=start, checksum_bytes=checksum_bytes, end=end)

    def read_log(
        self, log: LogBytes, *, file: int, start: int, checksum_bytes: int, end: int | None = None
    ) -> Generator[LogItem, None, None]:
        """The same of bytes that lie anywhere. Their pieces are given back at the end, or when the iterator is closed."""
        gaps = self._flavour == "mariadb"
        # Packed events may make a range larger than it is, and never a window.
        walk = Walk(window_bytes=log.window_bytes, position=start)
        unpacker = Unpacker(gaps=gaps, limits=self._limits)
        places = Places.GAPS if gaps else Places.EXACT
        windows = Windows(log, walk, unpacker, checksum_bytes=checksum_bytes, places=places, where=f"{file}:{start}")
        try:
            yield from self._walked(walk, windows, file)
        except BaseException as error:
            # Whoever keeps the error would keep spill files open.
            clear_frames(error)
            raise
        finally:
            windows.close()
            self.counters.unpacked_bytes += unpacker.bytes_made
        unpacker.check_whole(f"{file}:{walk.position}")
        if end is not None and walk.position != end:
            raise Corrupt("the range ends elsewhere than it must", detail=f"not at {end}", position=f"{file}:{walk.position}")

    def _walked(self, walk: Walk, windows: Windows, file: int) -> Iterator[LogItem]:
        # Statements of the open group: how many this walk through it has seen, and how many were acted on, perhaps by an earlier one.
        group, seen, acted = -1, 0, 0
        # The group whose savepoints are followed.
        followed, savepoints = -1, Savepoints()
        long: _Long | None = None
        there = windows.next()
        while there:
            stop = walk.go_on()
            position = Position(file, int(walk.state[S.STOP_POSITION]), self._era)
            if stop is Stop.MAPS_FULL:
                walk.grow_maps()
                continue
            if _refused(stop):
                raise _refusal(walk, stop, position)
            ended = self._ended(walk)
            self.counters.transactions += len(ended)
            if long is not None:
                over = not (walk.in_group and int(walk.state[S.GROUP_NUMBER]) == long.group)
                if over:
                    long.check(ended, position)
                if long.undone:
                    self._remove_undone(walk, long, position, over=over)
                long = None if over else long
            yield from self._rows(walk, file, ended)
            if stop in (Stop.END, Stop.PACKED) and long is not None:
                # Rows go with their window.
                if long.fate is _Fate.COMMITTED:
                    walk.commit_open(long.position, long.time_s)
                    yield from self._rows(walk, file, long.transactions())
                else:
                    walk.forget_open()
            match stop:
                case Stop.END:
                    if walk.in_group and long is None:
                        # It is begun again, in a window that begins with it. Nothing of it was handed out.
                        seen, followed = 0, -1
                        at, alone = windows.back_to_group()
                        if alone:
                            long = self._look_ahead(walk, windows, at, file)
                    there = windows.next(wanted=None if long is None else self._wanted_of(long))
                case Stop.PACKED:
                    if walk.in_group and long is None:
                        # It is walked again in its plain form.
                        seen, followed = 0, -1
                        walk.back()
                    # Other groups may follow, of which it is not known where they end.
                    windows.unpack(partial(self._wants, None))
                case Stop.SAVEPOINT:
                    if int(walk.state[S.GROUP_NUMBER]) == followed:
                        self._set_savepoint(walk, savepoints, position)
                    else:
                        walk.state[S.FOLLOWS] = 0
                case Stop.STATEMENT if walk.in_group and (name := self._rolled_back_to(walk)) is not None:
                    if long is not None:
                        # What it undoes was looked for before.
                        continue
                    if int(walk.state[S.GROUP_NUMBER]) != followed:
                        # Only now anybody asks for savepoints: once more from its beginning.
                        seen, followed, savepoints = 0, int(walk.state[S.GROUP_NUMBER]), Savepoints()
                        walk.back()
                        walk.state[S.FOLLOWS] = 1
                        continue
                    row = int(walk.state[S.GROUP_ROW])
                    rows = slice(row, int(walk.state[S.ROWS]))
                    self._check_told(walk, savepoints, name, self._spans(walk, rows, position), position)
                    first = savepoints.roll_back(name, walk.group_events, str(position))
                    if first is not None:
                        walk.remove(row, (walk.row_ordinal[rows] >= first) & self._undoes(walk, rows, position))
                    elif self._touched(walk, rows):
                        raise _no_savepoint(name, position)
                case Stop.STATEMENT | Stop.LOGGED_AS_STATEMENT:
                    if walk.in_group:
                        if int(walk.state[S.GROUP_NUMBER]) != group:
                            group, seen, acted = int(walk.state[S.GROUP_NUMBER]), 0, 0
                        seen += 1
                        if seen <= acted:
                            continue
                        acted = seen
                    body = walk.body()
                    if stop is Stop.LOGGED_AS_STATEMENT:
                        # As a QUERY's body, but for 13 more bytes that say which file was loaded.
                        body = body[:13] + body[26:]
                    # The name of a statement that stands alone is its group's.
                    yield from self._statement(walk, windows, body, position, _NO_GTID if walk.in_group else walk.group_gtid())
                case Stop.XA_PREPARE:
                    if long is None:
                        size = int(walk.state[S.AT] - walk.state[S.GROUP_AT])
                        self._prepared(walk, position, size, walk.group_data, walk.checksum_bytes)
                    else:
                        at = windows.at
                        self._prepared(walk, position, at - long.at, partial(windows.whole, long.at, at), windows.checksum_bytes)
                        long = None
                        windows.go_to(at)
                        there = windows.next()
                case _:
                    raise AssertionError(stop)

    def _wants(self, until: int | None, body: bytes) -> bool:
        """Whether rows of a mapped table may come out. `until`: where their group ends, if that is known."""
        table = mapped_table(body)
        return self._captured(table) and (until is None or until > self.low(table))

    def _wanted_of(self, long: _Long) -> Wanted:
        return partial(self._wants, long.position) if long.fate is _Fate.COMMITTED else _nothing

    def _ended(self, walk: Walk) -> Transactions:
        """The transactions that have ended since rows were handed out."""
        count = int(walk.state[S.TRANSACTIONS])
        names = walk.gtids() if self._names else (_NO_ENDS, _NO_GTID)
        return Transactions(walk.txn_commit[:count].copy(), walk.txn_time[:count].copy(), *names)

    def _look_ahead(self, walk: Walk, windows: Windows, at: int, file: int) -> _Long:
        """How the group ends that begins at `at` and that no window holds. The walk is before it, and is so again afterwards."""
        walk.state[S.FOLLOWS] = 0
        state = walk.state.copy()
        there = windows.next()
        rolls_back = False
        while True:
            stop = walk.go_on(look=True)
            position = int(walk.state[S.STOP_POSITION])
            if not there or _refused(stop):
                raise _refusal(walk, stop if there else Stop.OPEN_GROUP, Position(file, position, self._era))
            if stop is Stop.END:
                there = windows.next(look=True)
            elif stop is Stop.PACKED:
                windows.unpack_alone(_nothing)
            elif stop is Stop.STATEMENT and walk.in_group:
                rolls_back |= self._rolled_back_to(walk) is not None
            elif stop is not Stop.LOGGED_AS_STATEMENT:
                break
        if stop is Stop.XA_PREPARE:
            fate = _Fate.PREPARED
        else:
            fate = _Fate.ROLLED_BACK if stop is Stop.GROUP_ENDED and walk.state[S.ROLLED_BACK] else _Fate.COMMITTED
        gtid = walk.group_gtid()
        found = _Long(fate, position, walk.event_time_s(), gtid, group=int(state[S.GROUP_NUMBER]) + 1, at=at)
        windows.go_to(at)
        walk.state[:] = state
        if rolls_back and fate is not _Fate.ROLLED_BACK:
            found = replace(found, undone=self._look_for_undone(walk, windows, file))
            windows.go_to(at)
            walk.restore(state)
        return found

    def _look_for_undone(self, walk: Walk, windows: Windows, file: int) -> Undone:
        """Which row events the group undoes that the walk is before, by a walk to its end. Nothing is handed out."""
        savepoints, group, touched = Savepoints(), int(walk.state[S.GROUP_NUMBER]) + 1, False
        spans: dict[TableId, tuple[int, int]] = {}
        walk.state[S.FOLLOWS] = 1
        there = windows.next()
        while there:
            stop = walk.go_on()
            position = Position(file, int(walk.state[S.STOP_POSITION]), self._era)
            if stop is Stop.MAPS_FULL:
                walk.grow_maps()
                continue
            if not walk.in_group or int(walk.state[S.GROUP_NUMBER]) != group or stop is Stop.XA_PREPARE:
                break
            if _refused(stop):
                raise _refusal(walk, stop, position)
            rows = slice(int(walk.state[S.GROUP_ROW]), int(walk.state[S.ROWS]))
            touched = touched or self._touched(walk, rows)
            for table, (first, last) in self._spans(walk, rows, position).items():
                spans[table] = (spans.get(table, (first, last))[0], last)
            walk.forget_open()
            if stop is Stop.END:
                there = windows.next(wanted=_nothing)
            elif stop is Stop.PACKED:
                windows.unpack(_nothing)
            elif stop is Stop.SAVEPOINT:
                self._set_savepoint(walk, savepoints, position)
            elif stop is Stop.STATEMENT and (name := self._rolled_back_to(walk)) is not None:
                self._check_told(walk, savepoints, name, spans, position)
                found = savepoints.roll_back(name, walk.group_events, str(position))
                if found is None and touched:
                    raise _no_savepoint(name, position)
        return savepoints.undone()

    def _set_savepoint(self, walk: Walk, savepoints: Savepoints, position: Position) -> None:
        savepoints.went_on(_written(walk, S.NEXT_HASH, S.NEXT_LACKS))
        savepoints.set(self._savepoint(walk), walk.group_events, str(position), _written(walk, S.LAST_HASH, S.LAST_LACKS))
        walk.state[S.NEXT_HASH] = 0

    def _check_told(
        self, walk: Walk, savepoints: Savepoints, name: str, spans: Mapping[TableId, tuple[int, int]], position: Position
    ) -> None:
        """The log must tell what a ROLLBACK TO undid of captured tables, of which `spans` has the first and the last row event."""
        savepoints.went_on(_written(walk, S.NEXT_HASH, S.NEXT_LACKS))
        doubtful = savepoints.hidden(name, str(position), inside=int(walk.state[S.ROWED]) > 0)
        if doubtful is None:
            return
        for table, (first, last) in sorted(spans.items()):
            if first < doubtful[1] and last >= doubtful[0] and self._captured(table) and position.offset > self.low(table):
                raise table.stuck(
                    "what a ROLLBACK TO undid can't be told: a function or trigger has set a savepoint of the same name",
                    detail=f"{name} at {position}",
                    hint=f"give savepoints in functions and triggers names of their own; then {RECOPY}",
                )

    def _spans(self, walk: Walk, rows: slice, position: Position) -> dict[TableId, tuple[int, int]]:
        """The first and the last of these row events of each table with transactions."""
        undone = self._undoes(walk, rows, position)
        maps, ordinals = walk.row_map[rows][undone], walk.row_ordinal[rows][undone]
        found: dict[TableId, tuple[int, int]] = {}
        for index in np.unique(maps).tolist():
            of_map = ordinals[maps == index]
            table, first, last = mapped_table(walk.map_body(index)), int(of_map[0]), int(of_map[-1])
            before = found.get(table, (first, last))
            found[table] = (min(before[0], first), max(before[1], last))
        return found

    def _savepoint(self, walk: Walk) -> str:
        sql = read_query(walk.body(), self._flavour).sql
        name = savepoint_set(sql)
        if name is None:
            raise SourceDrift("a statement can't be understood", detail=sql[:500], hint=BEGIN_ANEW)
        return name

    def _rolled_back_to(self, walk: Walk) -> str | None:
        return rolled_back_to(read_query(walk.body(), self._flavour).sql)

    def _remove_undone(self, walk: Walk, long: _Long, position: Position, *, over: bool) -> None:
        """Forget what the group undid of its rows that the walk has, whether it is open still or `over`."""
        state = walk.state
        first, last = (0, int(state[S.FLUSHED])) if over else (int(state[S.GROUP_ROW]), int(state[S.ROWS]))
        rows = slice(first, last)
        gone = long.undone.holds(walk.row_ordinal[rows]) & self._undoes(walk, rows, position)
        if over:
            # Rows of others may follow.
            gone &= walk.row_commit[rows] == long.position
        walk.remove(first, gone)

    def _undoes(self, walk: Walk, rows: slice, position: Position) -> npt.NDArray[np.bool_]:
        """Which of these rows a ROLLBACK TO undoes: all but those of tables without transactions."""
        stays = [
            index
            for index in np.unique(walk.row_map[rows]).tolist()
            if (schema := self._schemas.find(read_table_map(walk.map_body(index), self._flavour).table, position)) is not None
            and schema.engine.lower() in WITHOUT_TRANSACTIONS
        ]
        return np.isin(walk.row_map[rows], stays, invert=True)

    def _touched(self, walk: Walk, rows: slice) -> bool:
        """Whether any of these rows is of a captured table."""
        tables = (read_table_map(walk.map_body(index), self._flavour).table for index in np.unique(walk.row_map[rows]).tolist())
        return any(self._captured(table) for table in tables)

    def _rows(self, walk: Walk, file: int, ended: Transactions) -> Iterator[ChangeBatch]:
        """All rows of groups that have ended since the last call, table by table."""
        count = int(walk.state[S.FLUSHED])
        if count:
            maps = walk.row_map[:count]
            order = np.argsort(maps, kind="stable").astype(np.int64)
            edges = np.flatnonzero(np.diff(maps[order])) + 1
            groups = sorted(np.split(order, edges), key=lambda group: int(group[0]))
            planned: dict[TableId, list[tuple[Longs, RowPlan]]] = {}
            for chosen in groups:
                # Which schema rows were written with is decided by their commit: no DDL lies between the two.
                first, last = int(chosen[0]), int(walk.row_commit[chosen[-1]])
                plan = self._plan(walk, int(maps[first]), Position(file, int(walk.row_commit[first]), self._era), last)
                if plan is None:
                    continue
                # Commits lie in the order of the log.
                behind = chosen[int(np.searchsorted(walk.row_commit[chosen], self.low(plan.table.id), "right")) :]
                if behind.shape[0]:
                    planned.setdefault(plan.table.id, []).append((behind, plan))
            for parts in planned.values():
                for chosen, plan in _in_turns(parts):
                    yield from self._table_rows(walk, file, chosen, plan, ended)
        walk.drop_rows()

    def _plan(self, walk: Walk, index: int, position: Position, last: int) -> RowPlan | None:
        """How rows are read, of which the first was committed at `position` and the last at `last`; None where none is wanted."""
        body = walk.map_body(index)
        try:
            shape = read_table_map(body, self._flavour)
        except Corrupt as error:
            raise Corrupt(error.fact, detail=error.detail, position=str(position)) from None
        # What lies below may have another shape than the one that is known.
        if not self._captured(shape.table) or last <= self.low(shape.table):
            return None
        schema = self._schemas.find(shape.table, position)
        if schema is None and self._flavour == "mariadb" and shape.maybe_sequence:
            return None
        key = (body, schema)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > 10_000:
                self._plans.clear()
            plan = self._plans[key] = self._fresh_plan(shape, schema, position)
        return plan

    def _fresh_plan(self, shape: TableMap, schema: MySqlTable | None, position: Position) -> RowPlan:
        try:
            return plan_rows(shape, schema, self._options)
        except SourceDrift as error:
            raise shape.table.stuck(error.fact, detail=f"{error.detail} at {position}".strip(), hint=error.hint) from None

    def _table_rows(self, walk: Walk, file: int, chosen: Longs, plan: RowPlan, ended: Transactions) -> Iterator[ChangeBatch]:
        position = Position(file, int(walk.row_commit[chosen[0]]), self._era)
        if np.any(walk.row_type[chosen] == 39):
            plan = plan.with_raw_json()
        columns = len(plan.columns)
        absent = (columns + 7) // 8 if np.any(walk.row_partial[chosen]) else 0
        storage = [column.storage for column in plan.columns] + list(_SYSTEM_STORAGE) + ([Storage(absent)] if absent else [])
        total = int((walk.row_end[chosen] - walk.row_at[chosen]).sum())
        known = self._heaps.setdefault(plan.table.id, {})
        # A small range gets small heaps; what a column was once seen to need it gets at once.
        heaps = [
            max(min(self._limits.heap_bytes, 4 * total + 4096), known.get(column.name, 0)) if column.storage.heap else 0
            for column in plan.columns
        ]
        json_columns = sum(column.kind in (kinds.JSON, kinds.JSON_RAW) for column in plan.columns)
        state = np.zeros(kernel.STATE_SLOTS, np.int64)
        while True:
            # An image has at least one byte, so no more rows than bytes can follow. The halves of an update stay together.
            rows_max = max(2, min(self._limits.rows_per_batch, total + 2))
            layout = Layout(storage, rows_max=rows_max, heap_bytes=[*heaps, *([0] * (len(storage) - columns))])
            arena = Arena(self._pool, layout, valid=True)
            state[kernel.ROWS] = 0
            filled = kernel.fill(
                walk.data, walk.row_at, walk.row_end, walk.row_type, walk.row_commit, walk.row_ordinal, walk.row_time, chosen,
                plan.kind, plan.a, plan.b, layout.valid_at, layout.fixed_at, layout.heap_at, layout.heap_room, arena.heap_used,
                arena.memory, rows_max, absent, json_columns, state,
            )  # fmt: skip
            if filled == kernel.CORRUPT:
                event = int(chosen[min(int(state[kernel.EVENT]), len(chosen) - 1)])
                raise Corrupt(f"a row event of {plan.table.id} can't be read", position=f"{file}:{int(walk.row_commit[event])}")
            if filled == kernel.HEAP_TOO_SMALL:
                column = int(state[kernel.COLUMN])
                need = self._need(plan, column, int(state[kernel.NEED]), position)
                known[plan.columns[column].name] = heaps[column] = max(need, 2 * heaps[column])
                continue
            rows = int(state[kernel.ROWS])
            if rows:
                self.counters.changes += rows
                yield ChangeBatch(plan.table, self._batch(plan, arena, rows, absent, position), ended)
            if filled == kernel.DONE:
                self.counters.nulled_dates += int(state[kernel.NULLED_DATES])
                return

    def _need(self, plan: RowPlan, column: int, need: int, position: Position) -> int:
        """Room for a value that didn't fit an empty arena."""
        if need > self._limits.row_bytes_max:
            raise plan.table.id.stuck(
                f"a row of {plan.table.id} is larger than the limit",
                detail=f"column {plan.columns[column].name}, {need} bytes at {position}",
                hint="exclude the table",
            )
        return need

    def _batch(self, plan: RowPlan, arena: Arena, rows: int, absent: int, position: Position) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        fields: list[pa.Field] = []
        for index, column in enumerate(plan.columns[: len(plan.table.columns)]):
            try:
                array = self._finish(column, arena, index, rows)
            except pa.ArrowInvalid:
                what = f"column {column.name} of {plan.table.id} holds text that is not in its charset"
                raise Corrupt(what, position=str(position)) from None
            # A column that an image may lack is never promised to be there.
            nullable = bool(absent) or column.nullable
            if not nullable and array.null_count:
                fact = f"a NOT NULL column of {plan.table.id} holds NULL in the log"
                raise plan.table.id.stuck(fact, detail=f"{column.name} at {position}", hint=RECOPY)
            arrays.append(array)
            fields.append(pa.field(column.name, array.type, nullable=nullable))
        for offset, system in enumerate(SYSTEM_FIELDS):
            arrays.append(arena.array(len(plan.columns) + offset, system.type, rows, nulls=0))
            fields.append(system)
        if absent:
            arrays.append(arena.array(len(plan.columns) + len(SYSTEM_FIELDS), pa.binary(absent), rows, nulls=0))
            fields.append(pa.field(ABSENT, pa.binary(absent), nullable=False))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _finish(self, column: PlannedColumn, arena: Arena, index: int, rows: int) -> pa.Array:
        match column.finish:
            case Finish.NOTHING:
                return arena.array(index, column.arrow, rows)
            case Finish.UTF8:
                if valid_utf8(*arena.heap(index, rows), rows):
                    return arena.array(index, column.arrow, rows)
                # Old servers let bytes into ascii and utf8mb3 that are neither; SELECT converts them, and so do we.
                if column.charset not in ("ascii", "utf8mb3"):
                    raise pa.ArrowInvalid("not UTF-8")
                return self._transcoded(column, arena, index, rows)
            case Finish.LABEL:
                # Index 0 is the empty string that stands for a value that was refused.
                labels = pa.array(["", *column.labels], pa.string())
                return labels.take(arena.array(index, pa.int32(), rows))
            case Finish.LABELS:
                return set_lists(arena.array(index, pa.uint64(), rows), column.labels)
            case Finish.BOOL:
                return arena.array(index, pa.int8(), rows).cast(pa.bool_())
            case Finish.TRANSCODE:
                return self._transcoded(column, arena, index, rows)
            case Finish.INFLATE:
                return self._inflated(column, arena.array(index, pa.binary(), rows))
            case Finish.JSON:
                return _json_texts(column.name, arena.array(index, pa.binary(), rows))

    def _transcoded(self, column: PlannedColumn, arena: Arena, index: int, rows: int) -> pa.Array:
        offsets, data = transcode(column.charset, *arena.heap(index, rows), rows, flavour=self._flavour)
        if np.may_share_memory(data, arena.memory):
            # Nothing had to be converted; the arena's own buffers keep it lent.
            return arena.array(index, column.arrow, rows)
        array = pa.Array.from_buffers(pa.string(), rows, [arena.validity(index, rows), pa.py_buffer(offsets), pa.py_buffer(data)])
        array.validate(full=True)
        return array

    def _inflated(self, column: PlannedColumn, packed: pa.Array) -> pa.Array:
        """MariaDB's COMPRESSED columns: a byte of zero and the value, or zlib behind a header."""
        values = [None if value is None else _plain_value(value, self._limits.row_bytes_max) for value in packed.to_pylist()]
        array = pa.array(values, pa.binary())
        if pa.types.is_binary(column.arrow):
            return array
        _, offsets, data = array.buffers()
        count = len(array)
        if column.charset and column.charset not in ("utf8mb4", "utf8mb3", "ascii"):
            places = np.frombuffer(offsets, np.int32)[: count + 1]
            offsets_out, data_out = transcode(
                column.charset, places, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), count, flavour=self._flavour
            )
            text = pa.Array.from_buffers(pa.string(), count, [array.buffers()[0], pa.py_buffer(offsets_out), pa.py_buffer(data_out)])
        else:
            text = array.view(pa.string())
        text.validate(full=True)
        return text

    def _statement(self, walk: Walk, windows: Windows, body: bytes, position: Position, gtid: Bytes) -> Iterator[LogItem]:
        query = read_query(body, self._flavour)
        xa = read_xa_end(query.sql)
        time = walk.event_time_s()
        if xa:
            if walk.in_group:
                raise Corrupt("an XA transaction is decided inside of another", position=str(position))
            yield from self._xa_ended(windows, *xa, position, Transactions.one(position.offset, time, gtid))
            return
        if self._step_over or not walk.takes_effect():
            return
        rules = Rules.of_event(
            flavour=self._flavour,
            version=self._version,
            sql_mode=query.sql_mode,
            explicit_timestamps=query.explicit_timestamps,
            collations=query.collations,
            lower_case_names=self._lower_case_names,
        )
        changes = read_statement(
            query.sql,
            database=query.database,
            schemas=lambda table: self._schemas.find(table, position),
            captured=self._captured,
            defaults=lambda name: self._collations.get(name, rules.default_collation("utf8mb4")),
            rules=rules,
            temporary=walk.used_temporary(),
            databases=query.databases,
        )
        for change in changes:
            if isinstance(change, RowsAsText) and change.named:
                raise _logged_as_statement(f"{change.verb} that names {', '.join(map(str, change.named))}", position)
            if isinstance(change, RowsAsText):
                raise _logged_as_statement(f"{change.verb} that may reach a captured table by a view, trigger or function", position)
            self._apply(change, position)
        if any(not isinstance(change, Ignored | RowsAsText) for change in changes):
            yield SchemaChanged(position, time, query.sql, changes)

    def _apply(self, change: SchemaChange, position: Position) -> None:
        """Make the schema behind a statement the one in force."""
        match change:
            case CreateTable(table=table):
                self._schemas.put(table.id, position, table)
            case AlterColumns(table=name, after=after) | Rewrites(table=name, after=after):
                self._schemas.put(name, position, after)
            case DropTable(table=name):
                self._schemas.put(name, position, None)
            case RenameTable(old=old, new=new, after=after):
                self._schemas.put(old, position, None)
                self._schemas.put(new, position, after)
            case DropDatabase(name=database):
                for known in self._schemas.tables():
                    if known.database == database:
                        self._schemas.put(known, position, None)
            case DatabaseDefaults(name=database, collation=collation):
                if collation is None:
                    self._collations.pop(database, None)
                else:
                    self._collations[database] = collation
            case NotUnderstood(statement=statement, reason=reason):
                raise SourceDrift(
                    "a statement can't be understood",
                    detail=f"{reason} at {position}: {statement[:500]}",
                    hint=BEGIN_ANEW,
                )
            case Merged(table=name):
                raise name.stuck(MERGED, detail=f"at {position}", hint=f"{SEPARATE}; then {RECOPY}")
            case Truncate() | Ignored() | RowsAsText():
                pass

    def _prepared(self, walk: Walk, position: Position, size: int, events: Callable[[], Bytes], checksum_bytes: int) -> None:
        """Hold aside the group that the walk has come to the end of."""
        if self.prepared is not None:
            walk.drop_group()
            return
        _, xid = read_xa_prepare(walk.body())
        held = size + sum(entry.log.size for entry in self.held.values())
        if held > self._limits.held_bytes_max:
            raise SourceDrift("prepared XA transactions are larger than the limit", detail=f"{held} bytes at {position}")
        log = InMemory(events(), window_bytes=self._limits.prefilter_bytes)
        self.held[xid] = PreparedEvents(log, checksum_bytes, int(walk.state[S.GROUP_POSITION]))
        walk.drop_group()

    def _xa_ended(self, windows: Windows, committed: bool, xid: Xid, position: Position, ended: Transactions) -> Iterator[LogItem]:
        if self.prepared is None:
            held = self.held.pop(xid, None)
        else:
            held = self.prepared(xid, position) if committed else None
        if not committed or (self.prepared is None and held is None and any(other.branch == xid.branch for other in self.held)):
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
            yield from self._held_rows(held, position, ended)
        finally:
            held.close()

    def _held_rows(self, held: PreparedEvents, position: Position, ended: Transactions) -> Iterator[LogItem]:
        """The rows of a prepared group. Prepared rows are in no read: what counts is the name and the time of the COMMIT, as its position
        does. The group's places and statements were dealt with when it was prepared."""
        walk = Walk(window_bytes=held.log.window_bytes, position=held.position)
        unpacker = Unpacker(gaps=True, limits=self._limits)
        windows = Windows(held.log, walk, unpacker, checksum_bytes=held.checksum_bytes, places=Places.UNPACKED, where=str(position))
        try:
            yield from self._held_windows(walk, windows, position, ended)
        finally:
            windows.close()

    def _held_windows(self, walk: Walk, windows: Windows, position: Position, ended: Transactions) -> Iterator[LogItem]:
        found = self._look_ahead(walk, windows, 0, position.file)
        wanted = partial(self._wants, position.offset)
        there = windows.next(wanted=wanted)
        while there:
            stop = walk.go_on(commit_as=position.offset)
            if found.undone and stop in (Stop.END, Stop.PACKED):
                first = 0 if not walk.in_group else int(walk.state[S.GROUP_ROW])
                rows = slice(first, int(walk.state[S.ROWS]))
                walk.remove(first, found.undone.holds(walk.row_ordinal[rows]) & self._undoes(walk, rows, position))
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
                    yield from self._rows(walk, position.file, ended)
                    if stop is Stop.PACKED:
                        windows.unpack(wanted)
                    else:
                        there = windows.next(wanted=wanted)
                case _:
                    raise Corrupt("a held XA group reads otherwise than when it was prepared", detail=stop.name, position=str(position))
        if walk.in_group:
            raise Corrupt("a held XA group has no end", position=str(position))


def _nothing(_: bytes) -> bool:
    """No rows are wanted."""
    return False


def _in_turns(parts: list[tuple[Longs, RowPlan]]) -> Iterator[tuple[Longs, RowPlan]]:
    """The events of one table in the order of the log.

    A table that the server opens anew gets another number, hence another map. A transaction that used the old number may commit
    behind one that used the new, so the maps can take turns.
    """
    if len(parts) == 1:
        yield parts[0]
        return
    events = np.concatenate([chosen for chosen, _ in parts])
    part = np.repeat(np.arange(len(parts)), [chosen.shape[0] for chosen, _ in parts])
    order = np.argsort(events)
    events, part = events[order], part[order]
    edges = np.flatnonzero(np.diff(part)) + 1
    for chosen, first in zip(np.split(events, edges), [0, *edges.tolist()], strict=True):
        yield chosen, parts[int(part[first])][1]


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile the kernels, or load them from the cache on disk, before the first batch waits for them. `tell`: how far compiling is."""
    entries = (scan.walk, scan.gtid_ends, scan.gather_gtids, scan.whole_events, kernel.fill)
    kernels.compile_kernels(entries, _call_kernels, tell)


def _call_kernels() -> None:
    walk = Walk.over(np.zeros(0, np.uint8), position=4, checksum_bytes=4)
    check(walk.go_on() is Stop.END, "an empty range has nothing in it")
    walk.gtids()
    whole_events(walk.data, 4)
    none, layout = np.zeros(0, np.int64), Layout(_SYSTEM_STORAGE, rows_max=2, heap_bytes=[0] * len(_SYSTEM_STORAGE))
    arena = Arena(ArenaPool(), layout, valid=True)
    kernel.fill(
        walk.data, walk.row_at, walk.row_end, walk.row_type, walk.row_commit, walk.row_ordinal, walk.row_time, none,
        none, none, none, layout.valid_at, layout.fixed_at, layout.heap_at, layout.heap_room, arena.heap_used,
        arena.memory, 2, 0, 0, np.zeros(kernel.STATE_SLOTS, np.int64),
    )  # fmt: skip


def _refused(stop: Stop) -> bool:
    return stop >= Stop.CUT_SHORT or stop in (Stop.INCIDENT, Stop.UNKNOWN)


def _refusal(walk: Walk, stop: Stop, position: Position) -> Exception:
    where = str(position)
    if stop is Stop.INCIDENT:
        return SourceDrift(
            "the server lost events of its log",
            detail=f"{read_incident(walk.body())} at {where}",
            hint="snapshot the captured tables again",
        )
    if stop is Stop.UNKNOWN:
        kind = int(walk.data[walk.state[S.EVENT_AT] + 4])
        return SourceDrift("the log holds an event of a kind that we don't know", detail=f"type {kind} at {where}")
    return Corrupt(_CORRUPT_TEXT[stop], position=where)


_CORRUPT_TEXT = {
    Stop.CUT_SHORT: "an event is cut short",
    Stop.BAD_SIZE: "an event's size can't be",
    Stop.BAD_CHECKSUM: "an event's checksum is wrong",
    Stop.WENT_BACK: "the log's positions go back",
    Stop.NO_MAP: "a row event's table was not mapped by its statement",
    Stop.NO_GROUP: "rows or an end lie outside a transaction",
    Stop.BAD_QUERY: "a statement's event can't be read",
    Stop.OPEN_GROUP: "a transaction is not ended",
    Stop.GAP: "events are missing",
}


def _written(walk: Walk, tables: S, lacks: S) -> Written | None:
    return Written(int(walk.state[tables]), bool(walk.state[lacks])) if walk.state[tables] else None


def _no_savepoint(name: str, position: Position) -> SourceDrift:
    return SourceDrift(
        "a transaction rolled back to a savepoint that the log does not hold",
        detail=f"{name} at {position}",
        hint=f"does a filter (binlog_do_db, binlog_ignore_db) leave statements out of the log? {BEGIN_ANEW}",
    )


def _logged_as_statement(what: str, position: Position) -> SourceDrift:
    return SourceDrift(
        "a change was logged as a statement, not as rows",
        detail=f"{what} at {position}",
        hint="set binlog_format = ROW for all sessions and snapshot the captured tables again",
    )


def _plain_value(stored: bytes, bytes_max: int) -> bytes:
    """A value of a COMPRESSED column: nothing, or a zero byte and the value, or compressed data."""
    if not stored or stored[0] == 0:
        return stored[1:]
    return inflate(stored, bytes_max=bytes_max)


def _json_texts(name: str, raw: pa.Array) -> pa.Array:
    """Documents and differences as text. Differences apply to the document of the row before, which is the update's other half."""
    texts: list[bytes | None] = []
    before: bytes | None = None
    for value in raw.to_pylist():
        if value is None:
            texts.append(None)
            before = None
        elif value[0] == 0:
            texts.append(text_of(value[1:]))
            before = value[1:]
        else:
            if before is None:
                raise SourceDrift(
                    "the log holds differences of a JSON document without the document",
                    detail=f"column {name}",
                    hint=f"with binlog_row_value_options = PARTIAL_JSON, binlog_row_image must be FULL; set it and {BEGIN_ANEW}",
                )
            texts.append(apply_diffs(before, value[1:]))
            before = None
    return pa.array(texts, pa.binary()).cast(pa.string())
