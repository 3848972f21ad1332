"""Fluss as the lake of a pipeline: an epoch's rows go into primary-key tables by upserts and deletes.

Fluss has no files to stage and no commit over several batches. So tasks stage the epoch's records, encoded and by bucket, as objects of the
state store, and the intent names them. To commit an entry is to put its records into their buckets, as batches in an order that the intent
decides.

    Laws. An intent holds the id of a writer, for each bucket the number of that writer's next batch there, and where the bucket's log
    ended. The server takes a writer's batches in the order of their numbers, each once: a put is a compare-and-set. To put a batch again
    that is there changes nothing, also for a driver that slept while a newer one continued. Before the first put, and again after every
    error, the sink asks how far each bucket's log has come: nothing of the epoch is there if it ends where the intent says; otherwise its
    last batch is one of this entry's, by writer and number, and what follows it is put. Any other last batch is another program's, and
    nothing is put. A log that ends before a batch that the server has answered lost rows, and nothing is put after them.

    Must never happen. A change of columns before all batches are there. A batch to a bucket before the one in front of it was answered.
    Taking away what a task staged while an intent that is not done names it.

    Memory. One staged object at a time (`writer.OBJECT_BYTES_MAX`, or one record), and a batch of it for each bucket.

A writer's id is the driver's own and lasts an hour: the server forgets writers, after a week unless it is told otherwise, and would then
refuse what follows. Fluss 0.9 may cut a log back by some seconds when all replicas of a bucket end uncleanly. See docs/decisions/0018.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import google_crc32c
import pyarrow as pa

from snowmelt import budgets
from snowmelt.budgets import RetryBudget
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Reshape, Staged
from snowmelt.errors import Corrupt, Fenced, InvalidConfig, OutcomeUnknown, SnowmeltError, SourceDrift, Unavailable, check
from snowmelt.fluss.answers import Node, OffsetKind, TableInfo
from snowmelt.fluss.client import connect_coordinator
from snowmelt.fluss.formats.types import read_schema
from snowmelt.fluss.formats.upserts import kv_batch
from snowmelt.fluss.rpc import NO_TABLE, NO_TABLE_OR_BUCKET, GoneFromFluss
from snowmelt.fluss.tables import NoLeader, describe_table
from snowmelt.fluss.tablets import Tablets
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.fluss import Bucket
from snowmelt.model.moment import TimeMs
from snowmelt.model.partition import Unit
from snowmelt.sinks.contract import Columns, Partition, TargetState
from snowmelt.sinks.fluss.errors import RowsLost, drift, other_kind, rows_lost
from snowmelt.sinks.fluss.links import Links, last_batch, table_path
from snowmelt.sinks.fluss.shape import bare_type, columns_of, misfit
from snowmelt.sinks.fluss.staging import BatchPiece, BucketCursor, Preface, StagedObject, StagedWork, object_folder, object_key
from snowmelt.sinks.fluss.writer import FlussWriter
from snowmelt.store.contract import Store
from snowmelt.store.objects import BucketAddress as StateBucket
from snowmelt.store.objects import open_store

_WRITER_S_MAX: Final = 3600.0
_PUT_MS: Final = 30_000
_ANEW_MAX: Final = 3
_NO_DATABASE: Final = 4
_AGAIN: Final = (
    "start again: the rows are put once more and come out right, but readers of the table's log may see changes twice or miss deletes;"
    " keep several replicas of tables"
)

Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Writing:
    """Of one driver, for one table: its writer, since when, and how many batches of it each bucket has."""

    table: int
    writer: int
    since_s: float
    next: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _KnownLogs:
    """What one driver knows of one table's logs. They never hold less, unless Fluss loses it."""

    ends: dict[int, int] = field(default_factory=dict)
    """Where each bucket's log ended at least: after a commit, and at the start."""
    writer: int | None = None
    taken: dict[int, int] = field(default_factory=dict)
    """The number after the last batch of this writer that each bucket's leader has answered."""

    def taken_of(self, writer: int) -> dict[int, int]:
        if writer != self.writer:
            self.writer, self.taken = writer, {}
        return self.taken


class FlussSink:
    """The tables of one cluster, as one pipeline sees them. To be opened in the process that uses it; one thread uses it."""

    empties: Final = False
    """Fluss can't take all rows out of a table."""
    partitions: Final = False
    at_once: Final = 1
    tags: Final = False
    """Its tables have no snapshots that readers could be led to by a name."""

    def __init__(
        self,
        target: FlussTarget,
        state: str | Path | StateBucket,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = target
        self._store: Store = open_store(state)
        self._clock = clock
        self._sleep = sleep
        self._links: Links | None = None
        self._writing: dict[str, _Writing] = {}
        self._known: dict[str, _KnownLogs] = {}
        self._over: dict[str, tuple[str, ...]] = {}
        """Per table the files of the entry that was committed last: they go when the next one is, since its intent waited for done."""

    def _repeated(self, act: Callable[[Links], Answer], *, budget: RetryBudget | None = None) -> Answer:
        """Everything here may be done again: what it finds tells how far it came."""
        budget, failures = budget or budgets.FLUSS_CALL, 0
        while True:
            try:
                if self._links is None:
                    self._links = Links(connect_coordinator(self._cluster.bootstrap, self._cluster.login))
                return act(self._links)
            except BaseException as error:
                self.close()
                # A tablet server learns of a new table after the coordinator.
                young = isinstance(error, GoneFromFluss) and error.code == NO_TABLE_OR_BUCKET
                failures += 1
                if budget.is_spent(failures) or not (young or isinstance(error, Unavailable | OutcomeUnknown | RowsLost)):
                    raise
            self._sleep(budget.pause_s(failures))

    def close(self) -> None:
        """Twice is fine; it opens again by itself."""
        if self._links is not None:
            self._links.close()
            self._links = None

    # ---- tables

    def exists(self, target: str) -> bool:
        def ask(links: Links) -> bool:
            try:
                links.coordinator.table_info(table_path(target))
            except GoneFromFluss as gone:
                if gone.code in (NO_TABLE, _NO_DATABASE):
                    return False
                raise
            return True

        return self._repeated(ask)

    def create(
        self, target: str, schema: pa.Schema, keys: Sequence[str], *, buckets: int, system: Columns = None, partition: Partition = None
    ) -> None:
        """Create a table of a source's columns. One that is there is left as it is, if rows can be brought into it."""
        if not keys or system:
            raise InvalidConfig("a Fluss table can't hold a table's history", detail=target, hint="leave out mode: changelog")
        if partition:
            raise InvalidConfig("tables of Fluss are not divided into partitions", detail=target, hint="leave out partition_by")
        columns = columns_of(target, schema)
        path = table_path(target)

        def make(links: Links) -> None:
            links.coordinator.create_database(path.database)
            links.coordinator.create_table(path, columns, keys, buckets=buckets, properties=self._cluster.properties())

        anew = 0 if self.exists(target) else _ANEW_MAX
        while True:
            self._repeated(make)
            found = self._described(target, ours=False)
            if list(found.primary_key) != list(keys):
                raise other_kind("another key", f"{target}: {list(found.primary_key)}, not {list(keys)}")
            try:
                self._repeated(partial(self._ends, target=target, info=found), budget=budgets.FLUSS_LEADERS if anew else None)
                return
            except NoLeader:
                if not anew:
                    raise
            # Of a table in a hundred Fluss 0.9's coordinator does not hear that it was made, and never chooses leaders for it. No writer
            # can have reached it.
            anew -= 1
            self._repeated(lambda links: links.coordinator.drop_table(path))

    def _described(self, target: str, *, ours: bool = True) -> TableInfo:
        """A table, if rows can be brought into it: ours are made so, others may be of any kind. `SourceDrift`: another program has made
        one of `ours` another; `InvalidConfig` of one that was found."""
        info = self._repeated(lambda links: links.coordinator.table_info(table_path(target)))
        if (wrong := misfit(info)) and ours:
            raise drift("another program made a Fluss table one of another kind", f"{target}: {wrong}")
        if wrong:
            hint = "name another table, or drop this one and let it be made anew"
            raise InvalidConfig("a Fluss table is of another kind than ours", detail=f"{target}: {wrong}", hint=hint)
        return info

    def _ends(self, links: Links, target: str, info: TableInfo) -> dict[int, int]:
        """Where the log of each bucket ends."""
        tablets = links.tablets_of(target)
        led: dict[Node, list[int]] = {}
        for number in range(info.buckets):
            led.setdefault(tablets.leader(Bucket(info.table, number)), []).append(number)
        ends: dict[int, int] = {}
        for node, numbers in led.items():
            found = tablets.client(node).offsets(info.table, None, numbers, OffsetKind.LATEST)
            ends |= {bucket.bucket: end for bucket, end in found.items()}
        return ends

    def columns(self, target: str) -> pa.Schema:
        info = self._described(target)
        return read_schema(info.schema, info.schema_json).arrow

    def identity(self, target: str) -> str:
        return self.describe(target).identity if self.exists(target) else ""

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
        """Readers of a table of Fluss keep its id, so no table is made anew under them."""
        raise InvalidConfig("a table of Fluss can't be made anew", detail=target, hint="give its source another target, with a new state")

    def describe(self, target: str) -> TargetState:
        """`TargetState.progress` is how much its logs hold together."""
        info = self._described(target)
        ends = self._repeated(lambda links: self._ends(links, target, info))
        return TargetState(str(info.table), info.buckets, info.schema, sum(ends.values()))

    def preface(self, target: str) -> tuple[bytes, ...]:
        """What an entry's messages begin with: its writer, and from where on."""
        info = self._described(target)
        path = table_path(target)

        def ask(links: Links) -> bytes:
            writing = self._writing.get(target)
            if writing is None or writing.table != info.table or self._clock() - writing.since_s > _WRITER_S_MAX:
                tablets = links.tablets_of(target)
                writer = tablets.client(tablets.leader(Bucket(info.table, 0))).init_writer(path)
                writing = self._writing[target] = _Writing(info.table, writer, self._clock())
            ends = self._ends(links, target, info)
            # A new writer's batch would be taken after any end.
            for bucket, known in self._known_of(target).ends.items():
                if ends.get(bucket, 0) < known:
                    raise rows_lost(target, bucket, ends.get(bucket, 0), known)
            return Preface(
                writing.writer, {bucket: BucketCursor(writing.next.get(bucket, 0), end) for bucket, end in ends.items()}
            ).encoded()

        return (self._repeated(ask),)

    def rescale(self, target: str, buckets: int) -> Reshape | None:
        raise InvalidConfig("a table of Fluss keeps its number of buckets", detail=target)

    def reshape(
        self,
        target: str,
        schema: pa.Schema,
        key: Sequence[str],
        renamed: Mapping[str, str] = MappingProxyType({}),
        *,
        emptied: bool = False,
    ) -> Reshape | None:
        """What has to change so that a table has a source's columns; None: nothing. Fluss adds columns after the others, and no more.
        `SourceDrift`: it can't have them."""
        info = self._described(target)
        table = read_schema(info.schema, info.schema_json)
        try:
            wanted = {column.name: column for column in columns_of(target, schema)}
        except InvalidConfig as error:
            # A source's statement did it, so it is one table's trouble and not the settings'.
            raise SourceDrift(error.fact, detail=error.detail, hint=error.hint) from error
        held = {column.name: column for column in table.columns}
        if list(info.primary_key) != list(key):
            raise drift("the key of a table was changed", f"{target}: from ({', '.join(info.primary_key)}) to ({', '.join(key)})")
        if renamed or (lost := sorted(held.keys() - wanted.keys())):
            names = ", ".join(renamed) if renamed else ", ".join(lost)
            raise drift("columns of a Fluss table can't be dropped or renamed", f"{target}: {names}")
        for name, column in held.items():
            if bare_type(column) != bare_type(wanted[name]):
                raise drift("the type of a Fluss table's column can't be changed", f"{target}.{name}")
        added = {name: column.type.json for name, column in wanted.items() if name not in held}
        if not added:
            return None
        return Reshape(info.schema, info.schema + 1, json.dumps({"id": info.schema + 1, "add": added}).encode())

    def check_start(self, target: str, ledger: Ledger) -> None:
        """Before a driver's first step: the logs hold what the store says was put, and nothing else."""
        if ledger.open is not None and any(entry.target == target for entry in ledger.open.entries):
            return
        expected = ledger.snapshots.get(target)
        if expected is None:
            return
        info = self._described(target)

        def look(links: Links) -> dict[int, int]:
            ends = self._ends(links, target, info)
            if (held := sum(ends.values())) == expected:
                return ends
            kind = RowsLost if held < expected else SourceDrift
            raise kind(
                "a Fluss table does not hold what the store says",
                detail=f"{target}: its logs end at {held} together, expected {expected}",
                hint="check for other writers, for a restored state, and for rows that Fluss lost; "
                "then start with a new state and other tables",
            )

        self._known_of(target).ends = self._repeated(look)

    def _known_of(self, target: str) -> _KnownLogs:
        return self._known.setdefault(target, _KnownLogs())

    # ---- writing, in a task

    def writer(self, target: str, prefix: str, *, at_once: bool = False) -> FlussWriter:
        table = self._repeated(lambda links: describe_table(links.coordinator, table_path(target)))
        self.close()
        return FlussWriter(target, prefix, table, self._store, at_once=at_once)

    # ---- committing

    def commit(self, intent: Intent, entry: Entry, watermark_ms: int | None = None) -> int:
        """Put an entry's batches into their buckets, each once, also if other drivers try the same. Returns how much the logs hold then."""
        work = StagedWork.of(entry)
        if over := self._over.pop(entry.target, ()):
            self.delete(entry.target, set(over).difference(entry.files))
        ends = self._repeated(lambda links: self._commit(links, entry, work))
        writing = self._writing.get(entry.target)
        if writing is not None and writing.writer == work.preface.writer:
            writing.next = {bucket: work.preface.places[bucket].sequence + count for bucket, count in work.batches().items()}
        self._known_of(entry.target).ends = ends
        self._over[entry.target] = entry.files
        return sum(ends.values())

    def let_go(self, kept: Container[str]) -> None:
        """Drop what this process holds of tables that are not in `kept`, and the files of their last entries. To be called when no epoch
        is open."""
        for target in [one for one in self._over if one not in kept]:
            self.delete(target, self._over.pop(target))
        self._writing = {target: writing for target, writing in self._writing.items() if target in kept}
        self._known = {target: known for target, known in self._known.items() if target in kept}

    def _commit(self, links: Links, entry: Entry, work: StagedWork) -> dict[int, int]:
        info = links.coordinator.table_info(table_path(entry.target))
        if (str(info.table), info.buckets) != (entry.uuid, entry.buckets):
            raise SourceDrift(
                "a Fluss table was made anew",
                detail=f"{entry.target}: {info.table} with {info.buckets} buckets, expected {entry.uuid} with {entry.buckets}",
                hint="begin anew with a new state and another table",
            )
        if info.schema not in (entry.schema, entry.new_schema):
            raise SourceDrift(
                "another program changed the schema of a Fluss table",
                detail=f"{entry.target} has {info.schema}, expected {entry.schema}",
            )
        there = self._there(links, entry, info, work)
        counts = work.batches()
        if there != counts:
            check(info.schema == entry.schema, "a Fluss table has an epoch's columns and not its rows", entry.target)
            tablets = links.tablets_of(entry.target)
            came = dict.fromkeys(counts, 0)
            for one in work.objects:
                self._put_object(tablets, entry, info, work.preface, one, there, came)
        self._change_columns(links, entry, info)
        return self._ends(links, entry.target, info)

    def _there(self, links: Links, entry: Entry, info: TableInfo, work: StagedWork) -> dict[int, int]:
        """How many of the entry's batches each bucket has: all that its leader has answered, or more."""
        there = self._in_logs(links, entry, info, work)
        taken = self._known_of(entry.target).taken_of(work.preface.writer)
        for number, came in there.items():
            first = work.preface.places[number].sequence
            if first + came < taken.get(number, first):
                # The rows may still be in what the server looks keys up in. Put again they would be updates instead of inserts in the log,
                # and a delete would not be there at all.
                raise rows_lost(entry.target, number, first + came, taken[number], "batches", _AGAIN)
        return there

    def _in_logs(self, links: Links, entry: Entry, info: TableInfo, work: StagedWork) -> dict[int, int]:
        tablets = links.tablets_of(entry.target)
        ends = self._ends(links, entry.target, info)
        there: dict[int, int] = {}
        for number, count in work.batches().items():
            place, end = work.preface.places[number], ends[number]
            there[number] = 0
            if end == place.end:
                continue
            if end < place.end:
                raise rows_lost(entry.target, number, end, place.end)
            bucket = Bucket(info.table, number)
            writer, sequence = last_batch(tablets.client(tablets.leader(bucket)), bucket, end)
            if writer != work.preface.writer or not place.sequence <= sequence < place.sequence + count:
                # A driver that slept comes here, too: the newer one has gone on.
                raise Fenced(
                    "another program has written to a Fluss table",
                    detail=f"{entry.target}, bucket {number}: the last batch is {sequence} of writer {writer}",
                    hint="a newer driver, if not another program; a table is one pipeline's",
                )
            there[number] = sequence - place.sequence + 1
        return there

    def _put_object(
        self,
        tablets: Tablets,
        entry: Entry,
        info: TableInfo,
        preface: Preface,
        one: StagedObject,
        there: Mapping[int, int],
        came: dict[int, int],
    ) -> None:
        """Put what of an object is not there. `came` counts the batches of each bucket that were seen so far."""
        waiting: dict[int, list[tuple[int, BatchPiece]]] = {}
        for piece in one.pieces:
            if came[piece.bucket] >= there[piece.bucket]:
                sequence = preface.places[piece.bucket].sequence + came[piece.bucket]
                waiting.setdefault(piece.bucket, []).append((sequence, piece))
            came[piece.bucket] += 1
        if not waiting:
            return
        data = memoryview(self._store.read(object_key(entry.target, one.name)))
        if google_crc32c.value(bytes(data)) != one.checksum:
            raise Corrupt("a staged object is damaged", detail=f"{entry.target}: {one.name}")
        taken = self._known_of(entry.target).taken_of(preface.writer)
        while waiting:
            # One batch of each bucket, by who leads them.
            requests: dict[Node, dict[int, bytes]] = {}
            sequences: dict[int, int] = {}
            for number in list(waiting):
                sequence, piece = waiting[number].pop(0)
                sequences[number] = sequence
                if not waiting[number]:
                    del waiting[number]
                records = data[piece.at : piece.at + piece.length]
                batch = kv_batch(records, piece.count, schema=one.schema, writer=preface.writer, sequence=sequence)
                requests.setdefault(tablets.leader(Bucket(info.table, number)), {})[number] = batch
            for node, batches in requests.items():
                answers = tablets.client(node).put_kv(info.table, batches, wait_ms=_PUT_MS)
                taken |= {number: sequences[number] + 1 for number, error in answers.items() if error is None}
                for error in answers.values():
                    if error is not None:
                        raise error

    def _change_columns(self, links: Links, entry: Entry, info: TableInfo) -> None:
        """The last act of an entry, once, also if other drivers do the same."""
        if entry.new_schema is None or info.schema == entry.new_schema:
            return
        added: dict[str, Any] = json.loads(entry.shape)["add"]
        refused: SnowmeltError | None = None
        try:
            links.coordinator.add_columns(table_path(entry.target), added)
        except (InvalidConfig, OutcomeUnknown) as error:
            # Who else was at it may have been first.
            refused = error
        now = links.coordinator.table_info(table_path(entry.target))
        held = {column.name: column.type.json for column in read_schema(now.schema, now.schema_json).columns}
        if now.schema == entry.new_schema and all(held.get(name) == kind for name, kind in added.items()):
            return
        if refused is not None and now.schema == entry.schema:
            raise refused
        raise SourceDrift("another program changed the schema of a Fluss table", detail=f"{entry.target} has {now.schema}")

    # ---- cleaning

    def staged(self, target: str) -> list[str]:
        return [name for name in self._store.names(object_folder(target)) if name.startswith("sm-")]

    def referenced(self, target: str) -> set[str]:
        """Nothing: what an epoch that is done has staged is in Fluss."""
        return set()

    def delete(self, target: str, names: Iterable[str]) -> None:
        self._store.delete([object_key(target, name) for name in names])

    def discard(self, target: str, staged: Staged) -> None:
        self.delete(target, staged.files)

    def tag(self, target: str, name: str, snapshot: int, identity: str) -> int:
        raise InvalidConfig("a table of Fluss has no tags", detail=target)

    def mark_done(self, target: str, unit: Unit, *, after_ms: TimeMs | None, upto_ms: TimeMs, now_ms: TimeMs) -> int:
        raise InvalidConfig("a table of Fluss has no partitions", detail=target)
