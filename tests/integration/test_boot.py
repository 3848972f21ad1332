"""What a driver refuses before it touches anything: the tables of a pipeline are those that its ledger has, in their shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.engine.pipeline import Pipeline, Settings, _schema_number
from snowmelt.engine.state import State
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.secrets import Secret
from snowmelt.source.facts import Found, Incarnation
from snowmelt.store.generations import take_generation
from snowmelt.store.objects import open_store
from tests.servers import Fresh, Server


def settings(server: Server, folder: Path, *exclude: str) -> Settings:
    source = MySqlOptions(host=server.host, port=server.port, password=Secret("${BOOT_PASSWORD}"), tls=Tls.DISABLED)
    return Settings(name="boot", state=folder / "state", warehouse=str(folder / "lake"), source=source, tables=["shop.*"], exclude=exclude)


def test_a_table_that_is_left_out_or_altered_between_two_runs_stops(
    fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes would be passed over, or older rows be read in today's shape, without a word."""
    server = fresh_mariadb()
    monkeypatch.setenv("BOOT_PASSWORD", server.password)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for name in ("t1", "t2"):
            cursor.execute(f"CREATE TABLE shop.{name} (id INT NOT NULL PRIMARY KEY, kind ENUM('a', 'b'))")
    wanted = settings(server, tmp_path)
    tables = [TableId("shop", name) for name in ("t1", "t2")]
    with Session(wanted.source) as session:
        shapes = read_tables(session, tables)
    facts = tuple(Found(Incarnation(name, 1), f"ods.shop_{name.name}", True, _schema_number(shapes[name])) for name in tables)
    state, ledger = State(open_store(str(wanted.state))), Ledger()
    generation = take_generation(state.store, "before")
    intent = Intent(1, generation.number, "n", 0, 0, None, facts, (), 1, 0)
    assert state.put_intent(intent)
    ledger.apply_intent(intent)
    state.put_done(ledger.decide_done((), ""))

    with pytest.raises(InvalidConfig, match=r"not captured any more: shop\.t2"):
        Pipeline(None, settings(server, tmp_path, "shop.t2")).run()
    with server.connect() as connection, connection.cursor() as cursor:
        # The same Arrow type, another meaning.
        cursor.execute("ALTER TABLE shop.t1 MODIFY kind ENUM('b', 'a')")
    with pytest.raises(SourceDrift, match=r"altered since its copy began: shop\.t1"):
        Pipeline(None, wanted).run()
