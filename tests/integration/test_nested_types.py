"""Any nested types and values: pyfluss and Fluss' server write them, a tiering service brings them to the lake, and each reader shows them.

The types are drawn at random, the same in each run. Tables with a key get their rows from the server, which makes its log of them by
itself; pyfluss writes those of log tables. Rounds read in this process, as tasks on Spark do; Spark reads the lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import strategies as st

import snowmelt
from snowmelt.engine.tiering import split_job
from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema
from snowmelt.fluss.server import FlussServer
from snowmelt.model.table import TableId
from tests.integration.fluss_reading import Reading
from tests.integration.java_paimon import JavaPaimon, java_paimon
from tests.integration.tiering import LAKE, RunningTiering, lake_table, settings
from tests.integration.unions import planned, read
from tests.kit.fluss_bytes import seen, shown
from tests.kit.fluss_nested import kinds, values
from tests.kit.fluss_raw import create_table, put_rows
from tests.kit.fluss_servers import Tables

TABLES = 3
ROWS = 6
INSTANTS = (Root.TIMESTAMP, Root.TIMESTAMP_LTZ)
ID = Column(0, "id", FlussType(Root.INTEGER, nullable=False))
Drawn = tuple[tuple[FlussType, ...], list[list[Any]]]


def parts_of(kind: FlussType) -> Iterator[FlussType]:
    yield kind
    for child in kind.children:
        yield from parts_of(child)


def has_plain_keys(kind: FlussType) -> bool:
    """Spark has no maps in the keys of maps."""
    return not any(part.root is Root.MAP and part.children[0].nested for part in parts_of(kind))


def with_distinct_keys(kind: FlussType, value: Any) -> Any:
    """A value whose maps have each key once, as maps of Spark and of Java do."""
    if value is None:
        return None
    match kind.root:
        case Root.ARRAY:
            return [with_distinct_keys(kind.children[0], element) for element in value]
        case Root.ROW:
            return [with_distinct_keys(child, part) for child, part in zip(kind.children, value, strict=True)]
        case Root.MAP:
            found = {shown(kind.children[0], key): (key, with_distinct_keys(kind.children[1], one)) for key, one in value}
            return list(found.values())
        case _:
            return value


@st.composite
def tables(draw: st.DrawFn) -> Drawn:
    """Types of columns, and values of each row."""
    nested = kinds.filter(lambda kind: kind.nested and has_plain_keys(kind))
    types = tuple(draw(st.lists(nested, min_size=3, max_size=3)))
    row = st.tuples(*(values(kind).map(lambda value, kind=kind: with_distinct_keys(kind, value)) for kind in types)).map(list)
    return types, draw(st.lists(row, min_size=ROWS, max_size=ROWS))


def drawn() -> list[Drawn]:
    found: list[Drawn] = []

    @seed(15)
    @hypothesis.settings(
        max_examples=TABLES, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(tables())
    def collect(table: Drawn) -> None:
        found.append(table)

    collect()
    return found


def client_type(kind: FlussType) -> pa.DataType:
    match kind.root:
        case Root.ARRAY:
            return pa.list_(client_type(kind.children[0]))
        case Root.MAP:
            return pa.map_(*map(client_type, kind.children))
        case Root.ROW:
            return pa.struct([(name, client_type(child)) for name, child in zip(kind.names, kind.children, strict=True)])
        case _:
            return kind.wire


def client_value(kind: FlussType, value: Any) -> Any:
    """A value for an array of `client_type`."""
    if value is None:
        return None
    match kind.root:
        case Root.ARRAY:
            return [client_value(kind.children[0], element) for element in value]
        case Root.MAP:
            return [(client_value(kind.children[0], key), client_value(kind.children[1], one)) for key, one in value]
        case Root.ROW:
            return {name: client_value(child, part) for name, child, part in zip(kind.names, kind.children, value, strict=True)}
        case _:
            return shown(kind, value)


class Table:
    """One table and its rows."""

    def __init__(self, server: FlussServer, tables: Tables, path: TableId, drawn: Drawn, *, keyed: bool) -> None:
        types, rows = drawn
        columns = (ID, *(Column(place, f"c{place}", kind) for place, kind in enumerate(types, 1)))
        self.path = path
        self.schema = Schema(1, columns, ("id",) if keyed else ())
        self.rows = [[number, *row] for number, row in enumerate(rows)]
        self.keyed = keyed
        self.written: list[list[Any]] = []
        self._server = server
        self._tables = tables
        create_table(server, path, self.schema, **LAKE)
        self._reading = Reading(server, path)

    def write(self, rows: list[list[Any]]) -> None:
        self.written += rows
        if self.keyed:
            put_rows(self._server, self._reading.table.table, self.schema, rows)
            return
        arrays = [
            pa.array([client_value(column.type, row[place]) for row in rows], client_type(column.type))
            for place, column in enumerate(self.schema.columns)
        ]
        self._tables.append(self.path, pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self.schema.columns]))

    def wait_for_snapshot(self) -> None:
        if self.keyed:
            self._reading.snapshots()

    def is_in_the_lake(self) -> bool:
        return lake_table(self._server.warehouse, self.path).num_rows == len(self.written)

    def check(self, found: pa.Table, columns: Iterator[tuple[int, Column]] | None = None) -> None:
        by_id = found.sort_by("id")
        for place, column in columns or enumerate(self.schema.columns):
            expected = [shown(column.type, row[place]) for row in self.written]
            assert seen(by_id.column(column.name).combine_chunks()) == expected, (self.path, column)

    def check_java(self, java: JavaPaimon) -> None:
        """Timestamps finer than microseconds lie in the files in a form that Paimon's Java does not take."""
        places = [place for place, _ in self.columns_without(lambda kind: kind.root in INSTANTS and kind.precision > 6)]
        names = [self.schema.columns[place].name for place in places]
        by_java = sorted(java.read(self._server.warehouse, f"{self.path.database}.{self.path.name}", names), key=lambda row: row[0])
        for at, place in enumerate(places):
            kind = self.schema.columns[place].type
            assert [shown(kind, row[at]) for row in by_java] == [shown(kind, row[place]) for row in self.written], (self.path, kind)

    def check_spark(self, spark: Any) -> None:
        """Times of day are numbers in Spark, and all timestamps have microseconds."""
        found = snowmelt.read(spark, str(self.path), warehouse=str(self._server.warehouse)).toArrow()
        self.check(found, self.columns_without(lambda kind: kind.root is Root.TIME or (kind.root in INSTANTS and kind.precision != 6)))

    def columns_without(self, unlike: Any) -> Iterator[tuple[int, Column]]:
        for place, column in enumerate(self.schema.columns):
            if not any(map(unlike, parts_of(column.type))):
                yield place, column


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPaimon]:
    with java_paimon(tmp_path_factory.mktemp("java")) as talks:
        yield talks


@pytest.mark.timeout(400)
def test_values_of_any_nested_type_are_the_same_for_every_reader(
    fluss: FlussServer, fluss_tables: Tables, spark: Any, java: JavaPaimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_job, "run_on_spark", lambda _, tasks, run: [run(task) for task in tasks])
    database = fluss_tables.make().database
    made = [
        Table(fluss, fluss_tables, TableId(database, f"nested_{number}_{'keyed' if keyed else 'log'}"), one, keyed=keyed)
        for number, one in enumerate(drawn())
        for keyed in (True, False)
    ]
    assert len(made) == 2 * TABLES
    half = ROWS // 2
    for table in made:
        table.write(table.rows[:half])
    for table in made:
        table.wait_for_snapshot()
    with RunningTiering(None, settings(fluss)) as running:
        running.wait_for(lambda: all(table.is_in_the_lake() for table in made))
    for table in made:
        table.write(table.rows[half:])
        parsed, tasks = planned(fluss, table.path)
        assert [task for task in tasks if task.bucket], "nothing is left for the union read"
        table.check(read(parsed, tasks))
    with RunningTiering(None, settings(fluss)) as running:
        running.wait_for(lambda: all(table.is_in_the_lake() for table in made))
    for table in made:
        table.check(lake_table(fluss.warehouse, table.path))
        table.check_java(java)
        table.check_spark(spark)
