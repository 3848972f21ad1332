"""What every store does, whatever it is made of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore.store
import pytest

from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken
from snowmelt.store.contract import DATA_BYTES_MAX, Store, key_of, numbered
from snowmelt.store.generations import Generation, check_exclusive, check_shared, is_newest, take_generation
from snowmelt.store.local import LocalStore
from snowmelt.store.memory import MemoryStore
from snowmelt.store.numbered import Lost, Won, newest, settle
from snowmelt.store.objects import ObjectStore, open_store
from snowmelt.store.records import PART_BYTES_MAX, RecordKind, delete_records, get_record, read_record, settle_record
from tests.kit.s3 import BUCKET, S3Server, s3_server
from tests.kit.values import Book

BOOK = RecordKind("book", 1, Book)
_prefixes = itertools.count()
Again = Callable[[], Store]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["memory", "local", "obstore-memory", "s3"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Again:
    """Opens the same store, as another process would."""
    kind = request.param
    if kind == "local":
        return lambda: LocalStore(tmp_path / "deep" / "store")
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3")
        address = f"s3://{BUCKET}/test-{next(_prefixes)}/store"
        return lambda: open_store(address, server.options())
    if kind == "memory":
        memory = MemoryStore()
        return lambda: memory
    bucket = obstore.store.MemoryStore()
    return lambda: ObjectStore(bucket, "obstore-memory")


@pytest.fixture
def store(again: Again) -> Store:
    return again()


def test_an_empty_store_has_nothing_and_says_so(store: Store) -> None:
    assert store.get("intent/x") is None
    assert store.numbers("intent") == []
    assert newest(store, "intent") is None
    store.delete(["intent/x", "nothing"])


def test_the_first_of_two_writers_wins_and_stays(store: Store, again: Again) -> None:
    assert store.put_if_absent("intent/x", b"first")
    assert not again().put_if_absent("intent/x", b"second")
    assert not store.put_if_absent("intent/x", b"first")
    assert again().get("intent/x") == store.read("intent/x") == b"first"


@pytest.mark.parametrize("value", [b"", b"\0", b"\r\n\xff" * 999, bytes(range(256)) * 40_000], ids=len)
def test_bytes_come_back_as_they_went(store: Store, again: Again, value: bytes) -> None:
    assert store.put_if_absent("a", value)
    store.put_data("b/c", memoryview(value))
    assert again().get("a") == again().get("b/c") == value


def test_what_a_record_names_and_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(Corrupt, match="lacks what a record names: segment/x"):
        store.read("segment/x")
    with pytest.raises(Corrupt, match="lacks what a record names: segment/x"):
        store.read_into("segment/x", 0, memoryview(bytearray(1)))


def test_a_range_is_read_as_it_is_and_one_that_is_not_all_there_is_an_error(store: Store, again: Again) -> None:
    data = bytes(range(256)) * 100
    store.put_data("segment/x", data)
    for at, count in ((0, 25_600), (1, 1), (25_599, 1), (300, 10_000), (25_600, 0)):
        found = bytearray(count)
        again().read_into("segment/x", at, memoryview(found))
        assert found == data[at : at + count]
    for at, count in ((0, 25_601), (25_599, 2), (25_600, 1), (99_999, 5)):
        with pytest.raises(Corrupt, match="shorter"):
            store.read_into("segment/x", at, memoryview(bytearray(count)))


def test_data_may_be_written_again_if_it_is_the_same(store: Store) -> None:
    store.put_data("segment/x", b"same")
    store.put_data("segment/x", memoryview(b"same"))
    with pytest.raises(Corrupt, match="other content"):
        store.put_data("segment/x", b"other")
    assert store.get("segment/x") == b"same"


def test_a_deleted_key_is_absent_and_free_and_deleting_again_is_harmless(store: Store) -> None:
    for key in ("a/1", "a/2", "a/3"):
        store.put_if_absent(key, b"x")
    for _ in range(2):
        store.delete(key for key in ("a/0", "a/1", "b/9", "a/3"))
    assert [store.get(f"a/{number}") for number in (1, 2, 3)] == [None, b"x", None]
    assert store.put_if_absent("a/1", b"y")


def test_numbers_are_those_right_under_a_prefix_in_order(store: Store) -> None:
    for number in (11, 2, 9, 10**20 - 1, 0):
        store.put_if_absent(numbered("intent", number), b"x")
    for key in ("intent/7", "intent/x", "intents/" + "7" * 20, "intent.parts/" + "8" * 20, "intent/deep/" + "9" * 20):
        store.put_if_absent(key, b"x")
    assert store.numbers("intent") == [0, 2, 9, 11, 10**20 - 1]
    assert store.numbers("int") == []


FORBIDDEN = ["", ".", "..", "/", "/a", "a/", "a//b", "a/../b", "../a", "a/..", "a..b", ".tmp/x", "a/.hidden", "a b", "a\\b", "ä", "a\n"]


@pytest.mark.parametrize("key", [*FORBIDDEN, "a\0", "a%2fb", "a?b", "~", "a:b", "x" * 129, "/".join("abcdefghi"), "ab/" * 200 + "a"])
def test_a_key_that_could_lead_elsewhere_is_refused_by_every_method(store: Store, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put_if_absent(key, b""),
        lambda: store.put_data(key, b""),
        lambda: store.get(key),
        lambda: store.read(key),
        lambda: store.read_into(key, 0, memoryview(bytearray(1))),
        lambda: store.delete([key]),
        lambda: store.numbers(key),
    ]
    for call in calls:
        with pytest.raises(InvariantBroken, match="key of the store"):
            call()


@pytest.mark.parametrize("key", ["a", "A-Z_0.9=x", "-", "=", "_", "table=a.b-c/0/1/2/3/4/5/6", "x" * 128, "a.", "con"])
def test_every_other_key_is_its_own_place(store: Store, key: str) -> None:
    assert store.put_if_absent(key, key.encode())
    assert store.get(key) == key.encode()
    assert store.get(key + "0" if len(key) < 128 else key[1:]) is None


def test_parts_of_keys_have_no_slash() -> None:
    assert key_of("a", "b") == "a/b"
    for parts in (("a/b",), ("a", "/b"), ("a", ""), ()):
        with pytest.raises(InvariantBroken):
            key_of(*parts)
    for number in (-1, 10**20):
        with pytest.raises(InvariantBroken):
            numbered("a", number)


def test_an_object_that_is_too_large_is_refused(store: Store) -> None:
    with pytest.raises(InvariantBroken, match="too large"):
        store.put_data("a", memoryview(bytearray(DATA_BYTES_MAX + 1)))


def test_of_sixteen_threads_exactly_one_wins_each_key(again: Again) -> None:
    keys = [numbered("intent", number) for number in range(40)]
    wins: list[tuple[str, int]] = []
    together = threading.Barrier(16)

    def write(writer: int) -> None:
        store = again()
        together.wait()
        wins.extend((key, writer) for key in keys if store.put_if_absent(key, b"%d" % writer))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in wins) == keys
    assert all(again().get(key) == b"%d" % writer for key, writer in wins)


# ---- what is built on top


def test_the_newest_number_is_found_and_never_goes_back(store: Store) -> None:
    for number in range(5, 13):
        store.put_if_absent(numbered("intent", number), b"x")
    assert newest(store, "intent") == newest(store, "intent", since=12) == 12
    assert newest(store, "intent", since=13) is None


def test_who_settles_a_record_learns_whose_it_is(store: Store) -> None:
    assert settle(store, "intent/1", b"mine") == Won()
    assert settle(store, "intent/1", b"mine") == Won()
    assert settle(store, "intent/1", b"yours") == Lost(b"mine")


def test_a_record_comes_back_as_it_was_written(store: Store, again: Again) -> None:
    book = Book("title", (b"page",))
    assert get_record(store, "book/1", BOOK) is None
    assert settle_record(store, "book/1", BOOK, book) == Won()
    assert settle_record(again(), "book/1", BOOK, Book("another", ())) == Lost(book)
    assert get_record(again(), "book/1", BOOK) == read_record(store, "book/1", BOOK) == book
    with pytest.raises(Corrupt, match="lacks"):
        read_record(store, "book/2", BOOK)


def large(title: str, pages: int = 3) -> Book:
    """Base64 makes four bytes of three; pages 0 to n - 2 are alike in all large books."""
    page = PART_BYTES_MAX * 3 // 4
    return Book(title, tuple(bytes([number]) * page for number in range(pages)))


def test_a_large_record_lies_in_parts_and_is_one_all_the_same(store: Store, again: Again) -> None:
    key, first, second = "book/1", large("first"), large("second", 4)
    assert settle_record(store, key, BOOK, first) == Won()
    assert settle_record(store, key, BOOK, first) == Won()
    assert settle_record(again(), key, BOOK, second) == Lost(first)
    # What the loser removed was its own alone.
    assert read_record(again(), key, BOOK) == first
    assert len(store.read(key)) < 2000
    assert settle_record(store, "book/2", BOOK, Book("small", ())) == Won()
    assert settle_record(store, "book/2", BOOK, second) == Lost(Book("small", ()))

    delete_records(again(), [key, "book/2", "book/3"])
    assert store.get(key) is store.get("book/2") is None
    assert settle_record(store, key, BOOK, second) == Won()
    assert get_record(store, key, BOOK) == second


def test_a_large_record_without_one_of_its_parts_is_corrupt(store: Store) -> None:
    settle_record(store, "book/1", BOOK, large("title"))
    listed = store.read("book/1").split(b'"sha256":"')
    part = listed[2][:64].decode()
    store.delete([f"book/1.parts/{part}"])
    with pytest.raises(Corrupt, match="lacks what a record names"):
        read_record(store, "book/1", BOOK)
    store.put_data(f"book/1.parts/{part}", b"x" * PART_BYTES_MAX)
    with pytest.raises(Corrupt, match="hash of a part is wrong"):
        get_record(store, "book/1", BOOK)


def test_each_driver_takes_the_next_generation_and_the_older_knows(store: Store, again: Again) -> None:
    first = take_generation(store, "aa")
    assert (first, is_newest(store, 1)) == (Generation(1, "aa"), True)
    second = take_generation(again(), "bb")
    assert second == Generation(2, "bb")
    assert (is_newest(store, 1), is_newest(store, 2), is_newest(store, 3)) == (False, True, False)
    # Older ones are trimmed, the newest never is.
    store.delete([numbered("generation", 1)])
    assert take_generation(store, "cc").number == 3


def test_a_task_that_sees_another_store_than_its_driver_is_told_so(store: Store, again: Again) -> None:
    with pytest.raises(InvalidConfig, match=r"not shared: this process does not see what the driver wrote: generation 1 is not there"):
        check_shared(store, 1, "aa")
    take_generation(store, "aa")
    check_shared(again(), 1, "aa")
    with pytest.raises(InvalidConfig, match="another driver's"):
        check_shared(store, 1, "bb")


def test_a_store_is_asked_whether_it_keeps_writers_apart(store: Store) -> None:
    check_exclusive(store, "nonce")
    assert store.get("probe/nonce") is None


def test_a_store_that_ignores_the_condition_is_found_out() -> None:
    class Careless(MemoryStore):
        def put_if_absent(self, key: str, value: bytes) -> bool:
            self.delete([key])
            return super().put_if_absent(key, value)

    with pytest.raises(InvalidConfig, match="does not keep two writers apart"):
        check_exclusive(Careless(), "nonce")


def test_the_bytes_of_a_record_stay_as_they_are(store: Store) -> None:
    # Stores outlive versions of snowmelt: a change here is a change of format.
    take_generation(store, "aa")
    sha256 = b"ff832276127f1b5b36b95a51861f21335ebe5d0a0a48d99bc560d30e40a86c8d"
    header = b'{"bytes":25,"kind":"generation","sha256":"%s","snowmelt":1,"version":1}\n' % sha256
    assert store.read("generation/00000000000000000001") == header + b'{"nonce":"aa","number":1}'
