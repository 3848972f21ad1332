"""Who captures the log, and from where: one owner gives it to the next, one server to another.

Laws:
- The folder of the log has one owner, who has it from before he reads the chain until he writes no more. In a bucket each driver has
  names of its own, and the chain's next number is won by one of them.
- Another server goes on only from the place where its log has exactly what was captured, as a new era.
- What was prepared before capture began has rows that nobody captured: nothing begins while there is any.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session
from snowmelt.databases.mysql.failover import find_place
from snowmelt.databases.mysql.gtid import of_words
from snowmelt.databases.mysql.preflight import prepared_transactions
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.log.storage import BucketStorage, FolderStorage, LogStorage, check_folder, spool
from snowmelt.errors import Fenced, SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.relay.retention import Relay
from snowmelt.relay.takeover import Waiting, decide_wait
from snowmelt.segments import Segment, owned
from snowmelt.store.contract import Store
from snowmelt.store.generations import Generation, is_newest, take_generation

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.02
_ASK_S: Final = 1.0
"""How often a driver that waits asks whether it is still the newest."""
_PREPARED_LOOK_S: Final = 0.05
_PREPARED_S_MAX: Final = 10.0
"""Where two-phase transactions come all the time there are moments without one."""

Read = TypeVar("Read")


def take_over(store: Store, folder: Path, until: contextlib.ExitStack, ended: Callable[[], bool]) -> Generation | None:
    """Take a generation, then the folder of the log until `until` is closed. None: an operator `ended` the wait.

    Every older driver is fenced by now and ends by itself; until then its capture holds the folder, and it may add a record to the
    chain. It is waited for as long as it takes (`relay.takeover`): it may be paused.
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
                    "an older driver of this pipeline has not ended yet, and is waited for: its process holds %s since %d s; "
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
    that has it.

    A bucket has no lock. Nobody is waited for there: who is fenced by now may put one more record at most, and what it uploads lies
    beside ours.
    """
    if settings.log_folder is not None:
        check_folder(settings.log_folder)
        generation = take_over(state.store, settings.log_folder, until, ended)
        return None if generation is None else (generation, FolderStorage(settings.log_folder))
    folder = until.enter_context(spool(settings.spool))
    return take_generation(state.store, uuid.uuid4().hex), BucketStorage(state, folder)


def place_on_another(settings: Settings, relay: Relay, last: Segment | None, server: Server, began: str) -> Position | None:
    """Where another server's log goes on from what is captured, as a new era; None: it is the same server. `began` is the identity of the
    one that the pipeline was begun with.

    `last` is what was captured last, with its record or without. An era that was begun and of which nothing was captured is begun anew.
    """
    if last is None:
        check_same_server(server, began)
        return None
    if not settings.failover:
        return None
    if server.identity == last.identity and relay.era <= last.end.era:
        return None
    captured = of_words(last.end.transactions)
    if captured is None:
        raise SourceDrift("another server answers, and what was captured has no GTIDs", detail=server.identity)
    with Session(settings.source.options) as session:
        if session.server.identity != server.identity:
            raise Unavailable("another server answers than a moment ago", detail=session.server.identity)
        return find_place(session, captured, era=max(relay.era, last.end.era) + 1)


def check_same_server(server: Server, began: str) -> None:
    """Where nothing was captured yet no transaction tells where another server's log goes on."""
    if server.identity != began:
        raise SourceDrift(
            "another server answers than the one that the pipeline was begun with, and nothing of that one's log was captured",
            detail=f"{server.identity}, not {began}",
            hint="point the pipeline at the server that it was started with, or begin with a new state",
        )


def with_nothing_prepared(source: MySqlOptions, read: Callable[[], Read]) -> Read:
    """What `read` says of a moment when no XA transaction was prepared: rows of one that is lie before the place where capture begins.
    Asked behind that place is read, so that one which is prepared meanwhile is found here or is captured. Who may not ask hears of it at
    its COMMIT."""
    deadline = time.monotonic() + _PREPARED_S_MAX
    while True:
        found = read()
        with Session(source) as session:
            waiting = prepared_transactions(session) or []
        if not waiting:
            return found
        if time.monotonic() > deadline:
            raise SourceDrift(
                "XA transactions are prepared whose rows lie before the start of capture",
                detail=", ".join(waiting[:20]) + (f" and {len(waiting) - 20} more" if len(waiting) > 20 else ""),
                hint="commit them or roll them back (XA COMMIT …, XA ROLLBACK …), then start again",
            )
        time.sleep(_PREPARED_LOOK_S)
