"""Names of transactions of two phases: `branch,format`, where the format is a number. Any other name is a branch alone.

Laws, as MySQL 5.7 behaves:
- A server never has two prepared transactions of one branch.
- It logs an end under another format than was prepared, and that ends nothing. What is prepared still waits for its own name.
- It keeps the lower 32 bits of a format over its own end. So one that was prepared under a greater format may end by either name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_KEPT: Final = 1 << 32


def branch_of(name: str) -> str:
    return _parted(name)[0]


def ended_by(name: str, prepared: Iterable[str]) -> str | None:
    """Which of the prepared transactions an end under this name ends; None: it ends none of them."""
    branch, number = _parted(name)
    for one in prepared:
        its_branch, its_number = _parted(one)
        if its_branch == branch and (its_number == number or (its_number >= _KEPT and (its_number - number) % _KEPT == 0)):
            return one
    return None


def _parted(name: str) -> tuple[str, int]:
    branch, _, number = name.rpartition(",")
    return (branch, int(number)) if number.isascii() and number.isdigit() and branch else (name, -1)
