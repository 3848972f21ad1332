"""A log read as a replica would, with no more than tests of reads need: which transaction ends where and what it inserted."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.log.events import Gtid, read_gtid
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.model.position import Position
from tests.kit import servers
from tests.kit.servers import Server

_QUERY, _ROTATE, _XID = 2, 4, 16
_ROWS = (23, 30)
_GTIDS = (33, 162)


def open_session(server: Server, *, tls: Tls = Tls.DISABLED) -> Session:
    secret = server.folder / "password"
    secret.write_text(server.password)
    password = Secret(f"file:{secret}")
    options = MySqlOptions(
        host=server.host, port=server.port, username=server.user, password=password, tls=tls, allow_password_to_unverified_server=True
    )
    return Session(options)


def await_that(condition: Callable[[], object], *, seconds: float = 60, told: Callable[[], object] = str) -> None:
    """`told` says more where it does not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"what was awaited did not happen {told()}"
        threading.Event().wait(0.01)


@contextmanager
def logged_and_not_shown(server: Server, words: str) -> Iterator[Position]:
    """While the block runs a statement is in the log, whose end is told, and no SELECT shows what it did. For a MariaDB with
    semi-synchronous replication that waits AFTER_SYNC and without end."""
    with open_session(server) as admin, ThreadPoolExecutor(1) as pool:
        admin.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        with closing(Dump(server, semi_sync=True)):
            await_that(lambda: admin.query("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")[0][1] == "1")
            before = log_end(admin, era=0)
            writing = pool.submit(write, server, words)
            try:
                await_that(lambda: log_end(admin, era=0) > before)
                yield log_end(admin, era=0)
            finally:
                admin.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            writing.result()


def write(server: Server, words: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(words)


@dataclass(frozen=True)
class Transaction:
    end: Position
    gtid: Gtid | None
    id: int
    """What it inserted last into a table whose only or last column is a BIGINT."""


@dataclass
class Dump:
    """Reads the log from its end as of now, in a thread of its own, until the connection is closed."""

    server: Server
    semi_sync: bool = False
    """Asks the server to wait for acknowledgements, and never gives one."""
    transactions: list[Transaction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._connection: Any = self.server.connect()
        with self._connection.cursor() as cursor:
            self._file, start = servers.log_end(cursor)
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SELECT @@global.binlog_checksum")
            self._checksum = 0 if cursor.fetchone()[0] == "NONE" else 4
            if self.server.kind == "mariadb":
                cursor.execute("SET @mariadb_slave_capability = 4")
            if self.semi_sync:
                cursor.execute("SET @rpl_semi_sync_slave = 1")
        server_id = 900_000 + int(self.semi_sync)
        execute: Any = self._connection._execute_command  # type: ignore[attr-defined]
        execute(0x12, struct.pack("<IHI", start, 0, server_id) + self._file.encode())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Closing what another thread reads from would wait for that thread.
        self._connection._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=30)
        self._connection._force_close()

    def _run(self) -> None:
        gtid: Gtid | None = None
        inserted = 0
        while True:
            try:
                event = self._connection._read_packet().get_all_data()[3 if self.semi_sync else 1 :]
            except (pymysql.Error, OSError, AttributeError, ValueError):
                return
            kind, server_id = event[4], int.from_bytes(event[5:9], "little")
            body = event[19 : len(event) - self._checksum]
            if kind == _ROTATE:
                # Some servers send the rotation at the start of a stream without its checksum; names are all of one length.
                self._file = event[27 : 27 + len(self._file)].decode()
            elif kind in _GTIDS:
                gtid = read_gtid(kind, server_id, bytes(body))
            elif kind in _ROWS:
                inserted = struct.unpack("<q", body[-8:])[0]
            elif kind == _XID or (kind == _QUERY and body.endswith(b"COMMIT")):
                end = Position(LogFile.parse(self._file).number, int.from_bytes(event[13:17], "little"))
                self.transactions.append(Transaction(end, gtid, inserted))
