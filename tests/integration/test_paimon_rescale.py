"""A Paimon table gets another number of buckets in one commit: whatever was brought, every reader has the same rows all the while."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from snowmelt.commit.records import Entry, Staged, StagedFor, StagedName
from snowmelt.errors import InvalidConfig, SourceDrift, Unavailable
from snowmelt.model.table import DELETE, INSERT, KIND
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.maintenance import GivenUp
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import latest_snapshot
from tests.integration import paimon_tables
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.maintained import GENERATION, LEVEL, compact_all, newest_epoch, open_care, prefix_of, rewrites_of
from tests.integration.paimon_tables import KEYED, PLAIN, SCHEMA, Row, bring, entry_of, foreign_commit, intent_of, make_tables, read

OLD = paimon_tables.BUCKETS
KEYS = 400


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


def history(lake: PaimonSink, epochs: int, *, first: int = 1) -> dict[int, str]:
    """Upserts and deletes of the same keys. What is there in the end."""
    chance = random.Random(epochs)
    rows: dict[int, str] = {}
    for epoch in range(first, first + epochs):
        changes: dict[int, str | None] = {
            chance.randrange(KEYS): None if chance.random() < 0.3 else f"v{epoch}" for _ in range(KEYS // (1 if epoch == first else 4))
        }
        rows |= {key: value for key, value in changes.items() if value is not None}
        rows = {key: value for key, value in rows.items() if changes.get(key, value) is not None}
        bring(lake, epoch, KEYED, *((key, value, 2 * epoch) for key, value in changes.items()))
    return rows


def rows_of(lake: PaimonSink) -> dict[int, str]:
    return {row[0]: str(row[1]) for row in read(lake, KEYED)}


def rescaled(lake: PaimonSink, care: PaimonMaintenance, buckets: int, *more: Staged) -> Entry:
    """The entry that does it."""
    staged = [care.redistribute(work, buckets, prefix_of()) for work in rewrites_of(care, KEYED)]
    return entry_of(lake, KEYED, *staged, *more, empties=["shop.t"], reshape=lake.rescale(KEYED, buckets))


def counts_of(lake: PaimonSink) -> set[int]:
    """What the manifests say of how many buckets the table's files are."""
    table = lake.table(KEYED)
    return {entry.total_buckets for entry in live_entries(table, latest_snapshot(table))}


@pytest.mark.parametrize("buckets", [1, 2 * OLD, 2 * OLD + 1, 16])
def test_every_reader_has_the_same_rows_before_and_after_and_later_commits_go_on(
    lake: PaimonSink, care: PaimonMaintenance, tmp_path: Path, java: JavaPaimon, buckets: int
) -> None:
    rows = history(lake, 4)
    assert rows_of(lake) == rows
    entry = rescaled(lake, care, buckets)
    assert rows_of(lake) == rows, "what is staged is nobody's yet"
    snapshot = lake.commit(intent_of(5, entry), entry)
    assert lake.commit(intent_of(5, entry), entry) == snapshot, "twice is once"
    assert (lake.describe(KEYED).buckets, counts_of(lake), newest_epoch(lake, KEYED)) == (buckets, {buckets}, 5)
    assert rows_of(lake) == rows
    assert dict(map(tuple, java.read(tmp_path, KEYED, ["id", "v"]))) == rows
    levels = {file.level for bucket in care.files(KEYED).buckets for file in bucket.files}
    assert levels == {LEVEL if buckets % OLD == 0 else 0}
    # Every key is where later commits of it go: each is written again, then half of them go.
    bring(lake, 6, KEYED, *((key, "again", 12) for key in rows))
    bring(lake, 7, KEYED, *((key, None, 14) for key in rows if key % 2))
    left = {key: "again" for key in rows if not key % 2}
    assert rows_of(lake) == left
    assert dict(map(tuple, java.read(tmp_path, KEYED, ["id", "v"]))) == left
    assert not isinstance(compact_all(care, KEYED)[0], GivenUp)
    java.compact_and_expire(tmp_path, KEYED)
    assert rows_of(lake) == left
    assert counts_of(lake) == {buckets}


def test_a_driver_that_dies_between_snapshot_and_schema_leaves_a_table_that_all_read_and_the_next_one_finishes(
    lake: PaimonSink, care: PaimonMaintenance, tmp_path: Path, java: JavaPaimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = history(lake, 3)
    entry = rescaled(lake, care, 2 * OLD)
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise Unavailable("the driver is dead")

        patched.setattr("snowmelt.sinks.paimon.sink.change_schema", die)
        with pytest.raises(Unavailable, match="dead"):
            lake.commit(intent_of(4, entry), entry)
    assert (lake.describe(KEYED).buckets, counts_of(lake)) == (OLD, {2 * OLD})
    assert rows_of(lake) == rows
    assert dict(map(tuple, java.read(tmp_path, KEYED, ["id", "v"]))) == rows
    another = paimon_tables.open_sink(tmp_path)
    newest = another.describe(KEYED).progress
    assert another.commit(intent_of(4, entry), entry) == newest
    assert (another.describe(KEYED).buckets, counts_of(another)) == (2 * OLD, {2 * OLD})
    assert rows_of(another) == rows
    # And one that knows nothing of the end of it.
    assert lake.commit(intent_of(4, entry), entry) == newest


def test_rows_that_came_after_the_first_round_are_brought_by_a_second_one_with_their_deletes(
    lake: PaimonSink, care: PaimonMaintenance, tmp_path: Path, java: JavaPaimon
) -> None:
    rows = history(lake, 3)
    first = [care.redistribute(work, 6, prefix_of()) for work in rewrites_of(care, KEYED)]
    covered = {file.name for bucket in care.files(KEYED).buckets for file in bucket.files}
    gone, other = list(rows)[:50], list(rows)[50:60]
    bring(lake, 4, KEYED, *((key, None, 8) for key in gone), *((key, "late", 8) for key in other), (KEYS + 1, "new", 8))
    works = [replace(work, inputs=tuple(name for name in work.inputs if name not in covered)) for work in rewrites_of(care, KEYED)]
    second = [care.redistribute(replace(work, drops_deletes=False, level=0), 6, prefix_of()) for work in works if work.inputs]
    entry = entry_of(lake, KEYED, *first, *second, empties=["shop.t"], reshape=lake.rescale(KEYED, 6))
    lake.commit(intent_of(5, entry), entry)
    wanted = {key: value for key, value in rows.items() if key not in gone} | dict.fromkeys(other, "late") | {KEYS + 1: "new"}
    assert rows_of(lake) == wanted
    assert dict(map(tuple, java.read(tmp_path, KEYED, ["id", "v"]))) == wanted
    compact_all(care, KEYED)
    assert rows_of(lake) == wanted


def test_what_another_program_wrote_meanwhile_is_not_taken_out_and_its_compaction_is_no_matter(
    lake: PaimonSink, care: PaimonMaintenance
) -> None:
    rows = history(lake, 2)
    entry = rescaled(lake, care, 5)
    assert not isinstance(compact_all(care, KEYED)[0], GivenUp)
    lake.commit(intent_of(3, entry), entry)
    assert (rows_of(lake), counts_of(lake)) == (rows, {5})
    entry = rescaled(lake, care, 3)
    foreign: Sequence[Row] = [(KEYS + 5, "theirs", 99)]
    foreign_commit(lake, KEYED, *foreign)
    with pytest.raises(SourceDrift, match="another program wrote into a lake table"):
        lake.commit(intent_of(4, entry), entry)
    assert rows_of(lake) == rows | {KEYS + 5: "theirs"}
    assert lake.describe(KEYED).buckets == 5


def test_statistics_that_another_program_made_meanwhile_are_no_matter(lake: PaimonSink, care: PaimonMaintenance) -> None:
    from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
    from pypaimon.write.file_store_commit import FileStoreCommit

    rows = history(lake, 2)
    entry, table = rescaled(lake, care, 5), lake.table(KEYED)
    commit = FileStoreCommit(RenamingSnapshotCommit(table.snapshot_manager()), table, "analyst")
    assert commit._try_commit_once(None, "ANALYZE", [], [], 1, latest_snapshot(table)).is_success()
    lake.commit(intent_of(3, entry), entry)
    assert (rows_of(lake), counts_of(lake)) == (rows, {5})


def test_an_empty_table_and_one_that_has_the_number_and_one_without_a_key(lake: PaimonSink, care: PaimonMaintenance) -> None:
    assert lake.rescale(KEYED, OLD) is None
    with pytest.raises(InvalidConfig, match="without a key"):
        lake.rescale(PLAIN, 4)
    entry = entry_of(lake, KEYED, reshape=lake.rescale(KEYED, 4))
    lake.commit(intent_of(1, entry), entry)
    bring(lake, 2, KEYED, (1, "a", 4))
    assert (lake.describe(KEYED).buckets, counts_of(lake), rows_of(lake)) == (4, {4}, {1: "a"})
    bring(lake, 3, KEYED, (1, None, 6))
    entry = rescaled(lake, care, 2)
    assert not entry.files
    lake.commit(intent_of(4, entry), entry)
    assert (lake.describe(KEYED).buckets, rows_of(lake)) == (2, {})


def test_files_of_older_columns_are_read_as_the_table_has_them_now(lake: PaimonSink, care: PaimonMaintenance) -> None:
    rows = history(lake, 2)
    reshape = lake.reshape(KEYED, pa.schema([*SCHEMA, pa.field("more", pa.int32())]), ["id"])
    entry = entry_of(lake, KEYED, reshape=reshape)
    lake.commit(intent_of(3, entry), entry)
    entry = rescaled(lake, care, 7)
    lake.commit(intent_of(4, entry), entry)
    found = paimon_tables.read_columns(lake, KEYED)
    assert {row["id"]: row["v"] for row in found} == rows
    assert {row["more"] for row in found} == {None}


TYPED = "shop.typed"
COLUMNS = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("money", pa.decimal128(12, 2), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("moment", pa.timestamp("us"), nullable=False),
        pa.field("local", pa.timestamp("us", "UTC")),
        pa.field("time", pa.time32("ms")),
        pa.field("day", pa.date32()),
        pa.field("large", pa.decimal128(38, 4)),
        pa.field("tiny", pa.int8()),
        pa.field("flag", pa.bool_()),
        pa.field("real", pa.float64()),
    ]
)
KEY = COLUMNS.names[:4]


def typed(number: int, epoch: int, *, kind: int = INSERT) -> dict[str, object]:
    chance = random.Random(number * 1000 + epoch)
    moment = datetime(2026, 1, 1) + timedelta(microseconds=number)
    values = {
        "local": moment.replace(tzinfo=UTC),
        "time": (moment + timedelta(milliseconds=number)).replace(microsecond=0).time(),
        "day": date(1969, 12, 1) + timedelta(number),
        "large": Decimal(chance.randrange(10**30)).scaleb(-4),
        "tiny": chance.randrange(-128, 128),
        "flag": chance.choice([True, False]),
        "real": chance.random(),
    }
    key = {"text": f"ключ {number} \U0001f600", "money": Decimal(number - 50) / 4, "raw": bytes([number, 0, 255]), "moment": moment}
    chosen = {name: None if kind == DELETE or chance.random() < 0.2 else value for name, value in values.items()}
    return {**key, **chosen, SEQUENCE: 2 * epoch, KIND: kind}


def test_rows_of_every_type_and_of_keys_of_several_columns_stay_as_they_are(tmp_path: Path) -> None:
    lake, care = paimon_tables.open_sink(tmp_path), open_care(tmp_path)
    lake.create(TYPED, COLUMNS, KEY, buckets=3)
    for epoch, numbers in ((1, range(200)), (2, range(100, 150)), (3, range(120, 130))):
        writer = lake.writer(TYPED, str(StagedName(GENERATION, StagedFor.EPOCH, epoch, "a1", "")))
        kind = DELETE if epoch == 3 else INSERT
        schema = lake.columns(TYPED).append(pa.field(KIND, pa.int8(), nullable=False))
        writer.write(pa.RecordBatch.from_pylist([typed(number, epoch, kind=kind) for number in numbers], schema=schema))
        entry = entry_of(lake, TYPED, writer.finish())
        lake.commit(intent_of(epoch, entry), entry)
    before = paimon_tables.read_columns(lake, TYPED)
    assert len(before) == 190
    for epoch, buckets in ((4, 7), (5, 14), (6, 2)):
        staged = [care.redistribute(work, buckets, prefix_of()) for work in rewrites_of(care, TYPED)]
        entry = entry_of(lake, TYPED, *staged, empties=["shop.typed"], reshape=lake.rescale(TYPED, buckets))
        lake.commit(intent_of(epoch, entry), entry)
        assert paimon_tables.read_columns(lake, TYPED) == before
        assert len(care.files(TYPED).buckets) <= buckets == lake.describe(TYPED).buckets
