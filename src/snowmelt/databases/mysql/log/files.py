"""Names of the server's log files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from snowmelt.errors import Corrupt

FIRST_OFFSET: Final = 4
"""A log file begins with four bytes that say that it is one."""
_NAME: Final = re.compile(r"(.*)\.([0-9]{1,19})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogFile:
    """The name of a log file: base and number, as in `binlog.000042`."""

    base: str
    number: int
    digits: int = 6

    @staticmethod
    def parse(name: str) -> LogFile:
        match = _NAME.fullmatch(name)
        if match is None:
            raise Corrupt("not the name of a log file", detail=repr(name))
        return LogFile(match[1], int(match[2]), len(match[2]))

    def __str__(self) -> str:
        return f"{self.base}.{self.number:0{self.digits}d}"
