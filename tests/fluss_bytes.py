"""Fluss' bytes made the slow and plain way, to read what readers of ours make of them: compacted rows and log record batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import google_crc32c
import pyarrow as pa

from snowmelt.fluss.types import Column, FlussType, Root, Schema

EPOCH = datetime(1970, 1, 1)


def varint(value: int, bits: int) -> bytes:
    value &= (1 << bits) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compacted_value(kind: FlussType, value: Any) -> bytes:
    """Timestamps are (milliseconds, nanoseconds of the millisecond), times are milliseconds, decimals their unscaled number."""
    match kind.root:
        case Root.BOOLEAN:
            return bytes([value])
        case Root.TINYINT:
            return struct.pack("<b", value)
        case Root.SMALLINT:
            return struct.pack("<h", value)
        case Root.INTEGER | Root.DATE | Root.TIME:
            return varint(value, 32)
        case Root.BIGINT:
            return varint(value, 64)
        case Root.FLOAT:
            return struct.pack("<f", value)
        case Root.DOUBLE:
            return struct.pack("<d", value)
        case Root.DECIMAL:
            if kind.precision <= 18:
                return varint(value, 64)
            size = ((value if value >= 0 else ~value).bit_length() + 8) // 8
            return varint(size, 32) + value.to_bytes(size, "big", signed=True)
        case Root.CHAR | Root.STRING:
            data = value.encode()
            return varint(len(data), 32) + data
        case Root.BINARY | Root.BYTES:
            return varint(len(value), 32) + value
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            return varint(value[0], 64) + (varint(value[1], 32) if kind.precision > 3 else b"")


def compacted_row(schema: Schema, values: Sequence[Any]) -> bytes:
    nulls = bytearray((len(values) + 7) // 8)
    body = b""
    for place, (column, value) in enumerate(zip(schema.columns, values, strict=True)):
        if value is None:
            nulls[place // 8] |= 1 << place % 8
        else:
            body += compacted_value(column.type, value)
    return bytes(nulls) + body


def stored_row(schema: Schema, values: Sequence[Any]) -> bytes:
    return struct.pack("<h", schema.id) + compacted_row(schema, values)


def shown(kind: FlussType, value: Any) -> Any:
    """What Arrow shows for a value of `compacted_value`. Nanoseconds are numbers here: Python's times have none."""
    if value is None:
        return None
    match kind.root:
        case Root.DATE:
            return date(1970, 1, 1) + timedelta(days=value)
        case Root.TIME:
            value = value // 1000 * 1000 if kind.precision == 0 else value
            return (EPOCH + timedelta(milliseconds=value)).time() if value else time(0)
        case Root.DECIMAL:
            # By its text: contexts round.
            return Decimal(f"{value}E-{kind.scale}")
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            units = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
            nanos = value[0] * 10**6 + (value[1] if kind.precision > 3 else 0)
            unit = units[kind.unit]
            return nanos // unit if kind.unit != "s" or nanos >= 0 else -(-nanos // unit)
        case _:
            return value


def seen(array: pa.Array) -> list[Any]:
    """An array as `shown` shows its values."""
    return (array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()


def schema_of(*types: FlussType, id: int = 1) -> Schema:
    return Schema(id, tuple(Column(place, f"c{place}", kind) for place, kind in enumerate(types)))


def arrow_body(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return bytes(message.serialize())


def log_batch(
    body: bytes, *, base: int, rows: int, schema_id: int = 1, kinds: Sequence[int] | None = None, time_ms: int = 1_700_000_000_000,
    delta: int | None = None, version: int = 1, kinds_in_body: bool = False,
) -> bytes:  # fmt: skip
    attributes = 1 if kinds is None and not kinds_in_body else 0
    last = max(rows - 1, 0) if delta is None else delta
    covered = struct.pack("<hBiqii", schema_id, attributes, last, -1, -1, rows) + bytes(kinds or ()) + body
    epoch = struct.pack("<i", 3) if version else b""
    rest = struct.pack("<bq", version, time_ms) + epoch + struct.pack("<I", google_crc32c.value(covered)) + covered
    return struct.pack("<qi", base, len(rest)) + rest
