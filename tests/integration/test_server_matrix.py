"""Every server that is claimed to work: types by chunk and by log, statements, and a pipeline that is killed and verified.

The other tests run over two or three servers and go deeper. What can't be fetched is reported by name at the end of the session.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from snowmelt.databases.comparing.digests import Hash
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.failover import find_place
from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, of_words
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.databases.mysql.log.statements import read_flagged_groups
from snowmelt.databases.mysql.preflight import inspect
from snowmelt.databases.mysql.read.bounds import ESTIMATED_ROWS_MIN, Extent, plan_chunks
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.databases.mysql.server_checks import TESTED_VERSIONS
from snowmelt.databases.mysql.verify.source import choose_hash
from snowmelt.model.table import TableId
from snowmelt.segments import list_segments
from snowmelt.verify import TableOutcome, verify
from tests.integration.killed import Process
from tests.integration.logs import open_session, settings
from tests.integration.pipeline_process import settings as settings_of_process
from tests.integration.running import Running, folded, lake_rows, source_rows
from tests.integration.running import settings as settings_of_pipeline
from tests.integration.statements import DIALOGUE, EVERY_TYPE, Follower
from tests.integration.typed_tables import EVERYTHING, FAMILIES, Trial, check_rows
from tests.kit.servers import MATRIX, NotRun, Server, give_up, start_named

Database = Callable[[Server], str]
ROWS = 2_000


@pytest.fixture(scope="module", params=MATRIX)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One at a time: each is gone before the next one starts."""
    try:
        started = start_named(request.param, tmp_path_factory.mktemp("matrix"))
    except NotRun as reason:
        give_up(reason)
    yield started
    started.discard()


def execute(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def tags(server: Server) -> bool:
    """Whether GTIDs may have tags."""
    return server.kind == "mysql" and server.version >= (8, 3)


def test_check_knows_each_version_that_is_tested_here(server: Server) -> None:
    with open_session(server) as session:
        assert server.version[:2] in TESTED_VERSIONS[server.kind]
        assert "version" not in {finding.code for finding in inspect(session, [])}
        session.server = replace(session.server, version=(99, 0, 0))
        assert "version" in {finding.code for finding in inspect(session, [])}


def test_every_type_is_the_same_by_select_by_chunk_and_by_log(server: Server, database: Database) -> None:
    for family in FAMILIES:
        trial = Trial(server, database(server), family(server))
        try:
            edges = trial.edge_rows()
            others = [*edges[1:], edges[0]]
            updates = [(row, EVERYTHING // 3 if number % 2 else EVERYTHING) for number, row in enumerate(others)]
            told = server.version >= (8,)
            with settings(server, **({"binlog_row_metadata": "MINIMAL"} if told else {})):
                check_rows(trial, edges, updates, "FULL", None)
            if told:
                check_rows(trial, edges, updates, "FULL", "FULL")
        finally:
            trial.close()


def test_statements_leave_what_the_catalogue_says(server: Server, database: Database) -> None:
    follower = Follower(server, database(server))
    try:
        follower.query("SET sql_mode = ''")
        accepted = sum(ran(follower, sql, compare=True) for sql in DIALOGUE.strip().splitlines())
        types = re.split(r"\s*;\s+", EVERY_TYPE.strip())
        accepted += sum(ran(follower, f"CREATE TABLE type{number} (c {one})", compare=False) for number, one in enumerate(types))
        follower.compare("one table of each type")
    finally:
        follower.close()
    assert accepted > 200


def ran(follower: Follower, sql: str, *, compare: bool) -> bool:
    """Whether the server took a statement. The log's shapes are the catalogue's afterwards."""
    try:
        follower.run(sql)
    except pymysql.MySQLError:
        return False
    if compare:
        follower.compare(sql)
    return True


def test_chunks_are_planned_by_the_estimates_of_the_server(server: Server, database: Database) -> None:
    """They come from EXPLAIN, which prints a tree on MySQL 9 unless it is asked for rows."""
    name = database(server)
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        numbers = list(range(1, 4 * ESTIMATED_ROWS_MIN + 1))
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({number})' for number in numbers)}")
        cursor.execute("ANALYZE TABLE t")
    with open_session(server) as session:
        table = read_tables(session, [TableId(name, "t")])[TableId(name, "t")]
        chunks = list(plan_chunks(session, table, Extent((1,), (numbers[-1],)), rows_per_chunk=ESTIMATED_ROWS_MIN))
    assert chunks[0].low == (1,)
    assert chunks[-1].high == (numbers[-1],)
    assert len(chunks) > 2


def fill(server: Server) -> None:
    execute(
        server,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, k INT, c VARCHAR(120), amount DECIMAL(12,2), t TEXT)",
        "CREATE TABLE shop.names (name VARCHAR(50) NOT NULL PRIMARY KEY, v DOUBLE)",
        "CREATE TABLE shop.journal (id INT NOT NULL PRIMARY KEY, change_number BIGINT NOT NULL)",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        orders = [(i, i % 1000, f"order {i}", i / 100, "é" * (i % 40)) for i in range(1, ROWS + 1)]
        cursor.executemany("INSERT INTO shop.orders VALUES (%s, %s, %s, %s, %s)", orders)
        cursor.executemany("INSERT INTO shop.names VALUES (%s, %s)", [(f"Näme {i}", i / 7) for i in range(300)])
        cursor.executemany("INSERT INTO shop.journal VALUES (%s, %s)", [(i, -i) for i in range(1, 500)])


class Writing:
    """Changes all three tables in a thread, in transactions of several statements."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.error: BaseException | None = None

    def _write(self) -> None:
        rng, changes = random.Random(1), 0
        try:
            with self._server.connect(autocommit=False) as connection, connection.cursor() as cursor:
                if tags(self._server):
                    cursor.execute("SET gtid_next = 'AUTOMATIC:sales'")
                while not self._over.wait(0.01):
                    for _ in range(rng.choice((1, 5))):
                        number, changes = rng.randrange(1, 2 * ROWS), changes + 1
                        cursor.execute("REPLACE INTO shop.orders (id, k, c, t) VALUES (%s, 1, 'new', %s)", (number, "ü" * (number % 9)))
                        cursor.execute("DELETE FROM shop.orders WHERE id = %s", (rng.randrange(1, 2 * ROWS),))
                        cursor.execute("UPDATE shop.names SET v = v + 0.5 WHERE name = %s", (f"Näme {number % 300}",))
                        cursor.execute("UPDATE shop.journal SET change_number = %s WHERE id = %s", (changes, number % 500))
                    connection.commit()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


@pytest.mark.timeout(600)
def test_a_pipeline_that_is_killed_is_verified(server: Server, tmp_path: Path, spark: Any) -> None:
    if tags(server):
        execute(server, "GRANT TRANSACTION_GTID_TAG ON *.* TO 'root'@'127.0.0.1'")
    fill(server)
    routes = settings_of_process(server.host, server.port, tmp_path).routes
    wanted = settings_of_pipeline(server, tmp_path, routes=routes, rows_per_chunk=ROWS)
    with Writing(server):
        process = Process(server, tmp_path)
        process.wait_for(tmp_path / "released")
        process.kill()
        execute(server, "ALTER TABLE shop.orders ADD COLUMN late VARCHAR(20) DEFAULT 'later'", "UPDATE shop.orders SET late = 'é' LIMIT 9")
    with Running(spark, wanted) as running:
        running.settled()
        verdicts = verify(wanted, spark, None, patience_s=120.0)
        assert [verdict.outcome for verdict in verdicts] == [TableOutcome.VERIFIED] * 3, verdicts
        # Behind the log's back: what is wrong is seen by this server's hash.
        execute(server, "SET sql_log_bin = 0", "UPDATE shop.orders SET t = 'other' ORDER BY id LIMIT 1")
        wrong = {verdict.table.name: verdict for verdict in verify(wanted, spark, ["shop.orders"], patience_s=120.0)}
        assert [one.columns for one in wrong["orders"].differences] == [("t",)]
    assert lake_rows(tmp_path, "ods.shop_names") == source_rows(server, "shop.names")
    assert folded(tmp_path, "ods.journal") == source_rows(server, "shop.journal")


def test_the_hash_of_verify_is_one_that_the_server_has(server: Server) -> None:
    with open_session(server) as session:
        without_md5 = server.kind == "mysql" and server.version >= (9, 6)
        assert choose_hash(session) is (Hash.SHA256 if without_md5 else Hash.MD5)


def test_what_was_captured_is_what_the_server_executed(server: Server, database: Database, tmp_path: Path) -> None:
    """GTIDs of all kinds, transactions of several events and of several MB, and the place where another server would go on."""
    name = database(server)
    with open_session(server) as session:
        start, options = log_end(session, era=0), session.options
    if tags(server):
        execute(server, "GRANT TRANSACTION_GTID_TAG ON *.* TO 'root'@'127.0.0.1'")
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT)")
        for number in range(12):
            if tags(server):
                cursor.execute(
                    f"SET gtid_next = 'AUTOMATIC:{'a_tag' if number % 3 else 'b'}'" if number % 4 else "SET gtid_next = 'AUTOMATIC'"
                )
            cursor.execute("BEGIN")
            for _ in range(number % 3 + 1):
                cursor.execute("INSERT INTO t (v) VALUES (REPEAT('x', %s)), ('y')", (number * 200_000,))
            cursor.execute("COMMIT")
        cursor.execute("SELECT @@gtid_binlog_pos" if server.kind == "mariadb" else "SELECT @@global.gtid_executed")
        executed = cursor.fetchone()[0].replace("\n", "")
    with Session(options) as session:
        end = log_end(session, era=0)
        capture_until(options, tmp_path, start, end)
        found = list_segments(tmp_path)[-1].end
        assert (found.file, found.offset) == (end.file, end.offset)
        if server.kind == "mariadb":
            assert of_words(found.transactions) == MariaDbGtidSet.parse(executed)
        elif session.variable("gtid_mode") == "ON":
            assert of_words(found.transactions) == MySqlGtidSet.parse(executed)
            assert (":a_tag:" in executed) == tags(server)
        if of_words(found.transactions) is not None:
            assert find_place(session, of_words(found.transactions), era=1).offset <= end.offset


def test_mysql_logs_which_databases_a_statement_changed_however_it_reached_them(server: Server, database: Database, tmp_path: Path) -> None:
    """So tables of other databases go on when a statement was logged as text. MariaDB does not log them."""
    near, far = database(server), database(server)
    with open_session(server) as session:
        options = session.options
    with settings(server, log_bin_trust_function_creators=1), server.connect(database=near) as connection, connection.cursor() as cursor:
        for statement in (
            f"CREATE TABLE {far}.t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
            "CREATE TABLE own (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
            f"CREATE VIEW by_view AS SELECT * FROM {far}.t",
            "CREATE TABLE by_trigger (id INT PRIMARY KEY)",
            f"CREATE TRIGGER i AFTER INSERT ON by_trigger FOR EACH ROW INSERT INTO {far}.t (v) VALUES (NEW.id)",
            f"CREATE FUNCTION by_function(x INT) RETURNS INT BEGIN INSERT INTO {far}.t (v) VALUES (x); RETURN 1; END",
            f"CREATE PROCEDURE by_procedure() INSERT INTO {far}.t (v) VALUES (1)",
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            f"CREATE TABLE {far}.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {near}.parent (id) ON DELETE CASCADE)",
            "INSERT INTO parent VALUES (1)",
            f"INSERT INTO {far}.child VALUES (1, 1)",
        ):
            cursor.execute(statement)
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        reached: list[bool] = []
        for statement in (
            "INSERT INTO by_view (v) VALUES (1)",
            "INSERT INTO by_trigger VALUES (1)",
            "DO by_function(1)",
            "CALL by_procedure()",
            "DELETE FROM parent",
            f"UPDATE own, {far}.t SET own.v = 1, t.v = 2",
            f"UPDATE {far}.t SET v = 3",
            "INSERT INTO own (v) VALUES (1)",
        ):
            with open_session(server) as session:
                start = log_end(session, era=0)
                cursor.execute(statement)
                end = log_end(session, era=0)
            folder = tmp_path / str(len(reached))
            capture_until(options, folder, start, end)
            logged = [one for segment in list_segments(folder) for one in read_flagged_groups(segment)[0]]
            assert logged, statement
            changed = [one.databases for one in logged]
            reached.append(any(names is None or far in names for names in changed))
            if server.kind == "mariadb":
                assert changed == [None] * len(changed)
        cursor.execute(f"DROP TABLE {far}.child")
    assert reached == [True] * 7 + [server.kind == "mariadb"]
