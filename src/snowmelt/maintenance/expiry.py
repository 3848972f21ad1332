"""Which snapshots of a table are removed.

Laws:
- They are removed from the oldest on, without a gap.
- The newest stays, and so does the newest that names an epoch of ours: a driver asks it what the table has.
- What a consumer or a running read needs stays, and all that is newer.
- A tag or a branch keeps the files of its snapshot and not the snapshot: it has a copy of that. So an old tag does not stop expiry.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import check
from snowmelt.maintenance.files import TableHistory
from snowmelt.model.moment import TimeMs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRules:
    """As the options of the same meaning in Paimon: snapshot.num-retained.min, snapshot.num-retained.max, snapshot.time-retained and
    snapshot.expire.limit."""

    count_min: int = 10
    """At least this number of snapshots stays, however old they are."""
    count_max: int = 2**31 - 1
    """At most this number of snapshots stays, however new they are."""
    age_ms: int = 3_600_000
    """How long a snapshot stays after the next one replaced it."""
    at_once_max: int = 50
    """The most snapshots that one expiry removes."""

    def __post_init__(self) -> None:
        check(1 <= self.count_min <= self.count_max, "rules of expiry keep no snapshot, or more than they allow")
        check(self.age_ms >= 0 and self.at_once_max > 0, "rules of expiry have a limit below its least")


def plan_expiry(history: TableHistory, rules: ExpiryRules, *, now_ms: TimeMs) -> tuple[int, ...]:
    """The numbers of the snapshots to remove, the oldest first."""
    snapshots = history.snapshots
    last = min(len(snapshots) - rules.count_min, rules.at_once_max)
    marked = [at for at, snapshot in enumerate(snapshots) if snapshot.epoch is not None]
    if marked:
        last = min(last, marked[-1])
    gone = []
    for at in range(last):
        number = snapshots[at].number
        if history.held_from is not None and number >= history.held_from:
            break
        if len(snapshots) - at <= rules.count_max and snapshots[at + 1].time_ms >= now_ms - rules.age_ms:
            break
        gone.append(number)
    return tuple(gone)
