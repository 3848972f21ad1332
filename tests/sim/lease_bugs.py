"""Bugs of the lease book that were thought of, planted in it to see that an oracle catches each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from snowmelt.tiering.lease_steps import Acquire, Acquired, Answer, Confirmed, Drop, Listed, NoAnswer, Refused, Step
from snowmelt.tiering.leases import LeaseBook, LeasePhase, LeaseTrigger, _Lease
from tests.sim.leasing import DURATION_MS


class TrustsTheServer(LeaseBook):
    """What the server says it has leased is read, without another list."""

    def _acquired(self, one: _Lease, answer: Acquired) -> None:
        super()._acquired(one, answer)
        if one.phase is LeasePhase.CHECKING:
            self._move(one, LeaseTrigger.NEWEST)


class ListsAnywhere(LeaseBook):
    """The second list may come from another server than the lease."""

    def _verify(self, one: _Lease, listed: Listed) -> None:
        assert one.place is not None
        super()._verify(one, replace(listed, place=one.place))


class BelievesLateRenewals(LeaseBook):
    """If the server says yes, the lease was never lost."""

    def _expire(self, now_ms: int) -> None:
        kept = [one for one in self._leases.values() if one.phase is not LeasePhase.ENDING]
        covered = [one.covered_ms for one in kept]
        for one in kept:
            one.covered_ms = None
        super()._expire(now_ms)
        for one, before in zip(kept, covered, strict=True):
            one.covered_ms = before


class CountsFromTheAnswer(LeaseBook):
    """A lease is taken to last from when the answer came, which may be long after the server gave it."""

    def answer(self, step: Step, answer: Answer, sent_ms: int, now_ms: int) -> None:
        super().answer(step, answer, now_ms, now_ms)


class RenewsTooLate(LeaseBook):
    """There is time for one renewal before the lease is lost, and no more."""

    def _acquired(self, one: _Lease, answer: Acquired) -> None:
        one.renewal_ms += DURATION_MS * 3 // 5
        super()._acquired(one, answer)


class NeverRenews(BelievesLateRenewals):
    """The seed's holder: a lease of a fixed time, and no renewal; a read that takes longer is not noticed."""

    def _due(self, one: _Lease) -> Iterator[tuple[int, int, type[Step]]]:
        return ((urgency, when, kind) for urgency, when, kind in super()._due(one) if urgency)


class GoesOnUnprotected(LeaseBook):
    """A failure to acquire is told, and the round goes on without a lease."""

    def _failed(self, one: _Lease, step: Step, answer: NoAnswer | Refused, now_ms: int) -> None:
        if isinstance(step, Acquire) and one.phase is LeasePhase.ACQUIRING:
            one.phase = LeasePhase.LOOKING
        else:
            super()._failed(one, step, answer, now_ms)


class KeepsWhatItHad(LeaseBook):
    """A round that is over is forgotten, and its lease left to time."""

    def end(self, lease: str) -> None:
        if (found := self._leases.get(lease)) is not None and not self._has_under_way(found):
            found.expired_ms = None
        super().end(lease)


class ForgetsADropWithoutAnswer(LeaseBook):
    """The lease is forgotten when its drop was sent, and not when that was confirmed."""

    def _failed(self, one: _Lease, step: Step, answer: NoAnswer | Refused, now_ms: int) -> None:
        super()._failed(one, step, answer, now_ms)
        if isinstance(step, Drop) and one.phase is LeasePhase.ENDING:
            self._over(one)


class RenewsBehindTheDrop(LeaseBook):
    """The last renewal reaches the server behind the drop, as it can where two threads speak for one lease."""

    def __init__(self, *, duration_ms: int) -> None:
        super().__init__(duration_ms=duration_ms)
        self.last: dict[str, Step] = {}
        self.behind: list[Step] = []

    @property
    def empty(self) -> bool:
        return super().empty and not self.behind

    def step(self, now_ms: int) -> Step | None:
        return self.behind[0] if self.behind else super().step(now_ms)

    def answer(self, step: Step, answer: Answer, sent_ms: int, now_ms: int) -> None:
        if self.behind:
            self.behind.pop()
            return
        if isinstance(step, Acquire):
            self.last[step.lease] = step
        if isinstance(step, Drop) and isinstance(answer, Confirmed) and step.lease in self.last:
            self.behind.append(self.last.pop(step.lease))
        super().answer(step, answer, sent_ms, now_ms)


LEASE_BUGS = {
    "trusts the server": TrustsTheServer,
    "lists anywhere": ListsAnywhere,
    "believes late renewals": BelievesLateRenewals,
    "counts from the answer": CountsFromTheAnswer,
    "renews too late": RenewsTooLate,
    "never renews": NeverRenews,
    "goes on unprotected": GoesOnUnprotected,
    "keeps what it had": KeepsWhatItHad,
    "forgets a drop without an answer": ForgetsADropWithoutAnswer,
    "renews behind the drop": RenewsBehindTheDrop,
}
