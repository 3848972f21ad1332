"""How long a driver waits for the folder of the log."""

from __future__ import annotations

from snowmelt.relay.takeover import ANOTHER_MS, TELL_FIRST_MS, TELL_MS, Waiting, decide_wait

DAY_MS = 24 * 60 * 60 * 1000


def decide(waited_ms: int, *, told_ms: int = 0, newest: bool = True, took_another: bool = True) -> Waiting:
    return decide_wait(waited_ms=waited_ms, told_ms=told_ms, newest=newest, took_another=took_another)


def test_the_newest_driver_waits_however_long_the_older_one_is_paused() -> None:
    for waited_ms in (0, ANOTHER_MS + 1, TELL_MS + 1, DAY_MS, 365 * DAY_MS):
        assert decide(waited_ms, told_ms=waited_ms) is Waiting.LOOK


def test_a_driver_that_waits_ends_when_a_newer_one_exists() -> None:
    for waited_ms in (0, ANOTHER_MS + 1, DAY_MS):
        assert decide(waited_ms, newest=False, took_another=False) is Waiting.FENCED


def test_another_generation_is_taken_once_for_a_relay_that_saw_ours_before_it_took_the_folder() -> None:
    assert decide(ANOTHER_MS, took_another=False) is Waiting.LOOK
    assert decide(ANOTHER_MS + 1, took_another=False) is Waiting.ANOTHER
    assert decide(ANOTHER_MS + 1) is Waiting.LOOK


def test_the_operator_is_told_now_and_then() -> None:
    assert decide(TELL_FIRST_MS - 1) is Waiting.LOOK
    assert decide(TELL_FIRST_MS) is Waiting.TELL, "soon for the first time"
    assert decide(TELL_FIRST_MS + 1, told_ms=TELL_FIRST_MS) is Waiting.LOOK
    assert decide(TELL_FIRST_MS + TELL_MS, told_ms=TELL_FIRST_MS) is Waiting.TELL
