"""The lease of a union read: held by a process of its own, beside Spark's.

Spark plans a read in a process that ends before the tasks begin, and a DataFrame may be used again at any time while Spark runs. So the
lease is held for as long as the option `lease` says, or until Spark's process ends, whatever comes first; then it is dropped. It is
renewed all the while in small steps: if the whole machine goes, Fluss keeps the snapshots for `STEP_MS` and no longer.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.errors import InvariantBroken, SnowmeltError
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


def hold(wanted: Hold) -> Mapping[Bucket, Leased]:
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
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin as to:
        pickle.dump(wanted, to)
    with holder.stdout as answered:
        answer = answered.read()
    if not answer:
        raise InvariantBroken("the holder of a lease ended without an answer", detail=f"exit code {holder.wait()}")
    found: Mapping[Bucket, Leased] | SnowmeltError = pickle.loads(answer)
    if isinstance(found, SnowmeltError):
        holder.wait()
        raise found
    # It outlives this object, and is nobody's child then.
    holder.returncode = 0
    return found


def main() -> None:
    wanted: Hold = pickle.load(sys.stdin.buffer)
    over = time.monotonic() + wanted.duration_ms / 1000
    with Leasing(wanted.bootstrap, wanted.login, duration_ms=min(wanted.step_ms, wanted.duration_ms)) as leasing:
        answer: Mapping[Bucket, Leased] | SnowmeltError
        try:
            answer = dict(leasing.acquire(wanted.lease, wanted.path, wanted.table, wanted.wanted))
        except SnowmeltError as error:
            answer = error
        # Python does not close a standard output, and who waits for the answer waits for its end.
        with open(os.dup(1), "wb") as answered:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            pickle.dump(answer, answered)
        while not isinstance(answer, SnowmeltError) and leasing.error is None and time.monotonic() < over and _lives(wanted.owner):
            time.sleep(_LOOK_S)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


if __name__ == "__main__":
    main()
