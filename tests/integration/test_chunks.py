"""Values by our own reading against what the server prints, and tables cut into chunks, on real servers."""

from __future__ import annotations

import datetime
import itertools
import random
import struct
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.columnar.arena import ArenaPool
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session, Tls
from snowmelt.databases.mysql.read.bounds import Chunk, Extent, chunk_condition, from_table, key_condition, plan_chunks
from snowmelt.databases.mysql.read.reads import read_chunk, read_extent
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TimeAs, TypeOptions, ZeroDates
from snowmelt.errors import InvalidConfig, SnowmeltError, SourceDrift, TableStuck, Unavailable
from snowmelt.model.table import TableId
from tests.integration.dump import open_session
from tests.kit.servers import Server

Database = Callable[[Server], str]

TEXTS = TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.STRING)

# Per column: its type, and literals of values that are near an edge of it.
EVERYWHERE: list[tuple[str, list[str]]] = [
    ("TINYINT", ["-128", "127", "0", "-1"]),
    ("TINYINT UNSIGNED", ["0", "255", "128"]),
    ("SMALLINT", ["-32768", "32767"]),
    ("SMALLINT UNSIGNED", ["0", "65535", "32768"]),
    ("MEDIUMINT", ["-8388608", "8388607", "-1"]),
    ("MEDIUMINT UNSIGNED", ["0", "16777215", "8388608"]),
    ("INT", ["-2147483648", "2147483647"]),
    ("INT UNSIGNED", ["0", "4294967295", "2147483648"]),
    ("INT ZEROFILL", ["0", "42"]),
    ("BIGINT", ["-9223372036854775808", "9223372036854775807"]),
    ("BIGINT UNSIGNED", ["0", "18446744073709551615", "9223372036854775808"]),
    ("FLOAT", ["0", "1.1", "-3.4028234e38", "1.17549435e-38", "16777217"]),
    ("DOUBLE", ["0", "1.1", "-1.7976931348623157e308", "5e-300", "-0.1"]),
    ("DECIMAL(1,0)", ["0", "9", "-9"]),
    ("DECIMAL(10,2)", ["0", "99999999.99", "-99999999.99", "0.01", "-0.01"]),
    ("DECIMAL(18,18)", ["0.999999999999999999", "-0.000000000000000001"]),
    ("DECIMAL(19,0)", ["9999999999999999999", "-9999999999999999999"]),
    ("DECIMAL(20,0)", ["99999999999999999999", "-99999999999999999999", "18446744073709551616"]),
    ("DECIMAL(38,10)", ["9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999", "0.0000000001"]),
    ("DECIMAL(38,0)", ["99999999999999999999999999999999999999", "-10000000000000000000", "170141183460469231731"]),
    ("DECIMAL(65,30)", ["12345678901234567890123456789012345.123456789012345678901234567890", "-0.5"]),
    (
        "DATE",
        [
            "'1000-01-01'",
            "'9999-12-31'",
            "'0000-00-00'",
            "'2020-02-31'",
            "'2020-00-15'",
            "'1970-01-01'",
            "'2000-02-29'",
            "'0001-01-01'",
        ],
    ),
    ("DATETIME", ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "0", "'1969-12-31 23:59:59'", "'2021-02-29 12:00:00'"]),
    ("DATETIME(3)", ["'2020-06-15 12:30:45.678'", "'2020-06-15 12:30:45'", "'2020-06-15'"]),
    ("DATETIME(6)", ["'9999-12-31 23:59:59.999999'", "'0001-01-01 00:00:00.000001'", "'1969-12-31 23:59:59.999999'"]),
    ("TIMESTAMP NULL", ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "0"]),
    ("TIMESTAMP(6) NULL", ["'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"]),
    ("TIME", ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'", "'99:59:59'", "'100:00:00'"]),
    ("TIME(2)", ["'-838:59:58.99'", "'12:34:56.7'", "'-00:00:00.01'", "'24:00:00'"]),
    ("TIME(6)", ["'-838:59:58.999999'", "'00:00:00.000001'"]),
    ("YEAR", ["1901", "2155", "0"]),
    ("BIT(1)", ["b'0'", "b'1'"]),
    ("BIT(9)", ["b'0'", "b'111111111'", "b'100000000'"]),
    ("BIT(64)", ["0xFFFFFFFFFFFFFFFF", "1", "0"]),
    ("CHAR(10)", ["''", "'abc'", "'Zoë 漢字'"]),
    ("VARCHAR(300)", ["''", "'😀'", "REPEAT('é', 300)", "REPEAT('x', 250)", "REPEAT('x', 251)", "REPEAT('x', 252)"]),
    ("VARCHAR(50) CHARACTER SET latin1", ["'Zoë €'", "''"]),
    ("VARCHAR(50) CHARACTER SET gbk", ["'漢字'", "'a'"]),
    ("VARCHAR(50) CHARACTER SET utf16", ["'😀漢'", "''"]),
    ("CHAR(8) CHARACTER SET sjis", ["'ソ表'", "''"]),
    ("TINYTEXT", ["''", "'漢'"]),
    ("TEXT", ["REPEAT('漢', 21000)", "'x'"]),
    ("MEDIUMTEXT", ["REPEAT('abcdefgh', 9000)", "''"]),
    ("LONGTEXT", ["REPEAT('xyz', 100000)", "''"]),
    ("BINARY(4)", ["''", "'a'", "0x00FF00FF"]),
    ("VARBINARY(300)", ["''", "0xFF00FE", "REPEAT(0xFF, 300)"]),
    ("BLOB", ["''", "REPEAT(0x00, 65535)"]),
    ("LONGBLOB", ["REPEAT(0xABCD, 40000)", "''"]),
    ("ENUM('small', 'it''s', 'Zoë', '漢')", ["'small'", "'it''s'", "4", "'no such'"]),
    ("ENUM('a', 'ö') CHARACTER SET latin1", ["'ö'", "'a'"]),
    ("SET('a', 'b', 'Zoë')", ["''", "'a'", "'a,Zoë'", "'a,b,Zoë'"]),
    ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 1, 2 2)', 0)"]),
    ("POINT", ["ST_GeomFromText('POINT(-1.5 2)')"]),
]
MYSQL8 = [("JSON", ['\'{"a": [1, 2.5, null, "ä😀"]}\'', "'[]'", "'1'", "CAST('null' AS JSON)"])]
MARIADB = [
    ("JSON", ['\'{"a": [1, 2.5, null, "ä😀"]}\'', "'[]'"]),
    ("UUID", ["'123e4567-e89b-12d3-a456-426655440000'", "'ffffffff-ffff-ffff-ffff-fffffffffffe'"]),
    ("INET4", ["'10.0.0.1'", "'255.255.255.255'"]),
    ("INET6", ["'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.1'"]),
]


def types_of(server: Server) -> list[tuple[str, list[str]]]:
    if server.kind == "mariadb":
        return EVERYWHERE + MARIADB
    return EVERYWHERE + (MYSQL8 if server.version >= (8,) else [])


@pytest.fixture
def typed(any_server: Server, database: Database) -> tuple[Server, str]:
    """A table of all types, one value a row and the other columns NULL, and a last row without NULLs."""
    name = f"{database(any_server)}.typed"
    types = types_of(any_server)
    with any_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'")
        columns = ", ".join(f"c{index} {kind}" for index, (kind, _) in enumerate(types))
        cursor.execute(f"CREATE TABLE {name} (id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, {columns}) CHARACTER SET utf8mb4")
        for index, (_, values) in enumerate(types):
            for value in values:
                cursor.execute(f"INSERT INTO {name} (c{index}) VALUES ({value})")
        names = ", ".join(f"c{index}" for index in range(len(types)))
        cursor.execute(f"INSERT INTO {name} ({names}) VALUES ({', '.join(values[0] for _, values in types)})")
    return any_server, name


def table_of(session: Session, name: str) -> MySqlTable:
    table = TableId(*name.split("."))
    return read_tables(session, [table])[table]


def printed(server: Server, table: MySqlTable, name: str) -> list[dict[str, Any]]:
    """What the server prints in the text protocol, unconverted; floats by an expression that prints them whole."""
    items = [
        f"{c.name} + 0e0" if c.base == "float" else f"CAST({c.name} AS UNSIGNED)" if c.base == "bit" else c.name for c in table.columns
    ]
    with server.connect(conv={}, init_command="SET time_zone = '+00:00'") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(items)} FROM {name} ORDER BY id")
        return [dict(zip([c.name for c in table.columns], row, strict=True)) for row in cursor.fetchall()]


def expected(column: MySqlColumn, text: Any, options: TypeOptions) -> Any:
    """A printed value in canonical form, by Python's own means."""
    if text is None:
        return None
    base = column.base
    if base in ("tinyint", "smallint", "mediumint", "int", "bigint", "year"):
        return Decimal(text) if base == "bigint" and column.unsigned else int(text)
    if base in ("float", "double"):
        return struct.unpack("<f", struct.pack("<f", float(text)))[0] if base == "float" else float(text)
    if base == "decimal":
        return Decimal(text) if (column.precision or 0) <= 38 else text
    if base in ("date", "datetime", "timestamp"):
        return text if options.zero_dates is ZeroDates.STRING else instant(base, text)
    if base == "time":
        return text if options.time_as is TimeAs.STRING else micros(text)
    if base == "bit":
        length = column.length or 1
        return int(text) != 0 if length == 1 else int(text).to_bytes((length + 7) // 8, "big")
    if base == "set":
        return text.split(",") if text else []
    return text


def instant(base: str, text: str) -> Any:
    try:
        if base == "date":
            return datetime.date.fromisoformat(text)
        zone = datetime.UTC if base == "timestamp" else None
        return datetime.datetime.fromisoformat(text).replace(tzinfo=zone)
    except ValueError:
        return None


def micros(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    total = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
    return -total if text.startswith("-") else total


@pytest.mark.parametrize("options", [TypeOptions(), TEXTS, TypeOptions(time_as=TimeAs.INTERVAL)], ids=["default", "texts", "interval"])
def test_every_type_is_read_as_the_server_prints_it(typed: tuple[Server, str], options: TypeOptions) -> None:
    server, name = typed
    with open_session(server) as session:
        table = table_of(session, name)
        counters = ReadCounters()
        names = ", ".join(column.name for column in table.columns)
        batches = list(select(session, f"SELECT {names} FROM {name} ORDER BY id", table.columns, options, counters=counters))
        # The session is whole: it goes on with ordinary queries, and the statement is gone.
        assert session.value("SELECT 1") == 1
        assert session.query("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")[0][1] == "0"
    lines = printed(server, table, name)
    rows = pa.Table.from_batches(batches)
    rows.validate(full=True)
    assert rows.schema == table.arrow_schema(options)
    impossible = 0
    for column in table.columns:
        got = rows.column(column.name)
        if pa.types.is_duration(got.type):
            got = got.cast(pa.int64())
        wanted = [expected(column, line[column.name], options) for line in lines]
        assert got.to_pylist() == wanted, f"{column.name} {column.base}"
        impossible += sum(value is None and line[column.name] is not None for value, line in zip(wanted, lines, strict=True))
    assert counters.rows == len(lines)
    assert counters.nulled_dates == impossible
    assert (impossible > 0) == (options.zero_dates is ZeroDates.NULL)


def test_batches_of_any_size_hold_the_same_rows(typed: tuple[Server, str]) -> None:
    server, name = typed
    with open_session(server) as session:
        table = table_of(session, name)
        sql = f"SELECT {', '.join(column.name for column in table.columns)} FROM {name} ORDER BY id"

        def read(**limits: int) -> tuple[pa.Table, int]:
            batches = list(select(session, sql, table.columns, TEXTS, counters=ReadCounters(), **limits))
            return pa.Table.from_batches(batches), len(batches)

        whole, _ = read()
        assert read(rows_max=1) == (whole, whole.num_rows)
        for limits in ({"rows_max": 7}, {"batch_bytes_max": 1 << 12}, {"batch_bytes_max": 1 << 16, "rows_max": 3}):
            rows, _ = read(**limits)
            assert rows == whole


def test_rows_are_read_alike_through_tls(mysql8: Server, database: Database) -> None:
    name = f"{database(mysql8)}.t"
    with open_session(mysql8, tls=Tls.REQUIRED) as session:
        session.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v TEXT)")
        session.execute(f"INSERT INTO {name} VALUES (1, REPEAT('x', 50000)), (2, REPEAT('y', 60000)), (3, NULL)")
        table = table_of(session, name)
        assert session.encrypted
        rows = pa.Table.from_batches(select(session, f"SELECT * FROM {name}", table.columns, TypeOptions(), counters=ReadCounters()))
    assert rows.column("v").to_pylist() == ["x" * 50000, "y" * 60000, None]


def test_rows_of_many_packets_are_put_together(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.big"
    packet = (1 << 24) - 1
    # A row's packet has a header, an INT and two lengths before the bytes; around the limit every length counts.
    sizes = [1, *range(packet - 19, packet - 11), 2 * packet - 16, 2, 0]
    with open_session(any_server) as session:
        session.execute("SET SESSION sql_log_bin = 0")
        # Old InnoDB takes no value that is large beside its own log.
        session.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a LONGTEXT, b LONGBLOB) ENGINE=MyISAM")
        for index, size in enumerate(sizes):
            session.execute(f"INSERT INTO {name} VALUES ({index}, REPEAT('x', {size}), 'tail')")
        table = table_of(session, name)
        sql = f"SELECT * FROM {name} ORDER BY id"
        got = []
        for batch in select(session, sql, table.columns, TypeOptions(), counters=ReadCounters(), pool=ArenaPool()):
            for row in range(batch.num_rows):
                value = batch.column(1)[row].as_buffer()
                assert value.to_pybytes() == b"x" * len(value)
                assert batch.column(2)[row].as_py() == b"tail"
                got.append(len(value))
        assert got == sizes
        with pytest.raises(InvalidConfig, match="row_bytes_max"):
            list(select(session, sql, table.columns, TypeOptions(), counters=ReadCounters(), row_bytes_max=20 << 20))
    with open_session(any_server) as session, pytest.raises(InvalidConfig, match="row_bytes_max"):
        list(select(session, sql, table.columns, TypeOptions(), counters=ReadCounters(), row_bytes_max=2 << 20))


def test_a_row_that_is_too_large_for_a_chunk_concerns_its_table_alone(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.large"
    with open_session(any_server) as session:
        session.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a LONGTEXT)")
        session.execute(f"INSERT INTO {name} VALUES (1, REPEAT('x', {3 << 20}))")
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        [chunk] = plan_chunks(session, table, extent, rows_per_chunk=10)
        rows = read_chunk(session, table, chunk, TypeOptions(), identity=session.server.identity, era=0, row_bytes_max=2 << 20)
        with pytest.raises(TableStuck, match=f"a row of {name} is larger than the limit") as stuck:
            list(rows.batches())
    assert stuck.value.table == (table.id.database, table.id.name)


def numbers(session: Session, name: str, count: int) -> None:
    session.execute(f"CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY)")
    digits = f"(SELECT 0 d {' '.join(f'UNION SELECT {digit}' for digit in range(1, 10))})"
    tables = " , ".join(f"{digits} t{index}" for index in range(len(str(count - 1))))
    value = " + ".join(f"t{index}.d * {10**index}" for index in range(len(str(count - 1))))
    session.execute(f"INSERT INTO {name} SELECT {value} AS n FROM {tables} HAVING n < {count}")


def test_an_error_in_the_midst_of_rows_is_raised_and_closes_the_session(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        numbers(session, name, 100_000)
        columns = [MySqlColumn(name="id", base="bigint", nullable=False), MySqlColumn(name="e", base="double")]
        counters = ReadCounters()
        sql = f"SELECT id, EXP(IF(id = 90000, 9999, 0)) FROM {name} ORDER BY id"
        with pytest.raises(SnowmeltError, match="1690"):
            for _ in select(session, sql, columns, TypeOptions(), counters=counters, rows_max=1000):
                pass
        assert counters.rows >= 80_000
        with pytest.raises(Unavailable):
            _ = session.sock


def test_a_result_that_is_left_unread_closes_the_session(mariadb: Server, database: Database) -> None:
    name = f"{database(mariadb)}.t"
    with open_session(mariadb) as session:
        numbers(session, name, 10_000)
        table = table_of(session, name)
        batches = select(session, f"SELECT id FROM {name}", table.columns, TypeOptions(), counters=ReadCounters(), rows_max=10)
        assert next(batches).num_rows == 10
        batches.close()  # type: ignore[attr-defined]
        with pytest.raises(Unavailable):
            _ = session.sock


def test_a_connection_that_is_lost_while_reading_is_unavailable(mariadb: Server, database: Database) -> None:
    name = f"{database(mariadb)}.t"
    with open_session(mariadb) as session, open_session(mariadb) as admin:
        numbers(admin, name, 100_000)
        table = table_of(session, name)
        connection = session.value("SELECT CONNECTION_ID()")
        batches = select(
            session,
            f"SELECT a.id FROM {name} a, {name} b",
            table.columns,
            TypeOptions(),
            counters=ReadCounters(),
            rows_max=1000,
        )
        next(batches)
        admin.execute(f"KILL {connection}")
        with pytest.raises(Unavailable):
            for _ in batches:
                pass


@pytest.mark.parametrize(
    "sql", ["SELECT id FROM {0}", "SELECT id, n, n FROM {0}", "SELECT id, CAST(n AS CHAR) FROM {0}", "SELECT n, id FROM {0}"]
)
def test_a_result_with_other_columns_than_expected_is_drift(sql: str, any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        session.execute(f"CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY, n INT UNSIGNED)")
        table = table_of(session, name)
        with pytest.raises(SourceDrift):
            list(select(session, sql.format(name), table.columns, TypeOptions(), counters=ReadCounters()))


def test_a_statement_that_the_server_refuses_is_an_error(any_server: Server) -> None:
    with open_session(any_server) as session, pytest.raises(SourceDrift, match="1146"):
        list(select(session, "SELECT 1 FROM mysql.no_such_table", [], TypeOptions(), counters=ReadCounters()))


# Keys: per case the definition of the key's columns, the key, and a generator of rows.
def _sparse(count: int) -> list[tuple[str, ...]]:
    """Dense, then with gaps that double, then far away: nothing that one step width could fit."""
    rows = [str(number - 3 * count // 4) for number in range(count // 2)]
    rows += [str(count + number * 1000 + (number * 7919) % 900) for number in range(count // 4)]
    rows += [str(10**15 + number * 10**9) for number in range(count - len(rows))]
    return [(row,) for row in rows]


def _strings(count: int, alphabet: str, seed: int) -> list[tuple[str, ...]]:
    source = random.Random(seed)
    words = {"".join(source.choice(alphabet) for _ in range(12)) + str(number) for number in range(count)}
    return [(f"CONVERT(x'{word.encode().hex()}' USING utf8mb4)",) for word in sorted(words)]


def _uuids(count: int, seed: int) -> list[tuple[str, ...]]:
    source = random.Random(seed)
    return [(f"'{uuid.UUID(int=source.getrandbits(128))}'",) for _ in range(count)]


ROWS = 20_000
TARGET = 1_000
KEYS: dict[str, tuple[str, str, Callable[[], list[tuple[str, ...]]]]] = {
    "dense integers": ("k INT NOT NULL", "k", lambda: [(str(number),) for number in range(1, ROWS + 1)]),
    "negative integers": ("k BIGINT NOT NULL", "k", lambda: [(str(-number * 3),) for number in range(ROWS)]),
    "sparse integers": ("k BIGINT NOT NULL", "k", lambda: _sparse(ROWS)),
    "great unsigned integers": (
        "k BIGINT UNSIGNED NOT NULL",
        "k",
        lambda: [(str(2**64 - 1 - number * 2**40),) for number in range(ROWS)],
    ),
    "utf8mb4_general_ci": (
        "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
        "k",
        lambda: _strings(ROWS, "abcABCäÄéß漢😀 '\"\\%", 1),
    ),
    "utf8mb4_bin": (
        "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
        "k",
        lambda: _strings(ROWS, "abcABCäÄéß漢😀", 2),
    ),
    "latin1_swedish_ci": ("k VARCHAR(40) CHARACTER SET latin1 NOT NULL", "k", lambda: _strings(ROWS, "abcABCäÄéßþÿ", 3)),
    "uuid strings": ("k CHAR(36) CHARACTER SET ascii NOT NULL", "k", lambda: _uuids(ROWS, 4)),
    "binary": ("k BINARY(16) NOT NULL", "k", lambda: [(f"UNHEX(MD5({number}))",) for number in range(ROWS)]),
    "decimals": ("k DECIMAL(30,6) NOT NULL", "k", lambda: [(f"{number * 37}.5 - 100000",) for number in range(ROWS)]),
    "doubles": ("k DOUBLE NOT NULL", "k", lambda: [(f"{number} / 3e0 - 1e3",) for number in range(ROWS)]),
    "floats": ("k FLOAT NOT NULL", "k", lambda: [(f"{number} * 1.1e0 - 1e4",) for number in range(ROWS)]),
    "dates and times": (
        "k DATETIME(6) NOT NULL",
        "k",
        lambda: [(f"'2020-01-01' + INTERVAL {number * 1_234_567} MICROSECOND",) for number in range(ROWS)],
    ),
    "times": ("k TIME(3) NOT NULL", "k", lambda: [(f"SEC_TO_TIME({number} * 0.25 - 2000)",) for number in range(ROWS)]),
    "two first values": (
        "a INT NOT NULL, b BIGINT NOT NULL",
        "a, b",
        lambda: [(str(number % 2), str(number * 10)) for number in range(100_000)],
    ),
    "enum, string and date": (
        "a ENUM('z', 'm', 'a') NOT NULL, b VARCHAR(20) NOT NULL, c DATE NOT NULL",
        "a, b, c",
        lambda: [(str(number % 4), f"'{number // 100 % 7}'", f"'2020-01-01' + INTERVAL {number} DAY") for number in range(ROWS)],
    ),
    "set and bits": (
        "a SET('x', 'y', 'z') NOT NULL, b BIT(20) NOT NULL",
        "a, b",
        lambda: [(str(number % 8), str(number)) for number in range(ROWS)],
    ),
    "impossible dates": (
        "a DATE NOT NULL, b INT NOT NULL",
        "a, b",
        lambda: [(f"'{date}'", str(number)) for date in ("0000-00-00", "2020-00-15", "2020-02-31", "2020-03-01") for number in range(1500)],
    ),
}
KEYS_MYSQL8 = {
    "utf8mb4_0900_ai_ci": (
        "k VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci NOT NULL",
        "k",
        lambda: _strings(ROWS, "abcABCäÄéß漢😀 ", 5),
    )
}
KEYS_MARIADB = {
    "uuid": ("k UUID NOT NULL", "k", lambda: _uuids(ROWS, 6)),
    "inet6": ("k INET6 NOT NULL", "k", lambda: [(f"'2001:db8::{number:x}'",) for number in range(ROWS)]),
}


def fill(server: Server, name: str, columns: str, key: str, rows: list[tuple[str, ...]]) -> int:
    """Make the table; rows that are equal under its collation come in once."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"CREATE TABLE {name} ({columns}, pad CHAR(60) NOT NULL DEFAULT 'x', PRIMARY KEY ({key})) CHARACTER SET utf8mb4")
        for start in range(0, len(rows), 5000):
            values = ", ".join(f"({', '.join(row)})" for row in rows[start : start + 5000])
            cursor.execute(f"INSERT IGNORE INTO {name} ({key}) VALUES {values}")
        cursor.execute(f"ANALYZE TABLE {name}")
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        return int(cursor.fetchone()[0])


def check_cover(session: Session, table: MySqlTable, target: int, count: int) -> list[Chunk]:
    """Chunks hold every row once, and but for the last one they are of the wanted size."""
    extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
    chunks = list(plan_chunks(session, table, extent, rows_per_chunk=target))
    source = from_table(session, table)
    sizes = [session.value(f"SELECT COUNT(*) FROM {source} WHERE {chunk_condition(table, chunk)}") for chunk in chunks]
    assert sum(sizes) == count
    assert all(target / 3 <= size <= target * 3 for size in sizes[:-1]), sizes
    assert sizes[-1] <= target * 3
    for chunk, following in itertools.pairwise(chunks):
        assert following.low == chunk.high
    assert chunks[0].low == extent.least
    assert chunks[-1].high == extent.greatest
    # Outside of the ends there is nothing: that is the tail.
    inside = key_condition(table, extent.least, extent.greatest, from_low=True)
    assert session.value(f"SELECT COUNT(*) FROM {source} WHERE NOT ({inside})") == 0
    return chunks


def _cases(kind: str) -> list[Any]:
    cases = KEYS | (KEYS_MARIADB if kind == "mariadb" else KEYS_MYSQL8 if kind == "mysql8" else {})
    return [pytest.param(kind, case, id=f"{kind}-{name}") for name, case in cases.items()]


@pytest.mark.parametrize(("kind", "case"), [case for kind in ("mariadb", "mysql8", "mysql56") for case in _cases(kind)])
def test_chunks_hold_every_row_once_are_even_and_use_the_index(
    kind: str,
    case: tuple[str, str, Callable[[], list[tuple[str, ...]]]],
    request: pytest.FixtureRequest,
    database: Database,
) -> None:
    server: Server = request.getfixturevalue(kind)
    columns, key, rows = case
    name = f"{database(server)}.t"
    count = fill(server, name, columns, key, rows())
    with open_session(server) as session:
        table = table_of(session, name)
        target = count // 20
        chunks = check_cover(session, table, target, count)
        middle = chunks[len(chunks) // 2]
        rows_in_it = session.value(f"SELECT COUNT(*) FROM {from_table(session, table)} WHERE {chunk_condition(table, middle)}")
        session.execute("FLUSH STATUS")
        session.value(f"SELECT COUNT(pad) FROM {from_table(session, table)} WHERE {chunk_condition(table, middle)}")
        if not columns.startswith("a SET"):
            assert _rows_touched(session) <= rows_in_it + 10


def _rows_touched(session: Session) -> int:
    """Whatever EXPLAIN says, what counts is how many rows of the index the server went through."""
    status = dict(session.query("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return int(status["Handler_read_next"]) + int(status["Handler_read_rnd_next"])


def test_chunks_of_dense_integers_are_found_without_walking_the_index(mariadb: Server, database: Database) -> None:
    name = f"{database(mariadb)}.t"
    with open_session(mariadb) as session:
        numbers(session, name, 100_000)
        session.execute(f"ANALYZE TABLE {name}")
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        session.execute("FLUSH STATUS")
        chunks = list(plan_chunks(session, table, extent, rows_per_chunk=2000))
        touched = int(session.query("SHOW SESSION STATUS LIKE 'Handler_read_next'")[0][1])
        assert 40 <= len(chunks) <= 70
        assert touched <= 20_000


def test_planning_goes_on_behind_any_chunk(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        numbers(session, name, 5_000)
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        chunks = list(plan_chunks(session, table, extent, rows_per_chunk=700))
        resumed = list(plan_chunks(session, table, extent, rows_per_chunk=700, after=chunks[2]))
        assert resumed[0].low == chunks[2].high
        assert [chunk.index for chunk in resumed] == list(range(3, 3 + len(resumed)))
        assert not list(plan_chunks(session, table, extent, rows_per_chunk=700, after=chunks[-1]))


def test_an_empty_table_is_all_tail_and_one_without_a_key_is_one_chunk(any_server: Server, database: Database) -> None:
    base = database(any_server)
    with open_session(any_server) as session:
        session.execute(f"CREATE TABLE {base}.empty (id INT PRIMARY KEY)")
        session.execute(f"CREATE TABLE {base}.keyless (n INT)")
        session.execute(f"INSERT INTO {base}.keyless VALUES (1), (1), (NULL)")
        empty, keyless = table_of(session, f"{base}.empty"), table_of(session, f"{base}.keyless")
        extent, _ = read_extent(session, empty, identity=session.server.identity, era=0)
        assert extent == Extent(None, None)
        assert not list(plan_chunks(session, empty, extent, rows_per_chunk=10))
        (chunk,) = plan_chunks(session, keyless, Extent(None, None), rows_per_chunk=10)
        rows = read_chunk(session, keyless, chunk, TypeOptions(), identity=session.server.identity, era=0)
        assert [batch.to_pydict() for batch in rows.batches()] == [{"n": [1, 1, None]}]


def test_a_table_of_one_row_is_one_chunk(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        session.execute(f"CREATE TABLE {name} (id VARCHAR(10) PRIMARY KEY)")
        session.execute(f"INSERT INTO {name} VALUES ('only')")
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        for target in (1, 2):
            assert list(plan_chunks(session, table, extent, rows_per_chunk=target)) == [Chunk(table.id, 0, ("only",), ("only",))]


def test_a_unique_key_serves_where_there_is_no_primary_one(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        numbers(session, f"{name}_source", 3_000)
        session.execute(f"CREATE TABLE {name} (v INT, k BIGINT NOT NULL, UNIQUE KEY by_k (k))")
        session.execute(f"INSERT INTO {name} SELECT 7, id * 5 FROM {name}_source")
        table = table_of(session, name)
        assert not table.key_is_primary
        check_cover(session, table, 300, 3_000)


# Keys whose greatest value, said in another charset or as a number with a sign, would be another one.
SETS = ", ".join(f"'m{bit}'" for bit in range(64))
ODD_KEYS: dict[str, tuple[str, str, list[str]]] = {
    "cp932": ("k VARCHAR(10) CHARACTER SET cp932", "k", ["_cp932 x'82A0'", "_cp932 x'82A2'", "_cp932 x'FA54'", "_cp932 x'81CA'"]),
    "greek": ("k VARCHAR(10) CHARACTER SET greek", "k", ["'abc'", "'xyz'", "_greek x'FF'", "_greek x'E1'"]),
    "big5": ("k VARCHAR(10) CHARACTER SET big5", "k", ["'abc'", "_big5 x'A451'", "_big5 x'F9FE'"]),
    "latin1": ("k VARCHAR(10) CHARACTER SET latin1", "k", ["'abc'", "_latin1 x'81'", "_latin1 x'80'", "_latin1 x'FF'"]),
    "latin1_bin": ("k CHAR(10) CHARACTER SET latin1 COLLATE latin1_bin", "k", ["'abc'", "_latin1 x'81'", "_latin1 x'8D'", "_latin1 x'FF'"]),
    "ucs2": ("k VARCHAR(10) CHARACTER SET ucs2", "k", ["'abc'", "_ucs2 x'4E2D'", "_ucs2 x'FFFD'"]),
    "utf16": ("k VARCHAR(10) CHARACTER SET utf16", "k", ["'abc'", "'中'", "'😀'"]),
    "set of 64": (f"k SET({SETS})", "k", ["1", "3", "9223372036854775808", "18446744073709551615"]),
    "integer and set of 64": (
        f"a INT, k SET({SETS})",
        "a, k",
        ["1, 1", "1, 3", "2, 1", "2, 9223372036854775808", "2, 9223372036854775809"],
    ),
    "big5 and integer": (
        "k VARCHAR(10) CHARACTER SET big5, a INT",
        "k, a",
        ["'abc', 1", "_big5 x'F9FE', 1", "_big5 x'F9FE', 2", "_big5 x'A451', 7"],
    ),
}


@pytest.mark.parametrize("case", ODD_KEYS.values(), ids=ODD_KEYS.keys())
def test_no_row_is_lost_though_its_key_does_not_survive_the_way_to_utf8_and_back(
    any_server: Server, database: Database, case: tuple[str, str, list[str]]
) -> None:
    columns, key, keys = case
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        session.execute("SET sql_mode = ''")
        session.execute(f"CREATE TABLE {name} ({columns}, number INT NOT NULL, PRIMARY KEY ({key}))")
        held = 0
        for number, value in enumerate(keys):
            # What a server holds to be no text in that charset it refuses or cuts; such rows are not what this is about.
            with suppress(SnowmeltError):
                session.execute(f"INSERT INTO {name} ({key}, number) VALUES ({value}, {number})")
                held += 1
        assert held >= 3
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        for target in (1, 2, 3, 100):
            chunks = list(plan_chunks(session, table, extent, rows_per_chunk=target))
            assert len(chunks) == -(-held // target)
            found = []
            for chunk in chunks:
                rows = read_chunk(session, table, chunk, TypeOptions(), identity=session.server.identity, era=0)
                found += [value for batch in rows.batches() for value in batch.column("number").to_pylist()]
            assert len(found) == len(set(found)) == held, f"chunks of {target}"
            # A plan that goes on elsewhere has only the bounds.
            resumed = list(plan_chunks(session, table, extent, rows_per_chunk=target, after=chunks[0]))
            assert resumed == chunks[1:]


def test_columns_that_only_python_takes_for_one_are_not_mixed_up(any_server: Server, database: Database) -> None:
    name = f"{database(any_server)}.t"
    with open_session(any_server) as session:
        session.execute(f"CREATE TABLE {name} (`ss` INT, `ß` INT PRIMARY KEY)")
        session.execute(f"INSERT INTO {name} VALUES (500, 1), (6000, 2), (1, 700), (2, 3)")
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        assert extent == Extent((1,), (700,))
        for target in (1, 2, 10):
            found = []
            for chunk in plan_chunks(session, table, extent, rows_per_chunk=target):
                rows = read_chunk(session, table, chunk, TypeOptions(), identity=session.server.identity, era=0)
                found += [tuple(row.values()) for batch in rows.batches() for row in batch.to_pylist()]
            assert found == [(500, 1), (6000, 2), (2, 3), (1, 700)]


def test_the_history_of_a_versioned_table_is_read_with_it(mariadb: Server, database: Database) -> None:
    name = f"{database(mariadb)}.t"
    with open_session(mariadb) as session:
        session.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")
        session.execute(f"INSERT INTO {name} VALUES (1, 10), (2, 20)")
        session.execute(f"UPDATE {name} SET v = 11 WHERE id = 1")
        session.execute(f"DELETE FROM {name} WHERE id = 2")
        table = table_of(session, name)
        extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
        values = []
        for chunk in plan_chunks(session, table, extent, rows_per_chunk=1):
            rows = read_chunk(session, table, chunk, TypeOptions(), identity=session.server.identity, era=0)
            values += [(row["id"], row["v"]) for batch in rows.batches() for row in batch.to_pylist()]
        assert values == [(1, 10), (1, 11), (2, 20)]


def test_chunks_planned_and_read_while_rows_come_and_go_still_hold_every_lasting_row(any_server: Server, database: Database) -> None:
    """Rows with even keys last; odd ones appear and vanish all the time, at chunk ends too."""
    name = f"{database(any_server)}.t"
    stop = threading.Event()

    def churn(seed: int) -> None:
        source = random.Random(seed)
        with any_server.connect() as connection, connection.cursor() as cursor:
            while not stop.is_set():
                odd = 2 * source.randrange(3000) + 1
                cursor.execute(f"INSERT IGNORE INTO {name} VALUES ({odd})")
                cursor.execute(f"DELETE FROM {name} WHERE id = {2 * source.randrange(3000) + 1}")

    with open_session(any_server) as session:
        numbers(session, f"{name}_source", 3_000)
        session.execute(f"CREATE TABLE {name} (id BIGINT NOT NULL PRIMARY KEY)")
        session.execute(f"INSERT INTO {name} SELECT id * 2 FROM {name}_source")
        table = table_of(session, name)
        threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
            found: list[int] = []
            for chunk in plan_chunks(session, table, extent, rows_per_chunk=100):
                rows = read_chunk(session, table, chunk, TypeOptions(), identity=session.server.identity, era=0)
                found += [value for batch in rows.batches() for value in batch.column(0).to_pylist()]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert len(found) == len(set(found))
        assert [value for value in sorted(found) if value % 2 == 0] == [2 * number for number in range(3000)]
