"""The oldest and the newest Spark that are declared; `./run matrix` goes through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.environments import locked_spark
from tests.kit.servers import Fresh, NotRun, give_up
from tests.matrix import SPARKS, run_lane


@pytest.mark.timeout(700)
@pytest.mark.parametrize("version", [SPARKS[0], SPARKS[-1]])
def test_a_pipeline_that_is_killed_is_verified_on_this_spark(version: str, fresh_mariadb: Fresh, tmp_path: Path) -> None:
    try:
        assert f"pyspark {version}." in run_lane(version, fresh_mariadb(), tmp_path)
    except NotRun as reason:
        give_up(reason)


def test_the_declared_versions_are_those_of_the_matrix() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    oldest, newest = SPARKS[0], SPARKS[-1].split(".")
    assert f'"pyspark>={oldest},<{newest[0]}.{int(newest[1]) + 1}"' in project
    assert locked_spark() == SPARKS[-1]
