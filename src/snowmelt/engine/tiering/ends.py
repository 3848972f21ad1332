"""How rounds end, for whoever watches: what is here needs nothing of Fluss to be installed."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import SnowmeltError
from snowmelt.model.table import TableId
from snowmelt.tiering.rounds import RoundState


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """What came of a round, for whoever watches."""

    path: TableId
    state: RoundState
    rows: int
    seconds: float
    snapshot: int
    """Of the lake, where the round made one."""
    error: SnowmeltError | None
    lease: str = ""
    """Under which KV snapshots were read; empty where none were."""
    leased: int = 0
    """How many."""
