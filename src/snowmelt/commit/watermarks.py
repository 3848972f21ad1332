"""The moment of commits up to which a lake table is complete.

The watermark of a lake table promises: everything that the database committed before that moment, by its own clock, is in the table. It
promises nothing about the times that the log gives to rows (`_ts`): a row has the time when its transaction's last statement began, so a
transaction that commits later may have an earlier time.

A source table counts once the lake has all of it, with the moment of the epoch's end (`Relay.committed_by`), also if the epoch has none of
its changes. If several sources feed one lake table, the slowest decides. A watermark never decreases. It is removed while one of the
sources is being copied, for the first time or again: until then the lake lacks rows that were committed long ago.
"""

from __future__ import annotations

from collections.abc import Iterable


def lowest(times_ms: Iterable[int | None]) -> int | None:
    """The least time; None if there is none, or if one of the sources has none."""
    found: int | None = None
    for time_ms in times_ms:
        if time_ms is None:
            return None
        found = time_ms if found is None else min(found, time_ms)
    return found


def advance(before: int | None, times_ms: Iterable[int | None]) -> int | None:
    """The watermark of a lake table after an epoch, given those of its sources. None while one of them has none."""
    now = lowest(times_ms)
    if before is None or now is None:
        return now
    return max(before, now)
