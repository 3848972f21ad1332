"""A driver that does nothing but take a relay over and feed it, with the small limits that tests fill in moments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.driving.letting_go import drop
from snowmelt.driving.steps import perform
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.driver.state import Owner, State
from snowmelt.engine.log.handover import own_log
from snowmelt.engine.log.recorder import CaptureStart, LogRecorder
from snowmelt.engine.log.storage import segments_of
from snowmelt.model.position import Position
from snowmelt.relay.retention import Cut
from snowmelt.store.objects import open_store
from tests.integration.dump import await_that as awaited
from tests.integration.server_log import WAIT_S, split
from tests.kit.sources import mysql_of

SMALL = CaptureLimits(
    segment_bytes=64 << 10, seal_ms=20, receive_bytes=framing.RECEIVE_BYTES_MIN, buffer_bytes=1 << 20, buffers=2, heartbeat_s=1.0
)
await_that = partial(awaited, seconds=WAIT_S)


class Driver:
    """What `PipelineDriver` does with its relay, without a lake: it takes the log over, and lets go of it when it is told to."""

    def __init__(self, settings: Settings) -> None:
        self.state = State(open_store(settings.state))
        self._seen: dict[int, bytes] = {}
        with Session(mysql_of(settings).options) as session:
            server, end = session.server, log_end(session, era=0)
        self.state.bind(Owner(settings.name, server.identity, settings.place))
        self._lock = ExitStack()
        owned = own_log(settings, self.state, self._lock)
        assert owned is not None
        taken, storage = owned
        generation = taken.number
        self.folder = storage.folder
        self._opened = segments_of(settings.state)
        self.relay = self.state.take_over_relay(self.state.load())
        if self.relay.newest is None:
            head = self.relay.decide_record(generation, storage.nothing(self.relay, 0), end, end, (Cut(0, 0),))
            self.relay.apply(self.state.put_segment_record(head))
        assert self.relay.newest is not None
        server_shapes: Any = {"captured": lambda _: False, "keyed": lambda _: True}
        shapes = Shapes(self.state, settings.source, generation, lower_case_names=False, **server_shapes)
        self.recorder = LogRecorder(
            self.state,
            self.relay,
            shapes,
            storage,
            settings,
            CaptureStart(generation=generation, identity=server.identity, position=self.relay.newest.ends),
            wake=lambda: None,
            release=self._lock.close,
        )
        self.recorder.start(0)

    @property
    def end(self) -> Position:
        assert self.relay.newest is not None
        return self.relay.newest.ends

    def wait_for(self, condition: Callable[[], object]) -> None:
        def taken() -> object:
            self.recorder.take()
            return condition()

        await_that(taken)

    def let_go(self, *, drained: bool = False) -> None:
        """As if the lake had all that was taken up."""
        self._look()
        self.relay.raise_floor(self.relay.end)
        newest = self.relay.newest
        assert newest is not None
        perform(drop(self.relay, newest.number), self.recorder.act)
        self.recorder.needs(drained=drained, upto=None)

    def _look(self) -> None:
        for sealed in self.relay.segments:
            if sealed.first < sealed.last and sealed.number not in self._seen:
                segment, read = self._opened(sealed.name)
                data = np.empty(segment.data_bytes, np.uint8)
                read(0, data)
                self._seen[sealed.number] = data.tobytes()

    def stop(self) -> None:
        self.recorder.stop()
        self.recorder.take()
        self._look()

    @property
    def events(self) -> list[bytes]:
        """All that was ever held when it was let go of, and what is."""
        return split(b"".join(self._seen[number] for number in sorted(self._seen)))

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.stop()
