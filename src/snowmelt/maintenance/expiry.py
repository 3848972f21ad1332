"""Which snapshots of a table are removed.

Laws:
- They are removed from the oldest on, without a gap.
- The newest stays, and so does the newest that names an epoch of ours: a driver asks it what the table has.
- What a consumer or a running read needs stays, and all that is newer.
- A tag or a branch keeps the files of its snapshot and not the snapshot: it has a copy of that. So an old tag does not stop expiry.
- A file is in a stretch of snapshots: one brings it and a later one removes it. So what the removed snapshots alone had is what was removed
  in them, or in the first that stays. A tag has a file of that stretch only if the nearest tag before the removal has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
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


def count_removable(history: TableHistory, numbers: Sequence[int]) -> int:
    """How many of the snapshots that exist go: from the oldest on, those asked for, up to the first that must stay. Asked with the history
    read again right before, whatever the plan said."""
    snapshots, asked = history.snapshots, frozenset(numbers)
    marked = max((facts.number for facts in snapshots if facts.epoch is not None), default=None)
    count = 0
    for facts in snapshots[:-1]:
        held = history.held_from is not None and facts.number >= history.held_from
        if facts.number not in asked or facts.number == marked or held:
            break
        count += 1
    return count


class GoingFiles:
    """Files that go with some snapshots, from the oldest on.

    Memory. What these snapshots and the first that stays have removed.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, int]] = {}
        """By path: the size, and the snapshot that removed it."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self._files.values())

    def commit(self, number: int, *, brought: AbstractSet[str], removed: Mapping[str, int]) -> None:
        """The next snapshot's own changes: of all that go but the first, then of the first that stays. `removed`: with their sizes."""
        # A file may be lifted to another level as it is.
        self._files |= {path: (size, number) for path, size in removed.items() if path not in brought}
        self.keep(brought)

    def drop(self, number: int, paths: Mapping[str, int]) -> None:
        """Files that no snapshot from this one on has."""
        self._files |= {path: (size, number) for path, size in paths.items()}

    def keep(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._files.pop(path, None)

    def tags_to_ask(self, tags: Collection[int]) -> set[int]:
        """Of these tags, by their snapshots' numbers: those whose files must be kept. No other has any of the files."""
        found = {max((tag for tag in tags if tag < removed), default=None) for _, removed in self._files.values()}
        return {tag for tag in found if tag is not None}
