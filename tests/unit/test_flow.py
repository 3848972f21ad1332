"""When capture stops because of what is held, and that it never stops for good."""

from __future__ import annotations

import pytest

from snowmelt.model.position import Position
from snowmelt.relay.flow import Backlog, Flow, Need, decide_flow

SOFT, HARD = 100, 400
END = Position(1, 50)


def flow(size: int, need: Need, *, sealed: int = 1_000, end: Position | None = END) -> Flow:
    return decide_flow(Backlog(size, sealed, end), need, soft=SOFT, hard=HARD)


def test_below_its_cap_capture_reads_whatever_is_needed() -> None:
    for need in (Need(), Need(drained=1_000), Need(upto=Position(9, 9))):
        assert flow(SOFT - 1, need) is Flow.ON


@pytest.mark.parametrize("size", [SOFT, HARD - 1, HARD, 10 * HARD])
def test_at_its_cap_capture_waits_while_something_can_be_let_go_of(size: int) -> None:
    assert flow(size, Need()) is Flow.PAUSED


def test_a_transaction_that_has_no_cut_behind_it_goes_on_to_the_hard_cap() -> None:
    need = Need(drained=1_000)
    assert flow(HARD - 1, need) is Flow.ON
    assert flow(HARD, need) is Flow.FULL


def test_what_was_sealed_since_can_be_let_go_of_again() -> None:
    need = Need(drained=1_000)
    assert flow(SOFT, need, sealed=1_001) is Flow.PAUSED
    # Who says that there is nothing to be let go of may say so of a moment that is over; that is no reason to stop for good.
    assert flow(HARD, need, sealed=1_001) is Flow.PAUSED


@pytest.mark.parametrize("end", [None, END, Position(9, 9, era=7)])
def test_a_chunk_that_waits_for_the_log_gets_it_up_to_the_hard_cap(end: Position | None) -> None:
    need = Need(upto=Position(1, 51))
    assert flow(HARD - 1, need, end=end) is Flow.ON
    assert flow(HARD, need, end=end) is Flow.PAUSED


def test_a_chunk_that_has_its_log_needs_no_more() -> None:
    assert flow(SOFT, Need(upto=END)) is Flow.PAUSED
