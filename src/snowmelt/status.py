"""What a pipeline's state says of it, whether it runs or not. Only its store is read: neither the database nor the lake is asked.
Whether its driver is alive is told by the driver's signs (`engine.driver.signs`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from snowmelt.commit.ledger import Ledger
from snowmelt.engine.driver.routes import Mode
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.signs import DriverActivity, LeftOut, Sign, is_alive, last_words, read_sign
from snowmelt.engine.driver.state import State
from snowmelt.engine.log.storage import held_bytes
from snowmelt.errors import InvalidConfig
from snowmelt.planning.tables import Table
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    source: str
    target: str
    mode: str
    phase: str
    chunks: int | None
    """How many of them the lake has, while it is being copied."""
    chunks_known: int | None
    """Of how many, once all are found."""
    snapshot: int | None
    """The lake's, that the last done epoch that touched it made."""
    committed_ms: int | None
    """Whatever the database committed before this moment, by its own clock, is in the lake table; none until all of the table is there.
    It is no bound of `_ts`."""
    aside: str | None = None
    """Why it is set aside; None where it is not."""
    aside_ms: int | None = None
    """Since when: the last transaction that its lake table may have was committed then."""


class Life(StrEnum):
    """What became of the newest driver."""

    RUNS = "runs"
    RETRIES = "retries"
    """It waits to try again after an error that may pass."""
    ENDED = "ended"
    FAILED = "stopped by an error"
    DIED = "died"
    """It ended without a word: killed, or its machine is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    name: str
    life: Life | None
    """None: no driver has left a sign."""
    alive: bool
    sign_s: float | None
    """How long ago the driver gave its last sign of life."""
    host: str
    """Where that driver ran."""
    error: str
    """The last one of a driver, which may be one before this."""
    error_ms: int
    lag_s: float | None
    """How old the newest transaction in the lake is, where a newer one was captured; 0 where the lake has all that a driver which is alive
    has captured; None where that is not known."""
    left_out: tuple[LeftOut, ...]
    """Tables that match, and are not brought to the lake."""
    generation: int
    """Who wrote the newest epoch."""
    epoch: int
    """The last that is done."""
    under_way: bool
    """Another one is decided on and not yet in all lake tables."""
    waiting_bytes: int
    """Of the log: captured, and not in the lake."""
    held_bytes: int
    """Of the log: on disk or in the bucket, with what was captured by a relay without a driver."""
    full: bool
    """As much is held as may be, so that capture waits for the lake."""
    tables: tuple[TableStatus, ...]

    @property
    def stopped_badly(self) -> bool:
        """Whether it does not run, and did not end as asked."""
        return self.life in (Life.FAILED, Life.DIED)


def read_status(settings: Settings) -> Status:
    """As of now. A pipeline that runs goes on meanwhile."""
    state = State(open_store(settings.state))
    sign, now = read_sign(state.store), time.time()
    ledger = state.load()
    if not ledger.epoch:
        raise InvalidConfig("this pipeline has done nothing yet", detail=str(settings.state), hint="start it with `snowmelt run`")
    relay = state.take_over_relay(ledger)
    # What a relay without a driver has captured gets its records from the next driver.
    held, unrecorded = held_bytes(settings.log_folder, relay)
    waiting = max(0, relay.end - ledger.done_upto) + unrecorded
    alive = sign is not None and is_alive(sign, now)
    tables = sorted(ledger.tables, key=lambda table: table.incarnation.table)
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
        full=held >= settings.capture.disk_bytes_max,
        tables=tuple(_table(ledger, table) for table in tables),
    )


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


def _table(ledger: Ledger, table: Table) -> TableStatus:
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
    )
