"""Statements of a captured segment, found by its index: what changes tables as a whole, without decoding a row.

Laws:
- Capture marks each group that holds a statement (`Cut.kind`), and has a cut right before it. Only these groups are walked here, by
  the walk that the decoder uses, so that both find the same statements at the same places.
- Nothing is decided here. What a statement does is said by `ddl`; what can't be followed stops whoever asked for it.
- Bytes are not trusted: sizes, places and checksums are checked as in the decoder, and what unpacks is bounded.
- Of what names transactions alone (XA, savepoints) nothing comes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.columns import MySqlTable
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.ddl import Rules, SchemaChange, read_statement
from snowmelt.databases.mysql.events import read_query
from snowmelt.databases.mysql.scan import Places, S, Stop, Walk
from snowmelt.databases.mysql.segments import Cut, Segment
from snowmelt.databases.mysql.unpack import unpack
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.table import TableId

_NO_STATEMENT: Final = re.compile(r"\s*(?:XA|SAVEPOINT|ROLLBACK)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStatement:
    """A statement in the log, with what of its session decides how it is read."""

    offset: int
    """Where its transaction ends in the log: the cut behind it."""
    begins: int
    """Where its transaction begins in the log: the cut before it."""
    ends: int
    """Where its own event ends. That is `offset` unless the transaction goes on behind it."""
    event: int | None
    """How many row events of its transaction lie before it; None where the transaction holds no rows."""
    time_s: int
    database: str
    """The session's."""
    sql: str
    sql_mode: int
    explicit_timestamps: bool | None
    """explicit_defaults_for_timestamp; None where the server doesn't log it."""


def read_statements(segment: Segment, *, unpacked_bytes_max: int | None = None) -> list[LoggedStatement]:
    """The statements of a segment, in the order of the log. `unpacked_bytes_max` bounds what one compressed group may grow to."""
    found: list[LoggedStatement] = []
    if not any(cut.kind == "statement" for cut in segment.cuts):
        return found
    data = segment.bytes()
    before = Cut(0, segment.start.offset, segment.first_time_s, "other")
    for cut in segment.cuts:
        if cut.kind == "statement":
            found += _read_group(segment, data[before.at : cut.at], before, cut, unpacked_bytes_max)
        before = cut
    return found


def _read_group(segment: Segment, data: Bytes, before: Cut, cut: Cut, unpacked_bytes_max: int | None) -> list[LoggedStatement]:
    gaps = segment.server.flavour == "mariadb"
    where = f"{segment.log}:{before.offset}"
    walk = Walk.over(data, position=before.offset, checksum_bytes=segment.crc_length, places=Places.GAPS if gaps else Places.EXACT)
    found: list[LoggedStatement] = []
    rows = 0
    while True:
        stop = walk.go_on()
        rows = max(rows, int(walk.state[S.ROWS]))
        match stop:
            case Stop.END:
                if walk.in_group:
                    raise Corrupt("a statement's transaction can't be read", detail="it is not ended", position=where)
                break
            case Stop.STATEMENT:
                found += _statement(segment, walk, walk.body(), before, cut)
            case Stop.LOGGED_AS_STATEMENT:
                # As a QUERY's body, but for 13 more bytes that say which file was loaded.
                body = walk.body()
                found += _statement(segment, walk, body[:13] + body[26:], before, cut)
            case Stop.PACKED:
                # Once more from the group's beginning, all of it plain.
                data = unpack(
                    data,
                    checksum_bytes=segment.crc_length,
                    where=where,
                    position=before.offset,
                    gaps=gaps,
                    bytes_max=unpacked_bytes_max,
                )
                walk = Walk.over(data, position=before.offset, checksum_bytes=0, places=Places.UNPACKED)
                found.clear()
            case Stop.MAPS_FULL:
                walk.grow_maps()
            case Stop.XA_PREPARE:
                walk.drop_group()
            case Stop.INCIDENT | Stop.UNKNOWN:
                kind = int(walk.data[walk.state[S.EVENT_AT] + 4])
                raise SourceDrift("the log holds an event that can't be followed", detail=f"type {kind} in the transaction at {where}")
            case _:
                raise Corrupt("a statement's transaction can't be read", detail=stop.name.lower(), position=where)
    if int(walk.state[S.POSITION]) != cut.offset:
        raise Corrupt("a transaction ends elsewhere than the segment's index says", detail=f"not at {cut.offset}", position=where)
    return found if rows else [replace(statement, event=None) for statement in found]


def _statement(segment: Segment, walk: Walk, body: bytes, before: Cut, cut: Cut) -> list[LoggedStatement]:
    """The statement that the walk stopped at, unless it is none that does anything by itself."""
    if not walk.takes_effect():
        return []
    query = read_query(body, segment.server.flavour)
    if _NO_STATEMENT.match(query.sql):
        return []
    at = int(walk.state[S.EVENT_AT])
    return [
        LoggedStatement(
            offset=cut.offset,
            begins=before.offset,
            ends=int(walk.state[S.STOP_POSITION]),
            event=int(walk.state[S.ROWS]),
            time_s=int.from_bytes(walk.data[at : at + 4].tobytes(), "little"),
            database=query.database,
            sql=query.sql,
            sql_mode=query.sql_mode,
            explicit_timestamps=query.explicit_timestamps,
        )
    ]


def changes_of(
    statement: LoggedStatement,
    *,
    schemas: Callable[[TableId], MySqlTable | None],
    captured: Callable[[TableId], bool],
    defaults: Mapping[str, str],
    server: Server,
    lower_case_names: bool = False,
) -> tuple[SchemaChange, ...]:
    """What a statement does to captured tables, as the decoder reads it. `schemas` gives the shapes right before it, `defaults` the
    databases' default collations where they are known."""
    rules = Rules.of_event(
        flavour=server.flavour,
        version=server.version,
        sql_mode=statement.sql_mode,
        explicit_timestamps=statement.explicit_timestamps,
        lower_case_names=lower_case_names,
    )
    return read_statement(
        statement.sql,
        database=statement.database,
        schemas=schemas,
        captured=captured,
        defaults=lambda name: defaults.get(name, rules.default_collation("utf8mb4")),
        rules=rules,
    )
