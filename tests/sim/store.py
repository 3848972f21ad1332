"""A store that loses requests and replies and lets some puts land late, and lists what was there a while ago."""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any, TypeVar

from snowmelt.driving.steps import Request
from snowmelt.driving.steps import Steps as Moved
from snowmelt.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")
Steps = Generator[None, None, T]
"""What an actor does, one step at a time. Between two steps anything can happen, its own end included."""


def move(steps: Moved[T], act: Callable[[Request[Any]], Steps[Any]]) -> Steps[T]:
    """Move steps that ship to their end, each request of theirs by some steps of this world."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answer = yield from act(request)


class Faulty:
    """Requests of a driver to something outside of it."""

    def __init__(self, rng: Random, rate: float, late: list[Callable[[], object]]) -> None:
        self.rng = rng
        self.rate = rate
        self._late = late

    def call(self, act: Callable[[], T], *, changes: bool = True) -> Steps[T]:
        """One request: on its way, done or not, and its answer on its way or lost."""
        yield
        fate = self.rng.random()
        if fate >= self.rate:
            answer = act()
            yield
            return answer
        if not changes or fate < self.rate * 0.3:
            raise Unavailable("the request was lost")
        if fate < self.rate * 0.6:
            self._late.append(act)
        else:
            act()
        yield
        raise OutcomeUnknown("the answer was lost")

    def read(self, act: Callable[[], T]) -> Steps[T]:
        """A request that changes nothing, until it is answered."""
        while True:
            try:
                return (yield from self.call(act, changes=False))
            except Unavailable:
                continue


class Store:
    """Records by key; keys are (kind, number)."""

    def __init__(self, faulty: Faulty, won: Callable[[str, int, Any], None]) -> None:
        self.records: dict[tuple[str, int], Any] = {}
        self.data: dict[str, Any] = {}
        self._faulty = faulty
        self._won = won
        """Told of every record that becomes true."""

    def _put(self, kind: str, number: int, value: Any) -> bool:
        if (kind, number) in self.records:
            return False
        self.records[kind, number] = value
        self._won(kind, number, value)
        return True

    def put_if_absent(self, kind: str, number: int, value: Any) -> Steps[bool | None]:
        """None: the outcome is unknown."""
        try:
            return (yield from self._faulty.call(lambda: self._put(kind, number, value)))
        except OutcomeUnknown:
            return None
        except Unavailable:
            return None

    def settle(self, kind: str, number: int, value: Any) -> Steps[Any]:
        """What is there in the end: ours or another's."""
        while True:
            won = yield from self.put_if_absent(kind, number, value)
            if won:
                return value
            found = yield from self.get(kind, number)
            if found is not None:
                return found

    def get(self, kind: str, number: int) -> Steps[Any]:
        return (yield from self._faulty.read(lambda: self.records.get((kind, number))))

    def newest(self, kind: str) -> Steps[int]:
        """By a listing that may be old, and then number by number."""
        listed = yield from self._faulty.read(lambda: [number for name, number in self.records if name == kind])
        listed.sort()
        if self._faulty.rate and self._faulty.rng.random() < 0.3:
            del listed[-self._faulty.rng.randint(1, 2) :]
        number = listed[-1] if listed else 0
        while (yield from self.get(kind, number + 1)) is not None:
            number += 1
        return number

    def delete(self, keys: list[tuple[str, int]]) -> Steps[None]:
        for key in keys:
            yield from self._faulty.read(lambda key=key: self.records.pop(key, None))  # type: ignore[misc]

    def put_data(self, name: str, value: Any) -> Steps[None]:
        while True:
            try:
                yield from self._faulty.call(lambda: self.data.__setitem__(name, value))
                return
            except (Unavailable, OutcomeUnknown):
                continue

    def delete_data(self, name: str) -> Steps[None]:
        yield from self._faulty.read(lambda: self.data.pop(name, None))
