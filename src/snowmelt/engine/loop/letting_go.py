"""Does what `driving.letting_go` asks for: log, answers of reads, staged files, records, shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snowmelt.commit.cleaning import CleaningView
from snowmelt.driving.letting_go import AskUnderWay, Discard, Forget, IsTimeToSumUp, SweepFiles, let_go_of_log, of_table, stand
from snowmelt.driving.steps import Machines, Request, UnderWay, perform
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
from snowmelt.engine.maintenance.upkeep import Upkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """The parts of a driver that remember something about tables in this process alone."""

    splitter: Splitter
    retries: Retries
    discovery: Discovery
    proposals: Proposals
    upkeep: Upkeep


class LettingGo:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        known: Knowledge,
        machines: Machines,
        recorder: LogRecorder,
        chunks: Chunks,
        lane: LogLane,
        cleaner: Cleaner,
        holders: Holders,
    ) -> None:
        self._resources = resources
        self._known = known
        self._machines = machines
        self._recorder = recorder
        self._chunks = chunks
        self._lane = lane
        self._cleaner = cleaner
        self._holders = holders

    @property
    def upkeep(self) -> Upkeep:
        return self._holders.upkeep

    def act(self, request: Request[Any]) -> Any:
        """Do what steps ask of this driver, its log or its store."""
        match request:
            case AskUnderWay():
                return UnderWay(self._lane.needs, self._chunks.newest_job, self.upkeep.under_way)
            case Forget():
                self.forget()
            case Discard(over):
                self._cleaner.discard(over)
            case SweepFiles(standing):
                self._cleaner.sweep_if_due(standing, lambda: self.views(standing))
            case IsTimeToSumUp():
                return self._is_time_to_sum_up()
            case _:
                return self._recorder.act(request)
        return None

    def of_log(self) -> None:
        """Release log now, without waiting for the end of an epoch. A chunk that was given back may have held some."""
        perform(let_go_of_log(self._machines), self.act)

    def standing(self) -> CleaningView:
        """What decides about staged files, as of now."""
        return perform(stand(self._machines), self.act)

    def views(self, standing: CleaningView) -> dict[str, CleaningView]:
        """The same for each lake table."""
        return {target: of_table(standing, self._known.ledger, target) for target in self._targets}

    def view(self, target: str) -> CleaningView:
        return of_table(self.standing(), self._known.ledger, target)

    def forget(self) -> None:
        """Drop what this process alone remembers about reads, tables and statements that are over."""
        ledger = self._known.ledger
        self._chunks.let_go()
        self._holders.splitter.let_go(ledger.tables)
        self._holders.retries.let_go(ledger.tables.get)
        self._holders.discovery.let_go()
        self._resources.lake.let_go(self._targets)

    @property
    def _targets(self) -> set[str]:
        return {table.target for table in self._known.ledger.tables}

    def _is_time_to_sum_up(self) -> bool:
        """Whether a summary is due. If so, this also deletes the records of shapes that nothing needs, and has the clocks compared."""
        ledger, relay = self._known.ledger, self._known.relay
        if ledger.epoch % self._resources.settings.pace.summary_every:
            return False
        statements = relay.statements(ledger.upto, relay.end)
        needed = {table.schema for table in ledger.tables} | {statement.schema for statement in statements}
        self._known.shapes.forget(needed | self._holders.proposals.let_go(), ledger.generation)
        self._resources.clock.compare_beside()
        return True
