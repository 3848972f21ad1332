"""The log as the servers really write it: every form of events, transactions, XA, schema changes, and what must stop us."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.ddl import AlterColumns, CreateTable, DropTable, RenameTable, Rewrites, Truncate
from snowmelt.databases.mysql.log.decode import LogItem, LogReader, LogServer
from snowmelt.databases.mysql.log.events import FLAG_IGNORABLE, Event, MariaDbGtid, MySqlGtid
from snowmelt.databases.mysql.read.bounds import plan_chunks
from snowmelt.databases.mysql.read.reads import read_chunk, read_extent
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.engine.log import reading as stored_log
from snowmelt.errors import Corrupt, SourceDrift, TableStuck
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.limits import Limits
from snowmelt.relay.prefilter import PreFilter
from tests.integration.logs import (
    Change,
    Stretch,
    batches,
    changes,
    handmade_schemas,
    mark,
    mark_by,
    open_session,
    read,
    read_stretches,
    reader_of,
    schema_changes,
    schemas_of,
    settings,
    stretches,
    table_map_body,
    write_rows_body,
)
from tests.kit import streams
from tests.kit.servers import Fresh, NotRun, Server, give_up, start_mysql8

Database = Callable[[Server], str]


class Scene:
    """A database with a table `t (id, v)`, the shapes in force when the log begins, and a connection."""

    def __init__(self, server: Server, name: str, *, columns: str = "id INT PRIMARY KEY, v VARCHAR(100)", options: str = "") -> None:
        self.server, self.name = server, name
        self.connection = server.connect(database=name)
        self.cursor = self.connection.cursor()
        self.run(f"CREATE TABLE t ({columns}) {options}")
        self.again()

    def again(self) -> None:
        """The log of this scene begins here."""
        self.start = mark_by(self.cursor)
        self.schemas = schemas_of(self.server, self.name)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def captured(self, table: TableId) -> bool:
        return table.database == self.name

    def stretches(self) -> list[Stretch]:
        return stretches(self.server, self.start)

    def kinds(self) -> set[int]:
        return {kind for stretch in self.stretches() for kind in stretch.kinds()}

    def items(self, **arguments: Any) -> list[LogItem]:
        return read(self.server, self.start, self.schemas, **({"captured": self.captured} | arguments))

    def changes(self, **arguments: Any) -> list[Change]:
        return changes(self.items(**arguments))

    def told(self, **arguments: Any) -> list[tuple[Any, ...]]:
        """Each change as its operation and values."""
        return tell(self.changes(**arguments))


@contextmanager
def unnamed(server: Server) -> Iterator[None]:
    """Meanwhile the log names no labels. MySQL 5.6 never does."""
    if server.version < (8,):
        yield
        return
    with settings(server, binlog_row_metadata="MINIMAL"):
        yield


def chunk_rows(server: Server, table: TableId) -> list[dict[str, Any]]:
    """What a chunk of the whole table holds."""
    with open_session(server) as session:
        shape, identity = read_tables(session, [table])[table], session.server.identity
        extent, _ = read_extent(session, shape, identity=identity, era=0)
        found = []
        for chunk in plan_chunks(session, shape, extent, rows_per_chunk=100):
            rows = read_chunk(session, shape, chunk, TypeOptions(), identity=identity, era=0)
            found += [row for batch in rows.batches() for row in batch.to_pylist()]
        return found


def tell(found: list[Change]) -> list[tuple[Any, ...]]:
    return [(change.operation, *change.values.values()) for change in found]


@pytest.fixture
def scene(database: Database) -> Iterator[Callable[..., Scene]]:
    scenes: list[Scene] = []

    def make(server: Server, **arguments: Any) -> Scene:
        scenes.append(Scene(server, database(server), **arguments))
        return scenes[-1]

    yield make
    for made in scenes:
        made.connection.close()


MakeScene = Callable[..., Scene]


@pytest.fixture(scope="module")
def anonymous_mysql8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without GTIDs, which forbid to mix engines in a transaction."""
    try:
        server = start_mysql8(tmp_path_factory.mktemp("anonymous"), gtid_mode="OFF", enforce_gtid_consistency="OFF")
    except NotRun as reason:
        give_up(reason)
    yield server
    server.discard()


@pytest.fixture(params=["mariadb", "anonymous_mysql8", "mysql56"])
def mixing_server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


WORK = [
    "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, NULL)",
    "UPDATE t SET v = 'II' WHERE id = 2",
    "DELETE FROM t WHERE id = 1",
]
PAD = "REPEAT('x', 90)"
SAVEPOINT_STORIES = {
    "a temporary table is made": [
        "BEGIN", f"INSERT INTO t VALUES (10, {PAD})", "SAVEPOINT `S ``x`", "CREATE TEMPORARY TABLE another (x INT)",
        f"INSERT INTO t VALUES (11, {PAD})", "ROLLBACK TO `s ``X`", f"INSERT INTO t VALUES (12, {PAD})", "COMMIT",
    ],
    "a temporary table is dropped": [
        "BEGIN", "INSERT INTO t VALUES (20, 'kept')", "SAVEPOINT s", "INSERT INTO t VALUES (21, 'undone')", "DROP TEMPORARY TABLE scratch",
        "ROLLBACK TO s", "INSERT INTO t VALUES (22, 'kept')", "COMMIT",
    ],
    "savepoints inside of others": [
        "BEGIN", "INSERT INTO t VALUES (30, 'kept')", "SAVEPOINT a", "INSERT INTO m VALUES (30)", "INSERT INTO t VALUES (31, 'undone')",
        "SAVEPOINT b", "INSERT INTO t VALUES (32, 'undone')", "ROLLBACK TO b", "INSERT INTO t VALUES (33, 'undone')", "ROLLBACK TO a",
        "INSERT INTO t VALUES (34, 'kept')", "RELEASE SAVEPOINT a", "COMMIT",
    ],
    "a name that is used again": [
        "BEGIN", "INSERT INTO t VALUES (40, 'kept')", "INSERT INTO m VALUES (40)", "SAVEPOINT `é`", "INSERT INTO t VALUES (41, 'kept')",
        "SAVEPOINT e", "INSERT INTO t VALUES (42, 'undone')", "ROLLBACK TO `É`", "INSERT INTO t VALUES (43, 'kept')", "COMMIT",
    ],
    "many rows": [
        "BEGIN", "INSERT INTO t VALUES (50, 'kept')", "SAVEPOINT s", "INSERT INTO m VALUES (50)",
        *(f"INSERT INTO t VALUES ({1000 + number}, {PAD})" for number in range(80)), "ROLLBACK TO s",
        *(f"INSERT INTO t VALUES ({2000 + number}, {PAD})" for number in range(80)), "COMMIT",
    ],
    "two phases": [
        "XA START 'x'", "INSERT INTO t VALUES (60, 'kept')", "SAVEPOINT s", "INSERT INTO m VALUES (60)",
        "INSERT INTO t VALUES (61, 'undone')",
        "ROLLBACK TO s", "INSERT INTO t VALUES (62, 'kept')", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'",
    ],
    "all of it": [
        "BEGIN", "SAVEPOINT s", "INSERT INTO m VALUES (70)", "INSERT INTO t VALUES (71, 'undone')", "ROLLBACK TO s",
        "INSERT INTO t VALUES (72, 'kept')", "SAVEPOINT s", "INSERT INTO m VALUES (73)", "INSERT INTO t VALUES (74, 'undone')",
        "ROLLBACK TO s", "COMMIT",
    ],
}  # fmt: skip
TOLD = [
    ("insert", 1, "one"),
    ("insert", 2, "two"),
    ("insert", 3, None),
    ("before", 2, "two"),
    ("after", 2, "II"),
    ("delete", 1, "one"),
]


class TestForms:
    """The same rows, whatever form the events have."""

    def test_rows_as_each_server_writes_them_by_itself(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run(*WORK)
        rows = {Event.WRITE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.DELETE_ROWS_V1}
        if any_server.kind == "mysql":
            rows = {Event.WRITE_ROWS, Event.UPDATE_ROWS, Event.DELETE_ROWS}
        assert rows <= s.kinds()
        assert s.told() == TOLD

    def test_rows_of_version_one_on_mysql_8(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        with settings(mysql8, log_bin_use_v1_row_events=1):
            s.run(*WORK)
        assert {Event.WRITE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.DELETE_ROWS_V1} <= s.kinds()
        assert s.told() == TOLD

    def test_rows_of_version_one_without_checksums_and_gtids_on_mysql_5_6(self, fresh_mysql56: Fresh, scene: MakeScene) -> None:
        server = fresh_mysql56(log_bin_use_v1_row_events=1, binlog_checksum="NONE")
        s = scene(server)
        s.run(*WORK)
        assert {Event.WRITE_ROWS_V1, Event.UPDATE_ROWS_V1, Event.DELETE_ROWS_V1} <= s.kinds()
        assert s.stretches()[0].checksum_bytes == 0
        assert s.told() == TOLD

    def test_compressed_rows_and_statements_of_mariadb(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb)
        long = "x" * 90
        with settings(mariadb, log_bin_compress="ON", log_bin_compress_min_len=10):
            s.run(
                *WORK,
                f"UPDATE t SET v = '{long}'",
                "ALTER TABLE t ADD COLUMN w INT DEFAULT 4",
                "INSERT INTO t VALUES (9, 'n', 5)",
            )
        s.run("INSERT INTO t VALUES (10, 'plain', 6)")
        compressed = {Event.QUERY_COMPRESSED, Event.WRITE_ROWS_COMPRESSED_V1, Event.UPDATE_ROWS_COMPRESSED_V1}
        assert compressed | {Event.DELETE_ROWS_COMPRESSED_V1} <= s.kinds()
        told = s.told()
        assert told[:6] == TOLD
        assert told[-2:] == [("insert", 9, "n", 5), ("insert", 10, "plain", 6)]
        assert ("after", 2, long) in told

    def test_positions_are_the_same_whether_compressed_or_not(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb)
        ends = []
        with settings(mariadb, log_bin_compress="ON", log_bin_compress_min_len=10):
            for number in range(3):
                s.run(
                    "BEGIN",
                    f"INSERT INTO t VALUES ({number}, 'a long enough text')",
                    f"DELETE FROM t WHERE id = {number}",
                    "COMMIT",
                )
                ends += [mark_by(s.cursor).offset] * 2
        assert [change.position for change in s.changes()] == ends

    def test_compressed_transactions_of_mysql_8(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("INSERT INTO t VALUES (0, 'plain')", "SET SESSION binlog_transaction_compression = ON", *WORK)
        end = mark_by(s.cursor).offset
        s.run("SET SESSION binlog_transaction_compression = OFF", "INSERT INTO t VALUES (9, 'plain')")
        assert Event.TRANSACTION_PAYLOAD in s.kinds()
        found = s.changes()
        assert tell(found) == [("insert", 0, "plain"), *TOLD, ("insert", 9, "plain")]
        assert found[-2].position == end

    def test_logs_of_a_server_without_checksums(self, fresh_mariadb: Fresh, scene: MakeScene) -> None:
        server = fresh_mariadb(binlog_checksum="NONE")
        s = scene(server)
        s.run(*WORK)
        assert s.stretches()[0].checksum_bytes == 0
        assert s.told() == TOLD

    def test_checksums_may_change_from_file_to_file(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run(WORK[0])
        # The change begins a new file.
        with settings(any_server, binlog_checksum="NONE"):
            s.run(WORK[1])
        s.run(WORK[2])
        assert [stretch.checksum_bytes for stretch in s.stretches()] == [4, 0, 4]
        assert s.told() == TOLD

    @pytest.mark.parametrize("annotated", ["ON", "OFF"])
    def test_statements_beside_the_rows_change_nothing(self, mariadb: Server, scene: MakeScene, annotated: str) -> None:
        s = scene(mariadb)
        s.run(f"SET SESSION binlog_annotate_row_events = {annotated}", *WORK)
        assert (Event.ANNOTATE in s.kinds()) == (annotated == "ON")
        assert s.told() == TOLD

    def test_queries_beside_the_rows_of_mysql_change_nothing(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("SET SESSION binlog_rows_query_log_events = ON", *WORK)
        assert Event.ROWS_QUERY in s.kinds()
        assert s.told() == TOLD

    def test_a_whole_file_from_its_beginning(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("FLUSH BINARY LOGS")
        s.again()
        s.start = Position(s.start.file, 4)
        s.run(*WORK, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (7, 'next file')")
        assert s.told() == [*TOLD, ("insert", 7, "next file")]

    def test_a_row_of_40_mb_comes_whole(self, any_server: Server, scene: MakeScene) -> None:
        # InnoDB's log would have to be larger for it.
        s = scene(any_server, columns="id INT PRIMARY KEY, v LONGBLOB", options="ENGINE = MyISAM")
        half = bytes(range(256)) * (20 << 12)
        s.run("INSERT INTO t VALUES (1, 'small')")
        s.run("SET @half = REPEAT(x'" + bytes(range(256)).hex() + f"', {20 << 12})")
        s.run("INSERT INTO t VALUES (2, CONCAT(@half, @half)), (3, 'small')", "UPDATE t SET v = 'gone' WHERE id = 2")
        told = s.told()
        assert [row[:2] for row in told] == [("insert", 1), ("insert", 2), ("insert", 3), ("before", 2), ("after", 2)]
        assert told[1][2] == half * 2 == told[3][2]
        with pytest.raises(SourceDrift, match="larger than the limit"):
            s.told(limits=Limits(row_bytes_max=30 << 20))

    def test_no_row_of_a_compressed_transaction_is_taken_for_an_event(self, mysql8: Server, scene: MakeScene) -> None:
        """A transaction that no window holds is looked for in the segment that all pieces are read into. Rows that look like an event's
        header where the first window ends were once taken for the transaction's first event."""
        s = scene(mysql8, columns="id INT PRIMARY KEY, v LONGBLOB")
        chance = random.Random(12)
        rows = []
        for number in range(4):
            made = bytearray(chance.randbytes(12 << 20))
            sign = b"\x05\0\0\0" * 200
            at = (8 << 20) - 400
            made[at : at + 800] = sign[number:] + sign[:number]
            rows.append(bytes(made))
        with settings(mysql8, innodb_redo_log_capacity=512 << 20):
            s.run("SET SESSION binlog_transaction_compression = ON")
            for number, value in enumerate(rows):
                s.cursor.execute("INSERT INTO t VALUES (%s, %s)", (number, value))
        (stretch,) = s.stretches()
        assert stretch.kinds().count(Event.TRANSACTION_PAYLOAD) == 4
        named = [str(batch.transactions.gtid(0)) for batch in batches(s.items())]
        assert len(set(named)) == 4

        def read_into(at: int, into: Bytes) -> None:
            into[:] = stretch.data[at : at + len(into)]

        limits = Limits()
        log = stored_log.Stretch(read_into, 0, len(stretch.data), PreFilter(limits.prefilter_bytes), limits)
        reader = reader_of(mysql8, s.schemas, captured=s.captured)
        found = batches(reader.read_log(log, file=stretch.file, start=stretch.start, checksum_bytes=stretch.checksum_bytes))
        assert [str(batch.transactions.gtid(0)) for batch in found] == named
        assert [value for batch in found for value in batch.rows.column("v").to_pylist()] == rows

    def test_a_transaction_of_60_mb_has_one_position(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server, columns="id INT PRIMARY KEY, v MEDIUMTEXT")
        s.run("BEGIN")
        for number in range(30):
            s.run(f"INSERT INTO t VALUES ({number}, REPEAT('{number % 10}', 2000000))")
        s.run("COMMIT")
        end = mark_by(s.cursor)
        found = 0
        for batch in batches(s.items()):
            assert set(batch.rows.column("_position").to_pylist()) == {end.offset}
            keys, texts = batch.rows.column("id").to_pylist(), batch.rows.column("v").to_pylist()
            assert all(text == str(key % 10) * 2_000_000 for key, text in zip(keys, texts, strict=True))
            found += len(keys)
        assert found == 30


class TestPartialJson:
    """MySQL logs what changed in a document instead of the document."""

    UPDATES = (
        "UPDATE t SET v = JSON_SET(v, '$.a', 2, '$.b[1]', 'x') WHERE id = 1",
        "UPDATE t SET v = JSON_REMOVE(v, '$.a'), w = JSON_REPLACE(w, '$[0]', 5) WHERE id IN (1, 2)",
        "UPDATE t SET w = JSON_SET(w, '$[0]', 7) WHERE id = 1",
        "UPDATE t SET n = n + 1",
        "UPDATE t SET v = JSON_ARRAY_APPEND(v, '$.b', 3), w = NULL WHERE id = 1",
    )

    def documents(self, s: Scene) -> None:
        document = """'{"a": 1, "b": [1, 2, 3], "long": "%s"}'""" % ("x" * 200)
        s.run("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        rows = [f"(1, {document}, 1, '[1, 2, 3]')", f"(2, {document}, 1, '[\"long text\", 2]')", "(3, NULL, 1, NULL)"]
        s.run(f"INSERT INTO t VALUES {', '.join(rows)}")

    def check(self, s: Scene) -> None:
        """The log's changes, replayed, are what SELECT showed after each statement."""
        shown = []
        for statement in self.UPDATES:
            s.run(statement, "SELECT id, v, n, w FROM t ORDER BY id")
            shown.append({key: tuple(rest) for key, *rest in s.cursor.fetchall()})
        held: dict[int, tuple[Any, ...]] = {}
        seen = []
        last = -1
        for change in s.changes():
            if change.position != last and last >= 0:
                seen.append(dict(held))
            last = change.position
            row = (change.values["v"], change.values["n"], change.values["w"])
            if change.operation == "before":
                assert held[change.values["id"]] == row
            else:
                held[change.values["id"]] = row
        assert [*seen[1:], held] == shown

    def test_differences_make_the_whole_document(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8, columns="id INT PRIMARY KEY, v JSON, n INT, w JSON")
        self.documents(s)
        self.check(s)
        assert Event.PARTIAL_UPDATE_ROWS in s.kinds()

    def test_differences_in_compressed_transactions(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8, columns="id INT PRIMARY KEY, v JSON, n INT, w JSON")
        s.run("SET SESSION binlog_transaction_compression = ON")
        self.documents(s)
        self.check(s)
        assert Event.TRANSACTION_PAYLOAD in s.kinds()

    def test_differences_without_the_document_stop_us(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8, columns="id INT PRIMARY KEY, v JSON, n INT, w JSON")
        self.documents(s)
        s.run("SET SESSION binlog_row_image = MINIMAL", self.UPDATES[0])
        assert Event.PARTIAL_UPDATE_ROWS in s.kinds()
        with pytest.raises(SourceDrift, match="JSON"):
            s.told()


class TestXa:
    """A prepared transaction is nothing until its commit, whose position its rows have."""

    def test_rows_come_with_the_commit_and_not_before(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("XA START 'one'", "INSERT INTO t VALUES (1, 'xa')", "XA END 'one'", "XA PREPARE 'one'")
        assert s.told() == []
        with any_server.connect(database=s.name) as other, other.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (2, 'between')")
        s.run("XA COMMIT 'one'")
        end = mark_by(s.cursor)
        found = s.changes()
        assert tell(found) == [("insert", 2, "between"), ("insert", 1, "xa")]
        assert found[1].position == end.offset

    def test_rows_that_were_rolled_back_never_come(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("XA START 'a', 'b', 7", "INSERT INTO t VALUES (1, 'xa')", "XA END 'a', 'b', 7", "XA PREPARE 'a', 'b', 7")
        s.run("XA ROLLBACK 'a', 'b', 7", "INSERT INTO t VALUES (2, 'behind')")
        reader = reader_of(any_server, s.schemas, captured=s.captured)
        assert tell(changes(read_stretches(reader, s.stretches()))) == [("insert", 2, "behind")]
        assert not reader.held

    def test_a_commit_in_another_file_and_another_read(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("XA START 'f'", "INSERT INTO t VALUES (1, 'xa')", "UPDATE t SET v = 'XA'", "XA END 'f'", "XA PREPARE 'f'")
        reader = reader_of(any_server, s.schemas, captured=s.captured)
        assert changes(read_stretches(reader, s.stretches())) == []
        between = mark(any_server)
        with any_server.connect() as other, other.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
        s.run("XA COMMIT 'f'")
        end = mark_by(s.cursor)
        found = changes(read_stretches(reader, stretches(any_server, between)))
        assert tell(found) == [("insert", 1, "xa"), ("before", 1, "xa"), ("after", 1, "XA")]
        assert {change.position for change in found} == {end.offset}
        assert not reader.held

    def test_compressed_rows_of_mariadb(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb)
        with settings(mariadb, log_bin_compress="ON", log_bin_compress_min_len=10):
            s.run("XA START 'c'", "INSERT INTO t VALUES (1, 'compressed')", "XA END 'c'", "XA PREPARE 'c'", "XA COMMIT 'c'")
        assert Event.WRITE_ROWS_COMPRESSED_V1 in s.kinds()
        found = s.changes()
        assert tell(found) == [("insert", 1, "compressed")]
        assert found[0].position == mark_by(s.cursor).offset

    def test_compressed_transactions_of_mysql_8(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("SET SESSION binlog_transaction_compression = ON")
        s.run("XA START 'c'", "INSERT INTO t VALUES (1, 'one')", "XA END 'c'", "XA PREPARE 'c'", "XA COMMIT 'c'")
        s.run("XA START 'p'", "INSERT INTO t VALUES (2, 'two')", "XA END 'p'", "XA COMMIT 'p' ONE PHASE")
        assert s.told() == [("insert", 1, "one"), ("insert", 2, "two")]

    def test_one_phase(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("XA START 'p'", "INSERT INTO t VALUES (1, 'xa')", "XA END 'p'", "XA COMMIT 'p' ONE PHASE")
        end = mark_by(s.cursor)
        found = s.changes()
        assert tell(found) == [("insert", 1, "xa")]
        assert found[0].position == end.offset

    @pytest.mark.parametrize("format_id", [0, 2**31 - 1, 2**31, 2**32 - 1])
    def test_a_format_of_any_size_finds_its_prepared_rows(self, any_server: Server, scene: MakeScene, format_id: int) -> None:
        if any_server.kind == "mariadb":
            format_id %= 2**31  # It takes no greater one.
        s = scene(any_server)
        name = f"'a', 'b', {format_id}"
        s.run(f"XA START {name}", "INSERT INTO t VALUES (1, 'xa')", f"XA END {name}", f"XA PREPARE {name}", f"XA COMMIT {name}")
        reader = reader_of(any_server, s.schemas, captured=s.captured)
        assert tell(changes(read_stretches(reader, s.stretches()))) == [("insert", 1, "xa")]
        assert not reader.held

    def test_several_at_once_are_kept_apart(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        names = ["'g', 'one'", "'g', 'two'", "x'00ff27', x'', 3"]
        with ExitStack() as stack:
            cursors = [stack.enter_context(any_server.connect(database=s.name)).cursor() for _ in names]
            for number, (name, cursor) in enumerate(zip(names, cursors, strict=True)):
                cursor.execute(f"XA START {name}")
                cursor.execute(f"INSERT INTO t VALUES ({number}, 'xa')")
                cursor.execute(f"XA END {name}")
                cursor.execute(f"XA PREPARE {name}")
            cursors[2].execute(f"XA COMMIT {names[2]}")
            cursors[1].execute(f"XA ROLLBACK {names[1]}")
            cursors[0].execute(f"XA COMMIT {names[0]}")
        assert s.told() == [("insert", 2, "xa"), ("insert", 0, "xa")]

    def test_a_prepared_transaction_outlives_its_server(self, fresh_mysql8: Fresh, scene: MakeScene) -> None:
        server = fresh_mysql8()
        s = scene(server)
        s.run("XA START 'r'", "INSERT INTO t VALUES (1, 'xa')", "XA END 'r'", "XA PREPARE 'r'")
        server.restart()
        with server.connect(database=s.name) as other, other.cursor() as cursor:
            cursor.execute("XA COMMIT 'r'")
        assert s.told() == [("insert", 1, "xa")]

    def test_a_commit_of_what_was_prepared_before_stops_us(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("XA START 'old'", "INSERT INTO t VALUES (1, 'xa')", "XA END 'old'", "XA PREPARE 'old'")
        s.start = mark_by(s.cursor)
        s.run("XA COMMIT 'old'")
        with pytest.raises(SourceDrift, match="not captured"):
            s.told()

    def test_statements_of_other_tables_inside_change_nothing(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE other (id INT)")
        s.start = mark_by(s.cursor)
        s.run("XA START 's'", "INSERT INTO t VALUES (1, 'xa')", "SAVEPOINT x", "DELETE FROM t", "ROLLBACK TO x", "XA END 's'")
        s.run("XA PREPARE 's'", "XA COMMIT 's'")
        assert s.told() == [("insert", 1, "xa")]

    @pytest.mark.parametrize("limit", [100, 1 << 20])
    def test_what_is_held_is_bounded(self, mysql8: Server, scene: MakeScene, limit: int) -> None:
        s = scene(mysql8)
        s.run("XA START 'l'", "INSERT INTO t VALUES (1, REPEAT('x', 100))", "XA END 'l'", "XA PREPARE 'l'", "XA COMMIT 'l'")
        if limit == 100:
            with pytest.raises(SourceDrift, match="larger than the limit"):
                s.told(limits=Limits(held_bytes_max=limit))
        else:
            assert len(s.told(limits=Limits(held_bytes_max=limit))) == 1


class TestTransactions:
    def test_every_row_has_the_end_of_its_commit(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE u (id INT PRIMARY KEY)")
        s.again()
        ends = []
        for number in range(5):
            s.run(
                "BEGIN",
                f"INSERT INTO t VALUES ({number}, 'a')",
                f"INSERT INTO u VALUES ({number})",
                "UPDATE t SET v = 'b'",
                "COMMIT",
            )
            ends.append(mark_by(s.cursor).offset)
        found = s.changes()
        for end in ends:
            mine = [change for change in found if change.position == end]
            assert {change.table.name for change in mine} == {"t", "u"}
            events = {(change.table.name, change.operation): change.event for change in mine}
            assert events["t", "insert"] < events["u", "insert"] < events["t", "after"]
            assert len(mine) == 4
        assert {change.position for change in found} == set(ends)

    def test_transactions_at_once_each_have_their_own_position(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        with any_server.connect(database=s.name, autocommit=False) as other, other.cursor() as cursor:
            s.run("BEGIN", "INSERT INTO t VALUES (1, 'first')")
            cursor.execute("INSERT INTO t VALUES (2, 'second')")
            s.run("INSERT INTO t VALUES (3, 'first')")
            cursor.execute("INSERT INTO t VALUES (4, 'second')")
            other.commit()
            second = mark(any_server).offset
            s.run("COMMIT")
        first = mark_by(s.cursor).offset
        assert [(change.values["id"], change.position) for change in s.changes()] == [
            (2, second),
            (4, second),
            (1, first),
            (3, first),
        ]

    def test_what_was_rolled_back_to_a_savepoint_never_comes(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("BEGIN", "INSERT INTO t VALUES (1, 'kept')", "SAVEPOINT a", "INSERT INTO t VALUES (2, 'undone')", "SAVEPOINT `b c`")
        s.run(
            "INSERT INTO t VALUES (3, 'undone')",
            "ROLLBACK TO a",
            "INSERT INTO t VALUES (4, 'kept')",
            "RELEASE SAVEPOINT a",
            "COMMIT",
        )
        assert s.told() == [("insert", 1, "kept"), ("insert", 4, "kept")]

    def test_a_transaction_that_was_rolled_back_never_comes(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("BEGIN", "INSERT INTO t VALUES (1, 'undone')", "ROLLBACK", "INSERT INTO t VALUES (2, 'kept')")
        assert s.told() == [("insert", 2, "kept")]

    def test_a_rollback_keeps_what_other_engines_can_not_undo(self, mixing_server: Server, scene: MakeScene) -> None:
        s = scene(mixing_server)
        s.run("CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
        s.again()
        s.run(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'undone')",
            "INSERT INTO m VALUES (1)",
            "INSERT INTO t VALUES (2, 'undone')",
            "ROLLBACK",
        )
        s.run("BEGIN", "INSERT INTO m VALUES (2)", "INSERT INTO t VALUES (3, 'kept')", "COMMIT")
        s.run("SELECT id FROM m ORDER BY id")
        assert [row[0] for row in s.cursor.fetchall()] == [1, 2]
        assert sorted(s.told(), key=str) == [("insert", 1), ("insert", 2), ("insert", 3, "kept")]

    def test_a_rollback_to_a_savepoint_behind_another_engine_gives_what_is_there(self, mixing_server: Server, scene: MakeScene) -> None:
        s = scene(mixing_server)
        s.run("CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
        s.again()
        s.run(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'kept')",
            "SAVEPOINT a",
            "INSERT INTO m VALUES (1)",
            "INSERT INTO t VALUES (2, 'undone')",
        )
        s.run("ROLLBACK TO a", "COMMIT")
        assert sorted(s.told(), key=str) == [("insert", 1), ("insert", 1, "kept")]

    def test_what_a_logged_rollback_to_undid_never_comes(self, mixing_server: Server, scene: MakeScene) -> None:
        """A temporary table that is made or dropped, or a table without transactions, makes servers log what they undo."""
        s = scene(mixing_server)
        s.run("CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
        for number, story in enumerate(SAVEPOINT_STORIES.values()):
            s.run("CREATE TEMPORARY TABLE scratch (x INT)")
            if number == 0:
                s.again()
            s.run(*story, "DROP TEMPORARY TABLE IF EXISTS scratch", "DROP TEMPORARY TABLE IF EXISTS another")
        logged = b"".join(bytes(stretch.data) for stretch in s.stretches()).count(b"ROLLBACK TO")
        # MySQL 8 cuts all of it out of its log, MySQL 5.6 nearly all.
        at_least = len(SAVEPOINT_STORIES) if mixing_server.kind == "mariadb" else int(mixing_server.version < (8,))
        assert logged >= at_least, "nothing is proven"
        s.run("SELECT id, v FROM t ORDER BY id")
        there = list(s.cursor.fetchall())
        assert there
        for window_bytes in (4096, 8 << 20):
            told = s.told(limits=Limits(prefilter_bytes=window_bytes))
            assert [operation for operation, *_ in told] == ["insert"] * len(told)
            assert sorted(tuple(values) for _, *values in told if len(values) == 2) == there, window_bytes

    def test_what_a_savepoint_of_a_function_may_hide_is_never_guessed(self, mariadb: Server, scene: MakeScene) -> None:
        """MariaDB logs savepoints of functions and triggers as those of their session, though they end with them."""
        s = scene(mariadb)
        s.run("CREATE TABLE u (id INT PRIMARY KEY)", "CREATE TABLE fires (id INT PRIMARY KEY)", "CREATE TEMPORARY TABLE scratch (x INT)")
        inner = "INSERT INTO u VALUES ({0}); SAVEPOINT s; INSERT INTO u VALUES ({0} + 1);"
        undoing = f"{inner} ROLLBACK TO s; INSERT INTO u VALUES ({{0}} + 2);"
        with settings(mariadb, log_bin_trust_function_creators="ON"):
            for name, body in (("sets", inner), ("undoes", undoing)):
                s.run(f"CREATE FUNCTION {name}(a INT) RETURNS INT BEGIN {body.format('a')} RETURN a; END")
            s.run(f"CREATE TRIGGER after_it AFTER INSERT ON fires FOR EACH ROW BEGIN {inner.format('NEW.id')} END")
        makes = ["DROP TEMPORARY TABLE scratch", "BEGIN", "CREATE TEMPORARY TABLE scratch (x INT)"]
        many = [f"INSERT INTO t VALUES ({{0}}0{number:02d}, {PAD})" for number in range(60)]
        stories = {
            "sets": ["INSERT INTO t VALUES (sets({0}10), 'undone')"],
            "sets and undoes": ["INSERT INTO t VALUES (undoes({0}20), 'undone')"],
            "by a trigger": ["INSERT INTO fires VALUES ({0}30)"],
            "twice": ["INSERT INTO t VALUES (sets({0}40), 'undone')", "INSERT INTO t VALUES (sets({0}50), 'undone')"],
            "in a large one": [*many, "INSERT INTO t VALUES (sets({0}90), 'undone')", *(one.replace("0}0", "0}1") for one in many)],
        }
        for number, (story, statements) in enumerate(stories.items(), start=1):
            s.again()
            # A savepoint before all rows is not logged.
            s.run(*makes, f"INSERT INTO t VALUES ({number}, 'kept')", "SAVEPOINT s", f"INSERT INTO t VALUES ({number}1, 'undone')")
            s.run(*(statement.replace("{0}", str(number)) for statement in statements))
            s.run("ROLLBACK TO s", "COMMIT", "SELECT COUNT(*) FROM t")
            assert s.cursor.fetchone() == (number,), story
            for window_bytes in (4096, 8 << 20):
                limits = Limits(prefilter_bytes=window_bytes)
                with pytest.raises(TableStuck, match="a function or trigger has set a savepoint of the same name") as stuck:
                    s.told(limits=limits)
                assert stuck.value.table == (s.name, "fires" if story == "by a trigger" else "t")
                # Of tables that are not in doubt all is told.
                assert s.told(limits=limits, captured=lambda table: table.name == "another") == [], story
        # One that a session's own savepoints don't meet, and one that a session sets again, hide nothing.
        s.again()
        s.run(*makes, "INSERT INTO t VALUES (undoes(710), 'kept')", "INSERT INTO t VALUES (undoes(720), 'kept')")
        s.run("SAVEPOINT s", "INSERT INTO t VALUES (73, 'kept')", "SAVEPOINT s", "INSERT INTO t VALUES (74, 'undone')", "ROLLBACK TO s")
        s.run("SAVEPOINT mine", "INSERT INTO t VALUES (sets(750), 'undone')", "ROLLBACK TO mine", "COMMIT")
        for window_bytes in (4096, 8 << 20):
            told = s.told(limits=Limits(prefilter_bytes=window_bytes))
            assert sorted(values[0] for _, *values in told) == [73, 710, 710, 712, 720, 720, 722]

    def test_a_transaction_has_its_name_on_mysql(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("SELECT @@server_uuid, @@gtid_executed")
        uuid, executed = s.cursor.fetchone()
        last = int(executed.replace("\n", "").rpartition("-")[2].rpartition(":")[2])
        s.run(*WORK)
        found = batches(s.items())[0].transactions
        assert [found.gtid(index) for index in range(len(found))] == [MySqlGtid(uuid, last + 1 + number) for number in range(3)]

    def test_a_transaction_has_its_name_on_mariadb(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb)
        s.run("SELECT @@gtid_binlog_pos, @@server_id")
        place, server = s.cursor.fetchone()
        last = int(place.rpartition("-")[2])
        s.run("SET SESSION gtid_domain_id = 0", *WORK)
        found = batches(s.items())[0].transactions
        assert [found.gtid(index) for index in range(len(found))] == [MariaDbGtid(0, server, last + 1 + number) for number in range(3)]

    def test_transactions_without_names(self, anonymous_mysql8: Server, scene: MakeScene) -> None:
        s = scene(anonymous_mysql8)
        s.run(*WORK)
        assert Event.ANONYMOUS_GTID in s.kinds()
        assert s.told() == TOLD
        found = batches(s.items())[0].transactions
        assert [found.gtid(index) for index in range(len(found))] == [None] * 3

    def test_rows_come_in_the_order_of_the_log_though_a_table_was_opened_anew_in_between(
        self, any_server: Server, scene: MakeScene
    ) -> None:
        s = scene(any_server)
        s.run("INSERT INTO t VALUES (1, 'a')", "SELECT 1")
        with any_server.connect(database=s.name, autocommit=False) as other, other.cursor() as cursor:
            # The first transaction has the table by its old number in the log, the second by its new one.
            cursor.execute("UPDATE t SET v = 'b' WHERE id = 1")
            s.run("FLUSH TABLES", "INSERT INTO t VALUES (2, 'new')")
            other.commit()
        s.run("UPDATE t SET v = 'c' WHERE id = 1")
        found = s.changes()
        assert [change.position for change in found] == sorted(change.position for change in found)
        assert tell(found)[-2:] == [("before", 1, "b"), ("after", 1, "c")]


class TestSchemaChanges:
    """Rows are read with the shape that they were written with."""

    def test_rows_before_and_behind_each_change_have_their_own_shape(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("INSERT INTO t VALUES (1, 'one')")
        s.run("ALTER TABLE t ADD COLUMN n INT DEFAULT 5 AFTER id", "INSERT INTO t VALUES (2, 2, 'two')")
        s.run("ALTER TABLE t MODIFY n BIGINT UNSIGNED", "INSERT INTO t VALUES (3, 18446744073709551615, 'three')")
        s.run("ALTER TABLE t CHANGE v w VARCHAR(200)", "UPDATE t SET w = 'III' WHERE id = 3")
        s.run("RENAME TABLE t TO moved", "INSERT INTO moved VALUES (4, NULL, 'four')")
        s.run("ALTER TABLE moved DROP COLUMN n", "DELETE FROM moved WHERE id = 4")
        s.run("TRUNCATE TABLE moved", "INSERT INTO moved VALUES (5, 'five')")
        s.run("DROP TABLE moved", "CREATE TABLE t (v DATE)", "INSERT INTO t VALUES (NULL)")
        items = s.items()
        found = changes(items)
        assert tell(found) == [
            ("insert", 1, "one"),
            ("insert", 2, 2, "two"),
            ("insert", 3, 18446744073709551615, "three"),
            ("before", 3, 18446744073709551615, "three"),
            ("after", 3, 18446744073709551615, "III"),
            ("insert", 4, None, "four"),
            ("delete", 4, "four"),
            ("insert", 5, "five"),
            ("insert", None),
        ]
        assert [list(change.values) for change in found][:4] == [
            ["id", "v"],
            ["id", "n", "v"],
            ["id", "n", "v"],
            ["id", "n", "w"],
        ]
        assert [change.table.name for change in found] == ["t"] * 5 + ["moved"] * 3 + ["t"]
        kinds = [type(change) for item in schema_changes(items) for change in item.changes]
        assert kinds[0] is AlterColumns
        assert kinds[-4:] == [AlterColumns, Truncate, DropTable, CreateTable]
        places = [item.position.offset for item in schema_changes(items)]
        assert places == sorted(places)

    def test_items_come_in_the_order_of_the_log(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        for number in range(4):
            s.run(f"INSERT INTO t (id) VALUES ({number})", f"ALTER TABLE t ADD COLUMN c{number} INT")
        places = []
        for item in s.items():
            places.append(item.position.offset if item in schema_changes([item]) else item.rows.column("_position")[0].as_py())
        assert places == sorted(places)
        assert len(places) == 8

    def test_a_transaction_that_waits_for_a_change_has_the_new_shape(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE u (id INT)")
        s.again()
        # The transaction begins before the change and ends behind it; it touches the table only then.
        s.run("BEGIN", "INSERT INTO u VALUES (1)")
        with any_server.connect(database=s.name) as other, other.cursor() as cursor:
            cursor.execute("ALTER TABLE t ADD COLUMN n INT DEFAULT 5")
        s.run("INSERT INTO t VALUES (1, 'a', 6)", "COMMIT")
        assert s.told() == [("insert", 1), ("insert", 1, "a", 6)]

    def test_a_table_created_by_a_select_has_its_rows(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("INSERT INTO t VALUES (1, 'one')")
        s.run("CREATE TABLE c (PRIMARY KEY (id)) SELECT id, v FROM t")
        found = s.changes()
        assert tell(found) == [("insert", 1, "one")] * 2
        assert [change.table.name for change in found] == ["t", "c"]

    def test_temporary_tables_leave_nothing(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("CREATE TEMPORARY TABLE temp (id INT)", "INSERT INTO temp VALUES (1)", "INSERT INTO t SELECT id, 'x' FROM temp")
        s.run("ALTER TABLE temp ADD COLUMN x INT", "DROP TEMPORARY TABLE temp")
        assert s.told() == [("insert", 1, "x")]

    @pytest.mark.parametrize(
        "statement",
        ["TRUNCATE TABLE t", "ALTER TABLE t ADD COLUMN x INT", "ALTER TABLE t RENAME TO moved"],
    )
    def test_a_temporary_table_that_hides_a_captured_one_is_not_taken_for_it(
        self, any_server: Server, scene: MakeScene, statement: str
    ) -> None:
        """A session that logs statements logs this one. Its event says that it used a temporary table."""
        s = scene(any_server)
        s.run("INSERT INTO t VALUES (1, 'one')")
        s.again()
        s.run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE t (id INT, other INT)", statement)
        s.run("DROP TEMPORARY TABLE IF EXISTS moved, t")
        for captured in (s.captured, lambda table: table == TableId(s.name, "t")):
            with pytest.raises(SourceDrift, match="may be about a temporary table"):
                s.told(captured=captured)
        # Nothing of it is left, and the captured table's own statements are understood.
        s.again()
        s.run("ALTER TABLE t ADD COLUMN n INT", "SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (2, 'two', 3)")
        assert s.told() == [("insert", 2, "two", 3)]

    def test_a_shape_that_does_not_fit_the_rows_stops_us(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("ALTER TABLE t ADD COLUMN n INT")
        # The change lies before the range, and the shape is from before it.
        s.start = mark_by(s.cursor)
        s.run("INSERT INTO t VALUES (1, 'a', 2)")
        with pytest.raises(SourceDrift, match="don't fit"):
            s.told()

    def test_a_renamed_column_that_was_missed_is_seen_where_the_log_names_columns(self, mysql8: Server, scene: MakeScene) -> None:
        s = scene(mysql8)
        s.run("ALTER TABLE t CHANGE v other VARCHAR(100)")
        s.start = mark_by(s.cursor)
        s.run("INSERT INTO t VALUES (1, 'a')")
        with pytest.raises(SourceDrift, match="don't fit"):
            s.told()

    def test_a_table_that_is_not_captured_needs_no_shape(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE secret (id INT, g GEOMETRY, e ENUM('a'))", "INSERT INTO secret VALUES (1, NULL, 'a')")
        s.run(
            "INSERT INTO t VALUES (1, 'one')",
            "ALTER TABLE secret ADD COLUMN x INT",
            "INSERT INTO secret VALUES (2, NULL, 'a', 3)",
        )
        assert s.told(captured=lambda table: table == TableId(s.name, "t")) == [("insert", 1, "one")]

    @pytest.mark.parametrize("metadata", ["NO_LOG", "MINIMAL", "FULL"])
    def test_changes_behind_set_statement_of_mariadb_are_seen(self, mariadb: Server, scene: MakeScene, metadata: str) -> None:
        s = scene(mariadb, columns="id INT PRIMARY KEY, a INT, b INT")
        s.run("CREATE TABLE u (id INT PRIMARY KEY)")
        s.again()
        before = "SET STATEMENT max_statement_time = 0, sql_mode = '' FOR "
        with settings(mariadb, binlog_row_metadata=metadata):
            # Both columns are INT: only their names tell that they changed places.
            s.run(before + "ALTER TABLE t MODIFY COLUMN b INT AFTER id", "INSERT INTO t (id, a, b) VALUES (1, 111, 222)")
            s.run(before + "TRUNCATE TABLE t", before + "RENAME TABLE t TO moved, u TO t", "INSERT INTO t VALUES (7)")
            s.run(before + "CREATE OR REPLACE TABLE moved (x INT)", "INSERT INTO moved VALUES (8)", before + "DROP TABLE moved")
        items = s.items()
        assert [(change.table.name, change.values) for change in changes(items)] == [
            ("t", {"id": 1, "b": 222, "a": 111}),
            ("t", {"id": 7}),
            ("moved", {"x": 8}),
        ]
        kinds = [type(change) for item in schema_changes(items) for change in item.changes]
        assert kinds == [AlterColumns, Truncate, RenameTable, RenameTable, DropTable, CreateTable, DropTable]

    @pytest.mark.parametrize("explicit", [0, 1])
    def test_timestamps_with_implicit_defaults_are_seen_to_lose_their_nulls(
        self, any_server: Server, scene: MakeScene, explicit: int
    ) -> None:
        if any_server.version < (8,) and explicit:
            pytest.skip("MySQL 5.6 sets it at its start only")
        s = scene(any_server, columns="id INT PRIMARY KEY, ts TIMESTAMP NULL")
        s.run("SET SESSION sql_mode = ''")
        if any_server.version >= (8,):
            s.run(f"SET SESSION explicit_defaults_for_timestamp = {explicit}")
        s.run("INSERT INTO t VALUES (1, NULL), (2, '2001-01-01')")
        s.again()
        s.run("ALTER TABLE t MODIFY ts TIMESTAMP", "ALTER TABLE t ADD c TIMESTAMP", "CREATE TABLE u (id INT, ts TIMESTAMP)")
        s.run("SELECT ts IS NULL FROM t WHERE id = 1")
        kept = bool(s.cursor.fetchone()[0])
        assert kept == bool(explicit)
        kinds = [type(change) for item in schema_changes(s.items()) for change in item.changes]
        assert (Rewrites in kinds[:1]) != kept, "stored rows changed if and only if that is said"
        now, there = mark_by(s.cursor), schemas_of(any_server, s.name)
        for table in (TableId(s.name, "t"), TableId(s.name, "u")):
            ours, theirs = s.schemas.at(table, now), there.at(table, now)
            assert [(c.name, c.nullable) for c in ours.columns] == [(c.name, c.nullable) for c in theirs.columns]
            assert ours.fingerprint() == theirs.fingerprint()

    @pytest.mark.parametrize(("charset", "label"), [("gbk", "中"), ("latin1", "Ã©"), ("latin1", "größe €"), ("utf8mb4", "漢é")])
    def test_labels_of_a_statement_in_the_clients_charset_are_those_that_a_chunk_has(
        self, any_server: Server, scene: MakeScene, charset: str, label: str
    ) -> None:
        s = scene(any_server)
        with unnamed(any_server), any_server.connect(database=s.name, charset=charset) as client, client.cursor() as cursor:
            cursor.execute(f"CREATE TABLE labelled (id INT PRIMARY KEY, e ENUM('{label}', 'b'), f SET('a', '{label}')) CHARSET utf8mb4")
            cursor.execute(f"INSERT INTO labelled VALUES (1, '{label}', '{label}')")
        assert s.told() == [("insert", 1, label, [label])]
        assert chunk_rows(any_server, TableId(s.name, "labelled")) == [{"id": 1, "e": label, "f": [label]}]

    def test_labels_that_the_catalogue_prints_as_question_marks_are_refused_unless_the_log_names_them(
        self, any_server: Server, scene: MakeScene
    ) -> None:
        for column, value in (("ENUM('😀', 'b')", "😀"), ("SET('a', '😀')", ["😀"])):
            s = scene(any_server, columns=f"id INT PRIMARY KEY, e {column} CHARACTER SET utf8mb4")
            with unnamed(any_server):
                s.run("INSERT INTO t VALUES (1, '😀')")
            with pytest.raises(SourceDrift, match="question mark"):
                s.told()
            if any_server.version >= (8,):
                s.again()
                with settings(any_server, binlog_row_metadata="FULL"):
                    s.run("INSERT INTO t VALUES (2, '😀')")
                assert s.told() == [("insert", 2, value)]
            # A statement of the log prints them as they are.
            s.again()
            with unnamed(any_server):
                s.run(f"CREATE TABLE u (id INT PRIMARY KEY, e {column} CHARACTER SET utf8mb4)", "INSERT INTO u VALUES (3, '😀')")
            assert s.told() == [("insert", 3, value)]

    def test_an_unknown_table_stops_us_unless_the_log_names_its_columns(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run(*WORK)
        s.schemas = SchemaHistory()
        if any_server.version < (8, 0):
            with pytest.raises(SourceDrift, match="no schema"):
                s.told()
        else:
            assert s.told() == TOLD


class TestStatements:
    """A change that the log holds as text is never passed over."""

    CHANGES = (
        "INSERT INTO t VALUES (5, 'x')",
        "REPLACE INTO t VALUES (1, 'x')",
        "UPDATE t SET v = 'y'",
        "DELETE FROM t WHERE id = 1",
        "INSERT INTO t SELECT * FROM u WHERE id = 2",
        "UPDATE u, t SET t.v = 'z' WHERE t.id = u.id",
    )

    @pytest.mark.parametrize("statement", CHANGES)
    @pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
    def test_a_change_of_a_captured_table_stops_us(self, any_server: Server, scene: MakeScene, form: str, statement: str) -> None:
        s = scene(any_server)
        s.run(
            "CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(100))",
            "INSERT INTO t VALUES (1, 'a')",
            "INSERT INTO u VALUES (1, 'a')",
        )
        s.run("INSERT INTO u VALUES (2, 'a')")
        s.again()
        s.run(f"SET SESSION binlog_format = {form}", statement)
        with pytest.raises(SourceDrift, match="logged as a statement") as raised:
            s.told(captured=lambda table: table == TableId(s.name, "t"))
        assert "'x'" not in str(raised.value), "the text holds values"

    def test_a_compressed_statement_stops_us_too(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb)
        with settings(mariadb, log_bin_compress="ON", log_bin_compress_min_len=10):
            s.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (5, 'xxxxxxxxxxxxxxxxxxxxxxxxxxx')")
        assert Event.QUERY_COMPRESSED in s.kinds()
        with pytest.raises(SourceDrift, match="logged as a statement"):
            s.told()

    @pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
    def test_a_change_of_another_table_stops_us(self, any_server: Server, scene: MakeScene, form: str) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE u (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100))")
        s.again()
        s.run("INSERT INTO t VALUES (1, 'row')", f"SET SESSION binlog_format = {form}", "SET @value = 5")
        s.run("BEGIN", "INSERT INTO u (v) VALUES ('x')", "INSERT INTO u VALUES (7, @value)", "UPDATE u SET v = 'y'", "COMMIT")
        s.run("SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (2, 'row')")
        only_t = {"captured": lambda table: table == TableId(s.name, "t")}
        with pytest.raises(SourceDrift, match=r"logged as a statement.*INSERT that may reach"):
            s.told(**only_t)

    BEHIND = (
        "INSERT INTO by_view VALUES (20, 'hidden')",
        "DELETE FROM by_view",
        "INSERT INTO by_trigger VALUES (1)",
        "SELECT by_function(50)",
        "DO by_function(51)",
        "DELETE FROM by_trigger",
    )

    @pytest.mark.parametrize("statement", BEHIND)
    @pytest.mark.parametrize("known", [True, False])
    def test_a_change_that_reaches_a_captured_table_by_a_view_a_trigger_or_a_function_stops_us(
        self, any_server: Server, scene: MakeScene, statement: str, known: bool
    ) -> None:
        s = scene(any_server)
        with settings(any_server, log_bin_trust_function_creators=1):
            s.run(
                "CREATE VIEW by_view AS SELECT * FROM t",
                "CREATE TABLE by_trigger (id INT PRIMARY KEY)",
                "CREATE TRIGGER i AFTER INSERT ON by_trigger FOR EACH ROW INSERT INTO t VALUES (NEW.id + 1000, 'hidden')",
                "CREATE TRIGGER d AFTER DELETE ON by_trigger FOR EACH ROW INSERT INTO t VALUES (OLD.id + 2000, 'hidden')",
                "CREATE FUNCTION by_function(x INT) RETURNS INT BEGIN INSERT INTO t VALUES (x, 'hidden'); RETURN 1; END",
                "INSERT INTO t VALUES (1, 'old')",
                "INSERT INTO by_trigger VALUES (9)",
            )
            s.again()
            if not known:
                s.schemas = SchemaHistory()
            s.run("SELECT COUNT(*), MAX(id) FROM t")
            before = s.cursor.fetchone()
            s.run("SET SESSION binlog_format = STATEMENT", statement, "SELECT COUNT(*), MAX(id) FROM t")
        assert s.cursor.fetchone() != before, "the statement changes the captured table"
        for captured in (s.captured, lambda table: table == TableId(s.name, "t")):
            with pytest.raises(SourceDrift, match="logged as a statement") as raised:
                s.told(captured=captured)
            assert "hidden" not in str(raised.value), "the text holds values"

    @pytest.mark.parametrize("kind", ["TABLE", "TEMPORARY TABLE"])
    def test_a_table_filled_by_a_function_that_changes_a_captured_one_stops_us(self, mariadb: Server, scene: MakeScene, kind: str) -> None:
        # MySQL refuses such a statement.
        s = scene(mariadb)
        with settings(mariadb, log_bin_trust_function_creators=1):
            s.run("CREATE FUNCTION f(x INT) RETURNS INT BEGIN INSERT INTO t VALUES (x, 'hidden'); RETURN 1; END")
            s.run("SET SESSION binlog_format = STATEMENT", f"CREATE {kind} filled SELECT f(5) AS a")
        with pytest.raises(SourceDrift, match="logged as a statement"):
            s.told(captured=lambda table: table == TableId(s.name, "t"))

    def test_a_change_of_a_captured_table_that_has_no_known_shape_stops_us(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (2, 'x')")
        s.schemas = SchemaHistory()
        with pytest.raises(SourceDrift, match="logged as a statement"):
            s.told()

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO t VALUES (5, 'x')",
            "INSERT INTO u VALUES (5, 'x')",
            "ANALYZE INSERT INTO t VALUES (6, 'x')",
            "ANALYZE DELETE FROM u",
        ],
    )
    def test_a_change_behind_other_words_of_mariadb_stops_us(self, mariadb: Server, scene: MakeScene, statement: str) -> None:
        s = scene(mariadb)
        s.run("CREATE TABLE u (id INT PRIMARY KEY, v VARCHAR(100))", "INSERT INTO u VALUES (1, 'x')")
        s.again()
        before = "" if statement.startswith("ANALYZE") else "SET STATEMENT max_statement_time = 0 FOR "
        s.run("SET SESSION binlog_format = STATEMENT", before + statement)
        with pytest.raises(SourceDrift, match="logged as a statement"):
            s.told(captured=lambda table: table == TableId(s.name, "t"))

    def test_mixed_logs_rows_where_it_must_and_those_come(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        s.run("SET SESSION binlog_format = MIXED", "INSERT INTO t VALUES (1, LEFT(UUID(), 0))")
        assert s.told() == [("insert", 1, "")]

    @pytest.mark.parametrize("captured", ["t", "u"])
    def test_loaded_data_stop_us(self, any_server: Server, scene: MakeScene, captured: str) -> None:
        s = scene(any_server)
        s.run("CREATE TABLE u (id INT PRIMARY KEY)")
        s.again()
        file = any_server.folder / "rows.txt"
        file.write_text("1\tone\n2\ttwo\n")
        s.run("SET SESSION binlog_format = STATEMENT", f"LOAD DATA INFILE '{file}' INTO TABLE t")
        assert Event.EXECUTE_LOAD_QUERY in s.kinds()
        if captured == "t":
            with pytest.raises(SourceDrift, match="logged as a statement"):
                s.told(captured=lambda table: table == TableId(s.name, captured))
        else:
            only_u = {"captured": lambda table: table == TableId(s.name, captured)}
            with pytest.raises(SourceDrift, match="LOAD that may reach"):
                s.told(**only_u)

    def test_loaded_data_come_as_rows_in_row_format(self, any_server: Server, scene: MakeScene) -> None:
        s = scene(any_server)
        file = any_server.folder / "rows.txt"
        file.write_text("1\tone\n2\ttwo\n")
        s.run(f"LOAD DATA INFILE '{file}' INTO TABLE t")
        assert s.told() == [("insert", 1, "one"), ("insert", 2, "two")]

    def test_a_memory_table_is_emptied_when_its_server_starts(self, fresh_mariadb: Fresh, scene: MakeScene) -> None:
        server = fresh_mariadb()
        s = scene(server)
        s.run("CREATE TABLE m (id INT) ENGINE = MEMORY", "INSERT INTO m VALUES (1)")
        s.again()
        server.restart()
        with server.connect(database=s.name) as other, other.cursor() as cursor:
            cursor.execute("INSERT INTO m VALUES (2)")
        items = s.items()
        assert [change for item in schema_changes(items) for change in item.changes] == [Truncate(TableId(s.name, "m"))]
        assert tell(changes(items)) == [("insert", 2)]


class TestHidden:
    """Rows of MariaDB that no SELECT shows, and columns that its catalogue does not."""

    @pytest.mark.parametrize("metadata", ["NO_LOG", "FULL"])
    def test_a_step_of_a_sequence_is_no_change_of_a_table(self, mariadb: Server, scene: MakeScene, metadata: str) -> None:
        s = scene(mariadb)
        with settings(mariadb, binlog_row_metadata=metadata):
            s.run("CREATE SEQUENCE steps", "SELECT NEXTVAL(steps)", "INSERT INTO t VALUES (NEXTVAL(steps), 'x')", "DROP SEQUENCE steps")
        assert s.told() == [("insert", 2, "x")]

    def test_the_hash_of_a_unique_text_is_read_over(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb, columns="id INT PRIMARY KEY, v TEXT, UNIQUE (v)")
        with settings(mariadb, binlog_row_metadata="FULL"):
            s.run(*WORK)
        assert s.told() == TOLD
        s.schemas = SchemaHistory()
        assert s.told() == TOLD

    def test_a_hash_without_a_name_stops_us_with_the_remedy(self, mariadb: Server, scene: MakeScene) -> None:
        s = scene(mariadb, columns="id INT PRIMARY KEY, v TEXT, UNIQUE (v)")
        with settings(mariadb, binlog_row_metadata="MINIMAL"):
            s.run(*WORK)
        with pytest.raises(SourceDrift, match="binlog_row_metadata = FULL"):
            s.told()


class TestByHand:
    """What no server does on demand."""

    def read(self, log: streams.Log, *, start: int = 4, schemas: SchemaHistory[MySqlTable] | None = None) -> list[LogItem]:
        reader = LogReader(server=LogServer("mysql", (8, 0, 33)), schemas=schemas or handmade_schemas())
        data = np.frombuffer(b"".join(log.stored), np.uint8)
        return list(reader.read(data, file=1, start=start, checksum_bytes=4 * log.checksummed))

    @staticmethod
    def transaction(log: streams.Log, number: int, values: list[int], *, name: str = "t", gtid: int = 1) -> None:
        log.add(Event.GTID, streams.gtid_body(gtid))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(number, name))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(number, values))
        log.add(Event.XID, bytes(8))

    def test_positions_go_on_beyond_4_gib(self) -> None:
        # The offset in an event's header has 32 bits and wraps; ours must not.
        start = 2**32 - 1000
        log = streams.Log(offset=start)
        ends = []
        for number in range(12):
            self.transaction(log, 7, [number])
            ends.append(log.offset)
        assert ends[0] < 2**32 < ends[-1]
        found = changes(self.read(log, start=start))
        assert [(change.values["id"], change.position) for change in found] == list(enumerate(ends))

    def test_an_event_that_ends_at_4_gib_itself_has_that_end(self) -> None:
        sizes = streams.Log(offset=0)
        self.transaction(sizes, 7, [1])
        log = streams.Log(offset=2**32 - sizes.offset)
        self.transaction(log, 7, [1])
        self.transaction(log, 7, [2])
        found = changes(self.read(log, start=2**32 - sizes.offset))
        assert [change.position for change in found] == [2**32, 2**32 + sizes.offset]

    def test_a_range_that_maps_very_many_tables_is_read(self) -> None:
        log = streams.Log()
        names = [f"t{number}" for number in range(9000)]
        for number, name in enumerate(names):
            self.transaction(log, 100 + number, [number], name=name)
        found = changes(self.read(log, schemas=handmade_schemas(*names)))
        assert [(change.table.name, change.values["id"]) for change in found] == [(name, number) for number, name in enumerate(names)]

    def test_one_statement_may_change_several_tables(self) -> None:
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(5, "a"))
        log.add(Event.TABLE_MAP, table_map_body(6, "b"))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(5, [1], last=False))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(6, [2], last=False))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(5, [3]))
        log.add(Event.XID, bytes(8))
        found = changes(self.read(log, schemas=handmade_schemas("a", "b")))
        assert sorted((change.event, change.table.name, change.values["id"]) for change in found) == [
            (0, "a", 1),
            (1, "b", 2),
            (2, "a", 3),
        ]

    def test_a_map_serves_its_own_statement_only(self) -> None:
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(5))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(5, [1]))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(5, [2]))
        log.add(Event.XID, bytes(8))
        with pytest.raises(Corrupt, match="not mapped"):
            self.read(log)

    def test_the_end_of_a_statement_without_rows_is_no_row_event(self) -> None:
        log = streams.Log()
        log.add(Event.GTID, streams.gtid_body(1))
        log.add(Event.QUERY, streams.query_body(b"BEGIN"))
        log.add(Event.TABLE_MAP, table_map_body(5))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(5, [1], last=False))
        log.add(Event.WRITE_ROWS_V1, write_rows_body(0xFFFFFF, []))
        log.add(Event.XID, bytes(8))
        assert [change.values["id"] for change in changes(self.read(log))] == [1]

    def test_a_lost_stretch_of_the_log_stops_us(self) -> None:
        log = streams.Log()
        self.transaction(log, 7, [1])
        log.add(Event.INCIDENT, b"\1\0\5hello")
        with pytest.raises(SourceDrift, match=r"lost events.*incident 1 hello"):
            self.read(log)

    @pytest.mark.parametrize("kind", [6, 43, 100, 173, 255])
    def test_an_event_of_an_unknown_kind_stops_us_unless_it_says_that_it_may_be_ignored(self, kind: int) -> None:
        log = streams.Log()
        self.transaction(log, 7, [1])
        log.offset += 19 + 3 + 4
        log.stored.append(streams.event(kind, b"abc", next_position=log.offset, flags=FLAG_IGNORABLE))
        self.transaction(log, 7, [2])
        assert [change.values["id"] for change in changes(self.read(log))] == [1, 2]
        log.add(kind, b"abc")
        with pytest.raises(SourceDrift, match=rf"kind that we don't know.*type {kind}"):
            self.read(log)

    def test_a_range_that_ends_inside_a_transaction_stops_us(self) -> None:
        log = streams.Log()
        self.transaction(log, 7, [1])
        log.stored.pop()
        with pytest.raises(Corrupt, match="not ended"):
            self.read(log)
