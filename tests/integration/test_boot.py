"""What a driver refuses before it touches anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.driving.steps import DONES, Put
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.state import Shape, State
from snowmelt.errors import Corrupt, InvalidConfig
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Found, Incarnation
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.generations import newest_generation, take_generation
from snowmelt.store.objects import open_store
from tests.integration.paimon_tables import SCHEMA, foreign_commit
from tests.integration.running import settings
from tests.kit.servers import Fresh, Server
from tests.kit.sources import mysql_of

TABLES = [TableId("shop", name) for name in ("t1", "t2")]


@pytest.fixture
def server(fresh_mariadb: Fresh) -> Server:
    started = fresh_mariadb()
    with started.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, kind ENUM('a', 'b'))")
    return started


def begun(server: Server, folder: Path, *, shapes: bool = True) -> State:
    """The state of a pipeline that has found both tables."""
    wanted = settings(server, folder)
    with Session(mysql_of(wanted).options) as session:
        found = read_tables(session, TABLES)
    state, ledger = State(open_store(str(wanted.state))), Ledger()
    generation = take_generation(state.store, "before")
    for number, name in enumerate(TABLES, 1):
        PaimonSink(wanted.sink.warehouse, user="before").create(f"ods.shop_{name.name}", SCHEMA, ("id",), buckets=2)
        if shapes:
            state.put_shape(number, Shape(found[name]))
    facts = tuple(Found(Incarnation(name, 1), f"ods.shop_{name.name}", True, number) for number, name in enumerate(TABLES, 1))
    intent = Intent(
        epoch=1, generation=generation.number, nonce="n", after=0, upto=0, time_ms=None, facts=facts, entries=(), sequence_max=1, segment=0
    )
    assert state.put_intent(intent)
    ledger.apply_intent(intent)
    done = ledger.decide_done((), "")
    state.act(Put(DONES, done.epoch, done))
    return state


def refused(server: Server, folder: Path, **more: Any) -> PipelineDriver:
    return PipelineDriver(None, settings(server, folder, **more))


def test_a_table_that_is_left_out_between_two_runs_stops(server: Server, tmp_path: Path) -> None:
    """Its changes would be passed over without a word."""
    state = begun(server, tmp_path)
    with pytest.raises(InvalidConfig, match=r"not captured any more: shop\.t2"):
        refused(server, tmp_path, exclude=["shop.t2"]).run()
    assert newest_generation(state.store, 1) == 1, "a mistake in a file fenced the driver that is at work"


def test_a_table_that_gets_another_target_or_mode_stops(server: Server, tmp_path: Path) -> None:
    state = begun(server, tmp_path)
    with pytest.raises(InvalidConfig, match=r"shop\.t1 goes to another target than before"):
        refused(server, tmp_path, routes=[Route("shop.t1", "ods.elsewhere")]).run()
    with pytest.raises(InvalidConfig, match=r"shop\.t1 goes to another target than before"):
        refused(server, tmp_path, routes=[Route("shop.t1", "ods.shop_t1", Mode.CHANGELOG)]).run()
    assert newest_generation(state.store, 1) == 1, "a mistake in a file fenced the driver that is at work"


def test_a_shape_that_is_missing_stops_and_is_not_read_from_today_s_catalogue(server: Server, tmp_path: Path) -> None:
    begun(server, tmp_path, shapes=False)
    with pytest.raises(Corrupt, match="the shape of a table is missing"):
        refused(server, tmp_path).run()


def test_a_table_without_a_key_needs_a_change_table(server: Server, tmp_path: Path) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop.loose (v INT)")
    with pytest.raises(InvalidConfig, match=r"shop\.loose: it has no key .*; give it one, or a route with mode: changelog .*exclude it"):
        refused(server, tmp_path).run()


def test_a_lake_table_that_somebody_else_filled_is_left_alone(server: Server, tmp_path: Path, spark: Any) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE shop.t1 CHANGE kind v VARCHAR(9), MODIFY id BIGINT NOT NULL")
    lake = PaimonSink(str(tmp_path / "lake"), user="somebody")
    lake.create("ods.shop_t1", SCHEMA, ("id",), buckets=2)
    foreign_commit(lake, "ods.shop_t1", (1, "theirs", 1))
    with pytest.raises(InvalidConfig, match=r"holds rows that this pipeline did not bring: ods\.shop_t1"):
        PipelineDriver(spark, settings(server, tmp_path)).run()
