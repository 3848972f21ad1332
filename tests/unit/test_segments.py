"""Segments on disk: what is there is whole, what is not whole is an error or gone."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from snowmelt.databases.mysql.gtid import GtidSet, MariaDbGtidSet, MySqlGtidSet
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.errors import Corrupt, InvariantBroken, Unavailable
from snowmelt.model.position import Position
from snowmelt.segments import PAGE, SegmentWriter, list_segments, read_segment, remove_torn
from tests.kit.made_segments import segment, three, write


@pytest.mark.parametrize(
    "gtids",
    [None, MySqlGtidSet(), MySqlGtidSet.parse("11111111-2222-3333-4444-555555555555:1-5:7"), MariaDbGtidSet.parse("0-1-5,3-2-9")],
)
@pytest.mark.parametrize("crc_length", [0, 4])
def test_what_is_read_is_what_was_written(tmp_path: Path, gtids: GtidSet | None, crc_length: int) -> None:
    data = bytes(range(200))
    made = write(tmp_path, data, segment(tmp_path, 1, 4, data, crc_length=crc_length, gtids=gtids))
    assert read_segment(made.index_path) == made
    assert read_segment(made.data_path) == made
    assert made.bytes().tobytes() == data
    assert not made.bytes().flags.writeable
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000000000001.json", "000000000001.log"]


def test_segments_are_listed_in_order(tmp_path: Path) -> None:
    assert list_segments(tmp_path) == []
    assert three(tmp_path) == list_segments(tmp_path)


def test_missing_data_is_never_empty_data(tmp_path: Path) -> None:
    made = three(tmp_path)
    made[1].data_path.unlink()
    for read in (lambda: list_segments(tmp_path), lambda: read_segment(made[1].index_path), made[1].bytes):
        with pytest.raises(Corrupt, match="missing"):
            read()


def test_a_missing_index_is_a_gap_and_its_data_is_kept(tmp_path: Path) -> None:
    made = three(tmp_path)
    made[1].index_path.unlink()
    with pytest.raises(Corrupt, match="segments are missing"):
        list_segments(tmp_path)
    remove_torn(tmp_path)
    assert made[1].data_path.exists()
    with pytest.raises(Corrupt, match="index of a segment is missing"):
        read_segment(made[1].data_path)


def test_a_missing_segment_is_a_gap(tmp_path: Path) -> None:
    made = three(tmp_path)
    made[1].index_path.unlink()
    made[1].data_path.unlink()
    with pytest.raises(Corrupt, match="segments are missing"):
        list_segments(tmp_path)


def test_the_oldest_segments_may_be_gone(tmp_path: Path) -> None:
    made = three(tmp_path)
    made[0].index_path.unlink()
    made[0].data_path.unlink()
    assert list_segments(tmp_path) == made[1:]


def test_a_gap_in_the_log_is_found(tmp_path: Path) -> None:
    one = segment(tmp_path, 1, 4, b"a" * 100)
    two = segment(tmp_path, 2, 200, b"b" * 100)
    write(tmp_path, b"a" * 100, one)
    write(tmp_path, b"b" * 100, two)
    with pytest.raises(Corrupt, match="follow"):
        list_segments(tmp_path)


def test_a_segment_that_begins_elsewhere_than_it_follows_is_found(tmp_path: Path) -> None:
    write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    write(tmp_path, b"b" * 100, replace(segment(tmp_path, 2, 200, b"b" * 100), follows=Position(7, 104)))
    with pytest.raises(Corrupt, match="gap"):
        list_segments(tmp_path)


def test_a_new_file_follows_the_end_of_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    two = segment(tmp_path, 2, 4, b"b" * 100)
    moved = replace(two, log="binlog.000008", start=Position(8, 4), end=replace(two.end, file=8), follows=Position(7, 104))
    write(tmp_path, b"b" * 100, moved)
    assert list_segments(tmp_path)[1] == moved


def test_another_servers_log_may_begin_anywhere_in_a_later_era(tmp_path: Path) -> None:
    write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    two = replace(segment(tmp_path, 2, 300, b"b" * 100), log="log.000002", follows=Position(7, 104))
    moved = replace(two, start=Position(2, 300, 1), end=Position(2, 400, 1))
    write(tmp_path, b"b" * 100, moved)
    assert list_segments(tmp_path)[1] == moved


@pytest.mark.parametrize("change", [b"a", b"", b"a" * 101])
def test_another_length_is_found(tmp_path: Path, change: bytes) -> None:
    made = write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    made.data_path.write_bytes(change)
    for read in (lambda: read_segment(made.index_path), made.bytes):
        with pytest.raises(Corrupt):
            read()


def test_changed_data_without_checksums_of_events_is_found(tmp_path: Path) -> None:
    made = write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100, crc_length=0))
    made.data_path.write_bytes(b"a" * 99 + b"b")
    with pytest.raises(Corrupt, match="checksum"):
        made.bytes()


def test_any_changed_byte_of_an_index_is_found(tmp_path: Path) -> None:
    made = write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    raw = made.index_path.read_bytes()
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        made.index_path.write_bytes(damaged)
        try:
            found = read_segment(made.index_path)
        except Corrupt:
            continue
        # White space is nobody's number.
        assert found == made
    for cut in range(len(raw)):
        made.index_path.write_bytes(raw[:cut])
        with pytest.raises(Corrupt):
            read_segment(made.index_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", 1), ("version", 5), ("data_bytes", 5), ("end", 50), ("file_begins", 5), ("file_begins", -1), ("cuts", [])],
)
def test_an_index_whose_numbers_contradict_each_other_is_refused(tmp_path: Path, name: str, value: object) -> None:
    made = write(tmp_path, b"a" * 100, segment(tmp_path, 1, 4, b"a" * 100))
    fields = json.loads(made.index_path.read_text()) | {name: value}
    del fields["checksum"]
    checksum = zlib.crc32(json.dumps({key: fields[key] for key in sorted(fields)}).encode())
    made.index_path.write_text(json.dumps(fields | {"checksum": checksum}))
    with pytest.raises(Corrupt, match="can't be read"):
        read_segment(made.index_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"crc_length": 3},
        {"crc_length": 0},
        {"event_bytes_max": 10**9},
        {"event_bytes_max": 0},
        {"flavour": "postgres"},
        {"version": [8]},
        {"restart": "x"},
    ],
)
def test_what_an_index_says_in_the_databases_own_words_must_hold_together(tmp_path: Path, wrong: dict[str, object]) -> None:
    made = segment(tmp_path, 1, 4, b"a" * 100)
    assert details_of(made).crc_length == 4
    with pytest.raises(Corrupt):
        details_of(replace(made, own=json.dumps(json.loads(made.own) | wrong)))


def test_a_torn_tail_is_removed(tmp_path: Path) -> None:
    made = three(tmp_path)
    (tmp_path / "000000000004.log").write_bytes(b"half")
    (tmp_path / "000000000004.tmp").write_bytes(b"{")
    remove_torn(tmp_path)
    assert list_segments(tmp_path) == made
    assert not list(tmp_path.glob("*4.*"))


def test_data_that_was_taken_back_is_not_in_the_segment(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.write(1, memoryview(b"a" * 100))
    writer.write(1, memoryview(b"half an event"))
    writer.truncate(100)
    writer.write(1, memoryview(b"b" * 50))
    made = segment(tmp_path, 1, 4, b"a" * 100 + b"b" * 50)
    writer.seal(made)
    assert made.bytes().tobytes() == b"a" * 100 + b"b" * 50
    assert read_segment(made.index_path) == made


@pytest.mark.parametrize("shift", [0, 7])
def test_a_large_segment_is_written_around_the_cache_and_is_the_same(tmp_path: Path, shift: int) -> None:
    # Memory at a page or not; pieces of whole pages, then one that is not, then part of it taken back, then more.
    memory = np.random.default_rng(1).integers(0, 256, (6 << 20) + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + shift
    data = memory[start : start + (6 << 20)]
    writer = SegmentWriter(tmp_path)
    writer.write(1, data[: 2 << 20].data)
    writer.write(1, data[2 << 20 : (4 << 20) + 100].data)
    writer.truncate((3 << 20) + 17)
    writer.write(1, data[(3 << 20) + 17 : 5 << 20].data)
    writer.write(1, data[5 << 20 :].data)
    made = segment(tmp_path, 1, 4, data.tobytes(), crc_length=0)
    writer.seal(made)
    assert made.bytes().tobytes() == data.tobytes()
    assert read_segment(made.index_path) == made


def test_what_was_abandoned_never_was(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.write(1, memoryview(b"a" * 100))
    writer.abandon()
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_a_segment_of_another_length_than_counted_is_not_sealed(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path)
    writer.write(1, memoryview(b"a" * 99))
    with pytest.raises(InvariantBroken):
        writer.seal(segment(tmp_path, 1, 4, b"a" * 100))
    assert not list(tmp_path.glob("*.json"))


def test_a_disk_that_refuses_is_unavailable(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "absent")
    with pytest.raises(Unavailable, match="can't be written"):
        writer.write(1, memoryview(b"a"))
