"""Keys: which columns tell rows apart.

Laws:

- The primary key, else the first unique key that is never NULL; a key by a prefix or an expression identifies nothing,
  except that a primary key may hold prefixes.
- Names of columns are compared without case and told as their definitions spell them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from snowmelt.databases.mysql.ddl.definitions import Definition, read_references
from snowmelt.databases.mysql.ddl.words import Unreadable, Words
from snowmelt.databases.mysql.types.columns import MySqlColumn


@dataclass(slots=True)
class KeyClauses:
    """What a statement says about keys. A key that can't identify rows (a prefix, an expression) has no columns here."""

    primary: tuple[str, ...] | None = None
    unique: list[tuple[str, ...]] = field(default_factory=list)
    drops_primary: bool = False
    drops_index: bool = False


_ELEMENT_KEYS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"})


def at_key(words: Words) -> bool:
    return words.sees_any(_ELEMENT_KEYS) or words.sees("VECTOR", "INDEX") or words.sees("VECTOR", "KEY")


def read_key(words: Words, keys: KeyClauses) -> bool:
    """An index or constraint; True where it is a foreign key that writes to this table."""
    if words.skip("CONSTRAINT"):
        words.skip("IF", "NOT", "EXISTS")
        if not words.sees_any(frozenset({"PRIMARY", "UNIQUE", "FOREIGN", "CHECK"})):
            words.name()
    cascades = False
    if words.skip("PRIMARY"):
        words.expect("KEY")
        words.skip("IF", "NOT", "EXISTS")
        _key_name(words)
        keys.primary = key_parts(words, prefixes=True)
    elif words.skip("UNIQUE"):
        words.skip_any("INDEX", "KEY")
        _key_name(words)
        if columns := key_parts(words):
            keys.unique.append(columns)
    elif words.skip("FOREIGN"):
        words.expect("KEY")
        words.skip("IF", "NOT", "EXISTS")
        if not words.sees("("):
            words.name()
        words.skip_parentheses()
        words.expect("REFERENCES")
        cascades = read_references(words)
    elif words.skip("CHECK"):
        words.skip_parentheses()
    # An index's own options, and indexes that identify nothing.
    words.skip_to_comma()
    return cascades


def _key_name(words: Words) -> None:
    words.skip("IF", "NOT", "EXISTS")
    if not words.sees("(") and not words.sees("USING") and not words.sees("TYPE"):
        words.name()
    if words.skip_any("USING", "TYPE"):
        words.take()


def key_parts(words: Words, *, prefixes: bool = False) -> tuple[str, ...]:
    """The columns of a key; none where it has an expression or, unless asked for, a prefix of a column."""
    words.expect("(")
    columns: list[str] = []
    whole = True
    while True:
        if words.sees("("):
            words.skip_parentheses()
            whole = False
        else:
            columns.append(words.name())
            if words.sees("("):
                words.skip_parentheses()
                whole &= prefixes
            if words.skip("WITHOUT"):
                # WITHOUT OVERLAPS: unique by period only.
                whole = False
        words.skip_to_comma()
        if not words.skip(","):
            break
    words.expect(")")
    return tuple(columns) if whole else ()


def note_keys(raw: Definition, keys: KeyClauses) -> None:
    if raw.primary:
        keys.primary = (raw.name,)
    if raw.unique:
        keys.unique.append((raw.name,))


def spelled(names: tuple[str, ...], columns: list[MySqlColumn]) -> tuple[str, ...]:
    """Column names as their definitions spell them."""
    by_name = {column.name.lower(): column.name for column in columns}
    for name in names:
        if name.lower() not in by_name:
            raise Unreadable(f"a key names the column {name}, which the table has not")
    return tuple(by_name[name.lower()] for name in names)


def with_key_not_null(columns: list[MySqlColumn], primary: tuple[str, ...]) -> list[MySqlColumn]:
    names = {name.lower() for name in primary}
    return [replace(column, nullable=False) if column.name.lower() in names else column for column in columns]


def first_key(columns: list[MySqlColumn], keys: KeyClauses) -> tuple[tuple[str, ...], bool]:
    """The primary key, else the first unique key that is never NULL; the server keeps such keys in the order of definition."""
    if keys.primary is not None:
        return spelled(keys.primary, columns), True
    nullable = {column.name for column in columns if column.nullable}
    for unique in keys.unique:
        names = spelled(unique, columns)
        if not nullable & set(names):
            return names, False
    return (), False
