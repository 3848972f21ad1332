"""Limits on the shape of the house, held by `python -m tests.tidy`, a step of `./run lint`.

Laws:
- A limit is the same for every file. What does not meet it yet stands in `allowed`, with its number of today and the reason; that
  number may only shrink.
- An entry that nothing needs any more is a fault, too, so the lists never hide anything.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.kit.prose import STOPS

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ARGUMENTS_MAX = 8
"""Of a constructor, after `self`."""
FOLDER_FILES_MAX = 15
POSITIONAL_FIELDS_MAX = 5
"""A value with more fields is made by keywords only."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A limit that something exceeds. `number` is by how much it is measured, and may be compared with that of an allow list."""

    rule: str
    subject: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a fault may be for now: at most `today`."""

    today: int
    why: str


@dataclass(frozen=True)
class Source:
    """A file of Python and its name: from the root of the project, or below src/snowmelt."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").replace("/", ".")


def read_sources(root: Path) -> list[Source]:
    return [
        Source(str(path.relative_to(root)), path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


# ---- rules


def long_files(sources: Iterable[Source]) -> Iterator[Fault]:
    for source in sources:
        if (count := len(source.text.splitlines())) > FILE_LINES_MAX:
            yield Fault("long file", source.name, count, f"{count} lines, at most {FILE_LINES_MAX}: split it by subject")


def long_functions(sources: Iterable[Source]) -> Iterator[Fault]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                count = node.end_lineno - node.lineno + 1
                if count > FUNCTION_LINES_MAX:
                    yield Fault("long function", f"{source.name}::{node.name}", count, f"{count} lines, at most {FUNCTION_LINES_MAX}")


def wide_constructors(sources: Iterable[Source]) -> Iterator[Fault]:
    for source in sources:
        for owner in _classes(source):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    given = node.args
                    count = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
                    if count > ARGUMENTS_MAX:
                        text = f"{count} arguments, at most {ARGUMENTS_MAX}: group them in values"
                        yield Fault("wide constructor", f"{source.name}::{owner.name}", count, text)


def full_folders(sources: Iterable[Source]) -> Iterator[Fault]:
    files: dict[str, int] = defaultdict(int)
    for source in sources:
        files[source.name.rpartition("/")[0]] += not source.name.endswith("__init__.py")
    for folder, count in files.items():
        if count > FOLDER_FILES_MAX:
            yield Fault("full folder", folder, count, f"{count} files, at most {FOLDER_FILES_MAX}")


def shared_names(sources: Iterable[Source]) -> Iterator[Fault]:
    """Classes of one name in two modules, a leading underscore aside."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        for owner in source.tree.body:
            if isinstance(owner, ast.ClassDef):
                homes[owner.name.lstrip("_")].append(source.name)
    for name, where in homes.items():
        if len(where) > 1:
            yield Fault("shared name", name, len(where), f"a class in {', '.join(where)}: one word, one meaning")


def positional_values(sources: Iterable[Source]) -> Iterator[Fault]:
    """Dataclasses with so many fields that two of a type get mixed up."""
    for source in sources:
        for owner in _classes(source):
            made = next((one for one in owner.decorator_list if "dataclass" in ast.unparse(one)), None)
            if made is None or "kw_only=True" in ast.unparse(made):
                continue
            count = sum(isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation) for node in owner.body)
            if count > POSITIONAL_FIELDS_MAX:
                text = f"{count} fields: from {POSITIONAL_FIELDS_MAX + 1} on, kw_only=True"
                yield Fault("positional value", f"{source.name}::{owner.name}", count, text)


def stop_words(sources: Iterable[Source]) -> Iterator[Fault]:
    """Words that plain English avoids, in docstrings, comments and texts for users."""
    stops = {pattern: re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE) for pattern in STOPS}
    counts: Counter[str] = Counter()
    for source in sources:
        said = " ".join(" ".join(_said_in(source)).split())
        counts.update({pattern: len(stop.findall(said)) for pattern, stop in stops.items()})
    for pattern, count in counts.items():
        if count:
            yield Fault("stop word", pattern, count, f"{count} times; write {STOPS[pattern]}")


def _said_in(source: Source) -> Iterator[str]:
    """Comments and texts, without the names that they quote."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield re.sub(r"`[^`\n]*`", " ", token.string.lstrip("# "))


def imported_tests(tests: Iterable[Source]) -> Iterator[Fault]:
    """Imports of one file of tests by another; what two of them need belongs to tests/kit. Names are from the root of the project."""
    for source in tests:
        for node in ast.walk(source.tree):
            for wanted in _imported(node):
                if wanted.rpartition(".")[2].startswith("test_") and wanted != source.module:
                    yield Fault("imported test", f"{source.name} <- {wanted}", 1, "a test imports a test: move what both need to tests/kit")


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str() as module, names=names):
            yield module
            yield from (f"{module}.{name.name}" for name in names if name.name.startswith("test_"))
        case ast.Import(names=names):
            yield from (name.name for name in names)


def _classes(source: Source) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))


# ---- the verdict


def faults_of_src(sources: list[Source]) -> Iterator[Fault]:
    for rule in (long_files, long_functions, wide_constructors, full_folders, shared_names, positional_values, stop_words):
        yield from rule(sources)


def judge(faults: Iterable[Fault], allowed: Mapping[str, Mapping[str, Allowed]]) -> Iterator[str]:
    """What is wrong: faults beyond what is allowed, and allowances that are no longer used."""
    unused = {(rule, subject) for rule, entries in allowed.items() for subject in entries}
    for fault in faults:
        unused.discard((fault.rule, fault.subject))
        entry = allowed.get(fault.rule, {}).get(fault.subject)
        if entry is None:
            yield f"{fault.rule}: {fault.subject}: {fault.text}"
        elif fault.number > entry.today:
            yield f"{fault.rule}: {fault.subject}: {fault.number}, and {entry.today} is allowed so far; it may only shrink"
    for rule, subject in sorted(unused):
        yield f"{rule}: {subject}: allowed, but it meets the limit now; remove it from tests/tidy/allowed.py"
