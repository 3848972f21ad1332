"""Compressed and fragmented events made by hand."""

from __future__ import annotations

import struct
import zlib

import zstandard

from tests.kit import streams


def deflated(plain: bytes, *, raw: bool = False, length: int | None = None) -> bytes:
    """As MariaDB compresses: a byte that tells the size of the length, the length, the stream."""
    stream = zlib.compress(plain)
    if raw:
        compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        stream = compressor.compress(plain) + compressor.flush()
    size = len(plain) if length is None else length
    width = max(1, (size.bit_length() + 7) // 8)
    return bytes([0x80 | (8 if raw else 0) | width]) + size.to_bytes(width, "big") + stream


def compressed_rows(body: bytes, head: int = 10) -> bytes:
    """A row event's body with its rows compressed; `head` bytes of ids, flags, count and bitmaps stay."""
    return body[:head] + deflated(body[head:])


def payload(events: bytes, *, compression: int = 0, claimed: int | None = None) -> bytes:
    packed = zstandard.ZstdCompressor().compress(events) if compression == 0 else events

    def field(kind: int, number: int) -> bytes:
        value = bytes([number]) if number < 251 else b"\xfe" + number.to_bytes(8, "little")
        return bytes([kind, len(value)]) + value

    plain = len(events) if claimed is None else claimed
    return field(2, compression) + field(3, plain) + field(1, len(packed)) + b"\0" + packed


def fragments(whole: bytes, count: int, *, number_first: bool) -> list[bytes]:
    cuts = [len(whole) * index // count for index in range(count + 1)]
    made = []
    for index in range(count):
        numbers = (index + 1, count) if number_first else (count, index + 1)
        first = b"\1" + len(whole).to_bytes(8, "little") if index == 0 else b"\0"
        made.append(struct.pack("<II", *numbers) + first + whole[cuts[index] : cuts[index + 1]])
    return made


def plain_event(kind: int, body: bytes) -> bytes:
    return streams.event(kind, body, next_position=0, checksummed=False)
