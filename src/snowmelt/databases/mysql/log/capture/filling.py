"""The segment that is being filled, until it is sealed.

Laws:
- A segment is sealed only at a cut point, and never spans two log files.
- It ends where the framer has checked everything: part of an event is never sealed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.gtid import GtidSet, words_of
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.capture.writing import DurableWriter, SealSegment, Shorten, Write
from snowmelt.databases.mysql.log.details import KIND, Details
from snowmelt.databases.mysql.log.files import FIRST_OFFSET, LogFile
from snowmelt.databases.mysql.log.framing import Framer
from snowmelt.errors import check
from snowmelt.model.position import Position
from snowmelt.segments import PAGE, Segment, SegmentCut


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """What a segment's index says about the log that its events come from."""

    server: Server
    file: LogFile
    era: int
    gtids: GtidSet | None
    """All transactions up to the segment's end; None where they are not known."""
    format_description: bytes


class OpenSegment:
    """The segment that is being filled. `framer` copies events into its buffers; full buffers go to the writer."""

    def __init__(self, writer: DurableWriter, framer: Framer, limits: CaptureLimits, *, start: int, after: Segment | None) -> None:
        """`start`: the offset in its log file. `after`: the segment before it."""
        self._writer = writer
        self._framer = framer
        self._segment_bytes = limits.segment_bytes
        self._seal_s = limits.seal_ms / 1000
        self._number = after.number + 1 if after else 1
        self._follows = replace(after.end, transactions=None) if after else None
        self._start = start
        self._handed = 0
        self._buffer = writer.buffer()
        self.seal_due = float("inf")
        """When it is old enough to be sealed, by the monotonic clock."""

    @property
    def buffer(self) -> framing.Bytes:
        """The framer's target."""
        return self._buffer

    @property
    def bytes(self) -> int:
        """What is stored, with the part of an event that came in."""
        return int(self._handed + self._framer["fill"])

    @property
    def full(self) -> bool:
        """Whether it is to be sealed here."""
        return self._framer.at_cut and self._framer["segment_bytes"] >= self._framer["seal_bytes"]

    def age(self) -> None:
        """The clock of its age starts with its first event."""
        if self._framer["segment_bytes"] and self.seal_due == float("inf"):
            self.seal_due = time.monotonic() + self._seal_s

    def seal_at_next_cut(self) -> None:
        self._framer.state["seal_bytes"] = 1

    def begin_file(self) -> None:
        self._start = FIRST_OFFSET

    def take_back(self) -> None:
        """Forget what came in after the last whole event."""
        whole = self._framer["segment_bytes"]
        if self._handed > whole:
            self._writer.put(Shorten(whole))
            self._handed = whole
        self._framer.state["fill"] = whole - self._handed
        self._framer.state["streaming"] = 0

    def hand_over(self, *, last: bool) -> None:
        """Give the filled buffer to the writer and take a free one; waits if there is none.

        Unless it is the segment's last one, bytes that fill no page move to the next buffer: whole pages are cheaper to write.
        """
        fill = self._framer["fill"]
        whole = fill if last else fill // PAGE * PAGE
        if whole == 0:
            return
        full, self._buffer = self._buffer, self._writer.buffer()
        self._buffer[: fill - whole] = full[whole:fill]
        self._framer.state["fill"] = fill - whole
        self._writer.put(Write(self._number, full, whole))
        self._handed += whole

    def due_again(self) -> bool:
        """Begin to measure size and age anew; whether there is anything to seal."""
        self.seal_due = float("inf")
        self._framer.state["seal_bytes"] = self._segment_bytes
        return bool(self._framer["segment_bytes"])

    def seal(self, origin: SegmentOrigin) -> None:
        """End the segment at the cut point where the stream is, and begin the next one."""
        framer = self._framer
        data_bytes, offset = framer["segment_bytes"], framer["offset"]
        self.hand_over(last=True)
        check(framer.at_cut, "a segment ends inside a transaction", framer.place)
        check(self._handed == data_bytes, "a segment ends inside an event", f"{self._handed} and {data_bytes} bytes")
        end = Position(origin.file.number, offset, origin.era)
        self._writer.put(SealSegment(self._described(origin, end)))
        framer.next_segment()
        self._number += 1
        self._follows = end
        self._start = offset
        self._handed = 0

    def _described(self, origin: SegmentOrigin, end: Position) -> Segment:
        framer = self._framer
        data_bytes = framer["segment_bytes"]
        cuts = [SegmentCut(at, place, when, framing.CUT_KINDS[kind]) for at, place, when, kind in framer.cuts()]
        if not cuts or cuts[-1].at != data_bytes:
            cuts.append(SegmentCut(data_bytes, end.offset, framer["last_time"], framing.CUT_KINDS[framer["cut_kind"]]))
        checksummed = bool(framer["checksummed"])
        return Segment(
            folder=self._writer.folder,
            number=self._number,
            database=KIND,
            identity=origin.server.identity,
            log=str(origin.file),
            start=Position(origin.file.number, self._start, origin.era),
            end=replace(end, transactions=words_of(origin.gtids)),
            follows=self._follows,
            file_begins=FIRST_OFFSET,
            data_bytes=data_bytes,
            data_crc32=None if checksummed else framer["segment_crc"],
            first_time_s=framer["first_time"],
            last_time_s=framer["last_time"],
            cuts=tuple(cuts),
            own=Details(
                flavour=origin.server.flavour,
                version=origin.server.version,
                crc_length=4 if checksummed else 0,
                restart=framer["restart"],
                format_description=origin.format_description,
                event_bytes_max=framer["event_bytes_max"],
                payloads=framer["payloads"],
            ).encode(),
        )
