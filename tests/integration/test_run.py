"""`snowmelt run` as a user meets it: a real server, a real Spark, a file, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snowmelt.cli.main import main
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.kit.processes import Command, children_of
from tests.kit.servers import Fresh, Server

ROWS = 4_000

Database = Callable[[Server], str]


def run(server: Server, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def shop(mariadb: Server, database: Database) -> str:
    name = database(mariadb)
    run(
        mariadb,
        f"CREATE TABLE {name}.orders (id INT NOT NULL PRIMARY KEY, v VARCHAR(50))",
        f"CREATE TABLE {name}.names (name VARCHAR(50) NOT NULL PRIMARY KEY, v INT)",
        f"CREATE TABLE {name}.tmp_left_out (id INT NOT NULL PRIMARY KEY)",
    )
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name}.orders VALUES (%s, %s)", [(i, f"order {i}") for i in range(ROWS)])
        cursor.executemany(f"INSERT INTO {name}.names VALUES (%s, %s)", [(f"Näme {i}", i) for i in range(300)])
    return name


def describe(folder: Path, server: Server, name: str, tables: str = "[{name}.*]", extra: str = "") -> Path:
    path = folder / "pipeline.yaml"
    path.write_text(
        f"""\
source:
  type: mysql
  host: {server.host}
  port: {server.port}
  username: {server.user}
  password: ${{RUN_PASSWORD}}
  tables: {tables.format(name=name)}
  exclude: ["*.tmp_*"]
sink:
  type: paimon
  warehouse: lake
routes:
  - {{source: "{name}.orders", target: ods.orders}}
  - {{source: "{name}.*", target: "ods.the_{{table}}"}}
pipeline:
  name: test-run
  state: state
  interval: 300ms
  rows_per_chunk: 1000
{extra}"""
    )
    return path


def begun(path: Path, *arguments: str, password: str) -> Command:
    """A `snowmelt run` under way."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    environment["RUN_PASSWORD"] = password
    command = ["run", str(path), "--master", "local[2]", *arguments]
    # In another folder than the file's: its relative paths must not be this one's.
    return Command(*command, folder=path.parent, cwd=path.parent.parent, environment=environment)


Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(path, …)`; whatever a test leaves running is ended."""
    running: list[Command] = []

    def begin(path: Path, *arguments: str, password: str) -> Command:
        running.append(begun(path, *arguments, password=password))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


@contextmanager
def under_load(server: Server, name: str) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            number = 0
            while not stop.wait(0.01):
                number += 1
                cursor.execute(f"REPLACE INTO {name}.orders VALUES (%s, 'changed')", (number * 7 % (2 * ROWS),))
                cursor.execute(f"UPDATE {name}.names SET v = v + 1 WHERE name = %s", (f"Näme {number % 300}",))
                cursor.execute(f"DELETE FROM {name}.orders WHERE id = %s", (number * 11 % ROWS,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def lake_rows(folder: Path, target: str) -> list[tuple[object, ...]]:
    table = PaimonSink(str(folder / "lake"), user="reader").table(target)
    builder = table.new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits()).drop(["_seq"])
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)


def source_rows(server: Server, table: str) -> list[tuple[object, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(cursor.fetchall(), key=repr)


def check_lake(server: Server, name: str, folder: Path) -> None:
    assert lake_rows(folder, "ods.orders") == source_rows(server, f"{name}.orders")
    assert lake_rows(folder, "ods.the_names") == source_rows(server, f"{name}.names")


# ---- what goes well


@pytest.mark.timeout(600)
def test_runs_that_are_interrupted_and_taken_over_end_with_what_the_database_has(
    mariadb: Server, shop: str, tmp_path: Path, start: Start
) -> None:
    path = describe(tmp_path, mariadb, shop)
    with under_load(mariadb, shop):
        # Ctrl-C in the middle of the copy.
        interrupted = start(path, password=mariadb.password)
        interrupted.wait_for("snapshotting")
        interrupted.signal(signal.SIGINT)
        code, said = interrupted.end()
        assert code == 0, said
        assert "ending after the epoch under way" in said
        assert said.splitlines()[-1].startswith("done: ended as asked, epoch ")
        assert "Traceback" not in said
        older = start(path, password=mariadb.password)
        older.wait_for("epoch ")
    # Two at once: the newer takes over, whatever the older has under way.
    newer = start(path, "--until-current", "--json", password=mariadb.password)
    code, said = older.end()
    assert code == 1, said
    assert said.splitlines()[-1].startswith("snowmelt: a newer driver ")
    assert "Traceback" not in said
    code, said = newer.end()
    assert code == 0, said
    told = [json.loads(line) for line in said.splitlines()]
    assert [told[0]["event"], told[-1]["event"]] == ["preflight", "done"]
    assert told[0]["targets"] == {f"{shop}.orders": "ods.orders", f"{shop}.names": "ods.the_names"}
    assert {table["phase"] for table in told[-2]["tables"].values()} == {"live"}
    check_lake(mariadb, shop, tmp_path)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or mariadb.password.encode() not in file.read_bytes(), f"{file.name} holds the password"


# ---- what goes wrong, before Spark is started


@pytest.fixture
def snowmelt(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`snowmelt(password, "run", …)` in this process, which need not be started first; exit code and what was said."""

    def call(password: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setenv("RUN_PASSWORD", password)
        monkeypatch.setattr(sys, "argv", ["snowmelt", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out + err

    return call


Call = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(
    ("change", "by", "code", "lines"),
    [
        ("username: ", "username: nobody_", 2, ["snowmelt: the database refuses access: nobody_root@", "check username, password"]),
        ("${RUN_PASSWORD}", "${RUN_ABSENT}", 2, ["snowmelt: environment variable RUN_ABSENT is not set"]),
        ("${RUN_PASSWORD}", "hunter2", 2, ["pipeline.yaml:6: source.password: a secret must be given by reference"]),
        ("  port: ", "  prot: ", 2, ["pipeline.yaml:4: source.prot: no such key", "(hint: did you mean port?)"]),
        ("tables: [", "tables: [shop.absent, ", 1, ["error: no table matches shop.absent (hint: check its spelling", "errors: 1"]),
        ("ods.the_{table}", "ods.orders", 1, ["error: two tables would go to ods.orders: ", "errors: 1"]),
    ],
)
def test_a_wrong_description_ends_with_a_line_that_says_what_to_do(
    mariadb: Server, shop: str, tmp_path: Path, snowmelt: Call, change: str, by: str, code: int, lines: list[str]
) -> None:
    path = describe(tmp_path, mariadb, shop)
    assert change in path.read_text()
    path.write_text(path.read_text().replace(change, by))
    ended, said = snowmelt(mariadb.password, "run", str(path))
    assert ended == code, said
    for line in lines:
        assert line in said
    for absent in ("Traceback", "hunter2", mariadb.password):
        assert absent not in said
    assert not (tmp_path / "state").exists()


def test_a_wrong_password_is_told_and_not_repeated(mariadb: Server, shop: str, tmp_path: Path, snowmelt: Call) -> None:
    code, said = snowmelt("hunter2", "run", str(describe(tmp_path, mariadb, shop)))
    assert (code, said.count("snowmelt: the database refuses access: root@")) == (2, 1), said
    assert "hunter2" not in said


def test_json_tells_findings_and_failures_too(mariadb: Server, shop: str, tmp_path: Path, snowmelt: Call) -> None:
    run(mariadb, f"CREATE TABLE {shop}.keyless (v INT)")
    path = describe(tmp_path, mariadb, shop)
    code, said = snowmelt(mariadb.password, "run", str(path), "--json")
    assert code == 1, said
    findings = json.loads(said.splitlines()[0])["findings"]
    assert [(one["level"], one["tables"]) for one in findings if one["code"] == "no-key"] == [("error", [f"{shop}.keyless"])]
    code, said = snowmelt("hunter2", "run", str(path), "--json")
    assert code == 2, said
    failed = json.loads(said.splitlines()[0])
    assert (failed["event"], failed["kind"], failed["fact"]) == ("failed", "InvalidConfig", "the database refuses access")


def test_a_server_without_a_log_is_refused_with_the_setting_to_change(fresh_mariadb: Fresh, tmp_path: Path, snowmelt: Call) -> None:
    server = fresh_mariadb(log_bin=False)
    run(server, "CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    path = describe(tmp_path, server, "shop")
    code, said = snowmelt(server.password, "run", str(path))
    assert code == 1, said
    assert "error: the server writes no binary log (hint: log_bin = binlog, then restart the server)" in said
    assert said.splitlines()[-1].endswith("can't be captured as it is, errors: 1")
    server.stop()
    code, said = snowmelt(server.password, "run", str(path))
    assert (code, said.count("snowmelt: the database can't be reached")) == (1, 1), said


def test_spark_that_does_not_start_says_what_it_lacks(
    mariadb: Server, shop: str, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    code, said = start(describe(tmp_path, mariadb, shop), password=mariadb.password).end()
    assert code == 2, said
    last = said.splitlines()[-1]
    assert last.startswith("snowmelt: Spark needs Java, and there is none: JAVA_HOME is ")
    assert "install Java 17" in last
    assert "starting Spark" not in said


def test_workers_whose_python_lacks_the_package_end_a_run_with_one_line(mariadb: Server, shop: str, tmp_path: Path, start: Start) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    path = describe(tmp_path, mariadb, shop, extra=f"spark:\n  spark.pyspark.python: {bare}/bin/python\n")
    running = start(path, password=mariadb.password)
    running.wait_for("starting Spark")
    code, said = running.end()
    assert code == 2, said
    last = said.splitlines()[-1]
    assert last.startswith("snowmelt: a module is not installed where Spark's workers run: ")
    assert "let PYSPARK_PYTHON name the Python that has it" in last
    assert len(said.splitlines()) == 3, "it was tried more than once"
    assert not any((tmp_path / "state" / "generation").glob("*")), "another driver was fenced by a mistake"


def test_a_jvm_that_dies_ends_a_run_at_once_with_one_line(mariadb: Server, shop: str, tmp_path: Path, start: Start) -> None:
    path = describe(tmp_path, mariadb, shop)
    running = start(path, password=mariadb.password)
    running.wait_for("epoch ")
    jvms = [pid for pid in children_of(running.process.pid) if b"org.apache.spark" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(jvms) == 1
    os.kill(jvms[0], signal.SIGKILL)
    killed = time.monotonic()
    code, said = running.end()
    assert time.monotonic() - killed < 10
    assert code == 1, said
    last = said.splitlines()[-1]
    assert last.startswith("snowmelt: Spark's JVM ended (hint: start again: nothing is lost.")
    assert "Traceback" not in said
    assert "a new driver starts" not in said
    code, said = start(path, "--until-current", password=mariadb.password).end()
    assert code == 0, said
    check_lake(mariadb, shop, tmp_path)


def test_what_nobody_foresaw_is_a_line_and_a_traceback_only_when_asked_for(
    mariadb: Server, shop: str, tmp_path: Path, snowmelt: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero\nand more")

    monkeypatch.setattr("snowmelt.supervise.session.spark_session", break_down)
    monkeypatch.setattr("snowmelt.supervise.restarts.Interrupts.install", lambda _: None)
    path = describe(tmp_path, mariadb, shop)
    code, said = snowmelt(mariadb.password, "run", str(path))
    told = "snowmelt: an unexpected error: ZeroDivisionError: division by zero (hint: --debug shows where it comes from)"
    assert (code, said.splitlines()[-1], "Traceback" in said) == (1, told, False)
    code, said = snowmelt(mariadb.password, "run", str(path), "--debug")
    assert (code, said.splitlines()[-1], "Traceback" in said) == (1, told, True)


def test_help_teaches_with_an_example(snowmelt: Call) -> None:
    code, said = snowmelt("", "run", "--help")
    assert code == 0
    for words in ("Example", "snowmelt run pipeline.yaml", "password: ${DB_PASSWORD}", "--until-current", "--master", "--json"):
        assert words in said
