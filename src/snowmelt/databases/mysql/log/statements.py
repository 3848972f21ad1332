"""The statements and the XA transactions of a captured segment, found by its index without decoding a row.

Laws:
- Capture marks each group that holds a statement (`SegmentCut.kind`), and has a cut right before it. Only these groups are walked here, by
  the walk that the decoder uses, so that both find the same statements at the same places.
- It also marks each group that prepares an XA transaction, or commits or rolls it back. Of such a group only the last event, which says
  which it is, the first statement, which has the whole name, and the names of its tables are read. A group that MySQL has compressed shows
  by its first event whether it is of XA, and only then it is unpacked. Its tables are not read: a server that compresses keeps the locks
  of prepared transactions, so no statement changes these tables before the COMMIT.
- Nothing is decided here. `ddl` says what a statement does. A statement or event that can't be followed is an error.
- Bytes are not trusted: sizes, positions and checksums are checked as in the decoder, and unpacking is bounded.
- Savepoints are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.ddl import Rules, SchemaChange, read_statement
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import (
    HEADER_BYTES,
    PAYLOAD_HEAD_BYTES,
    Event,
    Xid,
    check_sum,
    events_of,
    first_of_payload,
    read_query,
    read_xa_end,
    read_xa_prepare,
    read_xa_start,
    whole_xid,
    xa_began,
)
from snowmelt.databases.mysql.log.scan import Places, S, Stop, Walk
from snowmelt.databases.mysql.log.tablemap import mapped_table
from snowmelt.databases.mysql.log.unpack import unpack
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.segments import Segment, SegmentCut

_NO_STATEMENT: Final = re.compile(r"\s*(?:XA|SAVEPOINT|ROLLBACK)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStatement:
    """A statement in the log, with the settings of its session that decide how it is read."""

    offset: int
    """Where its transaction ends in the log: the cut after it."""
    begins: int
    """Where its transaction begins in the log: the cut before it."""
    ends: int
    """Where its own event ends. That is `offset` unless the transaction continues after it."""
    event: int | None
    """How many row events of its transaction lie before it; None where the transaction holds no rows."""
    time_s: int
    database: str
    """The session's."""
    sql: str
    sql_mode: int
    explicit_timestamps: bool | None
    """explicit_defaults_for_timestamp; None where the server doesn't log it."""
    collations: Mapping[str, str]
    """The session's default collations of character sets, as far as the server logs them."""
    temporary: bool = False
    """Whether the log says that it used a temporary table."""
    databases: frozenset[str] | None = None
    """The databases whose tables it changed; None where the log does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedXa:
    """A transaction of the log that prepares an XA transaction, commits it or rolls it back."""

    begins: int
    """Where it begins in the log."""
    offset: int
    """Where it ends in the log."""
    at: int
    """Where it begins in the segment's data."""
    bytes: int
    xid: Xid
    committed: bool | None
    """None: it is prepared."""
    tables: tuple[TableId, ...] = ()
    """Of one that is prepared: the tables that it names."""


def read_flagged_groups(segment: Segment, *, unpacked_bytes_max: int | None = None) -> tuple[list[LoggedStatement], list[LoggedXa]]:
    """The statements and the XA transactions of a segment, each in the order of the log. `unpacked_bytes_max` bounds the size of one
    compressed group when it is unpacked."""
    statements: list[LoggedStatement] = []
    of_xa: list[LoggedXa] = []
    own = details_of(segment)
    if not own.payloads and not any(cut.kind in ("statement", "xa") for cut in segment.cuts):
        return statements, of_xa
    data = segment.bytes()
    before = SegmentCut(0, segment.start.offset, segment.first_time_s, "other")
    for cut in segment.cuts:
        if cut.kind == "statement":
            found, more = _read_group(segment, data[before.at : cut.at], before, cut, unpacked_bytes_max)
            statements += found
            of_xa += more
        elif cut.kind == "xa":
            of_xa.append(_read_xa(segment, data, before, cut))
        before = cut
    if own.payloads:
        of_xa = sorted(of_xa + _read_payloads(segment, data, unpacked_bytes_max), key=lambda xa: xa.at)
    return statements, of_xa


def _read_xa(segment: Segment, data: Bytes, before: SegmentCut, cut: SegmentCut) -> LoggedXa:
    """Read a group that is marked as of XA: its last event says what it does."""
    where, own = f"{segment.log}:{before.offset}", details_of(segment)
    at, end, kind = 0, 0, 0
    tables: set[TableId] = set()
    for at, end, kind in events_of(data, before.at, cut.at, own.crc_length, where):
        if kind == Event.TABLE_MAP:
            tables.add(mapped_table(data[at + HEADER_BYTES : end].tobytes()))
    check_sum(data, at, end, own.crc_length, where)
    body = data[at + HEADER_BYTES : end].tobytes()
    told: tuple[bool | None, Xid] | None = None
    if kind == Event.XA_PREPARE:
        began = xa_began(data[before.at : cut.at], own.flavour, checksum_bytes=own.crc_length, where=where)
        told = None, whole_xid(read_xa_prepare(body)[1], began)
    elif kind == Event.QUERY:
        told = read_xa_end(read_query(body, own.flavour).sql)
    if told is None:
        raise Corrupt("a group is not of XA as the segment's index says", detail=f"it ends with type {kind}", position=where)
    return LoggedXa(
        begins=before.offset,
        offset=cut.offset,
        at=before.at,
        bytes=cut.at - before.at,
        xid=told[1],
        committed=told[0],
        tables=tuple(sorted(tables)),
    )


def _read_payloads(segment: Segment, data: Bytes, unpacked_bytes_max: int | None) -> list[LoggedXa]:
    """The XA transactions that are prepared in compressed groups, which have no mark. Such a group is a GTID and a payload."""
    found: list[LoggedXa] = []
    group, own = 0, details_of(segment)
    for at, end, kind in events_of(data, 0, len(data), own.crc_length, f"{segment.log}:{segment.start.offset}"):
        if kind != Event.TRANSACTION_PAYLOAD:
            group = at
            continue
        where = f"{segment.log}:{segment.start.offset + at}"
        first = first_of_payload(data[at + HEADER_BYTES : min(end, at + PAYLOAD_HEAD_BYTES)].tobytes())
        if len(first) < HEADER_BYTES or first[4] != Event.QUERY:
            raise Corrupt("a compressed transaction does not begin with a statement", position=where)
        began = read_xa_start(read_query(first[HEADER_BYTES:], own.flavour).sql)
        if began is None:
            continue
        whole = end + own.crc_length
        plain = unpack(data[at:whole], checksum_bytes=own.crc_length, where=where, bytes_max=unpacked_bytes_max)
        walk = Walk.over(plain, position=segment.start.offset + at, checksum_bytes=0, places=Places.UNPACKED)
        while (stop := walk.advance()) in (Stop.STATEMENT, Stop.MAPS_FULL):
            if stop is Stop.MAPS_FULL:
                walk.grow_maps()
        if stop is Stop.XA_PREPARE:
            xid = whole_xid(read_xa_prepare(walk.body())[1], began)
            # MySQL sends its whole log, so an offset in the data gives the offset in the log.
            start = segment.start.offset
            found.append(LoggedXa(begins=start + group, offset=start + whole, at=group, bytes=whole - group, xid=xid, committed=None))
        elif stop is not Stop.END or walk.in_group:
            raise Corrupt("a compressed XA transaction can't be read", detail=stop.name.lower(), position=where)
    return found


def _read_group(
    segment: Segment, data: Bytes, before: SegmentCut, cut: SegmentCut, unpacked_bytes_max: int | None
) -> tuple[list[LoggedStatement], list[LoggedXa]]:
    own = details_of(segment)
    gaps = own.flavour == "mariadb"
    where = f"{segment.log}:{before.offset}"
    walk = Walk.over(data, position=before.offset, checksum_bytes=own.crc_length, places=Places.GAPS if gaps else Places.EXACT)
    found: list[LoggedStatement] = []
    of_xa: list[LoggedXa] = []
    rows = 0

    def tell(xid: Xid, committed: bool | None) -> None:
        tables = {mapped_table(walk.map_body(index)) for index in range(int(walk.state[S.MAPS]))}
        of_xa.append(
            LoggedXa(
                begins=before.offset,
                offset=cut.offset,
                at=before.at,
                bytes=cut.at - before.at,
                xid=xid,
                committed=committed,
                tables=tuple(sorted(tables)),
            )
        )

    while True:
        stop = walk.advance()
        rows = max(rows, int(walk.state[S.ROWS]))
        match stop:
            case Stop.END:
                if walk.in_group:
                    raise Corrupt("a statement's transaction can't be read", detail="it is not ended", position=where)
                break
            case Stop.STATEMENT:
                found += _statement(segment, walk, walk.body(), before, cut)
                if ended := read_xa_end(read_query(walk.body(), own.flavour).sql):
                    tell(ended[1], ended[0])
            case Stop.LOGGED_AS_STATEMENT:
                # Like the body of a QUERY, with 13 more bytes that say which file was loaded.
                body = walk.body()
                found += _statement(segment, walk, body[:13] + body[26:], before, cut)
            case Stop.PACKED:
                # Once more from the group's beginning, all of it plain.
                data = unpack(
                    data,
                    checksum_bytes=own.crc_length,
                    where=where,
                    position=before.offset,
                    gaps=gaps,
                    bytes_max=unpacked_bytes_max,
                )
                walk = Walk.over(data, position=before.offset, checksum_bytes=0, places=Places.UNPACKED)
                found.clear()
                of_xa.clear()
            case Stop.MAPS_FULL:
                walk.grow_maps()
            case Stop.XA_PREPARE:
                began = xa_began(data, own.flavour, checksum_bytes=walk.checksum_bytes, where=where)
                tell(whole_xid(read_xa_prepare(walk.body())[1], began), None)
                walk.drop_group()
            case Stop.INCIDENT | Stop.UNKNOWN:
                kind = int(walk.data[walk.state[S.EVENT_AT] + 4])
                raise SourceDrift("the log holds an event that can't be followed", detail=f"type {kind} in the transaction at {where}")
            case _:
                raise Corrupt("a statement's transaction can't be read", detail=stop.name.lower(), position=where)
    if int(walk.state[S.POSITION]) != cut.offset:
        raise Corrupt("a transaction ends elsewhere than the segment's index says", detail=f"not at {cut.offset}", position=where)
    return (found if rows else [replace(statement, event=None) for statement in found]), of_xa


def _statement(segment: Segment, walk: Walk, body: bytes, before: SegmentCut, cut: SegmentCut) -> list[LoggedStatement]:
    """The statement that the walk stopped at; none if it has no effect by itself."""
    if not walk.takes_effect():
        return []
    query = read_query(body, details_of(segment).flavour)
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
            collations=query.collations,
            temporary=walk.used_temporary(),
            databases=query.databases,
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
        collations=statement.collations,
        lower_case_names=lower_case_names,
    )
    return read_statement(
        statement.sql,
        database=statement.database,
        schemas=schemas,
        captured=captured,
        defaults=lambda name: defaults.get(name, rules.default_collation("utf8mb4")),
        rules=rules,
        temporary=statement.temporary,
        databases=statement.databases,
    )
