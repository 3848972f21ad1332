"""The reading of one round: its Spark job, and an early end to it.

Laws:
- A bucket's lease is released as soon as the task that read its KV snapshot has ended well: Spark never runs such a task again, a commit
  that is tried again takes the same files, and the next round leases anew. Where Spark does not report single tasks (a client of
  Spark Connect), that is when the lake has the bucket.
- When a round can't commit any more (the table is lost, the lease is lost, a split failed), its Spark job is cancelled and its lease
  ended at once. What ended tasks have staged is known to the error; a task that was killed leaves files that no snapshot names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from snowmelt.engine.tasks.jobs import spark_error
from snowmelt.engine.tasks.spark_job import run_on_spark
from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.engine.tiering.reading import SplitNews, cancel_group, run_in_group
from snowmelt.engine.tiering.tasks import SplitAnswer, SplitTask
from snowmelt.errors import SnowmeltError
from snowmelt.model.fluss import Bucket

CANCEL_S: Final = 0.2
"""Between two tries to cancel: the job may not have been there yet at the first."""


class PartlyRead(Exception):
    """Some splits were read and some were not."""

    def __init__(self, error: SnowmeltError, messages: tuple[bytes, ...]) -> None:
        super().__init__(str(error))
        self.error = error
        self.messages = messages


class SplitJob:
    """`read` once, in the round's thread; `stop` from any."""

    def __init__(self, spark: Any, news: SplitNews, leasing: Leasing, *, group: str, lease: str) -> None:
        self._spark = spark
        self._news = news
        self._leasing = leasing
        self._group = group
        self._lease = lease
        self._lock = threading.Lock()
        self._stopped: SnowmeltError | None = None
        """Why nothing more is read."""
        self._over: threading.Event | None = None
        """Set when the Spark job is over; None: there was none yet."""
        self._leased: frozenset[Bucket] = frozenset()
        self._ended: dict[Bucket, SplitAnswer] = {}
        """Splits that tasks have read, while their job runs."""

    def stop(self, why: SnowmeltError) -> None:
        """Nothing that is read from now on is of use. From any thread; returns at once."""
        with self._lock:
            first, self._stopped = self._stopped is None, self._stopped or why
            over = self._over
        self._leasing.end(self._lease)
        if first and over is not None:
            threading.Thread(target=self._cancel, args=(over,), name="snowmelt-cancel", daemon=True).start()

    def read(self, tasks: Sequence[SplitTask], run: Callable[[SplitTask], SplitAnswer], leased: frozenset[Bucket]) -> list[SplitAnswer]:
        """Run these tasks. `leased`: the buckets whose KV snapshots they read. `PartlyRead`: not all splits were read."""
        with self._lock:
            if self._stopped is not None:
                raise self._stopped
            self._leased = leased
            self._over = over = threading.Event()
        try:
            with self._news.told(self._group, self._split_ended) as report:
                answers = run_in_group(self._spark, self._group, lambda: run_on_spark(self._spark, tasks, partial(report, run)))
        except Exception as error:
            why = self._stopped or spark_error(error)
            with self._lock:
                staged = tuple(message for answer in self._ended.values() for message in answer.read.messages)
            raise PartlyRead(why, staged) from error
        finally:
            over.set()
        errors = [answer for answer in answers if isinstance(answer, SnowmeltError)]
        done = [answer for answer in answers if isinstance(answer, SplitAnswer)]
        if errors or self._stopped is not None:
            why = self._stopped or errors[0]
            raise PartlyRead(why, tuple(message for answer in done for message in answer.read.messages))
        return done

    def _cancel(self, over: threading.Event) -> None:
        while not over.is_set():
            cancel_group(self._spark, self._group)
            over.wait(CANCEL_S)

    def _split_ended(self, answer: SplitAnswer | SnowmeltError) -> None:
        """Called by Spark while other tasks of the job still run, in a thread that must not wait."""
        if isinstance(answer, SnowmeltError):
            self.stop(answer)
            return
        with self._lock:
            self._ended[answer.read.bucket] = answer
        if answer.read.bucket in self._leased:
            self._leasing.release(self._lease, frozenset({answer.read.bucket}))
