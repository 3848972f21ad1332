"""The search for bounds of chunks, in the background and ahead of reading.

A thread of its own finds a table's next bounds, some at a time, while the chunks before them are read. Found bounds are proposed until an
intent has them. A crash costs the look-ups since the last intent.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from snowmelt.databases.contract import Database
from snowmelt.databases.contract.tables import TableShape
from snowmelt.engine.driver.retries import Retries
from snowmelt.planning.facts import Incarnation, KeyEnds, Split
from snowmelt.planning.tables import Copy, Table, TablePhase, Tables

BOUNDS_AT_ONCE: Final = 200
CHUNK_BYTES: Final = 128 << 20
"""The size of a chunk at most, by the database's estimate of its rows. It is large enough for a Spark job, and small enough to be read
again."""


@dataclass(frozen=True, slots=True)
class _Sought:
    incarnation: Incarnation
    extent: KeyEnds
    """A table that is read again in place keeps its incarnation and gets another extent."""
    first: int


class Splitter:
    """Finds the bounds for one driver. The thread that owns the machines uses it."""

    def __init__(self, source: Database, retries: Retries, *, rows_per_chunk: int) -> None:
        self._source = source
        self._rows = rows_per_chunk
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="snowmelt-split")
        self._sought: dict[_Sought, Future[Split]] = {}
        self._retries = retries

    def next(self, table: Table, shape: TableShape) -> Iterator[Split]:
        """The next bounds of a table that is being split, once they are found."""
        copy = table.copy
        if table.phase is not TablePhase.SPLITTING or copy is None or copy.extent is None:
            return
        sought = _Sought(table.incarnation, copy.extent, copy.bounds.last + 1)
        for old in [one for one in self._sought if one.incarnation.table == table.incarnation.table and one != sought]:
            self._sought.pop(old).cancel()
        if sought not in self._sought:
            if self._retries.may(table.incarnation.table):
                self._sought[sought] = self._pool.submit(self._look, sought, shape, _last(copy))
            return
        future = self._sought[sought]
        if future.done():
            error = future.exception()
            if error is None:
                self._retries.succeeded(table.incarnation.table)
                yield future.result()
            else:
                del self._sought[sought]
                self._retries.failed(table.incarnation.table, error)

    def let_go(self, tables: Tables) -> None:
        """Drop the bounds that were found for tables that are not being split any more."""
        splitting = {table.incarnation for table in tables if table.phase is TablePhase.SPLITTING}
        for sought in [one for one in self._sought if one.incarnation not in splitting]:
            self._sought.pop(sought).cancel()

    def _look(self, sought: _Sought, shape: TableShape, after: bytes | None) -> Split:
        found = self._source.find_bounds(
            shape, sought.extent, after=after, bytes_max=CHUNK_BYTES, rows_max=self._rows, bounds_max=BOUNDS_AT_ONCE
        )
        return Split(sought.incarnation, sought.first, found.highs, complete=found.complete)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _last(copy: Copy) -> bytes | None:
    """The bound after which the search continues."""
    last = copy.bounds.last
    return None if last < 1 else copy.bounds.upper(last)
