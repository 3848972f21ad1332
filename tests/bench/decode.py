"""`./run bench decode`: the log's bytes to Arrow, against the two decoders that everybody else uses.

One core, seconds of CPU, all checks on: each event's checksum, all bounds, UTF-8. The contenders take turns in one run.
python-mysql-replication reads from the live server, so its figure holds the reading of its socket. Java's connector reads the
same bytes from memory, makes event objects and checks no checksum; only its reading thread is counted, not its garbage collector.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from snowmelt.databases.mysql.log.decode import ChangeBatch, LogReader, LogServer, warm
from snowmelt.model.table import SchemaHistory
from tests.bench._workload import make_bulk, make_oltp, prepare
from tests.kit.servers import Server, start_mariadb

CONNECTOR = "com.zendesk:mysql-binlog-connector-java:0.30.1"
REPEATS = 5
SEGMENT_BYTES = 64 << 20


def ours(log: Path) -> tuple[int, list[float]]:
    """Changes of the log, and seconds of CPU of each pass. A pass reads segments of 64 MiB, cut at transaction ends."""
    data = np.fromfile(log, np.uint8)[4:]
    pieces = _cut(data)
    seconds: list[float] = []
    changes = 0
    reader = LogReader(server=LogServer("mariadb", (10, 11, 0)), schemas=SchemaHistory())
    for repeat in range(REPEATS + 1):
        changes = 0
        before = time.process_time()
        for start, end, position in pieces:
            for item in reader.read(data[start:end], file=1, start=position, checksum_bytes=4):
                if isinstance(item, ChangeBatch):
                    ops = item.rows.column("_op").to_numpy()
                    changes += int(np.count_nonzero(ops != 1))
        if repeat:
            seconds.append(time.process_time() - before)
    return changes, seconds


def _cut(data: np.ndarray) -> list[tuple[int, int, int]]:
    """Ranges of about a segment's size that end with a commit (XID) or at the end."""
    pieces: list[tuple[int, int, int]] = []
    at = start = 0
    position = first = 4
    while at < data.shape[0]:
        header = data[at : at + 19].tobytes()
        size = int.from_bytes(header[9:13], "little")
        at += size
        position = int.from_bytes(header[13:17], "little")
        if (header[4] == 16 and at - start >= SEGMENT_BYTES) or at == data.shape[0]:
            pieces.append((start, at, first))
            start, first = at, position
    return pieces


def java(log: Path, folder: Path) -> list[float] | None:
    """Changes per second of CPU of Java's connector, warm, or None where it can't be had."""
    if not shutil.which("mvn") or not shutil.which("javac"):
        return None
    jars = folder / "jars"
    if not jars.exists():
        got = subprocess.run(
            ["mvn", "-q", "dependency:copy", f"-Dartifact={CONNECTOR}", f"-DoutputDirectory={jars}"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        if got.returncode:
            return None
        source = Path(__file__).with_name("java") / "DecodeBench.java"
        subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)], check=True)
    ran = subprocess.run(
        ["java", "-Xmx3g", "-cp", f"{jars}/*{os.pathsep}{folder}", "DecodeBench", str(log), str(REPEATS + 3)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # The first passes warm the JIT.
    passes = [line.split() for line in ran.stdout.splitlines()][3:]
    return [int(changes) / float(seconds) for changes, seconds in passes]


_REPLICATION = """
import sys, time
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
host, port, user, file, most = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
password = sys.stdin.readline().strip()
stream = BinLogStreamReader(
    connection_settings={"host": host, "port": port, "user": user, "passwd": password},
    server_id=771, log_file=file, log_pos=4, blocking=False, resume_stream=True,
    only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], is_mariadb=False)
changes, before = 0, time.process_time()
for event in stream:
    if stream.log_file != file:
        break
    changes += len(event.rows)
    if changes >= most:
        break
print(changes, time.process_time() - before)
"""


def replication(server: Server, file: str, most: int) -> float:
    """Changes per second of CPU of python-mysql-replication over the first `most` changes of a log."""
    ran = subprocess.run(
        [sys.executable, "-c", _REPLICATION, server.host, str(server.port), server.user, file, str(most)],
        input=f"{server.password}\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    changes, seconds = ran.stdout.split()
    return int(changes) / float(seconds)


def main() -> None:
    console = Console()
    table = Table("log", "decoder", "changes / CPU s", "ours is")
    result: dict[str, float | None] = {}
    warm()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as name:
        folder = Path(name)
        server = start_mariadb(folder / "mariadb", max_binlog_size="1G")
        try:
            with console.status("writing the logs"):
                prepare(server)
                logs = {"bulk": make_bulk(server), "oltp": make_oltp(server)}
            for kind, log in logs.items():
                path = server.data / log.name
                with console.status(f"decoding {log.bytes / 1e6:.0f} MB of {kind} log"):
                    changes, seconds = ours(path)
                    theirs = java(path, folder)
                    slow = statistics.median(replication(server, log.name, 60_000 if kind == "bulk" else 20_000) for _ in range(3))
                    _, again = ours(path)
                rate = changes / statistics.median(seconds + again)
                table.add_row(kind, f"snowmelt ({log.bytes / statistics.median(seconds + again) / 1e9:.2f} GB/s)", f"{rate:,.0f}", "")
                result[f"changes_per_s{'' if kind == 'bulk' else '_oltp'}"] = round(rate)
                if theirs:
                    connector = statistics.median(theirs)
                    table.add_row(kind, "Java binlog connector 0.30.1", f"{connector:,.0f}", f"{rate / connector:.1f} x")
                result[f"ratio_vs_java_connector_{kind}"] = round(rate / statistics.median(theirs), 2) if theirs else None
                table.add_row(kind, "python-mysql-replication", f"{slow:,.0f}", f"{rate / slow:.0f} x")
                result[f"ratio_vs_python_mysql_replication{'' if kind == 'bulk' else '_oltp'}"] = round(rate / slow, 1)
        finally:
            server.stop()
    console.print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
