"""A run that is kept up: which errors start a new driver, how it ends, and what one sees of it."""

from __future__ import annotations

import io
import itertools
import json
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from snowmelt import budgets
from snowmelt.engine.log.standby import RelayActivity, RelayStatus
from snowmelt.engine.loop.driver import Progress
from snowmelt.engine.tasks.jobs import SparkGone
from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.supervise.restarts import Interrupts, start_compiling, supervise
from snowmelt.supervise.session import _handlers_kept, _uninterrupted
from snowmelt.supervise.terminal import TABLES_SHOWN_MAX, JsonLines, Lines, Screen, notes_of_log, relay_teller, round_teller
from snowmelt.tiering.rounds import RoundState

COPYING = Progress(
    epoch=3,
    upto=900,
    done_upto=500,
    captured=1_500_500,
    time_ms=99_000,
    rows=1234,
    phases={"shop.orders": "snapshotting", "shop.[red]": "released"},
    targets={"shop.orders": "ods.orders", "shop.[red]": "ods.red"},
    chunks={"shop.orders": (3, 12)},
)
LIVE = replace(COPYING, epoch=4, done_upto=1_500_500, phases=dict.fromkeys(COPYING.phases, "released"), chunks={})


class Written:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.seen: list[int] = []
        self.ended = 0

    def begin(self) -> None:
        pass

    def look(self, progress: Progress, *, final: bool = False) -> None:
        self.seen.append(progress.epoch)

    def note(self, event: str, text: str) -> None:
        self.notes.append(f"{event}: {text}")

    def end(self) -> None:
        self.ended += 1


class FakeDriver:
    """Does its epochs, then fails, or becomes current, or goes on for ever."""

    def __init__(self, epochs: int = 0, error: SnowmeltError | None = None, before: int = 0) -> None:
        self.progress = Progress(epoch=before)
        self._epochs = epochs
        self._error = error
        self.stopped = False

    def run(self, until: Callable[[Any], bool]) -> None:
        for _ in range(self._epochs):
            self.progress = replace(self.progress, epoch=self.progress.epoch + 1)
            if until(self) or self.stopped:
                return
        if self._error is not None:
            raise self._error
        while not until(self) and not self.stopped:
            pass

    def stop(self) -> None:
        self.stopped = True

    def caught_up(self) -> bool:
        return self._error is None


class Asked(threading.Event):
    """An event whose waits cost no time and are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return self.is_set()


def drive(*drivers: FakeDriver, asked: Asked | None = None, until_current: bool = True) -> tuple[Progress, Written, Asked]:
    watcher, asked, rest = Written(), asked or Asked(), iter(drivers)
    clock = iter(range(1_000_000))
    last = supervise(lambda: next(rest), watcher, asked, until_current=until_current, clock=lambda: float(next(clock)))
    return last, watcher, asked


# ---- restarts


@pytest.mark.parametrize("kind", [Unavailable, OutcomeUnknown])
def test_what_may_work_later_starts_a_new_driver_after_a_pause(kind: type[SnowmeltError]) -> None:
    last, watcher, asked = drive(FakeDriver(2, kind("the lake can't be reached", detail="it hides")), FakeDriver(3, before=2))
    assert last.epoch >= 3
    assert asked.pauses == [1.0]
    assert watcher.notes == ["warning: the lake can't be reached: it hides; a new driver starts in 1 s, 1 of 10"]


@pytest.mark.parametrize("kind", [Fenced, SourceDrift, Corrupt, InvalidConfig, SparkGone])
def test_what_no_new_driver_heals_ends_the_run_at_once(kind: type[SnowmeltError]) -> None:
    with pytest.raises(kind, match="no more"):
        drive(FakeDriver(1, kind("no more")), FakeDriver())


RESTARTS = budgets.DRIVERS.retries_max or 0


def test_a_driver_that_never_gets_anywhere_is_given_up_after_growing_pauses() -> None:
    asked = Asked()
    drivers = [FakeDriver(0, Unavailable("gone", detail=str(n))) for n in range(RESTARTS + 2)]
    with pytest.raises(Unavailable, match=f"gone: {RESTARTS}; {RESTARTS} new drivers met the same"):
        drive(*drivers, asked=asked)
    assert asked.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_an_epoch_between_two_failures_begins_the_count_anew() -> None:
    drivers = [FakeDriver(1, Unavailable("gone"), before=n) for n in range(3 * RESTARTS)]
    _, _, asked = drive(*drivers, FakeDriver())
    assert set(asked.pauses) == {1.0}


def test_ctrl_c_during_a_pause_ends_the_run_without_a_new_driver() -> None:
    class Impatient(Asked):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    drive(FakeDriver(0, Unavailable("gone")), asked=Impatient())


# ---- the end


def test_until_current_ends_when_the_lake_is_current_and_says_where_it_is() -> None:
    last, watcher, _ = drive(FakeDriver(5))
    assert watcher.seen[-1] == last.epoch


def test_what_a_command_waits_for_ends_its_run() -> None:
    driver = FakeDriver()
    answers = iter([False, False, True])
    watcher, clock = Written(), itertools.count()
    supervise(lambda: driver, watcher, Asked(), ended=lambda: next(answers), clock=lambda: float(next(clock)))
    assert next(answers, "all were asked") == "all were asked"


def test_the_first_ctrl_c_lets_the_epoch_end_and_the_second_does_not_wait() -> None:
    asked, left = Asked(), []
    watcher = Written()
    interrupts = Interrupts(watcher, leave=left.append)
    interrupts.hear(signal.SIGINT, None)
    assert (interrupts.asked.is_set(), left, watcher.ended) == (True, [], 0)
    interrupts.hear(signal.SIGINT, None)
    assert (left, watcher.ended) == ([130], 1)

    class AsksInTheMiddle(FakeDriver):
        def caught_up(self) -> bool:
            asked.set()
            return False

    driver = AsksInTheMiddle(10)
    _, told, _ = drive(driver, asked=asked)
    assert driver.stopped
    assert told.notes == ["note: ending after the epoch under way; a second Ctrl-C ends at once"]


def test_ctrl_c_while_spark_starts_is_heard_by_us_and_not_by_a_handler_of_spark() -> None:
    ours: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: ours.append(number))
    try:
        with _uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert not ours
        assert ours.pop() == signal.SIGINT
        with _handlers_kept():
            signal.signal(signal.SIGINT, lambda *_: pytest.fail("Spark's handler was called"))
            signal.raise_signal(signal.SIGINT)
            assert not ours
        assert ours == [signal.SIGINT]
        signal.raise_signal(signal.SIGINT)
        assert ours == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_before_the_first_driver_starts_none() -> None:
    asked = Asked()
    asked.set()
    assert drive(asked=asked)[0] == Progress()


# ---- what is seen


def test_lines_tell_each_phase_once_and_an_epoch_at_most_every_second() -> None:
    lines: list[str] = []
    now = [0.0]
    watcher = Lines(lines.append, clock=lambda: now[0], now=lambda: 100.0)
    for _ in range(3):
        watcher.look(COPYING)
    watcher.look(replace(COPYING, epoch=4))
    now[0] = 1.0
    watcher.look(LIVE)
    watcher.look(replace(LIVE, epoch=5))
    watcher.look(replace(LIVE, epoch=6), final=True)
    now[0] = 10.9
    watcher.look(replace(LIVE, epoch=6))
    now[0] = 11.0
    watcher.look(replace(LIVE, epoch=6, captured=LIVE.captured + 5_000_000))
    watcher.note("warning", "slow")
    watcher.note("note", "ending")
    assert lines == [
        "shop.orders -> ods.orders: snapshotting",
        "shop.[red] -> ods.red: live",
        "epoch 3, tables: 1 snapshotting, 1 live (3 of 12 chunks), lag 1.5 MB (1 s), rows 1,234",
        "shop.orders -> ods.orders: live",
        "epoch 4, tables: 2 live, lag 0.0 MB (0 s), rows 1,234",
        "epoch 6, tables: 2 live, lag 0.0 MB (0 s), rows 1,234",
        "epoch 6, tables: 2 live, lag 5.0 MB (1 s), rows 1,234",
        "warning: slow",
        "ending",
    ]


def test_a_capture_that_waits_for_the_lake_is_told_once_and_so_is_its_end() -> None:
    lines: list[str] = []
    told: list[str] = []
    now = [0.0]
    watchers = [kind(out, clock=lambda: now[0], now=lambda: 100.0) for kind, out in ((Lines, lines.append), (JsonLines, told.append))]
    paused = replace(LIVE, paused=True, held_bytes=17_000_000_000)
    for progress in (LIVE, paused, paused, LIVE, LIVE):
        for watcher in watchers:
            watcher.look(progress)
        now[0] += 2
    assert lines[-2:] == [
        "capture is paused: 17,000.0 MB of the log wait for the lake, as much as disk_bytes_max allows",
        "capture resumed",
    ]
    assert [json.loads(line)["paused"] for line in told] == [False, True, False]
    assert json.loads(told[1])["held_bytes"] == 17_000_000_000


def test_a_relay_tells_what_it_does_when_that_changes_and_now_and_then_how_far_it_is() -> None:
    lines: list[str] = []
    tell = relay_teller(lines.append, as_json=False)
    for standing in (
        RelayStatus(RelayActivity.STANDS_BY, None, 0),
        RelayStatus(RelayActivity.STANDS_BY, None, 0),
        RelayStatus(RelayActivity.CAPTURES, Position(3, 4), 0),
        RelayStatus(RelayActivity.CAPTURES, Position(3, 500), 496),
        RelayStatus(RelayActivity.PAUSED, Position(3, 900), 1_000_000),
    ):
        tell(standing)
    assert lines == [
        "standing by, another process captures, 0.0 MB held",
        "capturing, captured up to 0/3:4, 0.0 MB held",
        "paused, as much is held as disk_bytes_max allows; `snowmelt run` brings it to the lake, captured up to 0/3:900, 1.0 MB held",
    ]


def test_json_has_an_object_a_line_and_says_nothing_twice() -> None:
    lines: list[str] = []
    now = [0.0]
    watcher = JsonLines(lines.append, clock=lambda: now[0], now=lambda: 100.0)
    for progress in (COPYING, COPYING, LIVE, LIVE, LIVE):
        watcher.look(progress)
        now[0] += 0.9
    watcher.note("warning", "slow")
    told = [json.loads(line) for line in lines]
    assert [(one["event"], one.get("epoch")) for one in told] == [("progress", 3), ("progress", 4), ("warning", None)]
    assert told[0]["tables"]["shop.orders"] == {"target": "ods.orders", "phase": "snapshotting", "chunks": 3, "chunks_of": 12}
    assert (told[0]["lag_bytes"], told[0]["lag_s"], told[1]["lag_s"]) == (1_500_000, 1.0, 0.0)
    assert told[1]["tables"]["shop.[red]"] == {"target": "ods.red", "phase": "live"}


def test_a_screen_shows_names_as_they_are_and_what_is_unfinished_first() -> None:
    out = io.StringIO()
    watcher = Screen(Console(file=out, force_terminal=True, width=120, color_system=None), "shop-to-lake", now=lambda: 100.0)
    many = {f"shop.t{n:02}": "released" for n in range(TABLES_SHOWN_MAX)} | COPYING.phases
    watcher.begin()
    watcher.look(replace(COPYING, phases=many, targets={name: f"ods.{name[5:]}" for name in many}))
    watcher.note("warning", "a [bold] thing")
    watcher.end()
    watcher.end()
    shown = out.getvalue()
    assert "shop-to-lake  epoch 3  lag 1.5 MB (1 s)  rows 1,234 (0/s)" in shown
    assert "shop.[red]" in shown
    assert "━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 3 of 12" in shown
    assert "warning: a [bold] thing" in shown
    assert "and 2 more" in shown
    assert shown.index("shop.orders") < shown.index("shop.t00")


def test_what_is_logged_reaches_the_watcher_and_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Written()
    log = logging.getLogger("snowmelt.databases.mysql.log.capture")
    with notes_of_log(watcher, debug=False):
        log.warning("capture lost its connection, try %d", 1)
        log.info("nothing of interest")
    log.error("after the run")
    assert watcher.notes == ["warning: capture lost its connection, try 1"]
    assert "capture lost" not in capsys.readouterr().err


def test_compiling_is_told_at_once_now_and_then_and_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def warm(tell: Callable[[int, int], None]) -> None:
        nonlocal now
        for ready in range(48):
            tell(ready, 47)
            now += 1.0

    monkeypatch.setattr("snowmelt.engine.tasks.warming.warm", warm)
    watcher = Written()
    start_compiling(watcher, clock=lambda: now)(threading.Event())
    assert "compiling 47 kernels" in watcher.notes[0]
    assert watcher.notes[1:] == [f"note: kernels: {ready} of 47 compiled" for ready in (*range(5, 47, 5), 47)]


def test_an_error_of_compiling_is_raised_and_a_user_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = threading.Event()

    def warm(_tell: Callable[[int, int], None]) -> None:
        going_on.wait(60)
        raise RuntimeError("no compiler")

    monkeypatch.setattr("snowmelt.engine.tasks.warming.warm", warm)
    asked = threading.Event()
    asked.set()
    wait = start_compiling(Written())
    wait(asked)
    going_on.set()
    with pytest.raises(RuntimeError, match="no compiler"):
        wait(threading.Event())


def test_a_round_tells_the_lease_that_it_read_under() -> None:
    told: list[str] = []
    end = RoundEnd(
        path=TableId("shop", "orders"), state=RoundState.FINISHED, rows=3, seconds=1.0, snapshot=7, error=None, lease="shop-1-x", leased=2
    )
    round_teller(told.append, as_json=True)(end)
    found = json.loads(told[0])
    assert (found["lease"], found["leased"]) == ("shop-1-x", 2)
