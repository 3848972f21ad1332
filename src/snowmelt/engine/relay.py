"""The relay's first form: a capture in the coordinator's process, segments as files under the pipeline's state, the chain in its store.

The folder has one capture at a time (a lock), numbers without gaps, and an index that is durable behind its data; the chain's records
follow it, with what the segment's statements do to tables. After a crash between the two the segments that have no record get one,
in order; so do those that a relay without a driver has captured (`engine.standby`). XA transactions that are prepared at a segment's end
are put aside before its record, so that they hold nothing but themselves.

What is held has a cap: `relay.flow` says when capture stops and why that ends. The driver's thread tells what it `needs`, capture's asks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from snowmelt.databases.mysql.capture import Capture, CaptureLimits
from snowmelt.databases.mysql.connect import MySqlOptions
from snowmelt.databases.mysql.segments import Segment, list_segments
from snowmelt.databases.mysql.statements import LoggedXa, read_marked
from snowmelt.engine.aside import let_go_of, lying_aside, put_aside
from snowmelt.engine.failpoints import DURING_RELEASE, SEGMENT_DURABLE, reach
from snowmelt.engine.shapes import Shapes
from snowmelt.engine.state import State
from snowmelt.errors import Corrupt, Fenced
from snowmelt.model.position import Position
from snowmelt.relay.flow import Flow, Held, Need, decide_flow
from snowmelt.relay.retention import Cut, Ending, Prepared, Relay, Sealed
from snowmelt.store.generations import is_newest


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

    def add(self, segment: Segment) -> None:
        self._end = segment.end
        self.sealed_bytes += segment.data_bytes

    def flow(self, open_bytes: int) -> Flow:
        """For `Capture`."""
        held = Held(self.held_bytes + open_bytes, self.sealed_bytes, self._end)
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
        start: Position,
        server_id: int,
        prepared_bytes_max: int,
        limits: CaptureLimits,
        identity: str,
        failover: bool,
        wake: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """`wake` is called whenever there is something to `take`. The folder is the caller's until `stop` calls `release`."""
        self._state = state
        self.relay = relay
        self.located: Position | None = None
        """A place of the log, with every transaction up to there; set by the capture when it has come to where it goes on."""
        self._shapes = shapes
        self._wake = wake
        self._folder = folder
        self._generation = generation
        self._prepared_bytes_max = prepared_bytes_max
        self._start = start
        self._sealed: queue.SimpleQueue[Segment] = queue.SimpleQueue()
        self._release = release
        self.gauge = Gauge(limits)
        self._recorded_bytes = 0
        self._capture = Capture(
            options,
            folder,
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
        self._thread = threading.Thread(target=self._run, name="snowmelt-capture", daemon=True)

    def start(self) -> None:
        """Give records to what a crash left without, remove what one left over, then capture."""
        held = self.relay.segments
        for segment in list_segments(self._folder):
            if held and segment.number < segment_number(held[0]):
                _remove(segment.index_path)
                continue
            self.gauge.add(segment)
            newest = self.relay.newest
            if newest is None or segment.number > segment_number(newest):
                self._record(segment)
        let_go_of(self._state.store, self.relay.needless(lying_aside(self._state.store)))
        self._recorded_bytes = self.gauge.sealed_bytes
        self._begin_era()
        self._thread.start()

    def _begin_era(self) -> None:
        """Another server goes on: a record without data says where, so that its positions have a place before it has sent anything."""
        newest = self.relay.newest
        if newest is None or newest.ends.era >= self._start.era:
            return
        name = self._folder / f"era-{self._start.era}" / f"{segment_number(newest):012d}.json"
        time_ms = self.relay.time_at(self.relay.end) or 0
        self._seal(self.relay.decide_seal(self._generation, str(name), self._start, self._start, (Cut(self.relay.end, time_ms),)))

    def _captured(self, segment: Segment) -> None:
        self.gauge.add(segment)
        self._sealed.put(segment)
        self._wake()

    def needs(self, *, drained: bool, upto: Position | None) -> None:
        """What capture must bring before anything is let go of, as of what was taken up; see `Need`."""
        self.gauge.need = Need(self._recorded_bytes if drained else None, upto)

    def _locate(self, position: Position) -> None:
        self.located = position

    def _run(self) -> None:
        try:
            self._capture.run_owned(self._stop)
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
            self._recorded_bytes += segment.data_bytes
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
        self._seal(sealed)

    def _seal(self, sealed: Sealed) -> None:
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
            self.gauge.gone_bytes += _remove(Path(sealed.name))

    def stop(self) -> None:
        """End the capture and give the folder away. Twice is harmless."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._release()


def _phase(logged: LoggedXa, era: int, shift: int) -> Prepared | Ending:
    """What the log says of an XA transaction, on the number line."""
    xid, offset = str(logged.xid), logged.offset + shift
    if logged.committed is None:
        return Prepared(xid, era, logged.begins + shift, offset, logged.at, logged.bytes)
    return Ending(xid, offset, logged.committed)


def _remove(index: Path) -> int:
    """Oldest first, so that a crash leaves no gap; the index before its data, which without it is removed at the next start.
    How many bytes that were."""
    data = index.with_suffix(".log")
    index.unlink(missing_ok=True)
    try:
        size = data.stat().st_size
        data.unlink()
    except FileNotFoundError:
        # The head of the chain has none.
        return 0
    return size


def _anonymous(sealed: Sealed) -> Sealed:
    """A record without who wrote it and how he numbered shapes."""
    return replace(sealed, generation=0, statements=tuple(replace(statement, schema=0) for statement in sealed.statements))


def segment_number(sealed: Sealed) -> int:
    """Of the segment in its folder; 0 for the head of a chain, which has none."""
    return int(Path(sealed.name).stem)
