"""MD5 of rows in compiled code: the one hash that every server can compute and that keeps its word for sums.

A row's message is its columns one behind the other: `-` for NULL, else the count of bytes in decimal digits, a colon, the bytes.
No two rows have one message. The servers make the same by `IFNULL(CONCAT(LENGTH(x), ':', x), '-')`.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from snowmelt.columnar.memory import JIT, copy, kernel_view, load32, store32, store64

Digests = npt.NDArray[np.uint8]
"""16 bytes a row, in two dimensions."""
Hashes = npt.NDArray[np.uint64]

_SINES = np.array([int(abs(np.sin(i + 1)) * 2**32) for i in range(64)], np.uint32)
_TURNS = np.array([7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4, np.uint32)
_WORDS = np.array([(factor * i + shift) % 16 for factor, shift in ((1, 0), (5, 1), (3, 5), (7, 0)) for i in range(16)], np.int64)


def digest_rows(columns: Sequence[pa.Array], rows: int) -> Digests:
    """The MD5 of each row's message. Columns are strings or bytes of any Arrow kind, all of them of `rows` rows."""
    parts = [_part(column) for column in columns]
    sizes = np.zeros(rows + 1, np.int64)
    for offsets, _, valid in parts:
        _measure(sizes, offsets, valid, rows)
    starts = np.cumsum(sizes)
    message = np.empty(int(starts[-1]) + 1, np.uint8)
    at = starts[:-1].copy()
    for offsets, data, valid in parts:
        _append(message, at, offsets, data, valid, rows)
    digests = np.empty((rows, 16), np.uint8)
    _digest(message, starts, digests.reshape(-1), rows)
    return digests


def digest_values(column: pa.Array) -> Digests:
    """The MD5 of each value's bytes alone; of NULL that of no bytes."""
    offsets, data, _ = _part(column)
    digests = np.empty((len(column), 16), np.uint8)
    _digest(data, offsets, digests.reshape(-1), len(column))
    return digests


def hashes(digests: Digests) -> Hashes:
    """The first 64 bits of each, as the servers' CONV(LEFT(MD5(…), 16), 16, 10) reads them."""
    return np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def hexadecimal(digests: Digests) -> pa.Array:
    """As MD5() prints them."""
    return _fixed(binascii.hexlify(digests.tobytes()), 32, len(digests))


def raw(digests: Digests) -> pa.Array:
    """As UNHEX(MD5()) gives them."""
    return _fixed(digests.tobytes(), 16, len(digests))


def from_raw(column: pa.Array) -> Digests:
    """Back from `raw`, or from what a server sent: 16 bytes each, none of them NULL."""
    _, data, _ = _part(column)
    return np.asarray(data[: 16 * len(column)]).reshape(-1, 16)


def _fixed(data: bytes, width: int, rows: int) -> pa.Array:
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _part(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Where each value lies, in bytes that begin with the first of them; and which are not NULL."""
    if column.type != pa.large_binary():
        column = column.cast(pa.large_binary())
    rows = len(column)
    _, places, held = column.buffers()
    offsets = np.frombuffer(places, np.int64)[column.offset : column.offset + rows + 1] if rows else np.zeros(1, np.int64)
    data = np.frombuffer(held, np.uint8)[offsets[0] : offsets[-1]] if held is not None else np.zeros(0, np.uint8)
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_) if column.null_count else np.full(rows, True)
    # One byte more than there is keeps an empty array from being another type to the compiler, or no memory at all.
    return offsets - offsets[0], kernel_view(data) if len(data) else np.zeros(1, np.uint8), valid


@njit(**JIT)
def _digits(value: Any) -> Any:
    count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


@njit(**JIT)
def _measure(sizes: Any, offsets: Any, valid: Any, rows: Any) -> None:
    for row in range(rows):
        size = offsets[row + 1] - offsets[row]
        sizes[row + 1] += _digits(size) + 1 + size if valid[row] else 1


@njit(**JIT)
def _append(message: Any, at: Any, offsets: Any, data: Any, valid: Any, rows: Any) -> None:
    for row in range(rows):
        place = at[row]
        if not valid[row]:
            message[place] = 45
            at[row] = place + 1
            continue
        size = offsets[row + 1] - offsets[row]
        digits = _digits(size)
        rest = size
        for index in range(digits - 1, -1, -1):
            message[place + index] = 48 + rest % 10
            rest //= 10
        message[place + digits] = 58
        copy(message, place + digits + 1, data, offsets[row], size)
        at[row] = place + digits + 1 + size


@njit(**JIT)
def _block(data: Any, at: Any, state: Any) -> None:
    a, b, c, d = state[0], state[1], state[2], state[3]
    for step in range(64):
        if step < 16:
            mixed = (b & c) | (~b & d)
        elif step < 32:
            mixed = (d & b) | (~d & c)
        elif step < 48:
            mixed = b ^ c ^ d
        else:
            mixed = c ^ (b | ~d)
        added = np.uint32(a + mixed + _SINES[step] + load32(data, at + 4 * _WORDS[step]))
        turn = _TURNS[step]
        turned = np.uint32((added << turn) | (added >> (np.uint32(32) - turn)))
        a, d, c, b = d, c, b, np.uint32(b + turned)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d


@njit(**JIT)
def _digest(data: Any, starts: Any, digests: Any, rows: Any) -> None:
    state = np.empty(4, np.uint32)
    tail = np.empty(128, np.uint8)
    for row in range(rows):
        state[0], state[1], state[2], state[3] = 0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476
        at, end = starts[row], starts[row + 1]
        size = end - at
        while end - at >= 64:
            _block(data, at, state)
            at += 64
        rest = end - at
        copy(tail, 0, data, at, rest)
        tail[rest] = 0x80
        blocks = 1 if rest < 56 else 2
        for index in range(rest + 1, 64 * blocks - 8):
            tail[index] = 0
        store64(tail, 64 * blocks - 8, np.uint64(size) << np.uint64(3))
        _block(tail, 0, state)
        if blocks == 2:
            _block(tail, 64, state)
        for word in range(4):
            store32(digests, 16 * row + 4 * word, np.uint64(state[word]))
