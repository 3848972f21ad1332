"""The half of the contract that is about tables: what there is, and exact reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.model.table import TableId


class TableShape(Protocol):
    """A table as it is at one place of the log: a frozen value, equal to another of the same shape, picklable."""

    @property
    def id(self) -> TableId: ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; empty: none do."""
        ...


class SourceTables(Protocol):
    """What is asked of a database's tables. `Unavailable`: nothing happened, ask again. `InvalidConfig` and `SourceDrift`: an operator
    has to do something. `Corrupt`: the server's answer is none."""

    @property
    def kind(self) -> str:
        """The `type` of the source's section, and the tag of its durable records."""
        ...

    @property
    def system_databases(self) -> frozenset[str]:
        """Databases, in lower case, whose tables are never captured."""
        ...

    def schema_of(self, table: TableShape) -> pa.Schema:
        """The columns, in the order and with the types of every batch of the table's rows, read or decoded. No I/O."""
        ...

    def why_foreign(self, table: TableShape) -> str:
        """Why a table of this shape can never be captured, and what to do about it; empty: nothing says so. No I/O."""
        ...

    def read_tables(self, wanted: TablePredicate) -> Mapping[TableId, TableShape]:
        """The wanted tables that exist, by the server's own spelling, and sorted. They are not one snapshot."""
        ...

    def ignores_case(self) -> bool:
        """Whether the server compares names of tables without regard to case."""
        ...
