"""A server that is being compared with the lake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from snowmelt.databases.comparing.digests import Hash
from snowmelt.databases.contract.tables import TableShape
from snowmelt.databases.mysql.catalog import ignores_case, read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions, own
from snowmelt.databases.mysql.verify.source import SourceTable, choose_hash
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.table import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlComparing:
    options: MySqlOptions
    types: TypeOptions
    server: Server
    how: Hash
    """How this server hashes."""
    ignores_case: bool
    era: int

    @staticmethod
    def begin(options: MySqlOptions, types: TypeOptions, *, era: int) -> MySqlComparing:
        with Session(options) as session:
            return MySqlComparing(
                options=options, types=types, server=session.server, how=choose_hash(session), ignores_case=ignores_case(session), era=era
            )

    def read_tables(self, wanted: TablePredicate | Iterable[TableId]) -> Mapping[TableId, MySqlTable]:
        with Session(self.options) as session:
            return read_tables(session, wanted)

    def table(self, shape: TableShape, *, keyed: bool) -> SourceTable:
        return SourceTable(self, own(shape), keyed=keyed)
