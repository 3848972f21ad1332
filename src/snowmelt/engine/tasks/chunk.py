"""The task that reads one chunk of a table and stages its rows. No row passes the JVM."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import Any

from snowmelt.commit.records import Staged
from snowmelt.databases.contract.tables import KeyRange, ReadMark
from snowmelt.engine.failpoints import CHUNK_READ, reach
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.rows import Sourced, chunk_rows, place_text
from snowmelt.model.position import Position
from snowmelt.planning.facts import OUTSIDE, KeyEnds, Launched


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    launch: Launched
    source: Sourced
    schema: int
    """The number of the shape that is expected."""
    keys: KeyRange
    whole: bool
    """Whether the read is of the whole table: its keys can't be compared by tasks, so it is not cut into chunks."""
    visible: Position | None
    """`launch.visible` as a position, if the server proved it by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkAnswer:
    launch: Launched
    schema: int
    nonce: str
    mark: ReadMark
    staged: Staged
    extent: KeyEnds | None


def run_chunk(context: TaskContext, task: ChunkTask) -> ChunkAnswer:
    """Read a chunk exactly and stage its rows."""
    context.check()
    nonce = uuid.uuid4().hex
    launch, source = task.launch, task.source
    exactly: dict[str, Any] = {"identity": context.identity, "era": launch.era, "to_a_change": not source.keyed}
    if launch.ordinal == OUTSIDE and not task.whole:
        extent, mark = context.source.read_ends(source.table, **exactly)
        return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=mark, staged=Staged((), (), 0), extent=extent)
    writer = context.lake().writer(source.target, f"sm-{context.generation}-c{launch.job}-{nonce}-")
    in_parts = source.keyed and not task.whole
    read = context.source.read(source.table, task.keys, visible=task.visible, in_parts=in_parts, **exactly)
    now = time.time_ns() // 1000
    with contextlib.closing(read.batches()) as batches:
        for batch in batches:
            high = read.mark.high
            at = place_text(context.source.file_name(high, context.log), high.offset)
            writer.write(chunk_rows(batch, source, context.source, visible=launch.visible, place=at, time_us=now))
            reach(CHUNK_READ)
    staged = writer.finish()
    return ChunkAnswer(launch=launch, schema=task.schema, nonce=nonce, mark=read.mark, staged=staged, extent=None)
