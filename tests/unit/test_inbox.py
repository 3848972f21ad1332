"""Requests of operators in a store: what a command puts, a driver takes up once, whichever driver runs."""

from __future__ import annotations

import itertools

import pytest

from snowmelt.commit.requests import KEPT, OperatorAnswer, OperatorRequest, RescaleTable
from snowmelt.engine.loop.requests import ANSWER, REQUEST, Inbox, answer_to, ask
from snowmelt.errors import Fenced, Unavailable
from snowmelt.store.contract import numbered
from snowmelt.store.generations import take_generation
from snowmelt.store.memory import MemoryStore

WANTED = RescaleTable(target="ods.orders", buckets=8)


def driver(store: MemoryStore) -> Inbox:
    clock = itertools.count(10, 10)
    return Inbox(store, take_generation(store, f"n{next(_nonces)}").number, clock=lambda: float(next(clock)))


_nonces = itertools.count()


def answer(inbox: Inbox, number: int) -> None:
    inbox.answer(number, OperatorAnswer(nonce=inbox.open[number].nonce))


def test_a_request_is_taken_up_before_and_after_a_driver_starts_and_answered_once() -> None:
    store = MemoryStore()
    first, asked = ask(store, WANTED, now_ms=1)
    inbox = driver(store)
    inbox.look()
    second, _ = ask(store, WANTED, now_ms=2)
    assert list(inbox.open) == [first]
    inbox.look()
    assert list(inbox.open) == [first, second] == [1, 2]
    assert inbox.open[first] == asked
    answer(inbox, first)
    found = answer_to(store, first)
    assert found is not None
    assert (found.nonce, answer_to(store, second)) == (asked.nonce, None)
    # What one driver leaves open the next one takes up.
    another = driver(store)
    another.look()
    assert list(another.open) == [second]


def test_a_driver_that_is_not_the_newest_answers_nothing() -> None:
    store = MemoryStore()
    number, _ = ask(store, WANTED, now_ms=1)
    zombie = driver(store)
    zombie.look()
    driver(store)
    with pytest.raises(Fenced):
        answer(zombie, number)
    assert answer_to(store, number) is None


def test_old_ones_are_trimmed_and_numbers_grow_for_ever() -> None:
    store = MemoryStore()
    inbox = driver(store)
    for _ in range(KEPT + 10):
        number, _ = ask(store, WANTED, now_ms=1)
        inbox.look()
        answer(inbox, number)
    assert number == KEPT + 10
    assert len(store.numbers("request")) == len(store.numbers("answer")) == KEPT
    again = driver(store)
    again.look()
    assert not again.open


def test_a_request_that_no_driver_can_read_is_refused_and_stops_none() -> None:
    store = MemoryStore()
    store.put_if_absent(numbered("request", 1), b"of a newer version")
    inbox = driver(store)
    inbox.look()
    number, _ = ask(store, WANTED, now_ms=1)
    store.put_if_absent(numbered("request", number + 1), b"and another one")
    inbox.look()
    assert list(inbox.open) == [number]
    for unread in (1, number + 1):
        refused = answer_to(store, unread)
        assert refused is not None
        assert "can't read it" in refused.refused


def test_what_an_older_driver_can_not_read_is_the_newer_ones_to_answer() -> None:
    store = MemoryStore()
    zombie = driver(store)
    driver(store)
    store.put_if_absent(numbered("request", 1), b"of a newer version")
    with pytest.raises(Fenced):
        zombie.look()
    assert answer_to(store, 1) is None


def test_a_store_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    inbox = driver(store)
    ask(store, WANTED, now_ms=1)

    def away(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "numbers", away)
        inbox.look()
    assert not inbox.open
    inbox.look()
    assert list(inbox.open) == [1]


def test_a_slow_command_whose_number_is_free_again_asks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    store, slow = MemoryStore(), [True]

    def newest_then(*arguments: object, **options: object) -> int | None:
        # What it saw before others asked, and their requests were answered and trimmed.
        return 0 if slow and slow.pop() else found(*arguments, **options)  # type: ignore[arg-type]

    inbox = driver(store)
    for _ in range(KEPT + 5):
        number, _ = ask(store, WANTED, now_ms=1)
        inbox.look()
        answer(inbox, number)
    from snowmelt.engine.loop import requests

    found = requests.newest
    monkeypatch.setattr(requests, "newest", newest_then)
    number, _ = ask(store, WANTED, now_ms=1)
    assert number == KEPT + 6
    inbox.look()
    assert list(inbox.open) == [number]
    later = driver(store)
    later.look()
    assert list(later.open) == [number], "the one that was missed is never done"


def test_records_are_read_as_they_were_written() -> None:
    assert (REQUEST.type, ANSWER.type) == (OperatorRequest, OperatorAnswer)
