"""A pipeline maintains its lake tables while it writes them: files stay few, nothing is lost, and what fails stops no epoch."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.records import StagedName
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import MaintenanceSettings, Settings
from snowmelt.engine.failpoints import FILES_GOING, OF_MAINTENANCE, OF_SEARCHES, SEARCH_BEGUN, SNAPSHOTS_GONE
from snowmelt.engine.maintenance.once import MaintenanceRound
from snowmelt.errors import InvalidConfig
from snowmelt.maintenance.compaction import CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.references import referenced_paths
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration import pipeline_process
from tests.integration.killed import PipelineProcess, Process, fill, finish_and_compare, under_load
from tests.integration.running import Running, folded, lake_rows, settings, source_rows
from tests.kit.servers import Fresh, Server

RUNS_MAX, KEPT = 4, 5
SAFETY_S = 30
"""Longer than a commit takes on a machine that others keep busy."""
RULES = MaintenanceRules(
    compaction=CompactionRules(runs_max=RUNS_MAX), expiry=ExpiryRules(count_min=KEPT, age_ms=1_000), orphan_age_ms=86_400_000
)
TARGETS = ("ods.orders", "ods.names", "ods.journal")
ROUTES = [Route("shop.journal", "ods.journal", Mode.CHANGELOG), Route("shop.*", "ods.{table}")]


def wanted(server: Server, folder: Path, **more: Any) -> Settings:
    return settings(server, folder, routes=ROUTES, maintenance=MaintenanceSettings(rules=RULES, slots=2), **more)


def runs_of(folder: Path, target: str) -> int:
    """Of the fullest bucket: level-0 files, and one more for each other level."""
    files = PaimonMaintenance(str(folder / "lake")).files(target)
    return max(sum(not file.level for file in bucket.files) + len({file.level for file in bucket.files} - {0}) for bucket in files.buckets)


def snapshots_of(folder: Path, target: str) -> list[int]:
    database, name = target.split(".")
    names = os.listdir(folder / "lake" / f"{database}.db" / name / "snapshot")
    return sorted(int(one.removeprefix("snapshot-")) for one in names if one.startswith("snapshot-"))


def equal(server: Server, folder: Path) -> None:
    for table in ("orders", "names"):
        assert lake_rows(folder, f"ods.{table}") == source_rows(server, f"shop.{table}"), table
    assert folded(folder, "ods.journal") == source_rows(server, "shop.journal")


@pytest.mark.timeout(600)
def test_files_and_snapshots_stay_few_under_load_and_the_lake_is_the_source(fresh_mariadb: Fresh, spark: Any, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    with Running(spark, wanted(server, tmp_path)) as running:
        running.wait_for(running.pipeline.caught_up)
        seen: Counter[str] = Counter()
        with under_load(server):
            until = time.monotonic() + 300

            def enough() -> bool:
                for target in TARGETS:
                    seen[target] = max(seen[target], snapshots_of(tmp_path, target)[-1])
                return min(seen.values()) >= 60 or time.monotonic() > until

            running.wait_for(enough)
            running.wait_for(lambda: all(runs_of(tmp_path, target) <= RUNS_MAX + 3 for target in TARGETS))
        running.settled()
        figures = running.driver.letting_go.upkeep.figures
    assert min(seen.values()) >= 60, "too few epochs to tell"
    for target in TARGETS:
        assert figures[target].compacted_ms is not None, target
        assert figures[target].expired_ms is not None, target
        assert snapshots_of(tmp_path, target)[0] > 20, target
    equal(server, tmp_path)


def leftovers(folder: Path, target: str) -> set[StagedName]:
    """Staged files that nothing refers to."""
    lake = PaimonSink(str(folder / "lake"), user="reader")
    staged = lake.staged(target)
    return {StagedName.parse(name) for name in set(staged) - lake.referenced(target)}


@pytest.mark.timeout(1800)
def test_a_driver_or_worker_that_dies_at_every_step_of_maintenance_loses_nothing_and_leaves_nothing(
    fresh_mariadb: Fresh, spark: Any, tmp_path: Path
) -> None:
    server = fresh_mariadb()
    fill(server)
    with under_load(server):
        for failpoint in OF_MAINTENANCE:
            process = Process(server, tmp_path, failpoint)
            process.wait_for(tmp_path / "released")
            process.die_at(failpoint)
            process.kill()
        process = Process(server, tmp_path)
        generation = len(OF_MAINTENANCE) + 1
        lake = PaimonSink(str(tmp_path / "lake"), user="reader")
        targets = ("ods.journal", "ods.shop_orders", "ods.shop_names", "ods.shop_pairs")
        # A newer driver has committed to each table, so that no older one can publish what it has rewritten.
        process.wait_until(lambda: all(lake.newest_commit(target)[0].identity.startswith(f"{generation}-") for target in targets))
    finish_and_compare(server, tmp_path, process)
    wanted = pipeline_process.settings("nowhere", 1, tmp_path)
    rules = replace(RULES, orphan_age_ms=1)
    one = MaintenanceRound(replace(wanted, maintenance=MaintenanceSettings(rules=rules)))
    for target in targets:
        done = one.maintain(spark, target, full=True, watch=lambda _: None)
        assert not done.error
        # Of the newest driver this process can't tell what it still wants.
        assert {name.generation for name in leftovers(tmp_path, target)} <= {generation}, target
        assert runs_of(tmp_path, target) == 1


def old_orphans(folder: Path, target: str) -> set[str]:
    """Files that nothing refers to and that were written longer ago than the safety age. Those of a driver that runs are younger."""
    lake = PaimonSink(str(folder / "lake"), user="reader")
    before = time.time() - SAFETY_S
    root = folder / "lake" / target.replace(".", ".db/")
    old = {str(path.relative_to(root)) for path in root.glob("*/*") if looked_for(path) and written(path) < before}
    return old - referenced_paths(lake.table(target), metadata=True)


def looked_for(path: Path) -> bool:
    """Snapshots, schemas and the like are known by their names alone."""
    return path.parent.name == "manifest" or path.parent.name.startswith("bucket-") or path.name.startswith(".")


def written(path: Path) -> float:
    """In seconds since the epoch; later than anything if it is gone."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


@pytest.mark.timeout(1800)
def test_no_orphan_stays_longer_than_the_safety_age_whoever_dies_in_expiry_and_in_the_search(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb()
    fill(server)
    rules = replace(pipeline_process.RULES, orphan_age_ms=SAFETY_S * 1000)
    wanted = replace(pipeline_process.settings(server.host, server.port, tmp_path), maintenance=MaintenanceSettings(rules=rules))
    password = {"PIPELINE_PASSWORD": server.password}
    targets = ("ods.journal", "ods.shop_orders", "ods.shop_names", "ods.shop_pairs")
    with under_load(server):
        # Expiry that is cut short leaves what the searches are to find.
        for failpoint in (SNAPSHOTS_GONE, FILES_GOING, *OF_SEARCHES):
            process = PipelineProcess(wanted, tmp_path, failpoint, environment=password)
            process.wait_for(tmp_path / "released")
            process.die_at(failpoint)
            left = {target: old_orphans(tmp_path, target) for target in targets}
            process.kill()
            assert failpoint != SEARCH_BEGUN or any(left.values()), "there is nothing to search for"
        process = PipelineProcess(wanted, tmp_path, environment=password)
        # By then all that the dead have left is older than the safety age.
        since = time.monotonic() + 2 * SAFETY_S
        process.wait_until(lambda: time.monotonic() > since and not any(old_orphans(tmp_path, target) for target in targets))
    finish_and_compare(server, tmp_path, process)


@pytest.mark.timeout(600)
def test_maintenance_that_fails_stops_no_epoch_and_is_told_once(
    fresh_mariadb: Fresh, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_mariadb()
    fill(server)
    broken: list[str] = []

    def refuse(care: PaimonMaintenance, work: Any, staged: Any, *, generation: int) -> Any:
        target = work[0].target
        if target in broken:
            raise InvalidConfig("the warehouse refuses access", detail=target)
        return published(care, work, staged, generation=generation)

    published = PaimonMaintenance.publish
    monkeypatch.setattr(PaimonMaintenance, "publish", refuse)
    broken.append("ods.orders")
    with Running(spark, wanted(server, tmp_path)) as running:
        running.wait_for(running.pipeline.caught_up)
        figures = running.driver.letting_go.upkeep.figures
        with under_load(server):
            running.wait_for(lambda: figures["ods.names"].compacted_ms is not None and "can't be maintained" in caplog.text)
            epoch = running.pipeline.progress.epoch
            running.wait_for(lambda: running.pipeline.progress.epoch > epoch + 20)
            assert figures["ods.orders"].compacted_ms is None
            broken.clear()
            running.wait_for(lambda: figures["ods.orders"].compacted_ms is not None)
        running.settled()
    assert caplog.text.count("can't be maintained") == 1
    equal(server, tmp_path)
