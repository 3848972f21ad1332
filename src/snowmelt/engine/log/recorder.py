"""Capture in the driver's process: segments go where tasks find them (`storage`), and their records form the chain in the store.

A segment is durable before its record. The record has what the segment's statements do to tables. A crash between the two leaves a segment
without a record. In the pipeline's folder the next driver puts the record, in order; it does the same for segments of a relay without a
driver (`engine.log.standby`). In a bucket that log is captured again. XA transactions that are prepared at a segment's end are held aside
before its record is put, so that they keep no log from deletion.

The log that is held has a cap. `relay.flow` says when capture pauses and why a pause ends. The driver's thread reports what it `needs`, and
capture's thread asks.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from snowmelt.databases.contract.capture import CaptureLimits, CapturePlan
from snowmelt.driving.letting_go import DropAside, DropRecords, DropSegments, SweepSegments, sweep_log
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import DURING_RELEASE, GROUPS_ASIDE, SEGMENT_DURABLE, reach
from snowmelt.engine.log.prepared import let_go_of, lying_aside, put_aside
from snowmelt.engine.log.storage import LogStorage
from snowmelt.errors import Corrupt, Fenced, SnowmeltError, Unavailable
from snowmelt.model.numbers import GenerationNumber
from snowmelt.model.position import Position
from snowmelt.relay.flow import Backlog, Flow, Need, decide_flow
from snowmelt.relay.retention import Cut, Relay, SegmentRecord
from snowmelt.segments import Segment
from snowmelt.store.generations import is_newest

log = logging.getLogger(__name__)


class Gauge:
    """How much log is held, and so whether capture may continue to read. Each number is written by one thread."""

    def __init__(self, limits: CaptureLimits) -> None:
        self._limits = limits
        self._end: Position | None = None
        self.sealed_bytes = 0
        """Ever sealed, with the log that was there before; written by the capture's writer."""
        self.gone_bytes = 0
        """Ever deleted; written by the driver's thread."""
        self.need = Need()
        """Written by the driver's thread."""
        self.paused = False
        """Whether capture waits until log is released; written by its thread."""

    def begin(self, held_bytes: int, end: Position | None) -> None:
        """Count the log that was held before capture starts."""
        self._end = end
        self.sealed_bytes = held_bytes

    def add(self, segment: Segment) -> None:
        self._end = segment.end
        self.sealed_bytes += segment.data_bytes

    def flow(self, open_bytes: int) -> Flow:
        """Whether capture may read on, with this many bytes in the open segment."""
        held = Backlog(self.held_bytes + open_bytes, self.sealed_bytes, self._end)
        flow = decide_flow(held, self.need, soft=self._limits.disk_bytes_max, hard=self._limits.disk_bytes_hard)
        self.paused = flow is not Flow.ON
        return flow

    @property
    def held_bytes(self) -> int:
        """Of all sealed segments that were not released."""
        return self.sealed_bytes - self.gone_bytes

    @property
    def overfull(self) -> bool:
        """Whether chunks that wait for the log must be given back: the hard cap is reached."""
        return self.paused and self.held_bytes >= self._limits.disk_bytes_hard


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStart:
    """The driver that captures, the server, and the place to begin at."""

    generation: GenerationNumber
    identity: str
    """Of the server."""
    position: Position


class LogRecorder:
    """Captures, stores segments, and adds to the chain. Capture and storage have threads of their own; the rest happens in the caller's
    thread."""

    def __init__(
        self,
        state: State,
        relay: Relay,
        shapes: Shapes,
        storage: LogStorage,
        settings: Settings,
        start: CaptureStart,
        *,
        wake: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """`wake` is called whenever there is something to `take`. Capture's folder is the caller's until `stop` calls `release`."""
        self._state = state
        self.relay = relay
        self.located: Position | None = None
        """A place of the log with every transaction up to there. Capture sets it when a connection has reached the place to resume at."""
        self._shapes = shapes
        self._database = settings.source
        self._wake = wake
        self._storage = storage
        self._generation = start.generation
        self._prepared_bytes_max = settings.log.prepared_bytes_max
        self._start = start.position
        self._kept: queue.SimpleQueue[tuple[Segment, str]] = queue.SimpleQueue()
        self._release = release
        self.gauge = Gauge(settings.log.capture)
        self._recorded_bytes = 0
        plan = CapturePlan(
            folder=storage.folder,
            name=settings.name,
            start=start.position,
            limits=settings.log.capture,
            identity=start.identity,
            failover=settings.log.failover,
            sealed=self._captured,
            located=self._locate,
            flow=self.gauge.flow,
        )
        self._capture = settings.source.capture(plan)
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, done: int) -> None:
        """Put the records that a crash left out, remove what it left over, then capture. `done`: the number of the segment record that the
        last done epoch names."""
        relay, storage = self.relay, self._storage
        recorded_bytes, rest = storage.begin(relay)
        last = storage.last(relay)
        self.gauge.begin(recorded_bytes, relay.newest.ends if relay.newest is not None else None)
        for segment, name in rest:
            self.gauge.add(segment)
            self._record(segment, name)
        let_go_of(self._state.store, relay.needless(lying_aside(self._state.store)))
        self.sweep(done)
        self._recorded_bytes = self.gauge.sealed_bytes
        self._begin_era()
        newest = relay.newest
        storage.start(self._generation, newest.number + 1 if newest is not None else 1, self._is_kept, self._fail)
        self._thread = threading.Thread(target=self._run, args=(last,), name="snowmelt-capture", daemon=True)
        self._thread.start()

    def sweep(self, done: int) -> None:
        """Remove what a dead driver was about to remove (`driving.letting_go.sweep_log`). `done` as in `start`."""
        perform(sweep_log(self.relay, done), self.act)

    def act(self, request: Request[Any]) -> Any:
        """Do what steps ask of the captured log, or of the store."""
        match request:
            case DropAside(numbers):
                let_go_of(self._state.store, numbers)
            case DropRecords(numbers):
                self._state.trim_relay(list(numbers))
            case DropSegments(segments):
                reach(DURING_RELEASE)
                for record in segments:
                    self.gauge.gone_bytes += self._storage.remove(record)
            case SweepSegments(relay, done):
                self._storage.sweep(relay, done)
            case _:
                return self._state.act(request)
        return None

    def _begin_era(self) -> None:
        """Begin another server's era with a record without data. It places the server's positions before the server has sent anything."""
        newest = self.relay.newest
        if newest is None or newest.ends.era >= self._start.era:
            return
        name = self._storage.nothing(self.relay, self._start.era)
        time_ms = self.relay.time_at(self.relay.end) or 0
        self._put_record(self.relay.decide_record(self._generation, name, self._start, self._start, (Cut(self.relay.end, time_ms),)))

    def _captured(self, segment: Segment) -> None:
        self.gauge.add(segment)
        self._storage.keep(segment)

    def _is_kept(self, segment: Segment, name: str) -> None:
        self._kept.put((segment, name))
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def needs(self, *, drained: bool, upto: Position | None) -> None:
        """What capture must bring before more log can be released, given the segments that have records; see `Need`."""
        self.gauge.need = Need(self._recorded_bytes if drained else None, upto)

    def _locate(self, position: Position) -> None:
        self.located = position

    def _run(self, last: Segment | None) -> None:
        try:
            self._capture.run_owned(self._stop, last)
        except BaseException as error:
            self._fail(error)

    def take(self) -> bool:
        """Put the records of segments that were captured meanwhile. Returns whether there was any. Raises what ended capture or its
        storage."""
        if self._error is not None:
            raise self._error
        took = False
        while True:
            try:
                segment, name = self._kept.get_nowait()
            except queue.Empty:
                return took
            self._record(segment, name)
            self._recorded_bytes += segment.data_bytes
            took = True

    def _record(self, segment: Segment, name: str) -> None:
        reach(SEGMENT_DURABLE)
        first = self.relay.end
        meaning = self._database.read_meaning(segment, first, self._shapes.known())
        record = self.relay.decide_record(
            self._generation,
            name,
            segment.start,
            segment.end,
            meaning.cuts,
            self._shapes.take(meaning.effects),
            meaning.phases,
            prepared_bytes_max=self._prepared_bytes_max,
        )
        for decided in record.decided:
            if decided.committed and decided.group.moved:
                extra = {"xid": decided.group.xid, "tables": ", ".join(map(str, decided.group.moved))}
                log.warning("tables of a prepared transaction were renamed or emptied before its COMMIT, and are copied again", extra=extra)
        for group in record.put_aside:
            put_aside(self._state.store, segment, group, segment.start.offset + group.begins - first)
        if record.put_aside:
            reach(GROUPS_ASIDE)
        self._put_record(record)
        self._storage.recorded(segment)

    def _put_record(self, record: SegmentRecord) -> None:
        found = self._state.put_segment_record(record)
        if not is_newest(self._state.store, self._generation):
            raise Fenced("a newer driver captures this log", detail=f"this is generation {self._generation}")
        # An older driver may have given the same segment its record; its numbers for shapes count then.
        if _anonymous(found) != _anonymous(record):
            raise self._lost(found)
        self._shapes.follow(found.statements)
        self.relay.apply(found)

    def _lost(self, found: SegmentRecord) -> SnowmeltError:
        where = f"record {found.number} is of {found.name}"
        if self._storage.exclusive:
            return Corrupt("the relay's chain and its folder disagree", detail=where)
        # That driver was fenced by then, and can't win another number. Its segment counts, and capture must begin again after it.
        return Unavailable("an older driver came first with a segment of the log", detail=where)

    def stop(self) -> None:
        """End the capture and give up its folder, so that another process can own it. Twice is harmless."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._storage.close()
        self._release()


def _anonymous(record: SegmentRecord) -> SegmentRecord:
    """A record without its driver and its driver's numbers of shapes."""
    return replace(
        record, generation=GenerationNumber(0), statements=tuple(replace(statement, schema=0) for statement in record.statements)
    )
