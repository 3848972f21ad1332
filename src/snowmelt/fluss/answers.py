"""What Fluss' servers are asked with and what they answer, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from snowmelt.errors import SnowmeltError
from snowmelt.fluss.target import Login
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    table: int
    schema: int
    schema_json: str
    """The schema as Fluss writes it down, for readers of rows."""
    primary_key: tuple[str, ...]
    partition_keys: tuple[str, ...]
    bucket_keys: tuple[str, ...]
    buckets: int
    properties: Mapping[str, str]
    custom_properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    server: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The servers that are there. Fluss may know of no coordinator for a moment; a bucket without a leader is not in `leaders`."""

    coordinator: Node | None
    tablets: Mapping[int, Node]
    leaders: Mapping[Bucket, int] = field(default_factory=dict)
    login: Login | None = None
    """By which its servers were asked, and are to be."""


@dataclass(frozen=True, slots=True)
class Partition:
    partition: int
    values: tuple[tuple[str, str], ...]
    """Its columns and their values."""

    @property
    def name(self) -> str:
        """As Fluss asks for it in other calls."""
        return "$".join(value for _, value in self.values)


class OffsetKind(IntEnum):
    EARLIEST = 0
    LATEST = 1


@dataclass(frozen=True, slots=True)
class LatestSnapshots:
    """The newest KV snapshot of each bucket that has one."""

    table: int
    partition: int | None
    snapshots: Mapping[Bucket, KvSnapshot]


@dataclass(frozen=True, slots=True)
class Claim:
    """A table that was handed out for tiering, by the epochs that say so."""

    table: int
    coordinator_epoch: int
    tiering_epoch: int


@dataclass(frozen=True, slots=True)
class HandedOut:
    table: int
    path: TableId
    tiering_epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    coordinator_epoch: int
    table: HandedOut | None
    tiering: Mapping[int, SnowmeltError | None]
    """What became of each table that was reported, by what it was reported as."""
    finished: Mapping[int, SnowmeltError | None]
    failed: Mapping[int, SnowmeltError | None]


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A lake snapshot that Fluss knows, with the offset of each bucket up to which it holds the log, exclusively."""

    table: int
    snapshot: int
    offsets: Mapping[Bucket, int]


@dataclass(frozen=True, slots=True)
class FetchFrom:
    bucket: Bucket
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment of the log that the tablet server has given away. Offsets from `start` up to `end`, exclusively."""

    segment: str
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """Where the offset that was asked for lies, if not with the server any more."""

    folder: str
    partition_name: str | None
    first_position: int
    segments: tuple[RemoteSegment, ...]


@dataclass(frozen=True, slots=True)
class FetchedBucket:
    """Of one bucket: record batches as Fluss stores them, or where to read them; or the error of this bucket alone."""

    bucket: Bucket
    high_watermark: int | None
    records: bytes
    remote: RemoteLog | None
    error: SnowmeltError | None
