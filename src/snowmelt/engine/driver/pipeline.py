"""A pipeline as an object: it opens a driver's resources, boots the driver, and runs its loop until it is told to end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from snowmelt.commit.ledger import Ledger
from snowmelt.engine.driver.boot import boot
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.loop.driver import DriverLoop, Progress
from snowmelt.engine.loop.resources import Resources
from snowmelt.planning.asides import Requests


class PipelineDriver:
    """One driver. `run` returns when `until` says so, and raises what stops it."""

    def __init__(self, spark: Any, settings: Settings, requests: Requests | None = None) -> None:
        """`requests`: tables to copy again. The drivers of one process share it, so that each copy is begun once."""
        self.resources = Resources.open(spark, settings, Requests() if requests is None else requests)
        self.driver: DriverLoop | None = None
        """None until it has booted."""
        self._stopping = False

    def run(self, until: Callable[[PipelineDriver], bool] = lambda _: False) -> None:
        signs = self.resources.signs
        try:
            with contextlib.ExitStack() as ending:
                ending.callback(self.resources.jobs.close)
                ending.callback(self.resources.threads.close)
                ending.callback(self.resources.listening.close)
                driver = self.driver = boot(self.resources, ending, lambda: until(self) or self._stopping)
                while driver is not None and not until(self) and not (self._stopping and driver.at_rest):
                    driver.turn(stopping=self._stopping)
        except BaseException as error:
            signs.end(error)
            raise
        signs.end()

    def stop(self) -> None:
        """Finish the epoch under way and begin no other; `run` then returns. Chunk reads under way are lost: the next driver repeats
        them."""
        self._stopping = True

    @property
    def ledger(self) -> Ledger:
        """The tables and epochs, as far as the driver knows them."""
        return Ledger() if self.driver is None else self.driver.known.ledger

    def current(self) -> bool:
        """Whether every table is live and the lake has what the database had when this was asked."""
        return self.driver is not None and self.driver.current()

    def caught_up(self) -> bool:
        """Whether every table is live, or set aside, and the lake has what the database had when the driver started."""
        return self.driver is not None and self.driver.caught_up()

    @property
    def progress(self) -> Progress:
        """As of now; cheap enough to be asked for a few times a second."""
        return Progress() if self.driver is None else self.driver.progress
