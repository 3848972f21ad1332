"""What the engine makes of Spark jobs, without Spark: which one it cancels, and what an error of one task means for the others."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.engine.tasks import jobs as module
from snowmelt.engine.tasks.jobs import Jobs, Lane, _Running
from snowmelt.errors import SnowmeltError, Unavailable


class Context:
    """A Spark whose one job has tasks that ended and tasks that run."""

    def __init__(self, ended: int, active: int) -> None:
        self.stage = SimpleNamespace(numCompletedTasks=ended, numActiveTasks=active)
        self.cancelled: list[str] = []

    def statusTracker(self) -> Any:
        return SimpleNamespace(
            getJobIdsForGroup=lambda _: [1], getJobInfo=lambda _: SimpleNamespace(stageIds=[2]), getStageInfo=lambda _: self.stage
        )

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)


def looked_at(context: Context, *, ended_before: int, still_s: float = 10.0, lane: Lane = Lane.LOG) -> Context:
    """A job that was looked at so long ago."""
    jobs = Jobs(SimpleNamespace(sparkContext=context), at_once=1, wake=lambda: None, still_s_max=5.0)
    try:
        jobs._running["group"] = _Running(lane=lane, group="group", tasks=4, ended=ended_before, since=time.monotonic() - still_s)
        assert not jobs.take()
    finally:
        jobs.close()
    return context


@pytest.mark.parametrize("lane", [Lane.LOG, Lane.MAINTENANCE])
def test_a_job_of_which_no_task_ends_is_cancelled(lane: Lane) -> None:
    assert looked_at(Context(ended=2, active=1), ended_before=2, lane=lane).cancelled == ["group"]


def test_a_cancel_gives_more_time_to_jobs_of_its_own_lane_alone() -> None:
    context = Context(ended=0, active=1)
    jobs = Jobs(SimpleNamespace(sparkContext=context), at_once=1, wake=lambda: None, still_s_max=5.0)
    try:
        for lane, group in ((Lane.MAINTENANCE, "first"), (Lane.MAINTENANCE, "second"), (Lane.LOG, "log")):
            jobs._running = {group: _Running(lane=lane, group=group, tasks=1, ended=0, since=time.monotonic() - 7)}
            jobs.take()
    finally:
        jobs.close()
    assert context.cancelled == ["first", "log"]


def test_a_job_that_waits_or_makes_progress_is_not_cancelled() -> None:
    assert looked_at(Context(ended=3, active=1), ended_before=2).cancelled == []
    assert looked_at(Context(ended=2, active=1), ended_before=2, still_s=1.0).cancelled == []
    assert looked_at(Context(ended=0, active=0), ended_before=0).cancelled == [], "its tasks wait for free cores"


def test_an_error_of_one_task_drops_the_answers_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Unavailable("as planned")
    monkeypatch.setattr(module, "run_on_spark", lambda spark, tasks, run: [1, error, 3])
    done: list[list[Any]] = []
    failed: list[SnowmeltError] = []
    jobs = Jobs(object(), at_once=1, wake=lambda: None)
    jobs.submit(Lane.LOG, None, [1, 2, 3], lambda place, task: task, done.append, failed.append)
    jobs._pool.shutdown()
    assert jobs.take()
    assert (done, failed) == ([], [error])
