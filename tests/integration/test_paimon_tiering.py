"""Lake tables of Fluss tables by real pypaimon: made and written as Fluss does it, and each round once whatever happens."""

from __future__ import annotations

import datetime
import json
import pickle
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.errors import Corrupt, Fenced, InvalidConfig, InvariantBroken, OutcomeUnknown, SourceDrift, Unavailable
from snowmelt.fluss.formats.compacted import RowDecoder
from snowmelt.fluss.formats.types import Versions
from snowmelt.model.fluss import Bucket
from snowmelt.sinks.paimon import tiering as paimon_tiering
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.tiering import CHANGE, OFFSET, TIMESTAMP, PaimonTieringSink
from snowmelt.sinks.tiering import LakeColumn, LakeShape
from snowmelt.store.local import LocalStore
from snowmelt.tiering.fence import PublishRound, Tiered
from snowmelt.tiering.offsets import Offsets
from tests.integration.paimon_tables import READERS, DieAtStep, stop_before_publish
from tests.integration.tiered_tables import (
    AFTER,
    BEFORE,
    DAYS,
    DELETE,
    EVENTS,
    IN_0,
    IN_1,
    INSERT,
    ORDERS,
    OWN,
    SHAPES,
    SNAPSHOT,
    Job,
    base_of,
    batch,
    bring,
    files_in,
    folder,
    open_sink,
    reached,
    read,
    rows_of,
    serve,
    stage,
    table_at,
    table_of,
    write_offsets,
)
from tests.kit.fluss_bytes import schema_of, seen, shown, stored_row
from tests.kit.fluss_nested import CHOSEN


@pytest.fixture
def lake(tmp_path: Path) -> PaimonTieringSink:
    return open_sink(tmp_path / "warehouse")


# ---- tables


def test_a_table_is_made_as_fluss_makes_it(lake: PaimonTieringSink) -> None:
    table = table_of(lake, ORDERS)
    assert [f"{column.name} {column.type}" for column in table.fields] == [
        "id BIGINT NOT NULL",
        "v STRING",
        "__bucket INT",
        "__offset BIGINT",
        "__timestamp TIMESTAMP(3) WITH LOCAL TIME ZONE",
    ]
    assert (list(table.primary_keys), list(table.partition_keys)) == (["id"], [])
    assert table.table_schema.options == {
        "partition.legacy-name": "false",
        "bucket": "2",
        "bucket-key": "id",
        "changelog-producer": "input",
        "fluss.table.datalake.enabled": "true",
        "file.format": "parquet",
        "fluss.owner": "me",
    }
    # Rows without a place are all in one bucket of the lake.
    assert table_of(lake, EVENTS).table_schema.options == {"partition.legacy-name": "false", "bucket": "-1"}
    days = table_of(lake, DAYS)
    assert (list(days.primary_keys), list(days.partition_keys)) == (["id", "day"], ["day"])


def make(
    lake: PaimonTieringSink, columns: list[tuple[str, str]], *, options: dict[str, str], keys: list[str], partitions: list[str]
) -> None:
    """A table by somebody else."""
    from pypaimon import Schema
    from pypaimon.schema.data_types import DataField, DataTypeParser

    fields = [DataField(place, name, DataTypeParser.parse_data_type(kind)) for place, (name, kind) in enumerate(columns)]
    lake._catalog.create_table("shop.made", Schema(fields=fields, partition_keys=partitions, primary_keys=keys, options=options), False)


SYSTEM = [("__bucket", "INT"), ("__offset", "BIGINT"), ("__timestamp", "TIMESTAMP_LTZ(6)")]
OPTIONS = {"bucket": "2", "bucket-key": "id", "changelog-producer": "input", "partition.legacy-name": "false"}


def test_a_table_of_an_older_cluster_that_has_a_column_already_is_written_as_it_is(lake: PaimonTieringSink) -> None:
    """Microseconds in `__timestamp`; and Fluss adds a column to the lake before its own table has it."""
    make(lake, [("id", "BIGINT NOT NULL"), ("v", "STRING"), ("new", "INT"), *SYSTEM], options=OPTIONS, keys=["id"], partitions=[])
    lake.ensure("shop.made", SHAPES[ORDERS])
    assert bring(lake, "shop.made", "p1", stage(lake, "shop.made", 0, rows_of(*IN_0))) == 1
    builder = table_of(lake, "shop.made").new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits()).sort_by("id").to_pylist()
    time = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    assert found[0] == {"id": 1, "v": "x", "new": None, "__bucket": 0, "__offset": 0, "__timestamp": time}


def test_comments_of_a_rows_fields_make_no_other_table(lake: PaimonTieringSink, tmp_path: Path) -> None:
    """Fluss' coordinator writes them into the lake table."""
    inner = {"type": "ROW", "fields": [{"name": "a", "type": "INT"}, {"name": "b", "type": {"type": "ARRAY", "element": "STRING"}}]}
    shape = LakeShape(columns=(*OWN, LakeColumn("r", inner)), key=("id",), bucket_key=("id",), buckets=2)
    lake.ensure("shop.said", shape)
    schema = folder(lake, "shop.said") / "schema/schema-0"
    found = json.loads(schema.read_text())
    next(field for field in found["fields"] if field["name"] == "r")["type"]["fields"][0]["description"] = "what, it is"
    schema.write_text(json.dumps(found))
    open_sink(tmp_path / "warehouse").ensure("shop.said", shape)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"columns": [("id", "INT NOT NULL"), ("v", "STRING"), *SYSTEM]}, "column 1 is id INT NOT NULL, not id BIGINT NOT NULL"),
        ({"columns": [("id", "BIGINT NOT NULL"), *SYSTEM]}, "column 2 is not there, not v STRING"),
        ({"columns": [("id", "BIGINT NOT NULL"), ("v", "STRING"), ("new", "INT NOT NULL"), *SYSTEM]}, "a column new NOT NULL"),
        ({"columns": [("id", "BIGINT NOT NULL"), ("v", "STRING")]}, "its last columns are not __bucket, __offset, __timestamp"),
        ({"keys": ["id", "v"], "columns": [("id", "BIGINT NOT NULL"), ("v", "STRING NOT NULL"), *SYSTEM]}, "its primary key is"),
        ({"keys": ["id", "v"], "partitions": ["v"], "columns": [("id", "BIGINT NOT NULL"), ("v", "STRING NOT NULL"), *SYSTEM]}, "its p"),
        ({"options": {**OPTIONS, "bucket": "3"}}, "its bucket is 3, not 2"),
        ({"options": {"bucket": "2"}}, "its bucket-key is None, not id"),
        ({"options": {**OPTIONS, "merge-engine": "partial-update"}}, "its merge-engine is not deduplicate"),
        ({"options": {**OPTIONS, "deletion-vectors.enabled": "true"}}, "it has deletion-vectors.enabled"),
    ],
)
def test_a_table_that_is_another_is_refused(lake: PaimonTieringSink, change: dict[str, Any], wrong: str) -> None:
    own = [("id", "BIGINT NOT NULL"), ("v", "STRING"), *SYSTEM]
    make(lake, **{"columns": own, "options": OPTIONS, "keys": ["id"], "partitions": [], **change})
    with pytest.raises(InvalidConfig, match="is not as its Fluss table needs it") as refused:
        lake.ensure("shop.made", SHAPES[ORDERS])
    assert wrong in refused.value.detail
    with pytest.raises(InvalidConfig, match="is not as its Fluss table needs it"):
        lake.fits("shop.made", SHAPES[ORDERS])


def test_a_reader_makes_no_table(lake: PaimonTieringSink) -> None:
    assert lake.fits(ORDERS, SHAPES[ORDERS])
    assert not lake.fits("shop.nowhere", SHAPES[ORDERS])
    assert not lake.fits("nowhere.orders", SHAPES[ORDERS])


# ---- writing


def test_changes_of_every_kind_and_rows_of_a_kv_snapshot_are_what_the_table_has(lake: PaimonTieringSink) -> None:
    a, b, c, d, e = IN_0
    copied = [(key, "old", INSERT, SNAPSHOT) for key in (a, b, c)]
    bring(lake, ORDERS, "p1", stage(lake, ORDERS, 0, copied), stage(lake, ORDERS, 1, [(IN_1[0], "old", INSERT, SNAPSHOT)]))
    changes = [(a, "old", BEFORE, 5), (a, "new", AFTER, 6), (b, "old", DELETE, 7), (d, "d", INSERT, 8), (d, "d", DELETE, 9)]
    bring(lake, ORDERS, "p2", stage(lake, ORDERS, 0, [*changes, (e, None, INSERT, 10)]))
    assert read(lake, ORDERS) == [(IN_1[0], "old", 1, -1), (a, "new", 0, 6), (c, "old", 0, -1), (e, None, 0, 10)]


def test_what_a_plan_names_is_read_though_its_snapshot_is_gone_and_a_file_that_is_gone_is_told(lake: PaimonTieringSink) -> None:
    rows = [(key, "old", INSERT, SNAPSHOT) for key in IN_0]
    number = bring(lake, ORDERS, "p1", stage(lake, ORDERS, 0, rows))
    reader = PaimonSink(str(folder(lake, ORDERS).parent.parent), user="reader")
    shares = pickle.loads(pickle.dumps(reader.shares(ORDERS, number)))
    assert [(share.partition, share.bucket) for share in shares] == [((), 0)]
    bring(lake, ORDERS, "p2", stage(lake, ORDERS, 0, [(IN_0[0], "new", AFTER, 5)]))
    (folder(lake, ORDERS) / "snapshot" / f"snapshot-{number}").unlink()
    with pytest.raises(SourceDrift, match="a lake snapshot is gone"):
        reader.shares(ORDERS, number)
    found = pa.Table.from_batches(reader.read(ORDERS, number, ["v", "id"], shares))
    assert found.column_names == ["v", "id"]
    assert sorted(found.column("id").to_pylist()) == sorted(IN_0)
    assert set(found.column("v").to_pylist()) == {"old"}
    for file in (folder(lake, ORDERS) / "bucket-0").iterdir():
        file.unlink()
    with pytest.raises(Unavailable, match="can't be read or written"):
        list(reader.read(ORDERS, number, ["id"], shares))


def test_a_table_without_a_bucket_key_tells_the_bucket_by_its_column(lake: PaimonTieringSink) -> None:
    bring(lake, EVENTS, "p1", stage(lake, EVENTS, 0, rows_of(5, 5)), stage(lake, EVENTS, 1, rows_of(5)))
    assert read(lake, EVENTS) == [(5, "x", 0, 0), (5, "x", 0, 1), (5, "x", 1, 0)]


def test_partitions_are_written_where_readers_look_for_them(lake: PaimonTieringSink) -> None:
    key = IN_0[0]
    for place, day in enumerate(("2024-01-02", "a/b=c %", " ")):
        bring(lake, DAYS, f"p{place}", stage(lake, DAYS, 0, rows_of(key, value=day), day=day))
    assert read(lake, DAYS) == sorted((key, day, 0, 0) for day in ("2024-01-02", "a/b=c %", " "))


TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "BOOLEAN": (pa.bool_(), [True, False]),
    "TINYINT": (pa.int8(), [-128, 127]),
    "SMALLINT": (pa.int16(), [-(2**15), 2**15 - 1]),
    "INT": (pa.int32(), [-(2**31), 2**31 - 1]),
    "FLOAT": (pa.float32(), [1.5, float("inf")]),
    "DOUBLE": (pa.float64(), [-0.1, 5e-324]),
    "DECIMAL(5, 2)": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.00")]),
    "DECIMAL(38, 10)": (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal("1E-10")]),
    "CHAR(3)": (pa.string(), ["ab", "äöü"]),
    "BINARY(2)": (pa.binary(), [b"\0\1", b"\xff\xff"]),
    "BYTES": (pa.binary(), [b"", b"\0"]),
    "DATE": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "TIME(0)": (pa.time32("ms"), [datetime.time(0, 0), datetime.time(23, 59, 59, 999_000)]),
    "TIMESTAMP(0)": (pa.timestamp("s"), [-1, 0]),
    "TIMESTAMP(3)": (pa.timestamp("ms"), [-1, 1]),
    "TIMESTAMP(6)": (pa.timestamp("us"), [-1, 1]),
    "TIMESTAMP(9)": (pa.timestamp("ns"), [-1, 1]),
    "TIMESTAMP(0) WITH LOCAL TIME ZONE": (pa.timestamp("s", "UTC"), [-1, 0]),
    "TIMESTAMP(3) WITH LOCAL TIME ZONE": (pa.timestamp("ms", "UTC"), [-1, 1]),
    "TIMESTAMP(6) WITH LOCAL TIME ZONE": (pa.timestamp("us", "UTC"), [-1, 1]),
    "TIMESTAMP(9) WITH LOCAL TIME ZONE": (pa.timestamp("ns", "UTC"), [-1, 1]),
}
"""Paimon's type, the form in which rows come, and values; a column each, and a row of NULLs behind them."""


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "log"])
def test_every_type_of_fluss_comes_back_as_it_went(lake: PaimonTieringSink, keyed: bool) -> None:
    own = (OWN[0], *(LakeColumn(f"c{place}", name) for place, name in enumerate(TYPES)))
    lake.ensure("shop.types", LakeShape(columns=own, key=("id",) if keyed else (), bucket_key=("id",) if keyed else (), buckets=1))
    given = [pa.array([*values, None], kind) for kind, values in TYPES.values()]
    system = batch(rows_of(1, 2, 3))
    columns = [system.column("id"), *given, *(system.column(name) for name in (OFFSET, TIMESTAMP, CHANGE))]
    writer = lake.writer("shop.types", 0, "r1")
    writer.write(pa.record_batch(columns, names=[*(column.name for column in own), OFFSET, TIMESTAMP, CHANGE]))
    bring(lake, "shop.types", "p1", writer.finish())
    for options in READERS:
        builder = table_of(lake, "shop.types").copy(dict(options)).new_read_builder()
        found = builder.new_read().to_arrow(builder.new_scan().plan().splits()).sort_by("id")
        for place, column in enumerate(given):
            assert found.column(f"c{place}").cast(column.type).to_pylist() == column.to_pylist()


def test_a_row_that_the_lake_puts_into_another_bucket_fails_the_task(lake: PaimonTieringSink) -> None:
    writer = lake.writer(ORDERS, 1, "r1")
    writer.write(batch(rows_of(IN_1[0], IN_0[0])))
    with pytest.raises(InvariantBroken, match="in another bucket of the lake than of Fluss"):
        writer.finish()


def test_rows_of_two_partitions_fail_the_task(lake: PaimonTieringSink) -> None:
    writer = lake.writer(DAYS, 0, "r1")
    for day in ("a", "b"):
        writer.write(batch(rows_of(IN_0[0]), day=day))
    with pytest.raises(InvariantBroken, match="in several of the lake"):
        writer.finish()


def test_rows_that_do_not_fit_fail_the_task_and_are_not_quoted(lake: PaimonTieringSink) -> None:
    good = batch(rows_of(IN_0[0], value="secret"))
    writer = lake.writer(ORDERS, 0, "r1")
    with pytest.raises(InvariantBroken, match="columns that their lake table has not") as refused:
        writer.write(good.append_column("more", pa.array([1])))
    with pytest.raises(InvariantBroken, match="lack a column that must not be NULL"):
        writer.write(good.drop_columns(["id"]))
    writer.abandon()
    assert "secret" not in str(refused.value)


# ---- committing


def test_a_commit_is_one_of_fluss_own_service(lake: PaimonTieringSink) -> None:
    """So that either can take over: Fluss' looks for this user's newest snapshot, and for this property in it."""
    bring(lake, ORDERS, "/remote/1.offsets", stage(lake, ORDERS, 0, rows_of(*IN_0)))
    (snapshot,) = table_of(lake, ORDERS).snapshot_manager().list_snapshots()
    assert (snapshot.commit_user, snapshot.commit_identifier) == ("__fluss_lake_tiering", 2**63 - 1)
    assert (snapshot.commit_kind, snapshot.properties) == ("APPEND", {"fluss-offsets": "/remote/1.offsets"})
    assert snapshot.changelog_record_count == len(IN_0)
    assert lake.view(ORDERS).newest == Tiered(1, "/remote/1.offsets")


def test_buckets_that_moved_without_rows_have_a_snapshot_too(lake: PaimonTieringSink) -> None:
    bring(lake, ORDERS, "p1", stage(lake, ORDERS, 0, rows_of(*IN_0)))
    before = read(lake, ORDERS)
    assert bring(lake, ORDERS, "p2") == 2
    assert lake.view(ORDERS).newest == Tiered(2, "p2")
    assert read(lake, ORDERS) == before
    writer = lake.writer(ORDERS, 0, "r1")
    assert writer.finish() == ()


def test_a_round_that_slept_is_refused_and_its_files_go(lake: PaimonTieringSink) -> None:
    key = IN_0[0]
    base = base_of(lake, ORDERS)
    stale = stage(lake, ORDERS, 0, [(key, "stale", INSERT, 0), *rows_of(*IN_0[1:], start=1)])
    bring(lake, ORDERS, "p1", stage(lake, ORDERS, 0, [(key, "new", INSERT, 9)]))
    kept = files_in(lake, ORDERS)
    with pytest.raises(Fenced, match="another round of this table came first"):
        bring(lake, ORDERS, "p0", stale, base=base)
    with pytest.raises(Fenced):
        lake.look_back(ORDERS, base, "p0")
    lake.clean(ORDERS, base.identity, stale)
    lake.clean(ORDERS, base.identity, stale)
    assert read(lake, ORDERS) == [(key, "new", 0, 9)]
    assert files_in(lake, ORDERS) < kept


def test_without_the_fence_the_value_of_a_round_that_slept_would_win(lake: PaimonTieringSink) -> None:
    """The reason for it: both numbered their rows from the same beginning, and the one that had more of them wins."""
    key = IN_0[0]
    base = base_of(lake, ORDERS)
    stale = stage(lake, ORDERS, 0, [*rows_of(*IN_0[1:]), (key, "stale", INSERT, 4)])
    bring(lake, ORDERS, "p1", stage(lake, ORDERS, 0, [(key, "new", INSERT, 9)]))
    with mock.patch.object(paimon_tiering, "judge", lambda base, path, view: PublishRound(view.latest)):
        bring(lake, ORDERS, "p0", stale, base=base)
    assert (key, "stale", 0, 4) in read(lake, ORDERS)


def test_of_two_that_commit_on_one_base_one_wins(lake: PaimonTieringSink, tmp_path: Path) -> None:
    """Both have everything ready but the snapshot's file when either goes on."""
    with ExitStack() as stack:
        remote = tmp_path / "remote"
        remote.mkdir()
        jobs = [stack.enter_context(serve(Job(str(tmp_path / "warehouse"), str(remote), 1, stop_before_publish))) for _ in range(2)]
        for job in jobs:
            job.go()
        for job in jobs:
            job.await_stop()
        for job in reversed(jobs):
            job.signal(signal.SIGCONT)
        told = [job.hear_all() for job in jobs]
    assert sorted(str(said[0]) for said in told) == ["4", "fenced"]
    check(lake)
    assert len(files_in(lake, ORDERS)) == 2 * len(table_of(lake, ORDERS).snapshot_manager().list_snapshots())


def test_a_compaction_in_between_is_no_hindrance(lake: PaimonTieringSink) -> None:
    bring(lake, EVENTS, "p1", stage(lake, EVENTS, 0, rows_of(1, 2)))
    base = base_of(lake, EVENTS)
    staged = stage(lake, EVENTS, 0, rows_of(3, start=2))
    foreign(lake, EVENTS)
    assert bring(lake, EVENTS, "p2", staged, base=base) == 3
    assert lake.view(EVENTS).newest == Tiered(3, "p2")
    assert [row[0] for row in read(lake, EVENTS)] == [1, 2, 3]


def foreign(lake: PaimonTieringSink, target: str) -> None:
    """A snapshot of somebody else, as a compaction makes one."""
    from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
    from pypaimon.write.file_store_commit import FileStoreCommit

    table = table_of(lake, target)
    latest = table.snapshot_manager().get_latest_snapshot()
    commit = FileStoreCommit(RenamingSnapshotCommit(table.snapshot_manager()), table, "compactor")
    assert commit._try_commit_once(None, "COMPACT", [], [], 1, latest).is_success()


def test_a_commit_whose_reply_was_lost_is_found(lake: PaimonTieringSink, monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_of(lake, EVENTS)
    staged = stage(lake, EVENTS, 0, rows_of(1))
    real = LocalStore.put_if_absent

    def losing(self: LocalStore, key: str, value: bytes) -> bool:
        monkeypatch.setattr(LocalStore, "put_if_absent", real)
        assert real(self, key, value)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(LocalStore, "put_if_absent", losing)
    assert lake.look_back(EVENTS, base, "p1") is None
    assert bring(lake, EVENTS, "p1", staged, base=base) == 1
    assert lake.look_back(EVENTS, base, "p1") == 1
    assert bring(lake, EVENTS, "p1", staged, base=base) == 1
    assert read(lake, EVENTS) == [(1, "x", 0, 0)]
    # One that came behind it does not hide it.
    bring(lake, EVENTS, "p2", stage(lake, EVENTS, 0, rows_of(2, start=1)))
    assert bring(lake, EVENTS, "p1", staged, base=base) == 1
    assert len(read(lake, EVENTS)) == 2


def test_what_a_snapshot_refers_to_is_not_cleaned(lake: PaimonTieringSink) -> None:
    staged = stage(lake, ORDERS, 0, rows_of(*IN_0))
    bring(lake, ORDERS, "p1", staged)
    before = files_in(lake, ORDERS)
    lake.clean(ORDERS, base_of(lake, ORDERS).identity, staged)
    assert files_in(lake, ORDERS) == before
    assert len(before) == 2


def test_a_table_that_was_made_anew_takes_no_round_of_the_old_one(lake: PaimonTieringSink) -> None:
    base = base_of(lake, EVENTS)
    staged = stage(lake, EVENTS, 0, rows_of(1))
    shutil.rmtree(folder(lake, EVENTS))
    lake.clean(EVENTS, base.identity, staged)
    lake.ensure(EVENTS, SHAPES[EVENTS])
    with pytest.raises(Fenced, match="dropped and made anew"):
        bring(lake, EVENTS, "p1", staged, base=base)
    lake.clean(EVENTS, base.identity, staged)
    assert read(lake, EVENTS) == []


def test_a_table_whose_columns_changed_since_takes_no_round_of_before(lake: PaimonTieringSink) -> None:
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    base = base_of(lake, EVENTS)
    staged = stage(lake, EVENTS, 0, rows_of(1))
    lake._catalog.alter_table(EVENTS, [SchemaChange.add_column("new", AtomicType("INT"))], False)
    with pytest.raises(Fenced, match="schema was changed"):
        bring(lake, EVENTS, "p1", staged, base=base)


def test_a_round_whose_files_somebody_removed_is_not_committed(lake: PaimonTieringSink) -> None:
    staged = stage(lake, EVENTS, 0, rows_of(1))
    for path in folder(lake, EVENTS).glob("bucket-0/*"):
        path.unlink()
    with pytest.raises(Fenced, match="staged files are gone"):
        bring(lake, EVENTS, "p1", staged)


# ---- looking


def test_the_newest_of_the_tiering_user_is_found_below_others_snapshots_and_its_loss_is_seen(lake: PaimonTieringSink) -> None:
    assert lake.view(EVENTS) == replace(lake.view(EVENTS), latest=0, whole_from=1, tiered=(), rows=False)
    bring(lake, EVENTS, "p1", stage(lake, EVENTS, 0, rows_of(1)))
    bring(lake, EVENTS, "p2")
    base = base_of(lake, EVENTS)
    foreign(lake, EVENTS)
    foreign(lake, EVENTS)
    view = lake.view(EVENTS)
    assert (view.latest, view.newest, view.rows, len(view.tiered)) == (4, Tiered(2, "p2"), True, 1)
    assert lake.view(EVENTS, 0).tiered == (Tiered(2, "p2"), Tiered(1, "p1"))
    assert lake.view(EVENTS, 2).tiered == ()
    for number in (1, 2):
        (folder(lake, EVENTS) / "snapshot" / f"snapshot-{number}").unlink()
    view = lake.view(EVENTS)
    assert (view.whole_from, view.newest, view.rows) == (3, None, True)
    assert bring(lake, EVENTS, "p3", base=base) == 5
    (folder(lake, EVENTS) / "snapshot/snapshot-3").unlink()
    with pytest.raises(Fenced):
        bring(lake, EVENTS, "p4", base=base)


def test_a_file_of_offsets_is_read_from_where_fluss_says_it_is(lake: PaimonTieringSink, tmp_path: Path) -> None:
    path = write_offsets(tmp_path / "a.offsets", 7, [258, -1, 0])
    expected = Offsets(7, {Bucket(7, 0): 258, Bucket(7, 2): 0})
    for address in (path, f"file:{path}", f"file://{path}", f" {path}\n"):
        assert lake.offsets(address) == expected
    with pytest.raises(SourceDrift, match="is not there"):
        lake.offsets(str(tmp_path / "b.offsets"))
    # Fluss 0.8 wrote the offsets themselves into the property, and 0.7 nothing.
    for odd in ('{"version":1}', ""):
        with pytest.raises(Corrupt, match="names no file of offsets"):
            lake.offsets(odd)


# ---- kill -9


def check(lake: PaimonTieringSink) -> None:
    """The lake is what the log says, up to where the lake says it is."""
    for target in (ORDERS, EVENTS):
        assert read(lake, target) == table_at(target, reached(lake, target))


def test_a_hundred_rounds_with_a_kill_at_each_step_of_the_commit_bring_each_row_once(lake: PaimonTieringSink, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    warehouse, step, killed = str(tmp_path / "warehouse"), 0, 0
    for number in range(100):
        # Every second one begins with the other table, so that each is killed in all of its steps.
        targets = (ORDERS, EVENTS) if number % 2 else (EVENTS, ORDERS)
        step += number % 2
        with serve(Job(warehouse, str(remote), 1, DieAtStep(step + 1), targets)) as job:
            job.go()
            told = job.hear_all()
        killed += "end" not in told
        step = 0 if "end" in told else step
        if number % 10 == 9:
            check(lake)
    assert killed > 50
    assert reached(lake, ORDERS) > 0 < reached(lake, EVENTS)


def test_three_services_at_once_bring_each_row_once(lake: PaimonTieringSink, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    with ExitStack() as stack:
        jobs = [stack.enter_context(serve(Job(str(tmp_path / "warehouse"), str(remote), 8))) for _ in range(3)]
        for job in jobs:
            job.go()
        told = [job.hear_all() for job in jobs]
    assert all(said[-1] == "end" for said in told)
    check(lake)
    # What was told as committed is what there is, each step once; and who was fenced left nothing.
    for target, first in ((ORDERS, 0), (EVENTS, 1)):
        done = sorted(stop for said in told for stop in said[first:-1:2] if stop != "fenced")
        assert done == list(range(4, reached(lake, target) + 1, 4))
    assert len(files_in(lake, EVENTS)) == reached(lake, EVENTS) // 4


# ---- nested values


@pytest.mark.parametrize("keyed", [True, False])
def test_a_part_of_a_batch_is_written_as_what_it_is_whatever_is_nested_in_it(tmp_path: Path, keyed: bool) -> None:
    """A range of the log begins inside of a batch, and ends before the second half of an update."""
    kinds = {f"c{place}": kind for place, kind in enumerate(CHOSEN)}
    columns = (LakeColumn("id", "BIGINT NOT NULL"), *(LakeColumn(name, kind.paimon) for name, kind in kinds.items()))
    lake = PaimonTieringSink(str(tmp_path))
    key = ("id",) if keyed else ()
    lake.ensure("shop.nested", LakeShape(columns=columns, key=key, bucket_key=key, buckets=1))
    schema = schema_of(*CHOSEN)
    rows = [[values[row % len(values)] for values in CHOSEN.values()] for row in range(40)]
    data = b"".join(stored := [stored_row(schema, row) for row in rows])
    ends = np.cumsum([len(row) for row in stored])
    (found,) = RowDecoder(Versions.one(schema)).decode(np.frombuffer(data, np.uint8), ends - [len(row) for row in stored], ends)
    ids = pa.array(range(40), pa.int64())
    system = [ids, pa.array(range(40), pa.timestamp("ms", "UTC")), pa.array([INSERT] * 40, pa.int8())]
    whole = pa.record_batch([ids, *found.columns, *system], names=["id", *kinds, OFFSET, TIMESTAMP, CHANGE])
    writer = lake.writer("shop.nested", 0, "r1")
    for start, stop in ((3, 10), (10, 11), (20, 40)):
        writer.write(whole.slice(start, stop - start))
    bring(lake, "shop.nested", "p1", writer.finish())
    builder = table_of(lake, "shop.nested").copy({"read.native.enabled": "true"}).new_read_builder()
    lies = builder.new_read().to_arrow(builder.new_scan().plan().splits()).sort_by("id")
    expected = [*rows[3:11], *rows[20:]]
    for place, (name, kind) in enumerate(kinds.items()):
        assert seen(lies.column(name).combine_chunks()) == [shown(kind, row[place]) for row in expected], kind
