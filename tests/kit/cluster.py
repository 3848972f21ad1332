"""A standalone Spark cluster on this machine's loopback: a master and workers, each a process of its own, from pyspark's own jars."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.kit.processes import children_of, free_port

START_S_MAX = 120


class Cluster:
    def __init__(self, folder: Path, workers: int, *, cores: int = 2, memory: str = "1g", **environment: str) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        home = Path(pyspark.__file__).parent
        # What Spark's own scripts would say.
        scala = next(home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0]
        spark = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": scala, "SPARK_LOCAL_IP": "127.0.0.1"}
        self._environment = {**os.environ, **environment, **spark}
        port, self._page = free_port(), free_port()
        self.pages = [self._page]
        self.master = f"spark://127.0.0.1:{port}"
        self._start("master", "master.Master", "--port", str(port), "--webui-port", str(self._page))
        self.workers = [self._start_worker(number, cores, memory) for number in range(workers)]
        self._wait(lambda state: len(state["workers"]) == workers)

    def _start_worker(self, number: int, cores: int, memory: str) -> subprocess.Popen[bytes]:
        self.pages.append(free_port())
        given = ["--cores", str(cores), "--memory", memory, "--work-dir", str(self._folder / f"work-{number}")]
        return self._start(f"worker-{number}", "worker.Worker", *given, "--webui-port", str(self.pages[-1]), self.master)

    def _start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else shutil.which("java")
        assert java is not None
        # In place of Spark's own script, which starts a JVM of its own to make this line.
        command = [java, "-cp", f"{self._environment['SPARK_HOME']}/jars/*", "-Xmx256m", f"org.apache.spark.deploy.{program}"]
        with open(self._folder / f"{name}.txt", "wb") as log:
            process = subprocess.Popen([*command, "--host", "127.0.0.1", *arguments], env=self._environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def state(self) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
            return json.loads(answer.read())

    def page(self, number: int, path: str) -> bytes:
        """Of the master, which is 0, or of a worker."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.pages[number]}{path}", timeout=10) as answer:
            content: bytes = answer.read()
            return content

    def _wait(self, until: Any) -> None:
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            with suppress(OSError):
                if until(self.state()):
                    return
            if any(process.poll() is not None for process in self._processes):
                break
            time.sleep(0.05)
        pytest.fail("\n".join(path.read_text(errors="replace")[-3000:] for path in self._folder.glob("*.txt")))

    def kill_worker(self, number: int) -> None:
        """As a machine that is lost: the worker, its executors and their Python."""
        doomed = [self.workers[number].pid]
        for pid in doomed:
            doomed.extend(children_of(pid))
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.workers[number].wait()

    def stop(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.poll() is None:
                self.kill_worker(number)
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def standalone_cluster(folder: Path, workers: int, **more: Any) -> Iterator[Cluster]:
    folder.mkdir()
    cluster = Cluster(folder, workers, **more)
    try:
        yield cluster
    finally:
        cluster.stop()
