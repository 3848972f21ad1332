"""Readers of events that are not rows: what they take out, and that no cut or odd byte makes them fail otherwise than by name."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.log.events import (
    Event,
    FormatDescription,
    MariaDbGtid,
    MySqlGtid,
    Query,
    Reader,
    Xid,
    read_gtid,
    read_incident,
    read_query,
    read_xa_end,
    read_xa_prepare,
    read_xa_start,
    whole_xid,
    xa_began,
)
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt, SourceDrift
from tests.kit.packed_events import payload, plain_event
from tests.kit.streams import event, query_body

SOURCE = uuid.UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")


def variable(number: int) -> bytes:
    """A number as MySQL's serialisation has it: as many low one-bits as bytes follow, then the value."""
    for extra in range(8):
        if number < 1 << (7 - extra + 8 * extra):
            return (number << (extra + 1) | (1 << extra) - 1).to_bytes(extra + 1, "little")
    return b"\xff" + number.to_bytes(8, "little")


def tagged(number: int, tag: str) -> bytes:
    fields = variable(0) + variable(1)
    fields += variable(1) + b"".join(variable(byte) for byte in SOURCE.bytes)
    fields += variable(2) + variable(number << 1)
    fields += variable(3) + variable(len(tag)) + tag.encode()
    return variable(2) + variable(len(fields)) + variable(3) + fields


def description(algorithm: int = 1) -> bytes:
    return struct.pack("<H50sIB", 4, b"8.0.33-log", 7, 19) + bytes(40) + bytes([algorithm]) + b"\1\2\3\4"


class TestReader:
    def test_numbers_of_every_length(self) -> None:
        reader = Reader(b"\xfa" + b"\xfc\x00\x01" + b"\xfd\x00\x00\x01" + b"\xfe" + (2**40).to_bytes(8, "little"), "TEST")
        assert [reader.packed() for _ in range(4)] == [250, 256, 65536, 2**40]
        assert reader.left == 0

    @pytest.mark.parametrize("raw", [b"", b"\xfb", b"\xff", b"\xfc\x01", b"\xfd\x01\x02", b"\xfe\x01"])
    def test_what_is_no_number_is_refused(self, raw: bytes) -> None:
        with pytest.raises(Corrupt, match="TEST"):
            Reader(raw, "TEST").packed()

    def test_nothing_is_read_beyond_the_end(self) -> None:
        reader = Reader(b"abc", "TEST")
        with pytest.raises(Corrupt, match="cut short"):
            reader.take(4)
        with pytest.raises(Corrupt, match="cut short"):
            reader.take(-1)
        assert reader.rest() == b"abc"
        with pytest.raises(Corrupt, match="not UTF-8"):
            Reader(b"\xff", "TEST").text(1)


class TestFormatDescription:
    def test_a_file_says_what_it_is(self) -> None:
        assert FormatDescription.read(description()) == FormatDescription(4, "8.0.33-log", 7, 4)
        assert FormatDescription.read(description(0)).checksum_bytes == 0

    def test_other_formats_are_refused(self) -> None:
        with pytest.raises(Corrupt, match="algorithm is unknown"):
            FormatDescription.read(description(2))
        with pytest.raises(Corrupt, match="not version 4"):
            FormatDescription.read(b"\3" + description()[1:])
        with pytest.raises(Corrupt, match="cut short"):
            FormatDescription.read(description()[:70])


class TestQuery:
    # Flags, SQL mode, catalogue, auto-increment, charset, then what does not matter.
    STATUS = b"\0" + bytes(4) + b"\1" + (1 << 22 | 4).to_bytes(8, "little") + b"\6\3std" + b"\3" + bytes(4)
    STATUS += b"\4" + struct.pack("<HHH", 45, 45, 8) + b"\5\6SYSTEM"

    def test_a_statement_comes_with_what_decides_how_it_is_read(self) -> None:
        body = query_body("CREATE TABLE é (a INT)".encode(), status=self.STATUS, database=b"shop")
        assert read_query(body, "mysql") == Query(database="shop", sql="CREATE TABLE é (a INT)", sql_mode=1 << 22 | 4, charset=45)

    def test_a_statement_without_a_session(self) -> None:
        assert read_query(query_body(b"BEGIN", database=b""), "mysql") == Query(database="", sql="BEGIN", sql_mode=0)

    @pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
    @pytest.mark.parametrize(
        ("collation", "raw", "text"),
        [
            (8, "größe €".encode("cp1252"), "größe €"),
            # Bytes that are UTF-8 too, but are not meant so.
            (8, "Ã©".encode("cp1252"), "Ã©"),
            (28, "中".encode("gbk"), "中"),
            (45, "größe 😀".encode(), "größe 😀"),
            (33, "größe".encode(), "größe"),
        ],
    )
    def test_a_statement_is_read_by_the_clients_charset(self, flavour: Flavour, collation: int, raw: bytes, text: str) -> None:
        status = b"\4" + struct.pack("<HHH", collation, collation, 8)
        assert read_query(query_body(b"DROP TABLE `" + raw + b"`", status=status), flavour).sql == f"DROP TABLE `{text}`"

    def test_a_statement_that_is_no_text_in_its_charset_keeps_its_ascii(self) -> None:
        for collation in (45, 63):
            body = query_body(b"DROP TABLE t -- \xe4\xf6", status=b"\4" + struct.pack("<HHH", collation, 8, 8))
            assert read_query(body, "mysql").sql[:12] == "DROP TABLE t"

    def test_a_charset_that_is_not_known_matters_only_where_the_text_is_not_ascii(self) -> None:
        status = b"\4" + struct.pack("<HHH", 9999, 8, 8)
        assert read_query(query_body(b"DROP TABLE t", status=status), "mysql").sql == "DROP TABLE t"
        with pytest.raises(SourceDrift, match="9999"):
            read_query(query_body("DROP TABLE é".encode(), status=status), "mysql")

    def test_whether_timestamps_have_implicit_defaults_is_read_behind_all_other_variables(self) -> None:
        # Date names, default database, invoker, databases, times, and what newer servers add before it.
        before = b"\7\1\0\x08\2\0\x09" + bytes(8) + b"\x0a" + bytes(4) + b"\x0b\4root\1%" + b"\x0c\2one\0two\0" + b"\x0d" + bytes(3)
        for flag in (0, 1):
            body = query_body(b"BEGIN", status=self.STATUS + before + b"\x10" + bytes([flag]))
            assert read_query(body, "mysql").explicit_timestamps is bool(flag)
            assert read_query(body, "mysql").databases == {"one", "two"}
        too_many = query_body(b"BEGIN", status=b"\x0c\xfe" + b"\x10\1")
        assert read_query(too_many, "mysql").explicit_timestamps is True
        assert read_query(too_many, "mysql").databases is None
        assert read_query(query_body(b"BEGIN", status=self.STATUS + before), "mysql").explicit_timestamps is None

    def test_mariadb_tells_of_timestamps_by_a_flag_of_the_session(self) -> None:
        for flags in (0, 1 << 24):
            body = query_body(b"BEGIN", status=b"\0" + struct.pack("<I", flags))
            assert read_query(body, "mariadb").explicit_timestamps is bool(flags)
            assert read_query(body, "mysql").explicit_timestamps is None

    def test_variables_behind_one_that_is_not_known_are_not_read(self) -> None:
        body = query_body(b"BEGIN", status=b"\1" + (4).to_bytes(8, "little") + b"\xf0\4\4\4")
        assert read_query(body, "mysql") == Query(database="d", sql="BEGIN", sql_mode=4)


class TestGtid:
    def test_names_of_both_kinds(self) -> None:
        body = b"\1" + SOURCE.bytes + struct.pack("<q", 77) + bytes(10)
        assert read_gtid(Event.GTID, 1, body) == MySqlGtid(str(SOURCE), 77)
        assert str(read_gtid(Event.GTID, 1, body)) == f"{SOURCE}:77"
        found = read_gtid(Event.GTID_MARIADB, 42, struct.pack("<QIB", 9, 3, 0))
        assert found == MariaDbGtid(3, 42, 9)
        assert str(found) == "3-42-9"

    def test_an_anonymous_transaction_has_no_name(self) -> None:
        assert read_gtid(Event.ANONYMOUS_GTID, 1, bytes(42)) is None

    @settings(deadline=None)
    @given(st.integers(1, 2**62), st.from_regex("[a-z_][a-z0-9_]{0,31}", fullmatch=True) | st.just(""))
    def test_a_tagged_name(self, number: int, tag: str) -> None:
        found = read_gtid(Event.GTID_TAGGED, 1, tagged(number, tag))
        assert found == MySqlGtid(f"{SOURCE}:{tag}" if tag else str(SOURCE), number)

    def test_a_tagged_name_in_an_order_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(Corrupt, match="order"):
            read_gtid(Event.GTID_TAGGED, 1, variable(2) + variable(20) + variable(3) + variable(1) + bytes(30))


class TestXa:
    def test_the_name_of_a_prepared_transaction(self) -> None:
        body = b"\0" + struct.pack("<iII", -1, 3, 2) + b"abcde"
        # The server's own statements print the format as a number without sign.
        assert read_xa_prepare(body) == (False, Xid(0xFFFFFFFF, b"abc", b"de"))
        assert read_xa_prepare(b"\1" + body[1:])[0]

    def test_a_format_id_of_64_bits_names_one_transaction_in_both_phases(self) -> None:
        # As MySQL 5.7 and 8.0 log it: all of it in statements, 32 bits of it in XA_PREPARE.
        for number in (99_999_999_999, 2**63 - 1):
            _, prepared = read_xa_prepare(b"\0" + struct.pack("<III", number & 0xFFFFFFFF, 1, 1) + b"ab")
            whole = whole_xid(prepared, read_xa_start(f"XA START X'61',X'62',{number}"))
            assert read_xa_end(f"XA COMMIT X'61',X'62',{number}") == (True, whole) == (True, Xid(number, b"a", b"b"))

    def test_a_name_that_no_statement_has_is_the_one_that_is_prepared(self) -> None:
        assert read_xa_start("XA END X'61',X'62',1") is None
        assert whole_xid(Xid(1, b"a", b"b"), None) == Xid(1, b"a", b"b")

    @pytest.mark.parametrize("began", [Xid(2, b"a", b"b"), Xid(1, b"c", b"b"), Xid(2**32, b"a", b"b")])
    def test_a_transaction_that_is_prepared_under_another_name_than_it_began_with_is_refused(self, began: Xid) -> None:
        with pytest.raises(Corrupt, match="another name"):
            whole_xid(Xid(1, b"a", b"b"), began)

    def test_the_whole_name_is_in_the_first_statement_of_a_group_plain_or_compressed(self) -> None:
        name, gtid = Xid(2**40 + 1, b"a", b"b"), event(Event.GTID, bytes(42), next_position=0)
        began, later = (event(Event.QUERY, query_body(f"XA {word} {name}".encode()), next_position=0) for word in ("START", "END"))
        packed = payload(plain_event(Event.QUERY, query_body(f"XA START {name}".encode())))
        for group in (gtid + began + later, gtid + event(Event.TRANSACTION_PAYLOAD, packed, next_position=0)):
            assert xa_began(np.frombuffer(group, np.uint8), "mysql", checksum_bytes=4, where="here") == name
        # MariaDB has it in the GTID.
        for group in (gtid + later, gtid):
            assert xa_began(np.frombuffer(group, np.uint8), "mariadb", checksum_bytes=4, where="here") is None
        damaged = bytearray(gtid + began)
        damaged[-10] ^= 1
        with pytest.raises(Corrupt, match="checksum"):
            xa_began(np.frombuffer(bytes(damaged), np.uint8), "mysql", checksum_bytes=4, where="here")
        with pytest.raises(Corrupt, match="size"):
            xa_began(np.frombuffer((gtid + began)[:-1], np.uint8), "mysql", checksum_bytes=4, where="here")

    def test_a_name_that_is_too_long_is_refused(self) -> None:
        with pytest.raises(Corrupt, match="too long"):
            read_xa_prepare(b"\0" + struct.pack("<iII", 1, 65, 0) + bytes(65))


def test_an_incident_says_what_it_is() -> None:
    assert read_incident(b"\1\0\3why") == "incident 1 why"
    assert read_incident(b"\1\0") == "incident 1"


READERS: list[tuple[Callable[[bytes], Any], bytes]] = [
    (FormatDescription.read, description()),
    (lambda body: read_query(body, "mysql"), query_body(b"BEGIN", status=TestQuery.STATUS)),
    (lambda body: read_query(body, "mariadb"), query_body("é".encode("latin1"), status=b"\x0c\2one\0two\0\4\x08\0\x08\0\x08\0")),
    (read_xa_prepare, b"\0" + struct.pack("<iII", 1, 3, 2) + b"abcde"),
    (lambda body: read_gtid(Event.GTID, 1, body), b"\1" + SOURCE.bytes + struct.pack("<q", 77)),
    (lambda body: read_gtid(Event.GTID_MARIADB, 1, body), struct.pack("<QIB", 9, 3, 0)),
    (lambda body: read_gtid(Event.GTID_TAGGED, 1, body), tagged(5, "tag")),
    (read_incident, b"\1\0\3why"),
]


@pytest.mark.parametrize(("reader", "body"), READERS)
def test_a_body_that_is_cut_anywhere_is_refused_or_read(reader: Callable[[bytes], Any], body: bytes) -> None:
    for length in range(len(body)):
        try:
            reader(body[:length])
        except Corrupt:
            continue


@pytest.mark.parametrize(("reader", "body"), READERS)
def test_any_byte_may_be_wrong(reader: Callable[[bytes], Any], body: bytes) -> None:
    for at in range(len(body)):
        for byte in (0, 1, 0x7F, 0x80, 0xFB, 0xFF):
            try:
                reader(body[:at] + bytes([byte]) + body[at + 1 :])
            except (Corrupt, SourceDrift):
                continue


# As MariaDB 11.8.6 and 11.4.5 write it for `CREATE TABLE … CHARSET utf8mb4` of a client whose charset is latin1.
STATUS_118 = bytes.fromhex(
    "000000000101000020540000000006037374648305210000082300000a2d0000093600000b3c00000c04080008000009814000000000000000"
)
STATUS_114 = bytes.fromhex("00000000010100002054000000000603737464830004080008002d00814000000000000000")


def test_what_follows_the_collations_of_a_mariadb_session_is_read() -> None:
    """The client's charset stands behind them: labels of a statement were taken for UTF-8."""
    for status, chosen in ((STATUS_118, "uca1400_ai_ci"), (STATUS_114, "general_ci")):
        query = read_query(query_body("CREATE TABLE t (e ENUM('é'))".encode("latin1"), status=status), "mariadb")
        assert (query.charset, query.sql) == (8, "CREATE TABLE t (e ENUM('é'))")
        assert query.collations == {name: f"{name}_{chosen}" for name in ("utf8mb3", "ucs2", "utf8mb4", "utf16", "utf32")}
