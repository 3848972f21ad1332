"""What reading the log may use, in one place. A row or an event over its limit stops the task; the other limits only make more batches.

A task that reads the log holds at most one pre-filter segment, a few assemblies, the pool, the arenas of the batches that are being made
and some spare ones, and what its writers share. None of it depends on the size of a transaction, the length of the log or the number of
tables. An assembly is one of: an event that no segment holds, what packed events unpack to, an event in fragments, a prepared transaction.
The first three may exist at once; while a prepared transaction is read, its own ones exist beside them. Each is in memory up to
`assembly_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from snowmelt.errors import InvalidConfig

PREFILTER_BYTES_MIN: Final = 4096
POOL_BYTES_MIN: Final = 4096
WRITERS_BYTES_MIN: Final = 4096
_HELD_BYTES_MAX: Final = 1 << 30
"""Limit of one batch: rows that are written together are one batch, and its texts have offsets of 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    prefilter_bytes: int = 8 << 20
    """The buffer through which a task reads the log, before the filter."""
    pool_bytes: int = 64 << 20
    """Rows that passed the filter and wait for the writer. A batch that is larger than the pool goes through alone."""
    writers_bytes: int = 256 << 20
    """All writers of a task together: rows that wait to be written, and the copies made while some of them are written."""
    assembly_bytes: int = 16 << 20
    """Up to this size, memory holds an event that no segment holds, what compressed events unpack to, or a prepared transaction."""
    spill_bytes_max: int = 4 << 30
    """Above `assembly_bytes` a spill file holds it, up to this size. An event's size has 32 bits."""
    row_bytes_max: int = 1 << 30
    rows_per_batch: int = 65_536
    heap_bytes: int = 4 << 20
    """Initial size for each column of variable length in a batch."""
    held_bytes_max: int = 1 << 30
    """All XA groups together that are prepared and neither committed nor rolled back."""
    unpacked_bytes_max: int = 4 << 30
    """What one event may unpack to."""

    def __post_init__(self) -> None:
        least_of = {"prefilter_bytes": PREFILTER_BYTES_MIN, "pool_bytes": POOL_BYTES_MIN, "writers_bytes": WRITERS_BYTES_MIN}
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise InvalidConfig(f"{name} is too small", detail=f"{getattr(self, name)} bytes", hint=f"at least {least}")

    @property
    def held_bytes(self) -> int:
        """Limit of the rows that wait to be written: a third, because rows are copied when they are joined, and again when they are divided
        by bucket."""
        return min(self.writers_bytes // 3, _HELD_BYTES_MAX)
