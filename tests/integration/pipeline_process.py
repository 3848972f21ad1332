"""A pipeline in a process of its own, to be killed: `python -m tests.integration.pipeline_process HOST PORT FOLDER`.

It runs until the file `stop` is in the folder and the lake is current, then makes the file `current` and ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.engine.pipeline import Pipeline, Settings
from snowmelt.secrets import Secret


def settings(host: str, port: int, folder: Path) -> Settings:
    source = MySqlOptions(host=host, port=port, password=Secret("${PIPELINE_PASSWORD}"), tls=Tls.DISABLED)
    return Settings(
        name="test",
        state=folder / "state",
        warehouse=str(folder / "lake"),
        source=source,
        tables=["shop.*"],
        interval_s=0.3,
        rows_per_chunk=2_000,
        summary_every=4,
    )


def main() -> None:
    from pyspark.sql import SparkSession

    host, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    builder = SparkSession.builder.master("local[2]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.python.worker.faulthandler.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    pipeline = Pipeline(spark, settings(host, port, folder))

    def until(running: Pipeline) -> bool:
        progress = running.progress
        released = progress.phases and all(phase == "released" for phase in progress.phases.values())
        if released:
            (folder / "released").touch()
        return (folder / "stop").exists() and running.current()

    pipeline.run(until)
    (folder / "current").touch()
    # Spark's own farewell takes seconds, and there is nothing left to lose.
    os._exit(0)


if __name__ == "__main__":
    main()
