"""When the lease of a union read is over, by what its tasks say to the holder."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from snowmelt.engine.union.holder import HELD, READ, HolderAddress, Readers
from snowmelt.errors import Unavailable

READ_S, PARTLY_READ_S = 5.0, 60.0


def fine() -> None:
    pass


class World:
    """The holder's side, and tasks that talk to it from the same thread."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.readers = Readers(self._listening, ["7/0", "7/1"], read_s=READ_S, partly_read_s=PARTLY_READ_S)
        self._tasks: list[socket.socket] = []

    @property
    def address(self) -> HolderAddress:
        return self.readers.address

    def begin(self, bucket: str, *, token: str = "") -> socket.socket:
        task = socket.create_connection((self.address.host, self.address.port), 10)
        self._tasks.append(task)
        self.readers.serve(1, fine)
        self.say(task, f"{token or self.address.token} {bucket}\n".encode())
        return task

    def say(self, task: socket.socket, said: bytes) -> None:
        task.sendall(said)
        self.readers.serve(1, fine)

    def end(self, task: socket.socket) -> None:
        task.close()
        self.readers.serve(1, fine)

    def over_after(self, seconds: float) -> bool:
        return self.readers.over(time.monotonic() + seconds)

    def close(self) -> None:
        for task in self._tasks:
            task.close()
        self._listening.close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    yield found
    found.close()


def read_whole(world: World, bucket: str) -> None:
    task = world.begin(bucket)
    world.say(task, READ)
    assert task.recv(2 * len(HELD), socket.MSG_WAITALL) == 2 * HELD
    world.end(task)


def test_a_read_whose_tasks_have_not_begun_is_not_over(world: World) -> None:
    assert not world.over_after(1e9)


def test_a_read_is_over_soon_after_all_of_it_was_read(world: World) -> None:
    read_whole(world, "7/0")
    read_whole(world, "7/1")
    # A query may read a table twice.
    assert not world.over_after(READ_S - 1)
    assert world.over_after(READ_S)


def test_a_read_of_which_a_part_was_not_read_to_its_end_is_over_later(world: World) -> None:
    read_whole(world, "7/0")
    world.end(world.begin("7/1"))
    assert not world.over_after(PARTLY_READ_S - 1)
    assert world.over_after(PARTLY_READ_S)


def test_a_read_is_not_over_while_a_task_reads_however_often_others_did(world: World) -> None:
    slow = world.begin("7/1")
    for _ in range(2):
        read_whole(world, "7/0")
        assert not world.over_after(1e9)
    world.say(slow, READ)
    assert not world.over_after(1e9)
    world.end(slow)
    assert world.over_after(READ_S)
    # It is used again in time.
    again = world.begin("7/0")
    assert not world.over_after(1e9)
    world.end(again)
    assert world.over_after(READ_S)


def test_what_is_no_task_of_this_read_is_not_answered_and_does_not_count(world: World) -> None:
    for bucket, token in (("7/0", "0" * 32), ("8/0", ""), ("", ""), ("7/0", "ä")):
        stranger = world.begin(bucket, token=token)
        assert stranger.recv(10) == b""
    endless = world.begin("7/0", token="x" * 300)
    # Some of it was not taken in any more.
    with pytest.raises(ConnectionResetError):
        endless.recv(10)
    assert not world.over_after(1e9)
    task = world.begin("7/0")
    world.say(task, b"what?\n")
    assert task.recv(len(HELD)) == HELD
    assert task.recv(10) == b""


def test_a_lease_that_is_lost_is_not_called_held(world: World) -> None:
    def lost() -> None:
        raise Unavailable("lost")

    task = world.begin("7/0")
    assert task.recv(len(HELD)) == HELD
    task.sendall(READ)
    with pytest.raises(Unavailable):
        world.readers.serve(1, lost)
    assert world.readers._unread == {"7/0", "7/1"}


def test_the_token_is_in_no_text(world: World) -> None:
    assert world.address.token not in repr(world.address)


def test_a_holder_is_a_small_process() -> None:
    """There is one for each read. Arrow alone would make it three times as large."""
    asked = "import sys, snowmelt.engine.union.holder; print([name for name in ('numpy', 'pyarrow', 'pyspark') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout.strip() == "[]"
