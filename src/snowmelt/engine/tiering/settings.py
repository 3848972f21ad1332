"""What a tiering service is to do, as a program says it; `config` reads it from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from snowmelt.credentials import Secret
from snowmelt.fluss.target import Login
from snowmelt.tiering.leases import DURATION_MS
from snowmelt.tiering.splits import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringSettings:
    """Services of one name may run side by side; the lake's commits tell them apart."""

    name: str
    bootstrap: str
    """Servers of the Fluss cluster, of which one must answer: host:port, with commas between them."""
    login: Login | None = None
    """Where the servers ask for it."""
    warehouse: str
    same_place: bool = False
    """The warehouse is the one that the cluster names, though under another address."""
    remote: Mapping[str, str | Secret] = field(default_factory=lambda: MappingProxyType({}))
    """Options of obstore for Fluss' remote storage, where that is no folder of every machine."""
    rounds_at_once: int = 2
    poll_s: float = 1.0
    """How often it is asked whether a table is due. A heartbeat of the tables under way goes with it."""
    lease_ms: int = DURATION_MS
    round_s_max: float = 120.0
    """After this no more of a bucket's log is read in a round. A KV snapshot is always read to its end."""
    rows_max: int = 20_000_000
    """Of the log in a round."""
    bytes_max: int = 4 << 30
    """Of the log in a round, as rows are in memory: planned over all buckets by what rows took so far; no bucket alone goes beyond it."""

    def budget(self, row_bytes: int) -> Budget:
        return Budget(self.rows_max, self.bytes_max, row_bytes)
