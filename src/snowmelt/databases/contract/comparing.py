"""What `verify` asks of a database: its rows as hashes, computed by the server itself, and the same of rows that the lake has.

The server's half must know nothing of our decoders, or both sides could be wrong alike. Errors as in `tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import pyarrow as pa

from snowmelt.databases.comparing.classes import Classes, Parting, Sums
from snowmelt.databases.comparing.rows import Detail, Hashes, RowHashes, SourceRows
from snowmelt.databases.contract.tables import ReadMark, TableShape
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId


class RowForms(Protocol):
    """How rows of one table are hashed on our side. Picklable: tasks hash the lake's rows by it. No I/O."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are compared."""
        ...

    @property
    def named_by(self) -> tuple[str, ...]:
        """The columns by which a user is told of a row."""
        ...

    def hash(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        """The hash of each row's key and of the whole row. Without a key the row itself is the key."""
        ...

    def details(self, batch: pa.RecordBatch, keys: Hashes, rows: Hashes, named: Hashes) -> dict[int, Detail]:
        """The rows of a batch whose keys are named, by the hash of their key. `keys` and `rows` are those of the whole batch."""
        ...


class ComparedTable(Protocol):
    """One table of the database. Each call opens what it needs; memory: the hashes that it returns."""

    @property
    def forms(self) -> RowForms: ...

    def part(self) -> Parting:
        """Ranges and classes of about even size; sizes are estimates, on which nothing relies."""
        ...

    def sums(self, parting: Parting, watch: Callable[[int, int], None]) -> tuple[Sums, list[ReadMark]]:
        """The sums of all classes, by one short exact read for each range, and their marks. `watch`: how many ranges of how many are
        read."""
        ...

    def rows(self, parting: Parting, classes: Classes) -> SourceRows:
        """The rows of some classes, by one exact read."""
        ...

    def details(self, keys: Hashes) -> tuple[dict[int, Detail], ReadMark]:
        """Some rows by name, as far as they are there."""
        ...

    def changes(self, after: Position, upto: Position) -> RowHashes:
        """What the log did to the table in (after, upto]: counts of added rows, negative of removed ones; of a table with a key the last
        state of each key. `SourceDrift`: the table was altered meanwhile, or that can't be told."""
        ...


class Comparing(Protocol):
    """A server that is being compared. A value: nothing is open between two calls."""

    @property
    def ignores_case(self) -> bool: ...

    def read_tables(self, wanted: TablePredicate | Iterable[TableId]) -> Mapping[TableId, TableShape]:
        """The wanted tables that exist, by the server's own spelling."""
        ...

    def table(self, shape: TableShape, *, keyed: bool) -> ComparedTable:
        """No I/O. `keyed`: the lake has one row for each key."""
        ...
