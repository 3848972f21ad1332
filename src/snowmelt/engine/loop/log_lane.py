"""The log lane: one job an epoch, whose tasks decode the log, filter it and stage files.

A job that fails changes nothing: its epoch is planned again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Final

from snowmelt.commit.records import Staged
from snowmelt.driving.entries import Rescaled
from snowmelt.driving.sharing import divide
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.cleaning import Cleaner
from snowmelt.engine.driver.judging import Verdict, judge
from snowmelt.engine.loop.fitness import Asides
from snowmelt.engine.loop.knowledge import Knowledge
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.engine.tasks.log import LogAnswer, LogTask, run_log
from snowmelt.errors import SnowmeltError, TableStuck
from snowmelt.model.numbers import LogOffset
from snowmelt.planning.epochs import EpochPlan

log = logging.getLogger(__name__)

_SHARE_BYTES_MIN: Final = 4 << 20
"""Less than this of the log is not worth a task of its own."""


@dataclass(slots=True)
class LogJob:
    plan: EpochPlan
    tasks: int
    answers: list[LogAnswer] = field(default_factory=list)
    rescaled: Rescaled | None = None
    """What the epoch does besides."""
    identity: str = ""
    """Of the intent that was offered of it. Empty: none was."""


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
    def needs(self) -> list[LogOffset]:
        """From where on jobs may read the log."""
        return [job.plan.low for job in (self.running, self.staged) if job is not None]

    def take_staged(self) -> LogJob | None:
        """The job whose tasks have all answered, or None. Each job is returned once."""
        job, self.staged = self.staged, None
        return job

    def start(self, plan: EpochPlan, rescaled: Rescaled | None = None) -> LogJob:
        tasks = self._tasks_of(plan)
        job = LogJob(plan, len(tasks), rescaled=rescaled)
        if not tasks:
            # Nothing of the log is in it: an epoch of facts and chunks needs no tasks.
            self.staged = job
            return job
        self.running = job

        def done(answers: list[LogAnswer]) -> None:
            for answer in answers:
                for target, messages in answer.messages.items():
                    files = tuple(file.name for file in answer.message.files if file.target == target)
                    self._cleaner.reported(target, Staged(files, messages, 0))
            job.answers, self.running, self.staged, self.failed_at = answers, None, job, None

        self._jobs.submit(Lane.LOG, self._place, tasks, run_log, done, lambda error: self._failed(plan, error))
        return job

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
        relay = self._known.relay
        shares = divide(plan, self._known.ledger, relay, tasks=self._tasks, share_bytes_min=_SHARE_BYTES_MIN)
        marks = self._chunks.marks(plan.rules.values())
        sourced = {name: self._known.sourced(name) for work in shares for name in work.rules}
        return [
            LogTask(
                epoch=plan.epoch,
                writer=writer,
                after=work.share.after,
                upto=work.share.upto,
                segments=tuple(relay.covering(work.share.after, work.share.upto)) if work.share.after < work.share.upto else (),
                rules=work.rules,
                marks=marks,
                tables={name: sourced[name] for name in work.rules},
                committed=tuple(relay.committed(work.share.after, work.share.upto)),
                emptied=work.emptied,
                part=work.share.part,
                parts=work.share.parts,
            )
            for writer, work in enumerate(shares)
        ]
