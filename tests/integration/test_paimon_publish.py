"""Snapshots of rewrites: put on top of whatever is newest, once, or not at all; and our own commits above and below them."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from snowmelt.commit.records import Staged
from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.maintenance.files import Rewrite
from snowmelt.model.numbers import GenerationNumber
from snowmelt.sinks.maintenance import GivenUp
from snowmelt.sinks.paimon import manifests as paimon_manifests
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.references import referenced_paths
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.local import LocalStore
from tests.integration.java_paimon import java_paimon
from tests.integration.maintained import GENERATION, LEVEL, compact_all, open_care, prefix_of, rewrite_of, rewrites_of
from tests.integration.paimon_tables import (
    KEYED,
    PLAIN,
    SCHEMA,
    Committer,
    Process,
    bring,
    compact,
    entry_of,
    epochs_of,
    expire,
    folder,
    foreign_commit,
    intent_of,
    make_tables,
    prepare,
    read,
    snapshots,
    stage,
    stop_before_publish,
)


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


@pytest.fixture
def care(tmp_path: Path, lake: PaimonSink) -> PaimonMaintenance:
    return open_care(tmp_path)


def _staged(
    care: PaimonMaintenance, target: str = KEYED, *, generation: GenerationNumber = GENERATION
) -> tuple[list[Rewrite], list[Staged]]:
    work = rewrites_of(care, target)
    return work, [care.rewrite(one, prefix_of(generation)) for one in work]


def _given_up(
    care: PaimonMaintenance,
    lake: PaimonSink,
    work: Sequence[Rewrite],
    staged: Sequence[Staged],
    *,
    generation: GenerationNumber = GENERATION,
) -> str:
    """Why; and nothing has changed."""
    rows, count = read(lake, work[0].target), len(snapshots(lake, work[0].target))
    result = care.publish(work, staged, generation=generation)
    assert isinstance(result, GivenUp)
    assert read(lake, work[0].target) == rows
    assert len(snapshots(lake, work[0].target)) == count
    return result.why


# ---- what the snapshot carries


def test_the_snapshot_carries_our_marker_and_the_watermark_on(lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in (1, 2):
        entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, str(epoch), 2 * epoch), (2, "x", 2 * epoch)], number=epoch))
        lake.commit(intent_of(epoch, entry), entry, watermark_ms=1000 + epoch)
    before, sequence_max_before = lake.newest_commit(KEYED)
    number, _ = compact_all(care, KEYED)
    newest = snapshots(lake, KEYED)[-1]
    assert (newest.id, newest.commit_kind, newest.watermark, newest.total_record_count) == (number, "COMPACT", 1002, 2)
    marker, sequence_max = lake.newest_commit(KEYED)
    assert before is not None
    assert isinstance(number, int)
    assert (marker, sequence_max) == (replace(before, snapshot=number), sequence_max_before)
    assert newest.commit_user != snapshots(lake, KEYED)[0].commit_user


def test_our_commits_go_on_above_a_compaction(lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in range(1, 20):
        bring(lake, epoch, KEYED, (1, str(epoch), 2 * epoch), (epoch, "x" if epoch % 3 else None, 2 * epoch))
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
        rows = read(lake, KEYED)
        if epoch % 4 == 0:
            compact_all(care, KEYED)
            compact_all(care, PLAIN)
        assert read(lake, KEYED) == rows
    assert epochs_of(lake, KEYED) == sorted([*range(1, 20), 4, 8, 12, 16])
    assert [row[0] for row in read(lake, PLAIN)] == list(range(1, 20))


def test_an_intent_that_is_repeated_above_a_compaction_is_in_the_lake_also_when_its_files_are_gone(
    lake: PaimonSink, care: PaimonMaintenance
) -> None:
    """A driver died between the commit and its done record. While it was down its files were compacted, and expired."""
    bring(lake, 1, KEYED, (1, "one", 2))
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, "two", 4), (2, "two", 4)], number=2))
    intent = intent_of(2, entry)
    lake.commit(intent, entry)
    number, _ = compact_all(care, KEYED)
    assert isinstance(number, int)
    assert lake.commit(intent, entry) == number
    expire(lake, KEYED, 1, 2)
    lake.delete(KEYED, entry.files)
    assert lake.commit(intent, entry) == number
    assert lake.tag(KEYED, "two", number, intent.identity) == number
    bring(lake, 3, KEYED, (3, "three", 6))
    assert read(lake, KEYED) == [(1, "two", 4), (2, "two", 4), (3, "three", 6)]


def test_an_intent_written_before_a_compaction_is_committed_above_it(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "one", 2))
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, "two", 4)], number=2))
    compact_all(care, KEYED)
    assert lake.commit(intent_of(2, entry), entry) == 3
    assert read(lake, KEYED) == [(1, "two", 4)]


# ---- lost answers


def test_after_a_lost_answer_the_same_call_tells(lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch) -> None:
    bring(lake, 1, KEYED, (1, "one", 2), (2, "two", 2))
    bring(lake, 2, KEYED, (1, "two", 4))
    work, staged = _staged(care)
    real = LocalStore.put_if_absent

    def lost(self: LocalStore, key: str, value: bytes) -> bool:
        real(self, key, value)
        monkeypatch.setattr(LocalStore, "put_if_absent", real)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(LocalStore, "put_if_absent", lost)
    assert care.publish(work, staged, generation=GENERATION) == 3
    assert care.publish(work, staged, generation=GENERATION) == 3
    assert len(snapshots(lake, KEYED)) == 3
    bring(lake, 3, KEYED, (2, None, 6))
    again, outputs = _staged(care)
    assert care.publish(again, outputs, generation=GENERATION) == 5
    # Its outputs are in no newest snapshot any more.
    assert care.publish(work, staged, generation=GENERATION) == 3
    bring(lake, 4, KEYED, (9, "x", 8))
    lake.table(KEYED).create_tag("old", 3)
    expire(lake, KEYED, 1, 2, 3)
    # No snapshot tells, and the tag has the outputs: they are not to be deleted.
    assert care.publish(work, staged, generation=GENERATION) == 6
    lake.table(KEYED).delete_tag("old")
    expire(lake, KEYED, 4)
    assert "input" in _given_up(care, lake, work, staged)


# ---- given up


def _unknown_manifests(lake: PaimonSink, target: str) -> set[str]:
    there = {f"manifest/{path.name}" for path in (folder(lake, target) / "manifest").iterdir()}
    return there - referenced_paths(lake.table(target), metadata=True)


def test_a_try_that_another_writer_was_faster_than_leaves_no_manifest(
    lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, others = LocalStore.put_if_absent, [lambda: compact_all(care, KEYED)]

    def be_late(store: LocalStore, name: str, data: bytes) -> bool:
        if name.startswith("snapshot/") and others:
            others.pop()()
        return put(store, name, data)

    # As many as make a commit merge manifests.
    for epoch in range(1, 18):
        bring(lake, epoch, KEYED, (1, "a", 2 * epoch), (2, "b", 2 * epoch))
    monkeypatch.setattr(LocalStore, "put_if_absent", be_late)
    bring(lake, 18, KEYED, (1, "c", 36))
    assert not others
    assert [one.commit_kind for one in snapshots(lake, KEYED)[-2:]] == ["COMPACT", "APPEND"]
    assert not _unknown_manifests(lake, KEYED)


def test_manifests_of_a_snapshot_that_is_there_stay_although_its_answer_was_that_it_is_not_ours(
    lake: PaimonSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that repeats a request whose reply was lost meets its own snapshot."""
    put, lost = LocalStore.put_if_absent, [True]

    def meet_oneself(store: LocalStore, name: str, data: bytes) -> bool:
        return put(store, name, data) and not (name.startswith("snapshot/") and lost and lost.pop())

    monkeypatch.setattr(LocalStore, "put_if_absent", meet_oneself)
    bring(lake, 1, KEYED, (1, "a", 2))
    bring(lake, 2, KEYED, (2, "b", 4))
    assert not lost
    assert len(snapshots(lake, KEYED)) == 2
    assert [row[:2] for row in read(lake, KEYED)] == [(1, "a"), (2, "b")]


def test_a_compaction_is_not_published_over_a_truncate(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2), (2, "x", 2))
    work, staged = _staged(care)
    bring(lake, 2, KEYED, (3, "new", 4), empties=["shop.orders"])
    assert "input" in _given_up(care, lake, work, staged)
    assert read(lake, KEYED) == [(3, "new", 4)]


def test_of_two_compactions_of_the_same_files_one_is_published(lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in (1, 2, 3):
        bring(lake, epoch, KEYED, (1, str(epoch), 2 * epoch), (2, "x", 2 * epoch))
    one, other = _staged(care), _staged(care)
    assert isinstance(care.publish(*one, generation=GENERATION), int)
    assert "input" in _given_up(care, lake, *other)
    bring(lake, 4, PLAIN, (1, "x", 2))
    compact(lake, KEYED)
    assert "input" in _given_up(care, lake, *other)


def test_javas_compaction_wins_where_it_came_first(tmp_path: Path, lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in (1, 2, 3):
        bring(lake, epoch, KEYED, (1, str(epoch), 2 * epoch), (2, "x", 2 * epoch))
    work, staged = _staged(care)
    rows = read(lake, KEYED)
    with java_paimon(tmp_path / "spilled") as java:
        java.compact_and_expire(tmp_path, KEYED, retained=10)
        _given_up(care, lake, work, staged)
        assert sorted(java.read(tmp_path, KEYED, ["id", "v", "_seq"])) == [list(row) for row in rows]
    # Foreign snapshots carry no marker. Ours is below.
    bring(lake, 4, KEYED, (1, "4", 8))
    assert isinstance(compact_all(care, KEYED)[0], int)


def test_a_table_that_was_made_anew_gets_no_files_of_the_old(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2))
    work, staged = _staged(care)
    lake.remake(KEYED, SCHEMA, ["id"], buckets=2, identity=lake.identity(KEYED))
    bring(lake, 1, KEYED, (1, "y", 2))
    assert _given_up(care, lake, work, staged) == "the table is another one"


def _publish_late(warehouse: str, work: list[Rewrite], staged: list[Staged], pipe: Connection) -> None:
    care = open_care(warehouse)
    pipe.send("ready")
    pipe.recv()
    stop_before_publish()
    pipe.send(care.publish(work, staged, generation=GENERATION))


@pytest.mark.parametrize("of", ["a rewrite", "an epoch"])
def test_a_table_that_was_made_anew_gets_no_snapshot_of_a_process_that_slept(
    tmp_path: Path, lake: PaimonSink, care: PaimonMaintenance, of: str
) -> None:
    """It had judged the table of before. The number of its snapshot is free in the new one."""
    for epoch in (1, 2):
        bring(lake, epoch, KEYED, (1, "old", 2 * epoch))
    work, staged = _staged(care)
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, "older", 6)], number=3))
    late = partial(_publish_late, str(tmp_path), work, staged)
    with Process(late) if of == "a rewrite" else Committer(tmp_path, [intent_of(3, entry)], stop_before_publish) as zombie:
        zombie.go()
        zombie.await_stop()
        lake.remake(KEYED, SCHEMA, ["id"], buckets=2, identity=lake.identity(KEYED))
        for epoch in (4, 5):
            bring(lake, epoch, KEYED, (1, "new", 2 * epoch))
        zombie.signal(signal.SIGCONT)
        told = zombie.hear()
    assert told == GivenUp("the table is another one") if of == "a rewrite" else "identity" in str(told)
    assert [snapshot.id for snapshot in snapshots(lake, KEYED)] == [1, 2]
    assert read(lake, KEYED) == [(1, "new", 10)]
    bring(lake, 6, KEYED, (2, "new", 12))
    assert read(lake, KEYED) == [(1, "new", 10), (2, "new", 12)]


def test_a_zombie_compactor_gives_up_once_a_newer_driver_has_committed(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2))
    work, staged = _staged(care)
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(5, "y", 4)], number=2, generation=2))
    lake.commit(intent_of(2, entry, generation=2), entry)
    assert "newer driver" in _given_up(care, lake, work, staged, generation=GENERATION)
    # Another program's snapshot hides it from the newest alone.
    foreign_commit(lake, PLAIN, (1, "x", 2))
    compact(lake, KEYED)
    again, outputs = _staged(care)
    assert "newer driver" in _given_up(care, lake, again, outputs, generation=GENERATION)
    assert isinstance(care.publish(again, outputs, generation=GenerationNumber(2)), int)


def test_files_of_a_newer_driver_fence_where_its_snapshots_tell_nothing(lake: PaimonSink, care: PaimonMaintenance) -> None:
    staged_new = stage(lake, KEYED, [(5, "y", 4)], number=2, generation=2)
    entry = entry_of(lake, KEYED, staged_new)
    lake.commit(intent_of(1, entry, generation=2), entry)
    work, staged = _staged(care)
    path = folder(lake, KEYED) / "snapshot" / "snapshot-1"
    told = json.loads(path.read_text())
    told["properties"] = {"other": "program"}
    path.write_text(json.dumps(told))
    assert "newer driver's files" in _given_up(care, lake, work, staged, generation=GENERATION)


def test_without_a_marker_that_can_be_found_nothing_is_published_and_nothing_is_given_up(lake: PaimonSink, care: PaimonMaintenance) -> None:
    """A try whose answer was lost lands after another program expired our marker's snapshot: the outputs must still be there."""
    bring(lake, 1, KEYED, (1, "x", 2))
    compact(lake, KEYED)
    work, staged = _staged(care)
    expected, real, under_way = read(lake, KEYED), LocalStore.put_if_absent, list[tuple[LocalStore, str, bytes]]()

    def time_out(store: LocalStore, key: str, value: bytes) -> bool:
        under_way.append((store, key, value))
        expire(lake, KEYED, 1)
        raise OutcomeUnknown("no answer came")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", time_out)
        with pytest.raises(Unavailable, match="which driver has committed last"):
            care.publish(work, staged, generation=GENERATION)
    assert [snapshot.id for snapshot in snapshots(lake, KEYED)] == [2]
    [(store, key, value)] = under_way
    assert real(store, key, value), "the create lands"
    assert care.publish(work, staged, generation=GENERATION) == 3
    assert read(lake, KEYED) == expected
    # Where it never lands, our next commit tells.
    bring(lake, 2, KEYED, (1, "y", 4))
    compact(lake, KEYED)
    expire(lake, KEYED, 2, 3, 4)
    work, staged = _staged(care)
    with pytest.raises(Unavailable, match="which driver has committed last"):
        care.publish(work, staged, generation=GENERATION)
    bring(lake, 3, KEYED, (2, "z", 6))
    assert isinstance(care.publish(work, staged, generation=GENERATION), int)
    assert [row[:2] for row in read(lake, KEYED)] == [(1, "y"), (2, "z")]


def test_an_output_that_a_cleaner_took_is_not_published(lake: PaimonSink, care: PaimonMaintenance) -> None:
    bring(lake, 1, KEYED, (1, "x", 2))
    work, staged = _staged(care)
    lake.delete(KEYED, staged[0].files)
    assert _given_up(care, lake, work, staged) == "an output is gone"


def test_files_of_one_level_never_overlap(lake: PaimonSink, care: PaimonMaintenance) -> None:
    """Readers take the files of a level above 0 for one sorted run."""
    for epoch in range(1, 5):
        bring(lake, epoch, KEYED, *[(key, str(epoch), 2 * epoch) for key in range(1, 9)])
    files = care.files(KEYED)
    names = [file.name for file in files.buckets[0].files]
    work = [rewrite_of(files, KEYED, 0, part, level=LEVEL) for part in (names[:2], names[2:])]
    staged = [care.rewrite(one, prefix_of()) for one in work]
    assert isinstance(care.publish(work[:1], staged[:1], generation=GENERATION), int)
    assert "same keys" in _given_up(care, lake, work[1:], staged[1:])


# ---- manifests


def test_what_compactions_removed_does_not_stay_in_the_manifests(
    lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paimon_manifests, "_LARGE", 32)
    counts = []
    for epoch in range(1, 121):
        bring(lake, epoch, KEYED, *[(key, str(epoch), 2 * epoch) for key in range(6)])
        if epoch % 6 == 0:
            compact_all(care, KEYED)
            newest = snapshots(lake, KEYED)[-1]
            metas = _metas(lake, newest)
            counts.append(sum(meta.num_added_files + meta.num_deleted_files for meta in metas))
    # What was added and removed is twice the limit, and what the newest commits have.
    assert max(counts) < 110
    assert min(counts[10:]) < 40
    assert [row[1] for row in read(lake, KEYED)] == ["120"] * 6


def _metas(lake: PaimonSink, snapshot: Any) -> list[Any]:
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    found: list[Any] = ManifestListManager(lake.table(KEYED)).read_all(snapshot)
    return found


# ---- races

EPOCHS = 100


def _compact_until_told(warehouse: str, seed: int, pipe: Connection) -> None:
    """Some files of some buckets, again and again; how often it was published and given up."""
    care, chance, counts = open_care(warehouse), random.Random(seed), {"published": 0, "given up": 0}
    for first in rewrites_of(care, KEYED):
        care.rewrite(first, prefix_of())
    pipe.send("ready")
    pipe.recv()
    deadline = time.monotonic() + 300
    while not pipe.poll() and time.monotonic() < deadline:
        target = chance.choice([KEYED, PLAIN])
        files = care.files(target)
        work: list[Rewrite] = []
        for place, bucket in enumerate(files.buckets):
            names = [file.name for file in bucket.files]
            if len(names) > 1:
                whole = chance.random() < 0.5
                first = 0 if whole else chance.randrange(len(names) - 1)
                last = len(names) if whole else chance.randrange(first + 2, len(names) + 1)
                work.append(rewrite_of(files, target, place, names[first:last], level=LEVEL if whole else 0))
        if work:
            result = care.publish(work, [care.rewrite(one, prefix_of()) for one in work], generation=GENERATION)
            counts["given up" if isinstance(result, GivenUp) else "published"] += 1
    pipe.send(counts)


def test_two_compactors_and_a_pipeline_lose_nothing_and_bring_nothing_twice(tmp_path: Path, lake: PaimonSink) -> None:
    intents = prepare(lake, range(1, EPOCHS + 1))
    for entry in intents[0].entries:
        lake.commit(intents[0], entry)
    with (
        Committer(tmp_path, intents[1:]) as committer,
        Process(partial(_compact_until_told, str(tmp_path), 1)) as one,
        Process(partial(_compact_until_told, str(tmp_path), 2)) as other,
    ):
        for process in (one, other, committer):
            process.go()
        assert committer.hear_all() == [*range(2, EPOCHS + 1), "end"]
        for process in (one, other):
            process.go()
        told = [one.hear(), other.hear()]
    assert min(counts["published"] for counts in told) > 0
    assert sum(counts["given up"] for counts in told) > 0
    last = str(EPOCHS)
    assert read(lake, KEYED) == [(0, last, 2 * EPOCHS), (1, last, 2 * EPOCHS), (EPOCHS + 10, last, 2 * EPOCHS)]
    assert sorted(read(lake, PLAIN)) == [(epoch, str(epoch), 2 * epoch) for epoch in range(1, EPOCHS + 1)]
    ours = [snapshot for snapshot in snapshots(lake, PLAIN) if snapshot.commit_kind == "APPEND"]
    assert [int(snapshot.properties["snowmelt.epoch"]) for snapshot in ours] == list(range(1, EPOCHS + 1))
    assert epochs_of(lake, PLAIN) == sorted(epochs_of(lake, PLAIN))
    # The order of rows is that of epochs, whatever was compacted meanwhile.
    care = open_care(tmp_path)
    compact_all(care, PLAIN)
    assert [row[0] for row in read(lake, PLAIN)] == list(range(1, EPOCHS + 1))
