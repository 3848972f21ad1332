"""MySQL and MariaDB by the contract of databases. What is asked here is answered by the modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.databases.contract.tables import TableShape
from snowmelt.databases.mysql import catalog
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.preflight import Cascades, why_foreign
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import instance
from snowmelt.model.table import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class MySql:
    """A MySQL or MariaDB server. Implements `contract.Database`; a value that tasks get pickled."""

    kind: ClassVar[str] = "mysql"
    system_databases: ClassVar[frozenset[str]] = catalog.SYSTEM_DATABASES

    options: MySqlOptions = field(default_factory=MySqlOptions)
    types: TypeOptions = field(default_factory=TypeOptions)
    cascades: Cascades = Cascades.REFUSE
    """What to do with a table whose rows a foreign key changes without a word in the log."""
    server_id: int | None = None
    """What the capture calls itself; None: a number that follows from the pipeline's name."""

    def schema_of(self, table: TableShape) -> pa.Schema:
        return _own(table).arrow_schema(self.types)

    def why_foreign(self, table: TableShape) -> str:
        return why_foreign(_own(table))

    def read_tables(self, wanted: TablePredicate) -> Mapping[TableId, MySqlTable]:
        with Session(self.options) as session:
            return catalog.read_tables(session, wanted)

    def ignores_case(self) -> bool:
        with Session(self.options) as session:
            return catalog.ignores_case(session)


def _own(table: TableShape) -> MySqlTable:
    return instance(table, MySqlTable, "a table of another database")
