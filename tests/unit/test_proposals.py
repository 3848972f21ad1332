"""What a driver makes sure of before it makes a lake table anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.engine.loop import proposals
from snowmelt.engine.loop.proposals import Proposals
from snowmelt.errors import Corrupt, Fenced, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Incarnation
from snowmelt.planning.tables import TablePhase

SCHEMA = pa.schema([pa.field("id", pa.int64())])
MINE = 3


class Lake:
    """Has one table, which must be made anew."""

    def __init__(self, story: list[str], *, found: str = "old") -> None:
        self.story, self.found, self.made = story, found, "old"

    def exists(self, _: str) -> bool:
        return True

    def reshape(self, *_: Any, **__: Any) -> None:
        raise SourceDrift("the key of a table was changed")

    def identity(self, _: str) -> str:
        self.story.append("identity")
        return self.made

    def remake(self, *_: Any, identity: str, **__: Any) -> None:
        self.story.append("remake")
        if identity != self.found:
            raise SourceDrift("a lake table was made anew meanwhile")


def make_room(lake: Lake, monkeypatch: pytest.MonkeyPatch, newest: list[int]) -> bool:
    def newest_generation(*_: Any) -> int:
        lake.story.append("generation")
        return newest.pop(0)

    monkeypatch.setattr(proposals, "newest_generation", newest_generation)
    sink, state = SimpleNamespace(buckets=2), SimpleNamespace(store=None)
    resources: Any = SimpleNamespace(lake=lake, state=state, settings=SimpleNamespace(sink=sink))
    known: Any = SimpleNamespace(generation=MINE, ledger=SimpleNamespace(open=None))
    fitness: Any = SimpleNamespace(router=SimpleNamespace(partition=lambda _: None))
    of_no_matter: Any = None
    driver = Proposals(resources, known, fitness, of_no_matter, of_no_matter, of_no_matter, of_no_matter)
    incarnation = Incarnation(TableId("shop", "orders"), 1)
    table: Any = SimpleNamespace(incarnation=incarnation, target="ods.orders", keyed=True, phase=TablePhase.SET_ASIDE)
    return driver._make_room(table, SimpleNamespace(key=("id",)), SCHEMA)  # type: ignore[arg-type]


def test_the_table_that_goes_is_the_one_that_was_there_before_the_generation_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer driver that comes after that makes another one, which is not this driver's to drop, however long it sleeps."""
    lake = Lake([])
    assert make_room(lake, monkeypatch, [MINE])
    assert lake.story == ["identity", "generation", "remake"]


def test_a_table_that_a_newer_driver_made_anew_ends_the_older_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fenced):
        make_room(Lake([], found="of a newer driver"), monkeypatch, [MINE, MINE + 1])
    with pytest.raises(Fenced):
        make_room(lake := Lake([]), monkeypatch, [MINE + 1])
    assert "remake" not in lake.story


def test_a_table_that_another_program_made_anew_is_looked_at_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not make_room(Lake([], found="of a user"), monkeypatch, [MINE, MINE])


@pytest.mark.parametrize("last_commits", [{}, {"ods.orders": "1-n"}], ids=["new", "made again"])
def test_a_new_table_whose_lake_table_is_of_another_kind_or_damaged_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, last_commits: dict[str, str]
) -> None:
    left_out: dict[TableId, str] = {}
    name = TableId("shop", "orders")

    def describe(_: str) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(proposals, "lake_schema", lambda *_, **__: SCHEMA)
    lake = SimpleNamespace(exists=lambda _: True, describe=describe)
    settings = SimpleNamespace(source=None, sink=SimpleNamespace(buckets=2))
    resources: Any = SimpleNamespace(lake=lake, settings=settings)
    ledger = SimpleNamespace(epoch=5, tables=[], last_commits=last_commits, upto=0)
    known: Any = SimpleNamespace(ledger=ledger, shapes=None)
    router = SimpleNamespace(of=lambda _: SimpleNamespace(name="ods.orders", keyed=True), partition=lambda _: None)
    fitness: Any = SimpleNamespace(router=router)
    discovery: Any = SimpleNamespace(found=lambda: [(SimpleNamespace(id=name), "")], leave_out=left_out.__setitem__)
    of_no_matter: Any = None
    driver = Proposals(resources, known, fitness, of_no_matter, discovery, of_no_matter, of_no_matter)
    errors = [SourceDrift("another program made a lake table one of another kind"), Corrupt("a lake table's metadata can't be read")]
    for why in ("another kind", "metadata"):
        assert list(driver._new()) == []
        assert why in left_out.pop(name)
    ledger.epoch, errors = 0, [SourceDrift("another program made a lake table one of another kind")]
    with pytest.raises(SourceDrift):
        list(driver._new())
