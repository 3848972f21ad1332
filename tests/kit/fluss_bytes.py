"""Fluss' bytes made the slow and plain way, to read what readers of ours make of them: compacted rows and log record batches."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import google_crc32c
import pyarrow as pa

from snowmelt.fluss.formats.types import Column, FlussType, Root, Schema

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
        case Root.ARRAY | Root.MAP | Root.ROW:
            data = nested_value(kind, value)
            return varint(len(data), 32) + data


def nested_value(kind: FlussType, value: Any) -> bytes:
    """Arrays are lists, maps lists of pairs, rows lists of their fields' values."""
    match kind.root:
        case Root.ARRAY:
            return binary_array(kind.children[0], value)
        case Root.MAP:
            keys, values = (binary_array(child, [pair[place] for pair in value]) for place, child in enumerate(kind.children))
            return struct.pack("<i", len(keys)) + keys + values
        case _:
            return compacted_row(schema_of(*kind.children), value)


FIXED = {Root.BOOLEAN: 1, Root.TINYINT: 1, Root.SMALLINT: 2, Root.INTEGER: 4, Root.FLOAT: 4, Root.DATE: 4, Root.TIME: 4}


def binary_array(kind: FlussType, values: Sequence[Any]) -> bytes:
    """A slot for each element; the words of those that don't fit into theirs come behind all of them."""
    nulls = bytearray((len(values) + 31) // 32 * 4)
    width = FIXED.get(kind.root, 8)
    start = (4 + len(nulls) + width * len(values) + 7) // 8 * 8
    slots = behind = b""
    for place, value in enumerate(values):
        if value is None:
            nulls[place // 8] |= 1 << place % 8
            slots += bytes(width)
            continue
        slot, data = array_slot(kind, value, start + len(behind))
        slots += slot
        behind += data + bytes(-len(data) % 8)
    return (struct.pack("<i", len(values)) + bytes(nulls) + slots).ljust(start, b"\0") + behind


def array_slot(kind: FlussType, value: Any, at: int) -> tuple[bytes, bytes]:
    """A slot, and what lies at `at` for it."""
    match kind.root:
        case Root.INTEGER | Root.DATE | Root.TIME:
            return struct.pack("<i", value), b""
        case Root.BIGINT:
            return struct.pack("<q", value), b""
        case Root.DECIMAL if kind.precision <= 18:
            return struct.pack("<q", value), b""
        case Root.DECIMAL:
            data = compacted_value(kind, value)[1:]
            return struct.pack("<ii", len(data), at), data.ljust(16, b"\0")
        case Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            millis = struct.pack("<q", value[0])
            return (millis, b"") if kind.precision <= 3 else (struct.pack("<ii", value[1], at), millis)
        case Root.CHAR | Root.STRING | Root.BINARY | Root.BYTES:
            data = value.encode() if isinstance(value, str) else value
            if len(data) <= 7:
                return data.ljust(7, b"\0") + bytes([0x80 | len(data)]), b""
        case Root.ARRAY | Root.MAP | Root.ROW:
            data = nested_value(kind, value)
        case _:
            return compacted_value(kind, value), b""
    return struct.pack("<ii", len(data), at), data


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
        case Root.ARRAY:
            return [shown(kind.children[0], element) for element in value]
        case Root.MAP:
            return [tuple(shown(child, part) for child, part in zip(kind.children, pair, strict=True)) for pair in value]
        case Root.ROW:
            return [shown(child, part) for child, part in zip(kind.children, value, strict=True)]
        case _:
            return value


def seen(array: pa.Array) -> list[Any]:
    """An array as `shown` shows its values."""
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = seen(array.values) if pa.types.is_list(kind) else list(zip(seen(array.keys), seen(array.items), strict=True))
        ends = array.offsets.to_pylist()
        found = [inner[start:end] for start, end in itertools.pairwise(ends)]
    elif pa.types.is_struct(kind):
        found = [list(values) for values in zip(*(seen(array.field(place)) for place in range(kind.num_fields)), strict=True)]
    else:
        return (array.view(pa.int64()) if pa.types.is_timestamp(kind) else array).to_pylist()
    return [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]


def wire_value(kind: FlussType, value: Any) -> Any:
    """A value of `compacted_value` for an Arrow array of the log."""
    if value is None:
        return None
    match kind.root:
        case Root.DECIMAL | Root.TIMESTAMP | Root.TIMESTAMP_LTZ:
            return shown(kind, value)
        case Root.TIME:
            return {"s": value // 1000, "ms": value, "us": value * 1000, "ns": value * 10**6}[kind.unit]
        case Root.ARRAY:
            return [wire_value(kind.children[0], element) for element in value]
        case Root.MAP:
            return [
                {name: wire_value(child, part) for name, child, part in zip(("key", "value"), kind.children, pair, strict=True)}
                for pair in value
            ]
        case Root.ROW:
            return {name: wire_value(child, part) for name, child, part in zip(kind.names, kind.children, value, strict=True)}
        case _:
            return value


def wire_batch(schema: Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    arrays = [
        pa.array([wire_value(column.type, row[place]) for row in rows], column.type.wire) for place, column in enumerate(schema.columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(column.name, column.type.wire) for column in schema.columns]))


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
