from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, gtid_within, of_words, words_of
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.errors import Corrupt
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId

SOURCES = [
    "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "4aaf08a1-e0d3-11f1-87c1-02fc00000001",
    "4aaf08a1-e0d3-11f1-87c1-02fc00000001:blue",
]

transactions = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 12)), max_size=25)


def gathered(members: set[tuple[str, int]]) -> MySqlGtidSet:
    found = MySqlGtidSet()
    for source, number in members:
        found = found.add(source, number)
    return found


@given(transactions, transactions)
def test_a_gtid_set_is_what_a_plain_set_of_transactions_is(one: set[tuple[str, int]], other: set[tuple[str, int]]) -> None:
    a, b = gathered(one), gathered(other)
    assert a.union(b) == gathered(one | other)
    assert a.within(b) == gtid_within(a, b) == (one <= other)
    assert all(a.has(source, number) == ((source, number) in one) for source in SOURCES for number in range(1, 14))


@given(transactions)
def test_a_gtid_set_survives_its_own_text_and_is_in_normal_form(members: set[tuple[str, int]]) -> None:
    found = gathered(members)
    again = MySqlGtidSet.parse(str(found))
    assert again == found
    assert hash(again) == hash(found)
    for spans in found.intervals.values():
        assert all(first <= last for first, last in spans)
        assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(spans))


@given(st.none() | transactions.map(gathered) | st.sampled_from([MariaDbGtidSet(), MariaDbGtidSet.parse("10-1-5,9-2-3")]))
def test_a_set_survives_its_words_and_keeps_its_kind(found: MySqlGtidSet | MariaDbGtidSet | None) -> None:
    again = of_words(words_of(found))
    assert again == found
    assert type(again) is type(found)


@given(st.text(alphabet="0123456789abcdef:-, \n²x", max_size=80))
def test_any_text_is_a_gtid_set_or_corrupt(text: str) -> None:
    for kind in (MySqlGtidSet, MariaDbGtidSet):
        try:
            found = kind.parse(text)
        except Corrupt:
            continue
        assert kind.parse(str(found)) == found


numbers = st.integers(0, 50)
mariadb_sets = st.dictionaries(st.integers(0, 3), st.tuples(numbers, numbers)).map(
    lambda last: MariaDbGtidSet({domain: last[domain] for domain in sorted(last)})
)


@given(mariadb_sets, mariadb_sets)
def test_the_union_of_mariadb_sets_is_the_least_that_holds_both(a: MariaDbGtidSet, b: MariaDbGtidSet) -> None:
    both = a.union(b)
    assert a.within(both)
    assert b.within(both)
    assert all(both.has(domain, n) == (a.has(domain, n) or b.has(domain, n)) for domain in range(4) for n in range(51))
    assert MariaDbGtidSet.parse(str(both)) == both
    assert both.union(a) == both


places = st.builds(Position, st.integers(0, 5), st.integers(0, 2**40), st.just(1))


@given(places, places, places)
def test_positions_are_in_one_order(a: Position, b: Position, c: Position) -> None:
    assert (a < b) + (b < a) + ((a.file, a.offset) == (b.file, b.offset)) == 1
    assert (a <= b) == (b >= a) == (not b < a)
    if a <= b <= c:
        assert a <= c
    assert Position.parse(str(a)) == a


@given(st.text(max_size=30))
def test_any_text_is_a_position_and_a_log_file_or_corrupt(text: str) -> None:
    for kind in (Position, LogFile):
        try:
            found = kind.parse(text)
        except Corrupt:
            continue
        assert kind.parse(str(found)) == found


@given(st.lists(st.tuples(places, st.one_of(st.none(), st.text(max_size=2))), max_size=12), places, places)
def test_the_history_answers_as_a_list_of_all_schemas_would(
    changes: list[tuple[Position, str | None]], asked: Position, floor: Position
) -> None:
    table = TableId("d", "t")
    history: SchemaHistory[str] = SchemaHistory()
    changes = sorted(changes, key=lambda change: (change[0].file, change[0].offset))
    for position, schema in changes:
        history.put(table, position, schema)

    def expected(at: Position) -> str | None:
        below = [schema for position, schema in changes if position <= at]
        return below[-1] if below else None

    assert history.find(table, asked) == expected(asked)
    history.forget(floor)
    at = max(asked, floor)
    assert history.find(table, at) == expected(at)
