"""A password is nowhere but where the user has put it: not in what a run stores, logs, shows on Spark's pages or says when it fails.

The password is a word that occurs once in the world, so that a search for it proves something. What a user chooses to put into the
environment is in the environment of every process of the run; into a command line it never comes.
"""

from __future__ import annotations

import base64
import json
import os
import pickletools
import secrets
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from snowmelt.engine.driver.signs import SIGN
from snowmelt.engine.driver.state import DONE, INTENT, OWNER, SEGMENT_RECORD, SHAPE, SUMMARY
from snowmelt.engine.failpoints import CHUNK_READ, FILES_STAGED
from snowmelt.segments import list_segments, read_segment
from snowmelt.store.generations import GENERATION
from snowmelt.store.records import RecordKind, unpack
from tests.kit.certificates import make_certificates
from tests.kit.processes import Command, free_port
from tests.kit.servers import Fresh, Server
from tests.kit.waiting import until

ROWS = 2_000
RUN_S_MAX = 240
KINDS: dict[str, RecordKind[Any]] = {
    "owner": OWNER,
    "generation": GENERATION,
    "intent": INTENT,
    "done": DONE,
    "summary": SUMMARY,
    "relay": SEGMENT_RECORD,
    "shape": SHAPE,
    "sign": SIGN,
}


def forms(word: str) -> list[bytes]:
    """The word as it is and as it might be disguised."""
    plain = word.encode()
    return [plain, plain[::-1], plain.hex().encode(), base64.b64encode(plain).rstrip(b"="), word.encode("utf-16-le")]


def holds(content: bytes, word: str) -> bool:
    return any(form in content for form in forms(word))


@pytest.fixture(params=["plain", "tls"])
def described(request: pytest.FixtureRequest, fresh_mariadb: Fresh, tmp_path: Path) -> tuple[Server, str, Path]:
    """A server with a user of such a password, and a pipeline of it: by the environment in the clear, by a file with TLS."""
    word = f"snow{secrets.token_hex(12)}melt"
    certificates = make_certificates(tmp_path / "certificates", "127.0.0.1")
    server = fresh_mariadb(ssl_ca=str(certificates.ca), ssl_cert=str(certificates.cert), ssl_key=str(certificates.key))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "password").write_text(word)
    home = tmp_path / "home"
    home.mkdir()
    if request.param == "tls":
        access = f"password: file:{tmp_path}/secret/password\n  tls: verify-identity\n  tls_ca: {certificates.ca}"
    else:
        access = "password: ${RUN_PASSWORD}\n  tls: disabled"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v VARCHAR(50))")
        cursor.executemany("INSERT INTO shop.orders VALUES (%s, %s)", [(i, f"order {i}") for i in range(ROWS)])
        # Else the word would be in the log, as the user's own statement.
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"CREATE USER 'melt'@'127.0.0.1' IDENTIFIED BY '{word}'")
        cursor.execute("GRANT SELECT, RELOAD, LOCK TABLES, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'melt'@'127.0.0.1'")
    (home / "pipeline.yaml").write_text(
        f"""\
source:
  type: mysql
  host: {server.host}
  port: {server.port}
  username: melt
  {access}
  tables: [shop.*]
sink:
  type: paimon
  warehouse: lake
pipeline:
  name: secrets
  state: state
  interval: 300ms
  rows_per_chunk: 500
"""
    )
    return server, word, home


class Run(Command):
    """`snowmelt run` with all that Spark can tell of itself."""

    def __init__(self, home: Path, password: str, *arguments: str, **environment: str) -> None:
        self.port = free_port()
        (home / "events").mkdir(exist_ok=True)
        (home / "conf").mkdir(exist_ok=True)
        (home / "conf" / "spark-defaults.conf").write_text(
            f"spark.eventLog.enabled true\nspark.eventLog.dir {home / 'events'}\nspark.eventLog.logStageExecutorMetrics true\n"
            f"spark.ui.port {self.port}\nspark.local.dir {home / 'local'}\n"
        )
        wanted = {"RUN_PASSWORD": password, "SPARK_CONF_DIR": str(home / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = ["run", str(home / "pipeline.yaml"), "--master", "local[2]", "--debug", *arguments]
        super().__init__(*command, folder=home, cwd=home, environment=os.environ | wanted | environment, seconds_max=RUN_S_MAX)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            content: bytes = answer.read()
            return content

    def processes(self) -> list[Path]:
        """What belongs to the session that was started for it."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            except OSError:
                continue
            if session == self.process.pid:
                found.append(folder)
        return found


def bytes_in(value: object) -> Iterator[bytes]:
    """Every value of bytes in a record."""
    if isinstance(value, bytes):
        yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from bytes_in(getattr(value, one.name))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from bytes_in(part)
    elif isinstance(value, dict):
        yield from bytes_in([*value.keys(), *value.values()])


def is_pickle(content: bytes) -> bool:
    try:
        read = [operation.name for operation, _, _ in pickletools.genops(content)]
    except ValueError:
        return False
    return read[0] == "PROTO"


def check_state(folder: Path) -> None:
    """Every object is a record of ours or a segment of the log, and none holds something that only Python can read."""
    known = {path for segment in list_segments(folder / "log") for path in (segment.index_path, segment.index_path.with_suffix(".log"))}
    assert known
    for segment in list_segments(folder / "log"):
        read_segment(segment.index_path)
    seen = set()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        assert not is_pickle(file.read_bytes()), file
        if file in known or file.name in ("lock", ".lock"):
            continue
        kind = KINDS[file.relative_to(folder).parts[0]]
        record = unpack(kind, file.name, file.read_bytes())
        assert not any(is_pickle(content) for content in bytes_in(record)), file
        seen.add(kind.name)
    assert {"generation", "intent", "done", "sealed", "shape", "sign"} <= seen


@pytest.mark.timeout(600)
def test_the_password_of_a_run_is_nowhere(described: tuple[Server, str, Path]) -> None:
    server, word, home = described
    by_file = "file:" in (home / "pipeline.yaml").read_text()
    password = "none" if by_file else word
    shown: dict[str, bytes] = {}
    died = [home / "died-chunk", home / "died-log"]
    failpoints = f"{CHUNK_READ}:{died[0]},{FILES_STAGED}:{died[1]}"
    run = Run(home, password, "--ui", SNOWMELT_FAILPOINT=failpoints)
    try:
        # Two workers die on the way, and Spark says at length what it knows of it.
        run.wait_for("shop.orders -> shop.orders: live")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE shop.orders SET v = 'changed' WHERE id < 100")
        # Where no worker died, nothing is proven of errors.
        until(lambda: all(path.exists() for path in died), seconds_max=RUN_S_MAX)
        [application] = [one["id"] for one in json.loads(run.get("/api/v1/applications"))]
        of_it = f"/api/v1/applications/{application}"
        for path in (
            "environment",
            "jobs",
            "stages?details=true&withSummaries=true",
            "allexecutors",
            "sql?details=true&planDescription=true",
        ):
            shown[path] = run.get(f"{of_it}/{path}")
        for path in ("/environment/", "/jobs/", "/stages/", "/SQL/", "/executors/", "/executors/threadDump/?executorId=driver"):
            shown[path] = run.get(path)
        assert b"spark.app.name" in shown["environment"]
        assert b"MapInArrow" in shown["sql?details=true&planDescription=true"]
        looked_at = 0
        for folder in run.processes():
            # A worker that nobody needs ends by itself.
            with suppress(FileNotFoundError, ProcessLookupError):
                shown[f"{folder}/cmdline"] = (folder / "cmdline").read_bytes()
                if by_file:
                    shown[f"{folder}/environ"] = (folder / "environ").read_bytes()
                looked_at += 1
        assert looked_at >= 3, "a driver, its JVM and their workers"
    finally:
        run.signal(signal.SIGINT)
        code, said = run.end()
    assert code == 0, said[-6000:]
    assert "Python worker exited unexpectedly" in said
    check_state(home / "state")
    assert [*(home / "events").rglob("*")]
    # And what is said where it goes wrong.
    wrong = {
        "tables": ("tables: [shop.*]", "tables: [shop.absent]"),
        "host": (f"port: {server.port}", f"port: {free_port()}"),
        "user": ("username: melt", "username: nobody"),
    }
    described_right = (home / "pipeline.yaml").read_text()
    for name, (before, after) in wrong.items():
        (home / "pipeline.yaml").write_text(described_right.replace(before, after))
        code, _ = Run(home, password).end()
        assert code != 0, name
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    # The search finds what is there: the table's name in the state, in the lake and in what was said.
    assert sum(holds(content, "orders") for content in files.values()) > 5
    for file, content in files.items():
        assert not holds(content, word), file
    for where, content in shown.items():
        assert not holds(content, word), where
