"""Servers for tests, one of each kind a session (with pytest-xdist: a session of each worker).

A test that only needs its own tables takes `mariadb`, `mysql8`, `mysql56` or, to run on all three, `any_server`, and a
database of its own by `database(server)`. A test that needs settings, restarts or a kill takes `fresh_mariadb`,
`fresh_mysql8` or `fresh_mysql56` and calls it with the settings. Fluss likewise: `fluss`, with `fluss_tables`, and `fresh_fluss`.

MariaDB must be there. A MySQL or Fluss that can't be fetched is reported as not run, by name, at the end of the session; where CI is set
it fails its lane.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snowmelt.fluss.server import FlussServer
from snowmelt.supervise.session import spark_session
from tests.kit import jvm
from tests.kit.fluss_servers import FreshFluss, Tables, start_fluss
from tests.kit.servers import Fresh, NotRun, Server, Setting, give_up, start_mariadb, start_mysql8, start_mysql56

jvm.set_options()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests ask for the most time go first, so that none of them is still running when all the others are done."""
    asked: Counter[Path] = Counter()
    for item in items:
        if mark := item.get_closest_marker("timeout"):
            asked[item.path] += mark.args[0]
    items.sort(key=lambda item: -asked[item.path])


@pytest.fixture(scope="session", autouse=True)
def _services_write_down_what_they_do_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not among the status files of the user who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("status"))


_shared: list[Server] = []


def _session_server(start: Callable[..., Server], folder: Path) -> Iterator[Server]:
    try:
        server = start(folder)
    except NotRun as reason:
        give_up(reason)
    _shared.append(server)
    yield server
    _shared.remove(server)
    server.discard()


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_on_shared_servers() -> Iterator[None]:
    """What a file makes goes with it: which file comes next on this server is chance."""
    yield
    for server in _shared:
        if server.running:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION lock_wait_timeout = 30")
                cursor.execute("SHOW DATABASES")
                for (name,) in cursor.fetchall():
                    if name not in ("information_schema", "mysql", "performance_schema", "sys", "test"):
                        cursor.execute(f"DROP DATABASE `{name}`")


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _session_server(start_mariadb, tmp_path_factory.mktemp("mariadb"))


@pytest.fixture(scope="session")
def mysql8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _session_server(start_mysql8, tmp_path_factory.mktemp("mysql8"))


@pytest.fixture(scope="session")
def mysql56(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _session_server(start_mysql56, tmp_path_factory.mktemp("mysql56"))


@pytest.fixture(params=["mariadb", "mysql8", "mysql56"])
def any_server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def _fresh(start: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    servers: list[Server] = []

    def fresh(**settings: Setting) -> Server:
        try:
            server = start(tmp_path_factory.mktemp("fresh"), **settings)
        except NotRun as reason:
            give_up(reason)
        servers.append(server)
        return server

    yield fresh
    for server in servers:
        server.discard()


@pytest.fixture
def fresh_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    yield from _fresh(start_mariadb, tmp_path_factory)


@pytest.fixture
def fresh_mysql8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    yield from _fresh(start_mysql8, tmp_path_factory)


@pytest.fixture
def fresh_mysql56(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    yield from _fresh(start_mysql56, tmp_path_factory)


def _fluss(folder: Path, **settings: Any) -> FlussServer:
    try:
        return start_fluss(folder, **settings)
    except NotRun as reason:
        give_up(reason)


def _remove_fluss(server: FlussServer) -> None:
    # An orderly end takes ten seconds, and nobody needs what it would save.
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def fluss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    # Nobody kills this one, and on a machine that is busy it must not take itself for dead.
    server = _fluss(tmp_path_factory.mktemp("fluss"), session_timeout_s=60.0)
    yield server
    _remove_fluss(server)


@pytest.fixture
def fresh_fluss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshFluss]:
    servers: list[FlussServer] = []

    def fresh(**settings: Any) -> FlussServer:
        servers.append(_fluss(tmp_path_factory.mktemp("fluss"), **settings))
        return servers[-1]

    yield fresh
    for server in servers:
        _remove_fluss(server)


@pytest.fixture(scope="module")
def fluss_tables(fluss: FlussServer) -> Iterator[Tables]:
    """Tables of a test file on the shared server; they go with it."""
    tables = Tables(fluss)
    yield tables
    tables.close()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of two cores and a third for whatever runs beside, as `snowmelt run` makes it."""
    with spark_session("tests", master="local[3]", ui=False, debug=False) as session:
        yield session


_database_numbers = itertools.count(1)


@pytest.fixture
def database() -> Iterator[Callable[[Server], str]]:
    """`database(server)` gives the name of a new, empty database, dropped when the test ends."""
    made: list[tuple[Server, str]] = []

    def create(server: Server) -> str:
        name = f"test_{next(_database_numbers)}"
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        made.append((server, name))
        return name

    yield create
    for server, name in made:
        if server.running:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    # Read from the reports, because with pytest-xdist the servers are other processes' business.
    reasons = [str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    not_run = sorted({reason.removeprefix("Skipped: ") for reason in reasons if " not run: " in reason})
    if not_run:
        terminalreporter.section("servers not run")
        for reason in not_run:
            terminalreporter.line(reason)
