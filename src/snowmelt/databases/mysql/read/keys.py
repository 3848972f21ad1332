"""Keys of MySQL's tables as packed bounds. Only keys that are a single integer can be compared here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.databases.contract.keys import IntegerKeys, pack_integer, unpack_integer
from snowmelt.databases.mysql.read.bounds import Bound
from snowmelt.databases.mysql.types.columns import INTEGER_BITS, MySqlTable
from snowmelt.errors import check


def chunked(table: MySqlTable) -> bool:
    """Whether a table is copied in chunks. An unsigned BIGINT is not: its upper half is no 64-bit integer."""
    if len(table.key) != 1:
        return False
    column = table.column(table.key[0])
    return column.base in INTEGER_BITS and not (column.base == "bigint" and column.unsigned)


def pack_bound(bound: Bound) -> bytes:
    value = bound[0]
    if len(bound) != 1 or not isinstance(value, int):
        check(False, "a bound is not an integer", repr(type(value)))
    return pack_integer(int(value))


def unpack_bound(raw: bytes) -> Bound:
    return (unpack_integer(raw),)


def keys_of(table: MySqlTable, rows: pa.RecordBatch) -> IntegerKeys | None:
    """The keys as integers, if the key is one integer; None otherwise. An unsigned BIGINT is taken by its bits. One that the log left out
    of a partial row is 0."""
    if len(table.key) != 1:
        return None
    column = rows.column(table.key[0])
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.int64(), safe=False)
    if not pa.types.is_integer(column.type):
        return None
    return IntegerKeys(pc.fill_null(column, 0).to_numpy().astype(np.int64))
