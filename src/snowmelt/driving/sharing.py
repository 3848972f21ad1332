"""How the log job of an epoch is divided into tasks: which task reads which range of the log, and for which tables.

Laws:
- What an earlier epoch has passed is read again for the chunks that are adopted, and for no other table.
- A range ends at cuts, so that no transaction is torn.
- A transaction that is larger than a share is one range of several tasks. Each writes the rows of its own keys.
- One task alone writes that change tables were emptied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snowmelt.commit.ledger import Ledger
from snowmelt.driving.entries import Emptied, emptied_by
from snowmelt.model.numbers import LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan, Rule
from snowmelt.planning.tables import TablePhase
from snowmelt.relay.retention import Relay


@dataclass(frozen=True, slots=True)
class LogShare:
    """A range of the log, (after, upto], or of that the keys of one part."""

    after: LogOffset
    upto: LogOffset
    part: int = 0
    parts: int = 1


@dataclass(frozen=True, slots=True)
class LogWork:
    """What one task of a log job does."""

    share: LogShare
    rules: Mapping[TableId, Rule]
    """Of the tables whose rows it may keep."""
    emptied: tuple[Emptied, ...] = ()


def divide(plan: EpochPlan, ledger: Ledger, relay: Relay, *, tasks: int, share_bytes_min: int) -> list[LogWork]:
    """The work of each task, in the order of the log. Empty: the epoch has no log."""
    rules = {table.incarnation.table: plan.rule(table) for table in ledger.tables if table.phase is not TablePhase.GONE} | plan.rules
    # What lies at or below `after` is read again for chunks that are adopted, and for nothing else.
    again = {name: rule for name, rule in rules.items() if rule.adopting}
    emitting = {name: rule for name, rule in rules.items() if rule.emits_all or rule.outside or rule.adopted or rule.adopting}
    work = [LogWork(share, again) for share in shares_of(relay, plan.low, plan.after, tasks=tasks, share_bytes_min=share_bytes_min)]
    work += [LogWork(share, emitting) for share in shares_of(relay, plan.after, plan.upto, tasks=tasks, share_bytes_min=share_bytes_min)]
    emptied = emptied_by(plan, ledger, relay)
    if emptied:
        first = work[0] if work else LogWork(LogShare(plan.after, plan.after), {})
        work[:1] = [LogWork(first.share, first.rules, emptied)]
    return work


def shares_of(relay: Relay, after: LogOffset, upto: LogOffset, *, tasks: int, share_bytes_min: int) -> list[LogShare]:
    """A range of the log in shares of about equal bytes."""
    fair = max(share_bytes_min, (upto - after) // tasks)
    shares = []
    for low, high in relay.shares(after, upto, max(1, (upto - after) // fair)):
        parts = min(tasks, max(1, (high - low) // fair)) if relay.next_cut(low) == high else 1
        shares += [LogShare(low, high, part, parts) for part in range(parts)]
    return shares
