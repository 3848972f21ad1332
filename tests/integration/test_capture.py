"""Capture of real servers' logs: what is stored is the log, whatever happens on the way."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt import budgets
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet, of_words, words_of
from snowmelt.databases.mysql.log.capture import AnotherServer, Capture, CaptureHooks, ExpectedServer, capture_until, streaming
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import HEADER_BYTES, Event, MySqlGtid, read_gtid
from snowmelt.databases.mysql.log.framing import read_previous_gtids
from snowmelt.errors import Corrupt, Fenced, SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.segments import Segment, list_segments
from tests.integration.server_log import WAIT_S, ask, execute, fill, load, log_events, now, options, split
from tests.kit.servers import Fresh, Server

Database = Callable[[Server], str]
SERVER_ID = 4_000_000
LIMITS = {field.name for field in fields(CaptureLimits)}


def assert_is_the_log(server: Server, folder: Path, start: Position, until: Position) -> None:
    """The segments hold the events from `start` on, at least to `until`, and no others."""
    segments = list_segments(folder)
    assert segments, "nothing was captured"
    assert segments[0].start == Position(start.file, start.offset)
    assert segments[-1].end >= until
    for segment in segments:
        expected = log_events(server, segment.start.file, segment.start.offset, segment.end.offset)
        found = split(segment.bytes().tobytes())
        assert [(e[4], len(e)) for e in found] == [(e[4], len(e)) for e in expected], segment.index_path
        assert found == expected, segment.index_path
        assert details_of(segment).event_bytes_max == max(map(len, found))


def everything(server: Server, folder: Path) -> None:
    """Every way in which a transaction can begin and end."""
    mixed = server.settings.get("gtid_mode") != "ON"
    (folder / "load.csv").write_text("100\tq\n101\tw\n")
    with server.connect() as connection, connection.cursor() as cursor:

        def run(text: str) -> None:
            for statement in text.split(";"):
                cursor.execute(statement)

        run("CREATE DATABASE every; USE every")
        run("CREATE TABLE i (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100)) ENGINE=InnoDB")
        run("CREATE TABLE m (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100)) ENGINE=MyISAM")
        run("INSERT INTO i (v) VALUES ('a'), ('b'); INSERT INTO m (v) VALUES ('a')")
        run("BEGIN; INSERT INTO i (v) VALUES ('x'); SAVEPOINT s; INSERT INTO i (v) VALUES ('y'); ROLLBACK TO s; COMMIT")
        run("BEGIN; INSERT INTO i (v) VALUES ('gone'); ROLLBACK")
        if mixed:
            run("BEGIN; INSERT INTO i (v) VALUES ('x'); INSERT INTO m (v) VALUES ('y'); SAVEPOINT s")
            run("INSERT INTO i (v) VALUES ('z'); INSERT INTO m (v) VALUES ('z'); ROLLBACK TO s; COMMIT")
            run("BEGIN; INSERT INTO m (v) VALUES ('y'); INSERT INTO i (v) VALUES ('x'); ROLLBACK")
            run("CREATE TABLE selected_m ENGINE=MyISAM AS SELECT * FROM i")
            run("BEGIN; CREATE TEMPORARY TABLE t (a INT); INSERT INTO t VALUES (1); INSERT INTO i (v) SELECT a FROM t")
            run("DROP TEMPORARY TABLE t; COMMIT")
        run("CREATE TABLE selected AS SELECT * FROM i")
        run("CREATE TEMPORARY TABLE t2 (a INT); INSERT INTO t2 VALUES (1); INSERT INTO i (v) SELECT a FROM t2")
        run("DROP TEMPORARY TABLE t2")
        run("XA START 'x1'; INSERT INTO i (v) VALUES ('xa'); XA END 'x1'; XA PREPARE 'x1'; XA COMMIT 'x1'")
        run("XA START 'x2'; INSERT INTO i (v) VALUES ('xa'); XA END 'x2'; XA PREPARE 'x2'; XA ROLLBACK 'x2'")
        run("XA START 'x3'; INSERT INTO i (v) VALUES ('xa'); XA END 'x3'; XA COMMIT 'x3' ONE PHASE")
        for table in ("i", "m"):
            run(f"LOAD DATA INFILE '{folder}/load.csv' INTO TABLE {table} (id, v)")
        run("ALTER TABLE i ADD COLUMN z INT; TRUNCATE i; CREATE VIEW w AS SELECT 1 a; OPTIMIZE TABLE m; FLUSH TABLES")
        run("SET SESSION binlog_format = STATEMENT; SET @a = 5; INSERT INTO m (v) VALUES (@a); INSERT INTO i (v) VALUES (RAND())")
        run(f"LOAD DATA INFILE '{folder}/load.csv' INTO TABLE i (id, v); SET SESSION binlog_format = ROW")
        run("DROP TABLE selected; FLUSH BINARY LOGS; INSERT INTO i (v) VALUES ('last'); DROP DATABASE every")


def check_groups(folder: Path) -> int:
    """Each segment is one group, by the look of its first and last event; how many groups."""
    groups = 0
    openers = {Event.GTID, Event.ANONYMOUS_GTID, Event.GTID_MARIADB}
    files = {Event.FORMAT_DESCRIPTION, Event.PREVIOUS_GTIDS, Event.GTID_LIST, Event.BINLOG_CHECKPOINT, Event.ROTATE, Event.STOP}

    def text(event: bytes, crc_length: int) -> bytes:
        assert event[4] == Event.QUERY
        status, database = struct.unpack_from("<H", event, HEADER_BYTES + 11)[0], event[HEADER_BYTES + 8]
        return event[HEADER_BYTES + 13 + status + database + 1 : len(event) - crc_length]

    for segment in list_segments(folder):
        events = split(segment.bytes().tobytes())
        kinds = [event[4] for event in events]
        if kinds[0] in files:
            assert len(kinds) == 1, f"{segment.index_path}: {kinds}"
            continue
        groups += 1
        assert not openers & set(kinds[1:]), f"{segment.index_path} has two groups: {kinds}"
        last = text(events[-1], details_of(segment).crc_length) if kinds[-1] == Event.QUERY else b""
        committed = kinds[-1] in (Event.XID, Event.XA_PREPARE, Event.TRANSACTION_PAYLOAD) or last in (b"COMMIT", b"ROLLBACK")
        statement = kinds[-1] in (Event.QUERY, Event.QUERY_COMPRESSED) and Event.TABLE_MAP not in kinds
        assert committed or statement, f"{segment.index_path} ends inside a transaction: {kinds}"
        body = kinds[1:] if kinds[0] in openers else kinds
        single = len(body) == 1 or kinds[-2] in (Event.INTVAR, Event.USER_VAR, Event.RAND)
        assert committed or single, f"{segment.index_path}: {kinds}"
    return groups


FLAVOURS = {
    "mariadb": ("fresh_mariadb", {}),
    "mariadb without checksums": ("fresh_mariadb", {"binlog_checksum": "NONE"}),
    "mariadb compressed": ("fresh_mariadb", {"log_bin_compress": "ON", "log_bin_compress_min_len": 10}),
    "mysql8": ("fresh_mysql8", {}),
    "mysql8 without gtids": ("fresh_mysql8", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}),
    "mysql8 without checksums": ("fresh_mysql8", {"binlog_checksum": "NONE"}),
    "mysql8 compressed": ("fresh_mysql8", {"binlog_transaction_compression": "ON"}),
    "mysql56": ("fresh_mysql56", {}),
    "mysql56 without checksums": ("fresh_mysql56", {"binlog_checksum": "NONE"}),
}


def test_a_server_that_nobody_writes_to_says_where_its_capture_begins(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    execute(any_server, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)", database=name)
    begins = now(any_server)
    found: queue.SimpleQueue[Position] = queue.SimpleQueue()
    stop = threading.Event()
    capture = Capture(options(any_server), tmp_path, start="latest", server_id=SERVER_ID, hooks=CaptureHooks(located=found.put))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(capture.run, stop)
        try:
            located = found.get(timeout=WAIT_S)
        finally:
            stop.set()
        done.result()
    gtids: GtidSet | None = None
    if any_server.kind == "mariadb":
        gtids = MariaDbGtidSet.parse(ask(any_server, "SELECT @@gtid_binlog_pos")[0])
    elif any_server.settings.get("gtid_mode") == "ON":
        gtids = MySqlGtidSet.parse(ask(any_server, "SELECT @@gtid_executed")[0])
    assert located == replace(begins, transactions=words_of(gtids))
    assert gtids is not None or any_server.version < (8,)
    assert list_segments(tmp_path) == []
    assert found.empty()


def test_each_connection_of_a_capture_says_where_it_goes_on(mysql8: Server, database: Database, tmp_path: Path) -> None:
    name = database(mysql8)
    execute(mysql8, "CREATE TABLE t (a INT)", database=name)
    found: queue.SimpleQueue[Position] = queue.SimpleQueue()
    sealed: queue.SimpleQueue[Segment] = queue.SimpleQueue()
    stop = threading.Event()
    capture = Capture(
        options(mysql8),
        tmp_path,
        start="latest",
        server_id=SERVER_ID,
        limits=CaptureLimits(seal_ms=10),
        hooks=CaptureHooks(located=found.put, sealed=sealed.put),
        budget=replace(budgets.CAPTURE, first_s=0.01),
    )
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(capture.run, stop)
        try:
            first = found.get(timeout=WAIT_S)
            execute(mysql8, "INSERT INTO t VALUES (1)", database=name)
            segment = sealed.get(timeout=WAIT_S)
            (dump,) = ask(mysql8, "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            execute(mysql8, f"KILL {dump}")
            second = found.get(timeout=WAIT_S)
        finally:
            stop.set()
        done.result()
    assert segment.start == replace(first, transactions=None)
    assert second == segment.end
    assert of_words(second.transactions) == MySqlGtidSet.parse(ask(mysql8, "SELECT @@gtid_executed")[0])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_kind_of_transaction_is_cut_at_its_end(flavour: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fixture, settings = FLAVOURS[flavour]
    server: Server = request.getfixturevalue(fixture)(**settings)
    start = Position(1, 4)
    everything(server, tmp_path)
    until = now(server)
    # A segment for each cut point.
    capture_until(options(server), tmp_path / "cut", "earliest", until, segment_bytes=1)
    assert_is_the_log(server, tmp_path / "cut", start, until)
    segments = list_segments(tmp_path / "cut")
    groups = check_groups(tmp_path / "cut")
    if server.kind == "mariadb":
        assert of_words(segments[-1].end.transactions) == MariaDbGtidSet.parse(ask(server, "SELECT @@gtid_binlog_pos")[0])
        assert isinstance(of_words(segments[-1].end.transactions), MariaDbGtidSet)
        assert groups == of_words(segments[-1].end.transactions).last[0][1]
    elif server.settings.get("gtid_mode") == "ON":
        executed = ask(server, "SELECT @@gtid_executed")[0]
        assert of_words(segments[-1].end.transactions) == MySqlGtidSet.parse(executed)
        assert groups == int(executed.rsplit("-", 1)[1])
    assert {details_of(segment).crc_length for segment in segments} == {0 if "checksums" in flavour else 4}
    # The same in few segments.
    capture_until(options(server), tmp_path / "few", start, until)
    assert_is_the_log(server, tmp_path / "few", start, until)
    assert len(list_segments(tmp_path / "few")) == 2


class Running:
    """A capture in a thread of its own."""

    def __init__(self, server: MySqlOptions, folder: Path, start: Any, **changed: Any) -> None:
        bounds = {"seal_ms": 50, "heartbeat_s": 1.0} | {name: changed.pop(name) for name in LIMITS & changed.keys()}
        self.capture = Capture(server, folder, start=start, **({"server_id": SERVER_ID, "limits": CaptureLimits(**bounds)} | changed))
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.capture.run(self.stop)
        except BaseException as error:
            self.error = error

    def wait(self, position: Position) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.capture.wait(position, 0.2):
            if not self.thread.is_alive() and self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"{self.capture.end} after {WAIT_S} s, not {position}"

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def test_a_log_is_captured_while_it_is_written(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    with Running(options(any_server), tmp_path, start) as running:
        with load(any_server, name):
            for _ in range(5):
                execute(any_server, "FLUSH BINARY LOGS")
                running.wait(now(any_server))
        until = now(any_server)
        running.wait(until)
        running.end()
    assert_is_the_log(any_server, tmp_path, start, until)
    segments = list_segments(tmp_path)
    assert {segment.start.file for segment in segments} == set(range(start.file, until.file + 1))
    if any_server.kind == "mysql" and any_server.version >= (8,):
        assert of_words(segments[-1].end.transactions) == MySqlGtidSet.parse(ask(any_server, "SELECT @@gtid_executed")[0])
    if any_server.kind == "mariadb":
        assert of_words(segments[-1].end.transactions) == MariaDbGtidSet.parse(ask(any_server, "SELECT @@gtid_binlog_pos")[0])


def test_gtids_before_a_start_inside_a_file_are_known(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    fill(any_server, name, 50)
    start = now(any_server)
    fill(any_server, name, 50)
    until = now(any_server)
    end = capture_until(options(any_server), tmp_path, start, until)
    assert_is_the_log(any_server, tmp_path, start, until)
    if any_server.kind == "mariadb":
        assert of_words(end.transactions) == MariaDbGtidSet.parse(ask(any_server, "SELECT @@gtid_binlog_pos")[0])
    elif any_server.version >= (8,):
        assert of_words(end.transactions) == MySqlGtidSet.parse(ask(any_server, "SELECT @@gtid_executed")[0])


def gtids_below(server: Server, end: Position) -> MySqlGtidSet:
    """The transactions that the server's file has up to there, with those of the files before it."""
    found = MySqlGtidSet()
    for event in split((server.data / f"binlog.{end.file:06d}").read_bytes()[4 : end.offset]):
        body = event[HEADER_BYTES:-4]
        if event[4] == Event.PREVIOUS_GTIDS:
            before = read_previous_gtids(body)
            assert isinstance(before, MySqlGtidSet)
            found = found.union(before)
        elif event[4] == Event.GTID:
            gtid = read_gtid(Event.GTID, 0, body)
            assert isinstance(gtid, MySqlGtid)
            found = found.union(MySqlGtidSet.parse(str(gtid)))
    return found


def test_a_start_at_the_end_knows_every_transaction_below_it_though_some_are_not_yet_visible(fresh_mysql8: Fresh, tmp_path: Path) -> None:
    # A transaction is in the log before it is in the set of executed ones; a log that is synced makes that time long.
    server = fresh_mysql8(sync_binlog=1, innodb_flush_log_at_trx_commit=1)
    execute(server, "CREATE DATABASE d", "CREATE TABLE d.t (w INT, v INT, PRIMARY KEY (w, v))")
    stop = threading.Event()

    def write(writer: int) -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if stop.is_set():
                    return
                cursor.execute("INSERT INTO d.t VALUES (%s, %s)", [writer, number])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    try:
        for trial in range(12):
            capture_until(options(server), tmp_path / str(trial), "latest", now(server), segment_bytes=1, seal_ms=1)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    for trial in range(12):
        segments = list_segments(tmp_path / str(trial))
        assert segments[0].start.offset > 4
        assert of_words(segments[0].end.transactions) == gtids_below(server, segments[0].end), trial


def test_a_start_where_no_connection_can_begin_reads_the_file_from_its_beginning(
    any_server: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = database(any_server)
    execute(any_server, "FLUSH BINARY LOGS")
    fill(any_server, name, 30)
    start = now(any_server)
    # It is 4 GiB, which would take minutes to write.
    monkeypatch.setattr(streaming, "ADDRESSABLE", 1000)
    assert start.offset > 1000
    fill(any_server, name, 30)
    end = capture_until(options(any_server), tmp_path, start, now(any_server))
    assert_is_the_log(any_server, tmp_path, start, end)


def test_a_capture_goes_on_where_it_ended(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    for _ in range(3):
        fill(any_server, name, 50)
        until = now(any_server)
        # The start is that of the first run; later ones go on from the last segment.
        capture_until(options(any_server), tmp_path, start, until)
        assert_is_the_log(any_server, tmp_path, start, until)


def test_over_a_unix_socket(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    fill(any_server, name, 100)
    capture_until(options(any_server, socket=str(any_server.socket)), tmp_path, start, now(any_server))
    assert_is_the_log(any_server, tmp_path, start, now(any_server))


@pytest.mark.parametrize("fixture", ["fresh_mariadb", "fresh_mysql8"])
def test_over_tls(fixture: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(made.split(), check=True, capture_output=True)
    server: Server = request.getfixturevalue(fixture)(ssl_cert=str(certificate), ssl_key=str(key), ssl_ca=str(certificate))
    encrypted = options(server, tls=Tls.VERIFY_CA, tls_ca=str(certificate))
    with Session(encrypted) as session:
        assert session.encrypted
    execute(server, "CREATE DATABASE d")
    fill(server, "d", 500, wide=20_000)
    until = now(server)
    with Running(encrypted, tmp_path / "segments", "earliest") as running:
        running.wait(until)
        fill(server, "d", 50)
        running.wait(now(server))
        running.end()
    assert_is_the_log(server, tmp_path / "segments", Position(1, 4), now(server))

    # What is broken on its way TLS refuses to decrypt: nothing of it came in, and the capture connects again.
    broken: list[int] = []

    def garble(connection: int, sent: int, data: bytes) -> bytes:
        if broken or sent < 1 << 20:
            return data
        broken.append(connection)
        return bytes(byte ^ 1 for byte in data)

    until = now(server)
    with Proxy(server, garble) as proxy, Running(replace(encrypted, port=proxy.port), tmp_path / "broken", "earliest") as running:
        running.wait(until)
        running.end()
    assert broken
    assert_is_the_log(server, tmp_path / "broken", Position(1, 4), until)


def test_a_row_larger_than_all_buffers(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    # Old InnoDB takes no value larger than a tenth of its redo log.
    execute(any_server, "CREATE TABLE big (id INT PRIMARY KEY, v LONGBLOB) ENGINE=MyISAM", database=name)
    start = now(any_server)
    execute(any_server, "INSERT INTO big VALUES (1, REPEAT(MD5(RAND()), 1310720))", database=name)
    execute(any_server, "INSERT INTO big VALUES (2, REPEAT('b', 16777215))", database=name)
    until = now(any_server)
    with Running(options(any_server), tmp_path, start, buffer_bytes=1 << 20, buffers=2, receive_bytes=200 << 10) as running:
        running.wait(until)
        running.end()
    assert_is_the_log(any_server, tmp_path, start, until)
    assert max(details_of(segment).event_bytes_max for segment in list_segments(tmp_path)) > 40 << 20


class Proxy:
    """Stands between capture and server and does to the server's bytes what `spoil` says.

    `spoil(connection, sent, data)` gives the bytes to pass on, or None to end the connection.
    """

    def __init__(self, server: Server, spoil: Callable[[int, int, bytes], bytes | None]) -> None:
        self._server = server
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection((self._server.host, self._server.port))
            self._sockets += [client, server]
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(self.connections, server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        finally:
            server.close()

    def _down(self, connection: int, server: socket.socket, client: socket.socket) -> None:
        sent = 0
        try:
            while data := server.recv(65536):
                passed = self._spoil(connection, sent, data)
                if passed is None:
                    break
                client.sendall(passed)
                sent += len(passed)
        except OSError:
            pass
        finally:
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._sockets:
            end.close()


def test_a_connection_cut_anywhere_leaves_no_gap_and_no_overlap(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    execute(any_server, "CREATE TABLE big (id INT PRIMARY KEY, v LONGBLOB) ENGINE=MyISAM", database=name)
    start = now(any_server)
    fill(any_server, name, 200)
    # One transaction and one event that no single connection lives long enough for to be sent with what is around them.
    execute(any_server, "INSERT INTO big VALUES (1, REPEAT('b', 700000))", database=name)
    with any_server.connect(database=name, autocommit=False) as connection, connection.cursor() as cursor:
        for _ in range(60):
            cursor.execute("INSERT INTO t (v) VALUES (REPEAT('c', 20000))")
        connection.commit()
    fill(any_server, name, 200)
    until = now(any_server)
    chance = random.Random(5)

    limits = {connection: 3_000 + connection * 17_000 + chance.randrange(2_000) for connection in range(61)}

    def cut(connection: int, sent: int, data: bytes) -> bytes | None:
        return data[: max(0, limits.get(connection, 1 << 40) - sent)] or None

    with Proxy(any_server, cut) as proxy:
        small: dict[str, Any] = {"buffer_bytes": 204 << 10, "buffers": 2, "receive_bytes": 200 << 10}
        with Running(
            options(any_server, port=proxy.port),
            tmp_path,
            start,
            budget=replace(budgets.CAPTURE, tries_max=100, first_s=0.001, longest_s=0.01),
            **small,
        ) as running:
            running.wait(until)
            running.end()
        assert proxy.connections > 5
    assert_is_the_log(any_server, tmp_path, start, until)


def test_a_flipped_bit_is_never_stored(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    fill(any_server, name, 300)
    until = now(any_server)
    # What is said before the stream, and what MariaDB leaves out of it, are shorter than half of it.
    length = (until.offset - start.offset) // 2
    chance = random.Random(3)
    for trial in range(8):
        place = 4_000 + chance.randrange(length - 4_000)

        def flip(_: int, sent: int, data: bytes, place: int = place) -> bytes:
            if not sent <= place < sent + len(data):
                return data
            return data[: place - sent] + bytes([data[place - sent] ^ 1 << place % 8]) + data[place - sent + 1 :]

        folder = tmp_path / str(trial)
        with (
            Proxy(any_server, flip) as proxy,
            Running(options(any_server, port=proxy.port), folder, start, segment_bytes=1) as running,
        ):
            running.thread.join(WAIT_S)
            assert not running.thread.is_alive()
            assert isinstance(running.error, Corrupt | SourceDrift), running.error
        if list_segments(folder):
            assert_is_the_log(any_server, folder, start, list_segments(folder)[-1].end)


def test_a_silent_connection_is_given_up(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    fill(any_server, name, 300)
    until = now(any_server)

    def swallow(connection: int, sent: int, data: bytes) -> bytes:
        return data if connection > 1 or sent < 10_000 else b""

    with Proxy(any_server, swallow) as proxy:
        with Running(options(any_server, port=proxy.port), tmp_path, start, heartbeat_s=0.1) as running:
            running.wait(until)
            running.end()
        assert proxy.connections == 2
    assert_is_the_log(any_server, tmp_path, start, until)


def test_an_idle_server_is_not_silent(any_server: Server, tmp_path: Path) -> None:
    passed = threading.Event()
    connections = []

    def watch(connection: int, sent: int, data: bytes) -> bytes:
        connections.append(connection)
        # Heartbeats of ten periods, where three without one would end the connection.
        if connections.count(connection) > 20:
            passed.set()
        return data

    with (
        Proxy(any_server, watch) as proxy,
        Running(options(any_server, port=proxy.port), tmp_path, "latest", heartbeat_s=0.1) as running,
    ):
        assert passed.wait(WAIT_S)
        running.end()
        assert proxy.connections == 1


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("fixture", ["fresh_mariadb", "fresh_mysql8", "fresh_mysql56"])
def test_a_server_that_goes_and_comes_back(fixture: str, how: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Server = request.getfixturevalue(fixture)()
    execute(server, "CREATE DATABASE d")
    with Running(options(server), tmp_path, "earliest", budget=replace(budgets.CAPTURE, tries_max=1000, longest_s=0.2)) as running:
        for _ in range(2):
            fill(server, "d", 50)
            if how == "kill":
                # A server that dies may forget what it sent; what this test is about is one that doesn't.
                running.wait(now(server))
                server.kill()
            else:
                server.stop()
            server.start()
        fill(server, "d", 50)
        until = now(server)
        running.wait(until)
        running.end()
    assert until.file == 3
    assert_is_the_log(server, tmp_path, Position(1, 4), until)


def _capture_in_child(server: MySqlOptions, folder: Path, start: Position) -> None:
    small = CaptureLimits(segment_bytes=64 << 10, seal_ms=20, buffer_bytes=2 << 20, buffers=2)
    capture = Capture(server, folder, start=start, server_id=SERVER_ID, limits=small)
    capture.run(threading.Event())


def test_a_capture_killed_at_any_instant_leaves_no_gap_or_overlap(mariadb: Server, database: Database, tmp_path: Path) -> None:
    name = database(mariadb)
    start = now(mariadb)
    fill(mariadb, name, 10)
    # Compiled before the first fork, so that the children capture at once.
    capture_until(options(mariadb), tmp_path / "warm", start, now(mariadb))
    folder = tmp_path / "segments"
    fork = multiprocessing.get_context("fork")
    chance = random.Random(11)
    counts = []
    with load(mariadb, name):
        for _ in range(20):
            before = len(list(folder.glob("*.json")))
            child = fork.Process(target=_capture_in_child, args=(options(mariadb), folder, start))
            child.start()
            deadline = time.monotonic() + WAIT_S
            while len(list(folder.glob("*.json"))) == before and time.monotonic() < deadline:
                assert child.is_alive()
                child.join(0.005)
            child.join(chance.random() * 0.1)
            assert child.pid is not None
            child.kill()
            child.join()
            assert child.exitcode == -signal.SIGKILL
            counts.append(len(list(folder.glob("*.json"))) - before)
    assert all(counts), counts
    until = now(mariadb)
    capture_until(options(mariadb), folder, start, until, server_id=SERVER_ID)
    assert_is_the_log(mariadb, folder, start, until)


def test_a_slow_disk_stops_the_reading_and_loses_nothing(mariadb: Server, database: Database, tmp_path: Path) -> None:
    name = database(mariadb)
    start = now(mariadb)
    fill(mariadb, name, 1000, wide=20_000)
    until = now(mariadb)
    go_on = threading.Event()
    reached = threading.Event()

    def sealed(_: object) -> None:
        reached.set()
        assert go_on.wait(WAIT_S)

    small: dict[str, Any] = {"segment_bytes": 1 << 20, "buffer_bytes": 2 << 20, "buffers": 2}
    with Running(options(mariadb), tmp_path, start, hooks=CaptureHooks(sealed=sealed), **small) as running:
        assert reached.wait(WAIT_S)
        # The writer is held; what is in the folder can't exceed that segment.
        assert len(list(tmp_path.glob("*.json"))) == 1
        assert not running.capture.wait(until, 0.5)
        go_on.set()
        running.wait(until)
        running.end()
    assert_is_the_log(mariadb, tmp_path, start, until)


def purge_to_newest(server: Server) -> Position:
    """The server's log begins with its newest file. Where that is."""
    until = now(server)
    # A server keeps what is still read or not yet checkpointed, and notices only at a heartbeat that a reader has gone.
    deadline = time.monotonic() + WAIT_S
    while ask(server, "SHOW BINARY LOGS")[0] != f"binlog.{until.file:06d}":
        assert time.monotonic() < deadline
        execute(server, f"PURGE BINARY LOGS TO 'binlog.{until.file:06d}'")
    return until


def test_a_purged_log_is_the_operators_case(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    fill(any_server, name, 10)
    capture_until(options(any_server), tmp_path / "old", start, now(any_server))
    # One transaction more than was captured, in nothing but what is purged.
    fill(any_server, name, 10)
    execute(any_server, "FLUSH BINARY LOGS")
    fill(any_server, name, 10)
    until = purge_to_newest(any_server)
    with pytest.raises(SourceDrift, match="no longer has the log"):
        capture_until(options(any_server), tmp_path / "new", start, until)
    with pytest.raises(SourceDrift, match="no longer has the log"):
        capture_until(options(any_server), tmp_path / "old", start, until)
    # Where it begins now is known.
    capture_until(options(any_server), tmp_path / "earliest", "earliest", until)
    assert list_segments(tmp_path / "earliest")[0].start == Position(until.file, 4)


def test_a_log_that_was_purged_up_to_what_was_captured_is_captured_on(any_server: Server, database: Database, tmp_path: Path) -> None:
    name = database(any_server)
    start = now(any_server)
    fill(any_server, name, 10)
    end = capture_until(options(any_server), tmp_path / "log", start, now(any_server))
    execute(any_server, "FLUSH BINARY LOGS")
    purge_to_newest(any_server)
    fill(any_server, name, 10)
    until = now(any_server)
    if any_server.version < (8,):
        # Without GTIDs nothing proves that the file that is gone held no more.
        with pytest.raises(SourceDrift, match="has no GTIDs"):
            capture_until(options(any_server), tmp_path / "log", start, until)
        return
    capture_until(options(any_server), tmp_path / "log", start, until)
    segments = list_segments(tmp_path / "log")
    assert [segment.end for segment in segments if segment.start.file == start.file][-1] == end
    assert next(segment for segment in segments if segment.start.file > start.file).start == Position(until.file, 4)
    capture_until(options(any_server), tmp_path / "earliest", "earliest", until)
    there = [segment.bytes().tobytes() for segment in list_segments(tmp_path / "earliest")]
    assert b"".join(segment.bytes().tobytes() for segment in segments if segment.start.file > start.file) == b"".join(there)
    # A place with its transactions is as good as what was captured up to there.
    capture_until(options(any_server), tmp_path / "again", end, until)
    assert list_segments(tmp_path / "again")[0].start == Position(until.file, 4)
    # Of MySQL only one file: behind another one gtid_mode may have been another.
    execute(any_server, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    until = purge_to_newest(any_server)
    if any_server.kind == "mariadb":
        capture_until(options(any_server), tmp_path / "log", start, until)
    else:
        with pytest.raises(SourceDrift, match="files were purged"):
            capture_until(options(any_server), tmp_path / "log", start, until)


def test_another_server_is_refused(mariadb: Server, mysql8: Server, tmp_path: Path, database: Database) -> None:
    start = now(mariadb)
    fill(mariadb, database(mariadb), 10)
    capture_until(options(mariadb), tmp_path, start, now(mariadb))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SourceDrift, match="another server"):
        capture_until(options(mysql8), tmp_path, start, Position(1_000_000, 4))
    # Or a driver is told, who may go on there; the capture itself never does.
    with pytest.raises(AnotherServer):
        Capture(options(mysql8), tmp_path, start=start, server_id=SERVER_ID, expected=ExpectedServer(failover=True)).run(threading.Event())
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("fixture", ["fresh_mariadb", "fresh_mysql8", "fresh_mysql56"])
def test_a_log_that_was_started_anew_is_refused(fixture: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: Server = request.getfixturevalue(fixture)()
    execute(server, "CREATE DATABASE d")
    fill(server, "d", 50)
    capture_until(options(server), tmp_path, "earliest", now(server))
    born = details_of(list_segments(tmp_path)[0]).format_description[:4]
    # The file's birth is told in seconds.
    deadline = time.monotonic() + WAIT_S
    while int(time.time()) == int.from_bytes(born, "little") and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    execute(server, "RESET MASTER")
    with pytest.raises(SourceDrift, match="ends before what was captured"):
        capture_until(options(server), tmp_path, "earliest", Position(1_000_000, 4))
    # It grows again, beyond where the capture ended, with the same names and lengths.
    execute(server, "DROP DATABASE d", "CREATE DATABASE d")
    fill(server, "d", 500)
    with pytest.raises(SourceDrift, match="started anew") as refused:
        capture_until(options(server), tmp_path, "earliest", Position(1_000_000, 4))
    assert "copied again" in str(refused.value)


@pytest.mark.parametrize("lines", [0, 20, 500])
@pytest.mark.parametrize("fixture", ["fresh_mariadb", "fresh_mysql8", "fresh_mysql56"])
def test_a_log_that_is_started_anew_under_a_running_capture_never_leaves_a_gap_in_silence(
    fixture: str, lines: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(fixture)()
    execute(server, "CREATE DATABASE d")
    fill(server, "d", 50)
    with Running(options(server), tmp_path, "earliest", budget=replace(budgets.CAPTURE, tries_max=4, first_s=0.05)) as running:
        until = now(server)
        running.wait(until)
        execute(server, "RESET MASTER")
        # These are in the new first file, which an old server's connection to the old one never comes to see.
        fill(server, "d", lines)
        execute(server, "FLUSH BINARY LOGS")
        fill(server, "d", 10)
        running.thread.join(WAIT_S)
        assert not running.thread.is_alive()
        assert isinstance(running.error, SourceDrift), running.error
    end = list_segments(tmp_path)[-1].end
    assert (end.file, end.offset) == (until.file, until.offset), "nothing of the new log was taken for the old one"


def test_who_takes_over_the_server_id_fences_the_other(any_server: Server, tmp_path: Path, database: Database) -> None:
    name = database(any_server)
    start = now(any_server)
    with Running(options(any_server), tmp_path / "old", start) as old:
        fill(any_server, name, 10)
        old.wait(now(any_server))
        with Running(options(any_server), tmp_path / "new", start) as new:
            old.thread.join(WAIT_S)
            assert not old.thread.is_alive()
            assert isinstance(old.error, Fenced), old.error
            fill(any_server, name, 10)
            new.wait(now(any_server))
            new.end()


def test_one_capture_a_folder(mariadb: Server, tmp_path: Path, database: Database) -> None:
    name = database(mariadb)
    with Running(options(mariadb), tmp_path, now(mariadb)) as running:
        fill(mariadb, name, 10)
        running.wait(now(mariadb))
        with pytest.raises(Fenced, match="another capture"):
            Capture(options(mariadb), tmp_path, start="latest", server_id=SERVER_ID + 1).run(threading.Event())
        running.end()


def test_a_server_that_is_not_there_is_tried_a_given_number_of_times(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    capture = Capture(
        MySqlOptions(port=port), tmp_path, start="latest", server_id=SERVER_ID, budget=replace(budgets.CAPTURE, tries_max=3, first_s=0.001)
    )
    with pytest.raises(Unavailable, match="3 tries"):
        capture.run(threading.Event())


def test_a_server_without_a_log_is_a_mistake_of_the_settings(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    server = fresh_mariadb(log_bin=None, binlog_format=None)
    for start in ("latest", "earliest"):
        with pytest.raises(Exception, match="keeps no binary log"):
            Capture(options(server), tmp_path, start=start, server_id=SERVER_ID).run(threading.Event())
