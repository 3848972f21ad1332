"""Requests of operators to the driver that runs, and its answers.

    request/<k>    put if absent, by a command
    answer/<k>     put if absent, by a driver, once what was asked for is done or refused

Laws:
- A request is open until it has an answer, whichever driver runs. What is asked for is done once, however often it is taken up: each kind
  of request says how a driver sees that it is done already.
- The newest answered requests stay, `KEPT` of them, and so does all that is newer. So numbers grow for ever.
- Drivers answer the oldest first. A command that was slow may put its request under a number that is free again, below those that stay.
  No driver takes that up, also none that starts later: it may be years old. The command sees it by the newest number (`is_missed`), and
  asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import NO_EPOCH, EpochNumber

KEPT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleTable:
    """Give a lake table another number of buckets. It is done already if the table has it."""

    target: str
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRequest:
    nonce: str
    """Its own, so that no two are equal."""
    time_ms: TimeMs
    rescale: RescaleTable


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAnswer:
    nonce: str
    """The request's."""
    refused: str = ""
    """Why it is not done; empty: it is done."""
    epoch: EpochNumber = NO_EPOCH
    """With which it was done; 0: it was done before."""


def open_requests(requests: Iterable[int], answers: Iterable[int]) -> list[int]:
    """The numbers of requests that are to be taken up, the oldest first. One that was missed is asked for under another number."""
    answered = set(answers)
    newest = max(answered, default=0)
    return sorted(number for number in requests if number not in answered and not is_missed(number, newest))


def below_which_to_trim(answers: Iterable[int]) -> int:
    """Requests and answers below this number may be deleted, the requests first. None of them is open."""
    return max(0, max(answers, default=0) - KEPT + 1)


def is_missed(number: int, newest: int) -> bool:
    """Whether drivers may not look at this request, because it was put so late."""
    return newest - number >= KEPT
