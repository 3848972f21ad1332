"""A model of the Fluss coordinator, as far as KV snapshots and their leases go: what it does, and what it says although it is not so.

A new snapshot of a bucket is added, then whatever is older than the newest and in no lease is doomed, and deleted some time later, also if
it was leased in between. Leases expire when the coordinator
looks at the clock, not before. It leases snapshots that are gone, or never were. Dropping a table deletes its snapshots and leaves
its leases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFiles
from snowmelt.tiering.lease_steps import (
    Acquire,
    Acquired,
    Answer,
    Confirmed,
    Drop,
    Endpoint,
    FilesRead,
    Listed,
    ListSnapshots,
    ReadFiles,
    Refused,
    Release,
    Step,
)

EPOCH = 0
"""Of every coordinator: it begins anew with each start."""


@dataclass
class ServerLease:
    expires_ms: int
    snapshots: dict[Bucket, int] = field(default_factory=dict)


class Coordinator:
    def __init__(self, *, retained: int = 1) -> None:
        self.retained = retained
        self.tables: dict[str, int] = {}
        """Ids by names; a table that is made anew has another."""
        self.snapshots: dict[Bucket, list[int]] = {}
        """Those that exist, oldest first."""
        self.doomed: set[tuple[Bucket, int]] = set()
        """Those of them that will be deleted, whatever is leased from now on."""
        self.made: dict[Bucket, int] = {}
        self.leases: dict[str, ServerLease] = {}

    # ---- what happens to it

    def create(self, name: str, table: int, buckets: int) -> None:
        self.tables[name] = table
        for bucket in range(buckets):
            self.snapshots[Bucket(table, bucket)] = []

    def drop_table(self, name: str) -> None:
        table = self.tables.pop(name)
        for bucket in [one for one in self.snapshots if one.table == table]:
            del self.snapshots[bucket]

    def add(self, bucket: Bucket) -> None:
        number = self.made.get(bucket, 0)
        self.made[bucket] = number + 1
        kept = self.snapshots[bucket]
        kept.append(number)
        self.doomed |= {(bucket, one) for one in kept[: -self.retained] if not self.in_lease(bucket, one)}

    def purge(self) -> None:
        for bucket, kept in self.snapshots.items():
            kept[:] = [one for one in kept if (bucket, one) not in self.doomed]
        self.doomed.clear()

    def expire(self, now_ms: int) -> None:
        self.leases = {name: lease for name, lease in self.leases.items() if lease.expires_ms >= now_ms}

    def in_lease(self, bucket: Bucket, snapshot: int) -> bool:
        return any(lease.snapshots.get(bucket) == snapshot for lease in self.leases.values())

    def exists(self, snapshot: KvSnapshot) -> bool:
        return snapshot.snapshot in self.snapshots.get(snapshot.bucket, ())

    # ---- what it answers

    def answer(self, step: Step, connection: int, now_ms: int, seen: Coordinator | None = None) -> Answer:
        """`seen` is what a server that lags behind takes for the truth."""
        match step:
            case ListSnapshots(_, path, _):
                return (seen or self).listed(path.name, connection)
            case ReadFiles(_, snapshot):
                if not (seen or self).exists(snapshot):
                    return Refused("no such snapshot")
                return FilesRead(SnapshotFiles(snapshot.offset, ()))
            case Acquire(lease, duration_ms, snapshots):
                return self.acquired(lease, duration_ms, snapshots, connection, now_ms)
            case Release(lease, buckets):
                return self.released(lease, buckets)
            case Drop(lease):
                self.leases.pop(lease, None)
                return Confirmed()

    def listed(self, name: str, connection: int) -> Answer:
        table = self.tables.get(name)
        if table is None:
            return Refused("no such table")
        newest = {
            bucket: KvSnapshot(bucket, kept[-1], kept[-1] * 10) for bucket, kept in self.snapshots.items() if bucket.table == table and kept
        }
        return Listed(Endpoint(connection, EPOCH), table, newest)

    def acquired(self, name: str, duration_ms: int, snapshots: Mapping[Bucket, int], connection: int, now_ms: int) -> Answer:
        if not {bucket.table for bucket in snapshots} <= set(self.tables.values()):
            return Refused("no such table")
        lease = self.leases.setdefault(name, ServerLease(0))
        lease.expires_ms = now_ms + duration_ms
        lease.snapshots |= snapshots
        return Acquired(connection)

    def released(self, name: str, buckets: frozenset[Bucket]) -> Answer:
        if not {bucket.table for bucket in buckets} <= set(self.tables.values()):
            return Refused("no such table")
        lease = self.leases.get(name)
        if lease is None:
            return Confirmed()
        if not {bucket.table for bucket in buckets} <= {bucket.table for bucket in lease.snapshots}:
            return Refused("a null pointer")
        for bucket in buckets:
            lease.snapshots.pop(bucket, None)
        if not lease.snapshots:
            del self.leases[name]
        return Confirmed()

    def as_it_is(self) -> Coordinator:
        """What it lists, kept for later."""
        seen = Coordinator(retained=self.retained)
        seen.tables = dict(self.tables)
        seen.snapshots = {bucket: list(kept) for bucket, kept in self.snapshots.items()}
        return seen
