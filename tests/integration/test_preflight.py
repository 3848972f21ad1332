"""Every finding is provoked on a real server, and a good server gives none that is grave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.contract.findings import Finding, Level, TableFinding
from snowmelt.databases.mysql import server_checks
from snowmelt.databases.mysql.catalog import read_tables
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.grants import Grants
from snowmelt.databases.mysql.preflight import Cascades, PreflightOptions, inspect
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TypeOptions, ZeroDates
from snowmelt.engine.driver.state import Owner, State
from snowmelt.errors import Unavailable
from snowmelt.model.patterns import match_tables
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.retention import SegmentRecord
from snowmelt.store.objects import open_store
from tests.kit.servers import Fresh, Server

Database = Callable[[Server], str]


@pytest.fixture
def session_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """`session_of(server, user=…, password=…)`: a session, closed when the test ends."""
    sessions: list[Session] = []

    def connect(server: Server, user: str | None = None, password: str | None = None) -> Session:
        monkeypatch.setenv("SNOWMELT_TEST_PASSWORD", server.password if password is None else password)
        secret = Secret("${SNOWMELT_TEST_PASSWORD}")
        # By its socket, where there is nothing to say of TLS.
        sessions.append(Session(MySqlOptions(socket=str(server.socket), username=user or server.user, password=secret)))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


def run(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def look(session: Session, pattern: str, options: PreflightOptions | None = None) -> dict[str, Finding]:
    """Findings by their codes, each of which comes once in these tests."""
    findings = inspect(session, read_tables(session, match_tables([pattern])).values(), options)
    levels = [list(Level).index(finding.level) for finding in findings]
    assert levels == sorted(levels), "the gravest come first"
    codes = [finding.code for finding in findings]
    assert len(codes) == len(set(codes))
    return dict(zip(codes, findings, strict=True))


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {code: finding.level.value for code, finding in found.items()}


class TestServer:
    def test_a_good_server_with_a_good_table_gives_no_error_and_no_warning(
        self, mariadb: Server, mysql8: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        for server in (mariadb, mysql8):
            name = database(server)
            run(server, f"CREATE TABLE {name}.t (id bigint PRIMARY KEY, a varchar(10), e enum('x', 'y'))")
            assert levels(look(session_of(server), f"{name}.*")) == {"log-format-session": "info"}

    def test_mysql_without_gtids_and_metadata_is_usable_with_a_warning(
        self, mysql56: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mysql56)
        run(mysql56, f"CREATE TABLE {name}.t (id bigint PRIMARY KEY)")
        found = look(session_of(mysql56), f"{name}.*")
        assert levels(found) == {"gtid-mode": "warning", "log-format-session": "info", "row-metadata": "info"}

    def test_settings_of_mariadb_that_make_the_log_useless_or_doubtful_are_found(
        self, fresh_mariadb: Fresh, session_of: Callable[..., Session]
    ) -> None:
        server = fresh_mariadb(
            binlog_format="MIXED",
            binlog_row_image="MINIMAL",
            binlog_row_metadata="NO_LOG",
            binlog_checksum="NONE",
            binlog_expire_logs_seconds=3600,
            binlog_ignore_db="hidden",
            binlog_alter_two_phase="ON",
            log_bin_compress="ON",
            transaction_isolation="READ-COMMITTED",
        )
        run(server, "CREATE DATABASE hidden", "CREATE DATABASE seen", "CREATE TABLE hidden.t (id int PRIMARY KEY)")
        run(server, "CREATE TABLE seen.t (id int PRIMARY KEY)")
        session = session_of(server)
        found = look(session, "*.t")
        assert levels(found) == {
            "log-format": "error",
            "row-image": "error",
            "filters": "error",
            "row-metadata": "warning",
            "two-phase-alter": "warning",
            "retention": "warning",
            "compression": "info",
            "checksum": "info",
            "isolation": "info",
        }
        assert found["filters"].tables == (TableId("hidden", "t"),)
        assert "binlog_ignore_db" in found["filters"].fact
        assert "MINIMAL" in found["row-image"].fact
        assert "1 hours" in found["retention"].fact
        # A remedy that is a statement is one that can be run.
        for code in ("log-format", "row-image", "row-metadata", "checksum", "two-phase-alter", "retention"):
            run(server, found[code].remedy.split(", in the")[0])
        left = look(session, "seen.*")
        assert levels(left) == {
            "filters": "warning",
            "log-format-session": "info",
            "compression": "info",
            "isolation": "info",
        }

    def test_settings_of_mysql_that_make_the_log_useless_or_doubtful_are_found(
        self, fresh_mysql8: Fresh, session_of: Callable[..., Session]
    ) -> None:
        server = fresh_mysql8(
            binlog_format="STATEMENT",
            binlog_row_image="NOBLOB",
            binlog_row_metadata="MINIMAL",
            binlog_row_value_options="PARTIAL_JSON",
            binlog_transaction_compression="ON",
            binlog_checksum="NONE",
            binlog_expire_logs_seconds=7200,
            binlog_do_db="seen",
            gtid_mode="ON_PERMISSIVE",
        )
        run(server, "CREATE DATABASE hidden", "CREATE DATABASE seen", "CREATE TABLE hidden.t (id int PRIMARY KEY)")
        session = session_of(server)
        found = look(session, "*.t")
        assert levels(found) == {
            "log-format": "error",
            "row-image": "error",
            "filters": "error",
            "row-metadata": "warning",
            "retention": "warning",
            "gtid-mode": "warning",
            "partial-json": "info",
            "compression": "info",
            "checksum": "info",
        }
        assert "NOBLOB" in found["row-image"].fact
        assert "binlog_do_db" in found["filters"].fact
        assert "ON_PERMISSIVE" in found["gtid-mode"].fact
        run(server, "SET GLOBAL binlog_expire_logs_auto_purge = OFF")
        assert "retention" not in look(session, "*.t")

    def test_a_server_that_keeps_no_log_or_has_no_id_is_found(
        self, fresh_mariadb: Fresh, fresh_mysql8: Fresh, session_of: Callable[..., Session]
    ) -> None:
        for server in (fresh_mariadb(log_bin=None), fresh_mysql8(log_bin=False)):
            found = look(session_of(server), "*.*")
            assert found["log-off"].level is Level.ERROR
            assert not found.keys() & {"row-image", "filters", "retention", "log-format"}
        without_id = fresh_mysql8(server_id=0)
        found = look(session_of(without_id), "*.*")
        assert found["server-id"].level is Level.ERROR

    def test_a_version_that_was_never_tried_is_doubtful(self, mariadb: Server, session_of: Callable[..., Session]) -> None:
        session = session_of(mariadb)
        levels = {(10, 6, 48): Level.WARNING, (10, 11, 0): None, (11, 1, 3): Level.INFO, (11, 8, 3): None, (12, 3, 1): Level.WARNING}
        for version, level in levels.items():
            session.server = replace(session.server, version=version)
            found = look(session, "nothing.*").get("version")
            assert (found and found.level) == level, version
            if found is not None:
                assert "tested are 10.11, 11.4, 11.8" in found.remedy

    def test_a_replica_that_does_not_log_what_it_applies_is_found(
        self, fresh_mariadb: Fresh, fresh_mysql8: Fresh, session_of: Callable[..., Session]
    ) -> None:
        mariadb = fresh_mariadb()
        assert "replica-log" not in look(session_of(mariadb), "nothing.*")
        run(mariadb, "CHANGE MASTER 'second' TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'nobody'")
        assert look(session_of(mariadb), "nothing.*")["replica-log"].level is Level.ERROR
        mysql = fresh_mysql8(log_replica_updates=0)
        assert "replica-log" not in look(session_of(mysql), "nothing.*")
        run(mysql, "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_USER = 'nobody'")
        assert "log_replica_updates" in look(session_of(mysql), "nothing.*")["replica-log"].remedy

    def test_a_replica_that_logs_what_it_applies_is_fine(self, fresh_mariadb: Fresh, session_of: Callable[..., Session]) -> None:
        server = fresh_mariadb(log_slave_updates=True)
        run(server, "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'nobody'")
        assert "replica-log" not in look(session_of(server), "nothing.*")

    @pytest.mark.parametrize("xid", ["X'61ff27',X'62',7", "X'7761697473',X'',1", "X'3078',X'3431',1"])
    def test_prepared_transactions_stop_the_first_start(
        self, any_server: Server, database: Database, session_of: Callable[..., Session], xid: str
    ) -> None:
        name = database(any_server)
        run(any_server, f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
        preparing = session_of(any_server)
        preparing.execute(f"XA START {xid}")
        preparing.execute(f"INSERT INTO {name}.t VALUES (1)")
        preparing.execute(f"XA END {xid}")
        preparing.execute(f"XA PREPARE {xid}")
        session = session_of(any_server)
        try:
            found = look(session, f"{name}.*")
            assert found["xa"].level is Level.ERROR
            assert found["xa"].remedy == f"XA COMMIT {xid}, or XA ROLLBACK {xid}"
            assert "xa" not in look(session, f"{name}.*", PreflightOptions(begun=True))
        finally:
            preparing.execute(found["xa"].remedy.split(", or ")[1])
        assert "xa" not in look(session, f"{name}.*")

    def test_a_connection_that_is_lost_is_no_finding(self, mariadb: Server, session_of: Callable[..., Session]) -> None:
        session = session_of(mariadb)
        session.close()
        with pytest.raises(Unavailable):
            inspect(session, [])


@pytest.fixture
def shop(any_server: Server) -> Iterator[Server]:
    """A server with two databases and a user without rights. Not test_…: those are everybody's on MySQL 5.6."""
    statements = (
        "CREATE DATABASE shop_1",
        "CREATE DATABASE shopx1",
        "CREATE TABLE shop_1.t (id int PRIMARY KEY, a int)",
        "CREATE TABLE shopx1.t (id int PRIMARY KEY, a int)",
        "CREATE TABLE shopx1.m (id int PRIMARY KEY) ENGINE = MyISAM",
        "CREATE USER reader@'%' IDENTIFIED BY 'x'",
    )
    run(any_server, *statements)
    yield any_server
    run(any_server, "DROP USER reader@'%'", "DROP DATABASE shop_1", "DROP DATABASE shopx1")


class TestTransport:
    """What `check` says of the connection."""

    def look(self, server: Server, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> dict[str, Finding]:
        monkeypatch.setenv("SNOWMELT_TEST_PASSWORD", server.password)
        options = MySqlOptions(host=server.host, port=server.port, password=Secret("${SNOWMELT_TEST_PASSWORD}"))
        with Session(replace(options, **changed)) as session:
            return {finding.code: finding for finding in inspect(session, [])}

    def test_it_tells_what_each_mode_protects_against_and_recommends_the_best(
        self, mariadb: Server, mysql8: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ca = str(mysql8.data / "ca.pem")
        for server, tls, fact in (
            (mariadb, Tls.PREFERRED, "offers no TLS: the network can read every row"),
            (mysql8, Tls.DISABLED, "tls is disabled: the network can read every row"),
            (mysql8, Tls.PREFERRED, "a connection on which TLS is not offered is made without"),
            (mysql8, Tls.REQUIRED, "not against an attacker in the middle"),
            (mysql8, Tls.VERIFY_CA, "every certificate of the authority"),
        ):
            found = self.look(server, monkeypatch, tls=tls, tls_ca=ca)["tls"]
            assert found.level is Level.INFO, "this is one machine"
            assert fact in found.fact
            assert "tls: verify-identity" in found.remedy

    def test_it_says_nothing_where_nothing_is_to_be_said(self, mysql8: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not {"tls", "password-unverified"} & self.look(mysql8, monkeypatch, socket=str(mysql8.socket)).keys()

    def test_on_a_network_it_warns(self, mysql8: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_checks, "_is_loopback", lambda host: host != "127.0.0.1")
        found = self.look(mysql8, monkeypatch, allow_password_to_unverified_server=True)
        assert found["tls"].level is found["password-unverified"].level is Level.WARNING

    @pytest.mark.parametrize(
        ("host", "here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.1.2.3", False), ("db", False)]
    )
    def test_what_this_machine_is(self, host: str, here: bool) -> None:
        assert server_checks._is_loopback(host) is here


class TestGrants:
    def both(self, server: Server, session_of: Callable[..., Session]) -> tuple[Session, list[MySqlTable]]:
        """The reader's session, and all tables as root sees them."""
        tables = read_tables(session_of(server), match_tables(["shop*.*"]))
        return session_of(server, "reader", "x"), list(tables.values())

    def codes(self, session: Session, tables: list[MySqlTable]) -> dict[str, Finding]:
        return {finding.code: finding for finding in inspect(session, tables) if finding.level is Level.ERROR}

    def test_without_any_right_each_missing_one_is_told_and_nothing_is_raised(
        self, shop: Server, session_of: Callable[..., Session]
    ) -> None:
        session, tables = self.both(shop, session_of)
        found = {finding.code: finding for finding in inspect(session, tables)}
        assert {"grant-replication", "grant-monitor", "grant-select", "grant-lock-tables"} <= found.keys()
        assert found["grant-select"].tables == (TableId("shop_1", "t"), TableId("shopx1", "m"), TableId("shopx1", "t"))
        assert found["filters-unchecked"].level is Level.WARNING
        assert ("xa-unchecked" in found) == (shop.version[0] == 8)
        assert ("replica-unchecked" in found) == (shop.version[0] != 8)
        monitor = "BINLOG MONITOR" if shop.kind == "mariadb" else "REPLICATION CLIENT"
        assert found["grant-monitor"].remedy == f"GRANT {monitor} ON *.* TO 'reader'@'%'"

    def test_tables_are_to_be_locked_where_only_a_lock_tells_what_a_read_contains(
        self, shop: Server, session_of: Callable[..., Session]
    ) -> None:
        session, tables = self.both(shop, session_of)
        changelog = TableId("shop_1", "t")
        found = {one.code: one for one in inspect(session, tables, PreflightOptions(changelog=frozenset([changelog])))}
        without_transactions, other = TableId("shopx1", "m"), TableId("shopx1", "t")
        expected = {
            "mariadb": (without_transactions,),
            "mysql 8": (changelog, without_transactions),
            "mysql 5": (changelog, without_transactions, other),
        }[shop.kind if shop.kind == "mariadb" else f"{shop.kind} {shop.version[0]}"]
        assert found["grant-lock-tables"].tables == expected

    def test_the_remedies_are_statements_that_help(self, shop: Server, session_of: Callable[..., Session]) -> None:
        session, tables = self.both(shop, session_of)
        while found := [one for one in inspect(session, tables) if one.code.startswith("grant-") or one.code.endswith("-unchecked")]:
            run(shop, *found[0].remedy.split("; "))
            session = session_of(shop, "reader", "x")
        assert self.codes(session, tables) == {}

    def test_a_wildcard_that_is_escaped_stands_for_itself(self, shop: Server, session_of: Callable[..., Session]) -> None:
        session, tables = self.both(shop, session_of)
        run(shop, r"GRANT SELECT ON `shop\_1`.* TO reader@'%'")
        assert self.codes(session, tables)["grant-select"].tables == (TableId("shopx1", "m"), TableId("shopx1", "t"))
        assert self.reads(session) == {"shop_1.t"}
        run(shop, r"REVOKE SELECT ON `shop\_1`.* FROM reader@'%'", "GRANT SELECT ON `shop_1`.* TO reader@'%'")
        session = session_of(shop, "reader", "x")
        assert "grant-select" not in self.codes(session, tables)
        assert self.reads(session) == {"shop_1.t", "shopx1.t", "shopx1.m"}

    def reads(self, session: Session) -> set[str]:
        """Whatever the server really lets this session read."""
        readable = set()
        for table in ("shop_1.t", "shopx1.t", "shopx1.m"):
            try:
                session.query(f"SELECT * FROM {table}")
                readable.add(table)
            except Exception:
                continue
        return readable

    def test_a_grant_on_columns_is_not_enough_and_one_on_the_table_is(self, shop: Server, session_of: Callable[..., Session]) -> None:
        session, tables = self.both(shop, session_of)
        tables = [table for table in tables if table.id == TableId("shop_1", "t")]
        run(shop, "GRANT SELECT (id), INSERT ON shop_1.t TO reader@'%'")
        assert "grant-select" in self.codes(session, tables)
        run(shop, "GRANT SELECT ON shop_1.t TO reader@'%'")
        assert "grant-select" not in self.codes(session, tables)

    def test_all_privileges_are_enough(self, shop: Server, session_of: Callable[..., Session]) -> None:
        run(shop, "GRANT ALL ON *.* TO reader@'%'")
        session, tables = self.both(shop, session_of)
        assert self.codes(session, tables) == {}

    def test_what_an_active_role_may_counts(
        self, mariadb: Server, mysql8: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        for server in (mariadb, mysql8):
            name = database(server)
            run(
                server,
                f"CREATE TABLE {name}.t (id int PRIMARY KEY)",
                "CREATE ROLE capturing",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO capturing",
                f"GRANT SELECT ON {name}.* TO capturing",
                "CREATE USER player@'%' IDENTIFIED BY 'x'",
                "GRANT capturing TO player@'%'",
            )
            try:
                tables = list(read_tables(session_of(server), match_tables([f"{name}.*"])).values())
                found = self.codes(session_of(server, "player", "x"), tables)
                assert found.keys() == {"grant-replication", "grant-monitor", "grant-select"}
                wording = "FOR" if server.kind == "mariadb" else "TO"
                run(server, f"SET DEFAULT ROLE capturing {wording} player@'%'")
                assert self.codes(session_of(server, "player", "x"), tables) == {}
            finally:
                run(server, "DROP USER player@'%'", "DROP ROLE capturing")

    def test_what_mysql_takes_back_from_a_database_is_missing_there(self, fresh_mysql8: Fresh, session_of: Callable[..., Session]) -> None:
        server = fresh_mysql8(partial_revokes="ON")
        run(
            server,
            "CREATE DATABASE open_1",
            "CREATE DATABASE closed",
            "CREATE TABLE open_1.t (id int PRIMARY KEY)",
            "CREATE TABLE closed.t (id int PRIMARY KEY)",
            "CREATE USER reader@'%' IDENTIFIED BY 'x'",
            "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader@'%'",
            "REVOKE SELECT ON closed.* FROM reader@'%'",
        )
        tables = list(read_tables(session_of(server), match_tables(["open_1.*", "closed.*"])).values())
        found = self.codes(session_of(server, "reader", "x"), tables)
        assert {code: finding.tables for code, finding in found.items()} == {"grant-select": (TableId("closed", "t"),)}

    def test_hashes_of_passwords_are_in_no_finding(self, shop: Server, session_of: Callable[..., Session]) -> None:
        session, tables = self.both(shop, session_of)
        assert "PASSWORD" not in repr(inspect(session, tables))

    def test_names_with_odd_characters_are_read_from_grants(self) -> None:
        lines = [
            "GRANT USAGE ON *.* TO `u`@`%` IDENTIFIED BY PASSWORD '*AAAA'",
            "GRANT SELECT ON `we.ird `` ON *.* TO`.* TO `u`@`%`",
            "GRANT SELECT (`a) ON `, `b`), INSERT ON `d`.`t` TO `u`@`%`",
            "GRANT SELECT (c, a), LOCK TABLES ON `d`.`t2` TO 'u'@'%'",
            "GRANT SELECT ON plain.tbl TO `u`@`%`",
            "GRANT `SELECT ON *.*`@`%` TO `u`@`%`",
            "GRANT EXECUTE ON PROCEDURE `p`.`q` TO `u`@`%`",
            "GRANT PROXY ON ``@`%` TO `u`@`%` WITH GRANT OPTION",
            "SET DEFAULT ROLE `r` FOR `u`@`%`",
        ]
        grants = Grants.parse(lines)
        assert grants.everywhere == {"USAGE"}
        assert grants.on_database("SELECT", "we.ird ` ON *.* TO")
        assert not grants.on_table("SELECT", TableId("d", "t"))
        assert not grants.on_table("SELECT", TableId("d", "t2"))
        assert grants.on_table("SELECT", TableId("plain", "tbl"))
        assert not grants.on_database("EXECUTE", "p")


class TestTables:
    def test_tables_that_need_care_are_found_and_named(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(any_server)
        run(
            any_server,
            f"CREATE TABLE {name}.keyless (a int, b int NULL, UNIQUE (b))",
            f"CREATE TABLE {name}.myisam (a int PRIMARY KEY) ENGINE = MyISAM",
            f"CREATE TABLE {name}.memory (a int PRIMARY KEY) ENGINE = MEMORY",
            f"CREATE TABLE {name}.merged (a int NOT NULL, PRIMARY KEY (a)) ENGINE = MRG_MyISAM UNION = ({name}.myisam)",
            f"CREATE TABLE {name}.dated (a int, d date, PRIMARY KEY (a, d))",
            f"CREATE TABLE {name}.ours (a int PRIMARY KEY, _SEQ int, `_ts` int, _position int, _opx int)",
            f"CREATE TABLE {name}.faces (a int PRIMARY KEY, e enum('x', '😀') CHARACTER SET utf8mb4)",
            f"CREATE TABLE {name}.good (a int PRIMARY KEY)",
        )
        session = session_of(any_server)
        findings = inspect(session, read_tables(session, match_tables([f"{name}.*"])).values())
        tables = {(one.code, one.level.value): [table.name for table in one.tables] for one in findings if one.tables}
        assert tables == {
            ("engine-foreign", "error"): ["merged"],
            ("merge", "error"): ["myisam"],
            ("system-column", "error"): ["ours"],
            ("engine", "warning"): ["memory", "myisam"],
            ("no-key", "warning"): ["keyless"],
            ("dated-key", "warning"): ["dated"],
            # MySQL 5.6 has no metadata in its log that would name them.
            ("labels", "error" if any_server.version < (8,) else "warning"): ["faces"],
        }
        assert sum(finding.code == "system-column" for finding in findings) == 3
        alone = {finding.code for finding in findings if isinstance(finding, TableFinding)}
        assert alone == {"engine-foreign", "merge", "system-column", "no-key"}, "what is of one table alone must not stop the others"
        as_text = PreflightOptions(types=TypeOptions(zero_dates=ZeroDates.STRING))
        assert "dated-key" not in look(session, f"{name}.dated", as_text)

    def test_a_type_that_we_cannot_hold_is_found(self, mariadb: Server, session_of: Callable[..., Session]) -> None:
        # No server here has such a type; the catalogue of a newer one would.
        columns = (MySqlColumn(name="id", base="int", nullable=False), MySqlColumn(name="x", base="xmltype"))
        table = MySqlTable(id=TableId("new", "t"), columns=columns, key=("id",))
        found = {finding.code: finding for finding in inspect(session_of(mariadb), [table])}
        assert found["column-type"].level is Level.ERROR
        assert isinstance(found["column-type"], TableFinding)
        assert "xmltype" in found["column-type"].fact

    @pytest.mark.parametrize(
        ("rule", "silent"),
        [
            ("ON DELETE CASCADE", True),
            ("ON DELETE SET NULL", True),
            ("ON UPDATE CASCADE", True),
            ("ON DELETE RESTRICT ON UPDATE NO ACTION", False),
            ("", False),
        ],
    )
    def test_children_of_cascading_keys_are_refused_unless_told_otherwise(
        self, any_server: Server, database: Database, session_of: Callable[..., Session], rule: str, silent: bool
    ) -> None:
        name = database(any_server)
        run(
            any_server,
            f"CREATE TABLE {name}.parent (id int PRIMARY KEY)",
            f"CREATE TABLE {name}.child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES {name}.parent (id) {rule})",
        )
        session = session_of(any_server)
        found = look(session, f"{name}.*")
        if not silent:
            assert "cascade" not in found
            return
        assert (found["cascade"].level, found["cascade"].tables) == (Level.ERROR, (TableId(name, "child"),))
        assert "cascade" not in look(session, f"{name}.parent")
        assert look(session, f"{name}.*", PreflightOptions(cascades=Cascades.IGNORE))["cascade"].level is Level.WARNING
        # From 9.6 on MySQL itself logs what cascades.
        tables = read_tables(session, match_tables([f"{name}.*"])).values()
        if any_server.version[0] == 8:
            session.server = replace(session.server, version=(9, 6, 0))
            assert "cascade" not in {finding.code for finding in inspect(session, tables)}

    def test_tables_whose_log_rows_have_hidden_parts_are_refused(
        self, mariadb: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        name = database(mariadb)
        run(
            mariadb,
            f"CREATE TABLE {name}.versioned (id int PRIMARY KEY) WITH SYSTEM VERSIONING",
            f"CREATE TABLE {name}.long_text (id int PRIMARY KEY, a text, UNIQUE (a))",
            f"CREATE TABLE {name}.by_hash (id int PRIMARY KEY, a int, UNIQUE (a) USING HASH)",
            f"CREATE TABLE {name}.memory (id int PRIMARY KEY, a int, UNIQUE (a) USING HASH) ENGINE = MEMORY",
            f"CREATE TABLE {name}.good (id int PRIMARY KEY, a int, UNIQUE (a), b text, UNIQUE (b(10)))",
        )
        found = look(session_of(mariadb), f"{name}.*")
        assert found["system-versioned"].tables == (TableId(name, "versioned"),)
        assert found["hash-unique"].tables == (TableId(name, "by_hash"), TableId(name, "long_text"))
        assert {found["system-versioned"].level, found["hash-unique"].level} == {Level.ERROR}

    def test_a_user_with_the_guide_s_grants_sees_what_an_administrator_sees(
        self, any_server: Server, database: Database, session_of: Callable[..., Session]
    ) -> None:
        """Catalogues leave out, without a word, what a user may not see."""
        name = database(any_server)
        user = f"u_{name}"[:16]
        monitor = "BINLOG MONITOR" if any_server.kind == "mariadb" else "REPLICATION CLIENT"
        run(
            any_server,
            f"CREATE TABLE {name}.parent (id int PRIMARY KEY, u varchar(20) DEFAULT 'x', UNIQUE (u))",
            f"CREATE TABLE {name}.loose (a int DEFAULT 7, e enum('p', 'q'), t text COMMENT 'a comment')",
            f"CREATE TABLE {name}.child (id int, k int, p int, PRIMARY KEY (k, id), KEY (p), g int AS (p + 1) VIRTUAL,"
            f" FOREIGN KEY (p) REFERENCES {name}.parent (id) ON DELETE CASCADE)"
            if any_server.version >= (5, 7)
            else f"CREATE TABLE {name}.child (id int, k int, p int, PRIMARY KEY (k, id), KEY (p),"
            f" FOREIGN KEY (p) REFERENCES {name}.parent (id) ON DELETE CASCADE)",
            f"CREATE TABLE {name}.by_set (id int PRIMARY KEY, p int,"
            f" CONSTRAINT `a ON DELETE CASCADE` FOREIGN KEY (p) REFERENCES {name}.parent (id) ON UPDATE SET NULL)",
            f"CREATE TABLE {name}.by_word (id int PRIMARY KEY, p int COMMENT 'FOREIGN KEY ON DELETE CASCADE',"
            f" FOREIGN KEY (p) REFERENCES {name}.parent (id) ON DELETE RESTRICT)",
            *([f"CREATE TABLE {name}.hashed (id int PRIMARY KEY, a text, UNIQUE (a))"] if any_server.kind == "mariadb" else []),
            f"CREATE USER {user}@'%' IDENTIFIED BY 'x'",
            f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO {user}@'%'",
            f"GRANT SELECT ON {name}.* TO {user}@'%'",
        )
        administrator, reader = session_of(any_server), session_of(any_server, user, "x")
        wanted = match_tables([f"{name}.*"])
        assert read_tables(reader, wanted) == read_tables(administrator, wanted)
        full, seen = look(administrator, f"{name}.*"), look(reader, f"{name}.*")
        assert seen["cascade"].tables == (TableId(name, "by_set"), TableId(name, "child"))
        told = {"grant-lock-tables", "replica-unchecked", "xa-unchecked"}
        assert {code: one.tables for code, one in seen.items() if code not in told} == {
            code: one.tables for code, one in full.items() if code not in told
        }


class TestCommand:
    def snowmelt(self, *arguments: str, password: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "DB_PASSWORD"}
        environment |= {"COLUMNS": "200", "NO_COLOR": "1"} | ({} if password is None else {"DB_PASSWORD": password})
        command = [sys.executable, "-m", "snowmelt", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def test_a_good_server_gives_0_and_says_so(self, mariadb: Server, database: Database) -> None:
        name = database(mariadb)
        run(mariadb, f"CREATE TABLE {name}.t (id int PRIMARY KEY)", f"CREATE TABLE {name}.u (id int)")
        where = ["--port", str(mariadb.port), "--tables", f"{name}.*", "--exclude", "*.nothing"]
        done = self.snowmelt("check", *where, password=mariadb.password)
        assert (done.returncode, done.stderr) == (0, "")
        assert "ready to be captured, warnings: 1" in done.stdout
        assert f"ALTER TABLE `{name}`.`u` ADD PRIMARY KEY" in done.stdout
        assert "capture: memory 25 MiB (6 buffers of 4 MiB), segments of 64 MiB or 500 ms, heartbeat 5 s, disk 16 GiB" in done.stdout
        assert "a task that copies a table: rows of up to 256 MiB\n" in done.stdout
        assert "a task that reads the log: 8 MiB of it at a time, 64 MiB that wait for the lake, " in done.stdout
        assert " for the lake, 256 MiB for all of its writers, an event of up to 16 MiB in memory" in done.stdout
        assert "in TMPDIR, rows of up to 1 GiB\n" in done.stdout

    def test_a_pipelines_file_tells_where_tables_go_and_which_routes_nobody_takes(
        self, mariadb: Server, database: Database, tmp_path: Path
    ) -> None:
        name = database(mariadb)
        run(mariadb, f"CREATE TABLE {name}.t (id int PRIMARY KEY)", f"CREATE TABLE {name}.u (id int)")
        described: dict[str, Any] = {
            "source": {
                "type": "mysql",
                "host": "127.0.0.1",
                "port": mariadb.port,
                "username": "root",
                "password": "${DB_PASSWORD}",
                "tables": [f"{name}.*"],
            },
            "sink": {"type": "paimon", "warehouse": "lake"},
            "routes": [
                {"source": f"{name}.u", "target": "ods.history", "mode": "changelog"},
                {"source": f"{name}.?", "target": "ods.{table}"},
                {"source": f"{name}.t", "target": "ods.never"},
            ],
            "relay": {"disk_bytes_max": "1GiB"},
            "pipeline": {"name": "test", "state": "state"},
        }
        file = tmp_path / "pipeline.yaml"
        file.write_text(json.dumps(described))
        done = self.snowmelt("check", str(file), password=mariadb.password)
        assert (done.returncode, done.stderr) == (0, "")
        for words in (f"{name}.t -> ods.t", f"{name}.u -> ods.history", f"no table takes the route of {name}.t", "disk 1 GiB"):
            assert words in done.stdout
        described["routes"] = []
        file.write_text(json.dumps(described))
        told = json.loads(self.snowmelt("check", str(file), "--json", password=mariadb.password).stdout)
        assert not told["ok"], "a table without a key can only go to a change table"
        assert told["targets"] == {f"{name}.{table}": f"{name}.{table}" for table in "tu"}
        assert not (tmp_path / "state").exists(), "nothing is changed"
        assert self.snowmelt("check", str(file), "-t", "a.b").returncode == 2
        # Each name that the lake can't have is told, not only the first one.
        run(mariadb, f"CREATE TABLE {name}.`a/b` (id int PRIMARY KEY)", f"CREATE TABLE {name}.`b c` (id int PRIMARY KEY)")
        described["routes"] = [{"source": f"{name}.?", "target": "ods.one"}]
        file.write_text(json.dumps(described))
        done = self.snowmelt("check", str(file), "--json", password=mariadb.password)
        told = json.loads(done.stdout)
        assert (done.returncode, done.stderr, told["ok"]) == (1, "", False)
        found = [(one["tables"], one["level"], one["fact"]) for one in told["findings"] if one["code"] == "lake-name"]
        assert found == [
            ([f"{name}.a/b"], "error", f"{name}.a/b can't go to a lake table of that name: '{name}.a/b'"),
            ([f"{name}.b c"], "error", f"{name}.b c can't go to a lake table of that name: '{name}.b c'"),
            ([f"{name}.u"], "error", f"two tables would go to ods.one: {name}.t and {name}.u"),
        ]
        assert told["targets"] == {f"{name}.t": "ods.one"}

    def test_names_that_steer_a_terminal_are_shown_and_not_obeyed(self, mariadb: Server, database: Database) -> None:
        name, table = database(mariadb), "t\x1b[2J\u009b31m\nerror: forged\u202e"
        run(mariadb, f"CREATE TABLE {name}.`{table}` (id int PRIMARY KEY, `_seq` int)")
        where = ["--socket", str(mariadb.socket), "--user", "root", "-t", f"{name}.*"]
        printed = self.snowmelt("check", *where, password=mariadb.password)
        assert not any(character in printed.stdout for character in "\x1b\u009b\u202e")
        assert not any(line.startswith("error: forged") for line in printed.stdout.splitlines())
        assert r"t\u001b[2J\u009b31m\nerror: forged\u202e" in "".join(printed.stdout.split("\n"))
        told = self.snowmelt("check", *where, "--json", password=mariadb.password).stdout
        assert not any(character in told for character in "\x1b\u009b\u202e")
        assert json.loads(told)["tables"] == [f"{name}.{table}"]

    @pytest.mark.parametrize("command", ["run", "verify"])
    def test_what_can_be_known_before_spark_starts_is_told_before(
        self, command: str, mariadb: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A password that is not set, a state that is another's, a Java and a Python that are not there."""
        name = database(mariadb)
        run(mariadb, f"CREATE TABLE {name}.t (id int PRIMARY KEY)")
        file = tmp_path / "pipeline.yaml"
        file.write_text(
            f"""\
source: {{type: mysql, port: {mariadb.port}, host: 127.0.0.1, username: root, password: "${{DB_PASSWORD}}", tables: "{name}.*"}}
sink: {{type: paimon, warehouse: lake}}
pipeline: {{name: test, state: state}}
"""
        )
        state = State(open_store(tmp_path / "state"))
        state.bind(Owner("another", "server", "elsewhere"))
        state.put_segment_record(
            SegmentRecord(number=1, generation=1, name="a", begins=Position(1, 4), ends=Position(1, 4), first=0, cuts=())
        )

        def told(password: str | None, **environment: str) -> str:
            for variable, value in environment.items():
                monkeypatch.setenv(variable, value)
            done = self.snowmelt(command, str(file), password=password)
            assert done.returncode == 2
            assert "starting Spark" not in done.stdout + done.stderr
            return done.stderr

        assert "DB_PASSWORD is not set" in told(None)
        if command == "run":
            assert "the state is another pipeline's: it was begun by another, this is test" in told(mariadb.password)
        assert "PYSPARK_PYTHON is /nowhere/python, and there is no such program" in told(mariadb.password, PYSPARK_PYTHON="/nowhere/python")
        assert "Spark needs Java, and there is none" in told(mariadb.password, PYSPARK_PYTHON=sys.executable, JAVA_HOME="/nowhere")
        assert (tmp_path / "lake").exists() is False

    def test_errors_give_1_and_json_has_them_all(self, mysql8: Server, database: Database) -> None:
        name = database(mysql8)
        run(mysql8, f"CREATE TABLE {name}.`[red]t[/]` (id int PRIMARY KEY, _seq int)")
        where = ["--socket", str(mysql8.socket), "--user", "root", "-t", f"{name}.*", "-t", "nowhere.*"]
        done = self.snowmelt("check", *where, "--json", password=mysql8.password)
        assert done.returncode == 1
        told = json.loads(done.stdout)
        assert (told["server"], told["ok"], told["tables"]) == ("MySQL 8.0.33", False, [f"{name}.[red]t[/]"])
        assert told["limits"]["capture"]["disk_bytes_max"] == 16 << 30
        assert told["limits"]["task"]["row_bytes_max"] == 1 << 30
        assert {(one["code"], one["level"], tuple(one["tables"])) for one in told["findings"]} == {
            ("no-table", "error", ()),
            ("system-column", "error", (f"{name}.[red]t[/]",)),
            ("log-format-session", "info", ()),
        }
        printed = self.snowmelt("check", *where, password=mysql8.password)
        assert printed.returncode == 1
        assert f"{name}.[red]t[/]" in printed.stdout
        assert "errors: 2" in printed.stdout

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["check"], 2, "--tables"),
            (["check", "--tables", "shop"], 2, "database.table"),
            (["check", "-t", "a.b", "--tls", "verify-ca"], 2, "tls_ca"),
            (["check", "-t", "a.b", "--port", "70000"], 2, "port"),
            (["check", "-t", "a.b", "--port", "nine"], 2, "--port"),
            (["check", "-t", "a.b", "--password-ref", "hunter2"], 2, "by reference"),
            (["check", "-t", "a.b", "--password-ref", "${SNOWMELT_ABSENT}"], 2, "SNOWMELT_ABSENT"),
            (["check", "-t", "a.b", "--port", "1"], 1, "can't be reached"),
            (["nonsense"], 2, "nonsense"),
        ],
    )
    def test_wrong_use_gives_2_and_failure_1_in_a_line_without_a_traceback(
        self, mariadb: Server, arguments: list[str], code: int, said: str
    ) -> None:
        if "--port" not in arguments:
            arguments = [*arguments, "--port", str(mariadb.port)] if arguments[0] == "check" else arguments
        done = self.snowmelt(*arguments)
        assert done.returncode == code
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert "hunter2" not in done.stderr

    def test_help_teaches_with_an_example(self) -> None:
        for command in ([], ["check"], ["demo"]):
            done = self.snowmelt(*command, "--help")
            assert done.returncode == 0
            assert not command or "Example" in done.stdout
