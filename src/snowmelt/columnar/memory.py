"""Unaligned loads, stores and copies for compiled code.

These trust their caller: each use must have checked its bounds. `load*` read little-endian, `big*` big-endian numbers out
of a uint8 array at a byte offset; `store*` write the low bytes of a uint64.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

# Before the first kernel is made: it says where they are kept.
from snowmelt.columnar import kernels  # noqa: F401

JIT: dict[str, Any] = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy"}
"""How every kernel is compiled: cached on disk, without the GIL. Bounds are checked by the kernels' own code, which can
say where; `/` and `%` follow numpy, so no hidden exception paths exist."""


def _load(result: Any, bits: int, *, swap: bool) -> Any:
    @intrinsic
    def load(_context: Any, array: Any, offset: Any) -> Any:
        signature = result(array, types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            word = ir.IntType(bits)
            value = builder.load(builder.bitcast(builder.gep(data, [args[1]]), word.as_pointer()))
            value.align = 1
            if swap:
                value = builder.call(builder.module.declare_intrinsic("llvm.bswap", [word]), [value])
            return value

        return signature, generate

    return load


def _store(bits: int) -> Any:
    @intrinsic
    def store(_context: Any, array: Any, offset: Any, value: Any) -> Any:
        signature = types.void(array, types.int64, types.uint64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            word = ir.IntType(bits)
            value = args[2] if bits == 64 else builder.trunc(args[2], word)
            builder.store(value, builder.bitcast(builder.gep(data, [args[1]]), word.as_pointer())).align = 1
            return context.get_dummy_value()

        return signature, generate

    return store


@intrinsic
def copy(_context: Any, target: Any, target_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    """memcpy of `count` bytes between two uint8 arrays that don't overlap."""
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = context.make_array(signature.args[0])(context, builder, args[0]).data
        out_of = context.make_array(signature.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(builder, builder.gep(to, [args[1]]), builder.gep(out_of, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return signature, generate


def kernel_view(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes in the form that kernels are compiled for. Kernels only read what they get here, but a read-only array is
    another type to the compiler, and compiling everything twice costs seconds."""
    if data.flags.writeable:
        return data
    if not data.shape[0]:
        return np.empty(0, np.uint8)
    raw = (ctypes.c_uint8 * data.shape[0]).from_address(data.ctypes.data)
    # An address alone keeps nothing alive; the view holds `raw`, and `raw` the bytes.
    raw.owner = data
    return np.ctypeslib.as_array(raw)


load16 = _load(types.uint16, 16, swap=False)
load32 = _load(types.uint32, 32, swap=False)
load64 = _load(types.uint64, 64, swap=False)
big16 = _load(types.uint16, 16, swap=True)
big32 = _load(types.uint32, 32, swap=True)
big64 = _load(types.uint64, 64, swap=True)
store8 = _store(8)
store16 = _store(16)
store32 = _store(32)
store64 = _store(64)


@njit(**JIT)
def valid_utf8(offsets: Any, heap: Any, count: Any) -> Any:
    """Whether each of `count` strings in Arrow's layout is UTF-8: all bytes together are, and no string begins inside a character."""
    at = np.int64(offsets[0])
    size = np.int64(offsets[count])
    plain = True
    while at < size:
        while at + 32 <= size:
            word = load64(heap, at) | load64(heap, at + 8) | load64(heap, at + 16) | load64(heap, at + 24)
            if word & np.uint64(0x8080808080808080):
                break
            at += 32
        if at >= size:
            break
        first = heap[at]
        if first < 0x80:
            at += 1
            continue
        plain = False
        if first < 0xC2 or first > 0xF4:
            return False
        extra = 1 + (first >= 0xE0) + (first >= 0xF0)
        if at + extra >= size:
            return False
        # The second byte tells overlong forms, surrogates and what is beyond U+10FFFF.
        second = heap[at + 1]
        low, high = 0x80, 0xBF
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
        elif first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
        if second < low or second > high:
            return False
        for step in range(2, extra + 1):
            if heap[at + step] & 0xC0 != 0x80:
                return False
        at += extra + 1
    if not plain:
        for row in range(count):
            start = offsets[row]
            if start < offsets[row + 1] and heap[start] & 0xC0 == 0x80:
                return False
    return True
