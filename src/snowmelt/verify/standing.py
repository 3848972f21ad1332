"""How far the lake is: the pipeline's records, read and never written."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.engine.driver.state import State
from snowmelt.errors import Corrupt, SourceDrift, Unavailable
from snowmelt.model.position import Position

_LOOK_S = 0.25
_TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class LakePosition:
    """The lake as of the last done epoch, and where in the source's log that is; None before the first."""

    ledger: Ledger
    place: Position | None

    def snapshot(self, target: str) -> int:
        """The lake table's snapshot that is of just this place, and no other."""
        return self.ledger.snapshots.get(target, 0)


class Standings:
    """Looks into a pipeline's records."""

    def __init__(
        self, state: State, *, patience_s: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._state = state
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep

    def look(self) -> LakePosition:
        """As of now. What is trimmed while we read is read again."""
        for tried in range(_TRIES_MAX):
            try:
                ledger = self._state.load()
                place = self._place(ledger)
            except Corrupt:
                if tried == _TRIES_MAX - 1:
                    raise
                self._sleep(_LOOK_S)
                continue
            return LakePosition(ledger, place)
        raise Unavailable("the pipeline's state changes faster than it can be read")

    def _place(self, ledger: Ledger) -> Position | None:
        """Where the last done epoch ends in the source's log."""
        number, upto = ledger.done_segment, ledger.done_upto
        if not number and not ledger.epoch:
            return None
        following = self._state.segment_record(number + 1)
        if following is not None and following.first == upto:
            return following.begins
        holding = self._state.segment_record(number) if number else None
        if holding is None or not holding.first <= upto <= holding.last:
            raise Corrupt("where the lake is can't be told", detail=f"record {number} of the relay is gone")
        return Position(holding.begins.file, holding.begins.offset + upto - holding.first, holding.begins.era)

    def wait(self, after: Position) -> LakePosition:
        """The lake at or after a place of the log. A lake that stands still for too long is not waited for."""
        best: Position | None = None
        deadline = self._clock() + self._patience_s
        while True:
            standing = self.look()
            place = standing.place
            if place is not None:
                if place.era != after.era:
                    raise SourceDrift("the lake is of another server's log", detail=f"{place} and {after}")
                if place >= after:
                    return standing
                if best is None or place > best:
                    best, deadline = place, self._clock() + self._patience_s
            if self._clock() > deadline:
                raise Unavailable(
                    f"the lake lags by {_distance(best, after)}",
                    detail=f"it has not moved for {self._patience_s:.0f} s",
                    hint="is the pipeline running? `snowmelt run --until-current`",
                )
            self._sleep(_LOOK_S)


def _distance(place: Position | None, after: Position) -> str:
    if place is None:
        return "all of the log"
    if place.file == after.file:
        return f"{after.offset - place.offset:,} bytes"
    return f"{after.file - place.file} log files"
