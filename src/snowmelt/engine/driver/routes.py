"""Which lake table a source table goes to: the first route whose pattern matches it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from snowmelt.databases.contract.tables import SourceTables, TableShape
from snowmelt.errors import InvalidConfig
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.patterns import TablePredicate, match_tables
from snowmelt.model.table import TableId
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.sinks.contract import Partition

SAME_NAME: Final = "{database}.{table}"

_PLACE: Final = re.compile(r"\{(database|table)\}")
_TARGET: Final = re.compile(r"[^\s.:/\\${}`\x00-\x1f\x7f]+\.[^\s.:/\\${}`\x00-\x1f\x7f]+")
"""`$` parts a Paimon table from its system tables, the dot its database from its name; Paimon's native half takes no control characters;
the rest is a path's. With a colon in one name Java's Paimon can't list the tables of the whole database."""
_PART_BYTES_MAX: Final = 250
"""Of a database's or a table's name in the lake: file systems take 255 bytes, and Paimon adds `.db` to a database's."""


class Mode(StrEnum):
    """What a lake table holds: current rows or history."""

    UPSERT = "upsert"
    """The source's current rows, one for each key."""
    CHANGELOG = "changelog"
    """The source's history: each change as a row, with its kind, position and time. No row is ever deleted."""

    @staticmethod
    def of(*, keyed: bool) -> Mode:
        return Mode.UPSERT if keyed else Mode.CHANGELOG


@dataclass(frozen=True, slots=True)
class Target:
    """The lake table that a source table goes to."""

    name: str
    mode: Mode = Mode.UPSERT

    @property
    def keyed(self) -> bool:
        return self.mode is Mode.UPSERT


@dataclass(frozen=True, slots=True)
class Route:
    """A pattern of source tables, and a target that may hold {database} and {table}."""

    source: str
    target: str
    mode: Mode = Mode.UPSERT
    maintenance: MaintenanceRules | None = None
    """None: as of all tables."""
    partition: Partition = None
    """How each target of this route is divided."""

    def __post_init__(self) -> None:
        match_tables([self.source])
        if not _TARGET.fullmatch(_PLACE.sub("x", self.target)):
            raise InvalidConfig(
                "a target must be database.table",
                detail=repr(self.target),
                hint='for example ods.orders or "ods.{database}_{table}"; no other braces, and no blanks, slashes, colons or further dots',
            )

    def of(self, table: TableId) -> str:
        target = _PLACE.sub(lambda place: table.database if place[1] == "database" else table.name, self.target)
        if not _TARGET.fullmatch(target) or any(len(part.encode()) > _PART_BYTES_MAX for part in target.split(".")):
            raise InvalidConfig(
                f"{table} can't go to a lake table of that name", detail=repr(target), hint="give it a route to another name, or exclude it"
            )
        return target


def assign_targets(
    tables: Iterable[TableId], routes: Sequence[Route], *, default: str, ignore_case: bool = False
) -> tuple[dict[TableId, Target], dict[TableId, InvalidConfig]]:
    """The target of each table that can have one, and an error for each of the others. If two tables have the same target, the second is
    refused: their rows would overwrite each other."""
    router = Router(routes, default=default, ignore_case=ignore_case)
    targets: dict[TableId, Target] = {}
    refused: dict[TableId, InvalidConfig] = {}
    taken: dict[str, TableId] = {}
    for table in sorted(tables):
        try:
            target = router.of(table)
        except InvalidConfig as error:
            refused[table] = error
            continue
        if (first := taken.setdefault(target.name, table)) == table:
            targets[table] = target
            continue
        refused[table] = InvalidConfig(
            f"two tables would go to {target.name}",
            detail=f"{first} and {table}",
            hint="several tables into one come later; until then give each a target of its own, for example with {table}",
        )
    return targets, refused


class Router:
    """Finds the route of a table, also of one that is made while a pipeline runs."""

    def __init__(self, routes: Sequence[Route], *, default: str, ignore_case: bool) -> None:
        self._routes = [(match_tables([route.source], ignore_case=ignore_case), route) for route in (*routes, Route("*.*", default))]

    def idle(self, tables: Iterable[TableId]) -> list[Route]:
        """Routes that match none of these tables: perhaps a typing error."""
        taken = {self._route(table) for table in tables}
        return [route for _, route in self._routes[:-1] if route not in taken]

    def of(self, table: TableId) -> Target:
        route = self._route(table)
        return Target(route.of(table), route.mode)

    def keyed(self, table: TableId) -> bool:
        """Whether the table's rows have a key in the lake. Any table may be asked for, also one without a valid target."""
        return self._route(table).mode is Mode.UPSERT

    def maintenance(self, table: TableId) -> MaintenanceRules | None:
        return self._route(table).maintenance

    def partition(self, table: TableId) -> Partition:
        return self._route(table).partition

    def undivided(self, shape: TableShape, source: SourceTables) -> str:
        """Why a table's route can't divide its target into partitions; empty: it can, or need not."""
        partition = self.partition(shape.id)
        if partition is None:
            return ""
        try:
            return partition.why_not(source.schema_of(shape), shape.key if self.keyed(shape.id) else ())
        except InvalidConfig as error:
            # It has a column of a type that is not supported.
            return str(error)

    def _route(self, table: TableId) -> Route:
        return next(route for matches, route in self._routes if matches(table))


def route_taken(routes: Sequence[Route], table: TableId, target: str) -> Route | None:
    """The route by which a table of a pipeline goes to its target, for a process that does not know whether the server ignores case; None:
    it goes there without one."""
    for ignore_case in (False, True):
        found = next((route for route in routes if match_tables([route.source], ignore_case=ignore_case)(table)), None)
        if found is not None and found.of(table) == target:
            return found
    return None


def check_goes_on(tables: Iterable[Table], captured: TablePredicate, router: Router) -> None:
    """Check that the settings still capture every table of the pipeline, and still route it to the same lake table. Otherwise its changes
    would be lost, or each of two lake tables would have a part of them. A table that is set aside may be excluded: the lake gets nothing of
    it."""
    for table in tables:
        name = table.incarnation.table
        if table.phase is TablePhase.SET_ASIDE and not captured(name):
            continue
        if table.phase is not TablePhase.GONE and not captured(name):
            raise InvalidConfig(
                "a table of this pipeline is not captured any more",
                detail=str(name),
                hint="if it was excluded by mistake, include it again; to leave it out begin with a new state",
            )
        before, now = Target(table.target, Mode.of(keyed=table.keyed)), router.of(name)
        if now != before:
            raise InvalidConfig(
                f"{name} goes to another target than before",
                detail=f"{before.name} ({before.mode}) so far, {now.name} ({now.mode}) now",
                hint="keep its route, or begin anew with another state",
            )
