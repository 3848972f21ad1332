"""CREATE of tables, indexes and databases.

Laws:

- A table created by a query is read only where the log gives its columns, as row-based logs do.
- What follows the columns and is not known has no effect on the shape.
"""

from __future__ import annotations

from dataclasses import replace

from snowmelt.databases.mysql.ddl.alteration import Alteration
from snowmelt.databases.mysql.ddl.changes import CreateTable, DatabaseDefaults, DropTable, Ignored, SchemaChange
from snowmelt.databases.mysql.ddl.definitions import Definition, complete, read_definition
from snowmelt.databases.mysql.ddl.keys import KeyClauses, at_key, first_key, key_parts, note_keys, read_key, with_key_not_null
from snowmelt.databases.mysql.ddl.options import Options, read_charset_option, read_shape_option
from snowmelt.databases.mysql.ddl.statement import Statement
from snowmelt.databases.mysql.ddl.words import END, Unreadable, Words, lex
from snowmelt.databases.mysql.types.columns import IMPLICIT_PERIOD, MySqlTable
from snowmelt.model.table import TableId

_DATABASE_OPTIONS = frozenset({"DEFAULT", "CHARSET", "CHARACTER", "COLLATE", "UPGRADE", "READ", "ENCRYPTION", "COMMENT"})


def read_create(statement: Statement) -> tuple[SchemaChange, ...]:
    words = statement.words
    replaces = words.skip("OR", "REPLACE")
    if words.skip("DATABASE") or words.skip("SCHEMA"):
        return read_database(statement, created=True)
    if words.skip("TABLE"):
        return statement.with_merged(_create_table(statement, replaces))
    if words.skip("TEMPORARY"):
        return _of_no_concern(statement, "a temporary table")
    words.skip_any("ONLINE", "OFFLINE")
    unique = words.skip("UNIQUE")
    if not unique:
        words.skip_any("FULLTEXT", "SPATIAL", "VECTOR")
    if not words.skip("INDEX"):
        return (Ignored("CREATE of something that is no table"),)
    words.skip("IF", "NOT", "EXISTS")
    words.name()
    if words.skip_any("USING", "TYPE"):
        words.take()
    words.expect("ON")
    table = statement.table()
    if not statement.captured(table):
        return (Ignored("not a captured table"),)
    statement.target = table
    columns = key_parts(words)
    return statement.altered(table, Alteration(keys=KeyClauses(unique=[columns] if unique and columns else [], drops_index=replaces)))


def read_database(statement: Statement, *, created: bool) -> tuple[SchemaChange, ...]:
    words = statement.words
    words.skip("IF", "NOT", "EXISTS")
    name = statement.database
    if not words.sees_any(_DATABASE_OPTIONS):
        name = words.name()
    options = Options()
    while words.peek() is not END:
        if not read_charset_option(words, options, statement.rules):
            words.take()
    name = statement.rules.stored_name(name)
    if options.charset is None and options.collation is None:
        return (DatabaseDefaults(name, None),) if created else (Ignored("ALTER DATABASE"),)
    inherited = "utf8mb4_general_ci"
    return (DatabaseDefaults(name, options.resolved(inherited, statement.rules)),)


def _of_no_concern(statement: Statement, reason: str) -> tuple[SchemaChange, ...]:
    """A table that is not captured. The log has its query only as text, and that may call a function that changes others."""
    return (statement.rows_as_text("CREATE"),) if _goes_on_with_query(statement.words) else (Ignored(reason),)


def _goes_on_with_query(words: Words) -> bool:
    while words.peek() is not END:
        word = words.take()
        query = word.text.upper() if word.kind == "word" else ""
        # VALUES IN and VALUES LESS THAN are of partitions.
        if query == "SELECT" or (query == "VALUES" and not words.sees("IN") and not words.sees("LESS")):
            return True
    return False


def _create_table(statement: Statement, replaces: bool) -> tuple[SchemaChange, ...]:
    words, rules = statement.words, statement.rules
    known_to_stay = words.skip("IF", "NOT", "EXISTS")
    table = statement.table()
    if not statement.captured(table):
        return _of_no_concern(statement, "not a captured table")
    statement.target = table
    if known_to_stay and statement.shape(table) is not None:
        return (Ignored("the table existed already"),)
    try:
        return _captured_table(statement, table, replaces)
    except Unreadable as why:
        # A query of its own, which only logs of statements hold, may call a function that changes other tables.
        by_query = _goes_on_with_query(Words(lex(statement.sql, rules)))
        return *((statement.rows_as_text("CREATE"),) if by_query else ()), *statement.not_understood(str(why))


def _captured_table(statement: Statement, table: TableId, replaces: bool) -> tuple[SchemaChange, ...]:
    words, rules = statement.words, statement.rules
    gone: tuple[SchemaChange, ...] = (DropTable(table),) if replaces and statement.shape(table) is not None else ()
    if words.skip("LIKE") or words.skip("(", "LIKE"):
        model = statement.shape(statement.table())
        if model is None:
            raise Unreadable("it is made like a table whose shape is not known")
        return *gone, CreateTable(replace(model, id=table))
    words.expect("(")
    definitions: list[Definition] = []
    keys = KeyClauses()
    cascades = False
    while True:
        if at_key(words):
            cascades |= read_key(words, keys)
        elif words.sees("PERIOD", "FOR"):
            words.skip_to_comma()
        else:
            raw = read_definition(words, words.column_name(), rules)
            definitions.append(raw)
            cascades |= raw.cascades
            note_keys(raw, keys)
        if not words.skip(","):
            break
    words.expect(")")
    options = _create_options(statement)
    collation = options.resolved(statement.defaults(table.database), rules)
    columns = with_key_not_null([complete(raw, collation, rules) for raw in definitions], keys.primary or ())
    key, is_primary = first_key(columns, keys)
    if options.versioned:
        ends = [raw.name for raw in definitions if raw.period == "END"]
        if not ends:
            columns += IMPLICIT_PERIOD
            ends = ["row_end"]
        # Versions of a row share its key, so the server adds the row's end to it.
        key = (*key, *ends) if key else ()
    shape = MySqlTable(
        id=table,
        columns=tuple(columns),
        key=key,
        key_is_primary=is_primary,
        engine=options.engine or "InnoDB",
        charset=rules.charset_of(collation),
        collation=collation,
        comment=options.comment or "",
    )
    return *gone, CreateTable(shape, cascades)


def _create_options(statement: Statement) -> Options:
    """What follows the columns of CREATE TABLE. What we don't know has no effect on the shape."""
    words, options = statement.words, Options()
    while words.peek() is not END:
        if words.sees_any(frozenset({"SELECT", "AS", "VALUES", "TABLE"})) or words.sees("(", "SELECT"):
            # Only statement-based logs hold this: row-based ones give the columns, then rows.
            raise Unreadable("it is created by a query")
        if not read_shape_option(words, options, statement.rules):
            words.skip_one()
    return options
