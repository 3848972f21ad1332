"""The segment that a task reads the log through, before anything is filtered.

States. Nothing allocated; free; lent. Closed is the end of all.

Forbidden orders. A second request while the segment is lent; to give back what is not lent; anything behind the close.

Memory. One segment of a fixed size, allocated on first use, used again for every piece, freed on close. It is never of the pool: who
filters holds it while he waits for room in the pool, and room comes only when what has passed the filter is consumed. Were both of one
pool, a full one would wait for itself (FLINK-39519).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from snowmelt.errors import InvalidConfig, check
from snowmelt.relay.limits import PREFILTER_BYTES_MIN

Segment = npt.NDArray[np.uint8]


class PreFilter:
    """Of one task. `lend`, `give_back`, and so on; `close` once, or twice."""

    def __init__(self, size: int) -> None:
        if size < PREFILTER_BYTES_MIN:
            raise InvalidConfig("the pre-filter segment is too small", detail=f"{size} bytes", hint=f"at least {PREFILTER_BYTES_MIN}")
        self.size = size
        self._segment: Segment | None = None
        self._lent = False
        self._closed = False

    @property
    def allocated(self) -> bool:
        return self._segment is not None

    @property
    def lent(self) -> bool:
        return self._lent

    def lend(self) -> Segment:
        check(not self._closed, "the pre-filter segment is asked for after its end")
        check(not self._lent, "a second pre-filter segment is asked for while one is out")
        if self._segment is None:
            self._segment = np.empty(self.size, np.uint8)
        self._lent = True
        return self._segment

    def give_back(self) -> None:
        check(self._lent, "a pre-filter segment is given back that is not out")
        self._lent = False

    def close(self) -> None:
        """Free it, whoever looks at it."""
        self._segment = None
        self._lent = False
        self._closed = True
