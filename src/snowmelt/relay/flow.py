"""Whether capture may go on reading, by how much of the log is held already.

    States. ON: read. PAUSED: the socket is left alone until something is let go of. FULL: nothing can be let go of and no more can be
    held; an operator must choose.

    Forbidden orders. A pause that only more log could end. What ends a pause is that log is let go of, for which an epoch is done or
    a chunk is over. So capture may pause as long as one of these needs no more log:
    - some of what is sealed is not in the lake: an epoch ends at the first cut at the latest, whatever its limit;
    - a chunk is being read, or was read and has its high end in the log: it is adopted or given back.
    It must not pause
    - when the lake has all that is sealed and no chunk is under way. What is held then is the newest segment, which is always kept, and a
      transaction that has no cut behind it. It may go on to its end, up to the hard cap;
    - when a chunk that was read waits for the log up to its high end, and what it holds back can't go before (S2). Capture may go on
      until it has come there, up to the hard cap; at that one the chunk is given back, which sets free what it held.

    Memory. A few numbers.

Who decides runs beside who knows: a `Need` may be some seconds old. So it names what it is about, and is void once that has moved on:
`drained` when something was sealed since, `upto` when capture has come there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from snowmelt.model.position import Position


class Flow(Enum):
    ON = "on"
    PAUSED = "paused"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Backlog:
    """What capture holds at this moment."""

    size: int
    """Bytes of all segments that were not let go of, with the one that is being filled."""
    sealed: int
    """Bytes ever sealed, by a count that only grows."""
    end: Position | None
    """Where the last sealed segment ends."""


@dataclass(frozen=True, slots=True)
class Need:
    """What only more log can bring about."""

    drained: int | None = None
    """With so many bytes ever sealed there was nothing left that could be let go of; None: there is."""
    upto: Position | None = None
    """The high end of chunks that wait for the log."""


def decide_flow(held: Backlog, need: Need, *, soft: int, hard: int) -> Flow:
    if held.size < soft:
        return Flow.ON
    drained = held.sealed == need.drained
    if held.size >= hard:
        return Flow.FULL if drained else Flow.PAUSED
    awaited = need.upto is not None and (held.end is None or held.end.era != need.upto.era or held.end < need.upto)
    return Flow.ON if drained or awaited else Flow.PAUSED
