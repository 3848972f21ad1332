"""A file of YAML into a checked model; every mistake is told with its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from snowmelt.errors import InvalidConfig
from snowmelt.sections.values import shown

FILE_BYTES_MAX: Final = 1 << 20
NODES_MAX: Final = 20_000
DEPTH_MAX: Final = 20

Place = tuple[str | int, ...]
"""Where something stands: keys and indexes from the top."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Choice:
    """Marks a key that holds one of several sections, told apart by their key `type`."""

    sections: Mapping[str, type[Section]]
    allowed: str
    """What `type` may be, for an error."""

    def __get_pydantic_core_schema__(self, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {word: handler.generate_schema(section) for word, section in self.sections.items()}
        return core_schema.tagged_union_schema(choices, discriminator=self._word)

    def _word(self, value: object) -> str | None:
        if isinstance(value, Section):
            return str(getattr(value, "type", None))
        # A mapping without its type is read as the first of them, so that what is missing is told with all else that is wrong.
        return str(value.get("type", next(iter(self.sections)))) if isinstance(value, Mapping) else None


_Config = TypeVar("_Config", bound=Section)


def read_file(path: Path, kind: type[_Config], command: str) -> _Config:
    """`command`: whose help shows an example."""
    document = _Document(str(path), kind, command)
    value = document.read(_load(path))
    try:
        return kind.model_validate(value, context={"folder": path.absolute().parent})
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=True)
        told = sorted((document.line(_place(one, kind)), _describe(one, kind)) for one in errors)
        raise InvalidConfig.of_lines(f"{path}:{line}: {text}" for line, text in told) from None


# ---- errors


_OTHER_WORDS: Final = {
    "hostname": "host",
    "user": "username",
    "database": "tables",
    "tables.exclude": "exclude",
    "server-id": "server_id",
    "tls-ca": "tls_ca",
    "ssl": "tls",
    "bucket": "buckets",
    "path": "warehouse",
    "catalog.properties.warehouse": "warehouse",
    "route": "routes",
    "source-table": "source",
    "sink-table": "target",
    "sink": "target",
    "scan.incremental.snapshot.chunk.size": "rows_per_chunk",
    "chunk_size": "rows_per_chunk",
    "checkpoint": "interval",
}
"""What other tools call a key of ours."""


def _place(error: ErrorDetails, kind: type[Section]) -> Place:
    """Where an error is in the file."""
    loc = error["loc"]
    return (*loc, "type") if error["type"] == "union_tag_invalid" else _without_word(loc, kind)


def _without_word(loc: Place, kind: type[Section]) -> Place:
    """After a key that holds one of several sections pydantic names the word that picked one."""
    return (loc[0], *loc[2:]) if len(loc) > 1 and _choice(loc[0], kind) is not None else loc


def _choice(key: str | int, kind: type[Section]) -> Choice | None:
    given = kind.model_fields.get(str(key))
    return next((one for one in given.metadata if isinstance(one, Choice)), None) if given is not None else None


def _describe(error: ErrorDetails, kind: type[Section]) -> str:
    place = _place(error, kind)
    name = name_of(place)
    match error["type"]:
        case "union_tag_invalid" if (choice := _choice(place[0], kind)) is not None:
            return f"{name}: found {shown(error['input'].get('type'), False)}; allowed is {choice.allowed}"
        case "union_tag_not_found":
            known = ", ".join(_known(place, kind))
            return f"{name}: found {shown(error['input'], True)}; allowed is a mapping of {known}"
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return _unknown(error["loc"], kind)
        case "config":
            return f"{name}: {error['msg']}" if place else error["msg"]
        case "model_type" | "model_attributes_type":
            known = ", ".join(_known(place, kind))
            return f"{name}: found {shown(error['input'], True)}; allowed is a mapping of {known}"
        case _:
            return f"{name}: found {shown(error['input'], True)}; allowed is a list"


def name_of(place: Place) -> str:
    """A key's name for a user: `source.tables[1]`."""
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _sections(kind: type[Section]) -> dict[str, type[Section]]:
    """By their keys; of a list, what is in it; of a choice, the first."""
    found = {}
    for name, given in kind.model_fields.items():
        if (choice := _choice(name, kind)) is not None:
            found[name] = next(iter(choice.sections.values()))
            continue
        for inner in (given.annotation, *get_args(given.annotation)):
            if isinstance(inner, type) and issubclass(inner, Section):
                found[name] = inner
    return found


def _known(place: Place, kind: type[Section]) -> list[str]:
    """The keys of the section at a place, which may name the word that picked one of several. Where that is no section there are none."""
    # A number is an item of a list of sections.
    rest = [part for part in place if isinstance(part, str)]
    while rest:
        key = rest.pop(0)
        inner = _sections(kind).get(key)
        if rest and (choice := _choice(key, kind)) is not None and rest[0] in choice.sections:
            inner = choice.sections[rest.pop(0)]
        if inner is None:
            return []
        kind = inner
    return list(kind.model_fields)


def _unknown(place: Place, kind: type[Section]) -> str:
    key, known = str(place[-1]), _known(place[:-1], kind)
    text = f"{name_of(_without_word(place, kind))}: no such key; known are {', '.join(known)}"
    near = [_OTHER_WORDS[key]] if _OTHER_WORDS.get(key) in known else difflib.get_close_matches(key, known, n=1)
    if near:
        return f"{text} (hint: did you mean {near[0]}?)"
    word = _OTHER_WORDS.get(key, key)
    at_home = [section for section in _sections(kind) if section != "routes" and word in _known((section,), kind)]
    return f"{text} (hint: {word} belongs under {at_home[0]})" if at_home else text


# ---- YAML


def _load(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{path} can't be read", detail=error.strerror or "") from None
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidConfig(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB", hint="is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(f"{path}:{line}: not UTF-8") from None


@dataclass
class _Document:
    """A file's values as text, lists and mappings, and the line of each."""

    name: str
    kind: type[Section]
    command: str
    """Whose help shows an example."""
    _lines: dict[Place, int] = field(default_factory=dict)
    _nodes: int = 0

    def line(self, place: Place) -> int:
        """Of a value, or of what it should have been in."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def read(self, text: str) -> object:
        for number, line in enumerate(text.split("\n"), start=1):
            if re.match(r" *\t\s*[^\s#]", line):
                raise self._error(number, "a tab; YAML is indented with spaces")
        node = self._compose(text)
        if node is None:
            raise InvalidConfig(f"{self.name}: empty", hint=f"`snowmelt {self.command} --help` shows an example")
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "text"
            raise self._error(self._line_of(node), f"found {kind}; allowed is a mapping of {', '.join(_known((), self.kind))}")
        return self._value(node, ())

    def _compose(self, text: str) -> yaml.Node | None:
        # The loader in C would end the process where this one raises RecursionError.
        try:
            node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._error(mark.line + 1 if mark else 1, _problem(str(error.problem))) from None
        except yaml.reader.ReaderError as error:
            raise self._error(text.count("\n", 0, error.position) + 1, "a character that YAML does not allow") from None
        except (RecursionError, ValueError):
            raise self._error(1, f"nested deeper than {DEPTH_MAX}") from None
        return node

    def _value(self, node: yaml.Node, place: Place) -> object:
        self._lines.setdefault(place, self._line_of(node))
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._error(self._line_of(node), f"more than {NODES_MAX} values, with all aliases unfolded")
        if len(place) > DEPTH_MAX:
            raise self._error(self._line_of(node), f"nested deeper than {DEPTH_MAX}")
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            # A tag may be the beginning of a password, so it is not repeated.
            raise self._error(
                self._line_of(node), f"{name_of(place)}: a tag, which has no meaning here; text that begins with ! needs quotes"
            )
        match node:
            case yaml.MappingNode():
                return self._mapping(node, place)
            case yaml.SequenceNode():
                return [self._value(item, (*place, index)) for index, item in enumerate(node.value)]
            case _:
                return None if node.tag.endswith(":null") else str(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in node.value:
            line = self._line_of(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(line, f"{name_of(place) or self.name}: a key that is not text")
            inner = (*place, key.value)
            if key.value in found:
                raise self._error(line, f"{name_of(inner)} is given twice; the first is in line {self._lines[inner]}")
            self._lines[inner] = line
            found[key.value] = self._value(value, inner)
        return found

    @staticmethod
    def _line_of(node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1

    def _error(self, line: int, text: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name}:{line}: {text}")


_PROBLEMS: Final[tuple[tuple[str, str], ...]] = (
    ("undefined alias", "an alias without an anchor; text that begins with * needs quotes"),
    ("expected alphabetic or numeric", "text that begins with * or & needs quotes"),
    ("'\\t'", "a tab; YAML is indented with spaces"),
    ("cannot start any token", "text that begins with one of @ ` % & * ! needs quotes"),
    (
        "mapping values are not allowed",
        "a colon where no key can be: a line is indented otherwise than its neighbours, or text with a colon needs quotes",
    ),
    ("could not find expected ':'", "a line that is neither a key with a colon nor part of a list"),
    ("but found another document", "more than one document in a file"),
    ("end of stream", "a quote or bracket that is not closed"),
)


def _problem(text: str) -> str:
    """What is wrong, in our words or in those of the parser; what it quotes of the file may be a secret."""
    for sign, words in _PROBLEMS:
        if sign in text:
            return f"not YAML: {words}"
    return "not YAML: " + re.sub(r"'([^']*)'", lambda quoted: quoted[0] if len(quoted[1]) < 2 or quoted[1][0] == "<" else "…", text)
