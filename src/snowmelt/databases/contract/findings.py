"""What an operator should know before a pipeline starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from snowmelt.errors import TEXT_MAX, printable
from snowmelt.model.table import TableId

NO_KEY: Final = "no-key"
"""The code for tables without a key, of every database. Their routes say what it means."""


class Level(StrEnum):
    """What a finding means for the start of a pipeline."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator should know. `code` never changes its meaning."""

    code: str
    level: Level
    fact: str
    remedy: str = ""
    tables: tuple[TableId, ...] = ()

    def __post_init__(self) -> None:
        # Some of it is what the server says.
        object.__setattr__(self, "fact", printable(self.fact, TEXT_MAX))
        object.__setattr__(self, "remedy", printable(self.remedy, TEXT_MAX))


@dataclass(frozen=True, slots=True)
class TableFinding(Finding):
    """A finding about the tables that it names. As an error it keeps them from being captured, and no others."""


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))
