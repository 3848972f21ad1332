"""Errors, named by what the caller does next.

    SnowmeltError
    ├── Unavailable       nothing happened; try again, with back-off
    │   └── Occupied      another session holds a lock on one table; try that table again until it is free
    ├── OutcomeUnknown    it may have happened; read back first
    ├── Fenced            a newer owner has this; stop
    ├── SourceDrift       the source changed in a way that an operator must decide on
    │   └── TableStuck    in one table, which is set aside; the others continue
    ├── Corrupt           bytes are not what they must be; stop, never guess
    ├── InvalidConfig     the user's settings can't work; fix them
    │   └── TableRefused  the database does not let the user read one table
    └── InvariantBroken   a bug of ours; stop

The text of an error is a fact, its detail and, where one exists, a hint that tells the remedy. It never holds
row values or credentials. What others wrote may be part of it, a server's message or a table's name: so every text of an error is made
`printable` here, and so is all that goes to a terminal or a log.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

TEXT_MAX: Final = 2_000
"""Characters of a fact, a detail or a hint."""

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]")


def printable(text: str, characters_max: int | None = None) -> str:
    """The text without what steers a terminal, begins a new line or turns its direction: such characters are written as \\u001b, which
    means the same in JSON. What is longer than `characters_max` is cut, and the cut is told."""
    shown = _UNPRINTABLE.sub(_escaped, text if characters_max is None else text[: characters_max + 1])
    if characters_max is None or len(shown) <= characters_max:
        return shown
    cut = f" … ({len(text):,} characters)"
    return shown[: characters_max - len(cut)] + cut


def _escaped(found: re.Match[str]) -> str:
    return "\\n" if found[0] == "\n" else f"\\u{ord(found[0]):04x}"


BEGIN_ANEW = "begin anew with a new state and other lake tables"
"""The remedy where a lake table and the pipeline's state have parted for good."""
RECOPY = "start with --recopy and the table's name, which makes its lake table anew; or exclude it"
"""The remedy where a table and its lake table have parted for good."""


class SnowmeltError(Exception):
    """The root. `fact` says what is so, `detail` where and with which numbers, `hint` what to do about it."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "") -> None:
        self.fact = printable(fact, TEXT_MAX)
        super().__init__(self.fact)
        self.detail = printable(detail, TEXT_MAX)
        self.hint = printable(hint, TEXT_MAX)

    def __str__(self) -> str:
        text = self.fact
        if self.detail:
            text += f": {self.detail}"
        if self.hint:
            text += f" (hint: {self.hint})"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in Spark tasks; keyword-only arguments don't pickle by themselves.
        return _rebuild, (type(self), self.fact, self.detail, self.hint)


def _rebuild(kind: type[SnowmeltError], fact: str, detail: str, hint: str) -> SnowmeltError:
    return kind(fact, detail=detail, hint=hint)


def _rebuild_stuck(fact: str, detail: str, hint: str, table: tuple[str, str]) -> TableStuck:
    return TableStuck(fact, detail=detail, hint=hint, table=table)


def _rebuild_corrupt(fact: str, detail: str, hint: str, position: str) -> Corrupt:
    error = Corrupt(fact, detail=detail, hint=hint)
    error.position = position
    return error


class Unavailable(SnowmeltError):
    """Nothing happened; the same call may work later."""


class Occupied(Unavailable):
    """Another session holds a lock on what was asked for. It may do so for as long as it likes."""


class OutcomeUnknown(SnowmeltError):
    """It may have happened; read back before doing it again."""


class Fenced(SnowmeltError):
    """A newer number owns this; stop."""


class SourceDrift(SnowmeltError):
    """The source is not what the recorded state says; an operator must choose."""


class TableStuck(SourceDrift):
    """One table can't continue, and the others can. `table`: its database and name."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "", table: tuple[str, str]) -> None:
        super().__init__(fact, detail=detail, hint=hint)
        self.table = table

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_stuck, (self.fact, self.detail, self.hint, self.table)


class Corrupt(SnowmeltError):
    """Bytes are not what they must be. `position` says where, as file:offset, when it is known."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "", position: str = "") -> None:
        super().__init__(fact, detail=f"{detail} at {position}".strip() if position else detail, hint=hint)
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_corrupt, (self.fact, self.detail, self.hint, self.position)


class InvalidConfig(SnowmeltError):
    """The settings can't work; the user fixes them."""

    @classmethod
    def of_lines(cls, facts: Iterable[str]) -> InvalidConfig:
        """A file that is wrong in several places is told in as many lines."""
        error = cls("")
        error.fact = "\n".join(printable(fact, TEXT_MAX) for fact in facts)
        error.args = (error.fact,)
        return error


class TableRefused(InvalidConfig):
    """The user may not read one table."""


class InvariantBroken(SnowmeltError):
    """A bug of ours."""


def check(condition: bool, fact: str, detail: str = "") -> None:
    """Stop on a broken invariant, in production too. One condition at a time."""
    if not condition:
        raise InvariantBroken(fact, detail=detail)


def present(value: T | None, fact: str, detail: str = "") -> T:
    """The value, which must be there."""
    if value is None:
        raise InvariantBroken(fact, detail=detail)
    return value


def instance(value: object, kind: type[T], fact: str, detail: str = "") -> T:
    """The value, which must be of this kind."""
    if not isinstance(value, kind):
        raise InvariantBroken(fact, detail=detail)
    return value


def clear_frames(error: BaseException) -> None:
    """Clear the local variables that an error's tracebacks hold, so that files and buffers are freed now and not when Python's cyclic
    garbage collector runs. Functions that are still running keep theirs."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__
