"""Tasks of maintenance: one rewrites files of one bucket, one by another number of buckets, one searches a table's folders for orphans."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from snowmelt.commit.cleaning import CleaningView, deletable
from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.engine.failpoints import RESCALE_WRITTEN, REWRITE_WRITTEN, reach
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.errors import Corrupt
from snowmelt.maintenance.files import Rewrite, TableFiles
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
class LookTask:
    target: str


def run_look(place: TaskContext, task: LookTask) -> TableFiles:
    place.check()
    return place.maintenance().files(task.target)


@dataclass(frozen=True, slots=True)
class RescaleTask:
    work: Rewrite
    buckets: int
    job: int


def run_rescale(place: TaskContext, task: RescaleTask) -> Staged:
    place.check()
    prefix = StagedName(place.generation, StagedFor.REWRITE, task.job, uuid.uuid4().hex, "")
    staged = place.maintenance().redistribute(task.work, task.buckets, str(prefix))
    reach(RESCALE_WRITTEN)
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


def may_be_named(name: str, view: CleaningView) -> bool:
    """Whether a file is a staged one of ours that an intent or a rewrite may still bring."""
    try:
        return not deletable(StagedName.parse(name), view)
    except Corrupt:
        return False
