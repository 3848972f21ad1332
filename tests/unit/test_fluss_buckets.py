"""The bucket of a row, beside the plain way to compute it, and beside pypaimon's.

Where the real server puts rows is in `tests/integration/test_fluss_reading.py`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.write.row_key_extractor import RowKeyExtractor, _bucket_from_hash

from snowmelt.errors import InvalidConfig, InvariantBroken
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import FlussType, Root, Schema, Versions
from tests.kit.fluss_bytes import compacted_value, schema_of, stored_row

T = FlussType
KEYS: list[tuple[FlussType, list[Any]]] = [
    (T(Root.BOOLEAN), [True, False]),
    (T(Root.TINYINT), [-128, -1, 0, 127]),
    (T(Root.SMALLINT), [-32768, 0, 300]),
    (T(Root.INTEGER), [-(2**31), -1, 0, 77, 2**31 - 1]),
    (T(Root.BIGINT), [-(2**63), -1, 0, 77, 2**63 - 1]),
    (T(Root.FLOAT), [-1.5, 0.0, 3.25]),
    (T(Root.DOUBLE), [-1.5e300, 0.0]),
    (T(Root.DECIMAL, precision=10, scale=2), [-1234567890, 0, 5]),
    (T(Root.DECIMAL, precision=30, scale=2), [-(10**29), -129, -128, -1, 0, 127, 128, 255, 256, 2**64, 10**30 - 1]),
    (T(Root.CHAR, length=9), ["", "seven77", "eight888", "ninenine9"]),
    (T(Root.STRING), ["", "a", "äöü€", "x" * 100]),
    (T(Root.BINARY, length=3), [b"\xff\0\x80"]),
    (T(Root.BYTES), [b"", b"\xff" * 7, b"\x80" * 9]),
    (T(Root.DATE), [-719162, 0, 20000]),
    (T(Root.TIME, precision=3), [0, 86_399_999]),
    (T(Root.TIMESTAMP, precision=0), [(-5000, 0), (1_700_000_000_000, 0)]),
    (T(Root.TIMESTAMP, precision=3), [(-5001, 0), (1_700_000_000_123, 0)]),
    (T(Root.TIMESTAMP, precision=6), [(-1, 999_000), (1_700_000_000_123, 456_000)]),
    (T(Root.TIMESTAMP_LTZ, precision=6), [(-1, 1000), (0, 0)]),
]
NAMES = [f"{kind.root.name}{kind.precision or ''}" for kind, _ in KEYS]


def batch_of(schema: Schema, rows: list[list[Any]]) -> pa.RecordBatch:
    stored = [stored_row(schema, row) for row in rows]
    ends = np.cumsum([len(row) for row in stored])
    starts = ends - np.array([len(row) for row in stored])
    (batch,) = RowDecoder(Versions.one(schema)).decode(np.frombuffer(b"".join(stored), np.uint8), starts, ends)
    return batch


def word(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def mix(value: int, k: int) -> int:
    k = k * 0xCC9E2D51 % 2**32
    k = (k << 15 | k >> 17) % 2**32 * 0x1B873593 % 2**32
    value ^= k
    return ((value << 13 | value >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32


def end(value: int) -> int:
    value = (value ^ value >> 16) * 0x85EBCA6B % 2**32
    value = (value ^ value >> 13) * 0xC2B2AE35 % 2**32
    return value ^ value >> 16


def fluss_bucket(key: bytes, buckets: int) -> int:
    hashed = 42
    whole = len(key) // 4 * 4
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        hashed = mix(hashed, k)
    for (k,) in struct.iter_unpack("<b", key[whole:]):
        hashed = mix(hashed, k % 2**32)
    hashed = end(hashed ^ len(key))
    code = word(end(mix(0, hashed) ^ 4))
    return (0 if code == -(2**31) else abs(code)) % buckets


def rows_of(kinds: list[tuple[FlussType, list[Any]]], count: int = 60) -> list[list[Any]]:
    return [[values[row % len(values)] for _, values in kinds] for row in range(count)]


@pytest.mark.parametrize("kinds", [*([one] for one in KEYS), KEYS, KEYS[9:11], KEYS[:3]], ids=[*NAMES, "all", "texts", "few"])
def test_keys_of_fluss_go_where_the_plain_way_puts_them(kinds: list[tuple[FlussType, list[Any]]]) -> None:
    schema = schema_of(*[kind for kind, _ in kinds])
    rows = [row for row in rows_of(kinds) if any(compacted_value(kind, value) for (kind, _), value in zip(kinds, row, strict=True))]
    batch = batch_of(schema, rows)
    expected = [
        fluss_bucket(b"".join(compacted_value(kind, value) for (kind, _), value in zip(kinds, row, strict=True)), 97) for row in rows
    ]
    assert Bucketing(schema.columns, 97, None).buckets(batch).tolist() == expected
    assert Bucketing(schema.columns, 97, "lance").buckets(batch.slice(7)).tolist() == expected[7:]


@pytest.mark.parametrize("kinds", [*([one] for one in KEYS), KEYS, KEYS[9:11], KEYS[:3]], ids=[*NAMES, "all", "texts", "few"])
def test_keys_of_paimon_go_where_pypaimon_puts_them(kinds: list[tuple[FlussType, list[Any]]]) -> None:
    # Of -128 pypaimon makes two bytes where Java makes one.
    kinds = [(kind, [*(value for value in values if value != -128 or kind.root is Root.TINYINT), None]) for kind, values in kinds]
    schema = schema_of(*[kind for kind, _ in kinds])
    batch = batch_of(schema, rows_of(kinds))
    fields = [
        DataField(place, column.name, AtomicType(column.type.paimon.replace(" WITH LOCAL TIME ZONE", "").replace(
            "TIMESTAMP", "TIMESTAMP_LTZ" if "LOCAL" in column.type.paimon else "TIMESTAMP")))
        for place, column in enumerate(schema.columns)
    ]  # fmt: skip
    rows = zip(*[column.to_pylist() for column in batch.columns], strict=True)
    expected = [_bucket_from_hash(RowKeyExtractor._binary_row_hash_code(row, fields), 97) for row in rows]
    assert Bucketing(schema.columns, 97, "paimon").buckets(batch).tolist() == expected
    assert Bucketing(schema.columns, 97, "PAIMON").buckets(batch.slice(7)).tolist() == expected[7:]


def test_no_rows_have_no_buckets() -> None:
    schema = schema_of(T(Root.STRING))
    empty = batch_of(schema, [["x"]]).slice(0, 0)
    assert Bucketing(schema.columns, 3, None).buckets(empty).tolist() == []
    assert Bucketing(schema.columns, 3, "paimon").buckets(empty).tolist() == []


def test_a_lake_whose_buckets_are_not_known_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="iceberg"):
        Bucketing(schema_of(T(Root.STRING)).columns, 3, "iceberg")


def test_a_null_in_a_key_of_fluss_is_a_bug_of_ours() -> None:
    schema = schema_of(T(Root.STRING))
    with pytest.raises(InvariantBroken, match="NULL"):
        Bucketing(schema.columns, 3, None).buckets(batch_of(schema, [[None]]))
