"""A range of the log in windows of whole events, laid before the walk one after the other.

Laws:
- A window is what one piece of the range holds of whole events; an event that no piece holds is a window of its own. Only at the range's
  end something that is no whole event is laid before the walk, which refuses it.
- One piece is out at a time, and is given back before the next is asked for. The walk leaves it first, with a copy of what it still
  needs: behind that the piece's bytes may be any.
- A row event that no piece holds and whose rows nobody wants is never put together: the walk gets its head alone. Its checksum is
  looked at piece by piece, so that a damaged number of a table drops nothing.
- What is packed is made plain from a place of the window on, in parts that are bounded; the plain bytes are walked in windows too,
  and behind them the range goes on where they came from.

Memory: one piece, and one assembly for a large event or for plain bytes. Nothing grows with the range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import kernel_view
from snowmelt.databases.mysql.log.events import HEADER_BYTES, Event
from snowmelt.databases.mysql.log.scan import Places, S, Walk, whole_events
from snowmelt.databases.mysql.log.unpack import ROW_HEAD_BYTES, Plain, Sieve, Unpacker, event_end, row_head
from snowmelt.errors import Corrupt, present

_HEADERS_TELL = frozenset(
    {
        Event.TABLE_MAP, Event.WRITE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.DELETE_ROWS_V1, Event.WRITE_ROWS, Event.UPDATE_ROWS,
        Event.DELETE_ROWS, Event.PARTIAL_UPDATE_ROWS, Event.WRITE_ROWS_COMPRESSED_V1, Event.UPDATE_ROWS_COMPRESSED_V1,
        Event.DELETE_ROWS_COMPRESSED_V1, Event.WRITE_ROWS_COMPRESSED, Event.UPDATE_ROWS_COMPRESSED, Event.DELETE_ROWS_COMPRESSED,
        Event.PARTIAL_ROW_DATA, Event.ANNOTATE, Event.ROWS_QUERY,
    }
)  # fmt: skip
"""Events that end no group, whatever they hold."""
_NOTHING: Bytes = np.empty(0, np.uint8)
Wanted = Callable[[bytes], bool]
"""Whether rows of a table are needed, by the body of its map."""


class LogBytes(Protocol):
    """The bytes of a range of the log, wherever they are. Used by one thread."""

    @property
    def size(self) -> int: ...

    @property
    def window_bytes(self) -> int:
        """What a piece holds at most; at least an event's header."""
        ...

    def piece(self, at: int) -> Bytes:
        """What lies from `at` on, as much as a piece holds. To be given back before the next one."""
        ...

    def give_back(self) -> None:
        """The piece is no longer looked at. Harmless if none is out."""
        ...

    def whole(self, at: int, size: int) -> Bytes:
        """A stretch of any size, put together outside of a piece. It lives as long as it is looked at."""
        ...


class InMemory:
    """A range that lies in one array, or is mapped: nothing is copied."""

    def __init__(self, data: Bytes, *, window_bytes: int) -> None:
        self._data = kernel_view(data)
        self.size = int(data.shape[0])
        self.window_bytes = window_bytes

    def piece(self, at: int) -> Bytes:
        return self._data[at : at + self.window_bytes]

    def give_back(self) -> None:
        pass

    def whole(self, at: int, size: int) -> Bytes:
        return self._data[at : at + size]


class Windows:
    """Where a walk is in a range. `next` lays its next window before it."""

    def __init__(self, log: LogBytes, walk: Walk, unpacker: Unpacker, *, checksum_bytes: int, places: Places, where: str) -> None:
        self._log = log
        self._walk = walk
        self._unpacker = unpacker
        self.checksum_bytes = checksum_bytes
        self._places = places
        self._where = where
        self._data = _NOTHING
        self._at = 0
        """Where the window begins in the range, and where its events end."""
        self._behind = 0
        self._plain: Plain | None = None
        self._plain_at = 0
        """Where the window begins in the plain bytes, and where its events end."""
        self._plain_behind = 0
        self._from = 0
        """Where in the range the plain bytes come from."""

    def next(self, *, look: bool = False, wanted: Wanted | None = None) -> bool:
        """Go on behind the window that was walked; whether there is anything. Who only looks for a group's end steps over large rows;
        of those that are not `wanted` the walk gets the head alone."""
        if self._plain is not None:
            if self._plain_behind < self._plain.data.shape[0]:
                self._lay_plain()
                return True
            self._behind = self._from + self._plain.taken
            self._plain = None
        self._walk.leave()
        while True:
            self._log.give_back()
            self._at = self._behind
            if self._at == self._log.size:
                return False
            data = self._log.piece(self._at)
            left = self._log.size - self._at
            count = data.shape[0] if data.shape[0] == left else int(whole_events(data, self.checksum_bytes))
            if count:
                break
            header = data[:HEADER_BYTES].tobytes()
            size = int.from_bytes(header[9:13], "little")
            if size > left:
                # The walk says that it is cut short.
                count = data.shape[0]
                break
            self._behind += size
            if look and header[4] in _HEADERS_TELL:
                self._walk.state[S.POSITION] = event_end(self._walk.position, header, self._places is Places.GAPS, where=self._where)
                continue
            head = None if wanted is None or look or self._unpacker.expects else self._unwanted(data, wanted)
            self._log.give_back()
            if head is not None:
                self._lay_head(head, header, size)
                return True
            data, count = self._log.whole(self._at, size), size
            break
        self._behind = self._at + count
        self._data = data[:count]
        self._walk.enter(self._data, checksum_bytes=self.checksum_bytes, places=self._places)
        if self._unpacker.expects and not look:
            # The next fragment of an event must follow. Other groups may lie behind it, whose rows are wanted.
            self.unpack()
        return True

    def _unwanted(self, data: Bytes, wanted: Wanted) -> bytes | None:
        """The head of a row event that no piece holds, if its rows are not wanted."""
        if data.shape[0] < ROW_HEAD_BYTES:
            return None
        raw = data[:ROW_HEAD_BYTES].tobytes()
        head = row_head(raw[4], raw)
        if head is None or not self._sieve(wanted).drops(int.from_bytes(raw[19:25], "little")):
            return None
        return head

    def _lay_head(self, head: bytes, header: bytes, size: int) -> None:
        """Lay a row event before the walk of which nothing is needed but that it is there."""
        if self._places is Places.UNPACKED:
            low, before = int.from_bytes(header[13:17], "little"), self._walk.position
            position = before + ((low - before) & 0xFFFFFFFF if low else 0)
        else:
            position = event_end(self._walk.position, header, self._places is Places.GAPS, where=self._where)
        if self.checksum_bytes:
            self._check_event(size)
        self._data = np.frombuffer(head, np.uint8)
        self._walk.enter(self._data, checksum_bytes=0, places=Places.UNPACKED)
        self._walk.state[S.POSITION] = position

    def _check_event(self, size: int) -> None:
        """Whether an event has the checksum that it says, without all of it in one place."""
        found, told = np.uint32(0), b""
        last = size - self.checksum_bytes
        for at in range(0, size, self._log.window_bytes):
            piece = kernel_view(self._log.piece(self._at + at))[: size - at]
            rows = max(0, min(piece.shape[0], last - at))
            found = crc32(piece, 0, rows, found)
            told += piece[rows:].tobytes()
            self._log.give_back()
        if int(found) != int.from_bytes(told, "little"):
            raise Corrupt("an event's checksum is wrong", position=f"{self._where}+{self._at}")

    def _sieve(self, wanted: Wanted) -> Sieve:
        return Sieve(wanted, self._walk.map_of)

    def unpack(self, wanted: Wanted | None = None) -> None:
        """Make plain what lies in the window from the walk's place on, but for rows that are not `wanted`. The walk goes on in that."""
        first = int(self._walk.state[S.AT])
        self._from = self._at + first
        self._plain = self._unpacker.take(
            self._data[first:],
            checksum_bytes=self.checksum_bytes,
            where=self._where,
            position=None if self._places is Places.UNPACKED else self._walk.position,
            enough=self._log.window_bytes,
            sieve=None if wanted is None else self._sieve(wanted),
        )
        self._plain_behind = 0
        self._lay_plain()

    def unpack_alone(self, wanted: Wanted) -> None:
        """The same for who has stepped over fragments."""
        self._unpacker.forget()
        self.unpack(wanted)

    def _lay_plain(self) -> None:
        plain = present(self._plain, "nothing is unpacked that a window could be laid over")
        self._plain_at = self._plain_behind
        piece = plain.data[self._plain_at : self._plain_at + self._log.window_bytes]
        count = int(whole_events(piece, 0)) if piece.shape[0] else 0
        if not count and piece.shape[0]:
            count = int.from_bytes(piece[9:13].tobytes(), "little")
        self._plain_behind = self._plain_at + count
        self._walk.enter(plain.data[self._plain_at : self._plain_behind], checksum_bytes=0, places=Places.UNPACKED)

    def back_to_group(self) -> tuple[int, bool]:
        """Go back before the open group: where that is in the range, and whether the window began there: no other holds more of it."""
        at = self._walk.back()
        if self._plain is not None:
            at = self._from + self._plain.came_from(self._plain_at + at)
        else:
            at += self._at
        alone = at == self._at
        self.go_to(at)
        return at, alone

    @property
    def at(self) -> int:
        """Where in the range the walk is, which is not inside of an event that was packed."""
        at = int(self._walk.state[S.AT])
        return self._at + at if self._plain is None else self._from + self._plain.behind(self._plain_at + at)

    def go_to(self, at: int) -> None:
        """`next` begins there. What was kept of fragmented events is forgotten."""
        self._behind = at
        self._plain = None
        self._unpacker.forget()

    def whole(self, first: int, last: int) -> Bytes:
        """A stretch of the range that is to be kept; the window is given back for it."""
        self._log.give_back()
        return self._log.whole(first, last - first)

    def leave(self) -> None:
        """Give the window back before its end: another log is read through the same segment. `next` goes on where the walk is."""
        at = self.at
        self._walk.leave()
        self._log.give_back()
        self.go_to(at)

    def close(self) -> None:
        """Give everything back, whatever the walk has still to see. A spill file goes with what looked into it."""
        self._log.give_back()
        self._data = self._walk.data = _NOTHING
        self._plain = None
        self._unpacker.close()
