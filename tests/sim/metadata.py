"""What a driver may hold of tables in memory, and when: an oracle that looks at its ledger after each intent and each done record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.commit.coordinator import Coordinator, Stage
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent
from snowmelt.driving.steps import INTENTS, SUMMARIES
from snowmelt.planning.facts import OUTSIDE, Incarnation
from snowmelt.planning.tables import TablePhase
from tests.sim.lake import Violation

if TYPE_CHECKING:
    from tests.sim.world import World


class Metadata:
    """Of one driver."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.time_to_sum_up = False
        self._copied: set[Incarnation] = set()
        """Tables that had chunks when the last epoch was done."""

    def check_learnt(self, ledger: Ledger, intent: Intent, generation: int) -> None:
        """An intent releases nothing: its epoch may still be read again. And no driver follows a newer one."""
        if intent.generation > generation:
            raise Violation(f"driver {generation} follows an intent of driver {intent.generation}")
        self.check_releasable(ledger)
        released = {table.incarnation for table in ledger.tables if table.phase is TablePhase.RELEASED}
        if early := self._copied & released:
            raise Violation(f"chunks of {sorted(map(str, early))} are released before epoch {ledger.epoch} is done")

    def check_done(self, ledger: Ledger) -> None:
        """A done epoch releases all that nothing can ask for, whatever other tables are doing."""
        self.check_releasable(ledger)
        self.check_kept(ledger)
        self.check_summed_up()
        self._copied = {table.incarnation for table in ledger.tables if table.copy is not None}
        for table in ledger.tables:
            if table.phase in (TablePhase.STREAMING, TablePhase.GONE):
                raise Violation(f"{table.incarnation} is {table.phase.value} after epoch {ledger.epoch} is done")
            if table.copy is None:
                continue
            if table.phase is TablePhase.RELEASED:
                raise Violation(f"{table.incarnation} is released and has chunks")
            bounds, needed = table.copy.bounds, table.copy.adopted.first_missing(OUTSIDE) - 1
            needless = min(needed, bounds.last + 1) - bounds.first
            if needless > 0 and needless * 2 >= len(bounds.ends):
                raise Violation(f"{table.incarnation} has bounds from {bounds.first} on and needs them from {needed} on")

    def check_releasable(self, ledger: Ledger) -> None:
        """What may be released is of a table that is gone, or whose reads a done epoch has passed, all of them."""
        if ledger.epoch != max(self.world.intents):
            # The oracle knows more than this driver.
            return
        over = {fact.incarnation for fact in ledger.tables.releasable()}
        over |= {table.incarnation for table in ledger.tables if table.phase is TablePhase.RELEASED}
        for incarnation in over:
            truth = self.world.truths[incarnation.table]
            if not truth.gone and (truth.adopted_in > ledger.done_epoch or truth.high > ledger.done_upto):
                raise Violation(
                    f"{incarnation} may be released by epoch {ledger.done_epoch} up to {ledger.done_upto}: "
                    f"a read of it was adopted by {truth.adopted_in} and shows up to {truth.high}"
                )

    def check_kept(self, ledger: Ledger) -> None:
        """What is kept is what the records say, and nothing of lake tables without a source."""
        unfed = ledger.snapshots.keys() - {table.target for table in ledger.tables}
        if unfed:
            raise Violation(f"the snapshots of {sorted(unfed)} are kept, which nothing feeds")
        for table in ledger.tables:
            if (table.aside is not None) is not (table.phase is TablePhase.SET_ASIDE):
                raise Violation(f"{table.incarnation} is {table.phase.value}, and why it is set aside: {table.aside}")
        if ledger.epoch == max(self.world.intents):
            for table in ledger.tables:
                if table.copy is not None and table.since != self.world.truths[table.incarnation.table].begun:
                    raise Violation(f"{table.incarnation} began at {self.world.truths[table.incarnation.table].begun}, not {table.since}")

    def check_summed_up(self) -> None:
        """Where it was time for it, there is a summary, and all that the oldest one holds was trimmed."""
        if not self.time_to_sum_up:
            return
        records = self.world.store.records
        summaries = [number for kind, number in records if kind == SUMMARIES.name]
        if not summaries:
            raise Violation("no summary was written although it was time")
        if max(summaries) > 4:
            oldest = records[SUMMARIES.name, min(summaries)].epoch
            over = [number for kind, number in records if kind == INTENTS.name and number < oldest]
            if len(over) > oldest // 2:
                raise Violation(f"intents {over} are kept although summary {min(summaries)} ends with {oldest}")


def check_plans(machine: Coordinator) -> None:
    """What the next epoch is planned from is won, has no newer driver after it, and leaves the lake as the tasks see it."""
    intent = machine.ledger.open
    if machine.stage not in (Stage.FREE, Stage.COMMITTING, Stage.LISTENING, Stage.CLOSING):
        raise Violation(f"the next epoch is planned while the commit is {machine.stage.value}")
    if intent is not None and any(entry.empties or entry.new_schema is not None for entry in intent.entries):
        raise Violation(f"the next epoch is planned before {intent.epoch} has emptied or reshaped its tables")
