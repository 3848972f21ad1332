"""What keeps a KV snapshot from deletion while a task of a union read reads it.

The holder of the plan's lease, while this task is connected to it; or, if the holder is gone or can't be reached, a lease of the
task's own. The task can lease only the newest snapshot, and nothing proves that an older one is still complete. So a DataFrame that is used
again long after its query is read as it was planned, or is an error; it never shows another state.
"""

from __future__ import annotations

import select
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from snowmelt.engine.tiering.leasing import Leasing, lease_id
from snowmelt.engine.union.holder import HELD, READ, STEP_MS, HolderAddress
from snowmelt.engine.union.options import UnionOptions
from snowmelt.errors import Unavailable
from snowmelt.model.fluss import KvSnapshot

READER: Final = "snowmelt-union"
_ANSWER_S: Final = 10.0
"""How long the holder may take to answer."""


@dataclass(frozen=True, slots=True)
class LeasedRead:
    """What a plan has leased for a task."""

    snapshot: KvSnapshot
    partition_name: str | None
    holder: HolderAddress


class Protection(Protocol):
    def check(self) -> None:
        """`Unavailable` if the snapshot may be deleted. Cheap enough for each batch."""

    def finish(self) -> None:
        """The snapshot was read to its end. `Unavailable` if it was not safe all the time."""


@contextmanager
def protected(options: UnionOptions, leased: LeasedRead) -> Iterator[Protection]:
    """Errors are those of `Leasing.acquire`, and `Unavailable` if the snapshot can't be leased any more."""
    connection = _connect(leased)
    if connection is not None:
        with connection:
            yield _ByHolder(options, leased, connection)
        return
    lease, lost = lease_id(READER, leased.snapshot.bucket.table, uuid.uuid4().hex), threading.Event()
    with Leasing(options.bootstrap, options.login, duration_ms=STEP_MS) as leasing:
        wanted = {leased.snapshot.bucket: leased.partition_name}
        found = leasing.acquire(lease, options.table, leased.snapshot.bucket.table, wanted, lambda _: lost.set())
        newest = found.get(leased.snapshot.bucket)
        if newest is None or newest.snapshot != leased.snapshot:
            raise Unavailable(
                "a KV snapshot that a read was planned with is not leased any more, and Fluss has a newer one",
                detail=f"{options.table}, bucket {leased.snapshot.bucket}, snapshot {leased.snapshot.snapshot}; "
                f"its lease was held at {leased.holder.host}:{leased.holder.port}",
                hint="make the DataFrame anew, or persist() one that is used for long; workers must reach the driver's machine",
            )
        yield _ByItself(options, leased, leasing, lease, lost)


def _connect(leased: LeasedRead) -> socket.socket | None:
    """A connection to the holder; None: it does not hold the snapshot."""
    address = leased.holder
    try:
        connection = socket.create_connection((address.host, address.port), _ANSWER_S)
    except OSError:
        return None
    try:
        connection.sendall(f"{address.token} {leased.snapshot.bucket}\n".encode())
        if connection.recv(len(HELD)) == HELD:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _over(options: UnionOptions, leased: LeasedRead) -> Unavailable:
    return Unavailable(
        "the lease of a KV snapshot was over before it was read to its end",
        detail=f"{options.table}, bucket {leased.snapshot.bucket}",
        hint="read again; the option lease says how many seconds it lasts at most",
    )


class _ByHolder:
    """The holder sends nothing by itself, so a readable connection has ended."""

    def __init__(self, options: UnionOptions, leased: LeasedRead, connection: socket.socket) -> None:
        self._options = options
        self._leased = leased
        self._connection = connection

    def check(self) -> None:
        if select.select([self._connection], [], [], 0)[0]:
            raise _over(self._options, self._leased)

    def finish(self) -> None:
        try:
            self._connection.sendall(READ)
            if self._connection.recv(len(HELD)) == HELD:
                return
        except OSError:
            pass
        raise _over(self._options, self._leased)


class _ByItself:
    def __init__(self, options: UnionOptions, leased: LeasedRead, leasing: Leasing, lease: str, lost: threading.Event) -> None:
        self._options = options
        self._leased = leased
        self._leasing = leasing
        self._lease = lease
        self._lost = lost

    def check(self) -> None:
        if self._lost.is_set():
            raise _over(self._options, self._leased)

    def finish(self) -> None:
        self._leasing.check(self._lease)
