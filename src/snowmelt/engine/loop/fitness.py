"""Which tables can be brought to their targets, and what becomes of one that can't continue: it is set aside, and the others continue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.databases.contract.tables import TableShape
from snowmelt.engine.driver.routes import Mode, Router
from snowmelt.engine.driver.settings import Settings
from snowmelt.errors import InvalidConfig, SnowmeltError, TableStuck
from snowmelt.model.table import TableId
from snowmelt.planning.asides import Troubles
from snowmelt.sinks.contract import Sink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fitness:
    """Of the tables of a source, by the settings alone."""

    settings: Settings
    router: Router

    def why_not(self, shape: TableShape) -> str:
        """Why a table can't be brought to any target; empty where it can."""
        try:
            target = self.router.of(shape.id)
        except InvalidConfig as error:
            return str(error)
        source = self.settings.source
        if why := source.why_foreign(shape) or self.router.undivided(shape, source):
            return why
        remedy = "give it one" if self.settings.sink.fluss else f"give it one, or a route with mode: {Mode.CHANGELOG} and start again"
        return "" if shape.key or not target.keyed else f"it has no key by which its rows could be told apart; {remedy}"

    def unfit(self, shapes: Sequence[TableShape]) -> dict[TableId, str]:
        """Of some tables those that can't be captured, or brought to any target, and why."""
        found = {shape.id: why for shape in shapes if (why := self.why_not(shape))}
        return dict(self.settings.source.unfit(shapes)) | found


class Asides:
    """Tables that can't continue, of one driver. The next epoch says so."""

    def __init__(self, ledger: Ledger, lake: Sink) -> None:
        self._ledger = ledger
        self._lake = lake
        self.troubles = Troubles(ledger.tables)

    def add(self, name: TableId, error: SnowmeltError) -> None:
        """One table can't continue."""
        if self.troubles.add(name, str(error)):
            log.warning("a table is set aside", extra={"table": str(name), "why": str(error)})

    def stuck(self, error: TableStuck) -> bool:
        """Set aside the table that an error names. Returns whether that is so: not for a table that is set aside or gone already. Raises
        the error if the lake has none of our tables: then the lake as a whole is missing, and no single table is to blame."""
        if not any(self._lake.exists(table.target) for table in self._ledger.tables):
            raise error
        name = TableId(*error.table)
        self.add(name, error)
        return name in self.troubles.open
