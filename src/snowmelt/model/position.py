"""A place in a source log.

`era` counts the identities of the server: positions of two eras are never compared by file and offset, only by GTID
membership. `offset` has 64 bits and is counted by us: the header's field wraps at 4 GiB. A position is where an event
*ends*, which is where the next one begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.errors import Corrupt, check
from snowmelt.model.gtid import GtidSet

_POSITION = re.compile(r"([0-9]{1,19})/([0-9]{1,19}):([0-9]{1,19})")
_LOG_FILE = re.compile(r"(.*)\.([0-9]{1,19})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Position:
    """Where an event of the log ends. Ordered inside an era."""

    file: int
    offset: int
    era: int = 0
    gtids: GtidSet | None = None
    """Every transaction up to here, where the server keeps GTIDs."""

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
        """Read what `str` printed. GTID sets are kept beside, not in it."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise Corrupt("not a position", detail=repr(text))
        era, file, offset = (int(group) for group in match.groups())
        return Position(file, offset, era)


@dataclass(frozen=True, slots=True)
class LogFile:
    """The name of a log file: base and number, as in `binlog.000042`."""

    base: str
    number: int
    digits: int = 6

    @staticmethod
    def parse(name: str) -> LogFile:
        match = _LOG_FILE.fullmatch(name)
        if match is None:
            raise Corrupt("not the name of a log file", detail=repr(name))
        return LogFile(match[1], int(match[2]), len(match[2]))

    def __str__(self) -> str:
        return f"{self.base}.{self.number:0{self.digits}d}"
