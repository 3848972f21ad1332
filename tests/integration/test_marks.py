"""What a read contains, and whether its mark says so, on servers under load.

The oracle is the log: each transaction inserts one row, so a read's rows tell which transactions it holds.
"""

from __future__ import annotations

import contextlib
import threading

import pytest

from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.gtid import MySqlGtidSet
from snowmelt.databases.mysql.log.events import MySqlGtid
from snowmelt.databases.mysql.read import reads
from snowmelt.databases.mysql.read.bounds import Chunk
from snowmelt.databases.mysql.read.marks import GtidMark, Mark, PositionMark, covers, exact
from snowmelt.databases.mysql.read.reads import Method, log_end, newest_visible, read_chunk, read_extent, read_method
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import SourceDrift, Unavailable
from snowmelt.model.position import Position
from tests.conftest import Fresh
from tests.integration.dump import Dump, Transaction, await_that, open_session
from tests.integration.marked_reads import DURABLE, Observation, create, missing, observe, table_of
from tests.integration.server_log import execute
from tests.kit.servers import Server

READS_MIN = 60


def whole(table: MySqlTable) -> Chunk:
    return Chunk(table.id, 0, None, None)


def read(session: Session, table: MySqlTable) -> tuple[Mark, set[int]]:
    chunk_read = read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)
    ids = {value for batch in chunk_read.batches() for value in batch.column(0).to_pylist()}
    assert chunk_read.complete
    return chunk_read.mark, ids


def beyond(one: Observation, log: list[Transaction]) -> list[Transaction]:
    return [t for t in log if t.id in one.ids and t.end > one.mark.high]


def unannounced(one: Observation, log: list[Transaction]) -> list[Transaction]:
    return [t for t in log if t.id in one.ids and not covers(one.mark, position=t.end, gtid=t.gtid)]


def gtids_up_to(position: Position, before: MySqlGtidSet, log: list[Transaction]) -> MySqlGtidSet:
    gtids = before
    for transaction in log:
        if transaction.end <= position:
            assert isinstance(transaction.gtid, MySqlGtid)
            gtids = gtids.add(transaction.gtid.source, transaction.gtid.number)
    return gtids


SERVERS = {
    "mariadb": ("fresh_mariadb", {}, Method.SNAPSHOT),
    "mysql8": ("fresh_mysql8", {}, Method.GTID),
    "mysql8 without GTIDs": ("fresh_mysql8", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}, Method.LOCK),
    "mysql56": ("fresh_mysql56", {}, Method.LOCK),
    "mysql56 with GTIDs": (
        "fresh_mysql56",
        {"gtid_mode": "ON", "enforce_gtid_consistency": "ON", "log_slave_updates": True},
        Method.LOCK,
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_under_load_a_mark_covers_only_what_was_read_and_an_exact_one_all_of_it(name: str, request: pytest.FixtureRequest) -> None:
    fixture, settings, method = SERVERS[name]
    server = request.getfixturevalue(fixture)(**DURABLE, **settings)
    with open_session(server) as session:
        assert read_method(session) is method
        table = create(session)
        before = MySqlGtidSet.parse(session.value("SELECT @@GLOBAL.gtid_executed")) if method is Method.GTID else MySqlGtidSet()
        seen, log = observe(server, lambda: Observation(*read(session, table)), lambda seen: len(seen) >= READS_MIN)
    assert len(log) > 100
    assert len(seen) > 10
    for one in seen:
        assert not missing(one, log)
        assert not beyond(one, log)
        assert isinstance(one.mark, GtidMark if method is Method.GTID else PositionMark)
        gtids = gtids_up_to(one.mark.high, before, log) if method is Method.GTID else None
        if exact(one.mark, gtids):
            assert not unannounced(one, log)


def test_a_mark_by_the_end_of_the_log_loses_rows_that_the_set_of_gtids_keeps(fresh_mysql8: Fresh) -> None:
    """The planted bug: what SHOW MASTER STATUS says before a SELECT is ahead of what the SELECT sees."""
    server = fresh_mysql8(**DURABLE)
    with open_session(server) as session:
        create(session)
        pairs: list[tuple[Observation, Observation]] = []

        def look() -> Observation:
            gtids = MySqlGtidSet.parse(session.value("SELECT @@GLOBAL.gtid_executed"))
            naive = log_end(session, era=0)
            ids = {int(row[0]) for row in session.query("SELECT id FROM shop.g")}
            high = log_end(session, era=0)
            pairs.append((Observation(PositionMark(naive), ids), Observation(GtidMark(gtids, high), ids)))
            return pairs[-1][0]

        _, log = observe(server, look, lambda seen: len(seen) >= 200)
    assert any(missing(naive, log) for naive, _ in pairs), "the race was not met; nothing is proven"
    assert not any(missing(ours, log) for _, ours in pairs)


def test_a_plain_lock_on_mysql_5_6_is_given_before_writers_have_committed(fresh_mysql56: Fresh) -> None:
    """The planted bug behind `autocommit = 0` in our lock."""
    server = fresh_mysql56(**DURABLE)
    with open_session(server) as session, open_session(server) as locker:
        create(session)

        def look() -> Observation:
            locker.execute("LOCK TABLES shop.g READ")
            session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            position = log_end(locker, era=0)
            locker.execute("UNLOCK TABLES")
            ids = {int(row[0]) for row in session.query("SELECT id FROM shop.g")}
            session.execute("COMMIT")
            return Observation(PositionMark(position), ids)

        seen, log = observe(server, look, lambda seen: len(seen) >= 200)
    assert any(missing(one, log) for one in seen), "the race was not met; nothing is proven"


def test_gtids_of_mysql_5_6_are_executed_before_they_are_visible(fresh_mysql56: Fresh) -> None:
    """Why its GTIDs are not taken for a mark."""
    server = fresh_mysql56(**DURABLE, gtid_mode="ON", enforce_gtid_consistency="ON", log_slave_updates=True)
    with open_session(server) as session:
        create(session)

        def look() -> Observation:
            gtids = MySqlGtidSet.parse(session.value("SELECT @@GLOBAL.gtid_executed"))
            ids = {int(row[0]) for row in session.query("SELECT id FROM shop.g")}
            return Observation(GtidMark(gtids, log_end(session, era=0)), ids)

        seen, log = observe(server, look, lambda seen: len(seen) >= 200)
    assert any(missing(one, log) for one in seen), "the race was not met; nothing is proven"


def test_a_transaction_that_waits_for_a_replica_is_in_the_log_but_neither_read_nor_covered(fresh_mariadb: Fresh) -> None:
    server = fresh_mariadb(rpl_semi_sync_master_wait_point="AFTER_SYNC", rpl_semi_sync_master_timeout=600_000)
    with open_session(server) as session, open_session(server) as admin:
        table = create(session)
        session.execute("INSERT INTO shop.g VALUES (1)")
        admin.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        replica, relay = Dump(server, semi_sync=True), Dump(server)
        await_that(lambda: admin.query("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'")[0][1] == "1")
        writer = threading.Thread(target=lambda: _insert(server, 2))
        writer.start()
        try:
            await_that(lambda: [t.id for t in relay.transactions] == [2])
            waiting = relay.transactions[0]
            naive = PositionMark(log_end(admin, era=0))
            visible = newest_visible(admin, table, era=0)
            mark, ids = read(session, table)
            extent, tail_mark = read_extent(session, table, identity=session.server.identity, era=0)
            assert ids == {1}
            # The relay's end and the server's own end of the log are ahead of what it shows: such a mark loses the row.
            assert covers(naive, position=waiting.end, gtid=waiting.gtid)
            assert not covers(mark, position=waiting.end, gtid=waiting.gtid)
            assert isinstance(visible, Position)
            assert visible < waiting.end
            assert extent.greatest == (1,)
            assert not covers(tail_mark, position=waiting.end, gtid=waiting.gtid)
        finally:
            admin.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
            writer.join()
        mark, ids = read(session, table)
        assert ids == {1, 2}
        assert covers(mark, position=waiting.end, gtid=waiting.gtid)
        replica.close()
        relay.close()


def _insert(server: Server, number: int) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO shop.g VALUES ({number})")


def test_a_read_is_one_snapshot_whatever_isolation_the_session_had(any_server: Server) -> None:
    with open_session(any_server) as session:
        table = create(session)
        session.execute("INSERT INTO shop.g VALUES (1)")
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        chunk_read = read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)
        _insert(any_server, 2)
        assert [batch.to_pydict() for batch in chunk_read.batches()] == [{"id": [1]}]


CHANGES = {
    "a column is added": "ALTER TABLE shop.g ADD COLUMN extra INT",
    "an enum grows": "ALTER TABLE shop.g MODIFY kind ENUM('a', 'b', 'c') NOT NULL",
    "a column is renamed": "ALTER TABLE shop.g CHANGE kind sort ENUM('a', 'b') NOT NULL",
    "the table is emptied": "TRUNCATE TABLE shop.g",
    "the table is dropped": "DROP TABLE shop.g",
    "the table is replaced": "RENAME TABLE shop.g TO shop.old, shop.other TO shop.g",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_read_is_given_back_when_in_the_moment_its_snapshot_opens(
    change: str, any_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(any_server) as session, open_session(any_server) as admin:
        table = _two_tables(admin)
        pin = reads.ExactRead._pin
        changing = threading.Thread(target=admin.execute, args=(CHANGES[change],))

        def change_first(exact: reads.ExactRead) -> None:
            changing.start()
            if read_method(session) is not Method.LOCK:
                changing.join()
            pin(exact)

        monkeypatch.setattr(reads.ExactRead, "_pin", change_first)
        if read_method(session) is Method.LOCK:
            # Nobody gets in between here. Whoever tries waits for us, or we for him until we give up.
            monkeypatch.setattr(reads, "LOCK_WAIT_S", 1)
            taken = [{"id": [1], "kind": ["a"]}]
            with contextlib.suppress(SourceDrift, Unavailable):
                rows = read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)
                taken = []
                taken.extend(batch.to_pydict() for batch in rows.batches())
            assert taken == [{"id": [1], "kind": ["a"]}]
        else:
            with pytest.raises(SourceDrift):  # noqa: PT012
                rows = read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)
                list(rows.batches())
        changing.join()


@pytest.mark.parametrize("change", CHANGES)
def test_nobody_changes_a_table_while_a_read_of_it_is_open(change: str, any_server: Server) -> None:
    with open_session(any_server) as session, open_session(any_server) as admin:
        table = _two_tables(admin)
        rows = read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)
        connection = admin.value("SELECT CONNECTION_ID()")
        changing = threading.Thread(target=admin.execute, args=(CHANGES[change],))
        changing.start()
        with open_session(any_server) as other:
            await_that(lambda: _state(other, connection) == "Waiting for table metadata lock")
        taken = []
        with contextlib.suppress(SourceDrift):
            taken.extend(batch.to_pydict() for batch in rows.batches())
        changing.join()
        assert taken == [{"id": [1], "kind": ["a"]}]


def _two_tables(session: Session) -> MySqlTable:
    session.execute("CREATE DATABASE IF NOT EXISTS shop")
    session.execute("DROP TABLE IF EXISTS shop.g, shop.other, shop.old")
    session.execute("CREATE TABLE shop.g (id BIGINT NOT NULL PRIMARY KEY, kind ENUM('a', 'b') NOT NULL)")
    session.execute("CREATE TABLE shop.other (id BIGINT NOT NULL PRIMARY KEY, kind ENUM('x', 'y') NOT NULL)")
    session.execute("INSERT INTO shop.g VALUES (1, 'a')")
    return table_of(session)


def _state(session: Session, connection: int) -> str:
    return str(session.value("SELECT state FROM information_schema.processlist WHERE id = %s", [connection]))


def test_a_read_of_a_table_that_changed_since_the_plan_is_refused(any_server: Server) -> None:
    with open_session(any_server) as session:
        table = create(session)
        session.execute("ALTER TABLE shop.g ADD COLUMN extra INT")
        with pytest.raises(SourceDrift, match="changed before the read"):
            read_chunk(session, table, whole(table), TypeOptions(), identity=session.server.identity, era=0)


def test_a_read_by_another_server_is_refused(mariadb: Server) -> None:
    with open_session(mariadb) as session:
        table = create(session)
        with pytest.raises(Unavailable, match="another server"):
            read_chunk(session, table, whole(table), TypeOptions(), identity="somebody else", era=0)


def test_a_read_of_a_server_that_lags_behind_the_plan_is_refused(mariadb: Server, mysql8: Server) -> None:
    ahead = {"mariadb": Position(999_999, 4), "mysql": MySqlGtidSet.parse("00000000-0000-0000-0000-000000000001:1-5")}
    for server in (mariadb, mysql8):
        with open_session(server) as session:
            table = create(session)
            visible = newest_visible(session, table, era=0)
            identity = session.server.identity
            with pytest.raises(Unavailable, match="shows less"):
                read_chunk(session, table, whole(table), TypeOptions(), identity=identity, era=0, visible=ahead[server.kind])
            assert not list(read_chunk(session, table, whole(table), TypeOptions(), identity=identity, era=0, visible=visible).batches())


def test_a_lock_gives_up_behind_an_open_transaction_and_says_why(mysql56: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "LOCK_WAIT_S", 1)
    monkeypatch.setattr(reads, "LOCK_TRIES", 2)
    with open_session(mysql56) as session, mysql56.connect(autocommit=False) as open_one:
        table = create(session)
        with open_one.cursor() as cursor:
            cursor.execute("INSERT INTO shop.g VALUES (1)")
            with pytest.raises(Unavailable, match="can't be locked"):
                read(session, table)
            open_one.commit()
        assert read(session, table)[1] == {1}


def _waits(server: Server, words: str) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        return any(row[7] == words and "lock" in str(row[6]).lower() for row in cursor.fetchall())


def test_an_engine_without_transactions_is_read_under_a_lock_whatever_it_was_before(any_server: Server) -> None:
    with open_session(any_server) as session:
        table = create(session)
        session.execute("ALTER TABLE shop.g ENGINE = MyISAM")
        session.execute("INSERT INTO shop.g VALUES (1)")
        identity = session.server.identity
        dump = Dump(any_server)
        with read_chunk(session, table, whole(table), TypeOptions(), identity=identity, era=0) as chunk_read:
            statements = ("INSERT INTO shop.g VALUES (2)", "DELETE FROM shop.g WHERE id = 77")
            writers = [threading.Thread(target=execute, args=(any_server, statement)) for statement in statements]
            for writer in writers:
                writer.start()
            # Those who wait for our lock must not let our own SELECT wait behind them.
            await_that(lambda: all(_waits(any_server, statement) for statement in statements))
            ids = [value for batch in chunk_read.batches() for value in batch.column(0).to_pylist()]
        for writer in writers:
            writer.join()
        assert ids == [1]
        await_that(lambda: [t.id for t in dump.transactions] == [2])
        assert dump.transactions[0].end > chunk_read.high
        dump.close()
