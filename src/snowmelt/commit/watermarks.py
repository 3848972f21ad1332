"""Up to which moment of commits a lake table is complete.

The watermark of a lake table promises this: whatever the database committed before that moment, by its own clock, is in the table. It
promises nothing of the times that the log gives to rows (`_ts`): there a transaction has the time when its last statement began, so one
that is committed later may have an earlier time.

A source table counts from when the lake has all of it, with the moment of the epoch's end (`Relay.committed_by`), also when nothing of it
was in the epoch. Where several feed one lake table the slowest decides. A watermark never goes back. It is taken away while one of the
sources is being copied, for the first time or again: until then the lake lacks rows that were committed long ago.
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
    """The watermark of a lake table after an epoch, given those of its sources; None while one of them has none."""
    now = lowest(times_ms)
    if before is None or now is None:
        return now
    return max(before, now)
