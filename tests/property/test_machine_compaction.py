"""A bucket that gets rows, deletes and late rows, and is merged as planned: what a reader gets stays the same, and its runs stay few."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from snowmelt.maintenance.compaction import LEVEL_MAX, CompactionRules, Merge, count_runs, plan_merge
from snowmelt.maintenance.files import BucketFiles, DataFile

KEYS = st.integers(1, 8)
RULES = st.builds(
    lambda runs_max, amplification, ratio: CompactionRules(
        runs_max=runs_max, size_amplification_percent=amplification, size_ratio_percent=ratio, file_bytes=20
    ),
    st.integers(2, 6),
    st.sampled_from([25, 50, 200]),
    st.sampled_from([0, 1, 50]),
)


@dataclass(frozen=True)
class Held:
    """A file and its rows: by key the sequence number, and whether it is a delete."""

    file: DataFile
    rows: dict[int, tuple[int, bool]]


class Buckets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[Held] = []
        self.made = self.sequence = 0
        self.expected: dict[int, int] = {}
        self.deleted: dict[int, int] = {}

    def hold(self, rows: dict[int, tuple[int, bool]], level: int) -> Held:
        self.made += 1
        deletes = sum(gone for _, gone in rows.values())
        file = DataFile(name=f"f{self.made}", level=level, size_bytes=3 + len(rows), rows=len(rows), deletes=deletes, created_ms=0)
        return Held(file, rows)

    @rule(upserts=st.sets(KEYS, max_size=4), deletes=st.sets(KEYS, max_size=3))
    def commit(self, upserts: set[int], deletes: set[int]) -> None:
        rows = {}
        for key in upserts | deletes:
            self.sequence += 2
            rows[key] = (self.sequence, key in deletes)
            if key in deletes:
                self.expected.pop(key, None)
                self.deleted[key] = self.sequence
            else:
                self.expected[key] = self.sequence
        if rows:
            self.files.append(self.hold(rows, 0))

    @rule(keys=st.sets(KEYS, min_size=1, max_size=4), back=st.integers(0, 6))
    def commit_late(self, keys: set[int], back: int) -> None:
        """Rows of a read: they lose to later changes, and never come below a delete that was committed."""
        sequence = max(1, self.sequence - 2 * back + 1)
        rows = {key: (sequence, False) for key in keys if sequence > self.deleted.get(key, 0)}
        for key in rows:
            self.expected[key] = max(self.expected.get(key, 0), sequence)
        if rows:
            self.files.append(self.hold(rows, 0))

    @rule(rules=RULES, full=st.booleans())
    def merge(self, rules: CompactionRules, full: bool) -> None:
        before = self.bucket
        planned = plan_merge(before, rules, keyed=True, full=full)
        if planned is None:
            assert full or count_runs(before, rules, keyed=True) < rules.runs_max
            return
        runs = count_runs(before, rules, keyed=True)
        self.rewrite(planned)
        left = count_runs(self.bucket, rules, keyed=True)
        if self.files:
            assert left <= max(1, 1 if full else rules.runs_max // 2)
            assert left >= runs - planned.runs
        if full:
            assert plan_merge(self.bucket, rules, keyed=True, full=True) is None

    def rewrite(self, planned: Merge) -> None:
        taken = [held for held in self.files if held.file.name in planned.inputs]
        names = tuple(held.file.name for held in taken)
        assert names == planned.inputs, "in the table's order"
        first = self.files.index(taken[0])
        levels = [held.file.level for held in self.files[:first]]
        assert names == tuple(held.file.name for held in self.files[first:]), "the newest, without a gap"
        assert planned.drops_deletes == (first == 0)
        assert 0 < planned.level <= LEVEL_MAX
        assert all(level > planned.level for level in levels), "the output is below what is left"
        rows: dict[int, tuple[int, bool]] = {}
        for held in taken:
            for key, row in held.rows.items():
                rows[key] = max(row, rows.get(key, row))
        if planned.drops_deletes:
            rows = {key: (sequence, gone) for key, (sequence, gone) in rows.items() if not gone}
        self.files[first:] = [self.hold(rows, planned.level)] if rows else []

    @property
    def bucket(self) -> BucketFiles:
        return BucketFiles(partition=(), bucket=0, files=tuple(held.file for held in self.files))

    @invariant()
    def what_is_read_stays_the_same(self) -> None:
        rows: dict[int, tuple[int, bool]] = {}
        for held in self.files:
            for key, row in held.rows.items():
                rows[key] = max(row, rows.get(key, row))
        assert {key: sequence for key, (sequence, gone) in rows.items() if not gone} == self.expected


Buckets.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestBuckets = Buckets.TestCase


class Histories(RuleBasedStateMachine):
    """A table without a key: its rows keep their order."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[DataFile, list[int]]] = []
        self.rows = self.made = 0

    @rule(sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5))
    def commit(self, sizes: list[int]) -> None:
        for size in sizes:
            self.hold(len(self.files), list(range(self.rows, self.rows + size)))
            self.rows += size

    def hold(self, at: int, rows: list[int]) -> None:
        self.made += 1
        file = DataFile(name=f"f{self.made}", level=0, size_bytes=len(rows), rows=len(rows), deletes=0, created_ms=0)
        self.files.insert(at, (file, rows))

    @rule(rules=RULES, full=st.booleans())
    def merge(self, rules: CompactionRules, full: bool) -> None:
        bucket = BucketFiles(partition=(), bucket=0, files=tuple(file for file, _ in self.files))
        planned = plan_merge(bucket, rules, keyed=False, full=full)
        if planned is None:
            return
        names = [file.name for file, _ in self.files]
        first = names.index(planned.inputs[0])
        assert tuple(names[first : first + len(planned.inputs)]) == planned.inputs, "neighbours"
        taken = self.files[first : first + len(planned.inputs)]
        assert all(file.size_bytes * 2 < rules.file_bytes for file, _ in taken)
        self.files[first : first + len(planned.inputs)] = []
        self.hold(first, [row for _, rows in taken for row in rows])

    @invariant()
    def rows_keep_their_order(self) -> None:
        assert [row for _, rows in self.files for row in rows] == list(range(self.rows))


TestHistories = Histories.TestCase
