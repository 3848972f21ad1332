"""The book of KV snapshot leases: which snapshots rounds may read, and what is still to be said to the coordinator about them.

A lease keeps Fluss from deleting KV snapshots while they are read. It belongs to one round of one table and has an id of its own. The book
says which call is due; the owner of the connection makes it and brings the answer. Time is an argument everywhere, monotonic.

    States. A lease is LISTING (which snapshots are the newest), ACQUIRING them, CHECKING by another list that they still are, LOOKING up
    their files, HELD; then ENDING until the server confirms its drop, and GONE. A bucket of it is wanted, leased, verified, read; then
    released until the server confirms it. Nothing is durable: a crash leaves leases that expire.

    Must never happen. A snapshot is read before its lease is verified: the server says yes to snapshots that are gone, so what was
    leased must be the newest in a list taken *after* the acquire, at the same coordinator (one connection, one epoch) as the list
    before it. A snapshot is read, or a round commits, when more than the duration has passed since the last renewal that
    succeeded was sent: it may have been deleted in between, whatever the server says later. That holds of a bucket until it is released:
    a release that comes too late is a loss. Anything is sent of a lease after its drop: a late renewal would make it anew. A renewal names
    a bucket that is being released. Two calls are under way at once.

    Memory. Per lease its buckets and their files, until it is over; leases at most `leases_max`. What the server can't be told is forgotten
    when it has expired there by itself.

A renewal sends every bucket still held, never none: to a server that has lost a lease an empty renewal makes an empty one, and says yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from snowmelt.errors import Unavailable, check, present
from snowmelt.model.fluss import Bucket, KvSnapshot, SnapshotFiles
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
    Readiness,
    Refused,
    Release,
    Step,
)

DURATION_MS: Final = 10 * 60 * 1000
"""What a crash costs at most, but for the server's check interval: for that time nothing that it had leased can be deleted."""
DURATION_MS_MIN: Final = 120
LEASES_MAX: Final = 1000
TRIES_MAX: Final = 20
"""Lists in a row that each show newer snapshots than the one before: then snapshots are made faster than they can be leased."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""The server makes a path of it."""


class LeasePhase(Enum):
    LISTING = "listing"
    ACQUIRING = "acquiring"
    CHECKING = "checking"
    LOOKING = "looking"
    HELD = "held"
    ENDING = "ending"
    GONE = "gone"


class LeaseTrigger(Enum):
    LISTED = "listed"
    NOTHING = "no bucket has a snapshot"
    ACQUIRED = "acquired"
    NEWEST = "still the newest"
    MOVED = "newer snapshots exist"
    ELSEWHERE = "another coordinator answered"
    LOOKED = "the files are known"
    ENDED = "ended, failed or lost"
    OVER = "confirmed or expired"


LEASE_LIFE: Final[Mapping[tuple[LeasePhase, LeaseTrigger], LeasePhase]] = {
    (LeasePhase.LISTING, LeaseTrigger.LISTED): LeasePhase.ACQUIRING,
    (LeasePhase.LISTING, LeaseTrigger.NOTHING): LeasePhase.HELD,
    (LeasePhase.ACQUIRING, LeaseTrigger.ACQUIRED): LeasePhase.CHECKING,
    (LeasePhase.ACQUIRING, LeaseTrigger.MOVED): LeasePhase.LISTING,
    (LeasePhase.ACQUIRING, LeaseTrigger.ELSEWHERE): LeasePhase.LISTING,
    (LeasePhase.CHECKING, LeaseTrigger.NEWEST): LeasePhase.LOOKING,
    (LeasePhase.CHECKING, LeaseTrigger.MOVED): LeasePhase.ACQUIRING,
    (LeasePhase.CHECKING, LeaseTrigger.ELSEWHERE): LeasePhase.LISTING,
    (LeasePhase.LOOKING, LeaseTrigger.LOOKED): LeasePhase.HELD,
    (LeasePhase.LISTING, LeaseTrigger.ENDED): LeasePhase.ENDING,
    (LeasePhase.ACQUIRING, LeaseTrigger.ENDED): LeasePhase.ENDING,
    (LeasePhase.CHECKING, LeaseTrigger.ENDED): LeasePhase.ENDING,
    (LeasePhase.LOOKING, LeaseTrigger.ENDED): LeasePhase.ENDING,
    (LeasePhase.HELD, LeaseTrigger.ENDED): LeasePhase.ENDING,
    (LeasePhase.ENDING, LeaseTrigger.OVER): LeasePhase.GONE,
}


# ---- what a round sees


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """A lease as users see it."""

    lease: str
    path: TableId
    phase: LeasePhase
    buckets: int
    """Snapshots that are held."""
    held_ms: int | None
    """Since when; None: not yet, or never."""
    covered_ms: int | None
    """Up to here nothing of it can be deleted, without another renewal."""


@dataclass(slots=True, kw_only=True)
class _Lease:
    id: str
    path: TableId
    table: int
    wanted: Mapping[Bucket, str | None]
    phase: LeasePhase = LeasePhase.LISTING
    failure: str = ""
    over_for_round: bool = False
    """The round has ended it, and asks no more."""
    place: Endpoint | None = None
    """Where the list was taken that the snapshots were chosen from."""
    tries: int = 0
    leased: dict[Bucket, KvSnapshot] = field(default_factory=dict)
    """What is, or is to be, in the lease and has not been released by the round."""
    verified: set[Bucket] = field(default_factory=set)
    files: dict[Bucket, SnapshotFiles] = field(default_factory=dict)
    letting_go: frozenset[Bucket] = frozenset()
    """Released by the round, not yet confirmed by the server."""
    drop_at_last: bool = False
    """The server refuses a release, so the whole lease is dropped as soon as nothing is read under it."""
    covered_ms: int | None = None
    """Up to here the server can't have deleted anything: when the last renewal that succeeded was sent, and the duration."""
    expired_ms: int | None = None
    """After this the server has nothing of the lease: when the last renewal came back, in whatever way, and the duration."""
    held_ms: int | None = None
    """When it was ready to be read under."""
    renewal_ms: int = 0
    not_before_ms: int = 0
    lost_in_a_row: int = 0


class LeaseBook:
    """Used by one thread at a time. `step` and `answer` alternate."""

    def __init__(self, *, duration_ms: int = DURATION_MS, leases_max: int = LEASES_MAX, tries_max: int = TRIES_MAX) -> None:
        check(duration_ms >= DURATION_MS_MIN, "a lease must last long enough to be renewed", f"{duration_ms} ms")
        self.duration_ms = duration_ms
        self._leases_max = leases_max
        self._tries_max = tries_max
        self._leases: dict[str, _Lease] = {}
        self._under_way: Step | None = None
        self._closed = False
        self._lost: list[tuple[str, str]] = []

    # ---- the round's side

    def open(self, lease: str, path: TableId, table: int, wanted: Mapping[Bucket, str | None]) -> None:
        """A lease for a round, of the newest snapshot of each of these buckets, given with the names of their partitions. `Unavailable` if
        there are too many leases already, which an unreachable server has not confirmed."""
        check(_ID.fullmatch(lease) is not None, "a lease's id has other signs than letters, digits, _ and -", lease)
        check(lease not in self._leases, "a lease's id was given already", lease)
        check(not self._closed, "the lease book is closed", lease)
        check(bool(wanted), "a lease of nothing", lease)
        check(all(bucket.table == table for bucket in wanted), "a lease is of one table", lease)
        if len(self._leases) >= self._leases_max:
            raise Unavailable("too many leases wait for the Fluss coordinator", detail=f"{len(self._leases)} of {self._leases_max}")
        self._leases[lease] = _Lease(id=lease, path=path, table=table, wanted=dict(wanted))

    def standing(self, lease: str, now_ms: int) -> Readiness:
        """To be asked before splits are handed out, and again before what was read is committed."""
        self._expire(now_ms)
        found = self._leases.get(lease)
        if found is None or found.failure or found.over_for_round:
            return Readiness(False, (found.failure if found is not None else "") or "the lease is over", {})
        if found.phase in (LeasePhase.ENDING, LeasePhase.GONE):
            # All of it was released in time, and the server refuses to hear of it bucket by bucket.
            return Readiness(True, "", {})
        ready = found.phase is LeasePhase.HELD
        snapshots = {bucket: LeasedSnapshot(one, found.files[bucket]) for bucket, one in found.leased.items()} if ready else {}
        return Readiness(ready, "", snapshots)

    def release(self, lease: str, buckets: frozenset[Bucket], now_ms: int) -> None:
        """These buckets were read whole and are read no more. One whose time was over by now is a loss: perhaps not all of it was read.
        Buckets that the lease does not have are passed over, so twice is fine."""
        self._expire(now_ms)
        found = self._leases.get(lease)
        if found is None or found.phase is not LeasePhase.HELD:
            return
        released = buckets & found.leased.keys()
        for bucket in released:
            del found.leased[bucket]
            del found.files[bucket]
            found.verified.discard(bucket)
        found.letting_go |= released
        self._drop_at_last(found)

    def end(self, lease: str) -> None:
        """The round is over, whatever came of it: everything it has is released. Twice is fine."""
        found = self._leases.get(lease)
        if found is not None:
            found.over_for_round = True
            self._end(found, "")

    def close(self) -> None:
        """All rounds are over, and there will be no more. What is left to be said is said when the book is `empty`."""
        self._closed = True
        for lease in list(self._leases):
            self.end(lease)

    @property
    def empty(self) -> bool:
        return not self._leases

    @property
    def untold(self) -> tuple[str, ...]:
        """Leases that the server may have, for a program that has to drop them without the book."""
        return tuple(one.id for one in self._leases.values() if one.expired_ms is not None and one.phase is not LeasePhase.GONE)

    def take_lost(self) -> list[tuple[str, str]]:
        """Leases that failed since this was asked last, and why. Not those that their rounds ended."""
        lost, self._lost = self._lost, []
        return lost

    def statuses(self) -> list[LeaseStatus]:
        """Every lease that is not over."""
        return [
            LeaseStatus(
                lease=one.id,
                path=one.path,
                phase=one.phase,
                buckets=len(one.leased),
                held_ms=one.held_ms,
                covered_ms=one.covered_ms if one.leased else None,
            )
            for one in self._leases.values()
            if one.phase is not LeasePhase.GONE
        ]

    # ---- the connection's side

    def due_ms(self) -> int | None:
        """When there is something to do, if anything; it may have passed already."""
        return min((when for one in self._leases.values() for _, when, _ in self._due(one)), default=None)

    def step(self, now_ms: int) -> Step | None:
        """What is to be done now, if anything. Its answer must come before the next is asked for."""
        check(self._under_way is None, "two calls of the lease book are under way")
        self._expire(now_ms)
        due = [(urgency, when, one.id, kind) for one in self._leases.values() for urgency, when, kind in self._due(one) if when <= now_ms]
        if not due:
            return None
        _, _, lease, kind = min(due, key=lambda found: found[:3])
        self._under_way = self._make(kind, self._leases[lease])
        return self._under_way

    def answer(self, step: Step, answer: Answer, sent_ms: int, now_ms: int) -> None:
        """What came of the step, which was sent then."""
        check(self._under_way == step, "an answer to what was not asked")
        found = self._leases[step.lease]
        if isinstance(step, Acquire):
            found.expired_ms = now_ms + self.duration_ms
        self._under_way = None
        # A renewal that comes back too late is none: what it renewed may have been deleted before.
        self._expire(now_ms)
        if found.phase is LeasePhase.GONE:
            return
        if isinstance(answer, NoAnswer | Refused):
            self._failed(found, step, answer, now_ms)
            return
        found.lost_in_a_row = 0
        found.not_before_ms = 0
        match step, answer:
            case Drop(), Confirmed():
                self._over(found)
            case _ if found.phase is LeasePhase.ENDING:
                # The round has ended meanwhile; only the drop is left, if anything.
                self._over_if_never_sent(found)
            case Release(_, buckets), Confirmed():
                found.letting_go -= buckets
            case ListSnapshots(), Listed() if found.phase is LeasePhase.LISTING:
                self._choose(found, answer)
            case ListSnapshots(), Listed():
                self._verify(found, answer)
            case Acquire(), Acquired():
                found.covered_ms = sent_ms + self.duration_ms
                found.renewal_ms = sent_ms + self.duration_ms // 3
                self._acquired(found, answer)
            case ReadFiles(_, snapshot), FilesRead(files):
                found.files[snapshot.bucket] = files
                if found.files.keys() == found.leased.keys():
                    self._move(found, LeaseTrigger.LOOKED)
                    found.held_ms = now_ms
            case _:
                check(False, "an answer does not fit its question", f"{type(step).__name__}, {type(answer).__name__}")

    # ---- inside

    def _due(self, one: _Lease) -> Iterator[tuple[int, int, type[Step]]]:
        """What the lease waits for: how urgent, when, and what. Renewals go first, then what a round waits for."""
        if one.phase is LeasePhase.ENDING:
            yield 2, one.not_before_ms, Drop
        elif one.phase is LeasePhase.ACQUIRING:
            yield 1, one.not_before_ms, Acquire
        elif one.phase in (LeasePhase.LISTING, LeasePhase.CHECKING):
            yield 1, one.not_before_ms, ListSnapshots
        elif one.leased:
            yield 0, max(one.renewal_ms, one.not_before_ms), Acquire
        if one.phase is LeasePhase.LOOKING:
            yield 1, one.not_before_ms, ReadFiles
        if one.letting_go and not one.drop_at_last:
            yield 2, one.not_before_ms, Release

    def _make(self, kind: type[Step], one: _Lease) -> Step:
        if kind is Drop:
            return Drop(one.id)
        if kind is Acquire:
            return Acquire(one.id, self.duration_ms, {bucket: leased.snapshot for bucket, leased in one.leased.items()})
        if kind is Release:
            return Release(one.id, one.letting_go)
        if kind is ReadFiles:
            return ReadFiles(one.id, next(leased for bucket, leased in one.leased.items() if bucket not in one.files))
        return ListSnapshots(one.id, one.path, tuple(dict.fromkeys(one.wanted.values())))

    def _choose(self, one: _Lease, listed: Listed) -> None:
        one.place = listed.place
        one.verified.clear()
        one.leased = self._newest(one, listed)
        if listed.table != one.table:
            self._end(one, "the table was dropped and made anew")
        else:
            self._move(one, LeaseTrigger.LISTED if one.leased else LeaseTrigger.NOTHING)

    def _acquired(self, one: _Lease, answer: Acquired) -> None:
        if one.phase is not LeasePhase.ACQUIRING:
            if answer.unavailable & one.leased.keys():
                self._end(one, "the server does not have a snapshot any more that it had leased to us")
        elif one.place is None or answer.connection != one.place.connection:
            self._again(one, LeaseTrigger.ELSEWHERE)
        elif answer.unavailable & one.leased.keys():
            self._again(one, LeaseTrigger.MOVED)
        else:
            self._move(one, LeaseTrigger.ACQUIRED)

    def _verify(self, one: _Lease, listed: Listed) -> None:
        if listed.place != one.place:
            self._again(one, LeaseTrigger.ELSEWHERE)
            return
        newest = self._newest(one, listed)
        one.verified |= {bucket for bucket, leased in one.leased.items() if newest.get(bucket) == leased}
        moved = {bucket: found for bucket, found in newest.items() if bucket not in one.verified}
        one.leased |= moved
        if moved:
            self._again(one, LeaseTrigger.MOVED)
        elif one.leased.keys() > one.verified:
            self._end(one, "a bucket has no snapshot any more")
        else:
            self._move(one, LeaseTrigger.NEWEST)

    def _newest(self, one: _Lease, listed: Listed) -> dict[Bucket, KvSnapshot]:
        return {bucket: listed.snapshots[bucket] for bucket in one.wanted if bucket in listed.snapshots}

    def _again(self, one: _Lease, why: LeaseTrigger) -> None:
        one.tries += 1
        if one.tries >= self._tries_max:
            self._end(one, f"no snapshots could be leased that stayed the newest until that was verified, {one.tries} times in a row")
        else:
            self._move(one, why)

    def _failed(self, one: _Lease, step: Step, answer: NoAnswer | Refused, now_ms: int) -> None:
        one.lost_in_a_row += 1
        # A dozen tries at least before a lease is lost, the first of them soon.
        pause_ms = min(self.duration_ms // 15, self.duration_ms // 120 * 2 ** min(one.lost_in_a_row - 1, 10))
        one.not_before_ms = now_ms + max(1, pause_ms)
        match step:
            case _ if one.phase is LeasePhase.ENDING:
                self._over_if_never_sent(one)
            case Release():
                if isinstance(answer, Refused):
                    one.drop_at_last = True
                    self._drop_at_last(one)
            case Acquire() if one.phase in (LeasePhase.LOOKING, LeasePhase.HELD) and isinstance(answer, NoAnswer):
                # There is time until what the last renewal covered is over.
                pass
            case _:
                self._end(one, answer.why)

    def _expire(self, now_ms: int) -> None:
        for one in list(self._leases.values()):
            expired = one.expired_ms is not None and now_ms > one.expired_ms and not self._has_under_way(one)
            if one.phase is LeasePhase.ENDING:
                if expired:
                    self._over(one)
            elif one.leased and one.covered_ms is not None and now_ms > one.covered_ms:
                self._end(one, "the lease was not renewed in time, so that its snapshots may have been deleted")
            elif expired:
                one.letting_go = frozenset()

    def _drop_at_last(self, one: _Lease) -> None:
        if one.drop_at_last and not one.leased:
            self._end(one, "")

    def _end(self, one: _Lease, failure: str) -> None:
        if one.phase not in (LeasePhase.ENDING, LeasePhase.GONE):
            one.failure = failure
            if failure:
                self._lost.append((one.id, failure))
            one.leased, one.files, one.letting_go = {}, {}, frozenset()
            one.not_before_ms = 0
            self._move(one, LeaseTrigger.ENDED)
            if not self._has_under_way(one):
                self._over_if_never_sent(one)
        self._forget(one)

    def _has_under_way(self, one: _Lease) -> bool:
        return self._under_way is not None and self._under_way.lease == one.id

    def _over_if_never_sent(self, one: _Lease) -> None:
        """A lease that the server was never told of needs no drop."""
        if one.expired_ms is None:
            self._over(one)

    def _over(self, one: _Lease) -> None:
        self._move(one, LeaseTrigger.OVER)
        self._forget(one)

    def _forget(self, one: _Lease) -> None:
        if one.phase is LeasePhase.GONE and one.over_for_round:
            self._leases.pop(one.id, None)

    def _move(self, one: _Lease, trigger: LeaseTrigger) -> None:
        to = LEASE_LIFE.get((one.phase, trigger))
        one.phase = present(to, "invalid lease transition", f"{one.id}, {one.phase.value}, {trigger.value}")
