"""Deletes staged files that no intent can name any more, beside the loop.

The loop decides what to delete (`commit.cleaning`), without reading the lake. A thread deletes files that are known by name; sweeps are
Spark jobs in the lane of maintenance. A decision stays right, however late it is carried out. A failed deletion is logged and left to the
next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from snowmelt.commit.cleaning import CleaningView, Leftovers, sweep_due
from snowmelt.commit.records import Staged
from snowmelt.driving import letting_go
from snowmelt.driving.letting_go import DeleteFiles, ListReferenced, ListStaged
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import Jobs, Lane
from snowmelt.errors import Corrupt, InvariantBroken, SnowmeltError, SourceDrift
from snowmelt.model.numbers import EpochNumber
from snowmelt.sinks.contract import Sink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepTask:
    target: str
    standing: CleaningView
    """As of before the task was launched."""


def run_sweep(place: TaskContext, task: SweepTask) -> int:
    """Sweep a table, in a task. The number of deleted files."""
    place.check()
    try:
        return sweep(place.lake(), task.target, task.standing)
    except (SourceDrift, Corrupt):
        # A lake table that is gone or damaged is its source table's trouble, which its writers report.
        return 0


def sweep(lake: Sink, target: str, standing: CleaningView) -> int:
    """Delete the staged files of a target that nothing needs. Their number."""

    def act(request: Request[Any]) -> Any:
        match request:
            case ListStaged(name):
                return lake.staged(name)
            case ListReferenced(name):
                return lake.referenced(name)
            case DeleteFiles(name, doomed):
                return lake.delete(name, doomed)
            case _:
                raise InvariantBroken("a sweep asks for what a lake does not do", detail=type(request).__name__)

    return perform(letting_go.sweep(target, standing), act)


class Cleaner:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(self, jobs: Jobs, place: TaskContext, *, every: int) -> None:
        self._jobs = jobs
        self._place = place
        self._every = every
        self.leftovers = Leftovers()
        self._last: int | None = None
        self._sweeping = self._failed = False
        self._lakes: list[Sink] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snowmelt-cleaning")

    def reported(self, target: str, staged: Staged) -> None:
        """A task has left these files."""
        self.leftovers.reported(target, staged)

    def job_failed(self) -> None:
        """A job has left files that no report names."""
        self._failed = True

    def discard(self, over: Iterable[tuple[str, Staged]]) -> None:
        """Delete files that are known by name. Returns at once."""
        self._thread.submit(self._delete, list(over))

    def sweep_if_due(self, standing: CleaningView, tables: Callable[[], Mapping[str, CleaningView]]) -> None:
        """After an epoch. Returns at once. `tables`: the same for each lake table."""
        mine = standing.intent_generation == standing.generation
        if mine and not self._sweeping and sweep_due(standing.epoch, last=self._last, every=self._every, failed=self._failed):
            self.sweep(standing.epoch, tables())

    def sweep(self, epoch: EpochNumber, tables: Mapping[str, CleaningView]) -> None:
        tasks = [SweepTask(target, view) for target, view in sorted(tables.items())]
        self._last, self._failed, self._sweeping = epoch, False, bool(tasks)
        if tasks:
            self._jobs.submit(Lane.MAINTENANCE, self._place, tasks, run_sweep, self._swept, self._not_swept)

    def _swept(self, counts: list[int]) -> None:
        self._sweeping = False
        if sum(counts):
            log.info("staged files that nothing needs were deleted", extra={"files": sum(counts)})

    def _not_swept(self, error: SnowmeltError) -> None:
        self._sweeping, self._failed = False, True
        log.warning("a sweep for files that nothing needs failed and will be repeated", extra={"error": str(error)})

    def _delete(self, over: list[tuple[str, Staged]]) -> None:
        try:
            if not self._lakes:
                self._lakes.append(self._place.lake())
            for target, staged in over:
                self._lakes[0].discard(target, staged)
        except Exception as error:
            log.warning("staged files that nothing needs could not be deleted", extra={"error": type(error).__name__})

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
