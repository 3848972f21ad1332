"""What maintenance knows of a table: its files by bucket, its snapshots, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import EpochNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    name: str
    level: int
    """0: of a commit. Rows of one key may be in many of them. Files of a higher level do not overlap each other."""
    size_bytes: int
    rows: int
    deletes: int
    """How many of the rows are deletes. -1: the table does not say."""
    created_ms: TimeMs


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFiles:
    partition: tuple[Any, ...]
    bucket: int
    files: tuple[DataFile, ...]
    """In the table's order, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """A table's files as of one snapshot."""

    snapshot: int
    identity: str
    """As `TargetState.identity`."""
    schema: int
    keyed: bool
    """Rows of a key are merged by `_seq`. Otherwise each row is a row, and the files' order is the rows' order."""
    buckets: tuple[BucketFiles, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Files of one bucket that become fewer."""

    target: str
    identity: str
    schema: int
    snapshot: int
    """Where the input files were seen."""
    partition: tuple[Any, ...]
    bucket: int
    inputs: tuple[str, ...]
    """In the table's order. Of a table without a key they are neighbours."""
    level: int
    """Of the output."""
    drops_deletes: bool
    """Every older file of the bucket is an input."""
    file_bytes: int
    """About how large an output file may get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    number: int
    time_ms: TimeMs
    epoch: EpochNumber | None
    """Of our commit, if it is one or carries one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """What decides about expiry, as it was read in this order: snapshots, then who holds some. Tags and branches are not in it: they hold
    files, and a copy of the snapshot that names them."""

    identity: str
    """As `TargetState.identity`."""
    snapshots: tuple[SnapshotFacts, ...]
    """By number, the oldest first."""
    held_from: int | None
    """The least snapshot that a consumer or a running read needs. All from it on stay."""
