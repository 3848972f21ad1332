"""Capturing a log: snowmelt beside `mariadb-binlog --raw`, on MariaDB.

    python -m tests.bench.capture [--repeats 5] [--bulk-transactions 5400] [--oltp-transactions 140000]

Both read the same file of the same server from its beginning to its end, by turns, over TCP and over a unix socket, and write
to the same disk. They are not the same work. snowmelt checks each event's checksum, place and size, finds the cut points and
makes every segment durable before it counts, the last one too, and to that end writes large ones around the system's cache;
mariadb-binlog checks checksums and leaves the bytes in that cache. It stores ANNOTATE events, which snowmelt receives and does
not store; rates are of the file's bytes, for both. The system writes what is pending before each turn, so that nobody pays for another's
bytes. snowmelt is measured in a process that has loaded and compiled its code; of mariadb-binlog the whole process is measured,
which starts in 10 ms. The last line is JSON: medians, and ratios of rates over TCP.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.log.capture import capture_until
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.model.position import Position
from snowmelt.segments import list_segments
from tests.bench._workload import Log, make_bulk, make_oltp, prepare
from tests.kit.servers import Server, start_mariadb

SERVER_ID = 4_100_000
TRANSPORTS = ("tcp", "unix")


@dataclass(frozen=True)
class Turn:
    """One run of one contender: seconds of the clock and of the processor."""

    wall_s: float
    cpu_s: float


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def ours(options: MySqlOptions, log: Log, folder: Path) -> Turn:
    file = LogFile.parse(log.name).number
    before, cpu_before = time.perf_counter(), cpu(resource.RUSAGE_SELF)
    capture_until(options, folder, Position(file, 4), Position(file, log.bytes), server_id=SERVER_ID)
    turn = Turn(time.perf_counter() - before, cpu(resource.RUSAGE_SELF) - cpu_before)
    assert any((segment.end.file, segment.end.offset) == (file, log.bytes) for segment in list_segments(folder))
    return turn


def native(server: Server, transport: str, log: Log, folder: Path) -> Turn:
    where = [f"--host={server.host}", f"--port={server.port}", "--protocol=tcp"]
    if transport == "unix":
        where = [f"--socket={server.socket}"]
    command = ["mariadb-binlog", "--no-defaults", *where, f"--user={server.user}", "--raw", "--read-from-remote-server"]
    environment = os.environ | {"MYSQL_PWD": server.password}
    before, cpu_before = time.perf_counter(), cpu(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, f"--result-file={folder}/", log.name], env=environment, check=True)
    turn = Turn(time.perf_counter() - before, cpu(resource.RUSAGE_CHILDREN) - cpu_before)
    assert (folder / log.name).stat().st_size == log.bytes
    return turn


def bench(server: Server, logs: dict[str, Log], work: Path, repeats: int) -> dict[tuple[str, str, str], list[Turn]]:
    password = work / "password"
    password.write_text(server.password)
    tcp = MySqlOptions(
        host=server.host,
        port=server.port,
        username=server.user,
        password=Secret(f"file:{password}"),
        tls=Tls.DISABLED,
        allow_password_to_unverified_server=True,
    )
    unix = MySqlOptions(socket=str(server.socket), username=server.user, password=Secret(f"file:{password}"))
    turns: dict[tuple[str, str, str], list[Turn]] = {}
    for repeat in range(repeats + 1):
        for kind, log in logs.items():
            for transport in TRANSPORTS:
                for who in ("snowmelt", "mariadb-binlog"):
                    folder = work / "out"
                    folder.mkdir()
                    os.sync()
                    if who == "snowmelt":
                        turn = ours(unix if transport == "unix" else tcp, log, folder)
                    else:
                        turn = native(server, transport, log, folder)
                    shutil.rmtree(folder)
                    # The first round compiles, and brings the file into the system's cache.
                    if repeat:
                        turns.setdefault((kind, transport, who), []).append(turn)
    return turns


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--bulk-transactions", type=int, default=5400)
    arguments.add_argument("--oltp-transactions", type=int, default=140_000)
    given = arguments.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="snowmelt-bench-") as folder:
        server = start_mariadb(Path(folder) / "server", max_binlog_size="1G", innodb_buffer_pool_size="512M")
        try:
            began = time.perf_counter()
            prepare(server)
            logs = {
                "bulk": make_bulk(server, transactions=given.bulk_transactions),
                "oltp": make_oltp(server, transactions=given.oltp_transactions),
            }
            console.print(
                f"logs of {', '.join(f'{log.bytes / 1e6:.0f} MB ({kind})' for kind, log in logs.items())} "
                f"made in {time.perf_counter() - began:.0f} s"
            )
            turns = bench(server, logs, Path(folder), given.repeats)
        finally:
            server.stop()

    def rate(kind: str, transport: str, who: str) -> float:
        return logs[kind].bytes / 1e6 / statistics.median(turn.wall_s for turn in turns[kind, transport, who])

    table = Table(title="capture of a log, medians")
    for name in ("log", "transport", "contender", "MB/s", "from … to", "cpu s/GB", "ratio"):
        table.add_column(name, justify="left" if name in ("log", "transport", "contender") else "right")
    result: dict[str, object] = {"bench": "capture", "repeats": given.repeats, "cores": os.cpu_count()}
    for (kind, transport, who), done in turns.items():
        rates = sorted(logs[kind].bytes / 1e6 / turn.wall_s for turn in done)
        ratio = rate(kind, transport, "snowmelt") / rate(kind, transport, "mariadb-binlog")
        table.add_row(
            kind,
            transport,
            who,
            f"{rate(kind, transport, who):.0f}",
            f"{rates[0]:.0f} … {rates[-1]:.0f}",
            f"{statistics.median(turn.cpu_s for turn in done) / logs[kind].bytes * 1e9:.2f}",
            f"{ratio:.2f}" if who == "snowmelt" else "",
        )
        result[f"{who.replace('-', '_')}_{kind}_{transport}_mb_s"] = round(rate(kind, transport, who), 1)
        if who == "snowmelt":
            suffix = "" if transport == "tcp" else f"_{transport}"
            result[f"ratio_vs_mariadb_binlog_{kind}{suffix}"] = round(ratio, 2)
    console.print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
