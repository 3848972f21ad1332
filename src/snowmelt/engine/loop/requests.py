"""Requests of operators in the store (`commit.requests`): a command puts them, the driver that runs takes them up and answers."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Final

from snowmelt.commit.requests import (
    OperatorAnswer,
    OperatorRequest,
    RescaleTable,
    below_which_to_trim,
    is_missed,
    open_requests,
)
from snowmelt.errors import Corrupt, Fenced, Unavailable
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import GenerationNumber
from snowmelt.store.contract import Store, numbered
from snowmelt.store.generations import is_newest
from snowmelt.store.numbered import Lost, newest
from snowmelt.store.records import RecordKind, delete_records, get_record, settle_record

log = logging.getLogger(__name__)

REQUEST: Final = RecordKind("request", 1, OperatorRequest)
ANSWER: Final = RecordKind("answer", 1, OperatorAnswer)
_EVERY_S: Final = 1.0
_TRIES_MAX: Final = 100


def ask(store: Store, wanted: RescaleTable, *, now_ms: TimeMs) -> tuple[int, OperatorRequest]:
    """Put a request. Its number, under which the answer will be."""
    request = OperatorRequest(nonce=uuid.uuid4().hex, time_ms=now_ms, rescale=wanted)
    for _ in range(_TRIES_MAX):
        number = (newest(store, REQUEST.name, since=1) or 0) + 1
        if isinstance(settle_record(store, numbered(REQUEST.name, number), REQUEST, request), Lost):
            continue
        if not is_missed(number, newest(store, REQUEST.name, since=number) or number):
            return number, request
    raise Unavailable("others ask faster than this command", detail=f"{_TRIES_MAX} tries")


def answer_to(store: Store, number: int) -> OperatorAnswer | None:
    return get_record(store, numbered(ANSWER.name, number), ANSWER)


class Inbox:
    """Of one driver; used by the thread that owns the machines."""

    def __init__(self, store: Store, generation: GenerationNumber, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._generation = generation
        self._clock = clock
        self._due = 0.0
        self._listed = False
        self._next = 1
        """No request from this number on is known."""
        self.open: dict[int, OperatorRequest] = {}
        """The oldest first."""

    def look(self) -> None:
        """Take up new requests, now and then: one read. What can't be read is asked for again."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + _EVERY_S
        try:
            if not self._listed:
                self._list()
            while self._store.get(numbered(REQUEST.name, self._next)) is not None:
                if answer_to(self._store, self._next) is None:
                    self._take(self._next)
                self._next += 1
        except Unavailable:
            return

    def _list(self) -> None:
        numbers = self._store.numbers(REQUEST.name)
        for number in open_requests(numbers, self._store.numbers(ANSWER.name)):
            self._take(number)
        self._next = max(numbers, default=0) + 1
        self._listed = True

    def _take(self, number: int) -> None:
        """One that can't be read concerns its command alone."""
        try:
            request = get_record(self._store, numbered(REQUEST.name, number), REQUEST)
        except Corrupt as error:
            log.warning("a request can't be read", extra={"number": number, "why": str(error)})
            # A newer driver may be able to.
            self._settle(number, OperatorAnswer(nonce="", refused="this driver can't read it: is the command of a newer version?"))
            return
        if request is not None:
            self.open[number] = request

    def answer(self, number: int, answer: OperatorAnswer) -> None:
        """`Fenced`: a newer driver takes the request up."""
        self._settle(number, answer)
        self.open.pop(number, None)
        below = below_which_to_trim(self._store.numbers(ANSWER.name))
        for kind in (REQUEST, ANSWER):
            delete_records(self._store, [numbered(kind.name, one) for one in self._store.numbers(kind.name) if one < below])

    def _settle(self, number: int, answer: OperatorAnswer) -> None:
        if not is_newest(self._store, self._generation):
            raise Fenced("a newer driver runs this pipeline", detail=f"this is generation {self._generation}")
        settle_record(self._store, numbered(ANSWER.name, number), ANSWER, answer)
