"""Where a task works, and what it checks first.

Laws:
- A task knows its plan and nothing else; it never waits for the coordinator. Each run has a nonce of its own, which is in the names
  of its files and in its answer.
- First of all a task checks that it has the driver's packages, and that it sees the driver's store and warehouse.
- An error of ours is an answer, too: the driver decides about a retry, not Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from snowmelt.databases.contract import Database
from snowmelt.engine.tasks.workers import Packages, check_packages
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.numbers import GenerationNumber
from snowmelt.relay.limits import Limits
from snowmelt.sinks.contract import Sink
from snowmelt.sinks.maintenance import Maintenance
from snowmelt.sinks.registry import open_maintenance, open_sink
from snowmelt.sinks.warehouse import Warehouse, check_marked
from snowmelt.store.generations import check_shared
from snowmelt.store.objects import BucketAddress, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """Where a task works: the same for every task of a driver. Credentials are references."""

    generation: GenerationNumber
    nonce: str
    state: Path | BucketAddress
    warehouse: str | Warehouse
    user: str
    source: Database
    identity: str
    """Of the server."""
    log: str
    """The name of some file of the server's log (`SourceLog.file_name`)."""
    limits: Limits = field(default_factory=Limits)
    fluss: FlussTarget | None = None
    """If set, rows go to Fluss, and not to a warehouse."""
    packages: Packages = ()
    """Those of the driver."""
    mark: str = ""
    """The mark in the warehouse, if that is a folder. A bucket is the same from every machine, so it needs none."""

    def check(self) -> None:
        check_packages(self.packages)
        if self.mark:
            check_marked(self.warehouse, self.mark)
        check_shared(open_store(self.state), self.generation, self.nonce)

    def lake(self) -> Sink:
        return open_sink(self.warehouse, self.fluss, user=self.user, state=self.state)

    def maintenance(self) -> Maintenance:
        return open_maintenance(self.warehouse)
