"""The binary protocol from a socket whose other end is ours, so that it can split, cut and falsify what it sends."""

from __future__ import annotations

import datetime
import socket
import struct
import threading
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.read import resultset
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlColumn, TypeOptions
from snowmelt.errors import Corrupt, SnowmeltError, Unavailable

COLUMNS = (
    MySqlColumn(name="i", base="bigint"),
    MySqlColumn(name="u", base="bigint", unsigned=True),
    MySqlColumn(name="m", base="smallint", unsigned=True),
    MySqlColumn(name="d", base="decimal", precision=38, scale=3),
    MySqlColumn(name="s", base="varchar", length=100),
    MySqlColumn(name="b", base="blob"),
    MySqlColumn(name="t", base="datetime", fsp=6),
    MySqlColumn(name="h", base="time", fsp=6),
    MySqlColumn(name="f", base="bit", length=1),
    MySqlColumn(name="e", base="set", labels=("x", "y", "z")),
    MySqlColumn(name="r", base="double"),
)
WIRE_TYPES = {
    "bigint": 8,
    "smallint": 2,
    "decimal": 246,
    "varchar": 253,
    "blob": 252,
    "datetime": 12,
    "time": 11,
    "bit": 16,
    "set": 254,
    "double": 5,
}

ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.integers(0, 2**64 - 1).map(Decimal),
    st.none() | st.integers(0, 65535),
    st.none() | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda number: Decimal(f"{number}e-3")),
    st.none() | st.text(max_size=40),
    st.none() | st.binary(max_size=300),
    st.none() | st.datetimes(),
    st.none() | st.integers(-3_020_399_000_000, 3_020_399_000_000),
    st.none() | st.booleans(),
    st.none() | st.lists(st.sampled_from(["x", "y", "z"]), unique=True).map(sorted),
    st.none() | st.floats(allow_nan=False),
)  # fmt: skip


def counted(data: bytes) -> bytes:
    if len(data) < 251:
        return bytes([len(data)]) + data
    return b"\xfc" + struct.pack("<H", len(data)) + data


def encode(column: MySqlColumn, value: Any) -> bytes:
    match column.base:
        case "bigint":
            return struct.pack("<Q" if column.unsigned else "<q", int(value))
        case "smallint":
            return struct.pack("<H", value)
        case "double":
            return struct.pack("<d", value)
        case "decimal":
            return counted(format(value, ".3f").encode())
        case "varchar":
            return counted(value.encode())
        case "set":
            return counted(",".join(value).encode())
        case "bit":
            return counted(bytes([value]))
        case "datetime":
            moment: datetime.datetime = value
            date = struct.pack("<HBB", moment.year, moment.month, moment.day)
            clock = bytes([moment.hour, moment.minute, moment.second])
            if moment.microsecond:
                return counted(date + clock + struct.pack("<I", moment.microsecond))
            return counted(date + clock if any(clock) else date)
        case "time":
            seconds, micros = divmod(abs(value), 1_000_000)
            days, seconds = divmod(seconds, 86_400)
            clock = bytes([seconds // 3600, seconds // 60 % 60, seconds % 60])
            if not value:
                return b"\0"
            return counted(struct.pack("<BI", value < 0, days) + clock + (struct.pack("<I", micros) if micros else b""))
        case _:
            return counted(value)


def encode_row(row: tuple[Any, ...]) -> bytes:
    bits = bytearray((len(row) + 9) // 8)
    values = b""
    for index, (column, value) in enumerate(zip(COLUMNS, row, strict=True)):
        if value is None:
            bits[(index + 2) // 8] |= 1 << (index + 2) % 8
        else:
            values += encode(column, value)
    return b"\0" + bytes(bits) + values


def described(column: MySqlColumn) -> bytes:
    charset = 63 if column.base == "blob" else 45
    fixed = struct.pack("<HIBHB", charset, 0, WIRE_TYPES[column.base], 32 if column.unsigned else 0, 0) + b"\0\0"
    return counted(b"def") + 5 * counted(b"") + counted(fixed)


def packets(payloads: list[bytes]) -> bytes:
    return b"".join(len(payload).to_bytes(3, "little") + bytes([(1 + index) & 255]) + payload for index, payload in enumerate(payloads))


END = b"\xfe\0\0\2\0"
PREPARED = packets([struct.pack("<BIHHBH", 0, 7, len(COLUMNS), 0, 0, 0), *map(described, COLUMNS), END])


def answered(rows: list[tuple[Any, ...]]) -> tuple[bytes, int]:
    """The answer to the execution, and where its rows begin."""
    head = [bytes([len(COLUMNS)]), *map(described, COLUMNS), END]
    return packets([*head, *map(encode_row, rows), END]), len(packets(head))


class OneEnd:
    """What `select` uses of a session."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.options = MySqlOptions(read_timeout_s=20)

    def close(self) -> None:
        self.sock.close()


def read(answer: bytes, *, receive_bytes: int = 1 << 20, **limits: int) -> list[pa.RecordBatch]:
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            theirs.recv(1 << 16)
            theirs.sendall(PREPARED)
            theirs.recv(1 << 16)
            try:
                theirs.sendall(answer)
                theirs.shutdown(socket.SHUT_WR)
                while theirs.recv(1 << 16):
                    pass
            except OSError:
                pass

    server = threading.Thread(target=serve)
    server.start()
    before = resultset.RECEIVE_BYTES
    resultset.RECEIVE_BYTES = receive_bytes
    try:
        with ours:
            session = cast(Session, OneEnd(ours))
            return list(select(session, "SELECT", COLUMNS, TypeOptions(), counters=ReadCounters(), **limits))
    finally:
        resultset.RECEIVE_BYTES = before
        server.join()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(ROW, max_size=25),
    receive_bytes=st.sampled_from([16, 64, 300, 1 << 16]),
    rows_max=st.sampled_from([1, 3, 8, 1000]),
    batch_bytes_max=st.sampled_from([1, 600, 5000, 1 << 20]),
)
def test_rows_come_out_as_they_went_in_however_they_are_cut(
    rows: list[tuple[Any, ...]], receive_bytes: int, rows_max: int, batch_bytes_max: int
) -> None:
    answer, _ = answered(rows)
    batches = read(answer, receive_bytes=receive_bytes, rows_max=rows_max, batch_bytes_max=batch_bytes_max)
    got: list[tuple[Any, ...]] = []
    for batch in batches:
        batch.validate(full=True)
        assert 0 < batch.num_rows <= rows_max
        got += [tuple(row.values()) for row in batch.to_pylist()]
    assert got == rows


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(ROW, min_size=1, max_size=6), data=st.data())
def test_falsified_bytes_are_an_error_or_a_valid_value_never_worse(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    answer, start = answered(rows)
    broken = bytearray(answer)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(start, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    try:
        batches = read(bytes(broken), rows_max=4)
    except SnowmeltError:
        return
    for batch in batches:
        batch.validate(full=True)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(ROW, min_size=1, max_size=4), data=st.data())
def test_a_stream_that_stops_anywhere_is_unavailable(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    answer, _ = answered(rows)
    with pytest.raises(Unavailable):
        read(answer[: data.draw(st.integers(0, len(answer) - 1))])


@pytest.mark.parametrize(
    "text",
    [b"\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"abc\xff", b"x" * 40 + b"\xc3\x28"],
)
def test_a_string_that_is_not_utf8_is_corrupt(text: bytes) -> None:
    values = [None] * len(COLUMNS)
    row = bytearray(encode_row(tuple(values)))
    row[1 + (4 + 2) // 8] &= ~(1 << (4 + 2) % 8)
    head = [bytes([len(COLUMNS)]), *map(described, COLUMNS), END]
    with pytest.raises(Corrupt, match="UTF-8"):
        read(packets([*head, bytes(row) + counted(text), END]))


def test_a_character_split_over_two_values_is_corrupt() -> None:
    values = [None] * len(COLUMNS)
    row = bytearray(encode_row(tuple(values)))
    row[1 + (4 + 2) // 8] &= ~(1 << (4 + 2) % 8)
    head = [bytes([len(COLUMNS)]), *map(described, COLUMNS), END]
    with pytest.raises(Corrupt, match="UTF-8"):
        read(packets([*head, bytes(row) + counted(b"\xc3"), bytes(row) + counted(b"\xa4"), END]))
