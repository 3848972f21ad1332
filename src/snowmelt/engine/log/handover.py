"""Takeover of the log: from one driver to the next, and from one server to another.

Laws:
- The folder of the log has one owner. It takes the folder before it reads the chain, and keeps it until it writes no more. In a bucket each
  driver has names of its own, and one driver wins the chain's next number.
- Capture continues on another server only from the place where its log has exactly what was captured, as a new era.
- Rows of a transaction that was prepared before capture began are not captured. So capture does not begin while one is prepared.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from snowmelt.databases.contract.log import SourceLog
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.log.storage import BucketStorage, FolderStorage, LogStorage, check_folder, spool
from snowmelt.errors import Fenced, SourceDrift
from snowmelt.model.position import Position
from snowmelt.relay.retention import Relay
from snowmelt.relay.takeover import Waiting, decide_wait
from snowmelt.segments import Segment, owned
from snowmelt.store.contract import Store
from snowmelt.store.generations import Generation, is_newest, take_generation

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_ASK_S: Final = 1.0
"""How often a waiting driver asks whether it is still the newest."""
_PREPARED_LOOK_S: Final = 0.05
_PREPARED_S_MAX: Final = 10.0
"""Even under constant two-phase transactions there are moments without one."""

Read = TypeVar("Read")


def take_over(store: Store, folder: Path, until: contextlib.ExitStack, ended: Callable[[], bool]) -> Generation | None:
    """Take a generation, then the folder of the log until `until` is closed. None: an operator `ended` the wait.

    Every older driver is fenced by the generation, and ends by itself. Until then its capture holds the folder, and it may add a record to
    the chain. The wait for it has no end (`relay.takeover`), because its process may be paused.
    """
    generation = first = take_generation(store, uuid.uuid4().hex)
    folder.mkdir(parents=True, exist_ok=True)
    began, told_ms, asked_at, newest = time.monotonic(), 0, 0.0, True
    while True:
        with contextlib.suppress(Fenced):
            until.enter_context(owned(folder))
            return generation
        if ended():
            return None
        now = time.monotonic()
        if now >= asked_at + _ASK_S:
            asked_at, newest = now, is_newest(store, generation.number)
        waited_ms = int((now - began) * 1000)
        match decide_wait(waited_ms=waited_ms, told_ms=told_ms, newest=newest, took_another=generation is not first):
            case Waiting.LOOK:
                time.sleep(_LOOK_S)
            case Waiting.ANOTHER:
                generation = take_generation(store, uuid.uuid4().hex, since=first.number)
            case Waiting.TELL:
                told_ms = waited_ms
                log.warning(
                    "waiting for an older driver of this pipeline, which has not ended yet: its process holds %s for %d s now; "
                    "if it is paused, continue it or end it",
                    folder / "lock",
                    waited_ms // 1000,
                )
            case Waiting.FENCED:
                raise Fenced("a newer driver runs this pipeline", detail=f"this is generation {generation.number}")


def own_log(
    settings: Settings, state: State, until: contextlib.ExitStack, ended: Callable[[], bool] = lambda: False
) -> tuple[Generation, LogStorage] | None:
    """Become the newest driver, with a folder to capture into until `until` is closed. None: an operator `ended` the wait for the driver
    that holds it.

    A bucket has no lock, so there is no wait. A fenced driver may put one more record at most, and uploads under names of its own.
    """
    if settings.log_folder is not None:
        check_folder(settings.log_folder)
        generation = take_over(state.store, settings.log_folder, until, ended)
        return None if generation is None else (generation, FolderStorage(settings.log_folder))
    folder = until.enter_context(spool(settings.log.spool))
    return take_generation(state.store, uuid.uuid4().hex), BucketStorage(state, folder)


def place_on_another(settings: Settings, relay: Relay, last: Segment | None, identity: str, began: str) -> Position | None:
    """Where another server's log continues after the captured log, as a new era; None: it is the same server. `identity` is that of the
    server that answers, `began` that of the pipeline's first server.

    `last` is the last captured segment, with a record or without. An era without a captured segment is begun again.
    """
    if last is None:
        check_same_server(identity, began)
        return None
    if not settings.log.failover:
        return None
    if identity == last.identity and relay.era <= last.end.era:
        return None
    return settings.source.place_after(last, identity=identity, era=max(relay.era, last.end.era) + 1)


def check_same_server(identity: str, began: str) -> None:
    """Refuse another server before anything was captured: no transaction shows where its log would continue."""
    if identity != began:
        raise SourceDrift(
            "another server answers than the pipeline's first one, before anything was captured",
            detail=f"{identity}, not {began}",
            hint="point the pipeline at the server that it was started with, or begin with a new state",
        )


def with_nothing_prepared(source: SourceLog, read: Callable[[], Read]) -> Read:
    """`read` a place to begin at, at a moment without prepared transactions: their rows would lie before that place. The server is asked
    for them after `read`, so a transaction that is prepared meanwhile is found here or is captured."""
    deadline = time.monotonic() + _PREPARED_S_MAX
    while True:
        found = read()
        waiting = source.prepared_transactions()
        if not waiting:
            return found
        if time.monotonic() > deadline:
            raise SourceDrift(
                "XA transactions are prepared whose rows lie before the start of capture",
                detail=", ".join(waiting[:20]) + (f" and {len(waiting) - 20} more" if len(waiting) > 20 else ""),
                hint="commit them or roll them back (XA COMMIT …, XA ROLLBACK …), then start again",
            )
        time.sleep(_PREPARED_LOOK_S)
