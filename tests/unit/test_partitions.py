"""How rows are divided into partitions, and which sources can be."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.databases.contract.changes import DELETED, INSERTED, UPDATE_AFTER, UPDATE_BEFORE
from snowmelt.engine.tasks.rows import CHANGE_FIELDS, Sourced, change_rows, chunk_rows, truncate_row
from snowmelt.errors import InvalidConfig, TableStuck
from snowmelt.model.numbers import LogOffset
from snowmelt.model.partition import Unit
from snowmelt.model.table import DELETE, INSERT, KIND, TableId
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.partitions import DEFAULT, PartitionBy

DAY, MONTH, VALUE, ITSELF = map(PartitionBy.read, ("at:day", "at:month", "r:value", "r"))
TIMES = [
    datetime.datetime(1, 1, 1),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(1970, 1, 1),
    datetime.datetime(2024, 2, 29, 12),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
    None,
]
COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us")), pa.field("r", pa.string(), nullable=False)]
)


def values(partition: PartitionBy, column: pa.Array) -> list[Any]:
    return partition.values(pa.record_batch([column], names=[partition.column])).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", ["region", "created_at:day", "created_at:month", "region:value", "a:b:day"])
def test_what_a_route_says_is_read_and_written_again(text: str) -> None:
    assert str(PartitionBy.read(text)) == text


@pytest.mark.parametrize("text", ["", ":day", "at:", "at:week", "at:Day", "at: day"])
def test_what_a_route_can_not_say_is_told_with_examples(text: str) -> None:
    with pytest.raises(InvalidConfig, match="partition_by can't be read") as caught:
        PartitionBy.read(text)
    assert "created_at:day" in caught.value.hint


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_days_and_months_are_those_of_the_calendar_at_every_edge(zone: str | None) -> None:
    column = pa.array(TIMES, pa.timestamp("us", zone))
    assert values(DAY, column) == ["0001-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31", DEFAULT]
    assert values(MONTH, column) == ["0001-01", "1969-12", "1970-01", "2024-02", "9999-12", DEFAULT]


def test_a_date_is_its_own_day() -> None:
    dates = pa.array([time.date() if time else None for time in TIMES], pa.date32())
    assert values(DAY, dates) == ["0001-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31", DEFAULT]
    assert values(MONTH, dates.slice(3)) == ["2024-02", "9999-12", DEFAULT]
    assert values(DAY, dates.slice(0, 0)) == []


def test_values_that_are_null_or_blank_have_the_name_of_their_folder() -> None:
    assert values(VALUE, pa.array(["a", "", " ", None, "\t", DEFAULT, " a"])) == ["a", DEFAULT, DEFAULT, DEFAULT, DEFAULT, DEFAULT, " a"]
    assert values(VALUE, pa.array([1, None, -7], pa.int16())) == ["1", DEFAULT, "-7"]
    assert values(ITSELF, pa.array(["a", "", " "])) == ["a", "", " "]


def test_a_value_is_too_long_where_its_folder_would_be() -> None:
    room = 255 - len("r=")
    assert not ITSELF.too_long(pa.array(["x" * (room - 2)]))
    assert ITSELF.too_long(pa.array(["a", "x" * (room + 1)]))
    assert ITSELF.too_long(pa.array(["é" * (room // 2 + 1)]))
    assert ITSELF.too_long(pa.array(["/" * (room // 3 + 1)]))
    assert not ITSELF.too_long(pa.array([], pa.string()))
    assert not ITSELF.too_long(pa.array([2**40]))
    assert not DAY.too_long(pa.array(["2026-11-19"]))


def field(kind: pa.DataType, *, nullable: bool = False) -> pa.Schema:
    return pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("c", kind, nullable=nullable)])


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("c:day", pa.date32(), ""),
        ("c:day", pa.timestamp("us"), ""),
        ("c:month", pa.timestamp("us", "UTC"), ""),
        ("c:day", pa.string(), "needs a date"),
        ("c:month", pa.int64(), "needs a date"),
        ("c", pa.date32(), "of dates take :day"),
        ("c", pa.int32(), ""),
        ("c", pa.string(), ""),
        ("c", pa.float64(), "integers or of text"),
        ("c:value", pa.decimal128(9, 2), "integers or of text"),
        ("c:value", pa.binary(), "integers or of text"),
        ("x", pa.int64(), "does not have"),
        ("id", pa.int64(), "whole key"),
        ("id:value", pa.int64(), ""),
    ],
)
def test_a_source_is_divided_by_what_it_has(text: str, kind: pa.DataType, why: str) -> None:
    found = PartitionBy.read(text).why_not(field(kind), ("id",))
    assert why in found if why else not found


def test_a_column_that_may_be_null_is_no_part_of_a_key() -> None:
    assert ":value" in PartitionBy.read("c").why_not(field(pa.string(), nullable=True), ("id",))
    assert not PartitionBy.read("c:value").why_not(field(pa.string(), nullable=True), ("id",))
    assert "changelog" in PartitionBy.read("c").why_not(field(pa.string()), ())


def test_a_source_that_has_our_column_is_refused() -> None:
    schema = pa.schema([pa.field("at", pa.date32()), pa.field("_DAY", pa.int8())])
    assert "_day" in DAY.why_not(schema, ())
    assert not MONTH.why_not(schema, ())


def test_the_key_of_a_target_has_its_partition_once() -> None:
    assert DAY.key(["id"]) == ["_day", "id"]
    assert ITSELF.key(["id"]) == ["r", "id"]
    assert ITSELF.key(["id", "r"]) == ["id", "r"]
    assert DAY.key([]) == []
    assert {PartitionBy("at", unit).own.names[0] for unit in Unit} == {"_day", "_month", "_partition"}


# ---- rows


class Source:
    """A database as rows want it."""

    def schema_of(self, _: Any) -> pa.Schema:
        return COLUMNS


def changes(*rows: tuple[int, int, datetime.datetime | None, str]) -> Any:
    """Kind, key, time and text."""
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate((pa.int8(), pa.int64(), pa.timestamp("us"), pa.string()))]
    arrays += [pa.array(range(len(rows)), pa.int64()), pa.array([0] * len(rows), pa.timestamp("us", "UTC"))]
    table: Any = SimpleNamespace(id=TableId("shop", "t"), key=("id",), names=COLUMNS.names)
    batch = pa.RecordBatch.from_arrays(arrays, names=["_op", *COLUMNS.names, "_position", "_ts"])
    return SimpleNamespace(table=table, rows=batch, partial="")


def emitted(partition: PartitionBy | None, *rows: tuple[int, int, datetime.datetime | None, str], kept: list[bool] | None = None) -> Any:
    item, source = changes(*rows), Source()
    mask, offsets = np.array(kept or [True] * len(rows)), np.full(len(rows), 50)
    sourced = Sourced(item.table, "ods.t", True, partition)
    return change_rows(item, sourced, source, mask, offsets, np.arange(len(rows)), "binlog.1")  # type: ignore[arg-type]


FIRST, LATER, NEXT = datetime.datetime(2026, 11, 1, 1), datetime.datetime(2026, 11, 1, 2), datetime.datetime(2026, 11, 2)


def test_a_row_that_moves_is_deleted_where_it_was() -> None:
    rows = emitted(
        DAY, (UPDATE_BEFORE, 1, FIRST, "a"), (UPDATE_AFTER, 1, NEXT, "b"), (UPDATE_BEFORE, 1, NEXT, "b"), (UPDATE_AFTER, 1, None, "b")
    )
    assert rows.column("_day").to_pylist() == ["2026-11-01", "2026-11-02", "2026-11-02", DEFAULT]
    assert rows.column(KIND).to_pylist() == [DELETE, INSERT, DELETE, INSERT]
    assert set(rows.column(SEQUENCE).to_pylist()) == {100}
    assert rows.schema.names == ["id", "at", "r", "_day", SEQUENCE, KIND]


def test_a_row_that_stays_in_its_partition_is_written_once() -> None:
    rows = emitted(DAY, (UPDATE_BEFORE, 1, FIRST, "a"), (UPDATE_AFTER, 1, LATER, "b"), (DELETED, 2, NEXT, "a"), (INSERTED, 3, None, "a"))
    assert rows.column("_day").to_pylist() == ["2026-11-01", "2026-11-02", DEFAULT]
    assert rows.column(KIND).to_pylist() == [INSERT, DELETE, INSERT]


def test_a_partition_is_of_the_row_that_is_kept() -> None:
    rows = emitted(MONTH, (INSERTED, 1, FIRST, "a"), (INSERTED, 2, None, "a"), (INSERTED, 3, TIMES[3], "a"), kept=[True, False, True])
    assert rows.column("_month").to_pylist() == ["2026-11", "2024-02"]


def test_a_row_that_moves_by_its_own_column_leaves_nothing_either() -> None:
    rows = emitted(ITSELF, (UPDATE_BEFORE, 1, FIRST, "EU"), (UPDATE_AFTER, 1, FIRST, "eu"))
    assert rows.column("r").to_pylist() == ["EU", "eu"]
    assert rows.column(KIND).to_pylist() == [DELETE, INSERT]
    assert not rows.schema.field("r").nullable


def test_a_value_without_a_folder_stops_its_table_and_is_not_told() -> None:
    with pytest.raises(TableStuck, match="longer than a folder's") as caught:
        emitted(ITSELF, (INSERTED, 1, FIRST, "secret" * 60))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["\u00a0", "\u2007 ", " \u202f\u202f", "\u0085"])
def test_a_value_that_readers_look_for_in_different_folders_stops_its_table(text: str) -> None:
    with pytest.raises(TableStuck, match="white space"):
        emitted(ITSELF, (INSERTED, 1, FIRST, "a"), (INSERTED, 2, FIRST, text))
    # A blank one of ours is in the partition of blanks.
    assert emitted(VALUE, (INSERTED, 2, FIRST, text)).column("_partition").to_pylist() == [DEFAULT]
    assert len(emitted(ITSELF, (INSERTED, 1, FIRST, f"a{text}"), (INSERTED, 2, FIRST, " \u2003\t"), (INSERTED, 3, FIRST, ""))) == 3
    assert not ITSELF.is_unclear(pa.array([], pa.string()))
    assert not ITSELF.is_unclear(pa.array([7]))


def test_rows_of_a_chunk_have_their_partitions() -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array([FIRST, None]), pa.array(["a", "b"])], schema=COLUMNS)
    table: Any = SimpleNamespace(id=TableId("shop", "t"), key=("id",), names=COLUMNS.names)
    source: Any = Source()
    rows = chunk_rows(batch, Sourced(table, "ods.t", True, DAY), source, visible=LogOffset(10), place="x:1", time_us=0)
    assert rows.column("_day").to_pylist() == ["2026-11-01", DEFAULT]
    rows = chunk_rows(batch, Sourced(table, "ods.t", False, DAY), source, visible=LogOffset(10), place="x:1", time_us=0)
    assert rows.schema.names == [*COLUMNS.names, "_day", *CHANGE_FIELDS.names, SEQUENCE]
    assert rows.column("_day").to_pylist() == ["2026-11-01", DEFAULT]


def test_the_row_that_says_that_a_source_was_emptied_has_no_partition() -> None:
    columns = pa.schema([*COLUMNS.set(0, pa.field("id", pa.int64())).set(2, pa.field("r", pa.string())), *DAY.own, *CHANGE_FIELDS])
    columns = columns.append(pa.field(SEQUENCE, pa.int64(), nullable=False))
    row = truncate_row(columns, at=4, time_us=0)
    assert row.column("_day").to_pylist() == [DEFAULT]
    assert row.column(SEQUENCE).to_pylist() == [8]
    assert row.column("id").to_pylist() == [None]
