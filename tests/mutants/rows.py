"""The rules of docs/protocol_map.md that a seed states, and the mutants that prove each of them.

A mutant proves a rule if it changes a file that one of the rule's symbols or guards is in, and if the test that must notice is one that
the rule names. So a rule can't rest on a mutant of something else, nor on a test that its own story does not name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.kit.rules import KEEPING, read_rules
from tests.mutants import Mutant

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src/snowmelt"
PAGE: Final = ROOT / "docs/protocol_map.md"

UNPROVEN: Final = {
    # Release of snapshot metadata
    "The reader signals that it has assembled its metadata.": "nothing is assembled",
    "The format of the state stays as it is.": "there is no older state",
    "A split that was shipped inline reports a sentinel that is always accepted.": "no report is exempt",
    "The second implementation there repeats the pattern and the leak.": "there is one implementation",
    "No early limit exists: the container is killed where an error would have helped.": "there is no limit",
    "An inline split still releases after a bump.": "no report is exempt",
    # Commit by one coordinator
    "A writer waits in its checkpoint for the coordinator's answer (remark: a bottleneck).": "no task waits",
    "File info is durable in the writers' state, by checkpoint.": "writers have no state",
    "Two systems of state must agree (the first draft there).": "there is one store",
    "Writers learn of the commit, to drop what they kept.": "writers have no state",
    "A writer that fails over sends what it restored once more.": "writers have no state",
    "If that made a new snapshot, one more failover follows.": "nothing is planned before the roll-forward",
    "The commit user is restored.": "the user is the pipeline's name",
    "The scope is append tables without fixed buckets.": "there is one path",
    "Test: request and acknowledgement.": "no acknowledgement exists",
    # Lease of KV snapshots
    "The pull request has other parts.": "no reader comes back, and nothing is serialized",
}
"""Rules that no mutant can prove, because there is no guard to remove, by their statement."""

_SEEDS: Final = re.compile(r"\(seeds? ")
_SYMBOL: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    statement: str
    symbols: tuple[str, ...]
    """What keeps the statement, guards included."""
    tests: frozenset[str]
    """`file::name`, classes left out, or a whole file."""

    @property
    def files(self) -> set[str]:
        """Where its symbols are, below `src/snowmelt`."""
        return {file for symbol in self.symbols for file in files_of(symbol)}

    def proven_by(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        files = self.files
        return [one for one in mutants if one.file in files and any(_names_of(test) & self.tests for test in one.tests)]


def seed_rows(page: str) -> list[Row]:
    """The rules of all sections whose title names a seed."""
    rows = []
    for rule in read_rules(page):
        if _SEEDS.search(rule.section) is None:
            continue
        symbols = [quoted for quoted in rule.quoted(*KEEPING) if _SYMBOL.fullmatch(quoted)]
        tests = [f"{file}::{name}" if name else file for file, name in rule.tests()]
        rows.append(Row(rule.line, rule.statement, tuple(symbols), frozenset(tests)))
    return rows


def _names_of(test: str) -> set[str]:
    """What a row may call a test: itself, its class, or its file."""
    file, *names = test.partition("[")[0].split("::")
    return {file, *(f"{file}::{name}" for name in names)}


# ---- where a symbol is


@dataclass(frozen=True, slots=True)
class _Names:
    own: frozenset[str]
    members: frozenset[str]
    """`Class.member`, for attributes that methods set too."""


@cache
def _names_by_file() -> dict[str, _Names]:
    return {str(path.relative_to(SOURCE)): _read(path) for path in sorted(SOURCE.rglob("*.py"))}


def _read(path: Path) -> _Names:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = set(_defined(tree.body))
    members = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            own.add(node.name)
            stored = (inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store))
            members |= {f"{node.name}.{name}" for name in (*_defined(node.body), *stored)}
    return _Names(frozenset(own), frozenset(members))


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name


@cache
def files_of(symbol: str) -> frozenset[str]:
    """Files that define `module.name`, `Class.member`, `module.Class.member`, `name` or a whole `module`."""
    *front, last = symbol.split(".")
    found = set()
    for file, names in _names_by_file().items():
        stem = Path(file).stem
        fits = (
            last in names.own | {stem} if not front else f"{front[-1]}.{last}" in names.members or (front[-1] == stem and last in names.own)
        )
        if fits:
            found.add(file)
    return frozenset(found)
