"""The half of the contract that is about tables: what there is, and exact reads of it.

Errors, of every method that asks the server: `Unavailable`: nothing happened, ask again. `InvalidConfig` and `SourceDrift`: an operator has
to do something. `Corrupt`: what answers is not such a server. Nothing is changed on the server, and nothing stays open when a method
returns, but for a `TableRead`. No method needs another one before it, and each may be called twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from snowmelt.databases.contract.findings import Finding
from snowmelt.databases.contract.keys import Keys
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import KeyEnds

Wanted = Callable[[bool], TablePredicate]
"""Which tables; it is told whether the server ignores the case of names."""


class TableShape(Protocol):
    """A table as it is at one place of the log: a frozen value, equal to another of the same shape, picklable. No I/O."""

    @property
    def id(self) -> TableId: ...

    @property
    def kind(self) -> str:
        """Of its database: the tag of its records."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of its columns, in the order of their values."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; empty: none do."""
        ...

    def record(self) -> bytes:
        """What a durable record holds of it, for `SourceTables.shape_of`. Equal shapes have equal bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The tables that match, as the server described them at some moment between two places of its log."""

    tables: Mapping[TableId, TableShape]
    """By the server's own spelling, and sorted."""
    began: Position
    ended: Position
    time_ms: int
    """By the server's clock, before `ended` was read: whatever was committed until then lies before it."""
    ahead_ms: int
    """How far the server's clock is ahead of ours."""
    identity: str
    """Of the server that answered, as states know it: another one is another server."""
    log: str
    """The name of the file that the server wrote to; empty where a log has no files."""
    ignores_case: bool
    lower_case_names: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A server and its tables before a pipeline starts."""

    server: str
    """Product and version, for a person."""
    identity: str
    """As states know it: another one is another server."""
    ignores_case: bool
    tables: Mapping[TableId, TableShape]
    """Those that are wanted, sorted."""
    findings: tuple[Finding, ...]
    """The gravest first. Tables without a key are a warning with the code `findings.NO_KEY`. A finding that keeps the tables it names from
    being captured, and no others, is a `TableFinding`."""


class Shown(Protocol):
    """What a server surely shows to a read that begins now."""

    @property
    def place(self) -> Position | None:
        """The place of the log up to which all is shown; None where the server names transactions, and only `shows` tells."""
        ...

    @property
    def alone(self) -> bool:
        """Whether this is proven for the table that was asked for, and for no other."""
        ...

    @property
    def hidden(self) -> frozenset[str]:
        """Transactions below the place that are committed and perhaps not shown."""
        ...

    def shows(self, place: Position) -> bool:
        """Whether all up to a place is shown. False where that can't be told."""
        ...


class ReadMark(Protocol):
    """What a read contains: a frozen value, picklable. The log half asks it which changes it covers."""

    @property
    def high(self) -> Position:
        """Beyond this place the read contains nothing."""
        ...

    def exact(self, *, two_phase: bool) -> bool:
        """Whether it is known of every transaction up to `high` whether the read contains it. `two_phase`: prepared transactions were
        committed between what was proven visible at launch and `high`."""
        ...


class TableRead(Protocol):
    """A read of some rows that is under way, in one process. Memory: one batch, whose size the database bounds."""

    @property
    def mark(self) -> ReadMark:
        """Once the first batch was asked for. With each batch it may be that of a newer part; at the end it is that of the whole read."""
        ...

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows, once, with the columns of `schema_of`. Only a read that was taken to its end counts. Closing it ends
        everything at the server. `Occupied`: another session waits for the table, and the read gave way. `SourceDrift`: the table has not,
        or no more, the shape that was expected. `TableStuck`: the read can't be done within its limits. `Unavailable`: another server
        answers, or it shows less than it did."""
        ...


@dataclass(frozen=True, slots=True)
class NextBounds:
    """Ends of chunks, in the order of the keys."""

    highs: tuple[bytes, ...]
    complete: bool
    """Whether the last is the table's greatest key."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys above `low`, and from it on if `first`, up to and with `high`. Without both it is the whole table."""

    low: bytes | None = None
    high: bytes | None = None
    first: bool = False


class SourceTables(Protocol):
    """What is asked of a database's tables. See the module for errors, order and repetition."""

    @property
    def kind(self) -> str:
        """The `type` of the source's section, and the tag of its durable records."""
        ...

    @property
    def system_databases(self) -> frozenset[str]:
        """Databases, in lower case, whose tables are never captured."""
        ...

    @property
    def row_bytes_max(self) -> int:
        """The longest row that a read takes; a longer one makes its table stuck."""
        ...

    # ---- shapes: no I/O

    def shape_of(self, record: bytes) -> TableShape:
        """The shape that `TableShape.record` gave these bytes of. `Corrupt`: it gave no such bytes."""
        ...

    def schema_of(self, table: TableShape) -> pa.Schema:
        """The columns, in the order and with the types of every batch of the table's rows, read or decoded. `InvalidConfig`: a column's
        type is not supported."""
        ...

    def why_foreign(self, table: TableShape) -> str:
        """Why a table of this shape can never be captured, and what to do about it; empty: nothing says so."""
        ...

    def chunked(self, table: TableShape) -> bool:
        """Whether the table is copied in chunks: its keys can be told apart by packed bounds. If not, one read copies all of it."""
        ...

    def keys(self, table: TableShape, rows: pa.RecordBatch) -> Keys | None:
        """The keys of rows of a table; None where they can't be told apart by bounds."""
        ...

    # ---- the server and its catalogue

    def connect(self) -> str:
        """Connect, and leave again: whether the server answers and lets us in. Returns its identity."""
        ...

    def inspect(self, wanted: Wanted, changelog: Wanted, *, begun: bool) -> Inspected:
        """Check whether the wanted tables can be captured. `changelog`: tables whose every change is kept, so that reads of them must be
        exact. `begun`: capture has begun. A check that can't be made is a finding; only a connection that is lost is an error. No row is
        read."""
        ...

    def unfit(self, tables: Iterable[TableShape]) -> Mapping[TableId, str]:
        """Of these tables those that can't be captured, and why: for one that is made while a pipeline runs."""
        ...

    def read_catalogue(self, wanted: Wanted, *, era: int) -> Catalogue:
        """The wanted tables. `began` is read before them, and all that the log has up to there is in them; `ended` is read after them."""
        ...

    def log_end(self, *, era: int) -> Position:
        """The end of the server's log as of now. It does not tell what a read shows."""
        ...

    def clock_ahead_ms(self) -> int:
        """How far the server's clock is ahead of this process's, by a little more than it is rather than by less."""
        ...

    # ---- exact reads

    def newest_visible(self, table: TableShape, *, era: int) -> Shown:
        """What the server surely shows from now on. May hold off the table's writers for a moment."""
        ...

    def find_bounds(
        self, table: TableShape, extent: KeyEnds, *, after: bytes | None, bytes_max: int, rows_max: int, bounds_max: int
    ) -> NextBounds:
        """The ends of the next chunks of a `chunked` table, after the one that ends with `after`: at most `bounds_max` of them, each of
        about as many rows as the limits allow. Bounds are a matter of size only: rows may come and go meanwhile, and another call may
        give others."""
        ...

    def read_ends(self, table: TableShape, *, identity: str, era: int, to_a_change: bool) -> tuple[KeyEnds | None, ReadMark]:
        """The least and the greatest key of a `chunked` table by one exact read, None where it is empty, and that read's mark. Arguments
        and errors as in `read` and `TableRead`."""
        ...

    def read(
        self, table: TableShape, keys: KeyRange, *, identity: str, era: int, visible: Position | None, to_a_change: bool, in_parts: bool
    ) -> TableRead:
        """An exact read of the table, in the shape that is expected, from the server of this identity. Nothing is opened before its
        batches are asked for.

        `visible`: the place that was proven to be shown. `to_a_change`: the mark must leave no transaction open. `in_parts`: a long
        read may continue as another read after the last row, so that sessions that wait for the table get their turn. All parts show at
        least what is `visible`."""
        ...
