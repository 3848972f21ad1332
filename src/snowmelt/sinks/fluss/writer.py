"""The writer of one Fluss table, in a task: rows become staged objects of encoded records, by bucket."""

from __future__ import annotations

from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa

from snowmelt.commit.records import Staged
from snowmelt.errors import check, present
from snowmelt.fluss.formats.upserts import UpsertEncoder, UpsertRun, joined
from snowmelt.fluss.tables import ReadableTable
from snowmelt.model.table import DELETE, KIND
from snowmelt.sinks.fluss.staging import BatchPiece, StagedObject, name_digest, object_key
from snowmelt.store.contract import Store

OBJECT_BYTES_MAX: Final = 8 << 20
RUN_BYTES_MAX: Final = 1 << 20
"""Of what becomes a batch."""


class FlussWriter:
    """Stages rows of one table, in a task. Not shared; `finish` once."""

    def __init__(self, target: str, prefix: str, table: ReadableTable, store: Store, *, at_once: bool) -> None:
        bucketing = present(table.bucketing(), "a Fluss table has no bucket key", target)
        self._target = target
        self._prefix = prefix
        self._schema = table.versions.target
        self._names = frozenset(column.name for column in self._schema.columns)
        self._encoder = UpsertEncoder(self._schema, bucketing, run_bytes_max=RUN_BYTES_MAX)
        self._store = store
        self._at_once = at_once
        self._rows = self._held_bytes = 0
        self._held: dict[int, list[UpsertRun]] = {}
        self._objects: list[StagedObject] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, with their kind. Which change came later is told by that order, not by `_seq`."""
        lacking = self._names - set(batch.schema.names)
        check(not lacking, "rows lack columns of their Fluss table", f"{self._target}: {', '.join(sorted(lacking))}")
        deleted = np.asarray(batch.column(KIND).to_numpy() == DELETE)
        for run in self._encoder.encode(batch, deleted):
            self._held.setdefault(run.bucket, []).append(run)
            self._held_bytes += len(run.records)
            if self._held_bytes >= OBJECT_BYTES_MAX:
                self._stage()
        if self._at_once:
            self._stage()
        self._rows += batch.num_rows

    def finish(self) -> Staged:
        self._stage()
        return Staged(tuple(one.name for one in self._objects), tuple(one.encoded() for one in self._objects), self._rows)

    def _stage(self) -> None:
        if not self._held:
            return
        content = bytearray()
        pieces: list[BatchPiece] = []
        for bucket, runs in sorted(self._held.items()):
            for run in joined(runs, bytes_max=RUN_BYTES_MAX):
                pieces.append(BatchPiece(bucket, len(content), len(run.records), run.count))
                content += run.records
        # A file's name is its own among those of all tables.
        name = f"{self._prefix}{name_digest(self._target)}-{len(self._objects)}"
        self._store.put_data(object_key(self._target, name), memoryview(content))
        self._objects.append(StagedObject(name, self._schema.id, google_crc32c.value(bytes(content)), tuple(pieces)))
        self._held.clear()
        self._held_bytes = 0
