"""The same on two executors, each a JVM of its own with its own Python workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.killed import die_at_every_failpoint
from tests.kit.servers import Fresh


@pytest.mark.timeout(1500)
def test_on_two_workers_a_driver_or_worker_that_dies_at_every_failpoint_loses_nothing(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    die_at_every_failpoint(fresh_mariadb(), tmp_path, "local-cluster[2,1,1024]")
