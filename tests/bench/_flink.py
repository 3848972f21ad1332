"""Flink in one local JVM, for those peers that run on it: its jars, its settings, its process.

Flink comes from PyPI, where it is packed whole, connectors come from Maven Central; all versions are pinned. They are kept in the cache,
where they appear at once and whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FLINK = "apache-flink-libraries==1.20.5"
PARALLELISM = 2
HEAP = "3g"
LOOK_S = 0.05
STEP_S_MAX = 3600.0

SETTINGS = {
    "execution.target": "local",
    "parallelism.default": str(PARALLELISM),
    # A failure is to be seen and not to be healed.
    "restart-strategy.type": "none",
    **{f"{part}.bind-{'address' if part == 'rest' else 'host'}": "127.0.0.1" for part in ("rest", "jobmanager", "taskmanager")},
    "rest.address": "127.0.0.1",
    "jobmanager.rpc.address": "127.0.0.1",
    "taskmanager.host": "127.0.0.1",
}

_OPENED = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "text", "time", "util", "util.concurrent", "util.concurrent.atomic")


def fetch_jars(folder: str, connectors: Iterable[str]) -> Path:
    """The folder of Flink's jars and of these from Maven Central, fetched once."""
    peers = Path(os.environ.get("SNOWMELT_CACHE") or Path.home() / ".cache" / "snowmelt") / "peers"
    target = peers / folder
    peers.mkdir(parents=True, exist_ok=True)
    with open(peers / "flink.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            for program in ("mvn", "javac"):
                if shutil.which(program) is None:
                    raise RuntimeError(f"the peer needs {program} (on Debian: apt-get install maven default-jdk-headless)")
            print(f"fetching Flink and what the peer needs into {target} (once)", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix=".flink-", dir=peers) as name:
                _fetch_into(Path(name), Path(name) / "jars", connectors)
                (Path(name) / "jars").rename(target)
    return target


def _fetch_into(work: Path, jars: Path, connectors: Iterable[str]) -> None:
    jars.mkdir()
    venv.create(work / "venv", with_pip=True)
    pip = [str(work / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _do([*pip, "--no-cache-dir", "--target", str(work / "flink"), FLINK], work)
    for jar in (work / "flink" / "pyflink" / "lib").glob("*.jar"):
        jar.rename(jars / jar.name)
    maven = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", f"-Dmaven.repo.local={work / 'repository'}", "dependency:copy"]
    for artifact in connectors:
        _do([*maven, f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"], work)


def _do(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{(done.stdout + done.stderr)[-4000:]}")


class FlinkEnded(RuntimeError):
    """It ended, or is not done in time; with the end of its log."""


class FlinkJvm:
    """A Java main of ours beside these jars, in a folder of its own, where its log is."""

    def __init__(self, name: str, folder: Path, jars: Path, main: str) -> None:
        self._name = name
        self._folder = folder
        self._jars = jars
        self._main = main
        _do(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(Path(__file__).with_name("java") / f"{main}.java")], folder)

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @contextmanager
    def running(self, settings: dict[str, str], *arguments: str, options: Iterable[str] = ()) -> Iterator[subprocess.Popen[str]]:
        """The process, which is killed in the end. `settings` are Flink's, and reach the main as a file, its first argument."""
        file = self._folder / "settings.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in (SETTINGS | settings).items()))
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
        java = ["java", f"-Xmx{HEAP}", *opened, *options, "-cp", f"{self._jars}/*{os.pathsep}{self._folder}", self._main]
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [*java, str(file), *arguments], cwd=self._folder, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, bufsize=1
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def wait_for(self, process: subprocess.Popen[str], so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + STEP_S_MAX
        while not so():
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                what = f"ended with {process.returncode}" if ended else f"is not done after {STEP_S_MAX:.0f} s"
                raise FlinkEnded(f"{self._name} {what}:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(LOOK_S)
