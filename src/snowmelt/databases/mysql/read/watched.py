"""Ends a read that takes too long, or that other sessions wait for.

A read's transaction keeps a shared metadata lock on its table until it ends. An ALTER waits for that lock, and every later statement on
the table waits for the ALTER: so one long read can stop all writers. Therefore each read is watched by a second session. The watch
needs no grant beyond SELECT, and works on every server: it runs a SELECT of its own on the table. That one waits, too, as soon as an
ALTER, DROP, TRUNCATE, RENAME or LOCK TABLES waits, and times out.

The watch ends a read with KILL, which a user may do to their own sessions. The server releases the lock at once, whatever the reading
process does at that moment. A read that is short is never watched: the second session is opened only after `LOOK_AFTER_S`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from enum import Enum
from types import TracebackType
from typing import Final

from snowmelt.databases.mysql.answers import number
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.quoting import quote_table
from snowmelt.errors import Occupied, SnowmeltError
from snowmelt.model.table import TableId

LOOK_AFTER_S: Final = 2.0
"""How long a read runs before it is watched."""
LOOK_EVERY_S: Final = 1.0
_WAIT_S: Final = 1
"""How long the watch's own SELECT waits for the table: the shortest time that servers support."""


class Ended(Enum):
    """Why a read was ended."""

    TOO_LONG = "it took too long"
    IN_THE_WAY = "other sessions wait for it"


class Watch:
    """Watches the read of one session while the block runs. To be made before the session is busy with rows.

    `ended` says why the read was ended; None: it was not. Set `gives_way` to False for a read that holds a table lock: writers wait for
    such a read anyway.
    """

    def __init__(self, session: Session, table: TableId, *, seconds_max: float) -> None:
        self._session = session
        self._table = table
        self.gives_way = True
        self._seconds_max = seconds_max
        self._connection: int = session.row("SELECT CONNECTION_ID()", columns=(number,))[0]
        self._began = self._deadline = 0.0
        self._over = threading.Event()
        self._deciding = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="snowmelt-watch", daemon=True)
        self.ended: Ended | None = None

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._deadline = self._began + self._seconds_max
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._deciding:
            self._over.set()
        self._thread.join()

    def _work(self) -> None:
        wait_s = min(LOOK_AFTER_S, self._seconds_max)
        while not self._over.wait(wait_s):
            # A server that takes no second session is asked for one again; what is left without it is the limit of time.
            with contextlib.suppress(SnowmeltError), Session(self._session.options) as session:
                session.execute(f"SET SESSION lock_wait_timeout = {_WAIT_S}")
                while (ended := self._look(session)) is None:
                    if self._over.wait(LOOK_EVERY_S):
                        return
                self._end(ended, session)
                return
            if time.monotonic() >= self._deadline:
                self._end(Ended.TOO_LONG, None)
                return
            wait_s = LOOK_EVERY_S

    def _look(self, session: Session) -> Ended | None:
        if time.monotonic() >= self._deadline:
            return Ended.TOO_LONG
        if self.gives_way:
            try:
                session.execute(f"SELECT 1 FROM {quote_table(self._table)} LIMIT 0")
            except Occupied:
                return Ended.IN_THE_WAY
        return None

    def _end(self, ended: Ended, session: Session | None) -> None:
        with self._deciding:
            if self._over.is_set():
                return
            self.ended = ended
            with contextlib.suppress(SnowmeltError):
                if session is not None and self._knows_the_read(session):
                    session.execute(f"KILL {self._connection}")
            # A thread that waits for rows at this end wakes up, also where the server could not be asked. Not by `SSLSocket.shutdown`: it
            # takes TLS off the socket first, and what is still to be received would be read as it was encrypted.
            with contextlib.suppress(SnowmeltError, OSError):
                socket.socket.shutdown(self._session.sock, socket.SHUT_RDWR)

    def _knows_the_read(self, session: Session) -> bool:
        """Whether connections have the same numbers here as where the read is: not on another server at the same address, nor on
        one that was started again since."""
        if session.server.identity != self._session.server.identity:
            return False
        uptime_s: int = session.row("SHOW GLOBAL STATUS LIKE 'Uptime'", columns=(str, number))[1]
        return uptime_s >= int(time.monotonic() - self._began)
