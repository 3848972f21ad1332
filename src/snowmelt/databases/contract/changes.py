"""Changes of rows, as a database decodes them out of a stretch of its log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from snowmelt.databases.contract.stretches import LogBytes, PreparedEvents, SegmentSlice
from snowmelt.databases.contract.tables import TableShape
from snowmelt.model.table import TableId
from snowmelt.segments import Segment

INSERTED, UPDATE_BEFORE, UPDATE_AFTER, DELETED = 0, 1, 2, 3
"""Kinds of changes in `_op`. An update is two rows, one after the other."""
SYSTEM_FIELDS: Final = (
    pa.field("_op", pa.int8(), nullable=False),
    pa.field("_position", pa.int64(), nullable=False),
    pa.field("_event", pa.int32(), nullable=False),
    pa.field("_ts", pa.timestamp("us", "UTC"), nullable=False),
)
"""Kind of change; end of its transaction's commit, as the offset in the file of the log; number of the row event in its transaction; time
of the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of one table, in the order of the log."""

    table: TableShape
    rows: pa.RecordBatch
    """The table's columns as in `SourceTables.schema_of`, then `SYSTEM_FIELDS`."""
    transactions: Any
    """What `SourceLog.covered` needs to know of their transactions."""
    partial: str = ""
    """Where rows lack columns: what to do so that the log has whole rows. Empty: they are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStretch:
    """Whole transactions of a segment, to be decoded."""

    segment: Segment
    part: SegmentSlice
    log: LogBytes
    """The bytes of the part."""
    low: Callable[[TableId], int]
    """Up to which offset of the file no change of a table is wanted: those need not be decoded."""
    prepared: Callable[[str, int], PreparedEvents | None]
    """Finds the events of a prepared transaction by its name and by the offset in the file at which its COMMIT ends. None: they were not
    captured."""


class ChangeReader(Protocol):
    """Decodes stretches of a log, one after the other, in one thread."""

    def read(self, stretch: LogStretch) -> Generator[Changes, None, None]:
        """The changes of a stretch.

        Order: of one table that of the log; tables may overtake each other. Rows of a prepared transaction come with its COMMIT, at its
        place. What was rolled back does not come. Twice: the same rows, perhaps in other batches. Errors: `Corrupt` if the bytes are not
        what was captured; `TableStuck` if a table can't be followed; `SourceDrift` if the log can't be followed. An error takes back all
        that came out of the stretch. Memory: one piece of the stretch, one batch, and what `Limits` allow for one large event. Everything
        is given back at the end, and when the generator is closed."""
        ...
