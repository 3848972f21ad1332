"""What a tiering service writes down of itself, and what `snowmelt tier status` makes of it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from snowmelt.cli.main import app
from snowmelt.engine.driver.signs import DriverActivity
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.status import StatusFile, read_statuses, status_folder
from snowmelt.errors import InvalidConfig, Unavailable
from snowmelt.model.table import TableId
from snowmelt.tiering.leases import LeasePhase, LeaseStatus
from snowmelt.tiering.rounds import RoundState

NAME, BOOTSTRAP = "shop", "fluss.example.com:9123"
PATH = TableId("shop", "orders")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return status_folder(NAME, BOOTSTRAP)


@pytest.fixture
def described(tmp_path: Path) -> str:
    file = tmp_path / "tiering.yaml"
    lake = {"type": "paimon", "warehouse": str(tmp_path)}
    file.write_text(json.dumps({"fluss": {"bootstrap": BOOTSTRAP}, "lake": lake, "tiering": {"name": NAME}}))
    return str(file)


def ask(file: str, *more: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["tier", "status", file, *more])
    return answer.exit_code, answer.output


def beat(service: StatusFile, *leases: LeaseStatus, now_ms: int = 1000) -> None:
    """As soon as the next write is due."""
    service._due = 0.0
    service.beat([str(PATH)], leases, now_ms)


def ended(state: RoundState, error: Unavailable | None = None) -> RoundEnd:
    return RoundEnd(path=PATH, state=state, rows=10, seconds=0.5, snapshot=3, error=error)


def test_a_service_that_never_ran_here_is_told(described: str) -> None:
    assert ask(described) == (0, "shop: no tiering service of this name has run on this machine for this user\n")


def test_a_running_service_shows_its_rounds_and_its_leases(described: str) -> None:
    service = StatusFile(NAME, BOOTSTRAP)
    service.begin()
    service.count(ended(RoundState.FINISHED))
    service.count(ended(RoundState.FAILED, Unavailable("the lake is away")))
    # The clock of leases is not the wall's: this one is held for 4 s and covered for 7 s more.
    beat(
        service,
        LeaseStatus(lease="shop-5-abc", path=PATH, phase=LeasePhase.HELD, buckets=2, held_ms=6_000, covered_ms=17_000),
        now_ms=10_000,
    )
    code, text = ask(described)
    lines = text.splitlines()
    assert code == 0
    assert lines[0].startswith("shop: runs as process ")
    assert lines[1] == "rounds: 1 under way (shop.orders); ended: 1 failed, 1 finished"
    assert lines[2].endswith("the lake is away")
    assert lines[3].startswith("lease shop-5-abc: shop.orders, held, 2 KV snapshots, held since ")
    [found] = read_statuses(NAME, BOOTSTRAP)
    [lease] = found.leases
    assert (lease.held_ms, lease.covered_ms) == (found.at_ms - 4_000, found.at_ms + 7_000)
    assert json.loads(ask(described, "--json")[1])["services"][0]["leases"][0]["lease"] == "shop-5-abc"


def test_a_service_writes_once_a_second_and_not_with_each_heartbeat() -> None:
    service = StatusFile(NAME, BOOTSTRAP)
    service.begin()
    service.beat([str(PATH)], (), 0)
    assert read_statuses(NAME, BOOTSTRAP)[0].tables == ()
    beat(service)
    assert read_statuses(NAME, BOOTSTRAP)[0].tables == (str(PATH),)


def test_how_it_ended_is_told_with_a_code(described: str) -> None:
    service = StatusFile(NAME, BOOTSTRAP)
    service.begin()
    service.end(None)
    code, text = ask(described)
    assert (code, "it ended as asked" in text) == (0, True)
    service.end(RuntimeError("a password perhaps"))
    code, text = ask(described)
    assert (code, "stopped by an error" in text, "RuntimeError" in text, "perhaps" in text) == (1, True, True, False)


def _run_and_die(name: str) -> None:
    StatusFile(name, BOOTSTRAP).begin()


def dead(name: str = NAME) -> None:
    process = multiprocessing.get_context("fork").Process(target=_run_and_die, args=(name,))
    process.start()
    process.join()


def test_one_that_died_is_told_and_forgotten_when_the_next_ones_have_run(described: str, folder: Path) -> None:
    dead()
    code, text = ask(described)
    assert (code, "died, last sign of life" in text) == (1, True)
    dead()
    assert len(list(folder.glob("*.json"))) == 2
    StatusFile(NAME, BOOTSTRAP).begin()
    assert len(list(folder.glob("*.json"))) == 2, "of those that died the newest is kept"
    assert [found.life for found in read_statuses(NAME, BOOTSTRAP)] == [DriverActivity.RUNS], "a running one is shown instead"


def test_services_of_other_names_and_clusters_are_not_mixed() -> None:
    StatusFile(NAME, BOOTSTRAP).begin()
    assert read_statuses("other", BOOTSTRAP) == []
    assert read_statuses(NAME, "elsewhere:9123") == []


@pytest.mark.parametrize("content", [b"", b"{}", b'{"name": 3}', b"\xff" * 10, b" " * ((1 << 20) + 1)])
def test_a_file_that_can_not_be_read_hides_no_other_and_stops_no_service(
    described: str, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "2.json").mkdir(parents=True)
    (folder / "1.json").write_bytes(content)
    StatusFile(NAME, BOOTSTRAP).begin()
    caplog.clear()
    assert [found.life for found in read_statuses(NAME, BOOTSTRAP)] == [DriverActivity.RUNS]
    assert caplog.messages == ["a status file can't be read"] * 2


def test_a_folder_that_can_not_be_written_is_warned_of_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    service = StatusFile(NAME, BOOTSTRAP)
    service.begin()
    beat(service)
    assert len(caplog.messages) == 1


def test_wrong_words_are_one_line(described: str) -> None:
    answer = CliRunner().invoke(app, ["tier", "status", described, "more"])
    assert isinstance(answer.exception, InvalidConfig)
