"""Guards that are taken away one at a time, and the tests that must notice: `./run mutants`.

A mutant is a small change of the source that removes one guard. The runner (`__main__`) makes it in a copy of the tree, runs the tests
that are named with it, and expects one of them to fail. So a guard that no test holds is found, and stays found.
`tests/unit/test_mutants.py` keeps the list in step with the source.

A mutant's id begins with a letter: M is the pure core of seeds 000, 001 and 004, P the engine around it, R recovery with filtering
(seed 003), L the book of leases, T tiering rounds and what is around them (seed 002), G the reading of MySQL and MariaDB,
U the upkeep of lake tables,
D their division into partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    PURE = "pure"
    """Its tests need neither a server nor Spark, nor any other fixture of `tests/conftest.py`."""
    SHELL = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    id: str
    seed: str
    """The system whose statement it is, by its number in docs/protocol_map.md; `heart` or `ground` where it is of that floor."""
    statement: str
    """What no longer holds: the fault that a test must notice."""
    file: str
    """Below `src/snowmelt`."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Node ids below `tests`. One that fails is enough."""
    lane: Lane = Lane.PURE

    def apply(self, text: str) -> str:
        """The source of its file without the guard. ValueError: the list is not in step with the source."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"the old text is there {found} times, not once, in {self.file}")
        return text.replace(self.old, self.new)
