"""Whether a rewrite may take the place of its inputs. Each try judges the very snapshot that it builds on, and the next one is an exclusive
create: so what was judged still holds.

Laws:
- A snapshot of ours tells which rewrite it is. So after a lost answer the same question finds it, also if its files were compacted again.
  Where snapshots are missing, a reference to an output tells.
- All inputs are in the snapshot that the try builds on. A TRUNCATE, an overwrite or another compactor has removed them otherwise.
- Files of one level never have rows of the same key.
- Without a commit of ours that can be found nothing is published: a newer driver may have been there, and may have deleted the outputs.
  Nor is it given up: an earlier try may still be on its way to the same number, and what is given up is deleted. The next commit tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from snowmelt.commit.publish import LastCommit
from snowmelt.commit.records import StagedName, generation_of
from snowmelt.errors import Corrupt
from snowmelt.maintenance.files import Rewrite
from snowmelt.model.numbers import GenerationNumber


@dataclass(frozen=True, slots=True)
class SnapshotNote:
    """What one snapshot says of us."""

    rewrite: str
    """Which one it is; empty: none of ours."""
    marker: LastCommit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePast:
    """What the snapshots from the newest down tell."""

    done: int | None = None
    """The one that has the rewrite."""
    whole: bool
    """None is missing after the one in which the inputs were seen, so that the rewrite is in none."""
    marker: LastCommit | None
    """Our newest commit."""
    hidden: bool
    """A snapshot is missing above it, which may have had another."""


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of a bucket, by what other files of its level must not have."""

    name: str
    level: int
    least: tuple[Any, ...]
    greatest: tuple[Any, ...]


def look_back(snapshots: Iterable[tuple[int, SnapshotNote | None]], *, since: int, rewrite: str) -> RewritePast:
    """`snapshots`: the numbers from the newest down, with what each says; None: it is missing. `since`: where the inputs were seen."""
    marker, whole, hidden = None, True, False
    for number, note in snapshots:
        if number <= since and (marker is not None or hidden):
            break
        if note is None:
            whole = whole and number <= since
            hidden = hidden or marker is None
        elif note.rewrite == rewrite:
            return RewritePast(done=number, whole=whole, marker=marker, hidden=hidden)
        elif marker is None:
            marker = note.marker
    return RewritePast(whole=whole, marker=marker, hidden=hidden)


def fenced(past: RewritePast, files: Iterable[str], generation: GenerationNumber) -> str:
    """Why no driver of this generation may publish, now or later; empty: it may, if `past` hides nothing. `files`: those that the buckets
    have."""
    if past.marker is not None and _generation_of(past.marker) > generation:
        return "a newer driver has committed to the table"
    for name in files:
        try:
            newer = StagedName.parse(name).generation > generation
        except Corrupt:
            continue
        if newer:
            return "a newer driver's files are in the table"
    return ""


def misplaced(work: Rewrite, outputs: Sequence[PlacedFile], there: Sequence[PlacedFile]) -> str:
    """Why the outputs can't take the place of the inputs; empty: they can. `there`: all files that the bucket has."""
    inputs = frozenset(work.inputs)
    if not inputs <= {file.name for file in there}:
        return "an input is not in the table any more"
    others = [file for file in there if file.level == work.level and file.name not in inputs] if work.level else []
    if any(_overlap(file, other) for file in outputs for other in others):
        return "the output's level has a file with the same keys"
    return ""


def _generation_of(marker: LastCommit) -> GenerationNumber:
    try:
        return generation_of(marker.identity)
    except ValueError as error:
        raise Corrupt("a snapshot's properties can't be read", detail=f"snapshot {marker.snapshot}") from error


def _overlap(one: PlacedFile, other: PlacedFile) -> bool:
    return one.least <= other.greatest and other.least <= one.greatest
