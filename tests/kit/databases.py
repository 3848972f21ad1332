"""Databases of every kind for one suite: each with a table `orders`, and written to in the same words."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from snowmelt.credentials import Secret
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.capture import CaptureLimits, CapturePlan
from snowmelt.databases.contract.changes import SYSTEM_FIELDS, Changes, LogStretch
from snowmelt.databases.contract.log import KnownTables, SegmentMeaning
from snowmelt.databases.contract.stretches import InMemory, SegmentSlice
from snowmelt.databases.contract.tables import Catalogue, KeyRange, ReadMark, TableShape
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.model.patterns import TablePredicate, match_tables
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import KeyEnds
from snowmelt.relay.flow import Flow
from snowmelt.relay.limits import Limits
from snowmelt.segments import Segment, list_segments, owned
from tests.kit.servers import Server
from tests.kit.small.database import SmallDatabase
from tests.kit.small.server import Definition, SmallServer
from tests.kit.waiting import until

ROWS = 1_000
CAPTURE_S_MAX = 30
Row = tuple[Any, ...]
Write = tuple[str, Row | None, Row | None]
"""A table, and what a row of it was and is; None: not there."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A change as it was decoded."""

    op: int
    row: Row
    offset: int
    event: int
    time_us: int


class Source(ABC):
    """A database with one table `orders` of `ROWS` rows, ids from 1 on, and a folder for its log."""

    def __init__(self, database: Database, shop: str, folder: Path) -> None:
        self.database = database
        self.shop = shop
        self.folder = folder / "log"
        self.folder.mkdir()
        self.create("orders", {"id": "int", "v": "text"}, ["id"])
        self.write(*(("orders", None, (number, f"v{number}")) for number in range(1, ROWS + 1)))

    # ---- to write

    @abstractmethod
    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> None:
        """Columns are of the types `int` and `text`."""

    @abstractmethod
    def write(self, *changes: Write) -> None:
        """One transaction."""

    @abstractmethod
    def add_column(self, table: str, column: str) -> None:
        """One of integers that can be NULL. An error if the table is held for five seconds."""

    @abstractmethod
    def truncate(self, table: str) -> None: ...

    @abstractmethod
    def drop(self, table: str) -> None: ...

    # ---- to ask

    @property
    def orders(self) -> TableId:
        return TableId(self.shop, "orders")

    def wanted(self, ignore_case: bool) -> TablePredicate:
        return match_tables([f"{self.shop}.*"], ignore_case=ignore_case, never=self.database.system_databases)

    def catalogue(self) -> Catalogue:
        return self.database.read_catalogue(self.wanted, era=0)

    def shape(self, name: str = "orders") -> TableShape:
        return self.catalogue().tables[TableId(self.shop, name)]

    def ends(self, shape: TableShape) -> tuple[KeyEnds | None, ReadMark]:
        return self.database.read_ends(shape, identity=self.database.connect(), era=0, to_a_change=False)

    def read(self, shape: TableShape, keys: KeyRange | None = None, **more: Any) -> list[pa.RecordBatch]:
        given = {"identity": self.database.connect(), "era": 0, "visible": None, "to_a_change": False, "in_parts": True} | more
        with contextlib.closing(self.database.read(shape, keys or KeyRange(), **given).batches()) as batches:
            return list(batches)

    def bounds(self, shape: TableShape, ends: KeyEnds, **more: Any) -> list[bytes]:
        """All of them, asked for one after the other."""
        given = {"bytes_max": 1 << 20, "rows_max": 100, "bounds_max": 3} | more
        found: list[bytes] = []
        while True:
            some = self.database.find_bounds(shape, ends, after=found[-1] if found else None, **given)
            assert len(some.highs) <= given["bounds_max"]
            found += some.highs
            if some.complete:
                return found

    # ---- its log

    def start(self) -> Position:
        """Where a capture may begin."""
        catalogue = self.catalogue()
        return self.database.with_transactions(catalogue.ended, catalogue.log)

    @contextlib.contextmanager
    def captured(self, start: Position, **more: Any) -> Iterator[Capturing]:
        """While the block runs, the log is captured. What ends the capture is raised after the block."""
        capturing = Capturing(self, start, **more)
        with owned(self.folder):
            thread = threading.Thread(target=capturing.run, name="capture")
            thread.start()
            try:
                yield capturing
            finally:
                capturing.stop.set()
                thread.join()
        if capturing.error is not None:
            raise capturing.error

    def capture(self, start: Position, **more: Any) -> list[Segment]:
        """All segments of the folder, when it has all of the log."""
        with self.captured(start, **more) as capturing:
            capturing.come_to_the_end()
        return list_segments(self.folder)

    def meaning(self, segments: Sequence[Segment], *shapes: TableShape, first: int = 0) -> list[SegmentMeaning]:
        """What segments mean on the number line, on which the first of them begins at `first`, by these shapes of before them."""
        catalogue, meanings = self.catalogue(), []
        known = {shape.id: shape for shape in shapes}
        for segment, begins in zip(segments, number_line(segments, first), strict=True):
            told = KnownTables(
                shapes=dict(known),
                broken=frozenset(),
                listed=frozenset(catalogue.tables),
                captured=self.wanted(catalogue.ignores_case),
                keyed=lambda _: True,
                lower_case_names=catalogue.lower_case_names,
            )
            meanings.append(self.database.read_meaning(segment, begins, told))
            assert self.database.read_meaning(segment, begins, told) == meanings[-1], "another answer to the same question"
            for effect in meanings[-1].effects:
                known.pop(effect.table, None)
                known |= {effect.table: effect.shape} if effect.shape is not None else {}
        return meanings

    def decode(
        self, segment: Segment, *shapes: TableShape, part: SegmentSlice | None = None, low: int = 0, marks: Sequence[ReadMark] = ()
    ) -> list[Changes]:
        """Changes of these tables in a segment, or in a part of it. `low`: of which no change up to there is wanted."""
        part = part or SegmentSlice(0, segment.start.offset, segment.data_bytes, segment.end.offset)
        log = InMemory(segment.bytes()[part.first : part.last], window_bytes=1 << 16)
        stretch = LogStretch(segment=segment, part=part, log=log, low=lambda _table: low, prepared=lambda _name, _offset: None)
        with contextlib.closing(self.database.log_reader(shapes, marks, Limits()).read(stretch)) as changes:
            return list(changes)


class Capturing:
    """A capture under way."""

    def __init__(
        self,
        source: Source,
        start: Position,
        *,
        last: Segment | None = None,
        identity: str | None = None,
        flow: Callable[[int], Flow] = lambda _open_bytes: Flow.ON,
    ) -> None:
        self._source = source
        self._last = last
        self.told: list[Segment] = []
        """Segments that were told as sealed."""
        self.too_early: list[Segment] = []
        """Those that the folder did not have by then, after all that were told before."""
        self.located: list[Position] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.capture = source.database.capture(
            CapturePlan(
                folder=source.folder,
                name="suite",
                start=start,
                identity=identity or source.database.connect(),
                limits=CaptureLimits(seal_ms=50),
                failover=False,
                sealed=self._sealed,
                flow=flow,
                located=self.located.append,
            )
        )

    def _sealed(self, segment: Segment) -> None:
        self.told.append(segment)
        if list_segments(self._source.folder)[-len(self.told) :] != self.told:
            self.too_early.append(segment)

    def run(self) -> None:
        try:
            self.capture.run_owned(self.stop, self._last)
        except BaseException as error:
            self.error = error

    def come_to_the_end(self) -> None:
        """Wait until all is captured that the server has logged by now."""
        wanted = self._source.database.log_end(era=0)
        until(lambda: self.error is not None or (self.capture.end is not None and self.capture.end >= wanted), seconds_max=CAPTURE_S_MAX)

    def ended(self) -> None:
        """Wait until it has ended by itself."""
        until(lambda: self.error is not None, seconds_max=CAPTURE_S_MAX)


def number_line(segments: Sequence[Segment], first: int = 0) -> list[int]:
    """Where each segment begins on it."""
    sizes = [segment.end.offset - segment.start.offset for segment in segments]
    return [first + sum(sizes[:index]) for index in range(len(sizes))]


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def changed_rows(changes: Sequence[Changes]) -> list[ChangedRow]:
    """In the order in which they came."""
    found = []
    for one in changes:
        assert not one.partial
        own, system = one.rows.select(one.table.names), one.rows.select([name.name for name in SYSTEM_FIELDS])
        # Python's datetimes are slow, and its own clock is what it is compared with.
        system = system.set_column(3, "_ts", system.column(3).cast(pa.int64()))
        both = zip(own.to_pylist(), system.to_pylist(), strict=True)
        found += [ChangedRow(told["_op"], tuple(row.values()), told["_position"], told["_event"], told["_ts"]) for row, told in both]
    return found


# ---- kinds


class SmallKind(Source):
    """`make` makes the database of its server: another one is a mistake for the suite to find."""

    def __init__(self, folder: Path, make: Callable[[Path], Database] = SmallDatabase) -> None:
        self._server = SmallServer(folder / "server")
        self._tables: dict[str, Definition] = {}
        super().__init__(make(self._server.folder), "shop", folder)

    def _run(self, statement: str, definition: Definition) -> None:
        self._tables[definition.id.name] = definition
        self._server.run(statement, definition)

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> None:
        self._run("CREATE", Definition(TableId(self.shop, table), tuple(columns.items()), tuple(key)))

    def write(self, *changes: Write) -> None:
        self._server.write([(TableId(self.shop, table), old, new) for table, old, new in changes])

    def add_column(self, table: str, column: str) -> None:
        before = self._tables[table]
        self._run("ALTER", Definition(before.id, (*before.columns, (column, "int")), before.key))

    def truncate(self, table: str) -> None:
        self._run("TRUNCATE", self._tables[table])

    def drop(self, table: str) -> None:
        self._run("DROP", self._tables[table])


class MySqlKind(Source):
    def __init__(self, server: Server, shop: str, folder: Path) -> None:
        self._server = server
        self._columns: dict[str, list[str]] = {}
        secret = folder / "password"
        secret.write_text(server.password)
        options = MySqlOptions(
            host=server.host,
            port=server.port,
            password=Secret(f"file:{secret}"),
            tls=Tls.DISABLED,
            allow_password_to_unverified_server=True,
        )
        super().__init__(MySql(options=options), shop, folder)

    def _run(self, *statements: tuple[str, Sequence[Row]]) -> None:
        with self._server.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 5")
            for statement, rows in statements:
                cursor.executemany(statement, rows)
            connection.commit()

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str] = ()) -> None:
        self._columns[table] = list(columns)
        kinds = {"int": "INT", "text": "VARCHAR(20)"}
        parts = [f"{name} {kinds[kind]}{' NOT NULL' if name in key else ''}" for name, kind in columns.items()]
        parts += [f"PRIMARY KEY ({', '.join(key)})"] if key else []
        self._run((f"CREATE TABLE {self.shop}.{table} ({', '.join(parts)})", [()]))

    def write(self, *changes: Write) -> None:
        statements: list[tuple[str, list[Row]]] = []
        for table, old, new in changes:
            name, columns = f"{self.shop}.{table}", self._columns[table]
            equal = [f"{column} <=> %s" for column in columns]
            if old is None:
                statement, row = f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(columns))})", new
            elif new is None:
                statement, row = f"DELETE FROM {name} WHERE {' AND '.join(equal)}", old
            else:
                given = ", ".join(f"{column} = %s" for column in columns)
                statement, row = f"UPDATE {name} SET {given} WHERE {' AND '.join(equal)}", (*new, *old)
            if not statements or statements[-1][0] != statement:
                statements.append((statement, []))
            statements[-1][1].append(row or ())
        self._run(*statements)

    def add_column(self, table: str, column: str) -> None:
        self._columns[table].append(column)
        self._run((f"ALTER TABLE {self.shop}.{table} ADD COLUMN {column} INT", [()]))

    def truncate(self, table: str) -> None:
        self._run((f"TRUNCATE TABLE {self.shop}.{table}", [()]))

    def drop(self, table: str) -> None:
        self._run((f"DROP TABLE {self.shop}.{table}", [()]))
