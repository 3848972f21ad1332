"""What the tiering service makes of answers and of rounds that end, without servers and without Spark."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from snowmelt.engine.tiering.ends import RoundEnd
from snowmelt.engine.tiering.round import RoundHost, RunningRound
from snowmelt.engine.tiering.service import Tiering, _end_of
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.engine.tiering.split_job import SplitJob
from snowmelt.errors import InvariantBroken, Unavailable
from snowmelt.fluss.answers import HandedOut, HeartbeatAnswer
from snowmelt.model.table import TableId
from snowmelt.tiering.rounds import RoundState

TABLE = HandedOut(7, TableId("shop", "orders"), 3)


class Pool:
    """Notes what it is to run, and runs nothing."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def submit(self, run: Any, pause_s: float) -> Future[RoundEnd]:
        self.pauses_s.append(pause_s)
        return Future()


@pytest.fixture
def service() -> Tiering:
    return Tiering(None, TieringSettings(name="test", bootstrap="nowhere:1", warehouse="nowhere"))


def begin(service: Tiering, pool: Pool) -> RunningRound:
    nothing: Any = None
    put: Any = pool
    host = RoundHost(
        spark=None,
        settings=service._settings,
        leasing=nothing,
        abandon=threading.Event(),
        wake=threading.Event(),
        slots=threading.Semaphore(1),
        news=nothing,
    )
    service._begin(put, host, TABLE, 1)
    return list(service._running.values())[-1]


def test_a_table_that_failed_waits_each_time_longer(service: Tiering) -> None:
    pool = Pool()
    for _ in range(10):
        running = begin(service, pool)
        running.reported.set()
        service._count(running, failed=True)
    assert pool.pauses_s == [0, 1, 2, 4, 8, 16, 32, 64, 64, 64]
    service._count(running, failed=False)
    begin(service, pool)
    assert pool.pauses_s[-1] == 0.0, "it was tiered since"


def answer(error: Unavailable | None, epoch: int = 1) -> HeartbeatAnswer:
    return HeartbeatAnswer(coordinator_epoch=epoch, table=None, tiering={TABLE.table: error}, finished={}, failed={})


def test_an_error_that_the_coordinator_names_for_a_table_takes_it_from_its_round(service: Tiering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SplitJob, "stop", lambda self, why: None)
    running = begin(service, Pool())
    service._hear(answer(None), [running], 0)
    assert running.owned
    service._hear(answer(Unavailable("as planned")), [running], 0)
    assert not running.owned


def test_a_round_that_ends_by_a_bug_is_one_that_failed(service: Tiering) -> None:
    running = begin(service, Pool())
    ended: Future[RoundEnd] = Future()
    ended.set_exception(ValueError("a value"))
    end = _end_of(ended, running)
    assert (end.path, end.state) == (TABLE.path, RoundState.FAILED)
    assert isinstance(end.error, InvariantBroken)
    assert "a value" not in str(end.error), "its text may hold anything"
