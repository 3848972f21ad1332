"""Does what operators ask of a running driver: gives a lake table another number of buckets (`maintenance.rescale`).

Laws:
- One request at a time, the oldest first.
- What counts is the intent (`driving.entries.Rescaled`). Before it a crash loses only work, and the next driver begins again. After it the
  next driver rolls it forward, and finds that the table has the number.
- While no epoch may be planned (`closed`), capture and reads of other tables continue.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from snowmelt import budgets
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Staged
from snowmelt.commit.requests import OperatorAnswer, OperatorRequest
from snowmelt.driving.entries import Rescaled
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.failpoints import RESCALE_DONE, RESCALE_STAGED, reach
from snowmelt.engine.loop.log_lane import LogJob
from snowmelt.engine.loop.planner import Planner
from snowmelt.engine.loop.requests import Inbox
from snowmelt.engine.loop.resources import Resources
from snowmelt.engine.maintenance.tasks import LookTask, RescaleTask, run_look, run_rescale
from snowmelt.engine.maintenance.upkeep import Upkeep
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Lane
from snowmelt.errors import SnowmeltError, present
from snowmelt.maintenance.files import TableFiles
from snowmelt.maintenance.rescale import (
    DiscardAll,
    LookAtTable,
    OfferAll,
    Rescale,
    RescaleRequest,
    RescaleState,
    RescaleStep,
    RewriteInto,
)
from snowmelt.model.numbers import NO_EPOCH
from snowmelt.planning.tables import Table, TablePhase

log = logging.getLogger(__name__)

_FILE_BYTES: Final = 128 << 20
BUCKETS_MAX: Final = 10_000


class Rescales:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        ledger: Ledger,
        place: TaskContext,
        inbox: Inbox,
        planner: Planner,
        upkeep: Upkeep,
        cleaner: Cleaner,
    ) -> None:
        self._ledger = ledger
        self._lake = resources.lake
        self._jobs = resources.jobs
        self._place = place
        self._inbox = inbox
        self._planner = planner
        self._upkeep = upkeep
        self._cleaner = cleaner
        self._slots = resources.maintenance_slots
        self._number = 0
        self._now: Rescale | None = None
        self._job: LogJob | None = None
        """Of the epoch that was planned last."""
        self._not_before = 0.0

    @property
    def closed(self) -> bool:
        """Whether no epoch may be planned."""
        return self._now is not None and self._now.closed

    def turn(self, *, at_rest: bool) -> None:
        """`at_rest`: no epoch is planned, staged or open."""
        self._inbox.look()
        if self._now is None:
            # A driver that has just started may have one of these in its open epoch, and knows no table before its first one.
            if self._inbox.open and self._ledger.epoch and self._ledger.open is None:
                self._take_up(*next(iter(self._inbox.open.items())))
            return
        rescale = self._now
        if rescale.state is RescaleState.OFFERED and at_rest:
            rescale.ended(won=self._won(rescale.request.target))
        if time.monotonic() >= self._not_before:
            table = self._table(rescale.request.target)
            live = None if table is None or table.phase is not TablePhase.RELEASED else table.incarnation.number
            if (step := rescale.next_step(incarnation=live, at_rest=at_rest)) is not None:
                self._do(rescale, step)
        self._upkeep.rest(rescale.request.target if rescale.begun else "")
        if rescale.over:
            self._end(rescale)
        elif rescale.state is RescaleState.WAITING and self._table(rescale.request.target) is None:
            self._answer(self._number, self._inbox.open[self._number], refused="its source is gone or set aside")

    def _take_up(self, number: int, request: OperatorRequest) -> None:
        wanted = request.rescale
        table = self._table(wanted.target)
        refused = ""
        if table is None:
            refused = "no table of this pipeline has this lake table, or its source is set aside"
        elif not table.keyed:
            refused = "a change table has no buckets to change"
        elif not 0 < wanted.buckets <= BUCKETS_MAX:
            refused = f"a table has 1 to {BUCKETS_MAX} buckets"
        else:
            try:
                has = self._lake.describe(wanted.target).buckets
                if has != wanted.buckets:
                    self._lake.rescale(wanted.target, wanted.buckets)
                    self._number = number
                    self._now = Rescale(RescaleRequest(wanted.target, wanted.buckets), tasks_max=self._slots, file_bytes=_FILE_BYTES)
                    extra = {"target": wanted.target, "has": has, "buckets": wanted.buckets}
                    log.info("a lake table gets another number of buckets", extra=extra)
                    return
            except SnowmeltError as error:
                refused = str(error)
        self._answer(number, request, refused=refused)

    def _won(self, target: str) -> bool:
        """By the ledger alone: another program may have changed the table since, and its files must not go for that."""
        identity = present(self._job, "an epoch that rescales a table was not planned").identity
        return bool(identity) and self._ledger.last_commits.get(target) == identity

    def _table(self, target: str) -> Table | None:
        resting = (TablePhase.SET_ASIDE, TablePhase.GONE)
        return next((table for table in self._ledger.tables if table.target == target and table.phase not in resting), None)

    # ---- steps

    def _do(self, rescale: Rescale, step: RescaleStep) -> None:
        target = rescale.request.target

        def failed(error: SnowmeltError) -> None:
            self._failed(rescale, error)

        match step:
            case LookAtTable():

                def saw(found: list[TableFiles]) -> None:
                    rescale.saw(found[0])

                self._jobs.submit(Lane.MAINTENANCE, self._place, [LookTask(target)], run_look, saw, failed)
            case RewriteInto(works):
                # The time in ms is above the numbers of the lane's jobs, so no sweep of this driver takes the files for leftovers.
                number = time.time_ns() // 1_000_000
                tasks = [RescaleTask(work, rescale.request.buckets, number) for work in works]
                self._jobs.submit(Lane.MAINTENANCE, self._place, tasks, run_rescale, rescale.rewrote, failed)
            case OfferAll(staged, snapshot):
                self._offer(rescale, staged, snapshot)
            case DiscardAll(staged):
                self._cleaner.discard([(target, one) for one in staged])
                rescale.discarded()

    def _offer(self, rescale: Rescale, staged: tuple[Staged, ...], snapshot: int) -> None:
        reach(RESCALE_STAGED)
        target = rescale.request.target
        source = present(self._table(target), "a table that is rescaled is gone").incarnation.table
        one = Rescaled(table=source, target=target, buckets=rescale.request.buckets, snapshot=snapshot, staged=staged)
        self._job = self._planner.plan_rescale(one)
        if self._job is None:
            rescale.failed("a statement about the table comes first")
            return
        rescale.took()

    def _failed(self, rescale: Rescale, error: SnowmeltError) -> None:
        self._cleaner.job_failed()
        rescale.failed(str(error))
        self._not_before = time.monotonic() + budgets.MAINTENANCE.pause_s(rescale.failures)
        log.warning("a change of a number of buckets failed", extra={"target": rescale.request.target, "why": str(error)})

    # ---- ends

    def _end(self, rescale: Rescale) -> None:
        request = self._inbox.open[self._number]
        if rescale.state is RescaleState.REFUSED:
            self._answer(self._number, request, refused=f"it failed {rescale.failures} times, the last: {rescale.why}")
            return
        log.info("a lake table has another number of buckets", extra={"target": rescale.request.target, "buckets": rescale.request.buckets})
        reach(RESCALE_DONE)
        self._answer(self._number, request)

    def _answer(self, number: int, request: OperatorRequest, *, refused: str = "") -> None:
        epoch = self._ledger.done_epoch if self._now is not None and not refused else NO_EPOCH
        self._now = None
        self._upkeep.rest("")
        if refused:
            extra = {"target": request.rescale.target, "why": refused}
            log.warning("a request to change a number of buckets is refused", extra=extra)
        self._inbox.answer(number, OperatorAnswer(nonce=request.nonce, refused=refused, epoch=epoch))
