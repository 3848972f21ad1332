"""From packets of the replication protocol to events of the log, and where transactions end.

    packet   3 bytes of length, 1 of sequence number, payload; a payload of 0xFFFFFF bytes continues in the next packet
    payload  0x00 and an event; 0xFE: the server ends the stream; 0xFF: an error. A packet that continues has no such byte
    event    19 bytes of header (time 4, type 1, server 4, size 4, next position 4, flags 2), body, CRC-32 (4) if the
             log's FORMAT_DESCRIPTION says so

Laws:
- Bytes are copied as the server sent them; nothing is stored that was not checked: sequence number, sizes, CRC-32, and that
  the event begins where the one before it ended. Outside of transactions MariaDB leaves events of its encryption out.
- Since 11.4 MariaDB writes 0 as the next position of events inside a transaction. Positions are counted from sizes, and checked
  against each event that has its own.
- The text of a statement whose rows follow (ANNOTATE_ROWS) is received, because positions could not be counted without it. It is not
  stored, unless a transaction has more of it than `LEFT_OUT_BYTES_MAX`: then a reader of the stored bytes could not count positions.
- An event may be cut anywhere. One that is whole in the receive buffer is taken at once; a larger one is streamed, so that no
  buffer has to hold it.
- The offset has 64 bits and is counted here, because the header's wraps at 4 GiB.
- Events that the server makes up for the connection (flag ARTIFICIAL, heartbeats) are not in the log and not stored.
- A place is a cut point when no transaction is open there. A MySQL group opens with a GTID event or with BEGIN, a MariaDB
  group with its GTID event; it ends with XID, COMMIT, ROLLBACK, XA PREPARE, a compressed transaction, or, if it is one
  statement, with that.
- A group that holds a statement, alone or beside rows, is marked: its end is remembered as a cut of that kind, and so is the cut
  right before it. A compressed statement is marked without being read. A compressed transaction holds no statement: MySQL does not
  compress transactions with statements other than savepoints.
- A group that prepares an XA transaction, or commits or rolls it back, is marked too, unless a statement has marked it. MySQL may
  compress the group that prepares. Its kind then shows only inside, so compressed transactions are counted.
"""

from __future__ import annotations

import struct
import uuid
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import JIT, big64, copy, load16, load32, load64
from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet
from snowmelt.databases.mysql.log.events import FLAG_ARTIFICIAL, HEADER_BYTES, Event, Reader
from snowmelt.errors import Corrupt, check

Bytes = npt.NDArray[np.uint8]

PACKET_MAX: Final = 0xFFFFFF
STREAMED_MIN: Final = 96 << 10
"""An event that is not whole is streamed once this much of it is there. That is enough for all that is read before its end. The
farthest is the text of a statement, after at most 64 KiB of status variables."""
RECEIVE_BYTES_MIN: Final = 2 * STREAMED_MIN
CUT_EVERY_BYTES: Final = 1 << 20
"""Cut points that are remembered lie at least this far apart, except for those of statements."""
STATEMENTS_MAX: Final = 4096
"""Groups of one segment that are marked. It ends when it has no room for another."""
LEFT_OUT_BYTES_MAX: Final = 1 << 30
"""Of a transaction. Positions in events have 32 bits, so a reader needs the bytes that are left out to be well below 4 GiB."""
_RUNS_MAX: Final = 1024
_WRAP: Final = 1 << 32

# Compiled code takes plain numbers.
QUERY: Final = int(Event.QUERY)
STOP: Final = int(Event.STOP)
ROTATE: Final = int(Event.ROTATE)
INTVAR: Final = int(Event.INTVAR)
APPEND_BLOCK: Final = int(Event.APPEND_BLOCK)
RAND: Final = int(Event.RAND)
USER_VAR: Final = int(Event.USER_VAR)
FORMAT_DESCRIPTION: Final = int(Event.FORMAT_DESCRIPTION)
XID: Final = int(Event.XID)
BEGIN_LOAD_QUERY: Final = int(Event.BEGIN_LOAD_QUERY)
EXECUTE_LOAD_QUERY: Final = int(Event.EXECUTE_LOAD_QUERY)
TABLE_MAP: Final = int(Event.TABLE_MAP)
WRITE_ROWS_V0: Final = 20
DELETE_ROWS_V1: Final = int(Event.DELETE_ROWS_V1)
INCIDENT: Final = int(Event.INCIDENT)
HEARTBEAT: Final = int(Event.HEARTBEAT)
ROWS_QUERY: Final = int(Event.ROWS_QUERY)
WRITE_ROWS: Final = int(Event.WRITE_ROWS)
DELETE_ROWS: Final = int(Event.DELETE_ROWS)
GTID: Final = int(Event.GTID)
ANONYMOUS_GTID: Final = int(Event.ANONYMOUS_GTID)
PREVIOUS_GTIDS: Final = int(Event.PREVIOUS_GTIDS)
XA_PREPARE: Final = int(Event.XA_PREPARE)
PARTIAL_UPDATE_ROWS: Final = int(Event.PARTIAL_UPDATE_ROWS)
TRANSACTION_PAYLOAD: Final = int(Event.TRANSACTION_PAYLOAD)
HEARTBEAT_V2: Final = int(Event.HEARTBEAT_V2)
GTID_TAGGED: Final = int(Event.GTID_TAGGED)
ANNOTATE: Final = int(Event.ANNOTATE)
GTID_MARIADB: Final = int(Event.GTID_MARIADB)
GTID_LIST: Final = int(Event.GTID_LIST)
START_ENCRYPTION: Final = int(Event.START_ENCRYPTION)
QUERY_COMPRESSED: Final = int(Event.QUERY_COMPRESSED)
WRITE_ROWS_COMPRESSED_V1: Final = int(Event.WRITE_ROWS_COMPRESSED_V1)
DELETE_ROWS_COMPRESSED: Final = int(Event.DELETE_ROWS_COMPRESSED)

_FL_STANDALONE: Final = 0x01
_FL_COMPLETED_XA: Final = 0x80

OUTSIDE: Final = 0
"""No transaction is open: a cut point."""
OPEN: Final = 1
"""A group has begun and may yet be a single statement."""
INSIDE: Final = 2
"""In a transaction that ends by an event of its own."""

MORE: Final = 0
"""All is taken in; receive more."""
ROOM: Final = 1
"""The target is full."""
CUT: Final = 2
"""A cut point, and the segment is to be sealed at one: it is large enough, or has no room for the cuts of another statement."""
EVENT: Final = 3
"""An event that the caller must read was taken in; it lies in the source at `event_at`."""
PIECE: Final = 4
"""A piece of such an event, larger than the source; it lies at `piece_at`. `EVENT` follows the last one."""
RUNS: Final = 5
"""The list of GTIDs is full."""
SERVER_END: Final = 6
SERVER_ERROR: Final = 7
"""An error packet; its payload, from the code on, lies in the source at `event_at`."""
ARRIVED: Final = 8
"""Everything that was stored before has passed; the next event is new."""
BAD_SEQUENCE: Final = 16
BAD_PACKET: Final = 17
BAD_HEADER: Final = 18
BAD_CHECKSUM: Final = 19
BAD_PLACE: Final = 20
BAD_START: Final = 21
BAD_GROUP: Final = 22

_FAULTS: Final = {
    BAD_SEQUENCE: "a packet of the log's stream is missing or repeated",
    BAD_PACKET: "a packet of the log's stream can't be read",
    BAD_HEADER: "an event's header can't be right",
    BAD_CHECKSUM: "an event's checksum is wrong",
    BAD_PLACE: "an event is not where the log says",
    BAD_START: "the position lies inside an event",
    BAD_GROUP: "a transaction has no end",
}

CUT_COMMIT: Final = 0
CUT_STATEMENT: Final = 1
CUT_FILE: Final = 2
CUT_OTHER: Final = 3
CUT_XA: Final = 4
CUT_KINDS: Final = ("commit", "statement", "file", "other", "xa")

# Why a group is marked.
NOTHING: Final = 0
XA: Final = 1
STATEMENT: Final = 2

STATE: Final = np.dtype(
    [
        # The connection: expected sequence number, and what is left of a packet that is streamed.
        ("sequence", np.int64),
        ("packet_left", np.int64),
        ("packet_continues", np.int64),
        # Where the source was read up to, and what the caller is to read.
        ("at", np.int64),
        ("event_at", np.int64),
        ("piece_at", np.int64),
        ("piece_bytes", np.int64),
        # The event at hand.
        ("streaming", np.int64),
        ("kind", np.int64),
        ("time", np.int64),
        ("size", np.int64),
        ("left", np.int64),
        ("end", np.int64),
        ("artificial", np.int64),
        ("stored", np.int64),
        ("group_after", np.int64),
        ("holds_after", np.int64),
        ("crc", np.int64),
        ("trailer", np.int64),
        # The log.
        ("offset", np.int64),
        ("restart", np.int64),
        ("skip_until", np.int64),
        ("exact", np.int64),
        ("checksummed", np.int64),
        ("group", np.int64),
        ("holds", np.int64),
        # The GTID of the open transaction, and how many runs of finished ones are listed. A run has two words of a name and
        # the first and last number; MariaDB's has domain, server and the last number.
        ("gtid_kind", np.int64),
        ("gtid_first", np.int64),
        ("gtid_second", np.int64),
        ("gtid_number", np.int64),
        ("runs", np.int64),
        # The segment that is being filled; `fill` is of the target.
        ("fill", np.int64),
        ("seal_bytes", np.int64),
        ("segment_bytes", np.int64),
        ("segment_crc", np.int64),
        ("first_time", np.int64),
        ("last_time", np.int64),
        ("event_bytes_max", np.int64),
        ("payloads", np.int64),
        ("cuts", np.int64),
        ("cut_kind", np.int64),
        ("cut_time", np.int64),
        ("cut_bytes", np.int64),
        ("cut_crc", np.int64),
        ("cut_offset", np.int64),
        # Since the beginning.
        ("events", np.int64),
        ("transactions", np.int64),
        ("heartbeats", np.int64),
    ]
)

NO_NAME: Final = 0
NAME_MYSQL: Final = 1
NAME_MARIADB: Final = 2
NAME_LISTED: Final = 3
"""The first word of the name is an index into the caller's list of names."""

_WORD_BEGIN = np.frombuffer(b"BEGIN", np.uint8)
_WORD_COMMIT = np.frombuffer(b"COMMIT", np.uint8)
_WORD_ROLLBACK = np.frombuffer(b"ROLLBACK", np.uint8)
_WORD_SAVEPOINT = np.frombuffer(b"SAVEPOINT ", np.uint8)
_WORD_XA = np.frombuffer(b"XA ", np.uint8)
_WORD_XA_START = np.frombuffer(b"XA START ", np.uint8)
_WORD_XA_BEGIN = np.frombuffer(b"XA BEGIN ", np.uint8)
_WORD_XA_COMMIT = np.frombuffer(b"XA COMMIT ", np.uint8)
_WORD_XA_ROLLBACK = np.frombuffer(b"XA ROLLBACK ", np.uint8)


@njit(**JIT)
def _starts_with(source: Any, at: Any, end: Any, word: Any) -> Any:
    if end - at < len(word):
        return False
    for i in range(len(word)):
        byte = source[at + i]
        if np.uint8(97) <= byte <= np.uint8(122):
            byte -= np.uint8(32)
        if byte != word[i]:
            return False
    return True


@njit(**JIT)
def _group_after_query(s: Any, source: Any, at: Any, body_end: Any) -> Any:
    """The state after the statement whose body begins at `at`; −1 if its parts don't fit into it."""
    if body_end - at < 13:
        return -1
    text = at + 13 + np.int64(load16(source, at + 11)) + np.int64(source[at + 8]) + 1
    if text > body_end:
        return -1
    length = body_end - text
    if (length == 5 and _starts_with(source, text, body_end, _WORD_BEGIN)) or (
        length > 9 and (_starts_with(source, text, body_end, _WORD_XA_START) or _starts_with(source, text, body_end, _WORD_XA_BEGIN))
    ):
        return INSIDE
    commits = length == 6 and _starts_with(source, text, body_end, _WORD_COMMIT)
    rolls_back = _starts_with(source, text, body_end, _WORD_ROLLBACK)
    of_xa = _starts_with(source, text, body_end, _WORD_XA)
    if not (commits or rolls_back or of_xa or _starts_with(source, text, body_end, _WORD_SAVEPOINT)):
        s.holds_after = STATEMENT
    decides = of_xa and (
        (length > 10 and _starts_with(source, text, body_end, _WORD_XA_COMMIT))
        or (length > 12 and _starts_with(source, text, body_end, _WORD_XA_ROLLBACK))
    )
    if decides:
        s.holds_after = max(s.holds_after, XA)
    if s.group != INSIDE:
        return OUTSIDE
    return OUTSIDE if commits or (length == 8 and rolls_back) or decides else INSIDE


@njit(**JIT)
def _group_after(s: Any, source: Any, body: Any, body_end: Any) -> Any:
    """The state after the event at hand, whose body begins at `body`; −1 if it can't be read."""
    kind = s.kind
    group = s.group
    if kind == TABLE_MAP or WRITE_ROWS <= kind <= DELETE_ROWS or WRITE_ROWS_V0 <= kind <= DELETE_ROWS_V1:
        return INSIDE
    if kind == XA_PREPARE:
        # One that says ONE PHASE is a plain commit.
        if body_end > body and source[body] == 0:
            s.holds_after = max(s.holds_after, XA)
        return OUTSIDE
    if kind in (XID, TRANSACTION_PAYLOAD, ROTATE, STOP, INCIDENT):
        return OUTSIDE
    if kind == QUERY:
        return _group_after_query(s, source, body, body_end)
    if kind == GTID_MARIADB:
        return OPEN if source[body + 12] & np.uint8(_FL_STANDALONE | _FL_COMPLETED_XA) else INSIDE
    if kind in (GTID, ANONYMOUS_GTID, GTID_TAGGED):
        return OPEN
    if kind == PARTIAL_UPDATE_ROWS or WRITE_ROWS_COMPRESSED_V1 <= kind <= DELETE_ROWS_COMPRESSED:
        return INSIDE
    if kind in (QUERY_COMPRESSED, EXECUTE_LOAD_QUERY):
        # COMMIT and ROLLBACK are too short to be compressed. What else it is, the reader of statements finds out.
        s.holds_after = STATEMENT
        return INSIDE if group == INSIDE else OUTSIDE
    if kind in (INTVAR, RAND, USER_VAR, BEGIN_LOAD_QUERY, APPEND_BLOCK, ROWS_QUERY, ANNOTATE):
        # Of the statement that follows.
        return max(group, OPEN)
    return group


@njit(**JIT)
def _read_gtid(s: Any, source: Any, body: Any, body_end: Any, server: Any) -> Any:
    """Remember the GTID that the event at hand gives to what follows. False if it is too short."""
    if s.kind == GTID:
        if body_end - body < 25:
            return False
        s.gtid_kind = NAME_MYSQL
        s.gtid_first = np.int64(big64(source, body + 1))
        s.gtid_second = np.int64(big64(source, body + 9))
        s.gtid_number = np.int64(load64(source, body + 17))
        return s.gtid_number > 0
    if s.kind == GTID_MARIADB:
        if body_end - body < 13:
            return False
        s.gtid_kind = NAME_MARIADB
        s.gtid_number = np.int64(load64(source, body))
        s.gtid_first = np.int64(load32(source, body + 8))
        s.gtid_second = np.int64(server)
        return s.gtid_number >= 0
    s.gtid_kind = NO_NAME
    return True


@njit(**JIT)
def _begin(s: Any, source: Any, event: Any, size: Any) -> Any:
    """Read and check the header of the event at `event`; enough of it is in the source. A fault, or 0."""
    s.time = np.int64(load32(source, event))
    s.kind = np.int64(source[event + 4])
    server = load32(source, event + 5)
    next_position = np.int64(load32(source, event + 13))
    flags = np.int64(load16(source, event + 17))
    s.size = size
    made_up = s.kind in (ROTATE, FORMAT_DESCRIPTION, GTID_LIST, START_ENCRYPTION) and next_position == 0
    if s.kind == ROTATE and (s.offset + size) % _WRAP == 0:
        made_up = False
    s.artificial = made_up or flags & FLAG_ARTIFICIAL != 0 or s.kind in (HEARTBEAT, HEARTBEAT_V2)
    s.group_after = s.group
    s.holds_after = s.holds
    s.stored = 0
    if s.artificial:
        return 0

    end = s.offset + size
    if next_position != 0 and end % _WRAP != next_position:
        # It begins later, which has its limits.
        end = s.offset // _WRAP * _WRAP + next_position
        if end < s.offset + size:
            end += _WRAP
        if s.exact or s.group != OUTSIDE or end - size - s.offset > _WRAP // 2:
            return BAD_PLACE
    begins = end - size
    if begins < s.skip_until < end:
        return BAD_START
    s.end = end
    s.stored = begins >= s.skip_until
    if s.kind == ANNOTATE and end - s.cut_offset - (s.segment_bytes - s.cut_bytes) < LEFT_OUT_BYTES_MAX:
        s.stored = 0

    body = event + HEADER_BYTES
    body_end = event + size - 4 * s.checksummed
    if s.kind in (GTID, ANONYMOUS_GTID, GTID_TAGGED, GTID_MARIADB):
        if s.group != OUTSIDE:
            return BAD_GROUP
        if not _read_gtid(s, source, body, body_end, server):
            return BAD_HEADER
    if s.kind in (ROTATE, STOP) and s.group != OUTSIDE:
        return BAD_GROUP
    s.group_after = _group_after(s, source, body, body_end)
    return 0 if s.group_after >= 0 else BAD_HEADER


@njit(**JIT)
def _list_gtid(s: Any, runs: Any) -> None:
    """The transaction is whole: its GTID joins a run, or begins one."""
    last = s.runs - 1
    if s.gtid_kind == NAME_MARIADB:
        for i in range(last, -1, -1):
            if runs[i, 1] == s.gtid_first:
                runs[i, 2] = s.gtid_second
                runs[i, 4] = s.gtid_number
                s.gtid_kind = NO_NAME
                return
    elif (
        last >= 0
        and runs[last, 0] == s.gtid_kind
        and runs[last, 1] == s.gtid_first
        and runs[last, 2] == s.gtid_second
        and runs[last, 4] + 1 == s.gtid_number
    ):
        runs[last, 4] = s.gtid_number
        s.gtid_kind = NO_NAME
        return
    runs[s.runs, 0] = s.gtid_kind
    runs[s.runs, 1] = s.gtid_first
    runs[s.runs, 2] = s.gtid_second
    runs[s.runs, 3] = s.gtid_number
    runs[s.runs, 4] = s.gtid_number
    s.runs += 1
    s.gtid_kind = NO_NAME


@njit(**JIT)
def _remember(s: Any, cuts: Any, at: Any, offset: Any, time: Any, kind: Any) -> None:
    """Into the segment's index. There is room for two more whenever a group begins."""
    cuts[s.cuts, 0] = at
    cuts[s.cuts, 1] = offset
    cuts[s.cuts, 2] = time
    cuts[s.cuts, 3] = kind
    s.cuts += 1


@njit(**JIT)
def _cut(s: Any, cuts: Any, before: Any) -> None:
    """A stored event ends where no transaction is open; `before` it one may have been."""
    if s.kind in (ROTATE, STOP):
        kind = CUT_FILE
    elif s.holds:
        kind = CUT_STATEMENT if s.holds == STATEMENT else CUT_XA
    elif before != OUTSIDE or s.kind in (QUERY, XID, XA_PREPARE, TRANSACTION_PAYLOAD):
        kind = CUT_COMMIT
    else:
        kind = CUT_OTHER
    last = cuts[s.cuts - 1, 0] if s.cuts else 0
    if s.holds and s.cut_bytes > last:
        _remember(s, cuts, s.cut_bytes, s.cut_offset, s.cut_time, s.cut_kind)
    if s.holds or s.segment_bytes - last >= CUT_EVERY_BYTES:
        _remember(s, cuts, s.segment_bytes, s.end, s.last_time, kind)
        if s.cuts + 2 > len(cuts):
            s.seal_bytes = min(s.seal_bytes, s.segment_bytes)
    s.cut_kind = kind
    s.cut_time = s.last_time
    s.cut_bytes = s.segment_bytes
    s.cut_crc = s.segment_crc
    s.cut_offset = s.end


@njit(**JIT)
def _finish(s: Any, cuts: Any, runs: Any) -> Any:
    """The event at hand is whole and right. What the caller has to do about it, or MORE for nothing."""
    s.events += 1
    if s.artificial:
        if s.kind in (HEARTBEAT, HEARTBEAT_V2):
            s.heartbeats += 1
        return EVENT if s.kind in (ROTATE, FORMAT_DESCRIPTION) else MORE
    s.offset = s.end
    if s.stored:
        s.segment_bytes += s.size
        if s.time:
            if s.first_time == 0:
                s.first_time = s.time
            s.last_time = s.time
        s.event_bytes_max = max(s.event_bytes_max, s.size)
        s.payloads += s.kind == TRANSACTION_PAYLOAD
    before = s.group
    s.group = s.group_after
    s.holds = s.holds_after
    if s.group == OUTSIDE:
        if before != OUTSIDE or s.kind == QUERY:
            s.transactions += 1
        if s.gtid_kind != NO_NAME:
            _list_gtid(s, runs)
        if s.end < _WRAP:
            s.restart = s.end
        if s.stored:
            _cut(s, cuts, before)
        s.holds = NOTHING
    if s.kind in (ROTATE, FORMAT_DESCRIPTION, PREVIOUS_GTIDS, GTID_LIST, GTID_TAGGED):
        return EVENT
    if s.runs == len(runs):
        return RUNS
    if s.end == s.skip_until:
        return ARRIVED
    return CUT if s.group == OUTSIDE and s.segment_bytes >= s.seal_bytes else MORE


@njit(**JIT)
def _stream(s: Any, source: Any, at: Any, end: Any, target: Any) -> Any:
    """Take in a part of an event that is streamed. Where the source was read up to, and a reason to stop, or −1 at its end."""
    while True:
        if s.packet_left == 0:
            if not s.packet_continues:
                if s.left != 0:
                    return at, BAD_PACKET
                if s.checksummed and s.trailer != s.crc:
                    return at, BAD_CHECKSUM
                if s.stored and not s.checksummed:
                    s.segment_crc = s.crc
                s.streaming = 0
                return at, -1
            if end - at < 4:
                return at, MORE
            if np.int64(source[at + 3]) != s.sequence:
                return at, BAD_SEQUENCE
            s.sequence = (s.sequence + 1) & 0xFF
            s.packet_left = np.int64(load32(source, at)) & PACKET_MAX
            s.packet_continues = s.packet_left == PACKET_MAX
            at += 4
            if s.packet_left > s.left or (s.packet_continues == 0 and s.packet_left != s.left):
                return at, BAD_PACKET
            continue
        take = min(s.packet_left, end - at)
        if s.stored:
            take = min(take, len(target) - s.fill)
            if take == 0 and end > at:
                return at, ROOM
        if take == 0:
            return at, MORE
        if s.stored:
            copy(target, s.fill, source, at, take)
            s.fill += take
        body = max(min(take, s.left - 4 * s.checksummed), 0)
        s.crc = np.int64(crc32(source, at, at + body, np.uint32(s.crc)))
        for i in range(at + body, at + take):
            s.trailer = s.trailer >> 8 | np.int64(source[i]) << 24
        s.piece_at = at
        s.piece_bytes = take
        s.left -= take
        s.packet_left -= take
        at += take
        if s.kind in (PREVIOUS_GTIDS, GTID_LIST):
            return at, PIECE


@njit(**JIT)
def _describes(s: Any, source: Any, event: Any, size: Any) -> Any:
    """Whether events have a CRC-32, by the FORMAT_DESCRIPTION at `event`; −1 if it can't be read, −2 if it is damaged.

    This event itself always has one. An old server that changes it for a connection leaves the old number in it where the
    log has no checksums.
    """
    if size < HEADER_BYTES + 57 + QUERY + 1 + 4 or load16(source, event + 19) != 4 or source[event + 75] != HEADER_BYTES:
        return -1
    if source[event + 76 + QUERY - 1] != 13:
        return -1
    algorithm = source[event + size - 5]
    if algorithm > 1:
        return -1
    right = crc32(source, event, event + size - 4, np.uint32(0)) == load32(source, event + size - 4)
    if not right and not (algorithm == 0 and s.artificial):
        return -2
    return np.int64(algorithm)


@njit(**JIT)
def strip(source: Any, start: Any, end: Any, target: Any, states: Any, cuts: Any, runs: Any) -> Any:
    """Take events out of source[start:end] and append their bytes to the target. Why it stopped; `at` says where."""
    s = states[0]
    at = start
    while True:
        if s.streaming:
            at, reason = _stream(s, source, at, end, target)
            s.at = at
            if reason >= 0:
                return reason
            reason = _finish(s, cuts, runs)
            if reason != MORE:
                return reason
            continue
        s.at = at
        there = end - at
        if there < 5:
            return MORE
        length = np.int64(load32(source, at)) & PACKET_MAX
        whole = there >= 4 + length
        if np.int64(source[at + 3]) != s.sequence:
            return BAD_SEQUENCE
        if length == 0:
            return BAD_PACKET
        status = source[at + 4]
        if status != 0:
            if status == 0xFE and length < 9:
                return SERVER_END
            if status != 0xFF or length < 3 or length > STREAMED_MIN:
                return BAD_PACKET
            if not whole:
                return MORE
            s.event_at = at + 5
            s.at = at + 4 + length
            return SERVER_ERROR
        if length < 1 + HEADER_BYTES:
            return BAD_HEADER
        if there < 5 + HEADER_BYTES:
            return MORE
        event = at + 5
        size = np.int64(load32(source, event + 9))
        if size < length - 1 or (length < PACKET_MAX and size != length - 1) or size < HEADER_BYTES + 4 * s.checksummed:
            return BAD_HEADER
        if not whole and there < STREAMED_MIN:
            return MORE
        fault = _begin(s, source, event, size)
        if fault:
            return fault

        if not whole or length == PACKET_MAX:
            # What the caller reads, or what is read here to its end, is never that large, but for lists of GTIDs.
            if s.kind in (ROTATE, FORMAT_DESCRIPTION, GTID, ANONYMOUS_GTID, GTID_TAGGED, GTID_MARIADB):
                return BAD_HEADER
            s.sequence = (s.sequence + 1) & 0xFF
            s.streaming = 1
            s.left = size
            s.packet_left = length - 1
            s.packet_continues = length == PACKET_MAX
            s.crc = 0 if s.checksummed or not s.stored else s.segment_crc
            s.trailer = 0
            at = event
            continue

        if s.stored and len(target) - s.fill < size:
            return ROOM
        if s.kind == FORMAT_DESCRIPTION:
            described = _describes(s, source, event, size)
            if described < 0:
                return BAD_HEADER if described == -1 else BAD_CHECKSUM
            s.checksummed = described
        elif s.checksummed and crc32(source, event, event + size - 4, np.uint32(0)) != load32(source, event + size - 4):
            return BAD_CHECKSUM
        if s.stored:
            if not s.checksummed:
                s.segment_crc = np.int64(crc32(source, event, event + size, np.uint32(s.segment_crc)))
            copy(target, s.fill, source, event, size)
            s.fill += size
        s.sequence = (s.sequence + 1) & 0xFF
        s.event_at = event
        at = event + size
        s.at = at
        reason = _finish(s, cuts, runs)
        if reason != MORE:
            return reason


class Framer:
    """The state of one log's stream: `strip` with names.

    Order: `connect`, then `take` again and again. It holds no bytes; memory is the state, the cut points of a segment and a
    bounded list of GTIDs. After `EVENT`, `PIECE` and `SERVER_ERROR` the caller reads the source before it moves it.
    """

    def __init__(self, *, exact: bool, segment_bytes: int) -> None:
        self._states = np.zeros(1, STATE)
        self.state = self._states[0]
        self._cuts = np.zeros((segment_bytes // CUT_EVERY_BYTES + 2 + 2 * STATEMENTS_MAX, 4), np.int64)
        self._runs = np.zeros((_RUNS_MAX, 5), np.int64)
        self._names: list[str] = []
        self.log_name = ""
        self.state["exact"] = exact
        self.state["seal_bytes"] = segment_bytes

    def __getitem__(self, name: str) -> int:
        return int(self.state[name])

    @property
    def place(self) -> str:
        return f"{self.log_name}:{self['offset']}"

    @property
    def at_cut(self) -> bool:
        """Whether no event and no transaction is open."""
        return not self["streaming"] and self["group"] == OUTSIDE

    def connect(self, *, offset: int, skip_until: int = 0) -> None:
        """A new stream begins at `offset` with packet 1. Part of an event that was taken in is forgotten.

        The open transaction is kept if the stream continues where the last one ended. Otherwise the stream begins at a cut point.
        Events that end at or before `skip_until` are checked but not stored.
        """
        state = self.state
        if offset != state["offset"]:
            state["group"] = OUTSIDE
            state["holds"] = NOTHING
            state["gtid_kind"] = NO_NAME
        if offset < _WRAP and state["group"] == OUTSIDE:
            state["restart"] = offset
        if state["segment_bytes"] == 0:
            state["cut_offset"] = max(offset, skip_until)
        state["offset"] = offset
        state["skip_until"] = skip_until
        state["sequence"] = 1
        state["streaming"] = 0
        # Before the first FORMAT_DESCRIPTION the server goes by what we said that we understand.
        state["checksummed"] = 1

    def rotate(self, log_name: str) -> None:
        """The stream continues at the beginning of another file. The caller has gone back to a cut point if that was needed."""
        check(self.at_cut, "a log file ends inside a transaction", self.place)
        self.log_name = log_name
        self.state["offset"] = self.state["restart"] = 4
        self.state["skip_until"] = 0

    def back_to_cut(self) -> None:
        """Forget the events after the last cut point. A server that died inside a transaction leaves such a file, and that
        transaction was never committed."""
        state = self.state
        state["segment_bytes"] = state["cut_bytes"]
        state["segment_crc"] = state["cut_crc"]
        state["event_bytes_max"] = min(state["event_bytes_max"], state["cut_bytes"])
        state["offset"] = state["cut_offset"]
        state["streaming"] = 0
        state["group"] = OUTSIDE
        state["holds"] = NOTHING
        state["gtid_kind"] = NO_NAME

    def take(self, source: Bytes, start: int, end: int, target: Bytes) -> int:
        """Run `strip`. A fault is `Corrupt`; nothing of the faulty event counts."""
        check(0 <= start <= end <= len(source) and len(source) >= RECEIVE_BYTES_MIN, "the receive buffer is too small")
        check(0 <= self["fill"] <= len(target), "the target is overfull")
        check(self["cuts"] + 2 <= len(self._cuts), "a segment that has no room for more cuts was not sealed", self.place)
        reason = int(strip(source, start, end, target, self._states, self._cuts, self._runs))
        if reason in _FAULTS:
            raise Corrupt(_FAULTS[reason], detail=f"event of type {self['kind']}", position=self.place)
        return reason

    def next_segment(self) -> None:
        """What follows belongs to another segment."""
        for name in (
            "segment_bytes",
            "segment_crc",
            "first_time",
            "last_time",
            "event_bytes_max",
            "payloads",
            "cuts",
            "cut_bytes",
            "cut_crc",
        ):
            self.state[name] = 0

    def cuts(self) -> list[tuple[int, int, int, int]]:
        """The segment's cut points that are remembered: offset in the segment, in the log, time, kind."""
        return [(int(a), int(b), int(c), int(d)) for a, b, c, d in self._cuts[: self["cuts"]]]

    def name_gtid(self, source: str, number: int) -> None:
        """The open transaction's GTID, where its name is not a plain uuid."""
        if source not in self._names:
            self._names.append(source)
        self.state["gtid_kind"] = NAME_LISTED
        self.state["gtid_first"] = self._names.index(source)
        self.state["gtid_second"] = 0
        self.state["gtid_number"] = number

    def gtids(self) -> GtidSet | None:
        """The GTIDs of the transactions that ended since the last call, or None where there were none."""
        runs = self._runs[: self["runs"]].tolist()
        self.state["runs"] = 0
        if not runs:
            return None
        if runs[0][0] == NAME_MARIADB:
            return MariaDbGtidSet({domain: (server, number) for _, domain, server, _, number in sorted(runs)})
        spans: dict[str, list[tuple[int, int]]] = {}
        for kind, first, second, low, high in runs:
            name = self._names[first] if kind == NAME_LISTED else str(uuid.UUID(bytes=struct.pack(">qq", first, second)))
            spans.setdefault(name, []).append((low, high))
        # A union brings into normal form.
        return MySqlGtidSet().union(MySqlGtidSet({name: tuple(found) for name, found in spans.items()}))


def body_of(event: bytes, *, checksummed: bool) -> bytes:
    """An event without header and checksum."""
    return event[HEADER_BYTES : len(event) - (4 if checksummed else 0)]


def read_rotate(body: bytes) -> tuple[str, int]:
    """The file in which the log continues, and the offset in it."""
    reader = Reader(body, "ROTATE")
    offset = reader.number(8)
    return reader.text(reader.left).rsplit("/", 1)[-1], offset


def read_previous_gtids(body: bytes) -> MySqlGtidSet:
    """What MySQL executed before the file began. Since 8.3 sources may have tags; then the count's outer bytes say so."""
    reader = Reader(body, "PREVIOUS_GTIDS")
    count = reader.number(8)
    tagged = count >> 56 == 1
    if tagged:
        count = count >> 8 & 0xFFFFFFFFFFFF
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for _ in range(count):
        source = str(uuid.UUID(bytes=reader.take(16)))
        if tagged and (tag := reader.text(reader.number(1) >> 1)):
            source += f":{tag}"
        spans = reader.number(8)
        if spans > reader.left // 16:
            raise Corrupt("PREVIOUS_GTIDS is cut short")
        # Each interval is written with the number after its last one.
        found[source] = tuple((reader.number(8), reader.number(8) - 1) for _ in range(spans))
    return MySqlGtidSet().union(MySqlGtidSet(found))


def read_gtid_list(body: bytes) -> MariaDbGtidSet:
    """The last GTID of each domain before the file began, on MariaDB. Of several servers in a domain the latest counts."""
    reader = Reader(body, "GTID_LIST")
    gtids = MariaDbGtidSet()
    for _ in range(reader.number(4) & 0x0FFFFFFF):
        domain, server, number = reader.number(4), reader.number(4), reader.number(8)
        gtids = gtids.add(domain, server, number)
    return gtids
