"""Hashes of rows in compiled code, by the functions that servers have.

A row's message is its columns one after the other: `-` for NULL, else the count of bytes in decimal digits, a colon, the bytes.
No two rows have one message. The servers make the same by `IFNULL(CONCAT(LENGTH(x), ':', x), '-')`.

MD5 is the cheapest that servers have, and good enough for sums. Servers without it (MySQL since 9.6, or where a policy forbids it) take
SHA-256, whose first 128 bits count.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from snowmelt.columnar.memory import JIT, big32, copy, kernel_view, load32, store32, store64

Digests = npt.NDArray[np.uint8]
"""16 bytes a row, in two dimensions."""
Hashes = npt.NDArray[np.uint64]

_SINES = np.array([int(abs(np.sin(i + 1)) * 2**32) for i in range(64)], np.uint32)
_TURNS = np.array([7, 12, 17, 22] * 4 + [5, 9, 14, 20] * 4 + [4, 11, 16, 23] * 4 + [6, 10, 15, 21] * 4, np.uint32)
_WORDS = np.array([(factor * i + shift) % 16 for factor, shift in ((1, 0), (5, 1), (3, 5), (7, 0)) for i in range(16)], np.int64)


def _primes(count: int) -> list[int]:
    return [number for number in range(2, 400) if all(number % other for other in range(2, math.isqrt(number) + 1))][:count]


def _root_bits(number: int, root: int) -> int:
    """The first 32 bits after the point of a square or cube root."""
    wanted = number << 32 * root
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**root <= wanted else (low, middle)
    return low & 0xFFFFFFFF


_ROUNDS = np.array([_root_bits(prime, 3) for prime in _primes(64)], np.uint32)
_FIRST = np.array([_root_bits(prime, 2) for prime in _primes(8)], np.uint32)


class Hash(StrEnum):
    """A function that a server and this module compute alike. Of each 128 bits count."""

    MD5 = "md5"
    SHA256 = "sha256"

    def sql(self, text: str) -> str:
        """The digest of an SQL expression, in hexadecimal digits."""
        return f"MD5({text})" if self is Hash.MD5 else f"LEFT(SHA2({text}, 256), 32)"


def digest_rows(columns: Sequence[pa.Array], rows: int, how: Hash) -> Digests:
    """The digest of each row's message. Columns are strings or bytes of any Arrow kind, all of them of `rows` rows."""
    parts = [_part(column) for column in columns]
    sizes = np.zeros(rows + 1, np.int64)
    for offsets, _, valid in parts:
        _measure(sizes, offsets, valid, rows)
    starts = np.cumsum(sizes)
    message = np.empty(int(starts[-1]) + 1, np.uint8)
    at = starts[:-1].copy()
    for offsets, data, valid in parts:
        _append(message, at, offsets, data, valid, rows)
    return _digests(message, starts, rows, how)


def digest_values(column: pa.Array, how: Hash) -> Digests:
    """The digest of each value's bytes alone; of NULL that of no bytes."""
    offsets, data, _ = _part(column)
    return _digests(data, offsets, len(column), how)


def _digests(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], rows: int, how: Hash) -> Digests:
    digests = np.empty((rows, 16), np.uint8)
    compute = _digest if how is Hash.MD5 else _digest_sha256
    compute(data, starts, digests.reshape(-1), rows)
    return digests


def hashes(digests: Digests) -> Hashes:
    """The first 64 bits of each, as the servers' CONV(LEFT(…, 16), 16, 10) reads them."""
    return np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)


def hexadecimal(digests: Digests) -> pa.Array:
    """As the servers' functions print them."""
    return _fixed(binascii.hexlify(digests.tobytes()), 32, len(digests))


def raw(digests: Digests) -> pa.Array:
    """As UNHEX() of what the servers print gives them."""
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
def _pad(tail: Any, data: Any, at: Any, rest: Any) -> Any:
    """The last bytes of a message and what both hashes append, but for its size in the last eight; how many blocks that is."""
    copy(tail, 0, data, at, rest)
    tail[rest] = 0x80
    blocks = 1 if rest < 56 else 2
    for index in range(rest + 1, 64 * blocks - 8):
        tail[index] = 0
    return blocks


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
        blocks = _pad(tail, data, at, end - at)
        store64(tail, 64 * blocks - 8, np.uint64(size) << np.uint64(3))
        _block(tail, 0, state)
        if blocks == 2:
            _block(tail, 64, state)
        for word in range(4):
            store32(digests, 16 * row + 4 * word, np.uint64(state[word]))


@njit(**JIT)
def _turn(word: Any, count: Any) -> Any:
    return np.uint32((word >> np.uint32(count)) | (word << np.uint32(32 - count)))


@njit(**JIT)
def _block_sha256(data: Any, at: Any, state: Any, words: Any) -> None:
    for i in range(16):
        words[i] = big32(data, at + 4 * i)
    for i in range(16, 64):
        one, other = words[i - 15], words[i - 2]
        mixed = _turn(one, 7) ^ _turn(one, 18) ^ np.uint32(one >> np.uint32(3))
        stirred = _turn(other, 17) ^ _turn(other, 19) ^ np.uint32(other >> np.uint32(10))
        words[i] = np.uint32(words[i - 16] + mixed + words[i - 7] + stirred)
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        chosen = (e & f) ^ (~e & g)
        added = np.uint32(h + (_turn(e, 6) ^ _turn(e, 11) ^ _turn(e, 25)) + chosen + _ROUNDS[i] + words[i])
        most = (a & b) ^ (a & c) ^ (b & c)
        more = np.uint32((_turn(a, 2) ^ _turn(a, 13) ^ _turn(a, 22)) + most)
        h, g, f, e = g, f, e, np.uint32(d + added)
        d, c, b, a = c, b, a, np.uint32(added + more)
    state[0] += a
    state[1] += b
    state[2] += c
    state[3] += d
    state[4] += e
    state[5] += f
    state[6] += g
    state[7] += h


@njit(**JIT)
def _digest_sha256(data: Any, starts: Any, digests: Any, rows: Any) -> None:
    state = np.empty(8, np.uint32)
    words = np.empty(64, np.uint32)
    tail = np.empty(128, np.uint8)
    for row in range(rows):
        for i in range(8):
            state[i] = _FIRST[i]
        at, end = starts[row], starts[row + 1]
        size = end - at
        while end - at >= 64:
            _block_sha256(data, at, state, words)
            at += 64
        blocks = _pad(tail, data, at, end - at)
        count = np.uint64(size) << np.uint64(3)
        for index in range(8):
            tail[64 * blocks - 1 - index] = np.uint8((count >> np.uint64(8 * index)) & np.uint64(0xFF))
        _block_sha256(tail, 0, state, words)
        if blocks == 2:
            _block_sha256(tail, 64, state, words)
        for word in range(4):
            for index in range(4):
                digests[16 * row + 4 * word + index] = np.uint8((state[word] >> np.uint32(24 - 8 * index)) & np.uint32(0xFF))
