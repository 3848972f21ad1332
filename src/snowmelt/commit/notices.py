"""What webhooks and commands are told of epochs that every lake table has: notices.

A notice is of one epoch, and names for each lake table the snapshot and the watermark that it has then: one consistent cut over all tables.
So a listener that gets the notice of a later epoch has missed nothing.

Laws:
- Each epoch that brings something to a lake table gets a notice. A listener takes that notice, or one of a later epoch.
- The state, which `done` keeps, has the newest notice's epoch and identity, and the last epoch whose notice each listener is known to have
  taken. What it does not say was taken is told again: at least once, and the repeated notice has the same identity.
- A call is never part of an epoch. What came of it is in the state of a later epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from snowmelt.commit.listeners import Reached
from snowmelt.commit.records import Intent
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import NO_EPOCH, EpochNumber

WHY_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class TableNotice:
    target: str
    snapshot: int
    watermark_ms: TimeMs | None


@dataclass(frozen=True, slots=True)
class Notice:
    epoch: EpochNumber
    identity: str
    """Of the epoch's intent."""
    tables: tuple[TableNotice, ...]


@dataclass(frozen=True, slots=True)
class ListenerProgress:
    """How far a listener is."""

    epoch: EpochNumber = NO_EPOCH
    """The newest whose notice it has taken."""
    why: str = ""
    """Why its newest call failed; empty: it did not."""


@dataclass(frozen=True, slots=True)
class Notices:
    """The state of all listeners that take notices."""

    epoch: EpochNumber = NO_EPOCH
    """The newest that has a notice."""
    identity: str = ""
    told: Mapping[str, ListenerProgress] = field(default_factory=dict)
    """By the listener's name."""


def decide_notice(before: Notices, intent: Intent, reached: Mapping[str, Reached]) -> Notice | None:
    """The newest notice with an epoch that every lake table has; None before the first. An epoch that brings nothing to the lake leaves the
    notice before it as the newest, with the watermarks of now."""
    if intent.entries:
        return _notice(intent.epoch, intent.identity, reached)
    return decide_reminder(before, reached)


def decide_reminder(before: Notices, reached: Mapping[str, Reached]) -> Notice | None:
    """The newest notice that there was; None: there was none. For a driver that begins, when no epoch is open."""
    return _notice(before.epoch, before.identity, reached) if before.epoch else None


def decide_notices(before: Notices, notice: Notice | None, listeners: Iterable[str], known: Mapping[str, ListenerProgress]) -> Notices:
    """The state after an epoch. `known`: what this driver knows of its listeners. One that is configured no more has no state."""
    told = {}
    for name in listeners:
        last, now = before.told.get(name, ListenerProgress()), known.get(name)
        told[name] = last if now is None else ListenerProgress(max(last.epoch, now.epoch), now.why[:WHY_CHARACTERS_MAX])
    return Notices(told=told) if notice is None else Notices(notice.epoch, notice.identity, told)


def _notice(epoch: EpochNumber, identity: str, reached: Mapping[str, Reached]) -> Notice:
    tables = (TableNotice(target, table.snapshot, table.watermark_ms) for target, table in sorted(reached.items()))
    return Notice(epoch, identity, tuple(tables))
