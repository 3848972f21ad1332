"""What is let go of once an epoch is done: log, answers of reads, staged files, records, shapes."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.commit.cleaning import CleaningView
from snowmelt.commit.coordinator import Coordinator
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.discovery import Discovery
from snowmelt.engine.driver.retries import Retries
from snowmelt.engine.driver.splitting import Splitter
from snowmelt.engine.log.recorder import LogRecorder
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.log_lane import LogLane
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.engine.loop.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Those that hold something of tables in this process alone."""

    splitter: Splitter
    retries: Retries
    discovery: Discovery
    proposals: Proposals


class LettingGo:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        known: Knowledge,
        machine: Coordinator,
        keeper: LogRecorder,
        chunks: Chunks,
        lane: LogLane,
        cleaner: Cleaner,
        holders: Holders,
    ) -> None:
        self._resources = resources
        self._known = known
        self._machine = machine
        self._keeper = keeper
        self._chunks = chunks
        self._lane = lane
        self._cleaner = cleaner
        self._holders = holders

    def after_done(self) -> None:
        """Nothing asks any more for what the done epoch covers."""
        ledger = self._known.ledger
        self.of_log()
        self._chunks.let_go()
        self._holders.splitter.let_go(ledger.tables)
        self._holders.retries.let_go(ledger.tables.get)
        self._holders.discovery.let_go()
        targets = {table.target for table in ledger.tables}
        self._resources.lake.let_go(targets)
        self._cleaner.clean(self.standing(), sorted(targets))
        if ledger.epoch % self._resources.settings.summary_every == 0:
            self.of_records()
            self._resources.clock.compare_beside()
            self._resources.state.sum_up(ledger)

    def of_log(self) -> None:
        ledger, relay = self._known.ledger, self._known.relay
        needed = self._lane.needs
        if (visible := ledger.tables.lowest_visible()) is not None:
            needed.append(visible)
        relay.raise_floor(relay.decide_floor(ledger.done_upto, min(needed, default=None)))
        self._keeper.let_go(relay.deletable(ledger.segment))

    def of_records(self) -> None:
        """Records and shapes that nothing needs any more."""
        ledger, relay = self._known.ledger, self._known.relay
        self._keeper.sweep(ledger.done_segment)
        statements = relay.statements(ledger.upto, relay.end)
        needed = {table.schema for table in ledger.tables} | {statement.schema for statement in statements}
        self._known.shapes.forget(needed | self._holders.proposals.let_go(), ledger.generation)

    def standing(self) -> CleaningView:
        """What decides about staged files, as of now."""
        ledger, chunks = self._known.ledger, self._chunks
        mine = (self._known.generation, ledger.epoch, ledger.generation, chunks.newest_job, chunks.under_way)
        return CleaningView(*mine, self._machine.named)
