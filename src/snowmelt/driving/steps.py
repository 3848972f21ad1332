"""Steps without I/O.

A function of steps is a generator: it yields a request, is given the answer, and continues. It decides what is done and in which order. Its
shell does it. Between two requests anything can happen, the end of the process included.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from snowmelt.commit.coordinator import Coordinator
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done, Intent
from snowmelt.commit.summary import Summary
from snowmelt.relay.retention import Relay, Sealed

Answer = TypeVar("Answer")
Result = TypeVar("Result")
Value = TypeVar("Value")


class Request(Generic[Answer]):
    """What a shell is asked to do. `yield from` it gives the answer."""

    __slots__ = ()

    def __iter__(self) -> Generator[Request[Any], Any, Answer]:
        answer: Answer = yield self
        return answer


Steps = Generator[Request[Any], Any, Result]


def perform(steps: Steps[Result], act: Callable[[Request[Any]], Any]) -> Result:
    """Move steps to their end. What `act` raises ends them."""
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
LOG: Final[StoredKind[Sealed]] = StoredKind("relay")
"""The records of the captured log."""


@dataclass(frozen=True, slots=True)
class Newest(Request[int]):
    """The newest number of a kind, 0 if it has none."""

    kind: StoredKind[Any]


@dataclass(frozen=True, slots=True)
class Get(Request[Value | None], Generic[Value]):
    """A record; None: it is not there."""

    kind: StoredKind[Value]
    number: int


@dataclass(frozen=True, slots=True)
class Put(Request[Value], Generic[Value]):
    """Put a record if its number is free. The answer is the one that is there then: ours, or that of another."""

    kind: StoredKind[Value]
    number: int
    value: Value


@dataclass(frozen=True, slots=True)
class Trim(Request[None]):
    """Delete all records of a kind below a number. Absent ones are fine."""

    kind: StoredKind[Any]
    below: int


@dataclass(frozen=True, slots=True)
class NewestGeneration(Request[int]):
    """The generation of the newest driver."""


# ---- what they move


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of one driver, once it is the newest."""

    commit: Coordinator
    relay: Relay

    @property
    def ledger(self) -> Ledger:
        return self.commit.ledger

    @property
    def generation(self) -> int:
        return self.commit.generation


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What this driver has begun and not ended."""

    reads_from: Sequence[int]
    """From where on log jobs may read the log."""
    newest_job: int
    """Of the chunk lane."""
