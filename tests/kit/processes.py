"""Processes that tests start: commands of snowmelt's, what they say and how they end; ports, and children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest


class Command:
    """`snowmelt …` in a process group of its own. `folder`: where the file is that holds what it says."""

    def __init__(self, *arguments: str, folder: Path, cwd: Path, environment: Mapping[str, str], seconds_max: float = 240.0) -> None:
        self._said = folder / f"said-{time.monotonic_ns()}"
        self._seconds_max = seconds_max
        with open(self._said, "wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "snowmelt", *arguments],
                env={**environment, "NO_COLOR": "1"},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_for(self, *words: str) -> None:
        deadline = time.monotonic() + self._seconds_max
        while not all(word in self.said for word in words):
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"never said {words}:\n{self.said[-6000:]}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """To all of the group, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str]:
        """Wait for its end; its exit code and all that it said."""
        try:
            code = self.process.wait(self._seconds_max)
        except subprocess.TimeoutExpired:
            pytest.fail(f"does not end:\n{self.said[-6000:]}")
        finally:
            self.kill()
        return code, self.said

    def kill(self) -> None:
        """Twice is harmless."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()


def free_port() -> int:
    """For a process that can't be told to take any."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children_of(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for folder in Path(f"/proc/{pid}/task").glob("*/children") for child in folder.read_text().split()]
    return []
