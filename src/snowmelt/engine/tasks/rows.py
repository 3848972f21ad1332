"""Rows as a lake table holds them.

    upsert      the source's columns, `_seq`; a delete is a kind of the writer's. Only the key can't be NULL
    changelog   the source's columns, `_op`, `_position`, `_ts`, `_ordinal`, `_seq`; each change is a row of its own

A table that is divided into partitions by a column of ours has that one before `_seq` (`sinks.partitions`).

In a change table `_seq` orders transactions and `_ordinal` the rows inside one. Rows that were copied have the kind `read`. No row is ever
deleted from it. If the source was emptied or created again, a row of the kind `truncate` says that all rows before it are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.changes import DELETED, UPDATE_BEFORE, Changes
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.tables import TableShape
from snowmelt.errors import RECOPY
from snowmelt.model import sequence
from snowmelt.model.numbers import LogOffset
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE, Partition, target_columns
from snowmelt.sinks.partitions import DEFAULT, key_in

OP, POSITION, TIME, ORDINAL = "_op", "_position", "_ts", "_ordinal"
KINDS: Final = pa.array(["insert", "update_before", "update_after", "delete"])
"""The names of kinds, by their numbers in `contract.changes`."""
READ, TRUNCATE = "read", "truncate"
ADDS: Final = (READ, "insert", "update_after")
TAKES: Final = ("delete", "update_before")
"""Kinds that add a row to the table, and kinds that remove one."""
CHANGE_FIELDS: Final = pa.schema(
    [
        pa.field(OP, pa.string()),
        pa.field(POSITION, pa.string()),
        pa.field(TIME, pa.timestamp("us", "UTC")),
        pa.field(ORDINAL, pa.int64()),
    ]
)
"""The columns of a change table after the source's."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A source table as tasks see it: its shape, and the lake table that its rows go to."""

    table: TableShape
    target: str
    keyed: bool
    partition: Partition = None


def lake_schema(table: TableShape, database: Database, *, keyed: bool, partition: Partition = None) -> pa.Schema:
    """The source's columns in the lake. All but the key can be NULL there: a delete has no values, and neither has `truncate`."""
    return target_columns(database.schema_of(table), key_in(partition, table.key) if keyed else ())


def chunk_rows(
    batch: pa.RecordBatch, source: Sourced, database: Database, *, visible: LogOffset, place: str, time_us: int
) -> pa.RecordBatch:
    """The rows of a chunk, for the lake. `place`: where the read is in the log."""
    count = batch.num_rows
    seq = np.full(count, sequence.of_chunk(visible), np.int64)
    parts = _partitions(batch, source)
    if source.keyed:
        return _keyed(batch, source, database, seq, np.full(count, INSERT, np.int8), parts)
    # Rows of one read have no order.
    system = (_same(READ, count), _same(place, count), _times(time_us, count), pa.array(np.arange(count)))
    return _change(batch, source, database, system, seq, parts)


def change_rows(item: Changes, source: Sourced, database: Database, kept: Mask, offsets: Longs, ordinals: Longs, file: str) -> Any:
    """The kept rows of a batch of changes, for the lake. In a keyed table a before-image becomes a delete of its key in its partition,
    unless the after-image has the same key and the same partition."""
    if item.partial:
        raise item.table.id.stuck("the log holds partial rows", detail=str(item.table.id), hint=item.partial)
    ops = item.rows.column("_op").to_numpy()
    before = ops == UPDATE_BEFORE
    source = replace(source, table=item.table)
    parts = _partitions(item.rows, source)
    if source.keyed and before.any():
        kept = kept & ~(before & _same_place_as_next(item, parts))
    rows = item.rows
    if not kept.all():
        rows, parts = rows.filter(pa.array(kept)), parts if parts is None else parts.filter(pa.array(kept))
    seq = sequence.of_change(offsets[kept])
    if source.keyed:
        kinds = np.where(before | (ops == DELETED), np.int8(DELETE), np.int8(INSERT))[kept]
        return _keyed(rows, source, database, seq, kinds, parts)
    place = pc.binary_join_element_wise(place_text(file, ""), pc.cast(rows.column("_position"), pa.string()), "")
    system = (KINDS.take(pa.array(ops[kept])), place, rows.column("_ts"), pa.array(ordinals[kept]))
    return _change(rows, source, database, system, seq, parts)


def place_text(file: str, offset: int | str) -> str:
    """A place of the log as users see it in `_position`."""
    return f"{file}:{offset}" if file else str(offset)


def truncate_row(columns: pa.Schema, *, at: int, time_us: int) -> pa.RecordBatch:
    """The row of a change table, with these columns, that says that the source was emptied at an offset."""
    said = {OP: _same(TRUNCATE, 1), TIME: _times(time_us, 1), ORDINAL: pa.array([0], pa.int64())}
    # Of ours, the column of a partition alone can't be NULL.
    said |= {field.name: _same(DEFAULT, 1) for field in columns if not field.nullable}
    said[SEQUENCE] = pa.array([sequence.of_change(at)], pa.int64())
    arrays = [said.get(field.name, pa.nulls(1, field.type)) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class RowNumbering:
    """Numbers the rows of each transaction of one table, over batches."""

    def __init__(self) -> None:
        self._offset = -1
        self._count = 0

    def of(self, offsets: Longs) -> Longs:
        starts = np.flatnonzero(np.diff(offsets, prepend=-1))
        lengths = np.diff(starts, append=len(offsets))
        numbers = np.arange(len(offsets)) - np.repeat(starts, lengths)
        if len(offsets):
            if offsets[0] == self._offset:
                numbers[: int(lengths[0])] += self._count
            self._offset, self._count = int(offsets[-1]), int(numbers[-1]) + 1
        return numbers


def _partitions(rows: pa.RecordBatch, source: Sourced) -> pa.Array | None:
    """The partition of each row, if the target has any."""
    if source.partition is None:
        return None
    values = source.partition.values(rows)
    if source.partition.too_long(values):
        hint = f"shorten such values in the source, or choose another partition_by; then {RECOPY}"
        raise source.table.id.stuck("the name of a partition would be longer than a folder's", detail=str(source.partition), hint=hint)
    if source.partition.is_unclear(values):
        hint = f"change such values in the source, or take partition_by: {source.partition.column}:value; then {RECOPY}"
        raise source.table.id.stuck(
            "the name of a partition is white space of a kind that not all readers know", detail=str(source.partition), hint=hint
        )
    return values


def _own_column(source: Sourced, parts: pa.Array | None) -> tuple[list[Any], list[pa.Field]]:
    """The column of the partition, if it is none of the source's."""
    own = source.partition.own if source.partition is not None else ()
    return [parts for _ in own], list(own)


def _keyed(
    batch: pa.RecordBatch, source: Sourced, database: Database, seq: Longs, kinds: npt.NDArray[np.int8], parts: pa.Array | None
) -> pa.RecordBatch:
    table = source.table
    schema = lake_schema(table, database, keyed=True, partition=source.partition)
    arrays: list[Any] = [batch.column(field.name) for field in schema]
    for name in table.key:
        if batch.column(name).null_count:
            hint = f"correct or delete such rows in the source; then {RECOPY}"
            raise table.id.stuck("a key holds a date that does not exist, which the lake can't have as NULL", detail=name, hint=hint)
    own, own_fields = _own_column(source, parts)
    fields = [*schema, *own_fields, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8())]
    return pa.RecordBatch.from_arrays([*arrays, *own, pa.array(seq, pa.int64()), pa.array(kinds, pa.int8())], schema=pa.schema(fields))


def _change(
    batch: pa.RecordBatch, source: Sourced, database: Database, system: tuple[Any, ...], seq: Longs, parts: pa.Array | None
) -> pa.RecordBatch:
    columns = lake_schema(source.table, database, keyed=False)
    own, own_fields = _own_column(source, parts)
    fields = [*columns, *own_fields, *CHANGE_FIELDS, pa.field(SEQUENCE, pa.int64(), nullable=False)]
    arrays = [*(batch.column(name) for name in source.table.names), *own, *system, pa.array(seq, pa.int64())]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _times(time_us: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(time_us, pa.timestamp("us", "UTC")), count)


def _same_place_as_next(item: Changes, parts: pa.Array | None) -> Mask:
    """Whether each row has the key and the partition of the row after it. The row after a before-image is its after-image."""
    same = np.full(item.rows.num_rows, True)
    same[-1:] = False
    for column in [*(item.rows.column(name) for name in item.table.key), *([] if parts is None else [parts])]:
        equal = pc.equal(column.slice(0, len(column) - 1), column.slice(1))
        same[:-1] &= np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), np.bool_)
    return same
