"""What a union read takes from where: the lake up to its offsets, and the log of Fluss behind them.

Laws:
- A lake snapshot and its offsets are one pair: both are those of the newest snapshot of the tiering user, whether Fluss has heard of it
  or not. The offsets of one with the rows of another would show changes twice, or not at all.
- Where each bucket ends is fixed when the read is planned. Tasks that run later, or again, read the same rows.
- A bucket that the lake has no offset of has no rows there either. It is read from Fluss alone, by the rules of a round (`splits`).
- A partition that Fluss has dropped is read from the lake, as Fluss' own readers do: the lake keeps what is too old for Fluss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snowmelt.errors import check, present
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import KnownToFluss, LakeView, Untold, decide_start
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.splits import BucketLog, decide_begin


@dataclass(frozen=True, slots=True)
class LakeOffsets:
    """A lake snapshot, and up to where it has each bucket. 0: the lake has nothing."""

    snapshot: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class BucketPart:
    """What lies below `start` is in the lake, or in the KV snapshot if there is one; the log is read from there to `stop`."""

    bucket: Bucket
    lake: bool
    snapshot: KvSnapshot | None
    start: int
    stop: int


def decide_pair(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> LakeOffsets:
    """`offsets`: what the file says that the lake's newest tiering snapshot names. `SourceDrift`: nobody knows what the lake has."""
    start = decide_start(table_id, lake, offsets, known)
    if isinstance(start, Untold):
        # It is what the offsets were read by.
        return LakeOffsets(start.tiered.snapshot, present(offsets, "an untold snapshot was found without its offsets"))
    if lake.newest is not None:
        return LakeOffsets(lake.newest.snapshot, start.offsets)
    # The tiered snapshot is expired. Those of others that came behind it hold its rows.
    return LakeOffsets(lake.latest if start.offsets.ends else 0, start.offsets)


def plan_union(*, keyed: bool, starts: Mapping[Bucket, int], logs: Sequence[BucketLog]) -> tuple[BucketPart, ...]:
    """What to read of each bucket that Fluss has, given where the lake ends."""
    check(len({log.bucket for log in logs}) == len(logs), "a bucket is listed twice")
    reads = []
    for log in logs:
        start = starts.get(log.bucket)
        begin = decide_begin(keyed, start, log)
        if isinstance(begin, KvSnapshot):
            reads.append(with_snapshot(begin, log.latest))
        else:
            reads.append(BucketPart(log.bucket, start is not None, None, begin, log.latest))
    return tuple(reads)


def with_snapshot(snapshot: KvSnapshot, latest: int) -> BucketPart:
    """A bucket that begins with a KV snapshot. One that was made behind the end of the log that was planned with is the end itself."""
    return BucketPart(snapshot.bucket, False, snapshot, snapshot.offset, max(latest, snapshot.offset))
