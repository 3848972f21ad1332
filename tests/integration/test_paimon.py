"""Paimon tables by real pypaimon: what the simulated lake takes for granted, and each epoch once whatever happens."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.commit.cleaning import CleaningView, deletable
from snowmelt.commit.publish import EpochInLake, judge
from snowmelt.commit.records import StagedFor, StagedName
from snowmelt.errors import BEGIN_ANEW, Fenced, InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable
from snowmelt.sinks.paimon import references
from snowmelt.sinks.paimon import sink as paimon
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.store.local import LocalStore
from tests.integration.java_paimon import java_paimon
from tests.integration.paimon_tables import (
    KEYED,
    PLAIN,
    READERS,
    SCHEMA,
    Committer,
    DieAtStep,
    Row,
    alter,
    bring,
    check_prepared,
    compact,
    entry_of,
    epochs_of,
    expire,
    folder,
    foreign_commit,
    intent_of,
    make_tables,
    open_sink,
    own_commit,
    prepare,
    read,
    read_with,
    snapshots,
    stage,
    stop_before_publish,
    watch_steps,
)
from tests.kit.forked import forkserver


@pytest.fixture
def lake(tmp_path: Path) -> PaimonSink:
    return make_tables(tmp_path)


# ---- what the simulation takes for granted of a lake

LOW: Row = (1, "low", 10)
HIGH: Row = (1, "high", 20)
GONE: Row = (1, None, 30)


@pytest.mark.parametrize("order", list(permutations((LOW, HIGH))), ids=lambda order: "-".join(str(row[1]) for row in order))
@pytest.mark.parametrize("together", [True, False], ids=["staged-together", "staged-one-behind-the-other"])
def test_the_greatest_sequence_wins_whichever_was_staged_and_committed_first(
    lake: PaimonSink, order: tuple[Row, ...], together: bool
) -> None:
    if together:
        staged = [stage(lake, KEYED, [row], number=number) for number, row in enumerate(order, 1)]
        for epoch, part in enumerate(staged, 1):
            entry = entry_of(lake, KEYED, part)
            lake.commit(intent_of(epoch, entry), entry)
    else:
        for epoch, row in enumerate(order, 1):
            bring(lake, epoch, KEYED, row)
    assert read(lake, KEYED) == [HIGH]


@pytest.mark.parametrize("order", list(permutations((LOW, HIGH))), ids=lambda order: "-".join(str(row[1]) for row in order))
def test_the_greatest_sequence_wins_among_the_files_of_one_commit(lake: PaimonSink, order: tuple[Row, ...]) -> None:
    entry = entry_of(lake, KEYED, *(stage(lake, KEYED, [row]) for row in order))
    lake.commit(intent_of(1, entry), entry)
    assert read(lake, KEYED) == [HIGH]


@pytest.mark.parametrize("order", list(permutations((LOW, HIGH, GONE))), ids=lambda order: "-".join(str(row[1]) for row in order))
def test_a_delete_removes_what_is_below_it_whatever_the_order_of_commits(lake: PaimonSink, order: tuple[Row, ...]) -> None:
    for epoch, row in enumerate(order, 1):
        bring(lake, epoch, KEYED, row)
    assert read(lake, KEYED) == []
    bring(lake, 4, KEYED, (1, "again", 31))
    assert read(lake, KEYED) == [(1, "again", 31)]


def test_a_delete_with_a_lower_sequence_is_ignored(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, HIGH)
    bring(lake, 2, KEYED, (1, None, 15))
    assert read(lake, KEYED) == [HIGH]


def test_a_delete_that_compaction_has_forgotten_no_longer_keeps_lower_rows_out(lake: PaimonSink) -> None:
    """Therefore no commit may bring a row below a committed delete, unless that delete is in it again."""
    bring(lake, 1, KEYED, HIGH)
    bring(lake, 2, KEYED, GONE)
    bring(lake, 3, KEYED, LOW)
    assert read(lake, KEYED) == []
    compact(lake, KEYED)
    assert read(lake, KEYED) == []
    bring(lake, 4, KEYED, LOW)
    assert read(lake, KEYED) == [LOW]


def test_a_lower_sequence_loses_against_what_was_compacted(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, HIGH, (2, "other", 4))
    compact(lake, KEYED)
    bring(lake, 2, KEYED, LOW)
    assert read(lake, KEYED) == [HIGH, (2, "other", 4)]


def test_of_equal_sequences_in_one_writer_the_last_wins(lake: PaimonSink) -> None:
    staged = stage(lake, KEYED, [(1, "a", 10), (1, "b", 10)], [(1, "c", 10), (2, "x", 10)], [(2, None, 10), (3, None, 10), (3, "y", 10)])
    assert staged.rows == 7
    entry = entry_of(lake, KEYED, staged)
    lake.commit(intent_of(1, entry), entry)
    assert read(lake, KEYED) == [(1, "c", 10), (3, "y", 10)]


def test_a_row_without_a_sequence_is_refused_by_the_writer_itself(lake: PaimonSink) -> None:
    writer = lake.writer(KEYED, "sm-1-e1-a1-")
    columns = [pa.array([1]), pa.array(["x"]), pa.array([None], pa.int64()), pa.array([0], pa.int8())]
    with pytest.raises(InvariantBroken, match="rows do not fit"):
        writer.write(pa.record_batch(columns, names=["id", "v", "_seq", "_VALUE_KIND"]))


def _renaming(lake: PaimonSink, entry: Any, user: str) -> Callable[[], bool]:
    """One try by pypaimon's own publish, built on the newest snapshot of now."""
    from pypaimon.snapshot.renaming_snapshot_commit import RenamingSnapshotCommit
    from pypaimon.write.commit_message_serializer import deserialize_commit_message
    from pypaimon.write.file_store_commit import FileStoreCommit

    table = lake.table(entry.target)
    latest = table.snapshot_manager().get_latest_snapshot()
    commit = FileStoreCommit(RenamingSnapshotCommit(table.snapshot_manager()), table, user)
    messages = [deserialize_commit_message(m, table.partition_keys_fields, table.trimmed_primary_keys_fields) for m in entry.messages]
    entries = commit._collect_manifest_entries(messages)
    return lambda: bool(commit._try_commit_once(None, "APPEND", entries, [], 1, latest).is_success())


def test_pypaimons_own_publish_overwrites_what_another_process_has_published(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for ours. Its look is guarded by a lock of the process alone, so the other publishes between look and rename."""
    first, second = (entry_of(lake, PLAIN, stage(lake, PLAIN, [(number, "x", number)], number=number)) for number in (1, 2))
    one, two = _renaming(lake, first, "one"), _renaming(lake, second, "two")
    real, outcome = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        if Path(target).name == "snapshot-1":
            monkeypatch.setattr(Path, "rename", real)
            # The lock is held by this thread; another process has its own.
            from pypaimon.filesystem.local_file_io import LocalFileIO

            LocalFileIO.RENAME_LOCK.release()
            outcome.append(two())
            LocalFileIO.RENAME_LOCK.acquire()
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    outcome.append(one())
    assert outcome == [True, True]
    assert read(lake, PLAIN) == [(1, "x", 1)]


def test_of_two_that_build_on_one_snapshot_one_wins_and_the_other_lands_behind_it(
    lake: PaimonSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline's commit comes between: it is no epoch of ours, so that ours follows."""
    ours = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "ours", 2)], number=1))
    real, between = LocalStore.put_if_absent, []

    def put_if_absent(self: LocalStore, key: str, value: bytes) -> bool:
        monkeypatch.setattr(LocalStore, "put_if_absent", real)
        between.append(key)
        foreign_commit(lake, PLAIN, (7, "theirs", 0))
        return real(self, key, value)

    monkeypatch.setattr(LocalStore, "put_if_absent", put_if_absent)
    assert lake.commit(intent_of(1, ours), ours) == 2
    assert between == ["snapshot/snapshot-1"]
    assert read(lake, PLAIN) == [(1, "ours", 2), (7, "theirs", 0)]
    assert [snapshot.commit_user == "snowmelt" for snapshot in snapshots(lake, PLAIN)] == [False, True]


def test_a_snapshot_keeps_the_properties_it_was_published_with(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, LOW)
    foreign_commit(lake, KEYED, (5, "theirs", 5))
    bring(lake, 2, KEYED, HIGH)
    properties = [snapshot.properties for snapshot in snapshots(open_sink(folder(lake, KEYED).parent.parent), KEYED)]
    assert properties == [
        {"snowmelt.epoch": "1", "snowmelt.identity": "1-a1", "snowmelt.sequence-max": "2"},
        None,
        {"snowmelt.epoch": "2", "snowmelt.identity": "1-a1", "snowmelt.sequence-max": "4"},
    ]
    marker, greatest = lake.newest_commit(KEYED)
    assert marker is not None
    assert (marker.epoch, marker.identity, marker.snapshot, greatest) == (2, "1-a1", 3, 4)


def test_a_file_that_is_named_twice_doubles_a_table_without_a_key(lake: PaimonSink) -> None:
    """That is why it is asked whether an epoch is there: pypaimon takes the same user and identifier again."""
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "x", 2)]))
    own_commit(lake, entry, 1)
    own_commit(lake, entry, 1)
    assert read(lake, PLAIN) == [(1, "x", 2), (1, "x", 2)]


def test_staged_files_are_invisible_until_they_are_committed_and_named_as_asked(lake: PaimonSink) -> None:
    for target in (KEYED, PLAIN):
        staged = stage(lake, target, [(number, "x", 2) for number in range(20)], number=7)
        assert read(lake, target) == []
        assert sorted(lake.staged(target)) == sorted(staged.files)
        assert lake.referenced(target) == set()
        assert len(staged.files) == (2 if target == KEYED else 1)
        for name in staged.files:
            parsed = StagedName.parse(name)
            assert (parsed.generation, parsed.waits_for, parsed.number, parsed.nonce) == (1, StagedFor.EPOCH, 7, "a1")
            assert str(parsed) == name


def test_an_abandoned_writer_leaves_nothing_that_a_reader_sees(lake: PaimonSink) -> None:
    writer = lake.writer(KEYED, "sm-1-e1-a1-")
    writer.abandon()
    assert (read(lake, KEYED), snapshots(lake, KEYED)) == ([], [])


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_emptying_takes_all_that_was_there_and_leaves_what_follows(lake: PaimonSink, target: str) -> None:
    bring(lake, 1, target, (1, "old", 100), (2, "old", 100))
    foreign_commit(lake, target, (3, "theirs", 100))
    bring(lake, 2, target, (1, "new", 40), empties=["shop.orders"])
    # The old value had a greater sequence, and is gone all the same.
    assert read(lake, target) == [(1, "new", 40)]
    bring(lake, 3, target, (2, "later", 50))
    assert read(lake, target) == [(1, "new", 40), (2, "later", 50)]
    bring(lake, 4, target, empties=["shop.orders"])
    assert read(lake, target) == []
    assert epochs_of(lake, target) == [1, 2, 3, 4]


def test_emptying_twice_is_once(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, LOW)
    entry = entry_of(lake, KEYED, empties=["shop.orders"])
    first = intent_of(2, entry)
    lake.commit(first, entry)
    foreign_commit(lake, KEYED, (9, "theirs", 1))
    assert lake.commit(first, entry) == 2
    assert read(lake, KEYED) == [(9, "theirs", 1)]


def test_readers_and_committers_do_not_need_the_hint_of_the_newest_snapshot(lake: PaimonSink) -> None:
    """It is written behind the publish: a crash leaves it old, torn or away."""
    hint = folder(lake, PLAIN) / "snapshot" / "LATEST"
    for epoch, content in enumerate(("", "1", "0", "junk", None, "4"), 1):
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
        hint.unlink()
        if content is not None:
            hint.write_text(content)
        assert len(read(lake, PLAIN)) == epoch
    assert epochs_of(lake, PLAIN) == [1, 2, 3, 4, 5, 6]


# ---- each epoch once


def test_a_commit_that_is_made_twice_gives_one_snapshot(lake: PaimonSink, tmp_path: Path) -> None:
    intents = prepare(lake, range(1, 4))
    for intent in intents:
        for again in (lake, lake, open_sink(tmp_path)):
            assert [again.commit(intent, entry) for entry in intent.entries] == [intent.epoch, intent.epoch]
    check_prepared(lake, 3)
    # An older one is over: whoever asks for it is behind.
    for entry in intents[0].entries:
        with pytest.raises(Fenced, match="the lake is ahead"):
            lake.commit(intents[0], entry)
    check_prepared(lake, 3)


def test_an_epoch_of_the_same_number_from_another_intent_is_refused(lake: PaimonSink) -> None:
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [LOW]))
    other = entry_of(lake, KEYED, stage(lake, KEYED, [HIGH]))
    lake.commit(intent_of(1, entry), entry)
    with pytest.raises(Fenced, match="another epoch of this number"):
        lake.commit(intent_of(1, other, generation=2), other)
    assert read(lake, KEYED) == [LOW]


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_a_process_killed_at_each_step_of_a_commit_leaves_the_epoch_out_or_in_and_never_half(
    lake: PaimonSink, tmp_path: Path, target: str
) -> None:
    """Every step of one commit that leaves something behind, in order; the next process rolls forward."""
    rows: list[Row] = []
    outcomes: list[bool] = []
    told: list[Any] = []
    while not told:
        epoch = len(rows) + 1
        rows.append((epoch, str(epoch), 2 * epoch))
        entry = entry_of(lake, target, stage(lake, target, rows[-1:], number=epoch))
        intent = intent_of(epoch, entry)
        with Committer(tmp_path, [intent], DieAtStep(epoch)) as killed:
            killed.go()
            told = killed.hear_all()
        there = epochs_of(lake, target)
        assert there in (list(range(1, epoch)), list(range(1, epoch + 1)))
        outcomes.append(epoch in there)
        assert read(lake, target) == rows[: len(there)]
        lake.commit(intent, entry)
        assert read(lake, target) == rows
    assert told == [epoch, "end"]
    # Out before the link, in behind it.
    assert outcomes == sorted(outcomes)
    assert min(outcomes.count(False), outcomes.count(True)) >= 3


def test_a_process_killed_at_random_instants_brings_each_row_once(lake: PaimonSink, tmp_path: Path) -> None:
    chance, kills, done, epochs = random.Random(11), 0, 0, 30
    intents = prepare(lake, range(1, epochs + 1))
    while done < len(intents) or kills < 40:
        if done == len(intents):
            intents += prepare(lake, range(len(intents) + 1, len(intents) + 11))
        with Committer(tmp_path, intents[done:]) as committer:
            committer.go()
            time.sleep(chance.uniform(0, 0.12))
            committer.process.kill()
            kills += 1
            told = [said for said in committer.hear_all() if said != "end"]
        assert told == list(range(done + 1, done + 1 + len(told)))
        done += len(told)
        # One epoch may be there, or be there in one table, that nobody was told of.
        for target in (KEYED, PLAIN):
            assert epochs_of(lake, target) in (list(range(1, done + 1)), list(range(1, done + 2)))
    check_prepared(lake, len(intents))


def test_four_processes_that_commit_the_same_at_once_bring_each_epoch_once(lake: PaimonSink, tmp_path: Path) -> None:
    """All are paused at random, and none lets itself be fenced, so that they stay close together."""
    chance, epochs = random.Random(5), 40
    intents = prepare(lake, range(1, epochs + 1))
    with ExitStack() as ending:
        racers = [ending.enter_context(Committer(tmp_path, intents, stubborn=True)) for _ in range(4)]
        for racer in racers:
            racer.go()
        pauses = 0
        while len(running := [racer for racer in racers if racer.process.is_alive()]) > 1:
            paused = chance.choice(running)
            with suppress(ProcessLookupError):
                paused.signal(signal.SIGSTOP)
            # As long as it takes the others to get two epochs further, or not much longer.
            until, soon = len(snapshots(lake, PLAIN)) + 2, time.monotonic() + 0.2
            while len(snapshots(lake, PLAIN)) < until and time.monotonic() < soon:
                time.sleep(0.002)
            with suppress(ProcessLookupError):
                paused.signal(signal.SIGCONT)
            pauses += 1
        outcomes = [racer.hear_all() for racer in racers]
    assert outcomes == [[*range(1, epochs + 1), "end"]] * 4
    assert pauses > 10
    check_prepared(lake, epochs)


def test_a_zombie_that_goes_on_two_epochs_later_publishes_nothing(lake: PaimonSink, tmp_path: Path) -> None:
    intents = prepare(lake, range(1, 4))
    with Committer(tmp_path, intents[:1], stop_before_publish) as zombie:
        zombie.go()
        zombie.await_stop()
        for intent in intents:
            for entry in intent.entries:
                lake.commit(intent, entry)
        zombie.signal(signal.SIGCONT)
        [error] = zombie.hear_all()
    assert isinstance(error, Fenced)
    check_prepared(lake, 3)


def test_a_zombie_that_goes_on_after_its_epoch_was_rolled_forward_finds_it_there(lake: PaimonSink, tmp_path: Path) -> None:
    [intent] = prepare(lake, [1])
    with Committer(tmp_path, [intent], stop_before_publish) as zombie:
        zombie.go()
        zombie.await_stop()
        for entry in intent.entries:
            lake.commit(intent, entry)
        zombie.signal(signal.SIGCONT)
        assert zombie.hear_all() == [1, "end"]
    check_prepared(lake, 1)


def test_a_zombie_of_another_intent_is_fenced(lake: PaimonSink, tmp_path: Path) -> None:
    """Its intent lost; what it staged is never to be seen, whatever it still believes."""
    lost = entry_of(lake, PLAIN, stage(lake, PLAIN, [(99, "lost", 2)], number=1))
    intents = prepare(lake, range(1, 4))
    with Committer(tmp_path, [intent_of(1, lost, nonce="zz")], stop_before_publish) as zombie:
        zombie.go()
        zombie.await_stop()
        for intent in intents:
            for entry in intent.entries:
                lake.commit(intent, entry)
        zombie.signal(signal.SIGCONT)
        [error] = zombie.hear_all()
    assert isinstance(error, Fenced)
    check_prepared(lake, 3)


def test_pypaimons_own_committer_accepts_the_zombie(lake: PaimonSink) -> None:
    """The reason for asking the very snapshot that a try builds on: a filter that was asked before says nothing."""
    first, second = (entry_of(lake, PLAIN, stage(lake, PLAIN, [(number, "x", number)], number=number)) for number in (1, 2))
    manager = lake.table(PLAIN).snapshot_manager()
    assert manager.get_latest_snapshot() is None  # The filter: epoch 1 is absent. Then it stalls.
    own_commit(lake, first, 1)
    own_commit(lake, second, 2)
    own_commit(lake, first, 1)
    assert read(lake, PLAIN) == [(1, "x", 1), (1, "x", 1), (2, "x", 2)]
    # And the user's newest identifier is 1 again, so that a replay of 2 would be taken as well.
    assert manager.get_latest_snapshot().commit_identifier == 1


@pytest.mark.parametrize("ours_is_there", [True, False], ids=["rolled-forward-by-another", "not-there"])
def test_a_zombie_whose_number_was_expired_meanwhile_does_not_turn_the_table_back(
    lake: PaimonSink, tmp_path: Path, ours_is_there: bool
) -> None:
    """Its snapshot's name is free again, so that the exclusive create succeeds. The table must not fall back to it."""
    bring(lake, 1, PLAIN, (1, "1", 2))
    intents = [intent_of(2, entry_of(lake, PLAIN, stage(lake, PLAIN, [(2, "2", 4)], number=2)))]
    with Committer(tmp_path, intents, stop_before_publish) as zombie:
        zombie.go()
        zombie.await_stop()
        if ours_is_there:
            lake.commit(intents[0], intents[0].entries[0])
            rows: list[Row] = [(3, "3", 6), (4, "4", 8), (5, "5", 10)]
            for epoch, row in enumerate(rows, 3):
                bring(lake, epoch, PLAIN, row)
        else:
            rows = [(number, "theirs", 0) for number in range(11, 15)]
            for row in rows:
                foreign_commit(lake, PLAIN, row)
        expire(lake, PLAIN, 1, 2, 3)
        zombie.signal(signal.SIGCONT)
        told = zombie.hear_all()
    assert read(lake, PLAIN) == [(1, "1", 2), (2, "2", 4), *rows]
    if ours_is_there:
        assert isinstance(told[0], Fenced)
    else:
        assert told == [2, "end"]
    bring(lake, 6, PLAIN, (6, "6", 12))
    assert read(lake, PLAIN) == sorted([(1, "1", 2), (2, "2", 4), (6, "6", 12), *rows])


def test_what_pypaimon_warns_of_does_not_go_to_the_terminal(
    lake: PaimonSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "x", 2)]))
    real, lost = LocalStore.put_if_absent, []

    def losing(self: LocalStore, key: str, value: bytes) -> bool:
        lost.append(key)
        return len(lost) > 2 and real(self, key, value)

    monkeypatch.setattr(LocalStore, "put_if_absent", losing)
    assert lake.commit(intent_of(1, entry), entry) == 1
    assert len(lost) == 3
    assert capsys.readouterr() == ("", "")


def test_a_lost_reply_of_the_publish_is_read_back(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "x", 2)]))
    real, calls = LocalStore.put_if_absent, []

    def losing(self: LocalStore, key: str, value: bytes) -> bool:
        calls.append(key)
        # The first reply is lost on the way there, the second on the way back.
        if len(calls) > 1:
            real(self, key, value)
        raise OutcomeUnknown("a reply was lost")

    monkeypatch.setattr(LocalStore, "put_if_absent", losing)
    assert lake.commit(intent_of(1, entry), entry) == 1
    assert len(calls) == 2
    assert read(lake, PLAIN) == [(1, "x", 2)]


@pytest.mark.parametrize("error", [Unavailable("no"), InvalidConfig("no")])
def test_a_publish_that_failed_is_not_tried_again_and_again(
    lake: PaimonSink, monkeypatch: pytest.MonkeyPatch, error: SnowmeltError
) -> None:
    """It is raised as it is: whoever calls knows how long to wait, and which of them is worth it."""
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "x", 2)]))
    calls = []

    def failing(self: LocalStore, key: str, value: bytes) -> bool:
        calls.append(key)
        raise error

    monkeypatch.setattr(LocalStore, "put_if_absent", failing)
    with pytest.raises(type(error)) as raised:
        lake.commit(intent_of(1, entry), entry)
    assert raised.value is error
    assert len(calls) == 1


def test_many_foreign_commits_end_in_an_error_that_says_so(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(1, "x", 2)]))
    monkeypatch.setattr(LocalStore, "put_if_absent", lambda *_: False)
    with pytest.raises(Unavailable, match="met others' commits"):
        lake.commit(intent_of(1, entry), entry)


# ---- refusals


def _staged_entry(lake: PaimonSink, target: str = KEYED, epoch: int = 2) -> tuple[Any, Any]:
    bring(lake, epoch - 1, target, (1, "first", 2))
    entry = entry_of(lake, target, stage(lake, target, [(1, "second", 4)], number=epoch))
    return intent_of(epoch, entry), entry


def _change(*names: tuple[str, ...]) -> list[Any]:
    from pypaimon.schema.schema_change import SchemaChange

    return [getattr(SchemaChange, name)(*arguments) for name, *arguments in names]


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (("set_option", "bucket", "3"), "a lake table lost its number of buckets"),
        (("remove_option", "sequence.field"), "a lake table lost its sequence field"),
        (("set_option", "sequence.field", "id"), "a lake table lost its sequence field"),
        (("set_option", "ignore-delete", "true"), "another program changed the schema of a lake table"),
        (("drop_column", "v"), "another program changed the schema of a lake table"),
        (("rename_column", "v", "w"), "another program changed the schema of a lake table"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_a_table_that_somebody_altered_is_refused(lake: PaimonSink, change: tuple[str, ...], fact: str) -> None:
    intent, entry = _staged_entry(lake)
    alter(lake, KEYED, *_change(change))
    with pytest.raises(SourceDrift, match=re.escape(fact)):
        lake.commit(intent, entry)
    assert epochs_of(lake, KEYED) == [1]


@pytest.mark.parametrize("refilled", [False, True])
def test_a_table_that_was_dropped_and_made_again_is_refused(lake: PaimonSink, tmp_path: Path, refilled: bool) -> None:
    intent, entry = _staged_entry(lake)
    lake._catalog.drop_table(KEYED)
    with pytest.raises(SourceDrift, match="is not there"):
        lake.commit(intent, entry)
    make_tables(tmp_path)
    if refilled:
        for number in range(3):
            foreign_commit(lake, KEYED, (number, "theirs", 1))
    with pytest.raises(SourceDrift, match="a lake table lost its identity") as error:
        lake.commit(intent, entry)
    assert BEGIN_ANEW in error.value.hint
    assert epochs_of(lake, KEYED) == []


def test_a_table_that_was_rolled_back_is_refused(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, LOW)
    intent, entry = _staged_entry(lake, epoch=3)
    lake.table(KEYED).rollback_to(1)
    with pytest.raises(SourceDrift, match="lost snapshots") as error:
        lake.commit(intent, entry)
    assert error.value.hint


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_a_staged_file_that_is_missing_is_an_error(lake: PaimonSink, target: str) -> None:
    intent, entry = _staged_entry(lake, target)
    lake.delete(target, entry.files[:1])
    with pytest.raises(SourceDrift, match="staged files are gone"):
        lake.commit(intent, entry)
    assert read(lake, target) == [(1, "first", 2)]


def test_an_intent_whose_messages_do_not_tell_of_its_files_is_a_bug_and_not_an_empty_epoch(lake: PaimonSink) -> None:
    intent, entry = _staged_entry(lake)
    for wrong in (replace(entry, messages=()), replace(entry, files=())):
        with pytest.raises(InvariantBroken, match="messages"):
            lake.commit(intent, wrong)
    assert epochs_of(lake, KEYED) == [1]


def test_a_foreign_commit_in_between_is_no_obstacle(lake: PaimonSink) -> None:
    intent, entry = _staged_entry(lake)
    foreign_commit(lake, KEYED, (5, "theirs", 1))
    compact(lake, KEYED)
    assert lake.commit(intent, entry) == 4
    foreign_commit(lake, KEYED, (6, "theirs", 1))
    assert lake.commit(intent, entry) == 4
    assert read(lake, KEYED) == [(1, "second", 4), (5, "theirs", 1), (6, "theirs", 1)]


def test_a_compaction_that_copies_our_marker_holds_the_epoch_too(lake: PaimonSink) -> None:
    intent, entry = _staged_entry(lake)
    # The marker of the epoch before, on a snapshot behind the base, is no proof of this one.
    compact(lake, KEYED, copies_marker=True)
    assert epochs_of(lake, KEYED) == [1, 1]
    assert lake.commit(intent, entry) == 3
    compact(lake, KEYED, copies_marker=True)
    assert lake.commit(intent, entry) == 4
    marker = lake.view(entry).marker
    assert marker is not None
    assert (marker.epoch, marker.snapshot) == (2, 4)
    assert read(lake, KEYED) == [(1, "second", 4)]


# ---- snapshots were removed between an intent's base and the newest


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_files_that_are_referenced_prove_an_epoch_whose_snapshot_was_expired(lake: PaimonSink, target: str) -> None:
    intent, entry = _staged_entry(lake, target)
    lake.commit(intent, entry)
    foreign_commit(lake, target, (5, "theirs", 1))
    expire(lake, target, 1, 2)
    assert lake.commit(intent, entry) == 3
    assert len(snapshots(lake, target)) == 1
    assert read(lake, target) == sorted([(1, "second", 4), (5, "theirs", 1), *([] if target == KEYED else [(1, "first", 2)])])


@pytest.mark.parametrize("target", [KEYED, PLAIN])
def test_files_that_nothing_refers_to_are_published_once_though_snapshots_are_missing(lake: PaimonSink, target: str) -> None:
    intent, entry = _staged_entry(lake, target)
    foreign_commit(lake, target, (5, "theirs", 1))
    foreign_commit(lake, target, (6, "theirs", 1))
    expire(lake, target, 1, 2)
    assert lake.commit(intent, entry) == 4
    expire(lake, target, 3)
    assert lake.commit(intent, entry) == 4
    assert [row for row in read(lake, target) if row[2] == 4] == [(1, "second", 4)]


def test_files_that_are_gone_and_told_of_by_no_snapshot_are_an_error(lake: PaimonSink) -> None:
    """Compacted and expired, or never there and removed by somebody's orphan cleaning: nobody can tell."""
    intent, entry = _staged_entry(lake)
    lake.commit(intent, entry)
    compact(lake, KEYED)
    expire(lake, KEYED, 1, 2)
    lake.delete(KEYED, entry.files)
    assert read(lake, KEYED) == [(1, "second", 4)]
    with pytest.raises(SourceDrift, match="it is not known whether"):
        lake.commit(intent, entry)


def test_an_epoch_is_told_though_others_compacted_its_files_and_expired_all_that_they_may(lake: PaimonSink, tmp_path: Path) -> None:
    """A driver dies between the publishing of an epoch and its done record, and Java Paimon maintains the table meanwhile."""
    intent, entry = _staged_entry(lake)
    published, warehouse = lake.commit(intent, entry), folder(lake, KEYED).parent.parent
    with java_paimon(tmp_path / "spilled") as java:
        for _ in range(3):
            java.compact_and_expire(warehouse, KEYED)
        # The next driver's own view, by another object: nothing is remembered.
        again = open_sink(warehouse)
        assert again.commit(intent, entry) == published
        assert epochs_of(again, KEYED).count(2) == 1
        assert read(again, KEYED) == [(1, "second", 4)]
        # What is held follows the epochs, so that it does not grow.
        for epoch in range(3, 3 + 2 * paimon._HOLD_EVERY):
            bring(again, epoch, KEYED, (1, str(epoch), 2 * epoch))
        java.compact_and_expire(warehouse, KEYED)
    assert len(snapshots(again, KEYED)) <= paimon._HOLD_EVERY + 2


def test_a_table_that_was_made_anew_is_held_from_its_first_epoch_on(lake: PaimonSink) -> None:
    """What this process has held of the one before is no hold on it."""
    bring(lake, 1, KEYED, LOW)
    lake.remake(KEYED, SCHEMA, ["id"], buckets=2, identity=lake.identity(KEYED))
    bring(lake, 2, KEYED, LOW)
    assert [json.loads(path.read_text()) for path in (folder(lake, KEYED) / "consumer").iterdir()] == [{"nextSnapshot": 1}]


@pytest.mark.parametrize("holder", ["tag", "older snapshot"])
def test_files_that_only_a_tag_or_an_older_snapshot_refers_to_prove_the_epoch(lake: PaimonSink, holder: str) -> None:
    """Rewritten by a compaction, kept in storage by what still refers to them. Published again they would be there twice."""
    bring(lake, 1, PLAIN, (1, "first", 2))
    intents = prepare(lake, [2])
    intent, entry = intents[0], intents[0].entries[1]
    bring_back = lake.commit(intent, entry)
    if holder == "tag":
        lake.table(PLAIN).create_tag("kept", bring_back)
        compact(lake, PLAIN)
        expire(lake, PLAIN, 1, 2)
    else:
        foreign_commit(lake, PLAIN, (9, "theirs", 1))
        compact(lake, PLAIN)
        expire(lake, PLAIN, 1, 2)
    before = [snapshot.id for snapshot in snapshots(lake, PLAIN)]
    assert lake.commit(intent, entry) == before[-1]
    # Rows would not tell: pypaimon hides a file that was once removed, where other readers show it again.
    assert [snapshot.id for snapshot in snapshots(lake, PLAIN)] == before


def test_an_emptying_whose_snapshot_was_expired_is_an_error(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, LOW)
    entry = entry_of(lake, KEYED, empties=["shop.orders"])
    lake.commit(intent_of(2, entry), entry)
    foreign_commit(lake, KEYED, (5, "theirs", 1))
    expire(lake, KEYED, 1, 2)
    with pytest.raises(SourceDrift, match="an emptying leaves no files"):
        lake.commit(intent_of(2, entry), entry)


def test_our_newest_marker_is_found_behind_a_hole(lake: PaimonSink) -> None:
    for epoch in (1, 2):
        bring(lake, epoch, KEYED, (1, str(epoch), 2 * epoch))
    for number in (7, 8):
        foreign_commit(lake, KEYED, (number, "theirs", 1))
    expire(lake, KEYED, 1, 3)
    marker, greatest = lake.newest_commit(KEYED)
    assert marker is not None
    assert (marker.epoch, marker.snapshot, greatest) == (2, 2, 4)


def test_a_hint_before_a_hole_does_not_hide_the_newest_snapshot_from_us(lake: PaimonSink) -> None:
    """pypaimon trusts a hint whose successor is missing, and would publish on the wrong side of the hole."""
    for number in range(1, 5):
        foreign_commit(lake, PLAIN, (number, "theirs", number))
    expire(lake, PLAIN, 2, 3)
    (folder(lake, PLAIN) / "snapshot" / "LATEST").write_text("1")
    assert lake.table(PLAIN).snapshot_manager().get_latest_snapshot().id == 1
    assert lake.describe(PLAIN).progress == 4
    assert bring(lake, 1, PLAIN, (5, "ours", 2)) == 5
    assert len(read(lake, PLAIN)) == 5


# ---- cleaning


def _clean(lake: PaimonSink, target: str, standing: CleaningView) -> set[str]:
    """As a driver does it. Returns what went."""
    listed = lake.staged(target)
    standing = replace(standing, named=set(standing.named) | lake.referenced(target))
    doomed = {name for name in listed if deletable(StagedName.parse(name), standing)}
    lake.delete(target, doomed)
    assert set(lake.staged(target)) == set(listed) - doomed
    return doomed


def test_cleaning_takes_what_was_given_back_and_leaves_what_an_intent_may_name(lake: PaimonSink) -> None:
    bring(lake, 1, KEYED, (1, "one", 2), (2, "one", 2))
    adopted = stage(lake, KEYED, [(3, "chunk", 3)], number=1, chunk=True)
    given_back = stage(lake, KEYED, [(3, "stale", 1)], number=2, chunk=True)
    waiting = stage(lake, KEYED, [(4, "chunk", 3)], number=3, chunk=True)
    failed = stage(lake, KEYED, [(2, "failed", 4)], number=2)
    brought = stage(lake, KEYED, [(2, "two", 4)], number=2)
    entry = entry_of(lake, KEYED, adopted, brought)
    intent = intent_of(2, entry)
    open_epoch = stage(lake, KEYED, [(2, "three", 6)], number=3)
    older = stage(lake, KEYED, [(2, "older", 1)], number=9, chunk=True, generation=0)
    standing = CleaningView(generation=1, epoch=2, intent_generation=1, jobs=3, under_way={3}, named=set(entry.files))
    # The intent is won and not yet committed: its files are named by nothing but it.
    assert _clean(lake, KEYED, standing) == {*given_back.files, *failed.files, *older.files}
    lake.commit(intent, entry)
    assert read(lake, KEYED) == [(1, "one", 2), (2, "two", 4), (3, "chunk", 3)]
    # It is done and forgotten: its files are referenced by the lake.
    assert _clean(lake, KEYED, replace(standing, named=set())) == set()
    assert read(lake, KEYED) == [(1, "one", 2), (2, "two", 4), (3, "chunk", 3)]
    entry = entry_of(lake, KEYED, waiting, open_epoch)
    lake.commit(intent_of(3, entry), entry)
    assert read(lake, KEYED) == [(1, "one", 2), (2, "three", 6), (3, "chunk", 3), (4, "chunk", 3)]


@pytest.mark.parametrize("holder", ["tag", "branch"])
def test_cleaning_leaves_what_only_a_tag_or_a_branch_refers_to(lake: PaimonSink, holder: str) -> None:
    bring(lake, 1, PLAIN, (1, "one", 2))
    table = lake.table(PLAIN)
    table.create_tag("kept", 1)
    if holder == "branch":
        table.branch_manager().create_branch("side", "kept")
        table.delete_tag("kept")
    compact(lake, PLAIN)
    expire(lake, PLAIN, 1)
    assert _clean(lake, PLAIN, CleaningView(generation=1, epoch=1, intent_generation=1, jobs=0, under_way=set(), named=set())) == set()
    if holder == "tag":
        assert len(read_with(lake, PLAIN, {"scan.tag-name": "kept"})) == 1


def test_cleaning_takes_files_that_compaction_and_expiry_left_behind(lake: PaimonSink) -> None:
    bring(lake, 1, PLAIN, (1, "one", 2))
    old = set(lake.staged(PLAIN))
    compact(lake, PLAIN)
    expire(lake, PLAIN, 1)
    assert _clean(lake, PLAIN, CleaningView(generation=1, epoch=1, intent_generation=1, jobs=0, under_way=set(), named=set())) == old
    assert read(lake, PLAIN) == [(1, "one", 2)]


def test_a_snapshot_that_goes_while_references_are_read_is_no_error(lake: PaimonSink, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in (1, 2, 3):
        bring(lake, epoch, PLAIN, (epoch, "x", epoch))
    real = references.live_paths

    def expiring(table: Any, snapshot: Any) -> set[str]:
        if snapshot.id == 1:
            expire(lake, PLAIN, 1)
            (folder(lake, PLAIN) / "manifest" / snapshot.base_manifest_list).unlink()
        return real(table, snapshot)

    monkeypatch.setattr(references, "live_paths", expiring)
    assert lake.referenced(PLAIN) == set(lake.staged(PLAIN))


def test_references_that_cannot_be_read_are_an_error_and_not_none(lake: PaimonSink) -> None:
    bring(lake, 1, PLAIN, (1, "x", 1))
    bring(lake, 2, PLAIN, (2, "x", 2))
    (folder(lake, PLAIN) / "manifest" / snapshots(lake, PLAIN)[0].delta_manifest_list).unlink()
    with pytest.raises(SnowmeltError):
        lake.referenced(PLAIN)


# ---- a table without a key


def test_a_table_without_a_key_holds_each_row_once_in_the_order_of_the_intents_files(lake: PaimonSink) -> None:
    chance, expected = random.Random(3), []
    for epoch in range(1, 8):
        parts = [stage(lake, PLAIN, [(number, f"{epoch}.{part}", epoch) for number in range(50)], number=epoch) for part in range(4)]
        # The order of the intent, not that of staging or of names.
        order = chance.sample(range(4), 4)
        entry = entry_of(lake, PLAIN, *(parts[part] for part in order))
        for _ in range(2):
            lake.commit(intent_of(epoch, entry), entry)
        expected += [(number, f"{epoch}.{part}", epoch) for part in order for number in range(50)]
    for options in READERS:
        assert read_with(lake, PLAIN, options) == expected


def test_a_snapshot_names_files_in_the_order_of_the_intent(lake: PaimonSink) -> None:
    """A streaming reader of a table with a key takes them in this order: chunks first, then the log."""
    chunk = stage(lake, KEYED, [(key, "chunk", 3) for key in range(9)], number=1, chunk=True)
    logs = [stage(lake, KEYED, [(key, "log", 2 * number + 4) for key in range(9)], number=1) for number in range(4)]
    entry = entry_of(lake, KEYED, chunk, *logs)
    lake.commit(intent_of(1, entry), entry)
    table = lake.table(KEYED)
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    [manifest] = ManifestListManager(table).read_delta(snapshots(lake, KEYED)[0])
    named = [found.file.file_name for found in ManifestFileManager(table).read(manifest.file_name)]
    assert named == list(entry.files)
    assert len(named) == 10


# ---- durable, in this order


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_steps(monkeypatch)


@pytest.mark.parametrize("target", [KEYED, PLAIN])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_all_that_a_snapshot_names_is_durable_before_it_is_there(tmp_path: Path, steps: list[str], target: str, scheme: str) -> None:
    lake = make_tables(f"{scheme}{tmp_path}")
    root = folder(lake, target)
    for number in (1, 2):
        entry = entry_of(lake, target, stage(lake, target, [(key, "x", number) for key in range(20)], number=number))
        steps.clear()
        lake.commit(intent_of(number, entry), entry)
        before, after = (part(steps, f"link snapshot-{number}") for part in (_before, _behind))
        snapshot = snapshots(lake, target)[-1]
        names = [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        delta = [path.name for path in (root / "manifest").iterdir() if not path.name.startswith("manifest-list")]
        assert {str(root / "manifest" / name) for name in names} <= set(before)
        assert number == len(set(before) & {str(root / "manifest" / name) for name in delta}) + number - 1
        # The names of manifests, of buckets and of what is in them: each behind the file itself.
        assert before.index(str(root / "manifest")) > max(before.index(str(root / "manifest" / name)) for name in names)
        buckets = {str(path) for path in root.iterdir() if path.name.startswith("bucket-")}
        assert len(buckets) == (2 if target == KEYED else 1)
        assert buckets <= set(before)
        assert (str(root) in before) == (number == 1), "once, as the names of its folders stay"
        assert any("/.tmp/" in path for path in before)
        assert str(root / "snapshot") in after


def test_a_bucket_that_a_later_epoch_makes_is_durable_before_its_snapshot(tmp_path: Path, steps: list[str]) -> None:
    lake = make_tables(tmp_path)
    root = folder(lake, KEYED)
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(1, "x", 1)], number=1))
    lake.commit(intent_of(1, entry), entry)
    known = {path for path in root.iterdir() if path.name.startswith("bucket-")}
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [(key, "x", 2) for key in range(20)], number=2))
    steps.clear()
    lake.commit(intent_of(2, entry), entry)
    assert {path for path in root.iterdir() if path.name.startswith("bucket-")} > known
    assert str(root) in _before(steps, "link snapshot-2")


def _before(steps: list[str], step: str) -> list[str]:
    return steps[: steps.index(step)]


def _behind(steps: list[str], step: str) -> list[str]:
    return steps[steps.index(step) + 1 :]


def test_an_epoch_that_is_found_is_made_durable_before_it_is_called_there(lake: PaimonSink, steps: list[str]) -> None:
    """Who published it may have died between its link and the sync of the folder."""
    intent, entry = _staged_entry(lake)
    lake.commit(intent, entry)
    steps.clear()
    assert isinstance(judge(intent, entry, lake.view(entry)), EpochInLake)
    lake.commit(intent, entry)
    assert str(folder(lake, KEYED) / "snapshot") in steps


def test_a_new_table_is_durable_when_create_returns(tmp_path: Path, steps: list[str]) -> None:
    lake = make_tables(tmp_path / "warehouse")
    root = folder(lake, KEYED)
    for path in (root / "schema" / "schema-0", root / "schema", root, root.parent, root.parent.parent, tmp_path):
        assert str(path) in steps, path
    # Also one that somebody else has made: he may not have come that far.
    steps.clear()
    make_tables(tmp_path / "warehouse")
    assert str(root / "schema" / "schema-0") in steps


COMMITS = """
import sys
sys.path.insert(0, {root!r})
from tests.integration.paimon_tables import *
lake = make_tables(sys.argv[1])
for epoch in (1, 2):
    bring(lake, epoch, KEYED, *[(key, "x", epoch) for key in range(20)])
"""


def test_the_system_is_asked_to_sync_in_the_right_order(tmp_path: Path) -> None:
    """As `strace` sees it: what the native writer does too, which no patch in Python would notice."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not here")
    log = tmp_path / "trace"
    calls = "trace=openat,fsync,fdatasync,linkat,link,rename,renameat,renameat2"
    command = [strace, "-f", "-y", "-s", "300", "-e", calls, "-o", str(log), sys.executable, "-c"]
    ran = subprocess.run(
        [*command, COMMITS.format(root=str(Path(__file__).parents[2])), str(tmp_path / "w")], capture_output=True, text=True, check=False
    )
    if "ptrace" in ran.stderr and "not permitted" in ran.stderr:
        pytest.skip("strace may not trace here")
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = log.read_text().splitlines()
    publish = next(number for number, line in enumerate(lines) if re.search(r'"snapshot-1"', line) and "link" in line)
    synced = {match[1] for line in lines[:publish] if (match := re.search(r"f(?:data)?sync\(\d+<([^>]+)>", line))}
    table = tmp_path / "w" / "shop.db" / "orders"
    data = [str(path) for path in table.glob("bucket-*/sm-1-e1-*")]
    assert len(data) == 2
    unsynced = [path for path in [*data, *(str(path) for path in table.glob("bucket-*")), str(table / "manifest")] if path not in synced]
    assert unsynced == []
    manifests = {path.name for path in (table / "manifest").iterdir()}
    written = {match[1] for line in lines[:publish] if (match := re.search(r'manifest/(manifest[^/"]+)", O_WRONLY', line))}
    assert len(written) == 3
    assert written <= manifests
    assert {str(table / "manifest" / name) for name in written} <= synced


# ---- errors are ours


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A folder that everybody can reach, and rights that are looked at: root would be let in anywhere."""
    home = Path(tempfile.mkdtemp(prefix="snowmelt-"))
    home.chmod(0o755)
    was = os.geteuid()
    try:
        yield home
    finally:
        os.seteuid(was)
        shutil.rmtree(home)


def _as_nobody() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def _ours(error: BaseException) -> None:
    """It says what is so, and what to do about it, in few words."""
    assert isinstance(error, SnowmeltError)
    assert error.hint
    assert len(str(error)) < 500
    assert "Traceback" not in str(error)


def test_a_warehouse_that_cannot_be_written_is_a_setting_to_mend(somebody: Path) -> None:
    warehouse = somebody / "w"
    warehouse.mkdir()
    warehouse.chmod(0o555)
    _as_nobody()
    lake = open_sink(warehouse)
    assert not lake.exists(KEYED)
    with pytest.raises(InvalidConfig, match="refuses access") as error:
        make_tables(warehouse)
    _ours(error.value)


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_table_that_cannot_be_written_is_a_setting_to_mend(somebody: Path, mode: int) -> None:
    lake = make_tables(somebody / "w")
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [LOW]))
    intent = intent_of(1, entry)
    paths = [somebody / "w", *(somebody / "w").rglob("*")]
    for path in sorted(paths, reverse=True):
        path.chmod(mode if path.is_dir() else 0o444)
    _as_nobody()
    for call in (
        lambda: lake.commit(intent, entry),
        lambda: stage(lake, KEYED, [HIGH]),
        lambda: lake.delete(KEYED, entry.files),
    ):
        with pytest.raises(InvalidConfig, match="refuses access") as error:
            call()
        _ours(error.value)


def test_a_warehouse_that_is_a_file_is_a_setting_to_mend(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("")
    with pytest.raises(InvalidConfig, match="not a folder") as error:
        make_tables(tmp_path / "w")
    _ours(error.value)
    with pytest.raises(InvalidConfig):
        open_sink("")
    with pytest.raises(InvalidConfig):
        open_sink("gopher://nowhere/at/all")


def _limited(warehouse: str, limit: int, intents: list[Any], pipe: Any) -> None:
    lake = open_sink(warehouse)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        for intent in intents:
            for entry in intent.entries:
                lake.commit(intent, entry)
        pipe.send(None)
    except Exception as error:
        pipe.send(error)


@pytest.mark.parametrize("limit", [0, 1, 200, 500, 700, 900, 1200, 1700, 2000, 2500])
def test_files_that_cannot_grow_leave_the_epoch_out_and_the_table_whole(lake: PaimonSink, tmp_path: Path, limit: int) -> None:
    """As a full disk does, at each of the files that a commit writes."""
    bring(lake, 1, KEYED, LOW)
    entry = entry_of(lake, KEYED, stage(lake, KEYED, [HIGH], number=2))
    intent = intent_of(2, entry)
    here, there = forkserver.Pipe()
    process = forkserver.Process(target=_limited, args=(str(tmp_path), limit, [intent], there))
    process.start()
    error = here.recv()
    process.join()
    if error is None:
        assert limit >= 2000
    else:
        assert isinstance(error, Unavailable)
        _ours(error)
        assert epochs_of(lake, KEYED) == [1]
        assert read(lake, KEYED) == [LOW]
    lake.commit(intent, entry)
    assert read(lake, KEYED) == [HIGH]
    assert epochs_of(lake, KEYED) == [1, 2]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def _fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as grown:
        while True:
            grown.write(b"x" * 4096)


def test_a_full_disk_is_said_so_and_the_epoch_comes_when_there_is_room(small_disk: Path) -> None:
    lake = make_tables(small_disk)
    bring(lake, 1, PLAIN, (1, "x", 2))
    entry = entry_of(lake, PLAIN, stage(lake, PLAIN, [(2, "x", 4)], number=2))
    ballast = small_disk / "ballast"
    _fill(ballast)
    for call in (lambda: lake.commit(intent_of(2, entry), entry), lambda: stage(lake, PLAIN, [(9, "x" * 100_000, 4)], number=2)):
        with pytest.raises(Unavailable, match="is the disk full") as error:
            call()
        _ours(error.value)
    assert read(lake, PLAIN) == [(1, "x", 2)]
    ballast.unlink()
    lake.commit(intent_of(2, entry), entry)
    assert read(lake, PLAIN) == [(1, "x", 2), (2, "x", 4)]
    assert epochs_of(lake, PLAIN) == [1, 2]


def _foreign(lake: PaimonSink, fields: pa.Schema, **options: Any) -> None:
    from pypaimon import Schema

    lake._catalog.drop_table(KEYED, True)
    keys, partitions = options.pop("keys", []), options.pop("partitions", [])
    wanted = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    lake._catalog.create_table(
        KEYED, Schema.from_pyarrow_schema(fields, primary_keys=keys, partition_keys=partitions, options=wanted), False
    )


WITH_SEQUENCE = SCHEMA.append(pa.field("_seq", pa.int64(), nullable=False))
OURS: dict[str, Any] = {"keys": ["id"], "bucket": "2", "sequence__field": "_seq"}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        (SCHEMA, {"keys": ["id"], "bucket": "2"}),
        (SCHEMA, {}),
        (WITH_SEQUENCE, {"keys": ["id"], "bucket": "2"}),
        (WITH_SEQUENCE, {**OURS, "bucket": "-1"}),
        (WITH_SEQUENCE, {**OURS, "bucket": "-2"}),
        (WITH_SEQUENCE, {**OURS, "merge_engine": "partial-update"}),
        (WITH_SEQUENCE, {**OURS, "deletion_vectors__enabled": "true"}),
        (WITH_SEQUENCE, {**OURS, "ignore_delete": "true"}),
        (SCHEMA.append(pa.field("_seq", pa.string(), nullable=False)), OURS),
        (SCHEMA.append(pa.field("_seq", pa.int64())), OURS),
        (WITH_SEQUENCE, {**OURS, "keys": ["id", "v"], "partitions": ["v"]}),
        (WITH_SEQUENCE, {"partitions": ["v"]}),
    ],
    ids=[
        "keyed without our column",
        "plain without our column",
        "no sequence field",
        "dynamic buckets",
        "postponed buckets",
        "partial update",
        "deletion vectors",
        "deletes ignored",
        "our column is text",
        "our column may be null",
        "partitioned",
        "plain and partitioned",
    ],
)
def test_a_table_of_a_foreign_layout_is_refused_before_anything_is_written(
    lake: PaimonSink, fields: pa.Schema, options: dict[str, Any]
) -> None:
    _foreign(lake, fields, **options)
    with pytest.raises(InvalidConfig, match="of another kind than ours") as refused:
        lake.create(KEYED, SCHEMA, options.get("keys", []), buckets=2)
    _ours(refused.value)
    # Of a table that was ours another program has made it.
    for call in (lambda: lake.writer(KEYED, "sm-1-e1-a1-"), lambda: lake.describe(KEYED)):
        with pytest.raises(SourceDrift, match="of another kind") as changed:
            call()
        _ours(changed.value)
    assert not list(folder(lake, KEYED).glob("**/*.parquet"))


def test_a_table_with_another_key_is_refused_where_ours_would_be_made(lake: PaimonSink) -> None:
    for keys in ([], ["v"]):
        with pytest.raises(InvalidConfig, match="key") as error:
            lake.create(KEYED, SCHEMA, keys, buckets=2)
        _ours(error.value)
    # The same again, with another number of buckets, leaves it as it is.
    lake.create(KEYED, SCHEMA, ["id"], buckets=7)
    assert lake.describe(KEYED).buckets == 2


def test_a_source_column_with_our_name_is_refused(lake: PaimonSink) -> None:
    with pytest.raises(InvalidConfig, match="_seq") as error:
        lake.create("shop.other", WITH_SEQUENCE, ["id"], buckets=2)
    _ours(error.value)


def test_a_table_that_is_not_there_is_said_so(lake: PaimonSink, tmp_path: Path) -> None:
    assert lake.exists(KEYED)
    assert not lake.exists("shop.nowhere")
    assert not lake.exists("nowhere.orders")
    for target in ("shop.nowhere", "nowhere.orders"):
        with pytest.raises(SourceDrift, match="is not there") as error:
            lake.describe(target)
        _ours(error.value)


@pytest.mark.parametrize("name", ["a b", "grün", "per%20cent", "h#sh"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_warehouse_may_have_any_name(tmp_path: Path, name: str, scheme: str) -> None:
    from urllib.parse import quote

    path = tmp_path / name
    lake = make_tables(f"file://{quote(str(path))}" if scheme else path)
    bring(lake, 1, KEYED, LOW)
    assert bring(lake, 2, KEYED, HIGH) == 2
    assert read(lake, KEYED) == [HIGH]
    assert [found.name for found in tmp_path.iterdir()] == [name]
    assert lake.referenced(KEYED) == set(lake.staged(KEYED)) != set()
