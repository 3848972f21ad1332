"""The log's changes as the contract of databases gives them, and which of them a read contains."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable
from typing import Final

import numpy as np

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract.changes import Changes, LogStretch
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.tables import ReadMark, TableShape
from snowmelt.databases.mysql.log.decode import ABSENT, ChangeBatch, HeldGroup, LogReader, LogServer, Transactions
from snowmelt.databases.mysql.log.details import Details, details_of, details_of_own
from snowmelt.databases.mysql.log.events import Xid
from snowmelt.databases.mysql.read.marks import GtidMark, PositionMark, covers
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions, own
from snowmelt.errors import RECOPY, instance
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory
from snowmelt.relay.limits import Limits

_PARTIAL: Final = f"set binlog_row_image to FULL for every session; then {RECOPY}"


class StretchReader:
    """Implements `contract.changes.ChangeReader`. Statements were read when a segment got its record, and end epochs. So each table has one
    shape in the whole range."""

    def __init__(self, tables: Collection[TableShape], marks: Iterable[ReadMark], types: TypeOptions, limits: Limits) -> None:
        self._tables = {table.id: own(table) for table in tables}
        # Only marks with GTIDs need the names of transactions.
        self._names = not all(isinstance(mark, PositionMark) for mark in marks)
        self._types = types
        self._limits = limits
        self._reader: LogReader | None = None
        self._of: Details | None = None

    def read(self, stretch: LogStretch) -> Generator[Changes, None, None]:
        reader = self._reader_of(details_of(stretch.segment))
        reader.low = stretch.low

        def find(xid: Xid, position: Position) -> HeldGroup | None:
            found = stretch.prepared(str(xid), position.offset)
            if found is None:
                return None
            checksum_bytes = details_of_own(found.own).crc_length if found.own else 0
            return HeldGroup(found.log, checksum_bytes, found.begins, found.shares_segment, found.close)

        reader.prepared = find
        with contextlib.closing(reader.read_stored(stretch.segment, stretch.part, stretch.log)) as items:
            for item in items:
                if isinstance(item, ChangeBatch):
                    yield changes_of(item)

    def _reader_of(self, details: Details) -> LogReader:
        """One for all segments of a server: it keeps plans and arenas."""
        known = self._of
        if self._reader is None or known is None or (known.flavour, known.version) != (details.flavour, details.version):
            history: SchemaHistory[MySqlTable] = SchemaHistory()
            for table in self._tables.values():
                history.put(table.id, Position(0, 0), table)
            self._reader = LogReader(
                server=LogServer(details.flavour, details.version),
                schemas=history,
                captured=self._tables.__contains__,
                skip_statements=True,
                names=self._names,
                options=self._types,
                limits=self._limits,
            )
            self._of = details
        return self._reader


def changes_of(item: ChangeBatch) -> Changes:
    partial = _PARTIAL if ABSENT in item.rows.schema.names else ""
    return Changes(table=item.table, rows=item.rows, transactions=item.transactions, partial=partial)


def covered(mark: ReadMark, changes: Changes, offsets: Longs, *, high: int, two_phase: Longs) -> Mask:
    """See `contract.log.SourceLog.covered`."""
    if isinstance(mark, PositionMark):
        up_to_high = np.asarray(offsets <= high)
        return up_to_high if mark.locked else up_to_high & ~np.isin(offsets, two_phase)
    gtids = instance(mark, GtidMark, "a mark of another database")
    transactions = instance(changes.transactions, Transactions, "changes of another database")
    # GTIDs are compared one by one, and only for transactions that the read may contain.
    positions = changes.rows.column("_position").to_numpy()
    result = np.zeros(len(offsets), np.bool_)
    for index in range(len(transactions)):
        of_this = positions == int(transactions.position[index])
        if of_this.any() and offsets[of_this][0] <= high:
            # By the number line it lies below the mark's end. So only its GTID is left to compare.
            result[of_this] = covers(gtids, position=gtids.high, gtid=transactions.gtid(index))
    return result
