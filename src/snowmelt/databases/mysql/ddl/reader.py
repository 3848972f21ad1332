"""A statement of the log, told by its first word.

Laws:

- A statement that names no captured table never fails, whatever its syntax: the kind and the target are read first, and the
  rest only where it matters.
- A statement of a kind that we don't know concerns whatever captured table it names.
"""

from __future__ import annotations

from collections.abc import Callable

from snowmelt.databases.mysql.ddl.alter import read_alter
from snowmelt.databases.mysql.ddl.alteration import Alteration
from snowmelt.databases.mysql.ddl.changes import DropDatabase, DropTable, Ignored, Rewrites, SchemaChange, Truncate
from snowmelt.databases.mysql.ddl.create import read_create
from snowmelt.databases.mysql.ddl.keys import Keys
from snowmelt.databases.mysql.ddl.rules import Rules
from snowmelt.databases.mysql.ddl.statement import Shapes, Statement
from snowmelt.databases.mysql.ddl.words import END, Unreadable
from snowmelt.model.table import TableId

_FREE = frozenset(
    {
        "BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "SET", "USE", "GRANT", "REVOKE", "FLUSH",
        "ANALYZE", "OPTIMIZE", "CHECK", "CHECKSUM", "REPAIR", "CACHE", "INSTALL", "UNINSTALL", "KILL", "RESET", "PURGE",
        "CHANGE", "STOP", "LOCK", "UNLOCK", "HANDLER", "HELP", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PREPARE", "EXECUTE",
        "DEALLOCATE", "SIGNAL", "BINLOG", "SHUTDOWN", "RESTART", "CLONE", "BACKUP", "DO", "SELECT", "CALL", "VALUES",
    }
)  # fmt: skip
"""Statements that change no rows of tables and no shapes."""
_ROWS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "MERGE", "IMPORT"})
"""Statements that change rows; in the log as text only where the session's binlog_format is not ROW."""


def read_statement(
    sql: str,
    *,
    database: str,
    schemas: Shapes,
    captured: Callable[[TableId], bool],
    defaults: Callable[[str], str],
    rules: Rules,
) -> tuple[SchemaChange, ...]:
    """What a QUERY event does to captured tables, in order. `database` is the session's; `defaults` gives a database's
    default collation. Never raises for what the text holds."""
    statement = Statement(sql, database, schemas, captured, defaults, rules)
    try:
        return _read(statement)
    except Unreadable as why:
        return statement.not_understood(str(why))


def _read(statement: Statement) -> tuple[SchemaChange, ...]:
    words = statement.words
    while words.skip(";") or words.skip("("):
        pass
    first = words.take()
    verb = first.text.upper() if first.kind == "word" else ""
    match verb:
        case "" if first is END:
            return (Ignored("an empty statement"),)
        case "CREATE":
            return read_create(statement)
        case "ALTER":
            return read_alter(statement)
        case "DROP":
            return _drop(statement)
        case "RENAME":
            return _rename(statement)
        case "TRUNCATE":
            words.skip("TABLE")
            return statement.for_captured([statement.table()], Truncate)
        case _ if verb in _FREE:
            return (Ignored(verb),)
        case _ if verb in _ROWS:
            return _rows(statement, verb)
    return statement.not_understood("the statement's kind is not known")


def _rows(statement: Statement, verb: str) -> tuple[SchemaChange, ...]:
    """Rows changed by text. The text itself holds values and is not kept."""
    words = statement.words
    if verb == "DELETE" and words.sees("FROM"):
        words.take()
        table = statement.table()
        words.skip(";")
        if words.peek() is END:
            # A server that starts anew logs this for each MEMORY table.
            return statement.for_captured([table], Truncate)
    reason = f"{verb} was logged as a statement, not as rows"
    return tuple(Rewrites(table, statement.shape(table), reason, verb) for table in statement.mentioned()) or (Ignored(verb),)


def _drop(statement: Statement) -> tuple[SchemaChange, ...]:
    words = statement.words
    if words.skip("DATABASE") or words.skip("SCHEMA"):
        words.skip("IF", "EXISTS")
        name = words.name()
        return (DropDatabase(name.lower() if statement.rules.lower_case_names else name),)
    if words.sees("TABLE") or words.sees("TABLES"):
        words.take()
        words.skip("IF", "EXISTS")
        tables = [statement.table()]
        while words.skip(","):
            tables.append(statement.table())
        return statement.for_captured(tables, DropTable)
    words.skip_any("ONLINE", "OFFLINE")
    if words.skip("INDEX"):
        words.skip("IF", "EXISTS")
        index = words.name()
        words.expect("ON")
        table = statement.table()
        keys = Keys(drops_primary=index.upper() == "PRIMARY", drops_index=index.upper() != "PRIMARY")
        return statement.altered(table, Alteration(keys=keys))
    return (Ignored("DROP of something that is no table"),)


def _rename(statement: Statement) -> tuple[SchemaChange, ...]:
    words = statement.words
    if not words.skip_any("TABLE", "TABLES"):
        return (Ignored("RENAME of something that is no table"),)
    words.skip("IF", "EXISTS")
    changes: list[SchemaChange] = []
    while True:
        old = statement.table()
        statement.skip_wait()
        words.expect("TO")
        changes += statement.renamed(old, statement.table())
        if not words.skip(","):
            return tuple(changes) or (Ignored("not a captured table"),)
