"""The read of a chunk, in one transaction, or in several if it takes too long.

A table whose rows have keys may be read in parts, each by an exact read of its own. All parts show at least what was visible at launch,
and the rows of all of them have its sequence, so whatever was committed between two parts is emitted from the log and wins. Parts follow
each other by rows, not by the width of the key range: the next part begins after the last row that was received. An append-only table
needs one mark for all rows, so its read has one part. So has the read of a table that is not cut into chunks, because only the database
can order its keys. Such reads have no limit of time. They, too, give way to sessions that wait for the table.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import pyarrow as pa

from snowmelt.columnar.arena import ArenaPool
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.read.bounds import Bound, Chunk
from snowmelt.databases.mysql.read.marks import Mark
from snowmelt.databases.mysql.read.reads import read_chunk
from snowmelt.databases.mysql.read.watched import Ended, Watch
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import RECOPY, InvariantBroken, Occupied, SnowmeltError, TableStuck


class ChunkReading:
    """The read of one chunk. Used once, in a task. `mark` is that of the newest part."""

    def __init__(
        self, options: MySqlOptions, table: MySqlTable, chunk: Chunk, types: TypeOptions, *, in_parts: bool, **exactly: Any
    ) -> None:
        """`exactly`: the further arguments of `read_chunk`."""
        self._options = options
        self._table = table
        self._chunk = chunk
        self._types = types
        self._in_parts = in_parts and table.key_is_primary
        self._exactly = exactly
        self._mark: Mark | None = None
        self.parts = 0

    @property
    def mark(self) -> Mark:
        if self._mark is None:
            raise InvariantBroken("a read has a mark once it is open", detail=str(self._table.id))
        return self._mark

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, once. `Occupied`: another session waits for the table. `TableStuck`: no row comes in the time that a part may last."""
        rest: Chunk | None = self._chunk
        while rest is not None:
            self.parts += 1
            rest = yield from self._part(rest)

    def _part(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, Chunk | None]:
        """Read until a limit is reached. The chunk that is left to read; None: nothing."""
        last: Bound | None = None
        with Session(self._options) as session:
            # A limit would only make a read that has no parts begin anew, for ever.
            seconds_max = self._options.read_time_max_s if self._in_parts else math.inf
            watch = Watch(session, self._table.id, seconds_max=seconds_max)
            try:
                read = read_chunk(session, self._table, chunk, self._types, ordered=self._in_parts, pool=ArenaPool(), **self._exactly)
                self._mark, watch.gives_way = read.mark, not read.locked
                with read, watch:
                    for batch in read.batches():
                        if watch.ended is not None:
                            # It may hold what came in after the end.
                            break
                        if self._in_parts:
                            last = (int(batch.column(self._table.key[0])[-1].as_py()),)
                        yield batch
                    else:
                        return None
            except SnowmeltError:
                if watch.ended is None:
                    raise
        if watch.ended is Ended.IN_THE_WAY:
            raise Occupied("a read gave way to another session that waits for the table", detail=str(self._table.id))
        if last is None:
            raise self._too_long()
        return Chunk(chunk.table, max(1, chunk.index), last, chunk.high)

    def _too_long(self) -> TableStuck:
        return self._table.id.stuck(
            "a read takes longer than read_time_max",
            detail=f"{self._table.id}: more than {self._options.read_time_max_s:g} s, and no row came in that time",
            hint=f"raise read_time_max in the source's section; then {RECOPY}",
        )
