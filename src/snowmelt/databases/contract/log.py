"""The half of the contract that is about the log: capture, what a segment of it says, and the changes of rows in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract.capture import CapturePlan, LogCapture
from snowmelt.databases.contract.changes import ChangeReader, Changes
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.tables import ReadMark, TableShape
from snowmelt.model.numbers import LogOffset
from snowmelt.model.patterns import TablePredicate
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.limits import Limits
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

    offset: LogOffset
    """Where the transaction ends on the number line, which is a cut. So is the end of the transaction before it."""
    table: TableId
    effect: Effect
    """`DROPS` also where a table is made, or what becomes of it can't be told from the shapes that are known: it is found in the catalogue
    then, and copied."""
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

    def read_meaning(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        """Read what a durable segment says of transactions and tables, before it gets its record. `first`: where it begins on the number
        line.

        Order: segments in the order of the log, each with what is known after the one before. Twice: the same answer; nothing is kept.
        Durable on return: nothing. Errors: `Corrupt` if the segment is not what was captured; `SourceDrift` if the log holds something that
        can't be followed. No connection is needed. Memory: the segment is mapped, not read; one transaction of it is unpacked at a time."""
        ...

    # ---- reading: no connection is needed

    def log_reader(self, tables: Collection[TableShape], marks: Iterable[ReadMark], limits: Limits) -> ChangeReader:
        """Decode changes of these tables, each of one shape for all that is read. `marks`: those that `covered` is asked of."""
        ...

    def covered(self, mark: ReadMark, changes: Changes, offsets: Longs, *, high: LogOffset, two_phase: Longs) -> Mask:
        """The rows of `changes` whose change a read surely contains.

        `offsets`: where their transactions end on the number line; `high`: where the read's mark ends on it; `two_phase`: where the COMMITs
        of prepared transactions end. Rows beyond `high` are never covered. No I/O."""
        ...

    def file_name(self, position: Position, like: str) -> str:
        """The name of the file that a place of the log is in, given that of another one; empty where a log has no files. No I/O."""
        ...

    # ---- the server

    def capture(self, plan: CapturePlan) -> LogCapture:
        """No I/O before it is run."""
        ...

    def with_transactions(self, position: Position, log: str) -> Position:
        """The same place of a file of the log, with all transactions up to there if the server tells them. They prove later that nothing is
        lost, should the server purge its log before anything was captured. Errors as in `tables`."""
        ...

    def place_after(self, last: Segment, *, identity: str, era: int) -> Position:
        """Where the log of the server of this identity, which is another than that of `last`, continues exactly after it, as a new era.
        `Unavailable`: it does not have all of it yet. `SourceDrift`: it has no such place."""
        ...

    def prepared_transactions(self) -> Sequence[str]:
        """The names of transactions that are prepared now. Empty, too, if the user may not ask: then a COMMIT of rows that were not
        captured is refused when it comes. Errors as in `tables`."""
        ...
