"""A bucket's changes over the rows that they begin with, against a dictionary."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.engine.union import merge
from snowmelt.engine.union.merge import Tail
from snowmelt.fluss.formats.batches import DELETE, INSERT, KIND, UPDATE_AFTER, UPDATE_BEFORE
from snowmelt.fluss.formats.types import Column, FlussType, Root

KEY = (
    Column(0, "text", FlussType(root=Root.STRING, nullable=False)),
    Column(1, "n", FlussType(root=Root.INTEGER, nullable=False)),
    Column(2, "at", FlussType(root=Root.TIMESTAMP, nullable=False, precision=6)),
)
SCHEMA = pa.schema([*(column.field for column in KEY), pa.field("v", pa.int64())])
# Few of them, so that keys meet; with parts that run into each other, and such as are equal in their first eight bytes.
KEYS = st.tuples(
    st.sampled_from(["", "a", "ab", "a long text, longer than a word", "€"]), st.sampled_from([-1, 0, 98]), st.sampled_from([-1, 7])
)
CHANGES = st.lists(st.tuples(KEYS, st.booleans()), max_size=60)


def batches(rows: list[tuple[Any, ...]], schema: pa.Schema, cuts: list[int]) -> list[pa.RecordBatch]:
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    bounds = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    return [whole.slice(start, stop - start) for start, stop in pairwise(bounds)]


def the_log(held: dict[Any, int], changes: list[tuple[Any, bool]]) -> list[tuple[Any, ...]]:
    """What Fluss' log has of these changes; `held` goes with them."""
    found: list[tuple[Any, ...]] = []
    for number, (key, deleted) in enumerate(changes, 1000):
        before = held.get(key)
        if deleted:
            if before is not None:
                found.append((*key, before, DELETE))
                del held[key]
        elif before is None:
            found.append((*key, number, INSERT))
            held[key] = number
        else:
            found += [(*key, before, UPDATE_BEFORE), (*key, number, UPDATE_AFTER)]
            held[key] = number
    return found


# The first call compiles.
@settings(deadline=None)
@given(st.lists(KEYS, unique=True, max_size=30), CHANGES, st.lists(st.integers(1, 60), max_size=5), st.sampled_from([1, 5, 32_768]))
def test_what_is_left_is_what_a_dictionary_would_hold(keys: list[Any], changes: list[Any], cuts: list[int], at_once: int) -> None:
    held = {key: number for number, key in enumerate(keys)}
    below = batches([(*key, number) for key, number in held.items()], SCHEMA, cuts)
    log = batches(the_log(held, changes), SCHEMA.append(pa.field(KIND, pa.int8())), cuts)
    before, merge._ROWS_AT_ONCE = merge._ROWS_AT_ONCE, at_once
    try:
        tail = Tail(KEY)
        for batch in log:
            tail.add(batch)
        found = [tail.lay(batch) for batch in below] + [batch.select(SCHEMA.names) for batch in tail.rows()]
    finally:
        merge._ROWS_AT_ONCE = before
    rows = [(row["text"], row["n"], row["at"], row["v"]) for row in pa.Table.from_batches(found, SCHEMA).to_pylist()]
    expected = pa.Table.from_batches(batches([(*key, value) for key, value in held.items()], SCHEMA, []), SCHEMA).to_pylist()
    assert len(rows) == len(expected)
    assert set(rows) == {tuple(row.values()) for row in expected}


def test_a_read_that_begins_or_ends_inside_an_update_shows_one_row() -> None:
    schema = SCHEMA.append(pa.field(KIND, pa.int8()))
    key = ("a", 0, 0)
    below = batches([(*key, 1)], SCHEMA, [])
    for kind, left in ((UPDATE_BEFORE, [1]), (UPDATE_AFTER, [2])):
        tail = Tail(KEY)
        tail.add(batches([(*key, 2, kind)], schema, [])[0])
        found = [tail.lay(below[0]), *tail.rows()]
        assert [value for batch in found for value in batch.column("v").to_pylist()] == left
