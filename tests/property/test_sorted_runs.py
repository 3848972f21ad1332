"""Keys compare as Paimon's comparator does, and sorted runs become one with the right row of each key."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import Corrupt
from snowmelt.sinks.paimon.maintenance.keys import compare, encode, join, last_of_each, order_of, rises, rows_up_to
from snowmelt.sinks.paimon.maintenance.merging import Order, merged, merged_whole, without_deletes
from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER

_TEXTS = st.text(alphabet=st.sampled_from("\x00\x01aé\U0001f600z\xff￿"), max_size=12)
_BYTES = st.binary(max_size=12) | st.binary(min_size=7, max_size=20).map(lambda found: b"\x00" * 7 + found)
_KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "big": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), _TEXTS),
    "bytes": (pa.binary(), _BYTES),
    "short decimal": (pa.decimal128(18, 3), st.integers(-(10**18) + 1, 10**18 - 1).map(lambda found: Decimal(found).scaleb(-3))),
    "long decimal": (pa.decimal128(38, 2), st.integers(-(2**100), 2**100).map(lambda found: Decimal(found).scaleb(-2))),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "date": (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    "time": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "moment": (pa.timestamp("us"), st.integers(-(2**62), 2**62)),
    "local moment": (pa.timestamp("us", "UTC"), st.integers(-(2**62), 2**62)),
}


def _rank(value: Any) -> Any:
    """What Python compares as Java does."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        if math.isnan(value):
            return (2, 0.0, 0)
        return (1, value, 0 if math.copysign(1, value) < 0 else 1)
    return value


@st.composite
def _tables(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(_KINDS)), min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(*(_KINDS[kind][1] for kind in kinds)), min_size=1, max_size=20))
    return [_KINDS[kind][0] for kind in kinds], rows


@settings(max_examples=300, deadline=None)
@given(_tables(), st.data())
def test_keys_compare_as_their_columns_do(table: tuple[list[pa.DataType], list[tuple[Any, ...]]], data: st.DataObject) -> None:
    types, rows = table
    ordered = sorted(rows, key=lambda row: tuple(map(_rank, row)))
    # Cut out of longer columns, as slices of a file's batches are.
    columns = [pa.array([row[place] for row in [ordered[0], *ordered]], kind)[1:] for place, kind in enumerate(types)]
    keys = encode(columns)
    for place, (one, other) in enumerate(pairwise(ordered)):
        expected = tuple(map(_rank, one)) < tuple(map(_rank, other))
        assert compare(keys.at(place), keys.at(place + 1)) == (-1 if expected else 0)
        assert compare(keys.at(place + 1), keys.at(place)) == (1 if expected else 0)
    at = data.draw(st.integers(0, len(ordered) - 1))
    bound = tuple(map(_rank, ordered[at]))
    assert rows_up_to(keys, keys.at(at)) == sum(tuple(map(_rank, row)) <= bound for row in ordered)
    cut = data.draw(st.integers(0, len(ordered)))
    both = join([keys.slice(cut, len(ordered)), keys.slice(0, cut)])
    assert [compare(both.at(place), keys.at((place + cut) % len(ordered))) for place in range(len(ordered))] == [0] * len(ordered)


@settings(max_examples=300, deadline=None)
@given(_tables())
def test_rows_are_put_in_order_as_their_keys_compare_and_the_last_of_equal_ones_is_found(
    table: tuple[list[pa.DataType], list[tuple[Any, ...]]],
) -> None:
    types, rows = table
    columns = [pa.array([row[place] for row in [rows[0], *rows]], kind)[1:] for place, kind in enumerate(types)]
    numbered = sorted(enumerate(rows), key=lambda row: tuple(map(_rank, row[1])))
    order = order_of([*columns, pa.array([5] * len(rows))])
    assert order.to_pylist() == [place for place, _ in numbered]
    last = {tuple(map(_rank, row)): place for place, row in numbered}
    places = np.asarray(order.to_numpy(), np.int64)
    keys = encode(columns)
    assert last_of_each(keys, places).tolist() == list(last.values())
    # What is in order and has each key once rises, and nothing else does.
    ranks = [tuple(map(_rank, row)) for row in rows]
    assert rises(keys, None) == all(one < other for one, other in pairwise(ranks))
    sorted_keys = encode([column.take(pa.array(list(last.values()))) for column in columns])
    assert rises(sorted_keys, None)
    for place in range(len(sorted_keys)):
        assert rises(sorted_keys.slice(place + 1, len(sorted_keys)), sorted_keys.at(place))
        assert not rises(sorted_keys.slice(place, len(sorted_keys)), sorted_keys.at(place))


def test_nan_is_one_value_and_the_last() -> None:
    strange = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    keys = encode([pa.array([math.inf, math.nan, strange])])
    assert compare(keys.at(0), keys.at(1)) < 0
    assert compare(keys.at(1), keys.at(2)) == 0


# ---- runs

_ORDER = Order(("k", "t"), "_seq", "shop.orders")
_SCHEMA = pa.schema(
    [
        pa.field(NUMBER, pa.int64()),
        pa.field(KIND, pa.int8()),
        pa.field("k", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("v", pa.string()),
        pa.field("_seq", pa.int64()),
    ]
)
_Row = tuple[int, int, int, str, str | None, int | None]
_RUN = st.dictionaries(
    st.tuples(st.integers(0, 8), st.sampled_from(["", "a", "aaaaaaaaaa", "aaaaaaaaab"])),
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 2, 3]), st.none() | st.integers(-2, 4)),
    max_size=15,
)


def _rows(run: dict[tuple[int, str], tuple[int, int, int | None]], name: int) -> list[_Row]:
    return [(number, kind, key, text, str(name), sequence) for (key, text), (number, kind, sequence) in sorted(run.items())]


def _table(rows: list[_Row]) -> pa.Table:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(_SCHEMA)]
    return pa.Table.from_arrays(columns, schema=_SCHEMA)


def _pieces(table: pa.Table, size: int) -> list[pa.Table]:
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


@settings(max_examples=300, deadline=None)
@given(st.lists(_RUN, min_size=1, max_size=7), st.integers(1, 6), st.integers(2, 8))
def test_of_each_key_the_greatest_sequence_remains_then_the_greatest_number_then_the_later_run(
    runs: list[dict[tuple[int, str], tuple[int, int, int | None]]], size: int, runs_max: int
) -> None:
    expected: dict[tuple[int, str], _Row] = {}
    for name, run in enumerate(runs):
        for row in _rows(run, name):
            known = expected.get((row[2], row[3]))
            rank = (row[5] is not None, row[5] or 0, row[0])
            if known is None or rank >= (known[5] is not None, known[5] or 0, known[0]):
                expected[row[2], row[3]] = row
    tables = [_table(_rows(run, name)) for name, run in enumerate(runs)]
    opens = [lambda table=table: _pieces(table, size) for table in tables]
    wanted = [tuple(expected[key]) for key in sorted(expected)]
    # A sequence that is NULL is less than any, also than the least that we count it as.
    streamed = [tuple(row.values()) for part in merged(opens, _ORDER, runs_max=runs_max) for row in part.to_pylist()]
    assert streamed == wanted
    whole = merged_whole(tables, _ORDER)
    assert [tuple(row.values()) for row in whole.to_pylist()] == wanted
    assert [tuple(row.values()) for row in without_deletes(whole).to_pylist()] == [row for row in wanted if row[1] in (0, 2)]


@pytest.mark.parametrize("size", [1, 2, 10])
@pytest.mark.parametrize("keys", [[1, 3, 2], [1, 2, 2]], ids=["falling", "twice"])
def test_a_run_that_is_not_sorted_is_damage(keys: list[int], size: int) -> None:
    rows: list[_Row] = [(0, 0, key, "", "v", 1) for key in keys]
    other: list[_Row] = [(0, 0, key, "", "v", 1) for key in range(5)]
    tables = [_table(rows), _table(other)]
    with pytest.raises(Corrupt, match="not sorted"):
        list(merged([lambda table=table: _pieces(table, size) for table in tables], _ORDER))


def test_the_rows_of_one_run_pass_as_they_are() -> None:
    table = _table([(0, 0, key, "", "v", 1) for key in range(100)])
    found = list(merged([lambda: _pieces(table, 7)], _ORDER))
    assert pa.concat_tables(found).equals(table)
    assert np.prod([part.num_rows <= 7 for part in found])
