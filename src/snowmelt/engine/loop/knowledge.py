"""What a driver knows of its pipeline: the ledger, the log that is captured, the shapes of tables. Only the machines change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.tasks.rows import Sourced
from snowmelt.errors import InvariantBroken
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Relay
from snowmelt.sinks.contract import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Of one driver; used by the thread that owns the machines."""

    generation: GenerationNumber
    ledger: Ledger
    relay: Relay
    shapes: Shapes
    began: Position
    """The end of the server's log when the driver started."""

    partition: Callable[[TableId], Partition]
    """How a table's target is divided, by the routes."""

    def sourced(self, name: TableId) -> Sourced:
        """A table of the ledger as tasks see it."""
        table = self.ledger.tables.get(name)
        if table is None:
            raise InvariantBroken("a table is asked for that the ledger lacks", detail=str(name))
        return Sourced(self.shapes.of(table.schema).table, table.target, table.keyed, self.partition(name))

    def has(self, position: Position) -> bool:
        """Whether the lake has the log up to a position."""
        offset = self.relay.offset_of(position)
        return offset is not None and self.ledger.done_upto >= offset
