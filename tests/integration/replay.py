"""A model of what the pipeline will do with a source: chunks copied while the log is captured, then the log replayed over them.

Every chunk is launched above a cut `V` of the captured log that is proven visible, carries the mark of its read, and is given
back and read again where its table was altered between the cut and the mark's high end. The replay drops what lies at or below
a chunk's cut, and of what lies above it all that the mark covers. Which chunk a key belongs to is asked of the database, which
alone knows its order.

The model is strict: a change must fit what it finds, an insert nothing and an update or delete the very row that it names.
What doesn't fit would be in an append-only target twice, or lacks a predecessor there; it is kept in `misfits`.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from snowmelt.credentials import Secret
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.ddl import AlterColumns, Ignored
from snowmelt.databases.mysql.gtid import GtidSet, gtid_within, of_words
from snowmelt.databases.mysql.log.capture import Capture, CaptureHooks
from snowmelt.databases.mysql.log.decode import ChangeBatch, LogItem, LogReader, SchemaChanged, warm
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Gtid
from snowmelt.databases.mysql.log.statements import read_flagged_groups
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read.bounds import Chunk, Extent, chunk_condition, from_table, plan_chunks
from snowmelt.databases.mysql.read.marks import Mark, covers
from snowmelt.databases.mysql.read.reads import log_end, newest_visible, read_chunk, read_extent
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import (
    BINARY_TYPES,
    DECIMAL_DIGITS_MAX,
    INTEGER_BITS,
    TEXT_TYPES,
    MySqlColumn,
    MySqlTable,
    TypeOptions,
)
from snowmelt.errors import SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.segments import Segment
from tests.integration.logs import python_values, reader_of
from tests.kit.servers import Server

Key = tuple[Any, ...]
Row = tuple[Any, ...]

OPTIONS = TypeOptions()
INSERT, BEFORE, AFTER, DELETE = range(4)
TRIES_MAX = 50
WAIT_S = 120


def options_of(server: Server) -> MySqlOptions:
    secret = server.folder / "replay.password"
    if not secret.exists():
        # Written once, before there are threads: a capture that connects reads it at any time.
        secret.write_text(server.password)
    password = Secret(f"file:{secret}")
    return MySqlOptions(
        host=server.host,
        port=server.port,
        username=server.user,
        password=password,
        tls=Tls.DISABLED,
        allow_password_to_unverified_server=True,
    )


def open_session(server: Server) -> Session:
    return Session(options_of(server))


@dataclass(frozen=True)
class Transaction:
    """Where a transaction's commit ends, and its name."""

    position: Position
    gtid: Gtid | None
    xa: bool = False
    """Whether that commit is an XA COMMIT."""


class Change(NamedTuple):
    """One image of a row."""

    operation: int
    key: Key
    row: Row
    transaction: Transaction


class FollowedLog:
    """A capture in a thread of its own, and what its segments decode to, segment by segment."""

    def __init__(self, server: Server, folder: Path, start: Position, schemas: SchemaHistory[MySqlTable], database: str) -> None:
        self.start = start
        self.segments: list[Segment] = []
        """Those that were decoded."""
        self.items: list[list[LogItem]] = []
        self.reader: LogReader = reader_of(server, schemas, captured=lambda table: table.database == database)
        self._sealed: list[Segment] = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        # Small segments, so that there are many of them.
        self._capture = Capture(
            options_of(server),
            folder,
            start=start,
            server_id=4_000_001,
            limits=CaptureLimits(segment_bytes=2 << 20, seal_ms=100),
            hooks=CaptureHooks(sealed=self._add),
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FollowedLog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._capture.run(self._stop)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _add(self, segment: Segment) -> None:
        with self._changed:
            self._sealed.append(segment)
            self._changed.notify_all()

    def read_to(self, position: Position) -> None:
        """Decode all that is durable, once that is at least up to `position`."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._error is not None or (self._sealed[-1].end if self._sealed else self.start) >= position, WAIT_S
            )
            if self._error is not None:
                raise self._error
            assert there, f"the log was not captured to {position}"
            new = self._sealed[len(self.segments) :]
        for segment in new:
            read = self.reader.read(
                segment.bytes(), file=segment.start.file, start=segment.start.offset, checksum_bytes=details_of(segment).crc_length
            )
            self.items.append(list(read))
            self.segments.append(segment)

    def newest_cut(self, visible: Position | GtidSet) -> Position:
        """The newest end of a segment that is proven visible."""
        with self._changed:
            ends = [segment.end for segment in self._sealed]
        for end in reversed(ends):
            if isinstance(visible, Position):
                proven = end <= visible
            else:
                proven = of_words(end.transactions) is not None and gtid_within(of_words(end.transactions), visible)
            if proven:
                return end
        return self.start

    def altered(self, table: TableId, after: Position, until: Position) -> bool:
        """Whether a statement changed the table in this stretch of the log."""
        statements = (item for items in self.items for item in items if isinstance(item, SchemaChanged))
        return any(
            after < item.position <= until and any(getattr(change, "table", None) == table for change in item.changes)
            for item in statements
        )

    def transactions(self) -> Iterator[tuple[int, Transaction]]:
        """Those that the decoder named, each with the number of its segment; some come more than once."""
        for segment, items in zip(self.segments, self.items, strict=True):
            for item in items:
                if isinstance(item, ChangeBatch):
                    for index, offset in enumerate(item.transactions.position.tolist()):
                        yield segment.number, Transaction(Position(segment.start.file, offset), item.transactions.gtid(index))


@dataclass(frozen=True)
class Copy:
    """A chunk that was read; the tail, which has no rows, has no chunk either."""

    chunk: Chunk | None
    cut: Position
    mark: Mark
    shape: MySqlTable
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Altered:
    """A place in a table's stream of changes from where its rows have another shape."""

    change: AlterColumns


@dataclass(frozen=True)
class Cut:
    """A place between two segments."""

    position: Position


def above_the_cut(copy: Copy, transaction: Transaction) -> bool:
    """How rows with keys are joined with their copies: whatever lies above the cut comes, whether it was read or not."""
    return transaction.position <= copy.cut


def by_mark(copy: Copy, transaction: Transaction) -> bool:
    """How changes are that must come once each."""
    # Below the cut nothing is emitted, whatever the mark leaves open.
    xa = transaction.xa and transaction.position > copy.cut
    return covers(copy.mark, position=transaction.position, gtid=transaction.gtid, xa=xa)


Stream = list[Change | Altered | Cut]


@dataclass
class Folded:
    """What the replay of a table comes to."""

    shape: MySqlTable
    rows: dict[Key, Row] = field(default_factory=dict)
    misfits: list[tuple[Change, Copy]] = field(default_factory=list)
    lost: list[Change] = field(default_factory=list)
    """What lies at or below its copy's cut, and was not read either."""
    covered: int = 0


class Source:
    """The tables of one database, their log and their copies."""

    def __init__(self, server: Server, folder: Path, database: str) -> None:
        self.server = server
        self.database = database
        with open_session(server) as session:
            self.identity = session.server.identity
            self.tables = read_tables(session, lambda table: table.database == database)
            start = log_end(session, era=0)
        schemas: SchemaHistory[MySqlTable] = SchemaHistory()
        for table, shape in self.tables.items():
            schemas.put(table, start, shape)
        self.log = FollowedLog(server, folder, start, schemas, database)
        self.copies: dict[TableId, list[Copy]] = {table: [] for table in self.tables}
        self.given_back: Counter[str] = Counter()
        self._streams: dict[TableId, Stream] = {}
        self._homes: dict[TableId, dict[Key, int]] = {}

    def __enter__(self) -> Source:
        # Kernels are compiled before anybody writes: the copy is to run with the writers, not behind them.
        warm()
        for table in self.tables:
            self.live(table)
        self.log.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.log.__exit__()

    # Copying.

    def copy(self, rows_per_chunk: int) -> None:
        """Copy all tables, taking turns, so that the chunks of each are far apart in time."""
        turns = [self._copies(table, rows_per_chunk) for table in self.tables]
        while turns:
            turns = [turn for turn in turns if next(turn, None) is not None]

    def _copies(self, table: TableId, rows_per_chunk: int) -> Iterator[Copy]:
        extent, tail = self._until_it_holds(table, self._read_extent)
        self.copies[table].append(tail)
        yield tail
        chunk: Chunk | None = None
        while chunk is None or chunk.high != extent.greatest:
            chunk = self._plan(table, extent, rows_per_chunk, chunk)
            _, copy = self._until_it_holds(table, lambda session, shape, chunk=chunk: self._read_chunk(session, shape, chunk))
            self.copies[table].append(copy)
            yield copy

    def _plan(self, table: TableId, extent: Extent, rows_per_chunk: int, after: Chunk | None) -> Chunk:
        """The next chunk. Planning begins anew each time, as it may after every restart."""
        for _ in range(TRIES_MAX):
            with open_session(self.server) as session:
                try:
                    return next(plan_chunks(session, self.tables[table], extent, rows_per_chunk=rows_per_chunk, after=after))
                except SourceDrift:
                    self.given_back["it changed while it was planned"] += 1
        raise AssertionError(f"no chunk of {table} can be planned")

    def _until_it_holds(self, table: TableId, read: Callable[[Session, MySqlTable], tuple[Any, Copy]]) -> tuple[Any, Copy]:
        for _ in range(TRIES_MAX):
            with open_session(self.server) as session:
                try:
                    found, copy = read(session, self.tables[table])
                except SourceDrift:
                    self.given_back["its shape changed"] += 1
                    continue
            self.log.read_to(copy.mark.high)
            if not self.log.altered(table, copy.cut, copy.mark.high):
                return found, copy
            self.given_back["the log alters it"] += 1
        raise AssertionError(f"no read of {table} holds")

    def _launch(self, session: Session, table: MySqlTable) -> tuple[Position, Any, MySqlTable]:
        visible = newest_visible(session, table, era=0)
        cut = self.log.newest_cut(visible)
        return cut, visible, read_tables(session, [table.id])[table.id]

    def _read_extent(self, session: Session, table: MySqlTable) -> tuple[Any, Copy]:
        cut, _, shape = self._launch(session, table)
        extent, mark = read_extent(session, shape, identity=self.identity, era=0)
        return extent, Copy(None, cut, mark, shape, ())

    def _read_chunk(self, session: Session, table: MySqlTable, chunk: Chunk) -> tuple[None, Copy]:
        cut, visible, shape = self._launch(session, table)
        with read_chunk(session, shape, chunk, OPTIONS, identity=self.identity, era=0, visible=visible) as read:
            rows = tuple(row for batch in read.batches() for row in rows_of(batch, shape))
            assert read.complete
        return None, Copy(chunk, cut, read.mark, shape, rows)

    # The log.

    def finish(self) -> None:
        """Take the log up to its end as of now."""
        with open_session(self.server) as session:
            self.log.read_to(log_end(session, era=0))
            self._streams = self._split()
            for table in self.tables:
                self._homes[table] = self._find_homes(session, table)

    def stream(self, table: TableId) -> Stream:
        return self._streams[table]

    def _split(self) -> dict[TableId, Stream]:
        streams: dict[TableId, Stream] = {table: [Cut(self.log.start)] for table in self.tables}
        for segment, items in zip(self.log.segments, self.log.items, strict=True):
            of_xa = {one.offset for one in read_flagged_groups(segment)[1] if one.committed}
            for item in items:
                if isinstance(item, ChangeBatch):
                    streams[item.table.id].extend(changes_of(item, segment.start.file, of_xa))
                    continue
                for change in item.changes:
                    if isinstance(change, AlterColumns):
                        streams[change.table].append(Altered(change))
                    else:
                        assert isinstance(change, Ignored), change
            for stream in streams.values():
                stream.append(Cut(segment.end))
        return streams

    def _find_homes(self, session: Session, table: TableId) -> dict[Key, int]:
        """For each key of the log the index of its copy, as the database judges: in which chunk's range is it?"""
        shape = self.tables[table]
        keys = list({change.key for change in self._streams[table] if isinstance(change, Change)})
        names = ", ".join(quote(name) for name in shape.key)
        copies = self.copies[table]
        tail = next(index for index, copy in enumerate(copies) if copy.chunk is None)
        homes = dict.fromkeys(keys, tail)
        session.execute("CREATE DATABASE IF NOT EXISTS scratch")
        session.execute(f"CREATE TABLE scratch.k (n INT PRIMARY KEY, INDEX ({names})) AS SELECT {names} FROM {quote_table(table)} LIMIT 0")
        places = ", ".join(["%s"] * (1 + len(shape.key)))
        for first in range(0, len(keys), 1000):
            some = keys[first : first + 1000]
            values = [part for n, key in enumerate(some, first) for part in (n, *key)]
            session.execute(f"INSERT INTO scratch.k (n, {names}) VALUES {', '.join([f'({places})'] * len(some))}", values)
        for index, copy in enumerate(copies):
            if copy.chunk is None:
                continue
            for (n,) in session.query(f"SELECT n FROM scratch.k WHERE {chunk_condition(shape, copy.chunk)}"):
                assert homes[keys[n]] == tail, "a key is in two chunks"
                homes[keys[n]] = index
        session.execute("DROP TABLE scratch.k")
        if all(_sorted_as_by_python(shape.column(name)) for name in shape.key):
            _check_order(homes, copies, tail)
        return homes

    # The replay.

    def fold(
        self, table: TableId, *, is_covered: Callable[[Copy, Transaction], bool] = above_the_cut, judged_by_new_key: bool = False
    ) -> Folded:
        """Replay a table's changes over its copies. The arguments are there to plant bugs."""
        folded = Folded(self.tables[table])
        stream, homes, copies = self._streams[table], self._homes[table], self.copies[table]
        waiting = sorted(range(len(copies)), key=lambda index: (copies[index].cut.file, copies[index].cut.offset))
        adopted: set[int] = set()
        verdicts: dict[tuple[int, Transaction], bool] = {}
        for at, step in enumerate(stream):
            if isinstance(step, Cut):
                while waiting and copies[waiting[0]].cut <= step.position:
                    adopted.add(waiting[0])
                    _adopt(folded, copies[waiting.pop(0)])
                continue
            if isinstance(step, Altered):
                _alter(folded, step.change)
                continue
            judge = stream[at + 1] if judged_by_new_key and step.operation == BEFORE else step
            assert isinstance(judge, Change)
            home = homes[judge.key]
            covered = verdicts.get((home, step.transaction))
            if covered is None:
                covered = verdicts[home, step.transaction] = is_covered(copies[home], step.transaction)
            if covered:
                folded.covered += 1
            elif home not in adopted:
                folded.lost.append(step)
            elif not _apply(folded, step):
                folded.misfits.append((step, copies[home]))
        assert not waiting, "a copy's cut is no cut of the log"
        return folded

    def live(self, table: TableId) -> Folded:
        """The table as it is now."""
        with open_session(self.server) as session:
            shape = read_tables(session, [table])[table]
            names = ", ".join(quote(column.name) for column in shape.columns)
            sql = f"SELECT {names} FROM {from_table(session, shape)}"
            rows = [row for batch in select(session, sql, shape.columns, OPTIONS, counters=ReadCounters()) for row in rows_of(batch, shape)]
        key = key_of(shape)
        return Folded(shape, {key(row): row for row in rows})


def _check_order(homes: dict[Key, int], copies: list[Copy], tail: int) -> None:
    """Where Python's order is the database's, both must agree."""
    chunks = [(index, copy.chunk) for index, copy in enumerate(copies) if copy.chunk is not None]
    highs = [chunk.high for _, chunk in chunks]
    for key, home in homes.items():
        place = bisect.bisect_left(highs, key)
        inside = place < len(highs) and not (place == 0 and key < (chunks[0][1].low or ()))
        assert home == (chunks[place][0] if inside else tail), "Python orders this key otherwise"


def key_of(shape: MySqlTable) -> Callable[[Row], Key]:
    names = [column.name for column in shape.columns]
    places = [names.index(name) for name in shape.key]
    if len(places) == 1:
        (place,) = places
        return lambda row: (row[place],)
    return lambda row: tuple(row[place] for place in places)


def rows_of(batch: pa.RecordBatch, shape: MySqlTable) -> list[Row]:
    columns = [_values(batch.column(index)) for index in range(len(shape.columns))]
    return list(zip(*columns, strict=True))


def _values(array: pa.Array) -> list[Any]:
    # pyarrow looks for pandas with every timestamp, which takes longer than all else here.
    return python_values(array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array)


def changes_of(batch: ChangeBatch, file: int, of_xa: Set[int] = frozenset()) -> Iterator[Change]:
    offsets = batch.transactions.position.tolist()
    named = {
        offset: Transaction(Position(file, offset), batch.transactions.gtid(index), offset in of_xa) for index, offset in enumerate(offsets)
    }
    assert len(named) == len(offsets), "two transactions end at one place"
    key = key_of(batch.table)
    operations = batch.rows.column("_op").to_pylist()
    positions = batch.rows.column("_position").to_pylist()
    for operation, position, row in zip(operations, positions, rows_of(batch.rows, batch.table), strict=True):
        yield Change(operation, key(row), row, named[position])


def _adopt(folded: Folded, copy: Copy) -> None:
    assert copy.shape.fingerprint() == folded.shape.fingerprint(), "the log tells another shape than the catalogue"
    key = key_of(copy.shape)
    for row in copy.rows:
        assert key(row) not in folded.rows, "a row is in two copies"
        folded.rows[key(row)] = row


def _apply(folded: Folded, change: Change) -> bool:
    """Bring a change in. Whether it fits what it found."""
    found = folded.rows.get(change.key)
    if change.operation in (INSERT, AFTER):
        folded.rows[change.key] = change.row
        return found is None
    folded.rows.pop(change.key, None)
    return found == change.row


def _alter(folded: Folded, change: AlterColumns) -> None:
    """Bring stored rows into their new shape: what is renamed moves, what is added holds what the statement says."""
    assert change.before.fingerprint() == folded.shape.fingerprint(), "a statement finds another shape than the one before it left"
    old = {new: name for name, new in change.renamed.items()}
    places = {column.name: index for index, column in enumerate(folded.shape.columns)}
    steps: list[tuple[int, Any]] = []
    for column in change.after.columns:
        if column.name in change.filled:
            steps.append((-1, canonical(column, change.filled[column.name])))
        else:
            steps.append((places[old.get(column.name, column.name)], None))
    key = key_of(change.after)
    rows = (tuple(row[place] if place >= 0 else value for place, value in steps) for row in folded.rows.values())
    folded.rows = {key(row): row for row in rows}
    folded.shape = change.after


def canonical(column: MySqlColumn, printed: str | bytes | None) -> Any:
    """What SELECT prints, as the value that a row holds."""
    kind = column.arrow(OPTIONS)
    if printed is None or column.base in TEXT_TYPES | BINARY_TYPES | {"enum", "bit"}:
        return printed
    if column.base == "set":
        assert isinstance(printed, str)
        return printed.split(",") if printed else []
    return _values(pa.array([printed]).cast(kind))[0]


def difference(one: Folded, other: Folded) -> str:
    """A few words on how two tables differ, without their values; empty where they don't."""
    words = []
    if one.shape.fingerprint() != other.shape.fingerprint():
        words.append("other columns")
    lacking, more = other.rows.keys() - one.rows.keys(), one.rows.keys() - other.rows.keys()
    unequal = [key for key in one.rows.keys() & other.rows.keys() if one.rows[key] != other.rows[key]]
    for count, what in ((len(lacking), "rows lost"), (len(more), "rows too many"), (len(unequal), "rows differ")):
        if count:
            words.append(f"{count} {what}")
    return ", ".join(words)


def _sorted_as_by_python(column: MySqlColumn) -> bool:
    """Whether Python's order of this column's values is the server's: then keys need not be compared by the database."""
    if column.base in INTEGER_BITS or column.base in ("decimal", "year", "binary", "varbinary", "bit"):
        return (column.precision or 0) <= DECIMAL_DIGITS_MAX
    if column.base in ("date", "datetime", "timestamp", "time"):
        return True
    # A binary collation orders by code point, and UTF-8 keeps that order; PAD SPACE makes trailing blanks compare oddly.
    return column.base in ("char", "varchar") and column.collation in (
        "utf8mb4_0900_bin",
        "utf8mb4_nopad_bin",
        "utf8mb3_nopad_bin",
    )
