"""A MariaDB of one's own: in a folder that is its caller's, on loopback, with a password of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.errors import InvalidConfig, Unavailable

START_S_MAX = 60.0
_SETTINGS = (
    "--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--binlog-row-image=FULL", "--binlog-row-metadata=FULL",
    "--bind-address=127.0.0.1", "--character-set-server=utf8mb4", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2",
)  # fmt: skip


@contextlib.contextmanager
def local_mariadb(folder: Path) -> Iterator[MySqlOptions]:
    """Start it with its data below a folder, lend how its root connects, and end it. Its path must be short: a socket lies in it."""
    server, install = _program("mariadbd"), _program("mariadb-install-db")
    password = write_secret(folder / "root-password", secrets.token_hex(16))
    options = MySqlOptions(port=_free_port(), username="root", password=Secret(f"file:{password}"))
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    _install(
        [
            install, "--no-defaults", f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal", "--skip-test-db",
            *as_root,
        ]
    )  # fmt: skip
    first = write_secret(folder / "first.sql", f"ALTER USER root@localhost IDENTIFIED BY '{password.read_text()}';\n")
    with open(folder / "mariadb.log", "wb") as log:
        process = subprocess.Popen(
            [
                server, "--no-defaults", *as_root, *_SETTINGS, f"--datadir={folder / 'data'}", f"--socket={folder / 'socket'}",
                f"--port={options.port}", f"--pid-file={folder / 'pid'}", f"--init-file={first}",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_until_it_answers(process, options, folder / "mariadb.log")
        yield options
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_secret(path: Path, text: str) -> Path:
    """A file that only its owner may read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _install(command: list[str]) -> None:
    """Run the script that makes a data folder. It starts a server of its own, which must not outlive an interruption."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise Unavailable("MariaDB's data folder could not be made", detail=said.strip()[-500:])


def _wait_until_it_answers(process: subprocess.Popen[bytes], options: MySqlOptions, log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            Session(options).close()
            return
        except (Unavailable, InvalidConfig) as error:
            # Until its first statements have run the server knows no password.
            refused = error
        try:
            code = process.wait(0.1)
        except subprocess.TimeoutExpired:
            if time.monotonic() < deadline:
                continue
            raise Unavailable("MariaDB does not answer", detail=str(refused)) from None
        raise Unavailable(f"MariaDB ended with {code}", detail=log.read_text(errors="replace")[-500:])


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise InvalidConfig(
            f"{name} is not installed",
            hint="`./run setup` installs it, or your package manager does: mariadb-server-core and mariadb-client-core on Debian",
        )
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
