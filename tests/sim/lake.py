"""A model lake with Paimon's semantics as they were measured: a snapshot is published by an exclusive create; of a key the greatest
`_seq` wins; a tie between files is undefined; compaction forgets deletes; expiry hides who committed what and removes files; others
commit too. Files are in buckets and levels, and a snapshot says which it brought and which it removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from snowmelt.commit.publish import Files, LastCommit, View
from snowmelt.maintenance.files import BucketFiles, DataFile, SnapshotFacts, TableFiles, TableHistory
from snowmelt.maintenance.publishing import PlacedFile, SnapshotNote

Key = tuple[str, int]
"""The source table and the key in it."""


class Violation(Exception):
    """An oracle has something to say."""


@dataclass(frozen=True, slots=True)
class Row:
    key: Key
    sequence: int
    value: int | None
    origin: str
    """What it is, for append-only tables: a change of a transaction or a row of a read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a snapshot."""

    name: str
    rows: tuple[Row, ...]
    level: int = 0
    """0: of a commit, or of an append-only table."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    number: int
    ours: bool
    marker: tuple[int, str] | None
    parts: tuple[Part, ...]
    time_ms: int = 0
    rewrite: str = ""
    """Which rewrite of ours it is."""
    brought: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()


@dataclass(slots=True)
class LakeTable:
    name: str
    keyed: bool
    rng: Random
    now: Callable[[], int] = lambda: 0
    uuid: str = "u"
    buckets: int = 1
    schema: int = 0
    shape: bytes = b"shape 0"
    """What that schema is, as the intent said."""
    storage: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    """Every file that exists, staged or referenced."""
    written: dict[str, int] = field(default_factory=dict)
    """When, by file."""
    snapshots: dict[int, Snapshot] = field(default_factory=lambda: {0: Snapshot(0, False, None, ())})
    newest: int = 0
    tags: dict[str, Snapshot] = field(default_factory=dict)
    rude_expiry: bool = False
    """Somebody expired what our consumer holds."""
    held_from: int | None = None

    def view(self, base: int, files: Iterable[str]) -> View:
        whole, marker = True, None
        for number in range(self.newest, -1, -1):
            snapshot = self.snapshots.get(number)
            if snapshot is None and number <= base:
                break
            whole = whole and snapshot is not None
            if snapshot is not None and snapshot.marker is not None:
                marker = LastCommit(*snapshot.marker, number)
                break
        if not self.referenced().isdisjoint(files):
            where = Files.REFERENCED
        else:
            where = Files.STAGED if all(name in self.storage for name in files) else Files.MISSING
        return View(
            uuid=self.uuid,
            buckets=self.buckets,
            schema=self.schema,
            sequence_field=True,
            snapshot=self.newest,
            marker=marker,
            whole=whole,
            files=where,
        )

    def publish(self, on: int, marker: tuple[int, str], empties: tuple[str, ...], files: tuple[str, ...]) -> bool:
        """Exclusive: False if somebody has published that number."""
        if on != self.newest:
            return False
        parts = () if empties else self.snapshots[on].parts
        missing = [name for name in files if name not in self.storage]
        if missing:
            raise Violation(f"{self.name}: a file is committed that was deleted: {missing}")
        double = {part.name for part in parts}.intersection(files)
        if double and self.keyed:
            raise Violation(f"{self.name}: a file is committed twice: {sorted(double)}")
        added = tuple(Part(name, self.storage[name]) for name in files)
        self.add(True, marker, parts + added)
        return True

    def add(self, ours: bool, marker: tuple[int, str] | None, parts: tuple[Part, ...], rewrite: str = "") -> None:
        """The next snapshot."""
        before = {(part.name, part.level) for part in self.snapshots[self.newest].parts}
        after = {(part.name, part.level) for part in parts}
        self.newest += 1
        self.snapshots[self.newest] = Snapshot(
            self.newest,
            ours,
            marker,
            parts,
            self.now(),
            rewrite,
            frozenset(name for name, _ in after - before),
            frozenset(name for name, _ in before - after),
        )

    def write(self, name: str, rows: tuple[Row, ...]) -> None:
        """A file that nothing refers to yet."""
        self.storage[name], self.written[name] = rows, self.now()

    def stage(self, name: str, rows: tuple[Row, ...]) -> list[str]:
        """Write rows as a file of each bucket that has some."""
        if self.buckets == 1 or not self.keyed:
            self.write(name, rows)
            return [name]
        staged = []
        for bucket in range(self.buckets):
            if kept := tuple(row for row in rows if row.key[1] % self.buckets == bucket):
                self.write(f"{name}.{bucket}", kept)
                staged.append(f"{name}.{bucket}")
        return staged

    def delete(self, names: Iterable[str]) -> None:
        """Absent ones are fine."""
        doomed = [name for name in names if name in self.storage]
        if doomed and (needed := self.referenced().intersection(doomed)):
            raise Violation(f"{self.name}: files are deleted that a snapshot or a tag refers to: {sorted(needed)}")
        for name in doomed:
            del self.storage[name]

    def tag(self, name: str, number: int, identity: str) -> bool:
        """Give a snapshot a name, which keeps its files. False: there is none of that number and identity."""
        snapshot = self.snapshots.get(number)
        if snapshot is None or snapshot.marker is None or snapshot.marker[1] != identity:
            return False
        self.tags.setdefault(name, snapshot)
        return True

    def alter(self, before: int, after: int, shape: bytes) -> bool:
        """Exclusive as well."""
        if self.schema != before:
            return False
        self.schema, self.shape = after, shape
        return True

    # ---- what others do

    def compact(self, ours: bool, name: str) -> None:
        """Merge all files of each bucket into one. Deletes are forgotten; of an append-only table the rows are."""
        newest = self.snapshots[self.newest]
        if len(newest.parts) < 2:
            return
        rows = tuple(self.merged().values()) if self.keyed else tuple(row for part in newest.parts for row in part.rows)
        level = 5 if self.keyed else 0
        parts = tuple(Part(one, self.storage[one], level) for one in self.stage(name, rows))
        self.add(False, self.newest_commit() if ours else None, parts)

    def newest_commit(self) -> tuple[int, str] | None:
        """What our own maintenance copies forward."""
        return next((s.marker for _, s in sorted(self.snapshots.items(), reverse=True) if s.marker is not None), None)

    def hold(self, first: int) -> None:
        """Our consumer names the first snapshot that nobody may expire."""
        self.held_from = first

    def expire(self, ours: bool, *, rude: bool = False) -> None:
        """Old snapshots go, and with them the files that only they referred to. Ours never removes our newest marker, that of others
        nothing that a consumer holds, unless it is rude."""
        keep = {self.newest - back for back in range(self.rng.randint(1, 3))}.intersection(self.snapshots)
        if ours:
            marked = [number for number, snapshot in self.snapshots.items() if snapshot.marker is not None]
            keep.update(marked[-1:])
        elif rude:
            self.rude_expiry = True
        else:
            keep.update(number for number in self.snapshots if self.held_from is not None and number >= self.held_from)
        dropped = [number for number in self.snapshots if number not in keep]
        gone = {part.name for number in dropped for part in self.snapshots.pop(number).parts}
        for name in gone - self.referenced():
            self.storage.pop(name, None)

    # ---- what our own maintenance asks

    def bucket_of(self, rows: tuple[Row, ...]) -> int:
        """Of a file with these rows."""
        return rows[0].key[1] % self.buckets if self.keyed and rows else 0

    def files(self) -> TableFiles:
        buckets: dict[int, list[DataFile]] = {}
        for part in self.snapshots[self.newest].parts:
            deletes = sum(row.value is None for row in part.rows)
            # What was merged before counts as large, so that merges of some runs come up in small tables.
            size = len(part.rows) * (10 if part.level else 1)
            file = DataFile(name=part.name, level=part.level, size_bytes=size, rows=len(part.rows), deletes=deletes, created_ms=0)
            buckets.setdefault(self.bucket_of(part.rows), []).append(file)
        found = (BucketFiles(partition=(), bucket=bucket, files=tuple(files)) for bucket, files in buckets.items())
        return TableFiles(snapshot=self.newest, identity=self.uuid, schema=self.schema, keyed=self.keyed, buckets=tuple(found))

    def history(self) -> TableHistory:
        facts = (
            SnapshotFacts(number=number, time_ms=one.time_ms, epoch=one.marker[0] if one.marker is not None else None)
            for number, one in sorted(self.snapshots.items())
            if number
        )
        return TableHistory(identity=self.uuid, snapshots=tuple(facts), held_from=self.held_from)

    def notes(self) -> Iterator[tuple[int, SnapshotNote | None]]:
        for number in range(self.newest, 0, -1):
            one = self.snapshots.get(number)
            marker = LastCommit(*one.marker, number) if one is not None and one.marker is not None else None
            yield number, None if one is None else SnapshotNote(one.rewrite, marker)

    def placed(self, part: Part) -> PlacedFile:
        keys = sorted(row.key for row in part.rows)
        return PlacedFile(part.name, part.level, keys[0] if keys else (), keys[-1] if keys else ())

    # ---- reading

    def referenced(self) -> set[str]:
        return {part.name for snapshot in (*self.snapshots.values(), *self.tags.values()) for part in snapshot.parts}

    def read(self) -> tuple[Part, ...]:
        parts = self.snapshots[self.newest].parts
        gone = [part.name for part in parts if part.name not in self.storage]
        if gone:
            raise Violation(f"{self.name}: a file was deleted that the newest snapshot refers to: {gone}")
        return parts

    def merged(self) -> dict[Key, Row]:
        """What a reader of a keyed table gets, by key."""
        best: dict[Key, Row] = {}
        for part in self.read():
            for row in part.rows:
                held = best.get(row.key)
                tie = held is not None and row.sequence == held.sequence and row.value != held.value
                if held is None or row.sequence > held.sequence or (tie and self.rng.random() < 0.5):
                    best[row.key] = row
        return {key: row for key, row in best.items() if row.value is not None}

    def rows(self) -> list[Row]:
        """What a reader of an append-only table gets."""
        return [row for part in self.read() for row in part.rows]
