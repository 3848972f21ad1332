"""What a round reads of each bucket.

Laws:
- Ranges of the log are half-open, [from, to). A KV snapshot holds everything below its log offset, so the log goes on with that one.
- Where the lake has an offset, the round begins there and nowhere else. If the log does not reach back to it, rows are lost for good:
  that is a stop, never a new beginning at what is left.
- A log table that was never brought begins with what Fluss still has of it; a table with a key can't, since what is missing may have
  been the last word on a key: it begins with a KV snapshot, or with a log that has never been cut.
- A range of the log may be cut anywhere, a KV snapshot can't: it is a copy at one offset and has no order that one could go on in.
  Whoever reads a range may end it early, but never with the old half of an update as its last row: without the new half the key
  would be gone from the lake until the next round.
- The log behind a KV snapshot waits for the next round: one writer a bucket, one thing at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from snowmelt.errors import SourceDrift, check
from snowmelt.model.fluss import Bucket, KvSnapshot


@dataclass(frozen=True, slots=True)
class BucketLog:
    """A bucket as Fluss has it. Buckets of a partition that was dropped are not among those that a plan is made for."""

    bucket: Bucket
    earliest: int
    latest: int
    """Behind the last row."""
    snapshot: KvSnapshot | None = None


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    snapshot: KvSnapshot

    @property
    def bucket(self) -> Bucket:
        return self.snapshot.bucket


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The rows [start, stop) of a bucket's log. There may be fewer than the difference, or none."""

    bucket: Bucket
    start: int
    stop: int


Split = SnapshotSplit | LogSplit


@dataclass(frozen=True, slots=True)
class Budget:
    """What a round may read of the log, over all buckets. How many bytes that is can only be guessed before, so a reader counts too."""

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
    """Something is left that could be read at once: the table is due again as soon as the round ends."""


def plan_splits(*, keyed: bool, starts: Mapping[Bucket, int], logs: Sequence[BucketLog], budget: Budget) -> SplitPlan:
    """What to read, given where the lake goes on and what Fluss has."""
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
    """With what the reading of a bucket begins: with a KV snapshot, or with an offset of its log. `start`: where the lake goes on."""
    if start is None and keyed and log.snapshot is not None:
        _reaches(log, log.snapshot.offset, "its newest KV snapshot ends with")
        return log.snapshot
    if start is None:
        # Of a key that was set in what is missing nobody knows any more.
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
    """Every bucket gets as much as any other; what a short one leaves goes to the longer ones. None gets fewer rows than an update has."""
    whole = list(ranges)
    left, share = len(whole), {}
    for split in sorted(whole, key=lambda split: split.stop - split.start):
        share[split.bucket] = min(split.stop - split.start, max(2, rows // left))
        rows, left = max(0, rows - share[split.bucket]), left - 1
    return [LogSplit(split.bucket, split.start, split.start + share[split.bucket]) for split in whole]
