"""The lease of a union read: held by a process of its own, beside Spark's.

Spark plans a read in a process that ends before the tasks begin, and a DataFrame may be used again at any time while Spark runs. So the
lease is held for as long as the option `lease` says, or until Spark's process ends, whatever comes first; then it is dropped. It is
renewed all the while in small steps: if the whole machine goes, Fluss keeps the snapshots for `STEP_MS` and no longer.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snowmelt.engine.signs import process_mark
from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.errors import InvariantBroken, SnowmeltError, present
from snowmelt.fluss.target import Login
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.tiering.leases import Leased

STEP_MS: Final = 120_000
"""How long one renewal lasts."""
_LOOK_S: Final = 0.5
"""How often it is looked whether Spark's process is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What is to be held, and for whom."""

    bootstrap: str
    lease: str
    path: TableId
    table: int
    wanted: Mapping[Bucket, str | None]
    duration_ms: int
    """At most."""
    owner: int
    """The process with whose end the read is over."""
    step_ms: int = STEP_MS
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class HeldSnapshots:
    snapshots: Mapping[Bucket, Leased]
    holder: int
    """The process that holds them."""

    def drop(self) -> None:
        """Let go of them at once: nothing will be read."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.holder, signal.SIGTERM)


def hold(wanted: Hold) -> HeldSnapshots:
    """Start a holder, and wait until it holds. Errors are those of `Leasing.acquire`."""
    # It must find what this process finds, also what Spark has brought along.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    holder = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    with present(holder.stdin, "a process was started without its input") as to:
        pickle.dump(wanted, to)
    with present(holder.stdout, "a process was started without its output") as answered:
        answer = answered.read()
    if not answer:
        raise InvariantBroken("the holder of a lease ended without an answer", detail=f"exit code {holder.wait()}")
    found: Mapping[Bucket, Leased] | SnowmeltError = pickle.loads(answer)
    if isinstance(found, SnowmeltError):
        holder.wait()
        raise found
    # It outlives this object, and is nobody's child then.
    holder.returncode = 0
    return HeldSnapshots(found, holder.pid)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wanted: Hold = pickle.load(sys.stdin.buffer)
    owner, lost = process_mark(wanted.owner), threading.Event()
    over = time.monotonic() + wanted.duration_ms / 1000
    with Leasing(wanted.bootstrap, wanted.login, duration_ms=min(wanted.step_ms, wanted.duration_ms)) as leasing:
        answer: Mapping[Bucket, Leased] | SnowmeltError
        try:
            answer = dict(leasing.acquire(wanted.lease, wanted.path, wanted.table, wanted.wanted, lambda _: lost.set()))
        except SnowmeltError as error:
            answer = error
        # Python does not close a standard output, and who waits for the answer waits for its end.
        with open(os.dup(1), "wb") as answered:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            pickle.dump(answer, answered)
        while not isinstance(answer, SnowmeltError) and time.monotonic() < over and _lives(wanted.owner, owner):
            # A lease that is lost is not had again: what it protected may be gone.
            if leasing.error is not None or lost.wait(_LOOK_S):
                break


def _lives(process: int, mark: str | None) -> bool:
    """Whether a process is there, and, where the system tells, the one that had the number when the lease was asked for."""
    if process_mark(process) != mark:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    main()
