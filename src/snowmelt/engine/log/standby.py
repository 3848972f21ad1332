"""A relay without a driver: it captures while no driver does, so that the database's log need not wait for the lake.

    States. STANDS_BY: a driver owns the folder of the log. CAPTURES, PAUSED: this relay owns it.

    Laws. The relay writes only segments, in the folder that it owns. It takes no generation, so it fences no driver. It puts no
    record, so the chain belongs to drivers alone. The next driver puts the records of the relay's segments, as it does for segments that a
    crash left without. A driver takes its generation first and then waits for the folder. So the relay reads the newest generation before
    it takes the folder, and gives the folder back when it finds a newer one.

    Memory. That of a capture.

The owner of the folder resumes after its last sealed segment, so a takeover leaves no gap and no overlap. That holds after a kill -9, too:
the system releases a dead process's folder, and a torn tail is captured again. The database may purge the log of sealed segments.
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

from snowmelt import budgets
from snowmelt.databases.contract.capture import CapturePlan
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import Owner, State
from snowmelt.engine.log.recorder import Gauge
from snowmelt.engine.log.storage import check_folder, segment_number
from snowmelt.errors import Fenced, InvalidConfig, Unavailable
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.position import Position
from snowmelt.relay.flow import Need
from snowmelt.segments import Segment, list_segments, owned, sealed_bytes
from snowmelt.store.generations import newest_generation
from snowmelt.store.objects import open_store

log = logging.getLogger(__name__)

LOOK_S: Final = 0.25
"""How often the relay looks for a newer driver. A driver waits this long for the folder at most, and for the last segment to be sealed."""
SEAL_MS: Final = 10_000
"""No driver reads along, so few large segments are better than many small ones. After a kill -9 the log that was not sealed is captured
again; the server must still have it."""


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
    """Capture whenever no driver does, until `asked` is set: to end. If the database is away, wait for it."""
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
        seen = newest_generation(state.store, GenerationNumber(1))
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
                pause_s = budgets.STANDBY.pause_s(1)
                log.warning("the log can't be captured now; next try in %.0f s: %s", pause_s, error)
        # Meanwhile a waiting driver can take the folder.
        asked.wait(pause_s)


def _stay(
    settings: Settings, folder: Path, state: State, seen: GenerationNumber, asked: threading.Event, tell: Callable[[RelayStatus], None]
) -> None:
    """Capture in the folder, which the relay owns, until a driver newer than `seen` wants it."""
    segments = list_segments(folder)
    start, identity, gauge = _take_stock(settings, segments, state)
    plan = CapturePlan(
        folder=folder,
        name=settings.name,
        start=start,
        limits=replace(settings.log.capture, seal_ms=SEAL_MS),
        identity=identity,
        failover=settings.log.failover,
        sealed=gauge.add,
        flow=gauge.flow,
    )
    capture = settings.source.capture(plan)
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
    """The place to begin at while the folder is empty, the server, and how much the folder holds."""
    ledger = state.load()
    chain = state.take_over_relay(ledger)
    if chain.newest is None:
        raise _not_begun(settings)
    owner = Owner(settings.name, settings.source.connect(), settings.place)
    began = state.bind(owner, moves=settings.log.failover).server
    gauge = Gauge(settings.log.capture)
    for segment in segments:
        gauge.add(segment)
    if segments and segments[-1].end.era < chain.era:
        raise Unavailable("another server's log begins here, and only a run can begin an era", detail=str(chain.newest.ends))
    recorded = not segments or segments[-1].number <= segment_number(chain.newest)
    # The lake has the whole folder: then only an open transaction can fill it.
    gauge.need = Need(gauge.sealed_bytes if recorded and ledger.done_upto >= chain.end else None)
    return chain.newest.ends, segments[-1].identity if segments else began, gauge


def _not_begun(settings: Settings) -> InvalidConfig:
    return InvalidConfig(
        "this pipeline was never started",
        detail=str(settings.state),
        hint="start it once with `snowmelt run`, which decides from where its log is needed",
    )
