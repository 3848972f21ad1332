"""TABLE_MAP made by hand: what it says, what it leaves out, and what must not be believed."""

from __future__ import annotations

import pytest

from snowmelt.databases.mysql.log.rowplan import plan_rows, table_of_map
from snowmelt.databases.mysql.log.tablemap import COLUMNS_MAX, TableMap, Wire, read_table_map
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TypeOptions
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.table import TableId

UTF8MB4, LATIN1, BINARY, GBK = 255, 8, 63, 28


def packed(number: int) -> bytes:
    return bytes([number]) if number < 251 else b"\xfc" + number.to_bytes(2, "little")


def field(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + packed(len(value)) + value


def text(value: bytes) -> bytes:
    return packed(len(value)) + value


def map_of(types: list[int], meta: bytes, *optional: bytes, nullable: bool = True) -> bytes:
    nulls = bytes([0xFF if nullable else 0] * ((len(types) + 7) // 8))
    head = (77).to_bytes(6, "little") + b"\1\0" + b"\4shop\0" + b"\6orders\0"
    return head + packed(len(types)) + bytes(types) + text(meta) + nulls + b"".join(optional)


def read(types: list[int], meta: bytes, *optional: bytes) -> TableMap:
    return read_table_map(map_of(types, meta, *optional), "mysql")


class TestVectors:
    """MySQL 9 counts VECTOR among the columns that have a charset."""

    def test_a_vector_has_a_default_charset(self) -> None:
        # id BIGINT, v VECTOR(2), foo TEXT, w VECTOR(4), as MySQL 9.7 writes it: binary but for the second, which is utf8mb4.
        found = read([Wire.LONGLONG, Wire.VECTOR, Wire.BLOB, Wire.VECTOR], b"\4\2\4", field(2, b"\x3f\1\xfc\xff\0"))
        assert [column.charset for column in found.columns] == [None, "binary", "utf8mb4", "binary"]

    def test_columns_beside_a_vector_keep_their_own_charset(self) -> None:
        types = [Wire.VARCHAR, Wire.VECTOR, Wire.VARCHAR, Wire.VARCHAR, Wire.VARCHAR]
        charsets = field(2, packed(UTF8MB4) + bytes([1, BINARY, 2, LATIN1]))
        found = read(types, b"\x50\0\4\x50\0\x50\0\x50\0", charsets)
        assert [column.charset for column in found.columns] == ["utf8mb4", "binary", "latin1", "utf8mb4", "utf8mb4"]


class TestShape:
    def test_types_and_their_metadata_are_always_there(self) -> None:
        types = [Wire.LONG, Wire.VARCHAR, Wire.NEWDECIMAL, Wire.BLOB, Wire.DATETIME2, Wire.BIT]
        found = read(types, b"\x2c\x01" + b"\x0a\x02" + b"\x02" + b"\x06" + b"\x01\x01")
        assert found.table == TableId("shop", "orders")
        assert [column.type for column in found.columns] == types
        assert [column.meta for column in found.columns] == [0, 300, 0x020A, 2, 6, 0x0101]
        assert not found.named
        assert {column.unsigned for column in found.columns} == {None}

    def test_enum_and_set_hide_behind_string(self) -> None:
        found = read([Wire.STRING, Wire.STRING, Wire.STRING], b"\xf7\x01" + b"\xf8\x08" + b"\xfe\x0a")
        assert [column.type for column in found.columns] == [Wire.ENUM, Wire.SET, Wire.STRING]

    def test_more_than_250_columns(self) -> None:
        assert len(read([Wire.LONG] * 300, b"").columns) == 300

    def test_columns_that_may_be_null(self) -> None:
        body = map_of([Wire.LONG] * 3, b"", nullable=False)
        assert [column.nullable for column in read_table_map(body, "mysql").columns] == [False] * 3
        assert [column.nullable for column in read([Wire.LONG] * 3, b"").columns] == [True] * 3


class TestOptional:
    def test_signs_come_by_the_order_of_numeric_columns(self) -> None:
        types = [Wire.LONG, Wire.VARCHAR, Wire.TINY, Wire.DOUBLE, Wire.LONGLONG]
        found = read(types, b"\x0a\x00" + b"\x08", field(1, bytes([0b1011_0000])))
        assert [column.unsigned for column in found.columns] == [True, None, False, True, True]

    def test_charsets_by_a_default_and_its_exceptions(self) -> None:
        types = [Wire.VARCHAR, Wire.LONG, Wire.BLOB, Wire.STRING]
        found = read(types, b"\x0a\x00" + b"\x02" + b"\xfe\x0a", field(2, packed(UTF8MB4) + b"\x01" + packed(BINARY)))
        assert [column.charset for column in found.columns] == ["utf8mb4", None, "binary", "utf8mb4"]

    def test_charsets_one_by_one(self) -> None:
        found = read([Wire.VARCHAR, Wire.VARCHAR], b"\x0a\x00\x0a\x00", field(3, packed(LATIN1) + packed(GBK)))
        assert [column.charset for column in found.columns] == ["latin1", "gbk"]

    def test_names_and_key(self) -> None:
        found = read([Wire.LONG, Wire.LONG], b"", field(4, text(b"id") + text("größe".encode())), field(8, b"\x01\x00"))
        assert [column.name for column in found.columns] == ["id", "größe"]
        assert found.named
        assert found.key == (1, 0)

    def test_a_key_by_prefixes_names_its_columns(self) -> None:
        assert read([Wire.LONG, Wire.LONG], b"", field(9, b"\x01\x05\x00\x00")).key == (1, 0)

    def test_labels_are_in_the_charset_of_their_column(self) -> None:
        labels = field(6, b"\x02" + text("é".encode("latin1")) + text(b"b")) + field(5, b"\x01" + text("中".encode("gbk")))
        found = read([Wire.STRING, Wire.STRING], b"\xf7\x01\xf8\x01", field(11, packed(LATIN1) + packed(GBK)) + labels)
        assert [column.labels for column in found.columns] == [("é", "b"), ("中",)]

    def test_fields_of_later_servers_are_passed_over(self) -> None:
        found = read([Wire.LONG], b"", field(12, b"\x80"), field(99, b"whatever"), field(4, text(b"id")))
        assert found.columns[0].name == "id"

    def test_a_geometry_has_a_charset_to_mariadb_only(self) -> None:
        body = map_of([Wire.GEOMETRY, Wire.VARCHAR], b"\x04" + b"\x0a\x00", field(3, packed(BINARY) + packed(LATIN1)))
        assert read_table_map(body, "mariadb").columns[1].charset == "latin1"
        with pytest.raises(Corrupt):
            read_table_map(body, "mysql")


class TestDamage:
    FULL = map_of(
        [Wire.LONG, Wire.VARCHAR, Wire.STRING, Wire.NEWDECIMAL],
        b"\x0a\x00" + b"\xf7\x01" + b"\x0a\x02",
        field(1, b"\x80"),
        field(2, packed(UTF8MB4)),
        field(10, packed(LATIN1)),
        field(4, text(b"a") + text(b"b") + text(b"c") + text(b"d")),
        field(6, b"\x02" + text(b"x") + text(b"y")),
        field(8, b"\x00"),
    )

    def test_a_map_that_is_cut_anywhere_is_refused_or_read(self) -> None:
        for length in range(len(self.FULL)):
            try:
                read_table_map(self.FULL[:length], "mysql")
            except Corrupt:
                continue

    def test_any_byte_may_be_wrong(self) -> None:
        for at in range(len(self.FULL)):
            for byte in (0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFF):
                try:
                    shape = read_table_map(self.FULL[:at] + bytes([byte]) + self.FULL[at + 1 :], "mysql")
                    plan_rows(shape, None, TypeOptions())
                except (Corrupt, SourceDrift):
                    continue

    @pytest.mark.parametrize(
        ("types", "meta", "optional", "why"),
        [
            ([], b"", b"", "number of columns"),
            ([Wire.LONG] * (COLUMNS_MAX + 1), b"", b"", "number of columns"),
            ([200], b"", b"", "unknown column type"),
            ([Wire.LONG], b"\1", b"", "more metadata"),
            ([Wire.VARCHAR], b"\1", b"", "cut short"),
            ([Wire.LONG], b"", field(8, b"\x01"), "key names a column"),
            ([Wire.LONG], b"", field(1, b"\x80\x00"), "longer than its columns need"),
            ([Wire.VARCHAR], b"\1\0", field(2, packed(UTF8MB4) + b"\x01\x08"), "gives a charset"),
            ([Wire.STRING], b"\xf7\x01", field(10, packed(UTF8MB4)) + field(6, b"\x01" + text(b"\xff")), "not text"),
        ],
    )
    def test_what_can_not_be_is_refused(self, types: list[int], meta: bytes, optional: bytes, why: str) -> None:
        with pytest.raises(Corrupt, match=why):
            read(types, meta, optional)


class TestPlan:
    """The log's shape against the schema in force."""

    @staticmethod
    def table(*columns: MySqlColumn) -> MySqlTable:
        return MySqlTable(id=TableId("shop", "orders"), columns=columns)

    def test_the_log_alone_makes_a_table_where_it_names_columns(self) -> None:
        types = [Wire.LONG, Wire.VARCHAR, Wire.BLOB, Wire.STRING, Wire.NEWDECIMAL]
        meta = b"\x0a\x00" + b"\x02" + b"\xfe\x05" + b"\x0a\x02"
        names = field(4, b"".join(text(name) for name in (b"id", b"v", b"b", b"f", b"d")))
        signs, charsets = field(1, b"\x80"), field(3, packed(LATIN1) + packed(BINARY) + packed(BINARY))
        table = table_of_map(read(types, meta, signs, charsets, names, field(8, b"\x00")))
        assert [(column.name, column.base) for column in table.columns] == [
            ("id", "int"),
            ("v", "varchar"),
            ("b", "blob"),
            ("f", "binary"),
            ("d", "decimal"),
        ]
        assert table.columns[0].unsigned
        assert (table.columns[3].length, table.columns[4].precision, table.columns[4].scale) == (5, 10, 2)
        assert table.key == ("id",)

    def test_without_names_and_without_a_schema_nothing_is_guessed(self) -> None:
        with pytest.raises(SourceDrift, match="no schema"):
            plan_rows(read([Wire.LONG], b""), None, TypeOptions())

    @pytest.mark.parametrize(
        ("types", "meta", "optional", "column", "why"),
        [
            ([Wire.LONG], b"", b"", MySqlColumn(name="a", base="bigint"), "LONG in the log and bigint"),
            ([Wire.LONG], b"", field(1, b"\x80"), MySqlColumn(name="a", base="int"), "sign"),
            ([Wire.LONG], b"", field(4, text(b"b")), MySqlColumn(name="a", base="int"), "names a column"),
            ([Wire.NEWDECIMAL], b"\x0a\x02", b"", MySqlColumn(name="a", base="decimal", precision=10, scale=3), "digits"),
            ([Wire.DATETIME2], b"\x03", b"", MySqlColumn(name="a", base="datetime", fsp=6), "fractional digits"),
            ([Wire.BIT], b"\x01\x01", b"", MySqlColumn(name="a", base="bit", length=8), "BIT"),
            ([Wire.VARCHAR], b"\x0a\x00", b"", MySqlColumn(name="a", base="text"), "VARCHAR"),
            (
                [Wire.STRING],
                b"\xf7\x01",
                field(10, packed(LATIN1)) + field(6, b"\x01" + text(b"x")),
                MySqlColumn(name="a", base="enum", labels=("y",)),
                "labels",
            ),
        ],
    )
    def test_a_schema_that_the_rows_were_not_written_with_is_refused(
        self, types: list[int], meta: bytes, optional: bytes, column: MySqlColumn, why: str
    ) -> None:
        with pytest.raises(SourceDrift, match=why):
            plan_rows(read(types, meta, optional), self.table(column), TypeOptions())

    def test_another_number_of_columns_is_refused(self) -> None:
        with pytest.raises(SourceDrift, match="2 columns, the schema 1"):
            plan_rows(read([Wire.LONG, Wire.LONG], b""), self.table(MySqlColumn(name="a", base="int")), TypeOptions())
