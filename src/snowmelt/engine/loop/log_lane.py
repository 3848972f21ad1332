"""The log lane: one job an epoch, whose tasks decode the log, filter it and stage files.

A job that fails is nothing: its epoch is planned again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from snowmelt.commit.records import Staged
from snowmelt.driving.entries import emptied_by
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.judging import Verdict, judge
from snowmelt.engine.loop.fitness import Asides
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.engine.tasks.log import LogAnswer, LogTask, run_log
from snowmelt.errors import SnowmeltError, TableStuck
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Relay

log = logging.getLogger(__name__)

_SHARE_BYTES_MIN: Final = 4 << 20
"""Less than this of the log is not worth a task of its own."""


@dataclass(frozen=True, slots=True)
class LogShare:
    """What one task of a log job has: (after, upto], or of that the keys of one part."""

    after: int
    upto: int
    part: int = 0
    parts: int = 1


@dataclass(slots=True)
class LogJob:
    plan: EpochPlan
    tasks: int
    answers: list[LogAnswer] = field(default_factory=list)


class LogLane:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        known: Knowledge,
        jobs: Jobs,
        place: TaskContext,
        chunks: Chunks,
        cleaner: Cleaner,
        asides: Asides,
        *,
        tasks: int,
    ) -> None:
        self._known = known
        self._jobs = jobs
        self._place = place
        self._chunks = chunks
        self._cleaner = cleaner
        self._asides = asides
        self._tasks = tasks
        self.running: LogJob | None = None
        self.staged: LogJob | None = None
        """All of its tasks have answered."""
        self.failed_at: float | None = None
        """When the last job failed; None if it did not."""

    @property
    def idle(self) -> bool:
        return self.running is None and self.staged is None

    @property
    def needs(self) -> list[int]:
        """From where on jobs may read the log."""
        return [job.plan.low for job in (self.running, self.staged) if job is not None]

    def take_staged(self) -> LogJob | None:
        """The job whose tasks have answered, once."""
        job, self.staged = self.staged, None
        return job

    def start(self, plan: EpochPlan) -> None:
        tasks = self._tasks_of(plan)
        job = LogJob(plan, len(tasks))
        if not tasks:
            # Nothing of the log is in it: an epoch of facts and chunks needs no tasks.
            self.staged = job
            return
        self.running = job

        def done(answers: list[LogAnswer]) -> None:
            for answer in answers:
                for target, messages in answer.messages.items():
                    files = tuple(file.name for file in answer.message.files if file.target == target)
                    self._cleaner.reported(target, Staged(files, messages, 0))
            job.answers, self.running, self.staged, self.failed_at = answers, None, job, None

        self._jobs.submit(Lane.LOG, self._place, tasks, run_log, done, lambda error: self._failed(plan, error))

    def _failed(self, plan: EpochPlan, error: SnowmeltError) -> None:
        self.running = None
        self._cleaner.job_failed()
        self.failed_at = time.monotonic()
        if isinstance(error, TableStuck) and self._asides.stuck(error):
            return
        if judge(error) is not Verdict.PASSES:
            raise error
        self._jobs.count_failure(error)
        log.warning("a log job failed and is planned again", extra={"epoch": plan.epoch})

    def _tasks_of(self, plan: EpochPlan) -> list[LogTask]:
        ledger, relay = self._known.ledger, self._known.relay
        rules = {table.incarnation.table: plan.rule(table) for table in ledger.tables if table.phase is not TablePhase.GONE} | plan.rules
        # What lies at or below `after` is read again for chunks that are adopted, and for nothing else.
        again = {name: rule for name, rule in rules.items() if rule.adopting}
        emitting = {name: rule for name, rule in rules.items() if rule.live or rule.outside or rule.adopted or rule.adopting}
        emptied = emptied_by(plan, ledger, relay)
        shares = [(share, again) for share in self._shares(plan.low, plan.after)]
        shares += [(share, emitting) for share in self._shares(plan.after, plan.upto)]
        if emptied and not shares:
            shares.append((LogShare(plan.after, plan.after), {}))
        marks = self._chunks.marks(plan.rules.values())
        sourced = {name: self._known.sourced(name) for name in emitting}
        return [
            LogTask(
                epoch=plan.epoch,
                writer=writer,
                after=share.after,
                upto=share.upto,
                segments=tuple(relay.covering(share.after, share.upto)) if share.after < share.upto else (),
                rules=chosen,
                marks=marks,
                tables={name: sourced[name] for name in chosen},
                committed=tuple(relay.committed(share.after, share.upto)),
                emptied=emptied if writer == 0 else (),
                part=share.part,
                parts=share.parts,
            )
            for writer, (share, chosen) in enumerate(shares)
        ]

    def _shares(self, after: int, upto: int) -> Iterable[LogShare]:
        return shares_of(self._known.relay, after, upto, tasks=self._tasks)


def shares_of(relay: Relay, after: int, upto: int, *, tasks: int) -> list[LogShare]:
    """A range of the log in shares of about equal bytes; a transaction that is larger than a share is several tasks'."""
    fair = max(_SHARE_BYTES_MIN, (upto - after) // tasks)
    shares = []
    for low, high in relay.shares(after, upto, max(1, (upto - after) // fair)):
        parts = min(tasks, max(1, (high - low) // fair)) if relay.next_cut(low) == high else 1
        shares += [LogShare(low, high, part, parts) for part in range(parts)]
    return shares
