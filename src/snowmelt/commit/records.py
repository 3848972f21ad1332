"""The records of an epoch: its intent and its done record. And the names of staged files.

An intent alone makes things true. What it says of tables and chunks, and which files it brings to which lake table, is epoch `n` for
ever, whichever driver wrote it and whichever driver rolls it forward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from snowmelt.errors import Corrupt
from snowmelt.model import sequence
from snowmelt.model.moment import TimeMs
from snowmelt.model.numbers import NO_GENERATION, EpochNumber, GenerationNumber, LogOffset, SequenceNumber
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an epoch does to one lake table, in this order: empty it, add files, change the schema."""

    target: str
    uuid: str
    """The lake table's. A table that was dropped and created again has another."""
    buckets: int
    schema: int
    """The lake table's schema number before the entry."""
    new_schema: int | None
    """The change of schema comes after everything else."""
    base: int
    """The newest lake snapshot when the intent was written."""
    empties: tuple[str, ...]
    """The source table whose rows are removed. A lake table has one source, so these are all rows that it has."""
    files: tuple[str, ...]
    """First the files of chunks, then those of the log by range: a streaming reader of the lake sees them in this order."""
    messages: tuple[bytes, ...] = ()
    """What the lake's own commit needs to know of these files, in the lake's own form."""
    previous: str = ""
    """The intent of our last commit in this table, as in `Ledger.last_commits`; empty before the first."""
    shape: bytes = b""
    """The content of `new_schema`, in the lake's own form: any driver that rolls the intent forward creates exactly this. Empty without a
    change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Epoch `epoch`, with the log range (after, upto]."""

    epoch: EpochNumber
    generation: GenerationNumber
    nonce: str
    after: LogOffset
    upto: LogOffset
    time_ms: TimeMs | None
    """When the last transaction up to `upto` was committed; None before the first."""
    facts: tuple[Durable, ...]
    entries: tuple[Entry, ...]
    sequence_max: SequenceNumber
    """No row of this or an earlier epoch has a greater `_seq`."""
    segment: int
    """The number of the relay's record that holds `upto`: a takeover reads the chain from it, without a listing."""

    @property
    def identity(self) -> str:
        """Differs for any two intents ever written for one number. The lake's commit of the epoch carries it."""
        return f"{self.generation}-{self.nonce}"

    @property
    def overlaps(self) -> bool:
        """Whether the next epoch may be staged before this one is done. It must not where a table is emptied or changes its schema."""
        return not any(entry.empties or entry.new_schema is not None for entry in self.entries)


def intent_of(plan: EpochPlan, *, nonce: str, time_ms: int | None, entries: tuple[Entry, ...], segment: int) -> Intent:
    """The intent of a plan whose tasks have answered: exactly the plan, and what was staged for it."""
    return Intent(
        epoch=plan.epoch,
        generation=plan.generation,
        nonce=nonce,
        after=plan.after,
        upto=plan.upto,
        time_ms=time_ms,
        facts=plan.facts,
        entries=entries,
        sequence_max=sequence.of_chunk(plan.upto),
        segment=segment,
    )


@dataclass(frozen=True, slots=True)
class Committed:
    """An epoch is in a lake table as this snapshot, or an earlier one that holds it too."""

    target: str
    snapshot: int


@dataclass(frozen=True, slots=True)
class Watermark:
    target: str
    time_ms: TimeMs


@dataclass(frozen=True, slots=True)
class Done:
    """Epoch `epoch` is in every lake table, and every listener ran. The snapshots are one consistent cut over the tables."""

    epoch: EpochNumber
    identity: str
    snapshots: tuple[Committed, ...]
    listeners: str
    """The listeners' state."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a writer staged, for the intent."""

    files: tuple[str, ...]
    messages: tuple[bytes, ...]
    rows: int
    places: tuple[str, ...] = ()
    """The bucket of each file (`maintenance.compaction.name_place`); empty where the sink has none."""


def generation_of(identity: str) -> GenerationNumber:
    """The driver that wrote the intent of this identity; 0: there is none."""
    return GenerationNumber(int(identity.partition("-")[0])) if identity else NO_GENERATION


@dataclass(frozen=True, slots=True)
class Reshape:
    """A change of a lake table's schema, for the intent."""

    expected: int
    """The table's schema number now, and still when the change is made."""
    schema: int
    """The next one."""
    content: bytes
    """Its content, in the lake's own form."""


_NAME = re.compile(r"sm-([0-9]{1,18})-([ecr])([0-9]{1,18})-([a-z0-9]{1,64})-([A-Za-z0-9_.-]{1,200})")


class StagedFor(Enum):
    """What staged files wait for."""

    EPOCH = "e"
    CHUNK = "c"
    """Its adoption, by any later epoch."""
    REWRITE = "r"
    """To take the place of files that the table has (`maintenance`). An intent names it only if it is of another number of buckets."""


@dataclass(frozen=True, slots=True)
class StagedName:
    """The name of a file that a task staged. The name alone tells which job it is of."""

    generation: GenerationNumber
    waits_for: StagedFor
    number: int
    """The epoch; or the job, by the driver's count of its kind."""
    nonce: str
    rest: str

    def __str__(self) -> str:
        return f"sm-{self.generation}-{self.waits_for.value}{self.number}-{self.nonce}-{self.rest}"

    @staticmethod
    def parse(name: str) -> StagedName:
        match = _NAME.fullmatch(name)
        if match is None:
            raise Corrupt("not the name of a staged file", detail=repr(name))
        return StagedName(GenerationNumber(int(match[1])), StagedFor(match[2]), int(match[3]), match[4], match[5])
