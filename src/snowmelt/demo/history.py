"""The proof that a change table holds every change of its source exactly once, by count and by content.

Three witnesses. None of them knows of the pipeline's relay, epochs or restarts:

    the writers    how many rows they changed, by what the server told them
    the log        read again from the server, from before the first change to the last
    the table      in itself: each change takes away just the row that was there before it, and brings one where none was

Which changes of the log are to be there follows from the copy: of keys that a read covers those after the read's place, of keys
above all reads every one. Where a read ends is told by the greatest id that it brought. That is so because neither the last of the
first rows nor any that came later is ever deleted or moved by the demo's writers, and the first rows are fewer than a chunk's: the row
that a chunk was to end with, or the greatest of all, was still there when it was read.
"""

from __future__ import annotations

import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.databases.mysql.log.decode import ChangeBatch, LogReader, LogServer
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.engine.tasks.rows import KINDS, OP, ORDINAL, POSITION, READ, TAKES
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.segments import list_segments
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.registry import open_reader

KEY = "id"
_OFFSET_BITS = 40
PLACE = "place"
"""A column of the log's changes: where they are, as a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A change table, and what is wrong with it: nothing, if `wrong` is empty."""

    rows: pa.Table
    """All of it, by key and then by time."""
    read: int
    """Rows that were there when it was copied."""
    carried: int
    """Changes of the log after that."""
    covered: int
    """Changes that the copy has in it."""
    left: int
    """Rows that are there at the end."""
    wrong: tuple[str, ...]

    def longest(self, rows_max: int) -> pa.Table:
        """The history of the key that has the most to tell, its newest part."""
        keys, counts = np.unique(self.rows.column(KEY).to_numpy(), return_counts=True)
        if not len(keys):
            return self.rows
        mine = self.rows.filter(pc.equal(self.rows.column(KEY), int(keys[counts.argmax()])))
        return mine.slice(max(0, len(mine) - rows_max))


def prove(options: MySqlOptions, warehouse: str, target: str, table: TableId, *, after: Position, upto: Position, counted: int) -> History:
    """Compare a change table with what happened to its source in (after, upto]. `counted` is the writers' number of changed rows."""
    with Session(options) as session:
        shape, server = read_tables(session, [table])[table], session.server
    lake = _read_lake(warehouse, target)
    log = _read_log(options, server, shape, after, upto)
    copied = pc.equal(lake.column(OP), READ)
    read, carried = lake.filter(copied), lake.filter(pc.invert(copied)).sort_by([(SEQUENCE, "ascending"), (ORDINAL, "ascending")])
    wanted = behind_the_copy(log, read)
    names = [column.name for column in shape.columns]
    wrong = [*compare(carried, wanted), *misfits(lake, names)]
    happened = int(pc.sum(pc.not_equal(log.column(OP), "update_before")).as_py() or 0)
    if happened != counted:
        wrong.append(f"the writers changed {counted:,} rows, the log has {happened:,} of them")
    arrivals = _arrivals(lake)
    return History(
        rows=lake,
        read=len(read),
        carried=len(carried),
        covered=len(log) - len(wanted),
        left=int(arrivals.sum() - (~arrivals).sum()),
        wrong=tuple(wrong),
    )


def _read_lake(warehouse: str, target: str) -> pa.Table:
    lake = open_reader(warehouse, user="demo")
    columns, newest = lake.columns(target), lake.newest(target)
    batches = lake.read(target, newest, columns.names, lake.shares(target, newest))
    rows = pa.Table.from_batches((batch.cast(columns) for batch in batches), columns)
    return rows.sort_by([(KEY, "ascending"), (SEQUENCE, "ascending"), (ORDINAL, "ascending")]).combine_chunks()


def _read_log(options: MySqlOptions, server: Server, shape: MySqlTable, after: Position, upto: Position) -> pa.Table:
    """Every change of a table, in the log's order, with the columns that a change table has."""
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    schemas.put(shape.id, Position(0, 0), shape)
    reader = LogReader(server=LogServer(server.flavour, server.version), schemas=schemas, captured=lambda name: name == shape.id)
    fields = [*shape.arrow_schema(TypeOptions()), pa.field(OP, pa.string()), pa.field(POSITION, pa.string()), pa.field(PLACE, pa.int64())]
    parts = []
    with tempfile.TemporaryDirectory(prefix="snowmelt-") as folder:
        capture_until(options, Path(folder), after, upto, server_id=2**31 + secrets.randbelow(2**30))
        for segment in list_segments(Path(folder)):
            for item in reader.read_segment(segment):
                if isinstance(item, ChangeBatch):
                    offsets = item.rows.column("_position")
                    columns = [item.rows.column(column.name) for column in shape.columns]
                    ops = KINDS.take(item.rows.column("_op").cast(pa.int32()))
                    places = pc.binary_join_element_wise(f"{segment.log}:", offsets.cast(pa.string()), "")
                    flat = pa.array(offsets.to_numpy() + (np.int64(segment.start.file) << _OFFSET_BITS))
                    parts.append(pa.RecordBatch.from_arrays([*columns, ops, places, flat], schema=pa.schema(fields)))
    return pa.Table.from_batches(parts, pa.schema(fields))


def behind_the_copy(log: pa.Table, read: pa.Table) -> pa.Table:
    """`read` is by key."""
    reads = read.group_by(POSITION).aggregate([(KEY, "max")]).sort_by(f"{KEY}_max")
    ends, places = reads.column(f"{KEY}_max").to_numpy(), [_flat(place) for place in reads.column(POSITION).to_pylist()]
    covering = np.searchsorted(ends, log.column(KEY).to_numpy())
    # Above all reads nothing is covered.
    covered_upto = np.array([*places, 0], np.int64)[covering]
    return log.filter(pa.array(log.column(PLACE).to_numpy() > covered_upto))


def _flat(place: str) -> int:
    """A place as a number, in the log's order."""
    file, _, offset = place.rpartition(":")
    return LogFile.parse(file).number << _OFFSET_BITS | int(offset)


def compare(carried: pa.Table, wanted: pa.Table) -> list[str]:
    """What is wrong unless both have the same changes in the same order."""
    names = [name for name in wanted.schema.names if name != PLACE]
    wanted = wanted.select(names)
    carried = carried.select(names).cast(wanted.schema)
    if carried.equals(wanted):
        return []
    if len(carried) != len(wanted):
        return [f"the log has {len(wanted):,} changes after the copy, the change table {len(carried):,}"]
    differing = [name for name in names if not carried.column(name).equals(wanted.column(name))]
    return [f"changes differ from the log's in {', '.join(differing)}"]


def _arrivals(rows: pa.Table) -> Any:
    """Which changes bring a row; the others take one away."""
    away = pc.is_in(rows.column(OP), pa.array(TAKES))
    return pc.invert(away).to_numpy()


def misfits(rows: pa.Table, names: list[str]) -> list[str]:
    """What is wrong in itself with rows by key and time. Of each key one arrives, goes with the content that it came with, and so on;
    `names` are the columns of the content."""
    if not len(rows):
        return []
    keys, arrives = rows.column(KEY).to_numpy(), _arrivals(rows)
    follows = np.zeros(len(rows), np.bool_)
    follows[1:] = keys[1:] == keys[:-1]
    before = np.zeros(len(rows), np.bool_)
    before[1:] = follows[1:] & arrives[:-1]
    wrong = []
    if twice := int((arrives & before).sum()):
        wrong.append(f"rows that came while they were there: {twice:,}")
    if missing := int((~arrives & ~before).sum()):
        wrong.append(f"rows that went without having come: {missing:,}")
    went = np.flatnonzero(~arrives & before)
    content = rows.select(names)
    if not content.take(pa.array(went)).equals(content.take(pa.array(went - 1))):
        wrong.append("rows went with another content than they came with")
    return wrong
