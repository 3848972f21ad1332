"""Savepoints of one transaction, and which of its row events were undone by a ROLLBACK TO.

A server usually cuts undone changes out of its log. It can't if the transaction made a temporary table or changed a table without
transactions. Then it logs SAVEPOINT, all rows, and ROLLBACK TO.

Laws:
- Row events are counted from the transaction's first, whatever window or compressed event they lie in.
- A savepoint replaces an earlier one of its name. ROLLBACK TO keeps its savepoint and ends all later ones. RELEASE is not logged, and
  does not matter: a transaction never rolls back to a released savepoint.
- A function or a trigger has savepoints of its own, which end with it. The log does not show which savepoints these are. One that was set
  inside a statement may hide another of its name. A ROLLBACK TO that name after the statement is then ambiguous, and is an error.
- Names are compared as servers do, by utf8mb3_general_ci: without case, and Latin letters without accents. If it is uncertain whether two
  names of a transaction are equal, that is an error.

Memory: an entry per savepoint, and one per undone stretch; both are bounded.
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
"""Engines without rollback. Servers log their rows as transactions of their own. Where such rows lie inside another transaction, a
ROLLBACK TO leaves them in place."""
_LATIN_END: Final = 0x250
_NAMED: Final = r"""\s*(?:`(?P<ticks>(?:[^`]|``)*)`|"(?P<quotes>(?:[^"]|"")*)"|(?P<bare>\S+))\s*"""
_SET: Final = re.compile(rf"\s*SAVEPOINT\b{_NAMED}", re.IGNORECASE | re.DOTALL)
_ROLLBACK_TO: Final = re.compile(rf"\s*ROLLBACK\s+(?:WORK\s+)?TO\b(?:\s+SAVEPOINT\b)?{_NAMED}", re.IGNORECASE | re.DOTALL)


def rolled_back_to(sql: str) -> str | None:
    """The savepoint that a statement rolls back to; None if it does not."""
    return _name(_ROLLBACK_TO.fullmatch(sql))


def savepoint_set(sql: str) -> str | None:
    """The savepoint that a statement sets; None if it does not."""
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
    """A statement in the log: the tables that it maps, as a hash, and whether the log has no rows of one of them."""

    tables: int
    lacks: bool


@dataclass(slots=True)
class _Set:
    """A savepoint: how many row events lie before it."""

    events: int
    before: Written | None = None
    """The statement that ends before it."""
    hides: int | None = None
    """Where the savepoint of its name was that it replaces."""
    inside: bool = False
    """Whether it seems to lie inside a statement. Then the log has the statement in two parts, one on each side of the savepoint. Both map
    the same tables, and one of them has no rows of one of these."""


class Savepoints:
    """The savepoints that a walk through a transaction has met, from its beginning on."""

    def __init__(self) -> None:
        self._set: dict[str, _Set] = {}
        """By what servers compare, in the order in which they were set."""
        self._newest: _Set | None = None
        self._alike: dict[str, str] = {}
        self._first: list[int] = []
        self._last: list[int] = []

    def set(self, name: str, events: int, where: str, before: Written | None = None) -> None:
        """`events` row events of the transaction lie before it, and `before` is the last statement before it."""
        key = self._key(name, where)
        replaced = self._set.pop(key, None)
        hides = None
        if replaced is not None:
            # A savepoint that was set inside an earlier statement ended with it.
            hides = replaced.hides if replaced.inside else replaced.events
        self._set[key] = self._newest = _Set(events, before, hides)
        if len(self._set) > ENTRIES_MAX:
            raise SourceDrift("a transaction has more savepoints than can be followed", detail=f"{ENTRIES_MAX} at {where}")

    def statement_ended(self, after: Written | None) -> None:
        """The first statement that has ended after the newest savepoint, if there is one."""
        newest = self._newest
        if newest is not None and after is not None:
            newest.inside |= newest.before is not None and newest.before.tables == after.tables and (newest.before.lacks or after.lacks)
            self._newest = None

    def hidden(self, name: str, where: str, *, inside: bool) -> tuple[int, int] | None:
        """The row events, first and end, that a ROLLBACK TO may have undone beside those of `roll_back`. `inside`: it lies inside of a
        statement. So does its savepoint then, because only the statement knows it."""
        found = self._set.get(self._key(name, where))
        if found is None:
            return None
        found.inside |= inside
        return (found.hides, found.events) if found.inside and not inside and found.hides is not None else None

    def roll_back(self, name: str, events: int, where: str) -> int | None:
        """A ROLLBACK TO after `events` row events: the row event from which on all were undone; None: the savepoint was never set."""
        key = self._key(name, where)
        found = self._set.get(key)
        if found is None:
            return None
        first = found.events
        while next(reversed(self._set)) != key:
            self._set.popitem()
        # An earlier ROLLBACK TO this savepoint or a later one is part of this.
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
    """Stretches of row events in their order, each from its first up to its end, which is not part of it."""

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
