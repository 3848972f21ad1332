"""Every type and its edge values: SELECT, a chunk read and the log give the same value.

A table per family of types. Rows are drawn, inserted, updated and deleted; what plain SELECT prints is mapped to the
canonical value by the few lines of Python below, which know nothing of the decoders. Then the chunk read and the log must
give just that, under each row image and each amount of metadata that a server can write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlTable, TimeAs, TypeOptions, ZeroDates
from snowmelt.errors import SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory
from tests.integration.logs import (
    Change,
    changes,
    mark_by,
    read,
    read_stretches,
    reader_of,
    schemas_of,
    settings,
    stretches,
)
from tests.integration.typed_tables import (
    EVERYTHING,
    FAMILIES,
    Row,
    Trial,
    Typed,
    bits,
    check_rows,
    dates,
    datetimes,
    enum,
    integers,
    labels,
    subsets,
    temporals,
    texts,
    times,
    timestamps,
    to_bool,
    to_date,
    to_datetime,
    to_instant,
    to_integer,
    to_labels,
    to_micros,
    to_same,
    to_wide,
)
from tests.kit.servers import Server

Database = Callable[[Server], str]

SETTINGS: list[tuple[str, str | None]] = [("mysql56", None), ("mysql8", "MINIMAL"), ("mysql8", "FULL")]
SETTINGS += [("mariadb", "NO_LOG"), ("mariadb", "MINIMAL"), ("mariadb", "FULL")]
DRAWN = hypothesis_settings(
    max_examples=6,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)


@pytest.fixture
def trial_of(database: Database) -> Iterator[Callable[..., Trial]]:
    trials: list[Trial] = []

    def make(server: Server, columns: list[Typed], **arguments: Any) -> Trial:
        trials.append(Trial(server, database(server), columns, **arguments))
        return trials[-1]

    yield make
    for trial in trials:
        trial.close()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
@pytest.mark.parametrize(("kind", "metadata"), SETTINGS)
def test_a_value_is_the_same_by_select_by_chunk_and_by_log(
    request: pytest.FixtureRequest,
    trial_of: Callable[..., Trial],
    kind: str,
    metadata: str | None,
    image: str,
    family: Callable[[Server], list[Typed]],
) -> None:
    server: Server = request.getfixturevalue(kind)
    trial = trial_of(server, family(server))
    trial.cursor.execute(f"SET SESSION binlog_row_image = {image}")
    rows = trial.rows()
    masks = st.integers(0, (1 << len(trial.written)) - 1)

    @given(st.lists(st.tuples(rows, rows, masks), min_size=1, max_size=4))
    @DRAWN
    def drawn(given: list[tuple[Row, Row, int]]) -> None:
        check_rows(trial, [row for row, _, _ in given], [(row, mask) for _, row, mask in given], image, metadata)

    with settings(server, **({"binlog_row_metadata": metadata} if metadata else {})):
        edges = trial.edge_rows()
        others = [*edges[1:], edges[0]]
        updates = [(row, EVERYTHING // 3 if number % 2 else EVERYTHING) for number, row in enumerate(others)]
        check_rows(trial, edges, updates, image, metadata)
        drawn()


OPTIONS = [
    TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.STRING),
    TypeOptions(zero_dates=ZeroDates.NULL, time_as=TimeAs.INTERVAL),
    TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.MICROS),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_choices_of_a_user_hold_for_chunk_and_log_alike(
    any_server: Server, trial_of: Callable[..., Trial], options: TypeOptions
) -> None:
    trial = trial_of(any_server, temporals(any_server))
    start = mark_by(trial.cursor)
    trial.insert(trial.edge_rows())
    shown = trial.shown(options)
    assert trial.read(options) == shown
    assert {change.values["id"]: without_key(change) for change in trial.log(start, options=options)} == shown


def without_key(change: Change) -> dict[str, Any]:
    return {name: value for name, value in change.values.items() if name != "id"}


def test_dates_that_became_null_are_counted_alike(any_server: Server, trial_of: Callable[..., Trial]) -> None:
    trial = trial_of(any_server, temporals(any_server))
    start = mark_by(trial.cursor)
    trial.insert(trial.edge_rows())
    counters = ReadCounters()
    list(select(trial.session, trial.chunk(), trial.shape.columns, TypeOptions(), counters=counters))
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    schemas.put(trial.id, Position(0, 0), trial.shape)
    reader = reader_of(any_server, schemas)
    read_stretches(reader, stretches(any_server, start))
    assert reader.counters.nulled_dates == counters.nulled_dates > 100


def test_times_before_mysql_5_6_are_read_as_select_shows_them(mariadb: Server, trial_of: Callable[..., Trial]) -> None:
    columns = [Typed("DATETIME", datetimes(), to_datetime), Typed("TIMESTAMP NULL DEFAULT NULL", timestamps(), to_instant)]
    columns.append(Typed("TIME", times(), to_micros))
    with settings(mariadb, mysql56_temporal_format="OFF"):
        trial = trial_of(mariadb, columns)
    for options in (TypeOptions(), TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.STRING)):
        start = mark_by(trial.cursor)
        trial.insert(trial.edge_rows())
        shown = trial.shown(options)
        assert trial.read(options) == shown
        assert {change.values["id"]: without_key(change) for change in trial.log(start, options=options)} == shown
        trial.delete()


def test_old_times_with_fractions_are_refused_because_the_log_does_not_tell_their_size(
    mariadb: Server, trial_of: Callable[..., Trial]
) -> None:
    with settings(mariadb, mysql56_temporal_format="OFF"):
        trial = trial_of(mariadb, [Typed("DATETIME(3)", datetimes(), to_datetime)])
    start = mark_by(trial.cursor)
    trial.insert(trial.edge_rows())
    with pytest.raises(SourceDrift, match="fractional digits"):
        trial.log(start)


def test_a_table_of_more_than_250_columns_has_its_values(any_server: Server, trial_of: Callable[..., Trial]) -> None:
    kinds = [
        Typed("INT", integers(32, False), to_integer),
        Typed("TINYTEXT CHARACTER SET latin1", texts("latin1", 8), to_same),
        Typed("BIGINT UNSIGNED", integers(64, True), to_wide),
        Typed("BIT(1)", bits(1), to_bool),
        Typed("DATE", dates(), to_date),
    ]
    trial = trial_of(any_server, kinds * 80)
    for image in ("FULL", "MINIMAL"):
        trial.cursor.execute(f"SET SESSION binlog_row_image = {image}")
        edges = trial.edge_rows()
        check_rows(trial, edges, [(row, (1 << 400) // 7) for row in edges[1:]], image, None)


def test_labels_beyond_the_basic_plane_come_from_the_log(request: pytest.FixtureRequest, trial_of: Callable[..., Trial]) -> None:
    for kind in ("mysql8", "mariadb"):
        server: Server = request.getfixturevalue(kind)
        names = ["a", "😀", "x😀y"]
        columns = [Typed(enum(names), labels(names), to_same), Typed(enum(names, "", "SET"), subsets(3), to_labels)]
        trial = trial_of(server, columns)
        with settings(server, binlog_row_metadata="FULL"):
            edges = trial.edge_rows()
            check_rows(trial, edges, [], "FULL", "FULL")


class TestPartialImages:
    """What servers leave out, as `_absent` tells it. Absent is not NULL: in an insert it is the default or what is computed,
    in an update what did not change or is computed."""

    COLUMNS = "id INT PRIMARY KEY, a INT DEFAULT 7, b TEXT, v INT AS (a + 1) VIRTUAL, p INT AS (a + 2) {stored}, n INT"

    @pytest.mark.parametrize(
        ("kind", "image", "inserted", "before", "after"),
        [
            ("mysql8", "FULL", "", "", ""),
            ("mariadb", "FULL", "", "", ""),
            # MySQL holds computed columns that follow from what was written.
            ("mysql8", "MINIMAL", "a b", "a b v p n", "id b n"),
            # MariaDB never holds virtual ones, even where they changed, and always those that are stored.
            ("mariadb", "MINIMAL", "a b v", "a b v p n", "id b v n"),
            ("mysql8", "NOBLOB", "b", "b", "b"),
            ("mariadb", "NOBLOB", "b", "b", "b"),
        ],
    )
    def test_what_an_image_lacks_is_named(
        self, request: pytest.FixtureRequest, database: Database, kind: str, image: str, inserted: str, before: str, after: str
    ) -> None:
        server: Server = request.getfixturevalue(kind)
        name = database(server)
        with server.connect(database=name) as connection, connection.cursor() as cursor:
            stored = "STORED" if kind == "mysql8" else "PERSISTENT"
            cursor.execute(f"CREATE TABLE t ({self.COLUMNS.format(stored=stored)})")
            schemas = schemas_of(server, name)
            start = mark_by(cursor)
            cursor.execute(f"SET SESSION binlog_row_image = {image}")
            cursor.execute("INSERT INTO t (id, n) VALUES (1, NULL)")
            cursor.execute("UPDATE t SET a = 8 WHERE id = 1")
            cursor.execute("DELETE FROM t")
        found = changes(read(server, start, schemas))
        lacks = [change.absent for change in found]
        assert lacks == [frozenset(names.split()) for names in (inserted, before, after, before)]
        assert "n" in found[0].values, "a NULL that was written is a NULL"
        assert found[0].values["n"] is None
