"""Segments in a bucket: what comes when, what is read of them, and what may be deleted."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.settings import Settings, SinkSettings
from snowmelt.engine.driver.state import Owner, State
from snowmelt.engine.log import storage
from snowmelt.engine.log.handover import own_log
from snowmelt.engine.log.recorder import CaptureStart, LogRecorder
from snowmelt.engine.log.standby import keep_capturing
from snowmelt.engine.log.storage import BucketStorage, FolderStorage, segments_of, spool
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, InvariantBroken, Unavailable
from snowmelt.model.position import Position
from snowmelt.relay.retention import Cut, Relay, SegmentRecord
from snowmelt.segments import Segment
from snowmelt.store.generations import take_generation
from snowmelt.store.memory import MemoryStore
from snowmelt.store.objects import BucketAddress, Store
from tests.kit.made_segments import segment, three, write

BUCKET = BucketAddress("s3://bucket/prefix")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PIECE_BYTES", 64)


class Driver:
    """Keeps segments and gives them their records, one after the other."""

    def __init__(self, store: Store, folder: Path, relay: Relay | None = None) -> None:
        self.state = State(store)
        self.relay = relay or Relay()
        self.generation = take_generation(store, os.urandom(4).hex()).number
        self.kept: list[tuple[Segment, str]] = []
        self.errors: list[BaseException] = []
        self.heard = threading.Semaphore(0)
        self.bucket = BucketStorage(self.state, folder)
        number = self.relay.newest.number + 1 if self.relay.newest is not None else 1
        self.bucket.start(self.generation, number, self._is_kept, self._failed)

    def _is_kept(self, made: Segment, name: str) -> None:
        self.kept.append((made, name))
        self.heard.release()

    def _failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.heard.release()

    def keep(self, made: Segment) -> str:
        self.bucket.keep(made)
        assert self.heard.acquire(timeout=20)
        if self.errors:
            raise self.errors[0]
        return self.kept[-1][1]

    def record(self, made: Segment, name: str) -> SegmentRecord:
        cuts = (Cut(self.relay.end + made.data_bytes, 0),)
        sealed = self.state.put_segment_record(self.relay.decide_record(self.generation, name, made.start, made.end, cuts))
        self.relay.apply(sealed)
        self.bucket.recorded(made)
        return sealed


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    made = MemoryStore()
    monkeypatch.setattr(storage, "open_store", lambda _: made)
    return made


@pytest.fixture
def driver(store: MemoryStore, tmp_path: Path) -> Iterator[Driver]:
    made = Driver(store, tmp_path)
    yield made
    made.bucket.close()
    made.bucket.close()


def data_of(name: str) -> bytes:
    found, read = segments_of(BUCKET)(name)
    whole = np.empty(found.data_bytes, np.uint8)
    read(0, whole)
    return whole.tobytes()


def log_keys(store: MemoryStore) -> set[str]:
    return {key for key in store._objects if key.startswith("log/")}


def test_a_segment_is_kept_in_pieces_and_any_range_of_it_is_read_back(driver: Driver, tmp_path: Path) -> None:
    data = os.urandom(1000)
    made = write(tmp_path, data, segment(tmp_path, 1, 4, data))
    name = driver.keep(made)
    found, read = segments_of(BUCKET)(name)
    assert (found.start, found.end, found.cuts, found.data_bytes) == (made.start, made.end, made.cuts, 1000)
    for at, count in ((0, 1000), (63, 2), (64, 64), (999, 1), (10, 500), (1000, 0)):
        into = np.empty(count, np.uint8)
        read(at, into)
        assert into.tobytes() == data[at : at + count]
    with pytest.raises(Corrupt, match=r"lacks what a record names|shorter"):
        read(999, np.empty(2, np.uint8))
    with pytest.raises(InvariantBroken, match="no path"):
        found.bytes()


def test_what_is_in_the_spool_goes_behind_its_record_and_not_before(driver: Driver, tmp_path: Path) -> None:
    (first, _, _) = three(tmp_path)
    name = driver.keep(first)
    assert first.data_path.exists()
    driver.record(first, name)
    assert not first.data_path.exists()
    assert not first.index_path.exists()
    assert data_of(name) == bytes([1]) * 100


def test_who_starts_goes_on_behind_the_last_record_that_has_data(driver: Driver, tmp_path: Path) -> None:
    assert driver.bucket.last(driver.relay) is None
    start = Position(7, 4)
    head = driver.relay.decide_record(1, driver.bucket.nothing(driver.relay, 0), start, start, (Cut(0, 0),))
    driver.relay.apply(driver.state.put_segment_record(head))
    assert driver.bucket.last(driver.relay) is None
    (first, second, _) = three(tmp_path)
    driver.bucket.close()
    after = Driver(driver.state.store, tmp_path, driver.relay)
    after.record(first, after.keep(first))
    name = after.keep(second)
    # Uploaded, and without a record: it never was.
    found = after.bucket.last(driver.relay)
    assert found is not None
    assert (found.end, found.number) == (first.end, 1)
    after.record(second, name)
    # Another server begins there; what was captured last is of the first one.
    begins = Position(1, 4, 1)
    empty = SegmentRecord(
        number=4,
        generation=after.generation,
        name=after.bucket.nothing(after.relay, 1),
        begins=begins,
        ends=begins,
        first=after.relay.end,
        cuts=(),
    )
    alone = Relay()
    alone.apply(after.state.put_segment_record(empty))
    last = after.bucket.last(alone)
    assert last is not None
    assert last.end == second.end
    after.bucket.close()


def test_who_is_late_puts_its_data_beside_that_of_others_and_records_nothing(driver: Driver, store: MemoryStore, tmp_path: Path) -> None:
    (first, _, _) = three(tmp_path)
    newer = Driver(store, tmp_path, Relay())
    theirs = newer.keep(first)
    with pytest.raises(Fenced, match="a newer driver captures this log"):
        driver.keep(write(tmp_path, b"x" * 100, segment(tmp_path, 9, 4, b"x" * 100)))
    assert data_of(theirs) == bytes([1]) * 100
    assert len(store.numbers("log")) == 2
    newer.bucket.close()


def test_only_what_no_record_can_name_any_more_is_swept(driver: Driver, store: MemoryStore, tmp_path: Path) -> None:
    (first, second, third) = three(tmp_path)
    names = [driver.keep(one) for one in (first, second, third)]
    assert len(log_keys(store)) == 3 + 2 + 4 + 5
    driver.bucket.sweep(driver.relay, 0)
    driver.record(first, names[0])
    # They may be about to get their records.
    driver.bucket.sweep(driver.relay, 99)
    assert [data_of(name) for name in names] == [bytes([n]) * 100 * n for n in (1, 2, 3)]

    # Another driver goes on behind the first: what this one had uploaded is nobody's once its number has a record.
    spooled = tmp_path / "spool"
    spooled.mkdir()
    newer = Driver(store, spooled, driver.relay)
    again = write(spooled, b"y" * 200, segment(spooled, 2, second.start.offset, b"y" * 200))
    newer.record(again, newer.keep(again))
    newer.bucket.sweep(newer.relay, 0)
    newer.bucket.sweep(newer.relay, 0)
    assert data_of(newer.kept[0][1]) == b"y" * 200
    assert [data_of(name) for name in (names[0], names[2])] == [b"\1" * 100, b"\3" * 300]
    with pytest.raises(Corrupt, match="lacks"):
        data_of(names[1])
    # Below all that is needed: a crash came between the record's end and the data's.
    newer.relay.forget(newer.relay.segments[:1])
    newer.bucket.sweep(newer.relay, 1)
    assert data_of(names[0]) == b"\1" * 100, "the last done epoch names it"
    newer.bucket.sweep(newer.relay, 2)
    assert {int(key.split("/")[1][:20]) // 10**8 for key in log_keys(store)} == {2, 3}
    newer.bucket.close()


def test_what_is_let_go_of_leaves_nothing_behind(driver: Driver, store: MemoryStore, tmp_path: Path) -> None:
    records = [driver.record(one, driver.keep(one)) for one in three(tmp_path)]
    assert driver.bucket.begin(driver.relay) == (600, [])
    older = BucketStorage(driver.state, tmp_path)
    assert [driver.bucket.remove(record) for record in records[:2]] == [100, 200]
    # By who did not keep it, and twice.
    assert [older.remove(records[2]), older.remove(records[2])] == [300, 300]
    assert log_keys(store) == set()


def test_a_half_uploaded_segment_is_found_by_its_index(driver: Driver, store: MemoryStore, tmp_path: Path) -> None:
    class Full(MemoryStore):
        def put_data(self, key: str, data: bytes | memoryview) -> None:
            if key.endswith("/000001"):
                raise Unavailable("full")
            super().put_data(key, data)

    full = Full()
    dying = Driver(full, tmp_path)
    (first, second, _) = three(tmp_path)
    with pytest.raises(Unavailable, match="full"):
        dying.keep(second)
    assert len(full.numbers("log")) == 1
    after = Driver(full, tmp_path)
    after.relay.apply(after.state.put_segment_record(after.relay.decide_record(2, "log/other", first.start, first.end, (Cut(100, 0),))))
    after.bucket.sweep(after.relay, 0)
    assert log_keys(full) == set()
    for one in (dying, after):
        one.bucket.close()


def test_records_that_a_dead_driver_had_not_come_to_are_swept(store: MemoryStore, tmp_path: Path) -> None:
    state, all_of_it, found = State(store), Relay(), Relay()
    for number, made in enumerate([*three(tmp_path), segment(tmp_path, 4, 604, b"x" * 50)], 1):
        cuts = (Cut(all_of_it.end + made.data_bytes, 0),)
        sealed = state.put_segment_record(all_of_it.decide_record(1, f"log/{made.index_path.name}", made.start, made.end, cuts))
        all_of_it.apply(sealed)
        if number >= 3:
            found.apply(sealed)
    nothing: Any = None
    recorder = LogRecorder(
        state,
        found,
        nothing,
        FolderStorage(tmp_path),
        Settings(name="p", state=tmp_path, sink=SinkSettings(), source=MySql(), tables=()),
        CaptureStart(generation=2, identity="", position=Position(7, 4)),
        wake=nothing,
        release=lambda: None,
    )
    for done, left in ((0, [1, 2, 3, 4]), (2, [2, 3, 4]), (2, [2, 3, 4]), (4, [3, 4])):
        recorder.sweep(done)
        assert store.numbers("relay") == left, "the last done epoch names it" if done == 2 else "it is held"
    recorder.stop()


FORGED = ["/tmp/victim/000000000002.json", "log/../../000000000002.json", "../log/000000000002.json", "log/000000000002", "log/two.json",
          "log/000000000002.json\n", "log/era-1/../000000000002.json", "state/000000000002.json", ""]  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_record_that_names_anything_else_than_a_segment_of_its_state_touches_nothing(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "log"
    folder.mkdir(parents=True)
    victims = [tmp_path / "000000000002.json", tmp_path / "000000000002.log", tmp_path / "state" / "000000000002.json"]
    for victim in victims:
        victim.write_text("precious")
    sealed = SegmentRecord(number=2, generation=1, name=name, begins=Position(7, 4), ends=Position(7, 104), first=0, cuts=(Cut(100, 0),))
    with pytest.raises(Corrupt, match="names no segment"):
        FolderStorage(folder).remove(sealed)
    with pytest.raises(Corrupt, match="names no segment"):
        segments_of(tmp_path / "state")(name)
    with pytest.raises(Corrupt, match="names no segment"):
        storage.segment_number(sealed)
    assert all(victim.read_text() == "precious" for victim in victims)


@pytest.mark.parametrize(
    "name", ["generation/00000000000000000001", "log/1", "log/00000000000000000001.parts/000000", "../log/1", "log/", ""]
)
def test_in_a_bucket_too(driver: Driver, store: MemoryStore, name: str) -> None:
    before = dict(store._objects)
    with pytest.raises(Corrupt, match="names no segment"):
        driver.bucket.remove(
            SegmentRecord(number=2, generation=1, name=name, begins=Position(7, 4), ends=Position(7, 104), first=0, cuts=(Cut(100, 0),))
        )
    with pytest.raises(Corrupt, match="names no segment"):
        segments_of(BUCKET)(name)
    assert store._objects == before


def test_a_log_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidConfig, match="symbolic link"):
        segments_of(tmp_path / "state")
    settings = Settings(name="p", state=tmp_path / "state", sink=SinkSettings(), source=MySql(), tables=())
    with pytest.raises(InvalidConfig, match="symbolic link"), contextlib.ExitStack() as until:
        own_log(settings, State(MemoryStore()), until)
    with pytest.raises(InvalidConfig, match="symbolic link"):
        keep_capturing(settings, threading.Event(), lambda _: None)


def test_a_state_that_was_moved_or_copied_asks_and_is_adopted_once(tmp_path: Path) -> None:
    state = State(MemoryStore())
    here, there = (Owner("p", "server", place) for place in ("/data/state", "s3://bucket/prefix"))
    state.check_owner(here)
    assert state.bind(here) == here
    for _ in range(2):
        with pytest.raises(InvalidConfig, match=r"begun at /data/state, this is s3://bucket/prefix .*--adopt-state"):
            state.bind(there)
        with pytest.raises(InvalidConfig, match="moved or copied"):
            state.check_owner(there)
    state.check_owner(there, adopt=True)
    with pytest.raises(InvalidConfig, match="another pipeline's"):
        state.bind(Owner("q", "server", there.place), adopt=True)
    with pytest.raises(InvalidConfig, match="moved or copied"):
        state.bind(there)
    assert state.bind(there, adopt=True).server == "server"
    assert state.bind(there, adopt=True) == state.bind(there) == there
    with pytest.raises(InvalidConfig, match="begun at s3://bucket/prefix"):
        state.bind(here)
    assert state.store.numbers("owner") == [1, 2]


def test_a_place_is_a_folder_without_links_or_the_address_of_a_bucket(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    plain = Settings(name="p", state=tmp_path / "state", sink=SinkSettings(), source=MySql(), tables=())
    assert plain.place == replace(plain, state=tmp_path / "link").place == str((tmp_path / "state").resolve())
    assert replace(plain, state=BUCKET).place == replace(plain, state=BucketAddress("s3://bucket/prefix/")).place == "s3://bucket/prefix"


def test_a_spool_is_its_owners_and_those_of_the_dead_are_removed(tmp_path: Path) -> None:
    with spool(tmp_path) as mine, spool(tmp_path) as other:
        (mine / "1.log").write_bytes(b"x")
        dead = tmp_path / "snowmelt-spool-dead"
        dead.mkdir()
        (dead / "1.log").write_bytes(b"x")
        with spool(tmp_path):
            assert dead.exists(), "it may be of who is just beginning"
        for folder in (dead, mine, other):
            os.utime(folder, (1, 1))
        with spool(tmp_path):
            assert not dead.exists()
        assert (mine / "1.log").exists()
        assert (mine.stat().st_mode & 0o777, other.exists()) == (0o700, True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfig, match="can't be spooled"), spool(tmp_path / "file" / "below"):
        pass
