"""What the engine, verify, config and programs may know of a database.

A *database* is a value: options, and methods that open what they need and close it before they return. It is picklable, so that tasks get
it with their place; credentials are in it by reference. It has two halves: `tables` is what is asked of its tables, `log` what is asked of
its log. What a method says is durable only where it says so, and all of them may be called again.
"""

from __future__ import annotations

from typing import Protocol

from snowmelt.databases.contract.comparing import Comparing
from snowmelt.databases.contract.log import SourceLog
from snowmelt.databases.contract.tables import SourceTables


class Database(SourceTables, SourceLog, Protocol):
    """A database as a source of a pipeline."""

    def compare(self, *, era: int) -> Comparing:
        """Begin a comparison with the lake, at places of this era. `InvalidConfig`: the server can't hash rows."""
        ...
