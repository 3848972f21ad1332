"""Which tables of a log are read, and which server wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snowmelt.databases.mysql.log.tablemap import mapped_table
from snowmelt.databases.mysql.types.columns import Flavour, MySqlTable
from snowmelt.model.table import SchemaHistory, TableId


@dataclass(frozen=True, slots=True)
class LogServer:
    """What decides how a server's log is read."""

    flavour: Flavour
    version: tuple[int, int, int]
    lower_case_names: bool = False
    """Whether the server stores names of tables in lower case."""


@dataclass(slots=True)
class LogTables:
    """The tables whose rows are read, their schemas, and the commits from which on they are read."""

    flavour: Flavour
    schemas: SchemaHistory[MySqlTable]
    captured: Callable[[TableId], bool]
    low: Callable[[TableId], int] = lambda _: 0
    """Rows of the table that were committed at or before this offset are skipped, and not decoded."""

    def wants(self, until: int | None, body: bytes) -> bool:
        """Whether rows of a mapped table may come out, given the body of its map. `until`: where their group ends, if that is known."""
        table = mapped_table(body)
        return self.captured(table) and (until is None or until > self.low(table))
