"""Paimon tables that are divided into partitions: every reader gets the same rows, whatever the values are; maintenance works in each."""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.model.partition import Unit, end_of
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE, target_columns
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.partitions import DEFAULT, PartitionBy, key_in
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.maintained import compact_all, expire_seen, open_care
from tests.integration.paimon_tables import READERS, entry_of, folder, intent_of, open_sink, snapshots

TARGET = "shop.divided"
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", pa.string(), nullable=False), pa.field("v", pa.string())])
ODD = [
    "a",
    "",
    " ",
    "a/b",
    "a=b",
    "p=1",
    "%2F",
    "a b",
    "ü",
    "..",
    DEFAULT,
    "'\"",
    "a\tb",
    "{x}",
    "snapshot",
    "bucket-0",
    "\\",
    "x" * 260,
    "NULL",
    "\u2003\u3000",
    "\x1c",
    "\u00a0",
    "a\u00a0",
]
"""Texts that mean something in a folder's name, or to Paimon."""
VALUE = PartitionBy.read("p:value")

Row = tuple[int, str, str | None, int]
"""Key, the column that tells the partition, value and `_seq`; without a value it is a delete."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as talks:
        yield talks


def make(warehouse: Path, partition: PartitionBy, *, keyed: bool = True) -> PaimonSink:
    lake = open_sink(warehouse)
    lake.create(TARGET, COLUMNS, ["id"] if keyed else [], buckets=2, partition=partition)
    return lake


def batch(rows: Sequence[Row], partition: PartitionBy, *, keyed: bool = True) -> pa.RecordBatch:
    told = pa.record_batch([pa.array([row[at] for row in rows], COLUMNS.field(at).type) for at in range(3)], names=COLUMNS.names)
    key = key_in(partition, ["id"]) if keyed else []
    fields = [*target_columns(COLUMNS, key), *partition.own, pa.field(SEQUENCE, pa.int64(), nullable=False)]
    arrays = [*told.columns, *(partition.values(told) for _ in partition.own), pa.array([row[3] for row in rows], pa.int64())]
    if keyed:
        fields.append(pa.field(KIND, pa.int8()))
        arrays.append(pa.array([INSERT if row[2] is not None else DELETE for row in rows], pa.int8()))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def stage(lake: PaimonSink, number: int, rows: Sequence[Row], partition: PartitionBy, *, keyed: bool = True) -> Staged:
    writer = lake.writer(TARGET, str(StagedName(1, StagedFor.EPOCH, number, "a1", "")), at_once=True)
    writer.write(batch(rows, partition, keyed=keyed))
    return writer.finish()


def bring(
    lake: PaimonSink, epoch: int, rows: Sequence[Row], partition: PartitionBy, *, keyed: bool = True, empties: Sequence[str] = ()
) -> int:
    entry = entry_of(lake, TARGET, *([stage(lake, epoch, rows, partition, keyed=keyed)] if rows else []), empties=empties)
    return lake.commit(intent_of(epoch, entry), entry)


def rows_of(lake: PaimonSink) -> list[tuple[Any, ...]]:
    """Of both of pypaimon's readers, which agree."""
    found = []
    for options in READERS:
        builder = lake.table(TARGET).copy(dict(options)).new_read_builder()
        table = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        found.append(sorted(zip(*(table.column(name).to_pylist() for name in COLUMNS.names), strict=True)))
    assert found[0] == found[1]
    return found[0]


def of_java(java: JavaPaimon, warehouse: Path) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, java.read(warehouse, TARGET, COLUMNS.names)))


def fitting_odd(partition: PartitionBy) -> list[str]:
    values = [text for text in ODD if not partition.too_long(pa.array([text])) and not partition.is_unclear(pa.array([text]))]
    assert "x" * 260 not in values
    return [*values, "x" * (250 - 3 * len(partition.field))]


@pytest.mark.parametrize("partition", [VALUE, PartitionBy.read("p")], ids=str)
def test_odd_values_are_partitions_that_every_reader_finds_and_every_compaction_keeps(
    tmp_path: Path, java: JavaPaimon, partition: PartitionBy
) -> None:
    lake, odd = make(tmp_path, partition), fitting_odd(partition)
    state: dict[int, tuple[str, str]] = {}
    chance = random.Random(7)
    for epoch in range(1, 7):
        rows: list[Row] = []
        for key in range(60):
            if key in state and chance.random() < 0.5:
                rows.append((key, state.pop(key)[0], None, 2 * epoch))
            if key not in state and chance.random() < 0.8:
                state[key] = chance.choice(odd), f"{key} at {epoch}"
                rows.append((key, *state[key], 2 * epoch))
        bring(lake, epoch, rows, partition)
        expected = sorted((key, *row) for key, row in state.items())
        assert rows_of(lake) == expected
        assert of_java(java, tmp_path) == expected
        if epoch == 2:
            java.compact_and_expire(tmp_path, TARGET, retained=2)
        elif epoch in (3, 5):
            care = open_care(tmp_path)
            snapshot, _ = compact_all(care, TARGET)
            assert isinstance(snapshot, int)
            files = care.files(TARGET)
            assert len(files.buckets) > 2
            assert all(len(bucket.files) == 1 for bucket in files.buckets)
        assert rows_of(lake) == expected
        assert of_java(java, tmp_path) == expected


def test_expiry_and_orphan_cleaning_work_in_every_partition(tmp_path: Path) -> None:
    lake, care = make(tmp_path, VALUE), open_care(tmp_path)
    for epoch in range(1, 6):
        bring(lake, epoch, [(key, f"a/{key % 3}", str(epoch), 2 * epoch) for key in range(12)], VALUE)
    compact_all(care, TARGET)
    before = rows_of(lake)
    lost = stage(lake, 9, [(1, "a/1", "lost", 18), (2, "new", "lost", 18)], VALUE)
    assert set(lost.files) <= set(lake.staged(TARGET)) - lake.referenced(TARGET)
    numbers = [snapshot.id for snapshot in snapshots(lake, TARGET)]
    expire_seen(care, TARGET, numbers[:-1])
    assert set(lake.staged(TARGET)) - set(lost.files) == {name for name in lake.referenced(TARGET) if name.startswith("sm-")}
    orphans = list(care.orphans(TARGET, before_ms=2**50, ours=lambda _: False))
    assert {path.rpartition("/")[2] for path in orphans} == set(lost.files)
    assert all(path.startswith("_partition=") for path in orphans)
    lake.delete(TARGET, lost.files[:1])
    assert lost.files[0] not in lake.staged(TARGET)
    lake.discard(TARGET, lost)
    assert not set(lost.files) & set(lake.staged(TARGET))
    assert rows_of(lake) == before


def test_an_entry_that_empties_takes_the_rows_of_all_partitions(tmp_path: Path, java: JavaPaimon) -> None:
    lake = make(tmp_path, VALUE)
    bring(lake, 1, [(key, text, "old", 2) for key, text in enumerate(["a", "b", " ", "c/d"])], VALUE)
    bring(lake, 2, [(9, "b", "new", 4)], VALUE, empties=["shop.divided"])
    assert rows_of(lake) == of_java(java, tmp_path) == [(9, "b", "new")]
    bring(lake, 3, [], VALUE, empties=["shop.divided"])
    assert rows_of(lake) == []


def test_a_change_table_is_divided_and_keeps_each_row_once(tmp_path: Path, java: JavaPaimon) -> None:
    lake = make(tmp_path, VALUE, keyed=False)
    expected: list[tuple[Any, ...]] = []
    for epoch in range(1, 5):
        rows = [(epoch * 10 + at, text, "x", 2 * epoch) for at, text in enumerate(["a", "b", " ", "a/b"])]
        bring(lake, epoch, rows, VALUE, keyed=False)
        expected += [row[:3] for row in rows]
        if epoch == 3:
            compact_all(open_care(tmp_path), TARGET)
        assert rows_of(lake) == of_java(java, tmp_path) == expected


def test_a_table_that_is_there_must_be_divided_as_wanted_and_tells_how(tmp_path: Path) -> None:
    lake = make(tmp_path, VALUE)
    assert lake.describe(TARGET).partition == VALUE
    lake.create(TARGET, COLUMNS, ["id"], buckets=2, partition=VALUE)
    for other in (None, PartitionBy.read("p"), PartitionBy.read("v:value")):
        with pytest.raises(InvalidConfig, match="other"):
            lake.create(TARGET, COLUMNS, ["id"], buckets=2, partition=other)
    lake.remake(TARGET, COLUMNS, ["id"], buckets=2, identity=lake.identity(TARGET), partition=PartitionBy.read("p"))
    assert lake.describe(TARGET).partition == PartitionBy.read("p")
    assert list(lake.table(TARGET).primary_keys) == ["p", "id"]


WIDER = [*COLUMNS, pa.field("w", pa.int32())]


@pytest.mark.parametrize(
    ("fields", "renamed", "why"),
    [
        ([WIDER[0], WIDER[2]], {}, "dropped or renamed"),
        ([WIDER[0], pa.field("q", pa.string()), WIDER[2]], {"p": "q"}, "dropped or renamed"),
        ([WIDER[0], pa.field("p", pa.string()), WIDER[2]], {"p": "", "v": "p"}, "dropped or renamed"),
        ([WIDER[0], pa.field("p", pa.int64()), WIDER[2]], {}, "type"),
    ],
)
@pytest.mark.parametrize("partition", [VALUE, PartitionBy.read("p")], ids=str)
def test_the_column_of_the_partitions_stays_what_it_was(
    tmp_path: Path, fields: list[pa.Field], renamed: dict[str, str], why: str, partition: PartitionBy
) -> None:
    lake = make(tmp_path, partition)
    with pytest.raises(SourceDrift, match=why):
        lake.reshape(TARGET, pa.schema(fields), ["id"], renamed)
    change = lake.reshape(TARGET, pa.schema(WIDER), ["id"], {})
    assert change is not None and b'"_partition"' in change.content if partition == VALUE else change is not None


def test_a_table_that_is_emptied_may_have_another_column_of_that_name_if_its_partitions_are_in_ours(tmp_path: Path) -> None:
    lake = make(tmp_path, VALUE)
    other = pa.schema([WIDER[0], pa.field("p", pa.int64()), WIDER[2]])
    swapped = {"p": "", "v": "p"}
    assert lake.reshape(TARGET, other, ["id"], {}, emptied=True) is not None
    assert lake.reshape(TARGET, COLUMNS, ["id"], swapped, emptied=True) is not None
    with pytest.raises(SourceDrift, match="dropped or renamed"):
        lake.reshape(TARGET, pa.schema([WIDER[0], WIDER[2]]), ["id"], {}, emptied=True)
    lake.remake(TARGET, COLUMNS, ["id"], buckets=2, identity=lake.identity(TARGET), partition=PartitionBy.read("p"))
    with pytest.raises(SourceDrift, match="type"):
        lake.reshape(TARGET, other, ["id"], {}, emptied=True)


def test_a_partition_is_durable_before_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = make(tmp_path, VALUE)
    synced: set[str] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    bring(lake, 1, [(1, "a/b", "x", 2)], VALUE)
    root = folder(lake, TARGET)
    assert {str(root), str(root / "_partition=a%2Fb")} <= synced


@pytest.mark.parametrize(("unit", "first", "second"), [(Unit.DAY, "2026-11-17", "2026-11-18"), (Unit.MONTH, "2026-10", "2026-11")])
def test_partitions_that_are_done_have_paimons_own_mark_once(tmp_path: Path, java: JavaPaimon, unit: Unit, first: str, second: str) -> None:
    lake, partition = open_sink(tmp_path), PartitionBy("at", unit)
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.date32())])
    lake.create(TARGET, columns, ["id"], buckets=1, partition=partition)
    days = ["1969-12-31", "2026-10-31", "2026-11-17", "2026-11-18", "9999-12-31"]
    told = pa.record_batch([pa.array(range(6)), pa.array([*map(datetime.date.fromisoformat, days), None])], names=columns.names)
    arrays = [*told.columns, partition.values(told), pa.array([2] * 6), pa.array([INSERT] * 6, pa.int8())]
    fields = [*columns, *partition.own, pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(KIND, pa.int8())]
    writer = lake.writer(TARGET, str(StagedName(1, StagedFor.EPOCH, 1, "a1", "")), at_once=True)
    writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
    entry = entry_of(lake, TARGET, writer.finish())
    lake.commit(intent_of(1, entry), entry)

    root, field = folder(lake, TARGET), partition.field

    def marked() -> set[str]:
        return {path.parent.name.removeprefix(f"{field}=") for path in root.glob("*/_SUCCESS")}

    past, over, later = (end_of(unit, name) or 0 for name in (str(days[0])[: len(first)], first, second))
    assert lake.mark_done(TARGET, unit, after_ms=past, upto_ms=over, now_ms=5) > 0
    assert days[0][: len(first)] not in marked()
    assert first in marked()
    assert second not in marked()
    count = lake.mark_done(TARGET, unit, after_ms=None, upto_ms=over, now_ms=6)
    assert count == 1, "only what was not marked is"
    assert days[0][: len(first)] in marked()
    assert lake.mark_done(TARGET, unit, after_ms=over, upto_ms=later, now_ms=7) == 1
    assert second in marked()
    assert not {"9999-12-31", "9999-12", DEFAULT} & marked()
    # Paimon's own action finds the mark, and may renew it; then it stays so.
    mark = root / f"{field}={first}" / "_SUCCESS"
    assert java.success_file(mark) == (5, 5)
    assert mark.read_text() == java.success_text(5, 5)
    java.mark_done(tmp_path, TARGET, f"{field}={first}")
    renewed = java.success_file(mark)
    assert renewed[0] == 5 < renewed[1]
    assert lake.mark_done(TARGET, unit, after_ms=None, upto_ms=later, now_ms=8) == 0
    assert java.success_file(mark) == renewed
    # Nothing that cleans takes it for a file of its own, and readers don't see it.
    assert not list(open_care(tmp_path).orphans(TARGET, before_ms=2**50, ours=lambda _: False))
    assert len(java.read(tmp_path, TARGET, ["id"])) == 6
    with pytest.raises(InvalidConfig, match="is not partitioned by"):
        lake.mark_done(TARGET, Unit.MONTH if unit is Unit.DAY else Unit.DAY, after_ms=None, upto_ms=later, now_ms=9)
