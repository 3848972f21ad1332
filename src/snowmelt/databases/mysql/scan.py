"""The walk over a range of the log: which row events belong to which table and to which transaction.

States: outside a group; inside a group (from its GTID, BEGIN or XA START to its end). Forbidden: rows outside a group, rows of a
table that their statement did not map, an event longer than what is left, a wrong checksum, an event that is not where the one
before it ended.
Memory: one entry per row event and per transaction of the range.

A row gets its position when its group *ends*: the end of the commit. What a compiled walk can't decide (a statement, a prepared
XA group, an event that is not plain) stops it with a reason; the caller decides and lets it go on.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import JIT, kernel_view, load16, load32, load64
from snowmelt.databases.mysql.events import FLAG_IGNORABLE, HEADER_BYTES, Event, Reader
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


class Places(IntEnum):
    """Where an event may begin in the log."""

    EXACT = 0
    """Where the one before it ended."""
    GAPS = 1
    """There or later: MariaDB doesn't send ANNOTATE_ROWS events unless it is asked to."""
    UNPACKED = 2
    """Events that came out of one have its end; what they came out of was checked."""


class Stop(IntEnum):
    """Why the walk stopped."""

    END = 0
    STATEMENT = 1
    """A QUERY that is neither BEGIN, COMMIT, ROLLBACK nor a savepoint."""
    XA_PREPARE = 2
    PACKED = 3
    """A compressed or fragmented event: unpack the range, then walk that."""
    INCIDENT = 4
    LOGGED_AS_STATEMENT = 5
    """LOAD DATA: its file came before, in events of its own, and this one names the table."""
    UNKNOWN = 6
    MAPS_FULL = 7
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
    GTID_AT = 8
    STATEMENT_NUMBER = 9
    EVENT_AT = 10
    """The event that the walk stopped at."""
    EVENT_END = 11
    STOP_POSITION = 12
    FLUSHED = 13
    """Rows below are of ended groups."""


STATE_SLOTS = 16


class Walk:
    """The arrays that a walk fills, and its state between stops."""

    def __init__(self, data: Bytes, *, position: int, checksum_bytes: int, places: Places = Places.GAPS) -> None:
        check(checksum_bytes in (0, 4), "a checksum has no or four bytes")
        self._places = int(places)
        self.data = kernel_view(data)
        self.checksum_bytes = checksum_bytes
        rows_max = data.shape[0] // ROW_EVENT_BYTES_MIN + 2
        self.row_at: Longs = np.empty(rows_max, np.int64)
        self.row_end: Longs = np.empty(rows_max, np.int64)
        self.row_type = np.empty(rows_max, np.uint8)
        self.row_map = np.empty(rows_max, np.int32)
        self.row_partial = np.empty(rows_max, np.bool_)
        self.row_commit: Longs = np.empty(rows_max, np.int64)
        self.row_ordinal = np.empty(rows_max, np.int32)
        self.row_time: Longs = np.empty(rows_max, np.int64)
        self.map_at: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_end: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_id: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_statement: Longs = np.empty(MAPS_FIRST, np.int64)
        self.map_slots = np.full(1 << _HASH_BITS, -1, np.int32)
        # The shortest group is a statement: a header, 13 bytes, a database's and a statement's first bytes.
        transactions_max = data.shape[0] // 32 + 2
        self.txn_commit: Longs = np.empty(transactions_max, np.int64)
        self.txn_time: Longs = np.empty(transactions_max, np.int64)
        self.txn_gtid_at: Longs = np.empty(transactions_max, np.int64)
        self.state: Longs = np.zeros(STATE_SLOTS, np.int64)
        self.state[S.POSITION] = position
        self.state[S.GTID_AT] = -1

    def go_on(self, *, commit_as: int = -1) -> Stop:
        """Walk to the next stop. `commit_as` makes XA PREPARE the end of a group that was committed at that position."""
        return Stop(
            walk(
                self.data,
                self.checksum_bytes,
                self._places,
                commit_as,
                self.row_at,
                self.row_end,
                self.row_type,
                self.row_map,
                self.row_partial,
                self.row_commit,
                self.row_ordinal,
                self.row_time,
                self.map_at,
                self.map_end,
                self.map_id,
                self.map_statement,
                self.map_slots,
                self.txn_commit,
                self.txn_time,
                self.txn_gtid_at,
                self.state,
            )
        )

    def grow_maps(self) -> None:
        """Room for twice as many tables. A map has at least its event's bytes, so the range bounds this."""
        for name in ("map_at", "map_end", "map_id", "map_statement"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.empty_like(old)]))
        self.map_slots = np.full(2 * self.map_slots.shape[0], -1, np.int32)
        hash_maps(self.map_id, int(self.state[S.MAPS]), self.map_slots)

    def body(self) -> bytes:
        """The body of the event that the walk stopped at."""
        return self.data[self.state[S.EVENT_AT] + 19 : self.state[S.EVENT_END]].tobytes()

    def takes_effect(self) -> bool:
        """Whether the statement that the walk stopped at does anything. MariaDB may log an ALTER when it begins and, with the same text,
        when it ends (binlog_alter_two_phase). It takes effect when it ends well; the transaction's GTID says which of the three this is."""
        at = int(self.state[S.GROUP_AT])
        if self.data[at + 4] != Event.GTID_MARIADB:
            return True
        size = int.from_bytes(self.data[at + 9 : at + 13].tobytes(), "little")
        reader = Reader(self.data[at + HEADER_BYTES : at + size - self.checksum_bytes].tobytes(), "GTID")
        reader.take(12)
        flags = reader.number(1)
        if flags & _HAS_COMMIT_ID:
            reader.take(8)
        if flags & _OF_XA:
            reader.take(4)
            reader.take(reader.number(1) + reader.number(1))
        return not (reader.left and reader.number(1) & (_BEGINS_ALTER | _UNDOES_ALTER))

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
    """How many columns a bitmap at `at` holds; nearly always all, so whole bytes are looked at first."""
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
    """Whether the CRC-32 behind an event is its own. A file that is being written to says so in its first event's flags, which
    its checksum was made without."""
    if not in_use:
        return crc32(data, at, end, np.uint32(0)) == load32(data, end)
    flags = np.empty(1, np.uint8)
    flags[0] = data[at + 17] & 0xFE
    seed = crc32(flags, 0, 1, crc32(data, at, at + 17, np.uint32(0)))
    return crc32(data, at + 18, end, seed) == load32(data, end)


@njit(**JIT)
def _equal(data, one, other, count):  # type: ignore[no-untyped-def]
    """Whether two stretches of the data are the same, eight bytes at a time."""
    i = 0
    while i + 8 <= count:
        if load64(data, one + i) != load64(data, other + i):
            return False
        i += 8
    while i < count:
        if data[one + i] != data[other + i]:
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
def walk(  # type: ignore[no-untyped-def]
    data, checksum, places, commit_as,
    row_at, row_end, row_type, row_map, row_partial, row_commit, row_ordinal, row_time,
    map_at, map_end, map_id, map_statement, map_slots,
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
    last_id = np.int64(-1)
    last_map = np.int64(-1)
    stop = 0
    while True:
        if at == end:
            if in_group:
                stop = 23
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
        if checksum and not _checksum_is_right(data, at, stop_at, kind == 15 and load16(data, at + 17) & 1 != 0):
            stop = 18
            break
        before = position
        # The header's end position has 32 bits; ours goes on counting. Zero marks an event that is in no file.
        low = np.int64(load32(data, at + 13))
        if low != 0 or (position & 0xFFFFFFFF) + size == 0x100000000:
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
            if kind == 19:
                if table == last_id and last_map >= 0:
                    found = last_map
                else:
                    found = np.int64(map_slots[_slot(map_slots, map_id, table)])
                same = found >= 0 and map_end[found] - map_at[found] == stop_at - at
                if same:
                    same = _equal(data, map_at[found] + 19, at + 19, stop_at - at - 19)
                if not same:
                    if maps >= map_at.shape[0]:
                        # The walk goes on with this event when there is room.
                        position = before
                        stop = 7
                        break
                    map_slots[_slot(map_slots, map_id, table)] = maps
                    found = maps
                    map_at[maps] = at
                    map_end[maps] = stop_at
                    map_id[maps] = table
                    maps += 1
                map_statement[found] = statement
                last_id = table
                last_map = found
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
                    row_ordinal[rows] = rows - group_row
                    rows += 1
                if flags & 1:
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
            gtid_at = at
            # What was mapped before is not this group's.
            statement += 1
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
                    statement += 1
                in_group = 2
            elif length == 6 and _starts(data, text, stop_at, _COMMIT):
                ended = 1
            elif length == 8 and _starts(data, text, stop_at, _ROLLBACK):
                ended = 2
            elif in_group >= 2 and (_starts(data, text, stop_at, _SAVEPOINT) or _starts(data, text, stop_at, _XA_END)):
                pass
            elif _starts(data, text, stop_at, _XA_START):
                if in_group == 0:
                    group_row = rows
                    group_at = at
                    statement += 1
                in_group = 3
            else:
                if in_group == 1 and rows > group_row:
                    # Rows have no end of their own in a group that is a single statement.
                    stop = 21
                    break
                if in_group < 2:
                    # A statement that stands alone ends its group.
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
            stop = 3
            break
        elif kind == 26:
            stop = 4
            break
        elif kind == 18:
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
    return stop
