"""What `check` finds of a table stops the first start, where a user is there to decide, and no later one."""

from __future__ import annotations

from snowmelt.databases.contract.findings import NO_KEY, Finding, Level, TableFinding
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.model.table import TableId
from snowmelt.preflight import lake_columns, weigh

KEYLESS, LOGGED, ORDERS = (TableId("shop", name) for name in ("keyless", "logged", "orders"))
KEYLESS_TABLES = TableFinding(NO_KEY, Level.WARNING, "tables without a key can only be appended to", "add one", (KEYLESS, LOGGED))


def test_a_change_table_without_a_key_is_not_told_of_as_one_that_is_left_out() -> None:
    """C10: it is live."""
    plain, refused = weigh([KEYLESS_TABLES], {LOGGED}, "; or exclude it", begun=False)
    assert (plain.level, plain.tables, plain.fact) == (Level.WARNING, (LOGGED,), KEYLESS_TABLES.fact)
    assert (refused.level, refused.tables, refused.remedy) == (Level.ERROR, (KEYLESS,), "add one; or exclude it")
    plain, later = weigh([KEYLESS_TABLES], {LOGGED}, "", begun=True)
    assert (plain.fact, later.level, later.tables) == (KEYLESS_TABLES.fact, Level.WARNING, (KEYLESS,))
    assert later.fact.startswith("tables are left out or set aside")


def test_one_table_stops_the_first_start_and_no_later_one() -> None:
    """C10: a table that was made later with a column `_seq` was left out, and the next start refused."""
    finding = TableFinding("system-column", Level.ERROR, "a column is named _seq", "rename it", (ORDERS,))
    assert weigh([finding], set(), "", begun=False) == [finding]
    (later,) = weigh([finding], set(), "", begun=True)
    assert (later.level, later.tables) == (Level.WARNING, (ORDERS,))


def test_what_is_of_all_tables_stops_every_start() -> None:
    finding = Finding("grant-select", Level.ERROR, "the user may not read whole tables", "GRANT SELECT", (ORDERS,))
    assert weigh([finding], set(), "", begun=True) == [finding]


def test_columns_that_paimon_reserves_are_told_before_the_first_start() -> None:
    """`check` said ready, and the first run ended at the first of them."""

    def table(name: str, *columns: str) -> MySqlTable:
        named = tuple(MySqlColumn(name=column, base="int", nullable=False) for column in columns)
        return MySqlTable(id=TableId("shop", name), columns=named, key=("id",))

    tables = [
        table("a", "id", "_LEVEL"),
        table("b", "id", "_key_id"),
        table("c", "id", "v"),
        table("d", "id", "_LEVEL"),
        table("e", "_seq"),
    ]
    found = lake_columns(tables)
    assert [(finding.code, [one.name for one in finding.tables]) for finding in found] == [
        ("lake-column", ["a", "d"]),
        ("lake-column", ["b"]),
    ]
    assert all(finding.level is Level.ERROR for finding in found)
