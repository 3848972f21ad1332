"""What an epoch leaves in the store: its intent and that it is done. And how staged files are named.

An intent is the only thing that makes anything true. What it says of tables and chunks, and which files it brings to which
lake table, is epoch `n` for ever, whoever wrote it and whoever rolls it forward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.errors import Corrupt
from snowmelt.model import sequence
from snowmelt.model.moment import TimeMs
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What an epoch does to one lake table, in this order: empty it, add files, change the schema."""

    target: str
    uuid: str
    """Of the lake table. One that was dropped and made again has another."""
    buckets: int
    schema: int
    """Of the lake table, before."""
    new_schema: int | None
    """Behind everything else."""
    base: int
    """The newest lake snapshot when the intent was written."""
    empties: tuple[str, ...]
    """The source table whose rows go. A lake table has one source, so these are all that it has."""
    files: tuple[str, ...]
    """Those of chunks first, then those of the log by range: a streaming reader of the lake sees them in this order."""
    messages: tuple[bytes, ...] = ()
    """What the lake's own commit wants to know of these files, in the lake's own form."""
    previous: str = ""
    """The intent whose commit is the last of ours in this table, as `Ledger.last_commits` has it; empty before the first."""
    shape: bytes = b""
    """What `new_schema` is to be, in the lake's own form: whoever rolls the intent forward makes exactly this. Empty without a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Epoch `epoch`, with the log range (after, upto]."""

    epoch: int
    generation: int
    nonce: str
    after: int
    upto: int
    time_ms: TimeMs | None
    """When the last transaction up to `upto` was committed; None before the first."""
    facts: tuple[Durable, ...]
    entries: tuple[Entry, ...]
    sequence_max: int
    """No row of this or an earlier epoch has a greater `_seq`."""
    segment: int
    """The number of the relay's record that holds `upto`: a take-over finds the chain from here on, without a listing."""

    @property
    def identity(self) -> str:
        """Tells this intent from any other that was ever written for its number. It goes into the lake with the epoch."""
        return f"{self.generation}-{self.nonce}"

    @property
    def overlaps(self) -> bool:
        """Whether the next epoch may be staged before this one is done: not where a table is emptied or changes its schema."""
        return not any(entry.empties or entry.new_schema is not None for entry in self.entries)


def intent_of(plan: EpochPlan, *, nonce: str, time_ms: int | None, entries: tuple[Entry, ...], segment: int) -> Intent:
    """What a plan becomes when its tasks have answered: exactly what it says, and what was staged for it."""
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
    """Epoch `epoch` is in every lake table and was heard by every listener. The snapshots are one consistent cut over the tables."""

    epoch: int
    identity: str
    snapshots: tuple[Committed, ...]
    listeners: str
    """The listeners' own state."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a writer left behind, for the intent."""

    files: tuple[str, ...]
    messages: tuple[bytes, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Reshape:
    """A change of a lake table's schema, for the intent."""

    expected: int
    """The schema that the table has, and has to have still when the change is made."""
    schema: int
    """The one behind it."""
    content: bytes
    """What that is, in the lake's own form."""


_NAME = re.compile(r"sm-([0-9]{1,18})-([ec])([0-9]{1,18})-([a-z0-9]{1,64})-([A-Za-z0-9_.-]{1,200})")


@dataclass(frozen=True, slots=True)
class StagedName:
    """The name of a file that a task staged: whose it is can be told from it alone."""

    generation: int
    chunk: bool
    number: int
    """The epoch, or the chunk job: a chunk is adopted by whichever epoch comes to it."""
    nonce: str
    rest: str

    def __str__(self) -> str:
        return f"sm-{self.generation}-{'c' if self.chunk else 'e'}{self.number}-{self.nonce}-{self.rest}"

    @staticmethod
    def parse(name: str) -> StagedName:
        match = _NAME.fullmatch(name)
        if match is None:
            raise Corrupt("not the name of a staged file", detail=repr(name))
        return StagedName(int(match[1]), match[2] == "c", int(match[3]), match[4], match[5])
