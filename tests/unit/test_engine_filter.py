"""The rule by which tasks keep rows, for columns, is the rule that the simulation proves, for one change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.marks import PositionMark, covers
from snowmelt.engine.keys import in_span, outside, pack_bound
from snowmelt.engine.tasks import _emitted
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.source.facts import Extent, Incarnation, Reported
from snowmelt.source.filter import emits
from snowmelt.source.planning import Adopting, Rule, Span

ORDERS = Incarnation(TableId("shop", "orders"), 1)
EXTENT = Extent(pack_bound((2,)), pack_bound((9,)))
SPANS = (Span(None, pack_bound((3,))), Span(pack_bound((3,)), pack_bound((6,))), Span(pack_bound((6,)), pack_bound((9,))))


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
            report = Reported(ORDERS, 0, 1, "n", visible + draw(st.integers(0, 9)), True, 0, (), extent)
            adopting.append(Adopting(report, visible, span, live))
        elif state == "adopted" and span is None:
            is_outside = True
        elif state == "adopted" and span is not None:
            adopted.append(span)
    return Rule(ORDERS, after, live, None, is_outside, extent, tuple(adopted), tuple(adopting))


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
    item: Any = SimpleNamespace(table=SimpleNamespace(key=("id",)), rows=rows, transactions=())
    mark = PositionMark(Position(1, 4), locked)
    task: Any = SimpleNamespace(marks={"n": mark}, committed=[SimpleNamespace(offset=offset) for offset in of_xa])

    def within(key: int, span: Span | None) -> bool:
        one = np.array([key], np.int64)
        return bool((outside(one, rule.extent) if span is None else in_span(one, span, rule.extent))[0])

    expected = []
    for key, offset in changes:
        adopting = next((one for one in rule.adopting if within(key, one.span)), None)
        adopted = (rule.outside and within(key, None)) or any(within(key, span) for span in rule.adopted)
        surely = covers(mark, position=mark.high, gtid=None, xa=offset in of_xa)
        covered = lambda one, offset=offset, surely=surely: surely and offset <= one.reading.high  # noqa: E731
        expected.append(emits(rule, offset=offset, adopted=adopted, adopting=adopting, keyed=keyed, covered=covered))
    assert _emitted(task, rule, item, offsets, keyed=keyed).tolist() == expected
