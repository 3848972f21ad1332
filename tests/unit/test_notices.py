"""Notices: what is owed, what a listener gets, and what comes of one that fails, hangs or is slow."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from snowmelt.budgets import RetryBudget
from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listener_state import read_state, write_state
from snowmelt.commit.listeners import Reached
from snowmelt.commit.notices import ListenerProgress, Notice, Notices, TableNotice
from snowmelt.commit.records import Committed, Entry, Intent
from snowmelt.credentials import Secret
from snowmelt.driving.listening import Notify, hear, remind
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.notices.calls import CallFailed, CommandListener, Webhook
from snowmelt.engine.notices.notifier import Notifier, write_document
from snowmelt.errors import Corrupt
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Found, Incarnation
from tests.kit.waiting import until

ORDERS, ITEMS = "ods.orders", "ods.items"
ENTRY = Entry(target=ORDERS, uuid="u", buckets=1, schema=1, new_schema=None, base=0, empties=(), files=("f",))
REACHED = {ORDERS: Reached(7, "1-n4", 50, 60), ITEMS: Reached(3, "1-n2", None, None)}
TABLES = (TableNotice(ITEMS, 3, None), TableNotice(ORDERS, 7, 60))


def intent(epoch: int, *entries: Entry) -> Intent:
    found = (Found(Incarnation(TableId("shop", "orders"), 1), ORDERS, True, 1),) if epoch == 1 else ()
    return Intent(
        epoch=epoch,
        generation=1,
        nonce=f"n{epoch}",
        after=10 * (epoch - 1),
        upto=10 * epoch,
        time_ms=None,
        facts=found,
        entries=entries,
        sequence_max=99,
        segment=1,
    )


class Asked:
    """Notes notices, and tells what is known of listeners."""

    def __init__(self, known: dict[str, ListenerProgress] | None = None) -> None:
        self.notices: list[Notify] = []
        self.known = known or {}

    def act(self, request: Request[Any]) -> Any:
        assert isinstance(request, Notify)
        self.notices.append(request)
        return self.known


def state_of(text: str) -> Notices:
    return read_state(text)[1]


class TestOwed:
    def heard(self, asked: Asked, state: str, one: Intent, *names: str) -> str:
        return perform(hear(None, names, RunListeners(one, state, REACHED)), asked.act)

    def test_each_epoch_that_brings_something_has_a_notice_with_all_tables(self) -> None:
        asked = Asked()
        state = self.heard(asked, "", intent(4, ENTRY), "hook", "dbt")
        assert asked.notices == [Notify(Notice(4, "1-n4", TABLES), ("hook", "dbt"))]
        assert state_of(state) == Notices(4, "1-n4", {"hook": ListenerProgress(), "dbt": ListenerProgress()})

    def test_an_epoch_that_brings_nothing_keeps_the_notice_before_it_as_the_newest(self) -> None:
        asked = Asked()
        state = self.heard(asked, "", intent(4), "hook")
        assert asked.notices == []
        assert state_of(state) == Notices(told={"hook": ListenerProgress()})
        state = self.heard(asked, self.heard(asked, state, intent(5, ENTRY), "hook"), intent(6), "hook")
        assert [one.notice.identity for one in asked.notices] == ["1-n5", "1-n5"]
        assert (state_of(state).epoch, state_of(state).identity) == (5, "1-n5")

    def test_what_is_known_of_a_listener_is_in_the_state_and_never_goes_back(self) -> None:
        state = self.heard(
            Asked({"hook": ListenerProgress(4), "dbt": ListenerProgress(0, "HTTP status 500")}), "", intent(5, ENTRY), "hook", "dbt"
        )
        assert state_of(state).told == {"hook": ListenerProgress(4), "dbt": ListenerProgress(0, "HTTP status 500")}
        state = self.heard(Asked({"hook": ListenerProgress(0, "x" * 1000)}), state, intent(6, ENTRY), "hook", "dbt")
        assert state_of(state).told == {"hook": ListenerProgress(4, "x" * 200), "dbt": ListenerProgress(0, "HTTP status 500")}

    def test_of_listeners_that_are_configured_no_more_nothing_is_kept(self) -> None:
        state = self.heard(Asked({"hook": ListenerProgress(4), "dbt": ListenerProgress(4)}), "", intent(5, ENTRY), "hook", "dbt")
        assert list(state_of(self.heard(Asked(), state, intent(6, ENTRY), "dbt")).told) == ["dbt"]
        assert self.heard(Asked(), state, intent(6, ENTRY)) == ""

    def test_the_state_is_the_same_behind_a_restart(self) -> None:
        found = Notices(5, "1-n5", {"b": ListenerProgress(4), "a": ListenerProgress(3, "why")})
        assert read_state(write_state({ORDERS: 5}, found)) == ({ORDERS: 5}, found)
        assert write_state({}, found) == write_state({}, replace(found, told=dict(reversed(found.told.items()))))
        assert write_state({}, Notices()) == ""

    @pytest.mark.parametrize(
        "change",
        [("5", "-5"), ("5", '"5"'), ('"1-n5"', "1"), ("[4,", "[true,"), (',""', ""), ('"told"', '"tells"'), ('"notices"', '"notes"')],
    )
    def test_a_state_that_is_none_is_corrupt(self, change: tuple[str, str]) -> None:
        text = write_state({}, Notices(5, "1-n5", {"b": ListenerProgress(4)}))
        assert change[0] in text
        with pytest.raises(Corrupt, match="the state of the listeners can't be read"):
            read_state(text.replace(*change, 1))

    def ledger(self, state: str) -> Ledger:
        ledger = Ledger()
        ledger.apply_intent(intent(1, ENTRY))
        ledger.apply_done(ledger.decide_done((Committed(ORDERS, 7),), state))
        return ledger

    def test_a_driver_that_begins_gives_the_notice_that_perhaps_was_not_taken(self) -> None:
        owed = write_state({}, Notices(1, "1-n1", {"hook": ListenerProgress(1), "dbt": ListenerProgress(0)}))
        asked = Asked()
        perform(remind(self.ledger(owed), ("hook", "dbt", "new")), asked.act)
        assert asked.notices == [Notify(Notice(1, "1-n1", (TableNotice(ORDERS, 7, None),)), ["dbt", "new"])]

    def test_where_nothing_is_owed_nobody_is_called(self) -> None:
        asked = Asked()
        for state in (
            "",
            write_state({}, Notices(1, "1-n1", {"hook": ListenerProgress(1)})),
            write_state({}, Notices(told={"hook": ListenerProgress()})),
        ):
            perform(remind(self.ledger(state), ("hook",)), asked.act)
        ledger = self.ledger(write_state({}, Notices(1, "1-n1", {"hook": ListenerProgress(0)})))
        ledger.apply_intent(intent(2, ENTRY))
        perform(remind(ledger, ("hook",)), asked.act)
        assert asked.notices == [], "an open epoch has its notice when it is rolled forward"


# ---- calls


class Server:
    """A real web server. It answers with `status`, after `before`, and keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.before: Callable[[Any], None] = lambda handler: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.got.append((self.path, dict(self.headers), body))
                outer.before(self)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.http.server_port}"

    @property
    def epochs(self) -> list[int]:
        return [body["epoch"] for _, _, body in self.got]


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


NOTICE = Notice(4, "1-n4", TABLES)
DOCUMENT = write_document("shop", NOTICE)


def failure(listener: Webhook | CommandListener) -> str:
    with pytest.raises(CallFailed) as caught:
        listener.call(DOCUMENT)
    return str(caught.value)


class TestWebhook:
    def test_it_gets_the_document_with_its_headers(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOOK", f"http://user:pa%20ss@{server.address}/hook?token=t")
        monkeypatch.setenv("TOKEN", "secret")
        Webhook("hook", Secret("${HOOK}"), (("X-Token", Secret("${TOKEN}")), ("X-Plain", "text"))).call(DOCUMENT)
        ((path, headers, body),) = server.got
        assert path == "/hook?token=t"
        assert (headers["X-Token"], headers["X-Plain"], headers["Content-Type"]) == ("secret", "text", "application/json")
        assert headers["Authorization"] == "Basic dXNlcjpwYSBzcw=="
        assert body == {
            "id": "shop/4/1-n4",
            "pipeline": "shop",
            "epoch": 4,
            "tables": [
                {"table": ITEMS, "snapshot": 3, "committed_ms": None},
                {"table": ORDERS, "snapshot": 7, "committed_ms": 60},
            ],
        }

    @pytest.mark.parametrize("status", [400, 404, 500, 503])
    def test_another_status_is_a_failure(self, server: Server, status: int) -> None:
        server.status = status
        assert failure(Webhook("hook", f"http://{server.address}/")) == f"HTTP status {status}"

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_a_redirect_leads_nowhere(self, server: Server, status: int) -> None:
        other = Server()
        server.status, server.headers = status, {"Location": f"http://{other.address}/stolen"}
        assert failure(Webhook("hook", f"http://{server.address}/")) == f"HTTP status {status}, and redirects are not followed"
        assert (len(server.got), other.got) == (1, [])
        other.http.shutdown()

    def test_one_that_hangs_is_cut_off_in_time(self, server: Server) -> None:
        over = threading.Event()
        server.before = lambda _: over.wait(60) and None
        began = time.monotonic()
        assert failure(Webhook("hook", f"http://{server.address}/", timeout_s=0.3)) == "no answer in 0.3 s"
        assert time.monotonic() - began < 10
        over.set()

    def test_one_that_answers_byte_by_byte_is_cut_off_in_time(self, server: Server) -> None:
        over = threading.Event()

        def drip(handler: Any) -> None:
            for _ in range(200):
                try:
                    handler.wfile.write(b"H")
                    handler.wfile.flush()
                except OSError:
                    return
                if over.wait(0.05):
                    return

        server.before = drip
        began = time.monotonic()
        assert failure(Webhook("hook", f"http://{server.address}/", timeout_s=0.5)) == "no answer in 0.5 s"
        assert time.monotonic() - began < 10
        over.set()

    def test_what_it_says_of_a_failure_has_no_secret(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        for address in (
            f"http://user:hunter2@127.0.0.1:{port}/hunter2",
            "http://hunter2.invalid/",
            "http://127.0.0.1:hunter2/",
            "ftp://hunter2/",
            f"http://{server.address}/hunter2 two",
            f"https://{server.address}/hunter2",
            "hunter2",
        ):
            monkeypatch.setenv("HOOK", address)
            assert "hunter2" not in failure(Webhook("hook", Secret("${HOOK}"), timeout_s=5.0))
        monkeypatch.setenv("TOKEN", "hunter2\nX-Other: y")
        assert "hunter2" not in failure(Webhook("hook", f"http://{server.address}/", (("X-Token", Secret("${TOKEN}")),)))
        monkeypatch.delenv("TOKEN")
        assert failure(Webhook("hook", Secret("${TOKEN}"))).startswith("environment variable TOKEN is not set")


class TestCommand:
    def test_it_gets_the_document_and_no_shell_looks_at_its_arguments(self, tmp_path: Path) -> None:
        code = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read() + sys.argv[2])"
        CommandListener("dbt", (sys.executable, "-c", code, str(tmp_path / "got"), "$HOME; *")).call(DOCUMENT)
        assert (tmp_path / "got").read_text() == DOCUMENT.decode() + "$HOME; *"

    def test_one_that_reads_nothing_may_succeed(self) -> None:
        big = write_document("shop", replace(NOTICE, tables=TABLES * 20_000))
        CommandListener("dbt", ("true",)).call(big)

    def test_its_failures_are_told(self, tmp_path: Path) -> None:
        assert failure(CommandListener("dbt", ("false",))) == "its program ended with exit code 1"
        assert failure(CommandListener("dbt", ("sh", "-c", "kill -9 $$"))) == "its program was ended by signal 9"
        assert failure(CommandListener("dbt", (str(tmp_path / "hunter2"),))) == "its program can't be started: No such file or directory"

    def test_one_that_hangs_is_killed_with_its_children(self, tmp_path: Path) -> None:
        code = f"echo $$ >> {tmp_path}/pids; sleep 300 & echo $! >> {tmp_path}/pids; wait"
        began = time.monotonic()
        assert failure(CommandListener("dbt", ("sh", "-c", code), timeout_s=1.0)) == "its program was killed after 1 s"
        assert time.monotonic() - began < 15
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        until(lambda: not any(is_running(pid) for pid in pids))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ---- beside the loop


def notice(epoch: int) -> Notice:
    return Notice(epoch, f"1-n{epoch}", TABLES)


FAST = RetryBudget(first_s=0.01, longest_s=0.02)


class TestNotifier:
    def test_a_notice_is_given_beside_the_loop_and_known_then(self, server: Server) -> None:
        over = threading.Event()
        server.before = lambda _: over.wait(60) and None
        notifier = Notifier("shop", [Webhook("hook", f"http://{server.address}/", timeout_s=60.0)])
        assert notifier.notify(notice(4), ["hook"]) == {}
        until(lambda: server.epochs == [4])
        # While it is slow epochs go on, and the newest waits.
        for epoch in (5, 6, 7):
            began = time.monotonic()
            assert notifier.notify(notice(epoch), ["hook"]) == {}
            assert time.monotonic() - began < 5
        over.set()
        until(lambda: notifier.known == {"hook": ListenerProgress(7)})
        assert server.epochs == [4, 7]
        notifier.notify(notice(7), ["hook"])
        notifier.close()
        assert server.epochs == [4, 7], "what was taken is not given again"

    def test_one_that_fails_is_called_again_until_it_takes_it_and_told_once(self, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        server.status = 500
        notifier = Notifier("shop", [Webhook("hook", f"http://{server.address}/")], budget=FAST)
        notifier.notify(notice(4), ["hook"])
        until(lambda: len(server.got) > 3)
        assert notifier.known == {"hook": ListenerProgress(0, "HTTP status 500")}
        assert len({str(body) for _, _, body in server.got}) == 1, "a repeated notice is the same"
        notifier.notify(notice(5), ["hook"])
        until(lambda: server.epochs[-1] == 5)
        server.status = 200
        until(lambda: notifier.known == {"hook": ListenerProgress(5)})
        until(lambda: len(caplog.records) == 2)
        assert [record.getMessage() for record in caplog.records] == [
            "a listener does not take its notice; it is called again",
            "a listener takes notices again",
        ]
        assert vars(caplog.records[0])["why"] == "HTTP status 500"
        assert server.address not in caplog.text
        notifier.close()

    def test_one_that_fails_or_hangs_keeps_no_other_from_its_notice(self, server: Server) -> None:
        listeners = [
            CommandListener("hangs", ("sleep", "300"), 2.0),
            CommandListener("fails", ("false",)),
            Webhook("hook", f"http://{server.address}/"),
        ]
        notifier = Notifier("shop", listeners)
        for epoch in (4, 5):
            notifier.notify(notice(epoch), notifier.names)
            until(lambda epoch=epoch: notifier.known.get("hook") == ListenerProgress(epoch))  # type: ignore[misc]
        assert notifier.known["fails"] == ListenerProgress(0, "its program ended with exit code 1")
        began = time.monotonic()
        notifier.close()
        assert time.monotonic() - began < 30

    def test_at_the_end_the_newest_notice_is_given(self, server: Server) -> None:
        server.before = lambda _: time.sleep(0.2)
        notifier = Notifier("shop", [Webhook("hook", f"http://{server.address}/")])
        notifier.notify(notice(4), ["hook"])
        until(lambda: server.epochs == [4])
        notifier.notify(notice(5), ["hook"])
        notifier.close()
        assert server.epochs == [4, 5]
        assert notifier.known == {"hook": ListenerProgress(5)}

    def test_a_bug_of_a_call_ends_no_thread(self) -> None:
        class Broken(Webhook):
            def call(self, document: bytes) -> None:
                raise KeyError("hunter2")

        notifier = Notifier("shop", [Broken("hook", "http://x/")], budget=FAST)
        notifier.notify(notice(4), ["hook"])
        until(lambda: notifier.known == {"hook": ListenerProgress(0, "KeyError")})
        notifier.close()

    def test_without_listeners_there_is_no_thread(self) -> None:
        before = threading.active_count()
        notifier = Notifier("shop", ())
        assert notifier.notify(notice(4), []) == {}
        notifier.close()
        assert threading.active_count() == before
