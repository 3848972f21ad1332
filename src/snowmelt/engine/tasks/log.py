"""The task that reads one share of an epoch's log.

Laws:
- One task writes the rows of a transaction, in order: of equal `_seq` the writer keeps the last. A large transaction is read by several
  tasks. Each writes the rows of its own keys, so no two files have the same `_seq` of one key. To decode the transaction several times
  costs less than a shuffle would.
- Rows are written by the task that reads them: no row passes the JVM. Rows that are kept wait for the writer in a pool
  (`engine.log.reading`), then for a file among the rows of all tables (`writers`). The bounds of both, and of all else that a task holds,
  are in its context (`relay.limits`).
- Rows that a lake table can't take are an error with the name of the source table (`TableStuck`), so that the other tables continue.
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
from snowmelt.databases.contract.changes import Changes, LogStretch
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.stretches import InMemory, PreparedEvents, SegmentSlice
from snowmelt.databases.contract.tables import ReadMark
from snowmelt.driving.entries import Emptied
from snowmelt.engine.failpoints import FILES_STAGED, reach
from snowmelt.engine.log.prepared import take_back
from snowmelt.engine.log.reading import Filtered, StoredLog, read_group
from snowmelt.engine.log.storage import Opened, segments_of
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.keys import in_span, outside
from snowmelt.engine.tasks.rows import RowNumbering, Sourced, change_rows, truncate_row
from snowmelt.engine.tasks.writers import Writers, trouble_of
from snowmelt.errors import check
from snowmelt.model.numbers import EpochNumber, LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Rule
from snowmelt.relay.names import ended_by
from snowmelt.relay.pool import Pool
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Decided, SegmentRecord
from snowmelt.segments import Segment
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTask:
    """The changes in (after, upto], which are two cuts."""

    epoch: EpochNumber
    writer: int
    """The number of this task among all of the epoch's. The driver checks that each has answered."""
    after: LogOffset
    upto: LogOffset
    segments: tuple[SegmentRecord, ...]
    rules: Mapping[TableId, Rule]
    marks: Mapping[str, ReadMark]
    """Of the reads that are being adopted, by nonce."""
    tables: Mapping[TableId, Sourced]
    """Tables whose rows may be kept, with the one shape that each has in the whole range."""
    committed: tuple[Decided, ...] = ()
    """Prepared transactions whose changes come with their COMMIT in the range."""
    emptied: tuple[Emptied, ...] = ()
    part: int = 0
    """The number of this task among `parts`, from 0 on."""
    parts: int = 1
    """How many tasks read this range: more than one if a transaction in it is too large for one task. Each writes its own keys
    (`_mine`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer:
    message: Message
    messages: Mapping[str, tuple[bytes, ...]]
    """What the lake wants to know of the files, by lake table."""
    places: Mapping[str, tuple[str, ...]]
    """The buckets of the files, by lake table (`Staged.places`)."""
    rows: int


_NOTHING_PREPARED = PreparedEvents(log=InMemory(np.empty(0, np.uint8), window_bytes=1), own="", begins=0)
"""The events of a COMMIT that ends no prepared transaction."""


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
    return LogAnswer(
        message=message,
        messages={target: one.messages for target, one in staged.items()},
        places={target: one.places for target, one in staged.items()},
        rows=writers.rows,
    )


def kept_bytes(kept: tuple[str, pa.RecordBatch]) -> int:
    """The size of a batch of `kept_rows` in the pool."""
    return int(kept[1].get_total_buffer_size())


def kept_rows(context: TaskContext, task: LogTask, *, prefilter: PreFilter | None = None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows that go to the lake, in the order of the log."""
    reader = context.source.log_reader([source.table for source in task.tables.values()], task.marks.values(), context.limits)
    opened = segments_of(context.state)
    ordinals = {name: RowNumbering() for name in task.tables}
    prefilter = prefilter or PreFilter(context.limits.prefilter_bytes)
    find = _prepared(context, task, opened, prefilter)
    with contextlib.closing(prefilter):
        for record in task.segments:
            segment, read = opened(record.name)
            part = _part(segment, record, task.after, task.upto)
            stored = StoredLog(segment, part, prefilter, context.limits, read)
            stretch = LogStretch(segment=segment, part=part, log=stored, low=partial(_low, task, record), prepared=partial(find, record))
            with contextlib.closing(reader.read(stretch)) as items:
                for item in items:
                    source = task.tables[item.table.id]
                    offsets = item.rows.column("_position").to_numpy() - record.begins.offset + record.first
                    numbers = ordinals[item.table.id].of(offsets)
                    kept = _emitted(context.source, task, task.rules[item.table.id], item, offsets, keyed=source.keyed)
                    if task.parts > 1:
                        kept &= _mine(context.source, task, item, numbers, keyed=source.keyed)
                    if kept.any():
                        yield source.target, change_rows(item, source, context.source, kept, offsets, numbers, segment.log)


def _low(task: LogTask, record: SegmentRecord, table: TableId) -> int:
    """The offset of the log file up to which no row of a table is kept."""
    return task.rules[table].low - record.first + record.begins.offset


def _prepared(
    context: TaskContext, task: LogTask, opened: Callable[[str], Opened], prefilter: PreFilter
) -> Callable[[SegmentRecord, str, int], PreparedEvents | None]:
    """Finds the events of a prepared transaction by its name and by the place of its COMMIT in a segment."""
    known = {decided.offset: decided for decided in task.committed}

    opened = cache(opened)

    def find(record: SegmentRecord, name: str, at: int) -> PreparedEvents | None:
        offset = LogOffset(record.first + at - record.begins.offset)
        decided = known.get(offset)
        if decided is None and all(one.offset != offset for one in record.decided):
            # By the segment's record it ends no prepared transaction (`relay.retention`).
            return _NOTHING_PREPARED
        if decided is None or ended_by(name, [decided.group.xid]) is None:
            return None
        group = decided.group
        if decided.aside:
            return take_back(open_store(context.state), group, prefilter, context.limits)
        segment, read = opened(record.name)
        log, shares_segment = read_group(read, group.at, group.bytes, prefilter, context.limits)
        begins = record.begins.offset + group.begins - record.first
        return PreparedEvents(log=log, own=segment.own, begins=begins, shares_segment=shares_segment)

    return find


def _part(segment: Segment, record: SegmentRecord, after: LogOffset, upto: LogOffset) -> SegmentSlice:
    """The part of a segment in (after, upto]. Both are cuts, so that no transaction is torn."""
    first, start = 0, segment.start.offset
    last, end = segment.data_bytes, segment.end.offset
    if after > record.first:
        first, start = _cut(segment, record, after)
    if upto < record.last:
        last, end = _cut(segment, record, upto)
    return SegmentSlice(first, start, last, end)


def _cut(segment: Segment, record: SegmentRecord, at: int) -> tuple[int, int]:
    wanted = record.begins.offset + at - record.first
    found = [(cut.at, cut.offset) for cut in segment.cuts if cut.offset == wanted]
    check(len(found) == 1, "a range of the log does not end at a cut", f"{segment.log}:{wanted}")
    return found[0]


def _emitted(source: Database, task: LogTask, rule: Rule, item: Changes, offsets: Longs, *, keyed: bool) -> Mask:
    """Which rows of a batch go to the lake: the adoption rule (`planning.epochs`), for all of them at once.

    With keys (`keyed`) every change above the chunk's cut is emitted, whether the read contains it or not. To leave out covered changes
    would save little. It would be wrong if a mark covers a later change and not an earlier one of the same key: the earlier one alone would
    then overwrite the read's newer row.
    """
    later = np.asarray(offsets > rule.after)
    if rule.emits_all and not rule.adopting:
        return later
    keys = source.keys(item.table, item.rows)
    if rule.extent is None:
        adopted = np.full(len(offsets), rule.outside or rule.emits_all)
    else:
        adopted = outside(keys, rule.extent) & rule.outside
        for span in rule.adopted:
            adopted |= in_span(keys, span, rule.extent)
        if rule.emits_all:
            adopted[:] = True
    kept: Mask = later & adopted
    keyless: Mask = np.full(len(offsets), False)
    if item.partial and (rule.emits_all or rule.outside or rule.adopted or rule.adopting):
        # No chunk can be named that has such a row. It is kept, and sets its table aside.
        keyless = (offsets > rule.low) & _lacks_key(item)
    for adopting in rule.adopting:
        extent = rule.extent or adopting.reading.extent
        if adopting.span is None:
            mine = outside(keys, extent) if extent is not None else np.full(len(offsets), True)
        else:
            mine = in_span(keys, adopting.span, extent)
        if adopting.replaces:
            # The log lane continues for a range that is read again, and changes that the read may lack come once more: `_seq`
            # makes that harmless.
            kept[mine] = offsets[mine] > min(adopting.visible, rule.after)
        elif keyed:
            kept[mine] = offsets[mine] > adopting.visible
        else:
            mark, two_phase = task.marks[adopting.reading.nonce], np.array([decided.offset for decided in task.committed], np.int64)
            covered = source.covered(mark, item, offsets, high=adopting.reading.high, two_phase=two_phase)
            kept[mine] = ((offsets > adopting.visible) & ~covered)[mine]
    return kept | keyless


def _lacks_key(item: Changes) -> Mask:
    """The rows whose images lack a column of the key."""
    lacks = np.full(item.rows.num_rows, False)
    for name in item.table.key:
        lacks |= np.asarray(item.rows.column(name).is_null().to_numpy(zero_copy_only=False), np.bool_)
    return lacks


def _mine(source: Database, task: LogTask, item: Changes, numbers: Longs, *, keyed: bool) -> Mask:
    """The rows that this task writes of a transaction that several tasks read: all rows of a key belong to one task."""
    if not keyed:
        # Each change is a row of its own, so any task may write it.
        return np.asarray((numbers >> 12) % task.parts == task.part)
    keys = source.keys(item.table, item.rows)
    if keys is None:
        # Only the database knows which keys are equal, so all rows of a table belong to one task.
        return np.full(len(numbers), zlib.crc32(str(item.table.id).encode()) % task.parts == task.part)
    return np.asarray(keys.numbers() % task.parts == task.part)
