"""What a server's answer must be like before anything is made of it.

A caller says beside its statement what each column holds, by one of the kinds here. A value that is of another kind, or a row that is too
short, is `Corrupt`: a server, or whoever comes between, may send anything. No value gets into an error: it may be a row's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from snowmelt.errors import Corrupt

NUMBER_MAX: Final = 10**40
"""Sums of a table's hashes are the largest that are asked for. A decimal of a few bytes may stand for more than memory holds."""

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
    """A whole number, also one that is told as text, as SHOW does."""
    try:
        if isinstance(value, int | Decimal | str) and abs(found := Decimal(value)) < NUMBER_MAX and found == int(found):
            return int(found)
    except ArithmeticError:
        pass
    raise unexpected(f"{_named(value)} where a number belongs")


def number_or_none(value: Any) -> int | None:
    return None if value is None else number(value)


def take(rows: Iterable[Sequence[Any]], columns: Sequence[Kind]) -> list[tuple[Any, ...]]:
    """The rows, each with as many values as there are kinds; what a newer server tells beyond them is left away."""
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
