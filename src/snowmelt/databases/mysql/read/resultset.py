"""A SELECT by the binary protocol, from the socket into Arrow arrays.

Laws:
- One compiled kernel decodes the rows of every table: columns are described to it by numbers, so that no schema compiles
  anything, and no row becomes a Python object.
- Each array has the canonical type of its column (see `columns`), and each value its canonical form.
- Nothing of the server is trusted: lengths are checked against their packet, the result's columns against the expected ones.
  What does not fit is `Corrupt` or `SourceDrift`, never a wrong value.
- Memory is bounded: one receive buffer, which grows only for a row larger than it and up to `row_bytes_max`, and the arenas
  of the batches that are still held. A row that no longer fits an arena is taken back and opens the next batch.
- A result set that is not read to its end leaves bytes on the connection, so then the session is closed.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from select import POLLIN, poll

import numpy as np
import pyarrow as pa
import pymysql

from snowmelt.columnar.arena import Arena, ArenaPool, Bytes, Layout, Longs
from snowmelt.columnar.memory import valid_utf8
from snowmelt.databases.mysql.connect import Session, translate
from snowmelt.databases.mysql.read import binaryrows as kernel
from snowmelt.databases.mysql.read.wire_forms import check_column, kernel_kind, length_at
from snowmelt.databases.mysql.types.columns import (
    MySqlColumn,
    TypeOptions,
    arrow_type,
    lake_nullable,
)
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable, check
from snowmelt.model.table import TableId

ROWS_MAX = 65_536
BATCH_BYTES_MAX = 64 << 20
ROW_BYTES_MAX = 256 << 20
RECEIVE_BYTES = 1 << 20
HEAP_BYTES_MAX = (1 << 31) - 4096
"""Arrow's 32-bit offsets end here."""
ROWS_FIRST = 2_048
HEAP_BYTES_FIRST = 64 << 10
"""The first batch is small, for a small result must not hold a large arena; the next ones grow as they are filled."""

_GATHER_AFTER_BYTES = 1 << 20
"""After this many bytes of a result it pays to wait for more before a receive."""
_GATHER_BYTES = 256 << 10
_GATHER_MS = 1

_PREPARE, _EXECUTE, _CLOSE = 0x16, 0x17, 0x19
_PACKET_MAX = 0xFFFFFF
_MORE_RESULTS = 0x0008


@dataclass(slots=True)
class ReadCounters:
    """The size of a read so far."""

    rows: int = 0
    bytes: int = 0
    """Received, packet headers included."""
    nulled_dates: int = 0
    """Zero or impossible dates that became NULL."""


def select(
    session: Session,
    sql: str,
    columns: Sequence[MySqlColumn],
    options: TypeOptions,
    *,
    counters: ReadCounters,
    pool: ArenaPool | None = None,
    rows_max: int = ROWS_MAX,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    row_bytes_max: int = ROW_BYTES_MAX,
    table: TableId | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run a SELECT that gives exactly `columns` and hand out its rows, batch by batch, while they come in.

    A batch ends at `rows_max` rows or when its memory, `batch_bytes_max` in all but for a single larger row, is full. The
    session must not be used for anything else before the iterator is exhausted; if it is dropped earlier, or fails, the
    session is closed. `table`: the one that is read; a row of it that is too large sets aside that table alone.
    """
    check(0 < rows_max < 1 << 24, "rows_max is out of its range", str(rows_max))
    check(RECEIVE_BYTES <= row_bytes_max < HEAP_BYTES_MAX, "row_bytes_max is out of its range", str(row_bytes_max))
    wire = _Packets(session, counters, row_bytes_max, table)
    finished = False
    try:
        statement = _prepare(wire, sql)
        _execute(wire, statement, columns)
        shape = _ArenaShape(columns, options, rows_max=rows_max, batch_bytes_max=batch_bytes_max)
        rows = _Rows(wire, shape, counters, pool or ArenaPool())
        while (batch := rows.next_batch()) is not None:
            yield batch
            del batch
        wire.send(struct.pack("<BI", _CLOSE, statement))
        finished = True
    finally:
        if not finished:
            session.close()


class _Packets:
    """The packets of one connection, received into one buffer."""

    def __init__(self, session: Session, counters: ReadCounters, row_bytes_max: int, table: TableId | None = None) -> None:
        self._socket = session.sock
        self._socket.settimeout(session.options.read_timeout_s)
        # What TLS has decrypted already the system knows nothing of, so there only plain connections wait for more.
        self._plain = isinstance(self._socket, socket.socket) and not isinstance(self._socket, ssl.SSLSocket)
        self._counters = counters
        self._row_bytes_max = row_bytes_max
        self._table = table
        self.buffer: Bytes = np.empty(RECEIVE_BYTES + kernel.SLACK, np.uint8)
        self.at = 0
        self.fill = 0
        self.number = 0
        """Of the packet that must come next."""

    def send(self, command: bytes) -> None:
        check(len(command) < _PACKET_MAX, "a command is larger than a packet", f"{len(command)} bytes")
        self.number = 1
        try:
            self._socket.sendall(struct.pack("<I", len(command)) + command)
        except OSError as error:
            raise translate(error) from None

    def receive(self, need: int) -> None:
        """Take in what the server has sent, at least one byte, with room for `need` bytes from where we stand."""
        capacity = self.buffer.shape[0] - kernel.SLACK
        if need > capacity:
            if need > self._row_bytes_max:
                detail = f"{need:,} bytes, and a read takes {self._row_bytes_max:,}"
                if self._table is not None:
                    raise self._table.stuck(f"a row of {self._table} is larger than the limit", detail=detail, hint="exclude the table")
                raise InvalidConfig("a row is larger than row_bytes_max", detail=detail, hint="exclude the table")
            grown = np.empty(min(max(need, 2 * capacity), self._row_bytes_max) + kernel.SLACK, np.uint8)
            grown[: self.fill - self.at] = self.buffer[self.at : self.fill]
            self.buffer, self.at, self.fill = grown, 0, self.fill - self.at
        elif self.at == self.fill:
            self.at = self.fill = 0
        elif self.at + need > capacity or self.fill == capacity:
            self.buffer[: self.fill - self.at] = self.buffer[self.at : self.fill].copy()
            self.at, self.fill = 0, self.fill - self.at
        room = self.buffer[self.fill : self.buffer.shape[0] - kernel.SLACK].data
        try:
            if self._plain and self._counters.bytes > _GATHER_AFTER_BYTES:
                self._gather(min(len(room), _GATHER_BYTES))
            got = self._socket.recv_into(room)
        except OSError as error:
            raise translate(error) from None
        if got == 0:
            raise Unavailable("the database closed the connection")
        self.fill += got
        self._counters.bytes += got

    def _gather(self, count: int) -> None:
        """Wait a moment until more bytes are there. The server writes 16 KiB at a time, and a wake-up for each of these writes would cost
        more than decoding them. The wait is short, so nothing is delayed much."""
        waiting = poll()
        waiting.register(self._socket, POLLIN)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        waiting.poll(_GATHER_MS)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def packet(self) -> bytes:
        """The next packet's payload, for the few that are not rows. None of them is as long as a packet can be."""
        while self.fill - self.at < 4:
            self.receive(4)
        length = self._header(self.at)
        if length == _PACKET_MAX:
            raise Corrupt("the server's answer is longer than it can be")
        while self.fill - self.at < 4 + length:
            self.receive(4 + length)
        payload = self.buffer[self.at + 4 : self.at + 4 + length].tobytes()
        self.at += 4 + length
        if payload[:1] == b"\xff":
            raise _server_error(payload)
        return payload

    def assemble(self) -> tuple[int, int]:
        """Make one payload of the packets of a long row: where it begins and how long it is.

        We stand after it then, while the payload's bytes stay where they are until the next `receive`.
        """
        length, behind = 0, 0
        while True:
            while self.fill - self.at < behind + 4:
                self.receive(behind + 4)
            part = self._header(self.at + behind)
            while self.fill - self.at < behind + 4 + part:
                self.receive(behind + 4 + part)
            start = self.at + behind + 4
            target = self.at + 4 + length
            if start != target:
                self.buffer[target : target + part] = self.buffer[start : start + part].copy()
            length += part
            behind += 4 + part
            if part < _PACKET_MAX:
                payload = self.at + 4
                self.at += behind
                return payload, length

    def _header(self, at: int) -> int:
        low, middle, high, number = self.buffer[at : at + 4].tolist()
        if number != self.number:
            raise Corrupt(kernel.BROKEN_BECAUSE[kernel.OUT_OF_ORDER], detail=f"{number} instead of {self.number}")
        self.number = (number + 1) & 255
        return int(low | middle << 8 | high << 16)


def _server_error(payload: bytes) -> Exception:
    if len(payload) < 3:
        return Corrupt("the server's error can't be read")
    code = int.from_bytes(payload[1:3], "little")
    text = payload[9:] if payload[3:4] == b"#" else payload[3:]
    return translate(pymysql.err.OperationalError(code, text.decode("utf-8", "replace")))


def _prepare(wire: _Packets, sql: str) -> int:
    wire.send(bytes([_PREPARE]) + sql.encode())
    payload = wire.packet()
    if len(payload) < 12 or payload[0] != 0:
        raise Corrupt("the server's answer to a statement can't be read")
    statement, columns, parameters = struct.unpack_from("<IHH", payload, 1)
    if parameters:
        raise Corrupt("the server's answer to a statement can't be read", detail=f"{parameters} parameters")
    # The columns are told again, and checked, when the statement runs.
    for _ in range(columns + 1 if columns else 0):
        wire.packet()
    return int(statement)


def _execute(wire: _Packets, statement: int, columns: Sequence[MySqlColumn]) -> None:
    wire.send(struct.pack("<BIBI", _EXECUTE, statement, 0, 1))
    payload = wire.packet()
    count, _ = length_at(payload, 0)
    if count != len(columns):
        raise SourceDrift("the result has another number of columns", detail=f"{count} instead of {len(columns)}")
    for column in columns:
        check_column(wire.packet(), column)
    if (end := wire.packet())[:1] != b"\xfe" or len(end) >= 9:
        raise Corrupt("the result's columns don't end")


class _ArenaShape:
    """The columns as the kernel knows them, and the size of the arenas: it learns from batches that ended early."""

    def __init__(self, columns: Sequence[MySqlColumn], options: TypeOptions, *, rows_max: int, batch_bytes_max: int) -> None:
        self.columns = tuple(columns)
        self.types = [arrow_type(column, options) for column in columns]
        self.schema = pa.schema(
            [pa.field(column.name, kind, nullable=lake_nullable(column, options)) for column, kind in zip(columns, self.types, strict=True)]
        )
        described = [kernel_kind(column, options) for column in columns]
        self._storages = [storage for _, storage, _, _ in described]
        self._batch_bytes_max = batch_bytes_max
        self._plan: Longs = np.zeros((len(columns), kernel.PLAN_WIDTH), np.int64)
        for index, (kind, _, parameter, precision) in enumerate(described):
            self._plan[index, [kernel.KIND, kernel.PARAMETER, kernel.PRECISION]] = kind, parameter, precision
        # Half of the memory is for what has a fixed width, half for heaps.
        fixed = sum(storage.width for storage in self._storages) + len(columns) // 8 + 1
        self._rows_max = max(1, min(rows_max, batch_bytes_max // 2 // fixed))
        self._rows = min(ROWS_FIRST, self._rows_max)
        heaps = sum(storage.heap for storage in self._storages)
        first = min(HEAP_BYTES_FIRST, batch_bytes_max // 2 // max(1, heaps))
        self._heap_bytes = [first if storage.heap else 0 for storage in self._storages]
        self._large: dict[int, int] = {}
        """What the heaps of one row need that is too large for any batch: it gets an arena of its own."""
        self._layout: Layout | None = None

    def layout(self) -> tuple[Layout, Longs]:
        if self._layout is None:
            heaps = [self._large.get(index, size) for index, size in enumerate(self._heap_bytes)]
            layout = Layout(self._storages, rows_max=1 if self._large else self._rows, heap_bytes=heaps)
            self._plan[:, kernel.VALID_AT], self._plan[:, kernel.FIXED_AT] = layout.valid_at, layout.fixed_at
            self._plan[:, kernel.HEAP_AT], self._plan[:, kernel.HEAP_ROOM] = layout.heap_at, layout.heap_room
            self._layout = layout
        return self._layout, self._plan

    def rows_full(self) -> None:
        if self._rows < self._rows_max and not self._large:
            self._rows = min(4 * self._rows, self._rows_max)
            self._layout = None

    def heap_full(self, index: int, rows: int, need: int) -> None:
        """The heap of column `index` was full after `rows` rows, with `need` bytes to come."""
        room = self._heap_bytes[index]
        wanted = max(2 * room, 4 * need, room * self._rows // rows * 5 // 4 if rows else 0)
        spare = self._batch_bytes_max // 2 - sum(self._heap_bytes)
        grown = min(wanted, room + spare)
        if grown > room and grown >= need and not self._large:
            self._heap_bytes[index] = grown
            self._layout = None
        elif rows == 0:
            self._large[index] = need
            self._layout = None

    def taken(self) -> None:
        """A batch has rows: what was made for a large one has served."""
        if self._large:
            self._large.clear()
            self._layout = None


class _Rows:
    """The rows of a running statement, as batches."""

    def __init__(self, wire: _Packets, shape: _ArenaShape, counters: ReadCounters, pool: ArenaPool) -> None:
        self._wire = wire
        self._shape = shape
        self._counters = counters
        self._pool = pool
        self._long: tuple[int, int] | None = None
        """A row of several packets that waits for an arena."""
        self._ended = False

    def next_batch(self) -> pa.RecordBatch | None:
        while not self._ended:
            arena, nulls, rows = self._fill()
            if rows:
                self._shape.taken()
                return self._batch(arena, nulls, rows)
        return None

    def _fill(self) -> tuple[Arena, Longs, int]:
        """Fill one arena. It is empty when a heap must grow for the row to come, and at the end."""
        wire, shape = self._wire, self._shape
        layout, plan = shape.layout()
        arena = Arena(self._pool, layout)
        # A value is taken for present; NULL clears its bit.
        arena.memory[: layout.valid_bytes] = 255
        nulls: Longs = np.zeros(len(shape.columns), np.int64)
        state: Longs = np.zeros(kernel.STATE_WIDTH, np.int64)
        while True:
            if self._long is not None:
                at, length = self._long
                state[kernel.AT], state[kernel.NUMBER] = at, wire.number
                status = kernel.decode(wire.buffer, at + length, length, plan, arena.heap_used, nulls, arena.memory, layout.rows_max, state)
                if status == kernel.MORE:
                    self._long = None
                    continue
            else:
                state[kernel.AT], state[kernel.NUMBER] = wire.at, wire.number
                status = kernel.decode(wire.buffer, wire.fill, 0, plan, arena.heap_used, nulls, arena.memory, layout.rows_max, state)
                wire.at, wire.number = int(state[kernel.AT]), int(state[kernel.NUMBER])
            if status == kernel.MORE:
                wire.receive(int(state[kernel.NEED]))
            elif status == kernel.LONG:
                self._long = wire.assemble()
            elif status == kernel.END:
                self._end()
                break
            elif status == kernel.HEAP_FULL:
                shape.heap_full(int(state[kernel.COLUMN]), int(state[kernel.ROW]), int(state[kernel.NEED]))
                break
            elif status == kernel.ROWS_FULL:
                shape.rows_full()
                break
            else:
                column = int(state[kernel.COLUMN])
                name = shape.columns[column].name if 0 <= column < len(shape.columns) else ""
                raise Corrupt(kernel.BROKEN_BECAUSE[int(state[kernel.NEED])], detail=f"column {name}" if name else "")
        rows = int(state[kernel.ROW])
        self._counters.rows += rows
        self._counters.nulled_dates += int(state[kernel.DATES])
        return arena, nulls, rows

    def _end(self) -> None:
        # An error in the midst of the rows comes here too: `packet` raises it.
        end = self._wire.packet()
        if len(end) < 5:
            raise Corrupt("the end of rows can't be read")
        if int.from_bytes(end[3:5], "little") & _MORE_RESULTS:
            raise Corrupt("a SELECT gives a second result")
        self._ended = True

    def _batch(self, arena: Arena, nulls: Longs, rows: int) -> pa.RecordBatch:
        shape = self._shape
        arrays = []
        for index, (column, kind, field) in enumerate(zip(shape.columns, shape.types, shape.schema, strict=True)):
            missing = int(nulls[index])
            if missing and not field.nullable:
                raise SourceDrift("a NOT NULL column holds NULL", detail=column.name)
            if pa.types.is_string(kind) or pa.types.is_list(kind):
                offsets, heap = arena.heap(index, rows)
                if not valid_utf8(offsets, heap, rows):
                    raise Corrupt("a string is not UTF-8", detail=f"column {column.name}")
                if pa.types.is_list(kind):
                    arrays.append(_sets(arena, index, rows, missing))
                    continue
            arrays.append(arena.array(index, kind, rows, nulls=missing))
        return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _sets(arena: Arena, index: int, rows: int, missing: int) -> pa.Array:
    """The texts of SET values as lists of their labels; labels hold no comma."""
    offsets, heap = arena.heap(index, rows)
    lists, ends, labels = kernel.split_sets(offsets, heap)
    child = pa.Array.from_buffers(pa.string(), ends.shape[0] - 1, [None, pa.py_buffer(ends), pa.py_buffer(labels)], 0)
    valid = arena.validity(index, rows) if missing else None
    return pa.Array.from_buffers(pa.list_(pa.string()), rows, [valid, pa.py_buffer(lists)], missing, children=[child])
