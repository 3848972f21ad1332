"""What runs in Spark's Python workers: the read of a chunk, and one share of an epoch's log.

Laws:
- A task knows its plan and nothing else; it never waits for the coordinator. Each run has a nonce of its own, which is in the names
  of its files and in its answer.
- Rows of a transaction are written by one task, in order: of equal `_seq` the writer keeps the last.
- Before it does anything a task looks whether it sees the driver's store.
- What is read is written at once: no row passes the JVM.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.columnar.arena import ArenaPool, Longs
from snowmelt.commit.checks import Message, StagedFile
from snowmelt.databases.mysql.bounds import Bound, Chunk
from snowmelt.databases.mysql.bounds import Extent as KeyExtent
from snowmelt.databases.mysql.columns import MySqlTable, TypeOptions
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session
from snowmelt.databases.mysql.decode import ABSENT, ChangeBatch, LogReader, SchemaChanged
from snowmelt.databases.mysql.marks import Mark, PositionMark, covers
from snowmelt.databases.mysql.reads import read_chunk, read_extent
from snowmelt.databases.mysql.rows import DELETE as DELETED
from snowmelt.databases.mysql.rows import UPDATE_BEFORE
from snowmelt.databases.mysql.segments import read_segment
from snowmelt.engine.failpoints import CHUNK_READ, FILES_STAGED, reach
from snowmelt.engine.keys import Mask, in_span, outside, pack_bound
from snowmelt.errors import SourceDrift
from snowmelt.lakes.paimon import DELETE, INSERT, KIND, SEQUENCE, PaimonLake, Staged, Writer
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.retention import Sealed
from snowmelt.source.facts import OUTSIDE, Extent, Launched
from snowmelt.source.planning import Adopting, Rule
from snowmelt.store.generations import check_shared
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task works: the same for every task of a driver. Credentials are references."""

    generation: int
    nonce: str
    state: str
    warehouse: str
    user: str
    source: MySqlOptions
    server: Server
    options: TypeOptions

    def check(self) -> None:
        check_shared(open_store(self.state), self.generation, self.nonce)

    def lake(self) -> PaimonLake:
        return PaimonLake(self.warehouse, user=self.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    launch: Launched
    table: MySqlTable
    target: str
    low: Bound | None
    high: Bound | None
    whole: bool
    """All of the table in one read: keys that Python can't order are not told apart by chunks."""
    visible: Position | None
    """The same as `launch.visible`, where the server proved it by a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAnswer:
    launch: Launched
    nonce: str
    mark: Mark
    staged: Staged
    extent: Extent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    epoch: int
    writer: int
    after: int
    upto: int
    segments: tuple[Sealed, ...]
    rules: Mapping[TableId, Rule]
    marks: Mapping[str, Mark]
    """Of the reads that are being adopted, by nonce."""
    tables: Mapping[TableId, MySqlTable]
    targets: Mapping[TableId, str]
    lower_case_names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer:
    message: Message
    messages: Mapping[str, tuple[bytes, ...]]
    """What the lake wants to know of the files, by lake table."""
    rows: int


def run_chunk(place: Place, task: ChunkTask) -> ChunkAnswer:
    """Read a chunk exactly and stage its rows."""
    place.check()
    nonce = uuid.uuid4().hex
    launch, era = task.launch, task.launch.era
    with Session(place.source) as session:
        if launch.ordinal == OUTSIDE and not task.whole:
            ends, mark = read_extent(session, task.table, identity=place.server.identity, era=era)
            return ChunkAnswer(launch=launch, nonce=nonce, mark=mark, staged=Staged((), (), 0), extent=_extent(ends))
        writer = place.lake().writer(task.target, f"sm-{place.generation}-c{launch.job}-{nonce}-")
        chunk = Chunk(task.table.id, 0 if launch.ordinal <= 1 else launch.ordinal - 1, task.low, task.high)
        with read_chunk(
            session, task.table, chunk, place.options, identity=place.server.identity, era=era, visible=task.visible, pool=ArenaPool()
        ) as read:
            for batch in read.batches():
                seq = np.full(batch.num_rows, sequence.of_chunk(launch.visible), np.int64)
                writer.write(_row(batch, task.table, place.options, seq, np.full(batch.num_rows, INSERT, np.int8)))
                reach(CHUNK_READ)
        return ChunkAnswer(launch=launch, nonce=nonce, mark=read.mark, staged=writer.finish(launch.job), extent=None)


def _extent(ends: KeyExtent) -> Extent | None:
    if ends.least is None or ends.greatest is None:
        return None
    return Extent(pack_bound(ends.least), pack_bound(ends.greatest))


def run_log(place: Place, task: LogTask) -> LogAnswer:
    """Decode a share of the log, keep what the rules emit, and stage it."""
    place.check()
    nonce = uuid.uuid4().hex
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    for table in task.tables.values():
        history.put(table.id, Position(0, 0), table)
    reader = LogReader(
        flavour=place.server.flavour,
        version=place.server.version,
        schemas=history,
        captured=task.tables.__contains__,
        lower_case_names=task.lower_case_names,
        options=place.options,
    )
    lake = place.lake()
    writers: dict[str, Writer] = {}
    rows = 0
    for sealed in task.segments:
        segment = read_segment(Path(sealed.name))
        for item in reader.read_segment(segment):
            if isinstance(item, SchemaChanged):
                _refuse(item, task, sealed)
                continue
            rule = task.rules.get(item.table.id)
            if rule is None:
                continue
            offsets = item.rows.column("_position").to_numpy() - sealed.begins.offset + sealed.first
            kept = _emitted(task, rule, item, offsets) & (offsets > task.after) & (offsets <= task.upto)
            batch = _changes(item, place.options, kept, offsets)
            if batch.num_rows:
                target = task.targets[item.table.id]
                if target not in writers:
                    writers[target] = lake.writer(target, f"sm-{place.generation}-e{task.epoch}-{nonce}-")
                writers[target].write(batch)
                rows += batch.num_rows
    staged = {target: writer.finish(task.epoch) for target, writer in writers.items()}
    if staged:
        reach(FILES_STAGED)
    files = tuple(StagedFile(target, name, task.after) for target, one in staged.items() for name in one.files)
    message = Message(place.generation, task.epoch, task.writer, nonce, ((task.writer, nonce),), files)
    return LogAnswer(message=message, messages={target: one.messages for target, one in staged.items()}, rows=rows)


def _refuse(item: SchemaChanged, task: LogTask, sealed: Sealed) -> None:
    """Until epochs can carry statements a change of a captured table stops the pipeline, with its own words."""
    offset = sealed.first + item.position.offset - sealed.begins.offset
    if task.after < offset <= task.upto and item.changes:
        raise SourceDrift(
            "a statement changed a captured table",
            detail=f"{item.statement[:200]!r} at {item.position}",
            hint="schema changes are not carried into the lake yet; snapshot the table again into a new state",
        )


def _emitted(task: LogTask, rule: Rule, item: ChangeBatch, offsets: Longs) -> Mask:
    """The adoption rule (`source.filter.emits`), for all rows of a batch at once."""
    later = np.asarray(offsets > rule.after)
    if rule.live and not rule.adopting:
        return later
    keys = _keys(item)
    if rule.extent is None:
        adopted = np.full(len(offsets), rule.outside or rule.live)
    else:
        adopted = outside(keys, rule.extent) & rule.outside
        for span in rule.adopted:
            adopted |= in_span(keys, span, rule.extent)
        if rule.live:
            adopted[:] = True
    kept: Mask = later & adopted
    for adopting in rule.adopting:
        extent = rule.extent or adopting.reading.extent
        if adopting.span is None:
            mine = outside(keys, extent) if extent is not None else np.full(len(offsets), True)
        else:
            mine = in_span(keys, adopting.span, extent)
        if adopting.replaces:
            kept[mine] = offsets[mine] > min(adopting.visible, rule.after)
        else:
            kept[mine] = ((offsets > adopting.visible) & ~_covered(task.marks[adopting.reading.nonce], adopting, item, offsets))[mine]
    return kept


def _covered(mark: Mark, adopting: Adopting, item: ChangeBatch, offsets: Longs) -> Mask:
    """Of which rows the read contains the change."""
    if isinstance(mark, PositionMark):
        return np.asarray(offsets <= adopting.reading.high)
    # GTIDs are asked one by one, and only of transactions that the read may contain.
    positions = item.rows.column("_position").to_numpy()
    result = np.zeros(len(offsets), np.bool_)
    for index in range(len(item.transactions)):
        position = int(item.transactions.position[index])
        of_this = positions == position
        if of_this.any() and offsets[of_this][0] <= adopting.reading.high:
            # Where it lies is settled by the relay's offsets; what is left to ask is its name.
            result[of_this] = covers(mark, position=mark.high, gtid=item.transactions.gtid(index))
    return result


def _keys(item: ChangeBatch) -> Longs | None:
    """The keys as integers, where the table is told apart by chunks at all."""
    if len(item.table.key) != 1:
        return None
    column = item.rows.column(item.table.key[0])
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.int64(), safe=False)
    return column.to_numpy().astype(np.int64) if pa.types.is_integer(column.type) else None


def _changes(item: ChangeBatch, options: TypeOptions, kept: Mask, offsets: Longs) -> pa.RecordBatch:
    """What is kept, as the lake's rows: a before-image is a delete of its key, unless the after-image has the same key."""
    if ABSENT in item.rows.schema.names:
        raise SourceDrift(
            "the log holds partial rows", detail=str(item.table.id), hint="set binlog_row_image to FULL and snapshot the table again"
        )
    ops = item.rows.column("_op").to_numpy()
    before = ops == UPDATE_BEFORE
    if before.any():
        kept = kept & ~(before & _same_key_as_next(item))
    rows = item.rows.filter(pa.array(kept)) if not kept.all() else item.rows
    kinds = np.where(before | (ops == DELETED), np.int8(DELETE), np.int8(INSERT))[kept]
    return _row(rows, item.table, options, sequence.of_change(offsets[kept]), kinds)


def _same_key_as_next(item: ChangeBatch) -> Mask:
    """Whether a row has the key of the row behind it: of a before-image that is its after-image."""
    same = np.full(item.rows.num_rows, True)
    same[-1:] = False
    for name in item.table.key:
        column = item.rows.column(name)
        equal = pc.equal(column.slice(0, len(column) - 1), column.slice(1))
        same[:-1] &= np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), np.bool_)
    return same


def _row(batch: pa.RecordBatch, table: MySqlTable, options: TypeOptions, seq: Longs, kinds: npt.NDArray[np.int8]) -> pa.RecordBatch:
    schema = lake_schema(table, options)
    arrays: list[Any] = [batch.column(field.name) for field in schema]
    fields = [*schema, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8())]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(seq, pa.int64()), pa.array(kinds, pa.int8())], schema=pa.schema(fields))


def lake_schema(table: MySqlTable, options: TypeOptions) -> pa.Schema:
    """The lake's columns. All but the key can be NULL there: a delete has no values."""
    return pa.schema([pa.field(field.name, field.type, nullable=field.name not in table.key) for field in table.arrow_schema(options)])


Run = Callable[[Place, Any], Any]


def each(place: Place, tasks: list[Any], run: Run) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark maps over the numbers of tasks. Answers come back pickled, through Spark and never through the store."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                answer = pickle.dumps(run(place, tasks[index]))
                yield pa.RecordBatch.from_arrays([pa.array([answer], pa.binary())], names=["answer"])

    return work
