"""The task that reads one share of an epoch's log.

Laws:
- Rows of a transaction are written by one task, in order: of equal `_seq` the writer keeps the last. One that is large is read by
  several tasks, each of which writes the rows of its own keys: no two files have the same `_seq` of one key. To read and to decode
  it more than once costs less than a shuffle would.
- What is read is written at once: no row passes the JVM. What of the log is kept waits for the writer in a pool
  (`engine.log.reading`), then for a file among the rows of all tables (`writers`); the bounds of both, and of all else that a task holds,
  are in its context (`relay.limits`).
- What a lake table can't take is told with the name of its source table (`TableStuck`), so that the others go on.
"""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa

from snowmelt.columnar.arena import Longs
from snowmelt.commit.checks import Message, StagedFile
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.tables import ReadMark
from snowmelt.databases.mysql.log.decode import NOTHING_HELD, ChangeBatch, LogReader, PreparedEvents, SchemaChanged, SegmentSlice
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Xid
from snowmelt.databases.mysql.read.marks import GtidMark, PositionMark, covers
from snowmelt.databases.mysql.types.columns import MySqlTable, own
from snowmelt.driving.entries import Emptied
from snowmelt.engine.failpoints import FILES_STAGED, reach
from snowmelt.engine.log.prepared import take_back
from snowmelt.engine.log.reading import Filtered, StoredLog, read_group
from snowmelt.engine.log.storage import Opened, segments_of
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.keys import in_span, outside
from snowmelt.engine.tasks.rows import RowNumbering, Sourced, change_rows, truncate_row
from snowmelt.engine.tasks.writers import Writers, trouble_of
from snowmelt.errors import check, instance
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.planning.epochs import Adopting, Rule
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Decided, Sealed
from snowmelt.segments import Segment
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """The changes in (after, upto], which are two cuts."""

    epoch: int
    writer: int
    after: int
    upto: int
    segments: tuple[Sealed, ...]
    rules: Mapping[TableId, Rule]
    marks: Mapping[str, ReadMark]
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


def run_log(context: TaskContext, task: LogTask) -> LogAnswer:
    """Decode a share of the log, keep what the rules emit, and stage it."""
    context.check()
    nonce = uuid.uuid4().hex
    lake = context.lake()
    names = {source.target: name for name, source in task.tables.items()} | {one.target: one.table for one in task.emptied}
    prefix = f"sm-{context.generation}-e{task.epoch}-{nonce}-"
    writers = Writers(lambda target: lake.writer(target, prefix, at_once=True), names, held_bytes_max=context.limits.held_bytes)
    for one in task.emptied:
        with trouble_of(one.table):
            columns = lake.columns(one.target)
        writers.write(one.target, truncate_row(columns, at=one.at, time_us=one.time_ms * 1000))
    with Filtered(lambda: kept_rows(context, task), kept_bytes, Pool(context.limits.pool_bytes)) as kept:
        for target, batch in kept:
            writers.write(target, batch)
    staged = writers.finish()
    if staged:
        reach(FILES_STAGED)
    files = tuple(StagedFile(target, name, task.after) for target, one in staged.items() for name in one.files)
    message = Message(generation=context.generation, epoch=task.epoch, writer=task.writer, files=files)
    return LogAnswer(message=message, messages={target: one.messages for target, one in staged.items()}, rows=writers.rows)


def kept_bytes(kept: tuple[str, pa.RecordBatch]) -> int:
    """What of `kept_rows` counts against the pool."""
    return int(kept[1].get_total_buffer_size())


def kept_rows(context: TaskContext, task: LogTask, *, prefilter: PreFilter | None = None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows that go to the lake, in the order of the log."""
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    for source in task.tables.values():
        history.put(source.table.id, Position(0, 0), own(source.table))
    reader = LogReader(
        flavour=context.server.flavour,
        version=context.server.version,
        schemas=history,
        captured=task.tables.__contains__,
        step_over_statements=True,
        names=not all(isinstance(mark, PositionMark) for mark in task.marks.values()),
        options=context.source.types,
        limits=context.limits,
    )
    opened = segments_of(context.state)
    ordinals = {name: RowNumbering() for name in task.tables}
    prefilter = prefilter or PreFilter(context.limits.prefilter_bytes)
    find = _prepared(context, task, opened, prefilter)
    with contextlib.closing(prefilter):
        for sealed in task.segments:
            segment, read = opened(sealed.name)
            part = _part(segment, sealed, task.after, task.upto)
            stored = StoredLog(segment, part, prefilter, context.limits, read)
            reader.low = partial(_low, task, sealed)
            reader.prepared = partial(find, sealed)
            with contextlib.closing(reader.read_stored(segment, part, stored)) as items:
                for item in items:
                    if isinstance(item, SchemaChanged):
                        continue
                    source = task.tables[item.table.id]
                    offsets = item.rows.column("_position").to_numpy() - sealed.begins.offset + sealed.first
                    numbers = ordinals[item.table.id].of(offsets)
                    kept = _emitted(context.source, task, task.rules[item.table.id], item, offsets, keyed=source.keyed)
                    if task.parts > 1:
                        kept &= _mine(context.source, task, item, numbers, keyed=source.keyed)
                    if kept.any():
                        yield source.target, change_rows(item, source, context.source, kept, offsets, numbers, segment.log)


def _low(task: LogTask, sealed: Sealed, table: TableId) -> int:
    """Up to which offset of the log file no row of a table is kept, whatever it holds."""
    return task.rules[table].low - sealed.first + sealed.begins.offset


def _prepared(
    context: TaskContext, task: LogTask, opened: Callable[[str], Opened], prefilter: PreFilter
) -> Callable[[Sealed, Xid, Position], PreparedEvents | None]:
    """Finds the events of a prepared transaction by the place of its COMMIT in a segment."""
    known = {decided.offset: decided for decided in task.committed}

    opened = cache(opened)

    def find(sealed: Sealed, xid: Xid, position: Position) -> PreparedEvents | None:
        offset = sealed.first + position.offset - sealed.begins.offset
        decided = known.get(offset)
        if decided is None and all(one.offset != offset for one in sealed.decided):
            # The segment's record judged that it ends nothing (`relay.retention`).
            return NOTHING_HELD
        if decided is None or decided.group.xid != str(xid):
            return None
        group = decided.group
        if decided.aside:
            return take_back(open_store(context.state), group, prefilter, context.limits)
        segment, read = opened(sealed.name)
        log, shares_segment = read_group(read, group.at, group.bytes, prefilter, context.limits)
        return PreparedEvents(log, details_of(segment).crc_length, sealed.begins.offset + group.begins - sealed.first, shares_segment)

    return find


def _part(segment: Segment, sealed: Sealed, after: int, upto: int) -> SegmentSlice:
    """What of a segment lies in (after, upto]. Both are cuts, so that no transaction is torn."""
    first, start = 0, segment.start.offset
    last, end = segment.data_bytes, segment.end.offset
    if after > sealed.first:
        first, start = _cut(segment, sealed, after)
    if upto < sealed.last:
        last, end = _cut(segment, sealed, upto)
    return SegmentSlice(first, start, last, end)


def _cut(segment: Segment, sealed: Sealed, at: int) -> tuple[int, int]:
    wanted = sealed.begins.offset + at - sealed.first
    found = [(cut.at, cut.offset) for cut in segment.cuts if cut.offset == wanted]
    check(len(found) == 1, "a range of the log ends where no cut is", f"{segment.log}:{wanted}")
    return found[0]


def _emitted(source: Database, task: LogTask, rule: Rule, item: ChangeBatch, offsets: Longs, *, keyed: bool) -> Mask:
    """Which rows of a batch go to the lake: the adoption rule (`planning.epochs`), for all of them at once.

    With keys (`keyed`) every change above the chunk's cut is emitted, whether the read contains it or not. To leave out what is covered
    would save little, and would be wrong if a mark knows less of one change than of a later one: the older change would return alone,
    above what the read has of the later one.
    """
    later = np.asarray(offsets > rule.after)
    if rule.live and not rule.adopting:
        return later
    keys = source.keys(item.table, item.rows)
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
            # The log lane goes on for a range that is read again, and what the read may lack comes once more: `_seq` makes
            # that harmless.
            kept[mine] = offsets[mine] > min(adopting.visible, rule.after)
        elif keyed:
            kept[mine] = offsets[mine] > adopting.visible
        else:
            kept[mine] = ((offsets > adopting.visible) & ~_covered(task, adopting, item, offsets))[mine]
    return kept


def _mine(source: Database, task: LogTask, item: ChangeBatch, numbers: Longs, *, keyed: bool) -> Mask:
    """Which rows of a transaction that several tasks have are this one's: all rows of a key are one task's."""
    if not keyed:
        # Each change is a row of its own, whoever writes it.
        return np.asarray((numbers >> 12) % task.parts == task.part)
    keys = source.keys(item.table, item.rows)
    if keys is None:
        # What keys are equal only the database knows: a table is one task's.
        return np.full(len(numbers), zlib.crc32(str(item.table.id).encode()) % task.parts == task.part)
    return np.asarray(keys.numbers() % task.parts == task.part)


def _covered(task: LogTask, adopting: Adopting, item: ChangeBatch, offsets: Longs) -> Mask:
    """Of which rows the read contains the change (`marks.covers`)."""
    mark = task.marks[adopting.reading.nonce]
    if isinstance(mark, PositionMark):
        covered = np.asarray(offsets <= adopting.reading.high)
        return covered if mark.locked else covered & ~np.isin(offsets, [decided.offset for decided in task.committed])
    gtids = instance(mark, GtidMark, "a mark of another database")
    # GTIDs are asked one by one, and only of transactions that the read may contain.
    positions = item.rows.column("_position").to_numpy()
    result = np.zeros(len(offsets), np.bool_)
    for index in range(len(item.transactions)):
        position = int(item.transactions.position[index])
        of_this = positions == position
        if of_this.any() and offsets[of_this][0] <= adopting.reading.high:
            # Where it lies is settled by the relay's offsets; what is left to ask is its name.
            result[of_this] = covers(gtids, position=gtids.high, gtid=item.transactions.gtid(index))
    return result
