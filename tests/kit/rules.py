"""The rules of docs/invariants.md and docs/protocol_map.md. Both pages have entries of one shape:

    - **The rule in a sentence.** What else there is to say about it.
      - by: `module.symbol`, `Class.member`
      - guard: `other.symbol`, and what it does
      - test: `unit/test_x.py::test_a`, `…::test_b`

`…` is the file of the test before. A line continues what it follows, with two columns more before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

LABELS = ("otherwise", "done differently", "left out", "to come", "by", "guard", "simulated by", "test")
"""What an entry may say, in this order."""
EXCUSES = ("done differently", "left out", "to come")
"""Labels of entries that need neither a symbol nor a test: they give a reason."""
KEEPING = (*EXCUSES, "by", "guard")
"""Labels of what names symbols of the source."""

_QUOTED = re.compile(r"`([^`]+)`")
_ENTRY = re.compile(r"- \*\*(.+?)\*\*(?: (.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    line: int
    """Where it begins. It ends before `end`."""
    end: int
    section: str
    statement: str
    note: str
    fields: dict[str, str]
    """Texts by their labels."""

    @property
    def excused(self) -> bool:
        return any(label in self.fields for label in EXCUSES)

    def quoted(self, *labels: str) -> Iterator[str]:
        """The names that these fields give."""
        for label in labels:
            yield from _QUOTED.findall(self.fields.get(label, ""))

    def tests(self) -> Iterator[tuple[str, str]]:
        """The tests that it names: file and function, or a whole file and nothing. ValueError: `…` without a file before it."""
        file = ""
        for quoted in self.quoted("test"):
            first, *_, name = quoted.split("::") if "::" in quoted else (quoted, "")
            if first == "…":
                first = file
                if not file:
                    raise ValueError(f"line {self.line}: no file before {quoted}")
            if first.endswith(".py"):
                yield first, name
                file = first if name else file


@dataclass(slots=True)
class _Lines:
    """The lines of one entry."""

    line: int
    section: str
    head: list[str]
    fields: dict[str, list[str]] = field(default_factory=dict)

    def to_rule(self, end: int) -> Rule:
        found = _ENTRY.fullmatch(" ".join(self.head))
        if found is None:
            raise ValueError(f"line {self.line}: no statement between two pairs of stars")
        if list(self.fields) != [label for label in LABELS if label in self.fields]:
            raise ValueError(f"line {self.line}: another order of labels than {', '.join(LABELS)}")
        return Rule(
            line=self.line,
            end=end,
            section=self.section,
            statement=found[1],
            note=found[2] or "",
            fields={label: " ".join(parts).strip() for label, parts in self.fields.items()},
        )


def read_rules(page: str) -> list[Rule]:
    """The rules below the headings of a page. ValueError: a list or a table that is no rule, so that none can be overlooked."""
    rules: list[Rule] = []
    section, entry = "", None
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        if entry is not None and not line.startswith("  "):
            rules.append(entry.to_rule(number))
            entry = None
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("- **") and section:
            entry = _Lines(number, section, [line])
        elif entry is not None:
            _continue(entry, number, line)
        elif line.lstrip().startswith(("-", "*", "|")) and section:
            raise ValueError(f"line {number}: neither a rule nor a text")
    return rules


def _continue(entry: _Lines, number: int, line: str) -> None:
    text = line.strip()
    if line.startswith("  - "):
        label, colon, said = text.removeprefix("- ").partition(":")
        if label not in LABELS or not colon or label in entry.fields:
            raise ValueError(f"line {number}: `{label}` is no label, or is there twice")
        entry.fields[label] = [said.strip()]
    elif line.startswith("    ") and entry.fields and not text.startswith("- "):
        entry.fields[next(reversed(entry.fields))].append(text)
    elif line.startswith("  ") and not line.startswith("   ") and not entry.fields:
        entry.head.append(text)
    else:
        raise ValueError(f"line {number}: neither a part of the rule of line {entry.line} nor a new one")
