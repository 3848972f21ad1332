"""Tags: which are owed with an epoch, what is remembered of those that could not be made, and that making them stops nothing."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listener_state import read_state, write_state
from snowmelt.commit.listeners import Period, Reached, Tag, Tagged, decide_tagged, decide_tags
from snowmelt.commit.notices import Notices
from snowmelt.commit.records import Committed, Entry, Intent
from snowmelt.engine.loop.listening import Listening
from snowmelt.engine.notices.notifier import Notifier
from snowmelt.errors import Corrupt, Unavailable
from snowmelt.model.table import TableId
from snowmelt.planning.facts import OUTSIDE, Adopted, Found, Gone, Incarnation
from tests.kit.waiting import until

HOUR, DAY = 3_600_000, 86_400_000
NOON = 20_775 * DAY + 12 * HOUR
"""Of 2026-11-18."""
ORDERS, ITEMS = "ods.orders", "ods.items"


def reached(before_ms: int | None, watermark_ms: int | None, snapshot: int = 7) -> Reached:
    return Reached(snapshot, "3-n7", before_ms, watermark_ms)


def owed(period: Period, before_ms: int | None, watermark_ms: int | None, tagged: Tagged | None = None) -> list[str]:
    return [tag.name for tag in decide_tags(period, tagged or {}, {ORDERS: reached(before_ms, watermark_ms)})]


class TestOwed:
    def test_a_tag_is_owed_when_the_watermark_passes_the_end_of_a_period_and_not_again(self) -> None:
        assert owed(Period.HOUR, NOON - 1, NOON) == ["2026-11-18T11"], "what was committed before noon is there"
        assert owed(Period.HOUR, NOON - 1, NOON - 1) == []
        assert owed(Period.HOUR, NOON, NOON + HOUR - 1) == []
        assert owed(Period.DAY, NOON, NOON + HOUR) == []
        assert owed(Period.DAY, NOON, NOON + 12 * HOUR) == ["2026-11-18"]

    def test_it_names_the_newest_snapshot_of_ours(self) -> None:
        table = Reached(9, "4-n8", NOON - 1, NOON + 5)
        assert decide_tags(Period.HOUR, {}, {ORDERS: table}) == [Tag(ORDERS, "2026-11-18T11", 9, "4-n8")]

    def test_a_period_that_ended_before_the_table_was_whole_has_no_tag(self) -> None:
        assert owed(Period.HOUR, None, NOON) == []
        assert decide_tagged(Period.HOUR, {}, {ORDERS: reached(None, NOON)}, ()) == {}

    def test_of_several_periods_that_end_at_once_the_last_has_a_tag(self) -> None:
        assert owed(Period.DAY, NOON, NOON + 5 * DAY) == ["2026-11-22"]

    def test_tables_are_judged_one_by_one(self) -> None:
        tables = {ORDERS: reached(NOON - 1, NOON), ITEMS: reached(NOON - 1, None), "ods.a": reached(NOON - 1, NOON)}
        assert [tag.target for tag in decide_tags(Period.HOUR, {}, tables)] == ["ods.a", ORDERS]


class TestState:
    def test_a_tag_that_was_made_leaves_nothing(self) -> None:
        assert decide_tagged(Period.HOUR, {}, {ORDERS: reached(NOON - 1, NOON)}, ()) == {}

    def test_one_that_is_missing_is_owed_with_each_epoch_until_it_is_made(self) -> None:
        tables = {ORDERS: reached(NOON - 1, NOON)}
        tagged = decide_tagged(Period.HOUR, {}, tables, {ORDERS})
        assert tagged == {ORDERS: NOON - HOUR}
        later = {ORDERS: reached(NOON, NOON + 1, snapshot=8)}
        assert decide_tags(Period.HOUR, tagged, later) == [Tag(ORDERS, "2026-11-18T11", 8, "3-n7")]
        assert decide_tagged(Period.HOUR, tagged, later, {ORDERS}) == tagged
        assert decide_tagged(Period.HOUR, tagged, later, ()) == {}

    def test_a_period_that_ends_while_the_table_is_copied_again_has_its_tag_afterwards(self) -> None:
        gone = {ORDERS: reached(NOON - 1, None)}
        tagged = decide_tagged(Period.HOUR, {}, gone, ())
        assert tagged == {ORDERS: NOON - HOUR}
        assert decide_tags(Period.HOUR, tagged, gone) == []
        tagged = decide_tagged(Period.HOUR, tagged, {ORDERS: reached(None, None)}, ())
        assert owed(Period.HOUR, None, NOON + 1, tagged) == ["2026-11-18T11"]
        assert owed(Period.HOUR, None, NOON - 1, tagged) == []

    def test_of_a_table_that_is_gone_nothing_is_kept(self) -> None:
        assert decide_tagged(Period.HOUR, {ITEMS: NOON}, {ORDERS: reached(NOON, NOON)}, {ITEMS}) == {}

    def test_it_is_the_same_behind_a_restart(self) -> None:
        tagged = {ORDERS: NOON, ITEMS: 0}
        assert read_state(write_state(tagged)) == (tagged, Notices())
        assert write_state(tagged) == write_state(dict(reversed(tagged.items())))
        assert read_state(write_state({})) == ({}, Notices())
        assert write_state({}) == ""

    @pytest.mark.parametrize("text", ["heard", "{}", "[]", '{"tags":[]}', '{"tags":{"a":"b"}}', '{"tags":{"a":-1}}', '{"tags":{"a":true}}'])
    def test_what_is_none_is_corrupt(self, text: str) -> None:
        with pytest.raises(Corrupt, match="the state of the listeners can't be read"):
            read_state(text)


def intent(ledger: Ledger, time_ms: int, *facts: Any) -> Intent:
    epoch = ledger.epoch + 1
    entry = Entry(target=ORDERS, uuid="u", buckets=2, schema=0, new_schema=None, base=4, empties=(), files=("f",))
    return Intent(
        epoch=epoch,
        generation=3,
        nonce=f"n{epoch}",
        after=ledger.upto,
        upto=ledger.upto + 10,
        time_ms=time_ms,
        facts=facts,
        entries=(entry,),
        sequence_max=99,
        segment=1,
    )


class TestReached:
    """What an epoch has reached, by what the ledger knows and what was committed."""

    FOUND = Found(Incarnation(TableId("shop", "orders"), 1), ORDERS, True, 1)

    def test_snapshot_identity_and_both_watermarks_are_those_of_the_open_epoch(self) -> None:
        ledger = Ledger()
        adopted = Adopted(incarnation=self.FOUND.incarnation, ordinal=OUTSIDE, nonce="n", visible=0, high=10)
        ledger.apply_intent(intent(ledger, NOON - 1, self.FOUND, adopted))
        assert ledger.decide_reached({}) == {}, "the lake has nothing of it yet"
        assert ledger.decide_reached({ORDERS: 5}) == {ORDERS: Reached(5, "3-n1", None, NOON - 1)}
        ledger.apply_done(ledger.decide_done((Committed(ORDERS, 5),), ""))
        ledger.apply_intent(intent(ledger, NOON))
        assert ledger.decide_reached({}) == {ORDERS: Reached(5, "3-n1", NOON - 1, NOON)}, "one that nothing happened to moves on"
        assert ledger.decide_reached({ORDERS: 6}) == {ORDERS: Reached(6, "3-n2", NOON - 1, NOON)}

    def test_a_table_that_was_dropped_is_not_in_it(self) -> None:
        ledger = Ledger()
        ledger.apply_intent(intent(ledger, NOON, self.FOUND))
        ledger.apply_done(ledger.decide_done((Committed(ORDERS, 5),), ""))
        ledger.apply_intent(intent(ledger, NOON, Gone(self.FOUND.incarnation, 15)))
        assert ledger.decide_reached({}) == {}


NOBODY = Notifier("test", ())


class Lake:
    """It takes tags, unless it fails or hangs."""

    def __init__(self) -> None:
        self.tags: list[tuple[str, str, int]] = []
        self.tried: list[str] = []
        self.failing: set[str] = set()
        self.hangs: threading.Event | None = None
        self.has: int | None = None

    def tag(self, target: str, name: str, snapshot: int, identity: str) -> int:
        self.tried.append(target)
        if self.hangs is not None:
            assert self.hangs.wait(60)
        if target in self.failing:
            raise Unavailable("the lake is away", detail=target)
        self.tags.append((target, name, snapshot))
        return self.has or snapshot


EMPTY = Intent(epoch=1, generation=3, nonce="n1", after=0, upto=10, time_ms=NOON, facts=(), entries=(), sequence_max=99, segment=1)
BOTH = RunListeners(EMPTY, "", {ORDERS: reached(NOON - 1, NOON), ITEMS: reached(NOON - 1, NOON)})
OWED = write_state({ORDERS: NOON - HOUR, ITEMS: NOON - HOUR})


def listening(lake: Lake, **more: Any) -> Listening:
    opened: Any = lambda: lake  # noqa: E731
    return Listening(Period.HOUR, opened, NOBODY, **more)


class TestMaking:
    def test_what_is_owed_is_made(self) -> None:
        lake = Lake()
        assert listening(lake).hear(BOTH) == ""
        assert lake.tags == [(ITEMS, "2026-11-18T11", 7), (ORDERS, "2026-11-18T11", 7)]

    def test_without_tags_no_lake_is_opened_and_no_state_is_kept(self) -> None:
        assert Listening(None, pytest.fail, NOBODY).hear(RunListeners(EMPTY, OWED, BOTH.reached)) == ""

    def test_one_that_fails_is_told_and_owed_and_does_not_keep_the_others_from_theirs(self, caplog: pytest.LogCaptureFixture) -> None:
        lake = Lake()
        lake.failing = {ITEMS}
        machine = listening(lake, pause_s=0.0)
        state = machine.hear(BOTH)
        assert state == write_state({ITEMS: NOON - HOUR})
        assert [tag[0] for tag in lake.tags] == [ORDERS]
        assert ["could not be made" in record.getMessage() for record in caplog.records] == [True]
        lake.failing = set()
        later = RunListeners(EMPTY, state, {ORDERS: reached(NOON, NOON + 1, 8), ITEMS: reached(NOON, NOON + 1, 8)})
        assert machine.hear(later) == ""
        assert lake.tags[1:] == [(ITEMS, "2026-11-18T11", 8)]

    def test_a_lake_that_refuses_is_not_asked_with_each_epoch(self) -> None:
        lake = Lake()
        lake.failing = {ITEMS, ORDERS}
        machine = listening(lake, pause_s=1000.0)
        assert machine.hear(BOTH) == OWED
        asked = len(lake.tried)
        assert machine.hear(BOTH) == OWED
        assert len(lake.tried) == asked

    def test_one_that_fails_slowly_does_not_keep_the_others_from_theirs(self) -> None:
        first, second, third = "ods.a", "ods.b", "ods.c"
        lake = Lake()
        lake.failing = {first, second}
        # Each try takes all the time that an epoch has.
        machine = listening(lake, wait_s=0.0, pause_s=0.0)
        every = {target: reached(NOON - 1, NOON) for target in (first, second, third)}
        for number in range(1, 4):
            machine.hear(RunListeners(EMPTY, "", every))
            machine.tags.join()
            assert len(lake.tried) == number
        assert lake.tried == [first, second, third]
        assert [tag[0] for tag in lake.tags] == [third]
        lake.tried.clear()
        every.pop(third)
        for _ in range(3):
            machine.hear(RunListeners(EMPTY, "", every))
            machine.tags.join()
        assert lake.tried == [first, second, first], "what failed longest ago comes first"

    def test_one_that_hangs_stops_no_commit_and_is_owed(self, caplog: pytest.LogCaptureFixture) -> None:
        lake = Lake()
        lake.hangs = threading.Event()
        machine = listening(lake, wait_s=0.05, pause_s=0.0)
        began = time.monotonic()
        assert machine.hear(BOTH) == OWED
        assert time.monotonic() - began < 15
        assert "could not be made" in caplog.text
        until(lambda: lake.tried == [ITEMS])
        assert machine.hear(BOTH) == OWED
        assert lake.tried == [ITEMS], "a second try waits for the end of the first"
        told: list[Any] = [record for record in caplog.records if "could not be made" in record.getMessage()]
        assert [record.target for record in told] == [ITEMS, ITEMS], "it is told for as long as it hangs"
        lake.hangs.set()
        until(lambda: len(lake.tags) == 1)
        # What was made late is found there by the next try.
        later = listening(lake)
        assert later.hear(BOTH) == ""

    def test_a_sink_that_can_not_be_opened_is_told_and_the_tags_are_owed(self, caplog: pytest.LogCaptureFixture) -> None:
        def fails() -> Any:
            raise OSError("no such folder")

        assert Listening(Period.HOUR, fails, NOBODY).hear(BOTH) == OWED
        assert "could not be made" in caplog.text

    def test_a_name_that_another_snapshot_has_is_told_and_left(self, caplog: pytest.LogCaptureFixture) -> None:
        lake = Lake()
        lake.has = 3
        assert listening(lake).hear(BOTH) == ""
        assert caplog.text.count("is there already and stays as it is") == 2
