"""A server of a test: options to reach it, statements to it, rows written into it, and the events of its own log files."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.model.position import Position
from tests.kit.servers import Server, log_end

IN_USE = 0x01
WAIT_S = 60.0


def options(server: Server, **changed: Any) -> MySqlOptions:
    password = server.folder / "password"
    password.write_text(server.password)
    plain: dict[str, Any] = {"host": server.host, "port": server.port, "username": server.user, "tls": Tls.DISABLED} | {
        "allow_password_to_unverified_server": True
    }
    return MySqlOptions(**(plain | {"password": Secret(f"file:{password}")} | changed))


def execute(server: Server, *statements: str, database: str | None = None) -> None:
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def ask(server: Server, sql: str) -> Any:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def now(server: Server) -> Position:
    with server.connect() as connection, connection.cursor() as cursor:
        name, offset = log_end(cursor)
    return Position(LogFile.parse(name).number, offset)


def split(raw: bytes) -> list[bytes]:
    events, at = [], 0
    while at < len(raw):
        size = struct.unpack_from("<I", raw, at + 9)[0]
        events.append(raw[at : at + size])
        at += size
    assert at == len(raw)
    return events


def log_events(server: Server, number: int, start: int, end: int) -> list[bytes]:
    """Events of the server's own file. ANNOTATE is not stored; a file in use says so, but not to replicas."""
    raw = (server.data / f"binlog.{number:06d}").read_bytes()
    events = split(raw[max(start, 4) : end])
    if start == 4:
        events[0] = events[0][:17] + bytes([events[0][17] & ~IN_USE]) + events[0][18:]
    return [event for event in events if event[4] != Event.ANNOTATE]


def fill(server: Server, database: str, rows: int, *, wide: int = 200) -> None:
    """`rows` rows in transactions of ten."""
    with server.connect(database=database, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS t (id BIGINT PRIMARY KEY AUTO_INCREMENT, v LONGBLOB)")
        for _ in range(rows // 10):
            cursor.executemany("INSERT INTO t (v) VALUES (%s)", [("x" * random.randint(1, 2 * wide),) for _ in range(10)])
            connection.commit()


@contextmanager
def load(server: Server, database: str) -> Iterator[None]:
    """Somebody writes as long as the block runs."""
    stop = threading.Event()
    fill(server, database, 10)

    def write() -> None:
        while not stop.is_set():
            fill(server, database, 100)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
