"""The rule by which tasks keep rows, for columns, is the rule that the simulation proves, for one change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.contract.keys import IntegerKeys, pack_integer
from snowmelt.databases.mysql.changes import covered
from snowmelt.databases.mysql.read.keys import keys_of
from snowmelt.databases.mysql.read.marks import PositionMark, covers
from snowmelt.engine.tasks.keys import in_span, outside
from snowmelt.engine.tasks.log import _emitted, _mine
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Adopting, Rule, Span
from snowmelt.planning.facts import Incarnation, KeyEnds, Reported
from tests.kit.emitting import emits

ORDERS = Incarnation(TableId("shop", "orders"), 1)
SOURCE: Any = SimpleNamespace(keys=keys_of, covered=covered)
EXTENT = KeyEnds(pack_integer(2), pack_integer(9))
SPANS = (Span(None, pack_integer(3)), Span(pack_integer(3), pack_integer(6)), Span(pack_integer(6), pack_integer(9)))


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """A table in some state of its copy: each part of its keys is adopted, being adopted, or neither."""
    after, live = draw(st.integers(0, 20)), draw(st.booleans())
    adopted, adopting, is_outside = [], [], False
    extent = draw(st.sampled_from([None, EXTENT]))
    for span in [None, *(SPANS if extent is not None else ())]:
        state = draw(st.sampled_from(["neither", "adopted", "adopting"]))
        if state == "adopting":
            visible = draw(st.integers(0, 20))
            report = Reported(
                incarnation=ORDERS,
                ordinal=0,
                job=1,
                nonce="n",
                high=visible + draw(st.integers(0, 9)),
                exact=True,
                schema=0,
                files=(),
                extent=extent,
            )
            adopting.append(Adopting(report, visible, span, live))
        elif state == "adopted" and span is None:
            is_outside = True
        elif state == "adopted" and span is not None:
            adopted.append(span)
    return Rule(
        incarnation=ORDERS,
        after=after,
        emits_all=live,
        outside=is_outside,
        extent=extent,
        adopted=tuple(adopted),
        adopting=tuple(adopting),
    )


@settings(deadline=None, max_examples=400)
@given(
    rules(),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30)), max_size=12),
    st.sets(st.integers(1, 30)),
    st.booleans(),
    st.booleans(),
)
def test_columns_are_judged_as_single_changes_are(
    rule: Rule, changes: list[tuple[int, int]], of_xa: set[int], locked: bool, keyed: bool
) -> None:
    keys, offsets = np.array([key for key, _ in changes], np.int64), np.array([offset for _, offset in changes], np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(offsets)], names=["id", "_position"])
    item: Any = SimpleNamespace(table=SimpleNamespace(key=("id",)), rows=rows, transactions=(), partial="")
    mark = PositionMark(Position(1, 4), locked)
    task: Any = SimpleNamespace(marks={"n": mark}, committed=[SimpleNamespace(offset=offset) for offset in of_xa])

    def within(key: int, span: Span | None) -> bool:
        one = IntegerKeys(np.array([key], np.int64))
        return bool((outside(one, rule.extent) if span is None else in_span(one, span, rule.extent))[0])

    expected = []
    for key, offset in changes:
        adopting = next((one for one in rule.adopting if within(key, one.span)), None)
        adopted = (rule.outside and within(key, None)) or any(within(key, span) for span in rule.adopted)
        surely = covers(mark, position=mark.high, gtid=None, xa=offset in of_xa)
        covered = lambda one, offset=offset, surely=surely: surely and offset <= one.reading.high  # noqa: E731
        expected.append(emits(rule, offset=offset, adopted=adopted, adopting=adopting, keyed=keyed, covered=covered))
    assert _emitted(SOURCE, task, rule, item, offsets, keyed=keyed).tolist() == expected


@settings(deadline=None, max_examples=100)
@given(rules(), st.lists(st.tuples(st.none() | st.integers(0, 12), st.integers(1, 30)), min_size=1, max_size=12))
def test_a_row_without_its_key_is_kept_by_any_table_that_keeps_rows_so_that_the_table_is_set_aside(
    rule: Rule, changes: list[tuple[int | None, int]]
) -> None:
    offsets = np.array([offset for _, offset in changes], np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array([key for key, _ in changes], pa.int64()), pa.array(offsets)], names=["id", "_position"])
    item: Any = SimpleNamespace(table=SimpleNamespace(key=("id",)), rows=rows, transactions=(), partial="its image lacks columns")
    kept = _emitted(SOURCE, SimpleNamespace(marks={}, committed=[]), rule, item, offsets, keyed=True)  # type: ignore[arg-type]
    keeps = rule.emits_all or rule.outside or rule.adopted or rule.adopting
    for (key, offset), row in zip(changes, kept.tolist(), strict=True):
        if key is None:
            assert row or not keeps or offset <= rule.low
            assert not row or offset > rule.low


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 5), st.booleans())
def test_each_row_of_a_shared_transaction_is_one_tasks_and_all_rows_of_a_key_are_the_same_tasks(
    keys: list[int], parts: int, ordered: bool
) -> None:
    """Of equal `_seq` a writer keeps the last, and knows only its own. Where Python can't order keys a table is one task's."""
    column = pa.array(keys, pa.int64()) if ordered else pa.array(map(str, keys), pa.string())
    rows = pa.RecordBatch.from_arrays([column], names=["id"])
    item: Any = SimpleNamespace(table=SimpleNamespace(key=("id",), id=ORDERS.table), rows=rows)
    numbers = np.arange(len(keys), dtype=np.int64)
    tasks: list[Any] = [SimpleNamespace(part=part, parts=parts) for part in range(parts)]
    taken = np.stack([_mine(SOURCE, task, item, numbers, keyed=True) for task in tasks])
    assert taken.sum(axis=0).tolist() == [1] * len(keys)
    of_key: dict[int, int] = {}
    for row, key in enumerate(keys):
        part = int(taken[:, row].argmax())
        assert of_key.setdefault(key if ordered else 0, part) == part
