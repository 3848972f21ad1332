"""Where a round begins, and whether it may still be published.

Laws:
- The lake alone says what it has: the newest snapshot of the tiering user names the offsets. Fluss may not know that snapshot.
- A round names the newest snapshot that it saw, its *base*. It may be published if the tiering user has none after it, judged on the
  very snapshot that each try builds on. Snapshots of other programs, such as a compaction's, do not fence. Nothing else fences: Fluss'
  epochs repeat after a restart of its coordinator, and all services share the commit user and identifier.
- A round is identified by its file of offsets, for which the coordinator makes a new name each time. So a try whose answer was lost can
  be searched for, and may be repeated.
- A snapshot that is not found may still have existed. Where snapshots are missing that could tell, the round stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.errors import Fenced, SourceDrift
from snowmelt.model.fluss import Bucket
from snowmelt.tiering.offsets import Offsets


@dataclass(frozen=True, slots=True)
class Tiered:
    """A snapshot of the tiering user, and the file of offsets that it names."""

    snapshot: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeView:
    """A lake table as of its newest snapshot."""

    identity: str
    """Differs from that of another table with the same name."""
    schema: int
    latest: int
    """The newest snapshot, of any program; 0: there is none."""
    whole_from: int
    """From this number up to the newest, no snapshot is missing."""
    tiered: tuple[Tiered, ...]
    """Those of the tiering user, the newest first: all after the base, and at least one if there is any."""
    rows: bool
    """Whether the newest snapshot refers to data."""

    @property
    def newest(self) -> Tiered | None:
        return self.tiered[0] if self.tiered else None


@dataclass(frozen=True, slots=True)
class KnownToFluss:
    """What Fluss says about the lake."""

    snapshot: int
    ends: Mapping[Bucket, int]


@dataclass(frozen=True, slots=True)
class Base:
    """What a round was planned on, and must find again."""

    identity: str
    schema: int
    snapshot: int
    """The newest of all when the round began: no snapshot of the tiering user may come after it."""


@dataclass(frozen=True, slots=True)
class Start:
    base: Base
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Untold:
    """Fluss does not know the lake's newest snapshot: its service died between the two commits. Fluss is told, then the round looks
    again."""

    tiered: Tiered


@dataclass(frozen=True, slots=True)
class PublishRound:
    """Publish as the snapshot after this one."""

    on: int


@dataclass(frozen=True, slots=True)
class RoundInLake:
    """The lake has it, as this snapshot."""

    snapshot: int


def decide_start(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> Start | Untold:
    """Where a round of a table begins. `offsets`: the content of the file that the lake's newest tiering snapshot names."""
    base = Base(lake.identity, lake.schema, lake.latest)
    newest = lake.newest
    if newest is not None:
        if offsets is None or offsets.table_id != table_id:
            other = "no table" if offsets is None else f"table {offsets.table_id}"
            raise SourceDrift(
                "a lake table is of another Fluss table",
                detail=f"its newest snapshot {newest.snapshot} is of {other}, not of {table_id}",
                hint="was the Fluss table dropped and made anew? drop the lake table as well",
            )
        if lake.whole_from > newest.snapshot:
            raise SourceDrift(
                "a lake table lacks snapshots after its newest tiered one",
                detail=f"after {newest.snapshot} up to {lake.whole_from - 1}: another round may have been there, and its rows may be",
                hint="stop programs that remove single snapshots; compare the table with Fluss; make both again if rows are double",
            )
        if known is None or known.snapshot < newest.snapshot:
            return Untold(newest)
        if known.snapshot > newest.snapshot:
            raise _lost(known, f"its newest tiered one is {newest.snapshot}")
        return Start(base, offsets)
    if known is not None:
        # Expired. Fluss is right about it, unless a later tiered snapshot is expired too, or the table is another one.
        if known.snapshot > lake.latest or lake.whole_from > known.snapshot + 1:
            raise _lost(known, f"its snapshots are those from {lake.whole_from} to {lake.latest}" if lake.latest else "it has no snapshot")
        return Start(base, Offsets(table_id, known.ends))
    if lake.rows:
        raise SourceDrift(
            "a lake table has rows, but no record of how far it was tiered",
            detail=f"no snapshot up to {lake.latest} has one, and Fluss does not know either",
            hint="does it belong to this Fluss table? drop it, and let it be made anew",
        )
    return Start(base, Offsets(table_id, {}))


def judge(base: Base, path: str, lake: LakeView) -> PublishRound | RoundInLake:
    """Whether a round may be published on the lake table's current state. `Fenced`: another service's round came first."""
    if lake.identity != base.identity:
        raise Fenced("a lake table was dropped and made anew since its round began")
    if lake.latest < base.snapshot:
        raise Fenced("a lake table lost snapshots since its round began", detail=f"it is at {lake.latest}, the round saw {base.snapshot}")
    later = [tiered for tiered in lake.tiered if tiered.snapshot > base.snapshot]
    for tiered in later:
        if tiered.path == path:
            return RoundInLake(tiered.snapshot)
    if later:
        raise Fenced("another round of this table came first", detail=f"snapshot {later[0].snapshot}, above {base.snapshot}")
    if lake.whole_from > base.snapshot + 1:
        raise Fenced(
            "snapshots were removed in which another round may have come first",
            detail=f"those below {lake.whole_from}, the round saw {base.snapshot}",
            hint="are they kept for longer than a round takes?",
        )
    if lake.schema != base.schema:
        raise Fenced("a lake table's schema was changed since its round began", detail=f"from {base.schema} to {lake.schema}")
    return PublishRound(lake.latest)


def _lost(known: KnownToFluss, detail: str) -> SourceDrift:
    return SourceDrift(
        "a lake table does not have what Fluss says it has",
        detail=f"Fluss knows of snapshot {known.snapshot}; {detail}",
        hint="is it the warehouse that Fluss tiers to? was the table rolled back or dropped? if it is lost, make the Fluss table anew",
    )
