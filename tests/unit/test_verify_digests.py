"""The digests that both sides of `verify` compare, and the classes that they are summed by."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.databases.comparing.classes import Parting, Sums
from snowmelt.databases.comparing.digests import Hash, digest_rows, digest_values, from_raw, hashes, hexadecimal, raw
from snowmelt.databases.mysql.read.keys import chunked
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TypeOptions
from snowmelt.databases.mysql.verify.forms import MySqlRowForms, lake_text
from snowmelt.model.table import TableId

# Around the ends of MD5's blocks, where padding goes wrong.
VALUES = [None, b"", b"a", *(b"x" * size for size in (54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 127, 128, 1000))]


def message(*values: bytes | None) -> bytes:
    return b"".join(b"-" if value is None else b"%d:%b" % (len(value), value) for value in values)


def reference(how: Hash, data: bytes) -> bytes:
    return hashlib.new(how.value, data).digest()[:16]


@pytest.mark.parametrize("how", Hash)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_row_is_hashed_as_everywhere_else(kind: pa.DataType, how: Hash) -> None:
    left, right = pa.array(VALUES, kind), pa.array(VALUES[::-1], kind)
    digests = digest_rows([left, right], len(VALUES), how)
    assert [digest.tobytes() for digest in digests] == [
        reference(how, message(one, other)) for one, other in zip(VALUES, VALUES[::-1], strict=True)
    ]
    inner = digest_rows([left.slice(3, 5), right.slice(3, 5)], 5, how)
    assert (inner == digests[3:8]).all(), "a slice is hashed as what it was cut from"


@pytest.mark.parametrize("how", Hash)
@given(rows=st.lists(st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=20)), max_size=20))
def test_any_rows_are_hashed_as_everywhere_else(how: Hash, rows: list[tuple[bytes | None, bytes | None]]) -> None:
    columns = [pa.array([row[index] for row in rows], pa.binary()) for index in range(2)]
    digests = digest_rows(columns, len(rows), how)
    assert [digest.tobytes() for digest in digests] == [reference(how, message(*row)) for row in rows]


@pytest.mark.parametrize("how", Hash)
def test_digests_are_told_in_the_forms_of_the_servers(how: Hash) -> None:
    digests = digest_values(pa.array([b"a", b"bc"]), how)
    assert hexadecimal(digests).to_pylist() == [reference(how, value).hex().encode() for value in (b"a", b"bc")]
    assert hashes(digests).tolist() == [int(reference(how, value).hex()[:16], 16) for value in (b"a", b"bc")]
    assert (from_raw(raw(digests)) == digests).all()
    assert digest_rows([pa.array([], pa.string())], 0, how).shape == (0, 16)


def test_small_decimals_have_all_their_digits() -> None:
    column = MySqlColumn(name="d", base="decimal", precision=20, scale=10)
    texts = ["0.0000000001", "-0.0000000001", "0.0000000000", "-9999999999.9999999999", "12.5000000000"]
    values = pa.array(texts).cast(pa.decimal128(20, 10))
    assert lake_text(column, values, Hash.MD5).to_pylist() == texts
    assert lake_text(column, values.slice(1, 2), Hash.MD5).to_pylist() == texts[1:3]


def test_null_and_the_empty_string_are_two_rows() -> None:
    forms = MySqlRowForms([MySqlColumn(name="a", base="varchar"), MySqlColumn(name="b", base="double")], ["a"], TypeOptions(), Hash.MD5)
    rows = [{"a": "x", "b": None}, {"a": "x", "b": 0.0}, {"a": "x", "b": -0.0}, {"a": "", "b": None}, {"a": None, "b": None}]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([("a", pa.string()), ("b", pa.float64())]))
    keys, found = forms.hash(batch)
    assert len(set(found.tolist())) == len(rows)
    assert len(set(keys.tolist())) == 3


def test_a_row_is_in_the_class_of_its_range_and_its_hash() -> None:
    parting = Parting("id", (10, 20), 4)
    ids = [-(2**31), 10, 11, 20, 21, 2**31 - 1]
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int32())], names=["id"])
    keys = np.array([0, 1, 2, 3, 4, 5], np.uint64)
    assert parting.classes(batch, keys).tolist() == [0, 1, 4 + 2, 4 + 3, 8, 8 + 1]
    assert parting.ranges(np.array([1, 3, 8])) == {0: [1, 3], 2: [0]}
    assert parting.of_keys(np.array([5], np.uint64), np.arange(parting.count)).tolist() == [1, 5, 9]


@pytest.mark.parametrize(("base", "unsigned", "ranges"), [("int", True, True), ("bigint", False, True), ("bigint", True, False)])
def test_only_keys_that_fit_64_bits_have_ranges(base: str, unsigned: bool, ranges: bool) -> None:
    column = MySqlColumn(name="id", base=base, unsigned=unsigned, nullable=False)
    assert chunked(MySqlTable(id=TableId("d", "t"), columns=(column,), key=("id",))) is ranges


def test_sums_tell_what_was_added_and_taken_away() -> None:
    theirs, ours = Sums.zero(3), Sums.zero(3)
    theirs.add(np.array([0, 1, 1]), np.array([5, 6, 2**64 - 1], np.uint64))
    ours.add(np.array([0, 1, 1, 2, 2]), np.array([5, 2**64 - 1, 6, 9, 9], np.uint64), np.array([1, 1, 1, 1, -1]))
    assert theirs.unequal(ours).tolist() == []
    ours.add(np.array([1, 1]), np.array([6, 8], np.uint64), np.array([-1, 1]))
    assert theirs.unequal(ours).tolist() == [1]
