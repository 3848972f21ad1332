"""What is done with an epoch that every lake table has, before it is closed: tags.

A tag names a snapshot of a lake table by a period, an hour or a day of UTC. It is made when the table's watermark passes the period's end,
on the table's newest snapshot of ours: whatever the database committed in the period, or before it, is in that snapshot. Some of what came
later may be in it too.

Laws:
- What is owed follows from the watermarks before and with the epoch, and from a state that `done` keeps. So a driver that rolls the epoch
  forward owes the same tags, of the same names, on the same snapshots.
- The state holds exceptions alone: tables whose tag was owed and not made, and tables that have no watermark for now. It says up to which
  period's end such a table has its tag.
- A period that ended before the table had a watermark for the first time gets no tag.
- Of several periods that ended at once (nothing was committed, or no driver ran) the last gets a tag. No snapshot tells the others apart.
- A tag that can't be made is owed with the next epoch, on the snapshot that is the newest then.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from snowmelt.errors import Corrupt
from snowmelt.model.moment import TIME_MS_MAX, TimeMs


class Period(StrEnum):
    """How often a table gets a tag."""

    HOUR = "hour"
    DAY = "day"


FORMS: Final[dict[Period, tuple[int, str]]] = {Period.HOUR: (3_600_000, "%Y-%m-%dT%H"), Period.DAY: (86_400_000, "%Y-%m-%d")}
"""How long a period is, in milliseconds, and how it is named, by its beginning."""

Tagged = dict[str, TimeMs]
"""Of some lake tables the end of the last period that has its tag, or needs none."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a lake table is with an epoch."""

    snapshot: int
    """The newest of ours."""
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
    """The tags that are owed with an epoch, in the order of their tables."""
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
    """The state after an epoch. `missing`: tables whose tag was owed and could not be made. Of one without a source nothing is kept."""
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


def write_state(tagged: Tagged) -> str:
    """For `done`. Equal states have equal texts, and nothing is nothing."""
    return json.dumps({"tags": tagged}, sort_keys=True, separators=(",", ":")) if tagged else ""


def read_state(text: str) -> Tagged:
    """What `done` or a summary says."""
    try:
        found = json.loads(text)["tags"] if text else {}
        right = all(isinstance(target, str) and type(end) is int and 0 <= end <= TIME_MS_MAX for target, end in found.items())
    except (ValueError, TypeError, KeyError, AttributeError):
        right = False
    if not right:
        raise Corrupt("the state of the listeners can't be read", detail=f"{len(text)} characters", hint="is the state whole?")
    return dict(found)
