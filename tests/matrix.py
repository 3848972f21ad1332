"""The same small lane over every Spark that is declared: `./run matrix [VERSION…]`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kit import jvm
from tests.kit.environments import ROOT, spark_environment
from tests.kit.servers import NotRun, Server, start_mariadb

SPARKS = ("3.5", "4.0", "4.1", "4.2", "4.3")
LANE_S_MAX = 600
"""On a machine that has other work, with kernels that have to be compiled."""


def run_lane(version: str, server: Server, folder: Path) -> str:
    """What it says; AssertionError with all of it if it fails."""
    python = spark_environment(version)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHON"))}
    environment["LANE_PASSWORD"] = server.password
    # The classes that tests keep for a quick start are those of one Spark.
    environment["JDK_JAVA_OPTIONS"] = jvm.OPTIONS
    command = [str(python), str(ROOT / "tests/matrix_lane.py"), server.host, str(server.port), str(folder)]
    said = folder / "said"
    with open(said, "wb") as out:
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            code = running.wait(LANE_S_MAX)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_session(running.pid)
            running.wait()
    assert code == 0, f"{'it took too long' if code is None else code}\n{said.read_text(errors='replace')[-6000:]}"
    return said.read_text()


def _end_session(session: int) -> None:
    """What a lane has started goes with it."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run matrix", description=__doc__)
    parser.add_argument("versions", nargs="*", default=SPARKS, metavar="VERSION", help=f"of Spark: {', '.join(SPARKS)}; default: all")
    parser.add_argument("--prepare", action="store_true", help="only make the environments")
    given = parser.parse_args()
    if unknown := sorted(set(given.versions) - set(SPARKS)):
        parser.error(f"{unknown[0]} is none of {', '.join(SPARKS)}")
    failed = 0
    for version in given.versions:
        began = time.monotonic()
        try:
            spark_environment(version)
            said = "ready" if given.prepare else _lane(version)
        except NotRun as reason:
            failed, said = 2, f"NOT RUN: {reason}"
        except AssertionError as error:
            failed, said = 1, f"FAILED\n{error}"
        print(f"Spark {version}: {said.strip()} ({time.monotonic() - began:.0f} s)", flush=True)
    return failed


def _lane(version: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "lane").mkdir()
        server = start_mariadb(Path(folder) / "server")
        try:
            return run_lane(version, server, Path(folder) / "lane")
        finally:
            server.discard()


if __name__ == "__main__":
    sys.exit(main())
