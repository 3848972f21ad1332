"""Which partitions of lake tables are done with an epoch: those of a day or a month that the table's watermark, less a delay, has passed.

What is done is marked in the lake (`sinks.contract.Sink.mark_done`). The mark promises what the watermark does: all that the database
committed before the end of the period, plus the delay, is in the table. Rows with such a day may still come later.

Laws:
- The owed marks follow from the watermarks with the epoch, and from a state that `done` keeps. So a driver that rolls the epoch forward
  owes the same, and to mark twice is harmless.
- The state says up to which end partitions are marked: one number for all tables of a unit, and exceptions. A table whose marks failed is
  one, and is owed them again with the next epoch. So is a table that does not advance.
- A table that had no watermark before the epoch is owed all marks: it was copied, for the first time or again, or the marks are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from snowmelt.commit.listeners import Reached
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit, last_end

NONE_YET: TimeMs = 0
"""Instead of an end: no partition is marked."""


@dataclass(frozen=True, slots=True)
class DoneMark:
    """Partitions of a table that are owed a mark: those whose periods ended after one moment, and up to another."""

    target: str
    unit: Unit
    after_ms: TimeMs | None
    """None: all before, too."""
    upto_ms: TimeMs


@dataclass(frozen=True, slots=True)
class Marked:
    """Up to which end of a period partitions are marked."""

    ends: Mapping[Unit, TimeMs] = field(default_factory=dict)
    """Of each table that is no exception."""
    exceptions: Mapping[str, TimeMs] = field(default_factory=dict)
    """By lake table."""


def decide_marks(delay_ms: int, marked: Marked, reached: Mapping[str, Reached], units: Mapping[str, Unit]) -> list[DoneMark]:
    """The marks owed with an epoch, in the order of their tables. `units`: of tables that are divided by time."""
    owed = []
    for target, unit in sorted(units.items()):
        table = reached.get(target)
        if table is None or table.watermark_ms is None:
            continue
        last, end = _last(marked, target, unit, table), last_end(unit, max(table.watermark_ms - delay_ms, 0))
        if end > last:
            owed.append(DoneMark(target, unit, last or None, end))
    return owed


def decide_marked(marked: Marked, reached: Mapping[str, Reached], units: Mapping[str, Unit], made: Mapping[str, TimeMs]) -> Marked:
    """The state after an epoch. `made`: by table, up to which end its marks were made with this epoch. A table without a watermark has no
    state."""
    ends: dict[str, TimeMs] = {}
    for target, unit in units.items():
        table = reached.get(target)
        if table is not None and table.watermark_ms is not None:
            ends[target] = made.get(target, _last(marked, target, unit, table))
    common = {unit: max(end for target, end in ends.items() if units[target] is unit) for unit in {units[target] for target in ends}}
    return Marked(common, {target: end for target, end in ends.items() if end != common[units[target]]})


def _last(marked: Marked, target: str, unit: Unit, table: Reached) -> TimeMs:
    """The end up to which a table's partitions are marked."""
    if table.before_ms is None:
        return NONE_YET
    return marked.exceptions.get(target, marked.ends.get(unit, NONE_YET))
