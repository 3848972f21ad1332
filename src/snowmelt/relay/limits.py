"""What reading the log again may use, in one place. A limit that a row or an event exceeds stops; the others only make more batches.

A task that reads the log holds at most one pre-filter segment, a few assemblies, the pool, the arenas of the batches that are being made
and some that are kept, and what its writers share: none of it depends on how large a transaction is, how much of the log is read, or how
many tables it changes. An assembly is an event that no segment holds, what packed events unpack to, an event in fragments, or a prepared
transaction; the first three may be there at once, and while a prepared transaction is read, those of its own beside them. Each is in memory
up to `assembly_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snowmelt.errors import InvalidConfig

PREFILTER_BYTES_MIN: Final = 4096
POOL_BYTES_MIN: Final = 4096
WRITERS_BYTES_MIN: Final = 4096
_HELD_BYTES_MAX: Final = 1 << 30
"""Rows that are written together are one batch, whose texts have offsets of 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    prefilter_bytes: int = 8 << 20
    """The segment that a task reads the log through, before anything is filtered."""
    pool_bytes: int = 64 << 20
    """What has passed the filter and waits for the lake's writer. A batch that is larger than that goes alone."""
    writers_bytes: int = 256 << 20
    """What all writers of a task may take together: rows that wait to be written, and the copies that are made while some of them are."""
    assembly_bytes: int = 16 << 20
    """Up to here an event that no segment holds, what compressed events unpack to, or a prepared transaction is put together in memory."""
    spill_bytes_max: int = 4 << 30
    """Beyond that it goes to a spill file, up to here. An event's size has 32 bits."""
    row_bytes_max: int = 1 << 30
    rows_per_batch: int = 65_536
    heap_bytes: int = 4 << 20
    """Of each column of variable length in a batch, to begin with."""
    held_bytes_max: int = 1 << 30
    """XA groups that are prepared and neither committed nor rolled back, together."""
    unpacked_bytes_max: int = 4 << 30
    """What an event may unpack to."""

    def __post_init__(self) -> None:
        least_of = {"prefilter_bytes": PREFILTER_BYTES_MIN, "pool_bytes": POOL_BYTES_MIN, "writers_bytes": WRITERS_BYTES_MIN}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise InvalidConfig(f"{name} is too small", detail=f"{getattr(self, name)} bytes", hint=f"at least {least}")

    @property
    def held_bytes(self) -> int:
        """How much waits to be written: a third, as rows are copied when they are joined, and again when they are dealt out to buckets."""
        return min(self.writers_bytes // 3, _HELD_BYTES_MAX)
