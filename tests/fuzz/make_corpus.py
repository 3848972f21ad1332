"""Makes the fuzzer's corpus again: small pieces of real logs and result sets, out of real servers.

    python -m tests.fuzz.make_corpus

Each piece is what a server wrote between two positions. MariaDB's ANNOTATE_ROWS events are left out of most, because its server
leaves them out when it sends its log. The pieces lie in `segments`, with one `index.json` for all of them.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from snowmelt.columnar.arena import Arena
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.log.decode import LogReader
from snowmelt.databases.mysql.log.events import Event
from snowmelt.databases.mysql.log.rowplan import Finish, PlannedColumn, RowPlan
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from tests.fuzz.corpus import FOLDER, Line, load_pieces
from tests.integration.dump import open_session
from tests.kit.servers import Server, start_mariadb, start_mysql8, start_mysql56

_TYPES = """
    id BIGINT NOT NULL PRIMARY KEY, i1 TINYINT, u1 TINYINT UNSIGNED, i2 SMALLINT, u2 SMALLINT UNSIGNED, i3 MEDIUMINT,
    u3 MEDIUMINT UNSIGNED, i4 INT, u4 INT UNSIGNED, u8 BIGINT UNSIGNED, f FLOAT, d DOUBLE, n1 DECIMAL(5,2), n2 DECIMAL(38,10),
    n3 DECIMAL(65,30), da DATE, dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP NULL, ts3 TIMESTAMP(3) NULL, ti TIME, ti2 TIME(2),
    ti4 TIME(4), ti6 TIME(6), y YEAR, c CHAR(5), cw CHAR(200) CHARACTER SET utf8mb4, v VARCHAR(30), vw VARCHAR(300), t TEXT,
    lt LONGTEXT, b5 BINARY(5), vb VARBINARY(20), bl BLOB, e ENUM('a','ö','c,d'), s SET('x','y','z'), b1 BIT(1), b9 BIT(9),
    b64 BIT(64), g GEOMETRY, l1 VARCHAR(10) CHARACTER SET latin1, gb VARCHAR(10) CHARACTER SET gbk
"""
_ROW = (
    "({id}, -1, 255, -32768, 65535, -8388608, 16777215, 2147483647, 4294967295, 18446744073709551615, 1.5, -2.25, -123.45, "
    "1234567890123456789012345678.0123456789, -12345678901234567890123456789012345.123456789012345678901234567890, '2024-02-29', "
    "'2024-01-02 03:04:05', '9999-12-31 23:59:59.999999', '2024-01-02 03:04:05', '2024-01-02 03:04:05.678', '-838:59:59', "
    "'12:34:56.78', '-00:00:01.2345', '23:59:59.999999', 2024, 'abc', 'wide {id}', 'text', REPEAT('v', 270), 'some text', 'long text', "
    "'ab', x'00ff', REPEAT('b', 40), 'ö', 'x,z', 1, b'101010101', x'8000000000000001', {point}, 'käse', '中文')"
)

Build = Callable[[Server, Callable[..., None]], None]


def _types(json_type: bool = False, more: str = "") -> Build:
    def build(server: Server, run: Callable[..., None]) -> None:
        extra = ", j JSON" if json_type else ""
        run(f"CREATE TABLE t ({_TYPES}{extra}{more})", before=True)
        names = ", ".join(["id", *_column_names()])
        for id, point in ((1, "POINT(1, 2)"), (2, "NULL")):
            geometry = f"ST_GeomFromText('POINT({id} 2)')" if point != "NULL" and server.version >= (5, 7) else "NULL"
            run(f"INSERT INTO t ({names}) VALUES {_ROW.format(id=id, point=geometry)}")
        run("INSERT INTO t (id) VALUES (3)")
        if json_type:
            run("""UPDATE t SET j = '{"a": [1, -2.5, "x", null, true], "b": {"c": 18446744073709551615}, "d": "\\\\u00f6"}' WHERE id < 3""")
            run("UPDATE t SET j = JSON_OBJECT('n', 1.25, 't', CAST('12:00:00' AS TIME), 'd', NOW(6), 'o', x'00ff10') WHERE id = 1")
        run("UPDATE t SET i4 = 7, da = NULL, t = 'other', da = '0000-00-00' WHERE id < 3")
        run("DELETE FROM t WHERE id > 1")

    return build


def _column_names() -> list[str]:
    return [
        *("i1", "u1", "i2", "u2", "i3", "u3", "i4", "u4", "u8", "f", "d", "n1", "n2", "n3", "da", "dt", "dt6", "ts", "ts3", "ti", "ti2"),
        *("ti4", "ti6", "y", "c", "cw", "v", "vw", "t", "lt", "b5", "vb", "bl", "e", "s", "b1", "b9", "b64", "g", "l1", "gb"),
    ]


def _wide(_server: Server, run: Callable[..., None]) -> None:
    columns = ", ".join(f"c{i} {'VARCHAR(5)' if i % 3 else 'INT'}" for i in range(270))
    run(f"CREATE TABLE wide (id INT PRIMARY KEY, {columns}) ENGINE=InnoDB", before=True)
    run("INSERT INTO wide (id, c0, c1, c269) VALUES (1, 5, 'one', 'last'), (2, NULL, '', 'end')")
    run("UPDATE wide SET c1 = 'two', c200 = 'set' WHERE id = 1")
    run("DELETE FROM wide WHERE id = 2")


def _small(server: Server, run: Callable[..., None]) -> None:
    """Several tables and rows in a transaction, one that is rolled back in part, statements of two tables."""
    run("CREATE TABLE one (id INT PRIMARY KEY, v VARCHAR(20), n DECIMAL(10,2))", before=True)
    run("CREATE TABLE two (id INT PRIMARY KEY, w TEXT)", before=True)
    run(
        "BEGIN", "INSERT INTO one VALUES (1, 'a', 1.5), (2, 'b', NULL), (3, NULL, 2)", "INSERT INTO two VALUES (1, 'x'), (2, 'y')", "COMMIT"
    )
    run("BEGIN", "DELETE FROM one WHERE id = 3", "SAVEPOINT s", "INSERT INTO two VALUES (9, 'z')", "ROLLBACK TO s", "COMMIT")
    run("UPDATE one JOIN two USING (id) SET v = 'c', w = 'q'")
    run("INSERT INTO one VALUES (7, 'seven', 7)")
    run("DELETE FROM two WHERE id = 2")


def _ddl(_server: Server, run: Callable[..., None]) -> None:
    run("CREATE TABLE shape (id INT PRIMARY KEY, v VARCHAR(20))", before=True)
    run("INSERT INTO shape VALUES (1, 'a')")
    run("ALTER TABLE shape ADD COLUMN n INT DEFAULT 5, ADD e ENUM('a', 'b') AFTER id")
    run("INSERT INTO shape VALUES (2, 'b', 'x', 1)")
    run("CREATE TABLE fresh (id BIGINT UNSIGNED PRIMARY KEY, d DATETIME(3), s SET('p', 'q'))")
    run("INSERT INTO fresh VALUES (18446744073709551615, '2024-01-01 00:00:00.123', 'q')")
    run("RENAME TABLE fresh TO newer")
    run("INSERT INTO newer VALUES (2, NULL, NULL)")
    run("TRUNCATE TABLE newer")
    run("ALTER TABLE shape DROP COLUMN v, MODIFY n BIGINT")
    run("INSERT INTO shape VALUES (3, 'a', 4)")
    run("DROP TABLE newer")


def _made_by_query(_server: Server, run: Callable[..., None]) -> None:
    run(
        "CREATE TABLE origin (id INT PRIMARY KEY, v VARCHAR(200))", "INSERT INTO origin VALUES (1, REPEAT('a', 150)), (2, 'b')", before=True
    )
    run("CREATE TABLE copy (PRIMARY KEY (id)) SELECT * FROM origin")
    run(f"UPDATE copy SET v = '{'long ' * 30}' WHERE id = 2")


def _xa(_server: Server, run: Callable[..., None]) -> None:
    run("CREATE TABLE ledger (id INT PRIMARY KEY, v VARCHAR(20))", before=True)
    run("XA START 'a'", "INSERT INTO ledger VALUES (1, 'one'), (2, 'two')", "XA END 'a'", "XA PREPARE 'a'")
    run("INSERT INTO ledger VALUES (5, 'between')", apart=True)
    run("XA COMMIT 'a'")
    run("XA START 'b','x'", "INSERT INTO ledger VALUES (6, 'never')", "XA END 'b','x'", "XA PREPARE 'b','x'", "XA ROLLBACK 'b','x'")
    run("UPDATE ledger SET v = 'last' WHERE id = 5")


def _partial_json(_server: Server, run: Callable[..., None]) -> None:
    run("CREATE TABLE doc (id INT PRIMARY KEY, j JSON, k JSON)", before=True)
    long = "x" * 60
    run(
        f"""INSERT INTO doc VALUES (1, '{{"a": "{long}", "b": [1, 2, 3], "c": {{"d": 1}}}}', '[1]'), (2, '[{{"q": "{long}"}}]', NULL)""",
        before=True,
    )
    run("UPDATE doc SET j = JSON_SET(j, '$.b[1]', 9, '$.new', 'v') WHERE id = 1")
    run("UPDATE doc SET j = JSON_REMOVE(j, '$.c.d'), k = '[2]' WHERE id = 1")
    run("UPDATE doc SET j = JSON_REPLACE(j, '$[0].q', CAST(1.5 AS DECIMAL(5,2))) WHERE id = 2")


class Maker:
    """Runs builds on one server and keeps what they log."""

    def __init__(self, server: Server, index: dict[str, Any]) -> None:
        self._server = server
        self._index = index
        self._count = 0

    def make(
        self,
        name: str,
        build: Build,
        *,
        session: Sequence[str] = (),
        globally: Sequence[str] = (),
        annotate: bool = False,
        whole: bool = False,
    ) -> None:
        """`annotate` keeps what the server would not send, `whole` begins with the file."""
        server = self._server
        self._count += 1
        database = f"f{self._count}"
        later: list[tuple[tuple[str, ...], bool]] = []

        with closing(server.connect()) as setup, closing(server.connect()) as apart, closing(server.connect()) as main:

            def execute(connection: Any, *statements: str) -> None:
                with connection.cursor() as cursor:
                    for statement in statements:
                        cursor.execute(statement)

            def run(*statements: str, before: bool = False, apart: bool = False) -> None:
                if before:
                    execute(setup, *statements)
                else:
                    later.append((statements, apart))

            for connection in (setup, apart, main):
                execute(connection, "SET sql_mode = ''", *(f"SET SESSION {each}" for each in session))
            execute(setup, f"CREATE DATABASE {database}", *(f"SET GLOBAL {each}" for each in globally))
            for connection in (setup, apart, main):
                execute(connection, f"USE {database}")
            build(server, run)
            with closing(open_session(server)) as reading:
                tables = read_tables(reading, lambda table: table.database == database)
            if whole:
                execute(setup, "FLUSH BINARY LOGS")
            file, start = self._place(setup)
            for statements, elsewhere in later:
                execute(apart if elsewhere else main, *statements)
            same, end = self._place(setup)
            assert file == same
            undo = {
                "log_bin_compress": "OFF",
                "binlog_row_metadata": "FULL",
                "binlog_checksum": "CRC32",
                "log_bin_use_v1_row_events": "OFF",
            }
            execute(setup, *(f"SET GLOBAL {key} = {undo[key]}" for each in globally if (key := each.split()[0]) in undo))
        start = 4 if whole else start
        data = (server.data / file).read_bytes()[start:end]
        if whole and not annotate:
            # The server takes the mark of a file that is being written to off when it sends the file's first event.
            data = data[:17] + bytes([data[17] & 0xFE]) + data[18:]
        checksum = 0 if "binlog_checksum = NONE" in globally else 4
        if server.kind == "mariadb" and not annotate:
            data = b"".join(each for each in _events(data) if each[4] != Event.ANNOTATE)
        (FOLDER / f"{name}.log").write_bytes(data)
        self._index["segments"][name] = {
            "flavour": server.kind,
            "version": list(server.version),
            "start": start,
            "end": end,
            "checksum_bytes": checksum,
            "tables": [_table(table) for table in tables.values()],
        }
        print(f"{name}: {len(data)} bytes, {sum(1 for _ in _events(data))} events, kinds {sorted({each[4] for each in _events(data)})}")

    def _place(self, connection: Any) -> tuple[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            return cursor.fetchone()[:2]

    def rows(self, name: str, build: Build, table: str) -> None:
        """The bytes that the server sends for a SELECT by the binary protocol."""
        server = self._server
        self._count += 1
        database = f"f{self._count}"
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            cursor.execute(f"CREATE DATABASE {database}")
            cursor.execute(f"USE {database}")

            def run(*statements: str, before: bool = False, apart: bool = False) -> None:
                for statement in statements:
                    if not statement.startswith("DELETE"):
                        cursor.execute(statement)

            build(server, run)
        with closing(open_session(server)) as session:
            shape = read_tables(session, [TableId(database, table)])[TableId(database, table)]
            recorder = _Recorder(session.sock)
            heard: Any = Line(recorder)
            list(select(heard, f"SELECT * FROM {database}.{table}", shape.columns, TypeOptions(), counters=ReadCounters()))
        (FOLDER / f"{name}.rows").write_bytes(bytes(recorder.received))
        self._index["results"][name] = _table(shape)
        print(f"{name}: {len(recorder.received)} bytes")


class _RawJson(LogReader):
    """Keeps JSON as it is in the log."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.values: list[bytes | None] = []

    def _plan(self, *arguments: Any) -> RowPlan | None:
        plan = super()._plan(*arguments)
        return plan.with_raw_json() if plan else None

    def _finish(self, column: PlannedColumn, arena: Arena, index: int, rows: int) -> Any:
        if column.finish is not Finish.JSON:
            return super()._finish(column, arena, index, rows)
        self.values += arena.array(index, pa.binary(), rows).to_pylist()
        return pa.nulls(rows, pa.string())


def _documents() -> list[tuple[str, str]]:
    """The JSON of the segments: documents, and the differences behind those that have some."""
    found: list[tuple[str, str]] = []
    for piece in load_pieces():
        if piece.name not in ("mysql8_types", "mysql8_partial_json"):
            continue
        schemas: SchemaHistory[MySqlTable] = SchemaHistory()
        for table in piece.tables:
            schemas.put(table.id, Position(0, 0), table)
        reader = _RawJson(flavour=piece.flavour, version=piece.version, schemas=schemas)
        for _ in reader.read(piece.array, file=1, start=piece.start, checksum_bytes=piece.checksum_bytes):
            pass
        for value in reader.values:
            if value and value[0] == 0:
                found.append((value[1:].hex(), ""))
            elif value and value[1:]:
                found.append((found[-1][0], value[1:].hex()))
    return sorted(set(found))


class _Recorder:
    """A socket that remembers what it received."""

    def __init__(self, sock: Any) -> None:
        self._socket = sock
        self.received = bytearray()

    def recv_into(self, buffer: Any) -> int:
        got: int = self._socket.recv_into(buffer)
        self.received += bytes(buffer[:got])
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass's fields that differ from their defaults."""
    kept = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if getattr(value, field.name) != field.default}
    return {name: [_fields(each) for each in item] if name == "columns" else item for name, item in kept.items()}


def _table(table: MySqlTable) -> dict[str, Any]:
    return _fields(table) | {"id": dataclasses.asdict(table.id)}


def _events(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        yield data[at : at + size]
        at += size


def main() -> None:
    index: dict[str, Any] = {"segments": {}, "results": {}}
    for old in (*FOLDER.glob("*.log"), *FOLDER.glob("*.rows")):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        server = start_mariadb(Path(folder) / "mariadb")
        try:
            maker = Maker(server, index)
            maker.make("mariadb_small", _small, whole=True)
            maker.make("mariadb_annotated", _small, annotate=True)
            maker.make("mariadb_types", _types(more=", u UUID DEFAULT UUID(), i6 INET6 DEFAULT '::1', z TEXT COMPRESSED DEFAULT 'zzz'"))
            maker.make("mariadb_bare", _types(), globally=["binlog_row_metadata = NO_LOG"])
            maker.make("mariadb_minimal", _small, session=["binlog_row_image = MINIMAL"])
            maker.make("mariadb_wide", _wide)
            maker.make("mariadb_ddl", _ddl)
            maker.make("mariadb_xa", _xa)
            maker.make("mariadb_made_by_query", _made_by_query)
            maker.make("mariadb_compressed", _made_by_query, globally=["log_bin_compress = ON", "log_bin_compress_min_len = 100"])
            maker.make("mariadb_compressed_xa", _xa, globally=["log_bin_compress = ON", "log_bin_compress_min_len = 10"])
            maker.rows("mariadb_result", _types(), "t")
        finally:
            server.stop()
        server = start_mysql8(Path(folder) / "mysql8")
        try:
            maker = Maker(server, index)
            maker.make("mysql8_small", _small, whole=True)
            maker.make("mysql8_types", _types(json_type=True))
            maker.make("mysql8_bare", _types(json_type=True), globally=["binlog_row_metadata = MINIMAL"])
            maker.make("mysql8_minimal", _small, session=["binlog_row_image = MINIMAL"])
            maker.make("mysql8_wide", _wide)
            maker.make("mysql8_ddl", _ddl)
            maker.make("mysql8_made_by_query", _made_by_query)
            maker.make("mysql8_xa", _xa)
            maker.make("mysql8_partial_json", _partial_json, session=["binlog_row_value_options = PARTIAL_JSON"])
            maker.make("mysql8_payload", _small, session=["binlog_transaction_compression = ON"])
            maker.make("mysql8_payload_types", _types(json_type=True), session=["binlog_transaction_compression = ON"])
            maker.make("mysql8_unchecked", _small, globally=["binlog_checksum = NONE"])
            maker.rows("mysql8_result", _types(json_type=True), "t")
            maker.rows("mysql8_wide_result", _wide, "wide")
        finally:
            server.stop()
        server = start_mysql56(Path(folder) / "mysql56")
        try:
            maker = Maker(server, index)
            maker.make("mysql56_small", _small, annotate=True, whole=True)
            maker.make("mysql56_types", _types())
            maker.make("mysql56_v1", _small, globally=["log_bin_use_v1_row_events = ON"])
            maker.make("mysql56_ddl", _ddl)
        finally:
            server.stop()
    _write(index)
    _write(index | {"documents": _documents()})


def _write(index: dict[str, Any]) -> None:
    (FOLDER / "index.json").write_text(json.dumps(index, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
