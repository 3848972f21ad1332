"""Connections: every way in, every way to fail, and no password in any text."""

from __future__ import annotations

import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlColumn, TypeOptions
from snowmelt.errors import Corrupt, InvalidConfig, SourceDrift, Unavailable
from tests.kit.certificates import Certificates, make_certificates
from tests.kit.servers import Fresh, Server

ENCRYPTED = [Tls.REQUIRED, Tls.VERIFY_CA, Tls.VERIFY_IDENTITY]


def options(server: Server, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> MySqlOptions:
    monkeypatch.setenv("SNOWMELT_TEST_PASSWORD", server.password)
    plain = MySqlOptions(host=server.host, port=server.port, username=server.user, password=Secret("${SNOWMELT_TEST_PASSWORD}"))
    return replace(plain, **changed)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "right", "127.0.0.1")


@pytest.fixture(params=["fresh_mariadb", "fresh_mysql8"])
def fresh(request: pytest.FixtureRequest) -> Fresh:
    start: Fresh = request.getfixturevalue(request.param)
    return start


def start_with(fresh: Fresh, certificates: Certificates) -> Server:
    return fresh(ssl_ca=str(certificates.ca), ssl_cert=str(certificates.cert), ssl_key=str(certificates.key))


class TestTls:
    def test_each_mode_connects_to_a_server_whose_certificate_is_right(
        self, fresh: Fresh, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = start_with(fresh, certificates)
        for tls in [Tls.PREFERRED, *ENCRYPTED]:
            with Session(options(server, monkeypatch, tls=tls, tls_ca=str(certificates.ca))) as session:
                assert session.encrypted, tls
                assert session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1], tls
        with Session(options(server, monkeypatch, tls=Tls.DISABLED)) as session:
            assert not session.encrypted

    def test_a_certificate_of_an_unknown_authority_is_refused_where_it_is_checked(
        self, fresh: Fresh, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = start_with(fresh, certificates)
        stranger = make_certificates(tmp_path / "stranger", "127.0.0.1")
        for tls in (Tls.VERIFY_CA, Tls.VERIFY_IDENTITY):
            with pytest.raises(InvalidConfig, match="TLS"):
                Session(options(server, monkeypatch, tls=tls, tls_ca=str(stranger.ca)))
        with Session(options(server, monkeypatch, tls=Tls.REQUIRED, tls_ca=str(stranger.ca))) as session:
            assert session.encrypted

    def test_a_certificate_for_another_host_is_refused_where_identity_is_checked(
        self, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere = make_certificates(tmp_path / "elsewhere", "10.1.2.3")
        server = start_with(fresh, elsewhere)
        with Session(options(server, monkeypatch, tls=Tls.VERIFY_CA, tls_ca=str(elsewhere.ca))) as session:
            assert session.encrypted
        with pytest.raises(InvalidConfig, match="TLS"):
            Session(options(server, monkeypatch, tls=Tls.VERIFY_IDENTITY, tls_ca=str(elsewhere.ca)))

    def test_a_server_without_tls_is_refused_unless_plain_will_do(
        self, mariadb: Server, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for tls in ENCRYPTED:
            with pytest.raises(InvalidConfig, match="TLS"):
                Session(options(mariadb, monkeypatch, tls=tls, tls_ca=str(certificates.ca)))
        with Session(options(mariadb, monkeypatch, tls=Tls.PREFERRED)) as session:
            assert not session.encrypted

    def test_a_server_whose_tls_is_too_old_is_not_reached_in_plain_unless_that_is_said(
        self, fresh_mysql56: Fresh, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = fresh_mysql56()
        # PyMySQL, with which the server's start is awaited, knows no way back from TLS.
        monkeypatch.setattr(server, "connect", functools.partial(server.connect, ssl_disabled=True))
        server.restart(ssl_ca=str(certificates.ca), ssl_cert=str(certificates.cert), ssl_key=str(certificates.key))
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW VARIABLES LIKE 'have_ssl'")
            assert cursor.fetchone() == ("have_ssl", "YES")
        with pytest.raises(InvalidConfig, match=r"TLS.* set tls: disabled"):
            Session(options(server, monkeypatch, tls=Tls.PREFERRED))
        with pytest.raises(InvalidConfig, match="TLS"):
            Session(options(server, monkeypatch, tls=Tls.REQUIRED))
        with Session(options(server, monkeypatch, tls=Tls.DISABLED)) as session:
            assert not session.encrypted

    def test_checking_without_an_authority_is_wrong_use(self) -> None:
        for tls in (Tls.VERIFY_CA, Tls.VERIFY_IDENTITY):
            with pytest.raises(InvalidConfig, match="tls_ca"):
                MySqlOptions(tls=tls)

    def test_a_file_that_is_missing_or_no_certificate_is_named(
        self, mysql8: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        junk = tmp_path / "junk.pem"
        junk.write_text("this is no certificate")
        for path in (junk, tmp_path / "absent.pem"):
            with pytest.raises(InvalidConfig, match=path.name):
                Session(options(mysql8, monkeypatch, tls=Tls.VERIFY_CA, tls_ca=str(path)))
            with pytest.raises(InvalidConfig, match=path.name):
                Session(options(mysql8, monkeypatch, tls=Tls.REQUIRED, tls_cert=str(path)))


class TestAuthentication:
    def test_a_wrong_password_is_the_users_to_fix_and_is_not_repeated(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SNOWMELT_WRONG_PASSWORD", "hunter2-is-not-it")
        with pytest.raises(InvalidConfig, match="refuses access") as raised:
            Session(options(any_server, monkeypatch, password=Secret("${SNOWMELT_WRONG_PASSWORD}"), socket=str(any_server.socket)))
        assert "hunter2" not in f"{raised.value} {raised.value!r} {raised.value.__cause__} {raised.value.args}"

    @pytest.mark.parametrize("tls", [Tls.DISABLED, Tls.PREFERRED])
    def test_caching_sha2_password_needs_trust_the_first_time_and_none_from_the_cache(
        self, mysql8: Server, monkeypatch: pytest.MonkeyPatch, tls: Tls
    ) -> None:
        self.make_user(mysql8, monkeypatch, "IDENTIFIED WITH caching_sha2_password BY %s")
        guest = options(mysql8, monkeypatch, username="guest", password=Secret("${SNOWMELT_GUEST}"), tls=tls)
        with pytest.raises(InvalidConfig, match=r"caching_sha2_password.*allow_password_to_unverified_server"):
            Session(guest)
        for allowed in (True, False):
            with Session(replace(guest, allow_password_to_unverified_server=allowed)) as session:
                assert session.value("SELECT CURRENT_USER()") == "guest@%"
                assert session.encrypted == (tls is Tls.PREFERRED)

    def test_caching_sha2_password_needs_nothing_where_the_certificate_is_verified(
        self, mysql8: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.make_user(mysql8, monkeypatch, "IDENTIFIED WITH caching_sha2_password BY %s")
        verified = {"tls": Tls.VERIFY_CA, "tls_ca": str(mysql8.data / "ca.pem")}
        with Session(options(mysql8, monkeypatch, username="guest", password=Secret("${SNOWMELT_GUEST}"), **verified)) as session:
            assert session.value("SELECT CURRENT_USER()") == "guest@%"

    def test_a_user_without_connections_left_for_the_hour_is_tried_again(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.make_user(any_server, monkeypatch, "IDENTIFIED BY %s")
        with any_server.connect() as connection, connection.cursor() as cursor:
            if any_server.version[:2] >= (5, 7):
                cursor.execute("ALTER USER guest WITH MAX_CONNECTIONS_PER_HOUR 1")
            else:
                cursor.execute("GRANT USAGE ON *.* TO guest WITH MAX_CONNECTIONS_PER_HOUR 1")
        guest = options(any_server, monkeypatch, username="guest", password=Secret("${SNOWMELT_GUEST}"), socket=str(any_server.socket))
        with Session(guest) as session:
            assert session.value("SELECT 1") == 1
        with pytest.raises(Unavailable, match="1226"):
            Session(guest)

    def test_a_server_in_offline_mode_is_tried_again(self, mysql8: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.make_user(mysql8, monkeypatch, "IDENTIFIED BY %s")
        guest = options(mysql8, monkeypatch, username="guest", password=Secret("${SNOWMELT_GUEST}"), socket=str(mysql8.socket))
        with mysql8.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL offline_mode = ON")
            try:
                with pytest.raises(Unavailable, match="3032"):
                    Session(guest)
            finally:
                cursor.execute("SET GLOBAL offline_mode = OFF")

    def test_mysql_native_password_works(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        plugin = "IDENTIFIED WITH mysql_native_password BY %s" if any_server.version[0] == 8 else "IDENTIFIED BY %s"
        self.make_user(any_server, monkeypatch, plugin)
        with Session(options(any_server, monkeypatch, username="guest", password=Secret("${SNOWMELT_GUEST}"))) as session:
            assert session.value("SELECT CURRENT_USER()") == "guest@%"

    def make_user(self, server: Server, monkeypatch: pytest.MonkeyPatch, identified: str) -> None:
        # Not in latin1: the password's bytes are those of UTF-8.
        password = "pä€ss'wörd✓"
        monkeypatch.setenv("SNOWMELT_GUEST", password)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("GRANT USAGE ON *.* TO guest@'%' IDENTIFIED BY 'x'" if server.version < (8,) else "DO 0")
            cursor.execute("DROP USER guest@'%'" if server.version < (8,) else "DROP USER IF EXISTS guest@'%'")
            cursor.execute(f"CREATE USER guest@'%%' {identified}", [password])

    def test_a_unix_socket_is_a_way_in_and_needs_no_tls(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with Session(options(any_server, monkeypatch, socket=str(any_server.socket), host="unused.invalid", port=1)) as session:
            assert not session.encrypted
            assert session.value("SELECT @@port") == any_server.port

    def test_a_secret_that_is_not_there_is_wrong_use_and_nothing_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SNOWMELT_ABSENT", raising=False)
        with pytest.raises(InvalidConfig, match="SNOWMELT_ABSENT"):
            Session(MySqlOptions(port=1, password=Secret("${SNOWMELT_ABSENT}")))


@pytest.fixture
def listener() -> Iterator[Callable[[bytes], int]]:
    """`listener(greeting)` accepts one connection, sends the greeting and then says nothing; gives its port."""
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(greeting: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        open_sockets.append(server)

        def serve() -> None:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            open_sockets.append(connection)
            connection.sendall(greeting)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        port: int = server.getsockname()[1]
        return port

    yield start
    for one in list(open_sockets):
        one.close()
    for thread in threads:
        thread.join(timeout=10)


class TestFailures:
    def test_a_port_where_nobody_listens_may_be_tried_again(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with pytest.raises(Unavailable, match=str(port)):
            Session(MySqlOptions(port=port))

    def test_a_socket_that_is_not_there_may_be_tried_again(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="absent"):
            Session(MySqlOptions(socket=str(tmp_path / "absent")))

    def test_a_host_that_has_no_address_may_be_tried_again(self) -> None:
        with pytest.raises(Unavailable, match=r"nobody\.invalid"):
            Session(MySqlOptions(host="nobody.invalid", connect_timeout_s=2))

    def test_a_server_that_accepts_and_says_nothing_is_given_up_in_the_time_of_a_connect(self, listener: Callable[[bytes], int]) -> None:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            Session(MySqlOptions(port=listener(b""), connect_timeout_s=1, read_timeout_s=300))
        assert time.monotonic() - started < 30

    def test_a_server_that_speaks_something_else_is_an_error_of_ours_to_name(self, listener: Callable[[bytes], int]) -> None:
        with pytest.raises((Corrupt, Unavailable)):
            Session(MySqlOptions(port=listener(b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(64)), connect_timeout_s=1))

    def test_a_port_that_no_host_has_is_wrong_use(self) -> None:
        for port in (0, -1, 65536):
            with pytest.raises(InvalidConfig, match="port"):
                MySqlOptions(port=port)

    def test_a_query_on_a_closed_session_may_be_tried_again(self, mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        session = Session(options(mariadb, monkeypatch))
        session.close()
        session.close()
        with pytest.raises(Unavailable):
            session.query("SELECT 1")
        with pytest.raises(Unavailable):
            _ = session.sock

    def test_a_session_that_the_server_ended_may_be_tried_again(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with Session(options(any_server, monkeypatch)) as session:
            with any_server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"KILL {session.value('SELECT CONNECTION_ID()')}")
            with pytest.raises(Unavailable):
                session.query("SELECT SLEEP(5)")

    @pytest.mark.parametrize("code", [1047, 1129, 1615])
    def test_what_passes_at_the_server_by_itself_may_be_tried_again(
        self, mariadb: Server, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        """A node of a cluster that has no quorum, a host that is blocked until a flush, a statement that others' ones keep undoing."""
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE passing")
            cursor.execute(f"CREATE PROCEDURE passing.p() SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not now'")
            try:
                with Session(options(mariadb, monkeypatch)) as session, pytest.raises(Unavailable, match=f"{code} not now"):
                    session.query("CALL passing.p()")
            finally:
                cursor.execute("DROP DATABASE passing")

    def test_a_read_is_tried_again_where_other_clients_have_used_up_the_servers_statements(
        self, any_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        column = MySqlColumn(name="1", base="bigint", nullable=False)
        with any_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.max_prepared_stmt_count")
            (before,) = cursor.fetchone()
            cursor.execute("SET GLOBAL max_prepared_stmt_count = 0")
            try:
                with Session(options(any_server, monkeypatch)) as session, pytest.raises(Unavailable, match="1461"):
                    list(select(session, "SELECT 1", [column], TypeOptions(), counters=ReadCounters()))
            finally:
                cursor.execute(f"SET GLOBAL max_prepared_stmt_count = {before}")

    def test_a_table_that_is_gone_is_drift_and_a_wrong_statement_too(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with Session(options(any_server, monkeypatch)) as session:
            for statement in ("SELECT 1 FROM mysql.no_such_table", "THIS IS NOT SQL"):
                with pytest.raises(SourceDrift):
                    session.query(statement)
            assert session.value("SELECT 1") == 1

    def test_an_answer_that_is_not_text_does_not_leave_half_of_it_for_the_next_query(
        self, mysql56: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Session(options(mysql56, monkeypatch)) as session, Session(options(mysql56, monkeypatch)) as other:
            for step in ("START", "END", "PREPARE"):
                other.execute(f"XA {step} X'ff'")
            with pytest.raises(Corrupt):
                session.query("XA RECOVER")
            with pytest.raises(Unavailable):
                session.query("SELECT 1")
            other.execute("XA ROLLBACK X'ff'")


class TestSetup:
    def test_the_server_is_who_it_is(self, mariadb: Server, mysql8: Server, mysql56: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = set()
        for server, flavour in ((mariadb, "mariadb"), (mysql8, "mysql"), (mysql56, "mysql")):
            with Session(options(server, monkeypatch)) as session, Session(options(server, monkeypatch)) as again:
                assert (session.server.flavour, session.server.version) == (flavour, server.version)
                assert session.server == again.server
                seen.add(session.server.identity)
        assert len(seen) == 3

    def test_nothing_is_inherited_that_would_change_values(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        isolation = "transaction_isolation" if any_server.version[0] == 8 else "tx_isolation"
        settings = {
            "time_zone": "'+07:00'",
            "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
            isolation: "'READ-COMMITTED'",
            "sql_select_limit": "2",
            "completion_type": "'CHAIN'",
        }
        if any_server.kind == "mariadb":
            settings["max_statement_time"] = "0.01"
        elif any_server.version[0] == 8:
            settings["max_execution_time"] = "10"
        with any_server.connect() as connection, connection.cursor() as cursor:
            before = {}
            for name in settings:
                cursor.execute(f"SELECT @@GLOBAL.{name}")
                before[name] = cursor.fetchone()[0]
            try:
                for name, value in settings.items():
                    cursor.execute(f"SET GLOBAL {name} = {value}")
                with Session(options(any_server, monkeypatch)) as session:
                    assert session.query("SELECT @@time_zone, @@sql_mode") == [("+00:00", "ALLOW_INVALID_DATES,NO_ENGINE_SUBSTITUTION")]
                    assert session.value(f"SELECT @@{isolation}") == "REPEATABLE-READ"
                    assert len(session.query("SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4")) == 4
                    assert session.value("SELECT SLEEP(0.1)") == 0
                    assert session.value("SELECT 'ж😀\\\\'") == "ж😀\\"
                    assert session.value("SELECT @@completion_type") == "NO_CHAIN"
            finally:
                for name, old in before.items():
                    cursor.execute(f"SET GLOBAL {name} = %s", [old])

    def test_a_variable_is_found_by_its_whole_name(self, any_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with Session(options(any_server, monkeypatch)) as session:
            assert session.variable("log_bin") == "ON"
            assert session.variable("logXbin") is None
            assert session.variable("log_bi") is None

    def test_options_and_errors_print_no_password(self, mysql8: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        given = options(mysql8, monkeypatch)
        with Session(given) as session:
            assert mysql8.password not in f"{given!r} {given} {session!r} {session.server!r}"
