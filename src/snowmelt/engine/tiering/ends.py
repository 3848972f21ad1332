"""How rounds end, for observers. Nothing of Fluss must be installed for it."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import SnowmeltError
from snowmelt.model.table import TableId
from snowmelt.tiering.rounds import RoundState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """The result of a round, for observers."""

    path: TableId
    state: RoundState
    rows: int
    seconds: float
    snapshot: int
    """The lake snapshot that the round made; 0: none."""
    error: SnowmeltError | None
    lease: str = ""
    """The lease of its KV snapshots; empty where none were read."""
    leased: int = 0
    """How many."""
