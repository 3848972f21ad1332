"""Random keys on a real server: every row is in exactly one chunk, whatever the keys look like."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.read.bounds import chunk_condition, from_table, key_condition, plan_chunks, read_keys
from snowmelt.databases.mysql.read.reads import read_extent
from snowmelt.model.table import TableId
from tests.integration.dump import open_session
from tests.kit.servers import Server

EACH = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
_numbers = itertools.count()

# NUL and blanks included: collations treat them in their own ways.
TEXT = st.text(st.sampled_from("aAäÄàß \0\t'\\%_zZ漢字😀éE"), max_size=6)


def hexed(text: str) -> str:
    return f"CONVERT(x'{text.encode().hex()}' USING utf8mb4)"


def check_chunks(session: Session, columns: str, key: str, rows: list[str], target: int) -> None:
    name = f"cover.t{next(_numbers)}"
    session.execute("CREATE DATABASE IF NOT EXISTS cover")
    session.execute(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({key}))")
    session.execute(f"INSERT IGNORE INTO {name} ({key}) VALUES {', '.join(rows)}")
    table_id = TableId(*name.split("."))
    table = read_tables(session, [table_id])[table_id]
    source = from_table(session, table)
    extent, _ = read_extent(session, table, identity=session.server.identity, era=0)
    count = session.value(f"SELECT COUNT(*) FROM {name}")
    chunks = list(plan_chunks(session, table, extent, rows_per_chunk=target))
    # Each row counts the chunks that hold it.
    held = " + ".join(f"({chunk_condition(table, chunk)})" for chunk in chunks)
    assert session.query(f"SELECT {held} AS held, COUNT(*) FROM {name} GROUP BY held") == [(1, count)]
    sizes = [session.value(f"SELECT COUNT(*) FROM {source} WHERE {chunk_condition(table, chunk)}") for chunk in chunks]
    assert all(target / 3 <= size <= 3 * target for size in sizes[:-1])
    # Bounds that come back from the database are equal to the ones that went in.
    for chunk in chunks[:-1]:
        assert read_keys(session, table, source, f"WHERE {key_condition(table, chunk.high, chunk.high, from_low=True)}") == [chunk.high]
    session.execute(f"DROP TABLE {name}")


@EACH
@given(keys=st.lists(TEXT, min_size=1, max_size=120), target=st.integers(1, 9))
def test_strings_under_a_collation_that_ignores_case(any_server: Server, keys: list[str], target: int) -> None:
    with open_session(any_server) as session:
        collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
        check_chunks(session, f"k VARCHAR(20) {collation} NOT NULL", "k", [f"({hexed(key)})" for key in keys], target)


@EACH
@given(keys=st.lists(st.binary(max_size=5), min_size=1, max_size=120), target=st.integers(1, 9))
def test_bytes(mariadb: Server, keys: list[bytes], target: int) -> None:
    with open_session(mariadb) as session:
        check_chunks(session, "k VARBINARY(5) NOT NULL", "k", [f"(x'{key.hex()}')" for key in keys], target)


@EACH
@given(
    keys=st.lists(
        st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-50, 50), st.integers(10**6, 10**6 + 200)),
        min_size=1,
        max_size=300,
    ),
    target=st.integers(1, 20),
)
def test_integers_of_any_distribution(any_server: Server, keys: list[int], target: int) -> None:
    with open_session(any_server) as session:
        check_chunks(session, "k BIGINT NOT NULL", "k", [f"({key})" for key in keys], target)


@EACH
@given(
    keys=st.lists(
        st.tuples(st.integers(0, 3), TEXT, st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)),
        min_size=1,
        max_size=80,
    ),
    target=st.integers(1, 9),
)
def test_composite_keys_of_enum_string_and_double(any_server: Server, keys: list[tuple[int, str, float]], target: int) -> None:
    columns = "a ENUM('z', 'b', 'a') NOT NULL, b VARCHAR(20) CHARACTER SET utf8mb4 NOT NULL, c DOUBLE NOT NULL"
    rows = [f"({a}, {hexed(b)}, {c!r})" for a, b, c in keys]
    with open_session(any_server) as session:
        check_chunks(session, columns, "a, b, c", rows, target)
