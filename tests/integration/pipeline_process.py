"""A pipeline in a process of its own, to be killed: `python -m tests.integration.pipeline_process SETTINGS FOLDER MASTER`. `SETTINGS` is a
file with the pipeline's settings, pickled.

It makes the file `released` once every table is live, runs until the file `stop` is in the folder and the lake is current, then makes
the file `current` and ends.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import MaintenanceSettings, PaceSettings, Settings, SinkSettings
from snowmelt.maintenance.compaction import CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.supervise.session import spark_session

RULES = MaintenanceRules(compaction=CompactionRules(runs_max=4), expiry=ExpiryRules(count_min=5, age_ms=1_000))


def settings(host: str, port: int, folder: Path) -> Settings:
    """Of a pipeline of all tables of a server's database shop."""
    source = MySqlOptions(
        host=host, port=port, password=Secret("${PIPELINE_PASSWORD}"), tls=Tls.DISABLED, allow_password_to_unverified_server=True
    )
    return Settings(
        name="test",
        state=folder / "state",
        sink=SinkSettings(warehouse=str(folder / "lake")),
        source=MySql(options=source),
        tables=["shop.*"],
        routes=[Route("shop.journal", "ods.journal", Mode.CHANGELOG)],
        pace=PaceSettings(interval_s=0.3, rows_per_chunk=2_000, summary_every=4),
        # So often that each kill meets it.
        maintenance=MaintenanceSettings(rules=RULES),
    )


def main() -> None:
    wanted: Settings = pickle.loads(Path(sys.argv[1]).read_bytes())
    folder, master = Path(sys.argv[2]), sys.argv[3]

    def until(running: PipelineDriver) -> bool:
        phases = running.progress.phases
        if phases and all(phase == "released" for phase in phases.values()):
            (folder / "released").touch()
        return (folder / "stop").exists() and running.current()

    with spark_session("test", master=master, ui=False, debug=True) as spark:
        PipelineDriver(spark, wanted).run(until)
        (folder / "current").touch()
        # Spark's own farewell takes seconds, and there is nothing left to lose.
        os._exit(0)


if __name__ == "__main__":
    main()
