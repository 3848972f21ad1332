"""Values of any nested type come back from rows and from the log as they were written, and a spoiled one is never more than an error."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.fluss.formats.batches import BatchDecoder, log_batches
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import FlussType, Root, Schema, Versions, read_schema
from tests.kit.fluss_bytes import arrow_body, compacted_row, log_batch, schema_of, seen, shown, stored_row, wire_batch
from tests.kit.fluss_nested import kinds, values

T = FlussType


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[list[Any]]]:
    schema = schema_of(T(Root.INTEGER), *draw(st.lists(kinds, min_size=1, max_size=3)))
    row = st.tuples(*(values(column.type) for column in schema.columns)).map(list)
    return schema, draw(st.lists(row, min_size=1, max_size=5))


def assert_same(schema: Schema, rows: list[list[Any]], batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        batch.validate(full=True)
    found = pa.Table.from_batches(batches).combine_chunks()
    for place, column in enumerate(schema.columns):
        assert found.schema.field(place).equals(column.field)
        assert seen(found.column(place).combine_chunks()) == [shown(column.type, row[place]) for row in rows]


@settings(deadline=None)
@given(tables(), st.integers(1, 6))
def test_nested_values_come_back_from_rows(table: tuple[Schema, list[list[Any]]], rows_max: int) -> None:
    schema, rows = table
    stored = [stored_row(schema, row) for row in rows]
    ends = np.cumsum([len(row) for row in stored])
    data = np.frombuffer(b"".join(stored), np.uint8)
    decoder = RowDecoder(Versions.one(schema), rows_max=rows_max)
    assert_same(schema, rows, list(decoder.decode(data, ends - np.array([len(row) for row in stored]), ends)))


@settings(deadline=None)
@given(tables())
def test_nested_values_come_back_from_the_log(table: tuple[Schema, list[list[Any]]]) -> None:
    schema, rows = table
    records = b""
    for row in rows:
        data = compacted_row(schema, row)
        records += struct.pack("<iB", len(data) + 1, 0) + data
    for log_format, body in (("ARROW", arrow_body(wire_batch(schema, rows))), ("COMPACTED", records)):
        (batch,) = log_batches(log_batch(body, base=0, rows=len(rows), kinds_in_body=log_format == "COMPACTED"), from_offset=0)
        assert_same(schema, rows, list(BatchDecoder(Versions.one(schema), log_format).decode(batch)))


@settings(deadline=None)
@given(kinds)
def test_a_nested_type_is_read_as_it_is_written_down(kind: FlussType) -> None:
    document = {"columns": [{"name": "c0", "data_type": kind.json, "id": 0}]}
    assert read_schema(1, json.dumps(document)) == schema_of(kind)
