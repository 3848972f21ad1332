"""Savepoints of one transaction, and which of its row events were undone by a ROLLBACK TO.

A server that can cut what was undone out of its log does so. One that can't, because the transaction made a temporary table or changed
one without transactions, logs SAVEPOINT, all rows, and ROLLBACK TO.

Laws:
- Row events are counted from the transaction's first, whatever window or compressed event they lie in.
- A savepoint of a name replaces the one before it. ROLLBACK TO keeps its savepoint and ends all that were set behind it; RELEASE is not
  logged, and need not be known: what was released is never rolled back to.
- A function or a trigger has savepoints of its own, which end with it. The log does not say which are such: where one that is set inside
  a statement may hide another of its name, and that name is rolled back to behind the statement, nothing is guessed.
- Names are compared as servers do, by utf8mb3_general_ci: whatever their case, and of Latin letters whatever their accents. Where two
  names of a transaction may or may not be equal by that, nothing is guessed.

Memory: an entry per savepoint that may be rolled back to, and one per stretch that was undone; both are bounded.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from snowmelt.columnar.arena import Longs
from snowmelt.errors import SourceDrift

ENTRIES_MAX: Final = 1 << 20
WITHOUT_TRANSACTIONS: Final = frozenset({"archive", "aria", "csv", "memory", "merge", "mrg_myisam", "myisam"})
"""Engines that can't undo. Servers that log rows write theirs apart, as transactions of their own; where they lie inside, they stay."""
_LATIN_END: Final = 0x250
_NAMED: Final = r"""\s*(?:`(?P<ticks>(?:[^`]|``)*)`|"(?P<quotes>(?:[^"]|"")*)"|(?P<bare>\S+))\s*"""
_SET: Final = re.compile(rf"\s*SAVEPOINT\b{_NAMED}", re.IGNORECASE | re.DOTALL)
_ROLLBACK_TO: Final = re.compile(rf"\s*ROLLBACK\s+(?:WORK\s+)?TO\b(?:\s+SAVEPOINT\b)?{_NAMED}", re.IGNORECASE | re.DOTALL)


def rolled_back_to(sql: str) -> str | None:
    """The savepoint that a statement rolls back to; None where it does not."""
    return _name(_ROLLBACK_TO.fullmatch(sql))


def savepoint_set(sql: str) -> str | None:
    """The savepoint that a statement sets; None where it does not."""
    return _name(_SET.fullmatch(sql))


def _name(found: re.Match[str] | None) -> str | None:
    if found is None:
        return None
    if (ticks := found["ticks"]) is not None:
        return ticks.replace("``", "`")
    if (quotes := found["quotes"]) is not None:
        return quotes.replace('""', '"')
    return str(found["bare"])


@dataclass(frozen=True, slots=True)
class Written:
    """What the log has of a statement: which tables it names, as a number, and whether it has no rows of one of them."""

    tables: int
    lacks: bool


@dataclass(slots=True)
class _Set:
    """A savepoint: how many row events lie before it."""

    events: int
    before: Written | None = None
    """The statement that ends before it."""
    hides: int | None = None
    """Where the one of its name was that it replaces."""
    inside: bool = False
    """Whether it seems to lie inside a statement: the log ends that one at the savepoint and names its tables anew behind it, and one of
    the two parts has no rows of a table that both name."""


class Savepoints:
    """What a walk through a transaction has met, from its beginning on."""

    def __init__(self) -> None:
        self._set: dict[str, _Set] = {}
        """By what servers compare, in the order in which they were set."""
        self._newest: _Set | None = None
        self._alike: dict[str, str] = {}
        self._first: list[int] = []
        self._last: list[int] = []

    def set(self, name: str, events: int, where: str, before: Written | None = None) -> None:
        """`events` row events of the transaction lie before it, and the statement `before` is the last of them."""
        key = self._key(name, where)
        replaced = self._set.pop(key, None)
        hides = None
        if replaced is not None:
            # One that was set inside an earlier statement is over.
            hides = replaced.hides if replaced.inside else replaced.events
        self._set[key] = self._newest = _Set(events, before, hides)
        if len(self._set) > ENTRIES_MAX:
            raise SourceDrift("a transaction has more savepoints than can be followed", detail=f"{ENTRIES_MAX} at {where}")

    def went_on(self, behind: Written | None) -> None:
        """The first statement that has ended behind the savepoint that was set last, if one has."""
        newest = self._newest
        if newest is not None and behind is not None:
            newest.inside |= newest.before is not None and newest.before.tables == behind.tables and (newest.before.lacks or behind.lacks)
            self._newest = None

    def hidden(self, name: str, where: str, *, inside: bool) -> tuple[int, int] | None:
        """From which row event on, up to which, a ROLLBACK TO may have undone more than `roll_back` tells. `inside`: it lies inside of a
        statement, and so does its savepoint: only there it is known."""
        found = self._set.get(self._key(name, where))
        if found is None:
            return None
        found.inside |= inside
        return (found.hides, found.events) if found.inside and not inside and found.hides is not None else None

    def roll_back(self, name: str, events: int, where: str) -> int | None:
        """From which row event on all were undone that lie before this place, behind `events` of them; None: it was never set."""
        key = self._key(name, where)
        found = self._set.get(key)
        if found is None:
            return None
        first = found.events
        while next(reversed(self._set)) != key:
            self._set.popitem()
        # What was undone before, behind the same savepoint or a later one, is part of this.
        while self._first and self._first[-1] >= first:
            self._first.pop()
            self._last.pop()
        if first < events:
            self._first.append(first)
            self._last.append(events)
        if len(self._first) > ENTRIES_MAX:
            raise SourceDrift("a transaction was rolled back to more savepoints than can be followed", detail=f"{ENTRIES_MAX} at {where}")
        return first

    def undone(self) -> Undone:
        return Undone(np.array(self._first, np.int64), np.array(self._last, np.int64))

    def _key(self, name: str, where: str) -> str:
        key = "".join(map(_weight, name))
        loose = "".join(one for one in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(one))
        if self._alike.setdefault(loose, key) != key:
            raise SourceDrift(
                "whether two savepoints of a transaction have one name can't be told",
                detail=f"{name} at {where}",
                hint="give savepoints names of ASCII letters, and copy the transaction's tables again",
            )
        return key


def _weight(letter: str) -> str:
    upper = letter.upper() if len(letter.upper()) == 1 else letter
    if upper == "ß":
        return "S"
    return unicodedata.normalize("NFD", upper)[0] if ord(upper) < _LATIN_END else upper


class Undone:
    """Stretches of row events, each from its first up to the one behind its last, that follow each other."""

    def __init__(self, first: Longs, last: Longs) -> None:
        self._first = first
        self._last = last

    def __bool__(self) -> bool:
        return bool(self._first.shape[0])

    def holds(self, events: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of these row events were undone."""
        stretch = np.searchsorted(self._first, events, "right") - 1
        found: npt.NDArray[np.bool_] = (stretch >= 0) & (events < self._last[stretch])
        return found


NOTHING: Final = Undone(np.empty(0, np.int64), np.empty(0, np.int64))
