"""KeyBytes of rows in Paimon's order, and the merge of runs that are sorted by them.

Laws:
- KeyBytes compare as Paimon's comparator does: columns in their order; strings and bytes as unsigned bytes, the shorter first; of floats
  -0.0 is before 0.0 and NaN is last. A key is never NULL.
- Of equal keys the row with the greatest sequence counts, then the one with the greatest number that its writer gave it, then that of the
  later run.
- A run has each key once, in rising order. One that has not is damaged, and is not merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from snowmelt.columnar.arena import Bytes, Longs
from snowmelt.columnar.memory import JIT, big64, load64
from snowmelt.errors import Corrupt, InvalidConfig

Words = npt.NDArray[np.uint64]

_SIGN: Final = np.uint64(1 << 63)
_NO_BYTES: Final = np.frombuffer(b"", np.uint8)
_WORD: Final = 8
_WORD_DIGITS: Final = 18
"""Decimals of no more digits are one word."""


@dataclass(frozen=True, slots=True)
class KeyBytes:
    """The keys of rows, as bytes that compare as the keys do."""

    heads: Words
    """The first eight bytes as a number; of a shorter key zeros follow."""
    data: Bytes
    """All bytes, of one key after the other; not writable, which kernels are compiled for. None where the head is the key."""
    ends: Longs
    """Where each key begins, and where the last ends."""

    def __len__(self) -> int:
        return len(self.heads)

    def slice(self, start: int, stop: int) -> KeyBytes:
        return KeyBytes(self.heads[start:stop], self.data, self.ends[start : stop + 1] if len(self.ends) else self.ends)

    def at(self, row: int) -> KeyBytes:
        return self.slice(row, row + 1)


def encode(columns: Sequence[pa.Array]) -> KeyBytes:
    """The keys of rows with these key columns."""
    parts = [part for column in columns for part in _parts(column)]
    if len(parts) == 1:
        part = parts[0]
        if not isinstance(part, _Texts):
            return KeyBytes(part, _NO_BYTES, np.zeros(0, np.int64))
        return KeyBytes(_heads(part.data, part.ends), part.data, part.ends)
    rows = len(columns[0])
    sizes = np.zeros(rows, np.int64)
    for place, part in enumerate(parts):
        if isinstance(part, _Texts):
            _add_sizes(sizes, part.data, part.ends, place < len(parts) - 1)
        else:
            sizes += _WORD
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    data, cursors = np.empty(int(ends[-1]), np.uint8), ends[:-1].copy()
    for place, part in enumerate(parts):
        if isinstance(part, _Texts):
            _put_texts(data, cursors, part.data, part.ends, place < len(parts) - 1)
        else:
            _put_words(data, cursors, part)
    data.flags.writeable = False
    return KeyBytes(_heads(data, ends), data, ends)


def join(parts: Sequence[KeyBytes]) -> KeyBytes:
    """The keys of several stretches of rows, one after the other."""
    if len(parts) == 1:
        return parts[0]
    heads = np.concatenate([part.heads for part in parts])
    if not any(len(part.ends) for part in parts):
        return KeyBytes(heads, _NO_BYTES, parts[0].ends)
    data = np.concatenate([part.data[part.ends[0] : part.ends[-1]] for part in parts])
    data.flags.writeable = False
    ends = np.zeros(len(heads) + 1, np.int64)
    at, shift = 0, 0
    for part in parts:
        ends[at : at + len(part) + 1] = part.ends - part.ends[0] + shift
        at += len(part)
        shift = int(ends[at])
    return KeyBytes(heads, data, ends)


def rows_up_to(keys: KeyBytes, last: KeyBytes) -> int:
    """How many of these sorted keys are not greater than a single one."""
    return int(_rows_up_to(keys.heads, keys.data, keys.ends, last.heads, last.data, last.ends))


def compare(one: KeyBytes, other: KeyBytes) -> int:
    """Of two single keys: below 0, 0 or above 0."""
    return int(_compare(one.heads, one.data, one.ends, 0, other.heads, other.data, other.ends, 0))


def rises(keys: KeyBytes, after: KeyBytes | None) -> bool:
    """Whether each key is above the one before it, and the first above the single key `after`."""
    if after is not None and len(keys) and compare(after, keys.at(0)) >= 0:
        return False
    return bool(_rises(keys.heads, keys.data, keys.ends))


def order_of(columns: Sequence[pa.Array]) -> pa.Array:
    """The places of rows in the order of their keys; of equal keys in the order of the last column, and then in their own."""
    parts: list[pa.Array] = []
    for column in columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            # As bytes they are compared without a sign, the shorter first.
            parts.append(column.cast(pa.binary()))
        else:
            parts += [pa.array(part) for part in _parts(column) if not isinstance(part, _Texts)]
    names = [str(place) for place in range(len(parts))]
    return pc.sort_indices(pa.table(parts, names=names), sort_keys=[(name, "ascending") for name in names])


def last_of_each(keys: KeyBytes, order: Longs) -> Longs:
    """Of rows in their order the last of each key."""
    kept = np.empty(len(order), np.int64)
    return kept[: _last_of_each(keys.heads, keys.data, keys.ends, order, kept)]


def merge(keys: KeyBytes, starts: Longs, sequences: Longs, numbers: Longs, where: str) -> Longs:
    """Which rows remain of runs that lie one after the other, in the order of their keys.

    `starts`: the first row of each run, and the end of the last. `Corrupt`: a run is not sorted.
    """
    chosen = np.empty(len(keys), np.int64)
    count = _merge(keys.heads, keys.data, keys.ends, starts, sequences, numbers, chosen)
    if count < 0:
        raise Corrupt("a lake file is not sorted by its key", detail=where, hint="which program wrote it?")
    return chosen[:count]


# ---- columns as bytes


@dataclass(frozen=True, slots=True)
class _Texts:
    data: Bytes
    ends: Longs


def _parts(column: pa.Array) -> list[Words | _Texts]:
    """A key column as numbers that rise as its values do, or as their bytes."""
    kind, rows = column.type, len(column)
    if column.null_count:
        raise Corrupt("a key of a lake table is NULL")
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int32, rows + 1, column.offset * 4).astype(np.int64) if rows else np.zeros(1, np.int64)
        found = np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES
        # Kernels are compiled for one kind of array, and memory of an arena is writable.
        found.flags.writeable = False
        return [_Texts(found, ends)]
    if pa.types.is_decimal128(kind):
        words = np.zeros((0, 2), np.int64)
        if rows:
            words = np.frombuffer(column.buffers()[1], np.int64, 2 * rows, column.offset * 16).reshape(rows, 2)
        low = np.ascontiguousarray(words[:, 0])
        if kind.precision <= _WORD_DIGITS:
            return [low.view(np.uint64) ^ _SIGN]
        return [np.ascontiguousarray(words[:, 1]).view(np.uint64) ^ _SIGN, low.view(np.uint64)]
    if pa.types.is_floating(kind):
        floats = column.to_numpy(zero_copy_only=False).astype(np.float64)
        bits = np.where(np.isnan(floats), np.float64("nan"), floats).view(np.uint64)
        return [np.where(bits & _SIGN, ~bits, bits | _SIGN)]
    if pa.types.is_boolean(kind):
        return [column.to_numpy(zero_copy_only=False).astype(np.uint64)]
    if kind.num_buffers == 2 and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        whole = column.view(pa.int64() if kind.bit_width == 64 else pa.int32()) if pa.types.is_temporal(kind) else column
        return [whole.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ _SIGN]
    hint = "set maintenance: {enabled: no} in its route"
    raise InvalidConfig("a lake table's key has a type that is not compacted", detail=str(kind), hint=hint)


@njit(**JIT)
def _heads(data, ends):  # type: ignore[no-untyped-def]
    heads = np.empty(len(ends) - 1, np.uint64)
    for row in range(len(heads)):
        start, end = ends[row], ends[row + 1]
        if end - start >= 8:
            heads[row] = big64(data, start)
        else:
            head = np.uint64(0)
            for at in range(8):
                head <<= np.uint64(8)
                if start + at < end:
                    head |= np.uint64(data[start + at])
            heads[row] = head
    return heads


@njit(**JIT)
def _add_sizes(sizes, data, ends, ended):  # type: ignore[no-untyped-def]
    for row in range(len(sizes)):
        sizes[row] += ends[row + 1] - ends[row]
        if ended:
            sizes[row] += 2
            for at in range(ends[row], ends[row + 1]):
                if data[at] == 0:
                    sizes[row] += 1


@njit(**JIT)
def _put_texts(into, cursors, data, ends, ended):  # type: ignore[no-untyped-def]
    """With an end, which is less than any byte that may stand there instead: two zeros, and each zero in the text is a zero and 255."""
    for row in range(len(cursors)):
        to = cursors[row]
        for at in range(ends[row], ends[row + 1]):
            into[to] = data[at]
            to += 1
            if ended and data[at] == 0:
                into[to] = 255
                to += 1
        if ended:
            into[to] = 0
            into[to + 1] = 0
            to += 2
        cursors[row] = to


@njit(**JIT)
def _put_words(into, cursors, words):  # type: ignore[no-untyped-def]
    for row in range(len(cursors)):
        word = words[row]
        for at in range(8):
            into[cursors[row] + at] = np.uint8(word >> np.uint64(56 - 8 * at) & np.uint64(255))
        cursors[row] += 8


# ---- comparing


@njit(**JIT)
def _compare(heads, data, ends, row, other_heads, other_data, other_ends, other):  # type: ignore[no-untyped-def]
    if heads[row] != other_heads[other]:
        return -1 if heads[row] < other_heads[other] else 1
    if len(ends) == 0:
        return 0
    at, end = ends[row], ends[row + 1]
    other_at, other_end = other_ends[other], other_ends[other + 1]
    while end - at >= 8 and other_end - other_at >= 8 and load64(data, at) == load64(other_data, other_at):
        at += 8
        other_at += 8
    while at < end and other_at < other_end:
        if data[at] != other_data[other_at]:
            return -1 if data[at] < other_data[other_at] else 1
        at += 1
        other_at += 1
    if at < end:
        return 1
    return -1 if other_at < other_end else 0


@njit(**JIT)
def _rises(heads, data, ends):  # type: ignore[no-untyped-def]
    for row in range(1, len(heads)):
        if heads[row - 1] > heads[row]:
            return False
        if heads[row - 1] == heads[row] and (len(ends) == 0 or _compare(heads, data, ends, row - 1, heads, data, ends, row) >= 0):
            return False
    return True


@njit(**JIT)
def _last_of_each(heads, data, ends, order, kept):  # type: ignore[no-untyped-def]
    count = 0
    for place in range(len(order)):
        row = order[place]
        if place + 1 < len(order):
            following = order[place + 1]
            if heads[row] == heads[following] and _compare(heads, data, ends, row, heads, data, ends, following) == 0:
                continue
        kept[count] = row
        count += 1
    return count


@njit(**JIT)
def _rows_up_to(heads, data, ends, last_heads, last_data, last_ends):  # type: ignore[no-untyped-def]
    low, high = 0, len(heads)
    while low < high:
        middle = (low + high) // 2
        if _compare(heads, data, ends, middle, last_heads, last_data, last_ends, 0) <= 0:
            low = middle + 1
        else:
            high = middle
    return low


@njit(**JIT)
def _sink(heads, data, ends, at, nexts, heap, size, place):  # type: ignore[no-untyped-def]
    """The run at a place of the heap goes down to where it belongs: by its next key, then by its own place among the runs.

    Heads decide nearly always, so that they are compared here: a call costs more.
    """
    run = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        least = heap[child]
        if child + 1 < size:
            other = heap[child + 1]
            if nexts[other] < nexts[least] or (nexts[other] == nexts[least] and _is_first(heads, data, ends, at, other, least)):
                child += 1
                least = other
        if nexts[run] < nexts[least] or (nexts[run] == nexts[least] and _is_first(heads, data, ends, at, run, least)):
            break
        heap[place] = least
        place = child
    heap[place] = run


@njit(**JIT)
def _is_first(heads, data, ends, at, one, other):  # type: ignore[no-untyped-def]
    """Of two runs whose next heads are the same."""
    compared = _compare(heads, data, ends, at[one], heads, data, ends, at[other]) if len(ends) else 0
    return compared < 0 or (compared == 0 and one < other)


@njit(**JIT)
def _merge(heads, data, ends, starts, sequences, numbers, chosen):  # type: ignore[no-untyped-def]
    runs = len(starts) - 1
    at = starts[:-1].copy()
    nexts = np.zeros(runs, np.uint64)
    heap = np.empty(runs, np.int64)
    size = 0
    for run in range(runs):
        if at[run] < starts[run + 1]:
            heap[size] = run
            nexts[run] = heads[at[run]]
            size += 1
    for place in range(size // 2 - 1, -1, -1):
        _sink(heads, data, ends, at, nexts, heap, size, place)
    count = 0
    best = np.int64(-1)
    while size:
        run = heap[0]
        row = at[run]
        same = best >= 0 and heads[best] == heads[row]
        if same and len(ends):
            same = _compare(heads, data, ends, best, heads, data, ends, row) == 0
        if not same:
            if best >= 0:
                chosen[count] = best
                count += 1
            best = row
        elif sequences[row] > sequences[best] or (sequences[row] == sequences[best] and numbers[row] >= numbers[best]):
            best = row
        following = row + 1
        at[run] = following
        if following == starts[run + 1]:
            size -= 1
            heap[0] = heap[size]
        else:
            if heads[following] < heads[row]:
                return -1
            if heads[following] == heads[row] and (len(ends) == 0 or _compare(heads, data, ends, row, heads, data, ends, following) >= 0):
                return -1
            nexts[run] = heads[following]
        if size:
            _sink(heads, data, ends, at, nexts, heap, size, 0)
    if best >= 0:
        chosen[count] = best
        count += 1
    return count
