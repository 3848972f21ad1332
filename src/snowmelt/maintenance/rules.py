"""How a table is maintained."""

from __future__ import annotations

from dataclasses import dataclass, field

from snowmelt.errors import check
from snowmelt.maintenance.compaction import CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    enabled: bool = True
    compaction: CompactionRules = field(default_factory=CompactionRules)
    expiry: ExpiryRules = field(default_factory=ExpiryRules)
    orphan_age_ms: int = 86_400_000
    """How long ago a file that nothing refers to was last written, before it is deleted: longer than any program takes to refer to it."""

    def __post_init__(self) -> None:
        check(self.orphan_age_ms > 0, "rules of maintenance delete files that were just written")
