"""The newest record, and which writer won: on any store, without clock or chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from snowmelt import budgets
from snowmelt.budgets import RetryBudget
from snowmelt.errors import OutcomeUnknown, Unavailable
from snowmelt.store.contract import Store, numbered

T = TypeVar("T")
PROBES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Won:
    """Our record is in the store."""


@dataclass(frozen=True, slots=True)
class Lost(Generic[T]):
    """Another writer's record is in the store."""

    value: T


def newest(store: Store, prefix: str, *, since: int = 0) -> int | None:
    """The newest number of a row of records without gaps, or None if there is none at or above `since`.

    `since` is the first number of the row, the floor below which it may be trimmed, or the newest number seen before: then the answer
    never decreases. The listing only says where to begin; each number is then read, upwards until one is absent. So an old
    listing costs time, but never hides a record as long as `since` or a listed record exists. `Unavailable`: can't tell.
    """
    hints = [number for number in store.numbers(prefix) if number > since]
    start = next((number for number in [*reversed(hints), since] if store.get(numbered(prefix, number)) is not None), None)
    if start is None:
        return None
    for number in range(start + 1, start + 1 + PROBES_MAX):
        if store.get(numbered(prefix, number)) is None:
            return number - 1
    raise Unavailable("the listing of the store is too old to find its newest record", detail=f"{prefix}: {PROBES_MAX} records later")


def settle(
    store: Store, key: str, value: bytes, *, budget: RetryBudget = budgets.RECORDS, wait: Callable[[int], None] | None = None
) -> Won | Lost[bytes]:
    """Write a record if there is none, and repeat until it is known whose record is there. Durable on return.

    The bytes tell our record from another's, so a value must name its writer (generation, nonce); two writers of equal bytes both win.
    Twice: the answer is the same as long as the record exists. `wait(n)` is called before the n-th retry (n ≥ 1).
    `Unavailable`: no try had an effect. `OutcomeUnknown`: some try may have written it, or may yet.
    """
    unknown: str | None = None
    refused: Unavailable | None = None
    for attempt in budget.tries():
        if attempt and wait is not None:
            wait(attempt)
        try:
            if store.put_if_absent(key, value):
                return Won()
            # It may also be our own: the client may have repeated the request.
            unknown = "another record was there, and then it was not"
        except OutcomeUnknown as error:
            unknown = str(error)
        except Unavailable as error:
            refused = error
        if unknown is None:
            continue
        try:
            found = store.get(key)
        except Unavailable as error:
            unknown = str(error)
            continue
        if found is not None:
            return Won() if found == value else Lost(found)
        # Refused, and yet nothing is there: S3 may answer so to two writers at once, and records are trimmed. Or the request
        # was lost. If it is still on its way, it meets our next one, and one of the two is refused.
    if unknown is None and refused is not None:
        raise refused
    raise OutcomeUnknown(
        "it is not known whose record is in the store",
        detail=f"{key} after {budget.tries_max} tries; {unknown}",
        hint="is the store reachable?",
    )
