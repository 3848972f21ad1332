"""Exact reads: rows of a chunk, and the mark for what they contain.

A server sends a transaction to its replicas before its own SELECTs show it, for microseconds or, with semi-synchronous
replication, without a bound. So the end of the log does not show what a read contains. Marks come from other sources:

- MariaDB has the position of a consistent snapshot. It is exact for InnoDB, except for XA COMMITs (see `marks`).
- MySQL 5.7 and later with GTIDs: `gtid_executed` moves after the engine's commit, so what it holds before the snapshot
  opens is in the snapshot; the end of the log moves before, so what lies beyond it after the snapshot is open is not.
- MySQL without GTIDs, and MySQL 5.6, whose `gtid_executed` moves too early: a second connection locks the table against
  writers for the milliseconds in which the snapshot opens and the end of the log is read.
- Engines without transactions have no snapshot: the lock stays until the last row.

Laws:
- The isolation level is set here, never inherited: under READ COMMITTED a consistent snapshot is silently none.
- A table's shape is compared before the snapshot opens and after the transaction has ended. Inside the transaction MySQL 8 shows the
  catalogue as of the snapshot, while rows come in the present shape. From its first touch of the table to its end the
  transaction blocks changes of the shape. So if it is equal before and after, it was equal all the time.
- A read that fails, or that is not taken to its end, does not count: its chunk is given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from snowmelt.columnar.arena import ArenaPool
from snowmelt.databases.mysql.answers import number, text, text_or_none
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session, log_is_off
from snowmelt.databases.mysql.gtid import MySqlGtidSet
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read.bounds import Chunk, Extent, chunk_condition, from_table, key_equals, read_keys
from snowmelt.databases.mysql.read.marks import GtidMark, Mark, PositionMark, at_least
from snowmelt.databases.mysql.read.resultset import BATCH_BYTES_MAX, ROW_BYTES_MAX, ROWS_MAX, ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import InvariantBroken, SnowmeltError, SourceDrift, Unavailable, check
from snowmelt.model.position import Position

LOCK_WAIT_S = 5
"""How long we wait for a table's lock. While we wait for another session's open transaction, all later writers of the table wait for us."""
LOCK_TRIES = 3
_SHOWN_LOOK_S = 0.01

_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
_Given = TypeVar("_Given")


class Method(StrEnum):
    """Where the mark of a read comes from on this server."""

    SNAPSHOT = "snapshot"
    GTID = "gtid"
    LOCK = "lock"


def read_method(session: Session, *, to_a_change: bool = False) -> Method:
    """`to_a_change` as in `read_chunk`: then a set of GTIDs is not enough, because it does not say whether the read has the transactions
    that were being committed."""
    if session.server.flavour == "mariadb":
        return Method.SNAPSHOT
    if not to_a_change and session.server.version >= (5, 7, 0) and session.variable("gtid_mode") == "ON":
        return Method.GTID
    return Method.LOCK


def log_end(session: Session, *, era: int) -> Position:
    """The end of the server's log as of now."""
    file, offset = session.log_end()
    return Position(file.number, offset, era)


def shown_place(session: Session, era: int, *, seconds_max: float = 30.0) -> Position:
    """A place of MySQL's log up to which everything is visible from now on.

    A transaction owns its GTID from before it is in the log until the engine shows it. So the present log is visible as soon as no GTID is
    owned any more that is owned now.
    """
    place = log_end(session, era=era)
    then = _owned(session)
    deadline = time.monotonic() + seconds_max
    while then & _owned(session):
        if time.monotonic() > deadline:
            raise Unavailable(
                "a transaction is in the log and not shown by the server",
                detail=f"since {seconds_max:.0f} s",
                hint="does it wait for a replica? see rpl_semi_sync_source_timeout",
            )
        time.sleep(_SHOWN_LOOK_S)
    return place


def _owned(session: Session) -> set[str]:
    """The GTIDs of running transactions, each with its thread: `uuid:7#31:8#32,uuid2:3#33`."""
    owned = set()
    for part in (session.value("SELECT @@GLOBAL.gtid_owned", kind=text_or_none) or "").replace("\n", "").split(","):
        source = ""
        for piece in part.strip().split(":"):
            if "#" in piece:
                owned.add(f"{source}:{piece}")
            else:
                source += f":{piece}"
    return owned


def newest_visible(session: Session, table: MySqlTable, *, era: int) -> Position | MySqlGtidSet:
    """What is surely visible on this server now: a position, or the set of transactions where the server keeps GTIDs.

    With a lock it is proven for this table only. On MariaDB an XA COMMIT up to the position is perhaps not visible yet: the chunk lane asks
    afterwards which transactions are still prepared (`engine.driver.chunks`). No other caller needs to: a first start waits until none
    is, after the place where it begins (`handover.with_nothing_prepared`), and `verify` reads by marks.
    """
    match read_method(session):
        case Method.SNAPSHOT:
            session.execute(_ISOLATION)
            session.execute(_SNAPSHOT)
            position = _snapshot_position(session, era)
            session.execute("COMMIT")
            return position
        case Method.GTID:
            return _executed(session)
        case Method.LOCK:
            with _lock(session, table) as locker:
                return log_end(locker, era=era)


def read_extent(session: Session, table: MySqlTable, *, identity: str, era: int, to_a_change: bool = False) -> tuple[Extent, Mark]:
    """The least and the greatest key by one exact read, and its mark, which is also that of the keys outside. `to_a_change` as in
    `read_chunk`."""
    check(bool(table.key), "a table without a key has no ends", str(table.id))
    with ExactRead(session, table, identity=identity, era=era, to_a_change=to_a_change) as read:
        source = from_table(session, table)
        up = ", ".join(quote(name) for name in table.key)
        down = ", ".join(f"{quote(name)} DESC" for name in table.key)
        least = read_keys(session, table, source, f"ORDER BY {up} LIMIT 1")
        greatest = read_keys(session, table, source, f"ORDER BY {down} LIMIT 1")
        for key in least + greatest:
            # A key that is not itself when it is said would leave out all that lies beyond what it became.
            if not session.value(f"SELECT COUNT(*) FROM {source} WHERE {key_equals(table, key)}", kind=number):
                raise InvariantBroken("a key doesn't compare as itself", detail=f"{table.id} by {', '.join(table.key)}")
        read.finish()
    check(bool(least) == bool(greatest), "a snapshot has both ends or none", str(table.id))
    return Extent(least[0] if least else None, greatest[0] if greatest else None), read.mark


def read_chunk(
    session: Session,
    table: MySqlTable,
    chunk: Chunk,
    options: TypeOptions,
    *,
    identity: str,
    era: int,
    visible: Position | MySqlGtidSet | None = None,
    to_a_change: bool = False,
    ordered: bool = False,
    pool: ArenaPool | None = None,
    rows_max: int = ROWS_MAX,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    row_bytes_max: int = ROW_BYTES_MAX,
) -> ChunkRead:
    """Open the exact read of a chunk of the table as it is expected to look.

    `identity` is the server that the plan was made for, `visible` the place or set that was proven visible there at launch. The session
    belongs to the read until the read is closed; a failure in the midst of rows closes the session too. `to_a_change`: the mark must leave
    no transaction open, as tables without keys need it; if the server has no such mark, the table is locked for a moment. `ordered`: rows
    come in the order of the key.
    """
    check(chunk.table == table.id, "a chunk is read from its own table", f"{chunk.table} and {table.id}")
    exact = ExactRead(session, table, identity=identity, era=era, to_a_change=to_a_change)
    exact.open()
    try:
        if visible is not None and not at_least(exact.mark, visible):
            raise Unavailable("the server shows less than when the read was launched", detail=str(table.id))
        names = ", ".join(quote(column.name) for column in table.columns)
        sql = f"SELECT {names} FROM {from_table(session, table)} WHERE {chunk_condition(table, chunk)}"
        if ordered:
            sql += f" ORDER BY {', '.join(quote(name) for name in table.key)}"
        counters = ReadCounters()
        rows = select(
            session,
            sql,
            table.columns,
            options,
            counters=counters,
            pool=pool,
            rows_max=rows_max,
            batch_bytes_max=batch_bytes_max,
            row_bytes_max=row_bytes_max,
            table=table.id,
        )
    except BaseException:
        exact.close()
        raise
    return ChunkRead(exact, rows, counters)


class ChunkRead:
    """A running read. It counts only when `complete`: all rows were taken and the table kept its shape meanwhile."""

    def __init__(self, exact: ExactRead, rows: Iterator[pa.RecordBatch], counters: ReadCounters) -> None:
        self._exact = exact
        self._rows = rows
        self._taken = False
        self.counters = counters
        self.complete = False

    @property
    def mark(self) -> Mark:
        return self._exact.mark

    @property
    def high(self) -> Position:
        return self._exact.mark.high

    @property
    def locked(self) -> bool:
        """Whether the read holds off the table's writers until it ends."""
        return self._exact.locked

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, once. The last step ends the transaction and compares the table's shape."""
        check(not self._taken, "the rows of a read are taken once")
        self._taken = True
        try:
            yield from self._rows
            self._exact.finish()
            self.complete = True
        finally:
            self.close()

    def close(self) -> None:
        """End the transaction and release the lock. Twice is harmless."""
        self._exact.close()

    def __enter__(self) -> ChunkRead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class ExactRead:
    """A transaction whose content is known, on a table of known shape."""

    def __init__(self, session: Session, table: MySqlTable, *, identity: str, era: int, to_a_change: bool) -> None:
        self._session = session
        self._to_a_change = to_a_change
        self._table = table
        self._identity = identity
        self._era = era
        self._locked = False
        self._opened = False
        self._mark: Mark | None = None

    @property
    def mark(self) -> Mark:
        if self._mark is None:
            raise InvariantBroken("a read has a mark once it is open")
        return self._mark

    @property
    def locked(self) -> bool:
        return self._locked

    def open(self) -> None:
        session = self._session
        if session.server.identity != self._identity:
            raise Unavailable(
                "another server answers",
                detail=f"{session.server.identity} instead of {self._identity}",
                hint="see the host's name",
            )
        # As of now: a change of its engine is no change of its shape.
        self._engine = self._check_shape("before").engine.lower()
        session.execute(_ISOLATION)
        # A pending ALTER would block our read, and with a lock it waits for us.
        session.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
        self._opened = True
        try:
            self._mark = self._open_snapshot() if self._engine == "innodb" else self._open_locked()
        except BaseException:
            self.close()
            raise

    def _open_snapshot(self) -> Mark:
        session, era = self._session, self._era
        match read_method(session, to_a_change=self._to_a_change):
            case Method.SNAPSHOT:
                session.execute(_SNAPSHOT)
                self._pin()
                return PositionMark(_snapshot_position(session, era))
            case Method.GTID:
                before = _executed(session)
                session.execute(_SNAPSHOT)
                self._pin()
                return GtidMark(before, log_end(session, era=era))
            case Method.LOCK:
                with _lock(session, self._table) as locker:
                    session.execute(_SNAPSHOT)
                    self._pin()
                    return PositionMark(log_end(locker, era=era), locked=True)

    def _pin(self) -> None:
        """Touch the table, so that from here on a statement that alters, empties or drops it waits for our end.

        What happens to it between the snapshot and here shows as an error of the SELECT or in its shape. Only MySQL 5.6
        shows an emptied table as empty, but there no statement can empty it: we still hold the lock.
        """
        self._session.execute(f"SELECT 1 FROM {quote_table(self._table.id)} LIMIT 0")

    def _open_locked(self) -> Mark:
        """Lock the table for the whole read. An engine without transactions shows what others write, so none may write until the read is
        over. The lock is the reading
        session's own: if another session held it, a waiting writer would come before us too, and we would wait for that writer."""
        _tried(self._table, lambda: self._session.execute(f"LOCK TABLES {quote_table(self._table.id)} READ"))
        self._locked = True
        return PositionMark(log_end(self._session, era=self._era), locked=True)

    def finish(self) -> None:
        """End the transaction after its last row, and see that the table is still what it was."""
        self._session.execute("COMMIT")
        if self._locked:
            self._session.execute("UNLOCK TABLES")
        self._opened = self._locked = False
        if self._check_shape("during").engine.lower() != self._engine:
            raise SourceDrift(f"the engine of {self._table.id} changed during the read")

    def close(self) -> None:
        if self._opened:
            self._opened = False
            try:
                self._session.execute("ROLLBACK")
                if self._locked:
                    self._session.execute("UNLOCK TABLES")
            except SnowmeltError:
                self._session.close()
            self._locked = False

    def _check_shape(self, when: str) -> MySqlTable:
        found = read_tables(self._session, [self._table.id]).get(self._table.id)
        if found is None:
            raise SourceDrift(f"{self._table.id} is gone", detail=f"{when} the read")
        if found.fingerprint() != self._table.fingerprint():
            raise SourceDrift(f"the schema of {self._table.id} changed {when} the read")
        return found

    def __enter__(self) -> ExactRead:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _snapshot_position(session: Session, era: int) -> Position:
    shown = session.query("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'", columns=(text, text))
    status = {name.lower(): value for name, value in shown}
    file = status.get("binlog_snapshot_file", "")
    if not file:
        raise log_is_off(str(session.server))
    return Position(LogFile.parse(file).number, number(status.get("binlog_snapshot_position")), era)


def _executed(session: Session) -> MySqlGtidSet:
    return MySqlGtidSet.parse(session.value("SELECT @@GLOBAL.gtid_executed", kind=text) or "")


def _lock(session: Session, table: MySqlTable) -> Session:
    """A second connection that holds off a table's writers until it is closed.

    Without autocommit InnoDB locks the table as well: MySQL 5.6 gives the plain lock to us while a transaction that wrote
    to the table is still about to commit.
    """

    def attempt() -> Session:
        locker = Session(session.options)
        try:
            if locker.server.identity != session.server.identity:
                raise Unavailable("two connections reach two servers", hint="name one server, not a proxy in front of several")
            locker.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}, innodb_lock_wait_timeout = {LOCK_WAIT_S}")
            locker.execute("SET SESSION autocommit = 0, innodb_table_locks = 1")
            locker.execute(f"LOCK TABLES {quote_table(table.id)} READ")
        except BaseException:
            locker.close()
            raise
        return locker

    return _tried(table, attempt)


def _tried(table: MySqlTable, attempt: Callable[[], _Given]) -> _Given:
    """Try to lock a table `LOCK_TRIES` times. Each try ends after `LOCK_WAIT_S`, which bounds how long writers wait for us."""
    kind, refused = Unavailable, ""
    for _ in range(LOCK_TRIES):
        try:
            return attempt()
        except Unavailable as error:
            kind, refused = type(error), error.detail or error.fact
    raise kind(
        f"{table.id} can't be locked for a moment",
        detail=refused,
        hint="a transaction that wrote to it stays open; on MySQL 5.7 or later GTIDs (gtid_mode=ON) make the lock unnecessary",
    )
