"""The half of the contract that is about the log: what a segment of it says, as values that no database is named in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from snowmelt.databases.contract.patterns import TablePredicate
from snowmelt.databases.contract.tables import TableShape
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Cut, Effect, Ending, Prepared
from snowmelt.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTables:
    """What the engine knows of tables right before a segment."""

    shapes: Mapping[TableId, TableShape]
    """Those that the log itself gives: of tables that the lake has, and what later statements made of them."""
    broken: frozenset[TableId]
    """Tables whose changes are not all in the log."""
    listed: frozenset[TableId]
    """Tables that the catalogue had when it was read last."""
    captured: TablePredicate
    keyed: TablePredicate
    """Whether the lake tells rows of the table apart by a key."""
    lower_case_names: bool
    """Whether the server keeps names of tables in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """What a transaction does to one table as a whole."""

    offset: int
    """Where the transaction ends on the number line, which is a cut."""
    table: TableId
    effect: Effect
    shape: TableShape | None = None
    """From here on; None where the table is gone, or breaks."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Old names of columns and their new ones, sorted; a new name that is empty: dropped."""
    statement: str = ""
    """The text, as an error may repeat it: never with a secret."""
    why: str = ""
    """Of one that breaks: what it does, and what to do about it."""


@dataclass(frozen=True, slots=True)
class SegmentMeaning:
    """What a segment says but for its rows, on the number line and in the order of the log."""

    cuts: tuple[Cut, ...]
    effects: tuple[TableEffect, ...]
    """Where several are of one transaction, in the order in which they take effect."""
    phases: tuple[Prepared | Ending, ...]


class SourceLog(Protocol):
    """What is asked of a database's log."""

    def seal(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        """Read what a durable segment says of transactions and tables, before it gets its record. `first`: where it begins on the number
        line.

        Order: segments in the order of the log, each with what is known after the one before. Twice: the same answer; nothing is kept.
        Durable on return: nothing. Errors: `Corrupt` if the segment is not what was captured; `SourceDrift` if the log holds something that
        can't be followed. No connection is needed. Memory: the segment is mapped, not read; one transaction of it is unpacked at a time."""
        ...
