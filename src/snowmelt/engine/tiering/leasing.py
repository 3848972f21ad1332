"""The thread that makes all calls about leases: it makes the calls that the lease book says are due, in order, one at a time.

    Laws. No other thread calls the coordinator about a lease. Rounds ask and tell the book, and only wait for calls to get their lease. A
    call without an answer ends its connection, so that no list is compared with one of another coordinator. The clock continues while the
    machine sleeps: a lease does not outlast a closed lid.

    This thread reports a loss at once to the round that reads under the lease. If the thread ends by a bug, every lease counts as
    lost, its owner is told, and `close` drops what the server may still have.

A process that dies leaves its leases to expire; one that closes drops them, and waits for that only for a limited time.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from snowmelt.errors import InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, Unavailable
from snowmelt.fluss.client import FlussClient, connect_coordinator
from snowmelt.fluss.rpc import TIMEOUT_S, Call
from snowmelt.fluss.target import Login, parse_bootstrap
from snowmelt.model.fluss import Bucket, KvSnapshot
from snowmelt.model.table import TableId
from snowmelt.tiering.lease_steps import (
    Acquire,
    Acquired,
    Answer,
    Confirmed,
    Drop,
    Endpoint,
    FilesRead,
    LeasedSnapshot,
    Listed,
    ListSnapshots,
    NoAnswer,
    ReadFiles,
    Refused,
    Release,
    Step,
)
from snowmelt.tiering.leases import DURATION_MS, LeaseBook, LeaseStatus

log = logging.getLogger(__name__)

CLOSE_S: Final = 30.0
CALLS_PER_LEASE: Final = 6
"""This many calls may time out, one after the other, while a lease lasts: the first renewal comes after a third of it."""
CALL_S_MIN: Final = 1.0
_WAIT_S: Final = 1.0
"""How long the thread sleeps at most when nothing is due."""
_NAME_CHARS_MAX: Final = 60
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_id(service: str, table: int, nonce: str) -> str:
    """The lease of one round. The nonce is new for each, so that no late call of another round, or of a dead process, can affect it."""
    return f"{re.sub('[^A-Za-z0-9_-]', '_', service)[:_NAME_CHARS_MAX]}-{table}-{nonce}"


def require_leases(client: FlussClient) -> None:
    """`InvalidConfig` if the server has no leases: nothing is read from such a server."""
    if not client.connection.knows(Call.ACQUIRE_KV_SNAPSHOT_LEASE):
        raise InvalidConfig(
            "the Fluss server has no leases of KV snapshots",
            detail=f"{client.connection.where} does not know {Call.ACQUIRE_KV_SNAPSHOT_LEASE.name}",
            hint="upgrade to Fluss 0.9 or newer",
        )


def _ignore_loss(_: str) -> None:
    pass


class Leasing:
    """The leases of one service. Any thread may use it; `close` it."""

    def __init__(
        self,
        bootstrap: str,
        login: Login | None = None,
        *,
        duration_ms: int = DURATION_MS,
        timeout_s: float | None = None,
        died: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is asked of the server yet. `timeout_s`: of one call; by default so short that one that times out costs no lease.
        `died`: called when the thread has ended by a bug, which is then the `error`."""
        parse_bootstrap(bootstrap)
        if timeout_s is None:
            timeout_s = max(CALL_S_MIN, min(TIMEOUT_S, duration_ms / 1000 / CALLS_PER_LEASE))
        self._calls = _Calls(bootstrap, login, timeout_s)
        self._book = LeaseBook(duration_ms=duration_ms)
        self._changed = threading.Condition()
        self._close_by_ms: int | None = None
        self._lost: dict[str, Callable[[str], None]] = {}
        """By lease, the function that reports its loss."""
        self._died = died
        self.error: InvariantBroken | None = None
        self._thread = threading.Thread(target=self._work, name="leases", daemon=True)
        self._thread.start()

    # ---- for rounds

    def acquire(
        self,
        lease: str,
        path: TableId,
        table: int,
        wanted: Mapping[Bucket, str | None],
        lost: Callable[[str], None] = _ignore_loss,
    ) -> Mapping[Bucket, LeasedSnapshot]:
        """Waits until the newest snapshots of these buckets are safe from deletion. A bucket without one is not in the answer.
        `Unavailable` if that fails; then the round fails, and the lease is dropped. `lost`: called once, by the lease thread, with the
        reason if the lease is lost before its `end`. It must not wait for anything."""
        with self._changed:
            if self.error is not None:
                raise self.error
            self._book.open(lease, path, table, wanted)
            self._lost[lease] = lost
            self._changed.notify_all()
            while True:
                standing = self._book.standing(lease, _now_ms())
                if standing.ready:
                    return standing.snapshots
                if self.error is not None:
                    raise self.error
                if standing.failure:
                    self._book.end(lease)
                    self._lost.pop(lease, None)
                    raise Unavailable("KV snapshots could not be leased", detail=f"{path}, lease {lease}, {standing.failure}")
                self._changed.wait(_WAIT_S)

    def check(self, lease: str) -> None:
        """`Unavailable` if something that was read under the lease may have been deleted. Call it right before a round commits."""
        with self._changed:
            standing = self._book.standing(lease, _now_ms())
            if self.error is not None:
                raise self.error
        if standing.failure:
            raise Unavailable("KV snapshots were read whose lease was lost", detail=f"lease {lease}, {standing.failure}")

    def release(self, lease: str, buckets: frozenset[Bucket]) -> None:
        """These buckets were read completely and will not be read again. If it was too late, this makes the lease a loss."""
        with self._changed:
            self._book.release(lease, buckets, _now_ms())
            self._changed.notify_all()

    def end(self, lease: str) -> None:
        """The round is over, whatever its result. Twice is fine, and so is a lease that was never acquired."""
        with self._changed:
            self._lost.pop(lease, None)
            self._book.end(lease)
            self._changed.notify_all()

    def statuses(self) -> tuple[int, list[LeaseStatus]]:
        """The leases that are not over, and the time by their clock."""
        with self._changed:
            return _now_ms(), self._book.statuses()

    def close(self, *, wait_s: float = CLOSE_S) -> None:
        """Drop all leases, and wait up to `wait_s` for the server's answer. What the server does not hear expires. Twice is fine."""
        with self._changed:
            self._book.close()
            self._close_by_ms = _now_ms() + round(wait_s * 1000)
            self._changed.notify_all()
        self._thread.join()
        if self.error is not None:
            self._drop_untold()

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
                    self._book.answer(step, answer, sent_ms, _now_ms())
                    self._changed.notify_all()
                _tell(step, answer)
                self._tell_lost()
        except BaseException as error:
            # For an unknown error only its kind is shown: its text may hold anything.
            log.debug("the lease thread ended", exc_info=error)
            with self._changed:
                self.error = InvariantBroken(
                    "the lease thread ended by a bug, so no lease is renewed any more",
                    detail=type(error).__name__,
                    hint="start the service again; --debug shows where",
                )
                told, self._lost = list(self._lost.values()), {}
            for lost in told:
                lost("the lease thread ended")
            self._died()
        finally:
            self._calls.disconnect()
            with self._changed:
                self._changed.notify_all()

    def _tell_lost(self) -> None:
        with self._changed:
            told = [(lease, why, self._lost.pop(lease, None)) for lease, why in self._book.take_lost()]
        for lease, why, lost in told:
            log.warning("a lease was lost", extra={"lease": lease, "why": why})
            if lost is not None:
                lost(why)

    def _drop_untold(self) -> None:
        """After the thread died: one try for each lease. What can't be dropped expires."""
        with self._changed:
            untold = self._book.untold
        for lease in untold:
            answer = self._calls.perform(Drop(lease))
            _tell(Drop(lease), answer)
        self._calls.disconnect()

    def _due(self) -> Step | None:
        """Waits for the next step. None: closed, and nothing is left to do, or no time for it."""
        while True:
            with self._changed:
                now_ms = _now_ms()
                if self._close_by_ms is not None and (self._book.empty or now_ms >= self._close_by_ms):
                    return None
                if (step := self._book.step(now_ms)) is not None:
                    return step
                due_ms = self._book.due_ms()
                self._changed.wait(_WAIT_S if due_ms is None else min(_WAIT_S, max(0.001, (due_ms - now_ms) / 1000)))
            # The passing of time alone may have lost one.
            self._tell_lost()


class _Calls:
    """Makes the book's calls, over one connection after the other. One thread uses it."""

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
            return NoAnswer(str(error))
        except OutcomeUnknown as error:
            self.disconnect()
            # The release of buckets that a lease does not have fails in the server, and will always fail.
            return Refused(str(error)) if isinstance(step, Release) else NoAnswer(str(error))
        except SnowmeltError as error:
            return Refused(str(error))

    def _ask(self, client: FlussClient, step: Step) -> Answer:
        match step:
            case ListSnapshots(_, path, partitions):
                # The epoch first: a coordinator that ends after it takes the connection with it.
                place = Endpoint(self._connections, client.heartbeat().coordinator_epoch)
                lists = [client.latest_snapshots(path, partition) for partition in partitions]
                snapshots: dict[Bucket, KvSnapshot] = {}
                for one in lists:
                    snapshots |= one.snapshots
                return Listed(place, lists[-1].table, snapshots)
            case ReadFiles(_, snapshot):
                return FilesRead(client.snapshot_files(snapshot.bucket, snapshot.snapshot))
            case Acquire(lease, duration_ms, snapshots_by_bucket):
                return Acquired(self._connections, client.acquire(lease, duration_ms, snapshots_by_bucket))
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


def _tell(step: Step, answer: Answer) -> None:
    fields = {"call": type(step).__name__, "lease": step.lease}
    if isinstance(answer, NoAnswer | Refused):
        log.warning("a call about a lease failed", extra={**fields, "why": answer.why})
    elif isinstance(step, Acquire):
        log.info("a lease was acquired or renewed", extra={**fields, "buckets": len(step.snapshots)})
    elif isinstance(step, Release):
        log.info("buckets of a lease were released", extra={**fields, "buckets": len(step.buckets)})
    elif isinstance(step, Drop):
        log.info("a lease was dropped", extra=fields)


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
