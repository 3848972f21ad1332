"""How bytes are made bad.

`spoil` changes bytes as an accident would, checksums as they then are. `rebuild` changes what is inside events and then repairs
sizes, positions, compression and checksums around it, so that the checks behind them are reached.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence

import zstandard

from snowmelt.databases.mysql.log.events import Event
from tests.fuzz.corpus import Piece, spans

_NUMBERS = (0, 1, 2, 3, 8, 16, 19, 27, 64, 127, 128, 250, 251, 252, 253, 254, 255, 256, 1000, 32767, 32768, 65535, 65536)
_LARGE = (1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_BYTES = (0, 1, 0x7F, 0x80, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
_TYPES = (*range(20), 140, 141, *range(242, 256))
_ROWS = (*range(23, 26), *range(30, 33), 39)
_PACKED_ROWS = range(166, 172)
_HEADER = 19


def spoil_bytes(rng: random.Random, data: bytearray, other: bytes) -> None:
    """One change of any bytes, in place."""
    size = len(data)
    how = rng.randrange(12)
    at = rng.randrange(size) if size else 0
    if how <= 2 or size < 8:
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how <= 4:
        data[at] = rng.choice(_BYTES)
    elif how == 5:
        wide = rng.choice((1, 2, 3, 4, 8))
        at = rng.randrange(max(1, size - wide))
        data[at : at + wide] = _number(rng, size, at).to_bytes(16, "little")[:wide]
    elif how == 6:
        # Off by a little, which lengths hate most.
        data[at] = (data[at] + rng.choice((-2, -1, 1, 2))) & 0xFF
    elif how == 7:
        del data[at:]
    elif how == 8:
        del data[at : at + rng.choice((1, 1, 2, 4, 19, 100))]
    elif how == 9:
        data[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 20)))
    elif how == 10:
        length = rng.choice((1, 4, 19, 60, 300))
        start = rng.randrange(max(1, len(other)))
        data[at : at + (length if rng.random() < 0.7 else 0)] = other[start : start + length]
    else:
        length = rng.choice((1, 2, 4, 16, 64))
        start = rng.randrange(size)
        data[at : at + length] = data[start : start + length]


def _number(rng: random.Random, size: int, at: int) -> int:
    which = rng.randrange(4)
    if which == 0:
        return rng.choice(_LARGE)
    if which == 1:
        return rng.choice((size, size - 1, size + 1, size - at, max(0, size - at - 1), size - at + 1))
    return rng.choice(_NUMBERS)


def spoil(rng: random.Random, piece: Piece, others: Sequence[Piece]) -> bytes:
    """A segment as an accident leaves it: bytes changed, or whole events out of place."""
    other = rng.choice(others)
    data = bytearray(piece.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.6:
            if rng.random() < 0.15 and piece.events:
                # The size of an event.
                at, _end = rng.choice(piece.events)
                if at + 13 <= len(data):
                    data[at + 9 : at + 13] = _number(rng, len(data), at).to_bytes(16, "little")[:4]
            else:
                spoil_bytes(rng, data, other.data)
        else:
            data = bytearray(b"".join(_displace(rng, [bytes(data[a:b]) for a, b in spans(bytes(data))], other)))
    return bytes(data)


def _displace(rng: random.Random, events: list[bytes], other: Piece) -> list[bytes]:
    """Whole events swapped, doubled, removed, moved, or taken from elsewhere."""
    if not events:
        return events
    one, two = rng.randrange(len(events)), rng.randrange(len(events))
    match rng.randrange(6):
        case 0:
            events[one], events[two] = events[two], events[one]
        case 1:
            events.insert(two, events[one])
        case 2:
            events.insert(one, events[one])
        case 3:
            del events[min(one, two) : max(one, two) + 1 if rng.random() < 0.3 else min(one, two) + 1]
        case 4:
            events.insert(two, events.pop(one))
        case _:
            a, b = rng.choice(other.events)
            foreign = other.data[a:b]
            if rng.random() < 0.5:
                events[one] = foreign
            else:
                events.insert(one, foreign)
    return events


def rebuild(rng: random.Random, piece: Piece, others: Sequence[Piece]) -> bytes:
    """A segment whose events hold bad bytes, and whose frame is right in most cases."""
    other = rng.choice(others)
    trailer = piece.checksum_bytes
    events = [piece.data[a : b - trailer] for a, b in piece.events]
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.15:
            foreign = [other.data[a : b - other.checksum_bytes] for a, b in other.events]
            events = _displace(rng, events, _plain(other, foreign))
        if not events:
            break
        index = _favourite(rng, events)
        events[index] = _spoil_event(rng, events[index], other)
    return frame(rng, events, piece)


def _plain(piece: Piece, events: list[bytes]) -> Piece:
    """A piece of the same events without checksums; their sizes are put right when they are framed."""
    bare = [event[:9] + len(event).to_bytes(4, "little") + event[13:] for event in events]
    return Piece(piece.name, piece.flavour, piece.version, piece.start, piece.end, 0, piece.tables, b"".join(bare))


def unchecked(piece: Piece) -> Piece:
    """The same log as a server writes it that makes no checksums."""
    made = bytearray()
    for a, b in piece.events:
        size = b - a - piece.checksum_bytes
        made += piece.data[a : a + 9] + struct.pack("<II", size, piece.start + len(made) + size) + piece.data[a + 17 : a + size]
    return Piece(piece.name, piece.flavour, piece.version, piece.start, piece.start + len(made), 0, piece.tables, bytes(made))


def _favourite(rng: random.Random, events: list[bytes]) -> int:
    """Maps and rows more often than the rest."""
    index = rng.randrange(len(events))
    for _ in range(2):
        if events[index][4] in (19, 40, *_ROWS, *_PACKED_ROWS):
            break
        index = rng.randrange(len(events))
    return index


def _spoil_event(rng: random.Random, event: bytes, other: Piece) -> bytes:
    kind = event[4]
    header, body = bytearray(event[:_HEADER]), event[_HEADER:]
    chance = rng.random()
    if chance < 0.04:
        header[4] = rng.choice((*_ROWS, 2, 16, 19, 26, 33, 38, 40, 162, 165, 166, 170, 172, rng.randrange(256)))
        return bytes(header) + body
    if chance < 0.08:
        header[rng.choice((0, 1, 2, 3, 5, 17, 18))] = rng.choice(_BYTES)
        return bytes(header) + body
    if kind == Event.TRANSACTION_PAYLOAD and chance < 0.7:
        return bytes(header) + _spoil_payload(rng, body, other)
    if kind in _PACKED_ROWS and chance < 0.7:
        return bytes(header) + _spoil_packed_rows(rng, kind, body, other)
    if kind == Event.TABLE_MAP and chance < 0.35:
        return bytes(header) + _spoil_map(rng, body)
    # Table and flags lead to the same few refusals, so they are mostly spared.
    spared = 8 if kind in (19, *_ROWS, *_PACKED_ROWS) and rng.random() < 0.9 else 0
    changed = bytearray(body[spared:])
    spoil_bytes(rng, changed, other.data)
    return bytes(header) + body[:spared] + bytes(changed)


def _spoil_map(rng: random.Random, body: bytes) -> bytes:
    """Another type or other metadata for a column: a map that doesn't fit its rows."""
    changed = bytearray(body)
    at = 8
    for _ in range(2):
        # The names of database and table.
        at += 2 + (changed[at] if at < len(changed) else 0)
    if at + 4 > len(changed):
        return body
    count = changed[at] if changed[at] < 251 else int.from_bytes(changed[at + 1 : at + 3], "little")
    codes = at + (1 if changed[at] < 251 else 3)
    if rng.random() < 0.4:
        changed[min(codes + rng.randrange(max(1, count)), len(changed) - 1)] = rng.choice(_TYPES)
    elif rng.random() < 0.7:
        start = min(codes + count + 1, len(changed) - 1)
        changed[start + rng.randrange(min(len(changed) - start, count * 2 + 1))] = rng.choice((*_BYTES, *range(10), rng.randrange(256)))
    else:
        changed[at] = rng.choice((0, 1, (changed[at] + 1) & 0xFF, 250, 252, 253, 254))
    return bytes(changed)


def _spoil_payload(rng: random.Random, body: bytes, other: Piece) -> bytes:
    """The events inside a compressed transaction, compressed again; or its fields."""
    at = body.find(b"\x28\xb5\x2f\xfd")
    if at < 0:
        return body
    try:
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(body[at:])
    except zstandard.ZstdError:
        return body
    inner = [plain[a:b] for a, b in spans(plain)]
    if inner and rng.random() < 0.2:
        inner = _displace(rng, inner, _plain(other, [other.data[a : b - other.checksum_bytes] for a, b in other.events]))
    if inner:
        index = _favourite(rng, inner)
        inner[index] = _spoil_event(rng, inner[index], other)
    if rng.random() < 0.9:
        inner = [each[:9] + len(each).to_bytes(4, "little") + each[13:] for each in inner]
    return payload(b"".join(inner), claim=rng.choice(_LARGE) if rng.random() < 0.1 else None)


def payload(plain: bytes, *, claim: int | None = None, frame_bytes: bytes | None = None) -> bytes:
    """A TRANSACTION_PAYLOAD's body."""
    packed = zstandard.compress(plain, 1) if frame_bytes is None else frame_bytes
    size = len(plain) if claim is None else claim
    fields = b"\x02" + b"\x01" + b"\x00"
    for field, value in ((3, size), (1, len(packed))):
        number = b"\xfe" + struct.pack("<Q", value)
        fields += bytes([field, len(number)]) + number
    return fields + b"\x00" + packed


def _spoil_packed_rows(rng: random.Random, kind: int, body: bytes, other: Piece) -> bytes:
    """What lies inside MariaDB's compressed rows, compressed again."""
    at = 8
    if kind >= Event.WRITE_ROWS_COMPRESSED:
        at += int.from_bytes(body[8:10], "little")
    if at >= len(body):
        return body
    count = body[at]
    at += 1 + (2 if kind in (167, 170) else 1) * ((count + 7) // 8)
    size = body[at] & 7 if at < len(body) else 0
    try:
        plain = bytearray(zlib.decompress(body[at + 1 + size :]))
    except zlib.error:
        return body
    spoil_bytes(rng, plain, other.data)
    return body[:at] + pack(bytes(plain), claim=rng.choice(_LARGE) & 0xFFFFFFFF if rng.random() < 0.1 else None)


def pack(plain: bytes, *, claim: int | None = None) -> bytes:
    """MariaDB's compressed data."""
    size = len(plain) if claim is None else claim
    return b"\x84" + size.to_bytes(4, "big") + zlib.compress(plain, 1)


def frame(rng: random.Random, events: list[bytes], piece: Piece) -> bytes:
    """Sizes, positions and checksums of events that have none."""
    trailer = piece.checksum_bytes
    offset = piece.start
    honest = rng.random() < 0.93
    liar = -1 if honest else rng.randrange(max(1, len(events)))
    made = bytearray()
    starts = []
    for index, event in enumerate(events):
        size = len(event) + trailer
        offset += size
        if index == liar:
            place = rng.choice((0, offset - size, offset + 1, offset - 1, (1 << 32) - 1, 1 << 31, offset + 1000)) & 0xFFFFFFFF
        else:
            place = offset & 0xFFFFFFFF
        starts.append(len(made))
        whole = event[:9] + struct.pack("<II", size, place) + event[17:]
        made += whole
        if trailer:
            # A file that is being written to says so in its first event's flags, which are not in the checksum.
            sealed = whole[:17] + bytes([whole[17] & 0xFE]) + whole[18:] if whole[4] == Event.FORMAT_DESCRIPTION else whole
            made += struct.pack("<I", zlib.crc32(sealed))
    if starts and rng.random() < 0.05:
        # A size that lies, with a checksum that is right for what it claims.
        at = rng.choice(starts)
        size = max(0, rng.choice((0, 4, 18, 19, 23, 26, 27, 28, 31, _number(rng, len(made), at)))) & 0xFFFFFFFF
        made[at + 9 : at + 13] = struct.pack("<I", size)
        if trailer and 23 <= size <= len(made) - at:
            made[at + size - 4 : at + size] = struct.pack("<I", zlib.crc32(made[at : at + size - 4]))
    return bytes(made)
