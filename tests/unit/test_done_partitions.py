"""Which partitions are marked as done with an epoch, what is remembered, and that a mark that fails stops nothing."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.done_partitions import DoneMark, Marked, decide_marked, decide_marks
from snowmelt.commit.listener_state import read_marked, read_state, write_state
from snowmelt.commit.listeners import Reached
from snowmelt.commit.records import Intent
from snowmelt.engine.loop.listening import Listening
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.errors import Corrupt, Unavailable
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit, end_of, last_end

HOUR, DAY = 3_600_000, 86_400_000
TODAY = 20_775 * DAY
"""The beginning of 2026-11-18."""
MONTH = 20_758 * DAY
"""The beginning of 2026-11."""
ORDERS, ITEMS, NOTES = "ods.orders", "ods.items", "ods.notes"
UNITS = {ORDERS: Unit.DAY, ITEMS: Unit.DAY, NOTES: Unit.MONTH}


def reached(before_ms: int | None, watermark_ms: int | None) -> Reached:
    return Reached(7, "3-n7", before_ms, watermark_ms)


def every(before_ms: int | None, watermark_ms: int | None) -> dict[str, Reached]:
    return {target: reached(before_ms, watermark_ms) for target in UNITS}


class TestPeriods:
    def test_a_period_ends_where_the_next_begins(self) -> None:
        assert end_of(Unit.DAY, "2026-11-17") == last_end(Unit.DAY, TODAY) == last_end(Unit.DAY, TODAY + DAY - 1) == TODAY
        assert end_of(Unit.MONTH, "2026-10") == last_end(Unit.MONTH, MONTH) == last_end(Unit.MONTH, TODAY) == MONTH
        assert last_end(Unit.MONTH, MONTH - 1) == MONTH - 31 * DAY
        assert end_of(Unit.MONTH, "2024-02") == end_of(Unit.DAY, "2024-02-29")
        assert end_of(Unit.MONTH, "2026-12") == end_of(Unit.DAY, "2026-12-31")

    @pytest.mark.parametrize(
        "name", ["__DEFAULT_PARTITION__", "2026-02-30", "20261117", "2026-11", "2026-11-1", "9999-12-31", "0000-01-01", ""]
    )
    def test_what_is_no_day_has_no_end(self, name: str) -> None:
        assert end_of(Unit.DAY, name) is None

    @pytest.mark.parametrize("name", ["2026-13", "2026-11-17", "9999-12", "2026-1", "202611", "x"])
    def test_what_is_no_month_has_no_end(self, name: str) -> None:
        assert end_of(Unit.MONTH, name) is None

    def test_days_before_1970_are_over(self) -> None:
        assert end_of(Unit.DAY, "1969-12-31") == 0
        assert end_of(Unit.DAY, "0001-01-01") == -719_161 * DAY


class TestOwed:
    def test_a_table_that_is_whole_for_the_first_time_is_owed_all_that_is_over(self) -> None:
        owed = decide_marks(0, Marked(), every(None, TODAY + HOUR), UNITS)
        assert owed == [
            DoneMark(ITEMS, Unit.DAY, None, TODAY),
            DoneMark(NOTES, Unit.MONTH, None, MONTH),
            DoneMark(ORDERS, Unit.DAY, None, TODAY),
        ]

    def test_a_day_is_owed_when_the_watermark_passes_its_end_and_not_again(self) -> None:
        marked = Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH})
        assert decide_marks(0, marked, every(TODAY + HOUR, TODAY + DAY - 1), UNITS) == []
        owed = decide_marks(0, marked, every(TODAY + HOUR, TODAY + DAY), UNITS)
        assert owed == [DoneMark(target, Unit.DAY, TODAY, TODAY + DAY) for target in (ITEMS, ORDERS)]
        marked = decide_marked(marked, every(TODAY + HOUR, TODAY + DAY), UNITS, {mark.target: mark.upto_ms for mark in owed})
        assert marked == Marked({Unit.DAY: TODAY + DAY, Unit.MONTH: MONTH})
        assert decide_marks(0, marked, every(TODAY + DAY, TODAY + DAY + HOUR), UNITS) == []

    def test_the_delay_comes_after_the_end(self) -> None:
        marked = Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH})
        assert decide_marks(HOUR, marked, every(TODAY, TODAY + DAY + HOUR - 1), UNITS) == []
        assert len(decide_marks(HOUR, marked, every(TODAY, TODAY + DAY + HOUR), UNITS)) == 2
        assert decide_marks(2**60, Marked(), every(None, TODAY), UNITS) == []

    def test_a_shorter_delay_than_before_leaves_out_no_day(self) -> None:
        marked = decide_marked(Marked(), every(None, TODAY + HOUR), UNITS, dict.fromkeys(UNITS, TODAY - 3 * DAY))
        assert decide_marks(0, marked, every(TODAY + HOUR, TODAY + HOUR), {ORDERS: Unit.DAY}) == [
            DoneMark(ORDERS, Unit.DAY, TODAY - 3 * DAY, TODAY)
        ]

    def test_several_days_that_end_at_once_are_all_owed(self) -> None:
        owed = decide_marks(0, Marked({Unit.DAY: TODAY}), every(TODAY, TODAY + 5 * DAY), {ORDERS: Unit.DAY})
        assert owed == [DoneMark(ORDERS, Unit.DAY, TODAY, TODAY + 5 * DAY)]

    def test_a_table_that_is_copied_is_owed_nothing_and_then_all(self) -> None:
        marked = Marked({Unit.DAY: TODAY})
        copied = {ORDERS: reached(TODAY, None), ITEMS: reached(TODAY, TODAY + DAY)}
        assert [mark.target for mark in decide_marks(0, marked, copied, UNITS)] == [ITEMS]
        marked = decide_marked(marked, copied, UNITS, {ITEMS: TODAY + DAY})
        assert marked == Marked({Unit.DAY: TODAY + DAY})
        assert decide_marks(0, marked, {ORDERS: reached(None, TODAY + DAY)}, UNITS) == [DoneMark(ORDERS, Unit.DAY, None, TODAY + DAY)]

    def test_marks_that_are_asked_for_later_are_those_of_the_past_too(self) -> None:
        assert decide_marks(0, Marked(), every(TODAY, TODAY + 1), {ORDERS: Unit.DAY}) == [DoneMark(ORDERS, Unit.DAY, None, TODAY)]


class TestState:
    def test_a_mark_that_failed_is_owed_with_each_epoch_until_it_is_made(self) -> None:
        marked = Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH})
        for hour in range(3):
            tables = every(TODAY + DAY + hour, TODAY + DAY + hour + 1)
            owed = decide_marks(0, marked, tables, UNITS)
            assert DoneMark(ORDERS, Unit.DAY, TODAY, TODAY + DAY) in owed
            marked = decide_marked(marked, tables, UNITS, {mark.target: mark.upto_ms for mark in owed if mark.target != ORDERS})
            assert marked == Marked({Unit.DAY: TODAY + DAY, Unit.MONTH: MONTH}, {ORDERS: TODAY})
        assert decide_marks(0, marked, tables, {ORDERS: Unit.DAY}) == [DoneMark(ORDERS, Unit.DAY, TODAY, TODAY + DAY)]

    def test_a_first_mark_that_failed_is_owed_for_all_of_the_past(self) -> None:
        marked = decide_marked(Marked(), every(None, TODAY), UNITS, {ITEMS: TODAY, NOTES: MONTH})
        assert marked.exceptions == {ORDERS: 0}
        assert decide_marks(0, marked, every(TODAY, TODAY + 1), UNITS) == [DoneMark(ORDERS, Unit.DAY, None, TODAY)]

    def test_a_table_that_does_not_advance_loses_no_day(self) -> None:
        marked = Marked({Unit.DAY: TODAY})
        tables = {ORDERS: reached(TODAY, TODAY), ITEMS: reached(TODAY, TODAY + 9 * DAY)}
        marked = decide_marked(marked, tables, UNITS, {ITEMS: TODAY + 9 * DAY})
        assert decide_marks(0, marked, {ORDERS: reached(TODAY, TODAY + 9 * DAY)}, UNITS) == [
            DoneMark(ORDERS, Unit.DAY, TODAY, TODAY + 9 * DAY)
        ]

    def test_it_does_not_grow_with_the_tables(self) -> None:
        units = {f"ods.t{number}": Unit.DAY for number in range(1000)}
        tables = {target: reached(None, TODAY) for target in units}
        marked = decide_marked(Marked(), tables, units, dict.fromkeys(units, TODAY))
        assert len(write_state({}, None, marked)) < 60
        assert decide_marked(marked, {}, units, {}) == Marked()

    @pytest.mark.parametrize("marked", [Marked(), Marked({Unit.DAY: TODAY}), Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH}, {ORDERS: 0})])
    def test_it_is_read_as_it_was_written(self, marked: Marked) -> None:
        text = write_state({ITEMS: HOUR}, None, marked)
        assert read_marked(text) == marked
        assert read_state(text)[0] == {ITEMS: HOUR}
        assert read_marked("") == Marked()

    @pytest.mark.parametrize(
        "text",
        [
            '{"partitions":1}',
            '{"partitions":[{"day":-1},{}]}',
            '{"partitions":[{"value":1},{}]}',
            '{"partitions":[{}]}',
            '{"other":1}',
            "[",
        ],
    )
    def test_what_can_not_be_read_stops(self, text: str) -> None:
        with pytest.raises(Corrupt, match="state of the listeners"):
            read_marked(text)


class Lake:
    def __init__(self) -> None:
        self.marks: list[tuple[str, Unit, TimeMs | None, TimeMs]] = []
        self.failing: set[str] = set()

    def mark_done(self, target: str, unit: Unit, *, after_ms: TimeMs | None, upto_ms: TimeMs, now_ms: TimeMs) -> int:
        assert now_ms > TODAY
        if target in self.failing:
            raise Unavailable("the lake is away", detail=target)
        self.marks.append((target, unit, after_ms, upto_ms))
        return 1


EMPTY = Intent(epoch=1, generation=3, nonce="n1", after=0, upto=10, time_ms=TODAY, facts=(), entries=(), sequence_max=99, segment=1)


def test_marks_are_made_and_one_that_fails_stops_no_commit_and_is_owed(caplog: pytest.LogCaptureFixture) -> None:
    lake = Lake()
    opened: Any = lambda: lake  # noqa: E731
    machine = Listening(None, opened, Notifier("test", ()), done_delay_ms=0, pause_s=0.0)
    assert machine.marks_partitions
    lake.failing = {ORDERS}
    state = machine.hear(RunListeners(EMPTY, "", every(None, TODAY)), UNITS)
    assert lake.marks == [(ITEMS, Unit.DAY, None, TODAY), (NOTES, Unit.MONTH, None, MONTH)]
    assert read_marked(state) == Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH}, {ORDERS: 0})
    assert "the mark of a partition could not be made" in caplog.text
    lake.failing = set()
    state = machine.hear(RunListeners(EMPTY, state, every(TODAY, TODAY + 1)), UNITS)
    assert lake.marks[2:] == [(ORDERS, Unit.DAY, None, TODAY)]
    assert read_marked(state) == Marked({Unit.DAY: TODAY, Unit.MONTH: MONTH})
    assert machine.hear(RunListeners(EMPTY, state, every(TODAY + 1, TODAY + 2)), UNITS) == state
    assert len(lake.marks) == 3


def test_without_marks_nothing_is_asked_of_the_lake_and_no_state_is_kept() -> None:
    machine = Listening(None, pytest.fail, Notifier("test", ()))
    assert not machine.marks_partitions
    state = write_state({}, None, Marked({Unit.DAY: TODAY}))
    assert machine.hear(RunListeners(EMPTY, state, every(TODAY, TODAY + DAY)), UNITS) == ""
