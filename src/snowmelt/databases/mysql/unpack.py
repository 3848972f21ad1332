"""Compressed and fragmented events, made plain.

MariaDB compresses single events (zlib) and splits huge row events, MySQL compresses whole transactions (zstd). The walk and the
row kernel know none of it: a range that holds such events is first rewritten as plain events without checksums, in the same
order, each inner event with the position of the outer one. Their places in the log are checked here, because afterwards they
don't tell. What comes out is bounded: what claims to grow beyond its limit is refused before anything is allocated, and what
grows beyond its claim is refused when it does.
"""

from __future__ import annotations

import zlib

import numpy as np
import zstandard

from snowmelt.columnar.arena import Bytes
from snowmelt.columnar.crc32 import crc32
from snowmelt.databases.mysql.events import HEADER_BYTES, Event, Reader
from snowmelt.errors import Corrupt

EVENT_BYTES_MAX = (1 << 32) - 1
"""The header's size has 32 bits."""
UNPACKED_BYTES_MAX = 4 << 30
"""What one range may grow to."""

_PLAIN_TYPE = {
    Event.WRITE_ROWS_COMPRESSED_V1: Event.WRITE_ROWS_V1,
    Event.UPDATE_ROWS_COMPRESSED_V1: Event.UPDATE_ROWS_V1,
    Event.DELETE_ROWS_COMPRESSED_V1: Event.DELETE_ROWS_V1,
    Event.WRITE_ROWS_COMPRESSED: Event.WRITE_ROWS,
    Event.UPDATE_ROWS_COMPRESSED: Event.UPDATE_ROWS,
    Event.DELETE_ROWS_COMPRESSED: Event.DELETE_ROWS,
}
_PACKED = frozenset({Event.TRANSACTION_PAYLOAD, Event.QUERY_COMPRESSED, Event.PARTIAL_ROW_DATA, *_PLAIN_TYPE})
_PIECE_BYTES = 1 << 20
_UNCOMPRESSED = 255


def unpack(
    data: Bytes, *, checksum_bytes: int, where: str, position: int | None = None, gaps: bool = True, bytes_max: int = UNPACKED_BYTES_MAX
) -> Bytes:
    """The same range as plain events without checksums, at most `bytes_max` of them.

    `position` is where the range begins in the log; without it the events' places are not checked. `gaps` says that events may
    be missing.
    """
    pieces: list[bytes] = []
    total = 0
    fragments = _Fragments()
    at, end = 0, data.shape[0]
    while at < end:
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
            position = _end(position, size, int.from_bytes(header[13:17], "little"), gaps, where=f"{where}+{at}")
        try:
            made = _plain(header, data[at + HEADER_BYTES : stop].tobytes(), fragments, bytes_max - total)
        except Corrupt as error:
            raise Corrupt(error.fact, detail=error.detail, position=f"{where}+{at}") from None
        total += sum(len(piece) for piece in made)
        if total > bytes_max:
            raise Corrupt("a range unpacks to more than its limit", detail=f"{bytes_max} bytes", position=f"{where}+{at}")
        pieces.extend(made)
        at += size
    if fragments.expected:
        raise Corrupt("a fragmented event is not whole", position=f"{where}+{at}")
    return np.frombuffer(b"".join(pieces), np.uint8)


def _end(position: int, size: int, low: int, gaps: bool, *, where: str) -> int:
    """Where an event ends in the log, by the end of the one before it and the 32 bits that its header has of its own."""
    if low == 0 and (position + size) & 0xFFFFFFFF:
        # It is in no file.
        return position
    forward = (low - position) & 0xFFFFFFFF
    if forward < size or (forward > size and not gaps):
        raise Corrupt("an event is not where the log says", position=where)
    return position + forward


def _event(header: bytes, kind: int, body: bytes) -> bytes:
    size = HEADER_BYTES + len(body)
    if size > EVENT_BYTES_MAX:
        raise Corrupt("an event grows beyond its limit", detail=f"{size} bytes")
    return header[:4] + bytes([kind]) + header[5:9] + size.to_bytes(4, "little") + header[13:] + body


def _plain(header: bytes, body: bytes, fragments: _Fragments, room: int) -> list[bytes]:
    kind = header[4]
    if fragments.expected and kind not in (Event.PARTIAL_ROW_DATA, Event.ANNOTATE):
        raise Corrupt("a fragmented event is not whole")
    if kind == Event.TRANSACTION_PAYLOAD:
        return _payload(header, body, room)
    if kind == Event.QUERY_COMPRESSED:
        reader = Reader(body, "QUERY_COMPRESSED")
        post = reader.take(13)
        # The statement lies behind the status variables and the database's name with its zero byte.
        head = reader.take(int.from_bytes(post[11:13], "little") + post[8] + 1)
        return [_event(header, Event.QUERY, post + head + inflate(reader.rest(), bytes_max=room))]
    if kind in _PLAIN_TYPE:
        return [_event(header, *_rows(kind, body, room))]
    if kind == Event.PARTIAL_ROW_DATA:
        whole = fragments.add(body)
        if whole is None:
            return []
        inner = whole[4] if len(whole) > HEADER_BYTES else 0
        if int.from_bytes(whole[9:13], "little") not in (len(whole), len(whole) + 4):
            raise Corrupt("fragments don't make a row event")
        body = whole[HEADER_BYTES:]
        if inner in _PLAIN_TYPE:
            return [_event(header, *_rows(inner, body, room))]
        if inner not in (*_PLAIN_TYPE.values(), Event.PARTIAL_UPDATE_ROWS):
            raise Corrupt("fragments don't make a row event", detail=f"type {inner}")
        return [_event(header, inner, body)]
    return [_event(header, kind, body)]


def _rows(kind: int, body: bytes, room: int) -> tuple[int, bytes]:
    plain = _PLAIN_TYPE[Event(kind)]
    reader = Reader(body, "compressed rows")
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
    return plain, head + inflate(reader.rest(), bytes_max=room)


def inflate(packed: bytes, *, bytes_max: int = EVENT_BYTES_MAX) -> bytes:
    """MariaDB's compressed data: a byte of algorithm, length's size and zlib's wrapping or none; the plain length; the stream."""
    reader = Reader(packed, "compressed data")
    first = reader.number(1)
    algorithm, size = first >> 4 & 7, first & 7
    if not first & 0x80 or algorithm != 0 or not 1 <= size <= 4:
        raise Corrupt("compressed data begin with a header that we don't know", detail=f"byte {first}")
    length = int.from_bytes(reader.take(size), "big")
    if length > bytes_max:
        raise Corrupt("compressed data grow beyond their limit", detail=f"{length} bytes")
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS if first & 8 else zlib.MAX_WBITS)
    try:
        plain = decompressor.decompress(reader.rest(), length + 1)
    except zlib.error:
        raise Corrupt("compressed data can't be inflated") from None
    if len(plain) != length or not decompressor.eof:
        raise Corrupt("compressed data don't have the length that they say")
    return plain


def first_of_payload(body: bytes) -> bytes:
    """The first event of a TRANSACTION_PAYLOAD, whose body may be cut short behind it: what can be told without unpacking the rest."""
    compression, _, _, payload = _fields_of_payload(body)
    if compression == _UNCOMPRESSED:
        return payload[: int.from_bytes(payload[9:13], "little")]
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(payload) as stream:
            header = stream.read(HEADER_BYTES)
            size = min(int.from_bytes(header[9:13], "little"), _PIECE_BYTES)
            return header + stream.read(max(0, size - HEADER_BYTES))
    except zstandard.ZstdError:
        raise Corrupt("TRANSACTION_PAYLOAD can't be decompressed") from None


def _fields_of_payload(body: bytes) -> tuple[int, int, int, bytes]:
    """Its compression, how long it is plain and as it is, and the rest."""
    reader = Reader(body, "TRANSACTION_PAYLOAD")
    compression, plain_bytes, payload_bytes = _UNCOMPRESSED, -1, -1
    while True:
        field = reader.packed()
        if field == 0:
            break
        value = Reader(reader.take(reader.packed()), "TRANSACTION_PAYLOAD")
        if field == 1:
            payload_bytes = value.packed()
        elif field == 2:
            compression = value.packed()
        elif field == 3:
            plain_bytes = value.packed()
    return compression, plain_bytes, payload_bytes, reader.rest()


def _payload(header: bytes, body: bytes, room: int) -> list[bytes]:
    """MySQL's TRANSACTION_PAYLOAD: fields by type and length, then whole events without checksums."""
    compression, plain_bytes, payload_bytes, payload = _fields_of_payload(body)
    if payload_bytes != len(payload):
        raise Corrupt("TRANSACTION_PAYLOAD is not as long as it says")
    if compression == _UNCOMPRESSED:
        plain = payload
    elif compression == 0:
        if not 0 <= plain_bytes <= room:
            raise Corrupt("TRANSACTION_PAYLOAD claims an impossible size", detail=str(plain_bytes))
        plain = _unzstd(payload, plain_bytes)
    else:
        raise Corrupt("TRANSACTION_PAYLOAD's compression is unknown", detail=str(compression))
    made: list[bytes] = []
    at = 0
    while at < len(plain):
        inner = plain[at : at + HEADER_BYTES]
        size = int.from_bytes(inner[9:13], "little")
        if len(inner) < HEADER_BYTES or size < HEADER_BYTES or size > len(plain) - at or inner[4] in _PACKED:
            raise Corrupt("TRANSACTION_PAYLOAD holds an event that can't be")
        # Inner events have positions of their own kind; theirs is the payload's.
        made.append(inner[:13] + header[13:17] + inner[17:] + plain[at + HEADER_BYTES : at + size])
        at += size
    return made


def _unzstd(payload: bytes, plain_bytes: int) -> bytes:
    pieces: list[bytes] = []
    total = 0
    try:
        # Streaming, since frames need not tell their size, and never more than was claimed.
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(payload, read_across_frames=True) as stream:
            # In pieces, because a read allocates all that it is asked for.
            while total <= plain_bytes and (piece := stream.read(min(_PIECE_BYTES, plain_bytes + 1 - total))):
                pieces.append(piece)
                total += len(piece)
    except zstandard.ZstdError:
        raise Corrupt("TRANSACTION_PAYLOAD can't be decompressed") from None
    if total != plain_bytes:
        raise Corrupt("TRANSACTION_PAYLOAD doesn't have the length that it says")
    return b"".join(pieces)


class _Fragments:
    """MariaDB's PARTIAL_ROW_DATA: two numbers, a byte of flags, in the first one the whole size, and a piece of the event.

    The two numbers are this fragment's and how many there are. Which comes first differs between what is documented and what is
    built; the first fragment's number is one, and that tells.
    """

    def __init__(self) -> None:
        self.expected = 0
        self._pieces: list[bytes] = []
        self._held = 0
        self._size = 0
        self._number_first = True

    def add(self, body: bytes) -> bytes | None:
        reader = Reader(body, "PARTIAL_ROW_DATA")
        one, two = reader.number(4), reader.number(4)
        flags = reader.number(1)
        if not self.expected:
            if not flags & 1 or 1 not in (one, two) or max(one, two) < 1:
                raise Corrupt("a fragmented event doesn't begin with its first fragment")
            self._number_first = one == 1
            self.expected = two if self._number_first else one
            self._size = reader.number(8)
            if self._size > EVENT_BYTES_MAX:
                raise Corrupt("a fragmented event grows beyond its limit", detail=f"{self._size} bytes")
        number, count = (one, two) if self._number_first else (two, one)
        if number != len(self._pieces) + 1 or count != self.expected:
            raise Corrupt("fragments are out of order")
        self._held += reader.left
        self._pieces.append(reader.rest())
        if self._held > self._size:
            raise Corrupt("fragments are longer than their event")
        if number < count:
            return None
        whole = b"".join(self._pieces)
        if len(whole) != self._size:
            raise Corrupt("fragments don't make the event's size")
        self.expected, self._pieces, self._held = 0, [], 0
        return whole
