"""Read the tables of `snowmelt/databases/mysql/types/charset_tables.npz` out of a running MySQL 8.0.

    python scripts/make_charsets.py --mysql /run/mysql.sock --mariadb /run/mariadb.sock

Both servers run on this machine as an account whose files we may write: strings that no INSERT lets in are put under a
column by exchanging the data files of a MyISAM table. MariaDB gives its collations, and its two-byte tables where they say
otherwise; `tests/integration/test_charsets.py` is what holds both servers to the file.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymysql
from numpy.typing import NDArray

from snowmelt.databases.mysql.types.charsets import FOUR_BYTES, GB18030_HIGH, ILL_FORMED, MARKS, THREE_BYTES, TWO_BYTES

TARGET = Path(__file__).parents[1] / "src/snowmelt/databases/mysql/types/charset_tables.npz"
ALGORITHMS = frozenset({"binary", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"})
BATCH_ROWS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mysql", required=True, help="socket of a MySQL 8.0")
    parser.add_argument("--mariadb", required=True, help="socket of a MariaDB 10.11 or later")
    parser.add_argument("--user", default="root")
    parser.add_argument("--password", default="")
    args = parser.parse_args()
    mysql, mariadb = (
        pymysql.connect(unix_socket=socket, user=args.user, password=args.password, charset="utf8mb4", use_unicode=False, autocommit=True)
        for socket in (args.mysql, args.mariadb)
    )
    arrays: dict[str, NDArray[Any]] = {}
    widths = charsets(mysql)
    for charset in sorted(widths.keys() - ALGORITHMS):
        tables = read_tables(mysql, charset, widths[charset])
        arrays |= {f"{charset}.{part}": table for part, table in tables.items()}
        if "two" in tables and charset in charsets(mariadb):
            two = read_two(mariadb, charset, widths[charset], tables["one"])
            marks = tables["two"] == MARKS + THREE_BYTES
            two[marks] = tables["two"][marks]
            if not np.array_equal(two, tables["two"]):
                arrays[f"{charset}.two.mariadb"] = two
    numbers = collations(mariadb) | collations(mysql)
    for number, charset in collations(mariadb).items():
        expect(numbers[number] == charset, f"collation {number} is of one charset on both servers")
    names = sorted(widths)
    arrays["charsets"] = np.array(names)
    arrays["collations"] = np.array(sorted(numbers), np.int32)
    arrays["collation_charsets"] = np.array([names.index(numbers[number]) for number in sorted(numbers)], np.uint8)
    np.savez_compressed(TARGET, **arrays)  # type: ignore[arg-type]
    print(f"{TARGET.name}: {len(names)} charsets, {len(numbers)} collations, {TARGET.stat().st_size} bytes")


def charsets(connection: Any) -> dict[str, int]:
    """Every charset of a server and the most bytes that a character of it has."""
    rows = query(connection, "SELECT character_set_name, maxlen FROM information_schema.character_sets")
    return {name.decode(): int(width) for name, width in rows}


def collations(connection: Any) -> dict[int, str]:
    """Charsets by the number of a collation. MariaDB lists one collation of many charsets once, but has a full list beside."""
    columns = query(
        connection,
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'information_schema'"
        " AND lower(table_name) = 'collation_character_set_applicability' AND lower(column_name) = 'id'",
    )
    table = "collation_character_set_applicability" if columns else "collations"
    return {
        int(number): name.decode() for number, name in query(connection, f"SELECT id, character_set_name FROM information_schema.{table}")
    }


def read_tables(connection: Any, charset: str, width: int) -> dict[str, NDArray[np.uint16]]:
    """The tables of one charset, as `charsets.py` reads them."""
    alone = [text.decode() for text in stored(connection, charset, width, [bytes([a]) for a in range(256)])]
    # MySQL drops a character that is cut off, so nothing comes of a byte that begins a longer one.
    one = np.array([ord(text) if text else MARKS + TWO_BYTES for text in alone], np.uint16)
    if not (one == MARKS + TWO_BYTES).any():
        return {"one": one}
    leads = np.flatnonzero(one == MARKS + TWO_BYTES)
    expect(min(leads) >= 0x80 and (one[:128] == np.arange(128)).all(), f"ASCII stands for itself in {charset}")
    two = read_two(connection, charset, width, one)
    tables = {"one": one, "two": two}
    if charset in ("ujis", "eucjpms"):
        heads = 0x8F << 8 | np.arange(256)
        expect((two[heads] == MARKS + ILL_FORMED).all(), f"0x8F begins three bytes in {charset}")
        two[heads] = MARKS + THREE_BYTES
        # 8F 00 and an ASCII byte are that byte to the server, so the stop is none.
        stop = "\u3000"
        codes = [bytes([0x8F, b, c]) + b"\xa1\xa1" for b in range(256) for c in range(256)]
        tables["three"] = np.array([code_of(text, stop) for text in stored(connection, charset, width, codes)], np.uint16)
    if charset == "gb18030":
        heads = np.array([a << 8 | b for a in leads for b in range(0x30, 0x3A)])
        expect(heads.size == 1260 and (two[heads] == MARKS + ILL_FORMED).all(), "a digit as second byte says four in gb18030")
        two[heads] = MARKS + FOUR_BYTES
        codes = [bytes([h >> 8, h & 0xFF, c, d]) for h in heads for c in range(0x81, 0xFF) for d in range(0x30, 0x3A)]
        points = np.array([ord(text.decode()) for text in stored(connection, charset, width, codes)])
        low = int(np.flatnonzero(points[:GB18030_HIGH] != ord("?"))[-1]) + 1
        high = np.arange(0x10000, 0x110000)
        expect((points[GB18030_HIGH : GB18030_HIGH + high.size] == high).all(), "gb18030 numbers U+10000 and up in a row")
        expect((points[GB18030_HIGH + high.size :] == ord("?")).all(), "gb18030 ends with U+10FFFF")
        # One hole more than there are characters: it stands for all that follow.
        tables["four"] = points[: low + 1].astype(np.uint16)
    return tables


def read_two(connection: Any, charset: str, width: int, one: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """What two bytes are, if the first begins a longer character."""
    two = np.full(1 << 16, MARKS + ILL_FORMED, np.uint16)
    heads = np.flatnonzero(np.repeat(one == MARKS + TWO_BYTES, 256))
    # The stop behind tells how much was read: of an ill-formed character one byte, and more comes between.
    texts = stored(connection, charset, width, [int(head).to_bytes(2, "big") + b"\n" for head in heads])
    two[heads] = [code_of(text, "\n") for text in texts]
    return two


def code_of(text: bytes, stop: str) -> int:
    """The code point before the stop, `?` for a hole of the table, or the mark of an ill-formed character."""
    characters = text.decode()
    if len(characters) != 2 or not characters.endswith(stop):
        return MARKS + ILL_FORMED
    code = ord(characters[0])
    expect(code < MARKS or MARKS + FOUR_BYTES < code <= 0xFFFF, "a code of two or three bytes is a character below U+10000")
    return code


def stored(connection: Any, charset: str, width: int, values: Sequence[bytes]) -> list[bytes]:
    """What SELECT gives for columns of a charset that hold these bytes, well-formed or not."""
    length = -(-max(len(value) for value in values) // width) * width
    cursor = connection.cursor()
    cursor.execute("SET SESSION sql_log_bin = 0")
    cursor.execute("CREATE DATABASE IF NOT EXISTS snowmelt_charsets")
    for table, kind in (("bytes", f"varbinary({length})"), ("texts", f"varchar({length // width}) CHARACTER SET {charset}")):
        cursor.execute(f"DROP TABLE IF EXISTS snowmelt_charsets.{table}")
        cursor.execute(f"CREATE TABLE snowmelt_charsets.{table} (id int NOT NULL, value {kind} NOT NULL) ENGINE = MyISAM")
    for first in range(0, len(values), BATCH_ROWS):
        rows = ",".join(f"({first + n},x'{value.hex()}')" for n, value in enumerate(values[first : first + BATCH_ROWS]))
        cursor.execute(f"INSERT INTO snowmelt_charsets.bytes VALUES {rows}")
    cursor.execute("FLUSH TABLES")
    folder = Path(query(connection, "SELECT @@datadir")[0][0].decode()) / "snowmelt_charsets"
    for suffix in ("MYD", "MYI"):
        shutil.copyfile(folder / f"bytes.{suffix}", folder / f"texts.{suffix}")
    texts = [value for _, value in query(connection, "SELECT id, value FROM snowmelt_charsets.texts ORDER BY id")]
    cursor.execute("DROP DATABASE snowmelt_charsets")
    expect(len(texts) == len(values), "every value comes back")
    return texts


def query(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor.fetchall()


def expect(condition: object, law: str) -> None:
    if not condition:
        raise SystemExit(f"this server breaks a law of the tables: {law}")


if __name__ == "__main__":
    main()
