"""Tables with a family of types each, the literals that are written to them, and their values by SELECT, by a chunk read and by the log.

What plain SELECT prints is mapped to the canonical value by the few lines of Python below, which know nothing of the decoders.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlTable, TimeAs, TypeOptions, ZeroDates
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from tests.integration.logs import (
    Change,
    changes,
    mark_by,
    open_session,
    python_values,
    read,
)
from tests.kit.servers import Server


@dataclass(frozen=True)
class Literals:
    """SQL literals for a column: those that are always tried, and a strategy for more."""

    edges: list[str]
    drawn: st.SearchStrategy[str]


UTC = datetime.UTC

# ------------------------------------------------------------------------------------------------- what SELECT prints, mapped


def to_integer(text: str) -> int:
    return int(text)


def to_wide(text: str) -> Decimal:
    return Decimal(text)


def to_float(text: str) -> bytes:
    return np.float32(text).tobytes()


def to_double(text: str) -> bytes:
    return np.float64(text).tobytes()


def to_date(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def to_datetime(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def to_instant(text: str) -> datetime.datetime | None:
    wall = to_datetime(text)
    return None if wall is None else wall.replace(tzinfo=UTC)


def to_micros(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    micros = (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
    return -micros if text.startswith("-") else micros


def to_interval(text: str) -> datetime.timedelta:
    return datetime.timedelta(microseconds=to_micros(text))


def to_same(value: Any) -> Any:
    return value


def to_bool(value: bytes) -> bool:
    return value != b"\0"


def to_labels(text: str) -> list[str]:
    return text.split(",") if text else []


# ----------------------------------------------------------------------------------------------------------- what is written


def text_literal(text: str) -> str:
    # A hexadecimal literal without bytes can't be had on every server.
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


def bytes_literal(value: bytes) -> str:
    return f"x'{value.hex()}'"


def quoted(text: str) -> str:
    return f"'{text}'"


def one_of(edges: list[str], drawn: st.SearchStrategy[str] | None = None) -> Literals:
    edges = ["NULL", *dict.fromkeys(edges)]
    some = st.sampled_from(edges)
    return Literals(edges, some if drawn is None else st.one_of(drawn, some))


def integers(bits: int, unsigned: bool) -> Literals:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    edges = [low, high, 0, 1, high // 2, high // 2 + 1, -1 if low else 255, 127, 10]
    return one_of([str(edge) for edge in edges], st.integers(low, high).map(str))


def decimals(precision: int, scale: int, unsigned: bool = False) -> Literals:
    def literal(digits: int) -> str:
        text = str(abs(digits)).zfill(scale + 1)
        whole, fraction = text[: len(text) - scale], text[len(text) - scale :]
        return ("-" if digits < 0 else "") + whole + ("." + fraction if scale else "")

    most = 10**precision - 1
    edges = [0, 1, most, 10**scale, 10**scale - 1, 5 * 10**scale, most // 10, 10**9 % (most + 1), (10**9 - 1) % (most + 1)]
    edges += [] if unsigned else [-edge for edge in edges if edge]
    return one_of([literal(edge) for edge in edges], st.integers(0 if unsigned else -most, most).map(literal))


def floats(width: int) -> Literals:
    edges = ["0", "-0e0", "1", "-1.5", "1e-10", "0.1", "16777217", "1e7", "123456789"]
    edges += ["3.4028234663852886e38", "-3.4028234663852886e38", "1.1754943508222875e-38"] if width == 32 else []
    edges += ["1.7976931348623157e308", "-1.7976931348623157e308", "2.2250738585072014e-308"] if width == 64 else []
    # Denormals are flushed by some servers' text conversions, which is not what is tried here.
    numbers = st.floats(width=width, allow_nan=False, allow_infinity=False, allow_subnormal=False)
    return one_of(edges, numbers.map(lambda number: f"{number!r}e0" if "e" not in repr(number) else repr(number)))


DATES = ["0000-00-00", "0000-01-01", "0001-01-01", "1000-01-01", "1969-12-31", "1970-01-01", "2000-02-29", "1900-02-28"]
DATES += ["2020-00-15", "2020-01-00", "2021-02-30", "2021-11-31", "9999-12-31"]


def dates() -> Literals:
    return one_of([quoted(date) for date in DATES], st.dates().map(lambda date: quoted(date.isoformat())))


def datetimes() -> Literals:
    clocks = ["00:00:00", "23:59:59", "12:34:56.789123", "00:00:00.000001"]
    edges = [f"{date} {clock}" for date in DATES for clock in clocks]
    return one_of([quoted(edge) for edge in edges], st.datetimes().map(lambda moment: quoted(moment.isoformat(" "))))


def timestamps(server: Server | None = None) -> Literals:
    edges = ["0000-00-00 00:00:00", "1970-01-01 08:00:01", "2038-01-19 11:14:07", "2020-06-15 12:34:56.789123"]
    edges += ["1970-01-01 08:00:01.000001", "2001-09-09 09:46:40.5"]
    if server is not None and server.kind == "mariadb" and server.version >= (11, 5):
        edges += ["2038-01-19 11:14:08", "2106-02-07 14:28:15", "2106-02-07 14:28:14.999999"]
    low, high = datetime.datetime(1970, 1, 2), datetime.datetime(2038, 1, 18)
    return one_of([quoted(edge) for edge in edges], st.datetimes(low, high).map(lambda moment: quoted(moment.isoformat(" "))))


def times() -> Literals:
    edges = ["-838:59:59", "838:59:59", "00:00:00", "-00:00:01", "-00:00:00.000001", "-00:00:00.01", "-00:00:00.1", "99:59:59"]
    edges += ["-00:00:00.5", "-00:00:01.999999", "100:00:00.123456", "-100:00:00.99", "837:59:59.999999", "-12:34:56.7891"]

    def literal(micros: int) -> str:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        return quoted(f"{'-' if micros < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}")

    limit = 838 * 3_600_000_000
    return one_of([quoted(edge) for edge in edges], st.integers(-limit, limit).map(literal))


CHARACTERS = st.characters(exclude_categories=["Cs"])
ALPHABETS = {
    "utf8mb4": "aZ é€中😀\U0010ffff\0\t'\"\\ \u0301",
    "utf8mb3": "aZ é€中\0\uffff'",
    "latin1": "aZ éÿ€\x81 ß\0'",
    "gbk": "aZ 中文亜€0",
    "ucs2": "aZ é€中\0\uffff",
    "utf16": "aZ é€中😀\U0010ffff\0",
    "utf32": "aZ é€中😀\U0010ffff\0",
    "sjis": "aZ ｶ表ソ中\uff5e",
    "cp1251": "aZ жЯё€",
    "ascii": "aZ ~\x7f\0",
    "big5": "aZ 中功許",
    "euckr": "aZ 한글",
    "ujis": "aZ ｶ表中",
}


def texts(charset: str, longest: int, edges: list[str] | None = None) -> Literals:
    alphabet = ALPHABETS[charset]
    found = ["", " ", "a ", " a", alphabet, *alphabet, alphabet[3] * longest, "a" * longest, "a" * (longest - 1) + " "]
    found += edges or []
    drawn = st.text(st.sampled_from(alphabet), max_size=min(longest, 12))
    if charset == "utf8mb4":
        drawn = st.text(CHARACTERS, max_size=min(longest, 12))
    return one_of([text_literal(edge[:longest]) for edge in found], drawn.map(text_literal))


def binaries(longest: int, edges: list[bytes] | None = None) -> Literals:
    found = [b"", b"\0", b"\0\0", b"a\0", b"\0a", b"a ", b"\xff" * longest, b"\0" * longest, b"a" * (longest - 1) + b"\0"]
    drawn = st.binary(max_size=min(longest, 12))
    return one_of([bytes_literal(edge[:longest]) for edge in [*found, *(edges or [])]], drawn.map(bytes_literal))


def bits(count: int) -> Literals:
    edges = [0, 1, 2**count - 1, 2 ** (count - 1), 0xAA % 2**count]
    return one_of([f"b'{edge:b}'" for edge in edges], st.integers(0, 2**count - 1).map(lambda value: f"b'{value:b}'"))


def labels(names: list[str]) -> Literals:
    # A number picks a label by its place. Zero is what the server keeps for a value that it refused.
    return one_of(["0", "1", str(len(names))], st.integers(1, len(names)).map(str))


def subsets(count: int) -> Literals:
    edges = [0, 1, 2**count - 1, 2 ** (count - 1)]
    return one_of([str(edge) for edge in edges], st.integers(0, 2**count - 1).map(str))


GEOMETRIES = ["POINT(1 2)", "POINT(-1.5 1e10)", "LINESTRING(0 0,1 1,2 0)", "POLYGON((0 0,0 3,3 3,0 0))", "MULTIPOINT(1 1,2 2)"]
GEOMETRIES += ["GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))", "MULTIPOLYGON(((0 0,0 3,3 3,0 0)),((9 9,9 8,8 8,9 9)))"]


def geometries(points_only: bool, longitude: bool) -> Literals:
    some = GEOMETRIES[:2] if points_only else GEOMETRIES
    srid = ", 4326)" if longitude else ")"
    return one_of([f"ST_GeomFromText('{text}'" + (", 0)" if "e10" in text else srid) for text in some])


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    st.text(CHARACTERS, max_size=8),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(CHARACTERS, max_size=4), inner, max_size=3)),
    max_leaves=8,
)


def documents(as_text: bool) -> Literals:
    whole = {"a": [None, True, False, 0, -1, 2**63 - 1, 2**64 - 1, 1.5, "é€😀", {"": {}, "b": []}], "\n": "x" * 300}
    edges = ["null", "true", '""', "{}", "[]", "0", "-1", "1e308", json.dumps(whole), json.dumps([whole] * 2, ensure_ascii=False)]
    if as_text:
        return one_of([text_literal(edge) for edge in edges], DOCUMENTS.map(lambda value: text_literal(json.dumps(value))))
    typed = ["CAST(1.50 AS DECIMAL(5, 2))", "CAST(-7 AS DECIMAL(65, 30))", "DATE'2020-01-02'", "TIME'-838:59:59.000000'"]
    typed += ["TIMESTAMP'2020-01-02 03:04:05.678901'", "x'00FF'", "CAST(5 AS UNSIGNED)", "ST_GeomFromText('POINT(1 2)')"]
    cast = [f"CAST({text_literal(edge)} AS JSON)" for edge in edges] + [f"CAST({value} AS JSON)" for value in typed]
    members = ", ".join(f"'k{index}', {value}" for index, value in enumerate(typed))
    cast.append(f"JSON_OBJECT({members})")
    return one_of(cast, DOCUMENTS.map(lambda value: f"CAST({text_literal(json.dumps(value))} AS JSON)"))


def vectors(server: Server, size: int) -> Literals:
    function = "STRING_TO_VECTOR" if server.kind == "mysql" else "VEC_FromText"
    edges = [[0.0] * size, [1.5, -2.25, 3e38] * (size // 3) + [0.5] * (size % 3), [-1e-30] * size]
    return one_of([f"{function}('{json.dumps(edge)}')" for edge in edges])


UUIDS = ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "123e4567-e89b-12d3-a456-426655440000"]
UUIDS += [f"01234567-89ab-{version}def-{variant}123-456789abcdef" for version in "012345678f" for variant in "089abcf"]
ADDRESSES = ["::", "::1", "::ffff:1.2.3.4", "::1.2.3.4", "1::", "2001:db8::1", "2001:db8:0:0:1::1", "1:2:3:4:5:6:7:8"]
ADDRESSES += ["::ffff:0:0", "1:0:0:4:0:0:0:8", "0:1:1:1:1:1:1:1", "fe80::", "::1:0", "::fffe:1.2.3.4"]
ADDRESSES += ["1:0:2:0:3:0:4:0", "::2:3:4:5:6:7:8"]

# ---------------------------------------------------------------------------------------------------------------- the columns


@dataclass(frozen=True)
class Typed:
    """A column: its definition, what is written to it, and what SELECT's text for it means."""

    definition: str
    literals: Literals | None
    """None for what the server computes."""
    mapped: Callable[[Any], Any]
    shown: str = "{0}"
    """The expression that is selected to see the value."""


MANY_LABELS = [f"label{number}" for number in range(300)]
AWKWARD_LABELS = ["it''s", "a b", 'quo"te', "back\\\\slash", "é", "中"]


def enum(names: list[str], rest: str = "", kind: str = "ENUM") -> str:
    return f"{kind}({', '.join(quoted(name) for name in names)}) {rest}"


WIDTHS = [("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64)]
DIGITS = [(1, 0), (10, 2), (18, 9), (19, 4), (38, 10), (38, 38), (9, 9), (39, 0), (65, 30), (65, 0)]
BLOBS = [("TINY", 255), ("", 65535), ("MEDIUM", 70_000), ("LONG", 70_000)]


def numbers(_: Server) -> list[Typed]:
    # The log lists the signs of numeric columns by their order, so a year stands among the others.
    found = [Typed("YEAR", one_of(["0", "2155"]), to_integer)]
    for base, width in WIDTHS:
        found.append(Typed(base, integers(width, False), to_integer))
        found.append(Typed(f"{base} UNSIGNED", integers(width, True), to_wide if width == 64 else to_integer))
    found.append(Typed("INT(9) ZEROFILL", integers(32, True), to_integer))
    found.append(Typed("TINYINT(1)", integers(8, False), to_integer))
    # Text shows six digits of a FLOAT; times a DOUBLE it shows all.
    found.append(Typed("FLOAT", floats(32), to_float, "{0} * 1e0"))
    found.append(Typed("FLOAT UNSIGNED", one_of(["0", "1.25", "3.5e38"]), to_float, "{0} * 1e0"))
    found.append(Typed("FLOAT(7,3)", one_of(["0", "-1234.567", "9999.999"]), to_float, "{0} * 1e0"))
    found.append(Typed("DOUBLE", floats(64), to_double, "{0} * 1e0"))
    found.append(Typed("DOUBLE(10,2)", one_of(["0", "-12345678.99", "0.01"]), to_double, "{0} * 1e0"))
    for precision, scale in DIGITS:
        if scale > 30:
            continue
        mapped = to_wide if precision <= 38 else to_same
        found.append(Typed(f"DECIMAL({precision},{scale})", decimals(precision, scale), mapped))
        found.append(Typed(f"DECIMAL({precision},{scale}) UNSIGNED", decimals(precision, scale, True), mapped))
    found.append(Typed("BIT(1)", bits(1), to_bool))
    found += [Typed(f"BIT({count})", bits(count), to_same) for count in (7, 8, 9, 63, 64)]
    return found


def temporals(server: Server) -> list[Typed]:
    found = [Typed("DATE", dates(), to_date), Typed("YEAR", one_of(["0", "1901", "2155", "2000", "1970"]), to_integer)]
    for fsp in range(7):
        found.append(Typed(f"DATETIME({fsp})", datetimes(), to_datetime))
        found.append(Typed(f"TIMESTAMP({fsp}) NULL DEFAULT NULL", timestamps(server), to_instant))
        found.append(Typed(f"TIME({fsp})", times(), to_micros))
    return found


def texts_of_utf8(_: Server) -> list[Typed]:
    long = ["é" * 128, "x" * 255, "x" * 256, "€" * 21845, "x" * 65535, "😀" * 17_000]
    found = []
    for charset, collation in (("utf8mb4", "utf8mb4_bin"), ("utf8mb3", "utf8_unicode_ci")):
        tail = f"CHARACTER SET {charset.replace('utf8mb3', 'utf8')} COLLATE {collation}"
        for definition, longest in (("CHAR(1)", 1), ("CHAR(63)", 63), ("CHAR(64)", 64), ("CHAR(255)", 255), ("VARCHAR(10)", 10)):
            found.append(Typed(f"{definition} {tail}", texts(charset, longest), to_same))
    tail = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    for definition, longest in (("VARCHAR(63)", 63), ("VARCHAR(64)", 64), ("VARCHAR(255)", 255), ("VARCHAR(256)", 256)):
        found.append(Typed(f"{definition} {tail}", texts("utf8mb4", longest), to_same))
    found += [
        Typed(f"{size}TEXT {tail}", texts("utf8mb4", 60, [text for text in long if len(text.encode()) <= longest]), to_same)
        for size, longest in BLOBS
    ]
    return found


def texts_of_charsets(_: Server) -> list[Typed]:
    found = []
    charsets = {
        "latin1": "latin1_swedish_ci", "gbk": "gbk_bin", "ucs2": "ucs2_general_ci", "utf16": "utf16_bin", "utf32": "utf32_bin",
        "sjis": "sjis_japanese_ci", "cp1251": "cp1251_bin", "ascii": "ascii_general_ci", "big5": "big5_bin", "ujis": "ujis_bin",
        "euckr": "euckr_korean_ci",
    }  # fmt: skip
    for charset, collation in charsets.items():
        tail = f"CHARACTER SET {charset} COLLATE {collation}"
        found.append(Typed(f"CHAR(20) {tail}", texts(charset, 20), to_same))
        found.append(Typed(f"VARCHAR(130) {tail}", texts(charset, 130), to_same))
        found.append(Typed(f"TEXT {tail}", texts(charset, 130), to_same))
    found.append(Typed("CHAR(255) CHARACTER SET latin1", texts("latin1", 255), to_same))
    return found


def bytes_and_labels(server: Server) -> list[Typed]:
    long = [b"x" * 255, b"x" * 256, b"\0" * 65535, b"\xff" * 70_000]
    found = [Typed(f"BINARY({size})", binaries(size), to_same) for size in (1, 5, 16, 255)]
    found += [Typed(f"VARBINARY({size})", binaries(size), to_same) for size in (1, 255, 256, 300)]
    found += [Typed(f"{size}BLOB", binaries(60, [value for value in long if len(value) <= longest]), to_same) for size, longest in BLOBS]
    found += [
        Typed(enum(["a", "b"]), labels(["a", "b"]), to_same),
        Typed(enum(["a,b", *AWKWARD_LABELS]), labels(["a,b", *AWKWARD_LABELS]), to_same),
        Typed(enum(AWKWARD_LABELS[:5], "CHARACTER SET latin1"), labels(AWKWARD_LABELS[:5]), to_same),
        Typed(enum(AWKWARD_LABELS, "CHARACTER SET gbk"), labels(AWKWARD_LABELS), to_same),
        Typed(enum(MANY_LABELS), labels(MANY_LABELS), to_same),
        Typed(enum(MANY_LABELS[:255]), labels(MANY_LABELS[:255]), to_same),
        Typed(enum(MANY_LABELS[:256]), labels(MANY_LABELS[:256]), to_same),
        Typed(enum(["x", "y", ""], "CHARACTER SET latin1", "SET"), subsets(3), to_labels),
        Typed(enum(AWKWARD_LABELS, "", "SET"), subsets(len(AWKWARD_LABELS)), to_labels),
    ]
    found += [Typed(enum(MANY_LABELS[:size], "", "SET"), subsets(size), to_labels) for size in (9, 17, 25, 33, 64)]
    modern = server.kind == "mysql" and server.version >= (8, 0)
    found.append(Typed("GEOMETRY", geometries(False, modern), to_same))
    found.append(Typed("POINT", geometries(True, False), to_same))
    # Charsets too are listed by the order of the columns that have one; what geometries count as shows in the next.
    found.append(Typed("VARCHAR(10) CHARACTER SET latin1", texts("latin1", 10), to_same))
    return found


def specials(server: Server) -> list[Typed]:
    """What only some servers have."""
    text = Typed("VARCHAR(20) CHARACTER SET utf8mb4", texts("utf8mb4", 20), to_same)
    found = [text]
    if server.version >= (8, 0):
        stored = "STORED" if server.kind == "mysql" else "PERSISTENT"
        found += [
            Typed("INT GENERATED ALWAYS AS (LENGTH(c0)) VIRTUAL", None, to_integer),
            Typed(f"VARCHAR(30) CHARACTER SET latin1 GENERATED ALWAYS AS (CONCAT(c0, '!')) {stored}", None, to_same),
            Typed("VARCHAR(30) CHARACTER SET utf8mb4 GENERATED ALWAYS AS (CONCAT(c0, '?')) VIRTUAL", None, to_same),
            Typed("INT INVISIBLE", integers(32, False), to_integer),
            Typed("JSON", documents(server.kind == "mariadb"), to_same),
            Typed("TEXT GENERATED ALWAYS AS (CONCAT(c0, '#')) VIRTUAL", None, to_same),
            Typed("JSON", documents(server.kind == "mariadb"), to_same),
            Typed("VARCHAR(10) CHARACTER SET latin1", texts("latin1", 10), to_same),
        ]
    if server.kind == "mariadb":
        addresses = st.integers(0, 2**128 - 1).map(lambda value: quoted(str(ipaddress.IPv6Address(value))))
        found += [
            Typed("UUID", one_of([quoted(text) for text in UUIDS], st.uuids().map(lambda value: quoted(str(value)))), to_same),
            Typed("INET6", one_of([quoted(text) for text in ADDRESSES], addresses), to_same),
            Typed("INET4", one_of(["'0.0.0.0'", "'255.255.255.255'", "'1.20.0.0'", "'10.0.0.100'"]), to_same),
            Typed("TEXT COMPRESSED CHARACTER SET utf8mb4", texts("utf8mb4", 500, ["é" * 400]), to_same),
            Typed("VARCHAR(1000) COMPRESSED CHARACTER SET latin1", texts("latin1", 1000, ["ÿ" * 900]), to_same),
            Typed("VARCHAR(50) COMPRESSED CHARACTER SET utf8mb4", texts("utf8mb4", 50), to_same),
            Typed("BLOB COMPRESSED", binaries(500, [b"\0" * 65000]), to_same),
            Typed("VARBINARY(500) COMPRESSED", binaries(500), to_same),
        ]
    if server.version >= ((9, 0) if server.kind == "mysql" else (11, 7)):
        # Among columns of other charsets, because the log lists charsets by the order of the columns that have one.
        found += [
            Typed("VECTOR(3)", vectors(server, 3), to_same, "UNHEX(HEX({0}))"),
            Typed("VARCHAR(10) CHARACTER SET latin1", texts("latin1", 10), to_same),
            Typed("VECTOR(200)", vectors(server, 200), to_same, "UNHEX(HEX({0}))"),
            Typed("VARCHAR(10) CHARACTER SET utf8mb4", texts("utf8mb4", 10), to_same),
            Typed("TEXT CHARACTER SET latin1", texts("latin1", 10), to_same),
        ]
    return found


FAMILIES = [numbers, temporals, texts_of_utf8, texts_of_charsets, bytes_and_labels, specials]


# ------------------------------------------------------------------------------------------------------------------ the trial

Row = tuple[str, ...]
Shown = dict[int, dict[str, Any]]
"""Rows by their key, values by their column, in canonical form."""


class Trial:
    """A table of one family on one server, a connection that writes, and one that looks."""

    def __init__(self, server: Server, database: str, columns: list[Typed], *, options: str = "") -> None:
        self.server, self.database = server, database
        self.columns = {f"c{index}": column for index, column in enumerate(columns)}
        self.written = [name for name, column in self.columns.items() if column.literals is not None]
        self.id = TableId(database, "t")
        # The writer lives in another time zone than the readers, and lets in every date.
        self._writer = server.connect(
            database=database, init_command="SET time_zone = '+08:00', sql_mode = 'ALLOW_INVALID_DATES', NAMES utf8mb4"
        )
        self._writer.autocommit(True)
        self.cursor = self._writer.cursor()
        self._reader = server.connect(database=database, conv={}, init_command="SET time_zone = '+00:00', sql_mode = ''")
        self._looks = self._reader.cursor()
        definitions = ", ".join(f"{name} {column.definition}" for name, column in self.columns.items())
        self.cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {definitions}) CHARACTER SET utf8mb4 {options}")
        self.session: Session = open_session(server)
        self.shape: MySqlTable = read_tables(self.session, [self.id])[self.id]

    def close(self) -> None:
        self.session.close()
        self._writer.close()
        self._reader.close()

    def _literals(self) -> list[Literals]:
        return [literals for name in self.written if (literals := self.columns[name].literals) is not None]

    def rows(self) -> st.SearchStrategy[Row]:
        return st.tuples(*(literals.drawn for literals in self._literals()))

    def edge_rows(self) -> list[Row]:
        """Rows that together hold every edge value of every column."""
        every = [literals.edges for literals in self._literals()]
        return [tuple(edges[row % len(edges)] for edges in every) for row in range(max(map(len, every)))]

    def insert(self, rows: list[Row]) -> None:
        values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows))
        self.cursor.execute(f"INSERT INTO t (id, {', '.join(self.written)}) VALUES {values}")

    def update(self, number: int, row: Row, chosen: int) -> None:
        changed = [f"{name} = {row[index]}" for index, name in enumerate(self.written) if chosen >> index & 1]
        if changed:
            self.cursor.execute(f"UPDATE t SET {', '.join(changed)} WHERE id = {number}")

    def delete(self) -> None:
        self.cursor.execute("DELETE FROM t")

    def shown(self, options: TypeOptions = TypeOptions()) -> Shown:  # noqa: B008
        """By SELECT and the plain mapping."""
        expressions = ", ".join(column.shown.format(name) for name, column in self.columns.items())
        self._looks.execute(f"SELECT id, {expressions} FROM t")
        mapped = {name: mapping(column, options) for name, column in self.columns.items()}
        found: Shown = {}
        for key, *values in self._looks.fetchall():
            row = zip(self.columns, values, strict=True)
            found[int(key)] = {name: None if value is None else mapped[name](value) for name, value in row}
        return found

    def chunk(self) -> str:
        return f"SELECT {', '.join(column.name for column in self.shape.columns)} FROM {self.database}.t"

    def read(self, options: TypeOptions = TypeOptions()) -> Shown:  # noqa: B008
        """By a chunk read."""
        found: Shown = {}
        for batch in select(self.session, self.chunk(), self.shape.columns, options, counters=ReadCounters()):
            assert batch.schema.types == self.shape.arrow_schema(options).types
            values = {name: python_values(batch.column(name)) for name in self.columns}
            for row, key in enumerate(batch.column("id").to_pylist()):
                found[key] = {name: values[name][row] for name in self.columns}
        return found

    def log(self, since: Position, *, alone: bool = False, options: TypeOptions = TypeOptions()) -> list[Change]:  # noqa: B008
        """By the log: with the catalogue's shape, or with nothing but what the log itself says."""
        schemas: SchemaHistory[MySqlTable] = SchemaHistory()
        if not alone:
            schemas.put(self.id, Position(0, 0), self.shape)
        return changes(read(self.server, since, schemas, options=options, captured=lambda table: table == self.id))


def mapping(column: Typed, options: TypeOptions) -> Callable[[Any], Any]:
    if options.zero_dates is ZeroDates.STRING and column.mapped in (to_date, to_datetime, to_instant):
        return to_same
    if column.mapped is to_micros:
        return {TimeAs.MICROS: to_micros, TimeAs.INTERVAL: to_interval, TimeAs.STRING: to_same}[options.time_as]
    return column.mapped


def check_images(trial: Trial, found: list[Change], inserted: Shown, updated: Shown, image: str, skipped: frozenset[str]) -> None:
    """What the log has of each row is what SELECT showed; what it lacks is what the row image lets it leave out."""
    story: dict[int, list[Change]] = {}
    key = -1
    for change in found:
        # A partial image of what a row became lacks the key that did not change; the image before it has it.
        if change.operation != "after":
            key = change.values["id"]
        story.setdefault(key, []).append(change)
    assert story.keys() == inserted.keys()
    for key, told in story.items():
        operations = [change.operation for change in told]
        assert operations in (["insert", "delete"], ["insert", "before", "after", "delete"])
        assert len(told) == 4 or inserted[key] == updated[key], "an update is not in the log"
        for change in told:
            expected = (inserted if change.operation in ("insert", "before") else updated)[key]
            for name, value in change.values.items():
                if name != "id" and name not in skipped:
                    assert value == expected[name], (change.operation, trial.columns[name].definition)
            if change.operation == "insert":
                assert not change.absent & set(trial.written), "an insert lacks what was written"
            if change.operation == "after":
                differs = {name for name in trial.written if inserted[key][name] != updated[key][name]}
                assert not change.absent & differs, "an update lacks what it changed"
            if image == "FULL":
                assert not change.absent


def check_rows(trial: Trial, rows: list[Row], updates: list[tuple[Row, int]], image: str, metadata: str | None) -> None:
    """Insert, update and delete these rows, and look at them in all three ways."""
    start = mark_by(trial.cursor)
    trial.insert(rows)
    inserted = trial.shown()
    for number, (row, chosen) in enumerate(updates):
        trial.update(number, row, chosen)
    updated = trial.shown()
    read = trial.read()
    trial.delete()
    for key, expected in updated.items():
        for name, value in expected.items():
            assert read[key][name] == value, ("chunk", trial.columns[name].definition)
    assert read == updated
    check_images(trial, trial.log(start), inserted, updated, image, frozenset())
    if metadata == "FULL":
        told = trial.log(start, alone=True)
        check_images(trial, told, inserted, updated, image, untold(trial))


def untold(trial: Trial) -> frozenset[str]:
    """Columns whose type the log's own metadata don't tell: MariaDB writes them as BINARY."""
    return frozenset(name for name, column in trial.columns.items() if column.definition in ("UUID", "INET4", "INET6"))


EVERYTHING = (1 << 100) - 1
"""Every column of a row is updated."""
