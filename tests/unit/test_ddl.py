"""What statements of the log do to captured tables."""

# ruff: noqa: E501 (statements on one line each)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from snowmelt.databases.mysql.ddl import (
    AlterColumns,
    CreateTable,
    DatabaseDefaults,
    DropDatabase,
    DropTable,
    Ignored,
    Merged,
    NotUnderstood,
    RenameTable,
    Rewrites,
    RowsAsText,
    Rules,
    SchemaChange,
    SqlMode,
    Truncate,
    read_statement,
)
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.model.table import TableId

MYSQL = Rules(flavour="mysql", version=(8, 0, 33), sql_mode=SqlMode.STRICT_TRANS_TABLES)
MARIADB = Rules(flavour="mariadb", version=(10, 11, 6), sql_mode=SqlMode.STRICT_TRANS_TABLES)
T, U = TableId("shop", "t"), TableId("shop", "u")

TABLE = MySqlTable(
    id=T,
    columns=(
        MySqlColumn(name="id", base="int", nullable=False),
        MySqlColumn(name="name", base="varchar", length=10, charset="utf8mb4", collation="utf8mb4_0900_ai_ci"),
        MySqlColumn(name="price", base="decimal", precision=10, scale=2, nullable=False),
        MySqlColumn(name="kind", base="enum", labels=("a", "b"), charset="utf8mb4", collation="utf8mb4_0900_ai_ci"),
        MySqlColumn(name="seen", base="timestamp"),
    ),
    key=("id",),
    charset="utf8mb4",
    collation="utf8mb4_0900_ai_ci",
)


def read(
    sql: str,
    *tables: MySqlTable,
    rules: Rules = MYSQL,
    captured: Callable[[TableId], bool] | None = None,
    database: str = "shop",
    databases: frozenset[str] | None = None,
) -> tuple[SchemaChange, ...]:
    shapes = {table.id: table for table in tables or (TABLE,)}
    return read_statement(
        sql,
        database=database,
        schemas=shapes.get,
        captured=captured or (lambda table: table.database == "shop"),
        defaults=lambda _: "utf8mb4_0900_ai_ci",
        rules=rules,
        databases=databases,
    )


def altered(sql: str, rules: Rules = MYSQL, table: MySqlTable = TABLE) -> AlterColumns:
    (change,) = read(sql, table, rules=rules)
    assert isinstance(change, AlterColumns), change
    return change


def created(sql: str, rules: Rules = MYSQL) -> MySqlTable:
    (change,) = read(sql, rules=rules)
    assert isinstance(change, CreateTable), change
    return change.table


@pytest.mark.parametrize(
    "action",
    [
        "MODIFY id BIGINT NOT NULL",
        "MODIFY name VARCHAR(11)",
        "MODIFY name TEXT",
        "MODIFY price DECIMAL(12,4) NOT NULL",
        "MODIFY price DECIMAL(10,2) NULL",
        "MODIFY kind ENUM('a','b','c')",
        "MODIFY name VARCHAR(10) NOT NULL",
        "MODIFY name VARCHAR(10) COLLATE utf8mb4_bin",
        "MODIFY seen TIMESTAMP(6) NULL",
        "MODIFY name VARCHAR(10) FIRST",
        "CHANGE name title VARCHAR(10)",
        "RENAME COLUMN name TO title",
        "RENAME COLUMN id TO ident",
        "DROP COLUMN name",
        "ADD x INT",
        "ADD x INT NOT NULL DEFAULT 3",
        "ADD x VARCHAR(5) NOT NULL",
        "ADD x INT DEFAULT (4)",
        "ADD x DATE DEFAULT '2020-01-01'",
        "DEFAULT CHARSET latin1",
        "COMMENT 'new'",
    ],
)
def test_what_keeps_stored_values_is_metadata_only(action: str) -> None:
    altered(f"ALTER TABLE t {action}")


@pytest.mark.parametrize(
    "action",
    [
        "MODIFY id SMALLINT NOT NULL",
        "MODIFY id INT UNSIGNED NOT NULL",
        "MODIFY id BIGINT UNSIGNED NOT NULL",
        "MODIFY id VARCHAR(20) NOT NULL",
        "MODIFY name VARCHAR(9)",
        "MODIFY name TINYTEXT CHARSET latin1",
        "MODIFY name VARCHAR(10) CHARSET latin1",
        "MODIFY name VARBINARY(40)",
        "MODIFY price DECIMAL(10,3) NOT NULL",
        "MODIFY price DECIMAL(12,1) NOT NULL",
        "MODIFY price DECIMAL(40,2) NOT NULL",
        "MODIFY price DOUBLE NOT NULL",
        "MODIFY kind ENUM('b','a')",
        "MODIFY kind ENUM('a')",
        "MODIFY seen TIMESTAMP NOT NULL",
        "MODIFY seen DATETIME",
        "ADD x DATETIME DEFAULT NOW()",
        "ADD x VARCHAR(40) DEFAULT (uuid())",
        "ADD x INT DEFAULT (1 + 1)",
        "ADD x TIMESTAMP DEFAULT '2020-01-01 00:00:00'",
        "ADD x INT AS (id + 1)",
        "ADD x INT AS (id + 1) STORED",
        "ADD x INT AUTO_INCREMENT UNIQUE",
        "MODIFY id INT NOT NULL AUTO_INCREMENT",
        "CHANGE id ident BIGINT AUTO_INCREMENT",
        "DROP PRIMARY KEY",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (name)",
        "ADD x INT NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (x)",
        "DROP COLUMN id",
        "CONVERT TO CHARACTER SET latin1",
        "DROP PARTITION p0",
        "TRUNCATE PARTITION p0, p1",
        "EXCHANGE PARTITION p WITH TABLE other.x",
        "IMPORT TABLESPACE",
        "DISCARD TABLESPACE",
        "ENGINE=BLACKHOLE",
        "FROBNICATE ROWS",
        "UNION=(other.a, other.b)",
        "ADD SYSTEM VERSIONING",
    ],
)
def test_what_changes_stored_values_is_never_called_metadata(action: str) -> None:
    (change,) = read(f"ALTER TABLE t {action}")
    assert isinstance(change, Rewrites)
    assert change.table == T
    assert change.reason


def test_nulls_are_converted_unless_the_mode_is_strict() -> None:
    sql = "ALTER TABLE t MODIFY name VARCHAR(10) NOT NULL"
    assert isinstance(read(sql, rules=replace(MYSQL, sql_mode=0))[0], Rewrites)
    assert isinstance(read(sql.replace("ALTER", "ALTER IGNORE"), rules=MARIADB)[0], Rewrites)
    assert isinstance(read(sql)[0], AlterColumns)


@pytest.mark.parametrize("more", ["", " DEFAULT CURRENT_TIMESTAMP"])
def test_a_column_that_is_dropped_and_added_by_one_statement_has_none_of_its_values(more: str) -> None:
    (change,) = read(f"ALTER TABLE t DROP COLUMN seen, ADD COLUMN seen TIMESTAMP NULL{more}")
    assert not isinstance(change, Ignored)


@pytest.mark.parametrize("action", ["ADD UNIQUE (name)", "PARTITION BY HASH (id)", "ADD CONSTRAINT CHECK (id < 3)"])
def test_an_alter_that_ignores_errors_drops_rows(action: str) -> None:
    (change,) = read(f"ALTER IGNORE TABLE t {action}", rules=MARIADB)
    assert isinstance(change, Rewrites)


def test_a_column_keeps_its_zeros_where_it_had_auto_increment_before() -> None:
    numbered = replace(TABLE, columns=(replace(TABLE.columns[0], auto_increment=True), *TABLE.columns[1:]))
    assert altered("ALTER TABLE t MODIFY id BIGINT NOT NULL AUTO_INCREMENT", table=numbered).after.columns[0].auto_increment
    assert not altered("ALTER TABLE t MODIFY id INT NOT NULL", table=numbered).after.columns[0].auto_increment
    assert numbered.fingerprint() == TABLE.fingerprint()


def test_a_key_column_that_gets_another_collation_changes_which_rows_are_one() -> None:
    table = replace(TABLE, key=("name",), columns=(TABLE.columns[0], replace(TABLE.columns[1], nullable=False), *TABLE.columns[2:]))
    (change,) = read("ALTER TABLE t MODIFY name VARCHAR(10) COLLATE utf8mb4_bin NOT NULL", table)
    assert isinstance(change, Rewrites)


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("INT", None),
        ("INT NOT NULL", "0"),
        ("INT DEFAULT 1.5", "2"),
        ("INT DEFAULT TRUE", "1"),
        ("DECIMAL(6,2) NOT NULL", "0.00"),
        ("DECIMAL(6,2) DEFAULT 1.005", "1.01"),
        ("VARCHAR(9) DEFAULT 'it''s'", "it's"),
        ("CHAR(9) DEFAULT 'x  '", "x"),
        ("VARCHAR(9) NOT NULL", ""),
        ("BINARY(3) DEFAULT 'x'", b"x\0\0"),
        ("BIT(9) DEFAULT b'11'", b"\0\x03"),
        ("ENUM('p','q') NOT NULL", "p"),
        ("SET('p','q') DEFAULT 'q,p'", "p,q"),
        ("DATE NOT NULL", "0000-00-00"),
        ("DATETIME(3) NOT NULL", "0000-00-00 00:00:00.000"),
        ("DATETIME DEFAULT '2020-01-01'", "2020-01-01 00:00:00"),
        ("YEAR NOT NULL", "0000"),
    ],
)
def test_an_added_column_says_what_stored_rows_hold(definition: str, value: str | bytes | None) -> None:
    assert altered(f"ALTER TABLE t ADD x {definition}").filled == {"x": value}


def test_columns_that_only_python_takes_for_one_are_two() -> None:
    columns = (MySqlColumn(name="ss", base="int"), MySqlColumn(name="ß", base="int", nullable=False))
    table = MySqlTable(id=T, columns=columns, key=("ß",))
    assert table.column("ß").name == "ß"
    assert table.column("SS").name == "ss"
    (change,) = read("ALTER TABLE t DROP COLUMN ss", table)
    assert isinstance(change, AlterColumns)
    assert [column.name for column in change.after.columns] == ["ß"]


def test_columns_swap_names() -> None:
    change = altered("ALTER TABLE t RENAME COLUMN name TO kind, RENAME COLUMN kind TO name")
    assert change.renamed == {"name": "kind", "kind": "name"}
    assert [column.name for column in change.after.columns] == ["id", "kind", "price", "name", "seen"]


def test_a_column_dropped_and_added_again_is_a_new_one() -> None:
    change = altered("ALTER TABLE t DROP name, ADD name INT DEFAULT 1 AFTER id")
    assert change.filled == {"name": "1"}
    assert [column.base for column in change.after.columns][:2] == ["int", "int"]


def test_modify_with_a_place_moves_the_column() -> None:
    change = altered("ALTER TABLE t MODIFY seen TIMESTAMP NULL FIRST, MODIFY name VARCHAR(10) AFTER kind")
    assert [column.name for column in change.after.columns] == ["seen", "id", "price", "kind", "name"]


def test_a_rename_of_the_key_follows_into_the_key() -> None:
    assert altered("ALTER TABLE t CHANGE id ident INT").after.key == ("ident",)


def test_indexes_and_options_change_nothing() -> None:
    for action in (
        "ADD INDEX (name)",
        "DROP INDEX x",
        "ADD UNIQUE u (name)",
        "AUTO_INCREMENT=7",
        "ENGINE=InnoDB",
        "ORDER BY id, name",
        "FORCE",
    ):
        assert isinstance(read(f"ALTER TABLE t {action}")[0], Ignored), action
    assert isinstance(read("CREATE INDEX i ON t (name)")[0], Ignored)
    assert isinstance(read("DROP INDEX i ON t")[0], Ignored)


def test_a_table_identified_by_a_unique_key_is_asked_for_again_when_its_indexes_change() -> None:
    table = replace(TABLE, key_is_primary=False)
    (change,) = read("DROP INDEX u ON t", table)
    assert isinstance(change, Rewrites)
    assert change.after is None


def test_an_alter_of_a_column_that_we_do_not_know_is_not_understood() -> None:
    (change,) = read("ALTER TABLE t DROP COLUMN nothing")
    assert isinstance(change, NotUnderstood)
    assert change.tables == (T,)
    assert isinstance(read("ALTER TABLE t DROP COLUMN IF EXISTS nothing", rules=MARIADB)[0], Ignored)


def test_a_foreign_key_that_cascades_is_told() -> None:
    assert altered("ALTER TABLE t ADD x INT, ADD FOREIGN KEY (x) REFERENCES u (id) ON DELETE CASCADE").cascades
    assert altered("ALTER TABLE t ADD FOREIGN KEY (kind) REFERENCES u (id) ON UPDATE SET NULL").cascades
    assert not altered("ALTER TABLE t ADD x INT, ADD FOREIGN KEY (x) REFERENCES u (id) ON DELETE NO ACTION").cascades


def test_renames_swap_tables() -> None:
    other = replace(TABLE, id=U, comment="other")
    changes = read("RENAME TABLE t TO tmp, u TO t, tmp TO u", TABLE, other)
    assert [(change.old.name, change.new.name) for change in changes if isinstance(change, RenameTable)] == [
        ("t", "tmp"),
        ("u", "t"),
        ("tmp", "u"),
    ]
    assert [change.after.comment for change in changes if isinstance(change, RenameTable) and change.after] == ["", "other", ""]


def test_a_rename_into_a_captured_name_is_told_though_its_shape_is_not_known() -> None:
    (change,) = read("RENAME TABLE ghost.t_new TO shop.t", captured=lambda table: table == T)
    assert change == RenameTable(TableId("ghost", "t_new"), T, None)
    (change,) = read("ALTER TABLE ghost.t_new ODD THING, RENAME TO shop.t", captured=lambda table: table == T)
    assert isinstance(change, RenameTable)


@pytest.mark.parametrize("name", ["index", "key", "column"])
def test_a_table_is_renamed_to_a_word_that_begins_another_kind_of_rename(name: str) -> None:
    new = TableId("shop", name)
    assert read(f"ALTER TABLE t RENAME `{name}`") == (RenameTable(T, new, replace(TABLE, id=new)),)


def test_a_rename_of_what_may_not_exist_into_a_name_that_a_table_has_does_nothing() -> None:
    assert read("RENAME TABLE IF EXISTS nope TO t", rules=MARIADB) == (Ignored("not a captured table"),)
    changes = read("RENAME TABLE IF EXISTS nope TO t, t TO u, nope TO t", rules=MARIADB)
    assert [(change.old.name, change.new.name) for change in changes if isinstance(change, RenameTable)] == [("t", "u"), ("nope", "t")]


@pytest.mark.parametrize(
    ("sql", "children"),
    [
        ("CREATE TABLE other.m (a INT, KEY `union` (a)) ENGINE=MERGE UNION=(shop.t, other.x, `shop`.`u`) INSERT_METHOD=LAST", [T, U]),
        ("CREATE TABLE m (a INT COMMENT 'UNION=(u)') ENGINE=MRG_MYISAM UNION (t)", [T]),
        ("CREATE OR REPLACE TABLE m (a INT) UNION=(t, t) ENGINE=MERGE", [T]),
        ("ALTER TABLE other.m UNION = (shop.u), COMMENT 'x'", [U]),
        ("ALTER TABLE t ENGINE=MERGE UNION=(u)", [U]),
        ("ALTER TABLE m UNION = ()", []),
        ("CREATE TABLE other.x AS SELECT 1 UNION (SELECT 2)", []),
        ("CREATE TABLE other.x AS SELECT 1 UNION ALL SELECT 2", []),
        ("CREATE TABLE other.x (a INT) COMMENT 'not closed", []),
        ("CREATE VIEW v AS SELECT 1 UNION (SELECT 2)", []),
        ("CREATE PROCEDURE p() CREATE TABLE m (a INT) ENGINE=MERGE UNION=(t)", []),
    ],
)
def test_tables_that_a_merge_table_names_are_told(sql: str, children: list[TableId]) -> None:
    assert [change.table for change in read(sql) if isinstance(change, Merged)] == children


def test_a_table_that_is_not_captured_exchanges_rows_with_one_that_is() -> None:
    (change,) = read("ALTER TABLE other.p EXCHANGE PARTITION p0 WITH TABLE shop.t", captured=lambda table: table == T)
    assert isinstance(change, Rewrites)
    assert change.table == T


def test_drops_and_truncates() -> None:
    assert read("DROP TABLE IF EXISTS `t`, other.x /* generated by server */") == (DropTable(T),)
    assert read("TRUNCATE t") == read("TRUNCATE TABLE `shop`.`t`") == (Truncate(T),)
    assert read("DROP DATABASE IF EXISTS `shop`") == (DropDatabase("shop"),)
    assert isinstance(read("DROP TEMPORARY TABLE IF EXISTS t")[0], Ignored)
    assert isinstance(read("CREATE TEMPORARY TABLE t (a INT)")[0], Ignored)


def test_a_memory_table_emptied_by_its_server_is_truncated_and_no_other_is() -> None:
    memory = replace(TABLE, engine="MEMORY")
    sql = "DELETE FROM `shop`.`t`"
    assert read(sql, memory) == read(f"{sql} /* generated by server */", memory) == (Truncate(T),)
    # Of one whose shape is not known only MySQL 5 says it so; elsewhere a session did it, perhaps through a view of a captured table.
    of_mysql5 = replace(MYSQL, version=(5, 6, 24))
    assert read(sql, replace(TABLE, id=U), rules=of_mysql5) == (Truncate(T),)
    assert isinstance(read("DELETE FROM `other`.`m`", rules=of_mysql5)[0], Ignored)
    assert isinstance(read(sql, memory, captured=lambda _: False)[0], Ignored)
    for rules in (MYSQL, MARIADB):
        assert read(sql, replace(TABLE, id=U), rules=rules) == read("DELETE FROM `other`.`v`", rules=rules) == (RowsAsText("DELETE"),)
    # Triggers see a DELETE.
    for other in (read(sql), read("DELETE FROM t", memory), read("DELETE FROM t"), read("ANALYZE DELETE FROM t", rules=MARIADB)):
        assert other == (RowsAsText("DELETE", (T,)),)


def test_rows_changed_by_a_statement_are_told_and_their_values_are_not_kept() -> None:
    assert read("UPDATE t SET name = 'secret' WHERE id = 1") == (RowsAsText("UPDATE", (T,)),)


def test_rows_changed_by_a_statement_may_be_those_of_every_table_unless_the_log_names_the_databases() -> None:
    elsewhere = TableId("other", "x")
    (unknown,) = read("UPDATE t SET name = 'x'")
    (known,) = read("UPDATE t SET name = 'x'", databases=frozenset({"OTHER"}), rules=replace(MYSQL, lower_case_names=True))
    assert isinstance(unknown, RowsAsText)
    assert isinstance(known, RowsAsText)
    assert [unknown.may_change(table) for table in (T, U, elsewhere)] == [True, True, True]
    assert [known.may_change(table) for table in (T, U, elsewhere)] == [True, False, True]


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE u SELECT f(1) a", "CREATE TABLE u (a INT) AS SELECT f(1) a", "CREATE TABLE u AS VALUES (f(1))"]
)
def test_a_query_that_fills_a_captured_table_may_change_others_by_a_function(sql: str) -> None:
    """The new table is copied, and what else the query's functions changed is not in the log."""
    changes = read(sql)
    assert changes[0] == RowsAsText("CREATE")
    assert isinstance(changes[1], NotUnderstood)
    assert changes[1].tables == (U,)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO other.x VALUES (1)", "REPLACE other.x VALUES (1)", "UPDATE other.x SET a = 'secret'", "DELETE FROM other.x WHERE a = 1", "DELETE FROM other.x",
        "LOAD DATA INFILE 'f' INTO TABLE other.x", "WITH c AS (SELECT 1) DELETE FROM other.x", "(SELECT f(1))", "SELECT other.f('secret')", "DO f(1)", "CALL other.p()",
        "VALUES ROW(f(1))",
    ],
)  # fmt: skip
def test_rows_changed_by_a_statement_that_names_no_captured_table_are_told_since_a_view_or_trigger_may_lead_to_one(sql: str) -> None:
    (change,) = read(sql, captured=lambda table: table == T)
    assert change == RowsAsText(sql.strip("(").split()[0].upper())


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("CREATE TABLE other.x (a INT) SELECT f(5) a", True), ("CREATE TABLE other.x AS VALUES (f(5))", True), ("CREATE TEMPORARY TABLE x SELECT f(7) a", True),
        ("CREATE TABLE other.x AS WITH c AS (SELECT f(1)) SELECT * FROM c", True), ("CREATE TABLE other.x (`select` INT, b INT COMMENT 'select')", False),
        ("CREATE TEMPORARY TABLE x (a INT)", False), ("CREATE TABLE other.x (a INT) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (5))", False),
        ("CREATE TABLE other.x (a INT) PARTITION BY LIST (a) (PARTITION p VALUES IN (5))", False), ("CREATE VIEW other.v AS SELECT 1", False),
    ],
)  # fmt: skip
def test_a_query_that_fills_a_table_that_is_not_captured_may_change_others_by_a_function(sql: str, rows: bool) -> None:
    assert isinstance(read(sql, captured=lambda table: table == T)[0], RowsAsText if rows else Ignored)


PREFIXES = (
    "SET STATEMENT max_statement_time=0 FOR ",
    "set statement sql_mode='', sort_buffer_size = 1000*2 for ",
    "/* x */ SET STATEMENT a='FOR' FOR ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "sql",
    ["ALTER TABLE t MODIFY name VARCHAR(10) FIRST", "TRUNCATE TABLE t", "RENAME TABLE t TO u", "DROP TABLE t", "CREATE OR REPLACE TABLE t (a INT)", "INSERT INTO t VALUES (5)"],
)  # fmt: skip
def test_a_statement_behind_set_statement_does_what_it_does_alone(prefix: str, sql: str) -> None:
    changes = read(prefix + sql, rules=MARIADB)
    assert changes == read(sql, rules=MARIADB)
    assert not any(isinstance(change, Ignored) for change in changes)


def test_set_statement_that_can_not_be_read_is_no_set() -> None:
    (change,) = read("SET STATEMENT max_statement_time=0 TRUNCATE TABLE t", rules=MARIADB)
    assert isinstance(change, NotUnderstood)
    assert change.tables == (T,)
    assert isinstance(read("SET STATEMENT = 1")[0], Ignored)


def test_a_change_that_is_analysed_is_a_change() -> None:
    for sql in ("ANALYZE INSERT INTO t VALUES (6)", "ANALYZE UPDATE t SET name = 'x'", "ANALYZE DELETE FROM t WHERE id = 1"):
        assert read(sql, rules=MARIADB) == (RowsAsText(sql.split()[1], (T,)),)
    assert read("ANALYZE FORMAT=JSON UPDATE t SET id = 5", rules=MARIADB) == (RowsAsText("UPDATE", (T,)),)
    assert isinstance(read("ANALYZE LOCAL TABLE t", rules=MARIADB)[0], Ignored)
    assert read("ANALYZE INSERT INTO other.x VALUES (6)", rules=MARIADB, captured=lambda table: table == T) == (RowsAsText("INSERT"),)


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN", "COMMIT", "SAVEPOINT `t`", "XA START 'x'", "GRANT ALL ON t TO x", "FLUSH TABLES t", "ANALYZE TABLE t", "SET PASSWORD = 'x'",
        "CREATE VIEW v AS SELECT * FROM t", "CREATE OR REPLACE ALGORITHM=MERGE VIEW t AS SELECT 1", "CREATE USER t", "DROP VIEW t", "DROP PROCEDURE t",
        "CREATE DEFINER=`a`@`b` PROCEDURE p() DROP TABLE t", "CREATE SEQUENCE s", "ALTER EVENT e DISABLE", "CREATE TABLESPACE t", "", " ; ", "# comment",
    ],
)  # fmt: skip
def test_statements_without_effect_on_tables_are_ignored(sql: str) -> None:
    (change,) = read(sql)
    assert isinstance(change, Ignored)


def test_rows_changed_by_a_statement_are_noticed_however_the_table_is_quoted() -> None:
    odd = replace(TABLE, id=TableId("shop", 'a`b"c'))
    assert read('REPLACE INTO `a``b"c` VALUES (1)', odd) == (RowsAsText("REPLACE", (odd.id,)),)
    assert read("WITH c AS (SELECT '5\" pipe') UPDATE t, c SET name = '6\"'") == (RowsAsText("WITH", (T,)),)
    ansi = replace(MYSQL, sql_mode=SqlMode.ANSI_QUOTES)
    assert read('DELETE FROM "a`b""c" WHERE id = 1', odd, rules=ansi) == (RowsAsText("DELETE", (odd.id,)),)


def test_what_can_not_be_read_and_names_a_captured_table_is_told_with_its_text() -> None:
    for sql in ("CREATE TABLE t (a FANCY)", "ALTER TABLE t ADD x FANCY(1)", "FROB t", "ALTER TABLE t COMMENT 'unclosed"):
        (change,) = read(sql)
        assert isinstance(change, NotUnderstood), sql
        assert change.tables == (T,)
        assert change.statement == sql
    assert isinstance(read("FROB `nothing", captured=lambda table: table == T)[0], Ignored)


def test_databases_tell_their_default_collation() -> None:
    assert read("CREATE DATABASE d CHARACTER SET latin1") == (DatabaseDefaults("d", "latin1_swedish_ci"),)
    assert read("CREATE DATABASE IF NOT EXISTS `d`") == (DatabaseDefaults("d", None),)
    assert read("ALTER DATABASE COLLATE = utf8mb4_bin") == (DatabaseDefaults("shop", "utf8mb4_bin"),)


def test_create_table_of_one_that_is_known_is_ignored_or_replaces() -> None:
    assert isinstance(read("CREATE TABLE IF NOT EXISTS t (a INT)")[0], Ignored)
    changes = read("CREATE OR REPLACE TABLE t (a INT)", rules=MARIADB)
    assert isinstance(changes[0], DropTable)
    assert isinstance(changes[1], CreateTable)


def test_create_like_copies_the_shape() -> None:
    (change,) = read("CREATE TABLE u LIKE t")
    assert change == CreateTable(replace(TABLE, id=U))
    assert isinstance(read("CREATE TABLE u LIKE unknown")[0], NotUnderstood)


def test_a_table_created_by_a_query_is_read_only_where_the_log_gives_its_columns() -> None:
    assert isinstance(read("CREATE TABLE u SELECT * FROM t")[-1], NotUnderstood)
    assert isinstance(read("CREATE TABLE u (a INT) AS SELECT * FROM t")[-1], NotUnderstood)
    assert [c.name for c in created("CREATE TABLE u (`a` int NOT NULL) START TRANSACTION").columns] == ["a"]


def test_executable_comments_count_by_the_servers_version() -> None:
    sql = "CREATE TABLE u (a INT /*!80000 NOT NULL */ /*!90000 COMMENT 'no' */, b INT /*M!100000 NOT NULL */ /*!50600 COMMENT 'yes' */)"
    mysql, mariadb = created(sql), created(sql, MARIADB)
    assert [(c.nullable, c.comment) for c in mysql.columns] == [(False, ""), (True, "yes")]
    assert [(c.nullable, c.comment) for c in mariadb.columns] == [(True, ""), (False, "yes")]


def test_the_mode_decides_what_quotes_and_backslashes_mean() -> None:
    ansi = replace(MYSQL, sql_mode=SqlMode.ANSI_QUOTES)
    assert [c.name for c in created('CREATE TABLE u ("a ""b" INT)', ansi).columns] == ['a "b']
    plain = replace(MYSQL, sql_mode=SqlMode.NO_BACKSLASH_ESCAPES)
    assert created(r"CREATE TABLE u (a ENUM('\','b'))", plain).columns[0].labels == ("\\", "b")
    assert created(r"CREATE TABLE u (a ENUM('\'','b\\','c\n','\%'))").columns[0].labels == ("'", "b\\", "c\n", "\\%")


def test_names_are_read_however_they_are_quoted() -> None:
    sql = "/* app */ CREATE TABLE `shop`.`u` (`a``b` INT, `x.y` INT, `select` INT, 1st INT, $d INT, ünï INT, t.`q` INT) -- end"
    assert [c.name for c in created(sql).columns] == ["a`b", "x.y", "select", "1st", "$d", "ünï", "q"]
    assert read("DROP TABLE shop.1e5") == (DropTable(TableId("shop", "1e5")),)


def test_names_are_lowered_where_the_server_lowers_them() -> None:
    rules = replace(MYSQL, lower_case_names=True)
    assert read("TRUNCATE TABLE SHOP.T", rules=rules) == (Truncate(T),)
    # Letter by letter: Python's own lower() ends the first in another sigma, makes two letters of the dotted capital and knows the others.
    for said, stored in (("ΠΕΛΑΤΗΣ", "πελατησ"), ("İX", "ix"), ("ẞ", "ẞ"), ("\u13a0B", "\u13a0b"), ("ȡ", "ȡ")):
        assert read(f"TRUNCATE `{said}`", rules=rules) == (Truncate(TableId("shop", stored)),)
        assert read(f"DROP DATABASE `{said}`", rules=rules) == (DropDatabase(stored),)


def test_the_first_unique_key_that_is_never_null_identifies_rows() -> None:
    sql = "CREATE TABLE u (a INT, b INT NOT NULL, c VARCHAR(9) NOT NULL, d INT NOT NULL, UNIQUE (a), UNIQUE (c(3)), UNIQUE (D, b), UNIQUE (b))"
    table = created(sql)
    assert (table.key, table.key_is_primary) == (("d", "b"), False)
    assert created("CREATE TABLE u (a INT, PRIMARY KEY (A))").key == ("a",)
    assert not created("CREATE TABLE u (a INT, PRIMARY KEY (A))").columns[0].nullable


def test_timestamps_without_explicit_defaults_are_not_null() -> None:
    old = replace(MYSQL, explicit_timestamps=False)
    assert [c.nullable for c in created("CREATE TABLE u (a TIMESTAMP, b TIMESTAMP NULL)", old).columns] == [False, True]
    assert [c.nullable for c in created("CREATE TABLE u (a TIMESTAMP, b TIMESTAMP NULL)").columns] == [True, True]
    # NULLs of stored rows become the time of the statement.
    assert isinstance(read("ALTER TABLE t MODIFY seen TIMESTAMP", rules=old)[0], Rewrites)
    assert isinstance(read("ALTER TABLE t MODIFY seen TIMESTAMP")[0], Ignored)


def test_json_is_text_on_mariadb() -> None:
    (column,) = created("CREATE TABLE u (a JSON) CHARSET latin1", MARIADB).columns
    assert (column.base, column.charset, column.collation) == ("longtext", "utf8mb4", "utf8mb4_bin")
    assert created("CREATE TABLE u (a JSON)").columns[0].base == "json"


def test_a_default_charset_holds_for_columns_of_the_same_statement() -> None:
    change = altered("ALTER TABLE t ADD x VARCHAR(5), DEFAULT CHARSET latin1")
    assert change.after.column("x").collation == "latin1_swedish_ci"
    assert change.after.column("name").charset == "utf8mb4"


def test_sessions_may_have_default_collations_of_their_own() -> None:
    rules = replace(MYSQL, collations={"utf8mb4": "utf8mb4_general_ci"})
    assert created("CREATE TABLE u (a TEXT) CHARSET utf8mb4", rules).collation == "utf8mb4_general_ci"
