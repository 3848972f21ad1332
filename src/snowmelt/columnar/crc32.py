"""CRC-32 as zlib and the logs of MySQL and MariaDB count it, for compiled code.

Every event of a log is checked twice, when it is captured and when it is decoded, so this has to cost next to nothing.
Where the processor multiplies without carry (x86 with PCLMULQDQ), 64 bytes are folded at a step; elsewhere, and for what is
shorter than a fold, tables take eight bytes at a step. Both give the same number.

The bounds are the caller's: `0 <= start <= end <= len(buffer)` must hold.

Folding: bytes are a polynomial over two values, and a word of it that stands `n` bits before another may be multiplied by
x^n mod P and added to the other, which leaves the remainder by P as it is. What is left of a long input at the end is one
word of 16 bytes with the same remainder, and the tables finish it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from snowmelt.columnar.memory import JIT, load32, load64

_POLYNOMIAL = 0xEDB88320
"""P without x^32; the highest power is in the lowest bit, as in all numbers here."""

_ALL = np.uint32(0xFFFFFFFF)
_WORD = 16
"""Bytes that are multiplied at once."""


def _power(exponent: int) -> int:
    """x^exponent mod P. In this bit order a product comes out one bit too low, which the shift makes up for."""
    value = 0x80000000
    for _ in range(exponent):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value << 1


def _tables() -> npt.NDArray[np.uint32]:
    """Eight tables in a row: the k-th gives the remainder of a byte that k zero bytes follow."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> np.uint32(8)) ^ tables[0][tables[k - 1] & np.uint32(0xFF)]
    return tables.reshape(-1)


_TABLES = _tables()


def _target_folds() -> bool:
    """Whether code is compiled for a processor with the instruction. Caches on disk tell processors apart by the same words."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return triple.startswith("x86_64") and "+pclmul" in features.split(",")


FOLDS = _target_folds()
"""Whether this processor folds."""


def _folding(lanes: int) -> Any:
    @intrinsic
    def fold(_context: Any, buffer: Any, start: Any, count: Any, register: Any) -> Any:
        """A word, in two halves, with the remainder of the `count` bytes from `start` that `register` was added to.

        `count` is a multiple of 16 and enough for every lane.
        """
        signature = types.UniTuple(types.uint64, 2)(buffer, types.int64, types.int64, types.uint32)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            start, count, register = args[1:]
            byte, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
            pair = ir.VectorType(i64, 2)
            multiply = cgutils.get_or_insert_function(builder.module, ir.FunctionType(pair, [pair, pair, byte]), "llvm.x86.pclmulqdq")

            def word_at(index: Any) -> Any:
                offset = builder.add(start, builder.mul(index, ir.Constant(i64, _WORD)))
                word = builder.load(builder.bitcast(builder.gep(data, [offset]), pair.as_pointer()))
                word.align = 1
                return word

            def moved(word: Any, words: int) -> Any:
                # The first half is 64 bits further away than the second, and both are 32 bits longer than a remainder.
                by = ir.Constant(pair, [_power(8 * _WORD * words + 32), _power(8 * _WORD * words - 32)])
                first = builder.call(multiply, [word, by, ir.Constant(byte, 0x00)])
                second = builder.call(multiply, [word, by, ir.Constant(byte, 0x11)])
                return builder.xor(first, second)

            folded = [cgutils.alloca_once_value(builder, word_at(ir.Constant(i64, lane))) for lane in range(lanes)]
            seed = builder.insert_element(ir.Constant(pair, [0, 0]), builder.zext(register, i64), ir.Constant(i32, 0))
            builder.store(builder.xor(builder.load(folded[0]), seed), folded[0])

            words = builder.udiv(count, ir.Constant(i64, _WORD))
            rounds = builder.udiv(words, ir.Constant(i64, lanes))
            with cgutils.for_range(builder, rounds, start=ir.Constant(i64, 1)) as loop:
                base = builder.mul(loop.index, ir.Constant(i64, lanes))
                for lane, at in enumerate(folded):
                    word = word_at(builder.add(base, ir.Constant(i64, lane)))
                    builder.store(builder.xor(moved(builder.load(at), lanes), word), at)
            for lane in folded[1:]:
                builder.store(builder.xor(moved(builder.load(folded[0]), 1), builder.load(lane)), folded[0])
            with cgutils.for_range(builder, words, start=builder.mul(rounds, ir.Constant(i64, lanes))) as loop:
                builder.store(builder.xor(moved(builder.load(folded[0]), 1), word_at(loop.index)), folded[0])

            result = builder.load(folded[0])
            halves = [builder.extract_element(result, ir.Constant(i32, index)) for index in range(2)]
            return context.make_tuple(builder, signature.return_type, halves)

        return signature, generate

    return fold


_fold4 = _folding(4)
_fold1 = _folding(1)


@njit(**JIT)
def _step8(word: Any) -> Any:
    """The register after eight bytes that the register before was added to."""
    word = np.uint64(word)
    value = _TABLES[np.uint64(1792) + (word & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(1536) + (word >> np.uint64(8) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(1280) + (word >> np.uint64(16) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(1024) + (word >> np.uint64(24) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(768) + (word >> np.uint64(32) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(512) + (word >> np.uint64(40) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(256) + (word >> np.uint64(48) & np.uint64(0xFF))]
    value ^= _TABLES[word >> np.uint64(56)]
    return np.uint32(value)


@njit(**JIT)
def _step4(word: Any) -> Any:
    """The register after four bytes that the register before was added to."""
    word = np.uint64(word)
    value = _TABLES[np.uint64(768) + (word & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(512) + (word >> np.uint64(8) & np.uint64(0xFF))]
    value ^= _TABLES[np.uint64(256) + (word >> np.uint64(16) & np.uint64(0xFF))]
    value ^= _TABLES[word >> np.uint64(24)]
    return np.uint32(value)


@njit(**JIT)
def crc32_by_tables(buffer: Any, start: Any, end: Any, seed: Any) -> Any:
    """What `crc32` gives, on any processor."""
    register = np.uint32(np.uint32(seed) ^ _ALL)
    at = start
    while end - at >= 8:
        register = _step8(load64(buffer, at) ^ np.uint64(register))
        at += 8
    if end - at >= 4:
        register = _step4(load32(buffer, at) ^ register)
        at += 4
    while at < end:
        register = np.uint32(_TABLES[np.uint64((register ^ buffer[at]) & np.uint32(0xFF))] ^ (register >> np.uint32(8)))
        at += 1
    return np.uint32(register ^ _ALL)


@njit(**JIT)
def crc32(buffer: Any, start: Any, end: Any, seed: Any) -> Any:
    """The CRC-32 of buffer[start:end] after bytes whose CRC-32 is `seed` (0 for none), as zlib.crc32 gives it: a uint32."""
    if not FOLDS or end - start < 2 * _WORD:
        return crc32_by_tables(buffer, start, end, seed)
    register = np.uint32(np.uint32(seed) ^ _ALL)
    count = (end - start) // _WORD * _WORD
    if count >= 4 * _WORD:
        first, second = _fold4(buffer, start, count, register)
    else:
        first, second = _fold1(buffer, start, count, register)
    register = _step8(second ^ np.uint64(_step8(first)))
    return crc32_by_tables(buffer, start + count, end, register ^ _ALL)
