"""What a driver has before it knows anything of its tables: settings, store, sink, Spark. A pipeline opens them, its driver uses them."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from snowmelt.databases.contract import Database
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.signs import EVERY_S, EVERY_S_IN_BUCKETS, Signs
from snowmelt.engine.driver.state import State
from snowmelt.engine.loop.lake_threads import LakeThreads
from snowmelt.engine.loop.listening import Listening
from snowmelt.engine.loop.table_commits import TableCommits
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.engine.tasks.jobs import Jobs, is_gone, raise_gone, slots_of
from snowmelt.errors import InvalidConfig, SnowmeltError
from snowmelt.planning.asides import Requests
from snowmelt.sinks.contract import Sink
from snowmelt.sinks.registry import open_sink
from snowmelt.store.objects import open_store

TURN_S: Final = 0.05
"""How long the loop sleeps when idle."""
_CHUNKS_AT_ONCE_MAX: Final = 8


class ServerClock:
    """How far the server's clock is ahead of ours, as it was last compared."""

    def __init__(self, source: Database) -> None:
        self._source = source
        self.ahead_ms = 0

    def compare(self) -> None:
        # A database that is away is asked next time; two clocks don't part that fast.
        with contextlib.suppress(SnowmeltError):
            self.ahead_ms = self._source.clock_ahead_ms()

    def compare_beside(self) -> None:
        """In a thread: a database that does not answer must not hold up what is captured already."""
        threading.Thread(target=self.compare, name="snowmelt-clocks", daemon=True).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Of one pipeline. The sink and the jobs belong to the thread that runs it."""

    settings: Settings
    requests: Requests
    state: State
    lake: Sink
    threads: LakeThreads
    commits: TableCommits
    listening: Listening
    spark: Any
    jobs: Jobs
    signs: Signs
    clock: ServerClock
    awake: threading.Event
    """Set whenever there is something to take up."""
    log_tasks: int
    """How many tasks share an epoch's log at most."""
    chunks_at_once: int
    maintenance_slots: int
    """How many tasks may maintain lake tables at once."""

    @property
    def user(self) -> str:
        """What the pipeline calls itself in the lake."""
        return user_of(self.settings)

    @staticmethod
    def open(spark: Any, settings: Settings, requests: Requests) -> Resources:
        state = State(open_store(settings.state))
        lake = open_lake(settings)
        if settings.sink.tags is not None and not lake.tags:
            raise InvalidConfig("this sink has no tags", hint="remove tags from its section")
        if not lake.partitions and (divided := next((route for route in settings.routes if route.partition), None)):
            raise InvalidConfig("this sink has no partitions", detail=divided.source, hint="remove partition_by from its route")
        if is_gone(spark):
            raise_gone()
        slots = slots_of(spark)
        at_once = max(2, slots - 1)
        maintenance_slots = settings.maintenance.slots or max(1, slots // 4)
        chunks_at_once = settings.pace.chunks_at_once or min(_CHUNKS_AT_ONCE_MAX, at_once)
        awake = threading.Event()
        notifier = Notifier(settings.name, settings.listeners)
        every_s = EVERY_S if settings.log_folder else EVERY_S_IN_BUCKETS
        lake_threads = LakeThreads(lake.at_once)
        return Resources(
            settings=settings,
            requests=requests,
            state=state,
            lake=lake,
            threads=lake_threads,
            commits=TableCommits(lake, lake_threads, turn_s=TURN_S),
            listening=Listening(settings.sink.tags, partial(open_lake, settings), notifier, done_delay_ms=settings.sink.done_delay_ms),
            spark=spark,
            # A thread for each job that may run at once, so that none waits for another: reads, the log, a sweep, maintenance.
            jobs=Jobs(spark, at_once=chunks_at_once + 2 + maintenance_slots, wake=awake.set),
            signs=Signs(state.store, settings.name, notifier, every_s=every_s),
            clock=ServerClock(settings.source),
            awake=awake,
            log_tasks=settings.pace.log_tasks or at_once,
            chunks_at_once=chunks_at_once,
            maintenance_slots=maintenance_slots,
        )


def open_lake(settings: Settings) -> Sink:
    """Open the pipeline's sink, for the thread that uses it."""
    return open_sink(settings.sink.warehouse, settings.sink.fluss, user=user_of(settings), state=settings.state)


def user_of(settings: Settings) -> str:
    return f"snowmelt-{settings.name}"
