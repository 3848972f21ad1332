"""A pipeline kept running: one driver after the other, and how it ends.

Laws:
- What may work later (`Unavailable`, `OutcomeUnknown`) starts a new driver after a pause that doubles. Too many in a row without a done
  epoch between them, and any other error, end the run.
- The first Ctrl-C or SIGTERM finishes the current epoch. The second ends the process at once, which loses nothing: what counts is in the
  store and in the lake.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

from snowmelt import budgets
from snowmelt.columnar.kernels import kernel_folder
from snowmelt.engine.loop.driver import Progress
from snowmelt.engine.tasks.jobs import SparkGone
from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.supervise.terminal import Watcher

LOOK_S: Final = 0.25
INTERRUPTED: Final = 130


class Interrupts:
    """Ctrl-C and SIGTERM: the first asks, the second ends the process."""

    def __init__(self, watcher: Watcher, *, leave: Callable[[int], object] = os._exit) -> None:
        self.asked = threading.Event()
        self._watcher = watcher
        self._leave = leave

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.hear)

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked.is_set():
            # The terminal is put right if that can be done at once: what was interrupted may hold what it takes.
            guard = threading.Timer(1.0, self._leave, [INTERRUPTED])
            guard.daemon = True
            guard.start()
            with contextlib.suppress(Exception):
                self._watcher.end()
            guard.cancel()
            self._leave(INTERRUPTED)
            return
        self.asked.set()

        # A print that was interrupted by this one can't be entered again; the loop tells it.


class Driver(Protocol):
    """What `supervise` needs of `engine.driver.pipeline.PipelineDriver`."""

    @property
    def progress(self) -> Progress: ...
    def run(self, until: Callable[[Any], bool]) -> None: ...
    def stop(self) -> None: ...
    def caught_up(self) -> bool: ...


def supervise(
    make: Callable[[], Driver],
    watcher: Watcher,
    asked: threading.Event,
    *,
    until_current: bool = False,
    ended: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Run drivers until the lake is current, `ended` says so, a user asks for the end, or an error that a new driver does not heal."""
    tries = epoch = 0
    while not asked.is_set():
        driver = make()
        try:
            driver.run(_look_and_decide(watcher, asked, lambda driver: ended() or (until_current and driver.caught_up()), clock))
        except SparkGone:
            # A new driver would need a new session, and this process had one.
            raise
        except (Unavailable, OutcomeUnknown) as error:
            reached = driver.progress.epoch
            tries = 1 if reached > epoch else tries + 1
            epoch = max(epoch, reached)
            if budgets.DRIVERS.is_spent(tries):
                raise type(error)(error.fact, detail=f"{error.detail}; {tries - 1} new drivers met the same".removeprefix("; ")) from error
            pause_s = budgets.DRIVERS.pause_s(tries)
            watcher.note("warning", f"{error}; a new driver starts in {pause_s:.0f} s, {tries} of {budgets.DRIVERS.retries_max}")
            asked.wait(pause_s)
        else:
            watcher.look(driver.progress, final=True)
            return driver.progress
    return Progress()


def _look_and_decide(
    watcher: Watcher, asked: threading.Event, over: Callable[[Driver], bool], clock: Callable[[], float]
) -> Callable[[Driver], bool]:
    due, told = 0.0, False

    def until(driver: Driver) -> bool:
        nonlocal due, told
        if asked.is_set() and not told:
            told = True
            watcher.note("note", "ending after the epoch under way; a second Ctrl-C ends at once")
            driver.stop()
        if clock() < due:
            return False
        due = clock() + LOOK_S
        watcher.look(driver.progress)
        return over(driver)

    return until


COMPILING_LINE_S: Final = 5.0


def start_compiling(watcher: Watcher, *, clock: Callable[[], float] = time.monotonic) -> Callable[[threading.Event], None]:
    """Compile the kernels of a pipeline's tasks in a thread, beside Spark's start, and tell how far that is. Where they are in the cache
    this takes a moment, and nothing is told. Returns what waits for its end, or until the event is set.

    Without this the first worker daemon would do it, for half a minute without a sign of why nothing happens.
    """
    due, failed, over = 0.0, [], threading.Event()

    def tell(ready: int, of: int) -> None:
        nonlocal due
        if not ready:
            watcher.note("note", f"compiling {of} kernels, which takes about half a minute; later starts find them in {kernel_folder()}")
        elif ready == of or clock() >= due:
            watcher.note("note", f"kernels: {ready} of {of} compiled")
        else:
            return
        due = clock() + COMPILING_LINE_S

    def work() -> None:
        try:
            from snowmelt.engine.tasks.warming import warm

            warm(tell)
        except Exception as error:
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=work, name="snowmelt-compiling", daemon=True).start()

    def wait(asked: threading.Event) -> None:
        while not over.wait(LOOK_S):
            if asked.is_set():
                return
        if failed:
            raise failed[0]

    return wait
