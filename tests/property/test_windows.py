"""A range that is read window by window gives what it gives as a whole, whatever the window's size.

The ranges are pieces of real logs (`tests/fuzz/segments`), which hold every kind of event, and random ones that are made by hand: long
transactions that commit, roll back or are prepared, statements among rows, compressed and fragmented events, rows of many times the window.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.log.decode import ABSENT, ChangeBatch, LogItem, LogReader, LogServer, SchemaChanged
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.log.scan import Places, Stop, Walk
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Corrupt, InvariantBroken, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.limits import Limits
from tests.fuzz.corpus import Piece, load_pieces
from tests.integration.logs import changes, handmade_schemas, table_map_body, write_rows_body
from tests.kit import streams
from tests.kit.histories import History, Row, schemas
from tests.kit.packed_events import compressed_rows, deflated, fragments, payload

PIECES = {piece.name: piece for piece in load_pieces()}
LEAST = 19
"""A window holds an event's header at least."""


class Recycled:
    """A log whose pieces lie in one segment, as in a task. What is given back is overwritten at once: nobody may look at it."""

    def __init__(self, data: bytes, *, window_bytes: int) -> None:
        self._data = np.frombuffer(data, np.uint8)
        self.size = len(data)
        self.window_bytes = window_bytes
        self._segment = np.empty(window_bytes, np.uint8)

    def piece(self, at: int) -> Bytes:
        found = self._data[at : at + self.window_bytes]
        piece = self._segment[: len(found)]
        piece[:] = found
        return piece

    def give_back(self) -> None:
        # An event's header of this would be of 84 million bytes, of a type that is none.
        self._segment[:] = 5

    def whole(self, at: int, size: int) -> Bytes:
        return self._data[at : at + size].copy()


@dataclass
class Told:
    """What a reading gives, without how it was divided into batches."""

    rows: dict[TableId, list[pa.RecordBatch]] = field(default_factory=dict)
    names: dict[int, Any] = field(default_factory=dict)
    """Of transactions, by their position."""
    changes: list[tuple[SchemaChanged, dict[TableId, int]]] = field(default_factory=list)
    """With how many rows of each table came before."""
    held: int = 0

    def tables(self) -> dict[TableId, list[dict[str, Any]]]:
        return {table: [_row(row) for batch in batches for row in batch.to_pylist()] for table, batches in self.rows.items()}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    # A batch has this column only if an image of it lacks something.
    return row | {ABSENT: row.get(ABSENT, b"").rstrip(b"\0")}


def tell(items: Iterable[LogItem]) -> Told:
    told = Told()
    for item in items:
        if isinstance(item, ChangeBatch):
            told.rows.setdefault(item.table.id, []).append(item.rows)
            named = {int(at): item.transactions.gtid(index) for index, at in enumerate(item.transactions.position)}
            assert set(item.rows.column("_position").to_pylist()) <= set(named), "a row's transaction is not told with it"
            told.names |= named
        else:
            told.changes.append((item, {table: sum(len(rows) for rows in batches) for table, batches in told.rows.items()}))
    return told


def read(piece: Piece, window_bytes: int, data: bytes | None = None, limits: Limits | None = None) -> Told:
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    for table in piece.tables:
        schemas.put(table.id, Position(0, 0), table)
    reader = LogReader(server=LogServer(piece.flavour, piece.version), schemas=schemas, limits=limits or Limits())
    log = Recycled(piece.data if data is None else data, window_bytes=window_bytes)
    told = tell(reader.read_log(log, file=1, start=piece.start, end=piece.end, checksum_bytes=piece.checksum_bytes))
    told.held = len(reader.held)
    return told


def check_same(got: Told, whole: Told) -> None:
    assert got.tables() == whole.tables()
    assert got.changes == whole.changes
    assert got.held == whole.held
    rows = {row["_position"] for rows in whole.tables().values() for row in rows}
    assert {at: name for at, name in got.names.items() if at in rows} == {at: name for at, name in whole.names.items() if at in rows}


def sizes(piece: Piece, chance: random.Random) -> list[int]:
    longest = max(b - a for a, b in piece.events)
    return [LEAST, longest - 1, longest, longest + 1, len(piece.data) - 1, *(chance.randint(LEAST, len(piece.data)) for _ in range(6))]


@pytest.mark.parametrize("name", sorted(PIECES))
def test_a_real_log_reads_the_same_through_any_window(name: str) -> None:
    piece = PIECES[name]
    whole = read(piece, len(piece.data))
    for size in sizes(piece, random.Random(name)):
        check_same(read(piece, max(LEAST, size)), whole)


def rows_of(items: Iterable[LogItem]) -> list[Row]:
    """As `History` tells them, table by table."""
    found: list[Row] = []
    for item in items:
        if isinstance(item, ChangeBatch):
            names = {int(at): str(item.transactions.gtid(index)) for index, at in enumerate(item.transactions.position)}
            for row in item.rows.to_pylist():
                at = row["_position"]
                found.append(Row(item.table.id.name, row["id"], row["v"], at, row["_event"], int(row["_ts"].timestamp()), names[at]))
    return sorted(found, key=lambda row: row.table)


def read_history(history: History, window_bytes: int, limits: Limits | None = None) -> list[Row]:
    reader = LogReader(server=LogServer(history.flavour, (12, 3, 1)), schemas=schemas(), limits=limits or Limits())
    log = Recycled(history.data, window_bytes=window_bytes)
    return rows_of(reader.read_log(log, file=1, start=4, end=history.end, checksum_bytes=history.checksum_bytes))


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("seed", range(40))
def test_a_log_of_long_transactions_reads_the_same_through_any_window(flavour: Any, seed: int) -> None:
    chance = random.Random(seed)
    history = History(chance, flavour=flavour, checksummed=seed % 4 != 0)
    history.grow(25, event_bytes=chance.choice([40, 400, 4000]), events_max=chance.choice([3, 12, 40]))
    expected = sorted(history.rows, key=lambda row: row.table)
    for _ in range(4):
        window = int(LEAST * 2 ** chance.uniform(0, 11))
        small = Limits(assembly_bytes=chance.choice([16, 1000, 16 << 20]), rows_per_batch=chance.choice([2, 7, 65_536]))
        assert read_history(history, window, small) == expected, window


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("seed", range(15))
def test_what_was_rolled_back_to_a_savepoint_never_comes_through_any_window(flavour: Any, seed: int) -> None:
    chance = random.Random(f"savepoints {seed}")
    history = History(chance, flavour=flavour, checksummed=seed % 4 != 0, savepoints=chance.choice([0.25, 0.5]))
    while history.undone < 40:
        history.grow(5, event_bytes=chance.choice([40, 400, 4000]), events_max=chance.choice([3, 12, 40]))
    expected = sorted(history.rows, key=lambda row: row.table)
    for _ in range(4):
        window = int(LEAST * 2 ** chance.uniform(0, 11))
        small = Limits(assembly_bytes=chance.choice([16, 1000, 16 << 20]), rows_per_batch=chance.choice([2, 7, 65_536]))
        assert read_history(history, window, small) == expected, window
    assert read_history(history, len(history.data)) == expected


def test_records_of_eight_windows_come_out_whole() -> None:
    history = History(random.Random(8), flavour="mysql")
    history.grow(30, event_bytes=8 * 4096)
    largest = max(len(row.value) for row in history.rows)
    assert largest > 7 * 4096
    assert read_history(history, 4096) == sorted(history.rows, key=lambda row: row.table)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("seed", range(12))
def test_rows_that_nobody_wants_change_nothing_of_the_others_through_any_window(flavour: Any, seed: int) -> None:
    """One table is not captured, another is covered up to somewhere; large events and transactions of both are stepped over."""
    chance = random.Random(f"unwanted {seed}")
    history = History(chance, flavour=flavour, checksummed=seed % 4 != 0, savepoints=chance.choice([0, 0.2]))
    history.grow(15, event_bytes=chance.choice([400, 4000]), events_max=chance.choice([3, 12, 40]))
    foreign, covered = chance.sample(sorted({row.table for row in history.rows}), 2)
    upto = chance.choice(history.cuts)[1]
    wanted = [row for row in history.rows if row.table != foreign and not (row.table == covered and row.position <= upto)]
    for _ in range(4):
        window = int(LEAST * 2 ** chance.uniform(0, 11))
        small = Limits(assembly_bytes=chance.choice([16, 1000, 16 << 20]), rows_per_batch=chance.choice([2, 65_536]))
        reader = LogReader(
            server=LogServer(history.flavour, (12, 3, 1)), schemas=schemas(), limits=small, captured=lambda table: table.name != foreign
        )
        reader.low = lambda table: upto if table.name == covered else 0
        log = Recycled(history.data, window_bytes=window)
        found = rows_of(reader.read_log(log, file=1, start=4, end=history.end, checksum_bytes=history.checksum_bytes))
        assert found == sorted(wanted, key=lambda row: row.table), window


@pytest.mark.parametrize("name", sorted(PIECES))
def test_what_is_refused_as_a_whole_is_refused_through_any_window(name: str) -> None:
    piece = PIECES[name]
    chance = random.Random(name)
    for _ in range(25):
        damaged = bytearray(piece.data)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            at, end = chance.choice(piece.events)
            del damaged[at:end]
        try:
            whole: Told | None = read(piece, len(damaged), bytes(damaged))
        except (Corrupt, SourceDrift):
            whole = None
        for size in (LEAST, chance.randint(LEAST, len(damaged))):
            if whole is None:
                with pytest.raises((Corrupt, SourceDrift)):
                    read(piece, size, bytes(damaged))
            else:
                check_same(read(piece, size, bytes(damaged)), whole)


def one_transaction(events: Iterable[tuple[int, bytes]]) -> bytes:
    """Of MariaDB, without checksums."""
    log = streams.Log(checksummed=False)
    log.add(Event.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0) + bytes(6))
    for kind, body in events:
        log.add(kind, body)
    log.add(Event.XID, bytes(8))
    return b"".join(log.stored)


def ids(data: bytes, window_bytes: int) -> list[int]:
    reader = LogReader(server=LogServer("mariadb", (12, 3, 1)), schemas=handmade_schemas())
    log = Recycled(data, window_bytes=window_bytes)
    return [change.values["id"] for change in changes(reader.read_log(log, file=1, start=4, checksum_bytes=0))]


def test_more_tables_than_are_remembered_take_nothing_from_the_open_statement() -> None:
    events = []
    for number in range(100, 3000):
        events += [(Event.TABLE_MAP, table_map_body(number)), (Event.WRITE_ROWS_V1, write_rows_body(number, [number]))]
    # A map that its rows find again although the window, and nearly all that was mapped, is gone.
    events += [(Event.TABLE_MAP, table_map_body(9))]
    events += [(Event.WRITE_ROWS_V1, write_rows_body(9, range(60), last=False)) for _ in range(30)]
    expected = [*range(100, 3000), *list(range(60)) * 30]
    assert ids(one_transaction(events), 1000) == expected
    assert ids(one_transaction(events), 1 << 20) == expected


def test_a_fragment_that_does_not_follow_in_the_next_window_is_refused() -> None:
    whole = streams.event(Event.WRITE_ROWS_V1, write_rows_body(9, range(200)), next_position=0, checksummed=False)
    first, *rest = [(Event.PARTIAL_ROW_DATA, body) for body in fragments(whole, 4, number_first=True)]
    other = (Event.WRITE_ROWS_V1, write_rows_body(9, [1], last=False))
    mapped = (Event.TABLE_MAP, table_map_body(9))
    assert ids(one_transaction([mapped, first, *rest]), 300) == list(range(200))
    with pytest.raises(Corrupt, match="not whole"):
        ids(one_transaction([mapped, first, other, *rest]), 300)


def test_a_transaction_that_unpacks_to_many_times_its_size_has_room_for_its_rows() -> None:
    """What a walk notes is sized by its window: by the bytes of a packed range it would be far too small, and no kernel looks."""
    packed = 0
    for seed in range(30):
        history = History(random.Random(seed), flavour="mysql")
        history.transaction(event_bytes=0, events_max=600)
        if len(history.data) // 27 < len(history.rows) // 3:
            packed += 1
        assert read_history(history, Limits().prefilter_bytes) == sorted(history.rows, key=lambda row: row.table)
    assert packed > 3


def test_a_window_that_is_larger_than_its_walk_is_refused() -> None:
    walk = Walk(window_bytes=100, position=4)
    events = streams.event(Event.XID, bytes(8), next_position=0, time=1, checksummed=False) * 5
    with pytest.raises(InvariantBroken, match="a window is larger than the walk was made for"):
        walk.enter(np.frombuffer(events, np.uint8), checksum_bytes=0, places=Places.UNPACKED)


def test_a_window_is_not_left_while_its_rows_are_not_handed_out() -> None:
    walk = Walk(window_bytes=1 << 20, position=4)
    data = one_transaction([(Event.TABLE_MAP, table_map_body(9)), (Event.WRITE_ROWS_V1, write_rows_body(9, [1]))])
    walk.enter(np.frombuffer(data, np.uint8), checksum_bytes=0, places=Places.EXACT)
    assert walk.advance() is Stop.END
    with pytest.raises(InvariantBroken, match="a window is left while rows of it are not handed out"):
        walk.leave()


class Changing(Recycled):
    """A log that ends otherwise when its last event is read for the second time."""

    def __init__(self, data: bytes, *, window_bytes: int, kinds: tuple[int, int]) -> None:
        super().__init__(data, window_bytes=window_bytes)
        self._data = self._data.copy()
        self._kinds = list(kinds)
        self._last = len(data) - len(ENDS)

    def piece(self, at: int) -> Bytes:
        if at <= self._last < at + self.window_bytes and self._kinds:
            self._data[self._last + 4] = self._kinds.pop(0)
        return super().piece(at)


ENDS = streams.event(Event.QUERY, streams.query_body(b"ROLLBACK"), next_position=0, checksummed=False)
"""As an XID it is a commit: what that holds is not looked at."""


@pytest.mark.parametrize(("kinds", "fate"), [((Event.QUERY, Event.XID), "rolled back"), ((Event.XID, Event.QUERY), "committed")])
def test_a_transaction_that_ends_otherwise_than_it_was_found_to_is_refused(kinds: tuple[int, int], fate: str) -> None:
    """Its rows are handed out, or dropped, before the walk comes to its end."""
    log = streams.Log(checksummed=False)
    log.add(Event.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0) + bytes(6))
    log.add(Event.TABLE_MAP, table_map_body(9))
    for first in range(0, 3000, 100):
        log.add(Event.WRITE_ROWS_V1, write_rows_body(9, range(first, first + 100), last=False))
    log.add(Event.QUERY, streams.query_body(b"ROLLBACK"))
    data = b"".join(log.stored)
    reader = LogReader(server=LogServer("mariadb", (12, 3, 1)), schemas=handmade_schemas())
    assert not list(reader.read_log(Recycled(data, window_bytes=1000), file=1, start=4, checksum_bytes=0))
    with pytest.raises(Corrupt, match=f"a transaction ends otherwise than it was found to: {fate}"):
        list(reader.read_log(Changing(data, window_bytes=1000, kinds=kinds), file=1, start=4, checksum_bytes=0))


class NeverWhole(Recycled):
    """A log of which nothing is put together."""

    def whole(self, at: int, size: int) -> Bytes:
        raise AssertionError(f"{size} bytes are put together")


class TestUnwanted:
    """Rows that nobody wants are neither put together nor unpacked, whatever their size."""

    LIMITS = Limits(assembly_bytes=500, spill_bytes_max=6000, unpacked_bytes_max=6000)
    WINDOW = 4096

    def ids(
        self, data: bytes, *, checksum_bytes: int = 4, flavour: Any = "mariadb", log: type[Recycled] = NeverWhole, low: int = 0
    ) -> list[int]:
        reader = LogReader(
            server=LogServer(flavour, (12, 3, 1)),
            schemas=handmade_schemas(),
            limits=self.LIMITS,
            captured=lambda table: table.name == "t",
        )
        reader.low = lambda _: low
        found = changes(reader.read_log(log(data, window_bytes=self.WINDOW), file=1, start=4, checksum_bytes=checksum_bytes))
        return [change.values["id"] for change in found]

    @staticmethod
    def log(*events: tuple[int, bytes], checksummed: bool = True, told: bool = True) -> streams.Log:
        """A transaction with a row of table t before and behind these events."""
        log = streams.Log(checksummed=checksummed)
        log.add(Event.GTID_MARIADB, struct.pack("<QIB", 1, 0, 0) + bytes(6))
        mine = table_map_body(9, "t")
        for kind, body in [(Event.TABLE_MAP, mine), (Event.WRITE_ROWS_V1, write_rows_body(9, [1]))]:
            log.add(kind, body, told=told)
        for kind, body in events:
            log.add(kind, body, told=told)
        for kind, body in [(Event.TABLE_MAP, mine), (Event.WRITE_ROWS_V1, write_rows_body(9, [2]))]:
            log.add(kind, body, told=told)
        log.add(Event.XID, bytes(8))
        return log

    FOREIGN = (Event.TABLE_MAP, table_map_body(10, "foreign"))
    ROWS = write_rows_body(10, range(20_000))

    @pytest.mark.parametrize("checksummed", [True, False])
    @pytest.mark.parametrize("told", [True, False])
    def test_a_large_event_of_a_table_that_is_not_captured(self, checksummed: bool, told: bool) -> None:
        log = self.log(self.FOREIGN, (Event.WRITE_ROWS_V1, self.ROWS), checksummed=checksummed, told=told)
        data = b"".join(log.stored)
        assert self.ids(data, checksum_bytes=4 * checksummed) == [1, 2]

    def test_a_large_compressed_event_of_such_a_table(self) -> None:
        """Once larger than a window, once only when it is unpacked."""
        noise = write_rows_body(10, range(2))[:10] + deflated(random.Random(1).randbytes(20_000))
        zeros = write_rows_body(10, range(2))[:10] + deflated(bytes(1 << 20))
        for body in (noise, zeros):
            assert self.ids(b"".join(self.log(self.FOREIGN, (Event.WRITE_ROWS_COMPRESSED_V1, body)).stored)) == [1, 2]

    def test_a_large_event_of_a_captured_table_that_is_covered(self) -> None:
        log = self.log((Event.TABLE_MAP, table_map_body(9, "t")), (Event.WRITE_ROWS_V1, write_rows_body(9, range(20_000))))
        data = b"".join(log.stored)
        assert self.ids(data, low=log.offset) == []
        with pytest.raises(AssertionError, match="put together"):
            self.ids(data, low=log.offset - 1)

    def test_a_compressed_transaction_that_is_small_without_such_rows(self) -> None:
        events = [
            (Event.QUERY, streams.query_body(b"BEGIN")),
            (Event.TABLE_MAP, table_map_body(9, "t")),
            (Event.WRITE_ROWS_V1, write_rows_body(9, [1])),
            self.FOREIGN,
            *[(Event.WRITE_ROWS_V1, write_rows_body(10, [7] * 30_000, last=False))] * 40,
            (Event.TABLE_MAP, table_map_body(9, "t")),
            (Event.WRITE_ROWS_V1, write_rows_body(9, [2])),
            (Event.XID, bytes(8)),
        ]
        inner = b"".join(streams.event(kind, body, next_position=0, checksummed=False) for kind, body in events)
        assert len(inner) > 5 << 20, "it is unpacked in one piece"
        for compression in (0, 255):
            log = streams.Log()
            log.add(Event.GTID, streams.gtid_body(1))
            log.add(Event.TRANSACTION_PAYLOAD, payload(inner, compression=compression))
            # What is packed is put together as it is, and small or not limited here.
            assert self.ids(b"".join(log.stored), flavour="mysql", log=Recycled) == [1, 2]
        cut = inner[: inner.index(streams.event(*events[4], next_position=0, checksummed=False)) + 100]
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.TRANSACTION_PAYLOAD, payload(cut))
        with pytest.raises(Corrupt, match="an event that can't be"):
            self.ids(b"".join(log.stored), flavour="mysql", log=Recycled)

    def test_damage_in_them_is_seen(self) -> None:
        """A number of a table that is damaged must not drop rows that are wanted."""
        log = self.log(self.FOREIGN, (Event.WRITE_ROWS_V1, self.ROWS))
        data = bytearray(b"".join(log.stored))
        for at in (19, 26, 30_000, len(log.stored[4]) - 2):
            damaged = bytearray(data)
            damaged[sum(map(len, log.stored[:4])) + at] ^= 1
            with pytest.raises(Corrupt):
                self.ids(bytes(damaged), log=Recycled)

    def test_what_is_wanted_and_beyond_the_limit_says_what_to_do(self) -> None:
        log = self.log((Event.TABLE_MAP, table_map_body(9, "t")), (Event.WRITE_ROWS_COMPRESSED_V1, compressed_rows(self.MINE)))
        with pytest.raises(SourceDrift, match="raise relay: spill_bytes_max"):
            self.ids(b"".join(log.stored), log=Recycled)

    MINE = write_rows_body(9, [7] * 20_000)


def test_an_xa_transaction_that_is_decided_inside_of_another_is_refused() -> None:
    """Where one is decided no row is left to be handed out, so that the window can be given back for what was prepared."""
    rows = [(Event.TABLE_MAP, table_map_body(9)), (Event.WRITE_ROWS_V1, write_rows_body(9, [1]))]
    data = one_transaction([*rows, (Event.QUERY, streams.query_body(b"XA COMMIT X'61',X'',1"))])
    with pytest.raises(Corrupt, match="an XA transaction is decided inside of another"):
        ids(data, 1 << 20)
