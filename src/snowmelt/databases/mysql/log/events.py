"""Event kinds of the binary log and the readers of those that are not rows. They take bytes, not sockets.

Every reader gets an event's body: the bytes between the 19-byte header and the checksum. A reader either uses all bytes as
the format says or raises `Corrupt`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
import zstandard

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.crc32 import crc32
from snowmelt.databases.mysql.types.charsets import charset_of_collation, transcode
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt

HEADER_BYTES = 19
CHECKSUM_BYTES = 4
PAYLOAD_HEAD_BYTES: Final = 256 << 10
"""More than the first event of a compressed transaction takes, which is its BEGIN or XA START."""
UNCOMPRESSED: Final = 255
FLAG_TEMPORARY = 0x04
"""The statement used a temporary table of its session, or something else that is the session's own."""
FLAG_ARTIFICIAL = 0x20
FLAG_IGNORABLE = 0x80


class Event(IntEnum):
    """Type codes. From 160 on they are MariaDB's own."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    APPEND_BLOCK = 9
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE = 160
    BINLOG_CHECKPOINT = 161
    GTID_MARIADB = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171
    PARTIAL_ROW_DATA = 172


class Reader:
    """Walks a body. Reading past its end is `Corrupt`."""

    __slots__ = ("_at", "_body", "_what")

    def __init__(self, body: bytes, what: str) -> None:
        self._body = body
        self._at = 0
        self._what = what

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._body):
            raise Corrupt(f"{self._what} is cut short")
        piece = self._body[self._at : end]
        self._at = end
        return piece

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        """A length-encoded number."""
        first = self.number(1)
        if first < 251:
            return first
        if first in (252, 253, 254):
            return self.number({252: 2, 253: 3, 254: 8}[first])
        raise Corrupt(f"{self._what} holds a length that can't be")

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode("utf-8")
        except UnicodeDecodeError:
            raise Corrupt(f"{self._what} holds text that is not UTF-8") from None

    def terminated(self) -> str:
        """Text up to a zero byte, which is stepped over."""
        end = self._body.find(0, self._at)
        if end < 0:
            raise Corrupt(f"{self._what} is cut short")
        found = self.text(end - self._at)
        self._at = end + 1
        return found

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._at)

    @property
    def left(self) -> int:
        return len(self._body) - self._at


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """What a log file says of itself in its first event."""

    version: int
    server_version: str
    created: int
    checksum_bytes: int

    @staticmethod
    def read(body_and_checksum: bytes) -> FormatDescription:
        """Takes all bytes after the header: the body itself says whether a checksum follows."""
        reader = Reader(body_and_checksum, "FORMAT_DESCRIPTION")
        version = reader.number(2)
        server = reader.take(50).split(b"\0", 1)[0].decode("ascii", "replace")
        created = reader.number(4)
        header = reader.number(1)
        if version != 4 or header != HEADER_BYTES:
            raise Corrupt("the log's format is not version 4", detail=f"version {version}, header of {header} bytes")
        # The algorithm's byte came with MySQL 5.6.1 and MariaDB 5.3; every server we read has it.
        tail = reader.rest()
        if len(tail) < 27 + 1 + CHECKSUM_BYTES:
            raise Corrupt("FORMAT_DESCRIPTION is cut short")
        algorithm = tail[-1 - CHECKSUM_BYTES]
        if algorithm not in (0, 1):
            raise Corrupt("the log's checksum algorithm is unknown", detail=str(algorithm))
        return FormatDescription(version, server, created, CHECKSUM_BYTES if algorithm == 1 else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A statement in the log, with what of its session decides how it is read."""

    database: str
    sql: str
    sql_mode: int
    charset: int | None = None
    """Collation id of the client's text."""
    explicit_timestamps: bool | None = None
    """explicit_defaults_for_timestamp; None where the server doesn't log it."""
    collations: Mapping[str, str] = field(default_factory=dict)
    """The session's default collations of character sets where a statement names none, as far as the server logs them."""
    databases: frozenset[str] | None = None
    """The databases whose tables the statement changed, also by triggers, views, functions and foreign keys. None where the
    server does not log them: on MariaDB, and on MySQL where they are too many."""


_STATUS_BYTES = {3: 4, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 17: 8, 19: 1, 20: 1, 128: 3, 129: 8}
"""Status variables of fixed size that don't matter here."""
_UTF8MB4 = {45: "utf8mb4_general_ci", 255: "utf8mb4_0900_ai_ci"}
"""What default_collation_for_utf8mb4 can be."""
_GENERAL = {"utf8mb3": 33, "ucs2": 35, "utf8mb4": 45, "utf16": 54, "utf32": 60}
"""Character sets whose default collation a session of MariaDB can choose (character_set_collations), by the one that it is else."""
_CHOSEN = {
    2048: "utf8mb3_uca1400_ai_ci", 2560: "ucs2_uca1400_ai_ci", 2304: "utf8mb4_uca1400_ai_ci", 2816: "utf16_uca1400_ai_ci",
    3072: "utf32_uca1400_ai_ci", 192: "utf8mb3_unicode_ci", 128: "ucs2_unicode_ci", 224: "utf8mb4_unicode_ci",
    101: "utf16_unicode_ci", 160: "utf32_unicode_ci", 83: "utf8mb3_bin", 90: "ucs2_bin", 46: "utf8mb4_bin", 55: "utf16_bin",
    61: "utf32_bin", **{number: f"{charset}_general_ci" for charset, number in _GENERAL.items()},
}  # fmt: skip
"""What they usually choose. A collation changes neither a value nor a type, so one that is not here is taken for the default."""
_EXPLICIT_TIMESTAMPS = 1 << 24
"""MariaDB's bit of explicit_defaults_for_timestamp among a session's flags."""


def read_query(body: bytes, flavour: Flavour) -> Query:
    """A QUERY event's statement. Status variables after an unknown one are not read, as servers do."""
    reader = Reader(body, "QUERY")
    reader.take(8)
    database_bytes = reader.number(1)
    reader.take(2)
    status = Reader(reader.take(reader.number(2)), "QUERY")
    database = reader.text(database_bytes)
    reader.take(1)
    raw = reader.rest()
    sql_mode, charset, explicit, databases = 0, None, None, None
    collations: dict[str, str] = {}
    while status.left:
        code = status.number(1)
        if code == 0:
            flags = status.number(4)
            if flavour == "mariadb":
                explicit = bool(flags & _EXPLICIT_TIMESTAMPS)
        elif code == 1:
            sql_mode = status.number(8)
        elif code == 2:
            status.take(status.number(1) + 1)
        elif code == 4:
            charset = status.number(2)
            status.take(4)
        elif code in (5, 6):
            status.take(status.number(1))
        elif code == 11:
            status.take(status.number(1))
            status.take(status.number(1))
        elif code == 12:
            # Each name is ended by a zero byte; 254 stands for too many to name.
            count = status.number(1)
            if count != 254:
                databases = frozenset(status.terminated() for _ in range(count))
        elif code == 130 and flavour == "mariadb":
            # The second byte of its GTID's flags, and where an ALTER ends that was logged when it began, that one's number.
            if status.number(1) & (0x04 | 0x08):
                status.take(8)
        elif code == 16:
            explicit = bool(status.number(1))
        elif code == 18:
            if chosen := _UTF8MB4.get(status.number(2)):
                collations["utf8mb4"] = chosen
        elif code == 131 and flavour == "mariadb":
            # Only where a statement names a character set without a collation.
            pairs = {status.number(2): status.number(2) for _ in range(status.number(1))}
            collations = {name: _CHOSEN[one] for name, number in _GENERAL.items() if (one := pairs.get(number, number)) in _CHOSEN}
        elif code in _STATUS_BYTES:
            status.take(_STATUS_BYTES[code])
        else:
            break
    return Query(
        database=database,
        sql=_statement_text(raw, charset, flavour),
        sql_mode=sql_mode,
        charset=charset,
        explicit_timestamps=explicit,
        collations=collations,
        databases=databases,
    )


def _statement_text(raw: bytes, collation: int | None, flavour: Flavour) -> str:
    """A statement in the client's charset, as text. What isn't text even so keeps its ASCII, which keywords and most names are."""
    if raw.isascii():
        return raw.decode("ascii")
    charset = charset_of_collation(collation) if collation is not None else "utf8mb4"
    if charset not in ("utf8mb4", "utf8mb3", "binary", "ascii"):
        _, text = transcode(charset, np.array([0, len(raw)], np.int32), np.frombuffer(raw, np.uint8), 1, flavour=flavour)
        raw = text.tobytes()
    return raw.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of an XA transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        """As the server's statements take it."""
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


_XA_START = re.compile(r"\s*XA\s+START\s+(.*)", re.IGNORECASE | re.DOTALL)
_XA_END = re.compile(r"\s*XA\s+(COMMIT|ROLLBACK)\s+(.*)", re.IGNORECASE | re.DOTALL)
_XID = re.compile(r"X'((?:[0-9a-f]{2})*)'\s*,\s*X'((?:[0-9a-f]{2})*)'\s*,\s*([0-9]{1,20})\b", re.IGNORECASE | re.ASCII)
"""MySQL takes a format ID of 64 bits and prints all of it in statements. XA_PREPARE has its lower 32 bits alone."""
_FORMAT_KEPT: Final = 0xFFFFFFFF


def read_xa_end(sql: str) -> tuple[bool, Xid] | None:
    """Whether a prepared XA transaction was committed (or else rolled back), and which; None of any other statement."""
    end = _XA_END.match(sql)
    if end is None:
        return None
    return end[1].upper() == "COMMIT", _read_name(end[2])


def read_xa_start(sql: str) -> Xid | None:
    """Which XA transaction begins; None of any other statement."""
    start = _XA_START.match(sql)
    return None if start is None else _read_name(start[1])


def _read_name(text: str) -> Xid:
    name = _XID.match(text)
    if name is None:
        raise Corrupt("the name of an XA transaction can't be read", detail=text[:200])
    return Xid(int(name[3]), bytes.fromhex(name[1]), bytes.fromhex(name[2]))


def whole_xid(prepared: Xid, began: Xid | None) -> Xid:
    """The name of a prepared transaction with all of its format ID. `began`: as its XA START has it; None: the log has none (MariaDB)."""
    if began is None:
        return prepared
    if began != replace(prepared, format_id=began.format_id) or began.format_id & _FORMAT_KEPT != prepared.format_id:
        raise Corrupt("an XA transaction is prepared under another name than it began with", detail=f"{prepared}, not {began}")
    return began


def read_xa_prepare(body: bytes) -> tuple[bool, Xid]:
    """Whether it is `COMMIT ONE PHASE`, and which transaction, with the lower 32 bits of its format ID."""
    reader = Reader(body, "XA_PREPARE")
    one_phase = reader.number(1) != 0
    # Signed in the server, but its statements print it either way.
    format_id = reader.number(4)
    gtrid_bytes, bqual_bytes = reader.number(4), reader.number(4)
    if gtrid_bytes > 64 or bqual_bytes > 64:
        raise Corrupt("XA_PREPARE holds a name that is too long")
    return one_phase, Xid(format_id, reader.take(gtrid_bytes), reader.take(bqual_bytes))


def first_of_payload(body: bytes) -> bytes:
    """The first event of a TRANSACTION_PAYLOAD, whose body may be cut short after it. The rest is not unpacked."""
    compression, _, _, left = fields_of_payload(body)
    payload = body[len(body) - left :]
    if compression == UNCOMPRESSED:
        return payload[: int.from_bytes(payload[9:13], "little")]
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(payload) as stream:
            header = stream.read(HEADER_BYTES)
            size = min(int.from_bytes(header[9:13], "little"), PAYLOAD_HEAD_BYTES)
            return header + stream.read(max(0, size - HEADER_BYTES))
    except zstandard.ZstdError:
        raise Corrupt("TRANSACTION_PAYLOAD can't be decompressed") from None


def fields_of_payload(head: bytes) -> tuple[int, int, int, int]:
    """The compression, the plain size, the packed size, and how many of the given bytes follow the fields."""
    reader = Reader(head, "TRANSACTION_PAYLOAD")
    compression, plain_bytes, payload_bytes = UNCOMPRESSED, -1, -1
    while True:
        field = reader.packed()
        if field == 0:
            break
        value = Reader(reader.take(reader.packed()), "TRANSACTION_PAYLOAD")
        if field == 1:
            payload_bytes = value.packed()
        elif field == 2:
            compression = value.packed()
        elif field == 3:
            plain_bytes = value.packed()
    return compression, plain_bytes, payload_bytes, reader.left


def events_of(data: Bytes, first: int, last: int, checksum_bytes: int, where: str) -> Iterator[tuple[int, int, int]]:
    """Each event of a stretch: where it begins, where its body ends, and its kind."""
    at = first
    while at < last:
        size = int.from_bytes(data[at + 9 : at + 13].tobytes(), "little") if last - at >= HEADER_BYTES else 0
        if not HEADER_BYTES + checksum_bytes <= size <= last - at:
            raise Corrupt("an event's size can't be", position=f"{where}+{at}")
        yield at, at + size - checksum_bytes, int(data[at + 4])
        at += size


def check_sum(data: Bytes, at: int, end: int, checksum_bytes: int, where: str) -> None:
    if checksum_bytes and int(crc32(data, at, end, np.uint32(0))) != int.from_bytes(data[end : end + 4].tobytes(), "little"):
        raise Corrupt("an event's checksum is wrong", position=where)


def xa_began(group: Bytes, flavour: Flavour, *, checksum_bytes: int, where: str) -> Xid | None:
    """The whole name of the XA transaction that a group prepares: MySQL's begins with a statement that has it. None: the log has none."""
    for at, end, kind in events_of(group, 0, len(group), checksum_bytes, where):
        if kind == Event.TRANSACTION_PAYLOAD:
            first = first_of_payload(group[at + HEADER_BYTES : min(end, at + PAYLOAD_HEAD_BYTES)].tobytes())
            return read_xa_start(read_query(first[HEADER_BYTES:], flavour).sql)
        if kind == Event.QUERY:
            check_sum(group, at, end, checksum_bytes, where)
            return read_xa_start(read_query(group[at + HEADER_BYTES : end].tobytes(), flavour).sql)
    return None


@dataclass(frozen=True, slots=True)
class MySqlGtid:
    source: str
    number: int

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


@dataclass(frozen=True, slots=True)
class MariaDbGtid:
    domain: int
    server: int
    number: int

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.number}"


Gtid = MySqlGtid | MariaDbGtid


def read_gtid(kind: int, server_id: int, body: bytes) -> Gtid | None:
    """The transaction's name, or None of an anonymous one."""
    reader = Reader(body, "GTID")
    if kind == Event.GTID_MARIADB:
        number = reader.number(8)
        return MariaDbGtid(reader.number(4), server_id, number)
    if kind == Event.ANONYMOUS_GTID:
        return None
    if kind == Event.GTID_TAGGED:
        return _read_tagged_gtid(reader)
    reader.take(1)
    source = str(uuid.UUID(bytes=reader.take(16)))
    return MySqlGtid(source, reader.number(8))


def _variable_number(reader: Reader) -> int:
    # MySQL's serialisation: as many low one-bits in the first byte as bytes follow, the value in the bits above them.
    first = reader.number(1)
    extra = 0
    while extra < 8 and first >> extra & 1:
        extra += 1
    if extra == 8:
        return reader.number(8)
    return first >> (extra + 1) | reader.number(extra) << (7 - extra)


def _read_tagged_gtid(reader: Reader) -> MySqlGtid:
    _variable_number(reader)  # version
    _variable_number(reader)  # size
    _variable_number(reader)  # last field that must not be ignored
    source, tag, number = b"", "", 0
    for expected in range(4):
        if _variable_number(reader) != expected:
            raise Corrupt("a tagged GTID has its fields in an order that we don't know")
        if expected == 0:
            _variable_number(reader)  # flags
        elif expected == 1:
            parts = [_variable_number(reader) for _ in range(16)]
            if max(parts) > 0xFF:
                raise Corrupt("a tagged GTID's source is no UUID")
            source = bytes(parts)
        elif expected == 2:
            number = _variable_number(reader)
            number = number >> 1 ^ -(number & 1)
        else:
            tag = reader.text(_variable_number(reader))
    name = str(uuid.UUID(bytes=source))
    return MySqlGtid(f"{name}:{tag}" if tag else name, number)


def read_incident(body: bytes) -> str:
    reader = Reader(body, "INCIDENT")
    number = reader.number(2)
    message = reader.text(reader.number(1)) if reader.left else ""
    return f"incident {number} {message}".strip()
