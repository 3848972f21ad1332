"""A string of the log in UTF-8 is what SELECT gives for it: every code of one and two bytes, and any bytes at all.

Strings that no INSERT lets in are put under a column as `scripts/make_charsets.py` does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest

from scripts.make_charsets import charsets, collations, stored
from snowmelt.databases.mysql.types.charsets import canonical_charset, charset_of_collation, transcode
from tests.kit.servers import Server

SURROGATE = re.compile(b"\xed[\xa0-\xbf]")
# Bytes at which some charset's rules change, so that random strings of them come by the rules often.
EDGES = np.frombuffer(bytes.fromhex("000010113039404141417f80818e8fa0a1a2b0d8dbdcdfe0edf0fdfeff"), np.uint8)


def differences(server: Server, charset: str, width: int, values: list[bytes]) -> list[tuple[str, bytes, bytes]]:
    """The first values that come out of our conversion otherwise than out of the server's: bytes, the server's, ours."""
    if canonical_charset(charset) == "utf8mb3" and server.kind == "mysql":
        values = [value for value in values if not SURROGATE.search(value)]
    with server.connect(use_unicode=False) as connection:
        texts = stored(connection, charset, width, values)
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    ends, data = transcode(charset, offsets, np.frombuffer(b"".join(values), np.uint8), len(values), flavour=server.kind)
    joined = data.tobytes()
    ours = (joined[first:last] for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    return [(value.hex(), theirs, mine) for value, theirs, mine in zip(values, texts, ours, strict=True) if theirs != mine][:5]


def widths(server: Server) -> dict[str, int]:
    with server.connect(use_unicode=False) as connection:
        return {name: width for name, width in charsets(connection).items() if name != "binary"}


def random_bytes(seed: int, count: int, alphabet: Iterable[int]) -> list[bytes]:
    random = np.random.default_rng(seed)
    letters = np.array(list(alphabet), np.uint8)
    return [random.choice(letters, random.integers(1, 17)).tobytes() for _ in range(count)]


def test_every_code_of_one_or_two_bytes_is_what_select_gives(any_server: Server) -> None:
    one = [bytes([a]) for a in range(256)]
    pairs = [bytes([a, b]) for a in range(256) for b in range(256)]
    wrong = {}
    for name, width in widths(any_server).items():
        # Only where all characters are pairs does an ASCII byte begin one.
        begins = 0x100 if width == 1 else 0 if name in ("ucs2", "utf16", "utf16le") else 0x80
        wrong[name] = differences(any_server, name, width, one + pairs[begins << 8 :])
    assert {name: found for name, found in wrong.items() if found} == {}


def test_any_bytes_are_what_select_gives(any_server: Server) -> None:
    values = random_bytes(1, 3000, range(256)) + random_bytes(2, 3000, EDGES.tolist())
    wrong = {name: differences(any_server, name, width, values) for name, width in widths(any_server).items()}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize("charset", ["ujis", "eucjpms"])
def test_every_code_of_three_bytes_is_what_select_gives(any_server: Server, charset: str) -> None:
    codes = [bytes([0x8F, b, c, 0x41]) for b in range(256) for c in range(256)]
    assert differences(any_server, charset, 3, codes) == []


def test_gb18030_codes_of_four_bytes_are_what_select_gives(mysql8: Server) -> None:
    numbers = [*range(39_600), *range(188_990, 190_000), *range(190_000, 1_587_600, 97), *range(1_237_500, 1_237_600)]
    codes = []
    for number in numbers:
        rest, d = divmod(number, 10)
        rest, c = divmod(rest, 126)
        a, b = divmod(rest, 10)
        codes.append(bytes([0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d]))
    assert differences(mysql8, "gb18030", 4, codes) == []


def test_well_formed_text_of_an_innodb_column_is_what_select_gives(any_server: Server) -> None:
    """The ordinary way in, without exchanged files: the server's own bytes of a text, and its SELECT of them."""
    texts = ["", "plain", "é ß ñ", "Žluťoučký", "Привет", "Ελλάδα", "漢字かな", "ｶﾀｶﾅ", "中文", "繁體", "한국어", "ไทย", "€", "𝄞"]
    wrong = {}
    for charset in widths(any_server):
        with any_server.connect() as connection, connection.cursor() as cursor:
            # What a charset lacks becomes `?` on the way in.
            cursor.execute("SET sql_mode = ''")
            cursor.execute("CREATE DATABASE IF NOT EXISTS charsets_innodb")
            cursor.execute("DROP TABLE IF EXISTS charsets_innodb.t")
            cursor.execute(f"CREATE TABLE charsets_innodb.t (id int PRIMARY KEY, v varchar(40) CHARACTER SET {charset}) ENGINE = InnoDB")
            cursor.executemany("INSERT INTO charsets_innodb.t VALUES (%s, %s)", list(enumerate(texts)))
            cursor.execute("SELECT HEX(v), v FROM charsets_innodb.t ORDER BY id")
            rows = [(bytes.fromhex(stored_as), shown.encode()) for stored_as, shown in cursor.fetchall()]
            cursor.execute("DROP DATABASE charsets_innodb")
        offsets = np.cumsum([0, *(len(value) for value, _ in rows)], dtype=np.int32)
        data = np.frombuffer(b"".join(value for value, _ in rows), np.uint8)
        ends, out = transcode(charset, offsets, data, len(rows), flavour=any_server.kind)
        ours = [out[ends[n] : ends[n + 1]].tobytes() for n in range(len(rows))]
        if ours != [shown for _, shown in rows]:
            wrong[charset] = ours
    assert wrong == {}


def test_every_collation_of_a_server_has_its_charset(any_server: Server) -> None:
    with any_server.connect(use_unicode=False) as connection:
        theirs = collations(connection)
    assert {number: charset_of_collation(number) for number in theirs} == {
        number: canonical_charset(name) for number, name in theirs.items()
    }
