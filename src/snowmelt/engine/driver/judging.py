"""What a failure means: it passes, one table can't go on, or the pipeline can't. Judged here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from snowmelt.errors import Corrupt, InvariantBroken, OutcomeUnknown, SnowmeltError, SourceDrift, TableRefused, TableStuck, Unavailable


class Verdict(Enum):
    """The gravest last."""

    PASSES = 1
    """The same may work in a while."""
    TABLE = 2
    """No repetition heals it, and it is one table's: that one is set aside."""
    PIPELINE = 3
    """Nothing can go on: a broken log or store, settings that can't work, a newer driver, a bug that may concern all."""


def judge(error: BaseException, *, one_table: bool = False) -> Verdict:
    """`one_table`: nothing but one table was asked for. Settings (`InvalidConfig`) are of all tables, also there: a warehouse that lets
    nobody in must not set one table aside after the other. A table that the user may not read is its own trouble."""
    if isinstance(error, Unavailable | OutcomeUnknown):
        return Verdict.PASSES
    if isinstance(error, TableStuck) or (one_table and isinstance(error, SourceDrift | Corrupt | InvariantBroken | TableRefused)):
        return Verdict.TABLE
    return Verdict.PIPELINE


def gravest(errors: Sequence[SnowmeltError]) -> SnowmeltError:
    """Of several the one that decides; of equal ones the first."""
    return max(errors, key=lambda error: judge(error).value)
