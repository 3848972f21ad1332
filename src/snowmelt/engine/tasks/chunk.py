"""The task that reads one chunk of a table and stages its rows. No row passes the JVM."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

from snowmelt.commit.records import Staged
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.read.bounds import Bound, Chunk
from snowmelt.databases.mysql.read.bounds import Extent as KeyExtent
from snowmelt.databases.mysql.read.marks import Mark
from snowmelt.databases.mysql.read.reads import read_extent
from snowmelt.engine.failpoints import CHUNK_READ, reach
from snowmelt.engine.tasks.chunk_reading import ChunkReading
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.keys import pack_bound
from snowmelt.engine.tasks.rows import Sourced, chunk_rows
from snowmelt.model.position import Position
from snowmelt.planning.facts import OUTSIDE, KeyEnds, Launched


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
    extent: KeyEnds | None


def run_chunk(context: TaskContext, task: ChunkTask) -> ChunkAnswer:
    """Read a chunk exactly and stage its rows."""
    context.check()
    nonce = uuid.uuid4().hex
    launch, source = task.launch, task.source
    exactly: dict[str, Any] = {"identity": context.server.identity, "era": launch.era, "to_a_change": not source.keyed}
    if launch.ordinal == OUTSIDE and not task.whole:
        with Session(context.source) as session:
            ends, mark = read_extent(session, source.table, **exactly)
        return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=mark, staged=Staged((), (), 0), extent=_extent(ends))
    writer = context.lake().writer(source.target, f"sm-{context.generation}-c{launch.job}-{nonce}-")
    chunk = Chunk(source.table.id, 0 if launch.ordinal <= 1 else launch.ordinal - 1, task.low, task.high)
    in_parts = source.keyed and not task.whole
    read = ChunkReading(context.source, source.table, chunk, context.options, in_parts=in_parts, visible=task.visible, **exactly)
    now = time.time_ns() // 1000
    for batch in read.batches():
        at = f"{replace(context.log, number=read.mark.high.file)}:{read.mark.high.offset}"
        writer.write(chunk_rows(batch, source, context.options, visible=launch.visible, place=at, time_us=now))
        reach(CHUNK_READ)
    staged = writer.finish()
    return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=read.mark, staged=staged, extent=None)


def _extent(ends: KeyExtent) -> KeyEnds | None:
    if ends.least is None or ends.greatest is None:
        return None
    return KeyEnds(pack_bound(ends.least), pack_bound(ends.greatest))
