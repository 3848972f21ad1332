"""A range of the log in windows of whole events, which the walk gets one after the other.

Laws:
- A window holds the whole events of one piece of the range. An event that is larger than a piece is a window of its own. Only the last
  window may end with part of an event, which the walk refuses.
- One piece is lent at a time, and is given back before the next is asked for. The walk leaves it first, with a copy of what it still
  needs: after that the piece's memory may get other bytes.
- A row event that is larger than a piece and not wanted is never assembled: the walk gets its head alone. Its checksum is checked piece
  by piece, so that a damaged table number drops nothing.
- From a packed event on the rest of a window is unpacked, in parts that are bounded. The plain bytes are walked in windows too. After
  them the range continues where they came from.

Memory: one piece, and one assembly for a large event or for plain bytes. Nothing grows with the range.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import kernel_view
from snowmelt.databases.contract.stretches import LogBytes
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


class Windows:
    """Where a walk is in a range. `next` gives the walk its next window."""

    def __init__(self, log: LogBytes, walk: Walk, unpacker: Unpacker, *, checksum_bytes: int, places: Places, where: str) -> None:
        self._log = log
        self._walk = walk
        self._unpacker = unpacker
        self.checksum_bytes = checksum_bytes
        self._places = places
        self._where = where
        self._data = _NOTHING
        self._at = 0
        """Where the window begins in the range."""
        self._end = 0
        """Where its events end in the range."""
        self._plain: Plain | None = None
        self._plain_at = 0
        """Where the window begins in the plain bytes."""
        self._plain_end = 0
        """Where its events end in the plain bytes."""
        self._from = 0
        """Where in the range the plain bytes come from."""

    def next(self, *, look: bool = False, wanted: Wanted | None = None) -> bool:
        """Continue after the window that was walked; whether there is another. With `look`, for a walk that only finds a group's end, large
        row events are skipped. Of large row events that are not `wanted` the walk gets the head alone."""
        if self._plain is not None:
            if self._plain_end < self._plain.data.shape[0]:
                self._lay_plain()
                return True
            self._end = self._from + self._plain.taken
            self._plain = None
        self._walk.leave()
        while True:
            self._log.give_back()
            self._at = self._end
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
                # The walk refuses it: it is cut short.
                count = data.shape[0]
                break
            self._end += size
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
        self._end = self._at + count
        self._data = data[:count]
        self._walk.enter(self._data, checksum_bytes=self.checksum_bytes, places=self._places)
        if self._unpacker.expects and not look:
            # The next fragment of an event must follow. After it other groups may follow, whose rows are wanted.
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
        """Give the walk a row event as its head alone: no row of it is needed."""
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
        """Check an event's checksum piece by piece."""
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
        """Unpack the window from the walk's place on, except for rows that are not `wanted`. The walk continues in the plain bytes."""
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
        self._plain_end = 0
        self._lay_plain()

    def unpack_alone(self, wanted: Wanted) -> None:
        """The same, after a walk that skipped fragments."""
        self._unpacker.forget()
        self.unpack(wanted)

    def _lay_plain(self) -> None:
        plain = present(self._plain, "a window of plain bytes is asked for before anything was unpacked")
        self._plain_at = self._plain_end
        piece = plain.data[self._plain_at : self._plain_at + self._log.window_bytes]
        count = int(whole_events(piece, 0)) if piece.shape[0] else 0
        if not count and piece.shape[0]:
            count = int.from_bytes(piece[9:13].tobytes(), "little")
        self._plain_end = self._plain_at + count
        self._walk.enter(plain.data[self._plain_at : self._plain_end], checksum_bytes=0, places=Places.UNPACKED)

    def back_to_group(self) -> tuple[int, bool]:
        """Go back to the beginning of the open group. Where that is in the range, and whether the window began there: then no window holds
        more of the group."""
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
        """Where the walk is in the range. It must not be inside of a packed event."""
        at = int(self._walk.state[S.AT])
        return self._at + at if self._plain is None else self._from + self._plain.first_from(self._plain_at + at)

    def go_to(self, at: int) -> None:
        """`next` begins there. Kept fragments of an event are forgotten."""
        self._end = at
        self._plain = None
        self._unpacker.forget()

    def whole(self, first: int, last: int) -> Bytes:
        """A copy of a stretch of the range; the window is given back for it."""
        self._log.give_back()
        return self._log.whole(first, last - first)

    def leave(self) -> None:
        """Give the window back before its end, because another log is read through the same memory. `next` continues where the walk is."""
        at = self.at
        self._walk.leave()
        self._log.give_back()
        self.go_to(at)

    def close(self) -> None:
        """Give everything back, also events that were not walked. A spill file is deleted with the last view of it."""
        self._log.give_back()
        self._data = self._walk.data = _NOTHING
        self._plain = None
        self._unpacker.close()
