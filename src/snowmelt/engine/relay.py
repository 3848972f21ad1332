"""The relay's first form: a capture in the coordinator's process, segments as files under the pipeline's state, the chain in its store.

The folder has one capture at a time (a lock), numbers without gaps, and an index that is durable behind its data; the chain's records
follow it, with what the segment's statements do to tables. After a crash between the two the segments that have no record get one,
in order. XA transactions that are prepared at a segment's end are put aside before its record, so that they hold nothing but themselves.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from snowmelt.databases.mysql.capture import Capture, Start
from snowmelt.databases.mysql.connect import MySqlOptions
from snowmelt.databases.mysql.segments import Segment, list_segments
from snowmelt.databases.mysql.statements import LoggedXa, read_marked
from snowmelt.engine.aside import let_go_of, lying_aside, put_aside
from snowmelt.engine.failpoints import DURING_RELEASE, SEGMENT_DURABLE, reach
from snowmelt.engine.shapes import Shapes
from snowmelt.engine.state import State
from snowmelt.errors import Corrupt, Fenced
from snowmelt.model.position import Position
from snowmelt.relay.retention import Cut, Ending, Prepared, Relay, Sealed
from snowmelt.store.generations import is_newest


class Keeper:
    """Captures into `folder` and keeps the chain. All but the capture itself happens in the caller's thread."""

    def __init__(
        self,
        state: State,
        relay: Relay,
        shapes: Shapes,
        folder: Path,
        options: MySqlOptions,
        *,
        generation: int,
        start: Start,
        server_id: int,
        prepared_bytes_max: int,
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called whenever there is something to `take`."""
        self._state = state
        self.relay = relay
        self.located: Position | None = None
        """A place of the log, with every transaction up to there; set by the capture when it has come to where it goes on."""
        self._shapes = shapes
        self._wake = wake
        self._folder = folder
        self._generation = generation
        self._prepared_bytes_max = prepared_bytes_max
        self._sealed: queue.SimpleQueue[Segment] = queue.SimpleQueue()
        folder.mkdir(parents=True, exist_ok=True)
        self._capture = Capture(options, folder, start=start, server_id=server_id, sealed=self._captured, located=self._locate)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="snowmelt-capture", daemon=True)

    def start(self) -> None:
        """Give records to what a crash left without, remove what one left over, then capture."""
        held = self.relay.segments
        for segment in list_segments(self._folder):
            if held and segment.number < _number(held[0]):
                _remove(segment.index_path)
                continue
            newest = self.relay.newest
            if newest is None or segment.number > _number(newest):
                self._record(segment)
        let_go_of(self._state.store, self.relay.needless(lying_aside(self._state.store)))
        self._thread.start()

    def _captured(self, segment: Segment) -> None:
        self._sealed.put(segment)
        self._wake()

    def _locate(self, position: Position) -> None:
        self.located = position

    def _run(self) -> None:
        try:
            self._capture.run(self._stop)
        except BaseException as error:
            self._error = error
            self._wake()

    def take(self) -> bool:
        """Take up what was captured meanwhile; whether there was anything."""
        if self._error is not None:
            raise self._error
        took = False
        while True:
            try:
                segment = self._sealed.get_nowait()
            except queue.Empty:
                return took
            self._record(segment)
            took = True

    def _record(self, segment: Segment) -> None:
        reach(SEGMENT_DURABLE)
        first = self.relay.end
        cuts = tuple(Cut(first + cut.offset - segment.start.offset, cut.time_s * 1000) for cut in segment.cuts)
        logged, of_xa = read_marked(segment)
        sealed = self.relay.decide_seal(
            self._generation,
            str(segment.index_path),
            segment.start,
            segment.end,
            cuts,
            self._shapes.read(segment, logged, first),
            [_phase(one, segment.start.era, first - segment.start.offset) for one in of_xa],
            prepared_bytes_max=self._prepared_bytes_max,
        )
        for group in sealed.put_aside:
            put_aside(self._state.store, segment, group, segment.start.offset + group.begins - first)
        found = self._state.seal(sealed)
        if not is_newest(self._state.store, self._generation):
            raise Fenced("a newer driver captures this log", detail=f"this is generation {self._generation}")
        # An older driver may have given the same segment its record; its numbers for shapes count then.
        if _anonymous(found) != _anonymous(sealed):
            raise Corrupt("the relay's chain and its folder disagree", detail=f"record {found.number} is of {found.name}")
        self._shapes.follow(found.statements)
        self.relay.apply(found)

    def let_go(self, gone: list[Sealed]) -> None:
        over = [group.number for group in self.relay.over]
        self.relay.forget(gone)
        let_go_of(self._state.store, over)
        self._state.trim_relay([sealed.number for sealed in gone])
        if gone:
            reach(DURING_RELEASE)
        for sealed in gone:
            _remove(Path(sealed.name))

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()


def _phase(logged: LoggedXa, era: int, shift: int) -> Prepared | Ending:
    """What the log says of an XA transaction, on the number line."""
    xid, offset = str(logged.xid), logged.offset + shift
    if logged.committed is None:
        return Prepared(xid, era, logged.begins + shift, offset, logged.at, logged.bytes)
    return Ending(xid, offset, logged.committed)


def _remove(index: Path) -> None:
    """Oldest first, so that a crash leaves no gap; the index before its data, which without it is removed at the next start."""
    index.unlink(missing_ok=True)
    index.with_suffix(".log").unlink(missing_ok=True)


def _anonymous(sealed: Sealed) -> Sealed:
    """A record without who wrote it and how he numbered shapes."""
    return replace(sealed, generation=0, statements=tuple(replace(statement, schema=0) for statement in sealed.statements))


def _number(sealed: Sealed) -> int:
    """Of the segment in its folder."""
    return int(Path(sealed.name).stem)
