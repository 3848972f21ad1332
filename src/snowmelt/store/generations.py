"""Generations of drivers, and a check that two processes see one store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snowmelt.errors import Corrupt, InvalidConfig, Unavailable
from snowmelt.model.numbers import GenerationNumber
from snowmelt.store.contract import Store, key_of, numbered
from snowmelt.store.numbered import Won, newest
from snowmelt.store.records import RecordKind, get_record, settle_record

PREFIX: Final = "generation"
_TRIES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Generation:
    """A driver. By its own nonce it knows itself, and its tasks know its store."""

    number: GenerationNumber
    nonce: str


GENERATION: Final = RecordKind("generation", 1, Generation)


def take_generation(store: Store, nonce: str, *, since: int = 1) -> Generation:
    """Become the newest driver. Durable on return; from then on every older one is fenced.

    `since` as in `newest`. Each call takes another number. If the outcome of a number is not known, the next call skips it:
    no driver uses it, and newer ones fence it.
    """
    last = newest(store, PREFIX, since=since)
    number = since if last is None else last + 1
    for taken in range(number, number + _TRIES_MAX):
        mine = Generation(GenerationNumber(taken), nonce)
        if isinstance(settle_record(store, numbered(PREFIX, taken), GENERATION, mine), Won):
            return mine
    raise Unavailable("drivers start faster than this one", detail=f"{_TRIES_MAX} generations since {number}")


def newest_generation(store: Store, generation: GenerationNumber) -> GenerationNumber:
    """The newest generation, as seen by the driver of `generation`; 0 if even its own record is gone."""
    return GenerationNumber(newest(store, PREFIX, since=generation) or 0)


def is_newest(store: Store, generation: GenerationNumber) -> bool:
    """Whether no newer driver exists. Ask it after winning a record and before the first effect elsewhere."""
    return newest_generation(store, generation) == generation


def check_shared(store: Store, generation: GenerationNumber, nonce: str) -> None:
    """The first step of a task: does it see what its driver wrote? A path of another machine looks like an empty store."""
    try:
        found = get_record(store, numbered(PREFIX, generation), GENERATION)
    except Corrupt as error:
        raise Corrupt(error.fact, detail=error.detail, hint="do this process and the driver see the same store?") from None
    if found == Generation(generation, nonce):
        return
    raise InvalidConfig(
        "the store is not shared: this process does not see what the driver wrote",
        detail=f"generation {generation} is " + ("not there" if found is None else "another driver's"),
        hint="give the store an address that all machines see: an object store, or a folder that is mounted on each of them",
    )


def check_exclusive(store: Store, nonce: str) -> None:
    """The first use of a new store by a driver: some servers accept a condition and ignore it.

    The nonce must be new. Nothing remains unless the call is interrupted.
    """
    key = key_of("probe", nonce)
    store.put_if_absent(key, b"first")
    overwritten = store.put_if_absent(key, b"second")
    found = store.get(key)
    store.delete([key])
    if overwritten or found != b"first":
        raise InvalidConfig(
            "the store does not keep two writers apart",
            detail="a second put-if-absent was not refused" if overwritten else "a record was not found as it was written",
            hint="S3-compatible servers need support for If-None-Match on PUT; a newer version may have it",
        )
