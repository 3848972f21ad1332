"""A running pipeline gives a lake table another number of buckets: nothing is lost, and nothing stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snowmelt import preflight
from snowmelt.commit.requests import OperatorAnswer, RescaleTable
from snowmelt.config import read_pipeline
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.failpoints import OF_RESCALE
from snowmelt.engine.loop.requests import answer_to, ask
from snowmelt.sinks.paimon.references import live_entries
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import latest_snapshot
from snowmelt.store.objects import open_store
from tests.integration import pipeline_process
from tests.integration.killed import Process, fill, finish_and_compare, under_load
from tests.integration.running import Running, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

Database = Callable[[Server], str]


def requested(wanted: Settings, target: str, buckets: int) -> int:
    number, _ = ask(open_store(wanted.state), RescaleTable(target=target, buckets=buckets), now_ms=round(time.time() * 1000))
    return number


def answered(wanted: Settings, number: int) -> OperatorAnswer | None:
    return answer_to(open_store(wanted.state), number)


def buckets_of(folder: Path, target: str) -> tuple[int, set[int]]:
    """By the schema, and by the manifests."""
    lake = PaimonSink(str(folder / "lake"), user="reader")
    table = lake.table(target)
    return lake.describe(target).buckets, {entry.total_buckets for entry in live_entries(table, latest_snapshot(table))}


@pytest.mark.timeout(600)
def test_a_pipeline_under_load_rescales_its_tables_and_continues(fresh_mariadb: Fresh, spark: Any, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    wanted = settings(server, tmp_path, target="ods.{table}")
    with Running(spark, wanted) as running:
        running.wait_for(lambda: running.pipeline.progress.epoch > 0)
        # While it is being copied, it waits.
        first = requested(wanted, "ods.orders", 5)
        with under_load(server):
            running.wait_for(lambda: answered(wanted, first) is not None)
            second, third = requested(wanted, "ods.names", 1), requested(wanted, "ods.orders", 10)
            same = requested(wanted, "ods.pairs", 2)
            refused = requested(wanted, "ods.absent", 4)
            running.wait_for(lambda: answered(wanted, refused) is not None)
            epoch = running.pipeline.progress.epoch
            running.wait_for(lambda: running.pipeline.progress.epoch > epoch + 5)
        running.settled()
        answers = [answered(wanted, number) for number in (first, second, third, same)]
        assert [answer.refused for answer in answers if answer is not None] == [""] * 4
        assert [bool(answer.epoch) for answer in answers if answer is not None] == [True, True, True, False]
    assert "no table of this pipeline" in (answered(wanted, refused) or OperatorAnswer(nonce="")).refused
    assert [buckets_of(tmp_path, f"ods.{name}") for name in ("orders", "names", "pairs")] == [(10, {10}), (1, {1}), (2, {2})]
    for name in ("orders", "names", "pairs", "nothing", "journal"):
        assert lake_rows(tmp_path, f"ods.{name}") == source_rows(server, f"shop.{name}"), name


def is_whole(folder: Path, target: str, *counts: int) -> None:
    """The table has one of these numbers of buckets, all its files are of it, and each key is there once."""
    count, files = buckets_of(folder, target)
    assert count in counts
    assert files == {count}
    keys = [row["id"] for row in lake_rows(folder, target)]
    assert keys
    assert len(set(keys)) == len(keys)


@pytest.mark.timeout(1500)
def test_a_driver_or_worker_that_dies_at_every_step_of_a_rescale_leaves_a_whole_table_and_the_next_one_finishes(
    fresh_mariadb: Fresh, tmp_path: Path
) -> None:
    server, target = fresh_mariadb(), "ods.shop_orders"
    fill(server)
    wanted = pipeline_process.settings(server.host, server.port, tmp_path)
    old, numbers = 2, list[int]()
    with under_load(server):
        for new, failpoint in enumerate(OF_RESCALE, 3):
            process = Process(server, tmp_path, failpoint)
            process.wait_for(tmp_path / "released")
            process.wait_until(lambda: all(answered(wanted, number) is not None for number in numbers))
            if numbers:
                is_whole(tmp_path, target, old)
            process.arm(failpoint)
            numbers.append(requested(wanted, target, new))
            process.die_at(failpoint)
            process.kill()
            is_whole(tmp_path, target, old, new)
            old = new
        process = Process(server, tmp_path)
        process.wait_until(lambda: answered(wanted, numbers[-1]) is not None)
    finish_and_compare(server, tmp_path, process)
    is_whole(tmp_path, target, old)
    assert [answer.refused for number in numbers if (answer := answered(wanted, number)) is not None] == [""] * len(OF_RESCALE)


def describe(folder: Path, server: Server, name: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(
        f"""\
source: {{type: mysql, host: {server.host}, port: {server.port}, username: root, password: "file:password", tables: ["{name}.*"]}}
sink: {{type: paimon, warehouse: lake}}
pipeline: {{name: test, state: state}}
routes: [{{source: "{name}.journal", target: "{name}.journal", mode: changelog}}, {{source: "{name}.*", target: "{name}.{{table}}"}}]
"""
    )
    return path


def rescale(path: Path, *arguments: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, "-m", "snowmelt", "rescale", str(path), *arguments]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.timeout(900)
def test_the_command_asks_the_pipeline_that_runs_and_runs_it_where_none_does(
    mariadb: Server, database: Database, spark: Any, tmp_path: Path
) -> None:
    name = database(mariadb)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name}.orders (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.execute(f"CREATE TABLE {name}.journal (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.executemany(f"INSERT INTO {name}.orders VALUES (%s, %s)", [(key, key) for key in range(1000)])
    path, target = describe(tmp_path, mariadb, name), f"{name}.orders"
    (tmp_path / "password").write_text(mariadb.password)
    assert "done nothing yet" in rescale(path, target, "--buckets", "3", code=2)[1]
    routes = [Route(f"{name}.journal", f"{name}.journal", Mode.CHANGELOG)]
    with Running(spark, settings(mariadb, tmp_path, tables=[f"{name}.*"], routes=routes, target="{database}.{table}")) as running:
        running.settled()
        *_, done = rescale(path, target, "--buckets", "3", "--json")[0]
        assert (done["event"], done["target"], done["buckets_before"], done["buckets"]) == ("rescaled", target, 2, 3)
        assert done["epoch"]
        assert buckets_of(tmp_path, target) == (3, {3})
        (told,) = (one for one in preflight.of_pipeline(read_pipeline(path)).findings if one.code == "buckets")
        assert "keep another number of buckets than buckets: 2" in told.fact
        assert f"snowmelt rescale pipeline.yaml {target} --buckets 2" in told.remedy
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE {name}.orders SET v = -v WHERE id > 500")
        running.settled()
        assert lake_rows(tmp_path, target) == source_rows(mariadb, target)
    *_, done = rescale(path, target, "--buckets", "6", "--json", "--master", "local[2]")[0]
    assert (done["event"], done["buckets_before"], done["buckets"]) == ("rescaled", 3, 6)
    assert buckets_of(tmp_path, target) == (6, {6})
    assert lake_rows(tmp_path, target) == source_rows(mariadb, target)
    (done,) = rescale(path, target, "--buckets", "6", "--json")[0]
    assert (done["event"], done["buckets_before"], done["epoch"]) == ("rescaled", 6, 0)
    assert "no buckets to change" in rescale(path, f"{name}.journal", "--buckets", "6", code=2)[1]
    assert "no table of this pipeline has this name" in rescale(path, f"{name}.absent", "--buckets", "6", code=2)[1]
