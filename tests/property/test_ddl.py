"""Whatever the log's text holds, reading it ends, and never by an exception."""

# ruff: noqa: E501 (words of statements)

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.ddl import CreateTable, Ignored, RowsAsText, Rules, SchemaChange, SqlMode, read_statement
from snowmelt.databases.mysql.quoting import quote
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.model.table import TableId

CAPTURED = TableId("shop", "t")
TABLE = MySqlTable(
    id=CAPTURED, columns=(MySqlColumn(name="id", base="int", nullable=False), MySqlColumn(name="n", base="int")), key=("id",)
)
FRAGMENTS = (
    "ALTER", "TABLE", "CREATE", "DROP", "RENAME", "t", "shop", ".", "`t`", "ADD", "COLUMN", "MODIFY", "CHANGE", "n", "id", "INT", "VARCHAR",
    "(", ")", "10", ",", "'x'", "'", '"', "`", "\\", "/*", "*/", "/*!50000", "--", "#", "\n", "NOT", "NULL", "DEFAULT", "PRIMARY", "KEY", "UNIQUE",
    "FIRST", "AFTER", "TO", "IF", "EXISTS", "ENUM", "CHARSET", "latin1", "COLLATE", "PARTITION", "BY", "LIKE", "INDEX", "ON", "=", ";", "0x1", "é",
    "CONVERT", "CHARACTER", "SET", "EXCHANGE", "WITH", "REFERENCES", "CASCADE", "CASE", "END", "AS", "STATEMENT", "FOR", "ANALYZE", "INSERT", "\0", "1e", ".5", "-",
)  # fmt: skip

rules = st.builds(
    Rules,
    flavour=st.sampled_from(("mysql", "mariadb")),
    version=st.sampled_from(((5, 6, 24), (8, 0, 33), (10, 11, 6), (11, 8, 2))),
    sql_mode=st.sampled_from((0, SqlMode.ANSI_QUOTES, SqlMode.NO_BACKSLASH_ESCAPES, SqlMode.ANSI_QUOTES | SqlMode.NO_BACKSLASH_ESCAPES)),
)
statements = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(" ".join) | st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(
    "".join
)
names = st.text(st.characters(exclude_categories=("Cs", "Cc"), max_codepoint=0xFFFF), min_size=1, max_size=20).filter(
    lambda name: name.strip() == name
)


def read(sql: str, rules: Rules, *, captures: bool = True) -> tuple[SchemaChange, ...]:
    return read_statement(
        sql,
        database="shop",
        schemas=lambda table: TABLE if table == CAPTURED else None,
        captured=lambda table: captures and table == CAPTURED,
        defaults=lambda _: "utf8mb4_general_ci",
        rules=rules,
    )


@given(
    st.sampled_from(("", "ALTER TABLE t ", "CREATE TABLE t (", "ALTER TABLE t ADD x ", "RENAME TABLE ")),
    statements | st.text(),
    rules,
)
@settings(max_examples=1500, deadline=None)
def test_any_text_is_read_to_an_answer(start: str, text: str, rules: Rules) -> None:
    assert read(start + text, rules)


@given(st.sampled_from(("", "ALTER TABLE t ", "CREATE TABLE t (", "DROP TABLE ", "SET STATEMENT ")), statements | st.text(), rules)
@settings(max_examples=500, deadline=None)
def test_any_text_is_without_effect_where_nothing_is_captured(start: str, text: str, rules: Rules) -> None:
    for change in read(start + text, rules, captures=False):
        assert isinstance(change, Ignored | RowsAsText) or type(change).__name__ in ("DropDatabase", "DatabaseDefaults")


@given(st.lists(names, min_size=1, max_size=6, unique_by=str.lower), rules)
@settings(deadline=None)
def test_column_names_survive_quoting(columns: list[str], rules: Rules) -> None:
    sql = f"CREATE TABLE t ({', '.join(f'{quote(name)} INT' for name in columns)})"
    (change,) = read(sql, rules)
    assert isinstance(change, CreateTable)
    assert [column.name for column in change.table.columns] == columns


@given(st.lists(names.filter(lambda name: not name.endswith(" ")), min_size=1, max_size=6), rules)
@settings(deadline=None)
def test_labels_survive_escaping(labels: list[str], rules: Rules) -> None:
    def literal(text: str) -> str:
        text = text.replace("'", "''")
        return f"'{text if rules.mode(SqlMode.NO_BACKSLASH_ESCAPES) else text.replace(chr(92), chr(92) * 2)}'"

    (change,) = read(f"CREATE TABLE t (a ENUM({','.join(map(literal, labels))}))", rules)
    assert isinstance(change, CreateTable)
    assert list(change.table.columns[0].labels) == labels
