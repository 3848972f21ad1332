"""Worlds in which two tables feed one lake table. It can't be emptied for one of them, so nothing there is emptied or made anew: a table is
dropped, or set aside, and stays so. Its watermark is the least of both."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from snowmelt.model.table import TableId
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Effect

if TYPE_CHECKING:
    from tests.sim.world import World


class Shared:
    def __init__(self, world: World, chance: Random) -> None:
        self.world = world
        self.chance = chance

    @classmethod
    def some(cls, world: World) -> Shared | None:
        """In some worlds, which it makes fit for that."""
        chance = Random(f"shared {world.seed}")
        if chance.random() >= 0.12:
            return None
        tables = (TableId("db", "a"), TableId("db", "b"))
        world.profile = replace(world.profile, tables=tables, statements=0.0, ask=0.0, exclude=0.0, epoch_bytes=40)
        return cls(world, chance)

    def happen(self) -> None:
        """One of the tables that the lake has whole goes, or can't go on."""
        if self.chance.random() < 0.02 and (newest := self.world.newest_driver()) is not None:
            whole = [table.incarnation.table for table in newest.ledger.tables if table.phase is TablePhase.RELEASED]
            if len(whole) < 2 and self.chance.random() < 0.9:
                return
            if whole and self.chance.random() < 0.5:
                newest.troubles.add(self.chance.choice(whole), "the lake can't take it")
            elif whole:
                self.world.db.state(Effect.DROPS, self.world.time_ms, [self.chance.choice(whole)])
