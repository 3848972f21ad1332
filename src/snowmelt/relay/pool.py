"""The memory for rows that passed the filter and wait for their consumer.

States. `taken` bytes of `size`.

Must never happen. More is taken than there is room for; more is given back than was taken.

Memory. At most `size` bytes, except for one batch that is larger than that: it may go when nothing else is taken, because otherwise nothing
would ever move again.
"""

from __future__ import annotations

from snowmelt.errors import InvalidConfig, check
from snowmelt.relay.limits import POOL_BYTES_MIN


class Pool:
    """The count alone; the shell does the waiting."""

    def __init__(self, size: int) -> None:
        if size < POOL_BYTES_MIN:
            raise InvalidConfig("the pool is too small", detail=f"{size} bytes", hint=f"at least {POOL_BYTES_MIN}")
        self.size = size
        self.taken = 0

    def has_room(self, count: int) -> bool:
        return self.taken + count <= self.size or self.taken == 0

    def take(self, count: int) -> None:
        check(self.has_room(count), "more is taken of the pool than there is room for", f"{self.taken} + {count} of {self.size} bytes")
        self.taken += count

    def give_back(self, count: int) -> None:
        check(count <= self.taken, "more is given back to the pool than was taken", f"{count} of {self.taken} bytes")
        self.taken -= count
