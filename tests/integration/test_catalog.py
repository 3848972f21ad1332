"""The catalogue gives the exact shape of a table, and the log's row images have that shape."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.catalog import LISTINGS, SYSTEM_DATABASES, ignores_case, parse_labels, read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.model.patterns import match_tables
from snowmelt.model.table import TableId
from tests.kit.servers import Fresh, Server

Database = Callable[[Server], str]


@pytest.fixture
def session_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """`session_of(server, user=…, password=…)`: a session, closed when the test ends."""
    sessions: list[Session] = []

    def connect(server: Server, user: str | None = None, password: str | None = None) -> Session:
        monkeypatch.setenv("SNOWMELT_TEST_PASSWORD", server.password if password is None else password)
        secret = Secret("${SNOWMELT_TEST_PASSWORD}")
        options = MySqlOptions(socket=str(server.socket), username=user or server.user, password=secret)
        sessions.append(Session(options))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


def run(server: Server, database: str, *statements: str) -> None:
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def one(session: Session, database: str, name: str) -> MySqlTable:
    return read_tables(session, [TableId(database, name)])[TableId(database, name)]


TEXT = {"charset": "latin1", "collation": "latin1_swedish_ci"}

TYPES: list[tuple[str, dict[str, Any]]] = [
    ("tinyint", {"base": "tinyint"}),
    ("tinyint(1)", {"base": "tinyint"}),
    ("bool", {"base": "tinyint"}),
    ("tinyint unsigned", {"base": "tinyint", "unsigned": True}),
    ("smallint(5) zerofill", {"base": "smallint", "unsigned": True}),
    ("mediumint unsigned", {"base": "mediumint", "unsigned": True}),
    ("int", {"base": "int"}),
    ("int(11) unsigned", {"base": "int", "unsigned": True}),
    ("bigint", {"base": "bigint"}),
    ("bigint unsigned", {"base": "bigint", "unsigned": True}),
    ("float", {"base": "float"}),
    ("float(7,3)", {"base": "float"}),
    ("float unsigned", {"base": "float", "unsigned": True}),
    ("float(30)", {"base": "double"}),
    ("double(10,2)", {"base": "double"}),
    ("real", {"base": "double"}),
    ("decimal", {"base": "decimal", "precision": 10, "scale": 0}),
    ("decimal(65,30)", {"base": "decimal", "precision": 65, "scale": 30}),
    ("decimal(10,2) unsigned", {"base": "decimal", "precision": 10, "scale": 2, "unsigned": True}),
    ("numeric(5)", {"base": "decimal", "precision": 5, "scale": 0}),
    ("date", {"base": "date"}),
    ("datetime", {"base": "datetime"}),
    ("datetime(3)", {"base": "datetime", "fsp": 3}),
    ("timestamp null", {"base": "timestamp"}),
    ("timestamp(6) null", {"base": "timestamp", "fsp": 6}),
    ("time", {"base": "time"}),
    ("time(2)", {"base": "time", "fsp": 2}),
    ("year", {"base": "year"}),
    ("char", {"base": "char", "length": 1, **TEXT}),
    ("char(0)", {"base": "char", "length": 0, **TEXT}),
    ("char(10) collate latin1_bin", {"base": "char", "length": 10, "charset": "latin1", "collation": "latin1_bin"}),
    (
        "varchar(20) character set utf8mb4 collate utf8mb4_bin",
        {"base": "varchar", "length": 20, "charset": "utf8mb4", "collation": "utf8mb4_bin"},
    ),
    ("varchar(9) character set binary", {"base": "varbinary", "length": 9}),
    ("tinytext", {"base": "tinytext", **TEXT}),
    ("text", {"base": "text", **TEXT}),
    ("mediumtext", {"base": "mediumtext", **TEXT}),
    ("longtext", {"base": "longtext", **TEXT}),
    ("enum('a','b')", {"base": "enum", "labels": ("a", "b"), **TEXT}),
    ("set('x','y')", {"base": "set", "labels": ("x", "y"), **TEXT}),
    ("binary", {"base": "binary", "length": 1}),
    ("binary(16)", {"base": "binary", "length": 16}),
    ("varbinary(100)", {"base": "varbinary", "length": 100}),
    ("tinyblob", {"base": "tinyblob"}),
    ("blob", {"base": "blob"}),
    ("mediumblob", {"base": "mediumblob"}),
    ("longblob", {"base": "longblob"}),
    ("bit", {"base": "bit", "length": 1}),
    ("bit(64)", {"base": "bit", "length": 64}),
    *((name, {"base": name}) for name in ("geometry", "point", "linestring", "polygon")),
    *((name, {"base": name}) for name in ("multipoint", "multilinestring", "multipolygon")),
]


def expected_columns(types: list[tuple[str, dict[str, Any]]]) -> list[MySqlColumn]:
    return [MySqlColumn(name=f"c{index}", **given) for index, (_, given) in enumerate(types)]


def create(server: Server, database: str, types: list[tuple[str, dict[str, Any]]]) -> None:
    columns = ", ".join(f"c{index} {text}" for index, (text, _) in enumerate(types))
    run(server, database, f"CREATE TABLE types ({columns}) CHARACTER SET latin1")


class TestTypes:
    def test_every_type_that_all_servers_have_is_read_exactly(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(any_server)
        create(any_server, name, TYPES)
        table = one(session_of(any_server), name, "types")
        assert list(table.columns) == expected_columns(TYPES)
        assert (table.engine, table.charset, table.collation, table.key) == ("InnoDB", "latin1", "latin1_swedish_ci", ())

    def test_types_of_mysql_8(self, mysql8: Server, database: Database, session_of: Callable[..., Session]) -> None:
        types = [
            ("json", {"base": "json"}),
            ("geometrycollection", {"base": "geomcollection"}),
            ("point srid 4326", {"base": "point"}),
            (
                "varchar(3) character set utf8mb3",
                {"base": "varchar", "length": 3, "charset": "utf8mb3", "collation": "utf8mb3_general_ci"},
            ),
        ]
        name = database(mysql8)
        create(mysql8, name, types)
        assert list(one(session_of(mysql8), name, "types").columns) == expected_columns(types)

    def test_types_of_mariadb(self, mariadb: Server, database: Database, session_of: Callable[..., Session]) -> None:
        types = [
            ("json", {"base": "longtext", "charset": "utf8mb4", "collation": "utf8mb4_bin"}),
            ("geometrycollection", {"base": "geometrycollection"}),
            ("uuid", {"base": "uuid"}),
            ("inet6", {"base": "inet6"}),
            ("inet4", {"base": "inet4"}),
            ("text compressed", {"base": "text", **TEXT}),
            ("varchar(1000) compressed", {"base": "varchar", "length": 1000, **TEXT}),
            (
                "varchar(3) character set utf8mb3",
                {"base": "varchar", "length": 3, "charset": "utf8mb3", "collation": "utf8mb3_general_ci"},
            ),
        ]
        name = database(mariadb)
        create(mariadb, name, types)
        assert list(one(session_of(mariadb), name, "types").columns) == expected_columns(types)

    def test_a_character_set_is_named_as_the_server_names_it(
        self, mysql56: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mysql56)
        run(mysql56, name, "CREATE TABLE t (a varchar(3)) CHARACTER SET utf8")
        table = one(session_of(mysql56), name, "t")
        assert (table.charset, table.columns[0].charset, table.columns[0].collation) == ("utf8", "utf8", "utf8_general_ci")

    def test_labels_come_back_as_they_were_declared(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        labels = [
            "a",
            "it's",
            "d,e",
            "back\\slash",
            "é",
            "ж",
            "",
            '"',
            "(",
            ")",
            "','",
            "\\'",
            "two words",
            "new\nline",
            "tab\t",
            "`",
            "%s",
        ]
        in_set = [label for label in labels if "," not in label]
        name = database(any_server)
        with any_server.connect(database=name) as connection, connection.cursor() as cursor:
            enums = ", ".join(connection.escape(label) for label in labels)
            sets = ", ".join(connection.escape(label) for label in in_set)
            cursor.execute(f"CREATE TABLE t (e enum({enums}) CHARACTER SET utf8mb4, s set({sets}) CHARACTER SET utf8mb4)")
            # The mode in which a backslash is a character like others is the creator's, not the reader's.
            cursor.execute("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
            cursor.execute(r"CREATE TABLE u (e enum('a\b', 'c\\d', 'e''f'))")
        session = session_of(any_server)
        table = one(session, name, "t")
        assert table.column("e").labels == tuple(labels)
        assert table.column("s").labels == tuple(in_set)
        assert one(session, name, "u").column("e").labels == ("a\\b", "c\\\\d", "e'f")

    def test_defaults_nullability_and_comments_are_read(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(any_server)
        run(
            any_server,
            name,
            "CREATE TABLE t (a int DEFAULT 5, b varchar(10) DEFAULT 'x''y', c varchar(10) DEFAULT NULL, d varchar(10) NOT NULL, "
            "e varchar(10) DEFAULT 'NULL', f varchar(9) DEFAULT '', g timestamp NULL DEFAULT CURRENT_TIMESTAMP COMMENT 'it''s é'"
            ") COMMENT 'the table''s'",
        )
        table = one(session_of(any_server), name, "t")
        quoted = any_server.kind == "mariadb"
        defaults = {column.name: column.default for column in table.columns}
        assert defaults["a"] == "5"
        assert defaults["b"] == ("'x''y'" if quoted else "x'y")
        assert (defaults["c"], defaults["d"]) == (None, None)
        assert (defaults["e"], defaults["f"]) == (("'NULL'", "''") if quoted else ("NULL", ""))
        assert str(defaults["g"]).lower().startswith("current_timestamp")
        assert [column.nullable for column in table.columns] == [True, True, True, False, True, True, True]
        assert (table.comment, table.column("g").comment) == ("the table's", "it's é")

    def test_generated_and_invisible_columns_are_known(
        self, mariadb: Server, mysql8: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        for server in (mariadb, mysql8):
            name = database(server)
            run(
                server,
                name,
                "CREATE TABLE t (a int, v int AS (a + 1) VIRTUAL, s int AS (a + 2) STORED, i int INVISIBLE, "
                "j int AS (a + 3) VIRTUAL INVISIBLE, d timestamp DEFAULT CURRENT_TIMESTAMP)",
            )
            table = one(session_of(server), name, "t")
            assert [column.generated for column in table.columns] == [None, "virtual", "stored", None, "virtual", None]
            assert [column.invisible for column in table.columns] == [False, False, False, True, True, False]

    def test_the_generated_primary_key_of_mysql_is_shown(
        self, mysql8: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mysql8)
        run(mysql8, name, "SET sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a int)")
        run(mysql8, name, "SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
        try:
            table = one(session_of(mysql8), name, "t")
        finally:
            run(mysql8, name, "SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
        assert [column.name for column in table.columns] == ["my_row_id", "a"]
        assert (table.columns[0].invisible, table.key) == (True, ("my_row_id",))


class TestKeys:
    @pytest.mark.parametrize(
        ("columns", "key", "primary"),
        [
            ("a int, b int, c int, PRIMARY KEY (c, a)", ("c", "a"), True),
            ("a int, b text, c int, PRIMARY KEY (c, b(10))", ("c", "b"), True),
            ("a int, b int", (), False),
            ("a int NOT NULL, b int, UNIQUE (a), PRIMARY KEY (b)", ("b",), True),
            ("a int NULL, b int NOT NULL, UNIQUE (a), UNIQUE (b)", ("b",), False),
            ("a int NOT NULL, b int NULL, UNIQUE (a, b)", (), False),
            ("a varchar(100) NOT NULL, UNIQUE (a(10))", (), False),
            ("a int NOT NULL, KEY (a)", (), False),
            # The server's order is that of declaration, not that of names.
            (
                "a int NOT NULL, b int NOT NULL, c int, d int NOT NULL, UNIQUE zz (b), UNIQUE n (c), UNIQUE aa (a), UNIQUE m (d)",
                ("b",),
                False,
            ),
        ],
    )
    def test_the_key_is_the_primary_or_the_first_unique_one_that_is_never_null(
        self,
        any_server: Server,
        database: Database,
        session_of: Callable[..., Session],
        columns: str,
        key: tuple[str, ...],
        primary: bool,
    ) -> None:
        name = database(any_server)
        run(any_server, name, f"CREATE TABLE t ({columns})")
        table = one(session_of(any_server), name, "t")
        assert (table.key, table.key_is_primary) == (key, primary)

    def test_an_index_on_an_expression_is_no_key(self, mysql8: Server, database: Database, session_of: Callable[..., Session]) -> None:
        name = database(mysql8)
        run(mysql8, name, "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE f ((a + 1)), UNIQUE g (b, (a + 1)))")
        assert one(session_of(mysql8), name, "t").key == ()
        run(mysql8, name, "ALTER TABLE t ADD UNIQUE h (b)")
        assert one(session_of(mysql8), name, "t").key == ("b",)


class TestWhichTables:
    def test_views_sequences_and_system_databases_are_left_out(
        self, mariadb: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mariadb)
        run(mariadb, name, "CREATE TABLE t (a int)", "CREATE VIEW v AS SELECT 1 x", "CREATE SEQUENCE s")
        session = session_of(mariadb)
        assert [str(table) for table in read_tables(session, lambda table: table.database == name)] == [f"{name}.t"]
        everything = read_tables(session, lambda _: True)
        assert TableId(name, "t") in everything
        assert not {table.database for table in everything} & {"mysql", "sys", "information_schema", "performance_schema"}
        assert read_tables(session, [TableId("mysql", "user"), TableId(name, "v"), TableId(name, "absent")]) == {}

    def test_strange_names_are_names(self, any_server: Server, database: Database, session_of: Callable[..., Session]) -> None:
        name = database(any_server)
        strange = ["we.ird `n", "50%_off", "it's", "ж", "CamelCase", "camelcase"]
        for table in strange:
            quoted = table.replace("`", "``")
            columns = "`a``b` int NOT NULL, c int NOT NULL, UNIQUE z (c), UNIQUE y (`a``b`)"
            run(any_server, name, f"CREATE TABLE `{quoted}` ({columns})")
        session = session_of(any_server)
        found = read_tables(session, match_tables([f"{name}.*"]))
        assert list(found) == sorted(TableId(name, table) for table in strange)
        assert {table.key for table in found.values()} == {("c",)}
        assert list(read_tables(session, [TableId(name, "CamelCase")])) == [TableId(name, "CamelCase")]

    def test_a_thousand_tables_take_a_handful_of_queries(
        self, any_server: Server, database: Database, session_of: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = database(any_server)
        # So many that the names no longer fit in the query; a thousand would only take longer.
        run(any_server, name, *(f"CREATE TABLE t{n} (id int PRIMARY KEY, a varchar(9)) ENGINE = MyISAM" for n in range(250)))
        session = session_of(any_server)
        asked: list[str] = []
        query = Session.query
        monkeypatch.setattr(Session, "query", lambda self, sql, args=None, **more: (asked.append(sql), query(self, sql, args, **more))[1])
        assert len(read_tables(session, match_tables([f"{name}.*"]))) == 250
        assert len(asked) <= LISTINGS + 3
        assert len(read_tables(session, match_tables([f"{name}.t1*"]))) == 111

    def test_a_user_who_sees_only_some_columns_is_told_so(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        # Not in a database named test_…: those are everybody's on MySQL 5.6.
        run(
            any_server,
            database(any_server),
            "CREATE DATABASE secretive",
            "CREATE TABLE secretive.t (a int, b int, c int)",
            "CREATE USER halfblind@'%' IDENTIFIED BY 'x'",
            "GRANT SELECT (a, c) ON secretive.t TO halfblind@'%'",
        )
        try:
            with pytest.raises(InvalidConfig, match="some columns"):
                one(session_of(any_server, "halfblind", "x"), "secretive", "t")
        finally:
            run(any_server, "mysql", "DROP USER halfblind@'%'", "DROP DATABASE secretive")

    def test_names_are_compared_as_the_server_compares_them(self, fresh_mariadb: Fresh, session_of: Callable[..., Session]) -> None:
        server = fresh_mariadb(lower_case_table_names=1)
        run(server, "mysql", "CREATE DATABASE Shop", "CREATE TABLE Shop.Orders (a int)")
        session = session_of(server)
        assert ignores_case(session)
        assert list(read_tables(session, [TableId("SHOP", "Orders")])) == [TableId("shop", "orders")]
        assert list(read_tables(session, match_tables(["Shop.ORD*"], ignore_case=True))) == [TableId("shop", "orders")]


class TestPatterns:
    @pytest.mark.parametrize(
        ("patterns", "exclude", "matched"),
        [
            (["shop.*"], [], ["shop.orders", "shop.orders_1", "shop.tmp_x", "shop.a.b"]),
            (["shop.*"], ["shop.tmp_*", "*.orders"], ["shop.orders_1", "shop.a.b"]),
            (["shop.orders_?"], [], ["shop.orders_1"]),
            (["shop.orders_[0-9]", "crm.customers"], [], ["shop.orders_1", "crm.customers"]),
            (["*.*"], [], ["shop.orders", "shop.orders_1", "shop.tmp_x", "shop.a.b", "crm.customers"]),
            (["mysql.user", "*.user"], [], []),
            (["shop.a.b"], [], ["shop.a.b"]),
            (["SHOP.orders"], [], []),
            (["sho*.orders"], [], ["shop.orders"]),
        ],
    )
    def test_wildcards_are_those_of_the_shell(self, patterns: list[str], exclude: list[str], matched: list[str]) -> None:
        tables = ["shop.orders", "shop.orders_1", "shop.tmp_x", "shop.a.b", "crm.customers", "mysql.user", "SYS.user"]
        matches = match_tables(patterns, exclude, never=SYSTEM_DATABASES)
        assert [table for table in tables if matches(TableId(*table.split(".", 1)))] == matched

    def test_case_is_ignored_only_where_the_server_does(self) -> None:
        assert match_tables(["SHOP.Orders"], ignore_case=True)(TableId("shop", "orders"))
        assert not match_tables(["SHOP.Orders"])(TableId("shop", "orders"))

    @pytest.mark.parametrize("pattern", ["shop", "", ".", "shop.", ".orders"])
    def test_a_pattern_without_database_or_table_is_wrong_use(self, pattern: str) -> None:
        with pytest.raises(InvalidConfig, match=r"database\.table"):
            match_tables([pattern])


@pytest.mark.parametrize("text", ["enum", "enum(", "enum()", "enum('a'", "enum('a',)", "enum('a' 'b')", "int(1)", "enum('a\\')", "set(a)"])
def test_labels_that_are_cut_off_are_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_labels(text)


# -- what the log's rows look like


Image = tuple[int | None, ...]


def logged(server: Server, database: str, *statements: str) -> list[tuple[str, list[str], list[Image]]]:
    """What the log holds of these statements: the kind of each rows event, its columns' names, its images' numbers.

    Only for tables of INT columns. The padding of the bitmaps is checked against what the catalogue module says.
    """
    run(server, database, "FLUSH BINARY LOGS", *statements)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
    data = (server.data / newest).read_bytes()
    events: list[tuple[str, list[str], list[Image]]] = []
    names: list[str] = []
    at = 4
    while at < len(data):
        kind, size = data[at + 4], struct.unpack_from("<I", data, at + 9)[0]
        event = data[at : at + size - 4]
        at += size
        if kind == 19:
            names = column_names(event)
        elif kind in (23, 24, 25, 30, 31, 32):
            place = 27 + (struct.unpack_from("<H", event, 27)[0] if kind >= 30 else 0)
            update = kind in (24, 31)
            events.append(("IUD"[(kind - 23) % 7], names, int_images(server, event, place, len(names), update)))
    return events


def column_names(event: bytes) -> list[str]:
    place = 27
    for _ in range(2):
        place += event[place] + 2
    columns = event[place]
    place += 1 + columns
    place += 1 + event[place] + (columns + 7) // 8
    while place < len(event):
        kind, size = event[place], event[place + 1]
        if kind == 4:
            field, names = event[place + 2 : place + 2 + size], []
            while field:
                names.append(field[1 : 1 + field[0]].decode())
                field = field[1 + field[0] :]
            return names
        place += 2 + size
    raise AssertionError("the log has no names")


def int_images(server: Server, event: bytes, place: int, columns: int, update: bool) -> list[Image]:
    assert event[place] == columns
    width = (columns + 7) // 8
    place += 1
    padding = ((1 << (8 * width)) - 1) & ~((1 << columns) - 1)
    for _ in range(2 if update else 1):
        present = int.from_bytes(event[place : place + width], "little")
        assert present | padding == padding | ((1 << columns) - 1), "every column is present"
        assert present & padding == (0 if server.kind == "mariadb" else padding)
        place += width
    images: list[Image] = []
    while place < len(event):
        nulls = int.from_bytes(event[place : place + width], "little")
        assert nulls & padding == (padding if server.kind == "mariadb" else 0)
        place += width
        values: list[int | None] = []
        for column in range(columns):
            if nulls >> column & 1:
                values.append(None)
            else:
                values.append(struct.unpack_from("<i", event, place)[0])
                place += 4
        images.append(tuple(values))
    return images


class TestRowImages:
    @pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
    def test_rows_of_the_log_have_the_columns_of_the_catalogue_generated_and_invisible_ones_too(
        self, mariadb: Server, mysql8: Server, database: Database, session_of: Callable[..., Session], engine: str
    ) -> None:
        for server in (mariadb, mysql8):
            name = database(server)
            run(
                server,
                name,
                "CREATE TABLE t (id int PRIMARY KEY, v int AS (a + 1) VIRTUAL, i int INVISIBLE DEFAULT 7, a int, "
                f"s int AS (a + 2) STORED, w int AS (v + 1) VIRTUAL INVISIBLE, n int AS (NULL) VIRTUAL, z int) ENGINE = {engine}",
            )
            shape = [column.name for column in one(session_of(server), name, "t").columns]
            assert shape == ["id", "v", "i", "a", "s", "w", "n", "z"]
            first: Image = (1, 11, 7, 10, 12, 12, None, 0)
            touched: Image = (1, 11, 7, 10, 12, 12, None, 5)
            changed: Image = (1, 21, 8, 20, 22, 22, None, 5)
            assert logged(
                server,
                name,
                "INSERT INTO t (id, a, z) VALUES (1, 10, 0)",
                "UPDATE t SET z = 5 WHERE id = 1",
                "UPDATE t SET a = 20, i = 8",
                "INSERT INTO t (id, a) VALUES (1, 0) ON DUPLICATE KEY UPDATE z = 6",
                "DELETE FROM t WHERE id = 1",
            ) == [
                ("I", shape, [first]),
                ("U", shape, [first, touched]),
                ("U", shape, [touched, changed]),
                ("U", shape, [changed, (*changed[:-1], 6)]),
                ("D", shape, [(*changed[:-1], 6)]),
            ]

    def test_hidden_columns_of_functional_indexes_are_not_in_the_log(
        self, mysql8: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mysql8)
        run(mysql8, name, "CREATE TABLE t (a int, KEY ((a + 1)), b int, KEY ((a + b)))", "ALTER TABLE t ADD COLUMN c int")
        shape = [column.name for column in one(session_of(mysql8), name, "t").columns]
        assert logged(mysql8, name, "INSERT INTO t VALUES (1, 2, 3)") == [("I", ["a", "b", "c"], [(1, 2, 3)])]
        assert shape == ["a", "b", "c"]

    def test_implicit_system_versioning_adds_two_columns_that_the_catalogue_hides_and_we_show(
        self, mariadb: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mariadb)
        run(mariadb, name, "CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING")
        run(
            mariadb,
            name,
            "CREATE TABLE u (id int, s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END, "
            "PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
        )
        session = session_of(mariadb)
        table = one(session, name, "t")
        assert [column.name for column in table.columns] == ["id", "row_start", "row_end"]
        assert [column.name for column in one(session, name, "u").columns] == ["id", "s", "e"]
        assert table.key == ("id", "row_end")
        run(mariadb, name, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (1)")
        assert newest_names(mariadb) == ["id", "row_start", "row_end"]

    def test_a_unique_index_kept_as_a_hash_adds_a_column_that_nobody_shows(
        self, mariadb: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mariadb)
        run(mariadb, name, "CREATE TABLE t (a text NOT NULL, UNIQUE (a))", "ALTER TABLE t ADD COLUMN b int")
        assert [column.name for column in one(session_of(mariadb), name, "t").columns] == ["a", "b"]
        run(mariadb, name, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (1, 2)")
        assert newest_names(mariadb) == ["a", "b", "DB_ROW_HASH_1"]


def newest_names(server: Server) -> list[str]:
    """The columns of the last TABLE_MAP in the log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        data = (server.data / cursor.fetchall()[-1][0]).read_bytes()
    names: list[str] = []
    at = 4
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        if data[at + 4] == 19:
            names = column_names(data[at : at + size - 4])
        at += size
    return names


@pytest.mark.parametrize("kind", ["mariadb", "mysql56"])
def test_a_table_that_is_being_altered_is_found_with_its_key_though_the_server_lists_it_not(
    kind: str, request: pytest.FixtureRequest, database: Database, session_of: Callable[..., Session]
) -> None:
    server: Server = request.getfixturevalue(kind)
    name = database(server)
    run(server, name, *(f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, v INT)" for table in ("steady", "altered", "other")))
    wanted = [TableId(name, table) for table in ("altered", "other", "steady")]
    over = threading.Event()

    def alter() -> None:
        with server.connect(database=name) as connection, connection.cursor() as cursor:
            while not over.is_set():
                # Neither changes what the table is, so that no statement of the log would call for another look.
                cursor.execute("ALTER TABLE altered ENGINE = InnoDB")
                cursor.execute("ALTER TABLE altered COMMENT = 'same', ALGORITHM = COPY")

    def is_listed() -> bool:
        return any(found == "altered" for (found,) in session.query(f"SHOW TABLES IN {name}"))

    session = session_of(server)
    matching = match_tables([f"{name}.*"])
    missed = 0
    with ThreadPoolExecutor(1) as pool:
        altering = pool.submit(alter)
        try:
            while missed < 10 and not altering.done():
                for asked in (matching, wanted, wanted[:1]):
                    found = read_tables(session, asked)
                    assert list(found) == wanted[: len(found)]
                    assert len(found) == (1 if asked == wanted[:1] else 3)
                    assert all(table.key == ("id",) for table in found.values())
                missed += sum(not is_listed() for _ in range(20))
        finally:
            over.set()
        altering.result()
    assert missed >= 10


@pytest.mark.parametrize("named", [True, False])
def test_a_table_that_is_made_again_while_the_catalogue_is_read_keeps_its_key(
    any_server: Server, database: Database, session_of: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """A first start refuses a table without a key, and its columns are read before its key is."""
    name = database(any_server)
    make = "CREATE TABLE scratch (id INT NOT NULL PRIMARY KEY)"
    run(any_server, name, make, "CREATE TABLE steady (id INT NOT NULL PRIMARY KEY)", "CREATE TABLE keyless (v INT)")
    query, races = Session.query, [True]

    def raced(session: Session, sql: str, args: Any = None, **more: Any) -> Any:
        if "information_schema.statistics" in sql and races:
            races.pop()
            run(any_server, name, "DROP TABLE scratch")
            try:
                return query(session, sql, args, **more)
            finally:
                run(any_server, name, make)
        return query(session, sql, args, **more)

    monkeypatch.setattr(Session, "query", raced)
    scratch = TableId(name, "scratch")
    found = read_tables(session_of(any_server), [scratch] if named else match_tables([f"{name}.*"]))
    assert not races
    assert found[scratch].key == ("id",)
    assert {table.name: shape.key for table, shape in found.items() if not named} == (
        {} if named else {"keyless": (), "scratch": ("id",), "steady": ("id",)}
    )
