"""Snapshots that go, and files that nothing refers to: whatever is left is whole for every reader, and nothing else is left."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from snowmelt.errors import InvalidConfig, InvariantBroken, SnowmeltError
from snowmelt.maintenance.expiry import ExpiryRules, plan_expiry
from snowmelt.sinks.maintenance import Expired
from snowmelt.sinks.paimon import references, tiering
from snowmelt.sinks.paimon import table as paimon_table
from snowmelt.sinks.paimon.maintenance import expiry as paimon_expiry
from snowmelt.sinks.paimon.maintenance import orphans as paimon_orphans
from snowmelt.sinks.paimon.maintenance.care import PaimonMaintenance
from snowmelt.sinks.paimon.references import changelog_paths, referenced_paths
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.writer import PaimonWriter
from tests.integration.java_paimon import java_paimon
from tests.integration.maintained import GENERATION, compact_all, expire_seen, newest_epoch, open_care, prefix_of, rewrites_of
from tests.integration.paimon_tables import (
    KEYED,
    PLAIN,
    SCHEMA,
    DieAtStep,
    Process,
    Row,
    alter,
    batch,
    bring,
    compact,
    entry_of,
    folder,
    intent_of,
    make_tables,
    open_sink,
    read,
    read_with,
    snapshots,
    stage,
)

NEVER = 2**62


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


@pytest.fixture
def care(tmp_path: Path, lake: PaimonSink) -> PaimonMaintenance:
    return open_care(tmp_path)


def _bring(lake: PaimonSink, care: PaimonMaintenance, epochs: range, *, compacted: bool = True) -> None:
    for epoch in epochs:
        bring(lake, epoch, KEYED, *[(key, str(epoch) if (key + epoch) % 5 else None, 2 * epoch) for key in range(epoch % 3, 12, 3)])
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
        if compacted and epoch % 4 == 0:
            for target in (KEYED, PLAIN):
                compact_all(care, target)


def _let_go(lake: PaimonSink, target: str) -> None:
    """What a driver of ours does at its next commits: its consumer holds nothing old any more."""
    for path in (folder(lake, target) / "consumer").glob("consumer-*"):
        path.unlink()


def _numbers(care: PaimonMaintenance, target: str) -> list[int]:
    return [facts.number for facts in care.history(target).snapshots]


def _rows_at(lake: PaimonSink, target: str) -> dict[int, list[Row]]:
    """What each snapshot has."""
    return {snapshot.id: sorted(read_with(lake, target, {"scan.snapshot-id": str(snapshot.id)})) for snapshot in snapshots(lake, target)}


def _there(lake: PaimonSink, target: str) -> set[str]:
    root = folder(lake, target)
    found = [*root.glob("bucket-*/*"), *root.glob("manifest/*")]
    return {str(path.relative_to(root)) for path in found}


def _orphans(care: PaimonMaintenance, target: str, ours: Callable[[str], bool] = lambda _: False) -> set[str]:
    return set(care.orphans(target, before_ms=NEVER, ours=ours))


# ---- history


def test_history_names_the_epochs_that_snapshots_have_and_who_holds_them(lake: PaimonSink, care: PaimonMaintenance) -> None:
    assert care.history(KEYED).snapshots == ()
    _bring(lake, care, range(1, 6))
    history = care.history(KEYED)
    assert [(facts.number, facts.epoch) for facts in history.snapshots] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 5)]
    assert [facts.time_ms for facts in history.snapshots] == [snapshot.time_millis for snapshot in snapshots(lake, KEYED)]
    assert history.held_from == 1
    _let_go(lake, KEYED)
    assert care.history(KEYED).held_from is None
    (folder(lake, KEYED) / "consumer" / "consumer-reader").write_text('{"nextSnapshot": 3}')
    assert care.history(KEYED).held_from == 3
    (folder(lake, KEYED) / "consumer" / "consumer-cut").write_text('{"nextSn')
    assert care.history(KEYED).held_from == 1


def test_of_tiering_the_last_two_rounds_are_held(lake: PaimonSink, care: PaimonMaintenance) -> None:
    for epoch in range(1, 7):
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
    _let_go(lake, PLAIN)
    for number in (2, 3, 5):
        path = folder(lake, PLAIN) / "snapshot" / f"snapshot-{number}"
        path.write_text(json.dumps({**json.loads(path.read_text()), "commitUser": tiering.USER}))
    assert care.history(PLAIN).held_from == 3
    assert expire_seen(care, PLAIN, [1, 2, 3, 4]).snapshots == 2


# ---- expiry


@pytest.mark.parametrize("seed", range(3))
def test_after_an_expiry_what_is_left_is_whole_and_nothing_else_is_left(lake: PaimonSink, care: PaimonMaintenance, seed: int) -> None:
    chance = random.Random(seed)
    tagged: dict[str, dict[str, list[Row]]] = {KEYED: {}, PLAIN: {}}
    for first in range(1, 25, 8):
        _bring(lake, care, range(first, first + 8))
        for target in (KEYED, PLAIN):
            if chance.random() < 0.6:
                at = chance.choice(_numbers(care, target))
                name = f"t{first}"
                lake.table(target).create_tag(name, at)
                tagged[target][name] = sorted(read_with(lake, target, {"scan.tag-name": name}))
            if tagged[target] and chance.random() < 0.3:
                name = chance.choice(sorted(tagged[target]))
                lake.table(target).delete_tag(name)
                del tagged[target][name]
                # What it alone had is for the search for orphans.
                care.delete(target, _orphans(care, target))
            _let_go(lake, target)
            rows, numbers = _rows_at(lake, target), _numbers(care, target)
            gone = numbers[: chance.randrange(len(numbers))]
            expired = expire_seen(care, target, gone)
            assert expired.snapshots == len(gone)
            assert _rows_at(lake, target) == {number: found for number, found in rows.items() if number not in gone}
            for name, found in tagged[target].items():
                assert sorted(read_with(lake, target, {"scan.tag-name": name})) == found
            assert _there(lake, target) == referenced_paths(lake.table(target), metadata=True)
            assert _orphans(care, target) == set()


def test_what_an_expiry_tells_is_what_it_removed(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 9))
    _let_go(lake, KEYED)
    root = folder(lake, KEYED)
    before = {path: (root / path).stat().st_size for path in _there(lake, KEYED)}
    numbers = _numbers(care, KEYED)
    assert expire_seen(care, KEYED, numbers[:-1]).snapshots == len(numbers) - 1
    _bring(lake, care, range(9, 10))
    told = expire_seen(care, KEYED, [])
    assert told == Expired(snapshots=0, files=0, size_bytes=0)
    _let_go(lake, KEYED)
    before |= {path: (root / path).stat().st_size for path in _there(lake, KEYED)}
    kept = _there(lake, KEYED)
    told = expire_seen(care, KEYED, _numbers(care, KEYED)[:-1])
    removed = kept - _there(lake, KEYED)
    assert (told.files, told.size_bytes) == (len(removed), sum(before[path] for path in removed))
    assert expire_seen(care, KEYED, _numbers(care, KEYED)[:-1]).snapshots == 0


def test_the_newest_and_our_newest_marker_and_what_is_held_stay_whatever_is_asked(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 8), compacted=False)
    compact(lake, KEYED)
    compact(lake, KEYED)
    _let_go(lake, KEYED)
    (folder(lake, KEYED) / "consumer").mkdir(exist_ok=True)
    reader = folder(lake, KEYED) / "consumer" / "consumer-reader"
    reader.write_text('{"nextSnapshot": 3}')
    assert expire_seen(care, KEYED, _numbers(care, KEYED)).snapshots == 2
    reader.unlink()
    # The newest that names an epoch of ours is 7; 8 and 9 are another program's.
    assert expire_seen(care, KEYED, _numbers(care, KEYED)).snapshots == 4
    assert _numbers(care, KEYED) == [7, 8, 9]
    assert expire_seen(care, KEYED, [8]).snapshots == 0
    bring(lake, 8, KEYED, (1, "y", 16))
    _let_go(lake, KEYED)
    assert expire_seen(care, KEYED, [7, 8, 9, 10]).snapshots == 3
    assert _numbers(care, KEYED) == [10]
    assert newest_epoch(lake, KEYED) == 8


def test_a_holder_that_came_after_the_plan_keeps_its_snapshots(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 8))
    _let_go(lake, KEYED)
    plan = plan_expiry(care.history(KEYED), ExpiryRules(count_min=1, age_ms=0), now_ms=int(time.time() * 1000) + 60_000)
    assert len(plan) == len(_numbers(care, KEYED)) - 1
    (folder(lake, KEYED) / "consumer" / "consumer-reader").write_text('{"nextSnapshot": 4}')
    assert expire_seen(care, KEYED, plan).snapshots == 3
    assert _numbers(care, KEYED)[0] == 4


def test_our_own_expiry_keeps_what_an_open_intent_needs(lake: PaimonSink, care: PaimonMaintenance) -> None:
    """The driver died between a commit and its done record; what it asks after is told by the snapshots that its consumer holds."""
    _bring(lake, care, range(1, 6), compacted=False)
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, "z", 12)], number=6))
    intent = intent_of(6, entry)
    number = lake.commit(intent, entry)
    compact_all(care, KEYED)
    expire_seen(care, KEYED, _numbers(care, KEYED))
    assert newest_epoch(lake, KEYED) == 6
    assert lake.commit(intent, entry) in (number, number + 1)
    assert sum(row[0] == 1 for row in read(lake, KEYED)) == 1


@pytest.mark.parametrize("kind", ["tag of a tag", "snapshot"])
def test_a_branch_keeps_what_it_has(lake: PaimonSink, care: PaimonMaintenance, kind: str) -> None:
    _bring(lake, care, range(1, 4), compacted=False)
    table = lake.table(KEYED)
    table.create_tag("kept")
    table.branch_manager().create_branch("side", "kept")
    rows = read(lake, KEYED)
    if kind == "snapshot":
        table.delete_tag("kept")
    _bring(lake, care, range(4, 9))
    _let_go(lake, KEYED)
    expire_seen(care, KEYED, _numbers(care, KEYED)[:-1])
    assert _orphans(care, KEYED) == set()
    builder = lake._catalog.get_table(f"{KEYED}$branch_side").new_read_builder()
    found = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    assert sorted(zip(*(found.column(name).to_pylist() for name in ("id", "v", "_seq")), strict=True)) == rows


def test_java_reads_and_expires_what_we_expired(tmp_path: Path, lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 12))
    _let_go(lake, KEYED)
    expire_seen(care, KEYED, _numbers(care, KEYED)[:6])
    rows = [list(row) for row in read(lake, KEYED)]
    with java_paimon(tmp_path / "spilled") as java:
        table = java._table(tmp_path, KEYED)
        assert table.snapshotManager().earliestSnapshotId() == _numbers(care, KEYED)[0]
        assert sorted(java.read(tmp_path, KEYED, ["id", "v", "_seq"])) == rows
        java.compact_and_expire(tmp_path, KEYED, retained=2)
        assert len(_numbers(care, KEYED)) == 2
        assert sorted(java.read(tmp_path, KEYED, ["id", "v", "_seq"])) == rows
        # We go on where it stopped.
        bring(lake, 12, KEYED, (1, "w", 24))
        _let_go(lake, KEYED)
        expire_seen(care, KEYED, _numbers(care, KEYED)[:-1])
        assert sorted(java.read(tmp_path, KEYED, ["id", "v", "_seq"])) == [list(row) for row in read(lake, KEYED)]
    assert _orphans(care, KEYED) == set()


def test_changelog_files_go_with_their_snapshots(tmp_path: Path) -> None:
    lake, care = open_sink(tmp_path), open_care(tmp_path)
    lake.create(KEYED, SCHEMA, ["id"], buckets=2, options={"changelog-producer": "input"})
    for epoch in range(1, 9):
        # As the writers of tiering are. One of a pipeline leaves no changelog.
        writer = PaimonWriter(lake.table(KEYED), "tiering", sequenced=False)
        writer.write(batch([(key, str(epoch), 2 * epoch) for key in range(4)], keyed=True))
        entry = entry_of(lake, KEYED, writer.finish())
        lake.commit(intent_of(epoch, entry), entry)
    compact_all(care, KEYED)
    bring(lake, 9, KEYED, (1, "x", 18))
    brought = {snapshot.id: changelog_paths(lake.table(KEYED), snapshot) for snapshot in snapshots(lake, KEYED)}
    lake.table(KEYED).create_tag("kept", 2)
    _let_go(lake, KEYED)
    numbers = _numbers(care, KEYED)
    expire_seen(care, KEYED, numbers[:-1])
    assert _there(lake, KEYED) == referenced_paths(lake.table(KEYED), metadata=True)
    changelogs = set[str]().union(*brought.values())
    assert _there(lake, KEYED) & changelogs == brought[2]
    assert len(changelogs) > len(brought[2]) > 0


def test_changelogs_that_outlive_their_snapshots_are_left_to_others(lake: PaimonSink, care: PaimonMaintenance) -> None:
    from pypaimon.schema.schema_change import SchemaChange

    _bring(lake, care, range(1, 4))
    alter(lake, KEYED, SchemaChange.set_option("changelog.time-retained", "1 d"))
    for call in (lambda: expire_seen(care, KEYED, [1]), lambda: _orphans(care, KEYED)):
        with pytest.raises(InvalidConfig, match="changelogs"):
            call()


@pytest.mark.parametrize("when", ["after the plan", "before the first goes"])
def test_an_expiry_takes_nothing_of_a_table_that_was_made_anew_meanwhile(
    lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its snapshots have the numbers of those that were to go."""
    _bring(lake, care, range(1, 9), compacted=False)
    _let_go(lake, KEYED)
    history = care.history(KEYED)
    numbers = [facts.number for facts in history.snapshots][:-1]

    def remake() -> None:
        lake.remake(KEYED, SCHEMA, ["id"], buckets=2)
        for epoch in (9, 10, 11):
            bring(lake, epoch, KEYED, (epoch, "new", 2 * epoch))
        _let_go(lake, KEYED)

    if when == "after the plan":
        remake()
    else:
        real = paimon_expiry._going

        def slow(*args: Any) -> Any:
            found = real(*args)
            remake()
            return found

        monkeypatch.setattr(paimon_expiry, "_going", slow)
    assert care.expire(KEYED, numbers, identity=history.identity) == Expired(snapshots=0, files=0, size_bytes=0)
    assert _numbers(care, KEYED) == [1, 2, 3]
    assert not (folder(lake, KEYED) / "snapshot" / "EARLIEST").exists()
    assert read(lake, KEYED) == [(epoch, "new", 2 * epoch) for epoch in (9, 10, 11)]


def test_what_is_referred_to_is_found_though_all_snapshots_that_were_listed_expire_meanwhile(
    lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep, or a search for orphans, was paused for as long as snapshots are kept. Newer ones still have the old files."""
    _bring(lake, care, range(1, 4), compacted=False)
    _let_go(lake, KEYED)
    real, epochs = references.live_paths, iter((4, 6))

    def slow(table: Any, snapshot: Any) -> set[str]:
        first = next(epochs, None)
        if first is not None:
            listed = _numbers(care, KEYED)
            _bring(lake, care, range(first, first + 2), compacted=False)
            _let_go(lake, KEYED)
            assert expire_seen(care, KEYED, listed).snapshots == len(listed)
        return real(table, snapshot)

    monkeypatch.setattr(references, "live_paths", slow)
    found = lake.referenced(KEYED)
    assert next(epochs, None) is None
    monkeypatch.undo()
    live = {path.rpartition("/")[2] for path in references.live_paths(lake.table(KEYED), snapshots(lake, KEYED)[-1])}
    assert found >= live


# ---- kills


def _expire_all(warehouse: str, step: int, pipe: Connection) -> None:
    care = open_care(warehouse)
    numbers = _numbers(care, KEYED)[:-1]
    pipe.send("ready")
    pipe.recv()
    DieAtStep(step)()
    pipe.send(expire_seen(care, KEYED, numbers).snapshots)


def test_an_expiry_that_is_killed_at_any_step_leaves_orphans_and_never_holes(
    tmp_path: Path, lake: PaimonSink, care: PaimonMaintenance
) -> None:
    _bring(lake, care, range(1, 6))
    lake.table(KEYED).create_tag("kept", 2)
    kept = sorted(read_with(lake, KEYED, {"scan.tag-name": "kept"}))
    epoch, step, left = 6, 1, 0
    while True:
        _bring(lake, care, range(epoch, epoch + 2))
        epoch += 2
        _let_go(lake, KEYED)
        rows = _rows_at(lake, KEYED)
        with Process(partial(_expire_all, str(tmp_path), step)) as process:
            process.go()
            told = process.hear_all()
        assert {number: rows[number] for number in _rows_at(lake, KEYED)} == _rows_at(lake, KEYED)
        assert sorted(read_with(lake, KEYED, {"scan.tag-name": "kept"})) == kept
        assert referenced_paths(lake.table(KEYED), metadata=True) <= _there(lake, KEYED)
        found = _orphans(care, KEYED)
        left += bool(found)
        assert care.delete(KEYED, found) == len(found)
        assert _there(lake, KEYED) == referenced_paths(lake.table(KEYED), metadata=True)
        assert not [name for name in os.listdir(folder(lake, KEYED) / "snapshot") if name.startswith(".")]
        if told:
            break
        step += 1 if step < 8 else 5
    assert left > 2
    assert step > 8


def _rewrite_all(warehouse: str, step: int, pipe: Connection) -> None:
    care = open_care(warehouse)
    work = rewrites_of(care, KEYED)
    pipe.send("ready")
    pipe.recv()
    DieAtStep(step)()
    pipe.send(care.publish(work, [care.rewrite(one, prefix_of()) for one in work], generation=GENERATION))


def test_a_compaction_that_is_killed_at_any_step_is_done_or_is_not(tmp_path: Path, lake: PaimonSink, care: PaimonMaintenance) -> None:
    step, left = 1, 0
    _bring(lake, care, range(1, 4), compacted=False)
    while True:
        _bring(lake, care, range(3 + step, 4 + step), compacted=False)
        rows = read(lake, KEYED)
        with Process(partial(_rewrite_all, str(tmp_path), step)) as process:
            process.go()
            told = process.hear_all()
        assert read(lake, KEYED) == rows
        assert newest_epoch(lake, KEYED) == 3 + step
        found = _orphans(care, KEYED)
        left += bool(found)
        care.delete(KEYED, found)
        assert _there(lake, KEYED) == referenced_paths(lake.table(KEYED), metadata=True)
        if told:
            break
        step += 1 if step < 4 else 3
    assert left > 3


# ---- orphans


def test_orphans_are_old_files_that_nothing_refers_to(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 4))
    root = folder(lake, KEYED)
    strays = {f"bucket-0/{prefix_of()}x.parquet", "bucket-1/data-1-0.parquet", "manifest/manifest-stray-0", "snapshot/.snapshot-9.tmp"}
    for path in strays:
        (root / path).write_bytes(b"x")
        os.utime(root / path, (1_000_000, 1_000_000))
    young = "bucket-0/data-2-0.parquet"
    (root / young).write_bytes(b"x")
    hour_ago = int(time.time() * 1000) - 3_600_000
    assert set(care.orphans(KEYED, before_ms=hour_ago, ours=lambda _: False)) == strays
    assert set(care.orphans(KEYED, before_ms=hour_ago, ours=lambda name: name.startswith("sm-"))) == {
        path for path in strays if "sm-" not in path
    }
    assert _orphans(care, KEYED) == {*strays, young}
    before = _there(lake, KEYED)
    assert care.delete(KEYED, [*strays, "bucket-0/absent"]) == len(strays)
    assert _there(lake, KEYED) == before - strays
    for path in ("../orders/snapshot/snapshot-1", "snapshot", "/etc/passwd", "bucket-0/../schema/schema-0"):
        with pytest.raises(InvariantBroken):
            care.delete(KEYED, [path])


def test_references_that_cannot_be_read_stop_the_search(lake: PaimonSink, care: PaimonMaintenance) -> None:
    _bring(lake, care, range(1, 4))
    (folder(lake, KEYED) / "manifest" / snapshots(lake, KEYED)[1].delta_manifest_list).unlink()
    with pytest.raises(SnowmeltError):
        _orphans(care, KEYED)


def test_what_is_committed_while_orphans_are_searched_is_none(
    lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bring(lake, care, range(1, 3))
    staged = stage(lake, KEYED, [(7, "late", 9)], number=3)
    real = referenced_paths

    def brought_first(table: Any, **options: Any) -> set[str]:
        entry = entry_of(lake, KEYED, staged)
        lake.commit(intent_of(3, entry), entry)
        return real(table, **options)

    monkeypatch.setattr(paimon_orphans, "referenced_paths", brought_first)
    assert _orphans(care, KEYED) == set()


# ---- two at once


def test_an_expiry_beside_another_finds_nothing_to_do(lake: PaimonSink, care: PaimonMaintenance, monkeypatch: pytest.MonkeyPatch) -> None:
    _bring(lake, care, range(1, 9))
    _let_go(lake, KEYED)
    numbers = _numbers(care, KEYED)
    real = paimon_expiry.count_removable

    def other_first(*args: Any) -> int:
        monkeypatch.setattr(paimon_expiry, "count_removable", real)
        expire_seen(open_care(str(folder(lake, KEYED).parent.parent)), KEYED, numbers[:-1])
        return int(real(*args))

    monkeypatch.setattr(paimon_expiry, "count_removable", other_first)
    rows = read(lake, KEYED)
    expire_seen(care, KEYED, numbers[:-2])
    assert _numbers(care, KEYED) == numbers[-1:]
    assert read(lake, KEYED) == rows
    assert _orphans(care, KEYED) == set()
    assert paimon_table.latest_snapshot(lake.table(KEYED)).id == numbers[-1]
