"""What of the log becomes a row of the lake, and what never does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.databases.mysql.changes import changes_of
from snowmelt.databases.mysql.log.decode import ABSENT
from snowmelt.databases.mysql.types.columns import TypeOptions
from snowmelt.engine.tasks.rows import change_rows
from snowmelt.errors import TableStuck
from snowmelt.model.table import TableId


def test_a_partial_row_stops_its_table() -> None:
    """A session had set binlog_row_image to MINIMAL: columns that did not change are not in the log, and are not NULL."""
    rows = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([None], pa.string()), pa.array([["v"]])], names=["id", "v", ABSENT])
    batch: Any = SimpleNamespace(table=SimpleNamespace(id=TableId("shop", "orders"), key=("id",)), rows=rows, transactions=None)
    source: Any = SimpleNamespace(keyed=True)
    with pytest.raises(TableStuck, match=r"the log holds partial rows: shop\.orders") as caught:
        change_rows(changes_of(batch), source, TypeOptions(), np.array([True]), np.array([7]), np.array([0]), "binlog.1")
    assert "binlog_row_image" in caught.value.hint
    assert caught.value.table == ("shop", "orders")
