"""A moment in milliseconds since 1970, UTC: of a commit, by the database's clock, or of a sign of life, by the driver's.

Records of a store are not believed to be ours: what a field may hold is part of its type, and the codec holds both ways to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, beyond which no calendar here goes."""


@dataclass(frozen=True, slots=True)
class Within:
    """Numbers from `low` to `high`, both of them too."""

    low: int
    high: int


TimeMs = Annotated[int, Within(0, TIME_MS_MAX)]
