"""The source's section, of whatever database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from snowmelt.databases.contract import Database
from snowmelt.sections.document import Section
from snowmelt.sections.values import Pattern, Patterns


class SourceSection(Section, ABC):
    """What the section of every source has. `type` picks one of them (`config.registry`)."""

    if TYPE_CHECKING:
        # Each section declares all of its keys itself, in the order in which a user is told of them.
        type: str
        tables: Patterns
        exclude: tuple[Pattern, ...] = ()

    @property
    def fails_over(self) -> bool:
        """Whether a pipeline may continue on another server, where `SourceLog.place_after` finds the place."""
        return False

    @abstractmethod
    def database(self) -> Database:
        """Asks nothing of any server."""
        ...
