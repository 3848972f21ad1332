"""How long a starting driver waits for the folder of the log, which an older driver still holds.

    States. A driver that starts has taken its generation, so the older one is fenced and ends at its next step. Until then the older one's
    capture holds the folder. A suspended process (SIGSTOP, a suspended machine) makes no next step until it continues.

    Laws. The waiting driver never gives up while it is the newest: the older one is fenced already, so both would end and the pipeline
    would have no driver. It ends as soon as a newer driver exists, which then waits in its place.

A relay without a driver (`engine.log.standby`) ends when it sees a generation newer than the one that it saw before it took the folder.
It may have seen ours and have taken the folder before us. So after `ANOTHER_MS` the driver takes another generation, once.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ANOTHER_MS: Final = 3_000
"""Longer than a capture needs to end."""
TELL_FIRST_MS: Final = 5_000
TELL_MS: Final = 60_000
"""How often the driver reports that an older driver still holds the folder, after the first time."""


class Waiting(Enum):
    LOOK = "look"
    """Try the folder again after a moment."""
    ANOTHER = "another"
    """Take another generation, then continue to wait."""
    TELL = "tell"
    """Report it to the operator, then continue to wait."""
    FENCED = "fenced"
    """A newer driver exists."""


def decide_wait(*, waited_ms: int, told_ms: int, newest: bool, took_another: bool) -> Waiting:
    """What a driver does next while another one has the folder. `told_ms`: how long it had waited at its last report, 0 before the
    first."""
    if not newest:
        return Waiting.FENCED
    if waited_ms > ANOTHER_MS and not took_another:
        return Waiting.ANOTHER
    return Waiting.TELL if waited_ms - told_ms >= (TELL_MS if told_ms else TELL_FIRST_MS) else Waiting.LOOK
