"""The steps that the lane asks its shell to do, and their outcomes. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.commit.records import Staged
from snowmelt.maintenance.compaction import PlannedRewrite

# ---- what is to be done


@dataclass(frozen=True, slots=True)
class LookAtFiles:
    """See which files the table has, and plan (`compaction.plan_rewrites`)."""

    target: str


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Stage the outputs, in a task for each share of the works (`compaction.shares_of`)."""

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
