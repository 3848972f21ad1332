"""What a pipeline's state says of it, whether it runs or not. Only its store is read: neither the database nor the lake is asked."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.engine.keeping import held_bytes
from snowmelt.engine.routes import Mode
from snowmelt.engine.settings import Settings
from snowmelt.engine.state import State
from snowmelt.errors import InvalidConfig
from snowmelt.source.tables import Table
from snowmelt.store.objects import open_store


@dataclass(frozen=True, slots=True)
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
    watermark_ms: int | None
    """When the last transaction that the lake has was committed; none until all of the table is there."""


@dataclass(frozen=True, slots=True)
class Status:
    name: str
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


def read_status(settings: Settings) -> Status:
    """As of now. A pipeline that runs goes on meanwhile."""
    state = State(open_store(settings.state))
    ledger = state.load()
    if not ledger.epoch:
        raise InvalidConfig("this pipeline has done nothing yet", detail=str(settings.state), hint="start it with `snowmelt run`")
    relay = state.take_over_relay(ledger)
    # What a relay without a driver has captured gets its records from the next driver.
    held, unrecorded = held_bytes(settings.log_folder, relay)
    tables = sorted(ledger.tables, key=lambda table: table.incarnation.table)
    return Status(
        name=settings.name,
        generation=ledger.generation,
        epoch=ledger.done_epoch,
        under_way=ledger.open is not None,
        waiting_bytes=max(0, relay.end - ledger.done_upto) + unrecorded,
        held_bytes=held,
        full=held >= settings.capture.disk_bytes_max,
        tables=tuple(_table(ledger, table) for table in tables),
    )


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
        watermark_ms=ledger.watermarks.get(table.target),
    )
