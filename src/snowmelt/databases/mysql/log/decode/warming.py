"""Compile the kernels of decoding before the first batch waits for them."""

from __future__ import annotations

from typing import Final

import numpy as np

from snowmelt.columnar import kernels
from snowmelt.columnar.arena import Arena, ArenaPool, Layout
from snowmelt.databases.mysql.log import images as kernel
from snowmelt.databases.mysql.log import scan
from snowmelt.databases.mysql.log.decode.batches import SYSTEM_STORAGE
from snowmelt.databases.mysql.log.scan import Stop, Walk, whole_events
from snowmelt.errors import check

ENTRIES: Final = (scan.walk, scan.gtid_ends, scan.gather_gtids, scan.whole_events, kernel.fill)
"""The kernels that are called by others than kernels."""


def warm(tell: kernels.Progress = kernels.silent) -> None:
    """Compile the kernels, or load them from the cache on disk. `tell` gets the progress of compiling."""
    kernels.compile_kernels(ENTRIES, _call_kernels, tell)


def _call_kernels() -> None:
    walk = Walk.over(np.zeros(0, np.uint8), position=4, checksum_bytes=4)
    check(walk.advance() is Stop.END, "an empty range has nothing in it")
    walk.gtids()
    whole_events(walk.data, 4)
    none, layout = np.zeros(0, np.int64), Layout(SYSTEM_STORAGE, rows_max=2, heap_bytes=[0] * len(SYSTEM_STORAGE))
    arena = Arena(ArenaPool(), layout, valid=True)
    kernel.fill(
        walk.data, walk.row_at, walk.row_end, walk.row_type, walk.row_commit, walk.row_ordinal, walk.row_time, none,
        none, none, none, layout.valid_at, layout.fixed_at, layout.heap_at, layout.heap_room, arena.heap_used,
        arena.memory, 2, 0, 0, np.zeros(kernel.STATE_SLOTS, np.int64),
    )  # fmt: skip
