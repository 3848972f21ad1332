"""Keys of chunks as bytes in facts, and as numbers in tasks.

A bound is opaque to the machines. Only tables whose key is a single integer are told apart by chunks in tasks; their bounds are 8 or
more bytes, most significant first, offset so that byte order is the order of the numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from snowmelt.columnar.arena import Longs
from snowmelt.databases.mysql.read.bounds import Bound
from snowmelt.databases.mysql.types.columns import INTEGER_BITS, MySqlTable
from snowmelt.errors import InvariantBroken, check
from snowmelt.planning.epochs import Span
from snowmelt.planning.facts import KeyEnds

Mask = npt.NDArray[np.bool_]
_BYTES = 16
_ZERO = 1 << 127


def chunked(table: MySqlTable) -> bool:
    """Whether a table is copied in chunks. An unsigned BIGINT is not: its upper half is no 64-bit integer."""
    if len(table.key) != 1:
        return False
    column = table.column(table.key[0])
    return column.base in INTEGER_BITS and not (column.base == "bigint" and column.unsigned)


def pack_bound(bound: Bound) -> bytes:
    value = bound[0]
    check(len(bound) == 1 and isinstance(value, int), "a bound is not an integer", repr(type(value)))
    return (int(value) + _ZERO).to_bytes(_BYTES, "big")


def unpack_bound(raw: bytes) -> Bound:
    return (_number(raw),)


def _number(raw: bytes) -> int:
    check(len(raw) == _BYTES, "a bound has another length", f"{len(raw)} bytes")
    return int.from_bytes(raw, "big") - _ZERO


def outside(keys: Longs | None, extent: KeyEnds | None) -> Mask:
    keys = _told(keys)
    if extent is None:
        return np.full(len(keys), True)
    return (keys < _number(extent.least)) | (keys > _number(extent.greatest))


def in_span(keys: Longs | None, span: Span, extent: KeyEnds | None) -> Mask:
    keys = _told(keys)
    inside = ~outside(keys, extent) & (keys <= _number(span.upto))
    return inside if span.above is None else inside & (keys > _number(span.above))


def _told(keys: Longs | None) -> Longs:
    if keys is None:
        raise InvariantBroken("keys are told apart by chunks that can't be")
    return keys
