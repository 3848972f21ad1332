"""How the rows of a table are parted into classes. Each class has one sum on either side.

A class is a range of the key, where that is one integer, and in it those rows whose key's hash has one remainder. So a range is what one
short read of the database covers, and for every kind of key, also such that only the database can order, either side finds a row's class
by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from snowmelt.databases.comparing.digests import Hashes

RANGE_ROWS = 200_000
"""Of one read of the database."""
CLASS_ROWS = 200
CLASSES_MAX = 1 << 14
"""Of one range: the server counts as many groups at once."""

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parting:
    """Ranges end with their bounds; the last has no end. `remainders` classes in each."""

    key: str | None
    bounds: tuple[int, ...]
    remainders: int

    @property
    def count(self) -> int:
        return (len(self.bounds) + 1) * self.remainders

    def classes(self, batch: pa.RecordBatch, keys: Hashes) -> Classes:
        remainders = (keys % np.uint64(self.remainders)).astype(np.int64)
        if self.key is None or not self.bounds:
            return remainders
        values = batch.column(self.key).cast(pa.int64()).to_numpy(zero_copy_only=False)
        ranges: Classes = np.searchsorted(np.array(self.bounds, np.int64), values, side="left")
        return ranges * self.remainders + remainders

    def ranges(self, classes: Classes) -> dict[int, list[int]]:
        """The remainders that are wanted, by range."""
        wanted: dict[int, list[int]] = {}
        for one in classes.tolist():
            wanted.setdefault(one // self.remainders, []).append(one % self.remainders)
        return wanted

    def of_keys(self, keys: Hashes, among: Classes) -> Classes:
        """Those of `among` that may hold these keys: the range can't be told from a hash."""
        return among[np.isin(among % self.remainders, (np.unique(keys) % np.uint64(self.remainders)).astype(np.int64))]


def remainders_for(rows: int) -> int:
    return min(CLASSES_MAX, max(1, rows // CLASS_ROWS))


@dataclass(slots=True)
class Sums:
    """Of every class how many rows it has, and the sum of their hashes by 64 bits."""

    counts: npt.NDArray[np.int64]
    sums: Hashes

    @staticmethod
    def zero(count: int) -> Sums:
        return Sums(np.zeros(count, np.int64), np.zeros(count, np.uint64))

    def add(self, classes: Classes, rows: Hashes, counts: npt.NDArray[np.int64] | None = None) -> None:
        if counts is None:
            self.counts += np.bincount(classes, minlength=len(self.counts))
            np.add.at(self.sums, classes, rows)
        else:
            np.add.at(self.counts, classes, counts)
            np.add.at(self.sums, classes, rows * counts.astype(np.uint64))

    def merge(self, other: Sums) -> None:
        self.counts += other.counts
        self.sums += other.sums

    def unequal(self, other: Sums) -> Classes:
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))
