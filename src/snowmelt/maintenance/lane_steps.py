"""The steps that the lane asks its shell to do, and their outcomes. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.commit.records import Staged
from snowmelt.maintenance.compaction import CompactionRules, PlannedRewrite, count_runs, place_of, plan_rewrites
from snowmelt.maintenance.files import TableFiles

# ---- what is to be done


@dataclass(frozen=True, slots=True)
class LookAtFiles:
    """See which files the table has, and plan (`compaction.plan_rewrites`)."""

    target: str


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Stage the outputs, each in a task of its own."""

    target: str
    job: int
    works: tuple[PlannedRewrite, ...]


@dataclass(frozen=True, slots=True)
class PublishRewrites:
    """Put the outputs in place of the inputs. Twice is harmless."""

    target: str
    works: tuple[PlannedRewrite, ...]
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class DiscardFiles:
    """Delete what was staged and is never published."""

    target: str
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """Remove the snapshots that may go (`expiry.plan_expiry`)."""

    target: str


@dataclass(frozen=True, slots=True)
class DeleteOrphans:
    """Delete files that nothing refers to, in a task."""

    target: str


LaneStep = LookAtFiles | RewriteFiles | PublishRewrites | DiscardFiles | ExpireSnapshots | DeleteOrphans


# ---- what came of it


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSeen:
    target: str
    runs: Mapping[str, int]
    """By bucket (`compaction.place_of`)."""
    works: tuple[PlannedRewrite, ...]
    files: int
    size_bytes: int


def see_files(target: str, files: TableFiles, rules: CompactionRules, *, full: bool = False) -> FilesSeen:
    """What a look has found. `full`: all of a bucket is merged, whatever the rules say."""
    every = [file for bucket in files.buckets for file in bucket.files]
    return FilesSeen(
        target=target,
        runs={place_of(bucket): count_runs(bucket, rules, keyed=files.keyed) for bucket in files.buckets},
        works=plan_rewrites(target, files, rules, full=full),
        files=len(every),
        size_bytes=sum(file.size_bytes for file in every),
    )


@dataclass(frozen=True, slots=True)
class FilesRewritten:
    target: str
    staged: tuple[Staged, ...]
    """In the order of the works."""


@dataclass(frozen=True, slots=True)
class RewritesPublished:
    target: str


@dataclass(frozen=True, slots=True)
class RewritesGivenUp:
    target: str


@dataclass(frozen=True, slots=True)
class FilesDiscarded:
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsExpired:
    target: str
    removed: int
    left: int
    limited: bool
    """More may go: one expiry has a limit."""


@dataclass(frozen=True, slots=True)
class OrphansDeleted:
    target: str


@dataclass(frozen=True, slots=True)
class LaneStepFailed:
    """Of any step. For a publish: no answer came."""

    target: str


LaneOutcome = (
    FilesSeen | FilesRewritten | RewritesPublished | RewritesGivenUp | FilesDiscarded | SnapshotsExpired | OrphansDeleted | LaneStepFailed
)
