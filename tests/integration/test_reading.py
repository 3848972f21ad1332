"""Reads of chunks that take long: how they give way to other sessions, and how they go on in parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.read.bounds import Chunk
from snowmelt.databases.mysql.read.parts import ChunkReading
from snowmelt.databases.mysql.read.reads import ChunkRead
from snowmelt.databases.mysql.read.watched import LOOK_AFTER_S, Watch
from snowmelt.databases.mysql.types.columns import TypeOptions
from snowmelt.errors import Occupied, TableStuck
from snowmelt.model.table import TableId
from tests.integration.dump import await_that
from tests.kit.servers import Server

Database = Callable[[Server], str]

ROWS = 400
FAR = 1 << 60
KEYS = [*range(1, ROWS + 1), FAR]
READER = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'", "GRANT SELECT, LOCK TABLES ON {shop}.* TO reader@'%'"


def ask(server: Server, *statements: str) -> Any:
    """The last one's first value."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        row = cursor.fetchone()
        return row[0] if row else None


@contextmanager
def reading_of(
    server: Server, shop: str, *, key: str = "id", in_parts: bool = True, seconds_max: float = 600.0, tls: Tls = Tls.DISABLED
) -> Iterator[ChunkReading]:
    """The read of a table of more bytes than sockets hold, by a user with the guide's grants alone."""
    ask(server, f"CREATE TABLE {shop}.t (id BIGINT NOT NULL, v LONGTEXT NOT NULL, PRIMARY KEY ({key}))")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {shop}.t VALUES (%s, REPEAT('x', 100000))", [(number,) for number in KEYS])
    secret = server.folder / "reader"
    secret.write_text("secret")
    ask(server, "CREATE USER reader@'%' IDENTIFIED BY 'secret'", *(grant.format(shop=shop) for grant in READER))
    try:
        options = MySqlOptions(
            host=server.host,
            port=server.port,
            username="reader",
            password=Secret(f"file:{secret}"),
            tls=tls,
            allow_password_to_unverified_server=True,
            read_time_max_s=seconds_max,
        )
        with Session(options) as session:
            table = read_tables(session, [TableId(shop, "t")])[TableId(shop, "t")]
            identity = session.server.identity
        chunk = Chunk(table.id, 0, (1,), (FAR,)) if key == "id" else Chunk(table.id, 0, None, None)
        yield ChunkReading(options, table, chunk, TypeOptions(), in_parts=in_parts, identity=identity, era=0, rows_max=10)
    finally:
        ask(server, "DROP USER reader@'%'")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a watch has ended a read."""
    event, end = threading.Event(), Watch._end

    def tell(watch: Watch, *rest: Any) -> None:
        end(watch, *rest)
        event.set()

    monkeypatch.setattr(Watch, "_end", tell)
    return event


@pytest.mark.timeout(180)
def test_a_read_gives_way_to_an_alter_before_writers_pile_up_behind_it(any_server: Server, database: Database) -> None:
    """The reader takes no row meanwhile: whatever holds it up, the server lets go of the lock."""
    shop = database(any_server)
    with reading_of(any_server, shop) as reading:
        batches = reading.batches()
        assert 0 < next(batches).num_rows < ROWS
        alter = threading.Thread(target=ask, args=(any_server, f"ALTER TABLE {shop}.t ADD COLUMN w INT"), daemon=True)
        alter.start()
        waiting = (
            "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'Waiting for table metadata lock' AND info LIKE 'ALTER%'"
        )
        await_that(lambda: ask(any_server, waiting) or not alter.is_alive())
        # Without a read that gives way this one waits behind the ALTER, and fails.
        ask(any_server, "SET SESSION lock_wait_timeout = 60", f"INSERT INTO {shop}.t (id, v) VALUES (0, 'written')")
        alter.join()
        with pytest.raises(Occupied, match="a read gave way to another session that waits for the table"):
            list(batches)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("which", "tls"), [("mariadb", Tls.DISABLED), ("mysql8", Tls.REQUIRED)])
def test_a_read_that_takes_too_long_goes_on_behind_its_last_row_in_another_transaction(
    request: pytest.FixtureRequest, database: Database, ended: threading.Event, which: str, tls: Tls
) -> None:
    """One key is far from all others, so half of the keys' range has all rows but one."""
    server: Server = request.getfixturevalue(which)
    shop = database(server)
    keys: list[int] = []
    waited = 0
    with reading_of(server, shop, seconds_max=5.0, tls=tls) as reading:
        for batch in reading.batches():
            keys += batch.column("id").to_pylist()
            if reading.parts > waited and waited < 2:
                waited = reading.parts
                ended.wait(60)
                ended.clear()
                if waited == 1:
                    ask(server, f"DELETE FROM {shop}.t WHERE id = 1", f"UPDATE {shop}.t SET v = 'new' WHERE id = {FAR}")
        last = batch.column("v").to_pylist()[-1]
    assert keys == KEYS, "each row once, in the order of keys"
    assert reading.parts >= 3
    assert last == "new", "later parts are later reads"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("key", ["id, v(9)", "id"])
def test_a_read_that_has_no_parts_takes_as_long_as_it_takes(mariadb: Server, database: Database, key: str) -> None:
    """To end it would only make it begin anew, for ever."""
    with reading_of(mariadb, database(mariadb), key=key, in_parts=False, seconds_max=0.1) as reading:
        batches = reading.batches()
        rows = next(batches).num_rows
        # Longer than it takes until a watch looks for the first time.
        assert not threading.Event().wait(LOOK_AFTER_S + 1.5)
        assert rows + sum(batch.num_rows for batch in batches) == len(KEYS)
    assert reading.parts == 1


@pytest.mark.timeout(180)
def test_a_read_of_which_no_row_comes_in_time_sets_its_table_aside(
    mariadb: Server, database: Database, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ChunkRead.batches

    def late(read: ChunkRead) -> Iterator[Any]:
        ended.wait(60)
        yield from real(read)

    monkeypatch.setattr(ChunkRead, "batches", late)
    with (
        reading_of(mariadb, database(mariadb), seconds_max=1.0) as reading,
        pytest.raises(TableStuck, match=r"a read takes longer than read_time_max: test_\d+.t: more than 1 s, and no row"),
    ):
        list(reading.batches())


def test_only_the_server_of_the_read_is_told_to_end_it(mariadb: Server, mysql56: Server, database: Database) -> None:
    """Connections have the same numbers on other servers, and again after a restart."""
    shop = database(mariadb)
    with reading_of(mariadb, shop) as reading, Session(reading._options) as session, Session(reading._options) as second:
        watch = Watch(session, TableId(shop, "t"), seconds_max=600.0)
        watch._began = time.monotonic()
        assert watch._knows_the_read(second)
        watch._began -= 365 * 86_400
        assert not watch._knows_the_read(second), "it was started again since the read began"
        watch._began = time.monotonic()
        with reading_of(mysql56, database(mysql56)) as other, Session(other._options) as elsewhere:
            assert not watch._knows_the_read(elsewhere)
