"""The buffer through which a task reads the log, before the filter.

States. Not allocated; free; lent. Closed is the end.

Must never happen. A second request while the segment is lent; giving back a segment that is not lent; any call after `close`.

Memory. One segment of a fixed size: allocated on first use, used again for every piece, freed on close. It is never part of the pool. The
filter holds it while it waits for room in the pool, and the pool gets room only when filtered rows are consumed. If both were one pool, a
full pool would wait for itself (FLINK-39519).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from snowmelt.errors import InvalidConfig, check
from snowmelt.relay.limits import PREFILTER_BYTES_MIN

Segment = npt.NDArray[np.uint8]


class PreFilter:
    """One per task. Call `lend` and `give_back` in turn, then `close` once or twice."""

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
        """Free it, also while it is lent."""
        self._segment = None
        self._lent = False
        self._closed = True
