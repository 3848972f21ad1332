"""What the engine, verify and programs may know of the tables that a pipeline writes.

A *sink* is where a pipeline's tables are; a *target* is one table in it. What a row is, what an intent says and which driver may act is the
same for all sinks. They differ in how an entry reaches its table exactly once (`sinks.paimon`, `sinks.fluss`), and they state what they
can do (`Sink.empties`, `Sink.tags`, `Sink.partitions`, `Sink.at_once`). `sinks.registry` opens them; nothing else names one of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Reshape, Staged
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit
from snowmelt.sinks.partitions import PartitionBy

Columns: TypeAlias = Any
"""`pa.Schema | None`: columns of ours in a target, besides those of the source; None: none."""
Partition: TypeAlias = PartitionBy | None
"""How a target is divided; None: not at all."""

SEQUENCE: Final = "_seq"
"""The column that orders the rows of a key, in every target."""


def target_columns(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """A source's columns in a target: all but the key may be NULL, as a delete has no values."""
    return pa.schema([field.with_nullable(field.name not in key) for field in schema])


@dataclass(frozen=True, slots=True)
class TargetState:
    """What an intent holds of a target. An entry is committed only to a target that still has this identity, bucket count and schema."""

    identity: str
    buckets: int
    schema: int
    progress: int
    """How far the target has come: its newest snapshot, or the size of its logs. 0: nothing was ever committed."""
    partition: Partition = None
    """How it is divided. That stays as it was made."""


class SinkWriter(Protocol):
    """Writes rows of one target, in a task. Call `finish` once. The cleaner deletes what an abandoned writer leaves."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, `_seq` and the kind included. After an error nothing is left to be done with it."""
        ...

    def finish(self) -> Staged:
        """What was written is durable, and true once an intent names it."""
        ...


class Sink(Protocol):
    """The tables that one pipeline writes. Open it in the process that uses it: nothing of it crosses to another. Each method may be called
    twice, and what it has answered is durable. Retry `Unavailable`; read back after `OutcomeUnknown`; stop on `Fenced` and `SourceDrift`.
    A sink holds in memory what one call needs, and of each target at most a few numbers (`let_go`)."""

    @property
    def empties(self) -> bool:
        """Whether all rows of a table can be taken out of it in one entry."""
        ...

    @property
    def tags(self) -> bool:
        """Whether a snapshot of a table can be given a name (`tag`)."""
        ...

    @property
    def partitions(self) -> bool:
        """Whether a target can be divided (`PartitionBy`)."""
        ...

    @property
    def at_once(self) -> int:
        """How many threads may call its methods at the same time, each for another target: no more than that helps. 1: only one thread
        may use it."""
        ...

    def exists(self, target: str) -> bool: ...

    def create(
        self, target: str, schema: pa.Schema, keys: Sequence[str], *, buckets: int, system: Columns = None, partition: Partition = None
    ) -> None:
        """One that is there is left as it is, if rows of these columns can be brought into it, and it is divided so. `keys`: the source's.
        The column of a partition that the source lacks stands after the source's columns."""
        ...

    def identity(self, target: str) -> str:
        """That of the target as it is now, empty if there is none. `InvalidConfig`: it is damaged, and can't be told from others."""
        ...

    def remake(
        self,
        target: str,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        buckets: int,
        identity: str,
        system: Columns = None,
        partition: Partition = None,
    ) -> None:
        """Make one of this pipeline's tables anew, without its rows and with another identity. Not atomic: what the caller relies on
        until then must not be this table. `InvalidConfig`: that can't be, and nothing was touched. `SourceDrift`: the target is not the
        table of this `identity` any more, and was left as it is, however long this call took."""
        ...

    def columns(self, target: str) -> pa.Schema:
        """All that it has now, in the order that its writers want."""
        ...

    def describe(self, target: str) -> TargetState:
        """The target as it is now. `SourceDrift`: it is not a table that this sink could have made."""
        ...

    def preface(self, target: str) -> tuple[bytes, ...]:
        """What an entry's messages begin with, before those of its writers. Asked when no entry of the table is open."""
        ...

    def reshape(
        self, target: str, schema: pa.Schema, key: Sequence[str], renamed: Mapping[str, str] = ..., *, emptied: bool = False
    ) -> Reshape | None:
        """What has to change so that a table has a source's columns. Touches nothing. `key`: the source's. `SourceDrift`: that can't be."""
        ...

    def rescale(self, target: str, buckets: int) -> Reshape | None:
        """What has to change so that a table has this number of buckets; None: nothing. Touches nothing. The entry of it empties the table
        and brings all rows of its base anew. `InvalidConfig`: that can't be."""
        ...

    def check_start(self, target: str, ledger: Ledger) -> None:
        """Before a driver's first step: the table must not know more than the store. `SourceDrift`."""
        ...

    def writer(self, target: str, prefix: str, *, at_once: bool = False) -> SinkWriter:
        """Its files are named `prefix` and something. `at_once`: `write` puts all rows into files and holds none; otherwise the writer
        holds rows, within a bound of its own, until they are worth a file."""
        ...

    def commit(self, intent: Intent, entry: Entry, watermark_ms: int | None = None) -> int:
        """Bring an entry into its table, once, also if other drivers try the same, now or later. Returns how far the table has come with
        it. `watermark_ms` (`commit.watermarks`) follows from the intent and what was done before it; a sink that can keep it does."""
        ...

    def tag(self, target: str, name: str, snapshot: int, identity: str) -> int:
        """Give a snapshot a name, by which readers find it and which keeps it from expiry. Returns the snapshot that has the name: another
        one if the name was given before, which stays. `identity`: of the intent whose commit made it. `SourceDrift`: the table
        has no such snapshot, any more or at all. `InvalidConfig`: this sink has no tags."""
        ...

    def mark_done(self, target: str, unit: Unit, *, after_ms: TimeMs | None, upto_ms: TimeMs, now_ms: TimeMs) -> int:
        """Mark the partitions of a target, which is divided by this unit of time, whose periods ended after one moment (None: all before,
        too) and up to another. One that is marked stays as it is. Returns how many were marked. `InvalidConfig`: it is not divided so."""
        ...

    def let_go(self, kept: Container[str]) -> None:
        """Drop what this process holds in memory of tables that are not in `kept`. No table is touched."""
        ...

    def staged(self, target: str) -> list[str]:
        """Every file of ours that exists for a table, by name."""
        ...

    def referenced(self, target: str) -> set[str]:
        """Those that the table needs, besides those that an open intent names."""
        ...

    def delete(self, target: str, names: Iterable[str]) -> None:
        """Absent ones are fine."""
        ...

    def discard(self, target: str, staged: Staged) -> None:
        """Delete what a writer has left, without a listing. Absent files are fine."""
        ...


@dataclass(frozen=True, slots=True)
class ReadShare:
    """A part of one bucket's files that can be read alone."""

    partition: tuple[Any, ...]
    bucket: int
    split: bytes
    """In the lake's own form."""


class LakeReader(Protocol):
    """Reads lake tables of any pipeline, at a snapshot. Changes nothing. Open it in the process that uses it."""

    def exists(self, target: str) -> bool: ...

    def columns(self, target: str) -> pa.Schema:
        """All columns that a table has now, `_seq` and other system columns included."""
        ...

    def altered(self, target: str) -> bool:
        """Whether its columns were ever changed."""
        ...

    def newest(self, target: str) -> int:
        """Its newest snapshot, 0 if it has none."""
        ...

    def shares(self, target: str, snapshot: int) -> list[ReadShare]:
        """What there is to read of a snapshot, for tasks to `read`. `SourceDrift`: there is no such snapshot any more."""
        ...

    def read(self, target: str, snapshot: int, names: Sequence[str], shares: Iterable[ReadShare]) -> Iterator[pa.RecordBatch]:
        """The rows of some shares, with these columns; one that was added since is NULL in older rows. `Unavailable`: a file is gone."""
        ...
