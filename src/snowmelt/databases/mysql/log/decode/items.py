"""What comes out of the log: changes of rows and of schemas, and the transactions that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.databases.contract.stretches import LogBytes
from snowmelt.databases.mysql.ddl import SchemaChange
from snowmelt.databases.mysql.log.events import Gtid, read_gtid
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import check
from snowmelt.model.position import Position

NO_GTID: Final[Bytes] = np.empty(0, np.uint8)
NO_ENDS: Final[Longs] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions that ended in a stretch of the log, in its order."""

    position: Longs
    time_s: Longs
    _gtid_ends: Longs
    _gtids: Bytes
    """Their GTID events, one after the other."""

    @staticmethod
    def one(position: int, time_s: int, gtid: Bytes) -> Transactions:
        return Transactions(np.array([position]), np.array([time_s]), np.array([gtid.shape[0]]), gtid)

    def __len__(self) -> int:
        return int(self.position.shape[0])

    def gtid_event(self, index: int) -> Bytes:
        check(self._gtid_ends.shape == self.position.shape, "a transaction's name is asked for that was not read")
        return self._gtids[int(self._gtid_ends[index - 1]) if index else 0 : int(self._gtid_ends[index])]

    def gtid(self, index: int) -> Gtid | None:
        """The name of a transaction; None where the server gives none."""
        event = self.gtid_event(index).tobytes()
        return read_gtid(event[4], int.from_bytes(event[5:9], "little"), event[19:]) if event else None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one table, in order. `rows` has the table's columns and, after them, the system fields."""

    table: MySqlTable
    rows: pa.RecordBatch
    transactions: Transactions


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """A statement that changed tables, at the end of its event."""

    position: Position
    time_s: int
    statement: str
    changes: tuple[SchemaChange, ...]


LogItem = ChangeBatch | SchemaChanged


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """A prepared XA group: its events as they are in the log, or unpacked."""

    log: LogBytes
    checksum_bytes: int
    position: int
    """Where it begins in the log."""
    shares_segment: bool = False
    """Whether its pieces are read through the same memory segment as the windows. Then the window is given back before a piece is asked
    for."""
    close: Callable[[], None] = lambda: None
    """Called when its rows were read, or reading them was given up."""


@dataclass(slots=True)
class Counters:
    """What was decoded so far."""

    changes: int = 0
    nulled_dates: int = 0
    """Dates that no calendar has and that became NULL."""
    transactions: int = 0
    unpacked_bytes: int = 0
