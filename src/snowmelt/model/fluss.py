"""Fluss' terms: buckets of tables, their KV snapshots, offsets. An offset is in a bucket's log; a range of them is half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER: Final = -1
"""Fluss' number for an offset or a snapshot that does not exist."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a table, or of one partition of it. Fluss never reuses an id, so a table that is dropped and created again has others."""

    table: int
    bucket: int
    partition: int | None = None

    def __str__(self) -> str:
        return f"{self.table}/{self.bucket}" if self.partition is None else f"{self.table}/p{self.partition}/{self.bucket}"


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """All rows of a bucket as of `offset`. The log continues at `offset`, inclusive."""

    bucket: Bucket
    snapshot: int
    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: str
    """Its address in Fluss' remote storage."""
    name: str
    """Its name in the folder that RocksDB opens."""


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """What a KV snapshot consists of."""

    offset: int
    files: tuple[SnapshotFile, ...]
