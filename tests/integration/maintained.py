"""Rewrites of Paimon tables as tests want them, and what is in the tables then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snowmelt.commit.records import Staged, StagedFor, StagedName
from snowmelt.maintenance.files import Rewrite, TableFiles
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.maintenance import Expired, GivenUp
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.sink import PaimonSink

LEVEL = 5
GENERATION = GenerationNumber(1)
_NONCES = itertools.count()


def prefix_of(generation: GenerationNumber = GENERATION) -> str:
    return str(StagedName(generation, StagedFor.REWRITE, 1, f"m{next(_NONCES)}", ""))


def rewrite_of(
    files: TableFiles,
    target: str,
    place: int = 0,
    names: Sequence[str] | None = None,
    *,
    level: int = LEVEL,
    drops_deletes: bool | None = None,
    file_bytes: int = 128 << 20,
) -> Rewrite:
    """Of one bucket: all its files, or these. Deletes go where all do."""
    bucket = files.buckets[place]
    every = tuple(file.name for file in bucket.files)
    inputs = every if names is None else tuple(names)
    return Rewrite(
        target=target,
        identity=files.identity,
        schema=files.schema,
        snapshot=files.snapshot,
        partition=bucket.partition,
        bucket=bucket.bucket,
        inputs=inputs,
        level=level,
        drops_deletes=inputs == every if drops_deletes is None else drops_deletes,
        file_bytes=file_bytes,
    )


def rewrites_of(care: PaimonMaintenance, target: str, **options: Any) -> list[Rewrite]:
    """Of every bucket, all files."""
    files = care.files(target)
    return [rewrite_of(files, target, place, **options) for place in range(len(files.buckets))]


def compact_all(
    care: PaimonMaintenance, target: str, *, generation: GenerationNumber = GENERATION, **options: Any
) -> tuple[int | GivenUp, list[Staged]]:
    work = rewrites_of(care, target, **options)
    staged = [care.rewrite(one, prefix_of(generation)) for one in work]
    return care.publish(work, staged, generation=generation), staged


def expire_seen(care: PaimonMaintenance, target: str, numbers: Sequence[int]) -> Expired:
    """Snapshots of the table that is there now."""
    return care.expire(target, numbers, identity=care.history(target).identity)


def open_care(warehouse: Path | str) -> PaimonMaintenance:
    return PaimonMaintenance(str(warehouse))


def newest_epoch(lake: PaimonSink, target: str) -> int:
    """That of our newest commit, by what the table's snapshots tell."""
    marker, _ = lake.newest_commit(target)
    assert marker is not None
    return marker.epoch
