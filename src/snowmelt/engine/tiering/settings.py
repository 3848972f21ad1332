"""The settings of a tiering service, as a program gives them; `config` reads them from a file."""

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
    """Several services of one name may run; the lake's commits tell them apart."""

    name: str
    bootstrap: str
    """Servers of the Fluss cluster, host:port with commas between them. At least one must answer."""
    login: Login | None = None
    """For servers that ask for a login."""
    warehouse: str
    same_place: bool = False
    """The warehouse is the one that the cluster names, under another address."""
    remote: Mapping[str, str | Secret] = field(default_factory=lambda: MappingProxyType({}))
    """Options of obstore for Fluss' remote storage, if that is not a folder that all machines share."""
    rounds_at_once: int = 2
    poll_s: float = 1.0
    """How often to ask whether a table is due. The same call is the heartbeat of the tables under way."""
    lease_ms: int = DURATION_MS
    round_s_max: float = 120.0
    """After this time a round reads no more of a bucket's log. A KV snapshot is always read to its end."""
    rows_max: int = 20_000_000
    """Rows of the log in a round."""
    bytes_max: int = 4 << 30
    """Bytes of the log in a round, as rows in memory: planned over all buckets by the size of earlier rows; no single bucket exceeds it."""

    def budget(self, row_bytes: int) -> Budget:
        return Budget(self.rows_max, self.bytes_max, row_bytes)
