"""What a driver says of itself, and what is made of it when it says no more."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from snowmelt.commit.notices import ListenerProgress
from snowmelt.engine.driver import signs
from snowmelt.engine.driver.signs import (
    EVERY_S,
    MISSED_MAX,
    DriverActivity,
    ListenerSign,
    MaintainedTable,
    Sign,
    SignBefore,
    Signs,
    is_alive,
    last_words,
    read_sign,
)
from snowmelt.errors import Fenced, InvalidConfig, SourceDrift, Unavailable
from snowmelt.store.contract import Store
from snowmelt.store.generations import Generation
from snowmelt.store.memory import MemoryStore
from snowmelt.store.records import RecordKind, pack


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Listeners:
    def __init__(self) -> None:
        self.known: dict[str, ListenerProgress] = {}


def driver(store: Store, clock: Clock, generation: int = 1, pipeline: str = "test", listeners: Listeners | None = None) -> Signs:
    found = Signs(store, pipeline, listeners or Listeners(), now=clock, clock=clock)
    if generation:
        found.begin(Generation(generation, f"nonce {generation}"))
    return found


def last(store: Store) -> Sign:
    found = read_sign(store)
    assert found is not None
    return found


def test_signs_come_when_they_are_due_and_do_not_pile_up() -> None:
    store, clock = MemoryStore(), Clock()
    life = driver(store, clock)
    for _ in range(1000):
        clock.now += EVERY_S / 3
        life.beat({})
    assert len(store.numbers(signs.PREFIX)) <= 2
    assert max(store.numbers(signs.PREFIX)) == pytest.approx(1000 / 3, abs=2)
    assert clock.now - last(store).at_ms / 1000 < EVERY_S
    # One that was killed between its sign and the deletion leaves one more, which the next driver finds.
    store.put_if_absent("sign/00000000000000000001", b"old")
    driver(store, clock, 2)
    assert len(store.numbers(signs.PREFIX)) <= 3
    assert 1 not in store.numbers(signs.PREFIX)


@pytest.mark.parametrize(
    ("error", "doing", "told"),
    [
        (None, DriverActivity.ENDED, ""),
        (KeyboardInterrupt(), DriverActivity.ENDED, ""),
        (SourceDrift("a column is gone", detail="\x1b[2Jv"), DriverActivity.FAILED, r"a column is gone: \u001b[2Jv"),
        (Unavailable("the server can't be reached"), DriverActivity.RETRIES, "the server can't be reached"),
        # Its text may hold anything, a password too.
        (ValueError("hunter2"), DriverActivity.FAILED, "ValueError"),
    ],
)
def test_the_last_word_tells_why(error: BaseException | None, doing: DriverActivity, told: str) -> None:
    store = MemoryStore()
    driver(store, Clock()).end(error)
    assert (last(store).doing, last(store).error) == (doing, told)


def test_the_last_error_is_remembered_by_the_next_driver() -> None:
    store, clock = MemoryStore(), Clock()
    driver(store, clock).end(InvalidConfig("wrong", detail="x" * 5000))
    clock.now += 60
    driver(store, clock, 2)
    assert last(store).doing is DriverActivity.RUNS
    assert last(store).error.startswith("wrong: xxx")
    assert len(last(store).error) <= 1000
    assert last(store).error_ms == 1_000_000


def test_a_driver_that_was_overtaken_does_not_speak_over_the_newer_one() -> None:
    store, clock = MemoryStore(), Clock()
    older, newer = driver(store, clock), driver(store, clock, 2)
    for _ in range(5):
        clock.now += EVERY_S
        older.beat({})
        older.end(Unavailable("away"))
        assert last(store).generation == 2
        assert last(store).doing is DriverActivity.RUNS
    older.end(Fenced("a newer driver runs"))
    newer.beat({})
    assert (last(store).generation, last(store).error) == (2, "")
    assert len(store.numbers(signs.PREFIX)) <= 3


def test_a_start_that_fails_before_it_takes_over_is_told_where_no_other_driver_is_alive() -> None:
    store, clock = MemoryStore(), Clock()
    driver(store, clock, 0).end(InvalidConfig("no table matches"))
    assert store.numbers(signs.PREFIX) == [], "a state was begun by a mistake"
    running = driver(store, clock)
    driver(store, clock, 0).end(InvalidConfig("wrong server"))
    assert last(store).doing is DriverActivity.RUNS, "the driver that is at work was declared dead"
    running.end()
    driver(store, clock, 0, pipeline="another").end(InvalidConfig("the state is another's"))
    assert last(store).doing is DriverActivity.ENDED
    driver(store, clock, 0).end(InvalidConfig("wrong server"))
    assert (last(store).doing, last(store).error) == (DriverActivity.FAILED, "wrong server")


def test_a_process_of_this_machine_is_looked_at_and_one_elsewhere_is_waited_for() -> None:
    store, clock = MemoryStore(), Clock()
    driver(store, clock)
    here = last(store)
    assert is_alive(here, clock.now + 10_000), "its loop may be busy"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = signs.process_mark(child.pid)
    assert other is not None
    sign = replace(here, process=other)
    assert is_alive(sign, clock.now)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(sign, clock.now), "a process that is dead and not collected yet"
    child.communicate()
    assert not is_alive(sign, clock.now)
    assert last_words(sign, clock.now) is None
    # Its number may be another's by now.
    assert not is_alive(replace(here, process=here.process.replace(":", ":1", 1)), clock.now)
    for elsewhere in (replace(here, host="elsewhere"), replace(here, process=here.process + "1")):
        assert is_alive(elsewhere, clock.now + MISSED_MAX * EVERY_S - 1)
        assert not is_alive(elsewhere, clock.now + MISSED_MAX * EVERY_S + 1)


def test_one_that_waits_to_try_again_and_is_gone_was_stopped_by_its_error() -> None:
    store, clock = MemoryStore(), Clock()
    driver(store, clock).end(Unavailable("away"))
    waits = last(store)
    assert last_words(waits, clock.now) is DriverActivity.RETRIES
    assert last_words(replace(waits, host="elsewhere"), clock.now + 1000) is DriverActivity.FAILED
    assert last_words(replace(waits, doing=DriverActivity.ENDED), clock.now) is DriverActivity.ENDED


def test_tables_that_are_left_out_are_told_at_once_and_bounded() -> None:
    store, clock = MemoryStore(), Clock()
    life = driver(store, clock)
    life.beat({"shop.a": "it has no key"})
    assert [(one.table, one.why) for one in last(store).left_out] == [("shop.a", "it has no key")]
    life.beat({f"shop.t{number}": "x" * 5000 for number in range(1000)})
    assert len(last(store).left_out) == 100
    assert max(len(one.why) for one in last(store).left_out) <= 200


def maintained(number: int) -> MaintainedTable:
    return MaintainedTable(target=f"ods.t{number}", files=9, size_bytes=7, runs=number, compacted_ms=5, expired_ms=None)


def test_what_maintenance_knows_is_told_of_the_fullest_tables() -> None:
    store, clock = MemoryStore(), Clock()
    life = driver(store, clock)
    clock.now += 1000
    life.beat({}, lambda: [maintained(number) for number in range(1000)])
    assert last(store).maintained == tuple(maintained(number) for number in range(999, 799, -1))


def test_a_store_that_is_away_ends_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryStore(), Clock()
    life = driver(store, clock)

    def away(*_: object) -> bool:
        raise Unavailable("the store is away")

    monkeypatch.setattr(store, "put_if_absent", away)
    clock.now += EVERY_S
    life.beat({})
    life.end(SourceDrift("gone"))
    assert last(store).doing is DriverActivity.RUNS


def test_what_is_known_of_listeners_comes_with_each_sign_and_a_failure_at_once() -> None:
    store, clock, listeners = MemoryStore(), Clock(), Listeners()
    life = driver(store, clock, listeners=listeners)
    assert last(store).listeners == ()
    listeners.known = {"hook": ListenerProgress(4), "dbt": ListenerProgress(3)}
    life.beat({})
    assert last(store).listeners == (), "progress is told when the next sign is due"
    listeners.known["dbt"] = ListenerProgress(3, "HTTP status 500")
    life.beat({})
    assert last(store).listeners == (ListenerSign("dbt", 3, "HTTP status 500"), ListenerSign("hook", 4, ""))
    listeners.known["dbt"] = ListenerProgress(4)
    life.beat({})
    assert last(store).listeners[0] == ListenerSign("dbt", 4, "")


def test_a_sign_of_the_version_before_is_read() -> None:
    store, clock = MemoryStore(), Clock()
    driver(store, clock)
    sign = last(store)
    before = SignBefore(**{field.name: getattr(sign, field.name) for field in fields(SignBefore)})
    store.delete([f"sign/{number:020}" for number in store.numbers(signs.PREFIX)])
    store.put_if_absent("sign/00000000000000000007", pack(RecordKind("sign", 1, SignBefore), before))
    assert last(store) == sign
