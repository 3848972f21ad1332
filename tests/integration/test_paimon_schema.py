"""Columns of Paimon tables by real pypaimon: they change once, behind their epoch, and old files stay readable by both readers."""

from __future__ import annotations

import datetime
import json
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.commit.publish import EpochInLake, judge
from snowmelt.commit.records import Entry, Reshape
from snowmelt.errors import Fenced, InvalidConfig, InvariantBroken, OutcomeUnknown, SourceDrift
from snowmelt.model.table import KIND
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.local import LocalStore
from tests.integration.paimon_tables import (
    KEYED,
    NATIVE,
    PLAIN,
    Committer,
    DieAtStep,
    alter,
    bring,
    entry_of,
    epochs_of,
    expire,
    folder,
    intent_of,
    make_tables,
    open_sink,
    read_columns,
    snapshots,
    stage_columns,
    stop_before_schema,
    watch_steps,
)

ID = pa.field("id", pa.int64(), nullable=False)
V = pa.field("v", pa.string())


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


def columns(*fields: pa.Field | tuple[str, pa.DataType]) -> pa.Schema:
    """A source's columns behind `id`."""
    return pa.schema([ID, *(pa.field(*field) if isinstance(field, tuple) else field for field in fields)])


def key_of(lake: PaimonSink, target: str) -> Sequence[str]:
    return list(lake.table(target).primary_keys)


def reshape(lake: PaimonSink, target: str, schema: pa.Schema, **how: Any) -> Reshape:
    found = lake.reshape(target, schema, key_of(lake, target), **how)
    assert found is not None
    return found


def put(lake: PaimonSink, epoch: int, target: str, **rows: Sequence[Any]) -> None:
    entry = entry_of(lake, target, stage_columns(lake, target, rows, number=epoch))
    lake.commit(intent_of(epoch, entry), entry)


def change(lake: PaimonSink, epoch: int, target: str, schema: pa.Schema, **how: Any) -> None:
    """An epoch that changes the schema and nothing else."""
    entry = entry_of(lake, target, reshape=reshape(lake, target, schema, **how))
    lake.commit(intent_of(epoch, entry), entry)


def shape_of(lake: PaimonSink, target: str) -> list[tuple[int, str, str]]:
    return [(field.id, field.name, str(field.type)) for field in lake.table(target).fields]


def schema_id(lake: PaimonSink, target: str) -> int:
    return lake.describe(target).schema


both_kinds = pytest.mark.parametrize("target", [KEYED, PLAIN])

# ---- types

D = Decimal
WIDER: list[tuple[pa.DataType, pa.DataType, list[Any], list[Any]]] = [
    (pa.int8(), pa.int16(), [-128, 127], [-128, 127]),
    (pa.int8(), pa.int64(), [-128, 127], [-128, 127]),
    (pa.int16(), pa.int32(), [-32768, 9], [-32768, 9]),
    (pa.int32(), pa.int64(), [-(2**31), 10], [-(2**31), 10]),
    (pa.float32(), pa.float64(), [0.5, -1.25], [0.5, -1.25]),
    (pa.int16(), pa.float32(), [-32768, 9], [-32768.0, 9.0]),
    (pa.int32(), pa.float64(), [2**31 - 1, -5], [2.0**31 - 1, -5.0]),
    (pa.decimal128(8, 2), pa.decimal128(12, 2), [D("-999999.99"), D("1.50")], [D("-999999.99"), D("1.50")]),
    (pa.decimal128(8, 2), pa.decimal128(12, 4), [D("-999999.99"), D("1.50")], [D("-999999.99"), D("1.50")]),
    (pa.decimal128(20, 0), pa.decimal128(38, 10), [D(2**64 - 1)], [D(2**64 - 1)]),
    (pa.int8(), pa.decimal128(5, 2), [-128, 9], [D(-128), D(9)]),
    (pa.int64(), pa.decimal128(20, 0), [-(2**63), 9], [D(-(2**63)), D(9)]),
]
OTHER: list[tuple[pa.DataType, pa.DataType, Any, Any]] = [
    (pa.int64(), pa.int32(), 5, 6),
    (pa.int32(), pa.float32(), 5, 6.0),
    (pa.int64(), pa.float64(), 5, 6.0),
    (pa.float64(), pa.float32(), 5.0, 6.0),
    (pa.decimal128(8, 2), pa.decimal128(8, 3), D(5), D(6)),
    (pa.decimal128(8, 2), pa.decimal128(9, 1), D(5), D(6)),
    (pa.int32(), pa.decimal128(11, 2), 5, D(6)),
    (pa.decimal128(8, 2), pa.float64(), D(5), 6.0),
    (pa.int32(), pa.string(), 5, "6"),
    (pa.string(), pa.int32(), "5", 6),
    (pa.date32(), pa.timestamp("us"), datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2)),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)),
    (pa.string(), pa.binary(), "5", b"6"),
    (pa.list_(pa.string()), pa.string(), ["5"], "6"),
]


def _spelled(value: Any) -> str:
    return str(value).replace(" ", "")


@both_kinds
@pytest.mark.parametrize(("old", "new", "values", "expected"), WIDER, ids=_spelled)
def test_a_wider_type_shows_old_values_unchanged_to_every_reader_and_filter(
    tmp_path: Path, target: str, old: pa.DataType, new: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    lake = open_sink(tmp_path)
    lake.create(target, columns(("n", old)), ["id"] if target == KEYED else [], buckets=2)
    put(lake, 1, target, id=range(len(values) + 1), n=[*values, None])
    change(lake, 2, target, columns(("n", new)))
    put(lake, 3, target, id=[50], n=[expected[0]])
    rows = [*enumerate([*expected, None]), (50, expected[0])]

    def shown(keep: Callable[[Any], bool]) -> list[dict[str, Any]]:
        return [{"id": key, "n": value} for key, value in rows if keep(value)]

    assert read_columns(lake, target) == shown(lambda _: True)
    for value in expected:
        assert read_columns(lake, target, lambda made, v=value: made.equal("n", v)) == shown(lambda n, v=value: n == v)
        assert read_columns(lake, target, lambda made, v=value: made.less_or_equal("n", v)) == shown(
            lambda n, v=value: n is not None and n <= v
        )
    assert read_columns(lake, target, lambda made: made.is_null("n")) == shown(lambda n: n is None)


@pytest.mark.parametrize(("old", "new", "before", "after"), OTHER, ids=_spelled)
def test_any_other_type_needs_an_empty_table_and_shows_nothing_of_what_was(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, before: Any, after: Any
) -> None:
    lake = open_sink(tmp_path)
    lake.create(KEYED, columns(("n", old)), ["id"], buckets=2)
    put(lake, 1, KEYED, id=[1, 2], n=[before, before])
    with pytest.raises(SourceDrift, match="type was changed") as error:
        reshape(lake, KEYED, columns(("n", new)))
    kinds = [str(field.type) for field in lake.table(KEYED).fields if field.name == "n"]
    assert f"{KEYED}.n: from {kinds[0]} to " in error.value.detail
    assert "--recopy" in error.value.hint
    entry = entry_of(lake, KEYED, empties=["shop.orders"], reshape=reshape(lake, KEYED, columns(("n", new)), emptied=True))
    lake.commit(intent_of(2, entry), entry)
    assert read_columns(lake, KEYED) == []
    put(lake, 3, KEYED, id=[1], n=[after])
    assert read_columns(lake, KEYED) == [{"id": 1, "n": after}]
    ids = [number for number, name, _ in shape_of(lake, KEYED) if name == "n"]
    assert ids == [3]


def test_the_cast_to_text_that_pypaimon_allows_breaks_its_own_filters(lake: PaimonSink) -> None:
    """The reason why no type becomes text. When this fails, pypaimon has learnt it."""
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    lake.create("shop.numbers", columns(("n", pa.int32())), [], buckets=1)
    put(lake, 1, "shop.numbers", id=[1], n=[5])
    alter(lake, "shop.numbers", SchemaChange.update_column_type("n", AtomicType("STRING")))
    assert read_columns(lake, "shop.numbers") == [{"id": 1, "n": "5"}]
    with pytest.raises(TypeError):
        read_columns(lake, "shop.numbers", lambda made: made.equal("n", "5"))


@pytest.mark.parametrize("emptied", [False, True])
def test_a_key_does_not_change(lake: PaimonSink, emptied: bool) -> None:
    wide = pa.schema([ID, pa.field("v", pa.string(), nullable=False)])
    narrow = pa.schema([pa.field("id", pa.int32(), nullable=False), V])
    for target, schema, key in ((KEYED, wide, ["id", "v"]), (KEYED, wide, []), (KEYED, narrow, ["id"]), (PLAIN, wide, ["id"])):
        with pytest.raises(SourceDrift, match="key") as error:
            lake.reshape(target, schema, key, emptied=emptied)
        assert target in error.value.detail
        assert "--recopy" in error.value.hint


# ---- names and places


@both_kinds
def test_nothing_has_to_change_where_the_columns_are_the_same(lake: PaimonSink, target: str) -> None:
    key = key_of(lake, target)
    assert lake.reshape(target, columns(V), key) is None
    # Whether a source's column may be NULL is nothing to the lake.
    assert lake.reshape(target, columns(V.with_nullable(False)), key) is None
    assert lake.reshape(target, columns(V), key, {"other": "another"}) is None


@both_kinds
def test_columns_come_where_the_source_has_them_and_are_null_in_older_rows(lake: PaimonSink, target: str) -> None:
    put(lake, 1, target, id=[1], v=["old"])
    change(lake, 2, target, columns(("a", pa.int32()), V, ("b", pa.list_(pa.string()))))
    assert [name for _, name, _ in shape_of(lake, target)] == ["id", "a", "v", "b", "_seq"]
    put(lake, 3, target, id=[2], a=[7], v=["new"], b=[["x", "y"]])
    assert read_columns(lake, target) == [{"id": 1, "a": None, "v": "old", "b": None}, {"id": 2, "a": 7, "v": "new", "b": ["x", "y"]}]
    assert read_columns(lake, target, lambda made: made.is_null("a")) == [{"id": 1, "a": None, "v": "old", "b": None}]
    # A move alone is a change as well: the writer takes columns by place.
    change(lake, 4, target, columns(V, ("b", pa.list_(pa.string())), ("a", pa.int32())))
    put(lake, 5, target, id=[3], v=["moved"], b=[[]], a=[9])
    assert [row["v"] for row in read_columns(lake, target, lambda made: made.greater_than("a", 0))] == ["new", "moved"]


@both_kinds
def test_a_renamed_column_keeps_its_values(lake: PaimonSink, target: str) -> None:
    put(lake, 1, target, id=[1], v=["x"])
    change(lake, 2, target, columns(("w", pa.string())), renamed={"v": "w"})
    assert read_columns(lake, target) == [{"id": 1, "w": "x"}]
    assert shape_of(lake, target)[1][:2] == (1, "w")
    change(lake, 3, target, columns(("w", pa.string()), ("u", pa.string())))
    put(lake, 4, target, id=[2], w=["w"], u=["u"])
    change(lake, 5, target, columns(("u", pa.string()), ("w", pa.string())), renamed={"u": "w", "w": "u"})
    assert read_columns(lake, target) == [{"id": 1, "u": "x", "w": None}, {"id": 2, "u": "w", "w": "u"}]
    assert read_columns(lake, target, lambda made: made.equal("w", "u")) == [{"id": 2, "u": "w", "w": "u"}]


@both_kinds
def test_a_keys_column_may_be_renamed(lake: PaimonSink, target: str) -> None:
    put(lake, 1, target, id=[1, 2], v=["x", "y"])
    fields = pa.schema([ID.with_name("number"), V])
    found = lake.reshape(target, fields, ["number"] if target == KEYED else [], {"id": "number"})
    assert found is not None
    entry = entry_of(lake, target, reshape=found)
    lake.commit(intent_of(2, entry), entry)
    put(lake, 3, target, number=[2, 3], v=["z", "z"])
    rows = read_columns(lake, target)
    assert [row for row in rows if row["v"] != "y"] == [{"number": 1, "v": "x"}, {"number": 2, "v": "z"}, {"number": 3, "v": "z"}]
    assert len(rows) == (3 if target == KEYED else 4)


@both_kinds
@pytest.mark.parametrize("at_once", [False, True])
def test_a_column_that_was_dropped_and_comes_back_shows_nothing_of_what_it_was(lake: PaimonSink, target: str, at_once: bool) -> None:
    put(lake, 1, target, id=[1], v=["old"])
    if at_once:
        change(lake, 2, target, columns(V), renamed={"v": ""})
    else:
        change(lake, 2, target, columns())
        assert read_columns(lake, target) == [{"id": 1}]
        put(lake, 3, target, id=[2])
        change(lake, 4, target, columns(V))
    put(lake, 5, target, id=[3], v=["new"])
    expected = [{"id": 1, "v": None}, *([] if at_once else [{"id": 2, "v": None}]), {"id": 3, "v": "new"}]
    assert read_columns(lake, target) == expected
    assert read_columns(lake, target, lambda made: made.equal("v", "old")) == []
    assert read_columns(lake, target, lambda made: made.is_null("v")) == expected[:-1]


def test_a_column_may_take_the_name_of_one_that_was_dropped(lake: PaimonSink) -> None:
    change(lake, 1, KEYED, columns(V, ("w", pa.string())))
    put(lake, 2, KEYED, id=[1], v=["v"], w=["w"])
    change(lake, 3, KEYED, columns(V), renamed={"w": "v"})
    assert read_columns(lake, KEYED) == [{"id": 1, "v": "w"}]
    # And the name that it had is free for a new one.
    change(lake, 4, KEYED, columns(("v2", pa.string()), V), renamed={"v": "v2"})
    assert read_columns(lake, KEYED) == [{"id": 1, "v2": "w", "v": None}]


@pytest.mark.parametrize("name", ["_seq", "_SEQ", "_op", "_ts", "_position", "_VALUE_KIND", "_KEY_id", "_row_id", "ID"])
def test_a_column_whose_name_is_needed_is_said_so(lake: PaimonSink, name: str) -> None:
    fields = columns(V, (name, pa.string()))
    with pytest.raises(SourceDrift, match=name) as drift:
        reshape(lake, KEYED, fields)
    with pytest.raises(InvalidConfig, match=name) as config:
        lake.create("shop.other", fields, ["id"], buckets=2)
    assert drift.value.hint
    assert config.value.hint
    assert not lake.exists("shop.other")


def test_a_type_that_paimon_lacks_is_said_so(lake: PaimonSink) -> None:
    fields = columns(("long", pa.duration("us")))
    told = r"has no form in Paimon: .*\.long: duration"
    with pytest.raises(SourceDrift, match=told):
        reshape(lake, KEYED, fields)
    with pytest.raises(InvalidConfig, match=told):
        lake.create("shop.other", fields, ["id"], buckets=2)


def test_columns_of_ours_stay_where_they_are(tmp_path: Path) -> None:
    lake = open_sink(tmp_path)
    system = pa.schema([pa.field("_op", pa.int8(), nullable=False), pa.field("_ts", pa.timestamp("us", "UTC"))])
    lake.create(PLAIN, columns(V), [], buckets=1, system=system)
    lake.create(PLAIN, columns(V), [], buckets=1, system=system)
    put(lake, 1, PLAIN, id=[1], v=["x"], _op=[0])
    change(lake, 2, PLAIN, columns(("w", pa.string())))
    assert [name for _, name, _ in shape_of(lake, PLAIN)] == ["id", "w", "_op", "_ts", "_seq"]
    assert read_columns(lake, PLAIN) == [{"id": 1, "w": None, "_op": 0, "_ts": None}]


@pytest.mark.parametrize("target", [KEYED, PLAIN])
@pytest.mark.parametrize(
    "fields",
    [
        columns(("v", pa.int64())),
        columns(("w", pa.string())),
        columns(),
        columns(V, ("w", pa.string())),
        pa.schema([V, ID]),
        pa.schema([pa.field("id", pa.int32(), nullable=False), V]),
    ],
    ids=["type", "name", "fewer", "more", "order", "type of the key"],
)
def test_a_table_with_other_columns_is_refused_where_ours_would_be_made(lake: PaimonSink, target: str, fields: pa.Schema) -> None:
    with pytest.raises(InvalidConfig, match="a lake table has other columns") as error:
        lake.create(target, fields, key_of(lake, target), buckets=2)
    assert target in error.value.detail
    assert error.value.hint
    lake.create(target, columns(V), key_of(lake, target), buckets=2)
    assert schema_id(lake, target) == 0


def test_a_column_that_cannot_be_null_is_refused_because_deletes_have_no_values(lake: PaimonSink) -> None:
    from pypaimon import Schema

    fields = pa.schema([ID, V.with_nullable(False), pa.field("_seq", pa.int64(), nullable=False)])
    options = {"bucket": "1", "sequence.field": "_seq"}
    lake._catalog.create_table("shop.strict", Schema.from_pyarrow_schema(fields, primary_keys=["id"], options=options), False)
    with pytest.raises(InvalidConfig, match="v STRING NOT NULL, not v STRING"):
        lake.create("shop.strict", columns(V), ["id"], buckets=1)


def test_rows_of_yesterdays_columns_are_refused_by_the_writer_itself(lake: PaimonSink) -> None:
    yesterday = lake.table(PLAIN)
    batch = pa.record_batch([pa.array([1]), pa.array(["x"]), pa.array([2])], names=["id", "v", "_seq"])
    change(lake, 1, PLAIN, columns(V, ("w", pa.string())))
    assert len(yesterday.fields) == 3
    with pytest.raises(InvariantBroken, match="rows do not fit"):
        lake.writer(PLAIN, "sm-1-e2-a1-").write(batch)


def test_a_table_without_a_key_takes_rows_and_no_kinds_of_changes(lake: PaimonSink) -> None:
    rows = {"id": pa.array([1]), "v": pa.array(["x"]), "_seq": pa.array([2]), KIND: pa.array([0], pa.int8())}
    with pytest.raises(InvariantBroken, match="rows do not fit"):
        lake.writer(PLAIN, "sm-1-e1-a1-").write(pa.RecordBatch.from_pydict(rows))


# ---- once, behind everything else


def _changing(lake: PaimonSink, target: str, epoch: int, kind: str) -> tuple[Entry, dict[str, list[int]]]:
    """The entry of an epoch that adds a column, and what it does before that; and the rows that it brings."""
    names = [name for _, name, _ in shape_of(lake, target)][1:-1]
    fields = [V, *((name, pa.int64()) for name in [*names[1:], f"c{epoch}"])]
    rows = {"id": [epoch]} if kind != "alone" else {}
    staged = [stage_columns(lake, target, rows, number=epoch)] if rows else []
    empties = ["shop.orders"] if kind == "emptied" else []
    return entry_of(lake, target, *staged, empties=empties, reshape=reshape(lake, target, columns(*fields))), rows


@both_kinds
@pytest.mark.parametrize("kind", ["rows", "emptied", "alone"])
def test_a_process_killed_at_each_step_leaves_no_schema_without_its_epoch(lake: PaimonSink, tmp_path: Path, target: str, kind: str) -> None:
    """Every step of a commit that leaves something behind, in order; the next process rolls forward, from the intent alone."""
    expected: list[int] = []
    outcomes: list[tuple[bool, bool]] = []
    told: list[Any] = []
    while not told:
        epoch = len(outcomes) + 1
        entry, rows = _changing(lake, target, epoch, kind)
        intent = intent_of(epoch, entry)
        with Committer(tmp_path, [intent], DieAtStep(epoch)) as killed:
            killed.go()
            told = killed.hear_all()
        published, changed = epoch in epochs_of(lake, target), schema_id(lake, target) == epoch
        outcomes.append((published, changed))
        before = expected
        expected = [*(() if kind == "emptied" else expected), *rows.get("id", ())]
        assert [row["id"] for row in read_columns(lake, target, readers=[NATIVE])] == (expected if published else before)
        for again in (open_sink(tmp_path), lake):
            again.commit(intent, entry)
        assert [row["id"] for row in read_columns(lake, target, readers=[NATIVE])] == expected
        assert epochs_of(lake, target) == list(range(1, epoch + 1))
        assert schema_id(lake, target) == epoch
        assert (folder(lake, target) / "schema" / f"schema-{epoch}").read_bytes() == entry.shape
    assert told == [epoch, "end"]
    assert [row["id"] for row in read_columns(lake, target)] == expected
    # Neither, then the snapshot alone, then both: never the schema alone. Of a commit that merges manifests the same step comes earlier.
    merging = [number for number, (one, next_one) in enumerate(pairwise(outcomes)) if one > next_one]
    assert len(merging) <= 2 * len(outcomes) // 16
    assert set(outcomes) == {(False, False), (True, False), (True, True)}


@both_kinds
@pytest.mark.parametrize("kind", ["rows", "alone"])
def test_processes_that_change_a_schema_at_once_change_it_once(lake: PaimonSink, tmp_path: Path, target: str, kind: str) -> None:
    for epoch in range(1, 6):
        entry, _ = _changing(lake, target, epoch, kind)
        with ExitStack() as ending:
            racers = [ending.enter_context(Committer(tmp_path, [intent_of(epoch, entry)])) for _ in range(3)]
            for racer in racers:
                racer.go()
            assert [racer.hear_all() for racer in racers] == [[epoch, "end"]] * 3
    assert epochs_of(lake, target) == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (folder(lake, target) / "schema").iterdir()) == [f"schema-{number}" for number in range(6)]
    assert len(read_columns(lake, target)) == (5 if kind == "rows" else 0)


def test_a_zombie_that_goes_on_after_its_change_was_made_finds_it_made(lake: PaimonSink, tmp_path: Path) -> None:
    entry, _ = _changing(lake, KEYED, 1, "rows")
    intent = intent_of(1, entry)
    with Committer(tmp_path, [intent], stop_before_schema) as zombie:
        zombie.go()
        zombie.await_stop()
        assert (epochs_of(lake, KEYED), schema_id(lake, KEYED)) == ([1], 0)
        lake.commit(intent, entry)
        zombie.signal(signal.SIGCONT)
        assert zombie.hear_all() == [1, "end"]
    assert (epochs_of(lake, KEYED), schema_id(lake, KEYED)) == ([1], 1)


@pytest.mark.parametrize("kind", ["rows", "alone"])
def test_a_zombie_that_goes_on_after_the_next_change_harms_nothing(lake: PaimonSink, tmp_path: Path, kind: str) -> None:
    entry, _ = _changing(lake, KEYED, 1, kind)
    intent = intent_of(1, entry)
    with Committer(tmp_path, [intent], stop_before_schema) as zombie:
        zombie.go()
        zombie.await_stop()
        lake.commit(intent, entry)
        change(lake, 2, KEYED, columns(("w", pa.string())), renamed={"v": "w"})
        was = shape_of(lake, KEYED)
        zombie.signal(signal.SIGCONT)
        [error] = zombie.hear_all()
    assert isinstance(error, SourceDrift)
    assert (shape_of(lake, KEYED), schema_id(lake, KEYED), epochs_of(lake, KEYED)) == (was, 2, [1, 2])
    # Asked once more, it hears that it is behind.
    with pytest.raises(Fenced, match="the lake is ahead"):
        lake.commit(intent, entry)
    assert (folder(lake, KEYED) / "schema" / "schema-1").read_bytes() == entry.shape


@pytest.mark.parametrize("kind", ["rows", "alone"])
@pytest.mark.parametrize("when", ["before", "between"])
def test_a_number_that_somebody_elses_change_has_taken_stops_us(
    lake: PaimonSink, monkeypatch: pytest.MonkeyPatch, kind: str, when: str
) -> None:
    from pypaimon.schema.schema_change import SchemaChange

    entry, _ = _changing(lake, KEYED, 1, kind)
    real = LocalStore.put_if_absent

    def put_if_absent(self: LocalStore, key: str, value: bytes) -> bool:
        if key == "schema/schema-1":
            alter(lake, KEYED, SchemaChange.update_comment("theirs"))
        return real(self, key, value)

    if when == "before":
        alter(lake, KEYED, SchemaChange.update_comment("theirs"))
    else:
        monkeypatch.setattr(LocalStore, "put_if_absent", put_if_absent)
    for _ in range(2):
        with pytest.raises(SourceDrift, match="another program changed the schema"):
            lake.commit(intent_of(1, entry), entry)
    assert lake.table(KEYED).table_schema.comment == "theirs"
    # What is behind a change that is not ours is not published either.
    assert epochs_of(lake, KEYED) == ([1] if when == "between" else [])


def test_a_lost_reply_of_a_change_is_read_back(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = _changing(lake, KEYED, 1, "rows")
    real, calls = LocalStore.put_if_absent, []

    def losing(self: LocalStore, key: str, value: bytes) -> bool:
        if not key.startswith("schema/"):
            return real(self, key, value)
        calls.append(key)
        # The first is lost on its way there, the second's reply on its way back.
        if len(calls) > 1:
            real(self, key, value)
        raise OutcomeUnknown("a reply was lost")

    monkeypatch.setattr(LocalStore, "put_if_absent", losing)
    assert lake.commit(intent_of(1, entry), entry) == 1
    assert calls == ["schema/schema-1"] * 2
    assert (folder(lake, KEYED) / "schema" / "schema-1").read_bytes() == entry.shape


@both_kinds
def test_an_epoch_that_changes_the_schema_alone_is_told_of_by_the_table(lake: PaimonSink, target: str) -> None:
    """As any other: the next one asks whether the last commit of ours is that of the epoch that the store says."""
    bring(lake, 1, target, (1, "x", 2))
    entry, _ = _changing(lake, target, 2, "alone")
    intent = intent_of(2, entry, nonce="b2")
    assert [lake.commit(intent, entry) for _ in range(2)] == [2, 2]
    marker, greatest = lake.newest_commit(target)
    assert marker is not None
    assert (marker.epoch, marker.identity, greatest) == (2, "1-b2", 4)
    assert isinstance(judge(intent, entry, lake.view(entry)), EpochInLake)
    put(lake, 3, target, id=[2], v=["y"], c2=[7])
    assert read_columns(lake, target) == [{"id": 1, "v": "x", "c2": None}, {"id": 2, "v": "y", "c2": 7}]
    assert [len(lake.referenced(target)), len(lake.staged(target))] == [2, 2]
    assert [snapshot.schema_id for snapshot in snapshots(lake, target)] == [0, 0, 1]


def test_a_change_that_is_made_proves_itself_though_its_snapshot_was_removed(lake: PaimonSink) -> None:
    bring(lake, 1, PLAIN, (1, "x", 2))
    entry, _ = _changing(lake, PLAIN, 2, "alone")
    lake.commit(intent_of(2, entry), entry)
    builder = lake.table(PLAIN).new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.table({"id": [9], "v": ["theirs"], "c2": [1], "_seq": [0]}, schema=_arrow(lake, PLAIN)))
    commit.commit(write.prepare_commit())
    expire(lake, PLAIN, 1, 2)
    assert lake.commit(intent_of(2, entry), entry) == 3
    assert len(snapshots(lake, PLAIN)) == 1


def _arrow(lake: PaimonSink, target: str) -> pa.Schema:
    from pypaimon.schema.data_types import PyarrowFieldParser

    return PyarrowFieldParser.from_paimon_schema(lake.table(target).fields)


def test_an_intent_that_does_not_say_what_a_schema_is_to_be_is_a_bug(lake: PaimonSink) -> None:
    entry, _ = _changing(lake, KEYED, 1, "rows")
    for wrong in (replace(entry, shape=b""), replace(entry, new_schema=None), replace(entry, new_schema=2)):
        with pytest.raises(InvariantBroken, match="an intent changes a schema"):
            lake.commit(intent_of(1, wrong), wrong)
    assert (epochs_of(lake, KEYED), schema_id(lake, KEYED)) == ([], 0)


def test_a_change_is_durable_and_behind_its_snapshot(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = _changing(lake, KEYED, 1, "rows")
    steps = watch_steps(monkeypatch)
    lake.commit(intent_of(1, entry), entry)
    root = folder(lake, KEYED)
    published, made = steps.index("link snapshot-1"), steps.index("link schema-1")
    assert published < made
    assert str(root / "snapshot") in steps[published:made]
    assert any("/.tmp/" in step for step in steps[published:made])
    assert str(root / "schema") in steps[made:]
    # Who finds it made makes it durable too: its maker may have died in between.
    steps.clear()
    lake.commit(intent_of(1, entry), entry)
    assert {str(root / "snapshot"), str(root / "schema")} <= set(steps)


@both_kinds
def test_what_java_and_pypaimon_read_of_a_schema_is_all_there(lake: PaimonSink, target: str) -> None:
    before = json.loads((folder(lake, target) / "schema" / "schema-0").read_bytes())
    found = reshape(lake, target, columns(("w", pa.int64()), ("x", pa.string())), renamed={})
    after = json.loads(found.content)
    assert (found.expected, found.schema, after["id"]) == (0, 1, 1)
    assert set(after) == set(before)
    assert {name: after[name] for name in ("version", "partitionKeys", "primaryKeys", "options", "comment")} == {
        name: before[name] for name in ("version", "partitionKeys", "primaryKeys", "options", "comment")
    }
    assert after["highestFieldId"] == 4
    assert [field["id"] for field in after["fields"]] == [0, 3, 4, 2]
    # It is a proposal: the table is as it was.
    assert schema_id(lake, target) == 0
