"""A round's Spark job: in a group of its own, so that it can be cancelled, and with news of each split while others are still read.

Spark reports single tasks to a driver only through accumulators. An update comes when a task succeeded, once for each task of a
job that returns its rows. A client of Spark Connect has none: it learns of all splits when the job is over, and cancels by tags.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pyspark.accumulators import AccumulatorParam

from snowmelt.errors import SnowmeltError

log = logging.getLogger(__name__)

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Told = Callable[[Any], None]
Report = Callable[[Callable[[Any], Any], Any], Any]


def run_in_group(spark: Any, group: str, job: Callable[[], Answer]) -> Answer:
    """Run a job so that `cancel_group` can end it. The calling thread must run one at a time."""
    context = _context(spark)
    if context is not None:
        context.setJobGroup(group, "a round of tiering", interruptOnCancel=True)
        return job()
    if not hasattr(spark, "addTag"):
        return job()
    spark.addTag(group)
    try:
        return job()
    finally:
        spark.removeTag(group)


def cancel_group(spark: Any, group: str) -> None:
    """From any thread. Twice is fine, and so is a job that does not exist."""
    context = _context(spark)
    try:
        if context is not None:
            context.cancelJobGroup(group)
        elif hasattr(spark, "interruptTag"):
            spark.interruptTag(group)
    except Exception as error:
        # Its text may hold anything. If Spark is gone, its jobs are too.
        log.warning("a Spark job could not be cancelled: %s", type(error).__name__)


class SplitNews:
    """For one service: passes the reports of tasks to their rounds."""

    def __init__(self, spark: Any) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, Told] = {}
        context = _context(spark)
        self._accumulator = context.accumulator((), _Passing(self._pass)) if context is not None else None

    @contextlib.contextmanager
    def told(self, round: str, tell: Told) -> Iterator[Report]:
        """While it is entered, `tell` is called with each answer of a task that runs under the report. It must not wait for anything."""
        with self._lock:
            self._told[round] = tell
        try:
            yield _Reporting(self._accumulator, round)
        finally:
            with self._lock:
                self._told.pop(round, None)

    def _pass(self, found: tuple[tuple[str, bytes], ...]) -> None:
        for round, answer in found:
            with self._lock:
                tell = self._told.get(round)
            if tell is not None:
                tell(pickle.loads(answer))


class _Reporting:
    """Runs in Spark's workers."""

    def __init__(self, accumulator: Any, round: str) -> None:
        self._accumulator = accumulator
        self._round = round

    def __call__(self, run: Callable[[Task], Answer], task: Task) -> Answer:
        answer: Answer | SnowmeltError
        try:
            answer = run(task)
        except SnowmeltError as error:
            self._report(error)
            raise
        self._report(answer)
        return answer

    def _report(self, answer: Any) -> None:
        if self._accumulator is not None:
            self._accumulator.add(((self._round, pickle.dumps(answer)),))


class _Passing(AccumulatorParam[Any]):
    """In the driver it keeps nothing, and passes on what comes. In a worker it keeps what is added, for the driver."""

    def __init__(self, to: Callable[[Any], None] | None) -> None:
        self._to = to

    def zero(self, value: Any) -> Any:
        return ()

    def addInPlace(self, value1: Any, value2: Any) -> Any:
        if self._to is None:
            return (*value1, *value2)
        self._to(value2)
        return ()

    def __reduce__(self) -> Any:
        return _Passing, (None,)


def _context(spark: Any) -> Any:
    """None: a client of Spark Connect, or no Spark."""
    try:
        return spark.sparkContext
    except Exception:
        return None
