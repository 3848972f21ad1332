"""All that snowmelt asks of a database, in the shortest form that is right, for the small server of the tests (`server`). Read this before
you add a database. The parts are those of the contract (`databases/contract`):

    shapes     what a table is like
    reads      exact reads; the mark of each tells for any change of the log whether the read contains it
    log        capture into segments, and changes of rows out of them
    database   the value that the engine gets, and the section of pipeline.yaml that makes it
    comparing  rows as hashes, for `verify`: in a module beside this one (`comparing`)

The server makes some things easy that are most of the work elsewhere:

- What it shows is the fold of its log, so a read's mark is the end of the log that was folded. Other servers log a commit before they show
  it: there the end of the log never says what is visible, and a mark is only what the server tells of its snapshot.
- Its log is a file that can be read again from anywhere. A connection breaks inside a transaction, and a server purges its log.
- A statement in its log names the whole new table. A text has to be understood, against the shapes before it.
- It has no prepared transactions, and no names of transactions by which another server could continue its log.
- Its segments and tables fit in memory. The contract says what may be held at once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract.capture import CapturePlan
from snowmelt.databases.contract.changes import DELETED, INSERTED, SYSTEM_FIELDS, UPDATE_AFTER, UPDATE_BEFORE, Changes, LogStretch
from snowmelt.databases.contract.findings import NO_KEY, Level, TableFinding
from snowmelt.databases.contract.keys import IntegerKeys, Mask, pack_integer
from snowmelt.databases.contract.log import KnownTables, SegmentMeaning, TableEffect
from snowmelt.databases.contract.section import SourceSection
from snowmelt.databases.contract.tables import Catalogue, Inspected, KeyRange, NextBounds, ReadMark, TableShape, Wanted
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable, instance, present
from snowmelt.model.numbers import LogOffset
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import KeyEnds
from snowmelt.relay.flow import Flow
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import Cut, Effect
from snowmelt.sections.values import File, Pattern, Patterns
from snowmelt.segments import Segment, SegmentCut, SegmentWriter, remove_torn
from tests.kit.small.comparing import SmallComparing
from tests.kit.small.server import Definition, Row, identity_of, log_after, tables_of, transactions

KIND = "small"
"""Of its durable records, and the `type` of its section."""
TYPES = {"int": pa.int64(), "text": pa.string()}
"""The one Arrow type of each column type. A read and the log must give equal values."""
BATCH_ROWS = 1_000
EFFECTS = {"CREATE": Effect.DROPS, "DROP": Effect.DROPS, "TRUNCATE": Effect.EMPTIES, "ALTER": Effect.RESHAPES}
"""A table that is created is gone as the lake knew it. It is found in the catalogue and copied."""

# ---- shapes


@dataclass(frozen=True, slots=True)
class SmallTable(Definition):
    """A definition as `contract.tables.TableShape`: equal shapes have equal records, and go to tasks pickled."""

    kind: ClassVar[str] = KIND

    def record(self) -> bytes:
        return self.text().encode()

    def key_of(self, row: Row) -> Row:
        return tuple(row[self.names.index(name)] for name in self.key)

    def packed_key(self, row: Row) -> bytes:
        return pack_integer(self.key_of(row)[0])

    def arrow(self, rows: Sequence[Row], more: Sequence[pa.Field] = ()) -> pa.RecordBatch:
        """Rows as each way in gives them, those of the log with more fields."""
        columns = [pa.field(name, TYPES[kind], nullable=name not in self.key) for name, kind in self.columns]
        schema = pa.schema([*columns, *more])
        if any(len(row) != len(schema) for row in rows):
            raise Corrupt("a row has other columns than its table", detail=str(self.id))
        return pa.RecordBatch.from_arrays([pa.array([row[at] for row in rows], one.type) for at, one in enumerate(schema)], schema=schema)


def own(table: TableShape) -> SmallTable:
    return instance(table, SmallTable, "a table of another database")


# ---- reads


@dataclass(frozen=True, slots=True)
class SmallMark:
    """All up to `high` is in the read, and nothing beyond."""

    high: Position

    def exact(self, *, two_phase: bool) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class SmallShown:
    """What every later read contains. A server that proves it by names of transactions has no `place`, and compares names in `shows`."""

    place: Position
    alone: bool = False
    hidden: frozenset[str] = frozenset()

    def shows(self, place: Position) -> bool:
        return place.era == self.place.era and place <= self.place


class SmallRead:
    """A read under way, in a task. Its first batch opens it, and what is wrong with it is told there."""

    def __init__(
        self, read: Callable[[], tuple[list[Row], SmallMark]], table: SmallTable, keys: KeyRange, visible: Position | None
    ) -> None:
        self._read, self._table, self._keys, self._visible = read, table, keys, visible
        self._mark: SmallMark | None = None

    @property
    def mark(self) -> SmallMark:
        return present(self._mark, "a read has no mark before its first batch")

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        rows, self._mark = self._read()
        if self._visible is not None and self._mark.high < self._visible:
            raise Unavailable("the server shows less than it did", detail=f"{self._mark.high}, not {self._visible}")
        wanted = [row for row in rows if self._wants(row)]
        for at in range(0, len(wanted), BATCH_ROWS):
            yield self._table.arrow(wanted[at : at + BATCH_ROWS])

    def _wants(self, row: Row) -> bool:
        low, high, first = self._keys.low, self._keys.high, self._keys.first
        if low is not None and (key := self._table.packed_key(row)) <= low and not (first and key == low):
            return False
        return high is None or self._table.packed_key(row) <= high


# ---- log


@dataclass(slots=True)
class SmallCapture:
    """The log as durable segments. What a crash left without an index is removed first; then capture continues after the last segment."""

    folder: Path
    plan: CapturePlan
    end: Position | None = None

    def run_owned(self, stop: threading.Event, last: Segment | None) -> None:
        remove_torn(self.plan.folder)
        if (identity := identity_of(self.folder)) != self.plan.identity:
            raise SourceDrift("another server answers", detail=identity, hint="name the server that the pipeline began with")
        self.end = None if last is None else last.end
        if self.plan.located is not None:
            self.plan.located(self.end or self.plan.start)
        while not stop.wait(self.plan.limits.seal_ms / 1000):
            while (segment := self._next(last)) is not None:
                last, self.end = segment, segment.end
                self.plan.sealed(segment)

    def _next(self, last: Segment | None) -> Segment | None:
        """The next segment, durable on return; None while there is nothing to capture, or no room for it."""
        if (flow := self.plan.flow(0)) is not Flow.ON:
            if flow is Flow.FULL:
                raise InvalidConfig("the captured log has reached its cap", hint="raise disk_bytes_max of the relay")
            return None
        start = self.plan.start if last is None else last.end
        log = log_after(self.folder, start.offset)
        all_of_it = [(end, one) for end, one in transactions(log, start.offset)]
        # It ends with a transaction, and has one whatever its limit.
        taken = [one for one in all_of_it if one[0] - start.offset <= self.plan.limits.segment_bytes] or all_of_it[:1]
        if not taken:
            return None
        cuts = [SegmentCut(end - start.offset, end, one["time_us"] // 1_000_000, "commit") for end, one in taken]
        # An epoch ends before a statement or after it, so there is a cut on both sides of each.
        needed = [cut for cut, two in zip(cuts, pairwise(taken), strict=False) if any("statement" in one for _, one in two)]
        segment = Segment(
            folder=self.plan.folder, number=1 if last is None else last.number + 1,
            database=KIND, identity=self.plan.identity, log="", file_begins=0, own="",
            start=start, end=replace(start, offset=cuts[-1].offset), follows=self.end,
            data_bytes=cuts[-1].at, data_crc32=zlib.crc32(log[: cuts[-1].at]),
            first_time_s=cuts[0].time_s, last_time_s=cuts[-1].time_s, cuts=(*needed, cuts[-1]),
        )  # fmt: skip
        writer = SegmentWriter(self.plan.folder)
        writer.write(segment.number, memoryview(log[: segment.data_bytes]))
        writer.seal(segment)
        return segment


@dataclass(frozen=True, slots=True)
class SmallReader:
    """Changes of some tables out of stretches of the log."""

    tables: Mapping[TableId, SmallTable]
    rows_max: int

    def read(self, stretch: LogStretch) -> Generator[Changes, None, None]:
        made: dict[TableId, list[Row]] = {}
        for end, transaction in transactions(bytes(stretch.log.whole(0, stretch.log.size)), stretch.part.start):
            for event, (database, name, old, new) in enumerate(transaction.get("rows", ())):
                table = TableId(database, name)
                if table not in self.tables or end <= stretch.low(table):
                    continue
                rows = made.setdefault(table, [])
                if old is not None:
                    rows.append((*old, DELETED if new is None else UPDATE_BEFORE, end, event, transaction["time_us"]))
                if new is not None:
                    rows.append((*new, INSERTED if old is None else UPDATE_AFTER, end, event, transaction["time_us"]))
                if len(rows) >= self.rows_max:
                    yield self._changes(table, made.pop(table))
        for table, rows in made.items():
            yield self._changes(table, rows)

    def _changes(self, table: TableId, rows: Sequence[Row]) -> Changes:
        # `covered` needs no more of a transaction than where it ends, which each row has.
        return Changes(table=self.tables[table], rows=self.tables[table].arrow(rows, SYSTEM_FIELDS), transactions=None)


# ---- database


@dataclass(frozen=True, slots=True)
class SmallDatabase:
    """Implements `contract.Database`. A value: each method opens what it needs, and tasks get it pickled."""

    kind: ClassVar[str] = KIND
    system_databases: ClassVar[frozenset[str]] = frozenset()
    row_bytes_max: ClassVar[int] = 1 << 20
    folder: Path

    def tables(self, wanted: TablePredicate, *, era: int) -> tuple[dict[TableId, SmallTable], Position]:
        """The wanted tables at one moment, and the place of the log that this is."""
        tables, end = tables_of(self.folder)
        return {name: SmallTable.of_text(tables[name].definition.text()) for name in sorted(tables) if wanted(name)}, Position(0, end, era)

    def rows_of(self, table: SmallTable, *, identity: str, era: int) -> tuple[list[Row], SmallMark]:
        """An exact read of all rows, of the table and the server that are expected."""
        if self.connect() != identity:
            raise Unavailable("another server answers", detail=self.connect())
        tables, end = tables_of(self.folder)
        if table.id not in tables or tables[table.id].definition.text() != table.text():
            raise SourceDrift("a table does not have the shape that was expected", detail=str(table.id))
        rows = list(tables[table.id].rows.elements())
        if any(len(repr(row)) > self.row_bytes_max for row in rows):
            raise table.id.stuck("a row is longer than a read takes", detail=f"{self.row_bytes_max} bytes", hint="exclude the table")
        return rows, SmallMark(Position(0, end, era))

    # Shapes: no I/O.

    def shape_of(self, record: bytes) -> SmallTable:
        try:
            return SmallTable.of_text(record)
        except (ValueError, TypeError):
            raise Corrupt("the record of a table can't be read") from None

    def schema_of(self, table: TableShape) -> pa.Schema:
        return own(table).arrow([]).schema

    def why_foreign(self, table: TableShape) -> str:
        return ""

    def chunked(self, table: TableShape) -> bool:
        """Whether tasks order its keys as the server does. Texts they may order otherwise."""
        return [kind for name, kind in own(table).columns if name in table.key] == ["int"]

    def keys(self, table: TableShape, rows: pa.RecordBatch) -> IntegerKeys | None:
        return IntegerKeys(rows.column(table.key[0]).to_numpy()) if self.chunked(table) else None

    # The server and its catalogue.

    def connect(self) -> str:
        return identity_of(self.folder)

    def inspect(self, wanted: Wanted, changelog: Wanted, *, begun: bool) -> Inspected:
        tables, _ = self.tables(wanted(False), era=0)
        keyless = tuple(name for name, table in tables.items() if not table.key)
        findings = (TableFinding(NO_KEY, Level.WARNING, "tables without a key can only be appended to", "give them one", keyless),)
        looked = Inspected(server="small", identity=self.connect(), ignores_case=False, tables=tables, findings=findings)
        return looked if keyless else replace(looked, findings=())

    def unfit(self, tables: Iterable[TableShape]) -> Mapping[TableId, str]:
        return {}

    def read_catalogue(self, wanted: Wanted, *, era: int) -> Catalogue:
        """Other servers tell places and tables one after the other: `began`, the tables, the time, `ended`."""
        time_ms = time.time_ns() // 1_000_000
        tables, end = self.tables(wanted(False), era=era)
        return Catalogue(
            tables=tables, began=end, ended=end, time_ms=time_ms, ahead_ms=0,
            identity=self.connect(), log="", ignores_case=False, lower_case_names=False,
        )  # fmt: skip

    def log_end(self, *, era: int) -> Position:
        return Position(0, len(log_after(self.folder, 0)), era)

    def clock_ahead_ms(self) -> int:
        return 0

    # Exact reads.

    def newest_visible(self, table: TableShape, *, era: int) -> SmallShown:
        return SmallShown(self.log_end(era=era))

    def find_bounds(
        self, table: TableShape, extent: KeyEnds, *, after: bytes | None, bytes_max: int, rows_max: int, bounds_max: int
    ) -> NextBounds:
        rows, _ = self.rows_of(own(table), identity=self.connect(), era=0)
        low = extent.least if after is None else after
        packed = sorted(key for key in map(own(table).packed_key, rows) if low < key < extent.greatest)
        size = max(1, min(rows_max, bytes_max // max((len(repr(row)) for row in rows), default=1)))
        # The last bound is the greatest key of the read that told it, whether that row is still there or not.
        highs = (*packed[size - 1 :: size], extent.greatest)
        return NextBounds(highs[:bounds_max], complete=len(highs) <= bounds_max)

    def read_ends(self, table: TableShape, *, identity: str, era: int, to_a_change: bool) -> tuple[KeyEnds | None, SmallMark]:
        rows, mark = self.rows_of(own(table), identity=identity, era=era)
        packed = [own(table).packed_key(row) for row in rows]
        return (KeyEnds(min(packed), max(packed)) if packed else None), mark

    def read(
        self, table: TableShape, keys: KeyRange, *, identity: str, era: int, visible: Position | None, to_a_change: bool, in_parts: bool
    ) -> SmallRead:
        return SmallRead(lambda: self.rows_of(own(table), identity=identity, era=era), own(table), keys, visible)

    # The log.

    def capture(self, plan: CapturePlan) -> SmallCapture:
        return SmallCapture(self.folder, plan)

    def read_meaning(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        """A place of the log is, on the number line, as far from `first` as it is from where the segment starts."""
        shift, there, effects = first - segment.start.offset, set(known.shapes), list[TableEffect]()
        for end, one in transactions(bytes(segment.bytes()), segment.start.offset):
            if "statement" not in one or not known.captured((shape := self.shape_of(one["definition"])).id):
                continue
            # Of one that the lake does not have there is nothing to empty or to reshape.
            effect = EFFECTS[one["statement"]] if shape.id in there else Effect.DROPS
            there -= {shape.id} if effect is Effect.DROPS else set()
            now = None if effect is Effect.DROPS else shape
            effects.append(TableEffect(offset=LogOffset(end + shift), table=shape.id, effect=effect, shape=now, statement=one["statement"]))
        cuts = tuple(Cut(LogOffset(cut.offset + shift), cut.time_s * 1000) for cut in segment.cuts)
        return SegmentMeaning(cuts, tuple(effects), phases=())

    def log_reader(self, tables: Collection[TableShape], marks: Iterable[ReadMark], limits: Limits) -> SmallReader:
        return SmallReader({table.id: own(table) for table in tables}, limits.rows_per_batch)

    def covered(self, mark: ReadMark, changes: Changes, offsets: Longs, *, high: LogOffset, two_phase: Longs) -> Mask:
        return np.asarray(offsets <= high)

    def file_name(self, position: Position, like: str) -> str:
        return ""

    def with_transactions(self, position: Position, log: str) -> Position:
        return position

    def place_after(self, last: Segment, *, identity: str, era: int) -> Position:
        raise SourceDrift("another server answers, and transactions have no names", detail=identity)

    def prepared_transactions(self) -> Sequence[str]:
        return ()

    def compare(self, *, era: int) -> SmallComparing:
        return SmallComparing(
            self.folder,
            lambda wanted: self.tables(wanted, era=era)[0],
            lambda table: self.rows_of(table, identity=self.connect(), era=era),
        )


class SmallSource(SourceSection):
    """Its keys of pipeline.yaml. `config.registry` names the section of each `type`."""

    type: Literal["small"]
    folder: File
    tables: Patterns
    exclude: Annotated[tuple[Pattern, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = ()

    def database(self) -> SmallDatabase:
        return SmallDatabase(Path(self.folder))
