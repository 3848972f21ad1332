"""Errors, named by what the caller does next.

    SnowmeltError
    ├── Unavailable       nothing happened; try again, with back-off
    ├── OutcomeUnknown    it may have happened; read back first
    ├── Fenced            somebody newer owns this; stop
    ├── SourceDrift       the source changed in a way that an operator must decide on
    ├── Corrupt           bytes are not what they must be; stop, never guess
    ├── InvalidConfig     the user's settings can't work; fix them
    └── InvariantBroken   a bug of ours; stop

The text of an error is a fact, its detail and, where one exists, a hint that tells the remedy. It never holds
row values or credentials.
"""

from __future__ import annotations

BEGIN_ANEW = "begin anew with a new state and other lake tables"
"""The remedy where a lake table and the pipeline's state have parted for good."""


class SnowmeltError(Exception):
    """The root. `fact` says what is so, `detail` where and with which numbers, `hint` what to do about it."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.detail = detail
        self.hint = hint

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


def _rebuild_corrupt(fact: str, detail: str, hint: str, position: str) -> Corrupt:
    error = Corrupt(fact, detail=detail, hint=hint)
    error.position = position
    return error


class Unavailable(SnowmeltError):
    """Nothing happened; the same call may work later."""


class OutcomeUnknown(SnowmeltError):
    """It may have happened; read back before doing it again."""


class Fenced(SnowmeltError):
    """A newer number owns this; stop."""


class SourceDrift(SnowmeltError):
    """The source is not what the recorded state says; an operator must choose."""


class Corrupt(SnowmeltError):
    """Bytes are not what they must be. `position` says where, as file:offset, when it is known."""

    def __init__(self, fact: str, *, detail: str = "", hint: str = "", position: str = "") -> None:
        super().__init__(fact, detail=f"{detail} at {position}".strip() if position else detail, hint=hint)
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_corrupt, (self.fact, self.detail, self.hint, self.position)


class InvalidConfig(SnowmeltError):
    """The settings can't work; the user fixes them."""


class InvariantBroken(SnowmeltError):
    """A bug of ours."""


def check(condition: bool, fact: str, detail: str = "") -> None:
    """Stop on a broken invariant, in production too. One condition at a time."""
    if not condition:
        raise InvariantBroken(fact, detail=detail)
