"""SET values: bit masks to lists of labels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import njit

from snowmelt.columnar.memory import JIT


@njit(**JIT)
def _expand(masks, offsets, members):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(masks.shape[0]):
        offsets[row] = at
        mask = masks[row]
        bit = 0
        while mask:
            if mask & np.uint64(1):
                members[at] = bit
                at += 1
            mask >>= np.uint64(1)
            bit += 1
    offsets[masks.shape[0]] = at
    return at


def set_lists(masks: pa.Array, labels: tuple[str, ...]) -> pa.Array:
    """Each mask as the list of its labels, in the order of their definition; a NULL mask's bits must be zero."""
    bits = np.frombuffer(masks.buffers()[1], np.uint64)[: len(masks)]
    if "" in labels:
        # The empty label alone prints as no label does: SELECT can't tell the two apart, so neither do we.
        bits = np.where(bits == np.uint64(1 << labels.index("")), np.uint64(0), bits)
    offsets = np.empty(len(masks) + 1, np.int32)
    members = np.empty(int(np.bitwise_count(bits).sum()), np.int32)
    _expand(bits, offsets, members)
    values = pa.array(labels, pa.string()).take(pa.array(members))
    kind = pa.list_(pa.string())
    return pa.Array.from_buffers(kind, len(masks), [masks.buffers()[0], pa.py_buffer(offsets)], children=[values])
