"""Who won, when replies get lost and listings are old."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt import budgets
from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.store.contract import Store, numbered
from snowmelt.store.memory import MemoryStore
from snowmelt.store.numbered import Lost, Won, newest, settle


class Flaky(Store):
    """A store behind a bad network. Each call takes the next fault; without one it goes well."""

    def __init__(self, behind: Store, puts: Iterable[str] = (), gets: Iterable[str] = (), hints: list[int] | None = None) -> None:
        self.behind = behind
        self.puts = list(puts)
        self.gets = list(gets)
        self.hints = hints
        self.late: list[tuple[str, bytes]] = []
        self.writes = 0

    def put_if_absent(self, key: str, value: bytes) -> bool:
        fault = self.puts.pop(0) if self.puts else ""
        if fault == "refused":
            raise Unavailable("refused")
        if fault == "late":
            self.late.append((key, value))
        if fault in ("request", "late"):
            raise OutcomeUnknown("lost request")
        if fault == "conflict":
            return False
        won = self.behind.put_if_absent(key, value)
        self.writes += won
        if fault == "reply":
            raise OutcomeUnknown("lost reply")
        # The client repeated what had been done, and was refused by itself.
        return won and fault != "repeated"

    def get(self, key: str) -> bytes | None:
        if self.gets and self.gets.pop(0):
            raise Unavailable("no answer")
        # What was on its way comes between any two calls.
        for late in self.late:
            self.writes += self.behind.put_if_absent(*late)
        self.late.clear()
        return self.behind.get(key)

    def put_data(self, key: str, data: bytes | memoryview) -> None:
        self.behind.put_data(key, data)

    def delete(self, keys: Iterable[str]) -> None:
        self.behind.delete(keys)

    def names(self, prefix: str) -> list[str]:
        return self.behind.names(prefix) if self.hints is None else [f"{number:020d}" for number in self.hints]


PUT_FAULTS = st.lists(st.sampled_from(["", "refused", "request", "reply", "late", "repeated", "conflict"]), max_size=12)
GET_FAULTS = st.lists(st.sampled_from(["", "lost"]), max_size=12)


@given(PUT_FAULTS, GET_FAULTS, st.sampled_from([None, b"mine", b"yours"]))
@settings(max_examples=1000, deadline=None)
def test_whatever_is_lost_the_answer_is_true_or_it_is_unknown(puts: list[str], gets: list[str], before: bytes | None) -> None:
    behind = MemoryStore()
    if before is not None:
        behind.put_if_absent("intent/1", before)
    store = Flaky(behind, puts, gets)
    try:
        result = settle(store, "intent/1", b"mine")
    except OutcomeUnknown:
        return
    except Unavailable:
        # Then nothing happened, and nothing will.
        assert not store.late
        assert store.writes == 0
        assert behind.get("intent/1") == before
        return
    there = behind.get("intent/1")
    assert there is not None
    assert result == (Won() if there == b"mine" else Lost(there))
    assert store.writes == (before is None)


@given(PUT_FAULTS, PUT_FAULTS)
def test_of_two_writers_with_bad_networks_not_both_win(ones: list[str], others: list[str]) -> None:
    behind = MemoryStore()
    results = []
    for value, faults in ((b"one", ones), (b"other", others)):
        try:
            results.append(settle(Flaky(behind, faults), "intent/1", value))
        except (OutcomeUnknown, Unavailable):
            continue
    assert results.count(Won()) <= 1


@pytest.mark.parametrize("fault", ["reply", "late", "repeated"])
def test_a_writer_whose_reply_was_lost_still_knows_that_it_won(fault: str) -> None:
    store = Flaky(MemoryStore(), [fault])
    assert settle(store, "intent/1", b"mine") == Won()
    assert store.writes == 1


def test_a_lost_request_is_sent_again() -> None:
    store = Flaky(MemoryStore(), ["request", "refused", "conflict"])
    assert settle(store, "intent/1", b"mine") == Won()


TRIES = len(list(budgets.RECORDS.tries()))


def test_tries_are_bounded_and_waited_between() -> None:
    waits: list[int] = []
    store = Flaky(MemoryStore(), ["refused"] * 100)
    with pytest.raises(Unavailable):
        settle(store, "intent/1", b"mine", wait=waits.append)
    assert waits == list(range(1, TRIES))
    assert len(store.puts) == 100 - TRIES


def test_refused_after_a_doubt_is_still_a_doubt() -> None:
    store = Flaky(MemoryStore(), ["reply"] + ["refused"] * 100, ["lost"] * 100)
    with pytest.raises(OutcomeUnknown, match="whose record is in the store"):
        settle(store, "intent/1", b"mine")


def test_a_refusal_that_can_not_be_read_is_a_doubt() -> None:
    # It may have been our own record that refused us.
    store = Flaky(MemoryStore(), ["repeated"], ["lost"] * 100)
    with pytest.raises(OutcomeUnknown):
        settle(store, "intent/1", b"mine")


@given(
    first=st.integers(0, 5),
    count=st.integers(0, 8),
    below=st.integers(0, 3),
    hints=st.lists(st.integers(0, 20), max_size=6).map(sorted),
)
def test_the_newest_record_is_found_however_old_the_listing_is(first: int, count: int, below: int, hints: list[int]) -> None:
    behind = MemoryStore()
    for number in range(first, first + count):
        behind.put_if_absent(numbered("intent", number), b"x")
    since = first + min(below, max(count - 1, 0))
    expected = first + count - 1 if count else None
    assert newest(Flaky(behind, hints=hints), "intent", since=since) == expected
    assert newest(behind, "intent", since=since) == expected


def test_a_store_that_does_not_answer_does_not_say_that_nothing_is_there() -> None:
    with pytest.raises(Unavailable):
        newest(Flaky(MemoryStore(), gets=["lost"]), "intent")
