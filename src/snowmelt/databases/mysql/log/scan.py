"""The walk over the log, window by window: which row events belong to which table and to which transaction.

States: outside a group; inside a group (from its GTID, BEGIN or XA START to its end), which may have begun in an earlier window.
Forbidden: rows outside a group, rows of a table that their statement did not map, an event longer than what is left, a wrong
checksum, an event that does not begin where the one before it ended, a new window before all rows of the last one are handed out.
Memory: one entry per row event and per transaction of a window, whatever the size of the log or of a transaction; the table maps of
the open statement, and of others as long as they are few.

A row gets its position when its group *ends*: the end of the commit. The compiled walk stops with a reason at what it can't decide: a
statement, a prepared XA group, a packed event, a window's end. The caller decides and continues the walk.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import JIT, copy, kernel_view, load16, load32, load64
from snowmelt.databases.mysql.log.events import FLAG_IGNORABLE, FLAG_TEMPORARY, HEADER_BYTES, Event, Reader
from snowmelt.errors import check

ROW_EVENT_BYTES_MIN = 19 + 8
_HASH_BITS = 13
# Flags of MariaDB's GTIDs, and, from _BEGINS_ALTER on, those in a second byte.
_HAS_COMMIT_ID = 0x02
_OF_XA = 0x40 | 0x80
_BEGINS_ALTER = 0x02
_UNDOES_ALTER = 0x08
MAPS_FIRST = 1 << (_HASH_BITS - 1)
"""Tables that a walk has room for before it must grow."""
_MAP_BYTES_FIRST = 1 << 16
_KEPT = -2
"""In place of an offset: the event lies in an earlier window, and a copy of it was kept."""
_NOTHING: Bytes = np.empty(0, np.uint8)


class Places(IntEnum):
    """Where an event may begin in the log."""

    EXACT = 0
    """Where the one before it ended."""
    GAPS = 1
    """There or later: MariaDB's ANNOTATE_ROWS events are not stored."""
    UNPACKED = 2
    """Anywhere: events that came out of another have its end. The position of that other one was checked."""


class Stop(IntEnum):
    """Why the walk stopped."""

    END = 0
    """Of the window."""
    STATEMENT = 1
    """A QUERY that is neither BEGIN, COMMIT, ROLLBACK nor a savepoint."""
    XA_PREPARE = 2
    PACKED = 3
    """A compressed or fragmented event, which was not walked: unpack it, then walk that."""
    INCIDENT = 4
    LOGGED_AS_STATEMENT = 5
    """LOAD DATA: its file came before, in events of its own, and this one names the table."""
    UNKNOWN = 6
    MAPS_FULL = 7
    GROUP_ENDED = 8
    """Only in a walk that looks for the end."""
    SAVEPOINT = 9
    """Only if savepoints are followed."""
    # What follows is corrupt.
    CUT_SHORT = 16
    BAD_SIZE = 17
    BAD_CHECKSUM = 18
    WENT_BACK = 19
    NO_MAP = 20
    NO_GROUP = 21
    BAD_QUERY = 22
    OPEN_GROUP = 23
    GAP = 24


class S(IntEnum):
    """Slots of the walk's state."""

    AT = 0
    """Offset of the next event in the buffer."""
    POSITION = 1
    """End of the last event in the log, 64 bits."""
    ROWS = 2
    MAPS = 3
    TRANSACTIONS = 4
    IN_GROUP = 5
    """0 outside, 1 a group has begun, 2 and it is ended by a commit only, 3 an XA group."""
    GROUP_ROW = 6
    GROUP_AT = 7
    """The open group's first event in the window, below zero if it lies in an earlier one."""
    GTID_AT = 8
    """The offset of its GTID event, which is its first; -1: it has none."""
    STATEMENT_NUMBER = 9
    EVENT_AT = 10
    """The event that the walk stopped at."""
    EVENT_END = 11
    STOP_POSITION = 12
    FLUSHED = 13
    """Rows below are of ended groups."""
    GROUP_EVENTS = 14
    """Row events of the open group in earlier windows."""
    GROUP_POSITION = 15
    """Where the log was before the open group."""
    ROLLED_BACK = 16
    """How the group ended that the walk looked for."""
    GROUP_NUMBER = 17
    FOLLOWS = 18
    """Whether the walk stops at savepoints. They matter only in a group that rolls back to one."""
    MAPPED = 19
    """How many tables the open statement has mapped."""
    MAPPED_HASH = 20
    ROWED = 21
    """The number of them that it has rows of."""
    LAST_HASH = 22
    """A hash of the tables that the last ended statement of the open group mapped; 0: there is none."""
    LAST_LACKS = 23
    """Whether it has no rows of one of them."""
    NEXT_HASH = 24
    """The same for the first statement that has ended since this was set to 0."""
    NEXT_LACKS = 25


STATE_SLOTS = 26


class Walk:
    """The arrays that a walk fills, and its state between stops and from window to window.

    Made for windows of up to `window_bytes`; a larger one must be a single event. A window begins with `enter` and ends with `leave`, when
    its rows are handed out. After that its bytes are not read, so the memory may get others.
    """

    def __init__(self, *, window_bytes: int, position: int) -> None:
        self._places = int(Places.GAPS)
        self._window_bytes = window_bytes
        self.data = _NOTHING
        self.checksum_bytes = 0
        rows_max = window_bytes // ROW_EVENT_BYTES_MIN + 2
        self.row_at: Longs = np.empty(rows_max, np.int64)
        self.row_end: Longs = np.empty(rows_max, np.int64)
        self.row_type = np.empty(rows_max, np.uint8)
        self.row_map = np.empty(rows_max, np.int32)
        self.row_partial = np.empty(rows_max, np.bool_)
        self.row_commit: Longs = np.empty(rows_max, np.int64)
        self.row_ordinal = np.empty(rows_max, np.int32)
        self.row_time: Longs = np.empty(rows_max, np.int64)
        self.map_data = np.empty(_MAP_BYTES_FIRST, np.uint8)
        self.map_at: Longs = np.zeros(MAPS_FIRST + 1, np.int64)
        self.map_id: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_statement: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_rows: Longs = np.full(MAPS_FIRST, -1, np.int64)
        """The last statement that had rows of it."""
        self.map_slots = np.full(1 << _HASH_BITS, -1, np.int32)
        # The shortest group is a statement: a header, 13 bytes, a database's and a statement's first bytes.
        transactions_max = window_bytes // 32 + 2
        self.txn_commit: Longs = np.empty(transactions_max, np.int64)
        self.txn_time: Longs = np.empty(transactions_max, np.int64)
        self.txn_gtid_at: Longs = np.empty(transactions_max, np.int64)
        self.state: Longs = np.zeros(STATE_SLOTS, np.int64)
        self.state[S.POSITION] = position
        self.state[S.GTID_AT] = -1
        self._first = _NOTHING

    @staticmethod
    def over(data: Bytes, *, position: int, checksum_bytes: int, places: Places = Places.GAPS) -> Walk:
        """A walk over a range that is one window."""
        walk = Walk(window_bytes=data.shape[0], position=position)
        walk.enter(data, checksum_bytes=checksum_bytes, places=places)
        return walk

    def enter(self, data: Bytes, *, checksum_bytes: int, places: Places) -> None:
        """Continue with the events in `data`, which is valid until the walk leaves it."""
        check(checksum_bytes in (0, 4), "a checksum has no or four bytes")
        self.leave()
        state = self.state
        if state[S.MAPS] > MAPS_FIRST // 2:
            self._drop_maps()
        self.data = kernel_view(data)
        # The walk itself does not check the ends of its arrays.
        fits = data.shape[0] <= self._window_bytes or self._size(0) >= data.shape[0]
        check(fits, "a window is larger than the walk was made for", f"{data.shape[0]} bytes, not {self._window_bytes}")
        self.checksum_bytes = checksum_bytes
        self._places = int(places)

    def leave(self) -> None:
        """Keep what the open group still needs of the window, which may then be used for other bytes. Harmless if the walk is in none."""
        state = self.state
        check(int(state[S.ROWS]) == 0, "a window is left while rows of it are not handed out")
        if state[S.IN_GROUP] and state[S.GROUP_AT] >= 0:
            at = int(state[S.GROUP_AT])
            self._first = self.data[at : at + self._size(at) - self.checksum_bytes].copy()
            state[S.GROUP_AT] = _KEPT
            if state[S.GTID_AT] >= 0:
                state[S.GTID_AT] = _KEPT
        self.data = _NOTHING
        state[S.AT] = 0

    def advance(self, *, commit_as: int = -1, look: bool = False) -> Stop:
        """Walk to the next stop. `commit_as` makes XA PREPARE the end of a group that was committed at that position. `look` only finds the
        end of the open group: no row is noted, and no checksum is checked."""
        return Stop(
            walk(
                self.data,
                self.checksum_bytes,
                self._places,
                commit_as,
                look,
                self.row_at,
                self.row_end,
                self.row_type,
                self.row_map,
                self.row_partial,
                self.row_commit,
                self.row_ordinal,
                self.row_time,
                self.map_data,
                self.map_at,
                self.map_id,
                self.map_statement,
                self.map_rows,
                self.map_slots,
                self.txn_commit,
                self.txn_time,
                self.txn_gtid_at,
                self.state,
            )
        )

    @property
    def in_group(self) -> bool:
        return bool(self.state[S.IN_GROUP])

    @property
    def position(self) -> int:
        """The end of the last event that was walked."""
        return int(self.state[S.POSITION])

    def map_body(self, index: int) -> bytes:
        return self.map_data[int(self.map_at[index]) : int(self.map_at[index + 1])].tobytes()

    def map_of(self, number: int) -> bytes | None:
        """The body of the map that the open statement has of a table, by the table's number."""
        index = int(self.map_slots[_slot(self.map_slots, self.map_id, np.int64(number))])
        known = index >= 0 and self.map_statement[index] == self.state[S.STATEMENT_NUMBER]
        return self.map_body(index) if known else None

    def grow_maps(self) -> None:
        """Room for twice as many tables, and for the map that the walk stopped at."""
        for name in ("map_id", "map_statement", "map_rows", "map_data"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old)]))
        self.map_at = np.concatenate([self.map_at, np.zeros(self.map_at.shape[0] - 1, np.int64)])
        need = int(self.state[S.EVENT_END] - self.state[S.EVENT_AT])
        self.map_data = np.concatenate([self.map_data, np.empty(need, np.uint8)])
        self._hash_maps()

    def _hash_maps(self) -> None:
        self.map_slots = np.full(2 * (self.map_at.shape[0] - 1), -1, np.int32)
        hash_maps(self.map_id, int(self.state[S.MAPS]), self.map_slots)

    def _drop_maps(self) -> None:
        """Keep the maps of the open statement alone. No row refers to the others: all were handed out."""
        count = int(self.state[S.MAPS])
        kept = np.flatnonzero(self.map_statement[:count] == self.state[S.STATEMENT_NUMBER])
        bodies = [self.map_body(int(index)) for index in kept]
        self.map_id[: len(kept)] = self.map_id[kept]
        self.map_statement[: len(kept)] = self.map_statement[kept]
        self.map_rows[: len(kept)] = self.map_rows[kept]
        self.map_at[1 : len(kept) + 1] = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        joined = b"".join(bodies)
        self.map_data[: len(joined)] = np.frombuffer(joined, np.uint8)
        self.state[S.MAPS] = len(kept)
        self._hash_maps()

    def body(self) -> bytes:
        """The body of the event that the walk stopped at."""
        return self.data[self.state[S.EVENT_AT] + 19 : self.state[S.EVENT_END]].tobytes()

    def _size(self, at: int) -> int:
        return int.from_bytes(self.data[at + 9 : at + 13].tobytes(), "little")

    def _group_event(self) -> bytes:
        """The first event of the open group, or of the last one, without its checksum."""
        at = int(self.state[S.GROUP_AT])
        return (self._first if at == _KEPT else self.data[at : at + self._size(at) - self.checksum_bytes]).tobytes()

    def group_data(self) -> Bytes:
        """The events of the open group so far, which began in this window."""
        return self.data[int(self.state[S.GROUP_AT]) : int(self.state[S.AT])].copy()

    def takes_effect(self) -> bool:
        """Whether the statement that the walk stopped at does anything. MariaDB may log an ALTER when it begins and, with the same text,
        when it ends (binlog_alter_two_phase). It takes effect when it ends well; the transaction's GTID says which of the three this is."""
        event = self._group_event()
        if event[4] != Event.GTID_MARIADB:
            return True
        reader = Reader(event[HEADER_BYTES:], "GTID")
        reader.take(12)
        flags = reader.number(1)
        if flags & _HAS_COMMIT_ID:
            reader.take(8)
        if flags & _OF_XA:
            reader.take(4)
            reader.take(reader.number(1) + reader.number(1))
        return not (reader.left and reader.number(1) & (_BEGINS_ALTER | _UNDOES_ALTER))

    def gtids(self) -> tuple[Longs, Bytes]:
        """The GTID events of the transactions that have ended, one after the other, and where each ends. It is empty for one without."""
        count = int(self.state[S.TRANSACTIONS])
        ends: Longs = np.empty(count, np.int64)
        size = gtid_ends(self.data, self.txn_gtid_at[:count], self._first, ends)
        events: Bytes = np.empty(size, np.uint8)
        gather_gtids(self.data, self.txn_gtid_at[:count], self._first, ends, events)
        return ends, events

    def group_gtid(self) -> Bytes:
        """The GTID event of the open group, or of the last one; empty if it has none. It would be its first event."""
        event = np.frombuffer(self._group_event(), np.uint8)
        return event if event[4] in (Event.GTID, Event.ANONYMOUS_GTID, Event.GTID_TAGGED, Event.GTID_MARIADB) else event[:0]

    def event_time_s(self) -> int:
        """Of the event that the walk stopped at."""
        at = int(self.state[S.EVENT_AT])
        return int.from_bytes(self.data[at : at + 4].tobytes(), "little")

    def used_temporary(self) -> bool:
        """Whether the statement that the walk stopped at says that it used a temporary table."""
        at = int(self.state[S.EVENT_AT])
        return bool(int.from_bytes(self.data[at + 17 : at + 19].tobytes(), "little") & FLAG_TEMPORARY)

    def back(self) -> int:
        """Forget the open group as if the walk had stopped before it; where it begins in the window."""
        state = self.state
        check(int(state[S.GROUP_AT]) >= 0, "a walk goes back to a group that begins in an earlier window")
        state[S.POSITION] = state[S.GROUP_POSITION]
        state[S.AT] = state[S.GROUP_AT]
        # When it begins again it is the same group.
        state[S.GROUP_NUMBER] -= 1
        self.drop_group()
        return int(state[S.AT])

    def commit_open(self, position: int, time_s: int) -> None:
        """The rows of the open group may be handed out: how it ends is known."""
        state = self.state
        first, last = int(state[S.GROUP_ROW]), int(state[S.ROWS])
        self.row_commit[first:last] = position
        self.row_time[first:last] = time_s
        state[S.GROUP_EVENTS] += last - first
        state[S.FLUSHED] = state[S.GROUP_ROW] = last

    def forget_open(self) -> None:
        """The rows of the open group so far must not be handed out."""
        self.state[S.GROUP_EVENTS] += self.state[S.ROWS] - self.state[S.GROUP_ROW]
        self.state[S.ROWS] = self.state[S.GROUP_ROW]

    @property
    def group_events(self) -> int:
        """How many row events of the open group were walked, with those that were undone or handed out."""
        return int(self.state[S.GROUP_EVENTS] + self.state[S.ROWS] - self.state[S.GROUP_ROW])

    def remove(self, first: int, gone: npt.NDArray[np.bool_]) -> None:
        """Forget some of the rows from `first` on, which are of one group: they were undone. Others keep their ordinals."""
        state = self.state
        count = int(gone.sum())
        if not count:
            return
        end, last = first + gone.shape[0], int(state[S.ROWS])
        for array in (
            self.row_at, self.row_end, self.row_type, self.row_map, self.row_partial, self.row_commit, self.row_ordinal, self.row_time
        ):  # fmt: skip
            kept = np.concatenate([array[first:end][~gone], array[end:last]])
            array[first : first + kept.shape[0]] = kept
        state[S.ROWS] -= count
        if first >= state[S.GROUP_ROW] and state[S.IN_GROUP]:
            state[S.GROUP_EVENTS] += count
        else:
            state[S.GROUP_ROW] -= count
            state[S.FLUSHED] -= count

    def restore(self, state: Longs) -> None:
        """Go back to the place where `state` was copied, which is before a group. No row refers to a map there."""
        self.state[:] = state
        self.state[S.MAPS] = 0
        self._hash_maps()

    def drop_group(self) -> None:
        """Forget the open group's rows: they were prepared, not committed."""
        self.state[S.ROWS] = self.state[S.GROUP_ROW]
        self.state[S.IN_GROUP] = 0
        self.state[S.GTID_AT] = -1

    def drop_rows(self) -> None:
        """Forget the rows of ended groups, which were handed out; the open group's move to the front."""
        first, last = int(self.state[S.FLUSHED]), int(self.state[S.ROWS])
        if first:
            for array in (
                self.row_at, self.row_end, self.row_type, self.row_map, self.row_partial, self.row_commit, self.row_ordinal, self.row_time
            ):  # fmt: skip
                array[: last - first] = array[first:last].copy()
        self.state[S.ROWS] = last - first
        self.state[S.GROUP_ROW] = max(0, int(self.state[S.GROUP_ROW]) - first)
        self.state[S.FLUSHED] = 0
        self.state[S.TRANSACTIONS] = 0


@njit(**JIT)
def _starts(data, at, end, word):  # type: ignore[no-untyped-def]
    """Whether the text in data[at:end] starts with `word` (upper case ASCII), whatever its case."""
    if end - at < word.shape[0]:
        return False
    for i in range(word.shape[0]):
        c = data[at + i]
        if 97 <= c <= 122:
            c -= 32
        if c != word[i]:
            return False
    return True


@njit(**JIT)
def held_columns(buffer, at, columns):  # type: ignore[no-untyped-def]
    """How many columns a bitmap at `at` holds. Nearly always that is all of them, so whole bytes are read first."""
    whole = columns >> 3
    rest = columns & 7
    held = 0
    for i in range(whole):
        if buffer[at + i] == 255:
            held += 8
        else:
            for bit in range(8):
                held += buffer[at + i] >> bit & 1
    for bit in range(rest):
        held += buffer[at + whole] >> bit & 1
    return held


@njit(**JIT)
def _partial(data, at, end, kind):  # type: ignore[no-untyped-def]
    """Whether an image of a row event lacks a column. An event that is cut short is left to the row kernel to refuse."""
    q = at + 27
    if kind >= 30:
        if end - q < 2:
            return False
        q += np.int64(load16(data, q))
    if end - q < 3:
        return False
    columns = np.int64(data[q])
    q += 1
    if columns >= 252:
        columns = np.int64(load16(data, q))
        q += 2
    bitmaps = 2 if kind == 24 or kind == 31 or kind == 39 else 1
    size = (columns + 7) >> 3
    if q + bitmaps * size > end:
        return False
    held = held_columns(data, q, columns)
    if bitmaps == 2:
        held = min(held, held_columns(data, q + size, columns))
    return held != columns


@njit(**JIT)
def _checksum_is_right(data, at, end, in_use):  # type: ignore[no-untyped-def]
    """Whether the CRC-32 after an event is its own. The first event of a file has a flag while the server writes to the file. Its checksum
    was made without that flag."""
    if not in_use:
        return crc32(data, at, end, np.uint32(0)) == load32(data, end)
    flags = np.empty(1, np.uint8)
    flags[0] = data[at + 17] & 0xFE
    seed = crc32(flags, 0, 1, crc32(data, at, at + 17, np.uint32(0)))
    return crc32(data, at + 18, end, seed) == load32(data, end)


@njit(**JIT)
def _equal(one, one_at, other, other_at, count):  # type: ignore[no-untyped-def]
    """Whether two stretches are the same, eight bytes at a time."""
    i = 0
    while i + 8 <= count:
        if load64(one, one_at + i) != load64(other, other_at + i):
            return False
        i += 8
    while i < count:
        if one[one_at + i] != other[other_at + i]:
            return False
        i += 1
    return True


_BEGIN = np.frombuffer(b"BEGIN", np.uint8)
_COMMIT = np.frombuffer(b"COMMIT", np.uint8)
_ROLLBACK = np.frombuffer(b"ROLLBACK", np.uint8)
_SAVEPOINT = np.frombuffer(b"SAVEPOINT", np.uint8)
_XA_START = np.frombuffer(b"XA START", np.uint8)
_XA_END = np.frombuffer(b"XA END", np.uint8)


@njit(**JIT)
def _slot(slots, map_id, table):  # type: ignore[no-untyped-def]
    """Where the table of this number is, or the free slot where it would be."""
    mask = slots.shape[0] - 1
    slot = (table * np.int64(0x9E3779B1) >> 7) & mask
    while slots[slot] >= 0 and map_id[slots[slot]] != table:
        slot = (slot + 1) & mask
    return slot


@njit(**JIT)
def hash_maps(map_id, maps, slots):  # type: ignore[no-untyped-def]
    """Fill the slots anew; of several maps of one number the last counts."""
    for index in range(maps):
        slots[_slot(slots, map_id, map_id[index])] = index


@njit(**JIT)
def whole_events(data, checksum):  # type: ignore[no-untyped-def]
    """How many bytes from the first on are whole events. A size that can't be is left to the walk: all counts then."""
    at = np.int64(0)
    end = data.shape[0]
    while end - at >= 19:
        size = np.int64(load32(data, at + 9))
        if size < 19 + checksum:
            return end
        if size > end - at:
            return at
        at += size
    return at


@njit(**JIT)
def gtid_ends(data, gtid_at, kept, ends):  # type: ignore[no-untyped-def]
    """Where each GTID event ends when they lie one after the other; the end of the last."""
    total = np.int64(0)
    for i in range(gtid_at.shape[0]):
        at = gtid_at[i]
        if at >= 0:
            total += np.int64(load32(data, at + 9))
        elif at == _KEPT:
            total += kept.shape[0]
        ends[i] = total
    return total


@njit(**JIT)
def gather_gtids(data, gtid_at, kept, ends, events):  # type: ignore[no-untyped-def]
    before = np.int64(0)
    for i in range(gtid_at.shape[0]):
        at = gtid_at[i]
        if at >= 0:
            copy(events, before, data, at, ends[i] - before)
        elif at == _KEPT:
            copy(events, before, kept, 0, ends[i] - before)
        before = ends[i]


@njit(**JIT)
def walk(  # type: ignore[no-untyped-def]
    data, checksum, places, commit_as, look,
    row_at, row_end, row_type, row_map, row_partial, row_commit, row_ordinal, row_time,
    map_data, map_at, map_id, map_statement, map_rows, map_slots,
    txn_commit, txn_time, txn_gtid_at, state,
):  # fmt: skip
    """Walk events from state[AT] on; returns a `Stop`."""
    at = state[0]
    end = data.shape[0]
    position = state[1]
    rows = state[2]
    maps = state[3]
    transactions = state[4]
    in_group = state[5]
    group_row = state[6]
    group_at = state[7]
    gtid_at = state[8]
    statement = state[9]
    flushed = state[13]
    group_events = state[14]
    group_position = state[15]
    last_id = np.int64(-1)
    last_map = np.int64(-1)
    stop = 0
    while True:
        if at == end:
            break
        state[10] = at
        state[12] = position
        if end - at < 19:
            stop = 16
            break
        size = np.int64(load32(data, at + 9))
        if size < 19 + checksum:
            stop = 17
            break
        if size > end - at:
            stop = 16
            break
        kind = data[at + 4]
        stop_at = at + size - checksum
        state[11] = stop_at
        if checksum and not look and not _checksum_is_right(data, at, stop_at, kind == 15 and load16(data, at + 17) & 1 != 0):
            stop = 18
            break
        before = position
        # The header's end position has 32 bits; ours counts on. Zero means that the event does not have it: then its size is counted. An
        # event that came out of another has no position then. A commit always has one, so its zero is a multiple of 4 GiB.
        low = np.int64(load32(data, at + 13))
        if low == 0 and not (kind == 16 and places == 1):
            if places < 2:
                position += size
        else:
            new = (position & ~np.int64(0xFFFFFFFF)) | low
            if new < position:
                new += np.int64(0x100000000)
            if new - position > np.int64(0x80000000) and size < np.int64(0x80000000):
                stop = 19
                break
            if places < 2 and new - position < size:
                stop = 19
                break
            if places == 0 and new - position > size:
                stop = 24
                break
            position = new
        state[12] = position
        ended = 0
        if kind == 19 or (23 <= kind <= 25) or (30 <= kind <= 32) or kind == 39:
            if stop_at - at < 27:
                stop = 17
                break
            table = np.int64(load32(data, at + 19)) | (np.int64(load16(data, at + 23)) << 32)
            if look:
                pass
            elif kind == 19:
                if table == last_id and last_map >= 0:
                    found = last_map
                else:
                    found = np.int64(map_slots[_slot(map_slots, map_id, table)])
                length = stop_at - at - 19
                same = found >= 0 and map_at[found + 1] - map_at[found] == length
                if same:
                    same = _equal(map_data, map_at[found], data, at + 19, length)
                if not same:
                    if maps >= map_id.shape[0] or map_at[maps] + length > map_data.shape[0]:
                        # The walk continues with this event when there is room.
                        position = before
                        stop = 7
                        break
                    map_slots[_slot(map_slots, map_id, table)] = maps
                    found = maps
                    copy(map_data, map_at[maps], data, at + 19, length)
                    map_at[maps + 1] = map_at[maps] + length
                    map_id[maps] = table
                    map_rows[maps] = -1
                    maps += 1
                map_statement[found] = statement
                last_id = table
                last_map = found
                state[19] += 1
                state[20] = state[20] * 1000003 + table + 1
            else:
                flags = load16(data, at + 25)
                if table != 0xFFFFFF or flags & 1 == 0:
                    if table == last_id and last_map >= 0:
                        found = last_map
                    else:
                        found = np.int64(map_slots[_slot(map_slots, map_id, table)])
                        last_id = table
                        last_map = found
                    if found < 0 or map_statement[found] != statement:
                        stop = 20
                        break
                    if in_group == 0:
                        stop = 21
                        break
                    row_at[rows] = at
                    row_end[rows] = stop_at
                    row_type[rows] = kind
                    row_map[rows] = found
                    row_partial[rows] = _partial(data, at, stop_at, kind)
                    row_ordinal[rows] = group_events + rows - group_row
                    rows += 1
                    if map_rows[found] != statement:
                        map_rows[found] = statement
                        state[21] += 1
                if flags & 1:
                    state[22] = state[20] | 1
                    state[23] = state[19] > state[21]
                    if state[24] == 0:
                        state[24] = state[22]
                        state[25] = state[23]
                    state[19] = 0
                    state[20] = 0
                    state[21] = 0
                    statement += 1
        elif kind == 16:
            ended = 1
        elif kind == 33 or kind == 34 or kind == 42 or kind == 162:
            if in_group:
                stop = 23
                break
            in_group = 1
            if kind == 162:
                if stop_at - at < 19 + 13:
                    stop = 17
                    break
                # A group that is not a single statement has no BEGIN of its own.
                if data[at + 19 + 12] & 1 == 0:
                    in_group = 2
            group_row = rows
            group_at = at
            group_events = 0
            group_position = before
            state[17] += 1
            gtid_at = at
            # What was mapped before is not this group's.
            statement += 1
            for slot in range(19, 26):
                state[slot] = 0
        elif kind == 2:
            if stop_at - at < 19 + 13:
                stop = 22
                break
            text = at + 19 + 13 + np.int64(load16(data, at + 19 + 11)) + np.int64(data[at + 19 + 8]) + 1
            if text > stop_at:
                stop = 22
                break
            length = stop_at - text
            if length == 5 and _starts(data, text, stop_at, _BEGIN):
                if in_group == 0:
                    group_row = rows
                    group_at = at
                    group_events = 0
                    group_position = before
                    state[17] += 1
                    statement += 1
                    for slot in range(19, 26):
                        state[slot] = 0
                in_group = 2
            elif length == 6 and _starts(data, text, stop_at, _COMMIT):
                ended = 1
            elif length == 8 and _starts(data, text, stop_at, _ROLLBACK):
                ended = 2
            elif in_group >= 2 and _starts(data, text, stop_at, _SAVEPOINT):
                if state[18]:
                    at += size
                    stop = 9
                    break
            elif in_group >= 2 and _starts(data, text, stop_at, _XA_END):
                pass
            elif _starts(data, text, stop_at, _XA_START):
                if in_group == 0:
                    group_row = rows
                    group_at = at
                    group_events = 0
                    group_position = before
                    state[17] += 1
                    statement += 1
                    for slot in range(19, 26):
                        state[slot] = 0
                in_group = 3
            else:
                if in_group == 1 and group_events + rows > group_row:
                    # Rows have no end of their own in a group that is a single statement.
                    stop = 21
                    break
                if in_group < 2:
                    # A statement that stands alone ends its group, or is all of it.
                    if in_group == 0:
                        group_at = at
                    txn_commit[transactions] = position
                    txn_time[transactions] = np.int64(load32(data, at))
                    txn_gtid_at[transactions] = gtid_at if in_group else -1
                    transactions += 1
                    in_group = 0
                    gtid_at = -1
                    flushed = rows
                at += size
                stop = 1
                break
        elif kind == 38:
            if in_group == 0:
                stop = 21
                break
            if commit_as >= 0:
                ended = 3
            elif stop_at - at > 19 and data[at + 19]:
                # XA COMMIT … ONE PHASE is logged as a prepare that says so, and is the commit itself.
                ended = 1
            else:
                at += size
                stop = 2
                break
        elif kind == 40 or (165 <= kind <= 172):
            if not look or kind == 40 or kind == 165:
                position = before
                stop = 3
                break
        elif kind == 26:
            stop = 4
            break
        elif kind == 18:
            if in_group == 0:
                group_at = at
            at += size
            stop = 5
            break
        elif (
            (3 <= kind <= 5)
            or kind == 9
            or kind == 11
            or (13 <= kind <= 15)
            or kind == 17
            or (27 <= kind <= 29)
            or (35 <= kind <= 37)
            or kind == 41
            or (160 <= kind <= 164 and kind != 162)
            or load16(data, at + 17) & FLAG_IGNORABLE
        ):
            pass
        else:
            stop = 6
            break
        if ended:
            if in_group == 0:
                stop = 21
                break
            time = np.int64(load32(data, at))
            if look:
                state[16] = ended == 2
                stop = 8
                break
            if ended == 2:
                rows = group_row
            else:
                where = commit_as if ended == 3 else position
                for i in range(group_row, rows):
                    row_commit[i] = where
                    row_time[i] = time
                txn_commit[transactions] = where
                txn_time[transactions] = time
                txn_gtid_at[transactions] = gtid_at
                transactions += 1
            in_group = 0
            gtid_at = -1
            group_row = rows
            flushed = rows
            statement += 1
        at += size
    state[0] = at
    state[1] = position
    state[2] = rows
    state[3] = maps
    state[4] = transactions
    state[5] = in_group
    state[6] = group_row
    state[7] = group_at
    state[8] = gtid_at
    state[9] = statement
    state[13] = flushed
    state[14] = group_events
    state[15] = group_position
    return stop
