"""What an epoch is to do, decided before any of its tasks starts.

    States. None of its own: a plan follows from the tables, the relay and the epoch before, which is the newest won intent
    and never a job.

    Forbidden orders. A chunk is adopted by an epoch whose plan did not name it: its log tasks have dropped the chunk's changes.
    A chunk is launched at a cut that was not proven visible, that the relay may have let go of, or that lies before its table's
    incarnation. An epoch holds statements of two transactions, a table-wide one elsewhere than at its beginning, or a change of
    schema elsewhere than at its end.

    Memory. A plan is as large as what is unfinished and what the epoch touches: a live table without a statement in the range is
    not in it, nor is one that is gone.

The adoption rule. An epoch (s, e] adopts a chunk whose read contains nothing beyond `h` ≤ e. For the chunk's keys it emits what
lies in (V, e], for a change table only what the read's mark does not cover (`source.filter`); later epochs emit everything. Before, a
chunk's changes are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from snowmelt.errors import check
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.retention import Effect, Relay, Statement
from snowmelt.source.facts import (
    OUTSIDE,
    Adopted,
    Durable,
    Extent,
    Found,
    GivenBack,
    Gone,
    Incarnation,
    Launched,
    Reborn,
    Recopied,
    Reported,
    Reshaped,
    Split,
    Truncated,
)
from snowmelt.source.tables import TABLE_LIFE, ChunkState, Copy, Phase, Reading, Table, Tables, Turn

Turned = Reborn | Truncated | Gone | Reshaped | Recopied
"""What a statement can make of a table."""

TURNS: Final[dict[type[Turned], Turn]] = {
    Reborn: Turn.REBORN,
    Truncated: Turn.TRUNCATED,
    Gone: Turn.DROPPED,
    Recopied: Turn.RECOPIED,
}


@dataclass(frozen=True, slots=True)
class Span:
    """A range of keys: all above `above`, from the table's least key on if that is None, up to and with `upto`."""

    above: bytes | None
    upto: bytes


@dataclass(frozen=True, slots=True)
class Adopting:
    """A read that this epoch makes part of the lake."""

    reading: Reported
    visible: int
    """`V`: changes above it are emitted, also those of epochs that dropped them; to a change table those that the read lacks."""
    span: Span | None
    """None: all that lies outside of the table's extent."""
    replaces: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Which changes of a table an epoch emits. A known table without a rule is live: all its changes in (s, e] are."""

    incarnation: Incarnation
    after: int
    """Changes up to here are not this epoch's, but for what a chunk that is being adopted needs."""
    live: bool
    event: int | None = None
    """Of the transaction that ends at `after`: changes behind this event count, those of a table that it emptied; None: none do."""
    outside: bool = False
    """What lies outside of the extent is adopted."""
    extent: Extent | None = None
    adopted: tuple[Span, ...] = ()
    adopting: tuple[Adopting, ...] = ()

    @property
    def low(self) -> int:
        """From where on the log is read for this table."""
        return min([self.after, *(adopting.visible for adopting in self.adopting)])


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Fixed before the epoch's first task starts. Its intent says exactly this, or is not written."""

    epoch: int
    generation: int
    follows: str
    """The identity of the won intent that it was planned from; empty for the first."""
    after: int
    upto: int
    facts: tuple[Durable, ...]
    rules: dict[TableId, Rule]
    given_back: tuple[GivenBack, ...]
    """Reads that no plan can adopt any more."""

    @property
    def low(self) -> int:
        """From where on the log is read at all."""
        return min([self.after, *(rule.low for rule in self.rules.values())])

    def rule(self, table: Table) -> Rule:
        return self.rules.get(table.incarnation.table) or Rule(table.incarnation, self.after, live=table.live)


def visible_cut(relay: Relay, shown: Position) -> int | None:
    """`V`: the newest durable cut that a server which shows everything up to `shown` is proven to show; None if there is none.

    The end of the log is no proof: servers send a transaction before their engine shows it to a SELECT.
    """
    offset = relay.offset_of(shown)
    return relay.cut_at_or_below(relay.end if offset is None else offset)


def choose_end(relay: Relay, after: int, bytes_max: int) -> int:
    """Where an epoch that begins at `after` ends: at a cut within the limit, at one cut at least if there is any.

    It holds the statements of one transaction at most: table-wide ones as its first, those that change a schema as its last.
    """
    first = relay.next_cut(after)
    if first is None:
        return after
    end = max(first, relay.cut_at_or_below(after + bytes_max) or first)
    statements = relay.statements(after, end)
    if not statements:
        return end
    offset = statements[0].offset
    effects = [statement.effect for statement in statements if statement.offset == offset]
    if any(effect.table_wide for effect in effects) and offset > first:
        before = relay.cut_at_or_below(offset - 1)
        check(before is not None and before > after, "a statement has no cut before it", f"at {offset}")
        return before or first
    if not all(effect.table_wide for effect in effects):
        return offset
    later = relay.statements(offset, end)
    return max(offset, relay.cut_at_or_below(later[0].offset - 1) or offset) if later else end


def plan_epoch(
    tables: Tables, relay: Relay, *, epoch: int, generation: int, follows: str, after: int, upto: int, proposals: Iterable[Durable] = ()
) -> EpochPlan:
    """Plan the epoch (after, upto]. `proposals` are new tables and bounds, which its intent is to make true."""
    statements = relay.statements(after, upto)
    facts: list[Durable] = [fact for fact in proposals if wanted(tables, fact, statements)]
    adopting: dict[TableId, list[Adopting]] = {}
    given_back: list[GivenBack] = []
    for reading in tables.readings():
        report = reading.report
        if report is None:
            continue
        verdict = judge_reading(tables, relay, reading, report, after=after, upto=upto)
        if isinstance(verdict, GivenBack):
            given_back.append(verdict)
        elif verdict:
            copy = tables.copy_of(report.incarnation)
            span = span_of(copy, report.ordinal)
            adopting.setdefault(report.incarnation.table, []).append(Adopting(report, reading.launch.visible, span, copy.replaces))
            facts.append(Adopted(report.incarnation, report.ordinal, report.nonce, reading.launch.visible, report.high, report.extent))
    rules: dict[TableId, Rule] = {}
    for table in tables:
        name = table.incarnation.table
        if name in adopting or not (table.live or table.phase is Phase.GONE):
            rules[name] = rule_of(table, after, tuple(adopting.get(name, ())))
    for fact in facts:
        if isinstance(fact, Found):
            rules[fact.incarnation.table] = Rule(fact.incarnation, after, live=False)
    for turned, statement in turns_of(tables, statements, epoch):
        facts.append(turned)
        if not isinstance(turned, Reshaped | Recopied):
            live = isinstance(turned, Truncated)
            rules[statement.table] = Rule(turned.incarnation, statement.offset, live=live, event=statement.event if live else None)
    return EpochPlan(epoch, generation, follows, after, upto, tuple(facts), rules, tuple(given_back))


def turns_of(tables: Tables, statements: Iterable[Statement], epoch: int) -> Iterator[tuple[Turned, Statement]]:
    """What statements make of the tables that are known, each after the ones before it."""
    now: dict[TableId, tuple[Incarnation, Phase]] = {}
    for statement in statements:
        table = tables.get(statement.table)
        # One that is gone is forgotten when its epoch is done, which is before this one's intent: it is found anew.
        if table is None or table.phase is Phase.GONE:
            continue
        incarnation, phase = now.get(statement.table, (table.incarnation, table.phase))
        turned = turn_of(incarnation, phase, statement, epoch, keyed=table.keyed)
        if turned is not None:
            turn = TURNS.get(type(turned))
            now[statement.table] = (turned.incarnation, phase if turn is None else TABLE_LIFE[phase, turn])
            yield turned, statement


def wanted(tables: Tables, fact: Durable, statements: list[Statement]) -> bool:
    """Whether a proposal still fits what is true by now. One whose table is changed by a statement of the epoch waits."""
    if any(statement.table == fact.incarnation.table for statement in statements):
        return False
    table = tables.current(fact.incarnation)
    match fact:
        case Found():
            known = tables.get(fact.incarnation.table)
            return known is None or known.phase is Phase.GONE
        case Split(_, first):
            return table is not None and table.phase is Phase.SPLITTING and first == tables.copy_of(fact.incarnation).bounds.last + 1
        case Recopied():
            # One that comes too early is to be proposed again: nothing else remembers it.
            return table is not None and table.phase is Phase.RELEASED and table.keyed
        case _:
            return False


def judge_reading(tables: Tables, relay: Relay, reading: Reading, report: Reported, *, after: int, upto: int) -> bool | GivenBack:
    """Whether the epoch (after, upto] adopts what was read: yes, not yet, or never."""
    table = tables.known(report.incarnation)
    visible = reading.launch.visible

    def never(why: str) -> GivenBack:
        return GivenBack(report.incarnation, report.ordinal, report.job, why)

    if reading.launch.era != relay.era:
        return never("the server changed while it was read")
    if report.high < visible:
        return never("the read shows less than was proven visible")
    if relay.statements(visible, upto, report.incarnation.table):
        return never("the table was changed by a statement while it was read")
    if not report.exact and not table.keyed:
        return never("an append-only table needs an exact read")
    if relay.statements(after, upto, report.incarnation.table):
        return False
    if report.schema != table.schema:
        return False if visible > after else never("the table had another schema when it was read")
    return report.high <= upto


def turn_of(incarnation: Incarnation, phase: Phase, statement: Statement, epoch: int, *, keyed: bool) -> Turned | None:
    """What a statement makes of a table; None: nothing, because the table is not there."""
    at = statement.offset
    reborn = Reborn(Incarnation(incarnation.table, epoch), at, statement.schema)
    if statement.effect is Effect.MAKES:
        return reborn
    if phase is Phase.GONE:
        # DROP IF EXISTS is logged although nothing is there.
        return None
    match statement.effect:
        case Effect.RESHAPES:
            return Reshaped(incarnation, at, statement.schema)
        case Effect.DROPS:
            return Gone(incarnation, at)
        case Effect.EMPTIES if phase is Phase.RELEASED:
            return Truncated(incarnation, at)
        case Effect.REWRITES if phase is Phase.RELEASED and keyed:
            return Recopied(incarnation, at)
        case _:
            return reborn


def rule_of(table: Table, after: int, adopting: tuple[Adopting, ...]) -> Rule:
    copy = table.copy
    if copy is None or copy.extent is None:
        outside = copy is not None and OUTSIDE in copy.adopted
        return Rule(table.incarnation, after, table.live, outside=outside, adopting=adopting)
    spans = []
    for first, last in copy.adopted:
        if last > OUTSIDE:
            spans.append(Span(lower(copy, max(first, OUTSIDE + 1)), copy.bounds.upper(last)))
    return Rule(table.incarnation, after, table.live, outside=True, extent=copy.extent, adopted=tuple(spans), adopting=adopting)


def lower(copy: Copy, ordinal: int) -> bytes | None:
    """The bound that a chunk lies above. Of a finished beginning it is not kept: nothing lies between it and the least key."""
    return copy.bounds.upper(ordinal - 1) if ordinal > copy.bounds.first else None


def span_of(copy: Copy, ordinal: int) -> Span | None:
    return None if ordinal == OUTSIDE else Span(lower(copy, ordinal), copy.bounds.upper(ordinal))


def decide_launches(
    tables: Tables, relay: Relay, *, visible: int, job: int, running_max: int, waiting: AbstractSet[TableId] = frozenset()
) -> list[Launched]:
    """The next chunks to read, with `visible` as the newest durable cut that was proven so. Jobs are numbered from `job` on. Tables
    that are `waiting` are left alone for now.

    A cut below the floor is too old: what lies above it may be gone from the relay. It will be newer soon.
    """
    free = running_max - sum(1 for _ in tables.readings())
    launches: list[Launched] = []
    if visible < relay.floor:
        return launches
    unfinished = [table for table in tables if table.copy is not None]
    # A table whose reads fail again and again must not keep the others waiting.
    for table in sorted(unfinished, key=lambda one: tables.failures(one.incarnation.table)):
        if len(launches) >= free:
            break
        if table.copy is None or visible < table.since or table.incarnation.table in waiting:
            continue
        for ordinal in unread(tables, table, table.copy, free - len(launches)):
            launches.append(Launched(table.incarnation, ordinal, job + len(launches), visible, relay.era))
    return launches


def unread(tables: Tables, table: Table, copy: Copy, limit: int) -> list[int]:
    """The first chunks of a table that are neither adopted nor under way."""
    found: list[int] = []
    ordinal = copy.adopted.first_missing(OUTSIDE)
    while len(found) < limit and copy.state(ordinal) is not None:
        if tables.chunk_state(table.incarnation, ordinal) is ChunkState.PLANNED:
            found.append(ordinal)
        ordinal = copy.adopted.first_missing(ordinal + 1)
    return found
