"""Bad bytes for everything that reads bytes of a server.

    python -m tests.fuzz.decoder --count 200000 --seed 1 [--seconds 60] [--save FOLDER]
    python -m tests.fuzz.decoder --seed 1 --case 4711        one case again, with its traceback

Each case is one mutated segment, and every third case one mutated part besides: rows alone at the edge of a forbidden page, JSON,
table maps, packed events, other events, packets of a result set, packets of a log's stream. A case is made of its seed and number
alone.

What must hold:
- Raw segments, whose checksums are as the mutation left them: the result of the unchanged segment, or an error. Whole events that
  are gone from a MariaDB segment are the exception: its server leaves events out by itself, so the log's positions don't tell; the
  length in a segment's index does.
- Repaired segments and parts: any valid Arrow data or an error.
- An error is `Corrupt` or `SourceDrift`; from the connection of a result set also what the server may say.
- No case takes more than CPU_SECONDS_MAX of a processor or lets memory grow by more than MEMORY_BYTES_MAX.

The cases run in a child, which a crash, a hang or a bad error ends or is told by; the parent reports the case and goes on behind it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import zstandard

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.log import framing
from snowmelt.databases.mysql.log.decode import ChangeBatch, LogItem, LogReader, LogServer, SchemaChanged, Transactions, batches
from snowmelt.databases.mysql.log.events import Event, FormatDescription, read_gtid, read_incident, read_query, read_xa_prepare
from snowmelt.databases.mysql.log.framing import Framer, read_gtid_list, read_previous_gtids, read_rotate
from snowmelt.databases.mysql.log.rowplan import RowPlan, plan_rows
from snowmelt.databases.mysql.log.scan import S, Walk, _partial
from snowmelt.databases.mysql.log.tablemap import read_table_map
from snowmelt.databases.mysql.log.unpack import inflate, unpack
from snowmelt.databases.mysql.read import resultset
from snowmelt.databases.mysql.read.binaryrows import SLACK
from snowmelt.databases.mysql.types.binary_json import apply_diffs, json_text, text_room
from snowmelt.databases.mysql.types.columns import MySqlTable, TimeAs, TypeOptions, ZeroDates
from snowmelt.errors import Corrupt, InvariantBroken, SnowmeltError, SourceDrift
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory
from snowmelt.relay.limits import Limits
from tests.fuzz import mutate
from tests.fuzz.corpus import Document, Line, Piece, Result, load_documents, load_pieces, load_results, spans
from tests.fuzz.guard import Guarded, GuardedPool, WatchedArena, WatchedLayout
from tests.kit.streams import Log, event, feed, packets

CPU_SECONDS_MAX = 1.0
MEMORY_BYTES_MAX = 512 << 20
"""Beyond what the process has before the first case."""
UNPACKED_BYTES_MAX = 32 << 20
"""What the reader is told that a segment may grow to."""
PARTS_EVERY = 3

LIMITS = tuple(
    Limits(
        row_bytes_max=16 << 20,
        held_bytes_max=16 << 20,
        unpacked_bytes_max=UNPACKED_BYTES_MAX,
        rows_per_batch=rows,
        heap_bytes=heap,
        prefilter_bytes=window,
        assembly_bytes=assembly,
    )
    for rows, heap, window, assembly in (
        (4096, 64 << 10, 1 << 20, 1 << 20),
        (4096, 90, 4096, 1 << 20),
        (3, 64 << 10, 4096, 1000),
        (2, 1, 5000, 10),
    )
)
"""Narrow ones too, so that batches end early, heaps must grow and windows are left in the middle of transactions."""
OPTIONS = (TypeOptions(), TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.STRING), TypeOptions(time_as=TimeAs.INTERVAL))


class Broken(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Case:
    """What is tried: a target's name, its bytes, and what else the target needs."""

    target: str
    name: str
    data: bytes
    extra: Any = None


@cache
def pieces() -> list[Piece]:
    return load_pieces()


@cache
def _sent() -> list[Piece]:
    """Those that a server would send as they are: it takes the mark of a file that is being written to off."""
    return [piece for piece in pieces() if piece.checksum_bytes and piece.name != "mysql56_small"]


@cache
def _unchecked() -> list[Piece]:
    return [mutate.unchecked(piece) for piece in pieces()]


@cache
def results() -> list[Result]:
    return load_results()


@cache
def documents() -> list[Document]:
    return load_documents()


# ---- making cases


def segment_case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}/{number}/segment")
    raw = number % 2 == 0
    while True:
        piece = rng.choice(pieces() if raw or rng.random() < 0.8 else _unchecked())
        if piece.name.endswith("wide") and rng.random() < 0.8:
            continue
        if raw and not piece.checksum_bytes:
            continue
        break
    data = (mutate.spoil if raw else mutate.rebuild)(rng, piece, pieces())
    if raw:
        return Case("raw", piece.name, data, piece)
    return Case("repaired", piece.name, data, (piece, rng.choice(OPTIONS), rng.choice(LIMITS), rng.random() < 0.7))


def part_case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}/{number}/part")
    makers = (
        _rows_case,
        _rows_case,
        _rows_case,
        _json_case,
        _map_case,
        _unpack_case,
        _event_case,
        _result_case,
        _result_case,
        _stream_case,
    )
    return rng.choice(makers)(rng)


def _rows_case(rng: random.Random) -> Case:
    """A table map and one row event of its table."""
    while True:
        piece = rng.choice(pieces())
        events = [piece.data[a : b - piece.checksum_bytes] for a, b in piece.events]
        maps = {event[19:25]: event for event in events if event[4] == Event.TABLE_MAP}
        rows = [event for event in events if event[4] in (*range(23, 26), *range(30, 33), 39) and event[19:25] in maps]
        if rows and (not piece.name.endswith("wide") or rng.random() < 0.2):
            break
    event = rng.choice(rows)
    shape = maps[event[19:25]]
    if rng.random() < 0.2:
        shape = shape[:19] + mutate._spoil_map(rng, shape[19:])
    body = bytearray(event[19:])
    for _ in range(rng.choice((1, 1, 2))):
        mutate.spoil_bytes(rng, body, rng.choice(pieces()).data)
    whole = event[:19] + bytes(body)
    return Case("rows", piece.name, shape + whole, (piece, len(shape), rng.choice(OPTIONS), rng.choice(LIMITS)))


def _json_case(rng: random.Random) -> Case:
    one, other = rng.choice(documents()), rng.choice(documents())
    document = bytearray(one.whole)
    if one.differences and rng.random() < 0.8:
        differences = bytearray(one.differences)
        mutate.spoil_bytes(rng, differences if rng.random() < 0.7 else document, other.whole)
        return Case("differences", "", bytes(differences), bytes(document))
    for _ in range(rng.choice((1, 1, 2, 3))):
        mutate.spoil_bytes(rng, document, other.whole)
    return Case("json", "", bytes(document), rng.choice((text_room(len(document)), rng.randrange(300))))


def _map_case(rng: random.Random) -> Case:
    piece = rng.choice(pieces())
    bodies = [piece.data[a + 19 : b - piece.checksum_bytes] for a, b in piece.events if piece.data[a + 4] == Event.TABLE_MAP]
    body = bytearray(rng.choice(bodies)) if bodies else bytearray(rng.randbytes(40))
    if bodies and rng.random() < 0.4:
        body = bytearray(mutate._spoil_map(rng, bytes(body)))
    mutate.spoil_bytes(rng, body, rng.choice(pieces()).data)
    return Case("map", piece.name, bytes(body), (piece, rng.choice(OPTIONS), rng.random() < 0.5))


def _unpack_case(rng: random.Random) -> Case:
    """Packed events with bad insides, and bombs: streams that grow far beyond what they are."""
    packed = [piece for piece in pieces() if "payload" in piece.name or "compressed" in piece.name]
    piece = rng.choice(packed)
    if rng.random() < 0.8:
        return Case("unpack", piece.name, mutate.rebuild(rng, piece, packed), piece)
    size = rng.choice((1 << 16, UNPACKED_BYTES_MAX - 5, UNPACKED_BYTES_MAX, UNPACKED_BYTES_MAX + 1, 300 << 20))
    claim = rng.choice((None, 0, 1, size - 1, size + 1, 1 << 31, (1 << 32) - 1, 1 << 40))
    header = bytes(9) + bytes(8) + bytes(2)
    if rng.random() < 0.5:
        body = mutate.payload(b"", claim=size if claim is None else claim, frame_bytes=_zstd_bomb(size))
        event = header[:4] + bytes([Event.TRANSACTION_PAYLOAD]) + header[5:] + body
    else:
        stream = _zlib_bomb(size)
        told = (size if claim is None else claim) & 0xFFFFFFFF
        body = bytes(8) + b"\x01\xff" + b"\x84" + told.to_bytes(4, "big") + stream
        event = header[:4] + bytes([Event.WRITE_ROWS_COMPRESSED_V1]) + header[5:] + body
    return Case("unpack", "bomb", mutate.frame(rng, [event], piece), piece)


@cache
def _zstd_bomb(size: int) -> bytes:
    packer = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    zeros = bytes(1 << 20)
    return b"".join(packer.compress(zeros[: min(1 << 20, size - at)]) for at in range(0, size, 1 << 20)) + packer.flush()


@cache
def _zlib_bomb(size: int) -> bytes:
    packer = zlib.compressobj(9)
    zeros = bytes(1 << 20)
    return b"".join(packer.compress(zeros[: min(1 << 20, size - at)]) for at in range(0, size, 1 << 20)) + packer.flush()


def _event_case(rng: random.Random) -> Case:
    piece = rng.choice(pieces())
    a, b = rng.choice(piece.events)
    body = bytearray(piece.data[a + 19 : b - piece.checksum_bytes]) if rng.random() < 0.8 else bytearray(rng.randbytes(rng.randrange(80)))
    mutate.spoil_bytes(rng, body, rng.choice(pieces()).data)
    return Case("event", piece.name, bytes(body), None)


def _result_case(rng: random.Random) -> Case:
    result = rng.choice(results())
    data = bytearray(result.data)
    first, number = _first_row(result)
    if rng.random() < 0.3:
        mutate.spoil_bytes(rng, data, rng.choice(pieces()).data)
        return Case("result", result.name, bytes(data), (result, rng.choice(OPTIONS), rng.choice((7, 500, 1 << 20))))
    # Rows alone: one packet's payload is changed and its length put right.
    found = _packets(bytes(data[first:]))
    index = rng.randrange(len(found))
    payload = bytearray(found[index][4:])
    mutate.spoil_bytes(rng, payload, rng.choice(pieces()).data)
    found[index] = len(payload).to_bytes(3, "little") + found[index][3:4] + bytes(payload)
    if rng.random() < 0.1:
        at = rng.randrange(len(found))
        found[at] = bytes([rng.choice((0, 1, 255)), rng.randrange(2), 0]) + found[at][3:]
    return Case("result rows", result.name, b"".join(found), (result, rng.choice(OPTIONS), number))


def _packets(data: bytes) -> list[bytes]:
    found = []
    at = 0
    while len(data) - at >= 4:
        size = 4 + int.from_bytes(data[at : at + 3], "little")
        found.append(data[at : at + size])
        at += size
    return found


def _first_row(result: Result) -> tuple[int, int]:
    """Where the first row's packet begins, behind both descriptions of the columns, and its number."""
    all_packets = _packets(result.data)
    ahead = 2 * len(result.table.columns) + 4
    return sum(map(len, all_packets[:ahead])), all_packets[ahead][3]


def _stream_case(rng: random.Random) -> Case:
    piece = rng.choice(_sent())
    wire = bytearray(_stream(piece))
    how = rng.randrange(3)
    if how == 0:
        mutate.spoil_bytes(rng, wire, rng.choice(pieces()).data)
    elif how == 1:
        found = _packets(bytes(wire))
        one, two = rng.randrange(len(found)), rng.randrange(len(found))
        found[one], found[two] = found[two], found[one]
        if rng.random() < 0.8:
            found = [packet[:3] + bytes([number + 1 & 0xFF]) + packet[4:] for number, packet in enumerate(found)]
        wire = bytearray(b"".join(found))
    else:
        body = mutate.rebuild(rng, piece, pieces())
        wire = bytearray(_wrapped(piece, [body[a:b] for a, b in spans(body)]))
    sizes = [rng.choice((1, 3, 19, 100, 5000, 200_000)) for _ in range(rng.randrange(1, 4))]
    return Case("stream", piece.name, bytes(wire), (piece, sizes, how < 2))


def _wrapped(piece: Piece, events: list[bytes]) -> bytes:
    log = Log(checksummed=True, offset=piece.start)
    log.rotate_to("binlog.000001", piece.start)
    if piece.start > 4:
        log.describe_again()
    return packets([*log.sent, *events])


@cache
def _stream(piece: Piece) -> bytes:
    """As its server sent it: with the texts of MariaDB's statements (ANNOTATE_ROWS), which are not stored."""
    events: list[bytes] = []
    offset = piece.start
    for at, stop in piece.events:
        end = int.from_bytes(piece.data[at + 13 : at + 17], "little")
        if (left_out := end - (stop - at) - offset) > 0:
            events.append(
                event(
                    framing.ANNOTATE, bytes(left_out - len(event(framing.ANNOTATE, b"", next_position=0))), next_position=offset + left_out
                )
            )
        events.append(piece.data[at:stop])
        offset = end
    return _wrapped(piece, events)


# ---- running them

_plans: dict[Any, dict[Any, RowPlan]] = {}
_OKAY = (Corrupt, SourceDrift)


def _reader(piece: Piece, options: TypeOptions = OPTIONS[0], limits: Limits = LIMITS[0], *, schemas: bool = True) -> LogReader:
    history: SchemaHistory[MySqlTable] = SchemaHistory()
    if schemas:
        for table in piece.tables:
            history.put(table.id, Position(0, 0), table)
    reader = LogReader(server=LogServer(piece.flavour, piece.version), schemas=history, options=options, limits=limits)
    # A plan is made of a map's bytes and a schema alone, so cases share it.
    known = _plans.setdefault((piece.flavour, options), {})
    if len(known) > 200:
        known.clear()
    reader._batches._plans = known
    return reader


def _read(reader: LogReader, piece: Piece, data: Bytes, end: int | None) -> Any:
    return reader.read(data, file=1, start=piece.start, end=end, checksum_bytes=piece.checksum_bytes)


@cache
def _expected(piece: Piece) -> list[LogItem]:
    return list(_read(_reader(piece), piece, piece.array, piece.end))


def _same(one: LogItem, other: LogItem) -> bool:
    if isinstance(one, SchemaChanged) or isinstance(other, SchemaChanged):
        return one == other
    return (
        one.table == other.table
        and one.rows.equals(other.rows)
        and one.rows.schema.equals(other.rows.schema)
        and np.array_equal(one.transactions.position, other.transactions.position)
        and np.array_equal(one.transactions.time_s, other.transactions.time_s)
        and all(one.transactions.gtid(i) == other.transactions.gtid(i) for i in range(len(one.transactions)))
    )


def _look(item: LogItem) -> None:
    """What is handed out must be valid Arrow, whatever it says."""
    if isinstance(item, ChangeBatch):
        item.rows.validate(full=True)
        if any(column.null_count and not field.nullable for column, field in zip(item.rows.columns, item.rows.schema, strict=True)):
            raise Broken("a column that is not nullable holds NULL")
        for index in range(len(item.transactions)):
            with suppress(Corrupt):
                item.transactions.gtid(index)


@contextmanager
def watched_arenas() -> Iterator[None]:
    """While it lasts, arenas know their padding."""
    with ExitStack() as stack:
        for module in (batches, resultset):
            stack.enter_context(mock.patch.object(module, "Arena", WatchedArena))
            stack.enter_context(mock.patch.object(module, "Layout", WatchedLayout))
        yield


class Runner:
    """Runs cases in this process."""

    def __init__(self) -> None:
        self._source = Guarded(1 << 20)
        self._target = Guarded(1 << 20)
        self._pool = GuardedPool(16 << 20)
        self.counts: Counter[str] = Counter()
        self._targets: dict[str, Callable[[Case], str]] = {
            "raw": self._raw,
            "repaired": self._repaired,
            "rows": self._rows,
            "json": self._json,
            "differences": self._differences,
            "map": self._map,
            "unpack": self._unpack,
            "event": self._event,
            "result": self._result,
            "result rows": self._result_rows,
            "stream": self._stream,
        }

    def run(self, case: Case) -> None:
        """Raises whatever must not be; else counts how it ended."""
        try:
            how = self._targets[case.target](case)
        except _OKAY as error:
            how = type(error).__name__
        finally:
            arenas, WatchedArena.made = WatchedArena.made, []
            if arenas:
                # Older ones share their memory with the last.
                arenas[-1].look(40 if case.target.startswith("result") else 16)
        self.counts[f"{case.target}: {how}"] += 1

    def _raw(self, case: Case) -> str:
        piece: Piece = case.extra
        expected = _expected(piece)
        got = 0
        same = True
        reader = _reader(piece)
        reader._batches._pool = self._pool
        for item in _read(reader, piece, self._source.hold(case.data), piece.end):
            _look(item)
            same = same and got < len(expected) and _same(item, expected[got])
            got += 1
        if same and got == len(expected):
            return "equal"
        if _fits_the_gaps(piece, case.data):
            return "different, told by the length in the index"
        raise Broken("a raw segment gives another result than the original")

    def _repaired(self, case: Case) -> str:
        piece, options, limits, schemas = case.extra
        reader = _reader(piece, options, limits, schemas=schemas)
        reader._batches._pool = self._pool
        for item in _read(reader, piece, self._source.hold(case.data), None):
            _look(item)
        return "read"

    def _rows(self, case: Case) -> str:
        """One row event, with its last byte at the edge."""
        piece, split, options, limits = case.extra
        reader = _reader(piece, options, limits)
        reader._batches._pool = self._pool
        data = self._source.hold(case.data)
        walk = Walk.over(data, position=piece.start, checksum_bytes=0)
        walk.map_data[: split - 19] = data[19:split]
        walk.map_at[1] = split - 19
        walk.row_at[0], walk.row_end[0], walk.row_type[0], walk.row_map[0] = split, len(data), data[split + 4], 0
        walk.row_partial[0] = _partial(data, split, len(data), data[split + 4])
        walk.row_commit[0], walk.row_ordinal[0], walk.row_time[0] = piece.end, 0, 1
        walk.state[S.FLUSHED] = walk.state[S.ROWS] = 1
        for item in reader._batches.make(walk, 1, Transactions.one(piece.end, 1, np.empty(0, np.uint8))):
            _look(item)
        return "read"

    def _json(self, case: Case) -> str:
        room = case.extra
        written = json_text(self._source.hold(case.data), 0, len(case.data), self._target.last(room), 0, room)
        if written == -2:
            if room >= text_room(len(case.data)):
                raise Broken("the room that always suffices does not")
            return "no room"
        if written < 0:
            return "Corrupt"
        if written > room:
            raise Broken("more was written than there is room")
        self._target.last(room)[:written].tobytes().decode()
        return "read"

    def _differences(self, case: Case) -> str:
        apply_diffs(case.extra, case.data).decode()
        return "read"

    def _map(self, case: Case) -> str:
        piece, options, schemas = case.extra
        shape = read_table_map(case.data, piece.flavour)
        known = {table.id: table for table in piece.tables} if schemas else {}
        plan_rows(shape, known.get(shape.table), options)
        return "read"

    def _unpack(self, case: Case) -> str:
        piece: Piece = case.extra
        plain = unpack(
            self._source.hold(case.data) if len(case.data) < len(self._source) else np.frombuffer(bytearray(case.data), np.uint8),
            checksum_bytes=piece.checksum_bytes,
            position=piece.start,
            gaps=piece.flavour == "mariadb",
            bytes_max=UNPACKED_BYTES_MAX,
            where="1",
        )
        if len(plain) > UNPACKED_BYTES_MAX:
            raise Broken("more was unpacked than the limit")
        return "read"

    def _event(self, case: Case) -> str:
        body = case.data
        read = 0
        readers: tuple[Callable[[], object], ...] = (
            lambda: read_query(body, "mysql"),
            lambda: read_query(body, "mariadb"),
            lambda: read_xa_prepare(body),
            lambda: read_incident(body),
            lambda: FormatDescription.read(body),
            lambda: read_rotate(body),
            lambda: read_previous_gtids(body),
            lambda: read_gtid_list(body),
            lambda: read_table_map(body, "mysql"),
            lambda: inflate(body, bytes_max=UNPACKED_BYTES_MAX),
            *(lambda kind=kind: read_gtid(kind, 1, body) for kind in (33, 34, 42, 162)),  # type: ignore[misc]
        )
        for reader in readers:
            try:
                reader()
                read += 1
            except _OKAY:
                pass
        return "read" if read else "Corrupt"

    def _result(self, case: Case) -> str:
        result, options, at_once = case.extra
        line: Any = Line(_Replay(case.data, at_once))
        try:
            for batch in resultset.select(
                line,
                "SELECT",
                result.table.columns,
                options,
                counters=resultset.ReadCounters(),
                pool=self._pool,
                rows_max=16,
                batch_bytes_max=1 << 20,
                row_bytes_max=2 << 20,
            ):
                batch.validate(full=True)
        except InvariantBroken:
            raise
        except SnowmeltError as error:
            return type(error).__name__
        return "read"

    def _result_rows(self, case: Case) -> str:
        """Rows right behind each other, with the slack that the kernel may load at the edge."""
        result, options, number = case.extra
        wire = resultset._Packets.__new__(resultset._Packets)
        wire._socket = _Replay(b"", 1)  # type: ignore[assignment]
        wire._counters = resultset.ReadCounters()
        wire._row_bytes_max = 2 << 20
        wire._plain = False
        wire.buffer = self._source.hold(case.data + bytes(SLACK))
        wire.at, wire.fill, wire.number = 0, len(case.data), number
        shape = resultset._ArenaShape(result.table.columns, options, rows_max=16, batch_bytes_max=1 << 20)
        rows = resultset._Rows(wire, shape, wire._counters, self._pool)
        try:
            while (batch := rows.next_batch()) is not None:
                batch.validate(full=True)
        except InvariantBroken:
            raise
        except SnowmeltError as error:
            return type(error).__name__
        return "read"

    def _stream(self, case: Case) -> str:
        piece, sizes, raw = case.extra
        framer = Framer(exact=piece.flavour == "mysql", segment_bytes=1)
        framer.connect(offset=piece.start)
        taken = feed(framer, case.data, sizes)
        if raw and not piece.data.startswith(taken.stored) and not _fits_the_gaps(piece, taken.stored):
            raise Broken("a stream stores what the log doesn't have")
        return "read"


def _fits_the_gaps(piece: Piece, data: bytes) -> bool:
    """Whether these are whole events of MariaDB that lie behind each other in some log: some may be missing, and where some are, one
    of another log may have found room. Only their number of bytes tells."""
    if piece.flavour != "mariadb" or len(data) == len(piece.data):
        return False
    offset, size = piece.start, 0
    for at, stop in spans(data):
        end = int.from_bytes(data[at + 13 : at + 17], "little")
        sealed = zlib.crc32(data[at : stop - 4]) == int.from_bytes(data[stop - 4 : stop], "little")
        if not sealed or end - (stop - at) < offset:
            return False
        offset, size = end, size + stop - at
    return size == len(data)


class _Replay:
    """A socket that gives recorded bytes and then its end."""

    def __init__(self, data: bytes, at_once: int) -> None:
        self._data = memoryview(data)
        self._at_once = at_once

    def recv_into(self, buffer: Any) -> int:
        count = min(len(buffer), self._at_once, len(self._data))
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def sendall(self, data: bytes) -> None:
        pass

    def settimeout(self, seconds: float) -> None:
        pass


# ---- the child


def cases_of(seed: int, number: int) -> list[Case]:
    made = [segment_case(seed, number)]
    if number % PARTS_EVERY == 0:
        made.append(part_case(seed, number))
    return made


def warm(runner: Runner) -> None:
    """Compile or load everything, and know the right results, before any limit holds."""
    for piece in pieces():
        if not _expected(piece):
            raise Broken(f"{piece.name} gives nothing")
        for options in OPTIONS:
            runner.run(Case("repaired", piece.name, piece.data, (piece, options, LIMITS[3], True)))
        bare = mutate.unchecked(piece)
        runner.run(Case("repaired", piece.name, bare.data, (bare, OPTIONS[0], LIMITS[0], True)))
        if piece.checksum_bytes:
            runner.run(Case("raw", piece.name, piece.data, piece))
        if piece in _sent():
            runner.run(Case("stream", piece.name, _stream(piece), (piece, [1, 1000], True)))
        if "payload" in piece.name or "compressed" in piece.name:
            runner.run(Case("unpack", piece.name, piece.data, piece))
    for document in documents():
        runner.run(Case("json", "", document.whole, text_room(len(document.whole))))
    for result in results():
        first, number = _first_row(result)
        for options in OPTIONS:
            runner.run(Case("result", result.name, result.data, (result, options, 1 << 20)))
            runner.run(Case("result rows", result.name, result.data[first:], (result, options, number)))
    rng = random.Random(0)
    for size in (1 << 16, UNPACKED_BYTES_MAX - 5, UNPACKED_BYTES_MAX, UNPACKED_BYTES_MAX + 1, 300 << 20):
        _zstd_bomb(size), _zlib_bomb(size)
    runner.run(_event_case(rng))
    wrong = [name for name in runner.counts if not name.endswith((": read", ": equal"))]
    if wrong:
        raise Broken(f"the corpus itself gives {wrong}")
    runner.counts.clear()


def _plant(what: str) -> None:
    """What the parent must notice."""
    match what:
        case "error":
            raise KeyError("planted")
        case "memory":
            bytearray(2 * MEMORY_BYTES_MAX)
        case "hang":
            while True:
                pass
        case "crash":
            edge = Guarded(1).last(1)
            ctypes.memset(edge.ctypes.data + 1, 0, 1)


def _child(seed: int, first: int, last: int, progress: Path, plants: dict[str, str]) -> None:
    runner = Runner()
    warm(runner)
    # Garbage is collected between cases, so that no case pays for others.
    gc.collect()
    gc.freeze()
    gc.disable()
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        for number in range(first, last):
            place[:8] = number.to_bytes(8, "little")
            for case in cases_of(seed, number):
                # The kernel ends a case that takes too long, compiled loops included.
                signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
                try:
                    _plant(plants.get(str(number), ""))
                    runner.run(case)
                except Exception as error:
                    signal.setitimer(signal.ITIMER_PROF, 0)
                    frames = traceback.extract_tb(error.__traceback__)
                    where = next((f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames) if "snowmelt" in f.filename), "")
                    _say(case=number, target=case.target, name=case.name, what=f"{type(error).__name__}: {str(error)[:300]}", where=where)
                signal.setitimer(signal.ITIMER_PROF, 0)
            if number % 200 == 199:
                gc.collect()
            if number % 1000 == 999:
                _say(counts=dict(runner.counts))
                runner.counts.clear()
    _say(counts=dict(runner.counts))


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


# ---- the parent


@dataclass
class Report:
    """What a run found."""

    segments: int = 0
    seconds: float = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)


def run(
    *,
    seed: int,
    count: int,
    seconds: float | None = None,
    save: Path | None = None,
    failures_max: int = 50,
    plants: dict[int, str] | None = None,
) -> Report:
    """Run cases 0 to count in children, each of which takes over where the one before it died. `plants` are for the fuzzer's own test."""
    report = Report()
    began = time.monotonic()
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        while number < count and len(report.failures) < failures_max:
            progress.write_bytes(number.to_bytes(8, "little"))
            command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.decoder", "--seed", str(seed)]
            command += ["--child", str(number), str(count), str(progress), json.dumps(plants or {})]
            with open(Path(folder) / "errors", "w+") as errors:
                process = subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=Path(__file__).parent.parent.parent
                )
                assert process.stdout is not None
                for line in process.stdout:
                    said = json.loads(line)
                    if "counts" in said:
                        report.counts.update(said["counts"])
                    else:
                        report.failures.append(said)
                    if (seconds and time.monotonic() - began > seconds) or len(report.failures) >= failures_max:
                        process.kill()
                code = process.wait()
                errors.seek(0)
                told = errors.read()
            at = int.from_bytes(progress.read_bytes(), "little")
            if code == 0 or (seconds and time.monotonic() - began > seconds) or len(report.failures) >= failures_max:
                number = count if code == 0 else at
                break
            if code > 0:
                raise RuntimeError(f"the fuzzer itself failed at case {at}:\n{told[-4000:]}")
            how = signal.Signals(-code).name
            report.failures.append(
                {"case": at, "what": "took too long" if how == "SIGPROF" else f"died of {how}", "where": _last_lines(told)}
            )
            number = at + 1
    report.segments = number
    report.seconds = time.monotonic() - began
    if save is not None and report.failures:
        save.mkdir(parents=True, exist_ok=True)
        for failure in report.failures:
            for case in cases_of(seed, failure["case"]):
                (save / f"{seed}-{failure['case']}-{case.target.replace(' ', '-')}").write_bytes(case.data)
    return report


def _last_lines(told: str) -> str:
    return "; ".join(line.strip() for line in told.splitlines() if "snowmelt" in line or "Error" in line)[:600]


def again(seed: int, number: int) -> None:
    """One case in this process, to look at."""
    runner = Runner()
    warm(runner)
    for case in cases_of(seed, number):
        print(f"{case.target} of {case.name or 'no segment'}, {len(case.data)} bytes")
        try:
            runner.run(case)
        except Exception:
            traceback.print_exc()
        else:
            print(next(iter(runner.counts)))
        runner.counts.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--case", type=int)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        first, last, progress, plants = arguments.child
        with watched_arenas():
            _child(arguments.seed, int(first), int(last), Path(progress), json.loads(plants))
        return
    if arguments.case is not None:
        with watched_arenas():
            again(arguments.seed, arguments.case)
        return
    report = run(seed=arguments.seed, count=arguments.count, seconds=arguments.seconds, save=arguments.save)
    for name, count in sorted(report.counts.items()):
        print(f"{count:9}  {name}")
    print(f"{report.segments} mutated segments in {report.seconds:.0f} s, {len(report.failures)} failures")
    for failure in report.failures:
        print(f"  {failure}\n    python -m tests.fuzz.decoder --seed {arguments.seed} --case {failure['case']}")
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
