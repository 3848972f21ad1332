"""The shell of a rescale: what it deletes, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.commit.records import Staged
from snowmelt.commit.requests import RescaleTable
from snowmelt.engine.loop.requests import Inbox, answer_to, ask
from snowmelt.engine.maintenance.rescales import Rescales
from snowmelt.engine.maintenance.tasks import LookTask, RescaleTask
from snowmelt.errors import Unavailable
from snowmelt.maintenance.files import BucketFiles, DataFile, TableFiles
from snowmelt.maintenance.rescale import FAILURES_MAX
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Incarnation
from snowmelt.planning.tables import TablePhase
from snowmelt.store.generations import take_generation
from snowmelt.store.memory import MemoryStore

TARGET = "ods.orders"
FILE = DataFile(name="a", level=0, size_bytes=1, rows=1, deletes=0, created_ms=0)
FILES = TableFiles(snapshot=3, identity="t", schema=0, keyed=True, buckets=(BucketFiles(partition=(), bucket=0, files=(FILE,)),))
REWRITTEN = Staged(("new",), (b"new",), 1)
OURS = "1-ours"


class World:
    """A driver's parts, as far as a rescale needs them. Jobs end at once."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.broken = False
        self.buckets = 2
        self.discarded: list[Any] = []
        self.rested: list[str] = []
        self.planned: list[Any] = []
        self.identity = OURS
        incarnation = Incarnation(TableId("shop", "orders"), 1)
        self.table = SimpleNamespace(target=TARGET, keyed=True, phase=TablePhase.RELEASED, incarnation=incarnation)
        self.ledger: Any = SimpleNamespace(epoch=5, done_epoch=5, open=None, tables=[self.table], last_commits={TARGET: "1-before"})
        lake = SimpleNamespace(describe=lambda _: SimpleNamespace(buckets=self.buckets), rescale=lambda *_: None)
        resources: Any = SimpleNamespace(lake=lake, jobs=SimpleNamespace(submit=self._submit), maintenance_slots=1)
        parts: Any = SimpleNamespace(
            plan_rescale=self._plan, rest=self.rested.append, discard=self.discarded.append, job_failed=lambda: None
        )
        ticks = iter(range(10, 100_000, 10))
        inbox = Inbox(self.store, take_generation(self.store, "n").number, clock=lambda: float(next(ticks)))
        self.number, _ = ask(self.store, RescaleTable(target=TARGET, buckets=8), now_ms=1)
        place: Any = None
        self.rescales = Rescales(resources, self.ledger, place, inbox, parts, parts, parts)

    def _submit(
        self, _lane: Any, _place: Any, tasks: list[Any], _run: Any, done: Callable[[list[Any]], None], failed: Callable[[Any], None]
    ) -> None:
        if self.broken:
            failed(Unavailable("the disk is full"))
        else:
            assert isinstance(tasks[0], LookTask | RescaleTask)
            done([FILES] if isinstance(tasks[0], LookTask) else [REWRITTEN])

    def _plan(self, rescaled: Any) -> Any:
        self.planned.append(rescaled)
        return SimpleNamespace(identity=self.identity)

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            if self.planned:
                return
            self.rescales.turn(at_rest=True)


def test_what_was_staged_is_the_tables_once_its_epoch_is_done_whatever_others_made_of_the_table_since() -> None:
    world = World()
    world.turns()
    assert (world.planned[0].staged, world.planned[0].snapshot, world.rescales.closed) == ((REWRITTEN,), 3, True)
    world.rescales.turn(at_rest=False)
    assert answer_to(world.store, world.number) is None
    world.ledger.last_commits[TARGET] = OURS
    world.buckets = 3
    world.rescales.turn(at_rest=True)
    answer = answer_to(world.store, world.number)
    assert answer is not None
    assert (answer.refused, answer.epoch, world.discarded, world.rescales.closed) == ("", 5, [], False)
    assert (TARGET in world.rested, world.rested[-1]) == (True, "")


@pytest.mark.parametrize("identity", ["", OURS])
def test_what_was_staged_for_an_epoch_that_was_dropped_is_deleted_and_all_of_it_begins_again(identity: str) -> None:
    world = World()
    world.identity = identity
    world.turns()
    world.rescales.turn(at_rest=True)
    assert world.discarded == [[(TARGET, REWRITTEN)]]
    assert answer_to(world.store, world.number) is None
    world.planned.clear()
    world.identity = OURS
    world.turns()
    assert len(world.planned) == 1


def test_one_that_fails_again_and_again_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snowmelt.engine.maintenance.rescales.budgets", SimpleNamespace(MAINTENANCE=SimpleNamespace(pause_s=lambda _: 0.0)))
    world = World()
    world.broken = True
    world.turns(4 * FAILURES_MAX)
    answer = answer_to(world.store, world.number)
    assert answer is not None
    assert "the disk is full" in answer.refused
    assert not world.rescales.closed


def test_a_table_that_is_set_aside_while_its_request_waits_is_refused() -> None:
    world = World()
    world.table.phase = TablePhase.SNAPSHOTTING
    world.turns(3)
    assert answer_to(world.store, world.number) is None
    world.table.phase = TablePhase.SET_ASIDE
    world.turns(3)
    answer = answer_to(world.store, world.number)
    assert answer is not None
    assert "gone or set aside" in answer.refused
