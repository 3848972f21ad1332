"""A log that is durable and not covered, made of bytes: its segments as capture leaves them, and where a task finds them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.details import KIND, Details
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.model.position import Position
from snowmelt.relay import retention
from snowmelt.relay.retention import Ending, Prepared, Relay, SegmentRecord
from snowmelt.segments import Segment, SegmentCut, SegmentWriter

LOG = LogFile("binlog", 1)
_TIME_S = 1000


class LogFolder:
    """Segments of one log file, and the relay that has their records."""

    def __init__(self, folder: Path, server: Server, *, checksum_bytes: int = 4) -> None:
        self.relay = Relay()
        self.place = _place(server, state=folder / "state")
        self._folder = folder = folder / "state" / "log"
        folder.mkdir(parents=True)
        self._server = server
        self._checksum_bytes = checksum_bytes
        self._writer = SegmentWriter(folder)
        self._number = 0

    def add(
        self, data: bytes | bytearray, start: int, cuts: Iterable[tuple[int, int]], phases: Iterable[Prepared | Ending] = ()
    ) -> tuple[Segment, SegmentRecord]:
        """The next segment, which begins at offset `start`. `cuts` are places in its data and in the log; the last is its end."""
        self._number += 1
        found = tuple(SegmentCut(at, offset, _TIME_S, "commit") for at, offset in cuts)
        made = Segment(
            folder=self._folder,
            number=self._number,
            database=KIND,
            identity=self._server.identity,
            log=str(LOG),
            start=Position(LOG.number, start),
            end=Position(LOG.number, found[-1].offset),
            follows=Position(LOG.number, start) if self._number > 1 else None,
            file_begins=4,
            data_bytes=len(data),
            data_crc32=None if self._checksum_bytes else zlib.crc32(data),
            first_time_s=_TIME_S,
            last_time_s=_TIME_S,
            cuts=found,
            own=Details(
                flavour=self._server.flavour,
                version=self._server.version,
                crc_length=self._checksum_bytes,
                restart=found[-1].offset,
                format_description=b"",
                event_bytes_max=1,
            ).encode(),
        )
        self._writer.write(self._number, memoryview(data))
        self._writer.seal(made)
        marks = tuple(retention.Cut(self.relay.end + cut.offset - start, _TIME_S) for cut in found)
        sealed = self.relay.decide_record(1, f"log/{made.index_path.name}", made.start, made.end, marks, (), phases)
        self.relay.apply(sealed)
        return made, sealed


def _place(server: Server, *, state: Path) -> TaskContext:
    return TaskContext(
        generation=1, nonce="n", state=state, warehouse="", user="", source=MySql(), identity=server.identity, log=str(LOG)
    )  # fmt: skip
