"""Real MariaDB and MySQL servers for tests, each in a folder of its own.

    server = start_mariadb(tmp_path, binlog_row_image="MINIMAL")
    with server.connect() as connection: ...
    server.kill()          # as if the machine lost power, but for what the system's page cache holds
    server.start()         # the same data, the same port
    server.restart(server_id=7)
    server.stop()

Settings are the server's own options with underscores. True gives the bare option, False its `skip-` form, None takes a
default away; all else is passed as text. A data folder is initialised once, kept as a template in the cache, and copied,
so that a start takes a second or two. The password of root is random and set before the server listens, so that each
connection of a test really authenticates. A server does not outlive the process that started it.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import secrets
import shutil
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NoReturn

import pymysql
import pytest
from pymysql.connections import Connection
from pymysql.constants import ER

Setting = str | int | bool | None
Kind = Literal["mariadb", "mysql"]

START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 20
NOT_PUBLISHED = 3
"""Exit code of scripts/fetch_servers: this kind of machine can't have the server."""
SOCKET_PATH_BYTES_MAX = 100
TEMPLATE_FORMAT = 1

DEFAULTS: dict[str, Setting] = {
    "bind_address": "127.0.0.1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "character_set_server": "utf8mb4",
    "innodb_buffer_pool_size": "64M",
    "innodb_flush_log_at_trx_commit": 2,
    "local_infile": True,
    "log_bin": "binlog",
    "max_allowed_packet": "1G",
    "performance_schema": "OFF",
    "secure_file_priv": "",
    "skip_name_resolve": True,
    "sync_binlog": 0,
}
DEFAULTS_OF_MARIADB: dict[str, Setting] = DEFAULTS | {"binlog_row_metadata": "FULL"}
DEFAULTS_OF_MYSQL57: dict[str, Setting] = DEFAULTS | {"enforce_gtid_consistency": "ON", "gtid_mode": "ON"}
DEFAULTS_OF_MYSQL8: dict[str, Setting] = DEFAULTS_OF_MYSQL57 | {"binlog_row_metadata": "FULL", "mysqlx": 0}


MATRIX = ("mysql-5.6", "mysql-5.7", "mysql-8.0", "mysql-8.4", "mysql-9", "mariadb", "mariadb-11.4", "mariadb-11.8")
"""Every server that the reduced lane runs over; `mariadb` is the system's."""

Fresh = Callable[..., "Server"]
"""What the `fresh_*` fixtures give: call it with settings, get a server of the test's own."""


class NotRun(Exception):
    """This server can't be had here. The text names the server and the reason. `excused`: this kind of machine can't have it at all."""

    def __init__(self, reason: str, *, excused: bool = False) -> None:
        super().__init__(reason)
        self.excused = excused


def give_up(reason: NotRun) -> NoReturn:
    """End a test whose server is missing. Where CI is set that fails its lane, unless this kind of machine can't have the server."""
    if os.environ.get("CI", "").lower() in ("", "0", "false") or reason.excused:
        pytest.skip(str(reason))
    pytest.fail(f"{reason} (CI is set, so a missing server fails its lane)", pytrace=False)


@dataclass
class Server:
    """One server process and its data. `stop` and `start` may alternate as often as a test likes."""

    kind: Kind
    folder: Path
    program: Path
    settings: dict[str, Setting]
    password: str
    port: int
    socket: Path
    base: Path | None = None
    host: str = "127.0.0.1"
    user: str = "root"
    version: tuple[int, ...] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        return f"mysql://{self.user}:{self.password}@{self.host}:{self.port}/"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def options(self) -> dict[str, Any]:
        """What a client needs to connect over TCP, by pymysql's names."""
        # With TLS each connection would read all certificates of the system: 28 ms of a processor instead of 0.2.
        return {"host": self.host, "port": self.port, "user": self.user, "password": self.password, "ssl_disabled": True}

    def connect(self, **arguments: Any) -> Connection[Any]:
        """A connection of root with autocommit; arguments are those of pymysql."""
        return pymysql.connect(**(self.options() | {"autocommit": True, "charset": "utf8mb4"} | arguments))

    def start(self) -> None:
        """Returns when the server answers a query, and raises with the end of its log when it does not come up."""
        if self.running:
            raise RuntimeError("the server is running already")
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [*bound_to_this_process(), *self._command()],
                cwd=self.folder,
                env=_environment(self.base),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """An orderly shutdown. A server that is stopped already stays so."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: nothing that the process had in its own memory is written."""
        self._end(signal.SIGKILL)

    def discard(self) -> None:
        """The server and its data are gone."""
        # An orderly end of MySQL 8 takes ten seconds, and nobody needs what it would save.
        self.kill()
        # pytest keeps the folders of old sessions, and a data folder is some 200 MB.
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart(self, **settings: Setting) -> None:
        """Stops and starts; the settings given are kept for later starts too."""
        self.stop()
        self.settings |= settings
        self.start()

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def _command(self) -> list[str]:
        settings: dict[str, Setting] = {
            # Servers differ by their ids as their ports do, so that any two can be joined by replication.
            "server_id": self.port,
            "datadir": str(self.data),
            "port": self.port,
            "socket": str(self.socket),
            "pid_file": str(self.folder / "server.pid"),
            "tmpdir": str(self.folder / "tmp"),
        }
        if self.base is not None:
            settings |= {"basedir": str(self.base), "lc_messages_dir": str(self.base / "share")}
        return [str(self.program), "--no-defaults", *_as_root(), *_options(settings | self.settings)]

    def _wait_until_it_answers(self) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with self.connect(connect_timeout=5) as connection, connection.cursor() as cursor:
                    cursor.execute("SELECT VERSION(), @@port")
                    version, port = cursor.fetchone()
                    if port != self.port:
                        raise RuntimeError(f"port {self.port} is another server's")
                    self.version = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
                    return
            except pymysql.err.OperationalError as error:
                if error.args[0] == ER.ACCESS_DENIED_ERROR:
                    raise RuntimeError(f"{self.program} has not our accounts:\n{self._log_tail()}") from error
                refused = error
            # Waiting for the process's end is the pause between two tries, so a server that fails is seen at once.
            try:
                code = process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.program} does not answer ({refused}):\n{self._log_tail()}") from refused
            else:
                raise RuntimeError(f"{self.program} ended with {code}:\n{self._log_tail()}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def start_mariadb(folder: Path, **settings: Setting) -> Server:
    """The system's MariaDB. It is never optional: its absence is an error. SNOWMELT_MARIADB names another one of `MATRIX` for a run."""
    if other := os.environ.get("SNOWMELT_MARIADB"):
        return start_fetched(other, folder, **settings)
    return start_system_mariadb(folder, **settings)


def start_system_mariadb(folder: Path, **settings: Setting) -> Server:
    program = _program("mariadbd")
    install = _program("mariadb-install-db")

    def initialise(data: Path) -> None:
        _run(
            [
                str(install),
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *_as_root(),
            ]
        )

    template = _template("mariadb", program, initialise)
    return _start("mariadb", folder, program, None, template, DEFAULTS_OF_MARIADB | settings, _ACCOUNTS_OF_MARIADB)


def start_mysql8(folder: Path, **settings: Setting) -> Server:
    """SNOWMELT_MYSQL names another one of `MATRIX` for a run."""
    return start_fetched(os.environ.get("SNOWMELT_MYSQL", "mysql-8.0"), folder, **settings)


def start_mysql56(folder: Path, **settings: Setting) -> Server:
    return start_fetched("mysql-5.6", folder, **settings)


def start_named(name: str, folder: Path, **settings: Setting) -> Server:
    """One of `MATRIX`."""
    return start_system_mariadb(folder, **settings) if name == "mariadb" else start_fetched(name, folder, **settings)


def start_fetched(name: str, folder: Path, **settings: Setting) -> Server:
    """One of `scripts/fetch_servers`, by its name there."""
    kind, _, number = name.partition("-")
    base = fetched(name, f"{'MariaDB' if kind == 'mariadb' else 'MySQL'} {number}")
    program = base / "bin" / ("mariadbd" if kind == "mariadb" else "mysqld")
    if kind == "mariadb":
        template = _template(name, program, lambda data: _bootstrap_mariadb(base, program, data))
        # Since 11.4 a server without a certificate makes itself one at each start, which takes up to ten seconds.
        defaults = DEFAULTS_OF_MARIADB | {"ssl": False}
        return _start("mariadb", folder, program, base, template, defaults | settings, _ACCOUNTS_OF_MARIADB)
    if name == "mysql-5.6":
        # It can't make a data folder without programs that its package lacks, and brings one.
        return _start("mysql", folder, program, base, base / "data", DEFAULTS | settings, _ACCOUNTS_OF_MYSQL56)
    template = _template(name, program, lambda data: _initialise_mysql(base, program, data))
    defaults = DEFAULTS_OF_MYSQL57 if name == "mysql-5.7" else DEFAULTS_OF_MYSQL8
    return _start("mysql", folder, program, base, template, defaults | settings, _ACCOUNTS_OF_MYSQL8)


def _initialise_mysql(base: Path, program: Path, data: Path) -> None:
    # Without a log, because the data folder's birth is no part of any server's history.
    options = _options({"basedir": str(base), "datadir": str(data), "lc_messages_dir": str(base / "share"), "log_bin": False})
    _run([str(program), "--no-defaults", "--initialize-insecure", *_as_root(), *options], base)


def _bootstrap_mariadb(base: Path, program: Path, data: Path) -> None:
    """What mariadb-install-db does, whose helpers these packages lack."""
    (data / "mysql").mkdir(parents=True)
    names = ("mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data", "maria_add_gis_sp_bootstrap")
    scripts = "".join((base / "share" / f"{name}.sql").read_text() for name in names)
    options = _options({"basedir": str(base), "datadir": str(data), "lc_messages_dir": str(base / "share"), "log_bin": False})
    command = [str(program), "--no-defaults", "--bootstrap", "--skip-grant-tables", *_as_root(), *options]
    _run(command, base, text=f"USE mysql;\nSET @auth_root_socket = NULL;\n{scripts}")


# What the first start executes before it listens. It stays out of the log: a test's log begins with the test.
_ACCOUNTS_OF_MARIADB = """\
SET sql_log_bin = 0;
GRANT ALL ON *.* TO 'root'@'localhost' IDENTIFIED BY '{password}' WITH GRANT OPTION;
GRANT ALL ON *.* TO 'root'@'127.0.0.1' IDENTIFIED BY '{password}' WITH GRANT OPTION;
"""
_ACCOUNTS_OF_MYSQL56 = (
    """\
SET sql_log_bin = 0;
DELETE FROM mysql.user WHERE user = '';
FLUSH PRIVILEGES;
"""
    + _ACCOUNTS_OF_MARIADB
)
_ACCOUNTS_OF_MYSQL8 = """\
SET sql_log_bin = 0;
ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';
CREATE USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;
"""


def _start(
    kind: Kind, folder: Path, program: Path, base: Path | None, template: Path, settings: dict[str, Setting], accounts: str
) -> Server:
    folder.mkdir(parents=True, exist_ok=True)
    # The template's identity must not be shared by its copies.
    shutil.copytree(template, folder / "data", ignore=shutil.ignore_patterns("auto.cnf"))
    (folder / "tmp").mkdir()
    password = secrets.token_hex(12)
    first = folder / "first.sql"
    first.write_text(accounts.format(password=password))
    port = _free_port()
    settings = settings | {"init_file": str(first)}
    server = Server(kind, folder, program, settings, password, port, _socket_path(folder, port), base)
    server.start()
    del server.settings["init_file"]
    return server


def _options(settings: dict[str, Setting]) -> list[str]:
    options = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if value is None:
            continue
        if value is True:
            options.append(f"--{option}")
        elif value is False:
            options.append(f"--skip-{option}")
        else:
            options.append(f"--{option}={value}")
    return options


def _as_root() -> list[str]:
    """Servers refuse to run as root unless told so; containers often have nobody else."""
    return ["--user=root"] if os.geteuid() == 0 else []


def bound_to_this_process() -> list[str]:
    # The kernel ends the server with the *thread* that started it, which is this process only for the main thread.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv and threading.current_thread() is threading.main_thread() else []


def _environment(base: Path | None) -> dict[str, str]:
    return os.environ | ({"LD_LIBRARY_PATH": str(base / "lib")} if base else {})


def _run(command: list[str], base: Path | None = None, *, text: str = "") -> None:
    done = subprocess.run(command, env=_environment(base), input=text, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")


def _program(name: str) -> Path:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise RuntimeError(f"{name} is not installed (./run setup, or apt-get install mariadb-server)")
    return Path(found)


def fetched(name: str, title: str) -> Path:
    base, reason, excused = _fetch(name, os.environ.get("SNOWMELT_CACHE"))
    if base is None:
        raise NotRun(f"{title} not run: {reason}", excused=excused)
    return base


@cache
def _fetch(name: str, _cache: str | None) -> tuple[Path | None, str, bool]:
    """Asked once: a registry that is out of reach would cost every test its time-outs."""
    script = Path(__file__).parents[2] / "scripts" / "fetch_servers"
    done = subprocess.run([sys.executable, str(script), name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None, (done.stderr.strip() or "scripts/fetch_servers failed").splitlines()[-1], done.returncode == NOT_PUBLISHED
    return Path(done.stdout.strip()), "", False


def _template(name: str, program: Path, initialise: Callable[[Path], None]) -> Path:
    """An initialised data folder for just this program, made once by whoever comes first."""
    version = subprocess.run([str(program), "--no-defaults", "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"Ver (\S+)", version)
    templates = Path(os.environ.get("SNOWMELT_CACHE") or Path.home() / ".cache" / "snowmelt") / "templates"
    templates.mkdir(parents=True, exist_ok=True)
    template = templates / f"{name}-{number[1] if number else 'unknown'}-{TEMPLATE_FORMAT}"
    with open(templates / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=templates) as work:
                initialise(Path(work) / "data")
                (Path(work) / "data").rename(template)
    return template


def log_end(cursor: Any) -> tuple[str, int]:
    """The server's log file and where it ends; MySQL calls the statement by another name since 8.2."""
    told = cursor.connection.get_server_info()
    version = tuple(int(part) for part in re.findall(r"\d+", told)[:2])
    renamed = "MariaDB" not in told and version >= (8, 2)
    cursor.execute("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS")
    name, offset = cursor.fetchone()[:2]
    return name, int(offset)


def _free_port() -> int:
    """A port below those that the kernel gives to outgoing connections, so that nobody takes it while its server is down."""
    while True:
        port = random.randint(15_000, 32_000)
        with sockets.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _socket_path(folder: Path, port: int) -> Path:
    path = folder / "socket"
    return path if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX else Path(f"/tmp/snowmelt-{port}.socket")
