"""Columns of an arena as Arrow arrays: what the row kernel leaves to do, column by column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from snowmelt.columnar.arena import Arena
from snowmelt.columnar.memory import valid_utf8
from snowmelt.databases.mysql.log.rowplan import Finish, PlannedColumn
from snowmelt.databases.mysql.log.unpack import inflate
from snowmelt.databases.mysql.types.binary_json import apply_diffs, text_of
from snowmelt.databases.mysql.types.charsets import transcode
from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.databases.mysql.types.sets import set_lists
from snowmelt.errors import BEGIN_ANEW, SourceDrift


def finished(column: PlannedColumn, arena: Arena, index: int, rows: int, *, flavour: Flavour, value_bytes_max: int) -> pa.Array:
    """The column with this index in the arena. Raises `pa.ArrowInvalid` where text is not in its charset."""
    match column.finish:
        case Finish.NOTHING:
            return arena.array(index, column.arrow, rows)
        case Finish.UTF8:
            if valid_utf8(*arena.heap(index, rows), rows):
                return arena.array(index, column.arrow, rows)
            # Old servers accept bytes in ascii and utf8mb3 that are neither. SELECT converts them, and so do we.
            if column.charset not in ("ascii", "utf8mb3"):
                raise pa.ArrowInvalid("not UTF-8")
            return _transcoded(column, arena, index, rows, flavour)
        case Finish.LABEL:
            # Index 0 is the empty string that stands for a value that was refused.
            labels = pa.array(["", *column.labels], pa.string())
            return labels.take(arena.array(index, pa.int32(), rows))
        case Finish.LABELS:
            return set_lists(arena.array(index, pa.uint64(), rows), column.labels)
        case Finish.BOOL:
            return arena.array(index, pa.int8(), rows).cast(pa.bool_())
        case Finish.TRANSCODE:
            return _transcoded(column, arena, index, rows, flavour)
        case Finish.INFLATE:
            return _inflated(column, arena.array(index, pa.binary(), rows), flavour, value_bytes_max)
        case Finish.JSON:
            return _json_texts(column.name, arena.array(index, pa.binary(), rows))


def _transcoded(column: PlannedColumn, arena: Arena, index: int, rows: int, flavour: Flavour) -> pa.Array:
    offsets, data = transcode(column.charset, *arena.heap(index, rows), rows, flavour=flavour)
    if np.may_share_memory(data, arena.memory):
        # Nothing had to be converted; the arena's own buffers keep it lent.
        return arena.array(index, column.arrow, rows)
    array = pa.Array.from_buffers(pa.string(), rows, [arena.validity(index, rows), pa.py_buffer(offsets), pa.py_buffer(data)])
    array.validate(full=True)
    return array


def _inflated(column: PlannedColumn, packed: pa.Array, flavour: Flavour, value_bytes_max: int) -> pa.Array:
    """MariaDB's COMPRESSED columns: a byte of zero and the value, or a header and zlib data."""
    values = [None if value is None else _plain_value(value, value_bytes_max) for value in packed.to_pylist()]
    array = pa.array(values, pa.binary())
    if pa.types.is_binary(column.arrow):
        return array
    _, offsets, data = array.buffers()
    count = len(array)
    if column.charset and column.charset not in ("utf8mb4", "utf8mb3", "ascii"):
        places = np.frombuffer(offsets, np.int32)[: count + 1]
        offsets_out, data_out = transcode(
            column.charset, places, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), count, flavour=flavour
        )
        text = pa.Array.from_buffers(pa.string(), count, [array.buffers()[0], pa.py_buffer(offsets_out), pa.py_buffer(data_out)])
    else:
        text = array.view(pa.string())
    text.validate(full=True)
    return text


def _plain_value(stored: bytes, bytes_max: int) -> bytes:
    """A value of a COMPRESSED column: nothing, or a zero byte and the value, or compressed data."""
    if not stored or stored[0] == 0:
        return stored[1:]
    return inflate(stored, bytes_max=bytes_max)


def _json_texts(name: str, raw: pa.Array) -> pa.Array:
    """Documents and differences as text. Differences apply to the document of the row before, which is the update's other half."""
    texts: list[bytes | None] = []
    before: bytes | None = None
    for value in raw.to_pylist():
        if value is None:
            texts.append(None)
            before = None
        elif value[0] == 0:
            texts.append(text_of(value[1:]))
            before = value[1:]
        else:
            if before is None:
                raise SourceDrift(
                    "the log holds differences of a JSON document without the document",
                    detail=f"column {name}",
                    hint=f"with binlog_row_value_options = PARTIAL_JSON, binlog_row_image must be FULL; set it and {BEGIN_ANEW}",
                )
            texts.append(apply_diffs(before, value[1:]))
            before = None
    return pa.array(texts, pa.binary()).cast(pa.string())
