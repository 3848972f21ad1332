"""What an epoch does, decided before any of its tasks starts.

    States. None of its own: a plan follows from the tables, the relay and the epoch before, which is the newest won intent
    and never a job.

    Must never happen. A chunk is adopted by an epoch whose plan did not name it: its log tasks have dropped the chunk's changes.
    A chunk is launched at a cut that was not proven visible, that the relay may have released, or that is before its table's
    incarnation. An epoch holds statements of two transactions about one table, a table-wide one not at its beginning, or a change of
    schema not at its end. A change of a table that is set aside, or that the epoch sets aside, is emitted.

    Memory. A plan is as large as what is unfinished and what the epoch touches. A live table without a statement in the range is
    not in it, nor is one that is gone.

The adoption rule. An epoch (s, e] adopts a chunk whose read contains nothing after `h` ≤ e. For the chunk's keys it emits the changes
in (V, e]; for a change table only those that the read's mark does not cover. Later epochs emit everything. Earlier ones drop a chunk's
changes. A table that is read again in place (`Recopied`) stays live meanwhile. Tasks apply the rule to columns (`engine.tasks.log`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from snowmelt.errors import check
from snowmelt.model.numbers import EpochNumber, GenerationNumber, LogOffset
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Durable,
    Found,
    GivenBack,
    Gone,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Recopied,
    Reported,
    Reshaped,
    SetAside,
    Split,
    Truncated,
)
from snowmelt.planning.tables import TABLE_LIFE, ChunkState, Copy, Reading, Table, TablePhase, Tables, TableTrigger
from snowmelt.relay.retention import Effect, Relay, TableStatement

Turned = Reborn | Truncated | Gone | Reshaped | Recopied | SetAside
"""What a statement can do to a table."""

TURNS: Final[dict[type[Turned], TableTrigger]] = {
    Reborn: TableTrigger.REBORN,
    Truncated: TableTrigger.TRUNCATED,
    Gone: TableTrigger.DROPPED,
    Recopied: TableTrigger.RECOPIED,
    SetAside: TableTrigger.SET_ASIDE,
}


@dataclass(frozen=True, slots=True)
class Span:
    """A range of keys: above `above`, or from the table's least key if that is None, up to and including `upto`."""

    above: bytes | None
    upto: bytes


@dataclass(frozen=True, slots=True)
class Adopting:
    """A read that this epoch makes part of the lake."""

    reading: Reported
    visible: LogOffset
    """`V`: changes after it are emitted, also those that earlier epochs dropped. For a change table only those that the read lacks."""
    span: Span | None
    """None: everything outside the table's extent."""
    replaces: bool
    """The table is read again in place: these rows replace those that the lake has (`Copy.replaces`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The changes of a table that an epoch emits. A live table needs no rule: all its changes in (s, e] are emitted."""

    incarnation: Incarnation
    after: LogOffset
    """Changes up to here belong to earlier epochs, except for what an adopted chunk needs."""
    emits_all: bool
    """Whether all changes after `after` are emitted, and not only those of adopted keys. `adopting` has its own cuts."""
    outside: bool = False
    """The keys outside the extent are adopted."""
    extent: KeyEnds | None = None
    adopted: tuple[Span, ...] = ()
    adopting: tuple[Adopting, ...] = ()

    @property
    def low(self) -> LogOffset:
        """The offset from which the log is read for this table."""
        return min([self.after, *(adopting.visible for adopting in self.adopting)])


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """Fixed before the epoch's first task starts. Its intent says exactly this, or is not written."""

    epoch: EpochNumber
    generation: GenerationNumber
    follows: str
    """The identity of the won intent that it was planned from; empty for the first."""
    after: LogOffset
    upto: LogOffset
    facts: tuple[Durable, ...]
    rules: dict[TableId, Rule]
    given_back: tuple[GivenBack, ...]
    """Reads that no plan can adopt any more."""

    @property
    def low(self) -> LogOffset:
        """The offset from which the log is read."""
        return min([self.after, *(rule.low for rule in self.rules.values())])

    def untouched(self, tables: Tables) -> set[TableId]:
        """Tables whose lake tables this epoch leaves unchanged, whatever its other facts say of them: those that are set aside or
        gone, with this epoch or before."""
        resting = {table.incarnation.table for table in tables if table.phase is TablePhase.SET_ASIDE}
        for fact in self.facts:
            if isinstance(fact, SetAside | Gone):
                resting.add(fact.incarnation.table)
            elif isinstance(fact, Reborn):
                resting.discard(fact.incarnation.table)
        return resting

    def rule(self, table: Table) -> Rule:
        return self.rules.get(table.incarnation.table) or Rule(incarnation=table.incarnation, after=self.after, emits_all=table.live)


def visible_cut(relay: Relay, shown: Position) -> LogOffset | None:
    """`V`: the newest durable cut that a server which shows everything up to `shown` is proven to show; None if there is none.

    The end of the log is no proof: servers send a transaction before a SELECT shows it.
    """
    offset = relay.offset_of(shown)
    return relay.cut_at_or_below(relay.end if offset is None else offset)


def choose_end(tables: Tables, relay: Relay, after: LogOffset, bytes_max: int) -> LogOffset:
    """Where an epoch that begins at `after` ends: at a cut within the limit, and at least at the next cut if there is one.

    Table-wide statements lie at the beginning of an epoch, before its first row. Changes of a schema lie at its end, after its last row. Of
    one table an epoch has the statements of one transaction. Statements about unknown tables do not matter.
    """
    first = relay.next_cut(after)
    if first is None:
        return after
    end = max(first, relay.cut_at_or_below(LogOffset(after + bytes_max)) or first)
    begun, met = _statements_from(tables, relay, after, end, set(), table_wide=True)
    rest = _known(tables, relay.statements(begun, end))
    if not rest:
        return end
    offset = rest[0].offset
    here = [statement for statement in rest if statement.offset == offset]
    mixed = any(statement.effect.table_wide for statement in here)
    if (mixed or not met.isdisjoint(statement.table for statement in here)) and offset > first:
        before = relay.cut_at_or_below(LogOffset(offset - 1))
        check(before is not None and before > after, "a statement has no cut before it", f"at {offset}")
        return before or first
    if mixed:
        return offset
    met = met | {statement.table for statement in here}
    return _statements_from(tables, relay, offset, end, met, table_wide=False)[0]


def _statements_from(
    tables: Tables, relay: Relay, after: LogOffset, end: LogOffset, met: AbstractSet[TableId], *, table_wide: bool
) -> tuple[LogOffset, AbstractSet[TableId]]:
    """Follow the cuts after `after` as long as nothing but statements lies between them: statements of one kind (`table_wide`) about tables
    that are not in `met`, or any about unknown tables. Returns the last of these cuts, and `met` with the tables of the statements.

    The COMMIT of a prepared transaction whose tables were replaced meanwhile counts as a statement about them, and has rows of others."""
    while (cut := relay.next_cut(after)) is not None and cut <= end:
        here = relay.statements(after, cut)
        known = _known(tables, here)
        names = {statement.table for statement in known}
        if (
            not here
            or relay.committed(after, cut)
            or not names.isdisjoint(met)
            or any(statement.effect.table_wide is not table_wide for statement in known)
        ):
            break
        after, met = cut, met | names
    return after, met


def _known(tables: Tables, statements: Iterable[TableStatement]) -> list[TableStatement]:
    """Statements that can change a table (`turns_of`)."""
    return [one for one in statements if (table := tables.get(one.table)) is not None and table.phase is not TablePhase.GONE]


def statements_wait(tables: Tables, relay: Relay, after: LogOffset) -> bool:
    """Whether statements ahead end epochs, so that the log after them should not wait for one small epoch after the other."""
    return bool(_known(tables, relay.statements(after, relay.end)))


def plan_epoch(
    tables: Tables,
    relay: Relay,
    *,
    epoch: EpochNumber,
    generation: GenerationNumber,
    follows: str,
    after: LogOffset,
    upto: LogOffset,
    proposals: Iterable[Durable] = (),
) -> EpochPlan:
    """Plan the epoch (after, upto]. `proposals` are facts that its intent shall make true: new tables and bounds, tables that can't
    continue, and tables that an operator asked for."""
    statements = relay.statements(after, upto)
    asides, others = _parted(proposals)
    facts: list[Durable] = [fact for fact in others if wanted(tables, fact, statements)]
    gone = {fact.incarnation.table for fact in facts if isinstance(fact, Gone)}
    # Bounds and reads of a table that begins anew, is forgotten or set aside are void with this epoch's intent. A request for a table
    # that is to be forgotten is ignored.
    over = gone | set(asides) | {fact.incarnation.table for fact in facts if isinstance(fact, Reborn)}
    stays = {Gone: frozenset[TableId](), Found: frozenset[TableId](), Reborn: gone}
    facts = [fact for fact in facts if fact.incarnation.table not in stays.get(type(fact), over)]
    adopting: dict[TableId, list[Adopting]] = {}
    given_back: list[GivenBack] = []
    for reading in tables.readings():
        report = reading.report
        if report is None or report.incarnation.table in over:
            continue
        verdict = judge_reading(tables, relay, reading, report, after=after, upto=upto)
        if isinstance(verdict, GivenBack):
            given_back.append(verdict)
        elif verdict:
            copy = tables.copy_of(report.incarnation)
            span = span_of(copy, report.ordinal)
            adopting.setdefault(report.incarnation.table, []).append(Adopting(report, reading.launch.visible, span, copy.replaces))
            facts.append(
                Adopted(
                    incarnation=report.incarnation,
                    ordinal=report.ordinal,
                    nonce=report.nonce,
                    visible=reading.launch.visible,
                    high=report.high,
                    extent=report.extent,
                )
            )
    rules: dict[TableId, Rule] = {}
    for table in tables:
        name = table.incarnation.table
        if name in adopting or not (table.live or table.phase is TablePhase.GONE):
            rules[name] = rule_of(table, after, tuple(adopting.get(name, ())))
    for fact in facts:
        if isinstance(fact, Found | Reborn | Gone):
            rules[fact.incarnation.table] = Rule(incarnation=fact.incarnation, after=after, emits_all=False)
    for turned, statement in turns_of(tables, relay, statements, epoch):
        facts.append(turned)
        if not isinstance(turned, Reshaped | Recopied):
            rules[statement.table] = Rule(incarnation=turned.incarnation, after=statement.offset, emits_all=isinstance(turned, Truncated))
    for aside in _set_aside(tables, facts, asides):
        facts.append(aside)
        rules[aside.incarnation.table] = Rule(incarnation=aside.incarnation, after=after, emits_all=False)
    return EpochPlan(
        epoch=epoch,
        generation=generation,
        follows=follows,
        after=after,
        upto=upto,
        facts=tuple(facts),
        rules=rules,
        given_back=tuple(given_back),
    )


def _parted(proposals: Iterable[Durable]) -> tuple[dict[TableId, SetAside], list[Durable]]:
    """Splits proposals: tables to set aside, and all others."""
    asides: dict[TableId, SetAside] = {}
    others: list[Durable] = []
    for fact in proposals:
        if isinstance(fact, SetAside):
            asides.setdefault(fact.incarnation.table, fact)
        else:
            others.append(fact)
    return asides, others


def _set_aside(tables: Tables, facts: list[Durable], asides: dict[TableId, SetAside]) -> Iterator[SetAside]:
    """Proposals to set tables aside, adapted to what else the epoch does: a table is set aside in its state after that. A table that is
    dropped needs it no more."""
    for name, aside in asides.items():
        table = tables.get(name)
        incarnation = None if table is None or table.phase in (TablePhase.SET_ASIDE, TablePhase.GONE) else table.incarnation
        for fact in facts:
            if fact.incarnation.table == name:
                # The trouble of the former table is no reason to set aside the one that is copied anew.
                asked = isinstance(fact, Reborn) and fact.asked and aside.incarnation != fact.incarnation
                incarnation = None if isinstance(fact, Gone | SetAside) or asked else fact.incarnation
        if incarnation is not None:
            yield replace(aside, incarnation=incarnation)


def turns_of(
    tables: Tables, relay: Relay, statements: Iterable[TableStatement], epoch: EpochNumber
) -> Iterator[tuple[Turned, TableStatement]]:
    """What statements do to the known tables, in order."""
    now: dict[TableId, tuple[Incarnation, TablePhase]] = {}
    for statement in statements:
        table = tables.get(statement.table)
        # A table that is gone is forgotten when its epoch is done, which is before this one's intent. Then it is found as a new one.
        if table is None or table.phase is TablePhase.GONE:
            continue
        incarnation, phase = now.get(statement.table, (table.incarnation, table.phase))
        turned = turn_of(incarnation, phase, statement, epoch, keyed=table.keyed, time_ms=relay.time_at(statement.offset) or 0)
        if turned is not None:
            turn = TURNS.get(type(turned))
            now[statement.table] = (turned.incarnation, phase if turn is None else TABLE_LIFE[phase, turn])
            yield turned, statement


def wanted(tables: Tables, fact: Durable, statements: list[TableStatement]) -> bool:
    """Whether a proposal still fits the current state. If a statement of the epoch changes its table, the proposal waits."""
    if any(statement.table == fact.incarnation.table for statement in statements):
        return False
    table = tables.current(fact.incarnation)
    match fact:
        case Found():
            known = tables.get(fact.incarnation.table)
            return known is None or known.phase is TablePhase.GONE
        case Split(_, first):
            return table is not None and table.phase is TablePhase.SPLITTING and first == tables.copy_of(fact.incarnation).bounds.last + 1
        case Reborn(incarnation):
            known = tables.get(incarnation.table)
            return known is not None and known.phase is not TablePhase.GONE and known.incarnation.number < incarnation.number
        case Gone():
            return table is not None and table.phase is TablePhase.SET_ASIDE
        case _:
            return False


def judge_reading(
    tables: Tables, relay: Relay, reading: Reading, report: Reported, *, after: LogOffset, upto: LogOffset
) -> bool | GivenBack:
    """Whether the epoch (after, upto] adopts a read: yes, not yet, or never."""
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


def turn_of(
    incarnation: Incarnation, phase: TablePhase, statement: TableStatement, epoch: EpochNumber, *, keyed: bool, time_ms: int = 0
) -> Turned | None:
    """What a statement, committed at `time_ms`, does to a table; None: nothing, because the table does not exist or is set aside."""
    at = statement.offset
    reborn = Reborn(Incarnation(incarnation.table, epoch), at, statement.schema)
    if phase is TablePhase.GONE:
        # DROP IF EXISTS is logged even if the table does not exist.
        return reborn if statement.effect is Effect.MAKES else None
    if phase is TablePhase.SET_ASIDE and statement.effect is Effect.MAKES:
        # Its shape is followed, so that an operator can ask for it again; nothing else brings it back.
        return Reshaped(incarnation, at, statement.schema)
    match statement.effect:
        case Effect.MAKES:
            return reborn
        case Effect.RESHAPES:
            return Reshaped(incarnation, at, statement.schema)
        case Effect.DROPS:
            return Gone(incarnation, at)
        case _ if phase is TablePhase.SET_ASIDE:
            return None
        case Effect.BREAKS:
            return SetAside(incarnation, at, time_ms, statement.why)
        case Effect.EMPTIES if phase is TablePhase.RELEASED:
            return Truncated(incarnation, at)
        case Effect.REWRITES if phase is TablePhase.RELEASED and keyed:
            return Recopied(incarnation, at)
        case _:
            return reborn


def rule_of(table: Table, after: LogOffset, adopting: tuple[Adopting, ...]) -> Rule:
    copy = table.copy
    if copy is None or copy.extent is None:
        outside = copy is not None and OUTSIDE in copy.adopted
        return Rule(incarnation=table.incarnation, after=after, emits_all=table.live, outside=outside, adopting=adopting)
    spans = []
    for first, last in copy.adopted:
        if last > OUTSIDE:
            spans.append(Span(lower(copy, max(first, OUTSIDE + 1)), copy.bounds.upper(last)))
    return Rule(
        incarnation=table.incarnation,
        after=after,
        emits_all=table.live,
        outside=True,
        extent=copy.extent,
        adopted=tuple(spans),
        adopting=adopting,
    )


def lower(copy: Copy, ordinal: int) -> bytes | None:
    """The bound below a chunk. For the first chunks it is not kept: no key is between it and the least key."""
    return copy.bounds.upper(ordinal - 1) if ordinal > copy.bounds.first else None


def span_of(copy: Copy, ordinal: int) -> Span | None:
    return None if ordinal == OUTSIDE else Span(lower(copy, ordinal), copy.bounds.upper(ordinal))


def decide_launches(
    tables: Tables, relay: Relay, *, visible: LogOffset, job: int, running_max: int, waiting: AbstractSet[TableId] = frozenset()
) -> list[Launched]:
    """The next chunks to read. `visible` is the newest durable cut that was proven visible. Jobs are numbered from `job` on. `waiting`
    tables are skipped for now.

    A cut below the floor is too old: the relay may have released what comes after it. It will be newer soon.
    """
    free = running_max - sum(1 for _ in tables.readings())
    launches: list[Launched] = []
    if visible < relay.floor:
        return launches
    unfinished = [table for table in tables if table.copy is not None]
    # A table whose reads fail repeatedly must not keep the others waiting.
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
