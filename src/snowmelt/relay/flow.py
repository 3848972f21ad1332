"""Backpressure: whether capture may continue to read, given how much log it holds.

    States. ON: read. PAUSED: don't read the socket until some log is released. FULL: no log can be released and no more can be held; an
    operator must choose.

    Must never happen. A pause that only more log could end. For a pause ends when log is released: after an epoch is done or a chunk is
    over. So capture may pause while one of these needs no more log:
    - some sealed log is not in the lake: the next epoch ends at the first cut at the latest, whatever its limit;
    - a chunk is being read, or was read and its high end is in the log: it will be adopted or given back.
    It must not pause
    - when the lake has all sealed log and no chunk is under way. What is held then is the newest segment, which is always kept, and an
      open transaction without a cut. It may continue to its end, up to the hard cap;
    - when a chunk that was read waits for the log up to its high end, and what it holds back can't be released before (S2). Capture may
      continue up to that end, or up to the hard cap. At the hard cap the chunk is given back, which releases what it held.

    Memory. A few numbers.

The decision and its facts are made in two threads: a `Need` may be some seconds old. So it says what it is about, and it is void after that
has changed: `drained` when something was sealed since, `upto` when capture has reached it.
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
    """Bytes of all segments that are not released, with the one that is being filled."""
    sealed: int
    """Bytes ever sealed. This count only grows."""
    end: Position | None
    """Where the last sealed segment ends."""


@dataclass(frozen=True, slots=True)
class Need:
    """What only more log can do."""

    drained: int | None = None
    """The count of bytes ever sealed when nothing more could be released; None: something can be."""
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
