"""What the relay holds, what it may delete, and from where a capture continues.

    States. The chain of sealed segments, each an index record by put-if-absent that follows the one before; a floor below which nothing
    can be asked for.

    Must never happen. A record that does not follow the end of the chain. A segment is deleted while an epoch that is not done, or a
    chunk that is neither adopted nor given back, may read it. A take-over believes less than what is durable: the newest intent
    ends within the chain, and so does what the database was told to forget. A transaction that was prepared is forgotten before it
    is known what became of it.

    Memory. Per segment one record and its cut points; all below the floor is forgotten. The floor only rises. Transactions that are
    prepared are in every record from theirs to the one that decides them, so that no record is kept for their sake; together their
    events are bounded. The names of those that were committed outlive the floor, up to `COMMITTED_MAX` of them.

The chain is the pipeline's number line (see `model.sequence`): a segment's first offset is the end of the one before it, whatever file, era
or server the bytes came from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from snowmelt.errors import Corrupt, SourceDrift, check
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import BEGINNING, GenerationNumber, LogOffset
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.relay.names import branch_of, ended_by

PREPARED_BYTES_MAX: Final = 4 << 30
"""Of the transactions that are prepared at one place, together."""
COMMITTED_MAX: Final = 100_000
"""How many names of transactions that were committed are remembered: as many as a server has connections at most. Each of them waits for
one commit."""
_OFFSET_MAX: Final = 10**16
_ERAS_MAX: Final = 10**4


class Effect(Enum):
    """What a statement of the log does to a table as a whole."""

    EMPTIES = "empties"
    DROPS = "drops"
    MAKES = "makes"
    """CREATE, or a rename into the name."""
    RESHAPES = "reshapes"
    REWRITES = "rewrites"
    """Stored rows get other values and the log does not say so: a new column is filled. None is added and none goes."""
    BREAKS = "breaks"
    """From here on the log does not hold every change of the table, so that an operator has to decide."""

    @property
    def table_wide(self) -> bool:
        """Such a statement begins an epoch; one that reshapes ends it."""
        return self is not Effect.RESHAPES


@dataclass(frozen=True, slots=True)
class TableStatement:
    """A transaction of the log that changes a table as a whole. It ends at `offset`, which is a cut, as is the end of the one before.

    Several tables may be changed by one: each has a statement of its own with the same offset, in the order of their effects.
    """

    offset: LogOffset
    table: TableId
    effect: Effect
    schema: int
    """The table's schema from here on."""
    why: str = ""
    """Of one that breaks: what it does, for a person to read."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where no transaction is open, and when the last one before it was committed. Transaction ends, and where a server says
    that its log is so far without one: rotations, heartbeats."""

    offset: LogOffset
    time_ms: TimeMs


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A transaction of two phases that was prepared and waits for the second: no read shows it, and it has no place in the order of
    changes yet. Its events lie between two places of one segment, where no transaction is open."""

    xid: str
    era: int
    begins: int
    offset: LogOffset
    """Where it ends."""
    at: int
    """Where it begins in its segment's data."""
    bytes: int
    tables: tuple[TableId, ...] = ()
    """Those that it names: they had these names when it was prepared."""
    moved: tuple[TableId, ...] = ()
    """Tables that may have its changes by now, or not any more: statements have renamed, emptied or replaced those that it names, as only
    servers allow that keep no locks for what is prepared (MySQL 5.7)."""

    @property
    def number(self) -> int:
        """Its name in the store. In one era no other ever ends at this offset; after what was recorded another server's may."""
        check(self.era < _ERAS_MAX and self.offset < _OFFSET_MAX, "a prepared transaction has no name", f"era {self.era}, {self.offset}")
        return self.era * _OFFSET_MAX + self.offset


@dataclass(frozen=True, slots=True)
class Ending:
    """The log says what becomes of a prepared transaction, by one that ends at the cut `offset`."""

    xid: str
    offset: LogOffset
    committed: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a prepared transaction. Its changes, if it was committed, are those of the transaction that ends at `offset`."""

    group: Prepared
    offset: LogOffset
    committed: bool
    aside: bool
    """Whether its events lie in an object of their own. They lie in the segment if that has both phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """The index record of a segment. Durable after the segment's data, and what makes it one."""

    number: int
    generation: GenerationNumber
    name: str
    """Of its data in the store."""
    begins: Position
    ends: Position
    first: LogOffset
    """The offset where it begins: the end of the segment before."""
    cuts: tuple[Cut, ...]
    statements: tuple[TableStatement, ...] = ()
    decided: tuple[Decided, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    """All that are so at its end, in whichever segment they were prepared."""

    @property
    def last(self) -> LogOffset:
        """The offset where it ends."""
        return LogOffset(self.first + self.ends.offset - self.begins.offset)

    @property
    def put_aside(self) -> tuple[Prepared, ...]:
        """Those whose events are in this segment and are needed when it is gone. They are durable elsewhere before this record."""
        return tuple(group for group in self.prepared if group.offset > self.first)


class Relay:
    """The chain, as far as it is needed. `apply` and `raise_floor` are the only ways that anything changes."""

    def __init__(self, floor: LogOffset = BEGINNING) -> None:
        self.floor = floor
        """Nothing at or below it is asked for any more, and perhaps it is gone."""
        self._segments: list[SegmentRecord] = []
        self._offsets: list[LogOffset] = []
        self._times: list[int] = []
        self._statements: list[TableStatement] = []
        self._decided: list[Decided] = []
        self._committed: dict[str, LogOffset] = {}
        """Where those that were prepared were committed last and not prepared again since, oldest first, also below the floor."""
        self._over: list[Prepared] = []

    # ---- asking

    @property
    def end(self) -> LogOffset:
        """The newest durable offset."""
        return self._segments[-1].last if self._segments else self.floor

    @property
    def newest(self) -> SegmentRecord | None:
        """The segment at whose end capture continues."""
        return self._segments[-1] if self._segments else None

    @property
    def era(self) -> int:
        """The identity of the server that is captured, as far as it got."""
        return self._segments[-1].ends.era if self._segments else 0

    @property
    def segments(self) -> list[SegmentRecord]:
        return list(self._segments)

    def cut_at_or_below(self, offset: LogOffset) -> LogOffset | None:
        """The newest cut that is held and lies at or below `offset`."""
        index = bisect_right(self._offsets, offset)
        return self._offsets[index - 1] if index else None

    def cuts_between(self, after: LogOffset, upto: LogOffset) -> list[LogOffset]:
        """The cuts in (after, upto]."""
        return self._offsets[bisect_right(self._offsets, after) : bisect_right(self._offsets, upto)]

    def next_cut(self, after: LogOffset) -> LogOffset | None:
        index = bisect_right(self._offsets, after)
        return self._offsets[index] if index < len(self._offsets) else None

    def time_at(self, offset: LogOffset) -> int | None:
        """The time that the log gives to the last transaction up to the cut `offset`: when its last statement began. None where no cut is
        held."""
        index = bisect_right(self._offsets, offset)
        return self._times[index - 1] if index else None

    def committed_by(self, offset: LogOffset, now_ms: int) -> int | None:
        """A moment before which nothing was committed that lies after the cut `offset`; None where none is known.

        The log is in the order of commits, and a transaction is committed after its last statement began. So what comes later was
        committed later than any time that the log gives up to here, whatever time it gives to that itself. A session may set a time of
        its own: one that is still to come says nothing.
        """
        for index in range(bisect_right(self._offsets, offset) - 1, -1, -1):
            if self._times[index] <= now_ms:
                return self._times[index]
        return None

    def statements(self, after: LogOffset, upto: LogOffset, table: TableId | None = None) -> list[TableStatement]:
        """The statements in (after, upto], of one table or of all."""
        low = bisect_right(self._statements, after, key=lambda statement: statement.offset)
        high = bisect_right(self._statements, upto, key=lambda statement: statement.offset)
        return [statement for statement in self._statements[low:high] if table is None or statement.table == table]

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        """The transactions that wait for their second phase at the end."""
        return self._segments[-1].prepared if self._segments else ()

    def committed(self, after: LogOffset, upto: LogOffset) -> list[Decided]:
        """The prepared transactions that were committed in (after, upto]."""
        check(after >= self.floor, "prepared transactions are asked for after their release", f"({after}, {upto}], floor {self.floor}")
        return [decided for decided in self._decided if decided.committed and after < decided.offset <= upto]

    def shown(self, cut: LogOffset, listed: Iterable[str]) -> LogOffset | None:
        """The newest cut up to `cut` that is visible whole at a server that lists these as prepared after `cut`; None if none is held.

        A server may log a COMMIT before its engine shows it, and lists its transaction until then. One that is prepared again was shown: a
        name is free from then on.
        """
        hidden = [offset for xid in listed if (offset := self._committed.get(xid)) is not None and offset <= cut]
        return self.cut_at_or_below(LogOffset(min(hidden) - 1)) if hidden else cut

    def knows(self, xid: str) -> bool:
        """Whether the log says of a transaction that it is prepared, or was committed. What a driver before this one has released is not
        known here."""
        return xid in self._committed or any(group.xid == xid for group in self.prepared)

    @property
    def over(self) -> list[Prepared]:
        """Transactions whose events lie aside and are not needed any more: an epoch that has their second phase is done."""
        return list(self._over)

    def needless(self, aside: Iterable[int]) -> list[int]:
        """Of the names of all that lies aside, those that no reader can ask for. What is after the end may be about to get its record."""
        needed = {group.number for group in self.prepared} | {decided.group.number for decided in self._decided}
        return [number for number in aside if number % _OFFSET_MAX <= self.end and number not in needed]

    def number_at(self, offset: LogOffset) -> int:
        """The number of the segment that holds `offset`, inside or as its end, also if it was deleted; 0 before the first."""
        check(offset <= self.end, "a place is asked for that is not captured", f"{offset}, end {self.end}")
        index = bisect_right(self._segments, offset - 1, key=lambda segment: segment.first)
        return self._segments[0].number - 1 + index if self._segments else 0

    def covering(self, after: LogOffset, upto: LogOffset) -> list[SegmentRecord]:
        """The segments that hold (after, upto]. What is below the floor may be gone, and to ask for it is our bug."""
        check(after >= self.floor, "a range of the log is asked for after its release", f"({after}, {upto}], floor {self.floor}")
        check(upto <= self.end, "a range of the log is asked for that is not captured", f"({after}, {upto}], end {self.end}")
        return [segment for segment in self._segments if segment.last > after and segment.first < min(segment.last, upto)]

    def shares(self, after: LogOffset, upto: LogOffset, count: int) -> list[tuple[LogOffset, LogOffset]]:
        """(after, upto], which are two cuts, in at most `count` ranges of about equal bytes that end at cuts."""
        shares: list[tuple[LogOffset, LogOffset]] = []
        low = after
        for left in range(count, 1, -1):
            # A transaction may be larger than a share.
            high = max(
                self.cut_at_or_below(LogOffset(low + (upto - low) // left)) or BEGINNING, min(self.cuts_between(low, upto), default=upto)
            )
            if high >= upto:
                break
            shares.append((low, high))
            low = high
        return [*shares, (low, upto)] if low < upto else shares

    def offset_of(self, position: Position) -> LogOffset | None:
        """Where a position of the log lies on the number line; None where capture has not come yet, 0 below all that is held.

        A position of another era has no place on it: what was read there can't be joined by place.
        """
        newest = self.newest
        if newest is None:
            return None
        if position.era != newest.ends.era:
            raise SourceDrift("a position is of another server than the log", detail=f"{position}, the log is at {newest.ends}")
        at = (position.file, position.offset)
        for segment in reversed(self._segments):
            if segment.begins.era != position.era or (segment.begins.file, segment.begins.offset) > at:
                continue
            if segment.begins.file != position.file or segment.ends.offset < position.offset:
                # After this segment and before the next: the end of a file that the next one follows, or not captured yet.
                return None if segment is newest else segment.last
            return LogOffset(segment.first + position.offset - segment.begins.offset)
        return BEGINNING

    # ---- deciding

    def decide_record(
        self,
        generation: GenerationNumber,
        name: str,
        begins: Position,
        ends: Position,
        cuts: tuple[Cut, ...],
        statements: tuple[TableStatement, ...] = (),
        phases: Iterable[Prepared | Ending] = (),
        *,
        prepared_bytes_max: int = PREPARED_BYTES_MAX,
    ) -> SegmentRecord:
        """The record of the next segment, to be put if absent. `phases` are what the segment says of transactions of two phases,
        in its order."""
        decided, prepared = self._decide_phases(phases, statements)
        # Which of these tables gets its changes the log doesn't say. They are gone here, and found and copied after the COMMIT.
        moved = [TableStatement(one.offset, table, Effect.DROPS, 0) for one in decided if one.committed for table in one.group.moved]
        statements = tuple(sorted((*statements, *moved), key=lambda statement: statement.offset)) if moved else statements
        waiting = sum(group.bytes for group in prepared)
        if waiting > prepared_bytes_max:
            largest = max(prepared, key=lambda group: group.bytes)
            raise SourceDrift(
                "prepared XA transactions are larger than the limit",
                detail=f"{waiting} bytes of {prepared_bytes_max}; the largest, {largest.xid}, has {largest.bytes}",
                hint="commit it or roll it back at the server, and raise prepared_bytes until the log is past that",
            )
        number = self._segments[-1].number + 1 if self._segments else 1
        return SegmentRecord(
            number=number,
            generation=generation,
            name=name,
            begins=begins,
            ends=ends,
            first=self.end,
            cuts=cuts,
            statements=statements,
            decided=decided,
            prepared=prepared,
        )

    def _decide_phases(
        self, phases: Iterable[Prepared | Ending], statements: tuple[TableStatement, ...]
    ) -> tuple[tuple[Decided, ...], tuple[Prepared, ...]]:
        """What was decided, and what is prepared then."""
        prepared = {group.xid: group for group in self.prepared}
        decided: list[Decided] = []
        for phase in phases:
            before = phase.xid if isinstance(phase, Prepared) else ended_by(phase.xid, prepared)
            group = prepared.pop(before, None) if before is not None else None
            aside = group is not None and group.offset <= self.end
            committed = isinstance(phase, Ending) and phase.committed
            if group is None and committed and branch_of(phase.xid) not in map(branch_of, prepared):
                raise SourceDrift(
                    "an XA transaction was committed whose rows were not captured",
                    detail=f"{phase.xid}, at offset {phase.offset}",
                    hint="it was prepared before capture began; begin with a new state",
                )
            # What a server prepared and lost in a crash may be prepared again under its name: the first never comes to anything.
            if group is not None and (committed or aside):
                decided.append(Decided(_moved(group, statements, phase.offset), phase.offset, committed, aside))
            if isinstance(phase, Prepared):
                prepared[phase.xid] = phase
        return tuple(decided), tuple(_moved(group, statements, _OFFSET_MAX) for group in prepared.values())

    def decide_floor(self, done_upto: LogOffset, lowest_visible: LogOffset | None) -> LogOffset:
        """How far the floor may rise: to where the last done epoch ends, but not above what a chunk under way, or the job of a
        plan that adopts one, still needs."""
        floor = done_upto if lowest_visible is None else min(done_upto, lowest_visible)
        return max(self.floor, floor)

    def deletable(self, named: int) -> list[SegmentRecord]:
        """Segments that no reader can ask for, given the record that the last done epoch names: a take-over finds the chain from the
        next one on. The newest stays too, with the last that has bytes: that is where capture continues."""
        kept = next((segment.number for segment in reversed(self._segments) if segment.first < segment.last), 0)
        gone = [segment for segment in self._segments[:-1] if segment.last <= self.floor and segment.number <= named]
        return [segment for segment in gone if segment.number < kept]

    # ---- applying

    def apply(self, record: SegmentRecord) -> None:
        check_segment(record)
        if self._segments:
            check_follows(self._segments[-1], record)
        self._segments.append(record)
        for cut in record.cuts:
            self._offsets.append(cut.offset)
            self._times.append(cut.time_ms)
        self._statements.extend(record.statements)
        self._decided.extend(record.decided)
        for decided in record.decided:
            self._committed.pop(decided.group.xid, None)
            if decided.committed:
                self._committed[decided.group.xid] = decided.offset
        for group in record.prepared:
            self._committed.pop(group.xid, None)
        for xid in list(self._committed)[: max(0, len(self._committed) - COMMITTED_MAX)]:
            del self._committed[xid]

    def raise_floor(self, floor: LogOffset) -> None:
        """Never falls. What lies below it is forgotten, but for the newest cut: an epoch may begin at it."""
        self.floor = max(self.floor, floor)
        drop = max(0, bisect_right(self._offsets, self.floor) - 1)
        del self._offsets[:drop], self._times[:drop]
        del self._statements[: bisect_right(self._statements, self.floor, key=lambda statement: statement.offset)]
        past = bisect_right(self._decided, self.floor, key=lambda decided: decided.offset)
        self._over += [decided.group for decided in self._decided[:past] if decided.aside]
        del self._decided[:past]

    def leftover(self, number: int, name: str, done: int) -> bool:
        """Whether stored data can't be part of the chain any more: its number has a record of other data, or lies below both what
        is held and `done`, the record that the last done epoch names: that one may reach beyond the epoch."""
        if not self._segments:
            return False
        index = number - self._segments[0].number
        return self._segments[index].name != name if 0 <= index < len(self._segments) else index < 0 and number < done

    def forget(self, segments: list[SegmentRecord]) -> None:
        """These were deleted, or are about to be, and so was what is `over`."""
        self._over.clear()
        numbers = {segment.number for segment in segments}
        self._segments = [segment for segment in self._segments if segment.number not in numbers]


def _moved(group: Prepared, statements: tuple[TableStatement, ...], before: int) -> Prepared:
    """A prepared transaction after these statements, as far as they lie between it and `before`."""
    moved = set(group.moved)
    for offset in sorted({statement.offset for statement in statements if group.offset < statement.offset < before}):
        # A table that breaks is the same as before.
        names = {one.table for one in statements if one.offset == offset and one.effect is not Effect.BREAKS}
        if not names.isdisjoint(moved.union(group.tables)):
            moved |= names
    return replace(group, moved=tuple(sorted(moved)))


def check_segment(record: SegmentRecord) -> None:
    """What a record says of itself must hold together: it is what the number line is made of."""
    begins, ends = record.begins, record.ends
    where = f"record {record.number}, {begins} to {ends}"
    if (begins.era, begins.file) != (ends.era, ends.file) or ends.offset < begins.offset:
        raise Corrupt("a segment is not of one log file", detail=where)
    offsets = [cut.offset for cut in record.cuts]
    if offsets != sorted(set(offsets)) or (offsets and not record.first <= offsets[0] <= offsets[-1] <= record.last):
        raise Corrupt("the cuts of a segment are out of place", detail=where)
    if not {statement.offset for statement in record.statements} <= set(offsets):
        raise Corrupt("a statement of a segment is no cut", detail=where)
    if not {decided.offset for decided in record.decided} <= set(offsets) or any(one.group.offset >= one.offset for one in record.decided):
        raise Corrupt("a second phase in a segment is out of place", detail=where)
    if any(group.offset > record.last for group in record.prepared):
        raise Corrupt("a transaction is prepared after its segment", detail=where)


def check_follows(before: SegmentRecord, record: SegmentRecord) -> None:
    """A record must begin where the one before it ends: on the number line, in the log, or where another server has the same after it."""
    where = f"record {record.number} at {record.first}, {record.begins}, after {before.number} to {before.last}, {before.ends}"
    if (record.number, record.first) != (before.number + 1, before.last):
        raise Corrupt("the relay's chain is broken", detail=where)
    decided = [one.group for one in record.decided if one.aside]
    kept = [group for group in record.prepared if group.offset <= before.last]
    if {replace(group, moved=()) for group in (*kept, *decided)} != {replace(group, moved=()) for group in before.prepared}:
        raise Corrupt("a prepared transaction was forgotten, or came from nowhere", detail=where)
    begins, ends = record.begins, before.ends
    if begins.era == ends.era:
        if begins.file < ends.file or (begins.file == ends.file and begins.offset != ends.offset):
            raise Corrupt("a segment leaves out some of the log, or has some of it again", detail=where)
    elif begins.era < ends.era or begins.transactions != ends.transactions:
        raise SourceDrift(
            "another server does not continue where the last one ended",
            detail=where,
            hint="it lacks transactions that were captured, or has others; snapshot again",
        )
