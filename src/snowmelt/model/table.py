"""Names of tables, and which schema is in force where."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from snowmelt.errors import BEGIN_ANEW, SourceDrift, TableStuck, check
from snowmelt.model.position import Position


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table of the source, by its database and name as the server spells them."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    def stuck(self, fact: str, *, detail: str = "", hint: str = "") -> TableStuck:
        """The error that this table can't continue, while the others can."""
        return TableStuck(fact, detail=detail, hint=hint, table=(self.database, self.name))


SYSTEM_COLUMNS: Final = frozenset({"_seq", "_op", "_position", "_ts", "_event", "_ordinal", "_absent"})
"""Our columns in lake tables and in batches of changes. No column of a source table may have such a name."""

KIND: Final = "_VALUE_KIND"
"""The column by which a writer of lake tables learns what a row of a keyed table does. The name is Paimon's own."""
INSERT, DELETE = 0, 3

Schema = TypeVar("Schema")


class SchemaHistory(Generic[Schema]):
    """Schemas of tables by position: a row at `p` is read with the newest schema whose position is ≤ `p`.

    Schemas are added in the order of the log. A dropped table has `None` from its drop on. Memory: one entry per table and
    schema change, until `forget` drops those that no reader can ask for.
    """

    def __init__(self) -> None:
        self._versions: dict[TableId, list[tuple[Position, Schema | None]]] = {}

    def put(self, table: TableId, position: Position, schema: Schema | None) -> None:
        """Record the schema in force from `position` on. The same again changes nothing."""
        versions = self._versions.setdefault(table, [])
        if versions and versions[-1] == (position, schema):
            return
        check(not versions or versions[-1][0] <= position, "schemas come in the order of the log", f"{table} at {position}")
        versions.append((position, schema))

    def find(self, table: TableId, position: Position) -> Schema | None:
        """The schema in force at `position`, or None where the history has none."""
        versions = self._versions.get(table, [])
        index = bisect.bisect_right(versions, (position.file, position.offset), key=lambda v: (v[0].file, v[0].offset))
        return versions[index - 1][1] if index else None

    def at(self, table: TableId, position: Position) -> Schema:
        """The schema in force at `position`. An unknown one is an error that an operator must resolve."""
        schema = self.find(table, position)
        if schema is None:
            raise SourceDrift(
                f"no schema of {table} is known",
                detail=f"at {position}",
                hint=f"the log is older than the recorded schema; {BEGIN_ANEW}",
            )
        return schema

    def forget(self, before: Position) -> None:
        """Drop versions that no row at or above `before` is read with."""
        for versions in self._versions.values():
            while len(versions) > 1 and versions[1][0] <= before:
                versions.pop(0)

    def tables(self) -> list[TableId]:
        return sorted(table for table, versions in self._versions.items() if versions[-1][1] is not None)
