"""A model of Fluss 0.9 as it was measured: logs, KV snapshots, and a coordinator that forgets whom it gave a table to.

What survives its restart is what it keeps in ZooKeeper and in files: tables, the lake snapshot that it was last told of, files of offsets.
States and epochs of tables are in its memory, and begin with the same numbers again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.tiering.fence import KnownToFluss, Tiered
from snowmelt.tiering.offsets import Offsets
from snowmelt.tiering.splits import BucketLog

TIMEOUT_MS = 120_000
FENCED_EPOCH, NO_TABLE, UNKNOWN = 50, 7, -1

Change = tuple[int, int | None] | None
"""Key and value, a delete without one; None takes an offset and has no row."""


class Refused(Exception):
    """The coordinator answers with an error."""


@dataclass(slots=True)
class Table:
    name: str
    table_id: int
    keyed: bool
    schema_id: int = 1
    logs: dict[Bucket, list[Change]] = field(default_factory=dict)
    earliest: dict[Bucket, int] = field(default_factory=dict)
    first: dict[Bucket, int] = field(default_factory=dict)
    """Where the log began when the table was made: what a lake can have."""
    copies: dict[Bucket, KvSnapshot] = field(default_factory=dict)

    def fold(self, bucket: Bucket, end: int) -> dict[int, int]:
        rows: dict[int, int] = {}
        for change in self.logs[bucket][:end]:
            if change is not None:
                key, value = change
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
        return rows


@dataclass(slots=True)
class Standing:
    """A table in the coordinator's memory."""

    due_ms: int
    state: str = "scheduled"
    epoch: int = 0
    heard_ms: int = 0
    owner: int = 0
    """Which round it was really given to: nothing that the coordinator knows."""


class Fluss:
    def __init__(self, rng: Random, freshness_ms: int) -> None:
        self.rng = rng
        self.freshness_ms = freshness_ms
        self.tables: dict[str, Table] = {}
        self.told: dict[int, Tiered] = {}
        """What it was last told of each table's lake."""
        self.kept: dict[int, list[Tiered]] = {}
        """All that it remembers, the last word behind."""
        self.files: dict[str, Offsets] = {}
        self.standings: dict[int, Standing] = {}
        self.ids = 0
        self.rounds = 0
        self.prepared = 0
        self.restarts = 0
        self.finished: set[tuple[int, int]] = set()
        """Rounds whose report was taken, by restart."""

    # ---- tables

    def create(self, name: str, now_ms: int, *, keyed: bool, buckets: list[tuple[int, int | None]], cut: int) -> Table:
        self.ids += 1
        table = Table(name, self.ids, keyed)
        for number, partition in buckets:
            bucket = Bucket(self.ids, number, partition)
            table.logs[bucket] = [None] * cut
            table.earliest[bucket] = table.first[bucket] = cut
        self.tables[name] = table
        self.standings[self.ids] = Standing(now_ms + self.freshness_ms)
        return table

    def drop(self, name: str) -> None:
        table = self.tables.pop(name)
        self.standings.pop(table.table_id)
        self.told.pop(table.table_id, None)
        self.kept.pop(table.table_id, None)

    def by_id(self, table_id: int) -> Table | None:
        return next((table for table in self.tables.values() if table.table_id == table_id), None)

    def logs(self, table_id: int) -> list[BucketLog]:
        table = self.by_id(table_id)
        if table is None:
            raise Refused(NO_TABLE)
        return [BucketLog(bucket, table.earliest[bucket], len(log), table.copies.get(bucket)) for bucket, log in table.logs.items()]

    def trim(self, table: Table) -> None:
        """The log goes below what Fluss was told that the lake has."""
        tiered = self.told.get(table.table_id)
        if tiered is not None and tiered.path in self.files:
            for bucket, end in self.read(tiered.path).ends.items():
                if bucket in table.earliest:
                    table.earliest[bucket] = max(table.earliest[bucket], end)

    # ---- the coordinator

    def restart(self, now_ms: int) -> None:
        self.restarts += 1
        self.standings = {table.table_id: Standing(now_ms + self.freshness_ms) for table in self.tables.values()}

    def tick(self, now_ms: int) -> None:
        for standing in self.standings.values():
            silent = standing.state == "tiering" and now_ms - standing.heard_ms >= TIMEOUT_MS
            if silent or (standing.state == "scheduled" and now_ms >= standing.due_ms):
                self._pending(standing)

    def _pending(self, standing: Standing) -> None:
        standing.state = "pending"
        standing.epoch += 1

    def request(self, now_ms: int) -> tuple[Table, int, int, int] | None:
        """A table that is due, the epoch, a number that tells this hand-out from any other, and how many restarts there were."""
        due = [table for table in self.tables.values() if self.standings[table.table_id].state == "pending"]
        if not due:
            return None
        table = self.rng.choice(due)
        standing = self.standings[table.table_id]
        self.rounds += 1
        standing.state, standing.heard_ms, standing.owner = "tiering", now_ms, self.rounds
        return table, standing.epoch, self.rounds, self.restarts

    def _entered(self, table_id: int, epoch: int) -> Standing:
        standing = self.standings.get(table_id)
        if standing is None:
            raise Refused(NO_TABLE)
        if standing.epoch != epoch:
            raise Refused(FENCED_EPOCH)
        return standing

    def renew(self, table_id: int, epoch: int, now_ms: int) -> None:
        standing = self._entered(table_id, epoch)
        if standing.state != "tiering":
            raise Refused(FENCED_EPOCH)
        standing.heard_ms = now_ms

    def finish(self, table_id: int, epoch: int, now_ms: int, *, more: bool) -> None:
        standing = self._entered(table_id, epoch)
        if standing.state == "tiering":
            standing.state, standing.due_ms = "scheduled", now_ms + (0 if more else self.freshness_ms)

    def fail(self, table_id: int, epoch: int) -> None:
        """Legal from anywhere: of a table that is scheduled it makes one that is due at once."""
        standing = self._entered(table_id, epoch)
        if standing.state != "pending":
            self._pending(standing)

    # ---- what it knows of the lake

    def known(self, table_id: int) -> KnownToFluss | None:
        tiered = self.told.get(table_id)
        return None if tiered is None else KnownToFluss(tiered.snapshot, self.read(tiered.path).ends)

    def read(self, path: str) -> Offsets:
        """What it keeps of a lake snapshot is the name of the file alone."""
        if path not in self.files:
            raise Refused(UNKNOWN)
        return self.files[path]

    def prepare(self, offsets: Offsets) -> str:
        """Merged over what it knows."""
        if self.by_id(offsets.table_id) is None:
            raise Refused(NO_TABLE)
        tiered = self.told.get(offsets.table_id)
        before = {} if tiered is None else self.read(tiered.path).ends
        self.prepared += 1
        path = f"offsets-{self.prepared}"
        self.files[path] = Offsets(offsets.table_id, {**before, **offsets.ends})
        return path

    def tell(self, table_id: int, tiered: Tiered, keep_from: int | None) -> None:
        """It takes whatever it is told, and deletes the files of what came before what it is to keep; of all, if nothing is said."""
        if self.by_id(table_id) is None:
            raise Refused(NO_TABLE)
        before = self.kept.get(table_id, [])
        places = [place for place, one in enumerate(before) if one.snapshot == keep_from]
        first = len(before) if keep_from is None else places[0] if places else 0
        for one in before[:first]:
            self.files.pop(one.path, None)
        self.kept[table_id] = [*before[first:], tiered]
        self.told[table_id] = tiered
