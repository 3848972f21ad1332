"""How often a failed step is tried again, and how long it waits before that: one policy, with a named budget for each step.

Laws:
- The wait doubles with each failure in a row, from `first_s` to `longest_s`.
- `tries_max` failures in a row spend a budget. The caller says what ends a row, and what a spent budget means.
- A budget holds no state and reads no clock: callers count, and wait so that a stop can wake them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_DOUBLED_MAX: Final = 32
"""Later powers of two exceed every limit, and would not fit a float for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    tries_max: int | None = None
    """The first try included; None: without end."""
    first_s: float = 0.0
    longest_s: float = 0.0

    @property
    def retries_max(self) -> int | None:
        return None if self.tries_max is None else self.tries_max - 1

    def tries(self) -> Iterable[int]:
        """The number of each try, from 0 on."""
        return itertools.count() if self.tries_max is None else range(self.tries_max)

    def is_spent(self, failures: int) -> bool:
        """Whether this number of failures in a row is enough."""
        return self.tries_max is not None and failures >= self.tries_max

    def pause_s(self, failures: int) -> float:
        """The wait before the next try, after this number of failures in a row."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, _DOUBLED_MAX)) if failures else 0.0


# ---- a pipeline

DRIVERS: Final = RetryBudget(tries_max=11, first_s=1.0, longest_s=60.0)
"""New drivers of a run, after `Unavailable` or `OutcomeUnknown`. A done epoch ends the row."""
CAPTURE: Final = RetryBudget(tries_max=10, first_s=0.1, longest_s=10.0)
"""Connections of a capture. Progress in the log ends the row."""
STANDBY: Final = RetryBudget(first_s=10.0, longest_s=10.0)
"""Captures of a relay without a driver."""
CATALOGUE: Final = RetryBudget(first_s=1.0, longest_s=1.0)
"""Reads of the catalogue while a driver runs."""
READS: Final = RetryBudget(tries_max=15, first_s=0.2, longest_s=5.0)
"""Reads of one table. A read that succeeds ends the row."""
JOBS: Final = RetryBudget(tries_max=10)
"""Spark jobs of a driver; each is planned anew. A job that succeeds ends the row."""
MAINTENANCE: Final = RetryBudget(first_s=5.0, longest_s=600.0)
"""Rounds of one lake table's maintenance. A rewrite that is published ends the row, as does a look or an expiry that succeeds."""
RECORDS: Final = RetryBudget(tries_max=8)
"""Puts of one record of the state store; the store's client waits by itself."""

NOTICES: Final = RetryBudget(first_s=1.0, longest_s=60.0)
"""Calls of one listener. A call that succeeds ends the row."""

# ---- targets

PAIMON_COMMIT: Final = RetryBudget(tries_max=50)
"""Commits to one lake table, each on a newer snapshot of another writer."""
FLUSS_CALL: Final = RetryBudget(tries_max=12, first_s=0.1, longest_s=5.0)
"""Calls of the Fluss sink."""
FLUSS_LEADERS: Final = RetryBudget(tries_max=8, first_s=0.1, longest_s=5.0)
"""Questions for the leaders of a table that was just made: for some eleven seconds."""

# ---- tiering and union reads

FLUSS_FETCH: Final = RetryBudget(tries_max=7, first_s=0.1, longest_s=5.0)
"""Fetches of one stretch of a bucket's log."""
ROUND: Final = RetryBudget(first_s=1.0, longest_s=64.0)
"""Rounds of one table. A round that succeeds ends the row."""
COORDINATOR: Final = RetryBudget(first_s=0.2, longest_s=10.0)
"""Questions of a round that its coordinator must answer."""
TIERING_COMMIT: Final = RetryBudget(tries_max=5)
"""Commits of a round that the lake does not have afterwards."""
TIERING_TELL: Final = RetryBudget(tries_max=8, first_s=1.0, longest_s=16.0)
"""Tries of a round to tell Fluss of a lake snapshot: for about a minute."""
