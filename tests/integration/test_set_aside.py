"""One table's trouble is one table's trouble: whatever a statement, a row or a lake table does to one, the others go on."""

from __future__ import annotations

import itertools
import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt import budgets
from snowmelt.commit.records import Entry, Intent
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.splitting import Splitter
from snowmelt.engine.driver.state import State
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Reborn
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.status import read_status
from tests.integration.running import Running, folded, lake_rows, settings, source_rows
from tests.integration.server_log import execute
from tests.kit.servers import Fresh, Server
from tests.kit.sources import mysql_of

TABLES = {
    "healthy": "id INT NOT NULL PRIMARY KEY, v INT",
    "other_key": "id INT NOT NULL PRIMARY KEY, v INT",
    "widened": "id INT NOT NULL PRIMARY KEY, v INT",
    "swapped": "id INT NOT NULL PRIMARY KEY, v INT",
    "traded": "id INT NOT NULL PRIMARY KEY, v INT",
    "promoted": "id INT NOT NULL, v INT NOT NULL, UNIQUE (v)",
    "unkeyed": "id INT NOT NULL, v INT, UNIQUE KEY only_one (id)",
    "dated": "d DATE NOT NULL PRIMARY KEY, v INT",
    "named": "id INT NOT NULL PRIMARY KEY, v INT",
    "child": "id INT NOT NULL PRIMARY KEY, v INT",
    "history": "id INT NOT NULL PRIMARY KEY, v VARCHAR(20)",
    "versioned": "id INT NOT NULL PRIMARY KEY, v INT",
    "lost": "id INT NOT NULL PRIMARY KEY, v INT",
    "kept": "id INT NOT NULL PRIMARY KEY, v INT",
}
TROUBLE: dict[str, tuple[tuple[str, ...], str]] = {
    "other_key": (
        (
            "DROP TABLE shop.other_key",
            "CREATE TABLE shop.other_key (v INT NOT NULL PRIMARY KEY, w INT)",
            "INSERT INTO shop.other_key VALUES (9, 9)",
        ),
        "the key of a table was changed",
    ),
    "widened": (("ALTER TABLE shop.widened MODIFY id BIGINT NOT NULL",), "the type of a key's column was changed"),
    "swapped": (
        (
            "CREATE TABLE shop._swapped_gho (id BIGINT NOT NULL PRIMARY KEY, v INT)",
            "INSERT INTO shop._swapped_gho SELECT * FROM shop.swapped",
            "RENAME TABLE shop.swapped TO shop._swapped_del, shop._swapped_gho TO shop.swapped",
        ),
        "the type of a key's column was changed",
    ),
    "traded": (
        (
            "CREATE TABLE shop.trading (id VARCHAR(9) NOT NULL PRIMARY KEY, v INT)",
            "RENAME TABLE shop.traded TO shop.away, shop.trading TO shop.traded",
        ),
        "the type of a key's column was changed",
    ),
    "promoted": (("ALTER TABLE shop.promoted ADD PRIMARY KEY (id)",), "the key of a table was changed"),
    "unkeyed": (("ALTER TABLE shop.unkeyed DROP KEY only_one",), "it has no key"),
    "dated": (("SET sql_mode = ''", "INSERT INTO shop.dated VALUES ('0000-00-00', 1)"), "a key holds a date that does not exist"),
    "dated_copy": (
        (
            "SET sql_mode = ''",
            "CREATE TABLE shop.dated_copy (d DATE NOT NULL PRIMARY KEY, v INT)",
            "INSERT INTO shop.dated_copy VALUES ('0000-00-00', 1)",
        ),
        "a key holds a date that does not exist",
    ),
    "named": (("ALTER TABLE shop.named ADD COLUMN _op INT",), "a column can't be brought to the lake"),
    "child": (
        ("ALTER TABLE shop.child ADD CONSTRAINT up FOREIGN KEY (v) REFERENCES shop.kept (id) ON DELETE CASCADE",),
        "a foreign key was added whose changes are not in the log",
    ),
    "history": (("ALTER TABLE shop.history MODIFY v INT",), "a column's type was changed"),
    "versioned": (("ALTER TABLE shop.versioned ADD SYSTEM VERSIONING",), "the log of a system-versioned table"),
}
"""What is done to each, and what is said of it."""
LEFT_OUT = ("CREATE TABLE shop.late_seq (id INT PRIMARY KEY, _seq INT)", "CREATE TABLE shop.`late\x01x` (id INT PRIMARY KEY)")
PUT_RIGHT = (
    "ALTER TABLE shop.unkeyed ADD PRIMARY KEY (id)",
    "SET sql_mode = ''",
    "DELETE FROM shop.dated WHERE d = 0",
    "DELETE FROM shop.dated_copy",
    "ALTER TABLE shop.named CHANGE _op op INT",
    "ALTER TABLE shop.child DROP FOREIGN KEY up",
    "ALTER TABLE shop.versioned DROP SYSTEM VERSIONING",
)
LOGGED = Route("shop.history", "ods.shop_history", Mode.CHANGELOG)
EXCLUDED = ["shop._*"]


def write(server: Server, number: int) -> None:
    execute(server, f"INSERT INTO shop.healthy VALUES ({number}, {number})")


def fill(server: Server) -> None:
    execute(server, "CREATE DATABASE shop")
    for name, columns in TABLES.items():
        execute(server, f"CREATE TABLE shop.{name} ({columns})")
        first = "'2024-01-01'" if name == "dated" else "1"
        execute(server, f"INSERT INTO shop.{name} VALUES ({first}, 1)")


def why(running: Running) -> dict[str, str]:
    return {name.removeprefix("shop."): why for name, why in running.pipeline.progress.aside.items()}


@pytest.mark.timeout(900)
def test_a_table_that_cant_go_on_is_set_aside_and_comes_back(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """B2 to B6, B13 and C10, one after the other in one pipeline."""
    server = fresh_mariadb()
    fill(server)
    wanted = settings(server, tmp_path, routes=[LOGGED], exclude=EXCLUDED)
    with Running(spark, wanted) as running:
        running.settled()
        before = {name: lake_rows(tmp_path, f"ods.shop_{name}", system=True) for name in TABLES}
        for number, (statements, _) in enumerate(TROUBLE.values(), start=100):
            execute(server, *statements)
            write(server, number)
        execute(server, *LEFT_OUT)
        shutil.rmtree(tmp_path / "lake" / "ods.db" / "shop_lost")
        execute(server, "INSERT INTO shop.lost VALUES (2, 2)")
        write(server, 200)
        running.settled()
        found = why(running)
        assert sorted(found) == sorted([*TROUBLE, "lost"])
        for name, (_, said) in TROUBLE.items():
            assert said in found[name], name
            assert "--recopy" in found[name], name
        assert "a lake table is not there" in found["lost"]
        assert lake_rows(tmp_path, "ods.shop_healthy") == source_rows(server, "shop.healthy")
        for name in TROUBLE:
            if name in TABLES:
                assert lake_rows(tmp_path, f"ods.shop_{name}", system=True) == before[name], f"{name} is left as it was"
    assert {record.table for record in caplog.records if record.msg == "a table is left out"} == {"shop.late_seq", "shop.late\x01x"}  # type: ignore[attr-defined]

    # All of it is known to the next one, which goes on with the others.
    caplog.clear()
    write(server, 300)
    with Running(spark, settings(server, tmp_path, routes=[LOGGED], exclude=EXCLUDED, buckets=8)) as running:
        running.settled()
        assert why(running) == found
        assert lake_rows(tmp_path, "ods.shop_healthy") == source_rows(server, "shop.healthy")
    told = {one.source.removeprefix("shop."): one.aside for one in read_status(wanted).tables if one.aside is not None}
    assert told == found
    kept = [
        record for record in caplog.records if record.msg == "a lake table keeps its number of buckets until `snowmelt rescale` changes it"
    ]
    assert any(record.target == "ods.shop_healthy" and record.levelno == logging.WARNING for record in kept)  # type: ignore[attr-defined]

    # One that nobody asks for stays aside, one is excluded, one is dropped in the source; all others come back.
    execute(server, *PUT_RIGHT, "DROP TABLE shop.traded", "INSERT INTO shop.widened VALUES (5000000000, 1)")
    stays, excluded = "promoted", "swapped"
    wanted = settings(server, tmp_path, routes=[LOGGED], exclude=[*EXCLUDED, f"shop.{excluded}"])
    asked = [f"shop.{name}" for name in (*TROUBLE, "lost") if name not in (stays, excluded, "traded", "versioned")]
    with Running(spark, wanted, recopy=asked) as running:
        running.settled()
        write(server, 400)
        for name in asked:
            execute(server, f"UPDATE {name} SET v = 7")
        running.settled()
        assert list(why(running)) == [stays]
        assert set(running.pipeline.progress.phases.values()) == {"released", "set aside"}
    for name in ("healthy", "versioned", *(one.removeprefix("shop.") for one in asked)):
        rows = folded(tmp_path, "ods.shop_history") if name == "history" else lake_rows(tmp_path, f"ods.shop_{name}")
        assert rows == source_rows(server, f"shop.{name}"), name
    assert lake_rows(tmp_path, "ods.shop_promoted", system=True) == before["promoted"]

    # Excluded, it was forgotten; included again, it is a table like any new one, and its key is still another.
    with Running(spark, settings(server, tmp_path, routes=[LOGGED], exclude=EXCLUDED), recopy=["shop.promoted", "shop.healthy"]) as running:
        running.settled()
        assert list(why(running)) == ["swapped"]
    # Nothing else happens meanwhile: it is forgotten by a run that ends when all is current, too.
    with Running(spark, wanted) as running:
        running.settled()
        assert why(running) == {}
    for name in ("promoted", "healthy"):
        assert lake_rows(tmp_path, f"ods.shop_{name}") == source_rows(server, f"shop.{name}"), name


class Died(BaseException):
    """What a driver dies of here."""


def dies_in_create(patch: pytest.MonkeyPatch) -> None:
    """The old lake table is gone, the new one is not there."""

    def create(*_: Any, **__: Any) -> None:
        raise Died

    patch.setattr(PaimonSink, "create", create)


def dies_before_the_intent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "put_intent", _dies_at_reborn(State.put_intent, before=True))


def dies_behind_the_intent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(State, "put_intent", _dies_at_reborn(State.put_intent, before=False))


def dies_behind_the_commit(patch: pytest.MonkeyPatch) -> None:
    commit = PaimonSink.commit

    def committed(lake: PaimonSink, intent: Intent, entry: Entry, watermark_ms: int | None = None) -> int:
        snapshot = commit(lake, intent, entry, watermark_ms)
        if any(isinstance(fact, Reborn) for fact in intent.facts):
            raise Died
        return snapshot

    patch.setattr(PaimonSink, "commit", committed)


def _dies_at_reborn(put: Any, *, before: bool) -> Any:
    def putting(state: State, intent: Intent) -> bool:
        reborn = any(isinstance(fact, Reborn) for fact in intent.facts)
        if reborn and before:
            raise Died
        won: bool = put(state, intent)
        if reborn:
            raise Died
        return won

    return putting


@pytest.mark.timeout(900)
def test_whoever_dies_while_a_table_is_brought_back_leaves_it_aside_or_on_its_way(
    fresh_mariadb: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again without the flag it comes to the right end, or is still set aside; never half."""
    server = fresh_mariadb()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.healthy (id INT PRIMARY KEY, v INT)")
    execute(server, "CREATE TABLE shop.t (id INT PRIMARY KEY, v INT)", "INSERT INTO shop.t VALUES (1, 1), (2, 2)")
    wanted = settings(server, tmp_path)
    with Running(spark, wanted) as running:
        running.settled()
    kinds = itertools.cycle(["BIGINT", "INT"])
    for number, (dies, back) in enumerate(
        [(dies_in_create, False), (dies_before_the_intent, False), (dies_behind_the_intent, True), (dies_behind_the_commit, True)]
    ):
        execute(server, f"ALTER TABLE shop.t MODIFY id {next(kinds)} NOT NULL", f"INSERT INTO shop.healthy VALUES ({number}, 1)")
        with Running(spark, wanted) as running:
            running.settled()
            assert list(why(running)) == ["t"]
        with monkeypatch.context() as patch:
            dies(patch)
            with Running(spark, wanted, recopy=["shop.t"]) as running:
                assert isinstance(running.stopped_by(), Died), dies.__name__
        execute(server, f"UPDATE shop.t SET v = v + {number}", f"INSERT INTO shop.t VALUES (10 + {number}, 1)")
        with Running(spark, wanted) as running:
            running.settled()
            assert list(why(running)) == ([] if back else ["t"]), dies.__name__
        if not back:
            with Running(spark, wanted, recopy=["shop.t"]) as running:
                running.settled()
                assert why(running) == {}, dies.__name__
        for name in ("t", "healthy"):
            assert lake_rows(tmp_path, f"ods.shop_{name}") == source_rows(server, f"shop.{name}"), (dies.__name__, name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_a_statement_logged_as_text_sets_aside_every_table_that_it_may_have_changed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark: Any
) -> None:
    """Of a trigger's changes the log has no row and its statement no word. MySQL logs which databases they are in."""
    server: Server = request.getfixturevalue(f"fresh_{kind}")()
    for database, table in (("shop", "worded"), ("shop", "audit"), ("shop", "bystander"), ("crm", "c"), ("ledger", "l")):
        execute(server, f"CREATE DATABASE IF NOT EXISTS {database}", f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY, v INT)")
    execute(
        server,
        "INSERT INTO shop.worded VALUES (1, 1)",
        "INSERT INTO crm.c VALUES (1, 1)",
        "CREATE TRIGGER shop.near AFTER UPDATE ON shop.worded FOR EACH ROW INSERT INTO shop.audit VALUES (NEW.v, 0)",
        "CREATE TRIGGER crm.far AFTER UPDATE ON crm.c FOR EACH ROW INSERT INTO ledger.l VALUES (NEW.v, 0)",
    )
    wanted = settings(server, tmp_path, tables=["shop.*", "crm.*", "ledger.*"])
    of_shop = ["shop.audit", "shop.bystander", "shop.worded"]
    everything = ["crm.c", "ledger.l", *of_shop]
    with Running(spark, wanted) as running:
        running.settled()
        execute(server, "SET binlog_format = 'STATEMENT'", "UPDATE shop.worded SET v = v + 1")
        execute(server, "INSERT INTO crm.c VALUES (2, 2)")
        running.settled()
        aside = running.pipeline.progress.aside
        assert sorted(aside) == (everything if kind == "mariadb" else of_shop)
        assert "UPDATE that names it" in aside["shop.worded"]
        assert "UPDATE that may reach it by a view, trigger or function" in aside["shop.audit"]
        assert all("--recopy" in why for why in aside.values())
        if kind == "mysql8":
            assert lake_rows(tmp_path, "ods.crm_c") == source_rows(server, "crm.c")
        execute(server, "SET binlog_format = 'STATEMENT'", "UPDATE crm.c SET v = v + 10")
        running.settled()
        assert sorted(running.pipeline.progress.aside) == everything
    with Running(spark, wanted, recopy=everything) as running:
        running.settled()
        assert running.pipeline.progress.aside == {}
    for name in everything:
        assert lake_rows(tmp_path, f"ods.{name.replace('.', '_')}") == source_rows(server, name), name


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_a_table_behind_an_alter_that_waits_for_a_transaction_is_waited_for_and_stops_no_other(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(f"fresh_{kind}")()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "INSERT INTO shop.t VALUES (1), (2)")
    execute(server, "CREATE TABLE shop.healthy (id INT PRIMARY KEY, v INT)")
    with server.connect(autocommit=False) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.t")
        altering = threading.Thread(target=execute, args=(server, "ALTER TABLE shop.t ADD COLUMN n INT"))
        altering.start()
        with Running(spark, settings(server, tmp_path)) as running:
            with monkeypatch.context() as patch:
                # Whatever counts as a failure would end the driver, until the ALTER may end, which a read may well notice.
                patch.setattr(budgets, "READS", replace(budgets.READS, tries_max=1))
                running.wait_for(lambda: TableId("shop", "t") in running.driver.letting_go._holders.retries.waiting)
                write(server, 1)
                running.wait_for(lambda: lake_rows(tmp_path, "ods.shop_healthy") == source_rows(server, "shop.healthy"))
            holder.rollback()
            altering.join()
            running.settled()
    assert lake_rows(tmp_path, "ods.shop_t") == source_rows(server, "shop.t")


@pytest.mark.timeout(300)
def test_a_table_that_gets_an_engine_whose_rows_lie_elsewhere_is_set_aside(
    mysql8: Server, database: Callable[[Server], str], tmp_path: Path, spark: Any
) -> None:
    """An INSERT into a BLACKHOLE table is logged, and no SELECT shows its row."""
    shop = database(mysql8)
    wanted = settings(mysql8, tmp_path, tables=[f"{shop}.*"])
    execute(mysql8, f"CREATE TABLE {shop}.t (id INT PRIMARY KEY)", f"INSERT INTO {shop}.t VALUES (1), (2)")
    with Running(spark, wanted) as running:
        running.settled()
        execute(mysql8, f"ALTER TABLE {shop}.t ENGINE = BLACKHOLE", f"INSERT INTO {shop}.t VALUES (3)")
        running.settled()
        execute(mysql8, f"INSERT INTO {shop}.t VALUES (4)")
        running.settled()
        aside = running.pipeline.progress.aside[f"{shop}.t"]
        assert "rows of its engine BLACKHOLE lie elsewhere" in aside
        assert "give it another engine; then start with --recopy" in aside
        assert [row["id"] for row in lake_rows(tmp_path, f"ods.{shop}_t")] == [1, 2]
    execute(mysql8, f"ALTER TABLE {shop}.t ENGINE = InnoDB", f"INSERT INTO {shop}.t VALUES (5)")
    with Running(spark, wanted, recopy=[f"{shop}.t"]) as running:
        running.settled()
    assert lake_rows(tmp_path, f"ods.{shop}_t") == source_rows(mysql8, f"{shop}.t")


@pytest.mark.timeout(300)
def test_a_table_that_the_user_may_not_read_any_more_is_set_aside(
    fresh_mysql8: Fresh, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its bounds are looked for: the catalogue shows it still, for it may be written."""
    server = fresh_mysql8()
    execute(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "INSERT INTO shop.t VALUES (1), (2)")
    execute(server, "CREATE TABLE shop.healthy (id INT PRIMARY KEY, v INT)")
    execute(
        server,
        f"CREATE USER melt@'127.0.0.1' IDENTIFIED WITH mysql_native_password BY '{server.password}'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO melt@'127.0.0.1'",
        "GRANT SELECT ON shop.healthy TO melt@'127.0.0.1'",
        "GRANT SELECT, INSERT ON shop.t TO melt@'127.0.0.1'",
    )
    monkeypatch.setattr(budgets, "READS", replace(budgets.READS, tries_max=2))
    wanted = settings(server, tmp_path)
    source = mysql_of(wanted)
    wanted = replace(wanted, source=replace(source, options=replace(source.options, username="melt")))
    look = Splitter._look

    def refused(splitter: Splitter, sought: Any, *more: Any) -> Any:
        if sought.incarnation.table.name == "t":
            execute(server, "REVOKE SELECT ON shop.t FROM melt@'127.0.0.1'")
        return look(splitter, sought, *more)

    monkeypatch.setattr(Splitter, "_look", refused)
    with Running(spark, wanted) as running:
        running.wait_for(lambda: "t" in why(running))
        write(server, 1)
        running.settled()
        assert "the database refuses access to a table" in why(running)["t"]
        assert "grant SELECT" in why(running)["t"]
    assert lake_rows(tmp_path, "ods.shop_healthy") == source_rows(server, "shop.healthy")
