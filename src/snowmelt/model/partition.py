"""What of a column tells the partition of a row, and when the time of such a partition is over."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final

from snowmelt.model.moment import TimeMs

_DAY_MS: Final = 86_400_000


class Unit(StrEnum):
    DAY = "day"
    MONTH = "month"
    VALUE = "value"


TIMED: Final = (Unit.DAY, Unit.MONTH)
"""Units whose partitions are periods of UTC."""


def last_end(unit: Unit, time_ms: TimeMs) -> TimeMs:
    """The end of the last period that is over at a moment."""
    if unit is Unit.MONTH:
        return _start_ms(datetime.fromtimestamp(time_ms / 1000, UTC).date().replace(day=1))
    return time_ms - time_ms % _DAY_MS


def end_of(unit: Unit, name: str) -> TimeMs | None:
    """The end of the period with this name; None: there is no such period, or its end is beyond all dates."""
    try:
        first = date.fromisoformat(name if unit is Unit.DAY else f"{name}-01")
        if str(first)[: len(name)] != name:
            return None
        after = first + timedelta(days=1) if unit is Unit.DAY else (first.replace(day=28) + timedelta(days=4)).replace(day=1)
    except (ValueError, OverflowError):
        return None
    return _start_ms(after)


def _start_ms(day: date) -> TimeMs:
    return (day - date(1970, 1, 1)).days * _DAY_MS
