"""Commits the entries of the open epoch to their tables, many at once (`driving.committing.CommitEntries`).

The loop asks again and again, and does its other work between: it reads what was captured, hears tasks, and plans the next epoch. If one
table fails, no other is begun. All that are under way come to their end, and the gravest error decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

from snowmelt.commit.records import Committed, Intent
from snowmelt.driving.committing import EntryWork
from snowmelt.engine.failpoints import BETWEEN_TABLES, armed, reach
from snowmelt.engine.loop.lake_threads import LakeThreads, end_all, failed
from snowmelt.sinks.contract import Sink


class TableCommits:
    """Of one driver; used by the thread that owns the machines.

    Memory: a future for each entry of the open epoch that is not committed yet.
    """

    def __init__(self, lake: Sink, threads: LakeThreads, *, turn_s: float) -> None:
        """`turn_s`: how long the caller waits for commits before it does its other work."""
        self._lake = lake
        self._threads = threads
        self._turn_s = turn_s
        self._begun: dict[str, Future[int]] = {}
        """By lake table, of one epoch."""

    def go_on(self, intent: Intent, works: Sequence[EntryWork]) -> list[Committed]:
        """Begin what is not begun, wait for one turn at most, and return what was committed since the last call."""
        held_back = self._held_back(intent, works)
        for work in works:
            if work is not held_back and work.entry.target not in self._begun:
                future = self._threads.begin(partial(self._lake.commit, intent, work.entry, work.watermark_ms))
                self._begun[work.entry.target] = future
                if failed(future):
                    break
        begun = list(self._begun.values())
        wait(begun, timeout=self._turn_s)
        if any(failed(future) for future in begun):
            self._begun.clear()
            end_all(begun)
        return [Committed(target, self._begun.pop(target).result()) for target in [*self._begun] if self._begun[target].done()]

    @staticmethod
    def _held_back(intent: Intent, works: Sequence[EntryWork]) -> EntryWork | None:
        """Where a test lets the driver die between two tables, one table waits until all others are committed."""
        if len(intent.entries) == 1 or not armed(BETWEEN_TABLES):
            return None
        if len(works) == 1:
            reach(BETWEEN_TABLES)
            return None
        return works[-1]
