"""`snowmelt demo`: a live MariaDB as Arrow, two ways, and the proof that they agree.

Chunks of every table are read exactly while writers go on; the log is captured and decoded beside it. Chunk rows carry the
position that they were read at, changes that of their commit, and for each key the later one wins. What comes out must be what
SELECT gives when all is quiet.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from snowmelt.databases.mysql.bounds import plan_chunks
from snowmelt.databases.mysql.capture import Capture
from snowmelt.databases.mysql.catalog import match_tables, read_tables
from snowmelt.databases.mysql.columns import MySqlTable, TypeOptions
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.decode import ChangeBatch, LogReader, warm
from snowmelt.databases.mysql.preflight import inspect
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.reads import log_end, read_chunk, read_extent
from snowmelt.databases.mysql.resultset import Counters, select
from snowmelt.databases.mysql.rows import DELETE, UPDATE_BEFORE
from snowmelt.databases.mysql.segments import list_segments
from snowmelt.demo.server import local_mariadb
from snowmelt.demo.shop import DATABASE, Writer, at_work, create
from snowmelt.errors import Unavailable, check
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId

WRITERS = 3
ROWS_PER_CHUNK = 5_000
ROWS_SHOWN = 3
COLUMNS_SHOWN = 4
_OPTIONS = TypeOptions()
_KINDS = ("insert", "update before", "update after", "delete")


def run_demo(*, seconds: float = 5.0) -> int:
    """Run the demo with writers at work for at least so long; 0 if everything agreed, else 1."""
    console = Console()
    console.print("Compiling (the first time only), starting MariaDB, filling a shop …")
    warm()
    with local_mariadb() as (options, folder):
        create(options)
        with Session(options) as session:
            tables = read_tables(session, match_tables([f"{DATABASE}.*"]))
            findings = inspect(session, tables.values())
            console.print(f"{session.server} with {len(tables)} tables; preflight: {len(findings)} findings")
            for finding in findings:
                console.print(f"  {finding.level}: {finding.fact}", highlight=False)
            start = log_end(session, era=0)
        return _copy_and_prove(console, options, folder / "segments", tables, start, seconds)


def _copy_and_prove(
    console: Console, options: MySqlOptions, folder: Path, tables: dict[TableId, MySqlTable], start: Position, seconds: float
) -> int:
    capture = Capture(options, folder, start=start, server_id=4_711)
    stop, failed = threading.Event(), []

    def run_capture() -> None:
        try:
            capture.run(stop)
        except Exception as error:  # shown by the main thread, which waits for what was captured
            failed.append(error)

    capturing = threading.Thread(target=run_capture)
    writers = [Writer(options, seed) for seed in range(1, WRITERS + 1)]
    capturing.start()
    try:
        console.print(f"\n{WRITERS} writers change the shop. Chunks are read exactly meanwhile, each with its place in the log:")
        with at_work(writers):
            chunks = {table.id: _read_chunks(console, options, table) for table in tables.values()}
            writers[0].stop.wait(seconds)
        with Session(options) as session:
            end = log_end(session, era=0)
        if not capture.wait(end, 60):
            raise failed[0] if failed else Unavailable("the log was not captured in time", detail=str(capture.end))
    finally:
        stop.set()
        capturing.join()
    console.print(f"\n{sum(writer.transactions for writer in writers):,} transactions later the log is captured up to {end}.")
    changes = _read_log(console, folder, tables)
    return _prove(console, options, tables, chunks, changes)


def _read_chunks(console: Console, options: MySqlOptions, table: MySqlTable) -> list[pa.Table]:
    """All chunks of a table, each row with the sequence of its read."""
    shown = Table("chunk", "rows", "read at", title=f"{table.id} by ({', '.join(table.key)})", title_justify="left")
    parts: list[pa.Table] = []
    with Session(options) as session:
        identity = session.server.identity
        extent, _ = read_extent(session, table, identity=identity, era=0)
        for chunk in plan_chunks(session, table, extent, rows_per_chunk=ROWS_PER_CHUNK):
            with read_chunk(session, table, chunk, _OPTIONS, identity=identity, era=0) as read:
                rows = pa.Table.from_batches(list(read.batches()), table.arrow_schema(_OPTIONS))
            parts.append(_with_sequence(rows, np.full(len(rows), 2 * _flat(read.high) + 1), np.zeros(len(rows), np.int8)))
            shown.add_row(str(chunk.index), f"{len(rows):,}", str(read.high))
    console.print(shown)
    return parts


def _read_log(console: Console, folder: Path, tables: dict[TableId, MySqlTable]) -> dict[TableId, list[pa.Table]]:
    """The changes of each table out of the captured segments."""
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    for table in tables.values():
        history.put(table.id, Position(0, 0), table)
    segments = list_segments(folder)
    check(bool(segments), "a captured log has segments")
    server = segments[0].server
    reader = LogReader(flavour=server.flavour, version=server.version, schemas=history, captured=tables.__contains__)
    changes: dict[TableId, list[pa.Table]] = {table: [] for table in tables}
    kinds: dict[TableId, Counter[int]] = {table: Counter() for table in tables}
    sample: dict[TableId, pa.RecordBatch] = {}
    for segment in segments:
        for item in reader.read_segment(segment):
            if isinstance(item, ChangeBatch):
                name = item.table.id
                ops = item.rows.column("_op").to_numpy()
                kinds[name].update(dict(zip(*(found.tolist() for found in np.unique(ops, return_counts=True)), strict=True)))
                sample.setdefault(name, item.rows)
                positions = item.rows.column("_position").to_numpy() + (np.int64(segment.log.number) << 40)
                rows = pa.Table.from_batches([item.rows]).select(item.table.arrow_schema(_OPTIONS).names)
                changes[name].append(_with_sequence(rows, 2 * positions, ops))
    for name, rows in sample.items():
        console.print(_changes_table(name, rows))
    counts = Table("changes of", *_KINDS, title="The log, decoded", title_justify="left")
    for name in tables:
        counts.add_row(str(name), *(f"{kinds[name][kind]:,}" for kind in range(4)))
    console.print(counts)
    return changes


def _changes_table(name: TableId, rows: pa.RecordBatch) -> Table:
    names = rows.schema.names[:COLUMNS_SHOWN]
    shown = Table("kind", "commit at", *names, title=f"First changes of {name}", title_justify="left")
    for row in rows.slice(0, ROWS_SHOWN).to_pylist():
        shown.add_row(_KINDS[row["_op"]], str(row["_position"]), *(str(row[column])[:30] for column in names))
    return shown


def _prove(
    console: Console,
    options: MySqlOptions,
    tables: dict[TableId, MySqlTable],
    chunks: dict[TableId, list[pa.Table]],
    changes: dict[TableId, list[pa.Table]],
) -> int:
    """Chunks and changes, the later of each key, against SELECT."""
    wrong = 0
    for name, table in tables.items():
        ours = _latest(pa.concat_tables([*chunks[name], *changes[name]]), table)
        with Session(options) as session:
            sql = f"SELECT {', '.join(quote(column.name) for column in table.columns)} FROM {quote_table(name)}"
            batches = select(session, sql, table.columns, _OPTIONS, counters=Counters())
            theirs = pa.Table.from_batches(list(batches), ours.schema).sort_by([(key, "ascending") for key in table.key])
        same = ours.equals(theirs)
        wrong += not same
        console.print(f"{'verified' if same else 'DIFFERS '}  {name}: {len(ours):,} rows by chunks and log, {len(theirs):,} by SELECT")
    console.print("Both ways agree with the database." if not wrong else f"{wrong} tables differ.")
    return 1 if wrong else 0


def _flat(position: Position) -> int:
    return position.file << 40 | position.offset


def _with_sequence(rows: pa.Table, sequence: np.ndarray, ops: np.ndarray) -> pa.Table:
    gone = (ops == DELETE) | (ops == UPDATE_BEFORE)
    return rows.append_column("_seq", pa.array(sequence, pa.int64())).append_column("_gone", pa.array(gone))


def _latest(rows: pa.Table, table: MySqlTable) -> pa.Table:
    """The last state of each key, without the keys whose last state is gone; sorted by key."""
    order = pa.array(np.arange(len(rows)))
    keys = [(key, "ascending") for key in table.key]
    rows = rows.append_column("_order", order).sort_by([*keys, ("_seq", "ascending"), ("_order", "ascending")])
    last = np.ones(len(rows), np.bool_)
    if len(rows) > 1:
        same = np.ones(len(rows) - 1, np.bool_)
        for key in table.key:
            column = rows.column(key).combine_chunks()
            same &= pc.equal(column.slice(1), column.slice(0, len(rows) - 1)).to_numpy(zero_copy_only=False)
        last[:-1] = ~same
    gone = rows.column("_gone").to_numpy()
    return rows.filter(pa.array(last & ~gone)).select([column.name for column in table.columns]).combine_chunks()
