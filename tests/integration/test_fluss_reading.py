"""Fluss' tables read from its real server: KV snapshots and logs, value for value what was written."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from snowmelt.budgets import RetryBudget
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable
from snowmelt.fluss.answers import FetchFrom, OffsetKind
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.formats.batches import KIND, OFFSET, TIMESTAMP
from snowmelt.fluss.formats.types import Column, Root, Schema
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.fluss.rpc import GoneFromFluss
from snowmelt.fluss.server import FlussServer, ServerProcess
from snowmelt.fluss.snapshots import SnapshotReader
from snowmelt.fluss.tables import leader_of
from snowmelt.model.fluss import Bucket, SnapshotFile
from snowmelt.model.table import TableId
from tests.integration.fluss_reading import PYFLUSS, Reading, T, all_types, plain, written
from tests.kit.fluss_bytes import seen, shown
from tests.kit.fluss_nested import COLUMNS, ROWS, for_client
from tests.kit.fluss_raw import add_column, create_table, put_rows
from tests.kit.fluss_servers import Tables, start_fluss
from tests.kit.servers import NotRun, give_up
from tests.kit.waiting import until


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def bucket_of(reading: Reading) -> Bucket:
    return Bucket(reading.table.table, 0)


def test_every_type_comes_back_from_snapshot_and_log_as_it_was_written(fluss: FlussServer, fluss_tables: Tables) -> None:
    schema, rows = all_types()
    path = TableId(fluss_tables.make().database, "all_types")
    create_table(fluss, path, schema)
    reading = Reading(fluss, path)
    assert reading.table.versions.target == schema
    put_rows(fluss, reading.table.table, schema, rows)
    bucket = bucket_of(reading)
    from_log = reading.log(bucket)
    from_kv = reading.kv(reading.snapshots()[bucket]).sort_by("id")
    for place, column in enumerate(schema.columns):
        expected = [shown(column.type, row[place]) for row in rows]
        assert seen(from_log.column(place).combine_chunks()) == expected, column
        assert seen(from_kv.column(place).combine_chunks()) == expected, column
    assert from_log.schema == from_kv.schema


def test_rows_that_pyfluss_wrote_are_read_with_their_changes_and_where_they_belong(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(columns=PYFLUSS, buckets=3)
    first = [written(id, f"first {id}") for id in range(300)]
    second = [written(id, "") | {"name": None} for id in range(0, 300, 3)]
    fluss_tables.upsert(path, first)
    fluss_tables.upsert(path, second)
    fluss_tables.delete(path, [{"id": id} for id in range(0, 300, 10)])
    reading = Reading(fluss, path)
    ends = reading.ends()
    theirs: dict[int, list[Any]] = {bucket.bucket: [] for bucket in ends}
    for bucket_id, record in fluss_tables.log(path, {bucket.bucket: end for bucket, end in ends.items()}):
        theirs[bucket_id].append(record)
    kinds = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}
    for bucket in ends:
        found = reading.log(bucket, bytes_max=1 << 12)
        reading.assert_buckets(found, bucket)
        expected = [(one.offset, kinds[one.change_type.short_string()], one.timestamp) for one in theirs[bucket.bucket]]
        times = found.column(TIMESTAMP).cast(pa.int64()).to_pylist()
        assert list(zip(found.column(OFFSET).to_pylist(), found.column(KIND).to_pylist(), times, strict=True)) == expected
        assert comparable(found) == [dict(one.row) for one in theirs[bucket.bucket]]
    left = {row["id"]: row for row in first} | {row["id"]: row for row in second}
    left = {id: row for id, row in left.items() if id % 10}
    found_rows = []
    for bucket, snapshot in reading.snapshots().items():
        found = reading.kv(snapshot)
        reading.assert_buckets(found, bucket)
        assert set(found.column(OFFSET).to_pylist()) == {-1}
        assert set(found.column(KIND).to_pylist()) == {0}
        found_rows += comparable(found)
    assert by_id(found_rows) == [left[id] for id in sorted(left)]
    # pyfluss looks keys up one at a time, and waits for more to go with each.
    some = sorted(left)[::20]
    assert [row for row in by_id(found_rows) if row["id"] in some] == fluss_tables.lookup(path, [{"id": id} for id in some])


def test_nested_values_that_pyfluss_wrote_are_read_from_a_table_with_a_key_and_from_a_log_table(
    fluss: FlussServer, fluss_tables: Tables
) -> None:
    keyed = Reading(fluss, fluss_tables.make(columns=COLUMNS, buckets=1))
    fluss_tables.upsert(keyed.path, map(for_client, ROWS))
    log = Reading(fluss, fluss_tables.make(columns=COLUMNS, key=(), buckets=1))
    fluss_tables.append(log.path, pa.RecordBatch.from_pylist(ROWS, schema=COLUMNS))
    assert plain(log.log(bucket_of(log))) == ROWS
    assert by_id(plain(keyed.log(bucket_of(keyed)))) == ROWS
    assert by_id(keyed.all_kv()) == ROWS


def comparable(found: pa.Table) -> list[dict[str, Any]]:
    """As Python's own times, which end at microseconds."""
    place = found.schema.get_field_index("ts9")
    return plain(found.set_column(place, "ts9", found.column("ts9").cast(pa.timestamp("us"))))


def test_every_stretch_of_a_log_has_its_own_rows_and_no_others(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=1)
    for round in range(4):
        fluss_tables.upsert(path, [{"id": id, "name": "x", "n": round} for id in range(5)])
        # A delete of what is not there takes an offset, and no row.
        fluss_tables.delete(path, [{"id": 99}])
    reading = Reading(fluss, path)
    bucket = bucket_of(reading)
    whole = reading.log(bucket)
    end = reading.ends()[bucket]
    assert end > whole.num_rows
    for start in range(end + 1):
        for stop in range(start, end + 1):
            found = reading.log(bucket, start, stop)
            offsets = whole.column(OFFSET).to_pylist()
            assert found.to_pylist() == [row for row, offset in zip(whole.to_pylist(), offsets, strict=True) if start <= offset < stop]


@pytest.mark.parametrize("codec", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_appended_rows_are_read_whatever_packs_them(fluss: FlussServer, fluss_tables: Tables, codec: str) -> None:
    path = fluss_tables.make(columns=PYFLUSS, key=(), buckets=1, table__log__arrow__compression__type=codec)
    rows = [written(id, "ab" * id) if id % 7 else {"id": id} for id in range(200)]
    batch = pa.RecordBatch.from_pylist(rows, PYFLUSS)
    fluss_tables.append(path, batch, batch)
    reading = Reading(fluss, path)
    found = reading.log(bucket_of(reading))
    assert plain(found) == batch.to_pylist() * 2
    assert set(found.column(KIND).to_pylist()) == {0}
    assert found.column(OFFSET).to_pylist() == list(range(400))
    assert reading.table.bucketing() is None


def test_a_compacted_log_is_read_and_an_indexed_one_is_refused(fluss: FlussServer, fluss_tables: Tables) -> None:
    schema = Schema(1, (Column(0, "id", T(Root.INTEGER, nullable=False)), Column(1, "name", T(Root.STRING))), ("id",))
    database = fluss_tables.make().database
    path = TableId(database, "compacted")
    create_table(fluss, path, schema, table__log__format="compacted")
    reading = Reading(fluss, path)
    put_rows(fluss, reading.table.table, schema, [[1, "a"], [2, None], [1, "b"]])
    found = reading.log(bucket_of(reading))
    assert list(zip(found.column(KIND).to_pylist(), plain(found), strict=True)) == [
        (0, {"id": 1, "name": "a"}),
        (0, {"id": 2, "name": None}),
        (1, {"id": 1, "name": "a"}),
        (2, {"id": 1, "name": "b"}),
    ]
    path = TableId(database, "indexed")
    create_table(fluss, path, schema, table__log__format="indexed", table__kv__format="indexed")
    reading = Reading(fluss, path)
    with pytest.raises(InvalidConfig, match="INDEXED"):
        reading.reader(bucket_of(reading), 0, 1)
    with pytest.raises(InvalidConfig, match="INDEXED"):
        SnapshotReader(reading.table.versions, RemoteFiles(), kv_format=reading.table.kv_format)


def test_partitions_are_read_each_for_itself(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(key=("id", "name"), partitioned_by=("name",), buckets=2, table__auto_partition__enabled="false")
    for name in ("a", "b"):
        fluss_tables.add_partition(path, name=name)
    rows = {name: [{"id": id, "name": name, "n": -id} for id in range(count)] for name, count in (("a", 40), ("b", 7))}
    for of_partition in rows.values():
        fluss_tables.upsert(path, of_partition)
    reading = Reading(fluss, path)
    assert reading.table.partition_key == ("name",)
    assert reading.table.bucket_key == ("id",)
    partitions = reading.client.partitions(path)
    cluster = reading.client.cluster(path, [one.partition for one in partitions])
    for partition in partitions:
        found = []
        for bucket, end in reading.ends(partition.partition).items():
            assert leader_of(cluster, bucket).port == fluss.port(ServerProcess.TABLET)
            log = reading.log(bucket, 0, end)
            reading.assert_buckets(log, bucket)
            found += plain(log)
        assert by_id(found) == rows[partition.name]
        assert by_id(reading.all_kv((partition.name, partition.partition))) == rows[partition.name]
    with pytest.raises(Unavailable, match="no leader"):
        leader_of(cluster, Bucket(reading.table.table, 9))


def test_a_column_that_is_added_is_null_in_older_rows_and_ends_what_an_older_plan_reads(fluss: FlussServer, fluss_tables: Tables) -> None:
    schema = Schema(1, (Column(0, "id", T(Root.INTEGER, nullable=False)), Column(1, "name", T(Root.STRING))), ("id",))
    path = TableId(fluss_tables.make().database, "changed")
    create_table(fluss, path, schema)
    older = Reading(fluss, path)
    bucket = bucket_of(older)
    put_rows(fluss, older.table.table, schema, [[1, "a"], [2, "b"]])
    add_column(fluss, path, "late", T(Root.DECIMAL, precision=20, scale=2))
    newer = Reading(fluss, path)
    assert newer.table.versions.target.id == 2
    assert newer.table.versions.by_id[1] == schema
    put_rows(fluss, older.table.table, newer.table.versions.target, [[2, "c", 150], [3, "d", None]])
    late = [
        {"id": 1, "name": "a", "late": None},
        {"id": 2, "name": "b", "late": None},
        {"id": 2, "name": "b", "late": None},
        {"id": 2, "name": "c", "late": Decimal("1.50")},
        {"id": 3, "name": "d", "late": None},
    ]
    assert plain(newer.log(bucket)) == late
    snapshot = newer.snapshots()[bucket]
    assert by_id(plain(newer.kv(snapshot))) == [late[0], late[3], late[4]]
    reader = older.reader(bucket, 0, 5)
    assert [row["id"] for batch in reader.read() for row in batch.to_pylist()] == [1, 2]
    assert (reader.offset, reader.newer_schema) == (2, 2)
    with pytest.raises(Unavailable, match="newer schema"):
        older.kv(snapshot)


def test_a_snapshot_of_large_rows_is_read_in_small_batches(fluss: FlussServer, fluss_tables: Tables) -> None:
    path = fluss_tables.make(buckets=1)
    rows = [{"id": id, "name": "x" * (id * 137 % 5000), "n": id} for id in range(1500)]
    fluss_tables.upsert(path, rows)
    reading = Reading(fluss, path)
    found = reading.kv(reading.snapshots()[bucket_of(reading)], rows_max=100, bytes_max=1 << 16)
    assert by_id(plain(found)) == rows
    assert max(len(chunk) for chunk in found.column("id").chunks) <= 100


@pytest.fixture
def snapshot_files(fluss: FlussServer, fluss_tables: Tables) -> tuple[Reading, tuple[SnapshotFile, ...]]:
    path = fluss_tables.make(buckets=1)
    fluss_tables.upsert(path, [{"id": id, "name": f"secret {id}" * 20, "n": id} for id in range(500)])
    reading = Reading(fluss, path)
    return reading, reading.files(reading.snapshots()[bucket_of(reading)])


def test_a_snapshot_with_a_missing_or_a_damaged_file_is_an_error_and_not_fewer_rows(
    snapshot_files: tuple[Reading, tuple[SnapshotFile, ...]], tmp_path: Path
) -> None:
    reading, files = snapshot_files
    reader = SnapshotReader(reading.table.versions, RemoteFiles(), folder=tmp_path)
    (table,) = [file for file in files if file.name.endswith(".sst")]
    others = [file for file in files if file is not table]
    assert sum(batch.num_rows for batch in reader.read(files)) == 500
    with pytest.raises(Unavailable, match="not there any more"):
        list(reader.read([*others, SnapshotFile(table.path + "x", table.name)]))
    with pytest.raises(Corrupt, match="KV snapshot"):
        list(reader.read(others))
    data = Path(table.path).read_bytes()
    for at in (100, len(data) // 2):
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(Corrupt, match="KV snapshot") as caught:
            list(reader.read([*others, SnapshotFile(str(damaged), table.name)]))
        assert "secret" not in str(caught.value)
    for name in ("../evil", "a/b", "", ".."):
        with pytest.raises(Corrupt, match="can't be one"):
            list(reader.read([SnapshotFile(table.path, name)]))
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """A server without a lake that gives its log away early, and notes at once how far it is."""
    settings = {
        "log.segment.file-size": "32kb",
        "remote.log.task-interval-duration": "500ms",
        "log.retention.check-interval": "1s",
        "log.replica.high-watermark.checkpoint-interval": "100ms",
    }
    try:
        server = start_fluss(tmp_path_factory.mktemp("fluss"), lake=False, more=tuple(settings.items()))
    except NotRun as reason:
        give_up(reason)
    tables = Tables(server)
    yield tables
    tables.close()
    server.kill()


ROUNDS = [[written(id, f"{round} {id}" * 30) for id in range(round % 10, 300, 10)] for round in range(20)]


def test_old_segments_are_read_from_remote_storage(aged: Tables) -> None:
    """And rows are in the buckets of Fluss' own function, as no lake has a say in them."""
    path = aged.make(columns=PYFLUSS, buckets=2, table__log__tiered__local_segments="1", table__log__arrow__compression__type="NONE")
    for rows in ROUNDS:
        aged.upsert(path, rows)
    reading = Reading(aged.server, path)
    assert reading.table.lake_format is None
    for bucket, end in reading.ends().items():
        # Once what is old is with the server no longer, it says where it is.
        def given_away(bucket: Bucket = bucket) -> bool:
            (fetched,) = reading.tablet.fetch_log([FetchFrom(bucket, 0, 1 << 20)], bytes_max=1 << 20)
            return fetched.remote is not None and len(fetched.remote.segments) > 1

        until(given_away)
        found = reading.log(bucket, 0, end)
        # pyfluss takes the last bytes of a key for unsigned, Fluss' own clients don't; those of these keys have no sign.
        reading.assert_buckets(found.filter(pc.field("id") < 128), bucket)
        with pytest.raises(AssertionError):
            reading.assert_buckets(found.filter(pc.field("id") >= 128), bucket)
        assert found.column(OFFSET).to_pylist() == list(range(end))
        for start in (1, end // 3, end - 1):
            assert reading.log(bucket, start, end).to_pylist() == found.slice(start).to_pylist()
        assert reading.log(bucket, 0, 3).to_pylist() == found.slice(0, 3).to_pylist()


def test_an_offset_that_was_deleted_is_told_and_nothing_is_read_instead(aged: Tables) -> None:
    path = aged.make(columns=PYFLUSS, buckets=1, table__log__tiered__local_segments="1", table__log__ttl="1s")
    for rows in ROUNDS:
        aged.upsert(path, rows)
    reading = Reading(aged.server, path)
    bucket = bucket_of(reading)
    until(lambda: reading.tablet.offsets(bucket.table, None, [0], OffsetKind.EARLIEST)[bucket])
    reader = reading.reader(bucket, 0, reading.ends()[bucket], budget=RetryBudget(tries_max=2))
    with pytest.raises(SourceDrift, match="does not have"):
        next(reader.read())
    assert reader.offset == 0


def test_a_log_goes_on_after_its_leader_was_killed_and_ends_with_its_table(aged: Tables) -> None:
    path = aged.make(buckets=1)
    for round in range(30):
        aged.upsert(path, [{"id": id, "name": "x", "n": round} for id in range(10)])
    reading = Reading(aged.server, path)
    bucket = bucket_of(reading)
    end = reading.ends()[bucket]
    batches = reading.reader(bucket, 0, end, bytes_max=1000, budget=RetryBudget(tries_max=100, first_s=0.05, longest_s=0.5)).read()
    offsets = next(batches).column(OFFSET).to_pylist()
    # A server that dies cuts its log at what it had last noted down; Fluss loses what is behind it.
    noted = aged.server.folder / "data" / ServerProcess.TABLET.value / "high-watermark-checkpoint"
    until(lambda: f"{bucket.table} 0 {end}" in noted.read_text())
    aged.server.kill(ServerProcess.TABLET)
    aged.server.start()
    offsets += [offset for batch in batches for offset in batch.column(OFFSET).to_pylist()]
    assert offsets == list(range(end))
    batches = reading.reader(bucket, 0, end, bytes_max=1000, budget=RetryBudget(tries_max=3)).read()
    next(batches)
    aged.drop(path)
    tablet = FlussClient(aged.server.connect(ServerProcess.TABLET))

    def dropped() -> bool:
        try:
            return not tablet.offsets(bucket.table, None, [0], OffsetKind.LATEST)
        except (GoneFromFluss, Unavailable):
            return True

    until(dropped)
    with pytest.raises(GoneFromFluss, match="does not exist"):
        list(batches)
