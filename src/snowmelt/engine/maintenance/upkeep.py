"""The lane of maintenance of one driver: tells `maintenance.lane` what the epochs do, and does what it asks for.

The driver's loop calls it in each turn and never waits for it. A thread of its own does what needs no task; one that hangs holds up
maintenance alone, and does not keep the process from its end.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Final

from snowmelt.commit.cleaning import CleaningView, RewritesUnderWay
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent, Staged
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.signs import MaintainedTable
from snowmelt.engine.maintenance.caretaker import Caretaker, ThreadStep
from snowmelt.engine.maintenance.tasks import OrphanTask, RewriteTask, run_rewrite, run_search
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.maintenance.lane import Figures, MaintenanceLane, disturbed_by, touched_by
from snowmelt.maintenance.lane_steps import (
    DeleteOrphans,
    FilesRewritten,
    LaneOutcome,
    LaneStepFailed,
    OrphansDeleted,
    RewriteFiles,
)
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Found, Gone, Reborn, SetAside
from snowmelt.planning.tables import TablePhase

log = logging.getLogger(__name__)

_EVERY_S: Final = 0.2
"""How often the lane is asked what is due, besides after each outcome."""

Spread = Mapping[str, Mapping[str, int]]
"""How many files of an epoch are in each bucket, by lake table."""


class Upkeep:
    """Of one driver; used by the thread that owns the machines. Tables without rules are left alone."""

    def __init__(
        self,
        ledger: Ledger,
        jobs: Jobs,
        place: TaskContext,
        cleaner: Cleaner,
        rules: Callable[[TableId], MaintenanceRules | None],
        *,
        slots: int,
        wake: Callable[[], None],
    ) -> None:
        """`rules` of a source table. `wake` is called when the thread has ended a step."""
        self._ledger = ledger
        self._jobs = jobs
        self._place = place
        self._cleaner = cleaner
        self._rules = rules
        self._wake = wake
        self._lane = MaintenanceLane(slots=slots)
        self._of_targets: dict[str, MaintenanceRules] = {}
        """Replaced as a whole: the thread reads it."""
        self._caretaker = Caretaker(place.maintenance, place.lake, lambda target: self._of_targets[target], place.generation)
        self._asked: queue.SimpleQueue[ThreadStep | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[LaneOutcome, str]] = queue.SimpleQueue()
        self._busy = self._broken = False
        self._due = 0.0
        self._intent = ledger.open
        threading.Thread(target=self._work, name="snowmelt-maintenance", daemon=True).start()
        self._take_tables()
        if ledger.open is not None:
            self.opened(ledger.open)

    @property
    def under_way(self) -> RewritesUnderWay:
        return self._lane.under_way

    @property
    def figures(self) -> dict[str, Figures]:
        """By lake table."""
        return {table.target: table.figures for table in self._lane}

    def maintained(self) -> list[MaintainedTable]:
        """For a sign of life."""
        return [MaintainedTable(target=target, **asdict(found)) for target, found in self.figures.items()]

    # ---- epochs

    def opened(self, intent: Intent) -> None:
        """An epoch is decided."""
        self._intent = intent
        with self._alone():
            self._lane.opened(disturbed_by(intent))

    def done(self, spread: Spread | None) -> None:
        """The open epoch is in the lake. None: another driver planned it."""
        intent, self._intent = self._intent, None
        if intent is None:
            return
        touched = touched_by(intent, spread)
        with self._alone():
            self._lane.done(touched, now_ms=_now_ms())
            if any(isinstance(fact, Found | Reborn | Gone | SetAside) for fact in intent.facts):
                self._take_tables()
            self._begin(touched)

    def _take_tables(self) -> None:
        """As the ledger has them now."""
        resting = (TablePhase.SET_ASIDE, TablePhase.GONE)
        found = ((table.target, self._rules(table.incarnation.table)) for table in self._ledger.tables if table.phase not in resting)
        wanted = {target: rules for target, rules in found if rules is not None}
        self._lane.keep(wanted)
        # The lane may still be at work on one that is gone.
        self._of_targets = {table.target: table.rules for table in self._lane} | wanted
        self._begin([target for target in wanted if target in self._ledger.last_commits])

    def _begin(self, targets: Iterable[str]) -> None:
        """With tables that a commit has reached. Before that a table may be missing in the lake."""
        for target in targets:
            if target in self._of_targets and target not in self._lane:
                self._lane.add(target, self._of_targets[target], now_ms=_now_ms())

    # ---- turns

    def turn(self, view: Callable[[str], CleaningView], *, paused: bool) -> None:
        """Take up what ended, and begin what is due. `view`: what decides about a table's staged files. `paused`: the pipeline copies or
        catches up, so only urgent work begins."""
        took = False
        while not self._ended.empty():
            outcome, why = self._ended.get_nowait()
            self._busy = False
            self._apply(outcome, why)
            took = True
        now = time.monotonic()
        if not took and now < self._due:
            return
        self._due = now + _EVERY_S
        with self._alone():
            self._lane.pause(paused)
            for step in [] if self._broken else self._lane.next_steps(_now_ms(), threads=0 if self._busy else 1):
                match step:
                    case RewriteFiles():
                        self._rewrite(step)
                    case DeleteOrphans(target):
                        self._search(target, view(target))
                    case _:
                        self._busy = True
                        self._asked.put(step)

    def _rewrite(self, step: RewriteFiles) -> None:
        def done(staged: list[Staged]) -> None:
            self._apply(FilesRewritten(step.target, tuple(staged)))

        def failed(error: SnowmeltError) -> None:
            self._cleaner.job_failed()
            self._apply(LaneStepFailed(step.target), str(error))

        tasks = [RewriteTask(work.rewrite, step.job) for work in step.works]
        self._jobs.submit(Lane.MAINTENANCE, self._place, tasks, run_rewrite, done, failed)

    def _search(self, target: str, view: CleaningView) -> None:
        def done(counts: list[int]) -> None:
            if sum(counts):
                log.info("files that nothing refers to were deleted", extra={"target": target, "files": sum(counts)})
            self._apply(OrphansDeleted(target))

        def failed(error: SnowmeltError) -> None:
            self._apply(LaneStepFailed(target), str(error))

        before_ms = max(0, _now_ms() - self._of_targets[target].orphan_age_ms)
        self._jobs.submit(Lane.MAINTENANCE, self._place, [OrphanTask(target, before_ms, view)], run_search, done, failed)

    def _apply(self, outcome: LaneOutcome, why: str = "") -> None:
        with self._alone():
            first = outcome.target in self._lane and not self._lane[outcome.target].failures
            self._lane.apply(outcome, now_ms=_now_ms())
            if why and first:
                # Once, until it works again.
                extra = {"target": outcome.target, "why": why}
                log.warning("a lake table can't be maintained for now; the pipeline continues", extra=extra)
        self._due = 0.0

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """A bug in the lane ends maintenance and nothing else. What it knew to be under way stays protected from sweeps."""
        try:
            yield
        except InvariantBroken as error:
            self._broken = True
            log.exception("maintenance of lake tables has ended by a bug; the pipeline continues", extra={"why": str(error)})

    # ---- the thread

    def _work(self) -> None:
        while (step := self._asked.get()) is not None:
            outcome, why = attempt(self._caretaker, step)
            self._ended.put((outcome, why))
            self._wake()

    def close(self) -> None:
        self._asked.put(None)


def attempt(caretaker: Caretaker, step: ThreadStep) -> tuple[LaneOutcome, str]:
    """What came of a step; with what went wrong, or an empty text."""
    try:
        return caretaker.act(step), ""
    except SnowmeltError as error:
        return LaneStepFailed(step.target), str(error)
    except Exception as error:
        # Of an error that is not ours the kind alone is told: its text may hold anything.
        log.debug("a step of maintenance failed", exc_info=error)
        return LaneStepFailed(step.target), type(error).__name__


def _now_ms() -> int:
    return round(time.time() * 1000)
