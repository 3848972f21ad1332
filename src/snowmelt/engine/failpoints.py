"""Places where a test lets a process die, as kill -9 would: `SNOWMELT_FAILPOINT=NAME:FILE`, or several with commas between them.

The first process that reaches the place creates FILE and dies. Later ones pass, because FILE exists. All pass while FILE's folder does
not exist. `NAME@executor:FILE` in a task: its executor dies, and the worker continues for as long as it can. Without the variable
nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from snowmelt.sinks.maintenance import ExpiryPoint

CHUNK_READ: Final = "chunk-read"
SEGMENT_DURABLE: Final = "segment-durable"
FILES_STAGED: Final = "files-staged"
INTENT_WRITTEN: Final = "intent-written"
BETWEEN_TABLES: Final = "between-tables"
BEFORE_DONE: Final = "before-done"
DURING_RELEASE: Final = "during-release"
GROUPS_ASIDE: Final = "groups-aside"
HALF_UPLOADED: Final = "half-uploaded"

REWRITE_WRITTEN: Final = "rewrite-written"
REWRITE_STAGED: Final = "rewrite-staged"
REWRITE_PUBLISHED: Final = "rewrite-published"
SNAPSHOTS_CHOSEN: Final = "snapshots-chosen"
SNAPSHOTS_GONE: Final = ExpiryPoint.SNAPSHOTS_GONE.value
FILES_GOING: Final = ExpiryPoint.FILES_GOING.value
FILES_GONE: Final = ExpiryPoint.FILES_GONE.value
SNAPSHOTS_EXPIRED: Final = "snapshots-expired"
SEARCH_BEGUN: Final = "search-begun"
ORPHANS_FOUND: Final = "orphans-found"
ORPHANS_GOING: Final = "orphans-going"

RESCALE_WRITTEN: Final = "rescale-written"
RESCALE_STAGED: Final = "rescale-staged"
RESCALE_DECIDED: Final = "rescale-decided"
RESCALE_COMMITTED: Final = "rescale-committed"
RESCALE_DONE: Final = "rescale-done"

SPLIT_READ: Final = "split-read"
SPLITS_STAGED: Final = "splits-staged"
OFFSETS_PREPARED: Final = "offsets-prepared"
LAKE_COMMITTED: Final = "lake-committed"
FLUSS_TOLD: Final = "fluss-told"

NAMES: Final = (CHUNK_READ, SEGMENT_DURABLE, FILES_STAGED, INTENT_WRITTEN, BETWEEN_TABLES, BEFORE_DONE, DURING_RELEASE)
IN_TASKS: Final = (CHUNK_READ, FILES_STAGED)
"""Here a worker dies and not the driver."""
OF_MAINTENANCE: Final = (
    REWRITE_WRITTEN,
    REWRITE_STAGED,
    REWRITE_PUBLISHED,
    SNAPSHOTS_CHOSEN,
    SNAPSHOTS_GONE,
    FILES_GOING,
    FILES_GONE,
    SNAPSHOTS_EXPIRED,
)
"""In the order of a round; at the first a worker dies."""
OF_SEARCHES: Final = (SEARCH_BEGUN, ORPHANS_FOUND, ORPHANS_GOING)
"""In the order of a search for orphans; at the first the driver dies, at the others a worker."""
OF_RESCALE: Final = (RESCALE_WRITTEN, RESCALE_STAGED, RESCALE_DECIDED, RESCALE_COMMITTED, RESCALE_DONE)
"""In the order in which a rescale reaches them; at the first a worker dies."""
OF_TIERING: Final = (SPLIT_READ, SPLITS_STAGED, OFFSETS_PREPARED, LAKE_COMMITTED, FLUSS_TOLD)
"""In the order of a round; at the first a worker dies."""
_EXECUTOR: Final = "@executor"


def of_executor(name: str) -> str:
    return f"{name}{_EXECUTOR}"


def armed(name: str) -> bool:
    """Whether a process dies at this place, or died there before."""
    return any(one.partition(":")[0] == name for one in os.environ.get("SNOWMELT_FAILPOINT", "").split(","))


def reach(name: str) -> None:
    for wanted, _, path in (one.partition(":") for one in os.environ.get("SNOWMELT_FAILPOINT", "").split(",")):
        if wanted in (name, of_executor(name)):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid() if wanted == name else _executor(), signal.SIGKILL)


def _executor() -> int:
    """The JVM that this worker is of: between them is the daemon that forks workers."""
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
