"""What a read contains, as a value. No I/O.

A mark answers for each transaction of the log whether its read has the transaction's changes. It has a high end: the read contains
nothing beyond it.

- `PositionMark`: exactly the transactions whose commit ends at or before the position. MariaDB has it for a consistent snapshot;
  on other servers the table is locked while the snapshot opens. An XA COMMIT is the exception: MariaDB moves the position of snapshots
  before the engine shows it (46 of 22,000 snapshots under load lacked one that lay before them). So without a lock the read may or may not
  contain it. `XA RECOVER` lists it until it is shown, and a chunk is launched at a cut below it.
- `GtidMark`: at least the transactions of the set, and nothing beyond `high`. The read may or may not contain those between; they are
  emitted again, which converges if rows have keys. The set moves *after* the engine shows a transaction, and the end of the log *before*
  it. So under load only the set is a right low end, also for an XA COMMIT (none was missing in 43,000 snapshots under load of four
  writers).
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet, gtid_within, of_words
from snowmelt.databases.mysql.log.events import Gtid, MariaDbGtid, MySqlGtid
from snowmelt.errors import BEGIN_ANEW, SourceDrift
from snowmelt.model.position import Position


@dataclass(frozen=True, slots=True)
class PositionMark:
    """Everything up to `position`, nothing beyond it."""

    position: Position
    locked: bool = False
    """No session was writing to the table when the snapshot opened."""

    @property
    def high(self) -> Position:
        return self.position

    def exact(self, *, two_phase: bool) -> bool:
        return exact(self, None, xa=two_phase)


@dataclass(frozen=True, slots=True)
class GtidMark:
    """Everything in `gtids`, nothing beyond `high`."""

    gtids: MySqlGtidSet
    high: Position

    def exact(self, *, two_phase: bool) -> bool:
        """Always False: the set leaves open whether the read has the transactions between it and `high`."""
        return exact(self, None, xa=two_phase)


Mark = PositionMark | GtidMark


def covers(mark: Mark, *, position: Position, gtid: Gtid | None, xa: bool = False) -> bool:
    """Whether the read surely contains the transaction whose commit ends at `position`; `xa`: that commit is an XA COMMIT.

    Positions of two eras are not compared: there only the transaction's name counts.
    """
    if position.era != mark.high.era:
        return _covers_across_eras(mark, gtid)
    if position > mark.high:
        return False
    match mark:
        case PositionMark(locked=locked):
            return locked or not xa
        case GtidMark(gtids):
            return isinstance(gtid, MySqlGtid) and gtids.has(gtid.source, gtid.number)


def _covers_across_eras(mark: Mark, gtid: Gtid | None) -> bool:
    gtids: GtidSet | None = mark.gtids if isinstance(mark, GtidMark) else of_words(mark.position.transactions)
    match gtids, gtid:
        case MySqlGtidSet(), MySqlGtid(source, number):
            return gtids.has(source, number)
        case MariaDbGtidSet(), MariaDbGtid(domain, _, number):
            return gtids.has(domain, number)
        case _:
            raise SourceDrift(
                "a read of another server can't be joined with this log",
                detail=f"a mark of era {mark.high.era} without GTIDs",
                hint=BEGIN_ANEW,
            )


def exact(mark: Mark, gtids_at_high: GtidSet | None, *, xa: bool = False) -> bool:
    """Whether the mark answers exactly for each transaction, given all transactions of the log up to its high end. `xa`: some transactions
    after the launch's cut are XA COMMITs."""
    match mark:
        case PositionMark(locked=locked):
            return locked or not xa
        case GtidMark(gtids):
            return gtids_at_high is not None and gtid_within(gtids_at_high, gtids)


def at_least(mark: Mark, visible: Position | GtidSet) -> bool:
    """Whether the read contains everything that was visible at its launch. It does, unless another server answered."""
    match mark, visible:
        case PositionMark(position), Position():
            return visible.era == position.era and visible <= position
        case GtidMark(gtids), MySqlGtidSet():
            return visible.within(gtids)
        case GtidMark(gtids), Position(transactions=words) if isinstance(before := of_words(words), MySqlGtidSet):
            return before.within(gtids)
        case _:
            return False
