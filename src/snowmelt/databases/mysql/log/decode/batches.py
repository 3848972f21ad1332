"""Row events of a window as Arrow batches, table by table.

Laws:
- Batches of one table come in the order of the log, and so do the rows inside. Batches of different tables may overtake each other.
- Rows are read with the schema that was in force at their commit: no DDL lies between a row and its commit.

Memory: one arena per batch, which is used again when the batch is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from snowmelt.columnar.arena import Arena, ArenaPool, Layout, Longs, Storage
from snowmelt.databases.contract.changes import SYSTEM_FIELDS
from snowmelt.databases.mysql.log import images as kernel
from snowmelt.databases.mysql.log.decode.finishing import finished
from snowmelt.databases.mysql.log.decode.items import ChangeBatch, Counters, Transactions
from snowmelt.databases.mysql.log.decode.tables import LogTables
from snowmelt.databases.mysql.log.rowplan import RowPlan, plan_rows
from snowmelt.databases.mysql.log.scan import S, Walk
from snowmelt.databases.mysql.log.tablemap import TableMap, read_table_map
from snowmelt.databases.mysql.types import kinds
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import RECOPY, Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.limits import Limits

ABSENT: Final = "_absent"
"""A bitmap of the columns that an image lacks, low bit first; only in batches that hold partial images. Absent is not NULL."""
SYSTEM_STORAGE: Final = (Storage(1), Storage(8), Storage(4), Storage(8))
_PLANS_MAX: Final = 10_000
_PARTIAL_UPDATE: Final = 39


class BatchMaker:
    """Makes batches of the rows that a walk found. Keeps plans and arenas between ranges."""

    def __init__(self, tables: LogTables, options: TypeOptions, limits: Limits) -> None:
        self._tables = tables
        self._options = options
        self._limits = limits
        self._pool = ArenaPool()
        self._heaps: dict[TableId, dict[str, int]] = {}
        """The heap sizes that columns were seen to need."""
        self._plans: dict[tuple[bytes, MySqlTable | None], RowPlan] = {}
        self.counters = Counters()

    def make(self, walk: Walk, file: int, ended: Transactions) -> Iterator[ChangeBatch]:
        """All rows of groups that have ended since the last call, table by table."""
        count = int(walk.state[S.FLUSHED])
        if count:
            maps = walk.row_map[:count]
            order = np.argsort(maps, kind="stable").astype(np.int64)
            edges = np.flatnonzero(np.diff(maps[order])) + 1
            groups = sorted(np.split(order, edges), key=lambda group: int(group[0]))
            planned: dict[TableId, list[tuple[Longs, RowPlan]]] = {}
            for chosen in groups:
                first, last = int(chosen[0]), int(walk.row_commit[chosen[-1]])
                plan = self._plan(walk, int(maps[first]), Position(file, int(walk.row_commit[first])), last)
                if plan is None:
                    continue
                # Commits lie in the order of the log.
                later = chosen[int(np.searchsorted(walk.row_commit[chosen], self._tables.low(plan.table.id), "right")) :]
                if later.shape[0]:
                    planned.setdefault(plan.table.id, []).append((later, plan))
            for parts in planned.values():
                for chosen, plan in _in_turns(parts):
                    yield from self._table_rows(walk, file, chosen, plan, ended)
        walk.drop_rows()

    # ---- plans

    def _plan(self, walk: Walk, index: int, position: Position, last: int) -> RowPlan | None:
        """How to read the rows of a map that were committed from `position` to `last`; None where none of them is wanted."""
        flavour = self._tables.flavour
        body = walk.map_body(index)
        try:
            shape = read_table_map(body, flavour)
        except Corrupt as error:
            raise Corrupt(error.fact, detail=error.detail, position=str(position)) from None
        # Rows below `low` may have another shape than the one that is known.
        if not self._tables.captured(shape.table) or last <= self._tables.low(shape.table):
            return None
        schema = self._tables.schemas.find(shape.table, position)
        if schema is None and flavour == "mariadb" and shape.maybe_sequence:
            return None
        key = (body, schema)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[key] = self._fresh_plan(shape, schema, position)
        return plan

    def _fresh_plan(self, shape: TableMap, schema: MySqlTable | None, position: Position) -> RowPlan:
        try:
            return plan_rows(shape, schema, self._options)
        except SourceDrift as error:
            raise shape.table.stuck(error.fact, detail=f"{error.detail} at {position}".strip(), hint=error.hint) from None

    # ---- rows

    def _table_rows(self, walk: Walk, file: int, chosen: Longs, plan: RowPlan, ended: Transactions) -> Iterator[ChangeBatch]:
        position = Position(file, int(walk.row_commit[chosen[0]]))
        if np.any(walk.row_type[chosen] == _PARTIAL_UPDATE):
            plan = plan.with_raw_json()
        columns = len(plan.columns)
        absent = (columns + 7) // 8 if np.any(walk.row_partial[chosen]) else 0
        storage = [column.storage for column in plan.columns] + list(SYSTEM_STORAGE) + ([Storage(absent)] if absent else [])
        total = int((walk.row_end[chosen] - walk.row_at[chosen]).sum())
        heaps = self._first_heaps(plan, total)
        json_columns = sum(column.kind in (kinds.JSON, kinds.JSON_RAW) for column in plan.columns)
        state = np.zeros(kernel.STATE_SLOTS, np.int64)
        while True:
            # An image has at least one byte, so no more rows than bytes can follow. The halves of an update stay together.
            rows_max = max(2, min(self._limits.rows_per_batch, total + 2))
            layout = Layout(storage, rows_max=rows_max, heap_bytes=[*heaps, *([0] * (len(storage) - columns))])
            arena = Arena(self._pool, layout, valid=True)
            state[kernel.ROWS] = 0
            filled = kernel.fill(
                walk.data, walk.row_at, walk.row_end, walk.row_type, walk.row_commit, walk.row_ordinal, walk.row_time, chosen,
                plan.kind, plan.a, plan.b, layout.valid_at, layout.fixed_at, layout.heap_at, layout.heap_room, arena.heap_used,
                arena.memory, rows_max, absent, json_columns, state,
            )  # fmt: skip
            if filled == kernel.CORRUPT:
                event = int(chosen[min(int(state[kernel.EVENT]), len(chosen) - 1)])
                raise Corrupt(f"a row event of {plan.table.id} can't be read", position=f"{file}:{int(walk.row_commit[event])}")
            if filled == kernel.HEAP_TOO_SMALL:
                self._grow(heaps, plan, int(state[kernel.COLUMN]), int(state[kernel.NEED]), position)
                continue
            rows = int(state[kernel.ROWS])
            if rows:
                self.counters.changes += rows
                yield ChangeBatch(plan.table, self._batch(plan, arena, rows, absent, position), ended)
            if filled == kernel.DONE:
                self.counters.nulled_dates += int(state[kernel.NULLED_DATES])
                return

    def _first_heaps(self, plan: RowPlan, total: int) -> list[int]:
        """Heap sizes to begin with: small ones for few bytes, and at least what a column was once seen to need."""
        known = self._heaps.setdefault(plan.table.id, {})
        return [
            max(min(self._limits.heap_bytes, 4 * total + 4096), known.get(column.name, 0)) if column.storage.heap else 0
            for column in plan.columns
        ]

    def _grow(self, heaps: list[int], plan: RowPlan, column: int, need: int, position: Position) -> None:
        """Make room for a value that did not fit an empty arena."""
        name = plan.columns[column].name
        if need > self._limits.row_bytes_max:
            raise plan.table.id.stuck(
                f"a row of {plan.table.id} is larger than the limit",
                detail=f"column {name}, {need} bytes at {position}",
                hint="exclude the table",
            )
        self._heaps[plan.table.id][name] = heaps[column] = max(need, 2 * heaps[column])

    def _batch(self, plan: RowPlan, arena: Arena, rows: int, absent: int, position: Position) -> pa.RecordBatch:
        flavour, value_bytes_max = self._tables.flavour, self._limits.row_bytes_max
        arrays: list[pa.Array] = []
        fields: list[pa.Field] = []
        for index, column in enumerate(plan.columns[: len(plan.table.columns)]):
            try:
                array = finished(column, arena, index, rows, flavour=flavour, value_bytes_max=value_bytes_max)
            except pa.ArrowInvalid:
                what = f"column {column.name} of {plan.table.id} holds text that is not in its charset"
                raise Corrupt(what, position=str(position)) from None
            # An image may lack a column, so it is not declared NOT NULL.
            nullable = bool(absent) or column.nullable
            if not nullable and array.null_count:
                fact = f"a NOT NULL column of {plan.table.id} holds NULL in the log"
                raise plan.table.id.stuck(fact, detail=f"{column.name} at {position}", hint=RECOPY)
            arrays.append(array)
            fields.append(pa.field(column.name, array.type, nullable=nullable))
        for offset, system in enumerate(SYSTEM_FIELDS):
            arrays.append(arena.array(len(plan.columns) + offset, system.type, rows, nulls=0))
            fields.append(system)
        if absent:
            arrays.append(arena.array(len(plan.columns) + len(SYSTEM_FIELDS), pa.binary(absent), rows, nulls=0))
            fields.append(pa.field(ABSENT, pa.binary(absent), nullable=False))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _in_turns(parts: list[tuple[Longs, RowPlan]]) -> Iterator[tuple[Longs, RowPlan]]:
    """The events of one table in the order of the log.

    A table that the server opens again gets another number, hence another map. A transaction that used the old number may commit after one
    that used the new one, so the maps can take turns.
    """
    if len(parts) == 1:
        yield parts[0]
        return
    events = np.concatenate([chosen for chosen, _ in parts])
    part = np.repeat(np.arange(len(parts)), [chosen.shape[0] for chosen, _ in parts])
    order = np.argsort(events)
    events, part = events[order], part[order]
    edges = np.flatnonzero(np.diff(part)) + 1
    for chosen, first in zip(np.split(events, edges), [0, *edges.tolist()], strict=True):
        yield chosen, parts[int(part[first])][1]
