"""Tasks of maintenance: one rewrites files of one bucket, one searches a table's folders for orphans."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from snowmelt.commit.cleaning import CleaningView, may_be_named
from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.engine.failpoints import REWRITE_WRITTEN, reach
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.maintenance.files import Rewrite
from snowmelt.model.moment import TimeMs


@dataclass(frozen=True, slots=True)
class RewriteTask:
    work: Rewrite
    job: int


def run_rewrite(place: TaskContext, task: RewriteTask) -> Staged:
    place.check()
    prefix = StagedName(place.generation, StagedFor.REWRITE, task.job, uuid.uuid4().hex, "")
    staged = place.maintenance().rewrite(task.work, str(prefix))
    reach(REWRITE_WRITTEN)
    return staged


@dataclass(frozen=True, slots=True)
class OrphanTask:
    target: str
    before_ms: TimeMs
    view: CleaningView
    """As of before the task was launched."""


def run_search(place: TaskContext, task: OrphanTask) -> int:
    """How many orphans of a table were deleted."""
    place.check()
    care = place.maintenance()
    return care.delete(task.target, care.orphans(task.target, before_ms=task.before_ms, ours=lambda name: may_be_named(name, task.view)))
