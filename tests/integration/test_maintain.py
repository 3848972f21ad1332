"""`snowmelt maintain` as a user meets it: a pipeline's lake tables are compacted once, without a run or beside one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from tests.integration.running import Running, lake_rows, settings, source_rows
from tests.kit.servers import Server

Database = Callable[[Server], str]
FILES_MAX = 2


def describe(folder: Path, server: Server, name: str) -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(
        f"""\
source: {{type: mysql, host: {server.host}, port: {server.port}, username: root, password: "file:password", tables: ["{name}.*"]}}
sink: {{type: paimon, warehouse: lake}}
pipeline: {{name: test, state: state}}
maintenance: {{expire: {{keep_min: 1, keep_for: 0s}}, orphans: {{older_than: 1s}}}}
"""
    )
    return path


def maintain(path: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "snowmelt", "maintain", str(path), "--json", "--master", "local[2]", *arguments]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def files_of(folder: Path, target: str) -> int:
    return sum(len(bucket.files) for bucket in PaimonMaintenance(str(folder / "lake")).files(target).buckets)


@pytest.mark.timeout(600)
def test_one_round_leaves_few_files_beside_a_run_too_and_the_rows_stay(
    mariadb: Server, database: Database, spark: Any, tmp_path: Path
) -> None:
    name = database(mariadb)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name}.orders (id INT NOT NULL PRIMARY KEY, v INT)")
        cursor.execute(f"CREATE TABLE {name}.others (id INT NOT NULL PRIMARY KEY, v INT)")
    path, target = describe(tmp_path, mariadb, name), f"{name}.orders"
    with Running(spark, settings(mariadb, tmp_path, tables=[f"{name}.*"], target="{database}.{table}")) as running:
        running.settled()
        for number in range(5):
            with mariadb.connect() as connection, connection.cursor() as cursor:
                cursor.executemany(f"REPLACE INTO {name}.orders VALUES (%s, %s)", [(key, number) for key in range(10 * number, 100)])
                cursor.execute(f"DELETE FROM {name}.orders WHERE id = %s", (number,))
                cursor.execute(f"REPLACE INTO {name}.others VALUES (1, %s)", (number,))
            running.settled()
        before, rows = files_of(tmp_path, target), lake_rows(tmp_path, target)
        assert before > FILES_MAX
        planned, done = maintain(path, "--dry-run", "--full", "--table", target)
        assert (planned["event"], planned["target"], planned["files"], planned["rewritten"]) == ("planned", target, before, before)
        assert files_of(tmp_path, target) == before, "a dry run changes nothing"
        # Beside a driver that is at work.
        maintained, done = maintain(path, "--full", "--table", target)
        assert (maintained["files"], maintained["files_after"], maintained["rewritten"]) == (before, FILES_MAX, before)
        assert (maintained["error"], done["failed"], done["tables"]) == ("", 0, 1)
        assert lake_rows(tmp_path, target) == rows == source_rows(mariadb, target)
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DELETE FROM {name}.orders WHERE id > 50")
        running.settled()
    # Without a run, all tables, by the rules: few files are left alone.
    *tables, done = maintain(path)
    assert {one["target"]: one["rewrites"] for one in tables} == {target: 0, f"{name}.others": 0}
    assert lake_rows(tmp_path, target) == source_rows(mariadb, target)


def test_a_pipeline_that_has_done_nothing_and_a_table_that_is_none_of_it_are_told(tmp_path: Path, mariadb: Server) -> None:
    (tmp_path / "password").write_text("x")
    command = [sys.executable, "-m", "snowmelt", "maintain", str(describe(tmp_path, mariadb, "shop")), "--dry-run"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this pipeline has done nothing yet" in done.stderr
