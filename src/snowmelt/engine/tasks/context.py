"""Where a task works, and what it finds there before it does anything.

Laws:
- A task knows its plan and nothing else; it never waits for the coordinator. Each run has a nonce of its own, which is in the names
  of its files and in its answer.
- Before it does anything a task looks whether it has the driver's packages and sees the driver's store and warehouse.
- An error of ours is an answer, too: the driver decides what follows from it, not Spark's retries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.engine.tasks.workers import Packages, check_packages
from snowmelt.fluss.target import FlussTarget
from snowmelt.relay.limits import Limits
from snowmelt.sinks.contract import Sink
from snowmelt.sinks.registry import open_sink
from snowmelt.sinks.warehouse import Warehouse, check_marked
from snowmelt.store.generations import check_shared
from snowmelt.store.objects import BucketAddress, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Where a task works: the same for every task of a driver. Credentials are references."""

    generation: int
    nonce: str
    state: Path | BucketAddress
    warehouse: str | Warehouse
    user: str
    source: MySql
    server: Server
    log: LogFile
    """Some file of the server's log; others differ by their number."""
    limits: Limits = field(default_factory=Limits)
    fluss: FlussTarget | None = None
    """Instead of a warehouse."""
    packages: Packages = ()
    """Those of the driver."""
    mark: str = ""
    """Of the warehouse, where that is a folder: a bucket is the same from everywhere."""

    def check(self) -> None:
        check_packages(self.packages)
        if self.mark:
            check_marked(self.warehouse, self.mark)
        check_shared(open_store(self.state), self.generation, self.nonce)

    def lake(self) -> Sink:
        return open_sink(self.warehouse, self.fluss, user=self.user, state=self.state)
