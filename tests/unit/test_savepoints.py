"""Savepoints of a transaction, by their names and places."""

from __future__ import annotations

import numpy as np
import pytest

from snowmelt.databases.mysql.log import savepoints as module
from snowmelt.databases.mysql.log.savepoints import Savepoints, Written, rolled_back_to, savepoint_set
from snowmelt.errors import SourceDrift

HERE = "0/1:4"


def undone(found: Savepoints, events: int) -> list[int]:
    numbers = np.arange(events, dtype=np.int32)
    return numbers[found.undone().holds(numbers)].tolist() if found.undone() else []


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("ROLLBACK TO `s`", "s"),
        ("rollback to savepoint s", "s"),
        ("ROLLBACK WORK TO `a b`", "a b"),
        ("ROLLBACK TO `a``b`", "a`b"),
        ('ROLLBACK TO "a""b"', 'a"b'),
        ("ROLLBACK TO `savepoint`", "savepoint"),
        ("ROLLBACK", None),
        ("ROLLBACK TOGETHER", None),
        ("INSERT INTO t VALUES ('ROLLBACK TO `s`')", None),
    ],
)
def test_a_rollback_to_a_savepoint_is_told_by_its_text(sql: str, name: str | None) -> None:
    assert rolled_back_to(sql) == name


def test_a_savepoint_is_told_by_its_text() -> None:
    assert savepoint_set("SAVEPOINT `a``b`") == "a`b"
    assert savepoint_set("ROLLBACK TO `a`") is None


def test_what_lies_behind_a_savepoint_is_undone_and_what_lies_before_it_is_not() -> None:
    found = Savepoints()
    found.set("a", 2, HERE)
    assert found.roll_back("A", 5, HERE) == 2
    assert undone(found, 8) == [2, 3, 4]
    # It is still there, and is rolled back to again.
    assert found.roll_back("a", 7, HERE) == 2
    assert undone(found, 8) == [2, 3, 4, 5, 6]


def test_stretches_that_were_undone_follow_each_other_or_swallow_each_other() -> None:
    found = Savepoints()
    found.set("a", 1, HERE)
    found.set("b", 2, HERE)
    found.roll_back("b", 3, HERE)
    found.set("c", 4, HERE)
    found.roll_back("c", 6, HERE)
    assert undone(found, 8) == [2, 4, 5]
    found.roll_back("a", 7, HERE)
    assert undone(found, 8) == [1, 2, 3, 4, 5, 6]


def test_a_rollback_ends_the_savepoints_behind_its_own() -> None:
    found = Savepoints()
    found.set("a", 1, HERE)
    found.set("b", 2, HERE)
    found.roll_back("a", 3, HERE)
    assert found.roll_back("b", 4, HERE) is None
    assert Savepoints().roll_back("a", 4, HERE) is None


def test_a_savepoint_replaces_the_one_of_its_name_whatever_case_and_accents() -> None:
    for first, second in (("a", "A"), ("é", "E"), ("straße", "STRASE"), ("ж", "Ж")):
        found = Savepoints()
        found.set(first, 1, HERE)
        found.set("other", 2, HERE)
        found.set(second, 3, HERE)
        assert found.roll_back(first, 4, HERE) == 3
        # The earlier one is gone, so that what is set behind "other" ends with it.
        assert found.roll_back("other", 4, HERE) == 2
        assert found.roll_back(second, 4, HERE) is None


BOTH, ALL = Written(7, lacks=True), Written(7, lacks=False)


@pytest.mark.parametrize(
    ("before", "behind", "inside"),
    [
        (BOTH, ALL, True),
        (ALL, BOTH, True),
        (ALL, ALL, False),
        (BOTH, Written(8, lacks=True), False),
        (None, BOTH, False),
        (BOTH, None, False),
    ],
)
def test_a_savepoint_inside_a_statement_may_hide_another(before: Written | None, behind: Written | None, inside: bool) -> None:
    found = Savepoints()
    found.set("s", 1, HERE)
    found.set("s", 4, HERE, before)
    found.statement_ended(behind)
    assert found.hidden("S", HERE, inside=False) == ((1, 4) if inside else None)
    assert found.hidden("other", HERE, inside=False) is None
    # What it hides is the session's own, however often it is set inside of statements.
    found.set("s", 6, HERE, BOTH)
    found.statement_ended(BOTH)
    assert found.hidden("s", HERE, inside=False) == (1 if inside else 4, 6)


def test_a_rollback_inside_a_statement_tells_that_its_savepoint_is_inside_too() -> None:
    found = Savepoints()
    found.set("s", 1, HERE)
    found.set("s", 4, HERE)
    assert found.hidden("s", HERE, inside=True) is None
    assert found.roll_back("s", 5, HERE) == 4
    assert found.hidden("s", HERE, inside=False) == (1, 4)
    # The first of its name hides nothing.
    found = Savepoints()
    for _ in range(2):
        found.set("s", 1, HERE)
        assert found.hidden("s", HERE, inside=True) is None
    assert found.hidden("s", HERE, inside=False) is None


def test_names_of_which_nobody_knows_whether_they_are_equal_are_refused() -> None:
    found = Savepoints()
    found.set("и", 1, HERE)
    with pytest.raises(SourceDrift, match="can't be told"):
        found.set("й", 2, HERE)


def test_nothing_grows_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    found = Savepoints()
    for number in range(3):
        found.set(f"s{number}", number, HERE)
    with pytest.raises(SourceDrift, match="more savepoints than can be followed"):
        found.set("one more", 3, HERE)
    found = Savepoints()
    for number in range(4):
        found.set("s", 2 * number, HERE)
        if number < 3:
            found.roll_back("s", 2 * number + 1, HERE)
    with pytest.raises(SourceDrift, match="rolled back to more savepoints"):
        found.roll_back("s", 7, HERE)
