"""Tags: the first thing that happens with an epoch after every lake table has it and before it is closed. Then partitions are marked as
done (`done_partitions`), and notices are given (`notices`).

A tag names a snapshot of a lake table by a period: an hour or a day of UTC. It is made when the table's watermark passes the period's end,
on our newest snapshot of the table. That snapshot has everything that the database committed up to the period's end. It may also have
some later changes.

Laws:
- The owed tags follow from the watermarks before and with the epoch, and from a state that `done` keeps. So a driver that rolls the epoch
  forward owes the same tags, with the same names, on the same snapshots.
- The state holds only exceptions: tables whose owed tag was not made, and tables that have no watermark now. It says up to which
  period's end such a table has its tag.
- A period that ended before the table's first watermark gets no tag.
- If several periods end at once (nothing was committed, or no driver ran), only the last gets a tag. One snapshot would be equal for all.
- A tag that can't be made is owed again with the next epoch, on the snapshot that is the newest then.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from snowmelt.model.moment import TimeMs


class Period(StrEnum):
    """How often a table gets a tag."""

    HOUR = "hour"
    DAY = "day"


FORMS: Final[dict[Period, tuple[int, str]]] = {Period.HOUR: (3_600_000, "%Y-%m-%dT%H"), Period.DAY: (86_400_000, "%Y-%m-%d")}
"""The length of a period in milliseconds, and the format of its name, which is its beginning."""

Tagged = dict[str, TimeMs]
"""By lake table, the end of the last period that has its tag or needs none."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a lake table is with an epoch."""

    snapshot: int
    """Our newest one."""
    identity: str
    """The identity of the intent whose commit made it (`Ledger.last_commits`)."""
    before_ms: TimeMs | None
    """The watermark before the epoch."""
    watermark_ms: TimeMs | None


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag that is owed."""

    target: str
    name: str
    snapshot: int
    identity: str


def decide_tags(period: Period, tagged: Tagged, reached: Mapping[str, Reached]) -> list[Tag]:
    """The tags owed with an epoch, in the order of their tables."""
    length, form = FORMS[period]
    owed = []
    for target, table in sorted(reached.items()):
        last = _last_end(period, tagged, target, table)
        if last is None or table.watermark_ms is None:
            continue
        end = table.watermark_ms - table.watermark_ms % length
        if end > last:
            name = datetime.fromtimestamp((end - length) / 1000, UTC).strftime(form)
            owed.append(Tag(target, name, table.snapshot, table.identity))
    return owed


def decide_tagged(period: Period, tagged: Tagged, reached: Mapping[str, Reached], missing: Container[str]) -> Tagged:
    """The state after an epoch. `missing`: tables whose owed tag could not be made. A table without a source has no state."""
    kept = {}
    for target, table in reached.items():
        last = _last_end(period, tagged, target, table)
        if last is not None and (target in missing or table.watermark_ms is None):
            kept[target] = last
    return kept


def _last_end(period: Period, tagged: Tagged, target: str, table: Reached) -> TimeMs | None:
    """The end of the last period that has its tag, or needs none; None before the table's first watermark."""
    if target in tagged:
        return tagged[target]
    return None if table.before_ms is None else table.before_ms - table.before_ms % FORMS[period][0]
