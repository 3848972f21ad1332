"""Does the steps of maintenance that need no task: looks, publishes, deletes what was given up, expires. Used by one thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import assert_never

from snowmelt.engine.failpoints import REWRITE_PUBLISHED, REWRITE_STAGED, SNAPSHOTS_CHOSEN, SNAPSHOTS_EXPIRED, reach
from snowmelt.maintenance.expiry import plan_expiry
from snowmelt.maintenance.lane_steps import (
    DiscardFiles,
    ExpireSnapshots,
    FilesDiscarded,
    FilesSeen,
    LaneOutcome,
    LookAtFiles,
    PublishRewrites,
    RewritesGivenUp,
    RewritesPublished,
    SnapshotsExpired,
    see_files,
)
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.contract import Sink
from snowmelt.sinks.maintenance import GivenUp, Maintenance

log = logging.getLogger(__name__)

ThreadStep = LookAtFiles | PublishRewrites | DiscardFiles | ExpireSnapshots


class Caretaker:
    def __init__(
        self,
        open_care: Callable[[], Maintenance],
        open_lake: Callable[[], Sink],
        rules: Callable[[str], MaintenanceRules],
        generation: GenerationNumber,
        *,
        full: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Both are opened by the thread that uses them. `full`: all of a bucket is merged, whatever the rules say."""
        self._open_care = open_care
        self._open_lake = open_lake
        self._rules = rules
        self._generation = generation
        self._full = full
        self._now = now
        self._care: Maintenance | None = None

    @property
    def care(self) -> Maintenance:
        self._care = self._care or self._open_care()
        return self._care

    def act(self, step: ThreadStep) -> LaneOutcome:
        match step:
            case LookAtFiles(target):
                return self._look(target)
            case PublishRewrites():
                return self._publish(step)
            case DiscardFiles(target, staged):
                lake = self._open_lake()
                for one in staged:
                    lake.discard(target, one)
                return FilesDiscarded(target)
            case ExpireSnapshots(target):
                return self._expire(target)
            case _ as never:
                assert_never(never)

    def _look(self, target: str) -> FilesSeen:
        return see_files(target, self.care.files(target), self._rules(target).compaction, full=self._full)

    def _publish(self, step: PublishRewrites) -> RewritesPublished | RewritesGivenUp:
        reach(REWRITE_STAGED)
        answer = self.care.publish([work.rewrite for work in step.works], step.staged, generation=self._generation)
        if isinstance(answer, GivenUp):
            log.info("a compaction of a lake table was given up", extra={"target": step.target, "why": answer.why})
            return RewritesGivenUp(step.target)
        reach(REWRITE_PUBLISHED)
        extra = {
            "target": step.target,
            "buckets": len(step.works),
            "files": sum(len(work.rewrite.inputs) for work in step.works),
            "into": sum(len(one.files) for one in step.staged),
            "rows": sum(one.rows for one in step.staged),
            "snapshot": answer,
        }
        log.info("a lake table was compacted", extra=extra)
        return RewritesPublished(step.target)

    def _expire(self, target: str) -> SnapshotsExpired:
        rules, history = self._rules(target).expiry, self.care.history(target)
        numbers = plan_expiry(history, rules, now_ms=round(self._now() * 1000))
        removed = 0
        if numbers:
            reach(SNAPSHOTS_CHOSEN)
            done = self.care.expire(target, numbers, identity=history.identity)
            removed = done.snapshots
            reach(SNAPSHOTS_EXPIRED)
            extra = {"target": target, "snapshots": removed, "files": done.files, "bytes": done.size_bytes}
            log.info("snapshots of a lake table expired", extra=extra)
        left = len(history.snapshots) - removed
        return SnapshotsExpired(target=target, removed=removed, left=left, limited=removed == rules.at_once_max)
