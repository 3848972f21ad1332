"""The writers of one task. They share one budget, however many tables the task has.

Laws:
- Rows wait here until they are worth a file, up to `held_bytes_max` over all tables. When a batch does not fit, the table that holds the
  most is written first. So a task with few tables makes large files, and one with many tables makes smaller ones.
- A table has one writer, from its first file to its last, and rows reach it in the order of the log: only that writer knows which of two
  rows of equal `_seq` is the last (decision 19).
- A writer holds no rows itself: what it is given is in files when `write` returns.
- Waiting rows are copies. A batch itself refers to an arena that may be many times its size, and would keep all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import RECOPY, Corrupt, InvariantBroken, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.sinks.contract import SinkWriter


@dataclass(slots=True)
class _WaitingRows:
    """The rows of one table that are in no file yet, as Arrow messages."""

    schema: pa.Schema
    size: int = 0
    pieces: list[pa.Buffer] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, size: int) -> None:
        self.pieces.append(batch.serialize())
        self.size += size

    def take(self) -> pa.RecordBatch:
        """Take all rows out, as one batch."""
        batches = [pa.ipc.read_record_batch(piece, self.schema) for piece in self.pieces]
        self.pieces.clear()
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class Writers:
    def __init__(self, opened: Callable[[str], SinkWriter], names: Mapping[str, TableId], *, held_bytes_max: int) -> None:
        """`opened` makes a table's writer. `names` has the source table of each lake table, for errors."""
        self._opened = opened
        self._names = names
        self._held_bytes_max = held_bytes_max
        self._writers: dict[str, SinkWriter] = {}
        self._waiting: dict[str, _WaitingRows] = {}
        self._targets: dict[str, None] = {}
        """In the order of their first rows."""
        self.held_bytes = 0
        self.rows = 0

    def write(self, target: str, batch: pa.RecordBatch) -> None:
        """Rows of one table, in the order of their changes."""
        if not batch.num_rows:
            return
        self._targets[target] = None
        self.rows += batch.num_rows
        size = pa.ipc.get_record_batch_size(batch)
        waiting = self._waiting.get(target)
        if size > self._held_bytes_max or (waiting is not None and waiting.schema != batch.schema):
            self._flush(target)
        if size > self._held_bytes_max:
            self._write(target, batch)
            return
        while self.held_bytes + size > self._held_bytes_max:
            self._flush(max(self._waiting, key=lambda name: self._waiting[name].size))
        self._waiting.setdefault(target, _WaitingRows(batch.schema)).add(batch, size)
        self.held_bytes += size

    def finish(self) -> dict[str, Staged]:
        """Write the waiting rows. The staged files, by table. Nothing can be written after that."""
        staged = {}
        for target in self._targets:
            self._flush(target)
            with trouble_of(self._names[target]):
                staged[target] = self._writers.pop(target).finish()
        return staged

    def _flush(self, target: str) -> None:
        waiting = self._waiting.pop(target, None)
        if waiting is not None:
            self.held_bytes -= waiting.size
            self._write(target, waiting.take())

    def _write(self, target: str, batch: pa.RecordBatch) -> None:
        with trouble_of(self._names[target]):
            if target not in self._writers:
                self._writers[target] = self._opened(target)
            self._writers[target].write(batch)


@contextlib.contextmanager
def trouble_of(name: TableId) -> Iterator[None]:
    """Errors of a lake table become errors of its source table. If the lake as a whole fails, the driver finds that."""
    try:
        yield
    except (SourceDrift, Corrupt, InvariantBroken) as error:
        raise name.stuck(error.fact, detail=error.detail, hint=error.hint or RECOPY) from error
