"""From a job that was staged to an epoch that is done: the steps of the commit's machine (`commit.coordinator`)."""

from __future__ import annotations

import logging
import time
import uuid

from snowmelt.commit.checks import refusal
from snowmelt.commit.coordinator import (
    CommitTables,
    Coordinator,
    DonePut,
    GenerationRead,
    IntentPut,
    IntentRead,
    ListenersRan,
    PutDone,
    PutIntent,
    ReadGeneration,
    ReadIntent,
    RunListeners,
    TableCommitted,
)
from snowmelt.commit.records import Intent, intent_of
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.entries import Entries
from snowmelt.engine.failpoints import BEFORE_DONE, BETWEEN_TABLES, INTENT_WRITTEN, reach
from snowmelt.engine.loop.fitness import Asides
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.loop.letting_go import LettingGo
from snowmelt.engine.loop.log_lane import LogJob
from snowmelt.engine.loop.resources import Resources
from snowmelt.engine.tasks.log import LogAnswer
from snowmelt.errors import TableStuck
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted, Found
from snowmelt.store.generations import newest_generation

log = logging.getLogger(__name__)


class Committing:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        resources: Resources,
        known: Knowledge,
        machine: Coordinator,
        entries: Entries,
        chunks: Chunks,
        cleaner: Cleaner,
        asides: Asides,
        letting_go: LettingGo,
    ) -> None:
        self._resources = resources
        self._known = known
        self._machine = machine
        self._entries = entries
        self._chunks = chunks
        self._cleaner = cleaner
        self._asides = asides
        self._letting_go = letting_go
        self.rows = 0
        """Brought into the lake by this driver."""
        self._rows_offered = 0

    def offer(self, job: LogJob) -> None:
        """Make an intent of a job, if what it brought still counts."""
        plan, answers, ledger = job.plan, job.answers, self._known.ledger
        refused = refusal(plan, [answer.message for answer in answers], writers=job.tasks, sources=None, tables=ledger.tables)
        if refused is not None:
            log.warning("what a log job brought is dropped and planned again", extra={"epoch": plan.epoch, "why": refused})
            return
        try:
            intent = self._intent(plan, answers)
        except TableStuck as error:
            if not self._asides.stuck(error):
                raise
            return
        if self._machine.offer(intent, plan.follows):
            adopted = (self._chunks.staged(fact.nonce).rows for fact in plan.facts if isinstance(fact, Adopted))
            self._rows_offered = sum(answer.rows for answer in answers) + sum(adopted)

    def _intent(self, plan: EpochPlan, answers: list[LogAnswer]) -> Intent:
        relay, entries = self._known.relay, self._entries.of(plan, answers)
        time_ms = relay.committed_by(plan.upto, int(time.time() * 1000) + self._resources.clock.ahead_ms)
        segment = relay.number_at(plan.upto)
        return intent_of(plan, nonce=uuid.uuid4().hex, time_ms=time_ms, entries=entries, segment=segment)

    def step(self) -> None:
        """Do the machine's next step, if it has one."""
        machine, state = self._machine, self._resources.state
        match machine.next_step():
            case PutIntent(intent):
                machine.apply(IntentPut(state.put_intent(intent)))
                self._learn()
                if intent.entries:
                    reach(INTENT_WRITTEN)
            case ReadIntent(epoch):
                machine.apply(IntentRead(state.intent(epoch)))
                self._learn()
            case ReadGeneration():
                machine.apply(GenerationRead(newest_generation(state.store, self._known.generation)))
            case CommitTables(intent, entries):
                watermarks = self._known.ledger.decide_watermarks()
                for entry in entries:
                    snapshot = self._resources.lake.commit(intent, entry, watermarks.get(entry.target))
                    machine.apply(TableCommitted(intent.epoch, entry.target, snapshot))
                    if entry is not entries[-1]:
                        reach(BETWEEN_TABLES)
            case RunListeners(intent, listeners):
                machine.apply(ListenersRan(listeners))
                if intent.entries:
                    reach(BEFORE_DONE)
            case PutDone(done):
                machine.apply(DonePut(state.put_done(done)))
                self.rows, self._rows_offered = self.rows + self._rows_offered, 0
                self._letting_go.after_done()
            case None:
                pass

    def _learn(self) -> None:
        """What the newest intent names is not left over; tables that it found are known where capture is."""
        ledger = self._known.ledger
        intent = ledger.open
        if intent is None:
            return
        self._cleaner.won(intent)
        for fact in intent.facts:
            if isinstance(fact, Found):
                self._known.shapes.found(fact.incarnation.table, fact.schema, ledger.upto)
