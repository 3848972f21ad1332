"""Where another server's log continues the captured log, and whether a purged log was captured completely.

Law: the place is a cut at which this server's log holds exactly the captured transactions, by their GTIDs. So nothing is lost or doubled,
whatever the names of the two servers' files. If other transactions lie between the captured ones, there is no such place.

The search begins with the newest file whose earlier transactions were all captured. The server lists its events, a page at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from snowmelt.databases.mysql.answers import anything, number, text, text_or_none
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet, gtid_within, words_of
from snowmelt.databases.mysql.log.files import FIRST_OFFSET, LogFile
from snowmelt.errors import Corrupt, SourceDrift, Unavailable
from snowmelt.model.position import Position

_PAGE_EVENTS: Final = 10_000
_EVENT: Final = (anything, number, text, anything, anything, text)
"""The columns of SHOW BINLOG EVENTS: file, where the event begins, its kind, the server's id, where it ends, and a description."""
_NAMES: Final = ("Gtid", "Gtid_tagged_log_event")
"""Events that name a transaction, as servers list them; the second one is MySQL's where the name has a tag."""
_MARIADB: Final = re.compile(r"GTID ([0-9]+-[0-9]+-[0-9]+)")
_MYSQL: Final = re.compile(r"'([0-9A-Fa-f-]{36}:[^']+)'")


def find_place(session: Session, captured: GtidSet, *, era: int) -> Position:
    """The place after exactly these transactions. `Unavailable`: this server does not have all of them yet."""
    wanted = MariaDbGtidSet if session.server.flavour == "mariadb" else MySqlGtidSet
    if not isinstance(captured, wanted):
        raise SourceDrift("another kind of server answers than the one that was captured", detail=str(session.server))
    if not str(captured):
        raise SourceDrift("another server answers, and what was captured has no GTIDs", detail=str(session.server))
    end_file, end_offset = session.log_end()
    files = [LogFile.parse(name) for (name,) in session.query("SHOW BINARY LOGS", columns=(text,))]
    for file in reversed(files):
        held = _before(session, file)
        if not gtid_within(held, captured):
            continue
        for offset, gtid in _groups(session, file):
            if held == captured:
                return Position(file.number, offset, era, words_of(captured))
            held = held.union(gtid)  # type: ignore[arg-type]
            if not gtid_within(held, captured):
                break
        if held == captured and file == end_file:
            return Position(file.number, end_offset, era, words_of(captured))
        if gtid_within(held, captured) and file == end_file:
            raise Unavailable("another server answers, and does not have yet what was captured", detail=f"{session.server}, it has {held}")
        break
    raise SourceDrift(
        "another server does not continue where the last one ended",
        detail=f"{session.server}, captured is {captured}",
        hint="its log does not hold what was captured, or holds others in between; begin with a new state",
    )


def why_not_all_captured(session: Session, captured: GtidSet | None, file: LogFile, oldest: LogFile) -> str:
    """Why it is not proven that everything which the server purged was captured; empty: it is proven.

    The captured log ends in `file`, which the server purged; `oldest` is the first file that it has. That file lists the transactions of
    all files before it: they must be exactly the captured ones. On MySQL, where transactions may have no GTIDs, this proves only one file:
    a change of gtid_mode begins another file, and if that was purged, too, nothing shows it.
    """
    if captured is None or not str(captured):
        return "what was captured has no GTIDs"
    if oldest.base != file.base or oldest.number <= file.number:
        return "the server's log has other names"
    if session.server.flavour == "mysql":
        if session.variable("gtid_mode") != "ON":
            return "gtid_mode is not ON"
        if oldest.number > file.number + 1:
            return f"{oldest.number - file.number} files were purged, and only of one GTIDs tell"
    held = _before(session, oldest)
    return "" if held == captured else f"captured is {captured}, {oldest} begins after {held}"


def gtids_at(session: Session, file: LogFile, offset: int) -> GtidSet | None:
    """The transactions up to a place of the log; None on MySQL, where only the file itself has them."""
    if session.server.flavour != "mariadb":
        return None
    found = session.value("SELECT BINLOG_GTID_POS(%s, %s)", [str(file), offset], kind=text_or_none)
    return MariaDbGtidSet.parse(found) if found is not None else None


def with_transactions(session: Session, file: LogFile, position: Position) -> Position:
    """A place in this file with the transactions up to there, if the server knows them."""
    return replace(position, transactions=words_of(gtids_at(session, file, position.offset)))


def _before(session: Session, file: LogFile) -> GtidSet:
    """The transactions of all files before this one."""
    if session.server.flavour == "mariadb":
        found = session.value("SELECT BINLOG_GTID_POS(%s, %s)", [str(file), FIRST_OFFSET], kind=text_or_none)
        return MariaDbGtidSet.parse(found or "")
    for _, _, kind, _, _, told in session.query("SHOW BINLOG EVENTS IN %s LIMIT 5", [str(file)], columns=_EVENT):
        if kind == "Previous_gtids":
            return MySqlGtidSet.parse(told)
    raise SourceDrift("another server answers, and keeps no GTIDs", detail=str(session.server), hint="set gtid_mode to ON")


def _groups(session: Session, file: LogFile) -> Iterator[tuple[int, GtidSet]]:
    """Where each transaction of a file begins, and its GTID."""
    offset, known = FIRST_OFFSET, 0
    while True:
        rows = session.query("SHOW BINLOG EVENTS IN %s FROM %s LIMIT %s", [str(file), offset, _PAGE_EVENTS], columns=_EVENT)
        for _, begins, kind, _, _, told in rows[known:]:
            if kind in _NAMES:
                yield begins, _name(told)
            elif kind == "Anonymous_Gtid":
                raise SourceDrift("another server answers, and some of its transactions have no GTID", detail=str(file))
        if len(rows) < _PAGE_EVENTS:
            return
        # Where an event ends is told in 32 bits, where it begins in 64: a page begins with the last event of the one before.
        offset, known = rows[-1][1], 1


def _name(told: str) -> GtidSet:
    if (found := _MARIADB.search(told)) is not None:
        return MariaDbGtidSet.parse(found[1])
    if (found := _MYSQL.search(told)) is not None:
        return MySqlGtidSet.parse(found[1])
    raise Corrupt("the name of a transaction can't be read", detail=told[:100])
