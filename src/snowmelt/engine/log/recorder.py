"""Capture in the driver's process, segments kept where tasks find them (`storage`), the chain in the store.

A record follows its segment, which is durable by then, with what the segment's statements do to tables. After a crash between the two
a segment that lies in the pipeline's folder gets its record from the next driver, in order; so do those that a relay without a driver has
captured (`engine.log.standby`). In a bucket it is captured again. XA transactions that are prepared at a segment's end are put aside before
its record, so that they hold nothing but themselves.

What is held has a cap: `relay.flow` says when capture stops and why that ends. The driver's thread tells what it `needs`, capture's asks.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.capture import Capture, CaptureLimits
from snowmelt.driving.letting_go import DropAside, DropRecords, DropSegments, SweepSegments, sweep_log
from snowmelt.driving.steps import Request, perform
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.driver.state import State
from snowmelt.engine.failpoints import DURING_RELEASE, GROUPS_ASIDE, SEGMENT_DURABLE, reach
from snowmelt.engine.log.prepared import let_go_of, lying_aside, put_aside
from snowmelt.engine.log.storage import LogStorage
from snowmelt.errors import Corrupt, Fenced, SnowmeltError, Unavailable
from snowmelt.model.position import Position
from snowmelt.relay.flow import Backlog, Flow, Need, decide_flow
from snowmelt.relay.retention import Cut, Relay, Sealed
from snowmelt.segments import Segment
from snowmelt.store.generations import is_newest

log = logging.getLogger(__name__)


class Gauge:
    """How much of the log is held, and so whether capture may read on. Each number is written by one thread."""

    def __init__(self, limits: CaptureLimits) -> None:
        self._limits = limits
        self._end: Position | None = None
        self.sealed_bytes = 0
        """Ever, with what was there before; by the capture's writer."""
        self.gone_bytes = 0
        """By whoever lets go."""
        self.need = Need()
        """By the same."""
        self.paused = False
        """Whether capture waits for something to be let go of; by its thread."""

    def begin(self, held_bytes: int, end: Position | None) -> None:
        """What was held before anything is captured."""
        self._end = end
        self.sealed_bytes = held_bytes

    def add(self, segment: Segment) -> None:
        self._end = segment.end
        self.sealed_bytes += segment.data_bytes

    def flow(self, open_bytes: int) -> Flow:
        """For `Capture`."""
        held = Backlog(self.held_bytes + open_bytes, self.sealed_bytes, self._end)
        flow = decide_flow(held, self.need, soft=self._limits.disk_bytes_max, hard=self._limits.disk_bytes_hard)
        self.paused = flow is not Flow.ON
        return flow

    @property
    def held_bytes(self) -> int:
        """Of all sealed segments that were not let go of."""
        return self.sealed_bytes - self.gone_bytes

    @property
    def overfull(self) -> bool:
        """Whether even who waits for the log has to do without more of it."""
        return self.paused and self.held_bytes >= self._limits.disk_bytes_hard


class LogRecorder:
    """Captures, has the segments kept, and keeps the chain. Capturing and keeping have threads of their own; the rest happens in the
    caller's thread."""

    def __init__(
        self,
        state: State,
        relay: Relay,
        shapes: Shapes,
        keeping: LogStorage,
        database: MySql,
        *,
        generation: int,
        start: Position,
        server_id: int,
        prepared_bytes_max: int,
        limits: CaptureLimits,
        identity: str,
        failover: bool,
        wake: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """`wake` is called whenever there is something to `take`. Capture's folder is the caller's until `stop` calls `release`."""
        self._state = state
        self.relay = relay
        self.located: Position | None = None
        """A place of the log, with every transaction up to there; set by the capture when it has come to where it goes on."""
        self._shapes = shapes
        self._database = database
        self._wake = wake
        self._keeping = keeping
        self._generation = generation
        self._prepared_bytes_max = prepared_bytes_max
        self._start = start
        self._kept: queue.SimpleQueue[tuple[Segment, str]] = queue.SimpleQueue()
        self._release = release
        self.gauge = Gauge(limits)
        self._recorded_bytes = 0
        self._capture = Capture(
            database.options,
            keeping.folder,
            start=start,
            server_id=server_id,
            limits=limits,
            identity=identity,
            failover=failover,
            sealed=self._captured,
            located=self._locate,
            flow=self.gauge.flow,
        )
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, done: int) -> None:
        """Give records to what a crash left without, remove what one left over, then capture. `done` as in `sweep`."""
        relay, keeping = self.relay, self._keeping
        recorded_bytes, rest = keeping.begin(relay)
        last = keeping.last(relay)
        self.gauge.begin(recorded_bytes, relay.newest.ends if relay.newest is not None else None)
        for segment, name in rest:
            self.gauge.add(segment)
            self._record(segment, name)
        let_go_of(self._state.store, relay.needless(lying_aside(self._state.store)))
        self.sweep(done)
        self._recorded_bytes = self.gauge.sealed_bytes
        self._begin_era()
        newest = relay.newest
        keeping.start(self._generation, newest.number + 1 if newest is not None else 1, self._is_kept, self._fail)
        self._thread = threading.Thread(target=self._run, args=(last,), name="snowmelt-capture", daemon=True)
        self._thread.start()

    def sweep(self, done: int) -> None:
        """Remove what a driver which died had not come to (`driving.letting_go.sweep_log`)."""
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
                for sealed in segments:
                    self.gauge.gone_bytes += self._keeping.remove(sealed)
            case SweepSegments(relay, done):
                self._keeping.sweep(relay, done)
            case _:
                return self._state.act(request)
        return None

    def _begin_era(self) -> None:
        """Another server goes on: a record without data says where, so that its positions have a place before it has sent anything."""
        newest = self.relay.newest
        if newest is None or newest.ends.era >= self._start.era:
            return
        name = self._keeping.nothing(self.relay, self._start.era)
        time_ms = self.relay.time_at(self.relay.end) or 0
        self._seal(self.relay.decide_seal(self._generation, name, self._start, self._start, (Cut(self.relay.end, time_ms),)))

    def _captured(self, segment: Segment) -> None:
        self.gauge.add(segment)
        self._keeping.keep(segment)

    def _is_kept(self, segment: Segment, name: str) -> None:
        self._kept.put((segment, name))
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def needs(self, *, drained: bool, upto: Position | None) -> None:
        """What capture must bring before anything is let go of, as of what was taken up; see `Need`."""
        self.gauge.need = Need(self._recorded_bytes if drained else None, upto)

    def _locate(self, position: Position) -> None:
        self.located = position

    def _run(self, last: Segment | None) -> None:
        try:
            self._capture.run_owned(self._stop, last)
        except BaseException as error:
            self._fail(error)

    def take(self) -> bool:
        """Take up what was captured meanwhile; whether there was anything."""
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
        meaning = self._database.seal(segment, first, self._shapes.known())
        sealed = self.relay.decide_seal(
            self._generation,
            name,
            segment.start,
            segment.end,
            meaning.cuts,
            self._shapes.take(meaning.effects),
            meaning.phases,
            prepared_bytes_max=self._prepared_bytes_max,
        )
        for decided in sealed.decided:
            if decided.committed and decided.group.moved:
                extra = {"xid": decided.group.xid, "tables": ", ".join(map(str, decided.group.moved))}
                log.warning("tables of a prepared transaction were renamed or emptied before its COMMIT, and are copied again", extra=extra)
        for group in sealed.put_aside:
            put_aside(self._state.store, segment, group, segment.start.offset + group.begins - first)
        if sealed.put_aside:
            reach(GROUPS_ASIDE)
        self._seal(sealed)
        self._keeping.recorded(segment)

    def _seal(self, sealed: Sealed) -> None:
        found = self._state.seal(sealed)
        if not is_newest(self._state.store, self._generation):
            raise Fenced("a newer driver captures this log", detail=f"this is generation {self._generation}")
        # An older driver may have given the same segment its record; its numbers for shapes count then.
        if _anonymous(found) != _anonymous(sealed):
            raise self._lost(found)
        self._shapes.follow(found.statements)
        self.relay.apply(found)

    def _lost(self, found: Sealed) -> SnowmeltError:
        where = f"record {found.number} is of {found.name}"
        if self._keeping.exclusive:
            return Corrupt("the relay's chain and its folder disagree", detail=where)
        # It was fenced by then, and can't have won another. Its segment counts; capture has to begin anew behind it.
        return Unavailable("an older driver came first with a segment of the log", detail=where)

    def stop(self) -> None:
        """End the capture and give its folder away. Twice is harmless."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._keeping.close()
        self._release()


def _anonymous(sealed: Sealed) -> Sealed:
    """A record without who wrote it and how he numbered shapes."""
    return replace(sealed, generation=0, statements=tuple(replace(statement, schema=0) for statement in sealed.statements))
