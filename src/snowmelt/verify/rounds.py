"""Which rows of a lake table are wrong, while the database is written to and the pipeline runs. No I/O, no clock.

The lake is the source as of the last done epoch, whose end `D` is a place in the source's log. A read of the source contains all up to
its `low` place and nothing beyond its `high` one (the two are one where the server tells an exact position). A *round* reads rows of the
source, waits until the lake has `D ≥ high`, and reads the same rows of the lake at just that `D`.

Laws:
- A row that is equal on both sides in one round is right: it was so in the database when it was read, and the lake had it. Nothing
  is asked about it again.
- A row that differs is a candidate, no more: it may have changed in `(low, D]`. Most candidates of a table that is written to are
  gone after a second round; those that are changed all the time never are, and no number of rounds proves that a row is lost, because it
  may be deleted before each look at the lake and come back before each look at the source.
- So the last round asks the log itself. What a key is at `D` follows from the read and the changes in `(low, D]`: the last of them, or
  what was read where there is none. A change that the read contains already is in both, and the last one still wins. The lake has to
  be just that, so whatever differs from it is wrong, and whatever does not is right: no alarm is false, and no wrong row of
  that round is missed.
- Where rows have no key each is named by its content and counted, changes are added and taken away, and a change counts twice that
  is in the read already. There a read that is not exact puts off the rows that the log touches; what is put off to the end is
  told as not settled, never as right.

Memory: 24 bytes a row on each side of the classes that a round is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from snowmelt.databases.comparing.rows import Counts, Hashes, RowHashes, SourceRows

ROUNDS_MAX = 3


@dataclass(frozen=True, slots=True)
class LakeRows:
    """Rows of the lake, which is the source as of `place`."""

    rows: RowHashes
    place: Any


class World(Protocol):
    """One table, on both sides."""

    def source(self, classes: npt.NDArray[np.int64]) -> SourceRows:
        """Read the rows of these classes, by a new read."""

    def lake(self, classes: npt.NDArray[np.int64], after: Any) -> LakeRows:
        """The same rows as the lake has them at a place at or after `after`. Waits for it."""

    def changes(self, after: Any, upto: Any) -> RowHashes:
        """What the log did in (after, upto]. With a key: the last state of each key that was touched, with a count of 0 for one that
        is gone. Without: what was added (+1) and taken away (-1)."""

    def classes(self, keys: Hashes, among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of the classes `among` that may hold these keys."""


class DifferenceKind(StrEnum):
    LOST = "lost"
    EXTRA = "extra"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRows:
    """What is wrong, and what could not be settled."""

    keys: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    kinds: tuple[DifferenceKind, ...] = ()
    expected: RowHashes = field(default_factory=lambda: RowHashes.joined([]))
    """Of these keys, what the lake should have."""
    found: RowHashes = field(default_factory=lambda: RowHashes.joined([]))
    place: Any = None
    unsettled: int = 0


def find_wrong(world: World, classes: npt.NDArray[np.int64], *, keyed: bool, rounds_max: int = ROUNDS_MAX) -> WrongRows:
    """The wrong rows among those of `classes`."""
    candidates: Hashes | None = None
    for number in range(1, rounds_max + 1):
        reading = world.source(classes)
        held = world.lake(classes, reading.high)
        differing = differing_keys(reading.rows, held.rows)
        candidates = differing if candidates is None else np.intersect1d(candidates, differing)
        if not len(candidates):
            return WrongRows(place=held.place)
        if number == rounds_max or held.place <= reading.low:
            return _settle(world, reading, held, candidates, keyed=keyed)
        classes = world.classes(candidates, classes)
    return WrongRows()


def _settle(world: World, reading: SourceRows, held: LakeRows, candidates: Hashes, *, keyed: bool) -> WrongRows:
    theirs, ours = reading.rows.among(candidates), held.rows.among(candidates)
    put_off = np.empty(0, np.uint64)
    if held.place > reading.low:
        changes = world.changes(reading.low, held.place).among(candidates)
        if keyed:
            untouched = theirs.where(~np.isin(theirs.keys, changes.keys))
            theirs = RowHashes.joined([untouched, changes.where(changes.counts > 0)])
        elif reading.low >= reading.high:
            theirs = RowHashes.joined([theirs, changes])
        else:
            put_off = np.unique(changes.keys)
    keys = np.setdiff1d(differing_keys(theirs, ours), put_off)
    expected, found = theirs.among(keys), ours.among(keys)
    return WrongRows(
        keys=keys, kinds=_kinds(keys, expected, found), expected=expected, found=found, place=held.place, unsettled=len(put_off)
    )


def differing_keys(theirs: RowHashes, ours: RowHashes) -> Hashes:
    """The keys whose rows are not the same, as often, on both sides."""
    both = theirs.minus(ours)
    order = np.lexsort((both.rows, both.keys))
    keys, rows, counts = both.keys[order], both.rows[order], both.counts[order]
    if not len(keys):
        return keys
    first = np.concatenate([[True], (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])])
    starts = np.flatnonzero(first)
    return np.unique(keys[starts][np.add.reduceat(counts, starts) != 0])


def _kinds(keys: Hashes, expected: RowHashes, found: RowHashes) -> tuple[DifferenceKind, ...]:
    here, there = _totals(keys, found), _totals(keys, expected)
    return tuple(
        DifferenceKind.CHANGED if mine == theirs else DifferenceKind.LOST if mine < theirs else DifferenceKind.EXTRA
        for mine, theirs in zip(here.tolist(), there.tolist(), strict=True)
    )


def _totals(keys: Hashes, rows: RowHashes) -> Counts:
    totals = np.zeros(len(keys), np.int64)
    np.add.at(totals, np.searchsorted(keys, rows.keys), rows.counts)
    return totals
