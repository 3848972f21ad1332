"""Batches of Fluss' log into Arrow."""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest

from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.fluss.formats.batches import KIND, OFFSET, TIMESTAMP, BatchDecoder, log_batches
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema, Versions
from tests.kit.fluss_bytes import arrow_body, compacted_row, log_batch, schema_of

SCHEMA = schema_of(
    FlussType(root=Root.INTEGER, nullable=False),
    FlussType(root=Root.STRING),
    FlussType(root=Root.BINARY, length=2),
    FlussType(root=Root.TIME, precision=0),
    FlussType(root=Root.TIME, precision=6),
    FlussType(root=Root.TIMESTAMP_LTZ, precision=6),
)
VERSIONS = Versions.one(SCHEMA)
WIRE = pa.schema([pa.field(column.name, column.type.wire) for column in SCHEMA.columns])


def body(rows: int, first: int = 0, codec: str | None = None) -> bytes:
    columns: list[Any] = [
        list(range(first, first + rows)),
        [None if row % 3 == 1 else f"text {row}" for row in range(rows)],
        [b"ab"] * rows,
        list(range(rows)),
        [row * 1000 for row in range(rows)],
        [-row for row in range(rows)],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, WIRE, strict=True)]
    return arrow_body(pa.RecordBatch.from_arrays(arrays, schema=WIRE), codec)


def read(data: bytes, *, versions: Versions = VERSIONS, log_format: str = "ARROW", from_offset: int = 0) -> list[dict[str, Any]]:
    decoder = BatchDecoder(versions, log_format)
    found = [piece for batch in log_batches(data, from_offset=from_offset) for piece in decoder.decode(batch)]
    for piece in found:
        piece.validate(full=True)
        assert piece.schema == decoder.schema
    return pa.Table.from_batches(found, decoder.schema).to_pylist()


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("version", [0, 1])
def test_rows_come_with_their_offset_time_and_kind(codec: str | None, version: int) -> None:
    rows = read(log_batch(body(5, codec=codec), base=40, rows=5, kinds=[1, 2, 3, 4, 1], version=version))
    assert [row["c0"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["c1"] for row in rows] == ["text 0", None, "text 2", "text 3", None]
    assert [row[OFFSET] for row in rows] == [40, 41, 42, 43, 44]
    assert [row[KIND] for row in rows] == [0, 1, 2, 3, 0]
    assert {row[TIMESTAMP].timestamp() for row in rows} == {1_700_000_000}
    assert str(rows[1]["c3"]) == "00:00:01"
    assert str(rows[1]["c4"]) == "00:00:00.001000"


def test_appended_rows_are_inserts() -> None:
    assert [row[KIND] for row in read(log_batch(body(3), base=0, rows=3))] == [0, 0, 0]


def test_a_batch_without_rows_takes_its_offset() -> None:
    data = log_batch(body(2), base=0, rows=2) + log_batch(b"", base=2, rows=0, kinds=[]) + log_batch(body(1), base=3, rows=1)
    assert [batch.next for batch in log_batches(data, from_offset=0)] == [2, 3, 4]
    assert [row[OFFSET] for row in read(data)] == [0, 1, 3]


def test_what_the_answers_limit_cut_off_is_left_out() -> None:
    data = log_batch(body(2), base=0, rows=2) + log_batch(body(2), base=2, rows=2)
    whole = len(log_batch(body(2), base=0, rows=2))
    for size in (whole, whole + 1, whole + 20, whole + 52, len(data) - 1):
        assert [row[OFFSET] for row in read(data[:size])] == [0, 1]


def test_batches_before_the_wanted_offset_are_left_out() -> None:
    data = log_batch(body(2), base=0, rows=2) + log_batch(body(2), base=2, rows=2)
    assert [batch.base for batch in log_batches(data, from_offset=2)] == [2]
    assert [batch.base for batch in log_batches(data, from_offset=1)] == [0, 2]


def test_lost_batches_are_seen() -> None:
    data = log_batch(body(2), base=0, rows=2) + log_batch(body(2), base=4, rows=2)
    with pytest.raises(Corrupt, match="2 expected, 4 found"):
        read(data)


def test_older_batches_are_read_by_their_own_schema() -> None:
    added = Schema(2, (*SCHEMA.columns, Column(9, "late", FlussType(root=Root.DECIMAL, precision=20))))
    versions = Versions(added, {1: SCHEMA, 2: added})
    wire = WIRE.append(pa.field("late", pa.decimal128(20, 0)))
    arrays = [pa.array([None if field.name != "c0" else 7], field.type) for field in wire]
    newer = arrow_body(pa.RecordBatch.from_arrays(arrays, schema=wire))
    rows = read(log_batch(body(2), base=0, rows=2) + log_batch(newer, base=2, rows=1, schema_id=2), versions=versions)
    assert [(row["c0"], row["late"]) for row in rows] == [(0, None), (1, None), (7, None)]


def test_compacted_logs_are_read_too() -> None:
    schema = schema_of(FlussType(root=Root.INTEGER), FlussType(root=Root.STRING))
    rows = [(1, [7, "a"]), (2, [7, "a"]), (3, [7, None]), (0, [8, "x" * 100_000])]
    data = b""
    for kind, values in rows:
        row = compacted_row(schema, values)
        data += struct.pack("<iB", len(row) + 1, kind) + row
    batch = log_batch(data, base=9, rows=4, kinds_in_body=True)
    found = read(batch, versions=Versions.one(schema), log_format="COMPACTED")
    assert [(row["c0"], row["c1"], row[OFFSET], row[KIND]) for row in found] == [
        (7, "a", 9, 0), (7, "a", 10, 1), (7, None, 11, 2), (8, "x" * 100_000, 12, 0),
    ]  # fmt: skip
    for wrong in (data[:-1], data + b"\0", data[:3], struct.pack("<iB", 0, 1) + data[5:], struct.pack("<iB", -5, 1) + data[5:]):
        with pytest.raises(Corrupt):
            read(log_batch(wrong, base=9, rows=4, kinds_in_body=True), versions=Versions.one(schema), log_format="COMPACTED")


def test_indexed_logs_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="INDEXED"):
        BatchDecoder(VERSIONS, "INDEXED")


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """With a right checksum, so that what is behind it shows."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    changed[25:29] = struct.pack("<I", google_crc32c.value(bytes(changed[29:])))
    return bytes(changed)


def test_a_wrong_checksum_is_seen() -> None:
    data = bytearray(log_batch(body(2), base=0, rows=2))
    data[-1] ^= 1
    with pytest.raises(Corrupt, match="wrong checksum"):
        read(bytes(data))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, struct.pack("<q", -1)),
        (8, struct.pack("<i", 3)),
        (8, struct.pack("<i", -1)),
        (12, b"\x02"),
        (29, struct.pack("<h", -1)),
        (32, struct.pack("<i", -1)),
        (48, struct.pack("<i", -1)),
        (48, struct.pack("<i", 1)),
        (48, struct.pack("<i", 3)),
        (52, b"\x05"),
        (54, b"\0\0\0\0"),
        (58, b"\xff\xff\xff\x7f"),
    ],
)
def test_a_batch_that_can_not_be_is_refused(at: int, value: bytes) -> None:
    data = log_batch(body(2), base=0, rows=2, kinds=[1, 4])
    assert len(read(data)) == 2
    with pytest.raises(Corrupt):
        read(patched(data, at, value))


def test_a_null_in_a_column_that_has_none_is_refused() -> None:
    arrays = [pa.array([None], field.type) for field in WIRE]
    with pytest.raises(Corrupt, match="NULL"):
        read(log_batch(arrow_body(pa.RecordBatch.from_arrays(arrays, schema=WIRE)), base=0, rows=1))


def nested_batch(kind: FlussType, array: pa.Array) -> bytes:
    schema = pa.schema([pa.field("c0", array.type)])
    assert array.type == kind.wire
    return log_batch(arrow_body(pa.RecordBatch.from_arrays([array], schema=schema)), base=0, rows=len(array))


WHOLE = FlussType(root=Root.INTEGER, nullable=False)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (FlussType.array(WHOLE), [[1], [2, None]]),
        (FlussType.row({"a": WHOLE}), [{"a": 1}, {"a": None}]),
        (FlussType.row({"a": FlussType.row({"b": WHOLE}, nullable=False)}), [{"a": None}]),
        (FlussType.map(WHOLE, FlussType(root=Root.STRING)), [[{"key": 1, "value": None}, {"key": None, "value": "x"}]]),
        (FlussType.map(WHOLE, WHOLE), [[{"key": 1, "value": None}]]),
        (FlussType.map(WHOLE, WHOLE), [[{"key": 1, "value": 2}, None]]),
    ],
)
def test_a_null_inside_of_a_value_where_none_may_be_is_refused(kind: FlussType, values: list[Any]) -> None:
    """Arrow's own maps end the process at a key that is NULL."""
    with pytest.raises(Corrupt, match="a NULL where none may be"):
        read(nested_batch(kind, pa.array(values, kind.wire)), versions=Versions.one(schema_of(kind)))


@pytest.mark.parametrize("inner_null", [True, False])
def test_what_is_in_a_row_that_is_null_may_be_null(inner_null: bool) -> None:
    """Fluss' writers leave all bits of such a row unset. It makes no difference whether those of the rows in it are."""
    kind = FlussType.row({"a": FlussType.row({"b": WHOLE}, nullable=False), "c": WHOLE})
    numbers = pa.array([None, 1], pa.int32())
    inner = pa.StructArray.from_arrays([numbers], fields=list(kind.wire.field("a").type), mask=pa.array([inner_null, False]))
    rows = pa.StructArray.from_arrays([inner, numbers], fields=list(kind.wire), mask=pa.array([True, False]))
    assert rows.field("c").null_count == 1
    found = read(nested_batch(kind, rows), versions=Versions.one(schema_of(kind)))
    assert [row["c0"] for row in found] == [None, {"a": {"b": 1}, "c": 1}]


@pytest.mark.parametrize("element", [FlussType(root=Root.STRING), FlussType.array(WHOLE), FlussType.map(WHOLE, FlussType(root=Root.BYTES))])
def test_what_is_empty_has_offsets_though_its_writer_left_them_out(element: FlussType) -> None:
    """Arrow reads the first offset of what is empty, too, and ends the process where there is none."""
    kind = FlussType.array(element)
    empty = pa.array([], element.wire)
    left_out = [None if place == 0 else pa.py_buffer(b"") for place in range(3 if element.root is Root.STRING else 2)]
    inner = pa.Array.from_buffers(element.wire, 0, left_out, children=None if element.root is Root.STRING else [empty.values])
    array = pa.Array.from_buffers(kind.wire, 2, [pa.py_buffer(b"\2"), pa.py_buffer(bytes(12))], 1, 0, [inner])
    (batch,) = log_batches(nested_batch(kind, array), from_offset=0)
    (found,) = BatchDecoder(Versions.one(schema_of(kind)), "ARROW").decode(batch)
    assert found.column(0).to_pylist() == [None, []]
    assert found.column(0).values.buffers()[1].size == 4
    assert found.nbytes >= 13
