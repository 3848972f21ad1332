"""Tasks of maintenance: one rewrites files of one bucket, one by another number of buckets, one searches a table's folders for orphans."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from itertools import islice
from typing import Final

from snowmelt.commit.cleaning import CleaningView, may_be_named
from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.engine.failpoints import ORPHANS_FOUND, ORPHANS_GOING, RESCALE_WRITTEN, REWRITE_WRITTEN, reach
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.maintenance.files import Rewrite, TableFiles
from snowmelt.model.moment import TimeMs

_AT_ONCE: Final = 1000
"""Orphans that are deleted by one call."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    works: tuple[Rewrite, ...]
    job: int


def run_rewrites(place: TaskContext, task: RewriteTask) -> list[Staged]:
    place.check()
    care, staged = place.maintenance(), list[Staged]()
    for work in task.works:
        prefix = StagedName(place.generation, StagedFor.REWRITE, task.job, uuid.uuid4().hex, "")
        staged.append(care.rewrite(work, str(prefix)))
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
    care, deleted = place.maintenance(), 0
    orphans = iter(care.orphans(task.target, before_ms=task.before_ms, ours=lambda name: may_be_named(name, task.view)))
    while some := list(islice(orphans, _AT_ONCE)):
        reach(ORPHANS_FOUND)
        deleted += care.delete(task.target, some)
        reach(ORPHANS_GOING)
    return deleted
