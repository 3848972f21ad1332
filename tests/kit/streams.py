"""Logs and streams made by hand, for what no server does on demand: offsets beyond 4 GiB, damage, cuts anywhere.

log = Log(checksummed=True, start=4)
log.begin_file("binlog.000001"); log.transaction(rows=[b"..."]); wire = packets(log.sent)
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.events import FLAG_ARTIFICIAL, Event
from snowmelt.databases.mysql.log.framing import Bytes, Framer

SOURCE = bytes(range(16))


def event(
    kind: int, body: bytes, *, next_position: int, time: int = 1000, flags: int = 0, server: int = 1, checksummed: bool = True
) -> bytes:
    size = 19 + len(body) + 4 * checksummed
    raw = struct.pack("<IBIIIH", time, kind, server, size, next_position & 0xFFFFFFFF, flags) + body
    return raw + struct.pack("<I", zlib.crc32(raw)) if checksummed else raw


def query_body(text: bytes, *, status: bytes = b"", database: bytes = b"d") -> bytes:
    return struct.pack("<IIBHH", 1, 0, len(database), 0, len(status)) + status + database + b"\0" + text


def gtid_body(number: int, source: bytes = SOURCE) -> bytes:
    return b"\0" + source + struct.pack("<q", number) + bytes(17)


def packets(events: list[bytes], first: int = 1) -> bytes:
    """Events as the server sends them."""
    wire = bytearray()
    sequence = first
    for raw in events:
        payload = b"\0" + raw
        while True:
            part, payload = payload[: framing.PACKET_MAX], payload[framing.PACKET_MAX :]
            wire += len(part).to_bytes(3, "little") + bytes([sequence & 0xFF]) + part
            sequence += 1
            if len(part) < framing.PACKET_MAX:
                break
    return bytes(wire)


@dataclass
class Log:
    """Events in the order of a log; `sent` has those that are not in the file too."""

    checksummed: bool = True
    offset: int = 4
    sent: list[bytes] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """Offsets in the log at which no transaction is open."""
    numbers: list[int] = field(default_factory=list)

    def add(self, kind: int, body: bytes, *, time: int = 1000, cut: bool = False, server: int = 1, told: bool = True) -> None:
        """`told` says whether its next position is, which MariaDB 11.4 and later leave 0 inside of transactions."""
        checksummed = self.checksummed or kind == framing.FORMAT_DESCRIPTION
        self.offset += 19 + len(body) + 4 * checksummed
        raw = event(kind, body, next_position=self.offset if told else 0, time=time, checksummed=checksummed, server=server)
        self.sent.append(raw)
        if kind != framing.ANNOTATE:
            self.stored.append(raw)
        if cut:
            self.cuts.append(self.offset)

    def leave_out(self, size: int) -> None:
        """An event that the server keeps to itself."""
        self.offset += size

    def make_up(self, kind: int, body: bytes, *, next_position: int = 0) -> None:
        checksummed = self.checksummed or kind == framing.FORMAT_DESCRIPTION
        self.sent.append(event(kind, body, next_position=next_position, flags=FLAG_ARTIFICIAL, checksummed=checksummed))

    def rotate_to(self, name: str, offset: int = 4) -> None:
        # The first event of a stream has a checksum because we said that we understand them.
        self.sent.append(
            event(
                framing.ROTATE,
                struct.pack("<Q", offset) + name.encode(),
                next_position=0,
                flags=FLAG_ARTIFICIAL,
                checksummed=self.checksummed or not self.sent,
            )
        )

    def description(self) -> bytes:
        return struct.pack("<H50sIB", 4, b"8.0.33-test", 0, 19) + bytes([0, 13, 0, 8] + [0] * 36) + bytes([int(self.checksummed)])

    def describe(self) -> None:
        self.add(framing.FORMAT_DESCRIPTION, self.description(), cut=True)

    def describe_again(self) -> None:
        self.make_up(framing.FORMAT_DESCRIPTION, self.description())

    def transaction(self, rows: list[bytes], *, gtid: int | None = None, time: int = 1000) -> None:
        if gtid is not None:
            self.add(framing.GTID, gtid_body(gtid), time=time)
            self.numbers.append(gtid)
        self.add(framing.QUERY, query_body(b"BEGIN"), time=time)
        for row in rows:
            self.add(framing.TABLE_MAP, bytes(20), time=time)
            self.add(framing.WRITE_ROWS, row, time=time)
        self.add(framing.XID, bytes(8), time=time, cut=True)

    def mariadb_transaction(self, statements: int, *, number: int = 1, told: bool = False, text: bytes = b"INSERT ...") -> None:
        """As MariaDB sends it: the text of each statement before its rows."""
        self.add(framing.GTID_MARIADB, struct.pack("<QIB", number, 0, 0) + bytes(6))
        for _ in range(statements):
            self.add(framing.ANNOTATE, text, told=told)
            self.add(framing.TABLE_MAP, bytes(20), told=told)
            self.add(Event.WRITE_ROWS_V1, bytes(20), told=told)
        self.add(framing.XID, bytes(8), cut=True)

    def statement(self, text: bytes, *, status: bytes = b"") -> None:
        self.add(framing.QUERY, query_body(text, status=status), cut=True)

    def heartbeat(self) -> None:
        checksummed = self.checksummed
        self.sent.append(event(framing.HEARTBEAT, b"binlog.000001", next_position=self.offset, checksummed=checksummed))


@dataclass
class Taken:
    """What a framer made of a stream."""

    stored: bytes = b""
    reasons: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    """Offsets in the log at which it said that a segment may end."""


def feed(
    framer: Framer,
    wire: bytes,
    pieces: list[int] | None = None,
    *,
    receive_bytes: int = framing.RECEIVE_BYTES_MIN,
    target_bytes: int = framing.RECEIVE_BYTES_MIN,
) -> Taken:
    """Receive the stream in pieces of these sizes, over and over, as a capture does, and keep what it stores."""
    taken = Taken()
    source: Bytes = np.zeros(receive_bytes, np.uint8)
    target: Bytes = np.zeros(target_bytes, np.uint8)
    wanted = pieces or [receive_bytes]
    sent = held = turn = 0
    while True:
        count = max(1, min(wanted[turn % len(wanted)], receive_bytes - held, len(wire) - sent)) if sent < len(wire) else 0
        assert held + count <= receive_bytes, "an event neither fits nor is streamed"
        source[held : held + count] = np.frombuffer(wire, np.uint8, count, sent)
        sent, held, turn = sent + count, held + count, turn + 1
        at = 0
        while True:
            reason = framer.take(source, at, held, target)
            at = framer["at"]
            taken.reasons.append(reason)
            if framer.at_cut and (not taken.cuts or taken.cuts[-1] != framer["offset"]):
                taken.cuts.append(framer["offset"])
            if reason == framing.ROOM:
                assert framer["fill"] > 0, "an event does not fit an empty target"
                taken.stored += target[: framer["fill"]].tobytes()
                framer.state["fill"] = 0
            if reason in (framing.SERVER_END, framing.SERVER_ERROR):
                break
            if reason == framing.MORE:
                break
        source[: held - at] = source[at:held].copy()
        held -= at
        if sent == len(wire):
            taken.stored += target[: framer["fill"]].tobytes()
            framer.state["fill"] = 0
            return taken
