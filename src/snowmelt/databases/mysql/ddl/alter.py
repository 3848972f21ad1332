"""The actions of ALTER TABLE.

Laws:

- An unknown action means that the table must be read again; it is never silently skipped.
- A table that is not captured may take a captured one's name, or exchange rows with it. Nothing else of its ALTER is read,
  and nothing in it fails.
"""

from __future__ import annotations

from dataclasses import replace

from snowmelt.databases.mysql.ddl.alteration import Alteration, Placed
from snowmelt.databases.mysql.ddl.changes import Ignored, Rewrites, SchemaChange
from snowmelt.databases.mysql.ddl.create import read_database
from snowmelt.databases.mysql.ddl.definitions import read_default, read_definition
from snowmelt.databases.mysql.ddl.keys import at_key, read_key
from snowmelt.databases.mysql.ddl.options import Options, read_charset_option, read_shape_option
from snowmelt.databases.mysql.ddl.statement import Statement
from snowmelt.databases.mysql.ddl.words import END, Unreadable, Words
from snowmelt.model.table import TableId

_OPTION_NAMES = frozenset(
    {
        "AUTO_INCREMENT", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECKSUM", "TABLE_CHECKSUM", "COMPRESSION", "CONNECTION",
        "DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE",
        "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
        "PAGE_COMPRESSION_LEVEL", "PASSWORD", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES",
        "TABLESPACE", "TRANSACTIONAL", "STORAGE", "NODEGROUP", "ALGORITHM", "LOCK", "SECONDARY_ENGINE", "WAIT",
    }
)  # fmt: skip
_KEEPING_ENGINES = frozenset({"innodb", "myisam", "aria", "rocksdb", "tokudb", "ndb", "ndbcluster", "xtradb"})
_KEEPING_PARTITION_VERBS = frozenset({"REORGANIZE", "COALESCE", "REBUILD", "ANALYZE", "CHECK", "OPTIMIZE"})
_VERBS = frozenset({"ADD", "ALTER", "CHANGE", "CONVERT", "DROP", "MODIFY", "RENAME", "ORDER", "FORCE"})


def read_alter(statement: Statement) -> tuple[SchemaChange, ...]:
    words = statement.words
    ignore = False
    while words.sees_any(frozenset({"ONLINE", "OFFLINE", "IGNORE"})):
        ignore |= words.take().text.upper() == "IGNORE"
    if words.skip("DATABASE") or words.skip("SCHEMA"):
        return read_database(statement, created=False)
    if not words.skip("TABLE"):
        return (Ignored("ALTER of something that is no table"),)
    words.skip("IF", "EXISTS")
    table = statement.table()
    statement.skip_wait()
    if not statement.captured(table):
        return statement.with_merged(_alter_of_another(statement, table))
    statement.target = table
    return statement.with_merged(statement.altered(table, _actions(statement, table, ignore)))


def _alter_of_another(statement: Statement, table: TableId) -> tuple[SchemaChange, ...]:
    """ALTER of a table that is not captured. It may take a captured one's name, or exchange rows with it."""
    words = statement.words
    found: list[SchemaChange] = []
    try:
        while words.peek() is not END:
            other = _other_table(statement)
            if other is None:
                words.skip_one()
            elif other[0] == "RENAME":
                found += statement.renamed(table, other[1])
            elif statement.captured(other[1]):
                found.append(Rewrites(other[1], None, f"it exchanges rows with a partition of {table}", statement.sql))
    except Unreadable:
        # What can't be read to its end is another table's business.
        pass
    return tuple(found) or (Ignored("not a captured table"),)


def _other_table(statement: Statement) -> tuple[str, TableId] | None:
    words = statement.words
    if words.skip("EXCHANGE", "PARTITION"):
        words.name()
        words.expect("WITH")
        words.expect("TABLE")
        return "EXCHANGE", statement.table()
    if words.skip("CONVERT", "PARTITION"):
        words.name()
        words.expect("TO")
        words.expect("TABLE")
        return "CONVERT", statement.table()
    if words.skip("CONVERT", "TABLE"):
        return "CONVERT", statement.table()
    # A table may be renamed to a name that is one of these words, in quotes.
    if words.sees("RENAME") and not any(words.sees("RENAME", part) for part in ("COLUMN", "INDEX", "KEY")):
        words.take()
        words.skip_any("TO", "AS", "=")
        return "RENAME", statement.table()
    return None


def _actions(statement: Statement, table: TableId, ignore: bool) -> Alteration:
    words, alteration = statement.words, Alteration(ignore=ignore)
    while words.peek() is not END:
        if words.skip(",") or words.skip(";"):
            continue
        if not _action(statement, table, alteration):
            alteration.reasons.append(f"the action {words.peek().text.upper()[:40]} is not known")
            alteration.opaque = True
            words.take()
            words.skip_to_comma()
    return alteration


def _action(statement: Statement, table: TableId, alteration: Alteration) -> bool:
    words = statement.words
    if (other := _other_table(statement)) is not None:
        if other[0] == "RENAME":
            alteration.new_name = other[1]
        else:
            alteration.exchanged.append(other[1])
            alteration.reasons.append("a partition's rows move between tables")
        words.skip_to_comma()
        return True
    for verb, read in (
        ("ADD", _add),
        ("DROP", _drop_action),
        ("ALTER", _alter_action),
        ("CHANGE", _change),
        ("MODIFY", _modify),
        ("RENAME", _rename_action),
    ):
        if words.skip(verb):
            read(statement, table, alteration)
            return True
    if words.skip("CONVERT", "TO"):
        alteration.convert = Options()
        while read_charset_option(words, alteration.convert, statement.rules):
            pass
        return True
    return _table_action(statement, alteration)


def _known(statement: Statement, table: TableId, column: str) -> bool:
    shape = statement.shape(table)
    return shape is not None and any(c.name.lower() == column.lower() for c in shape.columns)


def _add(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    if words.skip("PARTITION"):
        _skip_partitions(words)
        return
    if words.sees("SYSTEM", "VERSIONING") or words.sees("PERIOD", "FOR"):
        words.skip_to_comma()
        alteration.reasons.append("system versioning or a period is added")
        alteration.opaque = True
        return
    if at_key(words):
        alteration.cascades |= read_key(words, alteration.keys)
        return
    words.skip("COLUMN")
    absent_only = words.skip("IF", "NOT", "EXISTS")
    if words.skip("("):
        while True:
            if at_key(words):
                alteration.cascades |= read_key(words, alteration.keys)
            else:
                _add_column(statement, table, alteration, absent_only)
            if not words.skip(","):
                break
        words.expect(")")
    else:
        _add_column(statement, table, alteration, absent_only)


def _add_column(statement: Statement, table: TableId, alteration: Alteration, absent_only: bool) -> None:
    placed = _placed(statement, statement.words.column_name(), None)
    if absent_only and _known(statement, table, placed.raw.name):
        return
    alteration.placed.append(placed)
    alteration.cascades |= placed.raw.cascades


def _placed(statement: Statement, name: str, old: str | None) -> Placed:
    words = statement.words
    placed = Placed(read_definition(words, name, statement.rules), old)
    if words.skip("FIRST"):
        placed.first = True
    elif words.skip("AFTER"):
        placed.place = words.column_name()
    return placed


def _change(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    words.skip("COLUMN")
    present_only = words.skip("IF", "EXISTS")
    old = words.column_name()
    placed = _placed(statement, words.column_name(), old)
    if not present_only or _known(statement, table, old):
        alteration.placed.append(placed)
        alteration.cascades |= placed.raw.cascades


def _modify(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    words.skip("COLUMN")
    present_only = words.skip("IF", "EXISTS")
    name = words.column_name()
    placed = _placed(statement, name, name)
    if not present_only or _known(statement, table, name):
        alteration.placed.append(placed)
        alteration.cascades |= placed.raw.cascades


def _rename_action(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    index = not words.skip("COLUMN")
    if index:
        words.take()
    present_only = words.skip("IF", "EXISTS")
    old = words.column_name()
    words.expect("TO")
    new = words.column_name()
    if not index and (not present_only or _known(statement, table, old)):
        alteration.renamed[old.lower()] = new


def _drop_action(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    if words.skip("PRIMARY", "KEY"):
        alteration.keys.drops_primary = True
    elif words.skip("PARTITION"):
        alteration.reasons.append("a partition's rows are dropped")
        _skip_partitions(words)
    elif words.sees("SYSTEM", "VERSIONING") or words.sees("PERIOD", "FOR"):
        alteration.reasons.append("system versioning or a period is dropped")
        alteration.opaque = True
        words.skip_to_comma()
    elif words.sees_any(frozenset({"INDEX", "KEY", "CONSTRAINT"})):
        words.take()
        words.skip("IF", "EXISTS")
        primary = words.name().upper() == "PRIMARY"
        alteration.keys.drops_primary |= primary
        alteration.keys.drops_index |= not primary
    elif words.skip("FOREIGN", "KEY") or words.skip("CHECK"):
        words.skip("IF", "EXISTS")
        words.name()
    else:
        words.skip("COLUMN")
        present_only = words.skip("IF", "EXISTS")
        name = words.column_name()
        words.skip_any("RESTRICT", "CASCADE")
        if not present_only or _known(statement, table, name):
            alteration.dropped.add(name.lower())


def _alter_action(statement: Statement, table: TableId, alteration: Alteration) -> None:
    words = statement.words
    if words.sees_any(frozenset({"INDEX", "KEY", "CHECK", "CONSTRAINT"})):
        words.skip_to_comma()
        return
    words.skip("COLUMN")
    words.skip("IF", "EXISTS")
    name = words.column_name().lower()
    if words.skip("SET", "DEFAULT"):
        default = read_default(words)
        text = default.text if default.kind == "literal" else None
        alteration.altered[name] = lambda column: replace(column, default=text)
    elif words.skip("DROP", "DEFAULT"):
        alteration.altered[name] = lambda column: replace(column, default=None)
    elif words.sees("SET", "VISIBLE") or words.sees("SET", "INVISIBLE"):
        invisible = words.peek(1).text.upper() == "INVISIBLE"
        words.skip_to_comma()
        alteration.altered[name] = lambda column: replace(column, invisible=invisible)
    else:
        raise Unreadable(f"a change of column {name} is not known")


def _table_action(statement: Statement, alteration: Alteration) -> bool:
    """Actions on the table as a whole, and its options."""
    words = statement.words
    if words.skip("PARTITION", "BY"):
        # The rest of the statement tells partitions: rows stay, or the server refuses.
        while words.peek() is not END:
            words.skip_one()
    elif words.skip("REMOVE", "PARTITIONING") or words.skip("FORCE") or words.skip("NOWAIT"):
        pass
    elif words.skip_any("ENABLE", "DISABLE"):
        words.expect("KEYS")
    elif words.skip_any("WITH", "WITHOUT"):
        words.expect("VALIDATION")
    elif words.sees_any(frozenset({"DISCARD", "IMPORT"})):
        words.skip_to_comma()
        alteration.reasons.append("its file is replaced")
    elif words.sees("TRUNCATE", "PARTITION"):
        words.take()
        words.take()
        _skip_partitions(words)
        alteration.reasons.append("a partition's rows are dropped")
    elif words.sees_any(_KEEPING_PARTITION_VERBS) and words.peek(1).text.upper() == "PARTITION":
        words.take()
        words.take()
        _skip_partitions(words)
    elif words.skip("ORDER", "BY"):
        words.skip_to_comma()
        while words.sees(",") and words.peek(1).text.upper() not in _VERBS:
            words.take()
            words.skip_to_comma()
    elif words.skip("DATA", "DIRECTORY") or words.skip("INDEX", "DIRECTORY"):
        words.skip("=")
        words.take()
    elif read_shape_option(words, alteration.options, statement.rules):
        engine = alteration.options.engine
        if engine is not None and engine.lower() not in _KEEPING_ENGINES:
            alteration.reasons.append(f"the engine {engine} may not keep rows")
        if alteration.options.versioned:
            alteration.reasons.append("system versioning is added")
            alteration.opaque = True
    elif words.sees_any(_OPTION_NAMES) or (words.peek(1).text == "=" and not words.sees("UNION")):
        words.take()
        words.skip("=")
        words.skip_one()
    else:
        return False
    return True


def _skip_partitions(words: Words) -> None:
    """Names of partitions are a list with commas of its own; nothing but partition clauses may follow it."""
    while words.peek() is not END:
        words.skip_one()
