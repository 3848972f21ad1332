"""MySQL and MariaDB by the contract of databases. The other modules of this package do the work."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

import pyarrow as pa

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract.capture import CapturePlan
from snowmelt.databases.contract.changes import Changes
from snowmelt.databases.contract.keys import Keys, Mask
from snowmelt.databases.contract.log import KnownTables, SegmentMeaning
from snowmelt.databases.contract.tables import Catalogue, Inspected, KeyRange, NextBounds, ReadMark, TableShape, Wanted
from snowmelt.databases.mysql import catalog, placed
from snowmelt.databases.mysql.changes import StretchReader, covered
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.failover import find_place, with_transactions
from snowmelt.databases.mysql.gtid import of_words
from snowmelt.databases.mysql.log.capture import Capture, CaptureHooks, ExpectedServer
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.log.meaning import read_meaning
from snowmelt.databases.mysql.preflight import Cascades, PreflightOptions, inspect, prepared_transactions, unfit_tables, why_foreign
from snowmelt.databases.mysql.read.bounds import Chunk, plan_chunks
from snowmelt.databases.mysql.read.bounds import Extent as Ends
from snowmelt.databases.mysql.read.keys import chunked, keys_of, pack_bound, unpack_bound
from snowmelt.databases.mysql.read.marks import Mark
from snowmelt.databases.mysql.read.parts import ChunkReading
from snowmelt.databases.mysql.read.reads import LOCK_WAIT_S, log_end, read_extent
from snowmelt.databases.mysql.read.resultset import ROW_BYTES_MAX
from snowmelt.databases.mysql.read.shown import ShownGtids, ShownPlace, ask_shown
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions, own
from snowmelt.databases.mysql.verify.comparing import MySqlComparing
from snowmelt.errors import SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import KeyEnds
from snowmelt.relay.limits import Limits
from snowmelt.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class MySql:
    """A MySQL or MariaDB server. Implements `contract.Database`; a value that tasks get pickled."""

    kind: ClassVar[str] = "mysql"
    system_databases: ClassVar[frozenset[str]] = catalog.SYSTEM_DATABASES
    row_bytes_max: ClassVar[int] = ROW_BYTES_MAX

    options: MySqlOptions = field(default_factory=MySqlOptions)
    types: TypeOptions = field(default_factory=TypeOptions)
    cascades: Cascades = Cascades.REFUSE
    """What to do with a table whose rows a foreign key changes without row events."""
    server_id: int | None = None
    """The capture's server_id; None: a number that follows from the pipeline's name."""

    @property
    def refuse_cascades(self) -> bool:
        return self.cascades is Cascades.REFUSE

    # ---- shapes

    def shape_of(self, record: bytes) -> MySqlTable:
        return MySqlTable.of_record(record)

    def schema_of(self, table: TableShape) -> pa.Schema:
        return own(table).arrow_schema(self.types)

    def why_foreign(self, table: TableShape) -> str:
        return why_foreign(own(table))

    def chunked(self, table: TableShape) -> bool:
        return chunked(own(table))

    def keys(self, table: TableShape, rows: pa.RecordBatch) -> Keys | None:
        return keys_of(own(table), rows)

    # ---- the server and its catalogue

    def connect(self) -> str:
        with Session(self.options) as session:
            return session.server.identity

    def inspect(self, wanted: Wanted, changelog: Wanted, *, begun: bool) -> Inspected:
        with Session(self.options) as session:
            ignore_case = catalog.ignores_case(session)
            tables = catalog.read_tables(session, wanted(ignore_case))
            is_changelog = changelog(ignore_case)
            exact = frozenset(table for table in tables if is_changelog(table))
            intent = PreflightOptions(types=self.types, cascades=self.cascades, begun=begun, changelog=exact)
            return Inspected(
                server=str(session.server),
                identity=session.server.identity,
                ignores_case=ignore_case,
                tables=tables,
                findings=tuple(inspect(session, tables.values(), intent)),
            )

    def unfit(self, tables: Iterable[TableShape]) -> Mapping[TableId, str]:
        with Session(self.options) as session:
            return unfit_tables(session, map(own, tables), PreflightOptions(types=self.types, cascades=self.cascades))

    def read_catalogue(self, wanted: Wanted, *, era: int) -> Catalogue:
        return placed.read_catalogue(self.options, wanted, era=era)

    def log_end(self, *, era: int) -> Position:
        with Session(self.options) as session:
            return log_end(session, era=era)

    def clock_ahead_ms(self) -> int:
        with Session(self.options) as session:
            return placed.clock_ahead_ms(session)

    def compare(self, *, era: int) -> MySqlComparing:
        return MySqlComparing.begin(self.options, self.types, era=era)

    # ---- the log

    def read_meaning(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        return read_meaning(segment, first, known, refuse_cascades=self.refuse_cascades)

    def log_reader(self, tables: Collection[TableShape], marks: Iterable[ReadMark], limits: Limits) -> StretchReader:
        return StretchReader(tables, marks, self.types, limits)

    def covered(self, mark: ReadMark, changes: Changes, offsets: Longs, *, high: int, two_phase: Longs) -> Mask:
        return covered(mark, changes, offsets, high=high, two_phase=two_phase)

    def file_name(self, position: Position, like: str) -> str:
        return str(replace(LogFile.parse(like), number=position.file))

    def capture(self, plan: CapturePlan) -> Capture:
        return Capture(
            self.options,
            plan.folder,
            start=plan.start,
            server_id=self.server_id or server_id_of(plan.name),
            limits=plan.limits,
            expected=ExpectedServer(plan.identity, plan.failover),
            hooks=CaptureHooks(sealed=plan.sealed, located=plan.located, flow=plan.flow),
        )

    def with_transactions(self, position: Position, log: str) -> Position:
        with Session(self.options) as session:
            return with_transactions(session, replace(LogFile.parse(log), number=position.file), position)

    def place_after(self, last: Segment, *, identity: str, era: int) -> Position:
        captured = of_words(last.end.transactions)
        if captured is None:
            raise SourceDrift("another server answers, and what was captured has no GTIDs", detail=identity)
        with Session(self.options) as session:
            if session.server.identity != identity:
                raise Unavailable("another server answers than a moment ago", detail=session.server.identity)
            return find_place(session, captured, era=era)

    def prepared_transactions(self) -> list[str]:
        with Session(self.options) as session:
            return prepared_transactions(session) or []

    # ---- exact reads

    def newest_visible(self, table: TableShape, *, era: int) -> ShownPlace | ShownGtids:
        return ask_shown(self.options, own(table), era)

    def find_bounds(
        self, table: TableShape, extent: KeyEnds, *, after: bytes | None, bytes_max: int, rows_max: int, bounds_max: int
    ) -> NextBounds:
        shape, ends = own(table), Ends(unpack_bound(extent.least), unpack_bound(extent.greatest))
        before = None if after is None else Chunk(shape.id, 0, None, unpack_bound(after))
        with Session(self.options) as session:
            # A pending ALTER would block this query, and with it the search for bounds of all tables.
            session.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
            rows = min(rows_max, max(1, bytes_max // max(1, catalog.row_bytes(session, shape.id))))
            chunks = list(islice(plan_chunks(session, shape, ends, rows_per_chunk=rows, after=before), bounds_max))
        highs = [chunk.high for chunk in chunks if chunk.high is not None]
        return NextBounds(tuple(map(pack_bound, highs)), complete=not highs or highs[-1] == ends.greatest)

    def read_ends(self, table: TableShape, *, identity: str, era: int, to_a_change: bool) -> tuple[KeyEnds | None, Mark]:
        with Session(self.options) as session:
            ends, mark = read_extent(session, own(table), identity=identity, era=era, to_a_change=to_a_change)
        if ends.least is None or ends.greatest is None:
            return None, mark
        return KeyEnds(pack_bound(ends.least), pack_bound(ends.greatest)), mark

    def read(
        self, table: TableShape, keys: KeyRange, *, identity: str, era: int, visible: Position | None, to_a_change: bool, in_parts: bool
    ) -> ChunkReading:
        shape = own(table)
        low = None if keys.low is None else unpack_bound(keys.low)
        high = None if keys.high is None else unpack_bound(keys.high)
        return ChunkReading(
            self.options,
            shape,
            Chunk(shape.id, 0 if keys.first else 1, low, high),
            self.types,
            in_parts=in_parts,
            identity=identity,
            era=era,
            visible=visible,
            to_a_change=to_a_change,
        )


def server_id_of(name: str) -> int:
    """The server_id of a pipeline's capture. It is stable, so that a driver that takes over ends the connection of the driver before it."""
    named = uuid.uuid5(uuid.NAMESPACE_URL, f"snowmelt:{name}").bytes[:4]
    return (int.from_bytes(named, "big") >> 1) | 1
