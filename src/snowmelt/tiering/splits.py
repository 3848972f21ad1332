"""What a round reads of each bucket.

Laws:
- Ranges of the log are half-open, [from, to). A KV snapshot holds everything below its log offset, so the log continues at that offset.
- If the lake has an offset, the round begins exactly there. If the log no longer reaches back to it, rows are lost for good: the round
  stops, and never begins again with what is left.
- A log table that was never tiered begins with what Fluss still has of it. A table with a key can't, because the missing log may have
  had the last change of a key: it begins with a KV snapshot, or with a log that was never cut.
- A range of the log may be divided anywhere, a KV snapshot can't: it is a copy at one offset, and has no order in which to continue.
  A reader of a range may end early, but never with the old half of an update as its last row: without the new half the key
  would be missing in the lake until the next round.
- The log after a KV snapshot waits for the next round: one writer per bucket, one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from snowmelt.errors import SourceDrift, check
from snowmelt.model.fluss import Bucket, KvSnapshot


@dataclass(frozen=True, slots=True)
class BucketLog:
    """Fluss' state of a bucket. A plan has no buckets of dropped partitions."""

    bucket: Bucket
    earliest: int
    latest: int
    """The offset after the last row."""
    snapshot: KvSnapshot | None = None


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    snapshot: KvSnapshot

    @property
    def bucket(self) -> Bucket:
        return self.snapshot.bucket


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The rows [start, stop) of a bucket's log. Some offsets may have no row."""

    bucket: Bucket
    start: int
    stop: int


Split = SnapshotSplit | LogSplit


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of the log a round may read, over all buckets. Its bytes can only be estimated in advance, so a reader counts too."""

    rows_max: int
    bytes_max: int
    row_bytes: int

    def __post_init__(self) -> None:
        check(self.row_bytes > 0, "a row has bytes")
        check(self.rows > 1, "a round must be able to read both halves of an update", str(self))

    @property
    def rows(self) -> int:
        return min(self.rows_max, self.bytes_max // self.row_bytes)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    splits: tuple[Split, ...]
    more: bool
    """Something is left that could be read now: the table is due again as soon as the round ends."""


def plan_splits(*, keyed: bool, starts: Mapping[Bucket, int], logs: Sequence[BucketLog], budget: Budget) -> SplitPlan:
    """What to read, given the lake's offsets and Fluss' state."""
    check(len({log.bucket for log in logs}) == len(logs), "a bucket is listed twice")
    copies: list[SnapshotSplit] = []
    ranges: list[LogSplit] = []
    for log in logs:
        begin = decide_begin(keyed, starts.get(log.bucket), log)
        if isinstance(begin, KvSnapshot):
            copies.append(SnapshotSplit(begin))
        elif begin < log.latest:
            ranges.append(LogSplit(log.bucket, begin, log.latest))
    cut = _cut(ranges, budget.rows)
    latest = {log.bucket: log.latest for log in logs}
    more = cut != ranges or any(copy.snapshot.offset < latest[copy.bucket] for copy in copies)
    return SplitPlan((*copies, *cut), more)


def decide_begin(keyed: bool, start: int | None, log: BucketLog) -> KvSnapshot | int:
    """Where the read of a bucket begins: at a KV snapshot, or at an offset of its log. `start`: the lake's offset."""
    if start is None and keyed and log.snapshot is not None:
        _reaches(log, log.snapshot.offset, "its newest KV snapshot ends with")
        return log.snapshot
    if start is None:
        # The missing log may have set a key, and no other place has that change.
        start = 0 if keyed else log.earliest
    _reaches(log, start, "the lake continues with")
    if start > log.latest:
        raise SourceDrift(
            "the lake is ahead of a Fluss table",
            detail=f"{log.bucket}: the lake continues with {start}, the log ends with {log.latest}",
            hint="did Fluss lose data? keep the lake table, and make the Fluss table anew under another name",
        )
    return start


def _reaches(log: BucketLog, start: int, what: str) -> None:
    if log.earliest > start:
        raise SourceDrift(
            "a Fluss table has lost rows that the lake needs",
            detail=f"{log.bucket}: {what} {start}, the log begins with {log.earliest}",
            hint="was its log kept for too short a time? keep the lake table, and make the Fluss table anew under another name",
        )


def _cut(ranges: Iterable[LogSplit], rows: int) -> list[LogSplit]:
    """Buckets get equal shares; what a short one leaves goes to the longer ones. Each gets at least the rows of one update."""
    whole = list(ranges)
    left, share = len(whole), {}
    for split in sorted(whole, key=lambda split: split.stop - split.start):
        share[split.bucket] = min(split.stop - split.start, max(2, rows // left))
        rows, left = max(0, rows - share[split.bucket]), left - 1
    return [LogSplit(split.bucket, split.start, split.start + share[split.bucket]) for split in whole]
