"""What plain English is not: words that our documents avoid, and how wide their lines are.

`STOPS` is for any text of ours. To hold more texts to it, hand their lines to `faults_in`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WIDTH_MAX = 100
ROW_WIDTH_MAX = 2 * WIDTH_MAX
"""Of a table's row; a longer one becomes prose or a list."""

STOPS = {
    r"behind": "`after` for the order of a log, `lagging` or `late` for delay",
    r"necessary": "`required`",
    r"whoever|nobody|somebody|someone": "the thing's name",
    r"he|him|himself|his": "the thing's name",
    r"who (?:does|has|is|was|reads|writes|adds|takes|sleeps|starts)": "the thing's name as the subject",
    r"to be had": "`available`",
    r"(?:is|are) looked for": "the searcher as the subject",
    r"(?:is|are) looked at": "the reader as the subject",
    r"may not be": "`must not be`, or `is perhaps not`",
    r"so many": "the number",
    r"of which": "a sentence of its own",
    r"tell(?:s|ing)? of": "`show`, `report` or `mention`",
    r"comes? to nothing": "`fails`",
    r"to be rid of": "`delete` or `remove`",
    r"one would not think": "the fact itself",
    r"goes on|going on|go on|went on": "`continue`, `resume` or `follow`",
    r"let(?:s|ting)? go of": "`release` or `delete`",
}
"""Words and phrases, as regular expressions, with what to write instead."""

_STOP = {re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE): instead for pattern, instead in STOPS.items()}
_QUOTED = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)")
"""Names and addresses: they are what they are."""


def prose_of(markdown: str) -> Iterator[tuple[int, str]]:
    """The lines of a page with their numbers, without its blocks of code."""
    in_code = False
    for number, line in enumerate(markdown.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def faults_in(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Lines that are too wide, and words of the list, also where a line's end parts a phrase."""
    before = ""
    for number, line in lines:
        width_max = ROW_WIDTH_MAX if line.startswith("|") else WIDTH_MAX
        # A name or an address that is longer than a line can't be wrapped.
        if len(line) > width_max and " " in line.strip():
            yield f"line {number}: {len(line)} columns, at most {width_max}"
        text = _QUOTED.sub(lambda found: " " * len(found[0]), line).strip()
        joined = f"{before} {text}" if before and text else text
        for stop, instead in _STOP.items():
            for found in stop.finditer(joined):
                if found.end() > len(joined) - len(text):
                    yield f"line {number}: {found[0]!r}; write {instead}"
        before = text
