"""What a program of a user does: a pipeline as an object, its lake tables as DataFrames or in DuckDB, and what its state says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import snowmelt
from snowmelt.cli.main import app
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.running import settings
from tests.kit.servers import Fresh

CHANGES = Route("shop.events", "ods.events", Mode.CHANGELOG)


@pytest.mark.timeout(300)
def test_a_pipeline_in_a_program_and_its_tables_as_dataframes(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, total DECIMAL(10,2), at DATETIME(6))")
        cursor.execute("CREATE TABLE shop.events (id INT NOT NULL PRIMARY KEY, what VARCHAR(20))")
        cursor.execute("INSERT INTO shop.orders SELECT seq, seq / 4, '2026-01-02 03:04:05.6' FROM shop.seq_1_to_3000")
        cursor.execute("INSERT INTO shop.events VALUES (1, 'a')")
    wanted = settings(server, tmp_path, routes=[CHANGES])
    pipeline = snowmelt.Pipeline(spark, wanted)
    last = pipeline.run_until_current()
    assert last.rows == 3001
    assert set(last.phases.values()) == {"released"}

    orders = snowmelt.read(spark, "ods.shop_orders", warehouse=wanted.sink.warehouse)
    assert orders.where("total >= 700").count() == 201
    assert {"id", "total", "at", "_seq"} == set(orders.columns)
    (row,) = orders.where("id = 3").collect()
    assert (str(row.total), row["at"].microsecond) == ("0.75", 600_000)

    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM shop.orders WHERE id > 10")
        connection.commit()
    for progress in pipeline.run():
        if progress.rows >= 2990:
            break
    assert snowmelt.read(spark, "ods.shop_orders", warehouse=wanted.sink.warehouse).count() == 10
    # What was read before stays what it was.
    assert orders.count() == 3000
    kinds = snowmelt.read(spark, "ods.events", warehouse=wanted.sink.warehouse).select("_op", "what").collect()
    assert [tuple(kind) for kind in kinds] == [("read", "a")]
    # Columns that moved, came or went since the last row was written: each value stays under its name.
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE shop.orders MODIFY total DECIMAL(10,2) AFTER at, ADD COLUMN note VARCHAR(9) FIRST")
    pipeline.run_until_current()
    altered = snowmelt.read(spark, "ods.shop_orders", warehouse=wanted.sink.warehouse)
    (row,) = altered.where("id = 3").collect()
    assert (str(row.total), row["at"].microsecond, row.note) == ("0.75", 600_000, None)
    first = snowmelt.read(spark, "ods.shop_orders", warehouse=wanted.sink.warehouse, snapshot=1)
    assert first.columns == altered.columns
    with pytest.raises(InvalidConfig, match=r"no such lake table: ods\.order in"):
        snowmelt.read(spark, "ods.order", warehouse=wanted.sink.warehouse)
    with pytest.raises(InvalidConfig, match=r"has no such snapshot: ods\.shop_orders: 4711"):
        snowmelt.read(spark, "ods.shop_orders", warehouse=wanted.sink.warehouse, snapshot=4711)

    import duckdb

    table = PaimonSink(wanted.sink.warehouse, user="reader").table("ods.shop_orders")
    builder = table.new_read_builder()
    rows = duckdb.from_arrow(builder.new_read().to_arrow(builder.new_scan().plan().splits()))
    assert rows.aggregate("count(*), sum(id)").fetchall() == [(10, 55)]


@pytest.mark.timeout(300)
def test_an_error_of_the_pipeline_reaches_the_program(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    with pytest.raises(InvalidConfig, match="no table matches"):
        snowmelt.Pipeline(spark, settings(server, tmp_path)).run_until_current()


@pytest.mark.timeout(300)
def test_status_tells_how_far_a_pipeline_is(fresh_mariadb: Fresh, tmp_path: Path, spark: Any) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO shop.orders VALUES (1, 1)")
        connection.commit()
    (tmp_path / "pipeline.yaml").write_text(
        f"""\
source:
  {{type: mysql, host: {server.host}, port: {server.port}, username: root, password: "file:password", tables: "shop.*", tls: disabled}}
sink: {{type: paimon, warehouse: lake}}
routes: [{{source: "shop.*", target: "ods.shop_{{table}}"}}]
pipeline: {{name: test, state: state, interval: 200ms}}
"""
    )
    (tmp_path / "password").write_text(server.password)
    file, run = str(tmp_path / "pipeline.yaml"), CliRunner().invoke
    before = run(app, ["status", file])
    assert isinstance(before.exception, InvalidConfig)
    assert "has done nothing yet" in str(before.exception)

    snowmelt.Pipeline(spark, file).run_until_current()
    told = json.loads(run(app, ["status", file, "--json"]).stdout)
    (table,) = told.pop("tables")
    assert (told["name"], told["under_way"]) == ("test", False)
    assert told["epoch"] > 0
    assert (table["source"], table["target"], table["mode"], table["phase"]) == ("shop.orders", "ods.shop_orders", "upsert", "released")
    assert table["committed_ms"] is not None
    assert (told["life"], told["alive"], told["lag_s"], told["error"]) == ("ended", False, None, "")
    shown = run(app, ["status", file])
    assert shown.exit_code == 0
    assert "test: does not run; it ended as asked" in shown.stdout
    assert "shop.orders" in shown.stdout
    assert "is done" in shown.stdout

    # A table that was made later and has no key is left out, which a driver that is at work tells.
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop.keyless (v INT)")
    seen = []
    for progress in snowmelt.Pipeline(spark, file).run():
        told = json.loads(run(app, ["status", file, "--json"]).stdout)
        seen.append(told["life"])
        if told["left_out"]:
            break
        assert progress.phases.get("shop.keyless") is None
    # Until it has taken over, the driver before it is what there is to tell of.
    assert seen[-1] == "runs"
    assert sorted(seen) == seen
    (left_out,) = told["left_out"]
    assert left_out["table"] == "shop.keyless"
    assert "it has no key" in left_out["why"]

    # A lake table that is gone stops the next driver; what it said is kept, and the exit code tells.
    shutil.rmtree(tmp_path / "lake/ods.db/shop_orders")
    with pytest.raises(SourceDrift):
        snowmelt.Pipeline(spark, file).run_until_current()
    stopped = run(app, ["status", file])
    assert stopped.exit_code == 1
    assert "test: does not run; it was stopped by an error" in stopped.stdout
    assert "a lake table is not there: ods.shop_orders" in stopped.stdout
    assert server.password not in stopped.stdout
    assert len(list((tmp_path / "state/sign").iterdir())) <= 3
