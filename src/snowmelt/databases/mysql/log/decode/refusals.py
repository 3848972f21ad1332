"""Errors of a log that can't be read on: it is damaged, or it lacks what is needed."""

from __future__ import annotations

from typing import Final

from snowmelt.databases.mysql.log.events import read_incident
from snowmelt.databases.mysql.log.scan import S, Stop, Walk
from snowmelt.errors import BEGIN_ANEW, Corrupt, SourceDrift
from snowmelt.model.position import Position

_CORRUPT_TEXT: Final = {
    Stop.CUT_SHORT: "an event is cut short",
    Stop.BAD_SIZE: "an event's size can't be",
    Stop.BAD_CHECKSUM: "an event's checksum is wrong",
    Stop.WENT_BACK: "the log's positions go back",
    Stop.NO_MAP: "a row event's table was not mapped by its statement",
    Stop.NO_GROUP: "rows or an end lie outside a transaction",
    Stop.BAD_QUERY: "a statement's event can't be read",
    Stop.OPEN_GROUP: "a transaction is not ended",
    Stop.GAP: "events are missing",
}


def refused(stop: Stop) -> bool:
    return stop >= Stop.CUT_SHORT or stop in (Stop.INCIDENT, Stop.UNKNOWN)


def refusal(walk: Walk, stop: Stop, position: Position) -> Exception:
    """The error of a walk that stopped for a reason that is `refused`."""
    where = str(position)
    if stop is Stop.INCIDENT:
        return SourceDrift(
            "the server lost events of its log",
            detail=f"{read_incident(walk.body())} at {where}",
            hint="snapshot the captured tables again",
        )
    if stop is Stop.UNKNOWN:
        kind = int(walk.data[walk.state[S.EVENT_AT] + 4])
        return SourceDrift("the log holds an event of a kind that we don't know", detail=f"type {kind} at {where}")
    return Corrupt(_CORRUPT_TEXT[stop], position=where)


def no_savepoint(name: str, position: Position) -> SourceDrift:
    return SourceDrift(
        "a transaction rolled back to a savepoint that the log does not hold",
        detail=f"{name} at {position}",
        hint=f"does a filter (binlog_do_db, binlog_ignore_db) leave statements out of the log? {BEGIN_ANEW}",
    )


def logged_as_statement(what: str, position: Position) -> SourceDrift:
    return SourceDrift(
        "a change was logged as a statement, not as rows",
        detail=f"{what} at {position}",
        hint="set binlog_format = ROW for all sessions and snapshot the captured tables again",
    )
