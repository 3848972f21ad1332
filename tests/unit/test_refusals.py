"""What a tiering service refuses, and how it leaves refused tables to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.engine.tiering.refusals import REFUSED_S, REST_S_MAX, Refusals, check_cluster, check_table
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.answers import Claim
from snowmelt.model.table import TableId


def table(properties: dict[str, str] | None = None, **more: Any) -> Any:
    given = {"lake_format": "paimon", "log_format": "ARROW", "kv_format": "COMPACTED", **more}
    return SimpleNamespace(path=TableId("shop", "orders"), properties=properties or {}, **given)


def test_a_cluster_with_nothing_special_is_tiered() -> None:
    check_cluster({})
    check_cluster(
        {"datalake.format": "paimon", "datalake.paimon.metastore": "filesystem", "lake.tiering.auto-expire-snapshot": "false"},
    )


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"datalake.format": "iceberg"}, "another lake than Paimon: iceberg"),
        ({"datalake.paimon.metastore": "hive"}, "metastore is hive"),
        ({"datalake.paimon.metastore": "jdbc"}, "metastore is jdbc"),
        ({"datalake.paimon.metastore": "rest"}, "metastore is rest"),
        ({"lake.tiering.auto-expire-snapshot": "true"}, "auto-expire-snapshot is true.*set it to false"),
    ],
)
def test_a_cluster_that_needs_what_is_not_done_is_refused_by_name(told: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        check_cluster(told)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"table.datalake.auto-compaction": "false", "table.datalake.auto-expire-snapshot": "false"},
        {"paimon.deletion-vectors.enabled": "false", "table.datalake.paimon.metastore": "filesystem"},
    ],
)
def test_a_table_with_nothing_special_is_tiered(properties: dict[str, str]) -> None:
    check_table(table(properties))


@pytest.mark.parametrize(
    ("properties", "more", "words"),
    [
        ({"table.datalake.auto-compaction": "true"}, {}, r"shop\.orders, table\.datalake\.auto-compaction is on.*set it to false"),
        ({"table.datalake.auto-expire-snapshot": "true"}, {}, "auto-expire-snapshot is on.*expire"),
        ({"paimon.deletion-vectors.enabled": "true"}, {}, "deletion-vectors.enabled is on.*without deletion vectors"),
        ({"table.datalake.paimon.metastore": "hive"}, {}, r"table\.datalake\.paimon\.metastore is hive.*leave it to"),
        ({}, {"lake_format": "iceberg"}, r"table\.datalake\.format is iceberg"),
        ({}, {"log_format": "INDEXED"}, r"table\.log\.format is INDEXED"),
        ({}, {"kv_format": "INDEXED"}, r"table\.kv\.format is INDEXED"),
    ],
)
def test_a_table_that_needs_what_is_not_done_is_refused_by_name(properties: dict[str, str], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        check_table(table(properties, **more))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_refused_table_is_looked_at_again_after_a_while() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    assert not refusals.holds(1)
    refusals.refuse(1)
    assert refusals.holds(1)
    assert not refusals.holds(2)
    clock.now_s += REFUSED_S
    assert not refusals.holds(1)


def test_a_reason_is_told_once() -> None:
    refusals = Refusals()
    assert refusals.is_news(1, InvalidConfig("a"))
    assert not refusals.is_news(1, InvalidConfig("a"))
    assert refusals.is_news(1, InvalidConfig("b"))
    assert refusals.is_news(2, InvalidConfig("a"))


def test_tables_are_asked_for_until_a_refused_one_comes_twice_then_less_and_less_often() -> None:
    refusals = Refusals()
    rests = []
    for _ in range(6):
        for number in (1, 2):
            refusals.hand_back(Claim(number, 0, 1))
            assert not refusals.resting, "another table may be due"
            assert refusals.take_back() == [Claim(number, 0, 1)]
            assert refusals.take_back() == []
        refusals.hand_back(Claim(1, 0, 2))
        assert refusals.resting
        refusals.take_back()
        rests.append(refusals.pause_s(1.0))
        assert not refusals.resting
    assert rests == [2.0, 4.0, 8.0, REST_S_MAX, REST_S_MAX, REST_S_MAX]
    assert refusals.pause_s(1.0) == 1.0, "nothing was due"
    refusals.began()
    refusals.hand_back(Claim(1, 0, 1))
    refusals.hand_back(Claim(1, 0, 2))
    assert refusals.pause_s(1.0) == 2.0
    refusals.hand_back(Claim(1, 0, 1))
    refusals.hand_back(Claim(1, 0, 2))
    assert refusals.pause_s(30.0) == 30.0
