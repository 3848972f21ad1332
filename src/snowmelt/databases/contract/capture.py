"""Capture: the log as durable segments in a folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snowmelt.errors import check
from snowmelt.model.position import Position
from snowmelt.relay.flow import Flow
from snowmelt.segments import PAGE, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """What bounds a capture's memory, its disk and its silences."""

    receive_bytes: int = 1 << 20
    buffer_bytes: int = 4 << 20
    buffers: int = 6
    """Of the pool between socket and disk."""
    segment_bytes: int = 64 << 20
    """A segment is sealed at the first cut point after this many bytes."""
    seal_ms: int = 500
    """Or when it is this old."""
    heartbeat_s: float = 5.0
    """How often an idle server says that it is there. One that is silent for three times that is taken for dead."""
    disk_bytes_max: int = 16 << 30
    """How much of the log may wait here before reading stops."""

    def __post_init__(self) -> None:
        check(self.buffers >= 2, "the socket and the writer need a buffer each")
        check(self.buffer_bytes >= self.receive_bytes + PAGE, "a whole event must fit a buffer", str(self.buffer_bytes))

    @property
    def memory_bytes(self) -> int:
        return self.receive_bytes + self.buffers * self.buffer_bytes

    @property
    def disk_bytes_hard(self) -> int:
        """How much a single transaction, or a chunk that waits for the log, may make of it."""
        return 4 * self.disk_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """What to capture, where to, and whom to tell."""

    folder: Path
    name: str
    """Of the pipeline. A capture of the same name takes the server's stream away from the one before it."""
    start: Position
    """Where to begin if no segment is given."""
    identity: str
    """Of the server. Another one is `SourceDrift`, or `Unavailable` with `failover`."""
    limits: CaptureLimits
    failover: bool
    """Whether a new driver may continue on another server."""
    sealed: Callable[[Segment], None]
    """Called for each segment that is durable in the folder, in order, by a thread of the capture."""
    flow: Callable[[int], Flow]
    """Whether to read on, given the bytes of the segment that is being filled."""
    located: Callable[[Position], None] | None = None
    """Called with the place at which each connection continues, with every transaction up to there."""


class LogCapture(Protocol):
    """One connection to a server's log. Memory: `CaptureLimits.memory_bytes`, whatever the size of an event or of a transaction."""

    @property
    def end(self) -> Position | None:
        """The end of the last durable segment; None before the first."""
        ...

    def run_owned(self, stop: threading.Event, last: Segment | None) -> None:
        """Capture until `stop` is set, after the `last` segment of the folder, which the caller owns.

        Order: what a crash left in the folder without an index is removed first (`segments.remove_torn`). Segments without gap or overlap;
        none is torn inside a transaction, and none spans two files of the log. Twice: a second run continues after the last durable
        segment. Durable on return: what was told as sealed. Errors: `Unavailable` when the server stays away, `SourceDrift` when the log
        has a gap, `Corrupt` when it can't be read, `InvalidConfig` when `CapturePlan.flow` is FULL."""
        ...
