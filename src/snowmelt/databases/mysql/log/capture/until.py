"""Capture up to a place, for programs that need one stretch of the log."""

from __future__ import annotations

import threading
from pathlib import Path

from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import MySqlOptions
from snowmelt.databases.mysql.log.capture.capturing import Capture, CaptureHooks
from snowmelt.databases.mysql.log.capture.starting import Start
from snowmelt.errors import Unavailable
from snowmelt.model.position import Position
from snowmelt.segments import Segment, list_segments


def capture_until(
    options: MySqlOptions,
    folder: Path,
    start: Start,
    until: Position,
    *,
    server_id: int = 1_000_001,
    timeout_s: float = 600.0,
    segment_bytes: int = 64 << 20,
    seal_ms: int = 500,
) -> Position:
    """Capture until `until` is durable; the place where the last segment then ends."""
    stop = threading.Event()

    def sealed(segment: Segment) -> None:
        if segment.end >= until:
            stop.set()

    segments = list_segments(folder) if folder.is_dir() else []
    if segments and segments[-1].end >= until:
        return segments[-1].end
    if not segments and isinstance(start, Position) and start >= until:
        return start
    limits = CaptureLimits(segment_bytes=segment_bytes, seal_ms=seal_ms)
    capture = Capture(options, folder, start=start, server_id=server_id, limits=limits, hooks=CaptureHooks(sealed=sealed))
    timer = threading.Timer(timeout_s, stop.set)
    timer.start()
    try:
        capture.run(stop)
    finally:
        timer.cancel()
    end = capture.end
    if end is None or not end >= until:
        raise Unavailable("the log did not get that far", detail=f"{end}, not {until} in {timeout_s:.0f} s")
    return end
