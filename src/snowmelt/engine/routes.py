"""Which lake table a source table goes to: the first route whose pattern matches it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from snowmelt.databases.mysql.catalog import match_tables
from snowmelt.errors import InvalidConfig
from snowmelt.model.table import TableId

SAME_NAME: Final = "{database}.{table}"

_PLACE: Final = re.compile(r"\{(database|table)\}")
_TARGET: Final = re.compile(r"[^\s./\\${}]+\.[^\s./\\${}]+")
"""`$` parts a Paimon table from its system tables, the dot its database from its name; the rest is a path's."""


@dataclass(frozen=True, slots=True)
class Route:
    """A pattern of source tables, and a target that may hold {database} and {table}."""

    source: str
    target: str

    def __post_init__(self) -> None:
        match_tables([self.source])
        if not _TARGET.fullmatch(_PLACE.sub("x", self.target)):
            raise InvalidConfig(
                "a target must be database.table",
                detail=repr(self.target),
                hint='for example ods.orders or "ods.{database}_{table}"; no other braces, and no blanks, slashes or further dots',
            )

    def of(self, table: TableId) -> str:
        target = _PLACE.sub(lambda place: table.database if place[1] == "database" else table.name, self.target)
        if not _TARGET.fullmatch(target):
            raise InvalidConfig(
                f"{table} can't go to a lake table of that name", detail=repr(target), hint="give it a route to another name, or exclude it"
            )
        return target


def assign_targets(tables: Iterable[TableId], routes: Sequence[Route], *, default: str, ignore_case: bool = False) -> dict[TableId, str]:
    """The target of each table. Two tables of one target are refused: their rows would overwrite each other."""
    known = [(match_tables([route.source], ignore_case=ignore_case), route) for route in (*routes, Route("*.*", default))]
    targets: dict[TableId, str] = {}
    taken: dict[str, TableId] = {}
    for table in sorted(tables):
        targets[table] = target = next(route for matches, route in known if matches(table)).of(table)
        if target in taken:
            raise InvalidConfig(
                f"two tables would go to {target}",
                detail=f"{taken[target]} and {table}",
                hint="several tables into one come later; until then give each a target of its own, for example with {table}",
            )
        taken[target] = table
    return targets


def check_unchanged(before: Mapping[TableId, str], targets: Mapping[TableId, str]) -> None:
    """A table that went to one target and now goes to another would leave half of the truth in each."""
    for table, target in before.items():
        if targets.get(table, target) != target:
            raise InvalidConfig(
                f"{table} goes to another target than before",
                detail=f"{target} so far, {targets[table]} now",
                hint="keep its route, or begin anew with another state",
            )
