"""Where a table is cut into chunks, and how a range of keys is written in SQL.

Laws:
- Chunks of a table don't overlap, have both ends, and leave nothing between the least and the greatest key of one exact read
  (`reads.read_extent`). What lies outside of these two is the tail: it holds no rows, only that read's mark.
- The database orders keys, under the column's own collation. Here they are only sent back to it, as literals that mean exactly
  the value that was read.
- Planning is lazy and can resume after any chunk. Every step moves forward in the database's order, so planning ends.
- Planning must cost little compared to reading. If the key is a single integer, a chunk's end is guessed from the width of the chunk
  before it, and checked by the optimizer's estimate, which reads a few index pages. If that fails, and for all other keys, the index is
  walked for exactly one chunk's length.

Values of a bound are what the key's columns hold, in these forms: integers, YEAR, BIT, the number of an ENUM and the bits of a
SET as int; DECIMAL as Decimal (as text beyond 38 digits); TIME as int microseconds; dates as the server's text, which zero
dates have too; FLOAT and DOUBLE as float; strings as str, but those that are not in UTF-8 as the bytes that are stored; bytes as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from snowmelt.databases.mysql.answers import anything, number, number_or_none
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.quoting import quote, quote_table
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.charsets import canonical_charset
from snowmelt.databases.mysql.types.columns import (
    BINARY_TYPES,
    INTEGER_BITS,
    TEXT_TYPES,
    MySqlColumn,
    MySqlTable,
    TimeAs,
    TypeOptions,
    ZeroDates,
)
from snowmelt.errors import InvariantBroken, check, instance
from snowmelt.model.table import TableId

KeyValue = int | float | Decimal | str | bytes
Bound = tuple[KeyValue, ...]

ESTIMATE_OFF_MAX = 1.5
"""How far a chunk's estimated rows may be from the wanted ones, either way."""

ESTIMATE_SCALE_MAX = 4
"""InnoDB estimates about twice the rows of a large range. Estimates are scaled by the error at a walked chunk, at most by this factor."""

ESTIMATED_ROWS_MIN = 1000
"""For smaller chunks the index is always walked: that is cheap, and estimates give one row for an empty range."""

GUESSES_MAX = 3
"""How many widths are tried by estimate before the index is walked."""

WALK_EVERY = 16
"""The index is walked once for this number of chunks, to see whether estimates are still true."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a table's keys that one SELECT reads: above `low`, up to and with `high`.

    The first chunk has its `low`, the table's least key, in it. A table without a key is one chunk without bounds.
    """

    table: TableId
    index: int
    low: Bound | None
    high: Bound | None

    @property
    def first(self) -> bool:
        return self.index == 0


@dataclass(frozen=True, slots=True)
class Extent:
    """The ends of a table at one exact read; both None where it was empty. Keys outside of it are the chunk `facts.OUTSIDE`."""

    least: Bound | None
    greatest: Bound | None


def plan_chunks(session: Session, table: MySqlTable, extent: Extent, *, rows_per_chunk: int, after: Chunk | None = None) -> Iterator[Chunk]:
    """The chunks of a table, in the order of its keys, from the end of `after` on if it is given.

    A chunk's end is sought when the chunk is asked for. Rows may come and go meanwhile; that changes sizes, never the cover.
    """
    check(rows_per_chunk > 0, "a chunk has at least one row")
    if not table.key:
        if after is None:
            yield Chunk(table.id, 0, None, None)
        return
    if extent.least is None or extent.greatest is None:
        return
    check(len(extent.least) == len(extent.greatest) == len(table.key), "a bound has a value for every column of the key")
    steps = _Steps(session, table, extent.greatest, rows_per_chunk)
    chunk = after
    while chunk is None or chunk.high != extent.greatest:
        if chunk is None:
            low, index = extent.least, 0
        else:
            check(chunk.high is not None, "planning continues after a chunk that has no end")
            low, index = chunk.high or (), chunk.index + 1
        chunk = Chunk(table.id, index, low, steps.next_bound(low, from_low=index == 0))
        yield chunk


class _Steps:
    """Finds the end of one chunk after the other."""

    def __init__(self, session: Session, table: MySqlTable, greatest: Bound, rows: int) -> None:
        self._session = session
        self._table = table
        self._source = from_table(session, table)
        self._greatest = greatest
        self._rows = rows
        self._guesses = rows >= ESTIMATED_ROWS_MIN and len(table.key) == 1 and table.column(table.key[0]).base in INTEGER_BITS
        self._width = 0
        """Of the last chunk, where the key is an integer and estimates can be trusted."""
        self._scale = 1.0
        self._since_walk = 0

    def next_bound(self, low: Bound, *, from_low: bool) -> Bound:
        if low == self._greatest:
            return self._greatest
        if self._width and self._since_walk < WALK_EVERY:
            guessed = self._guess(low)
            if guessed is not None:
                self._since_walk += 1
                return guessed
        high = self._walk(low, from_low=from_low)
        self._since_walk = 0
        if self._guesses and high != self._greatest:
            self._scale = self._rows / max(1, self._estimate(low, high))
            trusted = 1 / ESTIMATE_SCALE_MAX <= self._scale <= ESTIMATE_SCALE_MAX
            self._width = _integer(high) - _integer(low) if trusted else 0
        return high

    def _guess(self, low: Bound) -> Bound | None:
        start, end = _integer(low), _integer(self._greatest)
        width = self._width
        for _ in range(GUESSES_MAX):
            high = min(start + width, end)
            # A range has no more rows than numbers.
            estimate = min(self._scale * self._estimate(low, (high,)), high - start)
            few = estimate * ESTIMATE_OFF_MAX < self._rows
            if estimate <= self._rows * ESTIMATE_OFF_MAX and (high == end or not few):
                self._width = width
                return (high,)
            width = max(1, int(width * self._rows / max(1, estimate)))
        return None

    def _estimate(self, low: Bound, high: Bound) -> int:
        """The optimizer's idea of a range's rows. It dives into the index at both ends and reads a few pages."""
        where = key_condition(self._table, low, high)
        # id, select_type, table, [partitions,] type, possible_keys, key, key_len, ref, rows, [filtered,] Extra
        server = self._session.server
        before = 9 if server.flavour == "mysql" and server.version >= (5, 7, 3) else 8
        explain = f"EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM {self._source} WHERE {where}"
        return self._session.row(explain, columns=(*before * (anything,), number_or_none))[-1] or 0

    def _walk(self, low: Bound, *, from_low: bool) -> Bound:
        """The key one chunk's length after `low`, or the greatest if fewer follow.

        By the database's comparison the found key, written as a literal, must equal itself and lie above `low`. Otherwise a
        collation or a conversion that we misjudge would make planning loop. The transaction keeps the row from being deleted in
        between.
        """
        where = key_condition(self._table, low, self._greatest, from_low=from_low)
        order = ", ".join(quote(name) for name in self._table.key)
        self._session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        tail = f"WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {self._rows - 1}"
        found = read_keys(self._session, self._table, self._source, tail)
        forward = True
        if found:
            where = f"{key_equals(self._table, found[0])} AND {key_condition(self._table, low, None, from_low=from_low)}"
            forward = bool(self._session.value(f"SELECT COUNT(*) FROM {self._source} WHERE {where}", kind=number))
        self._session.execute("COMMIT")
        if not forward or (found and found[0] == low and not from_low):
            raise InvariantBroken("a key doesn't compare as itself", detail=f"{self._table.id} by {', '.join(self._table.key)}")
        return found[0] if found else self._greatest


def _integer(bound: Bound) -> int:
    (value,) = bound
    return instance(value, int, "an integer key has an integer bound")


_KEY_OPTIONS = TypeOptions(zero_dates=ZeroDates.STRING, time_as=TimeAs.MICROS)
_NUMBERED = frozenset({"enum", "set", "bit"})


def read_keys(session: Session, table: MySqlTable, source: str, tail: str) -> list[Bound]:
    """The keys of a few rows, in the forms of bounds. `source` comes from `from_table`; `tail` has conditions, order and limit."""
    items, columns = [], []
    for name in table.key:
        column = table.column(name)
        if column.base in _NUMBERED:
            items.append(_number(name))
            columns.append(MySqlColumn(name=name, base="bigint", unsigned=True, nullable=False))
        elif _by_bytes(column):
            items.append(f"CAST({quote(name)} AS BINARY)")
            columns.append(MySqlColumn(name=name, base="varbinary", nullable=False))
        else:
            items.append(quote(name))
            columns.append(replace(column, nullable=False))
    sql = f"SELECT {', '.join(items)} FROM {source} {tail}"
    bounds: list[Bound] = []
    for batch in select(session, sql, columns, _KEY_OPTIONS, counters=ReadCounters()):
        values = [_values(column, array.to_pylist()) for column, array in zip(columns, batch.columns, strict=True)]
        bounds.extend(zip(*values, strict=True))
    return bounds


def _number(name: str) -> str:
    """An ENUM, SET or BIT as its number. The operator makes it a BIGINT UNSIGNED on every server, whatever the cast alone gives."""
    return f"(CAST({quote(name)} AS UNSIGNED) | 0)"


def _by_bytes(column: MySqlColumn) -> bool:
    """Whether a bound of this column is its stored bytes. Most charsets have characters that don't survive the way to UTF-8 and
    back: the greatest key would become another one, and all above that would be left out."""
    return column.base in TEXT_TYPES and canonical_charset(column.charset or "utf8mb4") not in ("utf8mb4", "utf8mb3")


def _values(column: MySqlColumn, values: list[Any]) -> list[KeyValue]:
    # The widened form of an unsigned BIGINT is a decimal without digits after the point.
    return [int(value) for value in values] if column.base == "bigint" else values


def from_table(session: Session, table: MySqlTable) -> str:
    """The table for a FROM clause, with all rows that the log has of it.

    The clause forces the primary key: a range of it must never be read as a full scan. A system-versioned table of MariaDB
    is read with its history, because the log has history rows as inserts into the table.
    """
    name = quote_table(table.id)
    if session.server.flavour == "mariadb":
        kind = session.value(
            "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            [table.id.database, table.id.name],
        )
        if kind == "SYSTEM VERSIONED":
            name += " FOR SYSTEM_TIME ALL"
    return f"{name} FORCE INDEX (PRIMARY)" if table.key and table.key_is_primary else name


def chunk_condition(table: MySqlTable, chunk: Chunk) -> str:
    """The WHERE condition for a chunk's keys."""
    if chunk.low is None or chunk.high is None:
        return "TRUE"
    return key_condition(table, chunk.low, chunk.high, from_low=chunk.first)


def key_condition(table: MySqlTable, low: Bound | None, high: Bound | None, *, from_low: bool = False) -> str:
    """The condition for keys above `low` (or from it on) and up to `high`; None: without that bound."""
    columns = [table.column(name) for name in table.key]
    parts = []
    if low is not None:
        parts.append(_beyond(columns, low, ">", ">=" if from_low else ">"))
    if high is not None:
        parts.append(_beyond(columns, high, "<", "<="))
    return " AND ".join(parts) or "TRUE"


def key_equals(table: MySqlTable, key: Bound) -> str:
    columns = [table.column(name) for name in table.key]
    return " AND ".join(_compare(column, "=", value) for column, value in zip(columns, key, strict=True))


def _beyond(columns: Sequence[MySqlColumn], bound: Bound, strict: str, last: str) -> str:
    """Tuples on one side of `bound`, column by column.

    Servers don't use an index for (a, b) > (x, y), but they do for this. What the first column must be at least is said
    again by itself: it is implied, but older optimizers only see it so.
    """
    check(len(columns) == len(bound), "a bound has a value for every column of the key")
    if len(columns) == 1:
        return _compare(columns[0], last, bound[0])
    inner = _compare(columns[-1], last, bound[-1])
    for column, value in reversed(list(zip(columns[:-1], bound[:-1], strict=True))):
        inner = f"({_compare(column, strict, value)} OR ({_compare(column, '=', value)} AND {inner}))"
    return f"{_compare(columns[0], strict + '=', bound[0])} AND {inner}"


def _compare(column: MySqlColumn, operator: str, value: KeyValue) -> str:
    name = quote(column.name)
    if column.base == "set":
        # No index helps here, whatever the form; a SET is no first choice for a key.
        return f"{_number(column.name)} {operator} {_whole(value)}"
    if column.base == "enum":
        return _compare_enum(name, operator, _whole(value), len(column.labels))
    return f"{name} {operator} {literal(column, value)}"


def _compare_enum(name: str, operator: str, number: int, labels: int) -> str:
    """An ENUM orders by number but compares with strings as text, and ranges by number use no index; single numbers do."""
    if operator == "=":
        return f"{name} = {number}"
    # Zero is the number of what was no label when it was stored.
    wanted = {
        ">": range(number + 1, labels + 1),
        ">=": range(number, labels + 1),
        "<": range(number),
        "<=": range(number + 1),
    }[operator]
    return f"{name} IN ({', '.join(map(str, wanted))})" if wanted else "FALSE"


_DECIMAL = re.compile(r"-?\d{1,65}(\.\d{1,38})?")
_TEMPORAL = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")


def literal(column: MySqlColumn, value: KeyValue) -> str:
    """A value as SQL that is equal to it when compared with its column, and can't be anything but a literal."""
    base = column.base
    if base in INTEGER_BITS or base in ("year", "bit"):
        return str(_whole(value))
    if base in ("float", "double"):
        check(isinstance(value, float), "a floating-point key has a float for a bound")
        # The shortest text that reads back as the same double; the exponent keeps the server from reading a DECIMAL.
        text = repr(value)
        return text if "e" in text else f"{text}e0"
    if base == "decimal":
        number = format(value, "f") if isinstance(value, Decimal) else value
        text = instance(number, str, "a decimal key has a decimal for a bound")
        check(_DECIMAL.fullmatch(text) is not None, "a decimal key has a decimal for a bound")
        return text
    if base == "time":
        return _time_literal(_whole(value))
    if base in ("date", "datetime", "timestamp"):
        check(isinstance(value, str) and _TEMPORAL.fullmatch(value) is not None, "a temporal key has a date for a bound")
        return f"'{value!s}'"
    if base in BINARY_TYPES:
        return f"x'{instance(value, bytes, 'a binary key has bytes for a bound').hex()}'"
    if isinstance(value, bytes):
        check(_by_bytes(column), "bytes are a bound of strings that are not in UTF-8")
        return f"_{canonical_charset(column.charset or '')} x'{value.hex()}'"
    # With its character set said, the literal is converted to the column's, and the column's collation compares. Types
    # such as UUID read it as text.
    text = f"x'{instance(value, str, 'a string key has a string for a bound').encode().hex()}'"
    return f"_utf8mb4 {text}" if base in TEXT_TYPES else f"CONVERT({text} USING utf8mb4)"


def _whole(value: KeyValue) -> int:
    return int(instance(value, int, "a key that is a number has an integer for a bound"))


def _time_literal(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"'{'-' if micros < 0 else ''}{hour:02}:{minute:02}:{second:02}.{fraction:06}'"
