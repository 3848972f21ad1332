"""`verify` on real servers: silent where the lake is right, whatever goes on meanwhile, and loud about every row that is not.

What is wrong is made so behind the log's back (`sql_log_bin = 0`): the pipeline can't know of it, so the lake has lost a row, has one too
many, or has an old one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.cli.verdicts import print_verdict
from snowmelt.databases.comparing.digests import Hash, digest_rows, from_raw
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read import reads
from snowmelt.databases.mysql.read.marks import PositionMark
from snowmelt.databases.mysql.read.reads import shown_place
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TimeAs, TypeOptions, ZeroDates
from snowmelt.databases.mysql.verify.forms import float_bits, is_summed, lake_text, sql_digest, sql_float
from snowmelt.databases.mysql.verify.source import choose_hash
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.errors import InvalidConfig
from snowmelt.model.table import DELETE, INSERT, KIND, TableId
from snowmelt.sinks.contract import SEQUENCE
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.verify import Difference, TableOutcome, TableVerdict, verify
from snowmelt.verify.rounds import DifferenceKind
from tests.integration.killed import ROWS, fill, under_load
from tests.integration.logs import open_session
from tests.integration.marked_reads import DURABLE, Observation, create, missing, observe
from tests.integration.running import Running, settings
from tests.integration.typed_tables import FAMILIES, Typed
from tests.kit.servers import Fresh, Server

FAR = 50_000_000
"""Keys from here on are left alone by the writers."""
JOURNAL = Route("shop.journal", "ods.journal", Mode.CHANGELOG)


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> Server:
    fresh: Fresh = request.getfixturevalue(f"fresh_{request.param}")
    return fresh()


def run(server: Server, *statements: str, logged: bool = True) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        if not logged:
            cursor.execute("SET SESSION sql_log_bin = 0")
        for statement in statements:
            cursor.execute(statement)


def compare(spark: Any, wanted: Settings, *tables: str, patience_s: float = 120.0) -> dict[str, TableVerdict]:
    verdicts = verify(wanted, spark, tables or None, patience_s=patience_s)
    return {verdict.table.name: verdict for verdict in verdicts}


def named(verdict: TableVerdict) -> set[tuple[tuple[str, ...], DifferenceKind, tuple[str, ...]]]:
    assert verdict.differing == len(verdict.differences), verdict
    return {(tuple(text for _, text in one.key), one.kind, one.columns) for one in verdict.differences}


@pytest.mark.timeout(900)
def test_a_lake_that_follows_is_verified_under_load_and_wrong_rows_are_named(server: Server, tmp_path: Path, spark: Any) -> None:
    fill(server)
    run(
        server,
        f"INSERT INTO shop.orders VALUES ({FAR}, 1, 'as it was', 1.5), ({FAR + 1}, 1, 'to be lost', 1.5)",
        f"INSERT INTO shop.names VALUES ('ßtraße', 1), ('  blank ', {FAR})",
        f"INSERT INTO shop.pairs VALUES ({FAR}, 'left', 1), ({FAR}, 'right', 1)",
    )
    wanted = settings(server, tmp_path, routes=[JOURNAL], rows_per_chunk=5_000)
    with Running(spark, wanted) as running, under_load(server):
        running.wait_for(lambda: set(running.pipeline.progress.phases.values()) == {"released"})
        verdicts = compare(spark, wanted)
        for verdict in verdicts.values():
            assert verdict.outcome is TableOutcome.VERIFIED, f"a right lake is called wrong: {verdict}"
        assert verdicts["orders"].rows > ROWS // 2

        run(
            server,
            f"UPDATE shop.orders SET c = 'changed', amount = 2.5 WHERE id = {FAR}",
            f"DELETE FROM shop.orders WHERE id = {FAR + 1}",
            f"INSERT INTO shop.orders VALUES ({FAR + 2}, 1, 'never seen', 1.5)",
            "DELETE FROM shop.names WHERE name = 'ßtraße'",
            f"INSERT INTO shop.pairs VALUES ({FAR}, 'third', 1)",
            f"UPDATE shop.pairs SET v = 2 WHERE a = {FAR} AND b = 'left'",
            f"INSERT INTO shop.journal VALUES ({FAR}, 1)",
            logged=False,
        )
        verdicts = compare(spark, wanted)
    assert named(verdicts["orders"]) == {
        ((str(FAR),), DifferenceKind.CHANGED, ("c", "amount")),
        ((str(FAR + 1),), DifferenceKind.EXTRA, ()),
        ((str(FAR + 2),), DifferenceKind.LOST, ()),
    }
    assert named(verdicts["names"]) == {(("ßtraße",), DifferenceKind.EXTRA, ())}
    assert named(verdicts["pairs"]) == {
        ((str(FAR), "third"), DifferenceKind.LOST, ()),
        ((str(FAR), "left"), DifferenceKind.CHANGED, ("v",)),
    }
    assert [kind for _, kind, _ in named(verdicts["journal"])] == [DifferenceKind.LOST]
    assert verdicts["nothing"].outcome is TableOutcome.VERIFIED


def test_a_place_that_mysql_shows_is_in_every_later_read(fresh_mysql8: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the log, taken alone, is ahead of what a read sees: see `test_marks`."""
    # It looks again at once, so that the read follows as soon as it may, and the table stays small.
    monkeypatch.setattr(reads, "_SHOWN_LOOK_S", 0.001)
    server = fresh_mysql8(**DURABLE)
    with open_session(server) as session:
        create(session)

        def look() -> Observation:
            place = shown_place(session, 0)
            return Observation(PositionMark(place), {int(row[0]) for row in session.query("SELECT id FROM shop.g")})

        seen, log = observe(server, look, lambda seen: len(seen) >= 200)
    assert len(log) > 100
    assert not any(missing(one, log) for one in seen), "a place is called visible that is not"


@pytest.mark.parametrize("types", [TypeOptions(), TypeOptions(ZeroDates.STRING, TimeAs.STRING), TypeOptions(time_as=TimeAs.INTERVAL)])
def test_every_type_has_one_form_on_both_sides(any_server: Server, database: Callable[[Server], str], types: TypeOptions) -> None:
    name = database(any_server)
    for family in FAMILIES:
        _make(any_server, name, family.__name__, family(any_server))
    with open_session(any_server) as session:
        how = choose_hash(session)
        shapes = read_tables(session, lambda table: table.database == name)
        assert len(shapes) == len(FAMILIES)
        for shape in shapes.values():
            for columns in ([column] for column in shape.columns if is_summed(column)):
                assert _equal(session, shape, columns, types, how), f"{columns[0]} has two forms"
            # One text of all: what is right by itself may be made another when it is joined.
            assert _equal(session, shape, [column for column in shape.columns if is_summed(column)], types, how), (
                f"{shape.id} has two forms"
            )
            for column in (column for column in shape.columns if not is_summed(column)):
                theirs = float_bits(_read(session, shape, [sql_float(column)], [MySqlColumn(name="f", base="double")], types).column(0))
                ours = lake_text(column, _read(session, shape, [quote(column.name)], [column], types).column(0), how)
                assert theirs.equals(ours), f"{column} has two forms"


def _equal(session: Session, shape: MySqlTable, columns: list[MySqlColumn], types: TypeOptions, how: Hash) -> bool:
    digest = MySqlColumn(name="digest", base="varbinary", nullable=False)
    theirs = _read(session, shape, [f"UNHEX({sql_digest(columns, types, how)})"], [digest], types)
    held = _read(session, shape, [quote(column.name) for column in columns], columns, types)
    texts = [lake_text(column, values, how) for column, values in zip(columns, held.columns, strict=True)]
    ours = digest_rows(texts, held.num_rows, how)
    return held.num_rows > 2 and bool((from_raw(theirs.column(0)) == ours).all())


def _read(session: Session, shape: MySqlTable, items: list[str], columns: list[MySqlColumn], types: TypeOptions) -> pa.RecordBatch:
    sql = f"SELECT {', '.join(items)} FROM {quote_table(shape.id)} ORDER BY id"
    return pa.Table.from_batches(list(select(session, sql, columns, types, counters=ReadCounters()))).combine_chunks().to_batches()[0]


@pytest.mark.timeout(900)
def test_one_column_of_each_type_that_differs_is_named(server: Server, tmp_path: Path, spark: Any) -> None:
    run(server, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    written = {family.__name__: _make(server, "shop", family.__name__, family(server)) for family in FAMILIES}
    wanted = settings(server, tmp_path)
    with Running(spark, wanted) as running:
        running.settled()
    for verdict in compare(spark, wanted).values():
        assert verdict.outcome is TableOutcome.VERIFIED, f"values of some type are not the same on both sides: {verdict}"

    changed = {name: _change_each_column(server, name, columns) for name, columns in written.items()}
    for name, verdict in compare(spark, wanted).items():
        assert verdict.differing == len(changed[name]), f"{name}: {verdict}"
        for one in verdict.differences:
            column = changed[name][int(one.key[0][1])]
            assert column in one.columns, f"{name}: row {one.key} differs in {one.columns}, not in {column}"


def _make(server: Server, database: str, name: str, columns: list[Typed]) -> dict[str, Typed]:
    """A table with a row for each edge value; which columns are written to."""
    named = {f"c{index}": column for index, column in enumerate(columns)}
    writable = {column: typed for column, typed in named.items() if typed.literals is not None}
    definitions = ", ".join(f"{column} {typed.definition}" for column, typed in named.items())
    statements = ["SET time_zone = '+08:00', sql_mode = 'ALLOW_INVALID_DATES'", f"USE {database}"]
    statements.append(f"CREATE TABLE {name} (id INT PRIMARY KEY, {definitions}) CHARACTER SET utf8mb4")
    edges = {column: typed.literals.edges for column, typed in writable.items() if typed.literals is not None}
    for number in range(max(len(found) for found in edges.values())):
        values = ", ".join(found[number % len(found)] for found in edges.values())
        statements.append(f"INSERT IGNORE INTO {name} (id, {', '.join(edges)}) VALUES ({number}, {values})")
    for number in range(len(edges)):
        statements.append(f"INSERT IGNORE INTO {name} (id) VALUES ({1000 + number})")
    run(server, *statements)
    return writable


def _change_each_column(server: Server, name: str, columns: dict[str, Typed]) -> dict[int, str]:
    """In each row from 1000 on another column gets a value, behind the log's back; which."""
    statements = ["SET time_zone = '+08:00', sql_mode = 'ALLOW_INVALID_DATES'", "USE shop"]
    changed = {}
    for index, (column, typed) in enumerate(columns.items()):
        assert typed.literals is not None
        # The last edge is a value of its own for every type, and no date that becomes NULL.
        statements.append(f"UPDATE IGNORE {name} SET {column} = {typed.literals.edges[-1]} WHERE id = {1000 + index}")
        changed[1000 + index] = column
    run(server, *statements, logged=False)
    return changed


@pytest.mark.timeout(900)
def test_change_tables_are_compared_by_what_their_changes_add_up_to(server: Server, tmp_path: Path, spark: Any) -> None:
    run(
        server,
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.journal (id INT NOT NULL PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE shop.notes (v VARCHAR(20), x DOUBLE)",
        "CREATE TABLE shop.plain (id INT NOT NULL PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO shop.journal VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO shop.plain VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO shop.notes VALUES ('twice', 0.5), ('twice', 0.5), (NULL, NULL)",
    )
    wanted = settings(server, tmp_path, routes=[JOURNAL, Route("shop.notes", "ods.notes", Mode.CHANGELOG)])
    with Running(spark, wanted) as running:
        running.settled()
        run(server, "TRUNCATE shop.journal", "INSERT INTO shop.journal VALUES (1, 'again'), (4, 'd')")
        run(server, "UPDATE shop.journal SET v = 'other' WHERE id = 1", "DELETE FROM shop.notes WHERE v IS NULL")
        running.settled()
    for verdict in compare(spark, wanted).values():
        assert verdict.outcome is TableOutcome.VERIFIED, f"a right change table is called wrong: {verdict}"

    run(server, "DELETE FROM shop.notes LIMIT 1", "UPDATE shop.journal SET v = 'unseen' WHERE id = 4", logged=False)
    verdicts = compare(spark, wanted)
    assert [kind for _, kind, _ in named(verdicts["notes"])] == [DifferenceKind.EXTRA], "one of two equal rows is gone from the source"
    assert named(verdicts["journal"]) == {(("4",), DifferenceKind.LOST, ()), (("4",), DifferenceKind.EXTRA, ())}

    run(server, "ALTER TABLE shop.journal ADD COLUMN w INT NOT NULL DEFAULT 7", "ALTER TABLE shop.plain ADD COLUMN w INT")
    with Running(spark, wanted) as running:
        running.settled()
    verdicts = compare(spark, wanted, "shop.journal", "shop.plain")
    assert verdicts["plain"].outcome is TableOutcome.VERIFIED, "no row was written since the column came"
    assert verdicts["journal"].outcome is TableOutcome.NOT_VERIFIED
    assert "altered can't be folded" in verdicts["journal"].reason


@pytest.mark.timeout(900)
def test_a_lake_that_somebody_else_wrote_to_is_told(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    fill(server)
    wanted = settings(server, tmp_path, rows_per_chunk=50_000)
    with Running(spark, wanted) as running:
        running.settled()
        _tamper(tmp_path / "lake", "ods.shop_orders")
        # What the next epoch of the table builds on is what the lake is taken for.
        run(server, "UPDATE shop.orders SET k = k + 1 WHERE id = 7")
        running.settled()
    assert named(compare(spark, wanted, "shop.orders")["orders"]) == {
        (("1",), DifferenceKind.LOST, ()),
        (("2",), DifferenceKind.CHANGED, ("k",)),
        ((str(FAR),), DifferenceKind.EXTRA, ()),
    }

    run(server, "UPDATE shop.orders SET k = k + 1 WHERE id = 8")
    behind = compare(spark, wanted, "shop.ord*", patience_s=1.0)["orders"]
    assert behind.outcome is TableOutcome.NOT_VERIFIED
    assert "the lake lags by" in behind.reason
    assert "--until-current" in behind.reason
    with pytest.raises(InvalidConfig, match=r"no table shop\.typo"):
        compare(spark, wanted, "shop.typo")


def _tamper(warehouse: Path, target: str) -> None:
    """Delete row 1, change row 2 and add a row, as a writer of the lake would that has nothing to do with us."""
    table = PaimonSink(str(warehouse), user="somebody").table(target)
    builder = table.new_read_builder()
    held = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    rows = {row["id"]: row for row in held.to_pylist()}
    wrong = [rows[1], rows[2] | {"k": 4_711}, rows[3] | {"id": FAR}]
    batch = pa.RecordBatch.from_pylist([row | {SEQUENCE: row[SEQUENCE] + 1} for row in wrong], held.schema)
    batch = batch.append_column(KIND, pa.array([DELETE, INSERT, INSERT], pa.int8()))
    from pypaimon.write.commit_message_serializer import deserialize_commit_message
    from pypaimon.write.native_commit import create_native_write_table

    write = create_native_write_table(table).new_stream_write_builder().with_commit_user("somebody").new_write()
    write.write_arrow(batch)
    messages = [
        deserialize_commit_message(bytes(message.serialize()), table.partition_keys_fields, table.trimmed_primary_keys_fields)
        for message in write.prepare_commit(True, 1)
    ]
    write.close()
    table.new_stream_write_builder().new_commit().commit(messages, 1)


@pytest.mark.timeout(900)
def test_the_command_ends_with_the_code_of_what_it_found(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb()
    run(
        server,
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v VARCHAR(50), price DOUBLE)",
        "INSERT INTO shop.orders VALUES (1, 'one', 0.1), (2, 'two', -0e0)",
    )
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"""\
source: {{type: mysql, host: {server.host}, port: {server.port}, username: root, password: "${{RUN_PASSWORD}}", tables: [shop.*]}}
sink: {{type: paimon, warehouse: lake}}
pipeline: {{name: test-verify, state: state, interval: 300ms}}
"""
    )
    assert _snowmelt(server, "verify", str(path))[0] == 2, "a pipeline that never ran has nothing to verify"
    # That the command says `verified` and gives 0 is what the demo's test sees.
    assert _snowmelt(server, "run", str(path), "--until-current")[0] == 0

    run(server, "UPDATE shop.orders SET v = 'hunter2' WHERE id = 2", logged=False)
    code, said = _snowmelt(server, "verify", str(path), "--json")
    verdict, done = (json.loads(line) for line in said)
    assert code == 3
    assert verdict["differences"] == [{"key": {"id": "2"}, "kind": "changed", "columns": ["v"]}]
    assert done == {"event": "done", "verified": 0, "differ": 1, "not_verified": 0}
    assert "hunter2" not in "".join(said)

    run(server, "INSERT INTO shop.orders VALUES (3, 'three', 1)")
    code, said = _snowmelt(server, "verify", str(path), "--patience", "0.5")
    assert code == 1
    assert "not verified: the lake lags by" in said[0]
    assert _snowmelt(server, "verify", str(path), "--table", "orders")[0] == 2


def test_a_verdict_is_told_by_keys_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = (Difference((("id", "2"),), DifferenceKind.CHANGED, ("v",)), Difference((("id", "3"),), DifferenceKind.LOST))
    verdict = TableVerdict(
        table=TableId("shop", "orders"),
        target="ods.orders",
        outcome=TableOutcome.DIFFERS,
        rows=9,
        position="file:4",
        differing=3,
        differences=wrong,
    )
    print_verdict(verdict)
    assert capsys.readouterr().out.splitlines() == [
        "shop.orders -> ods.orders: differs, rows 9, checksums 0, at file:4, rows that differ: 3",
        "  changed id = 2: v",
        "  lost id = 3",
        "  and 1 more",
    ]


def _snowmelt(server: Server, *arguments: str) -> tuple[int, list[str]]:
    environment = {**os.environ, "RUN_PASSWORD": server.password}
    done = subprocess.run([sys.executable, "-m", "snowmelt", *arguments], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()
