"""A statement in its session: its words, the tables that they name, and the shapes so far.

Laws:

- A name without a database is one of the session's; names are compared as spelled, lower-cased first where the server
  does so.
- A later part of a statement sees the effect of an earlier part, as in a RENAME that swaps tables.
- Text that can't be read is an error only if it may concern a captured table. If no target was read, any word may be one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

from snowmelt.databases.mysql.ddl.alteration import Alteration, apply
from snowmelt.databases.mysql.ddl.changes import Ignored, Merged, NotUnderstood, RenameTable, Rewrites, RowsAsText, SchemaChange
from snowmelt.databases.mysql.ddl.rules import Rules
from snowmelt.databases.mysql.ddl.words import END, IDENTIFIER, Unreadable, Words, lex
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.model.table import TableId

Shapes = Callable[[TableId], MySqlTable | None]

_PLAIN_WORDS = re.compile(f"{IDENTIFIER}+")
_QUOTED_WORDS = re.compile(rf'`((?:[^`]|``)*)`|"((?:[^"]|"")*)"|({IDENTIFIER}+)')


class Statement:
    """One statement in its session."""

    def __init__(
        self,
        sql: str,
        database: str,
        schemas: Shapes,
        captured: Callable[[TableId], bool],
        defaults: Callable[[str], str],
        rules: Rules,
        databases: frozenset[str] | None = None,
    ) -> None:
        self.sql = sql
        self.database = database
        self.captured = captured
        self.defaults = defaults
        self.rules = rules
        self.words = Words(lex(sql, rules))
        self._databases = databases
        self._schemas = schemas
        # Shapes that earlier parts of this very statement left, as a RENAME of several tables does.
        self._shapes: dict[TableId, MySqlTable | None] = {}
        # The captured table that the statement is about, once its name is read: what follows and can't be read concerns it.
        self.target: TableId | None = None

    def shape(self, table: TableId) -> MySqlTable | None:
        return self._shapes[table] if table in self._shapes else self._schemas(table)

    def table(self) -> TableId:
        return _table(self.words, self.database, self.rules)

    def table_id(self, database: str, name: str) -> TableId:
        return _table_id(database, name, self.rules)

    def for_captured(self, tables: list[TableId], change: Callable[[TableId], SchemaChange]) -> tuple[SchemaChange, ...]:
        return tuple(change(table) for table in tables if self.captured(table)) or (Ignored("not a captured table"),)

    def mentioned(self) -> tuple[TableId, ...]:
        """Captured tables that the text may name, found without any grammar. A pattern captures any word, so it must exist."""
        found: set[TableId] = set()
        # A quote inside a string may seem to open a name that ends far after it, hence the plain words of the whole text too.
        quoted = [one.replace("``", "`") or two.replace('""', '"') or three for one, two, three in _QUOTED_WORDS.findall(self.sql)]
        for words in (_PLAIN_WORDS.findall(self.sql), quoted):
            found |= {self.table_id(self.database, word) for word in words}
            found |= {self.table_id(one, two) for one, two in itertools.pairwise(words)}
        return tuple(sorted(table for table in found if self.captured(table) and self.shape(table) is not None))

    def rows_as_text(self, verb: str) -> RowsAsText:
        """The result for a statement that changes rows without row events."""
        known = self._databases
        databases = None if known is None else frozenset(self.rules.stored_name(name) for name in known)
        return RowsAsText(verb, self.mentioned(), databases)

    def with_merged(self, changes: tuple[SchemaChange, ...]) -> tuple[SchemaChange, ...]:
        """These changes, and those of captured tables that the statement makes part of a MERGE table, captured or not."""
        return *changes, *(Merged(table) for table in merged_tables(self.sql, self.database, self.rules) if self.captured(table))

    def not_understood(self, reason: str) -> tuple[SchemaChange, ...]:
        tables = (self.target,) if self.target is not None else self.mentioned()
        return (NotUnderstood(tables, self.sql, reason),) if tables else (Ignored(f"no captured table is named; {reason}"),)

    def renamed(self, old: TableId, new: TableId, *, if_exists: bool = False) -> list[SchemaChange]:
        if not self.captured(old) and not self.captured(new):
            return []
        if if_exists and self.shape(new) is not None:
            # A server lets no table take a name that another has, so there was none to rename.
            return []
        shape = self.shape(old)
        after = replace(shape, id=new) if shape is not None else None
        self._shapes[old], self._shapes[new] = None, after
        return [RenameTable(old, new, after)]

    def skip_wait(self) -> None:
        if self.words.skip("WAIT"):
            self.words.number()
        self.words.skip("NOWAIT")

    def altered(self, table: TableId, alteration: Alteration) -> tuple[SchemaChange, ...]:
        """The changes that an alteration of a table makes, its rename last."""
        if not self.captured(table):
            return (Ignored("not a captured table"),)
        before = self.shape(table)
        changes: list[SchemaChange] = []
        if before is None:
            changes.append(Rewrites(table, None, "its shape is not known", self.sql))
        else:
            change = apply(before, alteration, self.rules, self.sql)
            if change is not None:
                changes.append(change)
                self._shapes[table] = change.after
        changes += [
            Rewrites(other, None, f"it exchanges rows with a partition of {table}", self.sql)
            for other in alteration.exchanged
            if self.captured(other)
        ]
        if alteration.new_name is not None and alteration.new_name != table:
            changes += self.renamed(table, alteration.new_name)
        return tuple(changes) or (Ignored("ALTER TABLE that changes no columns"),)


def merged_tables(sql: str, database: str, rules: Rules) -> tuple[TableId, ...]:
    """The tables that CREATE or ALTER TABLE names as those of a MERGE table, by `UNION = (…)`. All else of the text is stepped over."""
    words = Words(lex(sql, rules))
    found: list[TableId] = []
    try:
        while words.peek() is not END:
            if not words.skip("UNION"):
                words.take()
                continue
            words.skip("=")
            words.expect("(")
            listed: list[TableId] = []
            while not words.skip(")"):
                if listed:
                    words.expect(",")
                listed.append(_table(words, database, rules))
            found += listed
    except Unreadable:
        # A UNION of queries.
        pass
    return tuple(dict.fromkeys(found))


def _table(words: Words, database: str, rules: Rules) -> TableId:
    words.skip(".")
    name = words.name()
    return _table_id(name, words.name(), rules) if words.skip(".") else _table_id(database, name, rules)


def _table_id(database: str, name: str, rules: Rules) -> TableId:
    return TableId(rules.stored_name(database), rules.stored_name(name))
