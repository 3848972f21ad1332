"""The thread that speaks for all leases of a service: it makes the calls that the lease book says are due, in order, one at a time.

    Laws. Nobody else calls the coordinator about a lease. Rounds ask and tell the book, and wait for calls only to have their lease. A call
    that got no answer ends its connection, so that no list is compared with one of another coordinator. Time is that of a clock which
    goes on while the machine sleeps: a lease does not outlast a lid that was shut.

A process that dies leaves its leases to expire; one that closes drops them, and waits for that only so long.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from snowmelt.errors import OutcomeUnknown, SnowmeltError, Unavailable
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.rpc import TIMEOUT_S
from snowmelt.fluss.target import Login, parse_bootstrap
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.leases import (
    DURATION_MS,
    Acquire,
    Acquired,
    Answer,
    Confirmed,
    Drop,
    FilesRead,
    Lacking,
    LeaseBook,
    Leased,
    Listed,
    ListSnapshots,
    Lost,
    Place,
    ReadFiles,
    Refused,
    Release,
    Step,
)

log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
_WAIT_S: Final = 1.0
"""How long the thread sleeps at most when nothing is due."""
_NAME_CHARS_MAX: Final = 60
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_id(service: str, table: int, nonce: str) -> str:
    """Of one round: the nonce is new with each, so that no late call of another round, or of a process that died, can touch it."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', service)[:_NAME_CHARS_MAX]}-{table}-{nonce}"


class Leasing:
    """The leases of one service. Any thread may use it; `close` it."""

    def __init__(self, bootstrap: str, login: Login | None = None, *, duration_ms: int = DURATION_MS, timeout_s: float = TIMEOUT_S) -> None:
        """Nothing is asked of the server yet."""
        parse_bootstrap(bootstrap)
        self._calls = _Calls(bootstrap, login, timeout_s)
        self._book = LeaseBook(duration_ms=duration_ms)
        self._changed = threading.Condition()
        self._close_by_ms: int | None = None
        self._thread = threading.Thread(target=self._work, name="leases", daemon=True)
        self._thread.start()

    # ---- for rounds

    def acquire(self, lease: str, path: TableId, table: int, wanted: Mapping[Bucket, str | None]) -> Mapping[Bucket, Leased]:
        """Waits until the newest snapshots of these buckets are safe from deletion, or, on a server that knows no leases, known. A bucket
        that has none is not in the answer. `Unavailable` if that fails; the round then fails, and the lease is let go of."""
        with self._changed:
            self._book.open(lease, path, table, wanted)
            self._changed.notify_all()
            while True:
                standing = self._book.standing(lease, _now_ms())
                if standing.ready:
                    return standing.snapshots
                if standing.failure or not self._thread.is_alive():
                    self._book.end(lease)
                    raise Unavailable("KV snapshots could not be leased", detail=f"{path}, lease {lease}, {standing.failure}")
                self._changed.wait(_WAIT_S)

    def check(self, lease: str) -> None:
        """Whether all that was read under the lease was safe so far. To be asked right before a round commits; `Unavailable` if not."""
        with self._changed:
            standing = self._book.standing(lease, _now_ms())
        if standing.failure:
            raise Unavailable("KV snapshots were read whose lease was lost", detail=f"lease {lease}, {standing.failure}")

    def release(self, lease: str, buckets: frozenset[Bucket]) -> None:
        """The lake has what was read of these buckets."""
        with self._changed:
            self._book.release(lease, buckets)
            self._changed.notify_all()

    def end(self, lease: str) -> None:
        """The round is over, whatever came of it. Twice is fine, and so is a lease that was never acquired."""
        with self._changed:
            self._book.end(lease)
            self._changed.notify_all()

    def close(self, *, wait_s: float = CLOSE_S) -> None:
        """Drop all leases, and wait for the server to confirm it, but no longer than that: what it is not told expires. Twice is fine."""
        with self._changed:
            self._book.close()
            self._close_by_ms = _now_ms() + round(wait_s * 1000)
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- the thread

    def _work(self) -> None:
        try:
            while (step := self._due()) is not None:
                sent_ms = _now_ms()
                answer = self._calls.perform(step)
                with self._changed:
                    lacking = self._book.answer(step, answer, sent_ms, _now_ms())
                    self._changed.notify_all()
                _tell(step, answer, lacking=lacking)
        finally:
            self._calls.disconnect()
            with self._changed:
                self._changed.notify_all()

    def _due(self) -> Step | None:
        """Waits for the next step. None: closed, and there is nothing left to say or no time left to say it."""
        with self._changed:
            while True:
                now_ms = _now_ms()
                if self._close_by_ms is not None and (self._book.empty or now_ms >= self._close_by_ms):
                    return None
                if (step := self._book.step(now_ms)) is not None:
                    return step
                due_ms = self._book.due_ms()
                self._changed.wait(_WAIT_S if due_ms is None else min(_WAIT_S, max(0.001, (due_ms - now_ms) / 1000)))


class _Calls:
    """Makes the calls of the book, over one connection after the other. One thread uses it."""

    def __init__(self, bootstrap: str, login: Login | None, timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self._timeout_s = timeout_s
        self._client: FlussClient | None = None
        self._connections = 0

    def perform(self, step: Step) -> Answer:
        try:
            if self._client is None:
                self._client = connect_coordinator(self._bootstrap, self._login, timeout_s=self._timeout_s)
                self._connections += 1
            return self._ask(self._client, step)
        except Unavailable as error:
            self.disconnect()
            return Lost(str(error))
        except OutcomeUnknown as error:
            self.disconnect()
            # Releasing what the lease has not fails in the server itself, and for ever.
            return Refused(str(error)) if isinstance(step, Release) else Lost(str(error))
        except SnowmeltError as error:
            return Refused(str(error))

    def _ask(self, client: FlussClient, step: Step) -> Answer:
        match step:
            case ListSnapshots(_, path, partitions):
                # The epoch first: a coordinator that goes in between takes the connection with it.
                place = Place(self._connections, client.heartbeat().coordinator_epoch)
                lists = [client.latest_snapshots(path, partition) for partition in partitions]
                snapshots: dict[Bucket, KvSnapshot] = {}
                for one in lists:
                    snapshots |= one.snapshots
                return Listed(place, lists[-1].table, snapshots)
            case ReadFiles(_, snapshot):
                return FilesRead(client.snapshot_files(snapshot.bucket, snapshot.snapshot))
            case Acquire(lease, duration_ms, snapshots_by_bucket):
                if not client.knows_leases():
                    return Lacking()
                return Acquired(self._connections, client.acquire(lease, duration_ms, snapshots_by_bucket))
            case Release() | Drop() if not client.knows_leases():
                return Confirmed()
            case Release(lease, buckets):
                client.release(lease, buckets)
                return Confirmed()
            case Drop(lease):
                client.drop(lease)
                return Confirmed()

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.connection.close()
            self._client = None


@dataclass(frozen=True, slots=True)
class Held:
    """Snapshots that may be read for as long as the lease lasts, which nobody renews. Not protected: the server knows no leases."""

    snapshots: Mapping[Bucket, Leased]
    protected: bool


def lease_once(
    bootstrap: str,
    login: Login | None,
    lease: str,
    path: TableId,
    table: int,
    wanted: Mapping[Bucket, str | None],
    duration_ms: int,
) -> Held:
    """As `Leasing.acquire`, for whoever ends before what he leases is read: the lease is left to expire. `Unavailable` if it fails."""
    calls, book = _Calls(bootstrap, login, TIMEOUT_S), LeaseBook(duration_ms=duration_ms)
    book.open(lease, path, table, wanted)
    try:
        while True:
            standing = book.standing(lease, _now_ms())
            if standing.ready:
                return Held(standing.snapshots, standing.protected)
            step = book.step(_now_ms())
            if step is None:
                # Failed, and dropped if that was heard.
                raise Unavailable("KV snapshots could not be leased", detail=f"{path}, lease {lease}, {standing.failure}")
            sent_ms = _now_ms()
            answer = calls.perform(step)
            _tell(step, answer, lacking=book.answer(step, answer, sent_ms, _now_ms()))
    finally:
        calls.disconnect()


def _tell(step: Step, answer: Answer, *, lacking: bool) -> None:
    if lacking:
        log.warning("the Fluss server knows no leases; KV snapshots are read without protection", extra={"hint": "Fluss 0.9"})
    elif isinstance(answer, Lost | Refused):
        log.warning("a call about a lease failed", extra={"call": type(step).__name__, "lease": step.lease, "why": answer.why})


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
