"""What the engine may rely on of a database (`databases/contract`), over every database. So far the half that is about tables."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.credentials import Secret
from snowmelt.databases import registry
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.patterns import TablePredicate, match_tables
from snowmelt.databases.contract.tables import Catalogue, KeyRange, ReadMark, TableShape
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.errors import SourceDrift, Unavailable
from snowmelt.model.table import TableId
from snowmelt.planning.facts import KeyEnds
from tests.kit.servers import Server

ROWS = 1_000


@dataclass
class Source:
    """A database with one table `orders` of `ROWS` rows, ids from 1 on, and a way to change it."""

    database: Database
    shop: str
    run: Callable[..., None]

    @property
    def orders(self) -> TableId:
        return TableId(self.shop, "orders")

    def wanted(self, ignore_case: bool) -> TablePredicate:
        return match_tables([f"{self.shop}.*"], ignore_case=ignore_case, never=self.database.system_databases)

    def catalogue(self) -> Catalogue:
        return self.database.read_catalogue(self.wanted, era=0)

    def shape(self, name: str = "orders") -> TableShape:
        return self.catalogue().tables[TableId(self.shop, name)]

    def ends(self, shape: TableShape) -> tuple[KeyEnds | None, ReadMark]:
        identity = self.catalogue().server.identity
        return self.database.read_ends(shape, identity=identity, era=0, to_a_change=False)

    def read(self, shape: TableShape, keys: KeyRange | None = None, **more: Any) -> list[pa.RecordBatch]:
        given = {"identity": self.catalogue().server.identity, "era": 0, "visible": None, "to_a_change": False, "in_parts": True} | more
        with contextlib.closing(self.database.read(shape, keys or KeyRange(), **given).batches()) as batches:
            return list(batches)

    def bounds(self, shape: TableShape, ends: KeyEnds, **more: Any) -> list[bytes]:
        """All of them, asked for one after the other."""
        given = {"bytes_max": 1 << 20, "rows_max": 100, "bounds_max": 3} | more
        found: list[bytes] = []
        while True:
            some = self.database.find_bounds(shape, ends, after=found[-1] if found else None, **given)
            assert len(some.highs) <= given["bounds_max"]
            found += some.highs
            if some.complete:
                return found


@pytest.fixture
def source(any_server: Server, database: Callable[[Server], str], tmp_path: Path) -> Source:
    shop = database(any_server)

    def run(*statements: str) -> None:
        with any_server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.format(shop=shop))

    secret = tmp_path / "password"
    secret.write_text(any_server.password)
    options = MySqlOptions(
        host=any_server.host,
        port=any_server.port,
        password=Secret(f"file:{secret}"),
        tls=Tls.DISABLED,
        allow_password_to_unverified_server=True,
    )
    run(
        "CREATE TABLE {shop}.orders (id INT NOT NULL PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO {shop}.orders VALUES " + ", ".join(f"({number}, 'v{number}')" for number in range(1, ROWS + 1)),
    )
    return Source(MySql(options=options), shop, run)


def ids(batches: list[pa.RecordBatch]) -> list[int]:
    return sorted(value for batch in batches for value in batch.column("id").to_pylist())


def test_a_database_and_its_shapes_survive_the_way_to_a_task(source: Source) -> None:
    shape = source.shape()
    database: Database = pickle.loads(pickle.dumps(source.database))
    assert database == source.database
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_a_shape_is_read_back_from_its_record_by_the_kind_of_its_database(source: Source) -> None:
    shape = source.shape()
    assert shape.kind == source.database.kind
    assert registry.shape_of(shape.kind, shape.record()) == shape
    source.run("ALTER TABLE {shop}.orders ADD COLUMN w INT")
    assert source.shape() != shape
    assert source.shape().record() != shape.record()


def test_a_catalogue_lies_between_its_two_places(source: Source) -> None:
    catalogue = source.catalogue()
    assert catalogue.began <= catalogue.ended <= source.database.log_end(era=0)
    assert list(catalogue.tables) == [source.orders]
    shape = catalogue.tables[source.orders]
    assert (shape.id, shape.key, shape.names) == (source.orders, ("id",), ("id", "v"))
    source.run("INSERT INTO {shop}.orders VALUES (-1, 'later')")
    assert source.database.log_end(era=0) > catalogue.ended


def test_an_inspection_finds_the_tables_that_a_catalogue_has(source: Source) -> None:
    source.run("CREATE TABLE {shop}.heap (v INT)")
    looked = source.database.inspect(source.wanted, lambda _: lambda _: False, begun=False)
    assert looked.tables == source.catalogue().tables
    assert looked.identity == source.catalogue().server.identity
    keyless = next(finding for finding in looked.findings if finding.code == "no-key")
    assert keyless.tables == (TableId(source.shop, "heap"),)
    assert not source.database.unfit(looked.tables.values())


def test_a_read_of_a_table_brings_its_rows_in_its_schema(source: Source) -> None:
    shape = source.shape()
    batches = source.read(shape)
    assert ids(batches) == list(range(1, ROWS + 1))
    schema = source.database.schema_of(shape)
    assert all(batch.schema.names == schema.names and batch.schema.types == schema.types for batch in batches)


def test_chunks_cover_every_key_once_and_their_bounds_part_a_batch_as_they_part_the_table(source: Source) -> None:
    shape = source.shape()
    ends, _ = source.ends(shape)
    assert ends is not None
    assert source.database.chunked(shape)
    highs = source.bounds(shape, ends)
    assert highs[-1] == ends.greatest
    assert len(highs) == ROWS // 100
    keys = source.database.keys(shape, pa.Table.from_batches(source.read(shape)).combine_chunks().to_batches()[0])
    assert keys is not None
    assert keys.all().all()
    assert len(keys.all()) == ROWS
    assert not (keys.below(ends.least) | keys.above(ends.greatest)).any()
    read, told = [], np.zeros(ROWS, np.int64)
    for index, high in enumerate(highs):
        low = highs[index - 1] if index else ends.least
        part = ids(source.read(shape, KeyRange(low, high, first=not index)))
        assert 0 < len(part) <= 200
        read += part
        mine = ~keys.above(high) & (keys.above(low) if index else keys.all())
        assert mine.sum() == len(part)
        told += mine
    assert read == list(range(1, ROWS + 1))
    assert told.tolist() == [1] * ROWS


def test_a_table_without_rows_has_no_ends_and_rows_that_come_later_are_beyond_its_mark(source: Source) -> None:
    source.run("TRUNCATE TABLE {shop}.orders")
    ends, mark = source.ends(source.shape())
    assert ends is None
    source.run("INSERT INTO {shop}.orders VALUES (1, 'late')")
    assert source.database.log_end(era=0) > mark.high


def test_what_is_shown_is_in_every_later_read(source: Source) -> None:
    shape = source.shape()
    shown = source.database.newest_visible(shape, era=0)
    read = source.database.read(
        shape, KeyRange(), identity=source.catalogue().server.identity, era=0, visible=shown.place, to_a_change=True, in_parts=False
    )
    assert ids(list(read.batches())) == list(range(1, ROWS + 1))
    if shown.place is not None:
        assert shown.shows(shown.place)
        assert shown.place <= read.mark.high
    # Asked for with `to_a_change`.
    assert read.mark.exact(two_phase=False)
    source.run("INSERT INTO {shop}.orders VALUES (-1, 'later')")
    assert not shown.shows(source.database.log_end(era=0))


def test_a_read_of_another_shape_or_of_another_server_is_refused(source: Source) -> None:
    shape = source.shape()
    with pytest.raises(Unavailable):
        source.read(shape, identity="somebody else")
    source.run("ALTER TABLE {shop}.orders ADD COLUMN w INT")
    with pytest.raises(SourceDrift):
        source.read(shape)


def test_a_read_that_is_left_lets_go_of_its_table(source: Source) -> None:
    shape = source.shape()
    read = source.database.read(
        shape, KeyRange(), identity=source.catalogue().server.identity, era=0, visible=None, to_a_change=False, in_parts=True
    )
    batches = read.batches()
    next(batches)
    batches.close()
    source.run("SET SESSION lock_wait_timeout = 5", "ALTER TABLE {shop}.orders ADD COLUMN w INT")


def test_keys_that_tasks_cannot_compare_are_of_tables_that_are_read_whole(source: Source) -> None:
    source.run("CREATE TABLE {shop}.named (id VARCHAR(20) NOT NULL PRIMARY KEY)", "INSERT INTO {shop}.named VALUES ('a'), ('B'), ('c')")
    shape = source.shape("named")
    assert not source.database.chunked(shape)
    batches = source.read(shape, in_parts=False)
    assert ids(batches) == ["B", "a", "c"]
    assert source.database.keys(shape, batches[0]) is None


def test_a_comparison_counts_each_row_once_and_sums_tell_a_change(source: Source) -> None:
    comparing = source.database.compare(era=0)
    shape = comparing.read_tables([source.orders])[source.orders]
    table = comparing.table(shape, keyed=True)
    parting = table.part()
    before, marks = table.sums(parting, lambda _done, _of: None)
    assert int(before.counts.sum()) == ROWS
    assert marks
    # Hashed on our side, as the lake's rows are.
    batch = pa.Table.from_batches(source.read(shape)).combine_chunks().to_batches()[0]
    keys, rows = table.forms.hash(batch)
    ours = type(before).zero(parting.count)
    ours.add(parting.classes(batch, keys), rows)
    assert not len(before.unequal(ours))
    low = source.database.log_end(era=0)
    source.run("UPDATE {shop}.orders SET v = 'other' WHERE id = 7", "DELETE FROM {shop}.orders WHERE id = 8")
    after, _ = table.sums(parting, lambda _done, _of: None)
    assert 0 < len(before.unequal(after)) <= 2
    changes = table.changes(low, source.database.log_end(era=0))
    assert sorted(changes.counts.tolist()) == [0, 1]
    assert set(changes.keys.tolist()) == {int(keys[6]), int(keys[7])}
