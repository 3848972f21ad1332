"""Chunks as files of our own writer: every reader gets the same rows as from those of Paimon's own writer, in the same buckets."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.errors import InvariantBroken, Unavailable
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.runs import RunWriter
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import messages_of
from snowmelt.sinks.paimon.writer import PaimonWriter
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.maintained import compact_all, open_care
from tests.integration.paimon_tables import NATIVE, READERS, entry_of, folder, intent_of, open_sink, snapshots

OURS, THEIRS = "shop.ours", "shop.theirs"
_EPOCH = datetime(1970, 1, 1)
_Make = Callable[[random.Random], Any]


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _wide(chance: random.Random) -> Decimal:
    edge = chance.choice([0, 1, -1, 127, 128, -128, -129, 255, 256, -32768, 2**63, -(2**63), 2**64, -(2**64), 10**37, -(10**37)])
    return _decimal(edge + chance.choice([0, 0, chance.randrange(-(10**6), 10**6)]), 4)


_KEYS: Mapping[str, tuple[pa.DataType, _Make]] = {
    "k_bool": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "k_tiny": (pa.int8(), lambda chance: chance.randrange(-128, 128)),
    "k_small": (pa.int16(), lambda chance: chance.randrange(-(2**15), 2**15)),
    "k_int": (pa.int32(), lambda chance: chance.choice([-(2**31), -1, 0, 2**31 - 1, chance.randrange(-(2**31), 2**31)])),
    "k_big": (pa.int64(), lambda chance: chance.choice([-(2**63), -1, 0, 2**63 - 1, chance.randrange(-(2**63), 2**63)])),
    "k_unsigned": (pa.decimal128(20, 0), lambda chance: Decimal(chance.choice([0, 2**64 - 1, chance.randrange(2**64)]))),
    "k_float": (pa.float32(), lambda chance: chance.choice([-1.5, 0.0, -0.0, math.inf, -math.inf, float(chance.randrange(-999, 999))])),
    "k_double": (pa.float64(), lambda chance: chance.choice([-1.5e300, 0.0, -0.0, 5e-324, chance.uniform(-9, 9)])),
    "k_text": (
        pa.string(),
        lambda chance: (
            chance.choice(["", "a", "A", "\x00", "seven77", "eight888", "aaaaaaaaa", "é", "\U0001f600", "￿"]) + "x" * chance.randrange(9)
        ),
    ),
    "k_bytes": (pa.binary(), lambda chance: bytes(chance.choices([0, 1, 127, 128, 255], k=chance.randrange(20)))),
    "k_money": (pa.decimal128(12, 2), lambda chance: _decimal(chance.randrange(-(10**11), 10**11), 2)),
    "k_wide": (pa.decimal128(38, 4), _wide),
    "k_day": (pa.date32(), lambda chance: date(1970, 1, 1) + timedelta(chance.randrange(-30_000, 30_000))),
    "k_time": (pa.time32("ms"), lambda chance: (_EPOCH + timedelta(milliseconds=chance.randrange(86_400_000))).time()),
    "k_moment": (pa.timestamp("us"), lambda chance: _EPOCH + timedelta(microseconds=chance.randrange(-(10**15), 10**15))),
    "k_local": (
        pa.timestamp("us", "UTC"),
        lambda chance: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(-(10**15), 10**15)),
    ),
}
_VALUES: Mapping[str, tuple[pa.DataType, _Make]] = {
    "v_text": (pa.string(), lambda chance: chance.choice([None, "", "x" * 40, "ü" * 20, "\U0010ffff" * 20])),
    "v_int": (pa.int32(), lambda chance: chance.choice([None, chance.randrange(2**31)])),
    "v_tiny": (pa.int8(), lambda chance: chance.choice([None, -128, 127])),
    "v_bool": (pa.bool_(), lambda chance: chance.choice([None, True, False])),
    "v_double": (pa.float64(), lambda chance: chance.choice([None, 0.0, -1.5, 1e300])),
    "v_float": (pa.float32(), lambda chance: chance.choice([None, 0.5])),
    "v_wide": (pa.decimal128(38, 4), lambda chance: chance.choice([None, _wide(chance)])),
    "v_money": (pa.decimal128(12, 2), lambda chance: chance.choice([None, _decimal(chance.randrange(-(10**11), 10**11), 2)])),
    "v_bytes": (pa.binary(), lambda chance: chance.choice([None, b"", b"\x00\xff" * 20])),
    "v_day": (pa.date32(), lambda chance: chance.choice([None, date(1, 1, 1), date(9999, 12, 31)])),
    "v_moment": (pa.timestamp("us"), lambda chance: chance.choice([None, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)])),
    "v_local": (pa.timestamp("us", "UTC"), lambda chance: chance.choice([None, datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=UTC)])),
    "v_time": (pa.time32("ms"), lambda chance: chance.choice([None, time(23, 59, 59, 999_000)])),
    "v_none": (pa.string(), lambda chance: None),
    "v_set": (pa.list_(pa.string()), lambda chance: chance.choice([None, [], ["a"], ["a", None, "b" * 20]])),
    "v_map": (pa.map_(pa.string(), pa.int32()), lambda chance: chance.choice([None, [], [("a", 1), ("b", None)]])),
    "v_row": (
        pa.struct([pa.field("n", pa.int64()), pa.field("tags", pa.list_(pa.decimal128(20, 0)))]),
        lambda chance: chance.choice([None, {"n": None, "tags": None}, {"n": 2**63 - 1, "tags": [Decimal(7), None]}]),
    ),
}
_COMPOSITES: Sequence[Sequence[str]] = (
    ("k_text", "k_int"),
    ("k_bytes", "k_text", "k_bool"),
    ("k_wide", "k_moment", "k_tiny"),
    ("k_double", "k_local", "k_unsigned", "k_day"),
    tuple(_KEYS),
)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as talks:
        yield talks


def _types(keys: Sequence[str]) -> dict[str, pa.DataType]:
    return {name: _KEYS[name][0] for name in keys} | {name: kind for name, (kind, _) in _VALUES.items()}


def _make_tables(warehouse: Path, keys: Sequence[str], buckets: int, **options: str) -> PaimonSink:
    lake = open_sink(warehouse)
    for target in (OURS, THEIRS):
        fields = [pa.field(name, kind, nullable=name not in keys) for name, kind in _types(keys).items()]
        lake.create(target, pa.schema(fields), keys, buckets=buckets, options=options)
    return lake


def _batch(lake: PaimonSink, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=lake.columns(OURS).append(pa.field(KIND, pa.int8())))


def _rows(chance: random.Random, keys: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Rows of different keys, as Paimon tells them apart."""
    found = {}
    for _ in range(count):
        key = {name: _KEYS[name][1](chance) for name in keys}
        if len(keys) > 1:
            # pypaimon's reader in Python takes -0.0 and 0.0 for one, so that it finds files out of order, also those of the native writer.
            key = {name: abs(value) if value == 0.0 and isinstance(value, float) else value for name, value in key.items()}
        found[repr(key)] = key | {name: make(chance) for name, (_, make) in _VALUES.items()} | {SEQUENCE: 5, KIND: INSERT}
    return list(found.values())


def _ours(lake: PaimonSink, batches: Sequence[pa.RecordBatch], *, held_bytes: int = 1 << 20) -> Staged:
    return _written(RunWriter(lake.table(OURS), _prefix(), held_bytes=held_bytes), batches)


def _theirs(lake: PaimonSink, batches: Sequence[pa.RecordBatch]) -> Staged:
    return _written(PaimonWriter(lake.table(THEIRS).copy({"data-file.prefix": _prefix()}), "u", sequenced=True), batches)


def _prefix() -> str:
    return str(StagedName(1, StagedFor.CHUNK, 1, "a1", ""))


def _written(writer: Any, batches: Sequence[pa.RecordBatch]) -> Staged:
    for batch in batches:
        writer.write(batch)
    staged: Staged = writer.finish()
    return staged


def _bring(lake: PaimonSink, epoch: int, target: str, staged: Staged) -> None:
    entry = entry_of(lake, target, staged)
    lake.commit(intent_of(epoch, entry), entry)


def _by_bucket(lake: PaimonSink, target: str) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for entry in live_entries(lake.table(target), snapshots(lake, target)[-1]):
        found.setdefault(entry.bucket, []).append(entry.file)
    return found


def _stored(lake: PaimonSink, target: str, bucket: int, file: Any) -> pa.Table:
    return pq.read_table(folder(lake, target) / f"bucket-{bucket}" / file.file_name)


def _keys_of(lake: PaimonSink, target: str, keys: Sequence[str]) -> dict[int, list[str]]:
    """The stored keys of each bucket, of each file in its order."""
    return {
        bucket: [repr(tuple(row.values())) for file in files for row in _stored(lake, target, bucket, file).select(keys).to_pylist()]
        for bucket, files in _by_bucket(lake, target).items()
    }


def _read(lake: PaimonSink, target: str) -> list[list[str]]:
    found = []
    for options in READERS:
        builder = lake.table(target).copy(dict(options)).new_read_builder()
        rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
        found.append(sorted(repr(row) for row in rows.to_pylist()))
    return found


def _facts(lake: PaimonSink, target: str, staged: Staged) -> list[Any]:
    """What a writer says of its files, besides their names, sizes, ages and numbers."""
    table = lake.table(target)
    fields = {field.name: field for field in table.fields}
    found = []
    for message in messages_of(table, staged.messages):
        for file in message.new_files:
            key = [fields[name] for name in table.primary_keys]
            told = [fields[name] for name in file.value_stats_cols] if file.value_stats_cols is not None else table.fields
            facts = {
                "rows": (file.row_count, file.delete_row_count),
                "form": (file.level, file.schema_id, file.file_source, list(file.extra_files)),
                "keys": (_values(file.min_key, key), _values(file.max_key, key)),
                "of keys": (_values(file.key_stats.min_values, key), _values(file.key_stats.max_values, key), file.key_stats.null_counts),
            }
            least, greatest = _values(file.value_stats.min_values, told), _values(file.value_stats.max_values, told)
            facts["of values"] = {
                field.name: values
                for field, *values in zip(told, least, greatest, file.value_stats.null_counts, strict=True)
                # Ours tell the least and the greatest of bytes only in a key, and whole.
                if "bytes" not in field.name
            }
            found.append((message.partition, message.bucket, message.changelog_files, message.compact_after, facts))
    return sorted(found, key=lambda one: int(one[1]))


def _values(row: Any, fields: Sequence[Any]) -> list[Any]:
    row.fields = list(fields)
    return [row.get_field(at) for at in range(len(fields))]


_SHAPES = [*((name,) for name in _KEYS), *_COMPOSITES]


@pytest.mark.parametrize("keys", _SHAPES, ids=["+".join(keys) if len(keys) < 5 else "all" for keys in _SHAPES])
def test_rows_are_in_the_buckets_and_order_of_paimons_own_writer_and_every_reader_gets_them(
    tmp_path: Path, java: JavaPaimon, keys: Sequence[str]
) -> None:
    chance = random.Random(str(keys))
    lake = _make_tables(tmp_path, keys, 5)
    rows = _rows(chance, keys, 400)
    batches = [_batch(lake, rows[start : start + 90]) for start in range(0, len(rows), 90)]
    staged = {OURS: _ours(lake, batches), THEIRS: _theirs(lake, batches)}
    _bring(lake, 1, THEIRS, staged[THEIRS])
    theirs = _keys_of(lake, THEIRS, keys)
    assert sum(map(len, theirs.values())) == len(rows)
    # What comes out of order is sorted.
    _bring(lake, 1, OURS, staged[OURS])
    assert _keys_of(lake, OURS, keys) == theirs
    assert _read(lake, OURS) == _read(lake, THEIRS)
    assert _read(lake, OURS)[0] == _read(lake, OURS)[1]
    names = [*_types(keys), SEQUENCE]
    told = sorted(java.read(tmp_path, THEIRS, names), key=repr)
    assert len(told) == len(rows)
    assert repr(sorted(java.read(tmp_path, OURS, names), key=repr)) == repr(told)
    assert repr(_facts(lake, OURS, staged[OURS])) == repr(_facts(lake, THEIRS, staged[THEIRS]))
    # Changes over it, by the log's writer, and a compaction by us and by Java.
    changed = [row | {SEQUENCE: 8, KIND: DELETE if number % 3 else INSERT, "v_text": "later"} for number, row in enumerate(rows[::5])]
    _bring(lake, 2, THEIRS, _theirs(lake, [_batch(lake, changed)]))
    writer = lake.writer(OURS, _prefix(), at_once=True)
    assert isinstance(writer, PaimonWriter)
    _bring(lake, 2, OURS, _written(writer, [_batch(lake, changed)]))
    after = _read(lake, THEIRS)
    assert _read(lake, OURS) == after
    assert isinstance(compact_all(open_care(tmp_path), OURS)[0], int)
    assert _read(lake, OURS) == after
    java.compact_and_expire(tmp_path, OURS, retained=3)
    assert _read(lake, OURS) == after


@pytest.mark.parametrize("seed", range(6))
def test_of_rows_of_one_key_the_newest_counts_wherever_they_stand(tmp_path: Path, java: JavaPaimon, seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.choice(_SHAPES[1:])
    lake = _make_tables(tmp_path, keys, chance.choice([1, 3]))
    domain = _rows(chance, keys, 60)
    batches, newest = [], {}
    for number in range(12):
        rows = []
        for one in chance.sample(domain, chance.randrange(1, len(domain))):
            # Equal ones are told apart by their order.
            row = one | {SEQUENCE: chance.choice([5, 5, 9, number]), KIND: chance.choice([INSERT, INSERT, DELETE]), "v_int": number}
            rows.append(row)
            key = repr([row[name] for name in keys])
            if key not in newest or newest[key][SEQUENCE] <= row[SEQUENCE]:
                newest[key] = row
        batches.append(_batch(lake, rows))
    _bring(lake, 1, OURS, _ours(lake, batches, held_bytes=chance.choice([1, 40_000, 1 << 20])))
    wanted = [row for row in newest.values() if row[KIND] == INSERT]
    expected = sorted(repr(row) for row in _batch(lake, wanted).drop_columns([KIND]).to_pylist())
    for found in _read(lake, OURS):
        assert found == expected
    assert len(java.read(tmp_path, OURS, [*keys, SEQUENCE])) == len(wanted)


def _sorted_batches(lake: PaimonSink, count: int, size: int, text: str = "x") -> list[pa.RecordBatch]:
    chance = random.Random(7)
    made = []
    for start in range(0, count, size):
        ids = pa.array(range(2 * start, 2 * min(count, start + size), 2), pa.int32())
        columns = {"k_int": ids, "v_text": pa.array([f"{text} {chance.randrange(2**60)}" for _ in range(len(ids))])}
        columns |= {SEQUENCE: pa.array([5] * len(ids), pa.int64()), KIND: pa.array([INSERT] * len(ids), pa.int8())}
        schema = lake.columns(OURS).append(pa.field(KIND, pa.int8()))
        arrays = [columns[field.name] if field.name in columns else pa.nulls(len(ids), field.type) for field in schema]
        made.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return made


def test_rows_in_order_become_files_of_the_wanted_size_that_are_apart(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 3, **{"target-file-size": "100kb"})
    staged = _ours(lake, _sorted_batches(lake, 60_000, 2_000))
    _bring(lake, 1, OURS, staged)
    buckets = _by_bucket(lake, OURS)
    assert sorted(buckets) == [0, 1, 2]
    assert sorted(staged.files) == sorted(file.file_name for files in buckets.values() for file in files)
    assert staged.rows == 60_000
    for bucket, files in buckets.items():
        assert len(files) > 2
        files.sort(key=lambda file: file.min_key.values)
        last = -1
        for file in files:
            found = _stored(lake, OURS, bucket, file).column("k_int").to_pylist()
            assert found == sorted(set(found))
            assert last < found[0]
            last = found[-1]
            assert (file.min_key.values, file.max_key.values, file.row_count) == ([found[0]], [found[-1]], len(found))
            assert file.file_size < 200_000
        assert sum(file.file_size > 70_000 for file in files) >= len(files) - 1
    assert len(_read(lake, OURS)[0]) == 60_000
    for options in ({}, NATIVE):
        builder = lake.table(OURS).copy(dict(options)).new_read_builder()
        found = builder.with_filter(builder.new_predicate_builder().between("k_int", 100, 104))
        assert sorted(found.new_read().to_arrow(found.new_scan().plan().splits()).column("k_int").to_pylist()) == [100, 102, 104]


def test_rows_in_order_are_one_file_of_each_bucket_and_the_first_that_is_not_begins_another(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    batches = _sorted_batches(lake, 1_000, 100)
    assert len(_ours(lake, batches).files) == 2
    assert len(_ours(lake, [*batches[5:], *batches[:5]]).files) == 4
    # The same key again is out of order, too.
    again = _ours(lake, [*batches, batches[-1].slice(99)])
    assert len(again.files) == 3
    _bring(lake, 1, OURS, again)
    assert len(_read(lake, OURS)[0]) == 1_000


def test_a_later_file_has_a_greater_number(tmp_path: Path) -> None:
    """By it alone some readers tell which of two rows of equal `_seq` counts."""
    lake = _make_tables(tmp_path, ["k_int"], 1)
    batches = _sorted_batches(lake, 300, 100)
    writer = RunWriter(lake.table(OURS), _prefix(), held_bytes=1)
    for batch in [*batches, *batches, *batches[:1]]:
        writer.write(batch)
    [message] = messages_of(lake.table(OURS), writer.finish().messages)
    numbers = [(file.min_sequence_number, file.max_sequence_number) for file in message.new_files]
    assert numbers == [(run, run) for run in range(5)]


def test_memory_is_bounded_by_what_a_writer_may_hold_whatever_order_rows_come_in(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    batches = _sorted_batches(lake, 200_000, 4_000, "x" * 200)
    batches.reverse()
    wanted = sum(batch.nbytes for batch in batches)
    writer = RunWriter(lake.table(OURS), _prefix(), held_bytes=2 << 20)
    before, most = pa.total_allocated_bytes(), 0
    for batch in batches:
        writer.write(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 8 << 20 < wanted // 4
    assert writer.finish().rows == 200_000


@pytest.mark.parametrize("buckets", [1, 64])
def test_memory_of_a_batch_is_let_go_though_one_bucket_gets_hardly_any_rows(tmp_path: Path, buckets: int) -> None:
    lake = _make_tables(tmp_path, ["k_int"], buckets)
    batches = _sorted_batches(lake, 200, 50)
    # Batches that are small parts of large memory, as those of an arena are.
    large = [pa.Table.from_batches([batch] * 400).combine_chunks().to_batches()[0].slice(0, 50) for batch in batches]
    writer = RunWriter(lake.table(OURS), _prefix())
    del batches
    before = pa.total_allocated_bytes()
    while large:
        writer.write(large.pop(0))
    assert pa.total_allocated_bytes() < before
    writer.abandon()


def test_statistics_and_dictionaries_are_where_they_help(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 1)
    batch = _sorted_batches(lake, 4_000, 4_000)[0]
    few = pa.array(["new", "open"] * 2_000)
    batch = batch.set_column(batch.schema.get_field_index("v_bytes"), "v_bytes", few.cast(pa.binary()))
    staged = _ours(lake, [batch])
    file = pq.ParquetFile(folder(lake, OURS) / "bucket-0" / staged.files[0])
    group = file.metadata.row_group(0)
    dictionaries = {group.column(at).path_in_schema: "RLE_DICTIONARY" in group.column(at).encodings for at in range(group.num_columns)}
    assert not dictionaries["k_int"]
    assert not dictionaries["v_text"]
    assert dictionaries["v_bytes"]
    assert dictionaries["v_set.list.element"]


# ---- what is not written here


@pytest.mark.parametrize(
    "option",
    [
        ("bucket-function.type", "mod"),
        ("bucket-key", "k_int"),
        ("changelog-producer", "input"),
        ("file.format", "orc"),
        ("file-index.bloom-filter.columns", "v_text"),
        ("metadata.stats-mode", "none"),
        ("some.option.of.tomorrow", "yes"),
    ],
)
def test_a_table_with_an_option_that_is_not_followed_here_is_left_to_paimons_own_writer(tmp_path: Path, option: tuple[str, str]) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    assert isinstance(lake.writer(OURS, _prefix()), RunWriter)
    lake = _make_tables(tmp_path / "other", ["k_int"], 2, **{option[0]: option[1]})
    assert isinstance(lake.writer(OURS, _prefix()), PaimonWriter)


def test_a_null_where_none_may_be_is_an_error(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    batch = _sorted_batches(lake, 10, 10)[0]
    for name in ("k_int", SEQUENCE):
        writer = lake.writer(OURS, _prefix())
        at = batch.schema.get_field_index(name)
        with pytest.raises(InvariantBroken, match="rows do not fit"):
            writer.write(batch.set_column(at, name, pa.nulls(10, batch.schema.field(at).type)))


def test_rows_of_other_columns_are_an_error_and_the_writer_is_used_up(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    batch = _sorted_batches(lake, 10, 10)[0]
    writer = lake.writer(OURS, _prefix())
    with pytest.raises(InvariantBroken, match="other columns"):
        writer.write(batch.drop_columns(["v_int"]))
    with pytest.raises(InvariantBroken, match="after its end"):
        writer.write(batch)


def test_a_writer_does_not_make_the_folder_of_a_table_that_was_dropped(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 2)
    batch = _sorted_batches(lake, 10, 10)[0]
    writer = lake.writer(OURS, _prefix())
    path = folder(lake, OURS)
    lake._catalog.drop_table(OURS, False)
    with pytest.raises(Unavailable):
        _written(writer, [batch])
    assert not path.exists()


def test_what_a_chunk_leaves_has_the_form_of_what_paimons_own_writer_leaves(tmp_path: Path) -> None:
    lake = _make_tables(tmp_path, ["k_int"], 3)
    batches = _sorted_batches(lake, 100, 10)
    ours, theirs = _ours(lake, batches), _theirs(lake, batches)
    assert sorted(ours.places) == sorted(theirs.places)
    assert ours.rows == theirs.rows
    assert repr(_facts(lake, OURS, ours)) == repr(_facts(lake, THEIRS, theirs))
    assert all(name.startswith(_prefix()) for name in ours.files)
    assert _ours(lake, []) == Staged((), (), 0)
