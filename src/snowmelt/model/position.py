"""A place in a source log.

`era` counts the identities of the server. Positions of two eras are never compared by file and offset: only the database knows whether a
transaction of one is also in the other. A log without files has file number 0. `offset` has 64 bits. A position is where an event *ends*,
which is where the next one begins.
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
    """Every transaction up to here, in a form that only the database reads, if the server names transactions. Equal sets have equal
    texts."""

    def _order(self, other: Position) -> tuple[tuple[int, int], tuple[int, int]]:
        # Many positions are compared, so the text of the error is made only on failure.
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
        """Read what `str` printed. `transactions` is not part of it."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise Corrupt("not a position", detail=repr(text))
        era, file, offset = (int(group) for group in match.groups())
        return Position(file, offset, era)
