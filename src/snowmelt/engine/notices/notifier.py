"""Gives notices to listeners, each in a thread of its own, beside the loop (`driving.listening`).

A thread calls its listener with the newest notice that it has. While a call runs, or waits to be repeated, later notices replace one
another, and the newest is given next. So a slow listener delays neither epochs nor other listeners, and nothing piles up. A call that
fails is repeated, with longer and longer pauses. The log says when a listener begins to fail and when it takes notices again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from snowmelt import budgets
from snowmelt.budgets import RetryBudget
from snowmelt.commit.notices import ListenerProgress, Notice
from snowmelt.engine.notices.calls import CallFailed, Listener
from snowmelt.model.numbers import EpochNumber

log = logging.getLogger(__name__)

_END_S: Final = 1.0
"""How much longer than its time a call may take before the driver ends without it."""


class Notifier:
    """Of one driver; used by the thread that owns the machines.

    Memory: a thread and two notices for each listener.
    """

    def __init__(self, pipeline: str, listeners: Sequence[Listener], *, budget: RetryBudget = budgets.NOTICES) -> None:
        self._pipeline = pipeline
        self._callers = {listener.name: _Caller(listener, budget) for listener in listeners}

    @property
    def names(self) -> list[str]:
        return list(self._callers)

    @property
    def known(self) -> dict[str, ListenerProgress]:
        """Of each listener that this driver has called."""
        return {name: told for name, caller in self._callers.items() if (told := caller.told) is not None}

    def notify(self, notice: Notice, names: Iterable[str]) -> Mapping[str, ListenerProgress]:
        """Begin to give a notice. Returns at once."""
        document = write_document(self._pipeline, notice)
        for name in names:
            self._callers[name].give(notice.epoch, document)
        return self.known

    def close(self) -> None:
        """End the threads. A listener that has not taken the newest notice gets it first, unless its last call failed. Returns in the time
        of one call or two."""
        for caller in self._callers.values():
            caller.end()
        for caller in self._callers.values():
            caller.wait()


class _Caller:
    """Of one listener. `give` and `end` are called by one thread; its own thread calls."""

    def __init__(self, listener: Listener, budget: RetryBudget) -> None:
        self._listener = listener
        self._budget = budget
        self._changed = threading.Condition()
        self._due: tuple[EpochNumber, bytes] | None = None
        self._told: ListenerProgress | None = None
        self._ended = False
        # One that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._work, name=f"snowmelt-notices-{listener.name}", daemon=True)

    @property
    def told(self) -> ListenerProgress | None:
        with self._changed:
            return self._told

    def give(self, epoch: EpochNumber, document: bytes) -> None:
        with self._changed:
            if self._due is None and self._told is not None and epoch <= self._told.epoch:
                return
            self._due = epoch, document
            self._changed.notify()
        if not self._thread.is_alive() and not self._ended:
            self._thread.start()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def wait(self) -> None:
        if self._thread.is_alive():
            # A call under way, and one with the newest notice.
            self._thread.join(2 * self._listener.timeout_s + _END_S)

    def _work(self) -> None:
        failures = 0
        while (due := self._next(failures)) is not None:
            why = self._call(due[1])
            if why and not failures:
                log.warning("a listener does not take its notice; it is called again", extra={"listener": self._listener.name, "why": why})
            if failures and not why:
                log.info("a listener takes notices again", extra={"listener": self._listener.name})
            failures = failures + 1 if why else 0
            with self._changed:
                before = ListenerProgress() if self._told is None else self._told
                self._told = ListenerProgress(before.epoch, why) if why else ListenerProgress(max(before.epoch, due[0]))
                if not why and self._due is due:
                    self._due = None

    def _next(self, failures: int) -> tuple[EpochNumber, bytes] | None:
        """The newest notice, once it is time to call. None: the driver ends."""
        with self._changed:
            if failures:
                self._changed.wait_for(lambda: self._ended, self._budget.pause_s(failures))
                return None if self._ended else self._due
            self._changed.wait_for(lambda: self._ended or self._due is not None)
            return self._due

    def _call(self, document: bytes) -> str:
        """Why it failed; empty: it did not."""
        try:
            self._listener.call(document)
        except CallFailed as error:
            return str(error)
        except Exception as error:
            return type(error).__name__
        return ""


def write_document(pipeline: str, notice: Notice) -> bytes:
    """Equal notices have equal documents."""
    tables = [{"table": one.target, "snapshot": one.snapshot, "committed_ms": one.watermark_ms} for one in notice.tables]
    identity = f"{pipeline}/{notice.epoch}/{notice.identity}"
    return json.dumps({"id": identity, "pipeline": pipeline, "epoch": notice.epoch, "tables": tables}).encode()
