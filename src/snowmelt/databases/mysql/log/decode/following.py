"""Statements of the log, and the schemas after them."""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.databases.mysql.ddl import (
    AlterColumns,
    CreateTable,
    DatabaseDefaults,
    DropDatabase,
    DropTable,
    Ignored,
    Merged,
    NotUnderstood,
    RenameTable,
    Rewrites,
    RowsAsText,
    Rules,
    SchemaChange,
    Truncate,
    read_statement,
)
from snowmelt.databases.mysql.ddl.changes import MERGED, SEPARATE
from snowmelt.databases.mysql.log.decode.items import SchemaChanged
from snowmelt.databases.mysql.log.decode.refusals import logged_as_statement
from snowmelt.databases.mysql.log.decode.tables import LogServer
from snowmelt.databases.mysql.log.events import Query
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import BEGIN_ANEW, RECOPY, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId


class SchemaFollower:
    """Reads statements, and records the schemas that they leave in `schemas`."""

    def __init__(self, server: LogServer, schemas: SchemaHistory[MySqlTable], captured: Callable[[TableId], bool]) -> None:
        self._server = server
        self._schemas = schemas
        self._captured = captured
        self._collations: dict[str, str] = {}
        """The databases' default collations, as far as the log told them."""

    def follow(self, query: Query, position: Position, time_s: int, *, temporary: bool) -> SchemaChanged | None:
        """Make the schemas after a statement the ones in force; None if it changes no captured table. `temporary`: it used a temporary
        table."""
        rules = Rules.of_event(
            flavour=self._server.flavour,
            version=self._server.version,
            sql_mode=query.sql_mode,
            explicit_timestamps=query.explicit_timestamps,
            collations=query.collations,
            lower_case_names=self._server.lower_case_names,
        )
        changes = read_statement(
            query.sql,
            database=query.database,
            schemas=lambda table: self._schemas.find(table, position),
            captured=self._captured,
            defaults=lambda name: self._collations.get(name, rules.default_collation("utf8mb4")),
            rules=rules,
            temporary=temporary,
            databases=query.databases,
        )
        for change in changes:
            if isinstance(change, RowsAsText) and change.named:
                raise logged_as_statement(f"{change.verb} that names {', '.join(map(str, change.named))}", position)
            if isinstance(change, RowsAsText):
                raise logged_as_statement(f"{change.verb} that may reach a captured table by a view, trigger or function", position)
            self._apply(change, position)
        if all(isinstance(change, Ignored | RowsAsText) for change in changes):
            return None
        return SchemaChanged(position, time_s, query.sql, changes)

    def _apply(self, change: SchemaChange, position: Position) -> None:
        match change:
            case CreateTable(table=table):
                self._schemas.put(table.id, position, table)
            case AlterColumns(table=name, after=after) | Rewrites(table=name, after=after):
                self._schemas.put(name, position, after)
            case DropTable(table=name):
                self._schemas.put(name, position, None)
            case RenameTable(old=old, new=new, after=after):
                self._schemas.put(old, position, None)
                self._schemas.put(new, position, after)
            case DropDatabase(name=database):
                for known in self._schemas.tables():
                    if known.database == database:
                        self._schemas.put(known, position, None)
            case DatabaseDefaults(name=database, collation=collation):
                if collation is None:
                    self._collations.pop(database, None)
                else:
                    self._collations[database] = collation
            case NotUnderstood(statement=statement, reason=reason):
                raise SourceDrift(
                    "a statement can't be understood",
                    detail=f"{reason} at {position}: {statement[:500]}",
                    hint=BEGIN_ANEW,
                )
            case Merged(table=name):
                raise name.stuck(MERGED, detail=f"at {position}", hint=f"{SEPARATE}; then {RECOPY}")
            case Truncate() | Ignored() | RowsAsText():
                pass
