"""Steps without I/O.

A function of steps is a generator: it yields a request, receives the answer, and continues. It decides what is done and in which order. Its
shell does it. Between two requests anything can happen, including the end of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from snowmelt.commit.cleaning import NO_REWRITES, RewritesUnderWay
from snowmelt.commit.coordinator import Coordinator
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done, Intent
from snowmelt.commit.summary import Summary
from snowmelt.model.numbers import GenerationNumber, LogOffset
from snowmelt.relay.retention import Relay, SegmentRecord

Answer = TypeVar("Answer")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Request(Generic[Answer]):
    """A request to the shell. `yield from` returns the answer."""

    __slots__ = ()

    def __iter__(self) -> Generator[Request[Any], Any, Answer]:
        answer: Answer = yield self
        return answer


Steps = Generator[Request[Any], Any, Result]


def perform(steps: Steps[Result], act: Callable[[Request[Any]], Any]) -> Result:
    """Run steps to their end. An error of `act` ends them."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = act(request)


# ---- records of the store


@dataclass(frozen=True, slots=True)
class StoredKind(Generic[Value]):
    name: str


INTENTS: Final[StoredKind[Intent]] = StoredKind("intent")
DONES: Final[StoredKind[Done]] = StoredKind("done")
SUMMARIES: Final[StoredKind[Summary]] = StoredKind("summary")
LOG: Final[StoredKind[SegmentRecord]] = StoredKind("relay")
"""The records of the captured log."""


@dataclass(frozen=True, slots=True)
class Newest(Request[int]):
    """The newest number of a kind, 0 if it has none."""

    kind: StoredKind[Any]


@dataclass(frozen=True, slots=True)
class Get(Request[Value | None], Generic[Value]):
    """A record; None: it does not exist."""

    kind: StoredKind[Value]
    number: int


@dataclass(frozen=True, slots=True)
class Put(Request[Value], Generic[Value]):
    """Put a record if its number is free. The answer is the record that exists then: ours or another's."""

    kind: StoredKind[Value]
    number: int
    value: Value


@dataclass(frozen=True, slots=True)
class Trim(Request[None]):
    """Delete all records of a kind below a number. Missing ones are fine."""

    kind: StoredKind[Any]
    below: int


@dataclass(frozen=True, slots=True)
class NewestGeneration(Request[int]):
    """The generation of the newest driver."""


# ---- what the steps work on


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of one driver, once it is the newest."""

    commit: Coordinator
    relay: Relay

    @property
    def ledger(self) -> Ledger:
        return self.commit.ledger

    @property
    def generation(self) -> GenerationNumber:
        return self.commit.generation


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Jobs and reads of this driver that are not over."""

    reads_from: Sequence[LogOffset]
    """The offsets from which log jobs may read."""
    newest_job: int
    """The newest job of the chunk lane."""
    rewrites: RewritesUnderWay = NO_REWRITES
