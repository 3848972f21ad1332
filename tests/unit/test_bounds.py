"""Literals, conditions and marks, without a server."""

from __future__ import annotations

from decimal import Decimal

import pytest

from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, words_of
from snowmelt.databases.mysql.log.events import MariaDbGtid, MySqlGtid
from snowmelt.databases.mysql.read.bounds import Chunk, chunk_condition, key_condition, key_equals, literal
from snowmelt.databases.mysql.read.marks import GtidMark, PositionMark, at_least, covers, exact
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable
from snowmelt.errors import InvariantBroken, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import TableId

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def column(base: str, name: str = "k", **parts: object) -> MySqlColumn:
    return MySqlColumn(name=name, base=base, nullable=False, **parts)  # type: ignore[arg-type]


def table(*columns: MySqlColumn) -> MySqlTable:
    return MySqlTable(id=TableId("shop", "t"), columns=columns, key=tuple(one.name for one in columns))


@pytest.mark.parametrize(
    ("base", "value", "sql"),
    [
        ("bigint", -5, "-5"),
        ("year", 0, "0"),
        ("bit", 5, "5"),
        ("double", 0.1, "0.1e0"),
        ("float", 1e300, "1e+300"),
        ("decimal", Decimal("-1E+3"), "-1000"),
        ("decimal", "12345678901234567890123456789012345678901.5", "12345678901234567890123456789012345678901.5"),
        ("date", "0000-00-00", "'0000-00-00'"),
        ("timestamp", "2020-01-01 00:00:00.123", "'2020-01-01 00:00:00.123'"),
        ("time", -3_020_399_000_001, "'-838:59:59.000001'"),
        ("time", 0, "'00:00:00.000000'"),
        ("varbinary", b"", "x''"),
        ("binary", b"\x00'", "x'0027'"),
        ("varchar", "ö' OR 1=1 --", "_utf8mb4 x'c3b627204f5220313d31202d2d'"),
        ("uuid", "a", "CONVERT(x'61' USING utf8mb4)"),
    ],
)
def test_a_literal_means_its_value(base: str, value: object, sql: str) -> None:
    assert literal(column(base), value) == sql  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("charset", "sql"),
    [("cp932", "_cp932 x'fa54'"), ("latin1", "_latin1 x'fa54'"), ("greek", "_greek x'fa54'"), ("ucs2", "_ucs2 x'fa54'")],
)
def test_text_that_is_not_in_utf8_is_said_by_its_stored_bytes(charset: str, sql: str) -> None:
    assert literal(column("varchar", charset=charset), b"\xfa\x54") == sql


def test_bytes_are_no_bound_of_text_in_utf8() -> None:
    for charset in ("utf8mb4", "utf8mb3", "utf8", None):
        with pytest.raises(InvariantBroken):
            literal(column("varchar", charset=charset), b"a")


def test_a_set_is_compared_as_a_number_without_sign() -> None:
    one = table(column("set", labels=("a", "b")))
    assert key_condition(one, (1,), (2**64 - 1,)) == (f"(CAST(`k` AS UNSIGNED) | 0) > 1 AND (CAST(`k` AS UNSIGNED) | 0) <= {2**64 - 1}")


@pytest.mark.parametrize(
    ("base", "value"),
    [
        ("bigint", "1 OR 1"),
        ("date", "2020-01-01' OR '1"),
        ("decimal", "1; DROP TABLE t"),
        ("decimal", Decimal("NaN")),
        ("varchar", 5),
        ("binary", "text"),
        ("double", "1"),
    ],
)
def test_a_bound_of_another_form_never_becomes_sql(base: str, value: object) -> None:
    with pytest.raises(InvariantBroken):
        literal(column(base), value)  # type: ignore[arg-type]


def test_a_composite_bound_is_said_column_by_column() -> None:
    two = table(column("int", "a"), column("int", "b"))
    assert key_condition(two, (1, 2), None) == "`a` >= 1 AND (`a` > 1 OR (`a` = 1 AND `b` > 2))"
    assert key_condition(two, None, (3, 4)) == "`a` <= 3 AND (`a` < 3 OR (`a` = 3 AND `b` <= 4))"
    assert key_equals(two, (1, 2)) == "`a` = 1 AND `b` = 2"


def test_a_bound_with_too_few_values_is_our_bug() -> None:
    with pytest.raises(InvariantBroken):
        key_condition(table(column("int", "a"), column("int", "b")), (1,), None)


def test_only_the_first_chunk_holds_its_low_end() -> None:
    one = table(column("int"))
    assert chunk_condition(one, Chunk(one.id, 0, (1,), (9,))) == "`k` >= 1 AND `k` <= 9"
    assert chunk_condition(one, Chunk(one.id, 1, (9,), (20,))) == "`k` > 9 AND `k` <= 20"
    assert chunk_condition(one, Chunk(one.id, 0, None, None)) == "TRUE"


def test_an_enum_is_compared_by_its_number() -> None:
    one = table(column("enum", labels=("z", "y", "x")))
    assert key_condition(one, (1,), (3,)) == "`k` IN (2, 3) AND `k` IN (0, 1, 2, 3)"
    assert key_condition(one, (3,), None) == "FALSE"
    assert key_condition(one, (0,), None, from_low=True) == "`k` IN (0, 1, 2, 3)"


def test_names_are_quoted() -> None:
    assert key_condition(table(column("int", "a`b")), (1,), None) == "`a``b` > 1"


def test_a_position_mark_covers_up_to_its_position() -> None:
    mark = PositionMark(Position(3, 100))
    assert covers(mark, position=Position(3, 100), gtid=None)
    assert covers(mark, position=Position(2, 999), gtid=None)
    assert not covers(mark, position=Position(3, 101), gtid=None)
    assert exact(mark, None)
    # MariaDB moves the place of its snapshots before the engine shows an XA COMMIT; under a lock nobody commits.
    assert not covers(mark, position=Position(3, 100), gtid=None, xa=True)
    assert not exact(mark, None, xa=True)
    locked = PositionMark(Position(3, 100), locked=True)
    assert covers(locked, position=Position(3, 100), gtid=None, xa=True)
    assert exact(locked, None, xa=True)


def test_a_gtid_mark_covers_its_set_and_nothing_beyond_its_high_end() -> None:
    mark = GtidMark(MySqlGtidSet.parse(f"{SOURCE}:1-5:7"), Position(3, 100))
    assert covers(mark, position=Position(3, 50), gtid=MySqlGtid(SOURCE, 5))
    assert not covers(mark, position=Position(3, 50), gtid=MySqlGtid(SOURCE, 6))
    assert not covers(mark, position=Position(3, 50), gtid=None)
    assert not covers(mark, position=Position(3, 101), gtid=MySqlGtid(SOURCE, 5))
    assert exact(mark, MySqlGtidSet.parse(f"{SOURCE}:1-5:7"))
    assert not exact(mark, MySqlGtidSet.parse(f"{SOURCE}:1-7"))
    assert not exact(mark, None)


def test_across_eras_only_names_count() -> None:
    gtids = GtidMark(MySqlGtidSet.parse(f"{SOURCE}:1-5"), Position(3, 100, era=1))
    assert covers(gtids, position=Position(1, 4, era=2), gtid=MySqlGtid(SOURCE, 5))
    assert not covers(gtids, position=Position(1, 4, era=2), gtid=MySqlGtid(SOURCE, 6))
    named = PositionMark(Position(9, 9, era=1, transactions=words_of(MariaDbGtidSet.parse("0-1-100"))))
    assert covers(named, position=Position(1, 4, era=2), gtid=MariaDbGtid(0, 2, 100))
    assert not covers(named, position=Position(1, 4, era=2), gtid=MariaDbGtid(0, 2, 101))
    with pytest.raises(SourceDrift):
        covers(PositionMark(Position(9, 9, era=1)), position=Position(1, 4, era=2), gtid=MariaDbGtid(0, 2, 101))


def test_a_read_holds_at_least_what_was_visible_at_launch() -> None:
    position = PositionMark(Position(3, 100))
    assert at_least(position, Position(3, 100))
    assert not at_least(position, Position(3, 101))
    assert not at_least(position, Position(1, 1, era=1))
    gtids = GtidMark(MySqlGtidSet.parse(f"{SOURCE}:1-5"), Position(3, 100))
    assert at_least(gtids, MySqlGtidSet.parse(f"{SOURCE}:2-4"))
    assert not at_least(gtids, MySqlGtidSet.parse(f"{SOURCE}:6"))
    assert at_least(gtids, Position(3, 1, transactions=words_of(MySqlGtidSet.parse(f"{SOURCE}:5"))))
    assert not at_least(gtids, Position(3, 1))
