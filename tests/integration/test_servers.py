"""The servers that other tests stand on are what they claim to be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.kit.servers import Fresh, NotRun, Server, start_mariadb, start_mysql8, start_named


def ask(server: Server, query: str) -> Any:
    """The one row of a query's answer, or None; the one value where a row has one."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return row[0] if row is not None and len(row) == 1 else row


def test_each_server_logs_full_rows(any_server: Server) -> None:
    assert ask(any_server, "SELECT @@log_bin, @@binlog_format, @@binlog_row_image") == (1, "ROW", "FULL")
    assert ask(any_server, "SELECT @@server_id, @@port") == (any_server.port, any_server.port)


def test_each_server_is_the_version_that_its_fixture_says(mariadb: Server, mysql8: Server, mysql56: Server) -> None:
    # All three are alive at once here, which is the other thing that this test is about.
    assert mariadb.kind == "mariadb"
    assert mariadb.version >= (10, 6)
    assert (mysql8.kind, mysql8.version) == ("mysql", (8, 0, 33))
    assert (mysql56.kind, mysql56.version) == ("mysql", (5, 6, 24))


def test_the_settings_of_a_kind_are_on(mariadb: Server, mysql8: Server, mysql56: Server) -> None:
    assert ask(mariadb, "SELECT @@binlog_row_metadata") == "FULL"
    assert ask(mysql8, "SELECT @@binlog_row_metadata, @@gtid_mode, @@enforce_gtid_consistency") == ("FULL", "ON", "ON")
    assert ask(mysql56, "SELECT @@gtid_mode") == "OFF"


def test_a_connection_without_the_password_is_refused(any_server: Server) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        any_server.connect(password="wrong")
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        any_server.connect(password="")


def test_the_unix_socket_answers_too(any_server: Server) -> None:
    with any_server.connect(unix_socket=str(any_server.socket)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@port")
        assert cursor.fetchone() == (any_server.port,)


def test_a_new_server_has_an_empty_history(fresh_mariadb: Fresh, fresh_mysql8: Fresh, fresh_mysql56: Fresh) -> None:
    assert ask(fresh_mariadb(), "SELECT @@gtid_binlog_pos") == ""
    assert ask(fresh_mysql8(), "SELECT @@gtid_executed") == ""
    assert ask(fresh_mysql56(), "SHOW MASTER STATUS")[:2] == ("binlog.000001", 120)


def test_two_servers_of_a_kind_differ_in_identity(mysql8: Server, fresh_mysql8: Fresh) -> None:
    other = fresh_mysql8()
    assert other.port != mysql8.port
    assert ask(other, "SELECT @@server_uuid") != ask(mysql8, "SELECT @@server_uuid")


def test_what_was_committed_outlives_a_kill(fresh_mariadb: Fresh) -> None:
    server = fresh_mariadb(innodb_flush_log_at_trx_commit=1)
    ask(server, "CREATE DATABASE d")
    ask(server, "CREATE TABLE d.t (a INT PRIMARY KEY)")
    ask(server, "INSERT INTO d.t VALUES (7)")
    port, pid = server.port, server.pid
    server.kill()
    assert not server.running
    with pytest.raises(pymysql.err.OperationalError):
        server.connect()
    server.start()
    assert server.pid != pid
    assert server.port == port
    assert ask(server, "SELECT a FROM d.t") == 7


def test_settings_given_at_a_restart_stay(fresh_mysql8: Fresh) -> None:
    server = fresh_mysql8(binlog_row_image="MINIMAL")
    assert ask(server, "SELECT @@binlog_row_image, @@binlog_row_metadata") == ("MINIMAL", "FULL")
    server.restart(binlog_row_metadata="MINIMAL")
    server.restart()
    assert ask(server, "SELECT @@binlog_row_image, @@binlog_row_metadata") == ("MINIMAL", "MINIMAL")


def test_false_and_none_switch_a_default_off(fresh_mariadb: Fresh) -> None:
    server = fresh_mariadb(log_bin=False, binlog_row_metadata=None)
    assert ask(server, "SELECT @@log_bin, @@binlog_row_metadata") == (0, "NO_LOG")


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no.such.option"):
        start_mariadb(tmp_path, no_such_option=1)


def test_a_long_folder_name_still_gets_a_socket(tmp_path: Path) -> None:
    server = start_mariadb(tmp_path / ("long" * 25))
    try:
        assert ask(server, "SELECT @@socket") == str(server.socket)
    finally:
        server.discard()


def test_a_server_that_cannot_be_fetched_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_CACHE", str(tmp_path / "empty"))
    # A client that fails stands for a registry that can't be reached.
    client = tmp_path / "mvn"
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotRun, match=r"^MySQL 8\.0 not run: Maven could not be reached$"):
        start_mysql8(tmp_path / "server")
    assert not list((tmp_path / "empty" / "servers").glob("mysql-8*[0-9]/")), "a failed fetch left a server behind"


def test_packages_that_no_mirror_has_are_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_CACHE", str(tmp_path / "empty"))
    client = tmp_path / "apt-get"
    client.write_text("#!/bin/sh\nexit 100\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotRun, match=r"^MySQL 9 not run: (the packages of debian sid could not be listed|this machine has no mirror)"):
        start_named("mysql-9", tmp_path / "server")
    assert not list((tmp_path / "empty" / "servers").glob("mysql-9/")), "a failed fetch left a server behind"


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import os, pathlib
from tests.kit.servers import start_mariadb
server = start_mariadb(pathlib.Path({str(tmp_path / "server")!r}))
print(server.pid, flush=True)
os._exit(1)
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    # The kernel's signal is on its way; the process's entry goes when it has ended.
    deadline = subprocess.run(["timeout", "20", "tail", f"--pid={pid}", "-f", "/dev/null"], check=False)
    assert deadline.returncode == 0, f"server {pid} is still running"


def test_each_database_is_new_and_empty(any_server: Server, database: Callable[[Server], str]) -> None:
    first, second = database(any_server), database(any_server)
    assert first != second
    assert ask(any_server, f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{first}'") == 0
