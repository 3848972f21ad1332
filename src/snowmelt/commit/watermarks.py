"""How far in event time a lake table is complete.

A source table counts from when the lake has all of it, with the commit time of the last transaction up to the epoch's end, also when
nothing of it was in the epoch. Where several feed one lake table the slowest decides. A watermark never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable


def lowest(times_ms: Iterable[int | None]) -> int | None:
    """The least, or None if there is none or one of them has none yet."""
    found: int | None = None
    for time_ms in times_ms:
        if time_ms is None:
            return None
        found = time_ms if found is None else min(found, time_ms)
    return found


def advance(before: int | None, times_ms: Iterable[int | None]) -> int | None:
    """The watermark of a lake table after an epoch, given those of its sources."""
    now = lowest(times_ms)
    if before is None or now is None:
        return now if before is None else before
    return max(before, now)
