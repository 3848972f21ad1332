"""Does what `driving.committing` asks for: from a job that was staged to an epoch that is done."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, defaultdict
from typing import Any

from snowmelt.driving import committing
from snowmelt.driving.committing import CommitEntries, Learn, StagedJob, TellListeners, WinIntent
from snowmelt.driving.entries import Describe, LogReport
from snowmelt.driving.letting_go import Forget
from snowmelt.driving.steps import Machines, NewestGeneration, Request, perform
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.failpoints import BEFORE_DONE, INTENT_WRITTEN, RESCALE_COMMITTED, RESCALE_DECIDED, reach
from snowmelt.engine.loop.fitness import Asides
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.letting_go import LettingGo
from snowmelt.engine.loop.log_lane import LogJob
from snowmelt.engine.loop.resources import Resources
from snowmelt.engine.maintenance.upkeep import Spread
from snowmelt.errors import TableStuck
from snowmelt.model.partition import TIMED, Unit
from snowmelt.planning.facts import Adopted, Found
from snowmelt.store.generations import newest_generation

log = logging.getLogger(__name__)


class Committing:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        known: Knowledge,
        machines: Machines,
        entries: Entries,
        chunks: Chunks,
        cleaner: Cleaner,
        asides: Asides,
        letting_go: LettingGo,
    ) -> None:
        self._resources = resources
        self._known = known
        self._machines = machines
        self._entries = entries
        self._chunks = chunks
        self._cleaner = cleaner
        self._asides = asides
        self._letting_go = letting_go
        self.rows = 0
        """Brought into the lake by this driver."""
        self._rows_offered = 0
        self._rescales = False
        """Whether the intent that was offered last gives a table another number of buckets."""
        self._spread: tuple[str, Spread] = ("", {})
        """The identity of the intent that was offered last, and where its files are."""

    def offer(self, job: LogJob) -> None:
        """Make an intent of a job, if what it brought still counts."""
        plan, answers = job.plan, job.answers
        staged = StagedJob(plan, job.tasks, [LogReport(answer.message, answer.messages) for answer in answers], job.rescaled)
        now_ms = int(time.time() * 1000) + self._resources.clock.ahead_ms
        nonce = uuid.uuid4().hex
        offering = committing.offer(self._machines, staged, self._chunks.staged, nonce=nonce, now_ms=now_ms)
        try:
            refused = perform(offering, self.act)
        except TableStuck as error:
            if not self._asides.stuck(error):
                raise
            return
        if refused:
            log.warning("what a log job brought is dropped and planned again", extra={"epoch": plan.epoch, "why": refused})
            return
        job.identity = f"{plan.generation}-{nonce}"
        self._rescales = job.rescaled is not None
        adopted = (self._chunks.staged(fact.nonce).rows for fact in plan.facts if isinstance(fact, Adopted))
        self._spread = (job.identity, self._spread_of(job))
        self._rows_offered = sum(answer.rows for answer in answers) + sum(adopted)

    def _spread_of(self, job: LogJob) -> Spread:
        """Which buckets get how many files."""
        spread: dict[str, Counter[str]] = defaultdict(Counter)
        for answer in job.answers:
            for target, places in answer.places.items():
                spread[target].update(places)
        for fact in job.plan.facts:
            if isinstance(fact, Adopted):
                target = self._known.ledger.tables.known(fact.incarnation).target
                spread[target].update(self._chunks.staged(fact.nonce).places)
        return spread

    def _timed(self) -> dict[str, Unit]:
        """The lake tables that are divided by time, if their partitions are marked."""
        if not self._resources.listening.marks_partitions:
            return {}
        divided = ((table.target, self._known.partition(table.incarnation.table)) for table in self._known.ledger.tables)
        return {target: partition.unit for target, partition in divided if partition is not None and partition.unit in TIMED}

    def step(self) -> bool:
        """Do the machine's next step. False: it has none."""
        return perform(committing.step(self._machines, self._cleaner.leftovers), self.act)

    def act(self, request: Request[Any]) -> Any:
        match request:
            case Describe(works):
                return self._entries.describe(works)
            case WinIntent(intent):
                return self._resources.state.put_intent(intent)
            case Learn():
                self._learn(request)
            case NewestGeneration():
                return newest_generation(self._resources.state.store, self._known.generation)
            case CommitEntries(intent, works):
                return self._resources.commits.go_on(intent, works)
            case TellListeners(step):
                told = self._resources.listening.hear(step, self._timed())
                if step.intent.entries:
                    reach(BEFORE_DONE)
                if self._rescales:
                    reach(RESCALE_COMMITTED)
                return told
            case Forget():
                self.rows, self._rows_offered = self.rows + self._rows_offered, 0
                identity, spread = self._spread
                self._letting_go.upkeep.done(spread if identity == self._known.ledger.identity else None)
                self._spread = ("", {})
                return self._letting_go.act(request)
            case _:
                return self._letting_go.act(request)
        return None

    def _learn(self, learnt: Learn) -> None:
        """Tables that the newest intent found are known where capture is."""
        self._letting_go.upkeep.opened(learnt.intent)
        for fact in learnt.intent.facts:
            if isinstance(fact, Found):
                self._known.shapes.found(fact.incarnation.table, fact.schema, self._known.ledger.upto)
        if learnt.ours and learnt.intent.entries:
            reach(INTENT_WRITTEN)
            if self._rescales:
                reach(RESCALE_DECIDED)
