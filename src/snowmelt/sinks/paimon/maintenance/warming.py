"""Compile the kernels of merging, and those of chunks' files, before the first task waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from snowmelt.errors import check
from snowmelt.fluss.formats import buckets
from snowmelt.fluss.formats.types import Column, FlussType, Root
from snowmelt.sinks.paimon.maintenance import keys
from snowmelt.sinks.paimon.maintenance.merging import Order, merged
from snowmelt.sinks.paimon.maintenance.reading import KIND, NUMBER

_KEYS: Final = (("whole",), ("text",), ("whole", "text"))
"""A key of one word, one of bytes, and one that is put together: each has kernels of its own, or types of arguments."""


ENTRIES: Final = (
    keys._heads,
    keys._add_sizes,
    keys._put_texts,
    keys._put_words,
    keys._rows_up_to,
    keys._compare,
    keys._merge,
    keys._rises,
    keys._last_of_each,
    buckets._hashes,
    buckets._put_words,
    buckets._put_texts,
    buckets._put_instants,
)
"""The kernels that are called by others than kernels."""


def warm() -> None:
    """Compile the kernels, or load them from the cache on disk."""
    for names in _KEYS:
        # The second run ends later than the first, so that a piece is cut in two.
        runs = [_rows([1, 2]), _rows([2, 3])]
        count = sum(rows.num_rows for rows in merged([lambda one=one: [one] for one in runs], Order(names, None, "warming")))  # type: ignore[misc]
        check(count == 3, "two runs with a key in common are merged into another number of rows")
        rows = _rows([1, 2]).to_batches()[0]
        encoded = keys.encode([rows.column(name) for name in names])
        check(keys.rises(encoded, None), "keys that rise are taken for others")
        check(len(keys.last_of_each(encoded, np.arange(2))) == 2, "keys that differ are taken for one")
    key = [
        Column(0, "whole", FlussType(root=Root.BIGINT, nullable=False)),
        Column(1, "text", FlussType(root=Root.STRING, nullable=False)),
        Column(2, "moment", FlussType(root=Root.TIMESTAMP, nullable=False, precision=6)),
    ]
    buckets.Bucketing(key, 2, "paimon").buckets(_rows([1, 2]).select([column.name for column in key]).to_batches()[0])


def _rows(numbers: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "whole": pa.array(numbers, pa.int64()),
            "text": pa.array([str(number) for number in numbers], pa.string()),
            "moment": pa.array(numbers, pa.timestamp("us")),
            NUMBER: pa.array(numbers, pa.int64()),
            KIND: pa.array([0] * len(numbers), pa.int8()),
        }
    )
