"""A table of Fluss with its state, and as many drivers of it as a test wants."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from snowmelt.commit.records import Entry, Intent, Reshape, Staged, StagedFor, StagedName
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.table import DELETE, INSERT, KIND, TableId
from snowmelt.sinks.fluss.sink import FlussSink
from tests.kit.fluss_servers import Tables

COLUMNS = pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string())])
Row = tuple[int, str | None]
"""Without a name it is a delete."""
_numbers = itertools.count(1)


class Sink:
    """A table of Fluss, its state, and as many drivers as a test wants."""

    def __init__(self, server: FlussServer, tables: Tables, state: Path) -> None:
        self.server, self.tables, self.state = server, tables, state
        self.path = TableId("sinks", f"t{next(_numbers)}")
        self.target = str(self.path)

    def driver(self) -> FlussSink:
        return FlussSink(FlussTarget(self.server.bootstrap), str(self.state))

    def made(self, columns: pa.Schema = COLUMNS, *, buckets: int = 2) -> FlussSink:
        lake = self.driver()
        lake.create(self.target, columns, [columns.names[0]], buckets=buckets)
        return lake

    def staged(self, lake: FlussSink, epoch: int, rows: list[Row]) -> Staged:
        writer = lake.writer(self.target, str(StagedName(1, StagedFor.EPOCH, epoch, "a1", "")))
        writer.write(self.batch(rows))
        return writer.finish()

    def batch(self, rows: list[Row]) -> pa.RecordBatch:
        arrays = [
            pa.array([row[0] for row in rows], pa.int32()),
            pa.array([row[1] for row in rows], pa.string()),
            pa.array([INSERT if row[1] is not None else DELETE for row in rows], pa.int8()),
        ]
        return pa.RecordBatch.from_arrays(arrays, ["id", "name", KIND])

    def intent(self, lake: FlussSink, epoch: int, *staged: Staged, reshape: Reshape | None = None) -> tuple[Intent, Entry]:
        state = lake.describe(self.target)
        files = tuple(name for one in staged for name in one.files)
        messages = (*lake.preface(self.target), *(message for one in staged for message in one.messages))
        entry = Entry(
            target=self.target,
            uuid=state.identity,
            buckets=state.buckets,
            schema=state.schema,
            new_schema=None,
            base=state.progress,
            empties=(),
            files=files,
            messages=messages,
        )
        if reshape is not None:
            entry = replace(entry, new_schema=reshape.schema, shape=reshape.content)
        return Intent(
            epoch=epoch,
            generation=1,
            nonce="a1",
            after=epoch - 1,
            upto=epoch,
            time_ms=None,
            facts=(),
            entries=(entry,),
            sequence_max=2 * epoch,
            segment=0,
        ), entry

    def bring(self, lake: FlussSink, epoch: int, *rows: Row) -> int:
        return lake.commit(*self.intent(lake, epoch, self.staged(lake, epoch, list(rows))))

    def names(self, *keys: int) -> list[str | None]:
        """What the client that users have finds by these keys."""
        found = self.tables.lookup(self.path, [{"id": key} for key in keys])
        return [row and row["name"] for row in found]

    def changes(self, ends: int) -> list[tuple[int, str]]:
        """Its log: rows with their kinds of change."""
        lake = self.driver()
        logs = lake._repeated(lambda links: lake._ends(links, self.target, lake._described(self.target)))
        assert sum(logs.values()) == ends
        records = [record for _, record in self.tables.log(self.path, logs)]
        return sorted((record.row["id"], record.change_type.short_string()) for record in records)
