"""The connection: connect, stream, reconnect.

States of a connection, and what is forbidden in each:
- *connecting*: the server must be the one that the segments came from. Another one is `SourceDrift` before a byte is requested. Where the
  server purged the current file, its oldest file must begin with exactly what was captured (`failover.why_not_all_captured`).
- *streaming*: a segment is sealed only at a cut point and never spans two log files. Nothing is sealed that was not checked.
- *broken*: part of an event that came in is taken back. The next connection continues with that very event, also inside a transaction of
  any size. Tries are counted since the last event or heartbeat, and end with `Unavailable`.
- *paused*: the log that is held has reached its cap (`relay.flow`), and the socket is not read. The server waits for its
  net_write_timeout, which the session raises to an hour. If it cuts the connection then, the next one continues as from *broken*. A
  segment that is due is sealed meanwhile, so that it can be read and released.

Memory: the receive buffer and the pool, whatever the size of an event or a transaction. While the pool is empty the socket is not read, and
the server waits as above.

Who sets `end`: the writer thread, when the segment is durable in the folder. A restart continues after the segment that it is given. The
server may send the open transaction again, because nothing of it was sealed.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from snowmelt import budgets
from snowmelt.budgets import RetryBudget
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session, translate
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.capture.refusals import too_large
from snowmelt.databases.mysql.log.capture.replica import Replica
from snowmelt.databases.mysql.log.capture.starting import Start, StreamStart, continue_after, file_bytes, resolve_start
from snowmelt.databases.mysql.log.capture.streaming import LogStream
from snowmelt.databases.mysql.log.capture.writing import DurableWriter
from snowmelt.databases.mysql.log.framing import Bytes
from snowmelt.errors import InvalidConfig, SourceDrift, Unavailable, check
from snowmelt.model.position import Position
from snowmelt.relay.flow import Flow
from snowmelt.segments import Segment, list_segments, owned, remove_torn

log = logging.getLogger(__name__)

_IDLE_MS: Final = 50
"""How late a stop or an overdue seal may be noticed while the server is silent."""


class AnotherServer(Unavailable):
    """Another server answers, and a new driver may continue there."""


@dataclass(frozen=True, slots=True)
class ExpectedServer:
    """The server that must answer."""

    identity: str | None = None
    """The server of the start; None: the first one that answers."""
    failover: bool = False
    """Whether another server is `AnotherServer`, and not `SourceDrift`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureHooks:
    """Functions that a capture calls. None of them may block for long."""

    sealed: Callable[[Segment], None] = lambda _segment: None
    """Called by the writer thread with each durable segment."""
    located: Callable[[Position], None] | None = None
    """Called by the capture's thread once for each connection: with the first cut point at or after the place that it continues from, and
    all transactions up to there."""
    flow: Callable[[int], Flow] = lambda _open_bytes: Flow.ON
    """Asked before each read of the socket, with the bytes of the open segment."""


class Capture:
    """Captures one server's log into a folder. `run` or `run_owned` is called once, from a thread of its own.

    `start` counts only while there is no segment to continue after, or none of its era: then another server continues there. Otherwise
    capture continues where the last segment ended.
    """

    def __init__(
        self,
        options: MySqlOptions,
        folder: Path,
        *,
        start: Start,
        server_id: int,
        limits: CaptureLimits | None = None,
        expected: ExpectedServer = ExpectedServer(),  # noqa: B008
        budget: RetryBudget = budgets.CAPTURE,
        hooks: CaptureHooks = CaptureHooks(),  # noqa: B008
    ) -> None:
        if not 0 < server_id < 1 << 32:
            raise InvalidConfig("server_id must be between 1 and 4294967295", detail=str(server_id))
        self._limits = limits = limits or CaptureLimits()
        check(limits.receive_bytes >= framing.RECEIVE_BYTES_MIN, "the receive buffer is too small", str(limits.receive_bytes))
        self._options = options
        self._folder = folder
        self._start = start
        self._replica = Replica(server_id)
        self._expected = expected
        self._budget = budget
        self._hooks = hooks
        self._source: Bytes = np.zeros(limits.receive_bytes, np.uint8)
        self._log: LogStream | None = None
        self._changed = threading.Condition()
        self._end: Position | None = None

    @property
    def end(self) -> Position | None:
        """Up to where the log is durable here; None before the first segment."""
        with self._changed:
            return self._end

    def wait(self, position: Position, timeout_s: float) -> bool:
        """Wait until the log is durable up to `position`. Any thread may call it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._end is not None and self._end >= position, timeout_s)

    def run(self, stop: threading.Event) -> None:
        """Own the folder, and continue after the last segment in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with owned(self._folder):
            segments = list_segments(self._folder)
            self.run_owned(stop, segments[-1] if segments else None)

    def run_owned(self, stop: threading.Event, last: Segment | None) -> None:
        """Capture after `last` until `stop` is set, or until an error that a new connection can't heal. The folder exists and is owned by
        the caller (`owned`); `last` may lie elsewhere."""
        remove_torn(self._folder)
        writer = DurableWriter(self._folder, self._limits.buffers, self._limits.buffer_bytes, self._is_durable)
        writer.start()
        try:
            if last is not None and not (isinstance(self._start, Position) and self._start.era > last.end.era):
                self._log = self._open(writer, continue_after(last))
                self._set_end(last.end)
            self._keep_streaming(writer, stop, last)
        finally:
            try:
                if self._log is not None and writer.error is None:
                    self._log.leave()
            finally:
                writer.finish()

    def _open(self, writer: DurableWriter, start: StreamStart) -> LogStream:
        return LogStream(writer, start, self._limits, file_bytes=partial(file_bytes, self._options), located=self._hooks.located)

    def _is_durable(self, segment: Segment) -> None:
        self._set_end(segment.end)
        self._hooks.sealed(segment)

    def _set_end(self, end: Position) -> None:
        with self._changed:
            self._end = end
            self._changed.notify_all()

    def _keep_streaming(self, writer: DurableWriter, stop: threading.Event, last: Segment | None) -> None:
        tries = 0
        while not stop.is_set():
            before = self._log and self._log.progress
            try:
                with Session(self._options) as session:
                    if self._log is None:
                        self._check_server(session.server, self._expected.identity or session.server.identity)
                        self._log = self._open(writer, resolve_start(session, self._start, after=last))
                    self._ask(session, self._log)
                    self._stream(session.sock, self._log, stop)
            except AnotherServer:
                raise
            except Unavailable as error:
                if writer.error is not None:
                    raise
                tries = 1 if self._log and self._log.progress != before else tries + 1
                if self._budget.is_spent(tries):
                    raise Unavailable("the log can't be captured", detail=f"{tries} tries, the last: {error}") from None
                log.warning("capture lost its connection, try %d of %d: %s", tries, self._budget.tries_max, error)
                stop.wait(self._budget.pause_s(tries))

    def _check_server(self, server: Server, identity: str) -> None:
        if server.identity == identity:
            return
        if self._expected.failover:
            raise AnotherServer("another server answers than the one that is captured", detail=f"{server.identity}, not {identity}")
        raise SourceDrift(
            "another server answers than the one that was captured",
            detail=f"{server.identity}, not {identity}",
            hint="point the pipeline at the server that it was started with, or set failover: gtid",
        )

    def _ask(self, session: Session, captured: LogStream) -> None:
        """Make the session a replica's, and request the log from where the last connection ended."""
        self._check_server(session.server, captured.server.identity)
        captured.server = session.server
        self._replica.prepare(session, heartbeat_s=self._limits.heartbeat_s)
        captured.skip_purged(session)
        self._replica.register(session)
        begin = captured.connect()
        self._replica.request_log(session, captured.file, begin)

    def _stream(self, sock: socket.socket, captured: LogStream, stop: threading.Event) -> None:
        sock.setblocking(False)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        view = self._source.data
        held = 0
        heard = time.monotonic()
        while not stop.is_set():
            if (flow := self._hooks.flow(captured.open_bytes)) is not Flow.ON:
                if flow is Flow.FULL:
                    raise too_large(captured.open_bytes, captured.place, self._limits)
                if time.monotonic() >= captured.seal_due:
                    captured.seal_soon()
                stop.wait(_IDLE_MS / 1000)
                # The socket was not read, so the server's silence means nothing.
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
