"""The store in a folder: exclusive between processes, durable in the right order, closed to what is not its own."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, OutcomeUnknown, Unavailable
from snowmelt.store.contract import key_of_part, numbered
from snowmelt.store.local import LocalStore
from snowmelt.store.numbered import Won, newest, settle
from snowmelt.store.records import RecordKind, read_record
from tests.kit.values import Book

BOOK = RecordKind("book", 1, Book)
TITLE = "x" * 20_000

# Writes books from a number on for ever, and says which are written.
WRITER = """
import sys
from snowmelt.store.local import LocalStore
from snowmelt.store.contract import numbered
from snowmelt.store.records import RecordKind, settle_record
from tests.kit.values import Book
root, number = sys.argv[1], int(sys.argv[2])
store, kind = LocalStore(root), RecordKind("book", 1, Book)
while True:
    settle_record(store, numbered("book", number), kind, Book(f"{number} {'x' * 20_000}", ()))
    print(number, flush=True)
    number += 1
"""

# Claims each number, and says which it won.
RACER = """
import sys
from snowmelt.store.local import LocalStore
from snowmelt.store.contract import numbered
store = LocalStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(*[n for n in range(400) if store.put_if_absent(numbered("claim", n), sys.argv[2].encode())])
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_writer_killed_at_any_instant_leaves_whole_records_and_all_that_it_told_of(tmp_path: Path) -> None:
    store, seed = LocalStore(tmp_path), random.Random(7)
    written = 0
    for _ in range(30):
        last = newest(store, "book")
        with start(WRITER, str(tmp_path), str(0 if last is None else last + 1)) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline())]
            time.sleep(seed.uniform(0.001, 0.1))
            writer.kill()
            # What was told and not yet heard counts too; a line cut short does not.
            told += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        there = store.numbers("book")
        assert there == list(range(len(there)))
        # One record may be there that nobody was told of: the process died between the two.
        assert told[-1] in (there[-1], there[-1] - 1)
        for number in there[written:]:
            assert read_record(store, numbered("book", number), BOOK) == Book(f"{number} {TITLE}", ())
        written = len(there)
    assert written > 60


def test_of_two_processes_exactly_one_wins_each_number(tmp_path: Path) -> None:
    with start(RACER, str(tmp_path), "one") as one, start(RACER, str(tmp_path), "two") as two:
        for racer in (one, two):
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in (one, two):
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        ones, twos = ([int(number) for number in racer.communicate()[0].split()] for racer in (one, two))
    assert sorted(ones + twos) == list(range(400))
    store = LocalStore(tmp_path)
    assert all(store.get(numbered("claim", number)) == (b"one" if number in ones else b"two") for number in range(400))


# ---- durable, in this order


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store asks of the system, with names of files instead of descriptors."""
    taken: list[str] = []

    def name(descriptor: int) -> str:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return "temporary" if "/.tmp/" in path else os.path.basename(path)

    def watch(call: str, say: Callable[..., str]) -> None:
        real = getattr(os, call)

        def watched(*arguments: Any, **options: Any) -> Any:
            what = say(*arguments, **options)
            result = real(*arguments, **options)
            taken.append(f"{call} {what}")
            return result

        monkeypatch.setattr(os, call, watched)

    watch("fsync", name)
    watch("mkdir", lambda path, **_: os.path.basename(path))
    watch("link", lambda _, target, **__: target)
    return taken


def test_a_record_is_durable_before_it_is_seen_and_its_name_before_it_is_told(tmp_path: Path, steps: list[str]) -> None:
    store = LocalStore(tmp_path / "root")
    store.put_if_absent("a/b/c", b"x")
    made = steps[: steps.index("fsync temporary")]
    assert [step for step in made if step.startswith("mkdir")] == ["mkdir root", "mkdir .tmp", "mkdir a", "mkdir b"]
    # After each folder was made, the one above it was made durable.
    for folder, above in (("root", tmp_path.name), (".tmp", "root"), ("a", "root"), ("b", "a")):
        assert f"fsync {above}" in made[made.index(f"mkdir {folder}") :]
    assert steps[len(made) :] == ["fsync temporary", "link c", "fsync b"]
    steps.clear()
    store.put_if_absent("a/b/d", b"x")
    assert steps == ["fsync temporary", "link d", "fsync b"]


def test_folders_that_another_made_are_made_durable_too(tmp_path: Path, steps: list[str]) -> None:
    LocalStore(tmp_path / "root").put_if_absent("a/b/c", b"x")
    steps.clear()
    LocalStore(tmp_path / "root").put_if_absent("a/b/d", b"x")
    assert {f"fsync {tmp_path.name}", "fsync root", "fsync a"} <= set(steps[: steps.index("link d")])


def test_who_finds_a_record_makes_its_name_durable_before_telling(tmp_path: Path, steps: list[str]) -> None:
    store = LocalStore(tmp_path / "root")
    store.put_if_absent("a/b", b"x")
    steps.clear()
    assert store.get("a/b") == b"x"
    assert steps == ["fsync a"]
    steps.clear()
    assert not store.put_if_absent("a/b", b"y")
    assert steps == ["fsync temporary", "fsync a"]


def break_fsync(monkeypatch: pytest.MonkeyPatch, *, folders: bool, error: int) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}") == folders:
            raise OSError(error, os.strerror(error))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_disk_that_is_full_means_that_nothing_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    with monkeypatch.context() as patch:
        break_fsync(patch, folders=False, error=errno.ENOSPC)
        with pytest.raises(Unavailable, match="is the disk full"):
            store.put_if_absent("a/b", b"x")
    assert store.get("a/b") is None
    assert os.listdir(tmp_path / ".tmp") == []
    assert store.put_if_absent("a/b", b"y")


def test_a_folder_that_can_not_be_made_durable_leaves_the_outcome_unknown_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/a", b"x")
    with monkeypatch.context() as patch:
        break_fsync(patch, folders=True, error=errno.EIO)
        with pytest.raises(OutcomeUnknown, match="perhaps not durable"):
            store.put_if_absent("a/b", b"x")
        # It is there, and yet nobody may rely on it.
        with pytest.raises(Unavailable):
            store.get("a/b")
        with pytest.raises(Unavailable):
            store.put_if_absent("a/b", b"x")
        with pytest.raises(OutcomeUnknown):
            settle(store, "a/c", b"x")
    assert settle(store, "a/b", b"x") == settle(store, "a/c", b"x") == Won()


# ---- only what is its own


def test_nothing_is_read_or_written_through_a_link_out_of_the_store(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_bytes(b"hunter2")
    store = LocalStore(root)
    store.put_if_absent("a/b", b"x")
    (root / "a" / "link").symlink_to(outside / "secret")
    (root / "a" / "dangling").symlink_to(outside / "new")
    (root / "folder").symlink_to(outside)
    for key in ("a/link", "folder/secret", "folder/new"):
        with pytest.raises(Corrupt, match="neither a file nor a folder"):
            store.get(key)
    for key in ("folder/secret", "folder/new", "folder/deeper/new"):
        with pytest.raises(Corrupt, match="neither a file nor a folder"):
            store.put_if_absent(key, b"x")
        with pytest.raises(Corrupt, match="neither a file nor a folder"):
            store.delete([key])
    with pytest.raises(Corrupt, match="neither a file nor a folder"):
        store.numbers("folder")
    assert not store.put_if_absent("a/dangling", b"x")
    store.delete(["a/link"])
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"secret": b"hunter2"}


def test_pipes_and_folders_are_no_records(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe")
    for key in ("a/pipe", "a"):
        assert not store.put_if_absent(key, b"x")
        with pytest.raises(Corrupt, match="neither a file nor a folder"):
            store.get(key)
    with pytest.raises(InvariantBroken, match="folder of another"):
        store.delete(["a"])
    store.put_if_absent("file", b"x")
    with pytest.raises(Corrupt):
        store.put_if_absent("file/below", b"x")


def test_a_file_that_damage_left_empty_counts_as_there(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "a").write_bytes(b"")
    assert not store.put_if_absent("a", b"x")
    assert store.get("a") == b""


def test_a_root_may_be_a_link_and_is_where_it_was_when_the_store_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    store = LocalStore("root/store")
    monkeypatch.chdir("/")
    store.put_if_absent("a", b"x")
    assert (tmp_path / "real" / "store" / "a").read_bytes() == b"x"


def test_the_folder_of_parts_goes_with_the_last_of_them_and_comes_again(tmp_path: Path, steps: list[str]) -> None:
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    keys = [key_of_part("held/1", name) for name in ("a", "b")]
    for _ in range(2):
        for key in keys:
            store.put_data(key, b"x")
        other.delete(keys[:1])
        assert store.get(keys[1]) == b"x"
        other.delete(keys)
        other.delete(keys)
        assert sorted(path.name for path in (tmp_path / "held").iterdir()) == []
        steps.clear()
    # What made it durable once was another folder of this name.
    store.put_data(keys[0], b"x")
    assert steps.count("fsync held") >= 1, steps


def test_a_folder_that_somebody_removed_is_made_anew(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a/b", b"x")
    (tmp_path / "a" / "b").unlink()
    (tmp_path / "a").rmdir()
    assert settle(store, "a/b", b"x") == Won()


def test_what_a_crash_left_behind_goes_when_it_is_old(tmp_path: Path) -> None:
    LocalStore(tmp_path).put_if_absent("a", b"x")
    for name, age_s in (("old", 4000), ("new", 10)):
        (tmp_path / ".tmp" / name).write_bytes(b"torn")
        os.utime(tmp_path / ".tmp" / name, (time.time() - age_s,) * 2)
    LocalStore(tmp_path).put_if_absent("b", b"x")
    assert os.listdir(tmp_path / ".tmp") == ["new"]


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_folder_that_does_not_let_us_in_is_for_the_user_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    store = LocalStore(tmp_path)
    store.put_if_absent("a", b"x")

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", refuse)
    for call in (lambda: store.get("a"), lambda: store.put_if_absent("b", b""), lambda: store.numbers("a"), lambda: store.delete(["a"])):
        with pytest.raises(InvalidConfig, match="refuses access"):
            call()


def test_a_root_that_is_a_file_is_for_the_user_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "deeper"):
        store = LocalStore(root)
        for call in (lambda store=store: store.get("a"), lambda store=store: store.put_if_absent("a", b"")):
            with pytest.raises(InvalidConfig, match="not a folder"):
                call()


def test_descriptors_are_given_back_whatever_happens(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        store.put_if_absent("a/b", b"x")
        store.put_data("a/b", b"x")
        store.get("a/none")
        store.get("none/none")
        store.numbers("a")
        store.delete(["a/b", "none/none"])
        for key in ("link/x", "a"):
            with pytest.raises(Corrupt):
                store.get(key)
    assert len(os.listdir("/proc/self/fd")) == before
