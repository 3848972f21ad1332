"""Tells the listeners of an epoch that every lake table has: makes the tags that are owed (`commit.listeners`).

Nothing here stops or delays a commit for long. A thread makes the tags; the loop waits for it up to a limit. What fails, or is not made by
then, is told and is owed with a later epoch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.listeners import Period, Tag, decide_tagged, decide_tags, read_state, write_state
from snowmelt.errors import SnowmeltError
from snowmelt.sinks.contract import Sink

log = logging.getLogger(__name__)

WAIT_S_MAX: Final = 10.0
"""How long one epoch waits for its tags."""
PAUSE_S: Final = 60.0
"""How long no tag is tried after one that failed, so that a lake that refuses them is not asked, and a user not told, each epoch."""


class Listening:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self, period: Period | None, open_lake: Callable[[], Sink], *, wait_s: float = WAIT_S_MAX, pause_s: float = PAUSE_S
    ) -> None:
        """`period`: None for no tags. `open_lake` opens a sink for the thread that makes them."""
        self._period = period
        self._open_lake = open_lake
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._thread: threading.Thread | None = None
        self._not_before = 0.0

    def hear(self, step: RunListeners) -> str:
        """The listeners' state with this epoch. Without tags there is none: what an earlier run has left of it is dropped."""
        if self._period is None:
            return ""
        tagged = read_state(step.state)
        owed = decide_tags(self._period, tagged, step.reached)
        made = self._make(owed) if owed else set()
        missing = {tag.target for tag in owed} - made
        return write_state(decide_tagged(self._period, tagged, step.reached, missing))

    def _make(self, owed: Sequence[Tag]) -> set[str]:
        """Make tags, and tell whose were made in time."""
        if time.monotonic() < self._not_before or (self._thread is not None and self._thread.is_alive()):
            return set()
        made: list[str] = []
        until = time.monotonic() + self._wait_s
        # One that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._work, args=(owed, made, until), name="snowmelt-tags", daemon=True)
        self._thread.start()
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            waiting = (tag.target for tag in owed if tag.target not in made)
            self._put_off(f"no answer for {self._wait_s:g} s", next(waiting, owed[-1].target))
        return set(made)

    def _work(self, owed: Sequence[Tag], made: list[str], until: float) -> None:
        lake = None
        for tag in owed:
            if tag is not owed[0] and time.monotonic() >= until:
                # Of very many tables the rest has its turn with the next epoch. Each epoch tries one at least.
                return
            try:
                lake = lake or self._open_lake()
                found = lake.tag(tag.target, tag.name, tag.snapshot, tag.identity)
            except Exception as error:
                self._put_off(str(error) if isinstance(error, SnowmeltError) else type(error).__name__, tag.target)
                continue
            if found != tag.snapshot:
                extra = {"target": tag.target, "tag": tag.name, "has": found, "snapshot": tag.snapshot}
                log.warning("a tag of this name is there already and stays as it is", extra=extra)
            made.append(tag.target)

    def _put_off(self, why: str, target: str) -> None:
        self._not_before = time.monotonic() + self._pause_s
        log.warning("a tag could not be made and is tried again later", extra={"target": target, "why": why})
