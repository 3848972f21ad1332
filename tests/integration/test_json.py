"""Binary JSON against a real server: what we print from the log is what SELECT gives."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from snowmelt.databases.mysql.types.binary_json import CORRUPT, ROOM_TOO_SMALL, apply_diffs, json_text, text_of, text_room
from tests.kit.servers import Server, log_end

WRITE_ROWS, UPDATE_ROWS, PARTIAL_UPDATE_ROWS = 30, 31, 39
CHECKSUM_BYTES = 4


class Log:
    """The rows that statements leave in the server's log, read from its file."""

    def __init__(self, server: Server, cursor: Any) -> None:
        self._server, self._cursor = server, cursor
        self.mark()

    def mark(self) -> None:
        self._file, self._position = log_end(self._cursor)

    def rows_events(self) -> Iterator[tuple[int, bytes]]:
        """(type, all behind the extra data) of each rows event since the mark."""
        with open(self._server.data / self._file, "rb") as file:
            file.seek(self._position)
            data = file.read()
        at = 0
        while at < len(data):
            kind, size = data[at + 4], struct.unpack_from("<I", data, at + 9)[0]
            if kind in (WRITE_ROWS, UPDATE_ROWS, PARTIAL_UPDATE_ROWS):
                body = data[at + 19 : at + size - CHECKSUM_BYTES]
                yield kind, body[8 + struct.unpack_from("<H", body, 8)[0] :]
            at += size

    def inserted(self) -> dict[int, bytes]:
        """The documents of a table (id INT, document JSON), by id."""
        documents: dict[int, bytes] = {}
        for kind, body in self.rows_events():
            assert kind == WRITE_ROWS
            at = 2
            while at < len(body):
                assert body[at] & 3 == 0, "nothing is NULL"
                key, length = struct.unpack_from("<iI", body, at + 1)
                documents[key] = body[at + 9 : at + 9 + length]
                at += 9 + length
        return documents


@contextmanager
def table(server: Server, name: str, columns: str = "id INT PRIMARY KEY, document JSON") -> Iterator[tuple[Any, Log]]:
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE documents ({columns})")
        yield cursor, Log(server, cursor)


def check_printed(cursor: Any, log: Log) -> None:
    """Each inserted document prints as SELECT shows it, fits its exact length, and says so when a byte is missing."""
    documents = log.inserted()
    cursor.execute("SELECT id, document FROM documents")
    shown = dict(cursor.fetchall())
    assert documents.keys() == shown.keys()
    for key, document in documents.items():
        expected = shown[key].encode()
        assert text_of(document) == expected
        assert len(expected) <= text_room(len(document))
        source, target = np.frombuffer(bytearray(document), np.uint8), np.full(len(expected) + 8, 255, np.uint8)
        assert json_text(source, 0, len(source), target, 4, len(expected)) == len(expected)
        assert target[4:-4].tobytes() == expected
        assert json_text(source, 0, len(source), target, 4, len(expected) - 1) == ROOM_TOO_SMALL
        assert (target[:4] == 255).all()
        assert (target[-4:] == 255).all()


SCALARS = [
    scalar
    for line in r"""
        NULL; TRUE; FALSE; ''; 'text'; 'a"b\\c/d\n\t\r\b'; CHAR(0, 1, 8, 11, 12, 27, 31, 127 USING utf8mb4)
        'é€😀'; _utf8mb4 x'E280A8'; REPEAT('0123456789é"', 20000); REPEAT('x', 127); REPEAT('x', 128); REPEAT('x', 16384)
        0; -1; 32767; 32768; -32768; -32769; 65535; 65536; 2147483647; 2147483648; -2147483648; -2147483649
        4294967295; 4294967296; 9223372036854775807; 9223372036854775808; -9223372036854775808; 18446744073709551615
        CAST(5 AS UNSIGNED); CAST(40000 AS UNSIGNED); CAST(70000 AS UNSIGNED); CAST(5000000000 AS UNSIGNED)
        CAST(1.50 AS DECIMAL(5, 2)); CAST(-0.5 AS DECIMAL(5, 2)); CAST(0 AS DECIMAL(5, 2)); CAST(-7 AS DECIMAL(65, 0))
        CAST(REPEAT('9', 65) AS DECIMAL(65, 0)); CAST(CONCAT('-', REPEAT('9', 35), '.', REPEAT('9', 30)) AS DECIMAL(65, 30))
        CAST('0.000000000000000000000000000001' AS DECIMAL(30, 30)); CAST('1000000000.000000001' AS DECIMAL(19, 9))
        CAST('100000000000000000000' AS DECIMAL(40, 3)); CAST('-123456789.1' AS DECIMAL(10, 1)); 0.1; -12345678901234567890.5
        DATE'2020-01-02'; DATE'9999-12-31'; DATE'0001-01-01'; CAST('0000-00-00' AS DATE); CAST('2020-00-00' AS DATE)
        TIME'00:00:00'; TIME'23:59:59.999999'; TIME'-00:00:00.000001'; TIME'-12:34:56.7'; TIME'31:00:00'; TIME'32:00:00'
        TIME'100:02:03'; TIME'-100:02:03.5'; TIME'838:59:59'; TIME'-838:59:59'
        TIMESTAMP'2020-01-02 03:04:05'; TIMESTAMP'2020-01-02 23:59:59.123456'; CAST('0000-00-00 00:00:00' AS DATETIME)
        x''; x'00'; x'00FF'; x'00FF10'; REPEAT(x'41', 56); REPEAT(x'41', 57); REPEAT(x'41', 58); REPEAT(x'FB', 114)
        REPEAT(x'41', 115); REPEAT(x'00', 70000); ST_GeomFromText('POINT(1 2)')
    """.strip().splitlines()
    for scalar in line.strip().split("; ")
]
"""SQL expressions, each cast to JSON by itself and as a member of a small and of a large container."""

DOUBLES = [0.0, -0.0, 1.0, 0.1, 1 / 3, 100 / 3, 1e308, 1.7976931348623157e308]
DOUBLES += [5e-324, 2.2250738585072014e-308, 2.225073858507201e-308]
DOUBLES += [123456789012345680.0, 1234567890123456.8, 9007199254740991.0, 9007199254740993.0, 1e22, 1e23, 0.1 + 0.2, -2.5]
DOUBLES += [float(f"{digits}e{power}") for digits in ("1", "-1.5", "1.2345678901234567") for power in range(-25, 25)]


def test_every_kind_of_scalar_prints_as_select_shows_it(mysql8: Server, database: Callable[[Server], str]) -> None:
    with table(mysql8, database(mysql8)) as (cursor, log):
        cursor.execute("SET sql_mode = ''")
        for number, scalar in enumerate(SCALARS):
            # A cast would parse a text, and makes SQL's NULL of NULL.
            textual = scalar.startswith(("'", "CHAR", "_utf8", "NULL", "REPEAT('"))
            alone = f"JSON_ARRAY({scalar})" if textual else f"CAST({scalar} AS JSON)"
            cursor.execute(
                f"INSERT INTO documents VALUES (%s, {alone}), (%s, JSON_ARRAY({scalar}, {scalar})), "
                f"(%s, JSON_OBJECT('key', {scalar}, 'a', 1)), (%s, JSON_OBJECT('key', {scalar}, 'long', REPEAT('x', 70000)))",
                [4 * number + place for place in range(4)],
            )
        check_printed(cursor, log)


def test_columns_of_every_type_print_as_select_shows_them_in_json(mysql8: Server, database: Callable[[Server], str]) -> None:
    columns = "ts TIMESTAMP(6), bl BLOB, bi BIT(9), ge GEOMETRY, en ENUM('x'), se SET('a', 'b'), ye YEAR, fl FLOAT, "
    columns += "vb VARBINARY(9), tb TINYBLOB, mb MEDIUMBLOB, lb LONGBLOB, bn BINARY(3), js JSON"
    values = "'2020-02-03 04:05:06.7', x'0102', b'100000001', POINT(1, 2), 'x', 'a,b', 1999, 1.1, "
    values += "x'01', x'02', x'03', x'04', x'05', '[1]'"
    with table(mysql8, database(mysql8)) as (cursor, log):
        cursor.execute(f"CREATE TABLE origin ({columns})")
        cursor.execute(f"INSERT INTO origin VALUES ({values})")
        log.mark()
        for number, column in enumerate(part.split()[0] for part in columns.replace("'a', 'b'", "").split(", ")):
            cursor.execute(f"INSERT INTO documents SELECT {number}, JSON_ARRAY({column}) FROM origin")
        check_printed(cursor, log)


def test_doubles_print_as_select_shows_them(mysql8: Server, database: Callable[[Server], str]) -> None:
    chance = random.Random(1)
    doubles = list(DOUBLES)
    while len(doubles) < 5000:
        (double,) = struct.unpack("<d", chance.randbytes(8))
        doubles += [double] if abs(double) <= 1.7976931348623157e308 else []
        doubles.append(chance.randrange(-(10**17), 10**17) / 10 ** chance.randrange(30))
    with table(mysql8, database(mysql8)) as (cursor, log):
        # A literal with an exponent is a DOUBLE, and the server reads literals exactly, which its JSON parser does not.
        rows = [f"({number}, CAST({double:.17e} AS JSON))" for number, double in enumerate(doubles)]
        cursor.execute(f"INSERT INTO documents VALUES {', '.join(rows)}")
        check_printed(cursor, log)


def random_text(chance: random.Random) -> str:
    alphabet = chance.choice(["abcdefgh", 'ab"\\/', "\x00\x01\n\t\x1f\x7f", "é€\U0001f600a", "abc é\n"])
    return "".join(chance.choices(alphabet, k=chance.choice([0, 1, 2, 7, 8, 9, 30, 200])))


def random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(9 if depth else 6)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.randrange(-(2 ** chance.randrange(64)), 2 ** chance.randrange(1, 65))
        case 2:
            return chance.choice([chance.random(), float(chance.randrange(10**6)), chance.random() * 10.0 ** chance.randrange(-300, 300)])
        case 3 | 4 | 5:
            return random_text(chance)
        case 6:
            return [random_value(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 3, 40]))]
        case _:
            return {random_text(chance): random_value(chance, depth - 1) for _ in range(chance.choice([0, 1, 2, 3, 20]))}


def test_random_documents_print_as_select_shows_them(mysql8: Server, database: Callable[[Server], str]) -> None:
    chance = random.Random(2)
    with table(mysql8, database(mysql8)) as (cursor, log):
        for number in range(300):
            cursor.execute("INSERT INTO documents VALUES (%s, %s)", (number, json.dumps(random_value(chance, 4))))
        check_printed(cursor, log)


def test_large_documents_print_as_select_shows_them(mysql8: Server, database: Callable[[Server], str]) -> None:
    chance = random.Random(3)
    wide = {f"key{number}": [number, number * 100_000, number / 7, str(number), None] for number in range(5000)}
    # The small format ends at 64 KiB, so these stand on both sides of it.
    borders = [{"a": [1, {"b": "x" * length}]} for length in range(65_480, 65_540, 3)]
    nested = [[random_value(chance, 4) for _ in range(300)] for _ in range(3)]
    with table(mysql8, database(mysql8)) as (cursor, log):
        for number, value in enumerate([wide, list(range(70_000)), *borders, *nested]):
            cursor.execute("INSERT INTO documents VALUES (%s, %s)", (number, json.dumps(value)))
        check_printed(cursor, log)


@pytest.mark.parametrize("padding", ["", "x" * 70_000])
def test_the_deepest_documents_print_as_select_shows_them(mysql8: Server, database: Callable[[Server], str], padding: str) -> None:
    arrays = "[" * 99 + f'{{"{padding[:60_000]}": "{padding}"}}' + "]" * 99
    objects = '{"a":' * 100 + "1" + "}" * 100
    with table(mysql8, database(mysql8)) as (cursor, log):
        cursor.execute("INSERT INTO documents VALUES (1, %s), (2, %s), (3, %s)", (arrays, objects, "[" * 100 + "]" * 100))
        check_printed(cursor, log)


def test_the_default_of_a_not_null_column_is_no_bytes_and_prints_as_null(mysql8: Server, database: Callable[[Server], str]) -> None:
    with table(mysql8, database(mysql8), "id INT PRIMARY KEY, document JSON NOT NULL") as (cursor, log):
        cursor.execute("INSERT IGNORE INTO documents (id) VALUES (1)")
        assert log.inserted() == {1: b""}
        check_printed(cursor, log)


# Partial updates.


def image(body: bytes, at: int, present: int, columns: list[str]) -> tuple[dict[int, bytes | None], int]:
    """The values of an image by column number, and where it ends; columns are "int" or "json"."""
    inside = [number for number in range(len(columns)) if present >> number & 1]
    width = (len(inside) + 7) // 8
    nulls = int.from_bytes(body[at : at + width], "little")
    at += width
    values: dict[int, bytes | None] = {}
    for place, number in enumerate(inside):
        if nulls >> place & 1:
            values[number] = None
            continue
        length = 4
        if columns[number] == "json":
            length = struct.unpack_from("<I", body, at)[0]
            at += 4
        values[number] = body[at : at + length]
        at += length
    return values, at


Row = tuple[dict[int, bytes | None], dict[int, bytes | None], set[int]]


def partial_rows(body: bytes, columns: list[str]) -> Iterator[Row]:
    """(before, after, which columns are partial) of each row of an event of type 39, read as our module describes it."""
    assert body[0] == len(columns)
    width = (len(columns) + 7) // 8
    present_before = int.from_bytes(body[1 : 1 + width], "little")
    present_after = int.from_bytes(body[1 + width : 1 + 2 * width], "little")
    documents = [number for number, column in enumerate(columns) if column == "json"]
    at = 1 + 2 * width
    while at < len(body):
        before, at = image(body, at, present_before, columns)
        options = body[at]
        at += 1
        assert options in (0, 1)
        bits = 0
        if options:
            bits = int.from_bytes(body[at : at + (len(documents) + 7) // 8], "little")
            at += (len(documents) + 7) // 8
        after, at = image(body, at, present_after, columns)
        yield before, after, {number for bit, number in enumerate(documents) if bits >> bit & 1}
    assert at == len(body)


def sql_path(chance: random.Random, value: Any) -> str:
    """A path into a value that mostly exists, or nearly so."""
    path = "$"
    while chance.random() < 0.85:
        if isinstance(value, dict) and value and chance.random() < 0.9:
            name = chance.choice([*value, "new", "é", 'q"b\\', "a b", "", "last", "1a", "\n\x01"])
            plain = name.isascii() and name.isalpha() and chance.random() < 0.5
            path += f".{name}" if plain else f".{json.dumps(name, ensure_ascii=chance.random() < 0.5)}"
            value = value.get(name)
        elif isinstance(value, list) and value and chance.random() < 0.9:
            cell = chance.randrange(len(value) + 3)
            if chance.random() < 0.3:
                path += f"[last-{cell}]" if cell else "[last]"
                cell = len(value) - 1 - cell
            else:
                path += f"[{cell}]"
            value = value[cell] if 0 <= cell < len(value) else None
        elif chance.random() < 0.3:
            path += chance.choice(["[0]", "[last]", "[1]", "[last-1]", ".new", "[0][0]"])
            break
    return path


SQL_VALUES = ["1.50", "DATE'2020-02-03'", "TIME'-12:00:01'", "x'00FF'", "NULL", "1e300", "TRUE"]
NAMES = ["a", "b", "bb", "é", 'q"b\\', "a b", "", "last", "1a", "\n\x01", "$", "x.y[0]"]


def random_tree(chance: random.Random, depth: int) -> Any:
    if depth == 0 or chance.random() < 0.2:
        return random_value(chance, 0)
    if chance.random() < 0.5:
        return [random_tree(chance, depth - 1) for _ in range(chance.randrange(6))]
    return {name: random_tree(chance, depth - 1) for name in chance.sample(NAMES, chance.randrange(6))}


def random_update(chance: random.Random, document: Any) -> tuple[str, list[str]]:
    """An expression that the server can log as differences, and its parameters."""
    expression, parameters = "document", []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        function = chance.choice(["JSON_SET", "JSON_SET", "JSON_REPLACE", "JSON_REMOVE"])
        for _ in range(chance.choice([1, 1, 2])):
            path = sql_path(chance, document)
            if function == "JSON_REMOVE":
                if path == "$":
                    continue
                expression = f"JSON_REMOVE({expression}, %s)"
                parameters.append(path)
            else:
                value = chance.choice(["CAST(%s AS JSON)", "CAST(%s AS JSON)", *SQL_VALUES])
                expression = f"{function}({expression}, %s, {value})"
                parameters.append(path)
                if "%s" in value:
                    parameters.append(json.dumps(random_tree(chance, chance.randrange(3))))
    return expression, parameters


@pytest.mark.parametrize("seed", range(3))
def test_differences_give_what_select_shows_after_the_update(mysql8: Server, database: Callable[[Server], str], seed: int) -> None:
    chance = random.Random(seed)
    operations: set[int] = set()
    applied = 0
    with table(mysql8, database(mysql8)) as (cursor, log):
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        shown = ""
        for _ in range(300):
            if "ppp" not in shown or chance.random() < 0.05:
                # Padding makes differences shorter than the document, else the server does not write them.
                padding: dict[str, Any] = {"padding": "p" * chance.choice([3000, 70_000])}
                trees = [random_tree(chance, 2) for _ in range(3)]
                document: Any = padding | {"bb": random_tree(chance, 3), "a": random_tree(chance, 4), "c": trees}
                if chance.random() < 0.3:
                    document = [document, *document["c"]]
                cursor.execute("REPLACE INTO documents VALUES (1, %s)", [json.dumps(document)])
            expression, parameters = random_update(chance, document)
            log.mark()
            cursor.execute(f"UPDATE documents SET document = {expression}", parameters)
            cursor.execute("SELECT document FROM documents")
            (shown,) = cursor.fetchone()
            document = json.loads(shown)
            for kind, body in log.rows_events():
                assert kind == PARTIAL_UPDATE_ROWS
                for before, after, partial in partial_rows(body, ["int", "json"]):
                    old, new = before[1], after[1]
                    assert old is not None
                    assert new is not None
                    if partial:
                        assert apply_diffs(old, new) == shown.encode()
                        applied += 1
                        operations |= {new[0]} if new else set()
                    else:
                        assert text_of(new) == shown.encode()
    assert operations == {0, 1, 2}
    assert applied > 100


def test_the_partial_bitmap_counts_the_json_columns_of_the_table(mysql8: Server, database: Callable[[Server], str]) -> None:
    columns = ["int"] + ["json", "int"] * 10
    names = ["id"] + [f"{kind}{number}" for number in range(10) for kind in ("j", "k")]
    definition = ", ".join(f"{name} {kind}" for name, kind in zip(names, columns, strict=True))
    document = {"a": 1, "padding": "p" * 200}
    with table(mysql8, database(mysql8), f"{definition}, PRIMARY KEY (id)") as (cursor, log):
        for key in (1, 2):
            cursor.execute(f"INSERT INTO documents (id, j0, j8, j9) VALUES ({key}, %s, %s, %s)", [json.dumps(document)] * 3)
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")

        def update(assignments: str) -> list[Row]:
            log.mark()
            cursor.execute(f"UPDATE documents SET {assignments}")
            return [row for kind, body in log.rows_events() for row in partial_rows(body, columns)]

        def of(name: str) -> int:
            return names.index(name)

        for row_image in ("FULL", "MINIMAL"):
            cursor.execute(f"SET binlog_row_image = {row_image}")
            changed = "j9 = JSON_SET(j9, '$.a', COALESCE(k9, 0) + id + 7), k9 = COALESCE(k9, 0) + 10"
            rows = update(f"{changed}, j0 = IF(id = 1, '[]', '{{}}'), j1 = '[5]'")
            assert len(rows) == 2
            for before, after, partial in rows:
                assert of("j9") in partial
                assert of("j0") not in partial
                assert of("j1") not in partial
                assert (of("j8") in partial) == (row_image == "FULL")
                assert after[of("j9")] is not None
                if row_image == "FULL":
                    assert after[of("j8")] == b"", "an unchanged document has no differences"
                else:
                    assert before.keys() == {0}
            rows = update("k0 = COALESCE(k0, 0) + 1, j0 = NULL, j1 = NULL")
            assert [partial for _, _, partial in rows] == [{of("j8"), of("j9")} if row_image == "FULL" else set()] * 2
            cursor.execute("SET binlog_row_image = FULL")
            update("j1 = '[7]', j0 = '[8]'")


def test_mutated_documents_of_a_server_are_printed_or_refused(mysql8: Server, database: Callable[[Server], str]) -> None:
    chance = random.Random(4)
    with table(mysql8, database(mysql8)) as (cursor, log):
        for number in range(60):
            cursor.execute("INSERT INTO documents VALUES (%s, %s)", (number, json.dumps(random_value(chance, 4))))
        documents = [document for document in log.inserted().values() if 2 < len(document) < 20_000]
    refused = 0
    for _ in range(3000):
        mutant = bytearray(chance.choice(documents))
        for _ in range(chance.choice([1, 1, 2, 5])):
            place = chance.randrange(min(len(mutant), chance.choice([8, 100, 20_000])))
            mutant[place] = chance.choice([0, 1, 2, 255, chance.randrange(256)])
        if chance.random() < 0.2:
            del mutant[chance.randrange(len(mutant)) :]
        room = text_room(len(mutant))
        target = np.full(room + 8, 255, np.uint8)
        # The bytes behind the document belong to somebody else; they must not show.
        source = np.frombuffer(mutant + b"\xee" * 64, np.uint8)
        written = json_text(source, 0, len(mutant), target, 0, room)
        assert written != ROOM_TOO_SMALL
        assert (target[room:] == 255).all()
        refused += written == CORRUPT
        if written >= 0:
            json.loads(target[:written].tobytes())
    assert refused > 100
