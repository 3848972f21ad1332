"""Spark jobs of the epoch loop.

A job is a list of tasks, and functions for its answers. Threads wait for Spark. The thread that owns the machines calls these functions
when it asks for ended jobs (`take`). A failed job changes nothing: the caller plans again.

A job of the log or of maintenance fails by a cancel if its tasks run and none of them ends for `still_s_max`: a worker or a mount of the
lake that hangs must not stop all tables for ever, or keep a slot of maintenance. Each cancel doubles the limit of its lane, so that one
very long transaction is read in the end, and a very large bucket rewritten. A job whose tasks wait for free cores is not cancelled. Reads
of chunks have a limit of their own (`databases.mysql.read.watched`).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from snowmelt import budgets
from snowmelt.engine.driver.judging import gravest
from snowmelt.engine.tasks.spark_job import run_on_spark
from snowmelt.errors import InvalidConfig, InvariantBroken, SnowmeltError, Unavailable

log = logging.getLogger(__name__)

Where = TypeVar("Where")
"""What all tasks of a job share: a `TaskContext`, or a smaller value."""

STILL_S_MAX: Final = 1800.0
"""The first limit for the time that a job of the log or of maintenance may run without the end of a task."""


class Lane(StrEnum):
    """Spark shares its cores fairly between lanes. Jobs of one lane share the lane's part."""

    LOG = "log"
    CHUNKS = "chunks"
    MAINTENANCE = "maintenance"


_CANCELLED: Final = {
    Lane.LOG: "a log job makes no progress and is cancelled; its epoch is planned again",
    Lane.MAINTENANCE: "a job of maintenance makes no progress and is cancelled; its table is maintained later",
}
"""Lanes whose jobs have a limit, and what is told when one is cancelled."""


def slots_of(spark: Any) -> int:
    """The number of tasks that Spark runs at once; 0 if it is unknown."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:
        # A client of Spark Connect has no context.
        return 0


@dataclass(slots=True, kw_only=True)
class _Running:
    """A job that was submitted to Spark and is watched."""

    lane: Lane
    group: str
    tasks: int
    ended: int
    """The number of tasks that had ended at the last look."""
    since: float
    """The last time when that number was another, or no task ran."""


class Jobs:
    """The jobs of one driver. `submit` and `take` belong to one thread."""

    def __init__(self, spark: Any, *, at_once: int, wake: Callable[[], None], still_s_max: float = STILL_S_MAX) -> None:
        """`wake` is called whenever there is something to `take`."""
        self._still_s_max = dict.fromkeys(_CANCELLED, still_s_max)
        self._running: dict[str, _Running] = {}
        self._spark = spark
        self._wake = wake
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="snowmelt-job")
        self._ended: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._failed = 0

    def submit(
        self,
        lane: Lane,
        place: Where,
        tasks: Sequence[Any],
        run: Callable[[Where, Any], Any],
        done: Callable[[list[Any]], None],
        failed: Callable[[SnowmeltError], None],
    ) -> None:
        def work() -> None:
            self._ended.put(self._outcome(lane, place, list(tasks), run, done, failed))
            self._wake()

        self._pool.submit(work)

    def _outcome(
        self,
        lane: Lane,
        place: Where,
        tasks: list[Any],
        run: Callable[[Where, Any], Any],
        done: Callable[[list[Any]], None],
        failed: Callable[[SnowmeltError], None],
    ) -> Callable[[], None]:
        """Run a job. The function to call about its end."""
        try:
            answers = self._collect(lane, place, tasks, run)
        except Exception as error:
            if is_gone(self._spark):
                return raise_gone
            known = spark_error(error)
            return lambda: failed(known)
        errors = [answer for answer in answers if isinstance(answer, SnowmeltError)]
        if errors:
            worst = gravest(errors)
            return lambda: failed(worst)
        return lambda: self._succeeded(done, answers)

    def _collect(self, lane: Lane, place: Where, tasks: list[Any], run: Callable[[Where, Any], Any]) -> list[Any]:
        group = f"snowmelt-{uuid.uuid4().hex}"
        with contextlib.suppress(AttributeError):
            # A client of Spark Connect has no context.
            context = self._spark.sparkContext
            context.setLocalProperty("spark.scheduler.pool", lane.value)
            context.setJobGroup(group, lane.value)
            if lane in _CANCELLED:
                self._running[group] = _Running(lane=lane, group=group, tasks=len(tasks), ended=0, since=time.monotonic())
        try:
            return run_on_spark(self._spark, tasks, partial(run, place))
        finally:
            self._running.pop(group, None)

    def _succeeded(self, done: Callable[[list[Any]], None], answers: list[Any]) -> None:
        self._failed = 0
        done(answers)

    def take(self) -> bool:
        """Handle ended jobs; whether there was any."""
        took = False
        for job in list(self._running.values()):
            if time.monotonic() - job.since >= self._still_s_max[job.lane]:
                try:
                    self._cancel_still(job)
                except Exception as error:
                    if is_gone(self._spark):
                        raise_gone()
                    raise spark_error(error) from error
        with contextlib.suppress(queue.Empty):
            while True:
                self._ended.get_nowait()()
                took = True
        return took

    def _cancel_still(self, job: _Running) -> None:
        """Cancel a job whose tasks run and none has ended since the last look."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(job.group)]
        stages = [tracker.getStageInfo(number) for one in jobs if one is not None for number in one.stageIds]
        ended = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        active = any(stage.numActiveTasks for stage in stages if stage is not None)
        if active and ended == job.ended:
            extra = {"tasks": job.tasks, "ended": ended, "seconds": round(self._still_s_max[job.lane])}
            log.warning(_CANCELLED[job.lane], extra=extra)
            self._spark.sparkContext.cancelJobGroup(job.group)
            self._still_s_max[job.lane] *= 2
        job.ended, job.since = ended, time.monotonic()

    def count_failure(self, error: SnowmeltError) -> None:
        """One more job failed in a row. Too many in a row stop the pipeline."""
        self._failed += 1
        if budgets.JOBS.is_spent(self._failed):
            told = f"{self._failed} in a row, the last: {error.fact}: {error.detail}"
            raise type(error)("Spark jobs fail again and again", detail=told[:600], hint=error.hint)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def spark_error(error: Exception) -> SnowmeltError:
    """Our error for one that Spark raised: a worker or an executor died, or a task has a bug. Its text may quote rows, so only its kind is
    shown."""
    if isinstance(error, SnowmeltError):
        return error
    said = str(error)
    for sign, fact in _UNFIT:
        if found := sign.search(said):
            return InvalidConfig(fact, detail=" ".join(found.groups()), hint=_FIT)
    kinds = _PYTHON_ERROR.findall(said)
    if kinds and kinds[-1] in _BUGS:
        return InvariantBroken("a task failed by a bug", detail=kinds[-1], hint="--debug shows where")
    return Unavailable("a Spark job failed", detail=type(error).__name__, hint="--debug shows what Spark says")


class SparkGone(Unavailable):
    """Spark's own process has ended. Another process may continue; this one can't."""


def raise_gone() -> NoReturn:
    raise SparkGone(
        "Spark's JVM ended", hint="start again: nothing is lost. If it happens again, look for a process that was out of memory"
    )


def is_gone(spark: Any) -> bool:
    """Whether Spark's driver has died or was stopped, so that no job can run any more. A client of Spark Connect can't know: False."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (Py4JError, ConnectionError):
        return True
    except AttributeError:
        return False


def has_executors(spark: Any) -> bool:
    """Whether Spark has an executor. A local master is its own executor."""
    try:
        context = spark.sparkContext
        return context.master.startswith("local[") or int(context._jsc.sc().getExecutorMemoryStatus().size()) > 1
    except Exception:
        # The answer is only for a hint.
        return True


_UNFIT: Final = (
    (re.compile(r"ModuleNotFoundError: No module named '([\w.]{1,80})'"), "a module is not installed where Spark's workers run"),
    (re.compile(r'Cannot run program "([^"\n]{1,200})"'), "Spark's workers can't start Python"),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH|Python in worker has different version"),
        "Spark's workers have another version of Python than the driver",
    ),
)
"""Texts of Spark about workers that no retry helps."""
_FIT: Final = "install snowmelt and its extras where Spark's workers run, and let PYSPARK_PYTHON name the Python that has it"
_PYTHON_ERROR: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): ", re.MULTILINE)
_BUGS: Final = ("TypeError", "AttributeError", "KeyError", "IndexError", "NameError", "AssertionError", "NotImplementedError")
