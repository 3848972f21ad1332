"""What a statement does to captured tables: a closed union.

Laws:

- `AlterColumns` promises that every stored row keeps its values, and that `filled` has those of added columns. Any other
  ALTER is `Rewrites`.
- A shape is exact or None. For None the caller must read the catalogue.
- No value of a row is kept: a statement that changes rows is kept as its verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.model.table import TableId

MERGED = "what is changed through a MERGE table is logged under its name, and not under that of the table it belongs to"
SEPARATE = "drop the MERGE table, or take the table out of its UNION"


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A new, empty table."""

    table: MySqlTable
    cascades: bool = False
    """Whether a foreign key of it changes its rows without row events (ON DELETE or ON UPDATE other than RESTRICT)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumns:
    """Metadata only: stored rows keep their values and are read with `after` from here on."""

    table: TableId
    before: MySqlTable
    after: MySqlTable
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old column names to new ones."""
    filled: Mapping[str, str | bytes | None] = field(default_factory=dict)
    """What stored rows hold in each added column, as SELECT prints it; bytes for binary types and BIT."""
    cascades: bool = False
    """Whether a foreign key that the statement adds changes rows without row events."""


@dataclass(frozen=True, slots=True)
class DropTable:
    table: TableId


@dataclass(frozen=True, slots=True)
class RenameTable:
    """The table goes by a new name. Either name may be one that is not captured."""

    old: TableId
    new: TableId
    after: MySqlTable | None
    """The shape under the new name; None where the old name's was not known."""


@dataclass(frozen=True, slots=True)
class Truncate:
    table: TableId


@dataclass(frozen=True, slots=True)
class Rewrites:
    """Stored rows change, and the log does not say how: the table is emptied and copied again.

    It becomes `Effect.MAKES` (`meaning`). `Effect.REWRITES`, a copy in place, comes from `AlterColumns.filled` alone.
    """

    table: TableId
    after: MySqlTable | None
    """The shape from here on; None where only the catalogue can tell."""
    reason: str
    statement: str


@dataclass(frozen=True, slots=True)
class Merged:
    """From here on the table belongs to the UNION of a MERGE table, so the log may lack changes of its rows (`MERGED`)."""

    table: TableId


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class DatabaseDefaults:
    """CREATE or ALTER DATABASE: what tables created later inherit."""

    name: str
    collation: str | None
    """None: the server's own."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """No effect on captured tables."""

    reason: str


@dataclass(frozen=True, slots=True)
class RowsAsText:
    """Rows were changed by a statement that the log holds as text. It may change tables that it does not name, by a view, a
    trigger, a function or a foreign key."""

    verb: str
    named: tuple[TableId, ...] = ()
    """Captured tables that its text names."""
    databases: frozenset[str] | None = None
    """The databases whose tables it changed. MySQL logs them; None where the log does not say."""

    def may_change(self, table: TableId) -> bool:
        return table in self.named or self.databases is None or table.database in self.databases


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A statement that may touch captured tables and can't be read. The caller adds the position."""

    tables: tuple[TableId, ...]
    statement: str
    reason: str


SchemaChange = (
    CreateTable
    | AlterColumns
    | DropTable
    | RenameTable
    | Truncate
    | Rewrites
    | Merged
    | DropDatabase
    | DatabaseDefaults
    | Ignored
    | RowsAsText
    | NotUnderstood
)
