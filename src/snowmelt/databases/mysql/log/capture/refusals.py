"""Errors of the captured log: what happened, and what an operator can do."""

from __future__ import annotations

from typing import Final

import pymysql

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import translate
from snowmelt.errors import Fenced, InvalidConfig, SnowmeltError, SourceDrift

_FATAL_READ: Final = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: anything that can be wrong with the request for the log. The text says what."""
_SAME_SERVER_ID: Final = 4052
"""MariaDB's ER_SLAVE_SAME_ID: another client took our server id. Before 11.6 the server closed the connection without an error."""


def taken_over(detail: str) -> Fenced:
    return Fenced("another client took over our server id", detail=detail, hint="give each pipeline a server_id of its own")


def purged(detail: str) -> SourceDrift:
    return SourceDrift(
        "the server no longer has the log from where the capture ended",
        detail=detail,
        hint="copy the tables again, and let the server keep its log longer (binlog_expire_logs_seconds, expire_logs_days)",
    )


def cut_off(place: str, detail: str) -> SourceDrift:
    return SourceDrift(
        "the server's log ends before what was captured of it",
        detail=f"{place}: {detail}",
        hint="it lost committed transactions in a crash (sync_binlog = 0?); the tables must be copied again",
    )


def started_anew(file: str) -> SourceDrift:
    return SourceDrift(
        "the log was started anew",
        detail=f"{file} is not the file that was captured",
        hint="after RESET MASTER or on a restored server the tables must be copied again",
    )


def too_large(open_bytes: int, place: str, limits: CaptureLimits) -> InvalidConfig:
    return InvalidConfig(
        "a transaction is larger than what may be held of the log",
        detail=f"{open_bytes:,} bytes of it and no end, at {place}; {limits.disk_bytes_hard:,} may be held in all",
        hint="raise disk_bytes_max of the relay; this is four times that",
    )


def server_error(payload: bytes, place: str) -> SnowmeltError:
    """The error that a server sends in place of an event: 2 bytes of code, `#` and 5 of state, text."""
    code = int.from_bytes(payload[:2], "little")
    text = payload[2:]
    message = (text[6:] if text[:1] == b"#" else text).decode("utf-8", "replace")
    lower = message.lower()
    if code == _SAME_SERVER_ID or "same server_uuid/server_id" in lower:
        return taken_over(message)
    if code != _FATAL_READ:
        return translate(pymysql.err.OperationalError(code, message))
    if "could not find first log file" in lower or "could not find next log" in lower or "purged" in lower:
        return purged(f"{place}: {message}")
    if "impossible position" in lower or "> file size" in lower:
        return cut_off(place, message)
    return SourceDrift("the server can't send its log", detail=f"{place}: {message}")
