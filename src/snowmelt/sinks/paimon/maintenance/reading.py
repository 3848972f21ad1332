"""Data files of any age, read in the columns that the table has now, a piece at a time.

Laws:
- A column is its field id. One that a file lacks is NULL in it, and one that the table lacks is left out.
- A type has changed only as `shape` allows, or the file is not rewritten: each value is the same number in the wider type.
- A piece has about `PIECE_BYTES`, and of a file no more is decoded than a piece and a page of each column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift
from snowmelt.sinks.paimon.shape import widens
from snowmelt.sinks.paimon.table import file_path, local_path

NUMBER, KIND = "_SEQUENCE_NUMBER", "_VALUE_KIND"
"""Columns of a data file with a key that are not the table's."""
PIECE_BYTES: Final = 2 << 20
_PIECE_ROWS_MAX: Final = 32_768
_READ_BYTES: Final = 256 << 10
_FORMAT: Final = "parquet"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The columns of a table's data files, as of one of its schemas."""

    table: Any
    schema: Any
    """Paimon's."""
    arrow: pa.Schema
    """What is written: of a table with a key the two columns of Paimon's own first."""

    @property
    def keyed(self) -> bool:
        return bool(self.schema.primary_keys)

    @property
    def keys(self) -> list[str]:
        """The key without the columns of the partition, in which no two rows of a file differ."""
        return [name for name in self.schema.primary_keys if name not in self.schema.partition_keys]


def layout_of(table: Any, number: int) -> FileLayout:
    from pypaimon.schema.data_types import PyarrowFieldParser

    schema = _schema(table, number)
    fields = [pa.field(NUMBER, pa.int64(), nullable=False), pa.field(KIND, pa.int8(), nullable=False)] if schema.primary_keys else []
    for field in schema.fields:
        metadata = {"PARQUET:field_id": str(field.id)}
        fields.append(pa.field(field.name, PyarrowFieldParser.from_paimon_type(field.type), field.type.nullable, metadata))
    return FileLayout(table, schema, pa.schema(fields))


def read_file(layout: FileLayout, partition: Sequence[Any], bucket: int, file: Any) -> Iterator[pa.Table]:
    """The file's rows in order, in pieces, with the layout's columns."""
    path = file.external_path or file_path(layout.table, partition, bucket, file.file_name)
    if not file.file_name.endswith(f".{_FORMAT}"):
        hint = "set maintenance: {enabled: no} in its route"
        raise InvalidConfig("a lake table has files of a format that is not compacted", detail=path, hint=hint)
    with pa.OSFile(path) if local_path(layout.table) is not None else layout.table.file_io.new_input_stream(path) as stream:
        opened = pq.ParquetFile(stream, buffer_size=_READ_BYTES, pre_buffer=False)
        plan = _plan(layout, _schema(layout.table, file.schema_id), opened.schema_arrow.names, path)
        names = [name for name in plan if name is not None]
        metadata = opened.metadata
        size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
        rows = max(1, min(_PIECE_ROWS_MAX, PIECE_BYTES * metadata.num_rows // max(1, size)))
        for batch in opened.iter_batches(rows, columns=names, use_threads=False):
            yield _shaped(layout, plan, batch)


def _schema(table: Any, number: int) -> Any:
    schema = table.table_schema if number == table.table_schema.id else table.schema_manager.get_schema(number)
    if schema is None:
        raise Corrupt("a lake table lacks a schema that its files have", detail=f"{table.identifier}: schema {number}")
    return schema


def _plan(layout: FileLayout, old: Any, there: Sequence[str], path: str) -> list[str | None]:
    """For each column of the layout its name in a file of an older schema; None: the file has none."""
    before = {field.id: field for field in old.fields}
    plan: list[str | None] = [NUMBER, KIND] if layout.keyed else []
    for field in layout.schema.fields:
        was = before.get(field.id)
        if was is not None and not _same(was.type, field.type) and not widens(was.type, field.type):
            raise SourceDrift(
                "a lake table's files can't be brought to its columns",
                detail=f"{layout.table.identifier}.{field.name}: from {was.type} to {field.type}",
                hint="compact it with the program that changed the type",
            )
        plan.append(was.name if was is not None and was.name in there else None)
    if missing := {NUMBER, KIND}.difference(there) if layout.keyed else set():
        raise Corrupt("a lake file lacks a column", detail=f"{path}: {', '.join(sorted(missing))}")
    return plan


def _same(one: Any, other: Any) -> bool:
    return bool(str(one).removesuffix(" NOT NULL") == str(other).removesuffix(" NOT NULL"))


def _shaped(layout: FileLayout, plan: Sequence[str | None], batch: pa.RecordBatch) -> pa.Table:
    columns = []
    for field, name in zip(layout.arrow, plan, strict=True):
        if name is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(name)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=layout.arrow)
