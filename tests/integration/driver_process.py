"""A driver without Spark in a process of its own, to be killed: `python -m tests.integration.driver_process FILE`, its settings pickled.

It takes the log over, captures and records, and never comes to an epoch, unless it is told how often. Tasks run in the process.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.settings import Settings
from tests.integration.running import changed, run_tasks_here

START_S_MAX = 120


class DriverProcess:
    """`died` is there once it has come to its failpoint."""

    def __init__(self, wanted: Settings, folder: Path, failpoint: str = "", *, interval_s: float = 1e12) -> None:
        name = f"driver-{time.monotonic_ns()}"
        description, self.died, self.log = folder / f"{name}.pickle", folder / f"{name}.died", folder / f"{name}.txt"
        description.write_bytes(pickle.dumps(changed(wanted, interval_s=interval_s)))
        environment = {**os.environ, "SNOWMELT_FAILPOINT": f"{failpoint}:{self.died}"}
        with open(self.log, "wb") as log:
            command = [sys.executable, "-m", "tests.integration.driver_process", str(description)]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def wait_for_death(self) -> None:
        if self._process.wait(START_S_MAX) != -signal.SIGKILL:
            pytest.fail(f"the driver ended by itself:\n{self.log.read_text(errors='replace')[-6000:]}")
        assert self.died.exists()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    run_tasks_here(pytest.MonkeyPatch())
    PipelineDriver(None, pickle.loads(Path(sys.argv[1]).read_bytes())).run()
