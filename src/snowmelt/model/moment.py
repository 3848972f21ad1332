"""A moment in milliseconds since 1970, UTC: of a commit, by the database's clock, or of a sign of life, by the driver's.

A record in a store may come from elsewhere. So a field's type says what it may hold, and the codec checks it on writing and on reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that our calendars know."""


@dataclass(frozen=True, slots=True)
class Within:
    """Numbers from `low` to `high`, both inclusive."""

    low: int
    high: int


TimeMs = Annotated[int, Within(0, TIME_MS_MAX)]
