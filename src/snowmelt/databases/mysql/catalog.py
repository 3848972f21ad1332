"""Tables as the server's catalogue describes them.

Laws:
  - A shape is exact: a catalogue that hides columns from our user, or that changes while it is read, is an error.
  - Few queries: one for the names, then three per database that holds a wanted table. MySQL 5.6 and MariaDB open every
    table that a catalogue query touches and only look up by equality, hence the database by `=`.
  - Every existing table is found. MySQL 5.6 and MariaDB list tables by reading a folder, and may miss a table that is being
    altered at that moment. A query for its name always finds it. So names are listed more than once, and whatever a list
    lacks of a named table is queried by name. A table that is created again between the queries gets its key, too.
  - System databases, views, sequences and temporary tables are never captured.

What the log's row images hold, seen on MariaDB 10.11 and MySQL 8.0 with full images (tests/integration/test_catalog.py):
  - Columns come in the order of `ordinal_position`, invisible ones in their place.
  - VIRTUAL and STORED generated columns are both there, present and with their value, in before and after images, whatever
    the statement touched and whatever the engine.
  - The bits that pad the last byte of a bitmap mean nothing, and differ: MariaDB sets them to 0 in the present bitmap and
    to 1 in the null bitmap, MySQL the other way round.
  - MySQL's hidden columns of functional indexes are not there; its generated invisible primary key `my_row_id` is, and
    the catalogue shows it when the session asks for it, which ours does.
  - MariaDB adds columns that its catalogue does not show, after all others: `row_start` and `row_end` (TIMESTAMP(6)) of an
    implicitly system-versioned table, then one `DB_ROW_HASH_n` (BIGINT UNSIGNED) for each unique index that it keeps as a
    hash: those on TEXT and BLOB, on keys longer than the engine's limit, or declared USING HASH.
  - In a MariaDB system-versioned table an UPDATE is logged as an update and an insert of the history row, and a DELETE as
    an update of the row's end.
  - A MariaDB COMPRESSED column has the type 140 (blob) or 141 (varchar) in the log, and its value there is a header byte
    (0: what follows is plain; else its low 3 bits count the bytes of the big-endian plain length) and a deflate stream.
  - Character sets are named as this server names them: utf8 is utf8mb3 since MySQL 8.0.24 and MariaDB 10.6.
  - Labels of ENUM and SET are printed through utf8mb3: a character beyond the BMP is `?` in the catalogue. The log's own
    metadata (binlog_row_metadata=FULL) has it right.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from snowmelt.databases.mysql.answers import Kind, number, number_or_none, text, text_or_none
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.quoting import quote_table
from snowmelt.databases.mysql.types.columns import IMPLICIT_PERIOD, MySqlColumn, MySqlTable
from snowmelt.errors import Corrupt, InvalidConfig, Unavailable
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.table import TableId

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

NAME_CHARACTERS_MAX = 256
"""Servers have a limit of 64."""

LISTINGS = 6
LISTING_PAUSE_S = 0.01
"""One list in ten lacks a table that is altered all the time. A single ALTER hides a table for less than a millisecond."""

NAMES_IN_QUERY_MAX = 200
"""Up to this number of tables of a database are asked for by name; for more the whole database is read and filtered here."""


def ignores_case(session: Session) -> bool:
    """Whether the server compares names of databases and tables without regard to case."""
    return session.variable("lower_case_table_names") not in (None, "0")


def row_bytes(session: Session, table: TableId) -> int:
    """The average size of a row, by the server's statistics; 0 if it has none."""
    where = "WHERE table_schema = %s AND table_name = %s"
    arguments = [table.database, table.name]
    return session.value(f"SELECT avg_row_length FROM information_schema.tables {where}", arguments, kind=number_or_none) or 0


def read_tables(session: Session, wanted: TablePredicate | Iterable[TableId]) -> dict[TableId, MySqlTable]:
    """The wanted tables that exist, keyed and sorted by the server's own spelling. A table that is not there is left out.

    The reads are not one snapshot: a caller that needs the shape at a position compares the position, or the shape, again.
    """
    if session.server.flavour == "mysql" and session.server.version >= (8, 0, 30):
        session.execute("SET SESSION show_gipk_in_create_table_and_information_schema = ON")
    by_database: dict[str, list[str]] = defaultdict(list)
    for table in _find(session, wanted):
        by_database[table.database].append(table.name)
    found: dict[TableId, MySqlTable] = {}
    for database, names in by_database.items():
        found.update(_read_database(session, database, names))
    return {table: found[table] for table in sorted(found)}


def _lists_folders(session: Session) -> bool:
    """Whether a list of tables may lack a table that is being altered."""
    return session.server.flavour == "mariadb" or session.server.version < (8,)


def _find(session: Session, wanted: TablePredicate | Iterable[TableId]) -> Iterable[TableId]:
    """The existing tables among the wanted ones. Names and types alone are cheap: no table is opened for them."""
    if callable(wanted):
        found = _list(session, "", [])
        for _ in range(LISTINGS - 1 if _lists_folders(session) else 0):
            time.sleep(LISTING_PAUSE_S)
            found |= _list(session, "", [])
        return filter(wanted, found)
    fold = str.lower if ignores_case(session) else str
    asked = {(fold(table.database), fold(table.name)): table for table in wanted}
    there: dict[tuple[str, str], TableId] = {}
    for database in sorted({database for database, _ in asked}):
        listed = _list(session, "WHERE table_schema = %s", [database])
        there |= {(fold(table.database), fold(table.name)): table for table in listed}
    for folded, table in asked.items() if _lists_folders(session) else ():
        if folded not in there:
            for one in _list(session, "WHERE table_schema = %s AND table_name = %s", [table.database, table.name]):
                there[folded] = one
    return [there[folded] for folded in asked if folded in there]


def _list(session: Session, where: str, arguments: Sequence[str]) -> set[TableId]:
    select = "SELECT table_schema, table_name, table_type FROM information_schema.tables"
    rows = _rows(session, select, where, arguments, (text, text, text))
    if any(max(len(database), len(name)) > NAME_CHARACTERS_MAX for database, name, _ in rows):
        raise Corrupt("the server names a table as no server can", detail=f"longer than {NAME_CHARACTERS_MAX} characters")
    tables = (TableId(database, name) for database, name, kind in rows if kind in ("BASE TABLE", "SYSTEM VERSIONED"))
    return {table for table in tables if table.database.lower() not in SYSTEM_DATABASES}


def _read_database(session: Session, database: str, names: Sequence[str]) -> dict[TableId, MySqlTable]:
    found = _read_some(session, database, names)
    if len(names) > 1 and _lists_folders(session):
        for name in names:
            known = found.get(TableId(database, name))
            # The list may lack only its key.
            if known is None or not known.key:
                found.pop(TableId(database, name), None)
                found |= _read_some(session, database, [name])
    elif keyless := [table.name for table, shape in found.items() if not shape.key]:
        # A table that is dropped and created again between the queries may have its old columns here, and no key yet.
        found = {table: shape for table, shape in found.items() if shape.key} | _read_some(session, database, keyless)
    return found


def _read_some(session: Session, database: str, names: Sequence[str]) -> dict[TableId, MySqlTable]:
    where, arguments = "WHERE table_schema = %s", [database]
    if len(names) == 1:
        # Only equality is a look-up on MariaDB and MySQL 5.6; with IN they open every table of the database.
        where += " AND table_name = %s"
        arguments.append(names[0])
    elif len(names) <= NAMES_IN_QUERY_MAX:
        where += f" AND table_name IN ({', '.join(['%s'] * len(names))})"
        arguments += names
    described = _rows(
        session,
        "SELECT table_name, table_type, engine, table_collation, table_comment FROM information_schema.tables",
        where,
        arguments,
        (text, text, text_or_none, text_or_none, text_or_none),
    )
    columns: dict[str, list[tuple[int, MySqlColumn]]] = defaultdict(list)
    for name, ordinal, *rest in _rows(
        session,
        "SELECT table_name, ordinal_position, column_name, data_type, column_type, character_maximum_length, numeric_precision, "
        "numeric_scale, datetime_precision, character_set_name, collation_name, is_nullable, column_default, extra, "
        "column_comment FROM information_schema.columns",
        where,
        arguments,
        (text, number, text, text, text, *4 * (number_or_none,), text_or_none, text_or_none, text, *3 * (text_or_none,)),
    ):
        columns[name].append((ordinal, _column(rest, quoted_defaults=_quotes_defaults(session))))
    indexes: dict[str, dict[str, list[_IndexPart]]] = defaultdict(lambda: defaultdict(list))
    for name, index, ordinal, column, prefix in _rows(
        session,
        "SELECT table_name, index_name, seq_in_index, column_name, sub_part FROM information_schema.statistics",
        where + " AND non_unique = 0",
        arguments,
        (text, text, number, text_or_none, number_or_none),
    ):
        indexes[name][index].append((ordinal, column, prefix is not None))
    wanted = set(names)
    tables: dict[TableId, MySqlTable] = {}
    for name, kind, engine, collation, comment in described:
        if name not in wanted or not columns[name]:
            continue
        table = TableId(database, name)
        shape = _in_order(table, columns[name])
        key, primary = _key(session, table, shape, indexes[name])
        if kind == "SYSTEM VERSIONED" and _is_implicitly_versioned(session, table):
            shape, key = (*shape, *IMPLICIT_PERIOD), (*key, "row_end") if key else ()
        tables[table] = MySqlTable(
            id=table,
            columns=shape,
            key=key,
            key_is_primary=primary,
            engine=engine or "",
            charset=_charset_of(collation),
            collation=collation,
            comment=comment or "",
        )
    return tables


_IndexPart = tuple[int, str | None, bool]
"""Ordinal, column (None for an expression), whether only a prefix of the column is in the index."""


def _is_implicitly_versioned(session: Session, table: TableId) -> bool:
    """Whether one of MariaDB's system-versioned tables declares no period columns, so that the server adds them."""
    where = "WHERE table_schema = %s AND table_name = %s AND generation_expression = 'ROW END'"
    return not _rows(session, "SELECT column_name FROM information_schema.columns", where, [table.database, table.name], (text,))


def _rows(session: Session, select: str, where: str, arguments: Sequence[Any], columns: Sequence[Kind]) -> list[tuple[Any, ...]]:
    return session.query(f"{select} {where}", list(arguments) or None, columns=columns)


def _in_order(table: TableId, columns: list[tuple[int, MySqlColumn]]) -> tuple[MySqlColumn, ...]:
    columns = sorted(columns, key=lambda pair: pair[0])
    if [ordinal for ordinal, _ in columns] != list(range(1, len(columns) + 1)):
        # The catalogue shows a column only to users with a privilege on it; rows of the log hold all of them.
        raise InvalidConfig(
            f"the user sees only some columns of {table}",
            detail=f"positions {', '.join(str(ordinal) for ordinal, _ in columns)}",
            hint=f"GRANT SELECT ON {quote_table(table)} to the whole table, not to columns",
        )
    return tuple(column for _, column in columns)


def _key(
    session: Session, table: TableId, columns: tuple[MySqlColumn, ...], indexes: dict[str, list[_IndexPart]]
) -> tuple[tuple[str, ...], bool]:
    """The columns that tell rows apart, and whether they are the primary key.

    A primary key may have prefixes: rows that differ in a prefix differ in the whole column. Unique keys with prefixes are not
    used, because the server does not identify rows by them.
    """
    nullable = {column.name: column.nullable for column in columns}
    usable: dict[str, tuple[str, ...]] = {}
    for index, parts in indexes.items():
        names = [column for _, column, _ in sorted(parts, key=lambda part: part[0])]
        if index != "PRIMARY" and any(column is None or is_prefix for _, column, is_prefix in parts):
            continue
        if any(column not in nullable for column in names):
            raise Unavailable(f"{table} is changed while its catalogue entry is read", detail=f"index {index}")
        present = tuple(column for column in names if column is not None)
        if index == "PRIMARY":
            return present, True
        if not any(nullable[column] for column in present):
            usable[index] = present
    if not usable:
        return (), False
    if len(usable) == 1:
        return next(iter(usable.values())), False
    # Several are as good; the server's first one stays the first as long as it exists. Only this statement tells the
    # order on every version, and such tables are few.
    for _, _, index in session.query(f"SHOW INDEX FROM {quote_table(table)}", columns=(text, number, text)):
        if index in usable:
            return usable[index], False
    raise Unavailable(f"{table} is changed while its catalogue entry is read", detail="its unique indexes are gone")


def _quotes_defaults(session: Session) -> bool:
    """Whether the catalogue prints a default as an expression, as MariaDB does: strings in quotes, and NULL for none."""
    return session.server.flavour == "mariadb" and session.server.version >= (10, 2, 7)


def _column(row: Sequence[Any], *, quoted_defaults: bool) -> MySqlColumn:
    name, base, column_type, length, precision, scale, fsp, charset, collation, nullable, default, extra, comment = row
    base, extra = base.lower(), (extra or "").upper()
    labels = parse_labels(column_type) if base in ("enum", "set") else ()
    return MySqlColumn(
        name=name,
        base=base,
        unsigned=_unsigned(column_type, base),
        length=_length(base, column_type, length, precision),
        precision=number(precision) if base == "decimal" else None,
        scale=number(scale) if base == "decimal" else None,
        fsp=(fsp or 0) if base in ("datetime", "timestamp", "time") else 0,
        charset=charset,
        collation=collation,
        labels=labels,
        nullable=nullable == "YES",
        generated=_generated(extra),
        invisible="INVISIBLE" in extra,
        auto_increment="AUTO_INCREMENT" in extra,
        default=None if default is None or (quoted_defaults and default == "NULL") else default,
        comment=comment or "",
    )


_NUMERIC = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal"})


def _unsigned(column_type: str, base: str) -> bool:
    return base in _NUMERIC and ("unsigned" in column_type.lower() or "zerofill" in column_type.lower())


def _length(base: str, column_type: str, length: int | None, precision: int | None) -> int | None:
    if base in ("char", "varchar", "binary", "varbinary"):
        return number(length)
    if base == "bit":
        return number(precision)
    if base == "vector":
        dimensions = re.search(r"\((\d+)\)", column_type)
        return int(dimensions[1]) if dimensions else None
    return None


def _generated(extra: str) -> Literal["virtual", "stored"] | None:
    """`DEFAULT_GENERATED` is MySQL's word for a default by expression and does not count."""
    if "VIRTUAL" in extra:
        return "virtual"
    return "stored" if "STORED GENERATED" in extra or "PERSISTENT" in extra else None


def _charset_of(collation: str | None) -> str | None:
    # Each collation is named after its character set; MariaDB's own list of collations is not complete since 10.10.
    return collation.split("_")[0] if collation else None


_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def parse_labels(column_type: str) -> tuple[str, ...]:
    """The labels of `enum('a','it''s','back\\\\slash')`, as the catalogue or SHOW CREATE TABLE prints the type."""
    opened = re.match(r"\s*(?:enum|set)\s*\(", column_type, re.IGNORECASE)
    if opened is None:
        raise Corrupt("not the type of an ENUM or SET", detail=column_type[:100])
    labels: list[str] = []
    at = opened.end()
    while True:
        label = _LABEL.match(column_type, at)
        if label is None:
            raise Corrupt("the labels of an ENUM or SET can't be read", detail=f"at character {at}")
        labels.append(_ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]) if found[1] else "'", label[1]))
        at = label.end()
        if column_type[at : at + 1] != ",":
            break
        at += 1
    if column_type[at : at + 1] != ")":
        raise Corrupt("the labels of an ENUM or SET can't be read", detail=f"at character {at}")
    return tuple(labels)
