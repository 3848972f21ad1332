"""Where a round begins, and whether it may still be published.

Laws:
- What the lake has is told by the lake: the newest snapshot of the tiering user names the offsets. Fluss may not have heard of it.
- A round names the newest snapshot that it saw, its *base*. It may be published if the tiering user has none above it, as asked of the
  very snapshot that each try builds on. Others' snapshots, such as a compaction's, are no hindrance. Nothing else fences: Fluss'
  epochs repeat after a restart of its coordinator, and the commit user and identifier are those of all services.
- A round is known by the file of its offsets, whose name the coordinator makes anew each time. So a try whose answer was lost is looked
  for, and may be repeated.
- Not to be found is not the same as not to be there. Where snapshots are missing that might have told, it is a stop.
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
    """A lake table at its newest snapshot."""

    identity: str
    """Tells it from another table of its name."""
    schema: int
    latest: int
    """The newest snapshot, of whomever; 0: there is none."""
    whole_from: int
    """From this number on up to the newest all snapshots are there."""
    tiered: tuple[Tiered, ...]
    """Those of the tiering user, the newest first: all above the base that was asked for, and one at least if there is any."""
    rows: bool
    """The newest snapshot refers to data."""

    @property
    def newest(self) -> Tiered | None:
        return self.tiered[0] if self.tiered else None


@dataclass(frozen=True, slots=True)
class KnownToFluss:
    """What Fluss says that the lake has."""

    snapshot: int
    ends: Mapping[Bucket, int]


@dataclass(frozen=True, slots=True)
class Base:
    """What a round was planned on, and what it has to find again."""

    identity: str
    schema: int
    snapshot: int
    """The newest of all when the round began: no snapshot of the tiering user may come behind it."""


@dataclass(frozen=True, slots=True)
class Start:
    base: Base
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Untold:
    """Fluss never learned of the lake's newest snapshot: whoever tiered it died in between. It is told, then all is looked at anew."""

    tiered: Tiered


@dataclass(frozen=True, slots=True)
class PublishRound:
    """As the snapshot behind this one."""

    on: int


@dataclass(frozen=True, slots=True)
class RoundInLake:
    """It is in the lake, as this snapshot."""

    snapshot: int


def decide_start(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> Start | Untold:
    """Where a round of a table begins. `offsets`: what the file says that the lake's newest tiering snapshot names."""
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
        # Expired. Fluss is right about it, unless somebody tiered later and that is expired too, or the table is another.
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
    """Whether a round may be published on what the lake table is now. `Fenced`: somebody else's round came first."""
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
