"""The source's section, of whatever database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.config.document import Section
from snowmelt.config.values import Pattern, Patterns
from snowmelt.databases.contract import Database


class Failover(StrEnum):
    """What to do when another server answers."""

    REFUSE = "refuse"
    GTID = "gtid"


class SourceSection(Section, ABC):
    """What the section of every source has. `type` picks one of `config.registry.SOURCES`."""

    if TYPE_CHECKING:
        # Each section declares all of its keys itself, in the order in which a user is told of them.
        type: str
        tables: Patterns
        exclude: tuple[Pattern, ...] = ()
        failover: Failover = Failover.REFUSE

    @abstractmethod
    def database(self) -> Database:
        """Asks nothing of any server."""
        ...
