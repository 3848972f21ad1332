"""Where capture begins: the file and the offset of the first segment, and what the server has of its log."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final, Literal

from snowmelt.databases.mysql.answers import number, text
from snowmelt.databases.mysql.connect import MySqlOptions, Server, Session, log_is_off
from snowmelt.databases.mysql.failover import gtids_at, why_not_all_captured
from snowmelt.databases.mysql.gtid import GtidSet, of_words, words_of
from snowmelt.databases.mysql.log.capture.refusals import purged
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.files import FIRST_OFFSET, LogFile
from snowmelt.errors import SourceDrift
from snowmelt.model.position import Position
from snowmelt.segments import Segment

log = logging.getLogger(__name__)

Start = Position | Literal["latest", "earliest"]
_ENCRYPTION_HEADER_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream of the log begins."""

    server: Server
    file: LogFile
    position: Position
    scan: bool = False
    """Whether to read the file from its beginning: only that shows which transactions lie before `position`."""
    after: Segment | None = None
    """The last segment before it, perhaps of another server."""


def server_of(segment: Segment) -> Server:
    """The server that wrote a segment's events."""
    found = details_of(segment)
    return Server(found.flavour, found.version, segment.identity)


def continue_after(segment: Segment) -> StreamStart:
    return StreamStart(server_of(segment), LogFile.parse(segment.log), segment.end, after=segment)


def resolve_start(session: Session, start: Start, *, after: Segment | None) -> StreamStart:
    """The place where the first segment begins, and the transactions before it. `after` is of another server."""
    if isinstance(start, Position):
        file, position = _find_start(session, start)
    elif start == "earliest":
        file = list_logs(session)[0]
        position = Position(file.number, FIRST_OFFSET)
    else:
        file, position = _find_end(session)
    scan = False
    if position.transactions is None and position.offset > FIRST_OFFSET:
        if session.server.flavour == "mariadb":
            position = replace(position, transactions=words_of(gtids_at(session, file, position.offset)))
        else:
            # MySQL has no such function. The file lists the transactions before it, so it is read from its beginning.
            scan = session.variable("gtid_mode") not in (None, "OFF")
    return StreamStart(session.server, file, position, scan, after)


def list_logs(session: Session) -> list[LogFile]:
    try:
        found = [LogFile.parse(name) for (name,) in session.query("SHOW BINARY LOGS", columns=(text,))]
    except SourceDrift as error:
        raise log_is_off(error.detail) from None
    if not found:
        raise log_is_off("")
    return found


def oldest_if_nothing_lost(session: Session, logs: list[LogFile], file: LogFile, captured: GtidSet | None) -> LogFile:
    """The server's oldest file, where the server purged `file` and all of what it purged was captured. Raises `SourceDrift` otherwise."""
    oldest = logs[0]
    if why := why_not_all_captured(session, captured, file, oldest):
        raise purged(f"{file}; the server has {oldest} to {logs[-1]}: {why}")
    log.info("the server purged its log up to %s; all of it was captured", oldest)
    return oldest


def file_bytes(options: MySqlOptions, file: LogFile) -> int | None:
    """The offset at which one of the server's log files ends; None where the server has no such file."""
    with Session(options) as session:
        may_encrypt = session.server.flavour == "mysql" and session.server.version >= (8, 0, 14)
        for name, size, *encrypted in session.query("SHOW BINARY LOGS", columns=(text, number, *may_encrypt * (text,))):
            if name == str(file):
                # MySQL counts the header of an encrypted file; positions do not.
                return int(size) - (_ENCRYPTION_HEADER_BYTES if encrypted == ["Yes"] else 0)
    return None


def _find_start(session: Session, start: Position) -> tuple[LogFile, Position]:
    """The file that capture begins in, and the place in it. Where the server purged the file of `start`, that is the beginning of the
    oldest file, if nothing was lost."""
    logs = list_logs(session)
    for found in logs:
        if found.number == start.file:
            return found, start
    oldest = oldest_if_nothing_lost(session, logs, replace(logs[0], number=start.file), of_words(start.transactions))
    return oldest, replace(start, file=oldest.number, offset=FIRST_OFFSET)


def _find_end(session: Session) -> tuple[LogFile, Position]:
    """Where the log ends now, without its transactions.

    The server reports a set of executed transactions together with the offset. That set lags the offset: it can lack transactions below
    it. With it a cut would seem visible to reads that is not. Only the file shows which transactions are there.
    """
    file, offset = session.log_end()
    return file, Position(file.number, offset)
