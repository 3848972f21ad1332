"""What a failure means: it passes, one table can't continue, or the pipeline can't continue. Only this module judges it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from snowmelt.errors import (
    Corrupt,
    Fenced,
    InvariantBroken,
    OutcomeUnknown,
    SnowmeltError,
    SourceDrift,
    TableRefused,
    TableStuck,
    Unavailable,
)


class Verdict(Enum):
    """The gravest last."""

    PASSES = 1
    """A retry may work."""
    TABLE = 2
    """No retry helps, and it concerns one table, which is set aside."""
    PIPELINE = 3
    """Nothing can continue: a broken log or store, settings that can't work, a newer driver, a bug that may concern all."""


def judge(error: BaseException, *, one_table: bool = False) -> Verdict:
    """`one_table`: the failed call was about one table alone. Even then `InvalidConfig` concerns the pipeline: a warehouse with a wrong
    password must not set one table aside after the other. A table that the database user must not read is set aside."""
    if isinstance(error, Unavailable | OutcomeUnknown):
        return Verdict.PASSES
    if isinstance(error, TableStuck) or (one_table and isinstance(error, SourceDrift | Corrupt | InvariantBroken | TableRefused)):
        return Verdict.TABLE
    return Verdict.PIPELINE


def gravest(errors: Sequence[SnowmeltError]) -> SnowmeltError:
    """The error with the gravest verdict; of equal ones the first. `Fenced` comes first: another error of a fenced driver means nothing."""
    return max(errors, key=lambda error: (judge(error).value, isinstance(error, Fenced)))
