"""Every guard that docs/invariants.md names is reached from where the product runs: a driver, a relay, tiering, a union read.

A guard that only tests and the simulation ask is none. That one is asked in the right place is for mutants to prove.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kit.reach import Reach, read_sources
from tests.kit.rules import KEEPING, read_rules

INVARIANTS, MAP = (Path(__file__).parents[2] / "docs" / name for name in ("invariants.md", "protocol_map.md"))
ROOTS = (
    "snowmelt.engine.driver.pipeline:PipelineDriver.run",
    "snowmelt.engine.log.standby:keep_capturing",
    "snowmelt.engine.tiering.service:Tiering.run",
    "snowmelt.engine.union.source:FlussSource",
    "snowmelt.engine.union.holder:main",
    # What a pipeline is given. Only those of its methods count that something asks for.
    "snowmelt.databases.mysql.database:MySql",
)
ALLOWED = {
    "facts.Passing": "a type, named by annotations alone",
}
"""Symbols of the map that names do not lead to, and why they are used all the same."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def named(page: str, *labels: str) -> Iterator[tuple[str, str]]:
    """What each rule of a page states, and each symbol that it names in one of these fields."""
    for rule in read_rules(page):
        yield from ((rule.statement, symbol) for symbol in rule.quoted(*labels) if _SYMBOL.fullmatch(symbol))


def unreached(rows: Iterable[tuple[str, str]], reach: Reach, allowed: Container[str] = ()) -> list[str]:
    """Symbols that nothing leads to, or that are none of the product's. A word without a dot may be a string or an argument."""
    found = []
    for statement, symbol in rows:
        meant = reach.meant(symbol)
        if symbol in allowed or (not meant and "." not in symbol):
            continue
        if not any(reach.reaches(name) for name in meant):
            found.append(f"{symbol}: {statement[:60]}")
    return found


@cache
def product() -> Reach:
    return Reach(read_sources(), ROOTS)


def invariants() -> list[tuple[str, str]]:
    return list(named(INVARIANTS.read_text(encoding="utf-8"), "guard"))


def test_every_guard_of_an_invariant_is_reached_from_the_engine() -> None:
    assert len(invariants()) > 100
    assert unreached(invariants(), product()) == []


def test_every_symbol_of_the_protocol_map_is_reached_from_the_product() -> None:
    """Also from commands: `check` is a guard, too."""
    rows = list(named(MAP.read_text(encoding="utf-8"), *KEEPING))
    reach = Reach(read_sources(), (*ROOTS, "snowmelt.cli.main", "snowmelt.programs"))
    assert len(rows) > 400
    assert unreached(rows, reach, ALLOWED) == []
    for symbol in ALLOWED:
        assert symbol in {symbol for _, symbol in rows}
        assert not any(reach.reaches(name) for name in reach.meant(symbol)), f"names lead to {symbol}"


PLANTED = """## Planted

- **Planted.**
  - otherwise: it is lost
  - guard: `planted.guard`, `Planted.check`
"""


def with_planted(loops: str = "") -> Reach:
    """The product with a guard that nothing asks, but for what `loops` adds to the engine's loop."""
    sources = read_sources()
    sources["snowmelt.commit.planted"] = "class Planted:\n    def check(self):\n        pass\n\ndef guard():\n    pass\n"
    sources["snowmelt.cli.main"] += "\nfrom snowmelt.commit.planted import Planted, guard\nguard()\nPlanted().check()\n"
    old = "        self.resources.awake.clear()\n        self._look_for_a_newer_driver()\n"
    loop = sources["snowmelt.engine.loop.driver"]
    assert old in loop
    sources["snowmelt.engine.loop.driver"] = "from snowmelt.commit.planted import Planted, guard\n" + loop.replace(old, old + loops)
    return Reach(sources, ROOTS)


@pytest.mark.parametrize(
    ("loops", "missing"),
    [
        ("", ["planted.guard", "Planted.check"]),
        ("        guard()\n", ["Planted.check"]),
        ("        Planted()\n        guard()\n", []),
        ("        found: Planted = guard()\n", ["Planted.check"]),
    ],
    ids=["imported alone", "one asked", "both asked", "annotated alone"],
)
def test_a_planted_guard_that_the_engine_does_not_ask_is_caught(loops: str, missing: list[str]) -> None:
    assert [line.partition(":")[0] for line in unreached(named(PLANTED, "guard"), with_planted(loops))] == missing


@pytest.mark.parametrize(
    ("module", "old", "new", "lost"),
    [
        ("snowmelt.driving.committing", "refused = refusal(plan, ", "refused = print(plan, ", {"checks.refusal"}),
        ("snowmelt.sinks.paimon.sink", "                self._hold(table, entry)\n", "", {"PaimonSink._hold"}),
        (
            "snowmelt.engine.loop.resources",
            "from snowmelt.engine.loop.listening import Listening\n",
            "Listening: Any = print\n",
            {
                "Listening.hear",
                "done_partitions.decide_marked",
                "done_partitions.decide_marks",
                "listeners.decide_tags",
                "listening.remind",
                "marks.mark_done",
                "notices.decide_notices",
                "PaimonSink.tag",
                "table.tag_snapshot",
            },
        ),
    ],
)
def test_a_guard_that_is_asked_no_more_is_caught(module: str, old: str, new: str, lost: set[str]) -> None:
    sources = read_sources()
    assert old in sources[module]
    sources[module] = sources[module].replace(old, new)
    found = {line.partition(":")[0] for line in unreached(invariants(), Reach(sources, ROOTS))}
    assert found == lost
