"""What listeners do with an epoch that every lake table has: tags that are owed are made (`commit.listeners`), partitions that are done
are marked (`commit.done_partitions`), and notices are given (`commit.notices`). What could not be done is remembered.

Law: nothing here stops a commit. A tag or a mark that is not made, or a notice that is not taken, is owed with a later epoch and by the
next driver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from snowmelt.commit.coordinator import RunListeners
from snowmelt.commit.done_partitions import DoneMark, Marked, decide_marked, decide_marks
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listener_state import read_marked, read_state, write_state
from snowmelt.commit.listeners import Period, Tag, Tagged, decide_tagged, decide_tags
from snowmelt.commit.notices import ListenerProgress, Notice, Notices, decide_notice, decide_notices, decide_reminder
from snowmelt.driving.steps import Request, Steps
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit


@dataclass(frozen=True, slots=True)
class MakeTags(Request[Collection[str]]):
    """Give snapshots their names. The answer: the lake tables whose tag is known to exist by now. Twice is harmless."""

    owed: Sequence[Tag]


@dataclass(frozen=True, slots=True)
class MarkDone(Request[Mapping[str, TimeMs]]):
    """Mark partitions. The answer: by lake table, up to which end those that are owed are known to be marked by now. Twice is harmless."""

    owed: Sequence[DoneMark]


@dataclass(frozen=True, slots=True)
class Divided:
    """The tables whose partitions are marked when they are done."""

    delay_ms: int
    """How long after the end of its period a partition is done."""
    units: Mapping[str, Unit] = field(default_factory=dict)
    """By lake table."""


@dataclass(frozen=True, slots=True)
class Notify(Request[Mapping[str, ListenerProgress]]):
    """Give a notice to listeners that have not taken it, now or later, unless there is a newer one by then. The answer: what is known by
    now of each listener that this driver has called. Twice is harmless."""

    notice: Notice
    names: Sequence[str]


def hear(period: Period | None, listeners: Sequence[str], step: RunListeners, divided: Divided | None = None) -> Steps[str]:
    """The listeners' state with this epoch. What an earlier run has left of tags or listeners that are configured no more is dropped.
    `listeners`: the names of those that take notices. A notice comes after tags and marks."""
    tagged, notices = read_state(step.state)
    tagged = {} if period is None else (yield from _tag(period, tagged, step))
    marked = None if divided is None else (yield from _mark(divided, read_marked(step.state), step))
    return write_state(tagged, (yield from _notify(listeners, notices, step)) if listeners else None, marked)


def remind(ledger: Ledger, listeners: Sequence[str]) -> Steps[None]:
    """Before a driver's first epoch: what an earlier one had to tell, and perhaps did not. An open epoch has its notice when it is rolled
    forward."""
    if ledger.open is None:
        notices = read_state(ledger.listeners)[1]
        notice = decide_reminder(notices, ledger.decide_reached({}))
        owed = [name for name in listeners if notices.told.get(name, ListenerProgress()).epoch < notices.epoch]
        if notice is not None and owed:
            yield from Notify(notice, owed)


def _tag(period: Period, tagged: Tagged, step: RunListeners) -> Steps[Tagged]:
    owed = decide_tags(period, tagged, step.reached)
    made = (yield from MakeTags(owed)) if owed else ()
    missing = {tag.target for tag in owed}.difference(made)
    return decide_tagged(period, tagged, step.reached, missing)


def _mark(divided: Divided, marked: Marked, step: RunListeners) -> Steps[Marked]:
    owed = decide_marks(divided.delay_ms, marked, step.reached, divided.units)
    made = (yield from MarkDone(owed)) if owed else {}
    return decide_marked(marked, step.reached, divided.units, made)


def _notify(listeners: Sequence[str], notices: Notices, step: RunListeners) -> Steps[Notices]:
    notice = decide_notice(notices, step.intent, step.reached)
    known = (yield from Notify(notice, listeners)) if notice is not None else {}
    return decide_notices(notices, notice, listeners, known)
