"""XA transactions around a copy, a restart and the end of their log: what is prepared comes with its COMMIT, and only then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.databases.mysql.log.decode import HeldGroup
from snowmelt.databases.mysql.log.details import details_of, details_of_own
from snowmelt.databases.mysql.log.events import Xid
from snowmelt.databases.mysql.log.statements import read_flagged_groups
from snowmelt.databases.mysql.preflight import prepared_transactions
from snowmelt.databases.mysql.read import shown
from snowmelt.engine.driver.pipeline import PipelineDriver
from snowmelt.engine.driver.routes import Mode, Route
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import GROUPS_ASIDE
from snowmelt.engine.log import prepared as aside
from snowmelt.engine.tasks.jobs import Lane
from snowmelt.errors import Corrupt, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import OUTSIDE
from snowmelt.relay.limits import Limits
from snowmelt.relay.prefilter import PreFilter
from snowmelt.relay.retention import Prepared
from snowmelt.segments import list_segments
from snowmelt.store.contract import numbered
from snowmelt.store.memory import MemoryStore
from snowmelt.store.objects import open_store
from snowmelt.store.records import settle_record
from tests.integration.driver_process import DriverProcess
from tests.integration.logs import changes as log_changes
from tests.integration.logs import mark, mark_by, open_session, reader_of, schemas_of
from tests.integration.logs import read as read_log
from tests.integration.logs import settings as server_settings
from tests.integration.running import Running, folded, history, lake_rows, settings, source_rows
from tests.kit.servers import NotRun, Server, give_up, start_named
from tests.kit.waiting import until

ROWS = 300
TABLES = ("orders", "events")


class Shop:
    """Two tables of one content: the lake has the rows of one and the changes of the other."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.execute("CREATE DATABASE shop")
        for table in TABLES:
            self.execute(f"CREATE TABLE shop.{table} (id INT NOT NULL PRIMARY KEY, v VARCHAR(40))")
            with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO shop.{table} VALUES (%s, 'old')", [(i,) for i in range(1, ROWS + 1)])
                connection.commit()

    def settings(self, **more: Any) -> Settings:
        routes = [Route("shop.events", "ods.events", Mode.CHANGELOG), Route("shop.orders", "ods.orders")]
        return settings(self.server, self.folder, routes=routes, **{"rows_per_chunk": 100} | more)

    def execute(self, *statements: str) -> int:
        """The number of the session, which ends."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return int(connection.thread_id())

    def prepare(self, xid: str, number: int, tables: Iterable[str] = TABLES) -> None:
        """One that changes a row, takes one away and brings one in each table; its session is over."""
        session = self.execute(
            "USE shop",
            f"XA START {xid}",
            *(f"UPDATE {table} SET v = 'xa {number}' WHERE id = {number}" for table in tables),
            *(f"DELETE FROM {table} WHERE id = {100 + number}" for table in tables),
            *(f"INSERT INTO {table} VALUES ({1000 + number}, 'xa {number}')" for table in tables),
            f"XA END {xid}",
            f"XA PREPARE {xid}",
        )
        # Until then a server does not know the transaction in another session.
        until(lambda: not self.is_there(session))

    def is_there(self, session: int) -> bool:
        with self.server.connect() as connection, connection.cursor() as cursor:
            return cursor.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", (session,)) > 0

    def aside(self) -> list[int]:
        return aside.lying_aside(open_store(str(self.folder / "state")))

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "state" / "log").glob("*.log"))

    def changes_of(self, number: int) -> Counter[tuple[object, object, object]]:
        rows = [row for row in history(self.folder, "ods.events") if row["id"] in (number, 100 + number, 1000 + number)]
        return Counter((row["_op"], row["id"], row["v"]) for row in rows if row["_op"] != "read")

    def check(self) -> None:
        for table in TABLES:
            source = source_rows(self.server, f"shop.{table}")
            assert (lake_rows(self.folder, "ods.orders") if table == "orders" else folded(self.folder, "ods.events")) == source


def changes(number: int) -> Counter[tuple[object, object, object]]:
    """What one of `Shop.prepare` is in a change table, each once."""
    return Counter(
        [
            ("update_before", number, "old"),
            ("update_after", number, f"xa {number}"),
            ("delete", 100 + number, "old"),
            ("insert", 1000 + number, f"xa {number}"),
        ]
    )


@pytest.fixture(params=["mariadb", "mysql8"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(request.getfixturevalue(request.param), tmp_path)
    yield made
    # A test that failed leaves some behind, and they lock what is dropped here.
    with open_session(made.server) as session:
        made.execute(*(f"XA ROLLBACK {xid}" for xid in prepared_transactions(session) or ()), "DROP DATABASE shop")


class BeforeTheCopy(Running):
    """`act` is called once, when capture has begun and no table was read yet."""

    def __init__(self, spark: Any, wanted: Settings, act: Callable[[], None]) -> None:
        super().__init__(spark, wanted)
        self._acts = [act]

    def _until(self, pipeline: PipelineDriver) -> bool:
        # It is also asked while the pipeline starts, when there is no progress to tell of.
        while self._acts and pipeline.progress.time_ms is not None:
            self._acts.pop()()
        return super()._until(pipeline)


def test_prepared_transactions_come_with_their_commit_around_a_copy_a_restart_and_the_end_of_their_log(spark: Any, shop: Shop) -> None:
    # MySQL locks a change table for the moment in which its copy begins, and that waits for whatever is prepared there.
    around = TABLES if shop.server.kind == "mariadb" else ("orders",)

    def before_the_copy() -> None:
        for number in (1, 2, 3, 4):
            shop.prepare(f"'g{number}','b',{number}", number, around)
        shop.execute("XA COMMIT 'g1','b',1", "XA ROLLBACK 'g2','b',2")

    with BeforeTheCopy(spark, shop.settings(), before_the_copy) as running:
        running.settled()
        shop.check()
        assert shop.changes_of(3) == shop.changes_of(4) == Counter()
        assert len(shop.aside()) >= 2
        shop.execute("XA COMMIT 'g3','b',3", "XA ROLLBACK 'g4','b',4")
        for number in (5, 6, 7):
            shop.prepare(f"'g{number}','b',{number}", number)
        running.settled()
        shop.check()
        assert shop.changes_of(3) == (changes(3) if "events" in around else Counter())
        assert shop.changes_of(4) == Counter()
        # The log of what is prepared is gone long before its end.
        before = shop.segments()
        shop.execute("FLUSH BINARY LOGS", "UPDATE shop.orders SET v = 'on' WHERE id = 50")
        running.settled()
        running.wait_for(lambda: not set(before) & set(shop.segments()))
    assert len(shop.aside()) == 3
    # While nobody captures: one is committed, one is rolled back, and one more is prepared.
    shop.execute("XA COMMIT 'g5','b',5", "XA ROLLBACK 'g6','b',6")
    shop.prepare("'g8','b',8", 8)
    # What a crash left behind that nobody needs is found by the next driver.
    settle_record(open_store(str(shop.folder / "state")), numbered("held", 1), aside.ASIDE, aside.Aside("X'00',X'',1", 4, "", ()))
    with Running(spark, shop.settings()) as running:
        running.settled()
        shop.check()
        assert (shop.changes_of(5), shop.changes_of(6), shop.changes_of(8)) == (changes(5), Counter(), Counter())
        shop.execute("XA COMMIT 'g7','b',7", "XA COMMIT 'g8','b',8")
        # A name may be used again, and all of it may be in one segment.
        shop.prepare("'g1','b',1", 9)
        shop.execute("XA COMMIT 'g1','b',1")
        shop.execute("XA START 'one'", "INSERT INTO shop.events VALUES (1010, 'one phase')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
        running.settled()
        shop.check()
        assert [shop.changes_of(number) for number in (7, 8, 9)] == [changes(7), changes(8), changes(9)]
        assert shop.changes_of(10) == Counter({("insert", 1010, "one phase"): 1})
        running.wait_for(lambda: shop.aside() == [])
    # A change has the place of its COMMIT, behind everything that was committed before it.
    inserted = [row["id"] for row in history(shop.folder, "ods.events") if row["_op"] == "insert"]
    assert [one for one in inserted if one != 1003] == [1005, 1007, 1008, 1009, 1010]


def test_a_read_that_has_what_followed_an_xa_commit_is_not_overtaken_by_it(spark: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks don't tell of every XA COMMIT whether a read has it. So it comes again; and what was committed behind it has to, too."""

    def between_launch_and_read() -> None:
        shop.prepare("'old'", 1, ("orders",))
        shop.execute(
            "XA COMMIT 'old'",
            "UPDATE shop.orders SET v = 'newer' WHERE id = 1",
            "INSERT INTO shop.orders VALUES (101, 'newer')",
            "DELETE FROM shop.orders WHERE id = 1001",
        )

    running = Running(spark, shop.settings(tables=["shop.orders"]))
    submit, acts = running.pipeline.resources.jobs.submit, [between_launch_and_read]

    def act_first(lane: Lane, *job: Any) -> None:
        # What lies outside is read first, by a job of its own.
        if lane is Lane.CHUNKS and job[1][0].launch.ordinal > OUTSIDE and acts:
            acts.pop()()
        submit(lane, *job)

    monkeypatch.setattr(running.pipeline.resources.jobs, "submit", act_first)
    with running:
        running.settled()
    assert not acts
    assert lake_rows(shop.folder, "ods.orders") == source_rows(shop.server, "shop.orders")


@pytest.mark.timeout(300)
def test_tables_that_are_renamed_or_emptied_between_the_phases_are_copied_behind_the_commit(spark: Any, tmp_path: Path) -> None:
    """MySQL 5.7 keeps no locks for a transaction whose session has ended, and its COMMIT names no table."""
    try:
        server = start_named("mysql-5.7", tmp_path / "server")
    except NotRun as reason:
        give_up(reason)
    try:
        shop = Shop(server, tmp_path)
        definition = "(id INT NOT NULL PRIMARY KEY, v VARCHAR(40))"
        shop.execute("CREATE DATABASE other", f"CREATE TABLE other.x {definition}", "INSERT INTO other.x VALUES (1, 'old'), (101, 'old')")
        shop.execute(f"CREATE TABLE shop.new {definition}", "INSERT INTO shop.new VALUES (1, 'new'), (101, 'new')")
        shop.execute(f"CREATE TABLE shop.bystander {definition}")
        with Running(spark, shop.settings()) as running:
            running.settled()
            shop.prepare("'g'", 1, (*TABLES, "other.x"))
            shop.execute("RENAME TABLE shop.orders TO shop.before, shop.new TO shop.orders", "TRUNCATE shop.events")
            shop.execute("RENAME TABLE other.x TO shop.came", "TRUNCATE shop.bystander", "INSERT INTO shop.bystander VALUES (1, 'x')")
            running.settled()
            incarnation = running.pipeline.ledger.tables.get(TableId("shop", "bystander")).incarnation  # type: ignore[union-attr]
        with Running(spark, shop.settings()) as running:
            running.settled()
            shop.execute("XA COMMIT 'g'", "INSERT INTO shop.bystander VALUES (2, 'x')", "INSERT INTO shop.events VALUES (1, 'new')")
            running.settled()
            shop.check()
            for table in ("before", "came", "bystander"):
                assert lake_rows(tmp_path, f"ods.shop_{table}") == source_rows(server, f"shop.{table}"), table
            assert running.pipeline.ledger.tables.get(TableId("shop", "bystander")).incarnation == incarnation  # type: ignore[union-attr]
            assert running.pipeline.progress.aside == {}
    finally:
        server.discard()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("commit", "rollback"), [(2, 7), (2**32 + 1, 2**33 + 1)])
def test_a_commit_under_another_format_id_than_was_prepared_ends_nothing(spark: Any, tmp_path: Path, commit: int, rollback: int) -> None:
    """MySQL 5.7 takes and logs it, and its engine goes on waiting for the true name: the server lists that again when it was restarted."""
    try:
        server = start_named("mysql-5.7", tmp_path / "server")
    except NotRun as reason:
        give_up(reason)
    try:
        shop = Shop(server, tmp_path)
        start = mark(server)
        schemas = schemas_of(server, "shop", start)
        with Running(spark, shop.settings()) as running:
            running.settled()
            shop.prepare("'g','b',1", 1)
            shop.prepare("'h','b',1", 2)
            shop.execute(f"XA COMMIT 'g','b',{commit}", "UPDATE shop.orders SET v = 'after' WHERE id = 50")
            running.settled()
            shop.check()
        server.restart()
        with Running(spark, shop.settings()) as running:
            shop.execute(f"XA ROLLBACK 'h','b',{rollback}", "UPDATE shop.orders SET v = 'again' WHERE id = 50")
            running.settled()
            assert shop.changes_of(1) == shop.changes_of(2) == Counter()
            shop.check()
            shop.execute("XA COMMIT 'g','b',1")
            running.settled()
            assert (shop.changes_of(1), shop.changes_of(2)) == (changes(1), Counter())
            shop.check()
            assert running.pipeline.progress.aside == {}
        # As `verify` reads it.
        told = [change for change in log_changes(read_log(server, start, schemas=schemas)) if change.values["v"] == "xa 1"]
        assert {change.position for change in told} == {mark(server).offset}
    finally:
        server.discard()


class Stalled:
    """The server lists these as prepared as well, as if its engine had not come to their COMMIT."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *xids: str) -> None:
        self.xids = list(xids)
        self.asked = 0
        monkeypatch.setattr(shown, "prepared_transactions", self._listed)

    def _listed(self, session: Session) -> list[str]:
        self.asked += 1
        return [*(prepared_transactions(session) or ()), *self.xids]

    def launches(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The cuts of the chunks that are launched meanwhile."""
        submit, cuts = running.pipeline.resources.jobs.submit, list[int]()

        def note(lane: Lane, *job: Any) -> None:
            if lane is Lane.CHUNKS and self.xids:
                cuts.extend(task.launch.visible for task in job[1])
            submit(lane, *job)

        monkeypatch.setattr(running.pipeline.resources.jobs, "submit", note)
        return cuts


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_no_chunk_is_launched_behind_an_xa_commit_that_the_server_does_not_show_yet(
    spark: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: MariaDB says that it shows the log up to behind such a commit. A read lacks it, and the epoch that adopts the read would too."""
    xid = "X'6731',X'62',1"
    stalled = Stalled(monkeypatch, xid)

    def commit() -> None:
        shop.prepare(xid, 1)
        shop.execute(f"XA COMMIT {xid}")

    running = BeforeTheCopy(spark, shop.settings(tables=["shop.orders"]), commit)
    cuts = stalled.launches(running, monkeypatch)
    with running:
        running.wait_for(lambda: stalled.asked)
        relay = running.driver.known.relay
        running.wait_for(lambda: relay.floor >= relay._committed.get(xid, 2**62))
        committed, asked = relay._committed[xid], stalled.asked
        running.wait_for(lambda: stalled.asked >= asked + 20)
        assert any(table.copy is not None for table in running.pipeline.ledger.tables), "the copy went on"
        assert all(cut < committed for cut in cuts)
        stalled.xids.clear()
        running.settled()
    assert lake_rows(shop.folder, "ods.orders") == source_rows(shop.server, "shop.orders")


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_no_chunk_is_launched_while_something_is_listed_that_a_driver_before_may_have_seen_committed(
    spark: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was let go of is not known after a restart, and an engine may be stalled for longer than that takes."""
    stalled = Stalled(monkeypatch, "X'6c6f6e67',X'',1")
    running = Running(spark, shop.settings())
    cuts = stalled.launches(running, monkeypatch)
    with running:
        running.wait_for(lambda: stalled.asked >= 2)
        # What is prepared later, or is captured a moment after it is listed, keeps nobody waiting.
        shop.prepare("'later'", 1)
        running.wait_for(lambda: stalled.asked >= 20)
        assert not cuts
        stalled.xids.clear()
        running.settled()
        shop.execute("XA COMMIT 'later'")
        running.settled()
        shop.check()


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_a_driver_killed_between_what_lies_aside_and_its_record_is_followed_exactly(spark: Any, shop: Shop, tmp_path: Path) -> None:
    with Running(spark, shop.settings()) as running:
        running.settled()
    for number in (1, 2, 3):
        shop.prepare(f"'g{number}','b',{number}", number)
    state = State(open_store(shop.settings().state))
    recorded = state.store.numbers("relay")
    for _ in range(2):
        driver = DriverProcess(shop.settings(), tmp_path, GROUPS_ASIDE)
        driver.wait_for_death()
        assert len(shop.aside()) == 3
        assert state.store.numbers("relay") == recorded, "a record came first"
    shop.execute("XA COMMIT 'g1','b',1", "XA ROLLBACK 'g2','b',2")
    with Running(spark, shop.settings()) as running:
        running.settled()
        shop.check()
        shop.execute("XA COMMIT 'g3','b',3")
        running.settled()
        shop.check()
        running.wait_for(lambda: shop.aside() == [])
    assert [shop.changes_of(number) for number in (1, 2, 3)] == [changes(1), Counter(), changes(3)]


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_a_first_start_is_refused_while_something_is_prepared(spark: Any, shop: Shop) -> None:
    shop.prepare("'waits'", 1)
    with Running(spark, shop.settings()) as running:
        error = running.stopped_by()
    assert isinstance(error, SourceDrift)
    assert "X'7761697473',X'',1" in str(error)
    assert not open_store(str(shop.folder / "state")).numbers("relay"), "a start that was refused left a beginning behind"
    shop.execute("XA ROLLBACK 'waits'")
    with Running(spark, shop.settings()) as running:
        running.settled()
        shop.check()


FORMS: dict[str, tuple[str, dict[str, str | int]]] = {
    "mariadb": ("mariadb", {}),
    "mariadb-compressed": ("mariadb", {"log_bin_compress": "ON", "log_bin_compress_min_len": 10}),
    "mysql": ("mysql8", {}),
    "mysql-compressed": ("mysql8", {"binlog_transaction_compression": "ON"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_phases_are_found_by_the_index_and_rows_come_from_what_lies_aside(
    form: str, request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, wanted = FORMS[form]
    server: Server = request.getfixturevalue(kind)
    shop = database(server)
    monkeypatch.setattr(aside, "_PIECE_BYTES", 100)
    with server_settings(server, **wanted), server.connect(database=shop) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(2000))")
        start = mark(server)
        for name, ends in (("a", "COMMIT"), ("b", "ROLLBACK")):
            cursor.execute(f"XA START '{name}', 'branch', 7")
            cursor.execute("INSERT INTO t VALUES (%s, REPEAT('x', 2000)), (%s, 'y')", (ord(name), 1000 + ord(name)))
            cursor.execute(f"XA END '{name}', 'branch', 7")
            cursor.execute(f"XA PREPARE '{name}', 'branch', 7")
            cursor.execute(f"XA {ends} '{name}', 'branch', 7")
        cursor.execute("XA START 'p'")
        cursor.execute("INSERT INTO t VALUES (1, REPEAT('x', 2000))")
        cursor.execute("XA END 'p'")
        cursor.execute("XA COMMIT 'p' ONE PHASE")
        end = mark_by(cursor)
    password = tmp_path / "password"
    password.write_text(server.password)
    options = MySqlOptions(
        host=server.host, port=server.port, password=Secret(f"file:{password}"), tls=Tls.DISABLED, allow_password_to_unverified_server=True
    )
    capture_until(options, tmp_path / "log", start, end, server_id=4_000_200)
    (segment,) = list_segments(tmp_path / "log")
    assert bool(details_of(segment).payloads) == (form == "mysql-compressed")
    statements, of_xa = read_flagged_groups(segment)
    assert statements == []
    a, b = "X'61',X'6272616e6368',7", "X'62',X'6272616e6368',7"
    assert [(str(one.xid), one.committed) for one in of_xa] == [(a, None), (a, True), (b, None), (b, False)]
    assert [one.begins for one in of_xa[1:]] == [one.offset for one in of_xa[:-1]]
    assert [one.at for one in of_xa] == [one.begins - segment.start.offset for one in of_xa] or kind == "mariadb"

    store = MemoryStore()
    first = of_xa[0]
    group = Prepared(xid=a, era=0, begins=first.begins, offset=first.offset, at=first.at, bytes=first.bytes)
    for _ in range(2):
        aside.put_aside(store, segment, group, first.begins)
    assert aside.lying_aside(store) == [group.number]
    asked: list[tuple[str, int]] = []
    take_back = partial(aside.take_back, store, group, PreFilter(4096), Limits())

    def prepared(xid: Xid, position: Position) -> HeldGroup | None:
        asked.append((str(xid), position.offset))
        events = take_back()
        return HeldGroup(events.log, details_of_own(events.own).crc_length, events.begins, events.shares_segment, events.close)

    reader = reader_of(server, schemas_of(server, shop, start))
    reader.prepared = prepared
    found = log_changes(reader.read_segment(segment))
    assert [(change.values["id"], change.position) for change in found] == [
        (ord("a"), of_xa[1].offset),
        (1000 + ord("a"), of_xa[1].offset),
        (1, end.offset),
    ]
    assert asked == [(a, of_xa[1].offset)]
    assert not reader.held

    piece = next(key for key in store._objects if ".parts/" in key)
    store._objects[piece] = b"damaged"
    with pytest.raises(Corrupt, match="an object of the store is shorter"):
        take_back()
    store._objects[piece] = bytes(first.bytes)
    with pytest.raises(Corrupt, match="a piece of a prepared transaction is damaged"):
        take_back()
    with pytest.raises(Corrupt, match="another transaction is held aside"):
        aside.take_back(store, replace(group, xid=b), PreFilter(4096), Limits())
    for _ in range(2):
        aside.let_go_of(store, [group.number])
    assert store._objects == {}
    with pytest.raises(Corrupt, match="the store lacks what a record names"):
        take_back()
