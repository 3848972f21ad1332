"""One server's log as it streams in: what its events say about files, places and GTIDs, and when the open segment is sealed.

Laws:
- The stream must continue exactly where the last connection ended. A place, a file or a file's birth that differs is refused.
- Part of an event that came in is taken back before the next connection, which continues with that very event, also inside a
  transaction of any size.
- A transaction that a crashed server left unfinished at the end of a file is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet, of_words, words_of
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.capture.filling import OpenSegment, SegmentOrigin
from snowmelt.databases.mysql.log.capture.refusals import cut_off, server_error, started_anew
from snowmelt.databases.mysql.log.capture.starting import StreamStart, list_logs, oldest_if_nothing_lost
from snowmelt.databases.mysql.log.capture.writing import DurableWriter
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Event, MySqlGtid, read_gtid
from snowmelt.databases.mysql.log.files import FIRST_OFFSET, LogFile
from snowmelt.databases.mysql.log.framing import Bytes, Framer
from snowmelt.errors import Corrupt, SourceDrift, Unavailable, instance
from snowmelt.model.position import Position

log = logging.getLogger(__name__)

ADDRESSABLE: Final = 1 << 32
"""A connection can't begin at an offset of 4 GiB or more: the request has 32 bits for it."""
_GTID_LIST_BYTES_MAX: Final = 64 << 20
_BEFORE_LISTS: Final = (Event.ROTATE, Event.FORMAT_DESCRIPTION, Event.START_ENCRYPTION)
"""Events that come before a file's list of GTIDs."""


class LogStream:
    """What is known of the log between two connections and in one. One thread uses it: that of `Capture.run_owned`."""

    def __init__(
        self,
        writer: DurableWriter,
        start: StreamStart,
        limits: CaptureLimits,
        *,
        file_bytes: Callable[[LogFile], int | None],
        located: Callable[[Position], None] | None = None,
    ) -> None:
        """`file_bytes` asks the server where one of its log files ends. `located`: see `CaptureHooks`."""
        position, after = start.position, start.after
        self.server = start.server
        self.file = start.file
        self._era = position.era
        self._gtids = of_words(position.transactions)
        # An older era's segment is of another server.
        own = details_of(after) if after is not None and after.end.era >= position.era else None
        self._format = own.format_description if own else b""
        # No connection can begin at 4 GiB or later. A segment that ends before names an offset that one can begin at; without a segment
        # that is the file's first.
        self._scan = start.scan or (own is None and position.offset >= ADDRESSABLE)
        self._file_bytes = file_bytes
        self._located = located
        self._begin = position.offset
        self._announced = False
        """Whether the connection has said where it begins."""
        self._told = False
        """Whether `located` was called for this connection."""
        self._rotated = False
        """Whether the file ended with a ROTATE, as a server writes it that does not crash."""
        self._gathered = bytearray()
        # MariaDB does not send the events of its encryption, so there an event may begin later than the last one ended.
        self._framer = Framer(exact=start.server.flavour == "mysql", segment_bytes=limits.segment_bytes)
        self._framer.log_name = str(self.file)
        self._framer.state["offset"] = position.offset
        self._framer.state["restart"] = own.restart if own else position.offset
        self._segment = OpenSegment(writer, self._framer, limits, start=position.offset, after=after)

    @property
    def open_bytes(self) -> int:
        """Of the segment that is being filled, with the part of an event that came in."""
        return self._segment.bytes

    @property
    def seal_due(self) -> float:
        """When the open segment is old enough to be sealed, by the monotonic clock."""
        return self._segment.seal_due

    @property
    def place(self) -> str:
        return self._framer.place

    @property
    def progress(self) -> tuple[int, int, int]:
        """Another value than before whenever an event or a heartbeat came in."""
        return self.file.number, self._framer["offset"], self._framer["heartbeats"]

    # ---- connections

    def connect(self) -> int:
        """Get ready for a connection that continues where the last one ended; the offset to ask the server for."""
        framer = self._framer
        self._take_back()
        goal = max(framer["offset"], framer["skip_until"])
        if 0 < framer["skip_until"] <= framer["offset"]:
            self._scan = False
        begin = FIRST_OFFSET if self._scan else goal if goal < ADDRESSABLE else framer["restart"]
        framer.connect(offset=begin, skip_until=goal if begin != goal else 0)
        self._begin = begin
        self._announced = False
        self._told = False
        return begin

    def skip_purged(self, session: Session) -> None:
        """Where the server purged the current file, continue with its oldest one, if nothing was lost in between."""
        logs = list_logs(session)
        if any(file.number == self.file.number for file in logs):
            return
        self._take_back()
        self._add_gtids(self._framer.gtids())
        file = oldest_if_nothing_lost(session, logs, self.file, self._gtids if self._framer.at_cut else None)
        self._seal()
        self._begin_file(file)

    def take(self, source: Bytes, held: int) -> int:
        """Take in received bytes, up to `held`. The number of bytes that are no longer needed."""
        framer, segment = self._framer, self._segment
        at = 0
        while True:
            reason = framer.take(source, at, held, segment.buffer)
            at = framer["at"]
            if reason == framing.ROOM:
                segment.hand_over(last=False)
            elif reason == framing.EVENT:
                self._read(source)
            elif reason == framing.PIECE:
                self._gathered += source[framer["piece_at"] :][: framer["piece_bytes"]].tobytes()
                if len(self._gathered) > _GTID_LIST_BYTES_MAX:
                    raise Corrupt("a list of GTIDs is too large", position=framer.place)
            elif reason == framing.RUNS:
                self._add_gtids(framer.gtids())
            elif reason == framing.SERVER_ERROR:
                raise server_error(source[framer["event_at"] : at].tobytes(), framer.place)
            elif reason == framing.SERVER_END:
                raise Unavailable("the server ended the stream")
            if not self._told:
                self._tell()
            if segment.full:
                self._seal()
            if reason == framing.MORE:
                break
        segment.age()
        return at

    def _tell(self) -> None:
        """Report the place of the stream, once it has reached the place to continue from and is at a cut point."""
        framer = self._framer
        if not (self._announced and framer["offset"] >= framer["skip_until"] and framer.at_cut):
            return
        if self._gtids is None and self._begin == FIRST_OFFSET and framer["kind"] in _BEFORE_LISTS:
            # The file's list of the transactions before it is still to come. A heartbeat instead means that the file has none.
            return
        self._told = True
        self._add_gtids(framer.gtids())
        if self._located is not None:
            self._located(Position(self.file.number, framer["offset"], self._era, words_of(self._gtids)))

    # ---- sealing

    def seal_soon(self) -> None:
        """The segment is old enough: seal it here, or at the next cut point."""
        if self._framer.at_cut:
            self._seal()
        else:
            self._segment.seal_at_next_cut()

    def leave(self) -> None:
        """Seal what ends at a cut point. Bytes of an open transaction are captured again by the next run."""
        self._take_back()
        if self._framer["group"] == framing.OUTSIDE:
            self._seal()

    def _seal(self) -> None:
        """End the segment at the cut point where the stream is, if it has events."""
        if self._segment.due_again():
            self._add_gtids(self._framer.gtids())
            self._segment.seal(SegmentOrigin(self.server, self.file, self._era, self._gtids, self._format))

    def _take_back(self) -> None:
        """Forget what came in after the last whole event."""
        self._segment.take_back()
        self._gathered.clear()

    # ---- what events say

    def _read(self, source: Bytes) -> None:
        framer = self._framer
        kind, artificial = framer["kind"], bool(framer["artificial"])
        if self._gathered:
            raw, self._gathered = bytes(self._gathered), bytearray()
        else:
            raw = source[framer["event_at"] :][: framer["size"]].tobytes()
        body = framing.body_of(raw, checksummed=bool(framer["checksummed"]))
        if kind == Event.ROTATE and artificial:
            self._read_place(*framing.read_rotate(body))
        elif kind == Event.ROTATE:
            self._rotated = True
            self._seal()
        elif kind == Event.FORMAT_DESCRIPTION:
            self._read_format(raw, artificial)
        elif kind == Event.PREVIOUS_GTIDS:
            self._add_gtids(framing.read_previous_gtids(body))
        elif kind == Event.GTID_LIST:
            self._add_gtids(framing.read_gtid_list(body))
        elif kind == Event.GTID_TAGGED:
            gtid = instance(read_gtid(kind, 0, body), MySqlGtid, "a GTID with a tag is MySQL's")
            framer.name_gtid(gtid.source, gtid.number)

    def _read_place(self, name: str, offset: int) -> None:
        """Read an artificial ROTATE, which says where the stream is: first at the place that was asked for, later at the beginning of the
        next file."""
        framer = self._framer
        file = LogFile.parse(name)
        if file.base != self.file.base or file.number < self.file.number:
            raise SourceDrift("the log continues under another name", detail=f"{name} after {self.file}")
        if file.number == self.file.number:
            if self._announced or offset != framer["offset"]:
                raise Corrupt("the stream is elsewhere than asked for", detail=f"{name}:{offset}", position=framer.place)
            self._announced = True
            return
        if not self._announced or framer["offset"] < framer["skip_until"]:
            raise cut_off(framer.place, f"the log continues in {name}")
        # RESET MASTER may remove the file during the connection. The server then continues with the second of the new files as if nothing
        # were missing. Its list of files shows it: our file is there and as long as what we read of it, or it was purged since.
        size = self._file_bytes(self.file)
        if size != framer["offset"] and (size is not None or not self._rotated):
            raise cut_off(framer.place, f"the log continues in {name}, and {self.file} is not the file that was captured")
        self._rotated = False
        if not framer.at_cut:
            log.warning("a log file ends inside a transaction, which is left out: %s", framer.place)
            framer.back_to_cut()
            self._take_back()
        self._seal()
        self._begin_file(file)

    def _begin_file(self, file: LogFile) -> None:
        self._framer.rotate(str(file))
        self.file = file
        self._segment.begin_file()
        self._format = b""
        self._scan = self._rotated = False

    def _read_format(self, raw: bytes, artificial: bool) -> None:
        # The header's time is the file's birth. A file of the same name with another birth is another file.
        if self._format and raw[:4] != self._format[:4]:
            raise started_anew(str(self.file))
        if not artificial or not self._format:
            self._format = raw

    def _add_gtids(self, found: GtidSet | None) -> None:
        known = self._gtids
        if found is None or known is None:
            self._gtids = known if found is None else found
        elif isinstance(known, MySqlGtidSet):
            self._gtids = known.union(instance(found, MySqlGtidSet, "GTIDs of two kinds in one log"))
        else:
            self._gtids = known.union(instance(found, MariaDbGtidSet, "GTIDs of two kinds in one log"))
