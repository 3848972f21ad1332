"""Tables by pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from fnmatch import translate as glob_to_regex

from snowmelt.errors import InvalidConfig
from snowmelt.model.table import TableId

TablePredicate = Callable[[TableId], bool]


def match_tables(
    patterns: Sequence[str], exclude: Sequence[str] = (), *, ignore_case: bool = False, never: Container[str] = ()
) -> TablePredicate:
    """A predicate for `database.table` patterns with shell-like wildcards, each part matched by itself.

    The first dot parts database from table; a dot inside a database's name can be matched by `?`. `ignore_case` is the server's choice:
    see `Catalogue.ignores_case`. `never`: databases, in lower case, that no pattern matches: see `SourceTables.system_databases`.
    """
    wanted = [_compile(pattern, ignore_case) for pattern in patterns]
    unwanted = [_compile(pattern, ignore_case) for pattern in exclude]

    def matches(table: TableId) -> bool:
        if table.database.lower() in never:
            return False
        return any(one(table) for one in wanted) and not any(one(table) for one in unwanted)

    return matches


def _compile(pattern: str, ignore_case: bool) -> TablePredicate:
    database, dot, name = pattern.partition(".")
    if not dot or not database or not name:
        raise InvalidConfig("a table pattern must be database.table", detail=repr(pattern), hint="for example shop.* or crm.customers")
    flags = re.IGNORECASE if ignore_case else re.NOFLAG
    database_regex = re.compile(glob_to_regex(database), flags)
    name_regex = re.compile(glob_to_regex(name), flags)

    def matches(table: TableId) -> bool:
        return database_regex.match(table.database) is not None and name_regex.match(table.name) is not None

    return matches
