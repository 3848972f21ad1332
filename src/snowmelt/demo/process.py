"""A command of ours as a process of its own, as a user runs it, and what it tells.

Laws:
- It is the leader of a session. So it can be killed with all that it started (Spark's Java process, its workers), and nothing is left.
- What it tells is a JSON object a line, read by a thread; who looks gets the newest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snowmelt.errors import Unavailable, present

_END_S_MAX = 60.0
_SAID_CHARACTERS_MAX = 500


class Command:
    """`snowmelt …` under way. Made by one thread and used by it."""

    def __init__(self, folder: Path, log: Path, *arguments: str) -> None:
        scratch = folder / "tmp"
        scratch.mkdir(exist_ok=True)
        # A killed process leaves its temporary files; they go away with the folder.
        java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={scratch}"'
        environment = os.environ | {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java.strip()}
        self._log = log
        self.name = arguments[0]
        self.began = time.monotonic()
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "snowmelt", *arguments, "--json"],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self.told: list[dict[str, Any]] = []
        """All but progress, as it came."""
        self.progress: dict[str, Any] = {}
        """The newest."""
        self._reader = threading.Thread(target=self._read, name=f"snowmelt-{self.name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with present(self._process.stdout, "a process was started without its output") as lines:
            for line in lines:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "progress":
                        self.progress = event
                    else:
                        self.told.append(event)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def phases(self) -> dict[str, str]:
        return {table: said["phase"] for table, said in self.progress.get("tables", {}).items()}

    @property
    def epoch(self) -> int:
        return int(self.progress.get("epoch", 0))

    @property
    def rows(self) -> int:
        return int(self.progress.get("rows", 0))

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check_alive(self) -> None:
        if self.ended:
            raise self._failure()

    def _failure(self) -> Unavailable:
        self._reader.join(_END_S_MAX)
        failed = next((event for event in self.told if event["event"] == "failed"), None)
        why = f"{failed['fact']}: {failed['detail']}" if failed else self._log.read_text(errors="replace").strip()[-_SAID_CHARACTERS_MAX:]
        return Unavailable(
            f"`snowmelt {self.name}` ended with {self._process.returncode}", detail=why, hint=f"all that it said is in {self._log}"
        )

    def finish(self, *, allowed: tuple[int, ...] = (0,)) -> int:
        """Wait for its own end; its exit code."""
        code = self._process.wait()
        if code not in allowed:
            raise self._failure()
        self._reader.join(_END_S_MAX)
        return code

    def interrupt(self) -> None:
        """What Ctrl-C does; it ends by itself."""
        os.killpg(self.pid, signal.SIGINT)
        try:
            self._process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"`snowmelt {self.name}` does not end", detail=f"{_END_S_MAX:.0f} s after SIGINT") from None
        self.finish()

    def kill(self) -> None:
        """kill -9, of all of it. Twice is harmless."""
        # Workers have process groups of their own; what they have in common is the session.
        while members := _members_of_session(self.pid):
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            # As long as it is not waited for, no other process can get its number.
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            if self._process.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_END_S_MAX)


@contextlib.contextmanager
def running(folder: Path, log: Path, *arguments: str) -> Iterator[Command]:
    """A command that is over, whatever happens, when the block is."""
    command = Command(folder, log, *arguments)
    try:
        yield command
    finally:
        command.kill()


def _members_of_session(leader: int) -> list[int]:
    """Processes that are not dead yet; none where the system has no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Its name, in brackets, may hold anything; after it: state, parent, group, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(entry.name))
    return found
