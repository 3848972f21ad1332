"""What the engine asks of the tables that a pipeline brings rows to, in a lake or in Fluss.

The engine knows no more of a sink than this. What a row is, what an intent says and who may act is the same for all of them; they differ in
how an entry reaches its table once (`lakes.paimon`, `fluss.sink`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Reshape, Staged
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import FlussTarget
from snowmelt.lakes.paimon import PaimonLake
from snowmelt.lakes.warehouse import Warehouse
from snowmelt.store.objects import Bucket


class Writer(Protocol):
    """Writes rows of one table, in a task. `finish` once; what an abandoned one leaves behind is the cleaner's."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of their changes, `_seq` and the kind included. After an error nothing is left to be done with it."""
        ...

    def finish(self) -> Staged:
        """What was written is durable, and true once an intent names it."""
        ...


class Lake(Protocol):
    """The tables that one pipeline writes. To be opened in the process that uses it. Everything may be done twice, and what a method has
    answered is durable. `Unavailable` and `OutcomeUnknown` pass, `Fenced` and `SourceDrift` stop."""

    @property
    def empties(self) -> bool:
        """Whether all rows of a table can be taken out of it in one entry."""
        ...

    def exists(self, target: str) -> bool: ...

    def create(self, target: str, schema: pa.Schema, keys: Sequence[str], *, buckets: int, system: pa.Schema | None = None) -> None:
        """One that is there is left as it is, if rows of these columns can be brought into it."""
        ...

    def remake(self, target: str, schema: pa.Schema, keys: Sequence[str], *, buckets: int, system: pa.Schema | None = None) -> None:
        """Make one of this pipeline's tables anew, without its rows and with another identity. Not atomic: what the caller relies on
        until then must not be this table. `InvalidConfig`: that can't be, and nothing was touched."""
        ...

    def columns(self, target: str) -> pa.Schema:
        """All that it has now, in the order that its writers want."""
        ...

    def standing(self, target: str) -> tuple[str, int, int, int]:
        """What an intent holds of a table: its identity, number of buckets, schema, and how far it has come; 0 is nowhere."""
        ...

    def preface(self, target: str) -> tuple[bytes, ...]:
        """What an entry's messages begin with, before those of its writers. Asked when no entry of the table is open."""
        ...

    def reshape(
        self, target: str, schema: pa.Schema, key: Sequence[str], renamed: Mapping[str, str] = ..., *, emptied: bool = False
    ) -> Reshape | None:
        """What has to change so that a table has a source's columns. Touches nothing. `SourceDrift`: that can't be."""
        ...

    def check_start(self, target: str, ledger: Ledger) -> None:
        """Before a driver's first step: the table must not know more than the store. `SourceDrift`."""
        ...

    def writer(self, target: str, prefix: str, *, at_once: bool = False) -> Writer:
        """Its files are named `prefix` and something. `at_once`: `write` puts all rows into files and holds none; otherwise the writer
        holds rows, within a bound of its own, until they are worth a file."""
        ...

    def commit(self, intent: Intent, entry: Entry, watermark_ms: int | None = None) -> int:
        """Bring an entry into its table, once, whoever else tries the same, now or later. Returns how far the table has come with it.
        `watermark_ms` (`commit.watermarks`) follows from the intent and what was done before it; a sink that can keep it does."""
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
        """Delete what a writer left behind, without a listing. Absent files are fine."""
        ...


def open_lake(warehouse: str | Warehouse, fluss: FlussTarget | None, *, user: str, state: Path | Bucket) -> Lake:
    if fluss is None:
        return PaimonLake(warehouse, user=user)
    # What it needs is installed where it is used.
    try:
        from snowmelt.fluss.sink import FlussLake
    except ImportError as error:
        raise InvalidConfig("what Fluss needs is not installed", detail=error.name or "", hint="pip install 'snowmelt[fluss]'") from error
    return FlussLake(fluss, state)
