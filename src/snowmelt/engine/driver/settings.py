"""What a pipeline is to do, as a program says it; `config` reads it from a file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snowmelt.commit.listeners import Period
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.capture import CaptureLimits
from snowmelt.engine.driver.routes import Route
from snowmelt.fluss.target import FlussTarget
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import PREPARED_BYTES_MAX
from snowmelt.sinks.warehouse import Warehouse
from snowmelt.store.objects import BucketAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline is to do."""

    name: str
    state: Path | BucketAddress
    warehouse: str | Warehouse
    source: MySql
    tables: Sequence[str]
    exclude: Sequence[str] = ()
    routes: Sequence[Route] = ()
    target: str = "ods.{database}_{table}"
    """Of tables that no route matches."""
    interval_s: float = 5.0
    epoch_bytes: int = 256 << 20
    prepared_bytes_max: int = PREPARED_BYTES_MAX
    """How much of the log XA transactions that are prepared may be together."""
    rows_per_chunk: int = 500_000
    """At most; fewer where rows are long."""
    chunks_at_once: int | None = None
    """Each is a connection to the database; None: as many as Spark runs tasks at once, but for one, and at most 8."""
    log_tasks: int | None = None
    """How many tasks an epoch's log is shared by at most; None: as many as Spark runs at once, but for one."""
    buckets: int = 2
    summary_every: int = 20
    sweep_every: int = 1_000
    """At least so many epochs lie between two looks for staged files that no report names."""
    failover: bool = False
    """Whether it goes on with another server that by its GTIDs has all that was captured."""
    limits: Limits = field(default_factory=Limits)
    capture: CaptureLimits = field(default_factory=CaptureLimits)
    fluss: FlussTarget | None = None
    """Instead of a warehouse: rows go to tables of Fluss."""

    tags: Period | None = None
    """Of each lake table a snapshot of each such period gets a name."""
    adopt_state: bool = False
    """Whether a state that was moved here is this pipeline's from now on."""
    spool: Path | None = None
    """Where a log that is kept in a bucket lies until it is there; None: where temporary files are."""

    @property
    def place(self) -> str:
        """Where the state is, for its owner record: a folder's path without symbolic links, or a bucket's address."""
        return str(self.state.resolve()) if isinstance(self.state, Path) else self.state.url.rstrip("/")

    @property
    def log_folder(self) -> Path | None:
        """Of the segments; None where they are kept in a bucket."""
        return self.state / "log" if isinstance(self.state, Path) else None

    def capture_id(self) -> int:
        """Stable for a pipeline, so that whoever takes over ends the connection of whoever was there."""
        named = uuid.uuid5(uuid.NAMESPACE_URL, f"snowmelt:{self.name}").bytes[:4]
        return self.source.server_id or (int.from_bytes(named, "big") >> 1) | 1
