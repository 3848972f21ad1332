"""A standalone cluster of two workers, with the warehouse and the state in one bucket: `snowmelt run` as docs/cluster.md describes it.

A worker is killed in the middle of the copy, then the driver; a new driver goes on with the worker that is left.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from snowmelt.config import read_pipeline
from snowmelt.databases.mysql.log.decode import warm
from snowmelt.sinks.paimon.sink import PaimonSink
from tests.integration.running import source_rows
from tests.kit.cluster import Cluster, standalone_cluster
from tests.kit.processes import Command, children_of, free_port
from tests.kit.s3 import BUCKET, KEY_ID, S3Server, s3_server
from tests.kit.servers import Fresh, Server

ROWS = 6_000
WAIT_S_MAX = 300
PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SECRET = f"snow{secrets.token_hex(12)}melt"
"""It occurs once in the world, so that a search for it proves something."""


def described(server: Server, s3: S3Server, cluster: Cluster, folder: Path) -> Path:
    """The pipeline of the page, on this machine."""
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    lake, session = (block.partition("```")[0] for block in blocks)
    source = f"""\
source:
  type: mysql
  host: {server.host}
  port: {server.port}
  username: root
  password: file:db-password
  tls: disabled
  tables: [shop.*]
"""
    text = source + session + lake + "  interval: 300ms\n  rows_per_chunk: 500\n"
    for there, here in (
        ("http://minio.example.com:9000", s3.endpoint),
        ("s3://lake/", f"s3://{BUCKET}/"),
        ("spark://spark.example.com:7077", cluster.master),
        ("driver.example.com", "127.0.0.1\n  spark.driver.bindAddress: 127.0.0.1"),
    ):
        assert there in text
        text = text.replace(there, here)
    (folder / "db-password").write_text(server.password)
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return path


def begun(path: Path, command: str, *arguments: str) -> Command:
    """A command of snowmelt's under way. Secrets of the bucket are in the driver's environment alone."""
    environment = {**os.environ, "S3_KEY": KEY_ID, "S3_SECRET": SECRET}
    return Command(command, str(path), *arguments, folder=path.parent, cwd=Path("/"), environment=environment, seconds_max=WAIT_S_MAX)


@contextmanager
def under_load(server: Server) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            number = 0
            while not stop.wait(0.02):
                number += 1
                cursor.execute("REPLACE INTO shop.orders VALUES (%s, 'changed')", (number * 7 % (2 * ROWS),))
                cursor.execute("DELETE FROM shop.orders WHERE id = %s", (number * 11 % ROWS,))
                cursor.execute("UPDATE shop.`lines_ä` SET v = v + 1 WHERE name = %s", (f"Näme {number % 300}",))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def command_lines(pids: list[int]) -> bytes:
    """Of processes and all that they have started."""
    found = b""
    for pid in pids:
        pids.extend(children_of(pid))
        found += Path(f"/proc/{pid}/cmdline").read_bytes() + b"\n"
    return found


@pytest.mark.timeout(900)
def test_a_lake_in_a_bucket_survives_the_loss_of_a_worker_and_of_the_driver(
    fresh_mariadb: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
        cursor.execute("CREATE TABLE shop.orders (id INT NOT NULL PRIMARY KEY, v VARCHAR(50))")
        # A name that no key of the state has.
        cursor.execute("CREATE TABLE shop.`lines_ä` (name VARCHAR(50) NOT NULL PRIMARY KEY, v INT)")
        cursor.executemany("INSERT INTO shop.orders VALUES (%s, %s)", [(i, f"order {i}") for i in range(ROWS)])
        cursor.executemany("INSERT INTO shop.`lines_ä` VALUES (%s, %s)", [(f"Näme {i}", i) for i in range(300)])
    # Two executors that compile the same at once would be twice as slow.
    warm()
    with s3_server() as s3, standalone_cluster(tmp_path / "cluster", 2) as cluster, ExitStack() as leaving:
        path = described(server, s3, cluster, tmp_path)
        with under_load(server):
            first = begun(path, "run")
            leaving.callback(first.kill)
            first.wait_for("shop.orders -> shop.orders: snapshotting")
            assert len(cluster.state()["activeapps"]) == 1
            shown = b"".join(cluster.page(number, "/json/") + cluster.page(number, "/") for number in range(3))
            listed = command_lines([first.process.pid, *(worker.pid for worker in cluster.workers)])
            assert b"snowmelt shop-to-lake" in shown
            assert listed.count(b"CoarseGrainedExecutorBackend") == 2
            assert b"snowmelt.engine.tasks.daemon" in listed
            cluster.kill_worker(0)
            # It goes on with the one that is left.
            first.wait_for("shop.orders -> shop.orders: live")
            first.kill()
        code, said = begun(path, "run", "--until-current").end()
        assert code == 0, said
        code, said = begun(path, "verify", "--master", "local[2]").end()
        assert (code, said.splitlines()[-1]) == (0, "verified"), said
        monkeypatch.setenv("S3_KEY", KEY_ID)
        monkeypatch.setenv("S3_SECRET", SECRET)
        lake = PaimonSink(read_pipeline(path).to_settings().sink.warehouse, user="reader")
        for table in ("orders", "lines_ä"):
            builder = lake.table(f"shop.{table}").new_read_builder()
            rows = builder.new_read().to_arrow(builder.new_scan().plan().splits()).drop(["_seq"]).to_pylist()
            assert sorted(rows, key=lambda row: repr(sorted(row.items()))) == source_rows(server, f"shop.`{table}`")
        assert s3.holds(f"s3://{BUCKET}/", b"shop") > 0
        assert s3.holds(f"s3://{BUCKET}/", SECRET.encode()) == 0
    assert SECRET.encode() not in shown + listed
    # All that Spark's processes and the runs have logged, and what they left in their folders.
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), f"{file} holds the secret"


SESSION = """\
import os, sys
from snowmelt.credentials import Secret
from snowmelt.supervise.session import spark_session

# Of names that Spark takes for a secret's, and of one that it does not.
entries = {"spark.my.password": Secret("${S3_SECRET}"), "spark.executorEnv.S3": Secret("${S3_SECRET}"), "spark.ui.port": sys.argv[1]}
with spark_session("test", master="local[1]", ui=True, debug=False, entries=entries) as spark:
    assert spark.conf.get("spark.executorEnv.S3") == os.environ["S3_SECRET"]
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_secret_of_the_session_is_on_no_page_and_in_no_list_of_processes() -> None:
    environment = {**os.environ, "S3_SECRET": SECRET}
    command = [sys.executable, "-c", SESSION, str(page := free_port())]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        listed = command_lines([process.pid])

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/api/v1/applications{path}", timeout=60) as answer:
                content: bytes = answer.read()
                return content

        shown = get(f"/{json.loads(get(''))[0]['id']}/environment")
        process.stdin.close()
        assert process.wait(WAIT_S_MAX) == 0
    assert b"org.apache.spark.deploy.SparkSubmit" in listed
    assert b"spark.executorEnv.S3" in shown
    assert SECRET.encode() not in listed + shown
