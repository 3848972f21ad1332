"""A pipeline whose listeners are real: a web server and a program. Drivers are killed between an epoch and its notice."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.listener_state import read_state
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import BEFORE_DONE, DURING_RELEASE
from snowmelt.engine.notices.calls import CommandListener, Webhook
from snowmelt.status import read_status
from snowmelt.store.objects import open_store
from tests.integration.driver_process import DriverProcess
from tests.integration.running import Running, run_tasks_here, settings
from tests.integration.server_log import execute
from tests.kit.servers import Server
from tests.kit.waiting import until

Database = Callable[[Server], str]

APPENDS = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write(sys.stdin.read() + chr(10))"


class Hook:
    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def newest(self) -> int:
        return max((document["epoch"] for document in self.got), default=0)


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def wanted(mariadb: Server, database: Database, tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Settings:
    name = database(mariadb)
    execute(mariadb, f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name}.orders VALUES (1, 1)")
    run_tasks_here(monkeypatch)
    listeners = (
        Webhook("hook", f"http://127.0.0.1:{hook.server.server_port}/", timeout_s=20.0),
        CommandListener("program", (sys.executable, "-c", APPENDS, str(tmp_path / "told")), timeout_s=60.0),
    )
    return settings(mariadb, tmp_path, tables=[f"{name}.*"], listeners=listeners)


def change(wanted: Settings, server: Server, key: int) -> None:
    execute(server, f"REPLACE INTO {wanted.tables[0].removesuffix('.*')}.orders VALUES ({key}, {key})")


def ledger_of(wanted: Settings) -> Any:
    return State(open_store(wanted.state)).load()


def told_of(tmp_path: Path) -> list[dict[str, Any]]:
    """What is whole of it: the program may be writing just now."""
    return [json.loads(line) for line in (tmp_path / "told").read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.timeout(300)
def test_what_a_killed_driver_did_not_tell_is_told_by_the_next(wanted: Settings, mariadb: Server, tmp_path: Path, hook: Hook) -> None:
    with Running(None, wanted) as running:
        running.settled()
        change(wanted, mariadb, 2)
        running.settled()
    # At its end a run gives the newest notice.
    ledger = ledger_of(wanted)
    newest = read_state(ledger.listeners)[1]
    ((target, snapshot),) = ledger.snapshots.items()
    for last in (hook.got[-1], told_of(tmp_path)[-1]):
        assert last == {
            "id": f"test/{newest.epoch}/{newest.identity}",
            "pipeline": "test",
            "epoch": newest.epoch,
            "tables": [{"table": target, "snapshot": snapshot, "committed_ms": last["tables"][0]["committed_ms"]}],
        }
        assert last["tables"][0]["committed_ms"] <= ledger.watermarks[target]
    status = {one.name: one for one in read_status(wanted).listeners}
    assert {name: (one.newest, one.why) for name, one in status.items()} == dict.fromkeys(("hook", "program"), (newest.epoch, ""))

    # The server refuses while an epoch is made and the driver dies right after it is done.
    hook.status = 500
    change(wanted, mariadb, 3)
    DriverProcess(wanted, tmp_path, DURING_RELEASE, interval_s=0.2).wait_for_death()
    killed = ledger_of(wanted)
    owed = read_state(killed.listeners)[1]
    assert killed.open is None
    assert owed.told["hook"].epoch < owed.epoch, "the notice of the last epoch was not taken"
    hook.status = 200
    hook.got.clear()
    with Running(None, wanted):
        until(lambda: hook.newest >= owed.epoch)
        until(lambda: any(document["epoch"] >= owed.epoch for document in told_of(tmp_path)))
    assert hook.got[0]["id"] == f"test/{owed.epoch}/{owed.identity}"
    assert hook.got[0]["tables"][0]["snapshot"] == killed.snapshots[target]


@pytest.mark.timeout(300)
def test_an_epoch_that_is_rolled_forward_is_told_again_with_the_same_identity(
    wanted: Settings, mariadb: Server, tmp_path: Path, hook: Hook
) -> None:
    with Running(None, wanted) as running:
        running.settled()
    change(wanted, mariadb, 2)
    DriverProcess(wanted, tmp_path, BEFORE_DONE, interval_s=0.2).wait_for_death()
    killed = ledger_of(wanted)
    assert killed.open is not None
    before = [document for document in hook.got if document["epoch"] == killed.epoch]
    hook.got.clear()
    with Running(None, wanted):
        until(lambda: hook.newest >= killed.epoch)
    again = next(document for document in hook.got if document["epoch"] == killed.epoch)
    assert again["id"] == f"test/{killed.epoch}/{killed.identity}"
    assert all(document == again for document in before)


@pytest.mark.timeout(300)
def test_a_listener_that_fails_stops_no_epoch_and_status_says_why(wanted: Settings, mariadb: Server, hook: Hook) -> None:
    hook.status = 503
    with Running(None, wanted) as running:
        running.settled()
        until(lambda: hook.got)
        for key in (2, 3, 4):
            change(wanted, mariadb, key)
            running.settled()
        told = {one.name: one for one in until(lambda: read_status(wanted).listeners)}
        assert told["hook"].epoch == 0
        until(lambda: {one.name: one.why for one in read_status(wanted).listeners}["hook"] == "HTTP status 503")
        hook.status = 200
        until(lambda: hook.newest == read_state(running.pipeline.ledger.listeners)[1].epoch, seconds_max=90.0)
        until(lambda: {one.name: one.why for one in read_status(wanted).listeners}["hook"] == "")
