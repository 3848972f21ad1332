"""Files of Paimon tables that become fewer: whatever was brought, every reader gets the same rows before and after."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from snowmelt.commit.records import StagedFor, StagedName
from snowmelt.errors import InvalidConfig, SourceDrift, Unavailable
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.maintenance.files import table_files
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import latest_snapshot
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.maintained import GENERATION, LEVEL, compact_all, open_care, prefix_of, rewrite_of
from tests.integration.paimon_tables import (
    KEYED,
    NATIVE,
    PLAIN,
    SCHEMA,
    Process,
    alter,
    bring,
    entry_of,
    folder,
    intent_of,
    make_tables,
    open_sink,
    read,
    read_columns,
    read_with,
    snapshots,
    stage,
    stage_columns,
)

TYPED = "shop.typed"


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


_KEYS: Mapping[str, tuple[pa.DataType, Any]] = {
    "tiny": (pa.int8(), lambda chance: chance.randrange(-128, 128)),
    "big": (pa.int64(), lambda chance: chance.choice([-(2**63), -1, 0, 1, 2**63 - 1, chance.randrange(-40, 40)])),
    "text": (
        pa.string(),
        lambda chance: chance.choice(["", "a", "\x00", "aaaaaaaaa", "aaaaaaaab", "é", "z", "\U0001f600", "￿"]) + "x" * chance.randrange(3),
    ),
    "bytes": (pa.binary(), lambda chance: bytes(chance.choices([0, 1, 127, 128, 255], k=chance.randrange(10)))),
    "money": (pa.decimal128(12, 2), lambda chance: _decimal(chance.randrange(-500, 500), 2)),
    "large": (pa.decimal128(38, 4), lambda chance: _decimal(chance.choice([-1, 1]) * (10**30 + chance.randrange(40)), 4)),
    "day": (pa.date32(), lambda chance: date(1970, 1, 1) + timedelta(chance.randrange(-30, 30))),
    "moment": (pa.timestamp("us"), lambda chance: datetime(1970, 1, 1) + timedelta(microseconds=chance.randrange(-30, 30))),
}
_VALUES: Sequence[tuple[str, pa.DataType, Any]] = [
    ("v_text", pa.string(), lambda chance: chance.choice([None, "", "x" * 40, "ü" * 20, "\U0010ffff" * 20])),
    ("v_int", pa.int32(), lambda chance: chance.choice([None, chance.randrange(2**31)])),
    ("v_small", pa.int16(), lambda chance: chance.randrange(-(2**15), 2**15)),
    ("v_bool", pa.bool_(), lambda chance: chance.choice([None, True, False])),
    ("v_double", pa.float64(), lambda chance: chance.choice([None, 0.0, -1.5, 1e300])),
    ("v_float", pa.float32(), lambda chance: chance.choice([None, 0.5])),
    ("v_money", pa.decimal128(20, 4), lambda chance: _decimal(chance.randrange(10**15), 4)),
    ("v_bytes", pa.binary(), lambda chance: chance.choice([None, b"", b"\x00\xff" * 20])),
    (
        "v_local",
        pa.timestamp("us", "UTC"),
        lambda chance: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(10**6)),
    ),
    (
        "v_time",
        pa.time32("ms"),
        lambda chance: chance.choice([None, (datetime(1970, 1, 1) + timedelta(milliseconds=chance.randrange(86_400_000))).time()]),
    ),
]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as talks:
        yield talks


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


@pytest.fixture
def care(tmp_path: Path, lake: PaimonSink) -> PaimonMaintenance:
    return open_care(tmp_path)


# ---- random histories

_Key = tuple[Any, ...]


def _stage_rows(lake: PaimonSink, target: str, rows: Sequence[Mapping[str, Any]], number: int) -> Any:
    schema = lake.columns(target).append(pa.field(KIND, pa.int8(), nullable=False))
    writer = lake.writer(target, str(StagedName(1, StagedFor.EPOCH, number, "a1", "")))
    writer.write(pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema))
    return writer.finish()


def _read_all(lake: PaimonSink, target: str, names: Sequence[str]) -> list[list[_Key]]:
    found = []
    for options in ({}, NATIVE):
        builder = lake.table(target).copy(dict(options)).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        found.append([tuple(row[name] for name in names) for row in rows.to_pylist()] if rows is not None else [])
    return found


def _java_form(value: Any, kind: pa.DataType) -> Any:
    """A value as `JavaPaimon.read` gives it."""
    if value is None:
        return None
    if pa.types.is_decimal(kind):
        return int(str(value).replace(".", ""))
    if pa.types.is_date(kind):
        return (value - date(1970, 1, 1)).days
    if pa.types.is_timestamp(kind):
        micros = (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        return (micros // 1000, micros % 1000 * 1000)
    if pa.types.is_time(kind):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    return value


def _sorted(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_brought_and_whichever_files_are_compacted_all_readers_agree_with_the_model(
    tmp_path: Path, java: JavaPaimon, seed: int
) -> None:
    chance = random.Random(seed)
    lake, care = open_sink(tmp_path), open_care(tmp_path)
    keys = chance.sample(sorted(_KEYS), chance.choice([1, 1, 2, 3]))
    types = {name: _KEYS[name][0] for name in keys} | {name: kind for name, kind, _ in _VALUES}
    fields = [pa.field(name, kind, nullable=name not in keys) for name, kind in types.items()]
    buckets = chance.choice([1, 2])
    lake.create(TYPED, pa.schema(fields), keys, buckets=buckets, options={"file.compression": chance.choice(["zstd", "lz4", "snappy"])})
    names = [*types, SEQUENCE]
    domain = list(dict.fromkeys(tuple(_KEYS[name][1](chance) for name in keys) for _ in range(30)))
    model: dict[_Key, tuple[int, dict[str, Any] | None]] = {}
    gone = 0
    for epoch in range(1, 13):
        rows: dict[_Key, dict[str, Any]] = {}
        for key in chance.sample(domain, chance.randrange(1, len(domain))):
            # A chunk's rows come late: below what is there.
            row = {**dict(zip(keys, key, strict=True)), **{name: make(chance) for name, _, make in _VALUES}}
            late = max(1, 10 * epoch - chance.choice([0, 0, 0, 15]) if gone == 0 else 10 * epoch)
            row |= {SEQUENCE: late, KIND: DELETE if chance.random() < 0.3 else INSERT}
            rows[key] = row
            if key not in model or model[key][0] < late:
                model[key] = (late, row if row[KIND] == INSERT else None)
            elif model[key][0] == late:
                del rows[key]
        entry = entry_of(lake, TYPED, *([_stage_rows(lake, TYPED, list(rows.values()), epoch)] if rows else []))
        lake.commit(intent_of(epoch, entry), entry)
        wanted = _sorted([tuple(row[name] for name in names) for _, row in model.values() if row is not None])
        if chance.random() < 0.7:
            gone += _compact_some(chance, care)
        for found in _read_all(lake, TYPED, names):
            assert _sorted(found) == wanted
    told = [[_java_form(value, types.get(name, pa.int64())) for name, value in zip(names, row, strict=True)] for row in wanted]
    assert _sorted(java.read(tmp_path, TYPED, names)) == _sorted(told)
    # It may compact what we made, and we what it made.
    java.compact_and_expire(tmp_path, TYPED, retained=3)
    assert _sorted(java.read(tmp_path, TYPED, names)) == _sorted(told)
    result, _ = compact_all(care, TYPED)
    assert isinstance(result, int)
    for found in _read_all(lake, TYPED, names):
        assert _sorted(found) == wanted
    assert _sorted(java.read(tmp_path, TYPED, names)) == _sorted(told)
    assert snapshots(lake, TYPED)[-1].total_record_count == len(wanted)


def _compact_some(chance: random.Random, care: PaimonMaintenance) -> int:
    """One bucket: some of its files at level 0, or with all of them above it. Returns whether deletes went."""
    files = care.files(TYPED)
    place = chance.randrange(len(files.buckets))
    bucket = files.buckets[place].files
    level = chance.choice([0, LEVEL])
    chosen = [file.name for file in bucket if (level and file.level) or chance.random() < 0.7]
    if not chosen:
        return 0
    work = rewrite_of(files, TYPED, place, chosen, level=level, file_bytes=chance.choice([1, 128 << 20]))
    staged = care.rewrite(work, prefix_of())
    assert isinstance(care.publish([work], [staged], generation=GENERATION), int)
    return int(work.drops_deletes)


# ---- what is written

BIG = 60_000


def _bring_many(lake: PaimonSink, count: int, epochs: int = 3) -> None:
    for epoch in range(1, epochs + 1):
        bring(lake, epoch, KEYED, *[(key, f"{epoch} {key * 2654435761 % 2**32}", epoch) for key in range(epoch, count, epoch)])


def test_output_files_are_of_the_wanted_size_sorted_and_apart_and_their_facts_are_true(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring_many(lake, 2 * BIG)
    before = read(lake, KEYED)
    result, staged = compact_all(care, KEYED, file_bytes=100_000)
    assert isinstance(result, int)
    table = lake.table(KEYED)
    by_bucket: dict[int, list[Any]] = {}
    for entry in live_entries(table, snapshots(lake, KEYED)[-1]):
        by_bucket.setdefault(entry.bucket, []).append(entry.file)
    assert sum(len(part.files) for part in staged) == sum(map(len, by_bucket.values())) > 6
    for bucket, files in by_bucket.items():
        assert all(file.file_size > 70_000 for file in files[:-1])
        last = -1
        for file in files:
            rows = pq.read_table(folder(lake, KEYED) / f"bucket-{bucket}" / file.file_name)
            found = rows.column("id").to_pylist()
            assert file.file_size < 200_000
            assert found == sorted(set(found))
            assert last < found[0]
            last = found[-1]
            assert (file.min_key.values, file.max_key.values) == ([found[0]], [found[-1]])
            assert (file.row_count, file.delete_row_count, file.level) == (len(found), 0, LEVEL)
            numbers = pc.min_max(rows.column("_SEQUENCE_NUMBER")).as_py()
            assert (file.min_sequence_number, file.max_sequence_number) == (numbers["min"], numbers["max"])
            assert (
                pq.ParquetFile(folder(lake, KEYED) / f"bucket-{bucket}" / file.file_name).metadata.row_group(0).column(0).compression
                == "ZSTD"
            )
    assert read(lake, KEYED) == before


def test_readers_find_a_key_by_the_statistics_of_the_new_files(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring_many(lake, 20_000)
    compact_all(care, KEYED, file_bytes=50_000)
    for options in ({}, NATIVE):
        builder = lake.table(KEYED).copy(dict(options)).new_read_builder()
        predicates = builder.new_predicate_builder()
        for predicate, wanted in (
            (predicates.equal("id", 12_345), [12_345]),
            (predicates.between("id", 100, 104), [100, 101, 102, 103, 104]),
            (predicates.equal("v", f"3 {9 * 2654435761 % 2**32}"), [9]),
        ):
            found = builder.with_filter(predicate)
            splits = found.new_scan().plan().splits()
            assert sorted(found.new_read().to_arrow(splits).column("id").to_pylist()) == wanted


def test_deletes_are_kept_where_an_older_file_may_have_the_row(lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in range(1, 5):
        bring(lake, epoch, KEYED, (1, "x" if epoch == 1 else None, 2 * epoch), (3, "y", 2 * epoch))
    files = care.files(KEYED)
    place = next(place for place, bucket in enumerate(files.buckets) if any(file.deletes for file in bucket.files))
    work = rewrite_of(files, KEYED, place, [file.name for file in files.buckets[place].files[1:]], level=0)
    assert not work.drops_deletes
    staged = care.rewrite(work, prefix_of())
    care.publish([work], [staged], generation=GENERATION)
    assert (1, "x", 2) not in read(lake, KEYED)
    after = {file.name: file for bucket in care.files(KEYED).buckets for file in bucket.files}
    assert after[staged.files[0]].deletes == 1
    compact_all(care, KEYED)
    assert sum(file.deletes for bucket in care.files(KEYED).buckets for file in bucket.files) == 0
    assert (1, "x", 2) not in read(lake, KEYED)


def test_a_bucket_of_deletes_alone_becomes_empty(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2))
    bring(lake, 2, KEYED, (1, None, 4))
    result, staged = compact_all(care, KEYED)
    assert [part.files for part in staged] == [()]
    assert isinstance(result, int)
    assert care.files(KEYED).buckets == ()
    assert read(lake, KEYED) == []


def test_rows_without_a_key_keep_their_order_in_the_tables_own_order_of_files(
    lake: PaimonSink, care: PaimonMaintenance, java: JavaPaimon, tmp_path: Path
) -> None:
    for epoch in range(1, 9):
        bring(lake, epoch, PLAIN, *[(epoch * 100 + number, str(number), epoch) for number in range(20)])
    wanted = sorted(read_with(lake, PLAIN, {}))
    files = care.files(PLAIN)
    names = [file.name for file in files.buckets[0].files]
    work = [rewrite_of(files, PLAIN, 0, part) for part in (names[1:3], names[4:7])]
    staged = [care.rewrite(one, prefix_of()) for one in work]
    bring(lake, 9, PLAIN, (900, "0", 9))
    assert isinstance(care.publish(work, staged, generation=GENERATION), int)
    ordered = [file.name for file in care.files(PLAIN).buckets[0].files]
    assert ordered[1] == staged[0].files[0]
    assert ordered[3] == staged[1].files[0]
    assert java.read(tmp_path, PLAIN, ["id", "v", SEQUENCE]) == [list(row) for row in [*wanted, (900, "0", 9)]]
    compact_all(care, PLAIN)
    for options in ({}, NATIVE):
        assert read_with(lake, PLAIN, options) == [*wanted, (900, "0", 9)]


# ---- files of other ages and of other programs


def test_files_of_older_columns_are_brought_to_the_newest(
    lake: PaimonSink, care: PaimonMaintenance, java: JavaPaimon, tmp_path: Path
) -> None:
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("d", pa.decimal128(8, 2)),
            pa.field("old", pa.string()),
        ]
    )
    lake.create(TYPED, schema, ["id"], buckets=1)
    rows = [{"id": key, "n": 7, "d": Decimal("1.25"), "old": "gone", SEQUENCE: 2, KIND: INSERT} for key in range(4)]
    entry = entry_of(lake, TYPED, _stage_rows(lake, TYPED, rows, 1))
    lake.commit(intent_of(1, entry), entry)
    alter(lake, TYPED, SchemaChange.update_column_type("n", AtomicType("BIGINT")))
    alter(lake, TYPED, SchemaChange.update_column_type("d", AtomicType("DECIMAL(12, 4)")))
    alter(lake, TYPED, SchemaChange.rename_column("n", "m"))
    alter(lake, TYPED, SchemaChange.drop_column("old"))
    alter(lake, TYPED, SchemaChange.add_column("old", AtomicType("STRING")))
    rows = [{"id": key, "m": 2**40, "d": Decimal("2.5000"), "old": "new", SEQUENCE: 4, KIND: INSERT} for key in (3, 4)]
    entry = entry_of(lake, TYPED, _stage_rows(lake, TYPED, rows, 2))
    lake.commit(intent_of(2, entry), entry)
    names = ["id", "m", "d", "old", SEQUENCE]
    wanted = [(key, 7, Decimal("1.25"), None, 2) for key in range(3)] + [(key, 2**40, Decimal("2.5"), "new", 4) for key in (3, 4)]
    for _ in range(2):
        for found in _read_all(lake, TYPED, names):
            assert sorted(found) == wanted
        assert sorted(java.read(tmp_path, TYPED, names)) == [[row[0], row[1], int(row[2].scaleb(4)), *row[3:]] for row in wanted]
        assert isinstance(compact_all(care, TYPED)[0], int)


def test_files_that_are_newer_than_the_columns_that_were_looked_at_are_not_rewritten(lake: PaimonSink, care: PaimonMaintenance) -> None:
    """`snowmelt maintain` has loaded the table and is slow to look at its files. Meanwhile the pipeline adds a column and fills it."""
    bring(lake, 1, KEYED, (1, "one", 2))
    slow = lake.table(KEYED)
    wider = SCHEMA.append(pa.field("w", pa.int64()))
    reshape = lake.reshape(KEYED, wider, ["id"])
    assert reshape is not None
    entry = entry_of(lake, KEYED, reshape=reshape)
    lake.commit(intent_of(2, entry), entry)
    entry = entry_of(lake, KEYED, stage_columns(lake, KEYED, {"id": [1, 2], "v": ["two", "two"], "w": [7, 8]}, number=3))
    lake.commit(intent_of(3, entry), entry)
    rows = read_columns(lake, KEYED)

    files = table_files(slow, latest_snapshot(slow))
    for place in range(len(files.buckets)):
        work = rewrite_of(files, KEYED, place)
        with pytest.raises(Unavailable, match="columns changed"):
            care.publish([work], [care.rewrite(work, prefix_of())], generation=GENERATION)
    assert [row["w"] for row in rows] == [7, 8]
    assert read_columns(lake, KEYED) == rows


def test_a_type_that_was_changed_to_another_by_others_is_left_to_them(lake: PaimonSink, care: PaimonMaintenance) -> None:
    from pypaimon.schema.data_types import AtomicType
    from pypaimon.schema.schema_change import SchemaChange

    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32())])
    lake.create(TYPED, schema, ["id"], buckets=1)
    entry = entry_of(lake, TYPED, _stage_rows(lake, TYPED, [{"id": 1, "n": 7, SEQUENCE: 2, KIND: INSERT}], 1))
    lake.commit(intent_of(1, entry), entry)
    alter(lake, TYPED, SchemaChange.update_column_type("n", AtomicType("STRING")))
    with pytest.raises(SourceDrift, match="can't be brought to its columns"):
        compact_all(care, TYPED)


@pytest.mark.parametrize(
    "option",
    [
        {"merge-engine": "first-row"},
        {"deletion-vectors.enabled": "true"},
        {"changelog-producer": "lookup"},
        {"bucket": "-1"},
        {"file.format": "orc"},
    ],
    ids=str,
)
def test_a_table_of_another_kind_is_refused(tmp_path: Path, option: dict[str, str]) -> None:
    from pypaimon import Schema

    lake = open_sink(tmp_path)
    lake._catalog.create_database("shop", True)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    lake._catalog.create_table(TYPED, Schema.from_pyarrow_schema(schema, primary_keys=["id"], options={"bucket": "1", **option}), False)
    with pytest.raises(InvalidConfig, match="not maintained"):
        open_care(tmp_path).files(TYPED)


def test_tables_of_tiering_with_partitions_and_changelog_are_compacted_by_the_numbers_of_their_writer(
    tmp_path: Path, java: JavaPaimon
) -> None:
    from pypaimon import Schema

    lake, care = open_sink(tmp_path), open_care(tmp_path)
    lake._catalog.create_database("shop", True)
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False), pa.field("v", pa.string())]
    )
    options = {"bucket": "2", "changelog-producer": "input", "partition.legacy-name": "false"}
    lake._catalog.create_table(
        TYPED, Schema.from_pyarrow_schema(schema, partition_keys=["day"], primary_keys=["id", "day"], options=options), False
    )
    for round_number in range(6):
        builder = lake.table(TYPED).new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        rows = [{"id": key, "day": day, "v": f"{round_number}"} for key in range(round_number, 12, 2) for day in ("a b", "c/d")]
        write.write_arrow(pa.Table.from_pylist(rows, schema=schema))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
    names = ["id", "day", "v"]
    wanted = _sorted(_read_all(lake, TYPED, names)[0])
    assert len(care.files(TYPED).buckets) == 4
    assert isinstance(compact_all(care, TYPED)[0], int)
    assert all(len(bucket.files) == 1 for bucket in care.files(TYPED).buckets)
    for found in _read_all(lake, TYPED, names):
        assert _sorted(found) == wanted
    assert _sorted([tuple(row) for row in java.read(tmp_path, TYPED, names)]) == wanted


def test_inputs_that_are_gone_are_unavailable(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2))
    work = rewrite_of(care.files(KEYED), KEYED)
    (folder(lake, KEYED) / f"bucket-{work.bucket}" / work.inputs[0]).unlink()
    with pytest.raises(Unavailable):
        care.rewrite(work, prefix_of())


# ---- memory

_ROWS, _FILES = 50_000, 16


def _compact_measured(warehouse: str, pipe: Connection) -> None:
    care = open_care(warehouse)
    files = care.files(KEYED)
    small = rewrite_of(files, KEYED, 0, [files.buckets[0].files[-1].name], level=0)
    care.rewrite(small, prefix_of())
    pipe.send("ready")
    pipe.recv()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    staged = care.rewrite(rewrite_of(files, KEYED), prefix_of())
    pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, staged.rows))


def test_a_large_merge_takes_memory_by_its_runs_and_not_by_its_rows(tmp_path: Path) -> None:
    lake = open_sink(tmp_path)
    lake.create(KEYED, pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())]), ["id"], buckets=1)
    chance = random.Random(1)
    noise = chance.randbytes(1 << 20).hex()
    parts = []
    for number in range(_FILES):
        rows = [(key, noise[at : at + 600], 2 + number) for key in range(number, _ROWS * 4, 4) for at in [chance.randrange(1 << 20)]]
        parts.append(stage(lake, KEYED, rows, number=1))
        assert len(rows) > 20 * 600
    parts.append(stage(lake, KEYED, [(1, "x", 100)], number=1))
    entry = entry_of(lake, KEYED, *parts)
    lake.commit(intent_of(1, entry), entry)
    brought = _ROWS * 600 * _FILES
    with Process(_Measured(str(tmp_path))) as process:
        process.go()
        grown_kb, rows_out = process.hear()
    assert rows_out == _ROWS * 4
    assert brought > 450 << 20
    assert grown_kb << 10 < 300 << 20, f"{grown_kb >> 10} MiB"


class _Measured:
    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse

    def __call__(self, pipe: Connection) -> None:
        _compact_measured(self._warehouse, pipe)
