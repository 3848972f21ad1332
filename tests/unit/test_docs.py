"""The pages under docs/ say what is so: drawings are the machines', and every name that they use exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from scripts import draw_machines
from tests.kit.rules import KEEPING, Rule, read_rules
from tests.sim.bugs import BUGS
from tests.sim.lease_bugs import LEASE_BUGS
from tests.sim_tiering.bugs import BUGS as ROUND_BUGS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md", ROOT / "README.md"])
INVARIANTS = ROOT / "docs/invariants.md"
MAPS = [ROOT / "docs/protocol_map.md", INVARIANTS]
"""Pages of rules."""
FOLDERS = [ROOT, ROOT / "tests", ROOT / "src/snowmelt", ROOT / "src/snowmelt/databases/mysql", ROOT / "docs"]
"""What a path on a page may be relative to."""
FOREIGN = {"gtid_executed", "sequence.field", "table.datalake.enabled", "table.datalake.format"}
"""Names of the servers' and the lakes', where ours are expected."""

_QUOTED = re.compile(r"`([^`\n]+)`")
_SYMBOL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PATH = re.compile(r"[\w./*-]+\.(py|md|toml|json|npz)|[\w.-]+(/[\w.-]+)*/")
_LINK = re.compile(r"\]\(([^)#\s]+)\)")


# ---- what there is


@dataclass
class Module:
    """The names of a file: its own, those of its classes, and its words: strings and arguments."""

    names: set[str] = field(default_factory=set)
    classes: dict[str, set[str]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)


def targets(node: ast.AST) -> Iterator[str]:
    """What a statement names."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=several):
            for one in several:
                yield from (part.id for part in ast.walk(one) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def read_module(path: Path) -> Module:
    module = Module()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        module.names.update(targets(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {name for inner in node.body for name in targets(inner)}
            names |= {
                inner.attr
                for inner in ast.walk(node)
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and isinstance(inner.value, ast.Name)
            }
            module.classes[node.name] = names
            module.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            module.words.add(node.value)
        elif isinstance(node, ast.arg):
            module.words.add(node.arg)
    return module


@cache
def modules() -> dict[tuple[str, ...], Module]:
    """Every module of ours by the parts of its name. Of the tests those that others may use."""
    rooms = ("src/snowmelt/**", "tests/sim", "tests/sim_tiering", "tests/bench", "tests/fuzz", "tests/mutants", "scripts")
    found = {}
    for path in (path for room in rooms for path in ROOT.glob(f"{room}/*.py")):
        parts = path.relative_to(ROOT / "src" if (ROOT / "src") in path.parents else ROOT).with_suffix("").parts
        found[parts[:-1] if parts[-1] == "__init__" else parts] = read_module(path)
    return found


@cache
def defined_in(path: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) for name in targets(node)}


@cache
def has_member(owner: str, member: str) -> bool:
    """Whether some class of ours of this name has, by itself or by a base, such a member."""
    for module in modules().values():
        if member in module.classes.get(owner, ()) or any(has_member(base, member) for base in module.bases.get(owner, ())):
            return True
    return False


@cache
def symbol_exists(name: str) -> bool:
    """`room.module.Class.member`, with as much of the front left out as one likes; or a string or argument of the code."""
    parts = tuple(name.split("."))
    for parted in range(len(parts) + 1):
        front, rest = parts[:parted], parts[parted:]
        for known, module in modules().items():
            if known[len(known) - len(front) :] != front:
                continue
            if not rest or (len(rest) == 1 and rest[0] in module.names):
                return True
            if len(rest) == 2 and rest[0] in module.classes and has_member(*rest):
                return True
    return len(parts) == 1 and any(
        name in module.words or any(name in members for members in module.classes.values()) for module in modules().values()
    )


def path_exists(name: str) -> bool:
    return any(any(folder.glob(name)) if "*" in name else (folder / name).exists() for folder in FOLDERS)


def wrong_in(quoted: str, before: str, *, strict: bool) -> str | None:
    """What is wrong with a quoted name; `before` is the last file of tests that was named, for `…::test`."""
    if quoted in FOREIGN or quoted.endswith("…"):
        return None
    if quoted.startswith("bug: "):
        return None if quoted.removeprefix("bug: ") in BUGS | LEASE_BUGS | ROUND_BUGS else "no such bug is planted"
    if quoted.startswith("python -m "):
        return None if symbol_exists(quoted.split()[2]) else "no such module"
    if "::" in quoted:
        file, *_, name = quoted.split("::")
        path = ROOT / "tests" / (before if file == "…" else file)
        if not path.is_file():
            return "no such file of tests"
        return None if name in defined_in(path) else "no such test"
    if _PATH.fullmatch(quoted):
        return None if path_exists(quoted) else "no such file"
    if _SYMBOL.fullmatch(quoted) and (strict or is_ours(quoted)):
        return None if symbol_exists(quoted) else "no such symbol"
    return None


@cache
def is_ours(name: str) -> bool:
    """Whether a dotted name speaks of a module or class of ours; a single word may be anybody's."""
    front, _, rest = name.partition(".")
    return bool(rest) and (any(known[-1] == front for known in modules()) or any(front in module.classes for module in modules().values()))


def wrong_names(text: str, rules: Sequence[Rule] = ()) -> Iterator[str]:
    """Every quoted name of a page that does not exist. In the fields of its rules every word must be ours, but for what a rule prevents."""
    of_rules = {number for rule in rules for number in range(rule.line, rule.end)}
    for number, line in enumerate(text.splitlines(), start=1):
        if number not in of_rules:
            yield from _wrong_in_text(number, line, strict=False)
    for rule in rules:
        for said in (rule.statement, rule.note, rule.fields.get("otherwise", "")):
            yield from _wrong_in_text(rule.line, said, strict=False)
        for label in (*KEEPING, "simulated by", "test"):
            yield from _wrong_in_text(rule.line, rule.fields.get(label, ""), strict=True)


def _wrong_in_text(number: int, text: str, *, strict: bool) -> Iterator[str]:
    before = ""
    for quoted in _QUOTED.findall(text):
        wrong = wrong_in(quoted, before, strict=strict)
        if wrong is not None:
            yield f"line {number}: `{quoted}`: {wrong}"
        if "::" in quoted and not quoted.startswith("…"):
            before = quoted.partition("::")[0]


# ---- drawings


def test_the_drawings_are_what_the_machines_do() -> None:
    ran = subprocess.run([sys.executable, "scripts/draw_machines.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_drawing_that_lacks_a_transition_is_out_of_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = draw_machines.PAGE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines(keepends=True) if "CLOSING --> FREE" not in line]
    older = tmp_path / "architecture.md"
    older.write_text("".join(lines), encoding="utf-8")
    monkeypatch.setattr(draw_machines, "PAGE", older)
    monkeypatch.setattr(sys, "argv", ["draw_machines.py", "--check"])
    assert draw_machines.main() == 1
    assert older.read_text(encoding="utf-8") != page, "a check wrote"
    monkeypatch.setattr(sys, "argv", ["draw_machines.py"])
    assert draw_machines.main() == 0
    assert older.read_text(encoding="utf-8") == page


@pytest.mark.parametrize("name", draw_machines.MACHINES)
def test_a_drawing_has_every_state_and_no_other(name: str) -> None:
    machine = draw_machines.MACHINES[name]
    page = draw_machines.PAGE.read_text(encoding="utf-8")
    drawing = page.partition(f"<!-- drawn by scripts/draw_machines.py: {name} -->")[2].partition("<!-- end -->")[0]
    arrows = re.findall(r"(\w+|\[\*]) --> (\w+|\[\*])(?:: (.*))?", drawing)
    declared = re.findall(r"^ +(\w+)$", drawing, re.MULTILINE)
    noted = re.findall(r"note right of (\w+): (.*), from", drawing)
    assert declared == [state.name for state in machine.states]
    assert {end for source, to, _ in arrows for end in (source, to)} | {to for to, _ in noted} == {*declared, "[*]"}
    assert {turn for _, _, turn in arrows if turn} | {turn for _, turn in noted} == {turn.value for _, turn in machine.table}
    # A second colon or a semicolon ends a text in mermaid.
    assert not [line for line in drawing.splitlines() if line.count(":") > 1 or ";" in line]


# ---- names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_nothing_that_is_not_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert list(wrong_names(text, read_rules(text) if page in MAPS else ())) == []
    missing = [link for link in _LINK.findall(text) if "://" not in link and not (page.parent / link).exists()]
    assert missing == [], "links that lead nowhere"


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_every_rule_names_what_keeps_it_and_what_watches_it(page: Path) -> None:
    rules = read_rules(page.read_text(encoding="utf-8"))
    assert len(rules) > 100
    for rule in rules:
        if not rule.excused:
            watching = rule.fields.get("test", "")
            assert any(mark in watching for mark in ("::", "bug: ", ".py", "World.", "python -m ")), f"nothing watches: {rule.statement}"
            assert any(rule.fields.get(label) for label in (*KEEPING, "simulated by")), f"nothing keeps: {rule.statement}"
        if page == INVARIANTS and "simulated by" not in rule.fields:
            assert rule.fields.get("otherwise"), f"nothing would go wrong: {rule.statement}"
        assert list(rule.tests()) or not any("::" in quoted for quoted in rule.quoted("test"))


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("`epochs.plan_epoch`", None),
        ("`Tables.copy_of`", None),
        ("`planning/tables.py`", None),
        ("`sim/test_sim.py::test_a_planted_bug_is_caught`, `…::test_every_danger_comes_up`", None),
        ("`bug: no _seq`", None),
        ("`planning.plan_era`", "no such symbol"),
        ("`Tables.copy_off`", "no such symbol"),
        ("`nobody_has_this_name`", "no such symbol"),
        ("`source/cables.py`", "no such file"),
        ("`sim/test_sam.py::test_a_planted_bug_is_caught`", "no such file of tests"),
        ("`sim/test_sim.py::test_a_planted_bug_is_caught`, `…::test_nothing`", "no such test"),
        ("`bug: the moon`", "no such bug is planted"),
    ],
)
def test_a_name_that_is_gone_is_found(cell: str, wrong: str | None) -> None:
    page = f"## Rules\n\n- **A rule about `nobody_has_this_name`.**\n  - otherwise: `nobody_has_this_name`\n  - guard: {cell}\n"
    found = list(wrong_names(page, read_rules(page)))
    assert [line.rpartition(": ")[2] for line in found] == ([] if wrong is None else [wrong])


def test_a_rule_is_read_with_its_fields_over_lines() -> None:
    page = """# Page

- an item before the rules

## First

- **A rule of `one`
  sentence.** And more
  of it.
  - by: `Tables`,
    `epochs`
  - test:
    `unit/test_docs.py::TestX::test_a`, `…::test_b`, `unit/test_prose.py`,
    `…::test_c`, `World.fold`
- **Left out.**
  - left out: no need

Text.

## Second

- **Another.**
  - simulated by: `Store`
"""
    first, left_out, another = read_rules(page)
    assert (first.line, first.end, first.section) == (7, 15, "First")
    assert (first.statement, first.note) == ("A rule of `one` sentence.", "And more of it.")
    assert list(first.quoted("by", "guard")) == ["Tables", "epochs"]
    docs, prose = "unit/test_docs.py", "unit/test_prose.py"
    assert list(first.tests()) == [(docs, "test_a"), (docs, "test_b"), (prose, ""), (docs, "test_c")]
    assert [rule.excused for rule in (first, left_out, another)] == [False, True, False]
    assert (another.section, another.fields) == ("Second", {"simulated by": "`Store`"})


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("| a rule | `Tables` |", "line 3: neither a rule nor a text"),
        ("- A rule without stars.", "line 3: neither a rule nor a text"),
        ("- **A rule.", "line 3: no statement"),
        ("- **A rule.**\n  - because: of that", "line 4: `because` is no label"),
        ("- **A rule.**\n  - by: `a`\n  - by: `b`", "line 5: `by` is no label, or is there twice"),
        ("- **A rule.**\n  - test: `a`\n  - by: `b`", "line 3: another order of labels"),
        ("- **A rule.**\n  - by: `a`\n  and more", "line 5: neither a part of the rule of line 3"),
        ("- **A rule.**\n  - by: `a`\n    - test: `b`", "line 5: neither a part of the rule of line 3"),
        ("- **A rule.**\n\n  - by: `a`", "line 5: neither a rule nor a text"),
    ],
)
def test_a_list_or_table_that_is_no_rule_is_not_overlooked(lines: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_rules(f"## Rules\n\n{lines}\n")


def test_a_test_without_a_file_before_it_is_refused() -> None:
    (rule,) = read_rules("## Rules\n\n- **A rule.**\n  - test: `…::test_a`\n")
    with pytest.raises(ValueError, match="no file before"):
        list(rule.tests())
