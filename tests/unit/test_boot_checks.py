"""What a start makes of lake tables that are not as they were."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.engine.driver.boot import check_lake
from snowmelt.errors import Corrupt, SnowmeltError, SourceDrift
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Incarnation
from snowmelt.planning.tables import TablePhase

MISFIT = SourceDrift("another program made a lake table one of another kind")
DAMAGED = Corrupt("a lake table's metadata can't be read")


def started(errors: dict[str, SnowmeltError | None], *, promised: tuple[str, ...] = ()) -> list[TableId]:
    """The tables that a start sets aside. `errors`: what the lake says of each; None: it is not there."""

    def describe(target: str) -> None:
        error = errors[target]
        assert error is not None
        raise error

    aside: list[TableId] = []
    lake = SimpleNamespace(exists=lambda target: errors[target] is not None, check_start=lambda *_: None, describe=describe)
    settings = SimpleNamespace(sink=SimpleNamespace(fluss=None, warehouse="/lake", buckets=2))
    resources: Any = SimpleNamespace(lake=lake, settings=settings)
    tables = [
        SimpleNamespace(
            target=target,
            phase=TablePhase.RELEASED,
            keyed=True,
            incarnation=Incarnation(TableId(*target.replace("ods", "shop").split(".")), 1),
        )
        for target in errors
    ]
    entries = [SimpleNamespace(target=target) for target in promised]
    ledger: Any = SimpleNamespace(tables=tables, open=SimpleNamespace(entries=entries))
    fitness: Any = SimpleNamespace(router=SimpleNamespace(partition=lambda _: None))
    asides: Any = SimpleNamespace(add=lambda name, _: aside.append(name))
    check_lake(resources, ledger, SimpleNamespace(tables={}), fitness, asides)  # type: ignore[arg-type]
    return aside


def test_the_only_table_is_set_aside_where_another_program_changed_it_so_that_it_can_be_copied_again() -> None:
    assert started({"ods.a": MISFIT}) == [TableId("shop", "a")]
    assert started({"ods.a": MISFIT, "ods.b": None}) == [TableId("shop", "a"), TableId("shop", "b")]


@pytest.mark.parametrize("error", [DAMAGED, None], ids=["damaged", "not there"])
def test_where_all_tables_are_missing_the_lake_is(error: SnowmeltError | None) -> None:
    with pytest.raises(SnowmeltError, match=r"not there|can't be read"):
        started({"ods.a": error, "ods.b": error})
    assert len(started({"ods.a": error, "ods.b": MISFIT})) == 2


@pytest.mark.parametrize("error", [DAMAGED, MISFIT, None], ids=["damaged", "changed", "not there"])
def test_one_that_the_open_epoch_has_files_for_stops_the_start(error: SnowmeltError | None) -> None:
    with pytest.raises(SnowmeltError, match=r"not there|can't be read|another kind"):
        started({"ods.a": error, "ods.b": MISFIT}, promised=("ods.a",))
