"""The rows of many sorted files as one, in bounded memory.

Files become *runs*, each sorted. A run holds one piece at a time. In each round the least of the runs' last keys is the bound: no later
piece has a row up to it, so these rows are merged and go. Small files become one run, read as a whole. Where there are more runs
than may be open at once, some are merged into a file of this machine's first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.columnar.arena import Longs
from snowmelt.errors import Corrupt, present
from snowmelt.sinks.paimon.maintenance.keys import KeyBytes, compare, encode, join, merge, rows_up_to
from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER, PIECE_BYTES

RUNS_MAX: Final = 12
"""Open at once."""
_NULL: Final = np.iinfo(np.int64).min

Open = Callable[[], Iterable[pa.Table]]
"""Reads a run's rows, which are sorted by the key, a piece at a time."""


@dataclass(frozen=True, slots=True)
class Order:
    """What rows are ordered and told apart by."""

    keys: tuple[str, ...]
    sequence: str | None
    """The table's `sequence.field`. None: the number that the writer gave the row decides alone."""
    where: str
    """The table, for an error."""


@dataclass(frozen=True, slots=True)
class _RunPiece:
    rows: pa.Table
    keys: KeyBytes
    sequences: Longs
    numbers: Longs

    def slice(self, start: int, stop: int) -> _RunPiece:
        rows = self.rows.slice(start, stop - start)
        return _RunPiece(rows, self.keys.slice(start, stop), self.sequences[start:stop], self.numbers[start:stop])


class _SortedRun:
    """A run, at the rows that were not taken from it yet."""

    def __init__(self, pieces: Iterable[pa.Table], order: Order) -> None:
        self._pieces = iter(pieces)
        self._order = order
        self._last: KeyBytes | None = None
        self.piece: _RunPiece | None = None
        """None: it is at its end."""
        self._next()

    def take(self, bound: KeyBytes) -> _RunPiece:
        """The rows up to a key, which is not above this piece's last."""
        piece = present(self.piece, "a run is read after its end", self._order.where)
        count = rows_up_to(piece.keys, bound)
        taken = piece.slice(0, count)
        if count == len(piece.keys):
            self._last = taken.keys.at(count - 1)
            self._next()
        else:
            self.piece = piece.slice(count, len(piece.keys))
        return taken

    def _next(self) -> None:
        rows = next((rows for rows in self._pieces if rows.num_rows), None)
        self.piece = None if rows is None else _prepared(rows, self._order)
        if self.piece is not None and self._last is not None and compare(self._last, self.piece.keys.at(0)) >= 0:
            raise Corrupt("a lake file is not sorted by its key", detail=self._order.where, hint="which program wrote it?")


def merged(opens: Sequence[Open], order: Order, *, runs_max: int = RUNS_MAX) -> Iterator[pa.Table]:
    """The rows of these runs, of each key one, sorted. A later run wins where nothing else tells."""
    with _spilled(opens, order, runs_max) as few:
        yield from _merge_runs([_SortedRun(open_run(), order) for open_run in few], order)


def merged_whole(tables: Sequence[pa.Table], order: Order) -> pa.Table:
    """The same of sorted tables that are in memory."""
    return _merge_pieces([_prepared(table, order) for table in tables if table.num_rows] or [_prepared(tables[0], order)], order)


def without_deletes(rows: pa.Table) -> pa.Table:
    kinds = rows.column(KIND).combine_chunks().to_numpy()
    kept = (kinds == 0) | (kinds == 2)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _merge_runs(runs: list[_SortedRun], order: Order) -> Iterator[pa.Table]:
    while runs := [run for run in runs if run.piece is not None]:
        bound: KeyBytes | None = None
        for run in runs:
            if run.piece is not None:
                last = run.piece.keys.at(len(run.piece.keys) - 1)
                bound = last if bound is None or compare(last, bound) < 0 else bound
        if bound is not None:
            taken = [piece for run in runs for piece in [run.take(bound)] if len(piece.keys)]
            yield _merge_pieces(taken, order)


def _merge_pieces(pieces: Sequence[_RunPiece], order: Order) -> pa.Table:
    keys = join([piece.keys for piece in pieces])
    starts = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece.keys) for piece in pieces], out=starts[1:])
    sequences = np.concatenate([piece.sequences for piece in pieces])
    numbers = np.concatenate([piece.numbers for piece in pieces])
    chosen = merge(keys, starts, sequences, numbers, order.where)
    if len(pieces) == 1:
        return pieces[0].rows
    return pa.concat_tables([piece.rows for piece in pieces]).combine_chunks().take(pa.array(chosen))


def _prepared(rows: pa.Table, order: Order) -> _RunPiece:
    rows = rows.combine_chunks()
    keys = encode([_array(rows.column(name)) for name in order.keys])
    numbers = _longs(_array(rows.column(NUMBER)))
    sequences = numbers if order.sequence is None else _longs(_array(rows.column(order.sequence)))
    return _RunPiece(rows, keys, sequences, numbers)


def _array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _longs(column: pa.Array) -> npt.NDArray[np.int64]:
    """A sequence as numbers. NULL is less than any."""
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return np.array(pc.fill_null(column.cast(pa.int64()), _NULL).to_numpy(), np.int64)


# ---- more runs than may be open


@contextmanager
def _spilled(opens: Sequence[Open], order: Order, runs_max: int) -> Iterator[Sequence[Open]]:
    """The same runs as few: neighbours are merged, so that a later one still is."""
    with tempfile.TemporaryDirectory(prefix="snowmelt-merge-") as folder:
        number = 0
        while len(opens) > runs_max:
            fewer: list[Open] = []
            for first in range(0, len(opens), runs_max):
                group = opens[first : first + runs_max]
                if len(group) > 1:
                    path = f"{folder}/{number}"
                    number += 1
                    _spill(path, _merge_runs([_SortedRun(open_run(), order) for open_run in group], order))
                    fewer.append(_reader(path))
                else:
                    fewer += group
            opens = fewer
        yield opens


def _spill(path: str, tables: Iterable[pa.Table]) -> None:
    writer = None
    with pa.OSFile(path, "wb") as file:
        for table in tables:
            if writer is None:
                writer = pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
            for batch in table.combine_chunks().to_batches():
                for start in range(0, batch.num_rows, rows := max(1, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes))):
                    writer.write_batch(batch.slice(start, rows))
        if writer is not None:
            writer.close()


def _reader(path: str) -> Open:
    def opened() -> Iterator[pa.Table]:
        with pa.OSFile(path) as file:
            if file.size():
                for batch in pa.ipc.open_stream(file):
                    yield pa.Table.from_batches([batch])

    return opened
