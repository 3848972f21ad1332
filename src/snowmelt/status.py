"""What a pipeline's state says about it, whether it runs or not. Only its store is read, not the database or the lake.
The driver's signs tell whether it is alive (`engine.driver.signs`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listener_state import read_state
from snowmelt.engine.driver.routes import Mode
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.signs import DriverActivity, LeftOut, MaintainedTable, Sign, is_alive, last_words, read_sign
from snowmelt.engine.driver.state import State
from snowmelt.engine.log.storage import held_bytes
from snowmelt.errors import InvalidConfig
from snowmelt.model.numbers import EpochNumber, GenerationNumber
from snowmelt.planning.tables import Table
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    source: str
    target: str
    mode: str
    phase: str
    chunks: int | None
    """How many chunks the lake has, while the table is being copied."""
    chunks_known: int | None
    """The number of all chunks, once all are found."""
    snapshot: int | None
    """The lake's snapshot, from the last done epoch that touched the table."""
    committed_ms: int | None
    """Everything that the database committed before this moment, by its own clock, is in the lake table. None until all of the table is
    there. It is no bound of `_ts`."""
    aside: str | None = None
    """Why it is set aside; None if it is not."""
    aside_ms: int | None = None
    """When the last transaction was committed that its lake table may have."""
    files: int | None = None
    """Of the lake table, as the last driver saw them; with the next two None if it has not looked."""
    size_bytes: int | None = None
    runs: int | None = None
    """Sorted runs of the fullest bucket."""
    compacted_ms: int | None = None
    """When that driver last compacted it; None: not yet."""
    expired_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatus:
    """A webhook or a command."""

    name: str
    epoch: EpochNumber
    """The newest epoch whose notice it is known to have taken."""
    newest: EpochNumber
    """The newest that has a notice."""
    why: str
    """Why its last call failed; empty if it did not."""


class Life(StrEnum):
    """The state of the newest driver."""

    RUNS = "runs"
    RETRIES = "retries"
    """It waits to retry after an error that may pass."""
    ENDED = "ended"
    FAILED = "stopped by an error"
    DIED = "died"
    """It ended without a report: killed, or its machine is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    name: str
    life: Life | None
    """None: no driver has left a sign."""
    alive: bool
    sign_s: float | None
    """Seconds since the driver's last sign of life."""
    host: str
    """The host of that driver."""
    error: str
    """The last error of a driver, perhaps of an earlier one."""
    error_ms: int
    lag_s: float | None
    """The age of the newest transaction in the lake, if a newer one was captured; 0 if the lake has all that a living driver has captured;
    None if unknown."""
    left_out: tuple[LeftOut, ...]
    """Tables that match and are not copied to the lake."""
    generation: GenerationNumber
    """The generation that wrote the newest epoch."""
    epoch: EpochNumber
    """The last one that is done."""
    under_way: bool
    """Another epoch is decided, and not yet in all lake tables."""
    waiting_bytes: int
    """Log that is captured and not in the lake."""
    held_bytes: int
    """Log on disk or in the bucket, including what a relay without a driver captured."""
    full: bool
    """The limit is reached, so capture waits for the lake."""
    tables: tuple[TableStatus, ...]
    listeners: tuple[ListenerStatus, ...] = ()

    @property
    def stopped_badly(self) -> bool:
        """Whether it does not run, and did not end as asked."""
        return self.life in (Life.FAILED, Life.DIED)


def read_status(settings: Settings) -> Status:
    """As of now. A running pipeline continues meanwhile."""
    state = State(open_store(settings.state))
    sign, now = read_sign(state.store), time.time()
    ledger = state.load()
    if not ledger.epoch:
        raise InvalidConfig("this pipeline has done nothing yet", detail=str(settings.state), hint="start it with `snowmelt run`")
    relay = state.take_over_relay(ledger)
    # The next driver writes the records of what a relay without a driver has captured.
    held, unrecorded = held_bytes(settings.log_folder, relay)
    waiting = max(0, relay.end - ledger.done_upto) + unrecorded
    alive = sign is not None and is_alive(sign, now)
    tables = sorted(ledger.tables, key=lambda table: table.incarnation.table)
    maintained = {one.target: one for one in (() if sign is None else sign.maintained)}
    return Status(
        name=settings.name,
        life=None if sign is None else _life(sign, now),
        alive=alive,
        sign_s=None if sign is None else round(max(0.0, now - sign.at_ms / 1000), 1),
        host="" if sign is None else sign.host,
        error="" if sign is None else sign.error,
        error_ms=0 if sign is None else sign.error_ms,
        lag_s=_lag_s(relay.time_at(ledger.done_upto), now) if waiting else 0.0 if alive else None,
        left_out=() if sign is None else sign.left_out,
        generation=ledger.generation,
        epoch=ledger.done_epoch,
        under_way=ledger.open is not None,
        waiting_bytes=waiting,
        held_bytes=held,
        full=held >= settings.log.capture.disk_bytes_max,
        tables=tuple(_table(ledger, table, maintained.get(table.target)) for table in tables),
        listeners=tuple(_listeners(ledger, sign)),
    )


def _listeners(ledger: Ledger, sign: Sign | None) -> Iterator[ListenerStatus]:
    """The state is as of the last epoch; the sign of a driver that calls listeners may know more."""
    notices = read_state(ledger.listeners)[1]
    signs = {} if sign is None else {one.name: one for one in sign.listeners}
    for name, told in sorted(notices.told.items()):
        epoch, why = told.epoch, told.why
        if name in signs:
            epoch, why = max(epoch, signs[name].epoch), signs[name].why
        yield ListenerStatus(name=name, epoch=epoch, newest=notices.epoch, why=why)


def _life(sign: Sign, now: float) -> Life:
    doing = last_words(sign, now)
    return Life.DIED if doing is None else _LIVES[doing]


_LIVES: Final = {
    DriverActivity.RUNS: Life.RUNS,
    DriverActivity.RETRIES: Life.RETRIES,
    DriverActivity.ENDED: Life.ENDED,
    DriverActivity.FAILED: Life.FAILED,
}


def _lag_s(time_ms: int | None, now: float) -> float | None:
    return None if time_ms is None else round(max(0.0, now - time_ms / 1000), 1)


def _table(ledger: Ledger, table: Table, care: MaintainedTable | None) -> TableStatus:
    chunks, chunks_known = (None, None) if table.copy is None else table.copy.progress
    return TableStatus(
        source=str(table.incarnation.table),
        target=table.target,
        mode=Mode.of(keyed=table.keyed).value,
        phase=table.phase.value,
        chunks=chunks,
        chunks_known=chunks_known,
        snapshot=ledger.snapshots.get(table.target),
        committed_ms=ledger.watermarks.get(table.target),
        aside=None if table.aside is None else table.aside.why,
        aside_ms=None if table.aside is None else table.aside.time_ms,
        files=None if care is None else care.files,
        size_bytes=None if care is None else care.size_bytes,
        runs=None if care is None else care.runs,
        compacted_ms=None if care is None else care.compacted_ms,
        expired_ms=None if care is None else care.expired_ms,
    )
