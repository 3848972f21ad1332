"""Rows of Fluss' key-value store into Arrow."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable
from snowmelt.fluss.formats import compacted
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema, Versions, read_schema
from tests.kit.fluss_bytes import compacted_row, schema_of, seen, shown, stored_row, varint

T = FlussType
INSTANTS = [(-62135596800000, 0), (-1001, 0), (-1, 999_999), (0, 0), (1, 1000), (253402300799999, 999_000), None]

EDGES: list[tuple[FlussType, list[Any]]] = [
    (T(Root.BOOLEAN), [True, False, None]),
    (T(Root.TINYINT), [-128, 0, 127, None]),
    (T(Root.SMALLINT), [-32768, -1, 0, 32767, None]),
    (T(Root.INTEGER), [-(2**31), -1, 0, 1, 127, 128, 2**31 - 1, None]),
    (T(Root.BIGINT), [-(2**63), -1, 0, 127, 128, 2**35, 2**63 - 1, None]),
    (T(Root.FLOAT), [0.0, -1.5, float("inf"), None]),
    (T(Root.DOUBLE), [0.0, -1.5e300, float("-inf"), None]),
    (T(Root.DECIMAL, precision=1, scale=0), [-9, 0, 9, None]),
    (T(Root.DECIMAL, precision=18, scale=18), [-(10**18) + 1, 0, 10**18 - 1, None]),
    (T(Root.DECIMAL, precision=19, scale=0), [-(10**19) + 1, -1, 0, 127, 128, 10**19 - 1, None]),
    (T(Root.DECIMAL, precision=38, scale=38), [-(10**38) + 1, 0, 10**38 - 1, None]),
    (T(Root.CHAR, length=3), ["", "abc", "äö€", None]),
    (T(Root.STRING), ["", "x", "€" * 300, None]),
    (T(Root.BINARY, length=2), [b"\0\xff", None]),
    (T(Root.BYTES), [b"", b"\xff" * 1000, None]),
    (T(Root.DATE), [-719162, -1, 0, 2932896, None]),
    (T(Root.TIME, precision=0), [0, 86_399_000, 86_399_999, None]),
    (T(Root.TIME, precision=3), [0, 86_399_999, None]),
    (T(Root.TIME, precision=9), [0, 86_399_999, None]),
    *[
        (
            T(root, precision=precision),
            [(-62135596800000, 0), (-1001, 0), (-1, 999_999), (0, 0), (1, 1000), (253402300799999, 999_000), None],
        )
        for root in (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)
        for precision in (0, 3, 6)
    ],
    (T(Root.TIMESTAMP, precision=9), [(-9223372036855, 224_192), (-1, 999_999), (0, 1), (9223372036854, 775_807), None]),
]


def decode(versions: Versions, rows: Sequence[bytes], **options: Any) -> list[pa.RecordBatch]:
    ends = np.cumsum([len(row) for row in rows])
    starts = ends - np.array([len(row) for row in rows])
    batches = list(RowDecoder(versions, **options).decode(np.frombuffer(b"".join(rows), np.uint8), starts, ends))
    for batch in batches:
        batch.validate(full=True)
    return batches


@pytest.mark.parametrize(("kind", "values"), EDGES, ids=lambda value: str(value.root.name) if isinstance(value, FlussType) else "")
def test_every_type_comes_back_with_its_edges(kind: FlussType, values: list[Any]) -> None:
    schema = schema_of(kind)
    (batch,) = decode(Versions.one(schema), [stored_row(schema, [value]) for value in values])
    assert batch.schema.types == [kind.arrow]
    assert seen(batch.column(0)) == [shown(kind, value) for value in values]


def test_all_types_lie_side_by_side() -> None:
    schema = schema_of(*[kind for kind, _ in EDGES])
    rows = [[values[row % len(values)] for _, values in EDGES] for row in range(40)]
    (batch,) = decode(Versions.one(schema), [stored_row(schema, row) for row in rows])
    for place, (kind, _) in enumerate(EDGES):
        assert seen(batch.column(place)) == [shown(kind, row[place]) for row in rows]


def test_rows_that_do_not_fit_one_batch_begin_the_next() -> None:
    schema = schema_of(T(Root.INTEGER), T(Root.STRING), T(Root.BYTES))
    rows = [[row, "x" * (row * 7919 % 30_000), None if row % 3 == 0 else b"y" * (row % 5)] for row in range(100)]
    rows[50][1] = "z" * 200_000
    batches = decode(Versions.one(schema), [stored_row(schema, row) for row in rows], rows_max=16)
    assert len(batches) > 7
    assert max(batch.num_rows for batch in batches) <= 16
    assert pa.Table.from_batches(batches).to_pylist() == [dict(zip(("c0", "c1", "c2"), row, strict=True)) for row in rows]


def test_columns_that_were_added_later_are_null_in_older_rows() -> None:
    first = schema_of(T(Root.INTEGER, nullable=False), T(Root.STRING))
    added = (Column(2, "c2", T(Root.BOOLEAN)), Column(3, "c3", T(Root.STRING)), Column(4, "c4", T(Root.DECIMAL, precision=30)))
    second = Schema(2, (*first.columns, *added))
    versions = Versions(second, {1: first, 2: second})
    rows = [stored_row(first, [1, "a"]), stored_row(second, [2, "b", True, "x", 5]), stored_row(first, [3, None])]
    (batch,) = decode(versions, rows * 20)
    expected = [(1, "a", None, None, None), (2, "b", True, "x", 5), (3, None, None, None, None)] * 20
    assert [tuple(row.values()) for row in batch.to_pylist()] == expected


def test_a_row_of_a_newer_schema_asks_for_a_new_plan() -> None:
    schema = schema_of(T(Root.INTEGER), id=4)
    with pytest.raises(Unavailable, match="newer schema"):
        decode(Versions.one(schema), [stored_row(schema_of(T(Root.INTEGER), id=5), [1])])
    with pytest.raises(Corrupt, match="its table has not"):
        decode(Versions.one(schema), [stored_row(schema_of(T(Root.INTEGER), id=3), [1])])


def test_a_column_that_was_dropped_or_retyped_is_not_guessed() -> None:
    first = schema_of(T(Root.INTEGER), T(Root.STRING))
    dropped = Schema(2, first.columns[:1])
    retyped = Schema(2, (first.columns[0], Column(1, "c1", T(Root.BYTES))))
    for second in (dropped, retyped):
        with pytest.raises(SourceDrift, match="older schema"):
            RowDecoder(Versions(second, {1: first, 2: second}))


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (T(Root.INTEGER), b"\1\0"),
        (T(Root.INTEGER), b"\1\0\0"),
        (T(Root.INTEGER), b"\1\0\0\x80"),
        (T(Root.INTEGER), b"\1\0\0\xff\xff\xff\xff\x1f"),
        (T(Root.INTEGER), b"\1\0\0\xff\xff\xff\xff\xff\0"),
        (T(Root.BIGINT), b"\1\0\0" + b"\xff" * 9 + b"\x02"),
        (T(Root.INTEGER), b"\1\0\0\1\0"),
        (T(Root.INTEGER, nullable=False), b"\1\0\1"),
        (T(Root.BOOLEAN), b"\1\0\0\2"),
        (T(Root.STRING), b"\1\0\0\3ab"),
        (T(Root.STRING), b"\1\0\0" + varint(-1, 32)),
        (T(Root.STRING), b"\1\0\0\2\xc3("),
        (T(Root.DOUBLE), b"\1\0\0" + bytes(7)),
        (T(Root.DECIMAL, precision=2), b"\1\0\0\x64"),
        (T(Root.DECIMAL, precision=19), b"\1\0\0\0"),
        (T(Root.DECIMAL, precision=38), b"\1\0\0\x11" + bytes(17)),
        (T(Root.DECIMAL, precision=38), b"\1\0\0\x10\x7f" + b"\xff" * 15),
        (T(Root.DECIMAL, precision=38), b"\1\0\0\x10\x80" + bytes(15)),
        (T(Root.TIMESTAMP, precision=6), b"\1\0\0\0" + varint(1_000_000, 32)),
        (T(Root.TIME, precision=3), b"\1\0\0" + varint(86_400_000, 32)),
        (T(Root.TIME, precision=0), b"\1\0\0" + varint(-1, 32)),
    ],
)
def test_bytes_that_are_no_row_are_refused(kind: FlussType, row: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(Versions.one(schema_of(kind)), [row])


def test_a_timestamp_beyond_64_bits_of_its_unit_is_an_error_and_not_another_time() -> None:
    for precision, millis in ((9, 9223372036855), (9, -9223372036856), (6, 2**63 - 1), (6, -(2**63))):
        schema = schema_of(T(Root.TIMESTAMP, precision=precision))
        with pytest.raises(SourceDrift, match="beyond"):
            decode(Versions.one(schema), [stored_row(schema, [(millis, 0)])])


def test_an_error_shows_nothing_of_a_row() -> None:
    schema = schema_of(T(Root.STRING))
    with pytest.raises(Corrupt) as caught:
        decode(Versions.one(schema), [struct.pack("<h", 1) + compacted_row(schema, ["hush"])[:-1]])
    assert "hus" not in str(caught.value)


SCHEMA = b"""{"version":1,"columns":[
  {"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0},{"name":"v","data_type":{"type":"DECIMAL","precision":20,"scale":3},"id":1},
  {"name":"day","data_type":{"type":"STRING","nullable":false},"comment":"x","id":2}],"primary_key":["id","day"],"highest_field_id":2}"""


def test_a_schema_is_read_from_its_description() -> None:
    schema = read_schema(2, SCHEMA)
    assert (schema.id, schema.primary_key) == (2, ("id", "day"))
    assert [column.type.paimon for column in schema.columns] == ["INT NOT NULL", "DECIMAL(20, 3)", "STRING NOT NULL"]
    assert schema.arrow == pa.schema([pa.field("id", pa.int32(), False), ("v", pa.decimal128(20, 3)), pa.field("day", pa.string(), False)])


def test_zones_and_lengths_are_kept_and_ids_may_be_absent() -> None:
    text = """{"columns":[{"name":"a","data_type":{"type":"TIMESTAMP_WITH_LOCAL_TIME_ZONE","precision":6}},
        {"name":"b","data_type":{"type":"CHAR","length":4}},{"name":"c","data_type":{"type":"TIME_WITHOUT_TIME_ZONE","precision":3}}]}"""
    schema = read_schema(3, text)
    assert schema.columns[0] == Column(0, "a", T(Root.TIMESTAMP_LTZ, precision=6))
    assert schema.arrow.types == [pa.timestamp("us", "UTC"), pa.string(), pa.time32("ms")]
    assert [column.type.paimon for column in schema.columns] == ["TIMESTAMP(6) WITH LOCAL TIME ZONE", "CHAR(4)", "TIME(0)"]


NESTED = """{"version":1,"columns":[{"name":"id","data_type":{"type":"INTEGER","nullable":false},"id":0},
  {"name":"deep","data_type":{"type":"ARRAY","element_type":{"type":"ROW","nullable":false,"fields":[
    {"name":"a","field_type":{"type":"INTEGER"},"description":"x","field_id":2},{"name":"m","field_type":{"type":"MAP",
     "key_type":{"type":"STRING"},"value_type":{"type":"DECIMAL","precision":20,"scale":3,"nullable":false}},"field_id":3}]}},"id":1}],
  "primary_key":["id"],"highest_field_id":3}"""


def test_nested_types_are_read_from_their_description() -> None:
    schema = read_schema(1, NESTED)
    amount = T(Root.DECIMAL, precision=20, scale=3, nullable=False)
    inner = T.row({"a": T(Root.INTEGER), "m": T.map(T(Root.STRING), amount)}, nullable=False)
    assert schema.column("deep").type == T.array(inner)
    words = pa.map_(pa.string(), pa.field("value", pa.decimal128(20, 3), nullable=False))
    struct_type = pa.struct([("a", pa.int32()), ("m", words)])
    assert schema.arrow.field("deep").type == pa.list_(pa.field("item", struct_type, nullable=False))
    assert schema.column("deep").type.paimon == {
        "type": "ARRAY",
        "element": {
            "type": "ROW NOT NULL",
            "fields": [
                {"name": "a", "type": "INT"},
                {"name": "m", "type": {"type": "MAP", "key": "STRING NOT NULL", "value": "DECIMAL(20, 3) NOT NULL"}},
            ],
        },
    }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"type":"INTEGER"},"description"', '"type":"VARIANT"},"description"', "deep.element.a: VARIANT"),
        ('"type":"ROW","nullable":false,"fields":[', '"type":"ROW","fields":[],"was":[', "deep.element: ROW"),
        ('"primary_key":["id"]', '"primary_key":["deep"]', "deep: ARRAY"),
        ('{"type":"STRING"}', '{"type":"ARRAY","element_type":' * 30 + '{"type":"STRING"}' + "}" * 30, "up to 32 deep"),
    ],
    ids=["unknown", "empty", "key", "deep"],
)
def test_types_that_can_not_be_read_are_refused_by_name(old: str, new: str, told: str) -> None:
    assert old in NESTED
    with pytest.raises(InvalidConfig, match=told):
        read_schema(2, NESTED.replace(old, new, 1))


def array(count: int, *parts: bytes, nulls: int = 0) -> bytes:
    return struct.pack("<ii", count, nulls) + b"".join(parts)


def place(at: int, size: int) -> bytes:
    return struct.pack("<ii", size, at)


SIXTEEN = place(16, 9) + b"nine byte" + bytes(7)
INTS = T.array(T(Root.INTEGER))
TEXTS = T.array(T(Root.STRING))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INTS, b""),
        (INTS, bytes(3)),
        (INTS, array(-1)),
        (INTS, array(2, bytes(4))),
        (INTS, array(2**31 - 1, bytes(8))),
        (INTS, array(1, bytes(8), bytes(16))),
        (T.array(T(Root.INTEGER, nullable=False)), array(1, bytes(8), nulls=1)),
        (T.array(T(Root.BOOLEAN)), array(1, b"\2", bytes(7))),
        (TEXTS, array(1, place(16, 17), b"nine byte", bytes(7))),
        (TEXTS, array(1, place(16, -1), b"nine byte", bytes(7))),
        (TEXTS, array(1, place(8, 8), b"nine byte", bytes(7))),
        (TEXTS, array(1, place(2**31 - 1, 1))),
        (TEXTS, array(1, bytes(7) + b"\x88")),
        (TEXTS, array(1, b"\xc3(" + bytes(5) + b"\x82")),
        # One text for two elements: what is read is never more than what is there.
        (TEXTS, array(2, place(24, 9), place(24, 9), b"nine byte", bytes(7))),
        (T.array(T(Root.DECIMAL, precision=2)), array(1, struct.pack("<q", 100))),
        (T.array(T(Root.DECIMAL, precision=38)), array(1, place(16, 17), bytes(24))),
        (T.array(T(Root.DECIMAL, precision=38)), array(1, place(16, 0), bytes(16))),
        (T.array(T(Root.DECIMAL, precision=19)), array(1, place(16, 16), b"\x7f", bytes(15))),
        (T.array(T(Root.TIMESTAMP, precision=6)), array(1, place(16, 1_000_000), bytes(8))),
        (T.array(T(Root.TIMESTAMP, precision=6)), array(1, place(16, 1))),
        (T.array(T(Root.TIME, precision=3)), array(1, struct.pack("<ii", 86_400_000, 0))),
        (T.array(INTS), array(1, bytes(7) + b"\x80")),
        (T.array(INTS), array(1, place(16, 3), bytes(8))),
        (T.map(T(Root.INTEGER), T(Root.INTEGER)), bytes(3)),
        (T.map(T(Root.INTEGER), T(Root.INTEGER)), struct.pack("<i", -1)),
        (T.map(T(Root.INTEGER), T(Root.INTEGER)), struct.pack("<i", 9) + array(0)),
        (T.map(T(Root.INTEGER), T(Root.INTEGER)), struct.pack("<i", 16) + array(1, bytes(8)) + array(0)),
        (T.map(T(Root.INTEGER), T(Root.INTEGER)), struct.pack("<i", 16) + array(1, bytes(8), nulls=1) + array(1, bytes(8))),
        (T.row({"a": T(Root.INTEGER)}), b""),
        (T.row({"a": T(Root.INTEGER)}), b"\0\5\5"),
        (T.row({"a": T(Root.INTEGER, nullable=False)}), b"\1"),
        (T.row({"a": INTS}), b"\0\4" + bytes(3)),
        (T.array(T.row({"a": T(Root.STRING)})), array(1, place(16, 3), b"\0\1\xff", bytes(5))),
    ],
)
def test_bytes_that_are_no_nested_value_are_refused(kind: FlussType, value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(Versions.one(schema_of(kind)), [b"\1\0\0" + varint(len(value), 32) + value])


def test_a_text_that_lies_outside_of_its_slot_is_read() -> None:
    """Or the refusals above would be of something else."""
    (batch,) = decode(Versions.one(schema_of(TEXTS)), [b"\1\0\0\x20" + array(1, SIXTEEN)])
    assert batch.to_pydict() == {"c0": [["nine byte"]]}


def test_a_timestamp_in_an_array_beyond_64_bits_of_its_unit_is_an_error() -> None:
    schema = schema_of(T.array(T(Root.TIMESTAMP, precision=9)))
    with pytest.raises(SourceDrift, match="beyond"):
        decode(Versions.one(schema), [stored_row(schema, [[(9223372036855, 0)]])])


def test_a_nested_column_that_was_added_later_is_null_in_older_rows() -> None:
    first = schema_of(T(Root.INTEGER, nullable=False))
    second = Schema(2, (*first.columns, Column(1, "c1", T.array(T.row({"a": T(Root.STRING)})))))
    rows = [stored_row(first, [1]), stored_row(second, [2, [["x"], None]]), stored_row(first, [3])]
    (batch,) = decode(Versions(second, {1: first, 2: second}), rows)
    assert batch.to_pydict() == {"c0": [1, 2, 3], "c1": [None, [{"a": "x"}, None], None]}


def test_rows_with_much_in_them_are_read_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "_NESTED_BYTES_MAX", 1000)
    schema = schema_of(T(Root.INTEGER), T.row({"texts": TEXTS}))
    rows = [[row, None if row % 5 == 0 else [["x" * row] * (row % 7)]] for row in range(100)]
    batches = decode(Versions.one(schema), [stored_row(schema, row) for row in rows])
    assert len(batches) > 10
    found = [value for batch in batches for value in seen(batch.column(1))]
    assert found == [row[1] for row in rows]


WIDE = T.row({"inner": T.row({f"f{number}": T(Root.BIGINT) for number in range(1000)})})


@pytest.mark.parametrize("kind", [T.array(WIDE), T.map(T(Root.INTEGER), WIDE), T.array(T.array(WIDE))])
def test_null_rows_in_an_array_are_not_made_into_any_amount_of_memory(kind: FlussType) -> None:
    """A million bytes of the input would take a gigabyte."""
    count = 131_072
    rows = struct.pack("<i", count) + b"\xff" * (count // 8) + bytes(8 * count)
    keys = struct.pack("<i", count) + bytes(count // 8 + 4 * count)
    value = struct.pack("<i", len(keys)) + keys + rows if kind.root is Root.MAP else rows
    if kind.children[0].root is Root.ARRAY:
        value = array(1, place(16, len(value)), value)
    schema = schema_of(kind)
    with pytest.raises(SourceDrift, match=r"too many rows in it: c0\..*131,072, at most 119,304"):
        decode(Versions.one(schema), [b"\1\0\0" + varint(len(value), 32) + value])


def test_rows_whose_null_rows_would_take_much_memory_are_read_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "_NESTED_BYTES_MAX", 1 << 20)
    schema = schema_of(T.array(WIDE))
    rows = [[[None] * 40] for _ in range(50)]
    batches = decode(Versions.one(schema), [stored_row(schema, row) for row in rows])
    assert [batch.num_rows for batch in batches] == [2] * 25
    assert [value for batch in batches for value in seen(batch.column(0))] == [row[0] for row in rows]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"precision":20', b'"precision":39'),
        (b'"precision":20,', b""),
        (b'"id":1', b'"id":0'),
        (b'"name":"v"', b'"name":"id"'),
        (b'["id","day"]', b'["id","night"]'),
        (b'"nullable":false', b'"nullable":3'),
        (b"{", b"["),
        (SCHEMA, b"[]"),
        (SCHEMA, b'{"columns":[]}'),
        (SCHEMA, b"\xff"),
        (SCHEMA, b"[" * 100_000),
    ],
)
def test_a_description_that_can_not_be_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(Corrupt, match="schema of a Fluss table"):
        read_schema(7, SCHEMA.replace(old, new, 1))
