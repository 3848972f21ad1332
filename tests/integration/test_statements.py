"""Statements that a segment's index leads to are those that the decoder finds by reading everything."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pymysql
import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.ddl import CreateTable, DatabaseDefaults, Ignored, RowsAsText, SchemaChange, read_statement
from snowmelt.databases.mysql.log.capture import capture_until, server_of
from snowmelt.databases.mysql.log.decode import LogReader, LogServer, SchemaChanged, following
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.log.statements import LoggedStatement, changes_of, read_flagged_groups
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Corrupt
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.segments import Segment, list_segments
from tests.integration.statements import DIALOGUE
from tests.kit.servers import Fresh, Server, log_end

SERVER_ID = 4_000_100
WITHOUT_EFFECT = re.compile(r"(?:BEGIN|COMMIT|ROLLBACK|SAVEPOINT|XA)\b")

NOISE = """
INSERT INTO kept (v) VALUES ('x'), ('y')
BEGIN; UPDATE kept SET v = 'z' WHERE id < 5; SAVEPOINT s; DELETE FROM kept WHERE id = 3; ROLLBACK TO s; UPDATE kept SET v = 'q'; COMMIT
BEGIN; INSERT INTO kept (v) VALUES ('gone'); ROLLBACK
BEGIN; INSERT INTO kept (v) SELECT REPEAT('r', 90) FROM kept LIMIT 50; COMMIT
CREATE TEMPORARY TABLE t (a INT); INSERT INTO t VALUES (1); INSERT INTO kept (v) SELECT a FROM t; DROP TEMPORARY TABLE t
BEGIN; INSERT INTO kept (v) VALUES ('x'); CREATE TEMPORARY TABLE t (a INT); DROP TEMPORARY TABLE t; COMMIT
SET SESSION binlog_format = STATEMENT; CREATE TEMPORARY TABLE t (a INT); DROP TEMPORARY TABLE t; SET SESSION binlog_format = ROW
XA START 'x'; INSERT INTO kept (v) VALUES ('xa'); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'
XA START 'x'; INSERT INTO kept (v) VALUES ('xa'); XA END 'x'; XA PREPARE 'x'; XA ROLLBACK 'x'
GRANT SELECT ON *.* TO someone
CREATE USER another; DROP USER another
ANALYZE TABLE kept
FLUSH TABLES
OPTIMIZE TABLE kept
FLUSH BINARY LOGS
CREATE TABLE copied AS SELECT * FROM kept; DROP TABLE copied
CREATE TABLE copied ENGINE=MyISAM AS SELECT * FROM kept; INSERT INTO copied (v) VALUES ('m'); DROP TABLE copied
CREATE TABLE copied AS SELECT * FROM kept WHERE 0; DROP TABLE copied
CREATE OR REPLACE TABLE again AS SELECT * FROM kept
ALTER TABLE kept ADD a INT; INSERT INTO kept (v, a) VALUES ('a', 1); ALTER TABLE kept DROP a
TRUNCATE kept
RENAME TABLE kept TO moved, moved TO kept
CREATE TABLE `{other}`.t AS SELECT * FROM kept; DROP TABLE `{other}`.t
SET SESSION binlog_format = MIXED; BEGIN; INSERT INTO `{other}`.u VALUES (UUID()); INSERT INTO `{other}`.u VALUES ('text'); COMMIT
SET SESSION binlog_format = STATEMENT; INSERT INTO `{other}`.u VALUES ('text'); SET SESSION binlog_format = ROW
CREATE TABLE long_{number} (id INT PRIMARY KEY, v VARCHAR(10) COMMENT '{long}')
"""


def options(server: Server) -> MySqlOptions:
    password = server.folder / "password"
    password.write_text(server.password)
    return MySqlOptions(
        host=server.host,
        port=server.port,
        username=server.user,
        password=Secret(f"file:{password}"),
        tls=Tls.DISABLED,
        allow_password_to_unverified_server=True,
    )


def now(server: Server) -> Position:
    with server.connect() as connection, connection.cursor() as cursor:
        name, offset = log_end(cursor)
        return Position(LogFile.parse(name).number, offset)


def run_mixture(server: Server, database: str, other: str, seed: int) -> None:
    """The dialogue of all kinds of DDL, with noise in between. What a server refuses is not in its log."""
    chance = random.Random(seed)
    noise = NOISE.strip().splitlines()
    with server.connect(database=database) as connection, connection.cursor() as cursor:

        def run(text: str) -> None:
            for statement in text.split("; "):
                with contextlib.suppress(pymysql.MySQLError):
                    cursor.execute(statement)

        run(f"CREATE TABLE kept (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100)); CREATE TABLE `{other}`.u (v VARCHAR(50))")
        run("CREATE USER someone")
        # Each at least once.
        pending = chance.sample(noise, len(noise))
        for number, sql in enumerate(DIALOGUE.strip().splitlines()):
            with contextlib.suppress(pymysql.MySQLError):
                cursor.execute(sql)
            for _ in range(chance.choice((0, 0, 1, 1, 2))):
                run((pending.pop() if pending else chance.choice(noise)).format(other=other, number=number, long="c" * 500))
                run("ROLLBACK; SET SESSION binlog_format = ROW")
        assert not pending
        run("DROP USER someone")


def texts_of_the_log(server: Server, segments: list[Segment]) -> list[str]:
    """Statements as the server itself lists them."""
    found: list[str] = []
    with server.connect() as connection, connection.cursor() as cursor:
        for file in sorted({segment.log for segment in segments}):
            parts = [segment for segment in segments if segment.log == file]
            cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {parts[0].start.offset}")
            for _, at, kind, _, _, info in cursor.fetchall():
                if kind in ("Query", "Query_compressed") and at < parts[-1].end.offset:
                    text = re.sub(r" /\* xid=[0-9]+ \*/$", "", re.sub(r"^use `(?:[^`]|``)*`; ", "", info))
                    if not WITHOUT_EFFECT.match(text):
                        found.append(text)
    return found


def does_something(changes: tuple[SchemaChange, ...]) -> bool:
    return any(not isinstance(change, Ignored | RowsAsText) for change in changes)


def read_all(segments: list[Segment]) -> Iterator[tuple[Segment, LoggedStatement]]:
    for segment in segments:
        for statement in read_flagged_groups(segment)[0]:
            yield segment, statement


def without_text_of_others(*given: Any, **named: Any) -> tuple[SchemaChange, ...]:
    """The decoder stops where rows were changed as text. Here they are of tables that nothing reaches, so it goes on."""
    return tuple(change for change in read_statement(*given, **named) if not isinstance(change, RowsAsText) or change.named)


def compare(server: Server, folder: Path, start: Position, captured: Callable[[TableId], bool]) -> list[LoggedStatement]:
    """Statements by the index against those by reading everything: the same changes in order, at the same places."""
    segments = list_segments(folder)
    schemas: SchemaHistory[MySqlTable] = SchemaHistory()
    who = server_of(segments[0])
    reader = LogReader(server=LogServer(who.flavour, who.version), schemas=schemas, captured=captured)
    decoded: list[tuple[int, int, int, str, tuple[SchemaChange, ...]]] = []
    with mock.patch.object(following, "read_statement", without_text_of_others):
        for segment in segments:
            for item in reader.read_segment(segment):
                if isinstance(item, SchemaChanged):
                    decoded.append((item.position.file, item.position.offset, item.time_s, item.statement, item.changes))
    found: list[tuple[int, int, int, str, tuple[SchemaChange, ...]]] = []
    collations: dict[str, str] = {}
    for segment, statement in read_all(segments):
        file = segment.start.file
        before = Position(file, statement.ends - 1)
        changes = changes_of(
            statement,
            schemas=lambda table, before=before: schemas.find(table, before),  # type: ignore[misc]
            captured=captured,
            defaults=collations,
            server=server_of(segment),
            lower_case_names=False,
        )
        for change in changes:
            if isinstance(change, DatabaseDefaults) and change.collation is not None:
                collations[change.name] = change.collation
            elif isinstance(change, DatabaseDefaults):
                collations.pop(change.name, None)
        if does_something(changes):
            found.append((file, statement.ends, statement.time_s, statement.sql, changes))
    assert [entry[:4] for entry in found] == [entry[:4] for entry in decoded]
    assert found == decoded
    statements = [statement for _, statement in read_all(segments)]
    assert [statement.sql for statement in statements] == texts_of_the_log(server, segments)
    for segment, statement in read_all(segments):
        cuts = {cut.offset: cut.kind for cut in segment.cuts}
        assert cuts[statement.offset] == "statement"
        assert statement.begins in {segment.start.offset, *cuts}
        assert statement.begins < statement.ends <= statement.offset
        group = segment.bytes()[_at(segment, statement.begins) : _at(segment, statement.offset)].tobytes()
        assert ends_of_groups(group, details_of(segment).crc_length) == 1, statement.sql
    return statements


def _at(segment: Segment, offset: int) -> int:
    return next((cut.at for cut in segment.cuts if cut.offset == offset), 0)


def ends_of_groups(raw: bytes, crc_length: int) -> int:
    """How many GTIDs or BEGINs a stretch holds, or one for a statement that stands alone."""
    at, opened = 0, 0
    while at < len(raw):
        size, kind = int.from_bytes(raw[at + 9 : at + 13], "little"), raw[at + 4]
        text = raw[at : at + size - crc_length]
        opened += kind in (33, 34, 162) or (kind == 2 and text.endswith(b"BEGIN") and raw[4] == 2)
        at += size
    return opened or 1


SERVERS = {
    "mariadb": ("fresh_mariadb", {}),
    "mariadb compressed": ("fresh_mariadb", {"log_bin_compress": "ON", "log_bin_compress_min_len": 10}),
    "mysql8": ("fresh_mysql8", {}),
    "mysql8 compressed": (
        "fresh_mysql8",
        {"binlog_transaction_compression": "ON", "gtid_mode": "OFF", "enforce_gtid_consistency": "OFF", "binlog_checksum": "NONE"},
    ),
    "mysql56": ("fresh_mysql56", {}),
}


@pytest.mark.parametrize("name", SERVERS)
def test_statements_by_the_index_are_those_that_the_decoder_finds(
    name: str, request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path
) -> None:
    fixture, settings = SERVERS[name]
    server: Server = request.getfixturevalue(fixture)(**settings)
    captured, other = database(server), database(server)
    start = now(server)
    run_mixture(server, captured, other, seed=len(name))
    until = now(server)
    for segment_bytes in (64 << 20, 20_000, 1):
        folder = tmp_path / str(segment_bytes)
        capture_until(options(server), folder, start, until, server_id=SERVER_ID, segment_bytes=segment_bytes)
        statements = compare(server, folder, start, lambda table: table.database == captured)
    assert len(statements) > 100
    alone = [statement for statement in statements if statement.event is None and statement.ends == statement.offset]
    beside_rows = [statement for statement in statements if statement.event is not None]
    assert len(alone) > 80
    assert all(statement.ends < statement.offset for statement in beside_rows)
    created = [statement.event for statement in beside_rows if statement.sql.startswith("CREATE")]
    assert len(created) > 2
    # Their rows follow. What is text behind rows, in a transaction of both, has them before it.
    assert set(created) == {0}
    behind = [statement.event for statement in beside_rows if statement.sql.startswith("INSERT")]
    assert set(behind) == {1}


def test_an_alter_that_is_logged_twice_takes_effect_once_and_only_if_it_ends_well(
    fresh_mariadb: Fresh, database: Callable[[Server], str], tmp_path: Path
) -> None:
    server = fresh_mariadb()
    name = database(server)
    start = now(server)
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
        cursor.execute("SET SESSION binlog_alter_two_phase = 1")
        cursor.execute("ALTER TABLE t ADD a INT, ALGORITHM=COPY")
        with pytest.raises(pymysql.MySQLError):
            cursor.execute("ALTER TABLE t ADD b INT, ADD UNIQUE (v)")
        cursor.execute("SHOW BINLOG EVENTS")
        assert sum("ALTER TABLE" in str(row[5]) for row in cursor.fetchall()) == 4
    until = now(server)
    capture_until(options(server), tmp_path, start, until, server_id=SERVER_ID)
    found = [statement for _, statement in read_all(list_segments(tmp_path))]
    assert [statement.sql for statement in found] == [
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "ALTER TABLE t ADD a INT, ALGORITHM=COPY",
    ]
    (created,) = changes_of(
        found[0], schemas=lambda _: None, captured=lambda _: True, defaults={}, server=server_of(list_segments(tmp_path)[0])
    )
    assert isinstance(created, CreateTable)
    assert created.table.id == TableId(name, "t")


def test_damage_in_a_statements_group_is_found(mariadb: Server, database: Callable[[Server], str], tmp_path: Path) -> None:
    name = database(mariadb)
    start = now(mariadb)
    with mariadb.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE u AS SELECT 1 AS a")
    capture_until(options(mariadb), tmp_path, start, now(mariadb), server_id=SERVER_ID)
    (segment,) = list_segments(tmp_path)
    assert [statement.event for statement in read_flagged_groups(segment)[0]] == [None, 0]
    whole = segment.data_path.read_bytes()
    for at in range(0, segment.cuts[-1].at, 3):
        for bit in (0, 7):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            segment.data_path.write_bytes(damaged)
            with pytest.raises(Corrupt):
                read_flagged_groups(segment)[0]
