"""Capture: one replication connection, and the bytes of the log as durable segments.

    socket ──▶ receive buffer ──▶ strip (checks, cuts) ──▶ buffers of a fixed pool ──▶ writer thread ──▶ segments
                 this thread                                      ◀── given back when written

States of a connection, and what is forbidden in each:
- *connecting*: the server must be the one that the segments came from; else `SourceDrift`, before a byte is asked for. Where it
  purged the file that capture is in, its oldest one must begin with exactly what was captured (`failover.nothing_lost`).
- *streaming*: a segment is sealed only at a cut point and never spans two log files. Nothing is sealed that was not checked.
- *broken*: the part of an event that came in is taken back; the next connection goes on with that very event, so also inside
  a transaction of any size. Tries are counted since the last event or heartbeat and end with `Unavailable`.

- *paused*: what is held has reached its cap (`relay.flow`), and the socket is left alone. The server waits as long as its
  net_write_timeout, which the session raises to an hour; if it cuts the connection then, the next one goes on as from *broken*. What
  is whole is sealed meanwhile, so that it can be read and let go of.

Memory: the receive buffer and the pool, whatever the size of an event or a transaction. An empty pool stops the reading of the
socket, which stops the server as above.

Who sets `end`: the writer thread, when the segment is durable in the folder. A restart goes on behind the segment that it is given; the
server may send up to one transaction again, of which nothing was sealed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pymysql

from snowmelt.databases.mysql.answers import number, text
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session, log_is_off, translate
from snowmelt.databases.mysql.failover import gtids_at, nothing_lost
from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet, of_words, words_of
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.details import KIND, Details, details_of
from snowmelt.databases.mysql.log.events import Event, MySqlGtid, read_gtid
from snowmelt.databases.mysql.log.files import FIRST_OFFSET, LogFile
from snowmelt.databases.mysql.log.framing import Bytes, Framer
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, InvariantBroken, SnowmeltError, SourceDrift, Unavailable, check, instance
from snowmelt.model.position import Position
from snowmelt.relay.flow import Flow
from snowmelt.segments import PAGE, Segment, SegmentCut, SegmentWriter, list_segments, owned, remove_torn

log = logging.getLogger(__name__)

Start = Position | Literal["latest", "earliest"]

_ADDRESSABLE: Final = 1 << 32
_FATAL_READ: Final = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: all that can be wrong with what was asked for; the text says what."""
_SAME_SERVER_ID: Final = 4052
"""MariaDB's ER_SLAVE_SAME_ID: who had our server id before us hears it since 11.6, and was cut off without a word before."""
_COM_BINLOG_DUMP: Final = 0x12
_COM_REGISTER_SLAVE: Final = 0x15
_SEND_ANNOTATE: Final = 2
"""MariaDB leaves no event of a transaction out, so that places can be counted where it doesn't tell them."""
_GTID_LIST_BYTES_MAX: Final = 64 << 20
_ENCRYPTION_HEADER_BYTES: Final = 512
_ANSWER_BYTES_MAX: Final = 1 << 16
_BEFORE_LISTS: Final = (Event.ROTATE, Event.FORMAT_DESCRIPTION, Event.START_ENCRYPTION)
_IDLE_MS: Final = 50
"""How long a stop or an overdue seal may go unnoticed while the server is silent."""


class AnotherServer(Unavailable):
    """Another server answers, and a new driver may go on there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """What bounds a capture's memory, its disk and its silences."""

    receive_bytes: int = 1 << 20
    buffer_bytes: int = 4 << 20
    buffers: int = 6
    """Of the pool between socket and disk."""
    segment_bytes: int = 64 << 20
    """A segment is sealed at the first cut point behind so much."""
    seal_ms: int = 500
    """Or when it is so old."""
    heartbeat_s: float = 5.0
    """How often a server that has nothing to send says so; silent for three times that, it is taken for dead."""
    disk_bytes_max: int = 16 << 30
    """How much of the log may wait here before reading stops."""

    def __post_init__(self) -> None:
        check(self.buffers >= 2, "the socket and the writer need a buffer each")
        check(self.receive_bytes >= framing.RECEIVE_BYTES_MIN, "the receive buffer is too small", str(self.receive_bytes))
        check(self.buffer_bytes >= self.receive_bytes + PAGE, "a whole event must fit a buffer", str(self.buffer_bytes))

    @property
    def memory_bytes(self) -> int:
        return self.receive_bytes + self.buffers * self.buffer_bytes

    @property
    def disk_bytes_hard(self) -> int:
        """What a single transaction may make of it, and a chunk that waits for the log."""
        return 4 * self.disk_bytes_max


@dataclass(frozen=True, slots=True)
class _Write:
    number: int
    buffer: Bytes
    count: int


@dataclass(frozen=True, slots=True)
class _Shorten:
    size: int


@dataclass(frozen=True, slots=True)
class _Seal:
    segment: Segment


class _Writer(threading.Thread):
    """Makes full buffers durable, in order, and gives them back to the pool.

    The queue is bounded by the pool: each entry holds a buffer or follows one that did. After an error the pool gives None and
    nothing more is written.
    """

    def __init__(self, folder: Path, buffers: int, buffer_bytes: int, sealed: Callable[[Segment], None]) -> None:
        super().__init__(name="snowmelt-capture-writer")
        self._segments = SegmentWriter(folder)
        self._sealed = sealed
        self._work: queue.SimpleQueue[_Write | _Shorten | _Seal | None] = queue.SimpleQueue()
        self._pool: queue.SimpleQueue[Bytes | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        for _ in range(buffers):
            self._pool.put(_page_aligned(buffer_bytes))

    def buffer(self) -> Bytes:
        """A free buffer; waits for one. Raises the writer's error once it has one."""
        buffer = self._pool.get()
        if buffer is None:
            self._pool.put(None)
            raise self.error or InvariantBroken("the writer of segments ended")
        return buffer

    def put(self, work: _Write | _Shorten | _Seal) -> None:
        self._work.put(work)

    def run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                match work:
                    case _Write(number, buffer, count):
                        self._segments.write(number, buffer.data[:count])
                        self._pool.put(buffer)
                    case _Shorten(size):
                        self._segments.truncate(size)
                    case _Seal(segment):
                        self._segments.seal(segment)
                        self._sealed(segment)
        except BaseException as error:
            self.error = error
        finally:
            with contextlib.suppress(OSError):
                self._segments.abandon()
            self._pool.put(None)

    def finish(self) -> None:
        """Let it write all it was given, forget what was not sealed, and end."""
        self._work.put(None)
        self.join()
        if self.error is not None:
            raise self.error


class _Log:
    """What is known of the log, and the segment that is being filled. Used by the thread of `run` alone."""

    def __init__(
        self,
        writer: _Writer,
        folder: Path,
        server: Server,
        file: LogFile,
        start: Position,
        *,
        segment_bytes: int,
        seal_s: float,
        file_bytes: Callable[[LogFile], int | None],
        located: Callable[[Position], None] | None = None,
        scan: bool = False,
        after: Segment | None = None,
    ) -> None:
        self.server = server
        self.file = file
        self._writer = writer
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._seal_s = seal_s
        self._era = start.era
        self._gtids = of_words(start.transactions)
        self._start = start.offset
        self._number = after.number + 1 if after else 1
        self._follows = replace(after.end, transactions=None) if after else None
        if after is not None and after.end.era < start.era:
            # It was another server's.
            after = None
        own = details_of(after) if after is not None else None
        self._format = own.format_description if own else b""
        # No connection begins behind 4 GiB, and only who captured what lies before knows of a place to begin at.
        self._scan = scan or (after is None and start.offset >= _ADDRESSABLE)
        self._target = writer.buffer()
        self._handed = 0
        self._gathered = bytearray()
        self._announced = False
        self._rotated = False
        self._file_bytes = file_bytes
        self._located = located
        self._begin = start.offset
        self._told = False
        self.seal_due = float("inf")
        # MariaDB keeps events of its encryption to itself, so there the next one may begin later than the last one ended.
        self._framer = Framer(exact=server.flavour == "mysql", segment_bytes=segment_bytes)
        self._framer.log_name = str(file)
        self._framer.state["offset"] = start.offset
        self._framer.state["restart"] = own.restart if own else start.offset

    @property
    def open_bytes(self) -> int:
        """Of the segment that is being filled, with what came in of an event."""
        return int(self._handed + self._framer["fill"])

    @property
    def place(self) -> str:
        return self._framer.place

    @property
    def progress(self) -> tuple[int, int, int]:
        return self.file.number, self._framer["offset"], self._framer["heartbeats"]

    def connect(self) -> int:
        """Get ready for a stream that goes on where the last one ended; the offset that it has to begin at."""
        framer = self._framer
        self._take_back()
        goal = max(framer["offset"], framer["skip_until"])
        if 0 < framer["skip_until"] <= framer["offset"]:
            self._scan = False
        begin = FIRST_OFFSET if self._scan else goal if goal < _ADDRESSABLE else framer["restart"]
        framer.connect(offset=begin, skip_until=goal if begin != goal else 0)
        self._begin = begin
        self._announced = False
        self._told = False
        return begin

    def skip_purged(self, session: Session) -> None:
        """Where the server purged the file that we are in, go on with its oldest one, if nothing lies in between."""
        logs = _list_logs(session)
        if any(file.number == self.file.number for file in logs):
            return
        self._take_back()
        self._add_gtids(self._framer.gtids())
        file = _oldest_if_nothing_lost(session, logs, self.file, self._gtids if self._framer.at_cut else None)
        self.seal()
        self._begin_file(file)

    def take(self, source: Bytes, held: int) -> int:
        """Take in what was received. How much of it is done with."""
        framer = self._framer
        at = 0
        while True:
            reason = framer.take(source, at, held, self._target)
            at = framer["at"]
            if reason == framing.ROOM:
                self._hand_over(last=False)
            elif reason == framing.EVENT:
                self._read(source)
            elif reason == framing.PIECE:
                self._gathered += source[framer["piece_at"] :][: framer["piece_bytes"]].tobytes()
                if len(self._gathered) > _GTID_LIST_BYTES_MAX:
                    raise Corrupt("a list of GTIDs is too large", position=framer.place)
            elif reason == framing.RUNS:
                self._add_gtids(framer.gtids())
            elif reason == framing.SERVER_ERROR:
                raise _server_error(source[framer["event_at"] : at].tobytes(), framer.place)
            elif reason == framing.SERVER_END:
                raise Unavailable("the server ended the stream")
            if not self._told:
                self._tell()
            if framer.at_cut and framer["segment_bytes"] >= framer["seal_bytes"]:
                self.seal()
            if reason == framing.MORE:
                break
        if framer["segment_bytes"] and self.seal_due == float("inf"):
            self.seal_due = time.monotonic() + self._seal_s
        return at

    def _tell(self) -> None:
        """Say where the stream is, once it has come to where we go on and is at a cut point."""
        framer = self._framer
        if not (self._announced and framer["offset"] >= framer["skip_until"] and framer.at_cut):
            return
        if self._gtids is None and self._begin == FIRST_OFFSET and framer["kind"] in _BEFORE_LISTS:
            # A file's list of the transactions before it is still to come, or a heartbeat that says that it has none.
            return
        self._told = True
        self._add_gtids(framer.gtids())
        if self._located is not None:
            self._located(Position(self.file.number, framer["offset"], self._era, words_of(self._gtids)))

    def seal_soon(self) -> None:
        """The segment is old enough: seal it here, or at the next cut point."""
        if self._framer.at_cut:
            self.seal()
        else:
            self._framer.state["seal_bytes"] = 1

    def leave(self) -> None:
        """Seal what may be sealed; what is inside a transaction is captured again by the next run."""
        self._take_back()
        if self._framer["group"] == framing.OUTSIDE:
            self.seal()

    # What events say.

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
            self.seal()
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
        """A made-up ROTATE says where the stream is: where it was asked to begin, later at the beginning of the next file."""
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
            raise _cut_off(framer.place, f"the log continues in {name}")
        # RESET MASTER may take a file away under the connection, which then goes on with the second of the new files as if nothing
        # were missing. The server's list tells: there the file that we read is as long as what we read of it, or purged since.
        size = self._file_bytes(self.file)
        if size != framer["offset"] and (size is not None or not self._rotated):
            raise _cut_off(framer.place, f"the log continues in {name}, and {self.file} is not the file that was captured")
        self._rotated = False
        if not framer.at_cut:
            log.warning("a log file ends inside a transaction, which is left out: %s", framer.place)
            framer.back_to_cut()
            self._take_back()
        self.seal()
        self._begin_file(file)

    def _begin_file(self, file: LogFile) -> None:
        self._framer.rotate(str(file))
        self.file = file
        self._start = FIRST_OFFSET
        self._format = b""
        self._scan = self._rotated = False

    def _read_format(self, raw: bytes, artificial: bool) -> None:
        # The header's time is the file's birth; a file of this name that was born at another time is another file.
        if self._format and raw[:4] != self._format[:4]:
            raise SourceDrift(
                "the log was started anew",
                detail=f"{self.file} is not the file that was captured",
                hint="after RESET MASTER or on a restored server the tables must be copied again",
            )
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

    # The segment.

    def _take_back(self) -> None:
        """Forget what came in behind the last whole event."""
        whole = self._framer["segment_bytes"]
        if self._handed > whole:
            self._writer.put(_Shorten(whole))
            self._handed = whole
        self._framer.state["fill"] = whole - self._handed
        self._framer.state["streaming"] = 0
        self._gathered.clear()

    def _hand_over(self, *, last: bool) -> None:
        """Give the filled buffer to the writer and take a free one; waits if there is none.

        Unless it is the segment's last one, what fills no page moves on to the next buffer: whole pages are cheaper to write.
        """
        fill = self._framer["fill"]
        whole = fill if last else fill // PAGE * PAGE
        if whole == 0:
            return
        full, self._target = self._target, self._writer.buffer()
        self._target[: fill - whole] = full[whole:fill]
        self._framer.state["fill"] = fill - whole
        self._writer.put(_Write(self._number, full, whole))
        self._handed += whole

    def seal(self) -> None:
        """End the segment at the cut point where the stream is. Without events there is none to end."""
        framer = self._framer
        self.seal_due = float("inf")
        framer.state["seal_bytes"] = self._segment_bytes
        data_bytes, offset = framer["segment_bytes"], framer["offset"]
        if data_bytes == 0:
            return
        self._hand_over(last=True)
        self._add_gtids(framer.gtids())
        check(framer.at_cut, "a segment ends inside a transaction", framer.place)
        check(self._handed == data_bytes, "a segment ends inside an event", f"{self._handed} and {data_bytes} bytes")
        cuts = [SegmentCut(at, place, when, framing.CUT_KINDS[kind]) for at, place, when, kind in framer.cuts()]
        if not cuts or cuts[-1].at != data_bytes:
            cuts.append(SegmentCut(data_bytes, offset, framer["last_time"], framing.CUT_KINDS[framer["cut_kind"]]))
        checksummed = bool(framer["checksummed"])
        end = Position(self.file.number, offset, self._era)
        segment = Segment(
            folder=self._folder,
            number=self._number,
            database=KIND,
            identity=self.server.identity,
            log=str(self.file),
            start=Position(self.file.number, self._start, self._era),
            end=replace(end, transactions=words_of(self._gtids)),
            follows=self._follows,
            file_begins=FIRST_OFFSET,
            data_bytes=data_bytes,
            data_crc32=None if checksummed else framer["segment_crc"],
            first_time_s=framer["first_time"],
            last_time_s=framer["last_time"],
            cuts=tuple(cuts),
            own=Details(
                flavour=self.server.flavour,
                version=self.server.version,
                crc_length=4 if checksummed else 0,
                restart=framer["restart"],
                format_description=self._format,
                event_bytes_max=framer["event_bytes_max"],
                payloads=framer["payloads"],
            ).encode(),
        )
        self._writer.put(_Seal(segment))
        framer.next_segment()
        self._number += 1
        self._follows = end
        self._start = offset
        self._handed = 0


class Capture:
    """Captures one server's log into a folder. `run` is called once, from a thread of its own.

    `start` counts only while there is no segment to go on behind, or none of its era: another server goes on there. Else the capture goes
    on where that one ended.
    """

    def __init__(
        self,
        options: MySqlOptions,
        folder: Path,
        *,
        start: Start,
        server_id: int,
        limits: CaptureLimits | None = None,
        identity: str | None = None,
        failover: bool = False,
        tries_max: int = 10,
        backoff_s: float = 0.1,
        backoff_max_s: float = 10.0,
        sealed: Callable[[Segment], None] | None = None,
        located: Callable[[Position], None] | None = None,
        flow: Callable[[int], Flow] | None = None,
    ) -> None:
        """`identity` is the server that `start` is of. With `failover` another one is `AnotherServer`, without `SourceDrift`.

        `sealed` is called by the writer thread with each durable segment, `located` by the thread of `run` once for each connection:
        with the first cut point at or behind where it goes on, and the transactions up to there. `flow` is asked before each read of the
        socket, with the bytes of the open segment; without it nothing is ever too much. None of them must block for long."""
        if not 0 < server_id < 1 << 32:
            raise InvalidConfig("server_id must be between 1 and 4294967295", detail=str(server_id))
        self._limits = limits = limits or CaptureLimits()
        self._identity = identity
        self._failover = failover
        self._options = options
        self._folder = folder
        self._start = start
        self._server_id = server_id
        self._source: Bytes = np.zeros(limits.receive_bytes, np.uint8)
        self._tries_max = tries_max
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._sealed = sealed
        self._located = located
        self._flow = flow
        # What the server lists us as. Who comes with our server id and another name is another capture.
        self._name = f"snowmelt-{uuid.uuid4().hex[:12]}"
        self._registered = False
        self._log: _Log | None = None
        self._changed = threading.Condition()
        self._end: Position | None = None

    @property
    def end(self) -> Position | None:
        """Up to where the log is durable here; None before the first segment."""
        with self._changed:
            return self._end

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the log is durable up to `position`. Any thread may."""
        with self._changed:
            return self._changed.wait_for(lambda: self._end is not None and self._end >= position, timeout_s)

    def run(self, stop: threading.Event) -> None:
        """Own the folder, and go on behind the last segment in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with owned(self._folder):
            segments = list_segments(self._folder)
            self.run_owned(stop, segments[-1] if segments else None)

    def run_owned(self, stop: threading.Event, last: Segment | None) -> None:
        """Capture behind `last` until `stop` is set, or until an error that no reconnecting heals. The folder is there and the caller's
        (`owned`); `last` may lie elsewhere."""
        remove_torn(self._folder)
        writer = _Writer(self._folder, self._limits.buffers, self._limits.buffer_bytes, self._is_durable)
        writer.start()
        try:
            if last is not None and not (isinstance(self._start, Position) and self._start.era > last.end.era):
                self._log = self._open(writer, server_of(last), LogFile.parse(last.log), last.end, after=last)
                self._set_end(last.end)
            self._keep_streaming(writer, stop, last)
        finally:
            try:
                if self._log is not None and writer.error is None:
                    self._log.leave()
            finally:
                writer.finish()

    def _open(
        self, writer: _Writer, server: Server, file: LogFile, start: Position, *, scan: bool = False, after: Segment | None = None
    ) -> _Log:
        return _Log(
            writer,
            self._folder,
            server,
            file,
            start,
            segment_bytes=self._limits.segment_bytes,
            seal_s=self._limits.seal_ms / 1000,
            scan=scan,
            after=after,
            file_bytes=self._file_bytes,
            located=self._located,
        )

    def _file_bytes(self, file: LogFile) -> int | None:
        """Where one of the server's log files ends; None where it has none of that name."""
        with Session(self._options) as session:
            may_encrypt = session.server.flavour == "mysql" and session.server.version >= (8, 0, 14)
            for name, size, *encrypted in session.query("SHOW BINARY LOGS", columns=(text, number, *may_encrypt * (text,))):
                if name == str(file):
                    # MySQL counts the header of an encrypted file, which positions leave out.
                    return int(size) - (_ENCRYPTION_HEADER_BYTES if encrypted == ["Yes"] else 0)
        return None

    def _is_durable(self, segment: Segment) -> None:
        self._set_end(segment.end)
        if self._sealed is not None:
            self._sealed(segment)

    def _set_end(self, end: Position) -> None:
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _keep_streaming(self, writer: _Writer, stop: threading.Event, last: Segment | None) -> None:
        tries = 0
        while not stop.is_set():
            before = self._log and self._log.progress
            try:
                with Session(self._options) as session:
                    if self._log is None:
                        self._log = self._open_first(writer, session, last)
                    self._ask(session, self._log)
                    self._stream(session.sock, self._log, stop)
            except AnotherServer:
                raise
            except Unavailable as error:
                if writer.error is not None:
                    raise
                tries = 1 if self._log and self._log.progress != before else tries + 1
                if tries >= self._tries_max:
                    raise Unavailable("the log can't be captured", detail=f"{tries} tries, the last: {error}") from None
                log.warning("capture lost its connection, try %d of %d: %s", tries, self._tries_max, error)
                stop.wait(min(self._backoff_max_s, self._backoff_s * 2 ** (tries - 1)))

    def _open_first(self, writer: _Writer, session: Session, last: Segment | None) -> _Log:
        """Resolve where the first segment begins, and which transactions come before it. `last` is of another server."""
        server = session.server
        self._check_server(server, self._identity or server.identity)
        scan = False
        if isinstance(self._start, Position):
            file, start = _find_start(session, self._start)
        elif self._start == "earliest":
            file = _list_logs(session)[0]
            start = Position(file.number, FIRST_OFFSET)
        else:
            file, start = _find_end(session)
        if start.transactions is None and start.offset > FIRST_OFFSET:
            if server.flavour == "mariadb":
                start = replace(start, transactions=words_of(gtids_at(session, file, start.offset)))
            else:
                # Only the file itself tells, if it is read from its beginning.
                scan = session.variable("gtid_mode") not in (None, "OFF")
        return self._open(writer, server, file, start, scan=scan, after=last)

    def _check_server(self, server: Server, identity: str) -> None:
        if server.identity == identity:
            return
        if self._failover:
            raise AnotherServer("another server answers than the one that is captured", detail=f"{server.identity}, not {identity}")
        raise SourceDrift(
            "another server answers than the one that was captured",
            detail=f"{server.identity}, not {identity}",
            hint="point the pipeline at the server that it was started with, or set failover: gtid",
        )

    def _ask(self, session: Session, captured: _Log) -> None:
        """Set the session up as a replica's and ask for the log from where we are."""
        server = session.server
        self._check_server(server, captured.server.identity)
        captured.server = server
        heartbeat_ns = int(self._limits.heartbeat_s * 1_000_000_000)
        # Newer servers read these by newer names too. CRC32 says that we understand checksums, whether the log has them or not.
        words = [f"@{who}_binlog_checksum = 'CRC32', @{who}_heartbeat_period = {heartbeat_ns}" for who in ("master", "source")]
        if server.flavour == "mariadb":
            words.append("@mariadb_slave_capability = 4")
        else:
            name = uuid.uuid5(uuid.UUID(int=0), f"snowmelt/{self._server_id}")
            words.append(f"@slave_uuid = '{name}', @replica_uuid = '{name}'")
        session.execute("SET " + ", ".join(words))
        captured.skip_purged(session)
        self._register(session)
        begin = captured.connect()
        flags = _SEND_ANNOTATE if server.flavour == "mariadb" else 0
        command = struct.pack("<BIHI", _COM_BINLOG_DUMP, begin, flags, self._server_id) + str(captured.file).encode()
        try:
            session.sock.sendall(struct.pack("<I", len(command)) + command)
        except OSError as error:
            raise translate(error) from None

    def _register(self, session: Session) -> None:
        """Take the server id. The first time that ends whoever has it; later, whoever has it then has ended us."""
        server = session.server
        if self._registered:
            new_words = server.flavour == "mysql" and server.version >= (8, 0, 22)
            try:
                replicas = session.query("SHOW REPLICAS" if new_words else "SHOW SLAVE HOSTS", columns=(number, text))
            except (InvalidConfig, SourceDrift):
                # Newer MariaDB asks for a privilege that capturing doesn't need otherwise.
                replicas = []
            for server_id, name in replicas:
                if server_id == self._server_id and name != self._name:
                    raise _taken_over(name)
        ours = self._name.encode()
        # What follows the name: user, password, port, rank and source, all of which only a real replica has.
        command = struct.pack("<BIB", _COM_REGISTER_SLAVE, self._server_id, len(ours)) + ours + bytes(12)
        # What is said here belongs to the handshake, and has the time of one.
        deadline = time.monotonic() + session.options.connect_timeout_s
        try:
            session.sock.sendall(struct.pack("<I", len(command)) + command)
            size = int.from_bytes(_receive(session.sock, 4, deadline)[:3], "little")
            if size > _ANSWER_BYTES_MAX:
                raise Corrupt("the server's answer can't be read", detail=f"{size:,} bytes for a yes or no")
            answer = _receive(session.sock, size, deadline)
        except OSError as error:
            raise translate(error) from None
        if answer[:1] != b"\0":
            raise _server_error(answer[1:], "")
        self._registered = True

    def _stream(self, sock: socket.socket, captured: _Log, stop: threading.Event) -> None:
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        view = self._source.data
        held = 0
        heard = time.monotonic()
        while not stop.is_set():
            if self._flow is not None and (flow := self._flow(captured.open_bytes)) is not Flow.ON:
                if flow is Flow.FULL:
                    raise _too_large(captured, self._limits)
                if time.monotonic() >= captured.seal_due:
                    captured.seal_soon()
                stop.wait(_IDLE_MS / 1000)
                # Nobody listened, so nobody was silent.
                heard = time.monotonic()
                continue
            try:
                count = sock.recv_into(view[held:])
            except (BlockingIOError, ssl.SSLWantReadError):
                now = time.monotonic()
                if now >= captured.seal_due:
                    captured.seal_soon()
                if now - heard > 3 * self._limits.heartbeat_s:
                    raise Unavailable("the server is silent", detail=f"no heartbeat for {now - heard:.1f} s") from None
                poll.poll(_IDLE_MS)
                continue
            except OSError as error:
                raise translate(error) from None
            if count == 0:
                raise Unavailable("the server closed the connection")
            heard = time.monotonic()
            held += count
            done = captured.take(self._source, held)
            if done < held:
                view[: held - done] = bytes(view[done:held])
            held -= done
            if heard >= captured.seal_due:
                captured.seal_soon()


def server_of(segment: Segment) -> Server:
    """The server that wrote a segment's events."""
    found = details_of(segment)
    return Server(found.flavour, found.version, segment.identity)


def _page_aligned(count: int) -> Bytes:
    memory = np.zeros(count + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + count]


def _receive(sock: socket.socket, count: int, deadline: float) -> bytes:
    """Just as many bytes, by a moment of the monotonic clock, however they trickle in."""
    got = b""
    while len(got) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unavailable("the server's answer does not end", detail="its time is over")
        sock.settimeout(left)
        part = sock.recv(count - len(got))
        if not part:
            raise Unavailable("the server closed the connection")
        got += part
    return got


def _taken_over(detail: str) -> Fenced:
    return Fenced("another client took over our server id", detail=detail, hint="give each pipeline a server_id of its own")


def _list_logs(session: Session) -> list[LogFile]:
    try:
        found = [LogFile.parse(name) for (name,) in session.query("SHOW BINARY LOGS", columns=(text,))]
    except SourceDrift as error:
        raise log_is_off(error.detail) from None
    if not found:
        raise log_is_off("")
    return found


def _find_start(session: Session, start: Position) -> tuple[LogFile, Position]:
    """The file that capture begins in, and where; that is the oldest one where the server purged what lies before, all of which we have."""
    logs = _list_logs(session)
    for found in logs:
        if found.number == start.file:
            return found, start
    oldest = _oldest_if_nothing_lost(session, logs, replace(logs[0], number=start.file), of_words(start.transactions))
    return oldest, replace(start, file=oldest.number, offset=FIRST_OFFSET)


def _oldest_if_nothing_lost(session: Session, logs: list[LogFile], file: LogFile, captured: GtidSet | None) -> LogFile:
    oldest = logs[0]
    if why := nothing_lost(session, captured, file, oldest):
        raise _purged(f"{file}; the server has {oldest} to {logs[-1]}: {why}")
    log.info("the server purged its log up to %s; all of it was captured", oldest)
    return oldest


def _purged(detail: str) -> SourceDrift:
    return SourceDrift(
        "the server no longer has the log from where the capture ended",
        detail=detail,
        hint="copy the tables again, and let the server keep its log longer (binlog_expire_logs_seconds, expire_logs_days)",
    )


def _find_end(session: Session) -> tuple[LogFile, Position]:
    """Where the log ends now.

    The set of executed transactions that the server tells with it moves later than the offset does: it lacks transactions below it, and
    would make a cut of the log seem visible that is not. Only the file tells which are there.
    """
    file, offset = session.log_end()
    return file, Position(file.number, offset)


def _cut_off(place: str, detail: str) -> SourceDrift:
    return SourceDrift(
        "the server's log ends before what was captured of it",
        detail=f"{place}: {detail}",
        hint="it lost committed transactions in a crash (sync_binlog = 0?); the tables must be copied again",
    )


def _too_large(captured: _Log, limits: CaptureLimits) -> InvalidConfig:
    return InvalidConfig(
        "a transaction is larger than what may be held of the log",
        detail=f"{captured.open_bytes:,} bytes of it and no end, at {captured.place}; {limits.disk_bytes_hard:,} may be held in all",
        hint="raise disk_bytes_max of the relay; this is four times that",
    )


def _server_error(payload: bytes, place: str) -> SnowmeltError:
    """What the server says instead of an event: 2 bytes of code, `#` and 5 of state, text."""
    code = int.from_bytes(payload[:2], "little")
    text = payload[2:]
    message = (text[6:] if text[:1] == b"#" else text).decode("utf-8", "replace")
    lower = message.lower()
    if code == _SAME_SERVER_ID or "same server_uuid/server_id" in lower:
        return _taken_over(message)
    if code != _FATAL_READ:
        return translate(pymysql.err.OperationalError(code, message))
    if "could not find first log file" in lower or "could not find next log" in lower or "purged" in lower:
        return _purged(f"{place}: {message}")
    if "impossible position" in lower or "> file size" in lower:
        return _cut_off(place, message)
    return SourceDrift("the server can't send its log", detail=f"{place}: {message}")


def capture_until(
    options: MySqlOptions,
    folder: Path,
    start: Start,
    until: Position,
    *,
    server_id: int = 1_000_001,
    timeout_s: float = 600.0,
    segment_bytes: int = 64 << 20,
    seal_ms: int = 500,
) -> Position:
    """Capture until `until` is durable; where the last segment then ends."""
    stop = threading.Event()

    def sealed(segment: Segment) -> None:
        if segment.end >= until:
            stop.set()

    segments = list_segments(folder) if folder.is_dir() else []
    if segments and segments[-1].end >= until:
        return segments[-1].end
    if not segments and isinstance(start, Position) and start >= until:
        return start
    limits = CaptureLimits(segment_bytes=segment_bytes, seal_ms=seal_ms)
    capture = Capture(options, folder, start=start, server_id=server_id, limits=limits, sealed=sealed)
    timer = threading.Timer(timeout_s, stop.set)
    timer.start()
    try:
        capture.run(stop)
    finally:
        timer.cancel()
    end = capture.end
    if end is None or not end >= until:
        raise Unavailable("the log did not get that far", detail=f"{end}, not {until} in {timeout_s:.0f} s")
    return end
