"""Several lake tables are committed at once, and what comes of one that fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.records import Committed, Entry, Intent
from snowmelt.driving.committing import EntryWork
from snowmelt.engine import failpoints
from snowmelt.engine.failpoints import BETWEEN_TABLES
from snowmelt.engine.loop.lake_threads import LakeThreads
from snowmelt.engine.loop.table_commits import TableCommits
from snowmelt.errors import Fenced, SourceDrift, Unavailable
from tests.kit.waiting import until

NAMES = ("ods.a", "ods.b", "ods.c", "ods.d")


def entry(target: str) -> Entry:
    return Entry(target=target, uuid="u", buckets=1, schema=1, new_schema=None, base=0, empties=(), files=(f"sm-1-e1-n-{target}",))


def intent_of(*names: str) -> Intent:
    entries = tuple(entry(name) for name in names)
    return Intent(epoch=1, generation=1, nonce="n", after=0, upto=10, time_ms=None, facts=(), entries=entries, sequence_max=0, segment=1)


def works_of(intent: Intent) -> tuple[EntryWork, ...]:
    return tuple(EntryWork(one, number) for number, one in enumerate(intent.entries))


class Lake:
    """Each commit waits for its turn, if it has one, and may fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.over: list[tuple[str, int | None]] = []
        self.turns: dict[str, threading.Event] = {}
        self.errors: dict[str, BaseException] = {}

    def commit(self, intent: Intent, one: Entry, watermark_ms: int | None) -> int:
        self.begun.append(one.target)
        if one.target in self.turns:
            assert self.turns[one.target].wait(60)
        if one.target in self.errors:
            raise self.errors[one.target]
        self.over.append((one.target, watermark_ms))
        return len(one.target)


class Shell:
    def __init__(self, lake: Lake, at_once: int = 4) -> None:
        fake: Any = lake
        self.threads = LakeThreads(at_once)
        self.commits = TableCommits(fake, self.threads, turn_s=0.01)
        self.told: list[str] = []

    def to_the_end(self, intent: Intent) -> None:
        """As the loop does it."""
        while left := [work for work in works_of(intent) if work.entry.target not in self.told]:
            self.told += [one.target for one in self.commits.go_on(intent, left)]


def test_tables_are_committed_at_once_in_any_order_and_each_is_told_once() -> None:
    lake, intent = Lake(), intent_of(*NAMES)
    lake.turns = {name: threading.Event() for name in NAMES}
    shell = Shell(lake)
    assert shell.commits.go_on(intent, works_of(intent)) == []
    until(lambda: sorted(lake.begun) == [*NAMES])
    told: list[Committed] = []
    for name in reversed(NAMES):
        lake.turns[name].set()
        left = [work for work in works_of(intent) if work.entry.target not in [one.target for one in told]]
        while len(told) < len(lake.over) or not lake.over or lake.over[-1][0] != name:
            told += shell.commits.go_on(intent, left)
    assert [one.target for one in told] == [*reversed(NAMES)]
    assert sorted(lake.begun) == [*NAMES], "none is begun twice"
    assert dict(lake.over) == {name: number for number, name in enumerate(NAMES)}, "each has its watermark"
    shell.threads.close()


def test_one_that_fails_lets_the_others_come_to_their_end_first() -> None:
    lake, intent = Lake(), intent_of(*NAMES)
    lake.turns = {name: threading.Event() for name in (NAMES[0], NAMES[3])}
    lake.errors = {NAMES[0]: SourceDrift("a lake table is not there")}
    shell = Shell(lake)

    def let_go() -> None:
        until(lambda: len(lake.begun) == 4)
        lake.turns[NAMES[0]].set()
        threading.Timer(0.2, lake.turns[NAMES[3]].set).start()

    threading.Thread(target=let_go).start()
    with pytest.raises(SourceDrift, match="a lake table is not there"):
        shell.to_the_end(intent)
    assert sorted(name for name, _ in lake.over) == [*NAMES[1:]]


def test_of_several_errors_the_gravest_is_raised_and_fenced_before_all() -> None:
    lake, intent = Lake(), intent_of(*NAMES[:3])
    gate = threading.Event()
    lake.turns = dict.fromkeys(NAMES, gate)
    lake.errors = {NAMES[0]: Unavailable("the lake is away"), NAMES[1]: SourceDrift("it is another"), NAMES[2]: Fenced("a newer driver")}
    shell = Shell(lake)
    shell.commits.go_on(intent, works_of(intent))
    gate.set()
    with pytest.raises(Fenced):
        shell.to_the_end(intent)


def test_after_a_failure_none_is_begun_that_waited_for_a_thread() -> None:
    lake, intent = Lake(), intent_of(*NAMES)
    lake.errors = {NAMES[0]: Unavailable("the lake is away")}
    lake.turns = {NAMES[1]: threading.Event()}
    shell = Shell(lake, at_once=2)
    lake.turns[NAMES[0]] = threading.Event()
    shell.commits.go_on(intent, works_of(intent))
    until(lambda: len(lake.begun) == 2)
    lake.turns[NAMES[2]] = lake.turns[NAMES[1]]
    lake.turns[NAMES[0]].set()
    threading.Timer(0.2, lake.turns[NAMES[1]].set).start()
    with pytest.raises(Unavailable):
        shell.to_the_end(intent)
    assert NAMES[3] not in lake.begun


def test_a_sink_of_one_thread_is_used_by_the_callers_thread_and_ends_with_the_first_error() -> None:
    lake, intent = Lake(), intent_of(*NAMES)
    seen = []
    shell = Shell(lake, at_once=1)
    begin = shell.threads.begin
    shell.threads.begin = lambda act: seen.append(threading.current_thread()) or begin(act)  # type: ignore[assignment,func-returns-value,misc]
    lake.errors = {NAMES[1]: Unavailable("the lake is away")}
    with pytest.raises(Unavailable):
        shell.commits.go_on(intent, works_of(intent))
    assert lake.begun == [*NAMES[:2]]
    lake.errors.clear()
    assert [one.target for one in shell.commits.go_on(intent, works_of(intent))] == [*NAMES]
    assert {*seen} == {threading.current_thread()}


def test_a_driver_that_dies_between_tables_has_committed_some_and_not_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lake, intent = Lake(), intent_of(*NAMES)
    monkeypatch.setenv("SNOWMELT_FAILPOINT", f"{BETWEEN_TABLES}:{tmp_path / 'died'}")

    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(failpoints.os, "kill", die)
    shell = Shell(lake)
    with pytest.raises(Died):
        shell.to_the_end(intent)
    assert sorted(lake.begun) == sorted(name for name, _ in lake.over) == [*NAMES[:3]]
    # The next driver passes the place.
    Shell(lake).to_the_end(intent)
    assert lake.begun[-1] == NAMES[3]


def test_results_of_many_come_in_their_order_and_the_gravest_error_is_raised() -> None:
    threads = LakeThreads(3)
    assert threads.each(lambda number: number * 2, range(20)) == [*range(0, 40, 2)]
    errors = {3: Unavailable("away"), 4: KeyError("a bug")}

    def fails(number: int) -> int:
        if number in errors:
            raise errors[number]
        return number

    with pytest.raises((Unavailable, KeyError)):
        threads.each(fails, range(10))
    threads.close()
