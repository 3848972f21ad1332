"""Rows by their hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Rows by the hash of their key and of their content, and how often each is there."""

    keys: Hashes
    rows: Hashes
    counts: Counts

    @staticmethod
    def of(keys: Hashes, rows: Hashes) -> RowHashes:
        return RowHashes(keys, rows, np.ones(len(keys), np.int64))

    @staticmethod
    def joined(parts: list[RowHashes]) -> RowHashes:
        if not parts:
            return RowHashes(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))
        return RowHashes(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def where(self, mask: npt.NDArray[np.bool_]) -> RowHashes:
        return RowHashes(self.keys[mask], self.rows[mask], self.counts[mask])

    def among(self, keys: Hashes) -> RowHashes:
        return self.where(np.isin(self.keys, keys))

    def minus(self, other: RowHashes) -> RowHashes:
        return RowHashes.joined([self, RowHashes(other.keys, other.rows, -other.counts)])


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of the source: all that happened up to `low` is in them, nothing beyond `high`. Places are ordered values of any kind."""

    rows: RowHashes
    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class Detail:
    """A row by its key as text and the digests of its columns."""

    row: int
    key: tuple[str, ...]
    columns: tuple[bytes, ...]


def text_of(raw: bytes | None) -> str:
    return "NULL" if raw is None else raw.decode("utf-8", "backslashreplace")
