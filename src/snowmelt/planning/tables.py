"""The life of tables and their chunks.

States. A table passes from DISCOVERED to RELEASED as in `TABLE_LIFE`, a chunk from PLANNED to ADOPTED as in `CHUNK_LIFE`. A table's phase
is durable: it follows from the facts in won intents and from done epochs. Only this driver knows that a chunk is being read, or was read
and waits. A table that can't continue is SET_ASIDE, from any phase: it keeps its name, target and schema, and the reason, until it is
dropped in the source or an operator asks for it again.

Must never happen. A chunk is launched before its bound is in a won intent; adopted without an intent that says so; adopted for another
incarnation than the current one. Bounds are released before an epoch is done that ends at or after the greatest `h` of the table's reads;
asking for them afterwards stops the job and never gives an empty answer. A report of another job than the last launched one has an
effect.

Memory. Per table a few hundred bytes; per chunk that is not adopted its bound and 8 bytes; per chunk under way one record, and
the planner limits their number; per gap among the adopted ones two numbers. After release only the table's
name, target, schema and phase; of a table that is gone nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from snowmelt.errors import InvariantBroken, check
from snowmelt.model.numbers import BEGINNING, NO_EPOCH, EpochNumber, LogOffset
from snowmelt.model.table import TableId
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Covered,
    Fact,
    Found,
    GivenBack,
    Gone,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Recopied,
    Released,
    Reported,
    Reshaped,
    SetAside,
    Split,
    Truncated,
)
from snowmelt.planning.ordinals import Bounds, RangeSet


class TablePhase(Enum):
    """How far a table is. It is durable: it follows from the facts of won intents and from done epochs (`Covered`, `Released`)."""

    DISCOVERED = "discovered"
    SPLITTING = "splitting"
    SNAPSHOTTING = "snapshotting"
    CATCHING_UP = "catching up"
    STREAMING = "streaming"
    RELEASED = "released"
    SET_ASIDE = "set aside"
    GONE = "gone"


class TableTrigger(Enum):
    """The causes of a table's transitions."""

    OUTSIDE_ADOPTED = "outside adopted"
    SPLIT_COMPLETE = "split complete"
    ALL_ADOPTED = "all adopted"
    COVERED = "a done epoch covers every read"
    LET_GO = "released"
    TRUNCATED = "truncated"
    REBORN = "emptied, created again, or copied again on request"
    RECOPIED = "copied again in place"
    SET_ASIDE = "it can't continue"
    DROPPED = "dropped"


TABLE_LIFE: Final[dict[tuple[TablePhase, TableTrigger], TablePhase]] = {
    (TablePhase.DISCOVERED, TableTrigger.OUTSIDE_ADOPTED): TablePhase.SPLITTING,
    (TablePhase.SPLITTING, TableTrigger.SPLIT_COMPLETE): TablePhase.SNAPSHOTTING,
    (TablePhase.SNAPSHOTTING, TableTrigger.ALL_ADOPTED): TablePhase.CATCHING_UP,
    (TablePhase.CATCHING_UP, TableTrigger.COVERED): TablePhase.STREAMING,
    (TablePhase.STREAMING, TableTrigger.LET_GO): TablePhase.RELEASED,
    (TablePhase.RELEASED, TableTrigger.TRUNCATED): TablePhase.RELEASED,
    (TablePhase.RELEASED, TableTrigger.RECOPIED): TablePhase.DISCOVERED,
    **{(phase, TableTrigger.REBORN): TablePhase.DISCOVERED for phase in TablePhase},
    **{
        (phase, TableTrigger.SET_ASIDE): TablePhase.SET_ASIDE
        for phase in TablePhase
        if phase not in (TablePhase.SET_ASIDE, TablePhase.GONE)
    },
    **{(phase, TableTrigger.DROPPED): TablePhase.GONE for phase in TablePhase if phase is not TablePhase.GONE},
}


class ChunkState(Enum):
    """Of a chunk. PLANNED and ADOPTED are durable, the two between them belong to one driver."""

    PLANNED = "planned"
    RUNNING = "running"
    READ = "read"
    ADOPTED = "adopted"


class ChunkTrigger(Enum):
    LAUNCHED = "launched"
    REPORTED = "reported"
    GIVEN_BACK = "given back"
    ADOPTED = "adopted"


CHUNK_LIFE: Final[dict[tuple[ChunkState, ChunkTrigger], ChunkState]] = {
    (ChunkState.PLANNED, ChunkTrigger.LAUNCHED): ChunkState.RUNNING,
    (ChunkState.RUNNING, ChunkTrigger.REPORTED): ChunkState.READ,
    (ChunkState.RUNNING, ChunkTrigger.GIVEN_BACK): ChunkState.PLANNED,
    (ChunkState.READ, ChunkTrigger.GIVEN_BACK): ChunkState.PLANNED,
    (ChunkState.READ, ChunkTrigger.ADOPTED): ChunkState.ADOPTED,
    # Another driver's intent may adopt a chunk that this driver has not read. Its own read is void then.
    (ChunkState.PLANNED, ChunkTrigger.ADOPTED): ChunkState.ADOPTED,
    (ChunkState.RUNNING, ChunkTrigger.ADOPTED): ChunkState.ADOPTED,
}


@dataclass(slots=True)
class Reading:
    """A chunk under way: launched, and reported once `report` is set."""

    launch: Launched
    report: Reported | None = None


@dataclass(slots=True, kw_only=True)
class Copy:
    """One copy of a table: its chunks, and which of them the lake has."""

    replaces: bool = False
    """The lake has this table already; each chunk replaces its key range there."""
    bounds: Bounds = field(default_factory=Bounds)
    extent: KeyEnds | None = None
    complete: bool = False
    adopted: RangeSet = field(default_factory=RangeSet)
    adopted_in: EpochNumber = NO_EPOCH
    """The last epoch that adopted a chunk."""
    high: LogOffset = BEGINNING
    """The greatest `h` of the adopted reads."""

    def state(self, ordinal: int) -> ChunkState | None:
        """The durable state, without the reads of a driver; None where no such chunk exists yet."""
        if ordinal in self.adopted:
            return ChunkState.ADOPTED
        return ChunkState.PLANNED if OUTSIDE <= ordinal <= self.bounds.last else None

    @property
    def progress(self) -> tuple[int, int | None]:
        """How many chunks the lake has, and the number of all once they are found. OUTSIDE is one of them."""
        return self.adopted.count, self.bounds.last + 1 if self.complete else None

    @property
    def finished(self) -> bool:
        return self.complete and self.adopted.first_missing(OUTSIDE) > self.bounds.last


@dataclass(slots=True, kw_only=True)
class Table:
    """What is known of a table."""

    incarnation: Incarnation
    target: str
    keyed: bool
    schema: int
    phase: TablePhase = TablePhase.DISCOVERED
    copy: Copy | None = field(default_factory=Copy)
    """None once released, and while the table is set aside or gone."""
    since: int = 0
    """Reads must show everything up to this offset: where the incarnation began, or what caused the copy in place (`Recopied`)."""
    aside: SetAside | None = None
    """Why it is set aside, and since when."""

    @property
    def live(self) -> bool:
        """Whether the lake follows the table, so that every change is emitted. The lake has all its rows. While the table is read again in
        place, some may have old values."""
        return self.phase in (TablePhase.CATCHING_UP, TablePhase.STREAMING, TablePhase.RELEASED) or (
            self.copy is not None and self.copy.replaces
        )

    @property
    def complete(self) -> bool:
        """Whether the lake has all its rows, as of the last epoch or as of when it was set aside, and no copy of it is under way."""
        return self.phase in (TablePhase.CATCHING_UP, TablePhase.STREAMING, TablePhase.RELEASED, TablePhase.SET_ASIDE)


class Tables:
    """All tables of a pipeline. Only `apply` changes them."""

    def __init__(self) -> None:
        self._tables: dict[TableId, Table] = {}
        self._readings: dict[tuple[TableId, int], Reading] = {}
        self._failures: dict[TableId, int] = {}

    # ---- asking

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, table: TableId) -> Table | None:
        return self._tables.get(table)

    def current(self, incarnation: Incarnation) -> Table | None:
        """The table, if this is still its incarnation."""
        table = self._tables.get(incarnation.table)
        return table if table is not None and table.incarnation == incarnation else None

    def restore(self, table: Table) -> None:
        """Add a table from a summary. Only if no table of that name is there."""
        check(table.incarnation.table not in self._tables, "a table is restored twice", str(table.incarnation))
        self._tables[table.incarnation.table] = table

    def known(self, incarnation: Incarnation) -> Table:
        """The table of this incarnation. Any other than the current one is a bug."""
        table = self.current(incarnation)
        if table is None:
            raise InvariantBroken("a fact is of an incarnation that is over", detail=str(incarnation))
        return table

    def copy_of(self, incarnation: Incarnation) -> Copy:
        """The bounds and marks of a table. To ask after their release is a bug, and must not look like an empty answer."""
        copy = self.known(incarnation).copy
        if copy is None:
            raise InvariantBroken("metadata is asked for after its release", detail=str(incarnation))
        return copy

    def readings(self) -> Iterator[Reading]:
        """All chunks under way, in the order of their launch."""
        return iter(self._readings.values())

    def reading(self, incarnation: Incarnation, ordinal: int) -> Reading | None:
        found = self._readings.get((incarnation.table, ordinal))
        return found if found is not None and found.launch.incarnation == incarnation else None

    def chunk_state(self, incarnation: Incarnation, ordinal: int) -> ChunkState | None:
        table = self.current(incarnation)
        if table is None or table.copy is None:
            return None
        reading = self.reading(incarnation, ordinal)
        if reading is not None:
            return ChunkState.READ if reading.report is not None else ChunkState.RUNNING
        return table.copy.state(ordinal)

    def lowest_visible(self) -> LogOffset | None:
        """The least `V` of all chunks under way: the relay keeps the log after it."""
        return min((reading.launch.visible for reading in self._readings.values()), default=None)

    def failures(self, table: TableId) -> int:
        """How many reads of a table were given back since its last adoption."""
        return self._failures.get(table, 0)

    def releasable(self) -> list[Released]:
        """Tables whose bounds and marks no plan can ask for any more, and those that are gone."""
        over = (TablePhase.STREAMING, TablePhase.GONE)
        return [Released(table.incarnation) for table in self._tables.values() if table.phase in over]

    # ---- deciding

    def decide_report(self, report: Reported) -> list[Fact]:
        """A report counts if it is of its chunk's last launched read, and for the first time."""
        reading = self.reading(report.incarnation, report.ordinal)
        if reading is None or reading.launch.job != report.job or reading.report is not None:
            return []
        return [report]

    def decide_give_back(self, incarnation: Incarnation, ordinal: int, job: int, why: str) -> list[Fact]:
        """Give back a read that is void. Nothing follows if the read is over, or is of another job."""
        reading = self.reading(incarnation, ordinal)
        if reading is None or reading.launch.job != job:
            return []
        return [GivenBack(incarnation, ordinal, job, why)]

    # ---- applying

    def apply(self, fact: Fact, epoch: EpochNumber = NO_EPOCH) -> None:
        """Make a fact true. For durable facts `epoch` is that of the intent with the fact."""
        match fact:
            case Found(incarnation, target, keyed, schema, at):
                check(incarnation.table not in self._tables, "a table is found twice", str(incarnation))
                self._tables[incarnation.table] = Table(incarnation=incarnation, target=target, keyed=keyed, schema=schema, since=at)
            case Reborn(incarnation, at, schema):
                self._reborn(incarnation, at, schema)
            case Gone(incarnation):
                table = self.known(incarnation)
                self._move(table, TableTrigger.DROPPED)
                self._void(table)
                table.copy = table.aside = None
            case SetAside(incarnation):
                table = self.known(incarnation)
                self._move(table, TableTrigger.SET_ASIDE)
                self._void(table)
                table.copy, table.aside = None, fact
            case Truncated(incarnation):
                self._move(self.known(incarnation), TableTrigger.TRUNCATED)
            case Reshaped(incarnation, _, schema):
                self.known(incarnation).schema = schema
            case Recopied(incarnation, at):
                table = self.known(incarnation)
                check(table.keyed, "an append-only table is read again in place", str(incarnation))
                self._move(table, TableTrigger.RECOPIED)
                table.copy, table.since = Copy(replaces=True), at
            case Split(incarnation, first, uppers, complete):
                self._split(incarnation, first, uppers, complete)
            case Adopted():
                self._adopt(fact, epoch)
            case Launched(incarnation, ordinal):
                self._move_chunk(incarnation, ordinal, ChunkTrigger.LAUNCHED)
                self._readings[incarnation.table, ordinal] = Reading(fact)
            case Reported(incarnation=incarnation, ordinal=ordinal, job=job):
                self._move_chunk(incarnation, ordinal, ChunkTrigger.REPORTED, job)
                self._readings[incarnation.table, ordinal].report = fact
            case GivenBack(incarnation, ordinal, job):
                self._move_chunk(incarnation, ordinal, ChunkTrigger.GIVEN_BACK, job)
                del self._readings[incarnation.table, ordinal]
                self._failures[incarnation.table] = self.failures(incarnation.table) + 1
            case Covered(done, upto):
                self._cover(done, upto)
            case Released(incarnation):
                self._release(incarnation)
            case _ as never:
                assert_never(never)

    def _move(self, table: Table, trigger: TableTrigger) -> None:
        phase = TABLE_LIFE.get((table.phase, trigger))
        if phase is None:
            raise InvariantBroken("invalid transition of a table", detail=f"{table.incarnation} is {table.phase.value}: {trigger.value}")
        table.phase = phase

    def _move_chunk(self, incarnation: Incarnation, ordinal: int, trigger: ChunkTrigger, job: int | None = None) -> None:
        state, reading = self.chunk_state(incarnation, ordinal), self.reading(incarnation, ordinal)
        same = job is None or reading is None or reading.launch.job == job
        check(same, "a fact is of another read than the one under way", f"{ordinal} of {incarnation}, job {job}")
        if state is None or (state, trigger) not in CHUNK_LIFE:
            name = "not there" if state is None else state.value
            raise InvariantBroken("invalid transition of a chunk", detail=f"{ordinal} of {incarnation} is {name}: {trigger.value}")

    def _void(self, table: Table) -> None:
        """Reads of an ended incarnation are dropped; their reports will change nothing."""
        for key in [key for key in self._readings if key[0] == table.incarnation.table]:
            del self._readings[key]
        self._failures.pop(table.incarnation.table, None)

    def _reborn(self, incarnation: Incarnation, at: int, schema: int) -> None:
        table = self._tables.get(incarnation.table)
        if table is None or incarnation.number <= table.incarnation.number:
            raise InvariantBroken("an incarnation does not follow the last one", detail=str(incarnation))
        self._move(table, TableTrigger.REBORN)
        self._void(table)
        table.incarnation, table.schema, table.copy, table.since, table.aside = incarnation, schema, Copy(), at, None

    def _split(self, incarnation: Incarnation, first: int, uppers: tuple[bytes, ...], complete: bool) -> None:
        table, copy = self.known(incarnation), self.copy_of(incarnation)
        check(table.phase is TablePhase.SPLITTING, "a table is split that is not being split", f"{incarnation} is {table.phase.value}")
        check(first == copy.bounds.last + 1, "bounds leave a gap", f"{incarnation}: {first} after {copy.bounds.last}")
        last = uppers[-1] if uppers else copy.bounds.upper(copy.bounds.last)
        # A split that ends early would leave keys that are neither in a chunk nor outside of all.
        ends = copy.extent is not None and last == copy.extent.greatest
        check(ends or not complete, "bounds do not end at the greatest key", str(incarnation))
        copy.bounds.extend(uppers)
        if complete:
            copy.complete = True
            self._move(table, TableTrigger.SPLIT_COMPLETE)
            self._finish(table, copy)

    def _adopt(self, fact: Adopted, epoch: EpochNumber) -> None:
        table, copy = self.known(fact.incarnation), self.copy_of(fact.incarnation)
        self._move_chunk(fact.incarnation, fact.ordinal, ChunkTrigger.ADOPTED)
        self._readings.pop((fact.incarnation.table, fact.ordinal), None)
        self._failures.pop(fact.incarnation.table, None)
        copy.adopted.add(fact.ordinal)
        copy.adopted_in, copy.high = epoch, max(copy.high, fact.high)
        # The bound before the first gap is its lower edge, so it is kept.
        copy.bounds.forget(copy.adopted.first_missing(OUTSIDE) - 1)
        if fact.ordinal == OUTSIDE:
            copy.extent = fact.extent
            self._move(table, TableTrigger.OUTSIDE_ADOPTED)
            if fact.extent is None:
                copy.complete = True
                self._move(table, TableTrigger.SPLIT_COMPLETE)
        self._finish(table, copy)

    def _finish(self, table: Table, copy: Copy) -> None:
        if table.phase is TablePhase.SNAPSHOTTING and copy.finished:
            self._move(table, TableTrigger.ALL_ADOPTED)

    def _cover(self, done: int, upto: LogOffset) -> None:
        for table in self._tables.values():
            if table.phase is TablePhase.CATCHING_UP and covers(self.copy_of(table.incarnation), done, upto):
                self._move(table, TableTrigger.COVERED)

    def _release(self, incarnation: Incarnation) -> None:
        table = self.current(incarnation)
        # A second release is harmless, also when the table has changed meanwhile.
        if table is None:
            return
        if table.phase is TablePhase.GONE:
            del self._tables[incarnation.table]
        elif table.phase is TablePhase.STREAMING:
            self._move(table, TableTrigger.LET_GO)
            table.copy = None


def covers(copy: Copy, done: int, upto: LogOffset) -> bool:
    """Whether, after a done epoch, no plan can ask for this copy's bounds and marks again."""
    return done >= copy.adopted_in and upto >= copy.high
