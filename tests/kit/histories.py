"""Random logs made by hand, with what they hold: for what no server writes on demand, and for a thousand of them in seconds.

history = History(random.Random(7), flavour="mysql"); history.grow(40, event_bytes=3000)
history.data                     # the events, from offset 4 on
history.rows                     # each committed row: table, id, value, end of its commit, ordinal of its event, time, name
history.cuts                     # where no transaction is open: (byte of the data, offset in the log)
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Literal, NamedTuple

from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from tests.integration.logs import table_map_body
from tests.kit import streams
from tests.kit.packed_events import deflated, fragments, payload, plain_event

Flavour = Literal["mysql", "mariadb"]
TABLES = tuple(TableId("d", name) for name in ("t0", "t1", "t2"))
GTID_BYTES = 42


class Row(NamedTuple):
    table: str
    id: int
    value: bytes
    position: int
    event: int
    time_s: int
    gtid: str


@dataclass(frozen=True)
class _Written:
    table: str
    id: int
    value: bytes
    event: int


def schemas() -> SchemaHistory[MySqlTable]:
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    for table in TABLES:
        history.put(table, Position(0, 0), shape(table))
    return history


def shape(table: TableId) -> MySqlTable:
    columns = (MySqlColumn(name="id", base="int", nullable=False), MySqlColumn(name="v", base="longblob"))
    # The last has no transactions, and keeps what others undo.
    return MySqlTable(id=table, columns=columns, key=("id",), engine="MyISAM" if table == TABLES[-1] else "InnoDB")


@dataclass(frozen=True)
class Phase:
    """A transaction that prepares one of XA (None), or says what becomes of it: from where to where it is, in the data and in the log."""

    xid: str
    committed: bool | None
    at: int
    begins: int
    until: int
    ends: int


class History:
    def __init__(
        self,
        chance: random.Random,
        *,
        flavour: Flavour = "mysql",
        checksummed: bool = True,
        packed: bool = True,
        savepoints: float = 0.0,
    ) -> None:
        """`savepoints`: how often a statement is followed by SAVEPOINT or ROLLBACK TO."""
        self.flavour: Flavour = flavour
        self._savepoints = savepoints
        self.undone = 0
        """How many rows were written and undone."""
        self.rows: list[Row] = []
        self.cuts: list[tuple[int, int]] = [(0, 4)]
        self._chance = chance
        self._packed = packed
        self._log = streams.Log(checksummed=checksummed)
        self._id = 0
        self._number = 0
        self._time = 1000
        self._prepared: list[tuple[bytes, list[_Written]]] = []
        self.phases: list[Phase] = []

    @property
    def checksum_bytes(self) -> int:
        return 4 * self._log.checksummed

    @property
    def data(self) -> bytes:
        return b"".join(self._log.stored)

    @property
    def end(self) -> int:
        return self._log.offset

    def grow(self, groups: int, *, event_bytes: int, events_max: int = 6) -> None:
        """Groups of all kinds. Row events have up to so many bytes, some a few bytes only."""
        for _ in range(groups):
            self._time += self._chance.randint(0, 2)
            kind = self._chance.random()
            if kind < 0.70:
                self.transaction(event_bytes, events_max)
            elif kind < 0.80:
                self.transaction(event_bytes, events_max, rolled_back=True)
            elif kind < 0.88:
                self.statement()
            else:
                self.prepare(event_bytes, events_max)
            if self._prepared and self._chance.random() < 0.5:
                self.decide()
            self._cut()
        while self._prepared:
            self.decide()
        self._cut()

    def transaction(self, event_bytes: int, events_max: int, *, rolled_back: bool = False) -> None:
        name = self._begin()
        events, written = self._events(event_bytes, events_max)
        if rolled_back:
            events.append((Event.QUERY, streams.query_body(b"ROLLBACK")))
        else:
            events.append((Event.XID, bytes(8)))
        if self.flavour == "mysql":
            events.insert(0, (Event.QUERY, streams.query_body(b"BEGIN")))
            if self._packed and not rolled_back and self._chance.random() < 0.3:
                inner = b"".join(streams.event(kind, body, next_position=0, time=self._time, checksummed=False) for kind, body in events)
                events = [(Event.TRANSACTION_PAYLOAD, payload(inner))]
        self._add(events)
        if not rolled_back:
            self._committed(written, name)

    def statement(self) -> None:
        """A statement that stands alone, or of MariaDB one that begins a transaction whose rows follow."""
        self._begin(alone=True)
        text = b"CREATE TABLE other_%d (id INT) /* %s */" % (self._number, b"x" * self._chance.choice([0, 0, 50, 3000]))
        self._add([(Event.QUERY, streams.query_body(text))])

    def prepare(self, event_bytes: int, events_max: int) -> None:
        self._cut()
        self._begin(xa=True)
        xid = b"x%d" % self._number
        events, written = self._events(event_bytes, events_max)
        name = b"X'%s',X'',1" % xid.hex().encode()
        events.insert(0, (Event.QUERY, streams.query_body(b"XA START " + name)))
        events.append((Event.QUERY, streams.query_body(b"XA END " + name)))
        events.append((Event.XA_PREPARE, struct.pack("<BIII", 0, 1, len(xid), 0) + xid))
        self._add(events)
        self._prepared.append((name, written))
        self._told(name, None)

    def decide(self) -> None:
        name, written = self._prepared.pop(self._chance.randrange(len(self._prepared)))
        committed = self._chance.random() < 0.7
        self._cut()
        gtid = self._begin(alone=True)
        self._add([(Event.QUERY, streams.query_body((b"XA COMMIT " if committed else b"XA ROLLBACK ") + name))])
        if committed:
            self._committed(written, gtid)
        self._told(name, committed)

    def _told(self, name: bytes, committed: bool | None) -> None:
        """The group that has just ended is one of XA. Around it no transaction is open."""
        before = self.cuts[-1]
        self._cut()
        self.phases.append(Phase(name.decode(), committed, *before, *self.cuts[-1]))

    def _begin(self, *, alone: bool = False, xa: bool = False) -> str:
        self._number += 1
        if self.flavour == "mysql":
            self._log.add(Event.GTID, streams.gtid_body(self._number), time=self._time)
            return f"00010203-0405-0607-0809-0a0b0c0d0e0f:{self._number}"
        # XA has a name of its own behind the flags; it says nothing that matters here.
        flags = 1 if alone or xa else 0
        self._log.add(Event.GTID_MARIADB, struct.pack("<QIB", self._number, 0, flags) + bytes(6), time=self._time)
        return f"0-1-{self._number}"

    def _events(self, event_bytes: int, events_max: int) -> tuple[list[tuple[int, bytes]], list[_Written]]:
        events: list[tuple[int, bytes]] = []
        written: list[_Written] = []
        ordinal = 0
        left = self._chance.randint(0, events_max)
        stack: list[tuple[str, int]] = []
        while left:
            while self._savepoints and self._chance.random() < self._savepoints:
                written = self._savepoint(events, written, stack)
            numbers = self._chance.sample(range(len(TABLES)), self._chance.randint(1, 2))
            for number in numbers:
                # Now and then the server opens a table anew, under another number.
                opened = number + 10 * self._chance.randint(1, 3)
                events.append((Event.TABLE_MAP, table_map_body(opened, TABLES[number].name, types=b"\x03\xfc", meta=b"\x04")))
                numbers[numbers.index(number)] = opened
            count = self._chance.randint(1, left)
            left -= count
            for index in range(count):
                opened = self._chance.choice(numbers)
                body = opened.to_bytes(6, "little") + bytes([int(index == count - 1), 0]) + b"\2\xff"
                for _ in range(self._chance.randint(1, 3)):
                    self._id += 1
                    value = self._chance.randbytes(self._chance.choice([0, 5, event_bytes // 3, self._chance.randint(0, event_bytes)]))
                    body += b"\0" + self._id.to_bytes(4, "little") + len(value).to_bytes(4, "little") + value
                    written.append(_Written(TABLES[opened % 10].name, self._id, value, ordinal))
                events += self._row_events(body)
                ordinal += 1
        return events, written

    def _savepoint(self, events: list[tuple[int, bytes]], written: list[_Written], stack: list[tuple[str, int]]) -> list[_Written]:
        """Set one, or roll back to one, as a server does that keeps a stack of them; what is written then. Names are equal whatever
        their case and accents."""
        if stack and self._chance.random() < 0.5:
            place = self._chance.randrange(len(stack))
            name, count = stack[place]
            del stack[place + 1 :]
            kept = [one for index, one in enumerate(written) if index < count or one.table == TABLES[-1].name]
            self.undone += len(written) - len(kept)
            written = kept
            text = "ROLLBACK TO "
        else:
            name, text = self._chance.choice(["a", "b", "``", "to", "e"]), "SAVEPOINT "
            stack[:] = [one for one in stack if one[0] != name]
            stack.append((name, len(written)))
        spelled = self._chance.choice([name, name.upper(), "é" if name == "e" else name])
        statement = f"{text}`{spelled}`".encode()
        body = streams.query_body(statement)
        if self.flavour == "mariadb" and self._packed and self._chance.random() < 0.2:
            events.append((Event.QUERY_COMPRESSED, body[: -len(statement)] + deflated(statement)))
        else:
            events.append((Event.QUERY, body))
        return written

    def _row_events(self, body: bytes) -> list[tuple[int, bytes]]:
        kind = self._chance.random()
        if self.flavour == "mysql" or not self._packed or kind < 0.5:
            return [(Event.WRITE_ROWS_V1, body)]
        packed = (Event.WRITE_ROWS_COMPRESSED_V1, body[:10] + deflated(body[10:]))
        if kind < 0.75:
            return [packed]
        whole = plain_event(Event.WRITE_ROWS_V1, body) if kind < 0.9 else plain_event(*packed)
        return [(Event.PARTIAL_ROW_DATA, piece) for piece in fragments(whole, self._chance.randint(1, 4), number_first=True)]

    def _add(self, events: list[tuple[int, bytes]]) -> None:
        for kind, body in events:
            self._log.add(kind, body, time=self._time)

    def _committed(self, written: list[_Written], gtid: str) -> None:
        self.rows += [Row(one.table, one.id, one.value, self._log.offset, one.event, self._time, gtid) for one in written]

    def _cut(self) -> None:
        if self.cuts[-1][1] < self._log.offset:
            self.cuts.append((sum(len(raw) for raw in self._log.stored), self._log.offset))
