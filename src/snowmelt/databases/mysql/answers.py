"""Checks of a server's answer before it is used.

Each query names the kind of each column that it reads. A value of another kind, or a row that is too short, is `Corrupt`: a server, or an
attacker in the middle, may send anything. No value gets into an error, because it may be of a user's row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from snowmelt.errors import Corrupt

NUMBER_MAX: Final = 10**40
"""The largest numbers that we ask for are sums of a table's hashes. Without a limit a decimal of a few bytes could fill the memory."""

Kind = Callable[[Any], Any]


def anything(value: Any) -> Any:
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise unexpected(f"{_named(value)} where a text belongs")
    return value


def text_or_none(value: Any) -> str | None:
    return None if value is None else text(value)


def number(value: Any) -> int:
    """A whole number, also as text: SHOW sends numbers as text."""
    try:
        if isinstance(value, int | Decimal | str) and abs(found := Decimal(value)) < NUMBER_MAX and found == int(found):
            return int(found)
    except ArithmeticError:
        pass
    raise unexpected(f"{_named(value)} where a number belongs")


def number_or_none(value: Any) -> int | None:
    return None if value is None else number(value)


def take(rows: Iterable[Sequence[Any]], columns: Sequence[Kind]) -> list[tuple[Any, ...]]:
    """The rows, each with as many values as there are kinds. Further columns of a newer server are dropped."""
    taken = []
    for row in rows:
        if len(row) < len(columns):
            raise unexpected(f"columns: {len(row)}, not {len(columns)}")
        taken.append(tuple(kind(value) for kind, value in zip(columns, row, strict=False)))
    return taken


def unexpected(detail: str) -> Corrupt:
    return Corrupt("the server's answer is not what was asked for", detail=detail, hint="is it a MySQL or MariaDB server?")


def _named(value: Any) -> str:
    return "NULL" if value is None else "a text" if isinstance(value, str) else f"a value of type {type(value).__name__}"
