"""A model lake table without a sequence field: of a key the row with the greatest number wins, and a writer numbers its rows from
the greatest number that its bucket has *when it begins to write*. So what is staged early and committed late loses or wins wrongly."""

from __future__ import annotations

from dataclasses import dataclass, field

from snowmelt.model.fluss import Bucket
from snowmelt.tiering.fence import LakeView, Tiered
from tests.sim.lake import Violation


@dataclass(frozen=True, slots=True)
class Row:
    bucket: Bucket
    offset: int
    key: int
    value: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    number: int
    tiered: Tiered | None
    files: tuple[str, ...]


@dataclass(slots=True)
class LakeTable:
    identity: str
    keyed: bool
    schema: int = 0
    storage: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    latest: int = 0
    expired: bool = False

    def view(self) -> LakeView:
        whole_from = self.latest + 1
        while whole_from - 1 in self.snapshots:
            whole_from -= 1
        tiered = [snapshot.tiered for _, snapshot in sorted(self.snapshots.items(), reverse=True) if snapshot.tiered is not None]
        rows = bool(self.files())
        return LakeView(
            identity=self.identity, schema=self.schema, latest=self.latest, whole_from=whole_from, tiered=tuple(tiered), rows=rows
        )

    def newest(self) -> Tiered | None:
        return self.view().newest

    def files(self) -> tuple[str, ...]:
        return self.snapshots[self.latest].files if self.latest else ()

    def rows(self) -> list[Row]:
        return [row for name in self.files() for row in self.storage[name]]

    def merged(self, bucket: Bucket) -> dict[int, int]:
        best: dict[int, Row] = {}
        for row in self.rows():
            if row.bucket == bucket and (row.key not in best or row.number >= best[row.key].number):
                best[row.key] = row
        return {key: row.value for key, row in best.items() if row.value is not None}

    def next_number(self, bucket: Bucket) -> int:
        return 1 + max((row.number for row in self.rows() if row.bucket == bucket), default=0)

    def publish(self, on: int, tiered_path: str | None, files: tuple[str, ...], removed: tuple[str, ...] = ()) -> bool:
        """Exclusive: False if somebody has published that number."""
        if on != self.latest:
            return False
        missing = [name for name in files if name not in self.storage]
        if missing:
            raise Violation(f"a file is committed that was deleted: {missing}")
        before = tuple(name for name in self.files() if name not in removed)
        self.latest += 1
        tiered = None if tiered_path is None else Tiered(self.latest, tiered_path)
        self.snapshots[self.latest] = Snapshot(self.latest, tiered, before + files)
        return True

    def referenced(self) -> set[str]:
        return {name for snapshot in self.snapshots.values() for name in snapshot.files}

    def compact(self, name: str) -> None:
        """All files become one, by somebody else. Deletes are forgotten."""
        old = self.files()
        if len(old) < 2:
            return
        rows = self.rows()
        if self.keyed:
            best = {(row.bucket, row.key): row for row in sorted(rows, key=lambda row: row.number)}
            rows = [row for row in best.values() if row.value is not None]
        self.storage[name] = tuple(rows)
        self.publish(self.latest, None, (name,), old)

    def expire(self, keep: set[int], *, foreign: bool) -> None:
        """Old snapshots go, with the files that only they have. Only what is foreign lets go of the newest tiered one."""
        newest = self.newest()
        kept = {self.latest, *keep}
        if newest is not None and not foreign:
            kept.add(newest.snapshot)
        self.expired = self.expired or foreign
        gone = {name for number in set(self.snapshots) - kept for name in self.snapshots.pop(number).files}
        for name in gone - self.referenced():
            self.storage.pop(name, None)
