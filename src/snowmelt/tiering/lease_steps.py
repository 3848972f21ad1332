"""The calls that the lease book asks for, their answers, and what a round sees of a lease. Values alone: `leases` has the book."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFiles
from snowmelt.model.table import TableId


@dataclass(frozen=True, slots=True)
class ListSnapshots:
    """The newest KV snapshots of a table, of these partitions of it (None: it has none)."""

    lease: str
    path: TableId
    partitions: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Acquire:
    lease: str
    duration_ms: int
    snapshots: Mapping[Bucket, int]


@dataclass(frozen=True, slots=True)
class ReadFiles:
    lease: str
    snapshot: KvSnapshot


@dataclass(frozen=True, slots=True)
class Release:
    lease: str
    buckets: frozenset[Bucket]


@dataclass(frozen=True, slots=True)
class Drop:
    lease: str


Step = ListSnapshots | Acquire | ReadFiles | Release | Drop


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Whom was spoken to. Epochs repeat when a coordinator starts again, a connection does not survive that."""

    connection: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Listed:
    place: Endpoint
    table: int
    snapshots: Mapping[Bucket, KvSnapshot]


@dataclass(frozen=True, slots=True)
class Acquired:
    connection: int
    unavailable: frozenset[Bucket] = frozenset()


@dataclass(frozen=True, slots=True)
class FilesRead:
    files: SnapshotFiles


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Of a release or a drop."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer, or an error that passes. It may have happened."""

    why: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that does not pass."""

    why: str


Answer = Listed | Acquired | FilesRead | Confirmed | NoAnswer | Refused


@dataclass(frozen=True, slots=True)
class LeasedSnapshot:
    """A snapshot that may be read."""

    snapshot: KvSnapshot
    files: SnapshotFiles


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ready`: splits may be handed out, of these buckets; those without a snapshot are not among them. `failure`: the round must fail."""

    ready: bool
    failure: str
    snapshots: Mapping[Bucket, LeasedSnapshot]
