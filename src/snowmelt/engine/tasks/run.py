"""What runs in Spark's Python workers: the read of a chunk, and one share of an epoch's log.

Laws:
- A task knows its plan and nothing else; it never waits for the coordinator. Each run has a nonce of its own, which is in the names
  of its files and in its answer.
- Rows of a transaction are written by one task, in order: of equal `_seq` the writer keeps the last. One that is large is read by
  several tasks, each of which writes the rows of its own keys: no two files have the same `_seq` of one key. To read and to decode
  it more than once costs less than a shuffle would.
- Before it does anything a task looks whether it has the driver's packages and sees the driver's store and warehouse.
- What is read is written at once: no row passes the JVM. What of the log is kept waits for the writer in a pool (`stored_log`), then for a
  file among the rows of all tables (`writers`); the bounds of both, and of all else that a task holds, are in its place (`relay.limits`).
- An error of ours is an answer, too: the driver decides what follows from it, not Spark's retries. What a lake table can't take is told
  with the name of its source table (`TableStuck`), so that the others go on.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.columnar.arena import Longs
from snowmelt.commit.checks import Message, StagedFile
from snowmelt.commit.records import Staged
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session
from snowmelt.databases.mysql.log.decode import ChangeBatch, Held, LogReader, Part, SchemaChanged
from snowmelt.databases.mysql.log.events import Xid
from snowmelt.databases.mysql.log.segments import Segment
from snowmelt.databases.mysql.read.bounds import Bound, Chunk
from snowmelt.databases.mysql.read.bounds import Extent as KeyExtent
from snowmelt.databases.mysql.read.marks import Mark, PositionMark, covers
from snowmelt.databases.mysql.read.reads import read_extent
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.engine.failpoints import CHUNK_READ, FILES_STAGED, reach
from snowmelt.engine.log.prepared import take_back
from snowmelt.engine.log.reading import Filtered, StoredLog, read_group
from snowmelt.engine.log.storage import Opened, segments_of
from snowmelt.engine.tasks.chunk_reading import ChunkReading
from snowmelt.engine.tasks.keys import Mask, in_span, outside, pack_bound
from snowmelt.engine.tasks.rows import Ordinals, Sourced, change_rows, chunk_rows, truncate_row
from snowmelt.engine.tasks.workers import Packages, check_packages
from snowmelt.engine.tasks.writers import Writers, trouble_of
from snowmelt.errors import SnowmeltError, check
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.position import LogFile, Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.planning.epochs import Adopting, Rule
from snowmelt.planning.facts import OUTSIDE, Extent, Launched
from snowmelt.relay.limits import Limits
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Decided, Sealed
from snowmelt.sinks.contract import Sink
from snowmelt.sinks.registry import open_sink
from snowmelt.sinks.warehouse import Warehouse, check_marked
from snowmelt.store.generations import check_shared
from snowmelt.store.objects import Bucket, open_store

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a task works: the same for every task of a driver. Credentials are references."""

    generation: int
    nonce: str
    state: Path | Bucket
    warehouse: str | Warehouse
    user: str
    source: MySqlOptions
    server: Server
    log: LogFile
    """Some file of the server's log; others differ by their number."""
    options: TypeOptions
    limits: Limits = field(default_factory=Limits)
    fluss: FlussTarget | None = None
    """Instead of a warehouse."""
    packages: Packages = ()
    """Those of the driver."""
    mark: str = ""
    """Of the warehouse, where that is a folder: a bucket is the same from everywhere."""

    def check(self) -> None:
        check_packages(self.packages)
        if self.mark:
            check_marked(self.warehouse, self.mark)
        check_shared(open_store(self.state), self.generation, self.nonce)

    def lake(self) -> Sink:
        return open_sink(self.warehouse, self.fluss, user=self.user, state=self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    launch: Launched
    source: Sourced
    schema: int
    """The number of the shape that is expected."""
    low: Bound | None
    high: Bound | None
    whole: bool
    """All of the table in one read: keys that Python can't order are not told apart by chunks."""
    visible: Position | None
    """The same as `launch.visible`, where the server proved it by a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAnswer:
    launch: Launched
    schema: int
    nonce: str
    mark: Mark
    staged: Staged
    extent: Extent | None


@dataclass(frozen=True, slots=True)
class Emptied:
    """A change table is to say that its source was emptied at an offset."""

    table: TableId
    target: str
    at: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """The changes in (after, upto], which are two cuts."""

    epoch: int
    writer: int
    after: int
    upto: int
    segments: tuple[Sealed, ...]
    rules: Mapping[TableId, Rule]
    marks: Mapping[str, Mark]
    """Of the reads that are being adopted, by nonce."""
    tables: Mapping[TableId, Sourced]
    """Those of which something may be kept, with the shape that they have in all of the range."""
    committed: tuple[Decided, ...] = ()
    """Prepared transactions whose changes come with their COMMIT in the range."""
    emptied: tuple[Emptied, ...] = ()
    part: int = 0
    parts: int = 1
    """How many tasks have this range, and which of them this is: see `_mine`."""


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
    launch, source = task.launch, task.source
    exactly: dict[str, Any] = {"identity": place.server.identity, "era": launch.era, "to_a_change": not source.keyed}
    if launch.ordinal == OUTSIDE and not task.whole:
        with Session(place.source) as session:
            ends, mark = read_extent(session, source.table, **exactly)
        return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=mark, staged=Staged((), (), 0), extent=_extent(ends))
    writer = place.lake().writer(source.target, f"sm-{place.generation}-c{launch.job}-{nonce}-")
    chunk = Chunk(source.table.id, 0 if launch.ordinal <= 1 else launch.ordinal - 1, task.low, task.high)
    in_parts = source.keyed and not task.whole
    read = ChunkReading(place.source, source.table, chunk, place.options, in_parts=in_parts, visible=task.visible, **exactly)
    now = time.time_ns() // 1000
    for batch in read.batches():
        at = f"{replace(place.log, number=read.mark.high.file)}:{read.mark.high.offset}"
        writer.write(chunk_rows(batch, source, place.options, visible=launch.visible, place=at, time_us=now))
        reach(CHUNK_READ)
    staged = writer.finish()
    return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=read.mark, staged=staged, extent=None)


def _extent(ends: KeyExtent) -> Extent | None:
    if ends.least is None or ends.greatest is None:
        return None
    return Extent(pack_bound(ends.least), pack_bound(ends.greatest))


def run_log(place: Place, task: LogTask) -> LogAnswer:
    """Decode a share of the log, keep what the rules emit, and stage it."""
    place.check()
    nonce = uuid.uuid4().hex
    lake = place.lake()
    names = {source.target: name for name, source in task.tables.items()} | {one.target: one.table for one in task.emptied}
    prefix = f"sm-{place.generation}-e{task.epoch}-{nonce}-"
    writers = Writers(lambda target: lake.writer(target, prefix, at_once=True), names, held_bytes_max=place.limits.held_bytes)
    for one in task.emptied:
        with trouble_of(one.table):
            columns = lake.columns(one.target)
        writers.write(one.target, truncate_row(columns, at=one.at, time_us=one.time_ms * 1000))
    with Filtered(lambda: kept_rows(place, task), kept_bytes, Pool(place.limits.pool_bytes)) as kept:
        for target, batch in kept:
            writers.write(target, batch)
    staged = writers.finish()
    if staged:
        reach(FILES_STAGED)
    files = tuple(StagedFile(target, name, task.after) for target, one in staged.items() for name in one.files)
    message = Message(place.generation, task.epoch, task.writer, nonce, ((task.writer, nonce),), files)
    return LogAnswer(message=message, messages={target: one.messages for target, one in staged.items()}, rows=writers.rows)


def kept_bytes(kept: tuple[str, pa.RecordBatch]) -> int:
    """What of `kept_rows` counts against the pool."""
    return int(kept[1].get_total_buffer_size())


def kept_rows(place: Place, task: LogTask, *, prefilter: PreFilter | None = None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows that go to the lake, in the order of the log."""
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    for source in task.tables.values():
        history.put(source.table.id, Position(0, 0), source.table)
    reader = LogReader(
        flavour=place.server.flavour,
        version=place.server.version,
        schemas=history,
        captured=task.tables.__contains__,
        step_over_statements=True,
        names=not all(isinstance(mark, PositionMark) for mark in task.marks.values()),
        options=place.options,
        limits=place.limits,
    )
    opened = segments_of(place.state)
    ordinals = {name: Ordinals() for name in task.tables}
    prefilter = prefilter or PreFilter(place.limits.prefilter_bytes)
    find = _prepared(place, task, opened, prefilter)
    with contextlib.closing(prefilter):
        for sealed in task.segments:
            segment, read = opened(sealed.name)
            part = _part(segment, sealed, task.after, task.upto)
            stored = StoredLog(segment, part, prefilter, place.limits, read)
            reader.low = partial(_low, task, sealed)
            reader.prepared = partial(find, sealed)
            with contextlib.closing(reader.read_stored(segment, part, stored)) as items:
                for item in items:
                    if isinstance(item, SchemaChanged):
                        continue
                    source = task.tables[item.table.id]
                    offsets = item.rows.column("_position").to_numpy() - sealed.begins.offset + sealed.first
                    numbers = ordinals[item.table.id].of(offsets)
                    kept = _emitted(task, task.rules[item.table.id], item, offsets, keyed=source.keyed)
                    if task.parts > 1:
                        kept &= _mine(task, source, item, numbers)
                    if kept.any():
                        yield source.target, change_rows(item, source, place.options, kept, offsets, numbers, str(segment.log))


def _low(task: LogTask, sealed: Sealed, table: TableId) -> int:
    """Up to which offset of the log file no row of a table is kept, whatever it holds."""
    return task.rules[table].low - sealed.first + sealed.begins.offset


def _prepared(
    place: Place, task: LogTask, opened: Callable[[str], Opened], prefilter: PreFilter
) -> Callable[[Sealed, Xid, Position], Held | None]:
    """Finds the events of a prepared transaction by the place of its COMMIT in a segment."""
    known = {decided.offset: decided for decided in task.committed}

    opened = cache(opened)

    def find(sealed: Sealed, xid: Xid, position: Position) -> Held | None:
        decided = known.get(sealed.first + position.offset - sealed.begins.offset)
        if decided is None or decided.group.xid != str(xid):
            return None
        group = decided.group
        if decided.aside:
            return take_back(open_store(place.state), group, prefilter, place.limits)
        segment, read = opened(sealed.name)
        log, shares_segment = read_group(read, group.at, group.bytes, prefilter, place.limits)
        return Held(log, segment.crc_length, sealed.begins.offset + group.begins - sealed.first, shares_segment)

    return find


def _part(segment: Segment, sealed: Sealed, after: int, upto: int) -> Part:
    """What of a segment lies in (after, upto]. Both are cuts, so that no transaction is torn."""
    first, start = 0, segment.start.offset
    last, end = segment.data_bytes, segment.end.offset
    if after > sealed.first:
        first, start = _cut(segment, sealed, after)
    if upto < sealed.last:
        last, end = _cut(segment, sealed, upto)
    return Part(first, start, last, end)


def _cut(segment: Segment, sealed: Sealed, at: int) -> tuple[int, int]:
    wanted = sealed.begins.offset + at - sealed.first
    found = [(cut.at, cut.offset) for cut in segment.cuts if cut.offset == wanted]
    check(len(found) == 1, "a range of the log ends where no cut is", f"{segment.log}:{wanted}")
    return found[0]


def _emitted(task: LogTask, rule: Rule, item: ChangeBatch, offsets: Longs, *, keyed: bool) -> Mask:
    """The adoption rule (`planning.emission.emits`), for all rows of a batch at once."""
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
        elif keyed:
            kept[mine] = offsets[mine] > adopting.visible
        else:
            kept[mine] = ((offsets > adopting.visible) & ~_covered(task, adopting, item, offsets))[mine]
    return kept


def _mine(task: LogTask, source: Sourced, item: ChangeBatch, numbers: Longs) -> Mask:
    """Which rows of a transaction that several tasks have are this one's: all rows of a key are one task's."""
    if not source.keyed:
        # Each change is a row of its own, whoever writes it.
        return np.asarray((numbers >> 12) % task.parts == task.part)
    keys = _keys(item)
    if keys is None:
        # What keys are equal only the database knows: a table is one task's.
        return np.full(len(numbers), zlib.crc32(str(item.table.id).encode()) % task.parts == task.part)
    return np.asarray(keys % task.parts == task.part)


def _covered(task: LogTask, adopting: Adopting, item: ChangeBatch, offsets: Longs) -> Mask:
    """Of which rows the read contains the change (`marks.covers`)."""
    mark = task.marks[adopting.reading.nonce]
    if isinstance(mark, PositionMark):
        covered = np.asarray(offsets <= adopting.reading.high)
        return covered if mark.locked else covered & ~np.isin(offsets, [decided.offset for decided in task.committed])
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


def run_on_spark(spark: Any, tasks: Sequence[Task], run: Callable[[Task], Answer]) -> list[Answer | SnowmeltError]:
    """Run each as a task of one Spark job. Answers, of which an error of ours is one, come back pickled, and never through the store."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                answer: Answer | SnowmeltError
                try:
                    answer = run(tasks[index])
                except SnowmeltError as error:
                    answer = error
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], names=["answer"])

    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, "answer binary")
    return [pickle.loads(bytes(row.answer)) for row in frame.collect()]
