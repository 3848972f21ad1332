"""What every sink does, whatever it writes to. Only the rows that readers find are read in the sink's own way."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Reshape, Staged, StagedFor, StagedName
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.fluss.server import FlussServer
from snowmelt.fluss.target import FlussTarget
from snowmelt.model.partition import Unit
from snowmelt.model.table import DELETE, INSERT, KIND, TableId
from snowmelt.sinks.contract import SEQUENCE, Sink
from snowmelt.sinks.partitions import PartitionBy
from snowmelt.sinks.registry import open_reader, open_sink
from tests.kit.fluss_servers import Tables

COLUMNS = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])
WIDER = COLUMNS.append(pa.field("amount", pa.int64()))
KEY = ["id"]
KEYS = range(1, 10)
Row = tuple[int, str | None]
"""Without a name it is a delete."""
_numbers = itertools.count(1)


class Kind(ABC):
    """A sink of one kind, with a target that is not there yet. Each `driver` is one that another process would open."""

    taken: str
    """A name that no column of a source can have."""

    def __init__(self) -> None:
        self.target = f"sinks.behaviour{next(_numbers)}"

    @abstractmethod
    def driver(self) -> Sink: ...

    @abstractmethod
    def rows(self) -> Mapping[int, str]:
        """What readers find, of `KEYS`."""

    def made(self) -> Sink:
        sink = self.driver()
        sink.create(self.target, COLUMNS, KEY, buckets=2)
        return sink

    def stage(self, sink: Sink, epoch: int, *rows: Row) -> Staged:
        wanted = [*sink.columns(self.target), pa.field(KIND, pa.int8())]
        given = {
            "id": [key for key, _ in rows],
            "name": [name for _, name in rows],
            SEQUENCE: [2 * epoch] * len(rows),
            KIND: [DELETE if name is None else INSERT for _, name in rows],
        }
        arrays = [pa.array(given.get(field.name, [None] * len(rows)), field.type) for field in wanted]
        writer = sink.writer(self.target, str(StagedName(1, StagedFor.EPOCH, epoch, "a1", "")))
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(wanted)))
        return writer.finish()

    def intent(self, sink: Sink, epoch: int, *staged: Staged, reshape: Reshape | None = None) -> tuple[Intent, Entry]:
        state = sink.describe(self.target)
        messages = (*sink.preface(self.target), *(message for one in staged for message in one.messages))
        files = tuple(name for one in staged for name in one.files)
        previous = "1-a1" if state.progress else ""
        entry = Entry(
            target=self.target,
            uuid=state.identity,
            buckets=state.buckets,
            schema=state.schema,
            new_schema=None,
            base=state.progress,
            empties=(),
            files=files,
            messages=messages,
            previous=previous,
        )
        if reshape is not None:
            entry = replace(entry, new_schema=reshape.schema, shape=reshape.content)
        return Intent(
            epoch=epoch,
            generation=1,
            nonce="a1",
            after=epoch - 1,
            upto=epoch,
            time_ms=None,
            facts=(),
            entries=(entry,),
            sequence_max=2 * epoch,
            segment=0,
        ), entry

    def bring(self, sink: Sink, epoch: int, *rows: Row) -> int:
        return sink.commit(*self.intent(sink, epoch, self.stage(sink, epoch, *rows)))


class OfPaimon(Kind):
    taken = SEQUENCE

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def driver(self) -> Sink:
        return open_sink(str(self._folder / "lake"), None, user="behaviour", state=self._folder / "state")

    def rows(self) -> Mapping[int, str]:
        lake = open_reader(str(self._folder / "lake"), user="reader")
        newest = lake.newest(self.target)
        batches = lake.read(self.target, newest, ["id", "name"], lake.shares(self.target, newest)) if newest else ()
        return {key: name for batch in batches for key, name in zip(*(column.to_pylist() for column in batch.columns), strict=True)}


class OfFluss(Kind):
    taken = "__offset"

    def __init__(self, server: FlussServer, tables: Tables, folder: Path) -> None:
        super().__init__()
        self._server, self._tables, self._folder = server, tables, folder

    def driver(self) -> Sink:
        return open_sink("", FlussTarget(self._server.bootstrap), user="behaviour", state=self._folder)

    def rows(self) -> Mapping[int, str]:
        database, _, name = self.target.partition(".")
        found = self._tables.lookup(TableId(database, name), [{"id": key} for key in KEYS])
        return {row["id"]: row["name"] for row in found if row is not None}


@pytest.fixture(params=["paimon", "fluss"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "paimon":
        return OfPaimon(tmp_path)
    return OfFluss(request.getfixturevalue("fluss"), request.getfixturevalue("fluss_tables"), tmp_path)


def test_a_target_is_made_once_and_begins_with_nothing(kind: Kind) -> None:
    sink = kind.driver()
    assert not sink.exists(kind.target)
    sink.create(kind.target, COLUMNS, KEY, buckets=2)
    state = sink.describe(kind.target)
    assert sink.exists(kind.target)
    assert (state.buckets, state.progress) == (2, 0)
    assert kind.rows() == {}
    kind.driver().create(kind.target, COLUMNS, KEY, buckets=2)
    assert kind.driver().describe(kind.target) == state


def test_a_target_of_other_columns_or_another_key_is_refused_and_left_as_it_is(kind: Kind) -> None:
    sink = kind.made()
    state = sink.describe(kind.target)
    other = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("name", pa.string())])
    with pytest.raises(InvalidConfig):
        sink.create(kind.target, other, KEY, buckets=2)
    with pytest.raises(InvalidConfig):
        sink.create(kind.target, COLUMNS, ["id", "name"], buckets=2)
    assert sink.describe(kind.target) == state


def test_staged_rows_are_seen_by_nobody_before_they_are_committed(kind: Kind) -> None:
    sink = kind.made()
    staged = kind.stage(sink, 1, (1, "a"))
    assert staged.rows == 1
    assert kind.rows() == {}
    assert sink.describe(kind.target).progress == 0
    sink.commit(*kind.intent(sink, 1, staged))
    assert kind.rows() == {1: "a"}


def test_rows_are_by_key_and_a_delete_takes_its_row_away(kind: Kind) -> None:
    sink = kind.made()
    first = kind.bring(sink, 1, (1, "a"), (2, "b"), (3, "c"))
    second = kind.bring(sink, 2, (2, None), (3, "d"))
    assert kind.rows() == {1: "a", 3: "d"}
    assert 0 < first < second
    assert kind.driver().describe(kind.target).progress == second


def test_an_epoch_that_is_committed_again_by_any_driver_changes_nothing(kind: Kind) -> None:
    sink = kind.made()
    first = kind.intent(sink, 1, kind.stage(sink, 1, (1, "a"), (2, "b")))
    answered = sink.commit(*first)
    assert sink.commit(*first) == answered
    assert kind.driver().commit(*first) == answered
    assert kind.rows() == {1: "a", 2: "b"}
    assert kind.driver().describe(kind.target).progress == answered


def test_an_entry_for_another_target_of_this_name_is_refused(kind: Kind) -> None:
    sink = kind.made()
    intent, entry = kind.intent(sink, 1, kind.stage(sink, 1, (1, "a")))
    with pytest.raises(SourceDrift):
        kind.driver().commit(intent, replace(entry, uuid="4711"))
    assert kind.rows() == {}


def test_a_column_that_is_added_comes_with_its_epoch_once(kind: Kind) -> None:
    sink = kind.made()
    kind.bring(sink, 1, (1, "a"))
    assert sink.reshape(kind.target, COLUMNS, KEY) is None
    change = sink.reshape(kind.target, WIDER, KEY)
    assert change is not None
    assert change.expected == sink.describe(kind.target).schema
    assert "amount" not in sink.columns(kind.target).names, "asking changes nothing"
    intent = kind.intent(sink, 2, reshape=change)
    sink.commit(*intent)
    kind.driver().commit(*intent)
    assert sink.describe(kind.target).schema == change.schema
    assert "amount" in kind.driver().columns(kind.target).names
    assert kind.driver().reshape(kind.target, WIDER, KEY) is None
    kind.bring(kind.driver(), 3, (2, "b"))
    assert kind.rows() == {1: "a", 2: "b"}


def test_another_key_can_not_be_had_by_a_change_of_schema(kind: Kind) -> None:
    sink = kind.made()
    with pytest.raises(SourceDrift):
        sink.reshape(kind.target, COLUMNS, ["name"])


def test_a_column_that_no_target_of_this_kind_can_have_is_one_tables_trouble(kind: Kind) -> None:
    """A statement of the source brings it, and must not end the pipeline as wrong settings do."""
    sink = kind.made()
    with pytest.raises(SourceDrift, match=kind.taken):
        sink.reshape(kind.target, COLUMNS.append(pa.field(kind.taken, pa.int64())), KEY)
    with pytest.raises(SourceDrift, match="odd"):
        sink.reshape(kind.target, COLUMNS.append(pa.field("odd", pa.month_day_nano_interval())), KEY)


def test_no_driver_starts_where_the_target_has_more_than_the_store_knows(kind: Kind) -> None:
    sink = kind.made()
    kind.driver().check_start(kind.target, Ledger())
    kind.bring(sink, 1, (1, "a"))
    behind = Ledger()
    behind.snapshots[kind.target] = 0
    with pytest.raises(SourceDrift):
        kind.driver().check_start(kind.target, behind)


def test_what_a_writer_left_is_deleted_by_name_and_twice_is_fine(kind: Kind) -> None:
    sink = kind.made()
    kept, left = kind.stage(sink, 1, (1, "a")), kind.stage(sink, 2, (2, "b"))
    assert {*kept.files, *left.files} <= set(sink.staged(kind.target))
    kind.driver().delete(kind.target, left.files)
    kind.driver().delete(kind.target, left.files)
    assert set(left.files).isdisjoint(sink.staged(kind.target))
    another = kind.stage(sink, 3, (3, "c"))
    kind.driver().discard(kind.target, another)
    kind.driver().discard(kind.target, another)
    assert set(another.files).isdisjoint(sink.staged(kind.target))
    sink.commit(*kind.intent(sink, 1, kept))
    assert kind.rows() == {1: "a"}


def test_what_a_process_holds_of_a_target_can_be_let_go_of_at_any_time(kind: Kind) -> None:
    sink = kind.made()
    kind.bring(sink, 1, (1, "a"))
    sink.let_go(())
    kind.bring(sink, 2, (2, "b"))
    sink.let_go({kind.target})
    kind.bring(sink, 3, (1, None))
    assert kind.rows() == {2: "b"}


def test_a_target_is_made_anew_without_its_rows_or_is_left_as_it_is(kind: Kind) -> None:
    sink = kind.made()
    kind.bring(sink, 1, (1, "a"))
    before = sink.describe(kind.target)
    try:
        sink.remake(kind.target, WIDER, KEY, buckets=2, identity=sink.identity(kind.target))
    except InvalidConfig:
        assert sink.describe(kind.target) == before
        assert kind.rows() == {1: "a"}
    else:
        assert sink.describe(kind.target).identity != before.identity
        assert kind.rows() == {}


def test_a_sink_that_says_that_it_empties_does_so_in_one_entry_with_what_follows(kind: Kind) -> None:
    sink = kind.made()
    kind.bring(sink, 1, (1, "a"), (2, "b"))
    if not sink.empties:
        return
    intent, entry = kind.intent(sink, 2, kind.stage(sink, 2, (3, "c")))
    entry = replace(entry, empties=("shop.t",))
    sink.commit(replace(intent, entries=(entry,)), entry)
    assert kind.rows() == {3: "c"}


def test_a_sink_that_says_that_it_has_partitions_divides_its_tables(kind: Kind) -> None:
    sink, partition = kind.driver(), PartitionBy.read("name:value")
    if not sink.partitions:
        with pytest.raises(InvalidConfig, match="not divided"):
            sink.create(kind.target, COLUMNS, KEY, buckets=2, partition=partition)
        with pytest.raises(InvalidConfig, match="no partitions"):
            sink.mark_done(kind.target, Unit.DAY, after_ms=None, upto_ms=1, now_ms=1)
        return
    sink.create(kind.target, COLUMNS, KEY, buckets=2, partition=partition)
    assert sink.describe(kind.target).partition == partition
    with pytest.raises(InvalidConfig, match="other partitions"):
        sink.create(kind.target, COLUMNS, KEY, buckets=2)
    with pytest.raises(InvalidConfig, match="is not partitioned by day"):
        sink.mark_done(kind.target, Unit.DAY, after_ms=None, upto_ms=1, now_ms=1)


def test_a_sink_that_says_that_it_tags_gives_a_name_once(kind: Kind) -> None:
    sink = kind.made()
    first = kind.bring(sink, 1, (1, "a"))
    if not sink.tags:
        with pytest.raises(InvalidConfig, match="has no tags"):
            sink.tag(kind.target, "2026-11-17", first, "1-a1")
        return
    assert sink.tag(kind.target, "2026-11-17", first, "1-a1") == first
    second = kind.bring(sink, 2, (2, "b"))
    assert kind.driver().tag(kind.target, "2026-11-17", second, "1-a1") == first, "a name stays where it was given"
    assert sink.tag(kind.target, "2026-11-18T05", second, "1-a1") == second
    for snapshot, mark in ((second, "1-another"), (second + 1, "1-a1")):
        with pytest.raises(SourceDrift, match="a lake snapshot that was to be tagged is gone"):
            sink.tag(kind.target, "2026-11-19", snapshot, mark)


def test_a_sink_that_changes_the_number_of_buckets_says_how_and_touches_nothing(kind: Kind) -> None:
    sink = kind.made()
    kind.bring(sink, 1, (1, "a"))
    before = sink.describe(kind.target)
    try:
        change = sink.rescale(kind.target, 5)
    except InvalidConfig:
        assert sink.describe(kind.target) == before
        return
    assert change is not None
    assert (change.expected, change.schema) == (before.schema, before.schema + 1)
    assert sink.rescale(kind.target, 2) is None
    assert sink.describe(kind.target) == before
