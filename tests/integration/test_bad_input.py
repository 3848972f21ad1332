"""`snowmelt run` where something is wrong: one clear line and nothing lost. A run after the mending goes on, and the lake is the source.

What is wrong with a description, an unreachable server, wrong passwords, Ctrl-C and two runs at once are in `test_run.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from snowmelt import budgets
from snowmelt.cli.main import main
from tests.integration.dump import await_that
from tests.integration.running import lake_rows, source_rows
from tests.kit.servers import Server, log_end, start_mariadb

ROWS = 600
WORD = "hunter2"
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_mariadb(tmp_path_factory.mktemp("bad"))
    yield started
    started.discard()


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_mariadb(tmp_path_factory.mktemp("other"))
    yield started
    started.discard()


class Shop:
    """A database of two tables, a user who may do what is needed, and a pipeline's description."""

    def __init__(self, server: Server, name: str, folder: Path, snowmelt: Command) -> None:
        self.server = server
        self.name = name
        self.folder = folder
        self._snowmelt = snowmelt
        self.file = folder / "pipeline.yaml"
        (folder / "password").write_text(WORD)
        self.execute(
            f"CREATE TABLE {name}.orders (id INT NOT NULL PRIMARY KEY, k INT, v VARCHAR(50))",
            f"CREATE TABLE {name}.names (id INT NOT NULL PRIMARY KEY, v VARCHAR(50))",
            f"INSERT INTO {name}.orders SELECT seq, seq, CONCAT('order ', seq) FROM {name}.seq_1_to_{ROWS}",
            f"INSERT INTO {name}.names SELECT seq, CONCAT('name ', seq) FROM {name}.seq_1_to_{ROWS}",
            "SET sql_log_bin = 0",
            f"CREATE OR REPLACE USER 'melt'@'127.0.0.1' IDENTIFIED BY '{WORD}'",
            "GRANT SELECT, RELOAD, LOCK TABLES, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'melt'@'127.0.0.1'",
        )
        self.describe()

    def describe(self, *, server: Server | None = None, pipeline: str = "shop", state: str = "state", warehouse: str = "lake") -> None:
        server = server or self.server
        self.file.write_text(
            f"""\
source:
  type: mysql
  host: {server.host}
  port: {server.port}
  username: melt
  password: file:{self.folder / "password"}
  tls: disabled
  tables: ["{self.name}.*"]
sink:
  type: paimon
  warehouse: {warehouse}
routes:
  - {{source: "{self.name}.*", target: "ods.{{table}}"}}
pipeline:
  name: {pipeline}
  state: {state}
  interval: 200ms
  rows_per_chunk: 200
"""
        )

    def execute(self, *statements: str) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def change(self) -> None:
        """Changes that are lost if any part of the log is."""
        for table in ("orders", "names"):
            self.execute(
                f"UPDATE {self.name}.{table} SET v = CONCAT(v, '!') WHERE MOD(id, 3) = 0",
                f"DELETE FROM {self.name}.{table} WHERE MOD(id, 50) = 7",
                f"INSERT INTO {self.name}.{table} (id, v) SELECT MAX(id) + 1, 'new' FROM {self.name}.{table}",
            )

    def goes_on(self, *options: str) -> None:
        """A run comes to where the lake is the source."""
        code, said = self._snowmelt("run", str(self.file), "--until-current", *options)
        assert (code, "done: current" in said, "Traceback" in said) == (0, True, False), said
        self.compare()

    def fails(self, *words: str, code: int = 1) -> str:
        """A run ends with one line that has these words; what it says in all."""
        ended, said = self._snowmelt("run", str(self.file), "--until-current")
        assert ended == code, said
        last = said.splitlines()[-1]
        assert last.startswith("snowmelt: "), said
        assert said.count("snowmelt: ") == 1, said
        for word in words:
            assert word in said, said
        for absent in ("Traceback", WORD, self.server.password):
            assert absent not in said, said
        assert len(last) < 700, last
        return said

    def sets_aside(self, *words: str) -> None:
        """A run goes on with the other tables and says by these words which one it leaves alone."""
        code, said = self._snowmelt("run", str(self.file), "--until-current")
        assert (code, "done: current" in said, "Traceback" in said) == (4, True, False), said
        for word in ("set aside", *words):
            assert word in said, said

    def check(self) -> tuple[int, str]:
        return self._snowmelt("check", str(self.file))

    def status(self) -> tuple[int, str]:
        return self._snowmelt("status", str(self.file))

    def compare(self) -> None:
        for table in ("orders", "names"):
            assert lake_rows(self.folder, f"ods.{table}") == source_rows(self.server, f"{self.name}.{table}"), table


@pytest.fixture
def snowmelt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], spark: Any) -> Command:
    """A command in this process, on the Spark session that tests share; exit code and what was said."""

    @contextmanager
    def shared(*_: object, **__: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr("snowmelt.supervise.session.spark_session", shared)
    monkeypatch.setattr("snowmelt.supervise.restarts.Interrupts.install", lambda _: None)
    # What passes by itself is tried again at once and once, so that it is seen how it ends.
    monkeypatch.setattr("snowmelt.budgets.DRIVERS", replace(budgets.DRIVERS, tries_max=2))

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["snowmelt", *arguments])
        capfd.readouterr()
        try:
            main()
            code: object = 0
        except SystemExit as ended:
            code = ended.code
        out, err = capfd.readouterr()
        return int(str(code or 0)), out + err

    return call


@pytest.fixture
def shop(server: Server, database: Callable[[Server], str], tmp_path: Path, snowmelt: Command) -> Shop:
    return Shop(server, database(server), tmp_path, snowmelt)


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A small disk of its own."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as grown:
        while True:
            grown.write(b"x" * 4096)


# ---- the database


@pytest.mark.parametrize(
    ("wrong", "right", "words"),
    [
        ("REVOKE REPLICATION SLAVE ON *.* FROM 'melt'@'127.0.0.1'", "GRANT REPLICATION SLAVE ON *.* TO 'melt'@'127.0.0.1'", "GRANT "),
        ("SET GLOBAL binlog_format = 'STATEMENT'", "SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL binlog_format = 'ROW'"),
        ("SET GLOBAL binlog_row_image = 'MINIMAL'", "SET GLOBAL binlog_row_image = 'FULL'", "SET GLOBAL binlog_row_image = 'FULL'"),
    ],
    ids=["grant", "format", "image"],
)
def test_a_server_that_is_not_set_right_is_refused_until_it_is(shop: Shop, wrong: str, right: str, words: str) -> None:
    shop.goes_on()
    shop.change()
    shop.execute("SET sql_log_bin = 0", wrong)
    try:
        shop.fails("error: ", words, "errors: ")
    finally:
        shop.execute("SET sql_log_bin = 0", right)
    shop.change()
    shop.goes_on()


def test_a_log_that_the_server_has_purged_before_it_was_read_is_told_with_what_is_left_to_do(shop: Shop) -> None:
    shop.goes_on()
    before = lake_rows(shop.folder, "ods.orders")
    shop.change()
    shop.execute("FLUSH BINARY LOGS")
    with shop.server.connect() as connection, connection.cursor() as cursor:
        newest, _ = log_end(cursor)

        def purged() -> bool:
            # What somebody still reads stays, and the server finds out that he is gone when it has something to send.
            shop.execute(f"UPDATE {shop.name}.orders SET v = UUID() WHERE id = 1")
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
            cursor.execute("SHOW BINARY LOGS")
            return bool(cursor.fetchall()[0][0] == newest)

        await_that(purged)
    shop.change()
    shop.fails("hint: ")
    assert lake_rows(shop.folder, "ods.orders") == before
    shop.describe(state="another-state", warehouse="another/lake")
    (shop.folder / "another").mkdir()
    shop.folder = shop.folder / "another"
    shop.goes_on()


def test_a_log_that_was_purged_while_nobody_ran_and_held_nothing_new_stops_nobody(shop: Shop) -> None:
    """Not one segment was captured yet: the chain's head tells which transactions came before it."""
    shop.goes_on()
    shop.execute("FLUSH BINARY LOGS")
    with shop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        newest = cursor.fetchone()[0]

        def purged() -> bool:
            cursor.execute(f"PURGE BINARY LOGS TO '{newest}'")
            cursor.execute("SHOW BINARY LOGS")
            return bool(cursor.fetchall()[0][0] == newest)

        await_that(purged)
    shop.change()
    shop.goes_on()


def test_tables_that_are_emptied_and_dropped_between_two_runs_stop_nobody(shop: Shop) -> None:
    shop.execute(f"CREATE TABLE {shop.name}.short_lived (id INT NOT NULL PRIMARY KEY)", f"INSERT INTO {shop.name}.short_lived VALUES (1)")
    shop.goes_on()
    shop.execute(f"TRUNCATE TABLE {shop.name}.orders", f"INSERT INTO {shop.name}.orders VALUES (5, 5, 'five')")
    shop.execute(f"DROP TABLE {shop.name}.short_lived", f"DROP TABLE {shop.name}.names")
    shop.execute(f"CREATE TABLE {shop.name}.names (id INT NOT NULL PRIMARY KEY, v VARCHAR(50))")
    shop.execute(f"INSERT INTO {shop.name}.names VALUES (1, 'other')")
    shop.goes_on()


def test_a_table_without_a_key_stops_the_first_run_and_no_later_one(shop: Shop) -> None:
    shop.execute(f"CREATE TABLE {shop.name}.loose (v INT)")
    shop.fails("error: tables without a key can't be kept as rows", "loose", "mode: changelog")
    shop.execute(f"DROP TABLE {shop.name}.loose")
    shop.goes_on()
    shop.execute(f"CREATE TABLE {shop.name}.loose (v INT)", f"INSERT INTO {shop.name}.loose VALUES (1)")
    shop.change()
    for _ in range(2):
        shop.goes_on()


def test_a_statement_that_the_lake_can_not_hold_is_told_and_leaves_the_lake_as_it_was(shop: Shop) -> None:
    shop.goes_on()
    shop.change()
    shop.goes_on()
    before = lake_rows(shop.folder, "ods.orders")
    shop.execute(f"ALTER TABLE {shop.name}.orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)")
    for _ in range(2):
        shop.sets_aside("ADD PRIMARY KEY (id, v)", "ods.orders", "hint: start with --recopy")
    assert lake_rows(shop.folder, "ods.orders") == before
    shop.goes_on("--recopy", f"{shop.name}.orders")


# ---- before it starts


def test_folders_that_can_not_be_made_are_told_before_anything_starts(shop: Shop) -> None:
    inside = shop.folder / "password" / "lake"
    shop.describe(state="/proc/nowhere/state", warehouse=str(inside))
    said = shop.fails("errors: 2")
    assert "error: the state's folder /proc/nowhere/state can't be made: No such file or directory (hint: who owns it" in said
    assert f"error: the warehouse's folder {inside} can't be made: Not a directory (hint: who owns it" in said
    shop.describe()
    shop.goes_on()


def test_check_leaves_nothing_behind_and_finds_what_a_state_forbids(shop: Shop) -> None:
    before = sorted(shop.folder.iterdir())
    code, said = shop.check()
    assert (code, "ready to be captured" in said) == (0, True), said
    assert sorted(shop.folder.iterdir()) == before
    shop.goes_on()
    code, said = shop.check()
    assert (code, "ready to be captured" in said) == (0, True), said
    described = shop.file.read_text()
    for now, words in (
        (described.replace("ods.{table}", "other.{table}"), "goes to another target than before"),
        (described.replace(f"{shop.name}.*", f"{shop.name}.orders"), f"not captured any more: {shop.name}.names"),
    ):
        shop.file.write_text(now)
        code, said = shop.check()
        assert (code, words in said) == (2, True), said


# ---- the store


def test_a_store_that_is_lost_or_older_than_the_lake_is_refused_and_the_right_one_goes_on(shop: Shop) -> None:
    state = shop.folder / "state"
    shop.goes_on()
    shutil.copytree(state, shop.folder / "older")
    shop.change()
    shop.goes_on()
    shutil.copytree(state, shop.folder / "right")
    shop.change()
    shutil.rmtree(state)
    shop.fails("the lake is ahead of the store", "hint: ")
    shutil.rmtree(state)
    shutil.copytree(shop.folder / "older", state)
    shop.fails("the lake is ahead of the store", "hint: ")
    shutil.rmtree(state)
    shutil.copytree(shop.folder / "right", state)
    shop.goes_on()


def forge(record: Path, victim: Path) -> None:
    """A record of the relay names a file outside of the state; its hash, which has no key, is right."""
    header, _, body = record.read_bytes().partition(b"\n")
    body = re.sub(rb'"name":"[^"]*"', f'"name":"{victim}.json"'.encode(), body, count=1)
    head = json.loads(header)
    head |= {"bytes": len(body), "sha256": hashlib.sha256(f"{head['kind']} {head['version']}\n".encode() + body).hexdigest()}
    record.write_bytes(json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body)


def test_a_forged_record_deletes_nothing_outside_of_the_state(shop: Shop) -> None:
    shop.goes_on()
    shop.change()
    victim = shop.folder / "precious" / "000000000002"
    victim.parent.mkdir()
    for ending in ("json", "log"):
        victim.with_suffix(f".{ending}").write_text("precious")
    record = sorted((shop.folder / "state" / "relay").iterdir())[-1]
    before = record.read_bytes()
    forge(record, victim)
    shop.fails("a record of the relay names no segment of its state")
    assert [victim.with_suffix(f".{ending}").read_text() for ending in ("json", "log")] == ["precious"] * 2
    forge(record, Path("without digits"))
    code, said = shop.status()
    assert code in (0, 1)
    assert "Traceback" not in said
    assert "unexpected error" not in said
    record.write_bytes(before)
    shop.goes_on()


def test_a_copy_of_a_state_asks_whose_it_is_and_leaves_the_original_alone(shop: Shop) -> None:
    shop.goes_on()
    shop.change()
    original = shop.folder / "state"
    shutil.copytree(original, shop.folder / "copy")
    files = {path: path.stat().st_mtime_ns for path in original.rglob("*")}
    shop.describe(state="copy")
    shop.fails("was it moved or copied?", str(original.resolve()), "--adopt-state", code=2)
    code, said = shop.check()
    assert (code, "was it moved or copied?" in said) == (2, True), said
    assert {path: path.stat().st_mtime_ns for path in original.rglob("*")} == files
    # The one that is adopted goes on with segments of its own.
    shop.goes_on("--adopt-state")
    assert {path: path.stat().st_mtime_ns for path in original.rglob("*")} == files
    shop.change()
    shop.goes_on()
    original.rename(shop.folder / "gone")
    (shop.folder / "copy").rename(original)
    shop.describe()
    shop.fails("was it moved or copied?", str((shop.folder / "copy").resolve()), code=2)
    shop.change()
    shop.goes_on("--adopt-state")


def test_a_store_of_another_server_is_refused(shop: Shop, other_server: Server) -> None:
    shop.goes_on()
    with other_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {shop.name}")
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"CREATE OR REPLACE USER 'melt'@'127.0.0.1' IDENTIFIED BY '{WORD}'")
        cursor.execute("GRANT ALL ON *.* TO 'melt'@'127.0.0.1'")
        cursor.execute("SET sql_log_bin = 1")
        for table in ("orders", "names"):
            cursor.execute(f"CREATE TABLE {shop.name}.{table} (id INT NOT NULL PRIMARY KEY, k INT, v VARCHAR(50))")
    before = lake_rows(shop.folder, "ods.orders")
    shop.describe(server=other_server)
    shop.fails("the state is of another server", "hint: ")
    assert lake_rows(shop.folder, "ods.orders") == before
    shop.describe()
    shop.change()
    shop.goes_on()


def test_a_store_of_another_pipeline_is_refused(shop: Shop) -> None:
    shop.goes_on()
    shop.describe(pipeline="another")
    shop.fails("the state is another pipeline's", "hint: ", code=2)
    shop.describe()
    shop.change()
    shop.goes_on()


@pytest.mark.timeout(400)
def test_a_disk_that_is_full_under_the_store_is_told_and_loses_nothing(shop: Shop) -> None:
    with disk(shop.folder / "small", "6m") as small:
        shop.describe(state="small/state")
        shop.goes_on()
        shop.change()
        fill_up(small / "ballast")
        shop.fails("full", "hint: ")
        (small / "ballast").unlink()
        shop.change()
        shop.goes_on()


# ---- the lake


@pytest.mark.timeout(400)
def test_a_lake_that_can_not_be_written_is_told_and_loses_nothing(shop: Shop) -> None:
    with disk(shop.folder / "lake", "50m") as lake:
        shop.goes_on()
        shop.change()
        subprocess.run(["mount", "-o", "remount,ro", str(lake)], check=True)
        shop.fails("hint: ", code=2)
        subprocess.run(["mount", "-o", "remount,rw", str(lake)], check=True)
        shop.change()
        shop.goes_on()


def test_a_lake_table_that_is_gone_is_told_though_nothing_changed(shop: Shop) -> None:
    shop.goes_on()
    (shop.folder / "lake" / "ods.db" / "orders").rename(shop.folder / "kept")
    shop.sets_aside(f"a lake table is not there: ods.orders in {shop.folder / 'lake'}", "hint: start with --recopy")
    shop.goes_on("--recopy", f"{shop.name}.orders")
    shop.describe(warehouse="elsewhere")
    shop.fails("a lake table is not there", str(shop.folder / "elsewhere"))
    shop.describe()
    shop.change()
    shop.goes_on()
    # What is left of a table that the database has no more is nobody's business.
    shop.execute(f"CREATE TABLE {shop.name}.brief (id INT NOT NULL PRIMARY KEY)", f"INSERT INTO {shop.name}.brief VALUES (1)")
    shop.goes_on()
    shop.execute(f"DROP TABLE {shop.name}.brief")
    shop.goes_on()
    shutil.rmtree(shop.folder / "lake" / "ods.db" / "brief")
    shop.goes_on()


def test_a_lake_table_that_holds_rows_of_somebody_else_is_not_touched(shop: Shop) -> None:
    shop.goes_on()
    before = lake_rows(shop.folder, "ods.orders")
    shop.change()
    shop.describe(state="another-state")
    shop.fails("hint: ", code=1)
    assert lake_rows(shop.folder, "ods.orders") == before
