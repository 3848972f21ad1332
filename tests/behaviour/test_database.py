"""What the engine may rely on of a database (`databases/contract`), over every database."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from snowmelt.databases.contract import Database
from snowmelt.databases.contract.changes import DELETED, INSERTED, UPDATE_AFTER, UPDATE_BEFORE
from snowmelt.databases.contract.findings import NO_KEY, TableFinding
from snowmelt.databases.contract.stretches import SegmentSlice
from snowmelt.databases.contract.tables import KeyRange
from snowmelt.errors import InvalidConfig, SnowmeltError, SourceDrift, Unavailable
from snowmelt.model.table import TableId
from snowmelt.relay.flow import Flow
from snowmelt.relay.retention import Effect
from snowmelt.segments import Segment, read_segment
from tests.integration.running import repeated
from tests.kit.databases import ROWS, ChangedRow, MySqlKind, Row, SmallKind, Source, changed_rows, number_line, rows_of
from tests.kit.servers import Server
from tests.kit.small import mistakes

NEW_ROWS = [(number, f"new {number}") for number in range(ROWS + 1, ROWS + 6)]


@pytest.fixture(params=["mariadb", "mysql8", "mysql56", "small"])
def source(request: pytest.FixtureRequest, database: Callable[[Server], str], tmp_path: Path) -> Source:
    if request.param == "small":
        return SmallKind(tmp_path)
    server: Server = request.getfixturevalue(request.param)
    return MySqlKind(server, database(server), tmp_path)


def ids(batches: list[pa.RecordBatch]) -> list[Any]:
    return sorted(row[0] for row in rows_of(batches))


def whole(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


# ---- tables


def test_a_database_and_its_shapes_survive_the_way_to_a_task(source: Source) -> None:
    shape = source.shape()
    database: Database = pickle.loads(pickle.dumps(source.database))
    assert database == source.database
    assert pickle.loads(pickle.dumps(shape)) == shape


def test_a_shape_is_read_back_from_its_record(source: Source) -> None:
    shape = source.shape()
    assert shape.kind == source.database.kind
    assert source.database.shape_of(shape.record()) == shape
    source.add_column("orders", "w")
    assert source.shape() != shape
    assert source.shape().record() != shape.record()


def test_a_catalogue_lies_between_its_two_places(source: Source) -> None:
    catalogue = source.catalogue()
    assert catalogue.began <= catalogue.ended <= source.database.log_end(era=0)
    assert catalogue.identity == source.database.connect()
    assert list(catalogue.tables) == [source.orders]
    shape = catalogue.tables[source.orders]
    assert (shape.id, shape.key, shape.names) == (source.orders, ("id",), ("id", "v"))
    source.write(("orders", None, (-1, "later")))
    assert source.database.log_end(era=0) > catalogue.ended


def test_an_inspection_finds_the_tables_that_a_catalogue_has(source: Source) -> None:
    source.create("heap", {"v": "int"})
    looked = source.database.inspect(source.wanted, lambda _: lambda _: False, begun=False)
    assert looked.tables == source.catalogue().tables
    assert looked.identity == source.catalogue().identity
    keyless = next(finding for finding in looked.findings if finding.code == NO_KEY)
    assert isinstance(keyless, TableFinding)
    assert keyless.tables == (TableId(source.shop, "heap"),)
    assert not source.database.unfit(looked.tables.values())


def test_a_read_of_a_table_brings_its_rows_in_its_schema(source: Source) -> None:
    shape = source.shape()
    batches = source.read(shape)
    assert rows_of(batches) == [(number, f"v{number}") for number in range(1, ROWS + 1)]
    schema = source.database.schema_of(shape)
    assert all(batch.schema.names == schema.names and batch.schema.types == schema.types for batch in batches)


def test_chunks_cover_every_key_once_and_their_bounds_part_a_batch_as_they_part_the_table(source: Source) -> None:
    shape = source.shape()
    ends, _ = source.ends(shape)
    assert ends is not None
    assert source.database.chunked(shape)
    highs = source.bounds(shape, ends)
    assert highs[-1] == ends.greatest
    assert len(highs) == ROWS // 100
    keys = source.database.keys(shape, whole(source.read(shape)))
    assert keys is not None
    assert keys.all().all()
    assert len(keys.all()) == ROWS
    assert not (keys.below(ends.least) | keys.above(ends.greatest)).any()
    read, told = [], np.zeros(ROWS, np.int64)
    for index, high in enumerate(highs):
        low = highs[index - 1] if index else ends.least
        part = ids(source.read(shape, KeyRange(low, high, first=not index)))
        assert 0 < len(part) <= 200
        read += part
        mine = ~keys.above(high) & (keys.above(low) if index else keys.all())
        assert mine.sum() == len(part)
        told += mine
    assert read == list(range(1, ROWS + 1))
    assert told.tolist() == [1] * ROWS


def test_a_table_without_rows_has_no_ends_and_rows_that_come_later_are_beyond_its_mark(source: Source) -> None:
    source.truncate("orders")
    ends, mark = source.ends(source.shape())
    assert ends is None
    source.write(("orders", None, (1, "late")))
    assert source.database.log_end(era=0) > mark.high


def test_what_is_shown_is_in_every_later_read(source: Source) -> None:
    shape = source.shape()
    shown = source.database.newest_visible(shape, era=0)
    read = source.database.read(
        shape, KeyRange(), identity=source.catalogue().identity, era=0, visible=shown.place, to_a_change=True, in_parts=False
    )
    assert ids(list(read.batches())) == list(range(1, ROWS + 1))
    if shown.place is not None:
        assert shown.shows(shown.place)
        assert shown.place <= read.mark.high
    # Asked for with `to_a_change`.
    assert read.mark.exact(two_phase=False)
    source.write(("orders", None, (-1, "later")))
    assert not shown.shows(source.database.log_end(era=0))


def test_a_read_of_another_shape_or_of_another_server_is_refused(source: Source) -> None:
    shape = source.shape()
    with pytest.raises(Unavailable):
        source.read(shape, identity="somebody else")
    source.add_column("orders", "w")
    with pytest.raises(SourceDrift):
        source.read(shape)


def test_a_read_that_is_left_lets_go_of_its_table(source: Source) -> None:
    shape = source.shape()
    read = source.database.read(
        shape, KeyRange(), identity=source.catalogue().identity, era=0, visible=None, to_a_change=False, in_parts=True
    )
    batches = read.batches()
    next(batches)
    batches.close()
    source.add_column("orders", "w")


def test_keys_that_tasks_cannot_compare_are_of_tables_that_are_read_whole(source: Source) -> None:
    source.create("named", {"id": "text"}, ["id"])
    source.write(*(("named", None, (name,)) for name in ("a", "B", "c")))
    shape = source.shape("named")
    assert not source.database.chunked(shape)
    batches = source.read(shape, in_parts=False)
    assert ids(batches) == ["B", "a", "c"]
    assert source.database.keys(shape, batches[0]) is None


def test_a_comparison_counts_each_row_once_and_sums_tell_a_change(source: Source) -> None:
    comparing = source.database.compare(era=0)
    shape = comparing.read_tables([source.orders])[source.orders]
    table = comparing.table(shape, keyed=True)
    parting = table.part()
    before, marks = table.sums(parting, lambda _done, _of: None)
    assert int(before.counts.sum()) == ROWS
    assert marks
    # Hashed on our side, as the lake's rows are.
    batch = whole(source.read(shape))
    keys, rows = table.forms.hash(batch)
    ours = type(before).zero(parting.count)
    ours.add(parting.classes(batch, keys), rows)
    assert not len(before.unequal(ours))
    # Rows by name, told alike by both sides.
    found, _ = table.details(keys[:2])
    assert found == table.forms.details(batch, keys, rows, keys[:2])
    assert len(found) == 2
    low = source.database.log_end(era=0)
    source.write(("orders", (7, "v7"), (7, "other")), ("orders", (8, "v8"), None))
    after, _ = table.sums(parting, lambda _done, _of: None)
    unequal = before.unequal(after)
    assert 0 < len(unequal) <= 2
    ids_before = keys.tolist()
    left = table.rows(parting, unequal)
    assert ids_before[7] not in left.rows.keys.tolist()
    assert left.low <= left.high
    changes = table.changes(low, source.database.log_end(era=0))
    assert sorted(changes.counts.tolist()) == [0, 1]
    assert set(changes.keys.tolist()) == {ids_before[6], ids_before[7]}
    source.add_column("orders", "w")
    with pytest.raises(SourceDrift):
        table.changes(low, source.database.log_end(era=0))


# ---- the log


def test_segments_follow_one_another_and_are_durable_when_they_are_told(source: Source) -> None:
    start = source.start()
    with source.captured(start) as capturing:
        for row in NEW_ROWS[:2]:
            source.write(("orders", None, row))
            capturing.come_to_the_end()
    assert not capturing.too_early
    first, *_, last = segments = capturing.told
    assert len(segments) >= 2
    # An index names the transactions up to its end alone.
    assert replace(capturing.located[0], transactions=None) == first.start == replace(start, transactions=None)
    assert capturing.capture.end == last.end
    assert first.follows is None
    for before, after in pairwise(segments):
        end = replace(before.end, transactions=None)
        assert (after.number, after.follows, after.start) == (before.number + 1, end, end)
    for segment in segments:
        assert read_segment(segment.index_path) == segment
        assert (segment.database, segment.identity) == (source.database.kind, source.database.connect())
        assert source.database.file_name(segment.end, source.catalogue().log) == segment.log


def test_a_capture_resumes_after_its_last_sealed_segment_whatever_a_crash_left(source: Source) -> None:
    shape, start = source.shape(), source.start()
    source.write(*(("orders", None, row) for row in NEW_ROWS[:2]))
    last = source.capture(start)[-1]
    for row in NEW_ROWS[2:]:
        source.write(("orders", None, row))
    # A segment that has no index, and an index that was not finished.
    (source.folder / f"{last.number + 1:012d}.log").write_bytes(b"torn")
    (source.folder / f"{last.number + 1:012d}.tmp").write_bytes(b"torn")
    segments = source.capture(start, last=last)
    assert segments[last.number - segments[0].number] == last
    changes = [change for segment in segments for change in changed_rows(source.decode(segment, shape))]
    assert [(change.op, change.row) for change in changes] == [(INSERTED, row) for row in NEW_ROWS]


def test_a_capture_waits_for_room_and_ends_where_there_never_will_be_any(source: Source) -> None:
    start, shape = source.start(), source.shape()
    source.write(("orders", None, NEW_ROWS[0]))
    asked: list[int] = []

    def busy(size: int) -> Flow:
        asked.append(size)
        return Flow.PAUSED if len(asked) < 4 else Flow.ON

    segments = source.capture(start, flow=busy)
    assert len(asked) >= 4
    assert [change.row for segment in segments for change in changed_rows(source.decode(segment, shape))] == NEW_ROWS[:1]
    with pytest.raises(InvalidConfig), source.captured(start, last=segments[-1], flow=lambda _: Flow.FULL) as capturing:
        capturing.ended()


def test_a_capture_does_not_go_on_with_another_server(source: Source) -> None:
    with pytest.raises(SourceDrift), source.captured(source.start(), identity="somebody else") as capturing:
        capturing.ended()


def test_a_segment_tells_its_cuts_and_what_statements_did_to_tables(source: Source) -> None:
    shape, start, began_ms = source.shape(), source.start(), time.time() * 1000
    source.write(("orders", None, NEW_ROWS[0]))
    source.add_column("orders", "w")
    altered = source.shape()
    source.write(("orders", None, (*NEW_ROWS[1], 1)))
    source.truncate("orders")
    source.create("later", {"id": "int"}, ["id"])
    source.drop("orders")
    segments = source.capture(start)
    meanings = source.meaning(segments, shape, first=5_000)
    effects = [effect for meaning in meanings for effect in meaning.effects]
    later = TableId(source.shop, "later")
    assert [(effect.table, effect.effect, effect.shape) for effect in effects] == [
        (source.orders, Effect.RESHAPES, altered),
        (source.orders, Effect.EMPTIES, altered),
        # One that is made is found in the catalogue.
        (later, Effect.DROPS, None),
        (source.orders, Effect.DROPS, None),
    ]
    cuts = [cut for meaning in meanings for cut in meaning.cuts]
    offsets = [cut.offset for cut in cuts]
    assert offsets == sorted(set(offsets))
    ends = [
        begins + segment.end.offset - segment.start.offset for segment, begins in zip(segments, number_line(segments, 5_000), strict=True)
    ]
    assert set(ends) <= set(offsets)
    assert offsets[-1] == ends[-1]
    # An epoch ends before a statement, and after it.
    assert {effect.offset for effect in effects} <= set(offsets)
    assert len([offset for offset in offsets if offset < effects[1].offset]) >= 3
    # Times in the log are in seconds, or finer.
    assert all(began_ms - 1_000 <= cut.time_ms <= time.time() * 1000 for cut in cuts)
    assert [meaning.phases for meaning in meanings] == [()] * len(meanings)


def test_what_a_statement_did_to_a_table_that_the_lake_lacks_sends_it_to_the_catalogue(source: Source) -> None:
    start = source.start()
    source.add_column("orders", "w")
    source.truncate("orders")
    (meaning,) = source.meaning(source.capture(start)[-1:])
    assert {(effect.table, effect.effect) for effect in meaning.effects} == {(source.orders, Effect.DROPS)}


def test_changes_come_in_the_order_of_the_log_with_kinds_and_places(source: Source) -> None:
    source.create("other", {"id": "int", "v": "text"}, ["id"])
    shape, start, began_us = source.shape(), source.start(), time.time() * 1e6
    source.write(("orders", None, (-1, None)), ("other", None, (1, "not asked for")), ("orders", (1, "v1"), (1, "w1")))
    source.write(("orders", (2, "v2"), (-2, "é")))
    source.write(("orders", (3, "v3"), None))
    segments = source.capture(start)
    batches = [batch for segment in segments for batch in source.decode(segment, shape)]
    changes = changed_rows(batches)
    assert [(change.op, change.row) for change in changes] == [
        (INSERTED, (-1, None)),
        (UPDATE_BEFORE, (1, "v1")),
        (UPDATE_AFTER, (1, "w1")),
        (UPDATE_BEFORE, (2, "v2")),
        (UPDATE_AFTER, (-2, "é")),
        (DELETED, (3, "v3")),
    ]
    schema = source.database.schema_of(shape)
    assert all(batch.rows.schema.types[: len(schema)] == schema.types and batch.table == shape for batch in batches)
    # A place is where the transaction ends, and an event is counted in it.
    assert [len(list(group)) for group in _grouped(changes)] == [3, 2, 1]
    assert start.offset < changes[0].offset
    assert changes[-1].offset <= segments[-1].end.offset
    assert changes[0].event < changes[1].event == changes[2].event
    assert all(began_us - 1e6 <= change.time_us <= time.time() * 1e6 for change in changes)
    # What is not wanted need not come; all else does.
    low = changes[2].offset
    some = [change for segment in segments for change in changed_rows(source.decode(segment, shape, low=low))]
    assert [change for change in some if change.offset > low] == changes[3:]


def _grouped(changes: list[ChangedRow]) -> list[list[ChangedRow]]:
    """By transaction, in order."""
    offsets = list(dict.fromkeys(change.offset for change in changes))
    assert offsets == sorted(offsets)
    return [[change for change in changes if change.offset == offset] for offset in offsets]


def test_each_side_of_a_statement_is_decoded_in_its_shape(source: Source) -> None:
    before, start = source.shape(), source.start()
    source.write(("orders", None, NEW_ROWS[0]))
    source.add_column("orders", "w")
    source.write(("orders", None, (*NEW_ROWS[1], 7)))
    after, segments = source.shape(), source.capture(start)
    (reshaped,) = [effect for meaning in source.meaning(segments, before, first=start.offset) for effect in meaning.effects]
    found: dict[bool, list[Row]] = {False: [], True: []}
    for segment in segments:
        for part in _parts(segment):
            is_later = part.start >= reshaped.offset
            found[is_later] += [one.row for one in changed_rows(source.decode(segment, after if is_later else before, part=part))]
    assert found == {False: NEW_ROWS[:1], True: [(*NEW_ROWS[1], 7)]}


def _parts(segment: Segment) -> list[SegmentSlice]:
    """From each cut of a segment to the next."""
    places = [(0, segment.start.offset), *((cut.at, cut.offset) for cut in segment.cuts)]
    return [SegmentSlice(first, start, last, end) for (first, start), (last, end) in pairwise(places)]


def test_a_read_and_the_changes_that_its_mark_does_not_cover_are_the_table(source: Source) -> None:
    shape, start, database = source.shape(), source.start(), source.database
    reads, wrote = [], threading.Event()

    def change(number: int) -> None:
        """Rows come, change their key, and go."""
        at = 10 * number
        source.write(*(("orders", None, (-at - step, "new")) for step in range(1, 4)), ("orders", (number + 1, f"v{number + 1}"), None))
        source.write(("orders", (-at - 1, "new"), (-at - 5, "moved")), ("orders", (-at - 2, "new"), None))
        wrote.set()

    with repeated(change, pause_s=0.001):
        for _ in range(5):
            wrote.clear()
            shown = database.newest_visible(shape, era=0)
            read = database.read(
                shape, KeyRange(), identity=database.connect(), era=0, visible=shown.place, to_a_change=True, in_parts=False
            )
            rows = rows_of(list(read.batches()))
            reads.append((shown, read.mark, rows))
            # So that no two of them see the same.
            assert wrote.wait(30)
    segments, now = source.capture(start), rows_of(source.read(shape))
    assert now != reads[-1][2]
    for shown, mark, rows in reads:
        held, exact = Counter(rows), mark.exact(two_phase=False)
        assert exact
        for segment in segments:
            for batch in source.decode(segment, shape, marks=[mark]):
                offsets = batch.rows.column("_position").to_numpy()
                covered = database.covered(mark, batch, offsets, high=mark.high.offset, two_phase=np.empty(0, np.int64))
                assert not covered[offsets > mark.high.offset].any()
                for one, is_in in zip(changed_rows([batch]), covered.tolist(), strict=True):
                    if shown.place is not None and one.offset <= shown.place.offset:
                        assert is_in, "what was shown is not in a read that came later"
                    if not is_in:
                        held[one.row] += 1 if one.op in (INSERTED, UPDATE_AFTER) else -1
        assert sorted(held.elements()) == now
        assert min(held.values()) >= 0


def test_another_server_continues_exactly_after_what_was_captured_or_refuses(source: Source) -> None:
    start = source.start()
    source.write(("orders", None, NEW_ROWS[0]))
    last = source.capture(start)[-1]
    with pytest.raises((Unavailable, SourceDrift)):
        source.database.place_after(last, identity="somebody else", era=1)
    # The server itself has all that was captured of it.
    try:
        place = source.database.place_after(last, identity=source.database.connect(), era=1)
    except SourceDrift:
        assert not last.end.transactions, "transactions have names, and their place is not found"
    else:
        assert (place.era, place.file, place.offset) == (1, last.end.file, last.end.offset)
        assert place.transactions == last.end.transactions


def test_an_idle_server_has_no_prepared_transactions(source: Source) -> None:
    assert list(source.database.prepared_transactions()) == []


# ---- this suite


MISTAKES = {
    mistakes.ReadsLessThanItsMarkSays: test_a_read_and_the_changes_that_its_mark_does_not_cover_are_the_table,
    mistakes.ReadsMoreThanItsMarkSays: test_a_read_and_the_changes_that_its_mark_does_not_cover_are_the_table,
    mistakes.CoversWhatComesLater: test_a_read_and_the_changes_that_its_mark_does_not_cover_are_the_table,
    mistakes.CoversNothing: test_a_read_and_the_changes_that_its_mark_does_not_cover_are_the_table,
    mistakes.ShowsWhatIsNotLoggedYet: test_what_is_shown_is_in_every_later_read,
    mistakes.ForgetsTheGreatestKey: test_chunks_cover_every_key_once_and_their_bounds_part_a_batch_as_they_part_the_table,
    mistakes.SkipsATransactionOnResume: test_a_capture_resumes_after_its_last_sealed_segment_whatever_a_crash_left,
    mistakes.DoesNotTellOfTruncate: test_a_segment_tells_its_cuts_and_what_statements_did_to_tables,
    mistakes.SealsOnePlaceTooFar: test_a_segment_tells_its_cuts_and_what_statements_did_to_tables,
    mistakes.LeavesOutBeforeImages: test_changes_come_in_the_order_of_the_log_with_kinds_and_places,
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_a_database_is_found(mistake: Callable[[Path], Database], tmp_path: Path) -> None:
    with pytest.raises((AssertionError, SnowmeltError)):
        MISTAKES[mistake](SmallKind(tmp_path, mistake))
