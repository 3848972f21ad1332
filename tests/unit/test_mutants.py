"""The list of mutants is in step with the source and the tests, and a run is judged rightly. The run itself is `./run mutants`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import Lane, Mutant
from tests.mutants.__main__ import sampled
from tests.mutants.listed import MUTANTS
from tests.mutants.rows import PAGE, UNPROVEN, Row, files_of, seed_rows
from tests.mutants.simulated import MOVED, NOT_SEEN, simulated
from tests.mutants.verdicts import End, Ran, Verdict, judge, not_fit

ROOT = Path(__file__).parents[2]
PURE = ("unit/", "property/", "sim/", "sim_tiering/")


@cache
def source(file: str) -> str:
    return (ROOT / "src/snowmelt" / file).read_text(encoding="utf-8")


@cache
def named_in(file: str) -> set[str]:
    """What pytest collects of a file, without parameters: `test_x`, `TestX::test_x`."""
    found = set()
    for node in ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found.update(f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_removes_a_guard_that_is_there_and_names_tests_that_are_there(mutant: Mutant) -> None:
    mutated = mutant.apply(source(mutant.file))
    assert mutated != source(mutant.file)
    ast.parse(mutated)
    assert len(mutant.tests) == 1, "the test that kills it is the one that rows of the map rest on"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in named_in(file), f"no such test: {test}"
        assert mutant.lane is Lane.SHELL or file.startswith(PURE), f"no pure test: {test}"


def test_a_mutant_has_an_id_of_its_own_and_a_change_of_its_own() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    changes = [(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS]
    assert len(set(ids)) == len(ids)
    assert len(set(changes)) == len(changes)


ROWS = seed_rows(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line {row.line}")
def test_a_statement_of_a_seed_has_a_mutant_that_a_test_of_its_own_kills(row: Row) -> None:
    proven = row.proven_by(MUTANTS)
    if row.statement in UNPROVEN:
        assert not proven, f"no exception any more: {row.statement}"
    else:
        assert proven, f"no mutant changes {sorted(row.files)} and is killed by one of {sorted(row.tests)}"


def test_an_exception_is_of_a_row_that_is_there() -> None:
    assert UNPROVEN.keys() - {row.statement for row in ROWS} == set()


def test_a_row_is_proven_by_mutants_of_its_own_guards_and_tests_alone() -> None:
    page = """## The ground

- **No seed's.**
  - by: `Tables`
  - test: `unit/test_x.py`

## Release (seeds 000 and 001)

- **Kept.**
  - by: `Tables._release`: gone
  - guard: `tables.covers`
  - test: `unit/test_x.py::…::test_a`,
    `…::test_b`, `unit/test_y.py`
"""
    (row,) = seed_rows(page)
    assert (row.line, row.statement) == (9, "Kept.")
    assert row.tests == {"unit/test_x.py::test_a", "unit/test_x.py::test_b", "unit/test_y.py"}
    assert row.files == files_of("tables.covers") == {"planning/tables.py"}

    def mutant(file: str, test: str) -> Mutant:
        return Mutant(id="X1", seed="000", statement="", file=file, old="", new="", tests=(test,))

    mine = [mutant("planning/tables.py", test) for test in ("unit/test_x.py::TestX::test_b[1]", "unit/test_y.py::test_c")]
    others = [mutant("planning/tables.py", "unit/test_x.py::test_c"), mutant("planning/facts.py", "unit/test_y.py::test_c")]
    assert row.proven_by([*mine, *others]) == mine


def test_an_old_text_that_is_not_there_exactly_once_is_refused() -> None:
    mutant = Mutant(id="X1", seed="000", statement="nothing", file="x.py", old="guard", new="", tests=())
    assert mutant.apply("a guard") == "a "
    for text in ("", "guard guard"):
        with pytest.raises(ValueError, match=r"times, not once, in x\.py"):
            mutant.apply(text)


def test_a_mutant_that_the_simulated_world_does_not_see_is_there_and_has_a_reason() -> None:
    moved = {mutant.id for mutant in MUTANTS if mutant.file.startswith(MOVED)}
    assert NOT_SEEN.keys() <= moved
    assert all(len(why.split()) >= 8 for why in NOT_SEEN.values())
    assert {mutant.id for mutant in simulated(MUTANTS)} == moved - NOT_SEEN.keys()


def test_release_fencing_commit_order_and_cleaning_are_seen_by_the_simulated_world() -> None:
    ids = {mutant.id for mutant in simulated(MUTANTS)}
    numbers = [*range(1, 14), *range(15, 31), *range(50, 79), 113, 122]
    moved = {mutant.id for mutant in MUTANTS if mutant.file.startswith(MOVED)}
    assert {f"M{number:02}" for number in numbers} & moved <= ids
    assert {one for one in moved if one.startswith("P")} <= ids


PASSED = End("t.py::test_a", "call", "passed")
FAILED = End("t.py::test_b[1]", "call", "failed", "AssertionError: no\nmore")


@pytest.mark.parametrize(
    ("ran", "verdict", "why"),
    [
        (Ran((PASSED, FAILED)), Verdict.KILLED, "test_b[1]: AssertionError: no"),
        (Ran((PASSED,)), Verdict.SURVIVED, ""),
        (
            Ran((PASSED, End("t.py::test_b", "call", "failed", "Failed: Timeout (>300.0s) from pytest-timeout."))),
            Verdict.BROKEN,
            "out of time",
        ),
        (Ran((End("t.py", "collect", "failed", "ImportError"),)), Verdict.BROKEN, "collect of t.py: ImportError"),
        (Ran((End("t.py::test_b", "setup", "failed", "no server"),)), Verdict.BROKEN, "setup of t.py::test_b: no server"),
        (Ran((End("t.py::test_b", "setup", "skipped"),)), Verdict.BROKEN, "no test ran"),
        (Ran((), "ERROR: not found: t.py::test_c"), Verdict.BROKEN, "not found"),
        (Ran(None, "its tests did not end"), Verdict.BROKEN, "its tests did not end"),
    ],
)
def test_only_a_test_that_fails_by_itself_kills(ran: Ran, verdict: Verdict, why: str) -> None:
    found, said = judge(ran)
    assert found is verdict
    assert why in said


@pytest.mark.parametrize(
    ("tests", "ran", "why"),
    [
        (["t.py::test_a"], Ran((PASSED,)), None),
        (["t.py::test_a"], Ran((PASSED, FAILED)), None),
        (["t.py::test_b"], Ran((PASSED, FAILED)), "fails too: AssertionError: no"),
        (["t.py::test_a", "t.py::test_c"], Ran((PASSED,), "ERROR: not found: t.py::test_c"), "test_c did not run: ERROR: not found"),
        (["t.py::test_b"], Ran((End("t.py::test_b", "setup", "skipped"),)), "did not run"),
        (["t.py::TestX::test_b"], Ran((End("t.py", "collect", "failed", "ImportError"),)), "without the mutant t.py fails too"),
        (["t.py::test_b"], Ran(None, "the tests' process ended"), "process ended"),
    ],
)
def test_a_test_that_does_not_pass_without_the_mutant_says_nothing(tests: list[str], ran: Ran, why: str | None) -> None:
    said = not_fit(tests, ran)
    assert (said == "") if why is None else (why in said)


def test_a_sample_is_of_as_many_mutants_as_asked_for_and_the_same_for_the_same_source() -> None:
    some = sampled(MUTANTS, 20)
    assert [mutant.id for mutant in MUTANTS if mutant in some] == [mutant.id for mutant in some]
    assert len(some) == 20
    assert sampled(MUTANTS, 20) == some
    assert sampled(MUTANTS[:3], 20) == list(MUTANTS[:3])
