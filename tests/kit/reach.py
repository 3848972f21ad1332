"""Which definitions of the product can be reached from where it is run, by names alone.

A graph of definitions: functions, classes, members of classes, module constants. Code that is reached reaches

- the definition that a name stands for in its module, its own or imported one;
- of `module.name` the definition in that module;
- of `self.name` the member of its class, of the bases and of what is derived from it;
- of any other `x.name` every member of this name, of every class that is reached: whose `x` is, is not known.

A class that is reached brings its double-underscore methods, and with a base that is not ours all its methods: a library calls them.
What an annotation of a function names is not reached by it. What fields are annotated with is: records are read by it.
So whatever is not reached is certainly not used. What is reached may still be unused.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src"

Name = tuple[str, ...]
"""Module, and what is in it: `("snowmelt.commit.ledger", "Ledger", "apply_done")`."""

_OF_PYTHON: Final = {"ABC", "Enum", "Exception", "Generic", "IntEnum", "NamedTuple", "Protocol", "StrEnum", "TypedDict", "object"}
"""Bases that call no method of ours but those with double underscores."""


@dataclass(slots=True)
class _Uses:
    """What some code names."""

    names: set[str] = field(default_factory=set)
    paths: set[Name] = field(default_factory=set)
    """`a.b.c`, in parts."""
    words: set[str] = field(default_factory=set)
    """Members of whatever it is."""
    own: set[str] = field(default_factory=set)
    """Members of `self`."""
    given: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Class:
    name: Name
    bases: list[Name] = field(default_factory=list)
    members: dict[str, list[_Uses]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)
    """Members without code of their own: what is annotated or assigned, in the class or to `self`."""


@dataclass(slots=True)
class _Module:
    name: str
    names: dict[str, Name] = field(default_factory=dict)
    """What a name of the module stands for; a module is a name of one part."""
    code: dict[str, list[_Uses]] = field(default_factory=dict)
    classes: dict[str, _Class] = field(default_factory=dict)
    statements: list[_Uses] = field(default_factory=list)


def read_sources() -> dict[str, str]:
    """The product's modules, by dotted names."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return found


class Reach:
    """What is reached from `roots`, given as `module:name` or `module:Class.member`, or as a whole `module`."""

    def __init__(self, sources: Mapping[str, str], roots: Iterable[str]) -> None:
        self._modules = {name: _read(name, text, frozenset(sources)) for name, text in sources.items()}
        self._reached: set[Name] = set()
        self._words: set[str] = set()
        """Names of members that reached code asks for."""
        self._given: set[str] = set()
        """Names by which reached code gives arguments, and so fields."""
        self._asked_of_self: defaultdict[Name, set[str]] = defaultdict(set)
        self._entered: list[_Class] = []
        self._loaded: set[str] = set()
        self._waiting: list[Name] = []
        self._known_by: defaultdict[str, list[_Class]] = defaultdict(list)
        """Reached classes, by the names of their members."""
        for root in roots:
            module, _, name = root.partition(":")
            known = self._modules[module]
            for wanted in [(name,)] if name else [(one,) for one in (*known.code, *known.classes)]:
                self._add((module, *wanted[0].split(".")))
        while self._waiting:
            self._follow(self._waiting.pop())

    # ---- asking

    def meant(self, symbol: str) -> list[Name]:
        """The definitions that `module.Class.member`, with as much of its front left out as one likes, may mean; also a whole module."""
        parts = tuple(symbol.split("."))
        found: list[Name] = []
        for name, module in self._modules.items():
            path = tuple(name.split("."))
            for cut in range(len(parts) + 1):
                front, rest = parts[:cut], parts[cut:]
                if path[len(path) - len(front) :] != front or len(front) > len(path):
                    continue
                match rest:
                    case ():
                        found.append((name,))
                    case (one,) if one in module.code or one in module.classes:
                        found.append((name, one))
                    case (one, member) if one in module.classes and self._has(module.classes[one], member):
                        found.append((name, one, member))
        return found

    def reaches(self, name: Name) -> bool:
        """A module is reached if anything in it is; a field if its class is and its name is asked for."""
        match name:
            case (module,):
                return any(one[0] == module or one[0].startswith(f"{module}.") for one in self._reached)
            case (module, owner, member):
                holder = self._modules[module].classes[owner]
                if name in self._reached:
                    return True
                owned = member in holder.members
                inherited = any(self.reaches((*base, member)) for base in self._bases(holder) if self._has(self._class(base), member))
                return (inherited and not owned) or (not owned and name[:2] in self._reached and member in self._words | self._given)
        return name in self._reached

    # ---- following

    def _class(self, name: Name) -> _Class:
        return self._modules[name[0]].classes[name[1]]

    def _bases(self, holder: _Class) -> list[Name]:
        found = (self._resolved(base) for base in holder.bases)
        return [base for base in found if len(base) == 2 and base[0] in self._modules and base[1] in self._modules[base[0]].classes]

    def _has(self, holder: _Class, member: str) -> bool:
        return (
            member in holder.members or member in holder.fields or any(self._has(self._class(base), member) for base in self._bases(holder))
        )

    def _resolved(self, name: Name) -> Name:
        """Where a name that a module imports from another is defined."""
        for _ in range(10):
            module = self._modules.get(name[0])
            if module is None or len(name) < 2 or name[1] in module.code or name[1] in module.classes or name[1] not in module.names:
                return name
            name = (*module.names[name[1]], *name[2:])
        return name

    def _add(self, name: Name) -> None:
        name = self._resolved(name)
        module = self._modules.get(name[0])
        if module is None or name in self._reached or len(name) < 2:
            return
        if len(name) == 2 and name[1] not in module.code and name[1] not in module.classes:
            return
        if len(name) == 3:
            self._add(name[:2])
        self._reached.add(name)
        self._waiting.append(name)
        self._load(name[0])

    def _load(self, name: str) -> None:
        """To load a module runs what stands in it outside of definitions, and loads what it imports and what it is in."""
        module = self._modules.get(name)
        if module is None or name in self._loaded:
            return
        self._loaded.add(name)
        self._look_into(module, module.statements)
        for one in (name.rpartition(".")[0], *(stands[0] for stands in module.names.values())):
            self._load(one)

    def _follow(self, name: Name) -> None:
        module = self._modules[name[0]]
        match name:
            case (_, one) if one in module.classes:
                self._enter(module.classes[one])
                self._look_into(module, module.code.get(one, []))
            case (_, one):
                self._look_into(module, module.code[one])
            case (_, one, member):
                self._look_into(module, module.classes[one].members.get(member, []), module.classes[one])

    def _enter(self, holder: _Class) -> None:
        for base in holder.bases:
            self._add(base)
        foreign = self._is_foreign(holder)
        self._entered.append(holder)
        asked = self._words.union(*(self._asked_of_self[one.name] for one in self._lineage(holder)))
        for member in holder.members:
            self._known_by[member].append(holder)
            if foreign or member in asked or (member.startswith("__") and member.endswith("__")):
                self._add((*holder.name, member))

    def _is_foreign(self, holder: _Class) -> bool:
        """Whether it has a base that is not ours."""
        ours = self._bases(holder)
        others = [base for base in map(self._resolved, holder.bases) if base not in ours and base[-1] not in _OF_PYTHON]
        return bool(others) or any(self._is_foreign(self._class(base)) for base in ours)

    def _look_into(self, module: _Module, code: Iterable[_Uses], holder: _Class | None = None) -> None:
        """`holder`: the class that `self` is of."""
        for uses in code:
            for word in uses.own:
                self._ask(word) if holder is None else self._ask_self(holder, word)
            for name in uses.names & module.names.keys():
                self._add(module.names[name])
            for first, *rest in uses.paths:
                if first in module.names:
                    self._add_path((*module.names[first], *rest))
            for word in uses.words:
                self._ask(word)
            self._given |= uses.given

    def _ask_self(self, holder: _Class, word: str) -> None:
        """Of a class, those that it is made of, and those that are made of it."""
        self._given.add(word)
        self._asked_of_self[holder.name].add(word)
        for one in (*self._lineage(holder), *(one for one in self._entered if holder in self._lineage(one))):
            if word in one.members:
                self._add((*one.name, word))

    def _lineage(self, holder: _Class) -> list[_Class]:
        return [holder, *(one for base in self._bases(holder) for one in self._lineage(self._class(base)))]

    def _add_path(self, path: Name) -> None:
        """`module.Class.member`, of which the module may be several parts."""
        for cut in range(len(path), 0, -1):
            if ".".join(path[:cut]) in self._modules:
                self._add((".".join(path[:cut]), *path[cut : cut + 1]))
                return
        self._add(path[:2])

    def _ask(self, word: str) -> None:
        if word not in self._words:
            self._words.add(word)
            for holder in list(self._known_by[word]):
                self._add((*holder.name, word))


# ---- reading


@cache
def _read(name: str, text: str, sources: frozenset[str]) -> _Module:
    tree = ast.parse(text)
    module = _Module(name)
    for node in ast.walk(tree):
        # Also those inside of functions: extras are imported where they are used.
        if isinstance(node, ast.ImportFrom | ast.Import):
            module.names.update(_imported(node, name, sources))
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                module.code[statement.name] = [_uses(statement)]
            case ast.ClassDef():
                module.classes[statement.name], module.code[statement.name] = _read_class(name, statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                for target in _targets(statement):
                    module.code.setdefault(target, []).append(_uses(statement))
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                module.statements.append(_uses(statement))
    for defined in (*module.code, *module.classes):
        module.names[defined] = (name, defined)
    for holder in module.classes.values():
        holder.bases = [module.names.get(base[1], base) for base in holder.bases]
    return module


def _read_class(module: str, node: ast.ClassDef) -> tuple[_Class, list[_Uses]]:
    holder = _Class((module, node.name))
    code = [_uses(one) for one in (*node.decorator_list, *node.keywords)]
    for base in node.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        holder.bases.append(("", named.id if isinstance(named, ast.Name) else ast.unparse(named).rpartition(".")[2]))
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # A property and its setter share a name.
            holder.members.setdefault(statement.name, []).append(_uses(statement))
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            holder.fields.update(_targets(statement))
            code.append(_uses(statement, annotations=True))
        else:
            code.append(_uses(statement))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and isinstance(inner.value, ast.Name):
            holder.fields.add(inner.attr)
    return holder, code


def _uses(code: ast.AST, *, annotations: bool = False) -> _Uses:
    """`annotations`: those count, because records are read by them."""
    found = _Uses()
    for node in ast.walk(code) if annotations else _evaluated(code):
        match node:
            case ast.Name(id=name):
                found.names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=word):
                found.own.add(word)
            case ast.Attribute(attr=word):
                found.words.add(word)
                if (path := _dotted(node)) is not None:
                    found.paths.add(path)
            case ast.MatchClass(kwd_attrs=words):
                found.words.update(words)
            case ast.keyword(arg=str(word)):
                found.given.add(word)
    return found


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of some code, without what only annotates functions and variables."""
    yield node
    for name, value in ast.iter_fields(node):
        annotates = name == "returns" or (name == "annotation" and isinstance(node, ast.arg | ast.AnnAssign))
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.AST) and not annotates:
                yield from _evaluated(inner)


def _targets(statement: ast.AST) -> Iterator[str]:
    match statement:
        case ast.Assign(targets=several):
            for one in several:
                yield from (part.id for part in ast.walk(one) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            yield name


def _imported(node: ast.Import | ast.ImportFrom, module: str, sources: frozenset[str]) -> Iterator[tuple[str, Name]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            yield bound, (alias.name if alias.asname else bound,)
        return
    for alias in node.names:
        whole = f"{node.module}.{alias.name}"
        yield alias.asname or alias.name, (whole,) if whole in sources else (node.module or module, alias.name)


def _dotted(node: ast.Attribute) -> Name | None:
    """`a.b.c` as its parts."""
    parts = [node.attr]
    inner: ast.expr = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return (inner.id, *reversed(parts)) if isinstance(inner, ast.Name) else None
