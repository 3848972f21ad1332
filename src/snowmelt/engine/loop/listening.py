"""Tells the listeners of an epoch that every lake table has: makes the tags that are owed, marks partitions that are done, and gives
notices (`driving.listening`).

Nothing here stops or delays a commit for long. A thread makes the tags, and one the marks; the loop waits for it up to a limit. What fails,
or is not made by then, is logged and is owed with a later epoch. Tables for which it failed are tried last, so that they keep no other
table from its turn. For notices the loop does not wait at all (`engine.notices`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.done_partitions import DoneMark
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listeners import Period, Tag
from snowmelt.driving import listening
from snowmelt.driving.listening import Divided, MakeTags, MarkDone, Notify
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.model.partition import Unit
from snowmelt.sinks.contract import Sink

log = logging.getLogger(__name__)

WAIT_S_MAX: Final = 10.0
"""How long one epoch waits for its tags, and for its marks."""
PAUSE_S: Final = 60.0
"""How long nothing is tried after one that failed, so that a lake that refuses it is not asked, and a user not told, each epoch."""

Owed = TypeVar("Owed", bound=Tag | DoneMark)


class Listening:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        period: Period | None,
        open_lake: Callable[[], Sink],
        notifier: Notifier,
        *,
        done_delay_ms: int | None = None,
        wait_s: float = WAIT_S_MAX,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`period`: None for no tags. `done_delay_ms`: how long after its end a partition is done; None: none is marked. `open_lake` opens
        a sink for the thread that makes tags or marks."""
        self._notifier = notifier
        self._period = period
        self._done_delay_ms = done_delay_ms
        self.tags: InTime[Tag] = InTime("a tag", _tag, open_lake, wait_s=wait_s, pause_s=pause_s)
        self.marks: InTime[DoneMark] = InTime("the mark of a partition", _mark, open_lake, wait_s=wait_s, pause_s=pause_s)

    @property
    def marks_partitions(self) -> bool:
        return self._done_delay_ms is not None

    def hear(self, step: RunListeners, units: Mapping[str, Unit] | None = None) -> str:
        """The listeners' state with this epoch. `units`: of the tables that are divided by time."""
        divided = None if self._done_delay_ms is None else Divided(self._done_delay_ms, units or {})
        return perform(listening.hear(self._period, self._notifier.names, step, divided), self._act)

    def remind(self, ledger: Ledger) -> None:
        """Before the first epoch: give the notice that an earlier driver perhaps did not give."""
        perform(listening.remind(ledger, self._notifier.names), self._act)

    def close(self) -> None:
        self._notifier.close()

    def _act(self, request: Request[Any]) -> Any:
        match request:
            case MakeTags(owed):
                return {tag.target for tag in self.tags.make(owed)}
            case MarkDone(owed):
                return {mark.target: mark.upto_ms for mark in self.marks.make(owed)}
            case Notify(notice, names):
                return self._notifier.notify(notice, names)
            case _:
                raise InvariantBroken("listeners ask for what no lake does", detail=type(request).__name__)


class InTime(Generic[Owed]):
    """Makes what is owed to lake tables, in a thread of its own and within a time. Used by the thread that owns the machines."""

    def __init__(
        self, what: str, act: Callable[[Sink, Owed], None], open_lake: Callable[[], Sink], *, wait_s: float, pause_s: float
    ) -> None:
        self._what = what
        self._act: Callable[[Sink, Owed], None] = act
        self._open_lake = open_lake
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._began = 0.0
        self._trying = ""
        """The lake table whose turn it is."""
        self._failed: list[str] = []
        """Lake tables for which it failed; the last one failed last. Used by the thread while it lives, and by the loop otherwise."""

    def make(self, owed: Sequence[Owed]) -> list[Owed]:
        """Returns what was made in time."""
        now = time.monotonic()
        if now < self._not_before:
            return []
        if self._thread is not None and self._thread.is_alive():
            self._tell_it_hangs()
            return []
        made: list[Owed] = []
        self._failed = [target for target in self._failed if any(one.target == target for one in owed)]
        owed = sorted(owed, key=lambda one: self._failed.index(one.target) if one.target in self._failed else -1)
        self._began, self._trying = now, owed[0].target
        # One that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._work, args=(owed, made, now + self._wait_s), name="snowmelt-listener", daemon=True)
        self._thread.start()
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            self._tell_it_hangs()
        return list(made)

    def join(self) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, owed: Sequence[Owed], made: list[Owed], until: float) -> None:
        lake = None
        for place, one in enumerate(owed):
            if place and time.monotonic() >= until:
                # Of very many tables the rest has its turn with the next epoch. Each epoch tries one at least.
                return
            self._trying = one.target
            try:
                lake = lake or self._open_lake()
                self._act(lake, one)
            except Exception as error:
                self._put_off(str(error) if isinstance(error, SnowmeltError) else type(error).__name__, one.target)
                self._failed = [*(target for target in self._failed if target != one.target), one.target]
                continue
            made.append(one)

    def _tell_it_hangs(self) -> None:
        self._put_off(f"no answer for {time.monotonic() - self._began:.0f} s", self._trying)

    def _put_off(self, why: str, target: str) -> None:
        self._not_before = time.monotonic() + self._pause_s
        log.warning("%s could not be made and is tried again later", self._what, extra={"target": target, "why": why})


def _tag(lake: Sink, tag: Tag) -> None:
    found = lake.tag(tag.target, tag.name, tag.snapshot, tag.identity)
    if found != tag.snapshot:
        extra = {"target": tag.target, "tag": tag.name, "has": found, "snapshot": tag.snapshot}
        log.warning("a tag of this name is there already and stays as it is", extra=extra)


def _mark(lake: Sink, mark: DoneMark) -> None:
    marked = lake.mark_done(mark.target, mark.unit, after_ms=mark.after_ms, upto_ms=mark.upto_ms, now_ms=time.time_ns() // 1_000_000)
    if marked:
        log.info("partitions are done", extra={"target": mark.target, "partitions": marked})
