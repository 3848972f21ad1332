"""Segments made by hand."""

from __future__ import annotations

import zlib
from pathlib import Path

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.gtid import GtidSet, words_of
from snowmelt.databases.mysql.log.details import KIND, Details
from snowmelt.model.position import Position
from snowmelt.segments import Segment, SegmentCut, SegmentWriter

SERVER = Server("mysql", (8, 0, 33), "11111111-2222-3333-4444-555555555555")


def segment(folder: Path, number: int, start: int, data: bytes, *, crc_length: int = 4, gtids: GtidSet | None = None) -> Segment:
    end = Position(7, start + len(data), transactions=words_of(gtids))
    return Segment(
        folder=folder,
        number=number,
        database=KIND,
        identity=SERVER.identity,
        log="binlog.000007",
        start=Position(7, start),
        end=end,
        follows=Position(7, start) if number > 1 else None,
        file_begins=4,
        data_bytes=len(data),
        data_crc32=None if crc_length else zlib.crc32(data),
        first_time_s=1000,
        last_time_s=1001,
        cuts=(SegmentCut(len(data), end.offset, 1001, "commit"),),
        own=Details(
            flavour=SERVER.flavour,
            version=SERVER.version,
            crc_length=crc_length,
            restart=end.offset,
            format_description=b"\0\1\2\xff",
            event_bytes_max=min(len(data), 30),
        ).encode(),
    )


def write(folder: Path, data: bytes, made: Segment) -> Segment:
    writer = SegmentWriter(folder)
    writer.write(made.number, memoryview(data))
    writer.seal(made)
    return made


def three(folder: Path) -> list[Segment]:
    made, start = [], 4
    for number in (1, 2, 3):
        data = bytes([number]) * 100 * number
        made.append(write(folder, data, segment(folder, number, start, data)))
        start += len(data)
    return made
