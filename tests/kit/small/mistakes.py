"""The small database with one mistake each. The behaviour suite must find every one of them."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from snowmelt.columnar.arena import Longs
from snowmelt.databases.contract.capture import CapturePlan
from snowmelt.databases.contract.changes import UPDATE_BEFORE, Changes
from snowmelt.databases.contract.keys import Mask
from snowmelt.databases.contract.log import KnownTables, SegmentMeaning
from snowmelt.databases.contract.tables import NextBounds, ReadMark, TableShape
from snowmelt.model.position import Position
from snowmelt.planning.facts import KeyEnds
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import Effect
from snowmelt.segments import Segment, SegmentWriter
from tests.kit.small.database import SmallCapture, SmallDatabase, SmallMark, SmallReader, SmallShown, SmallTable
from tests.kit.small.server import Row, log_after


class ReadsLessThanItsMarkSays(SmallDatabase):
    """The mark is the end of the log, of a server that shows a commit after it logs it."""

    def rows_of(self, table: SmallTable, *, identity: str, era: int) -> tuple[list[Row], SmallMark]:
        rows, mark = super().rows_of(table, identity=identity, era=era)
        return rows[:-1], mark


class ReadsMoreThanItsMarkSays(SmallDatabase):
    """The mark is of a moment before the snapshot was opened."""

    def rows_of(self, table: SmallTable, *, identity: str, era: int) -> tuple[list[Row], SmallMark]:
        rows, mark = super().rows_of(table, identity=identity, era=era)
        before_the_last = log_after(self.folder, 0)[:-1].rfind(b"\n") + 1
        return rows, SmallMark(replace(mark.high, offset=before_the_last))


class ShowsWhatIsNotLoggedYet(SmallDatabase):
    def newest_visible(self, table: TableShape, *, era: int) -> SmallShown:
        return SmallShown(Position(0, 1 << 40, era))


class ForgetsTheGreatestKey(SmallDatabase):
    """Keys above the last bound are in no chunk."""

    def find_bounds(self, table: TableShape, extent: KeyEnds, **limits: Any) -> NextBounds:
        found = super().find_bounds(table, extent, **limits)
        return replace(found, highs=found.highs[:-1]) if found.complete else found


class SkipsATransactionOnResume(SmallDatabase):
    """Of the first segment after a restart one transaction is lost, and its places look as if it were there."""

    def capture(self, plan: CapturePlan) -> SmallCapture:
        return _Skipping(self.folder, plan)


class _Skipping(SmallCapture):
    _resumes = True

    def _next(self, last: Segment | None) -> Segment | None:
        segment = super()._next(last)
        if segment is None or last is None or not self._resumes:
            self._resumes = self._resumes and segment is None
            return segment
        self._resumes = False
        data = bytes(segment.bytes())
        lost = data.index(b"\n") + 1
        cuts = tuple(replace(cut, at=cut.at - lost) for cut in segment.cuts)
        segment.data_path.unlink()
        segment = replace(segment, data_bytes=len(data) - lost, data_crc32=zlib.crc32(data[lost:]), cuts=cuts)
        writer = SegmentWriter(self.plan.folder)
        writer.write(segment.number, memoryview(data[lost:]))
        writer.seal(segment)
        return segment


class DoesNotTellOfTruncate(SmallDatabase):
    def read_meaning(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        meaning = super().read_meaning(segment, first, known)
        return replace(meaning, effects=tuple(effect for effect in meaning.effects if effect.effect is not Effect.EMPTIES))


class SealsOnePlaceTooFar(SmallDatabase):
    """The number line of one segment overlaps that of the next."""

    def read_meaning(self, segment: Segment, first: int, known: KnownTables) -> SegmentMeaning:
        return super().read_meaning(segment, first + 1, known)


class LeavesOutBeforeImages(SmallDatabase):
    def log_reader(self, tables: Collection[TableShape], marks: Iterable[ReadMark], limits: Limits) -> SmallReader:
        return _AfterImages(super().log_reader(tables, marks, limits).tables, limits.rows_per_batch)


class _AfterImages(SmallReader):
    def _changes(self, table: Any, rows: Any) -> Changes:
        changes = super()._changes(table, rows)
        return replace(changes, rows=changes.rows.filter(pc.not_equal(changes.rows.column("_op"), UPDATE_BEFORE)))


class CoversWhatComesLater(SmallDatabase):
    """A read is said to contain changes beyond its end, which nothing brings then."""

    def covered(self, mark: ReadMark, changes: Changes, offsets: Longs, *, high: int, two_phase: Longs) -> Mask:
        return np.full(len(offsets), True)


class CoversNothing(SmallDatabase):
    """What a read contains is brought again, which a change table has twice then."""

    def covered(self, mark: ReadMark, changes: Changes, offsets: Longs, *, high: int, two_phase: Longs) -> Mask:
        return np.full(len(offsets), False)
