"""Tells the listeners of an epoch that every lake table has: makes the tags that are owed, and gives notices (`driving.listening`).

Nothing here stops or delays a commit for long. A thread makes the tags; the loop waits for it up to a limit. A tag that fails, or is not
made by then, is logged and is owed with a later epoch. Tables whose tag failed are tried last, so that they keep no other table from its
tag. For notices the loop does not wait at all (`engine.notices`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listeners import Period, Tag
from snowmelt.driving import listening
from snowmelt.driving.listening import MakeTags, Notify
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.errors import InvariantBroken, SnowmeltError
from snowmelt.sinks.contract import Sink

log = logging.getLogger(__name__)

WAIT_S_MAX: Final = 10.0
"""How long one epoch waits for its tags."""
PAUSE_S: Final = 60.0
"""How long no tag is tried after one that failed, so that a lake that refuses them is not asked, and a user not told, each epoch."""


class Listening:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(
        self,
        period: Period | None,
        open_lake: Callable[[], Sink],
        notifier: Notifier,
        *,
        wait_s: float = WAIT_S_MAX,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`period`: None for no tags. `open_lake` opens a sink for the thread that makes them."""
        self._notifier = notifier
        self._period = period
        self._open_lake = open_lake
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._began = 0.0
        self._trying = ""
        """The lake table whose tag is being made."""
        self._failed: list[str] = []
        """Lake tables whose owed tag failed; the last one failed last. Used by the thread while it lives, and by the loop otherwise."""

    def hear(self, step: RunListeners) -> str:
        """The listeners' state with this epoch."""
        return perform(listening.hear(self._period, self._notifier.names, step), self._act)

    def remind(self, ledger: Ledger) -> None:
        """Before the first epoch: give the notice that an earlier driver perhaps did not give."""
        perform(listening.remind(ledger, self._notifier.names), self._act)

    def close(self) -> None:
        self._notifier.close()

    def _act(self, request: Request[Any]) -> Any:
        match request:
            case MakeTags(owed):
                return self._make(owed)
            case Notify(notice, names):
                return self._notifier.notify(notice, names)
            case _:
                raise InvariantBroken("listeners ask for what no lake does", detail=type(request).__name__)

    def _make(self, owed: Sequence[Tag]) -> set[str]:
        """Make tags. Returns the lake tables whose tags were made in time."""
        now = time.monotonic()
        if now < self._not_before:
            return set()
        if self._thread is not None and self._thread.is_alive():
            self._tell_it_hangs()
            return set()
        made: list[str] = []
        self._failed = [target for target in self._failed if any(tag.target == target for tag in owed)]
        owed = sorted(owed, key=lambda tag: self._failed.index(tag.target) if tag.target in self._failed else -1)
        self._began, self._trying = now, owed[0].target
        # One that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._work, args=(owed, made, now + self._wait_s), name="snowmelt-tags", daemon=True)
        self._thread.start()
        self._thread.join(self._wait_s)
        if self._thread.is_alive():
            self._tell_it_hangs()
        return set(made)

    def _work(self, owed: Sequence[Tag], made: list[str], until: float) -> None:
        lake = None
        for tag in owed:
            if tag is not owed[0] and time.monotonic() >= until:
                # Of very many tables the rest has its turn with the next epoch. Each epoch tries one at least.
                return
            self._trying = tag.target
            try:
                lake = lake or self._open_lake()
                found = lake.tag(tag.target, tag.name, tag.snapshot, tag.identity)
            except Exception as error:
                self._put_off(str(error) if isinstance(error, SnowmeltError) else type(error).__name__, tag.target)
                self._failed = [*(target for target in self._failed if target != tag.target), tag.target]
                continue
            if found != tag.snapshot:
                extra = {"target": tag.target, "tag": tag.name, "has": found, "snapshot": tag.snapshot}
                log.warning("a tag of this name is there already and stays as it is", extra=extra)
            made.append(tag.target)

    def _tell_it_hangs(self) -> None:
        self._put_off(f"no answer for {time.monotonic() - self._began:.0f} s", self._trying)

    def _put_off(self, why: str, target: str) -> None:
        self._not_before = time.monotonic() + self._pause_s
        log.warning("a tag could not be made and is tried again later", extra={"target": target, "why": why})
