"""A relay without a driver: it captures while no driver does, so that the database's log need not wait for the lake.

    States. STANDS_BY: the folder of the log is a driver's. CAPTURES, PAUSED: it is ours.

    Forbidden orders. Nothing is written but segments, in the folder that is owned: no generation is taken, so no driver is fenced, and no
    record is put, so the chain is a driver's alone. The next driver gives what is captured here its records, as it does with what
    a crash left without. A driver announces itself by its generation and then waits for the folder: so the newest generation
    is read before the folder is taken, and whoever finds a newer one afterwards gives the folder back.

    Memory. That of a capture.

Who has the folder goes on from the last sealed segment in it, so there is neither gap nor overlap whoever follows whom, also after a
kill -9: the system lets go of a dead process's folder, and a torn tail is captured again. What was sealed the database may purge.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.log.capture import Capture
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import Owner, State
from snowmelt.engine.log.recorder import Gauge
from snowmelt.engine.log.storage import check_folder, segment_number
from snowmelt.errors import Fenced, InvalidConfig, Unavailable
from snowmelt.model.position import Position
from snowmelt.relay.flow import Need
from snowmelt.segments import Segment, list_segments, owned, sealed_bytes
from snowmelt.store.generations import newest_generation
from snowmelt.store.objects import open_store

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""How long a driver waits for us at most, but for what is being sealed."""
PAUSE_S: Final = 10.0
SEAL_MS: Final = 10_000
"""Nobody follows, so few large segments are better than many small ones. What is not sealed yet is captured again after a kill -9, for
which the server needs to have it still."""


class RelayActivity(Enum):
    STANDS_BY = "stands by"
    CAPTURES = "captures"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class RelayStatus:
    state: RelayActivity
    position: Position | None
    """Up to where the log is durable here."""
    held_bytes: int


def keep_capturing(settings: Settings, asked: threading.Event, tell: Callable[[RelayStatus], None]) -> None:
    """Capture whenever no driver does, until `asked` is set. A database that is away is waited for."""
    folder_of_log = settings.log_folder
    if folder_of_log is None:
        raise InvalidConfig(
            "a relay without a driver needs the pipeline's state in a folder",
            detail=str(settings.state),
            hint="with its state in a bucket a pipeline captures while `snowmelt run` runs",
        )
    check_folder(folder_of_log)
    state = State(open_store(settings.state))
    while not asked.is_set():
        seen = newest_generation(state.store, 1)
        if not seen:
            raise _not_begun(settings)
        folder_of_log.mkdir(exist_ok=True)
        pause_s = LOOK_S
        with contextlib.ExitStack() as folder:
            try:
                folder.enter_context(owned(folder_of_log))
            except Fenced:
                tell(RelayStatus(RelayActivity.STANDS_BY, None, sum(sealed_bytes(folder_of_log).values())))
                asked.wait(pause_s)
                continue
            try:
                _stay(settings, folder_of_log, state, seen, asked, tell)
            except Unavailable as error:
                pause_s = PAUSE_S
                log.warning("the log can't be captured now, which is tried again in %.0f s: %s", pause_s, error)
        # The folder is free meanwhile for who waits for it.
        asked.wait(pause_s)


def _stay(settings: Settings, folder: Path, state: State, seen: int, asked: threading.Event, tell: Callable[[RelayStatus], None]) -> None:
    """Capture in the folder, which is ours, until a driver newer than `seen` wants it."""
    segments = list_segments(folder)
    start, identity, gauge = _take_stock(settings, segments, state)
    capture = Capture(
        settings.source.options,
        folder,
        start=start,
        server_id=settings.capture_id(),
        limits=replace(settings.capture, seal_ms=SEAL_MS),
        identity=identity,
        failover=settings.failover,
        sealed=gauge.add,
        flow=gauge.flow,
    )
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="snowmelt-capture") as pool:
        ended = pool.submit(capture.run_owned, stop, segments[-1] if segments else None)
        try:
            while not (ended.done() or asked.is_set()) and newest_generation(state.store, seen) == seen:
                tell(RelayStatus(RelayActivity.PAUSED if gauge.paused else RelayActivity.CAPTURES, capture.end, gauge.held_bytes))
                wait([ended], LOOK_S)
        finally:
            stop.set()
        ended.result()


def _take_stock(settings: Settings, segments: list[Segment], state: State) -> tuple[Position, str, Gauge]:
    """Where the chain ends, which counts while the folder is empty, on which server, and what the folder holds."""
    ledger = state.load()
    chain = state.take_over_relay(ledger)
    if chain.newest is None:
        raise _not_begun(settings)
    with Session(settings.source.options) as session:
        began = state.bind(Owner(settings.name, session.server.identity, settings.place), moves=settings.failover).server
    gauge = Gauge(settings.capture)
    for segment in segments:
        gauge.add(segment)
    if segments and segments[-1].end.era < chain.era:
        raise Unavailable("another server's log begins here, which only a run can begin with", detail=str(chain.newest.ends))
    recorded = not segments or segments[-1].number <= segment_number(chain.newest)
    # Where the lake has all that is here, nothing but a transaction that is not over can fill the folder.
    gauge.need = Need(gauge.sealed_bytes if recorded and ledger.done_upto >= chain.end else None)
    return chain.newest.ends, segments[-1].identity if segments else began, gauge


def _not_begun(settings: Settings) -> InvalidConfig:
    return InvalidConfig(
        "this pipeline was never started",
        detail=str(settings.state),
        hint="start it once with `snowmelt run`: from where its log is needed is decided there",
    )
