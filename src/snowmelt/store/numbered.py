"""Which record is the newest, and who won: on top of any store, without clock or chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from snowmelt.errors import OutcomeUnknown, Unavailable, check
from snowmelt.store.contract import Store, numbered

T = TypeVar("T")
TRIES_MAX: Final = 8
PROBES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Won:
    """The record there is the one we wrote."""


@dataclass(frozen=True, slots=True)
class Lost(Generic[T]):
    """The record there is another's."""

    value: T


def newest(store: Store, prefix: str, *, since: int = 0) -> int | None:
    """The newest number of a dense row of records, or None if there is none at or above `since`.

    `since` is the first number of the row, the floor below which it may be trimmed, or the newest seen before: then the answer
    never goes back. The listing only says where to begin; each number is then asked for, upwards until one is absent. So an old
    listing costs time, and never hides a record as long as `since` or a listed record is there. `Unavailable`: can't tell.
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
    store: Store, key: str, value: bytes, *, tries_max: int = TRIES_MAX, wait: Callable[[int], None] | None = None
) -> Won | Lost[bytes]:
    """Write a record where there is none, until it is known whose record is there. Durable on return.

    The bytes tell own from other, so a value must name its writer (generation, nonce); two writers of equal bytes both win.
    Twice: the answer is the same as long as the record is there. `wait(n)` is called before the n-th try again (n ≥ 1).
    `Unavailable`: nothing happened in any try. `OutcomeUnknown`: some try may have written it, or may yet.
    """
    check(tries_max >= 1, "at least one try is needed to settle a record")
    unknown: str | None = None
    refused: Unavailable | None = None
    for attempt in range(tries_max):
        if attempt and wait is not None:
            wait(attempt)
        try:
            if store.put_if_absent(key, value):
                return Won()
            # Also our own, where the client repeated the request by itself.
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
        # Refused, and yet nothing is there: S3 may say so of two writers at once, and records are trimmed. Or the request
        # was lost on its way. If it still is on its way it meets our next one, and one of the two is refused.
    if unknown is None and refused is not None:
        raise refused
    raise OutcomeUnknown(
        "it is not known whose record is in the store", detail=f"{key} after {tries_max} tries; {unknown}", hint="is the store reachable?"
    )
