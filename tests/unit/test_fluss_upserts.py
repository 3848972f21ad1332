"""Records of rows, beside the plain way to write them. What the real server makes of them is in `tests/integration/test_fluss_sink.py`."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from snowmelt.errors import InvariantBroken
from snowmelt.fluss.formats.buckets import Bucketing
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema, Versions
from snowmelt.fluss.formats.upserts import UpsertEncoder, UpsertRun, kv_batch
from tests.kit import fluss_raw
from tests.kit.fluss_bytes import compacted_row, stored_row

T = FlussType
VALUES: list[tuple[FlussType, list[Any]]] = [
    (T(Root.INTEGER, nullable=False), list(range(-50, 50))),
    (T(Root.BOOLEAN), [True, False, None]),
    (T(Root.TINYINT), [-128, -1, 0, 127, None]),
    (T(Root.SMALLINT), [-32768, 0, 300, None]),
    (T(Root.INTEGER), [-(2**31), -1, 0, 2**31 - 1, None]),
    (T(Root.BIGINT), [-(2**63), -1, 0, 2**63 - 1, None]),
    (T(Root.FLOAT), [-1.5, 0.0, 3.25, None]),
    (T(Root.DOUBLE), [-1.5e300, 0.0, None]),
    (T(Root.DECIMAL, precision=10, scale=2), [-1234567890, 0, 5, None]),
    (T(Root.DECIMAL, precision=30, scale=2), [-(10**29), -129, -128, 0, 127, 128, 2**64, 10**30 - 1, None]),
    (T(Root.STRING), ["", "a", "äöü€", "x" * 200, None]),
    (T(Root.BYTES), [b"", b"\xff" * 7, b"\x80" * 300, None]),
    (T(Root.DATE), [-719162, 0, 20000, None]),
    (T(Root.TIMESTAMP, precision=6), [(-1, 999_000), (1_700_000_000_123, 456_000), None]),
    (T(Root.TIMESTAMP_LTZ, precision=6), [(-1, 1000), (0, 0), None]),
]
SCHEMA = Schema(7, tuple(Column(place, f"c{place}", kind) for place, (kind, _) in enumerate(VALUES)), ("c0",))


def rows_of(seed: int, count: int) -> list[list[Any]]:
    chance = random.Random(seed)
    return [[chance.choice(values) for _, values in VALUES] for _ in range(count)]


def encoded(rows: list[list[Any]], deleted: list[bool], *, lake: str | None, buckets: int = 3, bytes_max: int = 1 << 20) -> list[UpsertRun]:
    stored = [stored_row(SCHEMA, row) for row in rows]
    ends = np.cumsum([len(row) for row in stored])
    starts = ends - np.array([len(row) for row in stored])
    (batch,) = RowDecoder(Versions.one(SCHEMA)).decode(np.frombuffer(b"".join(stored), np.uint8), starts, ends)
    bucketing = Bucketing([SCHEMA.columns[0]], buckets, lake)
    runs = list(UpsertEncoder(SCHEMA, bucketing, run_bytes_max=bytes_max).encode(batch, np.array(deleted)))
    where = bucketing.buckets(batch)
    assert [run.bucket for run in runs] == sorted(run.bucket for run in runs)
    assert {run.bucket for run in runs} == set(where.tolist())
    return runs


def plainly(rows: list[list[Any]], deleted: list[bool]) -> list[tuple[bytes, bytes | None]]:
    """Of a table that Paimon is the lake of."""
    keys = [bytes(8) + struct.pack("<i4x", row[0]) for row in rows]
    return [(key, None if gone else compacted_row(SCHEMA, row)) for key, row, gone in zip(keys, rows, deleted, strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_records_are_those_of_the_plain_way(seed: int) -> None:
    rows = rows_of(seed, 200)
    deleted = [random.Random(seed + 1).random() < 0.3 for _ in rows]
    (run,) = encoded(rows, deleted, lake="paimon", buckets=1)
    batch = kv_batch(run.records, run.count, schema=SCHEMA.id, writer=-1, sequence=-1)
    assert batch == fluss_raw.kv_batch(plainly(rows, deleted), schema_id=SCHEMA.id)


@pytest.mark.parametrize("lake", [None, "paimon"])
def test_each_bucket_gets_its_rows_in_their_order(lake: str | None) -> None:
    rows = rows_of(9, 300)
    deleted = [index % 7 == 0 for index in range(300)]
    runs = encoded(rows, deleted, lake=lake)
    alone = [encoded([row], [gone], lake=lake)[0] for row, gone in zip(rows, deleted, strict=True)]
    for bucket in range(3):
        expected = b"".join(bytes(run.records) for run in alone if run.bucket == bucket)
        assert b"".join(bytes(run.records) for run in runs if run.bucket == bucket) == expected
    assert sum(run.count for run in runs) == 300


def test_a_run_is_cut_between_records() -> None:
    rows, deleted = rows_of(3, 300), [False] * 300
    whole = encoded(rows, deleted, lake="paimon")
    cut = encoded(rows, deleted, lake="paimon", bytes_max=900)
    assert max(len(run.records) for run in cut) <= 900
    assert len(cut) > len(whole)
    for bucket in range(3):
        together = [b"".join(bytes(run.records) for run in runs if run.bucket == bucket) for runs in (whole, cut)]
        assert together[0] == together[1]
    assert all(run.count == 1 for run in encoded(rows, deleted, lake="paimon", bytes_max=1))


def test_a_null_where_none_can_be_is_no_row() -> None:
    strict = Schema(1, (SCHEMA.columns[0], Column(1, "c1", T(Root.BOOLEAN, nullable=False))), ("c0",))
    loose = Schema(1, (SCHEMA.columns[0], SCHEMA.columns[1]), ("c0",))
    row = stored_row(loose, [1, None])
    (batch,) = RowDecoder(Versions.one(loose)).decode(np.frombuffer(row, np.uint8), np.array([0]), np.array([len(row)]))
    encoder = UpsertEncoder(strict, Bucketing([strict.columns[0]], 1, None), run_bytes_max=100)
    with pytest.raises(InvariantBroken, match="can't be NULL"):
        list(encoder.encode(batch, np.array([False])))
    assert len(list(encoder.encode(batch, np.array([True])))) == 1
