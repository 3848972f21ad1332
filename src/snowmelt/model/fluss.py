"""What Fluss calls things: buckets of tables, their KV snapshots, offsets. Offsets are of a bucket's log; a range of them is half-open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER: Final = -1
"""What Fluss says of an offset or a snapshot that there is not."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a table, or of one partition of it. Ids are never given twice, so a table that was dropped and made anew has others."""

    table: int
    bucket: int
    partition: int | None = None

    def __str__(self) -> str:
        return f"{self.table}/{self.bucket}" if self.partition is None else f"{self.table}/p{self.partition}/{self.bucket}"


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """All rows of a bucket as of `offset`: the log goes on there, inclusively."""

    bucket: Bucket
    snapshot: int
    offset: int


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    path: str
    """Where it lies in Fluss' remote storage."""
    name: str
    """What it is called in the folder that RocksDB opens."""


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """What a KV snapshot consists of."""

    offset: int
    files: tuple[SnapshotFile, ...]
