from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import Corrupt, InvariantBroken
from snowmelt.store import records
from snowmelt.store.codec import decode
from snowmelt.store.memory import MemoryStore
from snowmelt.store.records import RecordKind, delete_records, get_record, pack, read_record, settle_record, unpack
from tests.kit.values import Book, Empty

BOOK = RecordKind("book", 2, Book, older={1: lambda body: Book(decode(Book, body).title + " (old)", ())})
FIRST = RecordKind("book", 1, Book)
THIRD = RecordKind("book", 3, Book)
PAPER = RecordKind("paper", 2, Book)
WHOLE = Book("hunter2", (b"page", b"\0" * 50))
RAW = pack(BOOK, WHOLE)


def test_a_record_is_read_as_it_was_written() -> None:
    assert unpack(BOOK, "key", RAW) == WHOLE


def test_an_older_version_is_read_as_its_kind_says() -> None:
    assert unpack(BOOK, "key", pack(FIRST, WHOLE)) == Book("hunter2 (old)", ())


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"", "it is empty"),
        (b"\n", "its header can't be read; it has 1 bytes"),
        (b"\0" * 4096, "its header can't be read; it has 4096 bytes"),
        (b"x" * 1000 + b"\n", "its header can't be read"),
        (RAW[:20], "its header can't be read"),
        (RAW[: RAW.index(b"\n")], "its header can't be read"),
        (RAW[:-1], "its body has"),
        (RAW + b"\n", "its body has"),
        (RAW + RAW, "its body has"),
        (RAW.replace(b"hunter2", b"hunter3"), "its hash is wrong"),
        (RAW.replace(b'"kind":"book"', b'"kind":"cook"'), "its hash is wrong"),
        (RAW.replace(b'"version":2', b'"version":1'), "its hash is wrong"),
        (RAW.replace(b'"snowmelt":1', b'"snowmelt":2'), r"it has format 2, known is 1 \(hint: was it written by a newer snowmelt"),
        (pack(PAPER, WHOLE), "it is of kind paper, not book"),
        (pack(THIRD, WHOLE), r"book has version 3, known up to 2 \(hint: was it written by a newer snowmelt"),
        (pack(RecordKind("book", 2, Empty), Empty()), "not a Book"),
    ],
)
def test_anything_else_is_corrupt_and_said_so_by_key_without_content(raw: bytes, found: str) -> None:
    with pytest.raises(Corrupt, match=f"a record of the store can't be read: intent/7: {found}") as raised:
        unpack(BOOK, "intent/7", raw)
    assert "hunter" not in str(raised.value)


@given(st.data())
def test_no_damage_makes_another_value(data: st.DataObject) -> None:
    raw = bytearray(RAW)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        kind = data.draw(st.sampled_from(["flip", "cut", "drop", "insert", "zero"]))
        if kind == "flip" and raw:
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del raw[at:]
        elif kind == "drop":
            del raw[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            raw[at:] = bytes(len(raw) - at)
    try:
        found = unpack(BOOK, "key", bytes(raw))
    except Corrupt:
        return
    assert found == WHOLE
    assert raw == RAW


@given(st.binary(max_size=200))
def test_bytes_from_elsewhere_are_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack(BOOK, "key", raw)


@pytest.mark.parametrize("name", ["", "Book", "a b", "a\n", "7", "x" * 41])
def test_a_kind_has_a_plain_name(name: str) -> None:
    with pytest.raises(InvariantBroken, match="forbidden name"):
        RecordKind(name, 1, Book)


def test_a_kind_is_newer_than_what_it_reads() -> None:
    with pytest.raises(InvariantBroken, match="older"):
        RecordKind("book", 1, Book, older={1: lambda _: WHOLE})


# ---- in parts


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PART_BYTES_MAX", 64)
    monkeypatch.setattr(records, "RECORD_BYTES_MAX", 4096)


def objects(store: MemoryStore) -> dict[str, bytes]:
    return store._objects


@pytest.mark.usefixtures("small_parts")
def test_the_list_of_parts_comes_last_and_goes_last() -> None:
    order: list[str] = []

    class Watched(MemoryStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            order.append(key)
            return super().put_if_absent(key, value)

        def put_data(self, key: str, data: bytes | memoryview) -> None:
            order.append(key)
            super().put_data(key, data)

        def delete(self, keys: Iterable[str]) -> None:
            keys = list(keys)
            order.extend(keys)
            super().delete(keys)

    store = Watched()
    settle_record(store, "book/1", BOOK, WHOLE)
    assert len(order) > 3
    assert order[-1] == "book/1"
    assert set(order) == set(objects(store))
    assert all(key == "book/1.parts/" + hashlib.sha256(objects(store)[key]).hexdigest() for key in order[:-1])
    order.clear()
    delete_records(store, ["book/1"])
    assert order[-1] == "book/1"
    assert objects(store) == {}


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("winner", [Book("x" * 300, (b"\0" * 50,)), Book("small", ())], ids=["large", "small"])
def test_a_loser_takes_away_its_own_parts_and_no_other(winner: Book) -> None:
    store = MemoryStore()
    records.settle_record(store, "book/1", BOOK, winner)
    before = dict(objects(store))
    for _ in range(2):
        settle_record(store, "book/1", BOOK, Book("x" * 300, (b"\0" * 50, b"more" * 40)))
        assert objects(store) == before
    assert read_record(store, "book/1", BOOK) == winner


@pytest.mark.usefixtures("small_parts")
def test_any_damage_to_a_part_or_the_list_is_corrupt() -> None:
    store = MemoryStore()
    settle_record(store, "book/1", BOOK, WHOLE)
    for key, value in dict(objects(store)).items():
        for damaged in (value[:-1], value + b"x", b"", value[:-2] + bytes([value[-2] ^ 1]) + value[-1:], None):
            if damaged is None:
                del objects(store)[key]
            else:
                objects(store)[key] = damaged
            if damaged is None and key == "book/1":
                assert get_record(store, key, BOOK) is None
            else:
                with pytest.raises(Corrupt, match="book/1") as raised:
                    get_record(store, "book/1", BOOK)
                assert "hunter2" not in str(raised.value)
            objects(store)[key] = value
    assert get_record(store, "book/1", BOOK) == WHOLE


@pytest.mark.usefixtures("small_parts")
def test_a_list_that_leads_elsewhere_or_names_too_much_is_corrupt() -> None:
    store = MemoryStore()
    for part in (records._Part(10, "../../etc"), records._Part(65, "0" * 64), records._Part(-1, "0" * 64), records._Part(0, "0" * 64)):
        store.delete(["book/1"])
        store.put_if_absent("book/1", pack(records._PARTS, records._Parts((part,))))
        with pytest.raises(Corrupt, match="out of bounds"):
            get_record(store, "book/1", BOOK)
    store.put_if_absent("book/2", pack(records._PARTS, records._Parts((records._Part(64, "0" * 64),) * 65)))
    with pytest.raises(Corrupt, match="out of bounds"):
        get_record(store, "book/2", BOOK)


@pytest.mark.usefixtures("small_parts")
def test_a_record_that_is_too_large_is_not_written() -> None:
    store = MemoryStore()
    with pytest.raises(InvariantBroken, match="too large"):
        settle_record(store, "book/1", BOOK, Book("x" * 5000, ()))
    assert objects(store) == {}


def test_a_damaged_record_is_let_go_of_all_the_same() -> None:
    store = MemoryStore()
    store.put_if_absent("book/1", b"damage")
    delete_records(store, ["book/1"])
    assert objects(store) == {}
