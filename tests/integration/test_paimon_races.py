"""Several committers of one lake table at once: our pipeline, and others that publish as exclusively as we do. And Java Paimon in between.

`SNOWMELT_RACE_COMMITS` says how many commits each of the four makes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.credentials import Secret
from snowmelt.engine.loop.lake_threads import LakeThreads
from snowmelt.sinks.paimon import sink as sink_module
from snowmelt.sinks.paimon.sink import PaimonSink
from snowmelt.sinks.paimon.table import latest_snapshot, messages_of, publish
from snowmelt.sinks.warehouse import Warehouse, warehouse_of
from tests.integration.java_paimon import java_paimon
from tests.integration.paimon_tables import BUCKETS, KEYED, PLAIN, SCHEMA, bring, folder, make_tables, open_sink, read, stage
from tests.kit.forked import forkserver
from tests.kit.s3 import BUCKET, S3Server

COMMITS = int(os.environ.get("SNOWMELT_RACE_COMMITS", "0"))
OURS, OTHERS = "snowmelt", ("first", "second", "third")


def key_of(racer: int, commit: int) -> int:
    return racer * 1_000_000 + commit


def bring_ours(warehouse: str | Warehouse, commits: int) -> None:
    lake = PaimonSink(warehouse, user=OURS)
    for epoch in range(1, commits + 1):
        bring(lake, epoch, PLAIN, (key_of(0, epoch), OURS, 2 * epoch))


def bring_others(warehouse: str | Warehouse, racer: int, commits: int) -> None:
    """Another program, which looks before each try whether its commit is there."""
    user = OTHERS[racer - 1]
    lake = PaimonSink(warehouse, user=user)
    for number in range(1, commits + 1):
        staged = stage(lake, PLAIN, [(key_of(racer, number), user, number)], number=number, generation=1 + racer)
        since = 0
        while True:
            table = lake.table(PLAIN)
            latest = latest_snapshot(table)
            newest = 0 if latest is None else latest.id
            found = [table.snapshot_manager().get_snapshot_by_id(one) for one in range(since + 1, newest + 1)]
            if any((one.commit_user, one.commit_identifier) == (user, number) for one in found):
                break
            since = newest
            if publish(table, latest, messages_of(table, staged.messages), user=user, identifier=number, properties={}):
                break


def race(warehouse: str | Warehouse, commits: int) -> None:
    racers = [forkserver.Process(target=bring_ours, args=(warehouse, commits))]
    racers += [forkserver.Process(target=bring_others, args=(warehouse, number, commits)) for number in (1, 2, 3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    lake = PaimonSink(warehouse, user="reader")
    table = lake.table(PLAIN)
    manager = table.snapshot_manager()
    snapshots = [manager.get_snapshot_by_id(number) for number in range(1, 4 * commits + 1)]
    assert manager.get_snapshot_by_id(4 * commits + 1) is None
    published = Counter((snapshot.commit_user, snapshot.commit_identifier) for snapshot in snapshots)
    assert published == Counter((user, number) for user in (OURS, *OTHERS) for number in range(1, commits + 1))
    rows = Counter(key for batch in lake.read(PLAIN, 4 * commits, ["id"], lake.shares(PLAIN, 4 * commits)) for key in batch[0].to_pylist())
    assert rows == Counter(key_of(racer, number) for racer in range(4) for number in range(1, commits + 1)), "none is lost, none twice"
    turns = sum(before.commit_user != after.commit_user for before, after in pairwise(snapshots))
    assert turns > commits / 10, "they did not meet"


@pytest.mark.timeout(7200 if COMMITS else 300)
def test_four_committers_on_a_disk_lose_nothing_and_bring_nothing_twice(tmp_path: Path) -> None:
    make_tables(tmp_path)
    race(str(tmp_path), COMMITS or 25)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Warehouse]:
    server = S3Server()
    options = server.options()
    for name in ("access_key_id", "secret_access_key"):
        (tmp_path / name).write_text(options[name])
    yield warehouse_of(
        f"s3://{BUCKET}/lake",
        {
            "s3.endpoint": server.endpoint,
            "s3.region": options["region"],
            "s3.access-key": Secret(f"file:{tmp_path}/access_key_id"),
            "s3.secret-key": Secret(f"file:{tmp_path}/secret_access_key"),
            "s3.path-style-access": "true",
        },
    )
    server.stop()


@pytest.mark.timeout(7200 if COMMITS else 300)
def test_four_committers_in_a_bucket_lose_nothing_and_bring_nothing_twice(bucket: Warehouse) -> None:
    lake = PaimonSink(bucket, user=OURS)
    lake.create(PLAIN, SCHEMA, [], buckets=BUCKETS)
    race(bucket, COMMITS or 4)


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_one_sink_commits_to_many_tables_at_once(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lake = PaimonSink(str(tmp_path / "lake") if where == "disk" else request.getfixturevalue("bucket"), user=OURS)
    targets = [f"shop.t{number}" for number in range(12)]
    for target in targets:
        lake.create(target, SCHEMA, ["id"], buckets=1)
    threads = LakeThreads(lake.at_once)

    def commit(work: tuple[str, int]) -> int:
        target, epoch = work
        return bring(lake, epoch, target, (epoch, target, 2 * epoch))

    for epoch in (1, 2, 3):
        assert threads.each(commit, [(target, epoch) for target in targets]) == [epoch] * len(targets)
        lake.let_go(targets[epoch:])
    threads.close()
    for target in targets:
        assert sorted(read(lake, target)) == [(epoch, target, 2 * epoch) for epoch in (1, 2, 3)]


@pytest.fixture
def before_a_publish(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What others do between our look at the newest snapshot and our publish, one for each try."""
    acts: list[Callable[[], None]] = []
    real = sink_module.publish

    def interrupted(*given: Any, **named: Any) -> bool:
        if acts:
            acts.pop(0)()
        return real(*given, **named)

    monkeypatch.setattr(sink_module, "publish", interrupted)
    return acts


def test_an_epoch_lands_on_what_java_paimon_compacted_during_its_publish(
    tmp_path: Path, before_a_publish: list[Callable[[], None]]
) -> None:
    lake = make_tables(tmp_path)
    for epoch in (1, 2):
        bring(lake, epoch, KEYED, *((key, f"{epoch}", epoch) for key in range(20)))
    warehouse = folder(lake, KEYED).parent.parent
    with java_paimon(tmp_path / "spilled") as java:
        compacted: list[int] = []
        before_a_publish += [lambda: compacted.append(java.compact_and_expire(warehouse, KEYED, retained=10))] * 2
        assert bring(lake, 3, KEYED, (3, "new", 3), (4, None, 3)) == compacted[-1] + 1
        assert compacted == [3, 3], "it compacts once, and finds nothing to do then"
        expected = {key: "new" if key == 3 else "2" for key in range(20) if key != 4}
        assert {row[0]: row[1] for row in read(lake, KEYED)} == expected
        assert {row[0]: str(row[1]) for row in java.read(warehouse, KEYED, ["id", "v"])} == expected
    kinds = [snapshot.commit_kind for snapshot in (lake.table(KEYED).snapshot_manager().get_snapshot_by_id(one) for one in (3, 4))]
    assert kinds == ["COMPACT", "APPEND"]


def test_an_epoch_lands_on_what_pypaimon_appended_during_its_publish(tmp_path: Path, before_a_publish: list[Callable[[], None]]) -> None:
    lake = make_tables(tmp_path)
    bring(lake, 1, PLAIN, (1, "ours", 1))

    def append(key: int) -> None:
        table = open_sink(tmp_path, "other").table(PLAIN)
        builder = table.new_stream_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.table({"id": [key], "v": ["theirs"], "_seq": [key]}, schema=lake.columns(PLAIN)))
        commit.commit(write.prepare_commit(key), key)
        write.close()
        commit.close()

    before_a_publish += [lambda: append(10), lambda: append(11), lambda: append(12)]
    assert bring(lake, 2, PLAIN, (2, "ours", 2)) == 5
    append(13)
    assert bring(lake, 3, PLAIN, (3, "ours", 3)) == 7
    assert sorted((row[0], row[1]) for row in read(lake, PLAIN)) == [
        *((key, "ours") for key in (1, 2, 3)),
        *((key, "theirs") for key in (10, 11, 12, 13)),
    ]
