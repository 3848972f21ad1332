"""A place in a source log.

`era` counts the identities of the server. Positions of two eras are never compared by file and offset: only the database tells
whether a transaction of one is among those of the other. A log without files has the number 0 for all of it. `offset` has 64 bits.
A position is where an event *ends*, which is where the next one begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.errors import Corrupt, check

_POSITION = re.compile(r"([0-9]{1,19})/([0-9]{1,19}):([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Position:
    """Where an event of the log ends. Ordered inside an era."""

    file: int
    offset: int
    era: int = 0
    transactions: str | None = None
    """Every transaction up to here, in words that only the database reads, where the server names transactions. Equal sets have
    equal words."""

    def _order(self, other: Position) -> tuple[tuple[int, int], tuple[int, int]]:
        # Many are compared, so what to say of them is written only where it is said.
        if self.era != other.era:
            check(False, "positions of two eras are compared by offset", f"{self} and {other}")
        return (self.file, self.offset), (other.file, other.offset)

    def __lt__(self, other: Position) -> bool:
        mine, theirs = self._order(other)
        return mine < theirs

    def __le__(self, other: Position) -> bool:
        mine, theirs = self._order(other)
        return mine <= theirs

    def __gt__(self, other: Position) -> bool:
        return other < self

    def __ge__(self, other: Position) -> bool:
        return other <= self

    def __str__(self) -> str:
        return f"{self.era}/{self.file}:{self.offset}"

    @staticmethod
    def parse(text: str) -> Position:
        """Read what `str` printed. The transactions are kept beside, not in it."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise Corrupt("not a position", detail=repr(text))
        era, file, offset = (int(group) for group in match.groups())
        return Position(file, offset, era)
