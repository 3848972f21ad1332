"""A live database into the lake, on Spark, killed again and again; in the end the lake is the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.killed import Process, die_at_every_failpoint, fill, finish_and_compare, under_load
from tests.kit.servers import Fresh


@pytest.mark.timeout(1200)
def test_a_driver_or_worker_that_dies_at_every_failpoint_loses_nothing(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    die_at_every_failpoint(fresh_mariadb(), tmp_path, "local[3]")


@pytest.mark.timeout(600)
def test_a_database_that_nobody_writes_to_is_copied_too(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    process = Process(server, tmp_path)
    finish_and_compare(server, tmp_path, process)


@pytest.mark.timeout(600)
def test_mysql_with_gtids_flows_into_the_lake(fresh_mysql8: Fresh, tmp_path: Path) -> None:
    server = fresh_mysql8(gtid_mode="ON", enforce_gtid_consistency="ON")
    fill(server)
    with under_load(server):
        process = Process(server, tmp_path)
        process.wait_for(tmp_path / "released")
        process.kill()
        process = Process(server, tmp_path)
        (tmp_path / "released").unlink()
        process.wait_for(tmp_path / "released")
    finish_and_compare(server, tmp_path, process)
