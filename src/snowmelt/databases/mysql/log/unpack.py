"""Compressed and fragmented events, made plain.

MariaDB compresses single events (zlib) and splits huge row events, MySQL compresses whole transactions (zstd). The walk and the
row kernel read only plain events. So a window is rewritten from such an event on: as plain events without checksums, in the same
order, each inner event with the position of the outer one. Positions in the log are checked here, because the plain events no longer
have them.

Row events that are not wanted (`Sieve`) are not unpacked. Only the beginning of such an event comes out, which has the number of its
table and whether its statement continues. The walk needs no more of it.

Memory: plain bytes are assembled in memory up to a limit, and beyond it in a spill file. So is an event that comes in fragments. Data that
grow beyond a limit, or beyond their stated size, are refused at that moment. No memory is allocated for a stated size alone.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import zstandard
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.assembly import Assembly, too_large
from snowmelt.columnar.crc32 import crc32
from snowmelt.columnar.memory import JIT, kernel_view, load16, load32, store32
from snowmelt.databases.mysql.log.events import HEADER_BYTES, UNCOMPRESSED, Event, Reader, fields_of_payload
from snowmelt.errors import Corrupt, SourceDrift, present
from snowmelt.relay.limits import Limits

EVENT_BYTES_MAX = (1 << 32) - 1
"""The header's size has 32 bits."""

_PLAIN_TYPE = {
    Event.WRITE_ROWS_COMPRESSED_V1: Event.WRITE_ROWS_V1,
    Event.UPDATE_ROWS_COMPRESSED_V1: Event.UPDATE_ROWS_V1,
    Event.DELETE_ROWS_COMPRESSED_V1: Event.DELETE_ROWS_V1,
    Event.WRITE_ROWS_COMPRESSED: Event.WRITE_ROWS,
    Event.UPDATE_ROWS_COMPRESSED: Event.UPDATE_ROWS,
    Event.DELETE_ROWS_COMPRESSED: Event.DELETE_ROWS,
}
_ROWS = frozenset(_PLAIN_TYPE.values()) | {Event.PARTIAL_UPDATE_ROWS}
ROW_HEAD_BYTES = HEADER_BYTES + 8
"""Of a row event, also of a compressed one: its header, its table's number and its flags."""
_PIECE_BYTES = 1 << 20
_MAP_BYTES_MAX = 1 << 20
"""A larger map is not read here; its table's rows are unpacked."""
_HEAD_BYTES_MAX = 1 << 18
"""No event has more than that before the bytes that are packed: extra data of 64 KiB, two bitmaps of 8 KiB, status variables."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A stretch of the log as plain events."""

    data: Bytes
    taken: int
    """The number of bytes of the log that it was made of."""
    starts: list[tuple[int, int]]
    """Where each of the log's events begins, in the plain bytes and in the log's."""

    def came_from(self, at: int) -> int:
        """Where, in the log's bytes, the event begins that holds the plain byte at `at`."""
        return self.starts[bisect_right(self.starts, (at, EVENT_BYTES_MAX << 8)) - 1][1]

    def first_from(self, at: int) -> int:
        """Where, in the log's bytes, the first event begins whose plain bytes begin at `at` or later."""
        index = bisect_left(self.starts, (at, 0))
        return self.starts[index][1] if index < len(self.starts) else self.taken


@dataclass(frozen=True, slots=True)
class Sieve:
    """Which rows are wanted, by the body of their table's map."""

    wanted: Callable[[bytes], bool]
    map_of: Callable[[int], bytes | None]
    """The map of a table by its number, among those that were mapped before."""

    def drops(self, number: int) -> bool:
        """Whether the rows of a table that was mapped before are not wanted. Without a known map the walk decides."""
        body = self.map_of(number)
        return body is not None and not self.wanted(body)


def row_head(kind: int, head: bytes) -> bytes | None:
    """The beginning of a row event as an event of its own, without rows and without a position; None if it is no row event. `kind` and
    `head` are those of the event."""
    plain = _PLAIN_TYPE.get(Event(kind)) if kind in _PLAIN_TYPE else kind if kind in _ROWS else None
    if plain is None:
        return None
    return head[:4] + bytes([plain]) + head[5:9] + ROW_HEAD_BYTES.to_bytes(4, "little") + bytes(4) + head[17:ROW_HEAD_BYTES]


def unpack(
    data: Bytes, *, checksum_bytes: int, where: str, position: int | None = None, gaps: bool = True, bytes_max: int | None = None
) -> Bytes:
    """All of a range as plain events without checksums, at most `bytes_max` of them.

    `position` is where the range begins in the log; without it the events' places are not checked. `gaps` says that events may
    be missing.
    """
    limits = Limits()
    unpacker = Unpacker(gaps=gaps, limits=limits if bytes_max is None else replace(limits, unpacked_bytes_max=bytes_max))
    plain = unpacker.take(data, checksum_bytes=checksum_bytes, where=where, position=position, enough=EVENT_BYTES_MAX << 8)
    unpacker.check_whole(where)
    return plain.data


class Unpacker:
    """Unpacks one log, window by window. Keeps the fragments of an event, which may lie in several windows."""

    def __init__(self, *, gaps: bool, limits: Limits) -> None:
        self._gaps = gaps
        self._limits = limits
        self.bytes_made = 0
        self._fragments = _Fragments(limits)

    def forget(self) -> None:
        """The next window does not continue where the last one ended."""
        self._fragments.close()
        self._fragments = _Fragments(self._limits)

    @property
    def expects(self) -> bool:
        """Whether a fragment must follow."""
        return bool(self._fragments.expected)

    def check_whole(self, where: str) -> None:
        """Nothing is left open at the range's end."""
        if self.expects:
            raise Corrupt("a fragmented event is not whole", position=where)

    def close(self) -> None:
        """Release the memory of an event that has come in part."""
        self._fragments.close()

    def take(self, data: Bytes, *, checksum_bytes: int, where: str, position: int | None, enough: int, sieve: Sieve | None = None) -> Plain:
        """Events of a window as plain ones, until they make `enough` bytes, and never more than the limit. Row events that the sieve drops
        come as heads only."""
        limit = min(self._limits.spill_bytes_max, self._limits.unpacked_bytes_max)
        with Assembly(memory_bytes=self._limits.assembly_bytes, bytes_max=limit) as out:
            payloads: list[tuple[int, int, int, str]] = []
            starts: list[tuple[int, int]] = []
            maps = _Maps(sieve)
            at, end = 0, data.shape[0]
            while at < end and out.size < enough:
                if end - at < HEADER_BYTES:
                    raise Corrupt("an event is cut short", position=f"{where}+{at}")
                header = data[at : at + HEADER_BYTES].tobytes()
                size = int.from_bytes(header[9:13], "little")
                if size < HEADER_BYTES + checksum_bytes or size > end - at:
                    raise Corrupt("an event's size can't be", position=f"{where}+{at}")
                stop = at + size - checksum_bytes
                if checksum_bytes and int(crc32(data, at, stop, np.uint32(0))) != int.from_bytes(data[stop : stop + 4].tobytes(), "little"):
                    raise Corrupt("an event's checksum is wrong", position=f"{where}+{at}")
                if position is not None:
                    position = event_end(position, header, self._gaps, where=f"{where}+{at}")
                    # Its inner events get its end, even if the event itself does not have it.
                    header = header[:13] + (position & 0xFFFFFFFF).to_bytes(4, "little") + header[17:]
                first = out.size
                starts.append((first, at))
                try:
                    self._write(out, header, data[at + HEADER_BYTES : stop], limit - out.size, maps)
                except Corrupt as error:
                    raise Corrupt(error.fact, detail=error.detail, position=f"{where}+{at}") from None
                if header[4] == Event.TRANSACTION_PAYLOAD:
                    payloads.append((first, out.size, int.from_bytes(header[13:17], "little"), f"{where}+{at}"))
                at += size
            plain = out.finish()
            for first, last, low, place in payloads:
                # Inner events have positions of their own kind; theirs is the payload's.
                if not _relabel(plain, first, last, low):
                    raise Corrupt("TRANSACTION_PAYLOAD holds an event that can't be", position=place)
            self.bytes_made += out.size
            return Plain(plain, at, starts)

    def _write(self, out: Assembly, header: bytes, body: Bytes, room: int, maps: _Maps) -> None:
        kind = header[4]
        if self.expects and kind not in (Event.PARTIAL_ROW_DATA, Event.ANNOTATE):
            raise Corrupt("a fragmented event is not whole")
        if kind == Event.TABLE_MAP:
            maps.note(body)
        if (kind in _PLAIN_TYPE or kind in _ROWS) and body.shape[0] >= 8 and maps.drops(int.from_bytes(body[:6].tobytes(), "little")):
            _write_event(out, header, _PLAIN_TYPE.get(Event(kind), Event(kind)), body[:8])
        elif kind == Event.TRANSACTION_PAYLOAD:
            _write_payload(out, body, maps, large=self._limits.assembly_bytes)
        elif kind == Event.QUERY_COMPRESSED:
            reader = Reader(body[:_HEAD_BYTES_MAX].tobytes(), "QUERY_COMPRESSED")
            post = reader.take(13)
            # The statement follows the status variables and the database's name with its zero byte.
            head = post + reader.take(int.from_bytes(post[11:13], "little") + post[8] + 1)
            _write_inflated(out, header, Event.QUERY, head, body[len(head) :], room)
        elif kind in _PLAIN_TYPE:
            _write_rows(out, header, kind, body, room)
        elif kind == Event.PARTIAL_ROW_DATA:
            whole = self._fragments.add(body)
            if whole is not None:
                _write_defragmented(out, header, whole, room)
        else:
            _write_event(out, header, kind, body)


class _Maps:
    """The tables that were mapped so far, and whether rows of each are dropped. A number belongs to one table for as long as a statement
    can refer to it."""

    def __init__(self, sieve: Sieve | None) -> None:
        self.sieve = sieve
        self._dropped: dict[int, bool] = {}
        self._judged: dict[bytes, bool] = {}

    def note(self, body: Bytes) -> None:
        if self.sieve is None or body.shape[0] < 8:
            return
        raw = body.tobytes()
        if raw not in self._judged:
            # Each statement maps its tables again, mostly the same ones.
            self._judged[raw] = not self.sieve.wanted(raw)
        self._dropped[int.from_bytes(raw[:6], "little")] = self._judged[raw]

    def drops(self, number: int) -> bool:
        if self.sieve is None:
            return False
        found = self._dropped.get(number)
        if found is None:
            # Not remembered: this window may yet map the same number.
            return self.sieve.drops(number)
        return found

    def table(self) -> tuple[Longs, Bytes]:
        """The same for a kernel: numbers, and whether they are dropped."""
        return np.array(list(self._dropped), np.int64), np.array(list(self._dropped.values()), np.uint8)


def event_end(position: int, header: bytes, gaps: bool, *, where: str) -> int:
    """Where an event ends in the log, by the end of the event before it and the 32 bits of its end in its header.

    MariaDB writes zero there inside of transactions: then the event's size decides.
    """
    size, low = int.from_bytes(header[9:13], "little"), int.from_bytes(header[13:17], "little")
    if low == 0:
        return position + size
    forward = (low - position) & 0xFFFFFFFF
    if forward < size or (forward > size and not gaps) or forward > 1 << 31 >= size:
        raise Corrupt("an event is not where the log says", position=where)
    return position + forward


def _write_head(out: Assembly, header: bytes, kind: int, body_bytes: int) -> None:
    size = HEADER_BYTES + body_bytes
    if size > EVENT_BYTES_MAX:
        raise Corrupt("an event grows beyond its limit", detail=f"{size} bytes")
    out.write(header[:4] + bytes([kind]) + header[5:9] + size.to_bytes(4, "little") + header[13:])


def _write_event(out: Assembly, header: bytes, kind: int, body: Bytes) -> None:
    _write_head(out, header, kind, body.shape[0])
    out.write(body.data)


def _write_inflated(out: Assembly, header: bytes, kind: int, head: bytes, packed: Bytes, room: int) -> None:
    """An event whose bytes after `head` are compressed."""
    inflated = _Inflated(packed)
    if len(head) + inflated.length > room:
        raise too_large(room)
    _write_head(out, header, kind, len(head) + inflated.length)
    out.write(head)
    for piece in inflated:
        out.write(piece)


def _write_defragmented(out: Assembly, header: bytes, whole: Bytes, room: int) -> None:
    inner = int(whole[4]) if whole.shape[0] > HEADER_BYTES else 0
    if int.from_bytes(whole[9:13].tobytes(), "little") not in (whole.shape[0], whole.shape[0] + 4):
        raise Corrupt("fragments don't make a row event")
    body = whole[HEADER_BYTES:]
    if inner in _PLAIN_TYPE:
        _write_rows(out, header, inner, body, room)
    elif inner in (*_PLAIN_TYPE.values(), Event.PARTIAL_UPDATE_ROWS):
        _write_event(out, header, inner, body)
    else:
        raise Corrupt("fragments don't make a row event", detail=f"type {inner}")


def _write_rows(out: Assembly, header: bytes, kind: int, body: Bytes, room: int) -> None:
    plain = _PLAIN_TYPE[Event(kind)]
    reader = Reader(body[:_HEAD_BYTES_MAX].tobytes(), "compressed rows")
    head = reader.take(8)
    if plain >= Event.WRITE_ROWS:
        extra = reader.take(2)
        head += extra + reader.take(int.from_bytes(extra, "little") - 2)
    count_at = reader.take(1)
    if count_at[0] == 252:
        count_at += reader.take(2)
    elif count_at[0] > 252:
        raise Corrupt("compressed rows hold an impossible number of columns")
    count = count_at[0] if len(count_at) == 1 else int.from_bytes(count_at[1:], "little")
    bitmaps = 2 if plain in (Event.UPDATE_ROWS, Event.UPDATE_ROWS_V1) else 1
    head += count_at + reader.take(bitmaps * ((count + 7) // 8))
    _write_inflated(out, header, plain, head, body[len(head) :], room)


class _Inflated:
    """MariaDB's compressed data: a byte of algorithm, length's size and zlib's wrapping or none; the plain length; the stream."""

    def __init__(self, packed: Bytes) -> None:
        reader = Reader(packed[:5].tobytes(), "compressed data")
        first = reader.number(1)
        algorithm, size = first >> 4 & 7, first & 7
        if not first & 0x80 or algorithm != 0 or not 1 <= size <= 4:
            raise Corrupt("compressed data begin with a header that we don't know", detail=f"byte {first}")
        self.length = int.from_bytes(reader.take(size), "big")
        self._stream = packed[1 + size :]
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS if first & 8 else zlib.MAX_WBITS)

    def __iter__(self) -> Iterator[bytes]:
        """The plain bytes in pieces: exactly as many as the header states, or an error."""
        left = self.length
        stream = self._decompressor
        for begin in range(0, max(1, self._stream.shape[0]), _PIECE_BYTES):
            rest = self._stream[begin : begin + _PIECE_BYTES].tobytes()
            while not stream.eof:
                try:
                    piece = stream.decompress(rest, min(_PIECE_BYTES, left + 1))
                except zlib.error:
                    raise Corrupt("compressed data can't be inflated") from None
                rest = stream.unconsumed_tail
                left -= len(piece)
                if left < 0 or not (rest or piece):
                    break
                if piece:
                    yield piece
        if left or not stream.eof:
            raise Corrupt("compressed data don't have the length that they say")


def inflate(packed: bytes, *, bytes_max: int = EVENT_BYTES_MAX) -> bytes:
    """A compressed value of MariaDB."""
    inflated = _Inflated(np.frombuffer(packed, np.uint8))
    if inflated.length > bytes_max:
        raise SourceDrift(
            "a compressed value is larger than the limit", detail=f"{inflated.length} of {bytes_max} bytes", hint="exclude the table"
        )
    return b"".join(inflated)


def _write_payload(out: Assembly, body: Bytes, maps: _Maps, *, large: int) -> None:
    """MySQL's TRANSACTION_PAYLOAD: fields by type and length, then whole events without checksums. One that is `large` passes the sieve; a
    smaller one fits into memory anyway."""
    head = body[:_HEAD_BYTES_MAX].tobytes()
    compression, plain_bytes, payload_bytes, left = fields_of_payload(head)
    payload = body[len(head) - left :]
    if payload_bytes != payload.shape[0]:
        raise Corrupt("TRANSACTION_PAYLOAD is not as long as it says")
    if compression == UNCOMPRESSED:
        plain_bytes = payload.shape[0]
        pieces: Iterable[bytes | memoryview] = (payload[at : at + _PIECE_BYTES].data for at in range(0, plain_bytes, _PIECE_BYTES))
    elif compression == 0:
        if not 0 <= plain_bytes <= EVENT_BYTES_MAX << 8:
            raise Corrupt("TRANSACTION_PAYLOAD claims an impossible size", detail=str(plain_bytes))
        pieces = _unzstd(payload, plain_bytes)
    else:
        raise Corrupt("TRANSACTION_PAYLOAD's compression is unknown", detail=str(compression))
    if maps.sieve is not None and plain_bytes > large:
        _write_sifted(out, pieces, maps)
    else:
        for piece in pieces:
            out.write(piece)


def _unzstd(payload: Bytes, plain_bytes: int) -> Iterator[bytes]:
    """The plain bytes in pieces: exactly as many as the header states, or an error."""
    total = 0
    try:
        # Streaming, since frames need not have their size, and never more than the stated size.
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(payload.data, read_across_frames=True) as stream:
            # In pieces, because a read allocates as much as it may return.
            while total <= plain_bytes and (piece := stream.read(min(_PIECE_BYTES, plain_bytes + 1 - total))):
                total += len(piece)
                if total <= plain_bytes:
                    yield piece
    except zstandard.ZstdError:
        raise Corrupt("TRANSACTION_PAYLOAD can't be decompressed") from None
    if total != plain_bytes:
        raise Corrupt("TRANSACTION_PAYLOAD doesn't have the length that it says")


class _SieveStop(IntEnum):
    """Why the sieve's kernel stops at an event."""

    MORE = 0
    """Too little of it is there to decide."""
    MAP = 1
    """A whole map of a table that is not known yet."""
    DROPPED = 2
    CUT = 3
    """A wanted event that is not whole."""
    BAD = 4


def _write_sifted(out: Assembly, pieces: Iterable[bytes | memoryview], maps: _Maps) -> None:
    """Whole events, piece by piece, without the rows that are dropped. Memory: a piece, and a map that two pieces share."""
    rest = b""
    dropping = copying = 0
    for piece in pieces:
        data = rest + bytes(piece) if rest else piece
        at, rest = 0, b""
        if dropping:
            at = min(dropping, len(data))
            dropping -= at
        elif copying:
            at = min(copying, len(data))
            copying -= at
            out.write(memoryview(data)[:at])
        view = kernel_view(np.frombuffer(data, np.uint8))
        known, drops = maps.table()
        while at < len(data):
            first = at
            at, why = _sift(view, first, known, drops)
            out.write(memoryview(data)[first:at])
            if why == _SieveStop.BAD:
                raise Corrupt("TRANSACTION_PAYLOAD holds an event that can't be")
            if why == _SieveStop.MORE:
                rest = bytes(memoryview(data)[at:])
                break
            size = int.from_bytes(view[at + 9 : at + 13].tobytes(), "little")
            here = min(size, len(data) - at)
            if why == _SieveStop.MAP:
                maps.note(view[at + HEADER_BYTES : at + size])
                known, drops = maps.table()
                out.write(memoryview(data)[at : at + size])
            elif why == _SieveStop.DROPPED:
                head = row_head(int(view[at + 4]), bytes(memoryview(data)[at : at + ROW_HEAD_BYTES]))
                out.write(present(head, "rows that are left out have no head"))
                dropping = size - here
            else:
                out.write(memoryview(data)[at : at + here])
                copying = size - here
            at += here
    if rest or dropping or copying:
        raise Corrupt("TRANSACTION_PAYLOAD holds an event that can't be")


@njit(**JIT)
def _sift(data, at, known, drops):  # type: ignore[no-untyped-def]
    """Step over whole events that come out unchanged. Where the next other event begins, and its `_SieveStop`."""
    end = data.shape[0]
    while at < end:
        if end - at < 19:
            return at, 0
        size = np.int64(load32(data, at + 9))
        kind = data[at + 4]
        if size < 19:
            return at, 4
        if size >= 27 and (kind == 19 or (23 <= kind <= 25) or (30 <= kind <= 32) or kind == 39):
            if end - at < 27:
                return at, 0
            table = np.int64(load32(data, at + 19)) | (np.int64(load16(data, at + 23)) << 32)
            found = -1
            for i in range(known.shape[0]):
                if known[i] == table:
                    found = i
            if kind == 19:
                if found < 0 and size <= _MAP_BYTES_MAX:
                    return at, (1 if size <= end - at else 0)
            elif found >= 0 and drops[found] and size > 27:
                return at, 2
        if size > end - at:
            return at, 3
        at += size
    return at, 0


@njit(**JIT)
def _relabel(data, at, end, low):  # type: ignore[no-untyped-def]
    """Give each event in data[at:end] the position `low`. Whether they are whole events and none is packed."""
    while at < end:
        if end - at < 19:
            return False
        size = np.int64(load32(data, at + 9))
        kind = data[at + 4]
        if size < 19 or size > end - at or kind == 40 or 165 <= kind <= 172:
            return False
        store32(data, at + 13, np.uint64(low))
        at += size
    return True


class _Fragments:
    """MariaDB's PARTIAL_ROW_DATA: two numbers, a byte of flags, in the first one the whole size, and a piece of the event.

    The two numbers are the fragment's own and the number of fragments. Their order differs between the documentation and the servers. The
    first fragment's own number is one, which shows the order.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.expected = 0
        self._number = 0
        self._size = 0
        self._number_first = True
        self._pieces = Assembly(memory_bytes=0, bytes_max=0)

    def close(self) -> None:
        self._pieces.close()

    def add(self, body: Bytes) -> Bytes | None:
        head = body[:17].tobytes()
        reader = Reader(head, "PARTIAL_ROW_DATA")
        one, two = reader.number(4), reader.number(4)
        flags = reader.number(1)
        if not self.expected:
            if not flags & 1 or 1 not in (one, two) or max(one, two) < 1:
                raise Corrupt("a fragmented event doesn't begin with its first fragment")
            self._number_first = one == 1
            self.expected = two if self._number_first else one
            self._number = 0
            self._size = reader.number(8)
            if self._size > EVENT_BYTES_MAX:
                raise Corrupt("a fragmented event grows beyond its limit", detail=f"{self._size} bytes")
            self._pieces = Assembly(memory_bytes=self._limits.assembly_bytes, bytes_max=self._limits.spill_bytes_max)
        number, count = (one, two) if self._number_first else (two, one)
        if number != self._number + 1 or count != self.expected:
            raise Corrupt("fragments are out of order")
        piece = body[len(head) - reader.left :]
        if self._pieces.size + piece.shape[0] > self._size:
            raise Corrupt("fragments are longer than their event")
        self._pieces.write(piece.data)
        self._number = number
        if number < count:
            return None
        if self._pieces.size != self._size:
            raise Corrupt("fragments don't make the event's size")
        self.expected = 0
        with self._pieces as pieces:
            return pieces.finish()
