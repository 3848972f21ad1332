"""The lease of a union read: held by a process of its own, beside Spark's.

Spark plans a read in a process that ends before the tasks begin, and does not tell a data source when its query is over. So tasks tell it:
each is connected to the holder while it reads (`protection`), at the address by which this machine reaches Fluss. The lease is dropped

- `READ_S` after the last task, if everything leased was read to its end: a query may read a table twice;
- `PARTLY_READ_S` after the last task, if not: the query failed, or needs no more, or its other tasks wait for a worker;
- when the time of the option `lease` is over, or when Spark's process ends.

A DataFrame may be used again at any time. A task that finds no holder leases for itself, or fails.

The lease is renewed in small steps: if the whole machine fails, Fluss keeps the snapshots for `STEP_MS` and no longer.

A task sends the token of its plan and its bucket, later `read`. Each is answered by `held`, or by the end of the connection. The token
only keeps the lease alive, for the planned time, and does nothing else.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import pickle
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from snowmelt.engine.driver.signs import process_mark
from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.errors import InvariantBroken, SnowmeltError, Unavailable, instance, present
from snowmelt.fluss.target import Login, parse_bootstrap
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import LeasedSnapshot

STEP_MS: Final = 120_000
"""How long one renewal lasts."""
READ_S: Final = 5.0
PARTLY_READ_S: Final = 60.0
HELD: Final = b"held\n"
READ: Final = b"read\n"
_LOOK_S: Final = 0.5
"""How often to check whether Spark's process still exists."""
_CONNECTIONS_MAX: Final = 1024
"""A task beyond them leases for itself."""
_LINE_BYTES_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What to hold, and for which process."""

    bootstrap: str
    lease: str
    path: TableId
    table: int
    wanted: Mapping[Bucket, str | None]
    duration_ms: int
    """At most."""
    owner: int
    """The process whose end ends the read."""
    step_ms: int = STEP_MS
    read_s: float = READ_S
    partly_read_s: float = PARTLY_READ_S
    login: Login | None = None


@dataclass(frozen=True, slots=True)
class HolderAddress:
    """The address of the holder for tasks."""

    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class HeldSnapshots:
    snapshots: Mapping[Bucket, LeasedSnapshot]
    address: HolderAddress
    holder: int
    """The process that holds them."""

    def drop(self) -> None:
        """Drop them at once: nothing will be read."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.holder, signal.SIGTERM)


_Answer = tuple[Mapping[Bucket, LeasedSnapshot], HolderAddress] | SnowmeltError


def hold(wanted: Hold) -> HeldSnapshots:
    """Start a holder, and wait until it holds. Errors are those of `Leasing.acquire`."""
    # It must find the same modules as this process, also those that Spark added.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    holder = subprocess.Popen(
        # Not by `-m`: then the classes of its answer would belong to `__main__`.
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    with present(holder.stdin, "a process was started without its input") as to:
        pickle.dump(wanted, to)
    with present(holder.stdout, "a process was started without its output") as answered:
        answer = answered.read()
    if not answer:
        raise InvariantBroken("the holder of a lease ended without an answer", detail=f"exit code {holder.wait()}")
    found: _Answer = pickle.loads(answer)
    if isinstance(found, SnowmeltError):
        holder.wait()
        raise found
    # It outlives this object.
    holder.returncode = 0
    return HeldSnapshots(*found, holder.pid)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    wanted: Hold = pickle.load(sys.stdin.buffer)
    owner, lost = process_mark(wanted.owner), threading.Event()
    over = time.monotonic() + wanted.duration_ms / 1000
    answer: _Answer
    with Leasing(wanted.bootstrap, wanted.login, duration_ms=min(wanted.step_ms, wanted.duration_ms)) as leasing:
        readers: Readers | None = None
        try:
            snapshots = dict(leasing.acquire(wanted.lease, wanted.path, wanted.table, wanted.wanted, lambda _: lost.set()))
            readers = Readers(_listen(wanted.bootstrap), map(str, snapshots), read_s=wanted.read_s, partly_read_s=wanted.partly_read_s)
            answer = (snapshots, readers.address)
        except SnowmeltError as error:
            answer = error
        # Python does not close a standard output, and the reader of the answer waits for its end.
        with open(os.dup(1), "wb") as answered:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            pickle.dump(answer, answered)
        with contextlib.suppress(Unavailable):
            # A lost lease is not acquired again: what it protected may be deleted.
            while readers is not None and not readers.over(time.monotonic()) and time.monotonic() < over and not lost.is_set():
                if leasing.error is not None or not _lives(wanted.owner, owner):
                    break
                readers.serve(_LOOK_S, lambda: leasing.check(wanted.lease))


def _listen(bootstrap: str) -> socket.socket:
    """At this machine's address in the network of Fluss, as for workers."""
    for host, port in parse_bootstrap(bootstrap):
        with contextlib.suppress(OSError):
            for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
                # This sends nothing.
                with socket.socket(family, kind, protocol) as asked:
                    asked.connect(address)
                    return socket.create_server((asked.getsockname()[0], 0), family=family)
    raise Unavailable("no server of a Fluss cluster has an address", detail=bootstrap[:200])


@dataclass(slots=True)
class _Connected:
    said: bytes = b""
    bucket: str = ""
    """Empty: not known yet, any process may have connected."""


class Readers:
    """The tasks that read under a lease, one connection each, open for as long as they read. One thread uses it."""

    def __init__(self, listening: socket.socket, buckets: Iterable[str], *, read_s: float, partly_read_s: float) -> None:
        self._token = secrets.token_hex(16)
        self._unread = set(buckets)
        self._buckets = frozenset(self._unread)
        self._read_s = read_s
        self._partly_read_s = partly_read_s
        self._tasks: dict[socket.socket, _Connected] = {}
        self._ended_s: float | None = None
        """When the last task ended; None: none has begun, or one reads."""
        self._listening = listening
        self._selector = selectors.DefaultSelector()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ)

    @property
    def address(self) -> HolderAddress:
        host, port = self._listening.getsockname()[:2]
        return HolderAddress(host, port, self._token)

    def over(self, now_s: float) -> bool:
        """Whether the query seems to be over."""
        return self._ended_s is not None and now_s - self._ended_s >= (self._partly_read_s if self._unread else self._read_s)

    def serve(self, wait_s: float, check: Callable[[], None]) -> None:
        """Answer the tasks; wait up to `wait_s` for a message. `check` raises if the lease is lost."""
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listening:
                self._accept()
            else:
                reader = instance(key.fileobj, socket.socket, "what a holder listens to is a socket")
                try:
                    heard = reader.recv(_LINE_BYTES_MAX)
                    if not heard or not self._hear(reader, heard, check):
                        self._part(reader)
                except OSError:
                    self._part(reader)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            task, _ = self._listening.accept()
            if len(self._tasks) >= _CONNECTIONS_MAX:
                task.close()
                return
            task.setblocking(False)
            self._tasks[task] = _Connected()
            self._selector.register(task, selectors.EVENT_READ)

    def _hear(self, task: socket.socket, heard: bytes, check: Callable[[], None]) -> bool:
        """False: it is no task of this read."""
        state = self._tasks[task]
        *lines, state.said = (state.said + heard).split(b"\n")
        for line in lines:
            if not state.bucket:
                token, _, bucket = line.decode("ascii", "replace").partition(" ")
                if not hmac.compare_digest(token.encode(), self._token.encode()) or bucket not in self._buckets:
                    return False
                state.bucket = bucket
                self._ended_s = None
            elif line + b"\n" != READ:
                return False
            check()
            if line + b"\n" == READ:
                self._unread.discard(state.bucket)
            task.sendall(HELD)
        return len(state.said) < _LINE_BYTES_MAX

    def _part(self, task: socket.socket) -> None:
        self._selector.unregister(task)
        ended = self._tasks.pop(task)
        task.close()
        if ended.bucket and not any(other.bucket for other in self._tasks.values()):
            self._ended_s = time.monotonic()


def _lives(process: int, mark: str | None) -> bool:
    """Whether a process exists and, if the system can tell, is the one that had the number when the lease was asked for."""
    if process_mark(process) != mark:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
