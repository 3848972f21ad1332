"""A pipeline in a process of its own, to be killed: `python -m tests.integration.pipeline_process HOST PORT FOLDER MASTER`.

It makes the file `released` once every table is live, runs until the file `stop` is in the folder and the lake is current, then makes
the file `current` and ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.pipeline import Pipeline
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.supervise.session import spark_session


def settings(host: str, port: int, folder: Path) -> Settings:
    source = MySqlOptions(
        host=host, port=port, password=Secret("${PIPELINE_PASSWORD}"), tls=Tls.DISABLED, allow_password_to_unverified_server=True
    )
    return Settings(
        name="test",
        state=folder / "state",
        warehouse=str(folder / "lake"),
        source=MySql(options=source),
        tables=["shop.*"],
        routes=[Route("shop.journal", "ods.journal", Mode.CHANGELOG)],
        interval_s=0.3,
        rows_per_chunk=2_000,
        summary_every=4,
    )


def main() -> None:
    host, port, folder, master = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

    def until(running: Pipeline) -> bool:
        phases = running.progress.phases
        if phases and all(phase == "released" for phase in phases.values()):
            (folder / "released").touch()
        return (folder / "stop").exists() and running.current()

    with spark_session("test", master=master, ui=False, debug=True) as spark:
        Pipeline(spark, settings(host, port, folder)).run(until)
        (folder / "current").touch()
        # Spark's own farewell takes seconds, and there is nothing left to lose.
        os._exit(0)


if __name__ == "__main__":
    main()
