"""What `check` finds of a table stops the first start, where a user is there to decide, and no later one."""

from __future__ import annotations

from snowmelt.databases.contract.findings import NO_KEY, Finding, Level, TableFinding
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.engine.driver.routes import Mode, Route, Router
from snowmelt.model.table import TableId
from snowmelt.preflight import lake_columns, undivided, weigh
from snowmelt.sinks.partitions import PartitionBy

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


def test_tables_that_their_route_can_not_divide_are_told_before_the_first_start() -> None:
    def table(name: str, *columns: MySqlColumn) -> MySqlTable:
        return MySqlTable(id=TableId("shop", name), columns=(MySqlColumn(name="id", base="int", nullable=False), *columns), key=("id",))

    made = MySqlColumn(name="made", base="datetime", nullable=False)
    text = MySqlColumn(name="made", base="varchar", length=9, charset="utf8mb4", nullable=False)
    odd = MySqlColumn(name="odd", base="unheard_of")
    tables = [table("day", made), table("text", text), table("none"), table("odd", made, odd), table("itself", made), table("log", text)]
    routes = [
        Route("shop.itself", "ods.itself", partition=PartitionBy.read("made")),
        Route("shop.log", "ods.log", Mode.CHANGELOG, partition=PartitionBy.read("made")),
        Route("shop.*", "ods.{table}", partition=PartitionBy.read("made:day")),
    ]
    router = Router(routes, default="{database}.{table}", ignore_case=False)
    found = {finding.tables[0].name: finding for finding in undivided(tables, MySql(), router)}
    assert {finding.level for finding in found.values()} == {Level.ERROR}
    assert {name: finding.fact for name, finding in found.items()} == {
        "text": "partition_by: made:day needs a date, a datetime or a timestamp, not string",
        "none": "partition_by names the column made, which it does not have",
        "odd": "columns of type unheard_of are not supported: odd (hint: exclude the table)",
        "itself": "partition_by: made needs a column of integers or of text, not timestamp[us]; of dates take :day or :month",
        "log": "in mode changelog rows may lack their values: partition_by needs made:value",
    }
    assert undivided(tables, MySql(), Router([], default="{database}.{table}", ignore_case=False)) == []
