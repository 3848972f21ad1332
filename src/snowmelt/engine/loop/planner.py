"""When the next epoch is planned, and what is in it (`planning.epochs`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from snowmelt.commit.coordinator import Coordinator
from snowmelt.driving.entries import Rescaled
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.log_lane import LogJob, LogLane
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.errors import check
from snowmelt.model.numbers import EpochNumber, LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan, choose_end, plan_epoch, statements_wait
from snowmelt.planning.facts import Durable, Incarnation, SetAside

log = logging.getLogger(__name__)


class Planner:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        settings: Settings,
        known: Knowledge,
        machine: Coordinator,
        proposals: Proposals,
        chunks: Chunks,
        entries: Entries,
        lane: LogLane,
    ) -> None:
        self._settings = settings
        self._known = known
        self._machine = machine
        self._proposals = proposals
        self._chunks = chunks
        self._entries = entries
        self._lane = lane
        self._planned_at = 0.0

    def plan_if_due(self) -> None:
        """Plan the next epoch and start its log job, if there is anything to plan and its time has come."""
        if not self._lane.idle or not self._machine.may_plan:
            return
        ledger, relay = self._known.ledger, self._known.relay
        upto = choose_end(ledger.tables, relay, ledger.upto, self._settings.pace.epoch_bytes)
        due = self._is_due()
        full = upto - ledger.upto >= self._settings.pace.epoch_bytes // 2
        proposals = list(self._proposals)
        # While chunks are being read, finished reads wait for the interval, so that one epoch adopts many. After the last one it is at
        # once.
        ready = self._chunks.ready and (due or not self._chunks.reading)
        if not (proposals or ready or full or (due and upto > ledger.upto)):
            return
        plan = self._fitting(upto, proposals)
        for fact in plan.given_back:
            ledger.tables.apply(fact)
        if plan.upto == plan.after and not plan.facts:
            return
        self._planned_at = time.monotonic()
        self._lane.start(plan)

    def plan_rescale(self, rescaled: Rescaled) -> LogJob | None:
        """Plan an epoch that has nothing new of the log and gives a table another number of buckets. No epoch is under way. None: it
        would change the table besides."""
        check(self._lane.idle and self._machine.may_plan, "an epoch is planned beside another one", rescaled.target)
        plan = self._plan(self._known.ledger.upto, ())
        if any(fact.incarnation.table == rescaled.table for fact in plan.facts):
            return None
        for fact in plan.given_back:
            self._known.ledger.tables.apply(fact)
        return self._lane.start(plan, rescaled)

    def _is_due(self) -> bool:
        """Whether an epoch is due by the clock, or because of statements: each may need an epoch, and everything after it waits. After a
        failed job the interval passes first, statements or not."""
        failed_at = self._lane.failed_at
        if failed_at is None and statements_wait(self._known.ledger.tables, self._known.relay, self._known.ledger.upto):
            return True
        return time.monotonic() - max(self._planned_at, failed_at or 0.0) >= self._settings.pace.interval_s

    def _fitting(self, upto: LogOffset, proposals: list[Durable]) -> EpochPlan:
        """The plan. It sets aside each table whose change the lake can't take (`Entries.unfit`), so that no task starts in vain."""
        ledger = self._known.ledger
        plan = self._plan(upto, proposals)
        while stuck := self._entries.unfit(plan):
            for error in stuck:
                name, time_ms = TableId(*error.table), self._known.relay.time_at(ledger.upto) or 0
                log.warning("a table is set aside", extra={"table": str(name), "why": str(error)})
                proposals.append(SetAside(Incarnation(name, plan.epoch), ledger.upto, time_ms, str(error)))
            plan = self._plan(upto, proposals)
            rest = plan.untouched(ledger.tables)
            check(all(TableId(*error.table) in rest for error in stuck), "a table that can't continue is not set aside")
        return plan

    def _plan(self, upto: LogOffset, proposals: Iterable[Durable]) -> EpochPlan:
        known, ledger = self._known, self._known.ledger
        return plan_epoch(
            ledger.tables,
            known.relay,
            epoch=EpochNumber(ledger.epoch + 1),
            generation=known.generation,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )
