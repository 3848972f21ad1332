"""What a union read takes from the lake, which is everything up to its offsets, and what from the log of Fluss after them.

Laws:
- A lake snapshot and its offsets are one pair: both are those of the newest snapshot of the tiering user, whether Fluss knows it
  or not. The offsets of one with the rows of another would show changes twice, or not at all.
- The end of each bucket is fixed when the read is planned. Tasks that run later, or again, read the same rows.
- A bucket without an offset in the lake has no rows there either. It is read from Fluss alone, by the rules of a round (`splits`).
- A partition that Fluss has dropped is read from the lake, as Fluss' own readers do: the lake keeps partitions that expired in Fluss.
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
    """A lake snapshot, and its offset of each bucket. 0: the lake has nothing."""

    snapshot: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class BucketPart:
    """Rows below `start` are in the lake, or in the KV snapshot if there is one; the log is read from there to `stop`."""

    bucket: Bucket
    lake: bool
    snapshot: KvSnapshot | None
    start: int
    stop: int


def decide_pair(table_id: int, lake: LakeView, offsets: Offsets | None, known: KnownToFluss | None) -> LakeOffsets:
    """`offsets`: the content of the file that the lake's newest tiering snapshot names. `SourceDrift`: it is unknown what the lake has."""
    start = decide_start(table_id, lake, offsets, known)
    if isinstance(start, Untold):
        # The offsets were read by its name.
        return LakeOffsets(start.tiered.snapshot, present(offsets, "an untold snapshot was found without its offsets"))
    if lake.newest is not None:
        return LakeOffsets(lake.newest.snapshot, start.offsets)
    # The tiered snapshot is expired. Later snapshots of other programs hold its rows.
    return LakeOffsets(lake.latest if start.offsets.ends else 0, start.offsets)


def plan_union(*, keyed: bool, starts: Mapping[Bucket, int], logs: Sequence[BucketLog]) -> tuple[BucketPart, ...]:
    """What to read of each bucket in Fluss, given the lake's offsets."""
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
    """A bucket that begins with a KV snapshot. If the snapshot was made after the planned end of the log, it is the end itself."""
    return BucketPart(snapshot.bucket, False, snapshot, snapshot.offset, max(latest, snapshot.offset))
