"""The settings of a pipeline, as a program gives them; `config` reads them from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snowmelt.commit.listeners import Period
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.engine.driver.routes import Route
from snowmelt.engine.notices.calls import Listener
from snowmelt.fluss.target import FlussTarget
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import PREPARED_BYTES_MAX
from snowmelt.sinks.warehouse import Warehouse
from snowmelt.store.objects import BucketAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Where rows go."""

    warehouse: str | Warehouse = ""
    fluss: FlussTarget | None = None
    """If set, rows go to tables of Fluss, and not to the warehouse."""
    buckets: int = 2
    """Of each lake table that is created."""
    tags: Period | None = None
    """One snapshot of each lake table gets a tag in each such period."""
    done_delay_ms: int | None = None
    """How long after the end of its day or month a partition is marked as done; None: no partition is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceSettings:
    """How much is done at once, and how often."""

    interval_s: float = 5.0
    epoch_bytes: int = 256 << 20
    rows_per_chunk: int = 500_000
    """At most; fewer if rows are long."""
    chunks_at_once: int | None = None
    """Each chunk needs a connection to the database. None: one less than the tasks that Spark runs at once, from 2 to
    8."""
    log_tasks: int | None = None
    """Into how many tasks an epoch's log is divided at most. None: one less than the tasks that Spark runs at once, at least 2."""
    summary_every: int = 20
    """Epochs between two summaries."""
    sweep_every: int = 1_000
    """The least number of epochs between two searches for staged files that no report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """How the log is captured, kept and read again."""

    capture: CaptureLimits = field(default_factory=CaptureLimits)
    limits: Limits = field(default_factory=Limits)
    """Of a task that reads the log."""
    prepared_bytes_max: int = PREPARED_BYTES_MAX
    """The size of the log of all transactions that are prepared at one place, together."""
    failover: bool = False
    """Whether capture continues on another server, if that has all captured transactions by their GTIDs."""
    spool: Path | None = None
    """The folder for segments until they are uploaded, if the state is in a bucket. None: the folder of temporary files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """How lake tables are kept small."""

    rules: MaintenanceRules = field(default_factory=MaintenanceRules)
    """Of tables whose route has none of its own."""
    slots: int | None = None
    """How many of Spark's tasks it may have at once; None: a quarter of what Spark runs at once, and at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline is to do."""

    name: str
    state: Path | BucketAddress
    adopt_state: bool = False
    """Whether to take over a state that was moved or copied here."""
    source: Database
    tables: Sequence[str]
    exclude: Sequence[str] = ()
    routes: Sequence[Route] = ()
    target: str = "ods.{database}_{table}"
    """The target of tables that no route matches."""
    sink: SinkSettings
    listeners: Sequence[Listener] = ()
    """They are told of epochs that the lake has. Each has a name of its own."""
    pace: PaceSettings = field(default_factory=PaceSettings)
    log: LogSettings = field(default_factory=LogSettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)

    @property
    def place(self) -> str:
        """Where the state is, for its owner record: a folder's path without symbolic links, or a bucket's address."""
        return str(self.state.resolve()) if isinstance(self.state, Path) else self.state.url.rstrip("/")

    @property
    def log_folder(self) -> Path | None:
        """Of the segments; None where they are kept in a bucket."""
        return self.state / "log" if isinstance(self.state, Path) else None
