"""One text for each value, made by the server in SQL and, of the lake's value, in Arrow. Equal texts, equal values, and no other way round.

The server's half knows nothing of our decoders: it is what the server itself prints, or computes.

    integers, YEAR, BIT(1)       decimal digits
    DECIMAL                      with all digits of its scale; beyond 38 digits the text that the lake holds
    DATE, DATETIME, TIMESTAMP    YYYY-MM-DD, and with HH:MM:SS.ffffff; a date that no calendar has is NULL, as the lake has it.
                                 With `zero_dates: string` the text with the column's own digits
    TIME                         microseconds; with `time_as: string` the text
    CHAR, VARCHAR, TINYTEXT, ENUM, SET
                                 UTF-8, by the server's CONVERT; the labels of a SET joined by commas
    BINARY, VARBINARY, TINYBLOB, BIT(n)
                                 the bytes; BIT(n) as (n + 7) / 8 of them
    UUID, INET4, INET6           as SELECT prints them
    TEXT and longer, BLOB and longer, JSON, GEOMETRY, VECTOR
                                 the digest of their text or bytes, so that a row's message stays small on the server
    FLOAT, DOUBLE                their 64 bits as a double. No server tells bits in SQL, and MySQL 8 rounds where it makes text of them, so
                                 these columns can't be hashed there: the server sends the number times 1e0, as eight bytes of its
                                 binary protocol, and they are hashed here after the digest of the other columns. So nothing is left
                                 out, but of a table with such a column every row is sent, as a digest and these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.databases.comparing.digests import Digests, Hash, Hashes, digest_rows, digest_values, hashes, hexadecimal, raw
from snowmelt.databases.comparing.rows import Detail, text_of
from snowmelt.databases.mysql.quoting import quote
from snowmelt.databases.mysql.types.charsets import canonical_charset
from snowmelt.databases.mysql.types.columns import (
    BINARY_TYPES,
    DECIMAL_DIGITS_MAX,
    GEOMETRY_TYPES,
    INTEGER_BITS,
    TEXT_TYPES,
    MySqlColumn,
    TimeAs,
    TypeOptions,
    ZeroDates,
)
from snowmelt.errors import InvalidConfig, check

_LARGE: Final = frozenset({"text", "mediumtext", "longtext", "blob", "mediumblob", "longblob", "json", "vector"}) | GEOMETRY_TYPES
_FLOATS: Final = ("float", "double")
_ALWAYS: Final = "_UTF8MB4''"


def is_summed(column: MySqlColumn) -> bool:
    """Whether the server can hash this column."""
    return column.base not in _FLOATS


def sql_text(column: MySqlColumn, options: TypeOptions, how: Hash) -> str:
    """The form of a column's value as the server makes it, for a column that is summed there."""
    name, base = quote(column.name), column.base
    if base in INTEGER_BITS or base == "year":
        # ZEROFILL is for the eyes: a sum has none of it.
        return f"CAST({name} + 0 AS CHAR)"
    match base:
        case "decimal":
            return f"CAST({name} + 0 AS CHAR)" if column.unsigned else f"CAST({name} AS CHAR)"
        case "date" | "datetime" | "timestamp" if options.zero_dates is ZeroDates.STRING:
            return f"CAST({name} AS CHAR)"
        case "date":
            return f"IF({_is_date(name)}, CAST({name} AS CHAR), NULL)"
        case "datetime" | "timestamp":
            return f"IF({_is_date(name)}, DATE_FORMAT({name}, '%Y-%m-%d %H:%i:%s.%f'), NULL)"
        case "time" if options.time_as is TimeAs.STRING:
            return f"CAST({name} AS CHAR)"
        case "time":
            seconds = f"(HOUR({name}) * 3600 + MINUTE({name}) * 60 + SECOND({name}))"
            sign = f"IF(LEFT(CAST({name} AS CHAR), 1) = '-', -1, 1)"
            return f"CAST({sign} * ({seconds} * 1000000 + MICROSECOND({name})) AS CHAR)"
        case "bit" if (column.length or 1) == 1:
            return f"CAST({name} + 0 AS CHAR)"
        case "bit":
            digits = (((column.length or 1) + 7) // 8) * 2
            return f"UNHEX(LPAD(HEX({name} + 0), {digits}, '0'))"
        case "enum" | "set":
            return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
        case "uuid" | "inet4" | "inet6":
            return f"CAST({name} AS CHAR)"
        case "json" if not column.charset:
            return how.sql(f"CAST({name} AS CHAR)")
    if base in TEXT_TYPES or base == "json":
        plain = canonical_charset(column.charset or "utf8mb4") in ("utf8mb4", "utf8mb3")
        text = f"CAST({name} AS BINARY)" if plain else f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    elif base in BINARY_TYPES:
        text = name
    elif base in GEOMETRY_TYPES or base == "vector":
        # As bytes: functions refuse the types themselves on some servers.
        text = f"UNHEX(HEX({name}))"
    else:
        raise InvalidConfig(f"columns of type {base} can't be verified", detail=column.name, hint="leave the table out")
    return how.sql(text) if base in _LARGE else text


def _is_date(name: str) -> str:
    year, month, day = f"YEAR({name})", f"MONTH({name})", f"DAYOFMONTH({name})"
    leap = f"({year} % 4 = 0 AND ({year} % 100 <> 0 OR {year} % 400 = 0))"
    days = f"ELT({month}, 31, IF({leap}, 29, 28), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31) + 0"
    return f"{name} IS NULL OR ({year} > 0 AND {month} > 0 AND {day} > 0 AND {day} <= {days})"


def sql_digest(columns: Iterable[MySqlColumn], options: TypeOptions, how: Hash) -> str:
    """The digest of the message of those of the columns that the server can hash."""
    texts = [sql_text(column, options, how) for column in columns if is_summed(column)]
    # As bytes, each by itself: MariaDB makes UTF-8 of bytes that it joins with text.
    parts = [f"CAST(IFNULL(CONCAT(LENGTH({text}), ':', CAST({text} AS BINARY)), '-') AS BINARY)" for text in texts]
    return how.sql(f"CONCAT({', '.join(parts)})" if parts else _ALWAYS)


def sql_float(column: MySqlColumn) -> str:
    """The number as a DOUBLE, whatever the column is."""
    return f"{quote(column.name)} * 1e0"


def lake_text(column: MySqlColumn, values: pa.Array, how: Hash) -> pa.Array:
    """The form of a column's values as the lake has them, as strings or bytes."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        return _decimal(values)
    elif pa.types.is_floating(kind):
        return float_bits(values.cast(pa.float64()))
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz)).view(pa.timestamp("us"))
    elif pa.types.is_duration(kind):
        values = values.cast(pa.duration("us")).view(pa.int64())
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = pc.binary_join(values, ",")
    elif _is_bytes(kind) and column.base in _LARGE:
        digests = hexadecimal(digest_values(values, how))
        return pc.if_else(values.is_valid(), digests, pa.scalar(None, digests.type)) if values.null_count else digests
    return values if _is_bytes(values.type) else values.cast(pa.string())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def float_bits(numbers: pa.Array) -> pa.Array:
    """The form of doubles."""
    rows = len(numbers)
    valid = numbers.is_valid() if numbers.null_count else None
    data = pc.fill_null(numbers, 0.0).to_numpy(zero_copy_only=False).astype("<f8").tobytes()
    offsets = np.arange(rows + 1, dtype=np.int64) * 8
    bits = pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return bits if valid is None else pc.if_else(valid, bits, pa.scalar(None, bits.type))


def _decimal(values: pa.Array) -> pa.Array:
    """All digits of the scale: Arrow's own text has an exponent where a number is small."""
    scale = values.type.scale
    check(values.type.bit_width == 128, "a decimal of the lake has another width", str(values.type))
    unscaled = pa.decimal128(DECIMAL_DIGITS_MAX, 0)
    whole = pa.Array.from_buffers(unscaled, len(values), values.buffers(), offset=values.offset).cast(pa.string())
    if scale <= 0:
        return whole
    below = pc.starts_with(whole, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    text = pc.binary_join_element_wise(pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale), ".")
    return pc.binary_join_element_wise(pc.if_else(below, "-", ""), text, "")


class MySqlRowForms:
    """The columns of a table whose rows are told apart, and by which of them they are named."""

    def __init__(
        self, columns: Sequence[MySqlColumn], key: Sequence[str], options: TypeOptions, how: Hash, *, named: Sequence[str] = ()
    ) -> None:
        """`how` the server hashes. `key`: what the lake knows a row by. `named`: what a user does, where the lake has no key."""
        self.columns = tuple(columns)
        self.key = tuple(column for name in key for column in columns if column.name == name)
        self.named = self.key or tuple(column for name in named for column in columns if column.name == name)
        self.options = options
        self.how = how
        self.floats = tuple(column for column in self.columns if not is_summed(column))
        """What is sent as text, and hashed here."""

    def digests(self, columns: dict[str, pa.Array], of: Sequence[MySqlColumn], rows: int) -> Digests:
        """Of the lake's rows, by their forms."""
        summed = digest_rows([columns[column.name] for column in of if is_summed(column)], rows, self.how)
        return self.with_floats(summed, [columns[column.name] for column in of if not is_summed(column)])

    def hash(self, batch: pa.RecordBatch) -> tuple[Hashes, Hashes]:
        """The hash of each row's key and of the whole row. Without a key the row itself is the key."""
        columns = self.texts(batch)
        rows = hashes(self.digests(columns, self.columns, batch.num_rows))
        return (hashes(self.digests(columns, self.key, batch.num_rows)) if self.key else rows), rows

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def named_by(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.named)

    def details(self, batch: pa.RecordBatch, keys: Hashes, rows: Hashes, named: Hashes) -> dict[int, Detail]:
        at = np.flatnonzero(np.isin(keys, named))
        if not len(at):
            return {}
        few = self.texts(batch.take(pa.array(at)))
        digests = {name: digest_rows([texts], len(texts), self.how) for name, texts in few.items()}
        found = {}
        for index, place in enumerate(at.tolist()):
            columns = tuple(
                digests[column.name][index].tobytes() if is_summed(column) else few[column.name][index].as_py() or b""
                for column in self.columns
            )
            key = tuple(_key_text(column.base, few[column.name][index].as_py()) for column in self.named)
            found[int(keys[place])] = Detail(int(rows[place]), key, columns)
        return found

    def texts(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {column.name: lake_text(column, batch.column(column.name), self.how) for column in self.columns}

    def with_floats(self, digests: Digests, floats: Sequence[pa.Array]) -> Digests:
        """The digest of what the server hashed and of the bits of what it could not."""
        return digest_rows([raw(digests), *floats], len(digests), self.how) if floats else digests


def _key_text(base: str, value: str | bytes | None) -> str:
    if base in ("float", "double") and isinstance(value, bytes):
        return str(float(np.frombuffer(value, "<f8")[0]))
    return text_of(value.encode() if isinstance(value, str) else value)
