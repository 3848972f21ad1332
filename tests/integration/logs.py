"""A server's log as its own files hold it, read by our reader.

    start = mark(server)
    ...                                   # statements
    items = read(server, start, schemas=schemas_of(server, name))

A server hands each transaction to the system when it commits, so whatever a client has an answer for is in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.log.decode import ABSENT, ChangeBatch, LogItem, LogReader, LogServer, SchemaChanged
from snowmelt.databases.mysql.log.events import HEADER_BYTES, FormatDescription
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from tests.kit.servers import Server, log_end

Bytes = NDArray[np.uint8]

OPERATIONS = ("insert", "before", "after", "delete")
"""By the numbers of `_op`."""


def open_session(server: Server) -> Session:
    secret = server.folder / "password"
    secret.write_text(server.password)
    password = Secret(f"file:{secret}")
    return Session(
        MySqlOptions(
            host=server.host,
            port=server.port,
            username=server.user,
            password=password,
            tls=Tls.DISABLED,
            allow_password_to_unverified_server=True,
        )
    )


def mark(server: Server) -> Position:
    """The log's end as of now."""
    with server.connect() as connection, connection.cursor() as cursor:
        return mark_by(cursor)


def mark_by(cursor: Any) -> Position:
    name, offset = log_end(cursor)
    return Position(LogFile.parse(name).number, offset)


@dataclass(frozen=True)
class Stretch:
    """Events of one file from `start` on."""

    file: int
    start: int
    checksum_bytes: int
    data: Bytes

    def events(self) -> Iterator[bytes]:
        """Each event with its header and without its checksum."""
        at, raw = 0, self.data.tobytes()
        while at < len(raw):
            size = int.from_bytes(raw[at + 9 : at + 13], "little")
            yield raw[at : at + size - self.checksum_bytes]
            at += size

    def kinds(self) -> list[int]:
        return [event[4] for event in self.events()]


def stretches(server: Server, since: Position, until: Position | None = None) -> list[Stretch]:
    """What the log files hold from `since` to `until`, or to the end as of now."""
    until = until or mark(server)
    found = []
    for file in range(since.file, until.file + 1):
        start = since.offset if file == since.file else 4
        with open(server.data / f"binlog.{file:06d}", "rb") as log:
            first = log.read(4 + HEADER_BYTES)[4:]
            description = FormatDescription.read(log.read(int.from_bytes(first[9:13], "little") - HEADER_BYTES))
            log.seek(start)
            raw = log.read(until.offset - start if file == until.file else -1)
        found.append(Stretch(file, start, description.checksum_bytes, np.frombuffer(raw, np.uint8)))
    return found


def schemas_of(server: Server, database: str, position: Position | None = None) -> SchemaHistory[MySqlTable]:
    """The shapes that a database's tables have now, in force from `position` on, or from the log's beginning."""
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    session = open_session(server)
    try:
        for table, shape in read_tables(session, lambda table: table.database == database).items():
            schemas.put(table, position or Position(0, 0), shape)
    finally:
        session.close()
    return schemas


def reader_of(server: Server, schemas: SchemaHistory[MySqlTable] | None = None, **arguments: Any) -> LogReader:
    major, minor, patch = server.version[:3]
    return LogReader(
        server=LogServer(server.kind, (major, minor, patch)),
        schemas=SchemaHistory() if schemas is None else schemas,
        **arguments,
    )


def read_stretches(reader: LogReader, found: Iterable[Stretch]) -> list[LogItem]:
    items: list[LogItem] = []
    for stretch in found:
        items += reader.read(stretch.data, file=stretch.file, start=stretch.start, checksum_bytes=stretch.checksum_bytes)
    return items


def read(
    server: Server,
    since: Position,
    schemas: SchemaHistory[MySqlTable] | None = None,
    until: Position | None = None,
    **arguments: Any,
) -> list[LogItem]:
    """All that the log holds of captured tables since then, by a reader of its own."""
    return read_stretches(reader_of(server, schemas, **arguments), stretches(server, since, until))


def batches(items: Iterable[LogItem]) -> list[ChangeBatch]:
    return [item for item in items if isinstance(item, ChangeBatch)]


def schema_changes(items: Iterable[LogItem]) -> list[SchemaChanged]:
    return [item for item in items if isinstance(item, SchemaChanged)]


@dataclass(frozen=True)
class Change:
    """One row of a batch. `absent` names the columns that its image lacks; they are not in `values`."""

    table: TableId
    operation: str
    values: dict[str, Any]
    absent: frozenset[str]
    position: int
    event: int
    time: Any


def changes_of(batch: ChangeBatch) -> Iterator[Change]:
    names = [column.name for column in batch.table.columns]
    columns = {name: python_values(batch.rows.column(index)) for index, name in enumerate(batch.rows.schema.names)}
    missing = columns.get(ABSENT) or [b""] * batch.rows.num_rows
    for row in range(batch.rows.num_rows):
        bits = int.from_bytes(missing[row], "little")
        absent = frozenset(name for index, name in enumerate(names) if bits >> index & 1)
        for name in absent:
            assert columns[name][row] is None, "what an image lacks has no value"
        assert bits >> len(names) == 0, "the bitmap of what is absent names columns that are not there"
        yield Change(
            batch.table.id,
            OPERATIONS[columns["_op"][row]],
            {name: columns[name][row] for name in names if name not in absent},
            absent,
            columns["_position"][row],
            columns["_event"][row],
            columns["_ts"][row],
        )


def changes(items: Iterable[LogItem]) -> list[Change]:
    return [change for batch in batches(items) for change in changes_of(batch)]


def python_values(array: pa.Array) -> list[Any]:
    """Values as Python has them. Floats are their bits, so that equal means equal."""
    if pa.types.is_floating(array.type):
        width = array.type.bit_width // 8
        return [None if value is None else np.dtype(f"<f{width}").type(value).tobytes() for value in array.to_pylist()]
    return array.to_pylist()


@contextmanager
def settings(server: Server, **wanted: str | int) -> Iterator[None]:
    """Global settings of a server for a while."""
    with server.connect() as connection, connection.cursor() as cursor:
        old = {}
        for name, value in wanted.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            old[name] = cursor.fetchone()[0]
            cursor.execute(f"SET GLOBAL {name} = %s", [value])
        try:
            yield
        finally:
            for name, value in old.items():
                cursor.execute(f"SET GLOBAL {name} = %s", [value])


# Events made by hand: a table with one column `id INT` unless other types are given.


def table_map_body(number: int, name: str = "t", *, database: str = "d", types: bytes = b"\x03", meta: bytes = b"") -> bytes:
    nulls = bytes([0xFF] * ((len(types) + 7) // 8))
    names = b"".join(bytes([len(text)]) + text.encode() + b"\0" for text in (database, name))
    return number.to_bytes(6, "little") + b"\1\0" + names + bytes([len(types)]) + types + bytes([len(meta)]) + meta + nulls


def write_rows_body(number: int, values: Iterable[int], *, last: bool = True) -> bytes:
    """Rows of version 1 of a table with one INT column."""
    rows = b"".join(b"\0" + value.to_bytes(4, "little", signed=True) for value in values)
    return number.to_bytes(6, "little") + bytes([int(last), 0]) + b"\1\xff" + rows


def handmade_schemas(*names: str) -> SchemaHistory[MySqlTable]:
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    for name in names or ("t",):
        table = TableId("d", name)
        schemas.put(table, Position(0, 0), MySqlTable(id=table, columns=(MySqlColumn(name="id", base="int"),)))
    return schemas
