"""Which files of a bucket are merged next.

A *run* is a set of files without two rows of one key: each file of level 0, and all files of one higher level together. A reader merges all
runs of a bucket. So does a merge, which makes one run of some; it takes the newest ones.

Laws:
- A merge takes runs from the newest on, without a gap. So what it leaves is older than all that it takes, and rows keep their place.
- Deletes are dropped only if every run of the bucket is taken. A delete that went while an older run stays would let its row return.
- The output's level is above every run that is taken and below every run that is left: readers and other compactors go by levels.
- Fewer than `runs_max` runs are left alone. After a merge the bucket has at most half of `runs_max`. So a bucket's runs are bounded, and a
  row is rewritten about as often as its run doubles in size, not with each commit.
- The oldest run, which has nearly all rows, is rewritten only if the newer ones are a good part of its size, or delete a good part of its
  rows (`size_amplification_percent`), or if no shorter merge leaves few enough runs.
- In a table without a key a run is a file, and rows keep the order of the files. A file that is large enough is never rewritten, and
  nothing is merged across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from snowmelt.errors import check
from snowmelt.maintenance.files import BucketFiles, DataFile, Rewrite, TableFiles

LEVEL_MAX: Final = 5
"""Of the oldest run. Paimon tables have six levels unless told otherwise."""
SHARE_BYTES: Final = 32 << 20
"""Of the rewrites that one task does one after the other. A job, its look and its publish cost more than a small rewrite."""
_LARGE: Final = 2
"""A file of a table without a key is large enough from `file_bytes` divided by this on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    runs_max: int = 8
    """A bucket with this number of runs is merged."""
    size_amplification_percent: int = 50
    """How large the newer runs may be together, in percent of the oldest one, before that is rewritten, too. The same percentage bounds
    the rows that they delete."""
    size_ratio_percent: int = 1
    """How much larger than what is taken already the next run may be to be taken as well."""
    file_bytes: int = 128 << 20
    """About how large an output file may get."""

    def __post_init__(self) -> None:
        check(self.runs_max >= 2, "rules of compaction allow less than two runs")
        check(self.size_amplification_percent > 0, "rules of compaction allow newer runs no size")
        check(self.size_ratio_percent >= 0, "rules of compaction have a ratio below 0")
        check(self.file_bytes > 0, "rules of compaction have files of no size")


@dataclass(frozen=True, slots=True)
class Merge:
    """Files that become one run."""

    inputs: tuple[str, ...]
    """In the table's order."""
    runs: int
    """The number of runs among the inputs."""
    level: int
    """Of the output."""
    drops_deletes: bool


@dataclass(frozen=True, slots=True)
class _RunOfFiles:
    level: int
    size_bytes: int
    rows: int
    deletes: int
    """0 where the table does not say."""
    files: tuple[DataFile, ...]


def place_of(bucket: BucketFiles) -> str:
    """A bucket's name within its table."""
    return name_place(bucket.partition, bucket.bucket)


def name_place(partition: Sequence[object], bucket: int) -> str:
    return "/".join([*map(repr, partition), str(bucket)])


def count_runs(bucket: BucketFiles, rules: CompactionRules, *, keyed: bool) -> int:
    """How many runs count towards `runs_max`."""
    return len(_runs(bucket) if keyed else _neighbours(bucket, rules, rules.runs_max))


def plan_merge(bucket: BucketFiles, rules: CompactionRules, *, keyed: bool, full: bool = False) -> Merge | None:
    """The next merge of a bucket; None: nothing is to be done. `full`: leave as few files as can be, whatever the rules say."""
    if not keyed:
        return _plan_neighbours(bucket, rules, full=full)
    runs = _runs(bucket)
    if full:
        # One run that is the oldest and has no deletes is as small as it gets.
        worth = len(runs) > 1 or any(run.level < LEVEL_MAX or run.deletes for run in runs)
        return _merge(bucket, runs, len(runs)) if worth else None
    if len(runs) < rules.runs_max:
        return None
    return _merge(bucket, runs, _count_taken(runs, rules))


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    rewrite: Rewrite
    place: str
    fewer: int
    """By how many runs the bucket gets smaller."""
    size_bytes: int
    """Of the inputs."""


def plan_rewrites(target: str, files: TableFiles, rules: CompactionRules, *, full: bool = False) -> tuple[PlannedRewrite, ...]:
    """The next merge of each bucket of a table that needs one, the one that takes the most runs first."""
    found = []
    for bucket in files.buckets:
        merge = plan_merge(bucket, rules, keyed=files.keyed, full=full)
        if merge is not None:
            rewrite = Rewrite(
                target=target,
                identity=files.identity,
                schema=files.schema,
                snapshot=files.snapshot,
                partition=bucket.partition,
                bucket=bucket.bucket,
                inputs=merge.inputs,
                level=merge.level,
                drops_deletes=merge.drops_deletes,
                file_bytes=rules.file_bytes,
            )
            inputs = set(merge.inputs)
            size = sum(file.size_bytes for file in bucket.files if file.name in inputs)
            found.append(PlannedRewrite(rewrite, place_of(bucket), merge.runs - 1, size))
    return tuple(sorted(found, key=lambda one: -one.fewer))


def shares_of(works: Sequence[PlannedRewrite]) -> list[tuple[PlannedRewrite, ...]]:
    """What each task does, in their order: several small rewrites, or one. The works of the first shares have the same shares again."""
    shares: list[list[PlannedRewrite]] = []
    size = 0
    for work in works:
        if not shares or size + work.size_bytes > SHARE_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(work)
        size += work.size_bytes
    return [tuple(share) for share in shares]


# ---- tables with a key


def _runs(bucket: BucketFiles) -> list[_RunOfFiles]:
    """The newest first."""
    levels: dict[int, list[DataFile]] = {}
    newest = []
    for file in bucket.files:
        if file.level:
            levels.setdefault(file.level, []).append(file)
        else:
            newest.append(_run(0, [file]))
    return [*reversed(newest), *(_run(level, levels[level]) for level in sorted(levels))]


def _run(level: int, files: Sequence[DataFile]) -> _RunOfFiles:
    size, rows = sum(file.size_bytes for file in files), sum(file.rows for file in files)
    return _RunOfFiles(level, size, rows, sum(max(0, file.deletes) for file in files), tuple(files))


def _count_taken(runs: Sequence[_RunOfFiles], rules: CompactionRules) -> int:
    """How many of the newest runs are merged."""
    *newer, oldest = runs
    percent = rules.size_amplification_percent
    if sum(run.size_bytes for run in newer) * 100 > oldest.size_bytes * percent:
        return len(runs)
    if sum(run.deletes for run in newer) * 100 > oldest.rows * percent:
        # Small as they are, they take away rows that the oldest run still has.
        return len(runs)
    taken = _in_ratio(runs, rules, _least_taken(runs, rules))
    # What is left must be above level 1, so that the output has a level below it and above level 0.
    while taken < len(runs) and runs[taken].level <= 1:
        taken += 1
    return taken


def _least_taken(runs: Sequence[_RunOfFiles], rules: CompactionRules) -> int:
    """How many become one so that half of `runs_max` are left."""
    return len(runs) - max(1, rules.runs_max // 2) + 1


def _in_ratio(runs: Sequence[_RunOfFiles], rules: CompactionRules, least: int) -> int:
    """At least `least` runs, and further ones that are not much larger than all before them together."""
    sizes = [run.size_bytes for run in runs]
    for taken, size in enumerate(accumulate(sizes[:-1]), 1):
        if taken >= least and size * (100 + rules.size_ratio_percent) < sizes[taken] * 100:
            return taken
    return len(runs)


def _merge(bucket: BucketFiles, runs: Sequence[_RunOfFiles], taken: int) -> Merge:
    inputs = {file.name for run in runs[:taken] for file in run.files}
    level = LEVEL_MAX if taken == len(runs) else runs[taken].level - 1
    level = max(level, *(run.level for run in runs[:taken]))
    return Merge(tuple(file.name for file in bucket.files if file.name in inputs), taken, level, drops_deletes=taken == len(runs))


# ---- tables without a key


def _neighbours(bucket: BucketFiles, rules: CompactionRules, least: int) -> list[_RunOfFiles]:
    """The oldest stretch of at least `least` small files, or else the newest stretch; the newest file first."""
    stretch: list[_RunOfFiles] = []
    for file in bucket.files:
        if file.size_bytes * _LARGE < rules.file_bytes:
            stretch.append(_run(file.level, [file]))
        elif len(stretch) >= least:
            break
        else:
            stretch.clear()
    return stretch[::-1]


def _plan_neighbours(bucket: BucketFiles, rules: CompactionRules, *, full: bool) -> Merge | None:
    least = 2 if full else rules.runs_max
    stretch = _neighbours(bucket, rules, least)
    if len(stretch) < least:
        return None
    taken = len(stretch) if full else _in_ratio(stretch, rules, _least_taken(stretch, rules))
    # Level 0, where such a table's files are.
    names = tuple(run.files[0].name for run in reversed(stretch[:taken]))
    return Merge(names, taken, 0, drops_deletes=False)
